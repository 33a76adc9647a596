use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::conditions::Status;
use crate::testing::World;
use crate::testing::fleet::{alive, core, machine_deployment, provider, ready_cluster, round, serve_all, settle, wait};

fn world(replicas: i64) -> World {
    let mut world = ready_cluster();
    world.put(machine_deployment(replicas));
    world
}

fn deployment(world: &World) -> Arc<Object> {
    world.find(&core("MachineDeployment", "d")).unwrap()
}

fn condition(world: &World, kind: &str) -> Condition {
    Condition::of(&deployment(world), kind).unwrap_or_else(|| panic!("no {kind}"))
}

fn change(world: &mut World, pointer: &str, value: Value) {
    world.edit(&core("MachineDeployment", "d"), |o| o.set(pointer, value));
}

fn advance(world: &mut World) {
    settle(world);
    serve_all(world, |_| true);
    wait(world, 3);
}

fn running(replicas: i64) -> World {
    let mut world = world(replicas);
    for _ in 0..5 {
        advance(&mut world);
    }
    settle(&mut world);
    world
}

fn available(world: &World) -> usize {
    world.all("Machine").iter().filter(|m| !m.is_deleting() && Condition::holds(m, "Available")).count()
}

fn with_version(world: &World, version: &str) -> Vec<Arc<Object>> {
    world.all("Machine").into_iter().filter(|m| m.str_at("/spec/version") == Some(version)).collect()
}

#[test]
fn a_deployment_makes_a_set_and_settles() {
    let mut world = running(3);
    let sets = world.all("MachineSet");
    assert_eq!(sets.len(), 1);
    let set = &sets[0];
    assert!(set.name().starts_with("d-") && set.name().len() == 7, "{}", set.name());
    assert!(set.has_finalizer("cluster.x-k8s.io/machineset"));
    assert_eq!(set.controller().unwrap().name, "d");
    let hash = set.label("machine-template-hash").unwrap();
    assert_eq!(set.at("/spec/selector/matchLabels").unwrap()["machine-template-hash"], hash);
    assert_eq!(set.annotation(REVISION), Some("1"));
    assert_eq!(deployment(&world).annotation(REVISION), Some("1"));
    let machine = &world.all("Machine")[0];
    assert_eq!(machine.label("cluster.x-k8s.io/deployment-name"), Some("d"));
    assert_eq!(machine.label("machine-template-hash"), Some(hash));
    assert!(Condition::holds(machine, "UpToDate"));
    let d = deployment(&world);
    assert_eq!(d.str_at("/status/phase"), Some("Running"));
    assert_eq!(d.int_at("/status/upToDateReplicas"), Some(3));
    assert_eq!(condition(&world, "Available").status, Status::True);
    wait(&mut world, 3600);
    settle(&mut world);
    assert_eq!(settle(&mut world), 0);
    for template in ["SimMachineTemplate", "KubeadmConfigTemplate"] {
        assert_eq!(world.find(&provider(template, "t")).unwrap().owner_references()[0].kind, "Cluster");
    }
}

#[test]
fn what_keeps_the_sets_from_making_machines_is_told() {
    let mut world = world(2);
    change(&mut world, "/spec/template/spec/infrastructureRef/name", "nobody".into());
    for _ in 0..4 {
        wait(&mut world, 10);
        settle(&mut world);
    }
    let nobody = "* spec.template.spec.infrastructureRef names SimMachineTemplate nobody, which does not exist";
    assert_eq!(
        condition(&world, "ScalingUp").message,
        format!("Scaling up from 0 to 2 replicas is blocked because:\n{nobody}")
    );
}

/// Runs a rollout to its end, checking the bounds after every decision. `breaks` may make Nodes not ready.
fn roll(world: &mut World, fewest: usize, most: usize, breaks: impl Fn(&World, usize, &Object) -> bool) {
    let was_available = available(world) >= fewest;
    let mut quiet = 0;
    for step in 0..60 {
        let before = world.writes.len();
        for _ in 0..60 {
            let wrote = round(world);
            let (available, all) = (available(world), world.all("Machine").len());
            assert!(!was_available || available >= fewest, "{available} available of {all}, step {step}");
            assert!(all <= most, "{all} machines, step {step}");
            if !wrote {
                break;
            }
        }
        let snapshot: Vec<(String, bool)> =
            world.all("Machine").iter().map(|m| (m.name().to_owned(), !breaks(world, step, m))).collect();
        serve_all(world, |m| snapshot.iter().any(|(name, ok)| name == m.name() && *ok));
        wait(world, 3);
        // Nothing moved for a while, and nothing that was to break at a later step is still to come.
        quiet = if world.writes.len() == before { quiet + 1 } else { 0 };
        if step > 8 && quiet > 2 {
            break;
        }
    }
    settle(world);
}

#[test]
fn a_rollout_keeps_its_bounds_and_ends_with_one_set() {
    let mut world = running(3);
    let old = alive(&world);
    change(&mut world, "/spec/template/spec/version", "v1.35.1".into());
    world.edit(&provider("KubeadmControlPlane", "c"), |o| {
        o.set("/spec/version", "v1.35.1".into());
        o.set("/status/versions", json!([{"version": "v1.35.1", "replicas": 1}]));
    });
    roll(&mut world, 3, 4, |_, _, _| false);
    assert_eq!(with_version(&world, "v1.35.1").len(), 3);
    assert_eq!(world.all("Machine").len(), 3);
    assert!(alive(&world).iter().all(|name| !old.contains(name)));
    let sets = world.all("MachineSet");
    assert_eq!(sets.len(), 1, "the old set was cleaned up");
    assert_eq!(sets[0].annotation(REVISION), Some("2"));
    assert_eq!(condition(&world, "RollingOut").status, Status::False);
    wait(&mut world, 3600);
    settle(&mut world);
    assert_eq!(settle(&mut world), 0);
}

/// Field case A1: percentages, and an old machine that breaks half-way.
#[test]
fn a_rollout_by_percentages_survives_an_old_machine_that_breaks() {
    for (surge, unavailable, replicas, fewest, most) in [
        (json!("35%"), json!(0), 3_i64, 3_usize, 5_usize),
        (json!(0), json!("1%"), 3, 2, 3),
        (json!("35%"), json!(0), 1, 1, 2),
        (json!(0), json!("1%"), 1, 0, 1),
    ] {
        let mut world = running(replicas);
        let old = alive(&world);
        change(
            &mut world,
            "/spec/rollout/strategy",
            json!({"type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}),
        );
        change(&mut world, "/spec/template/spec/failureDomain", "elsewhere".into());
        let victim = old[old.len() - 1].clone();
        // It breaks once something new is there, so availability may fall by it and by no more.
        let fewest = fewest.saturating_sub(1);
        roll(&mut world, fewest, most, |world, step, machine| {
            step > 2 && machine.name() == victim && world.all("MachineSet").len() > 1
        });
        let names = alive(&world);
        assert_eq!(names.len(), usize::try_from(replicas).unwrap());
        assert!(names.iter().all(|name| !old.contains(name)), "old ones are left with {surge} {unavailable}");
        assert_eq!(world.all("MachineSet").len(), 1);
    }
}

#[test]
fn a_rollout_starts_although_nothing_is_available() {
    let mut world = running(3);
    serve_all(&mut world, |_| false);
    settle(&mut world);
    assert_eq!(available(&world), 0);
    let old = alive(&world);
    change(&mut world, "/spec/template/spec/failureDomain", "elsewhere".into());
    roll(&mut world, 0, 4, |_, _, machine| old.contains(&machine.name().to_owned()));
    assert!(alive(&world).iter().all(|name| !old.contains(name)));
    assert_eq!(available(&world), 3);
}

#[test]
fn a_rollout_says_what_it_does() {
    let mut world = running(2);
    change(&mut world, "/spec/template/spec/failureDomain", "elsewhere".into());
    settle(&mut world);
    let told = condition(&world, "RollingOut");
    assert_eq!(told.message, "Rolling out 2 not up-to-date replicas\n* Failure domain none, elsewhere required");
    assert_eq!(deployment(&world).str_at("/status/phase"), Some("ScalingDown"));
    assert_eq!(deployment(&world).int_at("/status/upToDateReplicas"), Some(0));
}

#[test]
fn scaling_and_labels_need_no_new_set() {
    let mut world = running(3);
    let first = alive(&world);
    change(&mut world, "/spec/replicas", 5.into());
    change(&mut world, "/spec/template/metadata/labels/new", "label".into());
    change(&mut world, "/spec/template/spec/minReadySeconds", 1.into());
    world.edit(&core("MachineDeployment", "d"), |o| o.set_annotation("mine", "yes"));
    for _ in 0..5 {
        advance(&mut world);
    }
    assert_eq!(world.all("MachineSet").len(), 1);
    assert_eq!(world.all("MachineSet")[0].annotation("mine"), Some("yes"));
    let machines = world.all("Machine");
    assert_eq!(machines.len(), 5);
    assert!(first.iter().all(|name| machines.iter().any(|m| m.name() == name)));
    assert!(machines.iter().all(|m| m.label("new") == Some("label") && m.int_at("/spec/minReadySeconds") == Some(1)));
    change(&mut world, "/spec/replicas", 2.into());
    for _ in 0..3 {
        advance(&mut world);
    }
    assert_eq!(world.all("Machine").len(), 2);
    change(&mut world, "/spec/replicas", 0.into());
    for _ in 0..3 {
        advance(&mut world);
    }
    assert!(world.all("SimMachine").is_empty());
    assert_eq!(world.all("MachineSet").len(), 1, "the current set stays");
}

#[test]
fn going_back_uses_the_set_that_is_there() {
    let mut world = running(2);
    let first = world.all("MachineSet")[0].name().to_owned();
    change(&mut world, "/spec/template/spec/failureDomain", "elsewhere".into());
    settle(&mut world);
    assert_eq!(world.all("MachineSet").len(), 2);
    world.edit(&core("MachineDeployment", "d"), |o| {
        o.remove("/spec/template/spec/failureDomain");
    });
    roll(&mut world, 2, 3, |_, _, _| false);
    let sets = world.all("MachineSet");
    assert_eq!((sets.len(), sets[0].name()), (1, first.as_str()));
    assert_eq!(sets[0].annotation(REVISION), Some("3"));
    assert_eq!(deployment(&world).annotation(REVISION), Some("3"));
}

#[test]
fn on_delete_waits_for_the_person() {
    let mut world = running(2);
    change(&mut world, "/spec/rollout", json!({"strategy": {"type": "OnDelete"}}));
    change(&mut world, "/spec/template/spec/failureDomain", "elsewhere".into());
    for _ in 0..3 {
        advance(&mut world);
    }
    let old = alive(&world);
    assert_eq!(old.len(), 2, "nothing was replaced");
    let old_set =
        world.all("MachineSet").into_iter().find(|s| s.at("/spec/template/spec/failureDomain").is_none()).unwrap();
    assert_eq!(old_set.annotation("cluster.x-k8s.io/disable-machine-create"), Some("true"));
    world.delete(&core("Machine", &old[0]));
    for _ in 0..4 {
        advance(&mut world);
    }
    let now = alive(&world);
    assert!(now.len() == 2 && now.contains(&old[1]) && !now.contains(&old[0]), "{now:?}");
}

#[test]
fn a_paused_deployment_scales_and_does_not_roll() {
    let mut world = running(2);
    let old = alive(&world);
    change(&mut world, "/spec/paused", true.into());
    change(&mut world, "/spec/template/spec/failureDomain", "elsewhere".into());
    for _ in 0..3 {
        advance(&mut world);
    }
    assert_eq!(alive(&world), old);
    change(&mut world, "/spec/replicas", 4.into());
    for _ in 0..4 {
        advance(&mut world);
    }
    assert_eq!(alive(&world).len(), 4);
    assert_eq!(world.all("MachineSet").len(), 1);
    change(&mut world, "/spec/paused", false.into());
    roll(&mut world, 4, 5, |_, _, _| false);
    assert!(alive(&world).iter().all(|name| !old.contains(name)));
}

#[test]
fn rollout_after_replaces_machines_when_its_time_comes() {
    let mut world = running(1);
    let old = alive(&world);
    let then = world.now + 60_000;
    change(&mut world, "/spec/rollout/after", capstan_api::time::rfc3339(then).into());
    settle(&mut world);
    assert_eq!(alive(&world), old);
    let plan = decide_machine_deployment(&core("MachineDeployment", "d"), &world, world.now).unwrap();
    assert_eq!(plan.look_again, Some(Duration::from_secs(60)));
    wait(&mut world, 60);
    roll(&mut world, 1, 2, |_, _, _| false);
    assert!(!alive(&world).contains(&old[0]));
    assert_eq!(world.all("Machine").len(), 1);
}

#[test]
fn a_template_that_never_comes_up_stops_the_rollout_and_not_the_service() {
    let mut world = running(3);
    let old = alive(&world);
    change(&mut world, "/spec/template/spec/failureDomain", "broken".into());
    roll(&mut world, 3, 4, |_, _, machine| !old.contains(&machine.name().to_owned()));
    assert_eq!(available(&world), 3);
    change(&mut world, "/spec/template/spec/failureDomain", "good".into());
    roll(&mut world, 3, 4, |_, _, machine| machine.str_at("/spec/failureDomain") == Some("broken"));
    let all = world.all("Machine");
    assert!(all.len() == 3 && all.iter().all(|m| m.str_at("/spec/failureDomain") == Some("good")));
    assert_eq!(world.all("MachineSet").len(), 1);
}

#[test]
fn a_deleted_deployment_takes_everything_along() {
    let mut world = running(2);
    world.delete(&core("MachineDeployment", "d"));
    settle(&mut world);
    for kind in ["MachineDeployment", "MachineSet", "Machine", "SimMachine", "KubeadmConfig"] {
        assert!(world.all(kind).is_empty(), "{kind}");
    }
}

#[test]
fn the_old_nodes_are_avoided_while_rolling() {
    let mut world = running(2);
    let old = alive(&world);
    change(&mut world, "/spec/template/spec/failureDomain", "elsewhere".into());
    settle(&mut world);
    let node = world.find_in(&crate::testing::workload("n", "c"), &ObjectKey::new("", "Node", "", &old[0])).unwrap();
    let taints = node.at("/spec/taints").unwrap().to_string();
    assert!(taints.contains("node.cluster.x-k8s.io/outdated-revision"), "{taints}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, ..ProptestConfig::default() })]

    /// The whole of MachineDeployment, MachineSet and Machine, with Nodes that break and heal.
    #[test]
    fn whole_rollouts_keep_their_bounds_and_end(
        replicas in 1_i64..5,
        surge in 0_i64..3,
        unavailable in 0_i64..3,
        broken in proptest::collection::vec((0_usize..8, 0_usize..4), 0..3),
    ) {
        let mut world = running(replicas);
        let old = alive(&world);
        change(&mut world, "/spec/rollout/strategy", json!({"type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}));
        change(&mut world, "/spec/template/spec/failureDomain", "elsewhere".into());
        let bounds = Bounds::of(replicas, Some(&RollingUpdate {
            max_surge: Some(capstan_api::meta::IntOrString::Int(i32::try_from(surge).unwrap())),
            max_unavailable: Some(capstan_api::meta::IntOrString::Int(i32::try_from(unavailable).unwrap())),
        }));
        // New machines come up late; what is old never breaks by itself here, so the bound must hold throughout.
        roll(
            &mut world,
            usize::try_from(bounds.fewest()).unwrap(),
            usize::try_from(bounds.most()).unwrap(),
            |world, step, machine| {
                let fresh = !old.contains(&machine.name().to_owned()) && !Condition::holds(machine, "Available");
                let place = world.all("Machine").iter().position(|m| m.name() == machine.name()).unwrap_or_default();
                fresh && broken.contains(&(step, place))
            },
        );
        prop_assert_eq!(alive(&world).len(), usize::try_from(replicas).unwrap());
        prop_assert!(alive(&world).iter().all(|name| !old.contains(name)));
        prop_assert_eq!(world.all("MachineSet").len(), 1);
    }
}
