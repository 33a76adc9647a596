//! The cloud's own API: its errors and its faults.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

mod support;

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{Cloud, options, order, until};

const DATA: &str = "#cloud-config\nruncmd: [true]\n";

#[tokio::test]
async fn wrong_orders_are_refused_by_field() {
    let cloud = Cloud::start(options()).await;
    cloud.balancer("b").await;
    let good = order("m", "b", false, DATA);
    let with = |field: &str, value: Value| {
        let mut order = good.clone();
        order[field] = value;
        order
    };
    for (order, field) in [
        (with("name", json!("UPPER")), "name"),
        (with("name", json!("")), "name"),
        (with("name", json!("a/b")), "name"),
        (with("owner", json!("")), "owner"),
        (with("loadBalancer", json!("none")), "loadBalancer"),
        (with("cpus", json!(0)), "cpus"),
        (with("memoryMiB", json!(0)), "memoryMiB"),
        (with("userData", json!("%")), "userData"),
        (json!({"name": "m"}), "owner"),
    ] {
        let (status, body) = cloud.call("POST", "machines", Some(order)).await;
        assert_eq!((status, body["error"]["field"].as_str()), (400, Some(field)), "{body}");
        assert_eq!(body["error"]["code"], "InvalidField");
    }
    assert_eq!(cloud.get("machines").await["items"], json!([]));

    cloud.call("POST", "machines", Some(good.clone())).await;
    for (path, order) in [("machines", good.clone()), ("load-balancers", json!({"name": "b", "owner": "x"}))] {
        let (status, body) = cloud.call("POST", path, Some(order)).await;
        assert_eq!((status, body["error"]["code"].as_str()), (409, Some("AlreadyExists")));
        assert!(body["error"]["message"].as_str().unwrap().contains("its owner is o"), "{body}");
    }
    for path in ["machines/none", "load-balancers/none"] {
        assert_eq!(cloud.call("GET", path, None).await.0, 404);
        assert_eq!(cloud.call("DELETE", path, None).await.0, 404);
    }
    assert_eq!(cloud.get("load-balancers?owner=o").await["items"].as_array().unwrap().len(), 1);
    assert_eq!(cloud.get("load-balancers?owner=x").await["items"], json!([]));
    cloud.simulator.shutdown().await;
}

#[tokio::test]
async fn the_cloud_itself_fails_when_asked_to() {
    let cloud = Cloud::start(options()).await;
    cloud.call("PUT", "faults", Some(json!({"api": {"status": 503, "count": 2}}))).await;
    assert_eq!(cloud.call("GET", "machines", None).await.0, 503);
    assert_eq!(cloud.call("POST", "load-balancers", Some(json!({"name": "b", "owner": "o"}))).await.0, 503);
    assert_eq!(cloud.get("load-balancers").await["items"], json!([]));

    // An answer that is an error although the request took effect.
    cloud
        .call(
            "PUT",
            "faults",
            Some(json!({"api": {"status": 500, "count": 1, "carriedOut": true, "methods": ["POST"]}})),
        )
        .await;
    assert_eq!(cloud.get("load-balancers").await["items"], json!([]));
    assert_eq!(cloud.call("POST", "load-balancers", Some(json!({"name": "b", "owner": "o"}))).await.0, 500);
    assert_eq!(cloud.get("load-balancers").await["items"][0]["name"], "b");

    cloud.call("PUT", "faults", Some(json!({"api": {"delay": "100ms"}}))).await;
    let begun = Instant::now();
    cloud.get("machines").await;
    assert!(begun.elapsed() >= Duration::from_millis(100));
    assert_eq!(cloud.call("DELETE", "faults", None).await.0, 204);

    cloud.call("PUT", "faults", Some(json!({"bootDelay": "150ms"}))).await;
    let begun = Instant::now();
    cloud.machine("m", "b", false, DATA).await;
    assert_eq!(cloud.get("machines/m").await["state"], "booting");
    until("the machine to run", async || (cloud.get("machines/m").await["state"] == "running").then_some(())).await;
    assert!(begun.elapsed() >= Duration::from_millis(150));
    let (status, body) = cloud.call("PUT", "faults", Some(json!({"bootDelay": "later"}))).await;
    assert_eq!((status, body["error"]["field"].as_str()), (400, Some("bootDelay")));
    cloud.simulator.shutdown().await;
}
