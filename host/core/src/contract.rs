//! The provider contract's records, as the host holds them: the same words as `wit/provider-0.1`, whatever
//! version of the contract a component speaks.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::identity::CredentialReference;

mod control_plane;

pub use control_plane::{ControlPlaneDecision, ControlPlaneStep, ControlPlaneView, EtcdMember, Member};

/// What a component is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// InfraCluster and InfraMachine.
    Infrastructure,
    /// BootstrapConfig.
    Bootstrap,
    /// ControlPlane.
    ControlPlane,
}

/// Which duty a kind has for its provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Duty {
    /// An InfraCluster.
    InfraCluster,
    /// An InfraMachine.
    InfraMachine,
    /// A BootstrapConfig.
    Bootstrap,
    /// A ControlPlane.
    ControlPlane,
}

/// A kind that a loaded module of this process serves.
#[derive(Clone, Debug, PartialEq)]
pub struct Served {
    /// Name of the ProviderModule.
    pub module: String,
    /// What the kind is for.
    pub duty: Duty,
    /// API group of the module's kinds.
    pub group: String,
    /// Kind of its InfraCluster, where it has one.
    pub cluster_kind: Option<String>,
    /// Kind of its InfraMachine, BootstrapConfig or ControlPlane.
    pub machine_kind: Option<String>,
    /// How long after a change this API's reads may still show the past (milliseconds).
    pub consistency_window: u64,
    /// The longest a request to any of its endpoints may take (milliseconds).
    pub request_timeout: u64,
    /// Objects in the workload cluster that a control-plane planner may read and apply, by label.
    pub workload_objects: BTreeMap<String, WorkloadObject>,
    /// JSON pointers into the spec from which a Secret or ConfigMap may be named (the manifest's list).
    pub object_references: Vec<String>,
    /// Names of the endpoints that its guests may ask.
    pub endpoints: Vec<String>,
    /// How what objects name becomes the credential of an endpoint (the manifest's list).
    pub credentials: Vec<CredentialReference>,
}

/// A workload-cluster object that a manifest declares.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkloadObject {
    /// API group.
    #[serde(default)]
    pub group: String,
    /// API version.
    pub version: String,
    /// Kind.
    pub kind: String,
    /// Namespace, empty for cluster-scoped.
    #[serde(default)]
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// A CamelCase code for conditions and a sentence for a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    /// CamelCase.
    pub code: String,
    /// A sentence.
    pub message: String,
}

/// A rule that an object breaks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// JSON pointer into the object.
    pub path: String,
    /// What is wrong and what to do.
    pub message: String,
}

/// A condition that the provider reports beside those the host derives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderCondition {
    /// Condition type.
    pub kind: String,
    /// True, False or Unknown.
    pub ok: Option<bool>,
    /// Why.
    pub reason: Reason,
}

/// Why a call did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProviderError {
    /// Worth trying again.
    Transient(Reason),
    /// The remote asked for a pause, and perhaps said how long (milliseconds).
    Throttled(Option<u64>),
    /// The endpoint's credential was refused.
    Unauthorized(Reason),
    /// The desired state can never work. Not retried until the generation moves.
    Invalid(Vec<Violation>),
    /// Somebody else holds what is wanted, or a precondition failed.
    Conflict(Reason),
    /// A defect in the provider.
    Internal(Reason),
    /// The component trapped, ran out of its budget or answered with something the contract forbids; the
    /// text names the rule. Made by the host, never by a guest.
    Violated(String),
}

/// Host and port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostPort {
    /// DNS name or IP address.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

// ---- needs ----

/// Algorithm of a key pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// RSA with 2048 bits.
    Rsa2048,
    /// RSA with 3072 bits.
    Rsa3072,
    /// RSA with 4096 bits.
    Rsa4096,
    /// ECDSA on P-256.
    EcdsaP256,
    /// ECDSA on P-384.
    EcdsaP384,
}

/// What a key pair is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyUse {
    /// A self-signed certificate authority.
    CertificateAuthority,
    /// A bare signing key: `tls.crt` holds the public key.
    SigningOnly,
}

/// A key pair that belongs to a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPair {
    /// Algorithm.
    pub algorithm: Algorithm,
    /// Use.
    pub purpose: KeyUse,
    /// Common name of the certificate.
    pub common_name: String,
    /// Validity in days.
    pub validity_days: u32,
}

/// Something the subject needs from Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need {
    /// An address from a pool (group, kind, name).
    Address {
        /// API group of the pool.
        group: String,
        /// Kind of the pool.
        kind: String,
        /// Name of the pool.
        name: String,
    },
    /// An in-cluster pool that belongs to the subject.
    AddressPool {
        /// Addresses, ranges or CIDRs.
        addresses: Vec<String>,
        /// Prefix length.
        prefix: u8,
        /// Gateway.
        gateway: Option<String>,
    },
    /// A Secret named at this JSON pointer of the spec.
    Secret(String),
    /// A ConfigMap named at this JSON pointer of the spec.
    ConfigMap(String),
    /// A key pair kept as `<cluster>-<label>`.
    KeyPair(KeyPair),
    /// A random token of this many characters that belongs to the cluster.
    ClusterToken(u32),
    /// A kubeadm bootstrap token in the workload cluster.
    BootstrapToken,
}

/// What has been granted, by label. Written down, a secret is its length only.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Granted {
    /// Addresses by label.
    pub addresses: BTreeMap<String, IpAddress>,
    /// ConfigMaps by label; entries sorted by key.
    pub config_maps: BTreeMap<String, BTreeMap<String, String>>,
    /// Secret bytes by `label` or `label/key`. Never shown.
    #[serde(with = "lengths")]
    pub secrets: BTreeMap<String, Vec<u8>>,
    /// Labels that were declared and whose object or key is not there yet.
    pub missing_secrets: Vec<String>,
    /// `sha256:…` of the public key (SPKI) of a declared certificate authority, by label.
    pub public_key_hashes: BTreeMap<String, String>,
}

/// Secrets that are written down: their lengths. Read back, they are so many `x`.
mod lengths {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(secrets: &BTreeMap<String, Vec<u8>>, to: S) -> Result<S::Ok, S::Error> {
        secrets.iter().map(|(label, bytes)| (label, bytes.len())).collect::<BTreeMap<_, _>>().serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, Vec<u8>>, D::Error> {
        let lengths = BTreeMap::<String, u32>::deserialize(from)?;
        Ok(lengths.into_iter().map(|(label, length)| (label, vec![b'x'; length.min(4 << 20) as usize])).collect())
    }
}

impl std::fmt::Debug for Granted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Granted")
            .field("addresses", &self.addresses)
            .field("config_maps", &self.config_maps.keys())
            .field("secrets", &self.secrets.keys())
            .finish_non_exhaustive()
    }
}

/// An address granted by IPAM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IpAddress {
    /// The address.
    pub address: String,
    /// Prefix length.
    pub prefix: u8,
    /// Gateway.
    pub gateway: Option<String>,
}

// ---- resources ----

/// Who owns the external resource behind a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Ownership {
    /// Created, changed and deleted by this object.
    Managed,
    /// Looked up only.
    Borrowed,
}

/// One external resource of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Unique within the object.
    pub name: String,
    /// Created after these are ready, deleted before them.
    pub after: Vec<String>,
    /// Whose it is.
    pub ownership: Ownership,
    /// Made anew when it has vanished; if false, only reported.
    pub replaceable: bool,
}

/// What stays the same however often `create` is tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The chosen id; `None`: assigned by the remote.
    pub id: Option<String>,
    /// Choices such as subnet or node (JSON).
    pub frozen: Value,
}

/// A running remote operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Its token.
    pub token: String,
    /// Milliseconds until it is worth looking again.
    pub look_again_after: u64,
}

/// What was seen of a part that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    /// What the outside world calls it.
    pub id: String,
    /// The parts that come after it may be created.
    pub ready: bool,
    /// What `update` would do next.
    pub todo: Vec<Reason>,
    /// Differences that only a replacement of the whole object can cure.
    pub outdated: Vec<Reason>,
    /// A running operation.
    pub operation: Option<Operation>,
    /// What the other parts and `report` need to know (JSON).
    pub state: Value,
}

/// How absence was established.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absence {
    /// By the id on record.
    LookedUpById,
    /// By a search for the owner key.
    SearchedByKey,
}

/// Whether a part is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It is not.
    Absent(Absence),
    /// Not to be seen yet; the operation on record is still running.
    Pending(Operation),
    /// The operation on record ended without effect and nothing is there.
    Failed(Absence, Reason),
    /// Something has this id or name, and it is not ours.
    Foreign(Reason),
    /// It is.
    Present(Observed),
}

/// How far a changing call came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Done; the id.
    Done(String),
    /// An operation was started; the id where the remote has already named it.
    Started(Option<String>, Operation),
    /// A precondition is not met yet; nothing was sent.
    Waiting(Reason),
}

/// The host's own record of the changing request of a call (design, section 3.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Effect {
    /// No changing request left the host.
    #[default]
    NotSent,
    /// It was answered, and not with a 5xx.
    Answered,
    /// It was sent, and no answer or a 5xx came back.
    Unknown,
}

/// What the host has on record about a part; what the guest sees as `known-part`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KnownPart {
    /// Its id.
    pub id: Option<String>,
    /// The remote has shown this id to be ours at least once.
    pub confirmed: bool,
    /// 1 at first.
    pub attempt: u32,
    /// Stable for subject, part and attempt.
    pub idempotency_key: String,
    /// What `identify` fixed for this attempt.
    pub frozen: Option<Value>,
    /// Token of an operation that was still running.
    pub operation: Option<String>,
    /// What `observe` returned last.
    pub state: Option<Value>,
}

// ---- infra-cluster, infra-machine ----

/// A failure domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailureDomain {
    /// Name.
    pub name: String,
    /// Suitable for control-plane machines.
    pub control_plane: bool,
    /// Attributes.
    pub attributes: BTreeMap<String, String>,
}

/// What an InfraCluster reports.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterFacts {
    /// Where the API server of the workload cluster is reached.
    pub control_plane_endpoint: Option<HostPort>,
    /// Failure domains.
    pub failure_domains: Vec<FailureDomain>,
    /// Conditions of its own.
    pub conditions: Vec<ProviderCondition>,
    /// Provider-owned fields of `status` (JSON object).
    pub status: Value,
}

/// What an InfraMachine's machine does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MachinePhase {
    /// Being made.
    Pending,
    /// Runs.
    Running,
    /// Does not run.
    Stopped,
    /// Broken.
    Failed,
    /// Going away.
    Deleting,
}

/// `{type, address}` of a machine; the type in Cluster API's words (`InternalIP`, …).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineAddress {
    /// `Hostname`, `InternalIP`, `ExternalIP`, `InternalDNS` or `ExternalDNS`.
    pub kind: &'static str,
    /// The address.
    pub value: String,
}

/// What an InfraMachine reports.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineFacts {
    /// What it does.
    pub phase: MachinePhase,
    /// Its providerID.
    pub provider_id: Option<String>,
    /// Its addresses.
    pub addresses: Vec<MachineAddress>,
    /// Where it is.
    pub failure_domain: Option<String>,
    /// The Node's name where no cloud controller sets `spec.providerID`.
    pub node_name: Option<String>,
    /// May vanish at any time.
    pub interruptible: bool,
    /// Conditions of its own.
    pub conditions: Vec<ProviderCondition>,
    /// Provider-owned fields of `status` (JSON object).
    pub status: Value,
}

// ---- bootstrap ----

/// Role of a machine that boots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinRole {
    /// The first control-plane machine.
    ControlPlaneInit,
    /// A further control-plane machine.
    ControlPlaneJoin,
    /// A worker.
    WorkerJoin,
}

/// Rendered first-boot data; the content with secrets filled in.
#[derive(Clone, PartialEq, Eq)]
pub struct Rendered {
    /// `cloud-config`, `ignition` or a name of the provider's own.
    pub format: String,
    /// The bytes. Secret.
    pub content: Vec<u8>,
}

impl std::fmt::Debug for Rendered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rendered").field("format", &self.format).finish_non_exhaustive()
    }
}
