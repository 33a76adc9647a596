//! A cluster in a network that somebody has: VPC, subnets, security groups and load balancer are used, and left as they were.

use anyhow::{Context, Result, ensure};
use capstan_tests::ec2::NETWORKS;
use capstan_tests::lab;
use capstan_tests::moto::{ACCOUNT, Moto};
use capstan_tests::on_both_back_ends;
use capstan_tests::plane::{BackEnd, root};
use capstan_tests::site::{MINUTE, name};
use serde_json::{Value, json};

use crate::site::{aws, example, start};

/// What somebody has.
struct Given {
    vpc: String,
    subnets: Vec<(String, bool)>,
    groups: Vec<(&'static str, String)>,
    target_group: String,
}

const BALANCER: &str = "ours-since-2019";

fn text(value: &Value, at: &str) -> Result<String> {
    Ok(value.pointer(at).and_then(Value::as_str).with_context(|| format!("no {at} in {value}"))?.to_owned())
}

/// Makes it as a person would.
fn given(moto: &Moto) -> Result<Given> {
    let ec2 = |operation: &str, params: Value| moto.by_hand(ACCOUNT, "ec2", operation, &params);
    let elb = |operation: &str, params: Value| moto.by_hand(ACCOUNT, "elbv2", operation, &params);
    let vpc = text(&ec2("create_vpc", json!({"CidrBlock": "10.0.0.0/16"}))?, "/Vpc/VpcId")?;
    let gateway = text(&ec2("create_internet_gateway", json!({}))?, "/InternetGateway/InternetGatewayId")?;
    ec2("attach_internet_gateway", json!({"InternetGatewayId": gateway, "VpcId": vpc}))?;
    let table = text(&ec2("create_route_table", json!({"VpcId": vpc}))?, "/RouteTable/RouteTableId")?;
    ec2("create_route", json!({"RouteTableId": table, "GatewayId": gateway, "DestinationCidrBlock": "0.0.0.0/0"}))?;
    let mut subnets = Vec::new();
    for (number, (zone, public)) in [("a", true), ("b", true), ("a", false), ("b", false)].into_iter().enumerate() {
        let wanted = json!({"VpcId": vpc, "CidrBlock": format!("10.0.{number}.0/24"),
            "AvailabilityZone": format!("us-east-1{zone}")});
        let id = text(&ec2("create_subnet", wanted)?, "/Subnet/SubnetId")?;
        if public {
            ec2("associate_route_table", json!({"RouteTableId": table, "SubnetId": id}))?;
        }
        subnets.push((id, public));
    }
    let mut groups = Vec::new();
    for role in ["apiserver-lb", "lb", "controlplane", "node"] {
        let wanted = json!({"VpcId": vpc, "GroupName": format!("ours-{role}"), "Description": "ours"});
        let id = text(&ec2("create_security_group", wanted)?, "/GroupId")?;
        let rule = json!({"IpProtocol": "tcp", "FromPort": 1, "ToPort": 65535, "IpRanges": [{"CidrIp": "10.0.0.0/8"}]});
        ec2("authorize_security_group_ingress", json!({"GroupId": id, "IpPermissions": [rule]}))?;
        groups.push((role, id));
    }
    let public: Vec<&String> = subnets.iter().filter(|(_, public)| *public).map(|(id, _)| id).collect();
    let made = elb("create_load_balancer", json!({"Name": BALANCER, "Type": "network", "Subnets": public}))?;
    let balancer = text(&made, "/LoadBalancers/0/LoadBalancerArn")?;
    let made = elb(
        "create_target_group",
        json!({"Name": "ours", "Protocol": "TCP", "Port": 6443, "VpcId": vpc, "TargetType": "instance"}),
    )?;
    let target_group = text(&made, "/TargetGroups/0/TargetGroupArn")?;
    let forward = json!([{"Type": "forward", "TargetGroupArn": target_group}]);
    elb(
        "create_listener",
        json!({"LoadBalancerArn": balancer, "Protocol": "TCP", "Port": 6443, "DefaultActions": forward}),
    )?;
    Ok(Given { vpc, subnets, groups, target_group })
}

/// All that is told of the network of an account, with tags; how many addresses of a subnet are free is the machines' doing.
pub fn told(moto: &Moto, account: &str) -> Result<Vec<Value>> {
    let mut all = Vec::new();
    for (service, operation) in [
        ("ec2", "describe_vpcs"),
        ("ec2", "describe_subnets"),
        ("ec2", "describe_internet_gateways"),
        ("ec2", "describe_route_tables"),
        ("ec2", "describe_security_groups"),
        ("ec2", "describe_network_acls"),
        ("elbv2", "describe_load_balancers"),
        ("elbv2", "describe_target_groups"),
    ] {
        let mut answer = moto.by_hand(account, service, operation, &json!({}))?;
        for subnet in answer["Subnets"].as_array_mut().into_iter().flatten() {
            subnet["AvailableIpAddressCount"] = Value::Null;
        }
        for kind in ["LoadBalancer", "TargetGroup"] {
            for thing in answer[format!("{kind}s")].as_array().into_iter().flatten() {
                let arn = &thing[format!("{kind}Arn")];
                all.push(moto.by_hand(account, "elbv2", "describe_tags", &json!({"ResourceArns": [arn]}))?);
                if kind == "LoadBalancer" {
                    all.push(moto.by_hand(account, "elbv2", "describe_listeners", &json!({"LoadBalancerArn": arn}))?);
                    let attributes = json!({"LoadBalancerArn": arn});
                    all.push(moto.by_hand(account, "elbv2", "describe_load_balancer_attributes", &attributes)?);
                } else {
                    let attributes = json!({"TargetGroupArn": arn});
                    all.push(moto.by_hand(account, "elbv2", "describe_target_group_attributes", &attributes)?);
                }
            }
        }
        all.push(answer);
    }
    Ok(all)
}

/// The rights that `docs/providers/aws.md` says are enough here: of the network, to look at it and to tag.
fn fewer_rights() -> Result<String> {
    let mut policy: Value = serde_json::from_str(&std::fs::read_to_string(root().join("tests/moto/policy.json"))?)?;
    let network = policy["Statement"].as_array_mut().and_then(|all| all.iter_mut().find(|one| one["Sid"] == "Network"));
    let actions = network.and_then(|network| network["Action"].as_array_mut()).context("no rights for the network")?;
    actions.retain(|action| action.as_str().is_some_and(|a| a.starts_with("ec2:Describe") || a == "ec2:CreateTags"));
    Ok(policy.to_string())
}

on_both_back_ends!(a_network_that_is_there_is_used_and_left_as_it_was);

fn a_network_that_is_there_is_used_and_left_as_it_was(back_end: BackEnd) -> Result<()> {
    if !lab::enter(back_end, "borrowed::a_network_that_is_there_is_used_and_left_as_it_was", &NETWORKS)? {
        return Ok(());
    }
    let (moto, hypervisor) = aws()?;
    let given = given(&moto)?;
    let rights = json!({"UserName": "provider", "PolicyName": "provider", "PolicyDocument": fewer_rights()?});
    moto.by_hand(ACCOUNT, "iam", "put_user_policy", &rights)?;
    let (before, made) = (told(&moto, ACCOUNT)?, moto.made(ACCOUNT)?);

    let subnets: Vec<Value> = given.subnets.iter().map(|(id, public)| json!({"id": id, "isPublic": public})).collect();
    let groups: Value = given
        .groups
        .iter()
        .map(|(role, id)| (*role, id.as_str()))
        .collect::<std::collections::BTreeMap<_, _>>()
        .into_iter()
        .collect();
    let network = json!({"vpc": {"id": given.vpc}, "subnets": subnets, "securityGroupOverrides": groups});
    let balancer = json!({"loadBalancerType": "nlb", "name": BALANCER});
    let managed = "  network:\n    vpc:\n      availabilityZoneUsageLimit: 2\n  controlPlaneLoadBalancer:\n    loadBalancerType: nlb\n";
    let example = example(back_end, &moto, &moto.users.key("provider"))?;
    ensure!(example.contains(managed), "the AWSCluster of the example has changed");
    let borrowed = format!("  network: {network}\n  controlPlaneLoadBalancer: {balancer}\n");
    let manifests = example.replace(managed, &borrowed).replace("replicas: 3", "replicas: 1");
    let mut site = start(back_end, moto, hypervisor, &manifests)?;
    site.wait_ready(2 * MINUTE)?;
    site.available(2)?;

    // The machines are all that there is more, in the private subnets and with the groups that were named.
    let moto = &site.server;
    ensure!(told(moto, ACCOUNT)? == before, "{:#?}\nwas\n{before:#?}", told(moto, ACCOUNT)?);
    let machines = site.plane.items(&["awsmachines", "-n", "default"])?;
    let target =
        moto.by_hand(ACCOUNT, "elbv2", "describe_target_health", &json!({"TargetGroupArn": given.target_group}))?;
    let targets = target["TargetHealthDescriptions"].as_array().map_or(0, Vec::len);
    ensure!(targets == 1, "{target}");
    let more = moto.made(ACCOUNT)?.into_iter().filter(|line| !made.contains(line));
    let more: Vec<String> = more.filter(|line| !line.starts_with("iam_instance_profile_associations")).collect();
    let mut wanted: Vec<String> = machines
        .iter()
        .flat_map(|machine| ["instance", "volume"].map(|kind| format!("{kind} {}", name(machine))))
        .collect();
    wanted.push("target ours".to_owned());
    wanted.sort();
    ensure!(more == wanted, "{more:#?}\nis not\n{wanted:#?}");
    let private: Vec<&str> = given.subnets.iter().filter(|(_, public)| !public).map(|(id, _)| id.as_str()).collect();
    let instances = moto.by_hand(ACCOUNT, "ec2", "describe_instances", &json!({}))?;
    for reservation in instances["Reservations"].as_array().into_iter().flatten() {
        let instance = &reservation["Instances"][0];
        ensure!(private.contains(&instance["SubnetId"].as_str().unwrap_or_default()), "{}", instance["SubnetId"]);
        let groups: Vec<&str> = instance["SecurityGroups"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|group| group["GroupId"].as_str())
            .collect();
        ensure!(groups.iter().all(|group| given.groups.iter().any(|(_, id)| id == group)), "{groups:?}");
    }

    site.plane.kubectl(&["delete", "cluster", "aws-quickstart", "--timeout=120s"])?;
    ensure!(told(moto, ACCOUNT)? == before, "{:#?}\nwas\n{before:#?}", told(moto, ACCOUNT)?);
    let left = moto.made(ACCOUNT)?;
    ensure!(left == made, "{left:#?}\nwas\n{made:#?}");
    ensure!(site.hypervisor.problems().is_empty(), "{:?}", site.hypervisor.problems());
    Ok(())
}
