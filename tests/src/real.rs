//! A real kube-apiserver with etcd and kube-controller-manager on loopback: what the embedded server is compared with, and
//! the other back end of the scenarios.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::authority::{Authority, Signed, kubeconfig};
use crate::plane::{free_port, root};

/// How long the servers may take to be ready: five seconds on an idle machine.
const READY: Duration = Duration::from_secs(180);

/// Keeps the servers as long as its standard input is open: so they end with the test's process, however that ends.
/// `$1` is the directory of the instance, `$2` that of the programs; the arguments of each are in files beside.
const KEEPER: &str = r#"
cd "$1" || exit 1
run() { program=$1; set --; while IFS= read -r line; do set -- "$@" "$line"; done <"$program.args"; exec "$BIN/$program" "$@"; }
BIN=$2
(run etcd) </dev/null >etcd.log 2>&1 & etcd=$!
(until [ -e past ]; do sleep 0.1; done; run kube-apiserver) </dev/null >kube-apiserver.log 2>&1 & apiserver=$!
(until [ -e ready ]; do sleep 0.1; done; run kube-controller-manager) </dev/null >kube-controller-manager.log 2>&1 & manager=$!
read -r _
kill -9 $etcd $apiserver $manager 2>/dev/null
wait
cd / && rm -rf "$1"
"#;

/// The servers, running. They end, and their files go, when this is dropped or the process ends.
pub struct RealServer {
    keeper: Child,
    leash: Option<ChildStdin>,
    /// Where they keep their files (logs: `kube-apiserver.log`, …).
    pub dir: PathBuf,
    /// `https://127.0.0.1:<port>`.
    pub url: String,
    /// Where etcd answers, as `127.0.0.1:<port>` (HTTP).
    pub etcd: String,
    /// Who signs its certificates, and those of its clients.
    pub authority: Authority,
    /// A client that may do everything (`system:masters`).
    pub admin: Signed,
}

/// The directory with the servers' programs. None, and a loud line, when they are not built: `tests/setup.sh` builds them.
#[must_use]
pub fn programs() -> Option<PathBuf> {
    let output = Command::new(root().join("tests/kube/build.sh")).arg("--find").stderr(Stdio::inherit()).output();
    let found = output.ok().filter(|output| output.status.success());
    let path = found.and_then(|output| String::from_utf8(output.stdout).ok()).map(|path| PathBuf::from(path.trim()));
    if path.is_none() {
        eprintln!("SKIPPED: what is compared with a real kube-apiserver: run tests/setup.sh, which builds one");
    }
    path
}

impl RealServer {
    /// Starts the servers and waits until they are ready.
    ///
    /// # Errors
    /// When one cannot be started or is not ready in time; the error ends with what it logged last.
    pub fn start(programs: &Path) -> Result<RealServer> {
        let dir = tempfile::Builder::new().prefix("capstan-real-").tempdir()?.keep();
        let authority = Authority::new()?;
        let admin = authority.sign("admin", &["system:masters"])?;
        let serving = authority.sign("kube-apiserver", &[])?;
        let write = |name: &str, text: &str| std::fs::write(dir.join(name), text);
        write("ca.crt", &authority.certificate)?;
        write("tls.crt", &serving.certificate)?;
        write("tls.key", &serving.key)?;
        let [client, peer, port, manager] = [free_port(), free_port(), free_port(), free_port()];
        let url = format!("https://127.0.0.1:{port}");
        write("kubeconfig", &kubeconfig(&url, &authority.certificate, &admin))?;
        let arguments = |name: &str, arguments: &[String]| write(&format!("{name}.args"), &arguments.join("\n"));
        arguments(
            "etcd",
            &[
                "--data-dir=etcd".to_owned(),
                format!("--listen-client-urls=http://127.0.0.1:{client}"),
                format!("--advertise-client-urls=http://127.0.0.1:{client}"),
                format!("--listen-peer-urls=http://127.0.0.1:{peer}"),
                format!("--initial-advertise-peer-urls=http://127.0.0.1:{peer}"),
                format!("--initial-cluster=default=http://127.0.0.1:{peer}"),
                // It is thrown away with the test.
                "--unsafe-no-fsync=true\n".to_owned(),
            ],
        )?;
        arguments(
            "kube-apiserver",
            &[
                format!("--etcd-servers=http://127.0.0.1:{client}"),
                "--bind-address=127.0.0.1".to_owned(),
                // Nobody goes there (RFC 5737), but without it an address is looked for, and a network of a test has no default route.
                "--advertise-address=192.0.2.1".to_owned(),
                format!("--secure-port={port}"),
                "--tls-cert-file=tls.crt".to_owned(),
                "--tls-private-key-file=tls.key".to_owned(),
                "--client-ca-file=ca.crt".to_owned(),
                "--service-account-key-file=tls.crt".to_owned(),
                "--service-account-signing-key-file=tls.key".to_owned(),
                "--service-account-issuer=https://localhost".to_owned(),
                "--authorization-mode=RBAC".to_owned(),
                "--enable-bootstrap-token-auth=true".to_owned(),
                "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
                "--disable-admission-plugins=ServiceAccount".to_owned(),
                "--allow-privileged=true\n".to_owned(),
            ],
        )?;
        arguments(
            "kube-controller-manager",
            &[
                "--kubeconfig=kubeconfig".to_owned(),
                "--authentication-kubeconfig=kubeconfig".to_owned(),
                "--authorization-kubeconfig=kubeconfig".to_owned(),
                "--controllers=garbage-collector-controller,namespace-controller,serviceaccount-controller".to_owned(),
                "--leader-elect=false".to_owned(),
                "--bind-address=127.0.0.1".to_owned(),
                format!("--secure-port={manager}"),
                "--service-account-private-key-file=tls.key".to_owned(),
                "--root-ca-file=ca.crt\n".to_owned(),
            ],
        )?;
        let mut keeper = Command::new("sh")
            .args(["-c", KEEPER, "keeper"])
            .args([&dir, programs])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .context("start the real servers")?;
        let leash = keeper.stdin.take();
        let etcd = format!("127.0.0.1:{client}");
        let server = RealServer { keeper, leash, dir, url, etcd, authority, admin };
        server.make_a_past()?;
        std::fs::write(server.dir.join("past"), "")?;
        server.wait_ready()?;
        std::fs::write(server.dir.join("ready"), "")?;
        Ok(server)
    }

    /// A kubeconfig of the administrator.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.join("kubeconfig")
    }

    /// Forgets the past up to the revision, as etcd's compaction does.
    ///
    /// # Errors
    /// When etcd refuses.
    pub fn compact(&self, revision: u64) -> Result<()> {
        let body = format!("{{\"revision\":\"{revision}\",\"physical\":true}}");
        let answer = self.ask_etcd("/v3/kv/compaction", &body)?;
        ensure!(answer.starts_with("HTTP/1.1 200"), "etcd does not compact: {answer}");
        Ok(())
    }

    /// Lets some revisions go by and be forgotten before the API server starts: as behind every server that is older than
    /// its test, the first revisions are gone.
    fn make_a_past(&self) -> Result<()> {
        let deadline = Instant::now() + READY;
        for _ in 0..20 {
            // "past" and "x" in base64.
            while let Err(error) = self.ask_etcd("/v3/kv/put", "{\"key\":\"cGFzdA==\",\"value\":\"eA==\"}") {
                ensure!(Instant::now() < deadline, "etcd does not answer: {error}");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        self.compact(15)
    }

    fn ask_etcd(&self, path: &str, body: &str) -> Result<String> {
        let address: SocketAddr = self.etcd.parse()?;
        let mut socket = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
        socket.set_read_timeout(Some(Duration::from_secs(30)))?;
        let (host, length) = (&self.etcd, body.len());
        write!(
            socket,
            "POST {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
        )?;
        socket.write_all(body.as_bytes())?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer)?;
        Ok(answer)
    }

    fn wait_ready(&self) -> Result<()> {
        let deadline = Instant::now() + READY;
        loop {
            let probe = Command::new("kubectl")
                .env("KUBECONFIG", self.kubeconfig())
                .env("HOME", &self.dir)
                .args(["get", "--raw", "/readyz"])
                .stdin(Stdio::null())
                .output()
                .context("start kubectl")?;
            if probe.status.success() {
                return Ok(());
            }
            let log = std::fs::read_to_string(self.dir.join("kube-apiserver.log")).unwrap_or_default();
            if Instant::now() > deadline || log.contains("command failed") {
                let last: Vec<&str> = log.lines().rev().take(20).collect();
                bail!(
                    "the real API server is not ready after {READY:?}: {}; its log ends:\n{}",
                    String::from_utf8_lossy(&probe.stderr),
                    last.into_iter().rev().collect::<Vec<_>>().join("\n")
                );
            }
            // There is no event for "another process begins to answer".
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

impl Drop for RealServer {
    fn drop(&mut self) {
        drop(self.leash.take());
        let _ = self.keeper.wait();
    }
}
