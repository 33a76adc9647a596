//! Names that Cluster API gives to labels, annotations, finalizers, taints and Secrets. The names are the interface
//! between providers, tools and the core, so there is one place for them.

/// Group of Cluster, Machine, MachineSet and MachineDeployment.
pub const CLUSTER_GROUP: &str = "cluster.x-k8s.io";
/// Group of Capstan's own kinds.
pub const CAPSTAN_GROUP: &str = "capstan.dev";
/// Namespace of what belongs to no tenant: Leases, and the Secrets of identities.
pub const SYSTEM_NAMESPACE: &str = "capstan-system";
/// The version of the core kinds that is served and stored.
pub const CORE_VERSION: &str = "v1beta2";

/// Label: the Cluster that something belongs to.
pub const CLUSTER_NAME: &str = "cluster.x-k8s.io/cluster-name";
/// Label on Machines of a control plane; its value is empty.
pub const CONTROL_PLANE: &str = "cluster.x-k8s.io/control-plane";
/// Label: the control plane that a Machine belongs to.
pub const CONTROL_PLANE_NAME: &str = "cluster.x-k8s.io/control-plane-name";
/// Label: the MachineSet that a Machine belongs to.
pub const SET_NAME: &str = "cluster.x-k8s.io/set-name";
/// Label: the MachineDeployment that a Machine or MachineSet belongs to.
pub const DEPLOYMENT_NAME: &str = "cluster.x-k8s.io/deployment-name";
/// Label: tells the MachineSets of one MachineDeployment apart.
pub const TEMPLATE_HASH: &str = "machine-template-hash";
/// Label on CRDs: the provider that brings them, such as `infrastructure-docker`.
pub const PROVIDER: &str = "cluster.x-k8s.io/provider";
/// Label on Nodes whose machine may vanish at any time.
pub const INTERRUPTIBLE: &str = "cluster.x-k8s.io/interruptible";
/// Label on CRDs: `v1beta2` → the versions that speak that contract, joined with `_`.
pub const CONTRACT_PREFIX: &str = "cluster.x-k8s.io/";

/// Annotation: reconciliation of this object is paused (any value).
pub const PAUSED: &str = "cluster.x-k8s.io/paused";
/// Annotation: somebody else's controller looks after this InfraCluster.
pub const MANAGED_BY: &str = "cluster.x-k8s.io/managed-by";
/// Annotation: the template that an object was cloned from.
pub const CLONED_FROM_NAME: &str = "cluster.x-k8s.io/cloned-from-name";
/// Annotation: `Kind.group` of the template that an object was cloned from.
pub const CLONED_FROM_GROUP_KIND: &str = "cluster.x-k8s.io/cloned-from-groupkind";
/// Annotation: this Machine goes first when its MachineSet shrinks.
pub const DELETE_MACHINE: &str = "cluster.x-k8s.io/delete-machine";
/// Annotation: this MachineSet makes no new Machines (an old one under `OnDelete`).
pub const DISABLE_MACHINE_CREATE: &str = "cluster.x-k8s.io/disable-machine-create";
/// Annotation of the autoscaler: smallest size of a node group.
pub const AUTOSCALER_MIN: &str = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-min-size";
/// Annotation of the autoscaler: largest size of a node group.
pub const AUTOSCALER_MAX: &str = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size";
/// Annotation of MachineDeployments and MachineSets (the plural is upstream's): revision.
pub const REVISION: &str = "machinedeployment.clusters.x-k8s.io/revision";
/// Annotation of MachineSets: replicas of the MachineDeployment.
pub const DESIRED_REPLICAS: &str = "machinedeployment.clusters.x-k8s.io/desired-replicas";
/// Annotation of MachineSets: replicas of the MachineDeployment and its surge.
pub const MAX_REPLICAS: &str = "machinedeployment.clusters.x-k8s.io/max-replicas";
/// Annotation: when the certificates of a control-plane machine expire.
pub const CERTIFICATES_EXPIRY: &str = "machine.cluster.x-k8s.io/certificates-expiry";
/// Annotation: no drain when this Machine is deleted.
pub const EXCLUDE_NODE_DRAINING: &str = "machine.cluster.x-k8s.io/exclude-node-draining";
/// Prefix of annotations that hold a Machine's deletion before its Node is drained.
pub const PRE_DRAIN_HOOK: &str = "pre-drain.delete.hook.machine.cluster.x-k8s.io";
/// Prefix of annotations that hold a Machine's deletion before its infrastructure goes.
pub const PRE_TERMINATE_HOOK: &str = "pre-terminate.delete.hook.machine.cluster.x-k8s.io";
/// Annotation of Nodes: the Cluster's namespace.
pub const NODE_CLUSTER_NAMESPACE: &str = "cluster.x-k8s.io/cluster-namespace";
/// Annotation of Nodes: the Machine.
pub const NODE_MACHINE: &str = "cluster.x-k8s.io/machine";
/// Annotation of Nodes: kind of the Machine's controller.
pub const NODE_OWNER_KIND: &str = "cluster.x-k8s.io/owner-kind";
/// Annotation of Nodes: name of the Machine's controller.
pub const NODE_OWNER_NAME: &str = "cluster.x-k8s.io/owner-name";
/// Annotation of Nodes: keys of the labels that come from the Machine, joined with commas.
pub const NODE_LABELS_FROM_MACHINE: &str = "cluster.x-k8s.io/labels-from-machine";
/// Annotation of Nodes: keys of the annotations that come from the Machine, joined with commas.
pub const NODE_ANNOTATIONS_FROM_MACHINE: &str = "cluster.x-k8s.io/annotations-from-machine";

/// Taint that a Node registers with and that goes once its Machine is bound.
pub const UNINITIALIZED_TAINT: &str = "node.cluster.x-k8s.io/uninitialized";
/// Taint of Nodes whose Machine is of an old revision.
pub const OUTDATED_TAINT: &str = "node.cluster.x-k8s.io/outdated-revision";

/// Finalizer of Clusters.
pub const CLUSTER_FINALIZER: &str = "cluster.cluster.x-k8s.io";
/// Finalizer of Machines.
pub const MACHINE_FINALIZER: &str = "machine.cluster.x-k8s.io";
/// Finalizer of MachineSets.
pub const MACHINE_SET_FINALIZER: &str = "cluster.x-k8s.io/machineset";
/// Finalizer of MachineDeployments.
pub const MACHINE_DEPLOYMENT_FINALIZER: &str = "cluster.x-k8s.io/machinedeployment";

/// Finalizer of IPAddressClaims: their address is released first.
pub const CLAIM_FINALIZER: &str = "ipam.cluster.x-k8s.io/ReleaseAddress";
/// Finalizer of IPAddresses: they stay while their claim does.
pub const ADDRESS_FINALIZER: &str = "ipam.cluster.x-k8s.io/ProtectAddress";
/// Finalizer of in-cluster pools: they stay while an address of theirs is given.
pub const POOL_FINALIZER: &str = "ipam.cluster.x-k8s.io/ProtectPool";

/// Type of Secrets that Cluster API makes.
pub const SECRET_TYPE: &str = "cluster.x-k8s.io/secret";
