//! What kubeadm itself is configured with, in Cluster API's shape (neither v1beta3 nor v1beta4 of kubeadm).

use std::collections::BTreeMap;

use capstan_provider::Schema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Settings of the whole cluster. Name, networks, version and endpoint come from the Cluster and the Machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterConfiguration {
    /// etcd, on the machines or elsewhere.
    pub etcd: Option<Etcd>,
    /// `host:port`, where the Cluster's own endpoint is not to be used.
    #[schema(max_length = 512)]
    pub control_plane_endpoint: Option<String>,
    /// The API server.
    pub api_server: Option<ApiServer>,
    /// The controller manager.
    pub controller_manager: Option<Component>,
    /// The scheduler.
    pub scheduler: Option<Component>,
    /// The DNS add-on.
    pub dns: Option<Image>,
    /// Where certificates are kept.
    pub certificates_dir: Option<String>,
    /// Where images come from.
    pub image_repository: Option<String>,
    /// Feature gates of kubeadm.
    pub feature_gates: BTreeMap<String, bool>,
    /// How long leaf certificates are valid.
    #[schema(min = 1, max = 1095)]
    pub certificate_validity_period_days: Option<i32>,
    /// How long certificate authorities are valid.
    #[schema(min = 1, max = 36_500)]
    pub ca_certificate_validity_period_days: Option<i32>,
    /// How keys are made.
    #[schema(values("ECDSA-P256", "ECDSA-P384", "RSA-2048", "RSA-3072", "RSA-4096"))]
    pub encryption_algorithm: Option<String>,
}

/// An image.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct Image {
    /// Where it comes from.
    pub image_repository: Option<String>,
    /// Its tag.
    pub image_tag: Option<String>,
}

/// etcd.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct Etcd {
    /// On the control-plane machines.
    pub local: Option<LocalEtcd>,
    /// Elsewhere.
    pub external: Option<ExternalEtcd>,
}

/// etcd on the control-plane machines.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct LocalEtcd {
    /// Where the image comes from.
    pub image_repository: Option<String>,
    /// Its tag.
    pub image_tag: Option<String>,
    /// Where data is kept.
    pub data_dir: Option<String>,
    /// Arguments.
    pub extra_args: Vec<Arg>,
    /// Environment.
    pub extra_envs: Vec<EnvVar>,
    /// Further names of the server certificate.
    #[serde(rename = "serverCertSANs")]
    pub server_cert_sans: Vec<String>,
    /// Further names of the peer certificate.
    #[serde(rename = "peerCertSANs")]
    pub peer_cert_sans: Vec<String>,
}

/// etcd elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct ExternalEtcd {
    /// Its members.
    pub endpoints: Vec<String>,
    /// File of the certificate authority.
    pub ca_file: Option<String>,
    /// File of the client certificate.
    pub cert_file: Option<String>,
    /// File of the client key.
    pub key_file: Option<String>,
}

/// The API server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct ApiServer {
    /// Arguments.
    pub extra_args: Vec<Arg>,
    /// Volumes.
    pub extra_volumes: Vec<HostPathMount>,
    /// Environment.
    pub extra_envs: Vec<EnvVar>,
    /// Further names of the certificate.
    #[serde(rename = "certSANs")]
    pub cert_sans: Vec<String>,
}

/// A component of the control plane.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct Component {
    /// Arguments.
    pub extra_args: Vec<Arg>,
    /// Volumes.
    pub extra_volumes: Vec<HostPathMount>,
    /// Environment.
    pub extra_envs: Vec<EnvVar>,
}

/// An argument.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Schema)]
#[serde(rename_all = "camelCase")]
pub struct Arg {
    /// Without dashes.
    #[schema(min_length = 1, max_length = 256)]
    pub name: String,
    /// Its value.
    #[schema(max_length = 1024)]
    pub value: String,
}

/// An environment variable.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Schema)]
#[serde(rename_all = "camelCase")]
pub struct EnvVar {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: Option<String>,
    /// Where its value comes from.
    pub value_from: Option<Value>,
}

/// A path of the machine in a component's container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Schema)]
#[serde(rename_all = "camelCase")]
pub struct HostPathMount {
    /// Name of the volume.
    pub name: String,
    /// Path on the machine.
    pub host_path: String,
    /// Path in the container.
    pub mount_path: String,
    /// No writes.
    pub read_only: Option<bool>,
    /// What the path is, such as `DirectoryOrCreate`.
    pub path_type: Option<String>,
}

/// Settings of the machine that sets the cluster up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct InitConfiguration {
    /// Tokens to make.
    pub bootstrap_tokens: Vec<BootstrapToken>,
    /// The node.
    pub node_registration: Option<NodeRegistration>,
    /// Where its API server listens.
    #[serde(rename = "localAPIEndpoint")]
    pub local_api_endpoint: Option<ApiEndpoint>,
    /// Phases to leave out.
    pub skip_phases: Vec<String>,
    /// Patches of static pods.
    pub patches: Option<Patches>,
    /// How long to wait for what.
    pub timeouts: Option<Timeouts>,
}

/// Settings of a machine that joins.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct JoinConfiguration {
    /// The node.
    pub node_registration: Option<NodeRegistration>,
    /// File of the cluster's certificate authority.
    pub ca_cert_path: Option<String>,
    /// How the cluster is found; filled in where it is absent.
    pub discovery: Option<Discovery>,
    /// What a control-plane machine needs beside.
    pub control_plane: Option<JoinControlPlane>,
    /// Phases to leave out.
    pub skip_phases: Vec<String>,
    /// Patches of static pods.
    pub patches: Option<Patches>,
    /// How long to wait for what.
    pub timeouts: Option<Timeouts>,
}

/// The node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeRegistration {
    /// Its name; the machine's host name if absent.
    pub name: Option<String>,
    /// Socket of the container runtime.
    pub cri_socket: Option<String>,
    /// Taints; an empty list means none, no list means kubeadm's own.
    pub taints: Option<Vec<Taint>>,
    /// Arguments of the kubelet.
    pub kubelet_extra_args: Vec<Arg>,
    /// Checks whose errors do not matter.
    pub ignore_preflight_errors: Vec<String>,
    /// When images are pulled.
    #[schema(values("Always", "IfNotPresent", "Never"))]
    pub image_pull_policy: Option<String>,
    /// Images are pulled one after the other.
    pub image_pull_serial: Option<bool>,
}

/// A taint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Schema)]
#[serde(rename_all = "camelCase")]
pub struct Taint {
    /// Its key.
    pub key: String,
    /// Its value.
    pub value: Option<String>,
    /// What it does.
    #[schema(values("NoSchedule", "PreferNoSchedule", "NoExecute"))]
    pub effect: String,
}

/// Where an API server listens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct ApiEndpoint {
    /// Its address.
    pub advertise_address: Option<String>,
    /// Its port.
    #[schema(min = 1, max = 65_535)]
    pub bind_port: Option<i32>,
}

/// A token to make.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Schema)]
#[serde(rename_all = "camelCase")]
pub struct BootstrapToken {
    /// `abcdef.0123456789abcdef`
    pub token: String,
    /// What it is for.
    pub description: Option<String>,
    /// How long it lives.
    pub ttl_seconds: Option<i32>,
    /// When it ends.
    pub expires: Option<String>,
    /// What it may do.
    #[serde(default)]
    pub usages: Vec<String>,
    /// Groups of who uses it.
    #[serde(default)]
    pub groups: Vec<String>,
}

/// How a machine finds the cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct Discovery {
    /// By a token.
    pub bootstrap_token: Option<TokenDiscovery>,
    /// By a file.
    pub file: Option<FileDiscovery>,
    /// Token for TLS bootstrap where it is another one.
    pub tls_bootstrap_token: Option<String>,
}

/// Discovery by a token.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct TokenDiscovery {
    /// The token; one is made where it is absent.
    pub token: Option<String>,
    /// `host:port` of the API server.
    pub api_server_endpoint: Option<String>,
    /// Hashes of the public keys of trusted authorities.
    pub ca_cert_hashes: Vec<String>,
    /// Trust whatever answers.
    #[serde(rename = "unsafeSkipCAVerification")]
    pub unsafe_skip_ca_verification: Option<bool>,
}

/// Discovery by a file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Schema)]
#[serde(rename_all = "camelCase")]
pub struct FileDiscovery {
    /// Path of the kubeconfig.
    pub kube_config_path: String,
    /// The kubeconfig to write there; server and authority are filled in.
    #[schema(preserve_unknown)]
    pub kube_config: Option<FileKubeConfig>,
}

/// A kubeconfig with one user.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Schema)]
#[serde(rename_all = "camelCase")]
pub struct FileKubeConfig {
    /// The cluster; server and authority are filled in where they are absent.
    pub cluster: Option<Value>,
    /// Who logs in, and how.
    pub user: Value,
}

/// What a control-plane machine needs beside.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct JoinControlPlane {
    /// Where its API server listens.
    #[serde(rename = "localAPIEndpoint")]
    pub local_api_endpoint: Option<ApiEndpoint>,
}

/// Patches of static pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct Patches {
    /// Where they are.
    pub directory: Option<String>,
}

/// How long to wait for what.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct Timeouts {
    /// A component of the control plane becomes healthy.
    pub control_plane_component_health_check_seconds: Option<i32>,
    /// The kubelet becomes healthy.
    pub kubelet_health_check_seconds: Option<i32>,
    /// A call of the Kubernetes API.
    #[serde(rename = "kubernetesAPICallSeconds")]
    pub kubernetes_api_call_seconds: Option<i32>,
    /// A call of etcd.
    #[serde(rename = "etcdAPICallSeconds")]
    pub etcd_api_call_seconds: Option<i32>,
    /// TLS bootstrap.
    pub tls_bootstrap_seconds: Option<i32>,
    /// Discovery.
    pub discovery_seconds: Option<i32>,
}
