//! Connections to workload clusters.
//!
//! A connection exists from the first time that a decision asks for it until its Cluster goes; while there is no
//! kubeconfig Secret it costs nothing but its entry. It is probed every ten seconds, and at once when a watch on it breaks
//! off; two failed probes in a row take it down, and it comes up again by itself (pauses from 0.2 s). A changed kubeconfig, or a credential that is refused,
//! connects anew. A change of state brings back every decision that asked.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use capstan_api::ObjectKey;
use capstan_core::turn::Fence;
use capstan_core::view::{Connection, Place};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::egress::{self, Egress, EgressError};
use crate::kubeconfig;
use crate::mirror::{Listener, Mirror};
use crate::now_ms;
use crate::wire::{Wire, WireError};

/// Time between probes.
const PROBE_EVERY: Duration = Duration::from_secs(10);
/// How long a probe may take.
const PROBE_PATIENCE: Duration = Duration::from_secs(5);
/// First pause between attempts to connect.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// Longest pause before the cluster has answered for the first time, and after it has.
const LONGEST_PAUSES: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(30));
/// A cluster that comes up is not called unreachable before it had this long.
const GRACE: Duration = Duration::from_secs(5);
/// Failed probes in a row that take a connection down.
const TOLERATED: u32 = 2;

/// Told when the state of a connection changes: namespace and name of the Cluster.
pub type OnState = Arc<dyn Fn(&str, &str) + Send + Sync>;

/// All connections.
pub struct Workloads {
    management: Mirror,
    egress: Arc<dyn Egress>,
    on_state: OnState,
    listener: Listener,
    fence: Fence,
    links: Mutex<HashMap<(String, String), Arc<Link>>>,
}

struct Link {
    namespace: String,
    cluster: String,
    state: Mutex<State>,
    /// Look at once: the kubeconfig may have changed, or the connection may be broken.
    poke: Arc<Notify>,
    task: Mutex<Option<AbortHandle>>,
}

struct State {
    connection: Connection,
    mirror: Option<Mirror>,
}

impl Link {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(task) = self.task.lock().unwrap_or_else(PoisonError::into_inner).take() {
            task.abort();
        }
    }
}

/// Name of the Secret with a cluster's kubeconfig.
pub fn kubeconfig_secret(cluster: &str) -> String {
    format!("{cluster}-kubeconfig")
}

impl Workloads {
    /// None yet. `listener` learns what the caches of workload clusters notice; nothing is changed in them while the fence
    /// says no.
    pub fn new(
        management: Mirror,
        egress: Arc<dyn Egress>,
        on_state: OnState,
        listener: Listener,
        fence: Fence,
    ) -> Self {
        Self { management, egress, on_state, listener, fence, links: Mutex::default() }
    }

    fn links(&self) -> MutexGuard<'_, HashMap<(String, String), Arc<Link>>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn link(&self, namespace: &str, cluster: &str) -> Arc<Link> {
        let mut links = self.links();
        links
            .entry((namespace.to_owned(), cluster.to_owned()))
            .or_insert_with(|| {
                let link = Arc::new(Link {
                    namespace: namespace.to_owned(),
                    cluster: cluster.to_owned(),
                    state: Mutex::new(State { connection: Connection::Unknown, mirror: None }),
                    poke: Arc::new(Notify::new()),
                    task: Mutex::default(),
                });
                let keeper = Keeper {
                    link: Arc::downgrade(&link),
                    poke: link.poke.clone(),
                    namespace: namespace.to_owned(),
                    cluster: cluster.to_owned(),
                    management: self.management.clone(),
                    egress: self.egress.clone(),
                    fence: self.fence.clone(),
                    on_state: self.on_state.clone(),
                };
                let task = tokio::spawn(keeper.keep(self.listener.clone()));
                *link.task.lock().unwrap_or_else(PoisonError::into_inner) = Some(task.abort_handle());
                link
            })
            .clone()
    }

    /// The state of a connection; asking for it is what begins it.
    pub fn connection(&self, namespace: &str, cluster: &str) -> Connection {
        self.link(namespace, cluster).state().connection.clone()
    }

    /// The caches of a workload cluster.
    ///
    /// # Errors
    /// While it is not connected; the text says why.
    pub fn mirror(&self, namespace: &str, cluster: &str) -> Result<Mirror, String> {
        let link = self.link(namespace, cluster);
        let state = link.state();
        match (&state.mirror, &state.connection) {
            (Some(mirror), _) => Ok(mirror.clone()),
            (None, Connection::Down { reason, .. }) => Err(reason.clone()),
            (None, _) => Err("not connected yet".into()),
        }
    }

    /// The kubeconfig Secret of this Cluster may have changed, or its API server may have gone: look at once.
    pub fn poke(&self, namespace: &str, cluster: &str) {
        if let Some(link) = self.links().get(&(namespace.to_owned(), cluster.to_owned())) {
            link.poke.notify_one();
        }
    }

    /// All kubeconfig Secrets may be known now, or another policy says where they may lead: look at once.
    pub fn poke_all(&self) {
        for link in self.links().values() {
            link.poke.notify_one();
        }
    }

    /// The Cluster is gone.
    pub fn forget(&self, namespace: &str, cluster: &str) {
        let link = self.links().remove(&(namespace.to_owned(), cluster.to_owned()));
        drop(link);
    }

    /// How many connections there are, and how many of them are up.
    pub fn count(&self) -> (usize, usize) {
        let links = self.links();
        (links.len(), links.values().filter(|link| link.state().connection == Connection::Up).count())
    }
}

/// Reads the kubeconfig from the cache; `None` while there is none.
fn read_kubeconfig(management: &Mirror, namespace: &str, cluster: &str) -> Option<Vec<u8>> {
    let key = ObjectKey::new("", "Secret", namespace, kubeconfig_secret(cluster));
    let secret = management.get(&key).ok()??;
    BASE64_STANDARD.decode(secret.str_at("/data/value")?).ok()
}

/// Keeps one connection until its [`Link`] is dropped, which ends the task.
struct Keeper {
    link: Weak<Link>,
    poke: Arc<Notify>,
    namespace: String,
    cluster: String,
    management: Mirror,
    egress: Arc<dyn Egress>,
    fence: Fence,
    on_state: OnState,
}

/// Why a connection that was up is up no more.
enum Left {
    NewKubeconfig,
    Lost(String),
}

impl Keeper {
    async fn keep(self, listener: Listener) {
        let mut attempts = Attempts::default();
        loop {
            let Some(kubeconfig) = read_kubeconfig(&self.management, &self.namespace, &self.cluster) else {
                self.poke.notified().await;
                attempts = Attempts::default();
                continue;
            };
            let connected = match self.connect(&kubeconfig).await {
                Ok((wire, server)) => match probe(&wire).await {
                    Ok(()) => Ok((wire, server)),
                    Err(error) => Err((why(&error), false)),
                },
                Err(refused) => Err(refused),
            };
            let (wire, server) = match connected {
                Ok(connected) => connected,
                Err((reason, for_good)) => {
                    if for_good || attempts.failed() {
                        self.set(Err(reason));
                    }
                    self.poked(attempts.pause()).await;
                    continue;
                }
            };
            attempts = Attempts::answered();
            let place = Place::Workload { namespace: self.namespace.clone(), cluster: self.cluster.clone() };
            self.set(Ok(Mirror::new(place, wire.clone(), listener.clone())));
            tracing::info!(namespace = %self.namespace, cluster = %self.cluster, "connected to the workload cluster");
            match self.stay(&wire, &server, &kubeconfig).await {
                Left::NewKubeconfig => {}
                Left::Lost(reason) => {
                    tracing::info!(namespace = %self.namespace, cluster = %self.cluster, %reason, "lost the workload cluster");
                    self.set(Err(reason));
                }
            }
        }
    }

    /// Probes a connection that is up until it is lost.
    async fn stay(&self, wire: &Wire, server: &http::Uri, kubeconfig: &[u8]) -> Left {
        let mut failures = 0;
        let mut next = PROBE_EVERY;
        loop {
            self.poked(next).await;
            match read_kubeconfig(&self.management, &self.namespace, &self.cluster) {
                Some(now) if now == kubeconfig => {}
                Some(_) => return Left::NewKubeconfig,
                None => return Left::Lost("its kubeconfig Secret is gone".into()),
            }
            // A policy that was taken back is not outlived by a connection that it allowed.
            if let Err(EgressError::Refused(reason)) = self.may_reach(server).await {
                return Left::Lost(reason);
            }
            match probe(wire).await {
                Ok(()) => (failures, next) = (0, PROBE_EVERY),
                Err(error) if error.is_unauthorized() => return Left::Lost(why(&error)),
                Err(error) => {
                    failures += 1;
                    next = Duration::from_secs(1);
                    if failures >= TOLERATED {
                        return Left::Lost(why(&error));
                    }
                }
            }
        }
    }

    /// A client of the API server that the kubeconfig describes; or why not, and whether only a change can help.
    async fn connect(&self, kubeconfig: &[u8]) -> Result<(Wire, http::Uri), (String, bool)> {
        let config = kubeconfig::config(kubeconfig).map_err(|error| (error.to_string(), true))?;
        let server = config.cluster_url.clone();
        self.may_reach(&server).await.map_err(|error| (error.to_string(), matches!(error, EgressError::Refused(_))))?;
        let client = egress::client(&self.egress, &self.namespace, config).map_err(|reason| (reason, true))?;
        Ok((Wire::new(client).fenced(self.fence.clone()), server))
    }

    /// Whether the policy allows the API server at all.
    async fn may_reach(&self, server: &http::Uri) -> Result<(), EgressError> {
        let (host, port) = egress::host_and_port(server);
        let told = |why: String| format!("the kubeconfig's server {server} may not be reached: {why}");
        match self.egress.addresses(&self.namespace, &host, port).await {
            Ok(_) => Ok(()),
            Err(EgressError::Refused(why)) => Err(EgressError::Refused(told(why))),
            Err(unresolved) => Err(unresolved),
        }
    }

    /// Waits for a poke, at most this long.
    async fn poked(&self, at_most: Duration) {
        let _ = tokio::time::timeout(at_most, self.poke.notified()).await;
    }

    fn set(&self, outcome: Result<Mirror, String>) {
        let Some(link) = self.link.upgrade() else { return };
        let dropped = {
            let mut state = link.state();
            let (connection, mirror) = match outcome {
                Ok(mirror) => (Connection::Up, Some(mirror)),
                Err(reason) => {
                    let since = match &state.connection {
                        Connection::Down { reason: before, .. } if *before == reason => return,
                        Connection::Down { since, .. } => *since,
                        _ => now_ms(),
                    };
                    (Connection::Down { since, reason }, None)
                }
            };
            state.connection = connection;
            std::mem::replace(&mut state.mirror, mirror)
        };
        drop(dropped);
        (self.on_state)(&link.namespace, &link.cluster);
    }
}

async fn probe(wire: &Wire) -> Result<(), WireError> {
    match tokio::time::timeout(PROBE_PATIENCE, wire.probe()).await {
        Ok(outcome) => outcome,
        Err(_) => Err(WireError::Silent(format!("no answer within {} s", PROBE_PATIENCE.as_secs()))),
    }
}

fn why(error: &WireError) -> String {
    match error {
        WireError::Silent(reason) => reason.clone(),
        other => other.to_string(),
    }
}

/// How often it failed, and what follows from it.
struct Attempts {
    began: Instant,
    pause: Duration,
    longest: Duration,
    grace: Duration,
}

impl Default for Attempts {
    fn default() -> Self {
        Self { began: Instant::now(), pause: FIRST_PAUSE, longest: LONGEST_PAUSES.0, grace: GRACE }
    }
}

impl Attempts {
    fn answered() -> Self {
        Self { longest: LONGEST_PAUSES.1, grace: Duration::ZERO, ..Self::default() }
    }

    /// Whether it is time to call the cluster unreachable.
    fn failed(&mut self) -> bool {
        self.began.elapsed() >= self.grace
    }

    fn pause(&mut self) -> Duration {
        let pause = self.pause;
        self.pause = pause.mul_f64(1.5).min(self.longest);
        pause.mul_f64(rand::random_range(1.0..1.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_cluster_that_comes_up_is_tried_quickly_and_not_called_down_at_once() {
        let mut attempts = Attempts::default();
        assert!(!attempts.failed());
        let first: Duration = (0..8).map(|_| attempts.pause()).sum();
        assert!(first < Duration::from_secs(11), "{first:?}");
        assert!((0..40).map(|_| attempts.pause()).all(|p| p <= LONGEST_PAUSES.0.mul_f64(1.1)));
        tokio::time::advance(GRACE).await;
        assert!(attempts.failed());
        assert!(Attempts::answered().failed(), "one that was up is called down at once");
    }
}
