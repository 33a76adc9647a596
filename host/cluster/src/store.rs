//! The cached objects of one kind.
//!
//! Promises: an object never goes back in time, whatever order a watch, a list and the answers to our own writes
//! arrive in; an object that we saw go does not come back by an older event; a list tells what is gone without
//! touching what is newer than the list.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use capstan_api::Object;
use capstan_core::view::Select;

/// `namespace/name`; sorts by namespace and name.
type Name = Box<str>;

fn name_of(namespace: &str, name: &str) -> Name {
    format!("{namespace}/{name}").into_boxed_str()
}

/// A resourceVersion as a number. API servers promise that those of one kind can be compared.
pub fn version_of(object: &Object) -> u64 {
    object.resource_version().parse().unwrap_or_default()
}

/// What a change was.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Before; `None` when it was not there.
    pub old: Option<Arc<Object>>,
    /// After; `None` when it is gone.
    pub new: Option<Arc<Object>>,
}

struct Entry {
    object: Arc<Object>,
    version: u64,
}

/// The cache of one kind.
#[derive(Default)]
pub struct Store {
    entries: BTreeMap<Name, Entry>,
    by_owner: HashMap<String, BTreeSet<Name>>,
    by_provider_id: HashMap<String, BTreeSet<Name>>,
    /// Label keys that were asked for, each with its values.
    by_label: HashMap<String, HashMap<String, BTreeSet<Name>>>,
    /// UIDs that are known to be gone while older news of them may still arrive.
    gone: HashMap<Name, String>,
    filled: bool,
}

impl Store {
    /// Whether a list has been read completely at least once.
    pub fn is_filled(&self) -> bool {
        self.filled
    }

    /// How many objects there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// One object.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<Object>> {
        self.entries.get(&name_of(namespace, name)).map(|entry| entry.object.clone())
    }

    /// All objects.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Object>> {
        self.entries.values().map(|entry| &entry.object)
    }

    /// The selected objects of a namespace (empty: of all), sorted by namespace and name.
    pub fn list(&mut self, namespace: &str, select: &Select) -> Vec<Arc<Object>> {
        let names = match select {
            Select::All => return self.in_namespace(namespace),
            Select::Label(key, value) => {
                if !self.by_label.contains_key(key) {
                    self.index_label(key);
                }
                self.by_label.get(key).and_then(|values| values.get(value))
            }
            Select::OwnedBy(uid) => self.by_owner.get(uid),
            Select::ProviderId(id) => self.by_provider_id.get(id),
        };
        names
            .into_iter()
            .flatten()
            .filter_map(|name| self.entries.get(name))
            .filter(|entry| namespace.is_empty() || entry.object.namespace() == namespace)
            .map(|entry| entry.object.clone())
            .collect()
    }

    fn in_namespace(&self, namespace: &str) -> Vec<Arc<Object>> {
        if namespace.is_empty() {
            return self.all().cloned().collect();
        }
        // '0' follows '/', so this is every name of the namespace.
        let (from, to) = (format!("{namespace}/"), format!("{namespace}0"));
        self.entries
            .range::<str, _>((Bound::Included(from.as_str()), Bound::Excluded(to.as_str())))
            .map(|(_, entry)| entry.object.clone())
            .collect()
    }

    fn index_label(&mut self, key: &str) {
        let mut values: HashMap<String, BTreeSet<Name>> = HashMap::new();
        for (name, entry) in &self.entries {
            if let Some(value) = entry.object.label(key) {
                values.entry(value.to_owned()).or_default().insert(name.clone());
            }
        }
        self.by_label.insert(key.to_owned(), values);
    }

    /// News of an object that exists. `None` when it is no news.
    pub fn upsert(&mut self, mut object: Object) -> Option<Change> {
        strip(&mut object);
        let version = version_of(&object);
        let name = name_of(object.namespace(), object.name());
        if self.gone.get(&name).is_some_and(|uid| uid == object.uid()) {
            return None;
        }
        if self.entries.get(&name).is_some_and(|known| known.version >= version) {
            return None;
        }
        self.gone.remove(&name);
        let object = Arc::new(object);
        let old = self.entries.insert(name.clone(), Entry { object: object.clone(), version }).map(|e| e.object);
        self.reindex(&name, old.as_deref(), Some(&object));
        Some(Change { old, new: Some(object) })
    }

    /// News that the incarnation `uid` of an object is gone (empty: whichever there is). `lasting`: older news of it may
    /// still arrive. `None` when it is no news.
    pub fn remove(&mut self, namespace: &str, name: &str, uid: &str, lasting: bool) -> Option<Change> {
        let name = name_of(namespace, name);
        if lasting && !uid.is_empty() {
            self.gone.insert(name.clone(), uid.to_owned());
        } else if self.gone.get(&name).is_some_and(|known| known == uid) {
            self.gone.remove(&name);
        }
        if self.entries.get(&name).is_some_and(|known| !uid.is_empty() && known.object.uid() != uid) {
            return None;
        }
        let old = self.entries.remove(&name)?.object;
        self.reindex(&name, Some(&old), None);
        Some(Change { old: Some(old), new: None })
    }

    /// A complete list, read at this resourceVersion. What is not in it is gone, unless it is newer.
    pub fn replace(&mut self, objects: Vec<Object>, version: u64) -> Vec<Change> {
        let listed: BTreeSet<Name> = objects.iter().map(|o| name_of(o.namespace(), o.name())).collect();
        let mut changes: Vec<Change> = objects.into_iter().filter_map(|object| self.upsert(object)).collect();
        let vanished: Vec<Name> = self
            .entries
            .iter()
            .filter(|(name, entry)| entry.version <= version && !listed.contains(*name))
            .map(|(name, _)| name.clone())
            .collect();
        for name in vanished {
            if let Some(entry) = self.entries.remove(&name) {
                self.reindex(&name, Some(&entry.object), None);
                changes.push(Change { old: Some(entry.object), new: None });
            }
        }
        self.gone.retain(|name, _| listed.contains(name));
        self.filled = true;
        changes
    }

    fn reindex(&mut self, name: &Name, old: Option<&Object>, new: Option<&Object>) {
        if let Some(old) = old {
            for owner in old.owner_references() {
                drop_name(&mut self.by_owner, &owner.uid, name);
            }
            if let Some(id) = old.str_at("/spec/providerID") {
                drop_name(&mut self.by_provider_id, id, name);
            }
            for (key, values) in &mut self.by_label {
                if let Some(value) = old.label(key) {
                    drop_name(values, value, name);
                }
            }
        }
        if let Some(new) = new {
            for owner in new.owner_references() {
                self.by_owner.entry(owner.uid).or_default().insert(name.clone());
            }
            if let Some(id) = new.str_at("/spec/providerID") {
                self.by_provider_id.entry(id.to_owned()).or_default().insert(name.clone());
            }
            for (key, values) in &mut self.by_label {
                if let Some(value) = new.label(key) {
                    values.entry(value.to_owned()).or_default().insert(name.clone());
                }
            }
        }
    }
}

fn drop_name(index: &mut HashMap<String, BTreeSet<Name>>, value: &str, name: &Name) {
    if let Some(names) = index.get_mut(value) {
        names.remove(name);
        if names.is_empty() {
            index.remove(value);
        }
    }
}

/// Leaves out what no decision reads: who wrote which field, and the schemas of CRDs.
fn strip(object: &mut Object) {
    if let Some(metadata) = object.0.get_mut("metadata").and_then(|m| m.as_object_mut()) {
        metadata.remove("managedFields");
    }
    if object.kind() == "CustomResourceDefinition"
        && let Some(versions) =
            object.0.get_mut("spec").and_then(|s| s.get_mut("versions")).and_then(|v| v.as_array_mut())
    {
        for version in versions.iter_mut().filter_map(|v| v.as_object_mut()) {
            version.remove("schema");
            version.remove("additionalPrinterColumns");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(name: &str, uid: &str, version: u64) -> Object {
        Object::from_value(json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "namespace": "n", "uid": uid, "resourceVersion": version.to_string(),
                         "managedFields": [{"manager": "x"}]},
        }))
        .unwrap()
    }

    #[test]
    fn an_older_event_never_overwrites_our_own_write() {
        let mut store = Store::default();
        store.upsert(object("a", "u", 5));
        assert!(store.upsert(object("a", "u", 7)).is_some(), "the answer to our write");
        assert!(store.upsert(object("a", "u", 6)).is_none(), "the watch is behind");
        assert!(store.upsert(object("a", "u", 7)).is_none(), "the watch brings our own write: no news");
        assert_eq!(store.get("n", "a").unwrap().resource_version(), "7");
        assert!(store.get("n", "a").unwrap().at("/metadata/managedFields").is_none());
    }

    #[test]
    fn what_we_deleted_does_not_come_back_by_an_older_event_but_a_new_one_of_that_name_does() {
        let mut store = Store::default();
        store.upsert(object("a", "u1", 5));
        assert!(store.remove("n", "a", "u1", true).is_some());
        assert!(store.upsert(object("a", "u1", 6)).is_none(), "an event from before the deletion");
        assert!(store.get("n", "a").is_none());
        assert!(store.upsert(object("a", "u2", 9)).is_some());
        assert!(
            store.remove("n", "a", "u1", false).is_none(),
            "the deletion event of the first does not hit the second"
        );
        assert_eq!(store.get("n", "a").unwrap().uid(), "u2");
    }

    #[test]
    fn a_list_removes_what_is_gone_and_keeps_what_is_newer_than_it() {
        let mut store = Store::default();
        store.upsert(object("old", "u1", 3));
        store.upsert(object("new", "u2", 12));
        store.upsert(object("kept", "u3", 4));
        assert!(!store.is_filled());
        let changes = store.replace(vec![object("kept", "u3", 4), object("more", "u4", 8)], 10);
        assert!(store.is_filled());
        assert_eq!(changes.len(), 2, "one came, one went: {changes:?}");
        assert!(store.get("n", "old").is_none());
        assert!(store.get("n", "new").is_some(), "made by us after the list was read");
        assert!(store.get("n", "more").is_some());
    }

    #[test]
    fn a_list_that_was_read_before_our_deletion_does_not_bring_the_object_back() {
        let mut store = Store::default();
        store.upsert(object("a", "u1", 5));
        store.remove("n", "a", "u1", true);
        store.replace(vec![object("a", "u1", 5)], 6);
        assert!(store.get("n", "a").is_none());
        store.replace(vec![], 9);
        assert!(store.gone.is_empty(), "a list without it ends the watch for old news");
    }

    #[test]
    fn selections_follow_changes() {
        let mut store = Store::default();
        let mut a = object("a", "u1", 1);
        a.set_label("pool", "x");
        a.set("/spec/providerID", json!("sim://a"));
        a.set("/metadata/ownerReferences", json!([{"apiVersion": "v1", "kind": "K", "name": "o", "uid": "owner"}]));
        store.upsert(a.clone());
        store.upsert(object("b", "u2", 2));
        let label = Select::Label("pool".into(), "x".into());
        assert_eq!(store.list("n", &label).len(), 1);
        assert_eq!(store.list("", &Select::ProviderId("sim://a".into())).len(), 1);
        assert_eq!(store.list("n", &Select::OwnedBy("owner".into())).len(), 1);
        assert_eq!(store.list("other", &label).len(), 0);
        a.set_label("pool", "y");
        a.set("/metadata/resourceVersion", json!("3"));
        store.upsert(a);
        assert_eq!(store.list("n", &label).len(), 0);
        assert_eq!(store.list("n", &Select::Label("pool".into(), "y".into())).len(), 1);
        store.remove("n", "a", "u1", false);
        assert_eq!(store.list("n", &Select::OwnedBy("owner".into())).len(), 0);
        assert!(store.by_owner.is_empty() && store.by_provider_id.is_empty());
    }

    #[test]
    fn a_namespace_lists_its_own_and_not_its_neighbours() {
        let mut store = Store::default();
        for namespace in ["n", "n-1", "n0", "m"] {
            let mut o = object("a", "u", 1);
            o.set("/metadata/namespace", json!(namespace));
            store.upsert(o);
        }
        let found: Vec<_> = store.list("n", &Select::All).iter().map(|o| o.namespace().to_owned()).collect();
        assert_eq!(found, ["n"]);
        assert_eq!(store.list("", &Select::All).len(), 4);
    }
}
