//! The network of a cluster: one that the user has, or one of its own with a subnet that nothing else uses, so that the load
//! balancer can have an address that stays.

use capstan_provider::{Choice, Context, Error, Observed, Part, Presence, Progress, Result};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{
    CLUSTER, OWNER,
    cluster::DockerCluster,
    engine::Engine,
    free_name,
    subnet::{Range, free_subnet},
};

/// The part's name, by which the load balancer and machines find the network.
pub const NETWORK: &str = "network";

/// The network.
pub struct Network {
    /// The user has it.
    pub borrowed: bool,
}

/// What others need to know of the network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkState {
    /// Its name.
    pub name: String,
    /// The address kept for the load balancer, in a network of ours.
    pub load_balancer_address: Option<String>,
    /// Its subnets.
    #[serde(default)]
    pub subnets: Vec<String>,
}

impl NetworkState {
    /// Whether this is an IPv4 address of the network.
    pub fn holds(&self, host: &str) -> bool {
        let Ok(address) = host.parse() else { return false };
        self.subnets.iter().filter_map(|subnet| Range::parse(subnet)).any(|range| range.holds(address))
    }
}

#[derive(Serialize, Deserialize)]
struct Frozen {
    subnet: String,
}

/// A network, as the engine describes it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Described {
    name: String,
    labels: Option<std::collections::BTreeMap<String, String>>,
    #[serde(rename = "IPAM")]
    ipam: Ipam,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Ipam {
    config: Option<Vec<IpamConfig>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct IpamConfig {
    subnet: String,
}

impl Described {
    fn subnets(&self) -> impl Iterator<Item = &str> {
        self.ipam.config.iter().flatten().map(|config| config.subnet.as_str())
    }
}

fn default_name(ctx: &Context<DockerCluster>) -> String {
    format!("capstan-{}-{}", ctx.namespace(), ctx.name())
}

impl Part<DockerCluster> for Network {
    fn name(&self) -> String {
        NETWORK.to_owned()
    }

    fn borrowed(&self) -> bool {
        self.borrowed
    }

    fn identify(&self, ctx: &Context<DockerCluster>, reserved: &[String]) -> Result<Choice> {
        if let Some(name) = &ctx.spec.network {
            return Ok(Choice::chosen(name));
        }
        let engine = Engine::find()?;
        let networks: Vec<Described> = engine.get("/networks", &[]).ok()?.json()?;
        let cluster = ctx.cluster();
        let mut used: Vec<Range> = networks.iter().flat_map(Described::subnets).filter_map(Range::parse).collect();
        used.extend(cluster.pod_cidrs().iter().chain(&cluster.service_cidrs()).filter_map(|cidr| Range::parse(cidr)));
        // A network that is made again has to have the endpoint's address once more.
        let endpoint = cluster.endpoint().and_then(|endpoint| endpoint.host.parse().ok());
        let subnet = match endpoint.and_then(Range::of_load_balancer) {
            Some(subnet) if subnet.is_free(&used) => subnet,
            Some(subnet) => {
                let message = format!(
                    "the cluster's endpoint is in subnet {subnet}, which another network overlaps now: find it with docker \
                     network ls and docker network inspect, and remove it"
                );
                return Err(Error::conflict("SubnetTaken", message));
            }
            None => free_subnet(&ctx.owner_key(), &used).ok_or_else(|| {
                Error::transient(
                    "NoFreeSubnet",
                    "every subnet of 10.192.0.0/10 is in use: remove Docker networks (docker network prune)",
                )
            })?,
        };
        Choice::chosen(free_name(ctx, default_name(ctx), reserved)).freeze(&Frozen { subnet: subnet.to_string() })
    }

    fn observe(&self, ctx: &Context<DockerCluster>) -> Result<Presence> {
        let known = ctx.known(NETWORK);
        let name = match &ctx.spec.network {
            Some(name) => name.clone(),
            None => known.as_ref().and_then(|known| known.id.clone()).unwrap_or_else(|| default_name(ctx)),
        };
        let engine = Engine::find()?;
        let Some(answer) = engine.get("/networks/{}", &[&name]).found()? else {
            if self.borrowed {
                let message =
                    format!("network {name}, which spec.network names, is not there: docker network create {name}");
                return Ok(Presence::foreign("NetworkNotFound", message));
            }
            return Ok(Presence::absent_by_id());
        };
        let network: Described = answer.json()?;
        let subnets: Vec<String> = network.subnets().map(str::to_owned).collect();
        if self.borrowed {
            let state = NetworkState { name: name.clone(), load_balancer_address: None, subnets };
            return Ok(Presence::Present(Observed::new(name, &state)?.ready(true)));
        }
        let owner = network.labels.as_ref().and_then(|labels| labels.get(OWNER));
        if owner != Some(&ctx.owner_key()) {
            let message = format!("network {} is there and was not made for this cluster", network.name);
            return Ok(Presence::foreign("NameTaken", message));
        }
        let kept = subnets.iter().find_map(|subnet| Range::parse(subnet)).and_then(Range::load_balancer);
        let state = NetworkState {
            name: name.clone(),
            load_balancer_address: kept.map(|address| address.to_string()),
            subnets,
        };
        Ok(Presence::Present(Observed::new(name, &state)?.ready(true)))
    }

    fn create(&self, ctx: &Context<DockerCluster>) -> Result<Progress> {
        let name = ctx.id_of(NETWORK)?;
        let frozen: Option<Frozen> = ctx.known(NETWORK).map(|known| known.frozen()).transpose()?.flatten();
        let subnet = frozen.ok_or_else(|| Error::internal("the network's subnet was not chosen"))?.subnet;
        // Addresses are dealt out of the upper half: the lower keeps one for the load balancer.
        let half = Range::parse(&subnet).and_then(Range::upper_half);
        let half = half.ok_or_else(|| Error::internal("the network's subnet cannot be read"))?;
        let answer = Engine::find()?
            .post("/networks/create", &[])
            .json(&json!({
                "Name": name,
                "CheckDuplicate": true,
                "Driver": "bridge",
                "Labels": {OWNER: ctx.owner_key(), CLUSTER: ctx.cluster().name()},
                "IPAM": {"Config": [{"Subnet": subnet, "IPRange": half.to_string()}]},
            }))?
            .send()?;
        let why = answer.message();
        match answer.status {
            201 => Ok(Progress::done(name)),
            403 => Err(Error::conflict(
                "SubnetTaken",
                format!("network {name} cannot be made: {why}: another network has come to overlap {subnet}"),
            )),
            409 => Err(Error::conflict(
                "NameTaken",
                format!("network {name} cannot be made: {why}. If nobody needs that one: docker network rm {name}"),
            )),
            _ => Err(answer.error()),
        }
    }

    fn delete(&self, ctx: &Context<DockerCluster>) -> Result<Progress> {
        let name = ctx.id_of(NETWORK)?;
        let answer = Engine::find()?.delete("/networks/{}", &[&name]).send()?;
        match answer.status {
            200 | 204 | 404 => Ok(Progress::done(name)),
            403 => {
                Ok(Progress::waiting("NetworkInUse", format!("network {name} is still in use: {}", answer.message())))
            }
            _ => Err(answer.error()),
        }
    }
}

#[cfg(test)]
#[path = "network_tests.rs"]
mod tests;
