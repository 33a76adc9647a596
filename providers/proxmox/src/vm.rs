//! The virtual machine: cloned, configured, its disk enlarged, given its first-boot data, started.
//!
//! What comes next is derived from the virtual machine as it is, never from a remembered state. Only two things are remembered: that
//! it was started once, because then it is not configured or started again, and that a task failed, so that it is not tried
//! again at once.

use std::collections::BTreeMap;

use capstan_provider::{
    Absence, Choice, Context, Error, Known, Observed, Operation, Part, Presence, Progress, Reason, Result, http,
};
use serde::{Deserialize, Serialize};

use crate::{
    API,
    config::{Config, Net, description},
    iso::{DRIVE, ISO},
    machine::{ProxmoxMachine, bound, going},
    network,
    placement::{self, Frozen},
    pve::{self, Resource, Task},
    steps::{Failed, Step, carry_out, changes, lacking, state},
    whereabouts::{Found, Owner, cloning, config_at, find, hidden, owner, place},
};

/// The part's name.
pub const VM: &str = "vm";
/// How old a shared list of the cluster's machines may be (ms), for one that is only watched.
const SHARED: u64 = 15_000;
/// How long until it is worth looking again whether a lock is gone (ms).
pub const LOCKED: u64 = 1_500;
/// How long the effect of a task that ended well may take to be seen (ms): the high-availability manager is only told by it.
const AWAITED: u64 = 60_000;

/// The virtual machine.
pub struct Vm {
    /// On the way down the first-boot data goes last.
    pub after_iso: bool,
}

/// What `report`, the ISO and later calls need to know of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VmState {
    /// Its number.
    pub vmid: u64,
    /// Where it is.
    pub node: String,
    /// The uuid of its BIOS.
    pub uuid: String,
    /// `running`, `stopped`, `paused`.
    pub status: String,
    /// Why its configuration cannot be changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock: Option<String>,
    /// MAC addresses, by device.
    pub macs: BTreeMap<String, String>,
    /// The volume in the drive for first-boot data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drive: Option<String>,
    /// It was started once.
    pub started: bool,
    /// Its disk was enlarged.
    pub resized: bool,
    /// What the guest agent says its addresses are.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
    /// What comes next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<Step>,
    /// A task that failed, until it has not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<Failed>,
    /// A task that ended well and whose effect cannot be seen yet, and since when (ms since the Unix epoch).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub awaited: Option<(Step, u64)>,
}

impl VmState {
    /// It runs.
    pub fn running(&self) -> bool {
        self.status == "running"
    }
}

#[derive(Deserialize)]
struct Current {
    #[serde(default)]
    status: String,
    #[serde(default)]
    qmpstatus: String,
}

/// What it does: asked for while that matters, else read from the list that all machines share.
fn status(ctx: &Context<ProxmoxMachine>, vmid: u64, node: &str) -> Result<String> {
    if bound(ctx) && !going(ctx) {
        let listed: Option<Resource> = pve::resources(SHARED)?.into_iter().find(|listed| listed.vmid == vmid);
        if let Some(listed) = listed.filter(|listed| !listed.status.is_empty() && listed.status != "unknown") {
            return Ok(listed.status);
        }
    }
    let doing = format!("asking what VM {vmid} on node {node} does");
    let request = http::get(API, "/api2/json/nodes/{}/qemu/{}/status/current", &[node, &vmid.to_string()]);
    let current: Current = pve::read(request, &doing)?;
    Ok(match (current.status.as_str(), current.qmpstatus.as_str()) {
        ("running", "paused") => "paused".to_owned(),
        _ => current.status,
    })
}

#[derive(Deserialize)]
struct Agent {
    #[serde(default)]
    result: Vec<Interface>,
}

#[derive(Deserialize)]
struct Interface {
    #[serde(default)]
    name: String,
    #[serde(rename = "ip-addresses", default)]
    addresses: Option<Vec<AgentAddress>>,
}

#[derive(Deserialize)]
struct AgentAddress {
    #[serde(rename = "ip-address", default)]
    address: String,
}

/// The addresses that the guest agent tells; none while it does not run, or is not asked.
fn addresses(ctx: &Context<ProxmoxMachine>, state: &VmState, config: &Config) -> Result<Vec<String>> {
    if ctx.spec.checks.skip_qemu_guest_agent == Some(true) || !config.has_agent() || !state.running() {
        return Ok(state.addresses.clone());
    }
    if bound(ctx) && (!state.addresses.is_empty() || !network::granted(ctx)?.0.is_empty()) {
        return Ok(state.addresses.clone());
    }
    let path = "/api2/json/nodes/{}/qemu/{}/agent/network-get-interfaces";
    let answer = http::get(API, path, &[&state.node, &state.vmid.to_string()]).send()?;
    if !answer.is_success() {
        // It comes up late, and may not at all; a token without the right for it works too.
        return Ok(state.addresses.clone());
    }
    let told: Agent = pve::data(&answer, "asking the guest agent for addresses")?;
    let ours = |address: &str| {
        let low = address.to_lowercase();
        !(address.is_empty()
            || low.starts_with("127.")
            || low == "::1"
            || low.starts_with("fe80:")
            || low.starts_with("169.254."))
    };
    let of_node = |name: &str| {
        !["lo", "docker", "cni", "flannel", "cali", "cilium", "lxc", "veth", "kube-", "virbr", "br-"]
            .iter()
            .any(|other| name == *other || (*other != "lo" && name.starts_with(other)))
    };
    Ok(told
        .result
        .into_iter()
        .filter(|interface| of_node(&interface.name))
        .flat_map(|interface| interface.addresses.unwrap_or_default())
        .map(|address| address.address)
        .filter(|address| ours(address))
        .collect())
}

impl Part<ProxmoxMachine> for Vm {
    fn name(&self) -> String {
        VM.to_owned()
    }

    fn after(&self) -> Vec<String> {
        if self.after_iso { vec![ISO.to_owned()] } else { Vec::new() }
    }

    fn replaceable(&self) -> bool {
        false
    }

    fn identify(&self, ctx: &Context<ProxmoxMachine>, reserved: &[String]) -> Result<Choice> {
        placement::choose(ctx, reserved)
    }

    fn observe(&self, ctx: &Context<ProxmoxMachine>) -> Result<Presence> {
        let known = ctx.known(VM).unwrap_or_default();
        let Some((vmid, node)) = place(ctx)? else { return adopt(ctx) };
        let before: Option<VmState> = known.state()?;
        let (mut running, mut failed, mut done) = (None, None, None);
        match pve::task(known.operation.as_deref(), ctx.now())? {
            Some((_, Task::Running(operation))) => running = Some(operation),
            Some((upid, Task::Failed(text))) => failed = Some((upid.kind, text)),
            Some((upid, Task::Done)) => done = Some(upid.kind),
            Some((_, Task::Unknown)) | None => {}
        }
        let absent = |presence: Presence| match (&running, &failed) {
            (Some(operation), _) => Presence::Pending(operation.clone()),
            (None, Some((kind, text))) if kind == "qmclone" => {
                let message = format!("cloning as VM {vmid}: {text}");
                match presence {
                    Presence::Absent(how) => {
                        Presence::Failed(how, Reason::new(pve::task_code(text, "CloningFailed"), message))
                    }
                    other => other,
                }
            }
            // Whatever was asked for came to nothing: node, template and number are chosen anew.
            (None, _) if !known.confirmed && matches!(presence, Presence::Absent(_)) => Presence::Failed(
                Absence::LookedUpById,
                Reason::new("CloningFailed", format!("the request to clone as VM {vmid} had no effect")),
            ),
            _ => presence,
        };
        let (node, config) = match find(vmid, &node)? {
            Found::At { node, config } => (node, config),
            Found::Nothing => return Ok(absent(Presence::Absent(Absence::LookedUpById))),
            Found::Hidden(why) if known.confirmed => {
                return Err(Error::transient(
                    "VMNotVisible",
                    format!("VM {vmid} is there and cannot be seen: {why}; give the token VM.Audit on /vms/{vmid}"),
                ));
            }
            Found::Hidden(why) => return hidden(ctx, &known, why).map(absent),
        };
        match owner(ctx, &known, before.as_ref(), &config) {
            Owner::Foreign(why) => {
                return Ok(absent(Presence::foreign("VMIDTaken", format!("VM {vmid} on node {node} {why}"))));
            }
            Owner::Unfinished => {
                return Ok(Presence::Pending(running.unwrap_or_else(cloning)));
            }
            Owner::Ours => {}
        }
        // It is not there before the clone is whole: one that fails takes it away again.
        if !known.confirmed && (running.is_some() || matches!(config.get("lock").as_deref(), Some("clone" | "create")))
        {
            return Ok(Presence::Pending(running.unwrap_or_else(cloning)));
        }
        present(ctx, vmid, node, &config, Earlier { before, running, failed, done })
    }

    fn create(&self, ctx: &Context<ProxmoxMachine>) -> Result<Progress> {
        let Some((vmid, _)) = place(ctx)? else {
            return Err(Error::internal("a virtual machine is cloned without a number"));
        };
        let frozen: Option<Frozen> = ctx.known(VM).map(|known| known.frozen()).transpose()?.flatten();
        let frozen = frozen.ok_or_else(|| Error::internal("the virtual machine's template was not chosen"))?;
        // Asking reserves nothing, but it keeps most of those who lose the race from sending anything.
        if !pve::is_free(vmid)? {
            return Err(Error::transient(
                "VMIDTaken",
                format!("number {vmid} was taken meanwhile: another one is chosen"),
            ));
        }
        let spec = &ctx.spec;
        let mut fields = vec![
            ("newid", vmid.to_string()),
            ("name", ctx.name()),
            ("description", description(spec.description.as_deref(), &ctx.owner_key())),
            ("full", u8::from(spec.full).to_string()),
        ];
        if frozen.node != frozen.source_node {
            fields.push(("target", frozen.node.clone()));
        }
        let given =
            [("storage", &spec.storage), ("format", &spec.format), ("pool", &spec.pool), ("snapname", &spec.snap_name)];
        fields.extend(given.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))));
        let template = frozen.template.to_string();
        let answer = http::post(API, "/api2/json/nodes/{}/qemu/{}/clone", &[&frozen.source_node, &template])
            .form(&fields)
            .send()?;
        let doing =
            format!("cloning template {template} of node {} as VM {vmid} of node {}", frozen.source_node, frozen.node);
        pve::progress(&answer, &vmid.to_string(), ctx.now(), &doing)
    }

    fn update(&self, ctx: &Context<ProxmoxMachine>, todo: &[Reason]) -> Result<Progress> {
        let code = todo.first().map_or("", |reason| reason.code.as_str());
        let Some(step) = Step::ALL.into_iter().find(|step| step.code() == code) else {
            return Err(Error::internal(format!("a virtual machine cannot do {code:?}")));
        };
        carry_out(ctx, step)
    }

    fn delete(&self, ctx: &Context<ProxmoxMachine>) -> Result<Progress> {
        let state = state(ctx)?;
        if let Some(lock) = &state.lock {
            let message = format!(
                "VM {} on node {} is locked ({lock}): it is deleted when that ends, or after `qm unlock {}`",
                state.vmid, state.node, state.vmid
            );
            return Ok(Progress::waiting("VMLocked", message));
        }
        carry_out(ctx, if state.status == "stopped" { Step::Destroy } else { Step::Stop })
    }
}

/// What CAPMOX made is taken over as it is: by its uuid, and by its number where the spec has that.
fn adopt(ctx: &Context<ProxmoxMachine>) -> Result<Presence> {
    let Some(uuid) = ctx.spec.uuid() else { return Ok(Presence::absent_by_key()) };
    let pinned = ctx.spec.virtual_machine_id;
    let name = ctx.name();
    let all = pve::resources(0)?;
    for listed in all.into_iter().filter(|vm| vm.kind == "qemu" && vm.template == 0) {
        if pinned.map_or(listed.name != name, |pinned| pinned != listed.vmid) {
            continue;
        }
        let Some(config) = config_at(listed.vmid, &listed.node)? else { continue };
        if config.uuid().as_ref() != Some(&uuid) {
            continue;
        }
        let known = Known::default();
        if let Owner::Foreign(why) = owner(ctx, &known, None, &config) {
            return Ok(Presence::foreign("VMForeign", format!("VM {} on node {} {why}", listed.vmid, listed.node)));
        }
        return present(ctx, listed.vmid, listed.node, &config, Earlier::default());
    }
    Ok(Presence::absent_by_key())
}

/// What was seen before, and how the operation on record goes.
#[derive(Default)]
struct Earlier {
    before: Option<VmState>,
    /// It runs.
    running: Option<Operation>,
    /// It failed: its type and words.
    failed: Option<(String, String)>,
    /// It ended well: its type.
    done: Option<String>,
}

fn present(
    ctx: &Context<ProxmoxMachine>,
    vmid: u64,
    node: String,
    config: &Config,
    Earlier { before, running, failed, done }: Earlier,
) -> Result<Presence> {
    let before = before.unwrap_or_default();
    let status = status(ctx, vmid, &node)?;
    let up = matches!(status.as_str(), "running" | "paused");
    let mut state = VmState {
        vmid,
        uuid: config.uuid().unwrap_or_default(),
        lock: config.get("lock"),
        macs: macs(config),
        drive: config.volume(DRIVE).filter(|volume| volume.contains(":iso/")),
        started: before.started || up || ctx.spec.provider_id.is_some(),
        resized: before.resized,
        addresses: before.addresses.clone(),
        next: None,
        failed: None,
        awaited: None,
        node,
        status,
    };
    let last = before.next.or(before.failed.as_ref().map(|failed| failed.step));
    if done.as_deref().is_some_and(|kind| Step::Resize.tasks().contains(&kind)) {
        // Some storages round sizes, so what was done once is not done again.
        state.resized = true;
    }
    state.addresses = addresses(ctx, &state, config)?;
    let id = vmid.to_string();
    if let Some(operation) = running {
        state.next = last;
        state.failed = before.failed;
        let ready = state.started;
        let observed = Observed::new(id, &state)?.ready(ready);
        return Ok(Presence::Present(observed.operation(operation.token, operation.look_again_after)));
    }
    let deleting = going(ctx);
    let (_, missing) = network::granted(ctx)?;
    let next = if deleting { None } else { next_step(ctx, &state, config, &missing)? };
    state.next = if deleting { Some(if state.status == "stopped" { Step::Destroy } else { Step::Stop }) } else { next };
    // A task's failure counts as long as what it was to do is still to be done.
    state.failed = match (failed, before.failed) {
        (Some((kind, message)), earlier) => {
            state.next.filter(|step| step.tasks().contains(&kind.as_str())).map(|step| Failed {
                step,
                message,
                at: ctx.now(),
                times: earlier.filter(|earlier| earlier.step == step).map_or(1, |earlier| earlier.times + 1),
            })
        }
        (None, earlier) => earlier.filter(|earlier| Some(earlier.step) == state.next),
    };
    state.awaited = match done {
        Some(kind) => state.next.filter(|step| step.tasks().contains(&kind.as_str())).map(|step| (step, ctx.now())),
        None => before
            .awaited
            .filter(|(step, since)| Some(*step) == state.next && ctx.now() < since.saturating_add(AWAITED)),
    };
    let configured = !matches!(next, Some(Step::Configure | Step::Resize));
    let ready = state.started || (configured && missing.is_empty() && state.lock.is_none());
    let mut observed = Observed::new(id, &state)?.ready(ready);
    if let Some((step, _)) = state.awaited {
        return Ok(Presence::Present(observed.operation(format!("await {}", step.code()), LOCKED)));
    }
    if let Some(step) = next {
        if let Some(lock) = &state.lock {
            // A backup, a snapshot, a move: whatever is to be done waits for its end.
            return Ok(Presence::Present(observed.operation(format!("lock {lock}"), LOCKED)));
        }
        observed = observed.todo(step.code(), step.doing(vmid, &state.node));
    }
    if state.started && !deleting {
        let differing: Vec<String> = changes(ctx, config).into_iter().map(|(key, _)| key).collect();
        if !differing.is_empty() && before.uuid == state.uuid {
            let message = format!("{} differ from the spec, which only a new machine can change", differing.join(", "));
            observed = observed.outdated("ConfigurationDiffers", message);
        }
    }
    Ok(Presence::Present(observed))
}

fn macs(config: &Config) -> BTreeMap<String, String> {
    let is_net = |key: &str| {
        key.strip_prefix("net").is_some_and(|rest| !rest.is_empty() && rest.chars().all(|digit| digit.is_ascii_digit()))
    };
    config
        .0
        .keys()
        .filter(|key| is_net(key))
        .filter_map(|key| Some((key.clone(), Net::parse(&config.get(key)?).mac)))
        .filter(|(_, mac)| !mac.is_empty())
        .collect()
}

/// What comes next on the way up.
fn next_step(
    ctx: &Context<ProxmoxMachine>,
    state: &VmState,
    config: &Config,
    missing: &[String],
) -> Result<Option<Step>> {
    if state.started {
        return Ok((state.status == "paused" && state.lock.is_none()).then_some(Step::Resume));
    }
    if !changes(ctx, config).is_empty() {
        return Ok(Some(Step::Configure));
    }
    if let Some((disk, _)) = lacking(&ctx.spec, config).filter(|_| !state.resized) {
        if config.get(&disk).is_none() {
            return Err(Error::invalid(
                "/spec/disks/bootVolume/disk",
                format!("VM {} has no disk {disk}: name one that the template has", state.vmid),
            ));
        }
        return Ok(Some(Step::Resize));
    }
    let iso = ctx.known(ISO).filter(|iso| iso.confirmed).and_then(|iso| iso.id);
    let Some(iso) = iso.filter(|_| missing.is_empty()) else { return Ok(None) };
    Ok(Some(if state.drive.as_ref() == Some(&iso) { Step::Start } else { Step::Attach }))
}

#[cfg(test)]
#[path = "vm_tests.rs"]
mod tests;
