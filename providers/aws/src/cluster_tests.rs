//! Clusters against a script: what users of CAPA ran into (the numbers are its issues), whose a network is, and the requests as they
//! are sent.

use capstan_provider::{
    Absence, Error, Known, Presence, Progress,
    testing::{Scenario, Sent, infrastructure},
};
use serde_json::{Value, json};

use crate::Aws;

fn scenario(spec: Value) -> Scenario {
    let mut spec = spec;
    spec.as_object_mut().unwrap().entry("region").or_insert_with(|| "us-east-1".into());
    Scenario::new("AWSCluster", spec)
}

fn known(id: &str, state: Value) -> Known {
    let state = Some(state.to_string());
    Known {
        id: Some(id.to_owned()),
        confirmed: true,
        attempt: 1,
        idempotency_key: "key-1".to_owned(),
        state,
        ..Known::default()
    }
}

/// A VPC that was made, with a public and a private subnet in one zone.
fn vpc() -> Known {
    let layout = json!({"subnets": [{"name": "public-a", "zone": "a", "cidr": "10.0.0.0/17", "public": true},
        {"name": "private-a", "zone": "a", "cidr": "10.0.128.0/17"}]});
    let state = json!({"id": "vpc-1", "cidr": "10.0.0.0/16", "owned": true, "dns": true, "layout": layout});
    Known { frozen: Some(layout.to_string()), ..known("vpc-1", state) }
}

fn made(spec: Value) -> Scenario {
    scenario(spec)
        .known("vpc", vpc())
        .known("internet-gateway", known("igw-1", json!({"id": "igw-1", "attached": "vpc-1"})))
        .known("subnet-public-a", known("subnet-p", json!({"id": "subnet-p"})))
        .known("subnet-private-a", known("subnet-a", json!({"id": "subnet-a"})))
        .known("nat-address-a", known("eipalloc-1", json!({"id": "eipalloc-1", "address": "192.0.2.1"})))
        .known("nat-a", known("nat-1", json!({"id": "nat-1", "address": "192.0.2.1"})))
        .known("security-group-apiserver-lb", known("sg-api", json!({"id": "sg-api"})))
        .known("security-group-lb", known("sg-lb", json!({"id": "sg-lb"})))
        .known("security-group-controlplane", known("sg-cp", json!({"id": "sg-cp"})))
        .known("security-group-node", known("sg-node", json!({"id": "sg-node"})))
}

fn form(sent: &Sent) -> String {
    String::from_utf8_lossy(&sent.body).into_owned()
}

fn refusal(code: &str) -> Vec<u8> {
    format!("<Response><Errors><Error><Code>{code}</Code><Message>m</Message></Error></Errors></Response>").into_bytes()
}

fn tags(part: &str) -> String {
    let tags = [
        ("capstan.dev/owner-key", "owner-1"),
        ("capstan.dev/part", part),
        ("sigs.k8s.io/cluster-api-provider-aws/cluster/c", "owned"),
        ("sigs.k8s.io/cluster-api-provider-aws/role", "common"),
    ];
    let item = |(key, value): (&str, &str)| format!("<item><key>{key}</key><value>{value}</value></item>");
    format!("<tagSet>{}</tagSet>", tags.into_iter().map(item).collect::<String>())
}

fn names(scenario: Scenario) -> Vec<(String, bool)> {
    let parts = scenario.run(infrastructure::parts::<Aws>).0.unwrap();
    parts.into_iter().map(|part| (part.name, part.borrowed)).collect()
}

fn ok(body: &str) -> Vec<u8> {
    body.as_bytes().to_vec()
}

#[test]
fn capa_791_a_nat_gateway_that_was_deleted_is_gone_although_it_is_listed() {
    let listed = |state: &str| {
        ok(&format!(
            "<R><natGatewaySet><item><natGatewayId>nat-1</natGatewayId><state>{state}</state>{}</item></natGatewaySet></R>",
            tags("nat-a")
        ))
    };
    let observe = |state: &str| {
        made(json!({}))
            .answer_bytes("POST /", 200, listed(state))
            .run(|| infrastructure::observe::<Aws>("nat-a"))
            .0
            .unwrap()
    };
    assert_eq!(observe("deleted"), Presence::Absent(Absence::LookedUpById));
    assert_eq!(observe("failed"), Presence::Absent(Absence::LookedUpById));
    for state in ["pending", "deleting"] {
        let Presence::Present(seen) = observe(state) else { panic!("{state}") };
        assert!(!seen.ready && seen.operation.is_some(), "{state}");
    }
    // Nor is an old one found when another is asked for.
    let mut start = made(json!({}));
    start.known.insert("nat-a".to_owned(), Known { attempt: 2, ..Known::default() });
    let (absent, _) =
        start.answer_bytes("POST /", 200, listed("deleted")).run(|| infrastructure::observe::<Aws>("nat-a"));
    assert_eq!(absent, Ok(Presence::absent_by_key()));
}

#[test]
fn capa_1755_what_is_in_a_vpc_of_the_users_is_never_taken_away() {
    let spec = json!({"network": {"vpc": {"id": "vpc-9"}, "subnets": [{"id": "subnet-1"}, {"id": "subnet-2", "isPublic": true}]}});
    assert_eq!(names(scenario(spec.clone())), [("vpc".to_owned(), true)], "first it is looked whose it is");
    let state = json!({"id": "vpc-9", "cidr": "10.0.0.0/16", "owned": false});
    let parts = names(scenario(spec).known("vpc", known("vpc-9", state)));
    let of_network: Vec<&(String, bool)> =
        parts.iter().filter(|(name, _)| !name.starts_with("security-group")).collect();
    assert_eq!(
        of_network.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
        ["vpc", "subnets", "load-balancer"]
    );
    assert!(parts[0].1 && parts[1].1, "VPC and subnets are borrowed");
    assert!(!parts.iter().any(|(name, _)| name.starts_with("nat")), "{parts:?}");
}

#[test]
fn the_tag_of_a_named_vpc_says_whose_it_is() {
    let spec =
        || json!({"network": {"vpc": {"id": "vpc-9"}, "subnets": [{"id": "subnet-1", "availabilityZone": "a"}]}});
    let look = |tags: &str| {
        let body = format!(
            "<R><vpcSet><item><vpcId>vpc-9</vpcId><cidrBlock>10.0.0.0/16</cidrBlock>{tags}</item></vpcSet></R>"
        );
        let start = scenario(spec()).answer_bytes("POST /", 200, body.into_bytes());
        start.run(|| infrastructure::observe::<Aws>("vpc")).0.unwrap()
    };
    let owned = |tags: &str| {
        let Presence::Present(seen) = look(tags) else { panic!("{tags}") };
        assert!(!seen.ready, "the parts are listed anew before anything is done");
        serde_json::from_str::<Value>(&seen.state).unwrap()["owned"] == true
    };
    let capas =
        "<tagSet><item><key>sigs.k8s.io/cluster-api-provider-aws/cluster/c</key><value>owned</value></item></tagSet>";
    assert!(owned(capas), "CAPA made it for this cluster");
    assert!(!owned("<tagSet/>"));
    // Another cluster's, of this name or another: not even borrowed.
    let theirs = "<item><key>capstan.dev/owner-key</key><value>else</value></item></tagSet>";
    for tags in [capas.replace("</tagSet>", theirs), format!("<tagSet>{theirs}")] {
        assert!(matches!(look(&tags), Presence::Foreign(why) if why.code == "VpcForeign"), "{tags}");
    }
    let owned = json!({"id": "vpc-9", "owned": true});
    let parts = names(scenario(spec()).known("vpc", known("vpc-9", owned)));
    assert!(parts.contains(&("subnet-subnet-1".to_owned(), false)), "{parts:?}");
}

#[test]
fn capa_1846_4985_groups_lose_their_rules_before_they_go() {
    let groups = |node_rules: &str| {
        let group = |id: &str, role: &str, rules: &str| {
            let tags = tags(&format!("security-group-{role}"));
            format!("<item><groupId>{id}</groupId><ipPermissions>{rules}</ipPermissions>{tags}</item>")
        };
        let all = group("sg-node", "node", node_rules) + &group("sg-cp", "controlplane", "");
        ok(&format!("<R><securityGroupInfo>{all}</securityGroupInfo></R>"))
    };
    let rule = "<item><ipProtocol>tcp</ipProtocol><fromPort>10250</fromPort><toPort>10250</toPort><groups><item>\
                <groupId>sg-cp</groupId><description>Kubelet API</description></item></groups></item>";
    let delete = |part: &'static str, scenario: Scenario| scenario.run(|| infrastructure::delete::<Aws>(part));
    // Its own rules first.
    let start = made(json!({})).answer_bytes("POST /", 200, groups(rule)).answer_bytes("POST /", 200, ok("<R/>"));
    let (_, sent) = delete("security-group-node", start);
    assert!(
        form(&sent[1]).starts_with("Action=RevokeSecurityGroupIngress&Version=2016-11-15&GroupId=sg-node"),
        "{}",
        form(&sent[1])
    );
    // One that another names waits, and sends nothing: the other has its turn.
    let (waits, sent) =
        delete("security-group-controlplane", made(json!({})).answer_bytes("POST /", 200, groups(rule)));
    assert!(matches!(waits, Ok(Progress::Waiting(reason)) if reason.code == "GroupInUse") && sent.len() == 1);
    let start = made(json!({})).answer_bytes("POST /", 200, groups("")).answer_bytes("POST /", 200, ok("<R/>"));
    let (_, sent) = delete("security-group-controlplane", start);
    assert_eq!(form(&sent[1]), "Action=DeleteSecurityGroup&Version=2016-11-15&GroupId=sg-cp");
}

#[test]
fn capa_1718_3810_what_others_left_in_the_network_is_waited_for_and_told() {
    for (part, code) in [
        ("vpc", "DependencyViolation"),
        ("subnet-private-a", "DependencyViolation"),
        ("internet-gateway", "DependencyViolation"),
    ] {
        let start = made(json!({})).answer_bytes("POST /", 400, refusal(code));
        let (told, _) = start.run(|| infrastructure::delete::<Aws>(part));
        let Err(Error::Transient(reason)) = told else { panic!("{told:?}") };
        assert!(
            reason.code == code && reason.message.contains("Action") || reason.message.contains(code),
            "{reason:?}"
        );
    }
    for part in ["vpc", "subnet-private-a", "nat-a", "nat-address-a"] {
        let start = made(json!({})).answer_bytes("POST /", 400, refusal("InvalidThing.NotFound"));
        let (gone, _) = start.run(|| infrastructure::delete::<Aws>(part));
        assert!(matches!(gone, Ok(Progress::Done(_))), "{part}: {gone:?}");
    }
}

#[test]
fn capa_2227_a_cluster_that_never_got_a_vpc_has_nothing_to_delete() {
    assert_eq!(names(scenario(json!({}))), [("vpc".to_owned(), false)]);
    let asked = Known { attempt: 1, frozen: Some(r#"{"subnets":[]}"#.to_owned()), ..Known::default() };
    let (absent, sent) = scenario(json!({}))
        .known("vpc", asked)
        .answer_bytes("POST /", 200, ok("<R><vpcSet/></R>"))
        .run(|| infrastructure::observe::<Aws>("vpc"));
    assert_eq!(absent, Ok(Presence::absent_by_key()));
    assert!(
        form(&sent[0]).contains("Filter.1.Name=tag%3Asigs.k8s.io"),
        "it is searched for, not asked for by an empty id"
    );
}

#[test]
fn capa_5800_connections_end_when_a_machine_is_taken_out() {
    let attributes = "<R><DescribeTargetGroupAttributesResult><Attributes/></DescribeTargetGroupAttributesResult></R>";
    let groups = "<R><DescribeTargetGroupsResult><TargetGroups><member><TargetGroupArn>arn:t</TargetGroupArn></member>\
                  </TargetGroups></DescribeTargetGroupsResult></R>";
    let owner = "<R><DescribeTagsResult><TagDescriptions><member><ResourceArn>arn:t</ResourceArn><Tags><member><Key>capstan.dev/owner-key</Key>\
                 <Value>owner-1</Value></member></Tags></member></TagDescriptions></DescribeTagsResult></R>";
    let spec = json!({"controlPlaneLoadBalancer": {"loadBalancerType": "nlb"}});
    let start = made(spec).known("target-group", known("c-api", json!({"arn": "arn:t", "port": 6443})));
    let (seen, _) = start
        .clone()
        .answer_bytes("POST /", 200, ok(groups))
        .answer_bytes("POST /", 200, ok(owner))
        .answer_bytes("POST /", 200, ok(attributes))
        .run(|| infrastructure::observe::<Aws>("target-group"));
    let Ok(Presence::Present(seen)) = seen else { panic!("{seen:?}") };
    assert!(!seen.ready && seen.todo[0].code == "SetAttributes");
    let (_, sent) =
        start.answer_bytes("POST /", 200, ok("<R/>")).run(|| infrastructure::update::<Aws>("target-group", &seen.todo));
    let sent = form(&sent[0]);
    assert!(
        sent.contains("Key=deregistration_delay.connection_termination.enabled&Attributes.member.1.Value=true"),
        "{sent}"
    );
    assert!(sent.contains("Key=preserve_client_ip.enabled&Attributes.member.3.Value=false"), "no hairpin: {sent}");
}

#[test]
fn a_load_balancer_of_an_older_cluster_is_not_taken_for_ours() {
    let balancers = "<R><DescribeLoadBalancersResult><LoadBalancers><member><LoadBalancerArn>arn:b</LoadBalancerArn>\
                     <VpcId>vpc-1</VpcId></member></LoadBalancers></DescribeLoadBalancersResult></R>";
    let owner = |key: &str| {
        ok(&format!(
            "<R><DescribeTagsResult><TagDescriptions><member><ResourceArn>arn:b</ResourceArn><Tags><member><Key>capstan.dev/owner-key</Key><Value>{key}</Value>\
             </member></Tags></member></TagDescriptions></DescribeTagsResult></R>"
        ))
    };
    let spec = json!({"controlPlaneLoadBalancer": {"loadBalancerType": "nlb"}});
    let (foreign, _) = made(spec.clone())
        .answer_bytes("POST /", 200, ok(balancers))
        .answer_bytes("POST /", 200, owner("owner-2"))
        .run(|| infrastructure::observe::<Aws>("load-balancer"));
    assert!(matches!(foreign, Ok(Presence::Foreign(_))), "{foreign:?}");
    // Nor is it borrowed by its name.
    let named = json!({"controlPlaneLoadBalancer": {"loadBalancerType": "nlb", "name": "theirs"}});
    let (foreign, _) = made(named)
        .answer_bytes("POST /", 200, ok(balancers))
        .answer_bytes("POST /", 200, owner("owner-2"))
        .run(|| infrastructure::observe::<Aws>("named-load-balancer"));
    assert!(matches!(&foreign, Ok(Presence::Foreign(why)) if why.code == "LoadBalancerForeign"), "{foreign:?}");
    let (choice, _) = made(spec).run(|| infrastructure::identify::<Aws>("load-balancer", &[]));
    let name = choice.unwrap().id.unwrap();
    assert!(name.starts_with("c-apiserver-") && name.len() <= 32, "{name}");
    let long = crate::short_name(&"x".repeat(80), "apiserver", "k", 32);
    assert_eq!(long.len(), 32, "{long}");
}

#[test]
fn a13_a_load_balancer_counts_by_its_state_and_not_by_its_name() {
    let shown = |state: &str| {
        ok(&format!(
            "<R><DescribeLoadBalancersResult><LoadBalancers><member><LoadBalancerArn>arn:b</LoadBalancerArn>\
             <DNSName>new.example</DNSName><VpcId>vpc-1</VpcId><State><Code>{state}</Code><Reason>no room</Reason></State>\
             </member></LoadBalancers></DescribeLoadBalancersResult></R>"
        ))
    };
    let owner = "<R><DescribeTagsResult><TagDescriptions><member><ResourceArn>arn:b</ResourceArn><Tags><member><Key>capstan.dev/owner-key</Key>\
                 <Value>owner-1</Value></member></Tags></member></TagDescriptions></DescribeTagsResult></R>";
    let attributes =
        "<R><DescribeLoadBalancerAttributesResult><Attributes/></DescribeLoadBalancerAttributesResult></R>";
    let start = |state: &str| {
        made(json!({"controlPlaneLoadBalancer": {"loadBalancerType": "nlb"}}))
            .known(
                "load-balancer",
                known("b", json!({"name": "b", "arn": "arn:b", "dns": "old.example", "active": true})),
            )
            .answer_bytes("POST /", 200, shown(state))
            .answer_bytes("POST /", 200, ok(owner))
    };
    let look = |scenario: Scenario| scenario.run(|| infrastructure::observe::<Aws>("load-balancer")).0;
    let Ok(Presence::Present(seen)) = look(start("provisioning")) else { panic!() };
    assert!(!seen.ready && seen.operation.is_some(), "it is there, and it does not serve");
    let Err(Error::Transient(reason)) = look(start("failed")) else { panic!() };
    assert!(reason.code == "LoadBalancerFailed" && reason.message.contains("no room"), "{reason:?}");
    let Ok(Presence::Present(seen)) = look(start("active").answer_bytes("POST /", 200, ok(attributes))) else {
        panic!()
    };
    assert!(seen.state.contains("old.example"), "an address that was told does not change: {}", seen.state);
    // One that is gone is made anew under the same name; the Cluster's endpoint stays what it is.
    let gone = made(json!({"controlPlaneLoadBalancer": {"loadBalancerType": "nlb"}}))
        .known("load-balancer", known("b", json!({"name": "b", "arn": "arn:b", "dns": "old.example", "active": true})));
    let gone = gone.answer_bytes("POST /", 400, refusal("LoadBalancerNotFound"));
    assert_eq!(look(gone), Ok(Presence::absent_by_id()));
}

#[test]
fn drift_is_repaired() {
    // A route that leads nowhere.
    let table = |routes: &str, association: &str| {
        let tags = tags("route-table-private-a");
        ok(&format!(
            "<R><routeTableSet><item><routeTableId>rtb-1</routeTableId><routeSet>{routes}</routeSet>\
             <associationSet>{association}</associationSet>{tags}</item></routeTableSet></R>"
        ))
    };
    let route = |state: &str| {
        format!(
            "<item><destinationCidrBlock>0.0.0.0/0</destinationCidrBlock><natGatewayId>nat-1</natGatewayId>\
             <state>{state}</state></item>"
        )
    };
    let association =
        "<item><routeTableAssociationId>rtbassoc-1</routeTableAssociationId><subnetId>subnet-a</subnetId></item>";
    let look = |body: Vec<u8>| {
        let start = made(json!({})).known("route-table-private-a", known("rtb-1", json!({"id": "rtb-1"})));
        let (seen, _) =
            start.answer_bytes("POST /", 200, body).run(|| infrastructure::observe::<Aws>("route-table-private-a"));
        let Ok(Presence::Present(seen)) = seen else { panic!("{seen:?}") };
        seen.todo.into_iter().map(|reason| reason.code).filter(|code| code != "Tag").collect::<Vec<_>>()
    };
    assert_eq!(look(table("", association)), ["AddRoute"]);
    assert_eq!(look(table(&route("blackhole"), association)), ["ReplaceRoute"]);
    assert_eq!(look(table(&route("active"), "")), ["Associate"]);
    assert_eq!(look(table(&route("active"), association)), [""; 0]);
    let start = made(json!({})).known("route-table-private-a", known("rtb-1", json!({"id": "rtb-1"})));
    let todo = [capstan_provider::Reason::new("AddRoute", "")];
    let (done, sent) = start
        .answer_bytes("POST /", 400, refusal("RouteAlreadyExists"))
        .run(|| infrastructure::update::<Aws>("route-table-private-a", &todo));
    assert_eq!(done, Ok(Progress::done("rtb-1")), "an answer that was lost has done it");
    assert_eq!(
        form(&sent[0]),
        "Action=CreateRoute&Version=2016-11-15&RouteTableId=rtb-1&DestinationCidrBlock=0.0.0.0%2F0&NatGatewayId=nat-1"
    );
    // Rules that somebody took away, and one that somebody added.
    let extra = "<item><ipProtocol>tcp</ipProtocol><fromPort>22</fromPort><toPort>22</toPort><ipRanges><item>\
                 <cidrIp>0.0.0.0/0</cidrIp></item></ipRanges></item>";
    let groups = format!(
        "<R><securityGroupInfo><item><groupId>sg-node</groupId><ipPermissions>{extra}</ipPermissions>{}</item></securityGroupInfo></R>",
        tags("security-group-node")
    );
    let (seen, _) = made(json!({}))
        .answer_bytes("POST /", 200, ok(&groups))
        .run(|| infrastructure::observe::<Aws>("security-group-node"));
    let Ok(Presence::Present(seen)) = seen else { panic!("{seen:?}") };
    let codes: Vec<&str> = seen.todo.iter().map(|reason| reason.code.as_str()).collect();
    assert!(!seen.ready && codes.starts_with(&["AddRules", "RemoveRules"]), "{codes:?}");
    assert!(seen.todo[0].message.contains("tcp 30000-32767 from 0.0.0.0/0"), "{:?}", seen.todo[0]);
    assert!(seen.todo[1].message.contains("tcp 22 from 0.0.0.0/0"), "{:?}", seen.todo[1]);
}

#[test]
fn the_requests_of_a_network() {
    let create = |part: &'static str, answer: &str| {
        let spec = json!({"additionalTags": {"team": "t"}, "controlPlaneLoadBalancer": {"loadBalancerType": "nlb"}});
        let mut start = made(spec);
        if let Some(known) = start.known.get_mut(part) {
            known.confirmed = false;
        }
        let (done, sent) = start.answer_bytes("POST /", 200, ok(answer)).run(|| infrastructure::create::<Aws>(part));
        assert!(matches!(done, Ok(Progress::Done(_))), "{part}: {done:?}");
        form(&sent[0])
    };
    let nat = create("nat-a", "<R><natGateway><natGatewayId>nat-1</natGatewayId></natGateway></R>");
    assert!(nat.contains("SubnetId=subnet-p&AllocationId=eipalloc-1&ClientToken=key-1"), "{nat}");
    assert!(nat.contains("TagSpecification.1.ResourceType=natgateway"), "{nat}");
    let vpc = create("vpc", "<R><vpc><vpcId>vpc-1</vpcId></vpc></R>");
    assert!(
        vpc.starts_with(
            "Action=CreateVpc&Version=2016-11-15&CidrBlock=10.0.0.0%2F16&TagSpecification.1.ResourceType=vpc"
        ),
        "{vpc}"
    );
    let owner = "Key=capstan.dev%2Fowner-key&TagSpecification.1.Tag.2.Value=owner-1";
    assert!(vpc.contains(owner) && vpc.contains("Value=c-vpc"), "{vpc}");
    let subnet = create("subnet-public-a", "<R><subnet><subnetId>subnet-p</subnetId></subnet></R>");
    assert!(subnet.contains("VpcId=vpc-1&CidrBlock=10.0.0.0%2F17&AvailabilityZone=a"), "{subnet}");
    assert!(subnet.contains("Key=kubernetes.io%2Frole%2Felb"), "{subnet}");
    let group = create("security-group-lb", "<R><groupId>sg-lb</groupId></R>");
    assert!(group.contains("GroupName=c-lb") && group.contains("Key=kubernetes.io%2Fcluster%2Fc"), "{group}");
}

#[test]
fn a_further_port_is_asked_as_it_says() {
    let check = json!({"protocol": "HTTPS", "port": "9000", "path": "/healthz", "intervalSeconds": 30});
    let spec = json!({"controlPlaneLoadBalancer": {"loadBalancerType": "nlb", "healthCheckProtocol": "HTTP",
        "additionalListeners": [{"port": 8443, "healthCheck": check}, {"port": 8444}]}});
    let create = |part: &'static str| {
        let known = Known { id: Some("t".to_owned()), ..Known::default() };
        let start = made(spec.clone()).known(part, known).answer_bytes("POST /", 200, ok("<R/>"));
        form(&start.run(|| infrastructure::create::<Aws>(part)).1[0])
    };
    let said =
        "HealthCheckProtocol=HTTPS&HealthCheckPort=9000&HealthCheckPath=%2Fhealthz&HealthCheckIntervalSeconds=30";
    assert!(create("target-group-8443").contains(said));
    assert!(create("target-group-8444").contains("HealthCheckProtocol=TCP&HealthCheckPort=8444&HealthCheckInterval"));
    assert!(create("target-group").contains("HealthCheckProtocol=HTTP&HealthCheckPort=6443&HealthCheckPath=%2Freadyz"));
}

#[test]
fn the_load_balancer_is_put_where_its_scheme_says() {
    let create = |scheme: &str| {
        let spec = json!({"controlPlaneLoadBalancer": {"loadBalancerType": "nlb", "scheme": scheme, "additionalSecurityGroups": ["sg-x"]}});
        let asked = Known { id: Some("b".to_owned()), ..Known::default() };
        let (_, sent) = made(spec)
            .known("load-balancer", asked)
            .answer_bytes("POST /", 200, group("sg-x", None))
            .answer_bytes("POST /", 200, ok("<R/>"))
            .run(|| infrastructure::create::<Aws>("load-balancer"));
        assert!(form(&sent[0]).starts_with("Action=DescribeSecurityGroups"), "{}", form(&sent[0]));
        form(&sent[1])
    };
    let open = create("internet-facing");
    assert!(open.starts_with("Action=CreateLoadBalancer&Version=2015-12-01&Name=b&Type=network"), "{open}");
    assert!(open.contains("Scheme=internet-facing&Subnets.member.1=subnet-p&SecurityGroups.member.1=sg-api&SecurityGroups.member.2=sg-x"), "{open}");
    assert!(create("internal").contains("Scheme=internal&Subnets.member.1=subnet-a"));
}

/// A security group, and whose it is.
fn group(id: &str, owner: Option<&str>) -> Vec<u8> {
    let tag = |owner| format!("<tagSet><item><key>capstan.dev/owner-key</key><value>{owner}</value></item></tagSet>");
    let tags = owner.map(tag).unwrap_or_default();
    ok(&format!("<R><securityGroupInfo><item><groupId>{id}</groupId>{tags}</item></securityGroupInfo></R>"))
}

#[test]
fn subnets_and_groups_of_another_cluster_are_not_used() {
    let balancer = |more: Value| {
        let mut spec = json!({"controlPlaneLoadBalancer": {"loadBalancerType": "nlb"}});
        spec["controlPlaneLoadBalancer"].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        made(spec).known("load-balancer", Known { id: Some("b".to_owned()), ..Known::default() })
    };
    let create = |start: Scenario| start.run(|| infrastructure::create::<Aws>("load-balancer")).0;
    let refused = |result, wanted: &str| matches!(result, Err(Error::Conflict(reason)) if reason.code == wanted);
    let theirs = balancer(json!({"additionalSecurityGroups": ["sg-x"]}));
    let theirs = create(theirs.answer_bytes("POST /", 200, group("sg-x", Some("owner-2"))));
    assert!(refused(theirs, "SecurityGroupForeign"));
    let own = balancer(json!({"additionalSecurityGroups": ["sg-x"]}));
    let own = own.answer_bytes("POST /", 200, group("sg-x", Some("owner-1"))).answer_bytes("POST /", 200, ok("<R/>"));
    assert_eq!(create(own), Ok(Progress::done("b")));
    let subnet = "<R><subnetSet><item><subnetId>subnet-x</subnetId><tagSet><item><key>capstan.dev/owner-key</key>\
                  <value>owner-2</value></item></tagSet></item></subnetSet></R>";
    let theirs = balancer(json!({"subnets": ["subnet-x"]})).answer_bytes("POST /", 200, ok(subnet));
    assert!(refused(create(theirs), "SubnetForeign"));

    let given = || made(json!({"network": {"securityGroupOverrides": {"node": "sg-x"}}}));
    let look = |answer| {
        let start = given().answer_bytes("POST /", 200, answer);
        start.run(|| infrastructure::observe::<Aws>("security-group-node")).0
    };
    let theirs = look(group("sg-x", Some("owner-2")));
    assert!(matches!(&theirs, Ok(Presence::Foreign(why)) if why.code == "SecurityGroupForeign"), "{theirs:?}");
    assert!(matches!(look(group("sg-x", None)), Ok(Presence::Present(_))));
    let none = look(ok("<R><securityGroupInfo/></R>"));
    assert!(matches!(&none, Ok(Presence::Foreign(why)) if why.code == "SecurityGroupNotFound"), "{none:?}");
}

#[test]
fn what_is_not_served_is_refused_by_name() {
    let refused = |spec: Value| -> Vec<String> {
        let mut spec = spec;
        spec.as_object_mut().unwrap().entry("region").or_insert_with(|| "us-east-1".into());
        let object = json!({"kind": "AWSCluster", "spec": spec}).to_string();
        infrastructure::validate::<Aws>(None, &object).into_iter().map(|violation| violation.path).collect()
    };
    assert_eq!(refused(json!({"bastion": {"enabled": false}, "network": {"vpc": {"ipv6": null}}})), [""; 0]);
    assert_eq!(refused(json!({"bastion": {"enabled": true}})), ["/spec/bastion/enabled"]);
    // With nothing in them these two ask for what is usual of them.
    assert_eq!(refused(json!({"network": {"vpc": {"ipv6": {}}}})), ["/spec/network/vpc/ipv6"]);
    assert_eq!(refused(json!({"secondaryControlPlaneLoadBalancer": {}})), ["/spec/secondaryControlPlaneLoadBalancer"]);
    assert_eq!(
        refused(json!({"network": {"vpc": {"emptyRoutesDefaultVPCSecurityGroup": true}}})),
        ["/spec/network/vpc/emptyRoutesDefaultVPCSecurityGroup"]
    );
    let listener = json!({"port": 8443, "targetGroupIPType": "ipv6"});
    assert_eq!(
        refused(json!({"controlPlaneLoadBalancer": {"loadBalancerType": "nlb", "targetGroupIPType": "ipv6",
            "dnsResolutionCheck": "None", "additionalListeners": [listener]}})),
        [
            "/spec/controlPlaneLoadBalancer/targetGroupIPType",
            "/spec/controlPlaneLoadBalancer/additionalListeners/0/targetGroupIPType"
        ]
    );
    assert_eq!(
        refused(json!({"controlPlaneLoadBalancer": {"loadBalancerType": "alb"}})),
        ["/spec/controlPlaneLoadBalancer/loadBalancerType"]
    );
    assert_eq!(
        refused(json!({"controlPlaneLoadBalancer": {"loadBalancerType": "disabled"}})),
        ["/spec/controlPlaneEndpoint"]
    );
    assert_eq!(refused(json!({"region": ""})), ["/spec/region"]);
    assert_eq!(refused(json!({"network": {"subnets": [{"id": "subnet-1"}]}})), ["/spec/network/subnets/0/id"]);
    assert_eq!(refused(json!({"network": {"subnets": [{"id": "a"}]}})), ["/spec/network/subnets/0"]);
    assert_eq!(
        refused(json!({"network": {"vpc": {"id": "vpc-1"}, "subnets": [{"id": "a"}]}})),
        ["/spec/network/subnets/0/id"]
    );
    assert_eq!(refused(json!({"additionalTags": {"capstan.dev/part": "x"}})), ["/spec/additionalTags"]);
}
