//! What the resources of EC2 have in common: how they are found, told from others', made, tagged and deleted.

use capstan_provider::{
    Absence, Choice, Context, Error, Observed, Part, Presence, Progress, Reason, Result, aws::Query, xml::Element,
};

use crate::{SHARED, advice, cluster::AWSCluster, ec2, spec::Tags, tags};

/// How EC2 names a kind of resource.
#[derive(Debug)]
pub struct Class {
    /// The action that lists them.
    pub describe: &'static str,
    /// Where its answer has them.
    pub set: &'static str,
    /// The element that holds the id.
    pub id: &'static str,
    /// The parameter that names one.
    pub parameter: &'static str,
    /// The type in `TagSpecification`.
    pub resource_type: &'static str,
}

/// VPCs.
pub const VPCS: Class =
    Class { describe: "DescribeVpcs", set: "vpcSet/item", id: "vpcId", parameter: "VpcId", resource_type: "vpc" };
/// Subnets.
pub const SUBNETS: Class = Class {
    describe: "DescribeSubnets",
    set: "subnetSet/item",
    id: "subnetId",
    parameter: "SubnetId",
    resource_type: "subnet",
};
/// Internet gateways.
pub const INTERNET_GATEWAYS: Class = Class {
    describe: "DescribeInternetGateways",
    set: "internetGatewaySet/item",
    id: "internetGatewayId",
    parameter: "InternetGatewayId",
    resource_type: "internet-gateway",
};
/// Elastic addresses.
pub const ADDRESSES: Class = Class {
    describe: "DescribeAddresses",
    set: "addressesSet/item",
    id: "allocationId",
    parameter: "AllocationId",
    resource_type: "elastic-ip",
};
/// NAT gateways.
pub const NAT_GATEWAYS: Class = Class {
    describe: "DescribeNatGateways",
    set: "natGatewaySet/item",
    id: "natGatewayId",
    parameter: "NatGatewayId",
    resource_type: "natgateway",
};
/// Route tables.
pub const ROUTE_TABLES: Class = Class {
    describe: "DescribeRouteTables",
    set: "routeTableSet/item",
    id: "routeTableId",
    parameter: "RouteTableId",
    resource_type: "route-table",
};
/// Security groups.
pub const SECURITY_GROUPS: Class = Class {
    describe: "DescribeSecurityGroups",
    set: "securityGroupInfo/item",
    id: "groupId",
    parameter: "GroupId",
    resource_type: "security-group",
};

/// What was found of a part.
pub enum Found {
    /// Nothing.
    Absent(Absence),
    /// Something that is somebody else's.
    Foreign(String),
    /// It.
    There(Element),
}

/// Everything of a class that carries the cluster's tag; a shared answer may be `max_age` old (ms), 0 for none.
pub fn list(cluster: &str, class: &Class, max_age: u64) -> Result<Vec<Element>> {
    let filter = [(format!("tag:{}", tags::cluster_tag(cluster)), "owned")];
    all(class, |query| query.filters(&filter), max_age)
}

/// Everything of a class that a query asks for, page by page.
pub fn all(class: &Class, ask: impl Fn(Query) -> Query, max_age: u64) -> Result<Vec<Element>> {
    let mut found = Vec::new();
    let mut token: Option<String> = None;
    loop {
        let mut query = ask(ec2(class.describe)).set_some("NextToken", token.as_ref());
        if max_age > 0 {
            query = query.max_age(max_age);
        }
        let answer = query.ok()?;
        found.extend(answer.all(class.set).cloned());
        token = answer.found("nextToken");
        if token.is_none() {
            return Ok(found);
        }
    }
}

/// One by its id; `None` where EC2 says that there is none. An answer that neither shows it nor says so proves nothing.
pub fn by_id(class: &Class, id: &str) -> Result<Option<Element>> {
    match ec2(class.describe).set(&format!("{}.1", class.parameter), id).send()? {
        Ok(answer) => match answer.all(class.set).find(|element| element.text(class.id) == id) {
            Some(element) => Ok(Some(element.clone())),
            None => Err(not_told(class.describe, id)),
        },
        Err(fault) if fault.is_missing() || fault.code.ends_with(".Malformed") => Ok(None),
        Err(fault) => Err(fault.error()),
    }
}

/// What was made for another cluster is not used, whoever names it: refused with `code` where one of these was. Whoever has the
/// owner key `own` is not another; `fields` as [`advice::refusal`] has them, for ids that there are not.
pub fn refuse_anothers(
    class: &Class,
    ids: &[String],
    own: Option<&str>,
    code: &str,
    fields: &[(&str, &str)],
) -> Result<()> {
    if ids.is_empty() {
        return Ok(());
    }
    let asked = ec2(class.describe).list(&format!("{}.", class.parameter), ids).max_age(SHARED).send()?;
    let answer = asked.map_err(|fault| advice::refusal(&fault, fields))?;
    let anothers = |element: &&Element| {
        tags::of_ec2(element).get(tags::OWNER).is_some_and(|owner| own.is_none_or(|own| owner != own))
    };
    match answer.all(class.set).find(anothers) {
        Some(element) => {
            let message = format!("{} was made for another cluster: name one of this cluster", element.text(class.id));
            Err(Error::conflict(code, message))
        }
        None => Ok(()),
    }
}

/// An answer to a question about one thing that is empty.
pub fn not_told(action: &str, id: &str) -> Error {
    Error::transient(
        "UnexpectedAnswer",
        format!("{action}: the answer neither shows {id} nor says that it is not there"),
    )
}

/// A resource of a cluster.
pub trait Resource {
    /// The part's name.
    fn part(&self) -> String;
    /// Its class.
    fn class(&self) -> &'static Class;
    /// Parts that come before it.
    fn after(&self) -> Vec<String>;
    /// Made anew when it has vanished.
    fn replaceable(&self) -> bool {
        true
    }
    /// The id that the spec knows already.
    fn given(&self) -> Option<String> {
        None
    }
    /// CAPA made it for this cluster: asked of what has no owner key, in a network that CAPA made.
    fn is_capas(&self, _ctx: &Context<AWSCluster>, _element: &Element) -> bool {
        false
    }
    /// It is gone, although it is still listed.
    fn is_gone(&self, _element: &Element) -> bool {
        false
    }
    /// Its tags.
    fn tags(&self, ctx: &Context<AWSCluster>) -> Tags;
    /// Choices that stay the same.
    fn choose(&self, _ctx: &Context<AWSCluster>) -> Result<Choice> {
        Ok(Choice::assigned_by_remote())
    }
    /// What is there, without tags.
    fn look(&self, ctx: &Context<AWSCluster>, id: &str, element: &Element) -> Result<Observed>;
    /// The request that makes it, without tags.
    fn make(&self, ctx: &Context<AWSCluster>) -> Result<Query>;
    /// Where the answer has the id.
    fn made(&self) -> &'static str;
    /// The request that does what is to be done.
    fn step(&self, _ctx: &Context<AWSCluster>, _id: &str, code: &str) -> Result<Query> {
        Err(Error::internal(format!("{} cannot do {code:?}", self.part())))
    }
    /// The request that takes it away, or the one that has to come before; or why nothing can be done yet.
    fn unmake(&self, ctx: &Context<AWSCluster>, id: &str) -> Result<std::result::Result<Query, Reason>>;
}

/// A resource as a part.
pub struct Ec2(Box<dyn Resource>);

impl Ec2 {
    /// It, boxed as parts are listed.
    pub fn part(resource: impl Resource + 'static) -> Box<dyn Part<AWSCluster>> {
        Box::new(Self(Box::new(resource)))
    }

    /// By its id where one is on record or in the spec, else by our owner key.
    pub fn find(&self, ctx: &Context<AWSCluster>) -> Result<Found> {
        let (class, part) = (self.0.class(), self.0.part());
        let known = ctx.known(&part);
        let cluster = ctx.cluster().name();
        let id = known.as_ref().and_then(|known| known.id.clone()).or_else(|| self.0.given());
        let ours = |element: &Element| tags::of_ec2(element).get(tags::OWNER) == Some(&ctx.owner_key());
        if let Some(id) = id {
            let listed = list(&cluster, class, SHARED)?.into_iter().find(|element| element.text(class.id) == id);
            let Some(element) = listed.map_or_else(|| by_id(class, &id), |element| Ok(Some(element)))? else {
                return Ok(Found::Absent(Absence::LookedUpById));
            };
            if self.0.is_gone(&element) {
                return Ok(Found::Absent(Absence::LookedUpById));
            }
            let owner = tags::of_ec2(&element).remove(tags::OWNER);
            let confirmed = known.is_some_and(|known| known.confirmed) || self.0.given().as_ref() == Some(&id);
            return Ok(match owner {
                Some(owner) if owner != ctx.owner_key() => {
                    Found::Foreign(format!("{} {id} belongs to another object", class.resource_type))
                }
                None if !confirmed => {
                    Found::Foreign(format!("{} {id} was not made for this object", class.resource_type))
                }
                _ => Found::There(element),
            });
        }
        let is_it = |element: &Element| {
            let theirs = tags::of_ec2(element);
            let by_key = ours(element) && theirs.get(tags::PART) == Some(&part);
            (by_key || !theirs.contains_key(tags::OWNER) && self.0.is_capas(ctx, element)) && !self.0.is_gone(element)
        };
        // What may have been asked for is not looked for in an answer that others share.
        let max_age = if known.is_some() { 0 } else { SHARED };
        let found = list(&cluster, class, max_age)?.into_iter().find(is_it);
        Ok(found.map_or(Found::Absent(Absence::SearchedByKey), Found::There))
    }
}

impl Part<AWSCluster> for Ec2 {
    fn name(&self) -> String {
        self.0.part()
    }

    fn after(&self) -> Vec<String> {
        self.0.after()
    }

    fn replaceable(&self) -> bool {
        self.0.replaceable()
    }

    fn identify(&self, ctx: &Context<AWSCluster>, _reserved: &[String]) -> Result<Choice> {
        self.0.choose(ctx)
    }

    fn observe(&self, ctx: &Context<AWSCluster>) -> Result<Presence> {
        let element = match advice::of_region(self.find(ctx), ctx.spec.region.as_deref())? {
            Found::Absent(how) => return Ok(Presence::Absent(how)),
            Found::Foreign(why) => return Ok(Presence::foreign("ResourceForeign", why)),
            Found::There(element) => element,
        };
        let id = element.text(self.0.class().id);
        let seen = self.0.look(ctx, id, &element)?;
        let lacking = tags::lacking(&self.0.tags(ctx), &tags::of_ec2(&element));
        if lacking.is_empty() {
            return Ok(Presence::Present(seen));
        }
        let keys: Vec<&str> = lacking.keys().map(String::as_str).collect();
        Ok(Presence::Present(seen.todo("Tag", format!("tagging {id} with {}", keys.join(", ")))))
    }

    fn create(&self, ctx: &Context<AWSCluster>) -> Result<Progress> {
        let query = tags::specify(self.0.make(ctx)?, &[self.0.class().resource_type], &self.0.tags(ctx));
        let action = query.action().to_owned();
        let answer = query.send()?.map_err(|fault| advice::refusal(&fault, crate::cluster::FIELDS))?;
        match answer.found(self.0.made()) {
            Some(id) => Ok(Progress::done(id)),
            None => {
                Err(Error::transient("UnexpectedAnswer", format!("{action}: the answer names no {}", self.0.made())))
            }
        }
    }

    fn update(&self, ctx: &Context<AWSCluster>, todo: &[Reason]) -> Result<Progress> {
        let id = ctx.id_of(&self.0.part())?;
        let code = todo.first().map_or("", |reason| reason.code.as_str());
        let query = match code {
            "Tag" => tags::list(ec2("CreateTags").set("ResourceId.1", &id), "Tag.", &self.0.tags(ctx)),
            other => self.0.step(ctx, &id, other)?,
        };
        match query.send()? {
            Ok(_) => Ok(Progress::done(id)),
            // It was done by a request whose answer was lost.
            Err(fault) if DONE.contains(&fault.code.as_str()) => Ok(Progress::done(id)),
            Err(fault) => Err(fault.error_at(crate::cluster::FIELDS)),
        }
    }

    fn delete(&self, ctx: &Context<AWSCluster>) -> Result<Progress> {
        let id = ctx.id_of(&self.0.part())?;
        let query = match self.0.unmake(ctx, &id)? {
            Ok(query) => query,
            Err(reason) => return Ok(Progress::Waiting(reason)),
        };
        match query.send()? {
            Ok(_) => Ok(Progress::done(id)),
            // It is gone, or what has to go before it is; what is still there is seen when it is looked at again.
            Err(fault) if fault.is_missing() || DONE.contains(&fault.code.as_str()) => Ok(Progress::done(id)),
            Err(fault) => Err(fault.error()),
        }
    }
}

/// Codes that say that what was asked for is so already.
const DONE: [&str; 5] = [
    "InvalidPermission.Duplicate",
    "InvalidPermission.NotFound",
    "RouteAlreadyExists",
    "Resource.AlreadyAssociated",
    "Gateway.NotAttached",
];
