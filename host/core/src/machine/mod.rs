//! Machine: from first-boot data and infrastructure to a Node, and back.
//!
//! Order: ownership and labels → bootstrap → infrastructure → Node → status. Each phase says what it waits for in a
//! condition and lets the next one run. Facts never go back: `status.initialization.*`, `status.nodeRef` and
//! `spec.providerID` stay once they are there.
//!
//! Not here yet: draining of Pods and waiting for volumes (a deleted Machine's Node is cordoned only), in-place
//! updates, and taints of `spec.taints`.

mod deletion;
mod node;
mod phases;
mod revision;
mod status;

pub(crate) use status::effective as effective_conditions;

use std::sync::Arc;

use capstan_api::well_known::{CLUSTER_NAME, MACHINE_FINALIZER};
use capstan_api::{Object, ObjectKey};
use serde_json::json;

use crate::conditions::Condition;
use crate::contract_read::{cluster, is_paused, paused};
use crate::difference::Draft;
use crate::ownership::with_owner;
use crate::plan::Plan;
use crate::view::{NotNow, Place, View};

#[cfg(test)]
mod tests;

/// What is written at once when it changes: others wait for it.
const URGENT: [&str; 1] = ["/status/nodeRef"];

/// For how long (milliseconds) a new object's mere progress is not worth a write: news will follow. Objects say in whole
/// seconds when they were made, so that it may be a second less.
pub(crate) const PATIENCE: u64 = 8_000;

/// Decides for a Machine.
///
/// # Errors
/// When something it needs to know is not known now.
pub fn decide_machine(key: &ObjectKey, view: &dyn View, now: u64) -> Result<Plan, NotNow> {
    let Some(machine) = view.get(&Place::Management, key)? else { return Ok(Plan::nothing()) };
    let cluster = cluster(view, &key.namespace, machine.str_at("/spec/clusterName").unwrap_or_default())?;
    let mut plan = Plan::nothing();
    let mut draft = Draft::of(&machine);
    draft.condition(paused(cluster.as_deref(), &machine));
    if is_paused(cluster.as_deref(), &machine) {
        draft.finish(&mut plan, &[], now);
        return Ok(plan);
    }
    if machine.is_deleting() {
        return deletion::decide(draft, cluster.as_deref(), view, now);
    }
    let Some(cluster) = cluster else {
        let name = machine.str_at("/spec/clusterName").unwrap_or_default();
        let message = format!("spec.clusterName names Cluster {name:?}, which is not in this namespace");
        draft.condition(Condition::no("Ready", "ClusterNotFound", message));
        draft.finish(&mut plan, &[], now);
        return Ok(plan);
    };

    draft.add_finalizer(MACHINE_FINALIZER);
    belong(&mut draft, &cluster);
    let owner = controller(&machine, view)?;
    let whose = phases::Whose::of(&cluster, owner.as_deref());
    phases::bootstrap(&mut draft, &mut plan, &whose, view)?;
    phases::infrastructure(&mut draft, &mut plan, &whose, view)?;
    let state = node::look(&draft.new, &cluster, view);
    node::bind(&mut draft, &state, &mut plan);
    if let node::State::Found(found) = &state {
        let outdated = revision::is_outdated(&draft.new, view)?;
        plan.writes.extend(node::sync(&draft.new, &cluster, found, outdated));
    }
    node::conditions(&mut draft, &state, now);
    revision::up_to_date(&mut draft, &mut plan, view, now)?;
    status::complete(&mut draft, &mut plan, now);
    draft.patience(PATIENCE);
    draft.finish(&mut plan, &URGENT, now);
    Ok(plan)
}

/// A Machine without a controller belongs to the Cluster itself.
fn belong(draft: &mut Draft, cluster: &Object) {
    if draft.new.label(CLUSTER_NAME) != Some(cluster.name()) {
        draft.new.set_label(CLUSTER_NAME, cluster.name());
    }
    if draft.new.controller().is_none()
        && let Ok(Some(owners)) = with_owner(&draft.new, &cluster.as_owner(false))
    {
        draft.new.set("/metadata/ownerReferences", json!(owners));
    }
}

/// The owner that controls a Machine or MachineSet, if it is there.
pub(crate) fn controller(machine: &Object, view: &dyn View) -> Result<Option<Arc<Object>>, NotNow> {
    let Some(owner) = machine.controller() else { return Ok(None) };
    match view.get(&Place::Management, &crate::ownership::owner_key(&owner, machine.namespace())) {
        Ok(found) => Ok(found.filter(|o| o.uid() == owner.uid)),
        Err(NotNow::NoSuchKind { .. }) => Ok(None),
        Err(other) => Err(other),
    }
}
