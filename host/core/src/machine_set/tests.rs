use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::conditions::{Status, list};
use crate::testing::World;
use crate::testing::fleet::{alive, core, machine_set, provider, ready_cluster, serve_all, settle, wait};

fn world(replicas: i64) -> World {
    let mut world = ready_cluster();
    world.put(machine_set(replicas));
    world
}

fn set(world: &World) -> Arc<Object> {
    world.find(&core("MachineSet", "s")).unwrap()
}

fn plan(world: &World) -> Plan {
    decide_machine_set(&core("MachineSet", "s"), world, world.now).unwrap()
}

fn condition(world: &World, kind: &str) -> Condition {
    Condition::of(&set(world), kind).unwrap_or_else(|| panic!("no {kind}"))
}

fn running(replicas: i64) -> World {
    let mut world = world(replicas);
    for _ in 0..4 {
        settle(&mut world);
        serve_all(&mut world, |_| true);
        wait(&mut world, 3);
    }
    settle(&mut world);
    world
}

#[test]
fn the_machine_is_made_first_and_owns_its_clones() {
    let mut world = world(2);
    let first = plan(&world);
    let created: Vec<&Object> = first
        .writes
        .iter()
        .filter_map(|w| match w {
            Write::Create(object) => Some(object),
            _ => None,
        })
        .collect();
    assert_eq!(created.iter().map(|o| o.kind()).collect::<Vec<_>>(), ["Machine", "Machine"]);
    let machine = created[0];
    assert!(machine.name().starts_with("s-") && machine.name().len() == 7, "{}", machine.name());
    assert!(machine.has_finalizer("machine.cluster.x-k8s.io"));
    assert_eq!(machine.controller().unwrap().name, "s");
    assert_eq!(machine.label("pool"), Some("a"));
    assert_eq!(machine.label("cluster.x-k8s.io/set-name"), Some("s"));
    assert_eq!(machine.at("/spec/infrastructureRef").unwrap()["kind"], "SimMachine");
    assert_eq!(machine.at("/spec/infrastructureRef").unwrap()["name"], machine.name());
    assert_eq!(machine.at("/spec/bootstrap/configRef").unwrap()["kind"], "KubeadmConfig");
    assert_ne!(created[0].name(), created[1].name());

    settle(&mut world);
    let machine = world.all("Machine")[0].clone();
    let infra = world.find(&provider("SimMachine", machine.name())).unwrap();
    assert_eq!(infra.controller().unwrap().uid, machine.uid());
    assert_eq!(infra.at("/spec"), Some(&json!({"cpus": 2})));
    assert_eq!(infra.annotation("cluster.x-k8s.io/cloned-from-name"), Some("t"));
    assert_eq!(
        infra.annotation("cluster.x-k8s.io/cloned-from-groupkind"),
        Some("SimMachineTemplate.infrastructure.cluster.x-k8s.io")
    );
    assert_eq!(infra.label("cluster.x-k8s.io/cluster-name"), Some("c"));
    assert!(world.find(&provider("KubeadmConfig", machine.name())).is_some());
    assert_eq!(world.all("Machine").len(), 2);
    let template = world.find(&provider("SimMachineTemplate", "t")).unwrap();
    assert_eq!(template.owner_references()[0].kind, "Cluster");
}

#[test]
fn a_set_scales_and_settles() {
    let mut world = running(3);
    let s = set(&world);
    assert_eq!(s.int_at("/status/availableReplicas"), Some(3));
    assert_eq!(s.str_at("/status/selector"), Some("pool=a"));
    assert_eq!(condition(&world, "MachinesReady").status, Status::True);
    wait(&mut world, 3600);
    settle(&mut world);
    assert_eq!(settle(&mut world), 0);

    world.edit(&core("MachineSet", "s"), |o| o.set("/spec/replicas", 1.into()));
    settle(&mut world);
    assert_eq!(alive(&world).len(), 1);
    world.edit(&core("MachineSet", "s"), |o| o.set("/spec/replicas", 0.into()));
    settle(&mut world);
    assert!(world.all("SimMachine").is_empty());
    assert_eq!(condition(&world, "MachinesReady").reason, "NoReplicas");
}

fn machine(name: &str, change: impl FnOnce(&mut Object)) -> Arc<Object> {
    let mut machine = Object::from_value(json!({
        "kind": "Machine", "metadata": {"name": name, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "status": {"nodeRef": {"name": name}, "conditions": list(&[Condition::yes("Available", "Available")], 0)},
    }))
    .unwrap();
    change(&mut machine);
    Arc::new(machine)
}

fn says(kind: &str, status: Status) -> Value {
    list(&[Condition::yes("Available", "Available"), Condition::new(kind, status, "R", "")], 0)
}

#[test]
fn who_goes_first() {
    let machines = [
        machine("f-plain", |_| ()),
        machine("e-newer", |m| m.set("/metadata/creationTimestamp", "2026-03-01T00:00:00Z".into())),
        machine("d-unavailable", |m| m.set("/status/conditions", json!([]))),
        machine("c-sick", |m| m.set("/status/conditions", says("NodeHealthy", Status::False))),
        machine("b-no-node", |m| {
            m.remove("/status/nodeRef");
        }),
        machine("z-marked", |m| m.set_annotation("cluster.x-k8s.io/delete-machine", "")),
        machine("zz-going", |m| m.set("/metadata/deletionTimestamp", "2026-03-01T00:00:00Z".into())),
    ];
    let now = capstan_api::time::millis("2026-03-02T00:00:00Z").unwrap();
    let names = |order: Option<&str>| -> Vec<String> {
        priority::first_to_go(&machines, order, now).iter().map(|m| m.name().to_owned()).collect()
    };
    let always = ["zz-going", "z-marked", "b-no-node", "c-sick", "d-unavailable"];
    assert_eq!(names(None)[..5], always);
    assert_eq!(names(None)[5..], ["e-newer", "f-plain"]);
    assert_eq!(names(Some("Newest"))[..5], always);
    assert_eq!(names(Some("Newest"))[5..], ["e-newer", "f-plain"]);
    assert_eq!(names(Some("Oldest"))[..5], always);
    assert_eq!(names(Some("Oldest"))[5..], ["f-plain", "e-newer"]);
}

#[test]
fn a_machine_on_its_way_out_counts_until_it_is_gone() {
    let mut world = running(2);
    let name = alive(&world)[0].clone();
    world.edit(&provider("SimMachine", &name), |o| o.set("/metadata/finalizers", json!(["held"])));
    world.delete(&core("Machine", &name));
    settle(&mut world);
    assert_eq!(world.all("Machine").len(), 2, "no replacement yet");
    world.edit(&provider("SimMachine", &name), |o| {
        o.remove("/metadata/finalizers");
    });
    settle(&mut world);
    assert_eq!(alive(&world).len(), 2);
    assert!(!alive(&world).contains(&name));
}

#[test]
fn nothing_is_made_without_templates_and_the_status_says_why() {
    let mut world = world(2);
    world.edit(&core("MachineSet", "s"), |o| o.set("/spec/template/spec/infrastructureRef/name", "nobody".into()));
    wait(&mut world, 10);
    settle(&mut world);
    assert!(world.all("Machine").is_empty());
    let told = condition(&world, "ScalingUp");
    assert_eq!(
        told.message,
        "Scaling up from 0 to 2 replicas is blocked because:\n* spec.template.spec.infrastructureRef names \
         SimMachineTemplate nobody, which does not exist"
    );
    world.edit(&core("MachineSet", "s"), |o| {
        o.set(
            "/spec/template/spec/infrastructureRef",
            json!({"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "SimCluster", "name": "c"}),
        );
    });
    settle(&mut world);
    assert!(condition(&world, "ScalingUp").message.contains("has no spec.template"));
}

#[test]
fn workers_wait_for_a_control_plane_that_stands_still() {
    type Change = fn(&mut Object);
    let cases: [(Change, &str); 3] = [
        (
            |o| {
                o.remove("/status");
            },
            "is being provisioned",
        ),
        (|o| o.set("/status/versions", json!([{"version": "v1.34.0", "replicas": 1}])), "is being upgraded to v1.35.0"),
        (|o| o.set("/spec/version", "v1.34.0".into()), "KubernetesVersionSkew"),
    ];
    for (change, want) in cases {
        let mut world = world(1);
        world.edit(&provider("KubeadmControlPlane", "c"), change);
        wait(&mut world, 10);
        settle(&mut world);
        assert!(world.all("Machine").is_empty(), "{want}");
        let told = condition(&world, "ScalingUp").message;
        assert!(told.contains(want), "{told}");
        world.edit(&core("MachineSet", "s"), |o| {
            o.set_annotation("machineset.cluster.x-k8s.io/skip-preflight-checks", "All");
        });
        settle(&mut world);
        assert_eq!(world.all("Machine").len(), 1);
    }
}

#[test]
fn lost_and_foreign_machines() {
    let mut world = running(2);
    let names = alive(&world);
    // One lost its owner, one has it from an earlier life, one belongs to somebody else.
    world.edit(&core("Machine", &names[0]), |o| {
        o.remove("/metadata/ownerReferences");
    });
    world.edit(&core("Machine", &names[1]), |o| {
        let mut owners = o.owner_references();
        owners[0].uid = "earlier".into();
        o.set("/metadata/ownerReferences", json!(owners));
    });
    settle(&mut world);
    assert_eq!(alive(&world), names, "none was made anew");
    for name in &names {
        let machine = world.find(&core("Machine", name)).unwrap();
        assert_eq!(machine.controller().unwrap().uid, set(&world).uid());
    }
}

#[test]
fn what_needs_no_new_machine_is_carried_over() {
    let mut world = running(1);
    let before = alive(&world);
    world.edit(&core("MachineSet", "s"), |o| {
        o.set("/spec/template/metadata/labels/new", "label".into());
        o.set("/spec/template/metadata/annotations", json!({"new": "annotation"}));
        o.set("/spec/template/spec/minReadySeconds", 7.into());
        o.set("/spec/template/spec/deletion", json!({"nodeDrainTimeoutSeconds": 9}));
    });
    let name = before[0].clone();
    world.edit(&core("Machine", &name), |o| o.set("/spec/deletion/nodeDeletionTimeoutSeconds", 10.into()));
    settle(&mut world);
    assert_eq!(alive(&world), before);
    let machine = world.find(&core("Machine", &name)).unwrap();
    assert_eq!(machine.label("new"), Some("label"));
    assert_eq!(machine.annotation("new"), Some("annotation"));
    for kind in ["SimMachine", "KubeadmConfig"] {
        let object = world.find(&provider(kind, &name)).unwrap();
        assert_eq!((object.label("new"), object.annotation("new")), (Some("label"), Some("annotation")), "{kind}");
    }
    assert_eq!(machine.int_at("/spec/minReadySeconds"), Some(7));
    assert_eq!(
        machine.at("/spec/deletion"),
        Some(&json!({"nodeDeletionTimeoutSeconds": 10, "nodeDrainTimeoutSeconds": 9}))
    );
}

#[test]
fn an_infra_machine_that_vanished_after_use_is_not_made_again() {
    let mut world = running(1);
    let name = alive(&world)[0].clone();
    world.delete(&provider("SimMachine", &name));
    settle(&mut world);
    assert!(world.find(&provider("SimMachine", &name)).is_none());
}

#[test]
fn nothing_is_made_for_a_cluster_that_goes() {
    let mut world = world(2);
    world.delete(&core("Cluster", "c"));
    world.apply(&plan(&world));
    assert!(world.all("Machine").is_empty());
}

#[test]
fn an_old_set_under_on_delete_makes_nothing() {
    let mut world = world(2);
    world.edit(&core("MachineSet", "s"), |o| o.set_annotation(DISABLE_MACHINE_CREATE, "true"));
    settle(&mut world);
    assert!(world.all("Machine").is_empty());
}

#[test]
fn a_deleted_set_takes_its_machines_along() {
    let mut world = running(2);
    world.delete(&core("MachineSet", "s"));
    settle(&mut world);
    assert!(world.all("Machine").is_empty() && world.all("MachineSet").is_empty());
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Scale(i64),
    Break(usize),
    Heal,
    Delete(usize),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let one = prop_oneof![
        (0_i64..6).prop_map(Event::Scale),
        (0_usize..6).prop_map(Event::Break),
        Just(Event::Heal),
        (0_usize..6).prop_map(Event::Delete),
    ];
    proptest::collection::vec(one, 1..8)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    /// Whatever happens, the set comes to its number, never makes more, and takes away first what nobody misses.
    #[test]
    fn a_set_comes_to_its_number(events in events()) {
        let mut world = running(2);
        let mut broken: BTreeSet<String> = BTreeSet::new();
        for event in events {
            let names = alive(&world);
            let available = |world: &World| {
                let machines = world.all("Machine");
                machines.iter().filter(|m| !m.is_deleting() && Condition::holds(m, "Available")).count()
            };
            let before = available(&world);
            match event {
                Event::Scale(n) => {
                    world.edit(&core("MachineSet", "s"), |o| o.set("/spec/replicas", n.into()));
                }
                Event::Break(at) => broken.extend(names.get(at).cloned()),
                Event::Heal => broken.clear(),
                Event::Delete(at) => {
                    if let Some(name) = names.get(at) {
                        world.delete(&core("Machine", name));
                    }
                }
            }
            let wanted = usize::try_from(set(&world).int_at("/spec/replicas").unwrap()).unwrap();
            for _ in 0..4 {
                settle(&mut world);
                let there = world.all("Machine").len();
                prop_assert_eq!(there, wanted, "after {:?}", event);
                if let Event::Scale(_) = event {
                    prop_assert!(available(&world) >= before.min(wanted), "an available one was taken away");
                }
                serve_all(&mut world, |m| !broken.contains(m.name()));
                wait(&mut world, 3);
            }
            settle(&mut world);
        }
        wait(&mut world, 60);
        settle(&mut world);
        wait(&mut world, 3600);
        prop_assert_eq!(settle(&mut world), 0);
    }
}
