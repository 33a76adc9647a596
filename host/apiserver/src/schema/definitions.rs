//! The types of the built-in kinds: field trees from `k8s-openapi`, completed by a table of what JSON Schema does not say.
//!
//! The JSON form is large and rarely wanted, so it is generated anew whenever it is published; the compiled form is small
//! and stays.

use super::node::{Additional, Checks, Field, ListType, Node, Patch, Type};
use k8s_openapi::api::{
    admissionregistration, apps, batch, certificates, coordination, core, discovery, events, networking, policy, rbac,
    scheduling, storage,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions;
use k8s_openapi::schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock};

/// See the head of the file.
const TABLE: &str = include_str!("builtin.table");

/// Where OpenAPI v3 keeps schemas.
const COMPONENTS: &str = "#/components/schemas/";

/// One row of the table.
#[derive(Clone, Debug, Default)]
struct Note {
    list: Option<ListType>,
    /// `Some(true)` atomic, `Some(false)` granular although the type is atomic.
    atomic: Option<bool>,
    patch: Patch,
    always: bool,
    default: Option<Value>,
}

static NOTES: LazyLock<HashMap<String, Note>> = LazyLock::new(|| {
    let mut notes = HashMap::new();
    for line in TABLE.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split(' ');
        let Some(name) = words.next() else { continue };
        let mut note = Note::default();
        for word in words {
            match word.split_once('=').unwrap_or((word, "")) {
                ("map", keys) => note.list = Some(ListType::Map(keys.split(',').map(str::to_owned).collect())),
                ("set", _) => note.list = Some(ListType::Set),
                ("atomic", _) => note.atomic = Some(true),
                ("granular", _) => note.atomic = Some(false),
                ("merge", key) => {
                    note.patch.merge = true;
                    note.patch.merge_key = (!key.is_empty()).then(|| key.to_owned());
                }
                ("replace", _) => note.patch.replace = true,
                ("retainKeys", _) => note.patch.retain_keys = true,
                ("always", _) => note.always = true,
                ("default", json) => note.default = serde_json::from_str(json).ok(),
                _ => {}
            }
        }
        notes.insert(name.to_owned(), note);
    }
    notes
});

/// `io.k8s.api.core.v1.Pod` as the table writes it: `core.v1.Pod`.
fn short(definition: &str) -> String {
    let mut parts: Vec<&str> = definition.rsplitn(4, '.').take(3).collect();
    parts.reverse();
    parts.join(".")
}

fn note(definition: &str, field: Option<&str>) -> Option<&'static Note> {
    let name = match field {
        Some(field) => format!("{}.{field}", short(definition)),
        None => short(definition),
    };
    NOTES.get(&name)
}

/// All definitions as `k8s-openapi` has them.
fn raw() -> Map<String, Value> {
    let mut generator = SchemaSettings::draft2020_12()
        .with(|settings| {
            settings.definitions_path = "/components/schemas".into();
            settings.meta_schema = None;
        })
        .into_generator();
    macro_rules! add {
        ($($kind:ty),* $(,)?) => { $(let _ = generator.subschema_for::<$kind>();)* };
    }
    add!(
        admissionregistration::v1::MutatingWebhookConfiguration,
        admissionregistration::v1::ValidatingAdmissionPolicy,
        admissionregistration::v1::ValidatingAdmissionPolicyBinding,
        admissionregistration::v1::ValidatingWebhookConfiguration,
        core::v1::ConfigMap,
        core::v1::Endpoints,
        core::v1::Event,
        core::v1::Namespace,
        core::v1::Node,
        core::v1::PersistentVolume,
        core::v1::PersistentVolumeClaim,
        core::v1::Pod,
        core::v1::Secret,
        core::v1::Service,
        core::v1::ServiceAccount,
        apps::v1::ControllerRevision,
        apps::v1::DaemonSet,
        apps::v1::Deployment,
        apps::v1::ReplicaSet,
        apps::v1::StatefulSet,
        batch::v1::Job,
        certificates::v1::CertificateSigningRequest,
        coordination::v1::Lease,
        discovery::v1::EndpointSlice,
        networking::v1::NetworkPolicy,
        scheduling::v1::PriorityClass,
        events::v1::Event,
        policy::v1::PodDisruptionBudget,
        rbac::v1::ClusterRole,
        rbac::v1::ClusterRoleBinding,
        rbac::v1::Role,
        rbac::v1::RoleBinding,
        storage::v1::StorageClass,
        storage::v1::VolumeAttachment,
        apiextensions::v1::CustomResourceDefinition,
    );
    generator.take_definitions(false)
}

/// All compiled definitions, by full name.
pub(crate) fn nodes() -> &'static HashMap<String, Arc<Node>> {
    static NODES: LazyLock<HashMap<String, Arc<Node>>> = LazyLock::new(|| {
        let raw = raw();
        let mut compiler = Compiler { raw: &raw, done: HashMap::new(), busy: Vec::new(), plain: HashMap::new() };
        for name in raw.keys() {
            compiler.definition(name);
        }
        compiler.done
    });
    &NODES
}

struct Compiler<'a> {
    raw: &'a Map<String, Value>,
    done: HashMap<String, Arc<Node>>,
    busy: Vec<String>,
    /// Nodes that say nothing but a type, shared.
    plain: HashMap<String, Arc<Node>>,
}

impl Compiler<'_> {
    fn definition(&mut self, name: &str) -> Arc<Node> {
        if let Some(node) = self.done.get(name) {
            return node.clone();
        }
        // A type that contains itself (JSONSchemaProps) is kept as it is from there on.
        if self.busy.iter().any(|busy| busy == name) || name.ends_with(".JSONSchemaProps") {
            return Arc::new(Node::any());
        }
        let Some(schema) = self.raw.get(name) else { return Arc::new(Node::any()) };
        self.busy.push(name.to_owned());
        let mut node = self.node(schema, name);
        self.busy.pop();
        if name.ends_with(".Quantity") {
            // A quantity may be written as a number, and as a fraction.
            node = Node::of(Type::Any);
            node.checks = Some(Box::new(Checks { types: vec![Type::String, Type::Number], ..Checks::default() }));
        }
        if let Some(note) = note(name, None) {
            node.atomic = note.atomic.unwrap_or(false);
        }
        let node = Arc::new(node.finish());
        self.done.insert(name.to_owned(), node.clone());
        node
    }

    /// The shared node of a child schema.
    fn child(&mut self, schema: &Value, owner: &str) -> Arc<Node> {
        if let Some(name) = reference(schema) {
            return self.definition(name);
        }
        let node = self.node(schema, owner).finish();
        if !node.ty.is_scalar() {
            return Arc::new(node);
        }
        let key = format!("{:?} {:?}", node.ty, node.checks);
        self.plain.entry(key).or_insert_with(|| Arc::new(node)).clone()
    }

    fn node(&mut self, schema: &Value, owner: &str) -> Node {
        let Some(map) = schema.as_object() else { return Node::any() };
        if map.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true)) {
            return Node::of(Type::IntOrString);
        }
        let Some(ty) = map.get("type").and_then(Value::as_str).and_then(Type::parse) else { return Node::any() };
        let mut node = Node::of(ty);
        let mut checks = Checks {
            format: map.get("format").and_then(Value::as_str).map(str::to_owned),
            required: required(map, owner),
            ..Checks::default()
        };
        if checks.format.as_deref() == Some("double") {
            checks.format = None;
        }
        node.checks = (!checks.is_empty()).then(|| Box::new(checks));
        if let Some(properties) = map.get("properties").and_then(Value::as_object) {
            node.typed = true;
            node.fields =
                properties.iter().map(|(name, schema)| (name.clone(), self.field(owner, name, schema))).collect();
        }
        if let Some(additional) = map.get("additionalProperties") {
            node.additional = match additional {
                Value::Bool(true) => Additional::Any,
                schema => Additional::Schema(self.child(schema, owner)),
            };
        }
        if let Some(items) = map.get("items") {
            node.items = Some(self.child(items, owner));
        }
        if ty == Type::Object && !map.contains_key("properties") && !map.contains_key("additionalProperties") {
            node.preserve = true;
        }
        node
    }

    fn field(&mut self, owner: &str, name: &str, schema: &Value) -> Field {
        let mut node = self.child(schema, owner);
        let mut field_patch = Patch::default();
        let mut always = name == "metadata" && reference(schema) == Some(super::meta::OBJECT_META);
        if let Some(note) = note(owner, Some(name)) {
            field_patch = note.patch.clone();
            always |= note.always;
            if note.list.is_some() || note.atomic.is_some() || note.default.is_some() {
                let own = Arc::make_mut(&mut node);
                own.list = note.list.clone().unwrap_or_else(|| own.list.clone());
                own.atomic = note.atomic.unwrap_or(own.atomic);
                if note.default.is_some() {
                    own.default = note.default.clone();
                    own.defaults_below = true;
                }
            }
        }
        Field { node, patch: field_patch, always }
    }
}

/// What must be there. Status is written by controllers that leave out what they do not know, and real servers let them.
fn required(map: &Map<String, Value>, owner: &str) -> Vec<String> {
    let lenient = owner.ends_with("Status") || owner.ends_with(".NodeSystemInfo") || owner.ends_with(".Event");
    if lenient {
        return Vec::new();
    }
    let names = map.get("required").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    names.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn reference(schema: &Value) -> Option<&str> {
    schema.get("$ref").and_then(Value::as_str)?.strip_prefix(COMPONENTS)
}

/// The definitions that `roots` need, as OpenAPI v3 components: references kept, `x-kubernetes-*` added.
pub(crate) fn components(roots: &[&str]) -> Map<String, Value> {
    let mut raw = raw();
    let mut out = BTreeMap::new();
    let mut todo: Vec<String> = roots.iter().map(|root| (*root).to_owned()).collect();
    while let Some(name) = todo.pop() {
        let Some(mut schema) = raw.remove(&name) else { continue };
        publish(&name, &mut schema);
        references(&schema, &mut todo);
        out.insert(name, schema);
    }
    out.into_iter().collect()
}

fn references(schema: &Value, found: &mut Vec<String>) {
    match schema {
        Value::Object(map) => {
            if let Some(name) = reference(schema) {
                found.push(name.to_owned());
            }
            map.values().for_each(|value| references(value, found));
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        _ => {}
    }
}

/// References by a name that may be empty.
const NAMELESS: &[&str] = &[
    ".LocalObjectReference",
    ".ConfigMapEnvSource",
    ".ConfigMapKeySelector",
    ".ConfigMapProjection",
    ".SecretEnvSource",
    ".SecretKeySelector",
    ".SecretProjection",
];

/// Adds what the table says, and puts references with siblings into `allOf`, as OpenAPI 3.0 wants them.
fn publish(definition: &str, schema: &mut Value) {
    if note(definition, None).and_then(|note| note.atomic) == Some(true)
        && let Some(map) = schema.as_object_mut()
    {
        map.insert("x-kubernetes-map-type".to_owned(), "atomic".into());
    }
    // What Rust's types always have is not what a client must say.
    let always = |name: &Value| {
        (name == "metadata" && !definition.ends_with(".core.v1.Event"))
            || (name == "name"
                && definition.contains(".core.v1.")
                && NAMELESS.iter().any(|own| definition.ends_with(own)))
    };
    if let Some(required) = schema.get_mut("required").and_then(Value::as_array_mut) {
        required.retain(|name| !always(name));
        if required.is_empty()
            && let Some(map) = schema.as_object_mut()
        {
            map.shift_remove("required");
        }
    }
    let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) else { return };
    for (name, property) in properties {
        let Some(map) = property.as_object_mut() else { continue };
        if map.len() > 1
            && let Some(reference) = map.shift_remove("$ref")
        {
            map.insert("allOf".to_owned(), json!([{ "$ref": reference }]));
        }
        let Some(note) = note(definition, Some(name)) else { continue };
        let mut put = |name: &str, value: Value| map.insert(name.to_owned(), value);
        match (&note.list, note.atomic) {
            (Some(ListType::Map(keys)), _) => {
                put("x-kubernetes-list-type", "map".into());
                put("x-kubernetes-list-map-keys", keys.clone().into());
            }
            (Some(ListType::Set), _) => {
                put("x-kubernetes-list-type", "set".into());
            }
            (_, Some(atomic)) => {
                put("x-kubernetes-map-type", if atomic { "atomic" } else { "granular" }.into());
            }
            _ => {}
        }
        let strategies =
            [(note.patch.merge, "merge"), (note.patch.retain_keys, "retainKeys"), (note.patch.replace, "replace")];
        let strategy: Vec<&str> = strategies.into_iter().filter(|(on, _)| *on).map(|(_, name)| name).collect();
        if !strategy.is_empty() {
            put("x-kubernetes-patch-strategy", strategy.join(",").into());
        }
        if let Some(key) = &note.patch.merge_key {
            put("x-kubernetes-patch-merge-key", key.as_str().into());
        }
        if let Some(default) = &note.default {
            put("default", default.clone());
        }
    }
}

/// A definition with every reference replaced by what it refers to.
pub(crate) fn inlined(root: &str) -> Value {
    let components = components(&[root]);
    fn resolve(schema: &Value, components: &Map<String, Value>, busy: &mut Vec<String>) -> Value {
        match schema {
            Value::Object(map) => {
                let single = map.get("allOf").and_then(Value::as_array).and_then(|all| match all.as_slice() {
                    [only] => reference(only),
                    _ => None,
                });
                let Some(name) = reference(schema).or(single) else {
                    return map.iter().map(|(name, value)| (name.clone(), resolve(value, components, busy))).collect();
                };
                let mut out = match components.get(name) {
                    Some(target) if !busy.iter().any(|busy| busy == name) => {
                        busy.push(name.to_owned());
                        let out = resolve(target, components, busy);
                        busy.pop();
                        out
                    }
                    _ => json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}),
                };
                if let Some(out) = out.as_object_mut() {
                    for (name, value) in map.iter().filter(|(name, _)| *name != "$ref" && *name != "allOf") {
                        out.insert(name.clone(), value.clone());
                    }
                }
                out
            }
            Value::Array(items) => items.iter().map(|item| resolve(item, components, busy)).collect(),
            other => other.clone(),
        }
    }
    components.get(root).map_or_else(|| json!({}), |schema| resolve(schema, &components, &mut vec![root.to_owned()]))
}
