//! Workload clusters and the state of their Nodes.
//!
//! What kubelets and the node lifecycle controller do by heartbeats, the cloud does by events, since it knows which machines live: a Node of a machine that
//! falls silent becomes `Unknown` after the grace, one of a machine that is back becomes ready at once. Nothing runs while nothing happens, except
//! that Leases are renewed now and then, all in one task. Only conditions are set: no taints, and no Pod is evicted.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use capstan_apiserver::{Kubelets, Store};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::kubelets::Members;
use super::machine::Machine;
use super::record::{MachineState, MachineStatus};
use super::{Cloud, lock};
use crate::api::{self, Api, InProcess};
use crate::kubeadm::kubelet;
use crate::kubeadm::objects::{self, Health};

/// A workload cluster.
pub(super) struct Cluster {
    name: String,
    store: Store,
    /// Machines by the name of their Node.
    members: Mutex<BTreeMap<String, Arc<Machine>>>,
    /// When Nodes lost their machine.
    orphans: Mutex<HashMap<String, Instant>>,
    /// One look at the Nodes at a time.
    turn: tokio::sync::Mutex<()>,
    /// A look is about to be taken.
    queued: AtomicBool,
    /// Somebody waits for the end of a grace.
    waiting: AtomicBool,
}

impl Cluster {
    fn new(name: &str, store: Store) -> Arc<Cluster> {
        Arc::new(Cluster {
            name: name.to_owned(),
            store,
            members: Mutex::default(),
            orphans: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            queued: AtomicBool::new(false),
            waiting: AtomicBool::new(false),
        })
    }

    fn members(&self) -> Vec<(String, Arc<Machine>)> {
        lock(&self.members).iter().map(|(node, machine)| (node.clone(), machine.clone())).collect()
    }

    /// The machine of a Node.
    pub(super) fn member(&self, node: &str) -> Option<Arc<Machine>> {
        lock(&self.members).get(node).cloned()
    }

    /// When the next grace ends of a machine or a Node that has fallen silent.
    fn next_end(&self, grace: Duration) -> Option<Instant> {
        let now = Instant::now();
        let members = self.members().into_iter().filter_map(|(_, machine)| machine.silent_since());
        let orphans: Vec<Instant> = lock(&self.orphans).values().copied().collect();
        members.chain(orphans).map(|since| since + grace).filter(|end| *end > now).min()
    }

    /// The API of a control-plane machine that can be reached.
    pub(super) fn api(&self) -> Option<InProcess> {
        self.members().iter().find_map(|(_, machine)| machine.reachable_workload()).map(|workload| workload.admin())
    }
}

/// What a Node should say, or none where that is not decided yet.
fn expected(status: &MachineStatus, silent: Option<Duration>, grace: Duration) -> Option<Health> {
    if status.is_reachable() {
        return Some(Health::Ready);
    }
    match silent {
        Some(silent) if silent >= grace => Some(Health::Unknown),
        _ if status.state == MachineState::Stopped && status.orderly => Some(Health::ShuttingDown),
        _ => None,
    }
}

impl Cloud {
    /// Makes a workload cluster without objects.
    pub(super) fn new_cluster(&self, name: &str) -> Result<Store, String> {
        let store = self.store(name, true)?;
        lock(&self.clusters).insert(name.to_owned(), Cluster::new(name, store.clone()));
        Ok(store)
    }

    /// The objects of a workload cluster that exists.
    pub(super) fn cluster_store(&self, name: &str) -> Result<Store, String> {
        self.cluster(name).map(|cluster| cluster.store.clone())
    }

    /// The way to the machines of a workload cluster, for its API servers.
    pub(super) fn kubelets(&self, name: &str) -> Option<Arc<dyn Kubelets>> {
        let cluster = self.cluster(name).ok()?;
        Some(Arc::new(Members(Arc::downgrade(&cluster))))
    }

    fn cluster(&self, name: &str) -> Result<Arc<Cluster>, String> {
        if let Some(cluster) = lock(&self.clusters).get(name) {
            return Ok(cluster.clone());
        }
        let store = self.store(name, false)?;
        let mut clusters = lock(&self.clusters);
        Ok(clusters.entry(name.to_owned()).or_insert_with(|| Cluster::new(name, store)).clone())
    }

    /// The cluster that is served at `host:port`: of a load balancer here, or of what else leads to a machine that says so.
    pub(super) fn cluster_at(&self, endpoint: &str) -> Option<String> {
        let serving =
            |machine: &Arc<Machine>| machine.serving().and_then(|_| machine.look(|status| status.cluster.clone()));
        if let Ok(address) = endpoint.parse::<SocketAddr>()
            && let Some(balancer) = self
                .load_balancers(None)
                .iter()
                .find(|b| address == SocketAddr::from((b.record.address, b.record.port)))
        {
            return lock(&balancer.machines).iter().find_map(serving);
        }
        let says = |machine: &&Arc<Machine>| {
            machine.spec.listens
                && machine.look(|status| status.control_plane.as_ref().is_some_and(|plane| plane.endpoint == endpoint))
        };
        self.machines(None).iter().filter(says).find_map(serving)
    }

    /// Makes a machine a member of a cluster.
    pub(super) fn join_cluster(&self, machine: &Machine, name: &str) -> Result<(), String> {
        let cluster = self.cluster(name)?;
        if let Some(node) = machine.look(|status| status.node_name.clone())
            && let Some(machine) = self.machine(&machine.spec.name)
        {
            lock(&cluster.orphans).remove(&node);
            lock(&cluster.members).insert(node, machine);
        }
        Ok(())
    }

    /// Takes a machine out of its cluster; with its last control-plane machine the cluster goes.
    pub(super) fn leave_cluster(&self, machine: &Machine) {
        let Some(name) = machine.look(|status| status.cluster.clone()) else {
            return;
        };
        let Ok(cluster) = self.cluster(&name) else {
            return;
        };
        if let Some(node) = machine.look(|status| status.node_name.clone()) {
            let mut members = lock(&cluster.members);
            if members.get(&node).is_some_and(|member| member.spec.name == machine.spec.name) {
                members.remove(&node);
                lock(&cluster.orphans).insert(node, Instant::now());
            }
        }
        let planes = |machine: &Machine| machine.look(|status| status.control_plane.is_some());
        // Machines that have not started their services yet count as well.
        let is_last = planes(machine)
            && !self.machines(None).iter().any(|other| {
                other.spec.name != machine.spec.name
                    && planes(other)
                    && other.look(|status| status.cluster.as_deref() == Some(&name))
            });
        if is_last {
            self.remove_store(&name);
        } else {
            self.node_changed(&name, false);
        }
    }

    /// Looks at the Nodes of a cluster, `at_once` or when the grace of those that fell silent is over.
    pub(super) fn node_changed(&self, name: &str, at_once: bool) {
        let Some(cluster) = lock(&self.clusters).get(name).cloned() else {
            return;
        };
        let grace = self.options.node_grace;
        if at_once && !cluster.queued.swap(true, Ordering::SeqCst) {
            let cluster = cluster.clone();
            self.spawn(async move {
                let _turn = cluster.turn.lock().await;
                cluster.queued.store(false, Ordering::SeqCst);
                look_at_nodes(&cluster, grace).await;
            });
        }
        // One task for all that are silent, and none once all is decided.
        if cluster.next_end(grace).is_some() && !cluster.waiting.swap(true, Ordering::SeqCst) {
            let cluster = Arc::downgrade(&cluster);
            self.spawn(async move {
                while let Some(cluster) = cluster.upgrade() {
                    let Some(end) = cluster.next_end(grace) else {
                        cluster.waiting.store(false, Ordering::SeqCst);
                        // Somebody may have fallen silent between the look and the note.
                        if cluster.next_end(grace).is_none() || cluster.waiting.swap(true, Ordering::SeqCst) {
                            return;
                        }
                        continue;
                    };
                    tokio::time::sleep_until(end).await;
                    let _turn = cluster.turn.lock().await;
                    look_at_nodes(&cluster, grace).await;
                }
            });
        }
    }

    /// For people: the clusters that exist.
    pub(super) fn show_clusters(&self) -> Value {
        let clusters: Vec<Arc<Cluster>> = lock(&self.clusters).values().cloned().collect();
        let items: Vec<Value> = clusters
            .iter()
            .map(|cluster| {
                let members = cluster.members();
                let plane = members.iter().find_map(|(_, machine)| machine.look(|status| status.control_plane.clone()));
                let machines = |control_plane: bool| -> Vec<String> {
                    let of = members.iter().filter(|(_, m)| m.look(|s| s.control_plane.is_some()) == control_plane);
                    of.map(|(_, machine)| machine.spec.name.clone()).collect()
                };
                json!({
                    "name": cluster.name, "endpoint": plane.map(|plane| plane.endpoint), "reachable": cluster.api().is_some(),
                    "controlPlaneMachines": machines(true), "workerMachines": machines(false),
                })
            })
            .collect();
        json!({ "items": items })
    }
}

/// Compares the Nodes with the machines and says what differs.
async fn look_at_nodes(cluster: &Cluster, grace: Duration) {
    // While no control-plane machine can be reached nobody can say anything; the next look comes when one is back.
    let Some(api) = cluster.api() else {
        return;
    };
    if let Err(reason) = compare(cluster, &api, grace).await {
        tracing::warn!(cluster = cluster.name, reason, "the Nodes of a workload cluster cannot be brought up to date");
    }
}

async fn compare(cluster: &Cluster, api: &dyn Api, grace: Duration) -> Result<(), String> {
    let now = jiff::Timestamp::now();
    let listed =
        api::expect("listing Nodes", api::get(api, "/api/v1/nodes").await).map_err(|error| error.to_string())?;
    let nodes: HashMap<&str, &Value> = listed
        .body
        .pointer("/items")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|node| Some((node.pointer("/metadata/name")?.as_str()?, node)))
        .collect();
    let members: BTreeMap<String, Arc<Machine>> = cluster.members().into_iter().collect();

    for (name, machine) in &members {
        let status = machine.status();
        if !status.is_reachable()
            || !machine.must_register.swap(false, Ordering::SeqCst)
            || nodes.contains_key(name.as_str())
        {
            continue;
        }
        if let Some(node) = status.node.and_then(|node| serde_json::from_str(&node).ok()) {
            kubelet::register(api, node, kubelet::Registration::First, machine.lease_seconds(), now)
                .await
                .map_err(|error| error.to_string())?;
        }
    }
    for (name, node) in nodes {
        let health = match members.get(name) {
            Some(machine) => expected(&machine.status(), machine.silent_since().map(|since| since.elapsed()), grace),
            None => {
                let ours = node
                    .pointer("/spec/providerID")
                    .and_then(Value::as_str)
                    .is_some_and(|id| id.starts_with("simulated://"));
                let silent = lock(&cluster.orphans).get(name).map(Instant::elapsed);
                // Of a machine that is remembered, whatever its Node calls itself.
                silent.map_or(ours, |silent| silent >= grace).then_some(Health::Unknown)
            }
        };
        let Some(health) = health else {
            continue;
        };
        let wanted = match health {
            Health::Ready => "True",
            Health::ShuttingDown => "False",
            Health::Unknown => "Unknown",
        };
        if objects::ready_status(node) != wanted {
            kubelet::report(api, name, health, now).await.map_err(|error| error.to_string())?;
        }
    }
    lock(&cluster.orphans).retain(|_, since| since.elapsed() < grace);
    Ok(())
}

/// Renews the Leases of all Nodes, over and over.
pub(super) async fn renew_leases(cloud: Weak<Cloud>, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        let Some(cloud) = cloud.upgrade() else {
            return;
        };
        let clusters: Vec<Arc<Cluster>> = lock(&cloud.clusters).values().cloned().collect();
        drop(cloud);
        for cluster in clusters {
            let Some(api) = cluster.api() else {
                continue;
            };
            for (node, machine) in cluster.members() {
                if machine.look(MachineStatus::is_reachable)
                    && let Err(error) =
                        kubelet::renew(&api, &node, machine.lease_seconds(), jiff::Timestamp::now()).await
                {
                    tracing::debug!(cluster = cluster.name, %error, "a Lease cannot be renewed");
                }
            }
            tokio::task::yield_now().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_node_is_unknown_after_the_grace() {
        let grace = Duration::from_secs(40);
        let status =
            |state, frozen, cut, orderly| MachineStatus { state, frozen, cut, orderly, ..MachineStatus::default() };
        let (short, long) = (Some(Duration::from_secs(39)), Some(grace));
        for (status, silent, health) in [
            (status(MachineState::Running, false, false, false), None, Some(Health::Ready)),
            (status(MachineState::Running, true, false, false), short, None),
            (status(MachineState::Running, true, false, false), long, Some(Health::Unknown)),
            (status(MachineState::Running, false, true, false), long, Some(Health::Unknown)),
            (status(MachineState::Stopped, false, false, true), short, Some(Health::ShuttingDown)),
            (status(MachineState::Stopped, false, false, true), long, Some(Health::Unknown)),
            (status(MachineState::Stopped, false, false, false), short, None),
            (status(MachineState::Failed, false, false, false), long, Some(Health::Unknown)),
            (status(MachineState::Deleting, false, false, false), None, None),
        ] {
            assert_eq!(expected(&status, silent, grace), health, "{status:?}");
        }
    }
}
