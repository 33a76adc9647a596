//! The compiled form of a structural schema: one tree that pruning, defaulting, validation, CEL, server-side apply and
//! strategic merge all walk.

use super::cel::Rule;
use regex::{Regex, RegexBuilder};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, Weak};

/// The JSON type a node asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    Object,
    Array,
    String,
    Integer,
    Number,
    Boolean,
    /// `x-kubernetes-int-or-string`.
    IntOrString,
    /// No type: anything (only with `x-kubernetes-preserve-unknown-fields`).
    Any,
}

impl Type {
    pub(crate) fn parse(name: &str) -> Option<Type> {
        Some(match name {
            "object" => Type::Object,
            "array" => Type::Array,
            "string" => Type::String,
            "integer" => Type::Integer,
            "number" => Type::Number,
            "boolean" => Type::Boolean,
            _ => return None,
        })
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Type::Object => "object",
            Type::Array => "array",
            Type::String => "string",
            Type::Integer => "integer",
            Type::Number => "number",
            Type::Boolean => "boolean",
            Type::IntOrString => "integer,string",
            Type::Any => "",
        }
    }

    /// Whether a value of this type has no fields and no items.
    pub(crate) fn is_scalar(self) -> bool {
        !matches!(self, Type::Object | Type::Array | Type::Any)
    }
}

/// The JSON type of a value, in the words of the API server.
pub(crate) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// How the items of a list are identified (`x-kubernetes-list-type`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum ListType {
    /// The list is one value.
    #[default]
    Atomic,
    /// Each item is its own identity.
    Set,
    /// These fields identify an item.
    Map(Vec<String>),
}

/// What may stand in an object beside its declared fields.
#[derive(Clone, Debug, Default)]
pub(crate) enum Additional {
    /// Nothing: unknown fields are pruned.
    #[default]
    None,
    /// Anything (`additionalProperties: true`).
    Any,
    /// Values of this schema: the object is a map.
    Schema(Arc<Node>),
}

/// `x-kubernetes-patch-strategy` and `x-kubernetes-patch-merge-key` of a field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Patch {
    pub merge: bool,
    pub replace: bool,
    pub retain_keys: bool,
    pub merge_key: Option<String>,
}

/// A declared field of an object.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    pub node: Arc<Node>,
    pub patch: Patch,
    /// In the typed form of a built-in kind this struct is always there, so its appearance is nobody's doing
    /// (a Go struct that is not a pointer).
    pub always: bool,
}

impl Field {
    pub(crate) fn of(node: Arc<Node>) -> Field {
        Field { node, patch: Patch::default(), always: false }
    }
}

/// One place in a schema.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub ty: Type,
    pub nullable: bool,
    pub fields: BTreeMap<String, Field>,
    pub additional: Additional,
    pub items: Option<Arc<Node>>,
    pub preserve: bool,
    pub embedded: bool,
    pub default: Option<Value>,
    pub checks: Option<Box<Checks>>,
    pub rules: Vec<Rule>,
    pub list: ListType,
    /// `x-kubernetes-map-type: atomic`.
    pub atomic: bool,
    /// A struct of a built-in kind: nulls mean absence.
    pub typed: bool,
    /// A default is here or below.
    pub defaults_below: bool,
    /// A CEL rule is here or below.
    pub rules_below: bool,
}

impl Node {
    pub(crate) fn of(ty: Type) -> Node {
        Node {
            ty,
            nullable: false,
            fields: BTreeMap::new(),
            additional: Additional::None,
            items: None,
            preserve: false,
            embedded: false,
            default: None,
            checks: None,
            rules: Vec::new(),
            list: ListType::Atomic,
            atomic: false,
            typed: false,
            defaults_below: false,
            rules_below: false,
        }
    }

    /// Keeps and accepts everything.
    pub(crate) fn any() -> Node {
        Node { preserve: true, nullable: true, ..Node::of(Type::Any) }
    }

    /// The schema of a field of an object, declared or not.
    pub(crate) fn child(&self, name: &str) -> Option<&Node> {
        if let Some(field) = self.fields.get(name) {
            return Some(&field.node);
        }
        match &self.additional {
            Additional::Schema(node) => Some(node),
            _ => None,
        }
    }

    /// Whether fields that nobody declared are kept.
    pub(crate) fn keeps_unknown(&self) -> bool {
        self.preserve || !matches!(self.additional, Additional::None)
    }

    /// Notes whether defaults and rules are to be found here or below; children must be finished.
    pub(crate) fn finish(mut self) -> Node {
        let mut defaults = self.default.is_some();
        let mut rules = !self.rules.is_empty();
        let additional = match &self.additional {
            Additional::Schema(node) => Some(node),
            _ => None,
        };
        for child in self.fields.values().map(|f| &f.node).chain(additional).chain(&self.items) {
            defaults |= child.defaults_below;
            rules |= child.rules_below;
        }
        self.defaults_below = defaults;
        self.rules_below = rules;
        self
    }
}

/// A regular expression, shared by all schemas that use the same one.
#[derive(Clone, Debug)]
pub(crate) struct Pattern(Arc<Regex>);

impl Pattern {
    /// Compiles (or finds) a pattern. The error is the regex engine's.
    pub(crate) fn new(source: &str) -> Result<Pattern, String> {
        static KNOWN: Mutex<Option<HashMap<String, Weak<Regex>>>> = Mutex::new(None);
        let mut guard = KNOWN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let known = guard.get_or_insert_with(HashMap::new);
        if let Some(regex) = known.get(source).and_then(Weak::upgrade) {
            return Ok(Pattern(regex));
        }
        // A schema comes from whoever writes a provider: what its patterns may take is bounded.
        let regex = RegexBuilder::new(source).size_limit(1 << 20).dfa_size_limit(1 << 17).build();
        let regex = Arc::new(regex.map_err(|error| error.to_string())?);
        if known.len().is_power_of_two() {
            known.retain(|_, regex| regex.strong_count() > 0);
        }
        known.insert(source.to_owned(), Arc::downgrade(&regex));
        Ok(Pattern(regex))
    }

    pub(crate) fn is_match(&self, text: &str) -> bool {
        self.0.is_match(text)
    }

    pub(crate) fn source(&self) -> &str {
        self.0.as_str()
    }
}

/// Value validations: everything that a structural schema may also say inside `allOf`, `anyOf`, `oneOf` and `not`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Checks {
    /// Types, only inside the junctors (the int-or-string idiom).
    pub types: Vec<Type>,
    pub format: Option<String>,
    pub minimum: Option<(f64, bool)>,
    pub maximum: Option<(f64, bool)>,
    pub multiple_of: Option<f64>,
    pub min_length: Option<u64>,
    pub max_length: Option<u64>,
    pub pattern: Option<Pattern>,
    pub min_items: Option<u64>,
    pub max_items: Option<u64>,
    pub unique_items: bool,
    pub min_properties: Option<u64>,
    pub max_properties: Option<u64>,
    pub required: Vec<String>,
    pub allowed: Vec<Value>,
    pub all_of: Vec<Checks>,
    pub any_of: Vec<Checks>,
    pub one_of: Vec<Checks>,
    pub not: Option<Box<Checks>>,
    /// Nested, only inside the junctors.
    pub properties: Vec<(String, Checks)>,
    pub additional: Option<Box<Checks>>,
    pub items: Option<Box<Checks>>,
}

impl Checks {
    /// Whether nothing is checked.
    pub(crate) fn is_empty(&self) -> bool {
        let Checks {
            types,
            format,
            minimum,
            maximum,
            multiple_of,
            min_length,
            max_length,
            pattern,
            min_items,
            max_items,
            unique_items,
            min_properties,
            max_properties,
            required,
            allowed,
            all_of,
            any_of,
            one_of,
            not,
            properties,
            additional,
            items,
        } = self;
        types.is_empty()
            && format.is_none()
            && minimum.is_none()
            && maximum.is_none()
            && multiple_of.is_none()
            && min_length.is_none()
            && max_length.is_none()
            && pattern.is_none()
            && min_items.is_none()
            && max_items.is_none()
            && !unique_items
            && min_properties.is_none()
            && max_properties.is_none()
            && required.is_empty()
            && allowed.is_empty()
            && all_of.is_empty()
            && any_of.is_empty()
            && one_of.is_empty()
            && not.is_none()
            && properties.is_empty()
            && additional.is_none()
            && items.is_none()
    }
}
