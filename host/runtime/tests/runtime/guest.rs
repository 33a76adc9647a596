//! The guest that the tests use, built once, and a gateway with a scripted network behind it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};

use async_trait::async_trait;
use capstan_api::Object;
use capstan_core::contract::{Granted, KnownPart};
use capstan_core::turn::{Call, Fence, Outcome, TurnInput, no_fence};
use capstan_gateway::{
    Destination, EndpointConfig, Endpoints, Gateway, Origin, Transport, TransportError, WireRequest, WireResponse,
};
use capstan_runtime::{Engine, EngineConfig, Module, Turn};
use serde_json::json;

/// The fixture guest as a core module.
pub fn core_module() -> &'static [u8] {
    static CORE: OnceLock<Vec<u8>> = OnceLock::new();
    CORE.get_or_init(|| {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guest/Cargo.toml");
        let target = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("guest");
        let status = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--release", "--locked", "--target", "wasm32-unknown-unknown"])
            .arg("--manifest-path")
            .arg(&manifest)
            .arg("--target-dir")
            .arg(&target)
            .env_remove("RUSTFLAGS")
            .status()
            .expect("cargo runs");
        assert!(status.success(), "the guest does not build (rustup target add wasm32-unknown-unknown)");
        std::fs::read(target.join("wasm32-unknown-unknown/release/guest.wasm")).expect("the guest is built")
    })
}

/// The fixture guest as a component.
pub fn component() -> &'static [u8] {
    static COMPONENT: OnceLock<Vec<u8>> = OnceLock::new();
    COMPONENT.get_or_init(|| capstan_runtime::package::package(core_module()).expect("it packages"))
}

pub fn engine() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(|| {
        Engine::new(EngineConfig { slots: 8, slots_per_tenant: 4, ..EngineConfig::in_process() }).expect("an engine")
    })
}

pub fn module() -> &'static Module {
    static MODULE: OnceLock<Module> = OnceLock::new();
    MODULE.get_or_init(|| Module::load(engine(), "guest.wasm", component()).expect("it loads"))
}

type Answer = Box<dyn Fn(&WireRequest) -> Result<WireResponse, TransportError> + Send + Sync>;

/// A network that answers by a function and remembers what it was asked.
pub struct Script {
    answer: Answer,
    pub asked: Mutex<Vec<WireRequest>>,
}

#[async_trait]
impl Transport for Script {
    async fn exchange(
        &self,
        _: &EndpointConfig,
        request: WireRequest,
        _: Option<&Fence>,
    ) -> Result<WireResponse, TransportError> {
        tokio::task::yield_now().await;
        let answer = (self.answer)(&request);
        self.asked.lock().unwrap().push(request);
        answer
    }
}

struct Anywhere;

impl Endpoints for Anywhere {
    fn endpoint(&self, _: &str, _: &str) -> Result<Option<Destination>, String> {
        Ok(None)
    }
    fn module_default(&self, _: &str, name: &str) -> Result<Option<Destination>, String> {
        assert_eq!(name, "api");
        Origin::parse("http://cloud.test").map(Destination::of).map(Some)
    }
}

pub fn answer(status: u16, body: &str) -> Result<WireResponse, TransportError> {
    Ok(WireResponse { status, status_text: "Said".into(), headers: vec![], body: body.to_owned().into() })
}

pub fn network(
    answer: impl Fn(&WireRequest) -> Result<WireResponse, TransportError> + Send + Sync + 'static,
) -> (Arc<Gateway>, Arc<Script>) {
    let script = Arc::new(Script { answer: Box::new(answer), asked: Mutex::new(Vec::new()) });
    (Arc::new(Gateway::new(Arc::new(Anywhere), script.clone())), script)
}

/// A turn of an object that tells the guest what to do.
pub fn input(told: &str) -> TurnInput {
    let subject = Object::from_value(json!({
        "apiVersion": "infrastructure.cluster.x-k8s.io/v1", "kind": "GuestMachine",
        "metadata": {"name": "m1", "namespace": "tenant", "generation": 3}, "spec": {"do": told},
    }));
    let mut input = TurnInput {
        subject: subject.unwrap(),
        now: 1_700_000_000_000,
        owner_key: "owner-1".into(),
        ..TurnInput::default()
    };
    input.cluster.name = "c1".into();
    input
}

pub async fn begin(told: &str, gateway: &Arc<Gateway>) -> Turn {
    module().begin("guest", input(told), gateway).await.expect("a turn")
}

pub async fn call(turn: &mut Turn, call: Call) -> Outcome {
    turn.call(call, BTreeMap::new(), Granted::default(), &no_fence()).await
}

pub fn known(name: &str, part: KnownPart) -> BTreeMap<String, KnownPart> {
    BTreeMap::from([(name.to_owned(), part)])
}
