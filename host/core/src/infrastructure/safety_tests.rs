//! Nothing is created twice, nothing leaks, nothing that is not ours is touched: whatever happens, and whenever.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::scene::{Death, Fate, REQUEST, Scene, WINDOW, part, pending, reason, stranger};
use crate::contract::*;
use crate::plan::Write;
use crate::record::{LEASE, OWNER_KEY, PARTS};
use crate::turn::Reply;

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
    // What became of the second one is another matter.
    let is_intent =
        |write: &&Write| matches!(write, Write::Patch { patch, .. } if !patch.to_string().contains("refused"));
    assert_eq!(scene.take_writes().iter().filter(is_intent).count(), 2);
    assert!(scene.record().parts["vm"].intent.as_ref().unwrap().at >= begun + 9_000);
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
            // Until it is tried again, why it was refused is told.
            if matches!(fate, Fate::Refused) && scene.remote.creations == 0 {
                assert_eq!(scene.condition("Ready").1, "Refused");
            }
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
fn what_is_deleted_and_shown_still_is_not_deleted_again_at_once() {
    let mut scene = Scene::machine();
    scene.remote.parts = vec![part("vm", &[], false)];
    scene.settle();
    scene.remote.deleted_is_shown_for = WINDOW - 100;
    scene.delete();
    let deleted = scene.remote.deletions;
    scene.settle();
    assert!(scene.object().is_none(), "{:?}", scene.object());
    assert_eq!(scene.remote.deletions - deleted, 1);
}

/// Of a remote that is many, one shows what was made and another does not yet.
#[test]
fn what_was_shown_once_is_not_taken_for_gone_within_the_window() {
    for deleted in [true, false] {
        let mut scene = Scene::machine();
        scene.remote.parts = vec![part("vm", &[], false)];
        while !scene.record().parts.get("vm").is_some_and(|vm| vm.confirmed) {
            scene.once();
        }
        let until = scene.world.now + WINDOW - 500;
        scene.remote.resources.values_mut().for_each(|resource| resource.shown_from = until);
        if deleted {
            scene.delete();
        }
        scene.once();
        assert!(scene.object().is_some(), "the finalizer went on a read that may show the past");
        assert_ne!(scene.condition("Ready").1, "InfrastructureDeleted");
        scene.settle();
        assert_eq!(scene.object().is_none(), deleted);
        assert_eq!((scene.remote.creations, scene.remote.resources.is_empty()), (1, deleted));
    }
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
fn nothing_is_begun_for_what_is_on_its_way_out() {
    for (kind, name) in [("Machine", "m"), ("Cluster", "c")] {
        let mut scene = if kind == "Machine" { Scene::machine() } else { Scene::cluster() };
        let key = capstan_api::ObjectKey::new("cluster.x-k8s.io", kind, "n", name);
        scene.world.edit(&key, |owner| owner.set("/metadata/finalizers", json!(["f"])));
        scene.world.delete(&key);
        scene.once();
        assert_eq!((scene.turns, scene.take_writes().len()), (0, 0), "{kind}");
    }
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        Just(Fate::NotSent),
        Just(Fate::Refused),
        Just(Fate::Unanswered),
        (0..REQUEST).prop_map(Fate::Late),
        Just(Fate::Lost),
        Just(Fate::Operation),
        Just(Fate::FailingOperation),
    ]
}

fn death() -> impl Strategy<Value = Death> {
    prop_oneof![Just(Death::Before), Just(Death::After), (0..REQUEST + LEASE).prop_map(Death::UnderWay)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any series of misfortunes, a process that dies at any steps, an API that is away for a while, and a deletion at
    /// any time: never two of a part (the scene looks after each decision), and nothing in the end.
    #[test]
    fn any_misfortunes_leave_never_two_and_nothing_in_the_end(
        fates in proptest::collection::vec(fate(), 0..5),
        deaths in proptest::collection::vec((0_usize..12, death()), 0..3),
        rounds in 0_usize..14,
        away in 0_usize..14,
    ) {
        let mut scene = Scene::machine();
        scene.remote.fates = fates;
        let mut deaths = deaths.into_iter();
        for round in 0..rounds {
            if scene.death.is_none_or(|(at, _)| at < scene.steps) {
                scene.death = deaths.next().map(|(after, death)| (scene.steps + after, death));
            }
            scene.remote.error =
                (round == away).then(|| ProviderError::Transient(reason("Unreachable")));
            let after = scene.once().unwrap_or(1_000);
            scene.wait(after.min(7_000));
        }
        scene.remote.error = None;
        scene.death = None;
        scene.nothing_under_way = false;
        scene.delete();
        scene.settle();
        prop_assert!(scene.object().is_none(), "{:?}", scene.object());
        scene.wait(120_000);
        prop_assert!(scene.remote.resources.is_empty(), "leaks {:?}", scene.remote.resources);
    }
}

#[test]
fn an_id_that_another_has_chosen_and_not_shown_yet_is_not_chosen() {
    let mut scene = Scene::machine();
    let other = |name: &str, part: Value| {
        json!({"apiVersion": format!("{}/v1", super::scene::GROUP), "kind": "ImaginaryMachine",
            "metadata": {"name": name, "namespace": "another", "annotations": {PARTS: json!({"vm": part}).to_string()}}})
    };
    scene.world.put(other("chosen", json!({"attempt": 1, "identified": true, "id": "m/vm"})));
    scene.world.put(other("shown", json!({"attempt": 1, "identified": true, "id": "m/vm+", "confirmed": true})));
    let mut broken = other("broken", json!(null));
    broken["metadata"]["annotations"][PARTS] = "{".into();
    scene.world.put(broken);
    scene.settle();
    assert_eq!(scene.record().parts["vm"].id.as_deref(), Some("m/vm+"));
    // At rest it does not depend on all the others.
    scene.world.take_reads();
    scene.once();
    assert!(!scene.world.take_reads().iter().any(|key| key.kind == "ImaginaryMachine" && key.name == "*"));
}
