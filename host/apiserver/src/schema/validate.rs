//! Validation of a value against a compiled schema.
//!
//! What an update leaves as it was is not held against it: rules may have become stricter since the object was stored
//! (ratcheting, as in Kubernetes 1.33). Only transition rules look at unchanged values.

use super::cel;
use super::error::{FieldError, FieldErrorKind, join};
use super::formats::{self, number_in_range};
use super::node::{Additional, Checks, ListType, Node, Type, type_name};
use serde_json::{Map, Value};

/// Types, value validations and uniqueness of list items.
pub(crate) fn validate_value(
    node: &Node,
    value: &Value,
    old: Option<&Value>,
    path: &str,
    errors: &mut Vec<FieldError>,
) {
    if old == Some(value) {
        return;
    }
    if value.is_null() {
        if !node.nullable && node.ty != Type::Any {
            errors.push(type_error(node.ty.name(), value, path));
        }
        return;
    }
    if !has_type(node.ty, value) {
        errors.push(type_error(node.ty.name(), value, path));
        if node.ty == Type::Integer && value.is_number() {
            let why = format!("Checked value must be of type integer (default format) in {path}");
            errors.push(FieldError::invalid("<nil>", "", why));
        }
        if let Some(checks) = node.checks.as_ref().filter(|checks| !checks.any_of.is_empty()) {
            check_junctors(checks, value, path, errors);
        }
        return;
    }
    if let Some(checks) = &node.checks {
        check(checks, node.ty, value, path, errors);
    }
    match value {
        Value::Object(map) => {
            if node.embedded {
                for name in ["apiVersion", "kind"] {
                    if map.get(name).and_then(Value::as_str).is_none_or(str::is_empty) {
                        errors.push(FieldError::required(join(path, name), ""));
                    }
                }
                if let Some(metadata) = map.get("metadata") {
                    let found = super::meta::embedded_errors(metadata);
                    errors.extend(found.into_iter().map(|error| error.under(path)));
                }
            }
            let old = old.and_then(Value::as_object);
            for (name, child) in map {
                let schema = match (node.fields.get(name), &node.additional) {
                    (Some(field), _) => &field.node,
                    (None, Additional::Schema(schema)) => schema,
                    _ => continue,
                };
                validate_value(schema, child, old.and_then(|o| o.get(name)), &join(path, name), errors);
            }
        }
        Value::Array(items) => {
            unique(node, items, path, errors);
            let Some(schema) = &node.items else { return };
            for (index, item) in items.iter().enumerate() {
                validate_value(schema, item, former(node, item, old), &format!("{path}[{index}]"), errors);
            }
        }
        _ => {}
    }
}

/// Nulls where the schema allows none and has no default to put in their place.
pub(crate) fn nulls(node: &Node, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
    match value {
        Value::Object(map) => {
            for (name, child) in map {
                let Some(schema) = node.child(name) else { continue };
                let path = join(path, name);
                if child.is_null() && !schema.nullable && schema.default.is_none() && schema.ty != Type::Any {
                    errors.push(type_error(schema.ty.name(), child, &path));
                }
                nulls(schema, child, &path, errors);
            }
        }
        Value::Array(items) => {
            let Some(schema) = &node.items else { return };
            for (index, item) in items.iter().enumerate() {
                nulls(schema, item, &format!("{path}[{index}]"), errors);
            }
        }
        _ => {}
    }
}

/// The item of a former list that has the identity of `item`, where items have one.
fn former<'a>(node: &Node, item: &Value, old: Option<&'a Value>) -> Option<&'a Value> {
    let ListType::Map(keys) = &node.list else { return None };
    old?.as_array()?.iter().find(|candidate| keys.iter().all(|key| candidate.get(key) == item.get(key)))
}

/// CEL rules, on this node and below.
pub(crate) fn validate_rules(
    node: &Node,
    value: &Value,
    old: Option<&Value>,
    path: &str,
    errors: &mut Vec<FieldError>,
) {
    if !node.rules_below || value.is_null() {
        return;
    }
    if !node.rules.is_empty() {
        let old = old.filter(|old| !old.is_null());
        cel::check(node, value, old, old == Some(value), path, errors);
    }
    match value {
        Value::Object(map) => {
            for (name, child) in map {
                let Some(schema) = node.child(name) else { continue };
                validate_rules(schema, child, old.and_then(|o| o.get(name)), &join(path, name), errors);
            }
        }
        Value::Array(items) => {
            let Some(schema) = &node.items else { return };
            for (index, item) in items.iter().enumerate() {
                validate_rules(schema, item, former(node, item, old), &format!("{path}[{index}]"), errors);
            }
        }
        _ => {}
    }
}

fn type_error(wanted: &str, value: &Value, path: &str) -> FieldError {
    let found = type_name(value);
    FieldError::new(
        path,
        FieldErrorKind::TypeInvalid,
        found.into(),
        format!("{path} in body must be of type {wanted}: \"{found}\""),
    )
}

fn is_whole(value: &Value) -> bool {
    match value {
        Value::Number(number) => !number.is_f64() || number.as_f64().is_some_and(|n| n.fract() == 0.0),
        _ => false,
    }
}

/// Whether a value is of a type. Whole floats count as integers, as in Go's JSON.
pub(crate) fn has_type(ty: Type, value: &Value) -> bool {
    match ty {
        Type::Any => true,
        Type::Object => value.is_object(),
        Type::Array => value.is_array(),
        Type::String => value.is_string(),
        Type::Boolean => value.is_boolean(),
        Type::Number => value.is_number(),
        Type::Integer => is_whole(value),
        Type::IntOrString => value.is_string() || is_whole(value),
    }
}

fn check(checks: &Checks, ty: Type, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
    if !checks.types.is_empty() && !checks.types.iter().any(|ty| has_type(*ty, value)) {
        let wanted: Vec<&str> = checks.types.iter().map(|ty| ty.name()).collect();
        errors.push(type_error(&wanted.join(","), value, path));
        return;
    }
    if !checks.allowed.is_empty() && !checks.allowed.iter().any(|allowed| same(allowed, value)) {
        let supported = checks.allowed.iter().map(|allowed| match allowed {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        });
        errors.push(FieldError::not_supported(path, value.clone(), supported));
    }
    match value {
        Value::String(text) => check_string(checks, text, path, errors),
        Value::Number(number) => check_number(checks, ty, number, path, errors),
        Value::Array(items) => check_array(checks, items, path, errors),
        Value::Object(map) => check_object(checks, map, path, errors),
        _ => {}
    }
    check_junctors(checks, value, path, errors);
}

/// Equality of JSON values in which `1` and `1.0` are the same.
fn same(a: &Value, b: &Value) -> bool {
    a == b || matches!((a, b), (Value::Number(a), Value::Number(b)) if a.as_f64() == b.as_f64())
}

fn check_string(checks: &Checks, text: &str, path: &str, errors: &mut Vec<FieldError>) {
    let length = text.chars().count() as u64;
    if let Some(max) = checks.max_length.filter(|max| length > *max) {
        errors.push(FieldError::too_long(path, max));
    }
    if let Some(min) = checks.min_length.filter(|min| length < *min) {
        errors.push(FieldError::invalid(path, text, format!("{path} in body should be at least {min} chars long")));
    }
    if let Some(pattern) = checks.pattern.as_ref().filter(|pattern| !pattern.is_match(text)) {
        errors.push(FieldError::invalid(path, text, format!("{path} in body should match '{}'", pattern.source())));
    }
    if let Some(format) = checks.format.as_deref().filter(|format| !formats::matches(format, text)) {
        let why = format!("{path} in body must be of type {format}: \"{text}\"");
        errors.push(FieldError::new(path, FieldErrorKind::TypeInvalid, text.into(), why));
    }
}

fn check_number(checks: &Checks, ty: Type, number: &serde_json::Number, path: &str, errors: &mut Vec<FieldError>) {
    let Some(found) = number.as_f64() else { return };
    let value = Value::Number(number.clone());
    if let Some((limit, exclusive)) = checks.minimum
        && (found < limit || (exclusive && found == limit))
    {
        let words = if exclusive { "greater than" } else { "greater than or equal to" };
        errors.push(FieldError::invalid(path, value.clone(), format!("{path} in body should be {words} {limit}")));
    }
    if let Some((limit, exclusive)) = checks.maximum
        && (found > limit || (exclusive && found == limit))
    {
        let words = if exclusive { "less than" } else { "less than or equal to" };
        errors.push(FieldError::invalid(path, value.clone(), format!("{path} in body should be {words} {limit}")));
    }
    if let Some(factor) = checks.multiple_of
        && factor > 0.0
        && (found / factor).fract() != 0.0
    {
        errors.push(FieldError::invalid(
            path,
            value.clone(),
            format!("{path} in body should be a multiple of {factor}"),
        ));
    }
    if let Some(format) = checks.format.as_deref()
        && ty == Type::Integer
        && !number_in_range(format, number)
    {
        let why = format!("Checked value must be of type integer with format {format} in {path}");
        errors.push(FieldError::invalid("<nil>", "", why));
    }
}

fn check_array(checks: &Checks, items: &[Value], path: &str, errors: &mut Vec<FieldError>) {
    let count = items.len() as u64;
    if let Some(max) = checks.max_items.filter(|max| count > *max) {
        errors.push(FieldError::too_many(path, items.len(), max));
    }
    if let Some(min) = checks.min_items.filter(|min| count < *min) {
        errors.push(FieldError::invalid(path, count, format!("{path} in body should have at least {min} items")));
    }
    if checks.unique_items && !duplicates(items.iter()).is_empty() {
        errors.push(FieldError::invalid(
            path,
            Value::Array(items.to_vec()),
            format!("{path} in body shouldn't contain duplicates"),
        ));
    }
    if let Some(inner) = &checks.items {
        for (index, item) in items.iter().enumerate() {
            check(inner, Type::Any, item, &format!("{path}[{index}]"), errors);
        }
    }
}

fn check_object(checks: &Checks, map: &Map<String, Value>, path: &str, errors: &mut Vec<FieldError>) {
    let count = map.len() as u64;
    if let Some(max) = checks.max_properties.filter(|max| count > *max) {
        errors.push(FieldError::too_many(path, map.len(), max));
    }
    if let Some(min) = checks.min_properties.filter(|min| count < *min) {
        errors.push(FieldError::invalid(path, count, format!("{path} in body should have at least {min} properties")));
    }
    for name in &checks.required {
        if !map.contains_key(name) {
            errors.push(FieldError::required(join(path, name), ""));
        }
    }
    for (name, inner) in &checks.properties {
        if let Some(child) = map.get(name) {
            check(inner, Type::Any, child, &join(path, name), errors);
        }
    }
    if let Some(inner) = &checks.additional {
        for (name, child) in map {
            if !checks.properties.iter().any(|(known, _)| known == name) {
                check(inner, Type::Any, child, &join(path, name), errors);
            }
        }
    }
}

fn check_junctors(checks: &Checks, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let outcomes = |branches: &[Checks]| -> Vec<Vec<FieldError>> {
        branches
            .iter()
            .map(|branch| {
                let mut found = Vec::new();
                check(branch, Type::Any, value, path, &mut found);
                found
            })
            .collect()
    };
    let whole = |detail: String| FieldError::invalid("<nil>", "", detail);
    let before = errors.len();
    let mut valid = 0;
    for branch in &checks.all_of {
        let so_far = errors.len();
        check(branch, Type::Any, value, path, errors);
        valid += usize::from(errors.len() == so_far);
    }
    if errors.len() > before {
        let some = if valid == 0 { ". None validated" } else { "" };
        errors.push(whole(format!("\"{path}\" must validate all the schemas (allOf){some}")));
    }
    if !checks.any_of.is_empty() {
        let found = outcomes(&checks.any_of);
        if found.iter().all(|errors| !errors.is_empty()) {
            errors.push(whole(format!("\"{path}\" must validate at least one schema (anyOf)")));
            errors.extend(found.into_iter().min_by_key(Vec::len).unwrap_or_default());
        }
    }
    if !checks.one_of.is_empty() {
        let found = outcomes(&checks.one_of);
        match found.iter().filter(|errors| errors.is_empty()).count() {
            0 => {
                errors
                    .push(whole(format!("\"{path}\" must validate one and only one schema (oneOf). Found none valid")));
                errors.extend(found.into_iter().min_by_key(Vec::len).unwrap_or_default());
            }
            1 => {}
            many => errors.push(whole(format!(
                "\"{path}\" must validate one and only one schema (oneOf). Found {many} valid alternatives"
            ))),
        }
    }
    if let Some(inner) = &checks.not {
        let mut found = Vec::new();
        check(inner, Type::Any, value, path, &mut found);
        if found.is_empty() {
            errors.push(whole(format!("\"{path}\" must not validate the schema (not)")));
        }
    }
}

/// Indices of the items that are there for the second time.
fn duplicates<'a, T: std::fmt::Display + 'a>(items: impl Iterator<Item = T>) -> Vec<usize> {
    let mut seen = std::collections::HashMap::new();
    let mut found = Vec::new();
    for (index, item) in items.enumerate() {
        let times = seen.entry(item.to_string()).or_insert(0u32);
        *times += 1;
        if *times == 2 {
            found.push(index);
        }
    }
    found
}

fn unique(node: &Node, items: &[Value], path: &str, errors: &mut Vec<FieldError>) {
    match &node.list {
        ListType::Atomic => {}
        ListType::Set => {
            for index in duplicates(items.iter()) {
                errors.push(FieldError::duplicate(
                    format!("{path}[{index}]"),
                    items.get(index).cloned().unwrap_or_default(),
                ));
            }
        }
        ListType::Map(keys) => {
            let identities: Vec<Value> = items
                .iter()
                .map(|item| {
                    let identity: Map<String, Value> =
                        keys.iter().filter_map(|key| item.get(key).map(|value| (key.clone(), value.clone()))).collect();
                    Value::Object(identity)
                })
                .collect();
            for index in duplicates(identities.iter()) {
                errors.push(FieldError::duplicate(
                    format!("{path}[{index}]"),
                    identities.get(index).cloned().unwrap_or_default(),
                ));
            }
        }
    }
}
