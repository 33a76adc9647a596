//! Kubernetes Events: what a person would want to know of an object.
//!
//! Best effort: at most [`WAITING`] wait to be sent, further ones are dropped. The same message about the same object
//! within ten minutes counts up the Event that is there already.

use std::collections::HashMap;
use std::time::Duration;

use capstan_api::{Gvk, Object};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::kinds::{Resource, builtin};
use crate::wire::{PatchKind, Wire};

/// Events that may wait to be sent.
const WAITING: usize = 256;
/// How long an Event counts up before a new one is made.
const SAME: Duration = Duration::from_secs(600);
/// Events that are remembered for counting.
const REMEMBERED: usize = 1024;

/// An Event about an object that is at hand.
#[derive(Debug)]
pub struct Note {
    /// About this object.
    pub regarding: Reference,
    /// `false`: a Warning.
    pub normal: bool,
    /// CamelCase reason.
    pub reason: String,
    /// For a person.
    pub message: String,
}

/// An object as an Event names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reference {
    /// `group/version`.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Namespace; empty for cluster-scoped objects.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
}

impl From<&Object> for Reference {
    fn from(object: &Object) -> Self {
        Self {
            api_version: object.api_version().to_owned(),
            kind: object.kind().to_owned(),
            namespace: object.namespace().to_owned(),
            name: object.name().to_owned(),
            uid: object.uid().to_owned(),
        }
    }
}

/// Sends Events. Cheap to clone.
#[derive(Clone)]
pub struct Events {
    queue: mpsc::Sender<Note>,
}

struct Sent {
    namespace: String,
    name: String,
    count: u64,
    first: Instant,
}

impl Events {
    /// Sends to this API server until the last clone is dropped.
    pub fn start(wire: Wire) -> Self {
        let (queue, mut notes) = mpsc::channel(WAITING);
        tokio::spawn(async move {
            let Some(resource) = builtin("", "Event") else { return };
            let mut sent: HashMap<(Reference, String, String), Sent> = HashMap::new();
            while let Some(note) = notes.recv().await {
                sent.retain(|_, s| s.first.elapsed() < SAME);
                if sent.len() >= REMEMBERED {
                    sent.clear();
                }
                if let Err(error) = send(&wire, &resource, &mut sent, note).await {
                    tracing::debug!(%error, "an Event was not sent");
                }
            }
        });
        Self { queue }
    }

    /// Sends one, some time.
    pub fn note(&self, note: Note) {
        if self.queue.try_send(note).is_err() {
            tracing::debug!("too many Events wait; one was dropped");
        }
    }
}

async fn send(
    wire: &Wire,
    resource: &Resource,
    sent: &mut HashMap<(Reference, String, String), Sent>,
    note: Note,
) -> Result<(), crate::wire::WireError> {
    let now = jiff::Timestamp::now();
    let stamp = jiff::Timestamp::from_second(now.as_second()).unwrap_or(now).to_string();
    let key = (note.regarding.clone(), note.reason.clone(), note.message.clone());
    if let Some(known) = sent.get_mut(&key) {
        known.count += 1;
        let patch = json!({"count": known.count, "lastTimestamp": stamp});
        match wire.patch(resource, &known.namespace, &known.name, None, PatchKind::Merge, &patch).await {
            Err(error) if error.is_not_found() => {}
            outcome => return outcome.map(|_| ()),
        }
    }
    let about = &note.regarding;
    let namespace = if about.namespace.is_empty() { "default" } else { &about.namespace };
    let name = format!("{}.{:016x}", about.name, rand::random::<u64>());
    let mut event = Object::new(&Gvk::new("", "v1", "Event"), namespace, &name);
    event.set(
        "/involvedObject",
        json!({"apiVersion": about.api_version, "kind": about.kind, "namespace": about.namespace,
               "name": about.name, "uid": about.uid}),
    );
    event.set("/type", json!(if note.normal { "Normal" } else { "Warning" }));
    event.set("/reason", note.reason.into());
    event.set("/message", note.message.chars().take(1024).collect::<String>().into());
    event.set("/source", json!({"component": "capstan"}));
    event.set("/reportingComponent", json!("capstan"));
    event.set("/reportingInstance", json!(""));
    event.set("/count", json!(1));
    event.set("/firstTimestamp", stamp.clone().into());
    event.set("/lastTimestamp", stamp.into());
    let made = wire.create(resource, &event).await?;
    sent.insert(
        key,
        Sent { namespace: made.namespace().to_owned(), name: made.name().to_owned(), count: 1, first: Instant::now() },
    );
    Ok(())
}
