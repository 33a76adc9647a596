//! Objects of the scenarios that need no workload cluster.

use capstan_tests::fakepve::FakePve;
use capstan_tests::site::merge;
use serde_json::{Value, json};

const INFRASTRUCTURE: &str = "infrastructure.cluster.x-k8s.io";

/// The Secret by which a namespace gets to Proxmox VE.
pub fn credentials(pve: &FakePve, namespace: &str, token: &str, secret: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "proxmox-credentials", "namespace": namespace},
        "stringData": {"url": pve.url, "token": token, "secret": secret, "ca.crt": pve.ca}})
}

/// A namespace with the cluster `c`, whose machines are given their first-boot data by hand. `number` is the last part of its
/// endpoint's address, and its ten addresses begin with it.
pub fn cluster(pve: &FakePve, namespace: &str, number: u64, token: &str, secret: &str) -> Vec<Value> {
    let reference = json!({"apiGroup": INFRASTRUCTURE, "kind": "ProxmoxCluster", "name": "c"});
    vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
        credentials(pve, namespace, token, secret),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "boot", "namespace": namespace},
            "stringData": {"value": "#cloud-config\nruncmd: [hostname]\n", "format": "cloud-config"}}),
        json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
            "metadata": {"name": "c", "namespace": namespace}, "spec": {"infrastructureRef": reference}}),
        json!({"apiVersion": format!("{INFRASTRUCTURE}/v1alpha2"), "kind": "ProxmoxCluster",
            "metadata": {"name": "c", "namespace": namespace},
            "spec": {"controlPlaneEndpoint": {"host": format!("10.10.10.{number}"), "port": 6443},
                "allowedNodes": ["pve1", "pve2"], "dnsServers": ["10.10.10.1"],
                "ipv4Config": {"addresses": [format!("10.10.10.{number}0-10.10.10.{number}9")], "prefix": 24,
                    "gateway": "10.10.10.1"},
                "credentialsRef": {"name": "proxmox-credentials"}}}),
    ]
}

/// A machine of the cluster `c` with a number from a hundred of its namespace; what its ProxmoxMachine says beside the usual is given.
pub fn machine(namespace: &str, number: u64, name: &str, more: &Value) -> Vec<Value> {
    let metadata = json!({"name": name, "namespace": namespace, "labels": {"cluster.x-k8s.io/cluster-name": "c"}});
    let reference = json!({"apiGroup": INFRASTRUCTURE, "kind": "ProxmoxMachine", "name": name});
    let mut infrastructure = json!({"apiVersion": format!("{INFRASTRUCTURE}/v1alpha2"), "kind": "ProxmoxMachine",
        "metadata": metadata,
        "spec": {"sourceNode": "pve1", "templateID": 9000, "storage": "shared", "numCores": 1, "memoryMiB": 1024,
            "vmIDRange": {"start": number * 100, "end": number * 100 + 99}, "network": {}}});
    merge(&mut infrastructure, more);
    vec![
        json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "metadata": metadata,
            "spec": {"clusterName": "c", "version": "v1.35.4", "bootstrap": {"dataSecretName": "boot"},
                "infrastructureRef": reference}}),
        infrastructure,
    ]
}
