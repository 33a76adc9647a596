//! The version before: `v1beta1` of AWSCluster and AWSMachine, which CAPA served until v2.9 and which manifests still use.
//!
//! What differs: `v1beta1` has less (no load balancer beside the classic one, no placement groups, no options of the metadata service, …),
//! a machine names a failure domain of its own, references may have an `arn`, a listed subnet need not have a name, and the scheme of a
//! load balancer may be written `Internet-facing`; failure domains are a map by name in the status. Identities are the same in both.

use std::collections::BTreeMap;

use capstan_provider::{Kind, Schema, versions::OlderVersion};
use serde_json::{Map, Value};

use crate::{
    cluster_spec::{Cni, IdentityRef},
    machine::{Ami, CloudInit, SpotOptions, Volume},
    spec::Filter,
};

/// A machine in AWS.
#[derive(Schema, Kind)]
#[serde(rename_all = "camelCase")]
#[kind(name = "AWSMachine", version = "v1beta1", older, status = MachineStatus,
    column("State", "string", ".status.instanceState", "What the instance does"),
    column("Type", "string", ".spec.instanceType"))]
#[allow(dead_code, reason = "a schema: objects are converted before they are read")]
pub struct Machine {
    /// The id of its instance, where CAPA made it.
    #[serde(rename = "instanceID")]
    instance_id: Option<String>,
    /// Its type, such as `m6i.large`.
    #[schema(min_length = 2, max_length = 64)]
    instance_type: String,
    /// Its image; looked up by name if absent.
    ami: Option<Ami>,
    /// Template of the name of the image: `{{.BaseOS}}` and `{{.K8sVersion}}` are filled in.
    image_lookup_format: Option<String>,
    /// Account that owns the image.
    image_lookup_org: Option<String>,
    /// Operating system in the name of the image.
    #[serde(rename = "imageLookupBaseOS")]
    image_lookup_base_os: Option<String>,
    /// Tags beside the cluster's.
    #[schema(max_properties = 40, optional)]
    additional_tags: BTreeMap<String, String>,
    /// The instance profile that it has the rights of.
    iam_instance_profile: Option<String>,
    /// It has a public address; the subnet decides if absent.
    #[serde(rename = "publicIP")]
    public_ip: Option<bool>,
    /// Security groups beside the cluster's.
    #[schema(max_items = 16, optional)]
    additional_security_groups: Vec<Reference>,
    /// Its failure domain. The Machine's counts.
    failure_domain: Option<String>,
    /// Its subnet; one of the cluster's if absent.
    subnet: Option<Reference>,
    /// Its key pair: the cluster's if absent, none if empty.
    ssh_key_name: Option<String>,
    /// The volume that it boots from.
    root_volume: Option<Volume>,
    /// Further volumes.
    #[schema(max_items = 25, optional)]
    non_root_volumes: Vec<Volume>,
    /// Network interfaces that are there. Not served.
    #[schema(max_items = 2, optional)]
    network_interfaces: Vec<String>,
    /// Its user data is not compressed.
    uncompressed_user_data: Option<bool>,
    /// How cloud-init gets its data.
    cloud_init: Option<CloudInit>,
    /// How Ignition gets its data.
    ignition: Option<Ignition>,
    /// It may be taken away at any time, and costs less.
    spot_market_options: Option<SpotOptions>,
    /// Whose hardware it runs on.
    #[schema(values("default", "dedicated", "host"))]
    tenancy: Option<String>,
}

/// A resource by id or by filters of EC2.
#[derive(Schema)]
#[allow(dead_code, reason = "a schema")]
pub struct Reference {
    /// Its id.
    id: Option<String>,
    /// Nothing comes of it.
    arn: Option<String>,
    /// Filters of EC2 that it passes.
    #[schema(max_items = 20, optional)]
    filters: Vec<Filter>,
}

/// How Ignition gets its data.
#[derive(Schema)]
#[allow(dead_code, reason = "a schema")]
pub struct Ignition {
    /// The version of its configuration.
    #[schema(default = "2.3", values("2.3", "3.0", "3.1", "3.2", "3.3", "3.4"))]
    version: Option<String>,
}

/// What is known of a machine.
#[derive(Schema)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code, reason = "a schema")]
pub struct MachineStatus {
    /// What the instance does.
    instance_state: Option<String>,
}

/// A cluster in AWS.
#[derive(Schema, Kind)]
#[serde(rename_all = "camelCase")]
#[kind(name = "AWSCluster", version = "v1beta1", older, status = ClusterStatus,
    column("Endpoint", "string", ".spec.controlPlaneEndpoint.host"),
    wide_column("Region", "string", ".spec.region"))]
#[allow(dead_code, reason = "a schema")]
pub struct Cluster {
    /// The region that it is in.
    #[schema(min_length = 1, max_length = 63, pattern = "^[a-z0-9-]+$")]
    region: Option<String>,
    /// The key pair of machines that name none; none if absent.
    ssh_key_name: Option<String>,
    /// The network.
    network: Option<Network>,
    /// The classic load balancer before the API.
    control_plane_load_balancer: Option<LoadBalancer>,
    /// Tags of everything that is made.
    #[schema(max_properties = 40, optional)]
    additional_tags: BTreeMap<String, String>,
    /// Template of the name of machines' images.
    image_lookup_format: Option<String>,
    /// Account that owns machines' images.
    image_lookup_org: Option<String>,
    /// Operating system in the name of machines' images.
    #[serde(rename = "imageLookupBaseOS")]
    image_lookup_base_os: Option<String>,
    /// A host to enter the network by. Not served.
    bastion: Option<Value>,
    /// Whose credential is used.
    identity_ref: Option<IdentityRef>,
    /// The bucket that holds Ignition configurations too large for user data. It has to be there.
    s3_bucket: Option<Bucket>,
}

/// The network of a cluster.
#[derive(Schema)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code, reason = "a schema")]
pub struct Network {
    /// The VPC.
    vpc: Option<Vpc>,
    /// Its subnets: to be made, or those of a VPC of the user's. Public and private ones in some zones if there are none.
    #[schema(max_items = 64, optional)]
    subnets: Vec<Subnet>,
    /// What the network of pods needs.
    cni: Option<Cni>,
    /// Security groups of the user's, by role.
    #[schema(optional)]
    security_group_overrides: BTreeMap<String, String>,
}

/// A VPC.
#[derive(Schema)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code, reason = "a schema")]
pub struct Vpc {
    /// A VPC that is there. One that does not carry the cluster's tag is the user's and is not changed.
    #[schema(max_length = 64)]
    id: Option<String>,
    /// The addresses of one that is made: 10.0.0.0/16 if absent.
    cidr_block: Option<String>,
    /// IPv6. Not served.
    ipv6: Option<Value>,
    /// The internet gateway of a VPC of the user's; not needed.
    internet_gateway_id: Option<String>,
    /// Tags of one that is made.
    #[schema(optional)]
    tags: BTreeMap<String, String>,
    /// In how many zones subnets are made: 3 if absent.
    #[schema(min = 1, max = 16)]
    availability_zone_usage_limit: Option<u64>,
    /// Which zones: the first by name, or by chance (the same ones for the same cluster).
    #[schema(values("Ordered", "Random"))]
    availability_zone_selection: Option<String>,
}

/// A subnet.
#[derive(Schema)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code, reason = "a schema")]
pub struct Subnet {
    /// The id of a subnet that is there.
    id: Option<String>,
    /// Its addresses.
    cidr_block: Option<String>,
    /// IPv6. Not served.
    ipv6_cidr_block: Option<String>,
    /// Its zone.
    availability_zone: Option<String>,
    /// The internet reaches it.
    #[schema(optional)]
    is_public: bool,
    /// IPv6. Not served.
    is_ipv6: Option<bool>,
    /// Its route table; written by CAPA.
    route_table_id: Option<String>,
    /// Its NAT gateway; written by CAPA.
    nat_gateway_id: Option<String>,
    /// Its tags.
    #[schema(optional)]
    tags: BTreeMap<String, String>,
}

/// The classic load balancer before the API.
#[derive(Schema)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code, reason = "a schema")]
pub struct LoadBalancer {
    /// Its name: chosen if absent.
    #[schema(max_length = 32, pattern = "^[A-Za-z0-9]([A-Za-z0-9]{0,31}|[-A-Za-z0-9]{0,30}[A-Za-z0-9])$")]
    name: Option<String>,
    /// Who reaches it.
    #[schema(default = "internet-facing", values("internet-facing", "Internet-facing", "internal"))]
    scheme: Option<String>,
    /// Connections go to machines of all zones.
    #[schema(optional)]
    cross_zone_load_balancing: bool,
    /// The subnets that it is in: by id.
    #[schema(max_items = 32, optional)]
    subnets: Vec<String>,
    /// How machines are asked whether they are well: SSL if absent.
    #[schema(values("TCP", "SSL", "HTTP", "HTTPS", "TLS", "UDP"))]
    health_check_protocol: Option<String>,
    /// Its security groups beside its own.
    #[schema(max_items = 5, optional)]
    additional_security_groups: Vec<String>,
}

/// A bucket.
#[derive(Schema)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code, reason = "a schema")]
pub struct Bucket {
    /// Its name.
    #[schema(min_length = 3, max_length = 63, pattern = "^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$")]
    name: String,
    /// The instance profile of control-plane machines; it has to be allowed to read the bucket.
    #[serde(rename = "controlPlaneIAMInstanceProfile")]
    control_plane_iam_instance_profile: Option<String>,
    /// The instance profiles of other machines; they have to be allowed to read the bucket.
    #[serde(rename = "nodesIAMInstanceProfiles")]
    #[schema(max_items = 50, optional)]
    nodes_iam_instance_profiles: Vec<String>,
}

/// What is known of a cluster.
#[derive(Schema)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code, reason = "a schema")]
pub struct ClusterStatus {
    /// The network.
    network_status: Option<NetworkStatus>,
}

/// What is known of the network.
#[derive(Schema)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code, reason = "a schema")]
pub struct NetworkStatus {
    /// Security groups by role.
    #[schema(optional)]
    security_groups: BTreeMap<String, crate::cluster::GroupStatus>,
    /// The load balancer.
    api_server_elb: Option<crate::cluster::BalancerStatus>,
}

/// What `v1beta1` of a machine does not have.
const NEWER_OF_MACHINES: &[&str] = &[
    "spec/instanceMetadataOptions",
    "spec/cpuOptions",
    "spec/elasticIpPool",
    "spec/securityGroupOverrides",
    "spec/networkInterfaceType",
    "spec/assignPrimaryIPv6",
    "spec/placementGroupName",
    "spec/placementGroupPartition",
    "spec/privateDnsName",
    "spec/capacityReservationId",
    "spec/capacityReservationPreference",
    "spec/marketType",
    "spec/hostID",
    "spec/hostAffinity",
    "spec/dynamicHostAllocation",
    "spec/ignition/storageType",
    "spec/ignition/proxy",
    "spec/ignition/tls",
    "status/instanceID",
];

/// What `v1beta1` of a cluster does not have.
const NEWER_OF_CLUSTERS: &[&str] = &[
    "spec/partition",
    "spec/secondaryControlPlaneLoadBalancer",
    "spec/controlPlaneLoadBalancer/loadBalancerType",
    "spec/controlPlaneLoadBalancer/healthCheck",
    "spec/controlPlaneLoadBalancer/additionalListeners",
    "spec/controlPlaneLoadBalancer/ingressRules",
    "spec/controlPlaneLoadBalancer/disableHostsRewrite",
    "spec/controlPlaneLoadBalancer/preserveClientIP",
    "spec/controlPlaneLoadBalancer/targetGroupIPType",
    "spec/controlPlaneLoadBalancer/dnsResolutionCheck",
    "spec/s3Bucket/presignedURLDuration",
    "spec/s3Bucket/bestEffortDeleteObjects",
    "spec/network/additionalControlPlaneIngressRules",
    "spec/network/additionalNodeIngressRules",
    "spec/network/nodePortIngressRuleCidrBlocks",
    "spec/network/vpc/availabilityZones",
    "spec/network/vpc/carrierGatewayId",
    "spec/network/vpc/secondaryCidrBlocks",
    "spec/network/vpc/ipamPool",
    "spec/network/vpc/emptyRoutesDefaultVPCSecurityGroup",
    "spec/network/vpc/privateDnsHostnameTypeOnLaunch",
    "spec/network/vpc/elasticIpPool",
    "spec/network/vpc/subnetSchema",
    "spec/network/subnets/*/resourceID",
    "spec/network/subnets/*/zoneType",
    "spec/network/subnets/*/parentZoneName",
    "status/vpcID",
    "status/networkStatus/natGatewaysIPs",
];

/// Takes away what a path leads to; `*` stands for every element of a list.
fn remove(value: &mut Value, path: &str) {
    match (path.split_once('/'), value) {
        (None, Value::Object(fields)) => drop(fields.remove(path)),
        (Some(("*", rest)), Value::Array(items)) => items.iter_mut().for_each(|item| remove(item, rest)),
        (Some((field, rest)), Value::Object(fields)) => {
            if let Some(inner) = fields.get_mut(field) {
                remove(inner, rest);
            }
        }
        _ => {}
    }
}

impl OlderVersion for Machine {
    fn up(object: &mut Value) {
        for path in ["spec/failureDomain", "spec/subnet/arn", "spec/additionalSecurityGroups/*/arn"] {
            remove(object, path);
        }
    }

    fn down(object: &mut Value) {
        NEWER_OF_MACHINES.iter().for_each(|path| remove(object, path));
    }
}

impl OlderVersion for Cluster {
    fn up(object: &mut Value) {
        if let Some(Value::String(scheme)) = object.pointer_mut("/spec/controlPlaneLoadBalancer/scheme") {
            scheme.make_ascii_lowercase();
        }
        if let Some(Value::Array(subnets)) = object.pointer_mut("/spec/network/subnets") {
            let mut names: Vec<String> = subnets.iter().filter_map(|subnet| text(subnet, "id")).collect();
            for subnet in subnets.iter_mut().filter_map(Value::as_object_mut) {
                if text_of(subnet, "id").is_none() {
                    let name = name(subnet, &names);
                    names.push(name.clone());
                    subnet.insert("id".to_owned(), name.into());
                }
            }
        }
        if let Some(domains) = object.pointer_mut("/status/failureDomains")
            && let Value::Object(by_name) = domains.take()
        {
            *domains = by_name
                .into_iter()
                .map(|(name, mut domain)| {
                    if let Some(fields) = domain.as_object_mut() {
                        fields.insert("name".to_owned(), name.into());
                    }
                    domain
                })
                .collect();
        }
    }

    fn down(object: &mut Value) {
        NEWER_OF_CLUSTERS.iter().for_each(|path| remove(object, path));
        if let Some(domains) = object.pointer_mut("/status/failureDomains")
            && let Value::Array(list) = domains.take()
        {
            let named = |mut domain: Value| {
                let name = domain.as_object_mut()?.remove("name")?.as_str()?.to_owned();
                Some((name, domain))
            };
            *domains = list.into_iter().filter_map(named).collect::<Map<_, _>>().into();
        }
    }
}

/// A name for a subnet that is made and has none: as those that nobody lists are called.
fn name(subnet: &Map<String, Value>, taken: &[String]) -> String {
    let public = subnet.get("isPublic").and_then(Value::as_bool) == Some(true);
    let kind = if public { "public" } else { "private" };
    let name = text_of(subnet, "availabilityZone").map_or(kind.to_owned(), |zone| format!("{kind}-{zone}"));
    if !taken.contains(&name) {
        return name;
    }
    let numbered = (2_u32..).map(|number| format!("{name}-{number}"));
    numbered.into_iter().find(|numbered| !taken.contains(numbered)).unwrap_or(name)
}

fn text(value: &Value, field: &str) -> Option<String> {
    text_of(value.as_object()?, field)
}

fn text_of(fields: &Map<String, Value>, field: &str) -> Option<String> {
    fields.get(field).and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned)
}

#[cfg(test)]
#[path = "v1beta1_tests.rs"]
mod tests;
