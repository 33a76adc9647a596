//! What `capstan up` brings along and `capstan run` finds: an API server (a real one), the simulated cloud, provider modules
//! and a policy of what they may reach.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use capstan_simulator::{Simulator, SimulatorOptions};
use serde_json::{Value, json};

use crate::http::runtime;
use crate::plane::{kubectl, kubectl_output, root};
use crate::real::{RealServer, programs};

/// How long the kinds and components may take to be there.
const PATIENCE: Duration = Duration::from_secs(120);

/// The one of a state directory: it outlives the processes that run on it, as the real ones do.
pub struct Stage {
    dir: PathBuf,
    server: RealServer,
    cloud: Simulator,
    done: Mutex<bool>,
}

static STAGES: Mutex<Vec<Arc<Stage>>> = Mutex::new(Vec::new());

impl Stage {
    /// The one that belongs to the state directory. Those of others go when nobody uses them.
    ///
    /// # Errors
    /// When the servers cannot be started.
    pub fn of(dir: &Path) -> Result<Arc<Stage>> {
        let mut stages = STAGES.lock().unwrap_or_else(PoisonError::into_inner);
        stages.retain(|stage| stage.dir == dir || Arc::strong_count(stage) > 1);
        if let Some(stage) = stages.iter().find(|stage| stage.dir == dir) {
            return Ok(stage.clone());
        }
        let programs = programs().context("the real API server is not built: tests/setup.sh builds it")?;
        std::fs::create_dir_all(dir)?;
        let server = RealServer::start(&programs)?;
        std::fs::copy(server.kubeconfig(), dir.join("kubeconfig"))?;
        let _ = rustls::crypto::ring::default_provider().install_default();
        let options = SimulatorOptions { state: Some(dir.join("simulator")), ..SimulatorOptions::default() };
        let cloud = runtime().block_on(Simulator::start(options))?;
        let stage = Arc::new(Stage { dir: dir.to_owned(), server, cloud, done: Mutex::new(false) });
        stages.push(stage.clone());
        Ok(stage)
    }

    /// Where the simulated cloud answers.
    pub fn cloud(&self) -> String {
        format!("http://{}", self.cloud.address())
    }

    /// A kubeconfig of the API server's administrator.
    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.join("kubeconfig")
    }

    /// What the API server has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.server.dir.join("kube-apiserver.log")).unwrap_or_default()
    }

    /// Applies what `capstan up` would, as an operator does: a policy, the modules, then the files. Once; `alive` says whether
    /// the process that is to load the modules runs.
    ///
    /// # Errors
    /// When something is refused or the modules do not come to be loaded.
    pub fn set_up(&self, files: &[PathBuf], docker: Option<&str>, mut alive: impl FnMut() -> Result<()>) -> Result<()> {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        if *done {
            return Ok(());
        }
        let deadline = std::time::Instant::now() + PATIENCE;
        let mut wait = |args: &[&str]| -> Result<()> {
            loop {
                alive()?;
                let output = kubectl_output(&self.kubeconfig(), args)?;
                if output.status.success() {
                    return Ok(());
                }
                let said = String::from_utf8_lossy(&output.stderr);
                ensure!(std::time::Instant::now() < deadline, "kubectl {args:?} does not succeed: {said}");
                // What is waited for does not exist yet, so that there is nothing to watch.
                std::thread::sleep(Duration::from_millis(300));
            }
        };
        for kind in ["providermodules", "egresspolicies"] {
            wait(&["wait", "--for=condition=Established", &format!("crd/{kind}.capstan.dev"), "--timeout=10s"])?;
        }
        let list = json!({"apiVersion": "v1", "kind": "List", "items": self.modules(docker)?});
        let file = self.dir.join("modules.json");
        std::fs::write(&file, list.to_string())?;
        kubectl(&self.kubeconfig(), &["apply", "-f", &file.display().to_string()])?;
        wait(&["wait", "--for=condition=Loaded", "providermodules", "--all", "--timeout=10s"])?;
        for file in files {
            kubectl(&self.kubeconfig(), &["apply", "-f", &file.display().to_string()])?;
        }
        *done = true;
        Ok(())
    }

    /// The policy and the modules, each with what it has to reach on this computer.
    fn modules(&self, docker: Option<&str>) -> Result<Vec<Value>> {
        let socket = docker.unwrap_or("unix:///var/run/docker.sock").trim_start_matches("unix://");
        let mut all = vec![json!({
            "apiVersion": "capstan.dev/v1alpha1", "kind": "EgressPolicy", "metadata": {"name": "capstan-up"},
            "spec": {"addresses": ["127.0.0.0/8", "::1/128", "172.16.0.0/12"], "unixSockets": [socket]},
        })];
        let directory =
            std::fs::canonicalize(root().join("target/providers")).context("no components; run `make build`")?;
        for entry in std::fs::read_dir(&directory)? {
            let file = entry?.path();
            let Some(name) = file.file_stem().and_then(|name| name.to_str()) else { continue };
            let mut spec = json!({"source": {"file": file}});
            match name {
                "simulated" => spec["endpoints"] = json!({"api": {"url": self.cloud()}}),
                "docker" => {
                    let engine = json!({"unixSocket": socket});
                    spec["endpoints"] = json!({"engine": engine, "pull": engine});
                    let pull = json!({"endpoint": "pull", "path": "/*/images/create"});
                    spec["grants"] = json!({"readOperations": [pull]});
                }
                _ => {}
            }
            all.push(json!({"apiVersion": "capstan.dev/v1alpha1", "kind": "ProviderModule",
                "metadata": {"name": name}, "spec": spec}));
        }
        if all.len() < 2 {
            bail!("{} has no components; run `make build`", directory.display());
        }
        Ok(all)
    }
}
