//! The version before: `v1alpha1` of ProxmoxCluster and ProxmoxMachine, served beside `v1alpha2`.
//!
//! What differs: a machine's first device is `network.default` and the others are `network.additionalDevices`, with one pool for
//! each family; a template is selected by all of its tags and nothing else; there are no zones; some of the status is a map by name.
//! Everything else is the same in both.

use std::collections::BTreeMap;

use capstan_provider::{Kind, Schema, versions::OlderVersion};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::{
    cluster::{PoolConfig, SchedulerHints, SecretRef},
    config::Model,
    machine::{Checks, Disks, MetadataSettings, VmIdRange},
    network::{PoolRef, Route, Rule, Vrf},
};

/// The device that is `network.default`.
const DEFAULT: &str = "net0";

/// A virtual machine in Proxmox VE.
#[derive(Schema, Kind, Deserialize)]
#[serde(rename_all = "camelCase")]
#[kind(name = "ProxmoxMachine", version = "v1alpha1", older, status = MachineStatus,
    column("Node", "string", ".status.proxmoxNode", "Where it runs"),
    column("State", "string", ".status.vmStatus"))]
#[allow(dead_code, reason = "a schema: objects are converted before they are read")]
pub struct Machine {
    /// Its number. Chosen if absent; a given one is never changed.
    #[serde(rename = "virtualMachineID")]
    #[schema(min = 100, max = 999_999_999)]
    virtual_machine_id: Option<u64>,
    /// The node that the template is on.
    #[schema(min_length = 1, max_length = 63)]
    source_node: Option<String>,
    /// The number of the template.
    #[serde(rename = "templateID")]
    #[schema(min = 100, max = 999_999_999)]
    template_id: Option<u64>,
    /// The template by all of its tags.
    template_selector: Option<TemplateSelector>,
    /// A text for people, shown in Proxmox VE. The owner key is written below it.
    #[schema(max_length = 4000)]
    description: Option<String>,
    /// Format of the disks of a full clone.
    #[schema(values("raw", "qcow2", "vmdk"))]
    format: Option<String>,
    /// Copy the disks; if false, they are layers over those of the template.
    #[schema(default = true, optional)]
    full: bool,
    /// The resource pool that it belongs to.
    #[schema(min_length = 1, max_length = 128)]
    pool: Option<String>,
    /// The snapshot of the template that is cloned.
    #[schema(min_length = 1, max_length = 40)]
    snap_name: Option<String>,
    /// The storage of a full clone's disks.
    #[schema(min_length = 1, max_length = 100)]
    storage: Option<String>,
    /// The node that it is placed on.
    #[schema(min_length = 1, max_length = 63)]
    target: Option<String>,
    /// Sockets; the template's if absent.
    #[schema(min = 1, max = 4)]
    num_sockets: Option<u64>,
    /// Cores of each socket; the template's if absent.
    #[schema(min = 1, max = 8192)]
    num_cores: Option<u64>,
    /// Memory in MiB; the template's if absent.
    #[serde(rename = "memoryMiB")]
    #[schema(min = 16, max = 16_777_216, multiple_of = 8)]
    memory_mib: Option<u64>,
    /// Its disks.
    disks: Option<Disks>,
    /// Its network.
    network: Option<Network>,
    /// Where its number is chosen from.
    #[serde(rename = "vmIDRange")]
    vm_id_range: Option<VmIdRange>,
    /// What is not waited for.
    checks: Option<Checks>,
    /// What its first-boot data is told.
    metadata_settings: Option<MetadataSettings>,
    /// Nodes that it may be placed on, in place of the cluster's.
    #[schema(set, max_items = 256, optional)]
    allowed_nodes: Vec<String>,
    /// Tags beside those of the template.
    #[schema(set, max_items = 64, immutable, optional)]
    tags: Vec<String>,
}

/// A template by its tags.
#[derive(Schema, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code, reason = "a schema")]
pub struct TemplateSelector {
    /// Its tags: these and no others.
    #[schema(set, min_items = 1, max_items = 64)]
    match_tags: Vec<String>,
}

/// The network of a machine.
#[derive(Schema, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code, reason = "a schema")]
pub struct Network {
    /// The first device, net0.
    default: Option<Device>,
    /// The others.
    #[schema(map_key = "name", max_items = 31, optional)]
    additional_devices: Vec<AdditionalDevice>,
    /// Virtual routing domains. Not written: leave them out.
    #[schema(max_items = 32, optional)]
    vrfs: Vec<Vrf>,
}

/// The first network device.
#[derive(Schema, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code, reason = "a schema")]
pub struct Device {
    /// The bridge that it is attached to.
    #[schema(min_length = 1, max_length = 64)]
    bridge: String,
    /// What the device is; `virtio` if absent and the template has none.
    model: Option<Model>,
    /// The largest packet; 1 takes the bridge's.
    #[schema(min = 1, max = 65_520, rule("self == 1 || self >= 576", "is 1 (the bridge's) or at least 576"))]
    mtu: Option<u32>,
    /// The tag of its virtual LAN.
    #[schema(min = 1, max = 4094)]
    vlan: Option<u16>,
    /// DNS servers in place of the cluster's.
    #[schema(max_items = 8, optional)]
    dns_servers: Vec<String>,
    /// A pool to take an IPv4 address from.
    #[serde(rename = "ipv4PoolRef")]
    ipv4_pool_ref: Option<PoolRef>,
    /// A pool to take an IPv6 address from.
    #[serde(rename = "ipv6PoolRef")]
    ipv6_pool_ref: Option<PoolRef>,
}

/// A network device beside the first.
#[derive(Schema, Deserialize)]
#[serde(rename_all = "camelCase")]
#[schema(rule("has(self.ipv4PoolRef) || has(self.ipv6PoolRef)", "ipv4PoolRef or ipv6PoolRef is needed"))]
#[allow(dead_code, reason = "a schema")]
pub struct AdditionalDevice {
    /// `net1`, `net2`, …
    #[schema(min_length = 1, max_length = 15, rule("self != 'net0'", "net0 is `default`"))]
    name: String,
    /// The bridge that it is attached to.
    #[schema(min_length = 1, max_length = 64)]
    bridge: String,
    /// What the device is; `virtio` if absent and the template has none.
    model: Option<Model>,
    /// The largest packet; 1 takes the bridge's.
    #[schema(min = 1, max = 65_520, rule("self == 1 || self >= 576", "is 1 (the bridge's) or at least 576"))]
    mtu: Option<u32>,
    /// The tag of its virtual LAN.
    #[schema(min = 1, max = 4094)]
    vlan: Option<u16>,
    /// DNS servers in place of the cluster's.
    #[schema(max_items = 8, optional)]
    dns_servers: Vec<String>,
    /// A pool to take an IPv4 address from.
    #[serde(rename = "ipv4PoolRef")]
    ipv4_pool_ref: Option<PoolRef>,
    /// A pool to take an IPv6 address from.
    #[serde(rename = "ipv6PoolRef")]
    ipv6_pool_ref: Option<PoolRef>,
    /// Routes beside those to the gateways of its addresses.
    #[schema(max_items = 64, optional)]
    routes: Vec<Route>,
    /// Rules that choose a routing table.
    #[schema(max_items = 64, optional)]
    routing_policy: Vec<Rule>,
}

/// What is known of a machine.
#[derive(Schema, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code, reason = "a schema")]
pub struct MachineStatus {
    /// `pending`, `ready` or `notfound`.
    vm_status: Option<String>,
    /// The node that it is on.
    proxmox_node: Option<String>,
    /// The task that is awaited.
    task_ref: Option<String>,
    /// Its first-boot data is in its drive, or was.
    bootstrap_data_provided: Option<bool>,
    /// Its addresses from pools, by device.
    #[schema(optional)]
    ip_addresses: BTreeMap<String, Addresses>,
}

/// The addresses of a device.
#[derive(Schema, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code, reason = "a schema")]
pub struct Addresses {
    /// IPv4.
    ipv4: Option<String>,
    /// IPv6.
    ipv6: Option<String>,
}

/// A cluster in Proxmox VE.
#[derive(Schema, Kind, Deserialize)]
#[serde(rename_all = "camelCase")]
#[kind(name = "ProxmoxCluster", version = "v1alpha1", older, status = ClusterStatus,
    column("Endpoint", "string", ".spec.controlPlaneEndpoint.host"))]
#[schema(rule("has(self.ipv4Config) || has(self.ipv6Config)", "at least one of ipv4Config and ipv6Config is needed"))]
#[allow(dead_code, reason = "a schema: objects are converted before they are read")]
pub struct Cluster {
    /// The control plane is somebody else's, and so is its endpoint.
    external_managed_control_plane: Option<bool>,
    /// Nodes that machines may be placed on; they are the failure domains.
    #[schema(set, max_items = 256, optional)]
    allowed_nodes: Vec<String>,
    /// What the choice of a node takes into account.
    scheduler_hints: Option<SchedulerHints>,
    /// Addresses of machines, IPv4.
    ipv4_config: Option<PoolConfig>,
    /// Addresses of machines, IPv6.
    ipv6_config: Option<PoolConfig>,
    /// DNS servers of machines.
    #[schema(min_items = 1, max_items = 8)]
    dns_servers: Vec<String>,
    /// The Secret with `url`, `token` and `secret`.
    credentials_ref: Option<SecretRef>,
}

/// What is known of a cluster.
#[derive(Schema, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code, reason = "a schema")]
pub struct ClusterStatus {
    /// The pools that its machines take addresses from.
    #[serde(rename = "inClusterIpPoolRef")]
    #[schema(optional)]
    pools: Vec<Named>,
}

/// A name.
#[derive(Schema, Deserialize)]
#[allow(dead_code, reason = "a schema")]
pub struct Named {
    /// The name.
    name: String,
}

fn fields<'a>(object: &'a mut Value, pointer: &str) -> Option<&'a mut Map<String, Value>> {
    object.pointer_mut(pointer).and_then(Value::as_object_mut)
}

fn list(map: &mut Map<String, Value>, field: &str) -> Vec<Value> {
    match map.remove(field) {
        Some(Value::Array(list)) => list,
        _ => Vec::new(),
    }
}

fn put_list(map: &mut Map<String, Value>, field: &str, list: Vec<Value>) {
    if !list.is_empty() {
        map.insert(field.to_owned(), list.into());
    }
}

fn rename(map: &mut Map<String, Value>, from: &str, to: &str) {
    if let Some(value) = map.remove(from) {
        map.insert(to.to_owned(), value);
    }
}

/// `[{key: "a", …}, …]` of `{"a": {…}, …}`.
fn to_list(map: Map<String, Value>, key: &str) -> Vec<Value> {
    map.into_iter()
        .map(|(name, mut value)| {
            if let Some(fields) = value.as_object_mut() {
                fields.insert(key.to_owned(), name.into());
            }
            value
        })
        .collect()
}

/// `{"a": {…}, …}` of `[{key: "a", …}, …]`.
fn to_map(list: Vec<Value>, key: &str) -> Map<String, Value> {
    list.into_iter()
        .filter_map(|mut value| {
            let name = value.as_object_mut()?.remove(key)?.as_str()?.to_owned();
            Some((name, value))
        })
        .collect()
}

const FAMILIES: [(&str, &str); 2] = [("ipv4PoolRef", "v4"), ("ipv6PoolRef", "v6")];

/// A device of `v1alpha2` of one of `v1alpha1`.
fn device_up(mut device: Map<String, Value>, name: &str) -> Value {
    let pools = FAMILIES.iter().filter_map(|(field, _)| device.remove(*field)).collect();
    put_list(&mut device, "ipPoolRef", pools);
    device.insert("name".to_owned(), name.into());
    Value::Object(device)
}

/// The other way. Which family a pool is of, its name may say; else the first is of IPv4.
fn device_down(device: &mut Map<String, Value>) {
    for field in ["queues", "defaultIPv4", "defaultIPv6"] {
        device.remove(field);
    }
    for pool in list(device, "ipPoolRef") {
        let name = pool.get("name").and_then(Value::as_str).unwrap_or_default();
        let told = FAMILIES.iter().find(|(_, word)| name.contains(word));
        let free = FAMILIES.iter().find(|(field, _)| !device.contains_key(*field));
        if let Some((field, _)) = told.filter(|(field, _)| !device.contains_key(*field)).or(free) {
            device.insert((*field).to_owned(), pool);
        }
    }
}

impl OlderVersion for Machine {
    fn up(object: &mut Value) {
        if let Some(network) = fields(object, "/spec/network") {
            let default = network.remove("default").and_then(|device| device.as_object().cloned());
            let mut devices: Vec<Value> = default.into_iter().map(|device| device_up(device, DEFAULT)).collect();
            for device in list(network, "additionalDevices") {
                let name = device.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
                devices.extend(device.as_object().cloned().map(|device| device_up(device, &name)));
            }
            put_list(network, "networkDevices", devices);
        }
        if let Some(status) = fields(object, "/status")
            && let Some(Value::Object(by_device)) = status.remove("ipAddresses")
        {
            let mut all = to_list(by_device, "net");
            for addresses in all.iter_mut().filter_map(Value::as_object_mut) {
                for family in ["ipv4", "ipv6"] {
                    if let Some(address) = addresses.remove(family) {
                        addresses.insert(family.to_owned(), json!([address]));
                    }
                }
            }
            put_list(status, "ipAddresses", all);
        }
    }

    fn down(object: &mut Value) {
        if let Some(selector) = fields(object, "/spec/templateSelector") {
            selector.remove("matchPolicy");
        }
        if let Some(network) = fields(object, "/spec/network") {
            network.remove("zone");
            let mut others = Vec::new();
            for mut device in list(network, "networkDevices") {
                let Some(fields) = device.as_object_mut() else { continue };
                device_down(fields);
                if fields.get("name").and_then(Value::as_str) == Some(DEFAULT) {
                    fields.remove("name");
                    for field in ["routes", "routingPolicy"] {
                        fields.remove(field);
                    }
                    network.insert("default".to_owned(), device);
                } else {
                    others.push(device);
                }
            }
            put_list(network, "additionalDevices", others);
        }
        if let Some(status) = fields(object, "/status") {
            status.remove("virtualMachineID");
            let mut all = to_map(list(status, "ipAddresses"), "net");
            for addresses in all.values_mut().filter_map(Value::as_object_mut) {
                for family in ["ipv4", "ipv6"] {
                    if let Some(first) = list(addresses, family).into_iter().next() {
                        addresses.insert(family.to_owned(), first);
                    }
                }
            }
            if !all.is_empty() {
                status.insert("ipAddresses".to_owned(), all.into());
            }
        }
    }
}

impl OlderVersion for Cluster {
    fn up(object: &mut Value) {
        let Some(status) = fields(object, "/status") else { return };
        rename(status, "inClusterIpPoolRef", "inClusterIPPoolRef");
        if let Some(Value::Object(domains)) = status.remove("failureDomains") {
            put_list(status, "failureDomains", to_list(domains, "name"));
        }
    }

    fn down(object: &mut Value) {
        if let Some(spec) = fields(object, "/spec") {
            spec.remove("zoneConfig");
        }
        let Some(status) = fields(object, "/status") else { return };
        rename(status, "inClusterIPPoolRef", "inClusterIpPoolRef");
        status.remove("version");
        let domains = to_map(list(status, "failureDomains"), "name");
        if !domains.is_empty() {
            status.insert("failureDomains".to_owned(), domains.into());
        }
    }
}

#[cfg(test)]
#[path = "v1alpha1_tests.rs"]
mod tests;
