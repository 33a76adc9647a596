use capstan_provider::testing::{Scenario, infrastructure as call};
use serde_json::{Value, json};

use super::*;
use crate::{CRDS, Proxmox};

fn spec() -> Value {
    json!({"sourceNode": "pve1", "templateID": 9000, "tags": ["a"], "disks": {"bootVolume": {"disk": "scsi0", "sizeGb": 20}}})
}

fn wrong(old: Option<Value>, change: impl FnOnce(&mut Value)) -> Vec<String> {
    let mut spec = spec();
    change(&mut spec);
    let object = |spec: &Value| json!({"kind": "ProxmoxMachine", "spec": spec}).to_string();
    let old = old.map(|old| object(&old));
    call::validate::<Proxmox>(old.as_deref(), &object(&spec)).into_iter().map(|violation| violation.path).collect()
}

#[test]
fn what_the_schema_cannot_say() {
    assert!(wrong(None, |_| {}).is_empty());
    assert!(wrong(Some(spec()), |spec| spec["numCores"] = 4.into()).is_empty());
    assert_eq!(wrong(Some(spec()), |spec| spec["tags"] = json!(["b"])), ["/spec/tags"]);
    assert_eq!(wrong(Some(spec()), |spec| spec["disks"]["bootVolume"]["sizeGb"] = 30.into()), ["/spec/disks"]);
    assert_eq!(wrong(None, |spec| spec["templateSelector"] = json!({"matchTags": ["a"]})), ["/spec/templateID"]);
    assert_eq!(wrong(None, |spec| spec["network"] = json!({"vrfs": [{"name": "red"}]})), ["/spec/network/vrfs"]);
    assert_eq!(
        wrong(None, |spec| spec["network"] = json!({"networkDevices": [{"name": "net0"}, {"name": "net2"}]})),
        ["/spec/network/networkDevices/1/name"]
    );
    assert_eq!(wrong(None, |spec| spec["tags"] = json!(["ok", "no;tag"])), ["/spec/tags/1"]);
    assert_eq!(wrong(None, |spec| spec["providerID"] = "proxmox://1".into()), ["/spec/providerID"]);
    assert_eq!(
        wrong(None, |spec| {
            spec["virtualMachineID"] = 100.into();
            spec["vmIDRange"] = json!({"start": 200, "end": 300});
        }),
        ["/spec/virtualMachineID"]
    );
}

#[test]
fn the_schema_says_the_rest() {
    let crds: Value = serde_json::from_str(CRDS).unwrap();
    let spec = &crds[1]["versions"][0]["schema"]["properties"]["spec"];
    let rules: Vec<&str> = spec["x-kubernetes-validations"]
        .as_array()
        .unwrap()
        .iter()
        .map(|rule| rule["message"].as_str().unwrap())
        .collect();
    assert_eq!(rules.len(), 4, "{rules:?}");
    let fields = &spec["properties"];
    assert_eq!(fields["tags"]["x-kubernetes-validations"][0]["rule"], "self == oldSelf");
    assert_eq!(fields["format"]["enum"], json!(["raw", "qcow2", "vmdk"]));
    let devices = &fields["network"]["properties"]["networkDevices"];
    assert_eq!(devices["x-kubernetes-list-map-keys"], json!(["name"]));
    let vlan = &devices["items"]["properties"]["vlan"];
    assert_eq!((vlan["minimum"].as_u64(), vlan["maximum"].as_u64()), (Some(1), Some(4094)));
    assert_eq!(fields["disks"]["properties"]["bootVolume"]["properties"]["sizeGb"]["minimum"], 5);
    assert_eq!(fields["vmIDRange"]["required"], json!(["start", "end"]));
    let policies = json!(["exact", "uniqueSubset", "bestSubset"]);
    assert_eq!(fields["templateSelector"]["properties"]["matchPolicy"]["enum"], policies);
}

#[test]
fn a_template_tells_what_its_machines_offer() {
    let template = Scenario::new(
        "ProxmoxMachineTemplate",
        json!({"template": {"spec": {"sourceNode": "pve1", "templateID": 9000, "numCores": 4, "numSockets": 2, "memoryMiB": 8192}}}),
    );
    let (capacity, _) = template.run(call::capacity::<Proxmox>);
    assert_eq!(capacity, [("cpu".to_owned(), "8".to_owned()), ("memory".to_owned(), "8192Mi".to_owned())]);
}

#[test]
fn a_machine_that_runs_has_an_identity_and_addresses_and_one_that_vanished_has_a_reason() {
    let state = |change: fn(&mut Value)| {
        let mut state = json!({"vmid": 104, "node": "pve2", "uuid": "u", "status": "running", "started": true,
            "addresses": ["192.0.2.10", "2001:db8::7"], "drive": "s:iso/x.iso"});
        change(&mut state);
        state.to_string()
    };
    let report = |state: Option<String>, confirmed: bool| {
        let mut scenario = Scenario::new("ProxmoxMachine", spec());
        scenario.infrastructure_spec =
            Some(json!({"ipv4Config": {"addresses": ["192.0.2.10"], "prefix": 24}}).to_string());
        scenario.addresses.insert("net0-inet".to_owned(), ("192.0.2.10".to_owned(), 24, None));
        let known = capstan_provider::Known { id: Some("104".to_owned()), confirmed, state, ..Default::default() };
        scenario.known(VM, known).run(call::report_machine::<Proxmox>).0.unwrap()
    };
    let facts = report(Some(state(|_| {})), true);
    assert_eq!(facts.phase, Phase::Running);
    assert_eq!(facts.provider_id.as_deref(), Some("proxmox://u"));
    assert_eq!(facts.failure_domain.as_deref(), Some("pve2"));
    let addresses: Vec<&str> = facts.addresses.iter().map(|address| address.value.as_str()).collect();
    assert_eq!(addresses, ["x", "192.0.2.10", "2001:db8::7"]);
    let status: Value = serde_json::from_str(&facts.status).unwrap();
    assert_eq!(status["vmStatus"], "ready");
    assert_eq!(status["virtualMachineID"], 104);
    assert_eq!(status["ipAddresses"], json!([{"net": "net0", "ipv4": ["192.0.2.10"]}]));
    let early = report(
        Some(state(|state| {
            state["started"] = false.into();
            state["status"] = "stopped".into();
        })),
        true,
    );
    assert_eq!((early.phase, early.provider_id), (Phase::Pending, None));
    let vanished = report(None, true);
    assert_eq!(vanished.conditions[0].reason.code, "VMNotFound");
    assert!(vanished.status.contains("notfound"));
    assert_eq!(report(None, false).conditions[0].reason.code, "Cloning");
}
