//! Custom resource definitions from Rust types, as constants that end up in the component's own sections.
//!
//! `#[derive(Schema)]` reads fields, doc comments, `serde` names and `#[schema(…)]`:
//!
//! | attribute | meaning |
//! |---|---|
//! | `min`, `max`, `multiple_of`, `min_length`, `max_length`, `min_items`, `max_items`, `max_properties`, `pattern`, `format` | bounds |
//! | `default = 2`, `default_json = "…"` | filled in by the API server |
//! | `values("a", "b")` | an enumeration of strings |
//! | `rule("self.a < self.b", "a is below b")` | a CEL rule, on a field or on the struct |
//! | `immutable` | the field never changes |
//! | `map_key = "name"`, `set`, `atomic` | how a list is merged |
//! | `optional` | not required although the type is no `Option`, has no default and is never left out (`skip_serializing_if`) |
//! | `required` | required although the type has a default |
//! | `preserve_unknown` | unknown fields are kept |
//! | `hidden` | read and not in the schema: a field that the host adds, such as `providerID` |

use serde::{Deserialize, Serialize};

/// A type whose OpenAPI v3 schema is known when the component is compiled.
pub trait Schema {
    /// The keys of the schema in JSON, without the outer braces.
    const BODY: &'static str;
    /// CEL rules of the type, as JSON objects separated by commas; they are joined with those of the field.
    const RULES: &'static str = "";
}

/// A spec struct that is a custom resource; derived.
///
/// `#[kind(name = "SimulatedMachine", version = "v1beta1", status = MachineStatus, short = "sm",
/// column("Phase", "string", ".status.phase", "What it does"))]` (`wide_column` for `-o wide`); `plural` where adding an `s` is wrong, and
/// `no_template` for a kind without a `…Template`; `identity` for a cluster-scoped kind by which the operator lends credentials
/// (`kinds.identities` of the manifest). An older version that is served too is a struct of its own with `older`, named here by
/// `served_too = MachineV1Alpha1` ([`crate::versions`]). What Cluster API's contract adds to spec, status and columns
/// (conditions, `providerID`, `initialization`, …) is added by the host and must not be written here.
pub trait Kind: Schema {
    /// `SimulatedMachine`.
    const KIND: &'static str;
    /// The version of the custom resource, such as `v1beta1`.
    const VERSION: &'static str;
    /// The definition, as one element of the section `capstan:crds`.
    const CRD: &'static str;
    /// This version in the definition.
    const ENTRY: &'static str;
    /// The older versions that are served too (`served_too = OldSpec`), each a spec struct with `#[kind(…, older)]`.
    fn older() -> Vec<crate::versions::Older> {
        Vec::new()
    }
}

/// A number or a text such as `30%`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum IntOrString {
    /// `3`
    Int(i64),
    /// `"30%"`
    String(String),
}

impl Schema for IntOrString {
    const BODY: &'static str = "\"x-kubernetes-int-or-string\":true";
}

impl Schema for String {
    const BODY: &'static str = "\"type\":\"string\"";
}

/// Texts joined into one constant: `concat_text!("{", T::BODY, "}")`.
#[macro_export]
macro_rules! concat_text {
    ($($piece:expr),* $(,)?) => {{
        const PIECES: &[&str] = &[$($piece),*];
        const LENGTH: usize = $crate::schema::length(PIECES);
        const BYTES: [u8; LENGTH] = $crate::schema::join::<LENGTH>(PIECES);
        match ::core::str::from_utf8(&BYTES) {
            Ok(text) => text,
            Err(_) => "",
        }
    }};
}

/// Length of the pieces together.
#[doc(hidden)]
#[must_use]
pub const fn length(mut pieces: &[&str]) -> usize {
    let mut length = 0;
    while let [first, rest @ ..] = pieces {
        length += first.len();
        pieces = rest;
    }
    length
}

/// The pieces one after the other.
#[doc(hidden)]
#[must_use]
#[allow(clippy::indexing_slicing, reason = "evaluated by the compiler, where a bad index is a compile error")]
pub const fn join<const LENGTH: usize>(mut pieces: &[&str]) -> [u8; LENGTH] {
    let mut joined = [0; LENGTH];
    let mut at = 0;
    while let [first, rest @ ..] = pieces {
        let mut bytes = first.as_bytes();
        while let [byte, others @ ..] = bytes {
            joined[at] = *byte;
            at += 1;
            bytes = others;
        }
        pieces = rest;
    }
    joined
}

/// A custom section's bytes are an array, not a reference.
#[doc(hidden)]
#[must_use]
pub const fn bytes<const LENGTH: usize>(text: &str) -> [u8; LENGTH] {
    join::<LENGTH>(&[text])
}

/// What opens the list of CEL rules where there are any.
#[doc(hidden)]
#[must_use]
pub const fn rules_open(field: &str, ty: &str) -> &'static str {
    if field.is_empty() && ty.is_empty() { "" } else { ",\"x-kubernetes-validations\":[" }
}

/// The comma between the rules of the field and those of its type.
#[doc(hidden)]
#[must_use]
pub const fn rules_between(field: &str, ty: &str) -> &'static str {
    if field.is_empty() || ty.is_empty() { "" } else { "," }
}

/// What closes the list of CEL rules.
#[doc(hidden)]
#[must_use]
pub const fn rules_close(field: &str, ty: &str) -> &'static str {
    if field.is_empty() && ty.is_empty() { "" } else { "]" }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[derive(capstan_provider_macros::Schema)]
    #[serde(rename_all = "camelCase")]
    #[schema(rule("self.upper >= self.lower", "upper is not below lower"))]
    #[allow(dead_code)]
    struct Range {
        lower: u16,
        /// Not below `lower`.
        #[schema(max = 70_000, default = 9)]
        upper: u32,
    }

    #[derive(capstan_provider_macros::Schema)]
    #[serde(rename_all = "camelCase")]
    #[allow(dead_code)]
    struct Outer {
        /// A "quoted" word.
        first_name: String,
        #[schema(immutable)]
        port_range: Range,
        ranges: Option<Vec<Range>>,
        #[serde(default)]
        tags: std::collections::BTreeMap<String, String>,
        #[schema(values("a", "b"), pattern = "^[ab]$")]
        letter: Option<String>,
        #[serde(rename = "memoryMiB")]
        #[schema(min = 128)]
        memory: i32,
        free: Option<Value>,
        #[schema(hidden)]
        provider_id: Option<String>,
        #[serde(default)]
        #[schema(required)]
        always: bool,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        now_and_then: Vec<String>,
    }

    /// A thing.
    #[derive(capstan_provider_macros::Schema, capstan_provider_macros::Kind)]
    #[kind(name = "Thing", version = "v1", status = Range, short = "th",
        wide_column("Name", "string", ".spec.name"))]
    #[allow(dead_code)]
    struct Thing {
        name: String,
    }

    /// Whom to be.
    #[derive(capstan_provider_macros::Schema, capstan_provider_macros::Kind)]
    #[kind(name = "ThingIdentity", version = "v1", identity)]
    #[allow(dead_code)]
    struct ThingIdentity {
        secret: String,
    }

    #[test]
    fn an_identity_is_of_the_cluster() {
        let crd: Value = serde_json::from_str(ThingIdentity::CRD).unwrap();
        assert_eq!((&crd["scope"], &crd["template"]), (&json!("Cluster"), &json!(false)));
        assert_eq!(crd["plural"], "thingidentities");
    }

    fn parsed(body: &str) -> Value {
        serde_json::from_str(&format!("{{{body}}}")).unwrap()
    }

    #[test]
    fn fields_bounds_rules_and_names() {
        let range = json!({
            "type": "object",
            "properties": {
                "lower": {"type": "integer", "format": "int32", "minimum": 0},
                "upper": {"description": "Not below `lower`.", "maximum": 70_000, "default": 9,
                          "type": "integer", "format": "int64", "minimum": 0},
            },
            "required": ["lower"],
        });
        assert_eq!(parsed(Range::BODY), range);
        let rule = json!({"rule": "self.upper >= self.lower", "message": "upper is not below lower"});
        let outer = parsed(Outer::BODY);
        let mut with_both = range.clone();
        with_both["x-kubernetes-validations"] =
            json!([{"rule": "self == oldSelf", "message": "is immutable"}, rule.clone()]);
        assert_eq!(outer["properties"]["portRange"], with_both);
        let mut with_one = range;
        with_one["x-kubernetes-validations"] = json!([rule]);
        assert_eq!(outer["properties"]["ranges"], json!({"type": "array", "items": with_one}));
        assert_eq!(outer["properties"]["firstName"], json!({"description": "A \"quoted\" word.", "type": "string"}));
        assert_eq!(outer["properties"]["tags"], json!({"type": "object", "additionalProperties": {"type": "string"}}));
        assert_eq!(outer["properties"]["letter"], json!({"enum": ["a", "b"], "pattern": "^[ab]$", "type": "string"}));
        assert_eq!(outer["properties"]["memoryMiB"], json!({"minimum": 128, "type": "integer", "format": "int32"}));
        assert_eq!(outer["required"], json!(["firstName", "portRange", "memoryMiB", "always"]));
        assert_eq!(outer["properties"].get("providerId"), None);
    }

    #[test]
    fn a_kind_is_one_element_of_the_crds() {
        let crd: Value = serde_json::from_str(Thing::CRD).unwrap();
        assert_eq!(crd["kind"], "Thing");
        assert_eq!(crd["plural"], "things");
        assert_eq!(crd["shortNames"], json!(["th"]));
        assert_eq!(crd["template"], true);
        let version = &crd["versions"][0];
        assert_eq!(version["name"], "v1");
        assert_eq!(version["schema"]["description"], "A thing.");
        assert_eq!(version["schema"]["properties"]["spec"]["properties"]["name"], json!({"type": "string"}));
        assert_eq!(version["schema"]["properties"]["status"]["required"], json!(["lower"]));
        assert_eq!(
            version["printerColumns"],
            json!([{"name": "Name", "type": "string", "jsonPath": ".spec.name", "priority": 10}])
        );
    }
}
