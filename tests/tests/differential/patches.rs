//! The patch types: what each does, and what each refuses.

use crate::definitions::{definition, object_schema};
use crate::objects::{map, maps};
use crate::session::{Own, Session, compare};
use reqwest::Method;
use serde_json::json;

#[tokio::test]
async fn on_a_built_in_kind() {
    compare(async |s: &mut Session| {
        s.namespace("patch-builtin").await;
        let path = maps("patch-builtin");
        let at = format!("{path}/a");
        s.post(&path, &map("a", json!({"k": "v", "l": "m"}))).await.expect(201);
        s.patch(&at, "json", &json!([{"op": "add", "path": "/data/new", "value": "1"}, {"op": "remove", "path": "/data/l"}])).await;
        s.patch(&at, "json", &json!([{"op": "test", "path": "/data/k", "value": "v"}, {"op": "replace", "path": "/data/k", "value": "w"}])).await;
        for refused in [
            json!([{"op": "test", "path": "/data/k", "value": "other"}]),
            json!([{"op": "remove", "path": "/data/none"}]),
            json!([{"op": "replace", "path": "/data/none", "value": "x"}]),
            json!([{"op": "add", "path": "/none/deeper", "value": "x"}]),
            json!([{"op": "move", "from": "/data/none", "path": "/data/x"}]),
        ] {
            s.patching(&at, "json", &refused).own(Own::Message).send().await;
        }
        for refused in ["{}", "[{}]", "[{\"op\": \"nonsense\", \"path\": \"/x\"}]", "{", "\"x\""] {
            s.request(Method::PATCH, &at).text("application/json-patch+json", refused).own(Own::Details).send().await;
        }
        s.patch(&at, "json", &json!([])).await;
        s.patch(&at, "merge", &json!({"data": {"k": null, "z": "9"}})).await;
        s.patch(&at, "merge", &json!({})).await;
        s.patch(&at, "merge", &json!({"data": null})).await;
        s.patch(&at, "strategic", &json!({"data": {"s": "1"}, "metadata": {"labels": {"a": "b"}}})).await;
        s.patch(&at, "strategic", &json!({"data": {"$patch": "replace", "only": "1"}})).await;
        s.patch(&at, "strategic", &json!({"metadata": {"finalizers": ["a.b/c"]}})).await;
        s.patch(&at, "strategic", &json!({"metadata": {"finalizers": ["a.b/d"]}})).await;
        s.patch(&at, "strategic", &json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a.b/c", "a.b/d"]}})).await;
        for refused in ["[]", "3", "{", ""] {
            s.request(Method::PATCH, &at).text("application/merge-patch+json", refused).own(Own::Details).send().await;
            s.request(Method::PATCH, &at).text("application/strategic-merge-patch+json", refused).own(Own::Details).send().await;
        }
        s.patch(&format!("{path}/none"), "merge", &json!({"data": {}})).await;
        s.patch(&format!("{path}/none"), "json", &json!([])).await;
        s.request(Method::PATCH, &at).text("application/json", "{}").send().await;
        s.request(Method::PATCH, &at).text("text/plain", "{}").send().await;
        s.patch(&format!("{at}?force=true"), "merge", &json!({"data": {"x": "y"}})).await;
        s.patch(&format!("{at}?fieldManager=somebody"), "merge", &json!({"data": {"x": "y"}})).await;
        s.patch(&format!("{at}?fieldManager={}", "x".repeat(129)), "merge", &json!({"data": {"x": "z"}})).await;
    })
    .await;
}

#[tokio::test]
async fn what_a_patch_may_not_change() {
    compare(async |s: &mut Session| {
        s.namespace("patch-identity").await;
        let path = maps("patch-identity");
        let at = format!("{path}/a");
        let made = s.post(&path, &map("a", json!({"k": "v"}))).await;
        let old = made.revision();
        for patch in [
            json!({"metadata": {"name": "b"}}),
            json!({"metadata": {"namespace": "default"}}),
            json!({"metadata": {"uid": "11111111-2222-3333-4444-555555555555"}}),
            json!({"kind": "Secret"}),
            json!({"apiVersion": "v2"}),
            json!({"metadata": null}),
            json!({"metadata": {"creationTimestamp": "2001-01-01T00:00:00Z"}}),
            json!({"metadata": {"generation": 12}}),
            json!({"metadata": {"deletionTimestamp": "2001-01-01T00:00:00Z"}}),
            json!({"metadata": {"managedFields": []}}),
            json!({"metadata": {"managedFields": [{}]}}),
            json!({"metadata": {"resourceVersion": "1"}}),
            json!({"metadata": {"resourceVersion": "no-number"}}),
        ] {
            let own = if patch.get("kind").or(patch.get("apiVersion")).is_some() { Own::Details } else { Own::Warnings };
            s.patching(&at, "merge", &patch).own(own).send().await;
        }
        s.patch(&at, "merge", &json!({"data": {"k": "w"}, "metadata": {"resourceVersion": old}})).await;
        s.patch(&at, "merge", &json!({"data": {"k": "x"}, "metadata": {"resourceVersion": old}})).await;
        s.patch(&at, "json", &json!([{"op": "remove", "path": "/metadata/resourceVersion"}, {"op": "add", "path": "/data/z", "value": "z"}])).await;
        s.patch(&at, "json", &json!([{"op": "replace", "path": "", "value": {"a": 1}}])).await;
        s.patching(&at, "json", &json!([{"op": "remove", "path": ""}])).own(Own::Message).send().await;
    })
    .await;
}

#[tokio::test]
async fn on_a_custom_resource() {
    compare(async |s: &mut Session| {
        s.namespace("patch-custom").await;
        s.install(&definition("patch.diff.dev", "things", "Thing", object_schema(json!({
            "n": {"type": "integer", "minimum": 0}, "list": {"type": "array", "items": {"type": "string"}},
            "map": {"type": "object", "additionalProperties": {"type": "string"}}})))).await;
        let path = "/apis/patch.diff.dev/v1/namespaces/patch-custom/things";
        let at = format!("{path}/a");
        s.post(path, &json!({"apiVersion": "patch.diff.dev/v1", "kind": "Thing", "metadata": {"name": "a"},
            "spec": {"n": 1, "list": ["x"], "map": {"k": "v"}}})).await.expect(201);
        s.patch(&at, "merge", &json!({"spec": {"n": 2, "map": {"k": null, "l": "w"}}})).await;
        s.patch(&at, "merge", &json!({"spec": {"n": -1}})).await;
        s.patch(&at, "merge", &json!({"spec": {"n": "two"}})).await;
        s.patch(&at, "merge", &json!({"spec": null})).await;
        s.patch(&at, "json", &json!([{"op": "add", "path": "/spec", "value": {"list": ["a"]}}, {"op": "add", "path": "/spec/list/-", "value": "b"}])).await;
        s.patch(&at, "json", &json!([{"op": "add", "path": "/spec/list/0", "value": "first"}, {"op": "copy", "from": "/spec/list/0", "path": "/spec/list/3"}])).await;
        s.patch(&at, "strategic", &json!({"spec": {"n": 3}})).await;
        s.request(Method::PATCH, &at).text("application/json", "{}").send().await;
        s.patch(&format!("{path}/none"), "merge", &json!({})).await;
        s.patch(&at, "merge", &json!({"kind": "Other"})).await;
        s.patching(&at, "merge", &json!({"apiVersion": "patch.diff.dev/v2"})).own(Own::Warnings).send().await;
    })
    .await;
}

#[tokio::test]
async fn strategic_merge_of_lists() {
    compare(async |s: &mut Session| {
        s.namespace("patch-strategic").await;
        let path = "/apis/apps/v1/namespaces/patch-strategic/deployments";
        let at = format!("{path}/web");
        s.post(path, &json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {
            "replicas": 2, "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [
                {"name": "a", "image": "a:1", "env": [{"name": "X", "value": "1"}], "ports": [{"containerPort": 80}]},
                {"name": "b", "image": "b:1"}]}}}})).await;
        for patch in [
            json!({"spec": {"template": {"spec": {"containers": [{"name": "a", "image": "a:2"}]}}}}),
            json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "c:1"}]}}}}),
            json!({"spec": {"template": {"spec": {"containers": [{"name": "a", "env": [{"name": "Y", "value": "2"}], "ports": [{"containerPort": 81}]}]}}}}),
            json!({"spec": {"template": {"spec": {"containers": [{"name": "b", "$patch": "delete"}]}}}}),
            json!({"spec": {"template": {"spec": {"$setElementOrder/containers": [{"name": "c"}, {"name": "a"}], "containers": [{"name": "c", "image": "c:2"}]}}}}),
            json!({"spec": {"template": {"spec": {"containers": [{"$patch": "replace"}, {"name": "only", "image": "o:1"}]}}}}),
            json!({"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}),
            json!({"spec": {"template": {"spec": {"tolerations": [{"key": "k", "operator": "Exists"}]}}}}),
            json!({"spec": {"replicas": null}}),
        ] {
            s.patch(&at, "strategic", &patch).await;
        }
        s.patching(&at, "strategic", &json!({"spec": {"template": {"spec": {"containers": [{"image": "nameless"}]}}}})).own(Own::Message).send().await;
    })
    .await;
}
