//! The suite itself, on a native double of a component: a right one passes, and each of its defects is found.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use capstan_api::ObjectKey;
use capstan_core::contract::{
    Absence, Choice, Duty, Granted, KnownPart, MachineFacts, MachinePhase, Observed, Ownership, Part, Presence,
    Progress, ProviderError, Reason, Served,
};
use capstan_core::turn::{Call, Fence, Outcome, Reply, TurnInput};
use capstan_gateway::{Chunk, Declared, Gateway, HttpError, Limits, Method, Request, Response, Session, TurnScope};
use capstan_testkit::Schedule;
use capstan_testkit::conformance::{Access, Component, Extent, Guest, Life, Server, ServerStarts, Suite};
use http_body_util::{BodyExt as _, Full};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};

use super::scenery::{around_machine, node_joins, owner};

const GROUP: &str = "infrastructure.cluster.x-k8s.io";
const PART: &str = "thing";

/// What is wrong with a component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Defect {
    None,
    /// What it makes carries no owner key.
    NoOwnerKey,
    /// It takes the first thing that it sees for its own.
    AdoptsAnything,
    /// It does not send the idempotency key.
    NoIdempotencyKey,
    /// What a server that fails does not show is absent.
    TakesErrorsForAbsence,
    /// A refused credential is a passing trouble.
    MistakesErrors,
    /// It changes something when it is to look.
    ChangesWhenLooking,
    /// What is being deleted is absent, seen or not.
    LiesAboutDeletion,
    /// It reads more than it has parts.
    ReadsTooMuch,
    /// Its pure calls answer differently each time.
    Impure,
    /// Its manifest says that nothing is late and nothing shows the past.
    Hurried,
}

struct Double {
    defect: Defect,
    mood: Mutex<u32>,
}

#[async_trait]
impl Component for Double {
    fn served(&self) -> Vec<(String, Served)> {
        let hurried = self.defect == Defect::Hurried;
        let served = Served {
            module: "conformance".into(),
            duty: Duty::InfraMachine,
            group: GROUP.into(),
            cluster_kind: Some("DoubleCluster".into()),
            machine_kind: Some("DoubleMachine".into()),
            consistency_window: if hurried { 0 } else { 5_000 },
            request_timeout: if hurried { 1 } else { 30_000 },
            workload_objects: BTreeMap::new(),
            object_references: Vec::new(),
            endpoints: vec!["api".into()],
            credentials: Vec::new(),
        };
        vec![("DoubleMachine".into(), served)]
    }

    async fn begin(&self, input: TurnInput, gateway: &Arc<Gateway>) -> anyhow::Result<Box<dyn Guest>> {
        let scope = TurnScope {
            module: "conformance".into(),
            object: input.subject.key(),
            input: None,
            limits: Limits::default(),
        };
        let session = gateway.session(scope, &[Declared::named("api")]);
        *self.mood.lock().unwrap() += 1;
        let mood = *self.mood.lock().unwrap();
        Ok(Box::new(Turn { defect: self.defect, mood, input, session }))
    }
}

struct Turn {
    defect: Defect,
    mood: u32,
    input: TurnInput,
    session: Session,
}

type Asked<T> = Result<T, ProviderError>;

fn reason(code: &str) -> Reason {
    Reason { code: code.into(), message: code.into() }
}

#[async_trait]
impl Guest for Turn {
    async fn call(
        &mut self,
        call: Call,
        known: BTreeMap<String, KnownPart>,
        _: Granted,
        may_change: &Fence,
    ) -> Outcome {
        self.session.begin_call();
        let changes = matches!(call, Call::Create(_) | Call::Update(..) | Call::Delete(_));
        let http = capstan_gateway::Call { name: "call", may_change: changes, still_may_change: may_change };
        let known = known.get(PART).cloned().unwrap_or_default();
        let reply = match call {
            Call::Needs => Ok(Reply::Needs(Vec::new())),
            Call::Parts => Ok(Reply::Parts(vec![Part {
                name: PART.into(),
                after: Vec::new(),
                ownership: Ownership::Managed,
                replaceable: self.defect == Defect::Impure && self.mood.is_multiple_of(2),
            }])),
            Call::Identify { .. } => Ok(Reply::Choice(Choice { id: None, frozen: Value::Null })),
            Call::Observe(_) => self.observe(http).await.map(Reply::Presence),
            Call::Create(_) => self.create(http, &known).await.map(Reply::Progress),
            Call::Delete(_) => self.delete(http).await.map(Reply::Progress),
            Call::ReportMachine => Ok(Reply::MachineFacts(facts(&known))),
            _ => Err(ProviderError::Internal(reason("NotOfThisRole"))),
        };
        Outcome { reply, effect: self.session.effect() }
    }
}

fn facts(known: &KnownPart) -> MachineFacts {
    let there = known.state.is_some();
    MachineFacts {
        phase: if there { MachinePhase::Running } else { MachinePhase::Pending },
        provider_id: known.id.as_ref().filter(|_| there).map(|id| format!("double://{id}")),
        addresses: Vec::new(),
        failure_domain: None,
        node_name: None,
        interruptible: false,
        conditions: Vec::new(),
        status: json!({}),
    }
}

impl Turn {
    async fn ask(
        &mut self,
        http: capstan_gateway::Call<'_>,
        method: Method,
        path: &str,
        body: Value,
    ) -> Asked<Response> {
        let query = match method {
            Method::Get if self.defect != Defect::AdoptsAnything => {
                vec![("owner".into(), self.input.owner_key.clone())]
            }
            _ => Vec::new(),
        };
        let body = if body.is_null() { Vec::new() } else { vec![Chunk::Plain(body.to_string().into())] };
        let request = Request {
            endpoint: "api".into(),
            method,
            path: path.into(),
            query,
            headers: Vec::new(),
            body,
            max_age: None,
        };
        let response = self.session.send(http, request).await.map_err(|error| match error {
            HttpError::Denied(why) => ProviderError::Internal(reason(&why)),
            other => ProviderError::Transient(reason(&other.to_string())),
        })?;
        match response.status {
            401 | 403 if self.defect == Defect::MistakesErrors => Err(ProviderError::Transient(reason("Odd"))),
            401 | 403 => Err(ProviderError::Unauthorized(reason("Refused"))),
            429 => Err(ProviderError::Throttled(None)),
            503 if response.headers.iter().any(|(name, _)| name == "retry-after") => {
                Err(ProviderError::Throttled(None))
            }
            500.. => Err(ProviderError::Transient(reason("ServerError"))),
            _ => Ok(response),
        }
    }

    /// The ids of its things.
    async fn found(&mut self, http: capstan_gateway::Call<'_>) -> Asked<Vec<String>> {
        let response = self.ask(http, Method::Get, "/things", Value::Null).await?;
        let things: Vec<String> =
            serde_json::from_slice(&response.body).map_err(|_| ProviderError::Transient(reason("NoJSON")))?;
        Ok(things)
    }

    async fn observe(&mut self, http: capstan_gateway::Call<'_>) -> Asked<Presence> {
        if self.defect == Defect::ChangesWhenLooking {
            self.ask(http, Method::Post, "/things", json!({"owner": "nobody"})).await?;
        }
        if self.defect == Defect::LiesAboutDeletion && self.input.subject.is_deleting() {
            return Ok(Presence::Absent(Absence::SearchedByKey));
        }
        if self.defect == Defect::ReadsTooMuch {
            self.found(http).await?;
        }
        let found = match self.found(http).await {
            Err(_) if self.defect == Defect::TakesErrorsForAbsence => Vec::new(),
            found => found?,
        };
        Ok(match found.first() {
            None => Presence::Absent(Absence::SearchedByKey),
            Some(id) => Presence::Present(Observed {
                id: id.clone(),
                ready: true,
                todo: Vec::new(),
                outdated: Vec::new(),
                operation: None,
                state: json!({}),
            }),
        })
    }

    async fn create(&mut self, http: capstan_gateway::Call<'_>, known: &KnownPart) -> Asked<Progress> {
        let owner = if self.defect == Defect::NoOwnerKey { "" } else { &self.input.owner_key };
        let token = if self.defect == Defect::NoIdempotencyKey { "" } else { &known.idempotency_key };
        let body = json!({"owner": owner, "token": token});
        let response = self.ask(http, Method::Post, "/things", body).await?;
        let id = serde_json::from_slice(&response.body).map_err(|_| ProviderError::Transient(reason("NoJSON")))?;
        Ok(Progress::Done(id))
    }

    async fn delete(&mut self, http: capstan_gateway::Call<'_>) -> Asked<Progress> {
        let Some(id) = self.found(http).await?.first().cloned() else { return Ok(Progress::Done(String::new())) };
        let response = self.ask(http, Method::Delete, &format!("/things/{id}"), Value::Null).await?;
        match response.status {
            204 | 404 => Ok(Progress::Done(id)),
            other => Err(ProviderError::Transient(reason(&format!("Status{other}")))),
        }
    }
}

/// Id, owner and token of what is there, and how many there ever were.
#[derive(Default)]
struct Things {
    all: Vec<(String, String, String)>,
    ever: usize,
}

/// A server of things that it names itself.
struct Shop {
    origin: String,
    things: Arc<Mutex<Things>>,
    serving: tokio::task::JoinHandle<()>,
}

impl Drop for Shop {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

fn answer(things: &mut Things, method: &str, path: &str, query: Option<&str>, body: &[u8]) -> (u16, Value) {
    match (method, path.strip_prefix("/things").and_then(|rest| rest.strip_prefix('/'))) {
        ("GET", None) => {
            let owner = query.and_then(|query| query.strip_prefix("owner="));
            let mine = things.all.iter().filter(|(_, o, _)| owner.is_none_or(|owner| o == owner));
            (200, mine.map(|(id, ..)| id.clone()).collect())
        }
        ("POST", None) => {
            let body: Value = serde_json::from_slice(body).unwrap();
            let text = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
            if let Some((id, ..)) = things.all.iter().find(|(_, _, token)| !token.is_empty() && *token == text("token"))
            {
                return (200, id.clone().into());
            }
            things.ever += 1;
            let id = format!("t-{}", things.ever);
            things.all.push((id.clone(), text("owner"), text("token")));
            (201, id.into())
        }
        ("DELETE", Some(id)) => {
            let before = things.all.len();
            things.all.retain(|(other, ..)| other != id);
            (if things.all.len() < before { 204 } else { 404 }, Value::Null)
        }
        _ => (400, Value::Null),
    }
}

async fn open_shop() -> anyhow::Result<Shop> {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await?;
    let origin = format!("http://{}", listener.local_addr()?);
    let things = Arc::new(Mutex::new(Things::default()));
    let shared = things.clone();
    let serving = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let things = shared.clone();
            let service = service_fn(move |request: http::Request<hyper::body::Incoming>| {
                let things = things.clone();
                async move {
                    let (head, body) = request.into_parts();
                    let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
                    let (status, value) = answer(
                        &mut things.lock().unwrap(),
                        head.method.as_str(),
                        head.uri.path(),
                        head.uri.query(),
                        &body,
                    );
                    let mut response = http::Response::new(Full::new(Bytes::from(value.to_string())));
                    *response.status_mut() = http::StatusCode::from_u16(status).unwrap();
                    if status == 204 {
                        *response.body_mut() = Full::default();
                    }
                    Ok::<_, Infallible>(response)
                }
            });
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    Ok(Shop { origin, things, serving })
}

#[async_trait]
impl Server for Shop {
    fn access(&self) -> Access {
        Access::open(self.origin.clone())
    }

    async fn left(&self) -> anyhow::Result<Vec<String>> {
        Ok(self.things.lock().unwrap().all.iter().map(|_| "thing".to_owned()).collect())
    }

    async fn clear(&self) -> anyhow::Result<()> {
        self.things.lock().unwrap().all.clear();
        Ok(())
    }

    fn schedule(&self, _: Schedule) -> Schedule {
        // Whatever the manifest says.
        Schedule { late: Duration::from_millis(29_999), stale: Duration::from_secs(5) }
    }
}

fn server() -> ServerStarts {
    Box::pin(async {
        let shop: Box<dyn Server> = Box::new(open_shop().await?);
        Ok(shop)
    })
}

fn machine(name: &'static str) -> Life {
    let mut objects = vec![json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
        "metadata": {"name": "c", "namespace": "n"},
        "spec": {"infrastructureRef": {"apiGroup": GROUP, "kind": "DoubleCluster", "name": "c"}},
        "status": {"initialization": {"infrastructureProvisioned": true}}})];
    objects.extend(around_machine(name));
    objects.push(json!({"apiVersion": format!("{GROUP}/v1"), "kind": "DoubleMachine",
        "metadata": {"name": name, "namespace": "n", "labels": {"cluster.x-k8s.io/cluster-name": "c"},
            "ownerReferences": owner("Machine", name)},
        "spec": {}}));
    Life {
        name: if name == "m" { "machine" } else { name },
        objects,
        subject: ObjectKey::new(GROUP, "DoubleMachine", "n", name),
        change: Some(node_joins),
        tend: |_| (),
    }
}

/// What the suite has against a double.
fn objection(defect: Defect) -> Option<String> {
    let double = Double { defect, mood: Mutex::default() };
    let suite = Suite {
        name: "double",
        component: &double,
        server,
        lives: vec![machine("m")],
        fleet: ["m1", "m2"].map(machine).into(),
        failed: "",
    };
    if let Err(error) = suite.rules() {
        return Some(format!("{error:#}"));
    }
    match suite.faults(&Extent::All, 2) {
        Err(error) => Some(format!("{error:#}")),
        Ok(report) => report.failures.first().cloned(),
    }
}

#[test]
fn a_right_component_is_let_pass() {
    assert_eq!(objection(Defect::None), None);
}

#[test]
fn every_defect_is_found() {
    for (defect, objects) in [
        (Defect::NoOwnerKey, "never settles"),
        (Defect::AdoptsAnything, "fleet"),
        (Defect::NoIdempotencyKey, "called ten times"),
        (Defect::TakesErrorsForAbsence, "Absent"),
        (Defect::MistakesErrors, "fail-before:401"),
        (Defect::ChangesWhenLooking, "changes something"),
        (Defect::LiesAboutDeletion, "after deletion"),
        (Defect::ReadsTooMuch, "reads for one look at"),
        (Defect::Impure, "asked again"),
        (Defect::Hurried, "exchange"),
    ] {
        let said = objection(defect).unwrap_or_else(|| panic!("{defect:?} is not found"));
        assert!(said.contains(objects), "{defect:?} is found, by: {said}");
    }
}
