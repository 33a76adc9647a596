//! What happens by itself: garbage collection, namespaces, definitions.

use crate::support::*;
use http::Method;
use serde_json::{Value, json};

fn owned(name: &str, owner: &Value, block: bool) -> Value {
    json!({"metadata": {"name": name, "ownerReferences": [{"apiVersion": owner["apiVersion"], "kind": owner["kind"],
        "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"], "blockOwnerDeletion": block}]}})
}

fn started() -> Client {
    let client = management();
    client.server.background(Default::default());
    client
}

async fn settle() {
    tokio::time::sleep(std::time::Duration::from_millis(30)).await;
}

#[tokio::test]
async fn dependents_go_with_their_last_owner() {
    let client = started();
    let a = client.post(MAPS, &map("a", json!({}))).await.expect(201);
    let b = client.post(MAPS, &map("b", json!({}))).await.expect(201);
    let child = client.post(MAPS, &owned("child", &a, false)).await.expect(201);
    client.post(MAPS, &owned("grandchild", &child, false)).await.expect(201);
    let mut both = owned("both", &a, false);
    both["metadata"]["ownerReferences"]
        .as_array_mut()
        .unwrap()
        .push(owned("x", &b, false)["metadata"]["ownerReferences"][0].clone());
    client.post(MAPS, &both).await.expect(201);
    client.delete(&format!("{MAPS}/a")).await.expect(200);
    client.until(&format!("{MAPS}/child"), 404).await;
    client.until(&format!("{MAPS}/grandchild"), 404).await;
    settle().await;
    let both = client.get(&format!("{MAPS}/both")).await.expect(200);
    assert_eq!(both["metadata"]["ownerReferences"].as_array().unwrap().len(), 1);
    assert_eq!(both["metadata"]["ownerReferences"][0]["name"], "b");
    client.delete(&format!("{MAPS}/b")).await.expect(200);
    client.until(&format!("{MAPS}/both"), 404).await;
}

#[tokio::test]
async fn an_owner_that_never_was_is_no_owner() {
    let client = started();
    let mut ghost = map("a", json!({}));
    ghost["metadata"]["uid"] = json!("00000000-0000-0000-0000-000000000000");
    let real = client.post(MAPS, &map("a", json!({}))).await.expect(201);
    // The right name with another uid is somebody else.
    client.post(MAPS, &owned("child", &ghost, false)).await.expect(201);
    client.until(&format!("{MAPS}/child"), 404).await;
    // Of a kind that nobody serves nothing is known.
    let unknown = json!({"apiVersion": "nobody.dev/v1", "kind": "Thing", "metadata": {"name": "t", "uid": "u"}});
    client.post(MAPS, &owned("kept", &unknown, false)).await.expect(201);
    client.post(MAPS, &owned("fine", &real, false)).await.expect(201);
    settle().await;
    client.get(&format!("{MAPS}/kept")).await.expect(200);
    client.get(&format!("{MAPS}/fine")).await.expect(200);
}

#[tokio::test]
async fn foreground_waits_for_those_that_block() {
    let client = started();
    let a = client.post(MAPS, &map("a", json!({}))).await.expect(201);
    let mut held = owned("held", &a, true);
    held["metadata"]["finalizers"] = json!(["test.dev/hold"]);
    client.post(MAPS, &held).await.expect(201);
    client.post(MAPS, &owned("free", &a, false)).await.expect(201);
    client.send(Method::DELETE, &format!("{MAPS}/a?propagationPolicy=Foreground"), &[], "").await.expect(200);
    client.until(&format!("{MAPS}/free"), 404).await;
    settle().await;
    let waiting = client.get(&format!("{MAPS}/a")).await.expect(200);
    assert_eq!(waiting["metadata"]["finalizers"], json!(["foregroundDeletion"]));
    assert!(client.get(&format!("{MAPS}/held")).await.expect(200)["metadata"]["deletionTimestamp"].is_string());
    client.patch(&format!("{MAPS}/held"), "merge", &json!({"metadata": {"finalizers": null}})).await.expect(200);
    client.until(&format!("{MAPS}/a"), 404).await;
}

#[tokio::test]
async fn orphans_stay() {
    let client = started();
    let a = client.post(MAPS, &map("a", json!({}))).await.expect(201);
    client.post(MAPS, &owned("child", &a, true)).await.expect(201);
    client.send(Method::DELETE, &format!("{MAPS}/a?propagationPolicy=Orphan"), &[], "").await.expect(200);
    client.until(&format!("{MAPS}/a"), 404).await;
    settle().await;
    let child = client.get(&format!("{MAPS}/child")).await.expect(200);
    assert!(child["metadata"].get("ownerReferences").is_none());
    client.send(Method::DELETE, &format!("{MAPS}/child?propagationPolicy=Sideways"), &[], "").await.expect(422);
}

#[tokio::test]
async fn namespaces_are_emptied_before_they_go() {
    let client = started();
    let namespace = json!({"metadata": {"name": "ns"}});
    let made = client.post("/api/v1/namespaces", &namespace).await.expect(201);
    assert_eq!(made["status"]["phase"], "Active");
    assert_eq!(made["metadata"]["labels"]["kubernetes.io/metadata.name"], "ns");
    client.post("/api/v1/namespaces/ns/configmaps", &map("a", json!({}))).await.expect(201);
    let mut held = map("held", json!({}));
    held["metadata"]["finalizers"] = json!(["test.dev/hold"]);
    client.post("/api/v1/namespaces/ns/configmaps", &held).await.expect(201);
    let going = client.delete("/api/v1/namespaces/ns").await.expect(200);
    assert_eq!(going["status"]["phase"], "Terminating");
    client.until("/api/v1/namespaces/ns/configmaps/a", 404).await;
    let refused = client.post("/api/v1/namespaces/ns/configmaps", &map("late", json!({}))).await.expect(403);
    assert_eq!(refused["details"]["causes"][0]["reason"], "NamespaceTerminating");
    settle().await;
    let waiting = client.get("/api/v1/namespaces/ns").await.expect(200);
    assert!(waiting["status"]["conditions"][0]["message"].as_str().unwrap().contains("configmaps"), "{waiting}");
    client
        .patch("/api/v1/namespaces/ns/configmaps/held", "merge", &json!({"metadata": {"finalizers": null}}))
        .await
        .expect(200);
    client.until("/api/v1/namespaces/ns", 404).await;
    client.delete("/api/v1/namespaces/default").await.expect(403);
    client.post("/api/v1/namespaces/ns/configmaps", &map("late", json!({}))).await.expect(404);
    client.post("/api/v1/namespaces", &namespace).await.expect(201);
}

#[tokio::test]
async fn a_definitions_objects_go_before_it() {
    let client = started();
    client.install(&widgets()).await;
    let mut held = widget("held", 1);
    held["metadata"]["finalizers"] = json!(["test.dev/hold"]);
    client.post(WIDGETS, &held).await.expect(201);
    client.post(WIDGETS, &widget("free", 1)).await.expect(201);
    let definition = format!("{DEFINITIONS}/widgets.test.dev");
    client.delete(&definition).await.expect(200);
    client.until(&format!("{WIDGETS}/free"), 404).await;
    client.get(&definition).await.expect(200);
    client.patch(&format!("{WIDGETS}/held"), "merge", &json!({"metadata": {"finalizers": null}})).await.expect(200);
    client.until(&definition, 404).await;
    client.get(WIDGETS).await.expect(404);
    client.install(&widgets()).await;
    assert!(client.get(WIDGETS).await.expect(200)["items"].as_array().unwrap().is_empty());
}

#[tokio::test]
async fn work_left_undone_is_done_after_a_start() {
    let client = management();
    let a = client.post(MAPS, &map("a", json!({}))).await.expect(201);
    client.post(MAPS, &owned("child", &a, false)).await.expect(201);
    client.delete(&format!("{MAPS}/a")).await.expect(200);
    client.post("/api/v1/namespaces", &json!({"metadata": {"name": "ns"}})).await.expect(201);
    client.delete("/api/v1/namespaces/ns").await.expect(200);
    let again = on(client.server.store().clone());
    again.server.background(Default::default());
    again.until(&format!("{MAPS}/child"), 404).await;
    again.until("/api/v1/namespaces/ns", 404).await;
}
