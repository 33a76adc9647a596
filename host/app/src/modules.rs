//! The provider modules of this process: loaded from what ProviderModules name, told where Endpoints are.
//!
//! A module that cannot be loaded says so in its status and disturbs no other; what served before under its name
//! goes on. Turns begun before a change end on the component they began with.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use capstan_api::capstan::ProviderModuleSpec;
use capstan_api::provider_crds::provider_crds;
use capstan_api::{Object, time};
use capstan_cluster::mirror::Mirror;
use capstan_cluster::modules::{Installer, Looked, Modules};
use capstan_cluster::providers::{Providers, Turn};
use capstan_core::contract::{Granted, KnownPart, Served};
use capstan_core::turn::{Call, Outcome, TurnInput};
use capstan_gateway::Gateway;
use capstan_runtime::{Engine, Module};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::endpoints::{self, Table, spec};
use crate::webhooks::{Webhooks, has_several_versions};

/// How often a module that could not be loaded is tried again, so that a repaired file needs no touch.
const TRY_AGAIN: Duration = Duration::from_secs(10);

struct Loaded {
    module: Arc<Module>,
    /// Its definitions, as they were installed.
    crds: Vec<Object>,
    /// Kind and what is said of it.
    served: Vec<(String, Served)>,
    status: Value,
}

/// What was last made of a ProviderModule.
struct Seen {
    uid: String,
    generation: i64,
    problem: Option<String>,
}

#[derive(Default)]
struct State {
    loaded: HashMap<String, Loaded>,
    seen: HashMap<String, Seen>,
}

/// The modules of this process.
pub struct Registry {
    engine: Engine,
    gateway: Arc<Gateway>,
    table: Arc<Table>,
    state: RwLock<State>,
    changes: watch::Sender<u64>,
    /// Counts up when a ProviderModule was looked at.
    looked: watch::Sender<u64>,
    /// Set where the API server is not ours: who converts for it, if anybody does.
    converter: OnceLock<Option<Arc<Webhooks>>>,
}

impl Registry {
    /// None loaded yet. Each exchange of providers is also written to the recording, where there is one.
    pub fn new(engine: Engine, recording: Option<File>) -> Arc<Self> {
        let table = Arc::new(Table::default());
        let mut gateway = Gateway::new(table.clone(), Arc::new(capstan_gateway::Network::new()));
        if let Some(file) = recording {
            let file = Mutex::new(file);
            gateway = gateway.recorded_by(move |recorded| {
                let line = format!("{}\n", recorded.to_line());
                let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
                if let Err(error) = file.write_all(line.as_bytes()) {
                    tracing::warn!(%error, "the recording cannot be written");
                }
            });
        }
        let gateway = Arc::new(gateway);
        Arc::new(Self {
            engine,
            gateway,
            table,
            state: RwLock::default(),
            changes: watch::Sender::new(0),
            looked: watch::Sender::new(0),
            converter: OnceLock::new(),
        })
    }

    /// From here on Endpoints, EgressPolicies, Secrets and identities are read from these caches.
    pub fn read_from(&self, management: &Mirror) {
        self.table.read_from(management);
    }

    /// The API server is not ours: these webhooks convert for it, or nobody does.
    pub fn convert_by(&self, webhooks: Option<Arc<Webhooks>>) {
        let _ = self.converter.set(webhooks);
    }

    /// The definitions of all that is loaded.
    pub fn definitions(&self) -> Vec<Object> {
        self.read(|state| state.loaded.values().flat_map(|loaded| loaded.crds.iter().cloned()).collect())
    }

    /// Says in definitions with several versions who converts between them.
    fn with_conversion(&self, crds: &mut [Object]) -> Result<(), String> {
        let Some(converter) = self.converter.get() else { return Ok(()) };
        for crd in crds.iter_mut().filter(|crd| has_several_versions(crd)) {
            let Some(webhooks) = converter else {
                return Err(format!(
                    "{} has several versions, and nobody converts between them: run with --webhook-listen",
                    crd.name()
                ));
            };
            crd.set("/spec/conversion", webhooks.conversion());
        }
        Ok(())
    }

    /// What says where endpoints are and what may be reached.
    pub fn endpoints(&self) -> Arc<Table> {
        self.table.clone()
    }

    fn read<T>(&self, read: impl FnOnce(&State) -> T) -> T {
        read(&self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write<T>(&self, write: impl FnOnce(&mut State) -> T) -> T {
        write(&mut self.state.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Counts up when a ProviderModule was looked at.
    pub fn looks(&self) -> watch::Receiver<u64> {
        self.looked.subscribe()
    }

    /// Whether the ProviderModule was looked at by this process.
    pub fn has_looked_at(&self, name: &str) -> bool {
        self.read(|state| state.seen.contains_key(name))
    }

    /// The module that serves a kind, or the kind that a template is of; identities too.
    pub fn module_of(&self, group: &str, kind: &str) -> Option<Arc<Module>> {
        let of_template = kind.strip_suffix("Template").unwrap_or(kind);
        self.read(|state| {
            let serves = |loaded: &&Loaded| {
                let kinds = &loaded.module.manifest().kinds;
                let is = |wanted: &str| loaded.served.iter().any(|(k, of)| k == wanted && of.group == group);
                is(kind) || is(of_template) || kinds.group == group && kinds.identities.iter().any(|k| k == kind)
            };
            state.loaded.values().find(serves).map(|loaded| loaded.module.clone())
        })
    }

    /// Whether a kind has a `…Template` kind.
    pub fn has_template(&self, group: &str, kind: &str) -> bool {
        let of = self.module_of(group, kind);
        of.is_some_and(|module| module.crds().iter().any(|crd| crd.kind == kind && crd.template))
    }

    fn forget_module(&self, name: &str) {
        let gone = self.write(|state| {
            state.seen.remove(name);
            state.loaded.remove(name)
        });
        self.table.set_module(name, None);
        if gone.is_some() {
            tracing::info!(module = name, "unloaded");
            self.changes.send_modify(|n| *n += 1);
        }
    }

    /// Reads, checks, compiles; installs the CRDs; then lets it serve.
    async fn load(&self, name: &str, spec: &ProviderModuleSpec, installer: &dyn Installer) -> Result<(), String> {
        let (engine, path) = (self.engine.clone(), PathBuf::from(&spec.source.file));
        let (module, digest) = tokio::task::spawn_blocking(move || {
            let module = Module::load_file(&engine, &path).map_err(|error| one_line(&error))?;
            let digest = module.digest().to_owned();
            Ok::<_, String>((module, digest))
        })
        .await
        .map_err(|error| format!("loading it failed: {error}"))??;
        let manifest = module.manifest();
        let served = module.served(name);
        let group = manifest.kinds.group.clone();
        self.check_kinds(name, &group, &served)?;
        let mut crds = crds(&module)?;
        self.with_conversion(&mut crds)?;
        let status = loaded_status(&module, &digest, &crds);
        installer.install(&crds).await?;
        tracing::info!(module = name, %digest, "loaded");
        self.write(|state| {
            state.loaded.insert(name.to_owned(), Loaded { module: Arc::new(module), crds, served, status });
        });
        self.changes.send_modify(|n| *n += 1);
        Ok(())
    }

    /// No two modules serve one kind.
    fn check_kinds(&self, name: &str, group: &str, served: &[(String, Served)]) -> Result<(), String> {
        self.read(|state| {
            for (other, loaded) in state.loaded.iter().filter(|(other, _)| *other != name) {
                for (kind, of) in &loaded.served {
                    if of.group == group && served.iter().any(|(k, _)| k == kind) {
                        return Err(format!(
                            "kind {kind} of {group} is served by ProviderModule {other} already; delete one of the two"
                        ));
                    }
                }
            }
            Ok(())
        })
    }

    fn module_status(&self, name: &str, object: &Object, problem: Option<&str>) -> Value {
        let mut status =
            self.read(|state| state.loaded.get(name).map(|l| l.status.clone())).unwrap_or_else(|| json!({}));
        let condition = match problem {
            None => condition(object, "Loaded", true, "Loaded", ""),
            Some(problem) => condition(object, "Loaded", false, "NotLoaded", problem),
        };
        if let Some(status) = status.as_object_mut() {
            status.insert("conditions".into(), json!([condition]));
            status.insert("observedGeneration".into(), object.generation().into());
        }
        status
    }
}

/// A refusal as one line: it becomes a condition.
pub fn one_line(text: &impl std::fmt::Display) -> String {
    text.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

fn crds(module: &Module) -> Result<Vec<Object>, String> {
    let manifest = serde_json::to_value(module.manifest()).map_err(|error| format!("its manifest: {error}"))?;
    let section = serde_json::to_value(module.crds()).map_err(|error| format!("its CRDs: {error}"))?;
    let crds = provider_crds(&manifest, &section)
        .map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))?;
    Ok(crds.into_iter().filter_map(Object::from_value).collect())
}

fn loaded_status(module: &Module, digest: &str, crds: &[Object]) -> Value {
    let manifest = module.manifest();
    let kinds: Vec<Value> = crds
        .iter()
        .map(|crd| {
            let versions: Vec<&str> = crd
                .at("/spec/versions")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
                .filter_map(|v| v.get("name").and_then(Value::as_str))
                .collect();
            json!({"group": crd.str_at("/spec/group"), "kind": crd.str_at("/spec/names/kind"), "versions": versions})
        })
        .collect();
    json!({
        "digest": digest,
        "name": manifest.name,
        "version": manifest.version,
        "contract": manifest.contract,
        "role": serde_json::to_value(manifest.role).unwrap_or_default(),
        "kinds": kinds,
    })
}

/// A condition; the time stays while the status does.
fn condition(object: &Object, kind: &str, ok: bool, reason: &str, message: &str) -> Value {
    let status = if ok { "True" } else { "False" };
    let before = object
        .at("/status/conditions")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .find(|c| c.get("type").and_then(Value::as_str) == Some(kind))
        .filter(|c| c.get("status").and_then(Value::as_str) == Some(status))
        .and_then(|c| c.get("lastTransitionTime").cloned());
    let since = before.unwrap_or_else(|| time::rfc3339(capstan_cluster::now_ms()).into());
    json!({
        "type": kind, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": since, "observedGeneration": object.generation(),
    })
}

#[async_trait]
impl Modules for Registry {
    async fn module(&self, name: &str, module: Option<&Object>, installer: &dyn Installer) -> Looked {
        let Some(object) = module.filter(|object| !object.is_deleting()) else {
            self.forget_module(name);
            return Looked::default();
        };
        let known = self.read(|state| {
            state
                .seen
                .get(name)
                .filter(|seen| seen.uid == object.uid() && seen.generation == object.generation())
                .map(|seen| seen.problem.clone())
        });
        // What was loaded is not loaded again; what failed is.
        let problem = match known {
            Some(None) => None,
            _ => {
                let outcome = match spec::<ProviderModuleSpec>(object) {
                    Ok(spec) => {
                        self.table.set_module(name, Some(&spec));
                        self.load(name, &spec, installer).await
                    }
                    Err(problem) => Err(problem),
                };
                let problem = outcome.err();
                if let Some(problem) = &problem {
                    tracing::warn!(module = name, %problem, "not loaded");
                }
                let seen =
                    Seen { uid: object.uid().to_owned(), generation: object.generation(), problem: problem.clone() };
                self.write(|state| state.seen.insert(name.to_owned(), seen));
                self.looked.send_modify(|n| *n += 1);
                problem
            }
        };
        Looked {
            status: Some(self.module_status(name, object, problem.as_deref())),
            look_again: problem.is_some().then_some(TRY_AGAIN),
        }
    }

    async fn endpoint(&self, namespace: &str, _name: &str, endpoint: Option<&Object>) -> Looked {
        accepted(endpoint, |object| spec(object).and_then(|spec| endpoints::of_endpoint(namespace, &spec).map(drop)))
    }

    async fn egress_policy(&self, _name: &str, policy: Option<&Object>) -> Looked {
        accepted(policy, |object| spec(object).and_then(|spec| endpoints::of_policy(&spec).map(drop)))
    }
}

/// The status of an Endpoint or EgressPolicy.
fn accepted(object: Option<&Object>, read: impl Fn(&Object) -> Result<(), String>) -> Looked {
    let status = object.filter(|object| !object.is_deleting()).map(|object| {
        let condition = match read(object) {
            Ok(()) => condition(object, "Accepted", true, "Accepted", ""),
            Err(problem) => condition(object, "Accepted", false, "NotAccepted", &problem),
        };
        json!({"conditions": [condition], "observedGeneration": object.generation()})
    });
    Looked { status, look_again: None }
}

#[async_trait]
impl Providers for Registry {
    fn served(&self, group: &str, kind: &str) -> Option<Served> {
        self.read(|state| {
            state
                .loaded
                .values()
                .flat_map(|loaded| &loaded.served)
                .find(|(k, served)| k == kind && served.group == group)
                .map(|(_, served)| served.clone())
        })
    }

    fn kinds(&self) -> Vec<(String, String)> {
        self.read(|state| {
            state
                .loaded
                .values()
                .flat_map(|loaded| &loaded.served)
                .map(|(kind, served)| (served.group.clone(), kind.clone()))
                .collect()
        })
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    async fn begin(&self, module: &str, input: TurnInput) -> Result<Box<dyn Turn>, String> {
        let loaded = self
            .read(|state| state.loaded.get(module).map(|loaded| loaded.module.clone()))
            .ok_or_else(|| format!("ProviderModule {module} is not loaded"))?;
        let turn = loaded.begin(module, input, &self.gateway).await?;
        Ok(Box::new(GuestTurn(turn)))
    }
}

/// A turn of the runtime, as the runner drives it.
struct GuestTurn(capstan_runtime::Turn);

#[async_trait]
impl Turn for GuestTurn {
    async fn call(
        &mut self,
        call: Call,
        known: BTreeMap<String, KnownPart>,
        granted: Granted,
        may_change: &(dyn Fn() -> bool + Sync),
    ) -> Outcome {
        self.0.call(call, known, granted, may_change).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_keeps_its_time_while_its_status_stays() {
        let mut object = Object::from_value(json!({"metadata": {"name": "m", "generation": 2}})).unwrap();
        let first = condition(&object, "Loaded", false, "NotLoaded", "a");
        object.set(
            "/status/conditions",
            json!([{
            "type": "Loaded", "status": "False", "lastTransitionTime": "2020-01-01T00:00:00Z"}]),
        );
        let second = condition(&object, "Loaded", false, "NotLoaded", "b");
        assert_eq!(second["lastTransitionTime"], "2020-01-01T00:00:00Z");
        assert_ne!(first["lastTransitionTime"], second["lastTransitionTime"]);
        assert_ne!(condition(&object, "Loaded", true, "Loaded", "")["lastTransitionTime"], "2020-01-01T00:00:00Z");
    }
}
