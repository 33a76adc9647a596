//! Cases: a life, and the trouble that strikes it.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, bail, ensure};

use super::life::{Life, Living};
use super::server::Setting;
use crate::fault::{self, Fault, Strike};
use crate::proxy::Exchange;

/// How long an outage lasts (milliseconds of the management cluster's time).
pub const OUTAGE: u64 = 300_000;

/// What strikes a life. Numbers count from 0 over the whole life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// A fault at one exchange.
    Exchange(usize, Fault),
    /// The host is killed at one exchange; the fault says what becomes of the request.
    Kill(usize, Fault),
    /// The host is killed before a step of a turn (a call, a write), or after it and before it knows.
    Step(usize, bool),
    /// From one exchange on, the fault strikes everything for [`OUTAGE`].
    Outage(usize, Fault),
    /// Up to four faults by this seed.
    Series(u64),
}

/// A life and its trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// What strikes.
    pub trouble: Trouble,
    /// The object is deleted as soon as the trouble has struck while it came up or was changed.
    pub hasty: bool,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.hasty {
            f.write_str("hasty ")?;
        }
        match self.trouble {
            Trouble::Exchange(number, fault) => write!(f, "exchange {number} {fault}"),
            Trouble::Kill(number, fault) => write!(f, "kill {number} {fault}"),
            Trouble::Outage(number, fault) => write!(f, "outage {number} {fault}"),
            Trouble::Step(number, before) => write!(f, "step {number} {}", if before { "before" } else { "after" }),
            Trouble::Series(seed) => write!(f, "series {seed}"),
        }
    }
}

impl FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (hasty, rest) = text.strip_prefix("hasty ").map_or((false, text), |rest| (true, rest));
        let words: Vec<&str> = rest.split_whitespace().collect();
        let number = |text: &str| text.parse::<usize>().map_err(|_| format!("{text:?} is no number"));
        let trouble = match words.as_slice() {
            ["exchange", at, fault] => Trouble::Exchange(number(at)?, fault.parse()?),
            ["kill", at, fault] => Trouble::Kill(number(at)?, fault.parse()?),
            ["outage", at, fault] => Trouble::Outage(number(at)?, fault.parse()?),
            ["step", at, when @ ("before" | "after")] => Trouble::Step(number(at)?, *when == "before"),
            ["series", seed] => Trouble::Series(seed.parse().map_err(|_| format!("{seed:?} is no seed"))?),
            _ => return Err(format!("{text:?} is no case")),
        };
        Ok(Self { trouble, hasty })
    }
}

impl Trouble {
    /// Its row in a summary.
    pub fn kind(&self) -> String {
        match self {
            Self::Exchange(_, fault) => format!("one exchange: {fault}"),
            Self::Kill(_, fault) => format!("killed at an exchange, whose request: {}", fate(*fault)),
            Self::Outage(_, fault) => format!("five minutes of: {fault}"),
            Self::Step(_, true) => "killed before a step".to_owned(),
            Self::Step(_, false) => "killed after a step".to_owned(),
            Self::Series(_) => "up to four faults by seed".to_owned(),
        }
    }

    /// The exchange that it strikes, or begins with.
    fn exchange(&self) -> Option<usize> {
        match self {
            Self::Exchange(number, _) | Self::Kill(number, _) | Self::Outage(number, _) => Some(*number),
            Self::Step(..) | Self::Series(_) => None,
        }
    }

    /// More changing calls than a life without trouble makes that are to be expected at the most.
    fn allowance(&self) -> usize {
        match self {
            Self::Exchange(..) | Self::Kill(..) | Self::Step(..) => 3,
            Self::Outage(..) => 16,
            Self::Series(_) => 12,
        }
    }
}

fn fate(fault: Fault) -> &'static str {
    match fault {
        Fault::DropRequest => "never arrives",
        Fault::Late => "arrives late",
        _ => "has arrived",
    }
}

/// A life without trouble.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reference {
    /// What is on the server when it is up, sorted.
    pub up: Vec<String>,
    /// What is there after the change, sorted.
    pub changed: Vec<String>,
    /// Exchanges until it was up.
    pub exchanges_up: usize,
    /// Exchanges until it was changed.
    pub exchanges_changed: usize,
    /// Exchanges of the whole life.
    pub exchanges: usize,
    /// Those that changed something.
    pub changes: usize,
    /// Their numbers.
    pub changing: Vec<usize>,
    /// Steps of turns.
    pub steps: usize,
    /// The API may show the past for a while after a change.
    pub stale: bool,
    /// Parts of the object.
    pub parts: usize,
    /// The most exchanges of one turn.
    pub busiest_turn: usize,
    /// Exchanges of one look at the settled object, without those that serve many.
    pub at_rest: usize,
}

/// What a case came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Changing calls.
    pub changes: usize,
    /// All calls.
    pub exchanges: usize,
}

impl Reference {
    /// Lives it. `repeat`: each changing call is made this often, as by a host that does not know that it made it.
    ///
    /// # Errors
    /// When the life fails without trouble, or the server is not as it was in the end.
    pub async fn live(setting: &Setting<'_>, life: &Life, repeat: usize) -> anyhow::Result<Self> {
        let before = setting.server.left().await?;
        ensure!(before.is_empty(), "the server is not empty: {before:?}");
        setting.server.clear().await.context("clearing the server")?;
        let mut living = Living::begin(setting, life)?;
        living.repeat = repeat;
        living.settle().await.context("coming up")?;
        let up = sorted(setting).await?;
        let exchanges_up = setting.proxy.look(<[_]>::len);
        let mut changed = up.clone();
        if let Some(change) = life.change {
            change(&mut living.world);
            living.settle().await.context("being changed")?;
            changed = sorted(setting).await?;
        }
        let (exchanges, writes) = (setting.proxy.look(<[_]>::len), living.world.writes.len());
        living.pass(80_000).await;
        living.once().await?;
        let own = |all: &[Exchange]| all.iter().skip(exchanges).filter(|e| !setting.server.is_shared(e)).count();
        let at_rest = setting.proxy.look(own);
        let written = living.world.writes.get(writes..).unwrap_or_default();
        ensure!(written.is_empty(), "a settled object was written: {written:?}");
        living.delete();
        living.settle().await.context("being deleted")?;
        let left = setting.server.left().await?;
        ensure!(left.is_empty(), "after deletion there is {left:?}");
        Ok(Self {
            up,
            changed,
            exchanges_up,
            exchanges_changed: exchanges,
            exchanges: setting.proxy.look(<[_]>::len),
            busiest_turn: living.busiest_turn,
            changes: living.changes(),
            changing: all_changing(setting),
            steps: living.steps,
            stale: living.may_be_stale(),
            parts: living.parts,
            at_rest,
        })
    }

    /// The cases where leaks are made: a changing request that arrives late or whose answer is lost, on an object that is
    /// then deleted at once.
    pub fn gravest(&self) -> Vec<Case> {
        let up = self.changing.iter().copied().filter(|number| *number < self.exchanges_up);
        let of = |number| [Trouble::Exchange(number, Fault::Late), Trouble::Kill(number, Fault::Late)];
        up.flat_map(of).map(|trouble| Case { trouble, hasty: true }).collect()
    }

    /// Every case of this life: each fault at each exchange, a host killed there, a host killed at each step, outages
    /// at each exchange, and `series` seeds. Stale reads are among the faults where the manifest says that this API has
    /// any. Of faults that differ only in whether and when a request arrives, one is lived where the request is a read:
    /// a read that arrived, did not, or does later leaves the server as it is, and the host cannot tell. Before a deletion at
    /// once a read is struck by one error, and by what outlasts it: a pause, and answers that show the past.
    pub fn cases(&self, series: u64) -> Vec<Case> {
        let mut all = Vec::new();
        let kills = [Fault::DropRequest, Fault::DropResponse, Fault::Late];
        let same_for_reads = [Fault::DropResponse, Fault::Late, Fault::FailAfter(500)];
        let lasting = [Fault::DropRequest, Fault::Busy(40), Fault::Stale];
        for hasty in [false, true] {
            let mut add = |trouble| all.push(Case { trouble, hasty });
            for number in 0..if hasty { self.exchanges_changed } else { self.exchanges } {
                let change = self.changing.contains(&number);
                let differs = |fault: &Fault| {
                    change || if hasty { lasting.contains(fault) } else { !same_for_reads.contains(fault) }
                };
                for fault in Fault::all(self.stale).into_iter().filter(differs) {
                    add(Trouble::Exchange(number, fault));
                }
                for fault in kills.into_iter().filter(differs) {
                    add(Trouble::Kill(number, fault));
                }
                if !hasty {
                    for fault in [Fault::DropRequest, Fault::FailBefore(500), Fault::FailBefore(401)] {
                        add(Trouble::Outage(number, fault));
                    }
                }
            }
        }
        for number in 0..self.steps {
            for before in [true, false] {
                all.push(Case { trouble: Trouble::Step(number, before), hasty: false });
            }
        }
        all.extend((0..series).map(|seed| Case { trouble: Trouble::Series(seed), hasty: seed % 4 == 3 }));
        all
    }
}

/// The numbers of the exchanges that changed something.
fn all_changing(setting: &Setting<'_>) -> Vec<usize> {
    let changing = |all: &[Exchange]| {
        let all = all.iter().enumerate();
        all.filter(|(_, exchange)| setting.server.changes(exchange)).map(|(number, _)| number).collect()
    };
    setting.proxy.look(changing)
}

async fn sorted(setting: &Setting<'_>) -> anyhow::Result<Vec<String>> {
    let mut left = setting.server.left().await?;
    left.sort();
    Ok(left)
}

impl Case {
    /// Lives the life with its trouble, on a server that is cleared before.
    ///
    /// # Errors
    /// A sentence that says which promise was broken, with what the object and the proxy have to say.
    pub async fn run(&self, setting: &Setting<'_>, life: &Life, reference: &Reference) -> anyhow::Result<Outcome> {
        setting.server.clear().await.context("clearing the server")?;
        self.live(setting, life, reference).await.with_context(|| {
            let shown: Vec<String> = setting
                .proxy
                .exchanges()
                .iter()
                .map(|e| format!("{} {} -> {:?}{}", e.method, e.target, e.client, struck(e.strike)))
                .collect();
            format!("{} {self}\n  {}", life.name, shown.join("\n  "))
        })
    }

    async fn live(&self, setting: &Setting<'_>, life: &Life, reference: &Reference) -> anyhow::Result<Outcome> {
        let mut living = Living::begin(setting, life)?;
        let over = Arc::new(AtomicBool::new(false));
        let mut at_most = reference.up.clone();
        for line in &reference.changed {
            if !at_most.contains(line) {
                at_most.push(line.clone());
            }
        }
        living.at_most = Some(at_most);
        match self.trouble {
            Trouble::Exchange(number, fault) => setting.proxy.set(fault::at(number, fault)),
            Trouble::Kill(number, fault) => setting.proxy.set(fault::at(number, Strike { fault, kill: true })),
            Trouble::Outage(number, fault) => {
                let over = over.clone();
                setting.proxy.set(Box::new(move |incoming| {
                    (incoming.number >= number && !over.load(Ordering::Relaxed)).then(|| fault.into())
                }));
            }
            Trouble::Step(number, before) => living.death = Some((number, before)),
            Trouble::Series(seed) => {
                let rarity = u32::try_from(reference.exchanges / 6).unwrap_or(8).max(3);
                let faults = Fault::all(false);
                setting.proxy.set(fault::seeded(seed, rarity, faults, 4));
            }
        }
        // A trouble that is to strike the change has the object come up first.
        let early = self.hasty && self.trouble.exchange().is_none_or(|number| number < reference.exchanges_up);
        self.stage(&mut living, &over, early).await.context("coming up")?;
        if !early {
            let up = sorted(setting).await?;
            ensure!(up == reference.up, "up, it has {up:?} on the server; it should have {:?}", reference.up);
            if let Some(change) = life.change {
                change(&mut living.world);
                self.stage(&mut living, &over, self.hasty).await.context("being changed")?;
                let changed = sorted(setting).await?;
                ensure!(
                    self.hasty || changed == reference.changed,
                    "changed, it has {changed:?} on the server; it should have {:?}",
                    reference.changed
                );
            }
        }
        living.delete();
        self.stage(&mut living, &over, false).await.context("being deleted")?;
        ensure!(living.object().is_none(), "it is not gone: {}", living.said());
        let left = setting.server.left().await?;
        ensure!(left.is_empty(), "the object is gone and there is {left:?}");
        living.everything_arrives().await;
        let left = setting.server.left().await?;
        ensure!(left.is_empty(), "after all that was under way has arrived there is {left:?}");
        let outcome = Outcome { changes: living.changes(), exchanges: setting.proxy.look(<[_]>::len) };
        let most = reference.changes + self.trouble.allowance();
        ensure!(outcome.changes <= most, "{} changing calls, at most {most} were to be expected", outcome.changes);
        Ok(outcome)
    }

    /// Lives on until nothing happens any more; `hasty`: or until the trouble has struck.
    async fn stage(&self, living: &mut Living<'_>, over: &AtomicBool, hasty: bool) -> anyhow::Result<()> {
        let proxy = &living.setting.proxy;
        let struck = || proxy.look(|all| all.iter().any(|exchange| exchange.strike.is_some()));
        if let Trouble::Outage(..) = self.trouble {
            // Until it is over the object must neither go nor give up; that it recovers is what comes after.
            for _ in 0..2_000 {
                if struck() {
                    break;
                }
                let again = living.once().await?;
                if living.object().is_none() || again.is_none_or(|after| after >= 60_000) && !struck() {
                    return Ok(());
                }
                living.pass(again.unwrap_or_default().max(1)).await;
                if again.is_some_and(|after| after > 0) {
                    living.pause().await;
                }
            }
            if !over.load(Ordering::Relaxed) {
                let end = living.world.now + OUTAGE;
                while living.world.now < end {
                    let again = living.once().await?.unwrap_or(OUTAGE);
                    if living.object().is_none() {
                        bail!("the object went while nothing could be known of the server");
                    }
                    let left = end.saturating_sub(living.world.now);
                    living.pass(again.max(1).min(left.max(1))).await;
                }
                over.store(true, Ordering::Relaxed);
            }
            return living.settle().await;
        }
        if hasty {
            for _ in 0..2_000 {
                let again = living.once().await?;
                let series = matches!(self.trouble, Trouble::Series(_));
                if struck() || again.is_none_or(|after| after >= 60_000) || series && living.changes() > 0 {
                    return Ok(());
                }
                living.pass(again.unwrap_or_default().max(1)).await;
                living.pause().await;
            }
            bail!("it neither came up nor was struck: {}", living.said());
        }
        living.settle().await
    }
}

fn struck(strike: Option<Strike>) -> String {
    match strike {
        None => String::new(),
        Some(Strike { fault, kill: false }) => format!(" ({fault})"),
        Some(Strike { fault, kill: true }) => format!(" ({fault}, and the host is killed)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_read_back_as_they_are_written() {
        let reference = Reference {
            exchanges: 3,
            exchanges_up: 1,
            exchanges_changed: 2,
            changing: vec![1],
            steps: 2,
            stale: true,
            ..Reference::default()
        };
        let all = reference.cases(5);
        // A read, a change, a read: 9 faults of a read and 12 of a change, with 1 and 3 kills and 3 outages; hasty, 4 and 15 (and
        // of the last none); then steps and seeds.
        assert_eq!(all.len(), (9 + 1) * 2 + 12 + 3 + 3 * 3 + 4 + 15 + 2 * 2 + 5);
        for case in all {
            assert_eq!(case.to_string().parse::<Case>(), Ok(case), "{case}");
        }
        assert!("kill x late".parse::<Case>().is_err() && "".parse::<Case>().is_err());
    }
}
