//! The runner: takes keys, decides, applies, drives turns.
//!
//! Promises: an object is decided by one worker at a time and has at most one turn; no decision is taken on a cache
//! that is older than this process's own writes; a turn's steps are carried out one after the other, each on record
//! before the next; nothing is changed without the Lease, and components are loaded with it or without; a decision that
//! panics is a failure of that object only.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use capstan_api::{Object, ObjectKey};
use capstan_core::contract::{Choice, Effect};
use capstan_core::plan::{EventNote, Plan, Write};
use capstan_core::turn::{Call, Fence, Mint, Reply, Step, Told, TurnRequest, no_fence};
use capstan_core::view::{LastTurn, NotNow, Place, Select, View};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use crate::apply::{AfterEffect, Applied, Applier, Stopped};
use crate::choices::{Choices, Subject};
use crate::dependencies::{Dependencies, Topic};
use crate::egress::Egress;
use crate::events::{Events, Note, Reference};
use crate::lease::Lease;
use crate::mirror::{Listener, Mirror, Notice};
use crate::modules::{self, Modules};
use crate::now_ms;
use crate::providers::Providers;
use crate::queue::{Ended, Queue};
use crate::view::{LastTurns, Snapshot, Sources};
use crate::wakeup::Wakeup;
use crate::wire::Wire;
use crate::workload::Workloads;

/// How long running work may go on after a stop was asked for.
const STOP_PATIENCE: Duration = Duration::from_secs(5);
/// How many components are loaded side by side.
const LOADERS: usize = 4;
/// Steps of one turn; more is a defect of the course.
const MOST_STEPS: u32 = 1000;

/// The rules: which kinds are decided, and how.
pub trait Rules: Send + Sync {
    /// Group and kind of everything that is decided. Asked again when provider modules change.
    fn kinds(&self) -> Vec<(String, String)>;

    /// What is to be done for this object now.
    ///
    /// # Errors
    /// [`NotNow`] when something must be known first.
    fn decide(&self, key: &ObjectKey, view: &dyn View, now: u64) -> Result<Plan, NotNow>;
}

/// What a runner needs.
pub struct Options {
    /// The management cluster.
    pub client: kube::Client,
    /// The rules.
    pub rules: Arc<dyn Rules>,
    /// The provider modules.
    pub providers: Arc<dyn Providers>,
    /// Who loads them; `None`: ProviderModules and Endpoints are left alone.
    pub modules: Option<Arc<dyn Modules>>,
    /// Where connections to workload clusters may lead.
    pub egress: Arc<dyn Egress>,
    /// Without it nothing is changed; `None`: this process is alone.
    pub lease: Option<Lease>,
    /// How many objects are worked on at once.
    pub concurrency: usize,
    /// Called after each effect: a write to the management or a workload cluster, a changing request of a provider. For
    /// tests that end the process between any two of them.
    pub after_effect: Option<AfterEffect>,
}

/// Numbers since the start, and of now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// Decisions taken.
    pub decisions: u64,
    /// Turns begun.
    pub turns: u64,
    /// Decisions or plans that failed.
    pub failures: u64,
    /// Changing requests to the management cluster.
    pub writes: u64,
    /// Conflicts among them.
    pub conflicts: u64,
    /// Keys that wait or are worked on now.
    pub busy: usize,
    /// Objects in the caches of the management cluster.
    pub cached: usize,
    /// Workload-cluster connections that are wanted.
    pub connections: usize,
    /// Those that are up.
    pub connections_up: usize,
}

/// A running runner. Dropping it does not stop it; [`Runner::stop`] does.
pub struct Runner {
    inner: Arc<Inner>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

struct Inner {
    queue: Queue<Arc<ObjectKey>>,
    wakeup: Arc<Wakeup>,
    dependencies: Arc<Dependencies>,
    management: Mirror,
    workloads: Arc<Workloads>,
    applier: Applier,
    events: Events,
    rules: Arc<dyn Rules>,
    providers: Arc<dyn Providers>,
    modules: Option<Arc<dyn Modules>>,
    lease: Option<Lease>,
    last_turns: LastTurns,
    choices: Choices,
    decisions: AtomicU64,
    turns: AtomicU64,
    failures: AtomicU64,
}

impl Runner {
    /// Starts. Work begins as soon as caches are filled and the Lease is held.
    pub fn start(options: Options) -> Self {
        let lease = options.lease;
        let fence: Fence = lease.as_ref().map_or_else(no_fence, Lease::fence);
        let wire = Wire::new(options.client).fenced(fence.clone());
        let queue = Queue::new();
        let dependencies = Arc::new(Dependencies::default());
        let wakeup = Arc::new(Wakeup::new(queue.clone(), dependencies.clone()));
        let listener: Listener = {
            let wakeup = wakeup.clone();
            Arc::new(move |notice: Notice| wakeup.notice(notice))
        };
        let management = Mirror::new(Place::Management, wire.clone(), listener.clone());
        let on_state = {
            let wakeup = wakeup.clone();
            Arc::new(move |namespace: &str, cluster: &str| {
                wakeup.topics([&Topic::Connection(namespace.to_owned(), cluster.to_owned())]);
            })
        };
        let workloads = Arc::new(Workloads::new(management.clone(), options.egress, on_state, listener, fence.clone()));
        let _ = wakeup.workloads.set(Arc::downgrade(&workloads));
        let inner = Arc::new(Inner {
            applier: Applier::new(
                management.clone(),
                workloads.clone(),
                crate::mint::Mint::default(),
                fence,
                options.after_effect,
            ),
            events: Events::start(wire),
            queue,
            wakeup,
            dependencies,
            management,
            workloads,
            rules: options.rules,
            providers: options.providers,
            modules: options.modules,
            lease,
            last_turns: LastTurns::default(),
            choices: Choices::default(),
            decisions: AtomicU64::new(0),
            turns: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        });
        let runner = Self { inner: inner.clone(), stop: CancellationToken::new(), tasks: TaskTracker::new() };
        runner.spawn(inner.clone().follow_kinds());
        runner.spawn(inner.clone().follow_modules());
        runner.spawn(inner.clone().follow_lease());
        for _ in 0..LOADERS {
            runner.tasks.spawn(inner.clone().module_worker(runner.stop.clone()));
        }
        for _ in 0..options.concurrency.max(1) {
            runner.tasks.spawn(inner.clone().worker(runner.stop.clone()));
        }
        runner
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = task => {}
            }
        });
    }

    /// Stops: nothing new is begun, what runs may end (for five seconds), the Lease is given up.
    pub async fn stop(&self) {
        self.stop.cancel();
        self.tasks.close();
        if tokio::time::timeout(STOP_PATIENCE, self.tasks.wait()).await.is_err() {
            tracing::warn!("some work did not end in time; it will be taken up at the next start");
        }
        if let Some(lease) = &self.inner.lease {
            lease.release().await;
        }
    }

    /// Whether this process may change things now: it holds the Lease, or is alone.
    pub fn leads(&self) -> bool {
        self.inner.lease.as_ref().is_none_or(Lease::may_change)
    }

    /// The caches of the management cluster.
    pub fn management(&self) -> &Mirror {
        &self.inner.management
    }

    /// Whether nothing is known of the object that only a first decision by this process could tell: it was decided, or
    /// is of a kind that is not decided here.
    pub fn has_looked_at(&self, key: &ObjectKey) -> bool {
        // What says how providers run is looked at elsewhere, and nothing depends on a decision about it.
        modules::is_for_modules(key)
            || !self.inner.wakeup.is_decided(&key.group, &key.kind)
            || self.inner.dependencies.knows(key)
    }

    /// Counts up with every change of the management cluster's caches and every decision.
    pub fn changes(&self) -> tokio::sync::watch::Receiver<u64> {
        self.inner.wakeup.changes.subscribe()
    }

    /// Waits until all of these kinds (group, kind) are served.
    pub async fn kinds_served(&self, kinds: &[(String, String)]) {
        let mut changes = self.inner.wakeup.kinds_changed.subscribe();
        loop {
            changes.mark_unchanged();
            if kinds.iter().all(|(group, kind)| self.inner.management.definition(group, kind).is_ok()) {
                return;
            }
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Numbers for metrics.
    pub fn numbers(&self) -> Numbers {
        let inner = &self.inner;
        let (writes, conflicts) = inner.applier.counts();
        let (connections, connections_up) = inner.workloads.count();
        Numbers {
            decisions: inner.decisions.load(Ordering::Relaxed),
            turns: inner.turns.load(Ordering::Relaxed),
            failures: inner.failures.load(Ordering::Relaxed),
            writes,
            conflicts,
            busy: inner.queue.busy() + inner.wakeup.module_queue.busy(),
            cached: inner.management.size(),
            connections,
            connections_up,
        }
    }
}

impl Inner {
    fn decided_kinds(&self) -> Vec<(String, String)> {
        let mut kinds = self.rules.kinds();
        if self.modules.is_some() {
            for kind in [modules::EGRESS_POLICY, modules::ENDPOINT, modules::PROVIDER_MODULE] {
                kinds.push((modules::GROUP.to_owned(), kind.to_owned()));
            }
        }
        kinds
    }

    /// Wakes all objects of a kind that the caches have.
    fn wake_all(&self, group: &str, kind: &str) {
        for object in self.management.list(group, kind, "", &Select::All).unwrap_or_default() {
            self.wakeup.add(Arc::new(object.key()));
        }
    }

    /// Watches every kind that is decided, as soon as it is served.
    async fn follow_kinds(self: Arc<Self>) {
        let mut kinds_changed = self.wakeup.kinds_changed.subscribe();
        let mut modules_changed = self.providers.changes();
        loop {
            kinds_changed.mark_unchanged();
            modules_changed.mark_unchanged();
            let kinds = self.decided_kinds();
            let before = {
                let mut decided = self.wakeup.decided.write().unwrap_or_else(PoisonError::into_inner);
                std::mem::replace(&mut *decided, kinds.iter().cloned().collect())
            };
            for (group, kind) in &kinds {
                self.management.want(group, kind);
            }
            // What the caches had before the kind was decided has woken nobody.
            for (group, kind) in kinds.iter().filter(|kind| !before.contains(*kind)) {
                self.wake_all(group, kind);
            }
            tokio::select! {
                changed = kinds_changed.changed() => if changed.is_err() { return },
                changed = modules_changed.changed() => if changed.is_err() { std::future::pending::<()>().await },
            }
        }
    }

    /// When modules change, everything that they serve or served is decided again.
    async fn follow_modules(self: Arc<Self>) {
        let mut changes = self.providers.changes();
        let mut before = self.providers.kinds();
        while changes.changed().await.is_ok() {
            let now = self.providers.kinds();
            for (group, kind) in before.iter().chain(&now) {
                self.last_turns.forget_kind(group, kind);
                for reader in self.dependencies.readers_of_kind(group, kind) {
                    self.queue.add(reader);
                }
                self.wake_all(group, kind);
            }
            before = now;
        }
    }

    /// What a component brings along is installed, and what is said of it is written, by whoever comes to hold the Lease.
    async fn follow_lease(self: Arc<Self>) {
        let Some(lease) = self.lease.clone().filter(|_| self.modules.is_some()) else { return };
        loop {
            lease.held().await;
            for kind in [modules::EGRESS_POLICY, modules::ENDPOINT, modules::PROVIDER_MODULE] {
                self.wake_all(modules::GROUP, kind);
            }
            lease.lost().await;
        }
    }

    /// Works on what is for whoever loads components.
    async fn module_worker(self: Arc<Self>, stop: CancellationToken) {
        let queue = &self.wakeup.module_queue;
        loop {
            let key = tokio::select! {
                () = stop.cancelled() => return,
                key = queue.take() => key,
            };
            let ended = match (&self.modules, self.management.get(&key)) {
                (Some(modules), Ok(object)) => {
                    modules::work(&**modules, &self.applier, self.management.wire(), &key, object.as_deref()).await
                }
                _ => Ended::Done(None),
            };
            if ended == Ended::Failed {
                self.failures.fetch_add(1, Ordering::Relaxed);
            }
            queue.end(key, ended);
        }
    }

    async fn worker(self: Arc<Self>, stop: CancellationToken) {
        loop {
            let key = tokio::select! {
                () = stop.cancelled() => return,
                key = self.queue.take() => key,
            };
            if let Some(lease) = &self.lease {
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = lease.held() => {}
                }
            }
            let span = tracing::info_span!(
                "reconcile",
                kind = %key.kind,
                namespace = %key.namespace,
                name = %key.name,
            );
            let ended = self.work(&key).instrument(span).await;
            if ended == Ended::Failed {
                self.failures.fetch_add(1, Ordering::Relaxed);
            }
            self.queue.end(key, ended);
        }
    }

    async fn work(&self, key: &Arc<ObjectKey>) -> Ended {
        let plan = match self.decide(key) {
            Ok(plan) => plan,
            Err(ended) => return ended,
        };
        self.carry_out(key, plan).await
    }

    fn decide(&self, key: &Arc<ObjectKey>) -> Result<Plan, Ended> {
        self.decisions.fetch_add(1, Ordering::Relaxed);
        let sources = Sources {
            dependencies: &self.dependencies,
            management: &self.management,
            workloads: &self.workloads,
            providers: &*self.providers,
            last_turns: &self.last_turns,
            holder: self.lease.as_ref().map_or("", Lease::identity),
        };
        let view = Snapshot::new(key.clone(), sources);
        let decided = std::panic::catch_unwind(AssertUnwindSafe(|| self.rules.decide(key, &view, now_ms())));
        view.settle();
        self.wakeup.changes.send_modify(|n| *n += 1);
        match decided {
            Ok(Ok(plan)) => {
                if matches!(self.management.get(key), Ok(None)) && plan.is_empty() {
                    self.dependencies.settle(key, Default::default());
                    self.queue.forget(key);
                    self.last_turns.forget(key);
                    return Err(Ended::Done(None));
                }
                Ok(plan)
            }
            Ok(Err(not_now)) => {
                tracing::debug!(%not_now, "not decided now");
                Err(Ended::Done(None))
            }
            Err(_) => {
                tracing::error!("the decision panicked: a defect of Capstan");
                Err(Ended::Failed)
            }
        }
    }

    /// Carries out a plan: writes, events, turn.
    async fn carry_out(&self, key: &Arc<ObjectKey>, mut plan: Plan) -> Ended {
        if let Err(stopped) = self.write_all(&mut plan).await {
            return self.stopped(&stopped);
        }
        self.note(std::mem::take(&mut plan.events));
        if let Some(turn) = plan.turn.take() {
            let inputs = turn.inputs.clone();
            match self.turn(turn).await {
                Ok(mut finish) => {
                    let look_again =
                        finish.look_again.map(|after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX));
                    match self.write_all(&mut finish).await {
                        Ok(false) => self.last_turns.set(key, LastTurn { at: now_ms(), inputs, look_again }),
                        // What was held back is found out again by another turn, and by none before: what this one wrote
                        // is no reason for the next.
                        Ok(true) => {
                            let wait = finish.look_again.and_then(|after| u64::try_from(after.as_millis()).ok());
                            self.last_turns.set(key, LastTurn { at: now_ms(), inputs, look_again: wait });
                        }
                        Err(stopped) => return self.stopped(&stopped),
                    }
                    self.note(std::mem::take(&mut finish.events));
                    if let Some(after) = finish.look_again {
                        plan.look_again_in(after);
                    }
                }
                Err(stopped) => return self.stopped(&stopped),
            }
        }
        tracing::trace!(%key, look_again = ?plan.look_again, "done");
        Ended::Done(plan.look_again)
    }

    /// Carries out the writes of a plan in order. What is held back makes the plan look again; `true` when something is.
    async fn write_all(&self, plan: &mut Plan) -> Result<bool, Stopped> {
        let mut held_back = false;
        let writes = std::mem::take(&mut plan.writes);
        let mut rest = writes.as_slice();
        while let Some((first, more)) = rest.split_first() {
            // Key pairs that are wanted together are made together.
            let together = rest.iter().take_while(|write| matches!(write, Write::MintKeyPair(_))).count();
            if together > 1
                && let Some((pairs, more)) = rest.split_at_checked(together)
            {
                for made in futures::future::join_all(pairs.iter().map(|write| self.applier.write(write))).await {
                    made?;
                }
                rest = more;
                continue;
            }
            if let Applied::HeldBack(wait) = self.applier.write(first).await? {
                plan.look_again_in(wait);
                held_back = true;
            }
            rest = more;
        }
        Ok(held_back)
    }

    fn stopped(&self, stopped: &Stopped) -> Ended {
        match stopped {
            Stopped::Conflict(what) => {
                tracing::debug!(%what, "changed meanwhile; deciding again");
                Ended::Again
            }
            Stopped::NotHeld => Ended::Done(Some(Duration::from_millis(500))),
            Stopped::Failed { .. } => {
                tracing::warn!(error = %stopped, "the plan was not carried out");
                Ended::Failed
            }
        }
    }

    fn note(&self, events: Vec<EventNote>) {
        for event in events {
            let Ok(Some(object)) = self.management.get(&event.regarding) else { continue };
            self.events.note(Note {
                regarding: Reference::from(&*object),
                normal: event.normal,
                reason: event.reason,
                message: event.message,
            });
        }
    }

    /// Drives one turn to its end; the plan it ends with.
    async fn turn(&self, request: TurnRequest) -> Result<Plan, Stopped> {
        self.turns.fetch_add(1, Ordering::Relaxed);
        let TurnRequest { module, input, inputs: _, mut course } = request;
        let subject = input.subject.key().to_string();
        let chooser = Subject::of(&input);
        let mut choosing = None;
        let failed = |doing: &'static str, why: String| Stopped::Failed { doing, what: subject.clone(), why };
        let mut instance =
            self.providers.begin(&module, input).await.map_err(|why| failed("begin a provider's turn about", why))?;
        let mut told = Told::Begin;
        for _ in 0..MOST_STEPS {
            match course.next(told, now_ms()) {
                Step::Call { mut call, known, granted } => {
                    if let Call::Identify { part, reserved } = &mut call {
                        drop(choosing.take());
                        choosing = Some(self.choices.wait(&chooser, part, reserved).await);
                    }
                    let outcome = instance.call(call, known, granted, self.applier.fence()).await;
                    if outcome.effect != Effect::NotSent {
                        self.applier.had_effect();
                    }
                    match (&mut choosing, &outcome.reply) {
                        (Some(choosing), Ok(Reply::Choice(Choice { id: Some(id), .. }))) => choosing.chose(id),
                        _ => choosing = None,
                    }
                    told = Told::Called(outcome);
                }
                Step::Write(writes) => {
                    told = Told::Written(self.write_in_turn(&writes).await?);
                    choosing = None;
                }
                Step::Mint(Mint::BootstrapToken { namespace, cluster, ttl }) => {
                    let made = self.applier.mint_bootstrap_token(&namespace, &cluster, Duration::from_secs(ttl)).await;
                    told = match made {
                        Ok(token) => Told::Minted(token.into_bytes()),
                        Err(Stopped::NotHeld) => return Err(Stopped::NotHeld),
                        Err(stopped) => Told::NotMinted(stopped.to_string()),
                    };
                }
                Step::Finish(plan) => return Ok(plan),
            }
        }
        Err(failed("drive a provider's turn about", format!("it did not end after {MOST_STEPS} steps")))
    }

    async fn write_in_turn(&self, writes: &[Write]) -> Result<Vec<Option<Object>>, Stopped> {
        let mut written = Vec::with_capacity(writes.len());
        for write in writes {
            written.push(match self.applier.write(write).await? {
                Applied::Done(object) => object,
                Applied::HeldBack(_) => None,
            });
        }
        Ok(written)
    }
}

/// No provider modules: for processes that run core rules only, and for tests.
pub struct NoProviders {
    changes: tokio::sync::watch::Sender<u64>,
}

impl Default for NoProviders {
    fn default() -> Self {
        Self { changes: tokio::sync::watch::Sender::new(0) }
    }
}

#[async_trait::async_trait]
impl Providers for NoProviders {
    fn served(&self, _group: &str, _kind: &str) -> Option<capstan_core::contract::Served> {
        None
    }

    fn kinds(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    fn changes(&self) -> tokio::sync::watch::Receiver<u64> {
        self.changes.subscribe()
    }

    async fn begin(
        &self,
        module: &str,
        _input: capstan_core::turn::TurnInput,
    ) -> Result<Box<dyn crate::providers::Turn>, String> {
        Err(format!("no module {module} is loaded in this process"))
    }
}
