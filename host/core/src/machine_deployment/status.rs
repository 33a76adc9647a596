//! Counters, conditions and phase of a MachineDeployment.

use std::sync::Arc;

use capstan_api::Object;
use capstan_api::machine_deployment::MachineDeploymentSpec;

use super::rollout::Bounds;
use crate::conditions::{Condition, Status, named};
use crate::difference::Draft;
use crate::machine_set::status::{
    blocked_because, counters, machines_ready, machines_up_to_date, remediating, scaling,
};

pub(super) fn complete(
    draft: &mut Draft,
    spec: &MachineDeploymentSpec,
    bounds: Bounds,
    machines: &[Arc<Object>],
    sets: &[&Arc<Object>],
    now: u64,
) {
    counters(draft, machines, &spec.selector.to_query());
    let count =
        |kind: &str| i64::try_from(machines.iter().filter(|m| Condition::holds(m, kind)).count()).unwrap_or_default();
    let (available, total) = (count("Available"), i64::try_from(machines.len()).unwrap_or_default());
    draft.condition(if available >= bounds.fewest() {
        Condition::yes("Available", "Available")
    } else {
        let message = format!(
            "{available} available replicas, at least {} required (spec.replicas is {}, at most {} may be unavailable)",
            bounds.fewest(),
            bounds.desired,
            bounds.unavailable
        );
        Condition::no("Available", "NotAvailable", message)
    });
    draft.condition(machines_ready("MachinesReady", machines));
    draft.condition(machines_up_to_date("MachinesUpToDate", machines, now));
    draft.condition(rolling_out(machines));
    let want = usize::try_from(bounds.desired).unwrap_or_default();
    scaling(draft, machines.len(), want, &blocked(sets));
    draft.condition(remediating(machines));
    draft.condition(Condition::no("Deleting", "NotDeleting", ""));
    let phase = if total > bounds.desired {
        "ScalingDown"
    } else if total < bounds.desired || available < bounds.desired {
        "ScalingUp"
    } else {
        "Running"
    };
    draft.set("/status/phase", Some(phase.into()));
}

/// What keeps the MachineSets from making Machines, each reason once.
fn blocked(sets: &[&Arc<Object>]) -> Vec<String> {
    let mut reasons: Vec<String> = Vec::new();
    for up in sets.iter().filter_map(|set| Condition::of(set, "ScalingUp")).filter(|up| up.status == Status::True) {
        for reason in blocked_because(&up.message) {
            if !reasons.iter().any(|known| known == reason) {
                reasons.push(reason.to_owned());
            }
        }
    }
    reasons
}

/// `RollingOut`: some Machines are not what would be made today, and why.
fn rolling_out(machines: &[Arc<Object>]) -> Condition {
    let stale: Vec<Condition> =
        machines.iter().filter_map(|m| Condition::of(m, "UpToDate")).filter(|c| c.status == Status::False).collect();
    if stale.is_empty() {
        return Condition::no("RollingOut", "NotRollingOut", "");
    }
    let mut reasons: Vec<&str> = stale.iter().flat_map(|c| c.message.lines()).collect();
    reasons.sort_unstable();
    reasons.dedup();
    let message = format!("Rolling out {} not up-to-date replicas\n{}", stale.len(), reasons.join("\n"));
    Condition::new("RollingOut", true, "RollingOut", message)
}

/// Conditions while the MachineSets go.
pub(super) fn deleting(draft: &mut Draft, sets: &[Arc<Object>]) {
    let names: Vec<&str> = sets.iter().map(|s| s.name()).collect();
    let message = format!("Deleting {}", named("MachineSet", &names));
    draft.condition(Condition::new("Deleting", true, "Deleting", message));
    draft.set("/status/phase", Some("ScalingDown".into()));
}
