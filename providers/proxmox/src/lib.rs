//! Proxmox VE: clusters whose machines are virtual machines cloned from a template, with ProxmoxCluster and ProxmoxMachine as
//! Cluster API's provider for Proxmox (CAPMOX) has them.
//!
//! Behind a machine stand a virtual machine ([`vm`]) and, until its node has joined, an [`iso`] image with its first-boot data, which
//! the host builds and this code never sees. Behind a cluster stands nothing but the API.
//!
//! Promises: the number of a virtual machine is chosen and on record before the clone is asked for, and what has the number
//! without our owner key is never touched; every task is awaited on the node that carries it out, and one without a record is
//! unknown, never a success; what is to be done is derived from the virtual machine itself, so nothing stalls on a remembered
//! state; a virtual machine that has vanished is reported, not made anew.

mod cluster;
mod config;
#[cfg(test)]
mod fake_tests;
mod iso;
mod machine;
mod network;
mod placement;
mod pve;
mod steps;
mod v1alpha1;
mod vm;
mod whereabouts;

use capstan_provider::{InfrastructureProvider, export_infrastructure};

/// The provider.
#[derive(Debug)]
pub struct Proxmox;

impl InfrastructureProvider for Proxmox {
    type Cluster = cluster::ProxmoxCluster;
    type Machine = machine::ProxmoxMachine;
}

export_infrastructure!(Proxmox, {
    "name": "proxmox",
    "kinds": { "group": "infrastructure.cluster.x-k8s.io", "cluster": "ProxmoxCluster", "machine": "ProxmoxMachine" },
    "contractLabels": { "cluster.x-k8s.io/v1beta2": ["v1alpha2"], "cluster.x-k8s.io/v1beta1": ["v1alpha1"] },
    "endpoints": [
        { "name": "api", "protocol": "rest", "timeout": "30s", "maxResponse": "8Mi" }
    ],
    "credentials": [
        {
            "at": "/spec/credentialsRef", "kind": "Secret", "endpoint": "api", "origin": "url",
            "ca": "ca.crt", "header": { "Authorization": "PVEAPIToken={token:shown}={secret}" }
        }
    ],
    "objectReferences": ["/spec/credentialsRef"],
    "consistencyWindow": "5s",
    "limits": { "memory": "16Mi", "cpu": "200ms", "requestsPerTurn": 64 }
});

/// The endpoint of the manifest.
const API: &str = "api";

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn the_sections_are_json() {
        let manifest: Value = serde_json::from_str(MANIFEST).unwrap();
        let crds: Value = serde_json::from_str(CRDS).unwrap();
        assert_eq!(crds[0]["kind"], manifest["kinds"]["cluster"]);
        assert_eq!(crds[1]["kind"], manifest["kinds"]["machine"]);
        let cluster = &crds[0]["versions"][0]["schema"]["properties"]["spec"];
        assert_eq!(cluster["required"], serde_json::json!(["dnsServers"]));
        // The host adds these.
        assert_eq!(cluster["properties"].get("controlPlaneEndpoint"), None);
        let machine = &crds[1]["versions"][0]["schema"]["properties"]["spec"];
        assert_eq!(machine["properties"].get("providerID"), None);
        assert_eq!(machine["properties"]["full"]["default"], true);
        assert_eq!(machine["properties"]["memoryMiB"]["multipleOf"], 8);
        let disk = &machine["properties"]["disks"]["properties"]["bootVolume"];
        assert_eq!(disk["x-kubernetes-validations"][0]["rule"], "self == oldSelf");
    }
}
