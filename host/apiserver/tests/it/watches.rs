//! Watches.

use crate::support::*;
use capstan_apiserver::{HistoryLimit, Store};
use http::Method;
use serde_json::{Value, json};
use std::time::Duration;

fn revision(object: &Value) -> &str {
    object["metadata"]["resourceVersion"].as_str().unwrap()
}

fn labelled(name: &str, value: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"v": value}}})
}

#[tokio::test]
async fn events_come_in_order_and_under_selectors() {
    let client = management();
    let list = client.get(MAPS).await.expect(200);
    let mut all = client.watch(&format!("{MAPS}?watch=true&resourceVersion={}", revision(&list))).await;
    let mut ones =
        client.watch(&format!("{MAPS}?watch=true&resourceVersion={}&labelSelector=v%3D1", revision(&list))).await;
    let mut elsewhere = client.watch("/api/v1/namespaces/kube-system/configmaps?watch=true").await;
    client.post(MAPS, &labelled("a", "1")).await.expect(201);
    let changed =
        client.patch(&format!("{MAPS}/a"), "merge", &json!({"metadata": {"labels": {"v": "2"}}})).await.expect(200);
    client.patch(&format!("{MAPS}/a"), "merge", &json!({"data": {"x": "y"}})).await.expect(200);
    client.patch(&format!("{MAPS}/a"), "merge", &json!({"metadata": {"labels": {"v": "1"}}})).await.expect(200);
    client.delete(&format!("{MAPS}/a")).await.expect(200);
    let added = all.expect("ADDED", "a").await;
    for _ in 0..3 {
        all.expect("MODIFIED", "a").await;
    }
    let deleted = all.expect("DELETED", "a").await;
    assert!(revision(&deleted).parse::<u64>().unwrap() > revision(&added).parse::<u64>().unwrap() + 3);
    ones.expect("ADDED", "a").await;
    let left = ones.expect("DELETED", "a").await;
    assert_eq!(left["metadata"]["labels"]["v"], "1", "its last state in sight");
    assert_eq!(revision(&left), revision(&changed));
    ones.expect("ADDED", "a").await;
    ones.expect("DELETED", "a").await;
    assert!(elsewhere.quiet().await);
    // From the middle.
    let mut rest = client.watch(&format!("{MAPS}?watch=true&resourceVersion={}", revision(&changed))).await;
    rest.expect("MODIFIED", "a").await;
    rest.expect("MODIFIED", "a").await;
    rest.expect("DELETED", "a").await;
}

#[tokio::test]
async fn streamed_lists_end_with_a_bookmark() {
    let client = management();
    client.post(MAPS, &labelled("a", "1")).await.expect(201);
    client.post(MAPS, &labelled("b", "1")).await.expect(201);
    let query = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut watch = client.watch(&format!("{MAPS}?{query}")).await;
    watch.expect("ADDED", "a").await;
    watch.expect("ADDED", "b").await;
    let bookmark = watch.expect("BOOKMARK", "").await;
    assert_eq!(bookmark["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    assert_eq!(bookmark["kind"], "ConfigMap");
    client.post(MAPS, &labelled("c", "1")).await.expect(201);
    watch.expect("ADDED", "c").await;
    client.get(&format!("{MAPS}?watch=true&sendInitialEvents=true")).await.expect(422);
    client.get(&format!("{MAPS}?watch=true&resourceVersionMatch=NotOlderThan")).await.expect(422);
    // Without a revision, what there is comes first.
    let mut plain = client.watch(&format!("{MAPS}?watch=true&fieldSelector=metadata.name%3Db")).await;
    plain.expect("ADDED", "b").await;
    assert!(plain.quiet().await);
    let mut none =
        client.watch(&format!("{MAPS}?watch=true&sendInitialEvents=false&resourceVersionMatch=NotOlderThan")).await;
    assert!(none.quiet().await);
}

#[tokio::test]
async fn what_is_forgotten_is_gone() {
    let client = on(Store::memory_with(HistoryLimit { events: 2, bytes: 1 << 20, age: Duration::from_secs(60) }));
    let first = client.post(MAPS, &labelled("a", "0")).await.expect(201);
    for index in 1..5 {
        client
            .patch(&format!("{MAPS}/a"), "merge", &json!({"metadata": {"labels": {"v": index.to_string()}}}))
            .await
            .expect(200);
    }
    let mut watch = client.watch(&format!("{MAPS}?watch=true&resourceVersion={}", revision(&first))).await;
    let (kind, status) = watch.next().await.unwrap();
    assert_eq!((kind.as_str(), &status["code"], &status["reason"]), ("ERROR", &json!(410), &json!("Expired")));
    assert!(watch.next().await.is_none());
    let mut future = client.watch(&format!("{MAPS}?watch=true&resourceVersion=99999")).await;
    assert_eq!(future.next().await.unwrap().1["code"], 410);
}

#[tokio::test(start_paused = true)]
async fn bookmarks_and_timeouts() {
    let client = management();
    let mut watch = client
        .watch(&format!(
            "{MAPS}?watch=true&allowWatchBookmarks=true&timeoutSeconds=90&resourceVersion={}",
            revision(&client.get(MAPS).await.expect(200))
        ))
        .await;
    client.post("/api/v1/namespaces/kube-system/configmaps", &labelled("x", "1")).await.expect(201);
    let now = client.get(MAPS).await.expect(200);
    let mut bookmark = None;
    for _ in 0..30 {
        tokio::time::advance(Duration::from_secs(5)).await;
        if let Ok(Some((kind, object))) = tokio::time::timeout(Duration::from_millis(1), watch.next()).await {
            assert_eq!(kind, "BOOKMARK");
            bookmark = Some(object);
        }
    }
    assert_eq!(revision(&bookmark.unwrap()), revision(&now), "a bookmark tells how far the store has come");
    assert!(watch.next().await.is_none(), "90 seconds are over");
}

#[tokio::test]
async fn tables_and_metadata_are_watched_too() {
    let client = management();
    let accept = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json")];
    client.post(MAPS, &labelled("a", "1")).await.expect(201);
    client.post(MAPS, &labelled("b", "1")).await.expect(201);
    let answer = client.raw(Method::GET, &format!("{MAPS}?watch=true&timeoutSeconds=1"), &accept, "").await;
    let body = http_body_util::BodyExt::collect(answer.into_body()).await.unwrap().to_bytes();
    let events: Vec<Value> =
        body.split(|b| *b == b'\n').filter(|l| !l.is_empty()).map(|l| serde_json::from_slice(l).unwrap()).collect();
    assert_eq!(events.len(), 2);
    assert!(!events[0]["object"]["columnDefinitions"].as_array().unwrap().is_empty());
    assert!(events[1]["object"]["columnDefinitions"].as_array().unwrap().is_empty());
    assert_eq!(events[1]["object"]["rows"][0]["cells"][0], "b");
}
