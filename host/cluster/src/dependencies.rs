//! Who must be decided again when something changes.
//!
//! While an object is decided, everything that is read, found or not, is noted here *before* it is read. A change
//! asks for everybody who read what it touches. A read is in the index before the cache is looked at, and a change is
//! in the cache before the index is looked at, so no change is missed. Deciding again replaces what was noted. There
//! is no other mapping from events to objects.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use capstan_api::{Object, ObjectKey};
use capstan_core::view::{Place, Select};

/// The objects of one kind in one place; in workload clusters of one namespace only (`scope`, empty for all).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// Which API server.
    pub place: Place,
    /// API group.
    pub group: String,
    /// Kind.
    pub kind: String,
    /// Namespace that is watched; empty: all.
    pub scope: String,
}

/// Something that a decision can depend on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Topic {
    /// One object, by namespace and name.
    Object(Arc<Source>, String, String),
    /// A list: namespace (empty: all) and selection.
    List(Arc<Source>, String, Select),
    /// The first fill of a cache.
    Filled(Arc<Source>),
    /// Whether and how a kind of the management cluster is served: group and kind.
    Kind(String, String),
    /// What a provider module serves for a kind: group and kind.
    Served(String, String),
    /// The connection to a workload cluster: namespace and name of the Cluster.
    Connection(String, String),
}

/// What was read in one decision.
pub type Reads = HashSet<Topic>;

/// The index.
#[derive(Default)]
pub struct Dependencies {
    index: Mutex<Index>,
}

#[derive(Default)]
struct Index {
    readers: HashMap<Topic, HashSet<Arc<ObjectKey>>>,
    reads: HashMap<Arc<ObjectKey>, Reads>,
}

impl Dependencies {
    fn lock(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the decision about `reader` is about to read `topic`.
    pub fn note(&self, reader: &Arc<ObjectKey>, topic: Topic) {
        self.lock().readers.entry(topic).or_default().insert(reader.clone());
    }

    /// Replaces what `reader` depends on by what its latest decision read.
    pub fn settle(&self, reader: &Arc<ObjectKey>, reads: Reads) {
        let mut index = self.lock();
        let before = index.reads.remove(reader).unwrap_or_default();
        for topic in before.difference(&reads) {
            index.drop_reader(topic, reader);
        }
        if !reads.is_empty() {
            index.reads.insert(reader.clone(), reads);
        }
    }

    /// Who depends on any of these.
    pub fn readers<'a>(&self, topics: impl IntoIterator<Item = &'a Topic>) -> HashSet<Arc<ObjectKey>> {
        let index = self.lock();
        let mut found = HashSet::new();
        for topic in topics {
            if let Some(readers) = index.readers.get(topic) {
                found.extend(readers.iter().cloned());
            }
        }
        found
    }

    /// Whether this one has been decided and depends on anything.
    pub fn knows(&self, reader: &ObjectKey) -> bool {
        self.lock().reads.contains_key(reader)
    }

    /// Everybody who depends on anything.
    pub fn everybody(&self) -> Vec<Arc<ObjectKey>> {
        self.lock().reads.keys().cloned().collect()
    }

    /// Who read anything at all of this kind: for changes of a whole kind.
    pub fn readers_of_kind(&self, group: &str, kind: &str) -> HashSet<Arc<ObjectKey>> {
        let index = self.lock();
        let mut found = HashSet::new();
        for (topic, readers) in &index.readers {
            let touched = match topic {
                Topic::Object(source, ..) | Topic::List(source, ..) | Topic::Filled(source) => {
                    source.place == Place::Management && source.group == group && source.kind == kind
                }
                Topic::Kind(g, k) | Topic::Served(g, k) => g == group && k == kind,
                Topic::Connection(..) => false,
            };
            if touched {
                found.extend(readers.iter().cloned());
            }
        }
        found
    }
}

impl Index {
    fn drop_reader(&mut self, topic: &Topic, reader: &Arc<ObjectKey>) {
        if let Some(readers) = self.readers.get_mut(topic) {
            readers.remove(reader);
            if readers.is_empty() {
                self.readers.remove(topic);
            }
        }
    }
}

/// The topics that a change of one object touches: those of its old and of its new labels, owners and providerID.
pub fn touched(source: &Arc<Source>, old: Option<&Object>, new: Option<&Object>) -> HashSet<Topic> {
    let mut topics = HashSet::new();
    for object in [old, new].into_iter().flatten() {
        let (namespace, name) = (object.namespace().to_owned(), object.name().to_owned());
        let mut selects = vec![Select::All];
        if let Some(labels) = object.at("/metadata/labels").and_then(|l| l.as_object()) {
            selects
                .extend(labels.iter().filter_map(|(k, v)| v.as_str().map(|v| Select::Label(k.clone(), v.to_owned()))));
        }
        selects.extend(object.owner_references().into_iter().map(|owner| Select::OwnedBy(owner.uid)));
        if let Some(id) = object.str_at("/spec/providerID") {
            selects.push(Select::ProviderId(id.to_owned()));
        }
        for select in selects {
            if !namespace.is_empty() {
                topics.insert(Topic::List(source.clone(), namespace.clone(), select.clone()));
            }
            topics.insert(Topic::List(source.clone(), String::new(), select));
        }
        topics.insert(Topic::Object(source.clone(), namespace, name));
    }
    topics
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn source() -> Arc<Source> {
        Arc::new(Source {
            place: Place::Management,
            group: "cluster.x-k8s.io".into(),
            kind: "Machine".into(),
            scope: String::new(),
        })
    }

    fn machine(labels: serde_json::Value, owner: &str) -> Object {
        Object::from_value(json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
            "metadata": {"name": "m", "namespace": "n", "labels": labels, "ownerReferences": [
                {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineSet", "name": "s", "uid": owner}]},
        }))
        .unwrap()
    }

    fn reader(name: &str) -> Arc<ObjectKey> {
        Arc::new(ObjectKey::new("g", "K", "n", name))
    }

    #[test]
    fn a_reader_of_what_was_not_found_is_called_when_it_arrives() {
        let deps = Dependencies::default();
        let a = reader("a");
        let topic = Topic::Object(source(), "n".into(), "m".into());
        deps.note(&a, topic.clone());
        deps.settle(&a, Reads::from([topic]));
        let woken = deps.readers(&touched(&source(), None, Some(&machine(json!({}), "u1"))));
        assert_eq!(woken, HashSet::from([a]));
    }

    #[test]
    fn a_change_wakes_the_readers_of_old_and_new_labels_and_owners() {
        let deps = Dependencies::default();
        let readers = [
            ("old-label", Select::Label("pool".into(), "a".into())),
            ("new-label", Select::Label("pool".into(), "b".into())),
            ("old-owner", Select::OwnedBy("u1".into())),
            ("new-owner", Select::OwnedBy("u2".into())),
            ("all", Select::All),
            ("other-label", Select::Label("pool".into(), "c".into())),
        ];
        for (name, select) in readers {
            let topic = Topic::List(source(), "n".into(), select);
            deps.note(&reader(name), topic.clone());
            deps.settle(&reader(name), Reads::from([topic]));
        }
        let (old, new) = (machine(json!({"pool": "a"}), "u1"), machine(json!({"pool": "b"}), "u2"));
        let mut woken: Vec<_> =
            deps.readers(&touched(&source(), Some(&old), Some(&new))).iter().map(|k| k.name.clone()).collect();
        woken.sort();
        assert_eq!(woken, ["all", "new-label", "new-owner", "old-label", "old-owner"]);
    }

    #[test]
    fn another_namespace_is_not_woken_and_all_namespaces_are() {
        let deps = Dependencies::default();
        for (name, namespace) in [("here", "n"), ("there", "x"), ("everywhere", "")] {
            let topic = Topic::List(source(), namespace.into(), Select::All);
            deps.note(&reader(name), topic.clone());
            deps.settle(&reader(name), Reads::from([topic]));
        }
        let mut woken: Vec<_> = deps
            .readers(&touched(&source(), None, Some(&machine(json!({}), "u"))))
            .iter()
            .map(|k| k.name.clone())
            .collect();
        woken.sort();
        assert_eq!(woken, ["everywhere", "here"]);
    }

    #[test]
    fn deciding_again_replaces_what_was_noted() {
        let deps = Dependencies::default();
        let a = reader("a");
        let (first, second) = (Topic::Connection("n".into(), "c".into()), Topic::Kind("g".into(), "K".into()));
        deps.note(&a, first.clone());
        deps.settle(&a, Reads::from([first.clone()]));
        deps.note(&a, second.clone());
        assert_eq!(deps.readers([&first]).len(), 1, "while it is decided again the old reads still count");
        deps.settle(&a, Reads::from([second.clone()]));
        assert!(deps.readers([&first]).is_empty());
        assert_eq!(deps.readers([&second]).len(), 1);
        deps.settle(&a, Reads::new());
        assert!(deps.lock().readers.is_empty() && deps.lock().reads.is_empty(), "nothing is left behind");
    }
}
