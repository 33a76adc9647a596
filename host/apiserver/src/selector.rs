//! Label and field selectors.

use crate::labels::{self, Requirement};
use crate::status::Status;
use crate::store::Object;
use serde_json::Value;

/// What a list or a watch is narrowed to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selector {
    labels: Vec<Requirement>,
    fields: Vec<FieldRequirement>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct FieldRequirement {
    field: String,
    equal: bool,
    value: String,
}

impl Selector {
    /// Parses both selectors. `selectable` are the fields that may be selected by, besides name and namespace.
    /// A `plain` kind never had any of its own, and is refused in other words.
    pub fn parse(
        labels: Option<&str>,
        fields: Option<&str>,
        selectable: &[String],
        plain: bool,
    ) -> Result<Selector, Status> {
        let labels = labels::parse(labels.unwrap_or_default()).map_err(Status::bad_request)?;
        let fields = parse_fields(fields.unwrap_or_default())?;
        for requirement in &fields {
            let known = matches!(requirement.field.as_str(), "metadata.name" | "metadata.namespace")
                || selectable.contains(&requirement.field);
            if !known {
                let field = &requirement.field;
                return Err(Status::bad_request(if plain {
                    format!("{field:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"")
                } else {
                    format!("field label not supported: {field}")
                }));
            }
        }
        Ok(Selector { labels, fields })
    }

    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    pub fn matches(&self, object: &Object) -> bool {
        self.labels.iter().all(|requirement| requirement.matches(&object.meta.labels)) && self.matches_fields(object)
    }

    fn matches_fields(&self, object: &Object) -> bool {
        let mut parsed: Option<Value> = None;
        self.fields.iter().all(|requirement| {
            let equal = match requirement.field.as_str() {
                "metadata.name" => *object.key.name == *requirement.value,
                "metadata.namespace" => *object.key.namespace == *requirement.value,
                field => {
                    field_text(parsed.get_or_insert_with(|| object.value_without_managed_fields()), field)
                        == requirement.value
                }
            };
            equal == requirement.equal
        })
    }
}

/// The value at a dotted path as text; empty when absent, as Kubernetes' field sets have it.
fn field_text(object: &Value, path: &str) -> String {
    let mut at = object;
    for part in path.split('.').filter(|part| !part.is_empty()) {
        match at.get(part) {
            Some(next) => at = next,
            None if path == "spec.unschedulable" || path == "spec.hostNetwork" => return String::from("false"),
            None => return String::new(),
        }
    }
    match at {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn parse_fields(text: &str) -> Result<Vec<FieldRequirement>, Status> {
    let mut out = Vec::new();
    // A backslash keeps `,` and `=` in a value.
    let mut terms = vec![String::new()];
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => {
                if let Some(term) = terms.last_mut() {
                    term.push(c);
                    term.extend(chars.next());
                }
            }
            ',' => terms.push(String::new()),
            c => {
                if let Some(term) = terms.last_mut() {
                    term.push(c);
                }
            }
        }
    }
    for term in terms.iter().filter(|term| !term.is_empty()) {
        let invalid = || Status::bad_request(format!("invalid selector: '{text}'; can't understand '{term}'"));
        let at = term.find('=').ok_or_else(invalid)?;
        let (field, value) = term.split_at(at);
        let value = value.strip_prefix("==").or_else(|| value.strip_prefix('=')).unwrap_or_default();
        let (field, equal) = match field.strip_suffix('!') {
            Some(field) => (field, false),
            None => (field, true),
        };
        let mut unescaped = String::new();
        let mut chars = value.chars();
        while let Some(c) = chars.next() {
            unescaped.push(if c == '\\' { chars.next().ok_or_else(invalid)? } else { c });
        }
        out.push(FieldRequirement { field: field.trim().trim_start_matches('.').to_owned(), equal, value: unescaped });
    }
    Ok(out)
}

/// Whether a set of labels matches a selector as objects write it (`matchLabels`, `matchExpressions`), for the few places
/// where a kind's behaviour needs it.
pub(crate) fn text_of(selector: &Value) -> String {
    let mut parts = Vec::new();
    let labels = selector.get("matchLabels").and_then(Value::as_object);
    for (key, value) in labels.into_iter().flatten() {
        parts.push(format!("{key}={}", value.as_str().unwrap_or_default()));
    }
    for expression in selector.get("matchExpressions").and_then(Value::as_array).into_iter().flatten() {
        let key = expression.get("key").and_then(Value::as_str).unwrap_or_default();
        let values = expression.get("values").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let values = values.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(",");
        match expression.get("operator").and_then(Value::as_str) {
            Some("In") => parts.push(format!("{key} in ({values})")),
            Some("NotIn") => parts.push(format!("{key} notin ({values})")),
            Some("Exists") => parts.push(key.to_owned()),
            Some("DoesNotExist") => parts.push(format!("!{key}")),
            _ => {}
        }
    }
    parts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Draft;
    use serde_json::json;

    fn matches(labels: &str, fields: &str) -> bool {
        let object = Draft::new(
            &json!({"metadata": {"name": "n", "namespace": "s", "labels": {"app": "web", "tier": "1", "x.io/y": ""}},
            "status": {"phase": "Running"}, "spec": {}}),
        )
        .seal(1);
        let selectable = ["status.phase".to_owned(), "spec.unschedulable".to_owned()];
        Selector::parse(Some(labels), Some(fields), &selectable, false).unwrap().matches(&object)
    }

    #[test]
    fn labels() {
        for yes in [
            "",
            "app=web",
            "app==web,tier=1",
            "app in (web, db)",
            "app notin (db)",
            "other notin (db)",
            "app",
            "!other",
            "x.io/y",
            "x.io/y=",
            "tier>0",
            "tier<2",
            "app!=db",
            "other!=db",
        ] {
            assert!(matches(yes, ""), "{yes}");
        }
        for no in ["app=db", "app in (db)", "app notin (web)", "!app", "other", "tier>1", "app!=web", "app=web,other"] {
            assert!(!matches(no, ""), "{no}");
        }
        for bad in ["app in web", "a b", "in (x", "=x", "a=b c", "tier>x", "!"] {
            assert!(Selector::parse(Some(bad), None, &[], false).is_err(), "{bad}");
        }
    }

    #[test]
    fn fields() {
        assert!(matches("", "metadata.name=n,metadata.namespace=s"));
        assert!(matches("", "status.phase!=Failed,status.phase==Running"));
        assert!(matches("", "spec.unschedulable=false"));
        assert!(!matches("", "metadata.name!=n"));
        assert!(Selector::parse(None, Some("spec.x=1"), &[], true).is_err());
        assert!(Selector::parse(None, Some("nonsense"), &[], true).is_err());
        let escaped = parse_fields("a=b\\,c\\=d,e!=f").unwrap();
        assert_eq!(escaped[0].value, "b,c=d");
        assert!(!escaped[1].equal);
    }
}
