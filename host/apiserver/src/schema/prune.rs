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

/// Removes empty lists and maps from what is of a Go type with `omitempty`: the types of built-in kinds, and metadata.
pub(crate) fn drop_empty(node: &Node, value: &mut Value) {
    match value {
        Value::Object(map) if node.typed => {
            map.retain(|name, child| {
                let Some(field) = node.fields.get(name) else { return true };
                let empty = match child {
                    Value::Array(items) => items.is_empty(),
                    // A struct without fields is still a struct: `emptyDir: {}`.
                    Value::Object(fields) => {
                        fields.is_empty() && matches!(field.node.additional, Additional::Schema(_))
                    }
                    _ => false,
                };
                let required = node.checks.as_ref().is_some_and(|checks| checks.required.contains(name));
                // An empty list of managed fields means something: that they are to be forgotten.
                !empty || required || name == "rules" || name == "managedFields"
            });
            for (name, child) in map.iter_mut() {
                if let Some(schema) = node.child(name) {
                    drop_empty(schema, child);
                }
            }
        }
        Value::Object(map) => {
            if let (Some(schema), Some(child)) = (node.child("metadata"), map.get_mut("metadata")) {
                drop_empty(schema, child);
            }
        }
        Value::Array(items) if node.items.as_ref().is_some_and(|items| items.typed) => {
            let Some(item_node) = &node.items else { return };
            items.iter_mut().for_each(|item| drop_empty(item_node, item));
        }
        _ => {}
    }
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
