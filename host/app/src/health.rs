//! Whether what was applied is well: a pure reading of objects.

use std::collections::BTreeSet;
use std::sync::Arc;

use capstan_api::well_known::{CLUSTER_GROUP, CLUSTER_NAME, CONTROL_PLANE, DEPLOYMENT_NAME};
use capstan_api::{Object, ObjectKey};
use capstan_cluster::mirror::Mirror;
use capstan_core::view::Select;
use serde_json::Value;

/// Where objects are read.
pub trait Look {
    /// One object; `None` when it is not there or not known.
    fn get(&self, key: &ObjectKey) -> Option<Arc<Object>>;
    /// Objects of a kind in a namespace with a label.
    fn labelled(&self, group: &str, kind: &str, namespace: &str, label: (&str, &str)) -> Vec<Arc<Object>>;
}

impl Look for Mirror {
    fn get(&self, key: &ObjectKey) -> Option<Arc<Object>> {
        Mirror::get(self, key).ok().flatten()
    }

    fn labelled(&self, group: &str, kind: &str, namespace: &str, (label, value): (&str, &str)) -> Vec<Arc<Object>> {
        self.list(group, kind, namespace, &Select::Label(label.to_owned(), value.to_owned())).unwrap_or_default()
    }
}

/// One line of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Which object.
    pub key: ObjectKey,
    /// How deep in the tree.
    pub depth: usize,
    /// Where it is on its way: a phase, or counts.
    pub state: String,
    /// Why it is not further.
    pub why: Option<String>,
    /// Whether readiness of the whole waits for it.
    pub counts: bool,
    /// Whether it is ready.
    pub ready: bool,
}

/// The tree of what was applied.
pub fn tree(look: &dyn Look, applied: &[ObjectKey]) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut shown = BTreeSet::new();
    for key in applied.iter().filter(|key| is_cluster(key)) {
        cluster(look, key, &mut lines, &mut shown);
    }
    for key in applied {
        if shown.contains(key) || key.kind.ends_with("Template") {
            continue;
        }
        lines.push(line(look, key, 0));
    }
    lines
}

fn is_cluster(key: &ObjectKey) -> bool {
    key.group == CLUSTER_GROUP && key.kind == "Cluster"
}

fn cluster(look: &dyn Look, key: &ObjectKey, lines: &mut Vec<Line>, shown: &mut BTreeSet<ObjectKey>) {
    let mut add = |lines: &mut Vec<Line>, key: &ObjectKey, depth: usize| {
        if shown.insert(key.clone()) {
            lines.push(line(look, key, depth));
        }
    };
    add(lines, key, 0);
    let Some(object) = look.get(key) else { return };
    let namespace = &key.namespace;
    let machines = |label: (&str, &str)| look.labelled(CLUSTER_GROUP, "Machine", namespace, label);
    if let Some(infrastructure) = reference(&object, "/spec/infrastructureRef") {
        add(lines, &infrastructure, 1);
    }
    let of_cluster = machines((CLUSTER_NAME, &key.name));
    if let Some(control_plane) = reference(&object, "/spec/controlPlaneRef") {
        add(lines, &control_plane, 1);
        for machine in of_cluster.iter().filter(|m| m.label(CONTROL_PLANE).is_some()) {
            add(lines, &machine.key(), 2);
        }
    }
    for deployment in look.labelled(CLUSTER_GROUP, "MachineDeployment", namespace, (CLUSTER_NAME, &key.name)) {
        add(lines, &deployment.key(), 1);
        for machine in of_cluster.iter().filter(|m| m.label(DEPLOYMENT_NAME) == Some(deployment.name())) {
            add(lines, &machine.key(), 2);
        }
    }
    for machine in &of_cluster {
        add(lines, &machine.key(), 1);
    }
}

fn reference(object: &Object, at: &str) -> Option<ObjectKey> {
    let word = |name: &str| object.str_at(&format!("{at}/{name}"));
    Some(ObjectKey::new(word("apiGroup")?, word("kind")?, object.namespace(), word("name")?))
}

fn line(look: &dyn Look, key: &ObjectKey, depth: usize) -> Line {
    let Some(object) = look.get(key) else {
        return Line { key: key.clone(), depth, state: "not there yet".into(), why: None, counts: true, ready: false };
    };
    let mut state = object.str_at("/status/phase").unwrap_or_default().to_owned();
    let (counts, ready) = if is_cluster(key) {
        (true, is_true(&object, "Available"))
    } else if object.at("/spec/replicas").is_some() && key.kind != "MachineSet" {
        let wanted = object.int_at("/spec/replicas").unwrap_or(1);
        let available = object.int_at("/status/availableReplicas").unwrap_or_default();
        let up_to_date = object.int_at("/status/upToDateReplicas").unwrap_or_default();
        state = format!("{available}/{wanted} available");
        (true, available >= wanted && up_to_date >= wanted && observed(&object))
    } else if key.kind == "Machine" {
        (false, is_true(&object, "Available") || is_true(&object, "Ready"))
    } else if object.at("/status/initialization").is_some() || object.at("/status/conditions").is_some() {
        // Endpoints and EgressPolicies are accepted, ProviderModules are loaded.
        let provisioned = object.bool_at("/status/initialization/provisioned")
            || ["Ready", "Accepted", "Loaded"].iter().any(|kind| is_true(&object, kind));
        state = if provisioned { "provisioned".into() } else { "waiting".into() };
        (false, provisioned)
    } else {
        state = if depth == 0 { "applied".into() } else { "waiting".into() };
        (false, depth == 0)
    };
    if object.is_deleting() {
        state = "being deleted".into();
    }
    if state.is_empty() {
        state = if ready { "ready".into() } else { "waiting".into() };
    }
    if key.kind == "Machine"
        && let Some(node) = object.str_at("/status/nodeRef/name")
    {
        state = format!("{state}, node {node}");
    }
    let why = if ready { None } else { reason(&object) };
    Line { key: key.clone(), depth, state, why, counts, ready }
}

fn observed(object: &Object) -> bool {
    object.int_at("/status/observedGeneration").is_none_or(|seen| seen >= object.generation())
}

fn conditions(object: &Object) -> impl Iterator<Item = &Value> {
    object.at("/status/conditions").and_then(Value::as_array).into_iter().flatten()
}

fn word<'a>(condition: &'a Value, field: &str) -> &'a str {
    condition.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn is_true(object: &Object, kind: &str) -> bool {
    conditions(object).any(|c| word(c, "type") == kind && word(c, "status") == "True")
}

/// Conditions that sum others up: they are told when no other says more.
const SUMMARIES: [&str; 3] = ["Available", "Ready", "UpToDate"];

/// Conditions for which True is the bad news.
const NEGATIVE: [&str; 8] =
    ["Deleting", "Paused", "RollingOut", "ScalingUp", "ScalingDown", "Remediating", "Updating", "Stalled"];

/// Whether a condition for which True is the bad news keeps an object from going on.
fn holds_up(condition: &Value) -> bool {
    let blocked = word(condition, "type") == "Paused" || word(condition, "message").contains("is blocked because");
    word(condition, "status") == "True" && NEGATIVE.contains(&word(condition, "type")) && blocked
}

/// The condition that says best why an object is not well.
fn reason(object: &Object) -> Option<String> {
    let bad: Vec<&Value> =
        conditions(object).filter(|c| word(c, "status") != "True" && !NEGATIVE.contains(&word(c, "type"))).collect();
    let best = bad
        .iter()
        .filter(|c| !SUMMARIES.contains(&word(c, "type")))
        .min_by_key(|c| {
            // What comes first on the way explains what comes later.
            let first = ["Infrastructure", "Bootstrap"].iter().any(|start| word(c, "type").starts_with(start));
            (word(c, "status") != "False", word(c, "message").is_empty(), !first)
        })
        .or_else(|| bad.first());
    let held_up = conditions(object).find(|c| holds_up(c));
    let best = held_up.as_ref().or(best)?;
    let message = word(best, "message").split_whitespace().collect::<Vec<_>>().join(" ");
    let told = if message.is_empty() { word(best, "reason").to_owned() } else { message };
    Some(format!("{}: {told}", word(best, "type")))
}

/// What keeps the whole from being ready, for a person: the lines that are not ready, each with its reasons.
pub fn stuck(look: &dyn Look, lines: &[Line]) -> Vec<String> {
    let mut told = Vec::new();
    for line in lines.iter().filter(|line| !line.ready) {
        let mut text = format!("{} is stuck: {}", line.key, line.state);
        if let Some(object) = look.get(&line.key) {
            let tells =
                |c: &&Value| holds_up(c) || (word(c, "status") != "True" && !NEGATIVE.contains(&word(c, "type")));
            for condition in conditions(&object).filter(tells) {
                text.push_str(&format!(
                    "\n    {} is {} ({}): {}",
                    word(condition, "type"),
                    word(condition, "status"),
                    word(condition, "reason"),
                    word(condition, "message").replace('\n', "\n      "),
                ));
            }
        }
        told.push(text);
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    struct Objects(Vec<Arc<Object>>);

    impl Look for Objects {
        fn get(&self, key: &ObjectKey) -> Option<Arc<Object>> {
            self.0.iter().find(|o| o.key() == *key).cloned()
        }
        fn labelled(&self, group: &str, kind: &str, namespace: &str, (label, value): (&str, &str)) -> Vec<Arc<Object>> {
            let fits = |o: &&Arc<Object>| {
                o.group() == group && o.kind() == kind && o.namespace() == namespace && o.label(label) == Some(value)
            };
            self.0.iter().filter(fits).cloned().collect()
        }
    }

    fn object(value: Value) -> Arc<Object> {
        Arc::new(Object::from_value(value).unwrap())
    }

    fn objects(available: &str, replicas: i64) -> (Objects, Vec<ObjectKey>) {
        let cluster = object(json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": {"name": "c", "namespace": "n"},
            "spec": {"infrastructureRef": {"apiGroup": "i", "kind": "XCluster", "name": "c"}},
            "status": {"phase": "Provisioned", "conditions": [
                {"type": "Available", "status": available, "reason": "NotAvailable", "message": "* many things"},
                {"type": "InfrastructureReady", "status": available, "reason": "NotReady", "message": "no\n cloud"}]},
        }));
        let deployment = object(json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDeployment",
            "metadata": {"name": "d", "namespace": "n", "generation": 1, "labels": {"cluster.x-k8s.io/cluster-name": "c"}},
            "spec": {"replicas": 3},
            "status": {"availableReplicas": replicas, "upToDateReplicas": 3, "observedGeneration": 1},
        }));
        let infrastructure = object(json!({
            "apiVersion": "i/v1", "kind": "XCluster", "metadata": {"name": "c", "namespace": "n"},
            "status": {"initialization": {"provisioned": true}},
        }));
        let keys = vec![cluster.key(), deployment.key()];
        (Objects(vec![cluster, deployment, infrastructure]), keys)
    }

    fn all_ready(lines: &[Line]) -> bool {
        lines.iter().all(|line| line.ready || !line.counts)
    }

    #[test]
    fn ready_is_when_clusters_are_available_and_all_replicas_are() {
        for (available, replicas, ready) in [("True", 3, true), ("True", 2, false), ("False", 3, false)] {
            let (objects, keys) = objects(available, replicas);
            assert_eq!(all_ready(&tree(&objects, &keys)), ready, "{available} {replicas}");
        }
    }

    #[test]
    fn what_a_cluster_refers_to_and_is_not_there_is_waited_for() {
        let (mut objects, keys) = objects("True", 3);
        objects.0.pop();
        assert!(!all_ready(&tree(&objects, &keys)));
    }

    #[test]
    fn what_is_stuck_is_told_with_the_reason_that_says_most() {
        let (objects, keys) = objects("False", 3);
        let lines = tree(&objects, &keys);
        assert_eq!(lines[0].why.as_deref(), Some("InfrastructureReady: no cloud"));
        let told = stuck(&objects, &lines).join("\n");
        assert!(told.contains("Cluster n/c is stuck") && told.contains("NotReady"), "{told}");
        assert!(!told.contains("MachineDeployment n/d is stuck"), "{told}");
    }

    #[test]
    fn what_is_paused_or_blocked_says_so() {
        for (kind, status, message, told_of) in [
            ("Paused", "True", "spec.paused is true", true),
            ("ScalingUp", "True", "Scaling up from 0 to 3 replicas is blocked because:\n* no template", true),
            ("ScalingUp", "True", "Scaling up from 0 to 3 replicas", false),
            ("Paused", "False", "", false),
        ] {
            let deployment = object(json!({
                "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDeployment",
                "metadata": {"name": "d", "namespace": "n"}, "spec": {"replicas": 3},
                "status": {"conditions": [
                    {"type": "Available", "status": "False", "reason": "NotAvailable", "message": "0 of 3"},
                    {"type": kind, "status": status, "reason": kind, "message": message}]},
            }));
            let keys = [deployment.key()];
            let objects = Objects(vec![deployment]);
            let lines = tree(&objects, &keys);
            let told = stuck(&objects, &lines).join("\n");
            assert_eq!(told.contains(&format!("{kind} is {status}")), told_of, "{told}");
            assert_eq!(lines[0].why.clone().unwrap_or_default().starts_with(kind), told_of, "{lines:?}");
        }
    }

    #[test]
    fn each_object_is_shown_once_and_templates_are_not() {
        let (objects, mut keys) = objects("True", 3);
        keys.push(ObjectKey::new("i", "XMachineTemplate", "n", "t"));
        keys.push(ObjectKey::new("i", "XCluster", "n", "c"));
        let lines = tree(&objects, &keys);
        assert_eq!(
            lines.iter().map(|l| l.key.kind.as_str()).collect::<Vec<_>>(),
            ["Cluster", "XCluster", "MachineDeployment"]
        );
    }
}
