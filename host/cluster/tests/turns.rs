//! Provider turns as the runner drives them, with a provider of the test's own.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by them")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use capstan_api::{Gvk, Object, ObjectKey};
use capstan_apiserver::{ApiServer, Options as ServerOptions, User};
use capstan_cluster::egress::LoopbackOnly;
use capstan_cluster::kinds::builtin;
use capstan_cluster::providers::{Providers, Turn};
use capstan_cluster::runner::{Options, Rules, Runner};
use capstan_cluster::wire::Wire;
use capstan_core::contract::{Effect, Granted, KnownPart, Progress, Served};
use capstan_core::plan::{Plan, Write};
use capstan_core::turn::{Call, Course, Fence, Outcome, Reply, Step, Told, TurnInput, TurnRequest};
use capstan_core::view::{NotNow, Place, View};
use serde_json::json;
use tokio::sync::watch;

const PATIENCE: Duration = Duration::from_secs(10);

fn config_map(name: &str) -> Object {
    Object::new(&Gvk::new("", "v1", "ConfigMap"), "default", name)
}

/// Puts an intent on record, creates, puts the result on record.
#[derive(Clone, Debug)]
struct Creating {
    key: ObjectKey,
    stage: u32,
}

impl Course for Creating {
    fn next(&mut self, told: Told, _now: u64) -> Step {
        self.stage += 1;
        let patch = |text: &str| {
            Step::Write(vec![Write::Patch {
                key: self.key.clone(),
                patch: json!({"data": {"record": text}}),
                resource_version: None,
            }])
        };
        match (self.stage, told) {
            (1, Told::Begin) => patch("intent"),
            (2, Told::Written(objects)) => {
                let record = objects[0].as_ref().unwrap().str_at("/data/record");
                assert_eq!(record, Some("intent"), "the server's answer is told");
                Step::Call { call: Call::Create("vm".into()), known: BTreeMap::new(), granted: Granted::default() }
            }
            (3, Told::Called(Outcome { reply: Ok(Reply::Progress(Progress::Done(id))), effect: Effect::Answered })) => {
                patch(&id)
            }
            (4, Told::Written(_)) => {
                let mut plan = Plan::nothing();
                plan.look_again_in(Duration::from_secs(3600));
                Step::Finish(plan)
            }
            (stage, told) => panic!("stage {stage}: {told:?}"),
        }
    }

    fn boxed(&self) -> Box<dyn Course> {
        Box::new(self.clone())
    }
}

struct Asking;

impl Rules for Asking {
    fn kinds(&self) -> Vec<(String, String)> {
        vec![(String::new(), "ConfigMap".into())]
    }

    fn decide(&self, key: &ObjectKey, view: &dyn View, _now: u64) -> Result<Plan, NotNow> {
        let mut plan = Plan::nothing();
        let Some(object) = view.get(&Place::Management, key)? else { return Ok(plan) };
        let inputs = object.label("inputs").unwrap_or_default().to_owned();
        // A settled object is not asked about again.
        if view.last_turn(key).is_some_and(|last| last.inputs == inputs && last.look_again == Some(3_600_000)) {
            return Ok(plan);
        }
        plan.turn = Some(TurnRequest {
            module: "m".into(),
            input: TurnInput { subject: Object::clone(&object), ..TurnInput::default() },
            inputs,
            course: Box::new(Creating { key: key.clone(), stage: 0 }),
        });
        Ok(plan)
    }
}

/// Counts what it is asked, and how many turns of one object run at once.
struct Cloud {
    changes: watch::Sender<u64>,
    created: AtomicUsize,
    running: Arc<Mutex<BTreeMap<String, usize>>>,
}

struct OneTurn {
    cloud: Arc<Cloud>,
    name: String,
}

impl Drop for OneTurn {
    fn drop(&mut self) {
        *self.cloud.running.lock().unwrap().entry(self.name.clone()).or_default() -= 1;
    }
}

#[async_trait]
impl Turn for OneTurn {
    async fn call(
        &mut self,
        call: Call,
        _known: BTreeMap<String, KnownPart>,
        _granted: Granted,
        may_change: &Fence,
    ) -> Outcome {
        assert_eq!(call, Call::Create("vm".into()));
        assert!(may_change(), "the Lease is held");
        tokio::time::sleep(Duration::from_millis(20)).await;
        let id = self.cloud.created.fetch_add(1, Ordering::SeqCst) + 1;
        Outcome { reply: Ok(Reply::Progress(Progress::Done(format!("vm-{id}")))), effect: Effect::Answered }
    }
}

struct Clouds(Arc<Cloud>);

#[async_trait]
impl Providers for Clouds {
    fn served(&self, _: &str, _: &str) -> Option<Served> {
        None
    }
    fn kinds(&self) -> Vec<(String, String)> {
        Vec::new()
    }
    fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }
    async fn begin(&self, module: &str, input: TurnInput) -> Result<Box<dyn Turn>, String> {
        assert_eq!(module, "m");
        let name = input.subject.name().to_owned();
        let mut running = self.0.running.lock().unwrap();
        let count = running.entry(name.clone()).or_default();
        *count += 1;
        assert_eq!(*count, 1, "one turn of {name} at a time");
        Ok(Box::new(OneTurn { cloud: self.0.clone(), name }))
    }
}

#[tokio::test]
async fn a_turn_puts_each_step_on_record_and_a_settled_object_has_no_other() {
    let server = ApiServer::new(ServerOptions::default()).unwrap();
    let client = kube::Client::new(server.service(User::admin("test")), "default");
    let wire = Wire::new(client.clone());
    let namespaces = builtin("", "Namespace").unwrap();
    let _ = wire.create(&namespaces, &Object::new(&namespaces.gvk(), "", "default")).await;
    let cloud =
        Arc::new(Cloud { changes: watch::Sender::new(0), created: AtomicUsize::new(0), running: Arc::default() });
    let effects = Arc::new(AtomicUsize::new(0));
    let counted = effects.clone();
    let runner = Runner::start(Options {
        client,
        rules: Arc::new(Asking),
        providers: Arc::new(Clouds(cloud.clone())),
        modules: None,
        lease: Some(capstan_cluster::lease::Lease::start(wire.clone(), "turns", "one")),
        egress: Arc::new(LoopbackOnly),
        concurrency: 4,
        after_effect: Some(Arc::new(move || {
            counted.fetch_add(1, Ordering::SeqCst);
        })),
    });
    let config_maps = builtin("", "ConfigMap").unwrap();
    for name in ["a", "b", "c"] {
        wire.create(&config_maps, &config_map(name)).await.unwrap();
    }
    let mut changes = runner.changes();
    let record = |name: &str| {
        let found = runner.management().get(&ObjectKey::new("", "ConfigMap", "default", name));
        found.ok().flatten().and_then(|o| o.str_at("/data/record").map(str::to_owned)).unwrap_or_default()
    };
    let wait = async {
        while !["a", "b", "c"].iter().all(|name| record(name).starts_with("vm-")) {
            changes.changed().await.unwrap();
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap();
    // A change near it that the turn does not depend on.
    for name in ["a", "b", "c"] {
        let mut copy = wire.get(&config_maps, "default", name).await.unwrap().unwrap();
        copy.set_annotation("touched", "yes");
        wire.replace(&config_maps, &copy).await.unwrap();
    }
    tokio::time::timeout(PATIENCE, async {
        while runner.numbers().busy > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    assert_eq!(cloud.created.load(Ordering::SeqCst), 3, "each was created once");
    assert_eq!(runner.numbers().turns, 3);
    assert_eq!(effects.load(Ordering::SeqCst), 3 * 3, "two records and one request each");
    runner.stop().await;
}
