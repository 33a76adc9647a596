//! The network of a cluster: VPC, subnets, internet gateway, addresses and NAT gateways; or the user's own VPC and subnets.

use std::collections::BTreeSet;

use capstan_provider::{
    Choice, Context, Error, Observed, Part, Presence, Progress, Reason, Result, aws::Query, xml::Element,
};
use serde::{Deserialize, Serialize};

use crate::{
    SHARED, advice,
    cluster::AWSCluster,
    ec2::{self, Class, Resource},
    layout::{self, Layout, Network, Subnet, SubnetPlace},
    spec::Tags,
    tags,
};

/// The part that is the VPC.
pub const VPC: &str = "vpc";
/// The part that is the subnets of a VPC of the user's.
pub const SUBNETS: &str = "subnets";
/// The part that is the internet gateway.
pub const INTERNET_GATEWAY: &str = "internet-gateway";

/// What is known of a VPC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VpcState {
    /// Its id.
    pub id: String,
    /// Its addresses.
    pub cidr: String,
    /// It was made for this cluster.
    pub owned: bool,
    /// Names are resolved in it and given to machines.
    #[serde(skip_serializing_if = "is_false")]
    pub dns: bool,
    /// The subnets that are made in it.
    pub layout: Layout,
}

/// What is known of other resources.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct State {
    /// Its id.
    pub id: String,
    /// The VPC that an internet gateway is attached to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attached: Option<String>,
    /// An address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
}

fn is_false(value: &bool) -> bool {
    !value
}

/// The state on record of a part.
pub fn state<T: serde::de::DeserializeOwned>(ctx: &Context<AWSCluster>, part: &str) -> Result<Option<T>> {
    Ok(ctx.known(part).map(|known| known.state()).transpose()?.flatten())
}

/// The VPC.
pub struct Vpc;

impl Resource for Vpc {
    fn part(&self) -> String {
        VPC.to_owned()
    }
    fn class(&self) -> &'static Class {
        &ec2::VPCS
    }
    fn after(&self) -> Vec<String> {
        Vec::new()
    }
    /// With a VPC all that was in it is gone.
    fn replaceable(&self) -> bool {
        false
    }
    fn tags(&self, ctx: &Context<AWSCluster>) -> Tags {
        let spec = &ctx.spec;
        let name = format!("{}-vpc", ctx.cluster().name());
        tags::of(ctx, VPC, name, "common", &[&spec.additional_tags, &spec.network.vpc.tags])
    }
    fn choose(&self, ctx: &Context<AWSCluster>) -> Result<Choice> {
        Choice::assigned_by_remote().freeze(&layout::choose(ctx)?)
    }
    fn look(&self, ctx: &Context<AWSCluster>, id: &str, element: &Element) -> Result<Observed> {
        let before: Option<VpcState> = state(ctx, VPC)?;
        let layout = match layout::network(ctx)? {
            Network::Managed(layout) => layout,
            _ => Layout::default(),
        };
        let cidr = element.text("cidrBlock").to_owned();
        let mut found = VpcState { id: id.to_owned(), cidr, owned: true, dns: true, layout };
        let mut lacking = Vec::new();
        if !before.is_some_and(|before| before.dns) && element.text("state") != "pending" {
            let attribute =
                |name: &str| crate::ec2("DescribeVpcAttribute").set("VpcId", id).set("Attribute", name).ok();
            for (name, code) in [("enableDnsSupport", "EnableDnsSupport"), ("enableDnsHostnames", "EnableDnsHostnames")]
            {
                if attribute(name)?.text(&format!("{name}/value")) != "true" {
                    lacking.push(code);
                }
            }
        }
        found.dns = lacking.is_empty();
        let mut seen = Observed::new(id, &found)?.ready(found.dns && element.text("state") != "pending");
        for code in lacking {
            seen = seen.todo(code, format!("setting {code} of {id}"));
        }
        Ok(seen)
    }
    fn make(&self, ctx: &Context<AWSCluster>) -> Result<Query> {
        let cidr = ctx.spec.network.vpc.cidr_block.as_deref().unwrap_or(layout::DEFAULT_CIDR);
        Ok(crate::ec2("CreateVpc").set("CidrBlock", cidr))
    }
    fn made(&self) -> &'static str {
        "vpc/vpcId"
    }
    fn step(&self, _ctx: &Context<AWSCluster>, id: &str, code: &str) -> Result<Query> {
        Ok(crate::ec2("ModifyVpcAttribute").set("VpcId", id).set(&format!("{code}.Value"), "true"))
    }
    fn unmake(&self, _ctx: &Context<AWSCluster>, id: &str) -> Result<std::result::Result<Query, Reason>> {
        Ok(Ok(crate::ec2("DeleteVpc").set("VpcId", id)))
    }
}

/// A VPC that the spec names and that is looked at before it is known whose it is.
pub struct NamedVpc(pub String);

impl Part<AWSCluster> for NamedVpc {
    fn name(&self) -> String {
        VPC.to_owned()
    }
    fn borrowed(&self) -> bool {
        true
    }
    fn identify(&self, _ctx: &Context<AWSCluster>, _reserved: &[String]) -> Result<Choice> {
        Ok(Choice::chosen(&self.0))
    }
    fn observe(&self, ctx: &Context<AWSCluster>) -> Result<Presence> {
        let found = advice::of_region(find_shared(&ec2::VPCS, &self.0), ctx.spec.region.as_deref());
        let Some(element) = found? else {
            let message = format!("the region has no VPC {}, which /spec/network/vpc/id names", self.0);
            return Ok(Presence::foreign("VpcNotFound", message));
        };
        let theirs = tags::of_ec2(&element);
        if tags::are_anothers(&theirs, &ctx.owner_key()) {
            let message = format!("{} was made for another cluster: name a VPC that is nobody's, or none", self.0);
            return Ok(Presence::foreign("VpcForeign", message));
        }
        let owned = theirs.get(&tags::cluster_tag(&ctx.cluster().name())).is_some_and(|value| value == "owned");
        let before: Option<VpcState> = state(ctx, VPC)?;
        let cidr = element.text("cidrBlock").to_owned();
        let found = VpcState { id: self.0.clone(), cidr, owned, ..VpcState::default() };
        // Whose it is decides which parts there are: they are listed the next time.
        Ok(Presence::Present(Observed::new(&self.0, &found)?.ready(before.is_some())))
    }
    fn create(&self, _ctx: &Context<AWSCluster>) -> Result<Progress> {
        Err(Error::internal("a VPC of the user's is not created"))
    }
    fn delete(&self, _ctx: &Context<AWSCluster>) -> Result<Progress> {
        Err(Error::internal("a VPC of the user's is not deleted"))
    }
}

/// One by its id, from an answer that may be shared.
pub fn find_shared(class: &Class, id: &str) -> Result<Option<Element>> {
    let query = crate::ec2(class.describe).set(&format!("{}.1", class.parameter), id).max_age(SHARED);
    match query.send()? {
        Ok(answer) => Ok(answer.all(class.set).next().cloned()),
        Err(fault) if fault.is_missing() || fault.code.ends_with(".Malformed") => Ok(None),
        Err(fault) => Err(fault.error()),
    }
}

/// What is known of the subnets of the user's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SubnetsState {
    /// They.
    pub subnets: Vec<SubnetPlace>,
}

/// The subnets of a VPC of the user's: those that the spec lists, or all.
pub struct BorrowedSubnets(pub String);

impl Part<AWSCluster> for BorrowedSubnets {
    fn name(&self) -> String {
        SUBNETS.to_owned()
    }
    fn after(&self) -> Vec<String> {
        vec![VPC.to_owned()]
    }
    fn borrowed(&self) -> bool {
        true
    }
    fn identify(&self, _ctx: &Context<AWSCluster>, _reserved: &[String]) -> Result<Choice> {
        Ok(Choice::chosen(&self.0))
    }
    fn observe(&self, ctx: &Context<AWSCluster>) -> Result<Presence> {
        let filter = [("vpc-id", self.0.as_str())];
        let there = ec2::all(&ec2::SUBNETS, |query| query.filters(&filter), SHARED)?;
        let spec = &ctx.spec.network.subnets;
        let public = if spec.is_empty() { public_subnets(&self.0)? } else { Public::default() };
        let mut found = SubnetsState::default();
        let place = |element: &Element, public| SubnetPlace {
            id: element.text("subnetId").to_owned(),
            zone: element.text("availabilityZone").to_owned(),
            public,
        };
        for wanted in spec {
            let id = wanted.resource_id.as_deref().unwrap_or(&wanted.id);
            let Some(element) = there.iter().find(|element| element.text("subnetId") == id) else {
                let message = format!("VPC {} has no subnet {id}, which /spec/network/subnets names", self.0);
                return Ok(Presence::foreign("SubnetNotFound", message));
            };
            found.subnets.push(place(element, wanted.is_public));
        }
        if spec.is_empty() {
            let is_public = |element: &Element| public.holds(element.text("subnetId"));
            found.subnets.extend(there.iter().map(|element| place(element, is_public(element))));
        }
        found.subnets.sort_by(|a, b| (&a.zone, &a.id).cmp(&(&b.zone, &b.id)));
        if found.subnets.is_empty() {
            return Ok(Presence::foreign("SubnetNotFound", format!("VPC {} has no subnets", self.0)));
        }
        Ok(Presence::Present(Observed::new(&self.0, &found)?.ready(true)))
    }
    fn create(&self, _ctx: &Context<AWSCluster>) -> Result<Progress> {
        Err(Error::internal("subnets of the user's are not created"))
    }
    fn delete(&self, _ctx: &Context<AWSCluster>) -> Result<Progress> {
        Err(Error::internal("subnets of the user's are not deleted"))
    }
}

/// Which subnets a route to an internet gateway serves.
#[derive(Default)]
struct Public {
    main: bool,
    named: BTreeSet<String>,
    private: BTreeSet<String>,
}

impl Public {
    fn holds(&self, subnet: &str) -> bool {
        self.named.contains(subnet) || self.main && !self.private.contains(subnet)
    }
}

fn public_subnets(vpc: &str) -> Result<Public> {
    let mut found = Public::default();
    for table in ec2::all(&ec2::ROUTE_TABLES, |query| query.filters(&[("vpc-id", vpc)]), SHARED)? {
        let open = table.all("routeSet/item").any(|route| route.text("gatewayId").starts_with("igw-"));
        for association in table.all("associationSet/item") {
            found.main |= open && association.text("main") == "true";
            if let Some(subnet) = association.found("subnetId") {
                if open {
                    found.named.insert(subnet)
                } else {
                    found.private.insert(subnet)
                };
            }
        }
    }
    Ok(found)
}

/// A subnet that is made for the cluster.
pub struct MadeSubnet(pub Subnet);

impl Resource for MadeSubnet {
    fn part(&self) -> String {
        self.0.part()
    }
    fn class(&self) -> &'static Class {
        &ec2::SUBNETS
    }
    fn after(&self) -> Vec<String> {
        vec![VPC.to_owned()]
    }
    fn replaceable(&self) -> bool {
        self.0.id.is_none()
    }
    fn given(&self) -> Option<String> {
        self.0.id.clone()
    }
    fn tags(&self, ctx: &Context<AWSCluster>) -> Tags {
        let (cluster, spec) = (ctx.cluster().name(), &ctx.spec);
        let name = format!("{cluster}-subnet-{}", self.0.name);
        let own = spec.network.subnets.iter().find(|subnet| subnet.id == self.0.name);
        let own = own.map(|subnet| subnet.tags.clone()).unwrap_or_default();
        let role = if self.0.public { "public" } else { "private" };
        let mut tags = tags::of(ctx, &self.part(), name, role, &[&spec.additional_tags, &own]);
        tags.insert(tags::cloud_tag(&cluster), "shared".to_owned());
        let balancers = if self.0.public { "kubernetes.io/role/elb" } else { "kubernetes.io/role/internal-elb" };
        tags.insert(balancers.to_owned(), "1".to_owned());
        tags
    }
    fn look(&self, _ctx: &Context<AWSCluster>, id: &str, element: &Element) -> Result<Observed> {
        let seen = Observed::new(id, &State { id: id.to_owned(), ..State::default() })?;
        let seen = seen.ready(element.text("state") != "pending");
        if self.0.public && element.text("mapPublicIpOnLaunch") != "true" {
            return Ok(seen.todo("MapPublicIp", format!("giving machines in {id} public addresses")));
        }
        Ok(seen)
    }
    fn make(&self, ctx: &Context<AWSCluster>) -> Result<Query> {
        let vpc = ctx.id_of(VPC)?;
        let query = crate::ec2("CreateSubnet").set("VpcId", vpc).set("CidrBlock", &self.0.cidr);
        Ok(query.set("AvailabilityZone", &self.0.zone))
    }
    fn made(&self) -> &'static str {
        "subnet/subnetId"
    }
    fn step(&self, _ctx: &Context<AWSCluster>, id: &str, _code: &str) -> Result<Query> {
        Ok(crate::ec2("ModifySubnetAttribute").set("SubnetId", id).set("MapPublicIpOnLaunch.Value", "true"))
    }
    fn unmake(&self, _ctx: &Context<AWSCluster>, id: &str) -> Result<std::result::Result<Query, Reason>> {
        Ok(Ok(crate::ec2("DeleteSubnet").set("SubnetId", id)))
    }
}

/// The internet gateway.
pub struct InternetGateway;

impl Resource for InternetGateway {
    fn part(&self) -> String {
        INTERNET_GATEWAY.to_owned()
    }
    fn class(&self) -> &'static Class {
        &ec2::INTERNET_GATEWAYS
    }
    fn after(&self) -> Vec<String> {
        vec![VPC.to_owned()]
    }
    fn is_capas(&self, ctx: &Context<AWSCluster>, element: &Element) -> bool {
        let vpc = ctx.id_of(VPC).unwrap_or_default();
        !vpc.is_empty() && element.all("attachmentSet/item").any(|attachment| attachment.text("vpcId") == vpc)
    }
    fn tags(&self, ctx: &Context<AWSCluster>) -> Tags {
        let name = format!("{}-igw", ctx.cluster().name());
        tags::of(ctx, INTERNET_GATEWAY, name, "common", &[&ctx.spec.additional_tags])
    }
    fn look(&self, ctx: &Context<AWSCluster>, id: &str, element: &Element) -> Result<Observed> {
        let attached = element.found("attachmentSet/item/vpcId");
        let vpc = ctx.id_of(VPC).ok();
        let seen = Observed::new(id, &State { id: id.to_owned(), attached: attached.clone(), address: None })?;
        if attached.is_some() && attached == vpc {
            return Ok(seen.ready(true));
        }
        Ok(seen.todo("Attach", format!("attaching {id} to {}", vpc.unwrap_or_default())))
    }
    fn make(&self, _ctx: &Context<AWSCluster>) -> Result<Query> {
        Ok(crate::ec2("CreateInternetGateway"))
    }
    fn made(&self) -> &'static str {
        "internetGateway/internetGatewayId"
    }
    fn step(&self, ctx: &Context<AWSCluster>, id: &str, _code: &str) -> Result<Query> {
        Ok(crate::ec2("AttachInternetGateway").set("InternetGatewayId", id).set("VpcId", ctx.id_of(VPC)?))
    }
    fn unmake(&self, ctx: &Context<AWSCluster>, id: &str) -> Result<std::result::Result<Query, Reason>> {
        let attached = state::<State>(ctx, INTERNET_GATEWAY)?.and_then(|state| state.attached);
        Ok(Ok(match attached {
            Some(vpc) => crate::ec2("DetachInternetGateway").set("InternetGatewayId", id).set("VpcId", vpc),
            None => crate::ec2("DeleteInternetGateway").set("InternetGatewayId", id),
        }))
    }
}

/// The address of the NAT gateway of a zone.
pub struct NatAddress(pub String);

impl NatAddress {
    fn name(zone: &str) -> String {
        format!("nat-address-{zone}")
    }
}

impl Resource for NatAddress {
    fn part(&self) -> String {
        Self::name(&self.0)
    }
    fn class(&self) -> &'static Class {
        &ec2::ADDRESSES
    }
    /// It can be given back once no gateway is there to route to it.
    fn after(&self) -> Vec<String> {
        vec![INTERNET_GATEWAY.to_owned()]
    }
    fn tags(&self, ctx: &Context<AWSCluster>) -> Tags {
        let name = format!("{}-eip-nat-{}", ctx.cluster().name(), self.0);
        tags::of(ctx, &self.part(), name, "common", &[&ctx.spec.additional_tags])
    }
    fn look(&self, _ctx: &Context<AWSCluster>, id: &str, element: &Element) -> Result<Observed> {
        let state = State { id: id.to_owned(), attached: None, address: element.found("publicIp") };
        Ok(Observed::new(id, &state)?.ready(true))
    }
    fn make(&self, _ctx: &Context<AWSCluster>) -> Result<Query> {
        Ok(crate::ec2("AllocateAddress").set("Domain", "vpc"))
    }
    fn made(&self) -> &'static str {
        "allocationId"
    }
    fn unmake(&self, _ctx: &Context<AWSCluster>, id: &str) -> Result<std::result::Result<Query, Reason>> {
        Ok(Ok(crate::ec2("ReleaseAddress").set("AllocationId", id)))
    }
}

/// The NAT gateway of a zone.
pub struct NatGateway {
    /// The zone.
    pub zone: String,
    /// The part of the public subnet that it is in.
    pub subnet: String,
}

impl NatGateway {
    /// The part's name.
    pub fn name(zone: &str) -> String {
        format!("nat-{zone}")
    }
}

impl Resource for NatGateway {
    fn part(&self) -> String {
        Self::name(&self.zone)
    }
    fn class(&self) -> &'static Class {
        &ec2::NAT_GATEWAYS
    }
    fn after(&self) -> Vec<String> {
        vec![NatAddress::name(&self.zone), self.subnet.clone(), INTERNET_GATEWAY.to_owned()]
    }
    fn is_capas(&self, ctx: &Context<AWSCluster>, element: &Element) -> bool {
        ctx.id_of(&self.subnet).is_ok_and(|subnet| element.text("subnetId") == subnet)
    }
    /// They stay to be seen for an hour after they were deleted.
    fn is_gone(&self, element: &Element) -> bool {
        matches!(element.text("state"), "deleted" | "failed")
    }
    fn tags(&self, ctx: &Context<AWSCluster>) -> Tags {
        let name = format!("{}-nat-{}", ctx.cluster().name(), self.zone);
        tags::of(ctx, &self.part(), name, "common", &[&ctx.spec.additional_tags])
    }
    fn look(&self, _ctx: &Context<AWSCluster>, id: &str, element: &Element) -> Result<Observed> {
        let address = element.found("natGatewayAddressSet/item/publicIp");
        let seen = Observed::new(id, &State { id: id.to_owned(), attached: None, address })?;
        Ok(match element.text("state") {
            "available" => seen.ready(true),
            state => seen.operation(state, 5_000),
        })
    }
    fn make(&self, ctx: &Context<AWSCluster>) -> Result<Query> {
        let token = ctx.known(&self.part()).unwrap_or_default().idempotency_key;
        Ok(crate::ec2("CreateNatGateway")
            .set("SubnetId", ctx.id_of(&self.subnet)?)
            .set("AllocationId", ctx.id_of(&NatAddress::name(&self.zone))?)
            .set("ClientToken", token))
    }
    fn made(&self) -> &'static str {
        "natGateway/natGatewayId"
    }
    fn unmake(&self, _ctx: &Context<AWSCluster>, id: &str) -> Result<std::result::Result<Query, Reason>> {
        Ok(Ok(crate::ec2("DeleteNatGateway").set("NatGatewayId", id)))
    }
}
