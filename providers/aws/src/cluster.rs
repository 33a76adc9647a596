//! A cluster in AWS: its network, its security groups, the load balancer before its API.

use std::collections::BTreeMap;

use capstan_provider::{
    ClusterFacts, ClusterKind, Condition, Context, Error, FailureDomain, HostPort, Kind, Part, Result, Schema,
    Violation, infrastructure::PartsOf, json,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    balancer::{self, BalancerState},
    cluster_spec::{Bucket, Endpoint, IdentityRef, LoadBalancer, NetworkSpec},
    ec2::Ec2,
    group::{self, GivenGroup, MadeGroup},
    layout::{self, Network},
    network::{
        BorrowedSubnets, INTERNET_GATEWAY, InternetGateway, MadeSubnet, NamedVpc, NatAddress, NatGateway, SUBNETS, VPC,
        Vpc, state,
    },
    route::RouteTable,
    spec::{Lookup, refuse, refuse_any},
    tags, v1beta1,
};

/// A cluster in AWS.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Schema, Kind)]
#[serde(rename_all = "camelCase", default)]
#[kind(name = "AWSCluster", version = "v1beta2", short = "awsc", status = AWSClusterStatus, served_too = v1beta1::Cluster,
    column("VPC", "string", ".status.vpcID", "The VPC that it is in"),
    column("Endpoint", "string", ".spec.controlPlaneEndpoint.host"),
    wide_column("Region", "string", ".spec.region"))]
#[schema(rule("!has(oldSelf.region) || has(self.region) && self.region == oldSelf.region", "region is immutable"))]
#[schema(rule(
    "!has(oldSelf.controlPlaneLoadBalancer) || has(self.controlPlaneLoadBalancer)",
    "controlPlaneLoadBalancer cannot be taken away"
))]
pub struct AWSCluster {
    /// Where the API server of the cluster is reached; written once the load balancer has a name.
    #[schema(hidden)]
    pub control_plane_endpoint: Option<Endpoint>,
    /// The region that it is in.
    #[schema(min_length = 1, max_length = 63, pattern = "^[a-z0-9-]+$")]
    pub region: Option<String>,
    /// The partition of AWS: `aws` if absent. Another one needs Endpoints of its own.
    pub partition: Option<String>,
    /// The key pair of machines that name none; none if absent.
    pub ssh_key_name: Option<String>,
    /// The network.
    pub network: NetworkSpec,
    /// The load balancer before the API.
    pub control_plane_load_balancer: Option<LoadBalancer>,
    /// A second load balancer before the API. Not served.
    pub secondary_control_plane_load_balancer: Option<Value>,
    /// Tags of everything that is made.
    #[schema(max_properties = 40)]
    pub additional_tags: BTreeMap<String, String>,
    /// Template of the name of machines' images.
    pub image_lookup_format: Option<String>,
    /// Account that owns machines' images.
    pub image_lookup_org: Option<String>,
    /// Operating system in the name of machines' images.
    #[serde(rename = "imageLookupBaseOS")]
    pub image_lookup_base_os: Option<String>,
    /// A host to enter the network by. Not served.
    pub bastion: Option<Value>,
    /// Whose credential is used.
    pub identity_ref: Option<IdentityRef>,
    /// The bucket that holds Ignition configurations too large for user data. It has to be there.
    pub s3_bucket: Option<Bucket>,
}

/// What is known of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Schema)]
#[serde(rename_all = "camelCase")]
pub struct AWSClusterStatus {
    /// The VPC.
    #[serde(rename = "vpcID", skip_serializing_if = "Option::is_none")]
    pub vpc_id: Option<String>,
    /// The network.
    #[schema(optional)]
    pub network_status: NetworkStatus,
}

/// What is known of the network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Schema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkStatus {
    /// Security groups by role.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub security_groups: BTreeMap<String, GroupStatus>,
    /// The load balancer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_server_elb: Option<BalancerStatus>,
    /// Addresses that machines in private subnets are seen with.
    #[serde(rename = "natGatewaysIPs", skip_serializing_if = "Vec::is_empty")]
    pub nat_gateways_ips: Vec<String>,
}

/// A security group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Schema)]
pub struct GroupStatus {
    /// Its id.
    pub id: String,
}

/// A load balancer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Schema)]
#[serde(rename_all = "camelCase")]
pub struct BalancerStatus {
    /// Its name.
    pub name: String,
    /// Its name in the DNS.
    pub dns_name: String,
}

/// What is before the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Balancing {
    /// A classic load balancer.
    Classic,
    /// A network load balancer.
    Network,
    /// What the user has there.
    Disabled,
}

/// Fields that codes of EC2 blame.
pub const FIELDS: &[(&str, &str)] = &[
    ("InvalidVpc.Range", "/spec/network/vpc/cidrBlock"),
    ("InvalidVpcRange", "/spec/network/vpc/cidrBlock"),
    ("InvalidSubnet.Range", "/spec/network/subnets"),
    ("InvalidSubnet.Conflict", "/spec/network/subnets"),
    ("InvalidPermission.Malformed", "/spec/network"),
    ("InvalidGroupId.Malformed", "/spec/network"),
    ("InvalidTagKey", "/spec/additionalTags"),
];

impl AWSCluster {
    /// What is before the API.
    pub fn balancing(&self) -> Balancing {
        match self.control_plane_load_balancer.as_ref().and_then(|balancer| balancer.load_balancer_type.as_deref()) {
            Some("nlb") => Balancing::Network,
            Some("disabled") => Balancing::Disabled,
            _ => Balancing::Classic,
        }
    }

    /// The port of the API.
    pub fn api_port(&self) -> i64 {
        let given = self.control_plane_endpoint.as_ref().map(|endpoint| endpoint.port).filter(|port| *port != 0);
        i64::from(given.unwrap_or(6443))
    }

    /// Where machines' images are looked up.
    pub fn lookup(&self) -> Lookup {
        Lookup {
            format: self.image_lookup_format.clone(),
            org: self.image_lookup_org.clone(),
            base_os: self.image_lookup_base_os.clone(),
        }
    }
}

impl PartsOf for AWSCluster {
    fn parts(ctx: &Context<Self>) -> Result<Vec<Box<dyn Part<Self>>>> {
        let spec = &ctx.spec;
        let mut parts: Vec<Box<dyn Part<Self>>> = Vec::new();
        let mut in_subnets = Vec::new();
        match (layout::network(ctx)?, spec.network.vpc.id()) {
            (Network::Unknown, Some(id)) => return Ok(vec![Box::new(NamedVpc(id.to_owned()))]),
            (Network::Unknown, None) => return Ok(vec![Ec2::part(Vpc)]),
            (Network::Borrowed, id) => {
                let id = id.unwrap_or_default().to_owned();
                parts.push(Box::new(NamedVpc(id.clone())));
                parts.push(Box::new(BorrowedSubnets(id)));
                in_subnets.push(SUBNETS.to_owned());
            }
            (Network::Managed(layout), _) => {
                parts.push(Ec2::part(Vpc));
                parts.push(Ec2::part(InternetGateway));
                for subnet in &layout.subnets {
                    in_subnets.push(subnet.part());
                    parts.push(Ec2::part(MadeSubnet(subnet.clone())));
                }
                let zones = layout.public_zones();
                // Without private subnets nobody needs one.
                let nat = layout.subnets.iter().any(|subnet| !subnet.public);
                for subnet in layout.subnets.iter().filter(|subnet| subnet.public && nat) {
                    let first = layout.subnets.iter().find(|s| s.public && s.zone == subnet.zone) == Some(subnet);
                    if first {
                        parts.push(Ec2::part(NatAddress(subnet.zone.clone())));
                        let (zone, subnet) = (subnet.zone.clone(), subnet.part());
                        parts.push(Ec2::part(NatGateway { zone, subnet }));
                    }
                }
                for subnet in &layout.subnets {
                    let own = zones.iter().find(|zone| **zone == subnet.zone).or(zones.first());
                    let nat = own.filter(|_| !subnet.public).map(|zone| (*zone).to_owned());
                    parts.push(Ec2::part(RouteTable { subnet: subnet.clone(), nat }));
                }
            }
        }
        for role in group::roles(spec) {
            parts.push(match spec.network.security_group_overrides.get(role) {
                Some(id) => Box::new(GivenGroup { role: role.to_owned(), id: id.clone() }),
                None => Ec2::part(MadeGroup(role)),
            });
        }
        parts.extend(balancer::parts(ctx, &in_subnets)?);
        Ok(parts)
    }

    fn part(ctx: &Context<Self>, name: &str) -> Result<Option<Box<dyn Part<Self>>>> {
        let listed = Self::parts(ctx)?.into_iter().find(|part| part.name() == name);
        if listed.is_some() {
            return Ok(listed);
        }
        // On record, and no longer wanted.
        if let Some(role) = [group::API_BALANCER, group::BALANCERS, group::CONTROL_PLANE, group::NODE]
            .into_iter()
            .find(|role| group::name(role) == name)
        {
            return Ok(Some(Ec2::part(MadeGroup(role))));
        }
        Ok(balancer::unlisted(ctx, name))
    }

    fn validate(old: Option<&Self>, new: &Self) -> Vec<Violation> {
        let mut all = Vec::new();
        let mut wrong = |path: &str, message: &str| all.push(Violation::new(path, message));
        if new.region.as_deref().unwrap_or_default().is_empty() {
            wrong("/spec/region", "the region is needed");
        }
        // As the rules of the schema say, for those too who write another version.
        if let Some(old) = old {
            let (was, is) = (old.control_plane_load_balancer.as_ref(), new.control_plane_load_balancer.as_ref());
            let of = |field: fn(&LoadBalancer) -> &Option<String>| {
                let (was, is) = (was.and_then(|balancer| field(balancer).as_ref()), is.map(field));
                was.is_some() && is.is_some_and(|is| is.as_ref() != was)
            };
            for (field, changed) in [
                ("region", old.region.is_some() && old.region != new.region),
                ("network/vpc/id", old.network.vpc.id().is_some() && old.network.vpc.id() != new.network.vpc.id()),
                ("controlPlaneLoadBalancer", was.is_some() && is.is_none()),
                ("controlPlaneLoadBalancer/name", of(|balancer| &balancer.name)),
                ("controlPlaneLoadBalancer/scheme", of(|balancer| &balancer.scheme)),
                ("controlPlaneLoadBalancer/loadBalancerType", of(|balancer| &balancer.load_balancer_type)),
                ("controlPlaneLoadBalancer/healthCheckProtocol", of(|balancer| &balancer.health_check_protocol)),
            ] {
                if changed {
                    wrong(&format!("/spec/{field}"), "is immutable once it is set");
                }
            }
        }
        if let Some(message) = tags::wrong(&new.additional_tags) {
            wrong("/spec/additionalTags", &message);
        }
        // What CAPA's webhook writes where nothing is said is taken as nothing.
        let ambient = new.identity_ref.as_ref().filter(|identity| identity.kind == "AWSClusterControllerIdentity");
        if ambient.is_some_and(|identity| identity.name != "default") {
            wrong(
                "/spec/identityRef/kind",
                "there is no identity of the machine that Capstan runs on: name an AWSClusterStaticIdentity, an \
                 AWSClusterRoleIdentity or an Endpoint",
            );
        }
        let balancer = new.control_plane_load_balancer.clone().unwrap_or_default();
        if matches!(balancer.load_balancer_type.as_deref(), Some("alb" | "elb")) {
            wrong("/spec/controlPlaneLoadBalancer/loadBalancerType", "only nlb, classic and disabled are served");
        }
        if new.balancing() == Balancing::Disabled
            && new.control_plane_endpoint.as_ref().is_none_or(|endpoint| endpoint.host.is_empty())
        {
            wrong(
                "/spec/controlPlaneEndpoint",
                "without a load balancer the endpoint is the user's: set host and port",
            );
        }
        if new.balancing() != Balancing::Network && !balancer.additional_listeners.is_empty() {
            wrong("/spec/controlPlaneLoadBalancer/additionalListeners", "only an nlb has further ports");
        }
        if balancer.target_group_ip_type.as_deref().is_some_and(|kind| kind != "ipv4") {
            wrong("/spec/controlPlaneLoadBalancer/targetGroupIPType", "only ipv4 is served");
        }
        for (index, listener) in balancer.additional_listeners.iter().enumerate() {
            if listener.target_group_ip_type.as_deref().is_some_and(|kind| kind != "ipv4") {
                let at = format!("/spec/controlPlaneLoadBalancer/additionalListeners/{index}/targetGroupIPType");
                wrong(&at, "only ipv4 is served");
            }
        }
        for role in new.network.security_group_overrides.keys() {
            if !["bastion", group::API_BALANCER, group::BALANCERS, group::CONTROL_PLANE, group::NODE]
                .contains(&role.as_str())
            {
                wrong(
                    "/spec/network/securityGroupOverrides",
                    &format!("{role:?} is the role of no security group here"),
                );
            }
        }
        let vpc = &new.network.vpc;
        if old.is_some_and(|old| {
            let layout = |spec: &Self| {
                let each = spec.network.subnets.iter();
                each.map(|s| (s.id.clone(), s.cidr_block.clone(), s.availability_zone.clone(), s.is_public))
                    .collect::<Vec<_>>()
            };
            old.network.vpc.id().is_none() && vpc.id().is_none() && layout(old) != layout(new)
        }) {
            wrong("/spec/network/subnets", "the subnets of a VPC that is made are chosen once");
        }
        for (index, subnet) in new.network.subnets.iter().enumerate() {
            let at = format!("/spec/network/subnets/{index}");
            if vpc.id().is_some() {
                if !subnet.id.starts_with("subnet-") && subnet.resource_id.is_none() {
                    wrong(&format!("{at}/id"), "a subnet of a VPC that is there is named by its id, subnet-…");
                }
            } else if subnet.id.starts_with("subnet-") {
                wrong(&format!("{at}/id"), "a subnet that is there needs the VPC that it is in: set vpc.id");
            } else if subnet.cidr_block.is_none() || subnet.availability_zone.is_none() {
                wrong(&at, "a subnet that is made needs cidrBlock and availabilityZone");
            }
            if subnet.zone_type.as_deref().is_some_and(|kind| kind != "availability-zone") {
                wrong(&format!("{at}/zoneType"), "only availability zones are served");
            }
        }
        refusals(new, &mut all);
        all
    }
}

/// Fields that CAPA has and this provider does not serve.
fn refusals(new: &AWSCluster, all: &mut Vec<Violation>) {
    let vpc = &new.network.vpc;
    let bastion = new.bastion.as_ref().and_then(|bastion| bastion.get("enabled"));
    refuse(all, "/spec/bastion/enabled", bastion, "no bastion is made: leave it out, or enter by Session Manager");
    let second = new.secondary_control_plane_load_balancer.as_ref();
    refuse_any(
        all,
        "/spec/secondaryControlPlaneLoadBalancer",
        second,
        "a second load balancer is not made: leave it out",
    );
    let here = "/spec/network/vpc";
    refuse_any(all, "/spec/network/vpc/ipv6", vpc.ipv6.as_ref(), "IPv6 is not served: bring a VPC that has it");
    for (field, value, why) in [
        ("carrierGatewayId", &vpc.carrier_gateway_id, "wavelength zones are not served"),
        (
            "secondaryCidrBlocks",
            &vpc.secondary_cidr_blocks,
            "secondary ranges are not served: bring a VPC that has them",
        ),
        ("ipamPool", &vpc.ipam_pool, "ranges from IPAM are not served: set cidrBlock, or bring a VPC"),
        (
            "emptyRoutesDefaultVPCSecurityGroup",
            &vpc.empty_routes_default_vpc_security_group,
            "the default group of the VPC is left as it is",
        ),
        (
            "privateDnsHostnameTypeOnLaunch",
            &vpc.private_dns_hostname_type_on_launch,
            "is not served: set privateDnsName of the machines",
        ),
        ("elasticIpPool", &vpc.elastic_ip_pool, "addresses come from Amazon's own pool"),
    ] {
        refuse(all, &format!("{here}/{field}"), value.as_ref(), why);
    }
    if vpc.subnet_schema.as_deref().is_some_and(|schema| schema != "PreferPrivate") {
        all.push(Violation::new(
            format!("{here}/subnetSchema"),
            "only PreferPrivate is served: list the subnets instead",
        ));
    }
    for (index, subnet) in new.network.subnets.iter().enumerate() {
        let at = format!("/spec/network/subnets/{index}");
        refuse(all, &format!("{at}/isIpv6"), subnet.is_ipv6.as_ref(), "IPv6 is not served");
        refuse(all, &format!("{at}/ipv6CidrBlock"), subnet.ipv6_cidr_block.as_ref(), "IPv6 is not served");
        refuse(all, &format!("{at}/parentZoneName"), subnet.parent_zone_name.as_ref(), "local zones are not served");
    }
    if let Some(bucket) = &new.s3_bucket {
        let (at, value) = ("/spec/s3Bucket/presignedURLDuration", bucket.presigned_url_duration.as_ref());
        refuse(all, at, value, "machines read the bucket with their instance profile: leave it out");
    }
}

impl ClusterKind for AWSCluster {
    fn report(ctx: &Context<Self>) -> Result<ClusterFacts> {
        let balancer: Option<BalancerState> = state(ctx, balancer::BALANCER)?;
        let host = match ctx.spec.balancing() {
            Balancing::Disabled => ctx.spec.control_plane_endpoint.clone().map(|endpoint| endpoint.host),
            _ => balancer.as_ref().filter(|balancer| balancer.active).map(|balancer| balancer.dns.clone()),
        };
        let port = u16::try_from(ctx.spec.api_port()).map_err(|_| Error::internal("the port of the API is no port"))?;
        let known = ctx.spec.control_plane_endpoint.as_ref().map(|endpoint| endpoint.host.clone());
        // What is there already does not change, and a name is the same in whatever case it is written.
        let host = host.map(|host| known.filter(|known| known.eq_ignore_ascii_case(&host)).unwrap_or(host));
        let mut zones: Vec<String> = Vec::new();
        for place in layout::of_cluster(ctx)?.into_iter().filter(|place| !place.public) {
            if !zones.contains(&place.zone) {
                zones.push(place.zone);
            }
        }
        let groups = group::roles(&ctx.spec)
            .into_iter()
            .filter_map(|role| Some((role.to_owned(), GroupStatus { id: group::id(ctx, role)? })))
            .collect();
        let status = AWSClusterStatus {
            vpc_id: ctx.known(VPC).filter(|known| known.confirmed).and_then(|known| known.id),
            network_status: NetworkStatus {
                security_groups: groups,
                api_server_elb: balancer.map(|balancer| BalancerStatus { name: balancer.name, dns_name: balancer.dns }),
                nat_gateways_ips: group::nat_addresses(ctx)?,
            },
        };
        Ok(ClusterFacts {
            control_plane_endpoint: host.filter(|host| !host.is_empty()).map(|host| HostPort { host, port }),
            failure_domains: zones
                .into_iter()
                .map(|name| FailureDomain { name, control_plane: true, attributes: Vec::new() })
                .collect(),
            conditions: conditions(ctx)?,
            status: json::text(&status)?,
        })
    }
}

/// CAPA's conditions: each is true once the parts of its kind are there.
fn conditions(ctx: &Context<AWSCluster>) -> Result<Vec<Condition>> {
    let mut all = Vec::new();
    let parts: Vec<String> = AWSCluster::parts(ctx)?.iter().map(|part| part.name()).collect();
    let whole = matches!(layout::network(ctx)?, Network::Managed(_) | Network::Borrowed);
    for (kind, what, starts) in [
        ("VpcReady", "the VPC", VPC),
        ("SubnetsReady", "subnets", "subnet"),
        ("InternetGatewayReady", "the internet gateway", INTERNET_GATEWAY),
        ("NatGatewaysReady", "NAT gateways", "nat-"),
        ("RouteTablesReady", "route tables", "route-table-"),
        ("ClusterSecurityGroupsReady", "security groups", "security-group-"),
        ("LoadBalancerReady", "the load balancer", balancer::BALANCER),
    ] {
        let of_kind: Vec<&String> = parts.iter().filter(|part| part.starts_with(starts)).collect();
        if of_kind.is_empty() && whole {
            continue;
        }
        let missing: Vec<&str> = of_kind
            .iter()
            .filter(|part| !ctx.known(part).is_some_and(|known| known.confirmed && known.state.is_some()))
            .map(|part| part.as_str())
            .collect();
        all.push(if missing.is_empty() && !of_kind.is_empty() {
            Condition::new(kind, Some(true), kind.trim_end_matches("Ready").to_owned() + "Ready", "")
        } else if of_kind.is_empty() {
            Condition::new(kind, Some(false), "WaitingForVpc", format!("{what} come after the VPC"))
        } else {
            Condition::new(kind, Some(false), "Reconciling", format!("not there yet: {}", missing.join(", ")))
        });
    }
    Ok(all)
}
