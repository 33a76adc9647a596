//! Runs a built component as the host does, against scripted HTTP.
//!
//! The component is loaded by the real runtime and sends its requests through the real gateway, so limits, contract
//! checks, splicing of secrets and the record of effects are those of production; only the network is a script
//! ([`Cloud`]). A test is a [`Turn`]: what the guest is told, the calls, and what was asked of the cloud.
//!
//! ```ignore
//! let kit = Testkit::load("mine.wasm".as_ref())?;
//! let cloud = Cloud::new(|asked| match (asked.method, asked.target.as_str()) {
//!     ("GET", "/v1/machines/m") => Answer::status(404),
//!     _ => Answer::status(500),
//! });
//! let mut turn = kit.turn(&cloud, input).await?;
//! let outcome = turn.call(Call::Observe("machine".into())).await;
//! ```
//!
//! Against a real server, a [`FaultProxy`] stands before it and misbehaves by a script ([`fault`]), and
//! [`conformance`] tries every fault at every exchange of an object's life, and the other rules of the contract.

mod cloud;
pub mod conformance;
pub mod fault;
mod proxy;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use capstan_api::Object;
use capstan_core::contract::{Granted, KnownPart, Observed, Presence};
use capstan_core::turn::{Call, Fence, Outcome, Reply, TurnInput};
use capstan_gateway::Gateway;
use capstan_runtime::{Engine, EngineConfig, Module};
use serde_json::{Value, json};

pub use cloud::{Answer, Asked, Cloud};
pub use proxy::{Exchange, FaultProxy, Schedule, Upstream};

/// A loaded component.
pub struct Testkit {
    module: Module,
}

impl Testkit {
    /// Loads a component file; a core module is packaged first.
    ///
    /// # Errors
    /// When the host would refuse it; the message names the file.
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::from_bytes(&path.display().to_string(), &bytes)
    }

    /// [`Testkit::load`] for bytes; `name` says in errors where they came from.
    ///
    /// # Errors
    /// As [`Testkit::load`].
    pub fn from_bytes(name: &str, bytes: &[u8]) -> anyhow::Result<Self> {
        use capstan_runtime::package::{PackageError, package};
        let packaged = match package(bytes) {
            Ok(component) => component,
            Err(PackageError::AlreadyComponent) => bytes.to_vec(),
            Err(error) => return Err(error).with_context(|| name.to_owned()),
        };
        let engine = Engine::new(EngineConfig { slots: 4, slots_per_tenant: 4, ..EngineConfig::in_process() })?;
        Ok(Self { module: Module::load(&engine, name, &packaged)? })
    }

    /// The module, for what the kit does not wrap.
    pub fn module(&self) -> &Module {
        &self.module
    }

    /// An input about an object of one of the component's kinds, with an owner key and a cluster's name; the
    /// test fills in the rest.
    pub fn input(&self, kind: &str, name: &str, spec: Value) -> TurnInput {
        let manifest = self.module.manifest();
        let version = self.module.crds().iter().find(|crd| crd.kind == kind).and_then(|crd| {
            let storage = crd.versions.iter().find(|version| version.storage)?;
            Some(storage.name.clone())
        });
        let api_version = format!("{}/{}", manifest.kinds.group, version.unwrap_or_else(|| "v1".to_owned()));
        let subject = json!({
            "apiVersion": api_version, "kind": kind,
            "metadata": {"name": name, "namespace": "default", "uid": format!("uid-of-{name}"), "generation": 1},
            "spec": spec,
        });
        let mut input = TurnInput {
            subject: Object::from_value(subject).unwrap_or_default(),
            now: 1_800_000_000_000,
            owner_key: format!("owner-of-{name}"),
            ..TurnInput::default()
        };
        input.cluster.name = "cluster".to_owned();
        input
    }

    /// Begins a turn.
    ///
    /// # Errors
    /// When the component cannot be instantiated.
    pub async fn turn(&self, cloud: &Arc<Cloud>, input: TurnInput) -> anyhow::Result<Turn> {
        let gateway = Arc::new(Gateway::new(cloud.clone(), cloud.clone()));
        let name = self.module.manifest().name.clone();
        let turn = self.module.begin(&name, input, &gateway).await.map_err(anyhow::Error::msg)?;
        Ok(Turn { turn, known: BTreeMap::new(), granted: Granted::default(), may_change: true })
    }
}

/// A turn of the component, with what the host would have on record.
pub struct Turn {
    turn: capstan_runtime::Turn,
    /// The parts on record; an observed part's id and state are filled in as the host does.
    pub known: BTreeMap<String, KnownPart>,
    /// What has been granted.
    pub granted: Granted,
    /// Whether the host may change anything (it holds the Lease).
    pub may_change: bool,
}

impl Turn {
    /// Calls the guest.
    pub async fn call(&mut self, call: Call) -> Outcome {
        let may_change = self.may_change;
        let fence: Fence = Arc::new(move || may_change);
        let observed = match &call {
            Call::Observe(part) => Some(part.clone()),
            _ => None,
        };
        let outcome = self.turn.call(call, self.known.clone(), self.granted.clone(), &fence).await;
        if let (Some(part), Ok(Reply::Presence(Presence::Present(Observed { id, state, .. })))) =
            (observed, &outcome.reply)
        {
            let known = self.known.entry(part).or_default();
            known.id = Some(id.clone());
            known.state = Some(state.clone());
            known.confirmed = true;
        }
        outcome
    }

    /// Puts an intent on record, as the host does before `create`: the choice of `identify`.
    ///
    /// # Errors
    /// When `identify` does not return a choice.
    pub async fn identify(&mut self, part: &str) -> anyhow::Result<()> {
        let outcome = self.call(Call::Identify { part: part.to_owned(), reserved: Vec::new() }).await;
        let Ok(Reply::Choice(choice)) = outcome.reply else {
            anyhow::bail!("identify {part}: {:?}", outcome.reply);
        };
        let known = self.known.entry(part.to_owned()).or_default();
        known.attempt += 1;
        known.idempotency_key = format!("{part}-{}", known.attempt);
        known.id = choice.id;
        known.frozen = Some(choice.frozen);
        Ok(())
    }
}
