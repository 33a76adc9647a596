//! Owner references and the cluster label: who belongs to whom.

use std::sync::Arc;

use capstan_api::time::millis;
use capstan_api::well_known::CLUSTER_NAME;
use capstan_api::{Object, ObjectKey, OwnerReference};
use serde_json::{Map, Value, json};

use crate::plan::{Plan, Write};

/// The owner references of an object with `owner` among them; `None` when it is there already. A reference to an
/// earlier incarnation of the owner (same kind and name, other uid: a restored backup) is replaced.
///
/// # Errors
/// When `owner` is to be the controller and another object is: its reference.
pub fn with_owner(object: &Object, owner: &OwnerReference) -> Result<Option<Vec<OwnerReference>>, Box<OwnerReference>> {
    let same_thing = |o: &OwnerReference| o.kind == owner.kind && o.name == owner.name && o.group() == owner.group();
    let mut all = object.owner_references();
    if owner.controller == Some(true)
        && let Some(other) = all.iter().find(|o| o.controller == Some(true) && o.uid != owner.uid && !same_thing(o))
    {
        return Err(Box::new(other.clone()));
    }
    match all.iter_mut().find(|o| o.uid == owner.uid || same_thing(o)) {
        Some(known) => {
            let enough = known.uid == owner.uid && (owner.controller != Some(true) || known.controller == Some(true));
            if enough {
                return Ok(None);
            }
            *known = owner.clone();
        }
        None => all.push(owner.clone()),
    }
    Ok(Some(all))
}

/// Labels and annotations that an object takes over from the template that its Machine was made from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inherited {
    /// Labels.
    pub labels: Vec<(String, String)>,
    /// Annotations.
    pub annotations: Vec<(String, String)>,
}

/// Puts what is missing of owner reference and cluster label on an object on the plan, as one patch.
///
/// # Errors
/// When another object controls it; a text for a person.
pub fn claim(plan: &mut Plan, object: &Arc<Object>, owner: &OwnerReference, cluster: &str) -> Result<(), String> {
    claim_and_describe(plan, object, owner, cluster, &Inherited::default())
}

/// [`claim`], with further labels and annotations.
///
/// # Errors
/// When another object controls it; a text for a person.
pub fn claim_and_describe(
    plan: &mut Plan,
    object: &Arc<Object>,
    owner: &OwnerReference,
    cluster: &str,
    inherited: &Inherited,
) -> Result<(), String> {
    let owners = with_owner(object, owner)
        .map_err(|other| format!("{} is controlled by {} {} already", object.key(), other.kind, other.name))?;
    if object.is_deleting() {
        return Ok(());
    }
    let mut metadata = Map::new();
    let guarded = owners.is_some();
    if let Some(owners) = owners {
        metadata.insert("ownerReferences".into(), json!(owners));
    }
    let mut labels: Map<String, Value> = Map::new();
    if object.label(CLUSTER_NAME) != Some(cluster) {
        labels.insert(CLUSTER_NAME.into(), cluster.into());
    }
    for (key, value) in inherited.labels.iter().filter(|(key, value)| object.label(key) != Some(value)) {
        labels.insert(key.clone(), value.clone().into());
    }
    let annotations: Map<String, Value> = inherited
        .annotations
        .iter()
        .filter(|(key, value)| object.annotation(key) != Some(value))
        .map(|(key, value)| (key.clone(), value.clone().into()))
        .collect();
    for (field, entries) in [("labels", labels), ("annotations", annotations)] {
        if !entries.is_empty() {
            metadata.insert(field.into(), entries.into());
        }
    }
    if !metadata.is_empty() {
        plan.writes.push(Write::Patch {
            key: object.key(),
            patch: json!({"metadata": metadata}),
            resource_version: guarded.then(|| object.resource_version().to_owned()),
        });
    }
    Ok(())
}

/// Whether the object is owned by this uid.
pub fn owned_by(object: &Object, uid: &str) -> bool {
    object.owner_references().iter().any(|owner| owner.uid == uid)
}

/// Whether the object is controlled by this uid.
pub fn controlled_by(object: &Object, uid: &str) -> bool {
    object.controller().is_some_and(|owner| owner.uid == uid)
}

/// Puts the deletion of an object on the plan, unless it is being deleted already.
pub fn delete(plan: &mut Plan, object: &Object) {
    if !object.is_deleting() {
        plan.writes.push(Write::Delete { key: object.key(), uid: object.uid().to_owned() });
    }
}

/// When an object was created, in milliseconds since the Unix epoch; 0 when it does not say.
pub fn created(object: &Object) -> u64 {
    object.creation_timestamp().and_then(millis).unwrap_or_default()
}

/// The key of the object that an owner reference names, in a namespace.
pub fn owner_key(owner: &OwnerReference, namespace: &str) -> ObjectKey {
    ObjectKey::new(owner.group(), &owner.kind, namespace, &owner.name)
}

/// Kubernetes versions and how many of `machines` have them, oldest version first.
pub fn version_counts<'a>(machines: impl IntoIterator<Item = &'a Arc<Object>>) -> Value {
    let mut counts: Vec<(&str, u32)> = Vec::new();
    for version in machines.into_iter().filter_map(|m| m.str_at("/spec/version")) {
        match counts.iter_mut().find(|(known, _)| *known == version) {
            Some((_, count)) => *count += 1,
            None => counts.push((version, 1)),
        }
    }
    counts.sort_by(|a, b| (version_numbers(a.0), a.0).cmp(&(version_numbers(b.0), b.0)));
    counts.into_iter().map(|(version, replicas)| json!({"version": version, "replicas": replicas})).collect()
}

/// `v1.34.10` as `[1, 34, 10]`, so that it sorts after `v1.34.9`.
pub fn version_numbers(version: &str) -> Vec<u64> {
    let core = version.trim_start_matches('v').split(['-', '+']).next().unwrap_or_default();
    core.split('.').map(|n| n.parse().unwrap_or_default()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(name: &str, uid: &str, controller: bool) -> OwnerReference {
        OwnerReference {
            api_version: "cluster.x-k8s.io/v1beta2".into(),
            kind: "Machine".into(),
            name: name.into(),
            uid: uid.into(),
            controller: controller.then_some(true),
            block_owner_deletion: None,
        }
    }

    fn object(owners: &[OwnerReference]) -> Object {
        let mut object = Object::from_value(json!({"kind": "X", "metadata": {"name": "x"}})).unwrap();
        object.set("/metadata/ownerReferences", json!(owners));
        object
    }

    #[test]
    fn owners_are_added_once_replaced_when_restored_and_never_stolen() {
        let mine = owner("m", "1", true);
        assert_eq!(with_owner(&object(&[]), &mine).unwrap(), Some(vec![mine.clone()]));
        assert_eq!(with_owner(&object(std::slice::from_ref(&mine)), &mine).unwrap(), None);
        let restored = object(&[owner("m", "0", true), owner("other", "9", false)]);
        assert_eq!(with_owner(&restored, &mine).unwrap(), Some(vec![mine.clone(), owner("other", "9", false)]));
        let foreign = object(&[owner("other", "9", true)]);
        assert_eq!(with_owner(&foreign, &mine).unwrap_err().name, "other");
        assert!(with_owner(&foreign, &owner("m", "1", false)).is_ok());
    }

    #[test]
    fn versions_sort_as_numbers() {
        let machine = |v: &str| Arc::new(Object::from_value(json!({"spec": {"version": v}})).unwrap());
        let all = [machine("v1.34.10"), machine("v1.34.9"), machine("v1.34.10")];
        assert_eq!(
            version_counts(&all),
            json!([{"version": "v1.34.9", "replicas": 1}, {"version": "v1.34.10", "replicas": 2}])
        );
    }
}
