use std::collections::{BTreeMap, BTreeSet};

use capstan_api::ipam::{ADDRESS, CLAIM, GLOBAL_POOL, IPAM_GROUP, POOL};
use capstan_api::well_known::{ADDRESS_FINALIZER, CLAIM_FINALIZER, POOL_FINALIZER};
use capstan_api::{Object, ObjectKey};
use serde_json::{Value, json};

use crate::conditions::Condition;
use crate::plan::Write;
use crate::rules::IPAM_RULES;
use crate::testing::World;

const MANAGED: [&str; 4] = [CLAIM, ADDRESS, POOL, GLOBAL_POOL];

fn key(kind: &str, name: &str) -> ObjectKey {
    ObjectKey::new(IPAM_GROUP, kind, if kind == GLOBAL_POOL { "" } else { "n" }, name)
}

fn pool(addresses: &[&str]) -> Value {
    json!({"apiVersion": "ipam.cluster.x-k8s.io/v1alpha2", "kind": POOL, "metadata": {"name": "p", "namespace": "n"},
        "spec": {"addresses": addresses, "prefix": 24, "gateway": "10.0.0.1"}})
}

fn claim_of(kind: &str, pool: &str, namespace: &str, name: &str) -> Value {
    json!({"apiVersion": "ipam.cluster.x-k8s.io/v1beta2", "kind": CLAIM,
        "metadata": {"name": name, "namespace": namespace, "labels": {"cluster.x-k8s.io/cluster-name": "c"}},
        "spec": {"clusterName": "c", "poolRef": {"apiGroup": IPAM_GROUP, "kind": kind, "name": pool}}})
}

fn claim(name: &str) -> Value {
    claim_of(POOL, "p", "n", name)
}

/// Decides for everything, in an order that differs from round to round, until nothing is written. With `dies`, the
/// process ends after so many writes and begins anew.
fn settle_dying(world: &mut World, mut dies: Option<usize>) {
    for round in 0..60 {
        let mut keys: Vec<ObjectKey> =
            MANAGED.iter().flat_map(|kind| world.all(kind)).map(|object| object.key()).collect();
        let turn = round % keys.len().max(1);
        keys.rotate_left(turn);
        let mut wrote = false;
        for key in keys {
            let rule = IPAM_RULES.iter().find(|rule| rule.kind == key.kind).unwrap();
            let mut plan = (rule.decide)(&key, world, world.now).unwrap();
            if let Some(left) = &mut dies {
                plan.writes.truncate(*left);
                *left -= plan.writes.len();
            }
            wrote |= !plan.writes.is_empty();
            world.apply(&plan);
            no_address_is_held_twice(world);
            if dies == Some(0) {
                dies = None;
                wrote = true;
                break;
            }
        }
        if !wrote {
            return;
        }
        world.now += 10;
    }
    panic!("it never settles");
}

fn settle(world: &mut World) {
    settle_dying(world, None);
}

fn no_address_is_held_twice(world: &World) {
    let mut seen = BTreeSet::new();
    for address in world.all(ADDRESS) {
        let of =
            (address.at("/spec/poolRef").unwrap().to_string(), address.str_at("/spec/address").unwrap().to_owned());
        assert!(seen.insert(of.clone()), "{of:?} is held twice");
    }
}

fn held(world: &World) -> BTreeMap<String, String> {
    let text = |o: &Object| (o.name().to_owned(), o.str_at("/spec/address").unwrap().to_owned());
    world.all(ADDRESS).iter().map(|address| text(address)).collect()
}

fn ready(world: &World, name: &str) -> String {
    let claim = world.find(&key(CLAIM, name)).expect("the claim is there");
    Condition::of(&claim, "Ready").map(|c| c.reason).unwrap_or_default()
}

fn counts(world: &World) -> Value {
    world.find(&key(POOL, "p")).unwrap().at("/status/ipAddresses").cloned().unwrap_or_default()
}

#[test]
fn a_claim_gets_the_lowest_address_and_says_so() {
    let mut world = World::new();
    world.put(pool(&["10.0.0.0/24"]));
    world.put(claim("a"));
    settle(&mut world);
    let address = world.find(&key(ADDRESS, "a")).unwrap();
    let claim = world.find(&key(CLAIM, "a")).unwrap();
    assert_eq!(
        address.at("/spec"),
        Some(&json!({
        "claimRef": {"name": "a"}, "poolRef": {"apiGroup": IPAM_GROUP, "kind": POOL, "name": "p"},
        "address": "10.0.0.2", "prefix": 24, "gateway": "10.0.0.1"}))
    );
    assert_eq!(address.controller().unwrap().uid, claim.uid());
    let owners: Vec<String> = address.owner_references().into_iter().map(|o| o.kind).collect();
    assert_eq!(owners, [CLAIM, POOL]);
    assert_eq!(address.label("cluster.x-k8s.io/cluster-name"), Some("c"));
    assert_eq!(claim.str_at("/status/addressRef/name"), Some("a"));
    assert_eq!(ready(&world, "a"), "Ready");
    assert_eq!(counts(&world), json!({"total": 253, "used": 1, "free": 252, "outOfRange": 0}));
    assert!(claim.has_finalizer(CLAIM_FINALIZER) && address.has_finalizer(ADDRESS_FINALIZER));
    // And then there is peace.
    world.writes.clear();
    settle(&mut world);
    assert_eq!(world.writes, []);
}

#[test]
fn a16_who_waits_gets_what_comes_free() {
    let mut world = World::new();
    world.put(pool(&["10.0.0.10-10.0.0.11"]));
    for name in ["a", "b", "c"] {
        world.put(claim(name));
        world.now += 1_000;
    }
    settle(&mut world);
    assert_eq!(held(&world), [("a", "10.0.0.10"), ("b", "10.0.0.11")].map(|(k, v)| (k.into(), v.into())).into());
    assert_eq!(ready(&world, "c"), "PoolExhausted");
    // A holder goes.
    world.delete(&key(CLAIM, "a"));
    settle(&mut world);
    assert_eq!(held(&world), [("b", "10.0.0.11"), ("c", "10.0.0.10")].map(|(k, v)| (k.into(), v.into())).into());
    assert!(world.find(&key(CLAIM, "a")).is_none());
    assert_eq!(ready(&world, "c"), "Ready");
    // The pool shrinks: what is given stays given, and is told. It grows: the next one gets its address.
    world.put(claim("d"));
    world.edit(&key(POOL, "p"), |pool| pool.set("/spec/addresses", json!(["10.0.0.11"])));
    settle(&mut world);
    assert_eq!(counts(&world), json!({"total": 1, "used": 2, "free": 0, "outOfRange": 1}));
    assert_eq!(ready(&world, "d"), "PoolExhausted");
    world.edit(&key(POOL, "p"), |pool| pool.set("/spec/addresses", json!(["10.0.0.10-10.0.0.12"])));
    settle(&mut world);
    assert_eq!(held(&world).get("d").map(String::as_str), Some("10.0.0.12"));
    // One broken claim does not stop the others; claims whose Cluster has vanished are released (there never was one).
    world.put(json!({"apiVersion": "ipam.cluster.x-k8s.io/v1beta2", "kind": CLAIM,
        "metadata": {"name": "0-broken", "namespace": "n"}, "spec": {"poolRef": {"apiGroup": IPAM_GROUP, "kind": POOL}}}));
    world.put(claim("e"));
    world.delete(&key(CLAIM, "b"));
    settle(&mut world);
    assert_eq!(held(&world).get("e").map(String::as_str), Some("10.0.0.11"));
    for name in ["c", "d", "e"] {
        world.delete(&key(CLAIM, name));
    }
    settle(&mut world);
    assert!(world.all(ADDRESS).is_empty(), "none leaks");
    assert_eq!(counts(&world)["free"], 3);
}

#[test]
fn why_there_is_no_address_is_said() {
    let mut world = World::new();
    let message = |world: &World| {
        let claim = world.find(&key(CLAIM, "a")).unwrap();
        let ready = Condition::of(&claim, "Ready").unwrap();
        (ready.reason, ready.message)
    };
    world.put(claim("a"));
    settle(&mut world);
    assert_eq!(message(&world).0, "PoolNotReady");
    assert!(message(&world).1.contains("no InClusterIPPool p"), "{:?}", message(&world));
    world.put(pool(&["10.0.0"]));
    settle(&mut world);
    assert!(message(&world).1.contains("spec.addresses[0]"), "{:?}", message(&world));
    // An address of that name that is somebody else's.
    world.put(json!({"apiVersion": "ipam.cluster.x-k8s.io/v1beta2", "kind": ADDRESS,
        "metadata": {"name": "a", "namespace": "n"},
        "spec": {"claimRef": {"name": "other"}, "address": "10.0.0.7",
            "poolRef": {"apiGroup": IPAM_GROUP, "kind": POOL, "name": "p"}}}));
    world.edit(&key(POOL, "p"), |pool| pool.set("/spec/addresses", json!(["10.0.0.0/24"])));
    settle(&mut world);
    assert_eq!(message(&world).0, "AllocationFailed");
    world.put(claim("b"));
    settle(&mut world);
    assert_eq!(ready(&world, "b"), "Ready");
    assert_eq!(counts(&world)["used"], 2, "what was made by hand counts");
}

#[test]
fn a_pool_waits_for_its_claims_and_an_address_for_its_claim() {
    let mut world = World::new();
    world.put(pool(&["10.0.0.0/24"]));
    world.put(claim("a"));
    settle(&mut world);
    world.delete(&key(POOL, "p"));
    world.delete(&key(ADDRESS, "a"));
    world.put(claim("late"));
    settle(&mut world);
    assert!(world.find(&key(POOL, "p")).is_some_and(|p| p.has_finalizer(POOL_FINALIZER)));
    assert!(world.find(&key(ADDRESS, "a")).is_some(), "it is in use");
    assert_eq!((ready(&world, "a"), ready(&world, "late")), ("Ready".into(), "PoolNotReady".into()));
    world.delete(&key(CLAIM, "a"));
    settle(&mut world);
    assert!(world.find(&key(ADDRESS, "a")).is_none() && world.find(&key(POOL, "p")).is_none());
}

#[test]
fn a_crash_after_any_write_leaves_no_double_and_nothing_behind() {
    for at in 1..40 {
        let mut world = World::new();
        world.put(pool(&["10.0.0.10-10.0.0.12"]));
        for name in ["a", "b", "c", "d"] {
            world.put(claim(name));
        }
        settle_dying(&mut world, Some(at));
        assert_eq!(held(&world).len(), 3, "died after {at}");
        for name in ["a", "b", "c", "d"] {
            world.delete(&key(CLAIM, name));
        }
        settle_dying(&mut world, Some(at));
        assert!(world.all(ADDRESS).is_empty() && world.all(CLAIM).is_empty(), "died after {at}");
    }
}

#[test]
fn global_pools_serve_all_namespaces_and_others_pools_are_left_alone() {
    let mut world = World::new();
    world.put(json!({"apiVersion": "ipam.cluster.x-k8s.io/v1alpha2", "kind": GLOBAL_POOL, "metadata": {"name": "g"},
        "spec": {"addresses": ["2001:db8::/120"], "prefix": 64}}));
    for namespace in ["n", "m"] {
        world.put(claim_of(GLOBAL_POOL, "g", namespace, "a"));
        world.now += 1_000;
    }
    world.put(claim_of("Infoblox", "g", "n", "foreign"));
    settle(&mut world);
    let all: Vec<(String, String)> = world
        .all(ADDRESS)
        .iter()
        .map(|a| (a.namespace().to_owned(), a.str_at("/spec/address").unwrap().to_owned()))
        .collect();
    assert_eq!(all, [("m", "2001:db8::2"), ("n", "2001:db8::1")].map(|(a, b)| (a.to_owned(), b.to_owned())));
    assert!(world.find(&key(CLAIM, "foreign")).unwrap().finalizers().is_empty());
}

#[test]
fn paused_claims_wait_and_a_grace_period_keeps_an_address_taken() {
    let mut world = World::new();
    let mut slow = pool(&["10.0.0.10"]);
    slow["spec"]["addressReuseGracePeriodSeconds"] = json!(30);
    world.put(slow);
    world.put(json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
        "metadata": {"name": "c", "namespace": "n"}, "spec": {"paused": true}}));
    world.put(claim("a"));
    settle(&mut world);
    assert!(held(&world).is_empty());
    world.edit(&ObjectKey::new("cluster.x-k8s.io", "Cluster", "n", "c"), |c| c.set("/spec/paused", false.into()));
    settle(&mut world);
    assert_eq!(held(&world).len(), 1);
    world.put(claim("b"));
    world.delete(&key(CLAIM, "a"));
    settle(&mut world);
    assert_eq!(held(&world).keys().collect::<Vec<_>>(), ["a"]);
    world.now += 30_000;
    settle(&mut world);
    assert_eq!(held(&world).keys().collect::<Vec<_>>(), ["b"]);
}

#[test]
fn a_restored_claim_takes_its_address_back_and_an_orphan_goes_in_the_end() {
    let mut world = World::new();
    world.put(pool(&["10.0.0.0/24"]));
    world.put(claim("a"));
    settle(&mut world);
    let mut again = claim("a");
    again["metadata"]["uid"] = json!("another-life");
    again["metadata"]["finalizers"] = json!([CLAIM_FINALIZER]);
    world.put(again);
    settle(&mut world);
    assert_eq!(world.find(&key(ADDRESS, "a")).unwrap().controller().unwrap().uid, "another-life");
    assert_eq!(held(&world).get("a").map(String::as_str), Some("10.0.0.2"));
    // The claim is torn out without its finalizer having been waited for.
    world.edit(&key(CLAIM, "a"), |c| c.set("/metadata/finalizers", json!([])));
    world.delete(&key(CLAIM, "a"));
    settle(&mut world);
    assert_eq!(held(&world).len(), 1, "not at once: a restore may bring it");
    world.now += 60_000;
    settle(&mut world);
    assert!(held(&world).is_empty());
    assert!(world.writes.iter().any(|write| matches!(write, Write::Delete { .. })));
}
