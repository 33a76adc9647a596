//! What is asked of a component outside turns.

use capstan_api::Object;
use serde_json::{Value, json};

use crate::guest::{component, engine, module};

fn machine(version: &str, field: &str, what: &str) -> Value {
    json!({"apiVersion": format!("infrastructure.cluster.x-k8s.io/{version}"), "kind": "GuestMachine",
        "metadata": {"name": "m", "namespace": "n"}, "spec": {field: [what]}})
}

#[tokio::test]
async fn objects_get_from_one_version_to_another() {
    let converted = module().convert(&machine("v1alpha1", "task", "x"), "v1").unwrap();
    assert_eq!(converted, machine("v1", "do", "x"));
    assert_eq!(module().convert(&converted, "v1alpha1").unwrap(), machine("v1alpha1", "task", "x"));
    assert_eq!(module().convert(&converted, "v7").unwrap_err(), "there is no version v7");
    let mut thief = machine("v1alpha1", "task", "x");
    thief["metadata"]["name"] = "thief".into();
    assert!(module().convert(&thief, "v1").unwrap_err().contains("not the same object"));
}

#[test]
fn what_is_wrong_is_said_by_pointer() {
    let new = machine("v1", "do", "forbidden");
    let found = module().validate(None, &new).unwrap();
    assert_eq!(found.iter().map(|v| v.path.as_str()).collect::<Vec<_>>(), ["/spec/do/0"]);
    assert_eq!(module().validate(Some(&machine("v1", "do", "fixed")), &machine("v1", "do", "x")).unwrap().len(), 1);
    assert_eq!(module().validate(None, &machine("v1", "do", "x")).unwrap(), []);
    let broken = module().validate(None, &machine("v1", "do", "panic")).unwrap_err();
    assert!(broken.contains("trapped"), "{broken}");
}

#[test]
fn a_template_says_what_its_machines_offer_and_asks_nobody() {
    let template = |what: &str| {
        let mut template = machine("v1", "template", what);
        template["kind"] = "GuestMachineTemplate".into();
        Object::from_value(template).unwrap()
    };
    assert_eq!(module().capacity(&template("big")).unwrap(), [("cpu".to_owned(), "16".to_owned())]);
    let refused = module().capacity(&template("ask")).unwrap_err();
    assert!(refused.contains("capacity is pure"), "{refused}");
}

#[test]
fn a_guest_that_spins_is_stopped_and_the_next_one_is_asked() {
    let spinning = machine("v1", "do", "spin");
    let all: Vec<_> = (0..6)
        .map(|_| {
            let spinning = spinning.clone();
            std::thread::spawn(move || module().convert(&spinning, "v1alpha1").unwrap_err())
        })
        .collect();
    for one in all {
        assert!(one.join().unwrap().contains("CPU time"));
    }
    assert!(module().convert(&machine("v1", "do", "x"), "v1alpha1").is_ok());
    let _ = (component(), engine());
}
