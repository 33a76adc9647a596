//! Tenants with an identity each on one AWS: neither can touch another's resources by any manifest that it can write. `blue` has
//! the keys of a user of its account, `green` a role of its own account, which is assumed by means of the operator's keys; `red` is
//! another user of blue's account, where AWS itself tells nobody from nobody.

use std::net::TcpListener;

use anyhow::{Context, Result, ensure};
use capstan_tests::ec2::NETWORKS;
use capstan_tests::lab;
use capstan_tests::moto::{ACCOUNT, Moto};
use capstan_tests::plane::root;
use capstan_tests::site::{MINUTE, list, merge};
use serde_json::{Value, json};

use crate::objects::{self, cluster, endpoint, endpoints, keys, machine};
use crate::site::{Site, aws, start};

/// A tenant.
struct Tenant {
    /// Its namespace; its identity is called after it.
    namespace: &'static str,
    account: &'static str,
    kind: &'static str,
    /// The addresses of its VPC: all machines are on this one computer.
    cidr: &'static str,
}

const BLUE: Tenant =
    Tenant { namespace: "blue", account: "222222222222", kind: "AWSClusterStaticIdentity", cidr: "10.0.0.0/20" };
const GREEN: Tenant =
    Tenant { namespace: "green", account: "333333333333", kind: "AWSClusterRoleIdentity", cidr: "10.0.16.0/20" };
const RED: Tenant =
    Tenant { namespace: "red", account: "222222222222", kind: "AWSClusterStaticIdentity", cidr: "10.0.32.0/20" };
const SYSTEM: &str = "capstan-system";
/// The role that green lends to the operator.
const ROLE: &str = "arn:aws:iam::333333333333:role/capstan";

impl Tenant {
    fn identity(&self) -> Value {
        json!({"kind": self.kind, "name": self.namespace})
    }

    /// Its cluster of a name, everything of it made.
    fn cluster(&self, name: &str, more: &Value) -> Vec<Value> {
        let mut spec = json!({"spec": {"identityRef": self.identity(), "network": {"vpc": {"cidrBlock": self.cidr}}}});
        merge(&mut spec, more);
        cluster(self.namespace, name, &spec)
    }

    fn machine(&self, name: &str, more: &Value) -> Vec<Value> {
        machine(self.namespace, name, more)
    }
}

fn identity(kind: &str, name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

/// What the operator sets up: accounts, Secrets and identities.
fn operators(moto: &Moto) -> Result<Vec<Value>> {
    let (blue, _) = moto.make_account(BLUE.account)?;
    moto.make_account(GREEN.account)?;
    let policy = std::fs::read_to_string(root().join("tests/moto/policy.json"))?;
    let trust = json!({"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "sts:AssumeRole",
        "Principal": {"AWS": format!("arn:aws:iam::{ACCOUNT}:user/provider")}}]});
    let role = json!({"RoleName": "capstan", "AssumeRolePolicyDocument": trust.to_string()});
    moto.by_hand(GREEN.account, "iam", "create_role", &role)?;
    let rights = json!({"RoleName": "capstan", "PolicyName": "provider", "PolicyDocument": policy});
    moto.by_hand(GREEN.account, "iam", "put_role_policy", &rights)?;
    // The operator's own keys may assume the role and nothing else.
    let assume = json!({"Version": "2012-10-17", "Statement": [
        {"Effect": "Allow", "Action": "sts:AssumeRole", "Resource": ROLE}]});
    let rights = json!({"UserName": "provider", "PolicyName": "provider", "PolicyDocument": assume.to_string()});
    moto.by_hand(ACCOUNT, "iam", "put_user_policy", &rights)?;
    let allowed = |tenant: &Tenant| json!({"list": [tenant.namespace]});
    Ok(vec![
        keys(SYSTEM, "blue", &blue.key("provider")),
        keys(SYSTEM, "red", &blue.key("second")),
        keys(SYSTEM, "operator", &moto.users.key("provider")),
        identity(BLUE.kind, "blue", &json!({"secretRef": "blue", "allowedNamespaces": allowed(&BLUE)})),
        identity(RED.kind, "red", &json!({"secretRef": "red", "allowedNamespaces": allowed(&RED)})),
        identity(BLUE.kind, "operator", &json!({"secretRef": "operator", "allowedNamespaces": allowed(&GREEN)})),
        identity(
            GREEN.kind,
            "green",
            &json!({"roleARN": ROLE, "allowedNamespaces": allowed(&GREEN),
                "sourceIdentityRef": {"kind": BLUE.kind, "name": "operator"}}),
        ),
    ])
}

/// Everything that an account has, as AWS tells it.
fn account(moto: &Moto, account: &str) -> Result<Vec<Value>> {
    let mut all = crate::borrowed::told(moto, account)?;
    for operation in ["describe_instances", "describe_volumes", "describe_nat_gateways", "describe_addresses"] {
        all.push(moto.by_hand(account, "ec2", operation, &json!({}))?);
    }
    for group in moto.by_hand(account, "elbv2", "describe_target_groups", &json!({}))?["TargetGroups"]
        .as_array()
        .into_iter()
        .flatten()
    {
        let arn = json!({"TargetGroupArn": group["TargetGroupArn"]});
        all.push(moto.by_hand(account, "elbv2", "describe_target_health", &arn)?);
    }
    Ok(all)
}

#[test]
fn tenants_cannot_touch_each_other() -> Result<()> {
    if !lab::enter("tenants::tenants_cannot_touch_each_other", &NETWORKS)? {
        return Ok(());
    }
    let (moto, hypervisor) = aws()?;
    let mut objects = objects::namespace(SYSTEM);
    objects.extend(operators(&moto)?);
    for tenant in [&BLUE, &GREEN, &RED] {
        objects.extend(objects::namespace(tenant.namespace));
        objects.extend(tenant.cluster("c", &json!({})));
        objects.extend(tenant.machine("m", &json!({})));
    }
    let mut site = start(moto, hypervisor, &list(&objects))?;
    site.plane.wait_for_line("waiting for all to be ready", MINUTE)?;
    site.plane.kubectl(&["patch", "providermodule", "aws", "--type=merge", "-p", &endpoints(&site.server)])?;
    for tenant in [&BLUE, &GREEN, &RED] {
        site.says(tenant.namespace, "awsmachine", "m", &["True"])?;
    }
    // The clusters of blue and red are called the same in the same account.
    ensure!(site.server.left(GREEN.account)?.len() * 2 == site.server.left(BLUE.account)?.len());
    let told_before = |site: &Site| -> Result<[Vec<Value>; 2]> {
        Ok([account(&site.server, BLUE.account)?, account(&site.server, GREEN.account)?])
    };
    let before = told_before(&site)?;
    let asked = site.server.requests()?.len();

    let mut expected = Vec::new();
    for (attacker, victim) in [(&BLUE, &GREEN), (&GREEN, &BLUE), (&RED, &BLUE)] {
        for (name, words, objects) in tries(&site, attacker, victim)? {
            site.apply(&list(&objects)).with_context(|| name.to_owned())?;
            let kind = objects.last().and_then(|object| object["kind"].as_str()).unwrap_or_default().to_lowercase();
            expected.push((attacker.namespace, kind, name, words));
        }
    }
    for (namespace, kind, name, words) in &expected {
        site.says(namespace, kind, name, &words.iter().map(String::as_str).collect::<Vec<_>>())?;
    }
    ensure!(told_before(&site)? == before, "what is there has changed");

    // What an identity lends goes nowhere that a tenant says; nobody is even asked there.
    let trap = TcpListener::bind("127.0.0.1:0")?;
    trap.set_nonblocking(true)?;
    let url = format!("http://{}", trap.local_addr()?);
    let mut of_tenant = endpoint("green", "ec2", Some(&url), "none");
    of_tenant["spec"].as_object_mut().map(|spec| spec.remove("credential"));
    site.apply(&list(&[of_tenant]))?;
    site.plane.kubectl(&["annotate", "awscluster", "c", "-n", "green", "touched=1"])?;
    site.says("green", "awscluster", "c", &["AWSClusterRoleIdentity green", "Endpoint"])?;
    ensure!(trap.accept().is_err(), "somebody has called where a tenant's Endpoint leads");
    // With an own credential it may lead there; another namespace's Secret is none.
    site.apply(&list(&[endpoint("green", "ec2", Some(&url), "blue")]))?;
    site.says("green", "awscluster", "c", &["there is no Secret green/blue"])?;
    ensure!(trap.accept().is_err(), "somebody has called where a tenant's Endpoint leads");
    site.plane.kubectl(&["delete", "endpoints.capstan.dev", "ec2", "-n", "green"])?;
    site.says("green", "awscluster", "c", &["True"])?;

    // What was tried goes without taking anything of the other's along.
    for (namespace, kind, name, _) in &expected {
        let owner = if kind == "awscluster" { "cluster" } else { "machine" };
        site.plane.kubectl(&["delete", owner, name, "-n", namespace, "--wait=false"])?;
    }
    site.until(MINUTE, "only what was there first is left", || {
        Ok(site.plane.items(&["awsmachines,awsclusters", "-A"])?.len() == 6)
    })?;
    ensure!(told_before(&site)? == before, "what is there has changed");
    // Nothing was changed by anybody's keys but what they made for themselves and took away again.
    let refused =
        site.server.requests()?.into_iter().skip(asked).filter(|asked| asked.action == "TerminateInstances").count();
    ensure!(refused <= 3, "{refused} instances were terminated");

    for tenant in [&BLUE, &GREEN, &RED] {
        site.plane.kubectl(&["delete", "cluster", "c", "-n", tenant.namespace, "--wait=false"])?;
        site.plane.kubectl(&["delete", "machine", "m", "-n", tenant.namespace, "--wait=false"])?;
    }
    for tenant in [&BLUE, &GREEN] {
        site.until(MINUTE, "nothing is left", || Ok(site.server.left(tenant.account)?.is_empty()))?;
    }
    ensure!(site.hypervisor.problems().is_empty(), "{:?}", site.hypervisor.problems());
    Ok(())
}

/// What a tenant may write to get hold of the other's resources: a name, what is told of it, and the objects, of which the last
/// one tells.
fn tries(site: &Site, attacker: &Tenant, victim: &Tenant) -> Result<Vec<(&'static str, Vec<String>, Vec<Value>)>> {
    let of_victim = site.plane.get(&["awsmachine", "m", "-n", victim.namespace])?;
    let network = site.plane.get(&["awscluster", "c", "-n", victim.namespace])?;
    let text = |object: &Value, at: &str| {
        object.pointer(at).and_then(Value::as_str).map(str::to_owned).with_context(|| format!("no {at}"))
    };
    let provider_id = text(&of_victim, "/spec/providerID")?;
    let instance = provider_id.rsplit('/').next().unwrap_or_default().to_owned();
    let (vpc, group) =
        (text(&network, "/status/vpcID")?, text(&network, "/status/networkStatus/securityGroups/node/id")?);
    let balancer = text(&network, "/status/networkStatus/apiServerElb/name")?;
    let filters = json!({"Filters": [{"Name": "vpc-id", "Values": [vpc]}]});
    let subnets = site.server.by_hand(victim.account, "ec2", "describe_subnets", &filters)?;
    let subnet = text(&subnets, "/Subnets/0/SubnetId")?;
    let mut copied = json!({"metadata": {"annotations": of_victim["metadata"]["annotations"]}});
    copied["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"] = Value::Null;
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();

    let lent = |name: &str| format!("may not be used from namespace {name}");
    let mut all = vec![
        ("its-key", words(&["OwnerKeyNotUnique"]), attacker.machine("its-key", &copied)),
        (
            "its-identity",
            vec![format!("{} {}", victim.kind, victim.namespace), lent(attacker.namespace)],
            attacker.cluster("its-identity", &json!({"spec": {"identityRef": victim.identity()}})),
        ),
        // Beside all that, what is allowed works.
        ("allowed", words(&["True"]), attacker.machine("allowed", &json!({}))),
    ];
    if attacker.account == victim.account {
        let spec = json!({"spec": {"controlPlaneLoadBalancer": {"name": balancer}}});
        all.extend([
            (
                "its-provider-id",
                words(&["InstanceForeign", &instance]),
                attacker.machine("its-provider-id", &json!({"spec": {"providerID": provider_id}})),
            ),
            (
                "its-load-balancer",
                words(&["LoadBalancerForeign", &balancer]),
                attacker.cluster("its-load-balancer", &spec),
            ),
        ]);
        return Ok(all);
    }
    let image = site.server.by_hand(victim.account, "ec2", "describe_images", &json!({"Owners": ["819546954734"]}))?;
    let image = image["Images"].as_array().into_iter().flatten();
    let image = image.filter(|image| image["Name"].as_str().is_some_and(|name| name.contains("v1.34.1-1750000000")));
    let image = image.filter_map(|image| image["ImageId"].as_str()).next().context("no image")?.to_owned();
    all.extend([
        (
            "its-provider-id",
            words(&["InstanceTerminated", &instance]),
            attacker.machine("its-provider-id", &json!({"spec": {"providerID": provider_id}})),
        ),
        (
            "its-instance-id",
            words(&["InstanceTerminated", &instance]),
            attacker.machine("its-instance-id", &json!({"spec": {"instanceID": instance}})),
        ),
        (
            "its-subnet",
            words(&["/spec/subnet/id", "no such subnet"]),
            attacker.machine("its-subnet", &json!({"spec": {"subnet": {"id": subnet}}})),
        ),
        (
            "its-group",
            words(&["/spec/additionalSecurityGroups", &group]),
            attacker.machine("its-group", &json!({"spec": {"additionalSecurityGroups": [{"id": group}]}})),
        ),
        (
            "its-image",
            words(&["/spec/ami/id", &image]),
            attacker.machine("its-image", &json!({"spec": {"ami": {"id": image}}})),
        ),
        (
            "its-vpc",
            words(&[&vpc]),
            attacker.cluster("its-vpc", &json!({"spec": {"network": {"vpc": {"id": vpc, "cidrBlock": null}}}})),
        ),
    ]);
    Ok(all)
}
