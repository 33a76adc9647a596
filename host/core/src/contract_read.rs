//! Reading provider objects by contract, never by who serves them (design, section 4): v1beta2's fields, or
//! v1beta1's where that is what the CRD speaks. References carry no version; the kind's CRD says which contract.

use std::collections::BTreeMap;
use std::sync::Arc;

use capstan_api::well_known::{CLUSTER_GROUP, CLUSTER_NAME, PAUSED};
use capstan_api::{Object, ObjectKey};
use serde_json::{Value, json};

use crate::conditions::{Condition, Fallback, mirror};
use crate::contract::{FailureDomain, HostPort};
use crate::view::{NotNow, Place, View};

/// Which contract a provider's CRD speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contract {
    /// `status.initialization.*`.
    V1Beta2,
    /// `status.ready` and its like.
    V1Beta1,
}

/// `{apiGroup, kind, name}`, as core objects refer to provider objects of their own namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// `apiGroup`.
    pub group: String,
    /// `kind`.
    pub kind: String,
    /// `name`.
    pub name: String,
}

impl Reference {
    /// The reference at a JSON pointer; `None` when there is none (an empty object is none).
    pub fn at(object: &Object, pointer: &str) -> Option<Self> {
        let value = object.at(pointer)?;
        let word = |field: &str| value.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
        let found = Self { group: word("apiGroup"), kind: word("kind"), name: word("name") };
        (!found.kind.is_empty() || !found.name.is_empty()).then_some(found)
    }

    /// As JSON.
    pub fn to_value(&self) -> Value {
        json!({"apiGroup": self.group, "kind": self.kind, "name": self.name})
    }

    /// The key in a namespace.
    pub fn key(&self, namespace: &str) -> ObjectKey {
        ObjectKey::new(&self.group, &self.kind, namespace, &self.name)
    }
}

/// A provider object and how to read it.
#[derive(Clone, Debug)]
pub struct Duck {
    /// The object.
    pub object: Arc<Object>,
    /// The contract its CRD speaks.
    pub contract: Contract,
}

/// What a reference led to.
#[derive(Clone, Debug)]
pub enum Found {
    /// The object.
    Object(Duck),
    /// The kind is served and there is no such object (any more).
    Missing,
    /// The reference can lead nowhere until a person changes it or installs a provider; the text names the
    /// field, what it says and what to do.
    Wrong(String),
}

impl Found {
    /// The object, if there is one.
    pub fn duck(&self) -> Option<&Duck> {
        match self {
            Self::Object(duck) => Some(duck),
            _ => None,
        }
    }
}

/// Follows a reference that stands at `path` (for messages, such as `spec.infrastructureRef`).
///
/// # Errors
/// [`NotNow`] while the cache of the kind is being filled.
pub fn follow(view: &dyn View, namespace: &str, path: &str, to: &Reference) -> Result<Found, NotNow> {
    let contract = match view.contract(&to.group, &to.kind) {
        Ok(contract) => contract,
        Err(NotNow::NoSuchKind { .. }) => {
            // Asking for the object leaves a trace, so the kind's arrival brings the decision back.
            match view.get(&Place::Management, &to.key(namespace)) {
                Err(NotNow::NoSuchKind { .. }) | Ok(_) => {}
                Err(other) => return Err(other),
            }
            return Ok(Found::Wrong(format!(
                "{path} names {} of group {:?}, which is not served here: correct apiGroup and kind, or load the \
                 provider that brings it",
                to.kind, to.group
            )));
        }
        Err(other) => return Err(other),
    };
    let contract = match contract.as_deref() {
        Some("v1beta2") => Contract::V1Beta2,
        Some("v1beta1") => Contract::V1Beta1,
        Some(other) => {
            return Ok(Found::Wrong(format!(
                "{path} names {} of group {:?}, whose CRD speaks contract {other}; v1beta2 and v1beta1 are understood",
                to.kind, to.group
            )));
        }
        None => {
            return Ok(Found::Wrong(format!(
                "{path} names {} of group {:?}, whose CRD has no label cluster.x-k8s.io/v1beta2: it is no provider's kind",
                to.kind, to.group
            )));
        }
    };
    Ok(match view.get(&Place::Management, &to.key(namespace))? {
        Some(object) => Found::Object(Duck { object, contract }),
        None => Found::Missing,
    })
}

impl Duck {
    /// A boolean that has one path in each contract.
    fn flag(&self, v1beta2: &str, v1beta1: &str) -> bool {
        match self.contract {
            Contract::V1Beta2 => self.object.bool_at(v1beta2),
            Contract::V1Beta1 => self.object.bool_at(v1beta1),
        }
    }

    /// InfraCluster, InfraMachine: what it stands for was made.
    pub fn provisioned(&self) -> bool {
        self.flag("/status/initialization/provisioned", "/status/ready")
    }

    /// BootstrapConfig: the data Secret was made.
    pub fn data_secret_created(&self) -> bool {
        self.flag("/status/initialization/dataSecretCreated", "/status/ready")
    }

    /// ControlPlane: the workload cluster answers.
    pub fn control_plane_initialized(&self) -> bool {
        self.flag("/status/initialization/controlPlaneInitialized", "/status/initialized")
    }

    /// BootstrapConfig: name of the data Secret.
    pub fn data_secret_name(&self) -> Option<&str> {
        self.object.str_at("/status/dataSecretName")
    }

    /// InfraMachine: `spec.providerID`.
    pub fn provider_id(&self) -> Option<&str> {
        self.object.str_at("/spec/providerID")
    }

    /// InfraMachine: `status.addresses`, only entries with type and address.
    pub fn addresses(&self) -> Vec<Value> {
        let list = self.object.at("/status/addresses").and_then(Value::as_array);
        let word = |a: &Value, field: &str| a.get(field).and_then(Value::as_str).map(str::to_owned);
        list.into_iter()
            .flatten()
            .filter_map(|a| Some(json!({"type": word(a, "type")?, "address": word(a, "address")?})))
            .collect()
    }

    /// InfraMachine: where it is. v1beta1's `spec.failureDomain` counts under both contracts.
    pub fn machine_failure_domain(&self) -> Option<&str> {
        self.object.str_at("/status/failureDomain").or_else(|| self.object.str_at("/spec/failureDomain"))
    }

    /// InfraCluster, ControlPlane: `spec.controlPlaneEndpoint`, when host and port are there.
    pub fn control_plane_endpoint(&self) -> Option<HostPort> {
        endpoint(&self.object)
    }

    /// InfraCluster: failure domains sorted by name; a list in v1beta2, a map in v1beta1.
    pub fn failure_domains(&self) -> Vec<FailureDomain> {
        let mut found: Vec<FailureDomain> = match self.object.at("/status/failureDomains") {
            Some(Value::Array(list)) => {
                list.iter().filter_map(|one| Some(failure_domain(one.get("name")?.as_str()?, one))).collect()
            }
            Some(Value::Object(map)) => map.iter().map(|(name, one)| failure_domain(name, one)).collect(),
            _ => Vec::new(),
        };
        found.sort_by(|a, b| a.name.cmp(&b.name));
        found.dedup_by(|a, b| a.name == b.name);
        found
    }

    /// A copy of one of its conditions, or of the contract's boolean where it has none.
    pub fn mirrored(&self, target: &str, source: &str, v1beta2: &str, v1beta1: &str) -> Condition {
        let (field, pointer) = match self.contract {
            Contract::V1Beta2 => {
                (format!("status.initialization.{v1beta2}"), format!("/status/initialization/{v1beta2}"))
            }
            Contract::V1Beta1 => (format!("status.{v1beta1}"), format!("/status/{v1beta1}")),
        };
        mirror(target, &self.object, source, Fallback { field: &field, holds: self.object.bool_at(&pointer) })
    }
}

/// `spec.controlPlaneEndpoint`, when host and port are there.
pub fn endpoint(object: &Object) -> Option<HostPort> {
    let host = object.str_at("/spec/controlPlaneEndpoint/host")?;
    let port = u16::try_from(object.int_at("/spec/controlPlaneEndpoint/port")?).ok().filter(|port| *port > 0)?;
    Some(HostPort { host: host.to_owned(), port })
}

fn failure_domain(name: &str, value: &Value) -> FailureDomain {
    let attributes: BTreeMap<String, String> = value
        .get("attributes")
        .and_then(Value::as_object)
        .map(|map| map.iter().filter_map(|(k, v)| Some((k.clone(), v.as_str()?.to_owned()))).collect())
        .unwrap_or_default();
    FailureDomain {
        name: name.to_owned(),
        control_plane: value.get("controlPlane").and_then(Value::as_bool).unwrap_or(false),
        attributes,
    }
}

/// Failure domains as `status.failureDomains` of v1beta2.
pub fn failure_domains_value(domains: &[FailureDomain]) -> Value {
    domains
        .iter()
        .map(|d| {
            if d.attributes.is_empty() {
                json!({"name": d.name, "controlPlane": d.control_plane})
            } else {
                json!({"name": d.name, "controlPlane": d.control_plane, "attributes": d.attributes})
            }
        })
        .collect()
}

/// The Cluster of a namespace with this name.
///
/// # Errors
/// [`NotNow`] while the cache is being filled.
pub fn cluster(view: &dyn View, namespace: &str, name: &str) -> Result<Option<Arc<Object>>, NotNow> {
    view.get(&Place::Management, &ObjectKey::new(CLUSTER_GROUP, "Cluster", namespace, name))
}

/// The name of the Cluster that an object belongs to: `spec.clusterName`, else its label.
pub fn cluster_name(object: &Object) -> Option<&str> {
    object.str_at("/spec/clusterName").or_else(|| object.label(CLUSTER_NAME))
}

/// The `Paused` condition of an object of this cluster: True when the Cluster's `spec.paused` is set or the object
/// is annotated. What is paused is neither created, changed nor deleted.
pub fn paused(cluster: Option<&Object>, object: &Object) -> Condition {
    let mut why = Vec::new();
    if cluster.is_some_and(|c| c.bool_at("/spec/paused")) {
        why.push("Cluster spec.paused is set to true".to_owned());
    }
    if object.annotation(PAUSED).is_some() {
        why.push(format!("{} has the {PAUSED} annotation", object.kind()));
    }
    if why.is_empty() {
        Condition::no("Paused", "NotPaused", "")
    } else {
        Condition::new("Paused", true, "Paused", why.join(", "))
    }
}

/// Whether [`paused`] is True.
pub fn is_paused(cluster: Option<&Object>, object: &Object) -> bool {
    cluster.is_some_and(|c| c.bool_at("/spec/paused")) || object.annotation(PAUSED).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::World;

    fn infra(status: Value) -> Value {
        json!({"apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1", "kind": "SimCluster",
            "metadata": {"name": "c", "namespace": "n"},
            "spec": {"controlPlaneEndpoint": {"host": "h", "port": 6443}}, "status": status})
    }

    fn to() -> Reference {
        Reference { group: "infrastructure.cluster.x-k8s.io".into(), kind: "SimCluster".into(), name: "c".into() }
    }

    fn duck(world: &World) -> Duck {
        follow(world, "n", "spec.infrastructureRef", &to()).unwrap().duck().unwrap().clone()
    }

    #[test]
    fn each_contract_has_its_own_paths() {
        let mut world = World::new();
        world.put(infra(json!({"initialization": {"provisioned": true},
            "failureDomains": [{"name": "b", "controlPlane": true}, {"name": "a", "attributes": {"x": "y"}}]})));
        let v1beta2 = duck(&world);
        assert!(v1beta2.provisioned());
        let domains = v1beta2.failure_domains();
        assert_eq!(
            failure_domains_value(&domains),
            json!([{"name": "a", "controlPlane": false, "attributes": {"x": "y"}}, {"name": "b", "controlPlane": true}])
        );
        world.set_contract("infrastructure.cluster.x-k8s.io", "SimCluster", Some("v1beta1"));
        assert!(!duck(&world).provisioned());
        world.put(infra(json!({"ready": true, "failureDomains": {"z": {"controlPlane": true}}})));
        let v1beta1 = duck(&world);
        assert!(v1beta1.provisioned());
        assert_eq!(v1beta1.failure_domains()[0].name, "z");
        assert_eq!(v1beta1.control_plane_endpoint(), Some(HostPort { host: "h".into(), port: 6443 }));
        let mirrored = v1beta1.mirrored("InfrastructureReady", "Ready", "provisioned", "ready");
        assert_eq!(mirrored, Condition::yes("InfrastructureReady", "Ready"));
    }

    #[test]
    fn a_wrong_reference_says_where_and_what() {
        let mut world = World::new();
        world.unserve("infrastructure.cluster.x-k8s.io", "SimCluster");
        let Found::Wrong(text) = follow(&world, "n", "spec.infrastructureRef", &to()).unwrap() else { panic!() };
        assert!(text.contains("spec.infrastructureRef") && text.contains("SimCluster"), "{text}");
        let mut world = World::new();
        world.set_contract("infrastructure.cluster.x-k8s.io", "SimCluster", None);
        assert!(matches!(follow(&world, "n", "p", &to()).unwrap(), Found::Wrong(text) if text.contains("label")));
        let mut world = World::new();
        world.set_cold("SimCluster", true);
        assert!(follow(&world, "n", "p", &to()).is_err());
    }

    #[test]
    fn pausing_is_the_clusters_or_the_objects() {
        let cluster = Object::from_value(json!({"kind": "Cluster", "spec": {"paused": true}})).unwrap();
        let mut machine = Object::from_value(json!({"kind": "Machine"})).unwrap();
        assert!(!is_paused(None, &machine) && is_paused(Some(&cluster), &machine));
        machine.set_annotation(PAUSED, "");
        assert_eq!(
            paused(Some(&cluster), &machine).message,
            "Cluster spec.paused is set to true, Machine has the cluster.x-k8s.io/paused annotation"
        );
    }
}
