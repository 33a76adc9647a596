//! Server-side apply: ownership, conflicts, lists, removal.

use crate::definitions::{definition, object_schema};
use crate::objects::{map, maps};
use crate::session::{Own, Session, compare};
use reqwest::Method;
use serde_json::{Value, json};

fn configured(data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "data": data})
}

#[tokio::test]
async fn ownership_comes_and_goes() {
    compare(async |s: &mut Session| {
        s.namespace("apply-own").await;
        let path = maps("apply-own");
        let at = format!("{path}/a");
        s.apply(&at, "one", &configured(json!({"a": "1", "b": "1"}))).await;
        s.apply(&at, "one", &configured(json!({"a": "1", "b": "1"}))).await;
        s.apply(&at, "two", &configured(json!({"b": "1", "c": "2"}))).await;
        s.apply(&at, "two", &configured(json!({"a": "2", "b": "9"}))).await;
        s.applying(&at, "two", true, &configured(json!({"a": "2", "c": "2"}))).send().await;
        s.apply(&at, "one", &configured(json!({"b": "1"}))).await;
        s.apply(&at, "one", &json!({"apiVersion": "v1", "kind": "ConfigMap"})).await;
        s.patch(&at, "merge", &json!({"data": {"c": "taken"}})).await;
        s.apply(&at, "two", &configured(json!({"c": "2"}))).await;
        s.applying(&at, "two", true, &configured(json!({"c": "2"}))).send().await;
        s.apply(&at, "two", &configured(json!({}))).await;
        s.get(&at).await;
    })
    .await;
}

#[tokio::test]
async fn before_the_first_apply() {
    compare(async |s: &mut Session| {
        s.namespace("apply-first").await;
        let path = maps("apply-first");
        s.post(&format!("{path}?fieldManager=creator"), &map("a", json!({"a": "1"}))).await;
        s.apply(&format!("{path}/a"), "one", &configured(json!({"a": "1"}))).await;
        s.apply(&format!("{path}/a"), "one", &configured(json!({"b": "1"}))).await;
        s.post(&path, &map("b", json!({"a": "1"}))).await;
        s.patch(&format!("{path}/b"), "merge", &json!({"metadata": {"managedFields": [{}]}})).await;
        s.apply(&format!("{path}/b"), "one", &configured(json!({"a": "2"}))).await;
        s.applying(&format!("{path}/b"), "one", true, &configured(json!({"a": "2"}))).send().await;
        s.patch(&format!("{path}/b"), "json", &json!([{"op": "replace", "path": "/metadata/managedFields", "value": [{}]}])).await;
        s.patch(&format!("{path}/b"), "merge", &json!({"data": {"q": "r"}})).await;
        // kubectl's client-side apply, then server-side.
        let annotated = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "annotations": {
            "kubectl.kubernetes.io/last-applied-configuration": "{\"apiVersion\":\"v1\",\"data\":{\"k\":\"1\"},\"kind\":\"ConfigMap\",\"metadata\":{\"annotations\":{},\"name\":\"c\",\"namespace\":\"apply-first\"}}\n"}},
            "data": {"k": "1"}});
        s.post(&format!("{path}?fieldManager=kubectl-client-side-apply"), &annotated).await;
        s.apply(&format!("{path}/c"), "kubectl", &configured(json!({"k": "2"}))).await;
        s.apply(&format!("{path}/c"), "kubectl", &configured(json!({"k": "2", "n": "3"}))).await;
    })
    .await;
}

#[tokio::test]
async fn what_is_refused() {
    compare(async |s: &mut Session| {
        s.namespace("apply-refused").await;
        let path = maps("apply-refused");
        let at = format!("{path}/a");
        let body = configured(json!({"a": "1"})).to_string();
        let patch = |s: &mut Session, query: &str, body: &str| {
            let _ = s;
            (format!("{at}{query}"), body.to_owned())
        };
        for (query, body) in [
            ("", body.as_str()),
            ("?fieldManager=", body.as_str()),
            ("?fieldManager=one&force=maybe", body.as_str()),
            ("?fieldManager=one", "{\"kind\": \"ConfigMap\"}"),
            ("?fieldManager=one", "{\"apiVersion\": \"v1\"}"),
            ("?fieldManager=one", "{\"apiVersion\": \"v1\", \"kind\": \"Secret\"}"),
            ("?fieldManager=one", "{\"apiVersion\": \"v9\", \"kind\": \"ConfigMap\"}"),
            ("?fieldManager=one", "{\"apiVersion\": \"v1\", \"kind\": \"ConfigMap\", \"metadata\": {\"name\": \"b\"}}"),
            ("?fieldManager=one", "{\"apiVersion\": \"v1\", \"kind\": \"ConfigMap\", \"metadata\": {\"name\": \"a\", \"namespace\": \"default\"}}"),
            ("?fieldManager=one", "{\"apiVersion\": \"v1\", \"kind\": \"ConfigMap\", \"metadata\": {\"name\": \"a\", \"uid\": \"x\"}}"),
            ("?fieldManager=one", "{\"apiVersion\": \"v1\", \"kind\": \"ConfigMap\", \"metadata\": {\"name\": \"a\", \"resourceVersion\": \"1\"}}"),
            ("?fieldManager=one", "{\"apiVersion\": \"v1\", \"kind\": \"ConfigMap\", \"metadata\": {\"name\": \"a\", \"managedFields\": [{\"manager\": \"x\", \"operation\": \"Apply\", \"apiVersion\": \"v1\", \"fieldsType\": \"FieldsV1\", \"fieldsV1\": {}}]}}"),
            ("?fieldManager=one", "{\"apiVersion\": \"v1\", \"kind\": \"ConfigMap\", \"metadata\": {\"name\": \"a\"}, \"data\": {\"a\": 1}}"),
            ("?fieldManager=one", "{\"apiVersion\": \"v1\", \"kind\": \"ConfigMap\", \"data\": {\"a\": \"nameless\"}}"),
            ("?fieldManager=one", "[]"),
            ("?fieldManager=one", "x: ["),
        ] {
            let (path, body) = patch(s, query, body);
            s.request(Method::PATCH, &path).text("application/apply-patch+yaml", &body).own(Own::Message).send().await;
        }
        s.apply(&at, "one", &configured(json!({"a": "1"}))).await;
        let yaml = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n  a: \"1\"\n  y: \"yes\"\n";
        s.request(Method::PATCH, &format!("{at}?fieldManager=one")).text("application/apply-patch+yaml", yaml).send().await;
        s.apply("/api/v1/namespaces/nowhere/configmaps/a", "one", &configured(json!({}))).await;
        s.apply(&format!("{path}/Bad_Name"), "one", &configured(json!({}))).await;
    })
    .await;
}

fn lists() -> Value {
    definition(
        "apply.diff.dev",
        "lists",
        "List1",
        object_schema(json!({
            "set": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
            "atomic": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "atomic"},
            "plain": {"type": "array", "items": {"type": "string"}},
            "keyed": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": {
                "type": "object", "required": ["name"], "properties": {
                    "name": {"type": "string"}, "n": {"type": "integer"}, "in": {"type": "object", "properties": {"x": {"type": "string"}}}}}},
            "two": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["port", "protocol"], "items": {
                "type": "object", "required": ["port"], "properties": {
                    "port": {"type": "integer"}, "protocol": {"type": "string", "default": "TCP"}, "note": {"type": "string"}}}},
            "map": {"type": "object", "additionalProperties": {"type": "string"}},
            "whole": {"type": "object", "x-kubernetes-map-type": "atomic", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}},
            "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            "dflt": {"type": "string", "default": "d"},
            "nested": {"type": "object", "properties": {"deep": {"type": "object", "properties": {"er": {"type": "string"}}}}}})),
    )
}

#[tokio::test]
async fn lists_and_maps_of_every_kind() {
    compare(async |s: &mut Session| {
        s.namespace("apply-lists").await;
        s.install(&lists()).await;
        let at = "/apis/apply.diff.dev/v1/namespaces/apply-lists/lists/a";
        let spec = |spec: Value| json!({"apiVersion": "apply.diff.dev/v1", "kind": "List1", "spec": spec});
        s.apply(at, "one", &spec(json!({
            "set": ["a", "b"], "atomic": ["x"], "plain": ["p"], "keyed": [{"name": "k1", "n": 1}, {"name": "k2", "n": 2}],
            "two": [{"port": 80}, {"port": 80, "protocol": "UDP"}], "map": {"m": "1"}, "whole": {"a": "1"},
            "open": {"any": {"thing": [1, {"x": "y"}]}}, "nested": {"deep": {"er": "1"}}}))).await;
        s.apply(at, "two", &spec(json!({"set": ["b", "c"], "keyed": [{"name": "k2", "in": {"x": "1"}}, {"name": "k3", "n": 3}], "map": {"n": "2"}, "open": {"other": 1}}))).await;
        for contested in [
            json!({"atomic": ["y"]}), json!({"plain": ["q"]}), json!({"whole": {"b": "1"}}), json!({"keyed": [{"name": "k1", "n": 9}]}),
            json!({"map": {"m": "2"}}), json!({"open": {"any": 1}}), json!({"two": [{"port": 80, "note": "mine"}]}), json!({"nested": {"deep": {"er": "2"}}}),
        ] {
            s.apply(at, "three", &spec(contested)).await;
        }
        s.apply(at, "one", &spec(json!({"set": ["b"], "keyed": [{"name": "k2"}], "two": [{"port": 80, "protocol": "UDP"}]}))).await;
        s.apply(at, "two", &spec(json!({}))).await;
        s.apply(at, "one", &spec(json!({"keyed": [{"name": "k9"}, {"name": "k2", "n": 1}, {"name": "k8"}]}))).await;
        s.apply(at, "two", &spec(json!({"keyed": [{"name": "k7"}, {"name": "k8"}]}))).await;
        s.apply(at, "one", &spec(json!({"keyed": [{"name": "k2"}, {"name": "k9"}, {"name": "k8"}]}))).await;
        s.apply(at, "bad", &spec(json!({"keyed": [{"n": 1}]}))).await;
        s.applying(at, "bad", false, &spec(json!({"keyed": [{"name": "x"}, {"name": "x"}]}))).own(Own::Message).send().await;
        s.applying(at, "bad", false, &spec(json!({"set": ["x", "x"]}))).own(Own::Message).send().await;
        s.applying(at, "bad", false, &spec(json!({"keyed": "x"}))).own(Own::Message).send().await;
        s.apply(at, "null", &spec(json!({"set": null, "dflt": null, "map": {}}))).await;
        s.get(at).await;
    })
    .await;
}

#[tokio::test]
async fn status_is_applied_apart() {
    compare(async |s: &mut Session| {
        s.namespace("apply-status").await;
        let mut things = definition("status.diff.dev", "things", "Thing", json!({"type": "object", "properties": {
            "spec": {"type": "object", "properties": {"a": {"type": "string"}}},
            "status": {"type": "object", "properties": {"phase": {"type": "string"}, "conditions": {"type": "array", "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"], "items": {"type": "object", "required": ["type"], "properties": {"type": {"type": "string"}, "status": {"type": "string"}}}}}}}}));
        things["spec"]["versions"][0]["subresources"] = json!({"status": {}});
        s.install(&things).await;
        let at = "/apis/status.diff.dev/v1/namespaces/apply-status/things/a";
        let body = |spec: Value, status: Value| json!({"apiVersion": "status.diff.dev/v1", "kind": "Thing", "spec": spec, "status": status});
        s.apply(&format!("{at}/status"), "one", &body(json!({}), json!({"phase": "x"}))).await;
        s.apply(at, "one", &body(json!({"a": "1"}), json!({"phase": "dropped"}))).await;
        s.apply(&format!("{at}/status"), "one", &body(json!({"a": "no"}), json!({"phase": "Ready", "conditions": [{"type": "A", "status": "True"}]}))).await;
        s.apply(&format!("{at}/status"), "two", &body(json!({}), json!({"conditions": [{"type": "B", "status": "True"}]}))).await;
        s.apply(&format!("{at}/status"), "two", &body(json!({}), json!({"phase": "Other"}))).await;
        s.apply(&format!("{at}/status"), "two", &body(json!({}), json!({}))).await;
        s.patch(&format!("{at}/status"), "merge", &json!({"status": {"phase": "Patched"}})).await;
        s.apply(at, "one", &body(json!({}), json!({}))).await;
        s.get(at).await;
    })
    .await;
}

#[tokio::test]
async fn a_deployment() {
    compare(async |s: &mut Session| {
        s.namespace("apply-deployment").await;
        let at = "/apis/apps/v1/namespaces/apply-deployment/deployments/web";
        let body = |containers: Value, replicas: Option<i64>| {
            let mut spec = json!({"selector": {"matchLabels": {"app": "web"}}, "template": {
                "metadata": {"labels": {"app": "web"}}, "spec": {"containers": containers}}});
            if let Some(replicas) = replicas {
                spec["replicas"] = json!(replicas);
            }
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"labels": {"l": "1"}}, "spec": spec})
        };
        s.apply(at, "one", &body(json!([{"name": "a", "image": "a:1", "ports": [{"containerPort": 80}]}]), Some(3))).await;
        s.apply(at, "two", &body(json!([{"name": "b", "image": "b:1"}]), None)).await;
        s.patch(&format!("{at}/scale"), "merge", &json!({"spec": {"replicas": 5}})).await;
        s.apply(at, "one", &body(json!([{"name": "a", "image": "a:1", "ports": [{"containerPort": 80}]}]), Some(3))).await;
        s.apply(at, "one", &body(json!([{"name": "a", "image": "a:2", "ports": [{"containerPort": 80}, {"containerPort": 80, "protocol": "UDP"}]}]), None)).await;
        s.apply(at, "two", &body(json!([]), None)).await;
        s.get(at).await;
    })
    .await;
}

#[tokio::test]
async fn a_secret_with_string_data() {
    compare(async |s: &mut Session| {
        s.namespace("apply-secret").await;
        let at = "/api/v1/namespaces/apply-secret/secrets/a";
        let body = json!({"apiVersion": "v1", "kind": "Secret", "stringData": {"a": "text"}});
        s.apply(at, "one", &body).await;
        s.apply(at, "one", &body).await;
        s.apply(at, "two", &json!({"apiVersion": "v1", "kind": "Secret", "data": {"a": "b3RoZXI="}})).await;
        s.apply(at, "one", &json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"labels": {"x": "y"}, "annotations": {"p": "q"}}})).await;
    })
    .await;
}
