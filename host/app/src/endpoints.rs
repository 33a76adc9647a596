//! Where endpoints are, as whom requests go there and what may be reached: the kinds of the API made into what the
//! gateway asks for.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use capstan_api::ObjectKey;
use capstan_api::capstan::{self as api, EgressPolicySpec, EndpointSpec, ProviderModuleSpec};
use capstan_cluster::mirror::Mirror;
use capstan_gateway::{
    AssumeRole, CredentialKind, CredentialSource, Destination, Endpoints, Narrowed, Origin, Policy, Rate,
    ReadOperation, SecretData,
};
use serde_json::Value;

type Found = Result<Destination, String>;

/// What is configured, by what the gateway asks with.
#[derive(Default)]
pub struct Table {
    /// By namespace and name of the Endpoint.
    endpoints: RwLock<HashMap<(String, String), Found>>,
    /// By name of the ProviderModule and of the endpoint in its manifest.
    defaults: RwLock<HashMap<(String, String), Found>>,
    /// By name of the ProviderModule.
    granted: RwLock<HashMap<String, Vec<(String, ReadOperation)>>>,
    /// By name of the EgressPolicy: what it lists, and for which namespaces.
    policies: RwLock<BTreeMap<String, (Policy, Vec<String>)>>,
    /// The caches that Secrets are read from.
    management: OnceLock<Mirror>,
}

fn read<T, R>(lock: &RwLock<T>, read: impl FnOnce(&T) -> R) -> R {
    read(&lock.read().unwrap_or_else(PoisonError::into_inner))
}

fn write<T, R>(lock: &RwLock<T>, write: impl FnOnce(&mut T) -> R) -> R {
    write(&mut lock.write().unwrap_or_else(PoisonError::into_inner))
}

impl Table {
    /// From here on Secrets are read from these caches.
    pub fn read_secrets_from(&self, management: &Mirror) {
        management.want("", "Secret");
        let _ = self.management.set(management.clone());
    }

    /// An Endpoint as it is now. Whether that is news.
    pub fn set_endpoint(&self, namespace: &str, name: &str, found: Option<Found>) -> bool {
        let key = (namespace.to_owned(), name.to_owned());
        write(&self.endpoints, |endpoints| match found {
            Some(found) => endpoints.insert(key, found.clone()).as_ref() != Some(&found),
            None => endpoints.remove(&key).is_some(),
        })
    }

    /// An EgressPolicy as it is now. Whether that is news.
    pub fn set_policy(&self, name: &str, found: Option<(Policy, Vec<String>)>) -> bool {
        write(&self.policies, |policies| match found {
            Some(found) => policies.insert(name.to_owned(), found.clone()).as_ref() != Some(&found),
            None => policies.remove(name).is_some(),
        })
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
        find(&self.endpoints, namespace, name)
    }

    fn module_default(&self, module: &str, name: &str) -> Result<Option<Destination>, String> {
        find(&self.defaults, module, name)
    }

    fn secret(&self, namespace: &str, name: &str) -> Result<Option<SecretData>, String> {
        let management = self.management.get().ok_or("Secrets are not known yet")?;
        let key = ObjectKey::new("", "Secret", namespace, name);
        let secret = management.get(&key).map_err(|_| format!("Secret {namespace}/{name} is not known yet"))?;
        let Some(secret) = secret else { return Ok(None) };
        let mut data = SecretData::new();
        for (key, value) in secret.at("/data").and_then(Value::as_object).into_iter().flatten() {
            let bytes = value.as_str().and_then(|text| BASE64_STANDARD.decode(text).ok());
            let bytes = bytes.ok_or_else(|| format!("Secret {namespace}/{name} has no base64 under the key {key}"))?;
            data.insert(key.clone(), bytes.into());
        }
        Ok(Some(data))
    }

    fn policy(&self, namespace: &str) -> Arc<Policy> {
        read(&self.policies, |policies| {
            let of_namespace =
                policies.values().filter(|(_, only)| only.is_empty() || only.iter().any(|name| name == namespace));
            Arc::new(of_namespace.fold(Policy::default(), |all, (policy, _)| all.and(policy)))
        })
    }

    fn granted_reads(&self, module: &str) -> Vec<(String, ReadOperation)> {
        read(&self.granted, |granted| granted.get(module).cloned().unwrap_or_default())
    }
}

fn find(
    entries: &RwLock<HashMap<(String, String), Found>>,
    first: &str,
    second: &str,
) -> Result<Option<Destination>, String> {
    let found = read(entries, |entries| entries.get(&(first.to_owned(), second.to_owned())).cloned());
    let Some(found) = found else { return Ok(None) };
    let destination = found?;
    if let Some(Origin::UnixSocket(path)) = &destination.origin
        && !path.exists()
    {
        return Err(no_socket(path));
    }
    Ok(Some(destination))
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
                sts: role.sts_url.as_deref().map(Origin::parse).transpose()?,
            })
        };
        Ok(CredentialKind::Aws { region: aws.region.clone(), role: aws.role.as_ref().map(role).transpose()? })
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
    use serde_json::json;

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
        let CredentialKind::Aws { role: Some(role), .. } = kind else { panic!("{kind:?}") };
        assert_eq!((role.seconds, role.session_name.as_str(), role.sts.is_some()), (3600, "capstan", true));
        assert!(endpoint(json!({"credential": {"secretName": "a"}})).is_err());
        assert!(endpoint(json!({"credential": {"secretName": "a", "bearer": {}, "basic": {}}})).is_err());
    }

    #[test]
    fn policies_add_up_where_they_are_for_the_namespace() {
        let table = Table::default();
        let policy = |addresses: &[&str]| Policy::new(addresses.iter().copied(), []).unwrap();
        assert!(table.set_policy("all", Some((policy(&["127.0.0.1"]), vec![]))));
        assert!(table.set_policy("lab", Some((policy(&["10.0.0.0/8"]), vec!["lab".into()]))));
        assert!(!table.set_policy("lab", Some((policy(&["10.0.0.0/8"]), vec!["lab".into()]))), "no news");
        let may = |namespace: &str, address: &str| {
            capstan_gateway::policy::check(&table.policy(namespace), address.parse().unwrap()).is_ok()
        };
        assert!(may("lab", "10.1.1.1") && may("lab", "127.0.0.1"));
        assert!(!may("other", "10.1.1.1") && may("other", "127.0.0.1"));
        assert!(table.set_policy("lab", None));
        assert!(!may("lab", "10.1.1.1"));
    }
}
