//! A small client of the Kubernetes API: the same calls over TLS or in process.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use capstan_apiserver::{ApiServer, User};
use http::{Method, Request, Response, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use serde_json::Value;
use tokio::net::TcpStream;
use tower::Service as _;

use crate::kubeadm::KubeadmError;

/// How long one call may take, connecting included.
const CALL_LIMIT: Duration = Duration::from_secs(10);
/// The largest answer that is read.
const MAX_ANSWER: usize = 8 << 20;

/// Merge patch, RFC 7386.
pub const MERGE: &str = "application/merge-patch+json";
const JSON: &str = "application/json";

/// What the API server said.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The object; null where the answer was no JSON.
    pub body: Value,
}

impl Answer {
    /// True for 2xx.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The `message` of a Status.
    pub fn message(&self) -> String {
        let text = self.body.get("message").and_then(Value::as_str).unwrap_or("no message");
        text.chars().take(500).collect()
    }
}

/// A connection to an API server as somebody.
#[async_trait::async_trait]
pub trait Api: Send + Sync {
    /// Sends one request. An error is a transport's; the server's refusals are answers.
    async fn send(&self, method: Method, path: &str, kind: &str, body: Vec<u8>) -> Result<Answer, String>;
}

/// Reads an object.
pub async fn get(api: &dyn Api, path: &str) -> Result<Answer, String> {
    api.send(Method::GET, path, JSON, Vec::new()).await
}

/// Creates an object in a collection.
pub async fn create(api: &dyn Api, collection: &str, object: &Value) -> Result<Answer, String> {
    api.send(Method::POST, collection, JSON, object.to_string().into_bytes()).await
}

/// Merges a patch into an object.
pub async fn merge(api: &dyn Api, path: &str, patch: &Value) -> Result<Answer, String> {
    api.send(Method::PATCH, path, MERGE, patch.to_string().into_bytes()).await
}

/// An error for an answer that is no success.
pub fn expect(attempt: &str, answer: Result<Answer, String>) -> Result<Answer, KubeadmError> {
    match answer {
        Ok(answer) if answer.is_success() => Ok(answer),
        Ok(answer) => {
            Err(KubeadmError::Refused { attempt: attempt.to_owned(), status: answer.status, reason: answer.message() })
        }
        Err(reason) => Err(KubeadmError::Unreachable { attempt: attempt.to_owned(), reason }),
    }
}

async fn read<B>(response: Response<B>) -> Result<Answer, String>
where
    B: http_body::Body<Data = Bytes> + Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let status = response.status().as_u16();
    let body =
        Limited::new(response.into_body(), MAX_ANSWER).collect().await.map_err(|error| error.to_string())?.to_bytes();
    Ok(Answer { status, body: serde_json::from_slice(&body).unwrap_or(Value::Null) })
}

fn request(method: Method, path: &str, kind: &str, body: Vec<u8>) -> http::request::Builder {
    let mut builder = Request::builder().method(method).uri(path).header(header::ACCEPT, JSON);
    if !body.is_empty() {
        builder = builder.header(header::CONTENT_TYPE, kind).header(header::CONTENT_LENGTH, body.len());
    }
    builder
}

/// An API server of this process, without a socket.
pub struct InProcess {
    service: capstan_apiserver::InProcess,
}

impl InProcess {
    /// As this user.
    pub fn new(server: &ApiServer, user: User) -> Self {
        InProcess { service: server.service(user) }
    }
}

#[async_trait::async_trait]
impl Api for InProcess {
    async fn send(&self, method: Method, path: &str, kind: &str, body: Vec<u8>) -> Result<Answer, String> {
        let request = request(method, path, kind, body.clone())
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| error.to_string())?;
        let mut service = self.service.clone();
        let response = match service.call(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        read(response).await
    }
}

/// An API server over TLS, with one connection that is made when needed and kept.
pub struct Https {
    endpoint: String,
    name: ServerName<'static>,
    tls: Arc<rustls::ClientConfig>,
    bearer: Option<String>,
    connection: tokio::sync::Mutex<Option<SendRequest<Full<Bytes>>>>,
}

/// Who the server must be.
pub enum Trust {
    /// Anybody: only for what is checked otherwise, as `cluster-info` is.
    Anybody,
    /// Somebody with a certificate of one of these authorities.
    Authorities(Vec<CertificateDer<'static>>),
}

impl Https {
    /// A client of `endpoint` (`host:port`), with a client certificate (chain and key in PEM) where given.
    pub fn new(endpoint: &str, trust: Trust, client: Option<(&str, &str)>) -> Result<Https, String> {
        let (host, _) = endpoint.rsplit_once(':').ok_or_else(|| format!("{endpoint} is not host:port"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(host.to_owned()).map_err(|_| format!("{host} is no host name or address"))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let builder = match trust {
            Trust::Anybody => builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyServer { provider })),
            Trust::Authorities(authorities) => {
                let mut roots = rustls::RootCertStore::empty();
                for authority in authorities {
                    roots.add(authority).map_err(|error| error.to_string())?;
                }
                builder.with_root_certificates(roots)
            }
        };
        let mut tls = match client {
            Some((chain, key)) => builder
                .with_client_auth_cert(
                    crate::kubeadm::pki::certificates(chain.as_bytes())?,
                    crate::kubeadm::pki::tls_key(key)?,
                )
                .map_err(|error| error.to_string())?,
            None => builder.with_no_client_auth(),
        };
        // Few connections, each to another server or as another client: nothing to resume.
        tls.resumption = rustls::client::Resumption::disabled();
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Https {
            endpoint: endpoint.to_owned(),
            name,
            tls: Arc::new(tls),
            bearer: None,
            connection: Default::default(),
        })
    }

    /// With a bearer token.
    pub fn with_bearer(mut self, token: String) -> Https {
        self.bearer = Some(token);
        self
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, String> {
        let problem = |what: &str, error: &dyn std::fmt::Display| format!("{what} {}: {error}", self.endpoint);
        let socket = TcpStream::connect(&self.endpoint).await.map_err(|e| problem("connecting to", &e))?;
        let _ = socket.set_nodelay(true);
        let stream = tokio_rustls::TlsConnector::from(self.tls.clone())
            .connect(self.name.clone(), socket)
            .await
            .map_err(|e| problem("TLS with", &e))?;
        let (sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| problem("HTTP with", &e))?;
        tokio::spawn(async move {
            // Its end is seen by the next request.
            let _ = connection.await;
        });
        Ok(sender)
    }

    async fn call(&self, method: Method, path: &str, kind: &str, body: Vec<u8>) -> Result<Answer, String> {
        let mut builder = request(method, path, kind, body.clone()).header(header::HOST, &self.endpoint);
        if let Some(token) = &self.bearer {
            builder = builder.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = builder.body(Full::new(Bytes::from(body))).map_err(|error| error.to_string())?;
        let mut kept = self.connection.lock().await;
        let usable = match kept.as_mut() {
            Some(sender) => sender.ready().await.is_ok(),
            None => false,
        };
        if !usable {
            *kept = Some(self.connect().await?);
        }
        let Some(sender) = kept.as_mut() else {
            return Err("there is no connection".into());
        };
        let response =
            sender.send_request(request).await.map_err(|error| format!("asking {}: {error}", self.endpoint))?;
        read(response).await
    }
}

#[async_trait::async_trait]
impl Api for Https {
    async fn send(&self, method: Method, path: &str, kind: &str, body: Vec<u8>) -> Result<Answer, String> {
        match tokio::time::timeout(CALL_LIMIT, self.call(method, path, kind, body)).await {
            Ok(answer) => answer,
            Err(_) => {
                *self.connection.lock().await = None;
                Err(format!("{} did not answer within {} s", self.endpoint, CALL_LIMIT.as_secs()))
            }
        }
    }
}

/// Takes any certificate, but checks that the server has its key.
#[derive(Debug)]
struct AnyServer {
    provider: Arc<rustls::crypto::CryptoProvider>,
}

impl rustls::client::danger::ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
