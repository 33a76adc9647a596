//! The in-tree providers, built and run as the host runs them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod kubeadm;
mod leak;
mod simulated;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use capstan_core::contract::Role;
use capstan_testkit::Testkit;

const PROVIDERS: [(&str, Role); 6] = [
    ("simulated", Role::Infrastructure),
    ("docker", Role::Infrastructure),
    ("proxmox", Role::Infrastructure),
    ("aws", Role::Infrastructure),
    ("kubeadm-bootstrap", Role::Bootstrap),
    ("kubeadm-control-plane", Role::ControlPlane),
];

/// A provider of this tree, by the name of its crate.
fn provider(name: &str) -> &'static Testkit {
    static KITS: OnceLock<BTreeMap<&str, Testkit>> = OnceLock::new();
    let kits = KITS.get_or_init(|| {
        let providers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../providers");
        let mut build = Command::new(env!("CARGO"));
        build.args([
            "build",
            "--quiet",
            "--release",
            "--locked",
            "--target",
            "wasm32-unknown-unknown",
            "--manifest-path",
        ]);
        build.arg(providers.join("Cargo.toml")).env_remove("RUSTFLAGS").env_remove("CARGO_TARGET_DIR");
        for (name, _) in PROVIDERS {
            build.args(["-p", name]);
        }
        let status = build.status().expect("cargo runs");
        assert!(status.success(), "the providers do not build (rustup target add wasm32-unknown-unknown)");
        let built = providers.join("target/wasm32-unknown-unknown/release");
        let load = |name: &str| Testkit::load(&built.join(name.replace('-', "_")).with_extension("wasm"));
        PROVIDERS.into_iter().map(|(name, _)| (name, load(name).expect("the host accepts it"))).collect()
    });
    &kits[name]
}

#[test]
fn every_provider_of_the_tree_is_accepted_and_modest() {
    for (name, role) in PROVIDERS {
        let module = provider(name).module();
        assert_eq!(module.manifest().name, name);
        assert_eq!(module.manifest().role, role, "{name}");
        assert!(module.limits().memory <= 16 << 20, "{name}");
        assert!(!module.served(name).is_empty(), "{name}");
    }
}
