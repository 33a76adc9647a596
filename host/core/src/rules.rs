//! The rules of the core kinds: for each, the function that decides for one object.

use capstan_api::ObjectKey;
use capstan_api::ipam::{ADDRESS, CLAIM, GLOBAL_POOL, IPAM_GROUP, POOL};
use capstan_api::well_known::CLUSTER_GROUP;

use crate::plan::Plan;
use crate::view::{NotNow, View};

/// Decides for one object: what the [`View`] shows and the time (milliseconds since the Unix epoch) in, a [`Plan`]
/// out. An object that is gone asks for nothing.
pub type Decide = fn(&ObjectKey, &dyn View, u64) -> Result<Plan, NotNow>;

/// A rule for a kind.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// API group.
    pub group: &'static str,
    /// Kind.
    pub kind: &'static str,
    /// The rule.
    pub decide: Decide,
}

/// The rules of the core kinds. Kinds of providers are decided by [`crate::provider`].
pub const RULES: &[Rule] = &[
    Rule { group: CLUSTER_GROUP, kind: "Cluster", decide: crate::cluster::decide_cluster },
    Rule { group: CLUSTER_GROUP, kind: "Machine", decide: crate::machine::decide_machine },
    Rule { group: CLUSTER_GROUP, kind: "MachineSet", decide: crate::machine_set::decide_machine_set },
    Rule {
        group: CLUSTER_GROUP,
        kind: "MachineDeployment",
        decide: crate::machine_deployment::decide_machine_deployment,
    },
];

/// The rules of in-cluster IPAM.
pub const IPAM_RULES: &[Rule] = &[
    Rule { group: IPAM_GROUP, kind: CLAIM, decide: crate::ipam::decide_claim },
    Rule { group: IPAM_GROUP, kind: ADDRESS, decide: crate::ipam::decide_address },
    Rule { group: IPAM_GROUP, kind: POOL, decide: crate::ipam::decide_pool },
    Rule { group: IPAM_GROUP, kind: GLOBAL_POOL, decide: crate::ipam::decide_pool },
];
