//! Case A21 of the field: a controller whose watch cannot go on lists anew, in whichever form it is told, and does not spin.

use crate::objects::{map, maps};
use crate::session::{Session, compare};
use bytes::Bytes;
use capstan_cluster::mirror::{Mirror, Notice};
use capstan_cluster::wire::Wire;
use capstan_core::view::{Place, Select};
use futures::StreamExt;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::BodyExt;
use reqwest::{Client, Method};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::watch;

/// What becomes of requests on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Open,
    /// Nothing gets through.
    Cut,
    /// The next watch is answered with the status 410, then it is open.
    Status410,
    /// The next watch is answered with 200 and an event that says 410, then it is open.
    Event410,
    /// Lists get through, watches are answered with 403.
    NoWatches,
}

/// A client's way to a server, with somebody on it.
#[derive(Clone)]
struct Proxy {
    client: Client,
    url: String,
    way: watch::Sender<Way>,
    /// Lists and watches of ConfigMaps that were asked for.
    asked: Arc<Mutex<(usize, usize)>>,
}

fn answer(code: u16, body: String) -> Response<reqwest::Body> {
    Response::builder().status(code).body(reqwest::Body::from(body)).expect("an answer")
}

const GONE: &str = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","message":"too old resource version","reason":"Expired","code":410}"#;
const FORBIDDEN: &str = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","message":"you may not watch","reason":"Forbidden","code":403}"#;

impl tower::Service<Request<kube::client::Body>> for Proxy {
    type Response = Response<reqwest::Body>;
    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<kube::client::Body>) -> Self::Future {
        let proxy = self.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let body: Bytes = body.collect().await?.to_bytes();
            let path = parts.uri.to_string();
            let watches = path.contains("watch=true");
            if path.contains("/configmaps") {
                let mut asked = proxy.asked.lock().expect("the counters");
                *(if watches { &mut asked.1 } else { &mut asked.0 }) += 1;
            }
            let way = *proxy.way.borrow();
            match way {
                Way::Cut => return Err("the way is cut".into()),
                Way::Status410 | Way::Event410 if watches && path.contains("/configmaps") => {
                    proxy.way.send_replace(Way::Open);
                    if way == Way::Status410 {
                        return Ok(answer(410, GONE.to_owned()));
                    }
                    return Ok(answer(200, format!("{{\"type\":\"ERROR\",\"object\":{GONE}}}\n")));
                }
                Way::NoWatches if watches => return Ok(answer(403, FORBIDDEN.to_owned())),
                _ => {}
            }
            let mut cut = proxy.way.subscribe();
            let url = format!("{}{}", proxy.url, parts.uri.path_and_query().map_or("/", |path| path.as_str()));
            let response = proxy.client.request(parts.method, url).headers(parts.headers).body(body).send().await?;
            let code = response.status();
            let until = async move { drop(cut.wait_for(|way| matches!(way, Way::Cut | Way::NoWatches)).await) };
            let stream = response.bytes_stream().take_until(Box::pin(until));
            let mut answer = Response::new(reqwest::Body::wrap_stream(stream));
            *answer.status_mut() = code;
            Ok(answer)
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a21_a_watch_that_cannot_go_on_begins_anew() {
    compare(async |s: &mut Session| {
        s.namespace("field-a21").await;
        let path = maps("field-a21");
        let proxy = Proxy {
            client: s.server.admin(),
            url: s.server.url.clone(),
            way: watch::Sender::new(Way::Open),
            asked: Arc::default(),
        };
        // How often each object came and went, as far as the controller was told.
        let told: Arc<Mutex<BTreeMap<String, (usize, usize)>>> = Arc::default();
        let listener = {
            let told = told.clone();
            Arc::new(move |notice: Notice| {
                let Notice::Changed(_, change) = notice else { return };
                let object = change.new.as_ref().or(change.old.as_ref());
                let Some(object) = object.filter(|object| object.namespace() == "field-a21") else { return };
                let mut told = told.lock().expect("what was told");
                let of = told.entry(object.name().to_owned()).or_default();
                match (&change.old, &change.new) {
                    (None, Some(_)) => of.0 += 1,
                    (Some(_), None) => of.1 += 1,
                    _ => {}
                }
            })
        };
        let place = Place::Workload { namespace: "n".into(), cluster: "c".into() };
        let mirror = Mirror::new(place, Wire::new(kube::Client::new(proxy.clone(), "default")), listener);
        let names = || -> Vec<String> {
            let all = mirror.list("", "ConfigMap", "field-a21", &Select::All).unwrap_or_default();
            all.iter().map(|map| map.name().to_owned()).collect()
        };
        let shows = async |wanted: &[String]| {
            for _ in 0..300 {
                if names() == wanted {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            panic!("{}: shows {:?} and not {wanted:?}; asked {:?}", s.server.name, names(), proxy.asked.lock());
        };
        let five = |of: &str| -> Vec<String> { (0..5).map(|n| format!("{of}-{n}")).collect() };
        let admin = s.server.admin();
        let change = async |method: Method, name: &str| {
            let url = format!("{}{path}", s.server.url);
            let request = match method {
                Method::POST => admin.post(url).json(&map(name, json!({}))),
                _ => admin.delete(format!("{url}/{name}")),
            };
            request.send().await.expect("an answer").error_for_status().expect("done");
        };
        for name in five("first") {
            change(Method::POST, &name).await;
        }
        shows(&five("first")).await;
        let mut before = five("first");
        for (form, of) in [(Way::Status410, "second"), (Way::Event410, "third")] {
            proxy.way.send_replace(Way::Cut);
            let next = five(of);
            for name in &next {
                change(Method::POST, name).await;
            }
            for name in &before {
                change(Method::DELETE, name).await;
            }
            proxy.way.send_replace(form);
            shows(&next).await;
            before = next;
        }
        let (lists, watches) = *proxy.asked.lock().expect("the counters");
        assert!(lists >= 3, "only {lists} lists: it did not begin anew");
        assert!(lists + watches < 30, "{lists} lists and {watches} watches: it spins");

        // Who may not watch lists again, ever more rarely, and goes on by himself when he may.
        proxy.way.send_replace(Way::NoWatches);
        tokio::time::sleep(Duration::from_secs(3)).await;
        let (more_lists, more_watches) = *proxy.asked.lock().expect("the counters");
        assert!(
            more_lists + more_watches - lists - watches < 20,
            "{more_lists} lists, {more_watches} watches: it spins"
        );
        proxy.way.send_replace(Way::Open);
        change(Method::POST, "last").await;
        let mut all = vec!["last".to_owned()];
        all.extend(before.clone());
        all.sort();
        shows(&all).await;
        let told = told.lock().expect("what was told").clone();
        for (name, (came, went)) in &told {
            assert_eq!(*came, 1, "{name} came {came} times");
            assert_eq!(*went, usize::from(!all.contains(name)), "{name} went {went} times");
        }
        assert_eq!(told.len(), 16, "{told:?}");
    })
    .await;
}
