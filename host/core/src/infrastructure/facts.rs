//! From what a provider reports to spec and status.

use std::collections::BTreeSet;
use std::time::Duration;

use capstan_api::Object;
use serde_json::{Map, Value, json};

use crate::cluster_input::endpoint;
use crate::conditions::{Condition, Status};
use crate::contract::{ClusterFacts, Duty, MachineFacts, MachinePhase, ProviderCondition};
use crate::difference::Draft;
use crate::parts::Desk;
use crate::plan::Plan;
use crate::provider::{self, PATIENCE, Problem, code, condition, paused_condition};
use crate::record::{ENDPOINT, NODE_NAME, Record};
use crate::script::{Halt, Replay};
use crate::turn::{Call, Reply};

/// Fields of `status` that the host writes; a provider's own cannot have these names.
const HOST_FIELDS: [&str; 12] = [
    "conditions",
    "initialization",
    "ready",
    "addresses",
    "failureDomain",
    "failureDomains",
    "interruptible",
    "observedGeneration",
    "deprecated",
    "v1beta2",
    "failureReason",
    "failureMessage",
];

/// What the provider reports.
#[derive(Clone, Debug)]
pub(super) enum Facts {
    Cluster(ClusterFacts),
    Machine(MachineFacts),
}

/// Asks for the facts; `None` when there are none, which is noted as a problem.
pub(super) fn report(desk: &mut Desk<'_>, replay: &mut Replay<'_>) -> Result<Option<Facts>, Halt> {
    let is_machine = desk.job.served.duty == Duty::InfraMachine;
    let call = if is_machine { Call::ReportMachine } else { Call::ReportCluster };
    Ok(match desk.call(replay, call)?.reply {
        Ok(Reply::MachineFacts(facts)) if is_machine => Some(Facts::Machine(facts)),
        Ok(Reply::ClusterFacts(facts)) if !is_machine => Some(Facts::Cluster(facts)),
        Ok(_) => {
            desk.problems.push(Problem::violated("report answered with something else"));
            None
        }
        Err(error) => {
            desk.problem(&error, "reporting");
            None
        }
    })
}

/// The end of a live object's turn: the record, the facts and the conditions, and when to look again.
pub(super) fn finish(desk: &mut Desk<'_>, facts: Option<Facts>, all_ready: bool, now: u64) -> Plan {
    let mut facts = facts;
    if let Some(rule) = facts.as_ref().and_then(|facts| broken_rule(&desk.subject, facts, all_ready)) {
        desk.problems.push(Problem::violated(rule));
        facts = None;
    }
    let mut draft = Draft::of(&desk.subject);
    if worth_recording(desk) {
        desk.mark(&mut draft.new);
    }
    let provisioned_before = desk.subject.bool_at("/status/initialization/provisioned");
    let mut provisioned = provisioned_before;
    let mut state = Condition::no("Ready", "Provisioning", "");
    match &facts {
        Some(Facts::Machine(facts)) => {
            machine(&mut draft, facts);
            provisioned |= all_ready && facts.phase == MachinePhase::Running && desk.problems.is_empty();
            state = phase(facts.phase);
            if !all_ready && state.status == Status::True {
                state = Condition::no("Ready", "Provisioning", "not all parts of it are ready");
            }
        }
        Some(Facts::Cluster(facts)) => {
            cluster(&mut draft, facts, desk.job.failure_domains_as_map);
            provisioned |= all_ready && desk.problems.is_empty();
            if all_ready {
                state = Condition::yes("Ready", "Ready");
            }
        }
        None => {}
    }
    if provisioned && !provisioned_before {
        draft.new.set("/status/initialization/provisioned", true.into());
        draft.new.set("/status/ready", true.into());
    }
    let booting = desk.problems.is_empty() && !(provisioned && state.status == Status::True);
    ready_condition(desk, &mut draft, facts.as_ref(), state);
    if !desk.outdated.is_empty() {
        let all: Vec<&str> = desk.outdated.iter().map(|reason| reason.message.as_str()).collect();
        let reason = desk.outdated.first().map_or_else(|| "Outdated".to_owned(), |reason| code(&reason.code));
        draft.condition(Condition::no("UpToDate", &reason, all.join("; ")));
    } else if Condition::of(&desk.subject, "UpToDate").is_some() {
        draft.condition(Condition::yes("UpToDate", "UpToDate"));
    }
    draft.condition(paused_condition(false));

    let mut plan = Plan { events: std::mem::take(&mut desk.events), ..Plan::default() };
    if let Some(problem) = desk.problems.first() {
        plan.events.extend(provider::warning(&desk.subject, problem));
    }
    let age = provider::age(&desk.subject, now);
    let mut urgent =
        vec!["/status/initialization", "/status/addresses", "/status/failureDomains", "/status/failureDomain"];
    // A creation that fails is put on record right before its end: told later, it would be held back for that each time.
    let told = Condition::of(&desk.subject, "Ready").map(|ready| ready.reason);
    if desk.problems.first().is_some_and(|problem| told.as_deref() != Some(problem.reason.as_str())) {
        urgent.push("/status/conditions");
    }
    let unpaused = Condition::holds(&desk.subject, "Paused");
    let quiet = booting && !provisioned_before && age < PATIENCE && !unpaused;
    draft.finish(&mut plan, &urgent, now);
    if quiet {
        // What comes up in a moment is told when it is up.
        plan.writes.retain(|write| !matches!(write, crate::plan::Write::PatchStatus { .. }));
    }
    plan.look_again = look_again(desk, booting, age).map(Duration::from_millis);
    plan
}

fn look_again(desk: &Desk<'_>, booting: bool, age: u64) -> Option<u64> {
    let mut again = desk.again;
    let mut sooner = |after: u64| again = Some(again.map_or(after, |known| known.min(after)));
    if !desk.problems.is_empty() {
        if let Some(pause) = provider::pause(&desk.problems, desk.job.last_pause) {
            sooner(pause);
        }
        return again;
    }
    sooner(match (booting, desk.job.joining) {
        (true, _) => provider::booting(age),
        // Why a machine does not join is worth knowing soon.
        (false, true) => provider::booting(age).max(1_000),
        (false, false) if desk.job.silent => provider::SILENT,
        (false, false) => provider::resync(&desk.subject.key()),
    });
    again
}

/// Whether the record differs from what is in the annotation by more than states that nobody else reads: those are
/// written with the next change, and until then each turn observes them anew.
fn worth_recording(desk: &Desk<'_>) -> bool {
    let Ok(mut written) = Record::of(&desk.subject) else { return false };
    let mut wanted = desk.to_record();
    if written.parts.is_empty() != wanted.parts.is_empty() {
        return true;
    }
    if wanted.has_managed() && !desk.subject.has_finalizer(&desk.job.finalizer) {
        return true;
    }
    if !desk.job.states_are_shared {
        for part in written.parts.values_mut().chain(wanted.parts.values_mut()) {
            part.state = None;
        }
        wanted.parts.retain(|_, part| !part.borrowed);
        written.parts.retain(|_, part| !part.borrowed);
    }
    written != wanted
}

/// The rule of the contract that the facts break.
fn broken_rule(subject: &Object, facts: &Facts, all_ready: bool) -> Option<String> {
    let (status, conditions) = match facts {
        Facts::Cluster(facts) => (&facts.status, &facts.conditions),
        Facts::Machine(facts) => (&facts.status, &facts.conditions),
    };
    if let Some(odd) = own_fields_rule(status, conditions) {
        return Some(odd);
    }
    match facts {
        Facts::Machine(facts) => {
            let known = subject.str_at("/spec/providerID");
            match (known, facts.provider_id.as_deref()) {
                (Some(known), Some(new)) if known != new => Some(format!(
                    "the providerID of a machine never changes: it is {known:?}, and {new:?} was reported"
                )),
                (_, Some(new)) if new.is_empty() || new.len() > 512 => {
                    Some("a providerID has 1 to 512 characters".to_owned())
                }
                (None, None) if facts.phase == MachinePhase::Running && all_ready => {
                    Some("a machine that runs has a providerID".to_owned())
                }
                _ => None,
            }
        }
        Facts::Cluster(facts) => {
            if let Some(new) = &facts.control_plane_endpoint {
                if new.host.is_empty() || new.host.len() > 512 || new.port == 0 {
                    return Some("an endpoint has a host of 1 to 512 characters and a port of 1 to 65535".to_owned());
                }
                if let Some(known) = endpoint(subject).filter(|known| known != new) {
                    return Some(format!(
                        "the control-plane endpoint never changes: it is {}:{}, and {}:{} was reported",
                        known.host, known.port, new.host, new.port
                    ));
                }
            } else if all_ready && subject.annotation(ENDPOINT).is_some() {
                return Some("a control-plane endpoint that was reported does not disappear".to_owned());
            }
            let mut names = BTreeSet::new();
            facts.failure_domains.iter().find_map(|domain| {
                let fits = !domain.name.is_empty() && domain.name.len() <= 256;
                (!fits || !names.insert(&domain.name)).then(|| {
                    format!("failure domains have distinct names of 1 to 256 characters, not {:?}", domain.name)
                })
            })
        }
    }
}

fn own_fields_rule(status: &Value, conditions: &[ProviderCondition]) -> Option<String> {
    match status {
        Value::Null => {}
        Value::Object(fields) => {
            if let Some(taken) = fields.keys().find(|field| HOST_FIELDS.contains(&field.as_str())) {
                return Some(format!("status.{taken} is the host's field"));
            }
        }
        _ => return Some("the status of a report is a JSON object".to_owned()),
    }
    conditions
        .iter()
        .find(|reported| condition(reported).is_none())
        .map(|odd| format!("{:?} is no condition type", odd.kind))
}

fn machine(draft: &mut Draft, facts: &MachineFacts) {
    if let Some(provider_id) = &facts.provider_id
        && draft.new.str_at("/spec/providerID").is_none()
    {
        draft.new.set("/spec/providerID", provider_id.clone().into());
    }
    if let Some(node) = facts.node_name.as_deref().filter(|node| !node.is_empty())
        && draft.new.annotation(NODE_NAME) != Some(node)
    {
        draft.new.set_annotation(NODE_NAME, node);
    }
    // Addresses that are not known for the moment do not take the known ones away.
    if !facts.addresses.is_empty() {
        let list: Vec<Value> = facts.addresses.iter().map(|a| json!({"type": a.kind, "address": a.value})).collect();
        draft.new.set("/status/addresses", list.into());
    }
    if let Some(domain) = &facts.failure_domain {
        draft.new.set("/status/failureDomain", domain.clone().into());
    }
    if facts.interruptible {
        draft.new.set("/status/interruptible", true.into());
    }
    own_fields(draft, &facts.status);
}

fn cluster(draft: &mut Draft, facts: &ClusterFacts, as_map: bool) {
    if let Some(new) = &facts.control_plane_endpoint {
        if endpoint(&draft.new).is_none() {
            draft.new.set("/spec/controlPlaneEndpoint", json!({"host": new.host, "port": new.port}));
        }
        let text = format!("{}:{}", new.host, new.port);
        if draft.new.annotation(ENDPOINT) != Some(&text) {
            draft.new.set_annotation(ENDPOINT, &text);
        }
    }
    let mut domains = facts.failure_domains.clone();
    domains.sort_by(|a, b| a.name.cmp(&b.name));
    if !domains.is_empty() || draft.new.at("/status/failureDomains").is_some() {
        let each = domains.into_iter().map(|domain| {
            let mut value = Map::new();
            value.insert("name".into(), domain.name.clone().into());
            value.insert("controlPlane".into(), domain.control_plane.into());
            if !domain.attributes.is_empty() {
                value.insert("attributes".into(), json!(domain.attributes));
            }
            (domain.name, value)
        });
        let all = if as_map {
            let unnamed = each.map(|(name, mut value)| {
                value.shift_remove("name");
                (name, Value::Object(value))
            });
            Value::Object(unnamed.collect())
        } else {
            Value::Array(each.map(|(_, value)| Value::Object(value)).collect())
        };
        draft.new.set("/status/failureDomains", all);
    }
    own_fields(draft, &facts.status);
}

/// The provider's own fields of `status`: what it reports is there, what it does not report any more is not.
fn own_fields(draft: &mut Draft, status: &Value) {
    let none = Map::new();
    let fields = status.as_object().unwrap_or(&none);
    let known: Vec<String> = draft
        .new
        .at("/status")
        .and_then(Value::as_object)
        .map(|all| all.keys().filter(|k| !HOST_FIELDS.contains(&k.as_str())).cloned().collect())
        .unwrap_or_default();
    for gone in known.iter().filter(|field| !fields.contains_key(*field)) {
        draft.new.remove(&format!("/status/{}", gone.replace('~', "~0").replace('/', "~1")));
    }
    for (field, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
        draft.new.set(&format!("/status/{}", field.replace('~', "~0").replace('/', "~1")), value.clone());
    }
}

fn phase(phase: MachinePhase) -> Condition {
    match phase {
        MachinePhase::Running => Condition::yes("Ready", "Ready"),
        MachinePhase::Pending => Condition::no("Ready", "Provisioning", ""),
        MachinePhase::Stopped => Condition::no("Ready", "Stopped", "the machine does not run"),
        MachinePhase::Failed => Condition::no("Ready", "Failed", "the machine has failed"),
        MachinePhase::Deleting => Condition::no("Ready", "Deleting", "the machine is going away"),
    }
}

/// `Ready`: what the host knows first, then what the provider says, then what the machine does. The provider's other
/// conditions stand beside it.
fn ready_condition(desk: &Desk<'_>, draft: &mut Draft, facts: Option<&Facts>, state: Condition) {
    let reported: &[ProviderCondition] = match facts {
        Some(Facts::Cluster(facts)) => &facts.conditions,
        Some(Facts::Machine(facts)) => &facts.conditions,
        None => &[],
    };
    let mut bad: Option<Condition> = None;
    for condition in reported.iter().filter_map(condition) {
        if condition.status == Status::False && bad.is_none() {
            bad = Some(condition.clone());
        }
        if condition.kind != "Ready" && condition.kind != "Paused" {
            draft.condition(condition);
        }
    }
    let notes = || -> String {
        let all: Vec<&str> = desk.notes.iter().map(|note| note.message.as_str()).collect();
        all.join("; ")
    };
    let ready = if let Some(problem) = desk.problems.first() {
        Condition::no("Ready", &problem.reason, provider::messages(&desk.problems))
    } else if let Some(bad) = bad.filter(|bad| bad.kind == "Ready" || state.status == Status::True) {
        let message = if bad.message.is_empty() { bad.kind } else { bad.message };
        Condition::no("Ready", &bad.reason, message)
    } else if state.status != Status::True && !desk.notes.is_empty() {
        let message = if state.message.is_empty() { notes() } else { format!("{}; {}", state.message, notes()) };
        Condition { message, ..state }
    } else {
        state
    };
    draft.condition(ready);
}
