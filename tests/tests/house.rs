//! Who may import whom (design, section 1), read from the manifests themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

/// Crate → the crates of ours that it may import; `tests` and `testkit` may import all of `host/`.
const ALLOWED: &[(&str, &[&str])] = &[
    ("capstan-api", &[]),
    ("capstan-boot", &[]),
    ("capstan-core", &["capstan-api"]),
    ("capstan-gateway", &["capstan-api", "capstan-core"]),
    ("capstan-runtime", &["capstan-api", "capstan-boot", "capstan-core", "capstan-gateway"]),
    ("capstan-cluster", &["capstan-api", "capstan-core"]),
    ("capstan-apiserver", &["capstan-api"]),
    ("capstan-simulator", &["capstan-api", "capstan-apiserver", "capstan-boot"]),
    (
        "capstan",
        &[
            "capstan-api",
            "capstan-apiserver",
            "capstan-cluster",
            "capstan-core",
            "capstan-gateway",
            "capstan-runtime",
            "capstan-simulator",
        ],
    ),
];

/// Crates that do I/O or know the time; `core` and `boot` decide without them.
const IMPURE: &[&str] = &["tokio", "reqwest", "hyper", "axum", "futures", "redb", "wasmtime", "rand", "tracing"];

fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .output()
        .expect("cargo metadata runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    metadata["packages"]
        .as_array()
        .expect("packages")
        .iter()
        .map(|package| {
            let normal = package["dependencies"].as_array().expect("dependencies").iter();
            let names = normal.filter(|d| d["kind"].is_null()).map(|d| d["name"].as_str().unwrap().to_owned());
            (package["name"].as_str().unwrap().to_owned(), names.collect())
        })
        .collect()
}

#[test]
fn rooms_import_only_what_the_design_lets_them() {
    let dependencies = dependencies();
    for (room, allowed) in ALLOWED {
        let imports = dependencies.get(*room).unwrap_or_else(|| panic!("the workspace lacks {room}"));
        for import in imports.iter().filter(|name| name.starts_with("capstan")) {
            assert!(allowed.contains(&import.as_str()), "{room} must not import {import}");
        }
    }
    let known: BTreeSet<&str> =
        ALLOWED.iter().map(|(room, _)| *room).chain(["capstan-testkit", "capstan-tests"]).collect();
    for room in dependencies.keys() {
        assert!(known.contains(room.as_str()), "{room} is new: say in this table what it may import");
    }
}

#[test]
fn decisions_do_no_io() {
    let dependencies = dependencies();
    for room in ["capstan-core", "capstan-boot"] {
        for impure in IMPURE {
            assert!(!dependencies[room].contains(*impure), "{room} is pure and must not import {impure}");
        }
    }
}

#[test]
fn no_file_grows_beyond_what_one_idea_needs() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let output = Command::new("git").args(["ls-files", "*.rs"]).current_dir(root).output().expect("git runs");
    let mut seen = 0;
    for path in String::from_utf8(output.stdout).expect("UTF-8").lines() {
        seen += 1;
        let lines =
            std::fs::read_to_string(format!("{root}/{path}")).map(|text| text.lines().count()).unwrap_or_default();
        assert!(lines <= 700, "{path} has {lines} lines: split it by idea");
    }
    assert!(seen > 20, "git lists the sources ({seen} found)");
}
