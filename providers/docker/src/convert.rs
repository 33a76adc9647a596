//! Objects of one served version as the other: `v1beta1`, as Cluster API up to 1.10 has it, and `v1beta2`.
//!
//! What differs: failure domains are a map by name or a list; an endpoint that is not known yet is empty or absent; and in
//! `status`, `ready` or `initialization.provisioned`, and where either kind of conditions stands. All else, also what is
//! known to neither, stays as it is, so that nothing is lost on the way there and back.
#![cfg_attr(not(test), allow(dead_code, reason = "the SDK's conversion is to call it"))]

use serde_json::{Map, Value};

/// `v1beta1`.
pub const OLD: &str = "v1beta1";
/// `v1beta2`.
pub const NEW: &str = "v1beta2";

/// An object of any kind of this provider in another version.
///
/// # Errors
/// When it or the version is not this provider's.
pub fn convert(mut object: Value, to: &str) -> Result<Value, String> {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (api_version, kind) = (text("/apiVersion"), text("/kind"));
    let Some((group, from)) = api_version.split_once('/') else {
        return Err(format!("an object of apiVersion {api_version:?} cannot be converted"));
    };
    let is_known = |version: &str| [OLD, NEW].contains(&version);
    if !is_known(from) || !is_known(to) {
        return Err(format!("{kind} of version {from} cannot be converted to {to}: {OLD} and {NEW} are served"));
    }
    if from == to {
        return Ok(object);
    }
    let up = to == NEW;
    if kind.starts_with("DockerCluster") {
        let pointer = if kind.ends_with("Template") { "/spec/template/spec" } else { "/spec" };
        if let Some(Value::Object(spec)) = object.pointer_mut(pointer) {
            change(spec, "failureDomains", |domains| if up { listed(domains) } else { by_name(domains) });
            if up {
                drop_empty_endpoint(spec);
            }
        }
    }
    if let Some(Value::Object(status)) = object.get_mut("status") {
        change(status, "failureDomains", |domains| if up { listed(domains) } else { by_name(domains) });
        if up { raise_status(status) } else { lower_status(status) }
    }
    if let Some(place) = object.get_mut("apiVersion") {
        *place = format!("{group}/{to}").into();
    }
    Ok(object)
}

fn change(map: &mut Map<String, Value>, field: &str, to: impl FnOnce(Value) -> Value) {
    if let Some(place) = map.get_mut(field) {
        *place = to(place.take());
    }
}

fn listed(domains: Value) -> Value {
    let Value::Object(domains) = domains else { return domains };
    let each = domains.into_iter().map(|(name, domain)| {
        let mut all = Map::from_iter([("name".to_owned(), name.into())]);
        if let Value::Object(domain) = domain {
            all.extend(domain);
        }
        Value::Object(all)
    });
    Value::Array(each.collect())
}

fn by_name(domains: Value) -> Value {
    let Value::Array(domains) = domains else { return domains };
    let each = domains.into_iter().filter_map(|domain| {
        let Value::Object(mut domain) = domain else { return None };
        let name = domain.shift_remove("name")?.as_str()?.to_owned();
        Some((name, Value::Object(domain)))
    });
    Value::Object(each.collect())
}

/// `v1beta1` writes an endpoint that is not known as an empty host and port 0, which `v1beta2` does not allow.
fn drop_empty_endpoint(spec: &mut Map<String, Value>) {
    let Some(Value::Object(endpoint)) = spec.get_mut("controlPlaneEndpoint") else { return };
    endpoint.retain(|_, value| *value != "" && *value != 0);
    if endpoint.is_empty() {
        spec.shift_remove("controlPlaneEndpoint");
    }
}

fn child<'a>(map: &'a mut Map<String, Value>, field: &str) -> Option<&'a mut Map<String, Value>> {
    map.entry(field).or_insert_with(|| Map::new().into()).as_object_mut()
}

/// Takes what stands at `field` within `within`, and `within` itself when nothing is left of it.
fn take(map: &mut Map<String, Value>, within: &str, field: &str) -> Option<Value> {
    let parent = map.get_mut(within)?.as_object_mut()?;
    let found = parent.shift_remove(field);
    if parent.is_empty() {
        map.shift_remove(within);
    }
    found
}

fn raise_status(status: &mut Map<String, Value>) {
    let old = status.shift_remove("conditions");
    if let Some(conditions) = take(status, "v1beta2", "conditions") {
        status.insert("conditions".to_owned(), conditions);
    }
    if let Some(conditions) = old
        && let Some(version) = child(status, "deprecated").and_then(|deprecated| child(deprecated, OLD))
    {
        version.insert("conditions".to_owned(), conditions);
    }
    if status.get("ready") == Some(&Value::Bool(true))
        && !status.contains_key("initialization")
        && let Some(initialization) = child(status, "initialization")
    {
        initialization.insert("provisioned".to_owned(), true.into());
    }
}

fn lower_status(status: &mut Map<String, Value>) {
    let new = status.shift_remove("conditions");
    let mut deprecated = status.shift_remove("deprecated");
    if let Some(Value::Object(versions)) = &mut deprecated {
        if let Some(conditions) = take(versions, OLD, "conditions") {
            status.insert("conditions".to_owned(), conditions);
        }
        if !versions.is_empty() {
            status.extend(deprecated.map(|rest| ("deprecated".to_owned(), rest)));
        }
    }
    if let Some(conditions) = new
        && let Some(version) = child(status, NEW)
    {
        version.insert("conditions".to_owned(), conditions);
    }
    if status.get("initialization").and_then(|all| all.get("provisioned")) == Some(&Value::Bool(true)) {
        status.insert("ready".to_owned(), true.into());
        take(status, "initialization", "provisioned");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const GROUP: &str = "infrastructure.cluster.x-k8s.io";

    fn object(version: &str, kind: &str, spec: Value, status: Value) -> Value {
        let mut object = json!({"apiVersion": format!("{GROUP}/{version}"), "kind": kind,
            "metadata": {"name": "x", "annotations": {"a": "b"}}, "spec": spec});
        if !status.is_null() {
            object["status"] = status;
        }
        object
    }

    fn pairs() -> Vec<(Value, Value)> {
        let attributes = json!({"rack": "1"});
        let old_spec = json!({"controlPlaneEndpoint": {"host": "10.0.0.2", "port": 6443},
            "failureDomains": {"b": {"controlPlane": true}, "a": {"attributes": attributes}},
            "loadBalancer": {"imageTag": "t", "customHAProxyConfigTemplateRef": {"name": "c"}}, "unknown": [1]});
        let new_spec = json!({"controlPlaneEndpoint": {"host": "10.0.0.2", "port": 6443},
            "failureDomains": [{"name": "b", "controlPlane": true}, {"name": "a", "attributes": attributes}],
            "loadBalancer": {"imageTag": "t", "customHAProxyConfigTemplateRef": {"name": "c"}}, "unknown": [1]});
        let old_condition = json!([{"type": "Ready", "status": "True", "severity": ""}]);
        let new_condition = json!([{"type": "Ready", "status": "True", "reason": "Ready", "message": ""}]);
        let machine = json!({"providerID": "docker:////c-m", "customImage": "i", "preLoadImages": ["j"], "bootstrapped": true,
            "extraMounts": [{"hostPath": "/a", "containerPath": "/b", "readOnly": true}], "bootstrapTimeout": "5m"});
        vec![
            (
                object(
                    OLD,
                    "DockerCluster",
                    old_spec.clone(),
                    json!({"ready": true, "conditions": old_condition,
                    "failureDomains": {"b": {"controlPlane": true}}, "v1beta2": {"conditions": new_condition}}),
                ),
                object(
                    NEW,
                    "DockerCluster",
                    new_spec.clone(),
                    json!({"initialization": {"provisioned": true}, "ready": true,
                    "deprecated": {"v1beta1": {"conditions": old_condition}}, "conditions": new_condition,
                    "failureDomains": [{"name": "b", "controlPlane": true}]}),
                ),
            ),
            (
                object(OLD, "DockerClusterTemplate", json!({"template": {"spec": old_spec}}), Value::Null),
                object(NEW, "DockerClusterTemplate", json!({"template": {"spec": new_spec}}), Value::Null),
            ),
            (
                object(
                    OLD,
                    "DockerMachine",
                    machine.clone(),
                    json!({"ready": true, "loadBalancerConfigured": true,
                    "addresses": [{"type": "InternalIP", "address": "10.0.0.3"}], "conditions": old_condition}),
                ),
                object(
                    NEW,
                    "DockerMachine",
                    machine.clone(),
                    json!({"ready": true, "loadBalancerConfigured": true,
                    "initialization": {"provisioned": true}, "deprecated": {"v1beta1": {"conditions": old_condition}},
                    "addresses": [{"type": "InternalIP", "address": "10.0.0.3"}]}),
                ),
            ),
            (
                object(OLD, "DockerMachineTemplate", json!({"template": {"spec": machine}}), Value::Null),
                object(NEW, "DockerMachineTemplate", json!({"template": {"spec": machine}}), Value::Null),
            ),
        ]
    }

    #[test]
    fn each_version_becomes_the_other_and_nothing_is_lost() {
        for (old, new) in pairs() {
            assert_eq!(convert(old.clone(), NEW).unwrap(), new);
            assert_eq!(convert(new.clone(), OLD).unwrap(), old);
            assert_eq!(convert(convert(old.clone(), NEW).unwrap(), OLD).unwrap(), old);
            assert_eq!(convert(convert(new.clone(), OLD).unwrap(), NEW).unwrap(), new);
            assert_eq!(convert(old.clone(), OLD).unwrap(), old);
        }
    }

    #[test]
    fn what_is_not_known_yet_is_absent_in_the_newer_version() {
        let old = object(
            OLD,
            "DockerCluster",
            json!({"controlPlaneEndpoint": {"host": "", "port": 0}}),
            json!({"ready": false}),
        );
        assert_eq!(convert(old, NEW).unwrap(), object(NEW, "DockerCluster", json!({}), json!({"ready": false})));
        let half =
            object(OLD, "DockerCluster", json!({"controlPlaneEndpoint": {"host": "", "port": 8443}}), Value::Null);
        let raised = convert(half, NEW).unwrap();
        assert_eq!(raised["spec"]["controlPlaneEndpoint"], json!({"port": 8443}));
        let odd =
            object(NEW, "DockerCluster", json!({}), json!({"deprecated": {"other": 1}, "initialization": {"more": 1}}));
        assert_eq!(convert(convert(odd.clone(), OLD).unwrap(), NEW).unwrap(), odd);
    }

    #[test]
    fn other_versions_are_named() {
        let alpha = object("v1alpha4", "DockerCluster", json!({}), Value::Null);
        assert!(convert(alpha, NEW).unwrap_err().contains("v1alpha4"));
        assert!(convert(json!({"kind": "DockerCluster"}), NEW).is_err());
    }
}
