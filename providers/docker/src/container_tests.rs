//! A container's life against a scripted engine.

use capstan_provider::{
    Known,
    testing::{Scenario, TestMachine, infrastructure},
};

use super::*;
use crate::{
    Docker,
    engine::tests::tar,
    testing::{with_engine, with_image},
};

const NAME: &str = "c-m";

fn scenario(state: Option<&ContainerState>) -> Scenario {
    with_engine(bare(state))
}

/// A scenario in which nothing is asked.
fn bare(state: Option<&ContainerState>) -> Scenario {
    let mut scenario = Scenario::new("DockerMachine", json!({"customImage": "i:1", "privileged": false}))
        .machine(TestMachine {
            name: "m".to_owned(),
            bootstrap_format: Some("cloud-config".to_owned()),
            kubernetes_version: Some("v1.35.0".to_owned()),
            ..TestMachine::default()
        })
        .known(
            CONTAINER,
            Known {
                id: Some(NAME.to_owned()),
                frozen: Some(r#"{"image":"i:1","missingSince":null,"failureDomain":null}"#.to_owned()),
                state: state.map(|state| serde_json::to_string(state).unwrap()),
                ..Known::default()
            },
        );
    scenario.infrastructure_states.insert(NETWORK.to_owned(), r#"{"name":"n","loadBalancerAddress":null}"#.to_owned());
    scenario.now = 1_795_997_991_000;
    scenario
}

fn inspected(running: bool, execs: &[&str]) -> Value {
    json!({
        "Id": "id", "Created": "2026-11-30T00:18:00Z", "Path": "/usr/bin/kubeadm", "Args": ["node"], "State": {"Status": if running { "running" } else { "created" }, "Running": running,
            "StartedAt": "2026-11-30T00:19:00Z"},
        "Config": {"Labels": {OWNER: "owner-1"}}, "ExecIDs": execs,
        "NetworkSettings": {"Networks": {"n": {"IPAddress": if running { "10.0.0.3" } else { "" }}}},
    })
}

/// A container with these of the files that say how far its bootstrap data is: the result, begun, written.
fn with_progress(scenario: Scenario, files: [Option<&str>; 3]) -> Scenario {
    let asked = format!("GET /v1.41/containers/{NAME}/archive?path={}", boot::PROGRESS);
    let files = [boot::RESULT, boot::STARTED, boot::WRITTEN].into_iter().zip(files);
    let files: Vec<(&str, &str)> = files.filter_map(|(name, file)| Some((name, file?))).collect();
    if files.is_empty() {
        return scenario.answer(&asked, 404, json!({"message": "no such file"}));
    }
    scenario.answer_bytes(&asked, 200, tar(&files))
}

fn observe(running: bool, files: [Option<&str>; 3], execs: &[(&str, Value)]) -> Observed {
    let ids: Vec<&str> = execs.iter().map(|(id, _)| *id).collect();
    let mut all = scenario(None).answer(&format!("GET /v1.41/containers/{NAME}/json"), 200, inspected(running, &ids));
    all = with_progress(all, files);
    for (id, exec) in execs {
        all = all.answer(&format!("GET /v1.41/exec/{id}/json"), 200, exec.clone());
    }
    let (presence, _) = all.run(|| infrastructure::observe::<Docker>(CONTAINER));
    match presence {
        Ok(Presence::Present(observed)) => observed,
        other => panic!("{other:?}"),
    }
}

fn todo(observed: &Observed) -> Vec<&str> {
    observed.todo.iter().map(|reason| reason.code.as_str()).collect()
}

#[test]
fn the_steps_follow_what_is_in_the_container() {
    assert_eq!(todo(&observe(false, [None, None, None], &[])), [WRITE]);
    assert_eq!(todo(&observe(false, [None, None, Some("")], &[])), [START]);
    let ours = |ended: Option<i64>| json!({"Running": false, "ExitCode": ended, "ProcessConfig": {"arguments": [boot::SCRIPT]}});
    assert_eq!(todo(&observe(true, [None, None, Some("")], &[("e0", ours(Some(0)))])), [PREPARE]);
    let ready_to_run = observe(true, [None, None, Some("")], &[("e0", json!({})), ("e1", ours(None))]);
    assert_eq!(todo(&ready_to_run), [RUN]);
    assert!(ready_to_run.state.contains("\"exec\":\"e1\"") && !ready_to_run.ready);
    let started = observe(true, [None, Some(""), Some("")], &[]);
    assert!(started.ready && started.todo.is_empty() && started.operation.is_none());
    let ended = observe(true, [Some("7 0003\n"), Some(""), Some("")], &[]);
    assert!(ended.ready && ended.todo.is_empty() && ended.operation.is_none());
    assert!(ended.state.contains(r#""boot":{"ended":{"code":7,"step":3}}"#), "{}", ended.state);
}

#[test]
fn a_node_that_has_joined_costs_one_read() {
    let mut joined = scenario(None).answer(&format!("GET /v1.41/containers/{NAME}/json"), 200, inspected(true, &[]));
    joined.machine.as_mut().unwrap().node_bound = true;
    let (presence, sent) = joined.run(|| infrastructure::observe::<Docker>(CONTAINER));
    assert!(matches!(presence, Ok(Presence::Present(seen)) if seen.ready && seen.todo.is_empty()));
    assert_eq!(sent.len(), 2, "the other is the shared one for the engine's version");
}

#[test]
fn each_step_is_one_request() {
    let state = ContainerState {
        name: NAME.to_owned(),
        status: "running".to_owned(),
        running: true,
        trouble: String::new(),
        addresses: Vec::new(),
        boot: Boot::Written,
        booting: false,
        overdue: false,
        exec: Some("e1".to_owned()),
    };
    let update = |scenario: Scenario, code: &str| {
        scenario.run(|| infrastructure::update::<Docker>(CONTAINER, &[Reason::new(code, "")]))
    };
    let mut with_boot = scenario(None).answer(&format!("PUT /v1.41/containers/{NAME}/archive?path=/"), 200, json!({}));
    with_boot.boot_steps = vec![secrets_step()];
    let (done, sent) = update(with_boot, WRITE);
    assert_eq!(done, Ok(Progress::done(NAME)));
    let archive = String::from_utf8_lossy(&sent[1].body).into_owned();
    let (step, script) = (archive.find("boot/steps/0001").unwrap(), archive.find("boot/run.sh").unwrap());
    assert!(step < script && archive[step..script].contains("kubeadm join\n"));
    assert!(!archive.contains("boot/bin/kubeadm"));
    assert!(sent[1].headers.contains(&("content-type".to_owned(), "application/x-tar".to_owned())));

    let (_, sent) = update(
        scenario(None).answer(&format!("POST /v1.41/containers/{NAME}/exec"), 201, json!({"Id": "e1"})),
        PREPARE,
    );
    assert_eq!(sent[1].json()["Cmd"], json!(["/bin/sh", boot::SCRIPT]));
    let (done, sent) = update(scenario(Some(&state)).answer("POST /v1.41/exec/e1/start", 200, json!({})), RUN);
    assert_eq!((done, &sent[1].json()["Detach"]), (Ok(Progress::done(NAME)), &json!(true)));
    let (done, _) =
        update(scenario(None).answer(&format!("POST /v1.41/containers/{NAME}/start"), 304, json!({})), START);
    assert_eq!(done, Ok(Progress::done(NAME)));
}

fn secrets_step() -> capstan_provider::testing::BootStep {
    capstan_provider::testing::BootStep::Run(capstan_provider::testing::secret("kubeadm join"))
}

#[test]
fn a_container_is_made_on_the_clusters_network() {
    let create = || {
        with_image(scenario(None), "i:1").answer(
            &format!("POST /v1.41/containers/create?name={NAME}"),
            201,
            json!({"Id": "id"}),
        )
    };
    let (done, sent) = create().run(|| infrastructure::create::<Docker>(CONTAINER));
    assert_eq!(done, Ok(Progress::done(NAME)));
    let body = sent[2].json();
    assert_eq!(body["Hostname"], "m");
    assert_eq!(body["Labels"], json!({OWNER: "owner-1", CLUSTER: "c", ROLE: "worker"}));
    assert_eq!((&body["HostConfig"]["NetworkMode"], &body["HostConfig"]["Privileged"]), (&json!("n"), &json!(false)));
    assert_eq!(body.get("Volumes"), None);
    assert_eq!(body["NetworkingConfig"]["EndpointsConfig"]["n"], json!({}), "a network that is borrowed");
    let mut own = create();
    let network = r#"{"name":"n","loadBalancerAddress":"10.200.16.2","subnets":["10.200.16.0/20"]}"#;
    own.infrastructure_states.insert(NETWORK.to_owned(), network.to_owned());
    let (_, sent) = own.run(|| infrastructure::create::<Docker>(CONTAINER));
    let place = &sent[2].json()["NetworkingConfig"]["EndpointsConfig"]["n"]["IPAMConfig"]["IPv4Address"];
    assert!(place.as_str().unwrap().starts_with("10.200."), "{place}: an address that stays");
    let mut taken = inspected(false, &[]);
    taken["State"] = json!({"Status": "created", "Error": "Address already in use"});
    assert_eq!(replaced_at(&serde_json::from_value(taken).unwrap(), 1), Some(0));
    let mut kind = create();
    kind.spec = json!({"extraMounts": [{"containerPath": "/x", "hostPath": "/y", "readOnly": true}]}).to_string();
    let (_, sent) = kind.run(|| infrastructure::create::<Docker>(CONTAINER));
    let host = &sent[2].json()["HostConfig"];
    assert_eq!((&host["Privileged"], &host["Tmpfs"]["/run"]), (&json!(true), &json!("")));
    assert_eq!(host["Mounts"][0], json!({"Type": "bind", "Source": "/y", "Target": "/x", "ReadOnly": true}));
}

#[test]
fn names_images_and_foreign_containers() {
    let identify = |spec: Value, reserved: &[String]| {
        let mut scenario = with_image(scenario(None), "kindest/node:v1.35.0");
        scenario.spec = spec.to_string();
        scenario.run(|| infrastructure::identify::<Docker>(CONTAINER, reserved)).0.unwrap()
    };
    let choice = identify(json!({}), &[]);
    assert_eq!(choice.id.as_deref(), Some(NAME));
    assert!(choice.frozen.contains("kindest/node:v1.35.0"));
    assert_eq!(identify(json!({}), &[NAME.to_owned()]).id.as_deref(), Some("t-c-m"));
    let mut other = inspected(true, &[]);
    other["Config"]["Labels"] = json!({OWNER: "somebody"});
    let (presence, _) = scenario(None)
        .answer(&format!("GET /v1.41/containers/{NAME}/json"), 200, other)
        .run(|| infrastructure::observe::<Docker>(CONTAINER));
    assert!(matches!(presence, Ok(Presence::Foreign(_))), "{presence:?}");
}

#[test]
fn what_is_reported() {
    let report = |state: ContainerState, bound: bool| {
        let mut scenario = bare(Some(&state));
        scenario.machine.as_mut().unwrap().node_bound = bound;
        scenario.run(infrastructure::report_machine::<Docker>).0.unwrap()
    };
    let state = ContainerState {
        name: NAME.to_owned(),
        status: "running".to_owned(),
        running: true,
        trouble: String::new(),
        addresses: vec!["10.0.0.3".to_owned()],
        boot: Boot::Started,
        booting: false,
        overdue: false,
        exec: None,
    };
    let facts = report(state.clone(), false);
    assert_eq!(facts.phase, capstan_provider::Phase::Running);
    assert_eq!(facts.provider_id.as_deref(), Some("docker:////c-m"));
    assert_eq!(facts.node_name.as_deref(), Some("m"));
    assert_eq!(facts.addresses.len(), 2);
    assert_eq!(facts.conditions[1].ok, None);
    let failed = report(ContainerState { boot: Boot::Ended { code: 7, step: 3 }, ..state.clone() }, false);
    assert_eq!(failed.conditions[1].ok, Some(false));
    assert!(failed.conditions[1].reason.message.contains("step 3"));
    assert_eq!(
        report(ContainerState { overdue: true, ..state.clone() }, false).conditions[1].reason.code,
        "BootstrapTimedOut"
    );
    assert_eq!(report(ContainerState { overdue: true, ..state.clone() }, true).conditions[1].ok, Some(true));
    let stopped =
        report(ContainerState { running: false, addresses: Vec::new(), status: "exited".to_owned(), ..state }, true);
    assert_eq!(stopped.phase, capstan_provider::Phase::Stopped);
    assert_eq!(stopped.conditions[0].ok, Some(false));
}

#[test]
fn deletion_and_its_answers() {
    let delete = |status| {
        scenario(None)
            .answer(&format!("DELETE /v1.41/containers/{NAME}?force=true&v=true"), status, json!({"message": "m"}))
            .run(|| infrastructure::delete::<Docker>(CONTAINER))
            .0
    };
    assert_eq!(delete(204), Ok(Progress::done(NAME)));
    assert_eq!(delete(404), Ok(Progress::done(NAME)));
    assert!(matches!(delete(409), Ok(Progress::Waiting(_))));
    assert!(matches!(delete(500), Err(Error::Transient(_))));
}

/// Cluster API's issues 7740, 5975 and 3973: containers of an earlier cluster of the same name were taken for this one's.
#[test]
fn cluster_api_7740_5975_3973_a_container_of_an_earlier_cluster_is_not_ours() {
    let mut stale = inspected(false, &[]);
    stale["Config"]["Labels"] = json!({CLUSTER: "c", ROLE: "worker", OWNER: "owner-0"});
    let (presence, sent) = scenario(None)
        .answer(&format!("GET /v1.41/containers/{NAME}/json"), 200, stale)
        .run(|| infrastructure::observe::<Docker>(CONTAINER));
    assert!(matches!(presence, Ok(Presence::Foreign(reason)) if reason.message.contains(NAME)));
    assert_eq!(sent.len(), 2, "nothing of it is read");
    let (taken, _) = with_image(scenario(None), "i:1")
        .answer(&format!("POST /v1.41/containers/create?name={NAME}"), 409, json!({"message": "The name is in use."}))
        .run(|| infrastructure::create::<Docker>(CONTAINER));
    let Err(Error::Conflict(reason)) = taken else { panic!("{taken:?}") };
    assert!(reason.message.contains("The name is in use.") && reason.message.contains("docker rm c-m"));
}

/// Cluster API's issues 3004 and 3581: a machine whose bootstrap failed was made anew, and what had gone wrong with it was lost.
#[test]
fn cluster_api_3004_3581_a_bootstrap_that_failed_is_left_as_it_is() {
    let failed = observe(true, [Some("1 0002\n"), Some(""), Some("")], &[]);
    assert!(failed.todo.is_empty() && failed.state.contains(r#""ended":{"code":1,"step":2}"#), "{}", failed.state);
    let state: ContainerState = serde_json::from_str(&failed.state).unwrap();
    // It has a providerID from now on, and with that it is never replaced.
    let facts = bare(Some(&state)).run(infrastructure::report_machine::<Docker>).0.unwrap();
    assert_eq!(facts.provider_id.as_deref(), Some("docker:////c-m"));
    let mut known = bare(Some(&state));
    known.spec = json!({"customImage": "i:1", "privileged": false, "providerID": "docker:////c-m"}).to_string();
    assert!(!known.run(infrastructure::parts::<Docker>).0.unwrap()[0].replaceable);
    assert!(bare(None).run(infrastructure::parts::<Docker>).0.unwrap()[0].replaceable, "before that it is");
}

fn ended(status: &str, created: &str) -> Value {
    let mut container = inspected(false, &[]);
    container["Created"] = created.into();
    container["State"] = json!({"Status": status, "Running": status == "restarting", "Restarting": status == "restarting",
        "ExitCode": 1, "StartedAt": "2026-11-30T00:19:00Z"});
    container
}

fn look(container: Value, spec: Value, files: [Option<&str>; 3]) -> Observed {
    let mut all = scenario(None).answer(&format!("GET /v1.41/containers/{NAME}/json"), 200, container);
    all.spec = spec.to_string();
    all = with_progress(all, files);
    let asked = format!("GET /v1.41/containers/{NAME}/logs?stdout=true&stderr=true&tail=3");
    let all = all.answer_bytes(&asked, 200, b"\x02\0\0\0\0\0\0\x0dno such shell".to_vec());
    match all.run(|| infrastructure::observe::<Docker>(CONTAINER)).0 {
        Ok(Presence::Present(observed)) => observed,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_container_that_ends_before_its_bootstrap_is_replaced_but_not_at_once() {
    let written = [None, None, Some("")];
    let young = look(ended("exited", "2026-11-30T00:19:31Z"), json!({}), written);
    assert!(todo(&young).is_empty() && !young.ready);
    let state: ContainerState = serde_json::from_str(&young.state).unwrap();
    assert_eq!(
        state.trouble,
        "its command ended with code 1; it said last: no such shell; it is replaced at 2026-11-30T00:20:01Z"
    );
    assert_eq!(todo(&look(ended("exited", "2026-11-30T00:19:01Z"), json!({}), written)), [REPLACE]);
    assert_eq!(todo(&look(ended("restarting", "2026-11-30T00:19:01Z"), json!({}), [None; 3])), [REPLACE]);
    let delete = format!("DELETE /v1.41/containers/{NAME}?force=true&v=true");
    let replaced = scenario(None)
        .answer(&delete, 204, json!({}))
        .run(|| infrastructure::update::<Docker>(CONTAINER, &[Reason::new(REPLACE, "")]));
    assert_eq!(replaced.0, Ok(Progress::done(NAME)));
    assert_eq!(
        replaced_at(&serde_json::from_value(ended("exited", "2026-11-30T00:00:00Z")).unwrap(), 9),
        Some(1_795_997_100_000)
    );
}

#[test]
fn a_node_that_stops_is_told_and_neither_started_nor_replaced() {
    let spec = json!({"providerID": "docker:////c-m"});
    let stopped = look(ended("exited", "2026-11-30T00:00:00Z"), spec, [Some("0 0\n"), Some(""), Some("")]);
    assert!(todo(&stopped).is_empty() && !stopped.ready);
    let state: ContainerState = serde_json::from_str(&stopped.state).unwrap();
    let facts = bare(Some(&state)).run(infrastructure::report_machine::<Docker>).0.unwrap();
    assert_eq!(facts.phase, capstan_provider::Phase::Stopped);
    let provisioned = &facts.conditions[0];
    assert_eq!((provisioned.kind.as_str(), provisioned.ok), ("ContainerProvisioned", Some(false)));
    assert!(provisioned.reason.message.contains("no such shell"), "{}", provisioned.reason.message);
}

#[test]
fn a_node_that_is_gone_is_told() {
    let mut gone = bare(None);
    gone.known.get_mut(CONTAINER).unwrap().confirmed = true;
    let facts = gone.run(infrastructure::report_machine::<Docker>).0.unwrap();
    let condition = &facts.conditions[0];
    assert_eq!((condition.kind.as_str(), condition.ok), ("ContainerProvisioned", Some(false)));
    assert_eq!(condition.reason.code, "ContainerDeleted");
}

#[test]
fn an_image_with_a_system_of_its_own_boots_first() {
    let boots = |log: &str, started: &str| {
        let mut container = inspected(true, &[]);
        container["Path"] = "/usr/local/bin/entrypoint".into();
        container["Args"] = json!(["/sbin/init"]);
        container["State"]["StartedAt"] = started.into();
        container["Config"]["Tty"] = true.into();
        let mut all = scenario(None).answer(&format!("GET /v1.41/containers/{NAME}/json"), 200, container);
        all = with_progress(all, [None, None, Some("")]);
        let asked = format!("GET /v1.41/containers/{NAME}/logs?stdout=true&stderr=true&tail=2000");
        let all = all.answer_bytes(&asked, 200, log.as_bytes().to_vec());
        match all.run(|| infrastructure::observe::<Docker>(CONTAINER)).0 {
            Ok(Presence::Present(observed)) => observed,
            other => panic!("{other:?}"),
        }
    };
    let soon = "2026-11-30T00:19:00Z";
    let up = "\x1b[0m[  OK  ] Reached target \x1b[0;1;39mBasic\x1b[0m.\r\n[  OK  ] Reached target \x1b[0;1;39mMulti-User System\x1b[0m.\r\n";
    assert_eq!(todo(&boots(up, soon)), [PREPARE]);
    assert_eq!(todo(&boots("INFO: detected cgroup v1\n", soon)), [PREPARE]);
    let condition = |observed: Observed| {
        let state: ContainerState = serde_json::from_str(&observed.state).unwrap();
        let facts = bare(Some(&state)).run(infrastructure::report_machine::<Docker>).0.unwrap();
        assert_eq!(facts.provider_id, None);
        facts.conditions[1].clone()
    };
    let booting = boots("Reached target Basic System.\n Multi-User System", soon);
    assert!(todo(&booting).is_empty() && !booting.ready);
    assert_eq!(condition(booting).reason.code, "ContainerBooting");
    let late = condition(boots("", "2026-11-30T00:10:00Z"));
    assert_eq!((late.ok, late.reason.code.as_str()), (Some(false), "BootTimedOut"));
}

#[test]
fn an_image_that_is_missing_is_remembered_with_its_time() {
    let (choice, _) = scenario(None)
        .answer("GET /v1.41/images/i%3A1/json", 404, json!({"message": "No such image: i:1"}))
        .run(|| infrastructure::identify::<Docker>(CONTAINER, &[]));
    assert!(choice.unwrap().frozen.contains(r#""missingSince":1795997991000"#));
}

#[test]
fn a_mount_that_is_refused_is_told_and_tried_again() {
    let why = "invalid mount config for type \"bind\": bind source path does not exist: /y";
    let (failed, _) = with_image(scenario(None), "i:1")
        .answer(&format!("POST /v1.41/containers/create?name={NAME}"), 400, json!({"message": why}))
        .run(|| infrastructure::create::<Docker>(CONTAINER));
    let Err(Error::Transient(reason)) = failed else { panic!("{failed:?}") };
    assert_eq!(reason.code, "MountRefused");
    assert!(reason.message.contains("/y") && reason.message.contains("spec.extraMounts"));
    let refused = |spec: Value| {
        let object = json!({"kind": "DockerMachine", "spec": spec}).to_string();
        let violations = infrastructure::validate::<Docker>(None, &object);
        violations.into_iter().map(|violation| violation.path).collect::<Vec<_>>()
    };
    assert_eq!(
        refused(json!({"extraMounts": [{"hostPath": "/a", "containerPath": "b"}, {"containerPath": "/b"}]})),
        ["/spec/extraMounts/0/containerPath", "/spec/extraMounts/1/hostPath"]
    );
    assert_eq!(refused(json!({"preLoadImages": ["i"]})), ["/spec/preLoadImages"]);
    assert_eq!(refused(json!({"bootstrapTimeout": "soon"})), ["/spec/bootstrapTimeout"]);
}

/// Field case A25: only a clear word of the engine counts as gone.
#[test]
fn field_case_a25_only_not_found_is_gone() {
    let observe = |status, body: Value| {
        scenario(None)
            .answer(&format!("GET /v1.41/containers/{NAME}/json"), status, body)
            .run(|| infrastructure::observe::<Docker>(CONTAINER))
            .0
    };
    assert_eq!(observe(404, json!({"message": "No such container"})), Ok(Presence::absent_by_id()));
    for status in [401, 403, 500, 503] {
        assert!(observe(status, json!({"message": "no"})).is_err(), "{status}");
    }
    assert!(observe(200, json!([])).is_err(), "another shape");
}
