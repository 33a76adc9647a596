//! One object's life under the host's rules, with time that passes when it is told to.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use capstan_api::{Object, ObjectKey};
use capstan_core::contract::{Granted, KnownPart, ProviderError, Served};
use capstan_core::infrastructure;
use capstan_core::plan::Plan;
use capstan_core::record::{INTENT_FRESH, LEASE};
use capstan_core::testing::World;
use capstan_core::turn::{Call, Course, Mint, Outcome, Reply, Step, Told, TurnInput, TurnRequest};
use capstan_core::view::{Connection, LastTurn, NotNow, Place, Select, View};
use capstan_gateway::Gateway;
use serde_json::Value;

use super::component::Guest;
use super::server::Setting;
use crate::fault;
use crate::proxy::Schedule;

/// An object and all that it needs around it.
#[derive(Clone)]
pub struct Life {
    /// Its name in cases and summaries: one word.
    pub name: &'static str,
    /// What is in the management cluster, in this order; owner references may name objects that come before by
    /// `{"uid": "of Kind/name"}`.
    pub objects: Vec<Value>,
    /// The object that the component serves.
    pub subject: ObjectKey,
    /// What happens to it when it is up, if anything.
    pub change: Option<fn(&mut World)>,
    /// What others do in the management cluster, after each decision: addresses are granted, for instance.
    pub tend: fn(&mut World),
}

/// A life that is being lived.
pub(super) struct Living<'a> {
    pub setting: &'a Setting<'a>,
    pub life: &'a Life,
    pub world: World,
    served: Served,
    last: BTreeMap<ObjectKey, LastTurn>,
    /// Steps of turns that were carried out so far.
    pub steps: usize,
    /// At which step the host dies, and whether before it is carried out or after.
    pub death: Option<(usize, bool)>,
    /// The host was killed, once or more.
    pub killed: bool,
    /// How often each changing call is made.
    pub repeat: usize,
    /// Parts that the component listed last.
    pub parts: usize,
    /// More than this at once is too much; `None`: whatever there is.
    pub at_most: Option<Vec<String>>,
    /// The calls that may send something: the first and the last of each function and part.
    pub called: BTreeMap<(String, bool), Called>,
    /// The most requests that one turn sent.
    pub busiest_turn: usize,
    gateway: Arc<Gateway>,
    /// What the world's clock is ahead of the proxy's.
    ahead: u64,
    /// How many changing requests the server had answered when it was looked at last.
    looked: Option<usize>,
}

/// A call as it was made.
#[derive(Clone)]
pub(super) struct Called {
    pub input: TurnInput,
    pub call: Call,
    pub known: BTreeMap<String, KnownPart>,
    pub granted: Granted,
}

impl View for Living<'_> {
    fn get(&self, place: &Place, key: &ObjectKey) -> Result<Option<Arc<Object>>, NotNow> {
        self.world.get(place, key)
    }
    fn list(&self, p: &Place, g: &str, k: &str, n: &str, s: &Select) -> Result<Vec<Arc<Object>>, NotNow> {
        self.world.list(p, g, k, n, s)
    }
    fn contract(&self, group: &str, kind: &str) -> Result<Option<String>, NotNow> {
        self.world.contract(group, kind)
    }
    fn connection(&self, namespace: &str, cluster: &str) -> Connection {
        self.world.connection(namespace, cluster)
    }
    fn served(&self, group: &str, kind: &str) -> Option<Served> {
        self.world.served(group, kind)
    }
    fn last_turn(&self, key: &ObjectKey) -> Option<LastTurn> {
        self.last.get(key).cloned()
    }
    fn holder(&self) -> String {
        "conformance".into()
    }
}

/// How a turn ended.
enum End {
    /// With this plan, carried out.
    Finished(Box<Plan>),
    /// What it wrote was out of date: the object is decided again.
    Abandoned,
    /// The host died in it.
    Died,
}

/// Decisions before a life counts as one that never settles.
const PATIENCE: usize = 1_500;
/// What is looked at again after this time (milliseconds) or later is at rest.
const REST: u64 = 60_000;
/// What was neither written nor changed for this time (milliseconds) is at rest, however often it is looked at.
const QUIET: u64 = 20_000;

impl<'a> Living<'a> {
    /// Begins a life: everything but the host's doing is there.
    pub fn begin(setting: &'a Setting<'a>, life: &'a Life) -> anyhow::Result<Self> {
        setting.proxy.set(fault::calm());
        setting.proxy.forget();
        Self::begin_beside(setting, life, setting.gateway())
    }

    /// Begins a life beside others: with their host's gateway.
    pub fn begin_beside(setting: &'a Setting<'a>, life: &'a Life, gateway: Arc<Gateway>) -> anyhow::Result<Self> {
        let all = setting.component.served();
        let served = all.iter().find(|(kind, _)| *kind == life.subject.kind).map(|(_, served)| served.clone());
        let served = served.with_context(|| format!("the component serves no {}", life.subject.kind))?;
        let mut world = World::new();
        for (kind, served) in all {
            world.serve_kind(&kind, served);
        }
        let mut uids = BTreeMap::new();
        for object in &life.objects {
            let mut object = object.clone();
            resolve_owners(&mut object, &uids);
            give_uid(&mut object);
            let put = world.put(object);
            uids.insert(format!("of {}/{}", put.kind(), put.name()), put.uid().to_owned());
        }
        ensure!(world.find(&life.subject).is_some(), "{} is not among the life's objects", life.subject);
        let ahead = world.now.saturating_sub(passed(setting));
        let living = Self {
            setting,
            life,
            world,
            served,
            last: BTreeMap::new(),
            steps: 0,
            death: None,
            killed: false,
            repeat: 1,
            parts: 0,
            at_most: None,
            called: BTreeMap::new(),
            busiest_turn: 0,
            gateway,
            ahead,
            looked: None,
        };
        living.schedule();
        Ok(living)
    }

    /// When what is late arrives: what a host that lives has sent it gives up after the request's time; what a dead one
    /// has sent within the freshness of its intent arrives before the Lease is anybody else's to count on.
    fn schedule(&self) {
        let more = if self.killed { LEASE - INTENT_FRESH } else { 0 };
        let mut schedule = self.by_manifest();
        schedule.late += Duration::from_millis(more);
        self.setting.proxy.schedule(schedule);
    }

    /// What is said of a host that lives.
    fn by_manifest(&self) -> Schedule {
        let late = Duration::from_millis(self.served.request_timeout.saturating_sub(1));
        let stale = Duration::from_millis(self.served.consistency_window);
        self.setting.server.schedule(Schedule { late, stale })
    }

    /// The host dies, and all that it remembers; another one begins.
    fn die(&mut self) {
        self.killed = true;
        self.schedule();
        self.gateway = self.setting.gateway();
        self.last.clear();
    }

    pub fn object(&self) -> Option<Arc<Object>> {
        self.world.find(&self.life.subject)
    }

    /// The API may show the past for a while after a change.
    pub fn may_be_stale(&self) -> bool {
        self.by_manifest().stale > Duration::ZERO
    }

    /// Looks once at an object that may be settled, as at a resync.
    pub async fn look(&mut self) -> anyhow::Result<()> {
        self.see_the_time();
        self.last.clear();
        self.once().await.map(drop)
    }

    /// Its infrastructure is there, as Cluster API says it.
    fn provisioned(&self) -> bool {
        let said = |object: Arc<Object>| object.bool_at("/status/initialization/provisioned") && !object.is_deleting();
        self.object().is_some_and(said)
    }

    /// What the object says of itself, for messages.
    pub fn said(&self) -> String {
        let Some(object) = self.object() else { return "the object is gone".to_owned() };
        let shown = |pointer: &str| object.at(pointer).map(ToString::to_string).unwrap_or_default();
        format!(
            "conditions {}, record {}",
            shown("/status/conditions"),
            object.annotation(capstan_core::record::PARTS).unwrap_or_default()
        )
    }

    /// How many exchanges changed something so far, or may have.
    pub fn changes(&self) -> usize {
        self.setting.changes()
    }

    /// Lets time pass; what is late arrives, and reads that show the past stop doing so, when their time has come.
    pub async fn pass(&mut self, milliseconds: u64) {
        self.setting.proxy.pass(Duration::from_millis(milliseconds)).await;
        self.see_the_time();
    }

    /// The world's clock follows the proxy's: whoever waited let time pass.
    fn see_the_time(&mut self) {
        self.world.now = self.ahead + passed(self.setting);
    }

    /// Decides once and carries everything out. How long until it is to be decided again; `None`: only by a change.
    pub async fn once(&mut self) -> anyhow::Result<Option<u64>> {
        let plan = infrastructure::decide(&self.life.subject, &self.served, &*self, self.world.now)?;
        self.world.apply(&plan);
        let mut again = plan.look_again;
        if let Some(turn) = plan.turn {
            match self.turn(&turn).await? {
                End::Finished(finish) => {
                    let look_again = finish.look_again.and_then(|after| u64::try_from(after.as_millis()).ok());
                    let last = LastTurn { at: self.world.now, inputs: turn.inputs.clone(), look_again };
                    self.last.insert(self.life.subject.clone(), last);
                    again = [again, finish.look_again].into_iter().flatten().min();
                }
                End::Abandoned => {
                    self.last.clear();
                    again = Some(Duration::ZERO);
                }
                End::Died => {
                    self.die();
                    again = Some(Duration::ZERO);
                }
            }
        }
        (self.life.tend)(&mut self.world);
        self.not_too_much().await?;
        Ok(again.and_then(|after| u64::try_from(after.as_millis()).ok()))
    }

    async fn not_too_much(&mut self) -> anyhow::Result<()> {
        let Some(most) = &self.at_most else { return Ok(()) };
        let arrived = self.setting.arrived();
        if self.looked.replace(arrived) == Some(arrived) {
            return Ok(());
        }
        let left = self.setting.server.left().await?;
        for line in &left {
            let count = |all: &[String]| all.iter().filter(|other| *other == line).count();
            let (is, may) = (count(&left), count(most));
            ensure!(is <= may, "{is} of {line:?} on the server, which may hold {may}; {}", self.said());
        }
        Ok(())
    }

    async fn turn(&mut self, turn: &TurnRequest) -> anyhow::Result<End> {
        let mut course = turn.course.boxed();
        self.course(&turn.input, &mut *course).await
    }

    async fn guest(&self, input: &TurnInput, gateway: &Arc<Gateway>) -> anyhow::Result<Box<dyn Guest>> {
        self.setting.component.begin(input.clone(), gateway).await
    }

    /// Makes a call again as a host would that does not know that it was made. What it returns may differ; of pure
    /// calls it may not.
    async fn again(&self, called: &Called, outcome: &Outcome) -> anyhow::Result<()> {
        let pure = matches!(called.call, Call::Needs | Call::Parts | Call::ReportCluster | Call::ReportMachine);
        let changes = matches!(called.call, Call::Create(_) | Call::Update(..) | Call::Delete(_));
        for _ in 1..if pure || changes { self.repeat } else { 1 } {
            let mut again = self.guest(&called.input, &self.setting.gateway()).await?;
            let Called { call, known, granted, .. } = called.clone();
            let repeated = again.call(call, known, granted, &|| true).await;
            ensure!(!pure || repeated == *outcome, "{:?}, asked again, answers {repeated:?}", called.call);
        }
        Ok(())
    }

    async fn course(&mut self, input: &TurnInput, course: &mut dyn Course) -> anyhow::Result<End> {
        let mut guest = self.guest(input, &self.gateway).await?;
        let sent_before = self.setting.proxy.look(<[_]>::len);
        let mut told = Told::Begin;
        loop {
            let step = course.next(told, self.world.now);
            let death = self.death.filter(|(at, _)| *at == self.steps).map(|(_, before)| before);
            self.steps += 1;
            if death == Some(true) {
                return Ok(End::Died);
            }
            self.pass(10).await;
            told = match step {
                Step::Call { call, known, granted } => {
                    let called = Called { input: input.clone(), call, known, granted };
                    let Some(outcome) = self.call(&mut *guest, &called).await? else { return Ok(End::Died) };
                    self.again(&called, &outcome).await?;
                    let sent = self.setting.proxy.look(<[_]>::len).saturating_sub(sent_before);
                    self.busiest_turn = self.busiest_turn.max(sent);
                    self.remember(called);
                    Told::Called(outcome)
                }
                Step::Write(writes) => {
                    let written = self.world.apply_writes(&writes);
                    if written.len() < writes.len() {
                        return Ok(End::Abandoned);
                    }
                    Told::Written(written)
                }
                Step::Mint(Mint::BootstrapToken { .. }) => Told::Minted(b"abcdef.0123456789abcdef".to_vec()),
                Step::Finish(plan) => {
                    // A plan's writes are steps of their own.
                    for (at, write) in plan.writes.iter().enumerate() {
                        if death == Some(false) && at + 1 == plan.writes.len() {
                            break;
                        }
                        self.world.apply_writes(std::slice::from_ref(write));
                    }
                    return Ok(if death.is_some() { End::Died } else { End::Finished(Box::new(plan)) });
                }
            };
            if death.is_some() {
                return Ok(End::Died);
            }
        }
    }

    /// Makes a call; `None` when the host is killed meanwhile.
    async fn call(&mut self, guest: &mut dyn Guest, called: &Called) -> anyhow::Result<Option<Outcome>> {
        let Called { call, known, granted, .. } = called.clone();
        let reads = !matches!(call, Call::Create(_) | Call::Update(..) | Call::Delete(_));
        let before = self.changes();
        let asked = guest.call(call.clone(), known, granted, &|| true);
        let outcome = tokio::select! {
            outcome = asked => Some(outcome),
            () = self.setting.proxy.killed() => None,
        };
        self.see_the_time();
        let sent = self.changes() - before;
        ensure!(sent <= usize::from(!reads), "{call:?} sent {sent} requests that change something");
        let Some(outcome) = outcome else { return Ok(None) };
        if let Err(ProviderError::Violated(rule)) = &outcome.reply {
            bail!("{call:?} breaks the contract: {rule}");
        }
        if let Ok(Reply::Parts(parts)) = &outcome.reply {
            self.parts = parts.len();
        }
        Ok(Some(outcome))
    }

    /// Keeps the first and the last call of each function and part.
    fn remember(&mut self, called: Called) {
        let name = match &called.call {
            Call::Identify { part, .. } => format!("identify {part}"),
            Call::Observe(part) => format!("observe {part}"),
            Call::Create(part) => format!("create {part}"),
            Call::Update(part, _) => format!("update {part}"),
            Call::Delete(part) => format!("delete {part}"),
            _ => return,
        };
        self.called.entry((name.clone(), true)).or_insert_with(|| called.clone());
        self.called.insert((name, false), called);
    }

    /// Gives the server the time that its own work takes.
    pub async fn pause(&self) {
        match self.setting.server.pace() {
            Duration::ZERO => tokio::task::yield_now().await,
            pace => tokio::time::sleep(pace).await,
        }
    }

    /// Lives on until the object is up and nothing happens any more, or it is gone.
    pub async fn settle(&mut self) -> anyhow::Result<()> {
        let (mut looks, mut active) = (0, self.world.now);
        for _ in 0..PATIENCE {
            let before = (self.world.writes.len(), self.changes());
            let again = self.once().await?;
            if self.object().is_none() {
                return Ok(());
            }
            let calm = self.setting.proxy.late() == 0 && !self.setting.proxy.is_stale();
            let up = self.provisioned() && calm;
            // A machine whose Node has not joined is looked at often.
            looks += 1;
            if before != (self.world.writes.len(), self.changes()) {
                (looks, active) = (0, self.world.now);
            }
            let quiet = looks >= 3 && self.world.now - active >= QUIET;
            if up && (quiet || again.is_none_or(|after| after >= REST)) {
                return Ok(());
            }
            let Some(after) = again else { bail!("it stands still: {}", self.said()) };
            self.pass(after.max(1)).await;
            if after > 0 {
                self.pause().await;
            }
        }
        bail!("it never settles: {}", self.said())
    }

    /// The last thing that is waited for after an end: all that could still arrive has.
    pub async fn everything_arrives(&mut self) {
        self.pass(10 * REST).await;
    }

    /// As a user would.
    pub fn delete(&mut self) {
        let key = self.life.subject.clone();
        self.world.delete(&key);
    }
}

/// `{"uid": "of Kind/name"}` becomes the uid of that object.
fn resolve_owners(object: &mut Value, uids: &BTreeMap<String, String>) {
    let Some(owners) = object.pointer_mut("/metadata/ownerReferences").and_then(Value::as_array_mut) else { return };
    for owner in owners {
        if let Some(uid) = owner.get("uid").and_then(Value::as_str).and_then(|uid| uids.get(uid)).cloned()
            && let Some(owner) = owner.as_object_mut()
        {
            owner.insert("uid".to_owned(), uid.into());
        }
    }
}

/// A uid that no object of another kind or name has, in whichever life.
fn give_uid(object: &mut Value) {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    let uid = format!("{}-{}-{}", text("/kind"), text("/metadata/namespace"), text("/metadata/name"));
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.entry("uid").or_insert(uid.to_lowercase().into());
    }
}

/// Milliseconds that have passed since the setting began.
fn passed(setting: &Setting<'_>) -> u64 {
    u64::try_from(setting.proxy.passed().as_millis()).unwrap_or(u64::MAX)
}
