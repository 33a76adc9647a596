//! What is wrong with a field, in the words a Kubernetes API server uses.
//!
//! The texts follow `k8s.io/apimachinery/pkg/util/validation/field` (release 1.35), because people, scripts and clients
//! read them.

use serde_json::Value;

/// The class of a [`FieldError`]. Each has a reason that Kubernetes clients know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FieldErrorKind {
    /// A required value is missing or empty.
    Required,
    /// A malformed or disallowed value.
    Invalid,
    /// A value of another JSON type than the schema's.
    TypeInvalid,
    /// A value outside an enumeration.
    NotSupported,
    /// A string longer than allowed. The value itself is never repeated.
    TooLong,
    /// A list or map with more items than allowed.
    TooMany,
    /// A second item where each must be unique.
    Duplicate,
    /// A value that is well formed but may not be set.
    Forbidden,
}

impl FieldErrorKind {
    /// The words in front of the value.
    fn words(self) -> &'static str {
        match self {
            Self::Required => "Required value",
            Self::Invalid | Self::TypeInvalid => "Invalid value",
            Self::NotSupported => "Unsupported value",
            Self::TooLong => "Too long",
            Self::TooMany => "Too many",
            Self::Duplicate => "Duplicate value",
            Self::Forbidden => "Forbidden",
        }
    }

    /// The `reason` of a cause in `Status.details.causes`.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Required => "FieldValueRequired",
            Self::Invalid => "FieldValueInvalid",
            Self::TypeInvalid => "FieldValueTypeInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
            Self::Duplicate => "FieldValueDuplicate",
            Self::Forbidden => "FieldValueForbidden",
        }
    }
}

/// One thing that is wrong with an object.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldError {
    /// The field, as in `spec.versions[0].name`; `<nil>` when no single field is meant.
    pub path: String,
    /// What class of error it is.
    pub kind: FieldErrorKind,
    /// The value that was found, when repeating it helps.
    pub bad_value: Option<Value>,
    /// What was expected. May be empty.
    pub detail: String,
}

impl FieldError {
    /// An error with a value to show.
    pub fn new(path: impl Into<String>, kind: FieldErrorKind, bad_value: Value, detail: impl Into<String>) -> Self {
        Self { path: path.into(), kind, bad_value: Some(bad_value), detail: detail.into() }
    }

    /// A missing value.
    pub fn required(path: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { path: path.into(), kind: FieldErrorKind::Required, bad_value: None, detail: detail.into() }
    }

    /// A value that breaks a rule.
    pub fn invalid(path: impl Into<String>, bad_value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self::new(path, FieldErrorKind::Invalid, bad_value.into(), detail)
    }

    /// A value that may not be set here.
    pub fn forbidden(path: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { path: path.into(), kind: FieldErrorKind::Forbidden, bad_value: None, detail: detail.into() }
    }

    /// An item that is there twice.
    pub fn duplicate(path: impl Into<String>, bad_value: impl Into<Value>) -> Self {
        Self::new(path, FieldErrorKind::Duplicate, bad_value.into(), "")
    }

    /// A string of more than `max` bytes.
    pub fn too_long(path: impl Into<String>, max: u64) -> Self {
        let unit = if max == 1 { "byte" } else { "bytes" };
        Self {
            path: path.into(),
            kind: FieldErrorKind::TooLong,
            bad_value: None,
            detail: format!("may not be more than {max} {unit}"),
        }
    }

    /// A collection of `actual` items where `max` are allowed.
    pub fn too_many(path: impl Into<String>, actual: usize, max: u64) -> Self {
        let unit = if max == 1 { "item" } else { "items" };
        Self::new(path, FieldErrorKind::TooMany, actual.into(), format!("must have at most {max} {unit}"))
    }

    /// A value outside `supported`.
    pub fn not_supported<S: AsRef<str>>(
        path: impl Into<String>,
        bad_value: impl Into<Value>,
        supported: impl IntoIterator<Item = S>,
    ) -> Self {
        let quoted: Vec<String> = supported.into_iter().map(|s| quote(s.as_ref())).collect();
        let detail = if quoted.is_empty() { String::new() } else { format!("supported values: {}", quoted.join(", ")) };
        Self::new(path, FieldErrorKind::NotSupported, bad_value.into(), detail)
    }

    /// The same error with `prefix` in front of its path.
    #[must_use]
    pub fn under(mut self, prefix: &str) -> Self {
        self.path = join(prefix, &self.path);
        self
    }

    /// The message without the field's path.
    pub fn body(&self) -> String {
        let mut text = self.kind.words().to_owned();
        if let Some(value) = &self.bad_value {
            text.push_str(": ");
            match value {
                Value::String(string) => text.push_str(&quote(string)),
                other => text.push_str(&other.to_string()),
            }
        }
        if !self.detail.is_empty() {
            text.push_str(": ");
            text.push_str(&self.detail);
        }
        text
    }

    /// `(reason, message, field)` of the entry in `Status.details.causes`.
    pub fn cause(&self) -> (&'static str, String, String) {
        (self.kind.reason(), self.body(), self.path.clone())
    }
}

impl std::fmt::Display for FieldError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.path, self.body())
    }
}

impl std::error::Error for FieldError {}

/// A string in double quotes, as Go's `%q` prints it.
pub(crate) fn quote(text: &str) -> String {
    // JSON and Go agree on quotes, backslashes, newlines and tabs, which is what occurs in field values.
    Value::String(text.to_owned()).to_string()
}

/// A path and a child of it.
pub(crate) fn join(path: &str, child: &str) -> String {
    match (path.is_empty(), child.is_empty()) {
        (true, _) => child.to_owned(),
        (_, true) => path.to_owned(),
        _ if child.starts_with('[') => format!("{path}{child}"),
        _ => format!("{path}.{child}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn messages_read_like_those_of_kubernetes() {
        let table = [
            (
                FieldError::new(
                    "spec.replicas",
                    FieldErrorKind::TypeInvalid,
                    json!("string"),
                    "spec.replicas in body must be of type integer: \"string\"",
                ),
                "spec.replicas: Invalid value: \"string\": spec.replicas in body must be of type integer: \"string\"",
            ),
            (FieldError::required("spec.a", ""), "spec.a: Required value"),
            (FieldError::invalid("a", 3, "too small"), "a: Invalid value: 3: too small"),
            (FieldError::duplicate("a[1]", json!({"k": "v"})), "a[1]: Duplicate value: {\"k\":\"v\"}"),
            (FieldError::too_long("a", 1), "a: Too long: may not be more than 1 byte"),
            (FieldError::too_many("a", 5, 3), "a: Too many: 5: must have at most 3 items"),
            (
                FieldError::not_supported("a", "x", ["y", "z"]),
                "a: Unsupported value: \"x\": supported values: \"y\", \"z\"",
            ),
            (FieldError::forbidden("a", "no"), "a: Forbidden: no"),
        ];
        for (error, text) in table {
            assert_eq!(error.to_string(), text);
        }
        let (reason, message, field) = FieldError::required("spec.a", "").cause();
        assert_eq!((reason, message.as_str(), field.as_str()), ("FieldValueRequired", "Required value", "spec.a"));
    }

    #[test]
    fn paths_join() {
        assert_eq!(join("", "a"), "a");
        assert_eq!(join("a", "b"), "a.b");
        assert_eq!(join("a", "[0]"), "a[0]");
        assert_eq!(FieldError::required("b", "").under("a").path, "a.b");
    }
}
