//! Ports of Pods and Nodes' kubelets, through a handler: kube-rs and kubectl over TLS, and what is refused.

use crate::access::Served;
use crate::kubectl::Kubectl;
use crate::support::*;
use bytes::Bytes;
use capstan_apiserver::{Builtins, Kubelet, Kubelets, Options, PodPort, ResponseBody, User};
use futures::future::BoxFuture;
use http::{Method, Request, Response};
use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use serde_json::{Value, json};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, DuplexStream};
use tokio::net::TcpStream;

/// The machine of the Node `n`; no other can be reached.
struct Machines;

impl Kubelets for Machines {
    fn reach(&self, node: &str, port: Option<u16>) -> Result<Arc<dyn Kubelet>, String> {
        match (node, port) {
            ("n", None) => Ok(Arc::new(Machine)),
            _ => Err(format!("dial tcp {node}:{}: i/o timeout", port.unwrap_or(10250))),
        }
    }
}

/// Port 7 echoes what comes in capital letters, and says goodbye; all others are closed.
struct Machine;

impl Kubelet for Machine {
    fn forward(&self, to: &PodPort, mut stream: DuplexStream) -> BoxFuture<'static, Result<(), String>> {
        let open = (to.namespace.as_str(), to.pod.as_str(), to.port) == ("default", "p", 7);
        Box::pin(async move {
            if !open {
                return Err("nobody listens there".to_owned());
            }
            let mut buffer = [0; 4096];
            loop {
                let count = stream.read(&mut buffer).await.unwrap_or(0);
                if count == 0 {
                    break;
                }
                stream.write_all(&buffer[..count].to_ascii_uppercase()).await.map_err(|error| error.to_string())?;
            }
            stream.write_all(b"bye").await.map_err(|error| error.to_string())
        })
    }

    /// Says what it was asked.
    fn answer(&self, request: Request<Bytes>) -> BoxFuture<'static, Response<ResponseBody>> {
        let mut names: Vec<&str> = request.headers().keys().map(|name| name.as_str()).collect();
        names.sort_unstable();
        let asked = json!({"method": request.method().as_str(), "uri": request.uri().to_string(), "headers": names,
            "body": String::from_utf8_lossy(request.body())});
        let answer = if request.uri().path() == "/healthz" { String::from("ok") } else { asked.to_string() };
        Box::pin(async move { Response::builder().status(207).body(ResponseBody::full(answer)).unwrap() })
    }
}

fn options() -> Options {
    Options { builtins: Builtins::Workload, kubelets: Some(Arc::new(Machines)), ..Options::default() }
}

const PODS: &str = "/api/v1/namespaces/default/pods";

async fn fill(client: &Client) {
    for node in ["n", "lost"] {
        let addresses = json!([{"type": "Hostname", "address": node}]);
        let node =
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}, "status": {"addresses": addresses}});
        client.post("/api/v1/nodes", &node).await.expect(201);
    }
    for (pod, node) in [("p", "n"), ("lost", "lost"), ("waiting", "")] {
        let mut object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod},
            "spec": {"containers": [{"name": "c", "image": "i"}]}});
        if !node.is_empty() {
            object["spec"]["nodeName"] = node.into();
        }
        client.post(PODS, &object).await.expect(201);
        let running = json!({"status": {"phase": "Running"}});
        client.patch(&format!("{PODS}/{pod}/status"), "merge", &running).await.expect(200);
    }
}

async fn served() -> Served {
    let served = Served::with(options()).await;
    fill(&served.client).await;
    served
}

#[tokio::test]
async fn a_port_through_kube_rs() {
    let served = served().await;
    let client = kube::Client::try_from(served.kube_config("admin", "system:masters")).unwrap();
    let pods: Api<Pod> = Api::default_namespaced(client);
    let mut forwarder = pods.portforward("p", &[7, 80]).await.unwrap();
    let mut stream = forwarder.take_stream(7).unwrap();
    let refused = forwarder.take_error(80).unwrap();
    assert!(refused.await.unwrap().ends_with("nobody listens there"));
    let mut text = [0; 5];
    for _ in 0..3 {
        stream.write_all(b"hello").await.unwrap();
        stream.read_exact(&mut text).await.unwrap();
        assert_eq!(&text, b"HELLO");
    }
    let missing = pods.portforward("none", &[7]).await;
    let error = missing.err().expect("there is no such Pod").to_string();
    assert!(error.contains("404"), "{error}");
    // An open connection does not keep the server from ending.
    served.stop().await;
    assert_eq!(stream.read(&mut text).await.unwrap_or(0), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_through_kubectl() {
    let kubectl = Kubectl::on(served().await);
    for websockets in ["true", "false"] {
        let mut child = kubectl
            .command(&["port-forward", "pod/p", ":7", ":80"])
            .env("KUBECTL_PORT_FORWARD_WEBSOCKETS", websockets)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut errors = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut ports = Vec::new();
        while ports.len() < 2 {
            let line =
                tokio::time::timeout(Duration::from_secs(30), lines.next_line()).await.expect("kubectl is silent");
            let line = line.unwrap().expect("kubectl has ended");
            // One line for each family of addresses.
            if let Some(rest) = line.strip_prefix("Forwarding from 127.0.0.1:") {
                ports.push(rest.split(' ').next().unwrap().parse::<u16>().unwrap());
            }
        }
        let connect = async |port: u16| TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        // Several at a time, with more than any buffer holds.
        let sent = vec![b'a'; 1 << 20];
        let mut connections = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let (stream, sent) = (connect(ports[0]).await, sent.clone());
            connections.spawn(async move {
                let (mut from, mut to) = stream.into_split();
                let write = tokio::spawn(async move {
                    to.write_all(&sent).await.unwrap();
                    to.shutdown().await.unwrap();
                });
                let mut got = Vec::new();
                from.read_to_end(&mut got).await.unwrap();
                write.await.unwrap();
                got
            });
        }
        let mut expected = sent.to_ascii_uppercase();
        expected.extend(b"bye");
        while let Some(got) = connections.join_next().await {
            assert!(got.unwrap() == expected, "what came back is not what was sent");
        }
        let mut closed = connect(ports[1]).await;
        let mut got = Vec::new();
        let _ = closed.read_to_end(&mut got).await;
        assert!(got.is_empty());
        let complaint = tokio::time::timeout(Duration::from_secs(30), errors.next_line()).await.expect("no complaint");
        let complaint = complaint.unwrap().unwrap_or_default();
        assert!(complaint.contains("error forwarding port 80 to pod p_default, uid "), "{complaint}");
        assert!(complaint.contains("nobody listens there"), "{complaint}");
        child.kill().await.unwrap();
    }
    let (_, out, _) = kubectl.output(&["get", "--raw", "/api/v1/nodes/n/proxy/healthz"], "").await;
    assert_eq!(out, "ok");
    kubectl.stop().await;
}

#[tokio::test]
async fn a_kubelet_gets_the_request() {
    let client = Client::new(options());
    fill(&client).await;
    let asked = client
        .send(
            Method::PUT,
            "/api/v1/nodes/https:n:10250/proxy/run/a%2Fb//c/?x=1&y=%20",
            &[("authorization", "Bearer secret"), ("x-own", "1"), ("connection", "close")],
            "hello",
        )
        .await
        .expect(207);
    assert_eq!(
        asked,
        json!({"method": "PUT", "uri": "/run/a%2Fb//c/?x=1&y=%20", "headers": ["user-agent", "x-own"], "body": "hello"})
    );
    assert_eq!(client.send(Method::HEAD, "/api/v1/nodes/n/proxy/healthz", &[], "").await.body, Value::from(""));
    let moved = client.get("/api/v1/nodes/n/proxy?a=b").await;
    assert_eq!((moved.code, moved.headers["location"].to_str().unwrap()), (301, "/api/v1/nodes/n/proxy/?a=b"));
    let unreachable = client.get("/api/v1/nodes/n:80/proxy/").await.expect(503);
    assert_eq!(unreachable["message"], "error trying to reach service: dial tcp n:80: i/o timeout");
    client.get("/api/v1/nodes/lost/proxy/").await.expect(503);
    client.get("/api/v1/nodes/none/proxy/healthz").await.expect(404);
    client.send(Method::TRACE, "/api/v1/nodes/n/proxy/healthz", &[], "").await.expect(405);
    let reader = client.with_user(User::new("jane", ["system:authenticated"]));
    let refused = reader.get("/api/v1/nodes/n/proxy/healthz").await.expect(403);
    assert!(refused["message"].as_str().unwrap().contains(r#"cannot get resource "nodes/proxy""#), "{refused}");
    // A management plane has no Nodes.
    management().get("/api/v1/nodes/n/proxy/healthz").await.expect(404);
}

#[tokio::test]
async fn what_cannot_be_forwarded() {
    let client = Client::new(options());
    fill(&client).await;
    let upgrade = [("connection", "Upgrade"), ("upgrade", "SPDY/3.1")];
    let ask = async |pod: &str, code: u16| {
        let answer = client.send(Method::POST, &format!("{PODS}/{pod}/portforward"), &upgrade, "").await;
        answer.expect(code)["message"].as_str().unwrap().to_owned()
    };
    assert_eq!(ask("none", 404).await, "pods \"none\" not found");
    assert_eq!(ask("waiting", 400).await, "pod waiting does not have a host assigned");
    assert_eq!(ask("lost", 500).await, "error dialing backend: dial tcp lost:10250: i/o timeout");
    // In process there is no connection that could become another.
    assert!(ask("p", 400).await.contains("HTTP/1.1"));
    let plain = client.post(&format!("{PODS}/p/portforward"), &json!({})).await.expect(400);
    assert_eq!(plain["message"], "Upgrade request required");
    client.delete(&format!("{PODS}/p/portforward")).await.expect(405);
    let jane = client.with_user(User::new("jane", ["system:authenticated"]));
    jane.send(Method::POST, &format!("{PODS}/p/portforward"), &upgrade, "").await.expect(403);
    jane.send(Method::GET, &format!("{PODS}/none/portforward"), &upgrade, "").await.expect(403);
    // What a kubelet does not speak, it says itself.
    let served = served().await;
    let mut socket = served.connect("admin", "system:masters").await;
    let head = format!(
        "POST {PODS}/p/portforward HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v9\r\n\r\n"
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut got = Vec::new();
    while !String::from_utf8_lossy(&got).contains("server accepts [portforward.k8s.io]") {
        let count = socket.read_buf(&mut got).await.unwrap();
        assert!(count > 0, "{}", String::from_utf8_lossy(&got));
    }
    assert!(got.starts_with(b"HTTP/1.1 403 "), "{}", String::from_utf8_lossy(&got));
}
