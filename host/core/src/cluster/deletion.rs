//! Deletion of a Cluster: workers → control plane → infrastructure → finalizer.

use std::sync::Arc;

use capstan_api::Object;
use capstan_api::well_known::CLUSTER_FINALIZER;

use super::members::Members;
use super::status::available;
use crate::conditions::{Condition, named};
use crate::contract_read::{Found, Reference, follow};
use crate::difference::Draft;
use crate::ownership::{controlled_by, delete, owned_by};
use crate::plan::Plan;
use crate::view::{NotNow, View};

pub(super) fn decide(draft: Draft, view: &dyn View, now: u64) -> Result<Plan, NotNow> {
    let mut plan = Plan::nothing();
    let cluster = Arc::clone(&draft.old);
    if !cluster.has_finalizer(CLUSTER_FINALIZER) {
        return Ok(plan);
    }
    let members = Members::of(&cluster, view)?;
    let below = [
        ("MachineDeployment", &members.deployments),
        ("MachineSet", &members.sets),
        ("worker Machine", &members.workers),
    ];
    if below.iter().any(|(_, objects)| !objects.is_empty()) {
        for (_, objects) in below {
            // What a controller looks after goes with its controller.
            for object in objects.iter().filter(|o| o.controller().is_none_or(|_| controlled_by(o, cluster.uid()))) {
                delete(&mut plan, object);
            }
        }
        return Ok(at_stage(draft, plan, "WaitingForWorkersDeletion", &still_there(&below), now));
    }
    if let Some(reference) = Reference::at(&cluster, "/spec/controlPlaneRef")
        && let Some(object) = found(&cluster, "spec.controlPlaneRef", &reference, view)?
    {
        delete(&mut plan, &object);
        let message = still_there_one(&object);
        return Ok(at_stage(draft, plan, "WaitingForControlPlaneDeletion", &message, now));
    }
    if !members.control_plane.is_empty() {
        for machine in members.control_plane.iter().filter(|m| m.controller().is_none()) {
            delete(&mut plan, machine);
        }
        let message = still_there(&[("control-plane Machine", &members.control_plane)]);
        return Ok(at_stage(draft, plan, "WaitingForControlPlaneDeletion", &message, now));
    }
    if let Some(reference) = Reference::at(&cluster, "/spec/infrastructureRef")
        && let Some(object) = found(&cluster, "spec.infrastructureRef", &reference, view)?
    {
        delete(&mut plan, &object);
        let message = still_there_one(&object);
        return Ok(at_stage(draft, plan, "WaitingForInfrastructureDeletion", &message, now));
    }
    draft.release(&mut plan, CLUSTER_FINALIZER);
    Ok(plan)
}

/// What a reference leads to, if it is there and this Cluster's.
fn found(cluster: &Object, path: &str, to: &Reference, view: &dyn View) -> Result<Option<Arc<Object>>, NotNow> {
    Ok(match follow(view, cluster.namespace(), path, to)? {
        Found::Object(duck) => {
            let free = duck.object.owner_references().is_empty();
            (free || owned_by(&duck.object, cluster.uid())).then_some(duck.object)
        }
        // A reference that leads nowhere has nothing behind it that could be waited for.
        Found::Missing | Found::Wrong(_) => None,
    })
}

fn still_there(of: &[(&str, &Vec<Arc<Object>>)]) -> String {
    let lines: Vec<String> = of
        .iter()
        .filter(|(_, objects)| !objects.is_empty())
        .map(|(kind, objects)| {
            let names: Vec<&str> = objects.iter().map(|o| o.name()).collect();
            format!("* {}", named(kind, &names))
        })
        .collect();
    format!("Waiting for these to be deleted:\n{}", lines.join("\n"))
}

fn still_there_one(object: &Object) -> String {
    let finalizers = object.finalizers();
    let held = if finalizers.is_empty() { String::new() } else { format!(" (held by {})", finalizers.join(", ")) };
    format!("Waiting for {} {} to be deleted{held}", object.kind(), object.name())
}

fn at_stage(mut draft: Draft, mut plan: Plan, reason: &str, message: &str, now: u64) -> Plan {
    draft.condition(Condition::new("Deleting", true, reason, message));
    available(&mut draft);
    draft.set("/status/phase", Some("Deleting".into()));
    draft.finish(&mut plan, &[], now);
    plan
}
