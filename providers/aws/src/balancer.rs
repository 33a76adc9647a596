//! The load balancer before the API: made as a network load balancer ([`crate::listener`] has what belongs to it) or as a classic one
//! ([`crate::classic`]), or the user's own, found by its name.

use std::collections::BTreeSet;

use capstan_provider::{
    Choice, Context, Error, Observed, Part, Presence, Progress, Reason, Result, aws::Fault, xml::Element,
};
use serde::{Deserialize, Serialize};

use crate::{
    SHARED, advice, classic,
    classic::ClassicBalancer,
    classic_elb,
    cluster::{AWSCluster, Balancing},
    cluster_spec::{Listener, LoadBalancer},
    ec2::{self, not_told},
    elb, group, layout,
    listener::{ListenerPart, TargetGroup, TargetState, target_group},
    network::{VPC, state},
    short_name,
    spec::Tags,
    tags,
};

/// The part that is the load balancer.
pub const BALANCER: &str = "load-balancer";
/// The part that looks whose the load balancer of a given name is.
const NAMED: &str = "named-load-balancer";

/// What machines and the report need to know of a load balancer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BalancerState {
    /// Its name.
    pub name: String,
    /// Its ARN; a classic one has none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub arn: String,
    /// Its name in the DNS.
    pub dns: String,
    /// It works.
    pub active: bool,
    /// It is a classic one.
    #[serde(skip_serializing_if = "is_false")]
    pub classic: bool,
    /// Target groups of one that is the user's, by port.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<(i64, String)>,
}

fn is_false(value: &bool) -> bool {
    !value
}

/// Whose a load balancer of a given name is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct NamedState {
    /// The user's: it is there and does not carry the cluster's tag.
    users: bool,
}

/// The spec of the load balancer.
pub fn spec(ctx: &Context<AWSCluster>) -> LoadBalancer {
    ctx.spec.control_plane_load_balancer.clone().unwrap_or_default()
}

/// The parts of the load balancer.
pub fn parts(ctx: &Context<AWSCluster>, in_subnets: &[String]) -> Result<Vec<Box<dyn Part<AWSCluster>>>> {
    let kind = ctx.spec.balancing();
    if kind == Balancing::Disabled {
        return Ok(Vec::new());
    }
    let spec = spec(ctx);
    let mut parts: Vec<Box<dyn Part<AWSCluster>>> = Vec::new();
    if let Some(name) = &spec.name {
        let named: Option<NamedState> = state(ctx, NAMED)?;
        parts.push(Box::new(NamedBalancer { name: name.clone(), classic: kind == Balancing::Classic }));
        match named {
            // Whose it is decides which parts there are: they are listed the next time.
            None => return Ok(parts),
            Some(named) if named.users => {
                parts.push(Box::new(UsersBalancer { name: name.clone(), classic: kind == Balancing::Classic }));
                return Ok(parts);
            }
            Some(_) => {}
        }
    }
    let mut after = in_subnets.to_vec();
    after.push(group::name(group::API_BALANCER));
    if kind == Balancing::Classic {
        parts.push(Box::new(ClassicBalancer { after }));
        return Ok(parts);
    }
    parts.push(Box::new(NetworkBalancer { after }));
    let check = spec.health_check.clone().into();
    let api = Listener { port: ctx.spec.api_port(), health_check: check, ..Listener::default() };
    for (index, listener) in std::iter::once(&api).chain(&spec.additional_listeners).enumerate() {
        let suffix = if index == 0 { String::new() } else { format!("-{}", listener.port) };
        parts.push(Box::new(TargetGroup { suffix: suffix.clone(), listener: listener.clone() }));
        parts.push(Box::new(ListenerPart { suffix, port: listener.port }));
    }
    Ok(parts)
}

/// A part on record that is no longer listed: a further port that was taken away.
pub fn unlisted(_ctx: &Context<AWSCluster>, name: &str) -> Option<Box<dyn Part<AWSCluster>>> {
    let port = |name: &str, start: &str| name.strip_prefix(start)?.parse::<i64>().ok();
    if let Some(port) = port(name, "target-group-") {
        let listener = Listener { port, ..Listener::default() };
        return Some(Box::new(TargetGroup { suffix: format!("-{port}"), listener }));
    }
    port(name, "listener-")
        .map(|port| -> Box<dyn Part<AWSCluster>> { Box::new(ListenerPart { suffix: format!("-{port}"), port }) })
}

/// The name that a load balancer is made with.
pub fn chosen_name(ctx: &Context<AWSCluster>) -> String {
    spec(ctx).name.unwrap_or_else(|| short_name(&ctx.cluster().name(), "apiserver", &ctx.owner_key(), 32))
}

/// The subnets that a load balancer is put into: those of the spec, or one in each zone.
pub fn subnets(ctx: &Context<AWSCluster>) -> Result<Vec<String>> {
    let spec = spec(ctx);
    if !spec.subnets.is_empty() {
        return Ok(spec.subnets);
    }
    let (mut zones, mut ids): (Vec<String>, Vec<String>) = Default::default();
    for place in layout::of_cluster(ctx)?.into_iter().filter(|place| place.public != spec.is_internal()) {
        if !zones.contains(&place.zone) {
            zones.push(place.zone);
            ids.push(place.id);
        }
    }
    if ids.is_empty() {
        let kind = if spec.is_internal() { "private" } else { "public" };
        return Err(Error::invalid(
            "/spec/controlPlaneLoadBalancer/subnets",
            format!("the network has no {kind} subnet for the load balancer: name subnets, or choose another scheme"),
        ));
    }
    Ok(ids)
}

/// Subnets and groups that the spec names are not another cluster's.
pub fn refuse_anothers(ctx: &Context<AWSCluster>) -> Result<()> {
    let (spec, own) = (spec(ctx), ctx.owner_key());
    let subnet = [("InvalidSubnet", "/spec/controlPlaneLoadBalancer/subnets")];
    let group = [("InvalidGroup", "/spec/controlPlaneLoadBalancer/additionalSecurityGroups")];
    ec2::refuse_anothers(&ec2::SUBNETS, &spec.subnets, Some(&own), "SubnetForeign", &subnet)?;
    let groups = &spec.additional_security_groups;
    ec2::refuse_anothers(&ec2::SECURITY_GROUPS, groups, Some(&own), "SecurityGroupForeign", &group)
}

/// Its security groups.
pub fn groups(ctx: &Context<AWSCluster>) -> Vec<String> {
    group::id(ctx, group::API_BALANCER).into_iter().chain(spec(ctx).additional_security_groups).collect()
}

/// Its tags.
pub fn tags_of(ctx: &Context<AWSCluster>, part: &str) -> Tags {
    tags::of(ctx, part, format!("{}-{part}", ctx.cluster().name()), "apiserver", &[&ctx.spec.additional_tags])
}

/// The tags of what has an ARN. One request asks for those of the load balancer and its target groups together, as far as they are
/// on record, and serves them all.
pub fn tags_by_arn(ctx: &Context<AWSCluster>, arn: &str) -> Result<Tags> {
    let balancer = state::<BalancerState>(ctx, BALANCER)?.map(|state| state.arn);
    let mut arns = BTreeSet::from([arn.to_owned()]);
    arns.extend(balancer.filter(|arn| !arn.is_empty()));
    let further = spec(ctx).additional_listeners;
    let suffixes = further.iter().map(|listener| format!("-{}", listener.port));
    for suffix in std::iter::once(String::new()).chain(suffixes) {
        arns.extend(state::<TargetState>(ctx, &target_group(&suffix))?.map(|state| state.arn));
    }
    let ask = |arns: &BTreeSet<String>| elb("DescribeTags").list("ResourceArns.member.", arns).max_age(SHARED);
    let answer = match ask(&arns).send()? {
        Ok(answer) => answer,
        // One of the others is gone.
        Err(fault) if fault.is_missing() => ask(&BTreeSet::from([arn.to_owned()])).ok()?,
        Err(fault) => return Err(fault.error()),
    };
    let mut all = answer.all("DescribeTagsResult/TagDescriptions/member");
    let Some(own) = all.find(|one| one.text("ResourceArn") == arn) else { return Err(not_told("DescribeTags", arn)) };
    Ok(tags::read(own, "Tags/member", "Key", "Value"))
}

/// One by its name; `None` where there is none.
pub fn by_name(classic: bool, name: &str, max_age: u64) -> Result<Option<Element>> {
    let (query, list) = if classic {
        let query = classic_elb("DescribeLoadBalancers").set("LoadBalancerNames.member.1", name);
        (query, "DescribeLoadBalancersResult/LoadBalancerDescriptions/member")
    } else {
        let query = elb("DescribeLoadBalancers").set("Names.member.1", name);
        (query, "DescribeLoadBalancersResult/LoadBalancers/member")
    };
    let query = if max_age > 0 { query.max_age(max_age) } else { query };
    match query.send()? {
        Ok(answer) => match answer.all(list).next() {
            Some(element) => Ok(Some(element.clone())),
            None => Err(not_told("DescribeLoadBalancers", name)),
        },
        Err(fault) if fault.is_missing() => Ok(None),
        Err(fault) => Err(fault.error()),
    }
}

/// How old an answer about a part may be: what may have been asked for is not looked for in one that others share.
pub fn age(ctx: &Context<AWSCluster>, part: &str) -> u64 {
    if ctx.known(part).is_none_or(|known| known.confirmed) { SHARED } else { 0 }
}

/// Whether tags say that something is ours: with our owner key, or with the cluster's tag and nobody's where the record or the spec
/// knows it.
pub fn is_ours(ctx: &Context<AWSCluster>, theirs: &Tags, known: bool) -> bool {
    match theirs.get(tags::OWNER) {
        Some(owner) => *owner == ctx.owner_key(),
        None => known && theirs.get(&tags::cluster_tag(&ctx.cluster().name())).is_some_and(|value| value == "owned"),
    }
}

/// A load balancer whose name the spec gives: it is looked whose it is.
struct NamedBalancer {
    name: String,
    classic: bool,
}

impl Part<AWSCluster> for NamedBalancer {
    fn name(&self) -> String {
        NAMED.to_owned()
    }
    fn borrowed(&self) -> bool {
        true
    }
    fn identify(&self, _ctx: &Context<AWSCluster>, _reserved: &[String]) -> Result<Choice> {
        Ok(Choice::chosen(&self.name))
    }
    fn observe(&self, ctx: &Context<AWSCluster>) -> Result<Presence> {
        let before: Option<NamedState> = state(ctx, NAMED)?;
        // Once it is decided it stays: what was made, or was the user's, does not become the other by its tags.
        let found = match &before {
            Some(before) => before.clone(),
            None => match by_name(self.classic, &self.name, 0)? {
                None => NamedState { users: false },
                Some(element) => {
                    let theirs = if self.classic {
                        classic::tags_of(&self.name)?
                    } else {
                        tags_by_arn(ctx, element.text("LoadBalancerArn"))?
                    };
                    if tags::are_anothers(&theirs, &ctx.owner_key()) {
                        let message =
                            format!("load balancer {} was made for another cluster: choose another name", self.name);
                        return Ok(Presence::foreign("LoadBalancerForeign", message));
                    }
                    let cluster = theirs.get(&tags::cluster_tag(&ctx.cluster().name()));
                    NamedState { users: cluster.is_none_or(|value| value != "owned") }
                }
            },
        };
        Ok(Presence::Present(Observed::new(&self.name, &found)?.ready(before.is_some())))
    }
    fn create(&self, _ctx: &Context<AWSCluster>) -> Result<Progress> {
        Err(Error::internal("it is looked up only"))
    }
    fn delete(&self, _ctx: &Context<AWSCluster>) -> Result<Progress> {
        Err(Error::internal("it is looked up only"))
    }
}

/// A load balancer of the user's.
struct UsersBalancer {
    name: String,
    classic: bool,
}

impl Part<AWSCluster> for UsersBalancer {
    fn name(&self) -> String {
        BALANCER.to_owned()
    }
    fn after(&self) -> Vec<String> {
        vec![NAMED.to_owned()]
    }
    fn borrowed(&self) -> bool {
        true
    }
    fn identify(&self, _ctx: &Context<AWSCluster>, _reserved: &[String]) -> Result<Choice> {
        Ok(Choice::chosen(&self.name))
    }
    fn observe(&self, _ctx: &Context<AWSCluster>) -> Result<Presence> {
        let Some(element) = by_name(self.classic, &self.name, SHARED)? else {
            let message = format!(
                "load balancer {}, which /spec/controlPlaneLoadBalancer/name names and was there, is not there",
                self.name
            );
            return Ok(Presence::foreign("LoadBalancerNotFound", message));
        };
        let mut found = read_state(&self.name, self.classic, &element);
        if !self.classic {
            let answer = elb("DescribeListeners").set("LoadBalancerArn", &found.arn).max_age(SHARED).ok()?;
            for listener in answer.all("DescribeListenersResult/Listeners/member") {
                let target = listener.text("DefaultActions/member/TargetGroupArn").to_owned();
                if let (Ok(port), false) = (listener.text("Port").parse(), target.is_empty()) {
                    found.targets.push((port, target));
                }
            }
            found.targets.sort();
        }
        let active = found.active;
        Ok(Presence::Present(Observed::new(&self.name, &found)?.ready(active)))
    }
    fn create(&self, _ctx: &Context<AWSCluster>) -> Result<Progress> {
        Err(Error::internal("a load balancer of the user's is not created"))
    }
    fn delete(&self, _ctx: &Context<AWSCluster>) -> Result<Progress> {
        Err(Error::internal("a load balancer of the user's is not deleted"))
    }
}

/// What a description says.
pub fn read_state(name: &str, classic: bool, element: &Element) -> BalancerState {
    BalancerState {
        name: name.to_owned(),
        arn: element.text("LoadBalancerArn").to_owned(),
        dns: element.text("DNSName").to_owned(),
        active: classic || matches!(element.text("State/Code"), "active" | "active_impaired"),
        classic,
        targets: Vec::new(),
    }
}

/// A network load balancer that is made for the cluster.
struct NetworkBalancer {
    after: Vec<String>,
}

const CROSS_ZONE: &str = "load_balancing.cross_zone.enabled";

impl Part<AWSCluster> for NetworkBalancer {
    fn name(&self) -> String {
        BALANCER.to_owned()
    }
    fn after(&self) -> Vec<String> {
        self.after.clone()
    }
    fn identify(&self, ctx: &Context<AWSCluster>, _reserved: &[String]) -> Result<Choice> {
        Ok(Choice::chosen(chosen_name(ctx)))
    }
    fn observe(&self, ctx: &Context<AWSCluster>) -> Result<Presence> {
        let known = ctx.known(BALANCER).unwrap_or_default();
        let name = known.id.clone().unwrap_or_else(|| chosen_name(ctx));
        let Some(element) = by_name(false, &name, age(ctx, BALANCER))? else { return Ok(Presence::absent_by_id()) };
        let mut found = read_state(&name, false, &element);
        let theirs = tags_by_arn(ctx, &found.arn)?;
        if !is_ours(ctx, &theirs, known.confirmed || spec(ctx).name.is_some()) {
            let message =
                format!("load balancer {name} is there and was not made for this cluster: choose another name");
            return Ok(Presence::foreign("LoadBalancerNameTaken", message));
        }
        let vpc = ctx.id_of(VPC).unwrap_or_default();
        if !vpc.is_empty() && element.text("VpcId") != vpc {
            let message = format!("load balancer {name} is in {} and not in {vpc}", element.text("VpcId"));
            return Ok(Presence::foreign("LoadBalancerElsewhere", message));
        }
        if element.text("State/Code") == "failed" {
            let message = format!("load balancer {name} could not be set up: {}", element.text("State/Reason"));
            return Err(Error::transient("LoadBalancerFailed", message));
        }
        // A name in the DNS is not given up for another.
        if let Some(before) = known.state::<BalancerState>()?.filter(|before| !before.dns.is_empty()) {
            found.dns = before.dns;
        }
        let mut seen = Observed::new(&name, &found)?.ready(found.active);
        if !found.active {
            return Ok(Presence::Present(seen.operation(element.text("State/Code"), 5_000)));
        }
        let lacking = tags::lacking(&tags_of(ctx, BALANCER), &theirs);
        if !lacking.is_empty() {
            seen = seen.todo("Tag", format!("tagging load balancer {name}"));
        }
        let wanted = spec(ctx).cross_zone_load_balancing.to_string();
        if attribute(&found.arn, CROSS_ZONE)? != wanted {
            seen = seen.todo("SetAttributes", format!("setting {CROSS_ZONE} of load balancer {name} to {wanted}"));
        }
        Ok(Presence::Present(seen))
    }
    fn create(&self, ctx: &Context<AWSCluster>) -> Result<Progress> {
        let name = ctx.id_of(BALANCER)?;
        refuse_anothers(ctx)?;
        let scheme = if spec(ctx).is_internal() { "internal" } else { "internet-facing" };
        let query = elb("CreateLoadBalancer")
            .set("Name", &name)
            .set("Type", "network")
            .set("IpAddressType", "ipv4")
            .set("Scheme", scheme)
            .list("Subnets.member.", subnets(ctx)?)
            .list("SecurityGroups.member.", groups(ctx));
        match tags::list(query, "Tags.member.", &tags_of(ctx, BALANCER)).send()? {
            Ok(_) => Ok(Progress::done(name)),
            Err(fault) => Err(advice::refusal(&fault, BALANCER_FIELDS)),
        }
    }
    fn update(&self, ctx: &Context<AWSCluster>, todo: &[Reason]) -> Result<Progress> {
        let found: BalancerState = needed(ctx, BALANCER)?;
        let query = match todo.first().map_or("", |reason| reason.code.as_str()) {
            "Tag" => add_tags(&found.arn, &tags_of(ctx, BALANCER)),
            _ => elb("ModifyLoadBalancerAttributes")
                .set("LoadBalancerArn", &found.arn)
                .set("Attributes.member.1.Key", CROSS_ZONE)
                .set("Attributes.member.1.Value", spec(ctx).cross_zone_load_balancing.to_string()),
        };
        query.ok()?;
        Ok(Progress::done(ctx.id_of(BALANCER)?))
    }
    fn delete(&self, ctx: &Context<AWSCluster>) -> Result<Progress> {
        let found: BalancerState = needed(ctx, BALANCER)?;
        done_or_gone(elb("DeleteLoadBalancer").set("LoadBalancerArn", &found.arn).send()?, ctx.id_of(BALANCER)?)
    }
}

/// Fields that codes of the load balancers blame.
pub const BALANCER_FIELDS: &[(&str, &str)] = &[
    ("SubnetNotFound", "/spec/controlPlaneLoadBalancer/subnets"),
    ("InvalidSubnet", "/spec/controlPlaneLoadBalancer/subnets"),
    ("InvalidSecurityGroup", "/spec/controlPlaneLoadBalancer/additionalSecurityGroups"),
    ("InvalidScheme", "/spec/controlPlaneLoadBalancer/scheme"),
    ("ValidationError", "/spec/controlPlaneLoadBalancer"),
    ("InvalidConfigurationRequest", "/spec/controlPlaneLoadBalancer"),
];

/// The request that tags what has an ARN.
pub fn add_tags(arn: &str, wanted: &Tags) -> capstan_provider::aws::Query {
    tags::list(elb("AddTags").set("ResourceArns.member.1", arn), "Tags.member.", wanted)
}

/// An attribute of a load balancer.
fn attribute(arn: &str, key: &str) -> Result<String> {
    let answer = elb("DescribeLoadBalancerAttributes").set("LoadBalancerArn", arn).max_age(SHARED).ok()?;
    let mut all = answer.all("DescribeLoadBalancerAttributesResult/Attributes/member");
    Ok(all
        .find(|attribute| attribute.text("Key") == key)
        .map(|found| found.text("Value").to_owned())
        .unwrap_or_default())
}

/// The state of a part that has been looked at.
pub fn needed<T: serde::de::DeserializeOwned>(ctx: &Context<AWSCluster>, part: &str) -> Result<T> {
    state(ctx, part)?.ok_or_else(|| Error::internal(format!("{part} has not been looked at")))
}

/// A deletion that was accepted, or whose object is not there.
pub fn done_or_gone(answer: std::result::Result<Element, Fault>, id: String) -> Result<Progress> {
    match answer {
        Ok(_) => Ok(Progress::done(id)),
        Err(fault) if fault.is_missing() => Ok(Progress::done(id)),
        Err(fault) => Err(fault.error()),
    }
}
