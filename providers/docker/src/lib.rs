//! Docker: clusters whose machines are containers of one Docker Engine, with DockerCluster and DockerMachine as Cluster API up
//! to 1.14 has them.
//!
//! Behind a cluster stand a [`network`] and a [`load_balancer`] container, behind a machine one [`container`], into which
//! the bootstrap data is put as files and carried out by a small script ([`boot`]).
//!
//! Promises: names are the idempotency key, and what has the name without our owner key is never touched; bootstrap
//! data is never read here; a node's container that has vanished or stopped is reported, not made anew; the endpoint
//! that was told once stays.

mod boot;
mod cluster;
mod container;
mod engine;
#[cfg(test)]
mod engine_tests;
mod haproxy;
mod image;
mod load_balancer;
mod machine;
mod network;
mod subnet;
#[cfg(test)]
mod testing;
mod v1beta1;

use capstan_provider::{Context, InfrastructureProvider, export_infrastructure};

/// The provider.
#[derive(Debug)]
pub struct Docker;

impl InfrastructureProvider for Docker {
    type Cluster = cluster::DockerCluster;
    type Machine = machine::DockerMachine;
}

export_infrastructure!(Docker, {
    "name": "docker",
    "kinds": { "group": "infrastructure.cluster.x-k8s.io", "cluster": "DockerCluster", "machine": "DockerMachine" },
    "contractLabels": { "cluster.x-k8s.io/v1beta2": ["v1beta2"], "cluster.x-k8s.io/v1beta1": ["v1beta1"] },
    "endpoints": [
        { "name": "engine", "protocol": "rest", "timeout": "60s", "maxResponse": "4Mi" },
        { "name": "pull", "protocol": "rest", "timeout": "10m", "maxResponse": "8Mi", "readOnly": true,
          "readOperations": [{ "method": "POST", "path": "/*/images/create" }] }
    ],
    "consistencyWindow": "0s",
    "limits": { "memory": "16Mi", "cpu": "200ms", "requestsPerTurn": 32 }
});

/// An endpoint of the manifest: the engine's socket.
const ENGINE: &str = "engine";
/// Another: the same socket, for pulls of images, which may take long.
const PULL: &str = "pull";
/// Label with the owner key of the object that made something.
const OWNER: &str = "capstan.dev/owner-key";
/// Label with the name of the cluster, as Cluster API's Docker provider sets it.
const CLUSTER: &str = "io.x-k8s.kind.cluster";
/// Label with what a container is for.
const ROLE: &str = "io.x-k8s.kind.role";

/// The first name that nobody else has: the plain one, else one with the namespace in it, and with the owner key.
fn free_name<S>(ctx: &Context<S>, plain: String, reserved: &[String]) -> String {
    if !reserved.contains(&plain) {
        return plain;
    }
    let longer = format!("{}-{plain}", ctx.namespace());
    if !reserved.contains(&longer) {
        return longer;
    }
    let key: String = ctx.owner_key().chars().take(8).collect();
    format!("{longer}-{key}")
}

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
        let spec = &crds[1]["versions"][0]["schema"]["properties"]["spec"]["properties"];
        assert_eq!(spec["privileged"]["default"], true);
    }
}
