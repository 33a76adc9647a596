//! What a control-plane planner is shown, and what it answers.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{ProviderCondition, Reason};

/// An etcd member as etcd reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdMember {
    /// Its id.
    pub id: String,
    /// Whether it leads.
    pub leader: bool,
    /// Whether it only learns.
    pub learner: bool,
    /// Whether it answers.
    pub healthy: bool,
    /// Raised alarms.
    pub alarms: Vec<String>,
}

/// A machine of the control plane as the planner sees it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Member {
    /// Name of the Machine.
    pub name: String,
    /// Kubernetes version.
    pub kubernetes_version: Option<String>,
    /// Failure domain.
    pub failure_domain: Option<String>,
    /// Ready.
    pub ready: bool,
    /// Being deleted.
    pub deleting: bool,
    /// Age in milliseconds.
    pub age: u64,
    /// Spec of its bootstrap object (JSON).
    pub bootstrap: Option<Value>,
    /// Name of the infrastructure template it was cloned from.
    pub cloned_from: Option<String>,
    /// Its etcd member.
    pub etcd: Option<EtcdMember>,
    /// When its certificates expire (milliseconds since the Unix epoch).
    pub certificate_expiry: Option<u64>,
    /// Why it is not healthy.
    pub unhealthy: Vec<Reason>,
    /// A health check asked for its replacement.
    pub remediate: bool,
}

/// What a control-plane planner is shown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ControlPlaneView {
    /// Its machines, sorted by name.
    pub members: Vec<Member>,
    /// etcd members without a machine; `None` while etcd cannot be asked.
    pub stray_etcd_members: Option<Vec<EtcdMember>>,
    /// Desired replicas.
    pub replicas: u32,
    /// Whether the workload cluster was initialized.
    pub initialized: bool,
    /// Failure domains for control-plane machines.
    pub failure_domains: Vec<String>,
    /// Declared workload objects by label (JSON).
    pub workload_objects: BTreeMap<String, Value>,
    /// What `plan` returned last (JSON).
    pub memory: Value,
}

/// One step of a control plane.
#[derive(Clone, Debug, PartialEq)]
pub enum ControlPlaneStep {
    /// Create a machine.
    CreateMachine {
        /// Where.
        failure_domain: Option<String>,
        /// Version.
        kubernetes_version: String,
        /// Spec of its bootstrap object (JSON).
        bootstrap: Value,
    },
    /// Change in place what needs no new machine.
    ChangeMachine {
        /// Name of the Machine.
        machine: String,
        /// Spec of its bootstrap object (JSON).
        bootstrap: Value,
    },
    /// Delete a machine.
    DeleteMachine {
        /// Name of the Machine.
        machine: String,
        /// Why.
        reason: Reason,
    },
    /// Move etcd leadership between members, by id.
    MoveEtcdLeader(String, String),
    /// Remove an etcd member, by id.
    RemoveEtcdMember(String),
    /// Apply a declared workload object (label, JSON).
    ApplyWorkload(String, Value),
    /// Delete a declared workload object (label).
    DeleteWorkload(String),
    /// Wait.
    Wait(Reason),
    /// Nothing to do.
    Settled,
}

/// A planner's decision.
#[derive(Clone, Debug, PartialEq)]
pub struct ControlPlaneDecision {
    /// The one step.
    pub step: ControlPlaneStep,
    /// Milliseconds.
    pub look_again_after: Option<u64>,
    /// Conditions of its own.
    pub conditions: Vec<ProviderCondition>,
    /// Provider-owned fields of `status` (JSON object).
    pub status: Value,
    /// To be shown again next time (JSON).
    pub memory: Value,
}
