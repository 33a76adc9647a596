//! What a decision may read.
//!
//! A decision is a function of what a [`View`] shows it and of the time it is given. The view is over
//! caches; it remembers what was read, found or not, so that a later change of any of it brings the
//! decision's object back. Rules therefore need no watch mapping of their own.

use std::sync::Arc;

use capstan_api::{Object, ObjectKey};

/// Where an object lives.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// The management cluster.
    Management,
    /// The workload cluster of the Cluster with this namespace and name.
    Workload {
        /// Namespace of the Cluster.
        namespace: String,
        /// Name of the Cluster.
        cluster: String,
    },
}

/// Which objects of a kind are wanted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Select {
    /// All of the namespace.
    All,
    /// Those with this label and value.
    Label(String, String),
    /// Those owned (by any owner reference) by this UID.
    OwnedBy(String),
    /// Nodes by `spec.providerID`.
    ProviderId(String),
}

/// Why something cannot be decided now. The caller decides again when it can.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotNow {
    /// The cache of this kind is still being filled; its first fill brings the decision back.
    #[error("the cache of {kind} is not filled yet")]
    CacheCold {
        /// The kind that was asked for.
        kind: String,
    },
    /// The kind is not served by the API server; its CRD's arrival brings the decision back.
    #[error("no kind {kind} of group {group:?} is served here")]
    NoSuchKind {
        /// API group that was asked for.
        group: String,
        /// Kind that was asked for.
        kind: String,
    },
    /// The workload cluster cannot be asked now; the connection's return brings the decision back.
    #[error("workload cluster {namespace}/{cluster} cannot be reached: {reason}")]
    Unreachable {
        /// Namespace of the Cluster.
        namespace: String,
        /// Name of the Cluster.
        cluster: String,
        /// What the last attempt said.
        reason: String,
    },
}

/// State of the connection to a workload cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Connection {
    /// Not tried yet, or no kubeconfig yet.
    Unknown,
    /// The last probe succeeded.
    Up,
    /// Probes fail since this time (milliseconds since the Unix epoch) for this reason.
    Down {
        /// Milliseconds since the Unix epoch.
        since: u64,
        /// What the last attempt said.
        reason: String,
    },
}

/// What whoever carries turns out remembers, in memory only, of an object's last finished turn: a settled object is
/// then not asked about again each time something near it changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LastTurn {
    /// When it came to its [`Finish`](crate::turn::Step::Finish) and that plan's writes were done (milliseconds since
    /// the Unix epoch). Abandoned turns are not remembered.
    pub at: u64,
    /// [`TurnRequest::inputs`](crate::turn::TurnRequest::inputs) of that turn.
    pub inputs: String,
    /// When that plan wanted to look again, in milliseconds; sooner where a write of it was held back.
    pub look_again: Option<u64>,
}

/// Read access to caches. Objects come without `metadata.managedFields`.
///
/// References between Cluster API objects carry no version (`{apiGroup, kind, name}`), so kinds are
/// asked for by group and kind and come in the version that the cache holds: the newest one whose
/// contract label the host understands.
pub trait View {
    /// One object; `None` when the cache is filled and does not have it.
    ///
    /// # Errors
    /// [`NotNow`] when the answer is not known.
    fn get(&self, place: &Place, key: &ObjectKey) -> Result<Option<Arc<Object>>, NotNow>;

    /// The objects of a kind in a namespace (empty: cluster-scoped, or all namespaces), sorted by name.
    ///
    /// # Errors
    /// [`NotNow`] when the answer is not known.
    fn list(
        &self,
        place: &Place,
        group: &str,
        kind: &str,
        namespace: &str,
        select: &Select,
    ) -> Result<Vec<Arc<Object>>, NotNow>;

    /// Which contract version (`v1beta2`, `v1beta1`) the CRD of this kind speaks; `None` when its CRD has
    /// no contract label (built-in kinds).
    ///
    /// # Errors
    /// [`NotNow`] when the kind is not served.
    fn contract(&self, group: &str, kind: &str) -> Result<Option<String>, NotNow>;

    /// The connection to a workload cluster.
    fn connection(&self, namespace: &str, cluster: &str) -> Connection;

    /// What a provider module of this process says of a kind it serves; `None` when none does (somebody
    /// else's controller may).
    fn served(&self, group: &str, kind: &str) -> Option<crate::contract::Served>;

    /// What is remembered of the object's last finished turn; `None` when there was none in this process, or nothing
    /// is remembered (the rules then ask for a turn at each decision, which is right but wasteful).
    fn last_turn(&self, _key: &ObjectKey) -> Option<LastTurn> {
        None
    }

    /// Who decides, as the holder of the Lease is called; put on record with each intent.
    fn holder(&self) -> String {
        String::new()
    }
}
