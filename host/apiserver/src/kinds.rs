//! What is particular about single built-in kinds: what the server fills in, keeps, refuses or does when they change.

use crate::catalog::{Resource, crd};
use crate::rest::{Call, now};
use crate::schema::{self, FieldError, FieldErrorKind};
use crate::selector::{self, Selector};
use crate::status::Status;
use crate::store::{Object, Store};
use serde_json::{Value, json};

/// Namespaces that are always there.
pub(crate) const NAMESPACES: &[&str] = &["default", "kube-node-lease", "kube-public", "kube-system"];
/// The finalizer, in its spec, of a namespace that still has contents.
const NAMESPACE_FINALIZER: &str = "kubernetes";

fn is(resource: &Resource, group: &str, plural: &str) -> bool {
    !resource.custom && resource.group == group && resource.plural == plural
}

/// Whether a built-in kind counts its generations.
pub(crate) fn has_generation(resource: &Resource) -> bool {
    matches!(
        (resource.group.as_str(), resource.plural.as_str()),
        ("apps", "deployments" | "replicasets" | "statefulsets" | "daemonsets")
            | ("batch", "jobs" | "cronjobs")
            | ("policy", "poddisruptionbudgets")
            | ("networking.k8s.io", "networkpolicies" | "ingresses")
            | ("apiextensions.k8s.io", "customresourcedefinitions")
            | ("admissionregistration.k8s.io", _)
            | ("", "pods" | "replicationcontrollers")
    )
}

/// A namespace as the server makes it.
pub(crate) fn namespace(name: &str) -> Value {
    let mut object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {
        "name": name, "uid": uuid::Uuid::new_v4().to_string(), "creationTimestamp": now()}});
    complete_namespace(&mut object);
    object
}

fn complete_namespace(object: &mut Value) {
    let name = object.pointer("/metadata/name").cloned().unwrap_or_default();
    let Some(fields) = object.as_object_mut() else { return };
    if let Some(metadata) = fields.get_mut("metadata").and_then(Value::as_object_mut)
        && let Some(labels) = metadata.entry("labels").or_insert_with(|| json!({})).as_object_mut()
    {
        labels.insert("kubernetes.io/metadata.name".into(), name);
    }
    fields.insert("spec".into(), json!({"finalizers": [NAMESPACE_FINALIZER]}));
    fields.insert("status".into(), json!({"phase": "Active"}));
}

/// Fills in a new object.
pub(crate) fn before_create(call: &Call<'_>, object: &mut Value) {
    let resource = &*call.resource;
    if is(resource, "", "namespaces") {
        complete_namespace(object);
    } else if is(resource, "", "pods") {
        if let Some(fields) = object.as_object_mut() {
            fields.insert("status".into(), json!({"phase": "Pending", "qosClass": "BestEffort"}));
        }
    } else if is(resource, "certificates.k8s.io", "certificatesigningrequests") {
        if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
            spec.insert("username".into(), call.user.name.as_str().into());
            spec.insert("groups".into(), call.user.groups.iter().map(String::as_str).collect());
            spec.shift_remove("uid");
            spec.shift_remove("extra");
        }
    } else if is(resource, "apiextensions.k8s.io", "customresourcedefinitions") {
        schema::default_crd(object);
        crd::set_status(object, &call.server.catalog(), &now());
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut)
            && let Some(finalizers) = metadata.entry("finalizers").or_insert_with(|| json!([])).as_array_mut()
            && !finalizers.iter().any(|finalizer| finalizer == crd::FINALIZER)
        {
            finalizers.push(crd::FINALIZER.into());
        }
    }
}

/// Fills in a changed object, and keeps what may not change this way.
pub(crate) fn before_update(call: &Call<'_>, old: &Value, new: &mut Value, subresource: &str) {
    let resource = &*call.resource;
    if is(resource, "", "namespaces") && subresource.is_empty() {
        // Finalizers of a namespace's spec are removed by `finalize` only.
        if let Some(fields) = new.as_object_mut() {
            match old.get("spec") {
                Some(spec) => drop(fields.insert("spec".into(), spec.clone())),
                None => drop(fields.shift_remove("spec")),
            }
        }
    } else if is(resource, "certificates.k8s.io", "certificatesigningrequests") && subresource.is_empty() {
        if let (Some(fields), Some(spec)) = (new.as_object_mut(), old.get("spec")) {
            fields.insert("spec".into(), spec.clone());
        }
    } else if is(resource, "apiextensions.k8s.io", "customresourcedefinitions") && subresource.is_empty() {
        schema::default_crd(new);
        if old.get("spec") != new.get("spec") {
            crd::set_status(new, &call.server.catalog(), &now());
        }
    }
}

/// What is wrong with a new object that no schema says.
pub(crate) fn check_create(call: &Call<'_>, object: &Value) -> Vec<FieldError> {
    if is(&call.resource, "apiextensions.k8s.io", "customresourcedefinitions") {
        return schema::validate_crd(object);
    }
    Vec::new()
}

/// What is wrong with a change that no schema says.
pub(crate) fn check_update(call: &Call<'_>, old: &Value, new: &Value) -> Vec<FieldError> {
    let resource = &*call.resource;
    let immutable = |path: &str| -> Option<FieldError> {
        let pointer = format!("/{}", path.replace('.', "/"));
        (old.pointer(&pointer) != new.pointer(&pointer)).then(|| FieldError {
            path: path.to_owned(),
            kind: FieldErrorKind::Invalid,
            bad_value: new.pointer(&pointer).cloned(),
            detail: String::from("field is immutable"),
        })
    };
    if is(resource, "", "secrets") || is(resource, "", "configmaps") {
        let mut errors: Vec<FieldError> = immutable("type").into_iter().collect();
        if old.get("immutable") == Some(&Value::Bool(true)) {
            for name in ["data", "binaryData", "immutable"] {
                errors.extend((old.get(name) != new.get(name)).then(|| FieldError {
                    path: name.to_owned(),
                    kind: FieldErrorKind::Forbidden,
                    bad_value: None,
                    detail: String::from("field is immutable when `immutable` is set"),
                }));
            }
        }
        return errors;
    }
    if is(resource, "apps", "deployments")
        || is(resource, "apps", "replicasets")
        || is(resource, "apps", "daemonsets")
        || is(resource, "apps", "statefulsets")
    {
        return immutable("spec.selector").into_iter().collect();
    }
    if is(resource, "apiextensions.k8s.io", "customresourcedefinitions") && old.get("spec") != new.get("spec") {
        return schema::validate_crd_update(new, old);
    }
    Vec::new()
}

/// Whether an object may be deleted at all.
pub(crate) fn check_delete(resource: &Resource, object: &Object) -> Result<(), Status> {
    let kept = ["default", "kube-public", "kube-system"].contains(&&*object.key.name);
    if is(resource, "", "namespaces") && kept {
        return Err(Status::forbidden("", "namespaces", &object.key.name, "this namespace may not be deleted"));
    }
    Ok(())
}

/// How many seconds a deletion waits for whoever runs the object. Pods on a node wait for their kubelet.
pub(crate) fn grace(resource: &Resource, object: &Value, asked: Option<i64>) -> i64 {
    if !is(resource, "", "pods") {
        return 0;
    }
    let text = |path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or_default();
    if text("/spec/nodeName").is_empty() || matches!(text("/status/phase"), "Failed" | "Succeeded") {
        return 0;
    }
    let own = object.pointer("/spec/terminationGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(30);
    asked.unwrap_or(own).max(0)
}

/// What else changes in an object when its deletion begins.
pub(crate) fn mark_deleted(resource: &Resource, object: &mut Value) {
    if is(resource, "", "namespaces")
        && let Some(fields) = object.as_object_mut()
        && let Some(status) = fields.entry("status").or_insert_with(|| json!({})).as_object_mut()
    {
        status.insert("phase".into(), "Terminating".into());
    }
}

/// Whether the answer to a deletion is the object rather than a Status.
pub(crate) fn shows_deleted(resource: &Resource) -> bool {
    is(resource, "", "pods")
        || is(resource, "", "namespaces")
        || is(resource, "", "services")
        || is(resource, "", "serviceaccounts")
}

/// The disruption budget that a pod's eviction would violate.
pub(crate) fn blocking_budget(store: &Store, pod: &Object) -> Option<String> {
    let budgets = store.list("poddisruptionbudgets.policy", &pod.key.namespace, None, None).ok()?;
    for budget in budgets.objects {
        let value = budget.value_without_managed_fields();
        let text = selector::text_of(value.pointer("/spec/selector").unwrap_or(&Value::Null));
        let Ok(selector) = Selector::parse(Some(&text), None, &[]) else { continue };
        let allowed = value.pointer("/status/disruptionsAllowed").and_then(Value::as_i64).unwrap_or(0);
        if value.pointer("/spec/selector").is_some() && selector.matches(pod) && allowed <= 0 {
            return Some(budget.key.name.to_string());
        }
    }
    None
}
