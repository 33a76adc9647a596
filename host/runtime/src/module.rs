//! A loaded component.

use std::path::Path;
use std::sync::Arc;

use capstan_core::contract::Served;
use capstan_core::turn::TurnInput;
use capstan_gateway::{Declared, Gateway, Replay};
use sha2::{Digest, Sha256};
use wasmtime::component::Component;

use crate::compile::compile;
use crate::component::{LoadError, Refusal, inspect_bytes};
use crate::engine::{Engine, Inner};
use crate::limits::Granted;
use crate::manifest::{Crd, Manifest};
use crate::recording::Recording;
use crate::turn::Turn;
use crate::v0_1;

/// A component that was checked and compiled. Cheap to clone.
#[derive(Clone)]
pub struct Module {
    pub(crate) inner: Arc<Loaded>,
}

pub(crate) struct Loaded {
    pub(crate) engine: Arc<Inner>,
    pub(crate) code: Code,
    pub(crate) declared: Vec<Declared>,
    pub(crate) limits: Granted,
    manifest: Manifest,
    crds: Vec<Crd>,
    pub(crate) digest: String,
}

/// Compiled code, bound through the adapter of the contract version that it speaks.
pub(crate) enum Code {
    /// Version 0.1.
    V0_1(v0_1::Pre),
}

impl Loaded {
    /// The provider's name for itself.
    pub(crate) fn name(&self) -> &str {
        &self.manifest.name
    }
}

impl Module {
    /// Loads a component file. Blocks while it is compiled, for a second or so where the cache does not have it.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub fn load_file(engine: &Engine, path: &Path) -> Result<Self, LoadError> {
        let name = path.display().to_string();
        match std::fs::read(path) {
            Ok(bytes) => Self::load(engine, &name, &bytes),
            Err(error) => Err(LoadError { name, refusal: error.into() }),
        }
    }

    /// Loads a component; `name` says in errors where it came from. Blocks as [`Module::load_file`] does.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub fn load(engine: &Engine, name: &str, component: &[u8]) -> Result<Self, LoadError> {
        let refused = |refusal| LoadError { name: name.to_owned(), refusal };
        // All that can be known without its code is checked before its code is touched.
        let inspection = inspect_bytes(component).map_err(refused)?;
        let inner = engine.inner.clone();
        let compiled = native(&inner, component).map_err(|error| refused(Refusal::Compile(error)))?;
        let instance =
            inner.v0_1.instantiate_pre(&compiled).map_err(|error| refused(Refusal::Types(format!("{error:#}"))))?;
        let limits = Granted::new(&inspection.manifest.limits, &inner.config.maxima);
        Ok(Self {
            inner: Arc::new(Loaded {
                engine: inner,
                code: Code::V0_1(v0_1::Pre::new(instance)),
                declared: inspection.manifest.declared(),
                limits,
                manifest: inspection.manifest,
                crds: inspection.crds,
                digest: digest(component),
            }),
        })
    }

    /// Its manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.inner.manifest
    }

    /// Its kinds.
    pub fn crds(&self) -> &[Crd] {
        &self.inner.crds
    }

    /// `sha256:…` of the component.
    pub fn digest(&self) -> &str {
        &self.inner.digest
    }

    /// What one turn may use: the manifest's wishes within the operator's maxima.
    pub fn limits(&self) -> Granted {
        self.inner.limits
    }

    /// Kind and what is said of it, for each kind that it serves as the ProviderModule of this name.
    pub fn served(&self, module: &str) -> Vec<(String, Served)> {
        self.inner.manifest.served(module)
    }

    /// A fresh instance for one turn about `input.subject`. Waits for a place where many turns are under way.
    /// `module` is the name of the ProviderModule.
    ///
    /// # Errors
    /// A sentence for a person when the component cannot be instantiated.
    pub async fn begin(&self, module: &str, input: TurnInput, gateway: &Arc<Gateway>) -> Result<Turn, String> {
        Turn::begin(self.inner.clone(), module, input, gateway).await
    }
}

impl Module {
    /// Runs a recorded turn again, with the recorded answers: the first difference, if there is one.
    ///
    /// # Errors
    /// When the turn cannot be begun.
    pub async fn replay(&self, recording: &Recording) -> Result<Option<String>, String> {
        let mut declared = self.inner.declared.clone();
        // The answers are recorded: nobody's credential is looked for.
        declared.iter_mut().for_each(|endpoint| endpoint.credentials.clear());
        let answers = Arc::new(Replay::of(recording.exchanges()));
        let gateway = Arc::new(Gateway::new(answers.clone(), answers));
        let input = recording.input.clone();
        let mut turn = Turn::begin_with(self.inner.clone(), &recording.module, input, &gateway, &declared).await?;
        turn.start_recording();
        for (number, call) in recording.calls.iter().enumerate() {
            let again = turn.call_again(call).await;
            if let Some(difference) = call.difference(&again) {
                return Ok(Some(format!("call {} of {}, {difference}", number + 1, recording.calls.len())));
            }
        }
        Ok(None)
    }
}

/// Native code of a component: from the cache, or compiled and kept there.
fn native(engine: &Inner, component: &[u8]) -> Result<Component, String> {
    if let Some(cache) = &engine.cache
        && let Some(code) = cache.get(component)
    {
        match trusted(&engine.wasmtime, &code) {
            Ok(loaded) => return Ok(loaded),
            Err(error) => tracing::warn!(%error, "compiled code in the cache cannot be used: compiling again"),
        }
    }
    let code = compile(&engine.config.compiler, component)?;
    let loaded = trusted(&engine.wasmtime, &code)?;
    if let Some(cache) = &engine.cache {
        cache.put(component, &code);
    }
    Ok(loaded)
}

/// Loads native code.
///
/// Called with code that our own compiler has just made, or whose authentication with this installation's key was
/// verified, and with the very bytes for which that holds; never with a file, which could change after the check.
#[allow(unsafe_code)]
fn trusted(engine: &wasmtime::Engine, code: &[u8]) -> Result<Component, String> {
    // SAFETY: `deserialize` asks that the bytes come from `precompile_component`. See above; wasmtime itself checks
    // that version, settings and CPU features are those of this engine.
    unsafe { Component::deserialize(engine, code) }.map_err(|error| format!("{error:#}"))
}

fn digest(component: &[u8]) -> String {
    let hex: String = Sha256::digest(component).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}
