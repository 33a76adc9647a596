//! Guests that trap, spin, grow or lie end their own turn and nothing else.

use std::time::Duration;

use capstan_core::contract::{Effect, ProviderError};
use capstan_core::turn::{Call, Outcome};

use crate::guest::{answer, begin, call, network};

fn violated(outcome: &Outcome) -> &str {
    match &outcome.reply {
        Err(ProviderError::Violated(rule)) => rule,
        other => panic!("{other:?}"),
    }
}

/// Does what it is told in `parts`; the rule that was broken.
async fn broken_in(told: &str, which: Call) -> String {
    let (gateway, script) = network(|_| answer(200, "here"));
    let mut turn = begin(told, &gateway).await;
    let outcome = call(&mut turn, which).await;
    let rule = violated(&outcome).to_owned();
    assert_eq!(outcome.effect, Effect::NotSent);
    assert!(script.asked.lock().unwrap().is_empty());
    let after = call(&mut turn, Call::ReportMachine).await;
    assert_eq!(violated(&after), rule, "the rest of the turn says the same");
    // Another turn of the same module is not disturbed.
    let mut other = begin("", &gateway).await;
    assert!(call(&mut other, Call::Parts).await.reply.is_ok());
    rule
}

#[tokio::test]
async fn an_infinite_loop_is_stopped_when_its_cpu_time_is_spent() {
    let (gateway, _) = network(|_| answer(200, ""));
    let mut turn = begin("spin", &gateway).await;
    let rule = violated(&call(&mut turn, Call::Parts).await).to_owned();
    assert!(rule.contains("100 ms of CPU time"), "{rule}");
    assert!(turn.cpu_time() >= Duration::from_millis(100));
}

#[tokio::test]
async fn a_memory_bomb_is_stopped_at_its_limit() {
    let rule = broken_in("grow", Call::Parts).await;
    assert!(rule.contains("8192 KiB of memory"), "{rule}");
}

#[tokio::test]
async fn deep_recursion_is_stopped() {
    // Whichever comes first: the shadow stack in linear memory or the host's own limit.
    let rule = broken_in("recurse", Call::Parts).await;
    assert!(rule.contains("trapped"), "{rule}");
}

#[tokio::test]
async fn a_panic_s_last_words_are_kept() {
    let rule = broken_in("panic", Call::Parts).await;
    assert!(rule.contains("index out of range"), "{rule}");
}

#[tokio::test]
async fn secrets_cannot_fill_the_host_s_memory() {
    let rule = broken_in("hoard", Call::Parts).await;
    assert!(rule.contains("secret"), "{rule}");
}

#[tokio::test]
async fn parts_in_a_circle_are_a_violation() {
    assert!(broken_in("circle", Call::Parts).await.contains("circle"));
}

#[tokio::test]
async fn answers_of_the_wrong_shape_are_violations() {
    assert!(broken_in("no-json", Call::Observe("vm".into())).await.contains("not JSON"));
    assert!(broken_in("bad-status", Call::ReportCluster).await.contains("status is not a JSON object"));
}

#[tokio::test]
async fn a_pure_call_sends_nothing() {
    assert!(broken_in("impure", Call::Needs).await.contains("needs is pure"));
}

#[tokio::test]
async fn a_getter_that_has_nothing_to_say_traps() {
    assert!(broken_in("no-machine", Call::Observe("vm".into())).await.contains("machine.present"));
}

#[tokio::test]
async fn a_call_of_another_role_is_a_violation() {
    assert!(broken_in("", Call::Render).await.contains("bootstrap"));
}

#[tokio::test]
async fn a_chatterbox_is_not_written_down_for_ever() {
    let (gateway, _) = network(|_| answer(200, ""));
    let mut turn = begin("chatter", &gateway).await;
    // It may finish or run out of CPU time; it neither hangs nor fails otherwise.
    let outcome = call(&mut turn, Call::Parts).await;
    assert!(outcome.reply.is_ok() || violated(&outcome).contains("CPU time"), "{outcome:?}");
}

#[tokio::test]
async fn a_spinning_guest_that_is_given_up_frees_its_place() {
    let (gateway, _) = network(|_| answer(200, ""));
    for _ in 0..20 {
        let mut turn = begin("spin", &gateway).await;
        let given_up = tokio::time::timeout(Duration::from_millis(1), call(&mut turn, Call::Parts)).await;
        assert!(given_up.is_err());
    }
    let mut turn = begin("", &gateway).await;
    assert!(call(&mut turn, Call::Parts).await.reply.is_ok());
}
