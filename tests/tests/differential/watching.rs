//! Watches: what they begin with, what they tell, how they end.

use crate::definitions::{definition, object_schema};
use crate::objects::{map, maps};
use crate::session::{Own, Session, compare};
use serde_json::json;

#[tokio::test]
async fn what_happens_is_told_in_order() {
    compare(async |s: &mut Session| {
        s.namespace("watch-order").await;
        let path = maps("watch-order");
        s.post(&path, &map("before", json!({}))).await.expect(201);
        let revision = s.get(&path).await.revision();
        let mut from_now = s.watch(&format!("{path}?watch=true&resourceVersion={revision}")).await;
        let mut from_state = s.watch(&format!("{path}?watch=1")).await;
        let mut from_zero = s.watch(&format!("{path}?watch=true&resourceVersion=0")).await;
        s.post(&path, &map("a", json!({"k": "v"}))).await.expect(201);
        s.patch(&format!("{path}/a"), "merge", &json!({"data": {"k": "w"}})).await.expect(200);
        s.patch(&format!("{path}/a"), "merge", &json!({"data": {"k": "w"}})).await.expect(200);
        s.patch(&format!("{path}/a"), "merge", &json!({"metadata": {"finalizers": ["test.dev/x"]}})).await.expect(200);
        s.delete(&format!("{path}/a")).await;
        s.patch(&format!("{path}/a"), "merge", &json!({"metadata": {"finalizers": null}})).await;
        s.delete(&format!("{path}/before")).await;
        s.events("from now", &mut from_now, 6).await;
        s.events("with the state", &mut from_state, 7).await;
        s.events("from zero", &mut from_zero, 7).await;
    })
    .await;
}

#[tokio::test]
async fn selectors_make_objects_come_and_go() {
    compare(async |s: &mut Session| {
        s.namespace("watch-selectors").await;
        let path = maps("watch-selectors");
        let revision = s.get(&path).await.revision();
        let mut by_label =
            s.watch(&format!("{path}?watch=true&resourceVersion={revision}&labelSelector=color%3Dred")).await;
        let mut by_name =
            s.watch(&format!("{path}?watch=true&resourceVersion={revision}&fieldSelector=metadata.name%3Db")).await;
        for name in ["a", "b"] {
            let mut object = map(name, json!({}));
            object["metadata"]["labels"] = json!({"color": "red"});
            s.post(&path, &object).await.expect(201);
        }
        s.patch(&format!("{path}/a"), "merge", &json!({"metadata": {"labels": {"color": "blue"}}})).await.expect(200);
        s.patch(&format!("{path}/a"), "merge", &json!({"data": {"unseen": "1"}})).await.expect(200);
        s.patch(&format!("{path}/a"), "merge", &json!({"metadata": {"labels": {"color": "red"}}})).await.expect(200);
        s.delete(&format!("{path}/a")).await.expect(200);
        s.delete(&format!("{path}/b")).await.expect(200);
        s.events("by label", &mut by_label, 6).await;
        s.events("by name", &mut by_name, 2).await;
        let (quiet, too) = (by_label.quiet().await, by_name.quiet().await);
        s.note("quiet", json!([quiet, too]));
        for query in [
            "watch=true&labelSelector=a%20b",
            "watch=true&fieldSelector=data.x%3D1",
            "watch=true&resourceVersion=x",
            "watch=true&timeoutSeconds=x",
        ] {
            s.request(reqwest::Method::GET, &format!("{path}?{query}")).own(Own::Message).send().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_list_as_a_stream() {
    compare(async |s: &mut Session| {
        s.namespace("watch-list").await;
        let path = maps("watch-list");
        for name in ["a", "b"] {
            s.post(&path, &map(name, json!({}))).await.expect(201);
        }
        let query = "watch=true&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan";
        let mut events = s.watch(&format!("{path}?{query}")).await;
        s.events("streamed list", &mut events, 3).await;
        s.post(&path, &map("c", json!({}))).await.expect(201);
        s.events("after it", &mut events, 1).await;
        let mut at_zero = s.watch(&format!("{path}?{query}&resourceVersion=0")).await;
        s.events("from zero", &mut at_zero, 4).await;
        let revision = s.get(&path).await.revision();
        let mut at = s.watch(&format!("{path}?{query}&resourceVersion={revision}")).await;
        s.events("from a revision", &mut at, 4).await;
        for query in [
            "watch=true&sendInitialEvents=true",
            "watch=true&sendInitialEvents=true&resourceVersionMatch=Exact&resourceVersion=1",
            "watch=true&sendInitialEvents=false",
            "watch=true&resourceVersionMatch=NotOlderThan",
            "watch=true&resourceVersionMatch=NotOlderThan&resourceVersion=1",
        ] {
            s.request(reqwest::Method::GET, &format!("{path}?{query}")).own(Own::Details).send().await;
        }
        let mut none = s
            .watch(&format!(
                "{path}?watch=true&sendInitialEvents=false&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan"
            ))
            .await;
        let quiet = none.quiet().await;
        s.note("without initial events", json!(quiet));
        let mut brief = s.watch(&format!("{path}?watch=true&timeoutSeconds=1&resourceVersion={revision}")).await;
        let ended = brief.next(std::time::Duration::from_secs(10)).await;
        s.note("ends by itself", json!(ended));
    })
    .await;
}

#[tokio::test]
async fn in_other_forms() {
    compare(async |s: &mut Session| {
        s.namespace("watch-forms").await;
        let mut things =
            definition("watch.diff.dev", "things", "Thing", object_schema(json!({"a": {"type": "string"}})));
        things["spec"]["versions"]
            .as_array_mut()
            .unwrap()
            .push(json!({"name": "v1beta1", "served": true, "storage": false,
            "schema": {"openAPIV3Schema": object_schema(json!({"a": {"type": "string"}}))}}));
        s.install(&things).await;
        let path = "/apis/watch.diff.dev/v1/namespaces/watch-forms/things";
        let old = "/apis/watch.diff.dev/v1beta1/namespaces/watch-forms/things";
        let revision = s.get(path).await.revision();
        let mut other_version = s.watch(&format!("{old}?watch=true&resourceVersion={revision}")).await;
        let mut everywhere =
            s.watch(&format!("/apis/watch.diff.dev/v1/things?watch=true&resourceVersion={revision}")).await;
        let body =
            json!({"apiVersion": "watch.diff.dev/v1", "kind": "Thing", "metadata": {"name": "a"}, "spec": {"a": "1"}});
        s.post(path, &body).await.expect(201);
        s.delete(&format!("{path}/a")).await.expect(200);
        s.events("in another version", &mut other_version, 2).await;
        s.events("in all namespaces", &mut everywhere, 2).await;
    })
    .await;
}
