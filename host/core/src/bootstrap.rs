//! BootstrapConfig: the contract of Cluster API's bootstrap providers, whatever the provider.
//!
//! The host says which role a machine has in its cluster, makes or finds the certificates and the token that it needs,
//! lets the provider render first-boot data, keeps that in a Secret, and only then says that it is there. A Secret that
//! exists is kept: a machine may have booted with it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use capstan_api::time::{millis, rfc3339};
use capstan_api::well_known::{CLUSTER_GROUP, CLUSTER_NAME, SECRET_TYPE};
use capstan_api::{Object, ObjectKey, OwnerReference};
use serde_json::json;

use crate::cluster_input::{self, is_control_plane};
use crate::conditions::Condition;
use crate::contract::{JoinRole, Rendered, Served};
use crate::difference::Draft;
use crate::needs::{Grant, Offers, TOKEN_TTL, cluster_secret};
use crate::ownership;
use crate::plan::{Plan, WorkloadWrite, Write};
use crate::provider::{self, Due, Problem, due_if_lost, not_due, paused_condition, told, waiting};
use crate::record::owner_key;
use crate::script::{Halt, Replay, Routine, Script};
use crate::turn::{Call, Reply, TurnInput, TurnRequest};
use crate::view::{NotNow, Place, Select, View};

#[cfg(test)]
mod tests;

/// Annotation of a Secret with first-boot data: the id of the bootstrap token in it.
pub const TOKEN: &str = "capstan.dev/bootstrap-token";
/// Annotation of a Secret with first-boot data: when that token expires (RFC 3339).
pub const TOKEN_EXPIRES: &str = "capstan.dev/bootstrap-token-expires";

/// Decides for a BootstrapConfig.
///
/// # Errors
/// When something it needs to know is not known now.
pub fn decide(key: &ObjectKey, served: &Served, view: &dyn View, now: u64) -> Result<Plan, NotNow> {
    let Some(object) = view.get(&Place::Management, key)? else { return Ok(Plan::nothing()) };
    // What belongs to it is collected with it; nothing outside stands behind it.
    if object.is_deleting() {
        return Ok(Plan::nothing());
    }
    let Some(machine) = cluster_input::owner(view, &object, "Machine")? else { return Ok(Plan::nothing()) };
    let name = machine.str_at("/spec/clusterName").unwrap_or_default();
    let Some(cluster) = cluster_input::cluster(view, object.namespace(), name)? else { return Ok(Plan::nothing()) };
    if cluster_input::paused(Some(&cluster), &object) {
        return Ok(told(&object, vec![paused_condition(true)], now));
    }
    let secret_key = ObjectKey::new("", "Secret", object.namespace(), object.name());
    if let Some(secret) = view.get(&Place::Management, &secret_key)? {
        return Ok(rendered_before(view, &object, &machine, &cluster, &secret, now));
    }
    let created = object.bool_at("/status/initialization/dataSecretCreated");
    if created && machine.bool_at("/status/initialization/infrastructureProvisioned") {
        // The machine has booted with it; making it anew would not change the machine.
        return Ok(Plan::nothing());
    }
    if machine.is_deleting() {
        return Ok(Plan::nothing());
    }
    if !cluster.bool_at("/status/initialization/infrastructureProvisioned") {
        let message = format!("Cluster {} has no infrastructure yet", cluster.name());
        return Ok(waiting(&object, "WaitingForClusterInfrastructure", &message, now));
    }
    if cluster_input::endpoint(&cluster).is_none() {
        let message = format!("Cluster {} has no control-plane endpoint yet", cluster.name());
        return Ok(waiting(&object, "WaitingForControlPlaneEndpoint", &message, now));
    }
    let initialized = cluster.bool_at("/status/initialization/controlPlaneInitialized");
    let role = match (initialized, is_control_plane(&machine)) {
        (true, true) => JoinRole::ControlPlaneJoin,
        (true, false) => JoinRole::WorkerJoin,
        (false, true) if is_first(view, &machine, &cluster)? => JoinRole::ControlPlaneInit,
        (false, _) => {
            let message = format!("the control plane of Cluster {} is not initialized yet", cluster.name());
            return Ok(waiting(&object, "WaitingForControlPlaneInitialized", &message, now));
        }
    };

    let infrastructure = cluster_input::infra_cluster(view, &cluster)?;
    let input = cluster_input::cluster_input(&cluster, infrastructure.as_deref(), served);
    let machine_input = cluster_input::machine_input(&machine, None);
    let mut offers = Offers::named(&object, cluster.name(), served, view)?.with_secrets(view)?;
    offers.cluster_owner = Some(cluster.as_owner(false));
    offers.owner = Some(certificates_owner(view, &cluster, &object)?);
    offers.private_keys = machine_input.control_plane;
    offers.may_make = machine_input.control_plane;
    offers.initialized = initialized;

    let role_name = format!("{role:?}");
    let mut stable = machine_input.clone();
    stable.deleting = false;
    stable.node_bound = false;
    let inputs = cluster_input::inputs(&object, &input, Some(&stable), json!([role_name, offers.digest()]));
    let last = view.last_turn(key);
    // What was made once and is gone is made again.
    match due_if_lost(last.as_ref(), &inputs, created, now) {
        Due::Now => {}
        _ if Condition::holds(&object, "Paused") => {}
        later => return Ok(not_due(later)),
    }
    let last_pause = last.filter(|last| last.inputs == inputs).and_then(|last| last.look_again);
    let turn = TurnInput {
        subject: Object::clone(&object),
        now,
        owner_key: owner_key(&object),
        cluster: input,
        machine: Some(machine_input),
        join_role: Some(role),
        ..TurnInput::default()
    };
    let course = Script::course(BootstrapRoutine { subject: object, offers, last_pause });
    Ok(Plan {
        turn: Some(TurnRequest { module: served.module.clone(), input: turn, inputs, course }),
        ..Plan::default()
    })
}

/// Only one machine may initialize a cluster: the oldest of the control plane, by name where two are as old.
fn is_first(view: &dyn View, machine: &Object, cluster: &Object) -> Result<bool, NotNow> {
    let select = Select::Label(CLUSTER_NAME.into(), cluster.name().into());
    let all = view.list(&Place::Management, CLUSTER_GROUP, "Machine", machine.namespace(), &select)?;
    let first = all
        .iter()
        .filter(|m| is_control_plane(m) && !m.is_deleting())
        .min_by_key(|m| (m.creation_timestamp().and_then(millis), m.name().to_owned()));
    Ok(first.is_none_or(|first| first.uid() == machine.uid()))
}

/// Who owns the certificates that are made: the control plane where there is one, so that they go with it.
fn certificates_owner(view: &dyn View, cluster: &Object, object: &Object) -> Result<OwnerReference, NotNow> {
    if let (Some(kind), Some(name)) =
        (cluster.str_at("/spec/controlPlaneRef/kind"), cluster.str_at("/spec/controlPlaneRef/name"))
    {
        let group = cluster.str_at("/spec/controlPlaneRef/apiGroup").unwrap_or_default();
        let key = ObjectKey::new(group, kind, cluster.namespace(), name);
        if let Some(control_plane) = view.get(&Place::Management, &key)? {
            return Ok(control_plane.as_owner(true));
        }
    }
    Ok(object.as_owner(true))
}

/// The Secret is there: say so, and keep its token fresh until the machine has joined.
fn rendered_before(
    view: &dyn View,
    object: &Arc<Object>,
    machine: &Object,
    cluster: &Object,
    secret: &Arc<Object>,
    now: u64,
) -> Plan {
    let mut plan = Plan::nothing();
    let known = object.str_at("/status/dataSecretName") == Some(secret.name());
    let ours = secret.str_at("/type") == Some(SECRET_TYPE) && secret.label(CLUSTER_NAME) == Some(cluster.name());
    if !known && !ours {
        let message = format!(
            "Secret {} is there and holds no first-boot data of this cluster; delete it, or rename this object",
            secret.name()
        );
        return told(object, vec![Condition::no("Ready", "DataSecretForeign", message), paused_condition(false)], now);
    }
    // Owner references do not survive every restore.
    if ours && secret.controller().is_none() {
        let _ = ownership::claim(&mut plan, secret, &object.as_owner(true), cluster.name());
    }
    let mut draft = Draft::of(object);
    say_created(&mut draft, secret.name());
    draft.finish(&mut plan, &["/status/initialization", "/status/dataSecretName"], now);

    let bound = machine.str_at("/status/nodeRef/name").is_some() || machine.is_deleting();
    let expires = secret.annotation(TOKEN_EXPIRES).and_then(millis);
    if let (Some(token), Some(expires), false) = (secret.annotation(TOKEN), expires, bound) {
        let refresh_at = expires.saturating_sub(TOKEN_TTL * 1000 / 3);
        if now < refresh_at {
            plan.look_again_in(Duration::from_millis(refresh_at - now));
        } else {
            let booted = machine.bool_at("/status/initialization/infrastructureProvisioned");
            refresh(&mut plan, view, cluster, secret, token, booted, now);
        }
    }
    plan
}

/// A token that is still there lives longer, even where it has expired meanwhile: a machine may boot with it. One that is
/// gone (a cluster removes what has expired) cannot be had back, so the data with it goes and is rendered anew with
/// another, unless the machine has booted with it already.
fn refresh(plan: &mut Plan, view: &dyn View, cluster: &Object, secret: &Object, token: &str, booted: bool, now: u64) {
    let place = Place::Workload { namespace: cluster.namespace().to_owned(), cluster: cluster.name().to_owned() };
    match view.get(&place, &token_key(token)) {
        Ok(Some(_)) => {}
        Ok(None) if booted => return,
        Ok(None) => {
            plan.writes.push(Write::Delete { key: secret.key(), uid: secret.uid().to_owned() });
            return;
        }
        // The workload cluster answers later; that brings us back.
        Err(_) => return,
    }
    let expires = rfc3339(now + TOKEN_TTL * 1000);
    plan.writes.push(Write::Workload {
        namespace: cluster.namespace().to_owned(),
        cluster: cluster.name().to_owned(),
        write: Box::new(WorkloadWrite::Patch {
            version: "v1".into(),
            key: token_key(token),
            patch: json!({"data": {"expiration": STANDARD.encode(&expires)}}),
            resource_version: None,
        }),
    });
    plan.writes.push(Write::Patch {
        key: secret.key(),
        patch: json!({"metadata": {"annotations": {TOKEN_EXPIRES: expires}}}),
        resource_version: None,
    });
    plan.look_again_in(Duration::from_secs(TOKEN_TTL * 2 / 3));
}

/// Where a token with this id is, in the workload cluster.
fn token_key(token: &str) -> ObjectKey {
    ObjectKey::new("", "Secret", "kube-system", format!("bootstrap-token-{token}"))
}

fn say_created(draft: &mut Draft, secret: &str) {
    draft.new.set("/status/initialization/dataSecretCreated", true.into());
    draft.new.set("/status/dataSecretName", secret.into());
    draft.new.set("/status/ready", true.into());
    draft.condition(Condition::yes("Ready", "Ready"));
    draft.condition(Condition::yes("DataSecretAvailable", "Available"));
    draft.condition(Condition::yes("CertificatesAvailable", "Available"));
    draft.condition(paused_condition(false));
}

/// The turn of a BootstrapConfig.
#[derive(Clone, Debug)]
struct BootstrapRoutine {
    subject: Arc<Object>,
    offers: Offers,
    last_pause: Option<u64>,
}

impl Routine for BootstrapRoutine {
    fn run(&self, replay: &mut Replay<'_>) -> Result<Plan, Halt> {
        let grant = match self.offers.grant(replay, BTreeMap::new)? {
            Ok(grant) => grant,
            Err(problem) => return Ok(self.failed(&problem, "CertificatesAvailable", replay.now())),
        };
        let problem = match replay.call(Call::Render, BTreeMap::new, &grant.granted)?.reply {
            Ok(Reply::Rendered(rendered)) => match rule(&rendered) {
                None => return Ok(self.rendered(&rendered, &grant, replay.now())),
                Some(rule) => Problem::violated(rule),
            },
            Ok(_) => Problem::violated("bootstrap.render answered with something else"),
            Err(error) => Problem::of(&error, "rendering first-boot data"),
        };
        Ok(self.failed(&problem, "DataSecretAvailable", replay.now()))
    }
}

/// The rule that rendered data breaks.
fn rule(rendered: &Rendered) -> Option<&'static str> {
    if rendered.format.is_empty() || rendered.format.len() > 63 {
        return Some("the format of first-boot data has a name of 1 to 63 characters");
    }
    // A Secret holds 1 MiB at most.
    (rendered.content.is_empty() || rendered.content.len() > 1_000_000)
        .then_some("first-boot data has 1 to 1,000,000 bytes")
}

impl BootstrapRoutine {
    /// The Secret first, and only then the status that names it.
    fn rendered(&self, rendered: &Rendered, grant: &Grant, now: u64) -> Plan {
        let mut plan = Plan::nothing();
        let (subject, offers) = (&self.subject, &self.offers);
        let owner = subject.as_owner(true);
        let mut secret = cluster_secret(&offers.namespace, subject.name(), &offers.cluster, Some(&owner));
        let data = json!({"value": STANDARD.encode(&rendered.content), "format": STANDARD.encode(&rendered.format)});
        secret.set("/data", data);
        if let Some(id) = &grant.token_id {
            secret.set_annotation(TOKEN, id);
            secret.set_annotation(TOKEN_EXPIRES, &rfc3339(now + TOKEN_TTL * 1000));
        }
        plan.writes.push(Write::Create(secret));
        let mut draft = Draft::of(subject);
        say_created(&mut draft, subject.name());
        draft.finish(&mut plan, &["/status/initialization", "/status/dataSecretName"], now);
        plan.look_again_in(Duration::from_secs(TOKEN_TTL * 2 / 3));
        plan
    }

    fn failed(&self, problem: &Problem, which: &str, now: u64) -> Plan {
        let mut plan = Plan::nothing();
        plan.events.extend(provider::warning(&self.subject, problem));
        let mut draft = Draft::of(&self.subject);
        draft.condition(Condition::no("Ready", &problem.reason, &problem.message));
        draft.condition(Condition::no(which, "NotAvailable", &problem.message));
        draft.condition(paused_condition(false));
        let pending = problem.reason == "CertificatePending";
        if !pending {
            draft.finish(&mut plan, &[], now);
        }
        plan.look_again = provider::pause(std::slice::from_ref(problem), self.last_pause).map(Duration::from_millis);
        plan
    }
}
