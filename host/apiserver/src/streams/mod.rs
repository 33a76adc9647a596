//! Port forwarding, as kubelets speak it: a connection that was upgraded carries the bytes of several connections to a Pod.
//!
//! Three ways are spoken, each by clients that there are:
//! - SPDY/3.1 ([`session`]): client-go, and kubectl with `KUBECTL_PORT_FORWARD_WEBSOCKETS=false`;
//! - the same in the messages of a WebSocket ([`websocket::Tunnel`]): kubectl, and Cluster API's dialer;
//! - channels of a WebSocket ([`channels`]): kube-rs.
//!
//! Nothing here trusts the client: frames, header blocks and messages have a longest size, connections a greatest number of
//! streams, and who does not read is not sent more than a few buffers.

mod channels;
mod session;
mod spdy;
mod websocket;

use crate::options::{Kubelet, PodPort};
use crate::request::Query;
use crate::response::{self, ResponseBody};
use crate::status::Status;
use futures::future::BoxFuture;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::DuplexStream;

/// How much of a stream waits to be read, in bytes, in each direction.
const BUFFER: usize = 64 << 10;
/// How long what was said last may take to be sent.
const FAREWELL: Duration = Duration::from_secs(3);
/// The longest that a client is told of an error, in characters.
const LONGEST_ERROR: usize = 4096;

/// What the protocol is called, inside SPDY.
const PROTOCOL: &str = "portforward.k8s.io";
/// What it is called where SPDY is inside a WebSocket.
const TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";
/// What the channels of a WebSocket are called.
const CHANNELS: &str = "v4.channel.k8s.io";
const VERSIONS: &str = "x-stream-protocol-version";

/// Serves what the connection of a request becomes.
pub(crate) type Upgraded = BoxFuture<'static, ()>;

/// To whom bytes are forwarded.
#[derive(Clone)]
pub(crate) struct Target {
    pub kubelet: Arc<dyn Kubelet>,
    pub namespace: String,
    pub pod: String,
    pub uid: String,
}

impl Target {
    /// Serves one connection to a port. An error is what the client is told.
    async fn forward(self, port: u16, stream: DuplexStream) -> Result<(), String> {
        let Target { kubelet, namespace, pod, uid } = self;
        let to = PodPort { namespace, pod, port };
        let outcome = kubelet.forward(&to, stream).await;
        // The words of a kubelet.
        outcome.map_err(|why| {
            let PodPort { namespace, pod, .. } = to;
            let text = format!("error forwarding port {port} to pod {pod}_{namespace}, uid {uid}: {why}");
            text.chars().take(LONGEST_ERROR).collect()
        })
    }
}

enum Way {
    Spdy,
    Tunnel,
    Channels(Vec<u16>),
}

/// Answers a request to forward ports, and says how the connection goes on when the answer is sent.
pub(crate) fn port_forward(
    parts: &mut Parts,
    query: &Query,
    target: Target,
) -> Result<(Response<ResponseBody>, Option<Upgraded>), Status> {
    let (way, mut answer) = match negotiate(&parts.headers, query) {
        Ok(agreed) => agreed,
        Err(refusal) => return Ok((refusal, None)),
    };
    let Some(upgrade) = parts.extensions.remove::<OnUpgrade>() else {
        return Err(Status::bad_request(
            "ports cannot be forwarded over this connection: use a connection of HTTP/1.1 of its own, which can be upgraded",
        ));
    };
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    let serve = async move {
        let Ok(io) = upgrade.await else { return };
        let io = TokioIo::new(io);
        let outcome = match way {
            Way::Spdy => session::serve(io, target).await,
            Way::Tunnel => session::serve(websocket::Tunnel::new(websocket::accept(io).await), target).await,
            Way::Channels(ports) => channels::serve(websocket::accept(io).await, &ports, target).await,
        };
        if let Err(error) = outcome {
            tracing::debug!(%error, "a connection that forwarded ports broke off");
        }
    };
    Ok((answer, Some(Box::pin(serve))))
}

/// Whether a request asks for another protocol.
pub(crate) fn asks_to_upgrade(headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    values.any(|value| value.to_ascii_lowercase().contains("upgrade"))
}

/// What both sides can speak. The error is the answer of a kubelet, which is no object.
#[allow(clippy::result_large_err, reason = "both are answers")]
fn negotiate(headers: &HeaderMap, query: &Query) -> Result<(Way, Response<ResponseBody>), Response<ResponseBody>> {
    let all = |name: &str| {
        let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).map(|value| value.trim().to_owned()).collect::<Vec<_>>()
    };
    let says = |name: &str, word: &str| all(name).iter().any(|value| value.to_ascii_lowercase().contains(word));
    let mut answer = Response::new(ResponseBody::full(""));
    let mut set = |name: &'static str, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            answer.headers_mut().insert(name, value);
        }
    };
    let unknown = |offered: &[String], known: &str| {
        let text = format!(
            "unable to upgrade: unable to negotiate protocol: client supports [{}], server accepts [{known}]\n",
            offered.join(" ")
        );
        let mut answer = response::text(403, text);
        if let Ok(value) = HeaderValue::from_str(known) {
            answer.headers_mut().insert("x-accepted-stream-protocol-versions", value);
        }
        Err(answer)
    };
    if !says("upgrade", "websocket") {
        if !says("upgrade", "spdy/3.1") {
            return Err(response::text(400, "unable to upgrade: missing upgrade headers in request\n"));
        }
        let offered = all(VERSIONS);
        if !offered.is_empty() && !offered.iter().any(|version| version == PROTOCOL) {
            return unknown(&offered, PROTOCOL);
        }
        set("upgrade", "SPDY/3.1");
        if !offered.is_empty() {
            set(VERSIONS, PROTOCOL);
        }
        return Ok((Way::Spdy, answer));
    }
    let Some(key) = headers.get("sec-websocket-key").filter(|_| says("sec-websocket-version", "13")) else {
        return Err(response::text(400, "unable to upgrade: this is no request for a WebSocket of version 13\n"));
    };
    set("upgrade", "websocket");
    set("sec-websocket-accept", &tokio_tungstenite::tungstenite::handshake::derive_accept_key(key.as_bytes()));
    let offered = all("sec-websocket-protocol");
    let tunnels = |name: &str| name.starts_with("SPDY/3.1+") && name.ends_with(".k8s.io");
    if offered.iter().any(|name| tunnels(name)) {
        if !offered.iter().any(|name| name == TUNNEL) {
            return unknown(&offered, PROTOCOL);
        }
        set("sec-websocket-protocol", TUNNEL);
        return Ok((Way::Tunnel, answer));
    }
    if !offered.is_empty() {
        if !offered.iter().any(|name| name == CHANNELS) {
            return unknown(&offered, CHANNELS);
        }
        set("sec-websocket-protocol", CHANNELS);
    }
    match channels::ports(query) {
        Ok(ports) => Ok((Way::Channels(ports), answer)),
        Err(why) => Err(response::text(400, why + "\n")),
    }
}

#[cfg(test)]
mod tests;
