//! Which subnets a cluster has: those that the spec lists, or a public and a private one in each of some zones.

use std::net::Ipv4Addr;

use capstan_provider::{Context, Error, Known, Result};
use serde::{Deserialize, Serialize};

use crate::{
    SHARED,
    cluster::AWSCluster,
    ec2,
    network::{SUBNETS, SubnetsState, VPC, VpcState},
};

/// A subnet that is made for the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Subnet {
    /// Its name in the spec, or `public` or `private` and its zone.
    pub name: String,
    /// Its zone.
    pub zone: String,
    /// Its addresses.
    pub cidr: String,
    /// The internet reaches it.
    #[serde(skip_serializing_if = "is_false")]
    pub public: bool,
    /// Its id, where it is older than our record: CAPA made it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

fn is_false(value: &bool) -> bool {
    !value
}

impl Subnet {
    /// The part's name.
    pub fn part(&self) -> String {
        format!("subnet-{}", self.name)
    }
}

/// All subnets that are made for a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// They.
    pub subnets: Vec<Subnet>,
}

impl Layout {
    /// Zones that have a public subnet; there is a NAT gateway in each.
    pub fn public_zones(&self) -> Vec<&str> {
        self.zones(true)
    }

    fn zones(&self, public: bool) -> Vec<&str> {
        let mut zones: Vec<&str> = Vec::new();
        for subnet in self.subnets.iter().filter(|subnet| subnet.public == public) {
            if !zones.contains(&subnet.zone.as_str()) {
                zones.push(&subnet.zone);
            }
        }
        zones
    }
}

/// Whose the network is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Network {
    /// Made for the cluster, by us or by CAPA.
    Managed(Layout),
    /// The user's.
    Borrowed,
    /// The VPC tells, and has not been looked at or made.
    Unknown,
}

/// Whose the network of this cluster is.
pub fn network(ctx: &Context<AWSCluster>) -> Result<Network> {
    let known = ctx.known(VPC);
    if ctx.spec.network.vpc.id().is_none() {
        let frozen: Option<Layout> = known.map(|known| known.frozen()).transpose()?.flatten();
        return Ok(frozen.map_or(Network::Unknown, Network::Managed));
    }
    let state: Option<VpcState> = known.map(|known: Known| known.state()).transpose()?.flatten();
    Ok(match state {
        None => Network::Unknown,
        Some(state) if !state.owned => Network::Borrowed,
        Some(_) => Network::Managed(listed(&ctx.spec)),
    })
}

/// The subnets that the spec lists.
pub fn listed(spec: &AWSCluster) -> Layout {
    let subnets = spec.network.subnets.iter().map(|subnet| {
        let id = subnet.resource_id.clone().or_else(|| Some(subnet.id.clone())).filter(|id| id.starts_with("subnet-"));
        Subnet {
            name: subnet.id.clone(),
            zone: subnet.availability_zone.clone().unwrap_or_default(),
            cidr: subnet.cidr_block.clone().unwrap_or_default(),
            public: subnet.is_public,
            id,
        }
    });
    Layout { subnets: subnets.collect() }
}

/// Chooses the subnets of a network that is going to be made. Reads the region's zones.
pub fn choose(ctx: &Context<AWSCluster>) -> Result<Layout> {
    let spec = &ctx.spec.network;
    if !spec.subnets.is_empty() {
        return Ok(listed(&ctx.spec));
    }
    let zones = zones(ctx)?;
    let cidr = spec.vpc.cidr_block.as_deref().unwrap_or(DEFAULT_CIDR);
    let Some((public, private)) = split(cidr, zones.len()) else {
        return Err(Error::invalid(
            "/spec/network/vpc/cidrBlock",
            format!(
                "{cidr:?} is no range such as {DEFAULT_CIDR} with room for two subnets in each of {} zones",
                zones.len()
            ),
        ));
    };
    let mut subnets = Vec::new();
    for (is_public, cidrs) in [(true, public), (false, private)] {
        for (zone, cidr) in zones.iter().zip(cidrs) {
            let kind = if is_public { "public" } else { "private" };
            let name = format!("{kind}-{zone}");
            subnets.push(Subnet { name, zone: zone.clone(), cidr, public: is_public, id: None });
        }
    }
    Ok(Layout { subnets })
}

/// The addresses of a VPC where the spec names none.
pub const DEFAULT_CIDR: &str = "10.0.0.0/16";

/// Zones of the region that are to be used.
fn zones(ctx: &Context<AWSCluster>) -> Result<Vec<String>> {
    let vpc = &ctx.spec.network.vpc;
    if !vpc.availability_zones.is_empty() {
        return Ok(vpc.availability_zones.clone());
    }
    let answer = ec2("DescribeAvailabilityZones").filters(&[("state", "available")]).max_age(SHARED).ok()?;
    let mut zones: Vec<String> = answer
        .all("availabilityZoneInfo/item")
        .filter(|zone| matches!(zone.text("zoneType"), "" | "availability-zone"))
        .filter(|zone| matches!(zone.text("optInStatus"), "" | "opt-in-not-required" | "opted-in"))
        .map(|zone| zone.text("zoneName").to_owned())
        .filter(|zone| !zone.is_empty())
        .collect();
    zones.sort();
    if zones.is_empty() {
        return Err(Error::transient(
            "NoAvailabilityZone",
            "the region shows no zone that is available to this account",
        ));
    }
    let most = vpc.availability_zone_usage_limit.unwrap_or(3).max(1);
    if vpc.availability_zone_selection.as_deref() == Some("Random") {
        zones.sort_by_key(|zone| capstan_provider::hash(&format!("{}/{zone}", ctx.owner_key())));
    }
    zones.truncate(usize::try_from(most).unwrap_or(3));
    zones.sort();
    Ok(zones)
}

/// Public and private ranges for so many zones: the first of the equal blocks is cut into the public ones, as CAPA does.
fn split(cidr: &str, zones: usize) -> Option<(Vec<String>, Vec<String>)> {
    let (address, prefix) = cidr.split_once('/')?;
    let (address, prefix) = (u32::from(address.parse::<Ipv4Addr>().ok()?), prefix.parse::<u32>().ok()?);
    let zones = u32::try_from(zones).ok()?;
    let bits = |blocks: u32| blocks.next_power_of_two().trailing_zeros();
    let block = prefix.checked_add(bits(zones + 1))?;
    let small = block.checked_add(bits(zones))?;
    // AWS has VPCs from /16 to /28 and no smaller subnet.
    if !(16..=28).contains(&prefix) || small > 28 {
        return None;
    }
    let base = address & (u32::MAX << (32 - prefix));
    let at = |place: u32, prefix: u32| Some(format!("{}/{prefix}", Ipv4Addr::from(base + (place << (32 - prefix)))));
    let public = (0..zones).filter_map(|place| at(place, small)).collect();
    let private = (1..=zones).filter_map(|place| at(place, block)).collect();
    Some((public, private))
}

/// A subnet as machines and load balancers need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its id.
    pub id: String,
    /// Its zone.
    pub zone: String,
    /// The internet reaches it.
    pub public: bool,
}

/// The subnets of a network by what is on record of its parts.
pub fn places(
    network: &Network,
    borrowed: Option<SubnetsState>,
    mut id_of: impl FnMut(&str) -> Option<String>,
) -> Vec<Place> {
    match network {
        Network::Unknown => Vec::new(),
        Network::Borrowed => borrowed.unwrap_or_default().subnets.into_iter().map(SubnetPlace::into).collect(),
        Network::Managed(layout) => layout
            .subnets
            .iter()
            .filter_map(|subnet| {
                let id = id_of(&subnet.part())?;
                Some(Place { id, zone: subnet.zone.clone(), public: subnet.public })
            })
            .collect(),
    }
}

/// A subnet of the user's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubnetPlace {
    /// Its id.
    pub id: String,
    /// Its zone.
    pub zone: String,
    /// The internet reaches it.
    pub public: bool,
}

impl From<SubnetPlace> for Place {
    fn from(subnet: SubnetPlace) -> Self {
        Self { id: subnet.id, zone: subnet.zone, public: subnet.public }
    }
}

/// The subnets of this cluster that are there.
pub fn of_cluster(ctx: &Context<AWSCluster>) -> Result<Vec<Place>> {
    let borrowed = ctx.known(SUBNETS).map(|known| known.state()).transpose()?.flatten();
    Ok(places(&network(ctx)?, borrowed, |part| ctx.known(part).filter(|known| known.confirmed)?.id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_as_capa_does() {
        let (public, private) = split("10.0.0.0/16", 3).unwrap();
        assert_eq!(public, ["10.0.0.0/20", "10.0.16.0/20", "10.0.32.0/20"]);
        assert_eq!(private, ["10.0.64.0/18", "10.0.128.0/18", "10.0.192.0/18"]);
        let (public, private) = split("192.168.0.0/24", 1).unwrap();
        assert_eq!((public, private), (vec!["192.168.0.0/25".to_owned()], vec!["192.168.0.128/25".to_owned()]));
        let (public, private) = split("10.9.8.7/16", 2).unwrap();
        assert_eq!(public, ["10.9.0.0/19", "10.9.32.0/19"]);
        assert_eq!(private, ["10.9.64.0/18", "10.9.128.0/18"]);
        for (cidr, zones) in
            [("10.0.0.0/26", 3), ("10.0.0.0", 1), ("10.0.0.0/33", 1), ("fd00::/56", 1), ("10.0.0.0/0", 3)]
        {
            assert_eq!(split(cidr, zones), None, "{cidr}");
        }
    }
}
