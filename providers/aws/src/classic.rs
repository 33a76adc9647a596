//! A classic load balancer before the API. Its listeners are made with it and machines register with it itself.

use capstan_provider::{Choice, Context, Observed, Part, Presence, Progress, Reason, Result, xml::Element};

use crate::{
    SHARED,
    balancer::{self, BALANCER, BALANCER_FIELDS, done_or_gone, read_state},
    classic_elb,
    cluster::AWSCluster,
    network::VPC,
    spec::Tags,
    tags,
};

/// How long a connection may be silent, in seconds: watches are.
const IDLE: &str = "600";

/// The load balancer.
pub struct ClassicBalancer {
    /// Parts that come before it.
    pub after: Vec<String>,
}

/// The tags of a classic load balancer.
pub fn tags_of(name: &str) -> Result<Tags> {
    let answer = classic_elb("DescribeTags").set("LoadBalancerNames.member.1", name).max_age(SHARED).ok()?;
    Ok(tags::read(&answer, "DescribeTagsResult/TagDescriptions/member/Tags/member", "Key", "Value"))
}

fn health_check(ctx: &Context<AWSCluster>) -> [(&'static str, String); 5] {
    let spec = balancer::spec(ctx);
    let given = spec.health_check_protocol.as_deref();
    let protocol = given.filter(|protocol| matches!(*protocol, "TCP" | "HTTP" | "HTTPS")).unwrap_or("SSL");
    let path = if protocol.starts_with("HTTP") { "/readyz" } else { "" };
    let check = &spec.health_check;
    let or = |given: Option<u64>, usual: u64| given.unwrap_or(usual).to_string();
    [
        ("Target", format!("{protocol}:{}{path}", ctx.spec.api_port())),
        ("Interval", or(check.interval_seconds, 10)),
        ("Timeout", or(check.timeout_seconds, 5)),
        ("HealthyThreshold", or(check.threshold_count, 5)),
        ("UnhealthyThreshold", or(check.unhealthy_threshold_count, 3)),
    ]
}

fn attributes(name: &str) -> Result<(String, String)> {
    let query = classic_elb("DescribeLoadBalancerAttributes").set("LoadBalancerName", name).max_age(SHARED);
    let answer = query.ok()?;
    let text = |path: &str| {
        answer.text(&format!("DescribeLoadBalancerAttributesResult/LoadBalancerAttributes/{path}")).to_lowercase()
    };
    Ok((text("CrossZoneLoadBalancing/Enabled"), text("ConnectionSettings/IdleTimeout")))
}

fn differs(ctx: &Context<AWSCluster>, element: &Element) -> bool {
    health_check(ctx).iter().any(|(name, value)| element.text(&format!("HealthCheck/{name}")) != value)
}

impl Part<AWSCluster> for ClassicBalancer {
    fn name(&self) -> String {
        BALANCER.to_owned()
    }
    fn after(&self) -> Vec<String> {
        self.after.clone()
    }
    fn identify(&self, ctx: &Context<AWSCluster>, _reserved: &[String]) -> Result<Choice> {
        Ok(Choice::chosen(balancer::chosen_name(ctx)))
    }
    fn observe(&self, ctx: &Context<AWSCluster>) -> Result<Presence> {
        let known = ctx.known(BALANCER).unwrap_or_default();
        let name = known.id.clone().unwrap_or_else(|| balancer::chosen_name(ctx));
        let Some(element) = balancer::by_name(true, &name, balancer::age(ctx, BALANCER))? else {
            return Ok(Presence::absent_by_id());
        };
        let theirs = tags_of(&name)?;
        if !balancer::is_ours(ctx, &theirs, known.confirmed || balancer::spec(ctx).name.is_some()) {
            let message =
                format!("load balancer {name} is there and was not made for this cluster: choose another name");
            return Ok(Presence::foreign("LoadBalancerNameTaken", message));
        }
        let vpc = ctx.id_of(VPC).unwrap_or_default();
        if !vpc.is_empty() && element.text("VPCId") != vpc {
            let message = format!("load balancer {name} is in {} and not in {vpc}", element.text("VPCId"));
            return Ok(Presence::foreign("LoadBalancerElsewhere", message));
        }
        let mut seen = Observed::new(&name, &read_state(&name, true, &element))?.ready(!differs(ctx, &element));
        if differs(ctx, &element) {
            seen =
                seen.todo("SetHealthCheck", format!("saying how load balancer {name} asks whether machines are well"));
        }
        let wanted = balancer::spec(ctx).cross_zone_load_balancing.to_string();
        if attributes(&name)? != (wanted, IDLE.to_owned()) {
            seen = seen.todo("SetAttributes", format!("setting attributes of load balancer {name}"));
        }
        if !tags::lacking(&balancer::tags_of(ctx, BALANCER), &theirs).is_empty() {
            seen = seen.todo("Tag", format!("tagging load balancer {name}"));
        }
        Ok(Presence::Present(seen))
    }
    fn create(&self, ctx: &Context<AWSCluster>) -> Result<Progress> {
        let (name, port) = (ctx.id_of(BALANCER)?, ctx.spec.api_port().to_string());
        let listener = "Listeners.member.1";
        balancer::refuse_anothers(ctx)?;
        let query = classic_elb("CreateLoadBalancer")
            .set("LoadBalancerName", &name)
            .set(&format!("{listener}.Protocol"), "TCP")
            .set(&format!("{listener}.LoadBalancerPort"), &port)
            .set(&format!("{listener}.InstanceProtocol"), "TCP")
            .set(&format!("{listener}.InstancePort"), &port)
            .list("Subnets.member.", balancer::subnets(ctx)?)
            .list("SecurityGroups.member.", balancer::groups(ctx))
            .set_some("Scheme", balancer::spec(ctx).is_internal().then_some("internal"));
        match tags::list(query, "Tags.member.", &balancer::tags_of(ctx, BALANCER)).send()? {
            Ok(_) => Ok(Progress::done(name)),
            Err(fault) => Err(crate::advice::refusal(&fault, BALANCER_FIELDS)),
        }
    }
    fn update(&self, ctx: &Context<AWSCluster>, todo: &[Reason]) -> Result<Progress> {
        let name = ctx.id_of(BALANCER)?;
        let query = match todo.first().map_or("", |reason| reason.code.as_str()) {
            "Tag" => {
                let query = classic_elb("AddTags").set("LoadBalancerNames.member.1", &name);
                tags::list(query, "Tags.member.", &balancer::tags_of(ctx, BALANCER))
            }
            "SetHealthCheck" => {
                let query = classic_elb("ConfigureHealthCheck").set("LoadBalancerName", &name);
                let each = health_check(ctx);
                each.iter().fold(query, |query, (field, value)| query.set(&format!("HealthCheck.{field}"), value))
            }
            _ => {
                let cross_zone = balancer::spec(ctx).cross_zone_load_balancing.to_string();
                classic_elb("ModifyLoadBalancerAttributes")
                    .set("LoadBalancerName", &name)
                    .set("LoadBalancerAttributes.CrossZoneLoadBalancing.Enabled", cross_zone)
                    .set("LoadBalancerAttributes.ConnectionSettings.IdleTimeout", IDLE)
            }
        };
        query.ok()?;
        Ok(Progress::done(name))
    }
    fn delete(&self, ctx: &Context<AWSCluster>) -> Result<Progress> {
        let name = ctx.id_of(BALANCER)?;
        done_or_gone(classic_elb("DeleteLoadBalancer").set("LoadBalancerName", &name).send()?, name)
    }
}
