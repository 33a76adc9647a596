//! Deletion: finalizers, preconditions, propagation, namespaces, collections.

use crate::definitions::{definition, object_schema};
use crate::objects::{map, maps};
use crate::session::{Own, Session, compare};
use reqwest::Method;
use serde_json::{Value, json};

fn delete<'s>(s: &'s mut Session, path: &str, options: &Value) -> crate::session::Request<'s> {
    s.request(Method::DELETE, path).json(options)
}

#[tokio::test]
async fn finalizers_hold() {
    compare(async |s: &mut Session| {
        s.namespace("delete-finalizers").await;
        let path = maps("delete-finalizers");
        let at = format!("{path}/a");
        let mut held = map("a", json!({"k": "v"}));
        held["metadata"]["finalizers"] = json!(["test.dev/hold", "test.dev/too"]);
        s.post(&path, &held).await;
        s.delete(&at).await;
        s.delete(&at).await;
        s.post(&path, &held).await;
        s.patch(&at, "merge", &json!({"data": {"still": "works"}})).await;
        s.patch(&at, "merge", &json!({"metadata": {"finalizers": ["test.dev/hold", "test.dev/too", "test.dev/new"]}}))
            .await;
        s.patch(&at, "merge", &json!({"metadata": {"finalizers": ["test.dev/too"]}})).await;
        s.patch(&at, "merge", &json!({"metadata": {"deletionTimestamp": null}})).await;
        s.patch(&at, "merge", &json!({"metadata": {"finalizers": null}})).await;
        s.get(&at).await;
        s.patch(&at, "merge", &json!({"metadata": {"finalizers": null}})).await;
    })
    .await;
}

#[tokio::test]
async fn a_custom_resource_with_finalizers() {
    compare(async |s: &mut Session| {
        s.namespace("delete-custom").await;
        s.install(&definition("delete.diff.dev", "things", "Thing", object_schema(json!({"a": {"type": "string"}})))).await;
        let path = "/apis/delete.diff.dev/v1/namespaces/delete-custom/things";
        let at = format!("{path}/a");
        let mut held = json!({"apiVersion": "delete.diff.dev/v1", "kind": "Thing", "metadata": {"name": "a", "finalizers": ["test.dev/hold"]}, "spec": {"a": "1"}});
        s.post(path, &held).await;
        s.delete(&at).await;
        s.delete(&at).await;
        s.patch(&at, "merge", &json!({"spec": {"a": "2"}})).await;
        s.apply(&at, "me", &json!({"apiVersion": "delete.diff.dev/v1", "kind": "Thing", "metadata": {"finalizers": ["test.dev/other"]}})).await;
        let current = s.get(&at).await.expect(200);
        let mut free = current.clone();
        free["metadata"].as_object_mut().unwrap().remove("finalizers");
        s.put(&at, &free).await;
        s.get(&at).await;
        held["metadata"]["name"] = json!("b");
        held["metadata"].as_object_mut().unwrap().remove("finalizers");
        s.post(path, &held).await;
        s.delete(&format!("{path}/b")).await;
    })
    .await;
}

#[tokio::test]
async fn options_and_preconditions() {
    compare(async |s: &mut Session| {
        s.namespace("delete-options").await;
        let path = maps("delete-options");
        let at = format!("{path}/a");
        let made = s.post(&path, &map("a", json!({}))).await.expect(201);
        let options = |fields: Value| {
            let mut options = json!({"apiVersion": "v1", "kind": "DeleteOptions"});
            options.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            options
        };
        for refused in [
            json!({"preconditions": {"uid": "11111111-2222-3333-4444-555555555555"}}),
            json!({"preconditions": {"resourceVersion": "1"}}),
            json!({"propagationPolicy": "Sideways"}),
            json!({"propagationPolicy": "Orphan", "orphanDependents": true}),
            json!({"dryRun": ["Some"]}),
            json!({"dryRun": ["All"]}),
            json!({"gracePeriodSeconds": -1, "dryRun": ["All"]}),
            json!({"apiVersion": "v2"}),
            json!({"kind": "Other"}),
        ] {
            s.note("options", refused.clone());
            delete(s, &at, &options(refused)).send().await;
        }
        for body in ["{", "[]", "3"] {
            s.request(Method::DELETE, &at).text("application/json", body).own(Own::Message).send().await;
        }
        s.request(Method::DELETE, &format!("{at}?propagationPolicy=Sideways")).send().await;
        s.request(Method::DELETE, &format!("{at}?dryRun=All&propagationPolicy=Foreground")).send().await;
        let right = json!({"preconditions": {"uid": made["metadata"]["uid"], "resourceVersion": made["metadata"]["resourceVersion"]}});
        delete(s, &at, &options(right)).send().await;
        s.get(&at).await;
    })
    .await;
}

fn owned(name: &str, owner: &Value, blocks: bool) -> Value {
    let mut object = map(name, json!({}));
    object["metadata"]["ownerReferences"] = json!([{"apiVersion": owner["apiVersion"], "kind": owner["kind"],
        "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"], "blockOwnerDeletion": blocks, "controller": blocks}]);
    object
}

#[tokio::test]
async fn owners_take_their_own_along() {
    compare(async |s: &mut Session| {
        s.namespace("delete-owners").await;
        let path = maps("delete-owners");
        // In the background.
        let a = s.post(&path, &map("a", json!({}))).await.expect(201);
        s.post(&path, &owned("a-child", &a, true)).await.expect(201);
        s.delete(&format!("{path}/a")).await;
        s.gone(&format!("{path}/a-child")).await;
        // In the foreground: the owner waits.
        let b = s.post(&path, &map("b", json!({}))).await.expect(201);
        let mut child = owned("b-child", &b, true);
        child["metadata"]["finalizers"] = json!(["test.dev/hold"]);
        s.post(&path, &child).await.expect(201);
        s.request(Method::DELETE, &format!("{path}/b?propagationPolicy=Foreground")).send().await;
        s.until(&format!("{path}/b-child"), |answer| !answer.body["metadata"]["deletionTimestamp"].is_null()).await;
        s.get(&format!("{path}/b")).await;
        s.get(&format!("{path}/b-child")).await;
        s.patch(&format!("{path}/b-child"), "merge", &json!({"metadata": {"finalizers": null}})).await;
        s.gone(&format!("{path}/b")).await;
        // Orphans stay.
        let c = s.post(&path, &map("c", json!({}))).await.expect(201);
        s.post(&path, &owned("c-child", &c, true)).await.expect(201);
        s.request(Method::DELETE, &format!("{path}/c?propagationPolicy=Orphan")).send().await;
        s.gone(&format!("{path}/c")).await;
        s.get(&format!("{path}/c-child")).await;
        // Who never had an owner that is there goes.
        let mut ghost = map("ghost", json!({}));
        ghost["metadata"]["uid"] = json!("11111111-2222-3333-4444-555555555555");
        s.post(&path, &owned("haunted", &ghost, false)).await.expect(201);
        s.gone(&format!("{path}/haunted")).await;
        // One of two owners goes.
        let [d, e] = [
            s.post(&path, &map("d", json!({}))).await.expect(201),
            s.post(&path, &map("e", json!({}))).await.expect(201),
        ];
        let mut both = owned("both", &d, false);
        both["metadata"]["ownerReferences"]
            .as_array_mut()
            .unwrap()
            .push(owned("x", &e, false)["metadata"]["ownerReferences"][0].clone());
        s.post(&path, &both).await.expect(201);
        s.delete(&format!("{path}/d")).await;
        s.until(&format!("{path}/both"), |answer| {
            answer.body["metadata"]["ownerReferences"].as_array().is_some_and(|list| list.len() == 1)
        })
        .await;
        let both = s.get(&format!("{path}/both")).await.expect(200);
        assert_eq!(both["metadata"]["ownerReferences"][0]["name"], "e");
    })
    .await;
}

#[tokio::test]
async fn a_namespace_goes_with_all_that_is_in_it() {
    compare(async |s: &mut Session| {
        s.post(
            "/api/v1/namespaces",
            &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "delete-ns"}}),
        )
        .await;
        let path = maps("delete-ns");
        let mut held = map("held", json!({}));
        held["metadata"]["finalizers"] = json!(["test.dev/hold"]);
        s.post(&path, &held).await;
        s.post(&path, &map("free", json!({}))).await;
        s.delete("/api/v1/namespaces/delete-ns").await;
        s.until(&format!("{path}/held"), |answer| !answer.body["metadata"]["deletionTimestamp"].is_null()).await;
        s.post(&path, &map("late", json!({}))).await;
        s.apply(&format!("{path}/late"), "me", &json!({"apiVersion": "v1", "kind": "ConfigMap"})).await;
        s.patch(&format!("{path}/held"), "merge", &json!({"data": {"a": "b"}})).await;
        s.gone(&format!("{path}/free")).await;
        // What it says of what is left in it depends on how far the controller has come.
        s.request(Method::DELETE, "/api/v1/namespaces/delete-ns").quietly().send().await.expect(200);
        s.get(&format!("{path}/held")).await;
        s.patch(&format!("{path}/held"), "merge", &json!({"metadata": {"finalizers": null}})).await;
        s.gone("/api/v1/namespaces/delete-ns").await;
        s.post(&path, &map("late", json!({}))).await;
        for name in ["default", "kube-system", "kube-public"] {
            s.delete(&format!("/api/v1/namespaces/{name}?dryRun=All")).await;
        }
    })
    .await;
}

#[tokio::test]
async fn collections() {
    compare(async |s: &mut Session| {
        s.namespace("delete-many").await;
        let path = maps("delete-many");
        for (name, color) in [("a", "red"), ("b", "red"), ("c", "blue")] {
            let mut object = map(name, json!({}));
            object["metadata"]["labels"] = json!({"color": color});
            if name == "b" {
                object["metadata"]["finalizers"] = json!(["test.dev/hold"]);
            }
            s.post(&path, &object).await.expect(201);
        }
        s.delete(&format!("{path}?labelSelector=color=green")).await;
        s.delete(&format!("{path}?labelSelector=color=red")).await;
        s.get(&path).await;
        s.patch(&format!("{path}/b"), "merge", &json!({"metadata": {"finalizers": null}})).await;
        s.delete(&format!("{path}?fieldSelector=metadata.name=c&propagationPolicy=Background")).await;
        s.get(&path).await;
        s.install(&definition("many.diff.dev", "things", "Thing", object_schema(json!({})))).await;
        let path = "/apis/many.diff.dev/v1/namespaces/delete-many/things";
        for name in ["a", "b"] {
            s.post(path, &json!({"apiVersion": "many.diff.dev/v1", "kind": "Thing", "metadata": {"name": name}}))
                .await
                .expect(201);
        }
        s.delete(path).await;
        s.get(path).await;
    })
    .await;
}
