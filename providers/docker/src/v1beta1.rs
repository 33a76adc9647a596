//! The version before: `v1beta1` of DockerCluster and DockerMachine, as Cluster API up to 1.10 has them, served beside `v1beta2`.
//!
//! What differs: failure domains are a map by name, in the spec and in the status; and an endpoint that is not known yet may be
//! written as an empty host and port 0. Everything else is the same in both.

use std::collections::BTreeMap;

use capstan_provider::{Kind, Schema, versions::OlderVersion};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{
    cluster::{DockerClusterStatus, LoadBalancerSpec},
    machine::{DockerMachineStatus, Mount},
};

/// A cluster of containers on one Docker Engine.
#[derive(Schema, Kind, Deserialize)]
#[serde(rename_all = "camelCase")]
#[kind(name = "DockerCluster", version = "v1beta1", older, status = DockerClusterStatus)]
#[allow(dead_code, reason = "a schema: objects are converted before they are read")]
pub struct Cluster {
    /// Where the API server is reached; empty and 0 where it is not known yet.
    control_plane_endpoint: Option<Endpoint>,
    /// Names that machines may be given as failure domains; on one engine they mean nothing.
    #[schema(optional)]
    failure_domains: BTreeMap<String, Domain>,
    /// The load balancer.
    load_balancer: Option<LoadBalancerSpec>,
    /// A Docker network that is there already, such as `kind`. One of the cluster's own is made if absent.
    #[schema(min_length = 1, max_length = 63, pattern = "^[a-zA-Z0-9][a-zA-Z0-9_.-]*$", immutable)]
    network: Option<String>,
}

/// A host and a port.
#[derive(Schema, Deserialize)]
#[allow(dead_code, reason = "a schema")]
pub struct Endpoint {
    /// Name or address.
    #[schema(max_length = 512, optional)]
    host: String,
    /// Port.
    #[schema(min = 0, max = 65535, optional)]
    port: u16,
}

/// A place, without its name.
#[derive(Schema, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code, reason = "a schema")]
pub struct Domain {
    /// Control-plane machines may be placed there.
    #[schema(optional)]
    control_plane: bool,
    /// Free attributes.
    #[schema(optional)]
    attributes: BTreeMap<String, String>,
}

/// A machine that is a container of one Docker Engine.
#[derive(Schema, Kind, Deserialize)]
#[serde(rename_all = "camelCase")]
#[kind(name = "DockerMachine", version = "v1beta1", older, status = DockerMachineStatus)]
#[allow(dead_code, reason = "a schema: objects are converted before they are read")]
pub struct Machine {
    /// Its image; `kindest/node` of the machine's Kubernetes version if absent. Pulled if the engine lacks it.
    #[schema(max_length = 512)]
    custom_image: Option<String>,
    /// Images to load into the node before it joins: refused, they are not loaded.
    #[schema(max_items = 100, optional)]
    pre_load_images: Vec<String>,
    /// Directories of the engine's machine in the container.
    #[schema(max_items = 100, optional)]
    extra_mounts: Vec<Mount>,
    /// How long the machine may take to boot and to carry its bootstrap data out, such as `5m`, which it is if absent.
    bootstrap_timeout: Option<String>,
    /// Of no effect; in older manifests.
    bootstrapped: Option<bool>,
    /// The container has all privileges, as a real node needs.
    #[schema(default = true, optional)]
    privileged: bool,
}

fn fields<'a>(object: &'a mut Value, pointer: &str) -> Option<&'a mut Map<String, Value>> {
    object.pointer_mut(pointer).and_then(Value::as_object_mut)
}

/// `[{name: "a", …}, …]` of `{"a": {…}, …}`.
fn listed(domains: Value) -> Value {
    let Value::Object(domains) = domains else { return domains };
    let each = domains.into_iter().map(|(name, domain)| {
        let mut all = Map::from_iter([("name".to_owned(), name.into())]);
        if let Value::Object(domain) = domain {
            all.extend(domain);
        }
        Value::Object(all)
    });
    each.collect()
}

/// `{"a": {…}, …}` of `[{name: "a", …}, …]`.
fn by_name(domains: Value) -> Value {
    let Value::Array(domains) = domains else { return domains };
    let each = domains.into_iter().filter_map(|domain| {
        let Value::Object(mut domain) = domain else { return None };
        let name = domain.remove("name")?.as_str()?.to_owned();
        Some((name, Value::Object(domain)))
    });
    Value::Object(each.collect())
}

/// Failure domains of spec and status in the other form.
fn change_domains(object: &mut Value, to: fn(Value) -> Value) {
    for pointer in ["/spec", "/status"] {
        if let Some(place) = fields(object, pointer).and_then(|fields| fields.get_mut("failureDomains")) {
            *place = to(place.take());
        }
    }
}

impl OlderVersion for Cluster {
    fn up(object: &mut Value) {
        change_domains(object, listed);
        let Some(spec) = fields(object, "/spec") else { return };
        if let Some(Value::Object(endpoint)) = spec.get_mut("controlPlaneEndpoint") {
            endpoint.retain(|_, value| *value != "" && *value != 0);
            if endpoint.is_empty() {
                spec.remove("controlPlaneEndpoint");
            }
        }
    }

    fn down(object: &mut Value) {
        change_domains(object, by_name);
    }
}

impl OlderVersion for Machine {
    fn up(_object: &mut Value) {}

    fn down(_object: &mut Value) {}
}

#[cfg(test)]
mod tests {
    use capstan_provider::infrastructure::dispatch;
    use serde_json::json;

    use super::*;
    use crate::{Docker, cluster::DockerCluster, machine::DockerMachine};

    const OLD: &str = "v1beta1";
    const NEW: &str = "v1beta2";

    fn to(object: &Value, version: &str) -> Value {
        serde_json::from_str(&dispatch::convert::<Docker>(&object.to_string(), version).unwrap()).unwrap()
    }

    fn object(version: &str, kind: &str, spec: Value) -> Value {
        json!({"apiVersion": format!("infrastructure.cluster.x-k8s.io/{version}"), "kind": kind,
            "metadata": {"name": "x", "annotations": {"a": "b"}}, "spec": spec})
    }

    #[test]
    fn each_version_becomes_the_other_and_nothing_is_lost() {
        let spec = |domains: Value| {
            json!({"controlPlaneEndpoint": {"host": "10.0.0.2", "port": 6443}, "failureDomains": domains,
                "loadBalancer": {"imageTag": "t", "customHAProxyConfigTemplateRef": {"name": "c"}}})
        };
        let old = spec(json!({"a": {"attributes": {"rack": "1"}}, "b": {"controlPlane": true}}));
        let new = spec(json!([{"name": "a", "attributes": {"rack": "1"}}, {"name": "b", "controlPlane": true}]));
        let machine = json!({"providerID": "docker:////c-m", "customImage": "i", "preLoadImages": ["j"], "bootstrapped": true,
            "extraMounts": [{"hostPath": "/a", "containerPath": "/b", "readOnly": true}], "bootstrapTimeout": "5m"});
        let template = |spec: &Value| json!({"template": {"metadata": {"labels": {"a": "b"}}, "spec": spec}});
        let (mut cluster, mut shown) =
            (object(OLD, "DockerCluster", old.clone()), object(NEW, "DockerCluster", new.clone()));
        cluster["status"] = json!({"ready": true, "failureDomains": {"b": {"controlPlane": true}}});
        shown["status"] = json!({"ready": true, "failureDomains": [{"name": "b", "controlPlane": true}]});
        for (old, new) in [
            (cluster, shown),
            (
                object(OLD, "DockerClusterTemplate", template(&old)),
                object(NEW, "DockerClusterTemplate", template(&new)),
            ),
            (object(OLD, "DockerMachine", machine.clone()), object(NEW, "DockerMachine", machine.clone())),
            (
                object(OLD, "DockerMachineTemplate", template(&machine)),
                object(NEW, "DockerMachineTemplate", template(&machine)),
            ),
        ] {
            assert_eq!(to(&old, NEW), new);
            assert_eq!(to(&new, OLD), old);
        }
    }

    #[test]
    fn an_endpoint_that_is_not_known_yet_is_absent_in_the_newer_version() {
        let old = object(OLD, "DockerCluster", json!({"controlPlaneEndpoint": {"host": "", "port": 0}}));
        let new = to(&old, NEW);
        assert_eq!(new["spec"], json!({}));
        assert_eq!(to(&new, OLD), old);
        let half = object(OLD, "DockerCluster", json!({"controlPlaneEndpoint": {"host": "", "port": 8443}}));
        assert_eq!(to(&half, NEW)["spec"], json!({"controlPlaneEndpoint": {"port": 8443}}));
        // It becomes known, and is shown.
        let mut told = new;
        told["spec"]["controlPlaneEndpoint"] = json!({"host": "10.0.0.2", "port": 6443});
        assert_eq!(to(&told, OLD)["spec"]["controlPlaneEndpoint"], json!({"host": "10.0.0.2", "port": 6443}));
    }

    #[test]
    fn other_versions_are_named_and_the_rules_are_those_of_the_new() {
        let alpha = object("v1alpha4", "DockerCluster", json!({})).to_string();
        let refused = dispatch::convert::<Docker>(&alpha, NEW).unwrap_err();
        assert!(refused.message.contains("v1alpha4"), "{refused:?}");
        let mounts = object(OLD, "DockerMachine", json!({"extraMounts": [{"hostPath": "a", "containerPath": "/b"}]}));
        let violations = dispatch::validate::<Docker>(None, &mounts.to_string());
        assert_eq!(violations[0].path, "/spec/extraMounts/0/hostPath");
    }

    #[test]
    fn both_versions_are_in_the_definitions() {
        for crd in [DockerMachine::CRD, DockerCluster::CRD] {
            let crd: Value = serde_json::from_str(crd).unwrap();
            let versions: Vec<_> =
                crd["versions"].as_array().unwrap().iter().map(|v| (&v["name"], &v["storage"])).collect();
            assert_eq!(versions, [(&json!(NEW), &json!(true)), (&json!(OLD), &json!(false))]);
        }
    }
}
