//! What an endpoint's name means for one object.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use capstan_api::{Object, ObjectKey};
use capstan_core::identity::{self, Asked, CredentialReference, Named, NamedRole, NamedSecret, spec_at};
use capstan_core::turn::TurnInput;
use reqwest::Url;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Protocol;
use crate::credential::{
    AssumeRole, Credential, CredentialKind, CredentialSource, SecretData, SigningScope, fill, text,
};
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

    /// An identity of a provider's own kind or a Namespace, as it is now; `None` when there is none.
    ///
    /// # Errors
    /// A sentence for a person when it is not known.
    fn object(&self, key: &ObjectKey) -> Result<Option<Arc<Object>>, String> {
        Err(format!("{} {} cannot be read: no identities are known here", key.kind, key.name))
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
    /// All endpoints of the manifest.
    pub(crate) declared: &'a [Declared],
    pub(crate) input: Option<&'a TurnInput>,
}

/// What a manifest's endpoint name means for an object.
///
/// The destination is the Endpoint that the object names, else the Endpoint of that name in the object's namespace.
/// What that leaves open (credential, origin, certificates) comes from the Secret or identity that the object or its
/// InfraCluster names where the manifest says so; what is open then, from the module's default and the manifest.
pub(crate) fn resolve(
    endpoints: &dyn Endpoints,
    asker: &Asker<'_>,
    declared: &Declared,
) -> Result<EndpointConfig, String> {
    let name = &declared.name;
    let (tenant, named) = tenants(endpoints, asker, declared)?;
    let of_tenant = tenant.as_ref().is_some_and(|tenant| tenant.origin.is_some());
    let own = match (&tenant, &named) {
        (Some(destination), _) if destination.credential.is_some() => None,
        (_, Some(named)) => Some(own_secret(endpoints, asker, named)?),
        (_, None) => None,
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
    // Where the Endpoint only says as whom, the operator's default may still say where.
    let default = match (&destination.origin, &own_origin) {
        (None, None) => endpoints.module_default(asker.module, name)?.and_then(|default| default.origin),
        _ => None,
    };
    let variable = |variable: &str| variable_value(declared, asker, variable);
    let origin = match (destination.origin.or(own_origin).or(default), &declared.url) {
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
        (None, Some(own)) => {
            if of_tenant && own.source.secret.0 != asker.namespace {
                return Err(lent(asker, name, &origin));
            }
            Credential::read(&own.source, &own.data, scope.as_ref())?
        }
        (None, None) if declared.signing.is_some() => return Err(unsigned(asker, declared)),
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

/// A credential that the operator lends to a namespace goes only where the operator or the manifest says.
fn lent(asker: &Asker<'_>, name: &str, origin: &Origin) -> String {
    format!(
        "an Endpoint of namespace {} says that endpoint {name:?} is {origin}; the operator's identity, which the object \
         names, is not used there: take spec.url from the Endpoint, give it a credential of its own, or let the operator set \
         endpoints.{name} of ProviderModule {}",
        asker.namespace, asker.module
    )
}

/// Requests that have to be signed are not sent without a signature.
fn unsigned(asker: &Asker<'_>, declared: &Declared) -> String {
    let name = &declared.name;
    let mut places: Vec<&str> = declared.credentials.iter().map(|c| c.at.as_str()).collect();
    places.dedup();
    let or = |at: &&str| {
        let kinds = declared.credentials.iter().filter(|c| c.at == **at && !c.ambient).map(|c| c.kind.as_str());
        format!(", or name one of {} at {at}", kinds.collect::<Vec<_>>().join(", "))
    };
    let named: String = places.iter().map(or).collect();
    format!(
        "endpoint {name:?} takes signed requests, and nothing says as whom: create an Endpoint {name} with a credential in \
         namespace {}{named}",
        asker.namespace
    )
}

fn unconfigured(asker: &Asker<'_>, declared: &Declared) -> String {
    let name = &declared.name;
    let reference = declared.credentials.iter().find(|c| c.is_about(name) && c.origin.is_some());
    let or = reference.map(|c| format!(", name a {} at {}", c.kind, c.at)).unwrap_or_default();
    format!(
        "endpoint {name:?} is not configured: create an Endpoint {name} in namespace {}{or}, or give ProviderModule {} a \
         default",
        asker.namespace, asker.module
    )
}

/// The Endpoint that the object names, else the one of that name in its namespace; and the Secret that it names.
fn tenants<'a>(
    endpoints: &dyn Endpoints,
    asker: &Asker<'a>,
    declared: &'a Declared,
) -> Result<(Option<Destination>, Option<NamedSecret<'a>>), String> {
    let name = declared.name.as_str();
    let named = match asker.input {
        Some(input) => {
            let asked = Asked {
                endpoint: name,
                references: &declared.credentials,
                subject: &input.subject,
                infrastructure: input.cluster.infrastructure_spec.as_ref(),
            };
            identity::named(&asked, &|key| endpoints.object(key))?
        }
        None => None,
    };
    let namespace = asker.namespace;
    match named {
        Some(Named::Endpoint(object)) => match endpoints.endpoint(namespace, &object)? {
            Some(destination) => Ok((Some(destination), None)),
            None => Err(format!("there is no Endpoint {namespace}/{object}, which the object names")),
        },
        Some(Named::Secret(secret)) => Ok((endpoints.endpoint(namespace, name)?, Some(secret))),
        None => Ok((endpoints.endpoint(namespace, name)?, None)),
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
    source: CredentialSource,
    data: SecretData,
    origin: Option<Origin>,
    ca: Option<String>,
}

fn own_secret(endpoints: &dyn Endpoints, asker: &Asker<'_>, named: &NamedSecret<'_>) -> Result<OwnSecret, String> {
    let NamedSecret { reference, namespace, name, by, roles } = named;
    let data =
        endpoints.secret(namespace, name)?.ok_or_else(|| format!("there is no Secret {namespace}/{name}, {by}"))?;
    let kind = if reference.aws {
        let roles = roles.iter().map(|role| assumed(endpoints, asker, role, namespace)).collect::<Result<_, _>>()?;
        CredentialKind::Aws { region: None, roles }
    } else {
        CredentialKind::Headers(reference.header.clone().into_iter().collect())
    };
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
    let source = CredentialSource { secret: (namespace.clone(), name.clone()), kind };
    Ok(OwnSecret { source, data, origin, ca })
}

/// A role as it is assumed: where its token service is, is said of that endpoint as of any other.
fn assumed(endpoints: &dyn Endpoints, asker: &Asker<'_>, role: &NamedRole, lender: &str) -> Result<AssumeRole, String> {
    let sts = match role.endpoint.as_deref().and_then(|name| asker.declared.iter().find(|d| d.name == name)) {
        None => None,
        Some(declared) => {
            let tenant = endpoints.endpoint(asker.namespace, &declared.name)?.and_then(|at| at.origin);
            if let Some(origin) = tenant.as_ref().filter(|_| lender != asker.namespace) {
                return Err(lent(asker, &declared.name, origin));
            }
            let default = || endpoints.module_default(asker.module, &declared.name);
            match (tenant.or(default()?.and_then(|default| default.origin)), &declared.url) {
                (Some(origin), _) => Some(origin),
                (None, Some(template)) => {
                    Some(Origin::parse(&fill(template, |variable| variable_value(declared, asker, variable))?)?)
                }
                (None, None) => return Err(unconfigured(asker, declared)),
            }
        }
    };
    Ok(AssumeRole {
        arn: role.arn.clone(),
        session_name: role.session_name.clone().unwrap_or_else(|| "capstan".to_owned()),
        external_id: role.external_id.clone(),
        seconds: role.duration_seconds.unwrap_or(3600),
        policy: role.inline_policy.clone(),
        policy_arns: role.policy_arns.clone(),
        sts,
    })
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
