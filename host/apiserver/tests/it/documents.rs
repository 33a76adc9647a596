//! Discovery, OpenAPI, version, health, metrics, and paths that are none.

use crate::support::*;
use capstan_apiserver::User;
use http::Method;
use serde_json::json;

#[tokio::test]
async fn discovery_in_both_forms() {
    let client = management();
    client.install(&widgets()).await;
    let accept = [(
        "accept",
        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json",
    )];
    let answer = client.send(Method::GET, "/apis", &accept, "").await;
    assert_eq!(answer.headers["content-type"], "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList");
    let groups = answer.expect(200);
    let group =
        groups["items"].as_array().unwrap().iter().find(|group| group["metadata"]["name"] == "test.dev").unwrap();
    assert_eq!(group["versions"][0]["version"], "v1");
    let resource = &group["versions"][0]["resources"][0];
    assert_eq!(
        (&resource["resource"], &resource["scope"], &resource["shortNames"]),
        (&json!("widgets"), &json!("Namespaced"), &json!(["wd"]))
    );
    assert_eq!(
        resource["subresources"][1]["responseKind"],
        json!({"group": "autoscaling", "version": "v1", "kind": "Scale"})
    );
    let legacy = client.send(Method::GET, "/api", &accept, "").await.expect(200);
    assert_eq!(legacy["items"][0]["metadata"], json!({}));
    let plain = client.get("/apis").await.expect(200);
    assert_eq!(plain["kind"], "APIGroupList");
    assert_eq!(client.get("/api").await.expect(200)["versions"], json!(["v1"]));
    let group = client.get("/apis/test.dev").await.expect(200);
    assert_eq!(group["preferredVersion"]["groupVersion"], "test.dev/v1");
    let list = client.get("/apis/test.dev/v1").await.expect(200);
    let names: Vec<&str> = list["resources"].as_array().unwrap().iter().map(|r| r["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["widgets", "widgets/status", "widgets/scale"]);
    client.get("/apis/none.dev").await.expect(404);
    client.get("/apis/test.dev/v9").await.expect(404);
}

#[tokio::test]
async fn openapi_changes_with_definitions() {
    let client = management();
    client.install(&widgets()).await;
    let index = client.get("/openapi/v3").await.expect(200);
    let url = index["paths"]["apis/test.dev/v1"]["serverRelativeURL"].as_str().unwrap().to_owned();
    let document = client.get(&url).await.expect(200);
    let schema = &document["components"]["schemas"]["dev.test.v1.Widget"];
    assert_eq!(schema["x-kubernetes-group-version-kind"][0]["kind"], "Widget");
    assert!(schema["properties"]["spec"]["properties"]["size"].is_object());
    let patch = &document["paths"]["/apis/test.dev/v1/namespaces/{namespace}/widgets/{name}"]["patch"];
    assert!(patch["parameters"].as_array().unwrap().iter().any(|p| p["name"] == "fieldValidation"));
    client
        .patch(
            &format!("{DEFINITIONS}/widgets.test.dev"),
            "json",
            &json!([{"op": "add", "path": "/spec/versions/0/schema/openAPIV3Schema/description", "value": "hello"}]),
        )
        .await
        .expect(200);
    let again = client.get("/openapi/v3").await.expect(200);
    assert_ne!(again["paths"]["apis/test.dev/v1"]["serverRelativeURL"].as_str().unwrap(), url);
    assert_eq!(again["paths"]["api/v1"], index["paths"]["api/v1"]);
    client.get("/openapi/v3/api/v1").await.expect(200);
    client.get("/openapi/v3/apis/none/v1").await.expect(404);
    assert_eq!(client.get("/openapi/v2").await.expect(200)["swagger"], "2.0");
}

#[tokio::test]
async fn version_health_and_metrics() {
    let client = management();
    assert_eq!(client.get("/version").await.expect(200)["gitVersion"], "v1.35.0");
    for path in ["/healthz", "/readyz", "/livez"] {
        assert_eq!(client.get(path).await.expect(200), "ok");
        client.with_user(User::anonymous()).get(path).await.expect(200);
    }
    client.with_user(User::anonymous()).get("/metrics").await.expect(403);
    client.post(MAPS, &map("a", json!({}))).await.expect(201);
    client.post(MAPS, &map("a", json!({}))).await.expect(409);
    client.post(MAPS, &json!([])).await.expect(400);
    client.get("/apis/made.up/v1/nonsense").await.expect(404);
    assert_eq!(client.server.requests_that_changed(), 2);
    let metrics = client.get("/metrics").await.expect(200);
    let metrics = metrics.as_str().unwrap();
    assert!(
        metrics.contains(
            "apiserver_request_total{code=\"201\",group=\"\",resource=\"configmaps\",subresource=\"\",verb=\"POST\"} 1"
        ),
        "{metrics}"
    );
    assert!(!metrics.contains("made.up"), "{metrics}");
}

#[tokio::test]
async fn nothing_panics_on_nonsense() {
    let client = management();
    client.install(&widgets()).await;
    let paths = [
        "/",
        "//",
        "/api/",
        "/api/v1/",
        "/api/v2/pods",
        "/apis///",
        "/api/v1/namespaces//",
        "/%00",
        "/%zz",
        "/api/v1/namespaces/a/b/c/d/e/f",
        "/apis/test.dev/v1/namespaces/default/widgets/a/status/x",
        "/openapi/v3/",
        "/api/v1/namespaces/default/configmaps/%F0%9F%92%A9",
        "/api/v1/namespaces?watch=true&timeoutSeconds=-5&resourceVersion=1",
        "/api/v1/namespaces?limit=-9223372036854775808&continue=AAAA",
        "/api/v1/namespaces?labelSelector=%28%28%29%2C%2C&fieldSelector=%5C",
        "/api/v1/watch/namespaces",
    ];
    for path in paths {
        for method in
            [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::OPTIONS, Method::HEAD]
        {
            let bodies: [&[u8]; 5] = [b"", b"null", b"{}", b"{\"metadata\": 1}", b"\xff\xfe"];
            for body in bodies {
                for kind in ["application/json", "application/merge-patch+json", "application/apply-patch+yaml", "x"] {
                    let answer = client.raw(method.clone(), path, &[("content-type", kind)], body.to_vec()).await;
                    assert!(answer.status().as_u16() != 500, "{method} {path} {body:?}");
                }
            }
        }
    }
    let weird = [
        json!({"metadata": null}),
        json!({"metadata": {"name": 1}}),
        json!({"metadata": {"name": "w", "labels": 3}}),
        json!({"metadata": {"name": "w", "ownerReferences": [1]}}),
        json!({"metadata": {"name": "w", "finalizers": {"a": 1}}, "spec": []}),
        json!({"metadata": {"name": "w", "managedFields": [{"fieldsV1": 1}, 2]}, "spec": {"size": 1}}),
        json!({"apiVersion": 1, "kind": []}),
        json!("x"),
    ];
    for body in weird {
        for (method, path, kind) in [
            (Method::POST, WIDGETS.to_owned(), "application/json"),
            (Method::PUT, format!("{WIDGETS}/w"), "application/json"),
            (Method::PATCH, format!("{WIDGETS}/w"), "application/merge-patch+json"),
            (Method::PATCH, format!("{WIDGETS}/w?fieldManager=x"), "application/apply-patch+yaml"),
            (Method::PATCH, format!("{WIDGETS}/w/status"), "application/merge-patch+json"),
            (Method::PUT, format!("{WIDGETS}/w/scale"), "application/json"),
            (Method::DELETE, format!("{WIDGETS}/w"), "application/json"),
            (Method::POST, DEFINITIONS.to_owned(), "application/json"),
        ] {
            client.post(WIDGETS, &widget("w", 1)).await;
            // Some refusals are 500 upstream, too; a panic says so.
            let answer = client.send(method.clone(), &path, &[("content-type", kind)], body.to_string()).await;
            assert!(!answer.body.to_string().contains("panic"), "{method} {path} {body}: {:#}", answer.body);
        }
    }
    client.get(&format!("{WIDGETS}?watch=true&timeoutSeconds=1")).await.expect(200);
}
