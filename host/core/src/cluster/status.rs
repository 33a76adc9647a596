//! Conditions and phase of a Cluster.

use std::sync::Arc;
use std::time::Duration;

use capstan_api::Object;
use serde_json::Value;

use super::members::Members;
use super::phases::PROVISIONED;
use crate::conditions::{Condition, Contribution, Reasons, Status, Summand, aggregate, summarize};
use crate::contract_read::{Duck, endpoint};
use crate::difference::Draft;
use crate::machine_set::status::{machines_ready, machines_up_to_date, remediating};
use crate::plan::Plan;
use crate::view::{Connection, View};

/// For how long (milliseconds) a connection may be down before it is said.
const GRACE: u64 = 50_000;

pub(super) fn complete(
    draft: &mut Draft,
    plan: &mut Plan,
    control_plane: Option<&Duck>,
    members: &Members,
    view: &dyn View,
    now: u64,
) {
    if draft.old.at("/spec/controlPlaneRef").is_none() {
        let initialized = draft.new.bool_at(super::phases::INITIALIZED);
        draft.condition(if initialized {
            Condition::yes("ControlPlaneAvailable", "Available")
        } else {
            Condition::no("ControlPlaneAvailable", "NotAvailable", "The control plane is not initialized yet")
        });
    }
    probe(draft, plan, view, now);
    draft.condition(workers_available(members));
    draft.condition(machines_ready("ControlPlaneMachinesReady", &members.control_plane));
    draft.condition(machines_ready("WorkerMachinesReady", &members.workers));
    draft.condition(machines_up_to_date("ControlPlaneMachinesUpToDate", &members.control_plane, now));
    draft.condition(machines_up_to_date("WorkerMachinesUpToDate", &members.workers, now));
    for (kind, not) in
        [("RollingOut", "NotRollingOut"), ("ScalingUp", "NotScalingUp"), ("ScalingDown", "NotScalingDown")]
    {
        let condition = any(kind, not, control_plane, members);
        draft.condition(condition);
    }
    let all: Vec<Arc<Object>> = members.control_plane.iter().chain(&members.workers).cloned().collect();
    draft.condition(remediating(&all));
    draft.condition(Condition::no("Deleting", "NotDeleting", ""));
    available(draft);
    let new = &draft.new;
    let phase = if new.bool_at(PROVISIONED) && endpoint(new).is_some() {
        "Provisioned"
    } else if new.at("/spec/infrastructureRef").is_some() || new.at("/spec/controlPlaneRef").is_some() {
        "Provisioning"
    } else {
        "Pending"
    };
    draft.set("/status/phase", Some(phase.into()));
}

/// `Available`: the summary that a user waits for.
pub(super) fn available(draft: &mut Draft) {
    let all = crate::machine::effective_conditions(draft);
    let mut parts = vec![
        Summand::negative("Deleting", &all),
        Summand::positive("RemoteConnectionProbe", &all),
        Summand::positive("InfrastructureReady", &all),
        Summand::positive("ControlPlaneAvailable", &all),
        Summand::positive("WorkersAvailable", &all),
    ];
    for gate in draft.new.at("/spec/availabilityGates").and_then(Value::as_array).into_iter().flatten() {
        let kind = gate.get("conditionType").and_then(Value::as_str).unwrap_or_default();
        let negative = gate.get("polarity").and_then(Value::as_str) == Some("Negative");
        parts.push(Summand { negative, ..Summand::positive(kind, &all) });
    }
    let reasons = Reasons { yes: "Available", no: "NotAvailable", unknown: "AvailableUnknown" };
    draft.condition(summarize("Available", &parts, reasons));
}

/// `RemoteConnectionProbe`.
fn probe(draft: &mut Draft, plan: &mut Plan, view: &dyn View, now: u64) {
    let failed = |message: String| Condition::no("RemoteConnectionProbe", "ProbeFailed", message);
    let condition = match view.connection(draft.old.namespace(), draft.old.name()) {
        Connection::Up => Condition::yes("RemoteConnectionProbe", "ProbeSucceeded"),
        Connection::Unknown => match Condition::of(&draft.old, "RemoteConnectionProbe") {
            // After a restart the connection is not there yet; that says nothing about the cluster.
            Some(known) if known.status == Status::True => known,
            _ => failed("Remote connection not established yet".into()),
        },
        Connection::Down { since, reason } => {
            let down = now.saturating_sub(since);
            match Condition::of(&draft.old, "RemoteConnectionProbe") {
                Some(known) if known.status == Status::True && down < GRACE => {
                    plan.look_again_in(Duration::from_millis(GRACE - down));
                    known
                }
                _ => failed(format!("Remote connection probe failed: {reason}")),
            }
        }
    };
    draft.condition(condition);
}

fn workers_available(members: &Members) -> Condition {
    if members.deployments.is_empty() {
        return Condition::yes("WorkersAvailable", "NoWorkers");
    }
    let of: Vec<Contribution> = members
        .deployments
        .iter()
        .map(|d| Contribution {
            kind: "MachineDeployment".into(),
            name: d.name().to_owned(),
            first: false,
            condition: Condition::of(d, "Available"),
        })
        .collect();
    let reasons = Reasons { yes: "Available", no: "NotAvailable", unknown: "AvailableUnknown" };
    aggregate("WorkersAvailable", "Available", &of, reasons, false)
}

/// A condition that is True when it is for the control plane, a MachineDeployment or a MachineSet by itself.
fn any(kind: &str, not: &str, control_plane: Option<&Duck>, members: &Members) -> Condition {
    let of: Vec<Contribution> = control_plane
        .into_iter()
        .map(|duck| &duck.object)
        .chain(&members.deployments)
        .chain(members.standalone_sets())
        .filter_map(|object| {
            let condition = Condition::of(object, kind)?;
            Some(Contribution {
                kind: object.kind().to_owned(),
                name: object.name().to_owned(),
                first: false,
                condition: Some(condition),
            })
        })
        .filter(|c| c.condition.as_ref().is_some_and(|c| c.status == Status::True))
        .collect();
    if of.is_empty() {
        return Condition::no(kind, not, "");
    }
    let message = aggregate(kind, kind, &of, Reasons { yes: "", no: "", unknown: "" }, true).message;
    Condition::new(kind, true, kind, message)
}
