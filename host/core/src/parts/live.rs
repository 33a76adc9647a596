//! Bringing parts up and keeping them.

use std::collections::BTreeSet;

use serde_json::json;

use super::desk::Desk;
use super::removal;
use crate::contract::{Absence, Effect, Observed, Ownership, Part, Presence, Progress, Reason};
use crate::provider::{Problem, part_code};
use crate::record::{INTENT_FRESH, Intent, PartRecord, Verb};
use crate::script::{Halt, Replay};
use crate::turn::{Call, Reply};

/// Looks at all parts and does the next thing. True when all of them are there and ready; otherwise the desk knows why. What is
/// no part any more goes beside that: an object that has all it needs is ready while something is cleared away.
pub(crate) fn bring_up(desk: &mut Desk<'_>, replay: &mut Replay<'_>) -> Result<bool, Halt> {
    let Some(parts) = desk.parts(replay)? else { return Ok(false) };
    let mut all_ready = true;

    let unlisted: Vec<String> = desk
        .record
        .parts
        .iter()
        .filter(|(name, _)| !parts.iter().any(|part| part.name == **name))
        .map(|(name, _)| name.clone())
        .collect();
    for name in unlisted.into_iter().rev() {
        if removal::remove(desk, replay, &name)? {
            desk.record.parts.remove(&name);
        }
    }

    let mut ready = BTreeSet::new();
    for part in &parts {
        let may_begin = part.after.iter().all(|after| ready.contains(after.as_str()));
        if keep(desk, replay, part, may_begin)? {
            ready.insert(part.name.as_str());
        } else {
            all_ready = false;
        }
    }
    Ok(all_ready)
}

/// One part. True when it is there and ready.
fn keep(desk: &mut Desk<'_>, replay: &mut Replay<'_>, part: &Part, may_begin: bool) -> Result<bool, Halt> {
    if !may_begin && !desk.record.parts.contains_key(&part.name) {
        return Ok(false);
    }
    let Some(presence) = desk.observe(replay, &part.name)? else { return Ok(false) };
    match presence {
        Presence::Present(seen) => present(desk, replay, part, seen),
        Presence::Pending(operation) => {
            if let Some(entry) = desk.record.parts.get_mut(&part.name) {
                entry.operation = Some(operation.token.clone());
            }
            desk.running(&part.name, &operation);
            Ok(false)
        }
        _ if part.ownership == Ownership::Borrowed => {
            if let Some(entry) = desk.record.parts.get_mut(&part.name) {
                entry.state = None;
            }
            let message = match presence {
                Presence::Foreign(reason) | Presence::Failed(_, reason) => reason.message,
                _ => format!("{}, which this object uses and does not create, is not there", part.name),
            };
            desk.problems.push(Problem::new(&part_code(&part.name, "NotFound"), message));
            Ok(false)
        }
        Presence::Absent(how) => absent(desk, replay, part, how, None, may_begin),
        Presence::Failed(how, reason) => absent(desk, replay, part, how, Some(reason), may_begin),
        Presence::Foreign(reason) => foreign(desk, replay, part, reason, may_begin),
    }
}

/// It is there: note what was seen, and bring it up to date.
fn present(desk: &mut Desk<'_>, replay: &mut Replay<'_>, part: &Part, seen: Observed) -> Result<bool, Halt> {
    note_present(desk, part, &seen, replay.now());
    if let Some(operation) = &seen.operation {
        desk.running(&part.name, operation);
        return Ok(seen.ready);
    }
    if seen.todo.is_empty() || part.ownership == Ownership::Borrowed {
        if !seen.ready {
            desk.note("PartNotReady", format!("{} is not ready yet", part.name));
        }
        return Ok(seen.ready);
    }
    let what: Vec<&str> = seen.todo.iter().map(|reason| reason.message.as_str()).collect();
    desk.note("Updating", format!("{}: {}", part.name, what.join("; ")));
    if desk.changed {
        desk.look_again(0);
        return Ok(seen.ready);
    }
    let outcome = desk.call(replay, Call::Update(part.name.clone(), seen.todo.clone()))?;
    desk.changed = outcome.effect != Effect::NotSent;
    match outcome.reply {
        Ok(Reply::Progress(Progress::Done(id))) => {
            if id != seen.id {
                let rule = format!("updating part {:?} changed its id from {:?} to {id:?}", part.name, seen.id);
                desk.problems.push(Problem::violated(rule));
            }
            desk.look_again(if desk.changed { 100 } else { 1_000 });
        }
        Ok(Reply::Progress(Progress::Started(_, operation))) => {
            desk.began(&part.name, &operation);
            desk.save(replay, false)?;
            desk.running(&part.name, &operation);
        }
        Ok(Reply::Progress(Progress::Waiting(reason))) => {
            desk.note(&reason.code, reason.message);
            desk.look_again(1_000);
        }
        Ok(_) => desk.problems.push(Problem::violated("resources.update answered with something else")),
        Err(error) => desk.problem(&error, &format!("updating {}", part.name)),
    }
    Ok(seen.ready)
}

fn note_present(desk: &mut Desk<'_>, part: &Part, seen: &Observed, now: u64) {
    desk.note_present(&part.name, seen, now);
    if let Some(entry) = desk.record.parts.get_mut(&part.name) {
        entry.borrowed = part.ownership == Ownership::Borrowed;
    }
    desk.outdated.extend(seen.outdated.iter().cloned());
}

/// It is not there. Whether that is believed, and what follows.
fn absent(
    desk: &mut Desk<'_>,
    replay: &mut Replay<'_>,
    part: &Part,
    how: Absence,
    failed: Option<Reason>,
    may_begin: bool,
) -> Result<bool, Halt> {
    let limits = desk.limits();
    if let Some(entry) = desk.record.parts.get(&part.name).cloned() {
        if entry.id.is_none() && entry.intent.is_some() && how != Absence::SearchedByKey {
            let rule = format!("part {:?} has no id on record, so its absence must be searched for by key", part.name);
            desk.problems.push(Problem::violated(rule));
            return Ok(false);
        }
        let from = entry.absence_counts_from(limits);
        if replay.now() < from {
            let wait = (from - replay.now()).min(5_000);
            match entry.intent.as_ref().and_then(|intent| intent.refused.clone()).filter(|_| !entry.confirmed) {
                // What was said helps a person, until it is tried again.
                Some(why) => {
                    let known = entry.intent.as_ref().is_some_and(|intent| intent.effect == Effect::Answered);
                    let doubt = if known { String::new() } else { format!("; {}", entry.doubt(&part.name)) };
                    let problem = Problem::new(&why.code, format!("{}{doubt}", why.message));
                    desk.problems.push(problem.after(wait.max(1_000)));
                }
                None => {
                    desk.note("OutcomeUnknown", entry.doubt(&part.name));
                    desk.look_again(wait);
                }
            }
            return Ok(false);
        }
        // What was there once has not failed to be created: it has vanished.
        if let Some(reason) = failed.filter(|_| !entry.confirmed) {
            desk.record.parts.insert(part.name.clone(), entry.next_attempt());
            let message = format!("creating {} failed: {}", part.name, reason.message);
            let pause = 1_000_u64 << entry.attempt.min(8);
            desk.problems.push(Problem::new(&reason.code, message).after(pause));
            return Ok(false);
        }
        if entry.confirmed && !part.replaceable {
            if let Some(entry) = desk.record.parts.get_mut(&part.name) {
                entry.state = None;
                entry.operation = None;
            }
            let id = entry.id.as_deref().unwrap_or_default();
            let message = format!("{} ({id}) was there and is gone; it is not created anew", part.name);
            desk.problems.push(Problem::new("InfrastructureDeleted", message));
            return Ok(false);
        }
        if entry.confirmed {
            let id = entry.id.as_deref().unwrap_or_default();
            desk.event(false, "PartVanished", format!("{} ({id}) was there and is gone; creating it anew", part.name));
            desk.record.parts.insert(part.name.clone(), entry.next_attempt());
        }
    }
    create(desk, replay, part, may_begin)
}

/// Something has its id or name, and it is not ours.
fn foreign(
    desk: &mut Desk<'_>,
    replay: &mut Replay<'_>,
    part: &Part,
    reason: Reason,
    may_begin: bool,
) -> Result<bool, Halt> {
    let Some(entry) = desk.record.parts.get(&part.name).cloned() else {
        return create(desk, replay, part, may_begin);
    };
    if entry.confirmed {
        let id = entry.id.as_deref().unwrap_or_default();
        let message = format!("{} ({id}) is not ours any more and is left alone: {}", part.name, reason.message);
        desk.problems.push(Problem::new(&part_code(&part.name, "Foreign"), message));
        return Ok(false);
    }
    let from = entry.absence_counts_from(desk.limits());
    if replay.now() < from {
        desk.note("OutcomeUnknown", format!("whether {} was created is not known: {}", part.name, reason.message));
        desk.look_again((from - replay.now()).min(5_000));
        return Ok(false);
    }
    if let Some(id) = &entry.id {
        let mut next = entry.next_attempt();
        if !next.foreign.contains(id) {
            next.foreign.push(id.clone());
        }
        desk.record.parts.insert(part.name.clone(), next);
        let before = desk.problems.len();
        let ready = create(desk, replay, part, may_begin)?;
        if desk.problems.len() > before && desk.record.parts.get(&part.name).is_some_and(|e| !e.identified) {
            // No other id was to be had: the old attempt stands.
            desk.record.parts.insert(part.name.clone(), entry);
        }
        return Ok(ready);
    }
    create(desk, replay, part, may_begin)
}

/// Creates it: identify, intent on record, create, and look.
fn create(desk: &mut Desk<'_>, replay: &mut Replay<'_>, part: &Part, may_begin: bool) -> Result<bool, Halt> {
    if !may_begin {
        return Ok(false);
    }
    if desk.changed {
        desk.look_again(0);
        return Ok(false);
    }
    let name = &part.name;
    let mut entry = desk.record.parts.get(name).cloned().unwrap_or_else(PartRecord::first);
    entry.operation = None;
    entry.state = None;
    if !entry.identified {
        desk.record.parts.insert(name.clone(), entry.clone());
        let identify = Call::Identify { part: name.clone(), reserved: desk.reserved(name) };
        let known = desk.call(replay, identify)?;
        if entry == PartRecord::first() {
            desk.record.parts.remove(name);
        }
        let choice = match known.reply {
            Ok(Reply::Choice(choice)) => choice,
            Ok(_) => {
                desk.problems.push(Problem::violated("resources.identify answered with something else"));
                return Ok(false);
            }
            Err(error) => {
                desk.problem(&error, &format!("choosing an id for {name}"));
                return Ok(false);
            }
        };
        if let Some(id) = &choice.id {
            if id.is_empty() {
                desk.problems.push(Problem::violated(format!("an empty id was chosen for part {name:?}")));
                return Ok(false);
            }
            if entry.foreign.contains(id) {
                let message = format!("{name} needs the id {id}, which somebody else has");
                desk.problems.push(Problem::new(&part_code(name, "IdTaken"), message));
                return Ok(false);
            }
        }
        entry.id = choice.id;
        entry.frozen = (!choice.frozen.is_null() && choice.frozen != json!({})).then_some(choice.frozen);
        entry.identified = true;
    }
    let chosen = entry.id.clone();

    // An intent that took long to be put on record is renewed: absence is counted from its time.
    let mut at = replay.now();
    loop {
        let holder = desk.job.holder.clone();
        let intent = Intent { verb: Verb::Create, at, holder, effect: Effect::Unknown, refused: None };
        entry.intent = Some(intent);
        desk.record.parts.insert(name.clone(), entry.clone());
        desk.save(replay, true)?;
        if replay.now().saturating_sub(at) < INTENT_FRESH {
            break;
        }
        at = replay.now();
    }

    let outcome = desk.call(replay, Call::Create(name.clone()))?;
    desk.changed = outcome.effect != Effect::NotSent;
    let answered = settled_intent(entry.intent.take(), outcome.effect, replay.now());
    entry.intent = answered;
    let progress = match outcome.reply {
        Ok(Reply::Progress(progress)) => progress,
        other => {
            let problem = match &other {
                Err(error) => Problem::of(error, &format!("creating {name}")),
                Ok(_) => Problem::violated("resources.create answered with something else"),
            };
            if let Some(intent) = &mut entry.intent {
                intent.refused = Some(Reason { code: problem.reason.clone(), message: problem.message.clone() });
            }
            desk.record.parts.insert(name.clone(), entry);
            if outcome.effect != Effect::Unknown {
                desk.save(replay, false)?;
            }
            desk.problems.push(problem);
            return Ok(false);
        }
    };
    let named = match &progress {
        Progress::Done(id) => Some(id.clone()),
        Progress::Started(id, _) => id.clone(),
        Progress::Waiting(_) => None,
    };
    if let (Some(named), Some(chosen)) = (&named, &chosen)
        && named != chosen
    {
        desk.record.parts.insert(name.clone(), entry);
        desk.save(replay, false)?;
        let rule = format!("part {name:?} was to be created as {chosen:?} and came out as {named:?}");
        desk.problems.push(Problem::violated(rule));
        return Ok(false);
    }
    let news = named.is_some() && chosen.is_none();
    entry.id = named.filter(|id| !id.is_empty()).or(chosen);
    match progress {
        Progress::Done(id) => {
            desk.record.parts.insert(name.clone(), entry);
            desk.event(true, "Created", format!("created {name} ({id})"));
            if news {
                desk.save(replay, false)?;
            }
            look_at_new(desk, replay, part)
        }
        Progress::Started(_, operation) => {
            desk.record.parts.insert(name.clone(), entry);
            desk.began(name, &operation);
            desk.save(replay, false)?;
            desk.event(true, "Creating", format!("began to create {name}"));
            desk.running(name, &operation);
            Ok(false)
        }
        Progress::Waiting(reason) => {
            desk.record.parts.insert(name.clone(), entry);
            desk.save(replay, false)?;
            desk.problems.push(Problem::new(&reason.code, format!("{name}: {}", reason.message)));
            Ok(false)
        }
    }
}

/// What stays of an intent after the call.
fn settled_intent(intent: Option<Intent>, effect: Effect, now: u64) -> Option<Intent> {
    match effect {
        Effect::NotSent => None,
        Effect::Answered => intent.map(|intent| Intent { effect, at: now, ..intent }),
        Effect::Unknown => intent,
    }
}

/// Right after its creation: what is to be seen of it already. An id that the host chose is on record, so what is seen
/// now and the answer become one write.
fn look_at_new(desk: &mut Desk<'_>, replay: &mut Replay<'_>, part: &Part) -> Result<bool, Halt> {
    match desk.observe(replay, &part.name)? {
        Some(Presence::Present(seen)) => {
            note_present(desk, part, &seen, replay.now());
            match &seen.operation {
                Some(operation) => desk.running(&part.name, operation),
                None if !seen.todo.is_empty() => desk.look_again(0),
                None => {}
            }
            Ok(seen.ready)
        }
        Some(Presence::Pending(operation)) => {
            if let Some(entry) = desk.record.parts.get_mut(&part.name) {
                entry.operation = Some(operation.token.clone());
            }
            desk.running(&part.name, &operation);
            Ok(false)
        }
        _ => {
            desk.look_again(500);
            Ok(false)
        }
    }
}
