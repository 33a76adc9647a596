//! Older versions of a kind that are served beside the stored one (`kinds.convert`).
//!
//! An older version is a spec struct with `#[kind(…, older)]` that implements [`OlderVersion`]: how spec and status go up to the
//! stored version and down again. The stored kind names it with `served_too = …`. The author converts what both versions can say;
//! what one of them cannot say is kept in the annotation [`CONVERSION_DATA`], as upstream's providers do, and comes back: whatever
//! was not changed in the other version is as it was.

use serde_json::{Map, Value, json};

use crate::{Kind, Reason};

/// Annotation: the spec in the version that it was written in, where the version of this object cannot say all of it.
pub const CONVERSION_DATA: &str = "cluster.x-k8s.io/conversion-data";

/// A version that is served and not stored.
pub trait OlderVersion: Kind {
    /// From this version to the stored one. `object` has `spec` and perhaps `status`, of the kind itself (not of its template).
    fn up(object: &mut Value);
    /// From the stored version to this one.
    fn down(object: &mut Value);
}

/// [`OlderVersion`], as the derived [`Kind::older`] lists it.
#[derive(Clone, Copy, Debug)]
pub struct Older {
    /// The version.
    pub version: &'static str,
    /// [`OlderVersion::up`].
    pub up: fn(&mut Value),
    /// [`OlderVersion::down`].
    pub down: fn(&mut Value),
}

/// `kind` of an object in JSON; empty where it has none.
pub(crate) fn kind_of(object: &str) -> String {
    let object = serde_json::from_str::<Value>(object).ok();
    object.and_then(|object| Some(object.get("kind")?.as_str()?.to_owned())).unwrap_or_default()
}

/// [`convert`] for the contract.
pub(crate) fn convert_text<S: Kind>(object: &str, to: &str) -> Result<String, Reason> {
    let object = serde_json::from_str(object)
        .map_err(|error| Reason::new("NotJSON", format!("the object is no JSON: {error}")))?;
    convert(object, to, S::VERSION, &S::older()).map(|object| object.to_string())
}

/// An object in another version of its kind. `stored` is the version that the others are converted by way of.
///
/// # Errors
/// When there is no such version.
pub fn convert(mut object: Value, to: &str, stored: &str, older: &[Older]) -> Result<Value, Reason> {
    let api_version = text_at(&object, "apiVersion");
    let (group, from) = api_version.rsplit_once('/').unwrap_or(("", &api_version));
    if from == to || (from.is_empty() && to == stored) {
        return Ok(object);
    }
    let (group, from) = (group.to_owned(), from.to_owned());
    let template = text_at(&object, "kind").ends_with("Template");
    let path = Path { from: step(&from, stored, older)?, to: step(to, stored, older)? };
    let whole = take(&mut object, template);
    let mut converted = path.go(&whole);
    if let Some(kept) = taken_note(&mut object).filter(|kept| text_at(kept, "version") == to) {
        let kept = json!({"spec": kept.get("spec")});
        // What both versions say of what was kept; what differs from it by now was changed meanwhile.
        let known = path.go(&path.back().go(&kept));
        let spec = restored(known.get("spec"), kept.get("spec"), converted.get("spec"));
        set(&mut converted, "spec", spec);
    }
    if path.back().go(&converted).get("spec") != whole.get("spec") {
        note(&mut object, json!({"version": from, "spec": whole.get("spec")}));
    }
    put(&mut object, converted, template);
    set(&mut object, "apiVersion", Some(format!("{group}/{to}").into()));
    Ok(object)
}

/// One end of a conversion: `None` is the stored version itself.
type End = Option<Older>;

fn step(version: &str, stored: &str, older: &[Older]) -> Result<End, Reason> {
    if version == stored {
        return Ok(None);
    }
    let found = older.iter().find(|one| one.version == version).copied();
    found.map(Some).ok_or_else(|| {
        let all: Vec<&str> = std::iter::once(stored).chain(older.iter().map(|one| one.version)).collect();
        Reason::new("VersionUnknown", format!("there is no version {version:?}; served are {}", all.join(", ")))
    })
}

#[derive(Clone, Copy)]
struct Path {
    from: End,
    to: End,
}

impl Path {
    fn back(self) -> Self {
        Self { from: self.to, to: self.from }
    }

    fn go(self, object: &Value) -> Value {
        let mut object = object.clone();
        if let Some(from) = self.from {
            (from.up)(&mut object);
        }
        if let Some(to) = self.to {
            (to.down)(&mut object);
        }
        object
    }
}

fn text_at(object: &Value, field: &str) -> String {
    object.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn set(object: &mut Value, field: &str, value: Option<Value>) {
    if let (Some(map), Some(value)) = (object.as_object_mut(), value) {
        map.insert(field.to_owned(), value);
    }
}

/// Spec and status of the kind itself, taken out of an object or of a template.
fn take(object: &mut Value, template: bool) -> Value {
    let mut whole = Map::new();
    let spec = if template { object.pointer_mut("/spec/template/spec") } else { object.get_mut("spec") };
    whole.insert("spec".to_owned(), spec.map(Value::take).unwrap_or_else(|| json!({})));
    if !template && let Some(status) = object.get_mut("status") {
        whole.insert("status".to_owned(), status.take());
    }
    Value::Object(whole)
}

/// Puts them back.
fn put(object: &mut Value, mut whole: Value, template: bool) {
    let mut field = |name: &str| whole.get_mut(name).map(Value::take);
    if !template {
        set(object, "spec", field("spec"));
        set(object, "status", field("status"));
    } else if let Some(place) = object.pointer_mut("/spec/template/spec")
        && let Some(spec) = field("spec")
    {
        *place = spec;
    }
}

/// What the annotation holds, which is taken off.
fn taken_note(object: &mut Value) -> Option<Value> {
    let annotations = object.pointer_mut("/metadata/annotations")?.as_object_mut()?;
    let text = annotations.remove(CONVERSION_DATA)?;
    if annotations.is_empty() {
        object.get_mut("metadata")?.as_object_mut()?.remove("annotations");
    }
    serde_json::from_str(text.as_str()?).ok()
}

fn note(object: &mut Value, kept: Value) {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
    set(annotations, CONVERSION_DATA, Some(kept.to_string().into()));
}

/// `now` with what is as it was `known` put back as it was `kept`.
fn restored(known: Option<&Value>, kept: Option<&Value>, now: Option<&Value>) -> Option<Value> {
    if now == known {
        return kept.cloned();
    }
    match (known, kept, now) {
        (Some(Value::Object(known)), Some(Value::Object(kept)), Some(Value::Object(now))) => {
            let mut all = Map::new();
            for field in now.keys().chain(kept.keys().filter(|field| !now.contains_key(*field))) {
                if let Some(value) = restored(known.get(field), kept.get(field), now.get(field)) {
                    all.insert(field.clone(), value);
                }
            }
            Some(Value::Object(all))
        }
        (Some(Value::Array(known)), Some(Value::Array(kept)), Some(Value::Array(now)))
            if known.len() == kept.len() && kept.len() == now.len() =>
        {
            let each = known.iter().zip(kept).zip(now);
            let each = each.map(|((known, kept), now)| restored(Some(known), Some(kept), Some(now)));
            Some(each.map(Option::unwrap_or_default).collect())
        }
        _ => now.cloned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `size` was `sizes.first` and `sizes.second` is new; `shape` is gone.
    const OLD: Older = Older {
        version: "v1",
        up: |object| {
            let spec = object["spec"].as_object_mut().unwrap();
            spec.remove("shape");
            if let Some(size) = spec.remove("size") {
                spec.insert("sizes".into(), json!({"first": size}));
            }
        },
        down: |object| {
            let spec = object["spec"].as_object_mut().unwrap();
            if let Some(first) = spec.remove("sizes").and_then(|sizes| sizes.get("first").cloned()) {
                spec.insert("size".into(), first);
            }
        },
    };

    fn to(object: &Value, version: &str) -> Value {
        convert(object.clone(), version, "v2", &[OLD]).unwrap()
    }

    fn object(version: &str, spec: Value) -> Value {
        json!({"apiVersion": format!("g/{version}"), "kind": "Thing", "metadata": {"name": "t"}, "spec": spec})
    }

    #[test]
    fn what_both_can_say_needs_no_annotation() {
        let old = object("v1", json!({"size": 3, "name": "n"}));
        let new = to(&old, "v2");
        assert_eq!(new, object("v2", json!({"name": "n", "sizes": {"first": 3}})));
        assert_eq!(to(&new, "v1"), old);
        assert_eq!(to(&old, "v1"), old);
    }

    #[test]
    fn what_one_cannot_say_comes_back_and_what_was_changed_stays_changed() {
        let new = object("v2", json!({"sizes": {"first": 1, "second": 2}, "name": "n"}));
        let mut old = to(&new, "v1");
        assert_eq!(old["spec"], json!({"name": "n", "size": 1}));
        assert_eq!(to(&old, "v2"), new);
        old["spec"]["size"] = json!(7);
        assert_eq!(to(&old, "v2")["spec"], json!({"name": "n", "sizes": {"first": 7, "second": 2}}));
        old["spec"].as_object_mut().unwrap().remove("size");
        assert_eq!(to(&old, "v2")["spec"], json!({"name": "n"}));
        // The other way round.
        let mut old = object("v1", json!({"size": 1, "shape": "round"}));
        old["metadata"]["annotations"] = json!({"mine": "x"});
        let mut new = to(&old, "v2");
        assert_eq!(new["spec"], json!({"sizes": {"first": 1}}));
        assert_eq!(to(&new, "v1"), old);
        new["spec"]["sizes"]["first"] = json!(2);
        assert_eq!(to(&new, "v1")["spec"], json!({"size": 2, "shape": "round"}));
    }

    #[test]
    fn templates_are_converted_inside_and_unknown_versions_are_named() {
        let template = json!({"apiVersion": "g/v1", "kind": "ThingTemplate", "metadata": {"name": "t"},
            "spec": {"template": {"metadata": {"labels": {"a": "b"}}, "spec": {"size": 1}}}});
        let new = to(&template, "v2");
        assert_eq!(
            new["spec"]["template"],
            json!({"metadata": {"labels": {"a": "b"}}, "spec": {"sizes": {"first": 1}}})
        );
        assert_eq!(to(&new, "v1"), template);
        let why = convert(object("v1", json!({})), "v3", "v2", &[OLD]).unwrap_err();
        assert!(why.message.contains("\"v3\"") && why.message.contains("v2, v1"), "{why:?}");
        let mut broken = object("v2", json!({"sizes": {"first": 1}}));
        broken["metadata"]["annotations"] = json!({CONVERSION_DATA: "no JSON"});
        assert_eq!(to(&broken, "v1"), object("v1", json!({"size": 1})));
    }
}
