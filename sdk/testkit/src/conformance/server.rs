//! The server that a component drives, and all that stands between the two.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use capstan_gateway::policy::Policy;
use capstan_gateway::{
    CredentialKind, CredentialSource, Destination, Endpoints, Gateway, Network, Origin, SecretData, Transport,
};

use super::component::Component;
use crate::proxy::{Exchange, FaultProxy, Schedule};

/// The server that a component drives, as the test sees it: past the proxy, and without faults.
#[async_trait]
pub trait Server: Send + Sync {
    /// Where it is and as whom it is spoken to.
    fn access(&self) -> Access;

    /// What stands on the server that was not there before the test, one line for each resource; lines carry nothing
    /// that differs from run to run (ids, times).
    ///
    /// # Errors
    /// When the server cannot be asked.
    async fn left(&self) -> anyhow::Result<Vec<String>>;

    /// Takes all of that away, before each case: one may have failed. So does what a server remembers of the dead, or shows of
    /// them still: each life has the same owner keys and idempotency keys.
    ///
    /// # Errors
    /// When it cannot be.
    async fn clear(&self) -> anyhow::Result<()>;

    /// Whether an exchange may have changed something.
    fn changes(&self, exchange: &Exchange) -> bool {
        exchange.changes()
    }

    /// Whether an exchange is a read whose answer the gateway shares among many objects (`max-age`): it is the cost of
    /// the endpoint and not of one object.
    fn is_shared(&self, _exchange: &Exchange) -> bool {
        false
    }

    /// When what is late arrives and how long reads show the past; `by_manifest` is the worst that the component's manifest
    /// reckons with. A server that is known to be worse says so, and a manifest that says too little is found out.
    fn schedule(&self, by_manifest: Schedule) -> Schedule {
        by_manifest
    }

    /// How long the server gets, in real time, before it is looked at again: for servers whose own work takes any.
    fn pace(&self) -> Duration {
        Duration::ZERO
    }
}

/// Where a server is and as whom it is spoken to.
#[derive(Clone)]
pub struct Access {
    /// `http://…`, `https://…` or `unix:///…`.
    pub origin: String,
    /// The Secret's data and how it becomes the credential of every endpoint of the manifest.
    pub credential: Option<(CredentialKind, SecretData)>,
}

impl Access {
    /// To a server that asks for no credential.
    pub fn open(origin: impl Into<String>) -> Self {
        Self { origin: origin.into(), credential: None }
    }
}

/// A component before a server, with a proxy between them and time of their own. Belongs to one runtime.
pub struct Setting<'a> {
    pub(super) component: &'a dyn Component,
    pub(super) server: &'a dyn Server,
    pub(super) proxy: FaultProxy,
    network: Arc<Network>,
    endpoints: Arc<OneEndpoint>,
}

impl<'a> Setting<'a> {
    /// Puts a proxy before the server.
    ///
    /// # Errors
    /// When loopback cannot be listened on or the server's origin is none.
    pub async fn before(component: &'a dyn Component, server: &'a dyn Server) -> anyhow::Result<Self> {
        let access = server.access();
        let proxy = FaultProxy::in_own_time(&access.origin).await?;
        let origin = Origin::parse(&proxy.url()).map_err(anyhow::Error::msg)?;
        let (credential, secret) = match access.credential {
            Some((kind, data)) => {
                let secret = ("conformance".to_owned(), "credential".to_owned());
                (Some(CredentialSource { secret, kind }), Some(data))
            }
            None => (None, None),
        };
        // The proxy is on loopback.
        let policy = Arc::new(Policy::new(["127.0.0.1"], []).map_err(anyhow::Error::msg)?);
        let destination = Destination { credential, ..Destination::of(origin) };
        let network = Arc::new(Network::timed_by(proxy.clock()));
        let endpoints = Arc::new(OneEndpoint { destination, secret, policy });
        Ok(Self { component, server, proxy, network, endpoints })
    }

    /// The proxy.
    pub fn proxy(&self) -> &FaultProxy {
        &self.proxy
    }

    /// A gateway of a host that has just started.
    pub(super) fn gateway(&self) -> Arc<Gateway> {
        let network: Arc<dyn Transport> = self.network.clone();
        Arc::new(Gateway::new(self.endpoints.clone(), network).timed_by(self.proxy.clock()))
    }

    /// How many exchanges changed something so far, or may have.
    pub(super) fn changes(&self) -> usize {
        self.proxy.look(|all| all.iter().filter(|exchange| self.server.changes(exchange)).count())
    }

    /// How many of them the server has answered.
    pub(super) fn arrived(&self) -> usize {
        let arrived = |exchange: &&Exchange| exchange.server.is_some() && self.server.changes(exchange);
        self.proxy.look(|all| all.iter().filter(arrived).count())
    }
}

/// One destination behind every name.
struct OneEndpoint {
    destination: Destination,
    secret: Option<SecretData>,
    policy: Arc<Policy>,
}

impl Endpoints for OneEndpoint {
    fn endpoint(&self, _: &str, _: &str) -> Result<Option<Destination>, String> {
        Ok(None)
    }

    fn module_default(&self, _: &str, _: &str) -> Result<Option<Destination>, String> {
        Ok(Some(self.destination.clone()))
    }

    fn secret(&self, _: &str, _: &str) -> Result<Option<SecretData>, String> {
        Ok(self.secret.clone())
    }

    fn policy(&self, _: &str) -> Arc<Policy> {
        self.policy.clone()
    }
}
