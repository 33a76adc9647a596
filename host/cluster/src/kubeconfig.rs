//! Kubeconfigs of workload clusters.
//!
//! A kubeconfig Secret is data from a tenant: only inline certificates and tokens are honoured. What would run a
//! program, read a file of this machine or go through a proxy is refused by name (design, section 6).

use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde_json::Value;

/// Why a kubeconfig is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KubeconfigError {
    /// It is no kubeconfig.
    #[error("the kubeconfig cannot be read: {0}")]
    Unreadable(String),
    /// It asks for something that is not honoured.
    #[error("the kubeconfig has {0}, which is not honoured here: only inline certificates and tokens are")]
    NotHonoured(String),
    /// Something is missing in it.
    #[error("the kubeconfig has no {0}")]
    Missing(&'static str),
}

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    clusters: Vec<NamedCluster>,
    #[serde(default)]
    users: Vec<NamedUser>,
    #[serde(default)]
    contexts: Vec<NamedContext>,
    #[serde(rename = "current-context", default)]
    current: String,
}

#[derive(Deserialize)]
struct NamedCluster {
    name: String,
    cluster: serde_json::Map<String, Value>,
}

#[derive(Deserialize)]
struct NamedUser {
    name: String,
    #[serde(default)]
    user: serde_json::Map<String, Value>,
}

#[derive(Deserialize)]
struct NamedContext {
    name: String,
    context: Context,
}

#[derive(Deserialize)]
struct Context {
    cluster: String,
    user: String,
}

/// Fields that a cluster entry may have.
const CLUSTER_FIELDS: [&str; 5] =
    ["server", "certificate-authority-data", "insecure-skip-tls-verify", "tls-server-name", "extensions"];
/// Fields that a user entry may have.
const USER_FIELDS: [&str; 4] = ["client-certificate-data", "client-key-data", "token", "extensions"];

/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(5);

/// The connection that a kubeconfig describes.
///
/// # Errors
/// [`KubeconfigError`]; its text holds nothing secret.
pub fn config(text: &[u8]) -> Result<kube::Config, KubeconfigError> {
    let text = std::str::from_utf8(text).map_err(|_| KubeconfigError::Unreadable("it is not UTF-8".into()))?;
    let file: File = serde_saphyr::from_str(text)
        .map_err(|_| KubeconfigError::Unreadable("it is not a YAML document of kind Config".into()))?;
    let context = file
        .contexts
        .iter()
        .find(|c| c.name == file.current)
        .or_else(|| file.contexts.first().filter(|_| file.current.is_empty()))
        .map(|c| &c.context)
        .ok_or(KubeconfigError::Missing("context of the name that current-context says"))?;
    let cluster = file
        .clusters
        .iter()
        .find(|c| c.name == context.cluster)
        .map(|c| &c.cluster)
        .ok_or(KubeconfigError::Missing("cluster of the name that the context says"))?;
    let user = file
        .users
        .iter()
        .find(|u| u.name == context.user)
        .map(|u| &u.user)
        .ok_or(KubeconfigError::Missing("user of the name that the context says"))?;
    only(cluster, &CLUSTER_FIELDS)?;
    only(user, &USER_FIELDS)?;
    let text_of =
        |map: &serde_json::Map<String, Value>, key: &str| map.get(key).and_then(Value::as_str).map(str::to_owned);

    let server = text_of(cluster, "server").ok_or(KubeconfigError::Missing("server"))?;
    let uri: http::Uri = server.parse().map_err(|_| KubeconfigError::Unreadable("its server is no URL".into()))?;
    if uri.scheme_str() != Some("https") {
        return Err(KubeconfigError::NotHonoured("a server without https".into()));
    }
    if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err(KubeconfigError::NotHonoured("a server with a user name".into()));
    }
    let mut config = kube::Config::new(uri);
    config.connect_timeout = Some(CONNECT);
    config.default_retry = false;
    config.accept_invalid_certs = cluster.get("insecure-skip-tls-verify").and_then(Value::as_bool).unwrap_or(false);
    config.tls_server_name = text_of(cluster, "tls-server-name");
    if let Some(authority) = text_of(cluster, "certificate-authority-data") {
        config.root_cert = Some(certificates(&authority)?);
    }
    config.auth_info.client_certificate_data = text_of(user, "client-certificate-data");
    config.auth_info.client_key_data = text_of(user, "client-key-data").map(Into::into);
    config.auth_info.token = text_of(user, "token").map(Into::into);
    Ok(config)
}

fn only(map: &serde_json::Map<String, Value>, allowed: &[&str]) -> Result<(), KubeconfigError> {
    match map.keys().find(|key| !allowed.contains(&key.as_str())) {
        Some(key) => Err(KubeconfigError::NotHonoured(key.clone())),
        None => Ok(()),
    }
}

fn certificates(encoded: &str) -> Result<Vec<Vec<u8>>, KubeconfigError> {
    let unreadable = || KubeconfigError::Unreadable("its certificate-authority-data are no PEM certificates".into());
    let pem = BASE64_STANDARD.decode(encoded).map_err(|_| unreadable())?;
    let mut found = Vec::new();
    for block in x509_parser::pem::Pem::iter_from_buffer(&pem) {
        let block = block.map_err(|_| unreadable())?;
        if block.label == "CERTIFICATE" {
            found.push(block.contents);
        }
    }
    if found.is_empty() { Err(unreadable()) } else { Ok(found) }
}

/// The text of an admin's kubeconfig. All arguments but the names are PEM.
pub fn render(cluster: &str, server: &str, authority: &str, certificate: &str, key: &str) -> String {
    let user = format!("{cluster}-admin");
    format!(
        "apiVersion: v1\n\
         kind: Config\n\
         clusters:\n\
         - name: {cluster}\n  \
           cluster:\n    \
             certificate-authority-data: {}\n    \
             server: {server}\n\
         contexts:\n\
         - name: {user}@{cluster}\n  \
           context:\n    \
             cluster: {cluster}\n    \
             user: {user}\n\
         current-context: {user}@{cluster}\n\
         users:\n\
         - name: {user}\n  \
           user:\n    \
             client-certificate-data: {}\n    \
             client-key-data: {}\n",
        BASE64_STANDARD.encode(authority),
        BASE64_STANDARD.encode(certificate),
        BASE64_STANDARD.encode(key),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pem() -> String {
        let key = rcgen::KeyPair::generate().unwrap();
        rcgen::CertificateParams::new(vec![]).unwrap().self_signed(&key).unwrap().pem()
    }

    #[test]
    fn what_is_rendered_is_read() {
        let text = render("c1", "https://127.0.0.2:6443", &pem(), "cert", "key");
        let config = config(text.as_bytes()).unwrap();
        assert_eq!(config.cluster_url.to_string(), "https://127.0.0.2:6443/");
        assert_eq!(config.root_cert.unwrap().len(), 1);
        assert!(config.auth_info.client_certificate_data.is_some());
    }

    #[test]
    fn what_would_run_or_read_something_here_is_refused_by_name() {
        for (user, named) in [
            ("exec: {command: /bin/sh, apiVersion: x}", "exec"),
            ("tokenFile: /etc/passwd", "tokenFile"),
            ("client-key: /root/key", "client-key"),
            ("client-certificate: /root/crt", "client-certificate"),
            ("auth-provider: {name: x}", "auth-provider"),
            ("as: system:admin", "as"),
            ("as-uid: x", "as-uid"),
            ("as-groups: [system:masters]", "as-groups"),
            ("as-user-extra: {a: [b]}", "as-user-extra"),
            ("username: u", "username"),
            ("password: s3cret", "password"),
        ] {
            let text = render("c1", "https://h:1", &pem(), "c", "k");
            let text = format!("{}\n    {user}\n", text.trim_end());
            assert_eq!(config(text.as_bytes()).unwrap_err(), KubeconfigError::NotHonoured(named.into()));
        }
        for (cluster, named) in [
            ("proxy-url: http://p", "proxy-url"),
            ("certificate-authority: /etc/shadow", "certificate-authority"),
            ("surprise: x", "surprise"),
        ] {
            let text = render("c1", "https://h:1", &pem(), "c", "k");
            let text = text.replace("    server:", &format!("    {cluster}\n    server:"));
            assert_eq!(config(text.as_bytes()).unwrap_err(), KubeconfigError::NotHonoured(named.into()));
        }
        for server in ["http://h:1", "https://u:p@h:1", "unix:///run/docker.sock", "file:///etc/passwd", "h:1", ""] {
            assert!(config(render("c1", server, &pem(), "c", "k").as_bytes()).is_err(), "{server}");
        }
    }

    #[test]
    fn an_unreadable_one_is_not_quoted() {
        let error = config(b"users: [{name: a, user: {token: s3cret}}").unwrap_err().to_string();
        assert!(!error.contains("s3cret"), "{error}");
    }
}
