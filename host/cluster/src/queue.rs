//! The work queue: which object is decided next.
//!
//! Promises: a key is worked on by one worker at a time; a key that is added while it is worked on is worked on
//! once more afterwards; many additions before the work begins are one; a key that failed comes back after an
//! exponential pause with jitter; a pause asked for is cut short by an addition.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::Rng;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The first pause after a failure.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// The longest pause after failures.
const LONGEST_PAUSE: Duration = Duration::from_secs(1000);

/// How often in a row a key is worked on again without a pause.
const AT_ONCE: u32 = 4;

/// How the work on a key ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It succeeded; come back after this time, or when something changes.
    Done(Option<Duration>),
    /// What was read has changed meanwhile: again at once, and it is no failure. (Many in a row are slowed down like
    /// failures.)
    Again,
    /// It failed: again after a pause that grows.
    Failed,
}

/// A queue of keys. Cheap to clone.
pub struct Queue<K> {
    shared: Arc<Shared<K>>,
}

impl<K> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

struct Shared<K> {
    state: Mutex<State<K>>,
    wake: Notify,
}

struct State<K> {
    ready: VecDeque<K>,
    /// Keys in `ready`.
    waiting: HashSet<K>,
    running: HashSet<K>,
    /// Added while running.
    dirty: HashSet<K>,
    delayed: BTreeMap<(Instant, u64), K>,
    delays: HashMap<K, (Instant, u64)>,
    failures: HashMap<K, u32>,
    /// How often in a row a key was worked on again at once.
    again: HashMap<K, u32>,
    sequence: u64,
}

impl<K> Default for State<K> {
    fn default() -> Self {
        Self {
            ready: VecDeque::new(),
            waiting: HashSet::new(),
            running: HashSet::new(),
            dirty: HashSet::new(),
            delayed: BTreeMap::new(),
            delays: HashMap::new(),
            failures: HashMap::new(),
            again: HashMap::new(),
            sequence: 0,
        }
    }
}

impl<K: Clone + Eq + Hash> State<K> {
    fn make_ready(&mut self, key: K) {
        if let Some(at) = self.delays.remove(&key) {
            self.delayed.remove(&at);
        }
        if self.waiting.insert(key.clone()) {
            self.ready.push_back(key);
        }
    }

    fn delay(&mut self, key: K, until: Instant) {
        if self.waiting.contains(&key) {
            return;
        }
        if let Some(known) = self.delays.get(&key).copied() {
            if known.0 <= until {
                return;
            }
            self.delayed.remove(&known);
        }
        self.sequence += 1;
        let at = (until, self.sequence);
        self.delayed.insert(at, key.clone());
        self.delays.insert(key, at);
    }

    fn promote(&mut self, now: Instant) {
        while let Some(entry) = self.delayed.first_entry() {
            if entry.key().0 > now {
                break;
            }
            let key = entry.remove();
            self.delays.remove(&key);
            if self.running.contains(&key) {
                self.dirty.insert(key);
            } else {
                self.make_ready(key);
            }
        }
    }
}

impl<K: Clone + Eq + Hash> Default for Queue<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Clone + Eq + Hash> Queue<K> {
    /// An empty queue.
    pub fn new() -> Self {
        Self { shared: Arc::new(Shared { state: Mutex::new(State::default()), wake: Notify::new() }) }
    }

    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Work on it now.
    pub fn add(&self, key: K) {
        {
            let mut state = self.lock();
            if state.running.contains(&key) {
                state.dirty.insert(key);
                return;
            }
            state.make_ready(key);
        }
        self.shared.wake.notify_one();
    }

    /// Work on it after this time, or sooner when it is added or was asked for sooner.
    pub fn add_after(&self, key: K, after: Duration) {
        if after.is_zero() {
            return self.add(key);
        }
        self.lock().delay(key, Instant::now() + after);
        self.shared.wake.notify_one();
    }

    /// The next key, when there is one. Its work must end with [`Queue::end`].
    pub async fn take(&self) -> K {
        loop {
            let next = {
                let mut state = self.lock();
                state.promote(Instant::now());
                if let Some(key) = state.ready.pop_front() {
                    state.waiting.remove(&key);
                    state.running.insert(key.clone());
                    if !state.ready.is_empty() {
                        self.shared.wake.notify_one();
                    }
                    return key;
                }
                state.delayed.first_key_value().map(|(at, _)| at.0)
            };
            let woken = self.shared.wake.notified();
            match next {
                Some(at) => tokio::select! {
                    () = woken => {}
                    () = tokio::time::sleep_until(at) => {}
                },
                None => woken.await,
            }
        }
    }

    /// Ends the work on a key that [`Queue::take`] gave.
    pub fn end(&self, key: K, ended: Ended) {
        {
            let mut state = self.lock();
            state.running.remove(&key);
            let dirty = state.dirty.remove(&key);
            if ended != Ended::Again {
                state.again.remove(&key);
            }
            match ended {
                Ended::Done(after) => {
                    state.failures.remove(&key);
                    if dirty {
                        state.make_ready(key);
                    } else if let Some(after) = after {
                        state.delay(key, Instant::now() + after);
                    }
                }
                Ended::Again => {
                    let times = state.again.entry(key.clone()).or_default();
                    *times = times.saturating_add(1);
                    match times.checked_sub(AT_ONCE) {
                        None | Some(0) => state.make_ready(key),
                        Some(more) => {
                            let until = Instant::now() + pause_after(more);
                            state.delay(key, until);
                        }
                    }
                }
                Ended::Failed => {
                    let failures = state.failures.entry(key.clone()).or_default();
                    *failures = failures.saturating_add(1);
                    let pause = pause_after(*failures);
                    state.delay(key, Instant::now() + pause);
                }
            }
        }
        self.shared.wake.notify_one();
    }

    /// How often in a row the work on a key has failed.
    pub fn failures(&self, key: &K) -> u32 {
        self.lock().failures.get(key).copied().unwrap_or_default()
    }

    /// Forgets the pauses of a key that is no more.
    pub fn forget(&self, key: &K) {
        let mut state = self.lock();
        state.failures.remove(key);
        state.again.remove(key);
        if let Some(at) = state.delays.remove(key) {
            state.delayed.remove(&at);
        }
    }

    /// Keys that wait or are worked on now (not those that are delayed).
    pub fn busy(&self) -> usize {
        let state = self.lock();
        state.ready.len() + state.running.len()
    }
}

/// 5 ms, 10 ms, 20 ms … 1000 s; up to a fifth is added by chance, so that what failed together does not come back
/// together.
fn pause_after(failures: u32) -> Duration {
    let doubled = FIRST_PAUSE.saturating_mul(1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX));
    let pause = doubled.min(LONGEST_PAUSE);
    pause + pause.mul_f64(rand::rng().random_range(0.0..0.2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn many_additions_before_the_work_are_one() {
        let queue = Queue::new();
        queue.add("a");
        queue.add("a");
        queue.add("b");
        assert_eq!(queue.take().await, "a");
        assert_eq!(queue.take().await, "b");
        queue.end("a", Ended::Done(None));
        queue.end("b", Ended::Done(None));
        assert_eq!(queue.busy(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_added_while_it_runs_runs_once_more_and_never_twice_at_once() {
        let queue = Queue::new();
        queue.add("a");
        assert_eq!(queue.take().await, "a");
        queue.add("a");
        queue.add("a");
        assert!(tokio::time::timeout(Duration::from_secs(5), queue.take()).await.is_err());
        queue.end("a", Ended::Done(None));
        assert_eq!(queue.take().await, "a");
        queue.end("a", Ended::Done(None));
        assert!(tokio::time::timeout(Duration::from_secs(5), queue.take()).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_is_kept_and_cut_short_by_an_addition() {
        let queue = Queue::new();
        queue.add("a");
        queue.take().await;
        queue.end("a", Ended::Done(Some(Duration::from_secs(60))));
        let start = Instant::now();
        queue.take().await;
        assert_eq!(start.elapsed(), Duration::from_secs(60));
        queue.end("a", Ended::Done(Some(Duration::from_secs(60))));
        let other = queue.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(2)).await;
            other.add("a");
        });
        let start = Instant::now();
        queue.take().await;
        assert_eq!(start.elapsed(), Duration::from_secs(2));
        queue.end("a", Ended::Done(None));
        assert!(tokio::time::timeout(Duration::from_secs(600), queue.take()).await.is_err(), "the old pause is void");
    }

    #[tokio::test(start_paused = true)]
    async fn of_two_pauses_the_shorter_counts() {
        let queue = Queue::new();
        queue.add_after("a", Duration::from_secs(10));
        queue.add_after("a", Duration::from_secs(3));
        queue.add_after("a", Duration::from_secs(30));
        let start = Instant::now();
        queue.take().await;
        assert_eq!(start.elapsed(), Duration::from_secs(3));
    }

    #[tokio::test(start_paused = true)]
    async fn failures_come_back_ever_later_and_success_forgives() {
        let queue = Queue::new();
        queue.add("a");
        let mut last = Duration::ZERO;
        for _ in 0..6 {
            queue.take().await;
            queue.end("a", Ended::Failed);
            let start = Instant::now();
            queue.take().await;
            assert!(start.elapsed() > last, "{:?} after {last:?}", start.elapsed());
            last = start.elapsed();
            queue.end("a", Ended::Failed);
        }
        queue.take().await;
        queue.end("a", Ended::Done(None));
        assert_eq!(queue.failures(&"a"), 0);
        assert!(pause_after(60) >= LONGEST_PAUSE && pause_after(60) <= LONGEST_PAUSE.mul_f64(1.2));
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_cuts_the_pause_after_a_failure_short() {
        let queue = Queue::new();
        queue.add("a");
        queue.take().await;
        queue.add("a");
        queue.end("a", Ended::Failed);
        assert_eq!(queue.failures(&"a"), 1);
        let start = Instant::now();
        queue.take().await;
        assert!(start.elapsed() >= FIRST_PAUSE, "a failure is not retried hot because of an event during the work");
    }

    #[tokio::test(start_paused = true)]
    async fn again_is_at_once_and_not_for_ever() {
        let queue = Queue::new();
        queue.add("a");
        let start = Instant::now();
        for _ in 0..AT_ONCE {
            queue.take().await;
            queue.end("a", Ended::Again);
        }
        queue.take().await;
        assert_eq!(start.elapsed(), Duration::ZERO);
        for _ in 0..10 {
            queue.end("a", Ended::Again);
            queue.take().await;
        }
        assert!(start.elapsed() > Duration::from_secs(1), "{:?}", start.elapsed());
        assert_eq!(queue.failures(&"a"), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn several_workers_share_the_work() {
        let queue = Queue::new();
        for n in 0..50 {
            queue.add(n);
        }
        let workers: Vec<_> = (0..4)
            .map(|_| {
                let queue = queue.clone();
                tokio::spawn(async move {
                    let mut done = 0;
                    while let Ok(key) = tokio::time::timeout(Duration::from_secs(1), queue.take()).await {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                        queue.end(key, Ended::Done(None));
                        done += 1;
                    }
                    done
                })
            })
            .collect();
        let mut total = 0;
        for worker in workers {
            total += worker.await.unwrap();
        }
        assert_eq!(total, 50);
        assert_eq!(queue.busy(), 0);
    }
}
