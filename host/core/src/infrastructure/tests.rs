use std::collections::BTreeMap;

use capstan_api::well_known::{MANAGED_BY, PAUSED};
use serde_json::{Value, json};

use super::scene::{Death, Fate, REQUEST, Resource, Scene, WINDOW, part};
use crate::contract::*;
use crate::plan::Write;
use crate::record::{LEASE, OWNER_KEY, PARTS};
use crate::turn::Reply;

fn reason(code: &str) -> Reason {
    Reason { code: code.into(), message: format!("{code} happened") }
}

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
fn the_intent_is_on_record_before_anything_is_created() {
    let mut scene = Scene::machine();
    scene.remote.parts = vec![part("vm", &[], false)];
    // Needs, parts, observe, identify, write, create: the process dies before it creates.
    scene.death = Some((5, Death::Before));
    scene.once();
    assert_eq!(scene.remote.creations, 0);
    let object = scene.object().unwrap();
    assert_eq!(object.finalizers().len(), 1);
    assert_eq!(object.annotation(OWNER_KEY).map(str::len), Some(32));
    let record = scene.record();
    let vm = &record.parts["vm"];
    assert_eq!((vm.id.as_deref(), vm.attempt, vm.confirmed), (Some("m/vm"), 1, false));
    let intent = vm.intent.as_ref().unwrap();
    assert_eq!((intent.effect, intent.holder.as_str()), (Effect::Unknown, "me"));
}

/// The heart of it: wherever the process dies, there is one of each in the end, and nothing after deletion.
#[test]
fn whatever_step_a_process_dies_at_there_are_never_two_and_none_is_left() {
    let deaths = [
        Death::Before,
        Death::After,
        Death::UnderWay(0),
        Death::UnderWay(REQUEST - 1),
        Death::UnderWay(REQUEST + LEASE - 1),
    ];
    for make in [Scene::machine as fn() -> Scene, Scene::cluster] {
        for fates in [vec![], vec![Fate::Operation], vec![Fate::Unanswered], vec![Fate::Late(REQUEST - 1)]] {
            let unanswered = matches!(fates.as_slice(), [Fate::Unanswered | Fate::Late(_)]);
            if !fates.is_empty() && make().remote.parts.len() == 1 {
                continue;
            }
            for death in deaths.into_iter().filter(|d| fates.is_empty() || matches!(d, Death::Before | Death::After)) {
                if unanswered && death == Death::After {
                    continue;
                }
                let mut at = 0;
                loop {
                    let mut scene = make();
                    scene.remote.fates = fates.clone();
                    scene.death = Some((at, death));
                    scene.settle();
                    if scene.nothing_under_way {
                        at += 1;
                        continue;
                    }
                    assert_eq!(scene.condition("Ready").0, "True", "{at} {death:?} {fates:?}: {:?}", scene.object());
                    let parts = scene.remote.parts.len();
                    assert_eq!(scene.remote.resources.len(), parts, "{at} {death:?} {fates:?}");
                    assert_eq!(scene.remote.creations as usize, parts, "{at} {death:?} {fates:?}");
                    scene.delete();
                    scene.settle();
                    if scene.nothing_under_way {
                        at += 1;
                        continue;
                    }
                    assert!(scene.object().is_none(), "{at} {death:?}: {:?}", scene.object());
                    assert!(scene.remote.resources.is_empty(), "{at} {death:?}: {:?}", scene.remote);
                    scene.wait(60_000);
                    assert!(scene.remote.resources.is_empty(), "{at} {death:?} leaks: {:?}", scene.remote);
                    if scene.steps <= at {
                        break;
                    }
                    at += 1;
                }
                assert!(at > 12, "only {at} steps were tried");
            }
        }
    }
}

/// Deletion in the middle of creation: what is under way is waited for.
#[test]
fn a_machine_that_is_deleted_while_it_is_created_leaves_nothing() {
    for death in [Death::Before, Death::After, Death::UnderWay(REQUEST - 1), Death::UnderWay(REQUEST + LEASE - 1)] {
        for at in 0..14 {
            let mut scene = Scene::machine();
            scene.death = Some((at, death));
            scene.once();
            scene.death = None;
            if scene.nothing_under_way {
                continue;
            }
            scene.delete();
            scene.settle();
            scene.wait(60_000);
            assert!(scene.object().is_none(), "{at} {death:?}");
            assert!(scene.remote.resources.is_empty(), "{at} {death:?} leaks: {:?}", scene.remote.resources);
        }
    }
}

#[test]
fn after_no_answer_absence_counts_only_when_nothing_can_arrive_any_more() {
    let mut scene = Scene::machine();
    scene.remote.parts = vec![part("vm", &[], false)];
    scene.remote.fates = vec![Fate::Lost];
    let begun = scene.world.now;
    scene.once();
    assert_eq!(scene.remote.creations, 0);
    while scene.remote.creations == 0 {
        assert!(scene.world.now < begun + 120_000, "never tried again");
        scene.wait(500);
        scene.once();
    }
    let waited = scene.world.now - begun;
    assert!(waited > REQUEST + LEASE + WINDOW, "tried again after {waited} ms");
}

#[test]
fn an_intent_that_took_long_to_be_written_is_renewed_before_anything_is_sent() {
    let mut scene = Scene::machine();
    scene.remote.parts = vec![part("vm", &[], false)];
    scene.remote.fates = vec![Fate::Lost];
    let begun = scene.world.now;
    scene.slow_write = 9_000;
    scene.once();
    let intents = scene.take_writes().iter().filter(|write| matches!(write, Write::Patch { .. })).count();
    assert_eq!(intents, 2);
    assert!(scene.record().parts["vm"].intent.as_ref().unwrap().at >= begun + 9_000);
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
fn what_was_not_sent_is_tried_again_soon_and_a_refusal_after_the_window() {
    for (fate, at_least, at_most) in [(Fate::NotSent, 0, 3_000), (Fate::Refused, WINDOW, WINDOW + 3_000)] {
        let mut scene = Scene::machine();
        scene.remote.parts = vec![part("vm", &[], false)];
        scene.remote.fates = vec![fate];
        let begun = scene.world.now;
        scene.once();
        assert_eq!(scene.condition("Ready").0, "False", "{fate:?}");
        while scene.remote.creations == 0 {
            scene.wait(100);
            scene.once();
        }
        let waited = scene.world.now - begun;
        assert!((at_least..at_most).contains(&waited), "{fate:?}: {waited} ms");
    }
}

#[test]
fn a_failed_operation_begins_a_new_attempt_and_is_reported() {
    let mut scene = Scene::machine();
    scene.remote.parts = vec![part("disk", &[], true)];
    scene.remote.facts = Some(Reply::MachineFacts(pending()));
    scene.remote.fates = vec![Fate::FailingOperation];
    scene.once();
    scene.wait(WINDOW + 500);
    scene.once();
    assert_eq!(scene.condition("Ready").1, "QuotaExceeded");
    scene.wait(5_000);
    scene.once();
    assert_eq!(scene.remote.owned("disk").len(), 1);
    assert_eq!(scene.record().parts["disk"].attempt, 2);
}

fn pending() -> MachineFacts {
    MachineFacts {
        phase: MachinePhase::Pending,
        provider_id: None,
        addresses: Vec::new(),
        failure_domain: None,
        node_name: None,
        interruptible: false,
        conditions: Vec::new(),
        status: json!({}),
    }
}

fn running(provider_id: Option<&str>) -> Reply {
    Reply::MachineFacts(MachineFacts {
        phase: MachinePhase::Running,
        provider_id: provider_id.map(str::to_owned),
        ..pending()
    })
}

fn stranger(part: &str) -> Resource {
    Resource { owner: "stranger".into(), part: part.into(), state: "x".into(), shown_from: 0, busy_until: 0 }
}

/// Field case A14: the loser of a race for an id lets go of it and takes another.
#[test]
fn an_id_that_somebody_else_took_is_let_go_of() {
    let mut scene = Scene::machine();
    scene.remote.parts = vec![part("vm", &[], false)];
    scene.remote.resources.insert("m/vm".into(), stranger("vm"));
    scene.settle();
    assert_eq!(scene.remote.owned("vm"), ["m/vm+"]);
    assert_eq!(scene.remote.resources["m/vm"].owner, "stranger");
    assert_eq!(scene.record().parts["vm"].attempt, 2);
    scene.delete();
    scene.settle();
    assert!(scene.object().is_none());
    assert_eq!(scene.remote.resources.keys().collect::<Vec<_>>(), ["m/vm"]);
}

#[test]
fn what_is_not_ours_any_more_is_left_alone_and_holds_the_finalizer() {
    let mut scene = Scene::machine();
    scene.settle();
    scene.remote.resources.insert("m/vm".into(), stranger("vm"));
    scene.wait(100_000);
    scene.once();
    assert_eq!(scene.condition("Ready").1, "VmForeign");
    scene.delete();
    for _ in 0..20 {
        scene.once();
        scene.wait(10_000);
    }
    assert!(scene.object().is_some());
    assert_eq!(scene.remote.resources["m/vm"].owner, "stranger");
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

/// Field case A25: only a proof of absence lets an object go.
#[test]
fn a_finalizer_stays_while_the_api_does_not_answer() {
    for error in [
        ProviderError::Transient(reason("Unreachable")),
        ProviderError::Unauthorized(reason("Expired")),
        ProviderError::Internal(reason("Bug")),
        ProviderError::Throttled(None),
    ] {
        let mut scene = Scene::machine();
        scene.settle();
        scene.delete();
        scene.remote.error = Some(error.clone());
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let after = scene.once().unwrap();
            pauses.push(after);
            scene.wait(after);
        }
        assert!(scene.object().unwrap().has_finalizer("imaginarymachine.infrastructure.cluster.x-k8s.io"));
        assert_eq!(scene.condition("Ready").0, "False");
        assert!(pauses.windows(2).all(|pair| pair[0] <= pair[1]) && pauses[7] > 30_000, "{pauses:?}");
        scene.remote.error = None;
        scene.settle();
        assert!(scene.object().is_none() && scene.remote.resources.is_empty(), "{error:?}");
    }
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

/// Status and uid do not survive a restore; the record does.
#[test]
fn a_restored_machine_finds_what_it_had() {
    let mut scene = Scene::machine();
    scene.settle();
    let mut restored = capstan_api::Object::clone(&scene.object().unwrap());
    for gone in ["/status", "/metadata/uid", "/metadata/creationTimestamp", "/metadata/finalizers"] {
        restored.remove(gone);
    }
    scene.edit(|object| object.set("/metadata/finalizers", json!([])));
    scene.delete();
    scene.last.clear();
    scene.world.put(restored.into_value());
    scene.settle();
    assert_eq!(scene.remote.creations, 2);
    assert_eq!(scene.condition("Ready").0, "True");
    assert_eq!(scene.object().unwrap().finalizers().len(), 1);
}

#[test]
fn two_objects_with_one_owner_key_are_an_error_that_names_both() {
    let mut scene = Scene::machine();
    scene.settle();
    let mut copy = capstan_api::Object::clone(&scene.object().unwrap());
    for gone in ["/status", "/metadata/uid", "/metadata/creationTimestamp"] {
        copy.remove(gone);
    }
    copy.set("/metadata/name", "copy".into());
    scene.world.put(copy.into_value());
    let turns = scene.turns;
    scene.key.name = "copy".into();
    scene.once();
    let (_, reason, message) = scene.condition("Ready");
    assert_eq!((reason.as_str(), scene.turns), ("OwnerKeyNotUnique", turns));
    assert!(message.contains("n/copy") && message.contains("n/m"), "{message}");
    // The first one goes on.
    scene.key.name = "m".into();
    scene.wait(100_000);
    scene.once();
    assert_eq!(scene.condition("Ready").0, "True");
}

#[test]
fn a_record_that_cannot_be_read_stops_everything() {
    let mut scene = Scene::machine();
    scene.edit(|object| object.set_annotation(PARTS, "{oops"));
    scene.once();
    assert_eq!((scene.condition("Ready").1.as_str(), scene.turns), ("RecordUnreadable", 0));
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
