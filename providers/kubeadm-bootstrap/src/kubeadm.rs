//! The documents that kubeadm reads, in the version of its API that the machine's Kubernetes version wants: v1beta3 up to
//! 1.30, v1beta4 from 1.31.

use capstan_provider::{
    Context, Error, Result,
    bootstrap::{self, JoinRole},
    json, secrets,
};
use kubeadm_types::{
    KubeadmConfigSpec,
    kubeadm::{Arg, ClusterConfiguration, NodeRegistration, Taint, Timeouts},
    pruned,
};
use serde_json::{Map, Value, json};

use crate::{KubeadmConfig, yaml::Yaml};

/// The taint that keeps work away until Cluster API has labelled the node.
const UNINITIALIZED: &str = "node.cluster.x-k8s.io/uninitialized";

/// A version of kubeadm's API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Up to 1.30.
    V1Beta3,
    /// From 1.31.
    V1Beta4,
}

impl Dialect {
    fn of(version: &str) -> Option<Self> {
        let mut numbers = version.trim_start_matches('v').split('.').map(|part| part.parse::<u32>().ok());
        match (numbers.next()??, numbers.next()??) {
            (1, 22..=30) => Some(Self::V1Beta3),
            (1, 31..) => Some(Self::V1Beta4),
            _ => None,
        }
    }

    fn api_version(self) -> &'static str {
        match self {
            Self::V1Beta3 => "kubeadm.k8s.io/v1beta3",
            Self::V1Beta4 => "kubeadm.k8s.io/v1beta4",
        }
    }
}

/// What the Cluster and the Machine add to the spec.
#[derive(Clone, Debug)]
pub struct Facts {
    /// What the machine does.
    pub role: JoinRole,
    /// Which API of kubeadm.
    pub dialect: Dialect,
    /// `v1.31.0`
    pub kubernetes_version: String,
    cluster_name: String,
    endpoint: Option<String>,
    pod_cidrs: Vec<String>,
    service_cidrs: Vec<String>,
    service_domain: String,
    ca_hash: Option<String>,
}

impl Facts {
    /// Reads them; an error where something is not there yet or can never work.
    pub fn of(ctx: &Context<KubeadmConfig>) -> Result<Self> {
        let machine = ctx.machine().ok_or_else(|| {
            Error::transient(
                "WaitingForMachine",
                "no Machine owns this KubeadmConfig yet, so there is no role to render",
            )
        })?;
        let kubernetes_version = machine.kubernetes_version().ok_or_else(|| {
            Error::invalid("/spec", "the Machine has no spec.version, and kubeadm needs to know the Kubernetes version")
        })?;
        let dialect = Dialect::of(&kubernetes_version).ok_or_else(|| {
            Error::invalid(
                "/spec",
                format!("kubeadm of Kubernetes {kubernetes_version} is not known: use v1.22 or later"),
            )
        })?;
        let cluster = ctx.cluster();
        let endpoint = cluster.endpoint().map(|endpoint| match endpoint.host.contains(':') {
            true => format!("[{}]:{}", endpoint.host, endpoint.port),
            false => format!("{}:{}", endpoint.host, endpoint.port),
        });
        Ok(Self {
            role: bootstrap::role(),
            dialect,
            kubernetes_version,
            cluster_name: cluster.name(),
            endpoint,
            pod_cidrs: cluster.pod_cidrs(),
            service_cidrs: cluster.service_cidrs(),
            service_domain: cluster.service_domain(),
            ca_hash: bootstrap::public_key_hash("ca"),
        })
    }
}

impl Facts {
    /// `host:port` of the control plane.
    pub fn endpoint(&self) -> Option<&str> {
        self.endpoint.as_deref()
    }
}

/// A machine that joins needs a token unless the spec brings another way.
pub fn wants_token(spec: &KubeadmConfigSpec) -> bool {
    let discovery = spec.join_configuration.as_ref().and_then(|join| join.discovery.as_ref());
    discovery.is_none_or(|discovery| {
        discovery.file.is_none() && discovery.bootstrap_token.as_ref().is_none_or(|token| token.token.is_none())
    })
}

fn waiting_for_endpoint() -> Error {
    Error::transient("WaitingForControlPlaneEndpoint", "the Cluster has no control-plane endpoint yet")
}

/// The document for `kubeadm init` about the cluster.
pub fn cluster_configuration(spec: &KubeadmConfigSpec, facts: &Facts) -> Result<Value> {
    let given = spec.cluster_configuration.clone().unwrap_or_default();
    let endpoint = given.control_plane_endpoint.clone().or_else(|| facts.endpoint.clone());
    let endpoint = endpoint.ok_or_else(waiting_for_endpoint)?;
    let dialect = facts.dialect;
    let new = dialect == Dialect::V1Beta4;
    let component = |args: &[Arg], volumes: Value, envs: Value| {
        let mut out = Map::new();
        out.insert("extraArgs".to_owned(), arguments(args, dialect));
        out.insert("extraVolumes".to_owned(), volumes);
        if new {
            out.insert("extraEnvs".to_owned(), envs);
        }
        Value::Object(out)
    };
    let api_server = given.api_server.clone().unwrap_or_default();
    let mut api_server_out =
        component(&api_server.extra_args, json!(api_server.extra_volumes), json!(api_server.extra_envs));
    json::set(&mut api_server_out, "certSANs", json!(api_server.cert_sans));
    let timeouts = spec.init_configuration.as_ref().and_then(|init| init.timeouts.as_ref());
    if !new && let Some(seconds) = timeouts.and_then(|t| t.control_plane_component_health_check_seconds) {
        json::set(&mut api_server_out, "timeoutForControlPlane", json!(format!("{seconds}s")));
    }
    let other = |component_given: Option<kubeadm_types::kubeadm::Component>| {
        let given = component_given.unwrap_or_default();
        component(&given.extra_args, json!(given.extra_volumes), json!(given.extra_envs))
    };
    let mut out = json!({
        "apiVersion": dialect.api_version(),
        "kind": "ClusterConfiguration",
        "clusterName": facts.cluster_name,
        "controlPlaneEndpoint": endpoint,
        "kubernetesVersion": facts.kubernetes_version,
        "networking": {
            "dnsDomain": some(facts.service_domain.clone()),
            "podSubnet": some(facts.pod_cidrs.join(",")),
            "serviceSubnet": some(facts.service_cidrs.join(",")),
        },
        "apiServer": api_server_out,
        "controllerManager": other(given.controller_manager.clone()),
        "scheduler": other(given.scheduler.clone()),
        "etcd": etcd(&given, dialect),
        "dns": given.dns,
        "certificatesDir": given.certificates_dir,
        "imageRepository": given.image_repository,
        "featureGates": given.feature_gates,
    });
    if new {
        let hours = |days: Option<i32>| days.map(|days| format!("{}h0m0s", i64::from(days) * 24));
        json::set(&mut out, "certificateValidityPeriod", json!(hours(given.certificate_validity_period_days)));
        json::set(&mut out, "caCertificateValidityPeriod", json!(hours(given.ca_certificate_validity_period_days)));
        json::set(&mut out, "encryptionAlgorithm", json!(given.encryption_algorithm));
    }
    Ok(pruned(out))
}

fn etcd(given: &ClusterConfiguration, dialect: Dialect) -> Value {
    let Some(etcd) = &given.etcd else { return Value::Null };
    let local = etcd.local.as_ref().map(|local| {
        let mut out = json!({
            "imageRepository": local.image_repository,
            "imageTag": local.image_tag,
            "dataDir": local.data_dir,
            "extraArgs": arguments(&local.extra_args, dialect),
            "serverCertSANs": local.server_cert_sans,
            "peerCertSANs": local.peer_cert_sans,
        });
        if dialect == Dialect::V1Beta4 {
            json::set(&mut out, "extraEnvs", json!(local.extra_envs));
        }
        out
    });
    json!({"local": local, "external": etcd.external})
}

/// The document for `kubeadm init` about the machine.
pub fn init_configuration(spec: &KubeadmConfigSpec, facts: &Facts) -> Value {
    let given = spec.init_configuration.clone().unwrap_or_default();
    let tokens: Vec<Value> = given
        .bootstrap_tokens
        .iter()
        .map(|token| {
            json!({
                "token": token.token,
                "description": token.description,
                "ttl": token.ttl_seconds.map(|seconds| format!("{seconds}s")),
                "expires": token.expires,
                "usages": token.usages,
                "groups": token.groups,
            })
        })
        .collect();
    let mut out = json!({
        "apiVersion": facts.dialect.api_version(),
        "kind": "InitConfiguration",
        "bootstrapTokens": tokens,
        "nodeRegistration": node_registration(given.node_registration.unwrap_or_default(), facts),
        "localAPIEndpoint": given.local_api_endpoint,
        "skipPhases": given.skip_phases,
        "patches": given.patches,
    });
    if facts.dialect == Dialect::V1Beta4 {
        json::set(&mut out, "timeouts", timeouts(given.timeouts.as_ref()));
    }
    pruned(out)
}

/// The document for `kubeadm join`, with the token as a secret.
pub fn join_configuration(spec: &KubeadmConfigSpec, facts: &Facts) -> Result<Yaml> {
    let given = spec.join_configuration.clone().unwrap_or_default();
    let discovery = given.discovery.clone().unwrap_or_default();
    let mut discovery_out = Map::new();
    if let Some(file) = &discovery.file {
        discovery_out.insert("file".to_owned(), json!({"kubeConfigPath": file.kube_config_path}));
    } else {
        let token = discovery.bootstrap_token.clone().unwrap_or_default();
        let endpoint = token.api_server_endpoint.or_else(|| facts.endpoint.clone()).ok_or_else(waiting_for_endpoint)?;
        let mut hashes = token.ca_cert_hashes;
        if hashes.is_empty() {
            hashes.extend(facts.ca_hash.clone());
        }
        let skip = token.unsafe_skip_ca_verification.or(hashes.is_empty().then_some(true));
        discovery_out.insert(
            "bootstrapToken".to_owned(),
            json!({"apiServerEndpoint": endpoint, "token": token.token.unwrap_or_else(|| "?".to_owned()),
                "caCertHashes": hashes, "unsafeSkipCAVerification": skip}),
        );
    }
    discovery_out.insert("tlsBootstrapToken".to_owned(), json!(discovery.tls_bootstrap_token));
    let old_timeout = given.timeouts.as_ref().and_then(|timeouts| timeouts.tls_bootstrap_seconds);
    if facts.dialect == Dialect::V1Beta3 {
        discovery_out.insert("timeout".to_owned(), json!(old_timeout.map(|seconds| format!("{seconds}s"))));
    }
    let mut out = json!({
        "apiVersion": facts.dialect.api_version(),
        "kind": "JoinConfiguration",
        "nodeRegistration": node_registration(given.node_registration.unwrap_or_default(), facts),
        "caCertPath": given.ca_cert_path,
        "discovery": discovery_out,
        "skipPhases": given.skip_phases,
        "patches": given.patches,
    });
    if facts.dialect == Dialect::V1Beta4 {
        json::set(&mut out, "timeouts", timeouts(given.timeouts.as_ref()));
    }
    let mut out = pruned(out);
    if facts.role == JoinRole::ControlPlaneJoin {
        // Its presence says that this machine becomes one of the control plane, even where nothing is set in it.
        let endpoint = given.control_plane.and_then(|control_plane| control_plane.local_api_endpoint);
        json::set(&mut out, "controlPlane", json!({"localAPIEndpoint": pruned(json!(endpoint.unwrap_or_default()))}));
    }
    let mut document = Yaml::from(&out);
    if wants_token(spec)
        && let Some(token) = document.at_mut(&["discovery", "bootstrapToken", "token"])
    {
        *token = Yaml::Secret(secrets::get("bootstrap-token")?);
    }
    Ok(document)
}

fn node_registration(given: NodeRegistration, facts: &Facts) -> Value {
    let mut taints = given.taints;
    if facts.role == JoinRole::WorkerJoin {
        let taints = taints.get_or_insert_default();
        if !taints.iter().any(|taint| taint.key == UNINITIALIZED) {
            taints.push(Taint { key: UNINITIALIZED.to_owned(), value: None, effect: "NoSchedule".to_owned() });
        }
    }
    let mut out = json!({
        "name": given.name,
        "criSocket": given.cri_socket,
        "taints": taints,
        "kubeletExtraArgs": arguments(&given.kubelet_extra_args, facts.dialect),
        "ignorePreflightErrors": given.ignore_preflight_errors,
        "imagePullPolicy": given.image_pull_policy,
    });
    if facts.dialect == Dialect::V1Beta4 {
        json::set(&mut out, "imagePullSerial", json!(given.image_pull_serial));
    }
    out
}

/// A map in v1beta3, where the last of several wins; a list in v1beta4.
fn arguments(arguments: &[Arg], dialect: Dialect) -> Value {
    match dialect {
        Dialect::V1Beta4 => json!(arguments),
        Dialect::V1Beta3 => {
            Value::Object(arguments.iter().map(|arg| (arg.name.clone(), json!(arg.value))).collect::<Map<_, _>>())
        }
    }
}

fn timeouts(given: Option<&Timeouts>) -> Value {
    let Some(given) = given else { return Value::Null };
    let seconds = |seconds: Option<i32>| seconds.map(|seconds| format!("{seconds}s"));
    json!({
        "controlPlaneComponentHealthCheck": seconds(given.control_plane_component_health_check_seconds),
        "kubeletHealthCheck": seconds(given.kubelet_health_check_seconds),
        "kubernetesAPICall": seconds(given.kubernetes_api_call_seconds),
        "etcdAPICall": seconds(given.etcd_api_call_seconds),
        "tlsBootstrap": seconds(given.tls_bootstrap_seconds),
        "discovery": seconds(given.discovery_seconds),
    })
}

fn some(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}
