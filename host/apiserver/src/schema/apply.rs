//! Server-side apply and field ownership.
use super::Schema;
use serde_json::Value;

/// The outcome of an apply.
#[derive(Clone, Debug)]
pub struct Applied {
    /// The object to store.
    pub object: Value,
}

/// A field that another manager owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldConflict {
    /// Who owns it, in kubectl's wording.
    pub manager: String,
    /// The version it was written with.
    pub api_version: String,
    /// The field's path (`.spec.replicas`).
    pub field: String,
}

/// Why an apply was refused.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ApplyError {
    /// Other managers own fields with other values.
    #[error("conflict")]
    Conflict(Vec<FieldConflict>),
    /// The configuration cannot be applied.
    #[error("{0}")]
    Invalid(String),
}

/// Applies a configuration.
pub fn apply(
    _schema: &Schema,
    _live: Option<&Value>,
    applied: &Value,
    _manager: &str,
    _force: bool,
    _subresource: Option<&str>,
    _now_rfc3339: &str,
) -> Result<Applied, ApplyError> {
    Ok(Applied { object: applied.clone() })
}

/// Records who owns what after a write.
pub fn track_update(
    _schema: &Schema,
    _old: Option<&Value>,
    _new: &mut Value,
    _manager: &str,
    _subresource: Option<&str>,
    _now_rfc3339: &str,
) {
}
