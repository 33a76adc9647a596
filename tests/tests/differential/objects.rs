//! Create, get and update: identity, optimistic locking, field validation, dry run.

use crate::definitions::{definition, object_schema};
use crate::session::{Own, Session, compare};
use reqwest::Method;
use serde_json::{Value, json};

pub fn map(name: &str, data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}

pub fn maps(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/configmaps")
}

#[tokio::test]
async fn a_config_map_from_birth_to_death() {
    compare(async |s: &mut Session| {
        s.namespace("objects-life").await;
        let path = maps("objects-life");
        s.get(&format!("{path}/a")).await;
        let made = s.post(&path, &map("a", json!({"k": "v"}))).await.expect(201);
        s.post(&path, &map("a", json!({"k": "v"}))).await;
        s.get(&format!("{path}/a")).await;
        let mut next = made.clone();
        next["data"]["k"] = json!("w");
        next["metadata"]["labels"] = json!({"l": "1"});
        let changed = s.put(&format!("{path}/a"), &next).await.expect(200);
        s.put(&format!("{path}/a"), &next).await;
        s.put(&format!("{path}/a"), &changed).await;
        let mut unconditional = changed.clone();
        unconditional["metadata"].as_object_mut().unwrap().remove("resourceVersion");
        unconditional["data"] = json!({"x": "y"});
        s.put(&format!("{path}/a"), &unconditional).await;
        s.delete(&format!("{path}/a")).await;
        s.get(&format!("{path}/a")).await;
        s.put(&format!("{path}/a"), &unconditional).await;
        s.delete(&format!("{path}/a")).await;
    })
    .await;
}

#[tokio::test]
async fn names() {
    compare(async |s: &mut Session| {
        s.namespace("objects-names").await;
        let path = maps("objects-names");
        let generated = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "gen-"}});
        s.post(&path, &generated).await;
        s.post(&path, &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}})).await;
        s.post(&path, &json!({"apiVersion": "v1", "kind": "ConfigMap"})).await;
        for name in ["Big", "under_score", "a/b", "-x", "x-", ".", "..", "a%b", &"x".repeat(254)] {
            s.post(&path, &map(name, json!({}))).await;
        }
        let mut elsewhere = map("elsewhere", json!({}));
        elsewhere["metadata"]["namespace"] = json!("default");
        s.post(&path, &elsewhere).await;
        s.post(&maps("nowhere"), &map("a", json!({}))).await;
        s.post("/api/v1/configmaps", &map("a", json!({}))).await;
        let made = s.post(&path, &map("a", json!({}))).await.expect(201);
        let mut renamed = made.clone();
        renamed["metadata"]["name"] = json!("b");
        s.put(&format!("{path}/a"), &renamed).await;
        renamed["metadata"].as_object_mut().unwrap().remove("name");
        s.put(&format!("{path}/a"), &renamed).await;
        let mut moved = made.clone();
        moved["metadata"]["namespace"] = json!("default");
        s.put(&format!("{path}/a"), &moved).await;
        let mut other = made.clone();
        other["metadata"]["uid"] = json!("11111111-2222-3333-4444-555555555555");
        s.put(&format!("{path}/a"), &other).await;
    })
    .await;
}

#[tokio::test]
async fn metadata_that_is_refused() {
    compare(async |s: &mut Session| {
        s.namespace("objects-meta").await;
        let path = maps("objects-meta");
        let cases = [
            json!({"labels": {"a b": "c"}}),
            json!({"labels": {"a": "c d"}}),
            json!({"labels": {"a": "-x"}}),
            json!({"labels": {"a/b/c": "x"}}),
            json!({"labels": {"/b": "x"}}),
            json!({"labels": {"A.b/c": "x"}}),
            json!({"labels": {"": "x"}}),
            json!({"annotations": {"a b": "c"}}),
            json!({"annotations": {"A/b": "fine"}}),
            json!({"annotations": {"big": "x".repeat(300_000)}}),
            json!({"finalizers": ["no-slash"]}),
            json!({"finalizers": ["a.b/c", "a.b/c"]}),
            json!({"finalizers": ["a b/c"]}),
            json!({"ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "o"}]}),
            json!({"ownerReferences": [{"apiVersion": "v1", "kind": "Event", "name": "o", "uid": "u"}]}),
            json!({"ownerReferences": [{"apiVersion": "", "kind": "", "name": "", "uid": ""}]}),
            json!({"ownerReferences": [
                {"apiVersion": "v1", "kind": "Secret", "name": "a", "uid": "u", "controller": true},
                {"apiVersion": "v1", "kind": "Secret", "name": "b", "uid": "v", "controller": true}]}),
            json!({"generateName": "Bad_"}),
            json!({"resourceVersion": "5"}),
            json!({"uid": "mine", "creationTimestamp": "2020-01-01T00:00:00Z", "generation": 7, "selfLink": "x"}),
            json!({"deletionTimestamp": "2020-01-01T00:00:00Z", "deletionGracePeriodSeconds": 5}),
            json!({"managedFields": [{"manager": "x"}]}),
            json!({"managedFields": [{"manager": "x", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {}}]}),
        ];
        for (index, mut metadata) in cases.into_iter().enumerate() {
            metadata["name"] = json!(format!("m{index}"));
            s.post(&path, &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})).await;
        }
        // Of the wrong type: what the decoder says is its own.
        for metadata in [json!({"labels": {"a": 1}}), json!({"finalizers": "x"}), json!({"labels": []}), json!("x")] {
            let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata});
            s.request(Method::POST, &path).json(&body).own(Own::Message).send().await;
        }
    })
    .await;
}

#[tokio::test]
async fn bodies_that_are_refused() {
    compare(async |s: &mut Session| {
        s.namespace("objects-bodies").await;
        let path = maps("objects-bodies");
        for body in ["", "{", "[]", "null", "3", "{}x", "{\"a\": 1}"] {
            s.request(Method::POST, &path).text("application/json", body).own(Own::Message).send().await;
        }
        for (version, kind) in [("v1", "Secret"), ("v2", "ConfigMap"), ("apps/v1", "Deployment")] {
            let other = json!({"apiVersion": version, "kind": kind, "metadata": {"name": "a"}});
            s.request(Method::POST, &path).json(&other).own(Own::Message).send().await;
        }
        s.post(&path, &json!({"kind": "ConfigMap", "metadata": {"name": "no-version"}})).await;
        s.post(&path, &json!({"apiVersion": "v1", "metadata": {"name": "no-kind"}})).await;
        s.post(&path, &json!({"metadata": {"name": "neither"}})).await;
        let yaml = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: yaml\ndata:\n  a: b\n";
        s.request(Method::POST, &path).text("application/yaml", yaml).send().await;
        s.request(Method::POST, &path).text("text/plain", "x").send().await;
        s.request(Method::POST, &path).text("application/merge-patch+json", "{}").send().await;
        s.request(Method::POST, &path).json(&map("number", json!({"a": 1}))).own(Own::Message).send().await;
        let huge = map("huge", json!({"a": "x".repeat(4 << 20)}));
        s.request(Method::POST, &path).json(&huge).own(Own::Message).send().await;
        s.post(&path, &map("big", json!({"a": "x".repeat(1 << 20), "b": "x".repeat(1 << 18)}))).await;
    })
    .await;
}

#[tokio::test]
async fn unknown_and_duplicate_fields() {
    compare(async |s: &mut Session| {
        s.namespace("objects-fields").await;
        s.install(&definition("fields.diff.dev", "things", "Thing", object_schema(json!({
            "a": {"type": "string"}, "in": {"type": "object", "properties": {"b": {"type": "integer"}}}})))).await;
        let things = "/apis/fields.diff.dev/v1/namespaces/objects-fields/things";
        let built_in = maps("objects-fields");
        for (index, validation) in ["", "Ignore", "Warn", "Strict", "Other"].into_iter().enumerate() {
            let query = if validation.is_empty() { String::new() } else { format!("?fieldValidation={validation}") };
            let body = format!(
                r#"{{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {{"name": "m{index}", "nope": 1}}, "data": {{"a": "1", "a": "2"}}, "extra": {{"x": 1}}}}"#
            );
            s.request(Method::POST, &format!("{built_in}{query}")).text("application/json", &body).send().await;
            let body = format!(
                r#"{{"apiVersion": "fields.diff.dev/v1", "kind": "Thing", "metadata": {{"name": "t{index}", "nope": 1}}, "spec": {{"a": "1", "a": "2", "in": {{"b": 1, "c": 2}}, "d": []}}, "extra": 1}}"#
            );
            s.request(Method::POST, &format!("{things}{query}")).text("application/json", &body).send().await;
            // A refused patch is told with the whole object in it.
            let own = if validation == "Strict" { Own::Details } else { Own::Warnings };
            s.patching(&format!("{things}/t0{query}"), "merge", &json!({"spec": {"unknown": index, "a": "3"}})).own(own).send().await;
            s.patching(&format!("{built_in}/m0{query}"), "merge", &json!({"unknown": index, "data": {"p": index.to_string()}})).own(own).send().await;
            s.apply(&format!("{things}/s{index}{query}"), "me", &json!({
                "apiVersion": "fields.diff.dev/v1", "kind": "Thing", "spec": {"a": "x", "zzz": 1}})).await;
            s.apply(&format!("{built_in}/s{index}{query}"), "me", &json!({
                "apiVersion": "v1", "kind": "ConfigMap", "zzz": 1, "data": {"a": "b"}})).await;
        }
    })
    .await;
}

#[tokio::test]
async fn dry_runs_change_nothing() {
    compare(async |s: &mut Session| {
        s.namespace("objects-dry").await;
        let path = maps("objects-dry");
        s.post(&format!("{path}?dryRun=All"), &map("a", json!({"k": "v"}))).await;
        s.get(&format!("{path}/a")).await;
        s.post(&format!("{path}?dryRun=Some"), &map("a", json!({}))).await;
        let made = s.post(&path, &map("a", json!({"k": "v"}))).await.expect(201);
        s.post(&format!("{path}?dryRun=All"), &map("a", json!({"k": "v"}))).await;
        let mut next = made.clone();
        next["data"]["k"] = json!("w");
        s.put(&format!("{path}/a?dryRun=All"), &next).await;
        s.patch(&format!("{path}/a?dryRun=All"), "merge", &json!({"data": {"z": "z"}})).await;
        s.applying(
            &format!("{path}/a?dryRun=All"),
            "me",
            true,
            &json!({
            "apiVersion": "v1", "kind": "ConfigMap", "data": {"k": "q"}}),
        )
        .send()
        .await;
        s.delete(&format!("{path}/a?dryRun=All")).await;
        s.get(&format!("{path}/a")).await;
        s.delete(&format!("{path}?dryRun=All")).await;
        s.get(&format!("{path}/a")).await;
    })
    .await;
}

#[tokio::test]
async fn a_custom_resource_from_birth_to_death() {
    compare(async |s: &mut Session| {
        s.namespace("objects-custom").await;
        let mut widgets = definition(
            "life.diff.dev",
            "widgets",
            "Widget",
            object_schema(json!({
            "size": {"type": "integer"}, "color": {"type": "string", "default": "red"}})),
        );
        widgets["spec"]["versions"][0]["subresources"] = json!({"status": {}});
        s.install(&widgets).await;
        let path = "/apis/life.diff.dev/v1/namespaces/objects-custom/widgets";
        let body = json!({"apiVersion": "life.diff.dev/v1", "kind": "Widget", "metadata": {"name": "a"},
            "spec": {"size": 1}, "status": {"phase": "ignored"}});
        let made = s.post(path, &body).await.expect(201);
        let mut next = made.clone();
        next["spec"]["size"] = json!(2);
        next["status"] = json!({"phase": "ignored"});
        let next = s.put(&format!("{path}/a"), &next).await.expect(200);
        let mut status = next.clone();
        status["status"] = json!({"phase": "Ready"});
        status["spec"]["size"] = json!(99);
        status["metadata"]["labels"] = json!({"not": "through-status"});
        s.put(&format!("{path}/a/status"), &status).await;
        s.get(&format!("{path}/a/status")).await;
        s.patch(&format!("{path}/a/status"), "merge", &json!({"status": {"phase": "Done"}, "spec": {"size": 5}})).await;
        s.patch(&format!("{path}/a"), "merge", &json!({"status": {"phase": "No"}, "metadata": {"labels": {"l": "1"}}}))
            .await;
        let mut unconditional = next.clone();
        unconditional["metadata"].as_object_mut().unwrap().remove("resourceVersion");
        s.put(&format!("{path}/a"), &unconditional).await;
        s.put(&format!("{path}/none"), &{
            let mut none = unconditional.clone();
            none["metadata"]["name"] = json!("none");
            none
        })
        .await;
        s.get(&format!("{path}/a/scale")).await;
        s.get(&format!("{path}/a/nonsense")).await;
        s.delete(&format!("{path}/a")).await;
        s.get(&format!("{path}/a")).await;
    })
    .await;
}

#[tokio::test]
async fn paths_and_methods_that_are_not_there() {
    compare(async |s: &mut Session| {
        s.namespace("objects-paths").await;
        for path in [
            "/api/v1/namespaces/objects-paths/nonsense",
            "/api/v1/namespaces/objects-paths/nonsense/x",
            "/api/v9/namespaces/objects-paths/configmaps",
            "/apis/nonsense.dev/v1/things",
            "/apis/nonsense.dev",
            "/apis/nonsense.dev/v1",
            "/apis/apps/v9",
            "/nonsense",
            "/api/v1/nodes/none",
            "/api/v1/namespaces/objects-paths/nodes/none",
        ] {
            s.get(path).await;
        }
        let path = maps("objects-paths");
        s.post(&format!("{path}/a"), &map("a", json!({}))).await;
        s.request(Method::PUT, &path).json(&map("a", json!({}))).send().await;
        s.patch(&path, "merge", &json!({})).await;
        s.request(Method::DELETE, "/api/v1/configmaps").send().await;
        s.request(Method::POST, "/version").send().await;
        s.request(Method::OPTIONS, &path).send().await;
        s.request(Method::HEAD, &format!("{path}/none")).send().await;
    })
    .await;
}

#[tokio::test]
async fn secrets_and_immutability() {
    compare(async |s: &mut Session| {
        s.namespace("objects-secrets").await;
        let path = "/api/v1/namespaces/objects-secrets/secrets";
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"},
            "stringData": {"text": "hello"}, "data": {"raw": "AAEC"}});
        let made = s.post(path, &secret).await.expect(201);
        s.patch(&format!("{path}/a"), "merge", &json!({"stringData": {"more": "x"}})).await;
        s.patch(&format!("{path}/a"), "merge", &json!({"type": "other"})).await;
        s.patch(&format!("{path}/a"), "merge", &json!({"immutable": true})).await;
        s.patch(&format!("{path}/a"), "merge", &json!({"data": {"x": "eA=="}})).await;
        s.patch(&format!("{path}/a"), "merge", &json!({"immutable": false})).await;
        s.patch(&format!("{path}/a"), "merge", &json!({"metadata": {"labels": {"still": "works"}}})).await;
        drop(made);
        let typed = |name: &str, kind: &str, data: Value| {
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": kind, "data": data})
        };
        let no_pem = typed("tls", "kubernetes.io/tls", json!({"tls.crt": "eA==", "tls.key": "eA=="}));
        s.request(Method::POST, path).json(&no_pem).quietly().send().await.expect(201);
        s.post(path, &typed("tls-bad", "kubernetes.io/tls", json!({"tls.crt": "eA=="}))).await;
        s.post(path, &typed("docker", "kubernetes.io/dockerconfigjson", json!({}))).await;
        s.post(path, &typed("basic", "kubernetes.io/basic-auth", json!({}))).await;
        s.post(path, &typed("cluster", "cluster.x-k8s.io/secret", json!({"value": "eA=="}))).await;
        s.post(path, &typed("bad-key", "Opaque", json!({"a b": "eA=="}))).await;
        s.request(Method::POST, path).json(&typed("no-base64", "Opaque", json!({"a": "%%"}))).own(Own::Message).send().await;
        s.post(&maps("objects-secrets"), &map("bad/key", json!({}))).await;
        let keys = map("keys", json!({"a b": "x", "../x": "y"}));
        s.request(Method::POST, &maps("objects-secrets")).json(&keys).own(Own::Details).send().await;
        let both = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "both"}, "data": {"a": "x"}, "binaryData": {"a": "eA=="}});
        s.post(&maps("objects-secrets"), &both).await;
    })
    .await;
}
