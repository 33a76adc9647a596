//! JSON values and text, without a panic.

use serde::Serialize;
use serde_json::Value;

use crate::{Error, Result};

/// Any value as JSON text.
pub fn text(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|error| Error::internal(format!("a value is not JSON: {error}")))
}

/// Sets a field of an object. What is no object stays as it is.
pub fn set(object: &mut Value, field: &str, value: impl Into<Value>) {
    if let Value::Object(map) = object {
        map.insert(field.to_owned(), value.into());
    }
}
