//! The embedded API server as a process of its own, with its state file on the disk.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use capstan_apiserver::{ApiServer, Authentication, Database, Options, server_config};
use capstan_tests::authority::Authority;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio_util::sync::CancellationToken;

/// The running process; it ends with this.
pub struct Process {
    child: Child,
    _dir: tempfile::TempDir,
    /// `https://127.0.0.1:<port>`.
    pub url: String,
    /// Whom clients trust, PEM.
    pub authority: String,
    /// Certificate and key of a client that may do everything, PEM.
    pub identity: String,
}

impl Process {
    /// Starts it.
    pub fn start() -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("capstan-bench-").tempdir()?;
        let authority = Authority::new()?;
        let (serving, admin) = (authority.sign("kube-apiserver", &[])?, authority.sign("admin", &["system:masters"])?);
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text);
        write("ca.crt", &authority.certificate)?;
        write("tls.crt", &serving.certificate)?;
        write("tls.key", &serving.key)?;
        let mut child = Command::new(std::env::current_exe()?)
            .arg("serve")
            .arg(dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("start the embedded server")?;
        let mut url = String::new();
        BufReader::new(child.stdout.take().context("no output")?).read_line(&mut url)?;
        let identity = format!("{}{}", admin.certificate, admin.key);
        let authority = authority.certificate;
        Ok(Self { child, _dir: dir, url: url.trim().to_owned(), authority, identity })
    }

    /// The processes whose memory counts.
    pub fn pids(&self) -> Vec<u32> {
        vec![self.child.id()]
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Is the server, for ever.
pub fn serve(dir: &str) -> Result<()> {
    let dir = PathBuf::from(dir);
    let read = |name: &str| std::fs::read(Path::join(&dir, name));
    let ca = CertificateDer::from_pem_slice(&read("ca.crt")?)?;
    let (chain, key) =
        (vec![CertificateDer::from_pem_slice(&read("tls.crt")?)?], PrivateKeyDer::from_pem_slice(&read("tls.key")?)?);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let database = Database::open(&dir.join("objects"))?;
        let authentication = Authentication::ClientCertificates { ca: vec![ca.clone()], bootstrap_tokens: false };
        let options = Options { store: database.store("management")?, authentication, ..Options::default() };
        let server = ApiServer::new(options)?;
        let shutdown = CancellationToken::new();
        server.background(shutdown.clone());
        let tls = server_config(chain, key, std::slice::from_ref(&ca))?;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        println!("https://{}", listener.local_addr()?);
        server.serve_tls(listener, tls, shutdown).await?;
        Ok(())
    })
}
