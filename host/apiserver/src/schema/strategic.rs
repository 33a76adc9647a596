//! Strategic merge patch: a merge patch that knows which lists are merged by which key.
//!
//! Directives: `$patch: delete|replace|merge` in objects and list items, `$retainKeys`, `$setElementOrder/<list>`,
//! `$deleteFromPrimitiveList/<list>`. Custom resources have no strategies, so the API server refuses this patch for them.

use super::Schema;
use super::node::{Additional, Node, Patch};
use serde_json::{Map, Value};

const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const ORDER: &str = "$setElementOrder/";
const DELETE_PRIMITIVES: &str = "$deleteFromPrimitiveList/";

/// Merges a strategic merge patch into an object.
///
/// # Errors
/// A text that names the directive or the list item that makes no sense.
pub fn strategic_merge(schema: &Schema, live: &Value, patch: &Value) -> Result<Value, String> {
    let Value::Object(patch) = patch else {
        return Err("a strategic merge patch must be an object".to_owned());
    };
    let empty = Map::new();
    let live = live.as_object().unwrap_or(&empty);
    Ok(Value::Object(merge_map(Some(schema.root()), live, patch)?))
}

fn child_of<'a>(node: Option<&'a Node>, name: &str) -> (Option<&'a Node>, Patch) {
    let Some(node) = node else { return (None, Patch::default()) };
    match (node.fields.get(name), &node.additional) {
        (Some(field), _) => (Some(&field.node), field.patch.clone()),
        (None, Additional::Schema(schema)) => (Some(schema), Patch::default()),
        _ => (None, Patch::default()),
    }
}

fn is_directive(name: &str) -> bool {
    name == PATCH || name == RETAIN_KEYS || name.starts_with(ORDER) || name.starts_with(DELETE_PRIMITIVES)
}

fn merge_map(
    node: Option<&Node>,
    live: &Map<String, Value>,
    patch: &Map<String, Value>,
) -> Result<Map<String, Value>, String> {
    match patch.get(PATCH).map(Value::as_str) {
        None | Some(Some("merge")) => {}
        Some(Some("replace")) => return fresh(node, patch),
        Some(Some("delete")) => return Ok(Map::new()),
        Some(other) => return Err(format!("unknown {PATCH} directive {other:?}: use delete, replace or merge")),
    }
    let mut out = live.clone();
    if let Some(keys) = patch.get(RETAIN_KEYS) {
        let keys = keys.as_array().ok_or_else(|| format!("{RETAIN_KEYS} must be a list of field names"))?;
        out.retain(|name, _| keys.iter().any(|key| key == name));
    }
    for (directive, values) in patch {
        if let Some(list) = directive.strip_prefix(DELETE_PRIMITIVES) {
            let values = values.as_array().ok_or_else(|| format!("{directive} must be a list"))?;
            if let Some(items) = out.get_mut(list).and_then(Value::as_array_mut) {
                items.retain(|item| !values.contains(item));
            }
        }
    }
    for (name, value) in patch.iter().filter(|(name, _)| !is_directive(name)) {
        let (child_node, strategy) = child_of(node, name);
        if value.is_null() {
            out.shift_remove(name);
            continue;
        }
        let deleted = value.get(PATCH).and_then(Value::as_str) == Some("delete");
        if deleted {
            out.shift_remove(name);
            continue;
        }
        let merged = match (value, out.get(name)) {
            (Value::Object(value), Some(Value::Object(existing))) if !strategy.replace => {
                Value::Object(merge_map(child_node, existing, value)?)
            }
            (Value::Object(value), _) => Value::Object(fresh(child_node, value)?),
            (Value::Array(value), existing) => {
                let existing = existing.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
                let order = patch.get(&format!("{ORDER}{name}")).and_then(Value::as_array);
                Value::Array(merge_list(name, child_node, &strategy, existing, value, order.map(Vec::as_slice))?)
            }
            (value, _) => value.clone(),
        };
        out.insert(name.clone(), merged);
    }
    // An order without items in the patch only moves what is there.
    for (directive, order) in patch {
        let Some(name) = directive.strip_prefix(ORDER).filter(|name| !patch.contains_key(*name)) else { continue };
        let order = order.as_array().ok_or_else(|| format!("{directive} must be a list"))?;
        let (_, strategy) = child_of(node, name);
        if let Some(Value::Array(items)) = out.get_mut(name) {
            let server = items.clone();
            *items = reorder(&strategy, std::mem::take(items), &server, order);
        }
    }
    Ok(out)
}

/// A patch object where nothing was: its directives are taken out.
fn fresh(node: Option<&Node>, patch: &Map<String, Value>) -> Result<Map<String, Value>, String> {
    let plain: Map<String, Value> = patch
        .iter()
        .filter(|(name, value)| !is_directive(name) && !value.is_null())
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    merge_map(node, &Map::new(), &plain)
}

fn merge_list(
    name: &str,
    node: Option<&Node>,
    strategy: &Patch,
    live: &[Value],
    patch: &[Value],
    order: Option<&[Value]>,
) -> Result<Vec<Value>, String> {
    let item_node = node.and_then(|n| n.items.as_deref());
    let directive = |item: &Value| item.get(PATCH).and_then(Value::as_str).map(str::to_owned);
    let replaces = patch.iter().any(|item| directive(item).as_deref() == Some("replace"));
    if replaces || !strategy.merge {
        let mut out = Vec::new();
        for item in patch {
            if replaces && directive(item).is_some() && item.as_object().is_some_and(|map| map.len() == 1) {
                continue;
            }
            out.push(match item {
                Value::Object(map) => Value::Object(fresh(item_node, map)?),
                other => other.clone(),
            });
        }
        return Ok(out);
    }
    let mut out = live.to_vec();
    let Some(key) = strategy.merge_key.as_deref() else {
        // A list of scalars, merged as a set.
        for item in patch {
            if !out.contains(item) {
                out.push(item.clone());
            }
        }
        return Ok(reorder(strategy, out, live, order.unwrap_or(patch)));
    };
    for item in patch {
        let Value::Object(item) = item else {
            return Err(format!("items of {name} must be objects that are told apart by {key}"));
        };
        let Some(identity) = item.get(key) else {
            return Err(format!("map: {} does not contain declared merge key: {key}", Value::Object(item.clone())));
        };
        let place = out.iter().position(|existing| existing.get(key) == Some(identity));
        if item.get(PATCH).and_then(Value::as_str) == Some("delete") {
            out.retain(|existing| existing.get(key) != Some(identity));
            continue;
        }
        match place.and_then(|place| out.get_mut(place)) {
            Some(existing) => {
                let empty = Map::new();
                *existing = Value::Object(merge_map(item_node, existing.as_object().unwrap_or(&empty), item)?);
            }
            None => out.push(Value::Object(fresh(item_node, item)?)),
        }
    }
    // Without an order of its own the patch's items are the order, as upstream has it.
    Ok(reorder(strategy, out, live, order.unwrap_or(patch)))
}

/// Puts the items that `order` names into its order; those that it does not name keep their place among the others as the
/// server had it.
fn reorder(strategy: &Patch, merged: Vec<Value>, server: &[Value], order: &[Value]) -> Vec<Value> {
    let identity = |item: &Value| -> Value {
        match strategy.merge_key.as_deref() {
            Some(key) => item.get(key).cloned().unwrap_or_default(),
            None => item.clone(),
        }
    };
    let place = |list: &[Value], id: &Value| list.iter().position(|item| identity(item) == *id);
    let (mut ordered, mut others): (Vec<Value>, Vec<Value>) =
        merged.into_iter().partition(|item| place(order, &identity(item)).is_some());
    ordered.sort_by_key(|item| place(order, &identity(item)));
    others.sort_by_key(|item| place(server, &identity(item)));
    let (mut ordered, mut others) = (ordered.into_iter().peekable(), others.into_iter().peekable());
    let mut out = Vec::new();
    loop {
        let other_first = match (others.peek(), ordered.peek()) {
            (None, None) => return out,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (Some(other), Some(item)) => match (place(server, &identity(other)), place(server, &identity(item))) {
                (Some(other), Some(item)) => other < item,
                _ => false,
            },
        };
        out.extend(if other_first { others.next() } else { ordered.next() });
    }
}
