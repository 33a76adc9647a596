//! What all cases of a life came to, for people.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::case::{Case, Outcome, Reference};

#[derive(Default)]
struct Row {
    cases: usize,
    failed: usize,
    changes: usize,
    exchanges: usize,
}

/// Counts of cases by their kind of trouble.
pub struct Summary {
    life: String,
    reference: Reference,
    rows: BTreeMap<String, Row>,
    /// What failed, each with the promise that was broken.
    pub failures: Vec<String>,
}

impl Summary {
    /// Of a life of this name.
    pub fn new(life: &str, reference: &Reference) -> Self {
        Self { life: life.to_owned(), reference: reference.clone(), rows: BTreeMap::new(), failures: Vec::new() }
    }

    /// Counts a case.
    pub fn note(&mut self, case: &Case, result: &anyhow::Result<Outcome>) {
        let hasty = if case.hasty { ", then deleted at once" } else { "" };
        let row = self.rows.entry(format!("{}{hasty}", case.trouble.kind())).or_default();
        row.cases += 1;
        match result {
            Ok(outcome) => {
                row.changes = row.changes.max(outcome.changes);
                row.exchanges = row.exchanges.max(outcome.exchanges);
            }
            Err(error) => {
                row.failed += 1;
                self.failures.push(format!("{error:#}"));
            }
        }
    }

    /// How many cases were counted.
    pub fn cases(&self) -> usize {
        self.rows.values().map(|row| row.cases).sum()
    }

    /// As a section of a document.
    pub fn markdown(&self) -> String {
        let r = &self.reference;
        let cases = self.cases();
        let mut text = format!("### {}\n\n", self.life);
        let _ = writeln!(
            text,
            "Without trouble: {} exchanges, {} of them changing, {} steps; up, it has {} on the server; one look at the \
             settled object is {} exchanges for {} parts, and no turn has more than {}.\n",
            r.exchanges,
            r.changes,
            r.steps,
            if r.up.is_empty() { "nothing".to_owned() } else { r.up.join(", ") },
            r.at_rest,
            r.parts,
            r.busiest_turn
        );
        let _ = writeln!(text, "{cases} cases, {} failed.\n", self.failures.len());
        text.push_str("| Trouble | Cases | Failed | Most changing calls | Most calls |\n|---|---|---|---|---|\n");
        for (kind, row) in &self.rows {
            let _ = writeln!(text, "| {kind} | {} | {} | {} | {} |", row.cases, row.failed, row.changes, row.exchanges);
        }
        text
    }
}
