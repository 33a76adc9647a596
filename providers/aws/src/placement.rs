//! What is chosen for an instance before it is asked for: subnet and zone, security groups, image.

use capstan_provider::{Context, Error, Result, xml::Element};

use crate::{
    SHARED, bootstrap,
    cluster::AWSCluster,
    ec2::{self, SECURITY_GROUPS, SUBNETS},
    group::{self, GroupState},
    image,
    instance::{Frozen, wanted_tags},
    launch,
    layout::{self, Layout, Network, Place},
    machine::AWSMachine,
    network::{self, State, SubnetsState, VpcState},
    spec::Filter,
    tags,
};

/// The spec of the cluster.
pub fn cluster(ctx: &Context<AWSMachine>) -> Result<AWSCluster> {
    ctx.cluster().infrastructure_spec()?.ok_or_else(|| {
        Error::transient(
            "ClusterUnknown",
            "the AWSCluster of this machine is not there: subnet and groups cannot be chosen",
        )
    })
}

/// Chooses.
pub fn choose(ctx: &Context<AWSMachine>) -> Result<Frozen> {
    let form = bootstrap::form(ctx)?;
    let cluster = cluster(ctx)?;
    let (subnet, zone) = subnet(ctx, &cluster)?;
    let image = image::choose(ctx, &cluster)?;
    let groups = groups(ctx)?;
    Ok(Frozen { subnet, zone, image: image.id, root_device: image.root_device, groups, form, tags: wanted_tags(ctx)? })
}

/// The subnets that the cluster has.
fn places(ctx: &Context<AWSMachine>, cluster: &AWSCluster) -> Result<Vec<Place>> {
    let view = ctx.cluster();
    let vpc: Option<VpcState> = view.infrastructure_state(network::VPC)?;
    let borrowed: Option<SubnetsState> = view.infrastructure_state(network::SUBNETS)?;
    let network = match (vpc, borrowed.is_some()) {
        (None, _) => Network::Unknown,
        (Some(_), true) => Network::Borrowed,
        (Some(_), false) => Network::Managed(managed(ctx, cluster)?),
    };
    let mut failure = None;
    let found = layout::places(&network, borrowed, |part| match view.infrastructure_state::<State>(part) {
        Ok(state) => state.map(|state| state.id),
        Err(error) => {
            failure = Some(error);
            None
        }
    });
    failure.map_or(Ok(found), Err)
}

/// The subnets that were made: as the VPC tells them, or as the spec lists them.
fn managed(ctx: &Context<AWSMachine>, cluster: &AWSCluster) -> Result<Layout> {
    let vpc: Option<VpcState> = ctx.cluster().infrastructure_state(network::VPC)?;
    let told = vpc.map(|vpc| vpc.layout).unwrap_or_default();
    Ok(if told.subnets.is_empty() { layout::listed(cluster) } else { told })
}

/// The subnet and its zone.
fn subnet(ctx: &Context<AWSMachine>, cluster: &AWSCluster) -> Result<(String, String)> {
    let domain = ctx.machine().and_then(|machine| machine.failure_domain());
    let fits = |zone: &str| domain.as_deref().is_none_or(|domain| domain == zone);
    let candidates: Vec<Element> = match &ctx.spec.subnet {
        Some(given) => {
            let field = if given.id.is_some() { "/spec/subnet/id" } else { "/spec/subnet/filters" };
            let found = match &given.id {
                Some(id) => ec2::by_id(&SUBNETS, id)?.into_iter().collect(),
                None => ec2::all(&SUBNETS, |query| filtered(query, &given.filters), 0)?,
            };
            if found.is_empty() {
                return Err(Error::invalid(field, "there is no such subnet in the region"));
            }
            let found = not_anothers(ctx, cluster, found)?;
            let zones: Vec<String> = found.iter().map(|subnet| subnet.text("availabilityZone").to_owned()).collect();
            let fitting: Vec<Element> =
                found.into_iter().filter(|subnet| fits(subnet.text("availabilityZone"))).collect();
            if fitting.is_empty() {
                let domain = domain.unwrap_or_default();
                let message =
                    format!("the machine's failure domain is {domain}, and the subnet is in {}", zones.join(", "));
                return Err(Error::invalid(field, message));
            }
            fitting
        }
        None => {
            let public = ctx.spec.public_ip == Some(true);
            let places = places(ctx, cluster)?;
            let fitting: Vec<&Place> =
                places.iter().filter(|place| place.public == public && fits(&place.zone)).collect();
            if fitting.is_empty() {
                let kind = if public { "public" } else { "private" };
                let place = domain.map(|domain| format!(" in {domain}")).unwrap_or_default();
                return Err(Error::conflict("NoSubnet", format!("the cluster has no {kind} subnet{place}")));
            }
            let ids: Vec<&str> = fitting.iter().map(|place| place.id.as_str()).collect();
            ec2::all(&SUBNETS, |query| query.list("SubnetId.", &ids), 0)?
        }
    };
    let mut open: Vec<&Element> =
        candidates.iter().filter(|subnet| subnet.text("availableIpAddressCount") != "0").collect();
    open.sort_by_key(|subnet| subnet.text("subnetId").to_owned());
    let places = u64::try_from(open.len()).unwrap_or(1).max(1);
    let place = usize::try_from(capstan_provider::hash(&ctx.owner_key()) % places).unwrap_or(0);
    let Some(chosen) = open.get(place) else {
        let all: Vec<&str> = candidates.iter().map(|subnet| subnet.text("subnetId")).collect();
        let message = format!("no address is free in {}: free some, or choose another subnet", all.join(", "));
        return Err(Error::conflict("InsufficientFreeAddressesInSubnet", message));
    };
    Ok((chosen.text("subnetId").to_owned(), chosen.text("availabilityZone").to_owned()))
}

/// Subnets that were made for another cluster are not used, whoever names them.
fn not_anothers(ctx: &Context<AWSMachine>, cluster: &AWSCluster, found: Vec<Element>) -> Result<Vec<Element>> {
    let anothers = |subnet: &Element| tags::of_ec2(subnet).contains_key(tags::OWNER);
    if !found.iter().any(anothers) {
        return Ok(found);
    }
    let own: Vec<String> = places(ctx, cluster)?.into_iter().map(|place| place.id).collect();
    let (fine, refused): (Vec<Element>, Vec<Element>) =
        found.into_iter().partition(|subnet| !anothers(subnet) || own.iter().any(|id| id == subnet.text("subnetId")));
    match refused.first() {
        Some(first) if fine.is_empty() => {
            let message = format!("{} was made for another cluster: name one of this cluster", first.text("subnetId"));
            Err(Error::conflict("SubnetForeign", message))
        }
        _ => Ok(fine),
    }
}

fn filtered(mut query: capstan_provider::aws::Query, filters: &[Filter]) -> capstan_provider::aws::Query {
    for (index, filter) in filters.iter().enumerate() {
        let at = format!("Filter.{}", index + 1);
        query = query.set(&format!("{at}.Name"), &filter.name).list(&format!("{at}.Value."), &filter.values);
    }
    query
}

/// The groups that every machine of its kind has.
pub fn core_groups(ctx: &Context<AWSMachine>) -> Result<Vec<String>> {
    let cluster = ctx.cluster().infrastructure_spec::<AWSCluster>()?.unwrap_or_default();
    let mut roles = vec![group::NODE, group::BALANCERS];
    if ctx.machine().is_some_and(|machine| machine.control_plane()) {
        roles.insert(0, group::CONTROL_PLANE);
    }
    let mut ids = Vec::new();
    for role in roles {
        let given = [&ctx.spec.security_group_overrides, &cluster.network.security_group_overrides];
        let made = || ctx.cluster().infrastructure_state::<GroupState>(&group::name(role));
        let id = match given.into_iter().find_map(|given| given.get(role).cloned()) {
            Some(id) => Some(id),
            None => made()?.map(|state| state.id),
        };
        ids.extend(id.filter(|id| !ids.contains(id)));
    }
    Ok(ids)
}

/// All its groups.
fn groups(ctx: &Context<AWSMachine>) -> Result<Vec<String>> {
    let mut ids = core_groups(ctx)?;
    if ids.is_empty() {
        return Err(Error::transient("NoSecurityGroup", "the cluster has no security groups yet"));
    }
    for (index, given) in ctx.spec.additional_security_groups.iter().enumerate() {
        let found: Vec<String> = match &given.id {
            Some(id) => vec![id.clone()],
            None => {
                let found = ec2::all(&SECURITY_GROUPS, |query| filtered(query, &given.filters), SHARED)?;
                found.iter().map(|group| group.text("groupId").to_owned()).collect()
            }
        };
        if found.is_empty() {
            let field = format!("/spec/additionalSecurityGroups/{index}/filters");
            return Err(Error::invalid(field, "no security group passes these filters"));
        }
        for id in found {
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
    }
    no_group_of_anothers(ctx, &ids)?;
    Ok(ids)
}

/// Groups that were made for another cluster are not given to a machine, whoever names them.
pub fn no_group_of_anothers(ctx: &Context<AWSMachine>, ids: &[String]) -> Result<()> {
    let mut given = ids.to_vec();
    for role in [group::NODE, group::BALANCERS, group::CONTROL_PLANE, group::API_BALANCER] {
        let own = ctx.cluster().infrastructure_state::<GroupState>(&group::name(role))?;
        given.retain(|id| own.as_ref().is_none_or(|own| own.id != *id));
    }
    let overriding: Vec<&String> = ctx.spec.security_group_overrides.values().collect();
    let (instead, beside): (Vec<String>, Vec<String>) = given.into_iter().partition(|id| overriding.contains(&id));
    let refuse = |ids: &[String], fields: &[(&str, &str)]| {
        ec2::refuse_anothers(&SECURITY_GROUPS, ids, None, "SecurityGroupForeign", fields)
    };
    refuse(&instead, &[("InvalidGroup", "/spec/securityGroupOverrides")])?;
    refuse(&beside, launch::FIELDS)
}
