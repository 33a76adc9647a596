//! Connections to workload clusters, over real TLS to an embedded API server.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by them")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use capstan_api::{Object, ObjectKey};
use capstan_apiserver::{ApiServer, Authentication, Builtins, Options as ServerOptions, User, server_config};
use capstan_cluster::egress::LoopbackOnly;
use capstan_cluster::kinds::builtin;
use capstan_cluster::kubeconfig;
use capstan_cluster::mint::{Mint, admin_kubeconfig, secret_data};
use capstan_cluster::runner::{NoProviders, Options, Rules, Runner};
use capstan_cluster::wire::Wire;
use capstan_core::contract::{Algorithm, KeyPair, KeyUse};
use capstan_core::plan::{Plan, WorkloadWrite, Write};
use capstan_core::view::{Connection, NotNow, Place, Select, View};
use rcgen::{CertificateParams, Issuer, SanType};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use tokio_util::sync::CancellationToken;

const PATIENCE: Duration = Duration::from_secs(20);

/// Names of the Nodes, or why they are not known.
type Nodes = Result<Vec<String>, NotNow>;

/// What the decision about ConfigMap `watched` saw last.
#[derive(Default)]
struct Seen {
    last: Mutex<(Option<Connection>, Option<Nodes>)>,
}

impl Rules for Seen {
    fn kinds(&self) -> Vec<(String, String)> {
        vec![(String::new(), "ConfigMap".into())]
    }

    fn decide(&self, key: &ObjectKey, view: &dyn View, _now: u64) -> Result<Plan, NotNow> {
        let mut plan = Plan::nothing();
        if key.name != "watched" {
            return Ok(plan);
        }
        let connection = view.connection("default", "c");
        let place = Place::Workload { namespace: "default".into(), cluster: "c".into() };
        let nodes = view.list(&place, "", "Node", "", &Select::All);
        if let Ok(nodes) = &nodes
            && !nodes.iter().any(|n| n.label("seen").is_some())
            && let Some(node) = nodes.first()
        {
            plan.writes.push(Write::Workload {
                namespace: "default".into(),
                cluster: "c".into(),
                write: Box::new(WorkloadWrite::Patch {
                    version: "v1".into(),
                    key: node.key(),
                    patch: json!({"metadata": {"labels": {"seen": "yes"}}}),
                    resource_version: Some(node.resource_version().to_owned()),
                }),
            });
        }
        let names = nodes.map(|nodes| nodes.iter().map(|n| n.name().to_owned()).collect());
        *self.last.lock().unwrap() = (Some(connection), Some(names));
        Ok(plan)
    }
}

impl Seen {
    async fn until(&self, what: &str, done: impl Fn(&Option<Connection>, &Option<Nodes>) -> bool) {
        let wait = async {
            loop {
                {
                    let last = self.last.lock().unwrap();
                    if done(&last.0, &last.1) {
                        return;
                    }
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        if tokio::time::timeout(PATIENCE, wait).await.is_err() {
            panic!("not seen: {what}; last: {:?}", self.last.lock().unwrap());
        }
    }
}

/// A workload API server on loopback, with the certificate authority of its cluster.
struct Workload {
    server: ApiServer,
    stop: CancellationToken,
    address: std::net::SocketAddr,
    ca: (String, String),
}

async fn workload(at: Option<(std::net::SocketAddr, (String, String))>) -> Workload {
    let (listen, ca) = match at {
        Some((address, ca)) => (address, ca),
        None => {
            let wanted = KeyPair {
                algorithm: Algorithm::EcdsaP256,
                purpose: KeyUse::CertificateAuthority,
                common_name: "kubernetes".into(),
                validity_days: 10,
            };
            (std::net::SocketAddr::from(([127, 0, 0, 1], 0)), Mint::default().key_pair(&wanted).await.unwrap())
        }
    };
    let issuer = Issuer::from_ca_cert_pem(&ca.0, rcgen::KeyPair::from_pem(&ca.1).unwrap()).unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.subject_alt_names.push(SanType::IpAddress(listen.ip()));
    let serving = params.signed_by(&key, &issuer).unwrap();
    let authority = CertificateDer::from_pem_slice(ca.0.as_bytes()).unwrap();
    let tls = server_config(
        vec![serving.der().clone()],
        PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        std::slice::from_ref(&authority),
    )
    .unwrap();
    let server = ApiServer::new(ServerOptions {
        builtins: Builtins::Workload,
        authentication: Authentication::ClientCertificates { ca: vec![authority], bootstrap_tokens: true },
        ..ServerOptions::default()
    })
    .unwrap();
    let listener = tokio::net::TcpListener::bind(listen).await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    tokio::spawn({
        let (server, stop) = (server.clone(), stop.clone());
        async move { server.serve_tls(listener, tls, stop).await }
    });
    Workload { server, stop, address, ca }
}

impl Workload {
    fn kubeconfig(&self) -> String {
        admin_kubeconfig("c", &format!("https://{}", self.address), &self.ca.0, &self.ca.1, 10).unwrap()
    }

    async fn add_node(&self, name: &str) {
        let wire = Wire::new(kube::Client::new(self.server.service(User::admin("test")), "default"));
        let nodes = builtin("", "Node").unwrap();
        wire.create(&nodes, &Object::new(&nodes.gvk(), "", name)).await.unwrap();
    }
}

/// A management cluster, and a runner of rules that look at the cluster `c` for the object `watched`.
async fn watched() -> (Wire, Arc<Seen>, Runner) {
    let management = ApiServer::new(ServerOptions::default()).unwrap();
    let client = kube::Client::new(management.service(User::admin("test")), "default");
    let wire = Wire::new(client.clone());
    let namespaces = builtin("", "Namespace").unwrap();
    let _ = wire.create(&namespaces, &Object::new(&namespaces.gvk(), "", "default")).await;
    let rules = Arc::new(Seen::default());
    let runner = Runner::start(Options {
        client,
        rules: rules.clone(),
        providers: Arc::new(NoProviders::default()),
        modules: None,
        lease: None,
        egress: Arc::new(LoopbackOnly),
        concurrency: 2,
        after_effect: None,
    });
    let config_maps = builtin("", "ConfigMap").unwrap();
    wire.create(&config_maps, &Object::new(&config_maps.gvk(), "default", "watched")).await.unwrap();
    (wire, rules, runner)
}

#[tokio::test]
async fn a_connection_comes_up_by_itself_is_lost_and_comes_back() {
    let (wire, rules, runner) = watched().await;
    rules.until("unknown while there is no kubeconfig", |c, _| *c == Some(Connection::Unknown)).await;

    let first = workload(None).await;
    let secrets = builtin("", "Secret").unwrap();
    let mut secret = Object::new(&secrets.gvk(), "default", "c-kubeconfig");
    secret.set("/data", secret_data(&[("value", &first.kubeconfig())]));
    wire.create(&secrets, &secret).await.unwrap();
    rules.until("up", |c, _| *c == Some(Connection::Up)).await;
    first.add_node("n1").await;
    rules.until("a node", |_, nodes| matches!(nodes, Some(Ok(n)) if n == &["n1"])).await;
    // The node was labelled by a write to the workload cluster, and its cache has it.
    let place = Wire::new(kube::Client::new(first.server.service(User::admin("test")), "default"));
    let nodes = builtin("", "Node").unwrap();
    tokio::time::timeout(PATIENCE, async {
        while place.get(&nodes, "", "n1").await.unwrap().unwrap().label("seen").is_none() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .unwrap();

    // The cluster goes away and comes back, empty, at the same address.
    let (address, ca) = (first.address, first.ca.clone());
    first.stop.cancel();
    rules.until("down", |c, _| matches!(c, Some(Connection::Down { .. }))).await;
    rules.until("unreachable", |_, n| matches!(n, Some(Err(NotNow::Unreachable { .. })))).await;
    let second = workload(Some((address, ca))).await;
    rules.until("up again", |c, _| *c == Some(Connection::Up)).await;
    rules.until("its nodes are read anew", |_, nodes| matches!(nodes, Some(Ok(n)) if n.is_empty())).await;
    drop(second);
    runner.stop().await;
}

#[tokio::test]
async fn an_address_that_is_not_allowed_is_not_dialled_and_the_reason_is_told() {
    let (wire, rules, runner) = watched().await;
    let cluster = workload(None).await;
    let secrets = builtin("", "Secret").unwrap();
    let mut secret = Object::new(&secrets.gvk(), "default", "c-kubeconfig");
    let port = cluster.address.port();
    let elsewhere = admin_kubeconfig("c", &format!("https://localhost:{port}"), &cluster.ca.0, &cluster.ca.1, 10);
    secret.set("/data", secret_data(&[("value", &elsewhere.unwrap())]));
    let made = wire.create(&secrets, &secret).await.unwrap();
    let told = |c: &Option<Connection>, _: &Option<Nodes>| match c {
        Some(Connection::Down { reason, .. }) => {
            reason.contains("may not be reached: localhost is no loopback address")
        }
        _ => false,
    };
    rules.until("refused", told).await;
    // What is allowed then is reached at once.
    secret.set("/data", secret_data(&[("value", &cluster.kubeconfig())]));
    secret.set("/metadata/resourceVersion", made.resource_version().into());
    wire.replace(&secrets, &secret).await.unwrap();
    rules.until("up", |c, _| *c == Some(Connection::Up)).await;
    runner.stop().await;
}

#[test]
fn a_kubeconfig_that_is_made_here_is_one_that_is_honoured() {
    let text = kubeconfig::render("c", "https://127.0.0.1:1", "no pem", "x", "y");
    assert!(kubeconfig::config(text.as_bytes()).is_err(), "its authority is checked");
}
