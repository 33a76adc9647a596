//! What belongs to a network load balancer: for each port a target group, in which machines register themselves, and a listener.

use std::collections::BTreeMap;

use capstan_provider::{Choice, Context, Error, Observed, Part, Presence, Progress, Reason, Result, aws::Query};
use serde::{Deserialize, Serialize};

use crate::{
    SHARED, advice,
    balancer::{self, BALANCER, BALANCER_FIELDS, BalancerState, add_tags, done_or_gone, needed},
    cluster::AWSCluster,
    cluster_spec::Listener,
    ec2::not_told,
    elb,
    network::{VPC, state},
    short_name, tags,
};

/// The part's name; the API's has no suffix.
pub fn target_group(suffix: &str) -> String {
    format!("target-group{suffix}")
}

/// What machines need to know of a target group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TargetState {
    /// Its ARN.
    pub arn: String,
    /// The port of machines.
    pub port: i64,
}

/// A target group.
pub struct TargetGroup {
    /// Empty for the API, else `-` and the port.
    pub suffix: String,
    /// The port, and how machines are asked.
    pub listener: Listener,
}

impl TargetGroup {
    fn chosen(&self, ctx: &Context<AWSCluster>) -> String {
        short_name(&ctx.cluster().name(), &format!("api{}", self.suffix), &ctx.owner_key(), 32)
    }

    fn attributes(&self, ctx: &Context<AWSCluster>) -> BTreeMap<&'static str, String> {
        // A machine that reaches itself through the load balancer would be lost if its address were kept.
        let kept = balancer::spec(ctx).preserve_client_ip.to_string();
        [
            ("preserve_client_ip.enabled", kept),
            ("deregistration_delay.timeout_seconds", "60".to_owned()),
            ("deregistration_delay.connection_termination.enabled", "true".to_owned()),
        ]
        .into()
    }

    fn lacking(&self, ctx: &Context<AWSCluster>, arn: &str) -> Result<BTreeMap<&'static str, String>> {
        let answer = elb("DescribeTargetGroupAttributes").set("TargetGroupArn", arn).max_age(SHARED).ok()?;
        let path = "DescribeTargetGroupAttributesResult/Attributes/member";
        let there = tags::read(&answer, path, "Key", "Value");
        Ok(self.attributes(ctx).into_iter().filter(|(key, value)| there.get(*key) != Some(value)).collect())
    }
}

impl Part<AWSCluster> for TargetGroup {
    fn name(&self) -> String {
        target_group(&self.suffix)
    }
    fn after(&self) -> Vec<String> {
        vec![VPC.to_owned()]
    }
    fn identify(&self, ctx: &Context<AWSCluster>, _reserved: &[String]) -> Result<Choice> {
        Ok(Choice::chosen(self.chosen(ctx)))
    }
    fn observe(&self, ctx: &Context<AWSCluster>) -> Result<Presence> {
        let part = self.name();
        let known = ctx.known(&part).unwrap_or_default();
        let name = known.id.clone().unwrap_or_else(|| self.chosen(ctx));
        let query = elb("DescribeTargetGroups").set("Names.member.1", &name).max_age(balancer::age(ctx, &part));
        let answer = match query.send()? {
            Ok(answer) => answer,
            Err(fault) if fault.is_missing() => return Ok(Presence::absent_by_id()),
            Err(fault) => return Err(fault.error()),
        };
        let Some(element) = answer.all("DescribeTargetGroupsResult/TargetGroups/member").next() else {
            return Err(not_told("DescribeTargetGroups", &name));
        };
        let arn = element.text("TargetGroupArn").to_owned();
        let theirs = balancer::tags_by_arn(ctx, &arn)?;
        if !balancer::is_ours(ctx, &theirs, known.confirmed) {
            let message = format!("target group {name} is there and was not made for this cluster");
            return Ok(Presence::foreign("TargetGroupNameTaken", message));
        }
        let found = TargetState { arn: arn.clone(), port: self.listener.port };
        let lacking = self.lacking(ctx, &arn)?;
        let mut seen = Observed::new(&name, &found)?.ready(lacking.is_empty());
        if !lacking.is_empty() {
            let keys: Vec<&str> = lacking.keys().copied().collect();
            seen = seen.todo("SetAttributes", format!("setting {} of target group {name}", keys.join(", ")));
        }
        if !tags::lacking(&balancer::tags_of(ctx, &part), &theirs).is_empty() {
            seen = seen.todo("Tag", format!("tagging target group {name}"));
        }
        Ok(Presence::Present(seen))
    }
    fn create(&self, ctx: &Context<AWSCluster>) -> Result<Progress> {
        let (part, spec) = (self.name(), balancer::spec(ctx));
        let (name, port) = (ctx.id_of(&part)?, self.listener.port.to_string());
        let check = &self.listener.health_check;
        let api = self.suffix.is_empty();
        let asked = if api { &spec.health_check_protocol } else { &check.protocol };
        let http = asked.as_deref().filter(|protocol| matches!(*protocol, "HTTP" | "HTTPS"));
        let protocol = http.unwrap_or("TCP");
        let path = if api { "/readyz" } else { check.path.as_deref().unwrap_or("/") };
        let or = |given: Option<u64>, usual: u64| given.unwrap_or(usual).to_string();
        let query = elb("CreateTargetGroup")
            .set("Name", &name)
            .set("Protocol", "TCP")
            .set("Port", &port)
            .set("VpcId", ctx.id_of(VPC)?)
            .set("TargetType", "instance")
            .set("HealthCheckProtocol", protocol)
            .set("HealthCheckPort", check.port.as_ref().unwrap_or(&port))
            .set_some("HealthCheckPath", http.map(|_| path))
            .set("HealthCheckIntervalSeconds", or(check.interval_seconds, 5))
            .set("HealthCheckTimeoutSeconds", or(check.timeout_seconds, 4))
            .set("HealthyThresholdCount", or(check.threshold_count, 2))
            .set("UnhealthyThresholdCount", or(check.unhealthy_threshold_count, 6));
        match tags::list(query, "Tags.member.", &balancer::tags_of(ctx, &part)).send()? {
            Ok(_) => Ok(Progress::done(name)),
            Err(fault) => Err(advice::refusal(&fault, BALANCER_FIELDS)),
        }
    }
    fn update(&self, ctx: &Context<AWSCluster>, todo: &[Reason]) -> Result<Progress> {
        let part = self.name();
        let found: TargetState = needed(ctx, &part)?;
        let query = match todo.first().map_or("", |reason| reason.code.as_str()) {
            "Tag" => add_tags(&found.arn, &balancer::tags_of(ctx, &part)),
            _ => set(elb("ModifyTargetGroupAttributes").set("TargetGroupArn", &found.arn), &self.attributes(ctx)),
        };
        query.ok()?;
        Ok(Progress::done(ctx.id_of(&part)?))
    }
    fn delete(&self, ctx: &Context<AWSCluster>) -> Result<Progress> {
        let part = self.name();
        let found: TargetState = needed(ctx, &part)?;
        done_or_gone(elb("DeleteTargetGroup").set("TargetGroupArn", &found.arn).send()?, ctx.id_of(&part)?)
    }
}

fn set(mut query: Query, attributes: &BTreeMap<&str, String>) -> Query {
    for (index, (key, value)) in attributes.iter().enumerate() {
        let at = format!("Attributes.member.{}", index + 1);
        query = query.set(&format!("{at}.Key"), key).set(&format!("{at}.Value"), value);
    }
    query
}

/// A listener.
pub struct ListenerPart {
    /// Empty for the API, else `-` and the port.
    pub suffix: String,
    /// The port.
    pub port: i64,
}

impl Part<AWSCluster> for ListenerPart {
    fn name(&self) -> String {
        format!("listener{}", self.suffix)
    }
    fn after(&self) -> Vec<String> {
        vec![BALANCER.to_owned(), target_group(&self.suffix)]
    }
    fn identify(&self, _ctx: &Context<AWSCluster>, _reserved: &[String]) -> Result<Choice> {
        Ok(Choice::assigned_by_remote())
    }
    fn observe(&self, ctx: &Context<AWSCluster>) -> Result<Presence> {
        let known = ctx.known(&self.name()).unwrap_or_default();
        let absent = || if known.id.is_some() { Presence::absent_by_id() } else { Presence::absent_by_key() };
        // The load balancer is ours, and has one listener for each port.
        let Some(balancer) = state::<BalancerState>(ctx, BALANCER)? else { return Ok(absent()) };
        let query = elb("DescribeListeners").set("LoadBalancerArn", &balancer.arn);
        let query = query.max_age(balancer::age(ctx, &self.name()));
        let answer = match query.send()? {
            Ok(answer) => answer,
            Err(fault) if fault.is_missing() => return Ok(absent()),
            Err(fault) => return Err(fault.error()),
        };
        let port = self.port.to_string();
        let found = answer.all("DescribeListenersResult/Listeners/member").find(|listener| match &known.id {
            Some(id) => listener.text("ListenerArn") == id,
            None => listener.text("Port") == port,
        });
        let Some(listener) = found else {
            return match &known.id {
                // A list that lacks it may be an old one: it is asked for itself.
                Some(arn) => match elb("DescribeListeners").set("ListenerArns.member.1", arn).send()? {
                    Err(fault) if fault.is_missing() => Ok(absent()),
                    Err(fault) => Err(fault.error()),
                    Ok(_) => Err(not_told("DescribeListeners", arn)),
                },
                None => Ok(absent()),
            };
        };
        let arn = listener.text("ListenerArn");
        let seen = Observed::new(arn, &serde_json::json!({"port": self.port}))?;
        let target =
            state::<TargetState>(ctx, &target_group(&self.suffix))?.map(|target| target.arn).unwrap_or_default();
        if listener.text("DefaultActions/member/TargetGroupArn") != target {
            return Ok(Presence::Present(seen.todo("Forward", format!("leading port {port} to {target}"))));
        }
        Ok(Presence::Present(seen.ready(true)))
    }
    fn create(&self, ctx: &Context<AWSCluster>) -> Result<Progress> {
        let balancer: BalancerState = needed(ctx, BALANCER)?;
        let query = elb("CreateListener").set("LoadBalancerArn", balancer.arn).set("Protocol", "TCP");
        let query = self.forward(ctx, query.set("Port", self.port.to_string()))?;
        let query = tags::list(query, "Tags.member.", &balancer::tags_of(ctx, &self.name()));
        let answer = query.ok()?;
        match answer.found("CreateListenerResult/Listeners/member/ListenerArn") {
            Some(arn) => Ok(Progress::done(arn)),
            None => Err(Error::transient("UnexpectedAnswer", "CreateListener: the answer names no listener")),
        }
    }
    fn update(&self, ctx: &Context<AWSCluster>, _todo: &[Reason]) -> Result<Progress> {
        let arn = ctx.id_of(&self.name())?;
        self.forward(ctx, elb("ModifyListener").set("ListenerArn", &arn))?.ok()?;
        Ok(Progress::done(arn))
    }
    fn delete(&self, ctx: &Context<AWSCluster>) -> Result<Progress> {
        let arn = ctx.id_of(&self.name())?;
        done_or_gone(elb("DeleteListener").set("ListenerArn", &arn).send()?, arn)
    }
}

impl ListenerPart {
    fn forward(&self, ctx: &Context<AWSCluster>, query: Query) -> Result<Query> {
        let target: TargetState = needed(ctx, &target_group(&self.suffix))?;
        let action = "DefaultActions.member.1";
        Ok(query.set(&format!("{action}.Type"), "forward").set(&format!("{action}.TargetGroupArn"), target.arn))
    }
}
