//! CustomResourceDefinitions themselves: defaults and validation.

use super::Schema;
use super::error::{FieldError, join};
use super::meta::{rfc1035_label_errors, subdomain_errors};
use serde_json::{Map, Value};

/// The types a printer column may have.
const COLUMN_TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];

/// Fills in what Kubernetes fills in: `names.singular`, `names.listKind` and `conversion`.
pub fn default_crd(crd: &mut Value) {
    let Some(spec) = crd.get_mut("spec").and_then(Value::as_object_mut) else { return };
    if let Some(names) = spec.get_mut("names").and_then(Value::as_object_mut)
        && let Some(kind) = names.get("kind").and_then(Value::as_str).map(str::to_owned)
    {
        let missing =
            |names: &Map<String, Value>, name: &str| names.get(name).and_then(Value::as_str).is_none_or(str::is_empty);
        if missing(names, "singular") {
            names.insert("singular".to_owned(), kind.to_lowercase().into());
        }
        if missing(names, "listKind") {
            names.insert("listKind".to_owned(), format!("{kind}List").into());
        }
    }
    if spec.get("conversion").is_none_or(Value::is_null) {
        spec.insert("conversion".to_owned(), serde_json::json!({"strategy": "None"}));
    }
}

/// Validates a CustomResourceDefinition that has its defaults ([`default_crd`]).
///
/// Checks the names, the versions and their schemas (structural, CEL compiles). Metadata is checked by
/// [`super::validate_object_meta`].
pub fn validate_crd(crd: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let empty = Value::Object(Map::new());
    let spec = crd.get("spec").unwrap_or(&empty);
    let group = text(spec, "group");
    if group.is_empty() {
        errors.push(FieldError::required("spec.group", ""));
    } else {
        let details = subdomain_errors(group);
        if !details.is_empty() {
            errors.push(FieldError::invalid("spec.group", group, details.join(",")));
        } else if !group.contains('.') {
            errors.push(FieldError::invalid("spec.group", group, "should be a domain with at least one dot"));
        }
    }
    match text(spec, "scope") {
        "Cluster" | "Namespaced" => {}
        "" => errors.push(FieldError::required("spec.scope", "")),
        other => errors.push(FieldError::not_supported("spec.scope", other, ["Cluster", "Namespaced"])),
    }
    if is(spec, "preserveUnknownFields") {
        errors.push(FieldError::invalid("spec.preserveUnknownFields", true, "must be false"));
    }
    names(spec.get("names").unwrap_or(&empty), &mut errors);
    let plural = text(spec.get("names").unwrap_or(&empty), "plural");
    let name = text(crd.get("metadata").unwrap_or(&empty), "name");
    if name != format!("{plural}.{group}") {
        errors.push(FieldError::invalid("metadata.name", name, "must be spec.names.plural+\".\"+spec.group"));
    }
    versions(spec, &mut errors);
    conversion(spec, &mut errors);
    stored_versions(crd, spec, &mut errors);
    errors
}

/// Additional checks for an update: what cannot change, and no stored version may vanish.
pub fn validate_crd_update(crd: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = validate_crd(crd);
    // That the name fits the group is asked once, when both are new.
    errors.retain(|error| error.path != "metadata.name");
    let at = |object: &Value, pointer: &str| object.pointer(pointer).cloned().unwrap_or_default();
    for (pointer, path) in [
        ("/spec/group", "spec.group"),
        ("/spec/scope", "spec.scope"),
        ("/spec/names/kind", "spec.names.kind"),
        ("/spec/names/plural", "spec.names.plural"),
    ] {
        let (new, former) = (at(crd, pointer), at(old, pointer));
        if new != former && !former.is_null() {
            errors.push(FieldError::invalid(path, new, "field is immutable"));
        }
    }
    errors
}

fn text<'a>(object: &'a Value, name: &str) -> &'a str {
    object.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn list<'a>(object: &'a Value, name: &str) -> &'a [Value] {
    object.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn names(names: &Value, errors: &mut Vec<FieldError>) {
    for (name, folded) in [("plural", false), ("singular", false), ("kind", true), ("listKind", true)] {
        let path = format!("spec.names.{name}");
        let value = text(names, name);
        if value.is_empty() {
            errors.push(FieldError::required(path, ""));
            continue;
        }
        let details = rfc1035_label_errors(&if folded { value.to_lowercase() } else { value.to_owned() });
        if !details.is_empty() {
            let prefix = if folded { "may have mixed case, but should otherwise match: " } else { "" };
            errors.push(FieldError::invalid(path, value, format!("{prefix}{}", details.join(","))));
        }
    }
    for word in ["shortNames", "categories"] {
        for (index, name) in list(names, word).iter().enumerate() {
            let name = name.as_str().unwrap_or_default();
            let details = rfc1035_label_errors(name);
            if !details.is_empty() {
                errors.push(FieldError::invalid(format!("spec.names.{word}[{index}]"), name, details.join(",")));
            }
        }
    }
    let kind = text(names, "kind");
    if !kind.is_empty() && kind == text(names, "listKind") {
        errors.push(FieldError::invalid("spec.names.listKind", kind, "kind and listKind may not be the same"));
    }
}

fn versions(spec: &Value, errors: &mut Vec<FieldError>) {
    let versions = list(spec, "versions");
    let short: Vec<Value> = versions.iter().map(|version| version.get("name").cloned().unwrap_or_default()).collect();
    let mut seen = std::collections::HashSet::new();
    if versions.iter().any(|version| !seen.insert(text(version, "name"))) {
        errors.push(FieldError::invalid("spec.versions", short.clone(), "must contain unique version names"));
    }
    let storage = versions.iter().filter(|version| is(version, "storage")).count();
    if storage != 1 {
        errors.push(FieldError::invalid(
            "spec.versions",
            short,
            "must have exactly one version marked as storage version",
        ));
    }
    for (index, version) in versions.iter().enumerate() {
        let path = format!("spec.versions[{index}]");
        let details = rfc1035_label_errors(text(version, "name"));
        if !details.is_empty() {
            errors.push(FieldError::invalid(join(&path, "name"), text(version, "name"), details.join(",")));
        }
        for word in ["served", "storage"] {
            if !version.get(word).is_some_and(Value::is_boolean) {
                errors.push(FieldError::required(join(&path, word), ""));
            }
        }
        if text(version, "deprecationWarning").len() > 256 {
            errors.push(FieldError::too_long(join(&path, "deprecationWarning"), 256));
        }
        columns(version, &path, errors);
        scale(version, &path, errors);
        match version.pointer("/schema/openAPIV3Schema") {
            None => errors.push(FieldError::required(join(&path, "schema.openAPIV3Schema"), "schemas are required")),
            Some(schema) => {
                if let Err(refused) = Schema::compile(schema) {
                    errors.extend(refused.errors.into_iter().map(|error| error.under(&join(&path, "schema"))));
                }
                selectable(version, schema, &path, errors);
            }
        }
    }
}

fn is(object: &Value, name: &str) -> bool {
    object.get(name).and_then(Value::as_bool).unwrap_or(false)
}

fn columns(version: &Value, path: &str, errors: &mut Vec<FieldError>) {
    for (index, column) in list(version, "additionalPrinterColumns").iter().enumerate() {
        let path = format!("{path}.additionalPrinterColumns[{index}]");
        if text(column, "name").is_empty() {
            errors.push(FieldError::required(join(&path, "name"), ""));
        }
        let ty = text(column, "type");
        let one_of = format!("must be one of {}", COLUMN_TYPES.join(","));
        if ty.is_empty() {
            errors.push(FieldError::required(join(&path, "type"), one_of));
        } else if !COLUMN_TYPES.contains(&ty) {
            errors.push(FieldError::invalid(join(&path, "type"), ty, one_of));
        }
        let json_path = text(column, "jsonPath");
        let opened = json_path.matches('[').count();
        if json_path.is_empty() {
            errors.push(FieldError::required(join(&path, "JSONPath"), ""));
        } else if opened != json_path.matches(']').count() {
            errors.push(FieldError::invalid(join(&path, "jsonPath"), json_path, "unterminated array"));
        }
    }
}

fn scale(version: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let Some(scale) = version.pointer("/subresources/scale") else { return };
    for (name, prefix, needed) in [
        ("specReplicasPath", ".spec.", true),
        ("statusReplicasPath", ".status.", true),
        ("labelSelectorPath", ".s", false),
    ] {
        let path = format!("{path}.subresources.scale.{name}");
        match text(scale, name) {
            "" if needed => errors.push(FieldError::required(path, "")),
            "" => {}
            value if !value.starts_with(prefix) => errors.push(FieldError::invalid(
                path,
                value,
                format!("should be a json path under {}", prefix.trim_end_matches('.')),
            )),
            _ => {}
        }
    }
}

fn selectable(version: &Value, schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    for (index, field) in list(version, "selectableFields").iter().enumerate() {
        let path = format!("{path}.selectableFields[{index}].jsonPath");
        let json_path = text(field, "jsonPath");
        if json_path.is_empty() {
            errors.push(FieldError::required(path, ""));
            continue;
        }
        let mut place = Some(schema);
        for name in json_path.trim_start_matches('.').split('.') {
            place = place.and_then(|schema| schema.get("properties")).and_then(|fields| fields.get(name));
        }
        let ty = place.map_or("", |schema| text(schema, "type"));
        if !["string", "boolean", "integer"].contains(&ty) {
            errors.push(FieldError::invalid(
                path,
                json_path,
                "must point to a field of type string, boolean or integer",
            ));
        }
    }
}

fn conversion(spec: &Value, errors: &mut Vec<FieldError>) {
    let Some(conversion) = spec.get("conversion").filter(|conversion| !conversion.is_null()) else { return };
    match text(conversion, "strategy") {
        "None" => {
            if conversion.get("webhook").is_some_and(|webhook| !webhook.is_null()) {
                errors.push(FieldError::forbidden(
                    "spec.conversion.webhook",
                    "should not be set when strategy is not set to Webhook",
                ));
            }
        }
        "Webhook" => {
            let config = conversion.pointer("/webhook/clientConfig");
            if config.is_none_or(Value::is_null) {
                errors.push(FieldError::required(
                    "spec.conversion.webhook.clientConfig",
                    "required when strategy is set to Webhook",
                ));
            }
        }
        "" => errors.push(FieldError::required("spec.conversion.strategy", "")),
        other => errors.push(FieldError::not_supported("spec.conversion.strategy", other, ["None", "Webhook"])),
    }
}

fn stored_versions(crd: &Value, spec: &Value, errors: &mut Vec<FieldError>) {
    let Some(stored) = crd.pointer("/status/storedVersions").and_then(Value::as_array) else { return };
    for (index, name) in stored.iter().enumerate() {
        if !list(spec, "versions").iter().any(|version| version.get("name") == Some(name)) {
            let shown = name.as_str().unwrap_or_default();
            errors.push(FieldError::invalid(
                format!("status.storedVersions[{index}]"),
                name.clone(),
                format!(
                    "missing from spec.versions; {shown} was previously a storage version, and must remain in \
                     spec.versions until a storage migration ensures no data remains persisted in {shown} and removes \
                     {shown} from status.storedVersions"
                ),
            ));
        }
    }
}
