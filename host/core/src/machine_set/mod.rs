//! MachineSet: a number of equal Machines.
//!
//! A Machine is made first, with finalizer, labels and owner, then the clones of the two templates with the Machine as
//! their controller, so nothing that is made is ever without an owner. Which Machines go when there are too many is
//! said in [`priority`]. A MachineSet never replaces Machines because its template changed.
//!
//! Not here yet: replacement of unhealthy Machines (it comes with MachineHealthCheck).

pub(crate) mod making;
mod preflight;
pub mod priority;
pub(crate) mod status;

use std::collections::BTreeSet;
use std::sync::Arc;

use capstan_api::machine_set::MachineSetSpec;
use capstan_api::well_known::{CLUSTER_GROUP, CLUSTER_NAME, DISABLE_MACHINE_CREATE, MACHINE_SET_FINALIZER};
use capstan_api::{Object, ObjectKey};
use serde_json::json;

use crate::conditions::Condition;
use crate::contract_read::{cluster, is_paused, paused};
use crate::difference::Draft;
use crate::machine::PATIENCE;
use crate::ownership::{claim, delete, with_owner};
use crate::plan::{EventNote, Plan, Write};
use crate::view::{NotNow, Place, Select, View};

#[cfg(test)]
mod tests;

/// Decides for a MachineSet.
///
/// # Errors
/// When something it needs to know is not known now.
pub fn decide_machine_set(key: &ObjectKey, view: &dyn View, now: u64) -> Result<Plan, NotNow> {
    let Some(set) = view.get(&Place::Management, key)? else { return Ok(Plan::nothing()) };
    let cluster = cluster(view, &key.namespace, set.str_at("/spec/clusterName").unwrap_or_default())?;
    let mut plan = Plan::nothing();
    let mut draft = Draft::of(&set);
    draft.condition(paused(cluster.as_deref(), &set));
    if is_paused(cluster.as_deref(), &set) {
        draft.finish(&mut plan, &[], now);
        return Ok(plan);
    }
    let spec = match read_spec(&set) {
        Ok(spec) => spec,
        Err(message) => {
            draft.condition(Condition::no("ScalingUp", "InvalidSpec", message));
            draft.finish(&mut plan, &[], now);
            return Ok(plan);
        }
    };
    let (machines, orphans) = members(&set, &spec, view)?;
    if set.is_deleting() {
        return Ok(take_down(draft, &machines, now));
    }
    let Some(cluster) = cluster else {
        let message = format!("spec.clusterName names Cluster {:?}, which is not in this namespace", spec.cluster_name);
        draft.condition(Condition::no("ScalingUp", "ClusterNotFound", message));
        draft.finish(&mut plan, &[], now);
        return Ok(plan);
    };

    draft.add_finalizer(MACHINE_SET_FINALIZER);
    if set.label(CLUSTER_NAME) != Some(cluster.name()) {
        draft.new.set_label(CLUSTER_NAME, cluster.name());
    }
    if set.controller().is_none()
        && let Ok(Some(owners)) = with_owner(&set, &cluster.as_owner(false))
    {
        draft.new.set("/metadata/ownerReferences", json!(owners));
    }
    let mut all = machines;
    for orphan in orphans {
        if claim(&mut plan, &orphan, &set.as_owner(true), cluster.name()).is_ok() {
            all.push(orphan);
        }
    }

    let maker = making::Maker::new(&set, &spec, &cluster, view)?;
    if set.controller().is_none() {
        maker.own_templates(&mut plan);
    }
    let mut blocked = maker.blocked.clone();
    if cluster.is_deleting() {
        blocked.push(format!("Cluster {} is being deleted", cluster.name()));
    }
    let wanted = usize::try_from(spec.replicas.unwrap_or(1)).unwrap_or_default();
    if all.len() < wanted && set.annotation(DISABLE_MACHINE_CREATE).is_none() {
        if blocked.is_empty() {
            blocked = preflight::blocked(&set, &spec, &cluster, view)?;
        }
        if blocked.is_empty() {
            let mut taken: BTreeSet<String> = all.iter().map(|m| m.name().to_owned()).collect();
            for index in all.len()..wanted {
                let name = making::new_name(&set, &spec, &taken, now, index);
                plan.writes.push(Write::Create(maker.machine(&name)));
                plan.events.push(note(&set, "SuccessfulCreate", format!("Created Machine {name}")));
                taken.insert(name);
            }
        }
    } else if all.len() > wanted {
        let order = spec.deletion.as_ref().and_then(|d| d.order.as_deref());
        for machine in priority::first_to_go(&all, order, now).into_iter().take(all.len() - wanted) {
            if !machine.is_deleting() {
                plan.events.push(note(&set, "SuccessfulDelete", format!("Deleted Machine {}", machine.name())));
            }
            delete(&mut plan, machine);
        }
    }
    for machine in all.iter().filter(|m| !m.is_deleting()) {
        maker.complete(machine, &mut plan, view)?;
        maker.keep_in_step(machine, &mut plan);
    }
    status::complete(&mut draft, &spec, &all, &blocked, now);
    let there = all.iter().filter(|m| Condition::holds(m, "Available")).count();
    if there != wanted {
        draft.patience(PATIENCE);
    }
    draft.finish(&mut plan, &[], now);
    Ok(plan)
}

fn read_spec(set: &Object) -> Result<MachineSetSpec, String> {
    let spec = set.at("/spec").cloned().unwrap_or_default();
    serde_json::from_value(spec).map_err(|error| format!("spec cannot be read: {error}"))
}

fn note(set: &Object, reason: &str, message: String) -> EventNote {
    EventNote { regarding: set.key(), normal: true, reason: reason.into(), message }
}

/// The Machines that this set controls, and those that it may adopt: selected, and nobody's.
type Members = (Vec<Arc<Object>>, Vec<Arc<Object>>);

fn members(set: &Object, spec: &MachineSetSpec, view: &dyn View) -> Result<Members, NotNow> {
    let select = Select::Label(CLUSTER_NAME.into(), spec.cluster_name.clone());
    let all = view.list(&Place::Management, CLUSTER_GROUP, "Machine", set.namespace(), &select)?;
    let mut mine = Vec::new();
    let mut orphans = Vec::new();
    for machine in all {
        match machine.controller() {
            Some(owner) if owner.uid == set.uid() => mine.push(machine),
            // A restored backup: the owner's name with the uid of its earlier life.
            Some(owner) if owner.kind == "MachineSet" && owner.name == set.name() => orphans.push(machine),
            Some(_) => {}
            None if !spec.selector.is_empty() && spec.selector.matches(|key| machine.label(key)) => {
                orphans.push(machine)
            }
            None => {}
        }
    }
    orphans.retain(|machine| !machine.is_deleting() && !set.is_deleting());
    Ok((mine, orphans))
}

/// All Machines go, then the finalizer.
fn take_down(mut draft: Draft, machines: &[Arc<Object>], now: u64) -> Plan {
    let mut plan = Plan::nothing();
    if machines.is_empty() {
        draft.release(&mut plan, MACHINE_SET_FINALIZER);
        return plan;
    }
    for machine in machines {
        delete(&mut plan, machine);
    }
    status::deleting(&mut draft, machines);
    draft.finish(&mut plan, &[], now);
    plan
}
