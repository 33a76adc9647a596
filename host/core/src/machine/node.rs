//! The Node of a Machine: found by exact providerID, bound once, kept in step.

use std::sync::Arc;

use capstan_api::Object;
use capstan_api::well_known::{
    CLUSTER_NAME, INTERRUPTIBLE, NODE_ANNOTATIONS_FROM_MACHINE, NODE_CLUSTER_NAMESPACE, NODE_LABELS_FROM_MACHINE,
    NODE_MACHINE, NODE_OWNER_KIND, NODE_OWNER_NAME, OUTDATED_TAINT, UNINITIALIZED_TAINT,
};
use serde_json::{Map, Value, json};

use crate::conditions::{Condition, Status};
use crate::difference::{Draft, merge_patch};
use crate::plan::{EventNote, Plan, WorkloadWrite, Write};
use crate::view::{Connection, NotNow, Place, Select, View};

/// For how long (milliseconds) an unreachable cluster's Nodes are believed to be as they were.
const GRACE: u64 = 5 * 60 * 1000;

/// What is known of the Node.
#[derive(Clone, Debug)]
pub(super) enum State {
    /// It cannot be looked for yet.
    Waiting(String),
    /// The workload cluster does not answer.
    Unreachable {
        /// Milliseconds since the Unix epoch.
        since: u64,
        /// What the last attempt said.
        reason: String,
    },
    /// There is none with this providerID.
    Missing,
    /// There is no telling which it is.
    Ambiguous(String),
    /// This one.
    Found(Arc<Object>),
}

/// The workload cluster of a Machine.
pub(super) fn place(machine: &Object, cluster: &Object) -> Place {
    Place::Workload { namespace: machine.namespace().to_owned(), cluster: cluster.name().to_owned() }
}

/// Looks for the Node.
pub(super) fn look(machine: &Object, cluster: &Object, view: &dyn View) -> State {
    if !cluster.bool_at("/status/initialization/controlPlaneInitialized") && machine.at("/status/nodeRef").is_none() {
        // A cluster without a control-plane object is initialized by its first Node.
        if cluster.at("/spec/controlPlaneRef").is_some() {
            return State::Waiting("Waiting for the control plane of the Cluster to be initialized".into());
        }
    }
    let Some(provider_id) = machine.str_at("/spec/providerID") else {
        let kind = machine.str_at("/spec/infrastructureRef/kind").unwrap_or("the infrastructure");
        return State::Waiting(format!("Waiting for {kind} to report spec.providerID"));
    };
    let nodes = match view.list(&place(machine, cluster), "", "Node", "", &Select::ProviderId(provider_id.to_owned())) {
        Ok(nodes) => nodes,
        Err(NotNow::Unreachable { reason, .. }) => {
            return match view.connection(machine.namespace(), cluster.name()) {
                Connection::Down { since, reason } => State::Unreachable { since, reason },
                _ => State::Waiting(format!("Waiting for a connection to the workload cluster: {reason}")),
            };
        }
        Err(_) => return State::Waiting("Waiting for the Nodes of the workload cluster to be listed".into()),
    };
    match nodes.as_slice() {
        [] => State::Missing,
        [node] => match machine.str_at("/status/nodeRef/name").filter(|bound| *bound != node.name()) {
            Some(bound) => State::Ambiguous(format!(
                "status.nodeRef is Node {bound}, but the Node with providerID {provider_id} is {}",
                node.name()
            )),
            None => State::Found(Arc::clone(node)),
        },
        several => {
            let names: Vec<&str> = several.iter().map(|n| n.name()).collect();
            State::Ambiguous(format!(
                "{} Nodes have providerID {provider_id}: {}; delete all but the one that is this machine's",
                several.len(),
                names.join(", ")
            ))
        }
    }
}

/// Sets `status.nodeRef` once, and copies what the Node says of itself.
pub(super) fn bind(draft: &mut Draft, state: &State, plan: &mut Plan) {
    let State::Found(node) = state else { return };
    if draft.new.at("/status/nodeRef").is_none() {
        draft.set("/status/nodeRef", Some(json!({"name": node.name()})));
        plan.events.push(EventNote {
            regarding: draft.old.key(),
            normal: true,
            reason: "SuccessfulSetNodeRef".into(),
            message: format!("Node {} is this machine's", node.name()),
        });
    }
    const FIELDS: [&str; 10] = [
        "architecture",
        "bootID",
        "containerRuntimeVersion",
        "kernelVersion",
        "kubeProxyVersion",
        "kubeletVersion",
        "machineID",
        "operatingSystem",
        "osImage",
        "systemUUID",
    ];
    if let Some(Value::Object(info)) = node.at("/status/nodeInfo") {
        let info: Map<String, Value> =
            FIELDS.iter().filter_map(|f| Some(((*f).to_owned(), info.get(*f)?.clone()))).collect();
        draft.set("/status/nodeInfo", (!info.is_empty()).then_some(Value::Object(info)));
    }
}

/// Whether a label or annotation of a Machine goes to its Node.
fn label_is_synced(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    domain == "node-role.kubernetes.io"
        || ["node-restriction.kubernetes.io", "node.cluster.x-k8s.io"]
            .iter()
            .any(|known| domain == *known || domain.strip_suffix(known).is_some_and(|rest| rest.ends_with('.')))
}

fn annotation_is_synced(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    domain == "node.cluster.x-k8s.io" || domain.ends_with(".node.cluster.x-k8s.io")
}

/// The one patch that brings the Node in step with its Machine: labels and annotations (what once came from the
/// Machine and is gone there goes), the annotations that name the Machine, and the taints that the Machine answers
/// for. `None` when nothing differs.
pub(super) fn sync(machine: &Object, cluster: &Object, node: &Object, outdated: bool) -> Option<Write> {
    let mut new = node.clone();
    let entries = |map: &str, synced: fn(&str) -> bool| -> Vec<(String, String)> {
        let all = machine.at(&format!("/metadata/{map}")).and_then(Value::as_object);
        let all = all.into_iter().flatten().filter_map(|(k, v)| Some((k.clone(), v.as_str()?.to_owned())));
        all.filter(|(key, _)| synced(key) || (map == "labels" && key == INTERRUPTIBLE)).collect()
    };
    let labels = entries("labels", label_is_synced);
    let annotations = entries("annotations", annotation_is_synced);
    for (map, wanted, tracker) in
        [("labels", &labels, NODE_LABELS_FROM_MACHINE), ("annotations", &annotations, NODE_ANNOTATIONS_FROM_MACHINE)]
    {
        for gone in node.annotation(tracker).unwrap_or_default().split(',').filter(|key| !key.is_empty()) {
            if !wanted.iter().any(|(key, _)| key == gone) {
                new.remove(&format!("/metadata/{map}/{}", gone.replace('~', "~0").replace('/', "~1")));
            }
        }
        for (key, value) in wanted {
            if map == "labels" { new.set_label(key, value) } else { new.set_annotation(key, value) }
        }
        let keys: Vec<&str> = wanted.iter().map(|(key, _)| key.as_str()).collect();
        new.set_annotation(tracker, &keys.join(","));
    }
    new.set_annotation(CLUSTER_NAME, cluster.name());
    new.set_annotation(NODE_CLUSTER_NAMESPACE, machine.namespace());
    new.set_annotation(NODE_MACHINE, machine.name());
    if let Some(owner) = machine.controller() {
        new.set_annotation(NODE_OWNER_KIND, &owner.kind);
        new.set_annotation(NODE_OWNER_NAME, &owner.name);
    }
    let before: Vec<Value> = node.at("/spec/taints").and_then(Value::as_array).cloned().unwrap_or_default();
    let is = |taint: &Value, key: &str| taint.get("key").and_then(Value::as_str) == Some(key);
    let mut taints: Vec<Value> = before
        .iter()
        .filter(|t| !is(t, UNINITIALIZED_TAINT) && (outdated || !is(t, OUTDATED_TAINT)))
        .cloned()
        .collect();
    if outdated && !taints.iter().any(|t| is(t, OUTDATED_TAINT)) {
        taints.push(json!({"key": OUTDATED_TAINT, "effect": "PreferNoSchedule"}));
    }
    let taints_change = taints != before;
    if taints_change {
        new.set("/spec/taints", json!(taints));
    }
    let patch = merge_patch(&Value::Object(node.0.clone()), &Value::Object(new.0))?;
    Some(Write::Workload {
        namespace: machine.namespace().to_owned(),
        cluster: cluster.name().to_owned(),
        write: Box::new(WorkloadWrite::Patch {
            version: "v1".into(),
            key: node.key(),
            patch,
            resource_version: taints_change.then(|| node.resource_version().to_owned()),
        }),
    })
}

/// `NodeReady` and `NodeHealthy`.
pub(super) fn conditions(draft: &mut Draft, state: &State, now: u64) {
    let both = |draft: &mut Draft, status: Status, reason: &str, message: &str| {
        for kind in ["NodeReady", "NodeHealthy"] {
            draft.condition(Condition::new(kind, status, reason, message));
        }
    };
    match state {
        State::Waiting(message) => {
            // What is known of a Node that was bound holds while the connection comes up again.
            if draft.new.at("/status/nodeRef").is_none() || Condition::of(&draft.old, "NodeReady").is_none() {
                both(draft, Status::Unknown, "InspectionFailed", message);
            }
        }
        State::Unreachable { since, reason } => {
            let past_grace = now.saturating_sub(*since) >= GRACE;
            if past_grace || Condition::of(&draft.old, "NodeReady").is_none() {
                let message = format!("Workload cluster cannot be reached: {reason}");
                both(draft, Status::Unknown, "ConnectionDown", &message);
            }
        }
        State::Missing => match draft.new.str_at("/status/nodeRef/name").map(str::to_owned) {
            Some(name) => {
                let message = format!("Node {name} was deleted while the Machine still exists");
                both(draft, Status::False, "NodeDeleted", &message);
            }
            None => {
                let id = draft.new.str_at("/spec/providerID").unwrap_or_default();
                let message = format!("Waiting for a Node with spec.providerID {id} to exist");
                both(draft, Status::Unknown, "NodeDoesNotExist", &message);
            }
        },
        State::Ambiguous(message) => both(draft, Status::Unknown, "InternalError", message),
        State::Found(node) => {
            let of = |kind: &str| Condition::of(node, kind);
            let ready = of("Ready");
            let line = |c: &Condition| {
                format!("* Node.{}: {}", c.kind, if c.message.is_empty() { &c.reason } else { &c.message })
            };
            draft.condition(match &ready {
                None => Condition::unknown("NodeReady", "NodeReadyUnknown", "* Node.Ready: not yet reported"),
                Some(c) => match c.status {
                    Status::True => Condition::yes("NodeReady", "NodeReady"),
                    Status::False => Condition::no("NodeReady", "NodeNotReady", line(c)),
                    Status::Unknown => Condition::unknown("NodeReady", "NodeReadyUnknown", line(c)),
                },
            });
            let mut lines = Vec::new();
            let mut status = Status::True;
            let worsen = |status: &mut Status, to: Status| {
                if *status == Status::True || to == Status::False {
                    *status = to;
                }
            };
            match &ready {
                None => {
                    worsen(&mut status, Status::Unknown);
                    lines.push("* Node.Ready: not yet reported".to_owned());
                }
                Some(c) if c.status != Status::True => {
                    worsen(&mut status, c.status);
                    lines.push(line(c));
                }
                Some(_) => {}
            }
            for kind in ["MemoryPressure", "DiskPressure", "PIDPressure"] {
                match of(kind) {
                    Some(c) if c.status == Status::True => {
                        worsen(&mut status, Status::False);
                        lines.push(line(&c));
                    }
                    Some(c) if c.status == Status::Unknown => {
                        worsen(&mut status, Status::Unknown);
                        lines.push(line(&c));
                    }
                    _ => {}
                }
            }
            let reason = match status {
                Status::True => "NodeHealthy",
                Status::False => "NodeNotHealthy",
                Status::Unknown => "NodeHealthyUnknown",
            };
            draft.condition(Condition::new("NodeHealthy", status, reason, lines.join("\n")));
        }
    }
}
