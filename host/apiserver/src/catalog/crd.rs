//! CustomResourceDefinitions: from the object to a resource that is served, and the status that says so.

use super::{Catalog, Converter, LazySchema, Resource, Scale, Version, priority};
use crate::options::Conversion;
use crate::status::qualified;
use crate::table::Columns;
use serde_json::{Map, Value, json};
use std::cmp::Reverse;
use std::sync::Arc;

/// The collection of definitions.
pub(crate) const COLLECTION: &str = "customresourcedefinitions.apiextensions.k8s.io";
/// What keeps a definition until its objects are gone.
pub(crate) const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

fn text<'a>(value: &'a Value, path: &str) -> &'a str {
    value.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

fn texts(value: &Value, path: &str) -> Vec<String> {
    let items = value.pointer(path).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    items.iter().filter_map(|item| item.as_str().map(str::to_owned)).collect()
}

fn versions(crd: &Value) -> &[Value] {
    crd.pointer("/spec/versions").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// Sets what a definition says of itself: the accepted names, its conditions, the versions that objects may be stored in.
pub(crate) fn set_status(crd: &mut Value, catalog: &Catalog, now: &str) {
    let group = text(crd, "/spec/group").to_owned();
    let plural = text(crd, "/spec/names/plural").to_owned();
    let taken = conflict(crd, catalog, &group, &plural);
    let names = crd.pointer("/spec/names").cloned().unwrap_or_else(|| json!({}));
    let stored = versions(crd).iter().find(|version| version.get("storage") == Some(&Value::Bool(true)));
    let stored = stored.map(|version| text(version, "/name").to_owned()).unwrap_or_default();
    let mut status = crd.get("status").and_then(Value::as_object).cloned().unwrap_or_default();
    let accepted = match &taken {
        None => names,
        Some(_) => status.get("acceptedNames").cloned().unwrap_or_else(|| json!({"kind": "", "plural": ""})),
    };
    let conditions = match &taken {
        None => [
            ("NamesAccepted", "True", "NoConflicts", "no conflicts found".to_owned()),
            ("Established", "True", "InitialNamesAccepted", "the initial names have been accepted".to_owned()),
        ],
        Some((reason, message)) => [
            ("NamesAccepted", "False", *reason, message.clone()),
            ("Established", "False", "NotAccepted", "not all names are accepted".to_owned()),
        ],
    };
    let old = status.get("conditions").and_then(Value::as_array).cloned().unwrap_or_default();
    let mut list: Vec<Value> = Vec::new();
    for (kind, state, reason, message) in conditions {
        let before = old.iter().find(|condition| text(condition, "/type") == kind);
        let since = before
            .filter(|condition| text(condition, "/status") == state)
            .map(|condition| text(condition, "/lastTransitionTime"));
        list.push(json!({"lastTransitionTime": since.unwrap_or(now), "message": message, "reason": reason, "status": state, "type": kind}));
    }
    list.extend(
        old.into_iter().filter(|condition| !matches!(text(condition, "/type"), "NamesAccepted" | "Established")),
    );
    let mut stored_versions = texts(&Value::Object(status.clone()), "/storedVersions");
    if !stored.is_empty() && !stored_versions.contains(&stored) {
        stored_versions.push(stored);
    }
    status.insert("conditions".into(), list.into());
    status.insert("acceptedNames".into(), accepted);
    status.insert("storedVersions".into(), stored_versions.into());
    if let Some(fields) = crd.as_object_mut() {
        fields.insert("status".into(), Value::Object(status));
    }
}

/// Whether another resource of the group has one of the names.
fn conflict(crd: &Value, catalog: &Catalog, group: &str, plural: &str) -> Option<(&'static str, String)> {
    let others = || catalog.group(group).filter(|resource| resource.plural != plural || !resource.custom);
    let says = |name: &str| format!("{name:?} is already in use");
    for resource in others() {
        if resource.plural == plural || resource.singular == plural {
            return Some(("PluralConflict", says(plural)));
        }
        let singular = text(crd, "/spec/names/singular");
        if resource.singular == singular {
            return Some(("SingularConflict", says(singular)));
        }
        let kind = text(crd, "/spec/names/kind");
        if resource.kind == kind {
            return Some(("KindConflict", says(kind)));
        }
        for short in texts(crd, "/spec/names/shortNames") {
            if resource.short_names.contains(&short) {
                return Some(("ShortNamesConflict", says(&short)));
            }
        }
    }
    None
}

/// Changes whenever what a definition makes does: with its generation, and when its names are accepted or not.
pub(crate) fn fingerprint(crd: &Value) -> String {
    let generation = crd.pointer("/metadata/generation").and_then(Value::as_i64).unwrap_or(0);
    format!("{}/{generation}/{}", text(crd, "/metadata/uid"), established(crd))
}

fn established(crd: &Value) -> bool {
    let conditions = crd.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten();
    conditions.into_iter().any(|c| text(c, "/type") == "Established" && text(c, "/status") == "True")
}

/// The resource that a definition makes, when it is established and serves any version.
pub(crate) fn resource(crd: &Value, hooks: &[Arc<dyn Conversion>]) -> Option<Resource> {
    if !established(crd) {
        return None;
    }
    let group = text(crd, "/spec/group").to_owned();
    let plural = text(crd, "/spec/names/plural").to_owned();
    let name = qualified(&plural, &group);
    let served = |version: &&Value| version.get("served") == Some(&Value::Bool(true));
    let (list, unserved): (Vec<&Value>, Vec<&Value>) = versions(crd).iter().partition(served);
    let compiled = |sources: Vec<&Value>| -> Vec<Arc<Version>> {
        let kind = text(crd, "/spec/names/kind");
        sources.into_iter().map(|source| Arc::new(version(source, &group, kind))).collect()
    };
    let (mut list, unserved) = (compiled(list), compiled(unserved));
    list.sort_by_key(|version| Reverse(priority(&version.name)));
    if list.is_empty() {
        return None;
    }
    let stored = versions(crd).iter().find(|version| version.get("storage") == Some(&Value::Bool(true)))?;
    let hook = hooks.iter().find(|hook| hook.converts(&name)).cloned();
    Some(Resource {
        singular: text(crd, "/spec/names/singular").to_owned(),
        kind: text(crd, "/spec/names/kind").to_owned(),
        list_kind: text(crd, "/spec/names/listKind").to_owned(),
        short_names: texts(crd, "/spec/names/shortNames"),
        categories: texts(crd, "/spec/names/categories"),
        namespaced: text(crd, "/spec/scope") != "Cluster",
        collection: name.into(),
        stored: format!("{group}/{}", text(stored, "/name")),
        versions: list,
        unserved,
        converter: hook.map_or(Converter::Rename, Converter::Hook),
        custom: true,
        fingerprint: fingerprint(crd),
        group,
        plural,
    })
}

fn version(source: &Value, group: &str, kind: &str) -> Version {
    let name = text(source, "/name").to_owned();
    let api_version = format!("{group}/{name}");
    let status = source.pointer("/subresources/status").is_some_and(|status| !status.is_null());
    let scale = source.pointer("/subresources/scale").filter(|scale| scale.is_object()).map(|scale| {
        let pointer = |field: &str| {
            let path = scale.get(field).and_then(Value::as_str).filter(|path| !path.is_empty());
            path.map(|path| path.replace('.', "/"))
        };
        Scale {
            spec_replicas: pointer("specReplicasPath").unwrap_or_default(),
            status_replicas: pointer("statusReplicasPath").unwrap_or_default(),
            selector: pointer("labelSelectorPath"),
        }
    });
    let mut subresources = Vec::new();
    if status {
        subresources.push(String::from("status"));
    }
    if scale.is_some() {
        subresources.push(String::from("scale"));
    }
    let selectable = source.get("selectableFields").and_then(Value::as_array).into_iter().flatten();
    let deprecated = (source.get("deprecated") == Some(&Value::Bool(true))).then(|| {
        let own = source.get("deprecationWarning").and_then(Value::as_str).map(str::to_owned);
        own.unwrap_or_else(|| format!("{api_version} {kind} is deprecated"))
    });
    Version {
        schema: LazySchema::custom(
            source.pointer("/schema/openAPIV3Schema").cloned().unwrap_or_else(|| Value::Object(Map::new())),
        ),
        status,
        scale,
        subresources,
        columns: Columns::custom(source.get("additionalPrinterColumns")),
        selectable: selectable.map(|field| text(field, "/jsonPath").trim_start_matches('.').to_owned()).collect(),
        deprecated,
        name,
        api_version,
    }
}
