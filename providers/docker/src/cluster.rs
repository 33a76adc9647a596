//! A cluster is a network and, on it, a load balancer in front of the control-plane machines.

use std::collections::BTreeMap;

use capstan_provider::{
    ClusterFacts, ClusterKind, Condition, Context, FailureDomain, HostPort, Kind, Part, Result, Schema, Violation,
    infrastructure::PartsOf, json,
};
use serde::{Deserialize, Serialize};

use crate::{
    load_balancer::{Front, LOAD_BALANCER, LoadBalancer, LoadBalancerState, network},
    network::Network,
};

/// Port of the API server, on the load balancer and on the machines.
pub const API_PORT: u16 = 6443;

/// A cluster of containers on one Docker Engine.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Schema, Kind)]
#[serde(rename_all = "camelCase", default)]
#[kind(name = "DockerCluster", version = "v1beta2", status = DockerClusterStatus, served_too = crate::v1beta1::Cluster)]
pub struct DockerCluster {
    /// Where the API server is reached: the user's, or as it was told once.
    #[schema(hidden)]
    pub control_plane_endpoint: Option<Endpoint>,
    /// Names that machines may be given as failure domains; on one engine they mean nothing.
    #[schema(map_key = "name", max_items = 100)]
    pub failure_domains: Vec<Domain>,
    /// The load balancer.
    pub load_balancer: Option<LoadBalancerSpec>,
    /// A Docker network that is there already, such as `kind`. One of the cluster's own is made if absent.
    #[schema(min_length = 1, max_length = 63, pattern = "^[a-zA-Z0-9][a-zA-Z0-9_.-]*$", immutable)]
    pub network: Option<String>,
}

/// A host and a port; empty and 0 where they are not given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Endpoint {
    /// Name or address.
    pub host: String,
    /// Port.
    pub port: i64,
}

/// A name for a place.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Schema)]
#[serde(rename_all = "camelCase")]
pub struct Domain {
    /// Its name.
    #[schema(min_length = 1, max_length = 256)]
    pub name: String,
    /// Control-plane machines may be placed there.
    #[serde(default)]
    pub control_plane: bool,
    /// Free attributes.
    #[serde(default)]
    pub attributes: BTreeMap<String, String>,
}

/// The load balancer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct LoadBalancerSpec {
    /// Where its image `haproxy` comes from; `kindest` if absent.
    #[schema(max_length = 512)]
    pub image_repository: Option<String>,
    /// Tag of its image.
    #[schema(max_length = 128)]
    pub image_tag: Option<String>,
    /// A ConfigMap with a template of its configuration under the key `value`.
    #[serde(rename = "customHAProxyConfigTemplateRef")]
    pub custom_template: Option<NamedReference>,
}

/// An object of the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct NamedReference {
    /// Its name.
    pub name: String,
}

/// What is known of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Schema)]
#[serde(rename_all = "camelCase")]
pub struct DockerClusterStatus {
    /// Name of its Docker network.
    pub network: Option<String>,
    /// Name of its load balancer's container.
    pub load_balancer: Option<String>,
}

impl DockerCluster {
    /// The load balancer's image.
    pub fn load_balancer_image(&self) -> String {
        let given = self.load_balancer.clone().unwrap_or_default();
        let repository = given.image_repository.unwrap_or_else(|| "kindest".to_owned());
        let tag = given.image_tag.unwrap_or_else(|| "v20230606-42a2262b".to_owned());
        format!("{}/haproxy:{tag}", repository.trim_end_matches('/'))
    }
}

impl PartsOf for DockerCluster {
    fn parts(ctx: &Context<Self>) -> Result<Vec<Box<dyn Part<Self>>>> {
        Ok(vec![Box::new(Network { borrowed: ctx.spec.network.is_some() }), Box::new(LoadBalancer)])
    }

    fn validate(old: Option<&Self>, new: &Self) -> Vec<Violation> {
        let mut violations = Vec::new();
        if new.load_balancer.as_ref().is_some_and(|given| given.custom_template.is_some()) {
            violations.push(Violation::new(
                "/spec/loadBalancer/customHAProxyConfigTemplateRef",
                "templates of the configuration are not filled in: leave it out",
            ));
        }
        let host = |spec: &Self| spec.control_plane_endpoint.clone().unwrap_or_default().host;
        if old.is_some_and(|old| !host(old).is_empty() && old.control_plane_endpoint != new.control_plane_endpoint) {
            violations.push(Violation::new(
                "/spec/controlPlaneEndpoint",
                "certificates and kubeconfigs name it: it cannot change any more",
            ));
        }
        if old.is_some_and(|old| old.network != new.network) {
            violations.push(Violation::new("/spec/network", "containers cannot move to another network"));
        }
        violations
    }
}

impl ClusterKind for DockerCluster {
    fn report(ctx: &Context<Self>) -> Result<ClusterFacts> {
        let network = network(ctx)?;
        let balancer: Option<LoadBalancerState> =
            ctx.known(LOAD_BALANCER).map(|known| known.state()).transpose()?.flatten();
        let front = network.as_ref().map(|network| Front::of(&ctx.spec, network));
        let address = balancer.as_ref().and_then(|balancer| balancer.address.clone());
        let endpoint = front.as_ref().and_then(|front| {
            Some(HostPort { host: front.host.clone().or_else(|| address.clone())?, port: front.port })
        });
        Ok(ClusterFacts {
            control_plane_endpoint: endpoint,
            failure_domains: ctx
                .spec
                .failure_domains
                .iter()
                .map(|domain| FailureDomain {
                    name: domain.name.clone(),
                    control_plane: domain.control_plane,
                    attributes: domain.attributes.clone().into_iter().collect(),
                })
                .collect(),
            conditions: vec![available(balancer.as_ref(), front.as_ref())],
            status: json::text(&DockerClusterStatus {
                network: network.map(|network| network.name),
                load_balancer: balancer.map(|balancer| balancer.name),
            })?,
        })
    }
}

fn available(balancer: Option<&LoadBalancerState>, front: Option<&Front>) -> Condition {
    let kind = "LoadBalancerAvailable";
    let no = |code: &str, message: String| Condition::new(kind, Some(false), code, message);
    let Some(balancer) = balancer else { return no("LoadBalancerNotMade", "there is no load balancer yet".to_owned()) };
    let name = &balancer.name;
    if !balancer.running {
        let trouble = if balancer.trouble.is_empty() { "" } else { ": " };
        return no("LoadBalancerNotRunning", format!("container {name} does not run{trouble}{}", balancer.trouble));
    }
    let wanted = front.filter(|front| !front.published).and_then(|front| front.host.as_ref());
    if let (Some(wanted), Some(has)) = (wanted, &balancer.address)
        && wanted != has
    {
        let message = format!(
            "container {name} has the address {has}, and the endpoint, which never changes, is {wanted}: stop whatever has that \
             address now, and restart the container"
        );
        return no("AddressMoved", message);
    }
    if !balancer.loaded {
        return no("LoadBalancerConfiguring", format!("container {name} has not loaded its configuration yet"));
    }
    Condition::new(kind, Some(true), kind, "")
}
