//! A cluster in Proxmox VE: its endpoint, where machines may be, and pools of addresses. Nothing is made for it there.

use std::net::IpAddr;

use capstan_provider::{
    ClusterFacts, ClusterKind, Condition, Context, Error, FailureDomain, HostPort, Kind, Need, Observed, Part,
    Presence, Progress, Result, Schema, Violation, http, infrastructure::PartsOf, json,
};
use serde::{Deserialize, Serialize};

use crate::{API, pve};

/// The part that is looked at: the API itself.
pub const PROXMOX: &str = "proxmox";

/// A cluster in Proxmox VE.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Schema, Kind)]
#[serde(rename_all = "camelCase", default)]
#[kind(name = "ProxmoxCluster", version = "v1alpha2", status = ProxmoxClusterStatus, served_too = crate::v1alpha1::Cluster,
    column("Endpoint", "string", ".spec.controlPlaneEndpoint.host"))]
#[schema(rule("has(self.ipv4Config) || has(self.ipv6Config)", "at least one of ipv4Config and ipv6Config is needed"))]
pub struct ProxmoxCluster {
    /// Where the API server of the cluster is reached: an address or name of the user's, such as one that kube-vip keeps.
    #[schema(hidden)]
    pub control_plane_endpoint: Option<Endpoint>,
    /// The control plane is somebody else's, and so is its endpoint.
    pub external_managed_control_plane: bool,
    /// Nodes that machines may be placed on; they are the failure domains.
    #[schema(set, max_items = 256)]
    pub allowed_nodes: Vec<String>,
    /// What the choice of a node takes into account.
    pub scheduler_hints: SchedulerHints,
    /// Addresses of machines, IPv4.
    pub ipv4_config: Option<PoolConfig>,
    /// Addresses of machines, IPv6.
    pub ipv6_config: Option<PoolConfig>,
    /// DNS servers of machines.
    #[schema(min_items = 1, max_items = 8, required)]
    pub dns_servers: Vec<String>,
    /// Zones whose machines take their addresses from pools of their own.
    #[schema(map_key = "zone", max_items = 64)]
    pub zone_config: Vec<Zone>,
    /// The Secret with `url`, `token` and `secret`.
    pub credentials_ref: Option<SecretRef>,
}

/// A host and a port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Endpoint {
    /// An address or name.
    pub host: String,
    /// A port.
    pub port: u16,
}

/// What the choice of a node takes into account.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct SchedulerHints {
    /// How much of a node's memory may be promised to machines, in percent: 100 if absent; 0 for no limit.
    #[schema(min = 0, max = 10_000)]
    pub memory_adjustment: Option<u64>,
}

/// A pool of addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct PoolConfig {
    /// Addresses, ranges (`a-b`) or CIDRs.
    #[schema(set, min_items = 1, max_items = 256, required)]
    pub addresses: Vec<String>,
    /// Length of the network prefix.
    #[schema(min = 1, max = 128, required)]
    pub prefix: u8,
    /// The gateway.
    pub gateway: Option<String>,
    /// The metric of the route to the gateway; 100 if absent.
    pub metric: Option<u32>,
}

impl PoolConfig {
    /// The metric of the route to the gateway.
    pub fn metric(&self) -> u32 {
        self.metric.unwrap_or(100)
    }
}

/// A zone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct Zone {
    /// Its name.
    #[schema(min_length = 1, max_length = 63, pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", required)]
    pub zone: String,
    /// Addresses of machines, IPv4.
    pub ipv4_config: Option<PoolConfig>,
    /// Addresses of machines, IPv6.
    pub ipv6_config: Option<PoolConfig>,
    /// DNS servers of machines; the cluster's if there are none.
    #[schema(max_items = 8)]
    pub dns_servers: Vec<String>,
}

/// A Secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct SecretRef {
    /// Its name.
    #[schema(min_length = 1, max_length = 253, required)]
    pub name: String,
    /// Its namespace: that of the cluster, if it is there at all.
    pub namespace: Option<String>,
}

/// What is known of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Schema)]
#[serde(rename_all = "camelCase")]
pub struct ProxmoxClusterStatus {
    /// The version of Proxmox VE that answers.
    pub version: Option<String>,
    /// The pools that its machines take addresses from.
    #[serde(rename = "inClusterIPPoolRef", skip_serializing_if = "Vec::is_empty")]
    pub in_cluster_ip_pool_ref: Vec<Named>,
}

/// A name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Schema)]
pub struct Named {
    /// The name.
    pub name: String,
}

/// The name of a pool, as CAPMOX has it.
pub fn pool_name(cluster: &str, zone: Option<&str>, family: &str) -> String {
    match zone {
        Some(zone) => format!("{cluster}-{zone}-{family}-icip"),
        None => format!("{cluster}-{family}-icip"),
    }
}

impl ProxmoxCluster {
    /// The pools of a zone, or the cluster's own.
    pub fn pools(&self, zone: Option<&str>) -> (Option<&PoolConfig>, Option<&PoolConfig>) {
        match zone {
            None => (self.ipv4_config.as_ref(), self.ipv6_config.as_ref()),
            Some(name) => match self.zone(name) {
                Some(zone) => (zone.ipv4_config.as_ref(), zone.ipv6_config.as_ref()),
                None => (None, None),
            },
        }
    }

    /// A zone.
    pub fn zone(&self, name: &str) -> Option<&Zone> {
        self.zone_config.iter().find(|zone| zone.zone == name)
    }

    /// The DNS servers of machines.
    pub fn dns(&self, zone: Option<&str>) -> &[String] {
        match zone.and_then(|name| self.zone(name)).map(|zone| zone.dns_servers.as_slice()) {
            None | Some([]) => &self.dns_servers,
            Some(servers) => servers,
        }
    }

    /// All pools: name and configuration.
    fn all_pools(&self, cluster: &str) -> Vec<(String, &PoolConfig)> {
        let mut all = Vec::new();
        let zones = self.zone_config.iter().map(|zone| Some(zone.zone.as_str()));
        for zone in std::iter::once(None).chain(zones) {
            let (ipv4, ipv6) = self.pools(zone);
            all.extend(ipv4.map(|pool| (pool_name(cluster, zone, "v4"), pool)));
            all.extend(ipv6.map(|pool| (pool_name(cluster, zone, "v6"), pool)));
        }
        all
    }
}

impl PartsOf for ProxmoxCluster {
    fn parts(_ctx: &Context<Self>) -> Result<Vec<Box<dyn Part<Self>>>> {
        Ok(vec![Box::new(Proxmox)])
    }

    fn needs(ctx: &Context<Self>) -> Result<Vec<(String, Need)>> {
        Ok(ctx
            .spec
            .all_pools(&ctx.cluster().name())
            .into_iter()
            .map(|(name, pool)| {
                let gateway = pool.gateway.clone().filter(|gateway| !gateway.is_empty());
                (name, Need::AddressPool { addresses: pool.addresses.clone(), prefix: pool.prefix, gateway })
            })
            .collect())
    }

    fn validate(_old: Option<&Self>, new: &Self) -> Vec<Violation> {
        let mut violations = Vec::new();
        let mut check = |at: &str, ipv4: Option<&PoolConfig>, ipv6: Option<&PoolConfig>| {
            for (field, pool, is_ipv4) in [("ipv4Config", ipv4, true), ("ipv6Config", ipv6, false)] {
                let Some(pool) = pool else { continue };
                pool_violations(
                    pool,
                    is_ipv4,
                    &format!("{at}/{field}"),
                    new.control_plane_endpoint.as_ref(),
                    &mut violations,
                );
            }
        };
        check("/spec", new.ipv4_config.as_ref(), new.ipv6_config.as_ref());
        for (index, zone) in new.zone_config.iter().enumerate() {
            check(&format!("/spec/zoneConfig/{index}"), zone.ipv4_config.as_ref(), zone.ipv6_config.as_ref());
        }
        for (index, server) in new.dns_servers.iter().enumerate() {
            if server.parse::<IpAddr>().is_err() {
                violations
                    .push(Violation::new(format!("/spec/dnsServers/{index}"), format!("{server:?} is no IP address")));
            }
        }
        if new.credentials_ref.as_ref().is_some_and(|secret| secret.name.is_empty()) {
            violations.push(Violation::new("/spec/credentialsRef/name", "a Secret has a name"));
        }
        violations
    }
}

/// The ends of an entry of a pool: an address, `a-b`, or a CIDR.
fn ends(entry: &str) -> Option<(u128, u128, bool)> {
    let value = |text: &str| match text.trim().parse::<IpAddr>().ok()? {
        IpAddr::V4(address) => Some((u128::from(u32::from(address)), true)),
        IpAddr::V6(address) => Some((u128::from(address), false)),
    };
    if let Some((first, last)) = entry.split_once('-') {
        let ((first, is_ipv4), (last, same)) = (value(first)?, value(last)?);
        return (is_ipv4 == same && first <= last).then_some((first, last, is_ipv4));
    }
    if let Some((address, prefix)) = entry.split_once('/') {
        let ((address, is_ipv4), prefix) = (value(address)?, prefix.parse::<u32>().ok()?);
        let host_bits = (if is_ipv4 { 32_u32 } else { 128 }).checked_sub(prefix)?;
        let mask = 1_u128.checked_shl(host_bits).unwrap_or(0).wrapping_sub(1);
        return Some((address & !mask, address | mask, is_ipv4));
    }
    let (address, is_ipv4) = value(entry)?;
    Some((address, address, is_ipv4))
}

fn pool_violations(pool: &PoolConfig, is_ipv4: bool, at: &str, endpoint: Option<&Endpoint>, all: &mut Vec<Violation>) {
    let family = if is_ipv4 { "IPv4" } else { "IPv6" };
    if pool.addresses.is_empty() {
        all.push(Violation::new(format!("{at}/addresses"), "a pool has addresses"));
    }
    if is_ipv4 && pool.prefix > 32 {
        all.push(Violation::new(format!("{at}/prefix"), "a prefix of IPv4 has at most 32 bits"));
    }
    let host = endpoint.and_then(|endpoint| ends(endpoint.host.trim()));
    for (index, entry) in pool.addresses.iter().enumerate() {
        let path = format!("{at}/addresses/{index}");
        match ends(entry) {
            Some((first, last, same)) if same == is_ipv4 => {
                if let Some((host, _, true)) = host.map(|(host, last, family)| (host, last, family == is_ipv4))
                    && (first..=last).contains(&host)
                {
                    all.push(Violation::new(
                        path,
                        format!("{entry} holds the control-plane endpoint: a machine would get its address"),
                    ));
                }
            }
            _ => all.push(Violation::new(path, format!("{entry:?} is no {family} address, range (a-b) or CIDR"))),
        }
    }
    if let Some(gateway) = pool.gateway.as_deref().filter(|gateway| !gateway.is_empty())
        && gateway.parse::<IpAddr>().map(|address| address.is_ipv4()) != Ok(is_ipv4)
    {
        all.push(Violation::new(format!("{at}/gateway"), format!("{gateway:?} is no {family} address")));
    }
}

impl ClusterKind for ProxmoxCluster {
    fn report(ctx: &Context<Self>) -> Result<ClusterFacts> {
        let endpoint = ctx.spec.control_plane_endpoint.as_ref().filter(|endpoint| !endpoint.host.is_empty());
        if endpoint.is_none() && !ctx.spec.external_managed_control_plane {
            return Err(Error::invalid(
                "/spec/controlPlaneEndpoint",
                "Proxmox VE has no load balancers: set the address or name and the port that the API server will have, or \
                 externalManagedControlPlane",
            ));
        }
        let known: Option<ApiState> = ctx.known(PROXMOX).map(|known| known.state()).transpose()?.flatten();
        let version = known.map(|known| known.version);
        let available = match &version {
            Some(_) => Condition::new("ProxmoxAvailable", Some(true), "ProxmoxAvailable", ""),
            None => {
                Condition::new("ProxmoxAvailable", Some(false), "ProxmoxUnreachable", "Proxmox VE has not answered yet")
            }
        };
        let pools = ctx.spec.all_pools(&ctx.cluster().name());
        Ok(ClusterFacts {
            control_plane_endpoint: endpoint.map(|endpoint| HostPort {
                host: endpoint.host.clone(),
                port: if endpoint.port == 0 { 6443 } else { endpoint.port },
            }),
            failure_domains: ctx
                .spec
                .allowed_nodes
                .iter()
                .map(|node| FailureDomain { name: node.clone(), control_plane: true, attributes: Vec::new() })
                .collect(),
            conditions: vec![available],
            status: json::text(&ProxmoxClusterStatus {
                version,
                in_cluster_ip_pool_ref: pools.into_iter().map(|(name, _)| Named { name }).collect(),
            })?,
        })
    }
}

/// What is known of the API.
#[derive(Serialize, Deserialize)]
struct ApiState {
    version: String,
}

/// The API itself: the user has it, and it must answer.
struct Proxmox;

impl Part<ProxmoxCluster> for Proxmox {
    fn name(&self) -> String {
        PROXMOX.to_owned()
    }

    fn borrowed(&self) -> bool {
        true
    }

    fn identify(&self, _ctx: &Context<ProxmoxCluster>, _reserved: &[String]) -> Result<capstan_provider::Choice> {
        Ok(capstan_provider::Choice::chosen(PROXMOX))
    }

    fn observe(&self, _ctx: &Context<ProxmoxCluster>) -> Result<Presence> {
        let state: ApiState =
            pve::read(http::get(API, "/api2/json/version", &[]), "asking Proxmox VE for its version")?;
        Ok(Presence::Present(Observed::new(PROXMOX, &state)?.ready(true)))
    }

    fn create(&self, _ctx: &Context<ProxmoxCluster>) -> Result<Progress> {
        Ok(Progress::waiting("NotOurs", "Proxmox VE itself is not made here"))
    }

    fn delete(&self, _ctx: &Context<ProxmoxCluster>) -> Result<Progress> {
        Ok(Progress::done(PROXMOX))
    }
}

#[cfg(test)]
#[path = "cluster_tests.rs"]
mod tests;
