//! For tests: an object of an imaginary provider, the remote API behind it, and a runner that can be made to die at
//! any step.

use std::collections::BTreeMap;
use std::sync::Arc;

use capstan_api::well_known::CLUSTER_NAME;
use capstan_api::{Object, ObjectKey};
use serde_json::{Value, json};

use crate::contract::*;
use crate::plan::{Plan, Write};
use crate::record::Record;
use crate::testing::World;
use crate::turn::{Call, Mint, Outcome, Reply, Step, Told, TurnInput};
use crate::view::{Connection, LastTurn, NotNow, Place, Select, View};

pub(crate) const GROUP: &str = "infrastructure.cluster.x-k8s.io";
/// How long a request of the imaginary API may take.
pub(crate) const REQUEST: u64 = 10_000;
/// How long its reads may show the past.
pub(crate) const WINDOW: u64 = 2_000;

/// Something outside.
#[derive(Clone, Debug)]
pub(crate) struct Resource {
    pub owner: String,
    pub part: String,
    pub state: String,
    /// Not shown before this time.
    pub shown_from: u64,
    /// An operation is running until this time.
    pub busy_until: u64,
}

/// What a changing request comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is not sent.
    NotSent,
    /// It is answered with a refusal.
    Refused,
    /// It is done, and no answer comes back.
    Unanswered,
    /// No answer comes back, and it is done this much later.
    Late(u64),
    /// No answer comes back, and it is never done.
    Lost,
    /// It begins an operation.
    Operation,
    /// It begins an operation that fails.
    FailingOperation,
}

/// The remote API and the guest that talks to it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Remote {
    pub parts: Vec<Part>,
    /// Parts whose id the host chooses; the others are named by the remote.
    pub chosen: Vec<String>,
    pub resources: BTreeMap<String, Resource>,
    pub underway: Vec<(u64, String, Resource)>,
    /// Fates of the next changing requests; what is not listed succeeds.
    pub fates: Vec<Fate>,
    /// Operations that end without effect.
    pub failed: Vec<String>,
    /// What `report` says instead of what it sees.
    pub facts: Option<Reply>,
    /// Every call fails with this.
    pub error: Option<ProviderError>,
    /// What `update` has left to do, by part.
    pub todo: BTreeMap<String, Vec<Reason>>,
    pub creations: u32,
    pub deletions: u32,
    /// How long reads show what was deleted (milliseconds).
    pub deleted_is_shown_for: u64,
    /// What is shown and gone, and until when.
    pub gone: BTreeMap<String, u64>,
    pub changing_calls_in_turn: u32,
    counter: u32,
}

pub(crate) fn reason(code: &str) -> Reason {
    Reason { code: code.into(), message: format!("{code} happened") }
}

impl Remote {
    pub(crate) fn owned(&self, part: &str) -> Vec<&String> {
        self.resources.iter().filter(|(_, r)| r.part == part && r.owner != "stranger").map(|(id, _)| id).collect()
    }

    /// What was under way arrives.
    pub(crate) fn pass(&mut self, now: u64) {
        let (due, rest) = self.underway.drain(..).partition(|(at, ..)| *at <= now);
        self.underway = rest;
        let gone: Vec<String> =
            self.gone.iter().filter(|(_, until)| **until <= now).map(|(id, _)| id.clone()).collect();
        for id in gone {
            self.gone.remove(&id);
            self.resources.remove(&id);
        }
        for (_, id, resource) in due {
            self.resources.entry(id).or_insert(resource);
        }
    }

    fn answer(&mut self, call: &Call, input: &TurnInput, known: &BTreeMap<String, KnownPart>, now: u64) -> Outcome {
        self.pass(now);
        if let Some(error) = &self.error
            && !matches!(call, Call::Needs | Call::Parts)
        {
            return Outcome { reply: Err(error.clone()), effect: Effect::NotSent };
        }
        let (reply, effect) = match call {
            Call::Needs => (Ok(Reply::Needs(Vec::new())), Effect::NotSent),
            Call::Parts => (Ok(Reply::Parts(self.parts.clone())), Effect::NotSent),
            Call::Identify { part, reserved } => {
                let mut id = self.chosen.contains(part).then(|| format!("{}/{part}", input.subject.name()));
                while id.as_ref().is_some_and(|id| reserved.contains(id)) {
                    id = id.map(|id| format!("{id}+"));
                }
                let choice = Choice { id, frozen: json!({"node": "n1"}) };
                (Ok(Reply::Choice(choice)), Effect::NotSent)
            }
            Call::Observe(part) => {
                (Ok(Reply::Presence(self.observe(part, &known.get(part).cloned(), input, now))), Effect::NotSent)
            }
            Call::Create(part) => self.create(part, known, input, now),
            Call::Update(part, _) => {
                self.changing_calls_in_turn += 1;
                self.todo.get_mut(part).map(|todo| if todo.is_empty() { None } else { Some(todo.remove(0)) });
                let id = known.get(part).and_then(|k| k.id.clone()).unwrap_or_default();
                (Ok(Reply::Progress(Progress::Done(id))), Effect::Answered)
            }
            Call::Delete(part) => {
                self.changing_calls_in_turn += 1;
                let id =
                    known.get(part).and_then(|k| k.id.clone()).or_else(|| self.owned(part).first().cloned().cloned());
                let id = id.unwrap_or_default();
                self.deletions += 1;
                self.gone.entry(id.clone()).or_insert(now + self.deleted_is_shown_for);
                self.pass(now);
                (Ok(Reply::Progress(Progress::Done(id))), Effect::Answered)
            }
            Call::ReportMachine => (Ok(self.facts.clone().unwrap_or_else(|| machine_facts(known))), Effect::NotSent),
            Call::ReportCluster => (Ok(self.facts.clone().unwrap_or_else(|| cluster_facts(known))), Effect::NotSent),
            _ => (Err(ProviderError::Violated("not this role".into())), Effect::NotSent),
        };
        Outcome { reply, effect }
    }

    fn observe(&self, part: &str, known: &Option<KnownPart>, input: &TurnInput, now: u64) -> Presence {
        let by_id = known.as_ref().and_then(|k| k.id.clone());
        let failed = known.as_ref().and_then(|k| k.operation.clone()).filter(|op| self.failed.contains(op));
        let found = match &by_id {
            Some(id) => self.resources.get_key_value(id),
            None => self.resources.iter().find(|(_, r)| r.part == part && r.owner == input.owner_key),
        };
        let how = if by_id.is_some() { Absence::LookedUpById } else { Absence::SearchedByKey };
        match found.filter(|(_, r)| r.shown_from <= now) {
            Some((_, r)) if r.owner != input.owner_key => Presence::Foreign(reason("Foreign")),
            Some((id, r)) => Presence::Present(Observed {
                id: id.clone(),
                ready: r.busy_until <= now,
                todo: self.todo.get(part).cloned().unwrap_or_default(),
                outdated: Vec::new(),
                operation: (r.busy_until > now)
                    .then(|| Operation { token: "boot".into(), look_again_after: r.busy_until - now }),
                state: json!({"state": r.state, "id": id}),
            }),
            None if failed.is_some() => Presence::Failed(how, reason("QuotaExceeded")),
            None => Presence::Absent(how),
        }
    }

    fn create(
        &mut self,
        part: &str,
        known: &BTreeMap<String, KnownPart>,
        input: &TurnInput,
        now: u64,
    ) -> (Result<Reply, ProviderError>, Effect) {
        let known = known.get(part).cloned().unwrap_or_default();
        assert_eq!(known.frozen, Some(json!({"node": "n1"})), "created without what identify fixed");
        self.changing_calls_in_turn += 1;
        let id = known.id.clone().unwrap_or_else(|| {
            self.counter += 1;
            format!("r-{}", self.counter)
        });
        let fate = if self.fates.is_empty() { None } else { Some(self.fates.remove(0)) };
        let mut resource = Resource {
            owner: input.owner_key.clone(),
            part: part.into(),
            state: "running".into(),
            shown_from: now,
            busy_until: now,
        };
        let done = Ok(Reply::Progress(Progress::Done(id.clone())));
        let no_answer = Err(ProviderError::Transient(reason("NoAnswer")));
        match fate {
            None if self.resources.contains_key(&id) => {
                (Err(ProviderError::Conflict(reason("NameTaken"))), Effect::Answered)
            }
            None => {
                self.make(id, resource);
                (done, Effect::Answered)
            }
            Some(Fate::NotSent) => (Err(ProviderError::Transient(reason("NotSent"))), Effect::NotSent),
            Some(Fate::Refused) => (Err(ProviderError::Conflict(reason("Refused"))), Effect::Answered),
            Some(Fate::Unanswered) => {
                resource.shown_from = now + WINDOW;
                self.make(id, resource);
                (no_answer, Effect::Unknown)
            }
            Some(Fate::Late(after)) => {
                resource.shown_from = now + after + WINDOW;
                self.creations += 1;
                self.underway.push((now + after, id, resource));
                (no_answer, Effect::Unknown)
            }
            Some(Fate::Lost) => (no_answer, Effect::Unknown),
            Some(Fate::Operation) => {
                resource.busy_until = now + 1_500;
                self.make(id.clone(), resource);
                let operation = Operation { token: "op-1".into(), look_again_after: 500 };
                (Ok(Reply::Progress(Progress::Started(Some(id), operation))), Effect::Answered)
            }
            Some(Fate::FailingOperation) => {
                let operation = Operation { token: format!("op-f{}", self.failed.len()), look_again_after: 500 };
                self.failed.push(operation.token.clone());
                (Ok(Reply::Progress(Progress::Started(None, operation))), Effect::Answered)
            }
        }
    }

    fn make(&mut self, id: String, resource: Resource) {
        self.creations += 1;
        self.resources.insert(id, resource);
    }
}

/// A machine that runs as soon as its `vm` is seen.
fn machine_facts(known: &BTreeMap<String, KnownPart>) -> Reply {
    let vm = known.get("vm").filter(|vm| vm.state.is_some());
    let id = known.get("vm").and_then(|vm| vm.id.clone());
    Reply::MachineFacts(MachineFacts {
        phase: if vm.is_some() { MachinePhase::Running } else { MachinePhase::Pending },
        provider_id: vm.and(id).map(|id| format!("imaginary://{id}")),
        addresses: match vm {
            Some(_) => vec![MachineAddress { kind: "InternalIP", value: "10.0.0.7".into() }],
            None => Vec::new(),
        },
        failure_domain: None,
        node_name: None,
        interruptible: false,
        conditions: Vec::new(),
        status: json!({"state": if vm.is_some() { "running" } else { "none" }}),
    })
}

fn cluster_facts(known: &BTreeMap<String, KnownPart>) -> Reply {
    let lb = known.get("lb").filter(|lb| lb.state.is_some());
    Reply::ClusterFacts(ClusterFacts {
        control_plane_endpoint: lb.map(|_| HostPort { host: "10.0.0.1".into(), port: 6443 }),
        failure_domains: vec![FailureDomain { name: "a".into(), control_plane: true, attributes: BTreeMap::new() }],
        conditions: Vec::new(),
        status: json!({}),
    })
}

pub(crate) fn part(name: &str, after: &[&str], replaceable: bool) -> Part {
    Part {
        name: name.into(),
        after: after.iter().map(|a| (*a).to_owned()).collect(),
        ownership: Ownership::Managed,
        replaceable,
    }
}

/// Where a process dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Death {
    /// Before the step is carried out.
    Before,
    /// After it, before anybody is told.
    After,
    /// With the request under way: it takes effect this much later.
    UnderWay(u64),
}

/// The world, the remote and one object.
#[derive(Debug)]
pub(crate) struct Scene {
    pub world: World,
    pub remote: Remote,
    pub served: Served,
    pub key: ObjectKey,
    pub last: BTreeMap<ObjectKey, LastTurn>,
    /// Steps that were carried out so far.
    pub steps: usize,
    /// At which step to die, and how.
    pub death: Option<(usize, Death)>,
    /// A process that was to die with a request under way met a step that sends none.
    pub nothing_under_way: bool,
    /// How long the next write in a turn takes.
    pub slow_write: u64,
    pub turns: usize,
    pub events: Vec<String>,
}

impl View for Scene {
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
        "me".into()
    }
}

pub(crate) fn served(duty: Duty) -> Served {
    Served {
        module: "imaginary".into(),
        duty,
        group: GROUP.into(),
        cluster_kind: Some("ImaginaryCluster".into()),
        machine_kind: Some("ImaginaryMachine".into()),
        consistency_window: WINDOW,
        request_timeout: REQUEST,
        workload_objects: BTreeMap::new(),
        object_references: Vec::new(),
        endpoints: Vec::new(),
        credentials: Vec::new(),
    }
}

impl Scene {
    /// A Cluster whose infrastructure is there.
    fn with_cluster(duty: Duty, kind: &str) -> Self {
        let mut world = World::new();
        world.put(json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
            "metadata": {"name": "c", "namespace": "n", "uid": "cluster-uid"},
            "spec": {"infrastructureRef": {"apiGroup": GROUP, "kind": "ImaginaryCluster", "name": "c"}},
            "status": {"initialization": {"infrastructureProvisioned": duty == Duty::InfraMachine}}}));
        let name = if duty == Duty::InfraMachine { "m" } else { "c" };
        Self {
            world,
            remote: Remote::default(),
            served: served(duty),
            key: ObjectKey::new(GROUP, kind, "n", name),
            last: BTreeMap::new(),
            steps: 0,
            death: None,
            nothing_under_way: false,
            slow_write: 0,
            turns: 0,
            events: Vec::new(),
        }
    }

    /// A Machine with first-boot data, and its InfraMachine: a `disk` that the remote names, and a `vm` after it.
    pub(crate) fn machine() -> Self {
        let mut scene = Self::with_cluster(Duty::InfraMachine, "ImaginaryMachine");
        scene.remote.parts = vec![part("vm", &["disk"], false), part("disk", &[], true)];
        scene.remote.chosen = vec!["vm".into()];
        let machine = scene.world.put(json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
            "metadata": {"name": "m", "namespace": "n"},
            "spec": {"clusterName": "c", "bootstrap": {"dataSecretName": "m"}},
            "status": {"nodeRef": {"name": "m"}}}));
        scene.world.put(json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "m", "namespace": "n"},
            "data": {"value": "I2Nsb3VkLWNvbmZpZwo=", "format": "Y2xvdWQtY29uZmln"}}));
        scene.world.put(json!({"apiVersion": format!("{GROUP}/v1"), "kind": "ImaginaryMachine",
            "metadata": {"name": "m", "namespace": "n", "labels": {CLUSTER_NAME: "c"},
                "ownerReferences": [machine.as_owner(true)]},
            "spec": {"size": 2}}));
        scene
    }

    /// An InfraCluster: a `lb`.
    pub(crate) fn cluster() -> Self {
        let mut scene = Self::with_cluster(Duty::InfraCluster, "ImaginaryCluster");
        scene.remote.parts = vec![part("lb", &[], true)];
        scene.remote.chosen = vec!["lb".into()];
        scene.world.put(json!({"apiVersion": format!("{GROUP}/v1"), "kind": "ImaginaryCluster",
            "metadata": {"name": "c", "namespace": "n",
                "ownerReferences": [{"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "name": "c",
                    "uid": "cluster-uid"}]},
            "spec": {}}));
        scene
    }

    pub(crate) fn object(&self) -> Option<Arc<Object>> {
        self.world.find(&self.key)
    }

    pub(crate) fn condition(&self, kind: &str) -> (String, String, String) {
        let condition = self.object().and_then(|o| crate::conditions::Condition::of(&o, kind));
        condition.map(|c| (c.status.as_str().to_owned(), c.reason, c.message)).unwrap_or_default()
    }

    pub(crate) fn record(&self) -> Record {
        Record::of(&self.object().expect("the object is there")).expect("the record is readable")
    }

    pub(crate) fn edit(&mut self, change: impl FnOnce(&mut Object)) {
        let key = self.key.clone();
        assert!(self.world.edit(&key, change));
    }

    /// Decides once and carries everything out. How long until it is to be decided again; `None`: only by a change.
    pub(crate) fn once(&mut self) -> Option<u64> {
        let plan = super::decide(&self.key, &self.served, self, self.world.now).expect("decided");
        self.world.apply(&plan);
        self.note(&plan);
        let mut again = plan.look_again;
        if let Some(turn) = plan.turn {
            self.turns += 1;
            self.remote.changing_calls_in_turn = 0;
            match self.turn(turn.input, turn.course) {
                Some(finish) => {
                    let look_again = finish.look_again.map(|after| after.as_millis() as u64);
                    let last = LastTurn { at: self.world.now, inputs: turn.inputs, look_again };
                    self.last.insert(self.key.clone(), last);
                    again = match (again, finish.look_again) {
                        (Some(a), Some(b)) => Some(a.min(b)),
                        (a, b) => a.or(b),
                    };
                }
                // Died: nothing is remembered.
                None => {
                    self.last.clear();
                    again = Some(std::time::Duration::ZERO);
                }
            }
            assert!(self.remote.changing_calls_in_turn <= 1, "more than one changing call in a turn");
        }
        for part in self.remote.parts.clone() {
            let all = self.remote.owned(&part.name);
            assert!(all.len() <= 1, "two of {}: {all:?}", part.name);
        }
        again.map(|after| after.as_millis() as u64)
    }

    fn note(&mut self, plan: &Plan) {
        self.events.extend(plan.events.iter().map(|event| event.reason.clone()));
    }

    /// `None` when the process died.
    fn turn(&mut self, input: TurnInput, mut course: Box<dyn crate::turn::Course>) -> Option<Plan> {
        let mut told = Told::Begin;
        loop {
            let step = course.next(told, self.world.now);
            let death = self.death.filter(|(at, _)| *at == self.steps).map(|(_, death)| death);
            self.steps += 1;
            if death == Some(Death::Before) {
                return None;
            }
            if matches!(death, Some(Death::UnderWay(_))) && !matches!(step, Step::Call { call: Call::Create(_), .. }) {
                self.nothing_under_way = true;
                return None;
            }
            self.world.now += 10;
            told = match step {
                Step::Call { call, known, .. } => {
                    if let (Some(Death::UnderWay(after)), Call::Create(_)) = (death, &call) {
                        self.remote.fates.insert(0, Fate::Late(after));
                    }
                    Told::Called(self.remote.answer(&call, &input, &known, self.world.now))
                }
                Step::Write(writes) => {
                    let written = self.world.apply_writes(&writes);
                    self.world.now += std::mem::take(&mut self.slow_write);
                    if written.len() < writes.len() {
                        return None;
                    }
                    Told::Written(written)
                }
                Step::Mint(Mint::BootstrapToken { .. }) => Told::Minted(b"abcdef.0123456789abcdef".to_vec()),
                Step::Finish(plan) => {
                    // A plan's writes are steps of their own.
                    for (at, write) in plan.writes.iter().enumerate() {
                        if death == Some(Death::After) && at == plan.writes.len() - 1 {
                            return None;
                        }
                        self.world.apply_writes(std::slice::from_ref(write));
                    }
                    self.note(&plan);
                    return if death.is_some() { None } else { Some(plan) };
                }
            };
            if death.is_some() {
                return None;
            }
        }
    }

    /// Decides again and again, letting time pass, until nothing is to be done for a minute (or the object is gone).
    pub(crate) fn settle(&mut self) {
        for _ in 0..400 {
            let again = self.once();
            if self.object().is_none() || self.nothing_under_way {
                return;
            }
            match again {
                Some(after) if after < 60_000 => self.world.now += after,
                _ => return,
            }
        }
        panic!("it never settles: {:?}", self.object());
    }

    /// Lets time pass.
    pub(crate) fn wait(&mut self, milliseconds: u64) {
        self.world.now += milliseconds;
        self.remote.pass(self.world.now);
    }

    pub(crate) fn delete(&mut self) {
        let key = self.key.clone();
        self.world.delete(&key);
    }

    /// Writes since the last call of this.
    pub(crate) fn take_writes(&mut self) -> Vec<Write> {
        std::mem::take(&mut self.world.writes)
    }

    pub(crate) fn status(&self, pointer: &str) -> Value {
        self.object().and_then(|o| o.at(&format!("/status{pointer}")).cloned()).unwrap_or_default()
    }
}

pub(crate) fn pending() -> MachineFacts {
    MachineFacts {
        phase: MachinePhase::Pending,
        provider_id: None,
        addresses: Vec::new(),
        failure_domain: None,
        node_name: None,
        interruptible: false,
        conditions: Vec::new(),
        status: json!({}),
    }
}

pub(crate) fn running(provider_id: Option<&str>) -> Reply {
    Reply::MachineFacts(MachineFacts {
        phase: MachinePhase::Running,
        provider_id: provider_id.map(str::to_owned),
        ..pending()
    })
}

pub(crate) fn stranger(part: &str) -> Resource {
    Resource { owner: "stranger".into(), part: part.into(), state: "x".into(), shown_from: 0, busy_until: 0 }
}
