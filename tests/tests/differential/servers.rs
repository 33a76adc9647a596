//! The two servers that are compared, started once for all cases.

use capstan_apiserver::{ApiServer, Authentication, Builtins, Database, Options, Store, server_config};
use capstan_tests::authority::{Authority, Signed};
use capstan_tests::real::{RealServer, programs};
use reqwest::{Certificate, Client, Identity};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::net::SocketAddr;
use std::sync::{OnceLock, mpsc};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// One of the two, as its clients see it.
pub struct Server {
    pub name: &'static str,
    pub url: String,
    authority: Authority,
    /// The embedded server's store; none behind the real one.
    store: Option<Store>,
    /// Ends with this.
    _real: Option<RealServer>,
}

/// Both: the embedded server, and the real one where its programs are built.
pub struct Servers {
    pub embedded: Server,
    pub real: Option<Server>,
}

static SERVERS: OnceLock<Servers> = OnceLock::new();

pub fn servers() -> &'static Servers {
    SERVERS.get_or_init(|| {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let embedded = embedded();
        Servers { embedded, real: programs().map(|programs| real(&programs)) }
    })
}

fn real(programs: &std::path::Path) -> Server {
    let mut real = RealServer::start(programs).expect("the real server starts");
    let authority = std::mem::replace(&mut real.authority, Authority::new().expect("an authority"));
    Server { name: "real", url: real.url.clone(), authority, store: None, _real: Some(real) }
}

/// The embedded server over TLS on a thread of its own: tests come and go with their runtimes.
fn embedded() -> Server {
    let authority = Authority::new().expect("an authority");
    let serving = authority.sign("kube-apiserver", &[]).expect("a certificate");
    let ca = CertificateDer::from(authority.der.clone());
    let (sender, receiver) = mpsc::channel::<(SocketAddr, Store)>();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.expect("a runtime").block_on(async move {
            let dir = tempfile::tempdir().expect("a directory");
            let path = dir.path().join("objects");
            // Opened twice, so that there is a past that it does not know, as in every later start of a plane.
            let (database, store) = open(&path);
            drop(ApiServer::new(Options { store, ..Options::default() }).expect("a server"));
            database.close();
            let (_database, store) = open(&path);
            let authentication = Authentication::ClientCertificates { ca: vec![ca.clone()], bootstrap_tokens: true };
            let options =
                Options { store: store.clone(), builtins: Builtins::Workload, authentication, ..Options::default() };
            let server = ApiServer::new(options).expect("a server");
            let shutdown = CancellationToken::new();
            server.background(shutdown.clone());
            let key = PrivateKeyDer::try_from(serving.key_der).expect("a key");
            let tls = server_config(vec![CertificateDer::from(serving.der)], key, std::slice::from_ref(&ca));
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
            sender.send((listener.local_addr().expect("an address"), store)).expect("somebody waits");
            let _ = server.serve_tls(listener, tls.expect("TLS"), shutdown).await;
        });
    });
    let (address, store) = receiver.recv().expect("the embedded server starts");
    Server { name: "embedded", url: format!("https://{address}"), authority, store: Some(store), _real: None }
}

fn open(path: &std::path::Path) -> (Database, Store) {
    let database = Database::open(path).expect("a state file");
    let store = database.store("management").expect("a store");
    (database, store)
}

impl Server {
    /// Who may do everything.
    pub fn admin(&self) -> Client {
        self.client(Some(&self.authority.sign("admin", &["system:masters"]).expect("a certificate")))
    }

    /// Somebody with a certificate.
    pub fn user(&self, name: &str, groups: &[&str]) -> Client {
        self.client(Some(&self.authority.sign(name, groups).expect("a certificate")))
    }

    /// Somebody without.
    pub fn nobody(&self) -> Client {
        self.client(None)
    }

    fn client(&self, identity: Option<&Signed>) -> Client {
        let root = Certificate::from_pem(self.authority.certificate.as_bytes()).expect("a certificate");
        let mut builder = Client::builder()
            .tls_certs_only([root])
            .user_agent("differential/1.0")
            .no_proxy()
            .timeout(Duration::from_secs(60));
        if let Some(signed) = identity {
            let pem = format!("{}{}", signed.certificate, signed.key);
            builder = builder.identity(Identity::from_pem(pem.as_bytes()).expect("an identity"));
        }
        builder.build().expect("a client")
    }

    /// Whether it is the embedded one.
    pub fn is_embedded(&self) -> bool {
        self.store.is_some()
    }
}
