//! From a Rust type to a structural schema as apiextensions/v1 wants it.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

/// The structural schema of a type: no references, no titles, no nulls, no defaults, formats that Kubernetes knows.
pub fn schema_of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft07().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let schema = settings.into_generator().into_root_schema_for::<T>();
    let mut value = schema.to_value();
    restrict(&mut value);
    value
}

fn restrict(schema: &mut Value) {
    let Value::Object(map) = schema else {
        *schema = json!({"x-kubernetes-preserve-unknown-fields": true});
        return;
    };
    for key in ["title", "default", "$schema", "definitions"] {
        map.shift_remove(key);
    }
    if let Some(Value::Array(types)) = map.get("type") {
        let first = types.iter().find(|t| *t != "null").cloned();
        map.insert("type".into(), first.unwrap_or(Value::Null));
    }
    if let Some(Value::Array(values)) = map.get_mut("enum") {
        values.retain(|v| !v.is_null());
    }
    if let Some(Value::String(format)) = map.get("format")
        && !matches!(format.as_str(), "int32" | "int64" | "date-time")
    {
        map.shift_remove("format");
    }
    if map.contains_key("x-kubernetes-int-or-string") {
        map.shift_remove("type");
    } else if let Some(Value::Array(options)) = map.get("anyOf")
        && let Some(one) = options.iter().find(|o| o.get("type") != Some(&json!("null"))).cloned()
        && options.len() == 2
        && let Value::Object(one) = one
    {
        // An optional value: the schema of the value, with this place's own words.
        map.shift_remove("anyOf");
        let own = std::mem::take(map);
        map.extend(one);
        map.extend(own);
        return restrict(schema);
    }
    let Value::Object(map) = schema else { return };
    if let Some(Value::Object(properties)) = map.get_mut("properties") {
        properties.values_mut().for_each(restrict);
    }
    for key in ["items", "additionalProperties"] {
        if let Some(value) = map.get_mut(key) {
            restrict(value);
        }
    }
    let ordered = std::mem::take(map);
    *map = in_order(ordered);
}

/// `description` and `type` first: the way people read schemas.
fn in_order(mut map: Map<String, Value>) -> Map<String, Value> {
    let mut ordered = Map::new();
    for key in ["description", "type"] {
        if let Some(value) = map.shift_remove(key) {
            ordered.insert(key.into(), value);
        }
    }
    ordered.extend(map);
    ordered
}

/// Sets the value at a JSON pointer of a schema, making the objects on the way.
pub(crate) fn set(schema: &mut Value, pointer: &str, value: Value) {
    let mut at = schema;
    for part in pointer.trim_start_matches('/').split('/') {
        if !at.is_object() {
            *at = Value::Object(Map::new());
        }
        let Value::Object(map) = at else { return };
        at = map.entry(part).or_insert(Value::Null);
    }
    *at = value;
}
