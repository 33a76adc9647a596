//! Requests that lead on to a Node's kubelet: `pods/portforward` and `nodes/proxy`.

use crate::options::{Kubelet, User};
use crate::request::{Query, ResourcePath};
use crate::response::ResponseBody;
use crate::server::{ApiServer, read_body};
use crate::status::Status;
use crate::store::{Key, Object};
use crate::streams::{self, Target, Upgraded};
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use serde_json::Value;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// Where a connection that is upgraded leaves how it goes on: once, and in process nowhere.
pub(crate) type Upgrade = Option<Arc<Mutex<Option<Upgraded>>>>;

/// The port of a kubelet that does not say another.
const KUBELET_PORT: u64 = 10250;

/// What leads on to a kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Connection {
    PortForward,
    Proxy,
}

impl Connection {
    /// Whether a path is one of these, and served.
    pub fn of(server: &ApiServer, path: &ResourcePath) -> Option<Connection> {
        let connection = match (path.group.as_str(), path.resource.as_str(), path.subresource.as_str()) {
            ("", "pods", "portforward") if !path.namespace.is_empty() => Connection::PortForward,
            ("", "nodes", "proxy") if path.namespace.is_empty() => Connection::Proxy,
            _ => return None,
        };
        let catalog = server.catalog();
        catalog.get(&path.group, &path.resource)?.version(&path.version).map(|_| connection)
    }

    /// What a method is to those who say who may do what. Empty where there is no word for it.
    pub fn verb(method: &Method) -> &'static str {
        match *method {
            Method::GET | Method::HEAD => "get",
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE => "delete",
            _ => "",
        }
    }
}

/// A request to a kubelet, by somebody who is known but perhaps may not make it.
pub(crate) struct Connecting<B> {
    pub user: User,
    pub path: ResourcePath,
    pub query: Query,
    pub parts: Parts,
    pub body: B,
    pub upgrade: Upgrade,
}

impl<B> Connecting<B>
where
    B: http_body::Body<Data = Bytes> + Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    pub async fn answer(self, server: &ApiServer, connection: Connection) -> Result<Response<ResponseBody>, Status> {
        let verb = Connection::verb(&self.parts.method);
        server.authorize(&self.user, &self.path.asks(verb))?;
        match connection {
            Connection::PortForward => self.port_forward(server),
            Connection::Proxy => self.proxy(server).await,
        }
    }

    fn port_forward(mut self, server: &ApiServer) -> Result<Response<ResponseBody>, Status> {
        if !matches!(self.parts.method, Method::GET | Method::POST) {
            return Err(Status::method_not_allowed());
        }
        // WebSockets begin with a GET, and do what those do who may create.
        server
            .authorize(&self.user, &self.path.asks("create"))
            .map_err(|_| Status::forbidden("", "pods", &self.path.name, ""))?;
        let pods = server.inner.options.store.get("pods", &Key::new(&self.path.namespace, &self.path.name));
        let pod = pods.ok_or_else(|| Status::not_found("", "pods", &self.path.name))?;
        let value = pod.value_without_managed_fields();
        let name = value.pointer("/spec/nodeName").and_then(Value::as_str).unwrap_or_default();
        if name.is_empty() {
            let why = format!("pod {} does not have a host assigned", self.path.name);
            return Err(Status::bad_request(why));
        }
        // Upstream says it of a Node that is not there as if it were a Pod.
        let node = Node::of(server, name, "pods")?;
        if !streams::asks_to_upgrade(&self.parts.headers) {
            return Err(Status::bad_request("Upgrade request required"));
        }
        let unreachable = |why| Status::new(500, "", format!("error dialing backend: {why}"));
        let kubelet = node.reach(server, "").map_err(unreachable)?;
        let text = |pointer| value.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (namespace, pod, uid) = (self.path.namespace, self.path.name, text("/metadata/uid"));
        let target = Target { kubelet, namespace, pod, uid };
        let (answer, upgraded) = streams::port_forward(&mut self.parts, &self.query, target)?;
        if let (Some(slot), Some(upgraded)) = (self.upgrade, upgraded) {
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(upgraded);
        }
        Ok(answer)
    }

    async fn proxy(self, server: &ApiServer) -> Result<Response<ResponseBody>, Status> {
        let Connecting { path, mut parts, body, .. } = self;
        let known =
            [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::HEAD, Method::OPTIONS];
        if !known.contains(&parts.method) {
            return Err(Status::method_not_allowed());
        }
        let (name, port) = node_and_port(&path.name)
            .ok_or_else(|| Status::bad_request(format!("invalid node request {:?}", path.name)))?;
        let node = Node::of(server, name, "nodes")?;
        // Names are not looked up: nothing is connected to.
        if node.address.parse().is_ok_and(|address| !is_global(address)) {
            return Err(Status::bad_request("address not allowed"));
        }
        if streams::asks_to_upgrade(&parts.headers) {
            return Err(Status::bad_request(
                "nodes/proxy carries requests only here, and no connections that are upgraded",
            ));
        }
        if path.rest.is_empty() && matches!(parts.method, Method::GET | Method::HEAD) {
            // What is there refers to what is below it.
            let query = parts.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
            let mut answer = Response::new(ResponseBody::full(""));
            *answer.status_mut() = StatusCode::MOVED_PERMANENTLY;
            if let Ok(place) = HeaderValue::from_str(&format!("{}/{query}", parts.uri.path())) {
                answer.headers_mut().insert(header::LOCATION, place);
            }
            uncached(answer.headers_mut());
            return Ok(answer);
        }
        let query = parts.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
        let rest = if path.rest.is_empty() { "/" } else { path.rest.as_str() };
        let uri = format!("{rest}{query}").parse::<Uri>().map_err(|_| Status::no_such_path())?;
        let body = read_body(body).await?;
        let kubelet = node
            .reach(server, port)
            .map_err(|why| Status::new(503, "ServiceUnavailable", format!("error trying to reach service: {why}")))?;
        let mut request = Request::new(body);
        *request.method_mut() = parts.method;
        *request.uri_mut() = uri;
        strip(&mut parts.headers);
        *request.headers_mut() = parts.headers;
        let mut answer = kubelet.answer(request).await;
        uncached(answer.headers_mut());
        Ok(answer)
    }
}

/// `name`, `name:port` or `scheme:name:port`.
fn node_and_port(text: &str) -> Option<(&str, &str)> {
    let parts: Vec<&str> = text.split(':').collect();
    let (name, port) = match parts.as_slice() {
        [name] => (*name, ""),
        [name, port] | ["" | "http" | "https", name, port] => (*name, *port),
        _ => return None,
    };
    (!name.is_empty()).then_some((name, port))
}

/// Whether a request may be sent on to an address: this server's own machine and what only it can reach are not for clients.
fn is_global(address: IpAddr) -> bool {
    let local = match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !(local || address.is_loopback() || address.is_unspecified() || address.is_multicast())
}

/// What is between the client and this server, and who the client is.
fn strip(headers: &mut HeaderMap) {
    let own = [header::AUTHORIZATION, header::CONNECTION, header::TE, header::TRAILER, header::TRANSFER_ENCODING];
    for name in own {
        headers.remove(name);
    }
    let others: Vec<_> = headers
        .keys()
        .filter(|name| {
            let name = name.as_str();
            name.starts_with("impersonate-") || name.starts_with("proxy-") || name == "keep-alive"
        })
        .cloned()
        .collect();
    for name in others {
        headers.remove(name);
    }
}

fn uncached(headers: &mut HeaderMap) {
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-cache, private"));
}

/// A Node, as far as one needs it to reach its kubelet.
struct Node {
    name: String,
    /// The address that is preferred.
    address: String,
    port: u64,
}

impl Node {
    /// The Node, or a refusal in which it is one of `resource`.
    fn of(server: &ApiServer, name: &str, resource: &str) -> Result<Node, Status> {
        let node: Arc<Object> = server
            .inner
            .options
            .store
            .get("nodes", &Key::new("", name))
            .ok_or_else(|| Status::not_found("", resource, name))?;
        let node = node.value_without_managed_fields();
        let addresses = node.pointer("/status/addresses").and_then(Value::as_array);
        let text = |address: &Value, field: &str| address.get(field).and_then(Value::as_str).map(str::to_owned);
        let find = |kind: &str| {
            let mut of_kind = addresses?.iter().filter(|address| text(address, "type").as_deref() == Some(kind));
            of_kind.find_map(|address| text(address, "address"))
        };
        let preferred = ["Hostname", "InternalDNS", "InternalIP", "ExternalDNS", "ExternalIP"];
        let address = preferred
            .into_iter()
            .find_map(find)
            .ok_or_else(|| Status::new(500, "", "no preferred addresses found; known addresses: []"))?;
        let port = node.pointer("/status/daemonEndpoints/kubeletEndpoint/Port").and_then(Value::as_u64);
        let port = port.filter(|port| *port > 0).unwrap_or(KUBELET_PORT);
        Ok(Node { name: name.to_owned(), address, port })
    }

    /// What listens on a port of the Node; its kubelet, where none is named.
    fn reach(&self, server: &ApiServer, port: &str) -> Result<Arc<dyn Kubelet>, String> {
        let asked = match port {
            "" => None,
            text => Some(text.parse::<u16>().map_err(|_| format!("dial tcp: lookup tcp/{text}: unknown port"))?),
        };
        let other = asked.filter(|port| u64::from(*port) != self.port);
        match &server.inner.options.kubelets {
            Some(kubelets) => kubelets.reach(&self.name, other),
            None => {
                let port = other.map_or(self.port, u64::from);
                let host =
                    if self.address.contains(':') { format!("[{}]", self.address) } else { self.address.clone() };
                Err(format!("dial tcp {host}:{port}: connect: connection refused"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_named_with_their_port() {
        for (text, meant) in [
            ("n", Some(("n", ""))),
            ("n:80", Some(("n", "80"))),
            ("https:n:80", Some(("n", "80"))),
            ("https:n:", Some(("n", ""))),
            ("ftp:n:80", None),
            (":80", None),
            ("", None),
            ("a:b:c:d", None),
        ] {
            assert_eq!(node_and_port(text), meant, "{text}");
        }
    }
}
