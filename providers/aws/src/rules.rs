//! Rules of security groups: what a cluster's machines and load balancer need, as CAPA has it, and how they differ from what is there.

use std::collections::BTreeMap;

use capstan_provider::{Context, Result, aws::Query, xml::Element};

use crate::{
    cluster::{AWSCluster, Balancing},
    group,
    layout::{self, Network},
    network::{NatGateway, State, state},
    spec::IngressRule,
};

/// What traffic is let in from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// An IPv4 range.
    V4(String),
    /// An IPv6 range.
    V6(String),
    /// A security group.
    Group(String),
    /// A prefix list.
    Prefixes(String),
}

/// A rule with one source. Its description is no part of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rule {
    /// `tcp`, `udp`, `icmp`, or a number.
    pub protocol: String,
    /// First and last port, where the protocol has ports.
    pub ports: Option<(i64, i64)>,
    /// Where from.
    pub source: Source,
}

impl Rule {
    fn new(protocol: &str, from: i64, to: i64, source: Source) -> Self {
        let named = match protocol {
            "6" => "tcp",
            "17" => "udp",
            "1" => "icmp",
            "icmpv6" => "58",
            other => other,
        };
        let has_ports = matches!(named, "tcp" | "udp" | "icmp" | "58");
        Self { protocol: named.to_owned(), ports: has_ports.then_some((from, to)), source }
    }

    /// For messages.
    pub fn text(&self) -> String {
        let ports = match self.ports {
            Some((from, to)) if from == to => format!(" {from}"),
            Some((from, to)) => format!(" {from}-{to}"),
            None => String::new(),
        };
        let from = match &self.source {
            Source::V4(text) | Source::V6(text) | Source::Group(text) | Source::Prefixes(text) => text,
        };
        format!("{}{ports} from {from}", self.protocol)
    }
}

/// Rules and what they are for.
pub type Rules = BTreeMap<Rule, String>;

/// The rules that a group has.
pub fn read(group: &Element) -> Rules {
    let mut rules = Rules::new();
    for permission in group.all("ipPermissions/item") {
        let number = |name: &str| permission.text(name).parse().unwrap_or(-1);
        let (protocol, from, to) = (permission.text("ipProtocol"), number("fromPort"), number("toPort"));
        let mut each = |list: &str, field: &str, source: fn(String) -> Source| {
            let found = permission.all(list).filter_map(|item| Some((item.found(field)?, item.text("description"))));
            rules.extend(found.map(|(text, said)| (Rule::new(protocol, from, to, source(text)), said.to_owned())));
        };
        each("ipRanges/item", "cidrIp", Source::V4);
        each("ipv6Ranges/item", "cidrIpv6", Source::V6);
        each("groups/item", "groupId", Source::Group);
        each("prefixListIds/item", "prefixListId", Source::Prefixes);
    }
    rules
}

/// Rules as parameters of a request.
pub fn write(mut query: Query, rules: &Rules) -> Query {
    for (index, (rule, description)) in rules.iter().enumerate() {
        let at = format!("IpPermissions.{}", index + 1);
        // Where a protocol has no ports they are not looked at.
        let (from, to) = rule.ports.unwrap_or((-1, -1));
        query = query
            .set(&format!("{at}.IpProtocol"), &rule.protocol)
            .set(&format!("{at}.FromPort"), from.to_string())
            .set(&format!("{at}.ToPort"), to.to_string());
        let (list, field, value) = match &rule.source {
            Source::V4(range) => ("IpRanges", "CidrIp", range),
            Source::V6(range) => ("Ipv6Ranges", "CidrIpv6", range),
            Source::Group(id) => ("Groups", "GroupId", id),
            Source::Prefixes(id) => ("PrefixListIds", "PrefixListId", id),
        };
        query = query.set(&format!("{at}.{list}.1.{field}"), value);
        if !description.is_empty() {
            query = query.set(&format!("{at}.{list}.1.Description"), description);
        }
    }
    query
}

/// The rules that a group is to have; `None` while a group or address that they name is not there yet.
pub fn wanted(ctx: &Context<AWSCluster>, role: &str) -> Result<Option<Rules>> {
    let mut rules = Collector { ctx, rules: Rules::new(), whole: true };
    let network = &ctx.spec.network;
    let port = ctx.spec.api_port();
    match role {
        group::API_BALANCER => {
            let balancer = ctx.spec.control_plane_load_balancer.clone().unwrap_or_default();
            if balancer.ingress_rules.is_empty() {
                rules.add("Kubernetes API", "tcp", (port, port), Source::V4("0.0.0.0/0".to_owned()));
            } else {
                rules.listed(&balancer.ingress_rules)?;
                if !balancer.is_internal() {
                    rules.nat_addresses("Kubernetes API from the cluster's machines", "tcp", (port, port))?;
                }
            }
            for listener in &balancer.additional_listeners {
                rules.add(
                    "additional listener",
                    "tcp",
                    (listener.port, listener.port),
                    Source::V4("0.0.0.0/0".to_owned()),
                );
            }
        }
        group::CONTROL_PLANE => {
            for from in [group::API_BALANCER, group::CONTROL_PLANE, group::NODE] {
                rules.role("Kubernetes API", "tcp", (port, port), from);
            }
            if ctx.spec.control_plane_load_balancer.as_ref().is_some_and(|balancer| balancer.preserve_client_ip) {
                rules.add(
                    "Kubernetes API, client addresses kept",
                    "tcp",
                    (port, port),
                    Source::V4("0.0.0.0/0".to_owned()),
                );
            }
            for listener in ctx.spec.control_plane_load_balancer.iter().flat_map(|b| &b.additional_listeners) {
                rules.role("additional listener", "tcp", (listener.port, listener.port), group::API_BALANCER);
            }
            rules.role("etcd", "tcp", (2379, 2379), group::CONTROL_PLANE);
            rules.role("etcd peer", "tcp", (2380, 2380), group::CONTROL_PLANE);
            rules.cni();
            rules.listed(&network.additional_control_plane_ingress_rules)?;
        }
        group::NODE => {
            let everywhere = ["0.0.0.0/0".to_owned()];
            let given = &network.node_port_ingress_rule_cidr_blocks;
            for range in if given.is_empty() { everywhere.as_slice() } else { given } {
                rules.add("Node Port Services", "tcp", (30_000, 32_767), Source::V4(range.clone()));
            }
            rules.role("Kubelet API", "tcp", (10_250, 10_250), group::CONTROL_PLANE);
            rules.role("Kubelet API", "tcp", (10_250, 10_250), group::NODE);
            rules.cni();
            rules.listed(&network.additional_node_ingress_rules)?;
        }
        _ => {}
    }
    Ok(rules.whole.then_some(rules.rules))
}

struct Collector<'a> {
    ctx: &'a Context<AWSCluster>,
    rules: Rules,
    whole: bool,
}

impl Collector<'_> {
    fn add(&mut self, description: &str, protocol: &str, (from, to): (i64, i64), source: Source) {
        self.rules.entry(Rule::new(protocol, from, to, source)).or_insert_with(|| description.to_owned());
    }

    fn role(&mut self, description: &str, protocol: &str, ports: (i64, i64), role: &str) {
        if role == group::API_BALANCER && self.ctx.spec.balancing() == Balancing::Disabled {
            return;
        }
        match group::id(self.ctx, role) {
            Some(id) => self.add(description, protocol, ports, Source::Group(id)),
            None => self.whole = false,
        }
    }

    /// What machines need for the network of pods: Calico's, where the spec says nothing.
    fn cni(&mut self) {
        let calico = [("bgp (calico)", "tcp", 179, 179), ("IP-in-IP (calico)", "4", -1, -1)];
        let ctx = self.ctx;
        let rules: Vec<(&str, &str, i64, i64)> = match &ctx.spec.network.cni {
            None => calico.to_vec(),
            Some(cni) => {
                let each = cni.cni_ingress_rules.iter();
                each.map(|r| (r.description.as_str(), r.protocol.as_str(), r.from_port, r.to_port)).collect()
            }
        };
        for (description, protocol, from, to) in rules {
            for role in [group::CONTROL_PLANE, group::NODE] {
                self.role(description, protocol, (from, to), role);
            }
        }
    }

    fn nat_addresses(&mut self, description: &str, protocol: &str, ports: (i64, i64)) -> Result<()> {
        let Network::Managed(layout) = layout::network(self.ctx)? else { return Ok(()) };
        for zone in layout.public_zones() {
            match state::<State>(self.ctx, &NatGateway::name(zone))?.and_then(|state| state.address) {
                Some(address) => self.add(description, protocol, ports, Source::V4(format!("{address}/32"))),
                None => self.whole = false,
            }
        }
        Ok(())
    }

    fn listed(&mut self, rules: &[IngressRule]) -> Result<()> {
        for rule in rules {
            let (description, protocol, ports) = (&rule.description, &rule.protocol, (rule.from_port, rule.to_port));
            for range in &rule.cidr_blocks {
                self.add(description, protocol, ports, Source::V4(range.clone()));
            }
            for range in &rule.ipv6_cidr_blocks {
                self.add(description, protocol, ports, Source::V6(range.clone()));
            }
            for id in &rule.source_security_group_ids {
                self.add(description, protocol, ports, Source::Group(id.clone()));
            }
            for role in &rule.source_security_group_roles {
                self.role(description, protocol, ports, role);
            }
            if rule.nat_gateways_ips_source {
                self.nat_addresses(description, protocol, ports)?;
            }
        }
        Ok(())
    }
}
