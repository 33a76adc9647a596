//! Watches that go on from a revision.

use crate::objects::{map, maps};
use crate::session::{Session, compare};
use serde_json::json;
use std::time::Duration;

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
