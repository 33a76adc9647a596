//! Which template, which node, which number: chosen once, on record before the clone is asked for.

use capstan_provider::{Choice, Context, Error, Result, http};
use serde::{Deserialize, Serialize};

use crate::{
    API, config,
    machine::{MatchPolicy, ProxmoxMachine, TemplateSelector},
    network::infrastructure,
    pve::{self, Resource},
};

/// What stays the same however often the clone is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Frozen {
    /// The node that the machine is to be on.
    pub node: String,
    /// The node that the template is on.
    pub source_node: String,
    /// The number of the template.
    pub template: u64,
}

/// How many numbers from the first free one on are chosen from, so that callers who know nothing of one another seldom choose the same.
const SPREAD: usize = 500;
/// How many numbers are tried that what the token may see does not show as taken.
const TRIES: usize = 12;
const MIB: u64 = 1 << 20;

/// What the machine's placement is chosen from.
struct Wish<'a> {
    ctx: &'a Context<ProxmoxMachine>,
    all: Vec<Resource>,
    nodes: Vec<String>,
}

/// Chooses template, node and number.
pub fn choose(ctx: &Context<ProxmoxMachine>, reserved: &[String]) -> Result<Choice> {
    if let Some(id) = &ctx.spec.provider_id {
        return Err(Error::conflict(
            "VMNotFound",
            format!("no virtual machine with the uuid of {id} is there, and none is made anew: delete the Machine"),
        ));
    }
    let all = pve::resources(0)?;
    let infrastructure = infrastructure(ctx)?;
    let failure_domain = ctx.machine().and_then(|machine| machine.failure_domain());
    let nodes = match (failure_domain, &ctx.spec.target) {
        (Some(node), _) => vec![node],
        (None, Some(node)) => vec![node.clone()],
        (None, None) if !ctx.spec.allowed_nodes.is_empty() => ctx.spec.allowed_nodes.clone(),
        (None, None) => infrastructure.allowed_nodes.clone(),
    };
    let wish = Wish { ctx, all, nodes };
    let templates = wish.templates()?;
    let adjustment = infrastructure.scheduler_hints.memory_adjustment.unwrap_or(100);
    let (node, template) = wish.place(&templates, adjustment, reserved)?;
    let number = wish.number(reserved)?;
    Choice::chosen(number.to_string()).freeze(&Frozen {
        node,
        source_node: template.node.clone(),
        template: template.vmid,
    })
}

impl Wish<'_> {
    /// The templates that the spec means: one, or one on each of several nodes.
    fn templates(&self) -> Result<Vec<&Resource>> {
        let spec = &self.ctx.spec;
        if let Some(selector) = &spec.template_selector {
            return select(selector, &self.all);
        }
        let (Some(node), Some(id)) = (&spec.source_node, spec.template_id) else {
            return Err(Error::invalid(
                "/spec/templateID",
                "set either templateSelector, or sourceNode and templateID",
            ));
        };
        match self.all.iter().find(|vm| vm.vmid == id && vm.kind == "qemu") {
            Some(template) => Ok(vec![template]),
            None => Err(Error::transient(
                "TemplateNotFound",
                format!(
                    "there is no template {id} on node {node}, or the token may not see it: make it, or give the token \
                     VM.Audit and VM.Clone on /vms/{id}"
                ),
            )),
        }
    }

    /// The node with room and the fewest machines of the same set, and the template to clone there. Where the machines of
    /// a set that is just being made have gone cannot be seen yet, only that they chose (`reserved`): they are taken to
    /// have chosen as this one does, which on nodes with the same room spreads them evenly.
    fn place<'a>(
        &self,
        templates: &[&'a Resource],
        adjustment: u64,
        reserved: &[String],
    ) -> Result<(String, &'a Resource)> {
        let Some(first) = templates.first().copied() else {
            return Err(Error::internal("no template was chosen"));
        };
        let nodes: Vec<String> = match self.nodes.as_slice() {
            [] => templates.iter().map(|template| template.node.clone()).collect(),
            nodes => nodes.to_vec(),
        };
        let needed = self.ctx.spec.memory_mib.map_or(first.maxmem, |memory| memory * MIB);
        let name = self.ctx.name();
        let mut places = Vec::new();
        let mut full = Vec::new();
        for node in nodes {
            if adjustment > 0 {
                let free = free_memory(&node, adjustment)?;
                if free < needed {
                    full.push(format!("{node} has {} MiB", free / MIB));
                    continue;
                }
            }
            let replicas =
                self.all.iter().filter(|vm| vm.node == node && vm.template == 0 && set(&vm.name) == set(&name)).count();
            places.push((replicas, capstan_provider::hash(&format!("{}/{node}", set(&name))), node));
        }
        let unseen = reserved.iter().filter(|id| self.all.iter().all(|vm| vm.vmid.to_string() != **id)).count();
        for _ in 0..unseen {
            if let Some((replicas, ..)) = places.iter_mut().min() {
                *replicas += 1;
            }
        }
        let Some((_, _, node)) = places.into_iter().min() else {
            return Err(Error::transient(
                "InsufficientMemory",
                format!(
                    "no allowed node has {} MiB of memory left to promise: {}; add nodes to allowedNodes, or raise \
                     schedulerHints.memoryAdjustment of the ProxmoxCluster",
                    needed / MIB,
                    full.join(", ")
                ),
            ));
        };
        let template = templates.iter().copied().find(|template| template.node == node).unwrap_or(first);
        Ok((node, template))
    }

    /// A number that nothing has: the spec's, or one near the start of the range.
    fn number(&self, reserved: &[String]) -> Result<u64> {
        let spec = &self.ctx.spec;
        if let Some(pinned) = spec.virtual_machine_id {
            return match pve::is_free(pinned)? {
                true => Ok(pinned),
                false => Err(Error::conflict(
                    "VMIDTaken",
                    format!("virtualMachineID {pinned} is another machine's: set a number that is free, or none"),
                )),
            };
        }
        let (start, end) = match &spec.vm_id_range {
            Some(range) => (range.start, range.end),
            None => (first_number()?, 999_999_999),
        };
        let taken = |number: &u64| {
            self.all.iter().any(|vm| vm.vmid == *number) || reserved.iter().any(|id| *id == number.to_string())
        };
        let mut free: Vec<u64> = (start..=end).filter(|number| !taken(number)).take(SPREAD).collect();
        if free.is_empty() {
            return Err(Error::transient(
                "VMIDRangeExhausted",
                format!("every number from {start} to {end} is taken: widen vmIDRange, or delete machines"),
            ));
        }
        let seed = self.ctx.known(crate::vm::VM).map(|known| known.idempotency_key).unwrap_or_default();
        let turn = capstan_provider::hash(&format!("{}/{seed}", self.ctx.owner_key()));
        let length = u64::try_from(free.len()).unwrap_or(1).max(1);
        free.rotate_left(usize::try_from(turn % length).unwrap_or(0));
        for number in free.iter().take(TRIES) {
            if pve::is_free(*number)? {
                return Ok(*number);
            }
        }
        Err(Error::transient(
            "VMIDTaken",
            "every number that was tried belongs to a machine that the token may not see: set another vmIDRange",
        ))
    }
}

fn first_number() -> Result<u64> {
    let doing = "asking for a free VM number";
    let told: serde_json::Value = pve::read(http::get(API, "/api2/json/cluster/nextid", &[]), doing)?;
    pve::text(&told).parse().map_err(|_| Error::transient("UnexpectedAnswer", format!("{doing}: the answer is {told}")))
}

/// The name of a machine's set: machines of one set differ in the last part of their names.
fn set(name: &str) -> &str {
    name.rsplit_once('-').map_or(name, |(set, _)| set)
}

fn select<'a>(selector: &TemplateSelector, all: &'a [Resource]) -> Result<Vec<&'a Resource>> {
    let mut wanted: Vec<String> = selector.match_tags.iter().map(|tag| tag.to_lowercase()).collect();
    wanted.sort();
    wanted.dedup();
    let mut fitting: Vec<(usize, &Resource)> = all
        .iter()
        .filter(|vm| vm.kind == "qemu" && vm.template == 1)
        .filter_map(|vm| {
            let tags = config::tags(&vm.tags);
            let others = tags.iter().filter(|tag| !wanted.contains(tag)).count();
            let all_there = wanted.iter().all(|tag| tags.contains(tag));
            (all_there && (selector.match_policy != MatchPolicy::Exact || others == 0)).then_some((others, vm))
        })
        .collect();
    if selector.match_policy == MatchPolicy::BestSubset {
        let fewest = fitting.iter().map(|(others, _)| *others).min().unwrap_or(0);
        fitting.retain(|(others, _)| *others == fewest);
    }
    let found: Vec<&Resource> = fitting.into_iter().map(|(_, vm)| vm).collect();
    let named = || found.iter().map(|vm| format!("{} on {}", vm.vmid, vm.node)).collect::<Vec<_>>().join(", ");
    if found.is_empty() {
        return Err(Error::transient(
            "TemplateNotFound",
            format!("no template that the token may see has the tags {}", wanted.join(", ")),
        ));
    }
    let twice = found.iter().any(|one| found.iter().filter(|other| other.node == one.node).count() > 1);
    if twice {
        return Err(Error::conflict(
            "TemplateNotUnique",
            format!(
                "the tags {} fit several templates: {}; keep one of each node, or name more tags",
                wanted.join(", "),
                named()
            ),
        ));
    }
    Ok(found)
}

#[derive(Deserialize)]
struct NodeStatus {
    memory: Memory,
}

#[derive(Deserialize)]
struct Memory {
    #[serde(deserialize_with = "pve::number")]
    total: u64,
}

/// What of a node's memory is not promised to anybody (bytes).
fn free_memory(node: &str, adjustment: u64) -> Result<u64> {
    let doing = format!("asking for the memory of node {node}");
    let ask = |path| http::get(API, path, &[node]);
    let mut answers = http::read_all(vec![
        ask("/api2/json/nodes/{}/status"),
        ask("/api2/json/nodes/{}/qemu"),
        ask("/api2/json/nodes/{}/lxc"),
    ])
    .into_iter();
    let mut next = || answers.next().unwrap_or_else(|| Err(Error::internal("an answer is missing")));
    let status: NodeStatus = pve::data(&next()?, &doing)?;
    let machines: Vec<Resource> = pve::data(&next()?, &doing)?;
    let containers: Vec<Resource> = pve::data(&next()?, &doing)?;
    let promised: u64 = machines
        .iter()
        .chain(&containers)
        .filter(|vm| vm.template == 0)
        .map(|vm| vm.maxmem)
        .fold(0, u64::saturating_add);
    if status.memory.total == 0 {
        // A node that does not say what it has is not full.
        return Ok(u64::MAX);
    }
    let total = u128::from(status.memory.total) * u128::from(adjustment) / 100;
    Ok(u64::try_from(total).unwrap_or(u64::MAX).saturating_sub(promised))
}

#[cfg(test)]
#[path = "placement_tests.rs"]
mod tests;
