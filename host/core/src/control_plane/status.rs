//! The status of a control plane.

use std::collections::BTreeMap;

use capstan_api::Object;
use capstan_api::well_known::{CLUSTER_NAME, CONTROL_PLANE_NAME};
use serde_json::{Value, json};

use super::planning::PlanningRoutine;
use super::young;
use crate::conditions::{Condition, Contribution, Reasons, Status, aggregate};
use crate::contract::{ControlPlaneDecision, ControlPlaneStep};
use crate::difference::Draft;
use crate::plan::{Plan, Urgency, Write};
use crate::provider::{Problem, condition, paused_condition};

/// Counters that make others go on.
const URGENT: [&str; 2] = ["/status/readyReplicas", "/status/availableReplicas"];

/// Puts the status on the plan, as far as it differs and is worth telling by now.
pub(super) fn write(
    turn: &PlanningRoutine,
    plan: &mut Plan,
    decision: Option<&ControlPlaneDecision>,
    problem: Option<&(Problem, bool)>,
    now: u64,
) {
    let mut draft = Draft::of(&turn.subject);
    counters(turn, &mut draft);
    own_fields(&mut draft, decision);
    let certificates = !problem.is_some_and(|(_, certificates)| *certificates);
    conditions(turn, &mut draft, decision, problem, certificates);
    let mut status = Plan::nothing();
    let count = |object: &Object, at: &str| object.int_at(at).unwrap_or_default();
    if URGENT.iter().any(|at| count(&draft.old, at) != count(&draft.new, at)) {
        draft.urgent();
    }
    draft.finish(&mut status, &["/status/initialization"], now);
    for write in status.writes {
        let progress = matches!(write, Write::PatchStatus { urgency: Urgency::Soon, .. });
        match young(&turn.subject, now) {
            Some(after) if progress && problem.is_none() => plan.look_again_in(after),
            _ => plan.writes.push(write),
        }
    }
}

fn counters(turn: &PlanningRoutine, draft: &mut Draft) {
    let count = |of: &dyn Fn(&super::members::MemberOf) -> bool| turn.members.iter().filter(|m| of(m)).count();
    let wanted = turn.subject.str_at("/spec/version");
    let template = turn.template.as_ref().map(|template| template.name());
    let up_to_date = |m: &super::members::MemberOf| {
        !m.shown.deleting
            && m.shown.kubernetes_version.as_deref() == wanted
            && m.shown.cloned_from.as_deref() == template
    };
    draft.new.set("/status/replicas", turn.members.len().into());
    draft.new.set("/status/readyReplicas", count(&|m| m.shown.ready).into());
    draft.new.set("/status/availableReplicas", count(&|m| m.available).into());
    draft.new.set("/status/upToDateReplicas", count(&up_to_date).into());
    let selector = format!("{CLUSTER_NAME}={},{CONTROL_PLANE_NAME}={}", turn.cluster.name(), turn.subject.name());
    draft.new.set("/status/selector", selector.into());

    let mut versions: BTreeMap<&str, usize> = BTreeMap::new();
    for member in &turn.members {
        if let Some(version) =
            member.shown.kubernetes_version.as_deref().filter(|_| member.machine.0.contains_key("status"))
        {
            *versions.entry(version).or_default() += 1;
        }
    }
    let mut list: Vec<(&str, usize)> = versions.into_iter().collect();
    list.sort_by_key(|(version, _)| number(version));
    if let Some((oldest, _)) = list.first() {
        draft.new.set("/status/version", (*oldest).into());
    }
    let list: Vec<Value> = list.iter().map(|(v, n)| json!({"version": v, "replicas": n})).collect();
    if !list.is_empty() || draft.new.at("/status/versions").is_some() {
        draft.new.set("/status/versions", list.into());
    }
    if turn.initialized {
        draft.new.set("/status/initialization/controlPlaneInitialized", true.into());
        draft.new.set("/status/initialized", true.into());
        draft.new.set("/status/ready", (count(&|m| m.shown.ready) > 0).into());
    }
}

/// `v1.34.10` as numbers, so that it sorts after `v1.34.9`.
fn number(version: &str) -> Vec<u64> {
    version.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect()
}

/// Provider-owned fields.
fn own_fields(draft: &mut Draft, decision: Option<&ControlPlaneDecision>) {
    let Some(fields) = decision.and_then(|decision| decision.status.as_object()) else { return };
    for (field, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
        if !["conditions", "initialization", "observedGeneration"].contains(&field.as_str()) {
            draft.new.set(&format!("/status/{}", field.replace('~', "~0").replace('/', "~1")), value.clone());
        }
    }
}

fn conditions(
    turn: &PlanningRoutine,
    draft: &mut Draft,
    decision: Option<&ControlPlaneDecision>,
    problem: Option<&(Problem, bool)>,
    certificates: bool,
) {
    let reported = decision.map(|decision| decision.conditions.as_slice()).unwrap_or_default();
    for condition in reported.iter().filter_map(condition) {
        draft.condition(condition);
    }
    let initialized = Condition::new(
        "Initialized",
        turn.initialized,
        if turn.initialized { "Initialized" } else { "NotInitialized" },
        if turn.initialized { "" } else { "kubeadm has not left its configuration in the workload cluster yet" },
    );
    let available_certificates = match problem.filter(|_| !certificates) {
        Some((problem, _)) => Condition::no("CertificatesAvailable", &problem.reason, &problem.message),
        None => Condition::yes("CertificatesAvailable", "Available"),
    };
    let ready = turn.members.iter().filter(|member| member.shown.ready).count();
    let waits = match decision.map(|decision| &decision.step) {
        Some(ControlPlaneStep::Wait(reason)) => reason.message.clone(),
        _ => String::new(),
    };
    let available = if let Some((problem, _)) = problem {
        Condition::no("Available", &problem.reason, &problem.message)
    } else if !turn.initialized {
        let why = if turn.may_plan || turn.cluster.is_deleting() {
            initialized.message.clone()
        } else {
            format!("Cluster {} has no infrastructure or endpoint yet", turn.cluster.name())
        };
        Condition::no("Available", "NotAvailable", if waits.is_empty() { why } else { waits })
    } else if ready == 0 {
        Condition::no("Available", "NotAvailable", if waits.is_empty() { "no machine is ready".into() } else { waits })
    } else {
        Condition::yes("Available", "Available")
    };
    draft.condition(available);
    draft.condition(initialized);
    draft.condition(available_certificates);
    draft.condition(machines_ready(turn));
    let desired = turn.subject.int_at("/spec/replicas").and_then(|n| usize::try_from(n).ok()).unwrap_or(1);
    for (kind, holds, not) in [
        ("ScalingUp", turn.members.len() < desired, "NotScalingUp"),
        ("ScalingDown", turn.members.len() > desired, "NotScalingDown"),
    ] {
        if !reported.iter().any(|condition| condition.kind == kind) {
            draft.condition(Condition::new(kind, holds, if holds { kind } else { not }, ""));
        }
    }
    draft.condition(paused_condition(false));
}

fn machines_ready(turn: &PlanningRoutine) -> Condition {
    if turn.members.is_empty() {
        return Condition::new("MachinesReady", Status::True, "NoReplicas", "");
    }
    let of: Vec<Contribution> = turn
        .members
        .iter()
        .map(|member| Contribution {
            kind: "Machine".into(),
            name: member.machine.name().to_owned(),
            first: true,
            condition: Condition::of(&member.machine, "Ready"),
        })
        .collect();
    let reasons = Reasons { yes: "Ready", no: "NotReady", unknown: "ReadyUnknown" };
    aggregate("MachinesReady", "Ready", &of, reasons, false)
}
