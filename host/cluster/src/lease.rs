//! Who may change things: a Lease (`coordination.k8s.io`).
//!
//! The holder renews it every five seconds for fifteen. [`Lease::may_change`] turns false three seconds before anybody
//! else may believe that the holder is gone, so that two processes never change things at the same time as long as
//! their clocks run at about the same speed (they need not show the same time). The deadline is told by the clock that goes
//! on while the machine sleeps, so a process that is frozen, or whose machine was, finds itself without the Lease.
//!
//! What the Lease cannot do is call back what has left. [`Lease::fence`] is asked when a connection takes the body of a
//! changing request, so that between the answer and the kernel lie microseconds and no waiting; the kernel delivers for 15
//! seconds at most. A request that was frozen in just that moment, or is held up on the way, does arrive late: in
//! Kubernetes it then meets a resourceVersion, uid or name that has moved on, and for what is outside, the next holder
//! believes in no absence before such requests have arrived (`capstan_core::record`).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use capstan_api::{Gvk, Object};
use capstan_core::turn::Fence;
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::kinds::{Resource, builtin};
use crate::wire::{Wire, WireError};

pub use capstan_api::well_known::SYSTEM_NAMESPACE;

/// How long a Lease is valid without renewal.
pub const DURATION: Duration = Duration::from_secs(15);
/// How often it is renewed.
const RENEW_EVERY: Duration = Duration::from_secs(5);
/// How often it is tried while somebody else holds it, or the API server does not answer.
const TRY_EVERY: Duration = Duration::from_secs(1);
/// How much earlier than others the holder stops believing in it.
const MARGIN: Duration = Duration::from_secs(3);

/// Time since the machine was started, asleep or awake.
fn now() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or_default())
}

/// A Lease that this process holds, or tries to hold. Cheap to clone; it is given up when [`Lease::release`] is called.
#[derive(Clone)]
pub struct Lease {
    shared: Arc<Shared>,
}

struct Shared {
    wire: Wire,
    name: String,
    identity: String,
    /// By [`now`].
    until: Mutex<Option<Duration>>,
    held: watch::Sender<bool>,
    task: Mutex<Option<AbortHandle>>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(task) = self.task.lock().unwrap_or_else(PoisonError::into_inner).take() {
            task.abort();
        }
    }
}

/// What was seen of somebody else's Lease.
#[derive(Default)]
struct Other {
    version: String,
    since: Option<Instant>,
}

impl Lease {
    /// Begins to try for the Lease of this name in [`SYSTEM_NAMESPACE`]. A process that comes back with the same
    /// identity has it at once; the caller sees to it that no two processes have one.
    pub fn start(wire: Wire, name: &str, identity: &str) -> Self {
        let shared = Arc::new(Shared {
            wire,
            name: name.to_owned(),
            identity: identity.to_owned(),
            until: Mutex::new(None),
            held: watch::Sender::new(false),
            task: Mutex::new(None),
        });
        let weak = Arc::downgrade(&shared);
        let task = tokio::spawn(async move {
            let mut other = Other::default();
            loop {
                let Some(shared) = weak.upgrade() else { return };
                let began = now();
                let pause = match shared.renew(&mut other).await {
                    Ok(true) => {
                        *shared.until.lock().unwrap_or_else(PoisonError::into_inner) = Some(began + DURATION - MARGIN);
                        RENEW_EVERY
                    }
                    Ok(false) => {
                        *shared.until.lock().unwrap_or_else(PoisonError::into_inner) = None;
                        TRY_EVERY
                    }
                    Err(error) => {
                        tracing::warn!(lease = %shared.name, %error, "cannot renew the Lease");
                        TRY_EVERY
                    }
                };
                // Told each time: who waits may have found out before that it ran out.
                shared.held.send_replace(shared.may_change());
                drop(shared);
                tokio::time::sleep(pause).await;
            }
        });
        *shared.task.lock().unwrap_or_else(PoisonError::into_inner) = Some(task.abort_handle());
        Self { shared }
    }

    /// Whether this process may change something now.
    pub fn may_change(&self) -> bool {
        self.shared.may_change()
    }

    /// The same, to be asked from elsewhere.
    pub fn fence(&self) -> Fence {
        let shared = self.shared.clone();
        Arc::new(move || shared.may_change())
    }

    /// Who holds it when we do.
    pub fn identity(&self) -> &str {
        &self.shared.identity
    }

    /// Waits until this process holds it.
    pub async fn held(&self) {
        self.until_it_is(true).await;
    }

    /// Waits until this process does not hold it.
    pub async fn lost(&self) {
        self.until_it_is(false).await;
    }

    async fn until_it_is(&self, wanted: bool) {
        let mut told = self.shared.held.subscribe();
        loop {
            told.mark_unchanged();
            if self.may_change() == wanted || told.changed().await.is_err() {
                return;
            }
        }
    }

    /// Gives it up, so that the next one need not wait.
    pub async fn release(&self) {
        if let Some(task) = self.shared.task.lock().unwrap_or_else(PoisonError::into_inner).take() {
            task.abort();
        }
        if !self.may_change() {
            return;
        }
        *self.shared.until.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.shared.held.send_replace(false);
        if let Err(error) = self.shared.give_up().await {
            tracing::debug!(%error, "the Lease was not given up; it ends by itself");
        }
    }
}

fn resource() -> Result<Resource, WireError> {
    builtin("coordination.k8s.io", "Lease")
        .ok_or_else(|| WireError::Garbled("Lease is not in the table of kinds".into()))
}

fn micro_time() -> String {
    let now = jiff::Timestamp::now();
    now.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

impl Shared {
    fn may_change(&self) -> bool {
        self.until.lock().unwrap_or_else(PoisonError::into_inner).is_some_and(|until| now() < until)
    }

    /// Takes or renews it. `false` when somebody else has it.
    async fn renew(&self, other: &mut Other) -> Result<bool, WireError> {
        let resource = resource()?;
        let Some(mut lease) = self.wire.get(&resource, SYSTEM_NAMESPACE, &self.name).await? else {
            return self.create(&resource).await;
        };
        let holder = lease.str_at("/spec/holderIdentity").unwrap_or_default().to_owned();
        let ours = holder == self.identity;
        if !ours && !holder.is_empty() {
            // Others' clocks are not trusted: what counts is that it did not change for its duration while we looked.
            let version = lease.resource_version().to_owned();
            if other.version != version {
                *other = Other { version, since: Some(Instant::now()) };
            }
            let seconds = lease.int_at("/spec/leaseDurationSeconds").unwrap_or(15).clamp(1, 3600).unsigned_abs();
            if other.since.is_none_or(|since| since.elapsed() < Duration::from_secs(seconds)) {
                return Ok(false);
            }
            tracing::info!(lease = %self.name, %holder, "the holder of the Lease is gone; taking it over");
        }
        let stamp = micro_time();
        if !ours {
            lease.set("/spec/acquireTime", stamp.clone().into());
            let transitions = lease.int_at("/spec/leaseTransitions").unwrap_or_default();
            lease.set("/spec/leaseTransitions", json!(transitions + 1));
        }
        lease.set("/spec/holderIdentity", self.identity.clone().into());
        lease.set("/spec/leaseDurationSeconds", json!(DURATION.as_secs()));
        lease.set("/spec/renewTime", stamp.into());
        match self.wire.replace(&resource, &lease).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_conflict() => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn create(&self, resource: &Resource) -> Result<bool, WireError> {
        let mut lease = Object::new(&Gvk::new("coordination.k8s.io", "v1", "Lease"), SYSTEM_NAMESPACE, &self.name);
        let stamp = micro_time();
        lease.set(
            "/spec",
            json!({"holderIdentity": self.identity, "leaseDurationSeconds": DURATION.as_secs(),
                   "acquireTime": stamp, "renewTime": stamp, "leaseTransitions": 0}),
        );
        match self.wire.create(resource, &lease).await {
            Ok(_) => Ok(true),
            Err(error) if error.already_exists() => Ok(false),
            Err(error) if error.is_not_found() => {
                if let Some(namespaces) = builtin("", "Namespace") {
                    let namespace = Object::new(&namespaces.gvk(), "", SYSTEM_NAMESPACE);
                    match self.wire.create(&namespaces, &namespace).await {
                        Ok(_) => {}
                        Err(error) if error.already_exists() => {}
                        Err(error) => return Err(error),
                    }
                }
                self.wire.create(resource, &lease).await.map(|_| true)
            }
            Err(error) => Err(error),
        }
    }

    async fn give_up(&self) -> Result<(), WireError> {
        let resource = resource()?;
        let Some(mut lease) = self.wire.get(&resource, SYSTEM_NAMESPACE, &self.name).await? else { return Ok(()) };
        if lease.str_at("/spec/holderIdentity") == Some(self.identity.as_str()) {
            lease.set("/spec/holderIdentity", json!(""));
            lease.set("/spec/leaseDurationSeconds", json!(1));
            self.wire.replace(&resource, &lease).await?;
        }
        Ok(())
    }
}
