use capstan_provider::{Kind, infrastructure::dispatch, versions::CONVERSION_DATA};
use serde_json::{Value, json};

use crate::{Proxmox, cluster::ProxmoxCluster, machine::ProxmoxMachine};

fn to(object: &Value, version: &str) -> Value {
    serde_json::from_str(&dispatch::convert::<Proxmox>(&object.to_string(), version).unwrap()).unwrap()
}

fn object(kind: &str, version: &str, spec: Value) -> Value {
    json!({"apiVersion": format!("infrastructure.cluster.x-k8s.io/{version}"), "kind": kind,
        "metadata": {"name": "o", "namespace": "n"}, "spec": spec})
}

fn pool(name: &str) -> Value {
    json!({"apiGroup": "ipam.cluster.x-k8s.io", "kind": "InClusterIPPool", "name": name})
}

/// A machine as users of `v1alpha1` write it.
fn machine() -> Value {
    object(
        "ProxmoxMachine",
        "v1alpha1",
        json!({
        "sourceNode": "pve1", "templateID": 100, "numCores": 4, "memoryMiB": 8192, "full": true, "format": "qcow2",
        "disks": {"bootVolume": {"disk": "scsi0", "sizeGb": 40}},
        "network": {
            "default": {"bridge": "vmbr0", "model": "virtio", "vlan": 7},
            "additionalDevices": [{"name": "net1", "bridge": "vmbr1", "ipv4PoolRef": pool("a"), "ipv6PoolRef": pool("b"),
                "routes": [{"to": "10.0.0.0/8", "via": "10.1.1.1"}]}]},
        "checks": {"skipCloudInitStatus": true}}),
    )
}

#[test]
fn a_machine_is_the_same_in_both_versions() {
    let old = machine();
    let new = to(&old, "v1alpha2");
    assert_eq!(
        new["spec"]["network"],
        json!({"networkDevices": [
            {"bridge": "vmbr0", "model": "virtio", "vlan": 7, "name": "net0"},
            {"name": "net1", "bridge": "vmbr1", "routes": [{"to": "10.0.0.0/8", "via": "10.1.1.1"}],
             "ipPoolRef": [pool("a"), pool("b")]}]})
    );
    assert_eq!(new["spec"]["disks"], old["spec"]["disks"]);
    assert_eq!(new["metadata"].get("annotations"), None, "nothing is lost");
    assert_eq!(to(&new, "v1alpha1"), old);
    let read: ProxmoxMachine = serde_json::from_value(new["spec"].clone()).unwrap();
    assert_eq!((read.network.network_devices.len(), read.template_id), (2, Some(100)));
    // And so is its template.
    let template = object("ProxmoxMachineTemplate", "v1alpha1", json!({"template": {"spec": old["spec"]}}));
    assert_eq!(to(&template, "v1alpha2")["spec"]["template"]["spec"], new["spec"]);
    assert_eq!(to(&to(&template, "v1alpha2"), "v1alpha1"), template);
}

#[test]
fn what_v1alpha1_cannot_say_comes_back() {
    let new = object(
        "ProxmoxMachine",
        "v1alpha2",
        json!({
        "templateSelector": {"matchTags": ["a"], "matchPolicy": "bestSubset"},
        "network": {"zone": "z", "networkDevices": [
            {"name": "net0", "bridge": "vmbr0", "queues": 4, "defaultIPv6": false, "ipPoolRef": [pool("x"), pool("y"), pool("z")]},
            {"name": "net1", "ipPoolRef": [pool("p-v6-icip")]}]}}),
    );
    let mut old = to(&new, "v1alpha1");
    assert_eq!(old["spec"]["templateSelector"], json!({"matchTags": ["a"]}));
    assert_eq!(
        old["spec"]["network"]["additionalDevices"],
        json!([{"name": "net1", "ipv6PoolRef": pool("p-v6-icip")}])
    );
    assert!(old["metadata"]["annotations"][CONVERSION_DATA].is_string());
    assert_eq!(to(&old, "v1alpha2"), new);
    // Whoever edits the old one changes that and nothing else.
    old["spec"]["network"]["default"]["bridge"] = json!("vmbr9");
    let mut expected = new.clone();
    expected["spec"]["network"]["networkDevices"][0]["bridge"] = json!("vmbr9");
    assert_eq!(to(&old, "v1alpha2"), expected);
    let cluster = object(
        "ProxmoxCluster",
        "v1alpha2",
        json!({"dnsServers": ["1.1.1.1"],
        "zoneConfig": [{"zone": "z", "ipv4Config": {"addresses": ["10.0.0.1"], "prefix": 24}}]}),
    );
    let old = to(&cluster, "v1alpha1");
    assert_eq!(old["spec"], json!({"dnsServers": ["1.1.1.1"]}));
    assert_eq!(to(&old, "v1alpha2"), cluster);
}

#[test]
fn a_family_that_only_v1alpha1_names_comes_back_too() {
    let mut old = machine();
    old["spec"]["network"]["additionalDevices"] =
        json!([{"name": "net1", "bridge": "b", "ipv6PoolRef": pool("plain")}]);
    let new = to(&old, "v1alpha2");
    assert_eq!(new["spec"]["network"]["networkDevices"][1]["ipPoolRef"], json!([pool("plain")]));
    assert_eq!(to(&new, "v1alpha1"), old);
}

#[test]
fn status_is_shown_in_the_words_of_the_version() {
    let mut new = object("ProxmoxMachine", "v1alpha2", json!({}));
    new["status"] = json!({"vmStatus": "ready", "proxmoxNode": "pve1",
        "ipAddresses": [{"net": "net0", "ipv4": ["10.0.0.5"], "ipv6": ["fd00::5"]}]});
    let old = to(&new, "v1alpha1");
    assert_eq!(old["status"]["ipAddresses"], json!({"net0": {"ipv4": "10.0.0.5", "ipv6": "fd00::5"}}));
    assert_eq!(to(&old, "v1alpha2"), new);
    let mut new = object("ProxmoxCluster", "v1alpha2", json!({}));
    new["status"] = json!({"ready": true, "inClusterIPPoolRef": [{"name": "p"}],
        "failureDomains": [{"name": "pve1", "controlPlane": true}]});
    let old = to(&new, "v1alpha1");
    let expected = json!({"ready": true, "inClusterIpPoolRef": [{"name": "p"}], "failureDomains": {"pve1": {"controlPlane": true}}});
    assert_eq!(old["status"], expected);
    assert_eq!(to(&old, "v1alpha2"), new);
}

#[test]
fn an_old_machine_is_judged_by_the_rules_of_the_new() {
    let judge = |object: &Value| dispatch::validate::<Proxmox>(None, &object.to_string());
    assert_eq!(judge(&machine()), []);
    let mut wrong = machine();
    wrong["spec"]["network"]["additionalDevices"][0]["name"] = json!("eth5");
    assert_eq!(judge(&wrong)[0].path, "/spec/network/networkDevices/1/name");
    wrong = machine();
    wrong["spec"]["templateSelector"] = json!({"matchTags": ["a"]});
    assert_eq!(judge(&wrong)[0].path, "/spec/templateID");
    wrong["apiVersion"] = json!("infrastructure.cluster.x-k8s.io/v1beta9");
    assert_eq!(judge(&wrong)[0].path, "/apiVersion");
}

#[test]
fn both_versions_are_in_the_definition() {
    for crd in [ProxmoxMachine::CRD, ProxmoxCluster::CRD] {
        let crd: Value = serde_json::from_str(crd).unwrap();
        let versions: Vec<_> =
            crd["versions"].as_array().unwrap().iter().map(|v| (&v["name"], &v["storage"])).collect();
        assert_eq!(versions, [(&json!("v1alpha2"), &json!(true)), (&json!("v1alpha1"), &json!(false))]);
    }
}
