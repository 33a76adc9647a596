//! What a control plane runs on its nodes as static Pods: kubeadm's API server, controllers, scheduler and etcd.
//!
//! A Node that has just joined runs none of them yet, so a machine that has a ready Node is not yet a member that can
//! carry the control plane: whoever takes the older one away too early takes the last API server away. No component is
//! known here by its name. What runs on the node of any member is expected of each; a control plane that runs nothing as
//! static Pods is asked for nothing.

use std::collections::{BTreeMap, BTreeSet};

use capstan_api::Object;
use serde_json::Value;

use super::members::MemberOf;
use crate::contract::Reason;
use crate::view::{Place, Select, View};

/// Set by the kubelet on the mirror of a static Pod.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Adds to each member what its node does not run and should. Nothing is read for one machine alone: there is no other
/// that could be taken away, and a watch per cluster is saved.
pub(super) fn judge(view: &dyn View, cluster: &Object, members: &mut [MemberOf]) {
    let node = |member: &MemberOf| member.machine.str_at("/status/nodeRef/name").map(str::to_owned);
    if members.len() < 2 || !members.iter().any(|member| node(member).is_some()) {
        return;
    }
    let place = Place::Workload { namespace: cluster.namespace().to_owned(), cluster: cluster.name().to_owned() };
    let select = Select::Label("tier".into(), "control-plane".into());
    let Ok(pods) = view.list(&place, "", "Pod", "kube-system", &select) else {
        for member in members.iter_mut().filter(|member| node(member).is_some()) {
            let message = "its components cannot be asked about: the workload cluster does not answer";
            member.shown.unhealthy.push(Reason { code: "ComponentsUnknown".into(), message: message.into() });
        }
        return;
    };
    let mut running: BTreeMap<String, BTreeMap<String, bool>> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| pod.annotation(MIRROR).is_some()) {
        if let (Some(node), Some(component)) = (pod.str_at("/spec/nodeName"), pod.label("component")) {
            running.entry(node.to_owned()).or_default().insert(component.to_owned(), ready(pod));
        }
    }
    let none = BTreeMap::new();
    let expected: BTreeSet<String> = members
        .iter()
        .filter_map(node)
        .flat_map(|node| running.get(&node).unwrap_or(&none).keys().cloned().collect::<Vec<_>>())
        .collect();
    for member in members.iter_mut() {
        let Some(node) = node(member) else { continue };
        let own = running.get(&node).unwrap_or(&none);
        for component in &expected {
            let (code, what) = match own.get(component) {
                Some(true) => continue,
                Some(false) => ("ComponentNotReady", "is not ready"),
                None => ("ComponentMissing", "does not run yet"),
            };
            let message = format!("{component} {what} on Node {node}");
            member.shown.unhealthy.push(Reason { code: code.into(), message });
        }
    }
}

fn ready(pod: &Object) -> bool {
    let conditions = pod.at("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|condition| {
        let word = |field: &str| condition.get(field).and_then(Value::as_str).unwrap_or_default();
        word("type") == "Ready" && word("status") == "True"
    })
}
