//! Lists: selectors, pages, revisions.

use crate::objects::{map, maps};
use crate::session::{Own, Session, compare};
use serde_json::json;

async fn fill(s: &mut Session, namespace: &str) -> String {
    s.namespace(namespace).await;
    let path = maps(namespace);
    for index in 0..5 {
        let mut object = map(&format!("m{index}"), json!({"i": index.to_string()}));
        object["metadata"]["labels"] = json!({"odd": (index % 2 == 1).to_string(), "i": index.to_string()});
        s.post(&path, &object).await.expect(201);
    }
    path
}

#[tokio::test]
async fn selectors() {
    compare(async |s: &mut Session| {
        let path = fill(s, "list-selectors").await;
        for selector in [
            "odd=true",
            "odd==true",
            "odd!=true",
            "odd",
            "!odd",
            "none",
            "!none",
            "i in (1,2)",
            "i notin (1,2)",
            "i>2",
            "i<2",
            "i in (1,2),odd=true",
            "odd=true,",
            " odd = true ",
            "i in ()",
            "odd in true",
            "=x",
            "a b",
            "i>x",
            "odd=a b",
            "-x=1",
            "x=-1",
            "!",
            "(",
            "a in (b",
            "x/y/z=1",
            "odd=true,,i=1",
            "odd notin (), i",
        ] {
            s.get(&format!("{path}?labelSelector={}", encode(selector))).await;
        }
        for selector in [
            "metadata.name=m1",
            "metadata.name!=m1",
            "metadata.namespace=list-selectors",
            "metadata.namespace=other",
            "metadata.name=m1,metadata.namespace=list-selectors",
            "data.i=1",
            "nonsense",
            "metadata.name",
            "metadata.name=",
            "=m1",
            "metadata.labels.odd=true",
            "metadata.name=m1\\,",
            "",
        ] {
            s.get(&format!("{path}?fieldSelector={}", encode(selector))).await;
        }
        s.get(&format!("{path}?labelSelector=odd&fieldSelector=metadata.name%21%3Dm1")).await;
        s.get(&format!("{path}?nonsense=1&pretty=true")).await;
    })
    .await;
}

fn encode(text: &str) -> String {
    text.bytes()
        .map(|byte| if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[tokio::test]
async fn pages() {
    compare(async |s: &mut Session| {
        let path = fill(s, "list-pages").await;
        let first = s.get(&format!("{path}?limit=2")).await.expect(200);
        let token = |list: &serde_json::Value| list["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
        s.delete(&format!("{path}/m2")).await;
        s.post(&path, &map("m9", json!({}))).await.expect(201);
        let continued = format!("{path}?limit=2&continue={}", token(&first));
        let second = get_quietly(s, &continued).await;
        s.note("second page", tokenless(&second));
        let third = get_quietly(s, &format!("{path}?limit=2&continue={}", token(&second))).await;
        s.note("third page", tokenless(&third));
        s.get(&format!("{path}?limit=0")).await;
        s.get(&format!("{path}?limit=100")).await;
        s.get(&format!("{path}?limit=-1")).await;
        s.get(&format!("{path}?limit=2&labelSelector=odd")).await;
        s.request(reqwest::Method::GET, &format!("{path}?limit=many")).own(Own::Message).send().await;
        s.request(reqwest::Method::GET, &format!("{path}?continue=nonsense")).own(Own::Message).send().await;
        let rv = first["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
        let both = format!("{path}?limit=2&continue={}&resourceVersion={rv}", token(&first));
        let answer = s.request(reqwest::Method::GET, &both).quietly().send().await;
        s.note("token and revision", json!([answer.code, answer.body["message"]]));
        s.get(&format!("{path}?limit=2&resourceVersion=0")).await;
    })
    .await;
}

/// A list by a token, without the tokens that differ from server to server.
async fn get_quietly(s: &mut Session, path: &str) -> serde_json::Value {
    let answer = s.request(reqwest::Method::GET, path).quietly().send().await;
    assert_eq!(answer.code, 200, "{:#}", answer.body);
    let normal = s.words.normal(&answer.body);
    let mut shown = answer.body.clone();
    shown["items"] = normal["items"].clone();
    shown["metadata"]["resourceVersion"] = json!("revision");
    shown
}

/// A page without its token.
fn tokenless(page: &serde_json::Value) -> serde_json::Value {
    let mut page = page.clone();
    page["metadata"]["continue"] = json!(page["metadata"]["continue"].is_string());
    page
}

#[tokio::test]
async fn revisions() {
    compare(async |s: &mut Session| {
        let path = fill(s, "list-revisions").await;
        let now = s.get(&path).await.revision();
        let past = s.get(&format!("{path}/m1")).await.revision();
        let far = now.parse::<u64>().unwrap() + 1_000_000;
        for (what, query) in [
            ("zero", "resourceVersion=0".to_owned()),
            ("now", format!("resourceVersion={now}")),
            ("now, not older", format!("resourceVersion={now}&resourceVersionMatch=NotOlderThan")),
            ("now, exact", format!("resourceVersion={now}&resourceVersionMatch=Exact")),
            ("past, exact", format!("resourceVersion={past}&resourceVersionMatch=Exact")),
            ("past, not older", format!("resourceVersion={past}&resourceVersionMatch=NotOlderThan")),
            ("past, limit", format!("resourceVersion={past}&limit=1")),
            ("past", format!("resourceVersion={past}")),
            ("future", format!("resourceVersion={far}")),
            ("future, not older", format!("resourceVersion={far}&resourceVersionMatch=NotOlderThan")),
            ("match alone", "resourceVersionMatch=Exact".to_owned()),
            ("zero, exact", "resourceVersion=0&resourceVersionMatch=Exact".to_owned()),
            ("nonsense match", format!("resourceVersion={now}&resourceVersionMatch=Nonsense")),
            ("no number", "resourceVersion=x".to_owned()),
            ("negative", "resourceVersion=-1".to_owned()),
            ("initial events of a list", "sendInitialEvents=true&resourceVersionMatch=NotOlderThan".to_owned()),
        ] {
            let answer = s.request(reqwest::Method::GET, &format!("{path}?{query}")).quietly().send().await;
            let body = s.words.normal(&answer.body);
            s.note(what, json!([answer.code, body]));
        }
        let answer =
            s.request(reqwest::Method::GET, &format!("{path}/m1?resourceVersion={far}")).quietly().send().await;
        let body = s.words.normal(&answer.body);
        s.note("get in the future", json!([answer.code, body]));
        s.get(&format!("{path}/m1?resourceVersion=0")).await;
        s.get(&format!("{path}/m1?resourceVersion=x")).await;
    })
    .await;
}

#[tokio::test]
async fn one_by_its_name_and_everywhere() {
    compare(async |s: &mut Session| {
        let path = fill(s, "list-everywhere").await;
        s.get(&format!("{path}?fieldSelector=metadata.name%3Dm3")).await;
        let everywhere = s
            .get("/api/v1/configmaps?labelSelector=odd%3Dtrue&fieldSelector=metadata.namespace%3Dlist-everywhere")
            .await;
        assert_eq!(everywhere.body["items"].as_array().map(Vec::len), Some(2), "{:#}", everywhere.body);
        s.get("/api/v1/namespaces/none-such/configmaps").await;
        s.get("/api/v1/namespaces/list-everywhere").await;
    })
    .await;
}
