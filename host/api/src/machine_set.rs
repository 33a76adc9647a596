//! `MachineSet` (cluster.x-k8s.io/v1beta2).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::machine::MachineTemplate;
use crate::meta::{Condition, DeletionOrder, LabelSelector, MachineNaming, VersionCount};

/// The desired state of a set of equal machines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MachineSetSpec {
    /// Name of the Cluster that the set belongs to.
    #[schemars(length(min = 1, max = 63))]
    pub cluster_name: String,
    /// Number of machines. Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub replicas: Option<i32>,
    /// Which machines belong to the set; must match the labels of the template.
    #[serde(default)]
    pub selector: LabelSelector,
    /// The machines to be made.
    pub template: MachineTemplate,
    /// How their names are made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_naming: Option<MachineNaming>,
    /// Which machines go first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion: Option<DeletionOrder>,
}

/// The observed state of a set of machines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MachineSetStatus {
    /// What is known of the set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 32),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"])
    )]
    pub conditions: Vec<Condition>,
    /// The selector as text, for the scale subresource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub selector: Option<String>,
    /// Machines that belong to the set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Machines with condition Ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// Machines with condition Available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_replicas: Option<i32>,
    /// Machines with condition UpToDate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up_to_date_replicas: Option<i32>,
    /// By Kubernetes version, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 100),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["version"])
    )]
    pub versions: Vec<VersionCount>,
    /// The generation that was last looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub observed_generation: Option<i64>,
}
