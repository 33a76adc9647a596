//! What a workload cluster's API server leads on to: kubelets, and ports of static Pods.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

mod support;

use std::sync::Arc;
use std::time::Duration;

use capstan_simulator::kubeadm::pki;
use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use rustls_pki_types::ServerName;
use serde_json::{Value, json};
use support::{Cloud, ask, cluster, options};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// What a server says to a request, head and body.
async fn http(mut stream: impl AsyncRead + AsyncWrite + Unpin, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // Who says no goodbye in TLS has said all the same what it had to say.
    let _ = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut answer)).await.unwrap();
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn kubelets_answer() {
    let cloud = Cloud::start(options()).await;
    let (secrets, endpoint, _) = cluster(&cloud, "ns").await;
    // A 503 is what is looked for, and not tried again.
    let mut config = secrets.config(&endpoint);
    config.default_retry = false;
    let client = kube::Client::try_from(config).unwrap();
    let get = async |path: &str| {
        let request = http::Request::builder().uri(path).body(Vec::new()).unwrap();
        client.request_text(request).await.map_err(|error| error.to_string())
    };
    for node in ["cp", "w"] {
        assert_eq!(get(&format!("/api/v1/nodes/{node}/proxy/healthz")).await.unwrap(), "ok");
    }
    let pods = async |node: &str| {
        let list: Value =
            serde_json::from_str(&get(&format!("/api/v1/nodes/{node}/proxy/pods")).await.unwrap()).unwrap();
        assert_eq!(list["kind"], "PodList");
        let items = list["items"].as_array().unwrap().clone();
        let mut names: Vec<String> =
            items.iter().map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned()).collect();
        names.sort();
        names
    };
    assert_eq!(pods("cp").await, ["etcd-cp", "kube-apiserver-cp", "kube-controller-manager-cp", "kube-scheduler-cp"]);
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "own"}, "spec": {"nodeName": "w", "containers": [{"name": "c", "image": "i"}]}});
    ask(&client, "POST", "/api/v1/namespaces/default/pods", Some(&pod)).await.unwrap();
    assert_eq!(pods("w").await, ["own"]);
    assert!(get("/api/v1/nodes/w/proxy/metrics").await.unwrap_err().contains("404"));
    assert!(get("/api/v1/nodes/w:80/proxy/").await.unwrap_err().contains(":80: connect: connection refused"));
    cloud.fault("ns.w", "freeze").await;
    assert!(get("/api/v1/nodes/w/proxy/healthz").await.unwrap_err().contains(":10250: i/o timeout"));
    cloud.fault("ns.w", "kill").await;
    assert!(get("/api/v1/nodes/w/proxy/healthz").await.unwrap_err().contains("no route to host"));
}

#[tokio::test]
async fn static_pods_serve() {
    let cloud = Cloud::start(options()).await;
    let (secrets, _, client) = cluster(&cloud, "ns").await;
    let pods: Api<Pod> = Api::namespaced(client.clone(), "kube-system");
    let mut etcd = pods.portforward("etcd-cp", &[2381, 2379, 80]).await.unwrap();
    let answer = http(etcd.take_stream(2381).unwrap(), "/health").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.ends_with(r#"{"health":"true","reason":""}"#), "{answer}");
    let error = etcd.take_error(2379).unwrap().await.unwrap();
    assert!(error.ends_with("the simulator runs no etcd: there is nobody who could answer its clients"), "{error}");
    assert!(etcd.take_error(80).unwrap().await.unwrap().ends_with("connection refused"));

    // The API server itself, with its certificate.
    let mut roots = rustls::RootCertStore::empty();
    roots.add(pki::certificates(secrets.ca.as_bytes()).unwrap().remove(0)).unwrap();
    let config = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let mut server = pods.portforward("kube-apiserver-cp", &[6443]).await.unwrap();
    let name = ServerName::try_from("kubernetes.default.svc").unwrap();
    let stream = connector.connect(name, server.take_stream(6443).unwrap()).await.unwrap();
    let answer = http(stream, "/livez").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nok"), "{answer}");

    // A worker has no etcd, whatever its Pods are called, and nothing at all once it is off.
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "etcd-w", "namespace": "kube-system"}, "spec": {"nodeName": "w", "containers": [{"name": "c", "image": "i"}]}});
    ask(&client, "POST", "/api/v1/namespaces/kube-system/pods", Some(&pod)).await.unwrap();
    let mut other = pods.portforward("etcd-w", &[2381]).await.unwrap();
    assert!(other.take_error(2381).unwrap().await.unwrap().ends_with("connection refused"));
    cloud.fault("ns.w", "kill").await;
    assert!(pods.portforward("etcd-w", &[2381]).await.is_err());
}
