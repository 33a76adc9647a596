//! Taking parts down, and the proof that they are gone.

use std::collections::BTreeSet;

use super::desk::Desk;
use super::order::dependents;
use crate::contract::{Absence, Effect, Ownership, Presence, Progress};
use crate::provider::{Problem, part_code};
use crate::script::{Halt, Replay};
use crate::turn::{Call, Reply};

/// Does the next thing to take all managed parts down, dependents first. True when every one of them is proved absent.
pub(crate) fn take_down(desk: &mut Desk<'_>, replay: &mut Replay<'_>) -> Result<bool, Halt> {
    let Some(parts) = desk.parts(replay)? else { return Ok(false) };
    let listed: BTreeSet<&str> = parts.iter().map(|part| part.name.as_str()).collect();
    let mut all_gone = true;

    let on_record: Vec<(String, bool)> = desk.record.parts.iter().map(|(name, e)| (name.clone(), e.borrowed)).collect();
    for (name, borrowed) in on_record.into_iter().rev() {
        if !listed.contains(name.as_str()) && !borrowed {
            all_gone &= remove(desk, replay, &name)?;
        }
    }

    let after = dependents(&parts);
    let mut gone: BTreeSet<&str> = BTreeSet::new();
    for part in parts.iter().rev() {
        let free = after.get(part.name.as_str()).is_none_or(|all| all.iter().all(|name| gone.contains(name)));
        if part.ownership == Ownership::Borrowed {
            if free {
                gone.insert(&part.name);
            }
            continue;
        }
        if free && remove(desk, replay, &part.name)? {
            gone.insert(&part.name);
        } else {
            all_gone = false;
        }
    }
    Ok(all_gone)
}

/// One part. True when it is proved absent: it was searched for (or looked up, where an id is on record) when nothing
/// that was sent for it could take effect any more.
pub(crate) fn remove(desk: &mut Desk<'_>, replay: &mut Replay<'_>, part: &str) -> Result<bool, Halt> {
    if desk.record.parts.get(part).is_some_and(|entry| entry.borrowed) {
        return Ok(true);
    }
    match look(desk, replay, part)? {
        Seen::Gone => return Ok(true),
        Seen::Unsure => return Ok(false),
        Seen::There => {}
    }
    let limits = desk.limits();
    let past = desk.record.parts.get(part).and_then(|entry| entry.may_be_past_until(limits));
    if let Some(until) = past.filter(|until| replay.now() < *until) {
        // Deleting again what is only shown still would be asked for again and again.
        desk.note("Deleting", format!("{part} was deleted and is shown still"));
        desk.look_again((until - replay.now()).min(5_000));
        return Ok(false);
    }
    if desk.changed {
        desk.look_again(0);
        return Ok(false);
    }
    let outcome = desk.call(replay, Call::Delete(part.to_owned()))?;
    desk.changed = outcome.effect != Effect::NotSent;
    if desk.changed
        && let Ok(Reply::Progress(Progress::Done(_) | Progress::Started(..))) = &outcome.reply
        && let Some(entry) = desk.record.parts.get_mut(part)
    {
        entry.deleted(replay.now(), limits);
    }
    match outcome.reply {
        Ok(Reply::Progress(Progress::Done(_))) => {
            if look(desk, replay, part)? == Seen::Gone {
                return Ok(true);
            }
            desk.look_again(200);
        }
        Ok(Reply::Progress(Progress::Started(_, operation))) => {
            desk.began(part, &operation);
            desk.save(replay, false)?;
            desk.running(part, &operation);
        }
        Ok(Reply::Progress(Progress::Waiting(reason))) => {
            desk.note(&reason.code, format!("{part}: {}", reason.message));
            desk.look_again(1_000);
        }
        Ok(_) => desk.problems.push(Problem::violated("resources.delete answered with something else")),
        Err(error) => desk.problem(&error, &format!("deleting {part}")),
    }
    Ok(false)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Seen {
    /// Proved absent.
    Gone,
    /// It is there and may be deleted.
    There,
    /// Neither; the desk knows why.
    Unsure,
}

fn look(desk: &mut Desk<'_>, replay: &mut Replay<'_>, part: &str) -> Result<Seen, Halt> {
    let Some(presence) = desk.observe(replay, part)? else { return Ok(Seen::Unsure) };
    let how = match presence {
        Presence::Present(seen) => {
            desk.note_present(part, &seen, replay.now());
            return Ok(match seen.operation {
                Some(operation) => {
                    desk.running(part, &operation);
                    Seen::Unsure
                }
                None => Seen::There,
            });
        }
        Presence::Pending(operation) => {
            desk.running(part, &operation);
            return Ok(Seen::Unsure);
        }
        Presence::Absent(how) | Presence::Failed(how, _) => Some(how),
        Presence::Foreign(reason) => {
            let entry = desk.record.parts.get(part);
            if entry.is_some_and(|entry| entry.confirmed) {
                let message = format!("{part} is not ours any more and is left alone: {}", reason.message);
                desk.problems.push(Problem::new(&part_code(part, "Foreign"), message));
                return Ok(Seen::Unsure);
            }
            // Whoever has the id we chose keeps ours from ever coming to be.
            None
        }
    };
    let Some(entry) = desk.record.parts.get(part) else { return Ok(Seen::Gone) };
    if entry.id.is_none() && entry.intent.is_some() && how.is_some_and(|how| how != Absence::SearchedByKey) {
        let rule = format!("part {part:?} has no id on record, so its absence must be searched for by key");
        desk.problems.push(Problem::violated(rule));
        return Ok(Seen::Unsure);
    }
    let from = entry.absence_counts_from(desk.limits());
    if replay.now() < from {
        desk.note("OutcomeUnknown", entry.doubt(part));
        desk.look_again((from - replay.now()).min(5_000));
        return Ok(Seen::Unsure);
    }
    Ok(Seen::Gone)
}
