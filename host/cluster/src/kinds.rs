//! Which kinds the API server serves, and how each is addressed.
//!
//! Kinds of CRDs come in the newest contract that the host understands (`v1beta2`, then `v1beta1`, from the CRD's
//! labels) and in the highest version of it; CRDs without such a label in their highest served version. Built-in
//! kinds come from a table.

use std::cmp::Ordering;

use capstan_api::{Gvk, Object};
use serde_json::Value;

/// Contracts of Cluster API that the host understands, newest first.
pub const CONTRACTS: [&str; 2] = ["v1beta2", "v1beta1"];

/// How a kind is addressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// API group; empty for the core group.
    pub group: String,
    /// Version.
    pub version: String,
    /// Kind.
    pub kind: String,
    /// Plural, as in paths.
    pub plural: String,
    /// Whether its objects live in namespaces.
    pub namespaced: bool,
}

impl Resource {
    /// Group, version and kind.
    pub fn gvk(&self) -> Gvk {
        Gvk::new(&self.group, &self.version, &self.kind)
    }

    /// In another version.
    #[must_use]
    pub fn in_version(&self, version: &str) -> Self {
        Self { version: version.to_owned(), ..self.clone() }
    }

    /// Path of the collection; of all namespaces when `namespace` is empty.
    pub fn collection(&self, namespace: &str) -> String {
        let root = if self.group.is_empty() {
            format!("/api/{}", self.version)
        } else {
            format!("/apis/{}/{}", self.group, self.version)
        };
        if self.namespaced && !namespace.is_empty() {
            format!("{root}/namespaces/{namespace}/{}", self.plural)
        } else {
            format!("{root}/{}", self.plural)
        }
    }

    /// Path of an object.
    pub fn path(&self, namespace: &str, name: &str) -> String {
        format!("{}/{name}", self.collection(namespace))
    }
}

/// Built-in kinds that a management plane meets: group, version, kind, plural, namespaced.
const BUILTIN: &[(&str, &str, &str, &str, bool)] = &[
    ("", "v1", "ConfigMap", "configmaps", true),
    ("", "v1", "Endpoints", "endpoints", true),
    ("", "v1", "Event", "events", true),
    ("", "v1", "Namespace", "namespaces", false),
    ("", "v1", "Node", "nodes", false),
    ("", "v1", "PersistentVolume", "persistentvolumes", false),
    ("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", true),
    ("", "v1", "Pod", "pods", true),
    ("", "v1", "Secret", "secrets", true),
    ("", "v1", "Service", "services", true),
    ("", "v1", "ServiceAccount", "serviceaccounts", true),
    ("admissionregistration.k8s.io", "v1", "MutatingWebhookConfiguration", "mutatingwebhookconfigurations", false),
    ("admissionregistration.k8s.io", "v1", "ValidatingWebhookConfiguration", "validatingwebhookconfigurations", false),
    ("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", false),
    ("apps", "v1", "DaemonSet", "daemonsets", true),
    ("apps", "v1", "Deployment", "deployments", true),
    ("apps", "v1", "ReplicaSet", "replicasets", true),
    ("apps", "v1", "StatefulSet", "statefulsets", true),
    ("batch", "v1", "Job", "jobs", true),
    ("coordination.k8s.io", "v1", "Lease", "leases", true),
    ("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", true),
    ("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles", false),
    ("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings", false),
    ("rbac.authorization.k8s.io", "v1", "Role", "roles", true),
    ("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings", true),
    ("storage.k8s.io", "v1", "VolumeAttachment", "volumeattachments", false),
];

/// A built-in kind.
pub fn builtin(group: &str, kind: &str) -> Option<Resource> {
    BUILTIN.iter().find(|(g, _, k, _, _)| *g == group && *k == kind).map(
        |(group, version, kind, plural, namespaced)| Resource {
            group: (*group).into(),
            version: (*version).into(),
            kind: (*kind).into(),
            plural: (*plural).into(),
            namespaced: *namespaced,
        },
    )
}

/// What a CRD says about its kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definition {
    /// How it is addressed.
    pub resource: Resource,
    /// Contract that this version speaks; `None` without a contract label.
    pub contract: Option<String>,
}

/// Reads a CRD; `None` while it is not established or serves no version.
pub fn definition(crd: &Object) -> Option<Definition> {
    let established = crd.at("/status/conditions").and_then(Value::as_array).is_some_and(|conditions| {
        conditions.iter().any(|c| {
            c.get("type").and_then(Value::as_str) == Some("Established")
                && c.get("status").and_then(Value::as_str) == Some("True")
        })
    });
    if !established {
        return None;
    }
    let served: Vec<&str> = crd
        .at("/spec/versions")
        .and_then(Value::as_array)?
        .iter()
        .filter(|v| v.get("served").and_then(Value::as_bool).unwrap_or(false))
        .filter_map(|v| v.get("name").and_then(Value::as_str))
        .collect();
    let by_contract = CONTRACTS.iter().find_map(|contract| {
        let versions: Vec<&str> =
            crd.label(&format!("cluster.x-k8s.io/{contract}"))?.split('_').filter(|v| served.contains(v)).collect();
        highest(&versions).map(|version| (Some((*contract).to_owned()), version))
    });
    // An old form of the label names the contract and not the versions.
    let by_name = || {
        let contract = crd.label("cluster.x-k8s.io/contract")?;
        CONTRACTS.contains(&contract).then_some(())?;
        highest(&served).map(|version| (Some(contract.to_owned()), version))
    };
    let (contract, version) =
        by_contract.or_else(by_name).or_else(|| highest(&served).map(|version| (None, version)))?;
    Some(Definition {
        resource: Resource {
            group: crd.str_at("/spec/group")?.to_owned(),
            version: version.to_owned(),
            kind: crd.str_at("/spec/names/kind")?.to_owned(),
            plural: crd.str_at("/spec/names/plural")?.to_owned(),
            namespaced: crd.str_at("/spec/scope") == Some("Namespaced"),
        },
        contract,
    })
}

fn highest<'a>(versions: &[&'a str]) -> Option<&'a str> {
    versions.iter().copied().max_by(|a, b| compare_versions(a, b))
}

/// Kubernetes' order of versions: `v2` > `v1` > `v1beta2` > `v1beta1` > `v1alpha1` > anything else (by its text, the
/// first in the alphabet being the highest).
pub fn compare_versions(a: &str, b: &str) -> Ordering {
    match (rank(a), rank(b)) {
        (Some(a), Some(b)) => a.cmp(&b),
        (Some(_), None) => Ordering::Greater,
        (None, Some(_)) => Ordering::Less,
        (None, None) => b.cmp(a),
    }
}

/// Stability (2 stable, 1 beta, 0 alpha), major and minor.
fn rank(version: &str) -> Option<(u8, u64, u64)> {
    let rest = version.strip_prefix('v')?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (major, rest) = rest.split_at_checked(digits)?;
    let major = major.parse().ok()?;
    let (stability, minor) = if rest.is_empty() {
        return Some((2, major, 0));
    } else if let Some(minor) = rest.strip_prefix("beta") {
        (1, minor)
    } else {
        (0, rest.strip_prefix("alpha")?)
    };
    Some((stability, major, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn crd(labels: Value, versions: &[(&str, bool)]) -> Object {
        let versions: Vec<Value> = versions.iter().map(|(n, served)| json!({"name": n, "served": served})).collect();
        Object::from_value(json!({
            "kind": "CustomResourceDefinition", "metadata": {"name": "x", "labels": labels},
            "spec": {"group": "g", "scope": "Namespaced", "names": {"kind": "X", "plural": "xs"}, "versions": versions},
            "status": {"conditions": [{"type": "Established", "status": "True"}]},
        }))
        .unwrap()
    }

    #[test]
    fn the_newest_contract_and_its_highest_served_version_count() {
        let all = [("v1alpha4", true), ("v1beta1", true), ("v1beta2", true), ("v1", false)];
        let both = json!({"cluster.x-k8s.io/v1beta1": "v1alpha4_v1beta1", "cluster.x-k8s.io/v1beta2": "v1beta2_v1"});
        let found = definition(&crd(both, &all)).unwrap();
        assert_eq!((found.resource.version.as_str(), found.contract.as_deref()), ("v1beta2", Some("v1beta2")));
        let old = json!({"cluster.x-k8s.io/v1beta1": "v1alpha4_v1beta1"});
        let found = definition(&crd(old, &all)).unwrap();
        assert_eq!((found.resource.version.as_str(), found.contract.as_deref()), ("v1beta1", Some("v1beta1")));
        let named = definition(&crd(json!({"cluster.x-k8s.io/contract": "v1beta1"}), &all)).unwrap();
        assert_eq!(named.contract.as_deref(), Some("v1beta1"));
        let none = definition(&crd(json!({}), &all)).unwrap();
        assert_eq!((none.resource.version.as_str(), none.contract), ("v1beta2", None));
    }

    #[test]
    fn a_crd_that_is_not_established_serves_nothing() {
        let mut object = crd(json!({}), &[("v1", true)]);
        object.set("/status/conditions", json!([{"type": "Established", "status": "False"}]));
        assert_eq!(definition(&object), None);
    }

    #[test]
    fn versions_are_ordered_as_kubernetes_orders_them() {
        let mut versions = ["v1alpha1", "foo10", "v10", "v1beta2", "v2", "v11beta1", "v1", "foo1", "v1beta10"];
        versions.sort_by(|a, b| compare_versions(b, a));
        assert_eq!(versions, ["v10", "v2", "v1", "v11beta1", "v1beta10", "v1beta2", "v1alpha1", "foo1", "foo10"]);
    }

    #[test]
    fn paths() {
        let secret = builtin("", "Secret").unwrap();
        assert_eq!(secret.path("n", "a"), "/api/v1/namespaces/n/secrets/a");
        assert_eq!(secret.collection(""), "/api/v1/secrets");
        let lease = builtin("coordination.k8s.io", "Lease").unwrap();
        assert_eq!(lease.collection("n"), "/apis/coordination.k8s.io/v1/namespaces/n/leases");
        assert_eq!(builtin("", "Node").unwrap().path("", "a"), "/api/v1/nodes/a");
    }
}
