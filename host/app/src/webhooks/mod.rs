//! What upstream has webhooks for, served to an API server that is not ours: defaults and rules of the core's kinds, what
//! providers say of their own kinds, conversion between versions. The embedded API server asks the same in process.
//!
//! Promises: the server shows a certificate that the API server trusts already, whoever of the replicas made it; only the
//! holder of the Lease writes configurations and definitions; a Secret, module or Lease that changes is followed at once.

mod certificates;
mod registration;
mod reviews;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use capstan_api::{Object, ObjectKey};
use capstan_apiserver::{Admission, Conversion};
use capstan_cluster::kinds::builtin;
use capstan_cluster::lease::SYSTEM_NAMESPACE;
use capstan_cluster::providers::Providers as _;
use capstan_cluster::runner::Runner;
use capstan_cluster::wire::{PatchKind, Wire};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use self::certificates::SECRET;
use self::reviews::Task;
use crate::args;
use crate::modules::Registry;

pub use registration::{Reach, has_several_versions};

/// How long the handshake and the head of a request may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Largest review: a page of objects to convert.
const MAX_REVIEW: usize = 64 << 20;
/// How often all is looked at although nothing happened.
const LOOK: Duration = Duration::from_secs(3600);
/// How often it is looked whether this process has become the one that writes, and how soon a failure is tried again.
const SOON: Duration = Duration::from_secs(2);

/// What is to be served, as the command line says it.
///
/// # Errors
/// When it does not say how the API server comes here.
pub fn asked(options: &args::Run) -> Result<Option<(SocketAddr, Reach)>> {
    let Some(listen) = options.webhook_listen else { return Ok(None) };
    let reach = match (&options.webhook_url, &options.webhook_service) {
        (Some(url), _) if !url.starts_with("https://") => bail!("--webhook-url {url} must begin with https://"),
        (Some(url), _) => Reach::Url(url.clone()),
        (None, Some(service)) => match service.split_once('/') {
            Some((namespace, name)) => Reach::Service { namespace: namespace.into(), name: name.into() },
            None => bail!("--webhook-service {service} must be NAMESPACE/NAME"),
        },
        (None, None) if listen.ip().is_unspecified() => {
            bail!(
                "--webhook-listen {listen}: say how the API server reaches it, with --webhook-url or --webhook-service"
            )
        }
        (None, None) => Reach::Url(format!("https://{listen}")),
    };
    Ok(Some((listen, reach)))
}

/// The certificate that is shown now.
#[derive(Default)]
struct Shown(RwLock<Option<Arc<CertifiedKey>>>);

impl std::fmt::Debug for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shown")
    }
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What answers reviews.
pub struct Answers {
    /// Hooks that see every change, in order.
    pub admission: Vec<Arc<dyn Admission>>,
    /// Who converts.
    pub conversion: Arc<dyn Conversion>,
}

impl Answers {
    fn answer(&self, path: &str, review: &Value) -> Option<Value> {
        Some(match path {
            registration::DEFAULT_PATH => reviews::admission(review, &self.admission, Task::Default),
            registration::VALIDATE_PATH => reviews::admission(review, &self.admission, Task::Validate),
            registration::CONVERT_PATH => reviews::conversion(review, &*self.conversion),
            _ => return None,
        })
    }
}

/// Webhooks that are being served.
pub struct Webhooks {
    wire: Wire,
    reach: Reach,
    shown: Arc<Shown>,
    /// Whom the API server is to trust (PEM), and the version of the Secret that says so.
    trust: RwLock<(String, String)>,
    core: Vec<Object>,
}

impl Webhooks {
    /// Listens, with certificates from the Secret, for as long as the process lives.
    ///
    /// # Errors
    /// When the address cannot be listened on, or the Secret not be had.
    pub async fn start(
        wire: Wire,
        listen: SocketAddr,
        reach: Reach,
        core: Vec<Object>,
        answers: Answers,
    ) -> Result<Arc<Self>> {
        let listener = TcpListener::bind(listen).await.with_context(|| format!("cannot serve webhooks at {listen}"))?;
        let webhooks = Arc::new(Self { wire, reach, shown: Arc::default(), trust: RwLock::default(), core });
        webhooks.take_certificates().await?;
        let mut tls = rustls::ServerConfig::builder().with_no_client_auth().with_cert_resolver(webhooks.shown.clone());
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        tokio::spawn(serve(listener, Arc::new(tls), Arc::new(answers)));
        tracing::info!(%listen, "webhooks are served");
        Ok(webhooks)
    }

    /// How definitions with several versions are converted.
    pub fn conversion(&self) -> Value {
        self.reach.conversion(&self.trust.read().unwrap_or_else(PoisonError::into_inner).0)
    }

    fn version(&self) -> String {
        self.trust.read().unwrap_or_else(PoisonError::into_inner).1.clone()
    }

    async fn take_certificates(&self) -> Result<()> {
        let kept = certificates::ensure(&self.wire, &self.reach.host()).await?;
        *self.shown.0.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(kept.serving));
        *self.trust.write().unwrap_or_else(PoisonError::into_inner) = (kept.trust, kept.version);
        Ok(())
    }

    /// Keeps certificates, configurations and definitions in step, for ever.
    pub async fn keep(self: Arc<Self>, runner: Arc<Runner>, registry: Arc<Registry>) {
        let mut modules = registry.changes();
        loop {
            modules.mark_unchanged();
            let leads = runner.leads();
            let wait = match self.tend(leads, &registry).await {
                Ok(()) if leads => LOOK,
                Ok(()) => SOON,
                Err(error) => {
                    tracing::warn!(error = %format!("{error:#}"), "the webhooks are not in order");
                    SOON
                }
            };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.secret_changed(&runner) => {}
                changed = modules.changed() => if changed.is_err() { return },
            }
        }
    }

    async fn tend(&self, leads: bool, registry: &Registry) -> Result<()> {
        self.take_certificates().await?;
        if !leads {
            return Ok(());
        }
        let trust = self.trust.read().unwrap_or_else(PoisonError::into_inner).0.clone();
        for configuration in registration::configurations(&self.reach, &trust, &self.core, &registry.definitions()) {
            let resource = builtin(configuration.group(), configuration.kind()).context("no such kind in the table")?;
            let (name, value) = (configuration.name(), Value::Object(configuration.0.clone()));
            let applied = self.wire.patch(&resource, "", name, None, PatchKind::Apply, &value).await;
            applied.with_context(|| format!("apply {} {name}", configuration.kind()))?;
        }
        let resource = builtin("apiextensions.k8s.io", "CustomResourceDefinition").context("no such kind")?;
        let wanted = self.conversion();
        let (crds, _) = self.wire.list(&resource, "").await.context("list definitions")?;
        for crd in crds.iter().filter(|crd| self.reach.converts(crd)) {
            let bundle = |conversion: Option<&Value>| {
                conversion.and_then(|c| c.pointer("/webhook/clientConfig/caBundle")).cloned()
            };
            if bundle(crd.at("/spec/conversion")) != bundle(Some(&wanted)) {
                let patch = json!({"spec": {"conversion": wanted}});
                let patched = self.wire.patch(&resource, "", crd.name(), None, PatchKind::Merge, &patch).await;
                patched.with_context(|| format!("tell definition {} whom to trust", crd.name()))?;
            }
        }
        Ok(())
    }

    /// Waits until the Secret is another than the one that is used.
    async fn secret_changed(&self, runner: &Runner) {
        let key = ObjectKey::new("", "Secret", SYSTEM_NAMESPACE, SECRET);
        let mut changes = runner.changes();
        loop {
            changes.mark_unchanged();
            if let Ok(secret) = runner.management().get(&key)
                && secret.is_none_or(|secret| secret.resource_version() != self.version())
            {
                // The cache may be a moment behind what was written here.
                tokio::time::sleep(Duration::from_millis(500)).await;
                let now = runner.management().get(&key);
                if now.is_ok_and(|secret| secret.is_none_or(|secret| secret.resource_version() != self.version())) {
                    return;
                }
            }
            if changes.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }
}

async fn serve(listener: TcpListener, tls: Arc<rustls::ServerConfig>, answers: Arc<Answers>) {
    let acceptor = tokio_rustls::TlsAcceptor::from(tls);
    loop {
        let socket = match listener.accept().await {
            Ok((socket, _)) => socket,
            Err(error) => {
                tracing::warn!(%error, "a connection for webhooks could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let _ = socket.set_nodelay(true);
        let (acceptor, answers) = (acceptor.clone(), answers.clone());
        tokio::spawn(async move {
            let Ok(Ok(stream)) = tokio::time::timeout(PATIENCE, acceptor.accept(socket)).await else { return };
            let service = hyper::service::service_fn(move |request| respond(answers.clone(), request));
            let mut builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
            builder.http1().timer(TokioTimer::new()).header_read_timeout(PATIENCE);
            builder.http2().timer(TokioTimer::new()).keep_alive_interval(LOOK);
            let _ = builder.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn respond(answers: Arc<Answers>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let plain = |code: StatusCode, text: &str| {
        let mut response = Response::new(Full::new(Bytes::from(format!("{text}\n"))));
        *response.status_mut() = code;
        Ok(response)
    };
    if request.method() != Method::POST {
        return plain(StatusCode::METHOD_NOT_ALLOWED, "reviews are POSTed");
    }
    let path = request.uri().path().to_owned();
    let body = match tokio::time::timeout(PATIENCE, Limited::new(request.into_body(), MAX_REVIEW).collect()).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(_)) => return plain(StatusCode::PAYLOAD_TOO_LARGE, "the review is too large or did not come whole"),
        Err(_) => return plain(StatusCode::REQUEST_TIMEOUT, "the review did not come"),
    };
    // Providers are asked, which blocks for a moment.
    let answered = tokio::task::spawn_blocking(move || {
        let review: Value = serde_json::from_slice(&body).map_err(|_| StatusCode::BAD_REQUEST)?;
        answers.answer(&path, &review).ok_or(StatusCode::NOT_FOUND)
    });
    match answered.await {
        Ok(Ok(answer)) => {
            let mut response = Response::new(Full::new(Bytes::from(answer.to_string())));
            let json = http::HeaderValue::from_static("application/json");
            response.headers_mut().insert(http::header::CONTENT_TYPE, json);
            Ok(response)
        }
        Ok(Err(code)) => plain(code, "no review"),
        Err(_) => plain(StatusCode::INTERNAL_SERVER_ERROR, "the review failed"),
    }
}
