//! The configuration documents of kubeadm (API `kubeadm.k8s.io/v1beta3` and `v1beta4`), as far as they decide something here.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::KubeadmError;

/// The token under which a machine may ask for its certificate: six and sixteen characters.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// The public half.
    pub id: String,
    /// The secret half.
    pub secret: String,
}

impl Token {
    /// Reads `id.secret`.
    pub fn parse(text: &str) -> Option<Token> {
        let (id, secret) = text.split_once('.')?;
        let plain = |part: &str, length: usize| {
            part.len() == length && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
        };
        (plain(id, 6) && plain(secret, 16)).then(|| Token { id: id.to_owned(), secret: secret.to_owned() })
    }

    /// `id.secret`, for an `Authorization` header.
    pub fn bearer(&self) -> String {
        format!("{}.{}", self.id, self.secret)
    }
}

/// Shows the public half only.
impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Token({}.…)", self.id)
    }
}

/// `nodeRegistration`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeRegistration {
    /// The node's name; empty: the host name.
    pub name: String,
    /// Nothing: the default taint of a control-plane machine; a list: exactly these.
    pub taints: Option<Vec<Taint>>,
    /// Arguments of the kubelet.
    pub kubelet_extra_args: Arguments,
    /// Annotation on the Node.
    pub cri_socket: Option<String>,
}

/// A taint of a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, serde::Serialize)]
pub struct Taint {
    /// The key.
    pub key: String,
    /// The value; often none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
}

/// Extra arguments: a map in v1beta3, a list of name and value in v1beta4, where a later one wins here.
#[derive(Clone, Debug, Default)]
pub struct Arguments(pub BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Arguments {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Map(BTreeMap<String, String>),
            List(Vec<Argument>),
            None(()),
        }
        #[derive(Deserialize)]
        struct Argument {
            name: String,
            #[serde(default)]
            value: String,
        }
        Ok(Arguments(match Form::deserialize(deserializer)? {
            Form::Map(map) => map,
            Form::List(list) => list.into_iter().map(|argument| (argument.name, argument.value)).collect(),
            Form::None(()) => BTreeMap::new(),
        }))
    }
}

impl Arguments {
    /// The value of an argument; empty ones count as not given.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }
}

/// `ClusterConfiguration`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterConfiguration {
    /// The name; kubeadm's default is `kubernetes`.
    pub cluster_name: String,
    /// `host:port` that machines and people use.
    pub control_plane_endpoint: String,
    /// `v1.35.0`.
    pub kubernetes_version: String,
    /// Networks.
    pub networking: Networking,
    /// Settings of the API server.
    pub api_server: ApiServerSettings,
    /// `etcd.external` says that no etcd is started.
    pub etcd: Option<Value>,
    /// Where certificates are; empty: `/etc/kubernetes/pki`.
    pub certificates_dir: String,
}

/// `networking`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Networking {
    /// Empty: `10.96.0.0/12`.
    pub service_subnet: String,
    /// May be empty.
    pub pod_subnet: String,
    /// Empty: `cluster.local`.
    pub dns_domain: String,
}

/// `apiServer`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ApiServerSettings {
    /// More names of the serving certificate.
    #[serde(rename = "certSANs")]
    pub cert_sans: Vec<String>,
}

/// `localAPIEndpoint`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LocalApiEndpoint {
    /// Empty: the machine's own.
    pub advertise_address: String,
    /// 0: 6443.
    pub bind_port: u16,
}

impl LocalApiEndpoint {
    /// The port to serve on.
    pub fn port(&self) -> u16 {
        if self.bind_port == 0 { 6443 } else { self.bind_port }
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct InitConfiguration {
    node_registration: NodeRegistration,
    #[serde(rename = "localAPIEndpoint")]
    local_api_endpoint: LocalApiEndpoint,
}

/// What `kubeadm init` was told.
#[derive(Clone, Debug)]
pub struct Init {
    /// The cluster.
    pub cluster: ClusterConfiguration,
    /// The document as it stands, for the ConfigMap `kubeadm-config`.
    pub cluster_document: Value,
    /// The node.
    pub node: NodeRegistration,
    /// The API server's address and port.
    pub local: LocalApiEndpoint,
}

/// What `kubeadm join` was told.
#[derive(Clone, Debug)]
pub struct Join {
    /// How the cluster is found.
    pub discovery: Discovery,
    /// The token to ask for a certificate with.
    pub token: Option<Token>,
    /// Seconds to wait for the endpoint.
    pub timeout_seconds: u64,
    /// The node.
    pub node: NodeRegistration,
    /// Set: this machine becomes another control-plane machine.
    pub control_plane: Option<LocalApiEndpoint>,
}

/// How a cluster is found and told from others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Discovery {
    /// From `kube-public/cluster-info` at the endpoint.
    Endpoint {
        /// `host:port`.
        endpoint: String,
        /// `sha256:<hex>` of the CA's public key; one of them must match.
        hashes: Vec<String>,
        /// No hash is needed.
        unsafe_skip: bool,
    },
    /// From a kubeconfig file.
    File(String),
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct JoinConfiguration {
    discovery: JoinDiscovery,
    node_registration: NodeRegistration,
    control_plane: Option<JoinControlPlane>,
    timeouts: Option<Timeouts>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct JoinDiscovery {
    bootstrap_token: Option<BootstrapTokenDiscovery>,
    file: Option<FileDiscovery>,
    tls_bootstrap_token: String,
    timeout: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct BootstrapTokenDiscovery {
    token: String,
    api_server_endpoint: String,
    ca_cert_hashes: Vec<String>,
    #[serde(rename = "unsafeSkipCAVerification")]
    unsafe_skip_ca_verification: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct FileDiscovery {
    kube_config_path: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct JoinControlPlane {
    #[serde(rename = "localAPIEndpoint")]
    local_api_endpoint: LocalApiEndpoint,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Timeouts {
    discovery: Option<String>,
}

/// kubeadm's own limit for discovery.
const DISCOVERY_SECONDS: u64 = 300;

/// As Kubernetes' own parser has it: `n` and `off` are strings unless they are quoted otherwise.
fn yaml_options() -> serde_saphyr::Options {
    serde_saphyr::options! { with_snippet: false, strict_booleans: true }
}

/// One YAML document; none where it is not well-formed.
pub(crate) fn yaml(text: &str) -> Option<Value> {
    serde_saphyr::from_str_with_options(text, yaml_options()).ok()
}

/// The documents of a file by kind. Messages never quote the file, which holds a token.
fn documents(path: &str, content: &[u8]) -> Result<BTreeMap<String, Value>, KubeadmError> {
    let wrong = |reason: String| KubeadmError::Config { path: path.to_owned(), reason };
    let text = std::str::from_utf8(content).map_err(|_| wrong("is not text in UTF-8".into()))?;
    let parsed: Vec<Value> = serde_saphyr::from_multiple_with_options(text, yaml_options()).map_err(|error| {
        let place = error.location().map_or(String::new(), |l| format!(" at line {}, column {}", l.line(), l.column()));
        wrong(format!("is not well-formed YAML{place}"))
    })?;
    let mut documents = BTreeMap::new();
    for document in parsed.into_iter().filter(|document| !document.is_null()) {
        let field = |name: &str| document.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (version, kind) = (field("apiVersion"), field("kind"));
        if kind.is_empty() || version.is_empty() {
            return Err(wrong("has a document without apiVersion or kind".into()));
        }
        if let Some(revision) = version.strip_prefix("kubeadm.k8s.io/")
            && !matches!(revision, "v1beta3" | "v1beta4")
        {
            return Err(wrong(format!("{kind} is of {version}; v1beta3 and v1beta4 are known")));
        }
        if documents.insert(kind.clone(), document).is_some() {
            return Err(wrong(format!("has {kind} twice")));
        }
    }
    Ok(documents)
}

fn typed<T: serde::de::DeserializeOwned>(path: &str, kind: &str, document: Value) -> Result<T, KubeadmError> {
    serde_json::from_value(document).map_err(|error| {
        // serde's messages quote values; what is left of them is the kind of fault.
        let text = error.to_string();
        let reason = text.split(": ").next().unwrap_or_default().to_owned();
        KubeadmError::Config {
            path: path.to_owned(),
            reason: format!("{kind} has a field of another shape ({reason})"),
        }
    })
}

/// Reads `ClusterConfiguration` and `InitConfiguration`.
pub fn read_init(path: &str, content: &[u8]) -> Result<Init, KubeadmError> {
    let mut documents = documents(path, content)?;
    let cluster_document = documents
        .remove("ClusterConfiguration")
        .ok_or_else(|| KubeadmError::Config { path: path.to_owned(), reason: "has no ClusterConfiguration".into() })?;
    let cluster = cluster(path, cluster_document.clone())?;
    let init: InitConfiguration = match documents.remove("InitConfiguration") {
        Some(document) => typed(path, "InitConfiguration", document)?,
        None => InitConfiguration::default(),
    };
    Ok(Init { cluster, cluster_document, node: init.node_registration, local: init.local_api_endpoint })
}

/// A `ClusterConfiguration` with kubeadm's defaults.
pub fn cluster(path: &str, document: Value) -> Result<ClusterConfiguration, KubeadmError> {
    let mut cluster: ClusterConfiguration = typed(path, "ClusterConfiguration", document)?;
    let default = |field: &mut String, value: &str| {
        if field.is_empty() {
            value.clone_into(field);
        }
    };
    default(&mut cluster.cluster_name, "kubernetes");
    default(&mut cluster.kubernetes_version, "v1.35.0");
    if !cluster.kubernetes_version.starts_with('v') {
        cluster.kubernetes_version.insert(0, 'v');
    }
    default(&mut cluster.networking.service_subnet, "10.96.0.0/12");
    default(&mut cluster.networking.dns_domain, "cluster.local");
    default(&mut cluster.certificates_dir, "/etc/kubernetes/pki");
    Ok(cluster)
}

/// Reads `JoinConfiguration`.
pub fn read_join(path: &str, content: &[u8]) -> Result<Join, KubeadmError> {
    let wrong = |reason: &str| KubeadmError::Config { path: path.to_owned(), reason: reason.to_owned() };
    let mut documents = documents(path, content)?;
    let document = documents.remove("JoinConfiguration").ok_or_else(|| wrong("has no JoinConfiguration"))?;
    let join: JoinConfiguration = typed(path, "JoinConfiguration", document)?;
    let JoinDiscovery { bootstrap_token, file, tls_bootstrap_token, timeout } = join.discovery;

    let mut token_text = tls_bootstrap_token;
    let discovery = match (bootstrap_token, file) {
        (Some(_), Some(_)) => return Err(wrong("discovery has both bootstrapToken and file")),
        (None, None) => return Err(wrong("discovery has neither bootstrapToken nor file")),
        (None, Some(file)) => {
            if file.kube_config_path.is_empty() {
                return Err(wrong("discovery.file.kubeConfigPath is missing"));
            }
            Discovery::File(file.kube_config_path)
        }
        (Some(by_token), None) => {
            if by_token.api_server_endpoint.is_empty() {
                return Err(wrong("discovery.bootstrapToken.apiServerEndpoint is missing"));
            }
            if by_token.ca_cert_hashes.is_empty() && !by_token.unsafe_skip_ca_verification {
                return Err(wrong(
                    "discovery.bootstrapToken has no caCertHashes; give them or set unsafeSkipCAVerification",
                ));
            }
            if token_text.is_empty() {
                token_text = by_token.token;
            }
            Discovery::Endpoint {
                endpoint: by_token.api_server_endpoint,
                hashes: by_token.ca_cert_hashes,
                unsafe_skip: by_token.unsafe_skip_ca_verification,
            }
        }
    };
    let token = if token_text.is_empty() {
        None
    } else {
        Some(Token::parse(&token_text).ok_or_else(|| wrong("the token has not the form abcdef.0123456789abcdef"))?)
    };
    if token.is_none() && matches!(discovery, Discovery::Endpoint { .. }) {
        return Err(wrong("discovery.bootstrapToken.token is missing"));
    }
    let limit = join.timeouts.and_then(|timeouts| timeouts.discovery).or(timeout);
    let timeout_seconds = match limit {
        None => DISCOVERY_SECONDS,
        Some(text) => seconds(&text).ok_or_else(|| wrong("the discovery timeout is no duration such as 5m0s"))?,
    };
    Ok(Join {
        discovery,
        token,
        timeout_seconds,
        node: join.node_registration,
        control_plane: join.control_plane.map(|plane| plane.local_api_endpoint),
    })
}

/// Go's durations, to the second: `5m0s`, `1h`, `90s`. `0s` is no limit in kubeadm and the default here.
fn seconds(text: &str) -> Option<u64> {
    let mut total = 0.0;
    let mut number = String::new();
    for c in text.trim().chars() {
        if c.is_ascii_digit() || c == '.' {
            number.push(c);
            continue;
        }
        let unit = match c {
            'h' => 3600.0,
            'm' => 60.0,
            's' => 1.0,
            _ => return None,
        };
        total += number.parse::<f64>().ok()? * unit;
        number.clear();
    }
    if !number.is_empty() {
        return None;
    }
    Some(if total == 0.0 { DISCOVERY_SECONDS } else { total.ceil() as u64 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn init_of_both_versions() {
        for (version, arguments) in [
            ("v1beta3", "{provider-id: 'x://1', node-labels: 'a=b'}"),
            ("v1beta4", "[{name: provider-id, value: 'x://1'}, {name: node-labels, value: 'a=b'}]"),
        ] {
            let text = format!(
                "apiVersion: kubeadm.k8s.io/{version}\nkind: ClusterConfiguration\nclusterName: c\ncontrolPlaneEndpoint: 127.64.0.1:6443\nkubernetesVersion: 1.35.1\nnetworking: {{podSubnet: 192.168.0.0/16}}\napiServer: {{certSANs: [extra]}}\n---\napiVersion: kubeadm.k8s.io/{version}\nkind: InitConfiguration\nlocalAPIEndpoint: {{bindPort: 7443}}\nnodeRegistration:\n  name: n\n  taints: []\n  kubeletExtraArgs: {arguments}\n---\n"
            );
            let init = read_init("/f", text.as_bytes()).unwrap();
            assert_eq!(init.cluster.kubernetes_version, "v1.35.1");
            assert_eq!(init.cluster.networking.service_subnet, "10.96.0.0/12");
            assert_eq!(init.cluster.api_server.cert_sans, ["extra"]);
            assert_eq!(init.local.port(), 7443);
            assert_eq!(init.node.taints, Some(vec![]));
            assert_eq!(init.node.kubelet_extra_args.get("provider-id"), Some("x://1"));
        }
    }

    #[test]
    fn join_by_token() {
        let text = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: JoinConfiguration\ndiscovery:\n  timeout: 1m30s\n  bootstrapToken:\n    token: abcdef.0123456789abcdef\n    apiServerEndpoint: h:6443\n    caCertHashes: ['sha256:aa']\nnodeRegistration:\n  kubeletExtraArgs: null\n  taints:\n  - {key: k, effect: NoSchedule}\n";
        let join = read_join("/f", text.as_bytes()).unwrap();
        assert_eq!(join.timeout_seconds, 90);
        assert_eq!(join.token.unwrap().bearer(), "abcdef.0123456789abcdef");
        assert!(join.control_plane.is_none());
        assert_eq!(
            join.discovery,
            Discovery::Endpoint { endpoint: "h:6443".into(), hashes: vec!["sha256:aa".into()], unsafe_skip: false }
        );
        let plane = text.to_owned() + "controlPlane: {localAPIEndpoint: {bindPort: 1}}\n";
        assert_eq!(read_join("/f", plane.as_bytes()).unwrap().control_plane.unwrap().port(), 1);
    }

    #[test]
    fn faults_are_named_without_quoting_the_file() {
        let join = |body: &str| {
            read_join("/f", format!("apiVersion: kubeadm.k8s.io/v1beta4\nkind: JoinConfiguration\n{body}").as_bytes())
        };
        for (body, part) in [
            ("", "neither"),
            ("discovery: {bootstrapToken: {token: abcdef.0123456789abcdef}}", "apiServerEndpoint"),
            ("discovery: {bootstrapToken: {token: abcdef.0123456789abcdef, apiServerEndpoint: a}}", "caCertHashes"),
            ("discovery: {bootstrapToken: {token: secret, apiServerEndpoint: a, caCertHashes: [x]}}", "form"),
            ("discovery: {bootstrapToken: {apiServerEndpoint: a, caCertHashes: [x]}}", "token is missing"),
            ("discovery: {file: {kubeConfigPath: a}, bootstrapToken: {}}", "both"),
            ("discovery: {file: {}}", "kubeConfigPath"),
            ("discovery: {file: {kubeConfigPath: a}, timeout: secret}", "duration"),
            ("discovery: [secret]", "shape"),
            ("discovery: {bootstrapToken: {token: {secret: secret}}}", "shape"),
            ("discovery: {\"secret", "YAML"),
        ] {
            let error = join(body).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("/f") && !error.contains("secret"), "{body}: {error}");
        }
        for (text, part) in [
            ("kind: X", "apiVersion"),
            ("apiVersion: kubeadm.k8s.io/v1alpha1\nkind: ClusterConfiguration", "v1beta3"),
            ("apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration", "no ClusterConfiguration"),
        ] {
            assert!(read_init("/f", text.as_bytes()).unwrap_err().to_string().contains(part), "{text}");
        }
    }
}
