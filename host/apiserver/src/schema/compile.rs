//! From a CRD's `openAPIV3Schema` to a compiled tree, with every place that is not structural reported.
//!
//! The rules are those of the apiextensions API: a type everywhere, `properties` or `additionalProperties` but not both,
//! nothing but value validations inside `allOf`, `anyOf`, `oneOf` and `not`, defaults that are valid, list keys that exist.

use super::cel::Rule;
use super::error::{FieldError, join};
use super::node::{Additional, Checks, Field, ListType, Node, Pattern, Type};
use super::prune::prune;
use super::validate::validate_value;
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Schemas nested deeper than this are refused.
const MAX_DEPTH: usize = 100;

/// Where in a schema a node stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Field,
    Item,
}

/// What surrounds the node being compiled.
#[derive(Clone, Copy)]
struct Place<'a> {
    level: Level,
    path: &'a str,
    depth: usize,
    /// Whether a former value can be found for this place (not inside atomic lists and sets).
    correlated: bool,
}

impl Place<'_> {
    fn below<'b>(&self, level: Level, path: &'b str, correlated: bool) -> Place<'b> {
        Place { level, path, depth: self.depth + 1, correlated }
    }
}

/// Compiles a schema whose path is `path` (`openAPIV3Schema`).
pub(crate) fn compile(schema: &Value, path: &str, errors: &mut Vec<FieldError>) -> Node {
    node(schema, Place { level: Level::Root, path, depth: 0, correlated: true }, errors)
}

fn flag(schema: &Map<String, Value>, name: &str) -> bool {
    schema.get(name).and_then(Value::as_bool).unwrap_or(false)
}

fn node(schema: &Value, place: Place<'_>, errors: &mut Vec<FieldError>) -> Node {
    let path = place.path;
    let Some(map) = schema.as_object() else {
        errors.push(FieldError::invalid(path, schema.clone(), "must be a schema object"));
        return Node::any();
    };
    if place.depth > MAX_DEPTH {
        errors.push(FieldError::forbidden(path, format!("schemas may be at most {MAX_DEPTH} levels deep")));
        return Node::any();
    }
    forbidden_words(map, path, errors);

    let int_or_string = flag(map, "x-kubernetes-int-or-string");
    let preserve = flag(map, "x-kubernetes-preserve-unknown-fields");
    let embedded = flag(map, "x-kubernetes-embedded-resource");
    if map.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(false)) {
        errors.push(FieldError::invalid(
            join(path, "x-kubernetes-preserve-unknown-fields"),
            false,
            "must be true or undefined",
        ));
    }
    let ty = node_type(map, place, int_or_string, preserve, errors);
    let mut out = Node { nullable: flag(map, "nullable"), preserve, embedded, ..Node::of(ty) };
    out.atomic = map_type(map, ty, path, errors);
    out.list = list_type(map, ty, path, errors);
    children(map, place, &mut out, errors);
    if embedded {
        embedded_resource(map, &mut out, path, errors);
    }

    let checks = checks(map, schema, path, false, int_or_string, errors);
    required_types(map, &out, path, errors);
    out.checks = (!checks.is_empty()).then(|| Box::new(checks));

    for (index, entry) in array(map, "x-kubernetes-validations").iter().enumerate() {
        let rule_path = format!("{path}.x-kubernetes-validations[{index}]");
        match Rule::compile(entry, &rule_path) {
            Ok(rule) => {
                if rule.uses_old_self() && !place.correlated {
                    errors.push(FieldError::invalid(
                        join(&rule_path, "rule"),
                        entry.get("rule").cloned().unwrap_or_default(),
                        "oldSelf cannot be used here: items of this list cannot be told apart across updates",
                    ));
                }
                out.rules.push(rule);
            }
            Err(found) => errors.extend(found),
        }
    }

    let mut out = out.finish();
    if let Some(fallback) = map.get("default") {
        let mut pruned = fallback.clone();
        let mut unknown = Vec::new();
        prune(&out, &mut pruned, &join(path, "default"), &mut unknown);
        for unknown_path in unknown {
            errors.push(FieldError::invalid(unknown_path, fallback.clone(), "must not have unknown fields"));
        }
        super::prune::default(&out, &mut pruned);
        let mut found = Vec::new();
        validate_value(&out, &pruned, None, &join(path, "default"), &mut found);
        errors.extend(found);
        out.default = Some(fallback.clone());
        out.defaults_below = true;
    }
    out
}

fn array<'a>(map: &'a Map<String, Value>, name: &str) -> &'a [Value] {
    map.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn forbidden_words(map: &Map<String, Value>, path: &str, errors: &mut Vec<FieldError>) {
    for word in ["$ref", "definitions", "dependencies", "id", "patternProperties", "additionalItems"] {
        if map.contains_key(word) {
            errors.push(FieldError::forbidden(join(path, word), format!("{word} is not supported")));
        }
    }
    if map.get("uniqueItems") == Some(&Value::Bool(true)) {
        errors.push(FieldError::forbidden(
            join(path, "uniqueItems"),
            "uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
        ));
    }
    if map.contains_key("properties") && map.contains_key("additionalProperties") {
        errors.push(FieldError::forbidden(
            join(path, "additionalProperties"),
            "additionalProperties and properties are mutual exclusive",
        ));
    }
    if map.get("additionalProperties") == Some(&Value::Bool(false)) {
        errors.push(FieldError::forbidden(
            join(path, "additionalProperties"),
            "additionalProperties cannot be set to false",
        ));
    }
}

fn node_type(
    map: &Map<String, Value>,
    place: Place<'_>,
    int_or_string: bool,
    preserve: bool,
    errors: &mut Vec<FieldError>,
) -> Type {
    let type_path = join(place.path, "type");
    let word = map.get("type").and_then(Value::as_str).unwrap_or_default();
    if map.get("type").is_some_and(|ty| !ty.is_string()) {
        errors.push(FieldError::invalid(
            type_path.as_str(),
            map.get("type").cloned().unwrap_or_default(),
            "must be one type, as a string",
        ));
        return Type::Any;
    }
    if int_or_string {
        if !word.is_empty() {
            errors.push(FieldError::invalid(type_path, word, "must be empty if x-kubernetes-int-or-string is true"));
        }
        if preserve {
            errors.push(FieldError::invalid(
                join(place.path, "x-kubernetes-preserve-unknown-fields"),
                true,
                "must be false if x-kubernetes-int-or-string is true",
            ));
        }
        return Type::IntOrString;
    }
    if word.is_empty() {
        if place.level == Level::Root {
            errors.push(FieldError::required(type_path, "must not be empty at the root"));
            return Type::Object;
        }
        if !preserve {
            errors.push(FieldError::required(
                type_path,
                if place.level == Level::Item {
                    "must not be empty for specified array items"
                } else {
                    "must not be empty for specified object fields"
                },
            ));
        }
        return Type::Any;
    }
    let Some(ty) = Type::parse(word) else {
        errors.push(FieldError::not_supported(
            type_path,
            word,
            ["array", "boolean", "integer", "number", "object", "string"],
        ));
        return Type::Any;
    };
    if place.level == Level::Root && ty != Type::Object {
        errors.push(FieldError::invalid(type_path, word, "must be object at the root"));
        return Type::Object;
    }
    ty
}

fn map_type(map: &Map<String, Value>, ty: Type, path: &str, errors: &mut Vec<FieldError>) -> bool {
    let Some(word) = map.get("x-kubernetes-map-type").and_then(Value::as_str) else { return false };
    if ty != Type::Object {
        errors.push(FieldError::invalid(
            join(path, "type"),
            ty.name(),
            "must be object if x-kubernetes-map-type is specified",
        ));
    }
    if !["atomic", "granular"].contains(&word) {
        errors.push(FieldError::not_supported(join(path, "x-kubernetes-map-type"), word, ["atomic", "granular"]));
    }
    word == "atomic"
}

fn list_type(map: &Map<String, Value>, ty: Type, path: &str, errors: &mut Vec<FieldError>) -> ListType {
    let keys: Vec<String> =
        array(map, "x-kubernetes-list-map-keys").iter().filter_map(Value::as_str).map(str::to_owned).collect();
    let list_path = join(path, "x-kubernetes-list-type");
    let word = map.get("x-kubernetes-list-type").and_then(Value::as_str);
    if word.is_some() && ty != Type::Array {
        errors.push(FieldError::invalid(
            join(path, "type"),
            ty.name(),
            "must be array if x-kubernetes-list-type is specified",
        ));
        return ListType::Atomic;
    }
    if !keys.is_empty() && word != Some("map") {
        errors.push(FieldError::required(list_path, "must be map if x-kubernetes-list-map-keys is non-empty"));
        return ListType::Atomic;
    }
    let empty = Map::new();
    let items = map.get("items").and_then(Value::as_object).unwrap_or(&empty);
    match word {
        None | Some("atomic") => ListType::Atomic,
        Some("set") => {
            let item_type = items.get("type").and_then(Value::as_str);
            for (word, bad) in [("x-kubernetes-list-type", "array"), ("x-kubernetes-map-type", "object")] {
                let atomic = match items.get(word).and_then(Value::as_str) {
                    Some(value) => value == "atomic",
                    None => bad == "array",
                };
                if item_type == Some(bad) && !atomic {
                    errors.push(FieldError::invalid(
                        join(path, &format!("items.{word}")),
                        items.get(word).cloned().unwrap_or_default(),
                        "must be atomic as item of a list with x-kubernetes-list-type=set",
                    ));
                }
            }
            if flag(items, "nullable") {
                errors.push(FieldError::forbidden(
                    join(path, "items.nullable"),
                    "cannot be nullable when x-kubernetes-list-type is set",
                ));
            }
            ListType::Set
        }
        Some("map") => {
            map_keys(&keys, items, path, errors);
            ListType::Map(keys)
        }
        Some(other) => {
            errors.push(FieldError::not_supported(list_path, other, ["atomic", "map", "set"]));
            ListType::Atomic
        }
    }
}

fn map_keys(keys: &[String], items: &Map<String, Value>, path: &str, errors: &mut Vec<FieldError>) {
    let keys_path = join(path, "x-kubernetes-list-map-keys");
    if keys.is_empty() {
        errors.push(FieldError::required(keys_path.as_str(), "must not be empty if x-kubernetes-list-type is map"));
    }
    if items.get("type").and_then(Value::as_str) != Some("object") {
        errors.push(FieldError::invalid(
            join(path, "items.type"),
            items.get("type").cloned().unwrap_or_default(),
            "must be object if parent array's x-kubernetes-list-type is map",
        ));
        return;
    }
    let required = array(items, "required");
    for (index, key) in keys.iter().enumerate() {
        if keys.iter().take(index).any(|earlier| earlier == key) {
            errors.push(FieldError::invalid(keys_path.as_str(), keys.to_vec(), "must not contain duplicate entries"));
        }
        let Some(property) = items.get("properties").and_then(|p| p.get(key)).and_then(Value::as_object) else {
            errors.push(FieldError::invalid(
                keys_path.as_str(),
                keys.to_vec(),
                "entries must all be names of item properties",
            ));
            continue;
        };
        let property_path = format!("{path}.items.properties[{key}]");
        let ty = property.get("type").and_then(Value::as_str).unwrap_or_default();
        if ["object", "array"].contains(&ty) {
            errors.push(FieldError::invalid(
                join(&property_path, "type"),
                ty,
                "must be a scalar type if parent array's x-kubernetes-list-type is map",
            ));
        }
        if !property.contains_key("default") && !required.iter().any(|name| name == key) {
            errors.push(FieldError::required(
                join(&property_path, "default"),
                "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property",
            ));
        }
        if flag(property, "nullable") {
            errors.push(FieldError::forbidden(
                join(&property_path, "nullable"),
                "this property is in x-kubernetes-list-map-keys, so it cannot be nullable",
            ));
        }
    }
}

fn children(map: &Map<String, Value>, place: Place<'_>, out: &mut Node, errors: &mut Vec<FieldError>) {
    let path = place.path;
    if let Some(properties) = map.get("properties").and_then(Value::as_object) {
        for (name, schema) in properties {
            let child_path = format!("{path}.properties[{name}]");
            let child = if place.level == Level::Root && name == "metadata" {
                metadata(schema, &child_path, errors)
            } else {
                node(schema, place.below(Level::Field, &child_path, place.correlated), errors)
            };
            out.fields.insert(name.clone(), Field::of(shared(schema, child)));
        }
    }
    match map.get("additionalProperties") {
        Some(Value::Bool(true)) => out.additional = Additional::Any,
        Some(schema @ Value::Object(_)) => {
            if place.level == Level::Root {
                errors.push(FieldError::forbidden(join(path, "additionalProperties"), "must not be used at the root"));
            }
            let child_path = join(path, "additionalProperties");
            let child = node(schema, place.below(Level::Field, &child_path, place.correlated), errors);
            out.additional = Additional::Schema(shared(schema, child));
        }
        _ => {}
    }
    match map.get("items") {
        Some(Value::Array(_)) => {
            errors.push(FieldError::forbidden(join(path, "items"), "items must be a schema object and not an array"));
        }
        Some(schema) => {
            let child_path = join(path, "items");
            let correlated = place.correlated && matches!(out.list, ListType::Map(_));
            let child = node(schema, place.below(Level::Item, &child_path, correlated), errors);
            out.items = Some(shared(schema, child));
        }
        None if out.ty == Type::Array => errors.push(FieldError::required(join(path, "items"), "must be specified")),
        None => {}
    }
}

/// One node for all places of the process that say the same of a value without parts: most of a schema is such.
fn shared(schema: &Value, node: Node) -> Arc<Node> {
    static KNOWN: Mutex<Option<HashMap<String, Weak<Node>>>> = Mutex::new(None);
    if !node.ty.is_scalar() {
        return Arc::new(node);
    }
    let said: Map<String, Value> = schema
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(word, _)| !["description", "title", "example"].contains(&word.as_str()))
        .map(|(word, value)| (word.clone(), value.clone()))
        .collect();
    let mut guard = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = guard.get_or_insert_with(HashMap::new);
    let key = Value::Object(said).to_string();
    if let Some(node) = known.get(&key).and_then(Weak::upgrade) {
        return node;
    }
    if known.len().is_power_of_two() {
        known.retain(|_, node| node.strong_count() > 0);
    }
    let node = Arc::new(node);
    known.insert(key, Arc::downgrade(&node));
    node
}

/// `metadata` at the root may only restrict `name` and `generateName`; the rest is the server's.
fn metadata(schema: &Value, path: &str, errors: &mut Vec<FieldError>) -> Node {
    let empty = Map::new();
    let map = schema.as_object().unwrap_or(&empty);
    if map.get("type").and_then(Value::as_str) != Some("object") {
        errors.push(FieldError::invalid(
            join(path, "type"),
            map.get("type").cloned().unwrap_or_default(),
            "must be object",
        ));
    }
    let mut out = super::meta::object_meta();
    for (name, property) in map.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let property_path = format!("{path}.properties[{name}]");
        if name != "name" && name != "generateName" {
            errors.push(FieldError::forbidden(
                path,
                "must not specify anything other than name and generateName, but metadata is implicitly specified",
            ));
            continue;
        }
        let place = Place { level: Level::Field, path: &property_path, depth: 1, correlated: true };
        let child = node(property, place, errors);
        out.fields.insert(name.clone(), Field::of(Arc::new(child)));
    }
    out.finish()
}

fn embedded_resource(map: &Map<String, Value>, out: &mut Node, path: &str, errors: &mut Vec<FieldError>) {
    if out.ty != Type::Object {
        errors.push(FieldError::invalid(
            join(path, "type"),
            out.ty.name(),
            "must be object if x-kubernetes-embedded-resource is true",
        ));
    }
    if map.contains_key("additionalProperties") {
        errors.push(FieldError::forbidden(
            join(path, "additionalProperties"),
            "must not be used if x-kubernetes-embedded-resource is set",
        ));
    }
    if out.fields.is_empty() && !out.preserve {
        errors.push(FieldError::required(
            join(path, "properties"),
            "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields",
        ));
    }
    for name in ["apiVersion", "kind"] {
        out.fields.entry(name.to_owned()).or_insert_with(|| Field::of(Arc::new(Node::of(Type::String))));
    }
    out.fields.insert("metadata".to_owned(), Field::of(Arc::new(super::meta::object_meta().finish())));
}

fn required_types(map: &Map<String, Value>, out: &Node, path: &str, errors: &mut Vec<FieldError>) {
    for (word, names) in ["allOf", "anyOf", "oneOf"].map(|word| (word, array(map, word))).into_iter() {
        for (index, inner) in names.iter().enumerate() {
            complete(inner, out, &format!("{path}.{word}[{index}]"), path, errors);
        }
    }
    if let Some(inner) = map.get("not") {
        complete(inner, out, &join(path, "not"), path, errors);
    }
}

/// Whatever a junctor speaks of must be declared outside of it, too.
fn complete(inner: &Value, outer: &Node, inner_path: &str, outer_path: &str, errors: &mut Vec<FieldError>) {
    for (name, property) in inner.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let property_path = format!("{inner_path}.properties[{name}]");
        match outer.child(name) {
            Some(child) => {
                complete(property, child, &property_path, &format!("{outer_path}.properties[{name}]"), errors);
            }
            None if outer.keeps_unknown() => {}
            None => errors.push(FieldError::required(
                format!("{outer_path}.properties[{name}]"),
                format!("because it is defined in {property_path}"),
            )),
        }
    }
    if let Some(items) = inner.get("items") {
        let items_path = join(inner_path, "items");
        match &outer.items {
            Some(child) => complete(items, child, &items_path, &join(outer_path, "items"), errors),
            None if outer.keeps_unknown() => {}
            None => errors.push(FieldError::required(
                join(outer_path, "items"),
                format!("because it is defined in {items_path}"),
            )),
        }
    }
    for word in ["allOf", "anyOf", "oneOf"] {
        for (index, deeper) in inner.get(word).and_then(Value::as_array).into_iter().flatten().enumerate() {
            complete(deeper, outer, &format!("{inner_path}.{word}[{index}]"), outer_path, errors);
        }
    }
    if let Some(deeper) = inner.get("not") {
        complete(deeper, outer, &join(inner_path, "not"), outer_path, errors);
    }
}

/// Reads value validations; `nested` inside a junctor.
fn checks(
    map: &Map<String, Value>,
    schema: &Value,
    path: &str,
    nested: bool,
    int_or_string: bool,
    errors: &mut Vec<FieldError>,
) -> Checks {
    let number = |name: &str| map.get(name).and_then(Value::as_f64);
    let count = |name: &str| map.get(name).and_then(Value::as_u64);
    let mut out = Checks {
        format: map.get("format").and_then(Value::as_str).map(str::to_owned),
        minimum: number("minimum").map(|limit| (limit, flag(map, "exclusiveMinimum"))),
        maximum: number("maximum").map(|limit| (limit, flag(map, "exclusiveMaximum"))),
        multiple_of: number("multipleOf"),
        min_length: count("minLength"),
        max_length: count("maxLength"),
        min_items: count("minItems"),
        max_items: count("maxItems"),
        unique_items: nested && flag(map, "uniqueItems"),
        min_properties: count("minProperties"),
        max_properties: count("maxProperties"),
        required: array(map, "required").iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        allowed: array(map, "enum").to_vec(),
        ..Checks::default()
    };
    if let Some(source) = map.get("pattern").and_then(Value::as_str) {
        match Pattern::new(source) {
            Ok(pattern) => out.pattern = Some(pattern),
            Err(error) => errors.push(FieldError::invalid(
                join(path, "pattern"),
                source,
                format!("must be a valid regular expression, but isn't: {error}"),
            )),
        }
    }
    let mut list = |word: &str| -> Vec<Checks> {
        array(map, word)
            .iter()
            .enumerate()
            .map(|(index, inner)| nested_checks(inner, &format!("{path}.{word}[{index}]"), int_or_string, errors))
            .collect()
    };
    out.all_of = list("allOf");
    out.any_of = list("anyOf");
    out.one_of = list("oneOf");
    out.not = schema.get("not").map(|inner| Box::new(nested_checks(inner, &join(path, "not"), false, errors)));
    if nested {
        for (name, inner) in map.get("properties").and_then(Value::as_object).into_iter().flatten() {
            let inner_path = format!("{path}.properties[{name}]");
            out.properties.push((name.clone(), nested_checks(inner, &inner_path, false, errors)));
        }
        out.items = map.get("items").map(|inner| Box::new(nested_checks(inner, &join(path, "items"), false, errors)));
    }
    out
}

fn nested_checks(schema: &Value, path: &str, int_or_string: bool, errors: &mut Vec<FieldError>) -> Checks {
    let Some(map) = schema.as_object() else {
        errors.push(FieldError::invalid(path, schema.clone(), "must be a schema object"));
        return Checks::default();
    };
    let mut types = Vec::new();
    for word in [
        "type",
        "additionalProperties",
        "default",
        "title",
        "description",
        "nullable",
        "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-embedded-resource",
        "x-kubernetes-int-or-string",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-list-type",
        "x-kubernetes-map-type",
        "x-kubernetes-validations",
    ] {
        let Some(value) = map.get(word) else { continue };
        if word == "type" && int_or_string && (value == "integer" || value == "string") {
            types.extend(value.as_str().and_then(Type::parse));
            continue;
        }
        errors.push(FieldError::forbidden(join(path, word), "must be empty to be structural"));
    }
    if map.get("properties").and_then(|p| p.get("metadata")).is_some() {
        errors.push(FieldError::forbidden(
            format!("{path}.properties[metadata]"),
            "must not be specified in a nested context",
        ));
    }
    let mut out = checks(map, schema, path, true, int_or_string, errors);
    out.types = types;
    out
}
