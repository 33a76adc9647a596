//! The ISO image with a machine's first-boot data (cloud-init's NoCloud), on a storage that its node sees.
//!
//! Its name holds the owner key, so nobody else's image is taken for it. Once the node has joined, it is taken out of the drive and
//! deleted: it holds tokens.

use capstan_provider::{
    Choice, Context, Error, Observed, Operation, Part, Presence, Progress, Result, http,
    secrets::{self, ArchiveFormat, Chunk, Member},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    API,
    machine::{ProxmoxMachine, bound, going},
    network,
    pve::{self, Task},
    vm::{VM, VmState},
    whereabouts,
};

/// The part's name.
pub const ISO: &str = "iso";
/// An upload whose task is not known.
const UPLOADING: &str = "upload";
/// The drive that it is put into.
pub const DRIVE: &str = "ide0";

/// The image.
pub struct Iso {
    /// It holds facts of the virtual machine, so it is made after it.
    pub after_vm: bool,
}

/// What stays the same however often it is uploaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Frozen {
    node: String,
    storage: String,
    file: String,
}

/// What is known of the image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct IsoState {
    volume: String,
    /// What a task on the way to its removal said when it failed, and when (ms since the Unix epoch).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    failed: Option<(u64, String)>,
}

/// How long a removal that failed is not tried again (ms).
const PAUSE: u64 = 15_000;

#[derive(Deserialize)]
struct Storage {
    storage: String,
    #[serde(default, deserialize_with = "pve::number")]
    active: u64,
    #[serde(default, deserialize_with = "pve::number")]
    shared: u64,
}

#[derive(Deserialize)]
struct Volume {
    #[serde(default)]
    volid: String,
}

#[derive(Deserialize)]
struct ClusterMember {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    name: String,
    #[serde(default, deserialize_with = "pve::number")]
    local: u64,
}

/// The node that serves the API: an upload ends there, and only it needs no copying to another.
fn serving_node() -> Option<String> {
    let request = http::get(API, "/api2/json/cluster/status", &[]);
    let members: Vec<ClusterMember> = pve::read(request, "asking which node serves the API").ok()?;
    members.into_iter().find(|member| member.kind == "node" && member.local == 1).map(|member| member.name)
}

fn vm_state(ctx: &Context<ProxmoxMachine>) -> Result<VmState> {
    let known = ctx.known(VM).map(|known| known.state()).transpose()?.flatten();
    known.ok_or_else(|| Error::transient("WaitingForVM", "the virtual machine has not been seen yet"))
}

fn frozen(ctx: &Context<ProxmoxMachine>) -> Result<Frozen> {
    let known = ctx.known(ISO).map(|known| known.frozen()).transpose()?.flatten();
    known.ok_or_else(|| Error::internal("the storage of the first-boot data was not chosen"))
}

impl Frozen {
    fn volume(&self) -> String {
        format!("{}:iso/{}", self.storage, self.file)
    }

    /// It is on the storage; absence is believed when both the list and the question for it say so.
    fn is_there(&self) -> Result<bool> {
        let volume = self.volume();
        let doing = format!("looking for {volume} from node {}", self.node);
        let request = http::get(API, "/api2/json/nodes/{}/storage/{}/content", &[&self.node, &self.storage])
            .query("content", "iso");
        let volumes: Vec<Volume> = pve::read(request, &doing)?;
        if volumes.iter().any(|other| other.volid == volume) {
            return Ok(true);
        }
        let told =
            pve::told("/api2/extjs/nodes/{}/storage/{}/content/{}", &[&self.node, &self.storage, &volume], &doing)?;
        match (told.is_success(), told.is_missing()) {
            (true, _) => Ok(true),
            (false, true) => Ok(false),
            (false, false) => Err(told.failure(&doing)),
        }
    }
}

impl Part<ProxmoxMachine> for Iso {
    fn name(&self) -> String {
        ISO.to_owned()
    }

    fn after(&self) -> Vec<String> {
        if self.after_vm { vec![VM.to_owned()] } else { Vec::new() }
    }

    fn identify(&self, ctx: &Context<ProxmoxMachine>, _reserved: &[String]) -> Result<Choice> {
        let vm = vm_state(ctx)?;
        let doing = format!("looking for a storage of ISO images on node {}", vm.node);
        let request =
            http::get(API, "/api2/json/nodes/{}/storage", &[&vm.node]).query("content", "iso").query("enabled", "1");
        let mut storages: Vec<Storage> = pve::read(request, &doing)?;
        storages.retain(|storage| storage.active == 1);
        storages.sort_by(|a, b| (b.shared, &a.storage).cmp(&(a.shared, &b.storage)));
        let Some(storage) = storages.into_iter().next() else {
            return Err(Error::transient(
                "NoISOStorage",
                format!(
                    "node {} has no active storage for ISO images that the token may see: allow content `iso` on one, and \
                     give the token Datastore.Audit on it",
                    vm.node
                ),
            ));
        };
        let node =
            if storage.shared == 1 { serving_node().unwrap_or_else(|| vm.node.clone()) } else { vm.node.clone() };
        let file = format!("capstan-{}.iso", ctx.owner_key());
        let frozen = Frozen { node, storage: storage.storage, file };
        Choice::chosen(frozen.volume()).freeze(&frozen)
    }

    fn observe(&self, ctx: &Context<ProxmoxMachine>) -> Result<Presence> {
        let Some(known) = ctx.known(ISO).filter(|known| known.id.is_some()) else {
            return Ok(Presence::absent_by_id());
        };
        let frozen = frozen(ctx)?;
        let mut failed = None;
        if let Some((upid, task)) = pve::task(known.operation.as_deref(), ctx.now())? {
            match task {
                // A volume can be seen before all of it is there.
                Task::Running(operation) => return Ok(Presence::Pending(operation)),
                Task::Failed(text) => failed = Some((upid, text)),
                Task::Done | Task::Unknown => {}
            }
        }
        if frozen.is_there()? {
            if !known.confirmed && known.operation.as_deref().is_none_or(|token| token == UPLOADING) {
                // Its upload was not answered, and what can be seen may be a part of it.
                if pve::is_running("imgcopy", None)? {
                    return Ok(Presence::Pending(Operation { token: UPLOADING.to_owned(), look_again_after: 1_500 }));
                }
            }
            let before: Option<IsoState> = known.state()?;
            let earlier = before.and_then(|before| before.failed).filter(|(at, _)| at + PAUSE > ctx.now());
            let failed = failed.filter(|(upid, _)| upid.kind != "imgcopy").map(|(_, text)| (ctx.now(), text));
            let state = IsoState { volume: frozen.volume(), failed: failed.or(earlier) };
            return Ok(Presence::Present(Observed::new(frozen.volume(), &state)?.ready(true)));
        }
        match failed {
            Some((upid, text)) if upid.kind == "imgcopy" => Ok(Presence::Failed(
                capstan_provider::Absence::LookedUpById,
                capstan_provider::Reason::new(
                    pve::task_code(&text, "UploadFailed"),
                    format!("uploading {} to node {}: {text}", frozen.volume(), frozen.node),
                ),
            )),
            _ => Ok(Presence::absent_by_id()),
        }
    }

    fn create(&self, ctx: &Context<ProxmoxMachine>) -> Result<Progress> {
        let machine = ctx.machine().ok_or_else(|| Error::internal("first-boot data is uploaded without a Machine"))?;
        match machine.bootstrap_format().as_deref() {
            None => return Ok(Progress::waiting("WaitingForBootstrapData", "there is no first-boot data yet")),
            Some("cloud-config") => {}
            Some(other) => {
                return Err(Error::invalid(
                    "/spec",
                    format!("first-boot data is {other}: a ProxmoxMachine boots with cloud-config"),
                ));
            }
        }
        let vm = vm_state(ctx)?;
        let frozen = frozen(ctx)?;
        let (granted, missing) = network::granted(ctx)?;
        if !missing.is_empty() {
            let message = format!("no address has come from {} yet", missing.join(", "));
            return Ok(Progress::waiting("WaitingForStaticIPAllocation", message));
        }
        let network = network::cloud_init(&ctx.spec, &network::infrastructure(ctx)?, &vm.macs, &granted);
        let member = |path: &str, content: Chunk| Member { path: path.to_owned(), mode: 0o600, content: vec![content] };
        let image = secrets::archive(
            ArchiveFormat::Iso9660,
            "cidata",
            &[
                member("user-data", secrets::get("bootstrap-data")?.into()),
                member("meta-data", metadata(ctx, &vm).into()),
                member("network-config", network.into()),
            ],
        )?;
        let doing = format!("uploading {} to node {}", frozen.volume(), frozen.node);
        let boundary = format!("capstan-{}", ctx.known(ISO).map(|known| known.idempotency_key).unwrap_or_default());
        // The order of the fields and of their headers is what the server's strict reader wants.
        let head = format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"content\"\r\n\r\niso\r\n--{boundary}\r\n\
             Content-Disposition: form-data; name=\"filename\"; filename=\"{}\"\r\n\
             Content-Type: application/octet-stream\r\n\r\n",
            frozen.file
        );
        let answer = http::post(API, "/api2/json/nodes/{}/storage/{}/upload", &[&frozen.node, &frozen.storage])
            .body(
                &format!("multipart/form-data; boundary={boundary}"),
                vec![head.into(), image.into(), format!("\r\n--{boundary}--\r\n").into()],
            )
            .send()?;
        pve::progress(&answer, &frozen.volume(), ctx.now(), &doing)
    }

    fn delete(&self, ctx: &Context<ProxmoxMachine>) -> Result<Progress> {
        let frozen = frozen(ctx)?;
        let volume = frozen.volume();
        let before: Option<IsoState> = ctx.known(ISO).map(|known| known.state()).transpose()?.flatten();
        if let Some((_, text)) = before.and_then(|before| before.failed) {
            return Err(Error::transient("TaskFailed", format!("removing {volume}: {text}; it is tried again")));
        }
        // A running machine keeps its drive; one that goes is gone already.
        if bound(ctx)
            && !going(ctx)
            && let Some(progress) = eject(ctx, &volume)?
        {
            return Ok(progress);
        }
        let doing = format!("deleting {volume} from node {}", frozen.node);
        let answer =
            http::delete(API, "/api2/json/nodes/{}/storage/{}/content/{}", &[&frozen.node, &frozen.storage, &volume])
                .send()?;
        pve::progress(&answer, &volume, ctx.now(), &doing)
    }
}

/// Takes the image out of the drive, where it is in it.
fn eject(ctx: &Context<ProxmoxMachine>, volume: &str) -> Result<Option<Progress>> {
    let Some((vmid, node)) = whereabouts::place(ctx)? else { return Ok(None) };
    let whereabouts::Found::At { node, config } = whereabouts::find(vmid, &node)? else { return Ok(None) };
    if config.volume(DRIVE).as_deref() != Some(volume) {
        return Ok(None);
    }
    if let Some(lock) = config.get("lock") {
        let message = format!("VM {vmid} is locked ({lock}): its first-boot data stays in its drive until then");
        return Ok(Some(Progress::waiting("VMLocked", message)));
    }
    let doing = format!("taking the first-boot data out of the drive of VM {vmid} on node {node}");
    let answer = http::post(API, "/api2/json/nodes/{}/qemu/{}/config", &[&node, &vmid.to_string()])
        .form(&[(DRIVE, "none,media=cdrom")])
        .send()?;
    pve::progress(&answer, volume, ctx.now(), &doing).map(Some)
}

/// cloud-init's metadata, as JSON.
fn metadata(ctx: &Context<ProxmoxMachine>, vm: &VmState) -> String {
    let mut data = json!({"instance-id": vm.uuid, "local-hostname": ctx.name(), "hostname": ctx.name()});
    let mut set = |key: &str, value: String| {
        if let Some(map) = data.as_object_mut() {
            map.insert(key.to_owned(), Value::from(value));
        }
    };
    if ctx.spec.metadata_settings.provider_id_injection == Some(true) {
        set("provider-id", format!("proxmox://{}", vm.uuid));
    }
    if let Some(version) = ctx.machine().and_then(|machine| machine.kubernetes_version()) {
        set("kubernetes-version", version);
    }
    data.to_string()
}

#[cfg(test)]
#[path = "iso_tests.rs"]
mod tests;
