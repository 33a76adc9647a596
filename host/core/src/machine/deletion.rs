//! Deletion of a Machine: hooks → cordon → hooks → InfraMachine → BootstrapConfig → Node → finalizer.
//!
//! The Node is cordoned; draining its Pods and waiting for volumes come later. Node work is skipped when the Cluster
//! or its control plane goes away, and for the last machine of a control plane: nobody would be left to answer.

use std::time::Duration;

use capstan_api::time::{millis, rfc3339};
use capstan_api::well_known::{
    CLUSTER_GROUP, CLUSTER_NAME, CONTROL_PLANE, EXCLUDE_NODE_DRAINING, MACHINE_FINALIZER, PRE_DRAIN_HOOK,
    PRE_TERMINATE_HOOK,
};
use capstan_api::{Object, ObjectKey};
use serde_json::{Value, json};

use super::node::{State, look, place};
use super::status::{phase, summaries};
use crate::conditions::Condition;
use crate::contract_read::{Found, Reference, follow};
use crate::difference::Draft;
use crate::ownership::{delete, owned_by};
use crate::plan::{Plan, WorkloadWrite, Write};
use crate::view::{NotNow, Place, Select, View};

/// What the Node is still needed for.
enum NodeWork {
    /// Nothing: it is gone, was never there, or nobody can answer for it.
    Skip,
    /// This one is to be cordoned and deleted.
    Of(std::sync::Arc<Object>),
    /// It cannot be asked; why.
    Unreachable(String),
}

pub(super) fn decide(mut draft: Draft, cluster: Option<&Object>, view: &dyn View, now: u64) -> Result<Plan, NotNow> {
    let mut plan = Plan::nothing();
    let machine = draft.old.clone();
    if !machine.has_finalizer(MACHINE_FINALIZER) {
        return Ok(plan);
    }
    let node = node_work(&machine, cluster, view)?;

    let waiting = hooks(&machine, PRE_DRAIN_HOOK);
    if !waiting.is_empty() {
        stamp(&mut draft, "waitForPreDrainHookStartTime", now);
        let message = format!("Waiting for pre-drain hooks to succeed (hooks: {waiting})");
        return Ok(at_stage(draft, plan, "WaitingForPreDrainHook", &message, now));
    }
    let infra = referenced(&machine, "/spec/infrastructureRef", "spec.infrastructureRef", view)?;
    if let (NodeWork::Of(node), Some(cluster)) = (&node, cluster)
        && machine.annotation(EXCLUDE_NODE_DRAINING).is_none()
        && infra.as_ref().is_some_and(|i| !i.is_deleting())
        && !node.bool_at("/spec/unschedulable")
    {
        stamp(&mut draft, "nodeDrainStartTime", now);
        plan.writes.push(Write::Workload {
            namespace: machine.namespace().to_owned(),
            cluster: cluster.name().to_owned(),
            write: Box::new(WorkloadWrite::Patch {
                version: "v1".into(),
                key: node.key(),
                patch: json!({"spec": {"unschedulable": true}}),
                resource_version: None,
            }),
        });
    }
    let waiting = hooks(&machine, PRE_TERMINATE_HOOK);
    if !waiting.is_empty() {
        stamp(&mut draft, "waitForPreTerminateHookStartTime", now);
        let message = format!("Waiting for pre-terminate hooks to succeed (hooks: {waiting})");
        return Ok(at_stage(draft, plan, "WaitingForPreTerminateHook", &message, now));
    }
    if let Some(infra) = infra {
        delete(&mut plan, &infra);
        let message = waiting_for(&infra);
        return Ok(at_stage(draft, plan, "WaitingForInfrastructureDeletion", &message, now));
    }
    if let Some(config) = referenced(&machine, "/spec/bootstrap/configRef", "spec.bootstrap.configRef", view)? {
        delete(&mut plan, &config);
        if !config.finalizers().is_empty() {
            let message = waiting_for(&config);
            return Ok(at_stage(draft, plan, "WaitingForBootstrapDeletion", &message, now));
        }
        // Nothing holds it, so it is gone with the request: no need to come back for that.
    }
    match (node, cluster) {
        (NodeWork::Of(node), Some(cluster)) => plan.writes.push(Write::Workload {
            namespace: machine.namespace().to_owned(),
            cluster: cluster.name().to_owned(),
            write: Box::new(WorkloadWrite::Delete { version: "v1".into(), key: node.key() }),
        }),
        (NodeWork::Unreachable(reason), _) => {
            let timeout = machine.int_at("/spec/deletion/nodeDeletionTimeoutSeconds").unwrap_or(10);
            let timeout = u64::try_from(timeout).unwrap_or_default() * 1000;
            let since = machine.deletion_timestamp().and_then(millis).unwrap_or(now);
            let elapsed = now.saturating_sub(since);
            if timeout == 0 || elapsed < timeout {
                if timeout > 0 {
                    plan.look_again_in(Duration::from_millis(timeout - elapsed));
                }
                let message = format!("Cannot delete the Node: {reason}");
                return Ok(at_stage(draft, plan, "DeletingNode", &message, now));
            }
        }
        _ => {}
    }
    draft.release(&mut plan, MACHINE_FINALIZER);
    Ok(plan)
}

/// The keys of hook annotations, sorted.
fn hooks(machine: &Object, prefix: &str) -> String {
    let annotations = machine.at("/metadata/annotations").and_then(Value::as_object);
    let mut keys: Vec<&str> =
        annotations.into_iter().flatten().map(|(key, _)| key.as_str()).filter(|k| k.starts_with(prefix)).collect();
    keys.sort_unstable();
    keys.join(", ")
}

fn stamp(draft: &mut Draft, field: &str, now: u64) {
    let pointer = format!("/status/deletion/{field}");
    if draft.new.at(&pointer).is_none() {
        draft.set(&pointer, Some(rfc3339(now).into()));
    }
}

fn waiting_for(object: &Object) -> String {
    let finalizers = object.finalizers();
    let held = if finalizers.is_empty() { String::new() } else { format!(" (held by {})", finalizers.join(", ")) };
    format!("Waiting for {} {} to be deleted{held}", object.kind(), object.name())
}

/// Not at the end yet: the status says what is waited for.
fn at_stage(mut draft: Draft, mut plan: Plan, reason: &str, message: &str, now: u64) -> Plan {
    draft.condition(Condition::new("Deleting", true, reason, message));
    summaries(&mut draft, &mut plan, now);
    phase(&mut draft, "Deleting", now);
    draft.finish(&mut plan, &[], now);
    plan
}

/// What a reference of the Machine leads to, if that is there and this Machine's.
fn referenced(
    machine: &Object,
    pointer: &str,
    path: &str,
    view: &dyn View,
) -> Result<Option<std::sync::Arc<Object>>, NotNow> {
    let Some(reference) = Reference::at(machine, pointer) else { return Ok(None) };
    // A reference that leads nowhere has nothing behind it that could be waited for.
    Ok(match follow(view, machine.namespace(), path, &reference)? {
        Found::Object(duck) => {
            let free = duck.object.controller().is_none();
            (free || owned_by(&duck.object, machine.uid())).then_some(duck.object)
        }
        Found::Missing | Found::Wrong(_) => None,
    })
}

fn node_work(machine: &Object, cluster: Option<&Object>, view: &dyn View) -> Result<NodeWork, NotNow> {
    let Some(cluster) = cluster.filter(|c| !c.is_deleting()) else { return Ok(NodeWork::Skip) };
    if let Some(reference) = Reference::at(cluster, "/spec/controlPlaneRef") {
        let path = "spec.controlPlaneRef";
        let found = follow(view, cluster.namespace(), path, &reference)?;
        let control_plane = found.duck().map(|duck| &duck.object);
        if control_plane.is_none_or(|c| c.is_deleting()) {
            return Ok(NodeWork::Skip);
        }
        let external = control_plane.is_some_and(|c| c.bool_at("/status/externalManagedControlPlane"));
        if machine.label(CONTROL_PLANE).is_some() && !external && is_last(machine, cluster, view)? {
            return Ok(NodeWork::Skip);
        }
    } else if machine.label(CONTROL_PLANE).is_some() && is_last(machine, cluster, view)? {
        return Ok(NodeWork::Skip);
    }
    if machine.str_at("/spec/providerID").is_none() {
        return Ok(NodeWork::Skip);
    }
    Ok(match look(machine, cluster, view) {
        State::Found(node) => NodeWork::Of(node),
        // More than one Node, or another one: none of them may be touched for this Machine.
        State::Missing | State::Ambiguous(_) => NodeWork::Skip,
        State::Unreachable { reason, .. } => NodeWork::Unreachable(reason),
        State::Waiting(reason) => match machine.str_at("/status/nodeRef/name") {
            Some(name) => {
                let key = ObjectKey::new("", "Node", "", name);
                match view.get(&place(machine, cluster), &key) {
                    Ok(Some(_)) | Err(_) => NodeWork::Unreachable(reason),
                    Ok(None) => NodeWork::Skip,
                }
            }
            None => NodeWork::Skip,
        },
    })
}

/// Whether no other control-plane Machine of the Cluster would be left.
fn is_last(machine: &Object, cluster: &Object, view: &dyn View) -> Result<bool, NotNow> {
    let select = Select::Label(CLUSTER_NAME.into(), cluster.name().into());
    let all = view.list(&Place::Management, CLUSTER_GROUP, "Machine", machine.namespace(), &select)?;
    Ok(!all.iter().any(|m| m.label(CONTROL_PLANE).is_some() && m.uid() != machine.uid() && !m.is_deleting()))
}
