//! Bodies in protobuf. Generated Go clients (kubectl's `create` among them) send built-in kinds that way whatever the server
//! says of itself, so they are read; answers are JSON, which the same clients accept.
//!
//! The messages are in a table, read when the first such body comes; one walk over the bytes makes the JSON value.

use crate::decode::Decoded;
use crate::status::Status;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Map, Number, Value};
use std::collections::HashMap;
use std::sync::LazyLock;

/// See the head of the file.
const TABLE: &str = include_str!("messages.table");
/// What such a body begins with.
const MAGIC: &[u8] = b"k8s\0";
/// How deep messages may nest.
const DEPTH: usize = 64;

/// One field of a message.
#[derive(Debug)]
struct Field {
    /// The name in JSON; None when its fields are the parent's own.
    name: Option<&'static str>,
    repeated: Repeated,
    kind: &'static str,
    /// Left out when it has its type's zero value.
    omit_zero: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Repeated {
    No,
    List,
    Map,
}

type Message = HashMap<u32, Field>;

static MESSAGES: LazyLock<HashMap<&'static str, Message>> = LazyLock::new(|| {
    let lines = TABLE.lines().filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| {
            let mut words = line.split(' ');
            Some((words.next()?, words.filter_map(field).collect()))
        })
        .collect()
});

fn field(text: &'static str) -> Option<(u32, Field)> {
    let (number, rest) = text.split_once('=')?;
    let (name, kind) = rest.split_once(':')?;
    let (kind, omit_zero) = kind.strip_suffix('?').map_or((kind, false), |kind| (kind, true));
    let (kind, repeated) = match (kind.strip_prefix("[]"), kind.strip_prefix("{}")) {
        (Some(kind), _) => (kind, Repeated::List),
        (_, Some(kind)) => (kind, Repeated::Map),
        _ => (kind, Repeated::No),
    };
    Some((number.parse().ok()?, Field { name: (name != "^").then_some(name), repeated, kind, omit_zero }))
}

/// Reads a body.
pub(crate) fn read(body: &[u8]) -> Result<Decoded, Status> {
    let broken = || Status::bad_request("the body is not a valid Kubernetes protobuf message");
    let envelope = body.strip_prefix(MAGIC).ok_or_else(broken)?;
    let (mut api_version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
    for part in Parts(envelope) {
        match part.ok_or_else(broken)? {
            (1, Wire::Bytes(meta)) => {
                for part in Parts(meta) {
                    match part.ok_or_else(broken)? {
                        (1, Wire::Bytes(text)) => api_version = String::from_utf8_lossy(text).into_owned(),
                        (2, Wire::Bytes(text)) => kind = String::from_utf8_lossy(text).into_owned(),
                        _ => {}
                    }
                }
            }
            (2, Wire::Bytes(bytes)) => raw = bytes,
            _ => {}
        }
    }
    let name = message_name(&api_version, &kind);
    if !MESSAGES.contains_key(name.as_str()) {
        let message = format!("{kind} of {api_version} cannot be read from protobuf here; send it as JSON");
        return Err(Status::new(415, "UnsupportedMediaType", message));
    }
    let mut object = message(&name, raw, 0).ok_or_else(broken)?;
    object.insert("apiVersion".into(), api_version.into());
    object.insert("kind".into(), kind.into());
    Ok(Decoded { value: Value::Object(object), duplicates: Vec::new() })
}

/// `apps/v1` Deployment → `apps.v1.Deployment`; groups are known by their first label.
fn message_name(api_version: &str, kind: &str) -> String {
    if kind == "DeleteOptions" {
        return String::from("meta.v1.DeleteOptions");
    }
    let (group, version) = api_version.split_once('/').unwrap_or(("core", api_version));
    format!("{}.{version}.{kind}", group.split('.').next().unwrap_or(group))
}

#[derive(Clone, Copy, Debug)]
enum Wire<'a> {
    Number(u64),
    Fixed(u64),
    Bytes(&'a [u8]),
}

/// The parts of a message: numbers and what is there. An item is None when the bytes make no sense; it is the last then.
struct Parts<'a>(&'a [u8]);

impl<'a> Parts<'a> {
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn part(&mut self) -> Option<(u32, Wire<'a>)> {
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).ok()?;
        let wire = match tag & 7 {
            0 => Wire::Number(self.varint()?),
            1 => Wire::Fixed(u64::from_le_bytes(self.take(8)?.try_into().ok()?)),
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                Wire::Bytes(self.take(length)?)
            }
            5 => Wire::Fixed(u64::from(u32::from_le_bytes(self.take(4)?.try_into().ok()?))),
            _ => return None,
        };
        Some((number, wire))
    }
}

impl<'a> Iterator for Parts<'a> {
    type Item = Option<(u32, Wire<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let part = self.part();
        if part.is_none() {
            self.0 = &[];
        }
        Some(part)
    }
}

fn message(name: &str, bytes: &[u8], depth: usize) -> Option<Map<String, Value>> {
    if depth > DEPTH {
        return None;
    }
    let fields = MESSAGES.get(name)?;
    let mut out = Map::new();
    for part in Parts(bytes) {
        let (number, wire) = part?;
        let Some(field) = fields.get(&number) else { continue };
        match (field.name, field.repeated) {
            (None, _) => {
                let Wire::Bytes(bytes) = wire else { return None };
                out.extend(message(field.kind, bytes, depth + 1)?);
            }
            (Some(name), Repeated::No) => {
                let value = value(field.kind, wire, depth)?;
                if !(value.is_null() || (field.omit_zero && is_zero(&value))) {
                    out.insert(name.to_owned(), value);
                }
            }
            (Some(name), Repeated::List) => {
                let list = out.entry(name).or_insert_with(|| Value::Array(Vec::new())).as_array_mut()?;
                match wire {
                    // Numbers may come packed.
                    Wire::Bytes(packed) if field.kind == "i" => {
                        let mut numbers = Parts(packed);
                        while !numbers.0.is_empty() {
                            list.push(value("i", Wire::Number(numbers.varint()?), depth)?);
                        }
                    }
                    wire => list.push(value(field.kind, wire, depth)?),
                }
            }
            (Some(name), Repeated::Map) => {
                let Wire::Bytes(entry) = wire else { return None };
                let (mut key, mut content) = (String::new(), None);
                for part in Parts(entry) {
                    match part? {
                        (1, Wire::Bytes(text)) => key = String::from_utf8_lossy(text).into_owned(),
                        (2, wire) => content = Some(value(field.kind, wire, depth)?),
                        _ => {}
                    }
                }
                let map = out.entry(name).or_insert_with(|| Value::Object(Map::new())).as_object_mut()?;
                map.insert(key, content.unwrap_or_else(|| Value::String(String::new())));
            }
        }
    }
    Some(out)
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

fn value(kind: &str, wire: Wire<'_>, depth: usize) -> Option<Value> {
    Some(match (kind, wire) {
        ("s", Wire::Bytes(bytes)) => Value::from(String::from_utf8_lossy(bytes).into_owned()),
        // Negative numbers are two's complement of 64 bits.
        ("i", Wire::Number(number)) => Value::from(number.cast_signed()),
        ("b", Wire::Number(number)) => Value::from(number != 0),
        ("d", Wire::Fixed(bits)) => Number::from_f64(f64::from_bits(bits)).map_or(Value::Null, Value::Number),
        ("y", Wire::Bytes(bytes)) => Value::from(STANDARD.encode(bytes)),
        ("time" | "micro", Wire::Bytes(bytes)) => time(bytes, kind == "micro")?,
        ("quantity", Wire::Bytes(bytes)) => text_at(bytes, 1)?,
        ("items", Wire::Bytes(bytes)) => {
            let items = Parts(bytes).map(|part| match part? {
                (1, wire) => value("s", wire, depth),
                _ => Some(Value::Null),
            });
            Value::Array(items.collect::<Option<_>>()?)
        }
        ("raw", Wire::Bytes(bytes)) => {
            let mut raw = &[][..];
            for part in Parts(bytes) {
                if let (1, Wire::Bytes(content)) = part? {
                    raw = content;
                }
            }
            if raw.is_empty() { Value::Null } else { serde_json::from_slice(raw).ok()? }
        }
        ("intstr", Wire::Bytes(bytes)) => {
            let (mut is_text, mut number) = (false, 0);
            for part in Parts(bytes) {
                match part? {
                    (1, Wire::Number(kind)) => is_text = kind == 1,
                    (2, Wire::Number(value)) => number = value.cast_signed(),
                    _ => {}
                }
            }
            if is_text { text_at(bytes, 3)? } else { Value::from(number) }
        }
        (name, Wire::Bytes(bytes)) => Value::Object(message(name, bytes, depth + 1)?),
        _ => return None,
    })
}

fn text_at(bytes: &[u8], wanted: u32) -> Option<Value> {
    let mut text = Value::String(String::new());
    for part in Parts(bytes) {
        let (number, wire) = part?;
        if number == wanted {
            text = value("s", wire, 0)?;
        }
    }
    Some(text)
}

/// Seconds and nanoseconds. Nothing at all is no time.
fn time(bytes: &[u8], micro: bool) -> Option<Value> {
    let (mut seconds, mut nanoseconds) = (0, 0);
    for part in Parts(bytes) {
        match part? {
            (1, Wire::Number(value)) => seconds = value.cast_signed(),
            (2, Wire::Number(value)) => nanoseconds = i32::try_from(value.cast_signed()).ok()?,
            _ => {}
        }
    }
    if bytes.is_empty() {
        return Some(Value::Null);
    }
    let time = Timestamp::new(seconds, nanoseconds).ok()?;
    let format = if micro { "%Y-%m-%dT%H:%M:%S.%6fZ" } else { "%Y-%m-%dT%H:%M:%SZ" };
    Some(Value::from(time.strftime(format).to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn put(number: u32, bytes: &[u8]) -> Vec<u8> {
        let mut out = vec![(number << 3 | 2) as u8, bytes.len() as u8];
        out.extend_from_slice(bytes);
        out
    }

    fn envelope(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
        let meta = [put(1, api_version.as_bytes()), put(2, kind.as_bytes())].concat();
        [MAGIC, &put(1, &meta), &put(2, raw), &put(3, b""), &put(4, b"")].concat()
    }

    #[test]
    fn what_kubectl_sends_for_a_namespace() {
        // Recorded from `kubectl create namespace x`.
        let body = b"k8s\0\n\x0f\n\x02v1\x12\tNamespace\x12\x19\n\x11\n\x01x\x12\0\x1a\0\"\0*\x002\x008\0B\0\x12\0\x1a\x02\n\0\x1a\0\"\0";
        assert_eq!(
            read(body).unwrap().value,
            json!({"metadata": {"name": "x"}, "apiVersion": "v1", "kind": "Namespace"})
        );
    }

    #[test]
    fn special_forms() {
        let metadata =
            put(1, &[put(1, b"l"), put(8, &[8, 1]), put(11, &[put(1, b"k"), put(2, b"v")].concat())].concat());
        let spec = put(2, &[put(1, b"me"), vec![16, 15], put(4, &[8, 100, 16, 0xc0, 0x84, 0x3d])].concat());
        let lease = read(&envelope("coordination.k8s.io/v1", "Lease", &[metadata, spec].concat())).unwrap().value;
        assert_eq!(
            lease,
            json!({"metadata": {"name": "l", "creationTimestamp": "1970-01-01T00:00:01Z", "labels": {"k": "v"}},
            "spec": {"holderIdentity": "me", "leaseDurationSeconds": 15, "renewTime": "1970-01-01T00:01:40.001000Z"},
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease"})
        );
        let secret =
            read(&envelope("v1", "Secret", &put(2, &[put(1, b"a"), put(2, &[0, 255])].concat()))).unwrap().value;
        assert_eq!(secret["data"]["a"], "AP8=");
        let options =
            read(&envelope("policy/v1", "DeleteOptions", &[vec![8, 0], put(4, b"Foreground")].concat())).unwrap().value;
        assert_eq!((&options["gracePeriodSeconds"], &options["propagationPolicy"]), (&json!(0), &json!("Foreground")));
        // A probe's handler is part of the probe.
        let port = put(2, &[8, 0, 16, 80]);
        let probe = put(1, &put(2, &[put(1, b"/"), port].concat()));
        let container = [put(1, b"c"), put(10, &[probe, vec![32, 0]].concat())].concat();
        let pod = read(&envelope("v1", "Pod", &put(2, &put(2, &container)))).unwrap().value;
        assert_eq!(
            pod["spec"]["containers"][0],
            json!({"name": "c", "livenessProbe": {"httpGet": {"path": "/", "port": 80}}})
        );
    }

    #[test]
    fn nonsense_is_refused() {
        for body in [&b""[..], b"k8s\0", b"k8s\0\xff\xff", b"nope", &envelope("v1", "Pod", &[0x12, 0x7f])] {
            assert!(read(body).is_err(), "{body:?}");
        }
        assert_eq!(read(&envelope("x.dev/v1", "Foo", b"")).unwrap_err().code, 415);
        let mut seed = 7_u64;
        for _ in 0..2000 {
            let raw: Vec<u8> = (0..40)
                .map(|_| {
                    seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    (seed >> 56) as u8
                })
                .collect();
            let _ = read(&envelope("v1", "Pod", &raw));
        }
    }
}
