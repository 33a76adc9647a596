//! Tables: what `kubectl get` prints. Columns come from a definition's printer columns or, for built-in kinds, from code.

mod builtin;
mod jsonpath;

use jiff::Timestamp;
use jsonpath::JsonPath;
use serde_json::{Value, json};

/// How one kind is shown.
pub(crate) enum Columns {
    Custom(Vec<Column>),
    BuiltIn(&'static builtin::BuiltIn),
}

/// A column of a custom resource.
pub(crate) struct Column {
    name: String,
    kind: String,
    format: String,
    description: String,
    priority: i64,
    path: Option<JsonPath>,
}

const NAME_DESCRIPTION: &str = "Name must be unique within a namespace. Is required when creating resources, although some resources may allow a client to request the generation of an appropriate name automatically. Name is primarily intended for creation idempotence and configuration definition. Cannot be updated. More info: https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names";
const AGE_DESCRIPTION: &str = "CreationTimestamp is the time at which the object was created, in UTC.";

impl Columns {
    pub fn built_in(group: &str, plural: &str) -> Columns {
        Columns::BuiltIn(builtin::of(group, plural))
    }

    /// From `additionalPrinterColumns`. Without any, the age is shown.
    pub fn custom(columns: Option<&Value>) -> Columns {
        let text = |column: &Value, name: &str| column.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let list = columns.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let mut columns: Vec<Column> = list
            .iter()
            .map(|column| Column {
                name: text(column, "name"),
                kind: text(column, "type"),
                format: text(column, "format"),
                description: match text(column, "description") {
                    none if none.is_empty() => {
                        format!("Custom resource definition column (in JSONPath format): {}", text(column, "jsonPath"))
                    }
                    some => some,
                },
                priority: column.get("priority").and_then(Value::as_i64).unwrap_or(0),
                path: JsonPath::parse(&text(column, "jsonPath")),
            })
            .collect();
        if columns.is_empty() {
            columns.push(Column {
                name: String::from("Age"),
                kind: String::from("date"),
                format: String::new(),
                description: String::from(AGE_DESCRIPTION),
                priority: 0,
                path: JsonPath::parse(".metadata.creationTimestamp"),
            });
        }
        Columns::Custom(columns)
    }

    /// `columnDefinitions`.
    pub fn definitions(&self) -> Value {
        let definition = |name: &str, kind: &str, format: &str, description: &str, priority: i64| json!({"name": name, "type": kind, "format": format, "description": description, "priority": priority});
        let name = definition("Name", "string", "name", NAME_DESCRIPTION, 0);
        let rest: Vec<Value> = match self {
            Columns::Custom(columns) => {
                columns.iter().map(|c| definition(&c.name, &c.kind, &c.format, &c.description, c.priority)).collect()
            }
            Columns::BuiltIn(built_in) => {
                let columns = built_in.columns.iter();
                let columns = columns.map(|&(name, kind, priority)| {
                    let format = if name == "Name" { "name" } else { "" };
                    definition(name, kind, format, "", priority)
                });
                if built_in.named {
                    return columns.collect();
                }
                columns.collect()
            }
        };
        std::iter::once(name).chain(rest).collect()
    }

    /// The cells of an object.
    pub fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let name = object.pointer("/metadata/name").cloned().unwrap_or_default();
        match self {
            Columns::Custom(columns) => {
                std::iter::once(name).chain(columns.iter().map(|column| column.cell(object, now))).collect()
            }
            Columns::BuiltIn(built_in) if built_in.named => (built_in.cells)(object, now),
            Columns::BuiltIn(built_in) => std::iter::once(name).chain((built_in.cells)(object, now)).collect(),
        }
    }
}

impl Column {
    fn cell(&self, object: &Value, now: Timestamp) -> Value {
        let Some(path) = &self.path else { return Value::Null };
        let found = path.find(object);
        let Some(first) = found.first() else { return Value::Null };
        match self.kind.as_str() {
            "integer" => first.as_i64().or_else(|| first.as_f64().map(|f| f as i64)).map_or(Value::Null, Value::from),
            "number" => first.as_f64().map_or(Value::Null, Value::from),
            "boolean" => first.as_bool().map_or(Value::Null, Value::from),
            "date" => match first.as_str() {
                Some(text) if text.parse::<Timestamp>().is_err() => Value::from("<invalid>"),
                Some(text) => Value::from(age(text, now)),
                None => Value::Null,
            },
            _ => Value::from(plain(first)),
        }
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::from("<nil>"),
        other => other.to_string(),
    }
}

/// How long ago something was, for people.
pub(crate) fn age(timestamp: &str, now: Timestamp) -> String {
    match timestamp.parse::<Timestamp>() {
        Ok(then) => human_duration(now.duration_since(then).as_secs()),
        Err(_) => String::from("<unknown>"),
    }
}

/// Kubernetes' rough durations: two units at most, fewer the longer it is.
fn human_duration(seconds: i64) -> String {
    if seconds < -1 {
        return String::from("<invalid>");
    }
    let two = |first: i64, unit: &str, rest: i64, small: &str| {
        if rest == 0 { format!("{first}{unit}") } else { format!("{first}{unit}{rest}{small}") }
    };
    let seconds = seconds.max(0);
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    match () {
        () if seconds < 120 => format!("{seconds}s"),
        () if minutes < 10 => two(minutes, "m", seconds % 60, "s"),
        () if minutes < 180 => format!("{minutes}m"),
        () if hours < 8 => two(hours, "h", minutes % 60, "m"),
        () if hours < 48 => format!("{hours}h"),
        () if hours < 192 => two(hours / 24, "d", hours % 24, "h"),
        () if hours < 24 * 365 * 2 => format!("{}d", hours / 24),
        () if hours < 24 * 365 * 8 => two(hours / 24 / 365, "y", hours / 24 % 365, "d"),
        () => format!("{}y", hours / 24 / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (seconds, text) in [
            (-5, "<invalid>"),
            (0, "0s"),
            (119, "119s"),
            (125, "2m5s"),
            (600, "10m"),
            (7 * 3600 + 60, "7h1m"),
            (47 * 3600, "47h"),
            (49 * 3600, "2d1h"),
            (86400 * 30, "30d"),
            (86400 * 365 * 3, "3y"),
        ] {
            assert_eq!(human_duration(seconds), text);
        }
    }

    #[test]
    fn custom_columns() {
        let columns = Columns::custom(Some(&json!([
            {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
            {"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].status"},
            {"name": "N", "type": "integer", "jsonPath": ".spec.n", "priority": 1},
            {"name": "Missing", "type": "boolean", "jsonPath": ".spec.none"},
            {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}])));
        let object = json!({"metadata": {"name": "x", "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"n": 3},
            "status": {"phase": "Up", "conditions": [{"type": "A", "status": "False"}, {"type": "Ready", "status": "True"}]}});
        let now = "2026-01-01T00:00:30Z".parse().unwrap();
        assert_eq!(
            columns.cells(&object, now),
            [json!("x"), json!("Up"), json!("True"), json!(3), json!(null), json!("30s")]
        );
        let definitions = columns.definitions();
        assert_eq!(definitions[3]["priority"], 1);
        assert_eq!(definitions[5]["name"], "Age");
        assert_eq!(Columns::custom(None).definitions()[1]["name"], "Age");
    }

    #[test]
    fn every_built_in_row_has_a_cell_for_each_column() {
        let now = Timestamp::UNIX_EPOCH;
        for kind in crate::schema::builtins() {
            let columns = Columns::built_in(kind.group, kind.plural);
            let definitions = columns.definitions();
            let object = json!({"metadata": {"name": "n"}, "message": "m"});
            let cells = columns.cells(&object, now);
            assert_eq!(definitions.as_array().map(Vec::len), Some(cells.len()), "{} {}", kind.group, kind.plural);
            let names = definitions.as_array().into_iter().flatten().filter(|d| d["name"] == "Name");
            assert_eq!(names.count(), 1, "{} {}", kind.group, kind.plural);
        }
    }
}
