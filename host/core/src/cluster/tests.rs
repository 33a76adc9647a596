use std::sync::Arc;

use capstan_api::Object;
use serde_json::json;

use super::*;
use crate::conditions::{Condition, Status};
use crate::plan::{Urgency, Write};
use crate::testing::World;
use crate::testing::fleet::{
    cluster_objects, core, decide, join, machine_deployment, provider, put_machine, ready_cluster, serve_all, settle,
    wait,
};
use crate::view::Connection;

fn applied() -> World {
    let mut world = World::new();
    for object in cluster_objects() {
        world.put(object);
    }
    world
}

fn cluster(world: &World) -> Arc<Object> {
    world.find(&core("Cluster", "c")).unwrap()
}

fn condition(world: &World, kind: &str) -> Condition {
    Condition::of(&cluster(world), kind).unwrap_or_else(|| panic!("no {kind}: {:?}", cluster(world).at("/status")))
}

#[test]
fn infrastructure_comes_first_and_is_told_at_once() {
    let mut world = applied();
    settle(&mut world);
    for (kind, name) in [("SimCluster", "c"), ("KubeadmControlPlane", "c")] {
        let object = world.find(&provider(kind, name)).unwrap();
        let owner = &object.owner_references()[0];
        assert_eq!((owner.kind.as_str(), owner.controller), ("Cluster", None), "{kind}");
        assert_eq!(object.label("cluster.x-k8s.io/cluster-name"), Some("c"));
    }
    assert!(cluster(&world).has_finalizer(CLUSTER_FINALIZER));
    world.edit(&provider("SimCluster", "c"), |o| {
        o.set("/spec/controlPlaneEndpoint", json!({"host": "10.0.0.1", "port": 6443}));
        o.set(
            "/status",
            json!({"initialization": {"provisioned": true}, "failureDomains": [{"name": "b"}, {"name": "a"}]}),
        );
    });
    let plan = decide_cluster(&core("Cluster", "c"), &world, world.now).unwrap();
    let [Write::Patch { patch, .. }, Write::PatchStatus { patch: status, urgency, .. }] = plan.writes.as_slice() else {
        panic!("{plan:?}");
    };
    assert_eq!(patch, &json!({"spec": {"controlPlaneEndpoint": {"host": "10.0.0.1", "port": 6443}}}));
    assert_eq!(*urgency, Urgency::Now);
    assert_eq!(status["status"]["initialization"], json!({"infrastructureProvisioned": true}));
    assert_eq!(status["status"]["failureDomains"][0]["name"], "a");
    assert_eq!(status["status"]["phase"], "Provisioned");
}

#[test]
fn an_endpoint_that_is_there_stays() {
    let mut world = applied();
    world.edit(&core("Cluster", "c"), |o| o.set("/spec/controlPlaneEndpoint", json!({"host": "mine", "port": 443})));
    world.edit(&provider("SimCluster", "c"), |o| {
        o.set("/spec/controlPlaneEndpoint", json!({"host": "10.0.0.1", "port": 6443}));
        o.set("/status/initialization/provisioned", true.into());
    });
    settle(&mut world);
    assert_eq!(cluster(&world).str_at("/spec/controlPlaneEndpoint/host"), Some("mine"));
}

#[test]
fn a_cluster_becomes_available_and_settles() {
    let mut world = ready_cluster();
    world.put(machine_deployment(2));
    for _ in 0..4 {
        settle(&mut world);
        serve_all(&mut world, |_| true);
        wait(&mut world, 3);
    }
    settle(&mut world);
    assert_eq!(condition(&world, "Available"), Condition::yes("Available", "Available"));
    assert_eq!(
        cluster(&world).at("/status/workers"),
        Some(&json!({"desiredReplicas": 2, "replicas": 2, "upToDateReplicas": 2, "readyReplicas": 2,
            "availableReplicas": 2, "versions": [{"version": "v1.35.0", "replicas": 2}]}))
    );
    assert_eq!(cluster(&world).int_at("/status/controlPlane/desiredReplicas"), Some(1));
    wait(&mut world, 20);
    settle(&mut world);
    wait(&mut world, 3600);
    assert_eq!(settle(&mut world), 0);

    let name = world.all("Machine")[0].name().to_owned();
    join(&mut world, &name, false);
    settle(&mut world);
    assert_eq!(condition(&world, "Available").status, Status::False);
    assert!(
        condition(&world, "Available").message.contains("* WorkersAvailable"),
        "{:?}",
        condition(&world, "Available")
    );
}

#[test]
fn facts_never_go_back() {
    let mut world = ready_cluster();
    world.edit(&provider("SimCluster", "c"), |o| o.set("/status/initialization/provisioned", false.into()));
    world.edit(&provider("KubeadmControlPlane", "c"), |o| {
        o.set("/status/initialization/controlPlaneInitialized", false.into());
    });
    settle(&mut world);
    let c = cluster(&world);
    assert!(c.bool_at("/status/initialization/infrastructureProvisioned"));
    assert!(c.bool_at("/status/initialization/controlPlaneInitialized"));
}

#[test]
fn without_a_control_plane_object_the_first_node_counts_and_the_core_makes_the_kubeconfig() {
    let mut world = ready_cluster();
    world.edit(&core("Cluster", "c"), |o| {
        o.remove("/spec/controlPlaneRef");
        o.remove("/status/initialization/controlPlaneInitialized");
    });
    settle(&mut world);
    assert_eq!(condition(&world, "ControlPlaneInitialized").status, Status::False);
    assert!(world.all("Secret").is_empty());
    world.put(json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "c-ca", "namespace": "n"}}));
    put_machine(&mut world, "cp");
    world.edit(&core("Machine", "cp"), |o| {
        o.set_label("cluster.x-k8s.io/control-plane", "");
        o.set_label("cluster.x-k8s.io/cluster-name", "c");
        o.set("/status/nodeRef", json!({"name": "cp"}));
    });
    decide(&mut world, &core("Cluster", "c"));
    assert_eq!(condition(&world, "ControlPlaneInitialized").status, Status::True);
    let secrets: Vec<String> = world.all("Secret").iter().map(|s| s.name().to_owned()).collect();
    assert_eq!(secrets, ["c-ca", "c-kubeconfig"]);
}

#[test]
fn wrong_references_say_where_and_what() {
    let mut world = applied();
    world.edit(&core("Cluster", "c"), |o| {
        o.set("/spec/infrastructureRef/name", "nobody".into());
        o.set("/spec/controlPlaneRef/kind", "Kubeadm".into());
    });
    world.unserve("controlplane.cluster.x-k8s.io", "Kubeadm");
    wait(&mut world, 10);
    settle(&mut world);
    assert_eq!(
        condition(&world, "InfrastructureReady"),
        Condition::no(
            "InfrastructureReady",
            "ObjectDoesNotExist",
            "spec.infrastructureRef names SimCluster nobody, which does not exist"
        )
    );
    let told = condition(&world, "ControlPlaneAvailable");
    assert!(told.message.starts_with("spec.controlPlaneRef names Kubeadm of group"), "{}", told.message);
    assert!(condition(&world, "Available").message.contains("nobody"));
}

#[test]
fn a_connection_that_is_down_for_a_while_is_not_told() {
    let mut world = ready_cluster();
    wait(&mut world, 10);
    settle(&mut world);
    let since = world.now;
    world.connect("n", "c", Connection::Unknown);
    settle(&mut world);
    assert_eq!(condition(&world, "RemoteConnectionProbe").status, Status::True, "a restart says nothing");
    world.connect("n", "c", Connection::Down { since, reason: "timeout".into() });
    wait(&mut world, 49);
    settle(&mut world);
    assert_eq!(condition(&world, "RemoteConnectionProbe").status, Status::True);
    let plan = decide_cluster(&core("Cluster", "c"), &world, world.now).unwrap();
    assert_eq!(plan.look_again, Some(std::time::Duration::from_secs(1)));
    wait(&mut world, 1);
    settle(&mut world);
    assert_eq!(condition(&world, "RemoteConnectionProbe").message, "Remote connection probe failed: timeout");
    assert_eq!(condition(&world, "Available").status, Status::False);
}

#[test]
fn availability_gates_count() {
    let mut world = ready_cluster();
    wait(&mut world, 10);
    world.edit(&core("Cluster", "c"), |o| {
        o.set("/spec/availabilityGates", json!([{"conditionType": "Broken", "polarity": "Negative"}]));
    });
    settle(&mut world);
    assert_eq!(condition(&world, "Available").status, Status::Unknown);
}

#[test]
fn what_is_paused_is_left_alone() {
    let mut world = applied();
    world.edit(&core("Cluster", "c"), |o| o.set("/spec/paused", true.into()));
    world.put(machine_deployment(2));
    settle(&mut world);
    assert_eq!(condition(&world, "Paused").status, Status::True);
    assert!(!cluster(&world).has_finalizer(CLUSTER_FINALIZER));
    assert!(world.all("MachineSet").is_empty());
    let deployment = world.find(&core("MachineDeployment", "d")).unwrap();
    assert!(Condition::holds(&deployment, "Paused"));
    world.edit(&core("Cluster", "c"), |o| o.set("/spec/paused", false.into()));
    settle(&mut world);
    assert_eq!(world.all("MachineSet").len(), 1);
}

#[test]
fn deletion_goes_from_the_workers_to_the_infrastructure() {
    let mut world = ready_cluster();
    world.put(machine_deployment(2));
    put_machine(&mut world, "single");
    for _ in 0..4 {
        settle(&mut world);
        serve_all(&mut world, |_| true);
        wait(&mut world, 3);
    }
    settle(&mut world);
    let hold = |world: &mut World, kind: &str, name: &str, hold: bool| {
        world.edit(&provider(kind, name), |o| {
            if hold {
                o.set("/metadata/finalizers", json!(["held"]));
            } else {
                o.remove("/metadata/finalizers");
            }
        });
    };
    hold(&mut world, "SimMachine", "single", true);
    hold(&mut world, "KubeadmControlPlane", "c", true);
    hold(&mut world, "SimCluster", "c", true);
    world.delete(&core("Cluster", "c"));
    settle(&mut world);
    let told = condition(&world, "Deleting");
    assert_eq!(told.reason, "WaitingForWorkersDeletion");
    assert_eq!(told.message, "Waiting for these to be deleted:\n* worker Machine single");
    assert_eq!(cluster(&world).str_at("/status/phase"), Some("Deleting"));
    assert!(!world.find(&provider("KubeadmControlPlane", "c")).unwrap().is_deleting());

    hold(&mut world, "SimMachine", "single", false);
    settle(&mut world);
    assert_eq!(condition(&world, "Deleting").reason, "WaitingForControlPlaneDeletion");
    assert!(!world.find(&provider("SimCluster", "c")).unwrap().is_deleting());
    hold(&mut world, "KubeadmControlPlane", "c", false);
    settle(&mut world);
    assert_eq!(condition(&world, "Deleting").reason, "WaitingForInfrastructureDeletion");
    hold(&mut world, "SimCluster", "c", false);
    settle(&mut world);
    for kind in [
        "Cluster",
        "Machine",
        "MachineSet",
        "MachineDeployment",
        "SimMachine",
        "SimCluster",
        "KubeadmConfig",
        "SimMachineTemplate",
        "KubeadmConfigTemplate",
    ] {
        assert!(world.all(kind).is_empty(), "{kind} is left: {:?}", world.all(kind));
    }
}

#[test]
fn bringing_up_costs_few_writes() {
    let mut world = applied();
    world.put(machine_deployment(3));
    let mut writes = settle(&mut world);
    world.edit(&provider("SimCluster", "c"), |o| {
        o.set("/spec/controlPlaneEndpoint", json!({"host": "10.0.0.1", "port": 6443}));
        o.set("/status/initialization/provisioned", true.into());
    });
    writes += settle(&mut world);
    world.edit(&provider("KubeadmControlPlane", "c"), |o| {
        o.set("/status/initialization/controlPlaneInitialized", true.into());
        o.set("/status/versions", json!([{"version": "v1.35.0", "replicas": 1}]));
        o.set("/status/conditions", json!([{"type": "Available", "status": "True", "reason": "Available"}]));
    });
    world.connect("n", "c", Connection::Up);
    for _ in 0..4 {
        writes += settle(&mut world);
        serve_all(&mut world, |_| true);
    }
    writes += settle(&mut world);
    wait(&mut world, 60);
    writes += settle(&mut world);
    // Each worker: three objects, dataSecretName, providerID, one status. The rest: three objects' finalizers and
    // owners, two claims by the Cluster, two by the MachineDeployment, a MachineSet, and the statuses.
    assert!(writes <= 3 * 6 + 21, "{writes} writes: {:#?}", world.writes.iter().map(brief).collect::<Vec<_>>());
}

fn brief(write: &Write) -> String {
    match write {
        Write::Create(o) => format!("create {}", o.key()),
        Write::Patch { key, patch, .. } => format!("patch {key} {patch}"),
        Write::PatchStatus { key, urgency, .. } => format!("status {key} {urgency:?}"),
        Write::Delete { key, .. } => format!("delete {key}"),
        other => format!("{other:?}"),
    }
}
