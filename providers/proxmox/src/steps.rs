//! What can be done to a virtual machine, what is to be done, and how it is asked for.

use capstan_provider::{Context, Error, Progress, Result, http};
use serde::{Deserialize, Serialize};

use crate::{
    API,
    config::{Config, Net, own_mac, smbios},
    iso::{DRIVE, ISO},
    machine::ProxmoxMachine,
    pve,
    vm::{VM, VmState},
    whereabouts::config_at,
};

/// What can be done to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// Processors, memory, tags, network devices.
    Configure,
    /// Enlarge the boot disk.
    Resize,
    /// Put the first-boot data into its drive.
    Attach,
    /// Start it.
    Start,
    /// Let it go on.
    Resume,
    /// Stop it at once.
    Stop,
    /// Take it and its disks away.
    Destroy,
}

impl Step {
    /// Those of the way up.
    pub const ALL: [Self; 5] = [Self::Configure, Self::Resize, Self::Attach, Self::Start, Self::Resume];

    /// For the host.
    pub fn code(self) -> &'static str {
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
    pub fn tasks(self) -> &'static [&'static str] {
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
    pub fn again(&self) -> u64 {
        self.at.saturating_add(1_000_u64.checked_shl(self.times.min(16)).unwrap_or(u64::MAX).min(300_000))
    }
}

/// What of the configuration differs from the spec, as the API takes it.
pub fn changes(ctx: &Context<ProxmoxMachine>, config: &Config) -> Vec<(String, String)> {
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
pub fn lacking(spec: &ProxmoxMachine, config: &Config) -> Option<(String, u64)> {
    let boot = spec.disks.as_ref()?.boot_volume.as_ref()?;
    let there = config.disk_size(&boot.disk).unwrap_or(0);
    (there < boot.size_gb << 30).then(|| (boot.disk.clone(), boot.size_gb))
}

/// What was seen of it last.
pub fn state(ctx: &Context<ProxmoxMachine>) -> Result<VmState> {
    let state = ctx.known(VM).map(|known| known.state()).transpose()?.flatten();
    state.ok_or_else(|| Error::internal("the virtual machine has not been looked at"))
}

/// Sends what a step takes.
pub fn carry_out(ctx: &Context<ProxmoxMachine>, step: Step) -> Result<Progress> {
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
