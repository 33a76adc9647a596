//! Sets of field paths and their form in `managedFields` (FieldsV1).
//!
//! A path is a sequence of elements: a field's name (`f:`), the keys of a list item (`k:`), the value of a set's item
//! (`v:`) or an index (`i:`). A set holds paths; a path with others below it is marked by `.`.

use super::error::quote;
use super::node::Node;
use serde_json::{Map, Value};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// One step of a path.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Element {
    /// The field of an object, or the key of a map.
    Field(String),
    /// The item of a list whose fields have these values, in order of their names.
    Key(Vec<(String, Value)>),
    /// The item of a set.
    Value(Value),
    /// The item at a place. Only read from foreign data; never made here.
    Index(i64),
}

impl Eq for Element {}

impl PartialOrd for Element {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Element {
    fn cmp(&self, other: &Self) -> Ordering {
        let rank = |element: &Element| match element {
            Element::Field(_) => 0,
            Element::Key(_) => 1,
            Element::Value(_) => 2,
            Element::Index(_) => 3,
        };
        match (self, other) {
            (Element::Field(a), Element::Field(b)) => a.cmp(b),
            (Element::Key(a), Element::Key(b)) => {
                for ((name_a, value_a), (name_b, value_b)) in a.iter().zip(b) {
                    let order = name_a.cmp(name_b).then_with(|| compare(value_a, value_b));
                    if order != Ordering::Equal {
                        return order;
                    }
                }
                a.len().cmp(&b.len())
            }
            (Element::Value(a), Element::Value(b)) => compare(a, b),
            (Element::Index(a), Element::Index(b)) => a.cmp(b),
            (a, b) => rank(a).cmp(&rank(b)),
        }
    }
}

/// A total order of JSON values: numbers, then texts, then the rest by their text.
fn compare(a: &Value, b: &Value) -> Ordering {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => {
            let (x, y) = (x.as_f64().unwrap_or_default(), y.as_f64().unwrap_or_default());
            x.total_cmp(&y)
        }
        (Value::Number(_), _) => Ordering::Less,
        (_, Value::Number(_)) => Ordering::Greater,
        (Value::String(x), Value::String(y)) => x.cmp(y),
        (Value::String(_), _) => Ordering::Less,
        (_, Value::String(_)) => Ordering::Greater,
        (a, b) => a.to_string().cmp(&b.to_string()),
    }
}

impl Element {
    pub(crate) fn field(name: &str) -> Element {
        Element::Field(name.to_owned())
    }

    fn encode(&self) -> String {
        match self {
            Element::Field(name) => format!("f:{name}"),
            Element::Key(keys) => {
                let map: Map<String, Value> = keys.iter().cloned().collect();
                format!("k:{}", Value::Object(map))
            }
            Element::Value(value) => format!("v:{value}"),
            Element::Index(index) => format!("i:{index}"),
        }
    }

    fn decode(text: &str) -> Option<Element> {
        let (kind, rest) = text.split_at_checked(2)?;
        Some(match kind {
            "f:" => Element::field(rest),
            "k:" => {
                let Ok(Value::Object(map)) = serde_json::from_str(rest) else { return None };
                let mut keys: Vec<(String, Value)> = map.into_iter().collect();
                keys.sort_by(|a, b| a.0.cmp(&b.0));
                Element::Key(keys)
            }
            "v:" => Element::Value(serde_json::from_str(rest).ok()?),
            "i:" => Element::Index(rest.parse().ok()?),
            _ => return None,
        })
    }
}

impl std::fmt::Display for Element {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let show = |value: &Value| match value {
            Value::String(text) => quote(text),
            other => other.to_string(),
        };
        match self {
            Element::Field(name) => write!(f, ".{name}"),
            Element::Key(keys) => {
                let keys: Vec<String> = keys.iter().map(|(name, value)| format!("{name}={}", show(value))).collect();
                write!(f, "[{}]", keys.join(","))
            }
            Element::Value(value) => write!(f, "[={}]", show(value)),
            Element::Index(index) => write!(f, "[{index}]"),
        }
    }
}

/// A set of paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Set {
    members: BTreeSet<Element>,
    children: BTreeMap<Element, Set>,
}

impl Set {
    /// The set of these paths, each a list of field names.
    #[cfg(test)]
    pub(crate) fn of(paths: &[&[&str]]) -> Set {
        let mut set = Set::default();
        for path in paths {
            set.insert(&path.iter().map(|name| Element::field(name)).collect::<Vec<_>>());
        }
        set
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.members.is_empty() && self.children.values().all(Set::is_empty)
    }

    pub(crate) fn insert(&mut self, path: &[Element]) {
        match path {
            [] => {}
            [last] => {
                self.members.insert(last.clone());
            }
            [first, rest @ ..] => self.children.entry(first.clone()).or_default().insert(rest),
        }
    }

    /// Adds one element at this level.
    pub(crate) fn add(&mut self, element: Element) {
        self.members.insert(element);
    }

    /// Puts a whole set below an element.
    pub(crate) fn put_below(&mut self, element: Element, below: Set) {
        if !below.is_empty() {
            match self.children.get_mut(&element) {
                Some(set) => *set = set.union(&below),
                None => {
                    self.children.insert(element, below);
                }
            }
        }
    }

    pub(crate) fn has(&self, element: &Element) -> bool {
        self.members.contains(element)
    }

    pub(crate) fn below(&self, element: &Element) -> Option<&Set> {
        self.children.get(element)
    }

    pub(crate) fn union(&self, other: &Set) -> Set {
        let mut out = self.clone();
        out.members.extend(other.members.iter().cloned());
        for (element, set) in &other.children {
            out.put_below(element.clone(), set.clone());
        }
        out
    }

    pub(crate) fn intersection(&self, other: &Set) -> Set {
        let mut out = Set { members: self.members.intersection(&other.members).cloned().collect(), ..Set::default() };
        for (element, set) in &self.children {
            if let Some(theirs) = other.children.get(element) {
                out.put_below(element.clone(), set.intersection(theirs));
            }
        }
        out
    }

    /// The paths that are not in `other`. What is below a removed path stays.
    pub(crate) fn difference(&self, other: &Set) -> Set {
        let mut out = Set { members: self.members.difference(&other.members).cloned().collect(), ..Set::default() };
        for (element, set) in &self.children {
            let rest = match other.children.get(element) {
                Some(theirs) => set.difference(theirs),
                None => set.clone(),
            };
            out.put_below(element.clone(), rest);
        }
        out
    }

    /// The set with every declared field on the way to a path as a path of its own, so that a struct goes when its
    /// last field goes.
    pub(crate) fn with_named_fields(&self, node: Option<&Node>) -> Set {
        let mut out = Set { members: self.members.clone(), ..Set::default() };
        for (element, set) in &self.children {
            let (child, named) = super::typed::step(node, element);
            if named {
                out.members.insert(element.clone());
            }
            out.put_below(element.clone(), set.with_named_fields(child));
        }
        out
    }

    /// All paths, each printed as in `.spec.containers[name="a"].image`.
    pub(crate) fn paths(&self) -> Vec<String> {
        let mut out = Vec::new();
        self.collect("", &mut out);
        out
    }

    /// Paths of one level before those below, as Kubernetes lists them.
    fn collect(&self, prefix: &str, out: &mut Vec<String>) {
        out.extend(self.members.iter().map(|element| format!("{prefix}{element}")));
        for (element, set) in &self.children {
            set.collect(&format!("{prefix}{element}"), out);
        }
    }

    /// Reads FieldsV1. Keys that are no path elements are passed over.
    pub(crate) fn decode(fields: &Value) -> Set {
        let mut out = Set::default();
        for (text, below) in fields.as_object().into_iter().flatten() {
            if text == "." {
                continue;
            }
            let Some(element) = Element::decode(text) else { continue };
            let inner = below.as_object();
            if inner.is_none_or(|map| map.is_empty() || map.contains_key(".")) {
                out.members.insert(element.clone());
            }
            out.put_below(element, Set::decode(below));
        }
        out
    }

    /// Writes FieldsV1, sorted.
    pub(crate) fn encode(&self) -> Value {
        let mut map = Map::new();
        self.encode_into(&mut map);
        Value::Object(map)
    }

    fn encode_into(&self, map: &mut Map<String, Value>) {
        let elements: BTreeSet<&Element> = self.members.iter().chain(self.children.keys()).collect();
        for element in elements {
            let mut inner = Map::new();
            if let Some(set) = self.children.get(element).filter(|set| !set.is_empty()) {
                if self.members.contains(element) {
                    inner.insert(".".to_owned(), Value::Object(Map::new()));
                }
                set.encode_into(&mut inner);
            } else if !self.members.contains(element) {
                continue;
            }
            map.insert(element.encode(), Value::Object(inner));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_v1_survives_a_round_trip() {
        let fields = json!({
            "f:metadata": {"f:labels": {".": {}, "f:app": {}}, "f:finalizers": {".": {}, "v:\"a/b\"": {}}},
            "f:spec": {
                "f:containers": {
                    "k:{\"name\":\"x\"}": {
                        ".": {}, "f:image": {}, "f:name": {},
                        "f:ports": {".": {}, "k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}}},
                    },
                },
                "f:replicas": {},
            },
        });
        let set = Set::decode(&fields);
        assert_eq!(set.encode(), fields);
        assert_eq!(
            set.paths(),
            [
                ".metadata.finalizers",
                ".metadata.labels",
                ".metadata.finalizers[=\"a/b\"]",
                ".metadata.labels.app",
                ".spec.replicas",
                ".spec.containers[name=\"x\"]",
                ".spec.containers[name=\"x\"].image",
                ".spec.containers[name=\"x\"].name",
                ".spec.containers[name=\"x\"].ports",
                ".spec.containers[name=\"x\"].ports[containerPort=80,protocol=\"TCP\"]",
                ".spec.containers[name=\"x\"].ports[containerPort=80,protocol=\"TCP\"].containerPort",
            ]
        );
    }

    #[test]
    fn set_algebra() {
        let a = Set::of(&[&["a"], &["b"], &["b", "c"], &["d", "e"]]);
        let b = Set::of(&[&["b"], &["d", "e"], &["f"]]);
        assert_eq!(a.intersection(&b), Set::of(&[&["b"], &["d", "e"]]));
        assert_eq!(a.difference(&b), Set::of(&[&["a"], &["b", "c"]]));
        assert_eq!(a.union(&b), Set::of(&[&["a"], &["b"], &["b", "c"], &["d", "e"], &["f"]]));
        assert!(a.difference(&a).is_empty());
    }

    #[test]
    fn foreign_keys_do_no_harm() {
        assert!(Set::decode(&json!({"x:y": {}, "k:notjson": {}, "": {}, "é": {}})).is_empty());
        assert!(Set::decode(&json!("text")).is_empty());
    }
}
