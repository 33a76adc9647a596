//! The instance: asked for once for an attempt, with everything that was chosen frozen before, and looked at with all others of its
//! cluster in one request.

use std::collections::BTreeSet;

use capstan_provider::{
    Absence, Choice, Context, Error, Known, Observed, Part, Presence, Progress, Reason, Result, xml::Element,
};
use serde::{Deserialize, Serialize};

use crate::{
    SHARED, advice,
    bootstrap::Form,
    cluster::AWSCluster,
    ec2::not_told,
    launch,
    machine::{AWSMachine, bound, going},
    placement, registration,
    spec::Tags,
    tags,
};

/// The part's name.
pub const INSTANCE: &str = "instance";
/// Which attempt an instance was launched by.
const ATTEMPT: &str = "capstan.dev/attempt";
/// How old a shared answer may be while something is awaited (ms).
const AWAITED: u64 = 2_000;
/// Instances in one answer.
const PAGE: &str = "100";

/// What was chosen for an instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frozen {
    /// Its subnet.
    pub subnet: String,
    /// Its zone.
    pub zone: String,
    /// Its image.
    pub image: String,
    /// The device that its image boots from.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub root_device: String,
    /// Its security groups.
    pub groups: Vec<String>,
    /// The form of its user data.
    pub form: Form,
    /// Its tags.
    pub tags: Tags,
}

/// What others need to know of an instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct InstanceState {
    /// Its id.
    pub id: String,
    /// `pending`, `running`, `stopping`, `stopped`, `shutting-down`.
    pub state: String,
    /// Its zone.
    pub zone: String,
    /// Addresses and names.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub private_ip: String,
    /// Within the VPC.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub private_dns: String,
    /// From everywhere.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub public_ip: String,
    /// From everywhere.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub public_dns: String,
    /// It may be taken away.
    #[serde(skip_serializing_if = "is_false")]
    pub spot: bool,
}

fn is_false(value: &bool) -> bool {
    !value
}

/// What was chosen, once it is.
pub fn frozen(ctx: &Context<AWSMachine>) -> Result<Option<Frozen>> {
    Ok(ctx.known(INSTANCE).map(|known| known.frozen()).transpose()?.flatten())
}

/// Its tags: the machine's own win over the cluster's.
pub fn wanted_tags(ctx: &Context<AWSMachine>) -> Result<Tags> {
    let cluster: AWSCluster = ctx.cluster().infrastructure_spec()?.unwrap_or_default();
    let control_plane = ctx.machine().is_some_and(|machine| machine.control_plane());
    let role = if control_plane { "control-plane" } else { "node" };
    let given = [&cluster.additional_tags, &ctx.spec.additional_tags];
    let mut tags = tags::of(ctx, INSTANCE, ctx.name(), role, &given);
    tags.insert(tags::cloud_tag(&ctx.cluster().name()), "owned".to_owned());
    Ok(tags)
}

/// All instances of a cluster, in one answer or a few.
fn listed(cluster: &str, max_age: u64) -> Result<Vec<Element>> {
    let filter = [(format!("tag:{}", tags::cluster_tag(cluster)), "owned")];
    let mut found = Vec::new();
    let mut token: Option<String> = None;
    loop {
        let query = crate::ec2("DescribeInstances").filters(&filter).set("MaxResults", PAGE);
        let query = query.set_some("NextToken", token.as_ref());
        let answer = if max_age > 0 { query.max_age(max_age) } else { query }.ok()?;
        found.extend(instances(&answer));
        token = answer.found("nextToken");
        if token.is_none() {
            return Ok(found);
        }
    }
}

fn instances(answer: &Element) -> Vec<Element> {
    let reservations = answer.all("reservationSet/item");
    reservations.flat_map(|reservation| reservation.all("instancesSet/item")).cloned().collect()
}

fn by_id(id: &str) -> Result<Option<Element>> {
    match crate::ec2("DescribeInstances").set("InstanceId.1", id).send()? {
        Ok(answer) => match instances(&answer).into_iter().find(|instance| instance.text("instanceId") == id) {
            Some(instance) => Ok(Some(instance)),
            None => Err(not_told("DescribeInstances", id)),
        },
        Err(fault) if fault.is_missing() || fault.is("InvalidInstanceID.Malformed") => Ok(None),
        Err(fault) => Err(fault.error()),
    }
}

fn state_of(instance: &Element) -> &str {
    instance.text("instanceState/name")
}

/// Why AWS stopped it.
fn reason_of(instance: &Element) -> Reason {
    let said = [instance.text("stateReason/message"), instance.text("reason")];
    let said = said.into_iter().find(|text| !text.is_empty()).unwrap_or("AWS does not say why");
    let message = format!("{} was terminated: {said}", instance.text("instanceId"));
    Reason::new("InstanceTerminated", message)
}

/// The instance.
pub struct Instance {
    /// Parts that come before it.
    pub after: Vec<String>,
}

impl Instance {
    /// By its id where one is on record or in the spec, else by our owner key.
    fn find(ctx: &Context<AWSMachine>, known: &Option<Known>) -> Result<(Absence, Option<Element>)> {
        let cluster = ctx.cluster().name();
        let settled = bound(ctx) && !going(ctx);
        let id = known.as_ref().and_then(|known| known.id.clone()).or_else(|| ctx.spec.known_instance());
        if let Some(id) = id {
            let max_age = if settled { SHARED } else { AWAITED };
            let found = listed(&cluster, max_age)?.into_iter().find(|instance| instance.text("instanceId") == id);
            let found = found.map_or_else(|| by_id(&id), |instance| Ok(Some(instance)))?;
            return Ok((Absence::LookedUpById, found));
        }
        let attempt = known.as_ref().map_or(1, |known| known.attempt.max(1)).to_string();
        // What may have been asked for is not looked for in an answer that others share.
        let max_age = if known.is_some() { 0 } else { AWAITED };
        let found = listed(&cluster, max_age)?.into_iter().find(|instance| {
            let theirs = tags::of_ec2(instance);
            let ours = theirs.get(tags::OWNER) == Some(&ctx.owner_key());
            ours && (theirs.get(ATTEMPT) == Some(&attempt)
                || !matches!(state_of(instance), "terminated" | "shutting-down"))
        });
        Ok((Absence::SearchedByKey, found))
    }
}

impl Part<AWSMachine> for Instance {
    fn name(&self) -> String {
        INSTANCE.to_owned()
    }

    fn after(&self) -> Vec<String> {
        self.after.clone()
    }

    fn replaceable(&self) -> bool {
        false
    }

    fn identify(&self, ctx: &Context<AWSMachine>, _reserved: &[String]) -> Result<Choice> {
        if let Some(id) = ctx.spec.known_instance() {
            let there = by_id(&id)?.filter(|instance| state_of(instance) != "terminated");
            return Err(match there {
                Some(_) => {
                    let message = format!("{id}, which providerID names, was not made for this machine");
                    Error::conflict("InstanceForeign", message)
                }
                None => Error::conflict("InstanceTerminated", format!("{id}, which providerID names, is not there")),
            });
        }
        Choice::assigned_by_remote().freeze(&placement::choose(ctx)?)
    }

    fn observe(&self, ctx: &Context<AWSMachine>) -> Result<Presence> {
        let known = ctx.known(INSTANCE);
        let (how, found) = Self::find(ctx, &known)?;
        let Some(instance) = found else { return Ok(Presence::Absent(how)) };
        let confirmed = known.as_ref().is_some_and(|known| known.confirmed);
        let (id, state) = (instance.text("instanceId"), state_of(&instance));
        let theirs = tags::of_ec2(&instance);
        let in_spec = ctx.spec.known_instance().as_deref() == Some(id);
        match theirs.get(tags::OWNER) {
            Some(owner) if *owner != ctx.owner_key() => {
                return Ok(Presence::foreign("InstanceForeign", format!("{id} belongs to another object")));
            }
            None if state != "terminated" && !confirmed => {
                let capas = theirs.get(&tags::cluster_tag(&ctx.cluster().name())).is_some_and(|value| value == "owned");
                if !(in_spec && capas) {
                    return Ok(Presence::foreign("InstanceForeign", format!("{id} was not made for this machine")));
                }
            }
            _ => {}
        }
        if state == "terminated" {
            return Ok(if confirmed || in_spec {
                Presence::Absent(how)
            } else {
                Presence::Failed(how, reason_of(&instance))
            });
        }
        let found = InstanceState {
            id: id.to_owned(),
            state: state.to_owned(),
            zone: instance.text("placement/availabilityZone").to_owned(),
            private_ip: instance.text("privateIpAddress").to_owned(),
            private_dns: instance.text("privateDnsName").to_owned(),
            public_ip: instance.text("ipAddress").to_owned(),
            public_dns: instance.text("dnsName").to_owned(),
            spot: instance.text("instanceLifecycle") == "spot",
        };
        let mut seen = Observed::new(id, &found)?.ready(state == "running");
        if matches!(state, "pending" | "shutting-down" | "stopping") {
            return Ok(Presence::Present(seen.operation(state, 3_000)));
        }
        if !going(ctx) {
            if !tags::lacking(&wanted_tags(ctx)?, &theirs).is_empty() {
                seen = seen.todo("Tag", format!("tagging {id}"));
            }
            if let Some(groups) = changed_groups(ctx, &instance)? {
                seen = seen.todo("SetSecurityGroups", format!("giving {id} the groups {}", groups.join(", ")));
            }
        }
        Ok(Presence::Present(seen))
    }

    fn create(&self, ctx: &Context<AWSMachine>) -> Result<Progress> {
        let frozen = frozen(ctx)?.ok_or_else(|| Error::internal("nothing was chosen for the instance"))?;
        let known = ctx.known(INSTANCE).unwrap_or_default();
        let mut tags = frozen.tags.clone();
        tags.insert(ATTEMPT.to_owned(), known.attempt.max(1).to_string());
        let query = launch::query(ctx, &frozen)?.set("ClientToken", &known.idempotency_key);
        let query = tags::specify(query, &["instance", "volume", "network-interface"], &tags);
        match query.send()? {
            Ok(answer) => match answer.found("instancesSet/item/instanceId") {
                Some(id) => Ok(Progress::done(id)),
                None => Err(Error::transient("UnexpectedAnswer", "RunInstances: the answer names no instance")),
            },
            Err(fault) => Err(advice::refusal(&fault, launch::FIELDS)),
        }
    }

    fn update(&self, ctx: &Context<AWSMachine>, todo: &[Reason]) -> Result<Progress> {
        let id = ctx.id_of(INSTANCE)?;
        let query = match todo.first().map_or("", |reason| reason.code.as_str()) {
            "Tag" => tags::list(crate::ec2("CreateTags").set("ResourceId.1", &id), "Tag.", &wanted_tags(ctx)?),
            _ => {
                let groups = by_id(&id)?.map(|instance| changed_groups(ctx, &instance)).transpose()?.flatten();
                let Some(groups) = groups else { return Ok(Progress::done(id)) };
                placement::no_group_of_anothers(ctx, &groups)?;
                crate::ec2("ModifyInstanceAttribute").set("InstanceId", &id).list("GroupId.", groups)
            }
        };
        query.send()?.map_err(|fault| advice::refusal(&fault, launch::FIELDS))?;
        Ok(Progress::done(id))
    }

    /// The load balancer lets go of it first.
    fn delete(&self, ctx: &Context<AWSMachine>) -> Result<Progress> {
        let id = ctx.id_of(INSTANCE)?;
        if let Some(where_) = registration::still_registered(ctx, &id)? {
            return Ok(Progress::waiting(
                "Deregistering",
                format!("{id} is terminated when {where_} has let go of it"),
            ));
        }
        match crate::ec2("TerminateInstances").set("InstanceId.1", &id).send()? {
            Ok(_) => Ok(Progress::done(id)),
            Err(fault) if fault.is_missing() => Ok(Progress::done(id)),
            Err(fault) => Err(fault.error()),
        }
    }
}

/// The groups that it is to have, where the spec names others by id than it has.
fn changed_groups(ctx: &Context<AWSMachine>, instance: &Element) -> Result<Option<Vec<String>>> {
    if frozen(ctx)?.is_none() {
        return Ok(None);
    }
    let given = &ctx.spec.additional_security_groups;
    if given.iter().any(|group| group.id.is_none()) {
        return Ok(None);
    }
    let mut wanted = placement::core_groups(ctx)?;
    if wanted.is_empty() {
        return Ok(None);
    }
    for id in given.iter().filter_map(|group| group.id.clone()) {
        if !wanted.contains(&id) {
            wanted.push(id);
        }
    }
    let there: BTreeSet<&str> = instance.all("groupSet/item").map(|group| group.text("groupId")).collect();
    let same = wanted.iter().map(String::as_str).collect::<BTreeSet<_>>() == there;
    Ok((!same && !there.is_empty()).then_some(wanted))
}
