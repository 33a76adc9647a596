//! No fault, wherever it strikes, leaves anything behind or makes anything twice: the conformance suite, on the providers
//! of this tree.
//!
//! `cargo test` runs a sample of all cases, another one when their number changes, and every case that
//! ever failed (`failed.txt`). `make leak` runs all of them and writes what they came to into `docs/providers/leaks.md`;
//! `make leak CASE='proxmox machine exchange 12 late'` runs one (`;` between several), `make leak LIFE='docker cluster'` all of one
//! life, leaving the others' summaries as they are.

mod aws;
mod docker;
mod double;
mod memory;
mod proxmox;
mod scenery;
mod simulated;

use std::path::Path;

use capstan_testkit::conformance::{Extent, Suite};

/// Cases that failed once: provider, life and case, one a line.
const FAILED: &str = include_str!("failed.txt");

/// Worlds side by side where a server is only a process; `CAPSTAN_LEAK_WORLDS` says another number.
fn worlds() -> usize {
    let said = std::env::var("CAPSTAN_LEAK_WORLDS").ok().and_then(|said| said.parse().ok());
    said.unwrap_or_else(|| std::thread::available_parallelism().map_or(2, usize::from) + 1)
}

/// Some cases, in so many worlds, and the rules.
fn sample(suite: &Suite<'_>, cases: usize, worlds: usize) {
    suite.rules().unwrap();
    let report = suite.faults(&Extent::Sample(cases), worlds).unwrap();
    println!("{}", report.summary);
    assert!(report.failures.is_empty(), "{} cases failed; the first: {}", report.failures.len(), report.failures[0]);
}

/// Of lives that are too long for a sample: the cases that ever failed.
fn failed(suite: &Suite<'_>) {
    let report = suite.faults(&Extent::These(FAILED.lines().map(str::to_owned).collect()), 1).unwrap();
    assert!(report.cases > 0 && report.failures.is_empty(), "{:?}", report.failures.first());
}

/// All cases, or those of `CAPSTAN_LEAK_CASE`.
fn all(suite: &Suite<'_>, worlds: usize) {
    extent(suite, &Extent::All, worlds);
}

/// So many cases, or those of `CAPSTAN_LEAK_CASE`.
fn some(suite: &Suite<'_>, cases: usize, worlds: usize) {
    extent(suite, &Extent::Sample(cases), worlds);
}

/// What an environment variable lists, `;` between.
fn listed(variable: &str) -> Vec<String> {
    let all = std::env::var(variable).unwrap_or_default();
    all.split(';').map(str::trim).filter(|one| !one.is_empty()).map(str::to_owned).collect()
}

/// Of the lives that `CAPSTAN_LEAK_LIFE` names, or of all. What each came to goes to a file of its own in the directory that
/// `CAPSTAN_LEAK_SUMMARY` names, as soon as it is known; read in the order of their names they are the suite's section.
fn extent(suite: &Suite<'_>, whole: &Extent, worlds: usize) {
    let (cases, lives) = (listed("CAPSTAN_LEAK_CASE"), listed("CAPSTAN_LEAK_LIFE"));
    let directory = std::env::var_os("CAPSTAN_LEAK_SUMMARY").filter(|_| cases.is_empty());
    let extent = if cases.is_empty() { whole.clone() } else { Extent::These(cases) };
    let heading = format!("## {}\n\n", suite.name);
    let mut failures = Vec::new();
    for (number, life) in suite.lives.iter().enumerate() {
        if !lives.is_empty() && !lives.contains(&format!("{} {}", suite.name, life.name)) {
            continue;
        }
        let one = Suite { lives: vec![life.clone()], fleet: Vec::new(), ..*suite };
        let report = one.faults(&extent, worlds).unwrap();
        println!("{}", report.summary);
        failures.extend(report.failures);
        if let Some(directory) = &directory {
            let (file, words) = match whole {
                Extent::Sample(_) => (format!("{}.sample.{number}.md", suite.name), "A sample of the cases of:\n\n"),
                _ => (format!("{}.{number}.md", suite.name), if number == 0 { heading.as_str() } else { "" }),
            };
            let text = format!("{words}{}", report.summary.trim_start_matches(&heading));
            std::fs::write(Path::new(directory).join(file), text).unwrap();
        }
    }
    assert!(failures.is_empty(), "{} cases failed; the first: {}", failures.len(), failures[0]);
}
