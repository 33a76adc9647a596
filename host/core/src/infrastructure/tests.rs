use std::collections::BTreeMap;

use capstan_api::well_known::{CONTROL_PLANE, MANAGED_BY, PAUSED};
use serde_json::{Value, json};

use super::scene::{Resource, Scene, WINDOW, part, pending, reason, running, stranger};
use crate::contract::*;
use crate::plan::Write;
use crate::record::PARTS;
use crate::turn::Reply;
use crate::view::Connection;

#[test]
fn a_machine_comes_up_with_its_parts_in_order() {
    let mut scene = Scene::machine();
    scene.settle();
    assert_eq!(scene.remote.owned("vm"), ["m/vm"]);
    assert_eq!(scene.remote.owned("disk"), ["r-1"]);
    let object = scene.object().unwrap();
    assert_eq!(object.str_at("/spec/providerID"), Some("imaginary://m/vm"));
    assert!(object.bool_at("/status/initialization/provisioned") && object.bool_at("/status/ready"));
    assert_eq!(scene.status("/addresses"), json!([{"type": "InternalIP", "address": "10.0.0.7"}]));
    assert_eq!(scene.status("/state"), "running");
    assert_eq!(object.finalizers(), ["imaginarymachine.infrastructure.cluster.x-k8s.io"]);
    assert_eq!(scene.condition("Ready").0, "True");
    assert_eq!(scene.condition("Paused").0, "False");
}

#[test]
fn a_machine_of_one_part_costs_three_writes_and_a_settled_one_none() {
    let mut scene = Scene::machine();
    scene.remote.parts = vec![part("vm", &[], false)];
    scene.settle();
    let writes = scene.take_writes();
    assert_eq!(writes.len(), 3, "{writes:#?}");
    let [Write::Patch { patch, resource_version: Some(_), .. }, _, Write::PatchStatus { .. }] = writes.as_slice()
    else {
        panic!("{writes:#?}");
    };
    assert!(patch.pointer("/metadata/finalizers").is_some() && patch.pointer("/metadata/annotations").is_some());
    // Nothing changed: no turn before it is time, and no write even then.
    let turns = scene.turns;
    scene.once();
    assert_eq!(scene.turns, turns);
    scene.wait(100_000);
    scene.once();
    assert_eq!((scene.turns, scene.take_writes()), (turns + 1, vec![]));
}

#[test]
fn a_changed_secret_or_policy_wakes_a_failing_machine_at_once() {
    let mut scene = Scene::machine();
    scene.served.endpoints = vec!["api".into()];
    let credential = json!({"at": "/spec/credentialsRef", "kind": "Secret", "endpoint": "api", "header": {"A": "{t}"}});
    scene.served.credentials = vec![serde_json::from_value(credential).unwrap()];
    scene.edit(|machine| machine.set("/spec/credentialsRef", json!({"name": "token"})));
    let secret = |token: &str| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "token", "namespace": "n"}, "data": {"t": token}});
    scene.world.put(secret("b2xk"));
    scene.remote.error = Some(ProviderError::Unauthorized(reason("401")));
    scene.once();
    let turns = scene.turns;
    scene.once();
    assert_eq!(scene.turns, turns, "nothing has changed and it is not time");
    scene.world.put(secret("bmV3"));
    scene.once();
    assert_eq!(scene.turns, turns + 1);
    scene.once();
    assert_eq!(scene.turns, turns + 1);
    scene.world.put(json!({"apiVersion": "capstan.dev/v1alpha1", "kind": "EgressPolicy", "metadata": {"name": "lab"},
        "spec": {"addresses": ["10.0.0.0/8"]}}));
    scene.once();
    assert_eq!(scene.turns, turns + 2);
}

#[test]
fn what_a_settled_machine_has_lost_is_put_back() {
    let mut scene = Scene::machine();
    scene.settle();
    scene.world.edit(&capstan_api::ObjectKey::new("cluster.x-k8s.io", "Machine", "n", "m"), |m| {
        m.set("/status/initialization/infrastructureProvisioned", true.into());
    });
    scene.settle();
    let before = scene.object().unwrap();
    for at in ["/status", "/metadata/finalizers"] {
        scene.take_writes();
        scene.edit(|o| {
            o.remove(at);
        });
        scene.wait(5_000);
        scene.settle();
        let object = scene.object().unwrap();
        assert_eq!(object.finalizers(), before.finalizers());
        assert!(object.bool_at("/status/initialization/provisioned"), "{at}");
        assert!(scene.take_writes().len() <= 2);
    }
}

#[test]
fn a_machine_that_does_not_join_is_looked_at_often() {
    let mut scene = Scene::machine();
    scene.world.edit(&capstan_api::ObjectKey::new("cluster.x-k8s.io", "Machine", "n", "m"), |m| {
        m.remove("/status/nodeRef");
    });
    for _ in 0..10 {
        let after = scene.once().unwrap();
        assert!(after <= 10_000, "{after}");
        scene.wait(after);
    }
    assert_eq!(scene.condition("Ready").0, "True");
    assert!(scene.take_writes().len() < 8);
}

#[test]
fn an_ill_node_is_a_reason_to_look_at_its_machine() {
    let mut scene = Scene::machine();
    scene.settle();
    scene.wait(WINDOW);
    scene.remote.resources.remove("m/vm");
    scene.once();
    assert_eq!(scene.condition("Ready").0, "True");
    scene.world.edit(&capstan_api::ObjectKey::new("cluster.x-k8s.io", "Machine", "n", "m"), |m| {
        m.set("/status/conditions", json!([{"type": "NodeHealthy", "status": "False", "reason": "X"}]));
    });
    scene.once();
    assert_eq!(scene.condition("Ready").1, "InfrastructureDeleted");
}

#[test]
fn an_api_server_that_does_not_answer_is_a_reason_to_look_at_its_machines() {
    let mut scene = Scene::machine();
    scene.settle();
    let turns = scene.turns;
    scene.world.connect("n", "c", Connection::Down { since: 0, reason: "refused".into() });
    scene.once();
    assert_eq!(scene.turns, turns, "not a worker's affair");
    scene.world.edit(&capstan_api::ObjectKey::new("cluster.x-k8s.io", "Machine", "n", "m"), |m| {
        m.set_label(CONTROL_PLANE, "");
    });
    scene.world.connect("n", "c", Connection::Up);
    scene.settle();
    scene.wait(WINDOW);
    scene.remote.resources.remove("m/vm");
    scene.once();
    assert_eq!(scene.condition("Ready").0, "True");
    scene.world.connect("n", "c", Connection::Down { since: 0, reason: "refused".into() });
    scene.once();
    assert_eq!(scene.condition("Ready").1, "InfrastructureDeleted");
}

#[test]
fn an_api_server_that_does_not_answer_is_a_reason_to_look_at_what_stands_before_it() {
    let mut scene = Scene::cluster();
    scene.settle();
    let down = || Connection::Down { since: 0, reason: "refused".into() };
    let turns = scene.turns;
    scene.world.connect("n", "c", down());
    scene.once();
    assert_eq!(scene.turns, turns, "it has not come up yet");
    scene.world.edit(&capstan_api::ObjectKey::new("cluster.x-k8s.io", "Cluster", "n", "c"), |cluster| {
        cluster.set("/status/initialization/controlPlaneInitialized", true.into());
    });
    scene.once();
    assert_eq!(scene.turns, turns + 1);
    // What has just been stopped is shown running for a moment.
    scene.wait(10_000);
    scene.once();
    assert_eq!(scene.turns, turns + 2);
}

#[test]
fn a_machine_that_vanished_is_reported_and_never_made_anew() {
    let mut scene = Scene::machine();
    scene.settle();
    scene.remote.resources.remove("m/vm");
    for _ in 0..10 {
        scene.wait(100_000);
        scene.once();
    }
    assert_eq!(scene.remote.creations, 2);
    let (status, reason, message) = scene.condition("Ready");
    assert_eq!((status.as_str(), reason.as_str()), ("False", "InfrastructureDeleted"));
    assert!(message.contains("vm (m/vm) was there and is gone"), "{message}");
    assert_eq!(scene.events.iter().filter(|event| *event == "InfrastructureDeleted").count(), 1);
    // Nothing flips back.
    assert_eq!(scene.status("/initialization/provisioned"), true);
    assert_eq!(scene.object().unwrap().str_at("/spec/providerID"), Some("imaginary://m/vm"));
    scene.delete();
    scene.settle();
    assert!(scene.object().is_none() && scene.remote.resources.is_empty());
}

#[test]
fn a_load_balancer_that_vanished_is_made_anew() {
    let mut scene = Scene::cluster();
    scene.settle();
    assert_eq!(
        scene.object().unwrap().at("/spec/controlPlaneEndpoint"),
        Some(&json!({"host": "10.0.0.1", "port": 6443}))
    );
    assert_eq!(scene.status("/failureDomains"), json!([{"name": "a", "controlPlane": true}]));
    assert_eq!(scene.record().states()["lb"], json!({"state": "running", "id": "c/lb"}));
    scene.remote.resources.clear();
    scene.wait(100_000);
    scene.settle();
    assert_eq!(scene.remote.owned("lb").len(), 1);
    assert_eq!(scene.record().parts["lb"].attempt, 2);
    assert!(scene.events.contains(&"PartVanished".to_owned()));
    assert_eq!(scene.condition("Ready").0, "True");
}

#[test]
fn what_differs_is_updated_one_call_at_a_time() {
    let mut scene = Scene::machine();
    scene.settle();
    scene.remote.todo.insert("vm".into(), vec![reason("Cpus"), reason("Tags")]);
    scene.wait(100_000);
    scene.once();
    assert_eq!(scene.remote.todo["vm"].len(), 1);
    scene.settle();
    assert!(scene.remote.todo["vm"].is_empty());
    assert_eq!(scene.condition("Ready").0, "True");
}

#[test]
fn a_part_that_is_no_longer_listed_is_deleted() {
    let mut scene = Scene::machine();
    scene.settle();
    scene.remote.parts.retain(|part| part.name == "vm");
    scene.remote.parts[0].after.clear();
    scene.edit(|object| object.set("/spec/size", 3.into()));
    scene.settle();
    assert!(scene.remote.owned("disk").is_empty());
    assert_eq!(scene.record().parts.keys().collect::<Vec<_>>(), ["vm"]);
}

/// A machine whose first-boot data is cleared away once its Node has joined must not count as unavailable for that time.
#[test]
fn a_part_that_is_on_its_way_out_keeps_nothing_from_being_ready() {
    let mut scene = Scene::machine();
    scene.settle();
    scene.remote.parts.retain(|part| part.name == "vm");
    scene.remote.parts[0].after.clear();
    scene.remote.deleted_is_shown_for = 4_000;
    scene.edit(|object| object.set("/spec/size", 3.into()));
    while !scene.record().parts.keys().eq(["vm"]) {
        scene.once();
        assert_eq!(scene.condition("Ready").0, "True");
        scene.wait(1_000);
    }
    assert!(scene.remote.owned("disk").is_empty());
}

#[test]
fn borrowed_parts_are_neither_created_nor_deleted() {
    let mut scene = Scene::machine();
    scene.remote.parts[1].ownership = Ownership::Borrowed;
    scene.once();
    scene.wait(20_000);
    scene.once();
    assert_eq!(scene.condition("Ready").1, "DiskNotFound");
    assert_eq!(scene.remote.creations, 0);
    let key = crate::record::owner_key(&scene.object().unwrap());
    scene.remote.resources.insert("disk-1".into(), Resource { owner: key, ..stranger("disk") });
    scene.wait(60_000);
    scene.settle();
    assert_eq!(scene.condition("Ready").0, "True");
    scene.delete();
    scene.settle();
    assert!(scene.object().is_none());
    assert_eq!(scene.remote.resources.keys().collect::<Vec<_>>(), ["disk-1"]);
}

#[test]
fn an_api_that_does_not_answer_for_a_while_leaves_the_status_as_it_is() {
    let mut scene = Scene::machine();
    scene.settle();
    let before = scene.object().unwrap();
    scene.remote.error = Some(ProviderError::Transient(reason("Unreachable")));
    scene.remote.facts = Some(running(Some("imaginary://stale")));
    scene.wait(100_000);
    scene.once();
    assert_eq!(scene.condition("Ready").1, "Unreachable");
    for field in ["/addresses", "/state", "/initialization", "/ready"] {
        assert_eq!(Some(&scene.status(field)), before.at(&format!("/status{field}")), "{field}");
    }
}

#[test]
fn errors_become_conditions_and_an_invalid_spec_waits_for_a_change() {
    let mut scene = Scene::machine();
    let violation = Violation { path: "/spec/size".into(), message: "is too large".into() };
    scene.remote.error = Some(ProviderError::Invalid(vec![violation]));
    assert_eq!(scene.once(), None);
    assert_eq!(scene.condition("Ready"), ("False".into(), "InvalidSpec".into(), "/spec/size: is too large".into()));
    assert_eq!(scene.events, ["InvalidSpec"]);
    let turns = scene.turns;
    scene.wait(1_000_000);
    scene.once();
    assert_eq!(scene.turns, turns);
    scene.remote.error = None;
    scene.edit(|object| object.set("/spec/size", 1.into()));
    scene.settle();
    assert_eq!(scene.condition("Ready").0, "True");
}

#[test]
fn contract_violations_name_the_rule_and_propagate_nothing() {
    let mut scene = Scene::machine();
    scene.remote.facts = Some(running(None));
    for _ in 0..5 {
        scene.once();
        scene.wait(1_000);
    }
    let (_, reason, message) = scene.condition("Ready");
    assert_eq!((reason.as_str(), message.as_str()), ("ContractViolated", "a machine that runs has a providerID"));
    assert_eq!(scene.status("/initialization/provisioned"), Value::Null);

    let mut scene = Scene::machine();
    scene.settle();
    scene.remote.facts = Some(running(Some("imaginary://other")));
    scene.wait(100_000);
    scene.once();
    assert!(scene.condition("Ready").2.contains("providerID of a machine never changes"));
    assert_eq!(scene.object().unwrap().str_at("/spec/providerID"), Some("imaginary://m/vm"));

    for endpoint in [None, Some(HostPort { host: "10.9.9.9".into(), port: 1 })] {
        let mut scene = Scene::cluster();
        scene.settle();
        let facts = ClusterFacts {
            control_plane_endpoint: endpoint,
            failure_domains: Vec::new(),
            conditions: Vec::new(),
            status: json!({}),
        };
        scene.remote.facts = Some(Reply::ClusterFacts(facts));
        scene.wait(100_000);
        scene.once();
        assert_eq!(scene.condition("Ready").1, "ContractViolated");
        let object = scene.object().unwrap();
        assert_eq!(object.str_at("/spec/controlPlaneEndpoint/host"), Some("10.0.0.1"));
        assert_eq!(scene.status("/failureDomains/0/name"), "a");
    }
}

#[test]
fn the_kind_of_fact_and_the_status_fields_are_checked() {
    let odd_facts = [
        Reply::Parts(Vec::new()),
        Reply::MachineFacts(MachineFacts { status: json!({"ready": true}), ..pending() }),
        Reply::MachineFacts(MachineFacts { status: json!([]), ..pending() }),
    ];
    for facts in odd_facts {
        let mut scene = Scene::machine();
        scene.remote.facts = Some(facts.clone());
        scene.once();
        assert_eq!(scene.condition("Ready").1, "ContractViolated", "{facts:?}");
    }
}

#[test]
fn parts_that_go_round_in_circles_are_a_violation() {
    let mut scene = Scene::machine();
    scene.remote.parts = vec![part("a", &["b"], true), part("b", &["a"], true)];
    scene.once();
    assert!(scene.condition("Ready").2.contains("wait for one another"));
    assert_eq!(scene.remote.creations, 0);
}

#[test]
fn nothing_is_done_while_paused_or_managed_elsewhere_or_without_an_owner() {
    let mut scene = Scene::machine();
    scene.edit(|object| object.set_annotation(PAUSED, ""));
    scene.once();
    assert_eq!((scene.turns, scene.condition("Paused").0.as_str()), (0, "True"));
    scene.edit(|object| {
        object.remove("/metadata/annotations");
    });
    scene.settle();
    assert_eq!(scene.condition("Paused").0, "False");

    let mut scene = Scene::cluster();
    scene.edit(|object| object.set_annotation(MANAGED_BY, "me"));
    scene.once();
    assert_eq!((scene.turns, scene.take_writes().len()), (0, 0));

    let mut scene = Scene::machine();
    scene.edit(|object| {
        object.remove("/metadata/ownerReferences");
    });
    scene.once();
    assert_eq!((scene.turns, scene.take_writes().len()), (0, 0));
}

#[test]
fn a_machine_waits_for_the_cluster_and_its_first_boot_data() {
    let mut scene = Scene::machine();
    let cluster = capstan_api::ObjectKey::new("cluster.x-k8s.io", "Cluster", "n", "c");
    scene.world.edit(&cluster, |c| c.set("/status/initialization/infrastructureProvisioned", false.into()));
    // Waiting costs nothing at first and is told when it lasts.
    assert_eq!(scene.once(), Some(10_000));
    assert_eq!(scene.take_writes().len(), 0);
    scene.wait(10_000);
    scene.once();
    assert_eq!(scene.condition("Ready").1, "WaitingForClusterInfrastructure");
    scene.world.edit(&cluster, |c| c.set("/status/initialization/infrastructureProvisioned", true.into()));
    scene.world.delete(&capstan_api::ObjectKey::new("", "Secret", "n", "m"));
    scene.once();
    assert_eq!((scene.condition("Ready").1.as_str(), scene.turns), ("WaitingForBootstrapData", 0));
}

#[test]
fn a_node_without_a_provider_id_gets_the_machines() {
    let mut scene = Scene::machine();
    scene.settle();
    scene.edit(|object| object.set_annotation(crate::record::NODE_NAME, "m-node"));
    scene.world.edit(&capstan_api::ObjectKey::new("cluster.x-k8s.io", "Machine", "n", "m"), |m| {
        m.remove("/status/nodeRef");
    });
    let place = crate::testing::workload("n", "c");
    scene.once();
    scene.world.connect("n", "c", crate::view::Connection::Up);
    scene.world.put_in(&place, json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "m-node"}, "spec": {}}));
    scene.once();
    let node = scene.world.find_in(&place, &capstan_api::ObjectKey::new("", "Node", "", "m-node")).unwrap();
    assert_eq!(node.str_at("/spec/providerID"), Some("imaginary://m/vm"));
    scene.take_writes();
    scene.once();
    assert!(scene.take_writes().is_empty());
}

#[test]
fn a_cluster_is_looked_at_again_when_its_machines_change() {
    let mut scene = Scene::cluster();
    scene.settle();
    let turns = scene.turns;
    scene.world.put(json!({"apiVersion": format!("{}/v1", super::scene::GROUP), "kind": "ImaginaryMachine",
        "metadata": {"name": "m", "namespace": "n", "labels": {"cluster.x-k8s.io/cluster-name": "c",
            "cluster.x-k8s.io/control-plane": ""}}}));
    scene.once();
    assert_eq!(scene.turns, turns + 1);
    scene.once();
    assert_eq!(scene.turns, turns + 1);
}

#[test]
fn a_provider_sees_the_states_of_its_clusters_parts() {
    let mut scene = Scene::machine();
    let mut cluster = json!({"apiVersion": format!("{}/v1", super::scene::GROUP), "kind": "ImaginaryCluster",
        "metadata": {"name": "c", "namespace": "n", "annotations": {}}, "spec": {"zone": "z"}});
    cluster["metadata"]["annotations"][PARTS] =
        json!({"lb": {"attempt": 1, "confirmed": true, "state": {"name": "lb-1"}}}).to_string().into();
    scene.world.put(cluster);
    let plan = super::decide(&scene.key, &scene.served, &scene, scene.world.now).unwrap();
    let input = plan.turn.unwrap().input;
    assert_eq!(input.cluster.infrastructure_state, BTreeMap::from([("lb".to_owned(), json!({"name": "lb-1"}))]));
    assert_eq!(input.cluster.infrastructure_spec, Some(json!({"zone": "z"})));
    assert_eq!(input.machine.unwrap().bootstrap_format.as_deref(), Some("cloud-config"));
}

#[test]
fn a_template_says_what_its_machines_offer() {
    let mut world = crate::testing::World::new();
    let template =
        world.put(json!({"apiVersion": format!("{}/v1", super::scene::GROUP), "kind": "ImaginaryMachineTemplate",
        "metadata": {"name": "t", "namespace": "n"}, "spec": {"template": {"spec": {}}},
        "status": {"capacity": {"gpu": "1"}}}));
    let capacity = [("cpu".to_owned(), "2".to_owned())];
    world.apply(&super::template_capacity(&template, &capacity, world.now + 10_000));
    let template = world.find(&template.key()).unwrap();
    assert_eq!(template.at("/status/capacity"), Some(&json!({"cpu": "2"})));
    assert!(super::template_capacity(&template, &capacity, world.now + 10_000).is_empty());
}

#[test]
fn a_new_template_gets_its_owner_first() {
    let mut world = crate::testing::World::new();
    let mut template = json!({"apiVersion": format!("{}/v1", super::scene::GROUP), "kind": "ImaginaryMachineTemplate",
        "metadata": {"name": "t", "namespace": "n", "creationTimestamp": "1970-01-01T00:00:10Z"},
        "spec": {"template": {"spec": {}}}});
    let capacity = [("cpu".to_owned(), "2".to_owned())];
    world.now = 10_000;
    let new = world.put(template.clone());
    let plan = super::template_capacity(&new, &capacity, 10_500);
    assert!(plan.writes.is_empty());
    assert_eq!(plan.look_again, Some(std::time::Duration::from_millis(1_500)));
    assert_eq!(super::template_capacity(&new, &capacity, 12_000).writes.len(), 1, "nobody uses it");
    template["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "name": "c", "uid": "u"}]);
    let owned = world.put(template);
    assert_eq!(super::template_capacity(&owned, &capacity, 10_500).writes.len(), 1);
}
