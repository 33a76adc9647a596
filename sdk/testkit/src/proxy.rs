//! A proxy that stands before a real server and misbehaves by a script.
//!
//! It speaks HTTP/1.1 on loopback and passes what it gets on to an `http://`, `https://` or `unix://` server, the Host
//! header included (signatures cover it). Whoever watches it is told nothing by it: a dropped answer is a connection
//! that ends, as in life.
//!
//! Time is real ([`FaultProxy::start`]), or the proxy's own ([`FaultProxy::in_own_time`]): then minutes pass when they
//! are told to, or when somebody waits for them by its [`FaultProxy::clock`].

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use async_trait::async_trait;
use bytes::Bytes;
use capstan_gateway::Clock;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming as Body;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::fault::{Fault, Incoming, Script, Strike, calm};

/// What went over the proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// `GET`, `POST`, …
    pub method: String,
    /// Path and query.
    pub target: String,
    /// Body of the request.
    pub body: Bytes,
    /// What struck it.
    pub strike: Option<Strike>,
    /// The action, where the request is signed for AWS and names one.
    pub action: Option<String>,
    /// What the server answered; `None` while and when it never got the request.
    pub server: Option<u16>,
    /// What the client was answered; `None` when no answer came back.
    pub client: Option<u16>,
}

impl Exchange {
    /// Whether its method, or the action of a request that is signed for AWS, says that it may change something.
    pub fn changes(&self) -> bool {
        let reads = |action: &String| ["Describe", "Get", "List"].iter().any(|verb| action.starts_with(verb));
        !matches!(self.method.as_str(), "GET" | "HEAD" | "OPTIONS") && !self.action.as_ref().is_some_and(reads)
    }
}

/// A request that waits to be passed on late, or is passed on now.
#[derive(Clone)]
struct Passed {
    /// Its place in the record.
    at: usize,
    method: http::Method,
    target: String,
    headers: HeaderMap,
    body: Bytes,
}

#[derive(Clone)]
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

struct State {
    script: Script,
    /// Requests since the script was set.
    number: usize,
    exchanges: Vec<Exchange>,
    late: Vec<Passed>,
    late_since: Option<Instant>,
    /// The last answer of each read.
    last: HashMap<String, Answer>,
    /// What reads are answered with now.
    past: Option<HashMap<String, Answer>>,
    past_since: Option<Instant>,
    kills: usize,
    /// How long the proxy's own time lasts by now; `None`: time is real.
    passed: Option<Duration>,
    schedule: Schedule,
}

/// What ends by itself as the proxy's own time passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// What is late arrives so long after it was sent.
    pub late: Duration,
    /// Reads show the past for so long.
    pub stale: Duration,
}

struct Shared {
    client: reqwest::Client,
    origin: String,
    began: Instant,
    state: Mutex<State>,
    killed: Notify,
}

/// A running proxy; it ends when this is dropped.
pub struct FaultProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    serving: JoinHandle<()>,
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// The connection ends without an answer.
#[derive(Debug)]
struct NoAnswer;

impl std::fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the script says that no answer comes back")
    }
}

impl std::error::Error for NoAnswer {}

impl FaultProxy {
    /// Starts a proxy before `origin`: `http://host:port`, `https://host:port` (its certificate is not checked: it is a
    /// test's own server) or `unix:///path`.
    ///
    /// # Errors
    /// When loopback cannot be listened on, or the origin is none.
    pub async fn start(origin: &str) -> anyhow::Result<Self> {
        Self::started(origin, None).await
    }

    /// [`FaultProxy::start`] with time of its own, which passes by [`FaultProxy::pass`] and for whoever waits by
    /// [`FaultProxy::clock`]. What is late arrives, and reads that show the past stop doing so, as
    /// [`FaultProxy::schedule`] says.
    ///
    /// # Errors
    /// As [`FaultProxy::start`].
    pub async fn in_own_time(origin: &str) -> anyhow::Result<Self> {
        Self::started(origin, Some(Duration::ZERO)).await
    }

    async fn started(origin: &str, passed: Option<Duration>) -> anyhow::Result<Self> {
        // Fails when a provider is installed already: any will do.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = reqwest::Client::builder()
            .http1_only()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .tls_danger_accept_invalid_certs(true);
        let origin = match origin.strip_prefix("unix://") {
            Some(path) => {
                builder = builder.unix_socket(path);
                "http://localhost".to_owned()
            }
            None => origin.trim_end_matches('/').to_owned(),
        };
        let client = builder.build().with_context(|| format!("no client for {origin}"))?;
        let state = State {
            script: calm(),
            number: 0,
            exchanges: Vec::new(),
            late: Vec::new(),
            late_since: None,
            last: HashMap::new(),
            past: None,
            past_since: None,
            kills: 0,
            passed,
            schedule: Schedule { late: Duration::MAX, stale: Duration::MAX },
        };
        let shared =
            Arc::new(Shared { client, origin, began: Instant::now(), state: Mutex::new(state), killed: Notify::new() });
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.context("listen on loopback")?;
        let address = listener.local_addr()?;
        let serving = tokio::spawn(serve(listener, shared.clone()));
        Ok(Self { address, shared, serving })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `http://…`, as an endpoint's origin.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Sets the script; requests are counted from 0 again. Stale reads end, and what waits to be late is forgotten.
    pub fn set(&self, script: Script) {
        let mut state = self.shared.state();
        state.script = script;
        state.number = 0;
        (state.past, state.past_since) = (None, None);
        (state.late, state.late_since) = (Vec::new(), None);
    }

    /// What went over it, in the order in which it came.
    pub fn exchanges(&self) -> Vec<Exchange> {
        self.shared.state().exchanges.clone()
    }

    /// Looks at what went over it.
    pub fn look<T>(&self, at: impl FnOnce(&[Exchange]) -> T) -> T {
        at(&self.shared.state().exchanges)
    }

    /// Forgets what went over it, and what reads were answered.
    pub fn forget(&self) {
        let mut state = self.shared.state();
        state.exchanges.clear();
        state.last.clear();
        state.kills = 0;
    }

    /// Passes on what waits to be late; the answers are nobody's. How many there were.
    pub async fn release(&self) -> usize {
        self.shared.release().await
    }

    /// How many requests wait to be late.
    pub fn late(&self) -> usize {
        self.shared.state().late.len()
    }

    /// Reads show the present again.
    pub fn freshen(&self) {
        self.shared.freshen();
    }

    /// Whether reads show the past now.
    pub fn is_stale(&self) -> bool {
        self.shared.state().past.is_some()
    }

    /// When what is late arrives, and how long reads show the past, in the proxy's own time.
    pub fn schedule(&self, schedule: Schedule) {
        self.shared.state().schedule = schedule;
    }

    /// The proxy's time, for whoever waits or measures: a [`Gateway`](capstan_gateway::Gateway) and its
    /// [`Network`](capstan_gateway::Network).
    pub fn clock(&self) -> Arc<dyn Clock> {
        self.shared.clone()
    }

    /// How long the proxy's own time lasts by now.
    pub fn passed(&self) -> Duration {
        self.shared.now().duration_since(self.shared.began)
    }

    /// Lets the proxy's own time pass.
    pub async fn pass(&self, time: Duration) {
        self.shared.sleep_until(self.shared.now() + time).await;
    }

    /// Returns when a request was struck whose sender is to be killed; each such request once.
    pub async fn killed(&self) {
        loop {
            let notified = self.shared.killed.notified();
            {
                let mut state = self.shared.state();
                if state.kills > 0 {
                    state.kills -= 1;
                    return;
                }
            }
            notified.await;
        }
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    // Connections end with the proxy: dropping the set stops them.
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        while connections.try_join_next().is_some() {}
        let _ = stream.set_nodelay(true);
        let shared = shared.clone();
        connections.spawn(async move {
            let service = service_fn(move |request| {
                let shared = shared.clone();
                async move { shared.answer(request).await }
            });
            // An error here is what a fault looks like from inside.
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the time of a proxy before {}", self.origin)
    }
}

#[async_trait]
impl Clock for Shared {
    fn now(&self) -> Instant {
        self.state().passed.map_or_else(Instant::now, |passed| self.began + passed)
    }

    async fn sleep_until(&self, at: Instant) {
        if self.state().passed.is_none() {
            return tokio::time::sleep_until(at).await;
        }
        while let Some((when, arrives)) = self.next_until(at) {
            self.turn_to(when);
            if arrives {
                self.release().await;
            } else {
                self.freshen();
            }
        }
        self.turn_to(at);
    }
}

impl Shared {
    /// The next that happens by itself until then, and whether it is an arrival.
    fn next_until(&self, at: Instant) -> Option<(Instant, bool)> {
        let state = self.state();
        let then = |since: Option<Instant>, after: Duration| since.and_then(|since| since.checked_add(after));
        let arrival = then(state.late_since, state.schedule.late).map(|when| (when, true));
        let fresh = then(state.past_since, state.schedule.stale).map(|when| (when, false));
        arrival.into_iter().chain(fresh).min().filter(|(when, _)| *when <= at)
    }

    fn turn_to(&self, at: Instant) {
        let to = at.saturating_duration_since(self.began);
        let mut state = self.state();
        state.passed = state.passed.map(|passed| passed.max(to));
    }

    async fn release(&self) -> usize {
        let late = {
            let mut state = self.state();
            state.late_since = None;
            std::mem::take(&mut state.late)
        };
        let count = late.len();
        for request in late {
            // What cannot be delivered any more has not arrived: that is one of the ways it can go.
            let _ = self.pass_on(&request).await;
        }
        count
    }

    fn freshen(&self) {
        let mut state = self.state();
        (state.past, state.past_since) = (None, None);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn answer(&self, request: Request<Body>) -> Result<Response<Full<Bytes>>, NoAnswer> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.map_err(|_| NoAnswer)?.to_bytes();
        let target = head.uri.path_and_query().map_or_else(|| "/".to_owned(), ToString::to_string);
        let (passed, strike, past) = self.take_in(head.method, target, head.headers, body);
        if let Some(past) = past {
            return Ok(self.answered(passed.at, past));
        }
        let outcome = self.suffer(&passed, strike.map(|strike| strike.fault)).await;
        if strike.is_some_and(|strike| strike.kill) {
            self.state().kills += 1;
            self.killed.notify_waiters();
            return std::future::pending::<Result<_, Infallible>>().await.map_err(|never| match never {});
        }
        outcome.map(|answer| self.answered(passed.at, answer))
    }

    /// Notes a request and asks the script about it; the answer of the past, where that is what is shown.
    fn take_in(
        &self,
        method: http::Method,
        target: String,
        headers: HeaderMap,
        body: Bytes,
    ) -> (Passed, Option<Strike>, Option<Answer>) {
        let now = self.now();
        let mut guard = self.state();
        let state = &mut *guard;
        let incoming = Incoming { number: state.number, method: method.as_str(), target: &target };
        let strike = (state.script)(incoming);
        state.number += 1;
        let at = state.exchanges.len();
        state.exchanges.push(Exchange {
            method: method.to_string(),
            target: target.clone(),
            body: body.clone(),
            action: action(&headers, &body),
            strike,
            server: None,
            client: None,
        });
        let past = match &state.past {
            Some(past) if method == http::Method::GET => past.get(&target).cloned(),
            _ => None,
        };
        if strike.is_some_and(|strike| strike.fault == Fault::Stale) {
            (state.past, state.past_since) = (Some(state.last.clone()), Some(now));
        }
        (Passed { at, method, target, headers, body }, strike, past)
    }

    async fn suffer(&self, passed: &Passed, fault: Option<Fault>) -> Result<Answer, NoAnswer> {
        let status = |code| StatusCode::from_u16(code).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
        match fault {
            None | Some(Fault::Stale) => self.pass_on(passed).await,
            Some(Fault::DropRequest) => Err(NoAnswer),
            Some(Fault::DropResponse) => {
                self.pass_on(passed).await?;
                Err(NoAnswer)
            }
            Some(Fault::Late) => {
                let now = self.now();
                let mut state = self.state();
                state.late.push(passed.clone());
                state.late_since.get_or_insert(now);
                Err(NoAnswer)
            }
            Some(Fault::Delay(by)) => {
                self.sleep_until(self.now() + by).await;
                self.pass_on(passed).await
            }
            Some(Fault::Throttle(seconds)) => {
                let mut answer = made(StatusCode::TOO_MANY_REQUESTS);
                answer.headers.insert(http::header::RETRY_AFTER, HeaderValue::from(seconds));
                Ok(answer)
            }
            Some(Fault::Busy(seconds)) => {
                let mut answer = made(StatusCode::SERVICE_UNAVAILABLE);
                answer.headers.insert(http::header::RETRY_AFTER, HeaderValue::from(seconds));
                Ok(answer)
            }
            Some(Fault::FailBefore(code)) => Ok(made(status(code))),
            Some(Fault::FailAfter(code)) => {
                self.pass_on(passed).await?;
                Ok(made(status(code)))
            }
        }
    }

    async fn pass_on(&self, request: &Passed) -> Result<Answer, NoAnswer> {
        let mut headers = request.headers.clone();
        for name in ["connection", "keep-alive", "transfer-encoding", "te", "upgrade", "expect"] {
            headers.remove(name);
        }
        let url = format!("{}{}", self.origin, request.target);
        let sent = self.client.request(request.method.clone(), url).headers(headers).body(request.body.clone());
        let mut response = sent.send().await.map_err(|_| NoAnswer)?;
        let status = response.status();
        let mut headers = std::mem::take(response.headers_mut());
        for name in ["connection", "keep-alive", "transfer-encoding", "content-length"] {
            headers.remove(name);
        }
        let body = response.bytes().await.map_err(|_| NoAnswer)?;
        let answer = Answer { status, headers, body };
        let mut state = self.state();
        if let Some(exchange) = state.exchanges.get_mut(request.at) {
            exchange.server = Some(status.as_u16());
        }
        if request.method == http::Method::GET {
            state.last.insert(request.target.clone(), answer.clone());
        }
        Ok(answer)
    }

    fn answered(&self, at: usize, answer: Answer) -> Response<Full<Bytes>> {
        if let Some(exchange) = self.state().exchanges.get_mut(at) {
            exchange.client = Some(answer.status.as_u16());
        }
        let mut response = Response::new(Full::new(answer.body));
        *response.status_mut() = answer.status;
        *response.headers_mut() = answer.headers;
        response
    }
}

/// The action of a request that is signed for AWS: in `X-Amz-Target`, or in its form.
fn action(headers: &HeaderMap, body: &[u8]) -> Option<String> {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if !header("authorization")?.starts_with("AWS4-HMAC-SHA256") {
        return None;
    }
    if let Some(target) = header("x-amz-target") {
        return target.rsplit('.').next().map(str::to_owned);
    }
    let form = std::str::from_utf8(body).ok()?;
    form.split('&').find_map(|pair| pair.strip_prefix("Action=")).map(str::to_owned)
}

/// An answer of the proxy's own, in a form that no server of the tree uses.
fn made(status: StatusCode) -> Answer {
    let mut headers = HeaderMap::new();
    headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    Answer { status, headers, body: Bytes::from_static(b"injected by a test") }
}

#[cfg(test)]
#[path = "proxy_tests.rs"]
mod tests;
