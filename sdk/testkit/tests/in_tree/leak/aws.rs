//! `aws` against moto with IAM and signature checks on, and what moto lacks put before it (tests/moto/serve.py).

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use async_trait::async_trait;
use capstan_api::ObjectKey;
use capstan_gateway::CredentialKind;
use capstan_testkit::Exchange;
use capstan_testkit::conformance::{Access, Life, Server, ServerStarts, Suite};
use serde_json::{Value, json};

use super::simulated::node_joins;
use super::{FAILED, all, sample, worlds};

const INFRASTRUCTURE: &str = "infrastructure.cluster.x-k8s.io";

/// The image that serve.py registers; its ids are the same in each run.
const IMAGE: &str = "ami-a2cdc501534df6b3c";

/// A VPC with a subnet, a group and a target group, as serve.py makes them.
fn given() -> Value {
    json!({
        "vpc": "vpc-649bd708c4f168e7a", "subnet": "subnet-709214993d09c79f1", "group": "sg-6b7d45e9e99bcb724",
        "targetGroup": "arn:aws:elasticloadbalancing:us-east-1:123456789012:targetgroup/given/b03c3c3b323cdcdd",
    })
}

/// moto in a process of its own; it ends with this.
struct Moto {
    process: Child,
    url: String,
    control: String,
    /// Access key id and secret of a user that may do what the documentation says.
    keys: (String, String),
    client: reqwest::Client,
}

impl Moto {
    fn start() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let python = root.join("target/venv/bin/python");
        let mut process = Command::new(&python)
            .arg(root.join("tests/moto/serve.py"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}; run tests/setup.sh", python.display()));
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let up: Value = serde_json::from_str(&line).expect("moto does not start");
        let text = |pointer: &str| up.pointer(pointer).and_then(Value::as_str).unwrap().to_owned();
        let keys = (text("/keys/provider/id"), text("/keys/provider/secret"));
        assert_eq!((&up["image"], &up["given"]), (&json!(IMAGE), &given()), "serve.py gives other ids");
        let (url, control) = (text("/url"), text("/control"));
        Self { process, url, control, keys, client: reqwest::Client::new() }
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn action(exchange: &Exchange) -> String {
    let body = String::from_utf8_lossy(&exchange.body);
    if let Ok(asked) = serde_json::from_str::<Value>(&body) {
        // Secrets Manager names its action in a header: what is asked about a secret by its name alone reads.
        return if asked.as_object().is_some_and(|asked| asked.len() == 1) { "DescribeSecret" } else { "Change" }
            .to_owned();
    }
    body.split('&').find_map(|pair| pair.strip_prefix("Action=")).unwrap_or_default().to_owned()
}

#[async_trait]
impl Server for Moto {
    fn access(&self) -> Access {
        let entries = [("AccessKeyID", &self.keys.0), ("SecretAccessKey", &self.keys.1)];
        let data = entries.map(|(name, value)| (name.to_owned(), value.clone().into())).into();
        let kind = CredentialKind::Aws { region: None, roles: Vec::new() };
        Access { origin: self.url.clone(), credential: Some((kind, data)) }
    }

    async fn left(&self) -> anyhow::Result<Vec<String>> {
        Ok(self.client.get(format!("{}/left", self.control)).send().await?.error_for_status()?.json().await?)
    }

    async fn clear(&self) -> anyhow::Result<()> {
        self.client.post(format!("{}/clear", self.control)).send().await?.error_for_status()?;
        Ok(())
    }

    fn changes(&self, exchange: &Exchange) -> bool {
        exchange.changes() && !action(exchange).starts_with("Describe")
    }

    /// One answer about a cluster's resources of a kind serves all its parts and machines.
    fn is_shared(&self, exchange: &Exchange) -> bool {
        ["DescribeInstances", "DescribeTargetHealth"].contains(&action(exchange).as_str())
    }
}

fn owner(kind: &str, name: &str) -> Value {
    json!([{"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": kind,
        "name": name, "uid": format!("of {kind}/{name}"), "controller": true}])
}

fn cluster() -> Value {
    json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
        "metadata": {"name": "c", "namespace": "n"},
        "spec": {"infrastructureRef": {"apiGroup": INFRASTRUCTURE, "kind": "AWSCluster", "name": "c"}},
        "status": {"initialization": {"infrastructureProvisioned": true}}})
}

/// A control-plane machine of a cluster whose network and load balancer are there.
fn machine() -> Life {
    let all = given();
    let given = |name: &str| all[name].as_str().unwrap();
    let part = |id: &str, state: Value| json!({"id": id, "confirmed": true, "attempt": 1, "state": state});
    let subnet = json!({"name": "private-us-east-1a", "zone": "us-east-1a", "cidr": ""});
    let target = given("targetGroup");
    let parts = json!({
        "vpc": part(given("vpc"), json!({"id": given("vpc"), "owned": true, "layout": {"subnets": [subnet]}})),
        "subnet-private-us-east-1a": part(given("subnet"), json!({"id": given("subnet")})),
        "security-group-node": part(given("group"), json!({"id": given("group")})),
        "load-balancer": part("given", json!({"name": "given", "arn": "arn", "dns": "given.example", "active": true})),
        "target-group": part("given", json!({"arn": target, "port": 6443})),
    });
    Life {
        name: "machine",
        objects: vec![
            cluster(),
            json!({"apiVersion": format!("{INFRASTRUCTURE}/v1beta2"), "kind": "AWSCluster",
                "metadata": {"name": "c", "namespace": "n", "ownerReferences": owner("Cluster", "c"),
                    "annotations": {"capstan.dev/parts": parts.to_string()}},
                "spec": {"region": "us-east-1", "controlPlaneLoadBalancer": {"loadBalancerType": "nlb"}}}),
            json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
                "metadata": {"name": "m", "namespace": "n", "labels": {"cluster.x-k8s.io/control-plane": ""}},
                "spec": {"clusterName": "c", "version": "v1.34.1", "bootstrap": {"dataSecretName": "m"}}}),
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "m", "namespace": "n"},
                "data": {"value": "I2Nsb3VkLWNvbmZpZwo=", "format": "Y2xvdWQtY29uZmln"}}),
            json!({"apiVersion": format!("{INFRASTRUCTURE}/v1beta2"), "kind": "AWSMachine",
                "metadata": {"name": "m", "namespace": "n", "labels": {"cluster.x-k8s.io/cluster-name": "c"},
                    "ownerReferences": owner("Machine", "m")},
                "spec": {"instanceType": "m5.large", "ami": {"id": IMAGE},
                    "cloudInit": {"secureSecretsBackend": "secrets-manager"}}}),
        ],
        subject: ObjectKey::new(INFRASTRUCTURE, "AWSMachine", "n", "m"),
        change: Some(node_joins),
        tend: |_| (),
    }
}

/// A cluster in one zone, with everything made for it.
fn network() -> Life {
    Life {
        name: "cluster",
        objects: vec![
            cluster(),
            json!({"apiVersion": format!("{INFRASTRUCTURE}/v1beta2"), "kind": "AWSCluster",
                "metadata": {"name": "c", "namespace": "n", "ownerReferences": owner("Cluster", "c")},
                "spec": {"region": "us-east-1", "network": {"vpc": {"availabilityZoneUsageLimit": 1}},
                    "controlPlaneLoadBalancer": {"loadBalancerType": "nlb"}}}),
        ],
        subject: ObjectKey::new(INFRASTRUCTURE, "AWSCluster", "n", "c"),
        change: Some(|world| {
            world.edit(&ObjectKey::new(INFRASTRUCTURE, "AWSCluster", "n", "c"), |object| {
                object.set("/spec/network/nodePortIngressRuleCidrBlocks", json!(["192.0.2.0/24"]));
            });
        }),
        tend: |_| (),
    }
}

fn server() -> ServerStarts {
    Box::pin(async {
        let moto: Box<dyn Server> = Box::new(Moto::start());
        Ok(moto)
    })
}

fn suite(lives: Vec<Life>) -> Suite<'static> {
    Suite { name: "aws", component: crate::provider("aws"), server, lives, fleet: Vec::new(), failed: FAILED }
}

/// Of the machine: the cluster has so many parts that its gravest cases alone take minutes.
#[test]
fn a_sample_of_faults_leaks_nothing_in_aws() {
    sample(&suite(vec![machine()]), 20, 2);
}

#[test]
#[ignore = "minutes: make leak"]
fn all_faults_leak_nothing_in_aws() {
    all(&suite(vec![machine(), network()]), worlds());
}
