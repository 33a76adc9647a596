//! Who asks, and what they may.

pub(crate) mod impersonation;
pub(crate) mod rbac;
pub(crate) mod tokens;

use crate::options::{Authentication, Builtins, MASTERS, User};
use crate::server::{ApiServer, Error};
use crate::status::Status;
use crate::store::Key;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, header};
use jiff::Timestamp;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls_pki_types::{CertificateDer, UnixTime};
use serde_json::Value;
use std::sync::Arc;

/// The group of everybody who did not say who they are.
const UNAUTHENTICATED: &str = "system:unauthenticated";
/// The group of everybody who said who they are.
pub(crate) const AUTHENTICATED: &str = "system:authenticated";
/// The group of those who have a bootstrap token.
const BOOTSTRAPPERS: &str = "system:bootstrappers";
/// The group of kubelets.
const NODES: &str = "system:nodes";

/// Finds out who asks.
pub(crate) struct Authenticator {
    verifier: Option<Arc<dyn ClientCertVerifier>>,
    bootstrap_tokens: bool,
}

impl Authenticator {
    pub fn new(authentication: &Authentication) -> Result<Authenticator, Error> {
        let Authentication::ClientCertificates { ca, bootstrap_tokens } = authentication else {
            return Ok(Authenticator { verifier: None, bootstrap_tokens: false });
        };
        let mut roots = rustls::RootCertStore::empty();
        for ca in ca {
            roots.add(ca.clone()).map_err(|error| Error::Certificates(error.to_string()))?;
        }
        let verifier = if roots.is_empty() {
            None
        } else {
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            Some(verifier.map_err(|error| Error::Certificates(error.to_string()))?)
        };
        Ok(Authenticator { verifier, bootstrap_tokens: *bootstrap_tokens })
    }

    /// Who a certificate chain is of. An error when it is of nobody we know.
    pub fn certificate(&self, chain: &[CertificateDer<'static>]) -> Result<Option<User>, Status> {
        let (Some((leaf, between)), Some(verifier)) = (chain.split_first(), &self.verifier) else { return Ok(None) };
        verifier.verify_client_cert(leaf, between, UnixTime::now()).map_err(|error| {
            tracing::debug!(%error, "a client certificate was refused");
            Status::unauthorized()
        })?;
        let (_, certificate) = x509_parser::parse_x509_certificate(leaf).map_err(|_| Status::unauthorized())?;
        let text =
            |attribute: &x509_parser::x509::AttributeTypeAndValue<'_>| attribute.as_str().ok().map(str::to_owned);
        let subject = certificate.subject();
        let name = subject.iter_common_name().filter_map(text).next().ok_or_else(Status::unauthorized)?;
        let mut groups: Vec<String> = subject.iter_organization().filter_map(text).collect();
        groups.push(AUTHENTICATED.to_owned());
        Ok(Some(User { name, groups }))
    }
}

impl ApiServer {
    /// Who makes a request on a connection: the certificate's owner, the bearer of a token, or nobody known.
    pub(crate) fn authenticate(
        &self,
        certificate: &Result<Option<User>, Status>,
        headers: &HeaderMap,
    ) -> Result<User, Status> {
        if let Some(user) = certificate.clone()? {
            return Ok(user);
        }
        let Some(authorization) = headers.get(header::AUTHORIZATION) else { return Ok(User::anonymous()) };
        let text = authorization.to_str().map_err(|_| Status::unauthorized())?;
        // Of other schemes nobody knows anything, so they say nothing.
        let Some(token) = text.strip_prefix("Bearer ").map(str::trim) else { return Ok(User::anonymous()) };
        self.bearer(token, &[]).ok_or_else(Status::unauthorized)
    }

    /// Whose a token is; it has to be for one of the audiences, or for this server where none is named.
    pub(crate) fn bearer(&self, token: &str, audiences: &[String]) -> Option<User> {
        let account = || self.account_of(token, audiences);
        if self.inner.authenticator.bootstrap_tokens && audiences.is_empty() {
            return self.bootstrap_user(token).or_else(account);
        }
        account()
    }

    /// Who a bootstrap token is of: `<id>.<secret>` as the Secret `kube-system/bootstrap-token-<id>` has it.
    fn bootstrap_user(&self, token: &str) -> Option<User> {
        let (id, secret) = token.split_once('.')?;
        let lower = |text: &str, length: usize| {
            text.len() == length && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
        };
        if !lower(id, 6) || !lower(secret, 16) {
            return None;
        }
        let store = &self.inner.options.store;
        let stored = store.get("secrets", &Key::new("kube-system", &format!("bootstrap-token-{id}")))?;
        if stored.meta.deleting {
            return None;
        }
        let stored = stored.value_without_managed_fields();
        if stored.get("type").and_then(Value::as_str) != Some("bootstrap.kubernetes.io/token") {
            return None;
        }
        let data = |name: &str| -> Option<String> {
            let encoded = stored.get("data")?.get(name)?.as_str()?;
            String::from_utf8(STANDARD.decode(encoded).ok()?).ok()
        };
        if !same(data("token-secret")?.as_bytes(), secret.as_bytes()) || data("token-id")? != id {
            return None;
        }
        if data("usage-bootstrap-authentication").as_deref() != Some("true") {
            return None;
        }
        if let Some(expiration) = data("expiration")
            && expiration.parse::<Timestamp>().ok()? <= Timestamp::now()
        {
            return None;
        }
        let mut groups = vec![BOOTSTRAPPERS.to_owned(), AUTHENTICATED.to_owned()];
        let extra = data("auth-extra-groups").unwrap_or_default();
        groups.extend(extra.split(',').filter(|group| group.starts_with("system:bootstrappers:")).map(str::to_owned));
        Some(User { name: format!("system:bootstrap:{id}"), groups })
    }

    /// Whether a user may do this to a resource, and by which binding.
    pub(crate) fn authorize(&self, user: &User, attributes: &Attributes<'_>) -> Result<String, Status> {
        if is_administrator(user, self.inner.options.builtins) {
            return Ok(String::new());
        }
        if self.inner.options.builtins == Builtins::Workload && RULES.iter().any(|rule| rule.allows(user, attributes)) {
            return Ok(String::new());
        }
        self.rbac_allows(user, attributes).ok_or_else(|| forbidden(user, attributes))
    }

    /// Whether a user may do this to a path that is no resource.
    pub(crate) fn authorize_path(&self, user: &User, verb: &str, path: &str) -> Result<String, Status> {
        let first = path.split('/').next();
        let known = user.is_in(AUTHENTICATED) || user.is_in(UNAUTHENTICATED);
        let open = known && matches!(first, Some("healthz" | "readyz" | "livez" | "version"));
        // What is served may be asked by whoever has a name, as the role `system:discovery` has it.
        let discovery = matches!(first, Some("api" | "apis" | "openapi")) && user.is_in(AUTHENTICATED);
        let reads = matches!(verb, "get" | "head");
        if (reads && (open || discovery)) || is_administrator(user, self.inner.options.builtins) {
            return Ok(String::new());
        }
        self.rbac_allows_path(user, verb, &format!("/{path}")).ok_or_else(|| forbidden_path(user, verb, path))
    }
}

fn forbidden(user: &User, attributes: &Attributes<'_>) -> Status {
    let Attributes { verb, group, resource, subresource, namespace, name } = attributes;
    let what = if subresource.is_empty() { (*resource).to_owned() } else { format!("{resource}/{subresource}") };
    let place = if namespace.is_empty() {
        String::from("at the cluster scope")
    } else {
        format!("in the namespace {namespace:?}")
    };
    let why = format!("User {:?} cannot {verb} resource {what:?} in API group {group:?} {place}", user.name);
    Status::forbidden(group, resource, name, why)
}

fn forbidden_path(user: &User, verb: &str, path: &str) -> Status {
    let why = format!("forbidden: User {:?} cannot {verb} path \"/{path}\"", user.name);
    let mut status = Status::new(403, "Forbidden", why);
    status.details.empty = true;
    status
}

/// Whether a user needs no binding.
pub(crate) fn is_administrator(user: &User, profile: Builtins) -> bool {
    if user.is_in(MASTERS) {
        return true;
    }
    match profile {
        Builtins::Management => false,
        // What kubeadm makes administrators and the control plane's own components.
        Builtins::Workload => {
            user.is_in("kubeadm:cluster-admins")
                || matches!(user.name.as_str(), "system:kube-controller-manager" | "system:kube-scheduler")
        }
    }
}

/// Compares without telling by time how much is the same.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
}

/// What somebody wants to do.
#[derive(Clone, Copy)]
pub(crate) struct Attributes<'a> {
    pub verb: &'a str,
    pub group: &'a str,
    pub resource: &'a str,
    pub subresource: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
}

/// What a group may do in a workload cluster.
struct Rule {
    who: &'static str,
    verbs: &'static [&'static str],
    group: &'static str,
    /// `resource` or `resource/subresource`.
    resources: &'static [&'static str],
    /// Empty is any.
    namespace: &'static str,
    names: Names,
}

enum Names {
    Any,
    These(&'static [&'static str]),
    /// The name of the user's own Node.
    Own,
}

const READ: &[&str] = &["get", "list", "watch"];
const ASK: &[&str] = &["create", "get", "list", "watch"];
const CHANGE: &[&str] = &["update", "patch"];

/// Kubeadm's and Kubernetes' own rules, as far as a joining and a joined machine need them.
const RULES: &[Rule] = &[
    rule("system:unauthenticated", &["get"], "", &["configmaps"], "kube-public", Names::These(&["cluster-info"])),
    rule(AUTHENTICATED, &["get"], "", &["configmaps"], "kube-public", Names::These(&["cluster-info"])),
    rule(
        BOOTSTRAPPERS,
        &["get"],
        "",
        &["configmaps"],
        "kube-system",
        Names::These(&["kubeadm-config", "kubelet-config", "kube-proxy"]),
    ),
    rule(BOOTSTRAPPERS, &["get", "create"], "", &["nodes"], "", Names::Any),
    rule(BOOTSTRAPPERS, ASK, "certificates.k8s.io", &["certificatesigningrequests"], "", Names::Any),
    rule(
        NODES,
        READ,
        "",
        &[
            "nodes",
            "services",
            "endpoints",
            "configmaps",
            "secrets",
            "pods",
            "namespaces",
            "persistentvolumes",
            "persistentvolumeclaims",
            "serviceaccounts",
        ],
        "",
        Names::Any,
    ),
    rule(NODES, READ, "discovery.k8s.io", &["endpointslices"], "", Names::Any),
    rule(
        NODES,
        READ,
        "storage.k8s.io",
        &["csidrivers", "csinodes", "volumeattachments", "storageclasses"],
        "",
        Names::Any,
    ),
    rule(NODES, READ, "node.k8s.io", &["runtimeclasses"], "", Names::Any),
    rule(NODES, &["create"], "", &["nodes"], "", Names::Any),
    rule(NODES, CHANGE, "", &["nodes", "nodes/status"], "", Names::Own),
    rule(NODES, &["create", "delete"], "", &["pods", "pods/eviction"], "", Names::Any),
    rule(NODES, CHANGE, "", &["pods/status"], "", Names::Any),
    rule(NODES, &["create", "update", "patch"], "", &["events"], "", Names::Any),
    rule(NODES, &["create", "update", "patch"], "events.k8s.io", &["events"], "", Names::Any),
    rule(NODES, &["create"], "coordination.k8s.io", &["leases"], "kube-node-lease", Names::Any),
    rule(
        NODES,
        &["get", "update", "patch", "delete"],
        "coordination.k8s.io",
        &["leases"],
        "kube-node-lease",
        Names::Own,
    ),
    rule(NODES, ASK, "certificates.k8s.io", &["certificatesigningrequests"], "", Names::Any),
];

const fn rule(
    who: &'static str,
    verbs: &'static [&'static str],
    group: &'static str,
    resources: &'static [&'static str],
    namespace: &'static str,
    names: Names,
) -> Rule {
    Rule { who, verbs, group, resources, namespace, names }
}

impl Rule {
    fn allows(&self, user: &User, attributes: &Attributes<'_>) -> bool {
        let resource = |own: &&str| match own.split_once('/') {
            Some((resource, subresource)) => resource == attributes.resource && subresource == attributes.subresource,
            None => **own == *attributes.resource && attributes.subresource.is_empty(),
        };
        user.is_in(self.who)
            && self.verbs.contains(&attributes.verb)
            && self.group == attributes.group
            && self.resources.iter().any(resource)
            && (self.namespace.is_empty() || self.namespace == attributes.namespace)
            && match self.names {
                Names::Any => true,
                Names::These(names) => names.contains(&attributes.name),
                Names::Own => user.name.strip_prefix("system:node:").is_some_and(|own| own == attributes.name),
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;

    fn may(user: &User, verb: &str, resource: &str, namespace: &str, name: &str) -> bool {
        let server = ApiServer::new(Options { builtins: Builtins::Workload, ..Options::default() }).unwrap();
        let (group, resource) = resource.rsplit_once(':').unwrap_or(("", resource));
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        server.authorize(user, &Attributes { verb, group, resource, subresource, namespace, name }).is_ok()
    }

    #[test]
    fn the_rules_of_a_workload_cluster() {
        let node = User::new("system:node:n1", [NODES, AUTHENTICATED]);
        let joining = User::new("system:bootstrap:abcdef", [BOOTSTRAPPERS, AUTHENTICATED]);
        let nobody = User::anonymous();
        assert!(may(&nobody, "get", "configmaps", "kube-public", "cluster-info"));
        assert!(!may(&nobody, "list", "configmaps", "kube-public", ""));
        assert!(!may(&nobody, "get", "nodes", "", "n1"));
        assert!(may(&joining, "get", "configmaps", "kube-system", "kubeadm-config"));
        assert!(!may(&joining, "get", "secrets", "kube-system", "x"));
        assert!(may(&joining, "create", "nodes", "", ""));
        assert!(may(&joining, "create", "certificates.k8s.io:certificatesigningrequests", "", ""));
        assert!(may(&node, "patch", "nodes/status", "", "n1"));
        assert!(!may(&node, "patch", "nodes/status", "", "n2"));
        assert!(!may(&node, "delete", "nodes", "", "n1"));
        assert!(may(&node, "update", "coordination.k8s.io:leases", "kube-node-lease", "n1"));
        assert!(!may(&node, "update", "coordination.k8s.io:leases", "kube-system", "n1"));
        assert!(may(&User::admin("a"), "delete", "nodes", "", "n1"));
    }

    #[test]
    fn refusals_say_who_and_what() {
        let server = ApiServer::new(Options::default()).unwrap();
        let attributes = Attributes {
            verb: "get",
            group: "apps",
            resource: "deployments",
            subresource: "scale",
            namespace: "ns",
            name: "d",
        };
        let status = server.authorize(&User::anonymous(), &attributes).unwrap_err();
        assert_eq!(status.code, 403);
        assert_eq!(
            status.message,
            "deployments.apps \"d\" is forbidden: User \"system:anonymous\" cannot get resource \"deployments/scale\" in API group \"apps\" in the namespace \"ns\""
        );
    }
}
