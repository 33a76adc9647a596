//! Requests that are too large, too deep or too odd get the status that Kubernetes gives them, and harm nobody.

use crate::definitions::{definition, object_schema};
use crate::objects::{map, maps};
use crate::session::{Own, Session, compare};
use reqwest::Method;
use serde_json::{Map, Value, json};

/// So many keys, each with a small value.
fn keys(count: usize) -> Value {
    let all: Map<String, Value> = (0..count).map(|n| (format!("k{n}"), json!(""))).collect();
    all.into()
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_with_very_many_keys() {
    compare(async |s: &mut Session| {
        s.namespace("hostile-keys").await;
        let mut open = object_schema(json!({}));
        open["properties"]["spec"] = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        s.install(&definition("keys.diff.dev", "things", "Thing", open)).await;
        let things = "/apis/keys.diff.dev/v1/namespaces/hostile-keys/things";
        let maps = maps("hostile-keys");
        for (name, count) in [("few", 2_000), ("many", 30_000), ("million", 1_000_000)] {
            let code = s.request(Method::POST, &maps).json(&map(name, keys(count))).quietly().send().await;
            s.note("a map", json!([count, code.code, code.body["reason"]]));
            let thing = json!({"apiVersion": "keys.diff.dev/v1", "kind": "Thing", "metadata": {"name": name}, "spec": keys(count)});
            let code = s.request(Method::POST, things).json(&thing).quietly().send().await;
            s.note("a thing", json!([count, code.code, code.body["reason"]]));
            let code = s.applying(&format!("{things}/applied-{name}"), "me", false, &thing_without_name(&thing)).quietly().send().await;
            s.note("an applied thing", json!([count, code.code, code.body["reason"]]));
            let labels = json!({"metadata": {"labels": keys(count)}});
            let code = s.patching(&format!("{maps}/few"), "merge", &labels).quietly().send().await;
            s.note("labels", json!([count, code.code, code.body["reason"]]));
        }
        let list: Vec<Value> = vec![json!(1); 1_000_000];
        let thing = json!({"apiVersion": "keys.diff.dev/v1", "kind": "Thing", "metadata": {"name": "list"}, "spec": {"list": list}});
        let code = s.request(Method::POST, things).json(&thing).quietly().send().await;
        s.note("a long list", json!([code.code, code.body["reason"]]));
        let thing = json!({"apiVersion": "keys.diff.dev/v1", "kind": "Thing", "metadata": {"name": "value"}, "spec": {"text": "x".repeat(2 << 20)}});
        let code = s.request(Method::POST, things).json(&thing).quietly().send().await;
        s.note("a large value", json!([code.code, code.body["reason"]]));
        s.get("/healthz").await;
    })
    .await;
}

fn thing_without_name(thing: &Value) -> Value {
    let mut thing = thing.clone();
    thing.as_object_mut().expect("an object").remove("metadata");
    thing
}

#[tokio::test(flavor = "multi_thread")]
async fn deep_and_twisted_bodies() {
    compare(async |s: &mut Session| {
        s.namespace("hostile-deep").await;
        let maps = maps("hostile-deep");
        let mut open = object_schema(json!({}));
        open["properties"]["spec"] = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        s.install(&definition("deep.diff.dev", "things", "Thing", open)).await;
        let things = "/apis/deep.diff.dev/v1/namespaces/hostile-deep/things";
        let deep = |depth: usize| format!("{{\"apiVersion\": \"deep.diff.dev/v1\", \"kind\": \"Thing\", \"metadata\": {{\"name\": \"d{depth}\"}}, \"spec\": {{\"a\": {}{}}}}}", "[".repeat(depth), "]".repeat(depth));
        // Up to a hundred levels; upstream goes on to ten thousand.
        for depth in [80, 20_000, 1_000_000] {
            let answer = s.request(Method::POST, things).text("application/json", &deep(depth)).quietly().send().await;
            s.note("deep", json!([depth, answer.code, answer.body["reason"]]));
        }
        // Aliases that grow a thousand million times.
        let mut bomb = String::from("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: bomb\ndata:\n  a: &a x\nb: &b0 [x,x,x,x,x,x,x,x,x,x]\n");
        for n in 1..10 {
            let before = format!("*b{}", n - 1);
            bomb.push_str(&format!("b{n}: &b{n} [{}]\n", vec![before; 10].join(",")));
        }
        let answer = s.request(Method::POST, &maps).text("application/yaml", &bomb).quietly().send().await;
        s.note("aliases", json!([answer.code, answer.body["reason"]]));
        for body in ["", "null", "[]", "1", "\"x\"", "{", "{\"apiVersion\": \"v1\", \"kind\": \"ConfigMap\", \"metadata\": 1}", "{\"apiVersion\": \"v1\", \"kind\": \"ConfigMap\", \"metadata\": {\"name\": \"n\"}}{}", "\u{0}"] {
            let answer = s.request(Method::POST, &maps).text("application/json", body).quietly().send().await;
            s.note("odd", json!([body, answer.code, answer.body["reason"]]));
        }
        s.get("/healthz").await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn huge_patches() {
    compare(async |s: &mut Session| {
        s.namespace("hostile-patches").await;
        let path = format!("{}/a", maps("hostile-patches"));
        s.post(&maps("hostile-patches"), &map("a", json!({"a": "x".repeat(10_000)}))).await.expect(201);
        let many = |count: usize| Value::from(vec![json!({"op": "add", "path": "/data/b", "value": "y"}); count]);
        for count in [10_000, 10_001, 50_000] {
            s.patch(&path, "json", &many(count)).await;
        }
        // Each copies all that is there: two to the power of so many.
        for count in [5, 30, 200] {
            let bomb = Value::from(vec![json!({"op": "copy", "from": "/data", "path": "/data/a"}); count]);
            let answer = s.patching(&path, "json", &bomb).quietly().send().await;
            s.note("copies", json!([count, answer.code, answer.body["reason"]]));
        }
        let bomb: Vec<Value> = (0..40).map(|n| json!({"op": "copy", "from": "/metadata/annotations", "path": format!("/metadata/annotations/x{n}")})).collect();
        s.patch(&path, "merge", &json!({"metadata": {"annotations": {"a": "b"}}})).await;
        let answer = s.patching(&path, "json", &bomb.into()).quietly().send().await;
        s.note("copies within", json!([answer.code, answer.body["reason"]]));
        for kind in ["merge", "strategic", "json"] {
            let body = if kind == "json" { json!([{"op": "add", "path": "/data/c", "value": "x".repeat(4 << 20)}]) } else { json!({"data": {"c": "x".repeat(4 << 20)}}) };
            s.patching(&path, kind, &body).own(Own::Message).send().await;
        }
        s.applying(&path, "me", false, &json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"c": "x".repeat(4 << 20)}})).own(Own::Message).send().await;
        for (kind, body) in [("json", "{}"), ("json", "[{\"op\": \"dance\", \"path\": \"/data\"}]"), ("json", "[{\"op\": \"add\"}]"), ("json", "[1]"), ("json", "x"), ("json", "[{\"op\": \"move\", \"from\": \"/metadata\", \"path\": \"/metadata/labels\"}]"),
            ("json", "[{\"op\": \"add\", \"path\": \"/data/~2\", \"value\": \"x\"}]"), ("json", "[{\"op\": \"remove\", \"path\": \"\"}]"), ("json", "[{\"op\": \"add\", \"path\": \"/metadata/finalizers/18446744073709551616\", \"value\": \"x\"}]"), ("json", "[{\"op\": \"replace\", \"path\": \"/metadata/name\", \"value\": \"b\"}]"),
            ("merge", "[]"), ("merge", "1"), ("merge", "x"), ("merge", "{\"metadata\": null}"), ("merge", "{\"kind\": \"Secret\"}"), ("merge", "{\"apiVersion\": null}"),
            ("strategic", "[]"), ("strategic", "{\"$patch\": \"dance\"}"), ("strategic", "{\"$patch\": \"delete\"}"), ("strategic", "{\"metadata\": {\"$retainKeys\": [\"name\"]}}"), ("strategic", "{\"data\": {\"$patch\": \"replace\", \"z\": \"1\"}}"), ("strategic", "{\"metadata\": {\"$deleteFromPrimitiveList/finalizers\": 1}}")] {
            let content = match kind { "json" => "application/json-patch+json", "merge" => "application/merge-patch+json", _ => "application/strategic-merge-patch+json" };
            let answer = s.request(Method::PATCH, &path).text(content, body).quietly().send().await;
            s.note("odd", json!([kind, body, answer.code, answer.body["reason"]]));
        }
        s.get("/healthz").await;
    })
    .await;
}

fn encode(text: &str) -> String {
    text.bytes()
        .map(|byte| if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_selectors() {
    compare(async |s: &mut Session| {
        s.namespace("hostile-selectors").await;
        let path = maps("hostile-selectors");
        s.post(&path, &map("a", json!({}))).await.expect(201);
        let long_set = format!("a in ({})", (0..5_000).map(|n| format!("v{n}")).collect::<Vec<_>>().join(","));
        let many = (0..2_000).map(|n| format!("k{n}!=v")).collect::<Vec<_>>().join(",");
        let brackets = "(".repeat(20_000);
        let bangs = "!".repeat(20_000);
        let long_key = "k".repeat(20_000);
        for (what, selector) in [
            ("a long set", long_set.as_str()),
            ("many", &many),
            ("brackets", &brackets),
            ("bangs", &bangs),
            ("a long key", &long_key),
            ("nul", "a=\u{0}"),
            ("unicode", "ä=ö"),
            ("emoji", "a in (😀)"),
            ("newline", "a=b\n,c"),
            ("tabs", "a\tin\t(b)"),
            ("greater", "a>99999999999999999999"),
            ("negative", "a>-1"),
            ("double", "a===b"),
            ("not", "a=!b"),
            ("commas", ",,,,"),
            ("not in", "a not in (b)"),
            ("in", "in in (in)"),
            ("notin", "notin"),
            ("twice", "a=b,a=c"),
            ("empty value", "a="),
            ("empty in set", "a in (,)"),
            ("space in set", "a in ( b , c )"),
        ] {
            for verb in ["list", "watch", "delete"] {
                let query = format!("{path}?labelSelector={}", encode(selector));
                let request = match verb {
                    "list" => s.request(Method::GET, &query),
                    "watch" => {
                        s.request(Method::GET, &format!("{query}&watch=true&timeoutSeconds=1&resourceVersion=0"))
                    }
                    _ => s.request(Method::DELETE, &format!("{query}&dryRun=All")),
                };
                let answer = request.quietly().send().await;
                let count = answer.body["items"].as_array().map(Vec::len);
                s.note("labels", json!([what, verb, answer.code, answer.body["reason"], count]));
            }
        }
        for (what, selector) in [
            ("backslash", "metadata.name=a\\"),
            ("escaped", "metadata.name=\\=\\,\\\\"),
            ("unknown escape", "metadata.name=a\\b"),
            ("twice", "metadata.name=a,metadata.name=b"),
            ("chain", "metadata.name=a=b"),
            ("nul", "metadata.name=\u{0}"),
            ("dots", "....=a"),
            ("long", &format!("metadata.name={long_key}")),
            ("double", "metadata.name==a"),
            ("bang", "!metadata.name"),
            ("set", "metadata.name in (a)"),
            ("spaces", " metadata.name = a "),
            ("commas", ",,"),
        ] {
            let answer =
                s.request(Method::GET, &format!("{path}?fieldSelector={}", encode(selector))).quietly().send().await;
            let count = answer.body["items"].as_array().map(Vec::len);
            s.note("fields", json!([what, answer.code, answer.body["reason"], count]));
        }
        for query in [
            "limit=-1",
            "limit=x",
            "limit=99999999999999999999",
            "limit=0",
            "continue=%00",
            "continue=e30",
            "resourceVersion=-1",
            "resourceVersion=99999999999999999999",
            "resourceVersion=0x1",
            "timeoutSeconds=-1",
            "watch=maybe",
            "watch=1&watch=0",
            "labelSelector=a&labelSelector=b",
            "labelSelector=%ZZ",
            "%ZZ=1",
            "dryRun=x",
            "resourceVersionMatch=x",
            "resourceVersionMatch=Exact",
            "resourceVersionMatch=NotOlderThan&resourceVersion=0&continue=x",
        ] {
            let answer = s.request(Method::GET, &format!("{path}?timeoutSeconds=2&{query}")).quietly().send().await;
            let count = answer.body["items"].as_array().map(Vec::len);
            s.note("query", json!([query, answer.code, answer.body["reason"], count]));
        }
        s.get("/healthz").await;
    })
    .await;
}
