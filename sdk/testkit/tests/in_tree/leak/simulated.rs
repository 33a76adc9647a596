//! `simulated` against the simulated cloud, over real HTTP.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use capstan_api::ObjectKey;
use capstan_core::testing::World;
use capstan_gateway::{Destination, Network, Origin};
use capstan_simulator::{Simulator, SimulatorOptions};
use capstan_testkit::FaultProxy;
use capstan_testkit::conformance::{Life, Server, Setting};
use serde_json::{Value, json};

use super::{Extent, leaks_nothing, ten_calls_are_one};

const INFRASTRUCTURE: &str = "infrastructure.cluster.x-k8s.io";

/// The cloud as the test sees it.
struct Cloud {
    base: String,
    client: reqwest::Client,
}

impl Cloud {
    async fn list(&self, what: &str) -> anyhow::Result<Vec<Value>> {
        let answer = self.client.get(format!("{}/v1/{what}", self.base)).send().await?.error_for_status()?;
        let items: Value = answer.json().await?;
        Ok(items["items"].as_array().cloned().unwrap_or_default())
    }
}

#[async_trait]
impl Server for Cloud {
    async fn left(&self) -> anyhow::Result<Vec<String>> {
        let mut left = Vec::new();
        for what in ["machines", "load-balancers"] {
            for item in self.list(what).await? {
                // What is being deleted goes by itself.
                if item["state"] != "deleting" {
                    left.push(format!("{what} {}", item["name"].as_str().unwrap_or_default()));
                }
            }
        }
        Ok(left)
    }

    async fn clear(&self) -> anyhow::Result<()> {
        for what in ["machines", "load-balancers"] {
            for item in self.list(what).await? {
                let name = item["name"].as_str().unwrap_or_default();
                self.client.delete(format!("{}/v1/{what}/{name}", self.base)).send().await?;
            }
        }
        Ok(())
    }
}

fn lives() -> [Life; 2] {
    let cluster = json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
        "metadata": {"name": "c", "namespace": "n"},
        "spec": {"infrastructureRef": {"apiGroup": INFRASTRUCTURE, "kind": "SimulatedCluster", "name": "c"}},
        "status": {"initialization": {"infrastructureProvisioned": true}}});
    let owner = |kind: &str, name: &str| {
        json!([{"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": kind,
        "name": name, "uid": format!("of {kind}/{name}"), "controller": true}])
    };
    let machine = json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
        "metadata": {"name": "m", "namespace": "n"},
        "spec": {"clusterName": "c", "bootstrap": {"dataSecretName": "m"}}});
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "m", "namespace": "n"},
        "data": {"value": "I2Nsb3VkLWNvbmZpZwo=", "format": "Y2xvdWQtY29uZmln"}});
    let api_version = format!("{INFRASTRUCTURE}/v1beta1");
    let key = |kind: &str, name: &str| ObjectKey::new(INFRASTRUCTURE, kind, "n", name);
    [
        Life {
            name: "machine",
            objects: vec![
                cluster.clone(),
                machine,
                secret,
                json!({"apiVersion": api_version, "kind": "SimulatedMachine",
                    "metadata": {"name": "m", "namespace": "n", "labels": {"cluster.x-k8s.io/cluster-name": "c"},
                        "ownerReferences": owner("Machine", "m")},
                    "spec": {"cpus": 2, "memoryMiB": 2048}}),
            ],
            subject: key("SimulatedMachine", "m"),
            change: Some(node_joins),
            tend: |_| (),
        },
        Life {
            name: "cluster",
            objects: vec![
                cluster,
                json!({"apiVersion": api_version, "kind": "SimulatedCluster",
                    "metadata": {"name": "c", "namespace": "n", "ownerReferences": owner("Cluster", "c")},
                    "spec": {}}),
            ],
            subject: key("SimulatedCluster", "c"),
            change: Some(|world| {
                let domain = json!([{"name": "a", "controlPlane": true}]);
                world.edit(&ObjectKey::new(INFRASTRUCTURE, "SimulatedCluster", "n", "c"), |object| {
                    object.set("/spec/failureDomains", domain);
                });
            }),
            tend: |_| (),
        },
    ]
}

/// The Machine's Node is there.
pub(super) fn node_joins(world: &mut World) {
    let machine = ObjectKey::new("cluster.x-k8s.io", "Machine", "n", "m");
    world.edit(&machine, |machine| machine.set("/status/nodeRef", json!({"name": "m"})));
}

async fn with_setting<F>(run: F)
where
    F: AsyncFnOnce(&Setting<'_>),
{
    let simulator = Simulator::start(SimulatorOptions::default()).await.unwrap();
    let base = format!("http://{}", simulator.address());
    let proxy = FaultProxy::start(&base).await.unwrap();
    let cloud = Cloud { base, client: reqwest::Client::new() };
    let setting = Setting {
        kit: crate::provider("simulated"),
        proxy: &proxy,
        server: &cloud,
        transport: Arc::new(Network::new()),
        destination: Destination::of(Origin::parse(&proxy.url()).unwrap()),
        pace: Duration::from_millis(2),
    };
    run(&setting).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sample_of_faults_leaks_nothing_in_the_simulated_cloud() {
    with_setting(async |setting| leaks_nothing("simulated", setting, &lives(), false, Extent::Sample(120)).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_calls_leave_the_footprint_of_one_in_the_simulated_cloud() {
    with_setting(async |setting| ten_calls_are_one(setting, &lives()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "minutes: make leak"]
async fn all_faults_leak_nothing_in_the_simulated_cloud() {
    with_setting(async |setting| leaks_nothing("simulated", setting, &lives(), false, Extent::All).await).await;
}
