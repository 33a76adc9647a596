//! What an API server is made of.

use crate::response::ResponseBody;
use crate::status::Status;
use crate::store::Store;
use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response};
use rustls_pki_types::CertificateDer;
use serde_json::Value;
use std::sync::Arc;
use tokio::io::DuplexStream;

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The name (a certificate's common name).
    pub name: String,
    /// The groups (a certificate's organizations).
    pub groups: Vec<String>,
}

/// The group that may do everything.
pub const MASTERS: &str = "system:masters";

impl User {
    /// A user of these groups.
    pub fn new(name: impl Into<String>, groups: impl IntoIterator<Item = impl Into<String>>) -> User {
        User { name: name.into(), groups: groups.into_iter().map(Into::into).collect() }
    }

    /// A user who may do everything.
    pub fn admin(name: impl Into<String>) -> User {
        User::new(name, [MASTERS, "system:authenticated"])
    }

    /// Somebody who did not say who they are.
    pub fn anonymous() -> User {
        User::new("system:anonymous", ["system:unauthenticated"])
    }

    /// Whether the user is in the group.
    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|own| own == group)
    }
}

/// Which built-in kinds are served, and who may do what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Builtins {
    /// A management plane: namespaces, secrets, config maps, events, leases, CRDs and the like. Who may do what is for
    /// RBAC objects to say; `system:masters` may do everything.
    #[default]
    Management,
    /// A small workload cluster: nodes, pods and their owners too. Kubeadm's rules of who may do what.
    Workload,
}

/// How those who connect say who they are. In-process users need not.
#[derive(Clone, Debug, Default)]
pub enum Authentication {
    /// Everybody is anonymous.
    #[default]
    Anonymous,
    /// By a client certificate of one of these authorities: its common name is the user, its organizations the groups.
    ClientCertificates {
        /// The authorities.
        ca: Vec<CertificateDer<'static>>,
        /// Whether `Authorization: Bearer <id>.<secret>` is looked up in the Secrets `kube-system/bootstrap-token-<id>`.
        bootstrap_tokens: bool,
    },
}

/// What an admission hook is told about a request.
#[derive(Clone, Debug)]
pub struct AdmissionRequest {
    /// `CREATE`, `UPDATE` or `DELETE`.
    pub operation: Operation,
    /// The API group.
    pub group: String,
    /// The version of the object given.
    pub version: String,
    /// The kind.
    pub kind: String,
    /// The plural name.
    pub resource: String,
    /// `status`, or empty.
    pub subresource: String,
    /// The namespace; empty for cluster-scoped objects.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The object before (UPDATE and DELETE).
    pub old: Option<Value>,
    /// Who asks.
    pub user: User,
    /// Nothing will be stored.
    pub dry_run: bool,
    /// The options of the request (`CreateOptions` and the like); null when nothing is known of them.
    pub options: Value,
}

/// What is done to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// It is made.
    Create,
    /// It is changed.
    Update,
    /// It is deleted.
    Delete,
}

/// A hook that sees every change before it is stored: defaulting and validation in process, where upstream has webhooks.
/// It must be quick and do no I/O.
pub trait Admission: Send + Sync {
    /// Changes the object, warns about it or refuses it. For a deletion the object is what is deleted, and changes to it
    /// are ignored. Called again when the object changed meanwhile.
    fn admit(&self, request: &AdmissionRequest, object: &mut Value) -> Result<Vec<String>, Status>;

    /// Refuses what its schema accepts: asked after the schema, as upstream's validating webhooks are, so that what the schema
    /// can name is named by it.
    fn validate(&self, _request: &AdmissionRequest, _object: &Value) -> Result<(), Status> {
        Ok(())
    }
}

/// Converts objects between the served versions of a kind, where upstream has a conversion webhook.
pub trait Conversion: Send + Sync {
    /// Whether this is for the kind (`<plural>.<group>`).
    fn converts(&self, crd: &str) -> bool;
    /// The object in another version of its group (`group/version`). Metadata other than labels and annotations may not change.
    fn convert(&self, object: Value, api_version: &str) -> Result<Value, String>;
}

/// A port of a Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodPort {
    /// The Pod's namespace.
    pub namespace: String,
    /// Its name.
    pub pod: String,
    /// The port, not 0.
    pub port: u16,
}

/// The way to the kubelets of the Nodes, which `nodes/proxy` and `pods/portforward` lead to.
pub trait Kubelets: Send + Sync {
    /// The kubelet of a Node that there is; with a port, what listens there on its machine. An error says why it cannot be
    /// reached, in the words of a dialer (`dial tcp 10.0.0.1:10250: connect: connection refused`).
    fn reach(&self, node: &str, port: Option<u16>) -> Result<Arc<dyn Kubelet>, String>;
}

/// What a Node's kubelet does for the API server. Who asks may do it; that is settled before.
pub trait Kubelet: Send + Sync {
    /// Serves one connection to a port of a Pod until it ends: the stream is closed when this returns. An error is what the
    /// client is told of it. Dropped when the client is gone.
    fn forward(&self, to: &PodPort, stream: DuplexStream) -> BoxFuture<'static, Result<(), String>>;

    /// Answers a request as the kubelet's HTTP server does. Its path is the one below `proxy`; who asks is not in its headers.
    fn answer(&self, request: Request<Bytes>) -> BoxFuture<'static, Response<ResponseBody>>;
}

/// What an API server is made of: `Options { store, builtins, authentication, ..Options::default() }`.
#[derive(Clone)]
pub struct Options {
    /// Where its objects live.
    pub store: Store,
    /// Which built-in kinds it serves.
    pub builtins: Builtins,
    /// How those who connect say who they are.
    pub authentication: Authentication,
    /// Hooks that see every change, in order.
    pub admission: Vec<Arc<dyn Admission>>,
    /// Converters; a kind without one has its `apiVersion` changed only.
    pub conversion: Vec<Arc<dyn Conversion>>,
    /// What `/version` says (`v1.35.0`).
    pub version: String,
    /// What tokens of service accounts are signed with. None: a secret that dies with the server, and they with it.
    pub token_secret: Option<Vec<u8>>,
    /// The way to the Nodes' kubelets. None: no connection to them can be made.
    pub kubelets: Option<Arc<dyn Kubelets>>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            store: Store::memory(),
            builtins: Builtins::default(),
            authentication: Authentication::default(),
            admission: Vec::new(),
            conversion: Vec::new(),
            version: String::from("v1.35.0"),
            token_secret: None,
            kubelets: None,
        }
    }
}
