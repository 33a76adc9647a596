//! The simulated cloud.
//!
//! Plain HTTP on loopback, JSON, base path `/v1`. Names are `[a-z0-9.-]+` (`<namespace>.<object>` by convention); every resource carries an `owner`. Errors are
//! `{"error": {"code", "message", "field"?}}`.
//!
//! | Request | Does |
//! |---|---|
//! | `POST /v1/load-balancers {name, owner, port}` | 201; an address of 127.64.0.0/10 of its own; 409 where the name is taken |
//! | `GET /v1/load-balancers[?owner=K]`, `GET`, `DELETE /v1/load-balancers/{name}` | list, read, remove (204) |
//! | `POST /v1/machines {name, owner, loadBalancer?, controlPlane, failureDomain?, cpus, memoryMiB, kubernetesVersion?, userData, userDataFormat, address?, providerID?}` | 201 (state `booting`) |
//! | `GET /v1/machines[?owner=K]`, `GET`, `DELETE /v1/machines/{name}` | list, read, remove (202, then 404) |
//! | `POST /v1/machines/{name}/faults {fault}` | `stop`, `start`, `kill`, `fail`, `freeze`, `thaw`, `lose`, `cut-network`, `restore-network` |
//! | `GET`, `PUT`, `DELETE /v1/faults` | faults of the whole cloud: `{bootDelay, api: {status, delay, count, carriedOut, methods}}` |
//! | `GET /v1/clusters` | the workload clusters that exist, with their endpoint, nodes and control-plane machines |
//!
//! A load balancer forwards to the API servers of the control-plane machines attached to it; while there is none that runs and can be reached, connections
//! are refused. `stop` is orderly (the Node says that it shuts down), `kill` cuts the power, `fail` breaks the machine, `freeze` makes it answer nothing,
//! `lose` makes it vanish without a trace. Faults of the whole cloud end with the process, the others are kept.
//!
//! A machine may be one of another cloud, which a test stands in for: its `address` is then given, a loopback or private one of this computer, and its API
//! server listens there by itself; `providerID` is what that cloud would write into its Node (empty: nothing).
//!
//! With a state directory everything is there again after a restart, a kill -9 included: machines and load balancers with their names, addresses and boot
//! data, workload clusters with their objects; what was booting boots anew.

mod api;
mod boot;
mod faults;
mod journal;
mod kubelets;
mod machine;
mod network;
mod nodes;
mod record;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use capstan_apiserver::{Database, Store, StoreError};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use faults::Faults;
use journal::{Contents, Journal};
use machine::Machine;
use network::{Addresses, Backend, Turn};
use record::{LoadBalancerRecord, MachineSpec, MachineStatus};

pub use journal::JournalError;

/// How a simulated cloud is set up.
#[derive(Clone, Debug)]
pub struct SimulatorOptions {
    /// Where its HTTP API listens; port 0 takes a free one.
    pub listen: SocketAddr,
    /// The directory it keeps its state in; none: in memory only.
    pub state: Option<PathBuf>,
    /// How long a machine takes from order to running.
    pub boot_delay: Duration,
    /// How long a machine may be silent until its Node is `Unknown`.
    pub node_grace: Duration,
    /// How often Nodes renew their Leases. Liveness does not depend on it: the cloud knows which machines live.
    pub lease_renewal: Duration,
}

impl Default for SimulatorOptions {
    fn default() -> Self {
        SimulatorOptions {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            state: None,
            boot_delay: Duration::ZERO,
            node_grace: Duration::from_secs(40),
            lease_renewal: Duration::from_secs(300),
        }
    }
}

/// Why a simulated cloud cannot start.
#[derive(Debug, thiserror::Error)]
pub enum SimulatorError {
    /// Its address cannot be listened on.
    #[error(
        "the simulated cloud cannot listen on {address}: {source}; choose another address or stop what listens there"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// Its own state cannot be used.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The state of the workload clusters cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A simulated cloud that runs. It ends when it is dropped, or with [`Simulator::shutdown`].
pub struct Simulator {
    cloud: Arc<Cloud>,
    address: SocketAddr,
}

impl Simulator {
    /// Starts a cloud, with what its state directory holds. Must be called inside a tokio runtime.
    ///
    /// Raises the process's soft limit of open files to its hard limit: each load balancer and each connection takes one.
    pub async fn start(options: SimulatorOptions) -> Result<Simulator, SimulatorError> {
        raise_file_limit();
        let listen = |source| SimulatorError::Listen { address: options.listen, source };
        let listener = TcpListener::bind(options.listen).await.map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let (journal, contents) = match &options.state {
            Some(directory) => {
                let (journal, contents) = Journal::open(directory)?;
                (Some(journal), contents)
            }
            None => (None, Contents::default()),
        };
        let database = match &options.state {
            Some(directory) => Some(Database::open(&directory.join("workloads.redb"))?),
            None => None,
        };
        let cloud = Arc::new_cyclic(|own| Cloud {
            own: own.clone(),
            options,
            state: Mutex::new(State { journal, ..State::default() }),
            database: Mutex::new(database),
            clusters: Mutex::default(),
            faults: Mutex::default(),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        });
        cloud.resume(contents);
        cloud.spawn(api::serve(cloud.clone(), listener));
        cloud.spawn(nodes::renew_leases(Arc::downgrade(&cloud), cloud.options.lease_renewal));
        Ok(Simulator { cloud, address })
    }

    /// Where the HTTP API is.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops everything in it and writes what is on its way to the disk.
    pub async fn shutdown(self) {
        self.cloud.stop.cancel();
        self.cloud.tasks.close();
        // Connections end at once; the limit is for what a fault holds.
        let _ = tokio::time::timeout(Duration::from_secs(5), self.cloud.tasks.wait()).await;
        let database = self.cloud.database.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(database) = database {
            let _ = tokio::task::spawn_blocking(move || database.close()).await;
        }
    }
}

impl Drop for Simulator {
    fn drop(&mut self) {
        self.cloud.stop.cancel();
    }
}

/// Everything in the cloud.
struct Cloud {
    own: Weak<Cloud>,
    options: SimulatorOptions,
    state: Mutex<State>,
    database: Mutex<Option<Database>>,
    clusters: Mutex<HashMap<String, Arc<nodes::Cluster>>>,
    faults: Mutex<Faults>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

#[derive(Default)]
struct State {
    journal: Option<Journal>,
    addresses: Option<Addresses>,
    load_balancers: BTreeMap<String, Arc<LoadBalancer>>,
    machines: BTreeMap<String, Arc<Machine>>,
    /// Names of machines and load balancers by owner.
    owned: HashMap<String, (BTreeSet<String>, BTreeSet<String>)>,
}

/// A load balancer and the machines behind it.
struct LoadBalancer {
    record: LoadBalancerRecord,
    /// Control-plane machines attached to it.
    machines: Mutex<Vec<Arc<Machine>>>,
    open: watch::Sender<bool>,
    turn: Turn,
    stop: CancellationToken,
    tasks: TaskTracker,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Backend for LoadBalancer {
    fn take(&self, stream: TcpStream) {
        let mut serving: Vec<_> = lock(&self.machines).iter().filter_map(|machine| machine.serving()).collect();
        // Its health checks leave out machines that answer nothing, unless there is no other.
        if serving.iter().any(|machine| !machine.is_silent()) {
            serving.retain(|machine| !machine.is_silent());
        }
        let Some(serving) = self.turn.next(&serving) else {
            return;
        };
        self.tasks.spawn(serving.clone().serve(stream, self.stop.child_token()));
    }
}

impl LoadBalancer {
    /// Opens or closes the address, as there are machines to forward to or not.
    fn refresh(&self) {
        let open = lock(&self.machines).iter().any(|machine| machine.serving().is_some());
        self.open.send_if_modified(|now| std::mem::replace(now, open) != open);
    }
}

/// Why a request of the API cannot be done.
#[derive(Debug)]
enum Refusal {
    Taken { what: &'static str, name: String, owner: String },
    Invalid { field: String, reason: String },
    Missing,
    Internal(String),
}

impl Cloud {
    /// Runs a task until the cloud stops.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = task => {}
                () = stop.cancelled() => {}
            }
        });
    }

    /// Brings back what was there before.
    fn resume(&self, contents: Contents) {
        let mut machines = Vec::new();
        {
            let mut state = lock(&self.state);
            let mut addresses = Addresses::new();
            for (spec, _) in contents.machines.values().filter(|(spec, _)| !spec.listens) {
                addresses.seen_machine(spec.address);
            }
            state.addresses = Some(addresses);
            for record in contents.load_balancers.into_values() {
                let target = SocketAddr::from((record.address, record.port));
                let reserved = network::bind(target).ok();
                self.add_load_balancer(&mut state, record, reserved);
            }
            for (spec, status) in contents.machines.into_values() {
                machines.push(self.add_machine(&mut state, spec, status));
            }
        }
        self.remove_stray_stores(&machines);
        for machine in machines {
            self.spawn(machine.resume());
        }
    }

    fn add_load_balancer(
        &self,
        state: &mut State,
        record: LoadBalancerRecord,
        reserved: Option<tokio::net::TcpSocket>,
    ) {
        let target = SocketAddr::from((record.address, record.port));
        let (open, receiver) = watch::channel(false);
        state.owned.entry(record.owner.clone()).or_default().1.insert(record.name.clone());
        let balancer = Arc::new(LoadBalancer {
            record: record.clone(),
            machines: Mutex::default(),
            open,
            turn: Turn::default(),
            stop: self.stop.child_token(),
            tasks: self.tasks.clone(),
        });
        let machines = state.machines.values();
        let attached = machines.filter(|m| m.spec.control_plane && m.spec.load_balancer.as_ref() == Some(&record.name));
        lock(&balancer.machines).extend(attached.cloned());
        self.spawn(network::listen(target, reserved, receiver, balancer.clone(), balancer.stop.clone()));
        balancer.refresh();
        state.load_balancers.insert(record.name, balancer);
    }

    fn add_machine(&self, state: &mut State, spec: MachineSpec, status: MachineStatus) -> Arc<Machine> {
        let machine = Machine::new(self.own.clone(), spec, status);
        let spec = &machine.spec;
        state.owned.entry(spec.owner.clone()).or_default().0.insert(spec.name.clone());
        if spec.control_plane
            && let Some(balancer) = spec.load_balancer.as_ref().and_then(|name| state.load_balancers.get(name))
        {
            lock(&balancer.machines).push(machine.clone());
        }
        state.machines.insert(spec.name.clone(), machine.clone());
        machine
    }

    /// Makes a load balancer.
    fn create_load_balancer(&self, name: String, owner: String, port: u16) -> Result<Arc<LoadBalancer>, Refusal> {
        let mut state = lock(&self.state);
        if let Some(existing) = state.load_balancers.get(&name) {
            let owner = existing.record.owner.clone();
            return Err(Refusal::Taken { what: "load balancer", name, owner });
        }
        let taken: BTreeSet<_> = state.load_balancers.values().map(|balancer| balancer.record.address).collect();
        let addresses = state.addresses.get_or_insert_with(Addresses::new);
        let (address, reserved) = addresses.reserve(port, |address| taken.contains(&address)).map_err(|error| {
            Refusal::Invalid {
                field: "port".into(),
                reason: format!("no address of 127.64.0.0/10 can be bound with port {port}: {error}; is it in use on all addresses of this computer?"),
            }
        })?;
        let record = LoadBalancerRecord { name: name.clone(), owner, address, port };
        if let Some(journal) = &mut state.journal {
            journal.load_balancer(&record).map_err(|error| Refusal::Internal(error.to_string()))?;
        }
        self.add_load_balancer(&mut state, record, Some(reserved));
        state.load_balancers.get(&name).cloned().ok_or(Refusal::Missing)
    }

    fn delete_load_balancer(&self, name: &str) -> Result<(), Refusal> {
        let mut state = lock(&self.state);
        let balancer = state.load_balancers.get(name).cloned().ok_or(Refusal::Missing)?;
        if let Some(journal) = &mut state.journal {
            journal.load_balancer_gone(name).map_err(|error| Refusal::Internal(error.to_string()))?;
        }
        balancer.stop.cancel();
        state.load_balancers.remove(name);
        disown(&mut state, &balancer.record.owner, |owned| owned.1.remove(name));
        Ok(())
    }

    /// Makes a machine; its address is chosen here, unless it was given.
    fn create_machine(&self, mut spec: MachineSpec) -> Result<Arc<Machine>, Refusal> {
        let machine = {
            let mut state = lock(&self.state);
            if let Some(existing) = state.machines.get(&spec.name) {
                let owner = existing.spec.owner.clone();
                return Err(Refusal::Taken { what: "machine", name: spec.name, owner });
            }
            if let Some(name) = &spec.load_balancer
                && !state.load_balancers.contains_key(name)
            {
                let reason = format!("there is no load balancer {name}");
                return Err(Refusal::Invalid { field: "loadBalancer".into(), reason });
            }
            if !spec.listens {
                spec.address = state.addresses.get_or_insert_with(Addresses::new).machine();
            } else if let Some(other) =
                state.machines.values().find(|other| other.spec.address == spec.address && other.spec.listens)
            {
                let reason = format!("{} is machine {}'s", spec.address, other.spec.name);
                return Err(Refusal::Invalid { field: "address".into(), reason });
            }
            if let Some(journal) = &mut state.journal {
                journal.machine(&spec).map_err(|error| Refusal::Internal(error.to_string()))?;
            }
            self.add_machine(&mut state, spec, MachineStatus::default())
        };
        machine.power_on();
        Ok(machine)
    }

    /// Takes a machine out of the cloud. Its power is off already.
    fn remove_machine(&self, machine: &Machine) {
        let name = &machine.spec.name;
        let mut state = lock(&self.state);
        if let Some(journal) = &mut state.journal
            && let Err(error) = journal.machine_gone(name)
        {
            tracing::error!(machine = name, %error, "the cloud's journal cannot be written: this machine will be back after a restart");
        }
        state.machines.remove(name);
        disown(&mut state, &machine.spec.owner, |owned| owned.0.remove(name));
        if let Some(balancer) = machine.spec.load_balancer.as_ref().and_then(|name| state.load_balancers.get(name)) {
            lock(&balancer.machines).retain(|other| other.spec.name != *name);
            balancer.refresh();
        }
    }

    /// Keeps a machine's status on disk.
    fn keep(&self, machine: &Machine, status: &MachineStatus) {
        let mut state = lock(&self.state);
        if !state.machines.contains_key(&machine.spec.name) {
            return;
        }
        let live = state.machines.len() * 2 + state.load_balancers.len();
        let Some(journal) = &mut state.journal else {
            return;
        };
        let outcome = journal.status(&machine.spec.name, status);
        let worn = journal.is_worn(live);
        let outcome = outcome.and_then(|()| if worn { self.rewrite(&mut state, machine, status) } else { Ok(()) });
        if let Err(error) = outcome {
            tracing::error!(machine = machine.spec.name, %error, "the cloud's journal cannot be written");
        }
    }

    fn rewrite(&self, state: &mut State, current: &Machine, status: &MachineStatus) -> std::io::Result<()> {
        let mut contents = Contents::default();
        for (name, balancer) in &state.load_balancers {
            contents.load_balancers.insert(name.clone(), balancer.record.clone());
        }
        for (name, machine) in &state.machines {
            let status = if *name == current.spec.name {
                status.clone()
            } else {
                // A status that somebody holds right now is about to be kept: the file grows on until all can be had.
                match machine.try_status() {
                    Some(status) => status,
                    None => return Ok(()),
                }
            };
            contents.machines.insert(name.clone(), (machine.spec.clone(), status));
        }
        match &mut state.journal {
            Some(journal) => journal.rewrite(&contents),
            None => Ok(()),
        }
    }

    fn machine(&self, name: &str) -> Option<Arc<Machine>> {
        lock(&self.state).machines.get(name).cloned()
    }

    /// All machines, or those of an owner.
    fn machines(&self, owner: Option<&str>) -> Vec<Arc<Machine>> {
        let state = lock(&self.state);
        match owner {
            None => state.machines.values().cloned().collect(),
            Some(owner) => {
                let names = state.owned.get(owner).map(|owned| &owned.0);
                names.into_iter().flatten().filter_map(|name| state.machines.get(name).cloned()).collect()
            }
        }
    }

    fn load_balancer(&self, name: &str) -> Option<Arc<LoadBalancer>> {
        lock(&self.state).load_balancers.get(name).cloned()
    }

    /// All load balancers, or those of an owner.
    fn load_balancers(&self, owner: Option<&str>) -> Vec<Arc<LoadBalancer>> {
        let state = lock(&self.state);
        match owner {
            None => state.load_balancers.values().cloned().collect(),
            Some(owner) => {
                let names = state.owned.get(owner).map(|owned| &owned.1);
                names.into_iter().flatten().filter_map(|name| state.load_balancers.get(name).cloned()).collect()
            }
        }
    }

    /// Opens or closes the load balancer of a machine.
    fn refresh_load_balancer(&self, machine: &Machine) {
        if let Some(balancer) = machine.spec.load_balancer.as_ref().and_then(|name| self.load_balancer(name)) {
            balancer.refresh();
        }
    }

    /// The store of a workload cluster; `fresh`: without what it held before.
    fn store(&self, name: &str, fresh: bool) -> Result<Store, String> {
        let database = lock(&self.database);
        match database.as_ref() {
            None if self.options.state.is_some() => Err("the cloud is shutting down".into()),
            None => Ok(Store::memory()),
            Some(database) => {
                if fresh {
                    database.remove_store(name).map_err(|error| error.to_string())?;
                }
                database.store(name).map_err(|error| error.to_string())
            }
        }
    }

    /// Removes the objects of clusters that no machine knows: what an init that was killed left behind.
    fn remove_stray_stores(&self, machines: &[Arc<Machine>]) {
        let database = lock(&self.database);
        let Some(database) = database.as_ref() else {
            return;
        };
        let known: BTreeSet<String> = machines.iter().filter_map(|m| m.look(|status| status.cluster.clone())).collect();
        let removed = database.store_names().and_then(|names| {
            names.iter().filter(|name| !known.contains(*name)).try_for_each(|name| database.remove_store(name))
        });
        if let Err(error) = removed {
            tracing::warn!(%error, "the objects of forgotten workload clusters cannot be removed");
        }
    }

    /// Forgets a workload cluster whose last control-plane machine is gone.
    fn remove_store(&self, name: &str) {
        lock(&self.clusters).remove(name);
        if let Some(database) = lock(&self.database).as_ref()
            && let Err(error) = database.remove_store(name)
        {
            tracing::error!(cluster = name, %error, "the objects of a workload cluster cannot be removed");
        }
    }
}

fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current < limit.maximum || limit.maximum.is_none() {
        limit.current = limit.maximum;
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            tracing::debug!(%error, "the limit of open files cannot be raised");
        }
    }
}

fn disown(state: &mut State, owner: &str, remove: impl FnOnce(&mut (BTreeSet<String>, BTreeSet<String>)) -> bool) {
    if let Some(owned) = state.owned.get_mut(owner) {
        remove(owned);
        if owned.0.is_empty() && owned.1.is_empty() {
            state.owned.remove(owner);
        }
    }
}
