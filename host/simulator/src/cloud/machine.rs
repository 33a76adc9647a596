//! A simulated machine: its power, what it serves, and what happens to it.
//!
//! Locks: `status` may be held while the cloud's state is taken, never the other way round; `power`, `workload` and `serving` are held alone and shortly.

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::network::{Backend, Gate, Gated};
use super::record::{MachineSpec, MachineState, MachineStatus};
use super::{Cloud, boot, lock, network};
use crate::kubeadm::workload::Workload;

/// What can be done to a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Fault {
    Stop,
    Start,
    Kill,
    Fail,
    Freeze,
    Thaw,
    Lose,
    CutNetwork,
    RestoreNetwork,
}

/// From one start to the next.
#[derive(Clone, Default)]
pub(super) struct Power {
    /// Cancelled when the machine goes off.
    pub off: CancellationToken,
    /// Closed while it is frozen or its network is cut.
    pub gate: Gate,
}

/// An API server that the load balancer can forward to.
#[derive(Clone)]
pub(super) struct Serving {
    workload: Arc<Workload>,
    power: Power,
}

impl Serving {
    /// It takes connections and answers nothing.
    pub(super) fn is_silent(&self) -> bool {
        self.power.gate.is_closed()
    }

    /// Serves a connection until the peer is done, the machine goes off, or `stop`.
    pub(super) async fn serve<T>(self, stream: T, stop: CancellationToken)
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let io = Gated::new(stream, self.power.gate.clone());
        tokio::select! {
            () = self.workload.serve(io, CancellationToken::new()) => {}
            () = self.power.off.cancelled() => {}
            () = stop.cancelled() => {}
        }
    }
}

/// A machine's own address: connections go to its API server as long as that can be reached.
struct OwnAddress {
    machine: Arc<Machine>,
    off: CancellationToken,
    tasks: TaskTracker,
}

impl Backend for OwnAddress {
    fn take(&self, stream: TcpStream) {
        if let Some(serving) = self.machine.serving() {
            self.tasks.spawn(serving.serve(stream, self.off.child_token()));
        }
    }
}

pub(super) struct Machine {
    pub(super) spec: MachineSpec,
    cloud: Weak<Cloud>,
    own: Weak<Machine>,
    status: Mutex<MachineStatus>,
    power: Mutex<Power>,
    workload: Mutex<Option<Arc<Workload>>>,
    serving: Mutex<Option<Serving>>,
    silent_since: Mutex<Option<Instant>>,
    /// Its kubelet has started and has not seen its Node yet.
    pub(super) must_register: AtomicBool,
}

impl Machine {
    pub(super) fn new(cloud: Weak<Cloud>, spec: MachineSpec, status: MachineStatus) -> Arc<Machine> {
        Arc::new_cyclic(|own| Machine {
            spec,
            cloud,
            own: own.clone(),
            status: Mutex::new(status),
            power: Mutex::default(),
            workload: Mutex::default(),
            serving: Mutex::default(),
            silent_since: Mutex::default(),
            must_register: AtomicBool::new(false),
        })
    }

    /// What it knows of itself.
    pub(super) fn identity(&self) -> crate::kubeadm::Machine {
        crate::kubeadm::Machine {
            hostname: self.spec.hostname().to_owned(),
            addresses: vec![IpAddr::V4(self.spec.address)],
            provider_id: self.spec.provider_id(),
            zone: self.spec.failure_domain.clone(),
            kubelet_version: self.spec.kubernetes_version.clone(),
            cpus: self.spec.cpus,
            memory_mib: self.spec.memory_mib,
            lease_seconds: self.lease_seconds(),
        }
    }

    /// As long as two renewals, so that one may be late.
    pub(super) fn lease_seconds(&self) -> u64 {
        self.cloud.upgrade().map_or(40, |cloud| cloud.options.lease_renewal.as_secs().saturating_mul(2).max(40))
    }

    pub(super) fn status(&self) -> MachineStatus {
        lock(&self.status).clone()
    }

    pub(super) fn look<T>(&self, at: impl FnOnce(&MachineStatus) -> T) -> T {
        at(&lock(&self.status))
    }

    /// None while somebody changes it.
    pub(super) fn try_status(&self) -> Option<MachineStatus> {
        self.status.try_lock().ok().map(|status| status.clone())
    }

    /// What the load balancer can forward to.
    pub(super) fn serving(&self) -> Option<Serving> {
        lock(&self.serving).clone()
    }

    /// Its API server, where it can be reached.
    pub(super) fn reachable_workload(&self) -> Option<Arc<Workload>> {
        let reachable = self.look(MachineStatus::is_reachable);
        if reachable { lock(&self.workload).clone() } else { None }
    }

    /// From its last start on.
    pub(super) fn power(&self) -> Power {
        lock(&self.power).clone()
    }

    /// How long it has been silent.
    pub(super) fn silent_since(&self) -> Option<Instant> {
        *lock(&self.silent_since)
    }

    /// Changes the status, keeps it, and lets the load balancer and the Nodes follow.
    pub(super) fn change(&self, act: impl FnOnce(&mut MachineStatus)) {
        let Some(cloud) = self.cloud.upgrade() else {
            return;
        };
        let cluster;
        let heard;
        let at_once;
        {
            let mut status = lock(&self.status);
            let before = (status.is_reachable(), status.state);
            act(&mut status);
            let reachable = status.is_reachable();
            {
                let mut since = lock(&self.silent_since);
                if reachable {
                    *since = None;
                } else if since.is_none() {
                    *since = Some(Instant::now());
                }
            }
            let power = lock(&self.power).clone();
            power.gate.set_closed(status.frozen || status.cut);
            let serves = status.state == MachineState::Running && !status.cut;
            let workload = lock(&self.workload).clone().filter(|_| serves);
            *lock(&self.serving) = workload.map(|workload| Serving { workload, power });
            cloud.keep(self, &status);
            cluster = status.cluster.clone();
            heard = before != (reachable, status.state);
            // A machine that is back or says goodbye is heard at once; silence takes its time.
            at_once = reachable || status.orderly;
        }
        cloud.refresh_load_balancer(self);
        if let Some(cluster) = cluster.filter(|_| heard) {
            cloud.node_changed(&cluster, at_once);
        }
    }

    /// Adds lines to the console.
    pub(super) fn print(&self, text: &str) {
        if !text.is_empty() {
            lock(&self.status).print(text);
        }
    }

    /// Says why it does not become a node.
    pub(super) fn boot_failed(&self, reason: &str) {
        self.change(|status| {
            status.print(&format!("error: {reason}"));
            status.boot_error = Some(reason.to_owned());
        });
    }

    /// Its API server is up: the load balancer may forward to it, and it listens on its own address, where it has one of this computer's.
    pub(super) fn serve(&self, workload: Arc<Workload>) {
        *lock(&self.workload) = Some(workload);
        self.change(|_| {});
        let port = self.look(|status| status.control_plane.as_ref().map(|plane| plane.port));
        if let (true, Some(port), Some(machine), Some(cloud)) =
            (self.spec.listens, port, self.own.upgrade(), self.cloud.upgrade())
        {
            let off = lock(&self.power).off.clone();
            let target = SocketAddr::from((self.spec.address, port));
            let backend = Arc::new(OwnAddress { machine, off: off.clone(), tasks: cloud.tasks.clone() });
            cloud.spawn(async move {
                let (_open, receiver) = watch::channel(true);
                network::listen(target, None, receiver, backend, off).await;
            });
        }
    }

    /// Its API server is gone.
    pub(super) fn serve_no_more(&self) {
        *lock(&self.workload) = None;
        self.change(|_| {});
    }

    /// Runs a task until the machine goes off.
    fn spawn(&self, power: &Power, task: impl Future<Output = ()> + Send + 'static) {
        let off = power.off.clone();
        if let Some(cloud) = self.cloud.upgrade() {
            cloud.spawn(async move {
                tokio::select! {
                    () = task => {}
                    () = off.cancelled() => {}
                }
            });
        }
    }

    /// Starts it: a machine that has not been through its boot data boots, another one starts its services.
    pub(super) fn power_on(&self) {
        let (Some(cloud), Some(own)) = (self.cloud.upgrade(), self.own.upgrade()) else {
            return;
        };
        let power = Power::default();
        *lock(&self.power) = power.clone();
        let joined = self.look(|status| status.booted || status.node.is_some());
        if joined {
            self.change(|status| status.state = MachineState::Running);
            self.must_register.store(true, Ordering::SeqCst);
            self.spawn(&power, boot::start_services(cloud, own));
        } else {
            self.change(|status| {
                *status = MachineStatus { console: std::mem::take(&mut status.console), ..MachineStatus::default() };
            });
            self.spawn(&power, boot::boot(cloud, own, power.gate.clone()));
        }
    }

    /// Turns it off.
    fn power_off(&self, state: MachineState, orderly: bool) {
        lock(&self.power).off.cancel();
        *lock(&self.workload) = None;
        self.change(|status| {
            status.state = state;
            status.orderly = orderly;
            status.frozen = false;
        });
    }

    /// Goes on where the process before this one ended.
    pub(super) fn resume(&self) -> impl Future<Output = ()> + Send + 'static {
        let own = self.own.upgrade();
        async move {
            let Some(machine) = own else {
                return;
            };
            match machine.look(|status| status.state) {
                MachineState::Booting | MachineState::Running => {
                    let (frozen, cut) = machine.look(|status| (status.frozen, status.cut));
                    machine.power_on();
                    if frozen || cut {
                        machine.change(|status| (status.frozen, status.cut) = (frozen, cut));
                    }
                }
                MachineState::Stopped | MachineState::Failed => machine.change(|_| {}),
                MachineState::Deleting => machine.vanish(),
            }
        }
    }

    /// Deletes it: off at once, gone a moment later.
    pub(super) fn delete(&self) {
        self.power_off(MachineState::Deleting, false);
        let (Some(cloud), Some(own)) = (self.cloud.upgrade(), self.own.upgrade()) else {
            return;
        };
        cloud.spawn(async move { own.vanish() });
    }

    fn vanish(&self) {
        let Some(cloud) = self.cloud.upgrade() else {
            return;
        };
        cloud.leave_cluster(self);
        cloud.remove_machine(self);
    }

    /// Does something to it. False where that makes no sense in the state it is in.
    pub(super) fn strike(&self, fault: Fault) -> bool {
        let state = self.look(|status| status.state);
        let on = matches!(state, MachineState::Booting | MachineState::Running);
        match fault {
            _ if state == MachineState::Deleting => return false,
            Fault::Stop if on => self.power_off(MachineState::Stopped, true),
            Fault::Kill if on => self.power_off(MachineState::Stopped, false),
            Fault::Fail if state != MachineState::Failed => self.power_off(MachineState::Failed, false),
            Fault::Start if !on => self.power_on(),
            Fault::Freeze if on => self.change(|status| status.frozen = true),
            Fault::Thaw => self.change(|status| status.frozen = false),
            Fault::CutNetwork => self.change(|status| status.cut = true),
            Fault::RestoreNetwork => self.change(|status| status.cut = false),
            Fault::Lose => {
                self.power_off(MachineState::Deleting, false);
                self.vanish();
            }
            // Stopping what is off, starting what is on: nothing to do.
            Fault::Stop | Fault::Kill | Fault::Fail | Fault::Start => {}
            Fault::Freeze => return false,
        }
        true
    }
}
