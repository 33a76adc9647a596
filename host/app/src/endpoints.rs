//! Where endpoints are, as whom requests go there and what may be reached: the kinds of the API made into what the
//! gateway asks for.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use capstan_api::capstan::{self as api, EgressPolicySpec, EndpointSpec, ProviderModuleSpec};
use capstan_api::{Object, ObjectKey};
use capstan_cluster::egress::{Egress, EgressError};
use capstan_cluster::mirror::Mirror;
use capstan_cluster::modules::{EGRESS_POLICY, ENDPOINT, GROUP};
use capstan_core::view::{NotNow, Select};
use capstan_gateway::{
    AssumeRole, CredentialKind, CredentialSource, Destination, Endpoints, Narrowed, Origin, Policy, Rate,
    ReadOperation, SecretData, Unreachable,
};
use serde_json::{Value, json};

type Found = Result<Destination, String>;

/// What is configured, by what the gateway asks with: read from the caches, so that what a decision has seen is what the
/// turn finds.
#[derive(Default)]
pub struct Table {
    /// By name of the ProviderModule and of the endpoint in its manifest.
    defaults: RwLock<HashMap<(String, String), Found>>,
    /// By name of the ProviderModule.
    granted: RwLock<HashMap<String, Vec<(String, ReadOperation)>>>,
    /// The caches that Endpoints, EgressPolicies, Secrets and identities are read from.
    management: OnceLock<Mirror>,
}

fn read<T, R>(lock: &RwLock<T>, read: impl FnOnce(&T) -> R) -> R {
    read(&lock.read().unwrap_or_else(PoisonError::into_inner))
}

fn write<T, R>(lock: &RwLock<T>, write: impl FnOnce(&mut T) -> R) -> R {
    write(&mut lock.write().unwrap_or_else(PoisonError::into_inner))
}

impl Table {
    /// From here on objects are read from these caches.
    pub fn read_from(&self, management: &Mirror) {
        for (group, kind) in [("", "Secret"), (GROUP, ENDPOINT), (GROUP, EGRESS_POLICY)] {
            management.want(group, kind);
        }
        let _ = self.management.set(management.clone());
    }

    fn known_policy(&self, namespace: &str) -> Result<Policy, String> {
        let management = self.management.get().ok_or("EgressPolicies are not known yet")?;
        match management.list(GROUP, EGRESS_POLICY, "", &Select::All) {
            Ok(policies) => Ok(policy_of(&policies, namespace)),
            Err(NotNow::NoSuchKind { .. }) => Ok(Policy::default()),
            Err(not_now) => Err(format!("EgressPolicies are not known yet: {not_now}")),
        }
    }

    fn get(&self, key: &ObjectKey) -> Result<Option<Arc<Object>>, String> {
        let management = self.management.get().ok_or_else(|| format!("{key} is not known yet"))?;
        match management.get(key) {
            Ok(found) => Ok(found),
            Err(NotNow::NoSuchKind { .. }) => Ok(None),
            Err(not_now) => Err(format!("{key} is not known yet: {not_now}")),
        }
    }

    /// What a ProviderModule says of endpoints; `None`: it is gone.
    pub fn set_module(&self, name: &str, spec: Option<&ProviderModuleSpec>) {
        write(&self.defaults, |defaults| {
            defaults.retain(|(module, _), _| module != name);
            for (endpoint, at) in spec.into_iter().flat_map(|spec| &spec.endpoints) {
                let found = origin(at.url.as_deref(), at.unix_socket.as_deref()).and_then(|origin| {
                    let origin = origin.ok_or("exactly one of url and unixSocket is needed")?;
                    Ok(Destination::of(origin))
                });
                defaults.insert((name.to_owned(), endpoint.clone()), found);
            }
        });
        write(&self.granted, |granted| {
            granted.remove(name);
            if let Some(grants) = spec.and_then(|spec| spec.grants.as_ref()) {
                let read = |read: &api::GrantedRead| {
                    (read.endpoint.clone(), ReadOperation { method: "POST".to_owned(), path: read.path.clone() })
                };
                granted.insert(name.to_owned(), grants.read_operations.iter().map(read).collect());
            }
        });
    }
}

impl Endpoints for Table {
    fn endpoint(&self, namespace: &str, name: &str) -> Result<Option<Destination>, String> {
        let found = self.get(&ObjectKey::new(GROUP, ENDPOINT, namespace, name))?;
        let Some(endpoint) = found.filter(|endpoint| !endpoint.is_deleting()) else { return Ok(None) };
        let destination = spec(&endpoint).and_then(|spec| of_endpoint(namespace, &spec));
        usable(destination.map_err(|why| format!("Endpoint {namespace}/{name}: {why}"))?).map(Some)
    }

    fn module_default(&self, module: &str, name: &str) -> Result<Option<Destination>, String> {
        let found = read(&self.defaults, |defaults| defaults.get(&(module.to_owned(), name.to_owned())).cloned());
        found.transpose()?.map(usable).transpose()
    }

    fn secret(&self, namespace: &str, name: &str) -> Result<Option<SecretData>, String> {
        let Some(secret) = self.get(&ObjectKey::new("", "Secret", namespace, name))? else { return Ok(None) };
        let mut data = SecretData::new();
        for (key, value) in secret.at("/data").and_then(Value::as_object).into_iter().flatten() {
            let bytes = value.as_str().and_then(|text| BASE64_STANDARD.decode(text).ok());
            let bytes = bytes.ok_or_else(|| format!("Secret {namespace}/{name} has no base64 under the key {key}"))?;
            data.insert(key.clone(), bytes.into());
        }
        Ok(Some(data))
    }

    fn object(&self, key: &ObjectKey) -> Result<Option<Arc<Object>>, String> {
        self.get(key)
    }

    fn policy(&self, namespace: &str) -> Arc<Policy> {
        Arc::new(self.known_policy(namespace).unwrap_or_default())
    }

    fn granted_reads(&self, module: &str) -> Vec<(String, ReadOperation)> {
        read(&self.granted, |granted| granted.get(module).cloned().unwrap_or_default())
    }
}

#[async_trait]
impl Egress for Table {
    async fn addresses(&self, namespace: &str, host: &str, port: u16) -> Result<Vec<SocketAddr>, EgressError> {
        let policy = self.known_policy(namespace).map_err(EgressError::Unresolved)?;
        capstan_gateway::resolve(&policy, host, port).await.map_err(|error| match error {
            Unreachable::Refused(why) => EgressError::Refused(why.to_string()),
            Unreachable::Unresolved(why) => EgressError::Unresolved(why),
        })
    }
}

/// What all EgressPolicies for a namespace list together. One that cannot be read lists nothing, and its status says so.
fn policy_of(policies: &[Arc<Object>], namespace: &str) -> Policy {
    let mut all = Policy::default();
    for policy in policies.iter().filter(|policy| !policy.is_deleting()) {
        let Ok(spec) = spec::<EgressPolicySpec>(policy) else { continue };
        if spec.namespaces.is_empty() || spec.namespaces.iter().any(|name| name == namespace) {
            all = all.and(&of_policy(&spec).unwrap_or_default());
        }
    }
    all
}

/// The `spec` of an object.
///
/// # Errors
/// What is wrong with it.
pub fn spec<T: serde::de::DeserializeOwned>(object: &Object) -> Result<T, String> {
    let spec = object.at("/spec").cloned().unwrap_or_else(|| json!({}));
    serde_json::from_value(spec).map_err(|error| format!("spec: {error}"))
}

fn usable(destination: Destination) -> Found {
    match &destination.origin {
        Some(Origin::UnixSocket(path)) if !path.exists() => Err(no_socket(path)),
        _ => Ok(destination),
    }
}

fn no_socket(path: &Path) -> String {
    let path = path.display();
    format!(
        "the unix socket {path} is not there: start the service that serves it (for Docker: its engine, `systemctl start \
         docker` or `dockerd`), or point the endpoint at another one (for Docker: set DOCKER_HOST=unix://… and start \
         `capstan up` again)"
    )
}

fn origin(url: Option<&str>, unix_socket: Option<&str>) -> Result<Option<Origin>, String> {
    match (url, unix_socket) {
        (Some(url), None) => Origin::parse(url).map(Some),
        (None, Some(path)) => Origin::parse(&format!("unix://{path}")).map(Some),
        (None, None) => Ok(None),
        (Some(_), Some(_)) => Err("url and unixSocket exclude each other".into()),
    }
}

/// The destination that an Endpoint of this namespace describes.
///
/// # Errors
/// What is wrong with it.
pub fn of_endpoint(namespace: &str, spec: &EndpointSpec) -> Result<Destination, String> {
    let method = |method: &api::HttpMethod| {
        serde_json::to_value(method).ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
    };
    Ok(Destination {
        origin: origin(spec.url.as_deref(), spec.unix_socket.as_deref())?,
        ca: spec.ca_bundle.clone(),
        credential: spec.credential.as_ref().map(|c| credential(namespace, c)).transpose()?,
        timeout: spec.timeout_seconds.map(|seconds| Duration::from_secs(seconds.into())),
        max_response: spec.max_response_bytes.map(u64::from),
        max_request: spec.max_request_bytes.map(u64::from),
        narrowed: Narrowed { methods: spec.methods.iter().map(method).collect(), paths: spec.paths.clone() },
        rate: spec.rate_limit.map(|limit| Rate {
            per_second: limit.requests_per_second,
            burst: limit.burst.unwrap_or(limit.requests_per_second),
        }),
        concurrency: spec.max_concurrent_requests,
    })
}

fn credential(namespace: &str, credential: &api::EndpointCredential) -> Result<CredentialSource, String> {
    let aws = |aws: &api::AwsCredential| -> Result<CredentialKind, String> {
        let role = |role: &api::AwsRole| -> Result<AssumeRole, String> {
            Ok(AssumeRole {
                arn: role.arn.clone(),
                session_name: role.session_name.clone().unwrap_or_else(|| "capstan".to_owned()),
                external_id: role.external_id.clone(),
                seconds: role.duration_seconds.unwrap_or(3600),
                policy: None,
                policy_arns: Vec::new(),
                sts: role.sts_url.as_deref().map(Origin::parse).transpose()?,
            })
        };
        let roles = aws.role.iter().map(role).collect::<Result<_, _>>()?;
        Ok(CredentialKind::Aws { region: aws.region.clone(), roles })
    };
    let headers = || {
        let headers = credential.headers.iter().map(|h| (h.name.clone(), h.value.clone())).collect();
        CredentialKind::Headers(headers)
    };
    let bearer = |bearer: &api::BearerCredential| CredentialKind::Bearer {
        key: bearer.key.clone().unwrap_or_else(|| "token".to_owned()),
    };
    let basic = CredentialKind::Basic { username: "username".to_owned(), password: "password".to_owned() };
    let kinds = [
        credential.bearer.as_ref().map(bearer),
        credential.basic.map(|_| basic),
        (!credential.headers.is_empty()).then(headers),
        credential.client_certificate.map(|_| CredentialKind::ClientCertificate),
        credential.aws.as_ref().map(aws).transpose()?,
    ];
    let mut kinds = kinds.into_iter().flatten();
    match (kinds.next(), kinds.next()) {
        (Some(kind), None) => {
            Ok(CredentialSource { secret: (namespace.to_owned(), credential.secret_name.clone()), kind })
        }
        _ => Err("credential: exactly one of bearer, basic, headers, clientCertificate and aws is needed".into()),
    }
}

/// What an EgressPolicy lists.
///
/// # Errors
/// Which entry is wrong.
pub fn of_policy(spec: &EgressPolicySpec) -> Result<Policy, String> {
    Policy::new(spec.addresses.iter().map(String::as_str), spec.unix_sockets.iter().map(String::as_str))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(spec: Value) -> Result<Destination, String> {
        of_endpoint("tenant", &serde_json::from_value(spec).unwrap())
    }

    #[test]
    fn a_missing_socket_says_what_to_do() {
        let table = Table::default();
        let spec = json!({"source": {"file": "/x"}, "endpoints": {"engine": {"unixSocket": "/nowhere/docker.sock"}}});
        table.set_module("docker", Some(&serde_json::from_value(spec).unwrap()));
        let error = table.module_default("docker", "engine").unwrap_err();
        assert!(error.contains("/nowhere/docker.sock") && error.contains("DOCKER_HOST"), "{error}");
        assert_eq!(table.module_default("docker", "other"), Ok(None));
        table.set_module("docker", None);
        assert_eq!(table.module_default("docker", "engine"), Ok(None));
    }

    #[test]
    fn a_destination_is_a_url_or_a_socket() {
        assert!(endpoint(json!({"url": "http://127.0.0.1:1"})).unwrap().origin.is_some());
        assert!(endpoint(json!({"unixSocket": "/a.sock"})).unwrap().origin.is_some());
        assert!(endpoint(json!({"caBundle": "x"})).unwrap().origin.is_none());
        assert!(endpoint(json!({"url": "http://h", "unixSocket": "/a.sock"})).is_err());
    }

    #[test]
    fn a_credential_is_a_secret_of_the_endpoint_s_namespace() {
        let found = endpoint(json!({
            "url": "https://pve:8006", "rateLimit": {"requestsPerSecond": 5}, "methods": ["GET", "POST"],
            "credential": {"secretName": "pve", "headers": [{"name": "Authorization", "value": "PVEAPIToken={t}"}]},
        }))
        .unwrap();
        let credential = found.credential.unwrap();
        assert_eq!(credential.secret, ("tenant".to_owned(), "pve".to_owned()));
        assert!(matches!(credential.kind, CredentialKind::Headers(headers) if headers.len() == 1));
        assert_eq!((found.rate, found.narrowed.methods.len()), (Some(Rate { per_second: 5, burst: 5 }), 2));
        let role =
            json!({"arn": "arn:aws:iam::123456789012:role/r", "externalId": "x", "stsURL": "http://127.0.0.1:5"});
        let aws = json!({"credential": {"secretName": "aws", "aws": {"region": "eu-west-1", "role": role}}});
        let kind = endpoint(aws).unwrap().credential.unwrap().kind;
        let CredentialKind::Aws { roles, .. } = kind else { panic!("{kind:?}") };
        let role = &roles[0];
        assert_eq!((role.seconds, role.session_name.as_str(), role.sts.is_some()), (3600, "capstan", true));
        assert!(endpoint(json!({"credential": {"secretName": "a"}})).is_err());
        assert!(endpoint(json!({"credential": {"secretName": "a", "bearer": {}, "basic": {}}})).is_err());
    }

    #[test]
    fn policies_add_up_where_they_are_for_the_namespace() {
        let policy = |name: &str, spec: Value| {
            let object = json!({"apiVersion": "capstan.dev/v1alpha1", "kind": EGRESS_POLICY, "metadata": {"name": name},
                "spec": spec});
            Arc::new(Object::from_value(object).unwrap())
        };
        let mut all = vec![
            policy("all", json!({"addresses": ["127.0.0.1"]})),
            policy("lab", json!({"addresses": ["10.0.0.0/8"], "namespaces": ["lab"]})),
            policy("broken", json!({"addresses": ["0.0.0.0/0", "x"]})),
        ];
        let may = |all: &[Arc<Object>], namespace: &str, address: &str| {
            capstan_gateway::policy::check(&policy_of(all, namespace), address.parse().unwrap()).is_ok()
        };
        assert!(may(&all, "lab", "10.1.1.1") && may(&all, "lab", "127.0.0.1"));
        assert!(!may(&all, "other", "10.1.1.1") && may(&all, "other", "127.0.0.1"));
        all.remove(1);
        assert!(!may(&all, "lab", "10.1.1.1"));
    }
}
