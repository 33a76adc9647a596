//! Whether a Machine is what its owner would make today.

use std::time::Duration;

use capstan_api::Object;
use capstan_api::well_known::{CLONED_FROM_NAME, CLUSTER_GROUP, CONTROL_PLANE, REVISION};

use super::controller;
use crate::conditions::Condition;
use crate::contract_read::Reference;
use crate::difference::Draft;
use crate::machine_deployment::template::{Staleness, staleness};
use crate::plan::Plan;
use crate::view::{NotNow, Place, View};

/// `UpToDate`: for a Machine of a MachineDeployment, whether its MachineSet is the current one; for one of a control
/// plane, whether version and infrastructure template are. A MachineSet by itself never replaces its Machines, so
/// its Machines have no such condition.
pub(super) fn up_to_date(draft: &mut Draft, plan: &mut Plan, view: &dyn View, now: u64) -> Result<(), NotNow> {
    let Some(owner) = controller(&draft.new, view)? else { return Ok(()) };
    let reasons = if owner.group() == CLUSTER_GROUP && owner.kind() == "MachineSet" {
        let Some(deployment) = controller(&owner, view)? else { return Ok(()) };
        match staleness(&deployment, &owner, now) {
            Staleness::Current => Vec::new(),
            Staleness::CurrentUntil(then) => {
                plan.look_again_in(Duration::from_millis(then.saturating_sub(now)));
                Vec::new()
            }
            Staleness::Stale(reasons) => reasons,
        }
    } else if draft.new.label(CONTROL_PLANE).is_some() {
        control_plane_reasons(draft, &owner, view)?
    } else {
        return Ok(());
    };
    draft.condition(if reasons.is_empty() {
        Condition::yes("UpToDate", "UpToDate")
    } else {
        let lines: Vec<String> = reasons.iter().map(|reason| format!("* {reason}")).collect();
        Condition::no("UpToDate", "NotUpToDate", lines.join("\n"))
    });
    Ok(())
}

fn control_plane_reasons(draft: &Draft, owner: &Object, view: &dyn View) -> Result<Vec<String>, NotNow> {
    let mut reasons = Vec::new();
    if let (Some(want), Some(have)) = (owner.str_at("/spec/version"), draft.new.str_at("/spec/version"))
        && want != have
    {
        reasons.push(format!("Version {have}, {want} required"));
    }
    let template = owner
        .str_at("/spec/machineTemplate/spec/infrastructureRef/name")
        .or_else(|| owner.str_at("/spec/machineTemplate/infrastructureRef/name"));
    if let (Some(template), Some(reference)) = (template, Reference::at(&draft.new, "/spec/infrastructureRef")) {
        let infra = match view.get(&Place::Management, &reference.key(draft.new.namespace())) {
            Ok(infra) => infra,
            Err(NotNow::NoSuchKind { .. }) => None,
            Err(other) => return Err(other),
        };
        if let Some(from) =
            infra.as_deref().and_then(|i| i.annotation(CLONED_FROM_NAME)).filter(|from| *from != template)
        {
            reasons.push(format!("{} cloned from {from}, {template} required", reference.kind));
        }
    }
    Ok(reasons)
}

/// Whether the Machine's MachineSet has an older revision than its MachineDeployment; its Node is then avoided by new
/// Pods.
pub(super) fn is_outdated(machine: &Object, view: &dyn View) -> Result<bool, NotNow> {
    let Some(set) = controller(machine, view)?.filter(|o| o.kind() == "MachineSet") else { return Ok(false) };
    let Some(deployment) = controller(&set, view)? else { return Ok(false) };
    let revision = |o: &Object| o.annotation(REVISION).and_then(|r| r.parse::<u64>().ok());
    Ok(matches!((revision(&set), revision(&deployment)), (Some(set), Some(deployment)) if set < deployment))
}
