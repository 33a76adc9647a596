//! A control-plane machine in the load balancer: registered once its instance runs, taken out as soon as its Machine is deleted, and
//! its instance is not terminated before the load balancer has let go of it.

use capstan_provider::{Choice, Condition, Context, Error, Observed, Part, Presence, Progress, Result};
use serde::{Deserialize, Serialize};

use crate::{
    SHARED,
    balancer::{self, BALANCER, BalancerState},
    classic_elb,
    cluster::{AWSCluster, Balancing},
    elb,
    instance::INSTANCE,
    listener::{TargetState, target_group},
    machine::AWSMachine,
};

/// How the parts' names begin.
const PART: &str = "registration";
/// How old a shared answer may be while something is awaited (ms).
const AWAITED: u64 = 2_000;

/// Where a machine is registered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// The ARN of a target group, or the name of a classic load balancer.
    pub at: String,
    /// It is a classic load balancer.
    #[serde(default, skip_serializing_if = "is_false")]
    pub classic: bool,
    /// The port of the machine.
    pub port: i64,
}

fn is_false(value: &bool) -> bool {
    !value
}

/// The registration of one port.
struct Registration {
    /// Empty for the API, else `-` and the port.
    suffix: String,
}

/// The parts of a control-plane machine.
pub fn parts(ctx: &Context<AWSMachine>) -> Result<Vec<Box<dyn Part<AWSMachine>>>> {
    let cluster: AWSCluster = ctx.cluster().infrastructure_spec()?.unwrap_or_default();
    let mut suffixes = Vec::new();
    match cluster.balancing() {
        Balancing::Disabled => {}
        Balancing::Classic => suffixes.push(String::new()),
        Balancing::Network => {
            let balancer = cluster.control_plane_load_balancer.unwrap_or_default();
            suffixes.push(String::new());
            suffixes.extend(balancer.additional_listeners.iter().map(|listener| format!("-{}", listener.port)));
        }
    }
    Ok(suffixes.into_iter().map(|suffix| -> Box<dyn Part<AWSMachine>> { Box::new(Registration { suffix }) }).collect())
}

/// A part on record, whatever the cluster says now.
pub fn by_name(name: &str) -> Option<Box<dyn Part<AWSMachine>>> {
    let suffix = name.strip_prefix(PART)?.to_owned();
    Some(Box::new(Registration { suffix }))
}

/// Where a port is registered, as the cluster tells it now.
fn target(ctx: &Context<AWSMachine>, suffix: &str) -> Result<Option<Target>> {
    let view = ctx.cluster();
    let cluster: AWSCluster = view.infrastructure_spec()?.unwrap_or_default();
    let port = match suffix.strip_prefix('-') {
        Some(port) => port.parse().map_err(|_| Error::internal("a registration has no port"))?,
        None => cluster.api_port(),
    };
    let Some(balancer) = view.infrastructure_state::<BalancerState>(BALANCER)? else { return Ok(None) };
    if balancer.classic {
        return Ok(Some(Target { at: balancer.name, classic: true, port }));
    }
    if let Some((_, arn)) = balancer.targets.iter().find(|(listener, _)| *listener == port) {
        return Ok(Some(Target { at: arn.clone(), classic: false, port }));
    }
    let made: Option<TargetState> = view.infrastructure_state(&target_group(suffix))?;
    Ok(made.map(|made| Target { at: made.arn, classic: false, port: made.port }))
}

/// What a load balancer says of an instance: nothing where it is not registered.
fn health(target: &Target, instance: &str, max_age: u64) -> Result<Option<String>> {
    if target.classic {
        let found = balancer::by_name(true, &target.at, max_age)?;
        let there = found.is_some_and(|found| found.all("Instances/member").any(|i| i.text("InstanceId") == instance));
        return Ok(there.then(|| "registered".to_owned()));
    }
    let query = elb("DescribeTargetHealth").set("TargetGroupArn", &target.at);
    let query = if max_age > 0 { query.max_age(max_age) } else { query };
    let answer = match query.send()? {
        Ok(answer) => answer,
        Err(fault) if fault.is_missing() => return Ok(None),
        Err(fault) => return Err(fault.error()),
    };
    let port = target.port.to_string();
    let found = answer
        .all("DescribeTargetHealthResult/TargetHealthDescriptions/member")
        .find(|described| described.text("Target/Id") == instance && described.text("Target/Port") == port)
        .filter(|described| described.text("TargetHealth/Reason") != "Target.NotRegistered");
    Ok(found.map(|described| described.text("TargetHealth/State").to_owned()))
}

/// The load balancer that has not let go of an instance yet.
pub fn still_registered(ctx: &Context<AWSMachine>, instance: &str) -> Result<Option<String>> {
    let cluster: AWSCluster = ctx.cluster().infrastructure_spec()?.unwrap_or_default();
    let further = cluster.control_plane_load_balancer.unwrap_or_default().additional_listeners;
    let suffixes = std::iter::once(String::new()).chain(further.iter().map(|listener| format!("-{}", listener.port)));
    for suffix in suffixes {
        let part = format!("{PART}{suffix}");
        let Some(known) = ctx.known(&part) else { continue };
        let Some(target) = known.frozen::<Target>()? else { continue };
        if health(&target, instance, 0)?.is_some() {
            return Ok(Some(target.at));
        }
    }
    Ok(None)
}

impl Registration {
    fn part(&self) -> String {
        format!("{PART}{}", self.suffix)
    }

    fn recorded(&self, ctx: &Context<AWSMachine>) -> Result<Option<Target>> {
        Ok(ctx.known(&self.part()).map(|known| known.frozen()).transpose()?.flatten())
    }
}

impl Part<AWSMachine> for Registration {
    fn name(&self) -> String {
        self.part()
    }
    fn after(&self) -> Vec<String> {
        vec![INSTANCE.to_owned()]
    }
    fn identify(&self, ctx: &Context<AWSMachine>, _reserved: &[String]) -> Result<Choice> {
        let target = target(ctx, &self.suffix)?.ok_or_else(|| {
            Error::transient(
                "LoadBalancerUnknown",
                "the cluster's load balancer is not there yet: nothing to register with",
            )
        })?;
        Choice::chosen(format!("{}:{} of {}", ctx.id_of(INSTANCE)?, target.port, target.at)).freeze(&target)
    }
    fn observe(&self, ctx: &Context<AWSMachine>) -> Result<Presence> {
        let known = ctx.known(&self.part()).unwrap_or_default();
        let Some(target) = self.recorded(ctx)? else { return Ok(Presence::absent_by_key()) };
        let instance = ctx.id_of(INSTANCE)?;
        let settled = known.confirmed && !crate::machine::going(ctx);
        let max_age = if settled {
            SHARED
        } else if known.confirmed {
            AWAITED
        } else {
            0
        };
        let Some(state) = health(&target, &instance, max_age)? else { return Ok(Presence::absent_by_id()) };
        let id = known.id.unwrap_or_default();
        let seen = Observed::new(id, &serde_json::json!({"health": state}))?;
        Ok(Presence::Present(match state.as_str() {
            "draining" => seen.operation("draining", 3_000),
            _ => seen.ready(true),
        }))
    }
    fn create(&self, ctx: &Context<AWSMachine>) -> Result<Progress> {
        self.change(ctx, true)
    }
    fn delete(&self, ctx: &Context<AWSMachine>) -> Result<Progress> {
        self.change(ctx, false)
    }
}

impl Registration {
    fn change(&self, ctx: &Context<AWSMachine>, register: bool) -> Result<Progress> {
        let target = self.recorded(ctx)?.ok_or_else(|| Error::internal("no target was chosen for the registration"))?;
        let (id, instance) = (ctx.id_of(&self.part())?, ctx.id_of(INSTANCE)?);
        let query = if target.classic {
            let verb =
                if register { "RegisterInstancesWithLoadBalancer" } else { "DeregisterInstancesFromLoadBalancer" };
            classic_elb(verb).set("LoadBalancerName", &target.at).set("Instances.member.1.InstanceId", &instance)
        } else {
            elb(if register { "RegisterTargets" } else { "DeregisterTargets" })
                .set("TargetGroupArn", &target.at)
                .set("Targets.member.1.Id", &instance)
                .set("Targets.member.1.Port", target.port.to_string())
        };
        match query.send()? {
            Ok(_) => Ok(Progress::done(id)),
            Err(fault) if !register && (fault.is_missing() || fault.code.starts_with("Invalid")) => {
                Ok(Progress::done(id))
            }
            // The instance is not running any more, or not yet.
            Err(fault) if fault.is("InvalidTarget") || fault.is("InvalidInstance") => {
                Err(Error::transient("InvalidTarget", fault.message))
            }
            Err(fault) => Err(fault.error()),
        }
    }
}

/// CAPA's condition of a control-plane machine.
pub fn condition(ctx: &Context<AWSMachine>) -> Result<Option<Condition>> {
    let parts = parts(ctx)?;
    if parts.is_empty() || !ctx.machine().is_some_and(|machine| machine.control_plane()) {
        return Ok(None);
    }
    let missing = parts.iter().any(|part| !ctx.known(&part.name()).is_some_and(|known| known.confirmed));
    Ok(Some(if missing {
        Condition::new("ELBAttached", Some(false), "ELBNotAttached", "the load balancer does not have it yet")
    } else {
        Condition::new("ELBAttached", Some(true), "ELBAttached", "")
    }))
}
