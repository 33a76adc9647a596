//! `kubeadm init`: the first control-plane machine of a cluster.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::config::{self, ClusterConfiguration, NodeRegistration};
use super::objects::{self, Placed};
use super::pki::Pki;
use super::{KubeadmError, Machine};
use crate::api::{self, Api};
use crate::files::Files;

/// The file whose presence says that a machine is a node.
pub const KUBELET_CONF: &str = "/etc/kubernetes/kubelet.conf";
/// The administrator's kubeconfig.
pub const ADMIN_CONF: &str = "/etc/kubernetes/admin.conf";

/// What a control-plane machine needs to serve again after a restart, its files apart.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ControlPlane {
    /// Name of its Node.
    pub node: String,
    /// `ClusterConfiguration`.
    pub cluster: Value,
    /// `host:port` that others use.
    pub endpoint: String,
    /// Names and addresses of its serving certificate.
    pub names: Vec<String>,
    /// Port of its API server.
    pub port: u16,
    /// Where its certificates are.
    pub certificates: String,
}

impl ControlPlane {
    /// The configuration with defaults.
    pub fn configuration(&self) -> Result<ClusterConfiguration, KubeadmError> {
        config::cluster("ClusterConfiguration", self.cluster.clone())
    }

    /// The cluster's version.
    pub fn version(&self) -> String {
        self.configuration().map(|c| c.kubernetes_version).unwrap_or_else(|_| "v1.35.0".into())
    }

    /// The certificates it was handed.
    pub fn pki(&self, files: &dyn Files) -> Result<Pki, KubeadmError> {
        let external = self.configuration().is_ok_and(|c| external_etcd(&c));
        Pki::read(files, &self.certificates, external)
    }

    /// From a configuration and a node's registration.
    pub(super) fn new(
        cluster: &ClusterConfiguration,
        document: Value,
        node: &NodeRegistration,
        local: &config::LocalApiEndpoint,
        machine: &Machine,
    ) -> Result<ControlPlane, KubeadmError> {
        let name = objects::node_name(node, machine);
        let own = match (local.advertise_address.as_str(), machine.addresses.first()) {
            ("", Some(address)) => address.to_string(),
            ("", None) => "127.0.0.1".into(),
            (address, _) => address.to_owned(),
        };
        let endpoint = if cluster.control_plane_endpoint.is_empty() {
            if own.contains(':') { format!("[{own}]:{}", local.port()) } else { format!("{own}:{}", local.port()) }
        } else if has_port(&cluster.control_plane_endpoint) {
            cluster.control_plane_endpoint.clone()
        } else {
            format!("{}:{}", cluster.control_plane_endpoint, local.port())
        };
        let host = endpoint.rsplit_once(':').map_or(endpoint.as_str(), |(host, _)| host);
        let domain = &cluster.networking.dns_domain;
        let mut names = vec![
            "kubernetes".to_owned(),
            "kubernetes.default".into(),
            "kubernetes.default.svc".into(),
            format!("kubernetes.default.svc.{domain}"),
            "localhost".into(),
            "127.0.0.1".into(),
            name.clone(),
            objects::api_service_address(&cluster.networking.service_subnet).to_string(),
            host.trim_start_matches('[').trim_end_matches(']').to_owned(),
            own,
        ];
        names.extend(machine.addresses.iter().map(ToString::to_string));
        names.extend(cluster.api_server.cert_sans.iter().cloned());
        names.dedup();
        Ok(ControlPlane {
            node: name,
            cluster: document,
            endpoint,
            names,
            port: local.port(),
            certificates: cluster.certificates_dir.clone(),
        })
    }
}

fn has_port(endpoint: &str) -> bool {
    let bare = endpoint.rsplit_once(']').map_or(endpoint, |(_, rest)| rest);
    bare.contains(':')
}

pub(super) fn external_etcd(cluster: &ClusterConfiguration) -> bool {
    cluster.etcd.as_ref().is_some_and(|etcd| etcd.get("external").is_some_and(|external| !external.is_null()))
}

/// What `kubeadm init` is going to do: its configuration and files are read and checked, nothing is started yet.
pub struct Prepared {
    /// The machine's part.
    pub control_plane: ControlPlane,
    /// Its certificates.
    pub pki: Pki,
    cluster: ClusterConfiguration,
    node: NodeRegistration,
}

/// Reads and checks the configuration and the files that the machine was handed.
pub fn prepare(files: &dyn Files, path: &str, machine: &Machine) -> Result<Prepared, KubeadmError> {
    if files.exists(KUBELET_CONF) {
        return Err(KubeadmError::AlreadyDone { path: KUBELET_CONF.into() });
    }
    let content = files
        .read(path)
        .map_err(|error| KubeadmError::Config { path: path.to_owned(), reason: format!("cannot be read: {error}") })?;
    let init = config::read_init(path, &content)?;
    let pki = Pki::read(files, &init.cluster.certificates_dir, external_etcd(&init.cluster))?;
    let control_plane = ControlPlane::new(&init.cluster, init.cluster_document, &init.node, &init.local, machine)?;
    Ok(Prepared { control_plane, pki, cluster: init.cluster, node: init.node })
}

impl Prepared {
    /// Fills a fresh cluster through its API: what kubeadm uploads, add-ons, the Node and its static Pods.
    pub async fn fill(&self, api: &dyn Api, machine: &Machine, now: jiff::Timestamp) -> Result<(), KubeadmError> {
        let endpoint = &self.control_plane.endpoint;
        let ca = self.pki.ca.certificate_pem();
        for item in objects::fresh_cluster(&self.cluster, &self.control_plane.cluster, endpoint, ca) {
            ensure(api, item).await?;
        }
        register(api, machine, &self.node, &self.cluster, true, now).await
    }

    /// The Node that the machine registers.
    pub fn node(&self, machine: &Machine) -> Value {
        objects::node(machine, &self.node, true, &self.cluster.kubernetes_version, jiff::Timestamp::now())
    }

    /// Writes the kubeconfigs of the administrator and the kubelet.
    pub fn write_kubeconfigs(&self, files: &dyn Files) -> Result<(), KubeadmError> {
        let name = &self.cluster.cluster_name;
        let node = format!("system:node:{}", self.control_plane.node);
        for (path, user, group) in
            [(ADMIN_CONF, "kubernetes-admin", "system:masters"), (KUBELET_CONF, node.as_str(), "system:nodes")]
        {
            let pair = self.pki.ca.client(user, &[group])?;
            let text = objects::kubeconfig(
                &self.control_plane.endpoint,
                self.pki.ca.certificate_pem(),
                name,
                Some((user, &pair.certificate_pem, &pair.key_pem)),
            );
            files
                .put(path, 0o600, text.as_bytes(), false)
                .map_err(|error| KubeadmError::Write { path: path.into(), reason: error.to_string() })?;
        }
        Ok(())
    }
}

/// Registers a control-plane machine's Node with its static Pods, or a worker's Node.
pub(super) async fn register(
    api: &dyn Api,
    machine: &Machine,
    registration: &NodeRegistration,
    cluster: &ClusterConfiguration,
    control_plane: bool,
    now: jiff::Timestamp,
) -> Result<(), KubeadmError> {
    let version = &cluster.kubernetes_version;
    let node = objects::node(machine, registration, control_plane, version, now);
    let node =
        super::kubelet::register(api, node, super::kubelet::Registration::First, machine.lease_seconds, now).await?;
    if control_plane {
        for pod in objects::static_pods(&node, version, external_etcd(cluster), now) {
            ensure(api, pod).await?;
        }
    }
    Ok(())
}

/// Creates an object with its status; one that exists already is left alone.
async fn ensure(api: &dyn Api, item: Placed) -> Result<(), KubeadmError> {
    let name = item.object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned();
    let attempt = format!("creating {}/{name}", item.collection);
    let answer = api::create(api, &item.collection, &item.object).await;
    if matches!(&answer, Ok(answer) if answer.status == 409) {
        return Ok(());
    }
    let stored = api::expect(&attempt, answer)?.body;
    // The API server sets aside the status of some kinds at creation.
    if let Some(status) = item.object.get("status")
        && stored.get("status") != Some(status)
    {
        let path = format!("{}/{name}/status", item.collection);
        api::expect(&attempt, api::merge(api, &path, &serde_json::json!({ "status": status })).await)?;
    }
    Ok(())
}
