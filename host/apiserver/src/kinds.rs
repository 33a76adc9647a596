//! What is particular about single built-in kinds: what the server fills in, keeps, refuses or does when they change.

use crate::admission;
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

/// Every namespace can be selected by its name.
fn label_namespace(object: &mut Value) {
    let name = object.pointer("/metadata/name").cloned().unwrap_or_default();
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut)
        && let Some(labels) = metadata.entry("labels").or_insert_with(|| json!({})).as_object_mut()
        && !name.is_null()
    {
        labels.insert("kubernetes.io/metadata.name".into(), name);
    }
}

/// The defaults of an object that its schema does not have: as if the client had sent them.
pub(crate) fn complete(resource: &Resource, object: &mut Value) {
    if is(resource, "", "namespaces") {
        label_namespace(object);
    } else if is(resource, "apiextensions.k8s.io", "customresourcedefinitions") {
        schema::default_crd(object);
    } else if is(resource, "", "services") {
        complete_service(object);
    } else if is(resource, "rbac.authorization.k8s.io", "rolebindings")
        || is(resource, "rbac.authorization.k8s.io", "clusterrolebindings")
    {
        for subject in object.get_mut("subjects").and_then(Value::as_array_mut).into_iter().flatten() {
            let named = matches!(subject.get("kind").and_then(Value::as_str), Some("User" | "Group"));
            if let Some(fields) = subject.as_object_mut().filter(|_| named) {
                fields.entry("apiGroup").or_insert_with(|| resource.group.as_str().into());
            }
        }
    } else if is(resource, "networking.k8s.io", "networkpolicies") {
        if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
            let egress = spec.get("egress").and_then(Value::as_array).is_some_and(|rules| !rules.is_empty());
            let types = if egress { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) };
            spec.entry("policyTypes").or_insert(types);
        }
    } else if is(resource, "", "pods") {
        if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
            spec.entry("enableServiceLinks").or_insert(Value::Bool(true));
        }
        complete_containers(object, "/spec");
    } else if !resource.custom && matches!(resource.group.as_str(), "apps" | "batch") {
        complete_containers(object, "/spec/template/spec");
    }
}

/// An image without a tag of its own may be another one tomorrow.
fn complete_containers(object: &mut Value, spec: &str) {
    for list in ["initContainers", "containers"] {
        let containers = object.pointer_mut(&format!("{spec}/{list}")).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten().filter_map(Value::as_object_mut) {
            let image = container.get("image").and_then(Value::as_str).unwrap_or_default();
            let name = image.rsplit('/').next().unwrap_or_default();
            let fixed = name.contains('@') || name.split_once(':').is_some_and(|(_, tag)| tag != "latest");
            let policy = if fixed { "IfNotPresent" } else { "Always" };
            container.entry("imagePullPolicy").or_insert_with(|| policy.into());
        }
    }
}

fn complete_service(object: &mut Value) {
    let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else { return };
    if spec.get("type").and_then(Value::as_str) == Some("ExternalName") {
        return;
    }
    spec.entry("internalTrafficPolicy").or_insert_with(|| "Cluster".into());
    for port in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        if let (Some(number), Some(fields)) = (port.get("port").cloned(), port.as_object_mut()) {
            fields.entry("targetPort").or_insert(number);
        }
    }
}

/// The status of a new object, where Go's types have one that is never absent.
fn first_status(resource: &Resource) -> Option<Value> {
    if resource.custom {
        return None;
    }
    Some(match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "pods") => json!({"phase": "Pending", "qosClass": "BestEffort"}),
        ("", "persistentvolumes" | "persistentvolumeclaims") => json!({"phase": "Pending"}),
        ("", "services") => json!({"loadBalancer": {}}),
        ("storage.k8s.io", "volumeattachments") => json!({"attached": false}),
        ("apps", "deployments") | ("batch", "jobs") | (admission::GROUP, "validatingadmissionpolicies") => json!({}),
        ("apps", "replicasets") => json!({"replicas": 0}),
        ("apps", "statefulsets") => json!({"replicas": 0, "availableReplicas": 0}),
        ("apps", "daemonsets") => {
            json!({"currentNumberScheduled": 0, "numberMisscheduled": 0, "desiredNumberScheduled": 0, "numberReady": 0})
        }
        ("policy", "poddisruptionbudgets") => {
            json!({"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0})
        }
        _ => return None,
    })
}

/// Whether an object that is not there is made by a PUT.
pub(crate) fn is_made_by_update(resource: &Resource) -> bool {
    !resource.custom
        && matches!(
            (resource.group.as_str(), resource.plural.as_str()),
            ("", "services" | "endpoints" | "events")
                | ("coordination.k8s.io", "leases")
                | ("events.k8s.io", "events")
                | ("rbac.authorization.k8s.io", _)
        )
}

/// Whether a new object keeps the status that it is sent with: a kubelet makes its Node with one.
pub(crate) fn is_born_with_status(resource: &Resource) -> bool {
    is(resource, "", "nodes")
}

pub(crate) fn is_namespace(resource: &Resource) -> bool {
    is(resource, "", "namespaces")
}

fn complete_namespace(object: &mut Value) {
    label_namespace(object);
    let Some(fields) = object.as_object_mut() else { return };
    fields.insert("spec".into(), json!({"finalizers": [NAMESPACE_FINALIZER]}));
    fields.insert("status".into(), json!({"phase": "Active"}));
}

/// What a headless service says of its addresses. None are given out here: nobody would route them.
fn complete_addresses(object: &mut Value) {
    let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else { return };
    if spec.get("clusterIP").and_then(Value::as_str) == Some("None") {
        // Whose endpoints are made by hand may have them in both families.
        let by_hand = spec.get("selector").and_then(Value::as_object).is_none_or(serde_json::Map::is_empty);
        let (families, policy) =
            if by_hand { (json!(["IPv4", "IPv6"]), "RequireDualStack") } else { (json!(["IPv4"]), "SingleStack") };
        spec.entry("clusterIPs").or_insert_with(|| json!(["None"]));
        spec.entry("ipFamilies").or_insert(families);
        spec.entry("ipFamilyPolicy").or_insert_with(|| policy.into());
    }
}

/// Fills in a new object.
pub(crate) fn before_create(call: &Call<'_>, object: &mut Value) {
    let resource = &*call.resource;
    if is(resource, "", "namespaces") {
        complete_namespace(object);
    } else if let (Some(status), Some(fields)) = (first_status(resource), object.as_object_mut()) {
        fields.insert("status".into(), status);
        if is(resource, "", "services") {
            complete_addresses(object);
        }
    } else if is(resource, "certificates.k8s.io", "certificatesigningrequests") {
        if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
            spec.insert("username".into(), call.user.name.as_str().into());
            spec.insert("groups".into(), call.user.groups.iter().map(String::as_str).collect());
            spec.shift_remove("uid");
            spec.shift_remove("extra");
        }
    } else if is(resource, "apiextensions.k8s.io", "customresourcedefinitions") {
        tell_status(call, object);
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
    } else if is(resource, "apiextensions.k8s.io", "customresourcedefinitions")
        && subresource.is_empty()
        && old.get("spec") != new.get("spec")
    {
        tell_status(call, new);
    }
}

/// Whether it is a policy, a binding of one or a configuration of webhooks.
pub(crate) fn has_a_say(resource: &Resource) -> bool {
    !resource.custom && resource.group == admission::GROUP
}

/// What is wrong with such an object; when nothing is, whether who makes it may read what it refers to.
fn check_say(call: &Call<'_>, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let plural = &call.resource.plural;
    let errors = admission::check(plural, object, old);
    if !errors.is_empty() {
        return errors;
    }
    call.server.confirm_params(&call.user, plural, object, old).into_iter().collect()
}

/// What is wrong with a new object that no schema says.
pub(crate) fn check_create(call: &Call<'_>, object: &Value) -> Vec<FieldError> {
    if is(&call.resource, "apiextensions.k8s.io", "customresourcedefinitions") {
        return schema::validate_crd(object);
    }
    if has_a_say(&call.resource) {
        return check_say(call, object, None);
    }
    check_content(&call.resource, object)
}

/// Sets what a definition says of itself. Upstream's controllers do, as a manager of their own, so the fields are theirs.
fn tell_status(call: &Call<'_>, definition: &mut Value) {
    crd::set_stored_versions(definition);
    if let Some(status) = definition.get_mut("status").and_then(Value::as_object_mut) {
        status.entry("acceptedNames").or_insert_with(|| json!({"kind": "", "plural": ""}));
        status.entry("conditions").or_insert_with(|| json!([]));
    }
    let before = definition.clone();
    crd::set_status(definition, &call.server.catalog(), &now());
    let schema = call.version.schema();
    schema::track_update(schema, Some(&before), definition, "kube-apiserver", Some("status"), &now());
}

/// The greatest size of what is in a Secret or a ConfigMap, in bytes.
const CONTENT: usize = 1 << 20;

/// What is wrong with the contents of a Secret or a ConfigMap; and with finalizers of built-in kinds, which must have a domain.
fn check_content(resource: &Resource, object: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if resource.custom {
        return errors;
    }
    let finalizers = object.pointer("/metadata/finalizers").and_then(Value::as_array).into_iter().flatten();
    for (index, finalizer) in finalizers.enumerate() {
        let name = finalizer.as_str().unwrap_or_default();
        if !name.contains('/') && !matches!(name, "kubernetes" | "orphan" | "foregroundDeletion") {
            let why = "name is neither a standard finalizer name nor is it fully qualified";
            errors.push(FieldError::invalid(format!("metadata.finalizers[{index}]"), name, why));
        }
    }
    errors.extend(check_numbers(resource, object));
    if !is(resource, "", "secrets") && !is(resource, "", "configmaps") {
        return errors;
    }
    let mut size = 0;
    let map = |name: &str| object.get(name).and_then(Value::as_object);
    for field in ["data", "binaryData"] {
        let mut entries: Vec<(&String, &Value)> = map(field).into_iter().flatten().collect();
        entries.sort_by_key(|(key, _)| *key);
        for (key, value) in entries {
            let path = format!("{field}[{key}]");
            let wrong = config_key(key).into_iter();
            errors.extend(wrong.map(|why| FieldError::invalid(path.as_str(), key.as_str(), why)));
            if field == "data" && map("binaryData").is_some_and(|other| other.contains_key(key)) {
                errors.push(FieldError::invalid(path, key.as_str(), "duplicate of key present in binaryData"));
            }
            let length = value.as_str().map_or(0, str::len);
            let encoded = field == "binaryData" || is(resource, "", "secrets");
            size += if encoded { length / 4 * 3 } else { length };
        }
    }
    if size > CONTENT {
        let path = if is(resource, "", "secrets") { "data" } else { "[]" };
        errors.push(FieldError::too_long(path, CONTENT as u64));
    }
    if is(resource, "", "secrets") {
        let required: &[&str] = match object.get("type").and_then(Value::as_str).unwrap_or_default() {
            "kubernetes.io/tls" => &["tls.crt", "tls.key"],
            "kubernetes.io/dockerconfigjson" => &[".dockerconfigjson"],
            "kubernetes.io/ssh-auth" => &["ssh-privatekey"],
            _ => &[],
        };
        for key in required.iter().filter(|key| map("data").is_none_or(|data| !data.contains_key(**key))) {
            errors.push(FieldError::required(format!("data[{key}]"), ""));
        }
        let basic = object.get("type").and_then(Value::as_str) == Some("kubernetes.io/basic-auth");
        let has = |key: &str| map("data").is_some_and(|data| data.contains_key(key));
        if basic && !has("username") && !has("password") {
            errors.push(FieldError::required("data[username]", ""));
            errors.push(FieldError::required("data[password]", ""));
        }
    }
    errors
}

/// What a client is likely to get wrong in the kinds that are data here, and upstream refuses.
fn check_numbers(resource: &Resource, object: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let number = |pointer: &str| object.pointer(pointer).and_then(Value::as_i64);
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("apps", _) => {
            if let Some(replicas) = number("/spec/replicas").filter(|replicas| *replicas < 0) {
                errors.push(FieldError::invalid("spec.replicas", replicas, "must be greater than or equal to 0"));
            }
            let labels = object.pointer("/spec/template/metadata/labels").cloned().unwrap_or_default();
            let wanted = object.pointer("/spec/selector/matchLabels").and_then(Value::as_object);
            if wanted.into_iter().flatten().any(|(key, value)| labels.get(key) != Some(value)) {
                let why = "`selector` does not match template `labels`";
                errors.push(FieldError::invalid("spec.template.metadata.labels", labels, why));
            }
        }
        ("", "pods") => {
            let containers = object.pointer("/spec/containers").and_then(Value::as_array).into_iter().flatten();
            for (index, container) in containers.enumerate() {
                if container.get("image").and_then(Value::as_str).is_none_or(str::is_empty) {
                    errors.push(FieldError::required(format!("spec.containers[{index}].image"), ""));
                }
            }
        }
        ("coordination.k8s.io", "leases") => {
            if let Some(seconds) = number("/spec/leaseDurationSeconds").filter(|seconds| *seconds <= 0) {
                errors.push(FieldError::invalid("spec.leaseDurationSeconds", seconds, "must be greater than 0"));
            }
        }
        ("rbac.authorization.k8s.io", "rolebindings" | "clusterrolebindings") => {
            let kind = object.pointer("/roleRef/kind").and_then(Value::as_str).unwrap_or_default();
            let known: &[&str] = if resource.namespaced { &["Role", "ClusterRole"] } else { &["ClusterRole"] };
            if !known.contains(&kind) {
                errors.push(FieldError::not_supported("roleRef.kind", kind, known));
            }
        }
        _ => {}
    }
    errors
}

/// Why a key cannot be one of a Secret or a ConfigMap.
fn config_key(key: &str) -> Vec<&'static str> {
    let word = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
    let mut wrong = Vec::new();
    if key.len() > 253 {
        wrong.push("must be no more than 253 characters");
    }
    if !word {
        wrong.push(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or \
             'key-name', regex used for validation is '[-._a-zA-Z0-9]+')",
        );
    }
    match key {
        "." => wrong.push("must not be '.'"),
        ".." => wrong.push("must not be '..'"),
        _ if key.starts_with("..") => wrong.push("must not start with '..'"),
        _ => {}
    }
    wrong
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
        errors.extend(check_content(resource, new));
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
    if is(resource, "rbac.authorization.k8s.io", "rolebindings")
        || is(resource, "rbac.authorization.k8s.io", "clusterrolebindings")
    {
        let mut errors = check_content(resource, new);
        if old.get("roleRef") != new.get("roleRef") {
            let text = |name: &str| new.pointer(&format!("/roleRef/{name}")).cloned().unwrap_or_default();
            let shown = json!({"APIGroup": text("apiGroup"), "Kind": text("kind"), "Name": text("name")});
            errors.push(FieldError::invalid("roleRef", shown, "cannot change roleRef"));
        }
        return errors;
    }
    if is(resource, "coordination.k8s.io", "leases") {
        return check_content(resource, new);
    }
    if is(resource, "apps", "deployments")
        || is(resource, "apps", "replicasets")
        || is(resource, "apps", "daemonsets")
        || is(resource, "apps", "statefulsets")
    {
        return immutable("spec.selector").into_iter().chain(check_content(resource, new)).collect();
    }
    if is(resource, "apiextensions.k8s.io", "customresourcedefinitions") && old.get("spec") != new.get("spec") {
        return schema::validate_crd_update(new, old);
    }
    if has_a_say(resource) {
        return match call.path.subresource.as_str() {
            "status" => admission::check_status(new),
            _ => check_say(call, new, Some(old)),
        };
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
    if is_definition(resource) {
        crd::mark_deleted(object, &now());
    }
    if is(resource, "", "namespaces")
        && let Some(fields) = object.as_object_mut()
        && let Some(status) = fields.entry("status").or_insert_with(|| json!({})).as_object_mut()
    {
        status.insert("phase".into(), "Terminating".into());
    }
}

fn is_definition(resource: &Resource) -> bool {
    is(resource, "apiextensions.k8s.io", "customresourcedefinitions")
}

/// Whether a deletion is counted as a generation, and told with its grace.
pub(crate) fn has_grace(resource: &Resource) -> bool {
    !is_definition(resource)
}

pub(crate) fn is_pod(resource: &Resource) -> bool {
    is(resource, "", "pods")
}

/// Whether the answer to a deletion is the object rather than a Status.
pub(crate) fn shows_deleted(resource: &Resource) -> bool {
    is(resource, "", "pods")
        || is(resource, "", "namespaces")
        || is(resource, "", "services")
        || is(resource, "", "serviceaccounts")
}

/// Why a pod may not be evicted: the disruption budget that it would violate.
pub(crate) fn blocking_budget(store: &Store, pod: &Object) -> Option<String> {
    let budgets = store.list("poddisruptionbudgets.policy", &pod.key.namespace, None, None).ok()?;
    for budget in budgets.objects {
        let value = budget.value_without_managed_fields();
        let text = selector::text_of(value.pointer("/spec/selector").unwrap_or(&Value::Null));
        let Ok(selector) = Selector::parse(Some(&text), None, &[], false) else { continue };
        let allowed = value.pointer("/status/disruptionsAllowed").and_then(Value::as_i64).unwrap_or(0);
        if value.pointer("/spec/selector").is_some() && selector.matches(pod) && allowed <= 0 {
            let count = |name: &str| value.pointer(&format!("/status/{name}")).and_then(Value::as_i64).unwrap_or(0);
            return Some(format!(
                "The disruption budget {} needs {} healthy pods and has {} currently",
                budget.key.name,
                count("desiredHealthy"),
                count("currentHealthy")
            ));
        }
    }
    None
}
