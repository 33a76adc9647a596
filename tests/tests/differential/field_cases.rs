//! Cases that people met in the field (rows A17 to A20 of the project's list), on both servers.

use crate::definitions::{definition, object_schema};
use crate::session::{DEFINITIONS, Own, Session, compare};
use reqwest::Method;
use serde_json::{Value, json};

/// kubernetes/kubernetes#113110: defaults inside objects that are left out, and explicit nulls.
#[tokio::test]
async fn a17_defaults_of_nested_fields_and_nulls() {
    compare(async |s: &mut Session| {
        s.namespace("a17").await;
        let fields = json!({
            "opts": {"type": "object", "properties": {"level": {"type": "integer", "default": 3}, "name": {"type": "string"}}},
            "note": {"type": "string", "nullable": true, "default": "hello"}});
        let things = definition("a17.diff.dev", "things", "Thing", object_schema(fields));
        s.install(&things).await;
        let path = "/apis/a17.diff.dev/v1/namespaces/a17/things";
        let body = |name: &str, spec: Value| json!({"apiVersion": "a17.diff.dev/v1", "kind": "Thing", "metadata": {"name": name}, "spec": spec});
        for (name, spec) in [
            ("absent", json!({})), ("empty", json!({"opts": {}})), ("null", json!({"opts": null})), ("null-inside", json!({"opts": {"level": null}})),
            ("note-null", json!({"note": null})), ("unknown", json!({"opts": {"zzz": 1, "name": "n"}})),
        ] {
            s.post(path, &body(name, spec)).await;
            s.get(&format!("{path}/{name}")).await;
        }
        let absent = s.get(&format!("{path}/absent")).await.body;
        assert_eq!(absent["spec"], json!({"note": "hello"}));
        assert_eq!(s.get(&format!("{path}/empty")).await.body["spec"], json!({"note": "hello", "opts": {"level": 3}}));
        assert_eq!(s.get(&format!("{path}/note-null")).await.body["spec"]["note"], json!(null));
        // A default that comes later shows on what was stored before.
        s.patching(&format!("{DEFINITIONS}/things.a17.diff.dev"), "json", &json!([{"op": "add",
            "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/later", "value": {"type": "string", "default": "new"}}])).quietly().send().await.expect(200);
        s.until(&format!("{path}/absent"), |answer| answer.body["spec"]["later"] == "new").await;
        s.get(&format!("{path}/absent")).await;
        s.get(path).await;
        let mut events = s.watch(&format!("{path}?watch=true&fieldSelector=metadata.name%3Dempty")).await;
        s.events("with the new default", &mut events, 1).await;
        s.request(Method::GET, &format!("{path}/empty")).header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io").quietly().send().await.expect(200);
        // Nothing was written for it.
        s.patch(&format!("{path}/empty"), "merge", &json!({"metadata": {"labels": {"a": "b"}}})).await;
    })
    .await;
}

/// kubernetes/kubernetes#78817: integer or string, and nothing else.
#[tokio::test]
async fn a18_integer_or_string() {
    compare(async |s: &mut Session| {
        s.namespace("a18").await;
        let things = definition("a18.diff.dev", "things", "Thing", object_schema(json!({
            "plain": {"x-kubernetes-int-or-string": true},
            "patterned": {"x-kubernetes-int-or-string": true, "pattern": "^[0-9]+%$"},
            "spelt": {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": true}})));
        s.install(&things).await;
        let path = "/apis/a18.diff.dev/v1/namespaces/a18/things";
        let mut index = 0;
        for field in ["plain", "patterned", "spelt"] {
            for value in [json!(true), json!(1.5), json!({}), json!([]), json!(7), json!("7"), json!("30%"), json!("abc"), json!(null), json!(7.0)] {
                index += 1;
                s.note("value", json!([field, value]));
                let spec = json!({field: value});
                // Which of the branches of `anyOf` is told of depends on how far each got.
                let own = if field == "spelt" { Own::Details } else { Own::Warnings };
                let body = json!({"apiVersion": "a18.diff.dev/v1", "kind": "Thing", "metadata": {"name": format!("t{index}")}, "spec": spec});
                s.request(Method::POST, path).json(&body).own(own).send().await;
                s.get(&format!("{path}/t{index}")).await;
                let body = json!({"apiVersion": "a18.diff.dev/v1", "kind": "Thing", "spec": spec});
                s.applying(&format!("{path}/a{index}"), "me", false, &body).own(own).send().await;
            }
        }
        s.patch(&format!("{path}/t5"), "json", &json!([{"op": "replace", "path": "/spec/plain", "value": "x"}])).await;
        s.patch(&format!("{path}/t5"), "json", &json!([{"op": "replace", "path": "/spec/plain", "value": 8}])).await;
        s.patch(&format!("{path}/t5"), "json", &json!([{"op": "replace", "path": "/spec/plain", "value": false}])).await;
        assert_eq!(s.get(&format!("{path}/t5")).await.body["spec"]["plain"], json!(8));
    })
    .await;
}

/// kubernetes/kubernetes#104171: the past that is forgotten is 410 on every kind.
#[tokio::test]
async fn a19_a_forgotten_past_is_gone() {
    compare(async |s: &mut Session| {
        s.namespace("a19").await;
        s.install(&definition("a19.diff.dev", "things", "Thing", object_schema(json!({})))).await;
        for path in [
            "/api/v1/namespaces/a19/configmaps",
            "/api/v1/namespaces/a19/secrets",
            "/api/v1/namespaces/a19/events",
            "/apis/events.k8s.io/v1/namespaces/a19/events",
            "/api/v1/namespaces",
            "/api/v1/nodes",
            "/api/v1/namespaces/a19/pods",
            "/apis/coordination.k8s.io/v1/namespaces/a19/leases",
            "/apis/apps/v1/namespaces/a19/deployments",
            "/apis/rbac.authorization.k8s.io/v1/clusterroles",
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            "/apis/a19.diff.dev/v1/namespaces/a19/things",
        ] {
            for bookmarks in ["", "&allowWatchBookmarks=true"] {
                let answer = s
                    .request(Method::GET, &format!("{path}?watch=true&resourceVersion=1&timeoutSeconds=5{bookmarks}"))
                    .quietly()
                    .send()
                    .await;
                // A status of its own or the one event of a stream: clients know both.
                let status =
                    if answer.body["type"] == "ERROR" { answer.body["object"].clone() } else { answer.body.clone() };
                assert_eq!(
                    (status["code"].clone(), status["reason"].clone()),
                    (json!(410), json!("Expired")),
                    "{} {path}: {:#}",
                    s.server.name,
                    answer.body
                );
                let kind = answer.body["type"].clone();
                let status = s.words.normal(&status);
                s.note(path, json!([answer.code, kind, status["reason"], status["code"]]));
            }
            let far = "999999999";
            let list = s.request(Method::GET, &format!("{path}?resourceVersion={far}")).quietly().send().await;
            let cause = list.body["details"]["causes"][0].clone();
            s.note("list in the future", json!([path, list.code, list.body["reason"], cause]));
        }
        let path = "/api/v1/namespaces/a19/configmaps";
        for name in ["a", "b", "c"] {
            s.post(path, &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}))
                .await
                .expect(201);
        }
        let mut events = s.watch(&format!("{path}?watch=true&resourceVersion=0")).await;
        s.events("from zero", &mut events, 3).await;
    })
    .await;
}

/// kubernetes/kubernetes#97423: which patch a custom resource takes, and what the refusal says.
#[tokio::test]
async fn a20_strategic_merge_is_for_built_in_kinds() {
    compare(async |s: &mut Session| {
        s.namespace("a20").await;
        s.install(&definition("a20.diff.dev", "things", "Thing", object_schema(json!({"a": {"type": "string"}}))))
            .await;
        let path = "/apis/a20.diff.dev/v1/namespaces/a20/things";
        s.post(path, &json!({"apiVersion": "a20.diff.dev/v1", "kind": "Thing", "metadata": {"name": "t"}}))
            .await
            .expect(201);
        let refused = s.patch(&format!("{path}/t"), "strategic", &json!({"spec": {"a": "x"}})).await;
        assert_eq!(refused.code, 415, "{:#}", refused.body);
        for word in ["json-patch+json", "merge-patch+json", "apply-patch+yaml"] {
            assert!(refused.body["message"].as_str().unwrap_or_default().contains(word), "{:#}", refused.body);
        }
        s.patch(&format!("{path}/t"), "merge", &json!({"spec": {"a": "x"}})).await.expect(200);
        s.patch(&format!("{path}/t"), "json", &json!([{"op": "replace", "path": "/spec/a", "value": "y"}]))
            .await
            .expect(200);
        s.applying(
            &format!("{path}/t"),
            "me",
            true,
            &json!({"apiVersion": "a20.diff.dev/v1", "kind": "Thing", "spec": {"a": "z"}}),
        )
        .send()
        .await
        .expect(200);
        s.request(Method::PATCH, &format!("{path}/t?fieldValidation=Strict"))
            .text("application/merge-patch+json", "{\"spec\": {\"mispelt\": 1}}")
            .own(Own::Details)
            .send()
            .await
            .expect(422);
        let secrets = "/api/v1/namespaces/a20/secrets";
        s.post(secrets, &json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}})).await.expect(201);
        s.patch(&format!("{secrets}/s"), "strategic", &json!({"data": {"a": "eA=="}})).await.expect(200);
    })
    .await;
}
