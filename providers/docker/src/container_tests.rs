//! A container's life against a scripted engine.

use capstan_provider::{
    Known,
    testing::{Scenario, TestMachine, infrastructure},
};

use super::*;
use crate::{Docker, engine::tests::tar};

const NAME: &str = "c-m";

fn scenario(state: Option<&ContainerState>) -> Scenario {
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
                frozen: Some(r#"{"image":"i:1","failureDomain":null}"#.to_owned()),
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
        "Id": "id", "State": {"Status": if running { "running" } else { "created" }, "Running": running,
            "StartedAt": "2026-11-30T00:19:00Z"},
        "Config": {"Labels": {OWNER: "owner-1"}}, "ExecIDs": execs,
        "NetworkSettings": {"Networks": {"n": {"IPAddress": if running { "10.0.0.3" } else { "" }}}},
    })
}

fn observe(running: bool, files: [Option<&str>; 3], execs: &[(&str, Value)]) -> Observed {
    let ids: Vec<&str> = execs.iter().map(|(id, _)| *id).collect();
    let mut all = scenario(None).answer(&format!("GET /containers/{NAME}/json"), 200, inspected(running, &ids));
    for (path, file) in [boot::RESULT, boot::STARTED, boot::SCRIPT].into_iter().zip(files) {
        let asked = format!("GET /containers/{NAME}/archive?path={path}");
        all = match file {
            Some(text) => all.answer_bytes(&asked, 200, tar(text)),
            None => all.answer(&asked, 404, json!({"message": "no such file"})),
        };
    }
    for (id, exec) in execs {
        all = all.answer(&format!("GET /exec/{id}/json"), 200, exec.clone());
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
    assert_eq!(todo(&observe(false, [None, None, Some("#!")], &[])), [START]);
    let ours = |ended: Option<i64>| json!({"Running": false, "ExitCode": ended, "ProcessConfig": {"arguments": [boot::SCRIPT]}});
    assert_eq!(todo(&observe(true, [None, None, Some("#!")], &[("e0", ours(Some(0)))])), [PREPARE]);
    let ready_to_run = observe(true, [None, None, Some("#!")], &[("e0", json!({})), ("e1", ours(None))]);
    assert_eq!(todo(&ready_to_run), [RUN]);
    assert!(ready_to_run.state.contains("\"exec\":\"e1\"") && !ready_to_run.ready);
    let started = observe(true, [None, Some(""), Some("#!")], &[]);
    assert!(started.ready && started.todo.is_empty() && started.operation.is_some());
    let ended = observe(true, [Some("7 0003\n"), Some(""), Some("#!")], &[]);
    assert!(ended.ready && ended.todo.is_empty() && ended.operation.is_none());
    assert!(ended.state.contains(r#""boot":{"ended":{"code":7,"step":3}}"#), "{}", ended.state);
}

#[test]
fn a_node_that_has_joined_costs_one_read() {
    let mut joined = scenario(None).answer(&format!("GET /containers/{NAME}/json"), 200, inspected(true, &[]));
    joined.machine.as_mut().unwrap().node_bound = true;
    let (presence, sent) = joined.run(|| infrastructure::observe::<Docker>(CONTAINER));
    assert!(matches!(presence, Ok(Presence::Present(seen)) if seen.ready && seen.todo.is_empty()));
    assert_eq!(sent.len(), 1);
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
        overdue: false,
        exec: Some("e1".to_owned()),
    };
    let update = |scenario: Scenario, code: &str| {
        scenario.run(|| infrastructure::update::<Docker>(CONTAINER, &[Reason::new(code, "")]))
    };
    let mut with_boot = scenario(None).answer(&format!("PUT /containers/{NAME}/archive?path=/"), 200, json!({}));
    with_boot.boot_steps = vec![secrets_step()];
    let (done, sent) = update(with_boot, WRITE);
    assert_eq!(done, Ok(Progress::done(NAME)));
    let archive = String::from_utf8_lossy(&sent[0].body).into_owned();
    let (step, script) = (archive.find("boot/steps/0001").unwrap(), archive.find("boot/run.sh").unwrap());
    assert!(step < script && archive[step..script].contains("kubeadm join\n"));
    assert!(!archive.contains("boot/bin/kubeadm"));
    assert!(sent[0].headers.contains(&("content-type".to_owned(), "application/x-tar".to_owned())));

    let (_, sent) =
        update(scenario(None).answer(&format!("POST /containers/{NAME}/exec"), 201, json!({"Id": "e1"})), PREPARE);
    assert_eq!(sent[0].json()["Cmd"], json!(["/bin/sh", boot::SCRIPT]));
    let (done, sent) = update(scenario(Some(&state)).answer("POST /exec/e1/start", 200, json!({})), RUN);
    assert_eq!((done, &sent[0].json()["Detach"]), (Ok(Progress::done(NAME)), &json!(true)));
    let (done, _) = update(scenario(None).answer(&format!("POST /containers/{NAME}/start"), 304, json!({})), START);
    assert_eq!(done, Ok(Progress::done(NAME)));
}

fn secrets_step() -> capstan_provider::testing::BootStep {
    capstan_provider::testing::BootStep::Run(capstan_provider::testing::secret("kubeadm join"))
}

#[test]
fn a_container_is_made_on_the_clusters_network() {
    let create = || scenario(None).answer(&format!("POST /containers/create?name={NAME}"), 201, json!({"Id": "id"}));
    let (done, sent) = create().run(|| infrastructure::create::<Docker>(CONTAINER));
    assert_eq!(done, Ok(Progress::done(NAME)));
    let body = sent[0].json();
    assert_eq!(body["Hostname"], "m");
    assert_eq!(body["Labels"], json!({OWNER: "owner-1", CLUSTER: "c", ROLE: "worker"}));
    assert_eq!((&body["HostConfig"]["NetworkMode"], &body["HostConfig"]["Privileged"]), (&json!("n"), &json!(false)));
    assert_eq!(body.get("Volumes"), None);
    let mut kind = create();
    kind.spec = json!({"extraMounts": [{"containerPath": "/x", "hostPath": "/y", "readOnly": true}]}).to_string();
    let (_, sent) = kind.run(|| infrastructure::create::<Docker>(CONTAINER));
    let host = &sent[0].json()["HostConfig"];
    assert_eq!((&host["Privileged"], &host["Tmpfs"]["/run"]), (&json!(true), &json!("")));
    assert_eq!(host["Mounts"][0], json!({"Type": "bind", "Source": "/y", "Target": "/x", "ReadOnly": true}));
}

#[test]
fn names_images_and_foreign_containers() {
    let identify = |spec: Value, reserved: &[String]| {
        let mut scenario = scenario(None);
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
        .answer(&format!("GET /containers/{NAME}/json"), 200, other)
        .run(|| infrastructure::observe::<Docker>(CONTAINER));
    assert!(matches!(presence, Ok(Presence::Foreign(_))), "{presence:?}");
}

#[test]
fn what_is_reported() {
    let report = |state: ContainerState, bound: bool| {
        let mut scenario = scenario(Some(&state));
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
            .answer(&format!("DELETE /containers/{NAME}?force=true&v=true"), status, json!({"message": "m"}))
            .run(|| infrastructure::delete::<Docker>(CONTAINER))
            .0
    };
    assert_eq!(delete(204), Ok(Progress::done(NAME)));
    assert_eq!(delete(404), Ok(Progress::done(NAME)));
    assert!(matches!(delete(409), Ok(Progress::Waiting(_))));
    assert!(matches!(delete(500), Err(Error::Transient(_))));
}
