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

/// All cases, or those of `CAPSTAN_LEAK_CASE`; the summary of all goes to this provider's file in the directory that
/// `CAPSTAN_LEAK_SUMMARY` names.
fn all(suite: &Suite<'_>, worlds: usize) {
    let named = std::env::var("CAPSTAN_LEAK_CASE").unwrap_or_default();
    let named: Vec<String> = named.split(';').map(str::trim).filter(|c| !c.is_empty()).map(str::to_owned).collect();
    let extent = if named.is_empty() { Extent::All } else { Extent::These(named) };
    let report = suite.faults(&extent, worlds).unwrap();
    println!("{}", report.summary);
    if extent == Extent::All
        && let Some(directory) = std::env::var_os("CAPSTAN_LEAK_SUMMARY")
    {
        std::fs::write(Path::new(&directory).join(format!("{}.md", suite.name)), &report.summary).unwrap();
    }
    assert!(report.failures.is_empty(), "{} cases failed; the first: {}", report.failures.len(), report.failures[0]);
}
