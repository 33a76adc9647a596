//! Tables for each function of the engine.

mod apply;
mod builtin;
mod compile;
mod crd;
mod objects;
mod rules;
mod strategic;
mod upstream;

use super::Schema;
use serde_json::{Value, json};

/// A schema with these properties under `spec`.
fn spec(properties: Value) -> Schema {
    compiled(json!({
        "type": "object",
        "properties": {"spec": {"type": "object", "properties": properties}, "status": {
            "type": "object", "x-kubernetes-preserve-unknown-fields": true,
        }},
    }))
}

fn compiled(schema: Value) -> Schema {
    Schema::compile(&schema).unwrap()
}

fn texts<T: std::fmt::Display>(errors: Vec<T>) -> Vec<String> {
    errors.into_iter().map(|error| error.to_string()).collect()
}
