//! The schema engine of the embedded API server: pure functions over JSON objects.
//!
//! One compiled tree per kind and version ([`Schema`]) serves pruning, defaulting, validation with CEL, server-side apply
//! with field ownership, strategic merge patch and the published OpenAPI. It does no I/O, holds no lock while it works and
//! is shared by all servers of a process.
//!
//! The order in which a server uses it for a write: decode, [`Schema::prune`], merge ([`apply`], [`strategic_merge`] or
//! another patch), [`Schema::default`], [`validate_object_meta`] and [`Schema::validate`], [`track_update`] (not after an
//! apply), and [`differs`] to leave the store alone when nothing changed.
//!
//! Where it departs from a real API server, knowingly:
//! - CEL has a bound on nested loops instead of a cost budget, is not type-checked against the schema, and lacks `sortBy`, `cel.bind` and comprehensions with
//!   two variables; a rule that needs them fails every object it is asked about.
//! - Built-in kinds are held to their types, required fields and the defaults of `builtin.table`, not to the rules of their
//!   Go validation (immutable selectors and the like).
//! - A container that an apply emptied is left empty or goes; upstream writes a null there, which it drops later.
//! - Field sets are read as written whatever version they were recorded with: versions of a kind have one field tree here.

mod apply;
mod builtin;
mod cel;
mod celvalue;
mod compile;
mod crd;
mod definitions;
mod error;
mod expression;
mod fields;
mod formats;
mod managed;
mod meta;
mod node;
mod prune;
mod strategic;
mod typed;
mod validate;
mod versions;

#[cfg(test)]
mod tests;

pub use apply::{Applied, ApplyError, FieldConflict, apply, track_update};
pub use builtin::{BuiltinKind, builtin_components, builtins};
pub(crate) use cel::message;
pub(crate) use celvalue::{as_is, is_reserved};
pub use crd::{default_crd, validate_crd, validate_crd_update};
pub(crate) use error::join;
pub use error::{FieldError, FieldErrorKind};
pub(crate) use expression::{CONTEXT, Expression, Names, brief, longest};
pub use managed::differs;
pub(crate) use meta::path_segment_errors;
pub use meta::{
    MAX_ANNOTATIONS, NameRule, label_errors, label_value_errors, qualified_name_errors, rfc1035_label_errors,
    subdomain_errors, validate_object_meta, validate_object_meta_named,
};
pub use strategic::strategic_merge;
pub use versions::{Kind, Versions};

use base64::Engine;
use node::{Field, Node, Type};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// The compiled schema of one kind and version. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Schema(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    root: Arc<Node>,
    published: Published,
}

/// Where the OpenAPI form comes from.
#[derive(Debug)]
enum Published {
    /// The CRD's schema, as text: it is asked for rarely.
    Custom(String),
    /// A built-in definition.
    Definition(&'static str),
    /// Anything goes.
    Open,
}

/// Why a CRD's schema was refused: every place that is not structural, every rule that does not compile.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("the schema cannot be used: {}", .errors.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
pub struct SchemaError {
    /// One entry for each place; paths begin with `openAPIV3Schema`.
    pub errors: Vec<FieldError>,
}

impl Schema {
    /// Compiles a CRD version's `schema.openAPIV3Schema`.
    ///
    /// # Errors
    /// Lists everything that is not structural, with its path.
    pub fn compile(open_api_v3: &Value) -> Result<Schema, SchemaError> {
        let mut errors = Vec::new();
        let mut root = compile::compile(open_api_v3, "openAPIV3Schema", &mut errors);
        if !errors.is_empty() {
            return Err(SchemaError { errors });
        }
        for name in ["apiVersion", "kind"] {
            root.fields.insert(name.to_owned(), Field::of(Arc::new(Node::of(Type::String))));
        }
        root.fields.entry("metadata".to_owned()).or_insert_with(|| Field::of(Arc::new(meta::object_meta())));
        if let Some(metadata) = root.fields.get_mut("metadata") {
            metadata.always = true;
        }
        let published = Published::Custom(open_api_v3.to_string());
        Ok(Schema(Arc::new(Inner { root: Arc::new(root.finish()), published })))
    }

    /// A schema that keeps and accepts everything except bad metadata.
    pub fn preserve_all() -> Schema {
        let mut root = Node { preserve: true, ..Node::of(Type::Object) };
        for name in ["apiVersion", "kind"] {
            root.fields.insert(name.to_owned(), Field::of(Arc::new(Node::of(Type::String))));
        }
        let metadata = Field { always: true, ..Field::of(Arc::new(meta::object_meta())) };
        root.fields.insert("metadata".to_owned(), metadata);
        Schema(Arc::new(Inner { root: Arc::new(root.finish()), published: Published::Open }))
    }

    fn builtin(definition: &'static str) -> Schema {
        let root = builtin::definition(definition);
        Schema(Arc::new(Inner { root, published: Published::Definition(definition) }))
    }

    fn root(&self) -> &Node {
        &self.0.root
    }

    /// Removes unknown fields and returns their paths (`spec.items[0].x`), for `fieldValidation` Strict and Warn.
    pub fn prune(&self, object: &mut Value) -> Vec<String> {
        let mut removed = Vec::new();
        prune::prune(self.root(), object, "", &mut removed);
        removed
    }

    /// Applies defaults, also inside what is already there. A null where none is allowed counts as absent.
    ///
    /// For a Secret, `stringData` becomes `data` here.
    pub fn default(&self, object: &mut Value) {
        self.normalize(object);
        prune::default(self.root(), object);
        prune::drop_empty(self.root(), object);
    }

    /// Brings what can be written in two ways into the one that is stored.
    fn normalize(&self, object: &mut Value) {
        let Published::Definition(definition) = self.0.published else { return };
        // Base64 may come in lines, as YAML likes it; readers of the stored object need not know.
        let bytes: &[&str] = match definition {
            "io.k8s.api.core.v1.Secret" => &["/data"],
            "io.k8s.api.core.v1.ConfigMap" => &["/binaryData"],
            "io.k8s.api.certificates.v1.CertificateSigningRequest" => &["/spec/request", "/status/certificate"],
            _ => return,
        };
        for pointer in bytes {
            match object.pointer_mut(pointer) {
                Some(Value::Object(map)) => map.values_mut().for_each(join_lines),
                Some(value) => join_lines(value),
                None => {}
            }
        }
        if definition == "io.k8s.api.core.v1.Secret" {
            encode_texts(object);
        }
    }

    /// Validates an object: types, value validations, uniqueness in lists of type set and map, CEL rules.
    ///
    /// With `old`, transition rules run and what did not change is not held against the object. Metadata's syntax is
    /// checked by [`validate_object_meta`].
    pub fn validate(&self, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
        let mut errors = Vec::new();
        validate::validate_value(self.root(), object, old, "", &mut errors);
        let blocked = errors.iter().any(|error| {
            matches!(
                error.kind,
                FieldErrorKind::Required
                    | FieldErrorKind::TypeInvalid
                    | FieldErrorKind::TooLong
                    | FieldErrorKind::TooMany
                    | FieldErrorKind::Duplicate
            )
        });
        if blocked && self.root().rules_below {
            errors.push(FieldError::invalid(
                "<nil>",
                Value::Null,
                "some validation rules were not checked because the object was invalid; correct the existing errors to \
                 complete validation",
            ));
        } else {
            validate::validate_rules(self.root(), object, old, "", &mut errors);
        }
        errors
    }

    /// Nulls in a configuration where the schema allows none and has no default: nothing that could be stored comes of them.
    pub fn nulls(&self, object: &Value) -> Vec<FieldError> {
        let mut errors = Vec::new();
        validate::nulls(self.root(), object, "", &mut errors);
        errors
    }

    /// The schema as published in OpenAPI v3, complete in itself (nothing refers elsewhere).
    pub fn open_api(&self) -> Value {
        match &self.0.published {
            Published::Definition(name) => definitions::inlined(name),
            Published::Custom(text) => with_type_meta(text, definitions::inlined(meta::OBJECT_META)),
            Published::Open => json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}),
        }
    }

    /// The schema as OpenAPI v3 components, for `components.schemas`: `name` is the key of this kind (a built-in kind has
    /// its own, see [`Schema::definition`]), the others are what it refers to.
    pub fn open_api_components(&self, name: &str) -> Map<String, Value> {
        match &self.0.published {
            Published::Definition(definition) => definitions::components(&[definition]),
            Published::Custom(text) => {
                let mut out = definitions::components(&[meta::OBJECT_META]);
                let reference = json!({
                    "allOf": [{"$ref": format!("#/components/schemas/{}", meta::OBJECT_META)}],
                    "description": "Standard object's metadata. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata",
                });
                out.insert(name.to_owned(), with_type_meta(text, reference));
                out
            }
            Published::Open => Map::from_iter([(name.to_owned(), self.open_api())]),
        }
    }

    /// The component name of a built-in kind, as in `io.k8s.api.core.v1.Pod`.
    pub fn definition(&self) -> Option<&'static str> {
        match self.0.published {
            Published::Definition(name) => Some(name),
            _ => None,
        }
    }
}

fn join_lines(value: &mut Value) {
    if let Value::String(text) = value
        && text.contains(['\n', '\r'])
    {
        text.retain(|c| c != '\n' && c != '\r');
    }
}

/// `stringData` of a Secret is only for writing.
fn encode_texts(object: &mut Value) {
    let Some(secret) = object.as_object_mut() else { return };
    let Some(Value::Object(texts)) = secret.shift_remove("stringData") else { return };
    if !texts.values().all(Value::is_string) {
        // Validation says which one is no text.
        secret.insert("stringData".to_owned(), Value::Object(texts));
        return;
    }
    let data = secret.entry("data").or_insert(Value::Null);
    if data.is_null() {
        *data = Value::Object(Map::new());
    }
    let Some(data) = data.as_object_mut() else { return };
    for (name, text) in texts {
        let encoded = base64::engine::general_purpose::STANDARD.encode(text.as_str().unwrap_or_default());
        data.insert(name, encoded.into());
    }
}

/// A CRD's schema with the fields that every object has.
fn with_type_meta(text: &str, metadata: Value) -> Value {
    let mut schema: Value = serde_json::from_str(text).unwrap_or_default();
    if let Some(map) = schema.as_object_mut() {
        let properties = map.entry("properties").or_insert_with(|| Value::Object(Map::new()));
        if let Some(properties) = properties.as_object_mut() {
            for (name, description) in [
                (
                    "apiVersion",
                    "APIVersion defines the versioned schema of this representation of an object. Servers should convert \
                     recognized schemas to the latest internal value, and may reject unrecognized values. More info: \
                     https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources",
                ),
                (
                    "kind",
                    "Kind is a string value representing the REST resource this object represents. Servers may infer this \
                     from the endpoint the client submits requests to. Cannot be updated. In CamelCase. More info: \
                     https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds",
                ),
            ] {
                properties.entry(name).or_insert_with(|| json!({"type": "string", "description": description}));
            }
            properties.insert("metadata".to_owned(), metadata);
        }
    }
    spell_out(&mut schema);
    schema
}

/// `x-kubernetes-int-or-string` in words that any reader of OpenAPI knows.
fn spell_out(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            let marked = map.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true));
            if marked && !map.contains_key("anyOf") && !map.contains_key("allOf") {
                map.insert("anyOf".to_owned(), json!([{"type": "integer"}, {"type": "string"}]));
            }
            map.values_mut().for_each(spell_out);
        }
        Value::Array(items) => items.iter_mut().for_each(spell_out),
        _ => {}
    }
}
