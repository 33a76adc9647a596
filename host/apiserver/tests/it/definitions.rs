//! CustomResourceDefinitions.

use crate::support::*;
use capstan_apiserver::{Admission, AdmissionRequest, Conversion, Operation, Options, Status};
use http::Method;
use serde_json::{Value, json};
use std::sync::Arc;

#[tokio::test]
async fn a_definition_is_served_at_once() {
    let client = management();
    client.get(WIDGETS).await.expect(404);
    let made = client.post(DEFINITIONS, &widgets()).await.expect(201);
    let conditions: Vec<(&str, &str)> = made["status"]["conditions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| (c["type"].as_str().unwrap(), c["status"].as_str().unwrap()))
        .collect();
    assert!(conditions.contains(&("Established", "True")) && conditions.contains(&("NamesAccepted", "True")));
    assert_eq!(made["status"]["storedVersions"], json!(["v1"]));
    assert_eq!(made["status"]["acceptedNames"]["listKind"], "WidgetList");
    assert_eq!(made["spec"]["names"]["singular"], "widget");
    let object = client.post(WIDGETS, &widget("w", 1)).await.expect(201);
    assert_eq!((&object["spec"]["color"], &object["metadata"]["generation"]), (&json!("red"), &json!(1)));
    // Another version of the same object, with a warning.
    let old = client.get("/apis/test.dev/v1beta1/namespaces/default/widgets/w").await;
    assert_eq!(old.warnings(), ["299 - \"test.dev/v1beta1 Widget is deprecated; use test.dev/v1 Widget\""]);
    assert_eq!(old.expect(200)["apiVersion"], "test.dev/v1beta1");
    let list = client.get("/apis/test.dev/v1beta1/widgets").await.expect(200);
    assert_eq!(list["items"][0]["apiVersion"], "test.dev/v1beta1");
    let patched = client
        .patch("/apis/test.dev/v1beta1/namespaces/default/widgets/w", "merge", &json!({"spec": {"size": 2}}))
        .await
        .expect(200);
    assert_eq!((&patched["apiVersion"], &patched["metadata"]["generation"]), (&json!("test.dev/v1beta1"), &json!(2)));
    assert_eq!(client.get(&format!("{WIDGETS}/w")).await.expect(200)["apiVersion"], "test.dev/v1");
    // Status and scale have ways of their own.
    let ignored = client.patch(&format!("{WIDGETS}/w"), "merge", &json!({"status": {"phase": "X"}})).await.expect(200);
    assert!(ignored.get("status").is_none());
    let status = client
        .patch(
            &format!("{WIDGETS}/w/status"),
            "merge",
            &json!({"status": {"phase": "Up"}, "spec": {"size": 50}, "metadata": {"labels": {"a": "b"}}}),
        )
        .await
        .expect(200);
    assert_eq!((&status["status"]["phase"], &status["spec"]["size"]), (&json!("Up"), &json!(2)));
    assert!(status["metadata"].get("labels").is_none());
    assert_eq!(status["metadata"]["generation"], 2);
    client.get(&format!("{WIDGETS}/w/scale")).await.expect(500);
    client.patch(&format!("{WIDGETS}/w"), "merge", &json!({"spec": {"replicas": 2}})).await.expect(200);
    client.patch(&format!("{WIDGETS}/w/scale"), "merge", &json!({"spec": {"replicas": 4}})).await.expect(200);
    assert_eq!(client.get(&format!("{WIDGETS}/w")).await.expect(200)["spec"]["replicas"], 4);
    client.get("/apis/test.dev/v1beta1/namespaces/default/widgets/w/scale").await.expect(404);
}

#[tokio::test]
async fn a_changed_definition_counts_at_once() {
    let client = management();
    client.install(&widgets()).await;
    client.post(WIDGETS, &widget("w", 1)).await.expect(201);
    let path = format!("{DEFINITIONS}/widgets.test.dev");
    let patch = json!([{"op": "add", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/weight", "value": {"type": "integer", "default": 9}}]);
    client.patch(&path, "json", &patch).await.expect(200);
    let object = client.patch(&format!("{WIDGETS}/w"), "merge", &json!({"spec": {"size": 2}})).await.expect(200);
    assert_eq!(object["spec"]["weight"], 9);
    client
        .patch(&path, "json", &json!([{"op": "replace", "path": "/spec/versions/1/served", "value": false}]))
        .await
        .expect(200);
    client.get("/apis/test.dev/v1beta1/widgets").await.expect(404);
    client.patch(&path, "merge", &json!({"spec": {"scope": "Cluster"}})).await.expect(422);
}

#[tokio::test]
async fn the_version_that_is_stored_can_change() {
    let client = management();
    client.install(&widgets()).await;
    client.post(WIDGETS, &widget("w", 1)).await.expect(201);
    let swap = json!([{"op": "replace", "path": "/spec/versions/0/storage", "value": false}, {"op": "replace", "path": "/spec/versions/1/storage", "value": true}]);
    let changed = client.patch(&format!("{DEFINITIONS}/widgets.test.dev"), "json", &swap).await.expect(200);
    assert_eq!(changed["status"]["storedVersions"], json!(["v1", "v1beta1"]));
    let beta = "/apis/test.dev/v1beta1/namespaces/default/widgets";
    assert_eq!(client.get(&format!("{beta}/w")).await.expect(200)["apiVersion"], "test.dev/v1beta1");
    assert_eq!(client.get(&format!("{WIDGETS}/w")).await.expect(200)["apiVersion"], "test.dev/v1");
    client.patch(&format!("{WIDGETS}/w"), "merge", &json!({"spec": {"size": 2}})).await.expect(200);
    assert_eq!(client.get(beta).await.expect(200)["items"][0]["apiVersion"], "test.dev/v1beta1");
    assert_eq!(client.get(WIDGETS).await.expect(200)["items"][0]["apiVersion"], "test.dev/v1");
}

#[tokio::test]
async fn bad_definitions_are_refused() {
    let client = management();
    let mut nameless = widgets();
    nameless["metadata"]["name"] = json!("things.test.dev");
    client.post(DEFINITIONS, &nameless).await.expect(422);
    let mut unstructured = widgets();
    unstructured["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["size"] =
        json!({"minimum": 1});
    let refused = client.post(DEFINITIONS, &unstructured).await.expect(422);
    assert!(
        refused["message"]
            .as_str()
            .unwrap()
            .contains("spec.versions[0].schema.openAPIV3Schema.properties[spec].properties[size].type"),
        "{refused}"
    );
    client.install(&widgets()).await;
    // A second one that wants the same kind is not served.
    let mut twin = widgets();
    twin["metadata"]["name"] = json!("gadgets.test.dev");
    twin["spec"]["names"] = json!({"plural": "gadgets", "kind": "Widget"});
    let made = client.post(DEFINITIONS, &twin).await.expect(201);
    let accepted =
        made["status"]["conditions"].as_array().unwrap().iter().find(|c| c["type"] == "NamesAccepted").unwrap();
    assert_eq!((&accepted["status"], &accepted["reason"]), (&json!("False"), &json!("ListKindConflict")));
    client.get("/apis/test.dev/v1/gadgets").await.expect(404);
}

struct Celsius;

impl Conversion for Celsius {
    fn converts(&self, crd: &str) -> bool {
        crd == "widgets.test.dev"
    }

    fn convert(&self, mut object: Value, api_version: &str) -> Result<Value, String> {
        let size = object["spec"]["size"].as_i64().ok_or("no size")?;
        object["spec"]["size"] = json!(if api_version == "test.dev/v1beta1" { size * 10 } else { size / 10 });
        object["apiVersion"] = json!(api_version);
        Ok(object)
    }
}

#[tokio::test]
async fn versions_can_be_converted() {
    let client = Client::new(Options { conversion: vec![Arc::new(Celsius)], ..Options::default() });
    client.install(&widgets()).await;
    client.post(WIDGETS, &widget("w", 4)).await.expect(201);
    let beta = "/apis/test.dev/v1beta1/namespaces/default/widgets";
    assert_eq!(client.get(&format!("{beta}/w")).await.expect(200)["spec"]["size"], 40);
    client.patch(&format!("{beta}/w"), "merge", &json!({"spec": {"size": 70}})).await.expect(200);
    assert_eq!(client.get(&format!("{WIDGETS}/w")).await.expect(200)["spec"]["size"], 7);
    assert_eq!(client.get(beta).await.expect(200)["items"][0]["spec"]["size"], 70);
    let mut watch = client.watch(&format!("{beta}?watch=true")).await;
    assert_eq!(watch.expect("ADDED", "w").await["spec"]["size"], 70);
}

struct Rules;

impl Admission for Rules {
    fn admit(&self, request: &AdmissionRequest, object: &mut Value) -> Result<Vec<String>, Status> {
        if request.kind != "Widget" {
            return Ok(Vec::new());
        }
        if request.operation == Operation::Delete {
            return Err(Status::forbidden(&request.group, &request.resource, &request.name, "widgets stay"));
        }
        if let Some(old) = &request.old
            && old["spec"]["size"] != object["spec"]["size"]
        {
            return Err(Status::bad_request("the size stays"));
        }
        object["metadata"]["labels"] = json!({"seen": "yes"});
        Ok(vec![String::from("seen")])
    }
}

#[tokio::test]
async fn hooks_see_every_change() {
    let client = Client::new(Options { admission: vec![Arc::new(Rules)], ..Options::default() });
    client.install(&widgets()).await;
    let made = client.post(WIDGETS, &widget("w", 4)).await;
    assert_eq!(made.warnings(), ["299 - \"seen\""]);
    assert_eq!(made.expect(201)["metadata"]["labels"]["seen"], "yes");
    client.patch(&format!("{WIDGETS}/w"), "merge", &json!({"spec": {"size": 5}})).await.expect(400);
    client.patch(&format!("{WIDGETS}/w"), "merge", &json!({"spec": {"color": "blue"}})).await.expect(200);
    let refused = client.send(Method::DELETE, &format!("{WIDGETS}/w"), &[], "").await.expect(403);
    assert_eq!(refused["message"], "widgets.test.dev \"w\" is forbidden: widgets stay");
}
