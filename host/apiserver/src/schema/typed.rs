//! Objects seen through their schema as sets of paths: which there are, how two objects differ, how one is laid over
//! another, how paths are taken out. The operations server-side apply is made of.
//!
//! The semantics are those of structured-merge-diff: lists are atomic unless the schema gives their items an identity,
//! maps and structs are granular unless the schema says atomic, and where there is no schema maps are granular and lists
//! atomic.

use super::fields::{Element, Set};
use super::node::{Additional, ListType, Node};
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::sync::LazyLock;

static EMPTY: LazyLock<Value> = LazyLock::new(|| Value::Object(Map::new()));

/// How a value is taken apart.
#[derive(Clone, Copy)]
enum Shape<'a> {
    /// One value: scalars, atomic lists, atomic maps.
    Leaf,
    Map,
    Set,
    Keyed(&'a [String]),
}

fn shape<'a>(node: Option<&'a Node>, value: &Value) -> Shape<'a> {
    match value {
        Value::Object(_) => match node {
            Some(node) if node.atomic || node.ty.is_scalar() => Shape::Leaf,
            _ => Shape::Map,
        },
        Value::Array(_) => match node.map(|n| &n.list) {
            Some(ListType::Set) => Shape::Set,
            Some(ListType::Map(keys)) => Shape::Keyed(keys),
            _ => Shape::Leaf,
        },
        _ => Shape::Leaf,
    }
}

/// The schema one step further, and whether the step is a declared field of a struct.
pub(crate) fn step<'a>(node: Option<&'a Node>, element: &Element) -> (Option<&'a Node>, bool) {
    let Some(node) = node else { return (None, false) };
    match element {
        Element::Field(name) => match (node.fields.get(name), &node.additional) {
            (Some(field), _) => (Some(&field.node), true),
            (None, Additional::Schema(schema)) => (Some(schema), false),
            _ => (None, false),
        },
        _ => (node.items.as_deref(), false),
    }
}

/// The identity of a list's item.
fn identity(shape: Shape<'_>, node: Option<&Node>, item: &Value) -> Result<Element, String> {
    let Shape::Keyed(keys) = shape else { return Ok(Element::Value(item.clone())) };
    let item_node = node.and_then(|n| n.items.as_deref());
    let mut found = Vec::with_capacity(keys.len());
    for key in keys {
        let fallback = || item_node.and_then(|n| n.fields.get(key)).and_then(|field| field.node.default.as_ref());
        if let Some(value) = item.get(key).filter(|value| !value.is_null()).or_else(fallback) {
            found.push((key.clone(), value.clone()));
        }
    }
    if found.is_empty() {
        return Err(format!(
            "associative list with keys has an element that omits all key fields [{}] (and doesn't have default values for any \
             key fields)",
            keys.iter().map(|key| format!("{key:?}")).collect::<Vec<_>>().join(" ")
        ));
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(Element::Key(found))
}

/// All paths of a value. An item without its keys, or with the keys of another, is an error that names the list.
pub(crate) fn to_set(node: Option<&Node>, value: &Value, path: &str) -> Result<Set, String> {
    paths(node, value, path, false)
}

/// All paths of a value, empty lists among them; items without an identity are passed over.
pub(crate) fn every_path(node: Option<&Node>, value: &Value) -> Set {
    paths(node, value, "", true).unwrap_or_default()
}

fn paths(node: Option<&Node>, value: &Value, path: &str, lenient: bool) -> Result<Set, String> {
    let mut out = Set::default();
    let shape = shape(node, value);
    match (shape, value) {
        (Shape::Map, Value::Object(map)) => {
            for (name, child) in map {
                let element = Element::field(name);
                let (child_node, named) = step(node, &element);
                let below = paths(child_node, child, &format!("{path}.{name}"), lenient)?;
                let leaf = matches!(self::shape(child_node, child), Shape::Leaf);
                let empty = match child {
                    Value::Object(map) => map.is_empty(),
                    Value::Array(items) => lenient && items.is_empty(),
                    _ => false,
                };
                if leaf || empty || !named {
                    out.add(element.clone());
                }
                out.put_below(element, below);
            }
        }
        (Shape::Set | Shape::Keyed(_), Value::Array(items)) => {
            for (index, item) in items.iter().enumerate() {
                let element = match identity(shape, node, item) {
                    Err(_) if lenient => continue,
                    found => found.map_err(|error| format!("{path}: element {index}: {error}"))?,
                };
                if out.has(&element) && !lenient {
                    return Err(format!("{path}: duplicate entries for key {element}"));
                }
                let (child_node, _) = step(node, &element);
                let below = paths(child_node, item, &format!("{path}{element}"), lenient)?;
                out.add(element.clone());
                out.put_below(element, below);
            }
        }
        _ => {}
    }
    Ok(out)
}

/// How two objects differ.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    pub added: Set,
    pub modified: Set,
    pub removed: Set,
}

impl Changes {
    /// What the newer object brought: added and modified paths.
    pub(crate) fn brought(&self) -> Set {
        self.added.union(&self.modified)
    }

    fn put_below(&mut self, element: &Element, below: Changes) {
        self.added.put_below(element.clone(), below.added);
        self.modified.put_below(element.clone(), below.modified);
        self.removed.put_below(element.clone(), below.removed);
    }
}

/// Compares two values of one schema.
pub(crate) fn compare(node: Option<&Node>, old: &Value, new: &Value) -> Changes {
    let mut out = Changes::default();
    descend(node, Some(old), Some(new), &mut out);
    out
}

/// A value that can be taken apart, and has something in it.
fn parts<'a>(node: Option<&Node>, value: Option<&'a Value>) -> Option<&'a Value> {
    value.filter(|value| {
        let empty = match value {
            Value::Object(map) => map.is_empty(),
            Value::Array(items) => items.is_empty(),
            _ => true,
        };
        !empty && !matches!(shape(node, value), Shape::Leaf)
    })
}

fn compare_at(node: Option<&Node>, old: Option<&Value>, new: Option<&Value>, element: Element, out: &mut Changes) {
    let (old_parts, new_parts) = (parts(node, old), parts(node, new));
    if old_parts.is_some() || new_parts.is_some() {
        if old == new {
            return;
        }
        // An empty struct still has its structs that are always there.
        let container = |value: Option<&Value>| value.is_some_and(|v| !matches!(shape(node, v), Shape::Leaf));
        let mut below = Changes::default();
        descend(node, old.filter(|_| container(old)), new.filter(|_| container(new)), &mut below);
        out.put_below(&element, below);
    }
    match (old, new) {
        (None, None) => {}
        (None, Some(_)) => out.added.add(element),
        (Some(_), None) => out.removed.add(element),
        (Some(old_value), Some(new_value)) => {
            // Two containers differ by what is in them; anything else is replaced as a whole.
            let containers = |value: &Value| value.is_null() || !matches!(shape(node, value), Shape::Leaf);
            let inside = (old_parts.is_some() || new_parts.is_some()) && containers(old_value) && containers(new_value);
            if !inside && old_value != new_value {
                out.modified.add(element);
            }
        }
    }
}

fn descend(node: Option<&Node>, old: Option<&Value>, new: Option<&Value>, out: &mut Changes) {
    let Some(sample) = parts(node, new).or(parts(node, old)) else { return };
    match sample {
        Value::Object(_) => {
            let (old_map, new_map) = (old.and_then(Value::as_object), new.and_then(Value::as_object));
            let known = |name: &str| old_map.is_some_and(|map| map.contains_key(name));
            let names = old_map
                .into_iter()
                .flat_map(Map::keys)
                .chain(new_map.into_iter().flat_map(Map::keys).filter(|name| !known(name)));
            for name in names {
                let element = Element::field(name);
                let (child_node, _) = step(node, &element);
                let always = node.and_then(|n| n.fields.get(name)).is_some_and(|field| field.always);
                let old_child = old_map.and_then(|map| present(map, name, always));
                let new_child = new_map.and_then(|map| present(map, name, always));
                compare_at(child_node, old_child, new_child, element, out);
            }
        }
        Value::Array(_) => {
            let shape = shape(node, sample);
            let index = |list: Option<&'_ Value>| -> Vec<(Element, usize)> {
                let items = list.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
                items
                    .iter()
                    .enumerate()
                    .filter_map(|(place, item)| Some((identity(shape, node, item).ok()?, place)))
                    .collect()
            };
            let item = |list: Option<&'_ Value>, place: usize| -> Option<Value> {
                list.and_then(Value::as_array).and_then(|items| items.get(place)).cloned()
            };
            let (old_index, new_index) = (index(old), index(new));
            let places: HashMap<String, usize> =
                new_index.iter().map(|(element, place)| (element.to_string(), *place)).collect();
            let known: HashMap<String, usize> =
                old_index.iter().map(|(element, place)| (element.to_string(), *place)).collect();
            let elements = old_index
                .iter()
                .chain(new_index.iter().filter(|(element, _)| !known.contains_key(&element.to_string())))
                .map(|(element, _)| element);
            for element in elements {
                let name = element.to_string();
                let old_item = known.get(&name).and_then(|place| item(old, *place));
                let new_item = places.get(&name).and_then(|place| item(new, *place));
                let (child_node, _) = step(node, element);
                compare_at(child_node, old_item.as_ref(), new_item.as_ref(), element.clone(), out);
            }
        }
        _ => {}
    }
}

/// A field of a struct; a struct that is always there is empty when it is not written.
fn present<'a>(map: &'a Map<String, Value>, name: &str, always: bool) -> Option<&'a Value> {
    match map.get(name) {
        None if always => Some(&EMPTY),
        found => found,
    }
}

/// Lays `applied` over `live`.
pub(crate) fn merge(node: Option<&Node>, live: &Value, applied: &Value) -> Value {
    let shape = shape(node, applied);
    match (shape, live, applied) {
        (Shape::Map, Value::Object(live), Value::Object(applied)) => {
            let mut out = live.clone();
            for (name, value) in applied {
                let (child_node, _) = step(node, &Element::field(name));
                match out.get_mut(name) {
                    Some(existing) => *existing = merge(child_node, existing, value),
                    None => {
                        out.insert(name.clone(), value.clone());
                    }
                }
            }
            Value::Object(out)
        }
        (Shape::Set | Shape::Keyed(_), Value::Array(live), Value::Array(applied)) => {
            Value::Array(merge_lists(shape, node, live, applied))
        }
        _ => applied.clone(),
    }
}

/// Merges lists whose items have identities. Items of both stand in the order of `applied`; items that only `live` has
/// keep their place among those around them.
fn merge_lists(shape: Shape<'_>, node: Option<&Node>, live: &[Value], applied: &[Value]) -> Vec<Value> {
    let name = |item: &Value| identity(shape, node, item).map(|element| element.to_string()).unwrap_or_default();
    let live_names: Vec<String> = live.iter().map(name).collect();
    let applied_names: Vec<String> = applied.iter().map(name).collect();
    let in_live: HashMap<&str, usize> = live_names.iter().enumerate().map(|(i, n)| (n.as_str(), i)).collect();
    let in_applied: HashMap<&str, usize> = applied_names.iter().enumerate().map(|(i, n)| (n.as_str(), i)).collect();
    let item_node = node.and_then(|n| n.items.as_deref());
    // The items of both, in the order of `applied`; the first that has not been put out yet.
    let mut shared = applied_names.iter().filter(|n| in_live.contains_key(n.as_str()));
    let mut next_shared = shared.next();
    let mut done: std::collections::HashSet<&str> = std::collections::HashSet::new();
    let mut out = Vec::with_capacity(live.len().max(applied.len()));
    let (mut l, mut a) = (0, 0);
    while l < live.len() || a < applied.len() {
        let left = live_names.get(l);
        let right = applied_names.get(a);
        if let (Some(left), Some(right)) = (left, right)
            && left != right
            && in_applied.contains_key(left.as_str())
            && next_shared.is_some_and(|next| next != left)
        {
            // In both, but its turn comes later, or has been.
            l += 1;
            continue;
        }
        if let (Some(left), Some(item)) = (left, live.get(l)) {
            if !in_applied.contains_key(left.as_str()) {
                out.push(item.clone());
                l += 1;
                continue;
            }
            if right == Some(left) || done.contains(left.as_str()) {
                l += 1;
            }
            if done.contains(left.as_str()) {
                continue;
            }
        }
        if let (Some(right), Some(item)) = (right, applied.get(a)) {
            let merged = match in_live.get(right.as_str()).and_then(|place| live.get(*place)) {
                Some(existing) => merge(item_node, existing, item),
                None => item.clone(),
            };
            out.push(merged);
            done.insert(right);
            a += 1;
            if next_shared == Some(right) {
                next_shared = shared.next();
            }
        }
    }
    out
}

/// Takes the paths of `gone` out of a value. A container that becomes empty by this goes, too, unless it is one of
/// `owned`.
pub(crate) fn remove(node: Option<&Node>, value: &Value, gone: &Set, owned: &Set) -> Option<Value> {
    static NOTHING: LazyLock<Set> = LazyLock::new(Set::default);
    let shape = shape(node, value);
    let rest = |element: &Element, child: &Value| -> Option<Value> {
        if gone.has(element) {
            return None;
        }
        let Some(below) = gone.below(element) else { return Some(child.clone()) };
        let child_owned = owned.below(element).unwrap_or(&NOTHING);
        remove(step(node, element).0, child, below, child_owned).or_else(|| {
            owned.has(element).then(|| if child.is_array() { Value::Array(Vec::new()) } else { EMPTY.clone() })
        })
    };
    match (shape, value) {
        (Shape::Map, Value::Object(map)) => {
            let out: Map<String, Value> = map
                .iter()
                .filter_map(|(name, child)| Some((name.clone(), rest(&Element::field(name), child)?)))
                .collect();
            (!out.is_empty() || map.is_empty()).then_some(Value::Object(out))
        }
        (Shape::Set | Shape::Keyed(_), Value::Array(items)) => {
            let out: Vec<Value> = items
                .iter()
                .filter_map(|item| match identity(shape, node, item) {
                    Ok(element) => rest(&element, item),
                    Err(_) => Some(item.clone()),
                })
                .collect();
            (!out.is_empty() || items.is_empty()).then_some(Value::Array(out))
        }
        _ => Some(value.clone()),
    }
}

/// Takes out the sets and keyed lists that a configuration has with nothing in them and that lost their last items to it:
/// upstream leaves no value there, while a list that is replaced as a whole stays, empty.
pub(crate) fn drop_emptied(node: Option<&Node>, config: &Value, live: &Value, object: &mut Value) {
    let (Value::Object(config), Some(object)) = (config, object.as_object_mut()) else { return };
    for (name, wanted) in config {
        let Some(old) = live.get(name) else { continue };
        let (child_node, _) = step(node, &Element::field(name));
        let associative = matches!(shape(child_node, wanted), Shape::Set | Shape::Keyed(_));
        let empty = |value: Option<&Value>| value.and_then(Value::as_array).is_some_and(Vec::is_empty);
        if associative && empty(Some(wanted)) && !empty(Some(old)) && empty(object.get(name)) {
            object.shift_remove(name);
        } else if let Some(new) = object.get_mut(name) {
            drop_emptied(child_node, wanted, old, new);
        }
    }
}
