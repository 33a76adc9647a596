//! Where connections to workload clusters may lead. The address of an API server comes from a kubeconfig Secret, which is
//! a tenant's data: whoever wires this crate says which addresses may be dialled for it, and those are dialled.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::client::ConfigExt;
use tokio::net::TcpStream;

use crate::fence::{Fenced, fenced};

/// How long one address may take to answer.
const CONNECT: Duration = Duration::from_secs(5);
/// How long the kernel tries to deliver what was sent: it goes on while the process is frozen.
const ON_THE_WAY: Duration = Duration::from_secs(15);

/// Why there is no address to dial.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EgressError {
    /// The policy does not allow it; the text names the address and the policy.
    #[error("{0}")]
    Refused(String),
    /// It is not known now.
    #[error("{0}")]
    Unresolved(String),
}

/// Decides where connections may lead.
#[async_trait]
pub trait Egress: Send + Sync {
    /// The addresses to be dialled for a host (a name, or an address in any spelling), for an object of this namespace.
    ///
    /// # Errors
    /// When there is none; never an empty list.
    async fn addresses(&self, namespace: &str, host: &str, port: u16) -> Result<Vec<SocketAddr>, EgressError>;
}

/// Loopback, written plainly, and nothing else: for tests.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoopbackOnly;

#[async_trait]
impl Egress for LoopbackOnly {
    async fn addresses(&self, _namespace: &str, host: &str, port: u16) -> Result<Vec<SocketAddr>, EgressError> {
        match host.parse::<IpAddr>() {
            Ok(address) if address.is_loopback() => Ok(vec![SocketAddr::new(address, port)]),
            _ => Err(EgressError::Refused(format!("{host} is no loopback address"))),
        }
    }
}

/// Host and port of a URL, without the brackets of an IPv6 address.
pub(crate) fn host_and_port(url: &http::Uri) -> (String, u16) {
    let host = url.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    (host.to_owned(), url.port_u16().unwrap_or(443))
}

/// A client of the API server that a kubeconfig describes; every connection of its asks [`Egress`] anew.
///
/// # Errors
/// When there is none for this kubeconfig; the text holds nothing secret.
pub(crate) fn client(egress: &Arc<dyn Egress>, namespace: &str, config: kube::Config) -> Result<kube::Client, String> {
    let cannot = |error: kube::Error| format!("the kubeconfig cannot be used: {error}");
    let dialler = Dialler { egress: egress.clone(), namespace: namespace.into() };
    let https = config.rustls_https_connector_with_connector(dialler).map_err(cannot)?;
    let http: Client<_, Fenced> = Client::builder(TokioExecutor::new()).build(https);
    let service = tower::ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer().map_err(cannot)?)
        .map_request(fenced)
        .map_err(tower::BoxError::from)
        .service(http);
    Ok(kube::Client::new(service, config.default_namespace))
}

/// A client of the management cluster, to be reached by whatever way the operator's configuration says. Unless that is a
/// proxy, the Lease is looked at once more when a connection takes the body of a changing request.
///
/// # Errors
/// When the configuration cannot be used.
pub fn management_client(config: kube::Config) -> Result<kube::Client, kube::Error> {
    if config.proxy_url.is_some() {
        return kube::Client::try_from(config);
    }
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT));
    tcp.set_tcp_user_timeout(Some(ON_THE_WAY));
    let https = config.rustls_https_connector_with_connector(tcp)?;
    let http: Client<_, Fenced> = Client::builder(TokioExecutor::new()).build(https);
    let service = tower::ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .map_request(fenced)
        .map_err(tower::BoxError::from)
        .service(http);
    Ok(kube::Client::new(service, config.default_namespace))
}

/// Connects to what [`Egress`] says.
#[derive(Clone)]
struct Dialler {
    egress: Arc<dyn Egress>,
    namespace: Arc<str>,
}

impl tower::Service<http::Uri> for Dialler {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, url: http::Uri) -> Self::Future {
        let Self { egress, namespace } = self.clone();
        Box::pin(async move {
            let (host, port) = host_and_port(&url);
            let addresses = egress.addresses(&namespace, &host, port).await.map_err(io::Error::other)?;
            let mut last = io::Error::other("there is no address to dial");
            for address in addresses {
                match tokio::time::timeout(CONNECT, TcpStream::connect(address)).await {
                    Ok(Ok(stream)) => {
                        stream.set_nodelay(true)?;
                        return Ok(TokioIo::new(stream));
                    }
                    Ok(Err(error)) => last = error,
                    Err(_) => last = io::Error::new(io::ErrorKind::TimedOut, format!("{address} does not answer")),
                }
            }
            Err(last)
        })
    }
}
