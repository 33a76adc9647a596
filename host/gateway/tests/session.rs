//! A turn's requests: what is refused, shared and recorded.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use capstan_api::ObjectKey;
use capstan_core::contract::Effect;
use capstan_core::turn::{Fence, no_fence};
use capstan_gateway::{
    Call, Chunk, Declared, Destination, EndpointConfig, Endpoints, Gateway, HttpError, Limits, Method, Origin, Request,
    Session, Transport, TransportError, TurnScope, WireRequest, WireResponse,
};

struct Anywhere;

impl Endpoints for Anywhere {
    fn endpoint(&self, _: &str, name: &str) -> Result<Option<Destination>, String> {
        match name {
            "api" => Origin::parse("http://cloud.test").map(Destination::of).map(Some),
            "broken" => Err("its Secret is missing".to_owned()),
            _ => Ok(None),
        }
    }
    fn module_default(&self, _: &str, _: &str) -> Result<Option<Destination>, String> {
        Ok(None)
    }
}

/// Answers with a number that counts up.
#[derive(Default)]
struct Counting {
    count: AtomicUsize,
    status: AtomicUsize,
    endpoints: Mutex<Vec<EndpointConfig>>,
}

#[async_trait]
impl Transport for Counting {
    async fn exchange(
        &self,
        endpoint: &EndpointConfig,
        request: WireRequest,
        _fence: Option<&Fence>,
    ) -> Result<WireResponse, TransportError> {
        self.endpoints.lock().unwrap().push(endpoint.clone());
        let number = self.count.fetch_add(1, Ordering::SeqCst);
        // Others come to ask the same in the meantime.
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        let headers = vec![
            ("etag".to_owned(), "1".to_owned()),
            ("set-cookie".to_owned(), "session=1".to_owned()),
            ("connection".to_owned(), "close".to_owned()),
        ];
        let status = u16::try_from(self.status.load(Ordering::SeqCst)).unwrap();
        let body = format!("{number}{}", String::from_utf8_lossy(&request.body)).into();
        Ok(WireResponse { status: if status == 0 { 200 } else { status }, status_text: "OK".into(), headers, body })
    }
}

fn gateway() -> (Arc<Gateway>, Arc<Counting>) {
    let transport = Arc::new(Counting::default());
    (Arc::new(Gateway::new(Arc::new(Anywhere), transport.clone())), transport)
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::new("g", "K", "tenant", name)
}

fn session(gateway: &Arc<Gateway>, object: &str) -> Session {
    let declared = |name: &str| Declared { timeout: Duration::from_secs(7), max_response: 99, ..Declared::named(name) };
    let scope = TurnScope {
        module: "m".into(),
        object: key(object),
        input: None,
        limits: Limits { requests: 5, ..Limits::default() },
    };
    gateway.session(scope, &[declared("api"), declared("broken"), declared("unconfigured")])
}

fn request(method: Method) -> Request {
    Request {
        endpoint: "api".into(),
        method,
        path: "/x".into(),
        query: vec![],
        headers: vec![],
        body: vec![],
        max_age: None,
    }
}

static YES: LazyLock<Fence> = LazyLock::new(no_fence);

fn observe() -> Call<'static> {
    Call { name: "observe vm", may_change: false, still_may_change: &YES }
}

fn create() -> Call<'static> {
    Call { name: "create vm", may_change: true, still_may_change: &YES }
}

fn aged(max_age: u64) -> Request {
    Request { max_age: Some(max_age), ..request(Method::Get) }
}

async fn body(session: &mut Session, request: Request) -> String {
    String::from_utf8(session.send(observe(), request).await.unwrap().body.to_vec()).unwrap()
}

#[tokio::test]
async fn endpoints_are_those_of_the_manifest_and_the_configuration() {
    let (gateway, transport) = gateway();
    let mut session = session(&gateway, "a");
    let to = |endpoint: &str| Request { endpoint: endpoint.into(), ..request(Method::Get) };
    assert_eq!(session.send(observe(), to("metadata")).await, Err(HttpError::UnknownEndpoint));
    let unconfigured = session.send(observe(), to("unconfigured")).await.unwrap_err().to_string();
    assert!(unconfigured.contains("create an Endpoint unconfigured in namespace tenant"), "{unconfigured}");
    let broken = session.send(observe(), to("broken")).await.unwrap_err();
    assert!(matches!(&broken, HttpError::NotSent(why) if why.contains("Secret")), "{broken:?}");
    let answer = session.send(observe(), to("api")).await.unwrap();
    assert_eq!(answer.headers, [("etag".to_owned(), "1".to_owned())]);
    let endpoint = transport.endpoints.lock().unwrap()[0].clone();
    assert_eq!((endpoint.timeout, endpoint.max_response), (Duration::from_secs(7), 99));
}

#[tokio::test]
async fn nothing_is_changed_through_a_read_only_endpoint() {
    let (gateway, transport) = gateway();
    let scope = TurnScope { module: "m".into(), object: key("a"), input: None, limits: Limits::default() };
    let mut session = gateway.session(scope, &[Declared { read_only: true, ..Declared::named("api") }]);
    let refused = session.send(create(), request(Method::Post)).await.unwrap_err().to_string();
    assert!(refused.contains("endpoint api") && refused.contains("ProviderModule m"), "{refused}");
    assert!(session.send(create(), request(Method::Get)).await.is_ok());
    assert_eq!(transport.endpoints.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn the_budget_counts_what_is_sent() {
    let (gateway, transport) = gateway();
    let mut session = session(&gateway, "a");
    let many = vec![request(Method::Get); 7];
    let answers = session.read_all(observe(), many).await;
    assert!(answers[..5].iter().all(Result::is_ok));
    assert_eq!(answers[5..], [Err(HttpError::BudgetSpent), Err(HttpError::BudgetSpent)]);
    assert_eq!(transport.count.load(Ordering::SeqCst), 5);
}

#[tokio::test]
async fn read_all_only_reads_even_in_a_changing_call() {
    let (gateway, transport) = gateway();
    let mut session = session(&gateway, "a");
    let answers = session.read_all(create(), vec![request(Method::Delete), request(Method::Get)]).await;
    assert!(matches!(answers[0], Err(HttpError::Denied(_))) && answers[1].is_ok());
    assert_eq!((session.effect(), transport.count.load(Ordering::SeqCst)), (Effect::NotSent, 1));
}

#[tokio::test]
async fn an_invalid_request_uses_up_neither_the_change_nor_a_secret() {
    let (gateway, _) = gateway();
    let mut session = session(&gateway, "a");
    session.begin_call();
    let mut bad = request(Method::Post);
    bad.headers = vec![("Host".into(), "evil".into())];
    assert!(matches!(session.send(create(), bad).await, Err(HttpError::Denied(_))));
    assert_eq!(session.effect(), Effect::NotSent);
    let mut good = request(Method::Post);
    good.body = vec![Chunk::Secret { label: "t".into(), bytes: "hunter2".into() }];
    session.send(create(), good).await.unwrap();
    assert_eq!(session.effect(), Effect::Answered);
    let shown = format!("{:?}", gateway.ledger().for_object(&key("a")));
    assert!(shown.contains("<secret:t>") && !shown.contains("hunter2"), "{shown}");
    session.begin_call();
    assert_eq!(session.effect(), Effect::NotSent);
}

#[tokio::test]
async fn a_dropped_change_stays_unknown() {
    let (gateway, _) = gateway();
    let mut session = session(&gateway, "a");
    {
        let mut sending = Box::pin(session.send(create(), request(Method::Post)));
        let polled = futures::poll!(&mut sending);
        assert!(polled.is_pending());
    }
    assert_eq!(session.effect(), Effect::Unknown);
}

#[tokio::test]
async fn one_answer_serves_a_fleet_but_not_the_object_that_changed_something() {
    let (gateway, transport) = gateway();
    let mut sessions: Vec<Session> = ["a", "b", "c"].map(|name| session(&gateway, name)).into();
    let together = sessions.iter_mut().map(|session| body(session, aged(60_000)));
    assert_eq!(futures::future::join_all(together).await, ["0", "0", "0"], "asked at the same time, sent once");
    assert_eq!(body(&mut sessions[0], request(Method::Get)).await, "1", "no age: asked anew");
    sessions[1].send(create(), request(Method::Post)).await.unwrap();
    assert_eq!(body(&mut sessions[0], aged(60_000)).await, "0");
    assert_eq!(body(&mut sessions[1], aged(60_000)).await, "3", "b has changed something since");
    assert_eq!(body(&mut sessions[2], aged(60_000)).await, "3");
    let mut other = aged(60_000);
    other.headers = vec![("accept".into(), "text/plain".into())];
    assert_eq!(body(&mut sessions[2], other).await, "4", "another request");
    assert_eq!(transport.count.load(Ordering::SeqCst), 5);
}

#[tokio::test]
async fn a_failed_read_is_asked_again() {
    let (gateway, transport) = gateway();
    let mut session = session(&gateway, "a");
    transport.status.store(503, Ordering::SeqCst);
    assert_eq!(body(&mut session, aged(60_000)).await, "0");
    assert_eq!(body(&mut session, aged(60_000)).await, "1");
}
