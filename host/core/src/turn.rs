//! How a provider's turn is driven: a [`Course`] is a pure state machine that says the next [`Step`] and is
//! told how it went. Whoever holds the provider instance and the Kubernetes client only carries steps out.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use capstan_api::Object;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::contract::{
    Choice, ClusterFacts, ControlPlaneDecision, ControlPlaneView, Effect, Granted, HostPort, JoinRole, KnownPart,
    MachineFacts, Need, Part, Presence, Progress, ProviderError, Reason, Rendered,
};
use crate::plan::{Plan, Write};

/// Whether this process may still change something: it holds the Lease. Asked again right before anything that changes
/// something is handed to the network, because a process may be frozen anywhere and thawed long afterwards.
pub type Fence = Arc<dyn Fn() -> bool + Send + Sync>;

/// The fence of a process that is alone.
pub fn no_fence() -> Fence {
    Arc::new(|| true)
}

/// A turn that a plan asks for.
#[derive(Clone, Debug)]
pub struct TurnRequest {
    /// Name of the ProviderModule whose component serves the subject.
    pub module: String,
    /// What the guest is told.
    pub input: TurnInput,
    /// A digest of all that the turn depends on, to be remembered with its end
    /// ([`LastTurn`](crate::view::LastTurn)).
    pub inputs: String,
    /// What is done in the turn.
    pub course: Box<dyn Course>,
}

/// What a guest is told in one turn, fixed when the turn begins (except `known` and `granted`, which a
/// [`Step::Call`] carries).
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TurnInput {
    /// The custom resource this turn is about.
    pub subject: Object,
    /// Milliseconds since the Unix epoch, the same for the whole turn.
    pub now: u64,
    /// Minted once per object (annotation `capstan.dev/owner-key`).
    pub owner_key: String,
    /// The Cluster it belongs to.
    pub cluster: ClusterInput,
    /// The Machine that owns the subject, if any.
    pub machine: Option<MachineInput>,
    /// For a bootstrap provider; not written down.
    #[serde(skip)]
    pub join_role: Option<JoinRole>,
    /// For a control-plane provider; not written down.
    #[serde(skip)]
    pub control_plane: Option<ControlPlaneView>,
}

/// The contract's interface `cluster`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterInput {
    /// Name.
    pub name: String,
    /// Control-plane endpoint.
    pub endpoint: Option<HostPort>,
    /// Pod CIDRs.
    pub pod_cidrs: Vec<String>,
    /// Service CIDRs.
    pub service_cidrs: Vec<String>,
    /// Service domain.
    pub service_domain: String,
    /// Spec of the InfraCluster.
    pub infrastructure_spec: Option<Value>,
    /// State of the InfraCluster's parts, by part name, for a machine of the same provider.
    pub infrastructure_state: BTreeMap<String, Value>,
    /// Its machines of this provider.
    pub machines: Vec<MachineSummary>,
}

/// One machine of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineSummary {
    /// Name of the InfraMachine.
    pub name: String,
    /// Whether it is a control-plane machine.
    pub control_plane: bool,
    /// Its addresses, IPs first.
    pub addresses: Vec<String>,
    /// It is being deleted; one of the control plane, as soon as its Machine is.
    pub deleting: bool,
}

/// The contract's interface `machine`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MachineInput {
    /// Name of the Machine.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Control-plane machine.
    pub control_plane: bool,
    /// `spec.version`.
    pub kubernetes_version: Option<String>,
    /// `spec.failureDomain`.
    pub failure_domain: Option<String>,
    /// Being deleted.
    pub deleting: bool,
    /// A Node with its providerID has joined.
    pub node_bound: bool,
    /// Format of the bootstrap data once rendered.
    pub bootstrap_format: Option<String>,
}

/// One call into the guest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Call {
    /// `needs.declare`.
    Needs,
    /// `resources.parts`.
    Parts,
    /// `resources.identify`.
    Identify {
        /// Which part.
        part: String,
        /// Ids that other objects have chosen and the remote has not shown yet.
        reserved: Vec<String>,
    },
    /// `resources.observe`.
    Observe(String),
    /// `resources.create`.
    Create(String),
    /// `resources.update`.
    Update(String, Vec<Reason>),
    /// `resources.delete`.
    Delete(String),
    /// `infra-cluster.report`.
    ReportCluster,
    /// `infra-machine.report`.
    ReportMachine,
    /// `bootstrap.render`.
    Render,
    /// `control-plane.plan`.
    PlanControlPlane,
}

/// What a call returned.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// Of `Needs`: label and need.
    Needs(Vec<(String, Need)>),
    /// Of `Parts`.
    Parts(Vec<Part>),
    /// Of `Identify`.
    Choice(Choice),
    /// Of `Observe`.
    Presence(Presence),
    /// Of `Create`, `Update` and `Delete`.
    Progress(Progress),
    /// Of `ReportCluster`.
    ClusterFacts(ClusterFacts),
    /// Of `ReportMachine`.
    MachineFacts(MachineFacts),
    /// Of `Render`.
    Rendered(Rendered),
    /// Of `PlanControlPlane`.
    Decision(ControlPlaneDecision),
}

/// How a call went.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// What the guest made of it.
    pub reply: Result<Reply, ProviderError>,
    /// What the host knows of the changing request, if the call could send one.
    pub effect: Effect,
}

/// Something to be made that is random and must not be made twice.
#[derive(Clone, Debug, PartialEq)]
pub enum Mint {
    /// A kubeadm bootstrap token: Secret `bootstrap-token-<id>` in kube-system of the workload cluster of the
    /// Cluster with this namespace and name. Answered with `<id>.<secret>`.
    BootstrapToken {
        /// Namespace of the Cluster.
        namespace: String,
        /// Name of the Cluster.
        cluster: String,
        /// Time to live in seconds.
        ttl: u64,
    },
}

/// What comes next in a turn.
#[allow(clippy::large_enum_variant, reason = "short-lived, and moved a dozen times in a turn")]
#[derive(Clone, Debug)]
pub enum Step {
    /// Call the guest.
    Call {
        /// Which function.
        call: Call,
        /// The parts on record, by name, as the guest may see them now.
        known: BTreeMap<String, KnownPart>,
        /// What has been granted so far.
        granted: Granted,
    },
    /// Write to the management cluster; the turn goes on when all of it succeeded and is abandoned
    /// otherwise (the object is decided again).
    Write(Vec<Write>),
    /// Make something and tell.
    Mint(Mint),
    /// The turn is over; carry out this plan (which asks for no further turn).
    Finish(Plan),
}

/// What a step led to.
#[allow(clippy::large_enum_variant, reason = "short-lived, and moved a dozen times in a turn")]
#[derive(Clone, Debug)]
pub enum Told {
    /// The turn begins.
    Begin,
    /// A call's outcome.
    Called(Outcome),
    /// The writes were done; the objects as the server returned them, in order (`None` for deletions).
    Written(Vec<Option<Object>>),
    /// What was made. Secret.
    Minted(Vec<u8>),
    /// It could not be made; the text says why.
    NotMinted(String),
}

/// A turn's pure state machine. `now` is milliseconds since the Unix epoch and moves on during a turn.
pub trait Course: fmt::Debug + Send + Sync {
    /// The next step, given what the last one led to.
    fn next(&mut self, told: Told, now: u64) -> Step;
    /// A copy in the same state.
    fn boxed(&self) -> Box<dyn Course>;
}

impl Clone for Box<dyn Course> {
    fn clone(&self) -> Self {
        self.boxed()
    }
}
