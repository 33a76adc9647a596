//! What is no object: discovery, OpenAPI, version, health.

use crate::definitions::{definition, object_schema};
use crate::servers::servers;
use crate::session::{Own, Session, compare};
use reqwest::Method;
use serde_json::{Value, json};

/// The groups and versions that the embedded server has; the real one has more.
const COMMON: &[&str] = &[
    "/api/v1",
    "/apis/apps/v1",
    "/apis/batch/v1",
    "/apis/coordination.k8s.io/v1",
    "/apis/rbac.authorization.k8s.io/v1",
    "/apis/apiextensions.k8s.io/v1",
    "/apis/events.k8s.io/v1",
    "/apis/policy/v1",
    "/apis/discovery.k8s.io/v1",
    "/apis/storage.k8s.io/v1",
    "/apis/networking.k8s.io/v1",
    "/apis/scheduling.k8s.io/v1",
    "/apis/certificates.k8s.io/v1",
    "/apis/admissionregistration.k8s.io/v1",
    "/apis/authentication.k8s.io/v1",
    "/apis/authorization.k8s.io/v1",
];

#[tokio::test]
async fn resources_as_the_real_one_lists_them() {
    let ours = servers().embedded.admin();
    let mut served: Vec<String> = Vec::new();
    for path in COMMON {
        let answer = ours.get(format!("{}{path}", servers().embedded.url)).send().await.unwrap();
        let text = answer.text().await.unwrap();
        let body: Value = serde_json::from_str(&text).unwrap_or_default();
        let names = body["resources"].as_array().into_iter().flatten();
        served.extend(names.map(|resource| format!("{path} {}", resource["name"].as_str().unwrap_or_default())));
    }
    compare(async |s: &mut Session| {
        for path in COMMON {
            let answer = s.request(Method::GET, path).quietly().send().await;
            let mut resources = answer.body["resources"].as_array().cloned().unwrap_or_default();
            resources.retain(|resource| {
                served.contains(&format!("{path} {}", resource["name"].as_str().unwrap_or_default()))
            });
            resources.sort_by_key(|resource| resource["name"].to_string());
            for resource in &mut resources {
                resource.as_object_mut().unwrap().remove("storageVersionHash");
                if let Some(verbs) = resource["verbs"].as_array_mut() {
                    verbs.sort_by_key(Value::to_string);
                }
                let name = resource["name"].as_str().unwrap().to_owned();
                let resource = resource.clone();
                s.note(&format!("{path} {name}"), resource);
            }
            if served.iter().any(|own| own.starts_with(&format!("{path} "))) {
                s.note(
                    path,
                    json!([answer.code, answer.body["kind"], answer.body["apiVersion"], answer.body["groupVersion"]]),
                );
            }
        }
    })
    .await;
}

#[tokio::test]
async fn health_and_version() {
    compare(async |s: &mut Session| {
        for path in [
            "/healthz",
            "/livez",
            "/readyz",
            "/healthz/ping",
            "/livez/ping",
            "/readyz/ping",
            "/nonsense",
            "/version/nonsense",
        ] {
            s.get(path).await;
        }
        for path in ["/healthz?verbose", "/livez?verbose", "/readyz?verbose"] {
            let answer = s.request(Method::GET, path).quietly().send().await;
            let text = answer.body.as_str().unwrap_or_default();
            s.note(path, json!([answer.code, text.lines().next(), text.lines().last()]));
        }
        let version = s.request(Method::GET, "/version").quietly().send().await.expect(200);
        let keys: Vec<&String> = version
            .as_object()
            .unwrap()
            .keys()
            .filter(|name| !name.starts_with("emulation") && !name.starts_with("minCompat"))
            .collect();
        let mut keys: Vec<String> = keys.into_iter().cloned().collect();
        keys.sort();
        s.note("/version", json!(keys));
        s.request(Method::GET, "/").quietly().send().await.expect(200);
    })
    .await;
}

#[tokio::test]
async fn aggregated_discovery_of_a_definition() {
    compare(async |s: &mut Session| {
        let mut things = definition("discovery.diff.dev", "things", "Thing", object_schema(json!({"a": {"type": "string"}})));
        things["spec"]["names"]["shortNames"] = json!(["th"]);
        things["spec"]["names"]["categories"] = json!(["all"]);
        things["spec"]["versions"][0]["subresources"] = json!({"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}});
        s.install(&things).await;
        let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        for path in ["/apis", "/api"] {
            let mut tries = 0;
            let (code, kind, found) = loop {
                let answer = s.request(Method::GET, path).header("accept", accept).quietly().send().await;
                let items = answer.body["items"].as_array().cloned().unwrap_or_default();
                let wanted = if path == "/api" { "" } else { "discovery.diff.dev" };
                let found = items.into_iter().find(|item| item["metadata"]["name"].as_str().unwrap_or_default() == wanted);
                tries += 1;
                if found.is_some() || tries > 100 {
                    break (answer.code, json!([answer.body["kind"], answer.body["apiVersion"], answer.headers["content-type"].to_str().unwrap()]), found);
                }
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            };
            let mut found = found.unwrap_or_default();
            if path == "/api" {
                found["versions"][0]["resources"] = json!([]);
            }
            s.note(path, json!([code, kind, found]));
        }
        s.get("/apis/discovery.diff.dev").await;
        s.get("/apis/discovery.diff.dev/v1").await;
        let groups = s.request(Method::GET, "/apis").quietly().send().await.expect(200);
        let ours = groups["groups"].as_array().unwrap().iter().find(|group| group["name"] == "discovery.diff.dev").cloned();
        s.note("in the list of groups", json!([groups["kind"], groups["apiVersion"], ours]));
        let legacy = s.request(Method::GET, "/api").quietly().send().await.expect(200);
        s.note("/api", json!([legacy["kind"], legacy["versions"]]));
    })
    .await;
}

#[tokio::test]
async fn open_api_of_a_definition() {
    compare(async |s: &mut Session| {
        let mut things = definition("openapi.diff.dev", "things", "Thing", json!({"type": "object", "description": "A thing.", "required": ["spec"], "properties": {
            "spec": {"type": "object", "description": "What is wanted.", "required": ["a"], "properties": {
                "a": {"type": "string", "description": "The a.", "default": "x", "enum": ["x", "y"]}, "ios": {"x-kubernetes-int-or-string": true}, "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                "nul": {"type": "string", "nullable": true}, "list": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items": {"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}}}},
                "rule": {"type": "integer", "x-kubernetes-validations": [{"rule": "self > 0"}]}}}}}));
        things["spec"]["versions"][0]["subresources"] = json!({"status": {}});
        s.install(&things).await;
        let document = "/openapi/v3/apis/openapi.diff.dev/v1";
        let listed = s.until("/openapi/v3", |answer| answer.body["paths"].get("apis/openapi.diff.dev/v1").is_some()).await;
        s.note("listed", json!(listed.body["paths"]["apis/openapi.diff.dev/v1"]["serverRelativeURL"].as_str().map(|url| url.split('?').next().unwrap().to_owned())));
        let answer = s.until(document, |answer| answer.body["components"]["schemas"].get("dev.diff.openapi.v1.Thing").is_some()).await;
        s.note("schema", answer.body["components"]["schemas"]["dev.diff.openapi.v1.Thing"].clone());
        let mut paths: Vec<String> = answer.body["paths"].as_object().unwrap().keys().filter(|path| !path.contains("/watch/")).cloned().collect();
        paths.sort();
        s.note("paths", json!(paths));
        let at = "/apis/openapi.diff.dev/v1/namespaces/{namespace}/things/{name}";
        for method in ["get", "put", "patch", "delete"] {
            let operation = &answer.body["paths"][at][method];
            let mut names: Vec<String> = operation["parameters"].as_array().into_iter().flatten().map(|p| p["name"].as_str().unwrap_or_default().to_owned()).collect();
            names.sort();
            let mut types: Vec<String> = operation["requestBody"]["content"].as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect();
            types.sort();
            s.note(method, json!([names, types, operation["x-kubernetes-action"], operation["x-kubernetes-group-version-kind"]]));
        }
        s.request(Method::GET, "/openapi/v3/apis/nonsense.dev/v1").own(Own::Message).send().await;
    })
    .await;
}
