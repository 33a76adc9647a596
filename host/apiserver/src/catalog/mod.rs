//! Which kinds are served: the built-in ones, shared by all servers of the process, and those of the
//! CustomResourceDefinitions in the store, from the moment their definition is stored.

mod builtin;
pub(crate) mod crd;

pub(crate) use builtin::builtins;

use crate::options::Conversion;
use crate::schema::Schema;
use crate::status::qualified;
use crate::store::{Form, Object};
use crate::table::Columns;
use serde_json::Value;
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

/// One resource of a group, in all its versions.
pub(crate) struct Resource {
    pub group: String,
    pub plural: String,
    pub singular: String,
    pub kind: String,
    pub list_kind: String,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
    pub namespaced: bool,
    /// Where its objects are in the store. Two resources may show one collection (Events of both groups).
    pub collection: Arc<str>,
    /// Those that are served, in order of preference.
    pub versions: Vec<Arc<Version>>,
    /// Those that are not; objects may still be stored in them.
    pub unserved: Vec<Arc<Version>>,
    /// The `apiVersion` of objects in the store.
    pub stored: String,
    pub converter: Converter,
    /// Whether a CustomResourceDefinition made it.
    pub custom: bool,
    /// Changes whenever anything in it does.
    pub fingerprint: String,
}

/// One version of a resource.
pub(crate) struct Version {
    pub name: String,
    /// `group/version`, or `v1`.
    pub api_version: String,
    schema: LazySchema,
    /// Whether the status is written apart from the rest.
    pub status: bool,
    pub scale: Option<Scale>,
    /// Names of all subresources, `status` and `scale` included.
    pub subresources: Vec<String>,
    pub columns: Columns,
    /// Fields that selectors may name, besides name and namespace.
    pub selectable: Vec<String>,
    /// What clients are warned of when they use it.
    pub deprecated: Option<String>,
}

/// A schema that is compiled when it is first needed.
enum LazySchema {
    BuiltIn(fn() -> Schema, OnceLock<Schema>),
    Custom { source: Value, fingerprint: u64, compiled: OnceLock<Schema> },
}

impl LazySchema {
    fn custom(source: Value) -> LazySchema {
        let mut hasher = std::hash::DefaultHasher::new();
        source.to_string().hash(&mut hasher);
        // 0 stands for no schema.
        LazySchema::Custom { source, fingerprint: hasher.finish().max(1), compiled: OnceLock::new() }
    }
}

impl Version {
    /// The schema. A stored definition was compiled before it was accepted, so it compiles; should it not after an upgrade
    /// of the server, its objects are kept as they are.
    pub fn schema(&self) -> &Schema {
        match &self.schema {
            LazySchema::BuiltIn(make, cell) => cell.get_or_init(make),
            LazySchema::Custom { source, compiled, .. } => {
                compiled.get_or_init(|| Schema::compile(source).unwrap_or_else(|_| Schema::preserve_all()))
            }
        }
    }

    /// The same for the same schema of a definition; 0 for a built-in kind, whose objects are stored complete.
    pub fn fingerprint(&self) -> u64 {
        match &self.schema {
            LazySchema::BuiltIn(..) => 0,
            LazySchema::Custom { fingerprint, .. } => *fingerprint,
        }
    }

    /// Makes an object what the schema says now: it may have been stored under another one.
    fn complete(&self, object: &mut Value) {
        let schema = self.schema();
        schema.prune(object);
        schema.default(object);
    }
}

/// Where the numbers of a scale subresource are: JSON pointers into the object.
#[derive(Clone, Debug)]
pub(crate) struct Scale {
    pub spec_replicas: String,
    pub status_replicas: String,
    pub selector: Option<String>,
}

/// How an object gets from one version to another.
pub(crate) enum Converter {
    /// There is one version, or they differ in nothing but their name.
    Rename,
    /// A hook does it.
    Hook(Arc<dyn Conversion>),
    /// Events of `events.k8s.io` are Events of the core group in other words.
    Events,
}

impl Resource {
    /// `deployments.apps`.
    pub fn qualified(&self) -> String {
        qualified(&self.plural, &self.group)
    }

    pub fn version(&self, name: &str) -> Option<&Arc<Version>> {
        self.versions.iter().find(|version| version.name == name)
    }

    /// The version that an object is stored in, if the definition still has it.
    fn version_of(&self, object: &Object) -> Option<&Arc<Version>> {
        let own = object.api_version();
        self.versions.iter().chain(&self.unserved).find(|version| version.api_version.as_bytes() == own)
    }

    /// Whether an object's bytes are what a client of the version gets, but for the name of the version.
    fn is_plain(&self, object: &Object, version: &Version) -> bool {
        if !self.custom {
            return true;
        }
        let Some(own) = self.version_of(object) else { return false };
        if own.api_version != version.api_version
            && (own.fingerprint() != version.fingerprint() || !matches!(self.converter, Converter::Rename))
        {
            return false;
        }
        if object.is_complete(own.fingerprint()) {
            return true;
        }
        let value = object.value();
        let mut complete = value.clone();
        own.complete(&mut complete);
        let plain = value == complete;
        if plain {
            object.mark_complete(own.fingerprint());
        }
        plain
    }

    /// Whether an object would be stored as it is now if nothing in it were changed: its definition did not change since.
    pub fn is_settled(&self, object: &Object) -> bool {
        !self.custom
            || self.version_of(object).is_some_and(|own| own.api_version == self.stored && self.is_plain(object, own))
    }

    /// An object in a served version, as a value.
    pub fn present(&self, object: &Object, version: &Version) -> Result<Value, String> {
        self.show(object, version, false)
    }

    /// An object in a served version for a client; `lean` is without managed fields.
    pub fn show(&self, object: &Object, version: &Version, lean: bool) -> Result<Value, String> {
        let mut value = if lean { object.value_without_managed_fields() } else { object.value() };
        if !self.custom {
            return self.convert(value, &version.api_version);
        }
        let own = self.version_of(object);
        if let Some(own) = own.filter(|own| !object.is_complete(own.fingerprint())) {
            own.complete(&mut value);
        }
        if own.is_some_and(|own| own.api_version == version.api_version) {
            return Ok(value);
        }
        // What another version's schema has defaults for stays absent: as upstream, which fills in what it reads and what it is
        // sent, and not what it converts.
        let mut value = self.convert(value, &version.api_version)?;
        version.schema().prune(&mut value);
        Ok(value)
    }

    /// Converts an object to a version.
    pub fn convert(&self, mut object: Value, api_version: &str) -> Result<Value, String> {
        if object.get("apiVersion").and_then(Value::as_str) == Some(api_version) {
            return Ok(object);
        }
        match &self.converter {
            Converter::Rename => {
                if let Some(fields) = object.as_object_mut() {
                    fields.insert("apiVersion".into(), api_version.into());
                }
                Ok(object)
            }
            Converter::Hook(hook) => {
                let metadata = object.get("metadata").cloned();
                let mut converted = hook.convert(object, api_version)?;
                // Identity is not the converter's to change.
                if let (Some(old), Some(new)) = (metadata, converted.get_mut("metadata").and_then(Value::as_object_mut))
                {
                    for (name, value) in old.as_object().into_iter().flatten() {
                        if !matches!(name.as_str(), "labels" | "annotations") {
                            new.insert(name.clone(), value.clone());
                        }
                    }
                }
                Ok(converted)
            }
            Converter::Events => Ok(builtin::convert_event(object, api_version)),
        }
    }

    /// Whether the object has to be parsed to be shown in the version, which may fail.
    pub fn is_hooked(&self, object: &Object, version: &Version) -> bool {
        !self.is_plain(object, version)
    }

    /// Appends an object in a served version as JSON; without parsing it when that can be avoided.
    pub fn write(&self, object: &Object, version: &Version, lean: bool, out: &mut Vec<u8>) {
        // What the definition says is stored may differ from what this object was stored as.
        let rename = (object.api_version() != version.api_version.as_bytes()).then_some(version.api_version.as_str());
        if !self.is_plain(object, version) || (rename.is_some() && matches!(self.converter, Converter::Events)) {
            match self.show(object, version, lean) {
                Ok(value) => {
                    let _ = serde_json::to_writer(out, &value);
                    return;
                }
                Err(error) => tracing::warn!(resource = %self.qualified(), %error, "an object cannot be converted"),
            }
        }
        object.write(out, Form { api_version: rename, without_managed_fields: lean });
    }
}

/// All that a server serves at one moment.
#[derive(Clone, Default)]
pub(crate) struct Catalog {
    /// By group, then plural name. The core group is `""` and so comes first.
    resources: BTreeMap<String, BTreeMap<String, Arc<Resource>>>,
}

impl Catalog {
    pub fn insert(&mut self, resource: Arc<Resource>) {
        self.resources.entry(resource.group.clone()).or_default().insert(resource.plural.clone(), resource);
    }

    pub fn remove(&mut self, group: &str, plural: &str) {
        if let Some(resources) = self.resources.get_mut(group) {
            resources.remove(plural);
            if resources.is_empty() {
                self.resources.remove(group);
            }
        }
    }

    pub fn get(&self, group: &str, plural: &str) -> Option<&Arc<Resource>> {
        self.resources.get(group)?.get(plural)
    }

    /// The resource of a kind.
    pub fn kind(&self, group: &str, kind: &str) -> Option<&Arc<Resource>> {
        self.resources.get(group)?.values().find(|resource| resource.kind == kind)
    }

    /// The resource whose objects are in a collection.
    pub fn of_collection(&self, collection: &str) -> Option<&Arc<Resource>> {
        let (plural, group) = collection.split_once('.').unwrap_or((collection, ""));
        self.get(group, plural)
    }

    pub fn groups(&self) -> impl Iterator<Item = &String> {
        self.resources.keys()
    }

    pub fn all(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.resources.values().flat_map(BTreeMap::values)
    }

    pub fn group(&self, group: &str) -> impl Iterator<Item = &Arc<Resource>> {
        self.resources.get(group).into_iter().flat_map(BTreeMap::values)
    }

    /// The versions of a group, the preferred first.
    pub fn versions(&self, group: &str) -> Vec<&str> {
        let mut versions: Vec<&str> = Vec::new();
        for version in self.group(group).flat_map(|resource| &resource.versions) {
            if !versions.contains(&version.name.as_str()) {
                versions.push(&version.name);
            }
        }
        versions.sort_by_key(|version| std::cmp::Reverse(priority(version)));
        versions
    }
}

/// Kubernetes' order of versions: GA before beta before alpha, then the greater number; other names last, by name.
pub(crate) fn priority(version: &str) -> (u8, u32, u32, std::cmp::Reverse<String>) {
    let parse = || -> Option<(u8, u32, u32)> {
        let rest = version.strip_prefix('v')?;
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (major, stage) = rest.split_at_checked(end)?;
        let major = major.parse().ok()?;
        if stage.is_empty() {
            return Some((3, major, 0));
        }
        let minor = |text: &str| text.parse::<u32>().ok();
        match (stage.strip_prefix("beta"), stage.strip_prefix("alpha")) {
            (Some(number), _) => Some((2, major, minor(number)?)),
            (_, Some(number)) => Some((1, major, minor(number)?)),
            _ => None,
        }
    };
    match parse() {
        Some((stage, major, minor)) => (stage, major, minor, std::cmp::Reverse(String::new())),
        None => (0, 0, 0, std::cmp::Reverse(version.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_have_an_order() {
        let mut versions = ["v1beta1", "v10", "foo10", "v2", "v1alpha2", "v1beta2", "bar", "v1"];
        versions.sort_by_key(|version| std::cmp::Reverse(priority(version)));
        assert_eq!(versions, ["v10", "v2", "v1", "v1beta2", "v1beta1", "v1alpha2", "bar", "foo10"]);
    }
}
