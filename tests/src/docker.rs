//! A real Docker Engine: the one that runs, or one that the test starts for itself.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::authority::Signed;
use crate::plane::{free_port, root, skip};

/// An engine; one that was started here ends when this is dropped.
pub struct Engine {
    /// Its socket.
    pub socket: PathBuf,
    daemon: Option<(Child, tempfile::TempDir)>,
    /// The port on loopback where it asks for client certificates.
    tls: Option<u16>,
}

impl Engine {
    /// The running engine, else one of our own; `None` (and a loud word) where `dockerd` is not installed.
    ///
    /// # Errors
    /// When `dockerd` is there and does not come up.
    pub fn find() -> Result<Option<Self>> {
        let socket = PathBuf::from("/var/run/docker.sock");
        if answers(&socket) {
            return Ok(Some(Self { socket, daemon: None, tls: None }));
        }
        Self::own()
    }

    /// One of our own, whether another runs or not; `None` (and a loud word) where `dockerd` is not installed.
    ///
    /// # Errors
    /// When `dockerd` is there and does not come up.
    pub fn own() -> Result<Option<Self>> {
        if Command::new("dockerd").arg("--version").output().is_err() {
            skip("the Docker scenario: no engine answers and dockerd is not installed (apt-get install docker.io)")?;
            return Ok(None);
        }
        let dir = tempfile::tempdir()?;
        let socket = dir.path().join("docker.sock");
        let mut engine = Self { socket, daemon: None, tls: None };
        engine.daemon = Some((engine.spawn(dir.path())?, dir));
        Ok(Some(engine))
    }

    /// Starts `dockerd` and waits until it answers.
    fn spawn(&self, dir: &Path) -> Result<Child> {
        let log = std::fs::File::options().create(true).append(true).open(dir.join("log"))?;
        let mut command = Command::new("dockerd");
        if let Some(port) = self.tls {
            command.arg("--tlsverify").arg("--host").arg(format!("tcp://127.0.0.1:{port}"));
            for name in ["tlscacert", "tlscert", "tlskey"] {
                command.arg(format!("--{name}")).arg(dir.join(name));
            }
        }
        let mut daemon = command
            // Its default network would be another engine's as well.
            .args(["--bridge", "none", "--data-root"])
            .arg(dir.join("data"))
            .arg("--exec-root")
            .arg(dir.join("exec"))
            .arg("--pidfile")
            .arg(dir.join("pid"))
            .arg("--host")
            .arg(format!("unix://{}", self.socket.display()))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("start dockerd")?;
        let deadline = Instant::now() + Duration::from_secs(60);
        while !answers(&self.socket) {
            let ended = daemon.try_wait()?;
            if ended.is_some() || Instant::now() > deadline {
                let log = std::fs::read_to_string(dir.join("log")).unwrap_or_default();
                let _ = daemon.kill();
                bail!("dockerd does not come up: {}", log.lines().rev().take(20).collect::<Vec<_>>().join("\n"));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(daemon)
    }

    /// Whether it was started here, so that it may be stopped.
    pub fn is_own(&self) -> bool {
        self.daemon.is_some()
    }

    /// Stops it, where it was started here: its containers stop with it.
    pub fn stop(&mut self) {
        if let Some((daemon, _)) = &mut self.daemon
            && matches!(daemon.try_wait(), Ok(None))
        {
            // SIGTERM lets it unmount and stop its containers; SIGKILL would leave them.
            let _ = Command::new("kill").arg(daemon.id().to_string()).status();
            let _ = daemon.wait();
        }
    }

    /// Starts it again.
    ///
    /// # Errors
    /// When it does not come up, or was not started here.
    pub fn start(&mut self) -> Result<()> {
        let dir = self.daemon.as_ref().map(|(_, dir)| dir.path().to_owned()).context("not an engine of our own")?;
        let child = self.spawn(&dir)?;
        if let Some((daemon, _)) = &mut self.daemon {
            *daemon = child;
        }
        Ok(())
    }

    /// Starts it again, and now it answers on loopback too, as this server and to clients of this authority (PEM) only; the port.
    ///
    /// # Errors
    /// When it does not come up, or was not started here.
    pub fn serve_tls(&mut self, server: &Signed, clients: &str) -> Result<u16> {
        let dir = self.daemon.as_ref().map(|(_, dir)| dir.path().to_owned()).context("not an engine of our own")?;
        let port = *self.tls.get_or_insert_with(free_port);
        for (name, pem) in [("tlscacert", clients), ("tlscert", &server.certificate), ("tlskey", &server.key)] {
            std::fs::write(dir.join(name), pem)?;
        }
        self.stop();
        self.start()?;
        Ok(port)
    }

    /// Runs the docker client against it.
    ///
    /// # Errors
    /// When the client fails; the error carries what it said.
    pub fn docker(&self, args: &[&str]) -> Result<String> {
        let output =
            Command::new("docker").arg("-H").arg(format!("unix://{}", self.socket.display())).args(args).output()?;
        ensure!(output.status.success(), "docker {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Builds the images of `examples/docker.yaml`.
    ///
    /// # Errors
    /// When the build script fails.
    pub fn build_images(&self) -> Result<()> {
        let kubeadm = crate::plane::binary().with_file_name("kubeadm-stand-in");
        let output = Command::new(root().join("tests/node-image/build.sh")).arg(&kubeadm).arg(&self.socket).output()?;
        ensure!(output.status.success(), "node-image/build.sh: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop();
    }
}

fn answers(socket: &Path) -> bool {
    Command::new("docker")
        .arg("-H")
        .arg(format!("unix://{}", socket.display()))
        .arg("version")
        .output()
        .is_ok_and(|output| output.status.success())
}
