//! What a machine does when it starts: it carries out its boot data, or starts the services it has.

use std::sync::{Arc, Weak};

use capstan_boot::{Instance, Step};

use super::machine::Machine;
use super::network::Gate;
use super::record::MachineState;
use super::{Cloud, lock};
use crate::files::{Files, MemoryFiles};
use crate::kubeadm::workload::Workload;
use crate::kubeadm::{Command, KubeadmError, command, init, join};
use crate::shell::{Finished, Programs, Shell};

/// Carries out the boot data of a machine, as cloud-init does: a command that fails is shown on the console and the next one is run.
///
/// The machine's `bootError` says why it did not become a node: data that cannot be read, a `kubeadm` that failed, or none at all.
pub(super) async fn boot(cloud: Arc<Cloud>, machine: Arc<Machine>, gate: Gate) {
    let delay = cloud.options.boot_delay + lock(&cloud.faults).boot_delay;
    tokio::time::sleep(delay).await;
    machine.change(|status| status.state = MachineState::Running);
    gate.opened().await;

    let spec = &machine.spec;
    let instance = Instance { hostname: spec.hostname().to_owned(), id: spec.name.clone() };
    let boot = match capstan_boot::read_for(&spec.user_data_format, &spec.user_data, &instance) {
        Ok(boot) => boot,
        Err(error) => {
            machine.boot_failed(&error.to_string());
            machine.change(|status| status.booted = true);
            return;
        }
    };
    for name in &boot.ignored {
        machine.print(&format!("cloud-init: {name} is not carried out on a simulated machine"));
    }
    let files = Arc::new(MemoryFiles::fresh(spec.hostname()));
    let programs = Kubeadm {
        cloud: Arc::downgrade(&cloud),
        machine: Arc::downgrade(&machine),
        files: files.clone(),
        gate: gate.clone(),
    };
    let mut shell = Shell::new(files.clone(), Arc::new(programs), spec.hostname());
    for step in boot.steps {
        gate.opened().await;
        match step {
            Step::WriteFile { path, mode, append, content, .. } => {
                if let Err(error) = files.put(&path, mode, &content, append) {
                    machine.print(&format!("cloud-init: {path} cannot be written: {error}"));
                }
            }
            Step::Run(line) => {
                let finished = shell.run(&line).await;
                machine.print(&String::from_utf8_lossy(&finished.out));
                machine.print(&String::from_utf8_lossy(&finished.err));
                if finished.status != 0 {
                    // The line itself may hold a secret: its first word says enough.
                    let word = line.split_whitespace().next().unwrap_or_default();
                    machine.print(&format!("cloud-init: `{word} …` failed with status {}", finished.status));
                }
            }
        }
    }
    machine.change(|status| {
        status.booted = true;
        if status.node.is_none() && status.boot_error.is_none() {
            let reason = "the boot data was carried out, but nothing in it made this machine a node: there is no `kubeadm init` or `kubeadm join`";
            status.print(&format!("error: {reason}"));
            status.boot_error = Some(reason.to_owned());
        }
    });
}

/// Starts what a machine that has been through its boot data runs: its API server, its kubelet.
pub(super) async fn start_services(cloud: Arc<Cloud>, machine: Arc<Machine>) {
    let (plane, cluster) = machine.look(|status| (status.control_plane.clone(), status.cluster.clone()));
    let Some(cluster) = cluster else {
        return;
    };
    let started = async {
        cloud.join_cluster(&machine, &cluster)?;
        if let Some(plane) = plane {
            // Its disk is what the boot data wrote: written again, nothing is run.
            let files = disk(&machine)?;
            let pki = plane.pki(&files).map_err(|error| error.to_string())?;
            let store = cloud.cluster_store(&cluster)?;
            let workload = Workload::start(store, &pki, &plane.version(), &plane.names, cloud.kubelets(&cluster))
                .map_err(|error| error.to_string())?;
            machine.serve(Arc::new(workload));
        }
        Ok::<(), String>(())
    };
    match started.await {
        Ok(()) => cloud.node_changed(&cluster, true),
        Err(reason) => {
            tracing::error!(machine = machine.spec.name, reason, "a simulated machine cannot start its services");
            machine.print(&format!("error: {reason}"));
        }
    }
}

fn disk(machine: &Machine) -> Result<MemoryFiles, String> {
    let spec = &machine.spec;
    let instance = Instance { hostname: spec.hostname().to_owned(), id: spec.name.clone() };
    let boot = capstan_boot::read_for(&spec.user_data_format, &spec.user_data, &instance).map_err(|e| e.to_string())?;
    let files = MemoryFiles::fresh(spec.hostname());
    for step in boot.steps {
        if let Step::WriteFile { path, mode, append, content, .. } = step {
            files.put(&path, mode, &content, append).map_err(|error| error.to_string())?;
        }
    }
    Ok(files)
}

/// The program `kubeadm` on a simulated machine.
struct Kubeadm {
    cloud: Weak<Cloud>,
    machine: Weak<Machine>,
    files: Arc<MemoryFiles>,
    gate: Gate,
}

#[async_trait::async_trait]
impl Programs for Kubeadm {
    async fn run(&self, argv: &[String]) -> Option<Finished> {
        let (name, arguments) = argv.split_first()?;
        if name.rsplit('/').next() != Some("kubeadm") {
            return None;
        }
        let (Some(cloud), Some(machine)) = (self.cloud.upgrade(), self.machine.upgrade()) else {
            return Some(Finished { status: 1, ..Finished::default() });
        };
        let outcome = match command(arguments) {
            Ok(Command::Version) => {
                return Some(Finished { out: b"kubeadm version: simulated\n".to_vec(), ..Finished::default() });
            }
            Ok(Command::Reset) => {
                self.reset(&cloud, &machine);
                return Some(Finished::default());
            }
            Ok(Command::Init { config }) => self.init(&cloud, &machine, &config).await,
            Ok(Command::Join { config }) => self.join(&cloud, &machine, &config).await,
            Err(error) => Err(error),
        };
        Some(match outcome {
            Ok(()) => Finished::default(),
            Err(error) => {
                // boot_failed prints it.
                machine.boot_failed(&format!("kubeadm: {error}"));
                Finished { status: 1, ..Finished::default() }
            }
        })
    }
}

impl Kubeadm {
    async fn init(&self, cloud: &Arc<Cloud>, machine: &Arc<Machine>, config: &str) -> Result<(), KubeadmError> {
        let identity = machine.identity();
        machine.print("[init] Running pre-flight checks");
        let prepared = init::prepare(&*self.files, config, &identity)?;
        self.gate.opened().await;
        let plane = prepared.control_plane.clone();
        let cluster = format!("{}~{:08x}", machine.spec.name, rand::random::<u32>());
        let store = cloud.new_cluster(&cluster).map_err(KubeadmError::Other)?;
        machine.print(&format!("[control-plane] Starting the API server of {} ({})", plane.endpoint, plane.version()));
        let filled = async {
            let kubelets = cloud.kubelets(&cluster);
            let workload = Workload::start(store, &prepared.pki, &plane.version(), &plane.names, kubelets)?;
            prepared.fill(&workload.admin(), &identity, jiff::Timestamp::now()).await?;
            prepared.write_kubeconfigs(&*self.files)?;
            Ok::<_, KubeadmError>(workload)
        };
        // Whether it fails or the machine goes off in the middle, nothing of it stays.
        let mut attempt = Attempt { cloud, cluster: &cluster, kept: false };
        let workload = filled.await?;
        let node = prepared.node(&identity);
        machine.change(|status| {
            status.print("Your Kubernetes control-plane has initialized successfully!");
            status.set_node(&node);
            status.cluster = Some(cluster.clone());
            status.control_plane = Some(plane);
            status.boot_error = None;
        });
        cloud.join_cluster(machine, &cluster).map_err(KubeadmError::Other)?;
        machine.serve(Arc::new(workload));
        // A machine that was deleted meanwhile has left no cluster that it was not yet in.
        attempt.kept = cloud.machine(&machine.spec.name).is_some();
        Ok(())
    }

    async fn join(&self, cloud: &Arc<Cloud>, machine: &Arc<Machine>, config: &str) -> Result<(), KubeadmError> {
        self.gate.opened().await;
        let identity = machine.identity();
        let say = |line: &str| machine.print(line);
        let joined = join::join(&*self.files, config, &identity, &say).await?;
        let cluster = cloud.cluster_at(&joined.endpoint);
        if cluster.is_none() {
            machine
                .print("warning: this cluster is not of this cloud: the Node is registered, but nobody keeps it alive");
        }
        let workload = match (&joined.control_plane, &cluster) {
            (Some((plane, pki)), Some(cluster)) => {
                let store = cloud.cluster_store(cluster).map_err(KubeadmError::Other)?;
                let kubelets = cloud.kubelets(cluster);
                Some(Arc::new(Workload::start(store, pki, &plane.version(), &plane.names, kubelets)?))
            }
            (Some(_), None) => {
                return Err(KubeadmError::Other(
                    "a simulated machine can share the control plane of clusters of this cloud only".into(),
                ));
            }
            (None, _) => None,
        };
        machine.change(|status| {
            status.set_node(&joined.node);
            status.cluster = cluster.clone();
            status.control_plane = joined.control_plane.map(|(plane, _)| plane);
            status.boot_error = None;
        });
        if let Some(cluster) = &cluster {
            cloud.join_cluster(machine, cluster).map_err(KubeadmError::Other)?;
        }
        if let Some(workload) = workload {
            machine.serve(workload);
        }
        if let Some(cluster) = &cluster {
            // A machine that boots again has a Node already, which may have been called unknown until now.
            cloud.node_changed(cluster, true);
        }
        Ok(())
    }

    fn reset(&self, cloud: &Cloud, machine: &Machine) {
        machine.print("[reset] Stopping the services of this node");
        cloud.leave_cluster(machine);
        machine.serve_no_more();
        machine.change(|status| {
            status.node = None;
            status.node_name = None;
            status.cluster = None;
            status.control_plane = None;
        });
        let _ = self.files.remove("/etc/kubernetes");
    }
}

/// A cluster that is being made: forgotten unless it is kept.
struct Attempt<'a> {
    cloud: &'a Cloud,
    cluster: &'a str,
    kept: bool,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if !self.kept {
            self.cloud.remove_store(self.cluster);
        }
    }
}
