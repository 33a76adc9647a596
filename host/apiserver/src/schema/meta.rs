//! Object metadata: its schema, and the syntax of names, labels, annotations, finalizers and owner references.
//!
//! Source of the rules and texts: `k8s.io/apimachinery/pkg/api/validation` and `pkg/util/validation` (release 1.35).

use super::error::{FieldError, quote};
use super::node::Node;
use serde_json::Value;

/// The definition of ObjectMeta in the built-in schemas.
pub(crate) const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// The most that all annotations of an object may take together, in bytes of keys and values.
pub const MAX_ANNOTATIONS: usize = 256 * 1024;

/// The schema of `metadata`, to be changed or used as it is.
pub(crate) fn object_meta() -> Node {
    (*super::builtin::definition(OBJECT_META)).clone()
}

/// What the name of an object must look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameRule {
    /// A DNS subdomain (RFC 1123): most kinds.
    Subdomain,
    /// A DNS label (RFC 1123): namespaces.
    Label,
    /// A DNS label that begins with a letter (RFC 1035): services.
    Rfc1035Label,
    /// Anything that can be one segment of a URL's path: the RBAC kinds (`system:masters`).
    PathSegment,
}

impl NameRule {
    /// The rule for a kind.
    pub fn of(group: &str, kind: &str) -> NameRule {
        match (group, kind) {
            ("", "Namespace") => NameRule::Label,
            ("", "Service") => NameRule::Label,
            ("rbac.authorization.k8s.io", _) => NameRule::PathSegment,
            _ => NameRule::Subdomain,
        }
    }

    /// Why `name` is not a name, or nothing.
    pub fn check(self, name: &str) -> Vec<String> {
        match self {
            NameRule::Subdomain => subdomain_errors(name),
            NameRule::Label => label_errors(name),
            NameRule::Rfc1035Label => rfc1035_label_errors(name),
            NameRule::PathSegment => path_segment_errors(name),
        }
    }
}

/// Validates the metadata of an object whose name is a DNS subdomain. Types were checked by the schema before.
///
/// Paths begin with `metadata`.
pub fn validate_object_meta(metadata: &Value, namespaced: bool) -> Vec<FieldError> {
    validate_object_meta_named(metadata, namespaced, NameRule::Subdomain)
}

/// Validates the metadata of an object under the name rule of its kind.
pub fn validate_object_meta_named(metadata: &Value, namespaced: bool, rule: NameRule) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let text = |name: &str| metadata.get(name).and_then(Value::as_str).unwrap_or_default();

    let generate_name = text("generateName");
    if !generate_name.is_empty() {
        // Only a prefix: what follows makes up for a trailing dash.
        let probe = format!("{}a", generate_name.strip_suffix('-').unwrap_or(generate_name));
        for detail in rule.check(&probe) {
            errors.push(FieldError::invalid("metadata.generateName", generate_name, detail));
        }
    }
    let name = text("name");
    if name.is_empty() {
        errors.push(FieldError::required("metadata.name", "name or generateName is required"));
    }
    for detail in rule.check(name).into_iter().filter(|_| !name.is_empty()) {
        errors.push(FieldError::invalid("metadata.name", name, detail));
    }
    let namespace = text("namespace");
    if namespaced {
        if namespace.is_empty() {
            errors.push(FieldError::required("metadata.namespace", ""));
        } else {
            for detail in label_errors(namespace) {
                errors.push(FieldError::invalid("metadata.namespace", namespace, detail));
            }
        }
    } else if !namespace.is_empty() {
        errors.push(FieldError::forbidden("metadata.namespace", "not allowed on this type"));
    }
    if metadata.get("generation").and_then(Value::as_i64).is_some_and(|generation| generation < 0) {
        errors.push(FieldError::invalid(
            "metadata.generation",
            metadata.get("generation").cloned().unwrap_or_default(),
            "must be greater than or equal to 0",
        ));
    }
    labels(metadata, &mut errors);
    annotations(metadata, &mut errors);
    finalizers(metadata, &mut errors);
    owner_references(metadata, &mut errors);
    errors
}

/// What is wrong with the metadata of an object inside another one: its labels and annotations.
pub(crate) fn embedded_errors(metadata: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    labels(metadata, &mut errors);
    annotations(metadata, &mut errors);
    errors
}

fn labels(metadata: &Value, errors: &mut Vec<FieldError>) {
    for (key, value) in metadata.get("labels").and_then(Value::as_object).into_iter().flatten() {
        for detail in qualified_name_errors(key) {
            let detail = detail.replace("a qualified name must", "a valid label key must");
            errors.push(FieldError::invalid("metadata.labels", key.as_str(), detail));
        }
        let value = value.as_str().unwrap_or_default();
        for detail in label_value_errors(value) {
            errors.push(FieldError::invalid("metadata.labels", value, detail));
        }
    }
}

fn annotations(metadata: &Value, errors: &mut Vec<FieldError>) {
    let mut size = 0;
    for (key, value) in metadata.get("annotations").and_then(Value::as_object).into_iter().flatten() {
        for detail in qualified_name_errors(&key.to_lowercase()) {
            errors.push(FieldError::invalid("metadata.annotations", key.as_str(), detail));
        }
        size += key.len() + value.as_str().map_or(0, str::len);
    }
    if size > MAX_ANNOTATIONS {
        errors.push(FieldError::too_long("metadata.annotations", MAX_ANNOTATIONS as u64));
    }
}

fn finalizers(metadata: &Value, errors: &mut Vec<FieldError>) {
    let list = metadata.get("finalizers").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    for finalizer in list {
        let name = finalizer.as_str().unwrap_or_default();
        for detail in qualified_name_errors(name) {
            errors.push(FieldError::invalid("metadata.finalizers", name, detail));
        }
    }
    if ["orphan", "foregroundDeletion"].iter().all(|name| list.iter().any(|finalizer| finalizer == name)) {
        errors.push(FieldError::invalid(
            "metadata.finalizers",
            Value::Array(list.to_vec()),
            "finalizer orphan and foregroundDeletion cannot be both set",
        ));
    }
}

fn owner_references(metadata: &Value, errors: &mut Vec<FieldError>) {
    let mut controller: Option<String> = None;
    for owner in metadata.get("ownerReferences").and_then(Value::as_array).into_iter().flatten() {
        let path = "metadata.ownerReferences";
        let text = |name: &str| owner.get(name).and_then(Value::as_str).unwrap_or_default();
        if text("apiVersion").rsplit('/').next().unwrap_or_default().is_empty() {
            errors.push(FieldError::invalid(
                format!("{path}.apiVersion"),
                text("apiVersion"),
                "version must not be empty",
            ));
        }
        for name in ["kind", "name", "uid"] {
            if text(name).is_empty() {
                errors.push(FieldError::invalid(format!("{path}.{name}"), "", "must not be empty"));
            }
        }
        if (text("apiVersion"), text("kind")) == ("v1", "Event") {
            errors.push(FieldError::invalid(path, owner.clone(), "/v1, Kind=Event is disallowed from being an owner"));
        }
        if owner.get("controller").and_then(Value::as_bool) == Some(true) {
            let this = format!("{}/{}", text("kind"), text("name"));
            match &controller {
                None => controller = Some(this),
                Some(first) => errors.push(FieldError::invalid(
                    "metadata.ownerReferences",
                    metadata.get("ownerReferences").cloned().unwrap_or_default(),
                    format!(
                        "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {this}",
                    ),
                )),
            }
        }
    }
}

fn is_label(text: &str) -> bool {
    let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.starts_with(edge) && text.ends_with(edge) && text.chars().all(|c| edge(c) || c == '-')
}

fn is_word(text: &str) -> bool {
    let edge = |c: char| c.is_ascii_alphanumeric();
    text.starts_with(edge) && text.ends_with(edge) && text.chars().all(|c| edge(c) || "-_.".contains(c))
}

fn longer_than(text: &str, max: usize) -> Option<String> {
    (text.len() > max).then(|| format!("must be no more than {max} characters"))
}

/// Why `text` is not a DNS label (RFC 1123).
pub fn label_errors(text: &str) -> Vec<String> {
    let mut errors: Vec<String> = longer_than(text, 63).into_iter().collect();
    if !is_label(text) {
        errors.push(
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end \
             with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
             '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
                .to_owned(),
        );
    }
    errors
}

/// Why `text` is not a DNS label that begins with a letter (RFC 1035).
pub fn rfc1035_label_errors(text: &str) -> Vec<String> {
    let mut errors: Vec<String> = longer_than(text, 63).into_iter().collect();
    if !is_label(text) || !text.starts_with(|c: char| c.is_ascii_lowercase()) {
        errors.push(
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic \
             character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation \
             is '[a-z]([-a-z0-9]*[a-z0-9])?')"
                .to_owned(),
        );
    }
    errors
}

/// Why `text` is not a DNS subdomain (RFC 1123).
pub fn subdomain_errors(text: &str) -> Vec<String> {
    let mut errors: Vec<String> = longer_than(text, 253).into_iter().collect();
    if !text.split('.').all(is_label) {
        errors.push(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must \
             start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
             '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
                .to_owned(),
        );
    }
    errors
}

/// Why `text` cannot be a part of a path, which the names of all objects are.
pub(crate) fn path_segment_errors(text: &str) -> Vec<String> {
    if text == "." || text == ".." {
        return vec![format!("may not be {}", quote(text).replace('"', "'"))];
    }
    ["/", "%"].iter().filter(|c| text.contains(**c)).map(|c| format!("may not contain '{c}'")).collect()
}

/// Why `text` is not a label's or annotation's key: a word, with an optional DNS subdomain and `/` in front.
pub fn qualified_name_errors(text: &str) -> Vec<String> {
    let word_rule = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
                     alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
                     '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
    let mut errors = Vec::new();
    let name = match text.split_once('/') {
        None => text,
        Some((_, rest)) if rest.contains('/') => {
            return vec![format!(
                "a qualified name {word_rule} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
        Some((prefix, name)) => {
            if prefix.is_empty() {
                errors.push("prefix part must be non-empty".to_owned());
            } else {
                errors.extend(subdomain_errors(prefix).into_iter().map(|error| format!("prefix part {error}")));
            }
            name
        }
    };
    if name.is_empty() {
        errors.push("name part must be non-empty".to_owned());
    } else {
        errors.extend(longer_than(name, 63).map(|error| format!("name part {error}")));
    }
    if !is_word(name) {
        errors.push(format!("name part {word_rule}"));
    }
    errors
}

/// Why `text` is not a label's value: empty, or a word of at most 63 bytes.
pub fn label_value_errors(text: &str) -> Vec<String> {
    let mut errors: Vec<String> = longer_than(text, 63).into_iter().collect();
    if !text.is_empty() && !is_word(text) {
        errors.push(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start \
             and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for \
             validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
                .to_owned(),
        );
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn paths(metadata: Value, namespaced: bool) -> Vec<String> {
        validate_object_meta(&metadata, namespaced).into_iter().map(|error| error.path).collect()
    }

    #[test]
    fn good_metadata_passes() {
        let metadata = json!({
            "name": "a.b-c", "namespace": "default",
            "labels": {"app": "x", "example.com/y": ""},
            "annotations": {"Example.com/Note": "any thing"},
            "finalizers": ["example.com/f"],
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "1", "controller": true}],
        });
        assert_eq!(validate_object_meta(&metadata, true), vec![]);
    }

    #[test]
    fn bad_metadata_is_named() {
        let table = [
            (json!({}), false, "metadata.name"),
            (json!({"name": "A"}), false, "metadata.name"),
            (json!({"name": "a", "generateName": "B-"}), false, "metadata.generateName"),
            (json!({"name": "a"}), true, "metadata.namespace"),
            (json!({"name": "a", "namespace": "n"}), false, "metadata.namespace"),
            (json!({"name": "a", "labels": {"a b": "x"}}), false, "metadata.labels"),
            (json!({"name": "a", "labels": {"a": "x y"}}), false, "metadata.labels"),
            (json!({"name": "a", "labels": {"a": "x".repeat(64)}}), false, "metadata.labels"),
            (json!({"name": "a", "annotations": {"/b": ""}}), false, "metadata.annotations"),
            (json!({"name": "a", "annotations": {"b": "x".repeat(MAX_ANNOTATIONS)}}), false, "metadata.annotations"),
            (json!({"name": "a", "finalizers": ["a/b/c"]}), false, "metadata.finalizers"),
            (json!({"name": "a", "generation": -1}), false, "metadata.generation"),
            (
                json!({"name": "a", "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p"}]}),
                false,
                "metadata.ownerReferences.uid",
            ),
            (
                json!({"name": "a", "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "1", "controller": true},
                    {"apiVersion": "v1", "kind": "Pod", "name": "q", "uid": "2", "controller": true},
                ]}),
                false,
                "metadata.ownerReferences",
            ),
        ];
        for (metadata, namespaced, path) in table {
            assert_eq!(paths(metadata.clone(), namespaced), vec![path.to_owned()], "{metadata}");
        }
    }

    #[test]
    fn kinds_have_their_name_rules() {
        let table = [
            ("", "Namespace", "a.b", false),
            ("", "Service", "1a", true),
            ("", "Service", "a.b", false),
            ("", "Service", "a1", true),
            ("rbac.authorization.k8s.io", "Role", "system:node", true),
            ("rbac.authorization.k8s.io", "Role", "a/b", false),
            ("", "Pod", "1.a", true),
        ];
        for (group, kind, name, good) in table {
            assert_eq!(NameRule::of(group, kind).check(name).is_empty(), good, "{kind} {name}");
        }
    }
}
