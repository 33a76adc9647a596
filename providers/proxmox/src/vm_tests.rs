//! Rows of the trap table (see the names) and field cases A14 and A25, as far as they are the provider's.

use capstan_provider::{
    Phase, Violation,
    testing::{Scenario, TestMachine, infrastructure as call},
};
use serde_json::{Value, json};

use super::*;
use crate::Proxmox;

#[path = "vm_there_tests.rs"]
mod there_tests;

const UUID: &str = "11111111-2222-4333-8444-555555555555";
const CONFIG: &str = "GET /api2/extjs/nodes/pve1/qemu/104/config";
const CURRENT: &str = "GET /api2/json/nodes/pve1/qemu/104/status/current";
const RESOURCES: &str = "GET /api2/json/cluster/resources?type=vm";
const FREE: &str = "GET /api2/json/cluster/nextid?vmid=104";

fn upid(node: &str, kind: &str) -> String {
    format!("UPID:{node}:000003E9:00001B5F:00000001:{kind}:104:capi@pve!t1:")
}

fn task(node: &str, kind: &str) -> String {
    let encoded = upid(node, kind).replace(':', "%3A").replace('@', "%40").replace('!', "%21");
    format!("GET /api2/extjs/nodes/{node}/tasks/{encoded}/status")
}

fn ended(exit: &str) -> Value {
    json!({"success": 1, "data": {"status": "stopped", "exitstatus": exit}})
}

fn spec() -> Value {
    json!({"sourceNode": "pve1", "templateID": 9000, "numCores": 2, "memoryMiB": 2048})
}

/// A machine on its way up, whose number 104 is on record.
fn scenario() -> Scenario {
    let mut scenario = Scenario::new("ProxmoxMachine", spec());
    scenario.name = "c-w-1".to_owned();
    scenario.now = 1_000_000;
    scenario.infrastructure_spec = Some(json!({"dnsServers": ["192.0.2.53"]}).to_string());
    scenario.machine = Some(TestMachine {
        name: "c-w-1".to_owned(),
        bootstrap_format: Some("cloud-config".to_owned()),
        ..TestMachine::default()
    });
    let frozen = Frozen { node: "pve1".to_owned(), source_node: "pve1".to_owned(), template: 9000 };
    scenario.known(
        VM,
        Known {
            id: Some("104".to_owned()),
            frozen: Some(serde_json::to_string(&frozen).unwrap()),
            idempotency_key: "key".to_owned(),
            ..Known::default()
        },
    )
}

fn vm(scenario: &mut Scenario) -> &mut Known {
    scenario.known.get_mut(VM).unwrap()
}

fn with_operation(mut scenario: Scenario, node: &str, kind: &str) -> Scenario {
    vm(&mut scenario).operation = Some(upid(node, kind));
    scenario
}

/// Seen before in this state.
fn seen(mut scenario: Scenario, state: &VmState) -> Scenario {
    let known = vm(&mut scenario);
    known.confirmed = true;
    known.state = Some(serde_json::to_string(state).unwrap());
    scenario
}

fn stopped() -> VmState {
    VmState {
        vmid: 104,
        node: "pve1".to_owned(),
        uuid: UUID.to_owned(),
        status: "stopped".to_owned(),
        ..VmState::default()
    }
}

fn running() -> VmState {
    VmState { status: "running".to_owned(), started: true, ..stopped() }
}

/// One whose node has joined.
fn joined() -> Scenario {
    let mut scenario = seen(scenario(), &running());
    let mut spec = spec();
    spec["providerID"] = format!("proxmox://{UUID}").into();
    scenario.spec = spec.to_string();
    scenario.machine.as_mut().unwrap().node_bound = true;
    scenario
}

fn config(change: impl FnOnce(&mut Value)) -> Value {
    let mut config = json!({"name": "c-w-1", "description": "capstan.dev/owner-key: owner-1", "cores": 2, "sockets": 1,
        "memory": "2048", "net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0", "scsi0": "s:vm-104-disk-0,size=4G",
        "smbios1": format!("uuid={UUID}"), "digest": "d1", "boot": "order=scsi0"});
    change(&mut config);
    json!({"success": 1, "data": config})
}

fn gone() -> Value {
    json!({"success": 0, "status": 500, "data": null,
        "message": "Configuration file 'nodes/pve1/qemu-server/104.conf' does not exist\n"})
}

fn does(status: &str) -> Value {
    json!({"data": {"status": status, "qmpstatus": status}})
}

fn free() -> Value {
    json!({"data": "104"})
}

fn taken() -> Value {
    json!({"data": null, "message": "Parameter verification failed.", "errors": {"vmid": "VM 104 already exists"}})
}

fn observe(scenario: Scenario) -> Result<Presence> {
    scenario.run(|| call::observe::<Proxmox>(VM)).0
}

fn there(scenario: Scenario) -> Observed {
    match observe(scenario) {
        Ok(Presence::Present(observed)) => observed,
        other => panic!("{other:?}"),
    }
}

fn todo(observed: &Observed) -> Vec<&str> {
    observed.todo.iter().map(|reason| reason.code.as_str()).collect()
}

fn state_of(observed: &Observed) -> VmState {
    serde_json::from_str(&observed.state).unwrap()
}

// ---- Numbers: A14, CAPMOX 842 and 856 --------------------------------------------------------------------------------

#[test]
fn a14_capmox_842_a_number_that_was_taken_meanwhile_is_not_cloned_to_and_not_adopted() {
    let (created, sent) = scenario().answer(FREE, 400, taken()).run(|| call::create::<Proxmox>(VM));
    assert!(matches!(created, Err(Error::Transient(reason)) if reason.code == "VMIDTaken"));
    assert_eq!(sent.len(), 1, "nothing that changes anything was sent");
    let theirs = config(|config| config["description"] = "capstan.dev/owner-key: other".into());
    assert!(matches!(observe(scenario().answer(CONFIG, 200, theirs)), Ok(Presence::Foreign(_))));
    let a_persons = config(|config| config["description"] = "my own machine".into());
    assert!(matches!(observe(scenario().answer(CONFIG, 200, a_persons)), Ok(Presence::Foreign(_))));
}

#[test]
fn a14_the_name_that_a_clone_has_before_it_is_whole_is_not_taken_for_a_foreign_vm() {
    let young = || json!({"success": 1, "data": {"lock": "clone", "name": "Copy-of-VM-tmpl"}});
    let presence = observe(scenario().answer(CONFIG, 200, young()));
    assert!(matches!(presence, Ok(Presence::Pending(_))), "{presence:?}");
    let presence = observe(
        with_operation(scenario(), "pve1", "qmclone")
            .answer(&task("pve1", "qmclone"), 200, json!({"success": 1, "data": {"status": "running"}}))
            .answer(CONFIG, 200, young()),
    );
    assert!(matches!(presence, Ok(Presence::Pending(operation)) if operation.token.starts_with("UPID:")));
    // Ours, and not whole: it would be gone again if the clone failed.
    let ours = config(|config| config["lock"] = "clone".into());
    assert!(matches!(observe(scenario().answer(CONFIG, 200, ours)), Ok(Presence::Pending(_))));
}

#[test]
fn capmox_856_a_clone_that_failed_lets_go_of_its_number_and_the_winner_is_left_alone() {
    let failed = |next: fn(Scenario) -> Scenario| {
        let scenario = with_operation(scenario(), "pve1", "qmclone").answer(
            &task("pve1", "qmclone"),
            200,
            ended("unable to create VM 104: config file already exists"),
        );
        observe(next(scenario))
    };
    let presence = failed(|scenario| {
        scenario.answer(CONFIG, 200, config(|config| config["description"] = "capstan.dev/owner-key: winner".into()))
    });
    assert!(matches!(presence, Ok(Presence::Foreign(_))), "{presence:?}");
    let presence = failed(|scenario| {
        scenario.answer(CONFIG, 200, gone()).answer(RESOURCES, 200, json!({"data": []})).answer(FREE, 200, free())
    });
    assert!(
        matches!(&presence, Ok(Presence::Failed(Absence::LookedUpById, why)) if why.message.contains("already exists")),
        "{presence:?}"
    );
}

#[test]
fn a_number_of_what_cannot_be_seen_is_foreign_only_where_ours_would_be_seen() {
    let denied = || json!({"success": 0, "status": 403, "message": "Permission check failed (/vms/104, VM.Audit)"});
    let hidden = |pool: Value, rights: Value, tasks: Value| {
        let mut scenario = scenario();
        let mut spec = spec();
        spec["pool"] = pool.clone();
        if pool.is_null() {
            spec.as_object_mut().unwrap().remove("pool");
        }
        scenario.spec = spec.to_string();
        let path = if pool.is_null() { "/vms/104".to_owned() } else { format!("/pool/{}", pool.as_str().unwrap()) };
        let mut scenario = scenario
            .answer(CONFIG, 200, denied())
            .answer(RESOURCES, 200, json!({"data": []}))
            .answer(FREE, 400, taken())
            .answer("GET /api2/json/cluster/tasks", 200, json!({"data": tasks}));
        if tasks == json!([]) {
            scenario = scenario.answer(
                &format!("GET /api2/json/access/permissions?path={path}"),
                200,
                json!({"data": rights}),
            );
        }
        observe(scenario)
    };
    let rights = json!({"/pool/a": {"VM.Audit": 1}});
    assert!(matches!(hidden(json!("a"), rights.clone(), json!([])), Ok(Presence::Foreign(_))));
    let unsure = hidden(Value::Null, json!({}), json!([]));
    assert!(matches!(&unsure, Err(Error::Unauthorized(why)) if why.message.contains("VM.Audit")), "{unsure:?}");
    // A clone that runs joins its pool at the end only.
    let cloning = json!([{"type": "qmclone", "id": "9000", "upid": "u"}]);
    assert!(matches!(hidden(json!("a"), rights, cloning), Ok(Presence::Pending(_))));
}

// ---- Absence: A25, CAPMOX 31 and 265 ------------------------------------------------------------------------------------

#[test]
fn a25_capmox_31_265_only_a_clear_answer_is_absence() {
    let known = || seen(scenario(), &running());
    // (iii) a 500 that says nothing, (iv) a refused token, a lost node, (v) empty answers.
    for (status, body) in [
        (500, json!({"data": null})),
        (401, json!({"data": null})),
        (595, json!({"data": null})),
        (200, json!({"data": []})),
        (200, json!({"success": 0, "status": 500, "message": "got timeout\n", "data": null})),
    ] {
        let presence = observe(known().answer(CONFIG, status, body.clone()));
        assert!(presence.is_err(), "{status} {body}: {presence:?}");
    }
    // An empty list and a number that is still taken: the token has lost its rights.
    let presence = observe(known().answer(CONFIG, 200, gone()).answer(RESOURCES, 200, json!({"data": []})).answer(
        FREE,
        400,
        taken(),
    ));
    assert!(matches!(&presence, Err(Error::Transient(why)) if why.code == "VMNotVisible"), "{presence:?}");
    let presence = observe(known().answer(CONFIG, 200, gone()).answer(RESOURCES, 200, json!({"data": []})).answer(
        FREE,
        200,
        json!({"data": []}),
    ));
    assert!(presence.is_err(), "{presence:?}");
    // (vi)
    let presence = observe(known().answer(CONFIG, 200, gone()).answer(RESOURCES, 200, json!({"data": []})).answer(
        FREE,
        200,
        free(),
    ));
    assert_eq!(presence, Ok(Presence::absent_by_id()));
    // Without extjs, in the reason phrase alone.
    let phrase = "Configuration file 'nodes/pve1/qemu-server/104.conf' does not exist";
    let presence = observe(
        known()
            .answer_phrase(CONFIG, 500, phrase, json!({"data": null}))
            .answer(RESOURCES, 200, json!({"data": []}))
            .answer(FREE, 200, free()),
    );
    assert_eq!(presence, Ok(Presence::absent_by_id()));
}

#[test]
fn a_vm_that_has_moved_is_found_where_it_is() {
    let listed = json!({"data": [{"type": "qemu", "vmid": 104, "node": "pve2", "name": "c-w-1", "status": "running"}]});
    let observed = there(
        seen(scenario(), &running())
            .answer(CONFIG, 200, gone())
            .answer(RESOURCES, 200, listed)
            .answer("GET /api2/extjs/nodes/pve2/qemu/104/config", 200, config(|_| {}))
            .answer("GET /api2/json/nodes/pve2/qemu/104/status/current", 200, does("running")),
    );
    assert_eq!(state_of(&observed).node, "pve2");
}

// ---- The way up -------------------------------------------------------------------------------------------------------

#[test]
fn capmox_848_with_nothing_to_configure_it_goes_on() {
    let observed = there(scenario().answer(CONFIG, 200, config(|_| {})).answer(CURRENT, 200, does("stopped")));
    assert!(observed.ready && observed.todo.is_empty());
    let iso = |scenario: Scenario| {
        scenario
            .known(ISO, Known { id: Some("s:iso/capstan-owner-1.iso".to_owned()), confirmed: true, ..Known::default() })
    };
    let observed = there(iso(scenario()).answer(CONFIG, 200, config(|_| {})).answer(CURRENT, 200, does("stopped")));
    assert_eq!(todo(&observed), ["AttachBootstrapData"]);
    let attached = config(|config| config["ide0"] = "s:iso/capstan-owner-1.iso,media=cdrom,size=1M".into());
    let observed = there(iso(scenario()).answer(CONFIG, 200, attached).answer(CURRENT, 200, does("stopped")));
    assert_eq!(todo(&observed), ["Start"]);
}

#[test]
fn capmox_225_the_boot_order_of_the_template_stays() {
    let scenario = seen(scenario(), &stopped())
        .known(ISO, Known { id: Some("s:iso/x.iso".to_owned()), confirmed: true, ..Known::default() })
        .answer("POST /api2/json/nodes/pve1/qemu/104/config", 200, json!({"data": upid("pve1", "qmconfig")}));
    let (progress, sent) = scenario.run(|| call::update::<Proxmox>(VM, &[Reason::new("AttachBootstrapData", "")]));
    assert!(matches!(progress, Ok(Progress::Started { .. })));
    assert_eq!(sent[0].body, b"ide0=s%3Aiso%2Fx.iso%2Cmedia%3Dcdrom");
}

#[test]
fn the_configuration_keeps_mac_addresses_and_is_told_what_it_was_made_from() {
    let mut wanted = scenario();
    let mut spec = spec();
    spec["memoryMiB"] = 4096.into();
    spec["tags"] = json!(["K8s"]);
    spec["network"] = json!({"networkDevices": [{"name": "net0", "bridge": "vmbr1", "vlan": 5}, {"name": "net1", "bridge": "vmbr2"}]});
    wanted.spec = spec.to_string();
    let observed = there(wanted.clone().answer(CONFIG, 200, config(|_| {})).answer(CURRENT, 200, does("stopped")));
    assert_eq!(todo(&observed), ["Configure"]);
    assert!(!observed.ready);
    let (_, sent) = seen(wanted, &stopped())
        .answer(CONFIG, 200, config(|config| config["tags"] = "capi".into()))
        .answer("POST /api2/json/nodes/pve1/qemu/104/config", 200, json!({"data": upid("pve1", "qmconfig")}))
        .run(|| call::update::<Proxmox>(VM, &[Reason::new("Configure", "")]));
    let body = String::from_utf8(sent[1].body.clone()).unwrap();
    assert!(body.starts_with("memory=4096&tags=capi%3Bk8s&net0=virtio%3DBC%3A24%3A11%3A00%3A00%3A01%2Cbridge%3Dvmbr1%2Ctag%3D5&net1=virtio%3D02%3A"), "{body}");
    assert!(body.ends_with("%2Cbridge%3Dvmbr2&digest=d1"), "{body}");
}

#[test]
fn a_disk_is_enlarged_once_whatever_the_storage_makes_of_it() {
    let mut small = scenario();
    let mut spec = spec();
    spec["disks"] = json!({"bootVolume": {"disk": "scsi0", "sizeGb": 20}});
    small.spec = spec.to_string();
    let observed = there(small.clone().answer(CONFIG, 200, config(|_| {})).answer(CURRENT, 200, does("stopped")));
    assert_eq!(todo(&observed), ["Resize"]);
    let (_, sent) = seen(small.clone(), &stopped())
        .answer("PUT /api2/json/nodes/pve1/qemu/104/resize", 200, json!({"data": upid("pve1", "resize")}))
        .run(|| call::update::<Proxmox>(VM, &observed.todo));
    assert_eq!(sent[0].body, b"disk=scsi0&size=20G");
    let observed = there(
        with_operation(seen(small.clone(), &stopped()), "pve1", "resize")
            .answer(&task("pve1", "resize"), 200, ended("OK"))
            .answer(CONFIG, 200, config(|_| {}))
            .answer(CURRENT, 200, does("stopped")),
    );
    assert!(observed.ready && observed.todo.is_empty());
    spec["disks"]["bootVolume"]["disk"] = "virtio0".into();
    small.spec = spec.to_string();
    let presence = observe(small.answer(CONFIG, 200, config(|_| {})).answer(CURRENT, 200, does("stopped")));
    let Err(Error::Invalid(violations)) = presence else { panic!("{presence:?}") };
    assert_eq!(violations[0].path, "/spec/disks/bootVolume/disk");
}

#[test]
fn a_vm_without_addresses_from_its_pools_waits_before_the_first_boot_data() {
    let mut scenario = scenario();
    scenario.infrastructure_spec = Some(
        json!({"dnsServers": ["192.0.2.53"], "ipv4Config": {"addresses": ["192.0.2.9"], "prefix": 24}}).to_string(),
    );
    let observed = there(scenario.clone().answer(CONFIG, 200, config(|_| {})).answer(CURRENT, 200, does("stopped")));
    assert!(!observed.ready && observed.todo.is_empty());
    let mut later = seen(scenario, &stopped());
    vm(&mut later).state = Some(observed.state);
    let (facts, _) = later.run(call::report_machine::<Proxmox>);
    let condition = facts.unwrap().conditions.remove(0);
    assert_eq!(condition.reason.code, "WaitingForStaticIPAllocation");
    assert!(condition.reason.message.contains("c-v4-icip"), "{}", condition.reason.message);
}

// ---- Tasks --------------------------------------------------------------------------------------------------------------

#[test]
fn a_task_is_asked_for_where_it_runs_and_warnings_are_a_success() {
    let observed = there(
        with_operation(scenario(), "pve3", "qmclone")
            .answer(&task("pve3", "qmclone"), 200, ended("WARNINGS: 1"))
            .answer(CONFIG, 200, config(|_| {}))
            .answer(CURRENT, 200, does("stopped")),
    );
    assert!(observed.ready);
}

#[test]
fn a_task_without_a_record_is_unknown_and_the_vm_tells() {
    let lost = json!({"success": 0, "status": 500, "message": "no such task\n", "data": null});
    let observed = there(
        with_operation(seen(scenario(), &stopped()), "pve1", "qmstart")
            .answer(&task("pve1", "qmstart"), 200, lost)
            .answer(CONFIG, 200, config(|_| {}))
            .answer(CURRENT, 200, does("running")),
    );
    assert!(state_of(&observed).started && observed.operation.is_none());
    // A node that does not answer is no lost record.
    let presence = observe(with_operation(seen(scenario(), &stopped()), "pve1", "qmstart").answer(
        &task("pve1", "qmstart"),
        595,
        json!({"data": null}),
    ));
    assert!(matches!(presence, Err(Error::Transient(why)) if why.code == "NodeUnreachable"));
}

#[test]
fn already_running_is_a_success() {
    let observed = there(
        with_operation(seen(scenario(), &VmState { next: Some(Step::Start), ..stopped() }), "pve1", "qmstart")
            .answer(&task("pve1", "qmstart"), 200, ended("VM 104 already running"))
            .answer(CONFIG, 200, config(|_| {}))
            .answer(CURRENT, 200, does("running")),
    );
    assert_eq!(state_of(&observed).failed, None);
    assert!(observed.todo.is_empty());
}

#[test]
fn capmox_389_a_task_that_fails_is_told_and_tried_again_ever_later() {
    let attached = || config(|config| config["ide0"] = "s:iso/x.iso,media=cdrom".into());
    let iso = Known { id: Some("s:iso/x.iso".to_owned()), confirmed: true, ..Known::default() };
    let said = "can't lock file '/var/lock/qemu-server/lock-104.conf' - got timeout";
    let mut state = stopped();
    let mut pauses = Vec::new();
    for _ in 0..3 {
        let observed = there(
            with_operation(seen(scenario(), &state), "pve1", "qmstart")
                .known(ISO, iso.clone())
                .answer(&task("pve1", "qmstart"), 200, ended(said))
                .answer(CONFIG, 200, attached())
                .answer(CURRENT, 200, does("stopped")),
        );
        assert_eq!(todo(&observed), ["Start"]);
        state = state_of(&observed);
        pauses.push(state.failed.as_ref().unwrap().again() - 1_000_000);
    }
    assert_eq!(pauses, [2_000, 4_000, 8_000]);
    let (progress, sent) = seen(scenario(), &state).run(|| call::update::<Proxmox>(VM, &[Reason::new("Start", "")]));
    assert!(matches!(progress, Err(Error::Transient(why)) if why.message.contains(said)));
    assert!(sent.is_empty());
    let (facts, _) = seen(scenario(), &state).run(call::report_machine::<Proxmox>);
    assert_eq!(facts.unwrap().conditions[0].reason.code, "PoweringOnFailed");
    let mut later = seen(scenario(), &state);
    later.now += 8_000;
    let (progress, _) = later
        .answer("POST /api2/json/nodes/pve1/qemu/104/status/start", 200, json!({"data": upid("pve1", "qmstart")}))
        .run(|| call::update::<Proxmox>(VM, &[Reason::new("Start", "")]));
    assert!(matches!(progress, Ok(Progress::Started { .. })));
}

#[test]
fn the_high_availability_manager_is_given_time() {
    let attached = || config(|config| config["ide0"] = "s:iso/x.iso,media=cdrom".into());
    let iso = Known { id: Some("s:iso/x.iso".to_owned()), confirmed: true, ..Known::default() };
    let observed = there(
        with_operation(seen(scenario(), &stopped()), "pve1", "hastart")
            .known(ISO, iso.clone())
            .answer(&task("pve1", "hastart"), 200, ended("OK"))
            .answer(CONFIG, 200, attached())
            .answer(CURRENT, 200, does("stopped")),
    );
    assert!(observed.todo.is_empty() && observed.operation.is_some());
    let mut late = seen(scenario(), &state_of(&observed)).known(ISO, iso);
    late.now += AWAITED + 1;
    let observed = there(late.answer(CONFIG, 200, attached()).answer(CURRENT, 200, does("stopped")));
    assert_eq!(todo(&observed), ["Start"]);
}

#[test]
fn a_locked_vm_is_waited_for() {
    let locked = || {
        config(|config| {
            config["lock"] = "backup".into();
            config["cores"] = 1.into();
        })
    };
    let observed = there(scenario().answer(CONFIG, 200, locked()).answer(CURRENT, 200, does("stopped")));
    assert!(observed.todo.is_empty() && observed.operation.is_some());
    let (progress, sent) =
        seen(scenario(), &VmState { lock: Some("backup".to_owned()), ..stopped() }).run(|| call::delete::<Proxmox>(VM));
    assert!(matches!(progress, Ok(Progress::Waiting(why)) if why.message.contains("qm unlock 104")));
    assert!(sent.is_empty());
}
