//! Conditions: reading, setting, and the algebra by which one condition is made of others.
//!
//! - [`summarize`] makes one of several conditions of one object (a Machine's `Ready`);
//! - [`aggregate`] makes one of the same condition of several objects (`MachinesReady`);
//! - [`mirror`] copies one from another object, or falls back to a boolean of the contract.
//!
//! A condition whose status stays keeps its `lastTransitionTime`, so nothing is written when nothing differs.

use capstan_api::Object;
use capstan_api::time::rfc3339;
use serde_json::{Map, Value, json};

/// A condition's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It holds.
    True,
    /// It does not.
    False,
    /// It cannot be told.
    Unknown,
}

impl Status {
    /// As it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl From<bool> for Status {
    fn from(ok: bool) -> Self {
        if ok { Self::True } else { Self::False }
    }
}

impl From<Option<bool>> for Status {
    fn from(ok: Option<bool>) -> Self {
        ok.map_or(Self::Unknown, Self::from)
    }
}

/// `metav1.Condition` without its time and generation, which [`write`] takes care of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// `type`.
    pub kind: String,
    /// Whether it holds.
    pub status: Status,
    /// CamelCase.
    pub reason: String,
    /// For a person; empty where the reason says all.
    pub message: String,
}

impl Condition {
    /// From its four words.
    pub fn new(
        kind: impl Into<String>,
        status: impl Into<Status>,
        reason: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        Self { kind: kind.into(), status: status.into(), reason: reason.into(), message: message.into() }
    }

    /// True.
    pub fn yes(kind: &str, reason: &str) -> Self {
        Self::new(kind, Status::True, reason, "")
    }

    /// False.
    pub fn no(kind: &str, reason: &str, message: impl Into<String>) -> Self {
        Self::new(kind, Status::False, reason, message)
    }

    /// Unknown.
    pub fn unknown(kind: &str, reason: &str, message: impl Into<String>) -> Self {
        Self::new(kind, Status::Unknown, reason, message)
    }

    /// The condition of this type of an object, whatever contract wrote it.
    pub fn of(object: &Object, kind: &str) -> Option<Self> {
        object.at("/status/conditions")?.as_array()?.iter().find(|c| word(c, "type") == kind).map(Self::read)
    }

    /// Whether the condition of this type of an object is True.
    pub fn holds(object: &Object, kind: &str) -> bool {
        Self::of(object, kind).is_some_and(|c| c.status == Status::True)
    }

    fn read(value: &Value) -> Self {
        let status = match word(value, "status") {
            "True" => Status::True,
            "False" => Status::False,
            _ => Status::Unknown,
        };
        Self::new(word(value, "type"), status, word(value, "reason"), word(value, "message"))
    }

    /// Under another type.
    pub fn renamed(mut self, kind: &str) -> Self {
        self.kind = kind.into();
        self
    }

    /// The message, or the reason where there is none.
    fn text(&self) -> &str {
        if self.message.is_empty() { &self.reason } else { &self.message }
    }
}

fn word<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// When the condition of this type last changed its status, in milliseconds since the Unix epoch.
pub fn last_transition(object: &Object, kind: &str) -> Option<u64> {
    let condition = object.at("/status/conditions")?.as_array()?.iter().find(|c| word(c, "type") == kind)?;
    capstan_api::time::millis(word(condition, "lastTransitionTime"))
}

/// Writes conditions into `/status/conditions`. Those of other types stay; one whose status is what it was
/// keeps its time, else it gets `now`. Available and Ready come first, the others by name.
pub fn write(object: &mut Object, conditions: &[Condition], generation: i64, now: u64) {
    let old = match object.at("/status/conditions") {
        Some(Value::Array(list)) => list.clone(),
        _ => Vec::new(),
    };
    let mut list: Vec<Value> =
        old.iter().filter(|c| !conditions.iter().any(|new| new.kind == word(c, "type"))).cloned().collect();
    for new in conditions {
        let before = old.iter().find(|c| word(c, "type") == new.kind && word(c, "status") == new.status.as_str());
        let time = before.map(|c| word(c, "lastTransitionTime")).filter(|time| !time.is_empty());
        let mut value = Map::new();
        value.insert("type".into(), new.kind.clone().into());
        value.insert("status".into(), new.status.as_str().into());
        value.insert("reason".into(), if new.reason.is_empty() { "NoReasonReported" } else { &new.reason }.into());
        value.insert("message".into(), truncated(&new.message).into());
        value.insert("observedGeneration".into(), generation.into());
        value.insert("lastTransitionTime".into(), time.map_or_else(|| rfc3339(now), str::to_owned).into());
        list.push(Value::Object(value));
    }
    let rank = |kind: &str| match kind {
        "Available" => 0,
        "Ready" => 1,
        "Deleting" => 3,
        "Paused" => 4,
        _ => 2,
    };
    list.sort_by(|a, b| (rank(word(a, "type")), word(a, "type")).cmp(&(rank(word(b, "type")), word(b, "type"))));
    if list != old {
        object.set("/status/conditions", Value::Array(list));
    }
}

/// A condition's message has 32,768 bytes at most (`metav1.Condition`).
fn truncated(message: &str) -> String {
    const LIMIT: usize = 32_000;
    if message.len() <= LIMIT {
        return message.to_owned();
    }
    let cut = (0..=LIMIT).rev().find(|at| message.is_char_boundary(*at)).unwrap_or_default();
    format!("{} ...", message.get(..cut).unwrap_or_default())
}

/// The three reasons of a condition that is made of others.
#[derive(Clone, Copy, Debug)]
pub struct Reasons {
    /// When it is True.
    pub yes: &'static str,
    /// When it is False.
    pub no: &'static str,
    /// When it is Unknown.
    pub unknown: &'static str,
}

/// One condition that a summary is made of.
#[derive(Clone, Debug)]
pub struct Summand {
    /// Its type.
    pub kind: String,
    /// What it says; `None` when it was not reported yet.
    pub condition: Option<Condition>,
    /// True means trouble (`Deleting`).
    pub negative: bool,
    /// Not reported means nothing; otherwise it makes the summary Unknown.
    pub optional: bool,
}

impl Summand {
    /// One where True is good and which must be there.
    pub fn positive(kind: &str, from: &[Condition]) -> Self {
        Self::from(kind, from, false, false)
    }

    /// One where True means trouble.
    pub fn negative(kind: &str, from: &[Condition]) -> Self {
        Self::from(kind, from, true, true)
    }

    /// One where True is good and which need not be there.
    pub fn optional(kind: &str, from: &[Condition]) -> Self {
        Self::from(kind, from, false, true)
    }

    fn from(kind: &str, from: &[Condition], negative: bool, optional: bool) -> Self {
        Self { kind: kind.into(), condition: from.iter().find(|c| c.kind == kind).cloned(), negative, optional }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Weight {
    Issue,
    Unknown,
    Info,
}

fn weight(condition: &Condition, negative: bool) -> Weight {
    match (condition.status, negative) {
        (Status::Unknown, _) => Weight::Unknown,
        (Status::True, false) | (Status::False, true) => Weight::Info,
        _ => Weight::Issue,
    }
}

/// One condition of several of the same object: False if any is in trouble, else Unknown if any is, else True.
/// The message has a line for each that matters.
pub fn summarize(target: &str, of: &[Summand], reasons: Reasons) -> Condition {
    let mut lines: Vec<(Weight, String)> = Vec::new();
    for summand in of {
        let (weight, text) = match &summand.condition {
            Some(condition) => (weight(condition, summand.negative), condition.text().to_owned()),
            None if summand.optional => continue,
            None => (Weight::Unknown, "Condition not yet reported".to_owned()),
        };
        let noted = weight != Weight::Info || summand.condition.as_ref().is_some_and(|c| !c.message.is_empty());
        let line = if noted { bullet(&summand.kind, &text) } else { String::new() };
        lines.push((weight, line));
    }
    let worst = lines.iter().map(|(weight, _)| *weight).min().unwrap_or(Weight::Info);
    let shown = |weight: Weight| weight != Weight::Info || worst == Weight::Info;
    let message: Vec<&str> =
        lines.iter().filter(|(w, line)| shown(*w) && !line.is_empty()).map(|(_, line)| line.as_str()).collect();
    finished(target, worst, reasons, message.join("\n"))
}

fn finished(target: &str, worst: Weight, reasons: Reasons, message: String) -> Condition {
    match worst {
        Weight::Issue => Condition::no(target, reasons.no, message),
        Weight::Unknown => Condition::unknown(target, reasons.unknown, message),
        Weight::Info => Condition::new(target, Status::True, reasons.yes, message),
    }
}

/// `* Head: text`, with a text of several lines below its head.
fn bullet(head: &str, text: &str) -> String {
    if text.contains('\n') || text.starts_with("* ") {
        let lines: Vec<String> = text.lines().map(|line| format!("  {line}")).collect();
        format!("* {head}:\n{}", lines.join("\n"))
    } else {
        format!("* {head}: {text}")
    }
}

/// One object's contribution to [`aggregate`].
#[derive(Clone, Debug)]
pub struct Contribution {
    /// Its kind, such as `Machine`.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Control-plane machines are named first.
    pub first: bool,
    /// What it says; `None` when not reported yet.
    pub condition: Option<Condition>,
}

/// One condition of the same condition of several objects, with at most three distinct messages; the rest is
/// counted. `source` is the type that is aggregated; `negative` as in [`Summand`].
pub fn aggregate(target: &str, source: &str, of: &[Contribution], reasons: Reasons, negative: bool) -> Condition {
    struct Group<'a> {
        weight: Weight,
        first: bool,
        text: String,
        kind: &'a str,
        names: Vec<&'a str>,
    }
    let mut groups: Vec<Group<'_>> = Vec::new();
    let mut worst = Weight::Info;
    for one in of {
        let (weight, text, noted) = match &one.condition {
            Some(c) => (weight(c, negative), c.text().to_owned(), !c.message.is_empty()),
            None => (Weight::Unknown, format!("Condition {source} not yet reported"), true),
        };
        worst = worst.min(weight);
        if weight == Weight::Info && !noted {
            continue;
        }
        match groups.iter_mut().find(|g| g.weight == weight && g.text == text && g.kind == one.kind) {
            Some(group) => {
                group.names.push(&one.name);
                group.first |= one.first;
            }
            None => groups.push(Group { weight, first: one.first, text, kind: &one.kind, names: vec![&one.name] }),
        }
    }
    if worst != Weight::Info {
        groups.retain(|g| g.weight != Weight::Info);
    }
    groups.sort_by(|a, b| {
        (a.weight, !a.first, std::cmp::Reverse(a.names.len()), &a.names).cmp(&(
            b.weight,
            !b.first,
            std::cmp::Reverse(b.names.len()),
            &b.names,
        ))
    });
    let mut lines = Vec::new();
    for group in groups.iter().take(3) {
        let mut names = group.names.clone();
        names.sort_unstable();
        lines.push(bullet(&named(group.kind, &names), &group.text));
    }
    for (weight, what) in [(Weight::Issue, "with other issues"), (Weight::Unknown, "with status unknown")] {
        let rest: usize = groups.iter().skip(3).filter(|g| g.weight == weight).map(|g| g.names.len()).sum();
        if rest > 0 {
            let kind = groups.first().map_or("object", |g| g.kind);
            lines.push(format!("And {rest} {kind}{} {what}", if rest == 1 { "" } else { "s" }));
        }
    }
    finished(target, worst, reasons, lines.join("\n"))
}

/// `Machine a`, `Machines a, b`, `Machines a, b, c, ... (2 more)`.
pub fn named(kind: &str, names: &[&str]) -> String {
    match names {
        [one] => format!("{kind} {one}"),
        _ if names.len() <= 3 => format!("{kind}s {}", names.join(", ")),
        _ => {
            let shown: Vec<&str> = names.iter().take(3).copied().collect();
            format!("{kind}s {}, ... ({} more)", shown.join(", "), names.len() - shown.len())
        }
    }
}

/// A boolean of the contract that stands in for a condition that is not reported.
#[derive(Clone, Copy, Debug)]
pub struct Fallback<'a> {
    /// The boolean's path, such as `status.initialization.provisioned`.
    pub field: &'a str,
    /// Its value.
    pub holds: bool,
}

/// A copy of another object's condition `source` under the type `target`.
pub fn mirror(target: &str, object: &Object, source: &str, fallback: Fallback<'_>) -> Condition {
    let Some(mut condition) = Condition::of(object, source) else {
        return if fallback.holds {
            Condition::yes(target, "Ready")
        } else {
            Condition::no(target, "NotReady", format!("{} {} is false", object.kind(), fallback.field))
        };
    };
    if condition.reason.is_empty() {
        condition.reason = if condition.status == Status::True { "Ready" } else { "NoReasonReported" }.into();
    }
    condition.renamed(target)
}

/// Conditions as a JSON list, for tests and doubles.
pub fn list(conditions: &[Condition], now: u64) -> Value {
    let mut object = Object::default();
    write(&mut object, conditions, 1, now);
    object.at("/status/conditions").cloned().unwrap_or(json!([]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const READY: Reasons = Reasons { yes: "Ready", no: "NotReady", unknown: "ReadyUnknown" };

    #[test]
    fn a_summary_is_as_good_as_its_worst_part() {
        let all = [
            Condition::yes("A", "Fine"),
            Condition::no("B", "Broken", "the thing is broken"),
            Condition::unknown("C", "NoIdea", ""),
            Condition::no("Deleting", "NotDeleting", ""),
        ];
        let of = |kinds: &[&str]| -> Condition {
            let mut parts: Vec<Summand> = kinds.iter().map(|k| Summand::positive(k, &all)).collect();
            parts.push(Summand::negative("Deleting", &all));
            summarize("Ready", &parts, READY)
        };
        assert_eq!(of(&["A"]), Condition::yes("Ready", "Ready"));
        assert_eq!(of(&["A", "C"]), Condition::unknown("Ready", "ReadyUnknown", "* C: NoIdea"));
        assert_eq!(
            of(&["C", "B", "A", "D"]),
            Condition::no(
                "Ready",
                "NotReady",
                "* C: NoIdea\n* B: the thing is broken\n* D: Condition not yet reported"
            )
        );
    }

    #[test]
    fn trouble_of_a_negative_condition_is_true() {
        let all = [Condition::new("Deleting", true, "Deleting", "going away")];
        let summary = summarize("Ready", &[Summand::negative("Deleting", &all)], READY);
        assert_eq!(summary, Condition::no("Ready", "NotReady", "* Deleting: going away"));
    }

    fn machine(name: &str, condition: Option<Condition>) -> Contribution {
        Contribution { kind: "Machine".into(), name: name.into(), first: name.starts_with("cp"), condition }
    }

    #[test]
    fn an_aggregate_groups_equal_messages_and_counts_the_rest() {
        let bad = |text: &str| Some(Condition::no("Ready", "NotReady", text));
        let mut all: Vec<Contribution> = ["d", "c", "b", "a"].iter().map(|n| machine(n, bad("no node"))).collect();
        all.push(machine("cp1", bad("down")));
        all.push(machine("e", bad("x")));
        all.push(machine("f", bad("y")));
        all.push(machine("g", None));
        all.push(machine("h", Some(Condition::yes("Ready", "Ready"))));
        let got = aggregate("MachinesReady", "Ready", &all, READY, false);
        assert_eq!(got.status, Status::False);
        assert_eq!(
            got.message,
            "* Machine cp1: down\n* Machines a, b, c, ... (1 more): no node\n* Machine e: x\n\
             And 1 Machine with other issues\nAnd 1 Machine with status unknown"
        );
        let good = aggregate("MachinesReady", "Ready", &all[8..], READY, false);
        assert_eq!(good, Condition::yes("MachinesReady", "Ready"));
    }

    #[test]
    fn a_mirror_falls_back_to_the_contracts_boolean() {
        let object = Object::from_value(json!({"kind": "XMachine", "status": {"conditions": [
            {"type": "Ready", "status": "True"}, {"type": "Half", "status": "False", "message": "m"}]}}))
        .unwrap();
        let no = Fallback { field: "status.initialization.provisioned", holds: false };
        assert_eq!(mirror("T", &object, "Ready", no), Condition::yes("T", "Ready"));
        assert_eq!(mirror("T", &object, "Half", no), Condition::no("T", "NoReasonReported", "m"));
        assert_eq!(mirror("T", &object, "None", no).message, "XMachine status.initialization.provisioned is false");
        assert_eq!(mirror("T", &object, "None", Fallback { holds: true, ..no }), Condition::yes("T", "Ready"));
    }

    #[test]
    fn writing_again_changes_nothing_and_a_new_status_gets_a_new_time() {
        let mut object = Object::default();
        write(&mut object, &[Condition::yes("X", "R"), Condition::no("Available", "N", "m")], 1, 1_000);
        let first = object.clone();
        write(&mut object, &[Condition::no("Available", "N", "m"), Condition::yes("X", "R")], 1, 9_000);
        assert_eq!(object, first);
        write(&mut object, &[Condition::yes("Available", "A")], 1, 9_000);
        let got: Vec<(&str, &str)> = object
            .at("/status/conditions")
            .unwrap()
            .as_array()
            .unwrap()
            .iter()
            .map(|c| (word(c, "type"), word(c, "lastTransitionTime")))
            .collect();
        assert_eq!(got, [("Available", "1970-01-01T00:00:09Z"), ("X", "1970-01-01T00:00:01Z")]);
    }

    #[test]
    fn long_messages_are_cut_at_a_character() {
        let cut = truncated(&"ä".repeat(20_000));
        assert!(cut.len() < 32_768 && cut.ends_with("ä ..."));
    }
}
