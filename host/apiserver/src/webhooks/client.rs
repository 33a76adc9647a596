//! How a webhook is asked: HTTPS to the URL of its configuration, trusting nobody but the authority named there.
//!
//! Requests are answered on the threads of the server, and a webhook may be slow: it is asked on a thread of its own, and who
//! waits for it makes room for others.

use bytes::Bytes;
use http::{Method, Request, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use serde_json::Value;
use std::sync::{Arc, LazyLock, mpsc};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::runtime::{Handle, Runtime, RuntimeFlavor};

/// Largest answer.
const MAX_ANSWER: usize = 64 << 20;

static RUNTIME: LazyLock<Option<Runtime>> = LazyLock::new(|| {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(1).thread_name("webhooks").enable_all().build().ok()
});

/// Posts a review to a `clientConfig` and returns the answer. Blocks, at most for `patience`.
pub(super) fn ask(config: &Value, review: &Value, patience: Duration) -> Result<Value, String> {
    let text = |pointer: &str| config.pointer(pointer).and_then(Value::as_str);
    let Some(url) = text("/url") else {
        let (namespace, name) = (text("/service/namespace").unwrap_or("?"), text("/service/name").unwrap_or("?"));
        return Err(format!("Service {namespace}/{name} leads nowhere: nobody runs Pods here; give the webhook a url"));
    };
    let (url, trust) = (url.to_owned(), text("/caBundle").unwrap_or_default().to_owned());
    let body = Bytes::from(review.to_string());
    let runtime = RUNTIME.as_ref().ok_or("there is no thread to ask it on")?;
    let (sender, receiver) = mpsc::sync_channel(1);
    runtime.spawn(async move {
        let asked = tokio::time::timeout(patience, post(&url, &trust, body)).await;
        let answer = asked.unwrap_or_else(|_| Err(format!("Post {url:?}: context deadline exceeded")));
        let _ = sender.send(answer);
    });
    let wait = || {
        let answer = receiver.recv_timeout(patience + Duration::from_secs(1));
        answer.unwrap_or_else(|_| Err("it was not asked in time".to_owned()))
    };
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(wait),
        _ => wait(),
    }
}

async fn post(url: &str, trust: &str, body: Bytes) -> Result<Value, String> {
    let failed = |why: &dyn std::fmt::Display| format!("Post {url:?}: {why}");
    let uri: Uri = url.parse().map_err(|error| failed(&error))?;
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    let name = ServerName::try_from(host.clone()).map_err(|error| failed(&error))?;
    let tls = trusting(trust).map_err(|why| failed(&why))?;
    let socket = TcpStream::connect((host.as_str(), uri.port_u16().unwrap_or(443)));
    let socket = socket.await.map_err(|error| failed(&error))?;
    let _ = socket.set_nodelay(true);
    let stream = tokio_rustls::TlsConnector::from(tls).connect(name, socket).await.map_err(|error| failed(&error))?;
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|error| failed(&error))?;
    tokio::spawn(async move { drop(connection.await) });
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let request = Request::builder()
        .method(Method::POST)
        .uri(path)
        .header(header::HOST, uri.authority().map(|authority| authority.as_str()).unwrap_or_default())
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::ACCEPT, "application/json")
        .body(Full::new(body))
        .map_err(|error| failed(&error))?;
    let answer = sender.send_request(request).await.map_err(|error| failed(&error))?;
    let status = answer.status();
    let read = Limited::new(answer.into_body(), MAX_ANSWER).collect().await.map_err(|error| failed(&error))?;
    if !status.is_success() {
        return Err(failed(&format!("it answered {status}")));
    }
    serde_json::from_slice(&read.to_bytes()).map_err(|error| failed(&format!("its answer is not JSON: {error}")))
}

/// A client that trusts the authorities of a `caBundle`.
fn trusting(bundle: &str) -> Result<Arc<rustls::ClientConfig>, String> {
    use base64::Engine;
    let pem = base64::engine::general_purpose::STANDARD.decode(bundle).map_err(|_| "its caBundle is not base64")?;
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| format!("its caBundle: {error}"))?;
        roots.add(certificate).map_err(|error| format!("its caBundle: {error}"))?;
    }
    if roots.is_empty() {
        return Err("its caBundle names nobody to trust".to_owned());
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    Ok(Arc::new(config.map_err(|error| error.to_string())?.with_root_certificates(roots).with_no_client_auth()))
}
