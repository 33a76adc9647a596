//! The way from a workload cluster's API server to its machines: what their kubelets answer, and what their static Pods serve.
//!
//! A kubelet here answers `/healthz` and `/pods`. The port of a control-plane machine's `kube-apiserver` Pod leads to that machine's API
//! server itself, and the one of its `etcd` Pod's metrics says that it is healthy, as long as the machine is. There is no etcd to be asked
//! anything else, and an attempt is told so.

use std::convert::Infallible;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use capstan_apiserver::{Kubelet, Kubelets, PodPort, ResponseBody};
use futures::future::BoxFuture;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::DuplexStream;
use tokio_util::sync::CancellationToken;

use super::machine::Machine;
use super::network::Gated;
use super::nodes::Cluster;
use crate::api;

/// Where a kubelet listens.
const KUBELET_PORT: u16 = 10250;
/// Where etcd's clients would ask.
const ETCD_CLIENTS: u16 = 2379;
/// Where etcd says how it is.
const ETCD_METRICS: u16 = 2381;

/// The machines of a cluster.
pub(super) struct Members(pub(super) Weak<Cluster>);

impl Kubelets for Members {
    fn reach(&self, node: &str, port: Option<u16>) -> Result<Arc<dyn Kubelet>, String> {
        let member = self.0.upgrade().and_then(|cluster| cluster.member(node).map(|machine| (cluster, machine)));
        let Some((cluster, machine)) = member else {
            return Err(format!("dial tcp: lookup {node}: no such host"));
        };
        let power = machine.power();
        let why = if power.off.is_cancelled() {
            "connect: no route to host"
        } else if power.gate.is_closed() {
            "i/o timeout"
        } else if port.is_some() {
            "connect: connection refused"
        } else {
            return Ok(Arc::new(Member { node: node.to_owned(), machine, cluster: Arc::downgrade(&cluster) }));
        };
        Err(format!("dial tcp {}:{}: {why}", machine.spec.address, port.unwrap_or(KUBELET_PORT)))
    }
}

/// A machine's kubelet.
struct Member {
    node: String,
    machine: Arc<Machine>,
    cluster: Weak<Cluster>,
}

impl Kubelet for Member {
    fn forward(&self, to: &PodPort, stream: DuplexStream) -> BoxFuture<'static, Result<(), String>> {
        let is = |component: &str| to.namespace == "kube-system" && to.pod == format!("{component}-{}", self.node);
        let closed = Err(format!("failed to connect to localhost:{port}: connection refused", port = to.port));
        let power = self.machine.power();
        let plane = self.machine.look(|status| status.control_plane.as_ref().map(|plane| plane.port));
        match plane {
            Some(port) if is("kube-apiserver") && to.port == port => match self.machine.serving() {
                Some(serving) => Box::pin(async move {
                    serving.serve(stream, CancellationToken::new()).await;
                    Ok(())
                }),
                None => Box::pin(async { closed }),
            },
            Some(_) if is("etcd") && to.port == ETCD_METRICS => Box::pin(async move {
                let io = TokioIo::new(Gated::new(stream, power.gate.clone()));
                let connection = hyper::server::conn::http1::Builder::new().serve_connection(io, service_fn(metrics));
                tokio::select! {
                    _ = connection => {}
                    () = power.off.cancelled() => {}
                }
                Ok(())
            }),
            Some(_) if is("etcd") && to.port == ETCD_CLIENTS => Box::pin(async {
                Err("the simulator runs no etcd: there is nobody who could answer its clients".to_owned())
            }),
            _ => Box::pin(async { closed }),
        }
    }

    fn answer(&self, request: Request<Bytes>) -> BoxFuture<'static, Response<ResponseBody>> {
        let (node, cluster) = (self.node.clone(), self.cluster.clone());
        Box::pin(async move {
            let reads = matches!(*request.method(), Method::GET | Method::HEAD);
            match request.uri().path().trim_end_matches('/') {
                "/healthz" | "/pods" if !reads => text(StatusCode::METHOD_NOT_ALLOWED, "405: Method Not Allowed"),
                "/healthz" => text(StatusCode::OK, "ok"),
                "/pods" => match pods(&cluster, &node).await {
                    Ok(list) => typed(StatusCode::OK, "application/json", list.to_string()),
                    Err(why) => text(StatusCode::INTERNAL_SERVER_ERROR, &why),
                },
                _ => text(StatusCode::NOT_FOUND, "404 page not found\n"),
            }
        })
    }
}

/// The Pods of a node, as its kubelet lists them.
async fn pods(cluster: &Weak<Cluster>, node: &str) -> Result<Value, String> {
    let cluster = cluster.upgrade().and_then(|cluster| cluster.api());
    let api = cluster.ok_or("the cluster's API server cannot be reached")?;
    let path = format!("/api/v1/pods?fieldSelector=spec.nodeName={node}");
    let answer = api::expect("listing the Pods of a node", api::get(&api, &path).await);
    let mut list = answer.map_err(|error| error.to_string())?.body;
    if let Some(fields) = list.as_object_mut() {
        fields.insert("metadata".into(), json!({}));
    }
    Ok(list)
}

/// What etcd answers where it says how it is.
async fn metrics(request: Request<hyper::body::Incoming>) -> Result<Response<ResponseBody>, Infallible> {
    Ok(match request.uri().path() {
        "/health" => typed(StatusCode::OK, "application/json", json!({"health": "true", "reason": ""}).to_string()),
        _ => text(StatusCode::NOT_FOUND, "404 page not found\n"),
    })
}

fn text(status: StatusCode, text: &str) -> Response<ResponseBody> {
    typed(status, "text/plain; charset=utf-8", text.to_owned())
}

fn typed(status: StatusCode, kind: &'static str, body: String) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::full(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
