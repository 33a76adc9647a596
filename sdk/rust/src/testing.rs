//! A host for native unit tests: it answers getters from a [`Scenario`] and requests from a script.
//!
//! ```ignore
//! Scenario::new("SimulatedMachine", json!({"cpus": 2}))
//!     .machine("m1")
//!     .known("machine", Known { id: Some("t.m1".into()), ..Known::default() })
//!     .answer("GET /v1/machines/t.m1", 200, json!({"name": "t.m1", …}))
//!     .run(|| observe::<Simulated>("machine"));
//! ```
//!
//! A request that the script does not expect fails the test, and so does an answer that nobody asked for. Secrets are
//! visible here, and only here: [`reveal`].

use std::{cell::RefCell, collections::BTreeMap};

use serde_json::Value;

use crate::{
    HostPort, Known, MachineSummary, Secret, context, host,
    http::{HttpError, Request},
};
pub use crate::{
    bootstrap::{JoinRole, dispatch as bootstrap},
    control_plane::{View, dispatch as control_plane},
    infrastructure::dispatch as infrastructure,
    secrets::BootStep,
};

/// What gzip does in a scenario.
pub type Gzip = fn(&[u8]) -> Vec<u8>;

/// What the host would tell.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct Scenario {
    pub group: String,
    pub kind: String,
    pub namespace: String,
    pub name: String,
    pub labels: Vec<(String, String)>,
    pub annotations: BTreeMap<String, String>,
    pub spec: String,
    pub now: u64,
    pub owner_key: String,
    pub cluster_name: String,
    pub endpoint: Option<HostPort>,
    pub pod_cidrs: Vec<String>,
    pub service_cidrs: Vec<String>,
    pub infrastructure_spec: Option<String>,
    pub infrastructure_states: BTreeMap<String, String>,
    pub machines: Vec<MachineSummary>,
    pub machine: Option<TestMachine>,
    pub known: BTreeMap<String, Known>,
    pub config_maps: BTreeMap<String, Vec<(String, String)>>,
    pub addresses: BTreeMap<String, (String, u8, Option<String>)>,
    pub secrets: BTreeMap<String, Vec<u8>>,
    pub boot_steps: Vec<BootStep>,
    pub role: Option<JoinRole>,
    pub public_key_hashes: BTreeMap<String, String>,
    pub view: View,
    pub script: Vec<Exchange>,
    /// What gzip does, where something is gzipped.
    pub gzip: Option<Gzip>,
    /// Carries requests out for real, where there is a server to test against; then there is no script.
    pub transport: Option<fn(&Sent) -> Exchange>,
}

/// The Machine of a scenario.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct TestMachine {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub control_plane: bool,
    pub kubernetes_version: Option<String>,
    pub failure_domain: Option<String>,
    pub deleting: bool,
    pub node_bound: bool,
    pub bootstrap_format: Option<String>,
}

/// One request that is expected, and its answer.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct Exchange {
    /// `GET /v1/machines?owner=k`, the query unencoded.
    pub asked: String,
    pub status: u16,
    /// The reason phrase.
    pub status_text: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// There is no answer.
    pub failure: Option<HttpError>,
}

/// A request as it was sent, with its secrets in the clear.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Sent {
    pub asked: String,
    pub endpoint: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Sent {
    /// The body as JSON; null where it is none.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

thread_local! {
    static CURRENT: RefCell<Scenario> = RefCell::default();
    static SENT: RefCell<Vec<Sent>> = const { RefCell::new(Vec::new()) };
}

impl Scenario {
    /// An object `t/x` of this kind and spec in the cluster `c`, owner key `owner-1`.
    #[must_use]
    pub fn new(kind: &str, spec: Value) -> Self {
        Self {
            kind: kind.to_owned(),
            namespace: "t".to_owned(),
            name: "x".to_owned(),
            spec: spec.to_string(),
            owner_key: "owner-1".to_owned(),
            cluster_name: "c".to_owned(),
            ..Self::default()
        }
    }

    /// With a Machine.
    #[must_use]
    pub fn machine(mut self, machine: TestMachine) -> Self {
        self.machine = Some(machine);
        self
    }

    /// With a part on record.
    #[must_use]
    pub fn known(mut self, part: &str, known: Known) -> Self {
        self.known.insert(part.to_owned(), known);
        self
    }

    /// With a secret.
    #[must_use]
    pub fn secret(mut self, label: &str, bytes: &str) -> Self {
        self.secrets.insert(label.to_owned(), bytes.as_bytes().to_vec());
        self
    }

    /// The next expected request and its JSON answer.
    #[must_use]
    pub fn answer(self, asked: &str, status: u16, body: Value) -> Self {
        self.answer_bytes(asked, status, body.to_string().into_bytes())
    }

    /// The next expected request and its answer.
    #[must_use]
    pub fn answer_bytes(mut self, asked: &str, status: u16, body: Vec<u8>) -> Self {
        self.script.push(Exchange { asked: asked.to_owned(), status, body, ..Exchange::default() });
        self
    }

    /// The next expected request and an answer whose reason phrase says more than its body.
    #[must_use]
    pub fn answer_phrase(mut self, asked: &str, status: u16, phrase: &str, body: Value) -> Self {
        let (status_text, body) = (phrase.to_owned(), body.to_string().into_bytes());
        self.script.push(Exchange { asked: asked.to_owned(), status, status_text, body, ..Exchange::default() });
        self
    }

    /// The next expected request, which gets no answer.
    #[must_use]
    pub fn fails(mut self, asked: &str, failure: HttpError) -> Self {
        let failure = Some(failure);
        self.script.push(Exchange { asked: asked.to_owned(), failure, ..Exchange::default() });
        self
    }

    /// Runs one call of a fresh instance; what it returned and what it sent.
    ///
    /// # Panics
    /// When an expected request was not sent.
    pub fn run<T>(self, call: impl FnOnce() -> T) -> (T, Vec<Sent>) {
        context::forget();
        SENT.with_borrow_mut(Vec::clear);
        CURRENT.with_borrow_mut(|current| *current = self);
        let result = call();
        CURRENT.with_borrow(|current| {
            let left: Vec<_> = current.script.iter().map(|exchange| exchange.asked.as_str()).collect();
            assert!(left.is_empty(), "expected and never sent: {left:?}");
        });
        (result, SENT.with_borrow_mut(std::mem::take))
    }
}

/// The bytes of a secret, as text.
pub fn reveal(secret: &Secret) -> String {
    String::from_utf8_lossy(&secret.0.0).into_owned()
}

/// A secret of these bytes.
pub fn secret(text: &str) -> Secret {
    Secret(std::rc::Rc::new(host::RawSecret(text.as_bytes().to_vec())))
}

pub(crate) fn with<T>(read: impl FnOnce(&Scenario) -> T) -> T {
    CURRENT.with_borrow(read)
}

/// The scripted answer to a request.
#[allow(clippy::panic, reason = "an unexpected request fails the test")]
pub(crate) fn exchange(request: Request) -> Exchange {
    let query: Vec<_> = request.query.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let mark = if query.is_empty() { "" } else { "?" };
    let asked = format!("{} {}{mark}{}", format!("{:?}", request.method).to_uppercase(), request.path, query.join("&"));
    let body = host::flatten(&request.body);
    let sent = Sent { asked: asked.clone(), endpoint: request.endpoint, headers: request.headers, body };
    SENT.with_borrow_mut(|all| all.push(sent.clone()));
    if let Some(transport) = with(|scenario| scenario.transport) {
        return transport(&sent);
    }
    CURRENT.with_borrow_mut(|current| {
        let expected = if current.script.is_empty() { None } else { Some(current.script.remove(0)) };
        match expected {
            Some(exchange) if exchange.asked == asked => exchange,
            Some(exchange) => panic!("sent `{asked}`, expected `{}`", exchange.asked),
            None => panic!("sent `{asked}`, expected nothing more"),
        }
    })
}
