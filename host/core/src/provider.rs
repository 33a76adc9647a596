//! The kinds that provider modules serve: which rule decides which kind, and what the rules share.
//!
//! - when a turn is due, and when a settled object is looked at again;
//! - how an error of a provider becomes a condition and a pause;
//! - which progress is worth telling.

use std::sync::Arc;
use std::time::Duration;

use capstan_api::{Object, ObjectKey};

use crate::conditions::{Condition, Status};
use crate::contract::{Duty, ProviderCondition, ProviderError, Reason, Served};
use crate::difference::Draft;
use crate::plan::{EventNote, Plan};
use crate::record::digest;
use crate::view::{LastTurn, NotNow, View};

/// Decides for an object of a kind that a module of this process serves.
///
/// # Errors
/// When something it needs to know is not known now; the caller decides again when it is.
pub fn decide_served(key: &ObjectKey, served: &Served, view: &dyn View, now: u64) -> Result<Plan, NotNow> {
    match served.duty {
        Duty::InfraCluster | Duty::InfraMachine => crate::infrastructure::decide(key, served, view, now),
        Duty::Bootstrap => crate::bootstrap::decide(key, served, view, now),
        Duty::ControlPlane => crate::control_plane::decide(key, served, view, now),
    }
}

/// Mere waiting is told when it has lasted this long (milliseconds): what takes a moment costs no write.
pub const PATIENCE: u64 = 10_000;
/// A settled object is looked at again after this time (milliseconds), and up to a quarter more.
pub const RESYNC: u64 = 60_000;
/// What belongs to an API server that does not answer is looked at again after this time (milliseconds), well as it may
/// seem: what has just been stopped is shown running for a moment.
pub const SILENT: u64 = 10_000;
/// The longest pause after an error (milliseconds).
pub const LONGEST_PAUSE: u64 = 60_000;

/// When to try again after a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// After a pause that doubles as long as it lasts.
    Backoff,
    /// After this time (milliseconds).
    After(u64),
    /// When something changes that the turn depends on.
    OnChange,
}

/// Something that keeps an object from being well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// CamelCase, for a condition.
    pub reason: String,
    /// For a person.
    pub message: String,
    /// When to try again.
    pub retry: Retry,
}

impl Problem {
    /// To be tried again with growing pauses.
    pub fn new(reason: &str, message: impl Into<String>) -> Self {
        Self { reason: code(reason), message: message.into(), retry: Retry::Backoff }
    }

    /// The provider broke a rule of the contract; the message names it.
    pub fn violated(rule: impl Into<String>) -> Self {
        Self::new("ContractViolated", rule)
    }

    /// Tried again after this time.
    #[must_use]
    pub fn after(mut self, milliseconds: u64) -> Self {
        self.retry = Retry::After(milliseconds);
        self
    }

    /// Why a call did not succeed.
    pub fn of(error: &ProviderError, doing: &str) -> Self {
        let because = |reason: &Reason| format!("{doing}: {}", reason.message);
        match error {
            ProviderError::Transient(reason) | ProviderError::Conflict(reason) => {
                Self::new(&reason.code, because(reason))
            }
            ProviderError::Throttled(pause) => {
                let problem = Self::new("Throttled", format!("{doing}: the API asked for a pause"));
                match pause {
                    Some(pause) => problem.after((*pause).clamp(1_000, 5 * LONGEST_PAUSE)),
                    None => problem,
                }
            }
            ProviderError::Unauthorized(reason) if reason.code.is_empty() => Self::new("Unauthorized", because(reason)),
            // Whether it is the credential or a right that is missing, the provider knows.
            ProviderError::Unauthorized(reason) => Self::new(&reason.code, because(reason)),
            ProviderError::Invalid(violations) => {
                let all: Vec<String> = violations.iter().map(|v| format!("{}: {}", v.path, v.message)).collect();
                let mut problem = Self::new("InvalidSpec", all.join("; "));
                problem.retry = Retry::OnChange;
                problem
            }
            ProviderError::Internal(reason) => Self::new("ProviderInternalError", because(reason)),
            ProviderError::Violated(rule) => Self::violated(format!("{doing}: {rule}")),
        }
    }
}

/// What the problems say, each once.
pub fn messages(problems: &[Problem]) -> String {
    let mut all: Vec<&str> = Vec::new();
    for problem in problems {
        if !all.contains(&problem.message.as_str()) {
            all.push(&problem.message);
        }
    }
    all.join("; ")
}

/// A reason or type that the API server accepts in a condition; what it would not is replaced.
pub fn code(text: &str) -> String {
    let starts = text.chars().next().is_some_and(|c| c.is_ascii_alphabetic());
    let fits = text.len() <= 128 && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if starts && fits { text.to_owned() } else { "Unspecified".to_owned() }
}

/// `vm` and `Missing` make `VmMissing`.
pub fn part_code(part: &str, what: &str) -> String {
    let mut text = String::new();
    let mut upper = true;
    for c in part.chars() {
        if c.is_ascii_alphanumeric() {
            text.push(if upper { c.to_ascii_uppercase() } else { c });
        }
        upper = !c.is_ascii_alphanumeric();
    }
    code(&format!("{text}{what}"))
}

/// A provider's condition as the host writes it; `None` for a type that no condition may have.
pub fn condition(reported: &ProviderCondition) -> Option<Condition> {
    let kind = code(&reported.kind);
    (kind == reported.kind).then(|| {
        let reason = code(&reported.reason.code);
        Condition::new(kind, reported.ok, reason, reported.reason.message.clone())
    })
}

/// The pause before the next try after `problems`: `None` when only a change can help. `last` is the pause before this
/// try, where that failed as well.
pub fn pause(problems: &[Problem], last: Option<u64>) -> Option<u64> {
    let growing = last.map_or(1_000, |last| (last.max(500) * 2).min(LONGEST_PAUSE));
    let each = problems.iter().filter_map(|problem| match problem.retry {
        Retry::Backoff => Some(growing),
        Retry::After(after) => Some(after),
        Retry::OnChange => None,
    });
    each.min()
}

/// When a settled object is looked at again (milliseconds): not all at the same time.
pub fn resync(key: &ObjectKey) -> u64 {
    let hash = digest(key.to_string().as_bytes(), 2);
    RESYNC + u64::from_str_radix(&hash, 16).unwrap_or_default() * (RESYNC / 4) / 0xffff
}

/// How long after `age` (milliseconds) something that boots is worth another look: often at first.
pub fn booting(age: u64) -> u64 {
    (age / 4).clamp(300, 10_000)
}

/// Whether a turn is due, and if not, when it will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Now.
    Now,
    /// After this time (milliseconds).
    Later(u64),
    /// When something changes.
    OnChange,
}

/// A turn is due when what it depends on has changed, or when the last one asked to be followed by another by now.
pub fn due(last: Option<&LastTurn>, inputs: &str, now: u64) -> Due {
    let Some(last) = last.filter(|last| last.inputs == inputs) else { return Due::Now };
    match last.look_again {
        None => Due::OnChange,
        Some(after) if last.at + after <= now => Due::Now,
        Some(after) => Due::Later(last.at + after - now),
    }
}

/// How long after a turn an object that lacks what turns write is looked at again (milliseconds): some write late.
const MENDED_AFTER: u64 = 5_000;

/// The same, but for an object that has lost what earlier turns wrote on it: status does not survive every restore, and
/// finalizers are taken away by hand.
pub fn due_if_lost(last: Option<&LastTurn>, inputs: &str, lost: bool, now: u64) -> Due {
    match (due(last, inputs, now), last) {
        (Due::Now, _) => Due::Now,
        (then, Some(last)) if lost => match (last.at + MENDED_AFTER).checked_sub(now) {
            None | Some(0) => Due::Now,
            Some(left) => Due::Later(if let Due::Later(after) = then { left.min(after) } else { left }),
        },
        (then, _) => then,
    }
}

/// A plan that only looks again, when the turn that is not due yet will be.
pub fn not_due(due: Due) -> Plan {
    let mut plan = Plan::nothing();
    if let Due::Later(after) = due {
        plan.look_again_in(Duration::from_millis(after));
    }
    plan
}

/// The age of an object in milliseconds.
pub fn age(object: &Object, now: u64) -> u64 {
    let created = object.creation_timestamp().and_then(capstan_api::time::millis);
    created.map_or(0, |created| now.saturating_sub(created))
}

/// Whether waiting is worth telling by now; if not, the plan looks again when it is.
pub fn worth_telling(object: &Object, now: u64, plan: &mut Plan) -> bool {
    let age = age(object, now);
    if age < PATIENCE {
        plan.look_again_in(Duration::from_millis(PATIENCE - age));
    }
    age >= PATIENCE
}

/// A warning, unless the object's Ready condition says the same already.
pub fn warning(object: &Object, problem: &Problem) -> Option<EventNote> {
    let known = Condition::of(object, "Ready");
    let said = known.is_some_and(|c| c.status != Status::True && c.reason == problem.reason);
    (!said).then(|| EventNote {
        regarding: object.key(),
        normal: false,
        reason: problem.reason.clone(),
        message: problem.message.clone(),
    })
}

/// A plan that only sets conditions.
pub(crate) fn told(object: &Arc<Object>, conditions: Vec<Condition>, now: u64) -> Plan {
    let mut plan = Plan::nothing();
    let mut draft = Draft::of(object);
    for condition in conditions {
        draft.condition(condition);
    }
    draft.finish(&mut plan, &[], now);
    plan
}

/// A plan that says what is waited for, when that has lasted.
pub(crate) fn waiting(object: &Arc<Object>, reason: &str, message: &str, now: u64) -> Plan {
    let mut plan = Plan::nothing();
    if worth_telling(object, now, &mut plan) || Condition::holds(object, "Paused") {
        let conditions = vec![Condition::no("Ready", reason, message), paused_condition(false)];
        let told = told(object, conditions, now);
        plan.writes = told.writes;
    }
    plan
}

/// The `Paused` condition.
pub fn paused_condition(paused: bool) -> Condition {
    let (reason, message) =
        if paused { ("Paused", "paused by the Cluster's spec.paused or an annotation") } else { ("NotPaused", "") };
    Condition::new("Paused", paused, reason, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::Violation;

    #[test]
    fn codes_are_what_the_api_server_accepts() {
        assert_eq!(code("QuotaExceeded"), "QuotaExceeded");
        assert_eq!(code("quota exceeded"), "Unspecified");
        assert_eq!(code(""), "Unspecified");
        assert_eq!(part_code("load-balancer", "Missing"), "LoadBalancerMissing");
    }

    #[test]
    fn pauses_double_and_invalid_specs_wait_for_a_change() {
        let transient =
            Problem::of(&ProviderError::Transient(Reason { code: "Down".into(), message: "x".into() }), "y");
        assert_eq!(transient.message, "y: x");
        assert_eq!(pause(std::slice::from_ref(&transient), None), Some(1_000));
        assert_eq!(pause(std::slice::from_ref(&transient), Some(8_000)), Some(16_000));
        assert_eq!(pause(&[transient], Some(50_000)), Some(LONGEST_PAUSE));
        let violation = Violation { path: "/spec/a".into(), message: "is no number".into() };
        let invalid = Problem::of(&ProviderError::Invalid(vec![violation]), "y");
        assert_eq!(
            (pause(std::slice::from_ref(&invalid), None), invalid.message),
            (None, "/spec/a: is no number".to_owned())
        );
    }

    #[test]
    fn a_turn_is_due_by_change_or_by_time() {
        let last = LastTurn { at: 1_000, inputs: "a".into(), look_again: Some(500) };
        assert_eq!(due(None, "a", 1_000), Due::Now);
        assert_eq!(due(Some(&last), "b", 1_000), Due::Now);
        assert_eq!(due(Some(&last), "a", 1_200), Due::Later(300));
        assert_eq!(due(Some(&last), "a", 1_500), Due::Now);
        assert_eq!(due_if_lost(Some(&last), "a", true, 1_200), Due::Later(300));
        let last = LastTurn { look_again: None, ..last };
        assert_eq!(due(Some(&last), "a", 9_999_999), Due::OnChange);
        assert_eq!(due_if_lost(Some(&last), "a", false, 9_999_999), Due::OnChange);
        assert_eq!(due_if_lost(Some(&last), "a", true, last.at + 2_000), Due::Later(3_000));
        assert_eq!(due_if_lost(Some(&last), "a", true, last.at + 5_000), Due::Now);
    }
}
