//! Removing what the schema does not know, and filling in what it has defaults for.

use super::error::join;
use super::node::{Additional, Node};
use serde_json::{Map, Value};

/// Removes unknown fields below `value` and adds their paths to `removed`.
pub(crate) fn prune(node: &Node, value: &mut Value, path: &str, removed: &mut Vec<String>) {
    match value {
        Value::Object(map) => prune_map(node, map, path, removed),
        Value::Array(items) => {
            let Some(item_node) = &node.items else { return };
            for (index, item) in items.iter_mut().enumerate() {
                prune(item_node, item, &format!("{path}[{index}]"), removed);
            }
        }
        _ => {}
    }
}

fn prune_map(node: &Node, map: &mut Map<String, Value>, path: &str, removed: &mut Vec<String>) {
    let keep = node.keeps_unknown();
    map.retain(|name, child| {
        if let Some(field) = node.fields.get(name) {
            if node.typed && child.is_null() {
                return false;
            }
            prune(&field.node, child, &join(path, name), removed);
            return true;
        }
        match &node.additional {
            Additional::Schema(schema) => {
                prune(schema, child, &join(path, name), removed);
                true
            }
            _ if keep => true,
            _ => {
                removed.push(join(path, name));
                false
            }
        }
    });
}

/// Applies defaults below `value`. A null where the schema allows none is dropped, or replaced by the default.
pub(crate) fn default(node: &Node, value: &mut Value) {
    match value {
        Value::Object(map) => default_map(node, map),
        Value::Array(items) => {
            let Some(item_node) = &node.items else { return };
            for item in items {
                if item.is_null()
                    && !item_node.nullable
                    && let Some(fallback) = &item_node.default
                {
                    *item = fallback.clone();
                }
                default(item_node, item);
            }
        }
        _ => {}
    }
}

fn default_map(node: &Node, map: &mut Map<String, Value>) {
    map.retain(|name, child| {
        !child.is_null() || node.child(name).is_none_or(|schema| schema.nullable || schema.default.is_some())
    });
    if node.defaults_below {
        for (name, field) in &node.fields {
            let Some(fallback) = &field.node.default else { continue };
            match map.get_mut(name) {
                None => {
                    map.insert(name.clone(), fallback.clone());
                }
                Some(child) if child.is_null() && !field.node.nullable => *child = fallback.clone(),
                Some(_) => {}
            }
        }
    }
    for (name, child) in map.iter_mut() {
        let Some(schema) = node.child(name) else { continue };
        if child.is_null()
            && !schema.nullable
            && let Some(fallback) = &schema.default
        {
            *child = fallback.clone();
        }
        default(schema, child);
    }
}
