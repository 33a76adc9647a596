//! Nodes on a real file system and network: what runs in a container, here side by side in one process.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

mod support;

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::time::Duration;

use capstan_boot::Step;
use capstan_simulator::kubeadm::Machine;
use capstan_simulator::node::{self, NodeOptions};
use support::{Secrets, ask, ready, until};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

fn options(root: &Path, hostname: &str) -> NodeOptions {
    NodeOptions {
        root: root.to_owned(),
        listen: IpAddr::V4(Ipv4Addr::LOCALHOST),
        heartbeat: Duration::from_millis(50),
        grace: Duration::from_millis(500),
        machine: Machine {
            hostname: hostname.to_owned(),
            addresses: vec![IpAddr::V4(Ipv4Addr::LOCALHOST)],
            provider_id: None,
            zone: None,
            kubelet_version: Some("v1.35.7".into()),
            cpus: 1,
            memory_mib: 512,
            lease_seconds: 40,
        },
    }
}

fn start(options: NodeOptions) -> (CancellationToken, JoinHandle<()>) {
    let stop = CancellationToken::new();
    let token = stop.clone();
    (stop, tokio::spawn(async move { node::run(options, token).await.unwrap() }))
}

/// Carries out boot data as a container provider does: files, then `kubeadm`.
async fn boot(root: &Path, data: &str) -> i32 {
    for step in capstan_boot::read("cloud-config", data.as_bytes()).unwrap().steps {
        match step {
            Step::WriteFile { path, content, .. } => {
                let path = root.join(path.trim_start_matches('/'));
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, content).unwrap();
            }
            Step::Run(line) => {
                let command = line.split(" && ").next().unwrap();
                let words: Vec<String> = command.split_whitespace().skip(1).map(str::to_owned).collect();
                let socket = root.join(node::SOCKET.trim_start_matches('/'));
                until("the node's socket", async || socket.exists().then_some(())).await;
                return node::order(root, &words).await;
            }
        }
    }
    panic!("the boot data has no command");
}

#[tokio::test]
async fn two_nodes_make_a_cluster_and_outlive_restarts() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [first, second] = [directories[0].path(), directories[1].path()];
    let secrets = Secrets::new();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let endpoint = format!("127.0.0.1:{port}");

    let (stop_first, running_first) = start(options(first, "n1"));
    let init = secrets.init(&endpoint, "").replace("'{{ ds.meta_data.local_hostname }}'", "n1");
    let init = init.replace(
        "kind: InitConfiguration",
        &format!("kind: InitConfiguration\n    localAPIEndpoint: {{bindPort: {port}}}"),
    );
    assert_eq!(boot(first, &init).await, 0);
    assert_eq!(boot(first, &init).await, 1, "a node is not initialised twice");
    let client = secrets.admin(&endpoint);
    assert_eq!(ready(&client, "n1").await, "True");
    let node = ask(&client, "GET", "/api/v1/nodes/n1", None).await.unwrap();
    assert!(node["spec"].get("providerID").is_none());
    assert_eq!(node["status"]["nodeInfo"]["kubeletVersion"], "v1.35.7");
    ask(&client, "POST", "/api/v1/namespaces/kube-system/secrets", Some(&secrets.token_secret())).await.unwrap();

    let (stop_second, running_second) = start(options(second, "n2"));
    let wrong = secrets.join(&endpoint, "abcdef.fedcba9876543210", &secrets.hash());
    assert_eq!(boot(second, &wrong).await, 1);
    assert_eq!(boot(second, &secrets.join(&endpoint, &secrets.bearer(), &secrets.hash())).await, 0);
    assert_eq!(ready(&client, "n2").await, "True");

    // The worker stops: silent, then unknown; started again it is back.
    stop_second.cancel();
    running_second.await.unwrap();
    until("n2 to be unknown", async || (ready(&client, "n2").await == "Unknown").then_some(())).await;
    let (stop_second, running_second) = start(options(second, "n2"));
    until("n2 to be back", async || (ready(&client, "n2").await == "True").then_some(())).await;

    // The control plane stops and starts with all its objects, and is the node that it was, whoever has named its provider.
    let named = serde_json::json!({"spec": {"providerID": "elsewhere://n1"}});
    ask(&client, "PATCH", "/api/v1/nodes/n1", Some(&named)).await.unwrap();
    stop_first.cancel();
    running_first.await.unwrap();
    assert!(ask(&client, "GET", "/api/v1/nodes", None).await.is_err());
    let (stop_first, running_first) = start(options(first, "n1"));
    until("n2 to be seen again", async || (ready(&client, "n2").await == "True").then_some(())).await;
    let node = ask(&client, "GET", "/api/v1/nodes/n1", None).await.unwrap();
    assert_eq!(node["spec"]["providerID"], "elsewhere://n1");

    // After a reset the machine can be another node.
    assert_eq!(node::order(second, &["reset".into()]).await, 0);
    until("n2 to be unknown", async || (ready(&client, "n2").await == "Unknown").then_some(())).await;
    for (stop, running) in [(stop_first, running_first), (stop_second, running_second)] {
        stop.cancel();
        running.await.unwrap();
    }
}
