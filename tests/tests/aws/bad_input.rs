//! What is wrong is told where it is, in words that say which it is and what to do, the rest keeps working, and AWS is not asked
//! over and over.

use anyhow::{Context, Result, ensure};
use capstan_tests::ec2::NETWORKS;
use capstan_tests::lab;
use capstan_tests::moto::{ACCOUNT, Key};
use capstan_tests::on_both_back_ends;
use capstan_tests::plane::BackEnd;
use capstan_tests::site::{MINUTE, list};
use serde_json::{Value, json};

use crate::objects::{cluster, endpoint, keys, machine, namespace};
use crate::site::{Site, aws, start};

const NAMESPACE: &str = "lab";

on_both_back_ends!(the_condition_says_what_is_wrong);

fn the_condition_says_what_is_wrong(back_end: BackEnd) -> Result<()> {
    if !lab::enter(back_end, "bad_input::the_condition_says_what_is_wrong", &NETWORKS)? {
        return Ok(());
    }
    let (moto, hypervisor) = aws()?;
    let right = moto.users.key("provider");
    let wrong = Key { id: right.id.clone(), secret: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into() };
    // Some of the VPC is left to a subnet that somebody else makes.
    let subnets = json!([
        {"id": "public", "cidrBlock": "10.0.0.0/24", "availabilityZone": "us-east-1a", "isPublic": true},
        {"id": "private", "cidrBlock": "10.0.1.0/24", "availabilityZone": "us-east-1a"}]);
    let mut objects = namespace(NAMESPACE);
    objects.push(keys(NAMESPACE, "aws", &wrong));
    objects.extend(["ec2", "elb"].map(|service| endpoint(NAMESPACE, service, Some(&moto.url), "aws")));
    objects.extend(cluster(NAMESPACE, "c", &json!({"spec": {"network": {"subnets": subnets}}})));
    objects.extend(machine(NAMESPACE, "m", &json!({})));
    let mut site = start(back_end, moto, hypervisor, &list(&objects))?;
    site.plane.wait_applied(MINUTE)?;

    // A key that is wrong; then one that may do nothing.
    let says = |kind: &str, name: &str, words: &[&str]| site.says(NAMESPACE, kind, name, words);
    says("awscluster", "c", &["AuthFailure", "401", "check that the keys"])?;
    site.apply(&list(&[keys(NAMESPACE, "aws", &site.server.users.key("nobody"))]))?;
    says("awscluster", "c", &["user/nobody", "ec2:Describe", "the right to do this"])?;
    let refused = site.server.requests()?.len();
    ensure!(refused <= 12, "{refused} requests to be refused");
    site.apply(&list(&[keys(NAMESPACE, "aws", &right)]))?;
    says("awscluster", "c", &["True"])?;
    says("awsmachine", "m", &["True"])?;

    // An image, a type, a version without an image, a subnet, a group, a key pair that are not there: each told on its machine.
    let asked = site.server.requests()?.len();
    for (name, spec, words) in [
        ("no-image", json!({"ami": {"id": "ami-0123456789abcdef0"}}), ["/spec/ami/id", "ami-0123456789abcdef0"]),
        (
            "no-type",
            json!({"instanceType": "m99.huge", "ami": {"id": site.server.image}}),
            ["/spec/instanceType", "m99.huge"],
        ),
        ("no-type-to-look-up", json!({"instanceType": "m99.huge"}), ["/spec/instanceType", "m99.huge"]),
        ("no-published-image", json!({"imageLookupBaseOS": "plan9"}), ["/spec/ami", "set ami.id"]),
        ("no-subnet", json!({"subnet": {"id": "subnet-0123456789abcdef0"}}), ["/spec/subnet", "no such subnet"]),
        ("no-key-pair", json!({"sshKeyName": "nobodys"}), ["/spec/sshKeyName", "nobodys"]),
    ] {
        site.apply(&list(&machine(NAMESPACE, name, &json!({"spec": spec}))))?;
        says("awsmachine", name, &words)?;
    }
    // What can never work is not tried again before somebody changes it.
    let tried: Vec<_> =
        site.server.requests()?.into_iter().skip(asked).filter(|asked| asked.action == "RunInstances").collect();
    ensure!(tried.len() == 3, "{tried:#?}");

    // No capacity and no quota are told, and it goes on by itself when there is some.
    for (name, code) in [("no-capacity", "InsufficientInstanceCapacity"), ("no-quota", "VcpuLimitExceeded")] {
        let asked = site.server.requests()?.len();
        site.server.fail("RunInstances", 400, code, 1000)?;
        site.apply(&list(&machine(NAMESPACE, name, &json!({}))))?;
        says("awsmachine", name, &[code])?;
        site.server.fail("RunInstances", 400, code, 0)?;
        let tried =
            site.server.requests()?.into_iter().skip(asked).filter(|asked| asked.action == "RunInstances").count();
        ensure!(tried <= 3, "asked {tried} times for what there is none of");
    }
    no_address(&site)?;

    // A region that is not there: the Endpoints say as whom, the region says where.
    let mut elsewhere = namespace("elsewhere");
    elsewhere.push(keys("elsewhere", "aws", &right));
    elsewhere.extend(["ec2", "elb"].map(|service| endpoint("elsewhere", service, None, "aws")));
    elsewhere.extend(cluster("elsewhere", "c", &json!({"spec": {"region": "us-nowhere-9"}})));
    site.apply(&list(&elsewhere))?;
    site.says("elsewhere", "awscluster", "c", &["ec2.us-nowhere-9.amazonaws.com cannot be resolved", "/spec/region"])?;
    for name in ["no-capacity", "no-quota"] {
        says("awsmachine", name, &["True"])?;
    }
    says("awsmachine", "m", &["True"])?;

    // What cannot be right is refused before it is anything: the field is named.
    let of_cluster = |spec: Value| cluster(NAMESPACE, "refused", &json!({"spec": spec})).remove(1);
    let of_machine = |spec: Value| machine(NAMESPACE, "refused", &json!({"spec": spec})).remove(1);
    for (object, words) in [
        (of_cluster(json!({"region": ""})), "region"),
        (of_cluster(json!({"bastion": {"enabled": true}})), "bastion"),
        (of_cluster(json!({"network": {"vpc": {"ipv6": {}}}})), "ipv6"),
        (of_cluster(json!({"controlPlaneLoadBalancer": {"loadBalancerType": "alb"}})), "loadBalancerType"),
        (of_cluster(json!({"additionalTags": {"aws:x": "y"}})), "additionalTags"),
        (of_machine(json!({"rootVolume": {"size": 1}})), "size"),
        (of_machine(json!({"providerID": "aws:///us-east-1a/x"})), "providerID"),
        (of_machine(json!({"networkInterfaces": ["eni-1"]})), "networkInterfaces"),
        (of_machine(json!({"subnet": {"id": "subnet-1", "filters": [{"name": "a", "values": ["b"]}]}})), "subnet"),
    ] {
        match site.apply(&list(&[object])) {
            Ok(said) => anyhow::bail!("without {words}: {said}"),
            Err(error) => ensure!(format!("{error:#}").contains(words), "{error:#} does not name {words}"),
        }
    }
    site.plane.kubectl(&["delete", "machines", "--all", "-n", NAMESPACE, "--timeout=60s"])?;
    site.plane.kubectl(&["delete", "cluster", "c", "-n", NAMESPACE, "--timeout=60s"])?;
    site.plane.kubectl(&["delete", "cluster", "c", "-n", "elsewhere", "--timeout=60s"])?;
    site.until(MINUTE, "nothing is left", || Ok(site.server.made(ACCOUNT)?.is_empty()))?;
    ensure!(site.hypervisor.problems().is_empty(), "{:?}", site.hypervisor.problems());
    Ok(())
}

/// A subnet without a free address is told, and the machine comes when there is one.
fn no_address(site: &Site) -> Result<()> {
    let ec2 = |operation: &str, params: Value| site.server.by_hand(ACCOUNT, "ec2", operation, &params);
    let vpc = site.plane.get(&["awscluster", "c", "-n", NAMESPACE])?["status"]["vpcID"].clone();
    let made =
        ec2("create_subnet", json!({"VpcId": vpc, "CidrBlock": "10.0.15.0/28", "AvailabilityZone": "us-east-1a"}))?;
    let subnet = made["Subnet"]["SubnetId"].as_str().context("no subnet")?;
    let mut interfaces = Vec::new();
    for _ in 0..11 {
        let made = ec2("create_network_interface", json!({"SubnetId": subnet}))?;
        interfaces.push(made["NetworkInterface"]["NetworkInterfaceId"].clone());
    }
    site.apply(&list(&machine(NAMESPACE, "no-address", &json!({"spec": {"subnet": {"id": subnet}}}))))?;
    let words = ["InsufficientFreeAddressesInSubnet", subnet, "free some, or choose another subnet"];
    site.says(NAMESPACE, "awsmachine", "no-address", &words)?;
    for interface in interfaces {
        ec2("delete_network_interface", json!({"NetworkInterfaceId": interface}))?;
    }
    site.says(NAMESPACE, "awsmachine", "no-address", &["True"])?;
    site.plane.kubectl(&["delete", "machine", "no-address", "-n", NAMESPACE, "--timeout=60s"])?;
    ec2("delete_subnet", json!({"SubnetId": subnet})).map(drop)
}
