//! One of several `capstan run` on the same API server.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::plane::{binary, free_port};

/// A running replica; it is killed when this is dropped.
pub struct Replica {
    child: Child,
    /// Who it is in the Lease.
    pub identity: String,
    /// What it logs.
    pub log: PathBuf,
    /// Where it answers probes, as `127.0.0.1:<port>`.
    pub probes: String,
}

impl Replica {
    /// Starts one whose files are in `dir`, with a kubeconfig, as somebody in the Lease.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(dir: &Path, kubeconfig: &Path, identity: &str) -> Result<Self> {
        let mut command = Command::new(binary());
        let probes = format!("127.0.0.1:{}", free_port());
        command.arg("run").arg("--kubeconfig").arg(kubeconfig);
        command.arg("--state-dir").arg(dir.join(identity)).args(["--identity", identity, "--health-listen", &probes]);
        Self::spawn(command, dir, identity, probes)
    }

    /// Starts a command that becomes `capstan run …`, which answers probes there.
    ///
    /// # Errors
    /// As [`Replica::start`].
    pub fn spawn(mut command: Command, dir: &Path, identity: &str, probes: String) -> Result<Self> {
        let log = dir.join(format!("{identity}.log"));
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log)?)
            .spawn()
            .with_context(|| format!("start {}", binary().display()))?;
        Ok(Self { child, identity: identity.to_owned(), log, probes })
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal, such as `STOP`.
    ///
    /// # Errors
    /// When it is gone.
    pub fn signal(&self, name: &str) -> Result<()> {
        let sent = Command::new("kill").arg(format!("-{name}")).arg(self.pid().to_string()).status()?;
        ensure!(sent.success(), "kill -{name} {}: {sent}", self.pid());
        Ok(())
    }

    /// What it has logged so far.
    #[must_use]
    pub fn logged(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until it has logged this so many times.
    ///
    /// # Errors
    /// When it has not in time, or has ended.
    pub fn wait_logged(&mut self, text: &str, times: usize, within: Duration) -> Result<()> {
        let deadline = Instant::now() + within;
        while self.logged().matches(text).count() < times {
            let ended = self.child.try_wait()?;
            ensure!(ended.is_none(), "{} has ended ({ended:?}):\n{}", self.identity, self.logged());
            ensure!(Instant::now() < deadline, "{} does not say {text:?}:\n{}", self.identity, self.logged());
            // A file that grows tells nobody.
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// Waits until its probe of this path succeeds.
    ///
    /// # Errors
    /// When it does not in time, or has ended.
    pub fn wait_probe(&mut self, path: &str, within: Duration) -> Result<()> {
        let deadline = Instant::now() + within;
        let client = crate::http::Client::new()?;
        let url = format!("http://{}{path}", self.probes);
        while let Err(error) = client.bytes("GET", &url, None) {
            let ended = self.child.try_wait()?;
            ensure!(ended.is_none(), "{} has ended ({ended:?}):\n{}", self.identity, self.logged());
            ensure!(Instant::now() < deadline, "{}: {error:#}\n{}", self.identity, self.logged());
            // A probe is asked again, as a kubelet does.
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
