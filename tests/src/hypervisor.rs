//! What stands in for hypervisors: machines that a test server shows as running boot, for good and for all to see.
//!
//! Whoever is started there boots as its cloud would have it ([`Cloud::boot`]); whoever is stopped or taken away there goes off.
//! Connections to an endpoint go to machines, as with kube-vip or a load balancer.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::machines::{Forward, Machines};

/// How often a test server, which has no events, is looked at.
const LOOK: Duration = Duration::from_millis(50);
/// The port of API servers.
pub const PORT: u16 = 6443;

/// A test server whose machines are to run.
pub trait Cloud: Send + Sync + 'static {
    /// Its machines now.
    ///
    /// # Errors
    /// When it does not answer.
    fn shown(&self) -> Result<Vec<Shown>>;

    /// Boots a machine that runs there and not here.
    ///
    /// # Errors
    /// When no hypervisor would have booted it.
    fn boot(&self, machines: &Machines, shown: &Shown) -> Result<Guest>;

    /// Where connections go that are made to an endpoint of the cloud's own, such as a load balancer.
    ///
    /// # Errors
    /// When the test server does not answer.
    fn endpoints(&self) -> Result<Vec<Endpoint>> {
        Ok(Vec::new())
    }
}

/// A machine as a test server shows it.
#[derive(Clone, Debug)]
pub struct Shown {
    /// What it is called here, of `a-z0-9-`.
    pub name: String,
    /// Tells it from one that had its name before.
    pub id: String,
    /// It is switched on.
    pub running: bool,
    /// All that is told of it.
    pub says: Value,
}

/// A machine that was booted.
#[derive(Clone, Debug)]
pub struct Guest {
    /// Its host name.
    pub hostname: String,
    /// As [`Shown::id`].
    pub id: String,
    /// Its address.
    pub address: Ipv4Addr,
    /// The first-boot data that it carried out.
    pub user_data: Vec<u8>,
    /// It is switched on.
    pub running: bool,
}

/// An address that leads to machines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Where connections are taken.
    pub listen: SocketAddr,
    /// Machines and ports that it leads to.
    pub targets: Vec<(String, u16)>,
}

/// A running stand-in; it ends with this.
pub struct Hypervisor {
    shared: Arc<Shared>,
    watcher: Option<JoinHandle<()>>,
    served: Vec<Forward>,
}

struct Shared {
    cloud: Arc<dyn Cloud>,
    machines: Machines,
    /// What runs here, by name.
    guests: Mutex<BTreeMap<String, Guest>>,
    /// What no hypervisor would have booted, and why.
    problems: Mutex<Vec<String>>,
    /// The cloud's own endpoints, where they lead to, and what forwards.
    endpoints: Mutex<BTreeMap<SocketAddr, (Targets, Forward)>>,
    stop: AtomicBool,
}

/// Machines and ports that may change.
type Targets = Arc<Mutex<Vec<(String, u16)>>>;

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hypervisor {
    /// Looks after the machines of a test server.
    pub fn start(cloud: Arc<dyn Cloud>, machines: Machines) -> Self {
        let shared = Arc::new(Shared {
            cloud,
            machines,
            guests: Mutex::default(),
            problems: Mutex::default(),
            endpoints: Mutex::default(),
            stop: AtomicBool::new(false),
        });
        let watcher = std::thread::spawn({
            let shared = shared.clone();
            move || {
                while !shared.stop.load(Ordering::SeqCst) {
                    if let Err(error) = shared.look() {
                        let (problem, mut problems) = (format!("{error:#}"), lock(&shared.problems));
                        // It is tried again, and told once.
                        if problems.last() != Some(&problem) {
                            problems.push(problem);
                        }
                    }
                    std::thread::sleep(LOOK);
                }
            }
        });
        Self { shared, watcher: Some(watcher), served: Vec::new() }
    }

    /// Connections to this address go to a machine whose host name begins with `prefix`, as those that kube-vip runs on.
    ///
    /// # Errors
    /// When the address is not this computer's, or taken.
    pub fn serve_endpoint(&mut self, address: Ipv4Addr, prefix: &str) -> Result<()> {
        let (shared, prefix) = (Arc::downgrade(&self.shared), prefix.to_owned());
        let targets = move || {
            let Some(shared) = shared.upgrade() else { return Vec::new() };
            let guests = lock(&shared.guests);
            let serving = guests.values().filter(|guest| guest.running && guest.hostname.starts_with(&prefix));
            serving.map(|guest| SocketAddr::from((guest.address, PORT))).collect()
        };
        let forward = self.shared.machines.forward(SocketAddr::from((address, PORT)), targets)?;
        self.served.push(forward);
        Ok(())
    }

    /// The machines that were booted and are still there, by name.
    pub fn guests(&self) -> BTreeMap<String, Guest> {
        lock(&self.shared.guests).clone()
    }

    /// What no hypervisor would have booted so far, and why. Nothing, unless a test provokes it.
    pub fn problems(&self) -> Vec<String> {
        lock(&self.shared.problems).clone()
    }

    /// What the machines print, and why those that did not become Nodes did not: for messages of tests.
    pub fn describe(&self) -> String {
        let machines = self.shared.machines.all().unwrap_or_default();
        let mut text: Vec<String> = machines
            .iter()
            .map(|machine| {
                let console: Vec<&str> =
                    machine["console"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
                let last = console.len().saturating_sub(4);
                format!(
                    "{} {} node {} {} | {}",
                    machine["name"],
                    machine["state"],
                    machine["node"],
                    machine["bootError"],
                    console.get(last..).unwrap_or_default().join(" | ")
                )
            })
            .collect();
        text.extend(self.problems().into_iter().map(|problem| format!("hypervisor: {problem}")));
        text.join("\n")
    }
}

impl Drop for Hypervisor {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        if let Some(watcher) = self.watcher.take() {
            let _ = watcher.join();
        }
    }
}

impl Shared {
    /// Brings what runs here in step with what the test server shows.
    fn look(self: &Arc<Self>) -> Result<()> {
        let shown = self.cloud.shown()?;
        let known = lock(&self.guests).clone();
        for (name, guest) in &known {
            let runs =
                shown.iter().find(|shown| shown.name == *name && shown.id == guest.id).map(|shown| shown.running);
            match (runs, guest.running) {
                (None, _) => {
                    self.machines.remove(name)?;
                    lock(&self.guests).remove(name);
                }
                (Some(runs), running) if runs != running => {
                    self.machines.strike(name, if runs { "start" } else { "stop" })?;
                    if let Some(guest) = lock(&self.guests).get_mut(name) {
                        guest.running = runs;
                    }
                }
                _ => {}
            }
        }
        let known: Vec<String> = lock(&self.guests).keys().cloned().collect();
        for shown in shown.iter().filter(|shown| shown.running && !known.contains(&shown.name)) {
            let guest = self.cloud.boot(&self.machines, shown);
            let guest = guest.with_context(|| format!("{} cannot boot", shown.name))?;
            lock(&self.guests).insert(shown.name.clone(), guest);
        }
        self.lead()
    }

    /// Brings what forwards in step with the cloud's endpoints.
    fn lead(self: &Arc<Self>) -> Result<()> {
        let wanted = self.cloud.endpoints()?;
        let mut there = lock(&self.endpoints);
        there.retain(|listen, _| wanted.iter().any(|endpoint| endpoint.listen == *listen));
        for endpoint in wanted {
            if let Some((targets, _)) = there.get(&endpoint.listen) {
                *lock(targets) = endpoint.targets;
                continue;
            }
            let targets: Targets = Arc::new(Mutex::new(endpoint.targets));
            let (shared, of) = (Arc::downgrade(self), targets.clone());
            let addresses = move || {
                let Some(shared) = shared.upgrade() else { return Vec::new() };
                let guests = lock(&shared.guests);
                let running = |name: &String| guests.get(name).filter(|guest| guest.running);
                let targets = lock(&of);
                targets
                    .iter()
                    .filter_map(|(name, port)| Some(SocketAddr::from((running(name)?.address, *port))))
                    .collect()
            };
            let forward = self.machines.forward(endpoint.listen, addresses)?;
            there.insert(endpoint.listen, (targets, forward));
        }
        Ok(())
    }
}
