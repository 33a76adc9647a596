//! A machine is one virtual machine, cloned from a template.

use capstan_provider::{
    Address, AddressKind, Condition, Context, Kind, MachineFacts, MachineKind, Need, Part, Phase, Result, Schema,
    Violation, infrastructure::PartsOf, json,
};
use serde::{Deserialize, Serialize};

use crate::{
    iso::{ISO, Iso},
    network::{self, Network},
    steps::Step,
    vm::{VM, Vm, VmState},
};

/// A virtual machine in Proxmox VE.
#[derive(Clone, Debug, PartialEq, Deserialize, Schema, Kind)]
#[serde(rename_all = "camelCase")]
#[kind(name = "ProxmoxMachine", version = "v1alpha2", status = ProxmoxMachineStatus, served_too = crate::v1alpha1::Machine,
    column("Node", "string", ".status.proxmoxNode", "Where it runs"),
    column("VM", "integer", ".status.virtualMachineID", "Its number"),
    column("State", "string", ".status.vmStatus"))]
#[schema(rule(
    "has(self.templateSelector) ? !has(self.sourceNode) && !has(self.templateID) : has(self.sourceNode) && has(self.templateID)",
    "set either templateSelector, or sourceNode and templateID"
))]
#[schema(rule(
    "!(has(self.format) || has(self.storage)) || !has(self.full) || self.full",
    "format and storage are for full clones: leave them out or set full to true"
))]
#[schema(rule(
    "!has(self.target) || !has(self.allowedNodes) || size(self.allowedNodes) == 0",
    "set either target or allowedNodes"
))]
#[schema(rule("has(self.disks) == has(oldSelf.disks)", "disks cannot be added or removed"))]
pub struct ProxmoxMachine {
    /// `proxmox://` and the uuid of its BIOS.
    #[serde(rename = "providerID")]
    #[schema(hidden)]
    pub provider_id: Option<String>,
    /// Its number. Chosen if absent; a given one is never changed.
    #[serde(rename = "virtualMachineID")]
    #[schema(min = 100, max = 999_999_999)]
    pub virtual_machine_id: Option<u64>,
    /// The node that the template is on.
    #[schema(min_length = 1, max_length = 63, pattern = "^[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?$")]
    pub source_node: Option<String>,
    /// The number of the template.
    #[serde(rename = "templateID")]
    #[schema(min = 100, max = 999_999_999)]
    pub template_id: Option<u64>,
    /// The template by its tags.
    pub template_selector: Option<TemplateSelector>,
    /// A text for people, shown in Proxmox VE. The owner key is written below it.
    #[schema(max_length = 4000)]
    pub description: Option<String>,
    /// Format of the disks of a full clone.
    #[schema(values("raw", "qcow2", "vmdk"))]
    pub format: Option<String>,
    /// Copy the disks; if false, they are layers over those of the template.
    #[serde(default = "yes")]
    #[schema(default = true)]
    pub full: bool,
    /// The resource pool that it belongs to.
    #[schema(min_length = 1, max_length = 128)]
    pub pool: Option<String>,
    /// The snapshot of the template that is cloned.
    #[schema(min_length = 1, max_length = 40)]
    pub snap_name: Option<String>,
    /// The storage of a full clone's disks.
    #[schema(min_length = 1, max_length = 100)]
    pub storage: Option<String>,
    /// The node that it is placed on.
    #[schema(min_length = 1, max_length = 63)]
    pub target: Option<String>,
    /// Sockets; the template's if absent.
    #[schema(min = 1, max = 4)]
    pub num_sockets: Option<u64>,
    /// Cores of each socket; the template's if absent.
    #[schema(min = 1, max = 8192)]
    pub num_cores: Option<u64>,
    /// Memory in MiB; the template's if absent.
    #[serde(rename = "memoryMiB")]
    #[schema(min = 16, max = 16_777_216, multiple_of = 8)]
    pub memory_mib: Option<u64>,
    /// Its disks.
    pub disks: Option<Disks>,
    /// Its network.
    #[serde(default)]
    pub network: Network,
    /// Where its number is chosen from.
    #[serde(rename = "vmIDRange")]
    pub vm_id_range: Option<VmIdRange>,
    /// What is not waited for.
    #[serde(default)]
    pub checks: Checks,
    /// What its first-boot data is told.
    #[serde(default)]
    pub metadata_settings: MetadataSettings,
    /// Nodes that it may be placed on, in place of the cluster's.
    #[serde(default)]
    #[schema(set, max_items = 256)]
    pub allowed_nodes: Vec<String>,
    /// Tags beside those of the template.
    #[serde(default)]
    #[schema(set, max_items = 64, immutable)]
    pub tags: Vec<String>,
}

fn yes() -> bool {
    true
}

/// A template by its tags.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct TemplateSelector {
    /// Its tags.
    #[schema(set, min_items = 1, max_items = 64, required)]
    pub match_tags: Vec<String>,
    /// `exact`: these tags and no others. `uniqueSubset`: these among others, and there is one such template. `bestSubset`: these
    /// among the fewest others.
    pub match_policy: MatchPolicy,
}

/// How tags are matched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Schema)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub enum MatchPolicy {
    #[default]
    Exact,
    UniqueSubset,
    BestSubset,
}

/// The disks of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct Disks {
    /// The disk that it boots from; cannot be changed later.
    #[schema(immutable)]
    pub boot_volume: Option<BootVolume>,
}

/// The disk that a machine boots from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct BootVolume {
    /// Its device, such as scsi0.
    #[schema(pattern = "^(scsi|sata|virtio|ide)[0-9]{1,2}$", required)]
    pub disk: String,
    /// What it is enlarged to, in GiB.
    #[schema(min = 5, max = 1_048_576, required)]
    pub size_gb: u64,
}

/// Where a number is chosen from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
#[schema(rule("self.start <= self.end", "end is not below start"))]
pub struct VmIdRange {
    /// The first number.
    #[schema(min = 100, max = 999_999_999, required)]
    pub start: u64,
    /// The last number.
    #[schema(min = 100, max = 999_999_999, required)]
    pub end: u64,
}

/// What is not waited for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct Checks {
    /// Do not ask cloud-init how it went. It is never asked here: the node's joining says so.
    pub skip_cloud_init_status: Option<bool>,
    /// Do not ask the guest agent for addresses.
    pub skip_qemu_guest_agent: Option<bool>,
}

/// What first-boot data is told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct MetadataSettings {
    /// `provider-id` is among the metadata.
    #[serde(rename = "providerIDInjection")]
    pub provider_id_injection: Option<bool>,
}

/// What is known of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Schema)]
#[serde(rename_all = "camelCase")]
pub struct ProxmoxMachineStatus {
    /// `pending`, `ready` or `notfound`.
    pub vm_status: Option<String>,
    /// Its number.
    #[serde(rename = "virtualMachineID")]
    pub virtual_machine_id: Option<u64>,
    /// The node that it is on.
    pub proxmox_node: Option<String>,
    /// The task that is awaited.
    pub task_ref: Option<String>,
    /// Its first-boot data is in its drive, or was.
    pub bootstrap_data_provided: Option<bool>,
    /// Its addresses from pools, by device.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ip_addresses: Vec<DeviceAddresses>,
}

/// The addresses of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Schema)]
#[serde(rename_all = "camelCase")]
pub struct DeviceAddresses {
    /// The device.
    pub net: String,
    /// IPv4.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ipv4: Vec<String>,
    /// IPv6.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ipv6: Vec<String>,
}

impl ProxmoxMachine {
    /// The uuid in its providerID.
    pub fn uuid(&self) -> Option<String> {
        self.provider_id.as_deref()?.strip_prefix("proxmox://").map(str::to_lowercase)
    }
}

fn is_uuid(text: &str) -> bool {
    let lengths: Vec<usize> = text.split('-').map(str::len).collect();
    lengths == [8, 4, 4, 4, 12] && text.chars().all(|letter| letter == '-' || letter.is_ascii_hexdigit())
}

fn is_tag(tag: &str) -> bool {
    let mut letters = tag.chars();
    letters.next().is_some_and(|first| first.is_ascii_alphanumeric() || first == '_')
        && letters.all(|letter| letter.is_ascii_alphanumeric() || "_-+.".contains(letter))
}

/// Nothing is to be brought up any more.
pub fn going(ctx: &Context<ProxmoxMachine>) -> bool {
    ctx.machine().is_none_or(|machine| machine.deleting())
}

/// The node has joined: the first-boot data has done its work.
pub fn bound(ctx: &Context<ProxmoxMachine>) -> bool {
    ctx.machine().is_some_and(|machine| machine.node_bound())
}

impl PartsOf for ProxmoxMachine {
    /// The ISO comes after the configured virtual machine, whose MAC addresses and uuid it holds, and goes once the node has joined.
    /// On the way down it goes last: a storage that does not answer must not keep the virtual machine running.
    fn parts(ctx: &Context<Self>) -> Result<Vec<Box<dyn Part<Self>>>> {
        if going(ctx) {
            let iso = ctx.known(ISO).is_some();
            let mut parts: Vec<Box<dyn Part<Self>>> = Vec::new();
            if iso {
                parts.push(Box::new(Iso { after_vm: false }));
            }
            parts.push(Box::new(Vm { after_iso: iso }));
            return Ok(parts);
        }
        let mut parts: Vec<Box<dyn Part<Self>>> = vec![Box::new(Vm { after_iso: false })];
        if !bound(ctx) {
            parts.push(Box::new(Iso { after_vm: true }));
        }
        Ok(parts)
    }

    fn part(_ctx: &Context<Self>, name: &str) -> Result<Option<Box<dyn Part<Self>>>> {
        Ok(match name {
            VM => Some(Box::new(Vm { after_iso: false })),
            ISO => Some(Box::new(Iso { after_vm: true })),
            _ => None,
        })
    }

    fn needs(ctx: &Context<Self>) -> Result<Vec<(String, Need)>> {
        network::needs(ctx)
    }

    fn validate(old: Option<&Self>, new: &Self) -> Vec<Violation> {
        let mut violations = Vec::new();
        let mut wrong = |path: &str, message: &str| violations.push(Violation::new(path, message));
        if new.uuid().is_some_and(|uuid| !is_uuid(&uuid)) || (new.provider_id.is_some() && new.uuid().is_none()) {
            wrong("/spec/providerID", "is no proxmox:// and a uuid");
        }
        if new.template_selector.is_some() == (new.source_node.is_some() || new.template_id.is_some())
            || new.source_node.is_some() != new.template_id.is_some()
        {
            wrong("/spec/templateID", "set either templateSelector, or sourceNode and templateID");
        }
        if !new.network.vrfs.is_empty() {
            wrong("/spec/network/vrfs", "virtual routing domains are not written: leave them out");
        }
        for (index, device) in new.network.network_devices.iter().enumerate() {
            if device.name != format!("net{index}") {
                wrong(
                    &format!("/spec/network/networkDevices/{index}/name"),
                    &format!("devices are net0, net1, … without a gap: this one is net{index}"),
                );
            }
        }
        for (index, tag) in new.tags.iter().enumerate() {
            if !is_tag(tag) {
                wrong(
                    &format!("/spec/tags/{index}"),
                    "a tag begins with a letter, a digit or _, and has letters, digits and _ - + . in it",
                );
            }
        }
        if let (Some(range), Some(id)) = (&new.vm_id_range, new.virtual_machine_id)
            && new.provider_id.is_none()
            && !(range.start..=range.end).contains(&id)
        {
            wrong("/spec/virtualMachineID", "lies outside vmIDRange");
        }
        if let Some(old) = old {
            if old.tags != new.tags {
                wrong("/spec/tags", "is immutable");
            }
            if old.disks != new.disks {
                wrong("/spec/disks", "is immutable");
            }
        }
        violations
    }
}

impl MachineKind for ProxmoxMachine {
    fn report(ctx: &Context<Self>) -> Result<MachineFacts> {
        let known = ctx.known(VM).unwrap_or_default();
        let Some(vm) = known.state::<VmState>()? else { return without_vm(ctx, known.confirmed) };
        let (granted, missing) = network::granted(ctx)?;
        let mut addresses = vec![Address { kind: AddressKind::Hostname, value: ctx.name() }];
        let mut seen = Vec::new();
        for ip in granted.iter().map(|granted| &granted.address).chain(&vm.addresses) {
            if !seen.contains(&ip) {
                seen.push(ip);
                addresses.push(Address { kind: AddressKind::InternalIp, value: ip.clone() });
            }
        }
        let begun = vm.started;
        let iso = ctx.known(ISO).is_some_and(|iso| iso.confirmed);
        let status = ProxmoxMachineStatus {
            vm_status: Some(if begun { "ready" } else { "pending" }.to_owned()),
            virtual_machine_id: Some(vm.vmid),
            proxmox_node: Some(vm.node.clone()),
            task_ref: known.operation.filter(|token| token.starts_with("UPID:")),
            bootstrap_data_provided: Some(begun || vm.drive.is_some()),
            ip_addresses: by_device(&granted),
        };
        Ok(MachineFacts {
            phase: match (begun, vm.running()) {
                (true, true) => Phase::Running,
                (true, false) => Phase::Stopped,
                (false, _) => Phase::Pending,
            },
            provider_id: begun.then(|| format!("proxmox://{}", vm.uuid)),
            addresses: if begun && !seen.is_empty() { addresses } else { Vec::new() },
            failure_domain: Some(vm.node.clone()),
            node_name: Some(ctx.name()),
            conditions: vec![provisioned(&vm, begun, iso, &missing)],
            status: json::text(&status)?,
            ..MachineFacts::default()
        })
    }

    fn capacity(ctx: &Context<Self>) -> Vec<(String, String)> {
        let mut all = Vec::new();
        if let Some(cores) = ctx.spec.num_cores {
            all.push(("cpu".to_owned(), (cores * ctx.spec.num_sockets.unwrap_or(1)).to_string()));
        }
        if let Some(memory) = ctx.spec.memory_mib {
            all.push(("memory".to_owned(), format!("{memory}Mi")));
        }
        all
    }
}

const PROVISIONED: &str = "VirtualMachineProvisioned";

/// Before there is a virtual machine, or after it has vanished.
fn without_vm(ctx: &Context<ProxmoxMachine>, vanished: bool) -> Result<MachineFacts> {
    let (vm_status, condition) = if vanished {
        let message = "the virtual machine was there and is gone: delete the Machine";
        ("notfound", Condition::new(PROVISIONED, Some(false), "VMNotFound", message))
    } else {
        ("pending", Condition::new(PROVISIONED, Some(false), "Cloning", "the template is being cloned"))
    };
    let known = ctx.known(VM).unwrap_or_default();
    let status = ProxmoxMachineStatus {
        vm_status: Some(vm_status.to_owned()),
        virtual_machine_id: known.id.as_deref().and_then(|id| id.parse().ok()),
        task_ref: known.operation.filter(|token| token.starts_with("UPID:")),
        ..ProxmoxMachineStatus::default()
    };
    Ok(MachineFacts { conditions: vec![condition], status: json::text(&status)?, ..MachineFacts::default() })
}

fn provisioned(vm: &VmState, begun: bool, iso: bool, missing: &[String]) -> Condition {
    let no = |reason: &str, message: String| Condition::new(PROVISIONED, Some(false), reason, message);
    if let Some(failed) = &vm.failed {
        let reason = match failed.step {
            Step::Start | Step::Resume => "PoweringOnFailed",
            Step::Stop | Step::Destroy => "DeletionFailed",
            Step::Configure | Step::Resize | Step::Attach => "TaskFailed",
        };
        return no(reason, format!("{}: {}", failed.step.doing(vm.vmid, &vm.node), failed.message));
    }
    if begun {
        return match vm.status.as_str() {
            "running" => Condition::new(PROVISIONED, Some(true), "Provisioned", ""),
            "paused" => no("VMPaused", format!("VM {} on {} is paused", vm.vmid, vm.node)),
            other => {
                no("VMStopped", format!("VM {} on {} is {other}: start it, or delete the Machine", vm.vmid, vm.node))
            }
        };
    }
    match &vm.next {
        Some(Step::Configure | Step::Resize) => no("WaitingForDiskReconciliation", "it is being configured".to_owned()),
        Some(Step::Start) => no("WaitingForVMPowerUp", "it is being started".to_owned()),
        _ if !missing.is_empty() => {
            no("WaitingForStaticIPAllocation", format!("no address has come from {} yet", missing.join(", ")))
        }
        _ if !iso => no("WaitingForBootstrapDataReconciliation", "its first-boot data is being uploaded".to_owned()),
        _ => no("WaitingForVMPowerUp", "its first-boot data is being put into its drive".to_owned()),
    }
}

fn by_device(granted: &[network::Granted]) -> Vec<DeviceAddresses> {
    let mut all: Vec<DeviceAddresses> = Vec::new();
    for one in granted {
        let place = match all.iter().position(|device| device.net == one.device) {
            Some(place) => place,
            None => {
                all.push(DeviceAddresses { net: one.device.clone(), ..DeviceAddresses::default() });
                all.len() - 1
            }
        };
        if let Some(device) = all.get_mut(place) {
            let list = if one.address.contains(':') { &mut device.ipv6 } else { &mut device.ipv4 };
            list.push(one.address.clone());
        }
    }
    all
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
