//! What a decision may ask for.

use std::time::Duration;

use capstan_api::{Object, ObjectKey};
use serde_json::Value;

use crate::turn::TurnRequest;

/// How soon a write must happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Urgency {
    /// At once.
    #[default]
    Now,
    /// Progress that others do not wait for (counters, messages): it may be held back until a second
    /// after the object's last write, so that many small changes become one.
    Soon,
}

/// One write to the management cluster. Writes of a plan are carried out in order; the first that fails
/// ends the plan, and the object is decided again.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// Create; that it exists already is no error (the next decision sees it).
    Create(Object),
    /// JSON merge patch of an object (spec and metadata). With `resource_version` a lost update becomes a
    /// conflict, which is a new event and no error.
    Patch {
        /// Whose.
        key: ObjectKey,
        /// Merge patch body, without resourceVersion.
        patch: Value,
        /// Precondition.
        resource_version: Option<String>,
    },
    /// JSON merge patch of the status subresource.
    PatchStatus {
        /// Whose.
        key: ObjectKey,
        /// `{"status": …}`.
        patch: Value,
        /// How soon.
        urgency: Urgency,
    },
    /// Delete (background propagation); that it is gone already is no error.
    Delete {
        /// Which.
        key: ObjectKey,
        /// Precondition: only this incarnation.
        uid: String,
    },
    /// Make a key pair and create its Secret (keys `tls.crt`, `tls.key`), unless it exists.
    MintKeyPair(KeyPairSecret),
    /// Make an admin kubeconfig signed by a CA Secret and create or replace its Secret (key `value`).
    MintKubeconfig(KubeconfigSecret),
    /// The same three verbs, in a workload cluster.
    Workload {
        /// Namespace of the Cluster.
        namespace: String,
        /// Name of the Cluster.
        cluster: String,
        /// What.
        write: Box<WorkloadWrite>,
    },
}

/// One write to a workload cluster.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkloadWrite {
    /// Create; existing is no error.
    Create(Object),
    /// Create or replace.
    Apply(Object),
    /// JSON merge patch with optional precondition.
    Patch {
        /// Version to address it in, such as `v1`.
        version: String,
        /// Whose.
        key: ObjectKey,
        /// Merge patch body.
        patch: Value,
        /// Precondition.
        resource_version: Option<String>,
    },
    /// Delete; absence is no error.
    Delete {
        /// Version to address it in.
        version: String,
        /// Which.
        key: ObjectKey,
    },
}

/// A key pair to be made and kept in a Secret.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyPairSecret {
    /// The Secret without its data: name, namespace, labels, owner references, type.
    pub secret: Object,
    /// What kind of keys.
    pub key_pair: crate::contract::KeyPair,
}

/// A kubeconfig to be made and kept in a Secret.
#[derive(Clone, Debug, PartialEq)]
pub struct KubeconfigSecret {
    /// The Secret without its data.
    pub secret: Object,
    /// Name of the Cluster.
    pub cluster: String,
    /// `https://host:port`.
    pub server: String,
    /// Name of the Secret with the CA that signs (keys `tls.crt`, `tls.key`).
    pub ca_secret: String,
    /// Validity of the client certificate in days.
    pub validity_days: u32,
}

/// A Kubernetes Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventNote {
    /// About which object.
    pub regarding: ObjectKey,
    /// `false`: a Warning.
    pub normal: bool,
    /// CamelCase reason.
    pub reason: String,
    /// For a person.
    pub message: String,
}

/// What is to be done for one object now.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// In this order.
    pub writes: Vec<Write>,
    /// Sent when the writes were done.
    pub events: Vec<EventNote>,
    /// A provider's turn, begun after the writes.
    pub turn: Option<TurnRequest>,
    /// When to decide again although nothing changed.
    pub look_again: Option<Duration>,
}

impl Plan {
    /// Nothing to do.
    pub fn nothing() -> Self {
        Self::default()
    }

    /// Whether there is nothing to do (looking again does not count).
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty() && self.events.is_empty() && self.turn.is_none()
    }

    /// Look again after this time, or sooner if that was asked already.
    pub fn look_again_in(&mut self, after: Duration) {
        self.look_again = Some(self.look_again.map_or(after, |known| known.min(after)));
    }
}
