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
use serde_json::Value;

use crate::{
    API,
    config::{Config, Net, description, own_mac, smbios},
    iso::{DRIVE, ISO},
    machine::{ProxmoxMachine, bound, going},
    network,
    placement::{self, Frozen},
    pve::{self, Resource, Task},
};

/// The part's name.
pub const VM: &str = "vm";
/// How old a shared list of the cluster's machines may be (ms), for one that is only watched.
const SHARED: u64 = 15_000;
/// How long until it is worth looking again whether a lock is gone (ms).
const LOCKED: u64 = 1_500;
/// How long the effect of a task that ended well may take to be seen (ms): the high-availability manager is only told by it.
const AWAITED: u64 = 60_000;

/// The virtual machine.
pub struct Vm {
    /// On the way down the first-boot data goes last.
    pub after_iso: bool,
}

/// What can be done to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Step {
    Configure,
    Resize,
    Attach,
    Start,
    Resume,
    Stop,
    Destroy,
}

impl Step {
    const ALL: [Self; 5] = [Self::Configure, Self::Resize, Self::Attach, Self::Start, Self::Resume];

    fn code(self) -> &'static str {
        match self {
            Self::Configure => "Configure",
            Self::Resize => "Resize",
            Self::Attach => "AttachBootstrapData",
            Self::Start => "Start",
            Self::Resume => "Resume",
            Self::Stop => "Stop",
            Self::Destroy => "Destroy",
        }
    }

    /// For messages.
    pub fn doing(self, vmid: u64, node: &str) -> String {
        let what = match self {
            Self::Configure => "configuring",
            Self::Resize => "enlarging the disk of",
            Self::Attach => "putting first-boot data into the drive of",
            Self::Start => "starting",
            Self::Resume => "resuming",
            Self::Stop => "stopping",
            Self::Destroy => "destroying",
        };
        format!("{what} VM {vmid} on node {node}")
    }

    /// The types of the tasks that do it; several steps may share one.
    fn tasks(self) -> &'static [&'static str] {
        match self {
            Self::Configure | Self::Attach => &["qmconfig"],
            Self::Resize => &["resize", "qmresize"],
            Self::Start => &["qmstart", "hastart"],
            Self::Resume => &["qmresume"],
            Self::Stop => &["qmstop", "hastop"],
            Self::Destroy => &["qmdestroy"],
        }
    }
}

/// A task that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// What it was to do.
    pub step: Step,
    /// What it said.
    pub message: String,
    /// When that was seen (ms since the Unix epoch).
    pub at: u64,
    /// How often in a row.
    pub times: u32,
}

impl Failed {
    /// When it may be tried again: ever later, at most every five minutes.
    fn again(&self) -> u64 {
        self.at.saturating_add(1_000_u64.checked_shl(self.times.min(16)).unwrap_or(u64::MAX).min(300_000))
    }
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

/// Where a number leads.
#[derive(Clone, Debug, PartialEq)]
pub enum Found {
    /// A virtual machine.
    At {
        /// Where it is.
        node: String,
        /// Its configuration.
        config: Config,
    },
    /// Something else, or what the token may not see.
    Hidden(String),
    /// Nothing in the cluster has the number.
    Nothing,
}

/// The number and the node where it is believed to be.
pub fn place(ctx: &Context<ProxmoxMachine>) -> Result<Option<(u64, String)>> {
    let Some(known) = ctx.known(VM) else { return Ok(None) };
    let Some(vmid) = known.id.as_deref().and_then(|id| id.parse().ok()) else { return Ok(None) };
    let state: Option<VmState> = known.state()?;
    let frozen: Option<Frozen> = known.frozen()?;
    let node = state.map(|state| state.node).or(frozen.map(|frozen| frozen.node)).unwrap_or_default();
    Ok(Some((vmid, node)))
}

/// Its configuration where it is believed to be, else wherever it is. Only an explicit "nothing has this number" is absence: a list
/// that does not hold it is what a token without rights would see as well.
pub fn find(vmid: u64, node: &str) -> Result<Found> {
    let mut denied = None;
    if !node.is_empty() {
        match config_at(vmid, node) {
            Ok(Some(config)) => return Ok(Found::At { node: node.to_owned(), config }),
            Ok(None) => {}
            Err(Error::Unauthorized(why)) if why.code == "PermissionDenied" => denied = Some(why),
            Err(error) => return Err(error),
        }
    }
    if let Some(listed) = pve::resources(0)?.into_iter().find(|listed| listed.vmid == vmid) {
        if listed.kind != "qemu" {
            return Ok(Found::Hidden(format!("{vmid} is a container on node {}", listed.node)));
        }
        return match config_at(vmid, &listed.node)? {
            Some(config) => Ok(Found::At { node: listed.node, config }),
            None => Err(Error::transient(
                "VMMoving",
                format!("VM {vmid} is listed on node {} and is not there: it may be moving", listed.node),
            )),
        };
    }
    if pve::is_free(vmid)? {
        return Ok(Found::Nothing);
    }
    let why = denied.map_or_else(|| format!("{vmid} is taken by what the token may not see"), |why| why.message);
    Ok(Found::Hidden(why))
}

fn config_at(vmid: u64, node: &str) -> Result<Option<Config>> {
    let doing = format!("looking at VM {vmid} on node {node}");
    let told = pve::told("/api2/extjs/nodes/{}/qemu/{}/config", &[node, &vmid.to_string()], &doing)?;
    match (told.is_success(), told.is_missing()) {
        (true, _) => told.data(&doing).map(Some),
        (false, true) => Ok(None),
        (false, false) => Err(told.failure(&doing)),
    }
}

/// Whose it is.
enum Owner {
    Ours,
    /// It is being made, and nothing says by whom yet.
    Unfinished,
    Foreign(String),
}

fn owner(ctx: &Context<ProxmoxMachine>, known: &Known, before: Option<&VmState>, config: &Config) -> Owner {
    let name = config.get("name").unwrap_or_default();
    match config.owner() {
        Some(key) if key == ctx.owner_key() => Owner::Ours,
        Some(_) => Owner::Foreign(format!("{name} belongs to another machine of Capstan")),
        None => {
            let uuid = config.uuid();
            let same = |wanted: Option<String>| wanted.is_some() && wanted == uuid;
            let recorded = before.filter(|_| known.confirmed).map(|before| before.uuid.clone());
            if same(ctx.spec.uuid()) || same(recorded) {
                // Somebody rewrote the description, or CAPMOX made it.
                Owner::Ours
            } else if matches!(config.get("lock").as_deref(), Some("clone" | "create")) && !known.confirmed {
                Owner::Unfinished
            } else {
                Owner::Foreign(format!("{name:?} was not made for this machine"))
            }
        }
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

/// What of the configuration differs from the spec, as the API takes it.
fn changes(ctx: &Context<ProxmoxMachine>, config: &Config) -> Vec<(String, String)> {
    let spec = &ctx.spec;
    let mut all = Vec::new();
    for (key, wanted) in [("cores", spec.num_cores), ("sockets", spec.num_sockets), ("memory", spec.memory_mib)] {
        if let Some(wanted) = wanted
            && config.number(key) != Some(wanted)
        {
            all.push((key.to_owned(), wanted.to_string()));
        }
    }
    let there = config.tags();
    if spec.tags.iter().any(|tag| !there.contains(&tag.to_lowercase())) {
        let mut tags = there;
        for tag in spec.tags.iter().map(|tag| tag.to_lowercase()) {
            if !tags.contains(&tag) {
                tags.push(tag);
            }
        }
        all.push(("tags".to_owned(), tags.join(";")));
    }
    if config.uuid().is_none() {
        all.push(("smbios1".to_owned(), smbios(config.get("smbios1").as_deref(), &ctx.owner_key())));
    }
    for device in &spec.network.network_devices {
        let there = config.get(&device.name).map(|text| Net::parse(&text)).unwrap_or_default();
        let wanted = there.clone().wanted(device, &own_mac(&format!("{}/{}", ctx.owner_key(), device.name)));
        if !wanted.is(&there) {
            all.push((device.name.clone(), wanted.text()));
        }
    }
    all
}

/// The size that the boot disk lacks, as disk and GiB.
fn lacking(spec: &ProxmoxMachine, config: &Config) -> Option<(String, u64)> {
    let boot = spec.disks.as_ref()?.boot_volume.as_ref()?;
    let there = config.disk_size(&boot.disk).unwrap_or(0);
    (there < boot.size_gb << 30).then(|| (boot.disk.clone(), boot.size_gb))
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

/// A clone whose task is not known.
fn cloning() -> Operation {
    Operation { token: "clone".to_owned(), look_again_after: LOCKED }
}

#[derive(Deserialize)]
struct ListedTask {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    id: Value,
    endtime: Option<Value>,
}

/// The number is taken, and by whom cannot be seen. It is somebody else's where the token would see its own, which it may not before
/// the clone is whole and in its pool.
fn hidden(ctx: &Context<ProxmoxMachine>, known: &Known, why: String) -> Result<Presence> {
    let vmid = known.id.clone().unwrap_or_default();
    if let Some(frozen) = known.frozen::<Frozen>()? {
        let request = http::get(API, "/api2/json/cluster/tasks", &[]);
        let tasks: Vec<ListedTask> = pve::read(request, "listing the tasks of the cluster")?;
        let cloning = |task: &ListedTask| {
            task.kind == "qmclone" && task.endtime.is_none() && pve::text(&task.id) == frozen.template.to_string()
        };
        if tasks.iter().any(cloning) {
            return Ok(Presence::Pending(self::cloning()));
        }
    }
    let path = match &ctx.spec.pool {
        Some(pool) => format!("/pool/{pool}"),
        None => format!("/vms/{vmid}"),
    };
    let request = http::get(API, "/api2/json/access/permissions", &[]).query("path", path.clone());
    let held: Value = pve::read(request, "asking what the token may do")?;
    let audits = held.as_object().is_some_and(|paths| paths.values().any(|rights| rights.get("VM.Audit").is_some()));
    if audits || !why.contains("VM.Audit") {
        return Ok(Presence::foreign("VMIDTaken", format!("VM number {vmid}: {why}")));
    }
    Err(Error::Unauthorized(Reason::new(
        "PermissionDenied",
        format!("VM {vmid} may be ours and cannot be seen: {why}; the token needs VM.Audit on {path}"),
    )))
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

fn state(ctx: &Context<ProxmoxMachine>) -> Result<VmState> {
    let state = ctx.known(VM).map(|known| known.state()).transpose()?.flatten();
    state.ok_or_else(|| Error::internal("the virtual machine has not been looked at"))
}

/// Sends what a step takes.
fn carry_out(ctx: &Context<ProxmoxMachine>, step: Step) -> Result<Progress> {
    let state = state(ctx)?;
    let id = state.vmid.to_string();
    let doing = step.doing(state.vmid, &state.node);
    if let Some(failed) = state.failed.as_ref().filter(|failed| failed.step == step && ctx.now() < failed.again()) {
        return Err(Error::transient(
            pve::task_code(&failed.message, "TaskFailed"),
            format!("{doing}: {}; it is tried again", failed.message),
        ));
    }
    let at = [state.node.as_str(), id.as_str()];
    let config_path = "/api2/json/nodes/{}/qemu/{}/config";
    let request = match step {
        Step::Configure => {
            let Some(config) = config_at(state.vmid, &state.node)? else {
                return Ok(Progress::waiting("VMMoving", format!("VM {id} has left node {}", state.node)));
            };
            let mut fields = changes(ctx, &config);
            // Somebody else's change in between is seen first.
            fields.extend(config.get("digest").map(|digest| ("digest".to_owned(), digest)));
            let fields: Vec<(&str, &String)> = fields.iter().map(|(key, value)| (key.as_str(), value)).collect();
            http::post(API, config_path, &at).form(&fields)
        }
        Step::Attach => {
            let volume = ctx.id_of(ISO)?;
            http::post(API, config_path, &at).form(&[(DRIVE, format!("{volume},media=cdrom"))])
        }
        Step::Resize => {
            let boot = ctx.spec.disks.as_ref().and_then(|disks| disks.boot_volume.clone()).unwrap_or_default();
            let fields = [("disk", boot.disk), ("size", format!("{}G", boot.size_gb))];
            http::put(API, "/api2/json/nodes/{}/qemu/{}/resize", &at).form(&fields)
        }
        Step::Start => http::post(API, "/api2/json/nodes/{}/qemu/{}/status/start", &at),
        Step::Resume => http::post(API, "/api2/json/nodes/{}/qemu/{}/status/resume", &at),
        Step::Stop => {
            http::post(API, "/api2/json/nodes/{}/qemu/{}/status/stop", &at).form(&[("overrule-shutdown", "1")])
        }
        Step::Destroy => http::delete(API, "/api2/json/nodes/{}/qemu/{}", &at)
            .query("purge", "1")
            .query("destroy-unreferenced-disks", "1"),
    };
    pve::progress(&request.send()?, &id, ctx.now(), &doing)
}

#[cfg(test)]
#[path = "vm_tests.rs"]
mod tests;
