//! Faults of a network and a server, and the scripts that say when they strike.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};

/// What happens to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It never reaches the server, and no answer comes back.
    DropRequest,
    /// The server acts on it, and the answer is lost.
    DropResponse,
    /// No answer comes back, and it reaches the server later, when [`FaultProxy::release`](crate::FaultProxy::release)
    /// is called.
    Late,
    /// It is answered this much later.
    Delay(Duration),
    /// 429 with this Retry-After (seconds), and the server never sees it.
    Throttle(u32),
    /// 503 with this Retry-After (seconds), and the server never sees it.
    Busy(u32),
    /// This status, and the server never sees it.
    FailBefore(u16),
    /// The server acts on it, and this status is answered instead of its own.
    FailAfter(u16),
    /// From this exchange on, reads are answered as the same reads were answered before, until
    /// [`FaultProxy::freshen`](crate::FaultProxy::freshen) is called. This request goes through.
    Stale,
}

/// Longer than an intent is fresh, and shorter than a request may take.
const DELAY: Duration = Duration::from_secs(6);

impl Fault {
    /// The faults that are tried at every exchange; `stale`: also reads that show the past.
    pub fn all(stale: bool) -> Vec<Self> {
        let mut all = vec![
            Self::DropRequest,
            Self::DropResponse,
            Self::Late,
            Self::Delay(DELAY),
            Self::Throttle(2),
            Self::Busy(40),
            Self::FailBefore(503),
            Self::FailBefore(500),
            Self::FailAfter(500),
            Self::FailAfter(502),
            Self::FailBefore(401),
        ];
        if stale {
            all.push(Self::Stale);
        }
        all
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DropRequest => f.write_str("drop-request"),
            Self::DropResponse => f.write_str("drop-response"),
            Self::Late => f.write_str("late"),
            Self::Delay(by) => write!(f, "delay:{}", by.as_millis()),
            Self::Throttle(seconds) => write!(f, "throttle:{seconds}"),
            Self::Busy(seconds) => write!(f, "busy:{seconds}"),
            Self::FailBefore(status) => write!(f, "fail-before:{status}"),
            Self::FailAfter(status) => write!(f, "fail-after:{status}"),
            Self::Stale => f.write_str("stale"),
        }
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once(':').unwrap_or((text, ""));
        let number = |what: &str| value.parse::<u32>().map_err(|_| format!("{text:?} names no {what}"));
        let status = || number("status").and_then(|s| u16::try_from(s).map_err(|error| error.to_string()));
        Ok(match name {
            "drop-request" => Self::DropRequest,
            "drop-response" => Self::DropResponse,
            "late" => Self::Late,
            "delay" => Self::Delay(Duration::from_millis(number("time")?.into())),
            "throttle" => Self::Throttle(number("pause")?),
            "busy" => Self::Busy(number("pause")?),
            "fail-before" => Self::FailBefore(status()?),
            "fail-after" => Self::FailAfter(status()?),
            "stale" => Self::Stale,
            _ => return Err(format!("{text:?} is no fault")),
        })
    }
}

/// A request as a script sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incoming<'a> {
    /// The how manieth it is since the script was set, from 0.
    pub number: usize,
    /// `GET`, `POST`, …
    pub method: &'a str,
    /// Path and query.
    pub target: &'a str,
}

/// What strikes a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strike {
    /// The fault.
    pub fault: Fault,
    /// Whoever sent it is killed while it waits: the connection stays open without an answer, and
    /// [`FaultProxy::killed`](crate::FaultProxy::killed) returns.
    pub kill: bool,
}

impl From<Fault> for Strike {
    fn from(fault: Fault) -> Self {
        Self { fault, kill: false }
    }
}

/// Says what strikes which request.
pub type Script = Box<dyn FnMut(Incoming<'_>) -> Option<Strike> + Send>;

/// Nothing ever strikes.
pub fn calm() -> Script {
    Box::new(|_| None)
}

/// Strikes the request of this number.
pub fn at(number: usize, strike: impl Into<Strike>) -> Script {
    let strike = strike.into();
    Box::new(move |incoming| (incoming.number == number).then_some(strike))
}

/// Strikes every request from this number on: a server that is away, or a credential that has expired.
pub fn from(number: usize, strike: impl Into<Strike>) -> Script {
    let strike = strike.into();
    Box::new(move |incoming| (incoming.number >= number).then_some(strike))
}

/// Strikes one request in `rarity`, with one of these faults; the same seed, the same strikes. Never more than `most`.
pub fn seeded(seed: u64, rarity: u32, faults: Vec<Fault>, most: usize) -> Script {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut struck = 0;
    Box::new(move |_| {
        if struck >= most || faults.is_empty() || !random.random_ratio(1, rarity.max(1)) {
            return None;
        }
        struck += 1;
        faults.get(random.random_range(0..faults.len())).map(|fault| Strike::from(*fault))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn incoming(number: usize) -> Incoming<'static> {
        Incoming { number, method: "GET", target: "/" }
    }

    #[test]
    fn faults_read_back_as_they_are_written() {
        let all = Fault::all(true);
        for fault in all {
            assert_eq!(fault.to_string().parse::<Fault>(), Ok(fault));
        }
        assert!("late:x:y".parse::<Fault>().is_ok() && "soon".parse::<Fault>().is_err());
        assert!("throttle".parse::<Fault>().is_err() && "fail-before:70000".parse::<Fault>().is_err());
    }

    #[test]
    fn scripts_strike_when_they_say() {
        let strikes = |mut script: Script| (0..40).filter(|n| script(incoming(*n)).is_some()).collect::<Vec<_>>();
        assert_eq!(strikes(calm()), Vec::<usize>::new());
        assert_eq!(strikes(at(3, Fault::Late)), [3]);
        assert_eq!(strikes(from(38, Fault::Late)), [38, 39]);
        let seeded = |seed| strikes(super::seeded(seed, 4, Fault::all(false), 3));
        assert_eq!(seeded(7), seeded(7));
        assert_eq!(seeded(7).len(), 3);
        assert_ne!(seeded(7), seeded(8));
    }
}
