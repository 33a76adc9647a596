//! A YAML document as a tree that keeps order and the text of scalars as far as it matters to boot data.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use crate::BootError;

/// A YAML node. Plain `yes` and `no` are text (YAML 1.2), `0640` is a number in octal (YAML 1.1, as cloud-init reads it).
#[derive(PartialEq)]
pub(crate) enum Node {
    Null,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
}

impl Node {
    /// What kind of node it is, for messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Node::Null => "nothing",
            Node::Bool(_) => "a boolean",
            Node::Int(_) | Node::Float(_) => "a number",
            Node::Text(_) => "a string",
            Node::List(_) => "a list",
            Node::Map(_) => "a map",
        }
    }

    /// A scalar as text.
    pub(crate) fn scalar(&self) -> Option<String> {
        Some(match self {
            Node::Bool(value) => value.to_string(),
            Node::Int(value) => value.to_string(),
            Node::Float(value) => value.to_string(),
            Node::Text(value) => value.clone(),
            Node::Null | Node::List(_) | Node::Map(_) => return None,
        })
    }

    /// Parses one document. Duplicate keys are an error; an empty document is [`Node::Null`].
    pub(crate) fn parse(text: &str) -> Result<Node, BootError> {
        let options = serde_saphyr::options! {
            legacy_octal_numbers: true,
            strict_booleans: true,
            with_snippet: false,
            duplicate_keys: serde_saphyr::options::DuplicateKeyPolicy::Error,
        };
        serde_saphyr::from_str_with_options(text, options).map_err(|error| {
            let location = error.location();
            // The error's own text may quote the document, and that holds keys and tokens: only its kind is passed on.
            let reason = match error {
                serde_saphyr::Error::DuplicateMappingKey { .. } => "a key is there twice in one map",
                serde_saphyr::Error::MultipleDocuments { .. } => "there is more than one document",
                serde_saphyr::Error::Eof { .. } => "it ends too early",
                serde_saphyr::Error::Budget { .. } => "it is too large or nested too deeply",
                _ => "it is not well-formed YAML",
            };
            BootError::Syntax {
                line: location.map_or(0, |l| l.line()),
                column: location.map_or(0, |l| l.column()),
                reason: reason.to_owned(),
            }
        })
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NodeVisitor;
        impl<'de> Visitor<'de> for NodeVisitor {
            type Value = Node;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a YAML node")
            }
            fn visit_unit<E>(self) -> Result<Node, E> {
                Ok(Node::Null)
            }
            fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
                Ok(Node::Bool(value))
            }
            fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
                Ok(Node::Int(value.into()))
            }
            fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
                Ok(Node::Int(value.into()))
            }
            fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
                Ok(Node::Float(value))
            }
            fn visit_str<E>(self, value: &str) -> Result<Node, E> {
                Ok(Node::Text(value.to_owned()))
            }
            fn visit_string<E>(self, value: String) -> Result<Node, E> {
                Ok(Node::Text(value))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Node, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = seq.next_element()? {
                    items.push(item);
                }
                Ok(Node::List(items))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
                let mut entries = Vec::new();
                while let Some((key, value)) = map.next_entry::<Node, Node>()? {
                    let key = key.scalar().ok_or_else(|| A::Error::custom("a map key is no scalar"))?;
                    entries.push((key, value));
                }
                Ok(Node::Map(entries))
            }
        }
        deserializer.deserialize_any(NodeVisitor)
    }
}
