//! What an endpoint's name means for one object.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use reqwest::Url;

use crate::Protocol;

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
}

/// What a tenant's or operator's configuration says about an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Where requests go.
    pub origin: Origin,
    /// PEM certificates that alone are trusted; `None`: those that the system trusts.
    pub ca: Option<String>,
    /// A shorter limit than the manifest's.
    pub timeout: Option<Duration>,
    /// A smaller limit than the manifest's, in bytes.
    pub max_response: Option<u64>,
}

impl Destination {
    /// A destination that says only where.
    pub fn of(origin: Origin) -> Self {
        Self { origin, ca: None, timeout: None, max_response: None }
    }
}

/// An endpoint as it is used in one turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointConfig {
    /// Name in the manifest.
    pub name: String,
    /// Where requests go.
    pub origin: Origin,
    /// PEM certificates that alone are trusted.
    pub ca: Option<String>,
    /// What counts as a read.
    pub protocol: Protocol,
    /// The longest that a request may take, answer included.
    pub timeout: Duration,
    /// The largest answer, in bytes.
    pub max_response: u64,
}

impl EndpointConfig {
    pub(crate) fn new(declared: &Declared, destination: Destination) -> Self {
        Self {
            name: declared.name.clone(),
            origin: destination.origin,
            ca: destination.ca,
            protocol: declared.protocol,
            timeout: destination.timeout.map_or(declared.timeout, |limit| limit.min(declared.timeout)),
            max_response: destination
                .max_response
                .map_or(declared.max_response, |limit| limit.min(declared.max_response)),
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
}

/// What a manifest's endpoint name means for an object: the Endpoint that the object names, else the Endpoint of
/// that name in the object's namespace, else the module's default.
pub(crate) fn resolve(
    endpoints: &dyn Endpoints,
    module: &str,
    namespace: &str,
    chosen: &BTreeMap<String, (String, String)>,
    name: &str,
) -> Result<Destination, String> {
    if let Some((namespace, object)) = chosen.get(name) {
        return endpoints
            .endpoint(namespace, object)?
            .ok_or_else(|| format!("there is no Endpoint {namespace}/{object}, which the object names"));
    }
    if let Some(own) = endpoints.endpoint(namespace, name)? {
        return Ok(own);
    }
    endpoints.module_default(module, name)?.ok_or_else(|| {
        format!(
            "endpoint {name:?} is not configured: create an Endpoint {name} in namespace {namespace}, or give ProviderModule {module} a default"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Table(Vec<(&'static str, &'static str)>, Option<&'static str>);

    impl Endpoints for Table {
        fn endpoint(&self, namespace: &str, name: &str) -> Result<Option<Destination>, String> {
            let found = self.0.iter().any(|(ns, n)| (*ns, *n) == (namespace, name));
            Ok(found.then(|| Destination::of(Origin::parse(&format!("http://{namespace}.{name}")).unwrap())))
        }
        fn module_default(&self, _: &str, _: &str) -> Result<Option<Destination>, String> {
            Ok(self.1.map(|text| Destination::of(Origin::parse(text).unwrap())))
        }
    }

    #[test]
    fn the_object_s_choice_wins_then_its_namespace_then_the_default() {
        let table = Table(vec![("a", "api"), ("b", "other")], Some("http://default"));
        let origin = |namespace: &str, chosen: &[(&str, (&str, &str))]| {
            let chosen = chosen.iter().map(|(n, (ns, o))| ((*n).into(), ((*ns).into(), (*o).into()))).collect();
            resolve(&table, "m", namespace, &chosen, "api").map(|d| d.origin.to_string())
        };
        assert_eq!(origin("a", &[("api", ("b", "other"))]).unwrap(), "http://b.other");
        assert_eq!(origin("a", &[]).unwrap(), "http://a.api");
        assert_eq!(origin("c", &[]).unwrap(), "http://default");
        let missing = origin("a", &[("api", ("b", "gone"))]).unwrap_err();
        assert!(missing.contains("b/gone"), "{missing}");
        let table = Table(vec![], None);
        let nothing = resolve(&table, "m", "c", &BTreeMap::new(), "api").unwrap_err();
        assert!(nothing.contains("api") && nothing.contains("namespace c"), "{nothing}");
    }

    #[test]
    fn origins_that_would_surprise_are_refused() {
        for bad in ["ftp://h", "h:80", "https://u:p@h", "http://h/?a=b", "unix://relative", "https://"] {
            assert!(Origin::parse(bad).is_err(), "{bad}");
        }
        assert_eq!(Origin::parse("https://h:8006/").unwrap().to_string(), "https://h:8006");
        assert_eq!(Origin::parse("unix:///run/x.sock").unwrap(), Origin::UnixSocket("/run/x.sock".into()));
    }
}
