//! Managers of one object who write it in different versions: what changed is compared in each manager's own version, since
//! its fields are named in it.

use super::Schema;
use super::typed::{Changes, compare};
use serde_json::Value;
use std::collections::HashMap;

/// How objects of a kind look in its other versions.
pub trait Versions {
    /// The schema of a version, and the object in it. None when it cannot be said; then fields are taken to be named alike.
    fn view(&self, object: &Value, api_version: &str) -> Option<(&Schema, Value)>;
}

/// A kind in the version that a request speaks, and a way to its other ones.
#[derive(Clone, Copy)]
pub struct Kind<'a> {
    /// The schema of the request's version.
    pub schema: &'a Schema,
    /// None: the other versions name all fields alike.
    pub versions: Option<&'a dyn Versions>,
}

impl<'a> From<&'a Schema> for Kind<'a> {
    fn from(schema: &'a Schema) -> Kind<'a> {
        Kind { schema, versions: None }
    }
}

/// What changed from one object to another, for managers of every version.
pub(crate) struct Differences<'a> {
    kind: Kind<'a>,
    old: &'a Value,
    new: &'a Value,
    own: Changes,
    others: HashMap<String, Changes>,
}

impl<'a> Differences<'a> {
    /// Both objects are in the request's version.
    pub fn new(kind: Kind<'a>, old: &'a Value, new: &'a Value) -> Differences<'a> {
        let own = compare(Some(kind.schema.root()), old, new);
        Differences { kind, old, new, own, others: HashMap::new() }
    }

    /// In the request's version.
    pub fn own(&self) -> &Changes {
        &self.own
    }

    /// In another version.
    pub fn in_version(&mut self, api_version: &str) -> &Changes {
        let same = |object: &Value| object.get("apiVersion").and_then(Value::as_str) == Some(api_version);
        if api_version.is_empty() || same(self.new) || !self.old.is_object() {
            return &self.own;
        }
        let Some(versions) = self.kind.versions else { return &self.own };
        if !self.others.contains_key(api_version) {
            let old = versions.view(self.old, api_version);
            let new = versions.view(self.new, api_version);
            let (Some((schema, old)), Some((_, new))) = (old, new) else { return &self.own };
            self.others.insert(api_version.to_owned(), compare(Some(schema.root()), &old, &new));
        }
        self.others.get(api_version).unwrap_or(&self.own)
    }
}
