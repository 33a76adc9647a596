//! Requests of one turn, checked, sent and recorded.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use capstan_api::ObjectKey;
use capstan_core::contract::Effect;
use capstan_core::turn::{Fence, TurnInput};
use sha2::{Digest, Sha256};
use tokio::time::Instant;
use tracing::Instrument;

use crate::clock::{Clock, RealTime};
use crate::endpoint::{self, Asker, Declared, EndpointConfig, Endpoints};
use crate::ledger::{self, Exchange, Ledger};
use crate::recording::{Recorded, RecordedAnswer};
use crate::redact::Redactor;
use crate::request::{self, HttpError, Request, Response};
use crate::shared::{Key, Shared};
use crate::transport::{Transport, TransportError, WireRequest, WireResponse};

/// What a turn may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests per turn.
    pub requests: u32,
    /// How long after its beginning a turn may still begin a request.
    pub time: Duration,
    /// Requests of one `read-all` that are under way at the same time.
    pub parallel: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { requests: 64, time: Duration::from_secs(300), parallel: 8 }
    }
}

/// Whose turn it is.
#[derive(Clone, Debug)]
pub struct TurnScope {
    /// Name of the ProviderModule.
    pub module: String,
    /// The object that the turn is about; its namespace is the tenant.
    pub object: ObjectKey,
    /// What the guest is told: where manifests look for what an object says of its endpoint.
    pub input: Option<Arc<TurnInput>>,
    /// What the turn may use.
    pub limits: Limits,
}

/// What one call of the contract may do.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    /// Its name, such as `create vm`, for records.
    pub name: &'a str,
    /// Whether it may send a request that changes something.
    pub may_change: bool,
    /// Asked right before such a request is sent, and when its body is; when it says no, it is not.
    pub still_may_change: &'a Fence,
}

/// The gateway of a process.
pub struct Gateway {
    endpoints: Arc<dyn Endpoints>,
    transport: Arc<dyn Transport>,
    ledger: Ledger,
    shared: Shared,
    clock: Arc<dyn Clock>,
    recorder: Option<Recorder>,
}

/// Takes each exchange of a recording.
type Recorder = Box<dyn Fn(&Recorded) + Send + Sync>;

impl Gateway {
    /// A gateway over configured endpoints and a way to reach them.
    pub fn new(endpoints: Arc<dyn Endpoints>, transport: Arc<dyn Transport>) -> Self {
        Self {
            endpoints,
            transport,
            ledger: Ledger::default(),
            shared: Shared::default(),
            clock: Arc::new(RealTime),
            recorder: None,
        }
    }

    /// Measures time by this clock: how old a shared answer is, and how long a turn lasts.
    #[must_use]
    pub fn timed_by(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Also tells each exchange, without secrets, to whoever records.
    #[must_use]
    pub fn recorded_by(mut self, recorder: impl Fn(&Recorded) + Send + Sync + 'static) -> Self {
        self.recorder = Some(Box::new(recorder));
        self
    }

    /// What was sent and answered.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The gateway as one turn sees it; `declared` are the endpoints of the module's manifest.
    pub fn session(self: &Arc<Self>, scope: TurnScope, declared: &[Declared]) -> Session {
        Session {
            gateway: self.clone(),
            declared: declared.to_vec(),
            resolved: BTreeMap::new(),
            scope,
            began: self.clock.now(),
            sent: 0,
            change: None,
            recorded: None,
        }
    }
}

/// One turn's requests.
pub struct Session {
    gateway: Arc<Gateway>,
    scope: TurnScope,
    declared: Vec<Declared>,
    resolved: BTreeMap<String, Arc<EndpointConfig>>,
    began: Instant,
    sent: u32,
    /// The changing request of the current call.
    change: Option<Effect>,
    /// What was exchanged since it was last asked for, where it is recorded.
    recorded: Option<Mutex<Vec<Recorded>>>,
}

/// A request that may be sent.
struct Checked {
    endpoint: Arc<EndpointConfig>,
    wire: WireRequest,
    changes: bool,
}

impl Session {
    /// A new call begins: it has sent nothing, and finds Endpoints and Secrets as they are now.
    pub fn begin_call(&mut self) {
        self.change = None;
        self.resolved.clear();
    }

    /// From here on exchanges are kept. Nothing is answered from what another object was told, as a replay could not.
    pub fn start_recording(&mut self) {
        self.recorded = Some(Mutex::default());
    }

    /// What was exchanged since this was last asked, without secrets.
    pub fn take_recorded(&mut self) -> Vec<Recorded> {
        let recorded = self.recorded.as_mut().map(|r| r.get_mut().unwrap_or_else(PoisonError::into_inner));
        recorded.map(std::mem::take).unwrap_or_default()
    }

    /// What is known of the current call's changing request.
    pub fn effect(&self) -> Effect {
        self.change.unwrap_or_default()
    }

    /// Sends one request.
    ///
    /// # Errors
    /// See [`HttpError`].
    pub async fn send(&mut self, call: Call<'_>, request: Request) -> Result<Response, HttpError> {
        let checked = self.check(call, &request)?;
        if !checked.changes {
            return self.read(call, &request, checked).await;
        }
        if !call.may_change {
            return Err(HttpError::Denied(format!(
                "{} {} changes something, and {} may only read",
                request.method, request.path, call.name
            )));
        }
        if self.change.is_some() {
            return Err(HttpError::Denied("a call may send one request that changes something".to_owned()));
        }
        // All that may take time comes first, so that the Lease is checked right before the request is sent.
        let (at, began) = (SystemTime::now(), Instant::now());
        let admitted = match self.gateway.transport.admit(&checked.endpoint).await {
            Ok(admitted) => admitted,
            Err(error) => {
                let answer = Err(error);
                self.record(call, &request, &checked, &answer, (at, began), Some(Effect::NotSent));
                return self.finish(&checked, answer);
            }
        };
        if !(call.still_may_change)() {
            return Err(HttpError::Denied("this process no longer holds the Lease of the object's shard".to_owned()));
        }
        // Until the answer is here, and if this future is dropped on the way, nobody knows.
        self.change = Some(Effect::Unknown);
        self.gateway.shared.changed(&self.scope.object, self.gateway.clock.now());
        let (at, began) = (SystemTime::now(), Instant::now());
        let answer = self.exchange(call, &request, &checked, Some(call.still_may_change)).await;
        drop(admitted);
        let effect = match &answer {
            Err(TransportError::NotSent(_)) => Effect::NotSent,
            Ok(response) if response.status < 500 => Effect::Answered,
            _ => Effect::Unknown,
        };
        self.change = Some(effect);
        self.gateway.shared.changed(&self.scope.object, self.gateway.clock.now());
        self.record(call, &request, &checked, &answer, (at, began), Some(effect));
        self.finish(&checked, answer)
    }

    /// Sends reads side by side; answers come in the order of the requests.
    pub async fn read_all(&mut self, call: Call<'_>, requests: Vec<Request>) -> Vec<Result<Response, HttpError>> {
        let mut checked = Vec::with_capacity(requests.len());
        for request in requests {
            let result = self.check(call, &request).and_then(|checked| {
                if checked.changes {
                    let text =
                        format!("{} {} changes something, and read-all only reads", request.method, request.path);
                    return Err(HttpError::Denied(text));
                }
                Ok(checked)
            });
            checked.push((request, result));
        }
        let this = &*self;
        let parallel = this.scope.limits.parallel.max(1);
        futures::StreamExt::collect(futures::StreamExt::buffered(
            futures::stream::iter(checked.into_iter().map(|(request, checked)| async move {
                match checked {
                    Ok(checked) => this.read(call, &request, checked).await,
                    Err(error) => Err(error),
                }
            })),
            parallel,
        ))
        .await
    }

    fn check(&mut self, call: Call<'_>, request: &Request) -> Result<Checked, HttpError> {
        if self.sent >= self.scope.limits.requests || self.gateway.clock.now() - self.began > self.scope.limits.time {
            return Err(HttpError::BudgetSpent);
        }
        let endpoint = self.endpoint(&request.endpoint)?;
        let wire = request::ready(request).map_err(HttpError::Denied)?;
        endpoint.narrowed.check(request.method, &request.path).map_err(HttpError::Denied)?;
        if wire.body.len() as u64 > endpoint.max_request {
            return Err(HttpError::Denied(format!(
                "a body of {} bytes; endpoint {} takes {}",
                wire.body.len(),
                endpoint.name,
                endpoint.max_request
            )));
        }
        let changes = endpoint
            .protocol
            .changes(request.method, &request.query, &request.headers, &wire.body)
            .map_err(HttpError::Denied)?
            && !endpoint.read_operations.iter().any(|read| read.is(request.method, &request.path));
        if changes && self.declared.iter().any(|declared| declared.name == request.endpoint && declared.read_only) {
            return Err(HttpError::Denied(format!(
                "nothing is changed through endpoint {}, and {} {} is not among the reads that spec.grants.readOperations \
                 of ProviderModule {} lists",
                request.endpoint, request.method, request.path, self.scope.module
            )));
        }
        self.sent += 1;
        tracing::trace!(call = call.name, endpoint = endpoint.name, changes, "request accepted");
        Ok(Checked { endpoint, wire, changes })
    }

    fn endpoint(&mut self, name: &str) -> Result<Arc<EndpointConfig>, HttpError> {
        if let Some(known) = self.resolved.get(name) {
            return Ok(known.clone());
        }
        let declared = self.declared.iter().find(|d| d.name == name).ok_or(HttpError::UnknownEndpoint)?;
        let scope = &self.scope;
        let asker = Asker {
            module: &scope.module,
            namespace: &scope.object.namespace,
            declared: &self.declared,
            input: scope.input.as_deref(),
        };
        let config = endpoint::resolve(&*self.gateway.endpoints, &asker, declared).map_err(HttpError::NotSent)?;
        let config = Arc::new(config);
        self.resolved.insert(name.to_owned(), config.clone());
        Ok(config)
    }

    async fn read(&self, call: Call<'_>, request: &Request, checked: Checked) -> Result<Response, HttpError> {
        let Some(max_age) = request.max_age.filter(|age| *age > 0 && self.recorded.is_none()) else {
            return self.read_now(call, request, &checked).await.1;
        };
        let shared = &self.gateway.shared;
        let place = shared.place(read_key(&self.scope.object.namespace, &checked), self.gateway.clock.now());
        let mut answer = place.lock().await;
        let max_age = Duration::from_millis(max_age);
        let now = self.gateway.clock.now();
        if let Some(response) = answer.as_ref().and_then(|a| shared.serves(a, max_age, &self.scope.object, now)) {
            return Ok(response);
        }
        let (asked, result) = self.read_now(call, request, &checked).await;
        *answer = result.as_ref().ok().and_then(|response| Shared::keep(asked, response));
        result
    }

    async fn read_now(
        &self,
        call: Call<'_>,
        request: &Request,
        checked: &Checked,
    ) -> (Instant, Result<Response, HttpError>) {
        let (at, began) = (SystemTime::now(), Instant::now());
        let admitted = self.gateway.transport.admit(&checked.endpoint).await;
        let asked = self.gateway.clock.now();
        let answer = match admitted {
            Ok(_admitted) => self.exchange(call, request, checked, None).await,
            Err(error) => Err(error),
        };
        self.record(call, request, checked, &answer, (at, began), None);
        (asked, self.finish(checked, answer))
    }

    async fn exchange(
        &self,
        call: Call<'_>,
        request: &Request,
        checked: &Checked,
        fence: Option<&Fence>,
    ) -> Result<WireResponse, TransportError> {
        let object = &self.scope.object;
        let span = tracing::debug_span!(
            "http.send",
            provider = self.scope.module,
            kind = object.kind,
            namespace = object.namespace,
            name = object.name,
            call = call.name,
            endpoint = request.endpoint,
            method = request.method.as_str(),
            path = request.path,
        );
        let began = Instant::now();
        let sent = self.gateway.transport.exchange(&checked.endpoint, checked.wire.clone(), fence);
        let answer = sent.instrument(span.clone()).await;
        span.in_scope(|| match &answer {
            Ok(response) => tracing::debug!(status = response.status, took = ?began.elapsed(), "answered"),
            Err(error) => tracing::debug!(%error, took = ?began.elapsed(), "not answered"),
        });
        answer
    }

    fn record(
        &self,
        call: Call<'_>,
        request: &Request,
        checked: &Checked,
        answer: &Result<WireResponse, TransportError>,
        (at, began): (SystemTime, Instant),
        effect: Option<Effect>,
    ) {
        let took = began.elapsed();
        let (module, object) = (&self.scope.module, &self.scope.object);
        let (method, endpoint) = (request.method.as_str(), &request.endpoint);
        let hidden = ledger::hidden(request, &checked.endpoint.credential);
        if self.gateway.recorder.is_some() || self.recorded.is_some() {
            let shown = match answer {
                Ok(response) => Ok(shown(&hidden, response.clone())),
                Err(TransportError::NotSent(why)) => Err(TransportError::NotSent(hidden.text(why))),
                Err(TransportError::NoAnswer(why)) => Err(TransportError::NoAnswer(hidden.text(why))),
                Err(TransportError::TooLarge(max)) => Err(TransportError::TooLarge(*max)),
            };
            let recorded = Recorded {
                call: call.name.to_owned(),
                endpoint: endpoint.clone(),
                method: method.to_owned(),
                target: checked.wire.target.clone(),
                body: hidden.text(&ledger::shown_body(request)),
                answer: RecordedAnswer::of(&shown),
            };
            if let Some(recorder) = &self.gateway.recorder {
                recorder(&recorded);
            }
            if let Some(kept) = &self.recorded {
                kept.lock().unwrap_or_else(PoisonError::into_inner).push(recorded);
            }
        }
        let (outcome, response) = match answer {
            Ok(r) => (Ok((r.status, hidden.text(&r.status_text))), ledger::shown_response(&hidden, &r.body)),
            Err(error) => (Err(hidden.text(&error.to_string())), String::new()),
        };
        let exchange = Exchange {
            at,
            took,
            module: module.clone(),
            call: call.name.to_owned(),
            endpoint: endpoint.clone(),
            method,
            target: hidden.text(&checked.wire.target),
            headers: request.headers.iter().map(|(n, v)| (n.clone(), hidden.text(v))).collect(),
            body: hidden.text(&ledger::shown_body(request)),
            outcome,
            response,
            effect,
        };
        tracing::debug!(?object, ?exchange, "on record");
        self.gateway.ledger.record(object, exchange);
    }

    /// What the guest gets of an answer: nothing of the credential, should the remote have sent it back.
    fn finish(&self, checked: &Checked, answer: Result<WireResponse, TransportError>) -> Result<Response, HttpError> {
        let mut hidden = Redactor::default();
        checked.endpoint.credential.secrets().iter().for_each(|secret| hidden.hide("credential", secret));
        match answer {
            Ok(response) => {
                let WireResponse { status, status_text, headers, body } = shown(&hidden, response);
                Ok(Response { status, status_text, headers, body })
            }
            Err(TransportError::NotSent(text)) => Err(HttpError::NotSent(hidden.text(&text))),
            Err(TransportError::NoAnswer(text)) => Err(HttpError::NoAnswer(hidden.text(&text))),
            Err(TransportError::TooLarge(max)) => Err(HttpError::TooLarge(max)),
        }
    }
}

/// An answer as somebody is shown it who must not see these secrets.
fn shown(hidden: &Redactor, response: WireResponse) -> WireResponse {
    let WireResponse { status, status_text, headers, body } = response;
    let headers = headers.into_iter().filter(|(name, _)| !request::is_hidden_from_guest(name));
    let headers = headers.map(|(name, value)| (name, hidden.text(&value))).collect();
    let body = hidden.bytes(&body).unwrap_or(body);
    WireResponse { status, status_text: hidden.text(&status_text), headers, body }
}

/// Two reads are the same when they are one tenant's, go to the same place with the same trust and credential and say
/// the same.
fn read_key(tenant: &str, checked: &Checked) -> Key {
    let mut hash = Sha256::new();
    let mut part = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_be_bytes());
        hash.update(bytes);
    };
    part(tenant.as_bytes());
    part(checked.endpoint.origin.to_string().as_bytes());
    part(checked.endpoint.ca.as_deref().unwrap_or_default().as_bytes());
    part(&checked.endpoint.credential.digest());
    part(checked.wire.method.as_str().as_bytes());
    part(checked.wire.target.as_bytes());
    for (name, value) in &checked.wire.headers {
        part(name.as_str().as_bytes());
        part(value.as_bytes());
    }
    part(&checked.wire.body);
    hash.finalize().into()
}
