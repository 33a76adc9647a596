//! The record of what providers sent and what came back, kept in memory and bounded.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use capstan_api::ObjectKey;
use capstan_core::contract::Effect;

use crate::credential::Credential;
use crate::redact::Redactor;
use crate::request::{Chunk, Request};

/// One exchange. Secrets are replaced by `<secret:label>`.
#[derive(Clone, Debug, PartialEq)]
pub struct Exchange {
    /// When it began.
    pub at: SystemTime,
    /// How long it took.
    pub took: Duration,
    /// Name of the ProviderModule.
    pub module: String,
    /// In which call of the contract, such as `create vm`.
    pub call: String,
    /// Name of the endpoint.
    pub endpoint: String,
    /// Method.
    pub method: &'static str,
    /// Path and query.
    pub target: String,
    /// Headers that the guest set.
    pub headers: Vec<(String, String)>,
    /// Body, cut to [`MAX_BODY`] bytes.
    pub body: String,
    /// Status and reason phrase, or why there is no answer.
    pub outcome: Result<(u16, String), String>,
    /// Body of the answer, cut to [`MAX_BODY`] bytes.
    pub response: String,
    /// For a request that changes something: what is known of it; `None` for a read.
    pub effect: Option<Effect>,
}

/// The most bytes of a body that are kept.
pub const MAX_BODY: usize = 2 << 10;
/// The most exchanges that are kept of one object.
const PER_OBJECT: usize = 32;
/// The most bytes that are kept of all.
const TOTAL_BYTES: usize = 4 << 20;

impl Exchange {
    fn size(&self) -> usize {
        let headers: usize = self.headers.iter().map(|(n, v)| n.len() + v.len() + 48).sum();
        256 + self.target.len() + self.body.len() + self.response.len() + headers
    }
}

/// Exchanges of all objects, oldest forgotten first.
#[derive(Debug, Default)]
pub struct Ledger {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    objects: HashMap<ObjectKey, VecDeque<(u64, Arc<Exchange>)>>,
    /// In order of arrival; entries may be gone from `objects` already.
    order: VecDeque<(u64, ObjectKey)>,
    next: u64,
    bytes: usize,
}

impl Ledger {
    /// The exchanges on record for an object, oldest first.
    pub fn for_object(&self, key: &ObjectKey) -> Vec<Arc<Exchange>> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.objects.get(key).map(|ring| ring.iter().map(|(_, e)| e.clone()).collect()).unwrap_or_default()
    }

    /// Forgets an object that is gone.
    pub fn forget(&self, key: &ObjectKey) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ring) = state.objects.remove(key) {
            state.bytes -= ring.iter().map(|(_, e)| e.size()).sum::<usize>();
        }
    }

    pub(crate) fn record(&self, key: &ObjectKey, exchange: Exchange) {
        let mut guard = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *guard;
        let number = state.next;
        state.next += 1;
        state.bytes += exchange.size();
        let ring = state.objects.entry(key.clone()).or_default();
        ring.push_back((number, Arc::new(exchange)));
        if ring.len() > PER_OBJECT
            && let Some((_, old)) = ring.pop_front()
        {
            state.bytes -= old.size();
        }
        state.order.push_back((number, key.clone()));
        while state.bytes > TOTAL_BYTES || state.order.len() > 4 * TOTAL_BYTES / 1024 {
            let Some((number, key)) = state.order.pop_front() else { break };
            let Some(ring) = state.objects.get_mut(&key) else { continue };
            if ring.front().is_some_and(|(first, _)| *first == number)
                && let Some((_, old)) = ring.pop_front()
            {
                state.bytes -= old.size();
                if ring.is_empty() {
                    state.objects.remove(&key);
                }
            }
        }
    }
}

/// A request's body as it may be shown.
pub(crate) fn shown_body(request: &Request) -> String {
    let mut text = String::new();
    for chunk in &request.body {
        match chunk {
            Chunk::Plain(bytes) => text.push_str(&cut(bytes)),
            Chunk::Secret { label, .. } => text.push_str(&format!("<secret:{label}>")),
        }
        if text.len() > MAX_BODY {
            break;
        }
    }
    cut(text.as_bytes())
}

/// What of an exchange must not be shown: secrets that the gateway filled in, and the credential.
pub(crate) fn hidden(request: &Request, credential: &Credential) -> Redactor {
    let mut hidden = Redactor::default();
    for chunk in &request.body {
        if let Chunk::Secret { label, bytes } = chunk {
            hidden.hide(label, bytes);
        }
    }
    credential.secrets().iter().for_each(|secret| hidden.hide("credential", secret));
    hidden
}

/// An answer's body as it may be shown: what the remote sent back of the secrets is replaced.
pub(crate) fn shown_response(hidden: &Redactor, body: &Bytes) -> String {
    if hidden.is_empty() {
        return cut(body);
    }
    // Far enough that no secret that begins in what is kept is cut through.
    let window = body.get(..MAX_BODY + hidden.longest()).unwrap_or(body);
    let redacted = hidden.bytes(window).unwrap_or_else(|| Bytes::copy_from_slice(window));
    let mut text = cut(&redacted);
    if window.len() < body.len() && !text.ends_with('…') {
        text.push('…');
    }
    text
}

fn cut(bytes: &[u8]) -> String {
    let kept = bytes.get(..MAX_BODY).unwrap_or(bytes);
    let mut text = String::from_utf8_lossy(kept).into_owned();
    if kept.len() < bytes.len() {
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Method;

    fn exchange(target: &str, body: usize) -> Exchange {
        Exchange {
            at: SystemTime::UNIX_EPOCH,
            took: Duration::ZERO,
            module: "m".into(),
            call: "observe vm".into(),
            endpoint: "api".into(),
            method: "GET",
            target: target.into(),
            headers: vec![],
            body: "x".repeat(body),
            outcome: Ok((200, "OK".into())),
            response: String::new(),
            effect: None,
        }
    }

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new("g", "K", "n", name)
    }

    #[test]
    fn a_noisy_object_pushes_out_its_own_past_only() {
        let ledger = Ledger::default();
        ledger.record(&key("quiet"), exchange("/q", 0));
        for n in 0..100 {
            ledger.record(&key("noisy"), exchange(&format!("/{n}"), 0));
        }
        let noisy = ledger.for_object(&key("noisy"));
        assert_eq!(noisy.len(), PER_OBJECT);
        assert_eq!(noisy.last().unwrap().target, "/99");
        assert_eq!(ledger.for_object(&key("quiet")).len(), 1);
    }

    #[test]
    fn memory_is_bounded_and_forgetting_gives_it_back() {
        let ledger = Ledger::default();
        for n in 0..10_000 {
            ledger.record(&key(&n.to_string()), exchange("/", MAX_BODY));
        }
        let bytes = || ledger.state.lock().unwrap().bytes;
        assert!(bytes() <= TOTAL_BYTES && bytes() > TOTAL_BYTES / 2);
        assert!(ledger.for_object(&key("0")).is_empty());
        assert_eq!(ledger.for_object(&key("9999")).len(), 1);
        let before = bytes();
        ledger.forget(&key("9999"));
        assert!(bytes() < before);
        for n in 0..10_000 {
            ledger.forget(&key(&n.to_string()));
        }
        assert_eq!(bytes(), 0);
    }

    #[test]
    fn secrets_are_replaced_in_both_directions() {
        let request = Request {
            endpoint: "api".into(),
            method: Method::Post,
            path: "/".into(),
            query: vec![],
            headers: vec![],
            body: vec![Chunk::Plain("a=".into()), Chunk::Secret { label: "token".into(), bytes: "hunter2".into() }],
            max_age: None,
        };
        assert_eq!(shown_body(&request), "a=<secret:token>");
        assert_eq!(
            shown_response(&hidden(&request, &Credential::None), &"you sent hunter2".into()),
            "you sent <secret:token>"
        );
    }
}
