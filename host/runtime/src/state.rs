//! What one store holds: what the guest is told in its turn, and what it has arranged so far.

use std::collections::BTreeMap;
use std::sync::Arc;

use capstan_core::contract::{Granted, KnownPart};
use capstan_core::turn::{Call, TurnInput};
use capstan_gateway::{HttpError, Request, Response};
use tokio::sync::{mpsc, oneshot};
use wasmtime::component::ResourceTable;

use crate::limits::{Memory, Meter, broken};
use crate::secrets::{Quota, Secret};

/// A member of the control plane, by its place in the view.
pub struct MemberIndex(pub(crate) usize);

/// Lines that a guest may log in a turn, and the longest of them in bytes.
const MAX_LOG_LINES: u32 = 64;
const MAX_LOG_LINE: usize = 2 << 10;

/// What a call may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sends {
    /// Nothing.
    Nothing,
    /// Reads.
    Reads,
    /// Reads, and one request that changes something.
    Changes,
}

/// The name of a call for records, and what it may send.
pub(crate) fn describe(call: &Call) -> (String, Sends) {
    match call {
        Call::Needs => ("needs".to_owned(), Sends::Nothing),
        Call::Parts => ("parts".to_owned(), Sends::Nothing),
        Call::Identify { part, .. } => (format!("identify {part}"), Sends::Reads),
        Call::Observe(part) => (format!("observe {part}"), Sends::Reads),
        Call::Create(part) => (format!("create {part}"), Sends::Changes),
        Call::Update(part, _) => (format!("update {part}"), Sends::Changes),
        Call::Delete(part) => (format!("delete {part}"), Sends::Changes),
        Call::ReportCluster | Call::ReportMachine => ("report".to_owned(), Sends::Nothing),
        Call::Render => ("render".to_owned(), Sends::Nothing),
        Call::PlanControlPlane => ("plan".to_owned(), Sends::Nothing),
    }
}

/// Requests of a guest, to be sent by whoever drives the turn. (A guest runs on threads of its own and never does I/O.)
pub(crate) struct Ask {
    pub(crate) requests: Requests,
    pub(crate) answer: oneshot::Sender<Vec<Result<Response, HttpError>>>,
}

/// One request, or several reads side by side.
pub(crate) enum Requests {
    One(Box<Request>),
    Reads(Vec<Request>),
}

/// A store's data.
pub(crate) struct State {
    pub(crate) module: Arc<str>,
    pub(crate) input: Arc<TurnInput>,
    /// The subject's spec as text, once it was asked for.
    pub(crate) spec: Option<String>,
    pub(crate) known: BTreeMap<String, KnownPart>,
    pub(crate) granted: Granted,
    /// Fingerprints of secrets whose bytes are not here: in a replay.
    pub(crate) fingerprints: BTreeMap<String, String>,
    pub(crate) call: String,
    pub(crate) sends: Sends,
    pub(crate) http: Option<mpsc::UnboundedSender<Ask>>,
    pub(crate) table: ResourceTable,
    pub(crate) memory: Memory,
    pub(crate) meter: Arc<Meter>,
    quota: Quota,
    log_lines: u32,
    /// The last error that the guest logged: what a panic hook said before the trap.
    pub(crate) last_words: Option<String>,
}

impl State {
    pub(crate) fn new(module: Arc<str>, input: Arc<TurnInput>, memory: usize, meter: Arc<Meter>) -> Self {
        Self {
            module,
            input,
            spec: None,
            known: BTreeMap::new(),
            granted: Granted::default(),
            fingerprints: BTreeMap::new(),
            call: "begin".to_owned(),
            sends: Sends::Nothing,
            http: None,
            table: ResourceTable::new(),
            memory: Memory { limit: memory },
            meter,
            quota: Quota::default(),
            log_lines: 0,
            last_words: None,
        }
    }

    /// A new handle for a secret.
    pub(crate) fn keep(&mut self, secret: Secret) -> wasmtime::Result<wasmtime::component::Resource<Secret>> {
        self.quota.take(secret.bytes.len()).map_err(broken)?;
        Ok(self.table.push(secret)?)
    }

    /// Has requests sent.
    pub(crate) async fn ask(&mut self, requests: Requests) -> wasmtime::Result<Vec<Result<Response, HttpError>>> {
        if self.sends == Sends::Nothing {
            return Err(broken(format!("{} is pure and may not send requests", self.call)));
        }
        let (answer, answered) = oneshot::channel();
        let asked = self.http.as_ref().is_some_and(|http| http.send(Ask { requests, answer }).is_ok());
        if !asked {
            return Err(broken("the turn was given up"));
        }
        answered.await.map_err(|_| broken("the turn was given up"))
    }

    /// Writes a line of the guest into the host's log.
    pub(crate) fn log(&mut self, level: tracing::Level, message: &str, fields: &[(String, String)]) {
        self.log_lines += 1;
        if self.log_lines > MAX_LOG_LINES {
            return;
        }
        let mut line = cut(message, MAX_LOG_LINE).to_owned();
        for (name, value) in fields.iter().take(16) {
            line.push_str(&format!(" {}={:?}", cut(name, 64), cut(value, 256)));
        }
        if self.log_lines == MAX_LOG_LINES {
            line.push_str(" (further lines of this turn are left out)");
        }
        if level == tracing::Level::ERROR {
            self.last_words = Some(cut(message, 512).to_owned());
        }
        let subject = &self.input.subject;
        macro_rules! write_line {
            ($level:expr) => {
                tracing::event!(
                    target: "provider", $level, provider = &*self.module, kind = subject.kind(),
                    namespace = subject.namespace(), name = subject.name(), call = self.call, "{line}"
                )
            };
        }
        match level {
            tracing::Level::ERROR => write_line!(tracing::Level::ERROR),
            tracing::Level::WARN => write_line!(tracing::Level::WARN),
            tracing::Level::INFO => write_line!(tracing::Level::INFO),
            tracing::Level::DEBUG => write_line!(tracing::Level::DEBUG),
            _ => write_line!(tracing::Level::TRACE),
        }
    }
}

/// At most `max` bytes of a text, whole characters.
fn cut(text: &str, max: usize) -> &str {
    if text.len() <= max {
        return text;
    }
    let end = (0..=max).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    text.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changing_calls_may_change() {
        let sends = |call: &Call| describe(call).1;
        for call in
            [Call::Needs, Call::Parts, Call::ReportCluster, Call::ReportMachine, Call::Render, Call::PlanControlPlane]
        {
            assert_eq!(sends(&call), Sends::Nothing, "{call:?}");
        }
        assert_eq!(sends(&Call::Observe("a".into())), Sends::Reads);
        assert_eq!(sends(&Call::Identify { part: "a".into(), reserved: vec![] }), Sends::Reads);
        assert_eq!(sends(&Call::Create("a".into())), Sends::Changes);
        assert_eq!(sends(&Call::Update("a".into(), vec![])), Sends::Changes);
        assert_eq!(describe(&Call::Delete("a".into())), ("delete a".to_owned(), Sends::Changes));
    }

    #[test]
    fn a_text_is_cut_between_characters() {
        assert_eq!(cut("äöü", 3), "ä");
        assert_eq!(cut("abc", 3), "abc");
    }
}
