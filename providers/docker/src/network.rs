//! The network of a cluster: one that the user has, or one of its own with a subnet that nothing else uses, so that the load
//! balancer can have an address that stays.

use std::net::Ipv4Addr;

use capstan_provider::{Choice, Context, Error, Observed, Part, Presence, Progress, Result, http};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{CLUSTER, ENGINE, OWNER, cluster::DockerCluster, free_name};

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

/// An IPv4 range: address and prefix length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    address: u32,
    prefix: u32,
}

impl Range {
    fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = text.split_once('/')?;
        let (address, prefix) = (u32::from(address.parse::<Ipv4Addr>().ok()?), prefix.parse().ok()?);
        (prefix <= 32).then_some(Self { address, prefix })
    }

    fn overlaps(self, other: Self) -> bool {
        let shift = 32 - self.prefix.min(other.prefix);
        self.address.checked_shr(shift).unwrap_or(0) == other.address.checked_shr(shift).unwrap_or(0)
    }

    /// The address at this place of the range.
    fn at(self, place: u32) -> Ipv4Addr {
        Ipv4Addr::from(self.address + place)
    }
}

/// The first /20 of 10.192.0.0/10 that overlaps nothing in use, searched from a place that the seed chooses.
fn free_subnet(seed: &str, used: &[Range]) -> Option<String> {
    let start = seed.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    (0..1024_u32)
        .map(|step| {
            let index = start.wrapping_add(step) % 1024;
            Range { address: u32::from(Ipv4Addr::new(10, 192, 0, 0)) + (index << 12), prefix: 20 }
        })
        .find(|candidate| !used.iter().any(|range| range.overlaps(*candidate)))
        .map(|range| format!("{}/{}", range.at(0), range.prefix))
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
        let networks: Vec<Described> = http::get(ENGINE, "/networks", &[]).ok()?.json()?;
        let cluster = ctx.cluster();
        let mut used: Vec<Range> = networks.iter().flat_map(Described::subnets).filter_map(Range::parse).collect();
        used.extend(cluster.pod_cidrs().iter().chain(&cluster.service_cidrs()).filter_map(|cidr| Range::parse(cidr)));
        let subnet = free_subnet(&ctx.owner_key(), &used).ok_or_else(|| {
            Error::transient(
                "NoFreeSubnet",
                "every subnet of 10.192.0.0/10 is in use: remove Docker networks (docker network prune)",
            )
        })?;
        Choice::chosen(free_name(ctx, default_name(ctx), reserved)).freeze(&Frozen { subnet })
    }

    fn observe(&self, ctx: &Context<DockerCluster>) -> Result<Presence> {
        let known = ctx.known(NETWORK);
        let name = match &ctx.spec.network {
            Some(name) => name.clone(),
            None => known.as_ref().and_then(|known| known.id.clone()).unwrap_or_else(|| default_name(ctx)),
        };
        let Some(answer) = http::get(ENGINE, "/networks/{}", &[&name]).found()? else {
            return Ok(Presence::absent_by_id());
        };
        let network: Described = answer.json()?;
        if self.borrowed {
            let state = NetworkState { name: name.clone(), load_balancer_address: None };
            return Ok(Presence::Present(Observed::new(name, &state)?.ready(true)));
        }
        let owner = network.labels.as_ref().and_then(|labels| labels.get(OWNER));
        if owner != Some(&ctx.owner_key()) {
            let message = format!("network {} is there and was not made for this cluster", network.name);
            return Ok(Presence::foreign("NameTaken", message));
        }
        let subnet = network.subnets().find_map(Range::parse);
        let state = NetworkState {
            name: name.clone(),
            load_balancer_address: subnet.filter(|range| range.prefix <= 29).map(|range| range.at(2).to_string()),
        };
        Ok(Presence::Present(Observed::new(name, &state)?.ready(true)))
    }

    fn create(&self, ctx: &Context<DockerCluster>) -> Result<Progress> {
        let name = ctx.id_of(NETWORK)?;
        let frozen: Option<Frozen> = ctx.known(NETWORK).map(|known| known.frozen()).transpose()?.flatten();
        let subnet = frozen.ok_or_else(|| Error::internal("the network's subnet was not chosen"))?.subnet;
        // Addresses are dealt out of the upper half: the lower keeps one for the load balancer.
        let range = Range::parse(&subnet).ok_or_else(|| Error::internal("the network's subnet cannot be read"))?;
        let half = Range { address: range.address + (1 << (31 - range.prefix)), prefix: range.prefix + 1 };
        let answer = http::post(ENGINE, "/networks/create", &[])
            .json(&json!({
                "Name": name,
                "CheckDuplicate": true,
                "Driver": "bridge",
                "Labels": {OWNER: ctx.owner_key(), CLUSTER: ctx.cluster().name()},
                "IPAM": {"Config": [{"Subnet": subnet, "IPRange": format!("{}/{}", half.at(0), half.prefix)}]},
            }))?
            .send()?;
        match answer.status {
            201 => Ok(Progress::done(name)),
            403 => Err(Error::conflict("SubnetTaken", format!("network {name} cannot be made: {}", answer.message()))),
            _ => Err(answer.error()),
        }
    }

    fn delete(&self, ctx: &Context<DockerCluster>) -> Result<Progress> {
        let name = ctx.id_of(NETWORK)?;
        let answer = http::delete(ENGINE, "/networks/{}", &[&name]).send()?;
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
mod tests {
    use capstan_provider::{
        Known,
        testing::{Scenario, infrastructure},
    };

    use super::*;
    use crate::Docker;

    fn known() -> Known {
        Known {
            id: Some("capstan-t-x".to_owned()),
            frozen: Some(r#"{"subnet":"10.200.16.0/20"}"#.to_owned()),
            ..Known::default()
        }
    }

    #[test]
    fn ranges() {
        let range = |text| Range::parse(text).unwrap();
        assert!(range("10.0.0.0/8").overlaps(range("10.200.0.0/20")));
        assert!(range("0.0.0.0/0").overlaps(range("10.200.0.0/20")));
        assert!(!range("10.200.0.0/20").overlaps(range("10.200.16.0/20")));
        assert_eq!(Range::parse("fd00::/8"), None);
        let first = free_subnet("k", &[]).unwrap();
        let second = free_subnet("k", &[range(&first)]).unwrap();
        assert_ne!(first, second);
        assert!(range("10.192.0.0/10").overlaps(range(&second)));
        assert_eq!(free_subnet("k", &[range("10.0.0.0/8")]), None);
    }

    #[test]
    fn a_network_of_ours_has_a_free_subnet_and_an_address_to_keep() {
        let mut scenario = Scenario::new("DockerCluster", json!({})).answer(
            "GET /networks",
            200,
            json!([{"Name": "bridge", "IPAM": {"Config": [{"Subnet": "10.192.0.0/11"}]}}]),
        );
        scenario.service_cidrs = vec!["10.224.0.0/12".to_owned()];
        let (choice, _) = scenario.run(|| infrastructure::identify::<Docker>(NETWORK, &[]));
        let choice = choice.unwrap();
        assert_eq!(choice.id.as_deref(), Some("capstan-t-x"));
        let frozen: Frozen = serde_json::from_str(&choice.frozen).unwrap();
        assert!(Range::parse("10.240.0.0/12").unwrap().overlaps(Range::parse(&frozen.subnet).unwrap()));

        let (done, sent) = Scenario::new("DockerCluster", json!({}))
            .known(NETWORK, known())
            .answer("POST /networks/create", 201, json!({"Id": "n"}))
            .run(|| infrastructure::create::<Docker>(NETWORK));
        assert_eq!(done, Ok(Progress::done("capstan-t-x")));
        assert_eq!(
            sent[0].json()["IPAM"]["Config"],
            json!([{"Subnet": "10.200.16.0/20", "IPRange": "10.200.24.0/21"}])
        );

        let there = json!({"Name": "capstan-t-x", "Labels": {OWNER: "owner-1"}, "IPAM": {"Config": [{"Subnet": "10.200.16.0/20"}]}});
        let (presence, _) = Scenario::new("DockerCluster", json!({}))
            .answer("GET /networks/capstan-t-x", 200, there)
            .run(|| infrastructure::observe::<Docker>(NETWORK));
        let Ok(Presence::Present(observed)) = presence else { panic!("{presence:?}") };
        assert_eq!(observed.state, r#"{"name":"capstan-t-x","loadBalancerAddress":"10.200.16.2"}"#);
    }

    #[test]
    fn others_networks_are_borrowed_or_left_alone() {
        let (presence, _) = Scenario::new("DockerCluster", json!({"network": "kind"}))
            .answer("GET /networks/kind", 200, json!({"Name": "kind", "Labels": {}}))
            .run(|| infrastructure::observe::<Docker>(NETWORK));
        assert!(matches!(presence, Ok(Presence::Present(_))));
        let (parts, _) =
            Scenario::new("DockerCluster", json!({"network": "kind"})).run(infrastructure::parts::<Docker>);
        assert!(parts.unwrap()[0].borrowed);
        let (presence, _) = Scenario::new("DockerCluster", json!({}))
            .answer("GET /networks/capstan-t-x", 200, json!({"Name": "capstan-t-x", "Labels": null}))
            .run(|| infrastructure::observe::<Docker>(NETWORK));
        assert!(matches!(presence, Ok(Presence::Foreign(_))));
        let (choice, _) = Scenario::new("DockerCluster", json!({}))
            .answer("GET /networks", 200, json!([]))
            .run(|| infrastructure::identify::<Docker>(NETWORK, &["capstan-t-x".to_owned()]));
        assert_eq!(choice.unwrap().id.as_deref(), Some("t-capstan-t-x"));
    }
}
