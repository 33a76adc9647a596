//! What is there already: watched, adopted, taken down; and the API's own words.

use super::*;

// ---- What is there ------------------------------------------------------------------------------------------------------

#[test]
fn a_settled_machine_costs_one_read_of_its_own() {
    let listed = json!({"data": [{"type": "qemu", "vmid": 104, "node": "pve1", "name": "c-w-1", "status": "running"}]});
    let observed = there(joined().answer(CONFIG, 200, config(|_| {})).answer(RESOURCES, 200, listed));
    assert!(observed.ready && observed.todo.is_empty() && observed.outdated.is_empty());
}

#[test]
fn a_vm_that_was_stopped_is_told_and_not_started_again() {
    let listed = json!({"data": [{"type": "qemu", "vmid": 104, "node": "pve1", "name": "c-w-1", "status": "stopped"}]});
    let observed = there(joined().answer(CONFIG, 200, config(|_| {})).answer(RESOURCES, 200, listed));
    assert!(observed.ready && observed.todo.is_empty());
    let mut later = joined();
    vm(&mut later).state = Some(observed.state);
    let (facts, _) = later.run(call::report_machine::<Proxmox>);
    let facts = facts.unwrap();
    assert_eq!(facts.phase, Phase::Stopped);
    assert_eq!(facts.provider_id, Some(format!("proxmox://{UUID}")));
    assert_eq!(facts.conditions[0].reason.code, "VMStopped");
}

#[test]
fn a_paused_vm_is_resumed_and_changed_values_are_outdated() {
    let current = json!({"data": {"status": "running", "qmpstatus": "paused"}});
    let observed = there(
        seen(scenario(), &running())
            .answer(CONFIG, 200, config(|config| config["cores"] = 1.into()))
            .answer(CURRENT, 200, current),
    );
    assert_eq!(todo(&observed), ["Resume"]);
    assert!(observed.outdated[0].message.contains("cores"));
}

#[test]
fn a_description_that_somebody_rewrote_does_not_make_it_foreign() {
    let rewritten = config(|config| config["description"] = "moved to rack 4".into());
    let presence =
        observe(seen(scenario(), &running()).answer(CONFIG, 200, rewritten).answer(CURRENT, 200, does("running")));
    assert!(matches!(presence, Ok(Presence::Present(_))), "{presence:?}");
    let exchanged = config(|config| {
        config["description"] = "mine".into();
        config["smbios1"] = "uuid=99999999-2222-4333-8444-555555555555".into();
    });
    assert!(matches!(observe(seen(scenario(), &running()).answer(CONFIG, 200, exchanged)), Ok(Presence::Foreign(_))));
}

#[test]
fn what_capmox_made_is_taken_over_by_its_uuid() {
    let adopted = |number: Value, name: &str| {
        let mut scenario = joined();
        scenario.known.clear();
        let mut spec: Value = serde_json::from_str(&scenario.spec).unwrap();
        if !number.is_null() {
            spec["virtualMachineID"] = number;
        }
        scenario.spec = spec.to_string();
        scenario.answer(
            RESOURCES,
            200,
            json!({"data": [{"type": "qemu", "vmid": 104, "node": "pve1", "name": name, "status": "running"}]}),
        )
    };
    let plain = || config(|config| config["description"] = "a node".into());
    let shared = |scenario: Scenario| {
        scenario.answer(
            RESOURCES,
            200,
            json!({"data": [{"type": "qemu", "vmid": 104, "node": "pve1", "status": "running"}]}),
        )
    };
    for scenario in [adopted(json!(104), "renamed"), adopted(Value::Null, "c-w-1")] {
        let observed = there(shared(scenario.answer(CONFIG, 200, plain())));
        assert_eq!(observed.id, "104");
        assert!(observed.ready && observed.todo.is_empty());
    }
    let other = config(|config| config["smbios1"] = "uuid=99999999-2222-4333-8444-555555555555".into());
    assert_eq!(observe(adopted(json!(104), "c-w-1").answer(CONFIG, 200, other)), Ok(Presence::absent_by_key()));
    let anothers = config(|config| config["description"] = "capstan.dev/owner-key: other".into());
    assert!(matches!(observe(adopted(json!(104), "c-w-1").answer(CONFIG, 200, anothers)), Ok(Presence::Foreign(_))));
    // And one that is not there is not made anew.
    let (choice, _) = {
        let mut scenario = joined();
        scenario.known.clear();
        scenario.run(|| call::identify::<Proxmox>(VM, &[]))
    };
    assert!(matches!(choice, Err(Error::Conflict(_))));
}

// ---- The way down -------------------------------------------------------------------------------------------------------

#[test]
fn capmox_742_a_vm_is_stopped_then_destroyed_and_each_task_is_awaited() {
    let going = |state: &VmState| {
        let mut scenario = seen(scenario(), state);
        scenario.machine.as_mut().unwrap().deleting = true;
        scenario
    };
    let (progress, sent) = going(&running())
        .answer("POST /api2/json/nodes/pve1/qemu/104/status/stop", 200, json!({"data": upid("pve1", "qmstop")}))
        .run(|| call::delete::<Proxmox>(VM));
    assert!(matches!(progress, Ok(Progress::Started { .. })));
    assert_eq!(sent[0].body, b"overrule-shutdown=1");
    let observed = there(
        with_operation(going(&running()), "pve1", "qmstop")
            .answer(&task("pve1", "qmstop"), 200, json!({"success": 1, "data": {"status": "running"}}))
            .answer(CONFIG, 200, config(|_| {}))
            .answer(CURRENT, 200, does("running")),
    );
    assert!(observed.operation.is_some(), "nothing is destroyed before it has stopped");
    let destroy = "DELETE /api2/json/nodes/pve1/qemu/104?purge=1&destroy-unreferenced-disks=1";
    let (progress, _) = going(&VmState { started: true, ..stopped() })
        .answer(destroy, 200, json!({"data": upid("pve1", "qmdestroy")}))
        .run(|| call::delete::<Proxmox>(VM));
    assert!(matches!(progress, Ok(Progress::Started { .. })));
    // One that fails is told, and tried again later.
    let observed = there(
        with_operation(going(&VmState { started: true, ..stopped() }), "pve1", "qmdestroy")
            .answer(&task("pve1", "qmdestroy"), 200, ended("can't remove VM 104 - protection mode enabled"))
            .answer(CONFIG, 200, config(|_| {}))
            .answer(CURRENT, 200, does("stopped")),
    );
    let (progress, sent) = going(&state_of(&observed)).run(|| call::delete::<Proxmox>(VM));
    assert!(matches!(progress, Err(Error::Transient(why)) if why.message.contains("protection mode")));
    assert!(sent.is_empty());
}

#[test]
fn the_order_of_parts_turns_round_on_the_way_down() {
    let names = |scenario: Scenario| {
        let (parts, _) = scenario.run(call::parts::<Proxmox>);
        parts.unwrap().into_iter().map(|part| (part.name, part.after)).collect::<Vec<_>>()
    };
    let part =
        |name: &str, after: &[&str]| (name.to_owned(), after.iter().map(|a| (*a).to_owned()).collect::<Vec<_>>());
    assert_eq!(names(scenario()), [part(VM, &[]), part(ISO, &[VM])]);
    assert_eq!(names(joined()), [part(VM, &[])]);
    let mut going = scenario().known(ISO, Known::default());
    going.machine.as_mut().unwrap().deleting = true;
    assert_eq!(names(going), [part(ISO, &[]), part(VM, &[ISO])]);
}

// ---- The API's own words ------------------------------------------------------------------------------------------------

#[test]
fn errors_say_what_the_api_said_and_what_to_do() {
    let refused = |status: u16, phrase: &str, body: Value| {
        let clone = "POST /api2/json/nodes/pve1/qemu/9000/clone";
        let (created, _) = scenario()
            .answer(FREE, 200, free())
            .answer_phrase(clone, status, phrase, body)
            .run(|| call::create::<Proxmox>(VM));
        created.unwrap_err()
    };
    let none = || json!({"data": null});
    let code = |error: &Error| match error {
        Error::Transient(why) | Error::Unauthorized(why) | Error::Conflict(why) => why.code.clone(),
        other => panic!("{other:?}"),
    };
    let denied = refused(403, "Permission check failed (/vms/9000, VM.Clone)", none());
    assert!(matches!(&denied, Error::Unauthorized(why) if why.message.contains("(/vms/9000, VM.Clone)")));
    assert!(matches!(refused(401, "permission denied - invalid PVE ticket", none()), Error::Unauthorized(_)));
    let wrong = json!({"data": null, "message": "Parameter verification failed.\n", "errors": {"storage": "invalid format - storage ID '!' contains illegal characters\n"}});
    let Error::Invalid(violations) = refused(400, "Parameter verification failed.", wrong) else { panic!() };
    let message = "cloning template 9000 of node pve1 as VM 104 of node pve1: storage: invalid format - storage ID '!' contains illegal characters";
    assert_eq!(violations, [Violation::new("/spec/storage", message)]);
    for (status, phrase, wanted) in [
        (500, "can't lock file '/var/lock/x' - got timeout", "Busy"),
        (500, "VM is locked (backup)", "Busy"),
        (500, "cluster not ready - no quorum?", "NoQuorum"),
        (500, "storage 'local': No space left on device", "StorageFull"),
        (595, "No route to host", "NodeUnreachable"),
        (599, "Too many redirections", "NodeUnreachable"),
        (503, "Service Unavailable", "NodeUnreachable"),
        (500, "something else", "ProxmoxError"),
    ] {
        let error = refused(status, phrase, none());
        assert_eq!(code(&error), wanted, "{phrase}");
        assert!(error.to_string().contains(phrase));
    }
    let never = refused(500, "can't clone to non-shared storage 'local-lvm'", none());
    assert!(matches!(never, Error::Invalid(_)));
}
