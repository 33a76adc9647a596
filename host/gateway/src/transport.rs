//! Carries one request out over the network. Tests and replays put doubles here.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};

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
    /// Sends one request and reads the whole answer, within the endpoint's limits.
    ///
    /// # Errors
    /// [`TransportError::NotSent`] only when that is certain.
    async fn exchange(&self, endpoint: &EndpointConfig, request: WireRequest) -> Result<WireResponse, TransportError>;
}

/// The real network: HTTP/1.1 (whose answers carry reason phrases) over TCP, TLS or a unix socket.
#[derive(Debug, Default)]
pub struct Network {
    clients: Mutex<HashMap<ClientKey, reqwest::Client>>,
}

/// Connections are shared by endpoints of one origin and trust.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ClientKey {
    origin: Origin,
    ca: Option<String>,
}

/// Clients of origins not used for long are dropped when there are more than this many.
const MAX_CLIENTS: usize = 1024;

/// No connection attempt may take longer, whatever the endpoint's own limit.
const MAX_CONNECT: Duration = Duration::from_secs(10);

impl Network {
    /// No connection yet.
    pub fn new() -> Self {
        // Fails when a provider is installed already: reqwest is content with any.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Self::default()
    }

    fn client(&self, endpoint: &EndpointConfig) -> Result<reqwest::Client, String> {
        let key = ClientKey { origin: endpoint.origin.clone(), ca: endpoint.ca.clone() };
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = clients.get(&key) {
            return Ok(client.clone());
        }
        let mut builder = reqwest::Client::builder()
            .http1_only()
            .no_proxy()
            .referer(false)
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(MAX_CONNECT)
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
        let client = builder
            .build()
            .map_err(|error| format!("no HTTP client for endpoint {}: {}", endpoint.name, told(&error)))?;
        if clients.len() >= MAX_CLIENTS {
            clients.clear();
        }
        clients.insert(key, client.clone());
        Ok(client)
    }
}

#[async_trait]
impl Transport for Network {
    async fn exchange(&self, endpoint: &EndpointConfig, request: WireRequest) -> Result<WireResponse, TransportError> {
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
        let mut headers = request.headers;
        if request.body.is_empty() && matches!(request.method, Method::Post | Method::Put | Method::Patch) {
            // The client would say nothing of an empty body, and some servers then answer 411.
            headers.insert(http::header::CONTENT_LENGTH, http::HeaderValue::from_static("0"));
        }
        let mut builder = client.request(method, url).headers(headers);
        if !request.method.reads() {
            builder = builder.body(request.body);
        }
        let seconds = endpoint.timeout.as_secs_f64();
        match tokio::time::timeout(endpoint.timeout, answer(builder, endpoint.max_response)).await {
            Ok(answer) => answer,
            Err(_) => Err(TransportError::NoAnswer(format!("{} did not answer within {seconds} s", endpoint.origin))),
        }
    }
}

async fn answer(builder: reqwest::RequestBuilder, max: u64) -> Result<WireResponse, TransportError> {
    let mut response = builder.send().await.map_err(|error| {
        if error.is_connect() || error.is_builder() {
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

fn url(origin: &Origin, target: &str) -> Result<reqwest::Url, String> {
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
