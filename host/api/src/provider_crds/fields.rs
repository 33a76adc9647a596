//! The fields that Cluster API's contract gives to each duty.

use serde_json::{Value, json};

use super::Duty;
use crate::crds::RULES;
use crate::machine::MachineAddress;
use crate::meta::{Condition, Endpoint, FailureDomain, TemplateMeta, VersionCount};
use crate::structural::{schema_of, set};

/// Puts the contract's fields beside the component's own. A field that the component describes itself stays.
pub(super) fn merge(duty: Duty, contract: &str, schema: &mut Value) {
    let (spec, status) = match duty {
        Duty::InfraCluster => (
            vec![("controlPlaneEndpoint", described::<Endpoint>("Where the control plane is reached."))],
            vec![
                ("initialization", initialization("provisioned", "The infrastructure of the cluster was made.")),
                ("ready", boolean("The infrastructure of the cluster was made (contract v1beta1).")),
                ("failureDomains", failure_domains(contract)),
            ],
        ),
        Duty::InfraMachine => (
            vec![(
                "providerID",
                json!({"type": "string", "description": "What the cloud calls the machine; its Node says the same.",
                    "minLength": 1, "maxLength": 512}),
            )],
            vec![
                ("initialization", initialization("provisioned", "The infrastructure of the machine was made.")),
                ("ready", boolean("The infrastructure of the machine was made (contract v1beta1).")),
                ("addresses", addresses()),
                (
                    "failureDomain",
                    json!({"type": "string", "description": "Failure domain that the machine is in.",
                        "minLength": 1, "maxLength": 256}),
                ),
                ("interruptible", boolean("The machine may vanish at any time.")),
            ],
        ),
        Duty::Bootstrap => (
            vec![],
            vec![
                (
                    "initialization",
                    initialization("dataSecretCreated", "The Secret with the first-boot data was made."),
                ),
                ("ready", boolean("The Secret with the first-boot data was made (contract v1beta1).")),
                (
                    "dataSecretName",
                    json!({"type": "string", "description": "Name of the Secret with the first-boot data.",
                        "minLength": 1, "maxLength": 253}),
                ),
            ],
        ),
        Duty::ControlPlane => (vec![], control_plane_status()),
        Duty::Identity => return,
    };
    // The host writes conditions before the component has said anything of the status.
    if let Some(own) = schema.pointer_mut("/properties/status").and_then(Value::as_object_mut) {
        own.remove("required");
    }
    put(schema, "spec", spec);
    put(schema, "status", status);
    put(
        schema,
        "status",
        vec![
            ("conditions", conditions()),
            (
                "observedGeneration",
                json!({"type": "integer", "format": "int64", "minimum": 1,
                    "description": "The generation that was last looked at."}),
            ),
        ],
    );
}

fn put(schema: &mut Value, part: &str, fields: Vec<(&str, Value)>) {
    let at = format!("/properties/{part}");
    if !schema.pointer(&at).is_some_and(Value::is_object) {
        set(schema, &at, json!({"type": "object"}));
    }
    let description = format!("{at}/description");
    if schema.pointer(&description).is_none() {
        let about = if part == "spec" { "The desired state." } else { "The observed state." };
        set(schema, &description, about.into());
    }
    for (name, value) in fields {
        let pointer = format!("{at}/properties/{name}");
        if schema.pointer(&pointer).is_none() {
            set(schema, &pointer, value);
        }
    }
}

fn described<T: schemars::JsonSchema>(about: &str) -> Value {
    let mut schema = schema_of::<T>();
    set(&mut schema, "/description", about.into());
    schema
}

fn boolean(about: &str) -> Value {
    json!({"type": "boolean", "description": about})
}

fn count(about: &str) -> Value {
    json!({"type": "integer", "format": "int32", "description": about})
}

fn initialization(field: &str, about: &str) -> Value {
    json!({
        "type": "object",
        "description": "How far it has come for the first time. These never go back.",
        "properties": {field: boolean(about)},
    })
}

fn list_map(item: Value, keys: &[&str], limit: u32, about: &str) -> Value {
    json!({
        "type": "array",
        "description": about,
        "items": item,
        "maxItems": limit,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": keys,
    })
}

fn conditions() -> Value {
    list_map(schema_of::<Condition>(), &["type"], 32, "What is known of the object.")
}

fn addresses() -> Value {
    json!({
        "type": "array",
        "description": "Addresses of the machine.",
        "items": schema_of::<MachineAddress>(),
        "maxItems": 256,
        "x-kubernetes-list-type": "atomic",
    })
}

/// A list in v1beta2, a map in v1beta1.
fn failure_domains(contract: &str) -> Value {
    let about = "Failure domains that machines may be put into.";
    let mut item = schema_of::<FailureDomain>();
    if contract == "v1beta2" {
        return list_map(item, &["name"], 100, about);
    }
    if let Some(properties) = item.get_mut("properties").and_then(Value::as_object_mut) {
        properties.shift_remove("name");
    }
    if let Some(item) = item.as_object_mut() {
        item.shift_remove("required");
    }
    json!({"type": "object", "description": about, "additionalProperties": item})
}

fn control_plane_status() -> Vec<(&'static str, Value)> {
    vec![
        ("initialization", initialization("controlPlaneInitialized", "The control plane accepted its first request.")),
        ("initialized", boolean("The control plane accepted its first request (contract v1beta1).")),
        ("ready", boolean("The control plane answers (contract v1beta1).")),
        ("externalManagedControlPlane", boolean("No Machines or Nodes stand for the control plane.")),
        (
            "selector",
            json!({"type": "string", "description": "The machines' selector as text, for the scale subresource."}),
        ),
        ("replicas", count("Machines that belong to the control plane.")),
        ("readyReplicas", count("Machines with condition Ready.")),
        ("availableReplicas", count("Machines with condition Available.")),
        ("upToDateReplicas", count("Machines with condition UpToDate.")),
        ("updatedReplicas", count("Machines that are up to date (contract v1beta1).")),
        ("unavailableReplicas", count("Machines that are not available (contract v1beta1).")),
        ("version", json!({"type": "string", "description": "Lowest Kubernetes version of the machines."})),
        (
            "versions",
            list_map(schema_of::<VersionCount>(), &["version"], 100, "Machines by Kubernetes version, oldest first."),
        ),
    ]
}

/// The schema of the `…Template` kind. What was cloned must stay what the template says, so infrastructure and
/// control-plane templates cannot be changed (a bootstrap template can: it is read when a machine is made).
pub(super) fn template(kind: &str, duty: Duty, spec: &Value) -> Value {
    let mut inner = spec.clone();
    if duty != Duty::Bootstrap {
        let mut rules = inner.get("x-kubernetes-validations").and_then(Value::as_array).cloned().unwrap_or_default();
        rules.push(json!({
            "rule": "self == oldSelf",
            "message": "a template cannot be changed: make a new one and refer to it",
        }));
        set(&mut inner, RULES, rules.into());
    }
    let mut schema = json!({
        "description": format!("{kind}Template is what {kind} objects are cloned from."),
        "type": "object",
        "properties": {
            "spec": {
                "type": "object",
                "description": format!("The {kind} objects to be made."),
                "properties": {"template": {
                    "type": "object",
                    "description": format!("The {kind} objects to be made."),
                    "properties": {
                        "metadata": described::<TemplateMeta>("Labels and annotations of the objects."),
                        "spec": inner,
                    },
                    "required": ["spec"],
                }},
                "required": ["template"],
            },
            "status": {
                "type": "object",
                "description": "The observed state.",
                "properties": {"conditions": conditions()},
            },
        },
        "required": ["spec"],
    });
    if duty == Duty::InfraMachine {
        put(
            &mut schema,
            "status",
            vec![
                (
                    "capacity",
                    json!({"type": "object", "description": "What a machine offers, for scaling from zero.",
                        "additionalProperties": {
                            "x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]}}),
                ),
                (
                    "nodeInfo",
                    json!({"type": "object", "description": "What a Node would say of itself.", "properties": {
                        "architecture": {"type": "string", "enum": ["amd64", "arm64", "s390x", "ppc64le"]},
                        "operatingSystem": {"type": "string"}}}),
                ),
            ],
        );
    }
    schema
}
