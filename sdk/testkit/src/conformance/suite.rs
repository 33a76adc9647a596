//! All cases of all lives, in several worlds side by side.

use std::fmt::Write as _;
use std::future::Future;
use std::pin::Pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use rand::seq::IteratorRandom as _;

use super::case::{Case, Outcome, Reference};
use super::component::Component;
use super::life::Life;
use super::rules;
use super::server::{Server, Setting};
use super::summary::Summary;

/// Seeds of the series that are lived.
const SERIES: u64 = 64;
/// Every so many cases the suite says how far it is.
const PROGRESS: usize = 200;

/// A server that is starting.
pub type ServerStarts = Pin<Box<dyn Future<Output = anyhow::Result<Box<dyn Server>>>>>;

/// A component and what it is tried with.
pub struct Suite<'a> {
    /// Its name in cases and summaries: one word.
    pub name: &'a str,
    /// The component.
    pub component: &'a dyn Component,
    /// Starts a server that nobody else uses, with nothing on it. Called once for each world, in the world's runtime.
    pub server: fn() -> ServerStarts,
    /// What lives, each by itself; at least one for each kind that has parts.
    pub lives: Vec<Life>,
    /// Objects of one kind with names of their own that live beside each other; empty: not tried.
    pub fleet: Vec<Life>,
    /// Cases that failed once, one a line (`#` begins a comment): name of the suite, name of the life, case. They are
    /// part of each sample.
    pub failed: &'a str,
}

/// Which cases are lived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Extent {
    /// The gravest, so many of all the others, and those that ever failed.
    Sample(usize),
    /// All.
    All,
    /// These, each as it is printed when it fails: name of the suite, name of the life, case.
    These(Vec<String>),
}

/// What the cases came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// As a section of a document, in Markdown.
    pub summary: String,
    /// How many were lived.
    pub cases: usize,
    /// What failed, each with the promise that was broken.
    pub failures: Vec<String>,
}

impl Suite<'_> {
    /// Lives the cases, so many worlds side by side. Failures are told on stderr as they come, each with what to try
    /// again.
    ///
    /// # Errors
    /// When there is no world to live in, or the life fails without trouble.
    pub fn faults(&self, extent: &Extent, worlds: usize) -> anyhow::Result<Report> {
        let mut report = Report { summary: format!("## {}\n\n", self.name), ..Report::default() };
        for life in &self.lives {
            let Some(mut summary) = self.life(life, extent, worlds)? else { continue };
            let _ = writeln!(report.summary, "{}", summary.markdown());
            report.cases += summary.cases();
            report.failures.append(&mut summary.failures);
        }
        Ok(report)
    }

    /// Tries the rules that are no matter of one fault at one place.
    ///
    /// # Errors
    /// Which rule is broken, and how.
    pub fn rules(&self) -> anyhow::Result<()> {
        in_world(async {
            let server = (self.server)().await?;
            let setting = Setting::before(self.component, &*server).await?;
            for life in &self.lives {
                let name = format!("{} {}", self.name, life.name);
                rules::ten_calls_are_one(&setting, life).await.with_context(|| name.clone())?;
                rules::errors_are_told(&setting, life).await.with_context(|| name.clone())?;
            }
            if !self.fleet.is_empty() {
                rules::a_fleet_is_modest(&setting, &self.fleet)
                    .await
                    .with_context(|| format!("{}: a fleet", self.name))?;
            }
            Ok(())
        })
    }

    /// The cases of a life; `None` when the extent has none.
    fn life(&self, life: &Life, extent: &Extent, worlds: usize) -> anyhow::Result<Option<Summary>> {
        if let Extent::These(lines) = extent
            && self.named(life, lines.iter().map(String::as_str))?.is_empty()
        {
            return Ok(None);
        }
        let reference = in_world(async {
            let server = (self.server)().await?;
            let setting = Setting::before(self.component, &*server).await?;
            Reference::live(&setting, life, 1).await.with_context(|| format!("{} {}", self.name, life.name))
        })?;
        ensure!(reference.changes > 1, "{} {} changes nothing: {reference:?}", self.name, life.name);
        ensure!(
            reference.at_rest <= reference.parts,
            "a settled {} costs {} requests for {} parts at each look",
            life.name,
            reference.at_rest,
            reference.parts
        );
        let cases = self.chosen(life, extent, &reference)?;
        if cases.is_empty() {
            return Ok(None);
        }
        let run = Run {
            suite: self,
            life,
            reference: &reference,
            cases: &cases,
            next: AtomicUsize::new(0),
            began: Instant::now(),
            done: Mutex::default(),
        };
        let results = std::thread::scope(|scope| {
            let worlds = worlds.clamp(1, cases.len());
            let handles: Vec<_> = (0..worlds).map(|_| scope.spawn(|| in_world(run.world()))).collect();
            let joined = handles.into_iter().map(|handle| handle.join().unwrap_or_else(|_| bail!("a world panicked")));
            joined.collect::<anyhow::Result<Vec<()>>>()
        });
        results?;
        let mut done = run.done.into_inner().unwrap_or_default();
        done.sort_by_key(|(number, _)| *number);
        let mut summary = Summary::new(life.name, &reference);
        for (case, (_, result)) in cases.iter().zip(&done) {
            summary.note(case, result);
        }
        Ok(Some(summary))
    }

    fn chosen(&self, life: &Life, extent: &Extent, reference: &Reference) -> anyhow::Result<Vec<Case>> {
        let all = || reference.cases(SERIES);
        let mut cases = match extent {
            Extent::All => all(),
            Extent::Sample(count) => {
                let all = all();
                let mut random = SmallRng::seed_from_u64(all.len() as u64);
                let mut cases = reference.gravest();
                cases.extend(all.into_iter().choose_multiple(&mut random, *count));
                cases
            }
            Extent::These(lines) => self.named(life, lines.iter().map(String::as_str))?,
        };
        if !matches!(extent, Extent::These(_)) {
            for case in self.named(life, self.failed.lines())? {
                if !cases.contains(&case) {
                    cases.push(case);
                }
            }
        }
        Ok(cases)
    }

    /// The cases of a life among lines.
    fn named<'l>(&self, life: &Life, lines: impl Iterator<Item = &'l str>) -> anyhow::Result<Vec<Case>> {
        let begin = format!("{} {} ", self.name, life.name);
        let cases = lines.filter_map(|line| line.trim().strip_prefix(&begin));
        cases.map(|case| case.parse().map_err(anyhow::Error::msg)).collect()
    }
}

/// The cases of a life as they are lived.
struct Run<'a> {
    suite: &'a Suite<'a>,
    life: &'a Life,
    reference: &'a Reference,
    cases: &'a [Case],
    next: AtomicUsize,
    began: Instant,
    done: Mutex<Vec<(usize, anyhow::Result<Outcome>)>>,
}

impl Run<'_> {
    /// A world with a server of its own that takes cases until there are none.
    async fn world(&self) -> anyhow::Result<()> {
        let server = (self.suite.server)().await?;
        let setting = Setting::before(self.suite.component, &*server).await?;
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(case) = self.cases.get(number) else { return Ok(()) };
            let result = case.run(&setting, self.life, self.reference).await;
            if let Err(error) = &result {
                let name = format!("{} {} {case}", self.suite.name, self.life.name);
                eprintln!("FAILED {name}: {error:#}\nTo try it again: make leak CASE='{name}'");
            }
            let mut done = self.done.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            done.push((number, result));
            if done.len().is_multiple_of(PROGRESS) {
                let failed = done.iter().filter(|(_, result)| result.is_err()).count();
                let seconds = self.began.elapsed().as_secs();
                let (name, life, all) = (self.suite.name, self.life.name, self.cases.len());
                eprintln!("{name} {life}: {} of {all} cases, {failed} failed, {seconds} s", done.len());
            }
        }
    }
}

/// Runs something in a runtime of its own.
fn in_world<T>(future: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    // Fails when a provider is installed already: any will do.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime")?;
    let result = runtime.block_on(future);
    runtime.shutdown_timeout(Duration::from_secs(5));
    result
}
