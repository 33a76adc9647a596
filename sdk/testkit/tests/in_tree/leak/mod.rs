//! No fault, wherever it strikes, leaves anything behind or makes anything twice: the conformance suite, on the providers
//! of this tree.
//!
//! `cargo test` runs a sample of all cases, another one when their number changes, and every case that
//! ever failed (`failed.txt`). `make leak` runs all of them and writes what they came to into `docs/providers/leaks.md`;
//! `make leak CASE='proxmox machine exchange 12 late'` runs one (`;` between several).

mod aws;
mod docker;
mod double;
mod proxmox;
mod scenery;
mod simulated;

use std::path::Path;

use capstan_testkit::conformance::{Extent, Suite};

/// Cases that failed once: provider, life and case, one a line.
const FAILED: &str = include_str!("failed.txt");

/// Worlds side by side where a server is only a process.
fn worlds() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from) + 1
}

/// Some cases, in so many worlds, and the rules.
fn sample(suite: &Suite<'_>, cases: usize, worlds: usize) {
    suite.rules().unwrap();
    let report = suite.faults(&Extent::Sample(cases), worlds).unwrap();
    println!("{}", report.summary);
    assert!(report.failures.is_empty(), "{} cases failed; the first: {}", report.failures.len(), report.failures[0]);
}

/// All cases, or those of `CAPSTAN_LEAK_CASE`.
fn all(suite: &Suite<'_>, worlds: usize) {
    extent(suite, Extent::All, "", worlds);
}

/// So many cases, or those of `CAPSTAN_LEAK_CASE`.
fn some(suite: &Suite<'_>, cases: usize, worlds: usize) {
    extent(suite, Extent::Sample(cases), ".sample", worlds);
}

/// What each life came to goes to a file of the suite's name and `suffix` in the directory that `CAPSTAN_LEAK_SUMMARY` names,
/// as soon as it is known.
fn extent(suite: &Suite<'_>, whole: Extent, suffix: &str, worlds: usize) {
    let named = std::env::var("CAPSTAN_LEAK_CASE").unwrap_or_default();
    let named: Vec<String> = named.split(';').map(str::trim).filter(|c| !c.is_empty()).map(str::to_owned).collect();
    let directory = std::env::var_os("CAPSTAN_LEAK_SUMMARY").filter(|_| named.is_empty());
    let extent = if named.is_empty() { whole } else { Extent::These(named) };
    let heading = format!("## {}\n\n", suite.name);
    let mut summary = if suffix.is_empty() { heading.clone() } else { "A sample of the cases of:\n\n".to_owned() };
    let mut failures = Vec::new();
    for life in &suite.lives {
        let one = Suite { lives: vec![life.clone()], fleet: Vec::new(), ..*suite };
        let report = one.faults(&extent, worlds).unwrap();
        println!("{}", report.summary);
        summary.push_str(report.summary.trim_start_matches(&heading));
        failures.extend(report.failures);
        if let Some(directory) = &directory {
            std::fs::write(Path::new(directory).join(format!("{}{suffix}.md", suite.name)), &summary).unwrap();
        }
    }
    assert!(failures.is_empty(), "{} cases failed; the first: {}", failures.len(), failures[0]);
}
