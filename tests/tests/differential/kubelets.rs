//! What leads on to a Node's kubelet, as far as an API server says it itself: who may, what is not there, what cannot be reached.

use crate::kubectl::Kubectl;
use crate::rbac::{allowed, binding, role, roles, user};
use crate::session::{Session, compare};
use reqwest::Method;
use serde_json::{Value, json};
use std::net::{IpAddr, UdpSocket};

/// A port that nobody listens on.
const CLOSED: u16 = 1;

fn node(name: &str, addresses: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
        "status": {"addresses": addresses, "daemonEndpoints": {"kubeletEndpoint": {"Port": CLOSED}}}})
}

/// An address of this computer that is not its loopback; none where it has no network.
fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    // Nothing is sent: this asks the routes.
    socket.connect("192.0.2.1:9").ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|address| !address.is_loopback() && !address.is_unspecified())
}

async fn make_node(s: &mut Session, name: &str, addresses: Value) {
    let body = node(name, addresses);
    s.request(Method::POST, "/api/v1/nodes").json(&body).quietly().send().await.expect(201);
}

/// A Pod that says it runs, on this Node; on none where it is empty.
async fn make_pod(s: &mut Session, namespace: &str, name: &str, node: &str) {
    let mut body = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    if !node.is_empty() {
        body["spec"]["nodeName"] = node.into();
    }
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    s.request(Method::POST, &pods).json(&body).quietly().send().await.expect(201);
    let running = json!({"status": {"phase": "Running"}});
    s.patching(&format!("{pods}/{name}/status"), "merge", &running).quietly().send().await.expect(200);
}

#[tokio::test]
async fn ports_of_pods() {
    compare(async |s: &mut Session| {
        let namespace = "kubelet-ports";
        let path = roles(s, namespace).await;
        make_node(s, "kubelet-ports", json!([{"type": "InternalIP", "address": "127.0.0.1"}])).await;
        make_node(s, "kubelet-bare", json!([])).await;
        for (pod, node) in
            [("waiting", ""), ("lost", "kubelet-none"), ("bare", "kubelet-bare"), ("running", "kubelet-ports")]
        {
            make_pod(s, namespace, pod, node).await;
        }
        let at = |pod: &str| format!("/api/v1/namespaces/{namespace}/pods/{pod}/portforward");
        for pod in ["none", "waiting", "lost", "bare", "running"] {
            s.request(Method::POST, &at(pod)).send().await;
            s.get(&format!("{}?ports=80", at(pod))).await;
        }
        for method in [Method::PUT, Method::PATCH, Method::DELETE] {
            s.request(method, &at("running")).json(&json!({})).send().await;
        }
        s.request(Method::POST, "/api/v1/pods/running/portforward").send().await;
        // Who only may get does not get it.
        let rules = json!([{"apiGroups": [""], "resources": ["pods/portforward"], "verbs": ["get"]}]);
        s.post(&format!("{path}/roles"), &role("Role", "get", rules)).await;
        let to = binding("RoleBinding", "get", ("Role", "get"), user("ports-get"));
        s.post(&format!("{path}/rolebindings"), &to).await;
        allowed(s, "ports-get", "get", namespace, "pods/portforward").await;
        for name in ["ports-get", "ports-nobody"] {
            let client = s.server.user(name, &[]);
            for pod in ["none", "running"] {
                s.request(Method::GET, &at(pod)).by(&client).send().await;
                s.request(Method::POST, &at(pod)).by(&client).send().await;
                s.request(Method::DELETE, &at(pod)).by(&client).send().await;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn requests_to_nodes() {
    compare(async |s: &mut Session| {
        make_node(s, "kubelet-loopback", json!([{"type": "InternalIP", "address": "127.0.0.1"}])).await;
        make_node(s, "kubelet-nowhere", json!([])).await;
        let at = |node: &str, rest: &str| format!("/api/v1/nodes/{node}/proxy{rest}");
        for node in [
            "kubelet-none",
            "kubelet-none:80",
            "a:b:c:d",
            "ftp:kubelet-loopback:80",
            ":80",
            "kubelet-nowhere",
            "kubelet-loopback",
        ] {
            for rest in ["", "/", "/healthz", "/logs/a%2Fb/"] {
                s.get(&at(node, rest)).await;
            }
        }
        if let Some(own) = own_address() {
            make_node(s, "kubelet-closed", json!([{"type": "InternalIP", "address": own.to_string()}])).await;
            for node in ["kubelet-closed", "kubelet-closed:1", "http:kubelet-closed:2"] {
                s.get(&at(node, "/healthz?a=b")).await;
            }
            for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::OPTIONS, Method::HEAD] {
                s.request(method, &at("kubelet-closed", "/run/x")).send().await;
            }
        }
        let jane = s.server.user("jane", &[]);
        for method in [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
            s.request(method.clone(), &at("kubelet-none", "/run/x")).by(&jane).send().await;
            s.request(method, &at("kubelet-none:80", "")).by(&jane).send().await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_port_forward_that_fails() {
    compare(async |s: &mut Session| {
        let k = Kubectl::start(s, "kubelet-kubectl").await;
        make_node(s, "kubelet-kubectl", json!([{"type": "InternalIP", "address": "127.0.0.1"}])).await;
        make_pod(s, "kubelet-kubectl", "running", "kubelet-kubectl").await;
        make_pod(s, "kubelet-kubectl", "lost", "kubelet-none").await;
        make_pod(s, "kubelet-kubectl", "waiting", "").await;
        for websockets in ["true", "false"] {
            for words in [
                ["port-forward", "pod/running", ":80"].as_slice(),
                &["port-forward", "pod/lost", ":80"],
                &["port-forward", "pod/waiting", ":80"],
                &["port-forward", "pod/none", ":80"],
                &["port-forward", "pod/running", ":80", "--as", "kubelet-nobody"],
            ] {
                let mut command = k.command(words);
                command.env("KUBECTL_PORT_FORWARD_WEBSOCKETS", websockets);
                let output = k.output(command, "").await;
                k.keep(s, &format!("{} # {websockets}", words.join(" ")), &output);
            }
        }
        k.run(s, "get --raw /api/v1/nodes/kubelet-none/proxy/healthz").await;
    })
    .await;
}
