//! A network's life against a scripted engine.

use capstan_provider::{
    HostPort, Known,
    testing::{Scenario, infrastructure},
};

use super::*;
use crate::{Docker, testing::with_engine};

fn scenario(spec: serde_json::Value) -> Scenario {
    with_engine(Scenario::new("DockerCluster", spec))
}

fn known() -> Known {
    Known {
        id: Some("capstan-t-x".to_owned()),
        frozen: Some(r#"{"subnet":"10.200.16.0/20"}"#.to_owned()),
        ..Known::default()
    }
}

fn identify(scenario: Scenario, reserved: &[String]) -> Result<Choice> {
    scenario.run(|| infrastructure::identify::<Docker>(NETWORK, reserved)).0
}

#[test]
fn a_network_of_ours_has_a_free_subnet_and_an_address_to_keep() {
    let mut all = scenario(json!({})).answer(
        "GET /v1.41/networks",
        200,
        json!([{"Name": "bridge", "IPAM": {"Config": [{"Subnet": "10.192.0.0/11"}]}}]),
    );
    all.service_cidrs = vec!["10.224.0.0/12".to_owned()];
    let choice = identify(all, &[]).unwrap();
    assert_eq!(choice.id.as_deref(), Some("capstan-t-x"));
    let frozen: Frozen = serde_json::from_str(&choice.frozen).unwrap();
    let subnet: std::net::Ipv4Addr = frozen.subnet.split('/').next().unwrap().parse().unwrap();
    assert!(Range::parse("10.240.0.0/12").unwrap().holds(subnet), "{subnet}");

    let (done, sent) = scenario(json!({}))
        .known(NETWORK, known())
        .answer("POST /v1.41/networks/create", 201, json!({"Id": "n"}))
        .run(|| infrastructure::create::<Docker>(NETWORK));
    assert_eq!(done, Ok(Progress::done("capstan-t-x")));
    assert_eq!(sent[1].json()["IPAM"]["Config"], json!([{"Subnet": "10.200.16.0/20", "IPRange": "10.200.24.0/21"}]));

    let there = json!({"Name": "capstan-t-x", "Labels": {OWNER: "owner-1"},
        "IPAM": {"Config": [{"Subnet": "10.200.16.0/20"}]}});
    let (presence, _) = scenario(json!({}))
        .answer("GET /v1.41/networks/capstan-t-x", 200, there)
        .run(|| infrastructure::observe::<Docker>(NETWORK));
    let Ok(Presence::Present(observed)) = presence else { panic!("{presence:?}") };
    let state: NetworkState = serde_json::from_str(&observed.state).unwrap();
    assert_eq!(state.load_balancer_address.as_deref(), Some("10.200.16.2"));
    assert!(state.holds("10.200.31.255") && !state.holds("10.200.32.0") && !state.holds("localhost"));
}

#[test]
fn a_network_that_is_made_again_has_the_endpoints_subnet() {
    let networks = |subnet: &str| {
        let mut all =
            scenario(json!({})).answer("GET /v1.41/networks", 200, json!([{"IPAM": {"Config": [{"Subnet": subnet}]}}]));
        all.endpoint = Some(HostPort { host: "10.200.16.2".to_owned(), port: 6443 });
        all
    };
    assert!(identify(networks("172.17.0.0/16"), &[]).unwrap().frozen.contains("10.200.16.0/20"));
    let taken = identify(networks("10.200.0.0/16"), &[]);
    assert!(matches!(&taken, Err(Error::Conflict(reason)) if reason.message.contains("10.200.16.0/20")), "{taken:?}");
}

#[test]
fn others_networks_are_borrowed_or_left_alone() {
    let (presence, _) = scenario(json!({"network": "kind"}))
        .answer("GET /v1.41/networks/kind", 200, json!({"Name": "kind", "Labels": {}}))
        .run(|| infrastructure::observe::<Docker>(NETWORK));
    assert!(matches!(presence, Ok(Presence::Present(_))));
    let (presence, _) = scenario(json!({"network": "kind"}))
        .answer("GET /v1.41/networks/kind", 404, json!({"message": "no such network"}))
        .run(|| infrastructure::observe::<Docker>(NETWORK));
    assert!(
        matches!(&presence, Ok(Presence::Foreign(reason)) if reason.message.contains("network kind, which spec.network"))
    );
    let (parts, _) = Scenario::new("DockerCluster", json!({"network": "kind"})).run(infrastructure::parts::<Docker>);
    assert!(parts.unwrap()[0].borrowed);
    let (presence, _) = scenario(json!({}))
        .answer("GET /v1.41/networks/capstan-t-x", 200, json!({"Name": "capstan-t-x", "Labels": null}))
        .run(|| infrastructure::observe::<Docker>(NETWORK));
    assert!(matches!(presence, Ok(Presence::Foreign(_))));
    let taken = |reserved: &[&str]| {
        let reserved: Vec<String> = reserved.iter().map(|name| (*name).to_owned()).collect();
        identify(scenario(json!({})).answer("GET /v1.41/networks", 200, json!([])), &reserved).unwrap().id.unwrap()
    };
    assert_eq!(taken(&["capstan-t-x"]), "t-capstan-t-x");
    assert_eq!(taken(&["capstan-t-x", "t-capstan-t-x"]), "t-capstan-t-x-owner-1");
}

#[test]
fn what_keeps_a_network_from_coming_or_going_is_told() {
    let create = |status, why: &str| {
        scenario(json!({}))
            .known(NETWORK, known())
            .answer("POST /v1.41/networks/create", status, json!({"message": why}))
            .run(|| infrastructure::create::<Docker>(NETWORK))
            .0
    };
    let overlap = create(403, "Pool overlaps with other one on this address space");
    assert!(matches!(&overlap, Err(Error::Conflict(reason)) if reason.code == "SubnetTaken"), "{overlap:?}");
    let taken = create(409, "network with name capstan-t-x already exists");
    assert!(
        matches!(&taken, Err(Error::Conflict(reason)) if reason.message.contains("docker network rm")),
        "{taken:?}"
    );
    let delete = |status| {
        scenario(json!({}))
            .known(NETWORK, known())
            .answer("DELETE /v1.41/networks/capstan-t-x", status, json!({"message": "has active endpoints"}))
            .run(|| infrastructure::delete::<Docker>(NETWORK))
            .0
    };
    assert_eq!(delete(204), Ok(Progress::done("capstan-t-x")));
    assert_eq!(delete(404), Ok(Progress::done("capstan-t-x")));
    assert!(matches!(delete(403), Ok(Progress::Waiting(reason)) if reason.message.contains("has active endpoints")));
    assert!(matches!(delete(500), Err(Error::Transient(_))));
}
