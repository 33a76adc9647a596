//! The network of a machine: its devices, the addresses it needs from pools, and what cloud-init is told of them.
//!
//! The network configuration is written as JSON, which every YAML reader takes: an address such as `2001:db8::` or a MAC address
//! made of digits is a text there and nothing else.

use std::collections::BTreeMap;

use capstan_provider::{Context, Need, Result, Schema};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::{
    cluster::{ProxmoxCluster, pool_name},
    config::Model,
    machine::ProxmoxMachine,
};

/// API group and kind of the pools that a cluster makes.
const POOL: (&str, &str) = ("ipam.cluster.x-k8s.io", "InClusterIPPool");

/// The network of a machine.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct Network {
    /// Its devices: net0, net1, … without a gap. Without any, the template's net0 stays as it is.
    #[schema(map_key = "name", max_items = 32)]
    pub network_devices: Vec<NetworkDevice>,
    /// Virtual routing domains. Not written: leave them out.
    #[schema(max_items = 32)]
    pub vrfs: Vec<Vrf>,
    /// The zone of the cluster whose pools and DNS servers it uses in place of the cluster's own.
    pub zone: Option<String>,
}

/// A network device.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkDevice {
    /// `net0`, `net1`, …
    #[schema(pattern = "^net([0-9]|[12][0-9]|3[01])$", required)]
    pub name: String,
    /// The bridge that it is attached to; the template's if absent.
    #[schema(min_length = 1, max_length = 64, pattern = "^[a-zA-Z0-9][a-zA-Z0-9_.-]*$")]
    pub bridge: Option<String>,
    /// What the device is; `virtio` if absent and the template has none.
    pub model: Option<Model>,
    /// The largest packet; 1 takes the bridge's.
    #[schema(min = 1, max = 65_520, rule("self == 1 || self >= 576", "is 1 (the bridge's) or at least 576"))]
    pub mtu: Option<u32>,
    /// The tag of its virtual LAN.
    #[schema(min = 1, max = 4094)]
    pub vlan: Option<u16>,
    /// How many queues it has.
    #[schema(min = 1, max = 64)]
    pub queues: Option<u16>,
    /// Pools to take an address from, one of each.
    #[schema(max_items = 16)]
    pub ip_pool_ref: Vec<PoolRef>,
    /// DNS servers in place of the cluster's.
    #[schema(max_items = 8)]
    pub dns_servers: Vec<String>,
    /// Routes beside those to the gateways of its addresses.
    #[schema(max_items = 64)]
    pub routes: Vec<Route>,
    /// Rules that choose a routing table.
    #[schema(max_items = 64)]
    pub routing_policy: Vec<Rule>,
    /// Take an address from the cluster's IPv4 pool; net0 does unless this says no.
    #[serde(rename = "defaultIPv4")]
    pub default_ipv4: Option<bool>,
    /// Take an address from the cluster's IPv6 pool; net0 does unless this says no.
    #[serde(rename = "defaultIPv6")]
    pub default_ipv6: Option<bool>,
}

/// A pool of addresses in the namespace of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct PoolRef {
    /// Its API group; `ipam.cluster.x-k8s.io` if absent.
    pub api_group: Option<String>,
    /// Its kind, such as InClusterIPPool or GlobalInClusterIPPool.
    #[schema(min_length = 1, max_length = 63, required)]
    pub kind: String,
    /// Its name.
    #[schema(min_length = 1, max_length = 253, required)]
    pub name: String,
}

/// A route.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct Route {
    /// Where to, as a CIDR or `default`.
    pub to: Option<String>,
    /// By way of this address.
    pub via: Option<String>,
    /// The smaller, the better.
    pub metric: Option<u32>,
    /// The routing table that it is in.
    pub table: Option<u32>,
}

/// A rule that chooses a routing table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct Rule {
    /// For packets to this CIDR.
    pub to: Option<String>,
    /// For packets from this CIDR.
    pub from: Option<String>,
    /// The routing table.
    pub table: Option<u32>,
    /// The smaller, the earlier.
    pub priority: Option<u32>,
}

/// A virtual routing domain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
#[schema(preserve_unknown)]
pub struct Vrf {
    /// Its name.
    pub name: String,
}

/// An address that a device takes from a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The device.
    pub device: String,
    /// By which it is granted.
    pub label: String,
    /// The pool.
    pub pool: PoolRef,
    /// The metric of the route to its gateway.
    pub metric: u32,
}

impl ProxmoxMachine {
    /// Its devices; net0 where the spec names none.
    pub fn devices(&self) -> Vec<NetworkDevice> {
        match self.network.network_devices.as_slice() {
            [] => vec![NetworkDevice { name: "net0".to_owned(), ..NetworkDevice::default() }],
            devices => devices.to_vec(),
        }
    }

    /// The addresses that it takes from pools.
    pub fn wanted(&self, cluster: &str, infrastructure: &ProxmoxCluster) -> Vec<Wanted> {
        let zone = self.network.zone.as_deref();
        let (ipv4, ipv6) = infrastructure.pools(zone);
        let mut all = Vec::new();
        for (index, device) in (0_u32..).zip(self.devices()) {
            let first = index == 0;
            let defaults = [
                ("inet", "v4", ipv4, device.default_ipv4.unwrap_or(first)),
                ("inet6", "v6", ipv6, device.default_ipv6.unwrap_or(first)),
            ];
            for (suffix, family, pool, wanted) in defaults {
                let Some(pool) = pool.filter(|_| wanted) else { continue };
                all.push(Wanted {
                    device: device.name.clone(),
                    label: format!("{}-{suffix}", device.name),
                    pool: PoolRef {
                        api_group: Some(POOL.0.to_owned()),
                        kind: POOL.1.to_owned(),
                        name: pool_name(cluster, zone, family),
                    },
                    // A second device must not compete with the first for the default route.
                    metric: pool.metric() + 100 * index,
                });
            }
            for (place, pool) in (0_u32..).zip(&device.ip_pool_ref) {
                all.push(Wanted {
                    device: device.name.clone(),
                    label: format!("{}-{place}", device.name),
                    pool: pool.clone(),
                    metric: 100 * (index + 1) + 10 * (place + 1),
                });
            }
        }
        all
    }
}

/// The spec of the ProxmoxCluster, once the machine's cluster has one.
pub fn infrastructure(ctx: &Context<ProxmoxMachine>) -> Result<ProxmoxCluster> {
    Ok(ctx.cluster().infrastructure_spec()?.unwrap_or_default())
}

/// The addresses of a machine as needs.
pub fn needs(ctx: &Context<ProxmoxMachine>) -> Result<Vec<(String, Need)>> {
    let wanted = ctx.spec.wanted(&ctx.cluster().name(), &infrastructure(ctx)?);
    Ok(wanted
        .into_iter()
        .map(|wanted| {
            let group = wanted.pool.api_group.unwrap_or_else(|| POOL.0.to_owned());
            (wanted.label, Need::Address { group, kind: wanted.pool.kind, name: wanted.pool.name })
        })
        .collect())
}

/// An address that was granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The device.
    pub device: String,
    /// The address.
    pub address: String,
    prefix: u8,
    gateway: Option<String>,
    metric: u32,
}

/// What was granted, and the pools that have not given an address yet.
pub fn granted(ctx: &Context<ProxmoxMachine>) -> Result<(Vec<Granted>, Vec<String>)> {
    let mut there = Vec::new();
    let mut missing = Vec::new();
    for wanted in ctx.spec.wanted(&ctx.cluster().name(), &infrastructure(ctx)?) {
        match ctx.address(&wanted.label) {
            Some((address, prefix, gateway)) => {
                there.push(Granted { device: wanted.device, address, prefix, gateway, metric: wanted.metric });
            }
            None => missing.push(format!("{} {}", wanted.pool.kind, wanted.pool.name)),
        }
    }
    Ok((there, missing))
}

/// cloud-init's network configuration, version 2, as JSON. `macs` are those of the virtual machine, by device.
pub fn cloud_init(
    spec: &ProxmoxMachine,
    cluster: &ProxmoxCluster,
    macs: &BTreeMap<String, String>,
    granted: &[Granted],
) -> String {
    let mut ethernets = Map::new();
    for (index, device) in spec.devices().iter().enumerate() {
        let Some(mac) = macs.get(&device.name) else { continue };
        let name = format!("eth{index}");
        let mine: Vec<&Granted> = granted.iter().filter(|granted| granted.device == device.name).collect();
        let mut entry = Map::new();
        entry.insert("match".to_owned(), json!({"macaddress": mac.to_lowercase()}));
        entry.insert("set-name".to_owned(), name.clone().into());
        // Without an address from a pool, whatever the network gives; nothing waits for it.
        entry.insert("dhcp4".to_owned(), mine.is_empty().into());
        if mine.is_empty() {
            entry.insert("optional".to_owned(), true.into());
        }
        let addresses: Vec<String> =
            mine.iter().map(|granted| format!("{}/{}", granted.address, granted.prefix)).collect();
        if !addresses.is_empty() {
            entry.insert("addresses".to_owned(), json!(addresses));
        }
        let mut routes: Vec<Value> = mine.iter().filter_map(|granted| default_route(granted)).collect();
        routes.extend(device.routes.iter().map(|route| {
            object(vec![
                ("to", route.to.clone().map(Value::from)),
                ("via", route.via.clone().map(Value::from)),
                ("metric", route.metric.map(Value::from)),
                ("table", route.table.map(Value::from)),
            ])
        }));
        if !routes.is_empty() {
            entry.insert("routes".to_owned(), routes.into());
        }
        let policy = device.routing_policy.iter().map(|rule| {
            object(vec![
                ("to", rule.to.clone().map(Value::from)),
                ("from", rule.from.clone().map(Value::from)),
                ("table", rule.table.map(Value::from)),
                ("priority", rule.priority.map(Value::from)),
            ])
        });
        let policy: Vec<Value> = policy.collect();
        if !policy.is_empty() {
            entry.insert("routing-policy".to_owned(), policy.into());
        }
        if let Some(mtu) = device.mtu.filter(|mtu| *mtu > 1) {
            entry.insert("mtu".to_owned(), mtu.into());
        }
        let servers = match device.dns_servers.as_slice() {
            [] => cluster.dns(spec.network.zone.as_deref()),
            servers => servers,
        };
        if !servers.is_empty() {
            entry.insert("nameservers".to_owned(), json!({"addresses": servers}));
        }
        ethernets.insert(name, entry.into());
    }
    json!({"version": 2, "ethernets": ethernets}).to_string()
}

fn default_route(granted: &Granted) -> Option<Value> {
    let via = granted.gateway.as_ref().filter(|gateway| !gateway.is_empty())?;
    let to = if granted.address.contains(':') { "::/0" } else { "0.0.0.0/0" };
    Some(json!({"to": to, "via": via, "metric": granted.metric}))
}

fn object(fields: Vec<(&str, Option<Value>)>) -> Value {
    fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect::<Map<_, _>>().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster() -> ProxmoxCluster {
        serde_json::from_value(json!({
            "dnsServers": ["192.0.2.53", "2001:db8::53"],
            "ipv4Config": {"addresses": ["192.0.2.10-192.0.2.20"], "prefix": 24, "gateway": "192.0.2.1"},
            "ipv6Config": {"addresses": ["2001:db8:1::/64"], "prefix": 64, "gateway": "2001:db8:1::", "metric": 200},
        }))
        .unwrap()
    }

    fn machine(network: Value) -> ProxmoxMachine {
        serde_json::from_value(json!({"sourceNode": "pve1", "templateID": 9000, "network": network})).unwrap()
    }

    fn macs(names: &[(&str, &str)]) -> BTreeMap<String, String> {
        names.iter().map(|(name, mac)| ((*name).to_owned(), (*mac).to_owned())).collect()
    }

    fn give(wanted: &Wanted, address: &str, prefix: u8, gateway: &str) -> Granted {
        Granted {
            device: wanted.device.clone(),
            address: address.to_owned(),
            prefix,
            gateway: Some(gateway.to_owned()),
            metric: wanted.metric,
        }
    }

    #[test]
    fn net0_takes_the_clusters_pools_and_others_their_own() {
        let spec = machine(json!({"networkDevices": [
            {"name": "net0", "bridge": "vmbr0"},
            {"name": "net1", "bridge": "vmbr1", "ipPoolRef": [{"kind": "GlobalInClusterIPPool", "name": "lab"}]},
        ]}));
        let labels: Vec<_> =
            spec.wanted("c", &cluster()).into_iter().map(|w| (w.label, w.pool.name, w.metric)).collect();
        assert_eq!(
            labels,
            [
                ("net0-inet".to_owned(), "c-v4-icip".to_owned(), 100),
                ("net0-inet6".to_owned(), "c-v6-icip".to_owned(), 200),
                ("net1-0".to_owned(), "lab".to_owned(), 210),
            ]
        );
        let without =
            machine(json!({"networkDevices": [{"name": "net0", "defaultIPv4": false, "defaultIPv6": false}]}));
        assert!(without.wanted("c", &cluster()).is_empty());
        assert_eq!(machine(json!({})).wanted("c", &cluster()).len(), 2);
    }

    #[test]
    fn a_zone_has_pools_and_dns_servers_of_its_own() {
        let mut cluster = cluster();
        cluster.zone_config = serde_json::from_value(json!([{"zone": "east", "dnsServers": ["198.51.100.53"],
            "ipv4Config": {"addresses": ["198.51.100.2"], "prefix": 24, "gateway": "198.51.100.1"}}]))
        .unwrap();
        let spec = machine(json!({"zone": "east"}));
        let wanted = spec.wanted("c", &cluster);
        assert_eq!(wanted.len(), 1);
        assert_eq!(wanted[0].pool.name, "c-east-v4-icip");
        let text = cloud_init(&spec, &cluster, &macs(&[("net0", "BC:24:11:00:00:01")]), &[]);
        assert!(text.contains("198.51.100.53") && !text.contains("192.0.2.53"));
    }

    /// Field case A15: what an independent YAML reader makes of it.
    #[test]
    fn a15_every_address_is_a_text_and_every_family_has_its_default_route() {
        let yaml = |text: &str| -> Value { serde_saphyr::from_str(text).unwrap() };
        // IPv6 only.
        let spec = machine(
            json!({"networkDevices": [{"name": "net0", "defaultIPv4": false, "dnsServers": ["2001:db8::53"]}]}),
        );
        let wanted = spec.wanted("c", &cluster());
        let given = [give(&wanted[0], "2001:db8:1:::".trim_end_matches(':'), 64, "2001:db8:1::")];
        let read = yaml(&cloud_init(&spec, &cluster(), &macs(&[("net0", "11:22:33:44:55:66")]), &given));
        let eth0 = &read["ethernets"]["eth0"];
        assert_eq!(eth0["match"]["macaddress"], "11:22:33:44:55:66");
        assert_eq!(eth0["routes"], json!([{"to": "::/0", "via": "2001:db8:1::", "metric": 200}]));
        assert_eq!(eth0["nameservers"]["addresses"], json!(["2001:db8::53"]));
        assert_eq!(eth0["dhcp4"], false);
        assert_eq!(read["version"], 2);

        // Dual stack, two devices with metrics; the second has IPv6 alone.
        let spec = machine(json!({"networkDevices": [
            {"name": "net0", "mtu": 1400, "routes": [{"to": "10.0.0.0/8", "via": "192.0.2.9"}],
             "routingPolicy": [{"from": "192.0.2.0/24", "table": 100}]},
            {"name": "net1", "ipPoolRef": [{"kind": "InClusterIPPool", "name": "six"}]},
        ]}));
        let wanted = spec.wanted("c", &cluster());
        let given = [
            give(&wanted[0], "192.0.2.10", 24, "192.0.2.1"),
            give(&wanted[1], "2001:db8:1::", 64, "2001:db8:1::"),
            give(&wanted[2], "2001:db8:2::5", 64, "2001:db8:2::"),
        ];
        let macs = macs(&[("net0", "BC:24:11:00:00:01"), ("net1", "BC:24:11:00:00:02")]);
        let read = yaml(&cloud_init(&spec, &cluster(), &macs, &given));
        let eth0 = &read["ethernets"]["eth0"];
        assert_eq!(eth0["addresses"], json!(["192.0.2.10/24", "2001:db8:1::/64"]));
        assert_eq!(
            eth0["routes"],
            json!([
                {"to": "0.0.0.0/0", "via": "192.0.2.1", "metric": 100},
                {"to": "::/0", "via": "2001:db8:1::", "metric": 200},
                {"to": "10.0.0.0/8", "via": "192.0.2.9"},
            ])
        );
        assert_eq!(eth0["routing-policy"], json!([{"from": "192.0.2.0/24", "table": 100}]));
        assert_eq!(eth0["mtu"], 1400);
        let eth1 = &read["ethernets"]["eth1"];
        assert_eq!(eth1["addresses"], json!(["2001:db8:2::5/64"]));
        assert_eq!(eth1["routes"], json!([{"to": "::/0", "via": "2001:db8:2::", "metric": 210}]));
        assert_eq!(eth1["set-name"], "eth1");
    }

    #[test]
    fn a_device_without_a_pool_asks_the_network_and_nothing_waits_for_it() {
        let spec = machine(json!({"networkDevices": [{"name": "net0", "defaultIPv4": false, "defaultIPv6": false}]}));
        let text = cloud_init(&spec, &cluster(), &macs(&[("net0", "BC:24:11:00:00:01")]), &[]);
        let read: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read["ethernets"]["eth0"]["dhcp4"], true);
        assert_eq!(read["ethernets"]["eth0"]["optional"], true);
        assert_eq!(read["ethernets"]["eth0"].get("routes"), None);
    }
}
