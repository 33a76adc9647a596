//! kube-rs against the server, in process.

use crate::support::*;
use capstan_apiserver::User;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
};
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::json;

fn kube_client(client: &Client) -> kube::Client {
    kube::Client::new(client.server.service(User::admin("kube")), "default")
}

#[tokio::test]
async fn typed_and_dynamic_access() {
    let client = management();
    let kube = kube_client(&client);
    let maps: Api<ConfigMap> = Api::default_namespaced(kube.clone());
    let made = maps
        .create(&PostParams::default(), &serde_json::from_value(map("a", json!({"k": "v"}))).unwrap())
        .await
        .unwrap();
    assert_eq!(made.data.unwrap()["k"], "v");
    let applied =
        maps.patch("a", &PatchParams::apply("me").force(), &Patch::Apply(map("a", json!({"k": "w"})))).await.unwrap();
    assert_eq!(applied.data.unwrap()["k"], "w");
    assert_eq!(maps.list(&ListParams::default()).await.unwrap().items.len(), 1);
    assert_eq!(maps.list_metadata(&ListParams::default()).await.unwrap().items.len(), 1);
    let missing = maps.get("none").await.unwrap_err();
    assert!(matches!(missing, kube::Error::Api(status) if status.code == 404 && status.reason == "NotFound"));
    assert!(maps.delete("a", &DeleteParams::default()).await.unwrap().is_right());
    let namespaces: Api<Namespace> = Api::all(kube.clone());
    assert!(namespaces.get_opt("kube-system").await.unwrap().is_some());
    let discovery = kube::Discovery::new(kube.clone()).run().await.unwrap();
    assert!(discovery.has_group("apiextensions.k8s.io"));
    let discovery = kube::Discovery::new(kube).run_aggregated().await.unwrap();
    assert!(discovery.has_group("coordination.k8s.io"));
}

#[tokio::test]
async fn controllers_can_do_without_managed_fields() {
    let client = management();
    let lean = kube::Client::new(client.server.service(User::admin("lean")).without_managed_fields(), "default");
    let maps: Api<ConfigMap> = Api::default_namespaced(lean);
    let made =
        maps.patch("a", &PatchParams::apply("me"), &Patch::Apply(map("a", json!({"k": "v", "l": "v"})))).await.unwrap();
    assert!(made.metadata.managed_fields.is_none());
    let mut read = maps.get("a").await.unwrap();
    assert!(read.metadata.managed_fields.is_none());
    assert!(maps.list(&ListParams::default()).await.unwrap().items[0].metadata.managed_fields.is_none());
    let mut watch = watcher(maps.clone(), watcher::Config::default()).applied_objects().boxed();
    assert!(watch.try_next().await.unwrap().unwrap().metadata.managed_fields.is_none());
    read.data.get_or_insert_default().insert("k".to_owned(), "w".to_owned());
    maps.replace("a", &PostParams { field_manager: Some("other".into()), ..PostParams::default() }, &read)
        .await
        .unwrap();
    let stored = client.get(&format!("{MAPS}/a")).await.expect(200);
    let managers: Vec<&str> = stored["metadata"]["managedFields"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["manager"].as_str().unwrap())
        .collect();
    assert_eq!(managers, ["me", "other"], "{stored:#}");
}

#[tokio::test]
async fn watchers_of_both_strategies_see_everything() {
    let client = management();
    client.install(&widgets()).await;
    client.post(WIDGETS, &widget("first", 1)).await.expect(201);
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("test.dev", "v1", "Widget"));
    let api: Api<DynamicObject> = Api::all_with(kube_client(&client), &resource);
    for config in [watcher::Config::default(), watcher::Config::default().streaming_lists()] {
        let mut stream = watcher(api.clone(), config).applied_objects().boxed();
        assert_eq!(stream.try_next().await.unwrap().unwrap().metadata.name.unwrap(), "first");
        client.post(WIDGETS, &widget("second", 1)).await.expect(201);
        assert_eq!(stream.try_next().await.unwrap().unwrap().metadata.name.unwrap(), "second");
        client.delete(&format!("{WIDGETS}/second")).await.expect(200);
    }
}

#[tokio::test]
async fn the_recorder_of_events_works() {
    let client = management();
    let recorder = kube::runtime::events::Recorder::new(kube_client(&client), "tester".into());
    let reference = k8s_openapi::api::core::v1::ObjectReference {
        kind: Some("ConfigMap".into()),
        name: Some("a".into()),
        namespace: Some("default".into()),
        ..Default::default()
    };
    let event = kube::runtime::events::Event {
        type_: kube::runtime::events::EventType::Normal,
        reason: "Because".into(),
        note: Some("of this".into()),
        action: "Testing".into(),
        secondary: None,
    };
    recorder.publish(&event, &reference).await.unwrap();
    recorder.publish(&event, &reference).await.unwrap();
    let events = client.get("/api/v1/namespaces/default/events").await.expect(200);
    assert_eq!(events["items"][0]["message"], "of this");
    assert_eq!(events["items"].as_array().unwrap().len(), 1);
}
