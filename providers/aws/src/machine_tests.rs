//! Machines against a script: what users of CAPA ran into (the numbers are its issues), the field cases, and the requests as they
//! are sent.

use capstan_provider::{
    Absence, Error, Known, Phase, Presence, Progress,
    http::HttpError,
    testing::{Scenario, Sent, TestMachine, infrastructure},
};
use serde_json::json;

use crate::{Aws, bootstrap::Form, instance::Frozen};

/// A machine whose cluster's network and load balancer are there.
fn scenario(spec: serde_json::Value) -> Scenario {
    let mut spec = spec;
    spec.as_object_mut().unwrap().entry("instanceType").or_insert_with(|| "m5.large".into());
    let mut scenario = Scenario::new("AWSMachine", spec).secret("bootstrap-data", "#cloud-config\n");
    scenario.name = "m".to_owned();
    scenario.gzip = Some(|bytes| bytes[..bytes.len() / 3].to_vec());
    scenario.infrastructure_spec = Some(
        json!({"region": "us-east-1", "controlPlaneLoadBalancer": {"loadBalancerType": "nlb"}, "additionalTags": {"team": "t"}})
            .to_string(),
    );
    let layout = json!({"subnets": [{"name": "private-a", "zone": "us-east-1a", "cidr": "10.0.0.0/24"},
        {"name": "private-b", "zone": "us-east-1b", "cidr": "10.0.1.0/24"},
        {"name": "public-a", "zone": "us-east-1a", "cidr": "10.0.2.0/24", "public": true}]});
    let states = [
        ("vpc", json!({"id": "vpc-1", "owned": true, "layout": layout})),
        ("subnet-private-a", json!({"id": "subnet-a"})),
        ("subnet-private-b", json!({"id": "subnet-b"})),
        ("subnet-public-a", json!({"id": "subnet-p"})),
        ("security-group-node", json!({"id": "sg-node"})),
        ("security-group-lb", json!({"id": "sg-lb"})),
        ("security-group-controlplane", json!({"id": "sg-cp"})),
        ("load-balancer", json!({"name": "b", "arn": "arn:b", "dns": "b.example", "active": true})),
        ("target-group", json!({"arn": "arn:t", "port": 6443})),
    ];
    scenario.infrastructure_states =
        states.into_iter().map(|(name, state)| (name.to_owned(), state.to_string())).collect();
    scenario.machine(TestMachine {
        name: "m".to_owned(),
        kubernetes_version: Some("v1.34.1".to_owned()),
        bootstrap_format: Some("cloud-config".to_owned()),
        ..TestMachine::default()
    })
}

fn with_machine(mut scenario: Scenario, edit: impl FnOnce(&mut TestMachine)) -> Scenario {
    edit(scenario.machine.as_mut().unwrap());
    scenario
}

fn frozen() -> Frozen {
    Frozen {
        subnet: "subnet-b".to_owned(),
        zone: "us-east-1b".to_owned(),
        image: "ami-1".to_owned(),
        root_device: String::new(),
        groups: vec!["sg-node".to_owned(), "sg-lb".to_owned()],
        form: Form::Direct { gzip: false },
        tags: [("Name".to_owned(), "m".to_owned())].into(),
    }
}

/// The instance was asked for.
fn asked() -> Known {
    let frozen = serde_json::to_string(&frozen()).unwrap();
    Known { attempt: 1, idempotency_key: "key-1".to_owned(), frozen: Some(frozen), ..Known::default() }
}

/// The instance was seen.
fn seen(state: &str) -> Known {
    let state = json!({"id": "i-1", "state": state, "zone": "us-east-1b", "private_ip": "10.0.1.5", "private_dns": "ip-10-0-1-5"});
    Known { id: Some("i-1".to_owned()), confirmed: true, state: Some(state.to_string()), ..asked() }
}

fn registered() -> Known {
    Known {
        id: Some("i-1:6443 of arn:t".to_owned()),
        confirmed: true,
        frozen: Some(json!({"at": "arn:t", "port": 6443}).to_string()),
        ..Known::default()
    }
}

fn tag(key: &str, value: &str) -> String {
    format!("<item><key>{key}</key><value>{value}</value></item>")
}

fn ours() -> String {
    [
        tag("capstan.dev/owner-key", "owner-1"),
        tag("capstan.dev/attempt", "1"),
        tag("sigs.k8s.io/cluster-api-provider-aws/cluster/c", "owned"),
    ]
    .concat()
}

fn instances(id: &str, state: &str, tags: &str) -> Vec<u8> {
    format!(
        "<R><reservationSet><item><instancesSet><item><instanceId>{id}</instanceId><instanceState><name>{state}</name>\
         </instanceState><placement><availabilityZone>us-east-1b</availabilityZone></placement>\
         <stateReason><message>Server.InsufficientInstanceCapacity: none</message></stateReason>\
         <tagSet>{tags}</tagSet></item></instancesSet></item></reservationSet></R>"
    )
    .into_bytes()
}

const NONE: &[u8] = b"<R><reservationSet/></R>";

fn refusal(code: &str) -> Vec<u8> {
    format!("<Response><Errors><Error><Code>{code}</Code><Message>m</Message></Error></Errors></Response>").into_bytes()
}

fn form(sent: &Sent) -> String {
    String::from_utf8_lossy(&sent.body).into_owned()
}

fn observe(scenario: Scenario) -> Result<Presence, Error> {
    scenario.run(|| infrastructure::observe::<Aws>("instance")).0
}

#[test]
fn capa_2915_an_instance_that_was_not_shown_at_first_is_found_by_its_key() {
    let start = || scenario(json!({})).known("instance", asked());
    let absent = observe(start().answer_bytes("POST /", 200, NONE.to_vec()));
    assert_eq!(absent, Ok(Presence::Absent(Absence::SearchedByKey)), "the host waits before it believes it");
    let found = observe(start().answer_bytes("POST /", 200, instances("i-1", "pending", &ours())));
    let Ok(Presence::Present(found)) = found else { panic!("{found:?}") };
    assert_eq!((found.id.as_str(), found.ready), ("i-1", false));
    let others = tag("capstan.dev/owner-key", "owner-2");
    let none = observe(start().answer_bytes("POST /", 200, instances("i-1", "running", &others)));
    assert_eq!(none, Ok(Presence::absent_by_key()));
}

#[test]
fn capa_5512_launching_again_sends_the_same_bytes_under_the_same_token() {
    let create = |scenario: Scenario| {
        let answer = b"<R><instancesSet><item><instanceId>i-1</instanceId></item></instancesSet></R>".to_vec();
        scenario
            .known("instance", asked())
            .answer_bytes("POST /", 200, answer)
            .run(|| infrastructure::create::<Aws>("instance"))
    };
    let (done, first) = create(scenario(json!({"additionalTags": {"a": "b"}})));
    assert_eq!(done, Ok(Progress::done("i-1")));
    // The cluster's network has moved on, and so have the tags.
    let mut moved = scenario(json!({"additionalTags": {"a": "c"}}));
    moved.infrastructure_states.clear();
    let (_, second) = create(moved);
    assert_eq!(form(&first[0]), form(&second[0]));
    assert!(form(&first[0]).contains("&ClientToken=key-1"), "{}", form(&first[0]));
}

#[test]
fn capa_6131_the_id_is_told_at_once_and_found_again_where_the_answer_was_lost() {
    let start = || scenario(json!({})).known("instance", asked());
    let answer = b"<R><instancesSet><item><instanceId>i-1</instanceId></item></instancesSet></R>".to_vec();
    let (done, sent) = start().answer_bytes("POST /", 200, answer).run(|| infrastructure::create::<Aws>("instance"));
    assert_eq!((done, sent.len()), (Ok(Progress::done("i-1")), 1), "by the call that gets it, before anything else");
    let lost = start().fails("POST /", HttpError::NoAnswer("cut".to_owned()));
    let (lost, _) = lost.run(|| infrastructure::create::<Aws>("instance"));
    assert!(matches!(lost, Err(Error::Transient(_))), "{lost:?}");
    let found = observe(start().answer_bytes("POST /", 200, instances("i-1", "pending", &ours())));
    assert!(matches!(&found, Ok(Presence::Present(seen)) if seen.id == "i-1"), "{found:?}");
}

#[test]
fn capa_5794_an_instance_that_has_vanished_is_told_and_not_made_anew() {
    let gone = || scenario(json!({})).known("instance", seen("running"));
    let absent = observe(gone().answer_bytes("POST /", 200, NONE.to_vec()).answer_bytes(
        "POST /",
        400,
        refusal("InvalidInstanceID.NotFound"),
    ));
    assert_eq!(absent, Ok(Presence::absent_by_id()));
    let (parts, _) = gone().run(infrastructure::parts::<Aws>);
    assert!(!parts.unwrap()[0].replaceable);
    let terminated = observe(gone().answer_bytes("POST /", 200, instances("i-1", "terminated", &ours())));
    assert_eq!(terminated, Ok(Presence::absent_by_id()));
    let lost = Known { state: None, ..seen("running") };
    let (facts, _) = scenario(json!({})).known("instance", lost).run(infrastructure::report_machine::<Aws>);
    let facts = facts.unwrap();
    assert_eq!((facts.phase, facts.provider_id), (Phase::Failed, None));
    assert_eq!(facts.conditions[0].reason.code, "InstanceTerminated");
    // With a providerID nothing is launched either, whether there is nothing behind it or somebody else's.
    let (nothing, other) = (refusal("InvalidInstanceID.NotFound"), instances("i-9", "running", &ours()));
    for (status, there, code) in [(400, nothing, "InstanceTerminated"), (200, other, "InstanceForeign")] {
        let spec = scenario(json!({"providerID": "aws:///us-east-1a/i-9"})).answer_bytes("POST /", status, there);
        let (refused, _) = spec.run(|| infrastructure::identify::<Aws>("instance", &[]));
        assert!(matches!(&refused, Err(Error::Conflict(why)) if why.code == code), "{refused:?}");
    }
}

#[test]
fn capa_1769_a_launch_that_aws_takes_back_ends_its_attempt() {
    let start = scenario(json!({})).known("instance", asked());
    let failed = observe(start.answer_bytes("POST /", 200, instances("i-1", "terminated", &ours())));
    let Ok(Presence::Failed(Absence::SearchedByKey, reason)) = failed else { panic!("{failed:?}") };
    assert!(reason.message.contains("InsufficientInstanceCapacity"), "{reason:?}");
    // The next attempt does not take it for its own.
    let second = Known { attempt: 2, ..asked() };
    let start = scenario(json!({})).known("instance", second);
    let absent = observe(start.answer_bytes("POST /", 200, instances("i-1", "terminated", &ours())));
    assert_eq!(absent, Ok(Presence::absent_by_key()));
}

#[test]
fn capa_1275_throttling_is_told_as_such() {
    for code in ["RequestLimitExceeded", "EC2ThrottledException", "Throttling"] {
        let start = scenario(json!({})).known("instance", seen("running"));
        assert_eq!(observe(start.answer_bytes("POST /", 503, refusal(code))), Err(Error::Throttled(None)));
    }
}

#[test]
fn capa_4192_all_machines_of_a_cluster_ask_the_same_question() {
    let look = |name: &str, id: &str| {
        let mut start = scenario(json!({})).known("instance", Known { id: Some(id.to_owned()), ..seen("running") });
        start.name = name.to_owned();
        let (_, sent) = start
            .answer_bytes("POST /", 200, instances(id, "running", &ours()))
            .run(|| infrastructure::observe::<Aws>("instance"));
        form(&sent[0])
    };
    let question = look("m", "i-1");
    assert_eq!(question, look("n", "i-2"));
    assert_eq!(
        question,
        "Action=DescribeInstances&Version=2016-11-15&Filter.1.Name=tag%3Asigs.k8s.io%2Fcluster-api-provider-aws%2Fcluster%2Fc\
         &Filter.1.Value.1=owned&MaxResults=100"
    );
}

#[test]
fn capa_4697_a_machine_leaves_the_load_balancer_as_soon_as_it_is_deleted() {
    let control_plane = || {
        let start = scenario(json!({})).known("instance", seen("running")).known("registration", registered());
        with_machine(start, |machine| machine.control_plane = true)
    };
    let names = |scenario: Scenario| -> Vec<String> {
        scenario.run(infrastructure::parts::<Aws>).0.unwrap().into_iter().map(|part| part.name).collect()
    };
    assert_eq!(names(control_plane()), ["instance", "registration"]);
    assert_eq!(names(with_machine(control_plane(), |machine| machine.deleting = true)), ["instance"]);
    assert_eq!(
        names(control_plane().known("instance", seen("stopped"))),
        ["instance"],
        "nor does one that is stopped stay"
    );
    let (done, sent) = control_plane()
        .answer_bytes("POST /", 200, b"<R/>".to_vec())
        .run(|| infrastructure::delete::<Aws>("registration"));
    assert!(done.is_ok());
    assert!(
        form(&sent[0]).starts_with("Action=DeregisterTargets&") && form(&sent[0]).contains("Targets.member.1.Id=i-1")
    );
}

#[test]
fn capa_6254_an_instance_is_not_terminated_before_the_load_balancer_has_let_go_of_it() {
    let health = |state: &str| {
        format!(
            "<R><DescribeTargetHealthResult><TargetHealthDescriptions><member><Target><Id>i-1</Id><Port>6443</Port></Target>\
             <TargetHealth><State>{state}</State></TargetHealth></member></TargetHealthDescriptions></DescribeTargetHealthResult></R>"
        )
        .into_bytes()
    };
    let going = || {
        let start = scenario(json!({})).known("instance", seen("running")).known("registration", registered());
        with_machine(start, |machine| (machine.control_plane, machine.deleting) = (true, true))
    };
    let delete = |scenario: Scenario| scenario.run(|| infrastructure::delete::<Aws>("instance"));
    let (waits, sent) = delete(going().answer_bytes("POST /", 200, health("draining")));
    assert!(matches!(waits, Ok(Progress::Waiting(_))) && sent.len() == 1, "{waits:?}");
    let (presence, _) =
        going().answer_bytes("POST /", 200, health("draining")).run(|| infrastructure::observe::<Aws>("registration"));
    assert!(matches!(presence, Ok(Presence::Present(seen)) if seen.operation.is_some()));
    let (done, sent) =
        delete(going().answer_bytes("POST /", 200, b"<R/>".to_vec()).answer_bytes("POST /", 200, b"<R/>".to_vec()));
    assert_eq!(done, Ok(Progress::done("i-1")));
    assert_eq!(form(&sent[1]), "Action=TerminateInstances&Version=2016-11-15&InstanceId.1=i-1");
    // A target group that is gone holds nobody.
    let (done, _) = delete(going().answer_bytes("POST /", 400, refusal("TargetGroupNotFound")).answer_bytes(
        "POST /",
        200,
        b"<R/>".to_vec(),
    ));
    assert_eq!(done, Ok(Progress::done("i-1")));
}

#[test]
fn capa_6123_6182_a_refused_credential_is_told_each_time_and_recovers() {
    for _ in 0..2 {
        let start = scenario(json!({})).known("instance", seen("running"));
        let refused = observe(start.answer_bytes("POST /", 401, refusal("AuthFailure")));
        assert!(matches!(refused, Err(Error::Unauthorized(_))), "{refused:?}");
    }
    let start = scenario(json!({})).known("instance", seen("running"));
    let seen = observe(start.answer_bytes("POST /", 200, instances("i-1", "running", &ours())));
    assert!(matches!(seen, Ok(Presence::Present(_))));
}

/// What becomes of data of so many bytes; in the double of the host gzip leaves a third.
fn kept(bytes: usize, format: &str, spec: serde_json::Value, bucket: bool) -> Result<Form, Error> {
    kept_as(scenario(json!({})).gzip, bytes, format, spec, bucket)
}

fn kept_as(
    gzip: Option<capstan_provider::testing::Gzip>,
    bytes: usize,
    format: &str,
    spec: serde_json::Value,
    bucket: bool,
) -> Result<Form, Error> {
    let mut start = with_machine(scenario(spec), |machine| machine.bootstrap_format = Some(format.to_owned()));
    start.gzip = gzip;
    start.secrets.insert("bootstrap-data".to_owned(), vec![b'x'; bytes]);
    let mut cluster: serde_json::Value = serde_json::from_str(&start.infrastructure_spec.clone().unwrap()).unwrap();
    if bucket {
        cluster["s3Bucket"] = json!({"name": "the-bucket"});
    }
    start.infrastructure_spec = Some(cluster.to_string());
    start.spec = {
        let mut spec: serde_json::Value = serde_json::from_str(&start.spec).unwrap();
        spec["ami"] = json!({"id": "ami-1"});
        spec.to_string()
    };
    start.transport = Some(answer_subnets);
    let (choice, _) = start.run(|| infrastructure::identify::<Aws>("instance", &[]));
    choice.map(|choice| serde_json::from_str::<Frozen>(&choice.frozen).unwrap().form)
}

fn answer_subnets(sent: &Sent) -> capstan_provider::testing::Exchange {
    assert!(form(sent).starts_with("Action=DescribeSubnets"), "nothing is launched: {}", form(sent));
    let body = "<R><subnetSet><item><subnetId>subnet-a</subnetId><availabilityZone>us-east-1a</availabilityZone>\
                <availableIpAddressCount>5</availableIpAddressCount></item></subnetSet></R>";
    capstan_provider::testing::Exchange { status: 200, body: body.as_bytes().to_vec(), ..Default::default() }
}

#[test]
fn a12_capa_1639_user_data_is_measured_before_base64_and_only_cloud_init_gets_gzip() {
    let cloud = |bytes| kept(bytes, "cloud-config", json!({}), false);
    assert_eq!(cloud(16_384), Ok(Form::Direct { gzip: false }));
    assert_eq!(cloud(16_385), Ok(Form::Direct { gzip: true }));
    assert_eq!(cloud(30 * 1024), Ok(Form::Direct { gzip: true }), "30 KiB that compress to 10");
    assert_eq!(kept(4096, "ignition", json!({}), false), Ok(Form::Direct { gzip: false }));
    // What does not compress below the limit.
    let skip = || json!({"cloudInit": {"insecureSkipSecretsManager": true}});
    let raw = || json!({"uncompressedUserData": true, "cloudInit": {"insecureSkipSecretsManager": true}});
    assert_eq!(kept(16_384, "cloud-config", raw(), false), Ok(Form::Direct { gzip: false }));
    for (refused, size) in [
        (kept(16_385, "cloud-config", raw(), false), "16385"),
        (kept(60_000, "cloud-config", skip(), false), "20000"),
        (kept(20 * 1024, "ignition", json!({}), false), "20480"),
        (kept(20 * 1024, "ignition", json!({"ignition": {"storageType": "UnencryptedUserData"}}), true), "20480"),
    ] {
        let Err(Error::Invalid(violations)) = refused else { panic!("{refused:?}") };
        assert!(violations[0].message.contains(size) && violations[0].message.contains("16384"), "{violations:?}");
    }
    // Bytes of chance do not compress: they go elsewhere, or nowhere.
    let chance = |bytes, spec| kept_as(Some(|bytes| bytes.to_vec()), bytes, "cloud-config", spec, false);
    assert_eq!(chance(16_384, json!({})), Ok(Form::Direct { gzip: false }));
    for bytes in [16_385, 20 * 1024] {
        assert!(matches!(chance(bytes, json!({})), Ok(Form::Secrets { parameters: false, count: 1, .. })), "{bytes}");
        assert!(matches!(chance(bytes, skip()), Err(Error::Invalid(_))), "{bytes}");
    }
    // Where another place is configured it is used.
    let Ok(Form::Object { bucket, key }) = kept(20 * 1024, "ignition", json!({}), true) else { panic!() };
    assert!(bucket == "the-bucket" && key.starts_with("node/m-"), "{key}");
}

#[test]
fn capa_705_1531_more_than_user_data_holds_goes_into_secrets_of_a_size_that_aws_takes() {
    let kept = |bytes, spec| kept(bytes, "cloud-config", spec, false).unwrap();
    let Form::Secrets { parameters, prefix, count } = kept(300_000, json!({})) else { panic!() };
    assert_eq!((parameters, prefix.as_str(), count), (false, "aws.cluster.x-k8s.io/owner-1", 3));
    let parameters = json!({"cloudInit": {"secureSecretsBackend": "ssm-parameter-store"}});
    let Form::Secrets { prefix, count, .. } = kept(30_000, parameters) else { panic!() };
    assert_eq!((prefix.as_str(), count), ("/cluster.x-k8s.io/owner-1", 4));
    // A piece: its bytes by handle, its owner, its token.
    let secrets = Form::Secrets { parameters: false, prefix: "p".to_owned(), count: 2 };
    let known = Known {
        id: Some("p-1".to_owned()),
        idempotency_key: "token".to_owned(),
        frozen: Some(json!({"form": secrets}).to_string()),
        ..Known::default()
    };
    let mut start = scenario(json!({})).known("bootstrap-data-1", known);
    let bytes: Vec<u8> = (0..150_000_u32).map(|n| if n < 40_000 { b'a' } else { b'b' }).collect();
    start.secrets.insert("bootstrap-data".to_owned(), bytes);
    let (done, sent) = start.answer("POST /", 200, json!({})).run(|| infrastructure::create::<Aws>("bootstrap-data-1"));
    assert_eq!(done, Ok(Progress::done("p-1")));
    let body = sent[0].json();
    assert_eq!((body["Name"].as_str(), body["ClientRequestToken"].as_str()), (Some("p-1"), Some("token")));
    assert!(body["SecretBinary"].as_str().unwrap().starts_with("YmJi") && body["Tags"].to_string().contains("owner-1"));
}

#[test]
fn a25_nothing_but_a_clear_answer_proves_that_an_instance_is_gone() {
    let start = || scenario(json!({})).known("instance", seen("running"));
    for (status, body) in [
        (500, refusal("InternalError")),
        (503, refusal("Unavailable")),
        (401, refusal("AuthFailure")),
        (403, refusal("UnauthorizedOperation")),
        (200, b"<html>gateway".to_vec()),
        (200, Vec::new()),
    ] {
        let told = observe(start().answer_bytes("POST /", status, body));
        assert!(told.is_err(), "{status}: {told:?}");
    }
    for failure in [HttpError::NotSent("connection refused".to_owned()), HttpError::NoAnswer("timed out".to_owned())] {
        let told = observe(start().fails("POST /", failure.clone()));
        assert!(matches!(told, Err(Error::Transient(_))), "{failure:?}: {told:?}");
        // Nor is one that cannot be asked about by itself.
        let told = observe(start().answer_bytes("POST /", 200, NONE.to_vec()).fails("POST /", failure.clone()));
        assert!(matches!(told, Err(Error::Transient(_))), "{failure:?}: {told:?}");
    }
    // An empty list is no answer about an instance that was there.
    let told = observe(start().answer_bytes("POST /", 200, NONE.to_vec()).answer_bytes("POST /", 200, NONE.to_vec()));
    assert!(matches!(told, Err(Error::Transient(_))), "{told:?}");
    let not_found = refusal("InvalidInstanceID.NotFound");
    let told = observe(start().answer_bytes("POST /", 200, NONE.to_vec()).answer_bytes("POST /", 400, not_found));
    assert_eq!(told, Ok(Presence::absent_by_id()));
}

#[test]
fn what_belongs_to_others_is_left_alone_and_what_capa_made_is_taken_over() {
    let cluster_tag = tag("sigs.k8s.io/cluster-api-provider-aws/cluster/c", "owned");
    let capas = |id: &str| scenario(json!({"providerID": format!("aws:///us-east-1b/{id}")}));
    let seen = observe(capas("i-1").answer_bytes("POST /", 200, instances("i-1", "running", &cluster_tag)));
    let Ok(Presence::Present(seen)) = seen else { panic!("{seen:?}") };
    assert_eq!(seen.todo[0].code, "Tag", "it gets our owner key");
    let theirs = tag("capstan.dev/owner-key", "owner-2") + &cluster_tag;
    let foreign = observe(capas("i-1").answer_bytes("POST /", 200, instances("i-1", "running", &theirs)));
    assert!(matches!(foreign, Ok(Presence::Foreign(_))));
    let nobodys = observe(capas("i-1").answer_bytes("POST /", 200, NONE.to_vec()).answer_bytes(
        "POST /",
        200,
        instances("i-1", "running", ""),
    ));
    assert!(matches!(nobodys, Ok(Presence::Foreign(_))), "an instance without the cluster's tag is not the cluster's");
}

#[test]
fn the_request_that_launches_says_all_that_the_spec_says() {
    let spec = json!({"instanceType": "m6i.large", "sshKeyName": "k", "iamInstanceProfile": "p", "publicIP": false,
        "rootVolume": {"size": 30, "type": "gp3", "throughput": 200, "encrypted": true, "encryptionKey": "arn:k"},
        "nonRootVolumes": [{"deviceName": "/dev/sdf", "size": 10, "iops": 3000}],
        "spotMarketOptions": {"maxPrice": "0.1"}, "tenancy": "dedicated",
        "placementGroupName": "g", "placementGroupPartition": 2,
        "privateDnsName": {"hostnameType": "resource-name", "enableResourceNameDnsARecord": true},
        "capacityReservationPreference": "CapacityReservationsOnly",
        "instanceMetadataOptions": {"httpTokens": "required", "httpPutResponseHopLimit": 2, "httpProtocolIpv6": "enabled"}});
    let frozen = Frozen { root_device: "/dev/xvda".to_owned(), ..frozen() };
    let known = Known { frozen: Some(serde_json::to_string(&frozen).unwrap()), ..asked() };
    let (_, sent) = scenario(spec)
        .known("instance", known)
        .answer_bytes(
            "POST /",
            200,
            b"<R><instancesSet><item><instanceId>i-1</instanceId></item></instancesSet></R>".to_vec(),
        )
        .run(|| infrastructure::create::<Aws>("instance"));
    let sent = form(&sent[0]);
    for field in [
        "Action=RunInstances&Version=2016-11-15&MinCount=1&MaxCount=1&ImageId=ami-1&InstanceType=m6i.large",
        "NetworkInterface.1.DeviceIndex=0&NetworkInterface.1.SubnetId=subnet-b",
        "NetworkInterface.1.AssociatePublicIpAddress=false",
        "NetworkInterface.1.SecurityGroupId.1=sg-node&NetworkInterface.1.SecurityGroupId.2=sg-lb",
        "KeyName=k&IamInstanceProfile.Name=p",
        "MetadataOptions.HttpPutResponseHopLimit=2&MetadataOptions.HttpTokens=required",
        "MetadataOptions.HttpProtocolIpv6=enabled",
        "CapacityReservationSpecification.CapacityReservationPreference=capacity-reservations-only",
        "InstanceMarketOptions.MarketType=spot",
        "InstanceMarketOptions.SpotOptions.MaxPrice=0.1",
        "Placement.GroupName=g&Placement.PartitionNumber=2&Placement.Tenancy=dedicated",
        "PrivateDnsNameOptions.HostnameType=resource-name",
        "BlockDeviceMapping.1.DeviceName=%2Fdev%2Fxvda&BlockDeviceMapping.1.Ebs.DeleteOnTermination=true",
        "BlockDeviceMapping.1.Ebs.VolumeSize=30&BlockDeviceMapping.1.Ebs.VolumeType=gp3&BlockDeviceMapping.1.Ebs.Throughput=200",
        "BlockDeviceMapping.1.Ebs.Encrypted=true&BlockDeviceMapping.1.Ebs.KmsKeyId=arn%3Ak",
        "BlockDeviceMapping.2.DeviceName=%2Fdev%2Fsdf",
        "UserData=I2Nsb3VkLWNvbmZpZwo%3D&ClientToken=key-1",
        "TagSpecification.1.ResourceType=instance&TagSpecification.1.Tag.1.Key=Name",
        "TagSpecification.3.ResourceType=network-interface",
    ] {
        assert!(sent.contains(field), "{field} is not in {sent}");
    }
}

#[test]
fn what_ec2_refuses_is_told_with_the_field_or_tried_again_slowly() {
    let refused = |code: &str| {
        let start = scenario(json!({})).known("instance", asked()).answer_bytes("POST /", 400, refusal(code));
        start.run(|| infrastructure::create::<Aws>("instance")).0.unwrap_err()
    };
    for (code, field) in [
        ("InvalidAMIID.NotFound", "/spec/ami/id"),
        ("InvalidInstanceType", "/spec/instanceType"),
        ("InvalidKeyPair.NotFound", "/spec/sshKeyName"),
        ("InvalidGroup.NotFound", "/spec/additionalSecurityGroups"),
    ] {
        let Error::Invalid(violations) = refused(code) else { panic!("{code}") };
        assert_eq!(violations[0].path, field);
    }
    for code in ["InsufficientInstanceCapacity", "VcpuLimitExceeded", "InsufficientFreeAddressesInSubnet"] {
        assert!(matches!(refused(code), Error::Conflict(_)), "{code}");
    }
    assert!(matches!(refused("InvalidVpcID.NotFound"), Error::Transient(_)));
}

#[test]
fn a_machine_goes_where_its_failure_domain_and_free_addresses_are() {
    let subnets = |count: &str| {
        format!(
            "<R><subnetSet><item><subnetId>subnet-b</subnetId><availabilityZone>us-east-1b</availabilityZone>\
             <availableIpAddressCount>{count}</availableIpAddressCount></item></subnetSet></R>"
        )
        .into_bytes()
    };
    let choose = |domain: &str, count: &str| {
        let start = with_machine(scenario(json!({"ami": {"id": "ami-1"}})), |machine| {
            machine.failure_domain = Some(domain.to_owned());
            machine.control_plane = true;
        });
        let start = if domain.ends_with('z') { start } else { start.answer_bytes("POST /", 200, subnets(count)) };
        start.run(|| infrastructure::identify::<Aws>("instance", &[]))
    };
    let (choice, sent) = choose("us-east-1b", "9");
    let frozen: Frozen = serde_json::from_str(&choice.unwrap().frozen).unwrap();
    assert_eq!((frozen.subnet.as_str(), frozen.zone.as_str()), ("subnet-b", "us-east-1b"));
    assert_eq!(frozen.groups, ["sg-cp", "sg-node", "sg-lb"]);
    assert_eq!(form(&sent[0]), "Action=DescribeSubnets&Version=2016-11-15&SubnetId.1=subnet-b");
    let (full, _) = choose("us-east-1b", "0");
    assert!(matches!(full, Err(Error::Conflict(reason)) if reason.code == "InsufficientFreeAddressesInSubnet"));
    // Subnets of another cluster are not used, whoever names them; those of its own cluster are.
    let named = |id: &str, free: &str| {
        let owner = format!("<tagSet>{}</tagSet></item></subnetSet>", tag("capstan.dev/owner-key", "some-cluster"));
        let body =
            String::from_utf8(subnets(free)).unwrap().replace("subnet-b", id).replace("</item></subnetSet>", &owner);
        let start = scenario(json!({"ami": {"id": "ami-1"}, "subnet": {"id": id}}));
        start.answer_bytes("POST /", 200, body.into_bytes()).run(|| infrastructure::identify::<Aws>("instance", &[])).0
    };
    assert!(matches!(named("subnet-x", "9"), Err(Error::Conflict(reason)) if reason.code == "SubnetForeign"));
    assert!(named("subnet-b", "9").is_ok());
    let (nowhere, _) = choose("us-east-1z", "9");
    assert!(matches!(nowhere, Err(Error::Conflict(reason)) if reason.code == "NoSubnet"));
}

#[test]
fn an_image_is_looked_up_by_the_version() {
    let images = "<R><imagesSet><item><imageId>ami-old</imageId><creationDate>2025-01-01</creationDate></item>\
                  <item><imageId>ami-new</imageId><creationDate>2025-06-01</creationDate></item></imagesSet></R>";
    let types = "<R><instanceTypeSet><item><processorInfo><supportedArchitectures><item>arm64</item></supportedArchitectures>\
                 </processorInfo></item></instanceTypeSet></R>";
    let subnets = "<R><subnetSet><item><subnetId>subnet-a</subnetId></item></subnetSet></R>";
    let (choice, sent) = scenario(json!({"imageLookupBaseOS": "flatcar"}))
        .answer_bytes("POST /", 200, subnets.as_bytes().to_vec())
        .answer_bytes("POST /", 200, types.as_bytes().to_vec())
        .answer_bytes("POST /", 200, images.as_bytes().to_vec())
        .run(|| infrastructure::identify::<Aws>("instance", &[]));
    assert_eq!(serde_json::from_str::<Frozen>(&choice.unwrap().frozen).unwrap().image, "ami-new");
    let question = form(&sent[2]);
    assert!(
        question.contains("Owner.1=819546954734&Filter.1.Name=name&Filter.1.Value.1=capa-ami-flatcar-%3F1.34.1-%2A"),
        "{question}"
    );
    assert!(question.contains("Filter.2.Name=architecture&Filter.2.Value.1=arm64"), "{question}");
}

#[test]
fn what_is_not_served_is_refused_by_name() {
    let refused = |spec: serde_json::Value| -> Vec<String> {
        let object = json!({"kind": "AWSMachine", "spec": spec}).to_string();
        infrastructure::validate::<Aws>(None, &object).into_iter().map(|violation| violation.path).collect()
    };
    assert_eq!(refused(json!({"instanceType": "m5.large", "cpuOptions": {}, "hostID": ""})), [""; 0]);
    assert_eq!(
        refused(json!({"instanceType": "m5.large", "networkInterfaces": ["eni-1"]})),
        ["/spec/networkInterfaces"]
    );
    assert_eq!(
        refused(json!({"instanceType": "m5.large", "ami": {"eksLookupType": "AmazonLinux"}})),
        ["/spec/ami/eksLookupType"]
    );
    assert_eq!(
        refused(json!({"instanceType": "m5.large", "assignPrimaryIPv6": "enabled"})),
        ["/spec/assignPrimaryIPv6"]
    );
    let volume = json!({"instanceType": "m5.large", "nonRootVolumes": [{"size": 8, "type": "io2"}]});
    assert_eq!(refused(volume), ["/spec/nonRootVolumes/0/deviceName", "/spec/nonRootVolumes/0/iops"]);
    assert_eq!(
        refused(json!({"instanceType": "m5.large", "additionalTags": {"aws:x": "y"}})),
        ["/spec/additionalTags"]
    );
    assert_eq!(refused(json!({"instanceType": "m5.large", "providerID": "gce://x"})), ["/spec/providerID"]);
}
