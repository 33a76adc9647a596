//! The API server of a control-plane machine, and what its controller manager does that others rely on: it signs kubelets' certificate
//! requests and signs `cluster-info` for each bootstrap token.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use base64::Engine as _;
use capstan_apiserver::{
    Admission, AdmissionRequest, ApiServer, Authentication, Builtins, Kubelets, Operation, Options, Status, Store, User,
};
use hmac::{KeyInit as _, Mac as _};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::KubeadmError;
use super::pki::{Authority, Pki};
use crate::api::{self, InProcess};

/// A client that has not finished its handshake by then is let go.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);

/// A running API server with its serving certificate.
pub struct Workload {
    server: ApiServer,
    tls: tokio_rustls::TlsAcceptor,
    /// The signer's way into the server; the server's own way back is weak.
    _manager: Arc<InProcess>,
    _background: DropGuard,
}

impl Workload {
    /// Starts the API server of a control-plane machine on these objects. `names` are the names and addresses of its certificate,
    /// `kubelets` its way to the cluster's machines.
    pub fn start(
        store: Store,
        pki: &Pki,
        version: &str,
        names: &[String],
        kubelets: Option<Arc<dyn Kubelets>>,
    ) -> Result<Workload, KubeadmError> {
        let other =
            |error: &dyn std::fmt::Display| KubeadmError::Other(format!("the API server cannot start: {error}"));
        let ca = pki.ca.certificate().clone();
        let serving = pki.ca.serving("kube-apiserver", names)?;
        let chain = super::pki::certificates(serving.certificate_pem.as_bytes()).map_err(|e| other(&e))?;
        let key = super::pki::tls_key(&serving.key_pem).map_err(|e| other(&e))?;
        let tls = capstan_apiserver::server_config(chain, key, std::slice::from_ref(&ca)).map_err(|e| other(&e))?;
        let mut tls = Arc::unwrap_or_clone(tls);
        // Thousands of servers with few, long connections each: a cache of sessions would cost more than it saves.
        tls.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        let signer = Arc::new(Signer { ca: pki.ca.clone(), server: OnceLock::new() });
        let server = ApiServer::new(Options {
            store,
            builtins: Builtins::Workload,
            authentication: Authentication::ClientCertificates { ca: vec![ca], bootstrap_tokens: true },
            admission: vec![signer.clone()],
            version: version.to_owned(),
            kubelets,
            ..Options::default()
        })
        .map_err(|e| other(&e))?;
        let manager = Arc::new(InProcess::new(&server, User::admin("system:kube-controller-manager")));
        let _ = signer.server.set(Arc::downgrade(&manager));
        let stop = CancellationToken::new();
        server.background(stop.clone());
        Ok(Workload { server, tls: Arc::new(tls).into(), _manager: manager, _background: stop.drop_guard() })
    }

    /// Access in process as the controller manager.
    pub fn admin(&self) -> InProcess {
        InProcess::new(&self.server, User::admin("system:kube-controller-manager"))
    }

    /// Access in process as a node's kubelet.
    pub fn kubelet(&self, node: &str) -> InProcess {
        InProcess::new(&self.server, User::new(format!("system:node:{node}"), ["system:nodes", "system:authenticated"]))
    }

    /// The server itself.
    pub fn server(&self) -> &ApiServer {
        &self.server
    }

    /// Serves one connection: TLS, then HTTP, until the peer is done or `shutdown`.
    pub async fn serve(&self, io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, shutdown: CancellationToken) {
        let stream = match tokio::time::timeout(HANDSHAKE_LIMIT, self.tls.accept(io)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                tracing::debug!(%error, "a client of a workload API failed its TLS handshake");
                return;
            }
            Err(_) => return,
        };
        let peer =
            stream.get_ref().1.peer_certificates().map(|chain| chain.iter().map(|c| c.clone().into_owned()).collect());
        self.server.serve_connection(stream, peer, shutdown).await;
    }
}

/// Signs what a controller manager signs. As an admission hook it learns of the objects without a watch.
struct Signer {
    ca: Arc<Authority>,
    server: OnceLock<Weak<InProcess>>,
}

/// Signer name of kubelets' client certificates.
const KUBELET_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";

impl Admission for Signer {
    fn admit(&self, request: &AdmissionRequest, object: &mut Value) -> Result<Vec<String>, Status> {
        if request.dry_run {
            return Ok(Vec::new());
        }
        match (request.resource.as_str(), request.subresource.as_str()) {
            ("certificatesigningrequests", "") if request.operation == Operation::Create => {
                self.sign_request(&request.user, object);
            }
            ("secrets", "") if request.namespace == "kube-system" => {
                if let Some(id) = request.name.strip_prefix("bootstrap-token-") {
                    let gone = request.operation == Operation::Delete;
                    self.sign_cluster_info(id.to_owned(), if gone { None } else { token_secret(object) });
                }
            }
            _ => {}
        }
        Ok(Vec::new())
    }
}

impl Signer {
    fn way_in(&self) -> Option<Arc<InProcess>> {
        self.server.get().and_then(Weak::upgrade)
    }

    /// Approves and signs a kubelet's request: of a machine with a bootstrap token for any node, of a node for itself.
    fn sign_request(&self, user: &User, object: &mut Value) {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let may = user.is_in("system:bootstrappers") || user.is_in("system:nodes");
        if text("/spec/signerName") != KUBELET_CLIENT || !may {
            return;
        }
        let own = (!user.is_in("system:bootstrappers")).then_some(user.name.as_str());
        let engine = base64::engine::general_purpose::STANDARD;
        let request = engine.decode(text("/spec/request")).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let signed = request
            .ok_or_else(|| "the request is no PEM".to_owned())
            .and_then(|pem| self.ca.sign_kubelet_request(&pem, own));
        let now = super::objects::time(jiff::Timestamp::now());
        let condition = |kind: &str, reason: &str, message: &str| json!([{"type": kind, "status": "True", "reason": reason, "message": message, "lastUpdateTime": now, "lastTransitionTime": now}]);
        let status = match signed {
            Ok(certificate) => json!({
                "conditions": condition("Approved", "AutoApproved", "Auto approving kubelet client certificate after SubjectAccessReview."),
                "certificate": engine.encode(certificate),
            }),
            Err(reason) => json!({"conditions": condition("Failed", "SignerValidationFailure", &reason)}),
        };
        if let Some(fields) = object.as_object_mut() {
            fields.insert("status".into(), status);
        }
    }

    /// Signs `cluster-info` with a token, or takes the signature away.
    fn sign_cluster_info(&self, id: String, secret: Option<String>) {
        let Some(api) = self.way_in() else {
            return;
        };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        runtime.spawn(async move {
            let path = "/api/v1/namespaces/kube-public/configmaps/cluster-info";
            let Ok(answer) = api::get(&*api, path).await else {
                return;
            };
            let Some(kubeconfig) = answer.body.pointer("/data/kubeconfig").and_then(Value::as_str) else {
                return;
            };
            let signature = secret.map(|secret| detached_signature(&id, &secret, kubeconfig.as_bytes()));
            let key = format!("jws-kubeconfig-{id}");
            if answer.body.pointer("/data").and_then(|data| data.get(&key)).and_then(Value::as_str)
                != signature.as_deref()
            {
                let _ = api::merge(&*api, path, &json!({"data": {key: signature}})).await;
            }
        });
    }
}

/// The secret half of a bootstrap token that may sign, from its Secret.
fn token_secret(secret: &Value) -> Option<String> {
    let field = |name: &str| -> Option<String> {
        if let Some(plain) = secret.pointer("/stringData").and_then(|data| data.get(name)).and_then(Value::as_str) {
            return Some(plain.to_owned());
        }
        let encoded = secret.pointer("/data").and_then(|data| data.get(name)).and_then(Value::as_str)?;
        String::from_utf8(base64::engine::general_purpose::STANDARD.decode(encoded).ok()?).ok()
    };
    (field("usage-bootstrap-signing").as_deref() == Some("true")).then(|| field("token-secret")).flatten()
}

/// A detached JWS (RFC 7515, appendix F) with HMAC SHA-256, as kubeadm expects it in `cluster-info`.
pub(super) fn detached_signature(id: &str, secret: &str, content: &[u8]) -> String {
    let engine = base64::engine::general_purpose::URL_SAFE_NO_PAD;
    let header = engine.encode(format!(r#"{{"alg":"HS256","kid":"{id}"}}"#));
    let signed = format!("{header}.{}", engine.encode(content));
    let mac = hmac::Hmac::<sha2::Sha256>::new_from_slice(secret.as_bytes());
    let code = match mac {
        Ok(mut mac) => {
            mac.update(signed.as_bytes());
            mac.finalize().into_bytes()
        }
        Err(_) => Default::default(), // HMAC takes keys of any length
    };
    format!("{header}..{}", engine.encode(code))
}
