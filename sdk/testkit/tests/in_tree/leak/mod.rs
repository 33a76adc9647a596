//! No fault, wherever it strikes, leaves anything behind or makes anything twice.
//!
//! `cargo test` runs a sample of all cases, another one when their number changes, and every case that
//! ever failed (`failed.txt`). `make leak` runs all of them and writes what they came to into `docs/providers/leaks.md`.

mod aws;
mod docker;
mod proxmox;
mod simulated;

use std::fmt::Write as _;
use std::path::Path;

use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use rand::seq::IteratorRandom as _;

use capstan_testkit::conformance::{Case, Life, Reference, Setting, Summary};

/// Cases that failed once: provider, life and case, one a line.
const FAILED: &str = include_str!("failed.txt");
/// Seeds of the series that are lived.
const SERIES: u64 = 64;

/// How many cases are lived.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// The gravest, this many of all, and those that ever failed.
    Sample(usize),
    /// All; the summary goes to this provider's file in the directory that `CAPSTAN_LEAK_SUMMARY` names.
    All,
}

async fn leaks_nothing(provider: &str, setting: &Setting<'_>, lives: &[Life], stale: bool, extent: Extent) {
    let mut text = format!("# {provider}\n\n");
    let mut failures = Vec::new();
    for life in lives {
        let reference = Reference::live(setting, life, 1).await.unwrap();
        assert!(reference.exchanges > 0 && reference.changes > 1, "{reference:?}");
        assert!(
            reference.at_rest <= reference.parts,
            "a settled {} costs {} requests for {} parts at each look",
            life.name,
            reference.at_rest,
            reference.parts
        );
        let all = reference.cases(stale, SERIES);
        let mut cases: Vec<Case> = match extent {
            Extent::All => all,
            Extent::Sample(count) => {
                let mut random = SmallRng::seed_from_u64(all.len() as u64);
                let mut cases = reference.gravest();
                cases.extend(all.into_iter().choose_multiple(&mut random, count));
                cases
            }
        };
        for line in FAILED.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let Some(rest) = line.strip_prefix(&format!("{provider} {} ", life.name)) else { continue };
            let case: Case = rest.parse().unwrap();
            if !cases.contains(&case) {
                cases.push(case);
            }
        }
        let mut summary = Summary::new(life.name, &reference);
        for case in cases {
            let result = case.run(setting, life, &reference).await;
            if let Err(error) = &result {
                eprintln!("FAILED {provider} {} {case}: {error:#}", life.name);
            }
            summary.note(&case, &result);
        }
        let _ = writeln!(text, "{}", summary.markdown());
        failures.append(&mut summary.failures);
    }
    println!("{text}");
    if extent == Extent::All
        && let Some(directory) = std::env::var_os("CAPSTAN_LEAK_SUMMARY")
    {
        std::fs::write(Path::new(&directory).join(format!("{provider}.md")), text).unwrap();
    }
    assert!(failures.is_empty(), "{} cases failed; the first: {}", failures.len(), failures[0]);
}

/// Ten calls leave the footprint of one.
async fn ten_calls_are_one(setting: &Setting<'_>, lives: &[Life]) {
    for life in lives {
        let once = Reference::live(setting, life, 1).await.unwrap();
        let ten = Reference::live(setting, life, 10).await.unwrap();
        assert_eq!((&ten.up, &ten.changed), (&once.up, &once.changed), "{}", life.name);
        assert!(ten.changes > once.changes, "{}: nothing was called again", life.name);
    }
}
