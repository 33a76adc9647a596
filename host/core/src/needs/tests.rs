use std::collections::BTreeMap;

use capstan_api::ipam::{CLAIM, IPAM_GROUP, POOL};
use capstan_api::well_known::CLUSTER_NAME;
use capstan_api::{Object, ObjectKey};
use serde_json::json;

use super::*;
use crate::contract::{Duty, Effect};
use crate::rules::IPAM_RULES;
use crate::script::{Routine, Script, drive};
use crate::testing::World;
use crate::turn::{Outcome, TurnInput, TurnRequest};

/// Grants, and tells what was granted in the plan's event.
#[derive(Clone, Debug)]
struct Grants(Offers);

impl Routine for Grants {
    fn run(&self, replay: &mut Replay<'_>) -> Result<crate::plan::Plan, Halt> {
        let told = match self.0.grant(replay, BTreeMap::new)? {
            Ok(grant) => {
                let token = grant.granted.secrets.get("token").map(|t| String::from_utf8_lossy(t).into_owned());
                format!("{:?} {token:?} {}", grant.granted.addresses, grant.waiting.join("; "))
            }
            Err(problem) => format!("{}: {}", problem.reason, problem.message),
        };
        let note = crate::plan::EventNote {
            regarding: ObjectKey::new("", "X", "n", "x"),
            normal: true,
            reason: "Told".into(),
            message: told,
        };
        Ok(crate::plan::Plan { events: vec![note], ..Default::default() })
    }
}

fn served() -> Served {
    Served {
        module: "m".into(),
        duty: Duty::InfraMachine,
        group: "infrastructure.cluster.x-k8s.io".into(),
        cluster_kind: None,
        machine_kind: Some("ThingMachine".into()),
        consistency_window: 0,
        request_timeout: 1_000,
        workload_objects: BTreeMap::new(),
        object_references: Vec::new(),
        endpoints: Vec::new(),
        credentials: Vec::new(),
    }
}

fn subject(world: &mut World) -> Object {
    Object::clone(&world.put(json!({"apiVersion": "infrastructure.cluster.x-k8s.io/v1", "kind": "ThingMachine",
        "metadata": {"name": "m", "namespace": "n"}, "spec": {}})))
}

fn grant(world: &mut World, subject: &Object, needs: &[(&str, Need)]) -> String {
    let offers = Offers::named(subject, "c", &served(), world).unwrap();
    let turn = TurnRequest {
        module: "m".into(),
        input: TurnInput::default(),
        inputs: offers.digest().to_string(),
        course: Script::course(Grants(offers)),
    };
    let needs: Vec<(String, Need)> = needs.iter().map(|(label, need)| ((*label).to_owned(), need.clone())).collect();
    let (_, plan) =
        drive::drive(world, turn, |_, _| Outcome { reply: Ok(Reply::Needs(needs.clone())), effect: Effect::NotSent });
    plan.events[0].message.clone()
}

fn ipam(world: &mut World) {
    for _ in 0..8 {
        for rule in IPAM_RULES {
            for object in world.all(rule.kind) {
                let plan = (rule.decide)(&object.key(), world, world.now).unwrap();
                world.apply(&plan);
            }
        }
    }
}

fn wanted() -> [(&'static str, Need); 2] {
    let pool = Need::AddressPool {
        addresses: vec!["10.0.0.10-10.0.0.20".into()],
        prefix: 24,
        gateway: Some("10.0.0.1".into()),
    };
    let address = Need::Address { group: IPAM_GROUP.into(), kind: POOL.into(), name: "c-v4-icip".into() };
    [("c-v4-icip", pool), ("net0-inet", address)]
}

#[test]
fn pools_and_addresses_are_made_once_and_granted_when_they_are_there() {
    let mut world = World::new();
    let subject = subject(&mut world);
    let before = Offers::named(&subject, "c", &served(), &world).unwrap().digest();
    let told = grant(&mut world, &subject, &wanted());
    assert!(told.starts_with("{} None IPAddressClaim m-net0-inet has no address yet"), "{told}");
    let claim = world.find(&ObjectKey::new(IPAM_GROUP, CLAIM, "n", "m-net0-inet")).unwrap();
    assert_eq!(claim.controller().unwrap().uid, subject.uid());
    assert_eq!((claim.label(CLUSTER_NAME), claim.str_at("/spec/clusterName")), (Some("c"), Some("c")));
    let pool = world.find(&ObjectKey::new(IPAM_GROUP, POOL, "n", "c-v4-icip")).unwrap();
    assert_eq!((pool.controller().unwrap().uid.as_str(), pool.label(CLUSTER_NAME)), (subject.uid(), Some("c")));
    ipam(&mut world);
    let after = Offers::named(&subject, "c", &served(), &world).unwrap().digest();
    assert_ne!(before, after, "the turn is due again");
    world.writes.clear();
    let told = grant(&mut world, &subject, &wanted());
    assert!(told.contains("10.0.0.10") && told.contains("prefix: 24") && told.contains("10.0.0.1\""), "{told}");
    assert_eq!(world.writes, [], "nothing is made twice");
    // What the user has added to the pool stays; what the provider wants otherwise is changed.
    world.edit(&pool.key(), |pool| pool.set("/spec/excludedAddresses", json!(["10.0.0.11"])));
    let mut other = wanted();
    other[0].1 = Need::AddressPool { addresses: vec!["10.0.0.10-10.0.0.30".into()], prefix: 24, gateway: None };
    grant(&mut world, &subject, &other);
    assert_eq!(
        world.find(&pool.key()).unwrap().at("/spec"),
        Some(&json!({"addresses": ["10.0.0.10-10.0.0.30"], "prefix": 24, "excludedAddresses": ["10.0.0.11"]}))
    );
}

#[test]
fn nothing_is_claimed_by_what_is_on_its_way_out_and_nothing_of_others_is_taken() {
    let mut world = World::new();
    let subject = subject(&mut world);
    let mut going = subject.clone();
    going.set("/metadata/deletionTimestamp", "2025-11-30T00:00:00Z".into());
    assert_eq!(grant(&mut world, &going, &wanted()), "{} None ");
    assert!(world.all(CLAIM).is_empty() && world.all(POOL).is_empty());
    world.put(json!({"apiVersion": "ipam.cluster.x-k8s.io/v1beta2", "kind": CLAIM,
        "metadata": {"name": "m-net0-inet", "namespace": "n"},
        "spec": {"poolRef": {"apiGroup": IPAM_GROUP, "kind": POOL, "name": "other"}}}));
    let told = grant(&mut world, &subject, &wanted());
    assert!(told.starts_with("ClaimTaken"), "{told}");
}

#[test]
fn where_ipam_is_not_served_nothing_is_missed_by_those_who_do_not_need_it() {
    let mut world = World::new();
    for kind in [CLAIM, POOL, "IPAddress"] {
        world.unserve(IPAM_GROUP, kind);
    }
    let subject = subject(&mut world);
    assert_eq!(grant(&mut world, &subject, &[]), "{} None ");
}

#[test]
fn a_cluster_has_one_token_of_each_label() {
    let mut world = World::new();
    let subject = subject(&mut world);
    let need = [("token", Need::ClusterToken(70))];
    let first = grant(&mut world, &subject, &need);
    assert_eq!(first.len(), "{} Some(\"\") ".len() + 70, "{first}");
    let secret = world.find(&ObjectKey::new("", "Secret", "n", "c-token")).unwrap();
    assert_eq!(secret.label(CLUSTER_NAME), Some("c"));
    world.writes.clear();
    assert_eq!(grant(&mut world, &subject, &need), first);
    assert_eq!(world.writes, []);
    let (label, other) = ("token", Need::ClusterToken(8));
    assert_eq!(grant(&mut world, &subject, &[(label, other)]).len(), "{} Some(\"\") ".len() + 8);
    world.edit(&secret.key(), |secret| secret.set("/data", json!({"token": "aHVudGVyMg=="})));
    assert_eq!(grant(&mut world, &subject, &need), "{} Some(\"hunter2\") ");
}
