//! Carries one request out over the network. Tests and replays put doubles here.

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use capstan_core::turn::Fence;

use crate::aws::{self, Sessions};
use crate::clock::{Clock, RealTime};
use crate::credential::{AwsKeys, Credential};
use crate::fence::{self, Fenced};
use crate::gate::{Admitted, Gate};
use crate::policy::{self, Policy};
use crate::request::Method;
use crate::{EndpointConfig, Origin};

/// A request ready to be sent, secrets filled in.
#[derive(Clone)]
pub struct WireRequest {
    /// Method.
    pub method: Method,
    /// Path and query.
    pub target: String,
    /// Headers.
    pub headers: http::HeaderMap,
    /// Body; sent with its length, never in chunks (pveproxy answers 501 to those).
    pub body: Bytes,
}

impl fmt::Debug for WireRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ({} bytes)", self.method, self.target, self.body.len())
    }
}

/// A complete answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireResponse {
    /// Status code.
    pub status: u16,
    /// Reason phrase, possibly empty.
    pub status_text: String,
    /// All headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The whole body.
    pub body: Bytes,
}

/// Why there is no complete answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransportError {
    /// No byte of the request left.
    #[error("{0}")]
    NotSent(String),
    /// Some byte may have left.
    #[error("{0}")]
    NoAnswer(String),
    /// The answer is larger than this many bytes.
    #[error("the answer is larger than {0} bytes")]
    TooLarge(u64),
}

/// Carries requests out.
#[async_trait]
pub trait Transport: Send + Sync {
    /// Waits until a request may be sent: for a place, for a pause to end, for a session of a role to be there. What is
    /// returned is kept until the request is answered.
    ///
    /// # Errors
    /// [`TransportError::NotSent`] when it may not be sent now.
    async fn admit(&self, _endpoint: &EndpointConfig) -> Result<Admitted, TransportError> {
        Ok(Admitted::default())
    }

    /// Sends one request and reads the whole answer, within the endpoint's limits. With a fence, nothing is begun once it
    /// says no.
    ///
    /// # Errors
    /// [`TransportError::NotSent`] only when that is certain.
    async fn exchange(
        &self,
        endpoint: &EndpointConfig,
        request: WireRequest,
        fence: Option<&Fence>,
    ) -> Result<WireResponse, TransportError>;
}

/// The real network: HTTP/1.1 (whose answers carry reason phrases) over TCP, TLS or a unix socket.
///
/// It keeps the endpoint's policy, rate and pauses, adds its credential, and sends a request again by itself only where
/// that cannot do anything twice.
#[derive(Debug)]
pub struct Network {
    clients: Mutex<HashMap<ClientKey, reqwest::Client>>,
    gates: Mutex<HashMap<GateKey, Arc<Gate>>>,
    sessions: Sessions,
    clock: Arc<dyn Clock>,
}

impl Default for Network {
    fn default() -> Self {
        Self::timed_by(Arc::new(RealTime))
    }
}

/// Connections are shared by endpoints of one origin, trust, client certificate and policy.
#[derive(Clone, PartialEq, Eq, Hash)]
struct ClientKey {
    origin: Origin,
    ca: Option<String>,
    identity: Option<[u8; 32]>,
    policy: Arc<Policy>,
}

impl fmt::Debug for ClientKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.origin)
    }
}

/// Requests to one origin with one credential share a gate.
type GateKey = (Origin, [u8; 32], u32);

/// Clients and gates not in use are dropped when there are more than this many.
const MAX_CLIENTS: usize = 1024;

/// How long the kernel tries to deliver what was sent: it goes on while the process is frozen.
const MAX_ON_THE_WAY: Duration = Duration::from_secs(15);
/// No connection attempt may take longer, whatever the endpoint's own limit.
const MAX_CONNECT: Duration = Duration::from_secs(10);
/// The pauses before a request is sent again.
const AGAIN: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(400)];

/// Resolves names to addresses that the policy permits: those are dialled.
struct Permitted(Arc<Policy>);

impl reqwest::dns::Resolve for Permitted {
    fn resolve(&self, name: reqwest::dns::Name) -> reqwest::dns::Resolving {
        let policy = self.0.clone();
        Box::pin(async move {
            let addresses = lookup(&policy, name.as_str(), 0).await?;
            Ok(Box::new(addresses.into_iter()) as reqwest::dns::Addrs)
        })
    }
}

/// Why there is no address to dial.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreachable {
    /// The policy does not allow it.
    #[error("{0}")]
    Refused(String),
    /// The name cannot be resolved now.
    #[error("{0}")]
    Unresolved(String),
}

/// The addresses of a host that the policy permits: to be dialled by others than this crate. An address counts in
/// whatever spelling.
///
/// # Errors
/// When there is none.
pub async fn resolve(policy: &Policy, host: &str, port: u16) -> Result<Vec<SocketAddr>, Unreachable> {
    let bracketed = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    let malformed = || Unreachable::Refused(format!("{host:?} is no host"));
    let url = reqwest::Url::parse(&format!("https://{bracketed}/")).map_err(|_| malformed())?;
    match policy::check_url(policy, &url).map_err(|why| Unreachable::Refused(why.to_string()))? {
        Some(name) => lookup(policy, name, port).await,
        None => {
            let text = url.host_str().unwrap_or_default();
            let address = text.trim_start_matches('[').trim_end_matches(']').parse().map_err(|_| malformed())?;
            Ok(vec![SocketAddr::new(address, port)])
        }
    }
}

/// The addresses of a name that the policy permits.
async fn lookup(policy: &Policy, name: &str, port: u16) -> Result<Vec<SocketAddr>, Unreachable> {
    let found = tokio::net::lookup_host((name, port)).await;
    let found = found.map_err(|error| Unreachable::Unresolved(format!("{name} cannot be resolved: {error}")))?;
    let found: Vec<_> = found.map(|address| address.ip()).collect();
    if found.is_empty() {
        return Err(Unreachable::Unresolved(format!("{name} has no address")));
    }
    let permitted =
        policy::permitted(policy, &found).map_err(|why| Unreachable::Refused(format!("{name} resolves to {why}")))?;
    Ok(permitted.into_iter().map(|ip| SocketAddr::new(ip, port)).collect())
}

impl Network {
    /// No connection yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// No connection yet; pauses are measured by this clock.
    pub fn timed_by(clock: Arc<dyn Clock>) -> Self {
        // Fails when a provider is installed already: reqwest is content with any.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Self { clients: Mutex::default(), gates: Mutex::default(), sessions: Sessions::default(), clock }
    }

    fn client(&self, endpoint: &EndpointConfig) -> Result<reqwest::Client, String> {
        let identity = match &endpoint.credential {
            Credential::ClientCertificate(pem) => Some(pem),
            _ => None,
        };
        let key = ClientKey {
            origin: endpoint.origin.clone(),
            ca: endpoint.ca.clone(),
            identity: identity.map(|_| endpoint.credential.digest()),
            policy: endpoint.policy.clone(),
        };
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = clients.get(&key) {
            return Ok(client.clone());
        }
        let mut builder = reqwest::Client::builder()
            .http1_only()
            .no_proxy()
            .referer(false)
            .redirect(reqwest::redirect::Policy::none())
            .dns_resolver(Permitted(endpoint.policy.clone()))
            .connect_timeout(MAX_CONNECT)
            .tcp_user_timeout(MAX_ON_THE_WAY)
            .pool_idle_timeout(Duration::from_secs(30))
            .pool_max_idle_per_host(8);
        if let Origin::UnixSocket(path) = &endpoint.origin {
            builder = builder.unix_socket(path.as_path());
        }
        if let Some(pem) = &endpoint.ca {
            let roots = reqwest::Certificate::from_pem_bundle(pem.as_bytes())
                .map_err(|error| format!("the certificates of endpoint {} cannot be read: {error}", endpoint.name))?;
            builder = builder.tls_certs_only(roots);
        }
        if let Some(pem) = identity {
            let identity = reqwest::Identity::from_pem(pem).map_err(|_| {
                format!("the client certificate of endpoint {} is no PEM certificate with its key", endpoint.name)
            })?;
            builder = builder.identity(identity);
        }
        let client = builder
            .build()
            .map_err(|error| format!("no HTTP client for endpoint {}: {}", endpoint.name, told(&error)))?;
        if clients.len() >= MAX_CLIENTS {
            clients.clear();
        }
        clients.insert(key, client.clone());
        Ok(client)
    }

    fn gate(&self, endpoint: &EndpointConfig) -> Arc<Gate> {
        let key = (endpoint.origin.clone(), endpoint.credential.digest(), endpoint.concurrency);
        let mut gates = self.gates.lock().unwrap_or_else(PoisonError::into_inner);
        if gates.len() >= MAX_CLIENTS && !gates.contains_key(&key) {
            gates.retain(|_, gate| Arc::strong_count(gate) > 1);
        }
        gates.entry(key).or_insert_with(|| Arc::new(Gate::new(endpoint.concurrency))).clone()
    }

    /// The keys that sign, after roles were assumed where there are any.
    async fn keys(&self, endpoint: &EndpointConfig) -> Result<Option<AwsKeys>, String> {
        let Credential::Aws { keys, roles, scope } = &endpoint.credential else { return Ok(None) };
        let mut keys = keys.clone();
        for role in roles {
            let ask = |origin: Origin, request: WireRequest| {
                let mut sts = EndpointConfig::at("sts", origin, endpoint.policy.clone());
                sts.timeout = sts.timeout.min(endpoint.timeout);
                sts.max_response = 64 << 10;
                // Other certificates than the system's are those of a private cloud, token service included.
                sts.ca = role.sts.as_ref().and(endpoint.ca.clone());
                async move {
                    let limit = sts.timeout;
                    let answer = tokio::time::timeout(limit, self.once(&sts, &request, None)).await;
                    answer.unwrap_or_else(|_| {
                        Err(TransportError::NoAnswer(format!("no answer within {} s", limit.as_secs_f64())))
                    })
                }
            };
            keys = self.sessions.keys(&keys, role, &scope.region, ask).await?;
        }
        Ok(Some(keys))
    }

    /// Sends a request as it is, once.
    async fn once(
        &self,
        endpoint: &EndpointConfig,
        request: &WireRequest,
        fence: Option<&Fence>,
    ) -> Result<WireResponse, TransportError> {
        permitted(endpoint)?;
        let client = self.client(endpoint).map_err(TransportError::NotSent)?;
        let url = url(&endpoint.origin, &request.target).map_err(TransportError::NotSent)?;
        let method = match request.method {
            Method::Get => reqwest::Method::GET,
            Method::Head => reqwest::Method::HEAD,
            Method::Post => reqwest::Method::POST,
            Method::Put => reqwest::Method::PUT,
            Method::Patch => reqwest::Method::PATCH,
            Method::Delete => reqwest::Method::DELETE,
        };
        let mut headers = request.headers.clone();
        if request.body.is_empty() && matches!(request.method, Method::Post | Method::Put | Method::Patch) {
            // The client would say nothing of an empty body, and some servers then answer 411.
            headers.insert(http::header::CONTENT_LENGTH, http::HeaderValue::from_static("0"));
        }
        let mut builder = client.request(method, url).headers(headers);
        if !request.method.reads() {
            builder = match fence {
                Some(fence) => builder.body(reqwest::Body::wrap(Fenced::new(request.body.clone(), fence.clone()))),
                None => builder.body(request.body.clone()),
            };
        }
        if fence.is_some_and(|fence| !fence()) {
            return Err(TransportError::NotSent(fence::refusal()));
        }
        answer(builder, endpoint.max_response).await
    }
}

/// What can be known of the policy without resolving a name.
fn permitted(endpoint: &EndpointConfig) -> Result<(), TransportError> {
    let checked = match &endpoint.origin {
        Origin::Url(url) => policy::check_url(&endpoint.policy, url).map(|_| ()),
        Origin::UnixSocket(path) => policy::check_socket(&endpoint.policy, path),
    };
    checked.map_err(|why| TransportError::NotSent(format!("endpoint {}: {why}", endpoint.name)))
}

#[async_trait]
impl Transport for Network {
    async fn admit(&self, endpoint: &EndpointConfig) -> Result<Admitted, TransportError> {
        permitted(endpoint)?;
        let admitted = self.gate(endpoint).admit(endpoint.rate, &*self.clock).await;
        let admitted = admitted.map_err(|why| TransportError::NotSent(format!("{}: {why}", endpoint.origin)))?;
        // So that nothing takes time any more once the request may go.
        self.keys(endpoint).await.map_err(TransportError::NotSent)?;
        Ok(admitted)
    }

    async fn exchange(
        &self,
        endpoint: &EndpointConfig,
        mut request: WireRequest,
        fence: Option<&Fence>,
    ) -> Result<WireResponse, TransportError> {
        permitted(endpoint)?;
        match (&endpoint.credential, self.keys(endpoint).await.map_err(TransportError::NotSent)?) {
            (Credential::Headers { headers, .. }, _) => {
                headers.iter().for_each(|(name, value)| drop(request.headers.insert(name, value.clone())));
            }
            (Credential::Aws { scope, .. }, Some(keys)) => {
                let url = url(&endpoint.origin, &request.target).map_err(TransportError::NotSent)?;
                aws::sign_request(&mut request, &url, &keys, scope, SystemTime::now())
                    .map_err(TransportError::NotSent)?;
            }
            _ => {}
        }
        let seconds = endpoint.timeout.as_secs_f64();
        let attempts = async {
            let mut pauses = AGAIN.iter();
            loop {
                let answer = self.once(endpoint, &request, fence).await;
                // What was not sent, and a read, cannot do anything twice.
                let again = match &answer {
                    Err(TransportError::NotSent(_)) => true,
                    Err(TransportError::NoAnswer(_)) => request.method.reads(),
                    _ => false,
                };
                match pauses.next().filter(|_| again) {
                    Some(pause) => self.clock.sleep_until(self.clock.now() + *pause).await,
                    None => return answer,
                }
            }
        };
        let answer = match tokio::time::timeout(endpoint.timeout, attempts).await {
            Ok(answer) => answer,
            Err(_) => Err(TransportError::NoAnswer(format!("{} did not answer within {seconds} s", endpoint.origin))),
        };
        self.gate(endpoint).learn(endpoint.protocol, &answer, self.clock.now());
        if let (Ok(response), Credential::Aws { keys, roles, scope }) = (&answer, &endpoint.credential)
            && aws::session_refused(response)
        {
            self.sessions.forget(keys, roles, &scope.region).await;
        }
        answer
    }
}

async fn answer(builder: reqwest::RequestBuilder, max: u64) -> Result<WireResponse, TransportError> {
    let mut response = builder.send().await.map_err(|error| {
        if refuses_certificate(&error) {
            let why = told(&error);
            TransportError::NotSent(format!(
                "the server refuses the client certificate of the endpoint's Secret: {why}"
            ))
        } else if error.is_connect() || error.is_builder() {
            TransportError::NotSent(told(&error))
        } else {
            TransportError::NoAnswer(told(&error))
        }
    })?;
    let status = response.status();
    let status_text = match response.extensions().get::<hyper::ext::ReasonPhrase>() {
        Some(phrase) => String::from_utf8_lossy(phrase.as_bytes()).into_owned(),
        None => status.canonical_reason().unwrap_or_default().to_owned(),
    };
    let headers = response
        .headers()
        .iter()
        .map(|(name, value)| (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
        .collect();
    if response.content_length().is_some_and(|length| length > max) {
        return Err(TransportError::TooLarge(max));
    }
    let mut body = BytesMut::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| TransportError::NoAnswer(told(&error)))? {
        if body.len() as u64 + chunk.len() as u64 > max {
            return Err(TransportError::TooLarge(max));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(WireResponse { status: status.as_u16(), status_text, headers, body: body.freeze() })
}

/// Whether the server has refused our certificate. With TLS 1.3 it says so when the client has sent its first request already,
/// which the server has then not read (RFC 8446, sections 4.4.2.4 and 6.2; `DecryptError` is of a signature of the handshake).
fn refuses_certificate(error: &reqwest::Error) -> bool {
    use rustls::AlertDescription as Alert;
    let mut cause: Option<&dyn std::error::Error> = std::error::Error::source(error);
    while let Some(error) = cause {
        let within = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        let tls = within.and_then(|within| within.downcast_ref()).or_else(|| error.downcast_ref());
        if let Some(rustls::Error::AlertReceived(alert)) = tls {
            return matches!(
                alert,
                Alert::NoCertificate
                    | Alert::BadCertificate
                    | Alert::UnsupportedCertificate
                    | Alert::CertificateRevoked
                    | Alert::CertificateExpired
                    | Alert::CertificateUnknown
                    | Alert::UnknownCA
                    | Alert::AccessDenied
                    | Alert::CertificateRequired
                    | Alert::DecryptError
            );
        }
        cause = error.source();
    }
    false
}

/// The URL of a path and query at an origin.
pub(crate) fn url(origin: &Origin, target: &str) -> Result<reqwest::Url, String> {
    let text = match origin {
        Origin::Url(url) => format!("{}{target}", url.as_str().trim_end_matches('/')),
        Origin::UnixSocket(_) => format!("http://localhost{target}"),
    };
    let parsed = reqwest::Url::parse(&text).map_err(|error| format!("path and query make no URL: {error}"))?;
    if let Origin::Url(url) = origin
        && (parsed.host_str(), parsed.port_or_known_default()) != (url.host_str(), url.port_or_known_default())
    {
        return Err("the path changes the destination".to_owned());
    }
    Ok(parsed)
}

/// An error with its causes, without the URL (whose query may be long).
fn told(error: &reqwest::Error) -> String {
    let mut text = String::new();
    let mut cause: Option<&dyn std::error::Error> = std::error::Error::source(error);
    while let Some(error) = cause {
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&error.to_string());
        cause = error.source();
    }
    if text.is_empty() { "the request failed".to_owned() } else { text }
}
