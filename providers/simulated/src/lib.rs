//! The simulated cloud: machines that boot and join without a hypervisor, over a small REST API.
//!
//! This is the provider to copy. It has a kind for clusters ([`cluster`]) and one for machines ([`machine`]); behind
//! the first stands one load balancer, behind the second one machine. Both are named by us, `<namespace>.<name>`, and
//! carry our owner key, so whatever has the name and another owner is not ours and is left alone.

mod cluster;
mod machine;

use capstan_provider::{Context, InfrastructureProvider, export_infrastructure};

/// The provider.
#[derive(Debug)]
pub struct Simulated;

impl InfrastructureProvider for Simulated {
    type Cluster = cluster::SimulatedCluster;
    type Machine = machine::SimulatedMachine;
}

export_infrastructure!(Simulated, {
    "name": "simulated",
    "kinds": {
        "group": "infrastructure.cluster.x-k8s.io",
        "cluster": "SimulatedCluster",
        "machine": "SimulatedMachine"
    },
    "contractLabels": { "cluster.x-k8s.io/v1beta2": ["v1beta1"] },
    "endpoints": [
        { "name": "api", "protocol": "rest", "timeout": "30s", "maxResponse": "4Mi" }
    ],
    "consistencyWindow": "0s",
    "limits": { "memory": "16Mi", "cpu": "200ms", "requestsPerTurn": 16 }
});

/// The endpoint of the manifest.
const API: &str = "api";

/// What the outside calls the subject: unique over all tenants of one cloud.
fn cloud_name<S>(ctx: &Context<S>) -> String {
    format!("{}.{}", ctx.namespace(), ctx.name())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn the_sections_are_json() {
        let manifest: Value = serde_json::from_str(MANIFEST).unwrap();
        assert_eq!(manifest["role"], "infrastructure");
        assert_eq!(manifest["contract"], "0.1");
        let crds: Value = serde_json::from_str(CRDS).unwrap();
        assert_eq!(crds[0]["kind"], manifest["kinds"]["cluster"]);
        assert_eq!(crds[1]["kind"], manifest["kinds"]["machine"]);
        let spec = &crds[1]["versions"][0]["schema"]["properties"]["spec"];
        assert_eq!(spec["properties"]["cpus"]["default"], 2);
    }
}
