//! Watchers that do not read. The only test of its process, as it looks at the memory of the process.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[allow(dead_code, reason = "shared with the other tests")]
#[path = "it/support.rs"]
mod support;

use capstan_apiserver::{HistoryLimit, Store};
use serde_json::json;
use std::time::Duration;
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio_util::sync::CancellationToken;

const WATCHERS: usize = 100;
const MAPS_WRITTEN: usize = 20;
const BYTES: usize = 100 << 10;

/// Resident memory of this process.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux tells");
    text.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).expect("pages") * 4096
}

async fn round(client: &Client, number: usize) {
    let text = format!("{number}-{}", "x".repeat(BYTES));
    for index in 0..MAPS_WRITTEN {
        let at = format!("{MAPS}/m{index}");
        client.patch(&at, "merge", &json!({"data": {"text": text}})).await.expect(200);
    }
}

/// Reads until a text has come.
async fn read_until(stream: &mut DuplexStream, text: &str) -> String {
    let mut read = Vec::new();
    let reading = async {
        let mut piece = vec![0; 64 << 10];
        while !String::from_utf8_lossy(&read).contains(text) {
            let count = stream.read(&mut piece).await.unwrap();
            assert!(count > 0, "it ended without {text:?}");
            read.extend_from_slice(&piece[..count]);
        }
    };
    tokio::time::timeout(Duration::from_secs(60), reading).await.expect("it is never told");
    String::from_utf8_lossy(&read).into_owned()
}

/// Begins a watch from a revision.
async fn watch(client: &Client, revision: &str) -> DuplexStream {
    let (mut own, other) = tokio::io::duplex(16 << 10);
    let server = client.server.clone();
    tokio::spawn(async move { server.serve_connection(other, None, CancellationToken::new()).await });
    let request = format!("GET {MAPS}?watch=true&resourceVersion={revision} HTTP/1.1\r\nHost: x\r\n\r\n");
    own.write_all(request.as_bytes()).await.unwrap();
    own
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_that_does_not_read_cannot_grow_memory() {
    let limit = HistoryLimit { events: 1000, bytes: 1 << 20, age: Duration::from_secs(600) };
    let client = on(Store::memory_with(limit));
    let everybody = json!({"metadata": {"name": "all"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "Group", "name": "system:unauthenticated", "apiGroup": "rbac.authorization.k8s.io"}]});
    client.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &everybody).await.expect(201);
    for index in 0..MAPS_WRITTEN {
        client.post(MAPS, &map(&format!("m{index}"), json!({}))).await.expect(201);
    }
    let list = client.get(MAPS).await.expect(200);
    let revision = list["metadata"]["resourceVersion"].as_str().unwrap();
    let mut watchers = Vec::new();
    for _ in 0..WATCHERS {
        watchers.push(watch(&client, revision).await);
    }
    // All of them listen before they fall silent.
    client.patch(&format!("{MAPS}/m0"), "merge", &json!({"data": {"first": "word"}})).await.expect(200);
    for watcher in &mut watchers {
        read_until(watcher, "\"type\":\"MODIFIED\"").await;
    }
    for number in 0..5 {
        round(&client, number).await;
    }
    let before = resident();
    for number in 0..50 {
        round(&client, number).await;
    }
    let grown = resident().saturating_sub(before);
    // One hundred megabytes were written, and each watcher was to be told of each.
    assert!(grown < 40 << 20, "{WATCHERS} watchers that do not read cost {} MiB more", grown >> 20);

    // Who begins to read after all is told that what was missed is forgotten, and what was not missed before it.
    let mut late = watchers.pop().unwrap();
    let text = read_until(&mut late, "\"code\":410").await;
    assert!(text.contains("\"type\":\"ERROR\"") && text.contains("\"reason\":\"Expired\""), "{text}");
    // And the others are in nobody's way.
    let mut fresh = client.watch(&format!("{MAPS}?watch=true&fieldSelector=metadata.name%3Dm0")).await;
    fresh.expect("ADDED", "m0").await;
}
