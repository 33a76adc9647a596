//! InfraCluster and InfraMachine: the contract of Cluster API's infrastructure providers, whatever the provider.
//!
//! The host waits for what must be there first (owner, the Cluster's infrastructure, first-boot data), drives the
//! provider's parts ([`crate::parts`]), and turns what the provider reports into spec and status. Facts never flip
//! back: a providerID, an endpoint and `provisioned` stay what they are once they are there.

mod facts;
mod node;
#[cfg(test)]
pub(crate) mod scene;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use capstan_api::well_known::CLUSTER_NAME;
use capstan_api::{Object, ObjectKey};
use serde_json::json;

use crate::cluster_input::{self, is_control_plane};
use crate::conditions::Condition;
use crate::contract::{Duty, Served};
use crate::difference::{Draft, merge_patch};
use crate::identity;
use crate::needs::{BootstrapData, Offers, text};
use crate::ownership::created;
use crate::parts::{Desk, Job, bring_up, take_down};
use crate::plan::{Plan, Urgency, Write};
use crate::provider::{self, Due, due_if_lost, not_due, paused_condition, told, waiting};
use crate::record::{OWNER_KEY, PARTS, Record, finalizer, minted_owner_key, owner_key};
use crate::script::{Halt, Replay, Routine, Script};
use crate::turn::{ClusterInput, TurnInput, TurnRequest};
use crate::view::{Connection, NotNow, Place, Select, View};

#[cfg(test)]
mod safety_tests;
#[cfg(test)]
mod tests;

/// Decides for an InfraCluster or InfraMachine.
///
/// # Errors
/// When something it needs to know is not known now.
pub fn decide(key: &ObjectKey, served: &Served, view: &dyn View, now: u64) -> Result<Plan, NotNow> {
    let Some(object) = view.get(&Place::Management, key)? else { return Ok(Plan::nothing()) };
    let is_machine = served.duty == Duty::InfraMachine;
    let finalizer = finalizer(object.group(), object.kind());
    let deleting = object.is_deleting();
    if deleting && !object.has_finalizer(&finalizer) {
        return Ok(Plan::nothing());
    }
    let machine = if is_machine { cluster_input::owner(view, &object, "Machine")? } else { None };
    let cluster = match &machine {
        Some(machine) => match machine.str_at("/spec/clusterName") {
            Some(name) => cluster_input::cluster(view, object.namespace(), name)?,
            None => None,
        },
        None if is_machine => match object.label(CLUSTER_NAME) {
            Some(name) => cluster_input::cluster(view, object.namespace(), name)?,
            None => None,
        },
        None => cluster_input::owner(view, &object, "Cluster")?,
    };
    if cluster_input::paused(cluster.as_deref(), &object) {
        return Ok(told(&object, vec![paused_condition(true)], now));
    }
    if !is_machine && cluster_input::managed_elsewhere(&object) {
        return Ok(Plan::nothing());
    }
    let record = match Record::of(&object) {
        Ok(record) => record,
        Err(why) => {
            let unread = Condition::no("Ready", "RecordUnreadable", why.to_string());
            return Ok(told(&object, vec![unread, paused_condition(false)], now));
        }
    };
    if let Some(twin) = twin(view, &object)? {
        return Ok(told(&object, vec![twin, paused_condition(false)], now));
    }

    let mut early = Plan::nothing();
    let mut offers;
    if deleting {
        let name = cluster.as_ref().map(|c| c.name()).or(object.label(CLUSTER_NAME)).unwrap_or_default().to_owned();
        offers = Offers::named(&object, &name, served, view)?;
        if is_machine {
            offers.bootstrap_data = BootstrapData::Missing;
        }
    } else {
        // Nothing is done before the owner is known: it is set by whoever made the object.
        let Some(cluster) = &cluster else { return Ok(Plan::nothing()) };
        if is_machine && machine.is_none() {
            return Ok(Plan::nothing());
        }
        // Nothing is begun for what is on its way out.
        if !record.has_managed() && machine.as_ref().unwrap_or(cluster).is_deleting() {
            return Ok(Plan::nothing());
        }
        offers = Offers::named(&object, cluster.name(), served, view)?;
        offers.cluster_owner = Some(cluster.as_owner(false));
        if let Some(machine) = &machine {
            if !record.has_managed() {
                if !cluster.bool_at("/status/initialization/infrastructureProvisioned") {
                    let message = format!("Cluster {} has no infrastructure yet", cluster.name());
                    return Ok(waiting(&object, "WaitingForClusterInfrastructure", &message, now));
                }
                if machine.str_at("/spec/bootstrap/dataSecretName").is_none() {
                    let message = format!("Machine {} has no first-boot data yet", machine.name());
                    return Ok(waiting(&object, "WaitingForBootstrapData", &message, now));
                }
            }
            offers.bootstrap_data = BootstrapData::Missing;
            if let Some(name) = machine.str_at("/spec/bootstrap/dataSecretName") {
                let secret = ObjectKey::new("", "Secret", object.namespace(), name);
                if let Some(secret) = view.get(&Place::Management, &secret)?
                    && secret.at("/data/value").is_some()
                {
                    offers.bootstrap_data = BootstrapData::In(secret);
                }
            }
            if matches!(offers.bootstrap_data, BootstrapData::Missing) && !record.has_managed() {
                let message = format!("the Secret with first-boot data of Machine {} is not there", machine.name());
                return Ok(waiting(&object, "WaitingForBootstrapData", &message, now));
            }
            node::name_provider_id(view, &object, machine, &mut early)?;
        }
    }

    let infrastructure = match (&cluster, is_machine) {
        (Some(cluster), true) => cluster_input::infra_cluster(view, cluster)?,
        _ => None,
    };
    let shown = if is_machine { infrastructure.as_deref() } else { Some(object.as_ref()) };
    let mut input = match &cluster {
        Some(cluster) => cluster_input::cluster_input(cluster, shown, served),
        None => ClusterInput { name: offers.cluster.clone(), ..ClusterInput::default() },
    };
    if !is_machine {
        // An InfraCluster knows its own parts; its machines may be listed in its load balancer.
        input.infrastructure_state.clear();
        input.machines = cluster_input::machines(view, served, object.namespace(), &input.name)?;
    }
    let format = match &machine {
        Some(machine) => bootstrap_format(view, &object, machine)?,
        None => None,
    };
    let machine_input = machine.as_ref().map(|machine| cluster_input::machine_input(machine, format));

    let mut digested = input.clone();
    if !is_machine {
        digested.endpoint = None;
        digested.infrastructure_spec = None;
    }
    // A node that falls ill is a reason to look at its machine.
    let health = machine.as_ref().and_then(|machine| Condition::of(machine, "NodeHealthy"));
    // And so is an API server that does not answer: whether its machines, and what stands before them, still run.
    let silent = match (&cluster, &machine) {
        (Some(cluster), None) if !is_machine && cluster.bool_at("/status/initialization/controlPlaneInitialized") => {
            matches!(view.connection(cluster.namespace(), cluster.name()), Connection::Down { .. })
        }
        (Some(cluster), Some(machine)) if is_control_plane(machine) && machine.at("/status/nodeRef").is_some() => {
            matches!(view.connection(cluster.namespace(), cluster.name()), Connection::Down { .. })
        }
        _ => false,
    };
    let infrastructure_spec = infrastructure.as_deref().and_then(|infra| infra.at("/spec"));
    let endpoints = identity::sources(view, served, &object, infrastructure_spec)?;
    let more = json!([offers.digest(), health.map(|condition| condition.status.as_str()), silent, endpoints]);
    let inputs = cluster_input::inputs(&object, &digested, machine_input.as_ref(), more);
    let last = view.last_turn(key);
    let unpause = Condition::holds(&object, "Paused");
    let owner = if is_machine { machine.as_deref() } else { cluster.as_deref() };
    let known = owner.is_some_and(|owner| owner.bool_at("/status/initialization/infrastructureProvisioned"));
    let lost = !deleting
        && ((known && !object.bool_at("/status/initialization/provisioned"))
            || (record.has_managed() && !object.has_finalizer(&finalizer)));
    match due_if_lost(last.as_ref(), &inputs, lost, now) {
        Due::Now => {}
        later if !unpause => {
            let mut plan = not_due(later);
            plan.writes = early.writes;
            return Ok(plan);
        }
        _ => {}
    }
    let last_pause = last
        .filter(|last| last.inputs == inputs && !Condition::holds(&object, "Ready"))
        .and_then(|last| last.look_again);
    let reserved = reserved(view, &object, &record)?;
    let job = Job {
        reserved,
        subject: Arc::clone(&object),
        served: served.clone(),
        states_are_shared: !is_machine,
        failure_domains_as_map: view.contract(object.group(), object.kind())?.as_deref() == Some("v1beta1"),
        owner_key: owner_key(&object),
        finalizer,
        holder: view.holder(),
        offers,
        last_pause,
        joining: machine_input.as_ref().is_some_and(|machine| !machine.node_bound),
        silent,
    };
    early.turn = Some(TurnRequest {
        module: served.module.clone(),
        input: TurnInput {
            subject: Object::clone(&object),
            now,
            owner_key: job.owner_key.clone(),
            cluster: input,
            machine: machine_input,
            ..TurnInput::default()
        },
        inputs,
        course: Script::course(InfraRoutine { job, record }),
    });
    Ok(early)
}

/// How long (milliseconds) a new template may be without an owner before its status is written.
const UNOWNED: u64 = 2_000;

/// Says in a template's status what a machine made from it offers, for scaling from zero. A new template gets its owner
/// first: that patch is of the version it was decided on, and would have to be sent again.
pub fn template_capacity(template: &Arc<Object>, capacity: &[(String, String)], now: u64) -> Plan {
    let mut plan = Plan::nothing();
    if template.is_deleting() {
        return plan;
    }
    let age = now.saturating_sub(created(template));
    if template.owner_references().is_empty() && age < UNOWNED {
        plan.look_again_in(Duration::from_millis(UNOWNED - age));
        return plan;
    }
    let wanted: serde_json::Map<String, serde_json::Value> =
        capacity.iter().map(|(name, quantity)| (name.clone(), quantity.clone().into())).collect();
    let none = json!({});
    if let Some(changed) = merge_patch(template.at("/status/capacity").unwrap_or(&none), &wanted.into()) {
        plan.writes.push(Write::PatchStatus {
            key: template.key(),
            patch: json!({"status": {"capacity": changed}}),
            urgency: Urgency::Now,
        });
    }
    plan
}

/// The format of a machine's first-boot data, once it is there.
fn bootstrap_format(view: &dyn View, object: &Object, machine: &Object) -> Result<Option<String>, NotNow> {
    let Some(name) = machine.str_at("/spec/bootstrap/dataSecretName") else { return Ok(None) };
    let secret = view.get(&Place::Management, &ObjectKey::new("", "Secret", object.namespace(), name))?;
    Ok(secret.map(|secret| text(&secret, "format").unwrap_or_else(|| "cloud-config".to_owned())))
}

/// Another live object with the same owner key. An object whose key was minted for it is the first one; only one whose
/// key came with it (restored, moved or copied) has to look.
fn twin(view: &dyn View, object: &Object) -> Result<Option<Condition>, NotNow> {
    let Some(key) = object.annotation(OWNER_KEY).filter(|key| **key != minted_owner_key(object)) else {
        return Ok(None);
    };
    let all = view.list(&Place::Management, object.group(), object.kind(), "", &Select::All)?;
    let twin = all.iter().find(|other| other.uid() != object.uid() && owner_key(other) == key);
    Ok(twin.map(|twin| {
        let message = format!(
            "{} and {} have the same owner key, so what stands behind one could be taken for the other's; delete the \
             copy after taking its annotation {OWNER_KEY} and its finalizer away",
            object.key(),
            twin.key()
        );
        Condition::no("Ready", "OwnerKeyNotUnique", message)
    }))
}

/// Ids that other objects of the kind have chosen and the remote has not shown yet, by part. Only asked for where an id
/// may be chosen in the turn, so that an object at rest does not depend on all others. Not an input of the turn: another's
/// choice is no reason to look again.
fn reserved(view: &dyn View, object: &Object, record: &Record) -> Result<BTreeMap<String, Vec<String>>, NotNow> {
    let mut ids: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let at_rest =
        object.bool_at("/status/initialization/provisioned") && record.parts.values().all(|part| part.confirmed);
    if object.is_deleting() || at_rest {
        return Ok(ids);
    }
    for other in view.list(&Place::Management, object.group(), object.kind(), "", &Select::All)? {
        if other.uid() == object.uid() || other.annotation(PARTS).is_none() {
            continue;
        }
        // One whose record cannot be read says so itself.
        let Ok(theirs) = Record::of(&other) else { continue };
        for (name, part) in theirs.parts.into_iter().filter(|(_, part)| !part.confirmed && !part.borrowed) {
            if let Some(id) = part.id {
                ids.entry(name).or_default().push(id);
            }
        }
    }
    for ids in ids.values_mut() {
        ids.sort();
        ids.dedup();
    }
    Ok(ids)
}

/// The turn of an InfraCluster or InfraMachine.
#[derive(Clone, Debug)]
struct InfraRoutine {
    job: Job,
    record: Record,
}

impl Routine for InfraRoutine {
    fn run(&self, replay: &mut Replay<'_>) -> Result<Plan, Halt> {
        let mut desk = Desk::new(&self.job, self.record.clone());
        if desk.subject.is_deleting() { self.delete(&mut desk, replay) } else { self.live(&mut desk, replay) }
    }
}

impl InfraRoutine {
    fn live(&self, desk: &mut Desk<'_>, replay: &mut Replay<'_>) -> Result<Plan, Halt> {
        match self.job.offers.grant(replay, || self.record.known(&self.job.owner_key))? {
            Ok(grant) => {
                desk.granted = grant.granted;
                for why in grant.waiting {
                    desk.note("WaitingForAddress", why);
                }
            }
            Err(problem) => {
                desk.problems.push(problem);
                return Ok(facts::finish(desk, None, false, replay.now()));
            }
        }
        let all_ready = bring_up(desk, replay)?;
        // What is reported from an old look would flip the status back and forth.
        let facts = if desk.blind { None } else { facts::report(desk, replay)? };
        Ok(facts::finish(desk, facts, all_ready, replay.now()))
    }

    fn delete(&self, desk: &mut Desk<'_>, replay: &mut Replay<'_>) -> Result<Plan, Halt> {
        // What cannot be granted any more must not keep anything from being deleted.
        match self.job.offers.grant(replay, || self.record.known(&self.job.owner_key))? {
            Ok(grant) => desk.granted = grant.granted,
            Err(problem) => desk.note(&problem.reason, problem.message),
        }
        let gone = take_down(desk, replay)?;
        let now = replay.now();
        let mut plan = Plan { events: std::mem::take(&mut desk.events), ..Plan::default() };
        if gone {
            Draft::of(&desk.subject).release(&mut plan, &self.job.finalizer);
            return Ok(plan);
        }
        let mut draft = Draft::of(&desk.subject);
        if desk.to_record() != Record::of(&desk.subject).unwrap_or_default() {
            desk.mark(&mut draft.new);
        }
        let since = desk.subject.deletion_timestamp().and_then(capstan_api::time::millis).unwrap_or(now);
        let age = now.saturating_sub(since);
        let lasting = age >= provider::PATIENCE;
        if let Some(problem) = desk.problems.first() {
            plan.events.extend(provider::warning(&desk.subject, problem));
            draft.condition(Condition::no("Ready", &problem.reason, provider::messages(&desk.problems)));
        } else if lasting {
            let all: Vec<&str> = desk.notes.iter().map(|note| note.message.as_str()).collect();
            draft.condition(Condition::no("Ready", "Deleting", all.join("; ")));
        }
        if draft.conditions.is_empty() {
            let mut metadata = Plan::nothing();
            draft.finish(&mut metadata, &[], now);
            plan.writes.extend(metadata.writes.into_iter().filter(|w| matches!(w, Write::Patch { .. })));
        } else {
            draft.finish(&mut plan, &[], now);
        }
        let pause = provider::pause(&desk.problems, self.job.last_pause);
        let again = match (desk.again, pause) {
            (Some(again), Some(pause)) => Some(again.min(pause)),
            (again, pause) => again.or(pause),
        };
        // Whatever happens, a deletion is looked at again.
        plan.look_again = Some(Duration::from_millis(again.unwrap_or(provider::LONGEST_PAUSE)));
        Ok(plan)
    }
}
