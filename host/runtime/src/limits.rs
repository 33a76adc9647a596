//! What one turn may use, and the measuring of it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use wasmtime::ResourceLimiter;

use crate::engine::{Inner, Maxima};
use crate::manifest::LimitWishes;

/// What a provider gets that asks for nothing.
const MEMORY: u64 = 16 << 20;
const CPU: Duration = Duration::from_millis(200);
const REQUESTS: u32 = 64;

/// A rule that a guest broke; ends its store.
#[derive(Debug)]
pub(crate) struct Broken(pub(crate) String);

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Broken {}

/// A [`Broken`] rule as wasmtime takes it.
pub(crate) fn broken(text: impl Into<String>) -> wasmtime::Error {
    wasmtime::Error::new(Broken(text.into()))
}

/// What one turn of a module may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// Bytes of one linear memory.
    pub memory: u64,
    /// CPU time.
    pub cpu: Duration,
    /// Requests.
    pub requests: u32,
}

impl Granted {
    /// What is asked for, as far as the operator's maxima allow.
    pub(crate) fn new(wishes: &LimitWishes, maxima: &Maxima) -> Self {
        Self {
            memory: wishes.memory.map_or(MEMORY, |wish| wish.0).min(maxima.memory),
            cpu: wishes.cpu.map_or(CPU, |wish| wish.0).min(maxima.cpu),
            requests: wishes.requests_per_turn.unwrap_or(REQUESTS).min(maxima.requests),
        }
    }
}

/// Limits of a store.
pub(crate) struct Memory {
    pub(crate) limit: usize,
}

impl ResourceLimiter for Memory {
    fn memory_growing(&mut self, _: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        if desired > self.limit {
            return Err(broken(format!("it needs more than its {} KiB of memory", self.limit >> 10)));
        }
        Ok(true)
    }

    fn table_growing(&mut self, _: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        if desired > 20_000 {
            return Err(broken("it needs a table of more than 20000 elements"));
        }
        Ok(true)
    }

    fn instances(&self) -> usize {
        24
    }

    fn tables(&self) -> usize {
        24
    }

    fn memories(&self) -> usize {
        3
    }
}

/// Measures the CPU time that a guest uses in a turn. Time in which it waits for HTTP does not count.
#[derive(Debug)]
pub(crate) struct Meter {
    budget: Duration,
    spent: AtomicU64,
    /// CPU time of the thread when the present poll began.
    began: AtomicU64,
}

/// Nanoseconds of CPU time that this thread has used.
fn thread_time() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec).unwrap_or(0).saturating_mul(1_000_000_000) + u64::try_from(time.tv_nsec).unwrap_or(0)
}

impl Meter {
    pub(crate) fn new(budget: Duration) -> Self {
        Self { budget, spent: AtomicU64::new(0), began: AtomicU64::new(0) }
    }

    fn begin(&self) {
        self.began.store(thread_time(), Ordering::Relaxed);
    }

    fn end(&self) {
        let used = thread_time().saturating_sub(self.began.load(Ordering::Relaxed));
        self.spent.fetch_add(used, Ordering::Relaxed);
    }

    fn check(&self, spent: u64) -> wasmtime::Result<()> {
        if Duration::from_nanos(spent) > self.budget {
            return Err(broken(format!(
                "it used more than its {} ms of CPU time in one turn",
                self.budget.as_millis()
            )));
        }
        Ok(())
    }

    /// Asked in the middle of a poll, on the thread that polls.
    pub(crate) fn check_running(&self) -> wasmtime::Result<()> {
        let now = thread_time().saturating_sub(self.began.load(Ordering::Relaxed));
        self.check(self.spent.load(Ordering::Relaxed) + now)
    }

    /// CPU time used so far.
    pub(crate) fn spent(&self) -> Duration {
        Duration::from_nanos(self.spent.load(Ordering::Relaxed))
    }
}

/// A guest's future: measured, and with the epoch ticker awake while it runs.
pub(crate) struct Metered<F> {
    pub(crate) engine: Arc<Inner>,
    pub(crate) meter: Arc<Meter>,
    pub(crate) guest: Pin<Box<F>>,
}

impl<T, F: Future<Output = wasmtime::Result<T>>> Future for Metered<F> {
    type Output = wasmtime::Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let _running = this.engine.ticker.running();
        this.meter.begin();
        let polled = this.guest.as_mut().poll(context);
        this.meter.end();
        match polled {
            Poll::Pending => match this.meter.check(this.meter.spent.load(Ordering::Relaxed)) {
                Ok(()) => Poll::Pending,
                Err(error) => Poll::Ready(Err(error)),
            },
            ready => ready,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{Length, Size};

    #[test]
    fn wishes_stay_below_the_operator_s_maxima() {
        let maxima = Maxima { memory: 32 << 20, cpu: Duration::from_millis(100), requests: 10, ..Maxima::default() };
        let modest = LimitWishes {
            memory: Some(Size(1 << 20)),
            cpu: Some(Length(Duration::from_millis(5))),
            requests_per_turn: Some(3),
        };
        let granted = Granted::new(&modest, &maxima);
        assert_eq!((granted.memory, granted.cpu, granted.requests), (1 << 20, Duration::from_millis(5), 3));
        let greedy = LimitWishes {
            memory: Some(Size(1 << 40)),
            cpu: Some(Length(Duration::from_secs(99))),
            requests_per_turn: Some(9_999),
        };
        let granted = Granted::new(&greedy, &maxima);
        assert_eq!((granted.memory, granted.cpu, granted.requests), (32 << 20, Duration::from_millis(100), 10));
        assert_eq!(Granted::new(&LimitWishes::default(), &maxima).memory, MEMORY);
    }

    #[test]
    fn only_running_counts() {
        let meter = Meter::new(Duration::from_millis(20));
        std::thread::sleep(Duration::from_millis(30));
        assert_eq!(meter.spent(), Duration::ZERO);
        meter.begin();
        let mut n = 0u64;
        while meter.check_running().is_ok() {
            n = std::hint::black_box(n + 1);
        }
        meter.end();
        assert!(meter.spent() >= Duration::from_millis(20));
    }
}
