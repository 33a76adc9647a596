//! The built-in kinds that a management plane and a small workload cluster need.
//!
//! Their schemas come from the `k8s-openapi` crate (see `definitions`), are compiled once for the whole process and shared
//! by every server in it.

use super::Schema;
use super::definitions;
use super::node::Node;
use std::sync::Arc;

/// A kind that the server knows without a CustomResourceDefinition.
#[derive(Clone, Copy, Debug)]
pub struct BuiltinKind {
    /// The group; `""` for the core group.
    pub group: &'static str,
    /// The version. Each kind has one.
    pub version: &'static str,
    /// The kind, as in `Pod`.
    pub kind: &'static str,
    /// The name in URLs, as in `pods`.
    pub plural: &'static str,
    /// The name for one, as in `pod`.
    pub singular: &'static str,
    /// What kubectl users type, as in `po`.
    pub short_names: &'static [&'static str],
    /// Whether objects live in a namespace.
    pub namespaced: bool,
    /// The subresources that real servers have and clients here use.
    pub subresources: &'static [&'static str],
    /// The schema. Compiled on first use, cheap afterwards.
    pub schema: fn() -> Schema,
}

/// The compiled schema of a definition, such as `io.k8s.api.core.v1.PodSpec`.
pub(crate) fn definition(name: &str) -> Arc<Node> {
    definitions::nodes().get(name).cloned().unwrap_or_else(|| Arc::new(Node::any()))
}

macro_rules! kinds {
    ($($group:literal $definition:literal $version:literal $kind:literal $plural:literal $singular:literal
        [$($short:literal)*] $namespaced:literal [$($sub:literal)*])*) => {
        static KINDS: &[BuiltinKind] = &[$(BuiltinKind {
            group: $group,
            version: $version,
            kind: $kind,
            plural: $plural,
            singular: $singular,
            short_names: &[$($short),*],
            namespaced: $namespaced,
            subresources: &[$($sub),*],
            schema: || Schema::builtin(concat!($definition, ".", $version, ".", $kind)),
        }),*];
    };
}

kinds! {
    "" "io.k8s.api.core" "v1" "ConfigMap" "configmaps" "configmap" ["cm"] true []
    "" "io.k8s.api.core" "v1" "Endpoints" "endpoints" "endpoints" ["ep"] true []
    "" "io.k8s.api.core" "v1" "Event" "events" "event" ["ev"] true []
    "" "io.k8s.api.core" "v1" "Namespace" "namespaces" "namespace" ["ns"] false ["status" "finalize"]
    "" "io.k8s.api.core" "v1" "Node" "nodes" "node" ["no"] false ["proxy" "status"]
    "" "io.k8s.api.core" "v1" "PersistentVolume" "persistentvolumes" "persistentvolume" ["pv"] false ["status"]
    "" "io.k8s.api.core" "v1" "PersistentVolumeClaim" "persistentvolumeclaims" "persistentvolumeclaim" ["pvc"] true ["status"]
    "" "io.k8s.api.core" "v1" "Pod" "pods" "pod" ["po"] true ["status" "eviction" "binding" "portforward"]
    "" "io.k8s.api.core" "v1" "Secret" "secrets" "secret" [] true []
    "" "io.k8s.api.core" "v1" "Service" "services" "service" ["svc"] true ["status"]
    "" "io.k8s.api.core" "v1" "ServiceAccount" "serviceaccounts" "serviceaccount" ["sa"] true ["token"]
    "admissionregistration.k8s.io" "io.k8s.api.admissionregistration" "v1" "MutatingWebhookConfiguration" "mutatingwebhookconfigurations" "mutatingwebhookconfiguration" [] false []
    "admissionregistration.k8s.io" "io.k8s.api.admissionregistration" "v1" "ValidatingAdmissionPolicy" "validatingadmissionpolicies" "validatingadmissionpolicy" [] false ["status"]
    "admissionregistration.k8s.io" "io.k8s.api.admissionregistration" "v1" "ValidatingAdmissionPolicyBinding" "validatingadmissionpolicybindings" "validatingadmissionpolicybinding" [] false []
    "admissionregistration.k8s.io" "io.k8s.api.admissionregistration" "v1" "ValidatingWebhookConfiguration" "validatingwebhookconfigurations" "validatingwebhookconfiguration" [] false []
    "apiextensions.k8s.io" "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions" "v1" "CustomResourceDefinition" "customresourcedefinitions" "customresourcedefinition" ["crd" "crds"] false ["status"]
    "apps" "io.k8s.api.apps" "v1" "ControllerRevision" "controllerrevisions" "controllerrevision" [] true []
    "apps" "io.k8s.api.apps" "v1" "DaemonSet" "daemonsets" "daemonset" ["ds"] true ["status"]
    "apps" "io.k8s.api.apps" "v1" "Deployment" "deployments" "deployment" ["deploy"] true ["status" "scale"]
    "apps" "io.k8s.api.apps" "v1" "ReplicaSet" "replicasets" "replicaset" ["rs"] true ["status" "scale"]
    "apps" "io.k8s.api.apps" "v1" "StatefulSet" "statefulsets" "statefulset" ["sts"] true ["status" "scale"]
    "batch" "io.k8s.api.batch" "v1" "Job" "jobs" "job" [] true ["status"]
    "certificates.k8s.io" "io.k8s.api.certificates" "v1" "CertificateSigningRequest" "certificatesigningrequests" "certificatesigningrequest" ["csr"] false ["status" "approval"]
    "coordination.k8s.io" "io.k8s.api.coordination" "v1" "Lease" "leases" "lease" [] true []
    "discovery.k8s.io" "io.k8s.api.discovery" "v1" "EndpointSlice" "endpointslices" "endpointslice" [] true []
    "events.k8s.io" "io.k8s.api.events" "v1" "Event" "events" "event" ["ev"] true []
    "networking.k8s.io" "io.k8s.api.networking" "v1" "NetworkPolicy" "networkpolicies" "networkpolicy" ["netpol"] true []
    "policy" "io.k8s.api.policy" "v1" "PodDisruptionBudget" "poddisruptionbudgets" "poddisruptionbudget" ["pdb"] true ["status"]
    "rbac.authorization.k8s.io" "io.k8s.api.rbac" "v1" "ClusterRole" "clusterroles" "clusterrole" [] false []
    "rbac.authorization.k8s.io" "io.k8s.api.rbac" "v1" "ClusterRoleBinding" "clusterrolebindings" "clusterrolebinding" [] false []
    "rbac.authorization.k8s.io" "io.k8s.api.rbac" "v1" "Role" "roles" "role" [] true []
    "rbac.authorization.k8s.io" "io.k8s.api.rbac" "v1" "RoleBinding" "rolebindings" "rolebinding" [] true []
    "scheduling.k8s.io" "io.k8s.api.scheduling" "v1" "PriorityClass" "priorityclasses" "priorityclass" ["pc"] false []
    "storage.k8s.io" "io.k8s.api.storage" "v1" "StorageClass" "storageclasses" "storageclass" ["sc"] false []
    "storage.k8s.io" "io.k8s.api.storage" "v1" "VolumeAttachment" "volumeattachments" "volumeattachment" [] false ["status"]
}

/// The OpenAPI v3 components of all built-in kinds of a group and version, with everything they refer to.
///
/// Made anew on each call (a few milliseconds): for answers to `/openapi/v3`, which clients keep.
pub fn builtin_components(group: &str, version: &str) -> serde_json::Map<String, serde_json::Value> {
    let roots: Vec<&str> = KINDS
        .iter()
        .filter(|kind| kind.group == group && kind.version == version)
        .filter_map(|kind| (kind.schema)().definition())
        .collect();
    definitions::components(&roots)
}

/// All built-in kinds, sorted by group and kind.
pub fn builtins() -> &'static [BuiltinKind] {
    KINDS
}
