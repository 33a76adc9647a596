//! Reading bodies: JSON and YAML into values, with every key that is there twice reported.

use crate::status::Status;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::cell::RefCell;
use std::fmt;

/// A body that was read.
#[derive(Debug)]
pub(crate) struct Decoded {
    pub value: Value,
    /// The paths of keys that were there twice (`spec.replicas`); the last one won.
    pub duplicates: Vec<String>,
}

/// How deep a body may nest: far above any object, far below the stack.
const DEPTH: usize = 100;

/// Reads JSON.
pub(crate) fn json(bytes: &[u8]) -> Result<Decoded, Status> {
    let state = State::default();
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = Node { state: &state, depth: 0 }.deserialize(&mut deserializer);
    let value = value.and_then(|value| deserializer.end().map(|()| value));
    let value = value.map_err(|error| Status::bad_request(format!("the body is not valid JSON: {error}")))?;
    Ok(Decoded { value, duplicates: state.duplicates.into_inner() })
}

/// Reads YAML, of which JSON is a part.
pub(crate) fn yaml(bytes: &[u8]) -> Result<Decoded, Status> {
    if bytes.trim_ascii_start().first() == Some(&b'{') {
        // JSON is what clients send as YAML; read as JSON it is faster. What is no JSON may still be flow YAML.
        if let Ok(decoded) = json(bytes) {
            return Ok(decoded);
        }
    }
    let text = std::str::from_utf8(bytes).map_err(|_| Status::bad_request("the body is not valid UTF-8"))?;
    let state = State::default();
    let options = serde_saphyr::options! { duplicate_keys: serde_saphyr::DuplicateKeyPolicy::PassThrough };
    let value = serde_saphyr::with_deserializer_from_str_with_options(text, options, |deserializer| {
        Node { state: &state, depth: 0 }.deserialize(deserializer)
    });
    let value = value.map_err(|error| Status::bad_request(format!("error decoding YAML: {error}")))?;
    Ok(Decoded { value, duplicates: state.duplicates.into_inner() })
}

#[derive(Default)]
struct State {
    path: RefCell<Vec<String>>,
    duplicates: RefCell<Vec<String>>,
}

impl State {
    fn path(&self) -> String {
        let mut text = String::new();
        for part in self.path.borrow().iter() {
            if !text.is_empty() && !part.starts_with('[') {
                text.push('.');
            }
            text.push_str(part);
        }
        text
    }
}

#[derive(Clone, Copy)]
struct Node<'a> {
    state: &'a State,
    depth: usize,
}

impl Node<'_> {
    fn below(self) -> Option<Self> {
        (self.depth < DEPTH).then_some(Node { state: self.state, depth: self.depth + 1 })
    }
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let below = self.below().ok_or_else(|| A::Error::custom("exceeded max depth"))?;
        let mut out = Vec::new();
        loop {
            self.state.path.borrow_mut().push(format!("[{}]", out.len()));
            let item = items.next_element_seed(below)?;
            self.state.path.borrow_mut().pop();
            match item {
                Some(item) => out.push(item),
                None => return Ok(Value::Array(out)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let below = self.below().ok_or_else(|| A::Error::custom("exceeded max depth"))?;
        let mut out = Map::new();
        while let Some(key) = entries.next_key_seed(MapKey)? {
            self.state.path.borrow_mut().push(key.clone());
            if out.contains_key(&key) {
                let path = self.state.path();
                let mut duplicates = self.state.duplicates.borrow_mut();
                if duplicates.len() < 32 && !duplicates.contains(&path) {
                    duplicates.push(path);
                }
            }
            let value = entries.next_value_seed(below)?;
            self.state.path.borrow_mut().pop();
            out.insert(key, value);
        }
        Ok(Value::Object(out))
    }
}

/// The key of a map as text: YAML's may be numbers and booleans.
struct MapKey;

impl<'de> DeserializeSeed<'de> for MapKey {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for MapKey {
    type Value = String;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a key")
    }

    fn visit_str<E>(self, value: &str) -> Result<String, E> {
        Ok(value.to_owned())
    }

    fn visit_string<E>(self, value: String) -> Result<String, E> {
        Ok(value)
    }

    fn visit_bool<E>(self, value: bool) -> Result<String, E> {
        Ok(value.to_string())
    }

    fn visit_i64<E>(self, value: i64) -> Result<String, E> {
        Ok(value.to_string())
    }

    fn visit_u64<E>(self, value: u64) -> Result<String, E> {
        Ok(value.to_string())
    }

    fn visit_f64<E>(self, value: f64) -> Result<String, E> {
        Ok(value.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn json_with_duplicates() {
        let decoded = json(br#"{"a": 1, "spec": {"x": [{"y": 1, "y": 2}], "x.z": null}, "a": 3}"#).unwrap();
        assert_eq!(decoded.value, json!({"a": 3, "spec": {"x": [{"y": 2}], "x.z": null}}));
        assert_eq!(decoded.duplicates, ["spec.x[0].y", "a"]);
        assert!(json(b"{\"a\": 1} trailing").is_err());
        assert!(json(b"").is_err());
    }

    #[test]
    fn yaml_with_duplicates() {
        let decoded = yaml(b"a: 1\nb:\n- c: true\n  c: \"no\"\n- 1.5\n8: x\n").unwrap();
        assert_eq!(decoded.value, json!({"a": 1, "b": [{"c": "no"}, 1.5], "8": "x"}));
        assert_eq!(decoded.duplicates, ["b[0].c"]);
        assert_eq!(yaml(b"{\"a\": 1, \"a\": 2}").unwrap().duplicates, ["a"]);
        assert!(yaml(b"a: [").is_err());
        assert!(yaml(b"\xff").is_err());
    }

    #[test]
    fn depth_is_bounded() {
        let deep = "[".repeat(100_000);
        assert!(json(deep.as_bytes()).is_err());
        assert!(yaml(deep.as_bytes()).is_err());
    }
}
