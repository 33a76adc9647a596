//! A Kubernetes object as it is on the wire, with typed access to its metadata.
//!
//! Core controllers read provider objects as unstructured data (design, section 4); typed kinds are
//! read from an [`Object`] with [`Object::parse`].

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

/// Group, version and kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gvk {
    /// API group; empty for the core group.
    pub group: String,
    /// API version, such as `v1beta2`.
    pub version: String,
    /// CamelCase kind.
    pub kind: String,
}

impl Gvk {
    /// From its three words.
    pub fn new(group: impl Into<String>, version: impl Into<String>, kind: impl Into<String>) -> Self {
        Self { group: group.into(), version: version.into(), kind: kind.into() }
    }

    /// `group/version`, or `version` for the core group.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }
}

/// Names one object of the management cluster whatever version it is read in.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// API group; empty for the core group.
    pub group: String,
    /// CamelCase kind.
    pub kind: String,
    /// Namespace; empty for cluster-scoped kinds.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl ObjectKey {
    /// From its four words.
    pub fn new(
        group: impl Into<String>,
        kind: impl Into<String>,
        namespace: impl Into<String>,
        name: impl Into<String>,
    ) -> Self {
        Self { group: group.into(), kind: kind.into(), namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            write!(f, "{} {}", self.kind, self.name)
        } else {
            write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
        }
    }
}

/// `metadata.ownerReferences[]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OwnerReference {
    /// `group/version` of the owner.
    pub api_version: String,
    /// Kind of the owner.
    pub kind: String,
    /// Name of the owner.
    pub name: String,
    /// UID of the owner.
    pub uid: String,
    /// Whether the owner is the managing controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<bool>,
    /// Whether foreground deletion of the owner waits for this object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_owner_deletion: Option<bool>,
}

impl OwnerReference {
    /// API group of the owner.
    pub fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }
}

/// An unstructured object.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Object(pub Map<String, Value>);

/// What a Secret holds is not shown, nor the annotation in which kubectl keeps a copy of it.
impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.kind() != "Secret" {
            return f.debug_tuple("Object").field(&self.0).finish();
        }
        let shown = |map: &Map<String, Value>| map.keys().cloned().collect::<Vec<_>>();
        let (mut rest, mut keys) = (self.0.clone(), Vec::new());
        for field in ["data", "stringData"] {
            if let Some(value) = rest.shift_remove(field) {
                keys.extend(value.as_object().map(shown).unwrap_or_default());
            }
        }
        if let Some(metadata) = rest.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.shift_remove("annotations");
            metadata.shift_remove("managedFields");
        }
        f.debug_struct("Secret").field("object", &rest).field("keys", &keys).finish_non_exhaustive()
    }
}

/// A word of a JSON pointer without its escapes.
fn unescaped(word: &str) -> Cow<'_, str> {
    if word.contains('~') { Cow::Owned(word.replace("~1", "/").replace("~0", "~")) } else { Cow::Borrowed(word) }
}

impl Object {
    /// An object of this kind with a name and nothing else. `namespace` may be empty.
    pub fn new(gvk: &Gvk, namespace: &str, name: &str) -> Self {
        let mut metadata = Map::new();
        metadata.insert("name".into(), name.into());
        if !namespace.is_empty() {
            metadata.insert("namespace".into(), namespace.into());
        }
        let mut object = Map::new();
        object.insert("apiVersion".into(), gvk.api_version().into());
        object.insert("kind".into(), gvk.kind.clone().into());
        object.insert("metadata".into(), Value::Object(metadata));
        Self(object)
    }

    /// From JSON; `None` when it is not a JSON object.
    pub fn from_value(value: Value) -> Option<Self> {
        match value {
            Value::Object(map) => Some(Self(map)),
            _ => None,
        }
    }

    /// As JSON.
    pub fn into_value(self) -> Value {
        Value::Object(self.0)
    }

    /// Any serializable typed object as an unstructured one; `None` when it does not serialize to a JSON object.
    pub fn from_typed<T: Serialize>(typed: &T) -> Option<Self> {
        serde_json::to_value(typed).ok().and_then(Self::from_value)
    }

    /// Reads the whole object as a typed kind.
    ///
    /// # Errors
    /// When a field has another type than `T` says.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        T::deserialize(Value::Object(self.0.clone()))
    }

    /// The value at a JSON pointer, such as `/spec/replicas`.
    pub fn at(&self, pointer: &str) -> Option<&Value> {
        let mut parts = pointer.strip_prefix('/')?.split('/');
        let mut at = self.0.get(unescaped(parts.next()?).as_ref())?;
        for part in parts {
            at = match at {
                Value::Object(map) => map.get(unescaped(part).as_ref())?,
                Value::Array(list) => list.get(part.parse::<usize>().ok()?)?,
                _ => return None,
            };
        }
        Some(at)
    }

    /// The string at a JSON pointer; `None` when absent, empty or no string.
    pub fn str_at(&self, pointer: &str) -> Option<&str> {
        self.at(pointer).and_then(Value::as_str).filter(|s| !s.is_empty())
    }

    /// The boolean at a JSON pointer; `false` when absent.
    pub fn bool_at(&self, pointer: &str) -> bool {
        self.at(pointer).and_then(Value::as_bool).unwrap_or(false)
    }

    /// The integer at a JSON pointer.
    pub fn int_at(&self, pointer: &str) -> Option<i64> {
        self.at(pointer).and_then(Value::as_i64)
    }

    /// Sets the value at a JSON pointer, making the objects on the way. Does nothing when the pointer
    /// does not begin with `/` or meets something that is no object.
    pub fn set(&mut self, pointer: &str, value: Value) {
        let Some(path) = pointer.strip_prefix('/') else { return };
        let mut map = &mut self.0;
        let mut parts = path.split('/').peekable();
        while let Some(part) = parts.next() {
            let part = unescaped(part);
            if parts.peek().is_none() {
                map.insert(part.into_owned(), value);
                return;
            }
            let Value::Object(next) = map.entry(part.into_owned()).or_insert_with(|| Value::Object(Map::new())) else {
                return;
            };
            map = next;
        }
    }

    /// Takes away the value at a JSON pointer; `None` when there was none.
    pub fn remove(&mut self, pointer: &str) -> Option<Value> {
        let (parents, last) = pointer.strip_prefix('/')?.rsplit_once('/').unwrap_or(("", pointer.strip_prefix('/')?));
        let mut map = &mut self.0;
        for part in parents.split('/').filter(|part| !part.is_empty()) {
            let Value::Object(next) = map.get_mut(unescaped(part).as_ref())? else { return None };
            map = next;
        }
        map.shift_remove(unescaped(last).as_ref())
    }

    /// `apiVersion`.
    pub fn api_version(&self) -> &str {
        self.str_at("/apiVersion").unwrap_or_default()
    }

    /// `kind`.
    pub fn kind(&self) -> &str {
        self.str_at("/kind").unwrap_or_default()
    }

    /// API group, from `apiVersion`.
    pub fn group(&self) -> &str {
        self.api_version().split_once('/').map_or("", |(group, _)| group)
    }

    /// Group, version and kind.
    pub fn gvk(&self) -> Gvk {
        let (group, version) = self.api_version().split_once('/').unwrap_or(("", self.api_version()));
        Gvk::new(group, version, self.kind())
    }

    /// The key of this object.
    pub fn key(&self) -> ObjectKey {
        ObjectKey::new(self.group(), self.kind(), self.namespace(), self.name())
    }

    fn metadata_str(&self, field: &str) -> &str {
        self.0.get("metadata").and_then(|m| m.get(field)).and_then(Value::as_str).unwrap_or_default()
    }

    /// `metadata.name`.
    pub fn name(&self) -> &str {
        self.metadata_str("name")
    }

    /// `metadata.namespace`; empty for cluster-scoped kinds.
    pub fn namespace(&self) -> &str {
        self.metadata_str("namespace")
    }

    /// `metadata.uid`; empty before the object was created.
    pub fn uid(&self) -> &str {
        self.metadata_str("uid")
    }

    /// `metadata.resourceVersion`.
    pub fn resource_version(&self) -> &str {
        self.metadata_str("resourceVersion")
    }

    /// `metadata.generation`, 0 when absent.
    pub fn generation(&self) -> i64 {
        self.int_at("/metadata/generation").unwrap_or_default()
    }

    /// `metadata.creationTimestamp` (RFC 3339), when present.
    pub fn creation_timestamp(&self) -> Option<&str> {
        self.str_at("/metadata/creationTimestamp")
    }

    /// `metadata.deletionTimestamp` (RFC 3339) of an object that is being deleted.
    pub fn deletion_timestamp(&self) -> Option<&str> {
        self.str_at("/metadata/deletionTimestamp")
    }

    /// Whether the object is being deleted.
    pub fn is_deleting(&self) -> bool {
        self.deletion_timestamp().is_some()
    }

    /// The value of a label.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.0.get("metadata")?.get("labels")?.get(key)?.as_str()
    }

    /// The value of an annotation.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.0.get("metadata")?.get("annotations")?.get(key)?.as_str()
    }

    /// Sets a label.
    pub fn set_label(&mut self, key: &str, value: &str) {
        self.set_metadata("labels", key, value);
    }

    /// Sets an annotation.
    pub fn set_annotation(&mut self, key: &str, value: &str) {
        self.set_metadata("annotations", key, value);
    }

    fn set_metadata(&mut self, map: &str, key: &str, value: &str) {
        let metadata = self.0.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
        if let Value::Object(metadata) = metadata
            && let Value::Object(entries) = metadata.entry(map).or_insert_with(|| Value::Object(Map::new()))
        {
            entries.insert(key.into(), value.into());
        }
    }

    /// `metadata.finalizers`.
    pub fn finalizers(&self) -> Vec<&str> {
        self.at("/metadata/finalizers")
            .and_then(Value::as_array)
            .map(|list| list.iter().filter_map(Value::as_str).collect())
            .unwrap_or_default()
    }

    /// Whether it carries this finalizer.
    pub fn has_finalizer(&self, finalizer: &str) -> bool {
        self.finalizers().contains(&finalizer)
    }

    /// `metadata.ownerReferences`; entries that cannot be read are left out.
    pub fn owner_references(&self) -> Vec<OwnerReference> {
        self.at("/metadata/ownerReferences")
            .and_then(Value::as_array)
            .map(|list| list.iter().filter_map(|r| OwnerReference::deserialize(r).ok()).collect())
            .unwrap_or_default()
    }

    /// The owner that is the managing controller.
    pub fn controller(&self) -> Option<OwnerReference> {
        self.owner_references().into_iter().find(|r| r.controller == Some(true))
    }

    /// A reference to this object as an owner.
    pub fn as_owner(&self, controller: bool) -> OwnerReference {
        OwnerReference {
            api_version: self.api_version().to_owned(),
            kind: self.kind().to_owned(),
            name: self.name().to_owned(),
            uid: self.uid().to_owned(),
            controller: controller.then_some(true),
            block_owner_deletion: controller.then_some(true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn machine() -> Object {
        Object::from_value(json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
            "metadata": {"name": "m", "namespace": "n", "labels": {"a/b": "c"}, "generation": 2},
            "spec": {"version": "v1.34.0"},
        }))
        .unwrap()
    }

    #[test]
    fn pointers_read_what_is_there_and_nothing_else() {
        let m = machine();
        assert_eq!(m.str_at("/spec/version"), Some("v1.34.0"));
        assert_eq!(m.at("/metadata/labels/a~1b"), Some(&json!("c")));
        assert_eq!(m.at("/spec/none/deeper"), None);
        assert_eq!(m.label("a/b"), Some("c"));
        assert_eq!(m.key().to_string(), "Machine n/m");
        assert_eq!(m.gvk(), Gvk::new("cluster.x-k8s.io", "v1beta2", "Machine"));
    }

    #[test]
    fn set_makes_the_way_and_never_replaces_a_scalar_on_it() {
        let mut m = machine();
        m.set("/status/initialization/infrastructureProvisioned", json!(true));
        m.set("/spec/version/deeper", json!(1));
        assert!(m.bool_at("/status/initialization/infrastructureProvisioned"));
        assert_eq!(m.str_at("/spec/version"), Some("v1.34.0"));
    }

    #[test]
    fn what_a_secret_holds_is_not_shown() {
        let secret = Object::from_value(json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "s", "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "hunter2"}},
            "data": {"token": "aHVudGVyMg=="}, "stringData": {"other": "hunter2"},
        }))
        .unwrap();
        let shown = format!("{secret:?} {secret:#?}");
        assert!(shown.contains("token") && shown.contains("other"), "{shown}");
        assert!(!shown.contains("hunter2") && !shown.contains("aHVudGVyMg"), "{shown}");
        assert!(format!("{:?}", machine()).contains("v1.34.0"));
    }

    #[test]
    fn remove_takes_one_value_and_leaves_its_siblings() {
        let mut m = machine();
        assert_eq!(m.remove("/metadata/labels/a~1b"), Some(json!("c")));
        assert_eq!(m.remove("/spec/none/deeper"), None);
        assert_eq!(m.remove("/status"), None);
        assert_eq!((m.label("a/b"), m.name()), (None, "m"));
    }
}
