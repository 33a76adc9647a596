//! The life of `examples/aws.yaml`, from nothing to nothing.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use capstan_tests::ec2::NETWORKS;
use capstan_tests::lab;
use capstan_tests::moto::{ACCOUNT, Moto};
use capstan_tests::on_both_back_ends;
use capstan_tests::plane::{BackEnd, kubectl};
use capstan_tests::site::{MINUTE, condition, laps, name, told};
use capstan_tests::witness::Witness;
use capstan_tests::workers::{Workers, is_available};
use serde_json::{Value, json};

use crate::site::{Site, aws, example, start};

const CLUSTER: &str = "aws-quickstart";
const CONTROL_PLANE: &str = "aws-quickstart-control-plane";
const WORKERS: &str = "aws-quickstart-workers";
const KINDS: &str =
    "clusters,machines,machinesets,machinedeployments,kubeadmcontrolplanes,kubeadmconfigs,awsclusters,awsmachines";

fn workers(site: &Site) -> Workers<'_, Moto> {
    Workers { site, deployment: WORKERS }
}

/// What is there of the kinds that a cluster consists of, beside machines: the example's manifest, by kind and name.
fn network() -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    let mut there = |kind: &str, names: &[&str]| all.extend(names.iter().map(|name| format!("{kind} {CLUSTER}{name}")));
    there("vpc", &["-vpc"]);
    there("internet-gateway", &["-igw"]);
    for zone in ["us-east-1a", "us-east-1b"] {
        for (kind, start) in [("address", "-eip-nat-"), ("nat-gateway", "-nat-")] {
            there(kind, &[&format!("{start}{zone}")]);
        }
        for access in ["public", "private"] {
            there("subnet", &[&format!("-subnet-{access}-{zone}")]);
            there("route-table", &[&format!("-rt-{access}-{zone}")]);
        }
    }
    there("security-group", &["-apiserver-lb", "-controlplane", "-lb", "-node"]);
    all.sort();
    all
}

/// An instance of an account that is there, with what moto tells of it.
fn instances(moto: &Moto) -> Result<BTreeMap<String, Value>> {
    let told = moto.by_hand(ACCOUNT, "ec2", "describe_instances", &json!({}))?;
    let all = told["Reservations"].as_array().into_iter().flatten();
    let all = all.flat_map(|reservation| reservation["Instances"].as_array().into_iter().flatten());
    let there = all.filter(|instance| instance["State"]["Name"] != "terminated");
    Ok(there
        .map(|instance| (instance["InstanceId"].as_str().unwrap_or_default().to_owned(), instance.clone()))
        .collect())
}

fn tag<'a>(instance: &'a Value, key: &str) -> Option<&'a str> {
    instance["Tags"].as_array()?.iter().find(|tag| tag["Key"] == key)?["Value"].as_str()
}

/// Each machine is one instance, in the zone that it tells, and its Node says so.
fn all_belongs_together(site: &Site) -> Result<()> {
    let machines = site.plane.items(&["machines", "-n", "default"])?;
    let instances = instances(&site.server)?;
    ensure!(machines.len() == instances.len(), "{} Machines, {} instances", machines.len(), instances.len());
    let kubeconfig = site.plane.workload_kubeconfig(CLUSTER)?;
    let nodes: Value = serde_json::from_str(&kubectl(&kubeconfig, &["get", "nodes", "-o", "json"])?)?;
    let nodes = nodes["items"].as_array().context("no list of Nodes")?;
    ensure!(nodes.len() == machines.len(), "{} Nodes, {} Machines", nodes.len(), machines.len());
    for machine in &machines {
        let provider_id = machine["spec"]["providerID"].as_str().unwrap_or_default();
        let id = provider_id.rsplit('/').next().unwrap_or_default();
        let instance = instances.get(id).with_context(|| format!("{provider_id} is not there"))?;
        let zone = instance["Placement"]["AvailabilityZone"].as_str().unwrap_or_default();
        ensure!(provider_id == format!("aws:///{zone}/{id}"), "{id} is in {zone}, and its providerID is {provider_id}");
        let infrastructure = machine["spec"]["infrastructureRef"]["name"].as_str().unwrap_or_default();
        ensure!(tag(instance, "Name") == Some(infrastructure), "{id} is called {:?}", tag(instance, "Name"));
        let node = nodes.iter().find(|node| node["spec"]["providerID"] == provider_id);
        let node = node.with_context(|| format!("no Node has the providerID {provider_id}"))?;
        ensure!(machine["status"]["nodeRef"]["name"] == node["metadata"]["name"], "{}", machine["status"]["nodeRef"]);
        let address = &instance["PrivateIpAddress"];
        for object in [machine, node] {
            let mut told = object["status"]["addresses"].as_array().into_iter().flatten();
            ensure!(
                told.any(|told| told["type"] == "InternalIP" && told["address"] == *address),
                "{} does not tell {address}: {}",
                name(object),
                object["status"]["addresses"]
            );
        }
    }
    Ok(())
}

/// Exactly what the manifest says is there: the network, a load balancer with its listener and target group, a volume and an
/// instance for each machine, and each control-plane machine is a target.
fn exactly_that(site: &Site) -> Result<()> {
    let (mut network, mut rest): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
    let of_network = ["vpc", "internet-gateway", "address", "nat-gateway", "subnet", "route-table", "security-group"];
    for line in site.server.left(ACCOUNT)? {
        let kind = line.split(' ').next().unwrap_or_default();
        if of_network.contains(&kind) { network.push(line) } else { rest.push(line) }
    }
    ensure!(network == self::network(), "{network:#?}\nis not\n{:#?}", self::network());
    let machines = site.plane.items(&["awsmachines", "-n", "default"])?;
    let control_plane = machines.iter().filter(|machine| name(machine).starts_with(CONTROL_PLANE)).count();
    let mut wanted: Vec<String> = machines.iter().map(|machine| format!("instance {}", name(machine))).collect();
    wanted.extend(machines.iter().map(|machine| format!("volume {}", name(machine))));
    let cluster = site.plane.get(&["awscluster", CLUSTER])?;
    let balancer =
        cluster["status"]["networkStatus"]["apiServerElb"]["name"].as_str().context("no load balancer")?.to_owned();
    let hash = balancer.strip_prefix(&format!("{CLUSTER}-apiserver-"));
    ensure!(hash.is_some_and(|hash| hash.len() == 6), "{balancer}");
    // The listing leaves hashes of owner keys out.
    wanted.extend([format!("load-balancer {CLUSTER}-apiserver-*"), "listener 6443".to_owned()]);
    let group = rest.iter().find_map(|line| line.strip_prefix("target-group ")).context("no target group")?.to_owned();
    wanted.push(format!("target-group {group}"));
    wanted.extend((0..control_plane).map(|_| format!("target {group}")));
    wanted.sort();
    ensure!(rest == wanted, "{rest:#?}\nis not\n{wanted:#?}");
    Ok(())
}

on_both_back_ends!(from_nothing_to_nothing);

fn from_nothing_to_nothing(back_end: BackEnd) -> Result<()> {
    if !lab::enter(back_end, "life::from_nothing_to_nothing", &NETWORKS)? {
        return Ok(());
    }
    let (moto, hypervisor) = aws()?;
    let before = moto.made(ACCOUNT)?;
    let first = moto.users.key("provider");
    let manifests = example(back_end, &moto, &first)?;
    let mut site = start(back_end, moto, hypervisor, &manifests)?;
    site.plane.wait_applied(MINUTE)?;
    let witness = Witness::of(&site.plane.kubeconfig())?;
    let mut lap = laps();
    site.wait_ready(2 * MINUTE)?;
    lap("ready");
    site.available(4)?;
    lap("available");
    all_belongs_together(&site)?;
    exactly_that(&site)?;
    lap("compared");

    // 3 → 5, and when the first of the new ones is made the old key is deactivated.
    let second = site.server.make_key("provider")?;
    site.server.deactivate_after("RunInstances", &first)?;
    workers(&site).scale(5)?;
    site.until(MINUTE, "the refused credential is told", || {
        let machines = site.plane.items(&["awsmachines", "-n", "default"])?;
        Ok(machines.iter().any(|machine| told(machine, "Ready").contains("AuthFailure")))
    })?;
    lap("refused");
    let keys = json!({"stringData": {"AccessKeyID": second.id, "SecretAccessKey": second.secret}}).to_string();
    site.plane.kubectl(&["patch", "secret", "aws-quickstart", "-n", "capstan-system", "--type=merge", "-p", &keys])?;
    workers(&site).settled(5)?;
    lap("5 workers");
    all_belongs_together(&site)?;
    workers(&site).scale(2)?;
    workers(&site).settled(2)?;
    site.until(MINUTE, "three instances", || Ok(instances(&site.server)?.len() == 3))?;
    lap("2 workers");
    workers(&site).scale(3)?;
    workers(&site).settled(3)?;
    lap("3 workers");
    roll(&site)?;
    lap("rolled");
    spread(&site)?;
    lap("3 control-plane machines");
    drift(&site)?;
    lap("drift");

    site.plane.kubectl(&["delete", "cluster", CLUSTER, "--timeout=120s"])?;
    lap("deleted");
    site.until(MINUTE, "no machine runs", || Ok(site.hypervisor.guests().is_empty()))?;
    let keys = json!({"UserName": "provider", "AccessKeyId": second.id});
    site.server.by_hand(ACCOUNT, "iam", "delete_access_key", &keys)?;
    let left = site.server.made(ACCOUNT)?;
    ensure!(left == before, "{left:#?} is left; {before:#?} was there");
    site.until(MINUTE, "no object is left", || Ok(site.plane.items(&[KINDS, "-n", "default"])?.is_empty()))?;
    site.until(MINUTE, "no Secret of the cluster is left", || {
        Ok(site.plane.items(&["secrets", "-n", "default"])?.is_empty())
    })?;
    ensure!(site.hypervisor.problems().is_empty(), "{:?}", site.hypervisor.problems());
    lap("nothing left");
    let keys = [("key of AWS", first.secret.as_str()), ("key of AWS", second.secret.as_str())];
    site.tells_no_secret(&witness, &keys, "/apis/infrastructure.cluster.x-k8s.io/v1beta2/awsmachines")?;
    lap("searched");
    Ok(())
}

/// Another template rolls all workers: of another type, and with first-boot data that they fetch from Secrets Manager, where it is
/// no longer than until they have joined.
fn roll(site: &Site) -> Result<()> {
    let change = json!({"instanceType": "m6i.xlarge", "cloudInit": {"secureSecretsBackend": "secrets-manager"}});
    workers(site).roll("awsmachinetemplate", &change)?;
    site.until(MINUTE, "the secrets are gone", || {
        Ok(!site.server.left(ACCOUNT)?.iter().any(|line| line.starts_with("secret ")))
    })?;
    for instance in instances(&site.server)?.values() {
        let name = tag(instance, "Name").unwrap_or_default();
        let wanted = if name.starts_with(WORKERS) { "m6i.xlarge" } else { "m6i.large" };
        ensure!(instance["InstanceType"] == wanted, "{name} is of type {}", instance["InstanceType"]);
        ensure!(instance["MetadataOptions"]["HttpTokens"] == "required", "{name}: {}", instance["MetadataOptions"]);
    }
    let made = site.server.requests()?.iter().filter(|asked| asked.action == "CreateSecret").count();
    ensure!(made == 3, "{made} secrets were made");
    exactly_that(site)?;
    all_belongs_together(site)
}

/// Three control-plane machines are in two zones, and the load balancer has all of them.
fn spread(site: &Site) -> Result<()> {
    site.plane.kubectl(&["scale", "kubeadmcontrolplane", CONTROL_PLANE, "--replicas=3"])?;
    site.until(2 * MINUTE, "three control-plane machines", || {
        let machines = site.plane.items(&["machines", "-n", "default", "-l", "cluster.x-k8s.io/control-plane"])?;
        Ok(machines.len() == 3 && machines.iter().all(is_available))
    })?;
    let instances = instances(&site.server)?;
    let of_control_plane =
        instances.values().filter(|i| tag(i, "Name").is_some_and(|name| name.starts_with(CONTROL_PLANE)));
    let zones: BTreeSet<&str> = of_control_plane.filter_map(|i| i["Placement"]["AvailabilityZone"].as_str()).collect();
    ensure!(zones == BTreeSet::from(["us-east-1a", "us-east-1b"]), "control-plane machines are in {zones:?} only");
    exactly_that(site)?;
    all_belongs_together(site)
}

/// An instance that somebody terminates is told of, and not made anew behind the user's back; a rule that somebody takes away is
/// put back.
fn drift(site: &Site) -> Result<()> {
    let rules = |group: &str| -> Result<Value> {
        let told = site.server.by_hand(ACCOUNT, "ec2", "describe_security_groups", &json!({"GroupIds": [group]}))?;
        Ok(told["SecurityGroups"][0]["IpPermissions"].clone())
    };
    let cluster = site.plane.get(&["awscluster", CLUSTER])?;
    let group =
        cluster["status"]["networkStatus"]["securityGroups"]["node"]["id"].as_str().context("no group")?.to_owned();
    let before = rules(&group)?;
    let taken = json!({"GroupId": group, "IpPermissions": [before[0]]});
    site.server.by_hand(ACCOUNT, "ec2", "revoke_security_group_ingress", &taken)?;
    ensure!(rules(&group)? != before, "no rule was taken away");

    let lost = workers(site).machines()?.first().cloned().context("no worker")?;
    let id = lost["spec"]["providerID"].as_str().and_then(|id| id.rsplit('/').next()).context("no providerID")?;
    site.server.by_hand(ACCOUNT, "ec2", "terminate_instances", &json!({"InstanceIds": [id]}))?;
    let left = instances(&site.server)?.len();
    let infrastructure = lost["spec"]["infrastructureRef"]["name"].as_str().unwrap_or_default();
    // All is looked at once a minute, and whenever it is touched.
    let mut touched = 0;
    let mut touch = |kind: &str, name: &str| {
        touched += 1;
        site.plane.kubectl(&["annotate", "--overwrite", kind, name, &format!("touched={touched}")]).map(drop)
    };
    site.until(MINUTE, "the loss is told", || {
        touch("awsmachine", infrastructure)?;
        let machine = site.plane.get(&["machine", &name(&lost)])?;
        let infrastructure = site.plane.get(&["awsmachine", infrastructure])?;
        Ok(told(&infrastructure, "InstanceReady").contains("InstanceTerminated")
            && condition(&machine, "InfrastructureReady").is_some_and(|condition| condition["status"] == "False"))
    })?;
    ensure!(instances(&site.server)?.len() == left, "it was made again behind the user's back");
    let sorted = |rules: &Value| -> Vec<String> {
        let mut all: Vec<String> = rules.as_array().into_iter().flatten().map(Value::to_string).collect();
        all.sort();
        all
    };
    site.until(MINUTE, "the rule is back", || {
        touch("awscluster", CLUSTER)?;
        Ok(sorted(&rules(&group)?) == sorted(&before))
    })
}
