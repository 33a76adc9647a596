//! What an honest guest gets from a turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use capstan_core::contract::{Absence, Choice, Effect, Granted, KnownPart, Need, Presence, Progress, ProviderError};
use capstan_core::turn::{Call, Fence, MachineInput, Outcome, Reply, no_fence};
use capstan_gateway::TransportError;
use serde_json::json;

use crate::guest::{answer, begin, call, input, known, module, network};

fn state(outcome: &Outcome) -> String {
    match &outcome.reply {
        Ok(Reply::Presence(Presence::Present(observed))) => observed.state.as_str().unwrap().to_owned(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_turn_of_many_calls() {
    let (gateway, script) = network(|_| answer(200, "here"));
    let mut turn = begin("", &gateway).await;
    let needs = call(&mut turn, Call::Needs).await;
    assert_eq!(needs.reply, Ok(Reply::Needs(vec![("token".into(), Need::ClusterToken(32))])));
    let Ok(Reply::Parts(parts)) = call(&mut turn, Call::Parts).await.reply else { panic!() };
    assert_eq!(parts.iter().map(|p| p.name.as_str()).collect::<Vec<_>>(), ["disk", "vm"]);
    let identify = Call::Identify { part: "vm".into(), reserved: vec!["a".into(), "b".into()] };
    let choice = Choice { id: Some("vm-2".into()), frozen: json!({"node": "n1"}) };
    assert_eq!(call(&mut turn, identify).await.reply, Ok(Reply::Choice(choice)));
    let observed = call(&mut turn, Call::Observe("vm".into())).await;
    assert_eq!(state(&observed), "200 Said here");
    assert_eq!(observed.effect, Effect::NotSent);
    assert!(matches!(call(&mut turn, Call::ReportMachine).await.reply, Ok(Reply::MachineFacts(_))));
    assert!(matches!(call(&mut turn, Call::ReportCluster).await.reply, Ok(Reply::ClusterFacts(_))));
    let asked = script.asked.lock().unwrap();
    assert_eq!(asked.iter().map(|r| r.target.as_str()).collect::<Vec<_>>(), ["/vms/vm"]);
}

#[tokio::test]
async fn a_guest_is_told_about_its_object_and_no_machine_where_there_is_none() {
    let (gateway, _) = network(|_| answer(200, ""));
    let mut turn = begin("who", &gateway).await;
    let part = KnownPart { idempotency_key: "idem".into(), attempt: 1, ..KnownPart::default() };
    let outcome = turn.call(Call::Observe("vm".into()), known("vm", part), Granted::default(), &no_fence()).await;
    assert_eq!(
        state(&outcome),
        "GuestMachine tenant m1 1700000000000 machine=false known=idem owner=owner-1 cluster=c1"
    );
    let mut owned = input("who");
    owned.machine = Some(MachineInput { name: "m".into(), ..MachineInput::default() });
    let mut turn = module().begin("guest", owned, &gateway).await.unwrap();
    assert!(state(&call(&mut turn, Call::Observe("vm".into())).await).contains("machine=true"));
}

#[tokio::test]
async fn absence_is_absence() {
    let (gateway, _) = network(|_| answer(404, ""));
    let mut turn = begin("", &gateway).await;
    let outcome = call(&mut turn, Call::Observe("vm".into())).await;
    assert_eq!(outcome.reply, Ok(Reply::Presence(Presence::Absent(Absence::LookedUpById))));
}

#[tokio::test]
async fn a_secret_is_sent_and_never_seen() {
    let (gateway, script) = network(|_| answer(201, "vm-7"));
    let mut turn = begin("", &gateway).await;
    let mut granted = Granted::default();
    granted.secrets.insert("token".into(), b"hunter2".to_vec());
    let outcome = turn.call(Call::Create("vm".into()), Default::default(), granted, &no_fence()).await;
    assert_eq!(
        outcome,
        Outcome { reply: Ok(Reply::Progress(Progress::Done("vm-7".into()))), effect: Effect::Answered }
    );
    assert_eq!(script.asked.lock().unwrap()[0].body, "token=aHVudGVyMg==&size=7");
    let exchanges = gateway.ledger().for_object(&input("").subject.key());
    assert_eq!(exchanges[0].body, "token=<secret:token>&size=7");
    assert_eq!(exchanges[0].call, "create vm");
    assert_eq!(exchanges[0].effect, Some(Effect::Answered));

    let missing = Granted { missing_secrets: vec!["token".into()], ..Granted::default() };
    turn.call(Call::Create("vm".into()), Default::default(), missing, &no_fence()).await;
    assert!(script.asked.lock().unwrap()[1].body.ends_with(b"Missing"));
}

#[tokio::test]
async fn the_effect_is_what_was_sent_and_answered() {
    type Told = fn() -> Result<capstan_gateway::WireResponse, TransportError>;
    let cases: [(Told, Effect); 5] = [
        (|| answer(201, "x"), Effect::Answered),
        (|| answer(409, "taken"), Effect::Answered),
        (|| answer(503, ""), Effect::Unknown),
        (|| Err(TransportError::NoAnswer("reset".into())), Effect::Unknown),
        (|| Err(TransportError::NotSent("refused".into())), Effect::NotSent),
    ];
    for (told, effect) in cases {
        let (gateway, _) = network(move |_| told());
        let mut turn = begin("", &gateway).await;
        let outcome = call(&mut turn, Call::Create("vm".into())).await;
        assert_eq!(outcome.effect, effect);
        // The next call has sent nothing yet.
        assert_eq!(call(&mut turn, Call::Parts).await.effect, Effect::NotSent);
    }
}

#[tokio::test]
async fn only_a_changing_call_changes_once_and_while_the_lease_is_held() {
    let (gateway, script) = network(|_| answer(201, "made"));
    let mut turn = begin("change-in-observe", &gateway).await;
    let outcome = call(&mut turn, Call::Observe("vm".into())).await;
    let Err(ProviderError::Internal(told)) = &outcome.reply else { panic!("{outcome:?}") };
    assert!(told.message.contains("Denied") && told.message.contains("observe vm may only read"), "{told:?}");
    assert_eq!(outcome.effect, Effect::NotSent);
    assert!(script.asked.lock().unwrap().is_empty());

    let mut turn = begin("twice", &gateway).await;
    let Ok(Reply::Progress(Progress::Done(lines))) = call(&mut turn, Call::Create("vm".into())).await.reply else {
        panic!()
    };
    assert!(lines.starts_with("201 Said made then ") && lines.contains("one request"), "{lines}");
    assert_eq!(script.asked.lock().unwrap().len(), 1);

    let asked = Arc::new(AtomicUsize::new(0));
    let lost: Fence = {
        let asked = asked.clone();
        Arc::new(move || {
            asked.fetch_add(1, Ordering::SeqCst);
            false
        })
    };
    let mut turn = begin("", &gateway).await;
    let outcome = turn.call(Call::Delete("vm".into()), Default::default(), Granted::default(), &lost).await;
    assert!(
        matches!(&outcome.reply, Err(ProviderError::Transient(why)) if why.message.contains("Lease")),
        "{outcome:?}"
    );
    assert_eq!((outcome.effect, asked.load(Ordering::SeqCst)), (Effect::NotSent, 1));
    assert_eq!(script.asked.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn reads_go_side_by_side_and_come_back_in_order() {
    let (gateway, _) = network(|request| answer(200, &request.target));
    let mut turn = begin("side-by-side", &gateway).await;
    let outcome = call(&mut turn, Call::Observe("vm".into())).await;
    assert_eq!(state(&outcome), "200 Said /a|200 Said /b|200 Said /c");
}

#[tokio::test]
async fn requests_and_endpoints_are_what_the_manifest_says() {
    let (gateway, script) = network(|_| answer(200, ""));
    let mut turn = begin("many-requests", &gateway).await;
    assert_eq!(state(&call(&mut turn, Call::Observe("vm".into())).await), "HttpError::BudgetSpent");
    assert_eq!(script.asked.lock().unwrap().len(), 8);
    let mut turn = begin("other-endpoint", &gateway).await;
    assert_eq!(state(&call(&mut turn, Call::Observe("vm".into())).await), "HttpError::UnknownEndpoint");
}

#[tokio::test]
async fn more_turns_than_places_wait_for_one_another() {
    let (gateway, _) = network(|_| answer(200, "here"));
    let turns = (0..40).map(|_| async {
        let mut turn = begin("", &gateway).await;
        call(&mut turn, Call::Observe("vm".into())).await.reply.is_ok()
    });
    let done: Vec<bool> = futures_all(turns).await;
    assert_eq!(done, [true; 40]);
}

async fn futures_all<T>(futures: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut futures: Vec<_> = futures.map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(move |context| {
        let mut pending = false;
        for (future, done) in &mut futures {
            if done.is_none() {
                match future.as_mut().poll(context) {
                    std::task::Poll::Ready(value) => *done = Some(value),
                    std::task::Poll::Pending => pending = true,
                }
            }
        }
        if pending {
            return std::task::Poll::Pending;
        }
        std::task::Poll::Ready(futures.iter_mut().filter_map(|(_, done)| done.take()).collect())
    })
    .await
}
