//! A management plane started as its user starts it: `capstan up` in a state directory of its own, or `capstan run` on a
//! real API server.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::stage::Stage;

/// The repository's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The binary under test: `$CAPSTAN_BIN`, else what `make build` leaves.
pub fn binary() -> PathBuf {
    std::env::var_os("CAPSTAN_BIN").map_or_else(|| root().join("target/release/capstan"), PathBuf::from)
}

/// Says loudly that something is not tested here, and why; the test runner shows what was left out at its end.
///
/// # Errors
/// When the list of what was left out cannot be written.
pub fn skip(what: &str) -> Result<()> {
    eprintln!("SKIPPED: {what}");
    let skips = root().join("target/test-skips");
    let known = std::fs::read_to_string(&skips).unwrap_or_default();
    std::fs::create_dir_all(root().join("target"))?;
    Ok(std::fs::write(&skips, format!("{known}{what}\n"))?)
}

/// A port of loopback that nobody listens on now.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).map(|a| a.port()).expect("a free port of loopback")
}

/// What a management plane stands on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackEnd {
    /// `capstan up` and its own API server.
    #[default]
    Embedded,
    /// `capstan run` and kube-apiserver with etcd.
    Real,
}

/// How a management plane is started.
pub struct Up {
    /// What it stands on.
    pub back_end: BackEnd,
    /// What is applied at the first start; empty: the quickstart.
    pub files: Vec<PathBuf>,
    /// `--exit`, of `capstan up`.
    pub exit: bool,
    /// `--wait` of `capstan up`, in Go's words for a duration.
    pub wait: &'static str,
    /// Additional environment.
    pub env: Vec<(String, String)>,
    /// `--record`.
    pub record: Option<PathBuf>,
}

impl Default for Up {
    fn default() -> Self {
        Self {
            back_end: BackEnd::default(),
            files: Vec::new(),
            exit: false,
            wait: "120s",
            env: Vec::new(),
            record: None,
        }
    }
}

impl Up {
    /// The quickstart on this back end.
    pub fn on(back_end: BackEnd) -> Self {
        Self { back_end, ..Self::default() }
    }
}

/// A running management plane; it is killed when this is dropped.
pub struct Plane {
    child: Option<Child>,
    lines: mpsc::Receiver<String>,
    stage: Option<Arc<Stage>>,
    /// The state directory.
    pub dir: PathBuf,
    /// The port that it was given: of the API server that it serves, or of its webhooks.
    pub port: u16,
    /// What it has printed so far.
    pub printed: Vec<String>,
}

impl Plane {
    /// Starts it in `dir` on `port`. On a real API server, which is started with the first one of a directory, what is applied
    /// is applied when this returns.
    ///
    /// # Errors
    /// When the binary cannot be started, or something is refused.
    pub fn start(dir: &Path, port: u16, up: &Up) -> Result<Self> {
        let stage = match up.back_end {
            BackEnd::Embedded => None,
            BackEnd::Real => Some(Stage::of(dir)?),
        };
        let mut command = Command::new(binary());
        if stage.is_some() {
            command.arg("run").arg("--state-dir").arg(dir).arg("--kubeconfig").arg(dir.join("kubeconfig"));
            command.args(["--identity", "the-only-one", "--webhook-listen", &format!("127.0.0.1:{port}")]);
        } else {
            command.args(["up", "--port", &port.to_string(), "--wait", up.wait, "--state-dir"]).arg(dir);
            for file in &up.files {
                command.arg("-f").arg(file);
            }
            if up.exit {
                command.arg("--exit");
            }
        }
        if let Some(file) = &up.record {
            command.arg("--record").arg(file);
        }
        command.envs(up.env.iter().cloned()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("start {}", binary().display()))?;
        let (sender, lines) = mpsc::channel();
        let streams: [Option<Box<dyn Read + Send>>; 2] =
            [child.stdout.take().map(|s| Box::new(s) as _), child.stderr.take().map(|s| Box::new(s) as _)];
        for stream in streams.into_iter().flatten() {
            let sender = sender.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    if sender.send(line).is_err() {
                        return;
                    }
                }
            });
        }
        let mut plane = Self { child: Some(child), lines, stage, dir: dir.to_owned(), port, printed: Vec::new() };
        plane.set_up(up).with_context(|| plane.output())?;
        Ok(plane)
    }

    /// On a real API server: does what `capstan up` does by itself.
    fn set_up(&mut self, up: &Up) -> Result<()> {
        let Some(stage) = self.stage.clone() else { return Ok(()) };
        let quickstart = [root().join("examples/quickstart.yaml")];
        let files = if up.files.is_empty() { &quickstart } else { up.files.as_slice() };
        let docker = up.env.iter().find(|(name, _)| name == "DOCKER_HOST").map(|(_, value)| value.as_str());
        stage.set_up(files, docker, || self.lives())
    }

    /// Whether its process runs.
    fn lives(&mut self) -> Result<()> {
        match self.child.as_mut().context("it was killed")?.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("its process has ended: {status}"),
        }
    }

    /// Reads what is printed until a line contains `text`.
    ///
    /// # Errors
    /// When the process ends or the time is over before that; the error carries what was printed.
    pub fn wait_for_line(&mut self, text: &str, within: Duration) -> Result<String> {
        let deadline = Instant::now() + within;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    self.printed.push(line.clone());
                    if line.contains(text) {
                        return Ok(line);
                    }
                }
                Err(why) => bail!("no line with {text:?} ({why}); printed so far:\n{}", self.printed.join("\n")),
            }
        }
    }

    /// Waits until what it was to apply is applied.
    ///
    /// # Errors
    /// As [`Plane::wait_for_line`].
    pub fn wait_applied(&mut self, within: Duration) -> Result<()> {
        match self.stage {
            None => self.wait_for_line("waiting for all to be ready", within).map(drop),
            Some(_) => Ok(()),
        }
    }

    /// Waits until all that was applied is ready.
    ///
    /// # Errors
    /// When it ends or the time is over before that.
    pub fn wait_ready(&mut self, within: Duration) -> Result<()> {
        if self.stage.is_none() {
            return self.wait_for_line("Ready in", within).map(drop);
        }
        let deadline = Instant::now() + within;
        loop {
            self.lives().with_context(|| self.output())?;
            if self.all_is_well()? {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "not ready within {within:?}:\n{}\n{}", self.state(), self.output());
            // The question is about several kinds at once, so it is asked anew rather than watched.
            std::thread::sleep(Duration::from_millis(150));
        }
    }

    /// Whether every Cluster is available, and all its Machines run.
    fn all_is_well(&self) -> Result<bool> {
        let all = self.items(&["clusters,machines,machinedeployments", "-A"])?;
        Ok(all.iter().all(|object| {
            let conditions = object["status"]["conditions"].as_array();
            let has = |kind: &str| conditions.into_iter().flatten().any(|c| c["type"] == kind && c["status"] == "True");
            match object["kind"].as_str() {
                Some("Machine") => object["status"]["phase"] == "Running" && has("Available"),
                Some("MachineDeployment") => object["status"]["availableReplicas"] == object["spec"]["replicas"],
                _ => has("Available"),
            }
        }))
    }

    /// What there is, for messages.
    fn state(&self) -> String {
        let kinds = "clusters,machines,machinesets,machinedeployments,kubeadmcontrolplanes";
        self.kubectl(&["get", kinds, "-A"]).unwrap_or_else(|error| error.to_string())
    }

    /// Waits until the process ends by itself; its exit code.
    ///
    /// # Errors
    /// When it does not end within the time.
    pub fn wait_exit(&mut self, within: Duration) -> Result<i32> {
        let deadline = Instant::now() + within;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => self.printed.push(line),
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(mpsc::RecvTimeoutError::Timeout) => bail!("still running; printed:\n{}", self.printed.join("\n")),
            }
        }
        let status = self.child.as_mut().context("already ended")?.wait()?;
        self.child = None;
        Ok(status.code().unwrap_or(-1))
    }

    /// Kills it with SIGKILL, as a crash would.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Everything printed so far, for messages of tests.
    pub fn output(&mut self) -> String {
        self.printed.extend(self.lines.try_iter());
        self.printed.join("\n")
    }

    /// The kubeconfig it wrote.
    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.join("kubeconfig")
    }

    /// Runs kubectl against it.
    ///
    /// # Errors
    /// When kubectl fails; the error carries what it said.
    pub fn kubectl<S: AsRef<OsStr>>(&self, args: &[S]) -> Result<String> {
        kubectl(&self.kubeconfig(), args)
    }

    /// `kubectl get … -o json`.
    ///
    /// # Errors
    /// As [`Plane::kubectl`].
    pub fn get(&self, args: &[&str]) -> Result<Value> {
        let mut all = vec!["get"];
        all.extend(args);
        all.extend(["-o", "json"]);
        Ok(serde_json::from_str(&self.kubectl(&all)?)?)
    }

    /// The items of `kubectl get … -o json`.
    ///
    /// # Errors
    /// As [`Plane::kubectl`].
    pub fn items(&self, args: &[&str]) -> Result<Vec<Value>> {
        Ok(self.get(args)?["items"].as_array().cloned().unwrap_or_default())
    }

    /// A kubeconfig for a workload cluster, taken from its Secret and written beside the management one.
    ///
    /// # Errors
    /// When the Secret is not there or is no kubeconfig.
    pub fn workload_kubeconfig(&self, cluster: &str) -> Result<PathBuf> {
        let secret = self.get(&["secret", &format!("{cluster}-kubeconfig"), "-n", "default"])?;
        let value = secret["data"]["value"].as_str().context("Secret without data.value")?;
        let path = self.dir.join(format!("{cluster}.kubeconfig"));
        std::fs::write(&path, decode_base64(value)?)?;
        Ok(path)
    }

    /// Runs `capstan simulator …` for the simulated cloud of this plane.
    ///
    /// # Errors
    /// When the command fails; the error carries what it said.
    pub fn simulator(&self, args: &[&str]) -> Result<String> {
        let mut command = Command::new(binary());
        command.arg("simulator").args(args);
        match &self.stage {
            None => command.arg("--state-dir").arg(&self.dir),
            Some(stage) => command.arg("--address").arg(stage.cloud()),
        };
        let output = command.output()?;
        ensure!(output.status.success(), "capstan simulator {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Names of the machines that exist in its simulated cloud.
    ///
    /// # Errors
    /// As [`Plane::simulator`].
    pub fn simulated_machines(&self) -> Result<Vec<String>> {
        let listed: Value = serde_json::from_str(&self.simulator(&["list", "-o", "json"])?)?;
        let machines = listed["machines"].as_array().context("no list of machines")?;
        Ok(machines.iter().filter_map(|m| m["name"].as_str()).map(str::to_owned).collect())
    }

    /// Asks again, each time something of `watched` changes, until `done` says yes.
    ///
    /// # Errors
    /// When the time is over; the error carries what `describe` says then.
    pub fn until(&self, within: Duration, what: &str, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
        let deadline = Instant::now() + within;
        loop {
            if done()? {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("not within {within:?}: {what}\n{}", self.state());
            }
            // The question is about several kinds at once, so it is asked anew rather than watched.
            std::thread::sleep(Duration::from_millis(150));
        }
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs kubectl with a kubeconfig.
///
/// # Errors
/// When kubectl fails; the error carries what it said.
pub fn kubectl<S: AsRef<OsStr>>(kubeconfig: &Path, args: &[S]) -> Result<String> {
    let output = kubectl_output(kubeconfig, args)?;
    ensure!(
        output.status.success(),
        "kubectl {} failed: {}",
        args.iter().map(|a| a.as_ref().to_string_lossy()).collect::<Vec<_>>().join(" "),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?)
}

/// Runs kubectl with a kubeconfig and returns all it said, whether it succeeded or not.
///
/// # Errors
/// When kubectl cannot be started.
pub fn kubectl_output<S: AsRef<OsStr>>(kubeconfig: &Path, args: &[S]) -> Result<Output> {
    Command::new("kubectl")
        .env("KUBECONFIG", kubeconfig)
        .env("HOME", kubeconfig.parent().unwrap_or(Path::new("/")))
        .args(args)
        .stdin(Stdio::null())
        .output()
        .context("start kubectl")
}

fn decode_base64(text: &str) -> Result<Vec<u8>> {
    use base64::Engine as _;
    Ok(base64::engine::general_purpose::STANDARD.decode(text)?)
}
