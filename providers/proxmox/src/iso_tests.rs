use std::collections::BTreeMap;

use capstan_provider::{
    Known,
    testing::{Scenario, TestMachine, infrastructure as call},
};

use super::*;
use crate::Proxmox;

const LIST: &str = "GET /api2/json/nodes/pve1/storage/nfs/content?content=iso";
const ASK: &str = "GET /api2/extjs/nodes/pve1/storage/nfs/content/nfs%3Aiso%2Fcapstan-owner-1.iso";
const VOLUME: &str = "nfs:iso/capstan-owner-1.iso";
const UPID: &str = "UPID:pve1:000003E9:00001B5F:00000001:imgcopy::capi@pve!t1:";
const TASK: &str = "GET /api2/extjs/nodes/pve1/tasks/UPID%3Apve1%3A000003E9%3A00001B5F%3A00000001%3Aimgcopy%3A%3Acapi%40pve%21t1%3A/status";
const CONFIG: &str = "GET /api2/extjs/nodes/pve2/qemu/104/config";

fn scenario() -> Scenario {
    let spec = json!({"sourceNode": "pve1", "templateID": 9000, "metadataSettings": {"providerIDInjection": true}});
    let mut scenario = Scenario::new("ProxmoxMachine", spec).secret("bootstrap-data", "#cloud-config\n# hunter2\n");
    scenario.name = "c-w-1".to_owned();
    scenario.now = 1_000_000;
    scenario.infrastructure_spec = Some(json!({"dnsServers": ["192.0.2.53"]}).to_string());
    scenario.machine = Some(TestMachine {
        name: "c-w-1".to_owned(),
        kubernetes_version: Some("v1.34.1".to_owned()),
        bootstrap_format: Some("cloud-config".to_owned()),
        ..TestMachine::default()
    });
    let vm = VmState {
        vmid: 104,
        node: "pve2".to_owned(),
        uuid: "11111111-2222-4333-8444-555555555555".to_owned(),
        macs: BTreeMap::from([("net0".to_owned(), "BC:24:11:00:00:01".to_owned())]),
        ..VmState::default()
    };
    let state = Some(serde_json::to_string(&vm).unwrap());
    scenario.known(VM, Known { id: Some("104".to_owned()), confirmed: true, state, ..Known::default() })
}

/// With the image on record.
fn chosen() -> Scenario {
    scenario().known(
        ISO,
        Known {
            id: Some(VOLUME.to_owned()),
            idempotency_key: "key".to_owned(),
            frozen: Some(json!({"node": "pve1", "storage": "nfs", "file": "capstan-owner-1.iso"}).to_string()),
            ..Known::default()
        },
    )
}

fn joined() -> Scenario {
    let mut scenario = chosen();
    scenario.machine.as_mut().unwrap().node_bound = true;
    scenario
}

fn vm(drive: &str) -> Value {
    json!({"success": 1, "data": {"description": "capstan.dev/owner-key: owner-1", "ide0": drive}})
}

#[test]
fn capmox_782_112_569_a_shared_storage_is_chosen_and_uploaded_to_by_the_node_that_serves_the_api() {
    let storages = json!({"data": [
        {"storage": "zfs", "active": 0, "shared": 1}, {"storage": "local", "active": 1, "shared": 0},
        {"storage": "nfs", "active": 1, "shared": 1}, {"storage": "smb", "active": 1, "shared": 1},
    ]});
    let ask = "GET /api2/json/nodes/pve2/storage?content=iso&enabled=1";
    let members = json!({"data": [{"type": "cluster", "name": "lab"}, {"type": "node", "name": "pve1", "local": 1},
        {"type": "node", "name": "pve2", "local": 0}]});
    let (choice, _) = scenario()
        .answer(ask, 200, storages)
        .answer("GET /api2/json/cluster/status", 200, members)
        .run(|| call::identify::<Proxmox>(ISO, &[]));
    let choice = choice.unwrap();
    assert_eq!(choice.id.as_deref(), Some(VOLUME));
    assert!(choice.frozen.contains("\"node\":\"pve1\""));
    // A storage of the node alone is written to on that node.
    let local = json!({"data": [{"storage": "local", "active": 1}]});
    let (choice, _) = scenario().answer(ask, 200, local).run(|| call::identify::<Proxmox>(ISO, &[]));
    assert!(choice.unwrap().frozen.contains("\"node\":\"pve2\""));
    let (choice, _) = scenario().answer(ask, 200, json!({"data": []})).run(|| call::identify::<Proxmox>(ISO, &[]));
    assert!(matches!(choice, Err(Error::Transient(why)) if why.code == "NoISOStorage"));
}

#[test]
fn proxmoxer_116_the_upload_has_the_shape_that_the_strict_reader_wants() {
    let (progress, sent) = chosen()
        .answer("POST /api2/json/nodes/pve1/storage/nfs/upload", 200, json!({"data": UPID}))
        .run(|| call::create::<Proxmox>(ISO));
    assert!(matches!(progress, Ok(Progress::Started { id: Some(id), .. }) if id == VOLUME));
    let body = String::from_utf8_lossy(&sent[0].body);
    assert!(
        body.starts_with(
            "--capstan-key\r\nContent-Disposition: form-data; name=\"content\"\r\n\r\niso\r\n--capstan-key\r\n\
             Content-Disposition: form-data; name=\"filename\"; filename=\"capstan-owner-1.iso\"\r\n\
             Content-Type: application/octet-stream\r\n\r\n"
        ),
        "{body}"
    );
    assert!(body.ends_with("\r\n--capstan-key--\r\n"));
    let header = ("content-type".to_owned(), "multipart/form-data; boundary=capstan-key".to_owned());
    assert!(sent[0].headers.contains(&header));
    // What cloud-init reads: the double packs a plain tar archive.
    for there in [
        "#cloud-config\n# hunter2\n",
        r#"{"instance-id":"11111111-2222-4333-8444-555555555555","local-hostname":"c-w-1","hostname":"c-w-1","provider-id":"proxmox://11111111-2222-4333-8444-555555555555","kubernetes-version":"v1.34.1"}"#,
        r#""match":{"macaddress":"bc:24:11:00:00:01"}"#,
    ] {
        assert!(body.contains(there), "{there} in {body}");
    }
}

#[test]
fn nothing_is_uploaded_before_there_is_what_to_upload() {
    let mut early = chosen();
    early.machine.as_mut().unwrap().bootstrap_format = None;
    let (progress, sent) = early.run(|| call::create::<Proxmox>(ISO));
    assert!(matches!(progress, Ok(Progress::Waiting(_))) && sent.is_empty());
    let mut odd = chosen();
    odd.machine.as_mut().unwrap().bootstrap_format = Some("ignition".to_owned());
    let (progress, _) = odd.run(|| call::create::<Proxmox>(ISO));
    assert!(matches!(progress, Err(Error::Invalid(why)) if why[0].message.contains("ignition")));
    let mut dry = chosen();
    dry.infrastructure_spec = Some(json!({"ipv4Config": {"addresses": ["192.0.2.9"], "prefix": 24}}).to_string());
    let (progress, _) = dry.run(|| call::create::<Proxmox>(ISO));
    assert!(matches!(progress, Ok(Progress::Waiting(why)) if why.code == "WaitingForStaticIPAllocation"));
}

#[test]
fn an_image_is_there_when_its_upload_has_ended_and_gone_when_two_answers_say_so() {
    let observe = |scenario: Scenario| scenario.run(|| call::observe::<Proxmox>(ISO)).0;
    let list = |volumes: Value| json!({"data": volumes});
    let mut running = chosen();
    running.known.get_mut(ISO).unwrap().operation = Some(UPID.to_owned());
    let uploading = json!({"success": 1, "data": {"status": "running"}});
    assert!(matches!(observe(running.clone().answer(TASK, 200, uploading)), Ok(Presence::Pending(_))));
    let full = json!({"success": 1, "data": {"status": "stopped", "exitstatus": "No space left on device"}});
    let none = json!({"success": 0, "status": 500, "message": "volume_size_info on 'x' failed - no format\n"});
    let presence =
        observe(running.answer(TASK, 200, full).answer(LIST, 200, list(json!([]))).answer(ASK, 200, none.clone()));
    assert!(matches!(&presence, Ok(Presence::Failed(_, why)) if why.code == "StorageFull"), "{presence:?}");
    // Its upload was not answered: it is whole when no upload runs any more.
    let seen = || chosen().answer(LIST, 200, list(json!([{"volid": VOLUME}])));
    let tasks = "GET /api2/json/cluster/tasks";
    let partial = observe(seen().answer(tasks, 200, json!({"data": [{"type": "imgcopy", "id": ""}]})));
    assert!(matches!(partial, Ok(Presence::Pending(_))), "{partial:?}");
    let ended = json!({"data": [{"type": "imgcopy", "id": "", "endtime": 1, "status": "OK"}]});
    let there = observe(seen().answer(tasks, 200, ended));
    assert!(matches!(there, Ok(Presence::Present(seen)) if seen.ready && seen.id == VOLUME));
    let gone = observe(chosen().answer(LIST, 200, list(json!([]))).answer(ASK, 200, none));
    assert_eq!(gone, Ok(Presence::absent_by_id()));
    for (status, body) in [(200, json!({"success": 0, "status": 500, "message": "got timeout"})), (403, json!({}))] {
        assert!(observe(chosen().answer(LIST, 200, list(json!([]))).answer(ASK, status, body)).is_err());
    }
    assert!(observe(chosen().answer(LIST, 500, json!({"message": "storage 'nfs' is not online"}))).is_err());
}

#[test]
fn capmox_73_the_image_leaves_the_drive_before_it_is_deleted() {
    let config = "POST /api2/json/nodes/pve2/qemu/104/config";
    let delete = "DELETE /api2/json/nodes/pve1/storage/nfs/content/nfs%3Aiso%2Fcapstan-owner-1.iso";
    let run = |scenario: Scenario| scenario.run(|| call::delete::<Proxmox>(ISO));
    let (progress, sent) = run(joined().answer(CONFIG, 200, vm(&format!("{VOLUME},media=cdrom,size=1M"))).answer(
        config,
        200,
        json!({"data": UPID}),
    ));
    assert!(matches!(progress, Ok(Progress::Started { .. })));
    assert_eq!(sent[1].body, b"ide0=none%2Cmedia%3Dcdrom");
    let (progress, _) =
        run(joined().answer(CONFIG, 200, vm("none,media=cdrom")).answer(delete, 200, json!({"data": null})));
    assert_eq!(progress, Ok(Progress::done(VOLUME)));
    // On the way down the virtual machine is gone already.
    let mut going = joined();
    going.machine.as_mut().unwrap().deleting = true;
    let (progress, _) = run(going.answer(delete, 200, json!({"data": null})));
    assert_eq!(progress, Ok(Progress::done(VOLUME)));
    let mut failed = joined();
    failed.known.get_mut(ISO).unwrap().state =
        Some(json!({"volume": VOLUME, "failed": [999_000, "imgdel: busy"]}).to_string());
    let (progress, sent) = run(failed);
    assert!(matches!(progress, Err(Error::Transient(why)) if why.message.contains("imgdel: busy")));
    assert!(sent.is_empty());
}
