//! Where a number leads, and whose what is found there is.

use capstan_provider::{Context, Error, Known, Operation, Presence, Reason, Result, http};
use serde_json::Value;

use crate::{
    API,
    config::Config,
    machine::ProxmoxMachine,
    placement::Frozen,
    pve,
    vm::{LOCKED, VM, VmState},
};

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

pub fn config_at(vmid: u64, node: &str) -> Result<Option<Config>> {
    let doing = format!("looking at VM {vmid} on node {node}");
    let told = pve::told("/api2/extjs/nodes/{}/qemu/{}/config", &[node, &vmid.to_string()], &doing)?;
    match (told.is_success(), told.is_missing()) {
        (true, _) => told.data(&doing).map(Some),
        (false, true) => Ok(None),
        (false, false) => Err(told.failure(&doing)),
    }
}

/// Whose it is.
pub enum Owner {
    /// Ours.
    Ours,
    /// It is being made, and nothing says by whom yet.
    Unfinished,
    /// Somebody else's; why.
    Foreign(String),
}

pub fn owner(ctx: &Context<ProxmoxMachine>, known: &Known, before: Option<&VmState>, config: &Config) -> Owner {
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

/// A clone whose task is not known.
pub fn cloning() -> Operation {
    Operation { token: "clone".to_owned(), look_again_after: LOCKED }
}

/// The number is taken, and by whom cannot be seen. It is somebody else's where the token would see its own, which it may not before
/// the clone is whole and in its pool.
pub fn hidden(ctx: &Context<ProxmoxMachine>, known: &Known, why: String) -> Result<Presence> {
    let vmid = known.id.clone().unwrap_or_default();
    if let Some(frozen) = known.frozen::<Frozen>()?
        && pve::is_running("qmclone", Some(frozen.template))?
    {
        return Ok(Presence::Pending(cloning()));
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
