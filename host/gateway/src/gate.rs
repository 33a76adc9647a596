//! What an endpoint can take: requests per second and at a time, the pauses it asks for, and whether it is there at all.
//!
//! One gate stands before all requests to one origin with one credential, whichever objects they are for: a pause that
//! one of them was asked for holds for all. Nothing waits long at a gate; what would have to is told so, unsent.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::Protocol;
use crate::clock::Clock;
use crate::transport::{TransportError, WireResponse};

/// The longest that a request waits at a gate.
const PATIENCE: Duration = Duration::from_secs(5);
/// Requests at a time where nothing else is configured.
pub(crate) const CONCURRENCY: u32 = 32;
/// Requests without an answer, one after another, that open the circuit.
const FAILURES: u32 = 10;
/// The first and longest time that a circuit stays open.
const OPEN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// The first and longest pause after throttling that names none, and the longest pause that is obeyed.
const PAUSE: (Duration, Duration, Duration) =
    (Duration::from_secs(1), Duration::from_secs(30), Duration::from_secs(300));

/// How many requests an endpoint gets per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    /// Per second, in the long run.
    pub per_second: u32,
    /// At once.
    pub burst: u32,
}

/// The gate before one endpoint.
#[derive(Debug)]
pub(crate) struct Gate {
    places: Arc<Semaphore>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// When the bucket of the rate limit is full again.
    full: Option<Instant>,
    /// Asked for by the endpoint.
    pause: Option<Instant>,
    /// Throttled so many times in a row.
    throttled: u32,
    /// Not answered so many times in a row, and why the last time.
    failures: u32,
    why: String,
    /// The circuit is open until then; the first after that tries.
    open: Option<Instant>,
    /// It has opened so many times in a row.
    opened: u32,
    /// One tries whether the endpoint is back.
    trying: bool,
}

/// A place among the requests under way; free again when dropped.
#[derive(Debug, Default)]
pub struct Admitted {
    pub(crate) _place: Option<OwnedSemaphorePermit>,
}

impl Gate {
    pub(crate) fn new(concurrency: u32) -> Self {
        let places = usize::try_from(concurrency.max(1)).unwrap_or(1);
        Self { places: Arc::new(Semaphore::new(places)), state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a place, shortly.
    ///
    /// # Errors
    /// Why there is none now, and for how long.
    pub(crate) async fn admit(&self, rate: Option<Rate>, clock: &dyn Clock) -> Result<Admitted, String> {
        let until = clock.now() + PATIENCE;
        let place = match tokio::time::timeout(PATIENCE, self.places.clone().acquire_owned()).await {
            Ok(place) => place.map_err(|error| error.to_string())?,
            Err(_) => return Err("too many requests to this endpoint are under way already".to_owned()),
        };
        loop {
            let wait = self.state().wait(rate, clock.now(), until)?;
            match wait {
                None => return Ok(Admitted { _place: Some(place) }),
                Some(at) => clock.sleep_until(at).await,
            }
        }
    }

    /// What became of a request.
    pub(crate) fn learn(&self, protocol: Protocol, answer: &Result<WireResponse, TransportError>, now: Instant) {
        let mut state = self.state();
        match answer {
            Ok(response) => {
                (state.failures, state.opened, state.open, state.trying) = (0, 0, None, false);
                match throttled(protocol, response) {
                    Some(pause) => {
                        let growing = PAUSE.0 * 2u32.saturating_pow(state.throttled.min(10));
                        let pause = pause.map_or(growing.min(PAUSE.1), |asked| asked.clamp(PAUSE.0, PAUSE.2));
                        state.throttled += 1;
                        state.pause = state.pause.max(Some(now + pause));
                    }
                    None if response.status < 500 => state.throttled = 0,
                    None => {}
                }
            }
            Err(TransportError::TooLarge(_)) => {}
            Err(why) => {
                state.why = why.to_string();
                state.failures += 1;
                if state.failures >= FAILURES && (state.open.is_none() || state.trying) {
                    let open = OPEN.0 * 2u32.saturating_pow(state.opened.min(10));
                    state.opened += 1;
                    state.trying = false;
                    state.open = Some(now + open.min(OPEN.1));
                }
            }
        }
    }
}

impl State {
    /// When to ask again; `None`: now it may be sent.
    fn wait(&mut self, rate: Option<Rate>, now: Instant, until: Instant) -> Result<Option<Instant>, String> {
        let seconds = |at: Instant| (at - now).as_secs_f64().ceil();
        if let Some(pause) = self.pause.filter(|pause| *pause > now) {
            if pause > until {
                return Err(format!("the endpoint asked for a pause, {} s of which are left", seconds(pause)));
            }
            return Ok(Some(pause));
        }
        if let Some(open) = self.open {
            if open > now {
                return Err(format!(
                    "the endpoint has not answered {} times in a row ({}); it is tried again in {} s",
                    self.failures,
                    self.why,
                    seconds(open)
                ));
            }
            // This one tries; the others are told to come back until it has learnt something.
            (self.open, self.trying) = (Some(now + OPEN.1), true);
        }
        if let Some(rate) = rate.filter(|rate| rate.per_second > 0) {
            let each = Duration::from_secs(1) / rate.per_second;
            let full = self.full.map_or(now, |full| full.max(now));
            let earliest = (full + each).checked_sub(each * rate.burst.max(1)).unwrap_or(now);
            if earliest > until {
                return Err(format!(
                    "the endpoint's limit of {} requests per second is used up for {} s",
                    rate.per_second,
                    seconds(earliest)
                ));
            }
            if earliest > now {
                return Ok(Some(earliest));
            }
            self.full = Some(full + each);
        }
        Ok(None)
    }
}

/// Whether an answer says that there were too many requests, and for how long to pause.
fn throttled(protocol: Protocol, response: &WireResponse) -> Option<Option<Duration>> {
    let header = response.headers.iter().find(|(name, _)| name == "retry-after").map(|(_, value)| value.trim());
    let pause = header.and_then(|text| match text.parse::<u64>() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => {
            let at = jiff::fmt::rfc2822::parse(text).ok()?.timestamp();
            u64::try_from(at.as_second() - jiff::Timestamp::now().as_second()).ok().map(Duration::from_secs)
        }
    });
    let aws = || {
        const CODES: [&str; 8] = [
            "RequestLimitExceeded",
            "Throttling<",
            "Throttling\"",
            "ThrottlingException",
            "ThrottledException",
            "TooManyRequestsException",
            "RequestThrottled",
            "SlowDown<",
        ];
        let text = String::from_utf8_lossy(&response.body);
        protocol != Protocol::Rest && CODES.iter().any(|code| text.contains(code))
    };
    match response.status {
        429 => Some(pause),
        503 if pause.is_some() || aws() => Some(pause),
        400 if aws() => Some(pause),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::RealTime;

    fn answer(status: u16, header: Option<&str>, body: &'static str) -> Result<WireResponse, TransportError> {
        let headers = header.map(|value| ("retry-after".to_owned(), value.to_owned())).into_iter().collect();
        Ok(WireResponse { status, status_text: String::new(), headers, body: body.into() })
    }

    fn silence() -> Result<WireResponse, TransportError> {
        Err(TransportError::NoAnswer("x".into()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_rate_is_kept_by_waiting_and_then_by_refusing() {
        let gate = Gate::new(100);
        let rate = Some(Rate { per_second: 2, burst: 3 });
        let began = Instant::now();
        for _ in 0..3 {
            gate.admit(rate, &RealTime).await.unwrap();
        }
        assert_eq!(began.elapsed(), Duration::ZERO);
        for _ in 0..4 {
            gate.admit(rate, &RealTime).await.unwrap();
        }
        assert_eq!(began.elapsed().as_secs(), 2);
        let many = futures::future::join_all((0..30).map(|_| gate.admit(rate, &RealTime))).await;
        assert_eq!(many.iter().filter(|admitted| admitted.is_ok()).count(), 10, "two per second for five seconds");
        assert!(many.iter().any(|a| a.as_ref().is_err_and(|why| why.contains("2 requests per second"))));
    }

    #[tokio::test(start_paused = true)]
    async fn only_so_many_at_a_time() {
        let gate = Gate::new(2);
        let first = gate.admit(None, &RealTime).await.unwrap();
        let _second = gate.admit(None, &RealTime).await.unwrap();
        assert!(gate.admit(None, &RealTime).await.unwrap_err().contains("under way"));
        drop(first);
        gate.admit(None, &RealTime).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_holds_for_everybody() {
        let gate = Gate::new(9);
        gate.learn(Protocol::Rest, &answer(429, Some("30"), ""), Instant::now());
        assert!(gate.admit(None, &RealTime).await.unwrap_err().contains("30 s"));
        tokio::time::advance(Duration::from_secs(27)).await;
        let began = Instant::now();
        gate.admit(None, &RealTime).await.unwrap();
        assert_eq!(began.elapsed().as_secs(), 3, "waited for the rest");
        gate.learn(Protocol::Rest, &answer(429, Some("999999"), ""), Instant::now());
        tokio::time::advance(Duration::from_secs(301)).await;
        gate.admit(None, &RealTime).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn throttling_without_a_time_pauses_longer_each_time() {
        let gate = Gate::new(9);
        for (tries, seconds) in [(0, 1), (1, 2), (2, 4)] {
            gate.learn(Protocol::AwsQuery, &answer(503, None, "<Code>RequestLimitExceeded</Code>"), Instant::now());
            let began = Instant::now();
            gate.admit(None, &RealTime).await.unwrap();
            assert_eq!(began.elapsed().as_secs(), seconds, "{tries}");
        }
        gate.learn(Protocol::AwsQuery, &answer(200, None, ""), Instant::now());
        gate.learn(Protocol::AwsJson, &answer(400, None, r#"{"__type":"ThrottlingException"}"#), Instant::now());
        let began = Instant::now();
        gate.admit(None, &RealTime).await.unwrap();
        assert_eq!(began.elapsed().as_secs(), 1);
    }

    #[test]
    fn only_throttling_is_throttling() {
        let is = |answer: Result<WireResponse, TransportError>| throttled(Protocol::Rest, &answer.unwrap()).is_some();
        assert!(is(answer(429, None, "")) && is(answer(503, Some("1"), "")));
        assert!(!is(answer(503, None, "")) && !is(answer(500, Some("1"), "")) && !is(answer(200, Some("1"), "")));
        assert!(!is(answer(400, None, "RequestLimitExceeded")), "another protocol");
        let date = "Fri, 01 Jan 2100 00:00:00 GMT";
        let pause = throttled(Protocol::Rest, &answer(503, Some(date), "").unwrap()).unwrap();
        assert!(pause.unwrap() > Duration::from_secs(1 << 20));
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_endpoint_is_left_alone_and_then_tried_by_one() {
        let gate = Gate::new(9);
        for _ in 0..FAILURES {
            gate.admit(None, &RealTime).await.unwrap();
            gate.learn(Protocol::Rest, &silence(), Instant::now());
        }
        assert!(gate.admit(None, &RealTime).await.unwrap_err().contains("10 times in a row"));
        tokio::time::advance(Duration::from_secs(2)).await;
        gate.admit(None, &RealTime).await.unwrap();
        assert!(gate.admit(None, &RealTime).await.is_err(), "one tries");
        gate.learn(Protocol::Rest, &silence(), Instant::now());
        tokio::time::advance(Duration::from_millis(1500)).await;
        assert!(gate.admit(None, &RealTime).await.is_err(), "longer this time");
        tokio::time::advance(Duration::from_millis(600)).await;
        gate.admit(None, &RealTime).await.unwrap();
        gate.learn(Protocol::Rest, &answer(500, None, ""), Instant::now());
        gate.admit(None, &RealTime).await.unwrap();
        gate.admit(None, &RealTime).await.unwrap();
    }
}
