//! Security groups: of the API's load balancer, of the load balancers that the workload makes, of control-plane machines and of all
//! machines; made, or the user's own.

use capstan_provider::{
    Choice, Context, Error, Observed, Part, Presence, Progress, Reason, Result, aws::Query, xml::Element,
};
use serde::{Deserialize, Serialize};

use crate::{
    SHARED,
    cluster::{AWSCluster, Balancing},
    ec2::{self, Class, Resource},
    layout::{self, Network},
    network::{self, NatGateway, State, VPC},
    rules::{self, Rule, Rules, Source},
    spec::Tags,
    tags,
};

/// Of the load balancer of the API.
pub const API_BALANCER: &str = "apiserver-lb";
/// Where the cloud controller manager puts the rules of its load balancers.
pub const BALANCERS: &str = "lb";
/// Of control-plane machines.
pub const CONTROL_PLANE: &str = "controlplane";
/// Of all machines.
pub const NODE: &str = "node";

/// The roles for which there is a group.
pub fn roles(spec: &AWSCluster) -> Vec<&'static str> {
    let mut roles = vec![BALANCERS, CONTROL_PLANE, NODE];
    if spec.balancing() != Balancing::Disabled {
        roles.insert(0, API_BALANCER);
    }
    roles
}

/// The part's name.
pub fn name(role: &str) -> String {
    format!("security-group-{role}")
}

/// The id of the group of a role, once it is there and ours to use.
pub fn id(ctx: &Context<AWSCluster>, role: &str) -> Option<String> {
    if let Some(given) = ctx.spec.network.security_group_overrides.get(role) {
        let seen = network::state::<GroupState>(ctx, &name(role)).ok().flatten();
        return seen.map(|seen| seen.id).filter(|id| id == given);
    }
    ctx.known(&name(role)).filter(|known| known.confirmed)?.id
}

/// What is known of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GroupState {
    /// Its id.
    pub id: String,
    /// How many rules it has.
    pub rules: usize,
}

/// A group that is made for the cluster.
pub struct MadeGroup(pub &'static str);

impl MadeGroup {
    fn group_name(&self, ctx: &Context<AWSCluster>) -> String {
        format!("{}-{}", ctx.cluster().name(), self.0)
    }

    fn there(&self, ctx: &Context<AWSCluster>, id: &str) -> Result<(Option<Element>, Vec<Element>)> {
        let mut all = ec2::list(&ctx.cluster().name(), &ec2::SECURITY_GROUPS, SHARED)?;
        let own = all.iter().position(|group| group.text("groupId") == id).map(|place| all.remove(place));
        let own = match own {
            Some(own) => Some(own),
            None => ec2::by_id(&ec2::SECURITY_GROUPS, id)?,
        };
        Ok((own, all))
    }

    /// Rules that are wanted and not there, and those that are there and not wanted.
    fn difference(&self, ctx: &Context<AWSCluster>, group: &Element) -> Result<Option<(Rules, Rules)>> {
        let there = rules::read(group);
        let Some(wanted) = rules::wanted(ctx, self.0)? else { return Ok(None) };
        // The cloud controller manager keeps the rules of its load balancers in this one.
        let extra = match self.0 {
            BALANCERS => Rules::new(),
            _ => there
                .iter()
                .filter(|(rule, _)| !wanted.contains_key(rule))
                .map(|(r, d)| (r.clone(), d.clone()))
                .collect(),
        };
        let missing = wanted.into_iter().filter(|(rule, _)| !there.contains_key(rule)).collect();
        Ok(Some((missing, extra)))
    }
}

impl Resource for MadeGroup {
    fn part(&self) -> String {
        name(self.0)
    }
    fn class(&self) -> &'static Class {
        &ec2::SECURITY_GROUPS
    }
    fn after(&self) -> Vec<String> {
        vec![VPC.to_owned()]
    }
    fn is_capas(&self, ctx: &Context<AWSCluster>, element: &Element) -> bool {
        let capas = ctx.spec.network.vpc.id().is_some_and(|vpc| vpc == element.text("vpcId"));
        capas && element.text("groupName") == self.group_name(ctx)
    }
    fn tags(&self, ctx: &Context<AWSCluster>) -> Tags {
        let mut tags = tags::of(ctx, &self.part(), self.group_name(ctx), self.0, &[&ctx.spec.additional_tags]);
        if self.0 == BALANCERS {
            tags.insert(tags::cloud_tag(&ctx.cluster().name()), "owned".to_owned());
        }
        tags
    }
    fn look(&self, ctx: &Context<AWSCluster>, id: &str, element: &Element) -> Result<Observed> {
        let state = GroupState { id: id.to_owned(), rules: rules::read(element).len() };
        let seen = Observed::new(id, &state)?;
        let Some((missing, extra)) = self.difference(ctx, element)? else { return Ok(seen) };
        let text = |rules: &Rules| rules.keys().map(Rule::text).collect::<Vec<_>>().join(", ");
        let ready = missing.is_empty();
        let mut seen = seen.ready(ready);
        if !ready {
            seen = seen.todo("AddRules", format!("letting in to {id}: {}", text(&missing)));
        }
        if !extra.is_empty() {
            seen = seen.todo("RemoveRules", format!("no longer letting in to {id}: {}", text(&extra)));
        }
        Ok(seen)
    }
    fn make(&self, ctx: &Context<AWSCluster>) -> Result<Query> {
        let cluster = ctx.cluster().name();
        Ok(crate::ec2("CreateSecurityGroup")
            .set("VpcId", ctx.id_of(VPC)?)
            .set("GroupName", self.group_name(ctx))
            .set("GroupDescription", format!("Kubernetes cluster {cluster}: {}", self.0)))
    }
    fn made(&self) -> &'static str {
        "groupId"
    }
    fn step(&self, ctx: &Context<AWSCluster>, id: &str, code: &str) -> Result<Query> {
        let (own, _) = self.there(ctx, id)?;
        let difference = own.map(|group| self.difference(ctx, &group)).transpose()?.flatten();
        let Some((missing, extra)) = difference else {
            return Err(Error::transient("GroupChanged", format!("{id} has changed meanwhile: it is looked at again")));
        };
        Ok(if code == "AddRules" {
            rules::write(crate::ec2("AuthorizeSecurityGroupIngress").set("GroupId", id), &missing)
        } else {
            rules::write(crate::ec2("RevokeSecurityGroupIngress").set("GroupId", id), &extra)
        })
    }
    /// Groups name each other in their rules: first the rules of all go, then the groups.
    fn unmake(&self, ctx: &Context<AWSCluster>, id: &str) -> Result<std::result::Result<Query, Reason>> {
        let (own, others) = self.there(ctx, id)?;
        let own_rules = own.as_ref().map(rules::read).unwrap_or_default();
        if !own_rules.is_empty() {
            return Ok(Ok(rules::write(crate::ec2("RevokeSecurityGroupIngress").set("GroupId", id), &own_rules)));
        }
        let named = Source::Group(id.to_owned());
        let naming = others.iter().find(|group| {
            let ours = tags::of_ec2(group).get(tags::OWNER) == Some(&ctx.owner_key());
            ours && rules::read(group).keys().any(|rule| rule.source == named)
        });
        if let Some(group) = naming {
            let message = format!("{} still lets in what is in {id}", group.text("groupId"));
            return Ok(Err(Reason::new("GroupInUse", message)));
        }
        Ok(Ok(crate::ec2("DeleteSecurityGroup").set("GroupId", id)))
    }
}

/// A group of the user's.
pub struct GivenGroup {
    /// Its role.
    pub role: String,
    /// Its id.
    pub id: String,
}

impl Part<AWSCluster> for GivenGroup {
    fn name(&self) -> String {
        name(&self.role)
    }
    fn borrowed(&self) -> bool {
        true
    }
    fn identify(&self, _ctx: &Context<AWSCluster>, _reserved: &[String]) -> Result<Choice> {
        Ok(Choice::chosen(&self.id))
    }
    fn observe(&self, ctx: &Context<AWSCluster>) -> Result<Presence> {
        Ok(match network::find_shared(&ec2::SECURITY_GROUPS, &self.id)? {
            None => {
                let message = format!(
                    "the region has no security group {}, which /spec/network/securityGroupOverrides/{} names",
                    self.id, self.role
                );
                Presence::foreign("SecurityGroupNotFound", message)
            }
            Some(element) if tags::are_anothers(&tags::of_ec2(&element), &ctx.owner_key()) => {
                let message = format!("{} was made for another cluster: name a group that is nobody's", self.id);
                Presence::foreign("SecurityGroupForeign", message)
            }
            Some(_) => {
                let state = GroupState { id: self.id.clone(), rules: 0 };
                Presence::Present(Observed::new(&self.id, &state)?.ready(true))
            }
        })
    }
    fn create(&self, _ctx: &Context<AWSCluster>) -> Result<Progress> {
        Err(Error::internal("a security group of the user's is not created"))
    }
    fn delete(&self, _ctx: &Context<AWSCluster>) -> Result<Progress> {
        Err(Error::internal("a security group of the user's is not deleted"))
    }
}

/// The addresses of the NAT gateways, for the status.
pub fn nat_addresses(ctx: &Context<AWSCluster>) -> Result<Vec<String>> {
    let Network::Managed(layout) = layout::network(ctx)? else { return Ok(Vec::new()) };
    let mut all = Vec::new();
    for zone in layout.public_zones() {
        all.extend(network::state::<State>(ctx, &NatGateway::name(zone))?.and_then(|state| state.address));
    }
    Ok(all)
}
