//! `capstan up`: a management plane on this machine, from nothing to ready.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use capstan_api::{Gvk, Object, ObjectKey};
use capstan_apiserver::{ApiServer, Authentication, Database, Keys, Options, User, server_config};
use capstan_cluster::apply::AfterEffect;
use capstan_cluster::crds;
use capstan_cluster::kinds::builtin;
use capstan_cluster::lease::{Lease, SYSTEM_NAMESPACE};
use capstan_cluster::modules::{EGRESS_POLICY, GROUP, Modules, PROVIDER_MODULE};
use capstan_cluster::runner::{self, Runner};
use capstan_cluster::wire::Wire;

use capstan_runtime::{Engine, EngineConfig};
use capstan_simulator::{Simulator, SimulatorOptions};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::admission::CoreAdmission;
use crate::args::{self, Controllers, Log};
use crate::components::{components, egress_policy, module_object};
use crate::health::{self, Line};
use crate::kinds::ProviderKinds;
use crate::logging;
use crate::manifest::{self, Applied, Document};
use crate::modules::Registry;
use crate::pki::Pki;
use crate::progress::Progress;
use crate::rules::CoreRules;
use crate::state_dir::{self, StateDir};

/// How many objects are worked on at once.
pub const CONCURRENCY: usize = 64;
/// How long the components may take to be loaded before what is applied is applied anyway.
const LOADING: Duration = Duration::from_secs(60);
/// Changes that come within this time are shown together.
const COALESCE: Duration = Duration::from_millis(40);
/// For tests: end the process, as a crash would, after this many effects.
const ABORT_AFTER: &str = "CAPSTAN_ABORT_AFTER_EFFECTS";

/// Serves, applies, waits, goes on serving.
///
/// # Errors
/// When it cannot serve, or what is to be applied is refused.
pub async fn up(options: args::Up, log: Log, started: Instant) -> Result<ExitCode> {
    // What is wrong with the files is told before anything is begun.
    let files = manifest::read(&options.files)?;
    let path = match &options.state_dir {
        Some(path) => path.clone(),
        None => state_dir::default_path()?,
    };
    let mut state = StateDir::take(&path)?;
    logging::to_file(&log, &state.join("log"))?;
    let mut stop = Signals::new()?;
    let plane = tokio::select! {
        plane = Plane::start(&mut state, &options) => plane?,
        () = stop.next() => return Ok(ExitCode::SUCCESS),
    };
    let mut progress = Progress::new(started);
    let outcome = tokio::select! {
        outcome = plane.bring_up(&state, &options, files, &mut progress) => outcome,
        () = stop.next() => Ok(Reached::Stopped),
    };
    progress.end();
    let code = match &outcome {
        Ok(Reached::Ready) => ExitCode::SUCCESS,
        Ok(Reached::Stopped) => ExitCode::SUCCESS,
        Ok(Reached::Stuck(_)) if !options.exit => ExitCode::SUCCESS,
        Ok(Reached::Stuck(_)) | Err(_) => ExitCode::FAILURE,
    };
    match &outcome {
        Ok(Reached::Ready) => say!("Ready in {:.1} s.", started.elapsed().as_secs_f64()),
        Ok(Reached::Stuck(applied)) => {
            say!("Not ready after {} s:", options.wait.as_secs());
            for text in plane.stuck(applied) {
                say!("  {text}");
            }
        }
        Ok(Reached::Stopped) | Err(_) => {}
    }
    match &outcome {
        Ok(Reached::Ready) if !options.exit => {
            next_steps(&state.join("kubeconfig"), true);
            stop.next().await;
        }
        Ok(Reached::Stuck(applied)) if !options.exit => {
            next_steps(&state.join("kubeconfig"), false);
            tokio::select! {
                () = plane.ready(applied) => {
                    say!("Ready in {:.1} s.", started.elapsed().as_secs_f64());
                    stop.next().await;
                }
                () = stop.next() => {}
            }
        }
        _ => {}
    }
    if !options.exit {
        say!("Stopping.");
    }
    tokio::select! {
        () = plane.stop() => {}
        () = stop.next() => eprintln!("capstan: stopped at once; nothing is lost"),
    }
    outcome.map(|_| code)
}

/// How far what was applied has come.
enum Reached {
    /// All is ready.
    Ready,
    /// The wait is over.
    Stuck(Vec<ObjectKey>),
    /// Somebody stopped it.
    Stopped,
}

fn next_steps(kubeconfig: &Path, ready: bool) {
    if ready {
        say!("\nType next, in another terminal:\n");
    } else {
        say!("\nIt goes on trying. Look at it from another terminal:\n");
    }
    say!("    export KUBECONFIG={}", kubeconfig.display());
    say!("    kubectl get cluster,machines\n");
    say!("Serving until Ctrl-C.");
}

/// SIGINT and SIGTERM.
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).context("listen for SIGINT")?,
            terminate: signal(SignalKind::terminate()).context("listen for SIGTERM")?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Everything that runs.
struct Plane {
    runner: Runner,
    simulator: Simulator,
    database: Database,
    server: ApiServer,
    shutdown: CancellationToken,
    registry: Arc<Registry>,
    /// The ProviderModules that were made here.
    modules: Vec<String>,
}

impl Plane {
    async fn start(state: &mut StateDir, options: &args::Up) -> Result<Self> {
        let listener = listen(options.port).await?;
        let port = listener.local_addr().context("find the API server's port")?.port();
        let pki = Pki::load(state)?;
        let database = match encryption_keys(&options.encryption_key_files)? {
            Some(keys) => Database::open_encrypted(&state.join(state_dir::OBJECTS), keys)?,
            None => Database::open(&state.join(state_dir::OBJECTS))?,
        };
        let kinds = ProviderKinds::default();
        let server = ApiServer::new(Options {
            store: database.store("management")?,
            authentication: Authentication::ClientCertificates {
                ca: vec![pki.authority_der.clone()],
                bootstrap_tokens: false,
            },
            admission: vec![Arc::new(CoreAdmission), Arc::new(kinds.clone())],
            conversion: vec![Arc::new(kinds.clone())],
            token_secret: Some(pki.token_secret.clone()),
            ..Options::default()
        })?;
        let shutdown = CancellationToken::new();
        server.background(shutdown.clone());
        let tls = server_config(
            vec![pki.serving.clone()],
            pki.serving_key.clone_key(),
            std::slice::from_ref(&pki.authority_der),
        )
        .context("set up TLS")?;
        tokio::spawn({
            let (server, shutdown) = (server.clone(), shutdown.clone());
            async move {
                if let Err(error) = server.serve_tls(listener, tls, shutdown).await {
                    tracing::error!(%error, "the API server's listener failed");
                }
            }
        });
        pki.write_kubeconfig(&state.join("kubeconfig"), port)?;

        let client = kube::Client::new(server.service(User::admin("capstan")).without_managed_fields(), "default");
        let wire = Wire::new(client.clone());
        for namespace in ["default", SYSTEM_NAMESPACE] {
            ensure_namespace(&wire, namespace).await?;
        }
        let core: Vec<Object> = capstan_api::crds().into_iter().filter_map(Object::from_value).collect();
        crds::install(&wire, &core).await.map_err(|error| anyhow::anyhow!(error))?;

        let simulator = start_simulator(state).await?;
        let mut config = EngineConfig::new(state.directory("cache")?).context("find the running program")?;
        config.threads = config.threads.max(2);
        config.recordings = Some(state.join("recordings"));
        let registry = Registry::new(Engine::new(config)?, options.record.as_deref().map(recording).transpose()?);
        kinds.ask(&registry);
        let all = [
            Controllers::Core,
            Controllers::Infrastructure,
            Controllers::Bootstrap,
            Controllers::ControlPlane,
            Controllers::Ipam,
        ];
        let lease = Lease::start(wire.clone(), "capstan", &state.kept.identity);
        let runner = Runner::start(runner::Options {
            client,
            rules: Arc::new(CoreRules::new(registry.clone(), all)),
            providers: registry.clone(),
            modules: Some(registry.clone()),
            egress: registry.endpoints(),
            lease: Some(lease.clone()),
            concurrency: CONCURRENCY,
            after_effect: abort_after_effects()?,
        });
        registry.read_from(runner.management());
        runner.kinds_served(&[(GROUP.into(), PROVIDER_MODULE.into()), (GROUP.into(), EGRESS_POLICY.into())]).await;
        lease.held().await;
        // Known before the first turn, whichever event comes first.
        let policy = egress_policy(simulator.address());
        manifest::ensure(runner.management(), &policy).await?;
        registry.egress_policy(policy.name(), Some(&policy)).await;
        let mut modules = Vec::new();
        for file in components(options.providers.as_deref())? {
            let module = module_object(&file, simulator.address())?;
            manifest::ensure(runner.management(), &module).await?;
            modules.push(module.name().to_owned());
        }
        Ok(Self { runner, simulator, database, server, shutdown, registry, modules })
    }

    /// Applies and waits.
    async fn bring_up(
        &self,
        state: &StateDir,
        options: &args::Up,
        files: Vec<Document>,
        progress: &mut Progress,
    ) -> Result<Reached> {
        let deadline = tokio::time::Instant::now() + options.wait;
        progress.say("loading provider components");
        self.wait_for_modules(progress).await;
        let record = state.join(state_dir::APPLIED);
        let mut documents = files;
        let mut first = true;
        if options.files.is_empty() {
            documents = manifest::quickstart()?;
            first = !Applied::load(&record)?.knows(&documents);
        }
        progress.say("applying");
        let applied = if first {
            manifest::apply(self.runner.management(), &mut documents, &record).await?
        } else {
            // Resumed: what a person has changed or deleted since then stays as it is.
            self.still_there(&documents).await
        };
        progress.say("waiting for all to be ready");
        let show = |lines: &[Line]| progress.show(lines);
        Ok(match tokio::time::timeout_at(deadline, self.wait_ready(&applied, show)).await {
            Ok(()) => Reached::Ready,
            Err(_) => Reached::Stuck(applied),
        })
    }

    /// Waits until all is ready, without a word.
    async fn ready(&self, applied: &[ObjectKey]) {
        self.wait_ready(applied, |_| {}).await;
    }

    /// What keeps the whole from being ready.
    fn stuck(&self, applied: &[ObjectKey]) -> Vec<String> {
        let mirror = self.runner.management();
        health::stuck(mirror, &health::tree(mirror, applied))
    }

    /// The documents' objects that exist.
    async fn still_there(&self, documents: &[Document]) -> Vec<ObjectKey> {
        let mirror = self.runner.management();
        let mut found = Vec::new();
        for document in documents {
            let mut key = document.object.key();
            if let Ok(definition) = mirror.definition(&key.group, &key.kind) {
                if definition.resource.namespaced && key.namespace.is_empty() {
                    key.namespace = "default".into();
                }
                if let Ok(Some(_)) = mirror.wire().get(&definition.resource, &key.namespace, &key.name).await {
                    found.push(key);
                }
            }
        }
        found
    }

    /// Waits until every in-tree module was looked at; tells which could not be loaded.
    async fn wait_for_modules(&self, progress: &Progress) {
        let (mut changes, mut looks) = (self.runner.changes(), self.registry.looks());
        let all_seen = async {
            loop {
                changes.mark_unchanged();
                looks.mark_unchanged();
                if self.modules.iter().all(|name| self.module_condition(name).is_some()) {
                    return;
                }
                tokio::select! {
                    changed = changes.changed() => if changed.is_err() { return },
                    changed = looks.changed() => if changed.is_err() { return },
                }
            }
        };
        let _ = tokio::time::timeout(LOADING, all_seen).await;
        let mut kinds = Vec::new();
        for name in &self.modules {
            match self.module_condition(name) {
                Some((true, _)) => kinds.extend(self.module_kinds(name)),
                Some((false, why)) => progress.tell(&format!("ProviderModule {name} is not loaded: {why}")),
                None => progress.tell(&format!("ProviderModule {name} is still being loaded")),
            }
        }
        let _ = tokio::time::timeout(LOADING, self.runner.kinds_served(&kinds)).await;
    }

    fn module_object(&self, name: &str) -> Option<Arc<Object>> {
        self.runner.management().get(&ObjectKey::new(GROUP, PROVIDER_MODULE, "", name)).ok().flatten()
    }

    /// Whether a module was loaded, and why not; `None` while this process has not looked at it in its present form.
    fn module_condition(&self, name: &str) -> Option<(bool, String)> {
        let object = self.module_object(name)?;
        if object.int_at("/status/observedGeneration") != Some(object.generation())
            || !self.registry.has_looked_at(name)
        {
            return None;
        }
        let word = |condition: &Value, field: &str| {
            condition.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let conditions = object.at("/status/conditions")?.as_array()?;
        let condition = conditions.iter().find(|c| word(c, "type") == "Loaded")?;
        Some((word(condition, "status") == "True", word(condition, "message")))
    }

    fn module_kinds(&self, name: &str) -> Vec<(String, String)> {
        let Some(object) = self.module_object(name) else { return Vec::new() };
        let kinds = object.at("/status/kinds").and_then(Value::as_array).cloned().unwrap_or_default();
        kinds.iter().filter_map(|k| Some((k["group"].as_str()?.to_owned(), k["kind"].as_str()?.to_owned()))).collect()
    }

    /// Shows progress, driven by changes, until all is ready.
    async fn wait_ready(&self, applied: &[ObjectKey], mut show: impl FnMut(&[Line])) {
        let mut changes = self.runner.changes();
        for key in applied {
            self.runner.management().want(&key.group, &key.kind);
        }
        loop {
            changes.mark_unchanged();
            let lines = health::tree(self.runner.management(), applied);
            show(&lines);
            if is_ready(&lines) && lines.iter().all(|line| self.runner.has_looked_at(&line.key)) {
                return;
            }
            if changes.changed().await.is_err() {
                return std::future::pending().await;
            }
            // Changes come in bursts: one look at all of them.
            tokio::time::sleep(COALESCE).await;
        }
    }

    async fn stop(self) {
        let numbers = self.runner.numbers();
        tracing::info!(?numbers, changing_requests = self.server.requests_that_changed(), "stopping");
        self.runner.stop().await;
        self.simulator.shutdown().await;
        self.shutdown.cancel();
        let database = self.database;
        let _ = tokio::task::spawn_blocking(move || database.close()).await;
    }
}

/// Opens a recording, to be added to.
///
/// # Errors
/// When it cannot be written.
pub fn recording(path: &Path) -> Result<std::fs::File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut options = std::fs::OpenOptions::new();
    let opened = options.create(true).append(true).mode(0o600).open(path);
    opened.with_context(|| format!("cannot write the recording {}", path.display()))
}

/// The keys of these files, if there are any.
fn encryption_keys(files: &[PathBuf]) -> Result<Option<Keys>> {
    use base64::Engine as _;
    use std::os::unix::fs::PermissionsExt as _;
    let keys = files.iter().map(|file| -> Result<Vec<u8>> {
        let read = || format!("cannot read the encryption key {}", file.display());
        let mode = std::fs::metadata(file).with_context(read)?.permissions().mode();
        if mode & 0o077 != 0 {
            bail!("others may read the encryption key {0}: chmod 600 {0}", file.display());
        }
        let text = std::fs::read_to_string(file).with_context(read)?;
        let bytes = base64::prelude::BASE64_STANDARD.decode(text.trim()).ok().filter(|bytes| bytes.len() == 32);
        bytes.with_context(|| {
            format!(
                "{} is no key of 32 bytes in base64: make one with `head -c 32 /dev/urandom | base64`",
                file.display()
            )
        })
    });
    let keys: Vec<Vec<u8>> = keys.collect::<Result<_>>()?;
    Ok(Keys::new(&keys))
}

fn is_ready(lines: &[Line]) -> bool {
    lines.iter().all(|line| line.ready || !line.counts)
}

async fn listen(port: u16) -> Result<TcpListener> {
    match TcpListener::bind(("127.0.0.1", port)).await {
        Ok(listener) => Ok(listener),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => bail!(
            "port {port} of 127.0.0.1 is in use; choose another with --port, or stop what listens there (`ss -ltnp | grep {port}`)"
        ),
        Err(error) => {
            Err(error).with_context(|| format!("cannot listen on 127.0.0.1:{port}; choose another port with --port"))
        }
    }
}

/// Makes a namespace, if it is not there.
///
/// # Errors
/// When the API server refuses.
pub async fn ensure_namespace(wire: &Wire, name: &str) -> Result<()> {
    let resource = builtin("", "Namespace").context("Namespace is not in the table of kinds")?;
    if wire.get(&resource, "", name).await?.is_some() {
        return Ok(());
    }
    match wire.create(&resource, &Object::new(&Gvk::new("", "v1", "Namespace"), "", name)).await {
        Ok(_) => Ok(()),
        Err(error) if error.already_exists() => Ok(()),
        Err(error) => Err(error).with_context(|| format!("make namespace {name}")),
    }
}

/// Starts the simulated cloud on the port it had before, else on a free one, which is kept.
async fn start_simulator(state: &mut StateDir) -> Result<Simulator> {
    let directory = state.directory("simulator")?;
    let options = |port: u16| SimulatorOptions {
        listen: SocketAddr::from(([127, 0, 0, 1], port)),
        state: Some(directory.clone()),
        ..SimulatorOptions::default()
    };
    let simulator = match state.kept.simulator_port {
        Some(port) => match Simulator::start(options(port)).await {
            Ok(simulator) => simulator,
            Err(capstan_simulator::SimulatorError::Listen { .. }) => {
                tracing::warn!(port, "the simulated cloud's port is in use by another program; taking a free one");
                Simulator::start(options(0)).await?
            }
            Err(error) => return Err(error.into()),
        },
        None => Simulator::start(options(0)).await?,
    };
    let port = simulator.address().port();
    if state.kept.simulator_port != Some(port) {
        state.kept.simulator_port = Some(port);
        state.keep()?;
    }
    Ok(simulator)
}

/// `capstan simulator serve`.
///
/// # Errors
/// When it cannot listen or its state cannot be used.
pub async fn serve_simulator(listen: SocketAddr, state_dir: Option<PathBuf>) -> Result<()> {
    if !listen.ip().is_loopback() {
        bail!("the simulated cloud asks nobody who they are, so it listens on loopback only; {listen} is not");
    }
    let mut stop = Signals::new()?;
    let simulator =
        Simulator::start(SimulatorOptions { listen, state: state_dir, ..SimulatorOptions::default() }).await?;
    say!("The simulated cloud is at http://{}. Serving until Ctrl-C.", simulator.address());
    stop.next().await;
    simulator.shutdown().await;
    Ok(())
}

/// For tests: what ends this process, if the environment asks for it.
///
/// # Errors
/// When the environment's value is no number.
pub fn abort_after_effects() -> Result<Option<AfterEffect>> {
    let Ok(text) = std::env::var(ABORT_AFTER) else { return Ok(None) };
    let limit: u64 = text.parse().with_context(|| format!("{ABORT_AFTER} must be a number"))?;
    let effects = AtomicU64::new(0);
    Ok(Some(Arc::new(move || {
        if effects.fetch_add(1, Ordering::SeqCst) + 1 >= limit {
            tracing::error!(limit, "ending the process as a crash would, because {ABORT_AFTER} asks for it");
            std::process::abort();
        }
    })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_port_in_use_says_what_to_do() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let error = listen(port).await.unwrap_err().to_string();
        assert!(error.contains("--port") && error.contains(&port.to_string()), "{error}");
    }
}
