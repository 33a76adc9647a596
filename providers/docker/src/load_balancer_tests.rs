//! A load balancer's life against a scripted engine.

use capstan_provider::{
    Known, MachineSummary,
    testing::{Scenario, infrastructure},
};
use serde_json::Value;

use super::*;
use crate::{
    Docker,
    engine::tests::tar,
    haproxy::tests::machine,
    testing::{with_engine, with_image},
};

const NOW: u64 = 1_795_997_991_000;

const READ: &str = "GET /v1.41/containers/c-lb/archive?path=/usr/local/etc/haproxy";

fn machines() -> Vec<MachineSummary> {
    vec![machine("b", "10.0.0.4", false), machine("a", "10.0.0.3", false), machine("gone", "10.0.0.5", true)]
}

fn wanted() -> String {
    haproxy::configuration(&haproxy::servers(&machines()), API_PORT)
}

fn spec(endpoint: Value) -> Value {
    json!({"loadBalancer": {"imageRepository": "r/", "imageTag": "t"}, "controlPlaneEndpoint": endpoint})
}

fn bare(endpoint: Value) -> Scenario {
    let mut scenario = Scenario::new("DockerCluster", spec(endpoint))
        .known(
            NETWORK,
            Known {
                state: Some(r#"{"name":"n","loadBalancerAddress":"10.0.0.2","subnets":["10.0.0.0/20"]}"#.to_owned()),
                ..Known::default()
            },
        )
        .known(
            LOAD_BALANCER,
            Known {
                id: Some("c-lb".to_owned()),
                frozen: Some(r#"{"image":"r/haproxy:t","missingSince":null}"#.to_owned()),
                ..Known::default()
            },
        );
    scenario.machines = machines();
    scenario.now = NOW;
    scenario
}

fn scenario() -> Scenario {
    with_engine(bare(json!({})))
}

fn inspected(status: &str) -> Value {
    let running = status == "running";
    json!({
        "Id": "id",
        "State": {"Status": status, "Running": running || status == "restarting", "Restarting": status == "restarting",
            "ExitCode": i32::from(!running && status != "created"), "StartedAt": "2026-11-30T00:00:00Z"},
        "Config": {"Labels": {OWNER: "owner-1"}, "Tty": true},
        "NetworkSettings": {"Networks": {"n": {"IPAddress": if running { "10.0.0.2" } else { "" }}}},
    })
}

fn observe(container: Value, config: &str, loaded: &str, operation: Option<String>) -> Observed {
    let mut all = scenario();
    all.known.get_mut(LOAD_BALANCER).unwrap().operation = operation;
    let log = !["running", "created"].contains(&container["State"]["Status"].as_str().unwrap());
    all = all.answer("GET /v1.41/containers/c-lb/json", 200, container).answer_bytes(
        READ,
        200,
        tar(&[(CONFIG, config), (LOADED, loaded)]),
    );
    if log {
        let asked = "GET /v1.41/containers/c-lb/logs?stdout=true&stderr=true&tail=3";
        all = all.answer_bytes(asked, 200, b"[ALERT] out of memory\r\n".to_vec());
    }
    match all.run(|| infrastructure::observe::<Docker>(LOAD_BALANCER)).0 {
        Ok(Presence::Present(observed)) => observed,
        other => panic!("{other:?}"),
    }
}

fn todo(observed: &Observed) -> Vec<&str> {
    observed.todo.iter().map(|reason| reason.code.as_str()).collect()
}

fn update(scenario: Scenario, code: &str) -> (Result<Progress>, Vec<capstan_provider::testing::Sent>) {
    scenario.run(|| infrastructure::update::<Docker>(LOAD_BALANCER, &[Reason::new(code, "")]))
}

/// Cluster API's issue 10356: haproxy was told to load a configuration that was not there yet.
#[test]
fn cluster_api_10356_a_configuration_is_read_back_before_it_is_loaded() {
    let wanted = wanted();
    assert_eq!(todo(&observe(inspected("created"), "old", "old", None)), [WRITE]);
    assert_eq!(todo(&observe(inspected("created"), &wanted, &wanted, None)), [START]);
    assert_eq!(todo(&observe(inspected("running"), "old", "old", None)), [WRITE], "written and not there: once more");
    assert_eq!(todo(&observe(inspected("running"), &wanted, "old", None)), [LOAD]);
    assert_eq!(todo(&observe(inspected("running"), &wanted, "old", Some(token("another")))), [LOAD]);
    assert_eq!(todo(&observe(inspected("running"), &wanted, "old", Some(token(&wanted)))), [NOTE]);
    let settled = observe(inspected("running"), &wanted, &wanted, None);
    assert!(settled.ready && settled.todo.is_empty());
    assert!(settled.state.contains(r#""servers":["a","b"]"#), "{}", settled.state);
    // Seen once, it is not read again, until another list is wanted or another container has its place.
    let again = |change: &str, by: &str| {
        let mut all = scenario().answer("GET /v1.41/containers/c-lb/json", 200, inspected("running"));
        all.known.get_mut(LOAD_BALANCER).unwrap().state = Some(settled.state.replace(change, by));
        if change != by {
            all = all.answer_bytes(READ, 200, tar(&[(CONFIG, "old"), (LOADED, "old")]));
        }
        match all.run(|| infrastructure::observe::<Docker>(LOAD_BALANCER)).0 {
            Ok(Presence::Present(observed)) => observed.todo.len(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(again("", ""), 0);
    assert_eq!(again("\"id\":\"id\"", "\"id\":\"other\""), 1);
    assert_eq!(again("\"configuration\":\"loaded", "\"configuration\":\"other"), 1);
    let kill = "POST /v1.41/containers/c-lb/kill?signal=SIGHUP";
    let (progress, _) = update(scenario().answer(kill, 204, json!({})), LOAD);
    assert!(matches!(progress, Ok(Progress::Started { operation, .. }) if operation.token == token(&wanted)));
}

/// Cluster API's issue 8641: the image's own entry point has `-sf 7`, and with it haproxy stops at once, now and then.
#[test]
fn cluster_api_8641_the_entry_point_is_given() {
    let (_, sent) = with_image(scenario(), "r/haproxy:t")
        .answer("POST /v1.41/containers/create?name=c-lb", 201, json!({}))
        .run(|| infrastructure::create::<Docker>(LOAD_BALANCER));
    let body = sent.last().unwrap().json();
    assert_eq!(body["Entrypoint"], json!(["haproxy", "-W", "-db", "-f", "/usr/local/etc/haproxy/haproxy.cfg"]));
    assert_eq!(body["Image"], "r/haproxy:t");
}

/// Cluster API's issue 6459: one that ends again and again is not started again and again, and what it said is told.
#[test]
fn cluster_api_6459_a_load_balancer_that_crashes_is_not_started_in_a_loop() {
    let wanted = wanted();
    let mut crashed = inspected("exited");
    assert_eq!(todo(&observe(crashed.clone(), &wanted, &wanted, None)), [START], "it ran for long");
    crashed["State"]["StartedAt"] = "2026-11-30T00:19:50Z".into();
    let seen = observe(crashed, &wanted, &wanted, None);
    assert!(todo(&seen).is_empty() && !seen.ready, "it was started a second ago");
    assert!(seen.state.contains("ended with code 1; it said last: [ALERT] out of memory"), "{}", seen.state);
    let restarting = observe(inspected("restarting"), &wanted, &wanted, None);
    assert!(todo(&restarting).is_empty() && !restarting.ready, "the engine does that");
    // The configuration is there before the first start.
    let mut members = scenario();
    let state = r#"{"name":"c-lb","address":null,"running":false,"loaded":false,"trouble":""}"#;
    members.known.get_mut(LOAD_BALANCER).unwrap().state = Some(state.to_owned());
    let put = format!("PUT /v1.41/containers/c-lb/archive?path={DIRECTORY}");
    let (_, sent) = update(members.answer(&put, 200, json!({})), WRITE);
    let archive = String::from_utf8_lossy(&sent[1].body).into_owned();
    assert!(archive.contains("haproxy.cfg") && archive.contains("loaded.cfg"));
}

/// Cluster API's issues 7740, 5975 and 3973: what an earlier cluster of the same name left behind was taken for this one's.
#[test]
fn cluster_api_7740_5975_3973_a_load_balancer_of_an_earlier_cluster_is_not_ours() {
    let mut stale = inspected("exited");
    stale["Config"]["Labels"] = json!({CLUSTER: "c", ROLE: "external-load-balancer", OWNER: "owner-0"});
    let (presence, _) = scenario()
        .answer("GET /v1.41/containers/c-lb/json", 200, stale)
        .run(|| infrastructure::observe::<Docker>(LOAD_BALANCER));
    assert!(matches!(presence, Ok(Presence::Foreign(reason)) if reason.message.contains("c-lb")));
    let (choice, _) = with_image(scenario(), "r/haproxy:t")
        .run(|| infrastructure::identify::<Docker>(LOAD_BALANCER, &["c-lb".to_owned()]));
    assert_eq!(choice.unwrap().id.as_deref(), Some("t-c-lb"));
}

/// Field case A13: it is judged by whether it runs, and its address stays.
#[test]
fn field_case_a13_a_load_balancer_that_was_stopped_is_started() {
    let mut stopped = inspected("exited");
    stopped["State"]["ExitCode"] = 0.into();
    let seen = observe(stopped, &wanted(), &wanted(), None);
    assert_eq!(todo(&seen), [START]);
    assert!(!seen.ready);
    let mut all = bare(json!({"host": "10.0.0.2", "port": 6443}));
    let state = r#"{"name":"c-lb","address":"10.0.0.2","running":false,"loaded":false,"trouble":"x"}"#;
    all.known.get_mut(LOAD_BALANCER).unwrap().state = Some(state.to_owned());
    let facts = all.run(infrastructure::report_cluster::<Docker>).0.unwrap();
    assert_eq!(facts.control_plane_endpoint.map(|endpoint| endpoint.host).as_deref(), Some("10.0.0.2"));
    assert_eq!(facts.conditions[0].reason.code, "LoadBalancerNotRunning");
}

#[test]
fn the_endpoint_is_the_load_balancers_address_or_the_users() {
    let network = NetworkState {
        name: "n".to_owned(),
        load_balancer_address: Some("10.0.0.2".to_owned()),
        subnets: vec!["10.0.0.0/20".to_owned()],
    };
    let of = |endpoint: Value| Front::of(&serde_json::from_value(spec(endpoint)).unwrap(), &network);
    let text = |text: &str| Some(text.to_owned());
    let chosen = Front { port: 6443, host: None, address: text("10.0.0.2"), published: false };
    assert_eq!(of(json!({"host": "", "port": 0})), chosen);
    assert_eq!(of(json!({"port": 8443})), Front { port: 8443, ..chosen.clone() });
    let told = Front { host: text("10.0.0.9"), address: text("10.0.0.9"), ..chosen.clone() };
    assert_eq!(of(json!({"host": "10.0.0.9", "port": 6443})), told);
    let published = Front { host: text("192.0.2.1"), port: 8443, published: true, ..chosen };
    assert_eq!(of(json!({"host": "192.0.2.1", "port": 8443})), published);

    let create = |endpoint: Value| {
        let all = with_image(with_engine(bare(endpoint)), "r/haproxy:t");
        let all = all.answer("POST /v1.41/containers/create?name=c-lb", 201, json!({}));
        all.run(|| infrastructure::create::<Docker>(LOAD_BALANCER)).1.last().unwrap().json()
    };
    let body = create(json!({}));
    assert_eq!(body["NetworkingConfig"]["EndpointsConfig"]["n"]["IPAMConfig"]["IPv4Address"], "10.0.0.2");
    assert_eq!(body["HostConfig"]["PortBindings"], json!({}));
    let body = create(json!({"host": "engine.example", "port": 8443}));
    assert_eq!(body["HostConfig"]["PortBindings"], json!({"8443/tcp": [{"HostPort": "8443"}]}), "a port that stays");
}

#[test]
fn an_address_that_has_moved_is_told_and_the_endpoint_stays() {
    let mut all = bare(json!({"host": "10.0.0.2", "port": 6443}));
    let state = r#"{"name":"c-lb","address":"10.0.0.7","running":true,"loaded":true,"trouble":""}"#;
    all.known.get_mut(LOAD_BALANCER).unwrap().state = Some(state.to_owned());
    let facts = all.run(infrastructure::report_cluster::<Docker>).0.unwrap();
    assert_eq!(facts.control_plane_endpoint.map(|endpoint| endpoint.host).as_deref(), Some("10.0.0.2"));
    assert_eq!(facts.conditions[0].reason.code, "AddressMoved");
    assert!(facts.conditions[0].reason.message.contains("10.0.0.7"));
}

#[test]
fn a_port_that_is_taken_is_named() {
    let why = "driver failed: Bind for 0.0.0.0:8443 failed: port is already allocated";
    let start = "POST /v1.41/containers/c-lb/start";
    let (failed, _) = update(scenario().answer(start, 500, json!({"message": why})), START);
    let Err(Error::Transient(reason)) = failed else { panic!("{failed:?}") };
    assert_eq!(reason.code, "PortOrAddressTaken");
    assert!(reason.message.contains("0.0.0.0:8443"));
}
