//! `proxmox` against fakepve, which checks every call against the real schema.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use capstan_api::ObjectKey;
use capstan_gateway::{
    Destination, EndpointConfig, Network, Origin, Transport, TransportError, WireRequest, WireResponse,
};
use capstan_testkit::conformance::{Life, Server, Setting};
use capstan_testkit::{Exchange, FaultProxy};
use serde_json::{Value, json};

use super::simulated::node_joins;
use super::{Extent, leaks_nothing, ten_calls_are_one};

const INFRASTRUCTURE: &str = "infrastructure.cluster.x-k8s.io";

/// fakepve in a process of its own; it ends with this.
struct FakePve {
    process: Child,
    url: String,
    control: String,
    token: String,
    client: reqwest::Client,
}

impl FakePve {
    fn start() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let python = root.join("target/venv/bin/python");
        let mut process = Command::new(&python)
            .arg(root.join("tests/fakepve/serve.py"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}; run tests/setup.sh", python.display()));
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let up: Value = serde_json::from_str(&line).expect("fakepve does not start");
        let text = |name: &str| up[name].as_str().unwrap().to_owned();
        let (url, control, token) = (text("url"), text("control"), text("token"));
        Self { process, url, control, token, client: reqwest::Client::new() }
    }
}

impl Drop for FakePve {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[async_trait]
impl Server for FakePve {
    async fn left(&self) -> anyhow::Result<Vec<String>> {
        Ok(self.client.get(format!("{}/left", self.control)).send().await?.error_for_status()?.json().await?)
    }

    async fn clear(&self) -> anyhow::Result<()> {
        self.client.post(format!("{}/clear", self.control)).send().await?.error_for_status()?;
        Ok(())
    }

    fn is_shared(&self, exchange: &Exchange) -> bool {
        exchange.target.starts_with("/api2/json/cluster/resources")
    }
}

/// The host's network with the token that the host would add.
struct WithToken {
    network: Network,
    token: http::HeaderValue,
}

#[async_trait]
impl Transport for WithToken {
    async fn exchange(&self, at: &EndpointConfig, mut request: WireRequest) -> Result<WireResponse, TransportError> {
        request.headers.insert(http::header::AUTHORIZATION, self.token.clone());
        self.network.exchange(at, request).await
    }
}

fn lives() -> [Life; 1] {
    let cluster = json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
        "metadata": {"name": "c", "namespace": "n"},
        "spec": {"infrastructureRef": {"apiGroup": INFRASTRUCTURE, "kind": "ProxmoxCluster", "name": "c"}},
        "status": {"initialization": {"infrastructureProvisioned": true}}});
    let owner = |kind: &str, name: &str| {
        json!([{"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": kind,
        "name": name, "uid": format!("of {kind}/{name}"), "controller": true}])
    };
    let api_version = format!("{INFRASTRUCTURE}/v1alpha2");
    [Life {
        name: "machine",
        objects: vec![
            cluster,
            json!({"apiVersion": api_version, "kind": "ProxmoxCluster",
                "metadata": {"name": "c", "namespace": "n", "ownerReferences": owner("Cluster", "c")},
                "spec": {"dnsServers": ["192.0.2.53"], "allowedNodes": ["pve1", "pve2"]}}),
            json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
                "metadata": {"name": "m", "namespace": "n"},
                "spec": {"clusterName": "c", "version": "v1.35.0", "bootstrap": {"dataSecretName": "m"}}}),
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "m", "namespace": "n"},
                "data": {"value": "I2Nsb3VkLWNvbmZpZwo=", "format": "Y2xvdWQtY29uZmln"}}),
            json!({"apiVersion": api_version, "kind": "ProxmoxMachine",
                "metadata": {"name": "m", "namespace": "n", "labels": {"cluster.x-k8s.io/cluster-name": "c"},
                    "ownerReferences": owner("Machine", "m")},
                "spec": {"sourceNode": "pve1", "templateID": 9000, "full": true, "storage": "shared", "format": "qcow2",
                    "numCores": 2, "memoryMiB": 4096, "disks": {"bootVolume": {"disk": "scsi0", "sizeGb": 20}},
                    "network": {}, "checks": {"skipQemuGuestAgent": true}}}),
        ],
        subject: ObjectKey::new(INFRASTRUCTURE, "ProxmoxMachine", "n", "m"),
        change: Some(node_joins),
        tend: |_| (),
    }]
}

async fn with_setting<F>(run: F)
where
    F: AsyncFnOnce(&Setting<'_>),
{
    // First: it chooses who does the cryptography of all clients here.
    let network = Network::new();
    let pve = FakePve::start();
    let proxy = FaultProxy::start(&pve.url).await.unwrap();
    let setting = Setting {
        kit: crate::provider("proxmox"),
        proxy: &proxy,
        transport: Arc::new(WithToken { network, token: pve.token.parse().unwrap() }),
        server: &pve,
        destination: Destination::of(Origin::parse(&proxy.url()).unwrap()),
        pace: Duration::from_millis(2),
    };
    run(&setting).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sample_of_faults_leaks_nothing_in_proxmox() {
    with_setting(async |setting| leaks_nothing("proxmox", setting, &lives(), true, Extent::Sample(30)).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_calls_leave_the_footprint_of_one_in_proxmox() {
    with_setting(async |setting| ten_calls_are_one(setting, &lives()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "minutes: make leak"]
async fn all_faults_leak_nothing_in_proxmox() {
    with_setting(async |setting| leaks_nothing("proxmox", setting, &lives(), true, Extent::All).await).await;
}
