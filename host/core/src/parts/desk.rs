//! What a turn about parts works with: the object as the server returned it last, the record, what went wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use capstan_api::Object;

use crate::contract::{Granted, Observed, Operation, Part, Presence, ProviderError, Reason, Served};
use crate::difference::merge_patch;
use crate::needs::Offers;
use crate::plan::{EventNote, Write};
use crate::provider::Problem;
use crate::record::{Limits, OWNER_KEY, PartRecord, Record};
use crate::script::{Halt, Replay};
use crate::turn::{Call, Outcome, Reply};

/// What a turn about parts is to do.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    /// The object when the turn begins.
    pub subject: Arc<Object>,
    /// Ids that other objects have chosen and the remote has not shown yet, by part.
    pub reserved: BTreeMap<String, Vec<String>>,
    /// What its module says of it.
    pub served: Served,
    /// It is an InfraCluster: the states of its parts are read by its machines, so a new state is put on record.
    pub states_are_shared: bool,
    /// Its kind speaks contract v1beta1, where failure domains are a map.
    pub failure_domains_as_map: bool,
    /// Its owner key.
    pub owner_key: String,
    /// Its finalizer.
    pub finalizer: String,
    /// Who acts.
    pub holder: String,
    /// What may be granted.
    pub offers: Offers,
    /// The pause before this turn (milliseconds), where the object is not well.
    pub last_pause: Option<u64>,
    /// It is a machine whose Node has not joined yet.
    pub joining: bool,
    /// The API server that it belongs to does not answer.
    pub silent: bool,
}

/// The state of one turn about parts.
#[derive(Debug)]
pub(crate) struct Desk<'a> {
    pub job: &'a Job,
    /// As the server returned it last.
    pub subject: Arc<Object>,
    /// As it should be on record.
    pub record: Record,
    pub granted: Granted,
    /// A changing request has been or may have been sent in this turn.
    pub changed: bool,
    pub problems: Vec<Problem>,
    /// What is waited for, for a person.
    pub notes: Vec<Reason>,
    /// Differences that only a replacement can cure.
    pub outdated: Vec<Reason>,
    /// Parts whose operation was seen and not begun here: it is seen again, so it is not put on record.
    pub seen_operations: BTreeSet<String>,
    /// A part could not be looked at: what is known of it may be out of date.
    pub blind: bool,
    /// When to look again (milliseconds).
    pub again: Option<u64>,
    pub events: Vec<EventNote>,
}

impl<'a> Desk<'a> {
    /// Begins a turn; the record must be readable.
    pub fn new(job: &'a Job, record: Record) -> Self {
        Self {
            job,
            subject: Arc::clone(&job.subject),
            record,
            granted: Granted::default(),
            changed: false,
            problems: Vec::new(),
            notes: Vec::new(),
            outdated: Vec::new(),
            seen_operations: BTreeSet::new(),
            blind: false,
            again: None,
            events: Vec::new(),
        }
    }

    /// Ids that are not to be chosen for a part: others' choices, and what turned out to be somebody else's.
    pub fn reserved(&self, part: &str) -> Vec<String> {
        let foreign = self.record.parts.get(part).map(|entry| entry.foreign.as_slice()).unwrap_or_default();
        let others = self.job.reserved.get(part).map(Vec::as_slice).unwrap_or_default();
        let mut all = foreign.to_vec();
        all.extend(others.iter().filter(|id| !foreign.contains(id)).cloned());
        all
    }

    pub fn limits(&self) -> Limits {
        Limits::of(&self.job.served)
    }

    /// Looks again after this time (milliseconds), or sooner if that was said already.
    pub fn look_again(&mut self, after: u64) {
        self.again = Some(self.again.map_or(after, |known| known.min(after)));
    }

    pub fn note(&mut self, code: &str, message: impl Into<String>) {
        self.notes.push(Reason { code: code.into(), message: message.into() });
    }

    pub fn event(&mut self, normal: bool, reason: &str, message: String) {
        self.events.push(EventNote { regarding: self.subject.key(), normal, reason: reason.into(), message });
    }

    pub fn call(&self, replay: &mut Replay<'_>, call: Call) -> Result<Outcome, Halt> {
        replay.call(call, || self.record.known(&self.job.owner_key), &self.granted)
    }

    /// Puts what differs on record, in one patch of metadata: annotations, and the finalizer before anything managed
    /// can exist. `guarded`: a lost update ends the turn. Must be so before something is created; must not be so once
    /// something was, since what is known of it would be lost.
    pub fn save(&mut self, replay: &mut Replay<'_>, guarded: bool) -> Result<(), Halt> {
        let mut new = Object::clone(&self.subject);
        self.mark(&mut new);
        let (Some(before), Some(after)) = (self.subject.at("/metadata"), new.at("/metadata")) else { return Ok(()) };
        let Some(patch) = merge_patch(before, after) else { return Ok(()) };
        let write = Write::Patch {
            key: self.subject.key(),
            patch: serde_json::json!({ "metadata": patch }),
            resource_version: guarded.then(|| self.subject.resource_version().to_owned()),
        };
        let written = replay.write(vec![write])?;
        self.subject = Arc::new(written.into_iter().flatten().next().unwrap_or(new));
        Ok(())
    }

    /// The record, the owner key and the finalizer as they should be.
    pub fn mark(&self, new: &mut Object) {
        self.to_record().write(new);
        if self.record.has_managed() {
            if new.annotation(OWNER_KEY) != Some(&self.job.owner_key) {
                new.set_annotation(OWNER_KEY, &self.job.owner_key);
            }
            if !new.has_finalizer(&self.job.finalizer) && !new.is_deleting() {
                let mut all: Vec<String> = new.finalizers().into_iter().map(str::to_owned).collect();
                all.push(self.job.finalizer.clone());
                new.set("/metadata/finalizers", serde_json::json!(all));
            }
        }
    }

    /// What of the record belongs into the annotation.
    pub fn to_record(&self) -> Record {
        let mut record = self.record.clone();
        for (name, part) in &mut record.parts {
            if self.seen_operations.contains(name) {
                part.operation = None;
            }
        }
        record
    }

    /// Notes that a part is there: what was seen is known from now on.
    pub fn note_present(&mut self, part: &str, seen: &Observed, now: u64) {
        let limits = self.limits();
        let entry = self.record.parts.entry(part.to_owned()).or_insert_with(PartRecord::first);
        let token = seen.operation.as_ref().map(|operation| operation.token.clone());
        if token.is_some() && token != entry.operation {
            self.seen_operations.insert(part.to_owned());
        }
        entry.id = Some(seen.id.clone());
        entry.confirmed = true;
        entry.shown(now, limits);
        entry.foreign.clear();
        entry.operation = token;
        entry.state = (!seen.state.is_null()).then(|| seen.state.clone());
    }

    /// Notes an operation that was begun in this turn.
    pub fn began(&mut self, part: &str, operation: &Operation) {
        self.seen_operations.remove(part);
        if let Some(entry) = self.record.parts.get_mut(part) {
            entry.operation = Some(operation.token.clone());
        }
    }

    /// The parts in order; `None` when they cannot be told, which is noted as a problem.
    pub fn parts(&mut self, replay: &mut Replay<'_>) -> Result<Option<Vec<Part>>, Halt> {
        match self.call(replay, Call::Parts)?.reply {
            Ok(Reply::Parts(parts)) => match super::order::ordered(parts) {
                Ok(parts) => return Ok(Some(parts)),
                Err(rule) => self.problems.push(Problem::violated(rule)),
            },
            Ok(_) => self.problems.push(Problem::violated("resources.parts answered with something else")),
            Err(error) => self.problem(&error, "listing the parts"),
        }
        Ok(None)
    }

    /// Looks at a part; `None` when it cannot be seen, which is noted as a problem. What was seen is known from now on.
    pub fn observe(&mut self, replay: &mut Replay<'_>, part: &str) -> Result<Option<Presence>, Halt> {
        let outcome = self.call(replay, Call::Observe(part.to_owned()))?;
        let presence = match outcome.reply {
            Ok(Reply::Presence(presence)) => presence,
            Ok(_) => {
                self.blind = true;
                self.problems.push(Problem::violated("resources.observe answered with something else"));
                return Ok(None);
            }
            Err(error) => {
                self.blind = true;
                self.problem(&error, &format!("looking at {part}"));
                return Ok(None);
            }
        };
        if let Presence::Present(seen) = &presence {
            if seen.id.is_empty() {
                self.problems.push(Problem::violated(format!("part {part:?} is there and has no id")));
                return Ok(None);
            }
            let known = self.record.parts.get(part).and_then(|entry| entry.id.as_ref());
            if let Some(known) = known.filter(|known| **known != seen.id) {
                let rule = format!("the id of part {part:?} is {known:?} on record and {:?} as observed", seen.id);
                self.problems.push(Problem::violated(rule));
                return Ok(None);
            }
        }
        Ok(Some(presence))
    }

    pub fn problem(&mut self, error: &ProviderError, doing: &str) {
        self.problems.push(Problem::of(error, doing));
    }

    /// A remote operation is running.
    pub fn running(&mut self, part: &str, operation: &Operation) {
        self.note("OperationRunning", format!("an operation on {part} is running"));
        self.look_again(operation.look_again_after.clamp(100, 60_000));
    }
}
