//! `capstan run` against an API server of its own that knows nothing of Cluster API, and a simulated cloud that an
//! Endpoint names: what a production set-up is, in small.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by them")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use capstan_api::{Gvk, Object};
use capstan_apiserver::{ApiServer, Authentication, Options, User, server_config};
use capstan_cluster::kinds::{Resource, builtin};
use capstan_cluster::mint::{Mint, admin_kubeconfig};
use capstan_cluster::wire::Wire;
use capstan_core::contract::{Algorithm, KeyPair, KeyUse};
use capstan_simulator::{Simulator, SimulatorOptions};
use rcgen::{CertificateParams, Issuer, SanType};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

const PATIENCE: Duration = Duration::from_secs(120);

/// The components that `make build` leaves.
fn providers() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let path = std::env::var_os("CAPSTAN_PROVIDERS").map_or_else(|| root.join("target/providers"), PathBuf::from);
    if path.join("simulated.wasm").exists() {
        return Some(path);
    }
    eprintln!("SKIPPED: `capstan run`: no components in {} (make build)", path.display());
    let _ = std::fs::create_dir_all(root.join("target"));
    let skips = root.join("target/test-skips");
    let known = std::fs::read_to_string(&skips).unwrap_or_default();
    std::fs::write(skips, format!("{known}capstan run: no components\n")).unwrap();
    None
}

/// Ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An API server on loopback TLS and the kubeconfig of its administrator.
async fn api_server(stop: &CancellationToken) -> (ApiServer, String) {
    let wanted = KeyPair {
        algorithm: Algorithm::EcdsaP256,
        purpose: KeyUse::CertificateAuthority,
        common_name: "test".into(),
        validity_days: 10,
    };
    let ca = Mint::default().key_pair(&wanted).await.unwrap();
    let issuer = Issuer::from_ca_cert_pem(&ca.0, rcgen::KeyPair::from_pem(&ca.1).unwrap()).unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.subject_alt_names.push(SanType::IpAddress([127, 0, 0, 1].into()));
    let serving = params.signed_by(&key, &issuer).unwrap();
    let authority = CertificateDer::from_pem_slice(ca.0.as_bytes()).unwrap();
    let chain = vec![serving.der().clone()];
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let tls = server_config(chain, key, std::slice::from_ref(&authority)).unwrap();
    let authentication = Authentication::ClientCertificates { ca: vec![authority], bootstrap_tokens: false };
    let server = ApiServer::new(Options { authentication, ..Options::default() }).unwrap();
    server.background(stop.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn({
        let (server, stop) = (server.clone(), stop.clone());
        async move { server.serve_tls(listener, tls, stop).await }
    });
    let kubeconfig = admin_kubeconfig("test", &format!("https://{address}"), &ca.0, &ca.1, 10).unwrap();
    (server, kubeconfig)
}

fn documents(text: &str) -> Vec<Object> {
    text.split("\n---\n").map(|d| Object::from_value(serde_saphyr::from_str(d).unwrap()).unwrap()).collect()
}

fn resource(object: &Object) -> Resource {
    let gvk = object.gvk();
    builtin(&gvk.group, &gvk.kind).unwrap_or_else(|| Resource {
        plural: capstan_api::provider_crds::plural(&gvk.kind),
        group: gvk.group,
        version: gvk.version,
        namespaced: gvk.kind != "EgressPolicy",
        kind: gvk.kind,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_comes_up_on_an_api_server_that_is_there() {
    let Some(providers) = providers() else { return };
    let _ = rustls::crypto::ring::default_provider().install_default();
    let stop = CancellationToken::new();
    let (server, kubeconfig) = api_server(&stop).await;
    let simulator = Simulator::start(SimulatorOptions::default()).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let kubeconfig_path = dir.path().join("kubeconfig");
    std::fs::write(&kubeconfig_path, kubeconfig).unwrap();
    let wire = Wire::new(kube::Client::new(server.service(User::admin("test")), "default"));
    let namespaces = builtin("", "Namespace").unwrap();
    let _ = wire.create(&namespaces, &Object::new(&namespaces.gvk(), "", "default")).await;

    let child = Command::new(env!("CARGO_BIN_EXE_capstan"))
        .arg("run")
        .arg("--kubeconfig")
        .arg(&kubeconfig_path)
        .arg("--state-dir")
        .arg(dir.path().join("state"))
        .arg("--providers")
        .arg(&providers)
        .stdin(Stdio::null())
        .stderr(std::fs::File::create(dir.path().join("log")).unwrap())
        .spawn()
        .unwrap();
    let _running = Running(child);
    let log = || std::fs::read_to_string(dir.path().join("log")).unwrap_or_default();

    let mut endpoint = Object::new(&Gvk::new("capstan.dev", "v1alpha1", "Endpoint"), "default", "api");
    endpoint.set("/spec/url", format!("http://{}", simulator.address()).into());
    // Loopback is reached only where the operator lists it.
    let mut policy = Object::new(&Gvk::new("capstan.dev", "v1alpha1", "EgressPolicy"), "", "loopback");
    policy.set("/spec/addresses", json!(["127.0.0.0/8"]));
    let mut wanted = vec![policy, endpoint];
    wanted.extend(documents(include_str!("../../../examples/quickstart.yaml")));
    let up = async {
        for object in &wanted {
            // Its CRD comes with its component.
            while let Err(error) = wire.create(&resource(object), object).await {
                assert!(error.is_not_found(), "{}: {error}", object.key());
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        let cluster = wanted.iter().find(|o| o.kind() == "Cluster").unwrap();
        loop {
            let found = wire.get(&resource(cluster), "default", cluster.name()).await.unwrap().unwrap();
            let conditions = found.at("/status/conditions").and_then(Value::as_array).cloned().unwrap_or_default();
            if conditions.iter().any(|c| c["type"] == json!("Available") && c["status"] == json!("True")) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    if tokio::time::timeout(PATIENCE, up).await.is_err() {
        panic!("no cluster within {PATIENCE:?}:\n{}", log());
    }
    stop.cancel();
    simulator.shutdown().await;
}
