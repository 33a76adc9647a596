//! `metadata.managedFields`: who owns which fields, read and written in the form of the Kubernetes API.

use super::fields::{Element, Set};
use serde_json::{Map, Value};
use std::sync::LazyLock;

/// As many managers with operation Update are told apart; older ones become [`ANCIENT`].
const MAX_UPDATERS: usize = 10;

/// The manager that stands for those that were dropped.
const ANCIENT: &str = "ancient-changes";

/// One manager's fields.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub manager: String,
    /// Operation Apply; otherwise Update.
    pub applied: bool,
    pub api_version: String,
    pub time: Option<String>,
    /// Empty for the object itself.
    pub subresource: String,
    pub fields: Set,
}

impl Entry {
    /// Whether both are the same manager. An applier is the same whatever version it applied with.
    pub(crate) fn same_manager(&self, other: &Entry) -> bool {
        self.manager == other.manager
            && self.applied == other.applied
            && self.subresource == other.subresource
            && (self.applied || self.api_version == other.api_version)
    }

    fn read(value: &Value) -> Option<Entry> {
        let text = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let operation = text("operation");
        if operation.is_empty() {
            return None;
        }
        Some(Entry {
            manager: text("manager"),
            applied: operation == "Apply",
            api_version: text("apiVersion"),
            time: value.get("time").and_then(Value::as_str).map(str::to_owned),
            subresource: text("subresource"),
            fields: value.get("fieldsV1").map(Set::decode).unwrap_or_default(),
        })
    }

    fn write(&self) -> Value {
        let mut map = Map::new();
        let mut put = |name: &str, value: &str| {
            if !value.is_empty() {
                map.insert(name.to_owned(), value.into());
            }
        };
        put("manager", &self.manager);
        put("operation", if self.applied { "Apply" } else { "Update" });
        put("apiVersion", &self.api_version);
        put("time", self.time.as_deref().unwrap_or_default());
        put("fieldsType", "FieldsV1");
        map.insert("fieldsV1".to_owned(), self.fields.encode());
        if !self.subresource.is_empty() {
            map.insert("subresource".to_owned(), self.subresource.as_str().into());
        }
        Value::Object(map)
    }
}

/// All managers of an object.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Managers(pub Vec<Entry>);

impl Managers {
    /// Reads an object's managers. `None` when the list is there and asks for a reset (`[{}]`).
    pub(crate) fn read(object: &Value) -> Option<Managers> {
        let list = object.get("metadata").and_then(|m| m.get("managedFields")).and_then(Value::as_array);
        let Some(list) = list else { return Some(Managers::default()) };
        if let [only] = list.as_slice()
            && only.as_object().is_some_and(Map::is_empty)
        {
            return None;
        }
        Some(Managers(list.iter().filter_map(Entry::read).collect()))
    }

    /// Writes the managers into an object, sorted as Kubernetes does.
    pub(crate) fn write(mut self, object: &mut Value) {
        self.0.retain(|entry| !entry.fields.is_empty());
        self.cap();
        self.0.sort_by(|a, b| {
            let key = |entry: &Entry| {
                (
                    !entry.applied,
                    seconds(entry.time.as_deref()),
                    entry.manager.clone(),
                    entry.api_version.clone(),
                    entry.subresource.clone(),
                )
            };
            key(a).cmp(&key(b))
        });
        let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
        metadata.shift_remove("managedFields");
        if !self.0.is_empty() {
            metadata.insert("managedFields".to_owned(), self.0.iter().map(Entry::write).collect());
        }
    }

    /// The entry of the same manager.
    pub(crate) fn find(&self, like: &Entry) -> Option<&Entry> {
        self.0.iter().find(|entry| entry.same_manager(like))
    }

    /// Sets the entry of a manager.
    pub(crate) fn put(&mut self, entry: Entry) {
        match self.0.iter_mut().find(|existing| existing.same_manager(&entry)) {
            Some(existing) => *existing = entry,
            None => self.0.push(entry),
        }
    }

    /// Folds the oldest updaters into one when there are too many.
    fn cap(&mut self) {
        loop {
            let mut updaters: Vec<usize> =
                (0..self.0.len()).filter(|index| self.0.get(*index).is_some_and(|entry| !entry.applied)).collect();
            if updaters.len() <= MAX_UPDATERS {
                return;
            }
            updaters.sort_by_key(|index| self.0.get(*index).map(|entry| seconds(entry.time.as_deref())));
            let ancient =
                updaters.iter().copied().find(|index| self.0.get(*index).is_some_and(|entry| entry.manager == ANCIENT));
            let Some(oldest) = updaters.iter().copied().find(|index| Some(*index) != ancient) else { return };
            let mut entry = self.0.remove(oldest);
            entry.manager = ANCIENT.to_owned();
            entry.subresource = String::new();
            match self.0.iter_mut().find(|existing| existing.manager == ANCIENT && !existing.applied) {
                Some(existing) => {
                    existing.fields = existing.fields.union(&entry.fields);
                    existing.time = entry.time.max(existing.time.take());
                }
                None => self.0.push(entry),
            }
        }
    }
}

fn seconds(time: Option<&str>) -> i64 {
    time.and_then(|time| time.parse::<jiff::Timestamp>().ok()).map_or(0, jiff::Timestamp::as_second)
}

/// Paths that nobody owns: the server's own metadata.
static UNOWNED: LazyLock<Set> = LazyLock::new(|| {
    let mut set = Set::default();
    for name in ["apiVersion", "kind", "metadata"] {
        set.add(Element::field(name));
    }
    for name in [
        "name",
        "namespace",
        "creationTimestamp",
        "selfLink",
        "uid",
        "clusterName",
        "generation",
        "managedFields",
        "resourceVersion",
    ] {
        set.insert(&[Element::field("metadata"), Element::field(name)]);
    }
    set
});

/// The set without what nobody owns.
pub(crate) fn ownable(set: &Set) -> Set {
    set.difference(&UNOWNED)
}

/// The object without its managedFields.
pub(crate) fn bare(object: &Value) -> Value {
    let mut out = object.clone();
    if let Some(metadata) = out.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.shift_remove("managedFields");
    }
    out
}

/// Whether two objects differ in anything but the times in their managedFields.
///
/// A write that changes nothing must not be stored: the resourceVersion stays, no watch event is sent.
pub fn differs(a: &Value, b: &Value) -> bool {
    let (Some(a_map), Some(b_map)) = (a.as_object(), b.as_object()) else { return a != b };
    a_map.len() != b_map.len()
        || a_map.iter().any(|(name, value)| {
            let Some(other) = b_map.get(name) else { return true };
            if name == "metadata" { metadata_differs(value, other) } else { value != other }
        })
}

fn metadata_differs(a: &Value, b: &Value) -> bool {
    let (Some(a_map), Some(b_map)) = (a.as_object(), b.as_object()) else { return a != b };
    a_map.len() != b_map.len()
        || a_map.iter().any(|(name, value)| {
            let Some(other) = b_map.get(name) else { return true };
            match (name.as_str(), value, other) {
                ("managedFields", Value::Array(a), Value::Array(b)) => {
                    a.len() != b.len() || a.iter().zip(b).any(|(a, b)| entry_differs(a, b))
                }
                _ => value != other,
            }
        })
}

fn entry_differs(a: &Value, b: &Value) -> bool {
    let (Some(a_map), Some(b_map)) = (a.as_object(), b.as_object()) else { return a != b };
    a_map.len() != b_map.len()
        || a_map.iter().any(|(name, value)| match b_map.get(name) {
            None => true,
            Some(other) => name != "time" && value != other,
        })
}
