//! Phase, Ready and Available of a Machine.

use std::time::Duration;

use capstan_api::time::rfc3339;
use capstan_api::well_known::CERTIFICATES_EXPIRY;
use serde_json::Value;

use crate::conditions::{Condition, Reasons, Status, Summand, last_transition, summarize};
use crate::difference::Draft;
use crate::plan::Plan;

/// Conditions of a Machine as they will be: those set now, and the others as they are.
pub(crate) fn effective(draft: &Draft) -> Vec<Condition> {
    let mut all = draft.conditions.clone();
    let old = draft.old.at("/status/conditions").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    for kind in old.iter().filter_map(|c| c.get("type").and_then(Value::as_str)) {
        if !all.iter().any(|c| c.kind == kind) {
            all.extend(Condition::of(&draft.old, kind));
        }
    }
    all
}

/// What a live Machine's status says beside what the phases said.
pub(super) fn complete(draft: &mut Draft, plan: &mut Plan, now: u64) {
    draft.condition(Condition::no("Deleting", "NotDeleting", ""));
    draft.condition(Condition::no("Updating", "NotUpdating", ""));
    if let Some(expiry) = draft.new.annotation(CERTIFICATES_EXPIRY).map(str::to_owned) {
        draft.set("/status/certificatesExpiryDate", Some(expiry.into()));
    }
    summaries(draft, plan, now);
    let new = &draft.new;
    let name = if new.at("/status/nodeRef").is_some() && new.bool_at("/status/initialization/infrastructureProvisioned")
    {
        "Running"
    } else if new.str_at("/spec/providerID").is_some() {
        "Provisioned"
    } else if new.bool_at("/status/initialization/bootstrapDataSecretCreated") {
        "Provisioning"
    } else {
        "Pending"
    };
    phase(draft, name, now);
}

pub(super) fn phase(draft: &mut Draft, phase: &str, now: u64) {
    if draft.new.str_at("/status/phase") != Some(phase) {
        draft.set("/status/phase", Some(phase.into()));
        draft.set("/status/lastUpdated", Some(rfc3339(now).into()));
    }
}

/// `Ready` and `Available`.
pub(super) fn summaries(draft: &mut Draft, plan: &mut Plan, now: u64) {
    let all = effective(draft);
    let mut parts = vec![
        Summand::negative("Deleting", &all),
        Summand::negative("Updating", &all),
        Summand::positive("BootstrapConfigReady", &all),
        Summand::positive("InfrastructureReady", &all),
        Summand::positive("NodeHealthy", &all),
        Summand::optional("HealthCheckSucceeded", &all),
    ];
    for gate in draft.new.at("/spec/readinessGates").and_then(Value::as_array).into_iter().flatten() {
        let kind = gate.get("conditionType").and_then(Value::as_str).unwrap_or_default();
        let negative = gate.get("polarity").and_then(Value::as_str) == Some("Negative");
        parts.push(Summand { negative, ..Summand::positive(kind, &all) });
    }
    let ready = summarize("Ready", &parts, Reasons { yes: "Ready", no: "NotReady", unknown: "ReadyUnknown" });
    let available = if ready.status == Status::True {
        let wait =
            u64::try_from(draft.new.int_at("/spec/minReadySeconds").unwrap_or_default()).unwrap_or_default() * 1000;
        let was_ready = Condition::holds(&draft.old, "Ready");
        let since = last_transition(&draft.old, "Ready").filter(|_| was_ready).unwrap_or(now);
        let elapsed = now.saturating_sub(since);
        if elapsed >= wait {
            Condition::yes("Available", "Available")
        } else {
            plan.look_again_in(Duration::from_millis(wait - elapsed));
            Condition::no("Available", "WaitingForMinReadySeconds", "")
        }
    } else {
        Condition::no("Available", "NotReady", "")
    };
    draft.condition(ready);
    draft.condition(available);
}
