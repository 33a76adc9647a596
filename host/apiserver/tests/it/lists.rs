//! Lists: pages, revisions, selectors, forms.

use crate::support::*;
use capstan_apiserver::{HistoryLimit, Store};
use http::Method;
use serde_json::{Value, json};
use std::time::Duration;

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect()
}

async fn with_maps(client: &Client, count: usize) {
    for index in 0..count {
        let mut object = map(&format!("m{index}"), json!({"i": index.to_string()}));
        object["metadata"]["labels"] = json!({"odd": (index % 2 == 1).to_string(), "index": index.to_string()});
        client.post(MAPS, &object).await.expect(201);
    }
}

#[tokio::test]
async fn pages_show_one_moment() {
    let client = on(Store::memory_with(HistoryLimit { events: 8, bytes: 1 << 20, age: Duration::from_secs(60) }));
    with_maps(&client, 5).await;
    let first = client.get(&format!("{MAPS}?limit=2")).await.expect(200);
    assert_eq!(names(&first), ["m0", "m1"]);
    assert_eq!(first["metadata"]["remainingItemCount"], 3);
    client.delete(&format!("{MAPS}/m2")).await.expect(200);
    client.post(MAPS, &map("m9", json!({}))).await.expect(201);
    client.patch(&format!("{MAPS}/m3"), "merge", &json!({"data": {"i": "changed"}})).await.expect(200);
    let token = first["metadata"]["continue"].as_str().unwrap();
    let second = client.get(&format!("{MAPS}?limit=2&continue={token}")).await.expect(200);
    assert_eq!(names(&second), ["m2", "m3"]);
    assert_eq!(second["items"][1]["data"]["i"], "3");
    assert_eq!(second["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
    let token = second["metadata"]["continue"].as_str().unwrap();
    let third = client.get(&format!("{MAPS}?limit=2&continue={token}")).await.expect(200);
    assert_eq!(names(&third), ["m4"]);
    assert!(third["metadata"].get("continue").is_none());
    assert_eq!(names(&client.get(MAPS).await.expect(200)), ["m0", "m1", "m3", "m4", "m9"]);
    let rv = first["metadata"]["resourceVersion"].as_str().unwrap();
    let past = client.get(&format!("{MAPS}?resourceVersion={rv}&resourceVersionMatch=Exact")).await.expect(200);
    assert_eq!(names(&past), ["m0", "m1", "m2", "m3", "m4"]);
    for index in 0..9 {
        client.patch(&format!("{MAPS}/m9"), "merge", &json!({"data": {"i": index.to_string()}})).await.expect(200);
    }
    let expired = client.get(&format!("{MAPS}?limit=2&continue={token}")).await.expect(410);
    assert_eq!(expired["reason"], "Expired");
    client.get(&format!("{MAPS}?continue=nonsense")).await.expect(400);
    client.get(&format!("{MAPS}?limit=many")).await.expect(400);
}

#[tokio::test]
async fn revisions() {
    let client = management();
    with_maps(&client, 1).await;
    let list = client.get(MAPS).await.expect(200);
    let now: u64 = list["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    client.get(&format!("{MAPS}?resourceVersion=0")).await.expect(200);
    client.get(&format!("{MAPS}?resourceVersion={now}&resourceVersionMatch=NotOlderThan")).await.expect(200);
    let early = client.get(&format!("{MAPS}?resourceVersion={}", now + 5)).await.expect(504);
    assert_eq!(early["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
    client.get(&format!("{MAPS}?resourceVersionMatch=Exact")).await.expect(422);
    client.get(&format!("{MAPS}?resourceVersion=0&resourceVersionMatch=Exact")).await.expect(422);
    client.get(&format!("{MAPS}?resourceVersion=x")).await.expect(400);
}

#[tokio::test]
async fn selectors() {
    let client = management();
    client.install(&widgets()).await;
    with_maps(&client, 4).await;
    let get = async |selector: &str| {
        let list = client.get(&format!("{MAPS}?{selector}")).await.expect(200);
        names(&list).iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(get("labelSelector=odd%3Dtrue").await, ["m1", "m3"]);
    assert_eq!(get("labelSelector=index+in+(1,2),odd!%3Dtrue").await, ["m2"]);
    assert_eq!(get("fieldSelector=metadata.name%3Dm2").await, ["m2"]);
    assert_eq!(get("labelSelector=odd&limit=1&fieldSelector=metadata.name!%3Dm0").await, ["m1"]);
    client.get(&format!("{MAPS}?labelSelector=a+b")).await.expect(400);
    client.get(&format!("{MAPS}?fieldSelector=data.i%3D1")).await.expect(400);
    let mut blue = widget("blue", 1);
    blue["spec"]["color"] = json!("blue");
    client.post(WIDGETS, &blue).await.expect(201);
    client.post(WIDGETS, &widget("red", 1)).await.expect(201);
    assert_eq!(names(&client.get(&format!("{WIDGETS}?fieldSelector=spec.color%3Dblue")).await.expect(200)), ["blue"]);
    // Across namespaces.
    let other = map("other", json!({}));
    client.post("/api/v1/namespaces/kube-system/configmaps", &other).await.expect(201);
    assert_eq!(client.get("/api/v1/configmaps").await.expect(200)["items"].as_array().unwrap().len(), 5);
    assert_eq!(
        client.get("/api/v1/configmaps?fieldSelector=metadata.namespace%3Dkube-system").await.expect(200)["items"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    client.send(Method::DELETE, "/api/v1/configmaps", &[], "").await.expect(405);
}

#[tokio::test]
async fn tables_and_metadata() {
    let client = management();
    client.install(&widgets()).await;
    client.post(WIDGETS, &widget("w", 7)).await.expect(201);
    let table = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json")];
    let answer = client.send(Method::GET, WIDGETS, &table, "").await.expect(200);
    assert_eq!(answer["kind"], "Table");
    let columns: Vec<&str> =
        answer["columnDefinitions"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect();
    assert_eq!(columns, ["Name", "Size", "Phase", "Color", "Age"]);
    assert_eq!(answer["rows"][0]["cells"].as_array().unwrap()[..4], [json!("w"), json!(7), json!(null), json!("red")]);
    assert_eq!(answer["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    let one = client.send(Method::GET, &format!("{WIDGETS}/w?includeObject=Object"), &table, "").await.expect(200);
    assert_eq!(one["rows"][0]["object"]["spec"]["size"], 7);
    let partial = [("accept", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json")];
    let list = client.send(Method::GET, WIDGETS, &partial, "").await.expect(200);
    assert_eq!(list["kind"], "PartialObjectMetadataList");
    assert_eq!(list["items"][0]["kind"], "PartialObjectMetadata");
    assert!(list["items"][0].get("spec").is_none());
    client.send(Method::GET, WIDGETS, &[("accept", "application/vnd.kubernetes.protobuf")], "").await.expect(406);
}

#[tokio::test]
async fn a_long_list_comes_in_pieces_and_whole() {
    let client = management();
    for index in 0..40 {
        client.post(MAPS, &map(&format!("m{index:02}"), json!({"x": "y".repeat(20_000)}))).await.expect(201);
    }
    let list = client.get(MAPS).await.expect(200);
    assert_eq!(list["items"].as_array().unwrap().len(), 40);
    assert_eq!(list["kind"], "ConfigMapList");
}
