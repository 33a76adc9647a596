//! Label and field selectors.

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
struct Requirement {
    key: String,
    is: Is,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Is {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Absent,
    Greater(i64),
    Less(i64),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct FieldRequirement {
    field: String,
    equal: bool,
    value: String,
}

impl Selector {
    /// Parses both selectors. `selectable` are the fields that may be selected by, besides name and namespace.
    pub fn parse(labels: Option<&str>, fields: Option<&str>, selectable: &[String]) -> Result<Selector, Status> {
        let labels = parse_labels(labels.unwrap_or_default())
            .map_err(|why| Status::bad_request(format!("unable to parse requirement: {why}")))?;
        let fields = parse_fields(fields.unwrap_or_default())?;
        for requirement in &fields {
            let known = matches!(requirement.field.as_str(), "metadata.name" | "metadata.namespace")
                || selectable.contains(&requirement.field);
            if !known {
                return Err(Status::bad_request(format!("field label not supported: {}", requirement.field)));
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

impl Requirement {
    fn matches(&self, labels: &[(Box<str>, Box<str>)]) -> bool {
        let value = labels.iter().find(|(key, _)| **key == *self.key).map(|(_, value)| &**value);
        let number = || value.and_then(|text| text.parse::<i64>().ok());
        match &self.is {
            Is::In(values) => value.is_some_and(|value| values.iter().any(|own| own == value)),
            Is::NotIn(values) => value.is_none_or(|value| values.iter().all(|own| own != value)),
            Is::Exists => value.is_some(),
            Is::Absent => value.is_none(),
            Is::Greater(than) => number().is_some_and(|number| number > *than),
            Is::Less(than) => number().is_some_and(|number| number < *than),
        }
    }
}

/// Splits at commas outside parentheses.
fn split(text: &str) -> Vec<&str> {
    let mut depth = 0_i32;
    let mut start = 0;
    let mut parts = Vec::new();
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text.get(start..at).unwrap_or_default());
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(text.get(start..).unwrap_or_default());
    parts
}

fn parse_labels(text: &str) -> Result<Vec<Requirement>, String> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    split(text).into_iter().map(|part| parse_requirement(part.trim())).collect()
}

fn parse_requirement(text: &str) -> Result<Requirement, String> {
    let make = |key: &str, is: Is| {
        let key = key.trim();
        check_key(key)?;
        match &is {
            Is::In(values) | Is::NotIn(values) => values.iter().try_for_each(|value| check_value(value))?,
            _ => {}
        }
        Ok(Requirement { key: key.to_owned(), is })
    };
    if let Some(key) = text.strip_prefix('!') {
        return make(key, Is::Absent);
    }
    if let Some((key, value)) = text.split_once("!=") {
        return make(key, Is::NotIn(vec![value.trim().to_owned()]));
    }
    if let Some((key, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        return make(key, Is::In(vec![value.trim().to_owned()]));
    }
    let number = |value: &str| {
        value.trim().parse().map_err(|_| format!("for 'Gt', 'Lt' operators, the value must be an integer: {value:?}"))
    };
    if let Some((key, value)) = text.split_once('>') {
        return make(key, Is::Greater(number(value)?));
    }
    if let Some((key, value)) = text.split_once('<') {
        return make(key, Is::Less(number(value)?));
    }
    if let Some((left, set)) = text.split_once('(') {
        let set = set.strip_suffix(')').ok_or_else(|| format!("found '', expected: ')' in {text:?}"))?;
        let values: Vec<String> = set.split(',').map(|value| value.trim().to_owned()).collect();
        let mut words = left.split_whitespace();
        return match (words.next(), words.next(), words.next()) {
            (Some(key), Some("in"), None) => make(key, Is::In(values)),
            (Some(key), Some("notin"), None) => make(key, Is::NotIn(values)),
            _ => Err(format!("{text:?}: expected: in, notin")),
        };
    }
    if text.split_whitespace().count() > 1 {
        return Err(format!("{text:?}: found more than a key, expected: in, notin, =, ==, !=, gt, lt"));
    }
    make(text, Is::Exists)
}

fn check_key(key: &str) -> Result<(), String> {
    let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    let good = !name.is_empty()
        && name.len() <= 63
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
        && prefix.is_none_or(|prefix| {
            !prefix.is_empty() && prefix.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.'))
        });
    if good {
        Ok(())
    } else {
        Err(format!(
            "<nil>: Invalid value: {key:?}: name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character"
        ))
    }
}

fn check_value(value: &str) -> Result<(), String> {
    let good = value.len() <= 63 && value.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
    if good {
        Ok(())
    } else {
        Err(format!(
            "values: Invalid value: {value:?}: a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.'"
        ))
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
        let invalid = || Status::bad_request(format!("invalid selector: {text:?}; can't understand {term:?}"));
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
        Selector::parse(Some(labels), Some(fields), &selectable).unwrap().matches(&object)
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
            assert!(Selector::parse(Some(bad), None, &[]).is_err(), "{bad}");
        }
    }

    #[test]
    fn fields() {
        assert!(matches("", "metadata.name=n,metadata.namespace=s"));
        assert!(matches("", "status.phase!=Failed,status.phase==Running"));
        assert!(matches("", "spec.unschedulable=false"));
        assert!(!matches("", "metadata.name!=n"));
        assert!(Selector::parse(None, Some("spec.x=1"), &[]).is_err());
        assert!(Selector::parse(None, Some("nonsense"), &[]).is_err());
        let escaped = parse_fields("a=b\\,c\\=d,e!=f").unwrap();
        assert_eq!(escaped[0].value, "b,c=d");
        assert!(!escaped[1].equal);
    }
}
