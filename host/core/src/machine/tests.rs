use serde_json::{Value, json};

use super::*;
use crate::conditions::{Status, list};
use crate::plan::{Urgency, WorkloadWrite, Write};
use crate::testing::fleet::{
    core, decide, join, provider, provision, put_control_plane_machine, put_machine, ready_cluster, render, settle,
    wait,
};
use crate::testing::{World, workload};
use crate::view::Connection;

fn world() -> World {
    let mut world = ready_cluster();
    put_machine(&mut world, "m");
    world
}

fn machine(world: &World) -> Arc<Object> {
    world.find(&core("Machine", "m")).unwrap()
}

fn condition(world: &World, kind: &str) -> Condition {
    Condition::of(&machine(world), kind).unwrap_or_else(|| panic!("no {kind} in {:?}", machine(world).at("/status")))
}

fn plan(world: &World) -> Plan {
    decide_machine(&core("Machine", "m"), world, world.now).unwrap()
}

fn running() -> World {
    let mut world = world();
    render(&mut world, "m");
    settle(&mut world);
    provision(&mut world, "m");
    settle(&mut world);
    join(&mut world, "m", true);
    settle(&mut world);
    wait(&mut world, 10);
    settle(&mut world);
    world
}

fn node(world: &World) -> Option<Arc<Object>> {
    world.find_in(&workload("n", "c"), &ObjectKey::new("", "Node", "", "m"))
}

#[test]
fn a_machine_goes_from_data_to_infrastructure_to_a_node() {
    let mut world = world();
    settle(&mut world);
    let m = machine(&world);
    assert!(m.has_finalizer(MACHINE_FINALIZER));
    assert_eq!(m.owner_references()[0].kind, "Cluster");
    for kind in ["SimMachine", "KubeadmConfig"] {
        let owned = world.find(&provider(kind, "m")).unwrap();
        assert_eq!(owned.controller().unwrap().uid, m.uid(), "{kind}");
        assert_eq!(owned.label(CLUSTER_NAME), Some("c"));
    }
    assert_eq!(m.at("/status"), None, "nothing is worth a status yet");
    wait(&mut world, super::PATIENCE / 1000);
    settle(&mut world);
    assert_eq!(machine(&world).str_at("/status/phase"), Some("Pending"));
    assert_eq!(
        condition(&world, "BootstrapConfigReady").message,
        "KubeadmConfig status.initialization.dataSecretCreated is false"
    );

    render(&mut world, "m");
    settle(&mut world);
    assert_eq!(machine(&world).str_at("/spec/bootstrap/dataSecretName"), Some("m"));
    assert_eq!(machine(&world).str_at("/status/phase"), Some("Provisioning"));

    provision(&mut world, "m");
    settle(&mut world);
    let m = machine(&world);
    assert_eq!(m.str_at("/spec/providerID"), Some("sim://m"));
    assert_eq!(m.str_at("/status/phase"), Some("Provisioned"));
    assert_eq!(m.at("/status/addresses"), Some(&json!([{"type": "InternalIP", "address": "10.0.0.1"}])));
    assert_eq!(condition(&world, "NodeHealthy").message, "Waiting for a Node with spec.providerID sim://m to exist");
    assert_eq!(condition(&world, "Ready").status, Status::Unknown);

    join(&mut world, "m", true);
    let plan = plan(&world);
    let status = plan.writes.iter().find_map(|w| match w {
        Write::PatchStatus { urgency, patch, .. } => Some((*urgency, patch.clone())),
        _ => None,
    });
    let (urgency, patch) = status.unwrap();
    assert_eq!(urgency, Urgency::Now);
    assert_eq!(patch["status"]["nodeRef"]["name"], "m");
    assert_eq!(patch["status"]["phase"], "Running");
    assert_eq!(plan.events[0].reason, "SuccessfulSetNodeRef");
    settle(&mut world);
    assert_eq!(condition(&world, "Ready"), Condition::yes("Ready", "Ready"));
    assert_eq!(condition(&world, "Available"), Condition::yes("Available", "Available"));
    let m = machine(&world);
    assert_eq!(m.str_at("/status/nodeInfo/kubeletVersion"), Some("v1.35.0"));
    assert_eq!(m.int_at("/status/observedGeneration"), Some(m.generation()));
    wait(&mut world, 3600);
    assert_eq!(settle(&mut world), 0, "settled is settled");
}

#[test]
fn a_machine_costs_five_writes_of_its_own() {
    let mut world = world();
    let mut writes = settle(&mut world);
    render(&mut world, "m");
    writes += settle(&mut world);
    provision(&mut world, "m");
    join(&mut world, "m", true);
    writes += settle(&mut world);
    // Claims of config and infrastructure (a MachineSet makes them with owners), finalizer and owner; then
    // dataSecretName, providerID, and one status.
    assert_eq!(writes, 6);
}

#[test]
fn the_node_is_brought_in_step() {
    let mut world = running();
    let node = node(&world).unwrap();
    assert_eq!(node.at("/spec/taints"), Some(&json!([{"key": "keep", "effect": "NoSchedule"}])));
    assert_eq!(node.annotation("cluster.x-k8s.io/machine"), Some("m"));
    assert_eq!(node.annotation("cluster.x-k8s.io/cluster-namespace"), Some("n"));
    world.edit(&core("Machine", "m"), |o| {
        o.set_label("node-role.kubernetes.io/gpu", "");
        o.set_label("a.node-restriction.kubernetes.io/x", "y");
        o.set_label("evilnode-restriction.kubernetes.io/x", "y");
        o.set_label("other", "z");
    });
    settle(&mut world);
    let labelled = self::node(&world).unwrap();
    assert_eq!(labelled.label("node-role.kubernetes.io/gpu"), Some(""));
    assert_eq!(labelled.label("a.node-restriction.kubernetes.io/x"), Some("y"));
    assert_eq!(labelled.label("evilnode-restriction.kubernetes.io/x"), None);
    assert_eq!(labelled.label("other"), None);
    world.edit(&core("Machine", "m"), |o| {
        o.remove("/metadata/labels/node-role.kubernetes.io~1gpu");
    });
    settle(&mut world);
    let after = self::node(&world).unwrap();
    assert_eq!(after.label("node-role.kubernetes.io/gpu"), None);
    assert_eq!(after.label("a.node-restriction.kubernetes.io/x"), Some("y"));
}

#[test]
fn two_nodes_with_one_provider_id_are_an_error_and_neither_is_touched() {
    for bound_before in [false, true] {
        let mut world = if bound_before { running() } else { world() };
        if !bound_before {
            render(&mut world, "m");
            settle(&mut world);
            provision(&mut world, "m");
            settle(&mut world);
            join(&mut world, "m", true);
        }
        let twin = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a-twin"},
            "spec": {"providerID": "sim://m"}});
        world.put_in(&workload("n", "c"), twin);
        wait(&mut world, 10);
        settle(&mut world);
        let healthy = condition(&world, "NodeHealthy");
        assert_eq!((healthy.status, healthy.reason.as_str()), (Status::Unknown, "InternalError"));
        assert!(healthy.message.contains("a-twin, m"), "{}", healthy.message);
        assert_eq!(machine(&world).at("/status/nodeRef").is_some(), bound_before);
        world.delete(&core("Machine", "m"));
        settle(&mut world);
        assert!(world.find(&core("Machine", "m")).is_none());
        let place = workload("n", "c");
        for name in ["a-twin", "m"] {
            let node = world.find_in(&place, &ObjectKey::new("", "Node", "", name)).unwrap();
            assert!(!node.bool_at("/spec/unschedulable"), "{name} was cordoned");
        }
    }
}

#[test]
fn a_provider_that_breaks_the_contract_is_reported_and_not_believed() {
    let mut world = world();
    world.edit(&provider("SimMachine", "m"), |o| o.set("/status/initialization/provisioned", true.into()));
    wait(&mut world, 10);
    settle(&mut world);
    let told = condition(&world, "InfrastructureReady");
    assert_eq!(told.reason, "ContractViolation");
    assert!(told.message.contains("no spec.providerID"), "{}", told.message);
    assert!(!machine(&world).bool_at("/status/initialization/infrastructureProvisioned"));

    let mut world = running();
    world.edit(&provider("SimMachine", "m"), |o| {
        o.set("/spec/providerID", "sim://other".into());
        o.set("/status/addresses", json!([{"type": "InternalIP", "address": "9.9.9.9"}]));
    });
    settle(&mut world);
    let told = condition(&world, "InfrastructureReady");
    assert_eq!((told.status, told.reason.as_str()), (Status::False, "ContractViolation"));
    assert_eq!(machine(&world).str_at("/spec/providerID"), Some("sim://m"));
    assert_eq!(machine(&world).str_at("/status/addresses/0/address"), Some("10.0.0.1"));
}

#[test]
fn wrong_references_say_where_and_what() {
    let mut world = world();
    world.edit(&core("Machine", "m"), |o| {
        o.set("/spec/infrastructureRef/kind", "SimMashine".into());
        o.set("/spec/bootstrap/configRef/name", "nobody".into());
    });
    world.unserve("infrastructure.cluster.x-k8s.io", "SimMashine");
    wait(&mut world, 10);
    settle(&mut world);
    let infra = condition(&world, "InfrastructureReady");
    assert_eq!(infra.reason, "InvalidReference");
    assert!(infra.message.starts_with("spec.infrastructureRef names SimMashine"), "{}", infra.message);
    let config = condition(&world, "BootstrapConfigReady");
    assert_eq!(config.message, "spec.bootstrap.configRef names KubeadmConfig nobody, which does not exist");
    // A reference that leads nowhere does not hold the deletion up.
    world.delete(&core("Machine", "m"));
    settle(&mut world);
    assert!(world.find(&core("Machine", "m")).is_none());
}

#[test]
fn infrastructure_of_another_machine_is_not_taken() {
    let mut world = world();
    settle(&mut world);
    put_machine(&mut world, "thief");
    world.edit(&core("Machine", "thief"), |o| o.set("/spec/infrastructureRef/name", "m".into()));
    wait(&mut world, 10);
    settle(&mut world);
    let thief = world.find(&core("Machine", "thief")).unwrap();
    let told = Condition::of(&thief, "InfrastructureReady").unwrap();
    assert!(told.message.contains("controlled by Machine m already"), "{}", told.message);
    world.delete(&core("Machine", "thief"));
    settle(&mut world);
    assert!(world.find(&provider("SimMachine", "m")).is_some_and(|o| !o.is_deleting()));
}

#[test]
fn available_waits_for_min_ready_seconds() {
    let mut world = world();
    world.edit(&core("Machine", "m"), |o| o.set("/spec/minReadySeconds", 30.into()));
    render(&mut world, "m");
    settle(&mut world);
    provision(&mut world, "m");
    join(&mut world, "m", true);
    settle(&mut world);
    assert_eq!(condition(&world, "Available").reason, "WaitingForMinReadySeconds");
    wait(&mut world, 12);
    settle(&mut world);
    assert_eq!(plan(&world).look_again, Some(std::time::Duration::from_secs(18)));
    wait(&mut world, 18);
    settle(&mut world);
    assert_eq!(condition(&world, "Available").status, Status::True);
    join(&mut world, "m", false);
    settle(&mut world);
    assert_eq!(condition(&world, "Available").reason, "NotReady");
    assert_eq!(condition(&world, "Ready").message, "* NodeHealthy: * Node.Ready: as told".replace(": *", ":\n  *"));
}

#[test]
fn readiness_gates_count() {
    let mut world = running();
    world.edit(&core("Machine", "m"), |o| o.set("/spec/readinessGates", json!([{"conditionType": "Mine"}])));
    settle(&mut world);
    assert_eq!(condition(&world, "Ready").status, Status::Unknown);
    let now = world.now;
    world.edit(&core("Machine", "m"), |o| {
        let mine = list(&[Condition::yes("Mine", "Good")], now);
        let Some(Value::Array(conditions)) = o.at("/status/conditions").cloned() else { panic!() };
        o.set("/status/conditions", conditions.into_iter().chain(mine.as_array().unwrap().clone()).collect());
    });
    settle(&mut world);
    assert_eq!(condition(&world, "Ready").status, Status::True);
}

#[test]
fn an_unreachable_cluster_is_believed_for_five_minutes() {
    let mut world = running();
    let since = world.now;
    world.connect("n", "c", Connection::Down { since, reason: "connection refused".into() });
    wait(&mut world, 299);
    decide(&mut world, &core("Machine", "m"));
    assert_eq!(condition(&world, "NodeHealthy").status, Status::True);
    wait(&mut world, 1);
    decide(&mut world, &core("Machine", "m"));
    assert_eq!(condition(&world, "NodeHealthy").reason, "ConnectionDown");
}

#[test]
fn a_node_that_vanished_is_reported() {
    let mut world = running();
    world.delete_in(&workload("n", "c"), &ObjectKey::new("", "Node", "", "m"));
    settle(&mut world);
    assert_eq!(condition(&world, "NodeHealthy").reason, "NodeDeleted");
    assert_eq!(machine(&world).str_at("/status/nodeRef/name"), Some("m"));
    world.delete(&provider("SimMachine", "m"));
    settle(&mut world);
    assert_eq!(condition(&world, "InfrastructureReady").reason, "ObjectDeleted");
}

#[test]
fn data_of_the_users_own_needs_no_config() {
    let mut world = world();
    world.edit(&core("Machine", "m"), |o| o.set("/spec/bootstrap", json!({"dataSecretName": "mine"})));
    wait(&mut world, 10);
    settle(&mut world);
    assert_eq!(condition(&world, "BootstrapConfigReady"), Condition::yes("BootstrapConfigReady", "DataSecretProvided"));
}

#[test]
fn what_is_paused_is_left_alone() {
    let mut world = world();
    world.edit(&core("Machine", "m"), |o| o.set_annotation("cluster.x-k8s.io/paused", ""));
    world.delete(&core("Machine", "m"));
    world.put(json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
        "metadata": {"name": "m", "namespace": "n", "annotations": {"cluster.x-k8s.io/paused": ""}},
        "spec": {"clusterName": "c"}}));
    let plan = plan(&world);
    let [Write::PatchStatus { patch, .. }] = plan.writes.as_slice() else { panic!("{plan:?}") };
    let conditions = patch["status"]["conditions"].as_array().unwrap();
    assert_eq!(
        (conditions.len(), &conditions[0]["type"], &conditions[0]["status"]),
        (1, &json!("Paused"), &json!("True"))
    );
}

fn hold(world: &mut World, kind: &str) {
    world.edit(&provider(kind, "m"), |o| o.set("/metadata/finalizers", json!(["held"])));
}

fn let_go(world: &mut World, kind: &str) {
    world.edit(&provider(kind, "m"), |o| {
        o.remove("/metadata/finalizers");
    });
}

#[test]
fn deletion_goes_step_by_step() {
    let mut world = running();
    put_control_plane_machine(&mut world);
    settle(&mut world);
    hold(&mut world, "SimMachine");
    hold(&mut world, "KubeadmConfig");
    let hooks =
        ["pre-drain.delete.hook.machine.cluster.x-k8s.io/x", "pre-terminate.delete.hook.machine.cluster.x-k8s.io/y"];
    world.edit(&core("Machine", "m"), |o| hooks.iter().for_each(|hook| o.set_annotation(hook, "me")));
    world.delete(&core("Machine", "m"));
    settle(&mut world);
    assert_eq!(condition(&world, "Deleting").reason, "WaitingForPreDrainHook");
    assert_eq!(machine(&world).str_at("/status/phase"), Some("Deleting"));
    assert_eq!(condition(&world, "Available").status, Status::False);
    assert!(!node(&world).unwrap().bool_at("/spec/unschedulable"));

    let drop_hook = |world: &mut World, hook: &str| {
        let pointer = format!("/metadata/annotations/{}", hook.replace('/', "~1"));
        world.edit(&core("Machine", "m"), |o| {
            o.remove(&pointer);
        });
    };
    drop_hook(&mut world, hooks[0]);
    settle(&mut world);
    assert_eq!(condition(&world, "Deleting").reason, "WaitingForPreTerminateHook");
    assert!(node(&world).unwrap().bool_at("/spec/unschedulable"), "cordoned");
    assert!(!world.find(&provider("SimMachine", "m")).unwrap().is_deleting());

    drop_hook(&mut world, hooks[1]);
    settle(&mut world);
    let told = condition(&world, "Deleting");
    assert_eq!(told.reason, "WaitingForInfrastructureDeletion");
    assert!(told.message.contains("held by held"), "{}", told.message);
    assert!(world.find(&provider("SimMachine", "m")).unwrap().is_deleting());
    assert!(!world.find(&provider("KubeadmConfig", "m")).unwrap().is_deleting());
    assert!(node(&world).is_some());

    let_go(&mut world, "SimMachine");
    settle(&mut world);
    assert_eq!(condition(&world, "Deleting").reason, "WaitingForBootstrapDeletion");
    let_go(&mut world, "KubeadmConfig");
    settle(&mut world);
    assert!(world.find(&core("Machine", "m")).is_none());
    assert!(node(&world).is_none());
}

#[test]
fn the_node_is_left_to_its_fate_when_nobody_can_answer_for_it() {
    // The Cluster goes, the control plane goes, or this is its last machine.
    type Change = fn(&mut World);
    let cases: [Change; 3] = [
        |w| {
            w.edit(&core("Cluster", "c"), |o| o.set("/metadata/deletionTimestamp", "2026-01-01T00:00:00Z".into()));
        },
        |w| {
            w.edit(&provider("KubeadmControlPlane", "c"), |o| {
                o.set("/metadata/finalizers", json!(["x"]));
                o.set("/metadata/deletionTimestamp", "2026-01-01T00:00:00Z".into());
            });
        },
        |w| {
            w.edit(&core("Machine", "m"), |o| o.set_label("cluster.x-k8s.io/control-plane", ""));
        },
    ];
    for change in cases {
        let mut world = running();
        change(&mut world);
        world.delete(&core("Machine", "m"));
        for _ in 0..5 {
            decide(&mut world, &core("Machine", "m"));
        }
        assert!(world.find(&core("Machine", "m")).is_none());
        let node = node(&world).unwrap();
        assert!(!node.bool_at("/spec/unschedulable"));
    }
}

#[test]
fn an_unreachable_node_is_given_ten_seconds() {
    let mut world = running();
    put_control_plane_machine(&mut world);
    let since = world.now;
    world.connect("n", "c", Connection::Down { since, reason: "no route".into() });
    world.delete(&core("Machine", "m"));
    settle(&mut world);
    assert_eq!(condition(&world, "Deleting").reason, "DeletingNode");
    assert_eq!(plan(&world).look_again, Some(std::time::Duration::from_secs(10)));
    wait(&mut world, 10);
    settle(&mut world);
    assert!(world.find(&core("Machine", "m")).is_none());
}

#[test]
fn a_cache_that_is_cold_stops_the_decision() {
    let mut world = world();
    world.set_cold("SimMachine", true);
    assert!(matches!(decide_machine(&core("Machine", "m"), &world, 0), Err(NotNow::CacheCold { .. })));
}

#[test]
fn deleting_a_node_is_a_write_to_the_workload_cluster() {
    let mut world = running();
    put_control_plane_machine(&mut world);
    settle(&mut world);
    world.delete(&core("Machine", "m"));
    settle(&mut world);
    let deleted = world.writes.iter().any(|w| {
        matches!(w, Write::Workload { write, .. } if matches!(write.as_ref(), WorkloadWrite::Delete { key, .. } if key.name == "m"))
    });
    assert!(deleted);
}
