//! How one object is kept: as the JSON bytes that go to clients, with the few facts about it that the server asks for
//! again and again (name, labels, owners) parsed once.
//!
//! The bytes have a fixed layout: `apiVersion`, `kind`, `metadata` first, and `resourceVersion` then `managedFields` last
//! in `metadata`. So a new revision, another served version and an answer without managed fields are made by copying
//! slices, never by parsing.

use bytes::Bytes;
use serde_json::{Map, Value};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where an object lives in its collection. Cluster-scoped objects have an empty namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The namespace; empty for cluster-scoped objects.
    pub namespace: Box<str>,
    /// The name.
    pub name: Box<str>,
}

impl Key {
    /// A key from its two parts.
    pub fn new(namespace: &str, name: &str) -> Key {
        Key { namespace: namespace.into(), name: name.into() }
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.namespace.is_empty() { f.write_str(&self.name) } else { write!(f, "{}/{}", self.namespace, self.name) }
    }
}

/// One entry of `metadata.ownerReferences`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub api_version: Box<str>,
    pub kind: Box<str>,
    pub name: Box<str>,
    pub uid: Box<str>,
    pub blocks_deletion: bool,
}

/// What the server asks about an object without parsing it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Meta {
    pub uid: Box<str>,
    pub labels: Box<[(Box<str>, Box<str>)]>,
    pub owners: Box<[Owner]>,
    pub finalizers: Box<[Box<str>]>,
    pub deleting: bool,
}

impl Meta {
    fn of(metadata: Option<&Map<String, Value>>) -> Meta {
        let Some(metadata) = metadata else { return Meta::default() };
        let text = |value: Option<&Value>| -> Box<str> { value.and_then(Value::as_str).unwrap_or_default().into() };
        let owners = metadata.get("ownerReferences").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let finalizers = metadata.get("finalizers").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        Meta {
            uid: text(metadata.get("uid")),
            labels: metadata
                .get("labels")
                .and_then(Value::as_object)
                .map(|labels| labels.iter().map(|(k, v)| (k.as_str().into(), text(Some(v)))).collect())
                .unwrap_or_default(),
            owners: owners
                .iter()
                .map(|owner| Owner {
                    api_version: text(owner.get("apiVersion")),
                    kind: text(owner.get("kind")),
                    name: text(owner.get("name")),
                    uid: text(owner.get("uid")),
                    blocks_deletion: owner.get("blockOwnerDeletion").and_then(Value::as_bool).unwrap_or(false),
                })
                .collect(),
            finalizers: finalizers.iter().map(|finalizer| text(Some(finalizer))).collect(),
            deleting: metadata.get("deletionTimestamp").is_some_and(|at| !at.is_null()),
        }
    }
}

/// An object that has everything but its revision.
#[derive(Debug)]
pub(crate) struct Draft {
    /// Up to the digits of `resourceVersion`.
    head: Vec<u8>,
    /// From the quote after those digits.
    tail: Vec<u8>,
    /// Where the value of `apiVersion` is in `head`, quotes excluded.
    version: Range<u32>,
    /// Where `,"managedFields":[…]` is in `tail`.
    managed: Range<u32>,
    key: Key,
    meta: Meta,
}

impl Draft {
    /// Lays an object out. Whatever `resourceVersion` it carries is ignored.
    pub fn new(object: &Value) -> Draft {
        let empty = Map::new();
        let fields = object.as_object().unwrap_or(&empty);
        let metadata = fields.get("metadata").and_then(Value::as_object);
        let mut head = Vec::with_capacity(512);
        let mut tail = Vec::with_capacity(1024);
        head.extend_from_slice(b"{\"apiVersion\":");
        let version_start = head.len() + 1;
        write(&mut head, fields.get("apiVersion").unwrap_or(&Value::String(String::new())));
        let version = version_start as u32..(head.len().saturating_sub(1)) as u32;
        head.extend_from_slice(b",\"kind\":");
        write(&mut head, fields.get("kind").unwrap_or(&Value::String(String::new())));
        head.extend_from_slice(b",\"metadata\":{");
        for (name, value) in metadata.into_iter().flatten() {
            if name == "resourceVersion" || name == "managedFields" {
                continue;
            }
            field(&mut head, name, value);
            head.push(b',');
        }
        head.extend_from_slice(b"\"resourceVersion\":\"");
        tail.push(b'"');
        let managed_start = tail.len();
        if let Some(managed) = metadata.and_then(|m| m.get("managedFields"))
            && managed.as_array().is_some_and(|entries| !entries.is_empty())
        {
            tail.push(b',');
            field(&mut tail, "managedFields", managed);
        }
        let managed = managed_start as u32..tail.len() as u32;
        tail.push(b'}');
        for (name, value) in fields {
            if matches!(name.as_str(), "apiVersion" | "kind" | "metadata") {
                continue;
            }
            tail.push(b',');
            field(&mut tail, name, value);
        }
        tail.push(b'}');
        let text = |name: &str| metadata.and_then(|m| m.get(name)).and_then(Value::as_str).unwrap_or_default();
        let key = Key::new(text("namespace"), text("name"));
        Draft { head, tail, version, managed, key, meta: Meta::of(metadata) }
    }

    /// How long its JSON is, in bytes, but for the digits of its revision.
    pub fn len(&self) -> usize {
        self.head.len() + self.tail.len()
    }

    /// The finished object.
    pub fn seal(self, revision: u64) -> Object {
        let digits = revision.to_string();
        let start = self.head.len();
        let end = start + digits.len();
        let mut json = Vec::with_capacity(end + self.tail.len());
        json.extend_from_slice(&self.head);
        json.extend_from_slice(digits.as_bytes());
        json.extend_from_slice(&self.tail);
        Object {
            json: Bytes::from(json),
            version: self.version,
            digits: start as u32..end as u32,
            managed: self.managed.start + end as u32..self.managed.end + end as u32,
            revision,
            key: self.key,
            meta: self.meta,
            complete: Complete::default(),
        }
    }
}

fn write(out: &mut Vec<u8>, value: &Value) {
    // Writing JSON into a vector cannot fail: maps have string keys only.
    let _ = serde_json::to_writer(out, value);
}

fn field(out: &mut Vec<u8>, name: &str, value: &Value) {
    let _ = serde_json::to_writer(&mut *out, name);
    out.push(b':');
    write(out, value);
}

/// How an object is to be written out.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Form<'a> {
    /// Another `apiVersion` than the stored one (conversion strategy None).
    pub api_version: Option<&'a str>,
    /// Leave `metadata.managedFields` out.
    pub without_managed_fields: bool,
}

/// A committed object.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    json: Bytes,
    version: Range<u32>,
    digits: Range<u32>,
    managed: Range<u32>,
    /// The revision of the write that made it this.
    pub revision: u64,
    /// Where it is in its collection.
    pub key: Key,
    pub meta: Meta,
    complete: Complete,
}

/// Under which schema an object was last seen to lack nothing: 0 is none. A memo, so it is no part of the object.
#[derive(Debug, Default)]
struct Complete(AtomicU64);

impl Clone for Complete {
    fn clone(&self) -> Complete {
        Complete(AtomicU64::new(self.0.load(Ordering::Relaxed)))
    }
}

impl Object {
    /// Reads back what [`Object::bytes`] gave.
    pub fn read(json: &[u8]) -> Result<Object, serde_json::Error> {
        let value: Value = serde_json::from_slice(json)?;
        let revision = value.pointer("/metadata/resourceVersion").and_then(Value::as_str);
        Ok(Draft::new(&value).seal(revision.and_then(|text| text.parse().ok()).unwrap_or(0)))
    }

    /// The whole object as JSON.
    pub fn bytes(&self) -> &Bytes {
        &self.json
    }

    fn part(&self, range: Range<usize>) -> &[u8] {
        self.json.get(range).unwrap_or_default()
    }

    /// Where `metadata` begins in an object that was written out: after `{"apiVersion":…,"kind":…,`.
    pub fn type_meta_length(json: &[u8]) -> usize {
        const NEXT: &[u8] = b"\"metadata\":";
        json.windows(NEXT.len()).position(|window| window == NEXT).unwrap_or(0)
    }

    /// The `apiVersion` it is stored in.
    pub fn api_version(&self) -> &[u8] {
        self.part(self.version.start as usize..self.version.end as usize)
    }

    /// Appends the object as JSON in the given form.
    pub fn write(&self, out: &mut Vec<u8>, form: Form<'_>) {
        let mut from = 0;
        if let Some(api_version) = form.api_version {
            out.extend_from_slice(self.part(0..self.version.start as usize));
            out.extend_from_slice(api_version.as_bytes());
            from = self.version.end as usize;
        }
        if form.without_managed_fields {
            out.extend_from_slice(self.part(from..self.managed.start as usize));
            from = self.managed.end as usize;
        }
        out.extend_from_slice(self.part(from..self.json.len()));
    }

    /// The object as a value, managed fields included. A stored object is JSON we wrote, so parsing cannot fail; should
    /// memory be damaged, the answer is `null` and the request fails validation.
    pub fn value(&self) -> Value {
        serde_json::from_slice(&self.json).unwrap_or(Value::Null)
    }

    /// The object as a value, without managed fields.
    pub fn value_without_managed_fields(&self) -> Value {
        if self.managed.is_empty() {
            return self.value();
        }
        let mut json = Vec::with_capacity(self.json.len());
        self.write(&mut json, Form { without_managed_fields: true, ..Form::default() });
        serde_json::from_slice(&json).unwrap_or(Value::Null)
    }

    /// The same object with another revision: what a watcher gets for a deletion.
    pub fn with_revision(&self, revision: u64) -> Object {
        let digits = revision.to_string();
        let mut json = Vec::with_capacity(self.json.len() + 4);
        json.extend_from_slice(self.part(0..self.digits.start as usize));
        json.extend_from_slice(digits.as_bytes());
        json.extend_from_slice(self.part(self.digits.end as usize..self.json.len()));
        let end = self.digits.start + digits.len() as u32;
        let shift = |at: u32| (at - self.digits.end) + end;
        Object {
            json: Bytes::from(json),
            version: self.version.clone(),
            digits: self.digits.start..end,
            managed: shift(self.managed.start)..shift(self.managed.end),
            revision,
            key: self.key.clone(),
            meta: self.meta.clone(),
            complete: self.complete.clone(),
        }
    }

    /// Whether [`Object::mark_complete`] was called with this schema.
    pub fn is_complete(&self, schema: u64) -> bool {
        self.complete.0.load(Ordering::Relaxed) == schema
    }

    /// Remembers that this schema (a fingerprint of it) has nothing to prune from the object or to fill in.
    pub fn mark_complete(&self, schema: u64) {
        self.complete.0.store(schema, Ordering::Relaxed);
    }

    /// How much memory it is counted as, in bytes.
    pub fn weight(&self) -> usize {
        self.json.len() + 200
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn sample() -> Value {
        json!({"kind": "Foo", "apiVersion": "a.b/v1", "spec": {"x": 1}, "metadata": {
            "managedFields": [{"manager": "m"}], "name": "n", "resourceVersion": "1", "namespace": "s", "uid": "u",
            "labels": {"a": "b"}, "finalizers": ["f"], "ownerReferences": [{"apiVersion": "v1", "kind": "K", "name": "o", "uid": "ou", "blockOwnerDeletion": true}]}})
    }

    #[test]
    fn revision_version_and_managed_fields_are_slices() {
        let object = Draft::new(&sample()).seal(99);
        let mut expected = sample();
        expected["metadata"]["resourceVersion"] = json!("99");
        assert_eq!(object.value(), expected);
        let later = object.with_revision(100_000);
        expected["metadata"]["resourceVersion"] = json!("100000");
        assert_eq!(later.value(), expected);
        assert_eq!(later.revision, 100_000);
        expected["metadata"].as_object_mut().unwrap().remove("managedFields");
        assert_eq!(later.value_without_managed_fields(), expected);
        let mut out = Vec::new();
        later.write(&mut out, Form { api_version: Some("a.b/v1beta1"), without_managed_fields: true });
        expected["apiVersion"] = json!("a.b/v1beta1");
        assert_eq!(serde_json::from_slice::<Value>(&out).unwrap(), expected);
    }

    #[test]
    fn facts_are_read_once_and_survive_storage() {
        let object = Draft::new(&sample()).seal(7);
        assert_eq!(&*object.meta.uid, "u");
        assert!(!object.meta.deleting);
        assert!(object.meta.owners[0].blocks_deletion);
        let again = Object::read(object.bytes()).unwrap();
        assert_eq!(again.key, Key::new("s", "n"));
        assert_eq!(again.meta, object.meta);
        assert_eq!(again.bytes(), object.bytes());
        assert_eq!(again.revision, 7);
    }

    #[test]
    fn anything_can_be_laid_out() {
        for value in [json!(null), json!({}), json!({"metadata": 3}), json!({"metadata": {"managedFields": []}})] {
            let object = Draft::new(&value).seal(1);
            assert!(object.value().is_object(), "{value}");
        }
    }
}
