//! What two servers cannot agree on (uids, times, revisions) in words that they can, and what differs then.

use serde_json::{Map, Value};
use std::collections::HashMap;

/// The words of one session with one server. The first uid seen is `uid-1` on both sides, and so on.
#[derive(Default)]
pub struct Words {
    uids: HashMap<String, usize>,
    /// Revisions of each object, in the order seen: the same number is the same revision.
    revisions: HashMap<String, Vec<String>>,
    /// Random ends of generated names.
    generated: HashMap<String, usize>,
    /// Text to be replaced wherever it is: what is private to a server.
    pub private: Vec<(String, String)>,
}

impl Words {
    pub fn normal(&mut self, value: &Value) -> Value {
        self.learn(value);
        self.rewrite("", value)
    }

    /// Uids and generated names come from metadata wherever it is.
    fn learn(&mut self, value: &Value) {
        match value {
            Value::Object(fields) => {
                if let Some(metadata) = fields.get("metadata").and_then(Value::as_object) {
                    self.learn_metadata(metadata);
                }
                // In the order of their names: the servers write fields in different orders.
                let mut names: Vec<&String> = fields.keys().collect();
                names.sort();
                names.into_iter().for_each(|name| self.learn(&fields[name]));
            }
            Value::Array(items) => items.iter().for_each(|item| self.learn(item)),
            _ => {}
        }
    }

    fn learn_metadata(&mut self, metadata: &Map<String, Value>) {
        let text = |name: &str| metadata.get(name).and_then(Value::as_str).unwrap_or_default();
        let uid = text("uid");
        if !uid.is_empty() && !self.uids.contains_key(uid) {
            self.uids.insert(uid.to_owned(), self.uids.len() + 1);
        }
        let (base, name) = (text("generateName"), text("name"));
        if !base.is_empty() && name.starts_with(base) && name.len() == base.len() + 5 {
            let next = self.generated.len() + 1;
            self.generated.entry(name.to_owned()).or_insert(next);
        }
    }

    fn revision(&mut self, uid: &str, revision: &str) -> String {
        let seen = self.revisions.entry(uid.to_owned()).or_default();
        let at = seen.iter().position(|own| own == revision).unwrap_or_else(|| {
            seen.push(revision.to_owned());
            seen.len() - 1
        });
        format!("revision-{}", at + 1)
    }

    fn rewrite(&mut self, field: &str, value: &Value) -> Value {
        match value {
            Value::String(text) => self.text(field, text).into(),
            Value::Array(items) => {
                let mut items: Vec<Value> = items.iter().map(|item| self.rewrite(field, item)).collect();
                if field == "managedFields" {
                    // Entries of one second are in the order of their managers, so the order tells the time of day.
                    let word = |entry: &Value, name: &str| entry[name].as_str().unwrap_or_default().to_owned();
                    items.sort_by_key(|entry| {
                        ["manager", "operation", "subresource", "apiVersion"].map(|name| word(entry, name))
                    });
                }
                items.into()
            }
            Value::Object(fields) => {
                let uid = fields.get("uid").and_then(Value::as_str).map(str::to_owned);
                let mut out = Map::new();
                for (name, value) in fields {
                    let new = match (name.as_str(), value) {
                        ("resourceVersion", Value::String(revision)) if !revision.is_empty() => {
                            let word = match &uid {
                                Some(uid) => self.revision(uid, revision),
                                None => String::from("revision"),
                            };
                            word.into()
                        }
                        ("continue", Value::String(token)) if !token.is_empty() => Value::from("token"),
                        // A map from names: keys may be uids or generated names, too.
                        _ => self.rewrite(name, value),
                    };
                    out.insert(self.text("", name), new);
                }
                Value::Object(out)
            }
            other => other.clone(),
        }
    }

    pub fn text(&self, field: &str, text: &str) -> String {
        if let Some(number) = self.uids.get(text) {
            return format!("uid-{number}");
        }
        if is_time(text) {
            return String::from("time");
        }
        let mut text = text.to_owned();
        for (uid, number) in &self.uids {
            if text.contains(uid.as_str()) {
                text = text.replace(uid.as_str(), &format!("uid-{number}"));
            }
        }
        for (name, number) in &self.generated {
            if text.contains(name.as_str()) {
                text = text.replace(name.as_str(), &format!("generated-{number}"));
            }
        }
        for (secret, word) in &self.private {
            text = text.replace(secret.as_str(), word);
        }
        if field == "message" { numbers_of_revisions(&text) } else { text }
    }
}

/// `2026-01-02T03:04:05Z`, with or without a fraction.
fn is_time(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() >= 20
        && bytes.len() <= 30
        && bytes[..19].iter().enumerate().all(|(at, byte)| match at {
            4 | 7 => *byte == b'-',
            10 => *byte == b'T',
            13 | 16 => *byte == b':',
            _ => byte.is_ascii_digit(),
        })
        && bytes.last() == Some(&b'Z')
}

/// Numbers after "resource version: ", "current: " and in parentheses after a revision.
fn numbers_of_revisions(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    for mark in ["resource version: ", "current: ", "match the ResourceVersion in record ("] {
        let Some(at) = rest.find(mark) else { continue };
        let (before, after) = rest.split_at(at + mark.len());
        out.push_str(before);
        if !after.starts_with(|c: char| c.is_ascii_digit()) {
            out.push_str(after);
            return out;
        }
        out.push('N');
        rest = after.trim_start_matches(|c: char| c.is_ascii_digit());
        if let Some(inside) = rest.strip_prefix(" (") {
            out.push_str(" (N");
            rest = inside.trim_start_matches(|c: char| c.is_ascii_digit());
        }
    }
    out.push_str(rest);
    out
}

/// What differs, one line for each place.
pub fn differences(path: &str, embedded: &Value, real: &Value, out: &mut Vec<String>) {
    match (embedded, real) {
        (Value::Object(ours), Value::Object(theirs)) => {
            let mut names: Vec<&String> = ours.keys().chain(theirs.keys()).collect();
            names.sort();
            names.dedup();
            for name in names {
                let at = format!("{path}.{name}");
                match (ours.get(name), theirs.get(name)) {
                    (Some(ours), Some(theirs)) => differences(&at, ours, theirs, out),
                    (Some(ours), None) => out.push(format!("{at}: only embedded: {ours}")),
                    (None, Some(theirs)) => out.push(format!("{at}: only real: {theirs}")),
                    (None, None) => {}
                }
            }
        }
        (Value::Array(ours), Value::Array(theirs)) if ours.len() == theirs.len() => {
            for (index, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
                differences(&format!("{path}[{index}]"), ours, theirs, out);
            }
        }
        (ours, theirs) if ours == theirs => {}
        (ours, theirs) => out.push(format!("{path}:\n      embedded: {ours}\n      real:     {theirs}")),
    }
}

#[test]
fn words_are_the_same_for_the_same() {
    let object = |uid: &str, revision: &str| serde_json::json!({"metadata": {"uid": uid, "resourceVersion": revision, "creationTimestamp": "2026-01-02T03:04:05Z"}});
    let (mut ours, mut theirs) = (Words::default(), Words::default());
    assert_eq!(ours.normal(&object("ours-0001", "7")), theirs.normal(&object("theirs-0001", "90")));
    assert_eq!(ours.normal(&object("ours-0001", "8")), theirs.normal(&object("theirs-0001", "95")));
    assert_ne!(ours.normal(&object("ours-0001", "8")), theirs.normal(&object("theirs-0001", "96")));
    assert_eq!(numbers_of_revisions("too old resource version: 1 (305)"), "too old resource version: N (N)");
    let mut found = Vec::new();
    differences("", &serde_json::json!({"a": [1, {"b": 2}]}), &serde_json::json!({"a": [1, {"b": 3}]}), &mut found);
    assert_eq!(found.len(), 1, "{found:?}");
}
