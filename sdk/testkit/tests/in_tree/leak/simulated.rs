//! `simulated` against the simulated cloud, over real HTTP.

use async_trait::async_trait;
use capstan_api::ObjectKey;
use capstan_simulator::{Simulator, SimulatorOptions};
use capstan_testkit::conformance::{Access, Life, Server, ServerStarts, Suite};
use serde_json::{Value, json};

use super::scenery::{INFRASTRUCTURE, around_machine, cluster_of, node_joins, owner};
use super::{FAILED, all, sample, worlds};

/// The cloud as the test sees it.
struct Cloud {
    _simulator: Simulator,
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
    fn access(&self) -> Access {
        Access::open(self.base.clone())
    }

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

fn machine(name: &'static str) -> Life {
    let mut objects = vec![cluster_of("SimulatedCluster")];
    objects.extend(around_machine(name));
    objects.push(json!({"apiVersion": format!("{INFRASTRUCTURE}/v1beta1"), "kind": "SimulatedMachine",
        "metadata": {"name": name, "namespace": "n", "labels": {"cluster.x-k8s.io/cluster-name": "c"},
            "ownerReferences": owner("Machine", name)},
        "spec": {"cpus": 2, "memoryMiB": 2048}}));
    Life {
        name: if name == "m" { "machine" } else { name },
        objects,
        subject: ObjectKey::new(INFRASTRUCTURE, "SimulatedMachine", "n", name),
        change: Some(node_joins),
        tend: |_| (),
    }
}

fn cluster() -> Life {
    Life {
        name: "cluster",
        objects: vec![
            cluster_of("SimulatedCluster"),
            json!({"apiVersion": format!("{INFRASTRUCTURE}/v1beta1"), "kind": "SimulatedCluster",
                "metadata": {"name": "c", "namespace": "n", "ownerReferences": owner("Cluster", "c")},
                "spec": {}}),
        ],
        subject: ObjectKey::new(INFRASTRUCTURE, "SimulatedCluster", "n", "c"),
        change: Some(|world| {
            let domain = json!([{"name": "a", "controlPlane": true}]);
            world.edit(&ObjectKey::new(INFRASTRUCTURE, "SimulatedCluster", "n", "c"), |object| {
                object.set("/spec/failureDomains", domain);
            });
        }),
        tend: |_| (),
    }
}

fn server() -> ServerStarts {
    Box::pin(async {
        let simulator = Simulator::start(SimulatorOptions::default()).await?;
        let base = format!("http://{}", simulator.address());
        let cloud: Box<dyn Server> = Box::new(Cloud { _simulator: simulator, base, client: reqwest::Client::new() });
        Ok(cloud)
    })
}

fn suite() -> Suite<'static> {
    Suite {
        name: "simulated",
        component: crate::provider("simulated"),
        server,
        lives: vec![machine("m"), cluster()],
        fleet: ["m1", "m2", "m3"].map(machine).into(),
        failed: FAILED,
    }
}

#[test]
fn a_sample_of_faults_leaks_nothing_in_the_simulated_cloud() {
    sample(&suite(), 40, 2);
}

#[test]
#[ignore = "minutes: make leak"]
fn all_faults_leak_nothing_in_the_simulated_cloud() {
    all(&suite(), worlds());
}
