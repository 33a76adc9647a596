use capstan_provider::testing::{Scenario, infrastructure as call};
use serde_json::{Value, json};

use super::*;
use crate::Proxmox;

fn spec() -> Value {
    json!({
        "controlPlaneEndpoint": {"host": "192.0.2.5", "port": 6443}, "allowedNodes": ["pve1", "pve2"],
        "dnsServers": ["192.0.2.53"], "ipv4Config": {"addresses": ["192.0.2.10-192.0.2.20"], "prefix": 24, "gateway": "192.0.2.1"},
        "zoneConfig": [{"zone": "east", "ipv6Config": {"addresses": ["2001:db8::/64"], "prefix": 64}}],
    })
}

fn wrong(change: impl FnOnce(&mut Value)) -> Vec<String> {
    let mut spec = spec();
    change(&mut spec);
    let object = json!({"kind": "ProxmoxCluster", "spec": spec}).to_string();
    call::validate::<Proxmox>(None, &object).into_iter().map(|violation| violation.path).collect()
}

#[test]
fn pools_are_declared_by_the_names_that_capmox_gives_them() {
    let (needs, _) = Scenario::new("ProxmoxCluster", spec()).run(call::declare::<Proxmox>);
    let pool = |addresses: &str, prefix: u8, gateway: Option<&str>| Need::AddressPool {
        addresses: vec![addresses.to_owned()],
        prefix,
        gateway: gateway.map(ToOwned::to_owned),
    };
    assert_eq!(
        needs.unwrap(),
        [
            ("c-v4-icip".to_owned(), pool("192.0.2.10-192.0.2.20", 24, Some("192.0.2.1"))),
            ("c-east-v6-icip".to_owned(), pool("2001:db8::/64", 64, None)),
        ]
    );
}

#[test]
fn a_cluster_is_what_its_spec_says_once_the_api_answers() {
    let (presence, _) = Scenario::new("ProxmoxCluster", spec())
        .answer("GET /api2/json/version", 200, json!({"data": {"version": "9.1.3", "release": "9.1"}}))
        .run(|| call::observe::<Proxmox>(PROXMOX));
    let Ok(Presence::Present(seen)) = presence else { panic!("{presence:?}") };
    let known = capstan_provider::Known { state: Some(seen.state), ..Default::default() };
    let (facts, _) = Scenario::new("ProxmoxCluster", spec()).known(PROXMOX, known).run(call::report_cluster::<Proxmox>);
    let facts = facts.unwrap();
    assert_eq!(facts.control_plane_endpoint, Some(HostPort { host: "192.0.2.5".to_owned(), port: 6443 }));
    let domains: Vec<&str> = facts.failure_domains.iter().map(|domain| domain.name.as_str()).collect();
    assert_eq!(domains, ["pve1", "pve2"]);
    assert_eq!(facts.conditions[0].ok, Some(true));
    assert_eq!(
        facts.status,
        r#"{"version":"9.1.3","inClusterIPPoolRef":[{"name":"c-v4-icip"},{"name":"c-east-v6-icip"}]}"#
    );
    let (parts, _) = Scenario::new("ProxmoxCluster", spec()).run(call::parts::<Proxmox>);
    assert!(parts.unwrap().iter().all(|part| part.borrowed), "nothing is made for a cluster");
}

#[test]
fn a_refused_token_is_told() {
    let (presence, _) = Scenario::new("ProxmoxCluster", spec())
        .answer_phrase("GET /api2/json/version", 401, "no such user ('x@pve')", json!({"data": null}))
        .run(|| call::observe::<Proxmox>(PROXMOX));
    assert!(matches!(presence, Err(Error::Unauthorized(why)) if why.message.contains("no such user")));
}

#[test]
fn an_endpoint_is_needed_unless_the_control_plane_is_somebody_elses() {
    let report = |change: fn(&mut Value)| {
        let mut spec = spec();
        change(&mut spec);
        Scenario::new("ProxmoxCluster", spec).run(call::report_cluster::<Proxmox>).0
    };
    let missing = report(|spec| spec["controlPlaneEndpoint"] = json!({}));
    assert!(matches!(missing, Err(Error::Invalid(why)) if why[0].path == "/spec/controlPlaneEndpoint"));
    let elsewhere = report(|spec| {
        spec["controlPlaneEndpoint"] = json!({});
        spec["externalManagedControlPlane"] = true.into();
    });
    assert_eq!(elsewhere.unwrap().control_plane_endpoint, None);
}

#[test]
fn what_the_schema_cannot_say() {
    assert!(wrong(|_| {}).is_empty());
    assert_eq!(
        wrong(|spec| spec["ipv4Config"]["addresses"] = json!(["192.0.2.0/29"])),
        ["/spec/ipv4Config/addresses/0"]
    );
    assert_eq!(
        wrong(|spec| spec["ipv4Config"]["addresses"] = json!(["192.0.2.4-192.0.2.9"])),
        ["/spec/ipv4Config/addresses/0"]
    );
    assert!(wrong(|spec| spec["controlPlaneEndpoint"]["host"] = "api.example.org".into()).is_empty());
    for odd in ["2001:db8::1", "192.0.2.9-192.0.2.4", "192.0.2.0/33", "x", ""] {
        assert_eq!(
            wrong(|spec| spec["ipv4Config"]["addresses"] = json!([odd])),
            ["/spec/ipv4Config/addresses/0"],
            "{odd}"
        );
    }
    assert_eq!(wrong(|spec| spec["ipv4Config"]["prefix"] = 64.into()), ["/spec/ipv4Config/prefix"]);
    assert_eq!(wrong(|spec| spec["ipv4Config"]["gateway"] = "2001:db8::1".into()), ["/spec/ipv4Config/gateway"]);
    assert_eq!(wrong(|spec| spec["dnsServers"] = json!(["dns"])), ["/spec/dnsServers/0"]);
    assert_eq!(
        wrong(|spec| spec["zoneConfig"][0]["ipv6Config"]["addresses"] = json!(["192.0.2.1"])),
        ["/spec/zoneConfig/0/ipv6Config/addresses/0"]
    );
}
