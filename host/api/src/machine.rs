//! `Machine` (cluster.x-k8s.io/v1beta2).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::meta::{Condition, ContractReference, Gate, TemplateMeta};

/// The desired state of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MachineSpec {
    /// Name of the Cluster that the machine belongs to.
    #[schemars(length(min = 1, max = 63))]
    pub cluster_name: String,
    /// Where the first-boot data comes from.
    pub bootstrap: Bootstrap,
    /// The object that stands for the machine's infrastructure.
    pub infrastructure_ref: ContractReference,
    /// Kubernetes version, such as v1.35.4.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub version: Option<String>,
    /// What the cloud calls the machine. Copied from the infrastructure object.
    #[serde(rename = "providerID", default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub provider_id: Option<String>,
    /// Failure domain to be in; one of the Cluster's status.failureDomains.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub failure_domain: Option<String>,
    /// Seconds that a machine must be Ready before it is Available. Default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub min_ready_seconds: Option<i32>,
    /// Further conditions that Ready depends on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(min = 1, max = 32),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["conditionType"])
    )]
    pub readiness_gates: Vec<Gate>,
    /// Time limits of the machine's deletion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion: Option<MachineDeletion>,
    /// Taints of the Node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(min = 1, max = 64),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["key", "effect"])
    )]
    pub taints: Vec<MachineTaint>,
}

/// Where a machine's first-boot data comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct Bootstrap {
    /// The object that makes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_ref: Option<ContractReference>,
    /// Name of the Secret that holds it, under key `value`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 0, max = 253))]
    pub data_secret_name: Option<String>,
}

/// Time limits of a machine's deletion, in seconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct MachineDeletion {
    /// How long the Node may take to be drained; 0 or absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub node_drain_timeout_seconds: Option<i32>,
    /// How long volumes may take to be detached; 0 or absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub node_volume_detach_timeout_seconds: Option<i32>,
    /// How long it is tried to delete the Node; 0: for ever. Default 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub node_deletion_timeout_seconds: Option<i32>,
}

/// A taint of a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MachineTaint {
    /// Key.
    #[schemars(length(min = 1, max = 317))]
    pub key: String,
    /// Value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub value: Option<String>,
    /// NoSchedule, PreferNoSchedule or NoExecute.
    #[schemars(extend("enum" = ["NoSchedule", "PreferNoSchedule", "NoExecute"]))]
    pub effect: String,
    /// Always: kept on the Node. OnInitialization: set once, when the Node joins.
    #[schemars(extend("enum" = ["Always", "OnInitialization"]))]
    pub propagation: String,
}

/// A machine to be made from a template.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MachineTemplate {
    /// Labels and annotations of the machines.
    #[serde(default, skip_serializing_if = "is_default")]
    pub metadata: TemplateMeta,
    /// Spec of the machines. bootstrap.configRef and infrastructureRef name templates.
    pub spec: MachineSpec,
}

fn is_default(meta: &TemplateMeta) -> bool {
    *meta == TemplateMeta::default()
}

/// The observed state of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MachineStatus {
    /// What is known of the machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 32),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"])
    )]
    pub conditions: Vec<Condition>,
    /// How far the machine has come for the first time. These never go back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialization: Option<MachineInitialization>,
    /// The Node of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_ref: Option<NodeReference>,
    /// What the Node says of itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_info: Option<NodeInfo>,
    /// When the phase last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub last_updated: Option<String>,
    /// Addresses of the machine, copied from the infrastructure object.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), extend("x-kubernetes-list-type" = "atomic"))]
    pub addresses: Vec<MachineAddress>,
    /// Failure domain that the machine is in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub failure_domain: Option<String>,
    /// Where the machine is in its life.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["Pending", "Provisioning", "Provisioned", "Running", "Updating", "Deleting", "Deleted",
        "Failed", "Unknown"]))]
    pub phase: Option<String>,
    /// When the certificates of a control-plane machine expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub certificates_expiry_date: Option<String>,
    /// How far the machine's deletion has come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion: Option<MachineDeletionStatus>,
    /// The generation that was last looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub observed_generation: Option<i64>,
}

/// How far a machine has come for the first time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct MachineInitialization {
    /// The infrastructure of the machine was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub infrastructure_provisioned: Option<bool>,
    /// The Secret with the first-boot data was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap_data_secret_created: Option<bool>,
}

/// Names the Node of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeReference {
    /// Name of the Node.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// An address of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MachineAddress {
    /// Hostname, ExternalIP, InternalIP, ExternalDNS or InternalDNS.
    #[serde(rename = "type")]
    #[schemars(extend("enum" = ["Hostname", "ExternalIP", "InternalIP", "ExternalDNS", "InternalDNS"]))]
    pub kind: String,
    /// The address.
    #[schemars(length(min = 1, max = 256))]
    pub address: String,
}

/// How far a machine's deletion has come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct MachineDeletionStatus {
    /// When the drain of the Node began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub node_drain_start_time: Option<String>,
    /// When the wait for volumes to be detached began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub wait_for_node_volume_detach_start_time: Option<String>,
    /// When the wait for pre-drain hooks began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub wait_for_pre_drain_hook_start_time: Option<String>,
    /// When the wait for pre-terminate hooks began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub wait_for_pre_terminate_hook_start_time: Option<String>,
}

/// `corev1.NodeSystemInfo`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct NodeInfo {
    /// Architecture.
    pub architecture: String,
    /// Boot ID.
    #[serde(rename = "bootID")]
    pub boot_id: String,
    /// Version of the container runtime, such as containerd://2.0.0.
    #[serde(rename = "containerRuntimeVersion")]
    pub container_runtime_version: String,
    /// Version of the kernel.
    #[serde(rename = "kernelVersion")]
    pub kernel_version: String,
    /// Deprecated by Kubernetes; kept because nodes still report it.
    #[serde(rename = "kubeProxyVersion")]
    pub kube_proxy_version: String,
    /// Version of the kubelet.
    #[serde(rename = "kubeletVersion")]
    pub kubelet_version: String,
    /// Machine ID.
    #[serde(rename = "machineID")]
    pub machine_id: String,
    /// Operating system.
    #[serde(rename = "operatingSystem")]
    pub operating_system: String,
    /// OS image.
    #[serde(rename = "osImage")]
    pub os_image: String,
    /// System UUID.
    #[serde(rename = "systemUUID")]
    pub system_uuid: String,
}
