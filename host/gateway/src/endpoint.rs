//! What an endpoint's name means for one object.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use capstan_core::turn::TurnInput;
use reqwest::Url;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Protocol;
use crate::credential::{Credential, CredentialKind, CredentialSource, SecretData, SigningScope, fill, text};
use crate::gate::{CONCURRENCY, Rate};
use crate::operation::{Narrowed, ReadOperation};
use crate::policy::Policy;

/// Where requests go.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// `http://…` or `https://…`, with an optional path that comes before every request's.
    Url(Url),
    /// HTTP over a unix socket.
    UnixSocket(PathBuf),
}

impl Origin {
    /// From the text that a person writes: `https://host:8006`, `http://…` or `unix:///run/docker.sock`.
    ///
    /// # Errors
    /// A sentence that says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix://") {
            if !path.starts_with('/') {
                return Err(format!(
                    "{text:?}: a unix socket is named by its absolute path, as in unix:///run/docker.sock"
                ));
            }
            return Ok(Origin::UnixSocket(path.into()));
        }
        let url = Url::parse(text).map_err(|error| format!("{text:?} is no URL: {error}"))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(format!("{text:?}: an origin begins with https://, http:// or unix://"));
        }
        if url.host_str().is_none_or(str::is_empty) {
            return Err(format!("{text:?} names no host"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err("an origin holds no user name and no password; put the credential into a Secret".to_owned());
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(format!("{text:?}: an origin has no query and no fragment"));
        }
        Ok(Origin::Url(url))
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Url(url) => f.write_str(url.as_str().trim_end_matches('/')),
            Origin::UnixSocket(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

/// What a manifest says about an endpoint that the guest may name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declared {
    /// The name.
    pub name: String,
    /// What counts as a read.
    pub protocol: Protocol,
    /// The longest that a request may take, answer included.
    pub timeout: Duration,
    /// The largest answer, in bytes.
    pub max_response: u64,
    /// Template of the origin, for public clouds.
    pub url: Option<String>,
    /// What fills the template's variables: JSON pointers into the InfraCluster.
    pub variables: BTreeMap<String, String>,
    /// How requests are signed.
    pub signing: Option<Signing>,
    /// Reads that use POST, as far as the operator grants them.
    pub read_operations: Vec<ReadOperation>,
    /// Nothing is changed through it: what is no read is refused.
    pub read_only: bool,
    /// How an object's own reference becomes the credential.
    pub credentials: Vec<CredentialReference>,
}

impl Declared {
    /// An endpoint that a manifest declares with its name only.
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            protocol: Protocol::Rest,
            timeout: Duration::from_secs(30),
            max_response: 4 << 20,
            url: None,
            variables: BTreeMap::new(),
            signing: None,
            read_operations: Vec::new(),
            read_only: false,
            credentials: Vec::new(),
        }
    }
}

/// What signatures are for, as a manifest says it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Signing {
    /// Such as `ec2`.
    pub service: String,
    /// The region, or a template of it with the endpoint's variables.
    #[serde(default = "region_variable")]
    pub region: String,
}

fn region_variable() -> String {
    "{region}".to_owned()
}

/// How a Secret that an object of the provider names becomes the credential of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct CredentialReference {
    /// Where the object, or else its InfraCluster, names the Secret: a JSON pointer to a name or to an object with
    /// `name` (and `namespace`, which has to be the object's own).
    pub at: String,
    /// `Secret`.
    pub kind: String,
    /// Name of the endpoint.
    pub endpoint: String,
    /// Key of the origin in the Secret, for endpoints that nothing else gives one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    /// Key of PEM certificates to trust, where the Secret has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<String>,
    /// Headers; `{key}` in a value stands for the Secret's entry of that key.
    #[serde(default)]
    pub header: BTreeMap<String, String>,
}

/// What a tenant's or operator's configuration says about an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Destination {
    /// Where requests go; `None`: where the manifest or the object's own Secret says.
    pub origin: Option<Origin>,
    /// PEM certificates that alone are trusted; `None`: those that the system trusts.
    pub ca: Option<String>,
    /// As whom.
    pub credential: Option<CredentialSource>,
    /// A shorter limit than the manifest's.
    pub timeout: Option<Duration>,
    /// A smaller limit than the manifest's, in bytes.
    pub max_response: Option<u64>,
    /// A smaller limit than [`MAX_REQUEST`], in bytes.
    pub max_request: Option<u64>,
    /// Methods and paths beyond which nothing is sent.
    pub narrowed: Narrowed,
    /// Requests per second.
    pub rate: Option<Rate>,
    /// Requests at a time.
    pub concurrency: Option<u32>,
}

/// The largest body of a request, in bytes.
pub const MAX_REQUEST: u64 = 64 << 20;

impl Destination {
    /// A destination that says only where.
    pub fn of(origin: Origin) -> Self {
        Self { origin: Some(origin), ..Self::default() }
    }
}

/// An endpoint as it is used in one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointConfig {
    /// Name in the manifest.
    pub name: String,
    /// Where requests go.
    pub origin: Origin,
    /// PEM certificates that alone are trusted.
    pub ca: Option<String>,
    /// As whom.
    pub credential: Credential,
    /// What addresses and sockets may be reached.
    pub policy: Arc<Policy>,
    /// What counts as a read.
    pub protocol: Protocol,
    /// The longest that a request may take, answer included.
    pub timeout: Duration,
    /// The largest answer, in bytes.
    pub max_response: u64,
    /// The largest body of a request, in bytes.
    pub max_request: u64,
    /// Reads that use POST.
    pub read_operations: Vec<ReadOperation>,
    /// Methods and paths beyond which nothing is sent.
    pub narrowed: Narrowed,
    /// Requests per second.
    pub rate: Option<Rate>,
    /// Requests at a time.
    pub concurrency: u32,
}

impl EndpointConfig {
    /// An endpoint of which only the origin is configured.
    pub fn at(name: &str, origin: Origin, policy: Arc<Policy>) -> Self {
        let declared = Declared::named(name);
        Self {
            name: declared.name,
            origin,
            ca: None,
            credential: Credential::None,
            policy,
            protocol: declared.protocol,
            timeout: declared.timeout,
            max_response: declared.max_response,
            max_request: MAX_REQUEST,
            read_operations: Vec::new(),
            narrowed: Narrowed::default(),
            rate: None,
            concurrency: CONCURRENCY,
        }
    }
}

/// The configured endpoints. Answers come from caches: it is asked in the middle of a turn.
pub trait Endpoints: Send + Sync {
    /// The Endpoint object of this namespace and name; `None` when there is none.
    ///
    /// # Errors
    /// A sentence for a person when there is one that cannot be used.
    fn endpoint(&self, namespace: &str, name: &str) -> Result<Option<Destination>, String>;

    /// What the ProviderModule says about this name for tenants without an Endpoint object of their own.
    ///
    /// # Errors
    /// A sentence for a person when it cannot be used.
    fn module_default(&self, module: &str, name: &str) -> Result<Option<Destination>, String>;

    /// A Secret as it is now; `None` when there is none.
    ///
    /// # Errors
    /// A sentence for a person when it is not known.
    fn secret(&self, namespace: &str, name: &str) -> Result<Option<SecretData>, String> {
        Err(format!("Secret {namespace}/{name} cannot be read: no Secrets are known here"))
    }

    /// What the operator lists for this namespace.
    fn policy(&self, _namespace: &str) -> Arc<Policy> {
        Arc::default()
    }

    /// The reads by POST that the operator grants a module: name of the endpoint and operation.
    fn granted_reads(&self, _module: &str) -> Vec<(String, ReadOperation)> {
        Vec::new()
    }
}

/// Whose endpoint is looked for.
pub(crate) struct Asker<'a> {
    pub(crate) module: &'a str,
    pub(crate) namespace: &'a str,
    pub(crate) chosen: &'a BTreeMap<String, (String, String)>,
    pub(crate) input: Option<&'a TurnInput>,
}

/// What a manifest's endpoint name means for an object.
///
/// The destination is the Endpoint that the object names, else the Endpoint of that name in the object's namespace.
/// What that leaves open (credential, origin, certificates) comes from the Secret that the object or its InfraCluster
/// names where the manifest says so; what is open then, from the module's default and the manifest.
pub(crate) fn resolve(
    endpoints: &dyn Endpoints,
    asker: &Asker<'_>,
    declared: &Declared,
) -> Result<EndpointConfig, String> {
    let name = &declared.name;
    let tenant = tenants(endpoints, asker, name)?;
    let own = match &tenant {
        Some(destination) if destination.credential.is_some() => None,
        _ => own_secret(endpoints, asker, declared)?,
    };
    let own_origin = own.as_ref().and_then(|own| own.origin.clone());
    let destination = match tenant {
        Some(destination) => destination,
        None if own_origin.is_some() => Destination::default(),
        None => match endpoints.module_default(asker.module, name)? {
            Some(destination) => destination,
            None if declared.url.is_some() => Destination::default(),
            None => return Err(unconfigured(asker, declared)),
        },
    };
    let variable = |variable: &str| variable_value(declared, asker, variable);
    let origin = match (destination.origin.or(own_origin), &declared.url) {
        (Some(origin), _) => origin,
        (None, Some(template)) => Origin::parse(&fill(template, variable)?)?,
        (None, None) => {
            return Err(format!("nothing says where endpoint {name:?} is: set spec.url of the Endpoint {name}"));
        }
    };
    let scope = match &declared.signing {
        None => None,
        Some(signing) => {
            let explicit = match destination.credential.as_ref().map(|source| &source.kind) {
                Some(CredentialKind::Aws { region, .. }) => region.is_some(),
                _ => false,
            };
            let region = if explicit { String::new() } else { fill(&signing.region, variable)? };
            Some(SigningScope { service: signing.service.clone(), region })
        }
    };
    let credential = match (&destination.credential, &own) {
        (Some(source), _) => read(endpoints, source, scope.as_ref())?,
        (None, Some(own)) => own.credential.clone(),
        (None, None) => Credential::None,
    };
    let granted = endpoints.granted_reads(asker.module);
    let is_granted = |read: &&ReadOperation| granted.iter().any(|(endpoint, g)| endpoint == name && g == *read);
    Ok(EndpointConfig {
        name: name.clone(),
        origin,
        ca: destination.ca.or(own.and_then(|own| own.ca)),
        credential,
        policy: endpoints.policy(asker.namespace),
        protocol: declared.protocol,
        timeout: destination.timeout.map_or(declared.timeout, |limit| limit.min(declared.timeout)),
        max_response: destination.max_response.map_or(declared.max_response, |limit| limit.min(declared.max_response)),
        max_request: destination.max_request.map_or(MAX_REQUEST, |limit| limit.min(MAX_REQUEST)),
        read_operations: declared.read_operations.iter().filter(is_granted).cloned().collect(),
        narrowed: destination.narrowed,
        rate: destination.rate,
        concurrency: destination.concurrency.unwrap_or(CONCURRENCY),
    })
}

fn unconfigured(asker: &Asker<'_>, declared: &Declared) -> String {
    let name = &declared.name;
    let reference = declared.credentials.iter().find(|c| c.endpoint == *name && c.origin.is_some());
    let or = reference.map(|c| format!(", name a Secret at {}", c.at)).unwrap_or_default();
    format!(
        "endpoint {name:?} is not configured: create an Endpoint {name} in namespace {}{or}, or give ProviderModule {} a \
         default",
        asker.namespace, asker.module
    )
}

/// The Endpoint that the object names, else the one of that name in its namespace.
fn tenants(endpoints: &dyn Endpoints, asker: &Asker<'_>, name: &str) -> Result<Option<Destination>, String> {
    match asker.chosen.get(name) {
        Some((namespace, object)) => match endpoints.endpoint(namespace, object)? {
            Some(destination) => Ok(Some(destination)),
            None => Err(format!("there is no Endpoint {namespace}/{object}, which the object names")),
        },
        None => endpoints.endpoint(asker.namespace, name),
    }
}

fn read(
    endpoints: &dyn Endpoints,
    source: &CredentialSource,
    scope: Option<&SigningScope>,
) -> Result<Credential, String> {
    let (namespace, name) = &source.secret;
    let data = endpoints
        .secret(namespace, name)?
        .ok_or_else(|| format!("there is no Secret {namespace}/{name}, which holds the credential"))?;
    Credential::read(source, &data, scope)
}

/// What the Secret that an object names says.
struct OwnSecret {
    credential: Credential,
    origin: Option<Origin>,
    ca: Option<String>,
}

fn own_secret(endpoints: &dyn Endpoints, asker: &Asker<'_>, declared: &Declared) -> Result<Option<OwnSecret>, String> {
    let Some(input) = asker.input else { return Ok(None) };
    for reference in declared.credentials.iter().filter(|c| c.endpoint == declared.name) {
        let in_cluster = || spec_at(input.cluster.infrastructure_spec.as_ref()?, &reference.at);
        let Some(named) = input.subject.at(&reference.at).or_else(in_cluster).filter(|v| !v.is_null()) else {
            continue;
        };
        let at = &reference.at;
        let text_of = |field: &str| named.get(field).and_then(Value::as_str);
        let name = named.as_str().or_else(|| text_of("name")).filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| format!("{at} names no Secret"))?;
        let namespace = text_of("namespace").filter(|ns| !ns.is_empty()).unwrap_or(asker.namespace);
        if namespace != asker.namespace {
            return Err(format!(
                "{at} names Secret {namespace}/{name}; only Secrets of the object's own namespace {} may be used",
                asker.namespace
            ));
        }
        let secret = (namespace.to_owned(), name.to_owned());
        let data = endpoints
            .secret(namespace, name)?
            .ok_or_else(|| format!("there is no Secret {namespace}/{name}, which {at} names"))?;
        let kind = CredentialKind::Headers(reference.header.clone().into_iter().collect());
        let credential = Credential::read(&CredentialSource { secret, kind }, &data, None)?;
        let entry = |key: &String| text(&data, key).map_err(|why| format!("Secret {namespace}/{name} {why}"));
        let origin = match &reference.origin {
            // Needed only where nothing else gives the origin.
            Some(key) if data.contains_key(key) => {
                let origin = Origin::parse(&entry(key)?);
                Some(origin.map_err(|why| format!("Secret {namespace}/{name}, key {key}: {why}"))?)
            }
            _ => None,
        };
        if matches!(origin, Some(Origin::UnixSocket(_))) {
            return Err(format!("Secret {namespace}/{name} names a unix socket, which only an Endpoint may"));
        }
        let ca = reference.ca.as_ref().filter(|key| data.contains_key(*key)).map(entry).transpose()?;
        return Ok(Some(OwnSecret { credential, origin, ca }));
    }
    Ok(None)
}

/// What a pointer that begins with `/spec` shows in a spec.
fn spec_at<'a>(spec: &'a Value, pointer: &str) -> Option<&'a Value> {
    spec.pointer(pointer.strip_prefix("/spec")?)
}

/// The value of a template's variable: from the InfraCluster, or from the subject where that is one.
fn variable_value(declared: &Declared, asker: &Asker<'_>, variable: &str) -> Result<String, String> {
    let name = &declared.name;
    let pointer = declared.variables.get(variable).ok_or_else(|| {
        format!("endpoint {name:?} has the variable {variable:?}, which the manifest does not explain")
    })?;
    let input = asker.input;
    let of_cluster = || spec_at(input?.cluster.infrastructure_spec.as_ref()?, pointer);
    let found = of_cluster().or_else(|| input?.subject.at(pointer)).and_then(Value::as_str);
    let value = found
        .ok_or_else(|| format!("endpoint {name:?} needs {pointer} of the infrastructure cluster, which is not set"))?;
    let fine = (1..=63).contains(&value.len())
        && value.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    if !fine {
        return Err(format!(
            "{pointer} is {value:?}; only lower-case letters, digits and - may become part of a host name"
        ));
    }
    Ok(value.to_owned())
}

#[cfg(test)]
#[path = "endpoint_tests.rs"]
mod tests;
