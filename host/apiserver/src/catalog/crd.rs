//! CustomResourceDefinitions: from the object to a resource that is served, and the status that says so.

use super::{Catalog, Converter, LazySchema, Resource, Scale, Version, priority};
use crate::options::Conversion;
use crate::status::qualified;
use crate::table::Columns;
use crate::webhooks::ConversionWebhook;
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

/// Remembers in a definition the version that its objects are stored in from now on.
pub(crate) fn set_stored_versions(crd: &mut Value) {
    let stored = versions(crd).iter().find(|version| version.get("storage") == Some(&Value::Bool(true)));
    let stored = stored.map(|version| text(version, "/name").to_owned()).unwrap_or_default();
    let mut all = texts(crd, "/status/storedVersions");
    if !stored.is_empty() && !all.contains(&stored) {
        all.push(stored);
    }
    let Some(fields) = crd.as_object_mut() else { return };
    if let Some(status) = fields.entry("status").or_insert_with(|| json!({})).as_object_mut() {
        status.insert("storedVersions".into(), all.into());
    }
}

/// Sets what a definition says of itself: the accepted names and its conditions.
pub(crate) fn set_status(crd: &mut Value, catalog: &Catalog, now: &str) {
    let group = text(crd, "/spec/group").to_owned();
    let plural = text(crd, "/spec/names/plural").to_owned();
    let (accepted, taken) = accepted_names(crd, catalog, &group, &plural);
    let mut status = crd.get("status").and_then(Value::as_object).cloned().unwrap_or_default();
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
    status.insert("conditions".into(), list.into());
    status.insert("acceptedNames".into(), accepted);
    if let Some(fields) = crd.as_object_mut() {
        fields.insert("status".into(), Value::Object(status));
    }
}

/// The names that no other resource of the group has, and the reason of the last that one has.
fn accepted_names(
    crd: &Value,
    catalog: &Catalog,
    group: &str,
    plural: &str,
) -> (Value, Option<(&'static str, String)>) {
    let others: Vec<&Arc<Resource>> =
        catalog.group(group).filter(|resource| resource.plural != plural || !resource.custom).collect();
    let names = others.iter().flat_map(|resource| {
        let short = resource.short_names.iter().map(String::as_str);
        [resource.plural.as_str(), resource.singular.as_str()].into_iter().chain(short)
    });
    let names: Vec<&str> = names.collect();
    let kinds: Vec<&str> =
        others.iter().flat_map(|resource| [resource.kind.as_str(), resource.list_kind.as_str()]).collect();
    let former = crd.pointer("/status/acceptedNames").cloned().unwrap_or_else(|| json!({"kind": "", "plural": ""}));
    let mut accepted = former.as_object().cloned().unwrap_or_default();
    let mut taken = None;
    let says = |name: &str| format!("{name:?} is already in use");
    for (field, among, reason) in [
        ("plural", &names, "PluralConflict"),
        ("singular", &names, "SingularConflict"),
        ("shortNames", &names, "ShortNamesConflict"),
        ("kind", &kinds, "KindConflict"),
        ("listKind", &kinds, "ListKindConflict"),
    ] {
        let Some(wanted) = crd.pointer(&format!("/spec/names/{field}")) else {
            accepted.shift_remove(field);
            continue;
        };
        let own = texts(crd, &format!("/spec/names/{field}"));
        let own = if own.is_empty() { vec![wanted.as_str().unwrap_or_default().to_owned()] } else { own };
        match own.iter().find(|name| among.contains(&name.as_str())) {
            Some(name) => taken = Some((reason, says(name))),
            None => drop(accepted.insert(field.to_owned(), wanted.clone())),
        }
    }
    match crd.pointer("/spec/names/categories") {
        Some(categories) => drop(accepted.insert("categories".into(), categories.clone())),
        None => drop(accepted.shift_remove("categories")),
    }
    (Value::Object(accepted), taken)
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
        sources.into_iter().map(|source| Arc::new(version(source, versions(crd), &group, kind))).collect()
    };
    let (mut list, unserved) = (compiled(list), compiled(unserved));
    list.sort_by_key(|version| Reverse(priority(&version.name)));
    if list.is_empty() {
        return None;
    }
    let stored = versions(crd).iter().find(|version| version.get("storage") == Some(&Value::Bool(true)))?;
    let hook = hooks.iter().find(|hook| hook.converts(&name)).cloned();
    let hook = hook.or_else(|| Some(Arc::new(ConversionWebhook::of(crd)?) as Arc<dyn Conversion>));
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

/// The version to use instead of a deprecated one: the best that is served, is not deprecated itself and is not worse.
fn better<'a>(all: &'a [Value], name: &str) -> Option<&'a str> {
    let is = |version: &Value, field: &str| version.get(field) == Some(&Value::Bool(true));
    let candidates = all.iter().filter(|version| is(version, "served") && !is(version, "deprecated"));
    let best = candidates.map(|version| text(version, "/name")).max_by_key(|name| priority(name))?;
    (priority(best) > priority(name)).then_some(best)
}

fn version(source: &Value, all: &[Value], group: &str, kind: &str) -> Version {
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
        own.unwrap_or_else(|| match better(all, &name) {
            Some(better) => format!("{api_version} {kind} is deprecated; use {group}/{better} {kind}"),
            None => format!("{api_version} {kind} is deprecated"),
        })
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
