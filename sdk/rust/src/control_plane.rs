//! Control plane: shown its members, a planner returns one step at a time. Pure.

use serde::de::DeserializeOwned;

use crate::{Condition, Context, Kind, Need, Reason, Result, Violation, host};

/// A spec that a control plane is planned from.
pub trait ControlPlaneProvider: Kind + DeserializeOwned + 'static {
    /// What is needed from Kubernetes, by label.
    fn needs(ctx: &Context<Self>) -> Result<Vec<(String, Need)>>;

    /// The next step.
    fn plan(ctx: &Context<Self>) -> Result<Decision>;

    /// What the schema cannot say. `old` is absent on creation.
    fn validate(_old: Option<&Self>, _new: &Self) -> Vec<Violation> {
        Vec::new()
    }
}

/// What a control-plane planner is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// The machines.
    pub members: Vec<Member>,
    /// etcd members without a machine; `None` while etcd cannot be asked.
    pub stray_etcd_members: Option<Vec<EtcdMember>>,
    /// How many machines are wanted.
    pub replicas: u32,
    /// The control plane has been initialized.
    pub initialized: bool,
    /// Failure domains for control-plane machines.
    pub failure_domains: Vec<String>,
    /// What `plan` returned last, as JSON.
    pub memory: String,
}

impl View {
    /// What the host shows in this turn.
    pub fn read() -> Self {
        host::control_plane_view()
    }
}

/// A machine of the control plane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// Name of the Machine.
    pub name: String,
    /// Its `spec.version`.
    pub kubernetes_version: Option<String>,
    /// Its failure domain.
    pub failure_domain: Option<String>,
    /// Its node is ready and its components run.
    pub ready: bool,
    /// It is being deleted.
    pub deleting: bool,
    /// How old it is (ms).
    pub age: u64,
    /// Spec of its bootstrap object, as JSON.
    pub bootstrap: Option<String>,
    /// Name of the infrastructure template it was cloned from.
    pub cloned_from: Option<String>,
    /// Its etcd member, as etcd itself reports it.
    pub etcd: Option<EtcdMember>,
    /// When its certificates expire (ms since the Unix epoch).
    pub certificate_expiry: Option<u64>,
    /// What is wrong with it.
    pub unhealthy: Vec<Reason>,
    /// A health check asked for its replacement.
    pub remediate: bool,
}

/// An etcd member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EtcdMember {
    /// Its id.
    pub id: String,
    /// It leads.
    pub leader: bool,
    /// It does not vote yet.
    pub learner: bool,
    /// It answers and has no alarm.
    pub healthy: bool,
    /// Its alarms.
    pub alarms: Vec<String>,
}

/// A workload-cluster object that the manifest declares, as JSON.
pub fn workload_object(label: &str) -> Option<String> {
    host::control_plane_workload_object(label)
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Make a machine.
    CreateMachine {
        /// Where.
        failure_domain: Option<String>,
        /// Its version.
        kubernetes_version: String,
        /// Spec of its bootstrap object, as JSON.
        bootstrap: String,
    },
    /// Change in place what needs no new machine.
    ChangeMachine {
        /// Name of the Machine.
        machine: String,
        /// Spec of its bootstrap object, as JSON.
        bootstrap: String,
    },
    /// Delete a machine, and why.
    DeleteMachine {
        /// Name of the Machine.
        machine: String,
        /// Why.
        reason: Reason,
    },
    /// From one etcd member to another, by id.
    MoveEtcdLeader(String, String),
    /// By id.
    RemoveEtcdMember(String),
    /// Apply an object that the manifest declares: label and JSON.
    ApplyWorkload(String, String),
    /// Delete an object that the manifest declares.
    DeleteWorkload(String),
    /// Nothing can be done now.
    Wait(Reason),
    /// Nothing is to be done.
    Settled,
}

/// What the planner decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The step.
    pub step: Step,
    /// When to ask again although nothing happened (ms).
    pub look_again_after: Option<u64>,
    /// Conditions beside those of the host.
    pub conditions: Vec<Condition>,
    /// Provider-owned fields of `status`, as JSON; empty for none.
    pub status: String,
    /// What the planner wants to be shown next time, as JSON.
    pub memory: String,
}

/// From the contract's functions to the trait; called by the export macro and by tests.
pub mod dispatch {
    use super::*;
    use crate::{context, infrastructure};

    /// `needs.declare`
    pub fn declare<P: ControlPlaneProvider>() -> Result<Vec<(String, Need)>> {
        P::needs(&*context::current::<P>()?)
    }

    /// `control-plane.plan`
    pub fn plan<P: ControlPlaneProvider>() -> Result<Decision> {
        P::plan(&*context::current::<P>()?)
    }

    /// `kinds.convert`
    pub fn convert<P: ControlPlaneProvider>(object: &str, to: &str) -> Result<String, crate::Reason> {
        crate::versions::convert_text::<P>(object, to)
    }

    /// `kinds.validate`
    pub fn validate<P: ControlPlaneProvider>(old: Option<&str>, new: &str) -> Vec<Violation> {
        infrastructure::dispatch::validate_spec(old, new, P::validate)
    }
}
