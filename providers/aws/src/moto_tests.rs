//! Against moto (tests/moto/serve.py, with what it lacks put before it), driven as the host drives a provider: look, then do what
//! comes first, one request at a time. Signatures are not checked here: the gateway makes them, and its tests and the leak tests run
//! with the checks on.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Mutex, MutexGuard, OnceLock},
};

use capstan_provider::{
    Known, Phase, Presence, Progress,
    testing::{Exchange, Scenario, Sent, TestMachine, infrastructure},
};
use serde_json::{Value, json};

use crate::Aws;

/// moto in a process of its own.
struct Moto {
    process: Child,
    url: String,
    control: String,
}

static ADDRESS: Mutex<String> = Mutex::new(String::new());

/// One at a time: `None` where it is not installed.
fn moto() -> Option<(MutexGuard<'static, ()>, Moto)> {
    static TURN: OnceLock<Mutex<()>> = OnceLock::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let python = root.join("target/venv/bin/python");
    if !root.join("target/venv/bin/moto_server").exists() {
        eprintln!("no moto in target/venv (run tests/setup.sh): nothing is tested against it");
        return None;
    }
    let turn = TURN.get_or_init(Mutex::default).lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut process = Command::new(python)
        .arg(root.join("tests/moto/serve.py"))
        .arg("--open")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let up: Value = serde_json::from_str(&line).expect("moto does not start");
    let text = |name: &str| up[name].as_str().unwrap().to_owned();
    let moto = Moto { process, url: text("url"), control: text("control") };
    *ADDRESS.lock().unwrap() = moto.url.trim_start_matches("http://").to_owned();
    Some((turn, moto))
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Moto {
    fn control(&self, request: &str, body: &str) -> Value {
        let answer = exchange(self.control.trim_start_matches("http://"), request, &[], body.as_bytes());
        assert_eq!(answer.status, 200, "{request}");
        serde_json::from_slice(&answer.body).unwrap()
    }

    fn left(&self) -> Vec<String> {
        serde_json::from_value(self.control("GET /left", "")).unwrap()
    }
}

fn exchange(address: &str, request: &str, headers: &[(String, String)], body: &[u8]) -> Exchange {
    let mut stream = TcpStream::connect(address).unwrap();
    let (method, target) = request.split_once(' ').unwrap();
    let mut head = format!(
        "{method} {target} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {}\r\n",
        body.len()
    );
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    stream.write_all(format!("{head}\r\n").as_bytes()).unwrap();
    stream.write_all(body).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let headers = head.lines().skip(1).filter_map(|line| line.split_once(": "));
    let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let body = answer[end + 4..].to_vec();
    Exchange { asked: request.to_owned(), status, headers, body, ..Exchange::default() }
}

/// As the gateway would send it, but for the signature.
fn transport(sent: &Sent) -> Exchange {
    let service = if sent.endpoint == "elb" { "elasticloadbalancing" } else { &sent.endpoint };
    let mut headers = sent.headers.clone();
    let scope = format!("20250101/us-east-1/{service}/aws4_request");
    let value = format!("AWS4-HMAC-SHA256 Credential=AKIATEST/{scope}, SignedHeaders=host, Signature=none");
    headers.push(("Authorization".to_owned(), value));
    exchange(&ADDRESS.lock().unwrap().clone(), &sent.asked, &headers, &sent.body)
}

fn action(sent: &Sent) -> String {
    let body = String::from_utf8_lossy(&sent.body);
    let query = body.split('&').find_map(|pair| pair.strip_prefix("Action="));
    let json = sent.headers.iter().find(|(name, _)| name == "x-amz-target").map(|(_, value)| value.as_str());
    query.or(json.and_then(|target| target.rsplit('.').next())).unwrap_or(&sent.asked).to_owned()
}

fn reads(action: &str) -> bool {
    ["Describe", "Get", "List", "HEAD"].iter().any(|verb| action.starts_with(verb))
}

/// What the host keeps of one object.
struct Desk {
    scenario: Scenario,
    sent: Vec<String>,
}

impl Desk {
    fn of(mut scenario: Scenario, name: &str) -> Self {
        scenario.transport = Some(transport);
        scenario.gzip = Some(|bytes| bytes[..bytes.len() / 3].to_vec());
        scenario.name = name.to_owned();
        scenario.owner_key = format!("{:032x}", capstan_provider::hash(name));
        Self { scenario, sent: Vec::new() }
    }

    fn call<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let (result, sent) = self.scenario.clone().run(call);
        let actions: Vec<String> = sent.iter().map(action).collect();
        assert!(
            actions.iter().filter(|action| !reads(action)).count() <= 1,
            "more than one change in a call: {actions:?}"
        );
        self.sent.extend(actions);
        result
    }

    fn changes(&self) -> Vec<&str> {
        self.sent.iter().map(String::as_str).filter(|action| !reads(action)).collect()
    }

    fn look(&mut self, part: &str) -> Presence {
        let presence = self.call(|| infrastructure::observe::<Aws>(part)).unwrap();
        if let Presence::Present(seen) = &presence {
            let known = self.scenario.known.entry(part.to_owned()).or_default();
            known.id = Some(seen.id.clone());
            known.confirmed = true;
            known.operation = seen.operation.as_ref().map(|operation| operation.token.clone());
            known.state = Some(seen.state.clone());
        }
        presence
    }

    /// One turn over the listed parts. True when all are ready and nothing is to be done.
    fn turn(&mut self) -> bool {
        let parts = self.call(infrastructure::parts::<Aws>).unwrap();
        let unlisted: Vec<String> =
            self.scenario.known.keys().filter(|name| !parts.iter().any(|part| part.name == **name)).cloned().collect();
        let mut settled = true;
        for name in unlisted {
            settled = false;
            self.remove(&name);
        }
        let mut ready: Vec<String> = Vec::new();
        for part in parts {
            if !part.after.iter().all(|after| ready.contains(after)) {
                settled = false;
                continue;
            }
            match self.look(&part.name) {
                Presence::Absent(_) => {
                    settled = false;
                    assert!(!part.borrowed, "{} is not there", part.name);
                    let choice = self.call(|| infrastructure::identify::<Aws>(&part.name, &[])).unwrap();
                    let known = Known {
                        id: choice.id,
                        frozen: Some(choice.frozen),
                        attempt: 1,
                        idempotency_key: format!(
                            "{:032x}",
                            capstan_provider::hash(&format!("{}{}", self.scenario.owner_key, part.name))
                        ),
                        ..Known::default()
                    };
                    self.scenario.known.insert(part.name.clone(), known);
                    match self.call(|| infrastructure::create::<Aws>(&part.name)).unwrap() {
                        Progress::Done(id) => self.scenario.known.get_mut(&part.name).unwrap().id = Some(id),
                        other => panic!("{}: {other:?}", part.name),
                    }
                }
                Presence::Present(seen) => {
                    if seen.ready {
                        ready.push(part.name.clone());
                    }
                    settled &= seen.ready && seen.operation.is_none() && seen.todo.is_empty();
                    if seen.operation.is_none() && !seen.todo.is_empty() && !part.borrowed {
                        self.call(|| infrastructure::update::<Aws>(&part.name, &seen.todo)).unwrap();
                    }
                }
                other => panic!("{}: {other:?}", part.name),
            }
        }
        settled
    }

    fn remove(&mut self, part: &str) -> bool {
        match self.look(part) {
            Presence::Absent(_) => {
                self.scenario.known.remove(part);
                return true;
            }
            Presence::Present(seen) if seen.operation.is_none() => {
                self.call(|| infrastructure::delete::<Aws>(part)).unwrap();
            }
            Presence::Present(_) => {}
            other => panic!("{part}: {other:?}"),
        }
        false
    }

    fn settle(&mut self) {
        for _ in 0..80 {
            if self.turn() {
                return;
            }
        }
        panic!("it never settles: {:?} {:#?}", self.changes(), self.scenario.known);
    }

    /// As the host takes an object down: dependents first.
    fn take_down(&mut self) {
        for _ in 0..80 {
            let parts = self.call(infrastructure::parts::<Aws>).unwrap();
            let known: Vec<String> = self.scenario.known.keys().cloned().collect();
            for name in known.iter().filter(|name| !parts.iter().any(|part| part.name == **name)) {
                self.remove(name);
            }
            let mut gone: Vec<String> = Vec::new();
            let mut all = true;
            for part in parts.iter().rev() {
                let free = parts.iter().filter(|p| p.after.contains(&part.name)).all(|p| gone.contains(&p.name));
                if free && (part.borrowed || self.remove(&part.name)) {
                    gone.push(part.name.clone());
                } else {
                    all = false;
                }
            }
            if all {
                return;
            }
        }
        panic!("it never goes: {:?} {:#?}", self.changes(), self.scenario.known);
    }

    fn edit(&mut self, edit: impl FnOnce(&mut Value)) {
        let mut spec: Value = serde_json::from_str(&self.scenario.spec).unwrap();
        edit(&mut spec);
        self.scenario.spec = spec.to_string();
    }

    fn states(&self) -> BTreeMap<String, String> {
        self.scenario.known.iter().filter_map(|(name, known)| Some((name.clone(), known.state.clone()?))).collect()
    }
}

fn cluster(spec: Value) -> Desk {
    let mut desk = Desk::of(Scenario::new("AWSCluster", spec), "c");
    desk.scenario.cluster_name = "c".to_owned();
    desk
}

/// A machine of a cluster.
fn machine(cluster: &Desk, name: &str, spec: Value, control_plane: bool) -> Desk {
    let mut desk = Desk::of(Scenario::new("AWSMachine", spec), name);
    desk.scenario.infrastructure_spec = Some(cluster.scenario.spec.clone());
    desk.scenario.infrastructure_states = cluster.states();
    desk.scenario.secrets.insert("bootstrap-data".to_owned(), b"#cloud-config\n".to_vec());
    desk.scenario.machine = Some(TestMachine {
        name: name.to_owned(),
        control_plane,
        kubernetes_version: Some("v1.34.1".to_owned()),
        bootstrap_format: Some("cloud-config".to_owned()),
        ..TestMachine::default()
    });
    desk
}

/// The kinds of a listing, counted.
fn kinds(left: &[String]) -> BTreeMap<&str, usize> {
    let mut kinds = BTreeMap::new();
    for line in left {
        *kinds.entry(line.split(' ').next().unwrap()).or_default() += 1;
    }
    kinds
}

fn all_managed(kind: &str) -> Value {
    json!({"region": "us-east-1", "network": {"vpc": {"availabilityZoneUsageLimit": 2}},
        "controlPlaneLoadBalancer": {"loadBalancerType": kind, "scheme": "internet-facing"},
        "additionalTags": {"team": "a b&c"}})
}

#[test]
fn a_cluster_with_everything_managed_comes_and_goes() {
    let Some((_turn, moto)) = moto() else { return };
    for kind in ["nlb", "classic"] {
        let mut desk = cluster(all_managed(kind));
        desk.scenario.owner_key = format!("{:032x}", capstan_provider::hash(kind));
        desk.settle();
        let left = moto.left();
        let mut wanted = BTreeMap::from([
            ("vpc", 1),
            ("internet-gateway", 1),
            ("subnet", 4),
            ("address", 2),
            ("nat-gateway", 2),
            ("route-table", 4),
            ("security-group", 4),
        ]);
        if kind == "nlb" {
            wanted.extend([("load-balancer", 1), ("target-group", 1), ("listener", 1)]);
        } else {
            wanted.extend([("classic-load-balancer", 1)]);
        }
        assert_eq!(kinds(&left), wanted, "{left:#?}");
        let facts = desk.call(infrastructure::report_cluster::<Aws>).unwrap();
        let endpoint = facts.control_plane_endpoint.clone().unwrap();
        assert!(endpoint.host.contains("amazonaws.com") && endpoint.port == 6443, "{endpoint:?}");
        let domains: Vec<&str> = facts.failure_domains.iter().map(|domain| domain.name.as_str()).collect();
        assert_eq!(domains, ["us-east-1a", "us-east-1b"]);
        assert!(facts.conditions.iter().all(|condition| condition.ok == Some(true)), "{:?}", facts.conditions);

        // It rests: nothing is changed, and few requests serve all parts.
        desk.sent.clear();
        assert!(desk.turn());
        assert_eq!(desk.changes(), [""; 0]);

        desk.take_down();
        assert_eq!(moto.left(), [""; 0], "{:?}", desk.changes());
    }
}

#[test]
fn a_control_plane_machine_comes_and_goes() {
    let Some((_turn, moto)) = moto() else { return };
    let mut cluster = cluster(all_managed("nlb"));
    cluster.settle();
    let before = moto.left();
    let spec = json!({"instanceType": "m5.large", "additionalTags": {"a": "b"}, "rootVolume": {"size": 20, "type": "gp3"},
        "nonRootVolumes": [{"deviceName": "/dev/sdf", "size": 10}], "instanceMetadataOptions": {"httpTokens": "required"}});
    let mut desk = machine(&cluster, "m", spec, true);
    moto.control("POST /draining/on", "");
    desk.settle();
    assert_eq!(desk.changes(), ["RunInstances", "RegisterTargets"]);
    let left = moto.left();
    let new: Vec<&String> = left.iter().filter(|line| !before.contains(line)).collect();
    assert_eq!(new.len(), 4, "an instance, two volumes, a target: {new:?}");
    let facts = desk.call(infrastructure::report_machine::<Aws>).unwrap();
    assert_eq!(facts.phase, Phase::Running);
    let provider_id = facts.provider_id.clone().unwrap();
    assert!(provider_id.starts_with("aws:///us-east-1") && provider_id.contains("/i-"), "{provider_id}");
    assert!(facts.addresses.len() >= 3 && facts.node_name.is_some(), "{facts:?}");
    let shown = moto.control("GET /instances", "");
    assert_eq!(shown[0]["name"], "m");
    assert!(shown[0]["userData"].as_str().unwrap().contains("#cloud-config"), "{shown}");

    // A tag and a group that the spec adds later.
    desk.edit(|spec| spec["additionalTags"]["c"] = "d".into());
    desk.sent.clear();
    desk.settle();
    assert_eq!(desk.changes(), ["CreateTags"]);

    // Its Machine goes: the load balancer lets go of it first.
    desk.scenario.machine.as_mut().unwrap().deleting = true;
    desk.sent.clear();
    desk.take_down();
    assert_eq!(desk.changes(), ["DeregisterTargets", "TerminateInstances"]);
    assert_eq!(moto.left(), before);
}

#[test]
fn first_boot_data_that_does_not_fit_is_kept_elsewhere_until_the_node_has_joined() {
    let Some((_turn, moto)) = moto() else { return };
    let mut spec = all_managed("nlb");
    spec["s3Bucket"] = json!({"name": "capstan-test"});
    let mut cluster = cluster(spec);
    cluster.settle();
    let before = moto.left();
    let large = vec![b'x'; 200_000];
    for (extra, format, kind, pieces) in [
        (json!({}), "cloud-config", "secret", 2),
        (json!({"cloudInit": {"secureSecretsBackend": "ssm-parameter-store"}}), "cloud-config", "parameter", 23),
        (json!({}), "ignition", "object", 1),
    ] {
        let mut spec = json!({"instanceType": "m5.large"});
        spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let mut desk = machine(&cluster, &format!("m-{kind}"), spec, false);
        desk.scenario.secrets.insert("bootstrap-data".to_owned(), large.clone());
        desk.scenario.machine.as_mut().unwrap().bootstrap_format = Some(format.to_owned());
        desk.settle();
        let left = moto.left();
        assert_eq!(kinds(&left)[kind], pieces, "{left:?}");
        assert_eq!(kinds(&left)["instance"], 1);
        let shown = moto.control("GET /instances", "");
        let user_data = shown.as_array().unwrap().last().unwrap()["userData"].as_str().unwrap().to_owned();
        assert!(user_data.len() < 16_384 && !user_data.contains("xxxx"), "{user_data}");

        desk.scenario.machine.as_mut().unwrap().node_bound = true;
        desk.settle();
        assert_eq!(kinds(&moto.left()).get(kind), None);
        assert_eq!(kinds(&moto.left())["instance"], 1);
        desk.scenario.machine.as_mut().unwrap().deleting = true;
        desk.take_down();
        assert_eq!(moto.left(), before);
    }
}
