//! The schema engine of the embedded API server: pure functions over JSON objects.
mod builtin;
mod apply;
mod strategic;

pub use apply::{Applied, ApplyError, FieldConflict, apply, track_update};
pub use builtin::{BuiltinKind, builtins};
pub use strategic::strategic_merge;

use serde_json::Value;

/// The compiled schema of one kind and version.
#[derive(Clone, Debug)]
pub struct Schema;

/// Why a CRD schema was refused: every place that is not structural, with its path.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the schema is not structural: {}", .errors.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
pub struct SchemaError {
    /// One entry for each offending place.
    pub errors: Vec<FieldError>,
}

impl Schema {
    /// Compiles a CRD version's `schema.openAPIV3Schema`.
    pub fn compile(_open_api_v3: &Value) -> Result<Schema, SchemaError> {
        Ok(Schema)
    }
    /// A schema that keeps everything.
    pub fn preserve_all() -> Schema {
        Schema
    }
    /// Removes unknown fields and returns their paths.
    pub fn prune(&self, _object: &mut Value) -> Vec<String> {
        Vec::new()
    }
    /// Applies defaults.
    pub fn default(&self, _object: &mut Value) {}
    /// Validates.
    pub fn validate(&self, _object: &Value, _old: Option<&Value>) -> Vec<FieldError> {
        Vec::new()
    }
    /// The schema as published.
    pub fn open_api(&self) -> Value {
        Value::Object(serde_json::Map::new())
    }
}

/// What is wrong with a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldErrorKind {
    /// A required value is missing.
    Required,
    /// A value that is not allowed.
    Invalid,
    /// A value of the wrong type.
    TypeInvalid,
    /// A value outside an enumeration.
    NotSupported,
    /// A string that is too long.
    TooLong,
    /// A list with too many items.
    TooMany,
    /// An item that is there twice.
    Duplicate,
    /// A field that may not be set.
    Forbidden,
}

/// One thing wrong with an object.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldError {
    /// The field's path.
    pub path: String,
    /// What is wrong.
    pub kind: FieldErrorKind,
    /// The value found.
    pub bad_value: Option<Value>,
    /// Why.
    pub detail: String,
}

impl std::fmt::Display for FieldError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.path, self.detail)
    }
}

impl FieldError {
    /// (reason, message, field) for `Status.details.causes`.
    pub fn cause(&self) -> (&'static str, String, String) {
        ("FieldValueInvalid", self.detail.clone(), self.path.clone())
    }
}

/// Validates an object's metadata.
pub fn validate_object_meta(_metadata: &Value, _namespaced: bool) -> Vec<FieldError> {
    Vec::new()
}

/// Validates a CustomResourceDefinition.
pub fn validate_crd(_crd: &Value) -> Vec<FieldError> {
    Vec::new()
}

/// Whether two objects differ in anything but managedFields timestamps.
pub fn differs(a: &Value, b: &Value) -> bool {
    a != b
}
