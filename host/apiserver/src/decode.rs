//! Reading bodies: JSON and YAML into values, with every key that is there twice reported.

use crate::status::Status;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
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
pub(crate) const DEPTH: usize = 100;

/// Reads JSON.
pub(crate) fn json(bytes: &[u8]) -> Result<Decoded, Status> {
    let duplicates = Duplicates::default();
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = Node::root(&duplicates).deserialize(&mut deserializer);
    let value = value.and_then(|value| deserializer.end().map(|()| value));
    let value = value.map_err(|error| Status::bad_request(format!("the body is not valid JSON: {error}")))?;
    Ok(Decoded { value, duplicates: duplicates.into_inner() })
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
    let duplicates = Duplicates::default();
    let options = serde_saphyr::options! { duplicate_keys: serde_saphyr::DuplicateKeyPolicy::PassThrough };
    let value = serde_saphyr::with_deserializer_from_str_with_options(text, options, |deserializer| {
        Node::root(&duplicates).deserialize(deserializer)
    });
    let value = value.map_err(|error| Status::bad_request(format!("error decoding YAML: {error}")))?;
    Ok(Decoded { value, duplicates: duplicates.into_inner() })
}

/// The duplicates found so far.
type Duplicates = RefCell<Vec<String>>;

/// How many duplicates are told at most.
const TOLD: usize = 32;

/// Where in the body we are: linked on the stack, so that it costs nothing until a duplicate is found.
struct Frame<'a> {
    parent: Option<&'a Frame<'a>>,
    at: RefCell<At>,
}

enum At {
    Key(String),
    Index(usize),
}

impl Frame<'_> {
    fn path(&self) -> String {
        let mut text = self.parent.map(Frame::path).unwrap_or_default();
        match &*self.at.borrow() {
            At::Key(key) => {
                if !text.is_empty() {
                    text.push('.');
                }
                text.push_str(key);
            }
            At::Index(index) => text.push_str(&format!("[{index}]")),
        }
        text
    }
}

#[derive(Clone, Copy)]
struct Node<'a> {
    duplicates: &'a Duplicates,
    parent: Option<&'a Frame<'a>>,
    depth: usize,
}

impl<'a> Node<'a> {
    fn root(duplicates: &'a Duplicates) -> Node<'a> {
        Node { duplicates, parent: None, depth: 0 }
    }

    fn frame<E: serde::de::Error>(self, at: At) -> Result<Frame<'a>, E> {
        if self.depth >= DEPTH {
            return Err(E::custom("exceeded max depth"));
        }
        Ok(Frame { parent: self.parent, at: RefCell::new(at) })
    }

    fn below<'b>(self, frame: &'b Frame<'b>) -> Node<'b>
    where
        'a: 'b,
    {
        Node { duplicates: self.duplicates, parent: Some(frame), depth: self.depth + 1 }
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
        // Go writes a whole number as one, however it was read.
        if value.fract() == 0.0 && value.abs() < 9_007_199_254_740_992.0 {
            return Ok(Value::Number((value as i64).into()));
        }
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
        let frame = self.frame(At::Index(0))?;
        let mut out = Vec::new();
        while let Some(item) = items.next_element_seed(self.below(&frame))? {
            out.push(item);
            frame.at.replace(At::Index(out.len()));
        }
        Ok(Value::Array(out))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let frame = self.frame(At::Index(0))?;
        let mut out = Map::new();
        while let Some(key) = entries.next_key_seed(MapKey)? {
            let double = out.contains_key(&key);
            frame.at.replace(At::Key(key));
            if double {
                let path = frame.path();
                let mut duplicates = self.duplicates.borrow_mut();
                if duplicates.len() < TOLD && !duplicates.contains(&path) {
                    duplicates.push(path);
                }
            }
            let value = entries.next_value_seed(self.below(&frame))?;
            if let At::Key(key) = frame.at.replace(At::Index(0)) {
                out.insert(key, value);
            }
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
