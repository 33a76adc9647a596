//! A provider as an author writes it, called as the host calls it.

use serde::Deserialize;
use serde_json::json;

use crate::{
    Choice, ClusterFacts, ClusterKind, Context, Error, InfrastructureProvider, Kind, Known, MachineFacts, MachineKind,
    Observed, Part, Presence, Progress, Reason, Result, Schema, Violation,
    infrastructure::PartsOf,
    testing::{Scenario, infrastructure as call},
    versions::OlderVersion,
};

/// A thing behind a cluster.
#[derive(Deserialize, Schema, Kind)]
#[kind(name = "ThingCluster", version = "v1", no_template)]
struct Cluster {
    size: u8,
}

/// A thing behind a machine.
#[derive(Deserialize, Schema, Kind)]
#[kind(name = "ThingMachine", version = "v1")]
struct Machine {
    size: u8,
}

struct Thing;

macro_rules! parts_of {
    ($kind:ty) => {
        impl PartsOf for $kind {
            fn parts(_: &Context<Self>) -> Result<Vec<Box<dyn Part<Self>>>> {
                Ok(vec![Box::new(Thing)])
            }
            fn validate(old: Option<&Self>, new: &Self) -> Vec<Violation> {
                if new.size == 0 {
                    return vec![Violation::new("/spec/size", "is nothing")];
                }
                if old.is_some_and(|old| old.size > new.size) {
                    vec![Violation::new("/spec/size", "shrinks")]
                } else {
                    Vec::new()
                }
            }
        }
        impl Part<$kind> for Thing {
            fn name(&self) -> String {
                "thing".to_owned()
            }
            fn identify(&self, ctx: &Context<$kind>, reserved: &[String]) -> Result<Choice> {
                Choice::chosen(format!("{}-{}", ctx.name(), reserved.len())).freeze(&ctx.spec.size)
            }
            fn observe(&self, ctx: &Context<$kind>) -> Result<Presence> {
                let before: Option<u8> = ctx.known("thing").map(|known| known.state()).transpose()?.flatten();
                Ok(Presence::Present(Observed::new("x", &(before.unwrap_or(0) + 1))?.ready(true)))
            }
            fn create(&self, ctx: &Context<$kind>) -> Result<Progress> {
                Ok(Progress::done(ctx.id_of("thing")?))
            }
            fn delete(&self, _: &Context<$kind>) -> Result<Progress> {
                Ok(Progress::waiting("Busy", "later"))
            }
        }
    };
}
parts_of!(Cluster);
parts_of!(Machine);

impl ClusterKind for Cluster {
    fn report(_: &Context<Self>) -> Result<ClusterFacts> {
        Ok(ClusterFacts::default())
    }
}
impl MachineKind for Machine {
    fn report(_: &Context<Self>) -> Result<MachineFacts> {
        Ok(MachineFacts::default())
    }
    fn capacity(ctx: &Context<Self>) -> Vec<(String, String)> {
        vec![("cpu".to_owned(), ctx.spec.size.to_string())]
    }
}

#[derive(Debug)]
struct Things;

impl InfrastructureProvider for Things {
    type Cluster = Cluster;
    type Machine = Machine;
}

#[test]
fn the_subjects_kind_decides_and_its_spec_is_typed() {
    let (choice, _) =
        Scenario::new("ThingCluster", json!({"size": 3})).run(|| call::identify::<Things>("thing", &["a".to_owned()]));
    assert_eq!(choice, Ok(Choice { id: Some("x-1".to_owned()), frozen: "3".to_owned() }));
    let (parts, _) = Scenario::new("ThingMachine", json!({"size": 3})).run(call::parts::<Things>);
    assert_eq!(parts.unwrap()[0].name, "thing");
    let template = Scenario::new("ThingMachineTemplate", json!({"template": {"spec": {"size": 7}}}));
    assert_eq!(template.run(call::capacity::<Things>).0, [("cpu".to_owned(), "7".to_owned())]);
}

#[test]
fn nothing_is_begun_that_admission_would_refuse() {
    let nothing = || Scenario::new("ThingCluster", json!({"size": 0}));
    let (choice, _) = nothing().run(|| call::identify::<Things>("thing", &[]));
    assert_eq!(choice, Err(Error::invalid("/spec/size", "is nothing")));
    assert!(nothing().run(|| call::observe::<Things>("thing")).0.is_ok());
}

#[test]
fn what_is_known_is_typed_and_what_is_not_is_an_error() {
    let known = |state: &str| {
        Scenario::new("ThingMachine", json!({"size": 3}))
            .known("thing", Known { state: Some(state.to_owned()), ..Known::default() })
            .run(|| call::observe::<Things>("thing"))
            .0
    };
    assert!(matches!(known("4"), Ok(Presence::Present(seen)) if seen.state == "5"));
    assert!(matches!(known("{}"), Err(Error::Internal(_))));
    let (created, _) = Scenario::new("ThingMachine", json!({"size": 3})).run(|| call::create::<Things>("thing"));
    assert!(matches!(created, Err(Error::Internal(_))));
}

#[test]
fn wrong_specs_kinds_and_parts_say_so() {
    let (result, _) = Scenario::new("ThingMachine", json!({"size": "big"})).run(call::parts::<Things>);
    let Err(Error::Invalid(violations)) = result else { panic!() };
    assert_eq!(violations[0].path, "/spec");
    assert!(violations[0].message.contains("ThingMachine"));
    let (result, _) = Scenario::new("Other", json!({})).run(call::parts::<Things>);
    assert!(matches!(result, Err(Error::Internal(reason)) if reason.message.contains("Other")));
    let (result, _) = Scenario::new("ThingMachine", json!({"size": 1})).run(|| call::delete::<Things>("no"));
    assert!(matches!(result, Err(Error::Internal(reason)) if reason.message.contains("`no`")));
    let todo = [Reason::new("Grow", "")];
    let (result, _) = Scenario::new("ThingMachine", json!({"size": 1})).run(|| call::update::<Things>("thing", &todo));
    assert!(matches!(result, Err(Error::Internal(reason)) if reason.message.contains("Grow")));
}

#[test]
fn admission_reads_old_and_new() {
    let object = |size: serde_json::Value| json!({"kind": "ThingCluster", "spec": {"size": size}}).to_string();
    assert!(call::validate::<Things>(None, &object(json!(1))).is_empty());
    assert_eq!(
        call::validate::<Things>(Some(&object(json!(2))), &object(json!(1))),
        [Violation::new("/spec/size", "shrinks")]
    );
    assert_eq!(call::validate::<Things>(None, &object(json!("x")))[0].path, "/spec");
    assert_eq!(call::validate::<Things>(None, r#"{"kind": "No"}"#)[0].path, "/kind");
    assert_eq!(call::validate::<Things>(None, "no JSON")[0].path, "/kind");
}

/// Whom to be.
#[derive(Schema, Kind)]
#[kind(name = "ThingIdentity", version = "v2", identity, served_too = OldIdentity)]
#[allow(dead_code, reason = "a schema")]
struct Identity {
    secret: String,
}

/// Whom to be.
#[derive(Schema, Kind)]
#[kind(name = "ThingIdentity", version = "v1", identity, older)]
#[allow(dead_code, reason = "a schema")]
struct OldIdentity {
    secret: String,
}

impl OlderVersion for OldIdentity {
    fn up(_: &mut serde_json::Value) {}
    fn down(_: &mut serde_json::Value) {}
}

#[test]
fn identities_are_converted_and_have_no_rules_of_their_own() {
    let identity = |version: &str| {
        json!({"apiVersion": format!("g/{version}"), "kind": "ThingIdentity",
        "metadata": {"name": "i"}, "spec": {"secret": "s"}})
    };
    let old = identity("v1").to_string();
    let new = call::convert_identity::<Identity>(&old, "v2").unwrap().unwrap();
    assert_eq!(serde_json::from_str::<serde_json::Value>(&new).unwrap(), identity("v2"));
    assert!(call::convert_identity::<Identity>(&old, "v3").unwrap().is_err());
    let other = json!({"apiVersion": "g/v1", "kind": "ThingCluster", "metadata": {"name": "i"}, "spec": {"size": 1}});
    assert!(call::convert_identity::<Identity>(&other.to_string(), "v2").is_none());
    assert!(call::is_identity::<Identity>(&old) && !call::is_identity::<Identity>(&other.to_string()));
}
