//! JSON values as CEL sees them under a schema: typed by format, field names escaped, map keys untouched.

use super::node::{Additional, Node, Type};
use base64::Engine;
use kube_cel::cel::Value as CelValue;
use kube_cel::cel::objects::{Key, Map};
use serde_json::Value;
use std::collections::HashMap;
use std::sync::Arc;

/// Converts a value. Without a schema everything is taken as it looks.
pub(crate) fn to_cel(node: Option<&Node>, value: &Value) -> CelValue {
    match value {
        Value::Null => CelValue::Null,
        Value::Bool(flag) => CelValue::Bool(*flag),
        Value::Number(number) => {
            let float = || CelValue::Float(number.as_f64().unwrap_or(f64::NAN));
            match node.map(|n| n.ty) {
                Some(Type::Number) => float(),
                _ => match (number.as_i64(), number.as_u64()) {
                    (Some(int), _) => CelValue::Int(int),
                    (None, Some(int)) => CelValue::UInt(int),
                    (None, None) => match number.as_f64() {
                        // `3.0` is an integer where the schema asks for one.
                        Some(whole) if node.is_some_and(|n| n.ty == Type::Integer) && whole.fract() == 0.0 => {
                            CelValue::Int(whole as i64)
                        }
                        _ => float(),
                    },
                },
            }
        }
        Value::String(text) => string(node, text),
        Value::Array(items) => {
            let item_node = node.and_then(|n| n.items.as_deref());
            CelValue::List(Arc::new(items.iter().map(|item| to_cel(item_node, item)).collect()))
        }
        Value::Object(fields) => {
            let is_map = node.is_some_and(|n| !matches!(n.additional, Additional::None));
            let mut map = HashMap::with_capacity(fields.len());
            for (name, field) in fields {
                let key = if is_map { name.clone() } else { escape(name) };
                map.insert(Key::String(Arc::new(key)), to_cel(node.and_then(|n| n.child(name)), field));
            }
            CelValue::Map(Map { map: Arc::new(map) })
        }
    }
}

/// A value as it is: nothing is known of it, and its fields have the names that they have.
pub(crate) fn as_is(value: &Value) -> CelValue {
    match value {
        Value::Array(items) => CelValue::List(Arc::new(items.iter().map(as_is).collect())),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, field)| (Key::String(Arc::new(name.clone())), as_is(field)));
            CelValue::Map(Map { map: Arc::new(fields.collect()) })
        }
        other => to_cel(None, other),
    }
}

fn string(node: Option<&Node>, text: &str) -> CelValue {
    let plain = || CelValue::String(Arc::new(text.to_owned()));
    let Some(node) = node.filter(|n| n.ty == Type::String) else { return plain() };
    match node.checks.as_ref().and_then(|checks| checks.format.as_deref()) {
        Some("date-time") => chrono::DateTime::parse_from_rfc3339(text).map_or_else(|_| plain(), CelValue::Timestamp),
        Some("date") => chrono::DateTime::parse_from_rfc3339(&format!("{text}T00:00:00Z"))
            .map_or_else(|_| plain(), CelValue::Timestamp),
        Some("duration") => duration_nanoseconds(text)
            .map_or_else(plain, |nanoseconds| CelValue::Duration(chrono::Duration::nanoseconds(nanoseconds))),
        Some("byte") => base64::engine::general_purpose::STANDARD
            .decode(text)
            .map_or_else(|_| plain(), |bytes| CelValue::Bytes(Arc::new(bytes))),
        _ => plain(),
    }
}

/// A Go duration (`1h30m`, `-2.5s`, `300ms`, `0`) in nanoseconds.
pub(crate) fn duration_nanoseconds(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total = 0f64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(digits);
        let units = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(units);
        let scale = match unit {
            "ns" => 1.0,
            "us" | "µs" | "μs" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            "m" => 60e9,
            "h" => 3600e9,
            _ => return None,
        };
        total += number.parse::<f64>().ok()? * scale;
        rest = tail;
    }
    if total > i64::MAX as f64 {
        return None;
    }
    Some(if negative { -(total as i64) } else { total as i64 })
}

/// Words of CEL that cannot be names as they are.
const RESERVED: [&str; 21] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// Whether a word is one of CEL's own, and can name nothing.
pub(crate) fn is_reserved(word: &str) -> bool {
    RESERVED.contains(&word)
}

/// A field's name as rules write it (`x-y` is `x__dash__y`).
fn escape(name: &str) -> String {
    if is_reserved(name) {
        return format!("__{name}__");
    }
    if !name.contains("__") && !name.contains(['.', '-', '/']) {
        return name.to_owned();
    }
    name.replace("__", "__underscores__").replace('.', "__dot__").replace('-', "__dash__").replace('/', "__slash__")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_those_of_go() {
        let table = [
            ("1h30m", Some(5_400_000_000_000)),
            ("-2.5s", Some(-2_500_000_000)),
            ("300ms", Some(300_000_000)),
            ("0", Some(0)),
            ("1", None),
            ("", None),
            ("x", None),
            ("1d", None),
        ];
        for (text, nanoseconds) in table {
            assert_eq!(duration_nanoseconds(text), nanoseconds, "{text}");
        }
    }

    #[test]
    fn names_are_escaped() {
        let table = [
            ("namespace", "__namespace__"),
            ("a-b", "a__dash__b"),
            ("a.b/c", "a__dot__b__slash__c"),
            ("a_b", "a_b"),
            ("a__b", "a__underscores__b"),
            ("plain", "plain"),
        ];
        for (name, escaped) in table {
            assert_eq!(escape(name), escaped);
        }
    }
}
