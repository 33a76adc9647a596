//! The ways in: HTTP over TLS for everybody, a tower service in process for the host's own controllers.

use crate::options::User;
use crate::response::ResponseBody;
use crate::server::{ApiServer, Caller};
use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How long a client may take to send the head of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// How often a silent HTTP/2 client is asked whether it is still there.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// How many requests one HTTP/2 connection may have on their way. A client's watches share one.
const STREAMS: u32 = 1000;
/// How long the head of a request may be over HTTP/2: as long as Go lets it be.
const HEAD: u32 = 1 << 20;
/// How long a connection may take to end after the server was told to stop.
const FAREWELL: Duration = Duration::from_secs(3);
/// How long the handshake of TLS may take.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Access in process, as one user: `kube::Client::new(server.service(user), "default")`. No TLS, no socket.
#[derive(Clone, Debug)]
pub struct InProcess {
    server: ApiServer,
    user: Arc<User>,
    lean: bool,
}

impl InProcess {
    /// The same access with answers that leave `metadata.managedFields` out: for controllers, whose caches do without them.
    /// What they write is tracked as ever.
    pub fn without_managed_fields(self) -> InProcess {
        InProcess { lean: true, ..self }
    }
}

impl<B> tower::Service<Request<B>> for InProcess
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<ResponseBody>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let InProcess { server, user, lean } = self.clone();
        let caller = Caller { user: Ok((*user).clone()), lean, shutdown: None, upgrade: None };
        Box::pin(async move { Ok(server.answer(caller, request).await) })
    }
}

/// A TLS configuration for [`ApiServer::serve_tls`]: this certificate chain and key; client certificates are asked for, must
/// be of one of the authorities, and may be missing.
pub fn server_config(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    client_ca: &[CertificateDer<'static>],
) -> Result<Arc<rustls::ServerConfig>, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        rustls::ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
    let builder = if client_ca.is_empty() {
        builder.with_no_client_auth()
    } else {
        let mut roots = rustls::RootCertStore::empty();
        for ca in client_ca {
            roots.add(ca.clone())?;
        }
        let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .allow_unauthenticated()
            .build()
            .map_err(|error| rustls::Error::General(error.to_string()))?;
        builder.with_client_cert_verifier(verifier)
    };
    let mut config = builder.with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

impl ApiServer {
    /// Access in process, as this user.
    pub fn service(&self, user: User) -> InProcess {
        InProcess { server: self.clone(), user: Arc::new(user), lean: false }
    }

    /// Serves one HTTP connection (1.1 or 2) that is already accepted and decrypted, until the peer is done or, after
    /// `shutdown`, until the requests on their way are answered. `peer` is the client's certificate chain, leaf first,
    /// when it showed one; it is verified here against the authorities of the options.
    pub async fn serve_connection(
        &self,
        io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        peer: Option<Vec<CertificateDer<'static>>>,
        shutdown: CancellationToken,
    ) {
        let certificate = Arc::new(self.inner.authenticator.certificate(&peer.unwrap_or_default()));
        let upgrade = Arc::new(Mutex::new(None));
        let service = service_fn(|request: Request<Incoming>| {
            let (server, certificate, shutdown) = (self.clone(), certificate.clone(), shutdown.clone());
            let upgrade = Some(upgrade.clone());
            async move {
                let user = server.authenticate(&certificate, request.headers());
                let caller = Caller { user, lean: false, shutdown: Some(shutdown), upgrade };
                Ok::<_, Infallible>(server.answer(caller, request).await)
            }
        });
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
        builder
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(KEEP_ALIVE)
            .max_concurrent_streams(STREAMS)
            .max_header_list_size(HEAD);
        let connection = builder.serve_connection_with_upgrades(TokioIo::new(io), service);
        tokio::pin!(connection);
        tokio::select! {
            _ = connection.as_mut() => {}
            () = shutdown.cancelled() => {
                connection.as_mut().graceful_shutdown();
                let _ = tokio::time::timeout(FAREWELL, connection).await;
                return;
            }
        }
        // What an upgraded connection goes on as is served here, so that it ends with this call.
        let upgraded = upgrade.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(upgraded) = upgraded {
            tokio::select! {
                () = upgraded => {}
                () = shutdown.cancelled() => {}
            }
        }
    }

    /// Accepts connections until `shutdown`. Returns when the listener fails or all connections have ended.
    pub async fn serve_tls(
        &self,
        listener: TcpListener,
        tls: Arc<rustls::ServerConfig>,
        shutdown: CancellationToken,
    ) -> io::Result<()> {
        let acceptor = tokio_rustls::TlsAcceptor::from(tls);
        let connections = TaskTracker::new();
        let outcome = loop {
            let socket = tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((socket, _)) => socket,
                    // Out of descriptors, or a peer that is gone already: the next one may do better.
                    Err(error) if is_passing(&error) => {
                        tracing::warn!(%error, "a connection could not be accepted");
                        tokio::time::sleep(Duration::from_millis(50)).await;
                        continue;
                    }
                    Err(error) => break Err(error),
                },
                () = shutdown.cancelled() => break Ok(()),
            };
            let _ = socket.set_nodelay(true);
            let (server, acceptor, shutdown) = (self.clone(), acceptor.clone(), shutdown.clone());
            connections.spawn(async move {
                let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE, acceptor.accept(socket)).await else { return };
                let peer = stream
                    .get_ref()
                    .1
                    .peer_certificates()
                    .map(|chain| chain.iter().map(|c| c.clone().into_owned()).collect());
                server.serve_connection(stream, peer, shutdown).await;
            });
        };
        connections.close();
        connections.wait().await;
        outcome
    }
}

/// Whether accepting may work again.
fn is_passing(error: &io::Error) -> bool {
    const TOO_MANY_FILES: [i32; 2] = [23, 24];
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted
    ) || error.raw_os_error().is_some_and(|code| TOO_MANY_FILES.contains(&code))
}
