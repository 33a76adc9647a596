//! Creating, updating, patching, deleting.

use crate::support::*;
use http::Method;
use serde_json::{Value, json};

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

#[tokio::test]
async fn an_objects_life() {
    let client = management();
    let made = client.post(MAPS, &map("a", json!({"k": "v"}))).await.expect(201);
    assert_eq!(text(&made, "/metadata/namespace"), "default");
    assert!(!text(&made, "/metadata/uid").is_empty());
    assert!(text(&made, "/metadata/creationTimestamp").ends_with('Z'));
    assert_eq!(text(&made, "/metadata/managedFields/0/manager"), "tests");
    let path = format!("{MAPS}/a");
    assert_eq!(client.get(&path).await.expect(200), made);

    let again = client.post(MAPS, &map("a", json!({}))).await.expect(409);
    assert_eq!(text(&again, "/reason"), "AlreadyExists");
    assert_eq!(text(&again, "/message"), "configmaps \"a\" already exists");

    let mut wanted = made.clone();
    wanted["data"] = json!({"k": "w"});
    let changed = client.put(&path, &wanted).await.expect(200);
    assert_eq!(text(&changed, "/data/k"), "w");
    assert_ne!(changed["metadata"]["resourceVersion"], made["metadata"]["resourceVersion"]);

    let stale = client.put(&path, &wanted).await.expect(409);
    assert_eq!(
        text(&stale, "/message"),
        "Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please apply your changes to the latest version and try again"
    );
    assert_eq!(text(&stale, "/details/kind"), "configmaps");

    let gone = client.delete(&path).await.expect(200);
    assert_eq!(text(&gone, "/status"), "Success");
    assert_eq!(gone["details"]["uid"], made["metadata"]["uid"]);
    let missing = client.get(&path).await.expect(404);
    assert_eq!(text(&missing, "/message"), "configmaps \"a\" not found");
    assert_eq!(missing["details"], json!({"name": "a", "kind": "configmaps"}));
}

#[tokio::test]
async fn a_write_that_changes_nothing_is_no_write() {
    let client = management();
    let made = client.post(MAPS, &map("a", json!({"k": "v"}))).await.expect(201);
    let path = format!("{MAPS}/a");
    let mut watch =
        client.watch(&format!("{MAPS}?watch=true&resourceVersion={}", text(&made, "/metadata/resourceVersion"))).await;
    assert_eq!(client.put(&path, &made).await.expect(200), made);
    assert_eq!(client.patch(&path, "merge", &json!({"data": {"k": "v"}})).await.expect(200), made);
    assert!(watch.quiet().await);
    client.patch(&path, "merge", &json!({"data": {"k": "w"}})).await.expect(200);
    watch.expect("MODIFIED", "a").await;
}

#[tokio::test]
async fn all_kinds_of_patches() {
    let client = workload();
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {
        "selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "one", "image": "x"}, {"name": "two", "image": "y"}]}}}});
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    let made = client.post(deployments, &deployment).await.expect(201);
    assert_eq!(made["spec"]["replicas"], 1, "defaults");
    assert_eq!(made["metadata"]["generation"], 1);
    let path = format!("{deployments}/d");
    let patch = json!({"spec": {"template": {"spec": {"containers": [{"name": "two", "image": "z"}]}}}});
    let merged = client.patch(&path, "strategic", &patch).await.expect(200);
    assert_eq!(merged["spec"]["template"]["spec"]["containers"].as_array().unwrap().len(), 2);
    assert_eq!(merged["metadata"]["generation"], 2);
    let patched = client.patch(&path, "json", &json!([{"op": "test", "path": "/spec/replicas", "value": 1}, {"op": "replace", "path": "/spec/replicas", "value": 3}])).await.expect(200);
    assert_eq!(patched["spec"]["replicas"], 3);
    client.patch(&path, "json", &json!([{"op": "test", "path": "/spec/replicas", "value": 9}])).await.expect(422);
    client.patch(&path, "json", &json!({"not": "a list"})).await.expect(400);
    client.patch(&path, "merge", &json!(["not an object"])).await.expect(400);
    client.patch(&path, "text/plain", &json!({})).await.expect(415);
    // Labels do not count.
    let labelled = client.patch(&path, "merge", &json!({"metadata": {"labels": {"x": "y"}}})).await.expect(200);
    assert_eq!(labelled["metadata"]["generation"], 3);
    // Nor does the status, and it has its own way in.
    let same = client.patch(&path, "merge", &json!({"status": {"replicas": 5}})).await.expect(200);
    assert_ne!(same["status"]["replicas"], 5);
    let status = client
        .patch(&format!("{path}/status"), "merge", &json!({"status": {"replicas": 5}, "spec": {"replicas": 9}}))
        .await
        .expect(200);
    assert_eq!((&status["status"]["replicas"], &status["spec"]["replicas"]), (&json!(5), &json!(3)));
    assert_eq!(status["metadata"]["generation"], 3);
    // A patch with a revision is a condition, one without is not.
    client
        .patch(&path, "merge", &json!({"metadata": {"resourceVersion": "1"}, "spec": {"replicas": 4}}))
        .await
        .expect(409);
    client.patch(&path, "merge", &json!({"metadata": {"name": "other"}})).await.expect(400);
    client.patch(&format!("{deployments}/none"), "merge", &json!({})).await.expect(404);
    let scale = client.get(&format!("{path}/scale")).await.expect(200);
    assert_eq!((text(&scale, "/kind"), text(&scale, "/status/selector")), ("Scale", "a=b"));
    let scaled = client.patch(&format!("{path}/scale"), "merge", &json!({"spec": {"replicas": 7}})).await.expect(200);
    assert_eq!(scaled["spec"]["replicas"], 7);
    assert_eq!(client.get(&path).await.expect(200)["spec"]["replicas"], 7);
    let mut scale = client.get(&format!("{path}/scale")).await.expect(200);
    scale["spec"]["replicas"] = json!(2);
    client.put(&format!("{path}/scale"), &scale).await.expect(200);
    client.put(&format!("{path}/scale"), &scale).await.expect(409);
    client.patch(&format!("{path}/scale"), "merge", &json!({"spec": {"replicas": -1}})).await.expect(422);
}

#[tokio::test]
async fn patches_cannot_make_an_object_huge_or_bottomless() {
    let client = management();
    let path = format!("{MAPS}/a");
    let start = json!({"a": "x".repeat(1000)});
    client.post(MAPS, &map("a", start)).await.expect(201);
    let doubling: Vec<Value> =
        (0..40).map(|n| json!({"op": "copy", "from": "/metadata", "path": format!("/metadata/x{n}")})).collect();
    client.patch(&path, "json", &json!(doubling)).await.expect(413);
    let nesting: Vec<Value> = (0..5000).map(|_| json!({"op": "copy", "from": "/data", "path": "/data/a"})).collect();
    client.patch(&path, "json", &json!(nesting)).await.expect(400);
    let deep: Vec<Value> =
        (1..300).map(|n| json!({"op": "add", "path": format!("/x{}", "/x".repeat(n)), "value": {}})).collect();
    let first = json!([{"op": "add", "path": "/x", "value": {}}]);
    let all: Vec<Value> = first.as_array().unwrap().iter().cloned().chain(deep).collect();
    client.patch(&path, "json", &json!(all)).await.expect(400);
    client.patch(&path, "merge", &json!({"data": {"b": "y".repeat(1 << 19)}})).await.expect(200);
    client.patch(&path, "merge", &json!({"data": {"c": "y".repeat(2 << 20)}})).await.expect(422);
}

#[tokio::test]
async fn server_side_apply() {
    let client = management();
    client.install(&widgets()).await;
    let path = format!("{WIDGETS}/w");
    let wanted = json!({"apiVersion": "test.dev/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"size": 1, "parts": [{"name": "a", "n": 1}]}});
    client.patch(&path, "apply", &wanted).await.expect(422);
    let made = client.patch(&format!("{path}?fieldManager=one"), "apply", &wanted).await.expect(201);
    assert_eq!(made["spec"]["color"], "red");
    let same = client.patch(&format!("{path}?fieldManager=one"), "apply", &wanted).await.expect(200);
    assert_eq!(same["metadata"]["resourceVersion"], made["metadata"]["resourceVersion"]);
    let other =
        json!({"apiVersion": "test.dev/v1", "kind": "Widget", "spec": {"size": 2, "parts": [{"name": "b", "n": 2}]}});
    let conflict = client.patch(&format!("{path}?fieldManager=two"), "apply", &other).await.expect(409);
    assert_eq!(text(&conflict, "/details/causes/0/reason"), "FieldManagerConflict");
    assert_eq!(text(&conflict, "/details/causes/0/field"), ".spec.size");
    assert!(text(&conflict, "/message").contains("Apply failed with 1 conflict"), "{conflict}");
    let forced = client.patch(&format!("{path}?fieldManager=two&force=true"), "apply", &other).await.expect(200);
    assert_eq!(forced["spec"]["parts"].as_array().unwrap().len(), 2, "lists of type map are merged");
    assert_eq!(forced["spec"]["size"], 2);
    // Status through its own way, by its own manager.
    let status =
        json!({"apiVersion": "test.dev/v1", "kind": "Widget", "metadata": {"name": "w"}, "status": {"phase": "Up"}});
    let status = client.patch(&format!("{path}/status?fieldManager=three"), "apply", &status).await.expect(200);
    assert_eq!(status["status"]["phase"], "Up");
    let entry = status["metadata"]["managedFields"]
        .as_array()
        .unwrap()
        .iter()
        .find(|entry| entry["manager"] == "three")
        .unwrap();
    assert_eq!(entry["subresource"], "status");
    // What one manager does not want any more goes.
    let less = json!({"apiVersion": "test.dev/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"size": 2}});
    let less = client.patch(&format!("{path}?fieldManager=two"), "apply", &less).await.expect(200);
    assert_eq!(less["spec"]["parts"], json!([{"name": "a", "n": 1}]));
    assert_eq!(less["status"]["phase"], "Up");
    let strict = json!({"apiVersion": "test.dev/v1", "kind": "Widget", "spec": {"size": 2, "nonsense": 1}});
    client.patch(&format!("{path}?fieldManager=two&fieldValidation=Strict"), "apply", &strict).await.expect(500);
    let body = "apiVersion: test.dev/v1\nkind: Widget\nspec:\n  size: 2\n  size: 3\n";
    let double = client
        .send(
            Method::PATCH,
            &format!("{path}?fieldManager=two&fieldValidation=Strict"),
            &[("content-type", "application/apply-patch+yaml")],
            body,
        )
        .await
        .expect(400);
    assert!(text(&double, "/message").contains("duplicate field \"spec.size\""), "{double}");
}

#[tokio::test]
async fn unknown_and_double_fields_are_told() {
    let client = management();
    client.install(&widgets()).await;
    let body = r#"{"apiVersion": "test.dev/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"size": 1, "sice": 2, "size": 3}}"#;
    let json = [("content-type", "application/json")];
    let strict = client.send(Method::POST, &format!("{WIDGETS}?fieldValidation=Strict"), &json, body).await.expect(400);
    assert_eq!(
        text(&strict, "/message"),
        "Widget in version \"v1\" cannot be handled as a Widget: strict decoding error: duplicate field \"spec.size\", unknown field \"spec.sice\""
    );
    let warned = client.send(Method::POST, &format!("{WIDGETS}?fieldValidation=Warn"), &json, body).await;
    assert_eq!(
        warned.warnings(),
        ["299 - \"duplicate field \\\"spec.size\\\"\"", "299 - \"unknown field \\\"spec.sice\\\"\""]
    );
    let made = warned.expect(201);
    assert_eq!(made["spec"], json!({"size": 3, "color": "red"}));
    let patch = client
        .patch(&format!("{WIDGETS}/w?fieldValidation=Strict"), "merge", &json!({"spec": {"colour": "x"}}))
        .await
        .expect(422);
    assert!(text(&patch, "/message").contains("strict decoding error: unknown field \"spec.colour\""), "{patch}");
    let ignored =
        client.patch(&format!("{WIDGETS}/w?fieldValidation=Ignore"), "merge", &json!({"spec": {"colour": "x"}})).await;
    assert!(ignored.warnings().is_empty());
    client.post(&format!("{WIDGETS}?fieldValidation=Sometimes"), &widget("x", 1)).await.expect(422);
}

#[tokio::test]
async fn what_breaks_rules_is_refused_with_path_and_reason() {
    let client = management();
    client.install(&widgets()).await;
    let mut bad = widget("w", 500);
    bad["spec"]["color"] = json!("green");
    let status = client.post(WIDGETS, &bad).await.expect(422);
    assert_eq!(
        (text(&status, "/reason"), text(&status, "/details/kind"), text(&status, "/details/group")),
        ("Invalid", "Widget", "test.dev")
    );
    assert!(text(&status, "/message").starts_with("Widget.test.dev \"w\" is invalid: ["), "{status}");
    let fields: Vec<&str> =
        status["details"]["causes"].as_array().unwrap().iter().map(|cause| text(cause, "/field")).collect();
    assert!(fields.contains(&"spec.size") && fields.contains(&"spec.color"), "{fields:?}");
    let unlucky = client.post(WIDGETS, &widget("w", 13)).await.expect(422);
    assert!(text(&unlucky, "/message").contains("13 is unlucky"), "{unlucky}");
    let name = client.post(WIDGETS, &widget("Not A Name", 1)).await.expect(422);
    assert!(text(&name, "/message").contains("metadata.name: Invalid value: \"Not A Name\""), "{name}");
    client.post(WIDGETS, &json!({"kind": "Other", "metadata": {"name": "x"}})).await.expect(400);
    client.post(WIDGETS, &json!({"apiVersion": "test.dev/v2", "metadata": {"name": "x"}})).await.expect(400);
    client.post(WIDGETS, &json!([])).await.expect(400);
    client.post(WIDGETS, &json!({"spec": {"size": 1}})).await.expect(422);
    let mut elsewhere = widget("w", 1);
    elsewhere["metadata"]["namespace"] = json!("kube-system");
    client.post(WIDGETS, &elsewhere).await.expect(400);
    let nowhere = client.post("/apis/test.dev/v1/namespaces/nowhere/widgets", &widget("w", 1)).await.expect(404);
    assert_eq!(text(&nowhere, "/message"), "namespaces \"nowhere\" not found");
    client
        .send(Method::POST, WIDGETS, &[("content-type", "application/vnd.kubernetes.protobuf")], "k8s\0")
        .await
        .expect(415);
    client.send(Method::POST, WIDGETS, &[("content-type", "application/json")], "{").await.expect(400);
    let made = client.post(WIDGETS, &widget("w", 1)).await.expect(201);
    let mut blind = made.clone();
    blind["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    let blind = client.put(&format!("{WIDGETS}/w"), &blind).await.expect(422);
    assert!(
        text(&blind, "/message")
            .contains("metadata.resourceVersion: Invalid value: 0: must be specified for an update"),
        "{blind}"
    );
    client.patch(&format!("{WIDGETS}/w"), "strategic", &json!({})).await.expect(415);
}

#[tokio::test]
async fn generated_names_dry_runs_and_yaml() {
    let client = management();
    let generated = json!({"metadata": {"generateName": "x-"}});
    let (one, two) = (client.post(MAPS, &generated).await.expect(201), client.post(MAPS, &generated).await.expect(201));
    assert!(text(&one, "/metadata/name").starts_with("x-") && text(&one, "/metadata/name").len() == 7);
    assert_ne!(one["metadata"]["name"], two["metadata"]["name"]);
    client.post(&format!("{MAPS}?dryRun=All"), &map("dry", json!({}))).await.expect(201);
    client.get(&format!("{MAPS}/dry")).await.expect(404);
    client.post(&format!("{MAPS}?dryRun=Some"), &map("dry", json!({}))).await.expect(422);
    let yaml = "metadata:\n  name: ym\ndata:\n  a: \"1\"\n";
    client.send(Method::POST, MAPS, &[("content-type", "application/yaml")], yaml).await.expect(201);
    let dry = client.patch(&format!("{MAPS}/ym?dryRun=All"), "merge", &json!({"data": {"a": "2"}})).await.expect(200);
    assert_eq!(text(&dry, "/data/a"), "2");
    assert_eq!(text(&client.get(&format!("{MAPS}/ym")).await.expect(200), "/data/a"), "1");
    client.send(Method::DELETE, &format!("{MAPS}/ym?dryRun=All"), &[], "").await.expect(200);
    client.get(&format!("{MAPS}/ym")).await.expect(200);
    let big = map("big", json!({"x": "y".repeat(4 << 20)}));
    client.post(MAPS, &big).await.expect(413);
}

#[tokio::test]
async fn finalizers_and_preconditions_hold_deletions() {
    let client = management();
    client.install(&widgets()).await;
    let mut object = widget("w", 1);
    object["metadata"]["finalizers"] = json!(["test.dev/hold"]);
    let made = client.post(WIDGETS, &object).await.expect(201);
    let path = format!("{WIDGETS}/w");
    let json = [("content-type", "application/json")];
    let wrong =
        client.send(Method::DELETE, &path, &json, json!({"preconditions": {"uid": "x"}}).to_string()).await.expect(409);
    assert!(text(&wrong, "/message").contains("the UID in the precondition (x) does not match"), "{wrong}");
    let waiting = client.delete(&path).await.expect(200);
    assert!(!text(&waiting, "/metadata/deletionTimestamp").is_empty());
    assert_eq!(waiting["metadata"]["generation"], 2);
    assert_eq!(
        client.delete(&path).await.expect(200)["metadata"]["resourceVersion"],
        waiting["metadata"]["resourceVersion"]
    );
    let more = client
        .patch(&path, "merge", &json!({"metadata": {"finalizers": ["test.dev/hold", "test.dev/more"]}}))
        .await
        .expect(422);
    assert!(text(&more, "/message").contains("no new finalizers can be added"), "{more}");
    let mut watch = client
        .watch(&format!("{WIDGETS}?watch=1&resourceVersion={}", text(&waiting, "/metadata/resourceVersion")))
        .await;
    client.patch(&path, "merge", &json!({"metadata": {"finalizers": null}})).await.expect(200);
    watch.expect("DELETED", "w").await;
    client.get(&path).await.expect(404);
    assert_eq!(made["metadata"]["generation"], 1);
    // Many at once.
    for name in ["a", "b", "c"] {
        let mut object = widget(name, 1);
        object["metadata"]["labels"] = json!({"even": if name == "b" { "yes" } else { "no" }});
        client.post(WIDGETS, &object).await.expect(201);
    }
    let gone = client.delete(&format!("{WIDGETS}?labelSelector=even%3Dno")).await.expect(200);
    assert_eq!(gone["items"].as_array().unwrap().len(), 2);
    assert_eq!(client.get(WIDGETS).await.expect(200)["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn secrets_events_and_leases() {
    let client = management();
    let secrets = "/api/v1/namespaces/default/secrets";
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"a": "b"}, "data": {"c": "ZA=="}});
    let made = client.post(secrets, &secret).await.expect(201);
    assert_eq!((&made["data"], &made["type"]), (&json!({"c": "ZA==", "a": "Yg=="}), &json!("Opaque")));
    assert!(made.get("stringData").is_none());
    let typed = client.patch(&format!("{secrets}/s"), "merge", &json!({"type": "other"})).await.expect(422);
    assert!(text(&typed, "/message").contains("type: Invalid value: \"other\": field is immutable"), "{typed}");
    let event = json!({"metadata": {"name": "e", "namespace": "default"}, "reportingController": "c", "reportingInstance": "i", "action": "A", "reason": "R", "type": "Normal",
        "eventTime": "2026-01-01T00:00:00.000000Z", "regarding": {"kind": "Widget", "name": "w", "namespace": "default"}, "note": "hello"});
    client.post("/apis/events.k8s.io/v1/namespaces/default/events", &event).await.expect(201);
    let core = client
        .get("/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3Dw,involvedObject.kind%3DWidget")
        .await
        .expect(200);
    assert_eq!(text(&core, "/items/0/message"), "hello");
    assert_eq!((text(&core, "/apiVersion"), text(&core, "/kind")), ("v1", "EventList"));
    let new = client.get("/apis/events.k8s.io/v1/namespaces/default/events/e").await.expect(200);
    assert_eq!((text(&new, "/note"), text(&new, "/regarding/name")), ("hello", "w"));
    let lease = json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": "me", "leaseDurationSeconds": 15}});
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let made = client.post(leases, &lease).await.expect(201);
    let mut renewed = made.clone();
    renewed["spec"]["renewTime"] = json!("2026-01-01T00:00:00.000000Z");
    client.put(&format!("{leases}/l"), &renewed).await.expect(200);
    client.put(&format!("{leases}/l"), &renewed).await.expect(409);
}

#[tokio::test]
async fn pods_on_nodes_wait_for_their_kubelet() {
    let client = workload();
    let pods = "/api/v1/namespaces/default/pods";
    let pod = |name: &str| json!({"metadata": {"name": name, "labels": {"app": "x"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    client.post(pods, &pod("a")).await.expect(201);
    client.delete(&format!("{pods}/a")).await.expect(200);
    client.get(&format!("{pods}/a")).await.expect(404);
    client.post(pods, &pod("b")).await.expect(201);
    client.post(&format!("{pods}/b/binding"), &json!({"target": {"kind": "Node", "name": "n"}})).await.expect(201);
    client.post(&format!("{pods}/b/binding"), &json!({"target": {"kind": "Node", "name": "m"}})).await.expect(409);
    assert_eq!(
        client.get(&format!("{pods}?fieldSelector=spec.nodeName%3Dn")).await.expect(200)["items"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    let budget = json!({"metadata": {"name": "p"}, "spec": {"selector": {"matchLabels": {"app": "x"}}}});
    client.post("/apis/policy/v1/namespaces/default/poddisruptionbudgets", &budget).await.expect(201);
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "b"}});
    let refused = client.post(&format!("{pods}/b/eviction"), &eviction).await.expect(429);
    assert_eq!(text(&refused, "/details/causes/0/reason"), "DisruptionBudget");
    client
        .patch(
            "/apis/policy/v1/namespaces/default/poddisruptionbudgets/p/status",
            "merge",
            &json!({"status": {"disruptionsAllowed": 1, "currentHealthy": 1, "desiredHealthy": 0, "expectedPods": 1}}),
        )
        .await
        .expect(200);
    client.post(&format!("{pods}/b/eviction"), &eviction).await.expect(201);
    let waiting = client.get(&format!("{pods}/b")).await.expect(200);
    assert_eq!(waiting["metadata"]["deletionGracePeriodSeconds"], 30);
    client.send(Method::DELETE, &format!("{pods}/b?gracePeriodSeconds=0"), &[], "").await.expect(200);
    client.get(&format!("{pods}/b")).await.expect(404);
}

#[tokio::test]
async fn many_writers_lose_nothing() {
    let client = management();
    client.post(MAPS, &map("n", json!({"n": "0"}))).await.expect(201);
    let path = format!("{MAPS}/n");
    let mut tasks = Vec::new();
    for _ in 0..8 {
        let client = client.with_user(capstan_apiserver::User::admin("x"));
        let path = path.clone();
        tasks.push(tokio::spawn(async move {
            let mut conflicts = 0;
            for _ in 0..25 {
                loop {
                    let mut object = client.get(&path).await.expect(200);
                    let n: u32 = object["data"]["n"].as_str().unwrap().parse().unwrap();
                    object["data"]["n"] = json!((n + 1).to_string());
                    tokio::task::yield_now().await;
                    match client.put(&path, &object).await.code {
                        200 => break,
                        409 => conflicts += 1,
                        other => panic!("{other}"),
                    }
                }
            }
            conflicts
        }));
    }
    let mut conflicts = 0;
    for task in tasks {
        conflicts += task.await.unwrap();
    }
    assert_eq!(client.get(&path).await.expect(200)["data"]["n"], "200");
    assert!(conflicts > 0, "the writers never met");
    assert_eq!(client.server.requests_that_changed(), 201 + conflicts);
}
