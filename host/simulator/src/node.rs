//! A node of the real file system and network: what runs as process 1 in the node image for containers.
//!
//! [`run`] serves a unix socket on which `kubeadm` (the same binary, another verb) asks for `init`, `join` and `reset`; what was started so is started again when
//! the container restarts. The first control-plane machine's API server is in this process, its objects in one file. Kubelets renew their Lease and keep
//! their Node ready; the control plane's machine marks Nodes `Unknown` whose Lease is older than the grace.
//!
//! One control-plane machine per cluster: a second one cannot share the objects, so its join is refused.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use capstan_apiserver::{Database, Store};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::api::{self, Api, Https, Trust};
use crate::files::{DiskFiles, Files};
use crate::kubeadm::init::{self, ControlPlane};
use crate::kubeadm::kubelet::Registration;
use crate::kubeadm::objects::{self, Health};
use crate::kubeadm::workload::Workload;
use crate::kubeadm::{Command, KubeadmError, Machine, command, config, join, kubelet};

/// The socket of a node, below its root.
pub const SOCKET: &str = "/run/capstan-node.sock";
const STATE: &str = "/var/lib/capstan-node";
/// The line of the log that says that the node takes orders: container providers of Cluster API wait for it.
const READY_LINE: &str = "Reached target Multi-User System.";

/// How a node is set up.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Its file system; `/` in a container.
    pub root: PathBuf,
    /// The address its API server listens on.
    pub listen: IpAddr,
    /// How often its kubelet renews the Lease.
    pub heartbeat: Duration,
    /// How old a Lease may be.
    pub grace: Duration,
    /// What it knows of itself.
    pub machine: Machine,
}

/// Why a node cannot run.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The socket cannot be made.
    #[error("the node's socket {path} cannot be made: {source}")]
    Socket {
        /// Its path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// What was running before cannot be started again.
    #[error("what ran on this node cannot be started again: {0}")]
    Services(String),
}

/// What a node is, kept over restarts.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Role {
    node: Value,
    control_plane: Option<ControlPlane>,
}

/// What runs on the node.
#[derive(Default)]
struct Services {
    stop: CancellationToken,
    database: Option<Database>,
    running: bool,
}

struct Node {
    options: NodeOptions,
    files: DiskFiles,
    services: tokio::sync::Mutex<Services>,
}

/// Runs a node until `shutdown`.
pub async fn run(options: NodeOptions, shutdown: CancellationToken) -> Result<(), NodeError> {
    let files = DiskFiles::new(&options.root);
    let path = socket_path(&options.root);
    let socket = |source| NodeError::Socket { path: path.clone(), source };
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(socket)?;
    }
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).map_err(socket)?;
    let node = Arc::new(Node { options, files, services: Default::default() });
    if let Some(role) = node.role() {
        node.start(&role).await.map_err(|error| NodeError::Services(error.to_string()))?;
    }
    // To standard output: it is the container's log that is read.
    println!("{READY_LINE}");
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "the node's socket cannot accept");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            },
            () = shutdown.cancelled() => break,
        };
        let node = node.clone();
        tokio::spawn(async move {
            if let Err(error) = node.take_order(stream).await {
                tracing::debug!(%error, "an order to the node broke off");
            }
        });
    }
    node.stop().await;
    let _ = std::fs::remove_file(&path);
    Ok(())
}

fn socket_path(root: &Path) -> PathBuf {
    root.join(SOCKET.trim_start_matches('/'))
}

#[derive(Serialize, Deserialize)]
struct Order {
    arguments: Vec<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Reply {
    Line(String),
    Error(String),
    Status(i32),
}

/// `kubeadm …`: hands the order to the node below `root` and shows what it says. Returns the exit status.
pub async fn order(root: &Path, arguments: &[String]) -> i32 {
    if let Ok(Command::Version) = command(arguments) {
        println!("kubeadm version: stand-in {}", env!("CARGO_PKG_VERSION"));
        return 0;
    }
    let path = socket_path(root);
    let told = async {
        let mut stream = UnixStream::connect(&path).await?;
        let mut line = serde_json::to_vec(&Order { arguments: arguments.to_vec() })?;
        line.push(b'\n');
        stream.write_all(&line).await?;
        let mut lines = BufReader::new(stream).lines();
        while let Some(line) = lines.next_line().await? {
            match serde_json::from_str(&line)? {
                Reply::Line(text) => println!("{text}"),
                Reply::Error(text) => eprintln!("error: {text}"),
                Reply::Status(status) => return Ok(status),
            }
        }
        Err(io::Error::other("the node broke off"))
    };
    match told.await {
        Ok(status) => status,
        Err(error) => {
            eprintln!(
                "error: the node at {} cannot be asked: {error}; `kubeadm-stand-in node` must run, as process 1 of a container",
                path.display()
            );
            1
        }
    }
}

impl Node {
    async fn take_order(self: Arc<Self>, stream: UnixStream) -> io::Result<()> {
        let (read, mut write) = stream.into_split();
        let mut lines = BufReader::new(read).lines();
        let Some(line) = lines.next_line().await? else {
            return Ok(());
        };
        let order: Order = serde_json::from_str(&line)?;
        let (sender, mut receiver) = mpsc::unbounded_channel();
        // The order is carried out even if whoever gave it goes away, as a process started by it would be.
        let node = self.clone();
        let done = tokio::spawn(async move {
            let say = |text: &str| {
                let _ = sender.send(Reply::Line(text.to_owned()));
            };
            let status = match node.carry_out(&order.arguments, &say).await {
                Ok(()) => 0,
                Err(error) => {
                    tracing::warn!(%error, "kubeadm failed");
                    let _ = sender.send(Reply::Error(error.to_string()));
                    1
                }
            };
            let _ = sender.send(Reply::Status(status));
        });
        while let Some(reply) = receiver.recv().await {
            let mut line = serde_json::to_vec(&reply)?;
            line.push(b'\n');
            write.write_all(&line).await?;
        }
        let _ = done.await;
        Ok(())
    }

    async fn carry_out(&self, arguments: &[String], say: &(dyn Fn(&str) + Send + Sync)) -> Result<(), KubeadmError> {
        match command(arguments)? {
            Command::Version => say("kubeadm version: stand-in"),
            Command::Reset => {
                say("[reset] Stopping the services of this node");
                self.stop().await;
                for path in [STATE, "/etc/kubernetes"] {
                    if self.files.exists(path) {
                        self.files.remove(path).map_err(|error| write_error(path, &error))?;
                    }
                }
            }
            Command::Init { config } => self.init(&config, say).await?,
            Command::Join { config } => self.join(&config, say).await?,
        }
        Ok(())
    }

    async fn init(&self, path: &str, say: &(dyn Fn(&str) + Send + Sync)) -> Result<(), KubeadmError> {
        say("[init] Running pre-flight checks");
        let machine = &self.options.machine;
        let prepared = init::prepare(&self.files, path, machine)?;
        let plane = prepared.control_plane.clone();
        // An init that broke off before its end has left objects behind.
        if self.files.exists(STATE) {
            self.files.remove(STATE).map_err(|error| write_error(STATE, &error))?;
        }
        let mut services = self.services.lock().await;
        say(&format!("[control-plane] Starting the API server of {} ({})", plane.endpoint, plane.version()));
        let store = self.open_store(&mut services)?;
        let workload = Arc::new(Workload::start(store, &prepared.pki, &plane.version(), &plane.names, None)?);
        prepared.fill(&workload.admin(), machine, jiff::Timestamp::now()).await?;
        prepared.write_kubeconfigs(&self.files)?;
        self.serve(&services, workload, &plane).await?;
        self.keep(&Role { node: prepared.node(machine), control_plane: Some(plane) })?;
        services.running = true;
        say("Your Kubernetes control-plane has initialized successfully!");
        Ok(())
    }

    async fn join(&self, path: &str, say: &(dyn Fn(&str) + Send + Sync)) -> Result<(), KubeadmError> {
        if let Ok(content) = self.files.read(path)
            && config::read_join(path, &content)?.control_plane.is_some()
        {
            return Err(KubeadmError::Other(
                "a cluster of stand-in nodes has one control-plane machine: another one cannot share its objects"
                    .into(),
            ));
        }
        let joined = join::join(&self.files, path, &self.options.machine, say).await?;
        self.keep(&Role { node: joined.node.clone(), control_plane: None })?;
        let mut services = self.services.lock().await;
        services.running = true;
        let lease_seconds = self.options.machine.lease_seconds;
        let beats =
            beat(name_of(&joined.node), joined.kubelet, lease_seconds, self.options.heartbeat, services.stop.clone());
        tokio::spawn(beats);
        Ok(())
    }

    fn role(&self) -> Option<Role> {
        let content = self.files.read(&format!("{STATE}/role.json")).ok()?;
        serde_json::from_slice(&content).ok()
    }

    fn keep(&self, role: &Role) -> Result<(), KubeadmError> {
        let path = format!("{STATE}/role.json");
        let content = serde_json::to_vec(role).map_err(|error| KubeadmError::Other(error.to_string()))?;
        self.files.put(&path, 0o600, &content, false).map_err(|error| write_error(&path, &error))
    }

    /// Starts what ran before.
    async fn start(&self, role: &Role) -> Result<(), KubeadmError> {
        let mut services = self.services.lock().await;
        let now = jiff::Timestamp::now();
        match &role.control_plane {
            Some(plane) => {
                let pki = plane.pki(&self.files)?;
                // A container may have another address than before.
                let mut names = plane.names.clone();
                names.extend(self.options.machine.addresses.iter().map(ToString::to_string));
                let store = self.open_store(&mut services)?;
                let workload = Arc::new(Workload::start(store, &pki, &plane.version(), &names, None)?);
                kubelet::register(
                    &workload.admin(),
                    role.node.clone(),
                    Registration::Again,
                    self.options.machine.lease_seconds,
                    now,
                )
                .await?;
                self.serve(&services, workload, plane).await?;
            }
            None => {
                let https = self.kubelet_client()?;
                let (node, stop, every) = (role.node.clone(), services.stop.clone(), self.options.heartbeat);
                let lease_seconds = self.options.machine.lease_seconds;
                tokio::spawn(async move {
                    // The control plane may come back later than this node.
                    while let Err(error) = kubelet::register(
                        &https,
                        node.clone(),
                        Registration::Again,
                        lease_seconds,
                        jiff::Timestamp::now(),
                    )
                    .await
                    {
                        tracing::warn!(%error, "the node cannot be registered again; trying on");
                        tokio::select! {
                            () = tokio::time::sleep(every) => {}
                            () = stop.cancelled() => return,
                        }
                    }
                    beat(name_of(&node), https, lease_seconds, every, stop).await;
                });
            }
        }
        services.running = true;
        Ok(())
    }

    async fn stop(&self) {
        let mut services = self.services.lock().await;
        let old = std::mem::take(&mut *services);
        old.stop.cancel();
        if let Some(database) = old.database {
            let _ = tokio::task::spawn_blocking(move || database.close()).await;
        }
    }

    fn open_store(&self, services: &mut Services) -> Result<Store, KubeadmError> {
        let made = self.files.make_directory(STATE).and_then(|()| self.files.set_mode(STATE, 0o700));
        made.map_err(|error| write_error(STATE, &error))?;
        let other = |error: capstan_apiserver::StoreError| KubeadmError::Other(error.to_string());
        let path = self.options.root.join(STATE.trim_start_matches('/')).join("objects.redb");
        if let Some(old) = services.database.take() {
            old.close();
        }
        let database = Database::open(&path).map_err(other)?;
        let store = database.store("cluster").map_err(other)?;
        services.database = Some(database);
        Ok(store)
    }

    /// Serves the API and does the control plane's part for all Nodes.
    async fn serve(
        &self,
        services: &Services,
        workload: Arc<Workload>,
        plane: &ControlPlane,
    ) -> Result<(), KubeadmError> {
        let address = SocketAddr::from((self.options.listen, plane.port));
        let listener = TcpListener::bind(address)
            .await
            .map_err(|error| KubeadmError::Other(format!("the API server cannot listen on {address}: {error}")))?;
        let stop = services.stop.clone();
        let lease_seconds = self.options.machine.lease_seconds;
        tokio::spawn(beat(plane.node.clone(), workload.admin(), lease_seconds, self.options.heartbeat, stop.clone()));
        tokio::spawn(watch_over(workload.admin(), self.options.heartbeat / 2, self.options.grace, stop.clone()));
        tokio::spawn(async move {
            loop {
                let stream = tokio::select! {
                    accepted = listener.accept() => match accepted {
                        Ok((stream, _)) => stream,
                        Err(error) => {
                            tracing::warn!(%error, "the API server cannot accept connections");
                            tokio::time::sleep(Duration::from_millis(100)).await;
                            continue;
                        }
                    },
                    () = stop.cancelled() => return,
                };
                let _ = stream.set_nodelay(true);
                let (workload, stop) = (workload.clone(), stop.clone());
                tokio::spawn(async move {
                    tokio::select! {
                        () = workload.serve(stream, CancellationToken::new()) => {}
                        () = stop.cancelled() => {}
                    }
                });
            }
        });
        Ok(())
    }

    /// The kubelet's client, as `kubelet.conf` has it.
    fn kubelet_client(&self) -> Result<Https, KubeadmError> {
        let path = init::KUBELET_CONF;
        let bad = |reason: String| KubeadmError::BadFile { path: path.into(), reason };
        let content = self.files.read(path).map_err(|error| bad(error.to_string()))?;
        let text = String::from_utf8(content).map_err(|_| bad("is not text".into()))?;
        let kubeconfig = config::yaml(&text).ok_or_else(|| bad("is not well-formed YAML".into()))?;
        let field = |pointer: &str| -> Result<String, KubeadmError> {
            let value = kubeconfig.pointer(pointer).and_then(Value::as_str);
            value.map(str::to_owned).ok_or_else(|| bad(format!("{pointer} is missing")))
        };
        let data = |pointer: &str| -> Result<String, KubeadmError> {
            use base64::Engine as _;
            let decoded = base64::engine::general_purpose::STANDARD.decode(field(pointer)?);
            decoded
                .ok()
                .and_then(|bytes| String::from_utf8(bytes).ok())
                .ok_or_else(|| bad(format!("{pointer} is no PEM in base64")))
        };
        let server = field("/clusters/0/cluster/server")?;
        let authorities =
            crate::kubeadm::pki::certificates(data("/clusters/0/cluster/certificate-authority-data")?.as_bytes())
                .map_err(bad)?;
        let (certificate, key) =
            (data("/users/0/user/client-certificate-data")?, data("/users/0/user/client-key-data")?);
        let endpoint = server.trim_start_matches("https://");
        Https::new(endpoint, Trust::Authorities(authorities), Some((&certificate, &key))).map_err(bad)
    }
}

fn name_of(node: &Value) -> String {
    node.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn write_error(path: &str, error: &io::Error) -> KubeadmError {
    KubeadmError::Write { path: path.to_owned(), reason: error.to_string() }
}

/// A kubelet's heartbeat: its Lease, and its Node ready.
async fn beat(node: String, api: impl Api, lease_seconds: u64, every: Duration, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(every) => {}
            () = stop.cancelled() => return,
        }
        let now = jiff::Timestamp::now();
        let beaten = async {
            kubelet::renew(&api, &node, lease_seconds, now).await?;
            kubelet::report(&api, &node, Health::Ready, now).await
        };
        if let Err(error) = beaten.await {
            tracing::warn!(node, %error, "a heartbeat failed");
        }
    }
}

/// The node lifecycle controller: Nodes whose Lease is too old become `Unknown`.
async fn watch_over(api: impl Api, every: Duration, grace: Duration, stop: CancellationToken) {
    // After a start nobody has had the time to renew.
    tokio::select! {
        () = tokio::time::sleep(grace) => {}
        () = stop.cancelled() => return,
    }
    loop {
        if let Err(error) = mark_silent(&api, grace, jiff::Timestamp::now()).await {
            tracing::warn!(%error, "the Nodes cannot be watched over");
        }
        tokio::select! {
            () = tokio::time::sleep(every) => {}
            () = stop.cancelled() => return,
        }
    }
}

async fn mark_silent(api: &dyn Api, grace: Duration, now: jiff::Timestamp) -> Result<(), KubeadmError> {
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    let leases = api::expect("listing Leases", api::get(api, leases).await)?.body;
    let nodes = api::expect("listing Nodes", api::get(api, "/api/v1/nodes").await)?.body;
    let items = |list: &Value| list.pointer("/items").and_then(Value::as_array).cloned().unwrap_or_default();
    let renewed: std::collections::HashMap<String, jiff::Timestamp> = items(&leases)
        .iter()
        .filter_map(|lease| Some((name_of(lease), lease.pointer("/spec/renewTime")?.as_str()?.parse().ok()?)))
        .collect();
    for node in items(&nodes) {
        let name = name_of(&node);
        let silent =
            renewed.get(&name).is_none_or(|time| now.duration_since(*time).unsigned_abs() > grace && *time < now);
        if silent && objects::ready_status(&node) == "True" {
            kubelet::report(api, &name, Health::Unknown, now).await?;
        }
    }
    Ok(())
}
