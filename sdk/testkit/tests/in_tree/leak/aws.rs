//! `aws` against moto with IAM and signature checks on, and what moto lacks put before it (tests/moto/serve.py).

use async_trait::async_trait;
use capstan_api::ObjectKey;
use capstan_core::testing::World;
use capstan_gateway::CredentialKind;
use capstan_testkit::Exchange;
use capstan_testkit::conformance::{Access, Life, Server, ServerStarts, Suite};
use serde_json::{Value, json};

use super::scenery::{INFRASTRUCTURE, Stand, cluster_of, node_joins, owner};
use super::{FAILED, all, sample, some, worlds};

/// The image that serve.py registers; its ids are the same in each run.
const IMAGE: &str = "ami-a2cdc501534df6b3c";

/// A VPC with a subnet, a group and a target group, as serve.py makes them.
fn given() -> Value {
    json!({
        "vpc": "vpc-649bd708c4f168e7a", "subnet": "subnet-709214993d09c79f1", "group": "sg-6b7d45e9e99bcb724",
        "targetGroup": "arn:aws:elasticloadbalancing:us-east-1:123456789012:targetgroup/given/b03c3c3b323cdcdd",
    })
}

/// moto as the test sees it.
struct Moto(Stand);

impl Moto {
    fn start() -> Self {
        let moto = Stand::start("moto/serve.py", &["--remember"]);
        assert_eq!((&moto.up["image"], &moto.up["given"]), (&json!(IMAGE), &given()), "serve.py gives other ids");
        Self(moto)
    }
}

#[async_trait]
impl Server for Moto {
    fn access(&self) -> Access {
        // A user that may do what the documentation says.
        let entries = [("AccessKeyID", "/keys/provider/id"), ("SecretAccessKey", "/keys/provider/secret")];
        let data = entries.map(|(name, at)| (name.to_owned(), self.0.text(at).into())).into();
        let kind = CredentialKind::Aws { region: None, roles: Vec::new() };
        Access { origin: self.0.text("/url"), credential: Some((kind, data)) }
    }

    async fn left(&self) -> anyhow::Result<Vec<String>> {
        self.0.left().await
    }

    async fn clear(&self) -> anyhow::Result<()> {
        self.0.clear().await
    }

    /// One answer about a cluster's resources of a kind serves all its parts and machines.
    fn is_shared(&self, exchange: &Exchange) -> bool {
        matches!(exchange.action.as_deref(), Some("DescribeInstances" | "DescribeTargetHealth"))
    }
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
            cluster_of("AWSCluster"),
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

/// A life of a cluster with this spec, in region and zone of the test.
fn cluster(name: &'static str, mut spec: Value, change: Option<fn(&mut World)>) -> Life {
    spec["region"] = json!("us-east-1");
    Life {
        name,
        objects: vec![
            cluster_of("AWSCluster"),
            json!({"apiVersion": format!("{INFRASTRUCTURE}/v1beta2"), "kind": "AWSCluster",
                "metadata": {"name": "c", "namespace": "n", "ownerReferences": owner("Cluster", "c")}, "spec": spec}),
        ],
        subject: cluster_key(),
        change,
        tend: |_| (),
    }
}

fn cluster_key() -> ObjectKey {
    ObjectKey::new(INFRASTRUCTURE, "AWSCluster", "n", "c")
}

fn open_node_ports(world: &mut World) {
    world.edit(&cluster_key(), |object| {
        object.set("/spec/network/nodePortIngressRuleCidrBlocks", json!(["192.0.2.0/24"]));
    });
}

/// A cluster in one zone, with everything made for it.
fn whole() -> Life {
    let spec = json!({"network": {"vpc": {"availabilityZoneUsageLimit": 1}}, "controlPlaneLoadBalancer": {"loadBalancerType": "nlb"}});
    cluster("cluster", spec, Some(open_node_ports))
}

/// All parts of a cluster, a few at a time and the others borrowed: what a life costs grows with the square of its parts.
fn clusters() -> Vec<Life> {
    let all = given();
    let groups: Value = ["bastion", "controlplane", "apiserver-lb", "node", "lb"]
        .into_iter()
        .map(|role| (role.to_owned(), all["group"].clone()))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let vpc = json!({"id": all["vpc"]});
    let none = json!({"loadBalancerType": "disabled"});
    let endpoint = json!({"host": "192.0.2.1", "port": 6443});
    let in_front = |kind: &str| {
        json!({"network": {"vpc": vpc, "securityGroupOverrides": groups},
            "controlPlaneLoadBalancer": {"loadBalancerType": kind, "name": "c", "scheme": "internal"}})
    };
    vec![
        cluster(
            "network",
            json!({"network": {"vpc": {"availabilityZoneUsageLimit": 1}, "securityGroupOverrides": groups},
                "controlPlaneLoadBalancer": none, "controlPlaneEndpoint": endpoint}),
            None,
        ),
        cluster(
            "groups",
            json!({"network": {"vpc": vpc}, "controlPlaneLoadBalancer": none, "controlPlaneEndpoint": endpoint}),
            Some(open_node_ports),
        ),
        cluster(
            "nlb",
            in_front("nlb"),
            Some(|world| {
                world.edit(&cluster_key(), |object| {
                    let listeners = json!([{"port": 8132, "protocol": "TCP"}]);
                    object.set("/spec/controlPlaneLoadBalancer/additionalListeners", listeners);
                });
            }),
        ),
        cluster("classic", in_front("classic"), None),
    ]
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

/// Of the whole cluster only a few: its gravest cases alone take minutes.
#[test]
fn a_sample_of_faults_leaks_nothing_in_aws() {
    sample(&suite(vec![machine()]), 20, 2);
}

#[test]
#[ignore = "minutes: make leak"]
fn all_faults_leak_nothing_in_aws() {
    let lives = [machine()].into_iter().chain(clusters());
    all(&suite(lives.collect()), worlds());
}

/// Of a cluster with all of its parts: a sample, with the gravest.
#[test]
#[ignore = "minutes: make leak"]
fn whole_clusters_leak_nothing_in_aws() {
    some(&suite(vec![whole()]), 200, worlds());
}
