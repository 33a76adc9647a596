//! A whole cluster, by rules alone: all of them run against an in-memory management cluster, with an imaginary cloud and
//! guests that answer in a few lines. What is counted here is what a user's cluster costs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use capstan_api::well_known::{CLUSTER_NAME, CONTROL_PLANE, DEPLOYMENT_NAME};
use capstan_api::{Object, ObjectKey};
use serde_json::{Value, json};

use crate::conditions::Condition;
use crate::contract::*;
use crate::plan::{Plan, Urgency, Write};
use crate::provider::decide_served;
use crate::rules::RULES;
use crate::script::drive::real;
use crate::testing::{World, workload};
use crate::turn::{Call, Mint, Outcome, Reply, Step, Told, TurnInput};
use crate::view::{Connection, LastTurn, NotNow, Place, Select, View};

const INFRA: &str = "infrastructure.cluster.x-k8s.io";
const BOOTSTRAP: &str = "bootstrap.cluster.x-k8s.io";
const CONTROL: &str = "controlplane.cluster.x-k8s.io";
const CORE: &str = "cluster.x-k8s.io";
/// How long a machine boots (milliseconds).
const BOOT: u64 = 1_200;

fn served(kind: &str) -> Option<(&'static str, Served)> {
    let (group, duty, cluster, machine) = match kind {
        "SimulatedCluster" => (INFRA, Duty::InfraCluster, Some("SimulatedCluster"), Some("SimulatedMachine")),
        "SimulatedMachine" => (INFRA, Duty::InfraMachine, Some("SimulatedCluster"), Some("SimulatedMachine")),
        "KubeadmConfig" => (BOOTSTRAP, Duty::Bootstrap, None, Some("KubeadmConfig")),
        "KubeadmControlPlane" => (CONTROL, Duty::ControlPlane, None, Some("KubeadmControlPlane")),
        _ => return None,
    };
    let served = Served {
        module: kind.to_lowercase(),
        duty,
        group: group.into(),
        cluster_kind: cluster.map(str::to_owned),
        machine_kind: machine.map(str::to_owned),
        consistency_window: 0,
        request_timeout: 5_000,
        workload_objects: BTreeMap::new(),
        object_references: Vec::new(),
        endpoints: Vec::new(),
        credentials: Vec::new(),
    };
    Some((group, served))
}

/// Something in the cloud.
#[derive(Clone, Debug)]
struct Thing {
    owner: String,
    made: u64,
    control_plane: bool,
}

struct Plane {
    world: World,
    last: BTreeMap<ObjectKey, LastTurn>,
    /// When an object was last written.
    written: BTreeMap<ObjectKey, u64>,
    cloud: BTreeMap<String, Thing>,
    /// When what is to be looked at again is due.
    due: BTreeMap<ObjectKey, u64>,
    /// Changing requests that changed something, for a person.
    requests: Vec<String>,
    turns: u32,
}

impl View for Plane {
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
    fn served(&self, _: &str, kind: &str) -> Option<Served> {
        served(kind).map(|(_, served)| served)
    }
    fn last_turn(&self, key: &ObjectKey) -> Option<LastTurn> {
        self.last.get(key).cloned()
    }
}

const DECIDED: [&str; 8] = [
    "Cluster",
    "SimulatedCluster",
    "KubeadmControlPlane",
    "MachineDeployment",
    "MachineSet",
    "Machine",
    "KubeadmConfig",
    "SimulatedMachine",
];

impl Plane {
    fn new(replicas: u32, workers: u32) -> Self {
        let mut world = World::new();
        let template = |kind: &str, name: &str, spec: Value| {
            let group = if kind.starts_with("Kubeadm") { BOOTSTRAP } else { INFRA };
            json!({"apiVersion": format!("{group}/v1beta2"), "kind": kind,
                "metadata": {"name": name, "namespace": "n"}, "spec": {"template": {"spec": spec}}})
        };
        world.put(json!({"apiVersion": format!("{CORE}/v1beta2"), "kind": "Cluster",
            "metadata": {"name": "q", "namespace": "n"}, "spec": {
                "infrastructureRef": {"apiGroup": INFRA, "kind": "SimulatedCluster", "name": "q"},
                "controlPlaneRef": {"apiGroup": CONTROL, "kind": "KubeadmControlPlane", "name": "q-cp"}}}));
        world.put(json!({"apiVersion": format!("{INFRA}/v1beta2"), "kind": "SimulatedCluster",
            "metadata": {"name": "q", "namespace": "n"}, "spec": {}}));
        world.put(template("SimulatedMachineTemplate", "q-cp", json!({"cpus": 2})));
        world.put(json!({"apiVersion": format!("{CONTROL}/v1beta2"), "kind": "KubeadmControlPlane",
            "metadata": {"name": "q-cp", "namespace": "n"}, "spec": {"replicas": replicas, "version": "v1.35.4",
                "machineTemplate": {"spec": {"infrastructureRef":
                    {"apiGroup": INFRA, "kind": "SimulatedMachineTemplate", "name": "q-cp"}}}}}));
        world.put(template("SimulatedMachineTemplate", "q-w", json!({"cpus": 4})));
        world.put(template("KubeadmConfigTemplate", "q-w", json!({"joinConfiguration": {}})));
        let labels = json!({CLUSTER_NAME: "q", DEPLOYMENT_NAME: "q-w"});
        world.put(json!({"apiVersion": format!("{CORE}/v1beta2"), "kind": "MachineDeployment",
            "metadata": {"name": "q-w", "namespace": "n", "labels": {CLUSTER_NAME: "q"}},
            "spec": {"clusterName": "q", "replicas": workers, "selector": {"matchLabels": labels},
                "rollout": {"strategy": {"type": "RollingUpdate",
                    "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}},
                "template": {"metadata": {"labels": labels}, "spec": {"clusterName": "q", "version": "v1.35.4",
                    "bootstrap": {"configRef":
                        {"apiGroup": BOOTSTRAP, "kind": "KubeadmConfigTemplate", "name": "q-w"}},
                    "infrastructureRef":
                        {"apiGroup": INFRA, "kind": "SimulatedMachineTemplate", "name": "q-w"}}}}}));
        Self {
            world,
            last: BTreeMap::new(),
            written: BTreeMap::new(),
            cloud: BTreeMap::new(),
            due: BTreeMap::new(),
            requests: Vec::new(),
            turns: 0,
        }
    }

    /// Decides everything again and again until nothing happens any more and nothing is due within `patience`.
    fn settle(&mut self, patience: u64) {
        self.run(|now, at| at <= now + patience);
    }

    /// As [`Self::settle`], for as long as something is due that `goes_on` (given the time and when it is due).
    fn run(&mut self, goes_on: impl Fn(u64, u64) -> bool) {
        for _ in 0..20_000 {
            let before = (self.requests.len(), self.turns);
            let keys: Vec<ObjectKey> =
                DECIDED.iter().flat_map(|kind| self.world.all(kind)).map(|object| object.key()).collect();
            for key in keys {
                self.world.now += 1;
                self.once(&key);
                self.boot();
            }
            if (self.requests.len(), self.turns) != before {
                continue;
            }
            let now = self.world.now;
            let next = self.due.iter().filter(|(key, _)| self.world.find(key).is_some()).map(|(_, at)| *at).min();
            match next {
                Some(at) if goes_on(now, at) => self.world.now = at.max(now + 1),
                _ => return,
            }
        }
        panic!(
            "it never settles; the last requests:\n{}",
            self.requests.iter().rev().take(30).rev().cloned().collect::<Vec<_>>().join("\n")
        );
    }

    fn once(&mut self, key: &ObjectKey) {
        let decided = match RULES.iter().find(|rule| rule.kind == key.kind) {
            Some(rule) => (rule.decide)(key, self, self.world.now),
            None => match served(&key.kind) {
                Some((_, served)) => decide_served(key, &served, self, self.world.now),
                None => return,
            },
        };
        let mut plan = match decided {
            Ok(plan) => plan,
            Err(_) => return,
        };
        let mut again = plan.look_again;
        if let Some(held) = self.write_all(&plan) {
            again = Some(again.map_or(held, |again| again.min(held)));
        }
        if let Some(turn) = plan.turn.take() {
            self.turns += 1;
            let finish = self.turn(turn.input, turn.course);
            let look_again = finish.look_again.map(|after| after.as_millis() as u64);
            let held = self.write_all(&finish);
            match held {
                None => {
                    let last = LastTurn { at: self.world.now, inputs: turn.inputs, look_again };
                    self.last.insert(key.clone(), last);
                }
                Some(_) => {
                    self.last.remove(key);
                }
            }
            again = [again, finish.look_again, held].into_iter().flatten().min();
        }
        match again {
            Some(after) => self.due.insert(key.clone(), self.world.now + after.as_millis() as u64),
            None => self.due.remove(key),
        };
    }

    /// Writes; how long until what was held back may be written.
    fn write_all(&mut self, plan: &Plan) -> Option<std::time::Duration> {
        let mut held = None;
        for write in &plan.writes {
            if let Write::PatchStatus { key, urgency: Urgency::Soon, .. } = write
                && let Some(at) = self.written.get(key)
                && self.world.now < at + 1_000
            {
                held = Some(std::time::Duration::from_millis(at + 1_000 - self.world.now));
                continue;
            }
            self.write(write);
        }
        held
    }

    fn write(&mut self, write: &Write) -> Option<Object> {
        let (key, what) = match write {
            Write::Create(object) => (object.key(), "create".to_owned()),
            Write::Patch { key, patch, .. } => (key.clone(), format!("patch {patch}")),
            Write::PatchStatus { key, patch, .. } => (key.clone(), format!("status {patch}")),
            Write::Delete { key, .. } => (key.clone(), "delete".to_owned()),
            Write::MintKeyPair(wanted) => (wanted.secret.key(), "mint".to_owned()),
            Write::MintKubeconfig(wanted) => (wanted.secret.key(), "kubeconfig".to_owned()),
            Write::Workload { .. } => {
                return self.world.apply_writes(std::slice::from_ref(write)).pop().flatten();
            }
        };
        let version = |world: &World| world.find(&key).map(|o| o.resource_version().to_owned());
        let before = version(&self.world);
        let writes = real(vec![write.clone()]);
        let written = self.world.apply_writes(&writes).pop().flatten();
        let after = version(&self.world);
        if before != after {
            self.written.insert(key.clone(), self.world.now);
            let what: String = what.chars().take(300).collect();
            self.requests.push(format!("{} {key}: {what}", self.world.now % 1_000_000));
        }
        written
    }

    fn turn(&mut self, input: TurnInput, mut course: Box<dyn crate::turn::Course>) -> Plan {
        let mut told = Told::Begin;
        loop {
            told = match course.next(told, self.world.now) {
                Step::Call { call, known, granted } => Told::Called(self.answer(&call, &input, &known, &granted)),
                Step::Write(writes) => Told::Written(writes.iter().map(|write| self.write(write)).collect()),
                Step::Mint(Mint::BootstrapToken { .. }) => Told::Minted(b"abcdef.0123456789abcdef".to_vec()),
                Step::Finish(plan) => return plan,
            };
        }
    }

    fn answer(
        &mut self,
        call: &Call,
        input: &TurnInput,
        known: &BTreeMap<String, KnownPart>,
        granted: &Granted,
    ) -> Outcome {
        let name = format!("{}.{}", input.subject.namespace(), input.subject.name());
        let now = self.world.now;
        let mut effect = Effect::NotSent;
        let reply = match call {
            Call::Needs => Reply::Needs(needs(input)),
            Call::Parts => Reply::Parts(vec![Part {
                name: "it".into(),
                after: Vec::new(),
                ownership: Ownership::Managed,
                replaceable: false,
            }]),
            Call::Identify { .. } => Reply::Choice(Choice { id: Some(name), frozen: Value::Null }),
            Call::Observe(_) => Reply::Presence(match self.cloud.get(&name) {
                None => Presence::Absent(Absence::LookedUpById),
                Some(thing) if thing.owner != input.owner_key => {
                    Presence::Foreign(Reason { code: "NameTaken".into(), message: "it is somebody else's".into() })
                }
                Some(thing) => {
                    let boots = input.machine.is_some() && now < thing.made + BOOT;
                    let operation = boots.then(|| Operation { token: "booting".into(), look_again_after: 250 });
                    let state = json!({"state": if boots { "booting" } else { "running" }});
                    let (todo, outdated) = (Vec::new(), Vec::new());
                    Presence::Present(Observed { id: name, ready: !boots, todo, outdated, operation, state })
                }
            }),
            Call::Create(_) => {
                effect = Effect::Answered;
                let control_plane = input.machine.as_ref().is_some_and(|m| m.control_plane);
                let thing = Thing { owner: input.owner_key.clone(), made: now, control_plane };
                assert!(self.cloud.insert(name.clone(), thing).is_none(), "{name} was made twice");
                if input.machine.is_some() {
                    assert!(granted.secrets.contains_key("bootstrap-data"), "{name} has no first-boot data");
                }
                Reply::Progress(Progress::Done(name))
            }
            Call::Delete(_) => {
                effect = Effect::Answered;
                self.cloud.remove(&name);
                Reply::Progress(Progress::Done(name))
            }
            Call::ReportCluster => Reply::ClusterFacts(ClusterFacts {
                control_plane_endpoint: known
                    .get("it")
                    .and_then(|it| it.state.as_ref())
                    .map(|_| HostPort { host: "127.0.0.9".into(), port: 6443 }),
                failure_domains: Vec::new(),
                conditions: Vec::new(),
                status: Value::Null,
            }),
            Call::ReportMachine => Reply::MachineFacts(machine_facts(&name, known)),
            Call::Render => {
                let keys: Vec<&String> = granted.secrets.keys().collect();
                let content = format!("{keys:?}").into_bytes();
                Reply::Rendered(Rendered { format: "cloud-config".into(), content })
            }
            Call::PlanControlPlane => Reply::Decision(planned(input)),
            Call::Update(..) => return violated(),
        };
        Outcome { reply: Ok(reply), effect }
    }

    /// What machines of the cloud do once they have booted: kubeadm's part, thin.
    fn boot(&mut self) {
        let booted: Vec<(String, bool)> = self
            .cloud
            .iter()
            .filter(|(name, thing)| name.as_str() != "n.q" && self.world.now >= thing.made + BOOT)
            .map(|(name, thing)| (name.clone(), thing.control_plane))
            .collect();
        let place = workload("n", "q");
        let up = booted.iter().any(|(_, control_plane)| *control_plane)
            && self.world.find(&ObjectKey::new("", "Secret", "n", "q-kubeconfig")).is_some();
        if !up {
            return;
        }
        self.world.connect("n", "q", Connection::Up);
        let config = ObjectKey::new("", "ConfigMap", "kube-system", "kubeadm-config");
        if self.world.find_in(&place, &config).is_none() {
            self.world.put_in(
                &place,
                json!({"apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": "kubeadm-config", "namespace": "kube-system"}}),
            );
        }
        for (name, control_plane) in booted {
            let node = name.trim_start_matches("n.").to_owned();
            if self.world.find_in(&place, &ObjectKey::new("", "Node", "", &node)).is_some() {
                continue;
            }
            let labels = if control_plane { json!({"node-role.kubernetes.io/control-plane": ""}) } else { json!({}) };
            let condition = |kind: &str, status: &str| json!({"type": kind, "status": status});
            self.world.put_in(
                &place,
                json!({"apiVersion": "v1", "kind": "Node",
                "metadata": {"name": node, "labels": labels},
                "spec": {"providerID": format!("simulated://{name}"),
                    "taints": [{"key": "node.cluster.x-k8s.io/uninitialized", "effect": "NoSchedule"}]},
                "status": {"conditions": [condition("Ready", "True"), condition("MemoryPressure", "False"),
                    condition("DiskPressure", "False"), condition("PIDPressure", "False")],
                    "nodeInfo": {"kubeletVersion": "v1.35.4"}}}),
            );
        }
    }

    fn holds(&self, kind: &str, condition: &str) -> bool {
        self.world.all(kind).iter().all(|object| Condition::holds(object, condition))
    }
}

fn violated() -> Outcome {
    Outcome { reply: Err(ProviderError::Violated("it was not to be asked".into())), effect: Effect::NotSent }
}

fn needs(input: &TurnInput) -> Vec<(String, Need)> {
    let worker = input.machine.as_ref().is_some_and(|m| !m.control_plane);
    let pair = |purpose| {
        let key_pair =
            KeyPair { algorithm: Algorithm::Rsa2048, purpose, common_name: "kubernetes".into(), validity_days: 3650 };
        Need::KeyPair(key_pair)
    };
    let mut needs = match input.subject.kind() {
        "KubeadmConfig" | "KubeadmControlPlane" => vec![
            ("ca".to_owned(), pair(KeyUse::CertificateAuthority)),
            ("etcd".to_owned(), pair(KeyUse::CertificateAuthority)),
            ("proxy".to_owned(), pair(KeyUse::CertificateAuthority)),
            ("sa".to_owned(), pair(KeyUse::SigningOnly)),
        ],
        _ => Vec::new(),
    };
    if worker {
        needs.truncate(1);
    }
    if input.join_role.is_some_and(|role| role != JoinRole::ControlPlaneInit) {
        needs.push(("token".to_owned(), Need::BootstrapToken));
    }
    needs
}

fn machine_facts(name: &str, known: &BTreeMap<String, KnownPart>) -> MachineFacts {
    let state = known.get("it").and_then(|it| it.state.as_ref());
    let running = state.is_some_and(|state| state["state"] == "running");
    MachineFacts {
        phase: if running { MachinePhase::Running } else { MachinePhase::Pending },
        provider_id: state.map(|_| format!("simulated://{name}")),
        addresses: vec![MachineAddress { kind: "InternalIP", value: "127.0.1.1".into() }],
        failure_domain: None,
        node_name: None,
        interruptible: false,
        conditions: Vec::new(),
        status: state.cloned().unwrap_or(Value::Null),
    }
}

/// One machine after the other.
fn planned(input: &TurnInput) -> ControlPlaneDecision {
    let view = input.control_plane.clone().unwrap_or_default();
    let waits = |text: &str| ControlPlaneStep::Wait(Reason { code: "Waiting".into(), message: text.into() });
    let step = if view.members.is_empty()
        || (view.initialized && view.members.len() < view.replicas as usize && view.members.iter().all(|m| m.ready))
    {
        ControlPlaneStep::CreateMachine {
            failure_domain: None,
            kubernetes_version: "v1.35.4".into(),
            bootstrap: json!({"initConfiguration": {}}),
        }
    } else if !view.initialized || view.members.iter().any(|m| !m.ready) {
        waits("a machine is not ready yet")
    } else {
        ControlPlaneStep::Settled
    };
    let look_again_after = matches!(step, ControlPlaneStep::Wait(_)).then_some(2_000);
    let (conditions, status, memory) = (Vec::new(), json!({}), json!({}));
    ControlPlaneDecision { step, look_again_after, conditions, status, memory }
}

#[test]
fn the_quickstart_becomes_ready_within_its_budget_and_then_rests() {
    let mut plane = Plane::new(1, 3);
    let begun = plane.world.now;
    plane.settle(20_000);
    let log = plane.requests.join("\n");
    assert!(plane.holds("Cluster", "Available"), "{:#?}\n{log}", plane.world.all("Cluster"));
    let machines = plane.world.all("Machine");
    assert_eq!(machines.len(), 4, "{log}");
    for machine in &machines {
        assert_eq!(machine.str_at("/status/phase"), Some("Running"), "{machine:#?}");
        let wanted = format!("simulated://n.{}", machine.name());
        assert_eq!(machine.str_at("/spec/providerID"), Some(wanted.as_str()));
        assert!(Condition::holds(machine, "Ready") && Condition::holds(machine, "Available"), "{machine:#?}");
    }
    for kind in ["KubeadmControlPlane", "MachineDeployment"] {
        assert!(plane.holds(kind, "Available"), "{kind}: {:#?}", plane.world.all(kind));
    }
    assert_eq!(plane.cloud.len(), 5);
    // 60 for a control-plane machine and a worker, 13 for each further worker; what the user applies is among them.
    let applied = 7;
    assert!(plane.requests.len() + applied <= 86, "{} requests:\n{log}", plane.requests.len());
    // A settled plane: no writes, and a turn a minute for each object at the most.
    let (requests, turns) = (plane.requests.len(), plane.turns);
    let until = plane.world.now + 300_000;
    plane.run(|_, at| at <= until);
    assert_eq!(plane.requests.len(), requests, "{:#?}", plane.requests.get(requests..));
    assert!(plane.turns - turns <= 14 * 5, "{} turns in five minutes", plane.turns - turns);
    assert!(begun < plane.world.now);
}

#[test]
fn a_deleted_cluster_leaves_nothing() {
    let mut plane = Plane::new(1, 3);
    plane.settle(20_000);
    plane.world.delete(&ObjectKey::new(CORE, "Cluster", "n", "q"));
    plane.settle(20_000);
    assert!(plane.cloud.is_empty(), "{:?}", plane.cloud.keys());
    let kinds = ["Secret", "SimulatedMachineTemplate", "KubeadmConfigTemplate"];
    let left: BTreeSet<String> =
        DECIDED.iter().chain(&kinds).flat_map(|kind| plane.world.all(kind)).map(|o| o.key().to_string()).collect();
    assert!(
        left.is_empty(),
        "{left:#?}\n{}",
        plane.requests.iter().rev().take(40).cloned().collect::<Vec<_>>().join("\n")
    );
}

#[test]
fn three_control_plane_machines_join_one_after_the_other() {
    let mut plane = Plane::new(3, 0);
    plane.settle(20_000);
    let machines = plane.world.all("Machine");
    assert_eq!(machines.len(), 3);
    assert!(machines.iter().all(|m| m.label(CONTROL_PLANE).is_some() && Condition::holds(m, "Ready")));
    let secrets = plane.world.all("Secret");
    let init = secrets
        .iter()
        .filter(|s| crate::needs::text(s, "value").is_some_and(|t| t.contains("ca/tls.key") && !t.contains("token")));
    assert_eq!(init.count(), 1, "only one machine initializes");
}

/// Field case A5: what a backup without status, uids, owner references and finalizers leads to.
#[test]
fn a_restored_cluster_finds_its_machines_and_owns_its_secrets_again() {
    let mut plane = Plane::new(1, 1);
    plane.settle(20_000);
    let made = plane.cloud.clone();
    let kinds = ["Secret", "SimulatedMachineTemplate", "KubeadmConfigTemplate"];
    let mut saved: Vec<Object> =
        DECIDED.iter().chain(&kinds).flat_map(|kind| plane.world.all(kind)).map(|o| Object::clone(&o)).collect();
    saved.sort_by_key(|object| object.kind().to_owned());

    let mut restored = Plane::new(1, 1);
    restored.world = World::new();
    restored.world.now = plane.world.now + 60_000;
    restored.cloud = plane.cloud.clone();
    for mut object in saved {
        for gone in ["ownerReferences", "finalizers", "uid", "resourceVersion", "creationTimestamp", "generation"] {
            object.remove(&format!("/metadata/{gone}"));
        }
        object.remove("/status");
        if object.kind() == "Cluster" {
            object.set("/spec/paused", true.into());
        }
        restored.world.put(object.into_value());
        restored.settle(5_000);
    }
    let users = json!({"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "data": {"value": "eA=="},
        "metadata": {"name": "q-users", "namespace": "n", "labels": {CLUSTER_NAME: "q"}}});
    restored.world.put(users);
    let cluster = ObjectKey::new(CORE, "Cluster", "n", "q");
    restored.world.edit(&cluster, |c| {
        c.remove("/spec/paused");
    });
    restored.settle(20_000);
    let log = restored.requests.join("\n");
    assert_eq!(restored.cloud.keys().collect::<Vec<_>>(), made.keys().collect::<Vec<_>>(), "{log}");
    assert_eq!(restored.world.all("Machine").len(), 2, "{log}");
    assert!(restored.holds("Cluster", "Available"), "{:#?}\n{log}", restored.world.all("Cluster"));
    for secret in restored.world.all("Secret") {
        assert_eq!(secret.controller().is_some(), secret.name() != "q-users", "{secret:?}");
    }
    restored.world.delete(&cluster);
    restored.settle(20_000);
    assert!(restored.cloud.is_empty());
    let left: Vec<String> = restored.world.all("Secret").iter().map(|s| s.name().to_owned()).collect();
    assert_eq!(left, ["q-users"]);
}
