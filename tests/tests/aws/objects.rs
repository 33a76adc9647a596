//! Objects of the scenarios that need no workload cluster.

use capstan_tests::moto::Key;
use capstan_tests::site::merge;
use serde_json::{Value, json};

const INFRASTRUCTURE: &str = "infrastructure.cluster.x-k8s.io";

/// A Secret with a key.
pub fn keys(namespace: &str, name: &str, key: &Key) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": namespace},
        "stringData": {"AccessKeyID": key.id, "SecretAccessKey": key.secret}})
}

/// An Endpoint that says as whom, and where if a URL is given.
pub fn endpoint(namespace: &str, name: &str, url: Option<&str>, secret: &str) -> Value {
    let mut spec = json!({"credential": {"secretName": secret, "aws": {}}});
    if let Some(url) = url {
        spec["url"] = url.into();
    }
    json!({"apiVersion": "capstan.dev/v1alpha1", "kind": "Endpoint", "metadata": {"name": name, "namespace": namespace},
        "spec": spec})
}

/// A namespace, and the first-boot data of its machines.
pub fn namespace(name: &str) -> Vec<Value> {
    vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "boot", "namespace": name},
            "stringData": {"value": "#cloud-config\nruncmd: [hostname]\n", "format": "cloud-config"}}),
    ]
}

/// A cluster in one zone, with everything made for it; what its AWSCluster says beside that is given.
pub fn cluster(namespace: &str, name: &str, more: &Value) -> Vec<Value> {
    let mut infrastructure = json!({"apiVersion": format!("{INFRASTRUCTURE}/v1beta2"), "kind": "AWSCluster",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"region": "us-east-1", "network": {"vpc": {"availabilityZoneUsageLimit": 1}},
            "controlPlaneLoadBalancer": {"loadBalancerType": "nlb"}}});
    merge(&mut infrastructure, more);
    vec![
        json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"infrastructureRef": {"apiGroup": INFRASTRUCTURE, "kind": "AWSCluster", "name": name}}}),
        infrastructure,
    ]
}

/// A machine of the cluster `c`; what its AWSMachine says beside the usual is given.
pub fn machine(namespace: &str, name: &str, more: &Value) -> Vec<Value> {
    let metadata = json!({"name": name, "namespace": namespace, "labels": {"cluster.x-k8s.io/cluster-name": "c"}});
    let reference = json!({"apiGroup": INFRASTRUCTURE, "kind": "AWSMachine", "name": name});
    let mut infrastructure = json!({"apiVersion": format!("{INFRASTRUCTURE}/v1beta2"), "kind": "AWSMachine",
        "metadata": metadata, "spec": {"instanceType": "m6i.large"}});
    merge(&mut infrastructure, more);
    vec![
        json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "metadata": metadata,
            "spec": {"clusterName": "c", "version": "v1.34.1", "bootstrap": {"dataSecretName": "boot"},
                "infrastructureRef": reference}}),
        infrastructure,
    ]
}
