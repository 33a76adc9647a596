//! What users ask for and cannot have: told with AWS's own words, the field where there is one, and what to do.

use capstan_provider::{
    Error, Known, Result,
    http::HttpError,
    testing::{Scenario, TestMachine, infrastructure},
};
use serde_json::{Value, json};

use crate::{Aws, instance::Frozen};

const SAID: &str = "as AWS says it";

fn refusal(code: &str) -> Vec<u8> {
    format!("<Response><Errors><Error><Code>{code}</Code><Message>{SAID}</Message></Error></Errors></Response>")
        .into_bytes()
}

/// A machine of a cluster with one private subnet.
fn machine(spec: Value) -> Scenario {
    let mut spec = spec;
    spec.as_object_mut().unwrap().entry("instanceType").or_insert_with(|| "m5.large".into());
    let mut scenario = Scenario::new("AWSMachine", spec).secret("bootstrap-data", "#cloud-config\n");
    scenario.infrastructure_spec = Some(json!({"region": "us-east-1"}).to_string());
    let layout = json!({"subnets": [{"name": "a", "zone": "us-east-1a", "cidr": "10.0.0.0/24"}]});
    for (part, state) in [
        ("vpc", json!({"id": "vpc-1", "owned": true, "layout": layout})),
        ("subnet-a", json!({"id": "subnet-a"})),
        ("security-group-node", json!({"id": "sg-node"})),
    ] {
        scenario.infrastructure_states.insert(part.to_owned(), state.to_string());
    }
    scenario.machine(TestMachine {
        name: "m".to_owned(),
        kubernetes_version: Some("v1.34.1".to_owned()),
        bootstrap_format: Some("cloud-config".to_owned()),
        ..TestMachine::default()
    })
}

/// What becomes of a launch that is answered so.
fn launched(code: &str) -> Error {
    let frozen = Frozen { subnet: "subnet-a".to_owned(), image: "ami-1".to_owned(), ..Frozen::default() };
    let known = Known { attempt: 1, frozen: Some(serde_json::to_string(&frozen).unwrap()), ..Known::default() };
    let start = machine(json!({})).known("instance", known).answer_bytes("POST /", 400, refusal(code));
    start.run(|| infrastructure::create::<Aws>("instance")).0.unwrap_err()
}

/// What becomes of the choices before a launch; the answers are to the requests after the one for subnets.
fn chosen(spec: Value, free: &str, answers: &[(u16, &[u8])]) -> Error {
    let subnets = format!(
        "<R><subnetSet><item><subnetId>subnet-a</subnetId><availabilityZone>us-east-1a</availabilityZone>\
         <availableIpAddressCount>{free}</availableIpAddressCount></item></subnetSet></R>"
    );
    let start = machine(spec).answer_bytes("POST /", 200, subnets.into_bytes());
    let start =
        answers.iter().fold(start, |start, (status, body)| start.answer_bytes("POST /", *status, body.to_vec()));
    start.run(|| infrastructure::identify::<Aws>("instance", &[])).0.unwrap_err()
}

fn blames(error: &Error, field: &str, words: &[&str]) {
    let Error::Invalid(violations) = error else { panic!("{error:?}") };
    assert_eq!(violations[0].path, field);
    for words in words {
        assert!(violations[0].message.contains(words), "{words:?} is not in {violations:?}");
    }
}

fn waits(error: &Error, code: &str, words: &[&str]) {
    let Error::Conflict(reason) = error else { panic!("{error:?}") };
    assert_eq!(reason.code, code);
    for words in words {
        assert!(reason.message.contains(words), "{words:?} is not in {reason:?}");
    }
}

const TYPES: &[u8] = b"<R><instanceTypeSet><item><processorInfo><supportedArchitectures><item>x86_64</item>\
                       </supportedArchitectures></processorInfo></item></instanceTypeSet></R>";

#[test]
fn bad_input_an_image_that_does_not_exist() {
    for code in ["InvalidAMIID.NotFound", "InvalidAMIID.Malformed", "InvalidAMIID.Unavailable"] {
        blames(&launched(code), "/spec/ami/id", &[SAID, "name one of this region, or leave ami out"]);
    }
    let spec = json!({"ami": {"id": "ami-0"}, "rootVolume": {"size": 20}});
    let asked = chosen(spec.clone(), "9", &[(400, &refusal("InvalidAMIID.NotFound"))]);
    blames(&asked, "/spec/ami/id", &[SAID, "name one of this region"]);
    blames(
        &chosen(spec, "9", &[(200, b"<R><imagesSet/></R>")]),
        "/spec/ami/id",
        &["there is no image ami-0 in the region"],
    );
    // Nor one that fits the version.
    let none = chosen(json!({}), "9", &[(200, TYPES), (200, b"<R><imagesSet/></R>")]);
    blames(&none, "/spec/ami", &["capa-ami-ubuntu-24.04-?1.34.1-*", "819546954734", "set ami.id"]);
}

#[test]
fn bad_input_a_type_that_does_not_exist() {
    blames(&launched("InvalidInstanceType"), "/spec/instanceType", &[SAID, "describe-instance-type-offerings"]);
    let asked = chosen(json!({"instanceType": "m9.huge"}), "9", &[(400, &refusal("InvalidInstanceType"))]);
    blames(&asked, "/spec/instanceType", &[SAID, "describe-instance-type-offerings"]);
    let unknown = chosen(json!({"instanceType": "m9.huge"}), "9", &[(200, b"<R><instanceTypeSet/></R>")]);
    blames(&unknown, "/spec/instanceType", &["there is no instance type m9.huge in the region"]);
    // One that the zone does not have.
    blames(&launched("Unsupported"), "/spec", &[SAID, "another zone by the machine's failure domain"]);
}

#[test]
fn bad_input_a_key_pair_or_an_instance_profile_that_does_not_exist() {
    blames(&launched("InvalidKeyPair.NotFound"), "/spec/sshKeyName", &[SAID, "import the key pair"]);
    let profile = "Value (p) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name";
    let body = refusal("InvalidParameterValue");
    let body = String::from_utf8(body).unwrap().replace(SAID, profile).into_bytes();
    let frozen = Some(serde_json::to_string(&Frozen::default()).unwrap());
    let start = machine(json!({"iamInstanceProfile": "p"})).known("instance", Known { frozen, ..Known::default() });
    let told = start.answer_bytes("POST /", 400, body).run(|| infrastructure::create::<Aws>("instance")).0.unwrap_err();
    blames(&told, "/spec/iamInstanceProfile", &[profile, "create the instance profile"]);
}

#[test]
fn bad_input_an_exhausted_quota() {
    for code in ["VcpuLimitExceeded", "InstanceLimitExceeded", "VolumeLimitExceeded", "MaxSpotInstanceCountExceeded"] {
        waits(&launched(code), code, &[SAID, "raise it (Service Quotas)"]);
    }
    let known = |state: Value| Known {
        id: Some("x".to_owned()),
        confirmed: true,
        state: Some(state.to_string()),
        ..Known::default()
    };
    for (part, code) in [
        ("vpc", "VpcLimitExceeded"),
        ("internet-gateway", "InternetGatewayLimitExceeded"),
        ("nat-address-a", "AddressLimitExceeded"),
        ("nat-a", "NatGatewayLimitExceeded"),
        ("load-balancer", "TooManyLoadBalancers"),
        ("target-group", "TooManyTargetGroups"),
    ] {
        let subnets = json!([{"name": "public-a", "zone": "a", "cidr": "10.0.0.0/17", "public": true},
            {"name": "private-a", "zone": "a", "cidr": "10.0.128.0/17"}]);
        let vpc = json!({"id": "vpc-1", "owned": true, "dns": true, "layout": {"subnets": subnets}});
        let frozen = Some(json!({"subnets": subnets}).to_string());
        let spec = json!({"region": "us-east-1", "controlPlaneLoadBalancer": {"loadBalancerType": "nlb"}});
        let start = Scenario::new("AWSCluster", spec)
            .known("vpc", Known { frozen, ..known(vpc) })
            .known("subnet-public-a", known(json!({"id": "subnet-p"})))
            .known("nat-address-a", known(json!({"id": "eipalloc-1"})))
            .known("target-group", known(json!({})))
            .known("load-balancer", known(json!({})));
        let (told, _) = start.answer_bytes("POST /", 400, refusal(code)).run(|| infrastructure::create::<Aws>(part));
        waits(&told.unwrap_err(), code, &[SAID, "raise it (Service Quotas)"]);
    }
}

#[test]
fn bad_input_no_capacity() {
    for code in ["InsufficientInstanceCapacity", "InsufficientHostCapacity"] {
        waits(&launched(code), code, &[SAID, "another instanceType or failure domain may be had at once"]);
    }
    blames(
        &launched("SpotMaxPriceTooLow"),
        "/spec/spotMarketOptions/maxPrice",
        &[SAID, "raise spotMarketOptions.maxPrice"],
    );
}

#[test]
fn bad_input_a_subnet_without_addresses() {
    let code = "InsufficientFreeAddressesInSubnet";
    waits(&chosen(json!({}), "0", &[]), code, &["no address is free in subnet-a", "choose another subnet"]);
    waits(&launched(code), code, &[SAID, "free addresses of the subnet, or name another one"]);
}

#[test]
fn bad_input_a_region_that_does_not_exist() {
    let look = |spec: Value| -> Result<_> {
        let why = "ec2.eu-nowhere-1.amazonaws.com cannot be resolved: no such host".to_owned();
        let start = Scenario::new("AWSCluster", spec).fails("POST /", HttpError::NotSent(why));
        start.run(|| infrastructure::observe::<Aws>("vpc")).0
    };
    for vpc in [json!({}), json!({"id": "vpc-1"})] {
        let told = look(json!({"region": "eu-nowhere-1", "network": {"vpc": vpc}}));
        let Err(Error::Transient(reason)) = told else { panic!("{told:?}") };
        for words in ["cannot be resolved", "if there is no region \"eu-nowhere-1\"", "/spec/region"] {
            assert!(reason.message.contains(words), "{words:?} is not in {reason:?}");
        }
    }
}

#[test]
fn bad_input_a_security_group_that_does_not_exist_or_is_another_clusters() {
    let spec = json!({"ami": {"id": "ami-1"}, "additionalSecurityGroups": [{"id": "sg-node"}, {"id": "sg-x"}]});
    let missing = chosen(spec.clone(), "9", &[(400, &refusal("InvalidGroup.NotFound"))]);
    blames(&missing, "/spec/additionalSecurityGroups", &[SAID]);
    let group = b"<R><securityGroupInfo><item><groupId>sg-x</groupId><tagSet><item><key>capstan.dev/owner-key</key>\
                  <value>owner-2</value></item></tagSet></item></securityGroupInfo></R>";
    let what = "sg-x was made for another cluster: name one of this cluster";
    waits(&chosen(spec, "9", &[(200, group)]), "SecurityGroupForeign", &[what]);
}
