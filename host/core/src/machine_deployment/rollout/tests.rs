use proptest::prelude::*;

use super::*;

fn percent(text: &str) -> Option<IntOrString> {
    Some(IntOrString::String(text.into()))
}

#[test]
fn surge_rounds_up_and_unavailable_rounds_down() {
    type Case = (i64, Option<IntOrString>, Option<IntOrString>, i64, i64);
    let cases: Vec<Case> = vec![
        (3, percent("35%"), Some(IntOrString::Int(0)), 2, 0),
        (3, Some(IntOrString::Int(0)), percent("1%"), 0, 1),
        (1, Some(IntOrString::Int(0)), percent("1%"), 0, 1),
        (10, percent("25%"), percent("25%"), 3, 2),
        (3, None, None, 1, 0),
        (2, None, Some(IntOrString::Int(5)), 1, 2),
    ];
    for (desired, max_surge, max_unavailable, surge, unavailable) in cases {
        let rolling = RollingUpdate { max_surge, max_unavailable };
        let got = Bounds::of(desired, Some(&rolling));
        assert_eq!(got, Bounds { desired, surge, unavailable }, "{rolling:?}");
    }
}

fn set(wanted: i64, alive: i64, available: i64, current: bool) -> SetState {
    SetState { wanted, alive, deleting: 0, available, current }
}

fn wanted(sets: &[SetState]) -> Vec<i64> {
    sets.iter().map(|s| s.wanted).collect()
}

#[test]
fn steps_of_a_rolling_update() {
    let bounds = |desired, surge, unavailable| Bounds { desired, surge, unavailable };
    let cases: Vec<(&str, Bounds, Vec<SetState>, Vec<i64>)> = vec![
        ("starts", bounds(3, 1, 0), vec![set(3, 3, 3, false), set(0, 0, 0, true)], vec![3, 1]),
        ("waits for the new one", bounds(3, 1, 0), vec![set(3, 3, 3, false), set(1, 1, 0, true)], vec![3, 1]),
        ("takes one away", bounds(3, 1, 0), vec![set(3, 3, 3, false), set(1, 1, 1, true)], vec![2, 1]),
        ("waits for the deletion", bounds(3, 1, 0), vec![set(2, 3, 3, false), set(1, 1, 1, true)], vec![2, 1]),
        ("goes on", bounds(3, 1, 0), vec![set(2, 2, 2, false), set(1, 1, 1, true)], vec![2, 2]),
        ("nobody misses the broken one", bounds(3, 1, 0), vec![set(3, 3, 2, false), set(1, 1, 1, true)], vec![2, 1]),
        ("but the last hope stays", bounds(3, 1, 0), vec![set(3, 3, 0, false), set(1, 1, 0, true)], vec![3, 1]),
        ("all broken, surge 0", bounds(3, 0, 1), vec![set(3, 3, 0, false), set(0, 0, 0, true)], vec![2, 0]),
        (
            "oldest first",
            bounds(2, 1, 1),
            vec![set(1, 1, 1, false), set(1, 1, 1, false), set(1, 1, 1, true)],
            vec![0, 0, 1],
        ),
        ("scale down", bounds(2, 1, 0), vec![set(0, 0, 0, false), set(5, 5, 5, true)], vec![0, 2]),
        ("scale to nothing", bounds(0, 1, 0), vec![set(2, 2, 2, false), set(1, 1, 0, true)], vec![0, 0]),
    ];
    for (name, bounds, mut sets, want) in cases {
        rolling(bounds, &mut sets);
        assert_eq!(wanted(&sets), want, "{name}");
    }
}

#[test]
fn on_delete_follows_the_person() {
    let mut sets = vec![set(3, 2, 2, false), set(0, 0, 0, true)];
    on_delete(3, &mut sets);
    assert_eq!(wanted(&sets), [2, 1]);
    let mut sets = vec![set(2, 2, 2, false), set(1, 1, 1, true)];
    on_delete(1, &mut sets);
    assert_eq!(wanted(&sets), [0, 1]);
}

#[test]
fn shares_are_kept_while_paused() {
    let mut sets = vec![set(4, 4, 4, false), set(2, 2, 2, true)];
    proportional(9, &mut sets);
    assert_eq!(wanted(&sets), [6, 3]);
    let mut sets = vec![set(3, 3, 3, false), set(1, 1, 1, true)];
    proportional(6, &mut sets);
    assert_eq!(wanted(&sets), [5, 1]);
    let mut sets = vec![set(0, 0, 0, false), set(0, 0, 0, true)];
    proportional(2, &mut sets);
    assert_eq!(wanted(&sets), [0, 2]);
}

/// What the MachineSets and the cloud do with what is wanted, one small step at a time.
#[derive(Clone, Copy, Debug)]
enum Happening {
    /// A set makes what is missing, or takes one away (an unavailable one if there is one).
    Set(usize),
    /// A Machine of a set becomes available.
    Ready(usize),
    /// A Machine of a set that was to go is gone.
    Gone(usize),
    /// The rollout takes a step.
    Step,
}

fn happen(what: Happening, bounds: Bounds, sets: &mut [SetState]) {
    let count = sets.len();
    match what {
        Happening::Step => {
            let (available, before) = (sets.iter().map(|s| s.available).sum::<i64>(), sets.to_vec());
            rolling(bounds, sets);
            let promised: i64 = sets.iter().map(SetState::lasting).sum();
            let was_promised: i64 = before.iter().map(SetState::lasting).sum();
            assert!(
                promised >= was_promised.min(bounds.fewest()),
                "availability was given up: {available} {before:?} → {sets:?} with {bounds:?}"
            );
            let most: i64 = sets.iter().map(SetState::most).sum();
            let was_most: i64 = before.iter().map(SetState::most).sum();
            assert!(most <= bounds.most().max(was_most), "surge was passed: {before:?} → {sets:?} with {bounds:?}");
            assert!(sets.iter().all(|s| s.wanted >= 0));
        }
        Happening::Set(at) => {
            let set = &mut sets[at % count];
            if set.alive + set.deleting < set.wanted {
                set.alive += 1;
            } else if set.alive > set.wanted {
                if set.available == set.alive {
                    set.available -= 1;
                }
                set.alive -= 1;
                set.deleting += 1;
            }
        }
        Happening::Ready(at) => {
            let set = &mut sets[at % count];
            set.available = (set.available + 1).min(set.alive);
        }
        Happening::Gone(at) => {
            let set = &mut sets[at % count];
            set.deleting = (set.deleting - 1).max(0);
        }
    }
}

fn happenings() -> impl Strategy<Value = Vec<Happening>> {
    let one = prop_oneof![
        (0_usize..3).prop_map(Happening::Set),
        (0_usize..3).prop_map(Happening::Ready),
        (0_usize..3).prop_map(Happening::Gone),
        Just(Happening::Step),
    ];
    proptest::collection::vec(one, 0..120)
}

proptest! {
    #[test]
    fn a_rollout_keeps_its_bounds_and_ends(
        desired in 0_i64..8,
        surge in 0_i64..4,
        unavailable in 0_i64..4,
        old in proptest::collection::vec((0_i64..6, 0_i64..6), 1..3),
        what in happenings(),
    ) {
        let rolling_update = RollingUpdate {
            max_surge: Some(IntOrString::Int(i32::try_from(surge).unwrap())),
            max_unavailable: Some(IntOrString::Int(i32::try_from(unavailable).unwrap())),
        };
        let bounds = Bounds::of(desired, Some(&rolling_update));
        let mut sets: Vec<SetState> =
            old.iter().map(|(alive, broken)| set(*alive, *alive, (alive - broken).max(0), false)).collect();
        sets.push(set(0, 0, 0, true));
        let began: i64 = sets.iter().map(|s| s.available).sum();
        let full = began >= bounds.fewest();
        for one in what {
            happen(one, bounds, &mut sets);
            let available: i64 = sets.iter().map(|s| s.available).sum();
            prop_assert!(!full || available >= bounds.fewest(), "fell below availability: {sets:?} with {bounds:?}");
        }
        // When everybody does their work, it ends, with the current set alone.
        for _ in 0..80 {
            happen(Happening::Step, bounds, &mut sets);
            for at in 0..sets.len() {
                for _ in 0..8 {
                    happen(Happening::Set(at), bounds, &mut sets);
                }
                for _ in 0..8 {
                    happen(Happening::Gone(at), bounds, &mut sets);
                }
                if sets[at].current {
                    sets[at].available = sets[at].alive;
                }
            }
        }
        let end = sets.pop().unwrap();
        prop_assert_eq!((end.wanted, end.alive, end.available), (desired, desired, desired), "{:?}", sets);
        prop_assert!(sets.iter().all(|s| s.wanted == 0 && s.alive == 0), "{sets:?}");
    }

    #[test]
    fn proportional_scaling_meets_its_target(target in 0_i64..50, shares in proptest::collection::vec(0_i64..9, 1..5)) {
        let mut sets: Vec<SetState> = shares.iter().map(|n| set(*n, *n, *n, false)).collect();
        proportional(target, &mut sets);
        prop_assert_eq!(sets.iter().map(|s| s.wanted).sum::<i64>(), target);
    }
}
