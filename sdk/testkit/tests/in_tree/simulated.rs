//! The `simulated` provider against a scripted cloud.

use capstan_core::contract::{Absence, Effect, MachinePhase, Presence, Progress, ProviderError};
use capstan_core::turn::{Call, MachineInput, Reply, TurnInput};
use capstan_testkit::{Answer, Asked, Cloud, Testkit};
use serde_json::json;

fn kit() -> &'static Testkit {
    crate::provider("simulated")
}

fn machine() -> TurnInput {
    let mut input = kit().input("SimulatedMachine", "m", json!({"cpus": 2, "memoryMiB": 2048}));
    input.machine = Some(MachineInput {
        name: "m".into(),
        bootstrap_format: Some("cloud-config".into()),
        failure_domain: Some("a".into()),
        ..MachineInput::default()
    });
    input
}

/// A cloud with or without the machine.
fn cloud(there: bool) -> impl FnMut(&Asked) -> Answer + Send {
    move |asked| match asked.method {
        "GET" if there => Answer::json(
            200,
            &json!({"owner": "owner-of-m", "state": "running", "providerID": "simulated://m",
                    "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}], "failureDomain": "a", "bootError": null}),
        ),
        "GET" => Answer::status(404),
        "POST" => Answer::json(201, &json!({})),
        _ => Answer::status(204),
    }
}

#[tokio::test]
async fn a_machine_is_searched_for_chosen_and_created_with_its_boot_data() {
    let cloud = Cloud::new(cloud(false));
    let mut turn = kit().turn(&cloud, machine()).await.unwrap();
    assert!(matches!(turn.call(Call::Needs).await.reply, Ok(Reply::Needs(_))));
    let Ok(Reply::Parts(parts)) = turn.call(Call::Parts).await.reply else { panic!() };
    assert_eq!(parts.iter().map(|p| p.name.as_str()).collect::<Vec<_>>(), ["machine"]);
    let observed = turn.call(Call::Observe("machine".into())).await;
    assert_eq!(observed.reply, Ok(Reply::Presence(Presence::Absent(Absence::LookedUpById))));

    turn.identify("machine").await.unwrap();
    turn.granted.secrets.insert("bootstrap-data".into(), b"#cloud-config\n".to_vec());
    let created = turn.call(Call::Create("machine".into())).await;
    assert!(matches!(created.reply, Ok(Reply::Progress(Progress::Done(_)))), "{created:?}");
    assert_eq!(created.effect, Effect::Answered);
    let changes = cloud.changes();
    assert_eq!(changes.len(), 1);
    let body = changes[0].json();
    assert_eq!((&body["owner"], &body["failureDomain"]), (&json!("owner-of-m"), &json!("a")));
    assert_eq!(body["userData"], "I2Nsb3VkLWNvbmZpZwo=");
}

#[tokio::test]
async fn a_running_machine_is_reported_and_an_idle_turn_changes_nothing() {
    let cloud = Cloud::new(cloud(true));
    let mut turn = kit().turn(&cloud, machine()).await.unwrap();
    let observed = turn.call(Call::Observe("machine".into())).await;
    assert!(
        matches!(&observed.reply, Ok(Reply::Presence(Presence::Present(o))) if o.ready && o.todo.is_empty()),
        "{observed:?}"
    );
    let Ok(Reply::MachineFacts(facts)) = turn.call(Call::ReportMachine).await.reply else { panic!() };
    assert_eq!((facts.phase, facts.provider_id.as_deref()), (MachinePhase::Running, Some("simulated://m")));
    assert_eq!((facts.addresses[0].kind, facts.addresses[0].value.as_str()), ("InternalIP", "10.0.0.1"));
    assert_eq!(cloud.changes(), []);
}

#[tokio::test]
async fn somebody_else_s_machine_is_foreign() {
    let cloud = Cloud::new(cloud(true));
    let mut other = machine();
    other.owner_key = "another".into();
    let mut turn = kit().turn(&cloud, other).await.unwrap();
    let observed = turn.call(Call::Observe("machine".into())).await;
    assert!(matches!(observed.reply, Ok(Reply::Presence(Presence::Foreign(_)))), "{observed:?}");
}

#[tokio::test]
async fn a_lost_answer_leaves_the_effect_unknown_and_no_lease_leaves_the_cloud_alone() {
    let lossy = Cloud::new(|asked| if asked.method == "GET" { Answer::status(404) } else { Answer::lost() });
    let mut turn = kit().turn(&lossy, machine()).await.unwrap();
    turn.identify("machine").await.unwrap();
    turn.granted.secrets.insert("bootstrap-data".into(), b"x".to_vec());
    let lost = turn.call(Call::Create("machine".into())).await;
    assert!(matches!(lost.reply, Err(ProviderError::Transient(_))), "{lost:?}");
    assert_eq!(lost.effect, Effect::Unknown);
    turn.may_change = false;
    let refused = turn.call(Call::Delete("machine".into())).await;
    assert!(refused.reply.is_err());
    assert_eq!((refused.effect, lossy.changes().len()), (Effect::NotSent, 1));
}
