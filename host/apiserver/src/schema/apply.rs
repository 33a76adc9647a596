//! Server-side apply and field ownership, as Kubernetes does it: what a manager applies it owns; what it stops applying
//! goes, unless somebody else owns it; what another manager owns with another value is a conflict.
//!
//! Pure: the caller gives the time. An apply that changes nothing returns the live object as it was, with its old times.

use super::Schema;
use super::error::quote;
use super::fields::{Element, Set};
use super::managed::{Entry, Managers, bare, ownable};
use super::node::Node;
use super::typed::{self, compare, every_path, merge, remove, to_set};
use serde_json::{Map, Value};

/// The annotation in which `kubectl apply` without `--server-side` keeps what it applied.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Who owns what stood in an object before anybody was recorded.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// The outcome of an apply.
#[derive(Clone, Debug)]
pub struct Applied {
    /// The object to default, validate and store. Equal to the live object when nothing changed.
    pub object: Value,
}

/// A field that another manager owns with another value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldConflict {
    /// Who owns it.
    pub manager: String,
    /// The version it was last written with. Empty for a manager that applied.
    pub api_version: String,
    /// The subresource it was written through, or empty.
    pub subresource: String,
    /// The field's path, as in `.spec.containers[name="a"].image`.
    pub field: String,
}

impl FieldConflict {
    /// The other manager in kubectl's words (`"kubectl-client-side-apply" using v1`).
    pub fn owner(&self) -> String {
        let mut text = quote(&self.manager);
        if !self.subresource.is_empty() {
            text.push_str(&format!(" with subresource {}", quote(&self.subresource)));
        }
        if !self.api_version.is_empty() {
            text.push_str(&format!(" using {}", self.api_version));
        }
        text
    }

    /// `(reason, message, field)` for `Status.details.causes`.
    pub fn cause(&self) -> (&'static str, String, String) {
        ("FieldManagerConflict", format!("conflict with {}", self.owner()), self.field.clone())
    }
}

impl std::fmt::Display for FieldConflict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "conflict with {}: {}", self.owner(), self.field)
    }
}

/// Why an apply was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// Other managers own fields with other values, and `force` was not given. Status 409.
    #[error("{}", conflict_message(.0))]
    Conflict(Vec<FieldConflict>),
    /// The configuration cannot be applied to this kind. Status 400.
    #[error("{0}")]
    Invalid(String),
}

fn conflict_message(conflicts: &[FieldConflict]) -> String {
    if let [only] = conflicts {
        return format!("Apply failed with 1 conflict: {only}");
    }
    let mut owners: Vec<String> = conflicts.iter().map(FieldConflict::owner).collect();
    owners.sort();
    owners.dedup();
    let mut lines = Vec::new();
    for owner in owners {
        lines.push(format!("conflicts with {owner}:"));
        lines.extend(conflicts.iter().filter(|c| c.owner() == owner).map(|c| format!("- {}", c.field)));
    }
    format!("Apply failed with {} conflicts: {}", conflicts.len(), lines.join("\n"))
}

/// Applies a configuration.
///
/// `live` is the stored object, `None` when there is none yet. `applied` is the whole configuration as sent, pruned of
/// unknown fields. With `subresource` "status" only `status` is looked at; a caller that serves `status` apart takes it
/// out of `applied` (and puts it back) for the main resource. The result is not yet defaulted or validated.
///
/// # Errors
/// [`ApplyError::Conflict`] lists every field that another manager owns with another value; [`ApplyError::Invalid`] says
/// what in the configuration makes no sense (managedFields in it, list items without their keys).
pub fn apply(
    schema: &Schema,
    live: Option<&Value>,
    applied: &Value,
    manager: &str,
    force: bool,
    subresource: Option<&str>,
    now_rfc3339: &str,
) -> Result<Applied, ApplyError> {
    let root = Some(schema.root());
    let config = configuration(schema, applied, subresource)?;
    let said = to_set(root, &config, "").map_err(ApplyError::Invalid)?;
    let mine = Entry {
        manager: manager.to_owned(),
        applied: true,
        api_version: text(&config, "apiVersion"),
        time: Some(now_rfc3339.to_owned()),
        subresource: subresource.unwrap_or_default().to_owned(),
        fields: ownable(&said),
    };
    let Some(live) = live else {
        let mut object = config;
        Managers(vec![mine]).write(&mut object);
        return Ok(Applied { object });
    };

    let before = Managers::read(live).unwrap_or_default();
    let live_bare = bare(live);
    let mut managers = before.clone();
    if managers.0.is_empty() {
        managers.put(Entry {
            manager: BEFORE_FIRST_APPLY.to_owned(),
            applied: false,
            api_version: text(live, "apiVersion"),
            time: Some(now_rfc3339.to_owned()),
            subresource: String::new(),
            fields: ownable(&compare(root, &empty_object(), &live_bare).brought()),
        });
    }
    let last = before.find(&mine).map(|entry| entry.fields.clone());
    managers.put(mine.clone());

    let merged = merge(root, &live_bare, &config);
    let object = match last.filter(|last| !last.is_empty()) {
        Some(last) => merge(root, &without_dropped(root, &merged, &managers, &said, &last), &config),
        None => merged,
    };

    let mut object = object;
    typed::drop_emptied(root, &config, &live_bare, &mut object);
    let changes = compare(root, &live_bare, &object);
    let brought = changes.brought();
    let mut conflicts = Vec::new();
    for entry in &mut managers.0 {
        if entry.same_manager(&mine) {
            continue;
        }
        let contested = entry.fields.intersection(&brought);
        if !contested.is_empty() {
            conflicts.extend(contested.paths().into_iter().map(|field| FieldConflict {
                manager: entry.manager.clone(),
                api_version: if entry.applied { String::new() } else { entry.api_version.clone() },
                subresource: entry.subresource.clone(),
                field,
            }));
            entry.fields = entry.fields.difference(&contested);
        }
        entry.fields = entry.fields.difference(&changes.removed);
    }
    if manager == "kubectl" {
        let known = last_applied_fields(root, &live_bare);
        conflicts.retain(|conflict| !known.contains(&conflict.field));
    }
    if !conflicts.is_empty() && !force {
        return Err(ApplyError::Conflict(conflicts));
    }
    managers.0.retain(|entry| !entry.fields.is_empty());
    if object == live_bare {
        // Who only joins in owning has not written anything, so there is no time of it.
        let former = before.find(&mine).and_then(|entry| entry.time.clone());
        if let Some(own) = managers.0.iter_mut().find(|entry| entry.same_manager(&mine)) {
            own.time = former;
        }
    }
    if object == live_bare && unchanged(&before, &managers) {
        return Ok(Applied { object: live.clone() });
    }
    if manager == "kubectl" {
        refresh_last_applied(&mut object, applied);
    }
    managers.write(&mut object);
    Ok(Applied { object })
}

/// Records who owns what after a create, update or patch: what differs from `old` now belongs to `manager`.
///
/// `new` may bring managedFields of its own (a client that migrates or clears them); otherwise those of `old` are carried
/// over. When nothing changed, `new` ends up with the managedFields it had. A stored object whose managedFields were
/// cleared stays without until somebody applies to it, as upstream.
pub fn track_update(
    schema: &Schema,
    old: Option<&Value>,
    new: &mut Value,
    manager: &str,
    subresource: Option<&str>,
    now_rfc3339: &str,
) {
    let root = Some(schema.root());
    // An empty list clears them, as a list of one empty entry does.
    let empty = new.pointer("/metadata/managedFields").and_then(Value::as_array).is_some_and(Vec::is_empty);
    let mut managers = match (Managers::read(new).filter(|_| !empty), old) {
        (None, _) => Managers::default(),
        (Some(brought), Some(old)) if brought.0.is_empty() => Managers::read(old).unwrap_or_default(),
        (Some(brought), _) => brought,
    };
    let stored =
        old.and_then(|old| old.pointer("/metadata/uid")).and_then(Value::as_str).is_some_and(|uid| !uid.is_empty());
    if managers.0.is_empty() && stored {
        // Cleared, or from before there was tracking: only an apply begins anew.
        return managers.write(new);
    }
    let new_bare = bare(new);
    let old_bare = old.map_or_else(empty_object, bare);
    let changes = compare(root, &old_bare, &new_bare);
    let brought = ownable(&changes.brought());
    for entry in &mut managers.0 {
        entry.fields = entry.fields.difference(&brought).difference(&changes.removed);
    }
    if !brought.is_empty() {
        let mut mine = Entry {
            manager: manager.to_owned(),
            applied: false,
            api_version: text(new, "apiVersion"),
            // Upstream loses the time of a scaling on its way between the two kinds.
            time: (subresource != Some("scale")).then(|| now_rfc3339.to_owned()),
            subresource: subresource.unwrap_or_default().to_owned(),
            fields: brought,
        };
        if let Some(former) = managers.find(&mine) {
            mine.fields = mine.fields.union(&former.fields);
        }
        managers.put(mine);
    }
    managers.write(new);
}

fn text(object: &Value, name: &str) -> String {
    object.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn empty_object() -> Value {
    Value::Object(Map::new())
}

/// The configuration in the form that ownership is computed from.
fn configuration(schema: &Schema, applied: &Value, subresource: Option<&str>) -> Result<Value, ApplyError> {
    let Some(map) = applied.as_object() else {
        return Err(ApplyError::Invalid("the applied configuration must be an object".to_owned()));
    };
    let managed = applied.get("metadata").and_then(|metadata| metadata.get("managedFields"));
    if managed.is_some_and(|list| list.as_array().is_none_or(|list| !list.is_empty()) && !list.is_null()) {
        return Err(ApplyError::Invalid("metadata.managedFields must be nil".to_owned()));
    }
    let mut config = map.clone();
    if subresource == Some("status") {
        config.retain(|name, _| ["apiVersion", "kind", "metadata", "status"].contains(&name.as_str()));
        if let Some(metadata) = config.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.retain(|name, _| ["name", "namespace", "uid", "resourceVersion"].contains(&name.as_str()));
        }
    }
    if let Some(metadata) = config.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.shift_remove("managedFields");
    }
    // What can be written in two ways stays as it was written: upstream tracks the text of a Secret's `stringData`.
    let mut config = Value::Object(config);
    drop_nulls(Some(schema.root()), &mut config);
    Ok(config)
}

/// A null in a declared field that does not allow it is the same as no field.
fn drop_nulls(node: Option<&Node>, value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|name, child| {
                let Some(field) = node.and_then(|n| n.fields.get(name)) else { return true };
                !child.is_null() || field.node.nullable
            });
            for (name, child) in map.iter_mut() {
                drop_nulls(typed::step(node, &Element::field(name)).0, child);
            }
        }
        Value::Array(items) => {
            let item_node = node.and_then(|n| n.items.as_deref());
            items.iter_mut().for_each(|item| drop_nulls(item_node, item));
        }
        _ => {}
    }
}

/// Takes out what the manager applied last time and does not apply now, unless somebody owns it.
///
/// `said` is all that the manager applies now, also what cannot be owned.
fn without_dropped(root: Option<&Node>, merged: &Value, managers: &Managers, said: &Set, last: &Set) -> Value {
    let paths = |value: &Value| every_path(root, value).with_named_fields(root);
    let nothing = empty_object;
    let last = last.with_named_fields(root);
    let mine_and_others = managers.0.iter().fold(said.clone(), |all, entry| all.union(&entry.fields));
    let owned = mine_and_others.with_named_fields(root);
    let all = paths(merged);
    // First everything the manager had goes; what is owned, now or by others, comes back; and what then is still missing
    // without ever having been the manager's comes back, too.
    let cut = remove(root, merged, &last, &mine_and_others).unwrap_or_else(nothing);
    let kept = all.difference(&paths(&cut).union(&owned));
    let restored = remove(root, merged, &kept, &mine_and_others).unwrap_or_else(nothing);
    let gone = all.difference(&paths(&restored)).intersection(&last);
    remove(root, merged, &gone, &mine_and_others).unwrap_or_else(nothing)
}

fn unchanged(before: &Managers, after: &Managers) -> bool {
    before.0.len() == after.0.len()
        && after.0.iter().all(|entry| {
            before
                .find(entry)
                .is_some_and(|former| former.fields == entry.fields && former.api_version == entry.api_version)
        })
}

/// The fields that client-side apply set and nobody changed since: `kubectl apply --server-side` may take them over.
fn last_applied_fields(root: Option<&Node>, live: &Value) -> std::collections::HashSet<String> {
    let annotation = live
        .get("metadata")
        .and_then(|metadata| metadata.get("annotations"))
        .and_then(|annotations| annotations.get(LAST_APPLIED))
        .and_then(Value::as_str);
    let Some(Ok(last)) = annotation.map(serde_json::from_str::<Value>) else { return Default::default() };
    let Ok(set) = to_set(root, &last, "") else { return Default::default() };
    let differing = compare(root, live, &merge(root, live, &last)).brought();
    set.difference(&differing).paths().into_iter().collect()
}

/// Keeps the annotation of client-side apply in step, where there is one.
fn refresh_last_applied(object: &mut Value, applied: &Value) {
    let annotations =
        object.get_mut("metadata").and_then(|metadata| metadata.get_mut("annotations")).and_then(Value::as_object_mut);
    let Some(annotation) = annotations.and_then(|annotations| annotations.get_mut(LAST_APPLIED)) else { return };
    let mut config = bare(applied);
    let inner =
        config.get_mut("metadata").and_then(|metadata| metadata.get_mut("annotations")).and_then(Value::as_object_mut);
    if let Some(inner) = inner {
        inner.shift_remove(LAST_APPLIED);
    }
    sort_keys(&mut config);
    *annotation = format!("{config}\n").into();
}

/// As Go writes maps.
fn sort_keys(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.sort_keys();
            map.values_mut().for_each(sort_keys);
        }
        Value::Array(items) => items.iter_mut().for_each(sort_keys),
        _ => {}
    }
}
