//! A proxy that stands before a real server and misbehaves by a script.
//!
//! It speaks HTTP/1.1 on loopback and passes what it gets on to an `http://`, `https://` or `unix://` server, the Host
//! header included (signatures cover it). Whoever watches it is told nothing by it: a dropped answer is a connection
//! that ends, as in life.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming as Body;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

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
    /// What the server answered; `None` while and when it never got the request.
    pub server: Option<u16>,
    /// What the client was answered; `None` when no answer came back.
    pub client: Option<u16>,
}

impl Exchange {
    /// Whether its method says that it may change something.
    pub fn changes(&self) -> bool {
        !matches!(self.method.as_str(), "GET" | "HEAD" | "OPTIONS")
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
    /// The last answer of each read.
    last: HashMap<String, Answer>,
    /// What reads are answered with now.
    past: Option<HashMap<String, Answer>>,
    kills: usize,
}

struct Shared {
    client: reqwest::Client,
    origin: String,
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
            last: HashMap::new(),
            past: None,
            kills: 0,
        };
        let shared = Arc::new(Shared { client, origin, state: Mutex::new(state), killed: Notify::new() });
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
        state.past = None;
        state.late.clear();
    }

    /// What went over it, in the order in which it came.
    pub fn exchanges(&self) -> Vec<Exchange> {
        self.shared.state().exchanges.clone()
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
        let late = std::mem::take(&mut self.shared.state().late);
        let count = late.len();
        for request in late {
            // What cannot be delivered any more has not arrived: that is one of the ways it can go.
            let _ = self.shared.pass_on(&request).await;
        }
        count
    }

    /// How many requests wait to be late.
    pub fn late(&self) -> usize {
        self.shared.state().late.len()
    }

    /// Reads show the present again.
    pub fn freshen(&self) {
        self.shared.state().past = None;
    }

    /// Whether reads show the past now.
    pub fn is_stale(&self) -> bool {
        self.shared.state().past.is_some()
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

impl Shared {
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
            strike,
            server: None,
            client: None,
        });
        let past = match &state.past {
            Some(past) if method == http::Method::GET => past.get(&target).cloned(),
            _ => None,
        };
        if strike.is_some_and(|strike| strike.fault == Fault::Stale) {
            state.past = Some(state.last.clone());
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
                self.state().late.push(passed.clone());
                Err(NoAnswer)
            }
            Some(Fault::Delay(by)) => {
                tokio::time::sleep(by).await;
                self.pass_on(passed).await
            }
            Some(Fault::Throttle(seconds)) => {
                let mut answer = made(StatusCode::TOO_MANY_REQUESTS);
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

/// An answer of the proxy's own, in a form that no server of the tree uses.
fn made(status: StatusCode) -> Answer {
    let mut headers = HeaderMap::new();
    headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    Answer { status, headers, body: Bytes::from_static(b"injected by a test") }
}
