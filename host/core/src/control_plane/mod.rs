//! ControlPlane: the contract of Cluster API's control-plane providers as a planner's, whatever the provider.
//!
//! The host makes certificates and the kubeconfig, shows the planner its machines, and carries out the one step that
//! comes back: a Machine with its InfraMachine and BootstrapConfig, a deletion, an object of the workload cluster.

mod components;
mod kubeconfig;
mod machines;
mod members;
mod planning;
mod status;

use std::sync::Arc;
use std::time::Duration;

use capstan_api::well_known::{CLUSTER_GROUP, CLUSTER_NAME, CONTROL_PLANE_NAME, SECRET_TYPE};
use capstan_api::{Object, ObjectKey};
use serde_json::{Value, json};

use crate::cluster_input::{self, is_control_plane};
use crate::conditions::Condition;
use crate::contract::{ControlPlaneView, Served};
use crate::difference::Draft;
use crate::needs::Offers;
use crate::ownership;
use crate::plan::{Plan, Write};
use crate::provider::{Due, PATIENCE, age, due_if_lost, not_due, paused_condition, told};
use crate::record::{MEMORY, finalizer, owner_key};
use crate::script::Script;
use crate::turn::{TurnInput, TurnRequest};
use crate::view::{NotNow, Place, Select, View};
use planning::PlanningRoutine;

#[cfg(test)]
mod tests;

/// Decides for a ControlPlane.
///
/// # Errors
/// When something it needs to know is not known now.
pub fn decide(key: &ObjectKey, served: &Served, view: &dyn View, now: u64) -> Result<Plan, NotNow> {
    let Some(object) = view.get(&Place::Management, key)? else { return Ok(Plan::nothing()) };
    let cluster = cluster_input::owner(view, &object, "Cluster")?;
    if cluster_input::paused(cluster.as_deref(), &object) {
        return Ok(told(&object, vec![paused_condition(true)], now));
    }
    let name = cluster.as_ref().map(|c| c.name()).or(object.label(CLUSTER_NAME)).unwrap_or_default().to_owned();
    let select = Select::Label(CLUSTER_NAME.into(), name.clone());
    let machines = view.list(&Place::Management, CLUSTER_GROUP, "Machine", object.namespace(), &select)?;
    if object.is_deleting() {
        return Ok(delete(&object, &machines, now));
    }
    let Some(cluster) = cluster else { return Ok(Plan::nothing()) };
    let mut plan = Plan::nothing();
    let mut own = Vec::new();
    for machine in machines {
        let orphan = is_orphan(&machine, &object);
        if orphan {
            let _ = ownership::claim(&mut plan, &machine, &object.as_owner(true), cluster.name());
        }
        if orphan || ownership::controlled_by(&machine, object.uid()) {
            own.push(machine);
        }
    }
    let template = machines::template(view, &object)?;
    if let Some(template) = &template {
        // It goes with the Cluster that uses it.
        let _ = ownership::claim(&mut plan, template, &cluster.as_owner(false), cluster.name());
    }
    let mut members = members::read(view, &own, now)?;
    components::judge(view, &cluster, &mut members);
    for member in &members {
        if let Some(after) = member.half_made(now) {
            if after == 0 {
                let key = member.machine.key();
                plan.writes.push(Write::Delete { key, uid: member.machine.uid().to_owned() });
            } else {
                plan.look_again_in(Duration::from_millis(after));
            }
        }
    }
    let infrastructure_ready = cluster.bool_at("/status/initialization/infrastructureProvisioned");
    let endpoint = cluster_input::endpoint(&cluster);
    let mut offers = Offers::named(&object, cluster.name(), served, view)?.with_secrets(view)?;
    offers.cluster_owner = Some(cluster.as_owner(false));
    offers.owner = Some(object.as_owner(true));
    offers.may_make = true;
    if let (true, Some(endpoint)) = (infrastructure_ready, &endpoint) {
        kubeconfig::keep(&mut plan, &object, cluster.name(), endpoint, &offers, now);
    }
    adopt(&mut plan, &object, cluster.name(), &offers);
    let initialized = is_initialized(view, &object, &cluster)?;
    offers.initialized = initialized;

    let infrastructure = cluster_input::infra_cluster(view, &cluster)?;
    let input = cluster_input::cluster_input(&cluster, infrastructure.as_deref(), served);
    let shown = ControlPlaneView {
        members: members.iter().map(|member| member.shown.clone()).collect(),
        stray_etcd_members: None,
        replicas: object.int_at("/spec/replicas").and_then(|n| u32::try_from(n).ok()).unwrap_or(1),
        initialized,
        failure_domains: failure_domains(&cluster),
        workload_objects: workload_objects(view, served, &cluster, initialized)?,
        memory: object.annotation(MEMORY).and_then(|text| serde_json::from_str(text).ok()).unwrap_or(Value::Null),
    };
    let may_plan = infrastructure_ready && endpoint.is_some() && !cluster.is_deleting();
    let more = json!([
        members.iter().map(members::MemberOf::digest).collect::<Vec<_>>(),
        [json!(initialized), json!(may_plan), json!(template.is_some()), json!(shown.failure_domains)],
        shown.workload_objects,
        shown.memory,
        offers.digest(),
    ]);
    let inputs = cluster_input::inputs(&object, &input, None, more);
    let last = view.last_turn(key);
    let lost = members.iter().any(|m| m.available) && object.at("/status/replicas").is_none();
    match due_if_lost(last.as_ref(), &inputs, lost, now) {
        Due::Now => {}
        _ if Condition::holds(&object, "Paused") => {}
        later => {
            let quiet = not_due(later);
            if let Some(after) = quiet.look_again {
                plan.look_again_in(after);
            }
            return Ok(plan);
        }
    }
    let last_pause = last.filter(|last| last.inputs == inputs).and_then(|last| last.look_again);
    let turn = TurnInput {
        subject: Object::clone(&object),
        now,
        owner_key: owner_key(&object),
        cluster: input,
        control_plane: Some(shown),
        ..TurnInput::default()
    };
    let course = Script::course(PlanningRoutine {
        subject: object,
        cluster,
        served: served.clone(),
        members,
        template,
        offers,
        initialized,
        may_plan,
        last_pause,
    });
    plan.turn = Some(TurnRequest { module: served.module.clone(), input: turn, inputs, course });
    Ok(plan)
}

/// A machine of this control plane that has lost its owner references: it is taken back, never made anew.
fn is_orphan(machine: &Object, object: &Object) -> bool {
    is_control_plane(machine)
        && machine.controller().is_none()
        && machine.label(CONTROL_PLANE_NAME) == Some(object.name())
        && !machine.is_deleting()
}

/// Owner references do not survive every restore. Secrets of Cluster API's type that hold the cluster's keys or its
/// kubeconfig get theirs back; what a user brought along has another type and is left alone.
fn adopt(plan: &mut Plan, object: &Object, cluster: &str, offers: &Offers) {
    for secret in offers.secrets.values() {
        let keys = secret.at("/data/tls.crt").is_some() || secret.name() == format!("{cluster}-kubeconfig");
        let generated = secret.str_at("/type") == Some(SECRET_TYPE) && secret.controller().is_none();
        if keys && generated && secret.name().starts_with(cluster) {
            let _ = ownership::claim(plan, secret, &object.as_owner(true), cluster);
        }
    }
}

/// The finalizer of a control plane, as upstream writes it for its kind.
fn finalizer_of(object: &Object) -> String {
    match object.kind() {
        "KubeadmControlPlane" => format!("kubeadm.{}", object.group()),
        _ => finalizer(object.group(), object.kind()),
    }
}

/// Workers first: they need the control plane to be drained. Then its own machines, all at once, then the object.
fn delete(object: &Arc<Object>, machines: &[Arc<Object>], now: u64) -> Plan {
    let mut plan = Plan::nothing();
    let finalizer = finalizer_of(object);
    if !object.has_finalizer(&finalizer) {
        return plan;
    }
    let workers = machines.iter().filter(|m| !is_control_plane(m)).count();
    let own: Vec<&Arc<Object>> =
        machines.iter().filter(|m| ownership::controlled_by(m, object.uid()) || is_orphan(m, object)).collect();
    if workers == 0 && own.is_empty() {
        Draft::of(object).release(&mut plan, &finalizer);
        return plan;
    }
    let mut draft = Draft::of(object);
    if workers > 0 {
        let message = format!("{workers} worker machines are still there");
        draft.condition(Condition::new("Deleting", true, "WaitingForWorkersDeletion", message));
    } else {
        for machine in own.iter().filter(|m| !m.is_deleting()) {
            plan.writes.push(Write::Delete { key: machine.key(), uid: machine.uid().to_owned() });
        }
        let message = format!("{} control-plane machines are still there", own.len());
        draft.condition(Condition::new("Deleting", true, "WaitingForMachineDeletion", message));
    }
    let since = object.deletion_timestamp().and_then(capstan_api::time::millis).unwrap_or(now);
    let lasted = now.saturating_sub(since);
    if lasted >= PATIENCE {
        draft.finish(&mut plan, &[], now);
    } else {
        plan.look_again_in(Duration::from_millis(PATIENCE - lasted));
    }
    plan
}

/// A control plane is initialized once kubeadm has left its configuration in the workload cluster; it stays so.
fn is_initialized(view: &dyn View, object: &Object, cluster: &Object) -> Result<bool, NotNow> {
    if object.bool_at("/status/initialization/controlPlaneInitialized")
        || cluster.bool_at("/status/initialization/controlPlaneInitialized")
    {
        return Ok(true);
    }
    let place = Place::Workload { namespace: cluster.namespace().to_owned(), cluster: cluster.name().to_owned() };
    let key = ObjectKey::new("", "ConfigMap", "kube-system", "kubeadm-config");
    match view.get(&place, &key) {
        Ok(found) => Ok(found.is_some()),
        // Its API server answers later; that brings us back.
        Err(_) => Ok(false),
    }
}

fn failure_domains(cluster: &Object) -> Vec<String> {
    let list = cluster.at("/status/failureDomains").and_then(Value::as_array).cloned().unwrap_or_default();
    list.iter()
        .filter(|domain| domain.get("controlPlane").and_then(Value::as_bool).unwrap_or(false))
        .filter_map(|domain| domain.get("name").and_then(Value::as_str).map(str::to_owned))
        .collect()
}

fn workload_objects(
    view: &dyn View,
    served: &Served,
    cluster: &Object,
    initialized: bool,
) -> Result<std::collections::BTreeMap<String, Value>, NotNow> {
    let mut all = std::collections::BTreeMap::new();
    if !initialized {
        return Ok(all);
    }
    let place = Place::Workload { namespace: cluster.namespace().to_owned(), cluster: cluster.name().to_owned() };
    for (label, wanted) in &served.workload_objects {
        let key = ObjectKey::new(&wanted.group, &wanted.kind, &wanted.namespace, &wanted.name);
        if let Ok(Some(found)) = view.get(&place, &key) {
            let mut found = Object::clone(&found);
            found.remove("/status");
            found.remove("/metadata/resourceVersion");
            all.insert(label.clone(), found.into_value());
        }
    }
    Ok(all)
}

/// Whether an object is too young for mere progress to be written.
fn young(object: &Object, now: u64) -> Option<Duration> {
    let age = age(object, now);
    (age < PATIENCE).then(|| Duration::from_millis(PATIENCE - age))
}
