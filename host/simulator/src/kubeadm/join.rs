//! `kubeadm join`: the cluster is found, checked to be the right one, and asked for a certificate.

use std::time::Duration;

use base64::Engine as _;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::config::{self, Discovery, Join, Token};
use super::init::{ControlPlane, KUBELET_CONF};
use super::pki::Pki;
use super::{KubeadmError, Machine, objects, pki};
use crate::api::{self, Answer, Api, Https, Trust};
use crate::files::Files;

/// First and longest pause between two attempts to reach the endpoint.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// How long a certificate request may stay unsigned.
const SIGNING_LIMIT: Duration = Duration::from_secs(60);

/// A machine that has joined.
pub struct Joined {
    /// The Node it registered.
    pub node: Value,
    /// `host:port` of the cluster.
    pub endpoint: String,
    /// The kubelet's way to the API.
    pub kubelet: Https,
    /// Set where it became another control-plane machine, with its certificates.
    pub control_plane: Option<(ControlPlane, Pki)>,
}

/// Where the cluster is and whom to trust.
struct Cluster {
    endpoint: String,
    authority_pem: String,
    /// The token to ask for a certificate with.
    token: Token,
}

/// Joins as the configuration file says. `say` is told each phase, as kubeadm prints it.
pub async fn join(
    files: &dyn Files,
    path: &str,
    machine: &Machine,
    say: &(dyn Fn(&str) + Send + Sync),
) -> Result<Joined, KubeadmError> {
    if files.exists(KUBELET_CONF) {
        return Err(KubeadmError::AlreadyDone { path: KUBELET_CONF.into() });
    }
    let content = files
        .read(path)
        .map_err(|error| KubeadmError::Config { path: path.to_owned(), reason: format!("cannot be read: {error}") })?;
    let join = config::read_join(path, &content)?;
    let deadline = Instant::now() + Duration::from_secs(join.timeout_seconds);

    say("[preflight] Running pre-flight checks");
    let cluster = discover(files, &join, deadline, say).await?;
    let trust =
        || pki::certificates(cluster.authority_pem.as_bytes()).map(Trust::Authorities).map_err(KubeadmError::Discovery);
    let client = |certificate: Option<(&str, &str)>| -> Result<Https, KubeadmError> {
        Https::new(&cluster.endpoint, trust()?, certificate).map_err(KubeadmError::Discovery)
    };

    say("[preflight] Reading configuration from the cluster...");
    let bootstrap = client(None)?.with_bearer(cluster.token.bearer());
    let configuration = cluster_configuration(&bootstrap, &cluster, &join, deadline).await?;

    say("[kubelet-start] Waiting for the kubelet to perform the TLS Bootstrap");
    let node = objects::node_name(&join.node, machine);
    let (key, request) = pki::kubelet_request(&node)?;
    let certificate = signed(&bootstrap, &node, &request).await?;
    let kubelet = client(Some((&certificate, &key)))?;

    let parsed = config::cluster("kubeadm-config", configuration.clone())?;
    let control_plane = match &join.control_plane {
        None => None,
        Some(local) => {
            let plane = ControlPlane::new(&parsed, configuration, &join.node, local, machine)?;
            let own = plane.pki(files)?;
            let cluster_ca = pki::certificates(cluster.authority_pem.as_bytes()).map_err(KubeadmError::Discovery)?;
            if !cluster_ca.contains(own.ca.certificate()) {
                return Err(KubeadmError::Discovery(format!(
                    "{}/ca.crt is not the authority of the cluster at {}",
                    plane.certificates, cluster.endpoint
                )));
            }
            Some((plane, own))
        }
    };
    let now = jiff::Timestamp::now();
    super::init::register(&kubelet, machine, &join.node, &parsed, join.control_plane.is_some(), now).await?;
    let object = objects::node(machine, &join.node, join.control_plane.is_some(), &parsed.kubernetes_version, now);

    let user = format!("system:node:{node}");
    let kubeconfig = objects::kubeconfig(
        &cluster.endpoint,
        &cluster.authority_pem,
        &parsed.cluster_name,
        Some((&user, &certificate, &key)),
    );
    for (path, mode, text) in [
        (KUBELET_CONF, 0o600, kubeconfig.as_str()),
        ("/etc/kubernetes/pki/ca.crt", 0o644, cluster.authority_pem.as_str()),
    ] {
        files
            .put(path, mode, text.as_bytes(), false)
            .map_err(|error| KubeadmError::Write { path: path.into(), reason: error.to_string() })?;
    }
    say("This node has joined the cluster.");
    Ok(Joined { node: object, endpoint: cluster.endpoint, kubelet, control_plane })
}

async fn discover(
    files: &dyn Files,
    join: &Join,
    deadline: Instant,
    say: &(dyn Fn(&str) + Send + Sync),
) -> Result<Cluster, KubeadmError> {
    match &join.discovery {
        Discovery::File(path) => from_file(files, path, join),
        Discovery::Endpoint { endpoint, hashes, unsafe_skip } => {
            let token = join.token.clone().ok_or_else(|| KubeadmError::Discovery("there is no token".into()))?;
            let endpoint = endpoint.trim_start_matches("https://").to_owned();
            let anybody = Https::new(&endpoint, Trust::Anybody, None).map_err(KubeadmError::Discovery)?;
            let path = "/api/v1/namespaces/kube-public/configmaps/cluster-info";
            let told = |problem: &str| say(&format!("[discovery] {endpoint} is not there yet: {problem}"));
            let info = patiently(&endpoint, join.timeout_seconds, deadline, &told, || api::get(&anybody, path)).await?;
            let info = api::expect("reading cluster-info", Ok(info))?.body;
            let text = |key: &str| info.pointer("/data").and_then(|data| data.get(key)).and_then(Value::as_str);
            let kubeconfig = text("kubeconfig")
                .ok_or_else(|| KubeadmError::Discovery(format!("cluster-info at {endpoint} holds no kubeconfig")))?;
            if let Some(signature) = text(&format!("jws-kubeconfig-{}", token.id))
                && signature != super::workload::detached_signature(&token.id, &token.secret, kubeconfig.as_bytes())
            {
                return Err(KubeadmError::Discovery(format!(
                    "the signature of cluster-info at {endpoint} was not made with the token {}: a wrong token, or another cluster",
                    token.id
                )));
            }
            let (_, authority_pem) = read_kubeconfig(kubeconfig).map_err(|problem| {
                KubeadmError::Discovery(format!("the kubeconfig in cluster-info at {endpoint} {problem}"))
            })?;
            if !unsafe_skip {
                check_hashes(&endpoint, &authority_pem, hashes)?;
            }
            Ok(Cluster { endpoint, authority_pem, token })
        }
    }
}

fn check_hashes(endpoint: &str, authority_pem: &str, hashes: &[String]) -> Result<(), KubeadmError> {
    let authorities = pki::certificates(authority_pem.as_bytes()).map_err(KubeadmError::Discovery)?;
    let found: Vec<String> = authorities.iter().filter_map(pki::public_key_hash).collect();
    if found.iter().any(|hash| hashes.iter().any(|wanted| wanted.eq_ignore_ascii_case(hash))) {
        return Ok(());
    }
    Err(KubeadmError::Discovery(format!(
        "the authority of the cluster at {endpoint} has the public key hash {}, but caCertHashes has {}",
        found.join(", "),
        hashes.join(", ")
    )))
}

fn from_file(files: &dyn Files, path: &str, join: &Join) -> Result<Cluster, KubeadmError> {
    let wrong = |reason: String| KubeadmError::Discovery(format!("{path} {reason}"));
    let content = files.read(path).map_err(|error| wrong(format!("cannot be read: {error}")))?;
    let text = String::from_utf8(content).map_err(|_| wrong("is not text".into()))?;
    let (server, authority_pem) = read_kubeconfig(&text).map_err(|problem| wrong(problem.to_owned()))?;
    let token = join
        .token
        .clone()
        .or_else(|| kubeconfig_token(&text))
        .ok_or_else(|| wrong("has no bootstrap token, and discovery.tlsBootstrapToken is not set".into()))?;
    let bare = server.strip_prefix("https://").ok_or_else(|| wrong("has a server that is not https://".into()))?;
    let bare = bare.split('/').next().unwrap_or_default();
    let endpoint = if bare.rsplit_once(']').map_or(bare, |(_, rest)| rest).contains(':') {
        bare.to_owned()
    } else {
        format!("{bare}:443")
    };
    Ok(Cluster { endpoint, authority_pem, token })
}

/// Server and authority of a kubeconfig's first cluster. Only inline certificates count.
fn read_kubeconfig(text: &str) -> Result<(String, String), &'static str> {
    let config = config::yaml(text).ok_or("is not well-formed YAML")?;
    let cluster = config.pointer("/clusters/0/cluster").ok_or("names no cluster")?;
    let field = |name: &str| cluster.get(name).and_then(Value::as_str);
    let server = field("server").ok_or("names no server")?.to_owned();
    let data = field("certificate-authority-data").ok_or("has no certificate-authority-data")?;
    let pem = base64::engine::general_purpose::STANDARD
        .decode(data)
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .ok_or("has a certificate-authority-data that is no PEM in base64")?;
    Ok((server, pem))
}

fn kubeconfig_token(text: &str) -> Option<Token> {
    let config = config::yaml(text)?;
    Token::parse(config.pointer("/users/0/user/token")?.as_str()?)
}

/// Asks until the endpoint answers: a refused connection, a failed handshake, a 5xx and a 404 of what is about to be there are tried again.
async fn patiently<F, T>(
    endpoint: &str,
    seconds: u64,
    deadline: Instant,
    told: &(dyn Fn(&str) + Send + Sync),
    mut ask: F,
) -> Result<Answer, KubeadmError>
where
    F: FnMut() -> T,
    T: Future<Output = Result<Answer, String>>,
{
    let mut pause = PAUSE.0;
    let mut last = String::new();
    loop {
        let problem = match ask().await {
            Ok(answer) if answer.status < 500 && answer.status != 404 && answer.status != 429 => return Ok(answer),
            Ok(answer) => format!("{}: {}", answer.status, answer.message()),
            Err(problem) => problem,
        };
        // One line for each new reason, not for each attempt.
        if problem != last {
            told(&problem);
            last = problem;
        }
        if Instant::now() + pause >= deadline {
            return Err(KubeadmError::Timeout { endpoint: endpoint.to_owned(), seconds, last });
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 3 / 2).min(PAUSE.1);
    }
}

/// `kubeadm-config`, read with the token: shows that the token is good.
async fn cluster_configuration(
    api: &dyn Api,
    cluster: &Cluster,
    join: &Join,
    deadline: Instant,
) -> Result<Value, KubeadmError> {
    let path = "/api/v1/namespaces/kube-system/configmaps/kubeadm-config";
    let answer = patiently(&cluster.endpoint, join.timeout_seconds, deadline, &|_| {}, || api::get(api, path)).await?;
    if answer.status == 401 || answer.status == 403 {
        return Err(KubeadmError::Discovery(format!(
            "the cluster at {} does not take the token {} ({} {}): it is wrong or has expired",
            cluster.endpoint,
            cluster.token.id,
            answer.status,
            answer.message()
        )));
    }
    let config = api::expect("reading kubeadm-config", Ok(answer))?.body;
    let text = config.pointer("/data/ClusterConfiguration").and_then(Value::as_str).unwrap_or_default();
    config::yaml(text)
        .ok_or_else(|| KubeadmError::Discovery("kubeadm-config of the cluster holds no ClusterConfiguration".into()))
}

/// Has a certificate request signed by the cluster.
async fn signed(api: &dyn Api, node: &str, request_pem: &str) -> Result<String, KubeadmError> {
    let attempt = format!("asking for a client certificate of Node {node}");
    let engine = base64::engine::general_purpose::STANDARD;
    let collection = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let object = json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"generateName": "node-csr-"},
        "spec": {"request": engine.encode(request_pem), "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
                 "usages": ["digital signature", "key encipherment", "client auth"]},
    });
    let mut request = api::expect(&attempt, api::create(api, collection, &object).await)?.body;
    let name = request.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned();
    let deadline = Instant::now() + SIGNING_LIMIT;
    let mut pause = Duration::from_millis(5);
    loop {
        if let Some(certificate) = request.pointer("/status/certificate").and_then(Value::as_str) {
            let pem = engine.decode(certificate).ok().and_then(|bytes| String::from_utf8(bytes).ok());
            return pem.ok_or_else(|| KubeadmError::Other(format!("{attempt}: the certificate is no PEM")));
        }
        for condition in request.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten() {
            let field = |name: &str| condition.get(name).and_then(Value::as_str).unwrap_or_default();
            if matches!(field("type"), "Denied" | "Failed") {
                return Err(KubeadmError::Other(format!("{attempt}: {}: {}", field("reason"), field("message"))));
            }
        }
        if Instant::now() >= deadline {
            return Err(KubeadmError::Other(format!("{attempt}: nobody signed the request {name} in time")));
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(1));
        request = api::expect(&attempt, api::get(api, &format!("{collection}/{name}")).await)?.body;
    }
}
