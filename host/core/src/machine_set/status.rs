//! Counters and conditions of a MachineSet, and the conditions over many Machines that it has in common with
//! MachineDeployments.

use std::sync::Arc;

use capstan_api::Object;
use capstan_api::machine_set::MachineSetSpec;
use capstan_api::well_known::{CONTROL_PLANE, DEPLOYMENT_NAME};

use crate::conditions::{Condition, Contribution, Reasons, aggregate, named};
use crate::difference::Draft;
use crate::ownership::{created, version_counts};

/// A new Machine (milliseconds) may still lack `UpToDate`.
const YOUNG: u64 = 10_000;

fn count(machines: &[Arc<Object>], condition: &str) -> usize {
    machines.iter().filter(|m| Condition::holds(m, condition)).count()
}

/// `status.{replicas,readyReplicas,availableReplicas,upToDateReplicas,versions,selector}`.
pub(crate) fn counters(draft: &mut Draft, machines: &[Arc<Object>], selector: &str) {
    for (field, value) in [
        ("replicas", machines.len()),
        ("readyReplicas", count(machines, "Ready")),
        ("availableReplicas", count(machines, "Available")),
        ("upToDateReplicas", count(machines, "UpToDate")),
    ] {
        draft.set(&format!("/status/{field}"), Some(value.into()));
    }
    let versions = version_counts(machines);
    draft.set("/status/versions", versions.as_array().is_some_and(|v| !v.is_empty()).then_some(versions));
    draft.set("/status/selector", (!selector.is_empty()).then(|| selector.into()));
}

/// `MachinesReady`.
pub(crate) fn machines_ready(target: &str, machines: &[Arc<Object>]) -> Condition {
    if machines.is_empty() {
        return Condition::yes(target, "NoReplicas");
    }
    let reasons = Reasons { yes: "Ready", no: "NotReady", unknown: "ReadyUnknown" };
    aggregate(target, "Ready", &contributions(machines, "Ready"), reasons, false)
}

/// `MachinesUpToDate`; new Machines, and those that nobody would replace, are not expected to have the condition.
pub(crate) fn machines_up_to_date(target: &str, machines: &[Arc<Object>], now: u64) -> Condition {
    let known: Vec<Arc<Object>> = machines
        .iter()
        .filter(|m| {
            let judged = m.label(CONTROL_PLANE).is_some() || m.label(DEPLOYMENT_NAME).is_some();
            Condition::of(m, "UpToDate").is_some() || (judged && now.saturating_sub(created(m)) >= YOUNG)
        })
        .cloned()
        .collect();
    if known.is_empty() {
        return Condition::yes(target, "NoReplicas");
    }
    let reasons = Reasons { yes: "UpToDate", no: "NotUpToDate", unknown: "UpToDateUnknown" };
    aggregate(target, "UpToDate", &contributions(&known, "UpToDate"), reasons, false)
}

fn contributions(machines: &[Arc<Object>], condition: &str) -> Vec<Contribution> {
    machines
        .iter()
        .map(|m| Contribution {
            kind: "Machine".into(),
            name: m.name().to_owned(),
            first: m.label(CONTROL_PLANE).is_some(),
            condition: Condition::of(m, condition),
        })
        .collect()
}

/// Between what is to be done and the list of what keeps it from being done, in upstream's words.
const BLOCKED: &str = " is blocked because:\n";

/// The reasons in the message of a `ScalingUp` condition that is blocked.
pub(crate) fn blocked_because(message: &str) -> impl Iterator<Item = &str> {
    let list = message.split_once(BLOCKED).map(|(_, list)| list).unwrap_or_default();
    list.lines().filter_map(|line| line.strip_prefix("* "))
}

/// `ScalingUp` and `ScalingDown`.
pub(crate) fn scaling(draft: &mut Draft, have: usize, want: usize, blocked: &[String]) {
    let mut up = if have < want {
        Condition::new("ScalingUp", true, "ScalingUp", format!("Scaling up from {have} to {want} replicas"))
    } else {
        Condition::no("ScalingUp", "NotScalingUp", "")
    };
    if have < want && !blocked.is_empty() {
        let lines: Vec<String> = blocked.iter().map(|why| format!("* {why}")).collect();
        up.message = format!("{}{BLOCKED}{}", up.message, lines.join("\n"));
    }
    draft.condition(up);
    draft.condition(if have > want {
        Condition::new("ScalingDown", true, "ScalingDown", format!("Scaling down from {have} to {want} replicas"))
    } else {
        Condition::no("ScalingDown", "NotScalingDown", "")
    });
}

/// `Remediating`: a health check has asked for the replacement of Machines.
pub(crate) fn remediating(machines: &[Arc<Object>]) -> Condition {
    let asked: Vec<&str> = machines
        .iter()
        .filter(|m| Condition::of(m, "OwnerRemediated").is_some_and(|c| c.status == crate::conditions::Status::False))
        .map(|m| m.name())
        .collect();
    if asked.is_empty() {
        Condition::no("Remediating", "NotRemediating", "")
    } else {
        let message = format!("{} to be replaced", named("Machine", &asked));
        Condition::new("Remediating", true, "Remediating", message)
    }
}

pub(super) fn complete(
    draft: &mut Draft,
    spec: &MachineSetSpec,
    machines: &[Arc<Object>],
    blocked: &[String],
    now: u64,
) {
    counters(draft, machines, &spec.selector.to_query());
    draft.condition(machines_ready("MachinesReady", machines));
    draft.condition(machines_up_to_date("MachinesUpToDate", machines, now));
    let want = usize::try_from(spec.replicas.unwrap_or(1)).unwrap_or_default();
    scaling(draft, machines.len(), want, blocked);
    draft.condition(remediating(machines));
    draft.condition(Condition::no("Deleting", "NotDeleting", ""));
}

/// Conditions while the Machines go.
pub(super) fn deleting(draft: &mut Draft, machines: &[Arc<Object>]) {
    let names: Vec<&str> = machines.iter().map(|m| m.name()).collect();
    let message = format!("Deleting {}", named("Machine", &names));
    draft.condition(Condition::new("Deleting", true, "Deleting", message));
    draft.set("/status/replicas", Some(machines.len().into()));
    draft.set("/status/readyReplicas", Some(count(machines, "Ready").into()));
    draft.set("/status/availableReplicas", Some(count(machines, "Available").into()));
}
