//! One object's life under the host's rules, with time that passes when it is told to.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use async_trait::async_trait;
use capstan_api::{Object, ObjectKey};
use capstan_core::contract::Served;
use capstan_core::infrastructure;
use capstan_core::plan::Plan;
use capstan_core::record::{INTENT_FRESH, LEASE};
use capstan_core::testing::World;
use capstan_core::turn::{Call, Course, Mint, Outcome, Reply, Step, Told, TurnInput, TurnRequest};
use capstan_core::view::{Connection, LastTurn, NotNow, Place, Select, View};
use capstan_gateway::policy::Policy;
use capstan_gateway::{Destination, Endpoints, Gateway, Transport};
use serde_json::Value;

use crate::proxy::{Exchange, FaultProxy};
use crate::{Testkit, fault};

/// The server that a component drives, as the test sees it: past the proxy, and without faults.
#[async_trait]
pub trait Server: Send + Sync {
    /// What stands on the server that was not there before the test, one line for each resource; lines carry nothing
    /// that differs from run to run (ids, times).
    ///
    /// # Errors
    /// When the server cannot be asked.
    async fn left(&self) -> anyhow::Result<Vec<String>>;

    /// Takes all of that away, after a case that failed.
    ///
    /// # Errors
    /// When it cannot be.
    async fn clear(&self) -> anyhow::Result<()>;

    /// Whether an exchange may have changed something.
    fn changes(&self, exchange: &Exchange) -> bool {
        exchange.changes()
    }
}

/// What lives are run with.
pub struct Setting<'a> {
    /// The component.
    pub kit: &'a Testkit,
    /// The proxy before the server.
    pub proxy: &'a FaultProxy,
    /// The server.
    pub server: &'a dyn Server,
    /// How requests are carried out: the host's own network.
    pub transport: Arc<dyn Transport>,
    /// What every endpoint of the manifest means: the proxy, with the credential.
    pub destination: Destination,
    /// How long the server gets, in real time, before it is looked at again.
    pub pace: Duration,
}

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
    late_since: Option<u64>,
    stale_since: Option<u64>,
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

/// One destination behind every name.
struct OneEndpoint(Destination, Arc<Policy>);

impl Endpoints for OneEndpoint {
    fn endpoint(&self, _: &str, _: &str) -> Result<Option<Destination>, String> {
        Ok(None)
    }

    fn module_default(&self, _: &str, _: &str) -> Result<Option<Destination>, String> {
        Ok(Some(self.0.clone()))
    }

    fn policy(&self, _: &str) -> Arc<Policy> {
        // The proxy is on loopback.
        self.1.clone()
    }
}

/// Decisions before a life counts as one that never settles.
const PATIENCE: usize = 1_500;
/// What is looked at again after this time (milliseconds) or later is at rest.
const REST: u64 = 60_000;

impl<'a> Living<'a> {
    /// Begins a life: everything but the host's doing is there.
    pub fn begin(setting: &'a Setting<'a>, life: &'a Life) -> anyhow::Result<Self> {
        let all = setting.kit.module().served("conformance");
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
            let put = world.put(object);
            uids.insert(format!("of {}/{}", put.kind(), put.name()), put.uid().to_owned());
        }
        ensure!(world.find(&life.subject).is_some(), "{} is not among the life's objects", life.subject);
        setting.proxy.set(fault::calm());
        setting.proxy.forget();
        Ok(Self {
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
            late_since: None,
            stale_since: None,
        })
    }

    pub fn object(&self) -> Option<Arc<Object>> {
        self.world.find(&self.life.subject)
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
        self.setting.proxy.exchanges().iter().filter(|exchange| self.setting.server.changes(exchange)).count()
    }

    /// Lets time pass; what is late arrives, and reads that show the past stop doing so, when their time has come.
    pub async fn pass(&mut self, milliseconds: u64) {
        let to = self.world.now + milliseconds;
        loop {
            let arrival = self.late_since.map(|since| {
                // What a host that lives has sent it gives up after the request's time; what a dead one has sent
                // within the freshness of its intent arrives before the Lease is anybody else's to count on.
                let more = if self.killed { LEASE - INTENT_FRESH } else { 0 };
                since + self.served.request_timeout + more - 1
            });
            let fresh = self.stale_since.map(|since| since + self.served.consistency_window);
            let Some(next) = [arrival, fresh].into_iter().flatten().min().filter(|next| *next <= to) else { break };
            self.world.now = self.world.now.max(next);
            if arrival == Some(next) {
                self.late_since = None;
                self.setting.proxy.release().await;
            } else {
                self.stale_since = None;
                self.setting.proxy.freshen();
            }
        }
        self.world.now = self.world.now.max(to);
    }

    /// Sees what the last request has set going.
    fn note_trouble(&mut self) {
        let (now, proxy) = (self.world.now, self.setting.proxy);
        if proxy.late() > 0 {
            self.late_since.get_or_insert(now);
        }
        if proxy.is_stale() {
            self.stale_since.get_or_insert(now);
        }
    }

    /// Decides once and carries everything out. How long until it is to be decided again; `None`: only by a change.
    pub async fn once(&mut self) -> anyhow::Result<Option<u64>> {
        let plan = infrastructure::decide(&self.life.subject, &self.served, &*self, self.world.now)?;
        self.world.apply(&plan);
        let mut again = plan.look_again;
        if let Some(turn) = plan.turn {
            match self.turn(&turn).await? {
                Some(finish) => {
                    let look_again = finish.look_again.and_then(|after| u64::try_from(after.as_millis()).ok());
                    let last = LastTurn { at: self.world.now, inputs: turn.inputs.clone(), look_again };
                    self.last.insert(self.life.subject.clone(), last);
                    again = [again, finish.look_again].into_iter().flatten().min();
                }
                // Died: nothing is remembered.
                None => {
                    self.last.clear();
                    again = Some(Duration::ZERO);
                }
            }
        }
        (self.life.tend)(&mut self.world);
        self.not_too_much().await?;
        Ok(again.and_then(|after| u64::try_from(after.as_millis()).ok()))
    }

    async fn not_too_much(&self) -> anyhow::Result<()> {
        let Some(most) = &self.at_most else { return Ok(()) };
        let left = self.setting.server.left().await?;
        for line in &left {
            let count = |all: &[String]| all.iter().filter(|other| *other == line).count();
            let (is, may) = (count(&left), count(most));
            ensure!(is <= may, "{is} of {line:?} on the server, which may hold {may}; {}", self.said());
        }
        Ok(())
    }

    /// `None` when the host died.
    async fn turn(&mut self, turn: &TurnRequest) -> anyhow::Result<Option<Plan>> {
        let mut course = turn.course.boxed();
        self.course(&turn.input, &mut *course).await
    }

    async fn guest(&self, input: &TurnInput) -> anyhow::Result<capstan_runtime::Turn> {
        // A gateway of its own: what one remembers it remembers by the real clock.
        let policy = Arc::new(Policy::new(["127.0.0.1"], []).map_err(anyhow::Error::msg)?);
        let endpoints = Arc::new(OneEndpoint(self.setting.destination.clone(), policy));
        let gateway = Arc::new(Gateway::new(endpoints, self.setting.transport.clone()));
        let module = self.setting.kit.module();
        module.begin("conformance", input.clone(), &gateway).await.map_err(anyhow::Error::msg)
    }

    async fn course(&mut self, input: &TurnInput, course: &mut dyn Course) -> anyhow::Result<Option<Plan>> {
        let mut guest = self.guest(input).await?;
        let mut told = Told::Begin;
        loop {
            let step = course.next(told, self.world.now);
            let death = self.death.filter(|(at, _)| *at == self.steps).map(|(_, before)| before);
            self.steps += 1;
            if death == Some(true) {
                self.killed = true;
                return Ok(None);
            }
            self.pass(10).await;
            told = match step {
                Step::Call { call, known, granted } => {
                    let reads = !matches!(call, Call::Create(_) | Call::Update(..) | Call::Delete(_));
                    let before = self.changes();
                    let asked = guest.call(call.clone(), known.clone(), granted.clone(), &|| true);
                    let outcome = tokio::select! {
                        outcome = asked => outcome,
                        () = self.setting.proxy.killed() => {
                            self.killed = true;
                            self.note_trouble();
                            return Ok(None);
                        }
                    };
                    self.note_trouble();
                    let sent = self.changes() - before;
                    ensure!(sent <= usize::from(!reads), "{call:?} sent {sent} requests that change something");
                    if let Outcome { reply: Ok(Reply::Parts(parts)), .. } = &outcome {
                        self.parts = parts.len();
                    }
                    for _ in 1..if reads { 1 } else { self.repeat } {
                        let mut again = self.guest(input).await?;
                        again.call(call.clone(), known.clone(), granted.clone(), &|| true).await;
                    }
                    Told::Called(outcome)
                }
                Step::Write(writes) => {
                    let written = self.world.apply_writes(&writes);
                    if written.len() < writes.len() {
                        return Ok(None);
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
                    self.killed |= death.is_some();
                    return Ok(death.is_none().then_some(plan));
                }
            };
            if death.is_some() {
                self.killed = true;
                return Ok(None);
            }
        }
    }

    /// Lives on until the object is up and nothing happens any more, or it is gone.
    pub async fn settle(&mut self) -> anyhow::Result<()> {
        let mut quiet = 0;
        for _ in 0..PATIENCE {
            let before = (self.world.writes.len(), self.changes());
            let again = self.once().await?;
            if self.object().is_none() {
                return Ok(());
            }
            let up = self.provisioned() && self.late_since.is_none() && self.stale_since.is_none();
            // A machine whose Node has not joined is looked at often.
            quiet = if before == (self.world.writes.len(), self.changes()) { quiet + 1 } else { 0 };
            if up && (quiet >= 2 || again.is_none_or(|after| after >= REST)) {
                return Ok(());
            }
            let Some(after) = again else { bail!("it stands still: {}", self.said()) };
            self.pass(after.max(1)).await;
            if after > 0 {
                tokio::time::sleep(self.setting.pace).await;
            }
        }
        bail!("it never settles: {}", self.said())
    }

    /// The last thing that is waited for after an end: all that could still arrive has.
    pub async fn everything_arrives(&mut self) {
        self.note_trouble();
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
