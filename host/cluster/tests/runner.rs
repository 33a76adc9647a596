//! The runner against the embedded API server, in process: rules of the test's own, so that what is tested is the
//! machinery.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by them")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use capstan_api::{Gvk, Object, ObjectKey};
use capstan_apiserver::{ApiServer, Options as ServerOptions, User};
use capstan_cluster::egress::LoopbackOnly;
use capstan_cluster::kinds::builtin;
use capstan_cluster::runner::{NoProviders, Options, Rules, Runner};
use capstan_cluster::wire::{PatchKind, Wire};
use capstan_core::plan::{Plan, Urgency, Write};
use capstan_core::view::{NotNow, Place, View};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(10);

/// `ConfigMap x` with `data.secret: s` wants a ConfigMap `x-copy` with the same `data.text`, and the length of Secret
/// `s` in it.
struct Copy {
    decided: AtomicUsize,
}

fn config_map(name: &str) -> ObjectKey {
    ObjectKey::new("", "ConfigMap", "default", name)
}

impl Rules for Copy {
    fn kinds(&self) -> Vec<(String, String)> {
        vec![(String::new(), "ConfigMap".into())]
    }

    fn decide(&self, key: &ObjectKey, view: &dyn View, _now: u64) -> Result<Plan, NotNow> {
        if key.name.ends_with("-copy") {
            return Ok(Plan::nothing());
        }
        self.decided.fetch_add(1, Ordering::SeqCst);
        let Some(source) = view.get(&Place::Management, key)? else { return Ok(Plan::nothing()) };
        assert!(source.str_at("/data/panic").is_none(), "a rule with a defect");
        let secret_name = source.str_at("/data/secret").unwrap_or("none");
        let secret = view.get(&Place::Management, &ObjectKey::new("", "Secret", "default", secret_name))?;
        let Some(secret) = secret else { return Ok(Plan::nothing()) };
        let size = secret.str_at("/data/value").unwrap_or_default().len().to_string();
        let text = source.str_at("/data/text").unwrap_or_default();
        let copy_key = config_map(&format!("{}-copy", key.name));
        let mut plan = Plan::nothing();
        match view.get(&Place::Management, &copy_key)? {
            None => {
                let mut copy = Object::new(&Gvk::new("", "v1", "ConfigMap"), "default", &copy_key.name);
                copy.set("/data", json!({"text": text, "size": size}));
                plan.writes.push(Write::Create(copy));
            }
            Some(copy) => plan.writes.push(Write::Patch {
                key: copy_key,
                patch: json!({"data": {"text": text, "size": size}}),
                resource_version: Some(copy.resource_version().to_owned()),
            }),
        }
        Ok(plan)
    }
}

struct World {
    server: ApiServer,
    wire: Wire,
    runner: Runner,
    rules: Arc<Copy>,
}

async fn world() -> World {
    let server = ApiServer::new(ServerOptions::default()).unwrap();
    let client = kube::Client::new(server.service(User::admin("test")), "default");
    let wire = Wire::new(client.clone());
    let namespaces = builtin("", "Namespace").unwrap();
    if wire.get(&namespaces, "", "default").await.unwrap().is_none() {
        wire.create(&namespaces, &Object::new(&namespaces.gvk(), "", "default")).await.unwrap();
    }
    let rules = Arc::new(Copy { decided: AtomicUsize::new(0) });
    let runner = Runner::start(Options {
        client,
        rules: rules.clone(),
        providers: Arc::new(NoProviders::default()),
        modules: None,
        lease: Some(capstan_cluster::lease::Lease::start(wire.clone(), "test", "one")),
        egress: Arc::new(LoopbackOnly),
        concurrency: 4,
        after_effect: None,
    });
    World { server, wire, runner, rules }
}

impl World {
    async fn create(&self, kind: &str, name: &str, data: Value) {
        let resource = builtin("", kind).unwrap();
        let mut object = Object::new(&resource.gvk(), "default", name);
        object.set("/data", data);
        self.wire.create(&resource, &object).await.unwrap();
    }

    async fn patch(&self, name: &str, patch: Value) {
        let resource = builtin("", "ConfigMap").unwrap();
        self.wire.patch(&resource, "default", name, None, PatchKind::Merge, &patch).await.unwrap();
    }

    /// Waits, driven by changes, until the ConfigMap has this text and size.
    async fn copied(&self, name: &str, text: &str, size: &str) {
        let mut changes = self.runner.changes();
        let wait = async {
            loop {
                changes.mark_unchanged();
                let found = self.runner.management().get(&config_map(name));
                if let Ok(Some(copy)) = &found
                    && copy.str_at("/data/text") == Some(text)
                    && copy.str_at("/data/size") == Some(size)
                {
                    return;
                }
                changes.changed().await.unwrap();
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("no {name} with {text} and {size}"));
    }
}

#[tokio::test]
async fn what_was_read_and_not_found_brings_the_decision_back() {
    let world = world().await;
    world.create("ConfigMap", "a", json!({"text": "one", "secret": "s"})).await;
    // The Secret is missing; its arrival is the only event that can bring the decision back.
    tokio::time::timeout(PATIENCE, async {
        while world.rules.decided.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    world.create("Secret", "s", json!({"value": "YWFhYQ=="})).await;
    world.copied("a-copy", "one", "8").await;
    world.patch("a", json!({"data": {"text": "two"}})).await;
    world.copied("a-copy", "two", "8").await;
    // Somebody else spoils the copy: it is a dependency, too.
    world.patch("a-copy", json!({"data": {"text": "spoilt"}})).await;
    world.copied("a-copy", "two", "8").await;
    world.runner.stop().await;
}

#[tokio::test]
async fn nothing_is_written_that_does_not_differ() {
    let world = world().await;
    world.create("Secret", "s", json!({"value": "YWFhYQ=="})).await;
    for name in ["a", "b", "c"] {
        world.create("ConfigMap", name, json!({"text": name, "secret": "s"})).await;
    }
    for name in ["a", "b", "c"] {
        world.copied(&format!("{name}-copy"), name, "8").await;
    }
    // Touching the sources decides them again and writes nothing.
    for name in ["a", "b", "c"] {
        world.patch(name, json!({"metadata": {"labels": {"touched": "yes"}}})).await;
    }
    world.create("ConfigMap", "d", json!({"text": "d", "secret": "s"})).await;
    world.copied("d-copy", "d", "8").await;
    let numbers = world.runner.numbers();
    assert_eq!((numbers.writes, numbers.conflicts), (4, 0), "{numbers:?}");
    assert!(numbers.decisions >= 8, "{numbers:?}");
    world.runner.stop().await;
    assert!(world.server.requests_that_changed() > 0);
}

#[tokio::test]
async fn a_rule_that_panics_fails_its_object_only() {
    let world = world().await;
    world.create("Secret", "s", json!({"value": "YWFhYQ=="})).await;
    world.create("ConfigMap", "bad", json!({"panic": "yes", "secret": "s"})).await;
    world.create("ConfigMap", "good", json!({"text": "fine", "secret": "s"})).await;
    world.copied("good-copy", "fine", "8").await;
    world.patch("bad", json!({"data": {"panic": null, "text": "mended"}})).await;
    world.copied("bad-copy", "mended", "8").await;
    world.runner.stop().await;
}

/// Counts in its own status-like annotation whenever it is decided: many decisions, few writes.
struct Hold;

impl Rules for Hold {
    fn kinds(&self) -> Vec<(String, String)> {
        vec![(String::new(), "Node".into())]
    }

    fn decide(&self, key: &ObjectKey, view: &dyn View, _now: u64) -> Result<Plan, NotNow> {
        let mut plan = Plan::nothing();
        if let Some(node) = view.get(&Place::Management, key)?
            && let Some(wanted) = node.annotation("wanted")
        {
            plan.writes.push(Write::PatchStatus {
                key: key.clone(),
                patch: json!({"status": {"phase": wanted}}),
                urgency: Urgency::Soon,
            });
        }
        Ok(plan)
    }
}

#[tokio::test]
async fn a_status_that_is_not_urgent_waits_and_is_decided_anew() {
    let server =
        ApiServer::new(ServerOptions { builtins: capstan_apiserver::Builtins::Workload, ..ServerOptions::default() })
            .unwrap();
    let client = kube::Client::new(server.service(User::admin("test")), "default");
    let wire = Wire::new(client.clone());
    let nodes = builtin("", "Node").unwrap();
    let mut node = Object::new(&nodes.gvk(), "", "n");
    node.set_annotation("wanted", "Pending");
    wire.create(&nodes, &node).await.unwrap();
    let runner = Runner::start(Options {
        client,
        rules: Arc::new(Hold),
        providers: Arc::new(NoProviders::default()),
        modules: None,
        lease: None,
        egress: Arc::new(LoopbackOnly),
        concurrency: 2,
        after_effect: None,
    });
    let key = ObjectKey::new("", "Node", "", "n");
    let reached = async |phase: &str| {
        let mut changes = runner.changes();
        tokio::time::timeout(PATIENCE, async {
            loop {
                changes.mark_unchanged();
                if let Ok(Some(node)) = runner.management().get(&key)
                    && node.str_at("/status/phase") == Some(phase)
                {
                    return;
                }
                changes.changed().await.unwrap();
            }
        })
        .await
        .unwrap();
    };
    reached("Pending").await;
    // Five changes within the second after our write: one write, with the last state.
    for phase in ["Running", "Terminated", "Running", "Terminated", "Running"] {
        let patch = json!({"metadata": {"annotations": {"wanted": phase}}});
        wire.patch(&nodes, "", "n", None, PatchKind::Merge, &patch).await.unwrap();
    }
    reached("Running").await;
    assert_eq!(runner.numbers().writes, 2);
    runner.stop().await;
}

#[tokio::test]
async fn without_the_lease_nothing_is_written_until_its_holder_gives_it_up() {
    let server = ApiServer::new(ServerOptions::default()).unwrap();
    let client = kube::Client::new(server.service(User::admin("test")), "default");
    let wire = Wire::new(client.clone());
    let first = capstan_cluster::lease::Lease::start(wire.clone(), "shared", "first");
    tokio::time::timeout(PATIENCE, first.held()).await.unwrap();
    let second = capstan_cluster::lease::Lease::start(wire.clone(), "shared", "second");
    assert!(tokio::time::timeout(Duration::from_millis(300), second.held()).await.is_err());
    assert!(first.may_change() && !second.may_change());
    first.release().await;
    assert!(!first.may_change());
    tokio::time::timeout(PATIENCE, second.held()).await.unwrap();
    assert!(second.may_change());
}

#[tokio::test]
async fn an_object_that_went_behind_our_back_is_gone_after_a_refresh() {
    let world = world().await;
    world.create("ConfigMap", "gone", json!({})).await;
    let mirror = world.runner.management();
    let mut changes = world.runner.changes();
    while !matches!(mirror.get(&config_map("gone")), Ok(Some(_))) {
        tokio::time::timeout(PATIENCE, changes.changed()).await.unwrap().unwrap();
    }
    let resource = builtin("", "ConfigMap").unwrap();
    world.wire.delete(&resource, "default", "gone", "").await.unwrap();
    let found = tokio::time::timeout(PATIENCE, mirror.refresh(&resource, &config_map("gone"))).await.unwrap();
    assert_eq!(found, Ok(None));
    assert_eq!(mirror.get(&config_map("gone")), Ok(None));
    world.runner.stop().await;
}
