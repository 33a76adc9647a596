//! MachineDeployment: equal Machines, and the rollout of changes to their template.
//!
//! A change of version, bootstrap, infrastructure or failure domain makes a new MachineSet, and [`rollout`] says how the
//! replicas move from the old ones to it; what else changes is carried over in place. The counts come from the Machines
//! themselves. What is deleted when a rollout is over is said here too: old sets without Machines.
//!
//! Not here yet: in-place updates, and limits on the replacement of unhealthy Machines.

pub mod rollout;
mod sets;
mod status;
pub mod template;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use capstan_api::machine_deployment::{MachineDeploymentSpec, RollingUpdate};
use capstan_api::well_known::{CLUSTER_GROUP, CLUSTER_NAME, DESIRED_REPLICAS, MACHINE_DEPLOYMENT_FINALIZER, REVISION};
use capstan_api::{Object, ObjectKey};
use serde_json::json;

use self::rollout::{Bounds, SetState, on_delete, proportional, rolling};
use self::template::{Staleness, current, staleness};
use crate::conditions::Condition;
use crate::contract_read::{Found, Reference, cluster, follow, is_paused, paused};
use crate::difference::Draft;
use crate::machine::PATIENCE;
use crate::ownership::{claim, created, delete, with_owner};
use crate::plan::{EventNote, Plan, Write};
use crate::view::{NotNow, Place, Select, View};

#[cfg(test)]
mod tests;

/// Decides for a MachineDeployment.
///
/// # Errors
/// When something it needs to know is not known now.
pub fn decide_machine_deployment(key: &ObjectKey, view: &dyn View, now: u64) -> Result<Plan, NotNow> {
    let Some(deployment) = view.get(&Place::Management, key)? else { return Ok(Plan::nothing()) };
    let cluster = cluster(view, &key.namespace, deployment.str_at("/spec/clusterName").unwrap_or_default())?;
    let mut plan = Plan::nothing();
    let mut draft = Draft::of(&deployment);
    draft.condition(paused(cluster.as_deref(), &deployment));
    if is_paused(cluster.as_deref(), &deployment) {
        draft.finish(&mut plan, &[], now);
        return Ok(plan);
    }
    let spec: MachineDeploymentSpec = match serde_json::from_value(deployment.at("/spec").cloned().unwrap_or_default())
    {
        Ok(spec) => spec,
        Err(error) => {
            draft.condition(Condition::no("Available", "InvalidSpec", format!("spec cannot be read: {error}")));
            draft.finish(&mut plan, &[], now);
            return Ok(plan);
        }
    };
    let select = Select::Label(CLUSTER_NAME.into(), spec.cluster_name.clone());
    let (mut sets, orphans) = members(&deployment, &spec, &select, view)?;
    if deployment.is_deleting() {
        return Ok(take_down(draft, &sets, now));
    }
    let Some(cluster) = cluster else {
        let message = format!("spec.clusterName names Cluster {:?}, which is not in this namespace", spec.cluster_name);
        draft.condition(Condition::no("Available", "ClusterNotFound", message));
        draft.finish(&mut plan, &[], now);
        return Ok(plan);
    };

    draft.add_finalizer(MACHINE_DEPLOYMENT_FINALIZER);
    if deployment.label(CLUSTER_NAME) != Some(cluster.name()) {
        draft.new.set_label(CLUSTER_NAME, cluster.name());
    }
    if let Ok(Some(owners)) = with_owner(&deployment, &cluster.as_owner(false)) {
        draft.new.set("/metadata/ownerReferences", json!(owners));
    }
    for orphan in orphans {
        if claim(&mut plan, &orphan, &deployment.as_owner(true), cluster.name()).is_ok() {
            sets.push(orphan);
        }
    }
    own_templates(&deployment, &cluster, &mut plan, view)?;
    sets.sort_by(|a, b| (created(a), a.name()).cmp(&(created(b), b.name())));

    let machines = view.list(&Place::Management, CLUSTER_GROUP, "Machine", &key.namespace, &select)?;
    let mut by_set: BTreeMap<String, Vec<Arc<Object>>> = BTreeMap::new();
    for machine in machines {
        if let Some(owner) = machine.controller() {
            by_set.entry(owner.uid).or_default().push(machine);
        }
    }
    let of = |set: &Object| by_set.get(set.uid()).map(Vec::as_slice).unwrap_or_default();

    let now_current = current(&deployment, &sets, now).map(|set| set.name().to_owned());
    if let Some(set) = sets.iter().find(|s| Some(s.name()) == now_current.as_deref())
        && let Staleness::CurrentUntil(then) = staleness(&deployment, set, now)
    {
        plan.look_again_in(Duration::from_millis(then.saturating_sub(now)));
    }
    let mut states: Vec<SetState> = sets
        .iter()
        .filter(|set| !set.is_deleting())
        .map(|set| state(set, of(set), Some(set.name()) == now_current.as_deref()))
        .collect();
    let held = spec.paused == Some(true);
    if now_current.is_none() && !held {
        states.push(SetState { current: true, ..SetState::default() });
    }
    let bounds = bounds(&spec);
    let scaled = sets.iter().any(|s| {
        s.int_at("/spec/replicas").unwrap_or(1) > 0
            && s.annotation(DESIRED_REPLICAS).is_some_and(|d| d != bounds.desired.to_string())
    });
    if held {
        if scaled {
            let many = states.iter().filter(|s| s.wanted > 0).count() > 1;
            proportional(if many { bounds.most() } else { bounds.desired }, &mut states);
        }
    } else if is_on_delete(&spec) {
        on_delete(bounds.desired, &mut states);
    } else {
        rolling(bounds, &mut states);
    }

    let live: Vec<&Arc<Object>> = sets.iter().filter(|s| !s.is_deleting()).collect();
    let writer = sets::Writer { deployment: &deployment, spec: &spec, cluster: &cluster, bounds };
    let revision = writer.revision(&live, now_current.as_deref());
    for (set, state) in live.iter().zip(&states) {
        writer.bring_up_to(set, state, state.current.then_some(revision), &mut plan);
    }
    if let Some(state) = states.get(live.len()) {
        let set = writer.new_set(&sets, state.wanted, revision, now);
        let message = format!("Created MachineSet {}", set.name());
        plan.events.push(note(&deployment, "SuccessfulCreate", message));
        plan.writes.push(Write::Create(set));
    }
    if !held || now_current.is_some() {
        draft.new.set_annotation(REVISION, &revision.to_string());
    }
    let all: Vec<Arc<Object>> = sets.iter().flat_map(|set| of(set).iter().cloned()).collect();
    let done = all.len() == usize::try_from(bounds.desired).unwrap_or_default()
        && states.iter().all(|s| s.current || s.alive + s.deleting == 0);
    if done && !held {
        for (set, state) in live.iter().zip(&states) {
            let empty = state.wanted == 0 && state.alive + state.deleting == 0;
            if !state.current && empty && set.int_at("/spec/replicas") == Some(0) {
                delete(&mut plan, set);
            }
        }
    }
    status::complete(&mut draft, &spec, bounds, &all, &live, now);
    draft.patience(PATIENCE);
    draft.finish(&mut plan, &[], now);
    Ok(plan)
}

fn note(deployment: &Object, reason: &str, message: String) -> EventNote {
    EventNote { regarding: deployment.key(), normal: true, reason: reason.into(), message }
}

fn is_on_delete(spec: &MachineDeploymentSpec) -> bool {
    let strategy = spec.rollout.as_ref().and_then(|r| r.strategy.as_ref());
    strategy.is_some_and(|s| s.kind.as_deref() == Some("OnDelete"))
}

/// The bounds of the rollout; `OnDelete` has no leeway.
fn bounds(spec: &MachineDeploymentSpec) -> Bounds {
    let desired = i64::from(spec.replicas.unwrap_or(1));
    if is_on_delete(spec) {
        return Bounds { desired, surge: 0, unavailable: 0 };
    }
    let rolling: Option<&RollingUpdate> =
        spec.rollout.as_ref().and_then(|r| r.strategy.as_ref()).and_then(|s| s.rolling_update.as_ref());
    Bounds::of(desired, rolling)
}

fn state(set: &Object, machines: &[Arc<Object>], current: bool) -> SetState {
    let count =
        |of: &dyn Fn(&Object) -> bool| i64::try_from(machines.iter().filter(|m| of(m)).count()).unwrap_or_default();
    SetState {
        wanted: set.int_at("/spec/replicas").unwrap_or(1),
        alive: count(&|m| !m.is_deleting()),
        deleting: count(&|m| m.is_deleting()),
        available: count(&|m| !m.is_deleting() && Condition::holds(m, "Available")),
        current,
    }
}

/// The MachineSets that this MachineDeployment controls, and those that it may adopt.
type Members = (Vec<Arc<Object>>, Vec<Arc<Object>>);

fn members(
    deployment: &Object,
    spec: &MachineDeploymentSpec,
    select: &Select,
    view: &dyn View,
) -> Result<Members, NotNow> {
    let mut mine = Vec::new();
    let mut orphans = Vec::new();
    for set in view.list(&Place::Management, CLUSTER_GROUP, "MachineSet", deployment.namespace(), select)? {
        match set.controller() {
            Some(owner) if owner.uid == deployment.uid() => mine.push(set),
            Some(owner) if owner.kind == "MachineDeployment" && owner.name == deployment.name() => orphans.push(set),
            Some(_) => {}
            None if !spec.selector.is_empty() && spec.selector.matches(|key| set.label(key)) => orphans.push(set),
            None => {}
        }
    }
    orphans.retain(|set| !set.is_deleting() && !deployment.is_deleting());
    Ok((mine, orphans))
}

/// The templates go with the Cluster that uses them.
fn own_templates(deployment: &Object, cluster: &Object, plan: &mut Plan, view: &dyn View) -> Result<(), NotNow> {
    for pointer in ["/spec/template/spec/bootstrap/configRef", "/spec/template/spec/infrastructureRef"] {
        let Some(reference) = Reference::at(deployment, pointer) else { continue };
        if let Found::Object(duck) = follow(view, deployment.namespace(), pointer, &reference)? {
            // A plain owner is never refused.
            let _ = claim(plan, &duck.object, &cluster.as_owner(false), cluster.name());
        }
    }
    Ok(())
}

/// All MachineSets go, then the finalizer.
fn take_down(mut draft: Draft, sets: &[Arc<Object>], now: u64) -> Plan {
    let mut plan = Plan::nothing();
    if sets.is_empty() {
        draft.release(&mut plan, MACHINE_DEPLOYMENT_FINALIZER);
        return plan;
    }
    for set in sets {
        delete(&mut plan, set);
    }
    status::deleting(&mut draft, sets);
    draft.finish(&mut plan, &[], now);
    plan
}
