//! What is forgotten, and what is not: lists and watches that go on from a revision.

use crate::objects::{map, maps};
use crate::session::{Session, compare};
use reqwest::Method;
use serde_json::{Value, json};
use std::time::Duration;

fn event(name: &str) -> Value {
    // With all that Go would write though it is empty.
    let time = "2026-01-02T03:04:05Z";
    json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": name}, "type": "Normal", "reason": "R", "message": "m",
        "action": "A", "eventTime": "2026-01-02T03:04:05.000000Z", "firstTimestamp": time, "lastTimestamp": time,
        "source": {"component": "c"}, "reportingComponent": "diff.dev/c", "reportingInstance": "i",
        "involvedObject": {"kind": "Pod", "namespace": "past", "name": "p"}})
}

/// Events: upstream keeps no cache of them, so what etcd has forgotten is forgotten.
#[tokio::test(flavor = "multi_thread")]
async fn a_compacted_past_is_expired() {
    compare(async |s: &mut Session| {
        s.namespace("past").await;
        let path = "/api/v1/namespaces/past/events";
        for name in ["a", "b", "c"] {
            s.post(path, &event(name)).await.expect(201);
        }
        let first = s.get(&format!("{path}?limit=1")).await;
        let old = first.revision();
        let token = first.body["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
        // What came before is still there.
        s.get(&format!("{path}?limit=1&continue={token}")).await;
        // So much that the embedded server forgets what came before; the real one is told to.
        for round in 0..40 {
            let body = json!({"metadata": {"annotations": {"big": format!("{round}{}", "x".repeat(250_000))}}});
            s.patching(&format!("{path}/b"), "merge", &body).quietly().send().await.expect(200);
        }
        let small = json!({"metadata": {"annotations": {"big": null}}});
        let now = s.patching(&format!("{path}/b"), "merge", &small).quietly().send().await;
        s.server.compact(now.revision().parse().expect("a revision"));
        let gone = s.request(Method::GET, &format!("{path}?limit=1&continue={token}")).quietly().send().await;
        let (code, message, next) =
            (gone.code, gone.body["message"].clone(), gone.body["metadata"]["continue"].clone());
        s.note("expired token", json!([code, gone.body["reason"], message, next.is_string()]));
        assert_eq!(code, 410, "{:#}", gone.body);
        let rest = s.get(&format!("{path}?continue={}", next.as_str().unwrap_or_default())).await;
        let names: Vec<&Value> =
            rest.body["items"].as_array().unwrap().iter().map(|e| &e["metadata"]["name"]).collect();
        assert_eq!(names, ["b", "c"], "the rest, as it is now");
        // What is wrong with it is said in the words of Go's decoder.
        let nonsense = s.request(Method::GET, &format!("{path}?limit=1&continue=nonsense")).quietly().send().await;
        s.note("no token", json!([nonsense.code, nonsense.body["reason"], nonsense.body["details"]]));
        assert_eq!(nonsense.code, 400, "{:#}", nonsense.body);
        for query in [
            "resourceVersionMatch=Exact&limit=2",
            "resourceVersionMatch=Exact",
            "watch=true&timeoutSeconds=3",
            "watch=true&allowWatchBookmarks=true&timeoutSeconds=3",
        ] {
            let answer =
                s.request(Method::GET, &format!("{path}?resourceVersion={old}&{query}")).quietly().send().await;
            // As a status, or as the one event of a stream: clients know both.
            let status = if answer.body["type"] == "ERROR" { &answer.body["object"] } else { &answer.body };
            s.note(query, json!([status["code"], status["reason"]]));
            assert_eq!(status["code"], 410, "{}: {query}: {:#}", s.server.name, answer.body);
        }
        // From the present on there is no gap.
        let revision = s.get(path).await.revision();
        let mut events = s.watch(&format!("{path}?watch=true&resourceVersion={revision}")).await;
        s.post(path, &event("d")).await.expect(201);
        s.events("from now", &mut events, 1).await;
    })
    .await;
}

/// A client whose connection breaks again and again hears of every change once, in order.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_goes_on_where_it_broke_off() {
    compare(async |s: &mut Session| {
        s.namespace("resume").await;
        let path = maps("resume");
        let mut from = s.get(&path).await.revision();
        let (url, client) = (format!("{}{path}", s.server.url), s.server.admin());
        let writing = tokio::spawn(async move {
            for number in 0..150 {
                let name = format!("m{}", number % 7);
                let answer = match number / 7 % 3 {
                    0 => client.post(&url).json(&map(&name, json!({"n": number.to_string()}))).send().await,
                    1 => {
                        client
                            .patch(format!("{url}/{name}"))
                            .header("content-type", "application/merge-patch+json")
                            .body(json!({"data": {"n": number.to_string()}}).to_string())
                            .send()
                            .await
                    }
                    _ => client.delete(format!("{url}/{name}")).send().await,
                };
                let code = answer.expect("an answer").status();
                assert!(code.is_success(), "{number}: {code}");
            }
        });
        let mut told = Vec::new();
        let mut piece = 0;
        while told.len() < 150 {
            let mut events =
                s.watch(&format!("{path}?watch=true&resourceVersion={from}&allowWatchBookmarks=true")).await;
            piece = piece % 5 + 1;
            for _ in 0..piece {
                if told.len() == 150 {
                    break;
                }
                let event = events.next(Duration::from_secs(30)).await.expect("an event");
                from = event["object"]["metadata"]["resourceVersion"].as_str().expect("a revision").to_owned();
                let object = &event["object"];
                told.push(json!([event["type"], object["metadata"]["name"], object["data"]["n"]]));
            }
        }
        writing.await.expect("all is written");
        let mut wanted = Vec::new();
        for number in 0..150 {
            let (kind, n) = match number / 7 % 3 {
                0 => ("ADDED", number),
                1 => ("MODIFIED", number),
                _ => ("DELETED", number - 7),
            };
            wanted.push(json!([kind, format!("m{}", number % 7), n.to_string()]));
        }
        assert_eq!(told, wanted, "{}", s.server.name);
        let mut rest = s.watch(&format!("{path}?watch=true&resourceVersion={from}")).await;
        assert!(rest.quiet().await, "{}: something is told twice", s.server.name);
    })
    .await;
}
