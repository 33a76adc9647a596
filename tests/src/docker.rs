//! A real Docker Engine: the one that runs, or one that the test starts for itself.

use std::fs::File;
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
    own: Option<Own>,
}

/// What belongs to an engine that was started here.
struct Own {
    daemon: Child,
    dir: tempfile::TempDir,
    net: Net,
    /// Engines in one network take turns: they know nothing of each other's bridges and rules.
    _turn: Option<File>,
    /// The port on loopback where it asks for client certificates.
    tls: Option<u16>,
}

/// Which network an engine of our own is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Net {
    /// This computer's: addresses of its containers lead to them.
    Shared,
    /// One of its own, with which all that it made of bridges goes, and without rules: their making is half of what a container
    /// costs, and nobody passes them.
    Apart,
}

impl Engine {
    /// The running engine, else one of our own; `None` (and a loud word) where `dockerd` is not installed.
    ///
    /// # Errors
    /// When `dockerd` is there and does not come up.
    pub fn find() -> Result<Option<Self>> {
        let socket = PathBuf::from("/var/run/docker.sock");
        if answers(&socket) {
            return Ok(Some(Self { socket, own: None }));
        }
        Self::own(Net::Shared)
    }

    /// One of our own, which may be stopped, once no other test has one in the same network; `None` (and a loud word) where `dockerd` is not installed.
    ///
    /// # Errors
    /// When `dockerd` is there and does not come up.
    pub fn own(net: Net) -> Result<Option<Self>> {
        if Command::new("dockerd").arg("--version").output().is_err() {
            skip("what needs a Docker engine: dockerd is not installed (apt-get install docker.io)")?;
            return Ok(None);
        }
        let turn = match net {
            Net::Shared => Some(File::create(root().join("target/engine.lock"))?),
            Net::Apart => None,
        };
        turn.as_ref().map(File::lock).transpose()?;
        let dir = tempfile::tempdir()?;
        let socket = dir.path().join("docker.sock");
        let daemon = spawn(dir.path(), &socket, net, None)?;
        Ok(Some(Self { socket, own: Some(Own { daemon, dir, net, _turn: turn, tls: None }) }))
    }

    /// Whether it was started here, so that it may be stopped.
    pub fn is_own(&self) -> bool {
        self.own.is_some()
    }

    /// Stops it, where it was started here: its containers stop with it, unless it serves TLS.
    pub fn stop(&mut self) {
        if let Some(own) = &mut self.own
            && matches!(own.daemon.try_wait(), Ok(None))
        {
            // SIGTERM lets it unmount and stop its containers; SIGKILL would leave them.
            let _ = Command::new("kill").arg(own.daemon.id().to_string()).status();
            let _ = own.daemon.wait();
        }
    }

    /// Starts it again.
    ///
    /// # Errors
    /// When it does not come up, or was not started here.
    pub fn start(&mut self) -> Result<()> {
        let own = self.own.as_mut().context("not an engine of our own")?;
        own.daemon = spawn(own.dir.path(), &self.socket, own.net, own.tls)?;
        Ok(())
    }

    /// Starts it again, and now it answers on loopback too, as this server and to clients of this authority (PEM) only; the port.
    /// From then on its containers go on when it stops.
    ///
    /// # Errors
    /// When it does not come up, or was not started here.
    pub fn serve_tls(&mut self, server: &Signed, clients: &str) -> Result<u16> {
        self.stop();
        let own = self.own.as_mut().context("not an engine of our own")?;
        let port = *own.tls.get_or_insert_with(free_port);
        for (name, pem) in [("tlscacert", clients), ("tlscert", &server.certificate), ("tlskey", &server.key)] {
            std::fs::write(own.dir.path().join(name), pem)?;
        }
        self.start()?;
        Ok(port)
    }

    /// The docker client, to be given its arguments.
    pub fn client(&self) -> Command {
        let mut client = Command::new("docker");
        client.arg("-H").arg(format!("unix://{}", self.socket.display()));
        client
    }

    /// Runs the docker client against it.
    ///
    /// # Errors
    /// When the client fails; the error carries what it said.
    pub fn docker(&self, args: &[&str]) -> Result<String> {
        let output = self.client().args(args).output()?;
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
        if self.own.as_ref().is_some_and(|own| own.tls.is_some()) {
            let all = self.docker(&["ps", "-aq"]).unwrap_or_default();
            let _ = self.client().args(["rm", "-f", "-v"]).args(all.lines()).output();
        }
        self.stop();
    }
}

/// Starts `dockerd` and waits until it answers.
fn spawn(dir: &Path, socket: &Path, net: Net, tls: Option<u16>) -> Result<Child> {
    let log = File::options().create(true).append(true).open(dir.join("log"))?;
    let mut command = match net {
        Net::Shared => Command::new("dockerd"),
        Net::Apart => {
            let mut command = Command::new("unshare");
            command.args(["--net", "dockerd", "--iptables=false"]);
            command
        }
    };
    if let Some(port) = tls {
        command.args(["--live-restore", "--tlsverify", "--host"]).arg(format!("tcp://127.0.0.1:{port}"));
        for name in ["tlscacert", "tlscert", "tlskey"] {
            command.arg(format!("--{name}")).arg(dir.join(name));
        }
    }
    // Its default network would be another engine's as well.
    command.args(["--bridge", "none"]);
    for (option, file) in [("--data-root", "data"), ("--exec-root", "exec"), ("--pidfile", "pid")] {
        command.arg(option).arg(dir.join(file));
    }
    command.arg("--host").arg(format!("unix://{}", socket.display())).stdout(Stdio::null()).stderr(log);
    let mut daemon = command.spawn().context("start dockerd")?;
    let deadline = Instant::now() + Duration::from_secs(60);
    while !answers(socket) {
        let ended = daemon.try_wait()?;
        if ended.is_some() || Instant::now() > deadline {
            let log = std::fs::read_to_string(dir.join("log")).unwrap_or_default();
            let _ = daemon.kill();
            bail!("dockerd does not come up: {}", log.lines().rev().take(20).collect::<Vec<_>>().join("\n"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(daemon)
}

fn answers(socket: &Path) -> bool {
    Command::new("docker")
        .arg("-H")
        .arg(format!("unix://{}", socket.display()))
        .arg("version")
        .output()
        .is_ok_and(|output| output.status.success())
}
