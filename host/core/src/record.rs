//! What is on record about an object's parts, in annotations of the object.
//!
//! Status and uid do not survive backup, restore or a move; annotations do (design, section 4). So the intent to create
//! something, the id it has and what is not known about it stand in `capstan.dev/parts`, and the key under which the
//! remote can be searched stands in `capstan.dev/owner-key`. Design, section 3.4, says what must be on record when.

use std::collections::BTreeMap;

use capstan_api::Object;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::contract::{Effect, KnownPart, Reason, Served};

/// Annotation: the parts on record (JSON).
pub const PARTS: &str = "capstan.dev/parts";
/// Annotation: minted once per object, kept through backup, restore and move.
pub const OWNER_KEY: &str = "capstan.dev/owner-key";
/// Annotation: the Node's name that a machine's provider reported.
pub const NODE_NAME: &str = "capstan.dev/node-name";
/// Annotation: the control-plane endpoint that a provider reported, as `host:port`.
pub const ENDPOINT: &str = "capstan.dev/endpoint";
/// Annotation: what a control-plane planner wants to be shown again (JSON).
pub const MEMORY: &str = "capstan.dev/memory";

/// How long a Lease may outlive its holder (milliseconds): a request that was sent under it can arrive that much later.
pub const LEASE: u64 = 15_000;

/// An intent goes stale after this time (milliseconds): what it allows must be sent before.
pub const INTENT_FRESH: u64 = 5_000;

/// How long an API may need to show what was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest a request may take (milliseconds).
    pub request: u64,
    /// How long reads may show the past (milliseconds).
    pub window: u64,
}

impl Limits {
    /// As the module says of itself.
    pub fn of(served: &Served) -> Self {
        Self { request: served.request_timeout, window: served.consistency_window }
    }
}

/// What a changing request was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Verb {
    /// `create`.
    Create,
}

/// A changing request that was meant to be sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Intent {
    /// What for.
    pub verb: Verb,
    /// When it was put on record, or answered (milliseconds since the Unix epoch).
    pub at: u64,
    /// Who meant to send it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub holder: String,
    /// What is known of it. Before the answer is on record, nothing is.
    pub effect: Effect,
    /// What was said against it: why it was refused, or what went wrong without it being known what came of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<Reason>,
}

/// A deletion that the remote accepted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Deletion {
    /// When (milliseconds since the Unix epoch).
    pub at: u64,
    /// A digest of the part's state right before it.
    pub state: String,
}

/// One part on record.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PartRecord {
    /// What the outside world calls it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The remote has shown this id to be ours.
    #[serde(default, skip_serializing_if = "is_false")]
    pub confirmed: bool,
    /// 1 at first.
    pub attempt: u32,
    /// `identify` was asked for this attempt.
    #[serde(default, skip_serializing_if = "is_false")]
    pub identified: bool,
    /// What it fixed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frozen: Option<Value>,
    /// Token of an operation that was still running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// What `observe` returned last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<Value>,
    /// A creation whose result the remote has not shown yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intent: Option<Intent>,
    /// Chosen ids that turned out to be somebody else's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub foreign: Vec<String>,
    /// The last deletion that was accepted, where reads may show the past.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion: Option<Deletion>,
    /// Looked up only; never created and never deleted.
    #[serde(default, skip_serializing_if = "is_false")]
    pub borrowed: bool,
}

fn is_false(value: &bool) -> bool {
    !value
}

impl PartRecord {
    /// First attempt, nothing known.
    pub fn first() -> Self {
        Self { attempt: 1, ..Self::default() }
    }

    /// The next attempt, which has not been identified yet.
    #[must_use]
    pub fn next_attempt(&self) -> Self {
        Self { attempt: self.attempt + 1, foreign: self.foreign.clone(), ..Self::default() }
    }

    /// From when absence counts (milliseconds since the Unix epoch): what was sent and not answered may still take
    /// effect until the request's time limit and the Lease have run out, and may not show until the consistency window
    /// has; what was answered, until that window has.
    pub fn absence_counts_from(&self, limits: Limits) -> u64 {
        match &self.intent {
            None => 0,
            Some(intent) => match intent.effect {
                Effect::NotSent => 0,
                Effect::Answered => intent.at + limits.window,
                Effect::Unknown => intent.at + limits.request + LEASE + limits.window,
            },
        }
    }

    /// Why its absence does not count yet, for a person.
    pub fn doubt(&self, part: &str) -> String {
        if self.confirmed {
            return format!("{part} was there and is not shown; this API may show the past for a moment");
        }
        format!("it is not known whether {part} was created; its absence does not count yet")
    }

    /// Notes that what was to be created is there. Where reads may show the past, the next may still show it absent: the
    /// intent stays on record, as one that is answered, and once the window has passed it says nothing any more.
    pub fn shown(&mut self, now: u64, limits: Limits) {
        let intent = self.intent.take().filter(|_| limits.window > 0);
        self.intent = intent.map(|intent| match intent.effect {
            Effect::Unknown => Intent { effect: Effect::Answered, at: now, ..intent },
            Effect::Answered | Effect::NotSent => intent,
        });
    }

    /// Notes that a deletion was accepted of what was seen last. Nothing is noted where reads never show the past.
    pub fn deleted(&mut self, now: u64, limits: Limits) {
        self.deletion = (limits.window > 0).then(|| Deletion { at: now, state: self.state_digest() });
    }

    /// Until when what is seen may be what was there before its deletion (milliseconds since the Unix epoch); `None`
    /// when it is not, because it has changed since or nothing was deleted.
    pub fn may_be_past_until(&self, limits: Limits) -> Option<u64> {
        let deletion = self.deletion.as_ref().filter(|deletion| deletion.state == self.state_digest())?;
        Some(deletion.at + limits.window)
    }

    fn state_digest(&self) -> String {
        digest(self.state.as_ref().unwrap_or(&Value::Null).to_string().as_bytes(), 8)
    }

    /// As the guest may see it.
    pub fn known(&self, owner_key: &str, part: &str) -> KnownPart {
        KnownPart {
            id: self.id.clone(),
            confirmed: self.confirmed,
            attempt: self.attempt,
            idempotency_key: idempotency_key(owner_key, part, self.attempt),
            frozen: self.frozen.clone(),
            operation: self.operation.clone(),
            state: self.state.clone(),
        }
    }
}

/// All parts on record.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    /// By name.
    pub parts: BTreeMap<String, PartRecord>,
}

/// The record cannot be read. It is never taken for an empty one: that would create things twice and leak them.
#[derive(Debug, thiserror::Error)]
#[error("annotation {PARTS} cannot be read: {source}; restore it, or find its resources by the key in {OWNER_KEY}")]
pub struct Unreadable {
    /// What the reader said.
    pub source: serde_json::Error,
}

impl Record {
    /// What an object has on record.
    ///
    /// # Errors
    /// When the annotation is there and cannot be read.
    pub fn of(object: &Object) -> Result<Self, Unreadable> {
        match object.annotation(PARTS) {
            None => Ok(Self::default()),
            Some(text) => {
                serde_json::from_str(text).map(|parts| Self { parts }).map_err(|source| Unreadable { source })
            }
        }
    }

    /// Puts the record into an object's annotation, or takes that away when nothing is on record.
    pub fn write(&self, object: &mut Object) {
        if self.parts.is_empty() {
            object.remove(&format!("/metadata/annotations/{}", PARTS.replace('/', "~1")));
            return;
        }
        if let Ok(text) = serde_json::to_string(&self.parts)
            && object.annotation(PARTS) != Some(&text)
        {
            object.set_annotation(PARTS, &text);
        }
    }

    /// As the guest may see it.
    pub fn known(&self, owner_key: &str) -> BTreeMap<String, KnownPart> {
        self.parts.iter().map(|(name, part)| (name.clone(), part.known(owner_key, name))).collect()
    }

    /// Whether there may be something outside that this object has to answer for.
    pub fn has_managed(&self) -> bool {
        self.parts.values().any(|part| !part.borrowed)
    }

    /// The states of the parts, by name.
    pub fn states(&self) -> BTreeMap<String, Value> {
        self.parts.iter().filter_map(|(name, part)| Some((name.clone(), part.state.clone()?))).collect()
    }
}

/// The finalizer of a provider's kind, as upstream's providers write it: `dockermachine.infrastructure.cluster.x-k8s.io`.
pub fn finalizer(group: &str, kind: &str) -> String {
    format!("{}.{group}", kind.to_lowercase())
}

/// The owner key that an object gets when it has none: derived, so that it need not be on record before it is used.
pub fn minted_owner_key(object: &Object) -> String {
    let seed = format!("{}/{}", object.uid(), object.creation_timestamp().unwrap_or_default());
    digest(seed.as_bytes(), 16)
}

/// The owner key of an object: the one on record, or the one it is going to get.
pub fn owner_key(object: &Object) -> String {
    object.annotation(OWNER_KEY).filter(|key| !key.is_empty()).map_or_else(|| minted_owner_key(object), str::to_owned)
}

/// Stable for owner, part and attempt.
pub fn idempotency_key(owner_key: &str, part: &str, attempt: u32) -> String {
    digest(format!("{owner_key}/{part}/{attempt}").as_bytes(), 16)
}

/// The first `bytes` bytes of the SHA-256, in hexadecimal.
pub fn digest(data: &[u8], bytes: usize) -> String {
    Sha256::digest(data).iter().take(bytes).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object() -> Object {
        Object::from_value(json!({"apiVersion": "a/v1", "kind": "K",
            "metadata": {"name": "n", "uid": "u", "creationTimestamp": "2025-11-30T00:00:00Z"}}))
        .unwrap()
    }

    #[test]
    fn the_record_reads_back_and_a_broken_one_is_no_empty_one() {
        let mut object = object();
        assert_eq!(Record::of(&object).unwrap(), Record::default());
        let mut record = Record::default();
        let mut part = PartRecord::first();
        part.intent =
            Some(Intent { verb: Verb::Create, at: 5, holder: "h".into(), effect: Effect::Unknown, refused: None });
        part.frozen = Some(json!({"node": "pve1"}));
        record.parts.insert("vm".into(), part);
        record.write(&mut object);
        assert_eq!(Record::of(&object).unwrap(), record);
        Record::default().write(&mut object);
        assert_eq!(object.annotation(PARTS), None);
        object.set_annotation(PARTS, "{");
        assert!(Record::of(&object).unwrap_err().to_string().contains(PARTS));
    }

    #[test]
    fn keys_are_stable_and_those_on_record_win() {
        let mut object = object();
        let minted = owner_key(&object);
        assert_eq!((minted.len(), &minted), (32, &owner_key(&object)));
        object.set("/metadata/uid", "other".into());
        assert_ne!(owner_key(&object), minted);
        object.set_annotation(OWNER_KEY, &minted);
        assert_eq!(owner_key(&object), minted);
        assert_ne!(idempotency_key(&minted, "vm", 1), idempotency_key(&minted, "vm", 2));
    }

    #[test]
    fn absence_counts_only_when_nothing_can_arrive_any_more() {
        let limits = Limits { request: 30_000, window: 5_000 };
        let at = |effect| {
            let intent = Some(Intent { verb: Verb::Create, at: 1_000, holder: String::new(), effect, refused: None });
            PartRecord { intent, ..PartRecord::first() }.absence_counts_from(limits)
        };
        assert_eq!(PartRecord::first().absence_counts_from(limits), 0);
        assert_eq!(at(Effect::Unknown), 1_000 + 30_000 + 15_000 + 5_000);
        assert_eq!(at(Effect::Answered), 6_000);
        assert_eq!(at(Effect::NotSent), 0);
    }
}
