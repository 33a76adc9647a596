//! A management cluster in memory, for tests of rules: objects in, plans out, and the plans carried out.
//!
//! [`World`] is a [`View`] and applies [`Plan`]s as an API server would: uids, generations and creation times
//! are given, an object with finalizers stays until they are gone, and what an owner leaves behind is collected.
//! It keeps every write, so that a test can count them. Provider turns are not run.

#[cfg(test)]
pub mod fleet;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use capstan_api::time::rfc3339;
use capstan_api::{Object, ObjectKey};
use serde_json::{Value, json};

use crate::contract::Served;
use crate::plan::{Plan, WorkloadWrite, Write};
use crate::view::{Connection, LastTurn, NotNow, Place, Select, View};

/// An in-memory world at one time.
#[derive(Debug, Default)]
pub struct World {
    /// Milliseconds since the Unix epoch; creation and deletion times come from it.
    pub now: u64,
    /// Every write that was applied, in order.
    pub writes: Vec<Write>,
    /// What is remembered of finished turns.
    pub last_turns: BTreeMap<ObjectKey, LastTurn>,
    places: BTreeMap<String, BTreeMap<ObjectKey, Arc<Object>>>,
    contracts: BTreeMap<(String, String), Option<String>>,
    served: BTreeMap<(String, String), Served>,
    connections: BTreeMap<(String, String), Connection>,
    absent: BTreeSet<(String, String)>,
    cold: BTreeSet<String>,
    reads: RefCell<Vec<ObjectKey>>,
    counter: u64,
}

fn place_name(place: &Place) -> String {
    match place {
        Place::Management => String::new(),
        Place::Workload { namespace, cluster } => format!("{namespace}/{cluster}"),
    }
}

/// The workload cluster of this Cluster.
pub fn workload(namespace: &str, cluster: &str) -> Place {
    Place::Workload { namespace: namespace.to_owned(), cluster: cluster.to_owned() }
}

/// RFC 7386 merge patch.
pub fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let Value::Object(target) = target else { return };
    for (key, value) in patch {
        if value.is_null() {
            target.shift_remove(key);
        } else {
            merge(target.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

impl World {
    /// An empty world on 30 November 2025.
    pub fn new() -> Self {
        Self { now: 1_764_460_800_000, ..Self::default() }
    }

    /// Puts an object in, or replaces it. Gives what a server gives where it is missing: uid,
    /// resourceVersion, generation, creationTimestamp. Panics when the value is no object with apiVersion,
    /// kind and metadata.name.
    pub fn put(&mut self, object: Value) -> Arc<Object> {
        self.put_in(&Place::Management, object)
    }

    /// [`World::put`] in a place of choice.
    pub fn put_in(&mut self, place: &Place, object: Value) -> Arc<Object> {
        let Some(mut object) = Object::from_value(object) else { return Arc::default() };
        assert!(!object.kind().is_empty() && !object.name().is_empty(), "no kind or name: {object:?}");
        self.counter += 1;
        if object.uid().is_empty() {
            object.set("/metadata/uid", format!("uid-{}", self.counter).into());
        }
        if object.generation() == 0 {
            object.set("/metadata/generation", 1.into());
        }
        if object.creation_timestamp().is_none() {
            object.set("/metadata/creationTimestamp", rfc3339(self.now).into());
        }
        object.set("/metadata/resourceVersion", self.counter.to_string().into());
        let object = Arc::new(object);
        self.places.entry(place_name(place)).or_default().insert(object.key(), Arc::clone(&object));
        object
    }

    /// An object of the management cluster, whether or not its kind is cold.
    pub fn find(&self, key: &ObjectKey) -> Option<Arc<Object>> {
        self.find_in(&Place::Management, key)
    }

    /// An object of a place.
    pub fn find_in(&self, place: &Place, key: &ObjectKey) -> Option<Arc<Object>> {
        self.places.get(&place_name(place)).and_then(|objects| objects.get(key)).cloned()
    }

    /// All objects of a kind in the management cluster, sorted by namespace and name.
    pub fn all(&self, kind: &str) -> Vec<Arc<Object>> {
        self.places
            .get("")
            .map(|objects| objects.values().filter(|o| o.kind() == kind).cloned().collect())
            .unwrap_or_default()
    }

    /// Changes an object as its owner would (the generation moves when the spec does). False when absent.
    pub fn edit(&mut self, key: &ObjectKey, change: impl FnOnce(&mut Object)) -> bool {
        self.edit_in(&Place::Management, key, change)
    }

    /// [`World::edit`] in a place of choice.
    pub fn edit_in(&mut self, place: &Place, key: &ObjectKey, change: impl FnOnce(&mut Object)) -> bool {
        let Some(old) = self.find_in(place, key) else { return false };
        let mut new = Object::clone(&old);
        change(&mut new);
        if new == *old {
            return true;
        }
        if new.0.get("spec") != old.0.get("spec") {
            new.set("/metadata/generation", (old.generation() + 1).into());
        }
        if new.is_deleting() && new.finalizers().is_empty() {
            self.vanish(place, key);
            return true;
        }
        self.counter += 1;
        new.set("/metadata/resourceVersion", self.counter.to_string().into());
        self.places.entry(place_name(place)).or_default().insert(key.clone(), Arc::new(new));
        true
    }

    /// Deletes as a client would: finalizers are waited for, dependents are collected.
    pub fn delete(&mut self, key: &ObjectKey) {
        self.delete_in(&Place::Management, key);
    }

    /// [`World::delete`] in a place of choice.
    pub fn delete_in(&mut self, place: &Place, key: &ObjectKey) {
        let Some(old) = self.find_in(place, key) else { return };
        if old.finalizers().is_empty() {
            self.vanish(place, key);
        } else if !old.is_deleting() {
            let stamp = rfc3339(self.now);
            self.edit_in(place, key, |o| o.set("/metadata/deletionTimestamp", stamp.into()));
        }
    }

    fn vanish(&mut self, place: &Place, key: &ObjectKey) {
        let name = place_name(place);
        let Some(objects) = self.places.get_mut(&name) else { return };
        objects.remove(key);
        let uids: BTreeSet<String> = objects.values().map(|o| o.uid().to_owned()).collect();
        let orphans: Vec<ObjectKey> = objects
            .iter()
            .filter(|(_, o)| {
                let owners = o.owner_references();
                !owners.is_empty() && owners.iter().all(|owner| !uids.contains(&owner.uid))
            })
            .map(|(key, _)| key.clone())
            .collect();
        for orphan in orphans {
            self.delete_in(place, &orphan);
        }
    }

    /// Says which contract a kind's CRD speaks. Without it, kinds of a group that ends in `cluster.x-k8s.io`
    /// speak v1beta2 and others none.
    pub fn set_contract(&mut self, group: &str, kind: &str, contract: Option<&str>) {
        self.contracts.insert((group.into(), kind.into()), contract.map(str::to_owned));
    }

    /// Makes a kind one that the API server does not serve.
    pub fn unserve(&mut self, group: &str, kind: &str) {
        self.absent.insert((group.into(), kind.into()));
    }

    /// Makes a kind one whose cache is not filled yet (or is again).
    pub fn set_cold(&mut self, kind: &str, cold: bool) {
        if cold {
            self.cold.insert(kind.into());
        } else {
            self.cold.remove(kind);
        }
    }

    /// Has a module serve its kinds.
    pub fn serve(&mut self, served: &Served) {
        for kind in served.cluster_kind.iter().chain(&served.machine_kind) {
            self.served.insert((served.group.clone(), kind.clone()), served.clone());
        }
    }

    /// Has a module serve one kind with this answer.
    pub fn serve_kind(&mut self, kind: &str, served: Served) {
        self.served.insert((served.group.clone(), kind.into()), served);
    }

    /// Sets the connection to a workload cluster; without it, [`Connection::Unknown`].
    pub fn connect(&mut self, namespace: &str, cluster: &str, connection: Connection) {
        self.connections.insert((namespace.into(), cluster.into()), connection);
    }

    /// What has been read since the last call, in order.
    pub fn take_reads(&self) -> Vec<ObjectKey> {
        self.reads.take()
    }

    /// Carries out the writes of a plan.
    pub fn apply(&mut self, plan: &Plan) {
        self.apply_writes(&plan.writes);
    }

    /// Carries out writes and returns the objects they led to (`None` for deletions and what vanished). A
    /// failed precondition ends the list, as for the real thing.
    pub fn apply_writes(&mut self, writes: &[Write]) -> Vec<Option<Object>> {
        let mut results = Vec::new();
        for write in writes {
            self.writes.push(write.clone());
            let result = match write {
                Write::Create(object) => Some(self.create(&Place::Management, object)),
                Write::Patch { key, patch, resource_version } => {
                    if let Some(expected) = resource_version
                        && self.find(key).is_some_and(|o| o.resource_version() != expected)
                    {
                        break;
                    }
                    self.patch(&Place::Management, key, patch)
                }
                Write::PatchStatus { key, patch, .. } => {
                    assert!(patch.get("status").is_some(), "a status patch without status: {patch}");
                    self.patch(&Place::Management, key, patch)
                }
                Write::Delete { key, uid } => {
                    if self.find(key).is_some_and(|o| o.uid() == uid) {
                        self.delete(key);
                    }
                    None
                }
                Write::MintKeyPair(wanted) => {
                    let mut secret = wanted.secret.clone();
                    secret.set("/data", json!({"tls.crt": "Y2VydA==", "tls.key": "a2V5"}));
                    Some(self.create(&Place::Management, &secret))
                }
                Write::MintKubeconfig(wanted) => {
                    let mut secret = wanted.secret.clone();
                    secret.set("/data", json!({"value": "a3ViZWNvbmZpZw=="}));
                    Some(Object::clone(&self.put(secret.into_value())))
                }
                Write::Workload { namespace, cluster, write } => {
                    let place = workload(namespace, cluster);
                    match write.as_ref() {
                        WorkloadWrite::Create(object) => Some(self.create(&place, object)),
                        WorkloadWrite::Apply(object) => {
                            Some(Object::clone(&self.put_in(&place, object.clone().into_value())))
                        }
                        WorkloadWrite::Patch { key, patch, .. } => self.patch(&place, key, patch),
                        WorkloadWrite::Delete { key, .. } => {
                            self.delete_in(&place, key);
                            None
                        }
                    }
                }
            };
            results.push(result);
        }
        results
    }

    fn create(&mut self, place: &Place, object: &Object) -> Object {
        if let Some(existing) = self.find_in(place, &object.key()) {
            return Object::clone(&existing);
        }
        assert!(object.uid().is_empty(), "created with a uid: {object:?}");
        Object::clone(&self.put_in(place, object.clone().into_value()))
    }

    fn patch(&mut self, place: &Place, key: &ObjectKey, patch: &Value) -> Option<Object> {
        self.edit_in(place, key, |object| {
            let mut value = std::mem::take(object).into_value();
            merge(&mut value, patch);
            *object = Object::from_value(value).unwrap_or_default();
        });
        self.find_in(place, key).map(|o| Object::clone(&o))
    }

    fn known(&self, group: &str, kind: &str) -> Result<(), NotNow> {
        if self.absent.contains(&(group.to_owned(), kind.to_owned())) {
            return Err(NotNow::NoSuchKind { group: group.into(), kind: kind.into() });
        }
        if self.cold.contains(kind) {
            return Err(NotNow::CacheCold { kind: kind.into() });
        }
        Ok(())
    }

    fn reachable(&self, place: &Place) -> Result<(), NotNow> {
        let Place::Workload { namespace, cluster } = place else { return Ok(()) };
        match self.connection(namespace, cluster) {
            Connection::Up => Ok(()),
            Connection::Unknown => Err(NotNow::Unreachable {
                namespace: namespace.clone(),
                cluster: cluster.clone(),
                reason: "not connected yet".into(),
            }),
            Connection::Down { reason, .. } => {
                Err(NotNow::Unreachable { namespace: namespace.clone(), cluster: cluster.clone(), reason })
            }
        }
    }
}

impl View for World {
    fn last_turn(&self, key: &ObjectKey) -> Option<LastTurn> {
        self.last_turns.get(key).cloned()
    }

    fn get(&self, place: &Place, key: &ObjectKey) -> Result<Option<Arc<Object>>, NotNow> {
        self.known(&key.group, &key.kind)?;
        self.reachable(place)?;
        self.reads.borrow_mut().push(key.clone());
        Ok(self.find_in(place, key))
    }

    fn list(
        &self,
        place: &Place,
        group: &str,
        kind: &str,
        namespace: &str,
        select: &Select,
    ) -> Result<Vec<Arc<Object>>, NotNow> {
        self.known(group, kind)?;
        self.reachable(place)?;
        self.reads.borrow_mut().push(ObjectKey::new(group, kind, namespace, "*"));
        let Some(objects) = self.places.get(&place_name(place)) else { return Ok(Vec::new()) };
        Ok(objects
            .values()
            .filter(|o| o.group() == group && o.kind() == kind)
            .filter(|o| namespace.is_empty() || o.namespace() == namespace)
            .filter(|o| match select {
                Select::All => true,
                Select::Label(key, value) => o.label(key) == Some(value),
                Select::OwnedBy(uid) => o.owner_references().iter().any(|owner| owner.uid == *uid),
                Select::ProviderId(id) => o.str_at("/spec/providerID") == Some(id),
            })
            .cloned()
            .collect())
    }

    fn contract(&self, group: &str, kind: &str) -> Result<Option<String>, NotNow> {
        self.known(group, kind)?;
        Ok(match self.contracts.get(&(group.to_owned(), kind.to_owned())) {
            Some(contract) => contract.clone(),
            None if group.ends_with("cluster.x-k8s.io") => Some("v1beta2".into()),
            None => None,
        })
    }

    fn connection(&self, namespace: &str, cluster: &str) -> Connection {
        self.connections.get(&(namespace.to_owned(), cluster.to_owned())).cloned().unwrap_or(Connection::Unknown)
    }

    fn served(&self, group: &str, kind: &str) -> Option<Served> {
        self.served.get(&(group.to_owned(), kind.to_owned())).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new("", "ConfigMap", "n", name)
    }

    fn config_map(name: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "n"}})
    }

    #[test]
    fn finalizers_hold_and_dependents_are_collected() {
        let mut world = World::new();
        let owner = world.put(config_map("owner"));
        let mut child = config_map("child");
        merge(&mut child, &json!({"metadata": {"finalizers": ["f"], "ownerReferences": [owner.as_owner(true)]}}));
        world.put(child);
        world.delete(&key("owner"));
        assert!(world.find(&key("owner")).is_none());
        assert!(world.find(&key("child")).is_some_and(|c| c.is_deleting()));
        world.apply(&Plan {
            writes: vec![Write::Patch {
                key: key("child"),
                patch: json!({"metadata": {"finalizers": null}}),
                resource_version: None,
            }],
            ..Plan::default()
        });
        assert!(world.find(&key("child")).is_none());
    }

    #[test]
    fn a_stale_patch_ends_the_plan() {
        let mut world = World::new();
        world.put(config_map("a"));
        let plan = Plan {
            writes: vec![
                Write::Patch { key: key("a"), patch: json!({"data": {"x": "y"}}), resource_version: Some("0".into()) },
                Write::Delete { key: key("a"), uid: "uid-1".into() },
            ],
            ..Plan::default()
        };
        world.apply(&plan);
        let found = world.find(&key("a")).unwrap();
        assert_eq!(found.at("/data"), None);
    }
}
