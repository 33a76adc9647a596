//! What watchers are told: the last changes of one collection, oldest first, bounded in number, bytes and age.

use super::object::{Key, Object};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How much of the past a store keeps for watchers that come back, for each collection.
#[derive(Clone, Copy, Debug)]
pub struct HistoryLimit {
    /// The most events.
    pub events: usize,
    /// The most bytes (of the JSON of the objects in the events).
    pub bytes: usize,
    /// The greatest age of an event.
    pub age: Duration,
}

/// What happened to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
    Added,
    Modified,
    Deleted,
}

/// One committed change.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub kind: EventKind,
    pub key: Key,
    /// The object after the change; for a deletion its last state with the revision of the deletion.
    pub object: Arc<Object>,
    /// The object before the change.
    pub previous: Option<Arc<Object>>,
    at: Instant,
}

impl Event {
    pub fn new(kind: EventKind, key: Key, object: Arc<Object>, previous: Option<Arc<Object>>) -> Event {
        Event { kind, key, object, previous, at: Instant::now() }
    }
}

/// The events of one collection.
#[derive(Debug, Default)]
pub(crate) struct History {
    events: VecDeque<Event>,
    bytes: usize,
    /// Everything up to this revision may be missing.
    pub forgotten: u64,
}

impl History {
    pub fn starting_at(revision: u64) -> History {
        History { forgotten: revision, ..History::default() }
    }

    pub fn push(&mut self, event: Event, limit: &HistoryLimit) {
        self.bytes += event.object.weight();
        let now = event.at;
        self.events.push_back(event);
        self.trim(now, limit);
    }

    /// Drops what is over the limit.
    pub fn trim(&mut self, now: Instant, limit: &HistoryLimit) {
        while let Some(oldest) = self.events.front() {
            let within = self.events.len() <= limit.events
                && (self.bytes <= limit.bytes || self.events.len() == 1)
                && now.saturating_duration_since(oldest.at) <= limit.age;
            if within {
                break;
            }
            self.forgotten = oldest.object.revision;
            self.bytes = self.bytes.saturating_sub(oldest.object.weight());
            self.events.pop_front();
        }
        if self.events.capacity() > 64 && self.events.len() * 4 < self.events.capacity() {
            self.events.shrink_to(self.events.len() * 2);
        }
    }

    /// The events after `revision` up to and including `until`, at most `limit`. None when some of them are forgotten.
    pub fn after(&self, revision: u64, until: u64, limit: usize) -> Option<Vec<Event>> {
        if revision < self.forgotten {
            return None;
        }
        let start = self.events.partition_point(|event| event.object.revision <= revision);
        Some(
            self.events
                .range(start..)
                .take_while(|event| event.object.revision <= until)
                .take(limit)
                .cloned()
                .collect(),
        )
    }

    /// For each object changed after `revision`, what it was at `revision`. None when that is forgotten.
    pub fn undo(&self, revision: u64) -> Option<BTreeMap<Key, Option<Arc<Object>>>> {
        if revision < self.forgotten {
            return None;
        }
        let start = self.events.partition_point(|event| event.object.revision <= revision);
        let mut before = BTreeMap::new();
        for event in self.events.range(start..) {
            before.entry(event.key.clone()).or_insert_with(|| event.previous.clone());
        }
        Some(before)
    }
}
