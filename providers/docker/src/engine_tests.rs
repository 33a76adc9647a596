//! Against a real engine, driven as the host drives a provider: look, then do what comes first, one request at a time.
//!
//!     CAPSTAN_DOCKER=/var/run/docker.sock cargo test -p docker -- --ignored
//!
//! It needs the images that tests/node-image builds. `make test` runs it against the engine of the Docker scenario
//! (tests/tests/docker.rs).

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    os::unix::net::UnixStream,
};

use capstan_provider::{
    Known, MachineSummary, Observed, Presence, Progress,
    secrets::{BootFile, BootStep},
    testing::{Exchange, Scenario, Sent, TestMachine, infrastructure, secret},
};
use serde_json::{Value, json};

use crate::{Docker, container::CONTAINER, load_balancer::LOAD_BALANCER, network::NETWORK};

/// One request over the engine's socket.
fn transport(sent: &Sent) -> Exchange {
    let socket = std::env::var("CAPSTAN_DOCKER").expect("CAPSTAN_DOCKER names the engine's socket");
    let mut stream = UnixStream::connect(socket).unwrap();
    let (method, target) = sent.asked.split_once(' ').unwrap();
    let target = target.replace(' ', "%20").replace('"', "%22");
    let mut head = format!(
        "{method} {target} HTTP/1.1\r\nHost: docker\r\nConnection: close\r\nContent-Length: {}\r\n",
        sent.body.len()
    );
    for (name, value) in &sent.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    stream.write_all(format!("{head}\r\n").as_bytes()).unwrap();
    stream.write_all(&sent.body).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let mut rest = &answer[end + 4..];
    let mut body = Vec::new();
    if head.to_lowercase().contains("transfer-encoding: chunked") {
        loop {
            let line = rest.windows(2).position(|window| window == b"\r\n").unwrap();
            let size = usize::from_str_radix(std::str::from_utf8(&rest[..line]).unwrap(), 16).unwrap();
            if size == 0 {
                break;
            }
            body.extend_from_slice(&rest[line + 2..line + 2 + size]);
            rest = &rest[line + 2 + size + 2..];
        }
    } else {
        body.extend_from_slice(rest);
    }
    Exchange { asked: sent.asked.clone(), status, body, ..Exchange::default() }
}

/// What the host keeps of one object.
struct Desk {
    scenario: Scenario,
    changes: Vec<String>,
}

impl Desk {
    fn new(mut scenario: Scenario) -> Self {
        scenario.transport = Some(transport);
        Self { scenario, changes: Vec::new() }
    }

    fn call<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let (result, sent) = self.scenario.clone().run(call);
        let changing = sent.iter().filter(|sent| !sent.asked.starts_with("GET ")).map(|sent| sent.asked.clone());
        let before = self.changes.len();
        self.changes.extend(changing);
        assert!(self.changes.len() <= before + 1, "more than one change in a call: {:?}", self.changes);
        result
    }

    fn look(&mut self, part: &str) -> Presence {
        let presence = self.call(|| infrastructure::observe::<Docker>(part)).unwrap();
        if let Presence::Present(seen) = &presence {
            let known = self.scenario.known.entry(part.to_owned()).or_default();
            known.id = Some(seen.id.clone());
            known.operation = seen.operation.as_ref().map(|operation| operation.token.clone());
            known.state = Some(seen.state.clone());
        }
        presence
    }

    /// One step of the host. What is seen once nothing is to be done any more.
    fn step(&mut self, part: &str) -> Option<Observed> {
        match self.look(part) {
            Presence::Absent(_) => {
                let choice = self.call(|| infrastructure::identify::<Docker>(part, &[])).unwrap();
                let known = Known { id: choice.id, frozen: Some(choice.frozen), ..Known::default() };
                self.scenario.known.insert(part.to_owned(), known);
                self.call(|| infrastructure::create::<Docker>(part)).unwrap();
                None
            }
            Presence::Present(seen) if seen.todo.is_empty() => Some(seen),
            Presence::Present(seen) => {
                let progress = self.call(|| infrastructure::update::<Docker>(part, &seen.todo)).unwrap();
                if let Progress::Started { operation, .. } = progress {
                    self.scenario.known.get_mut(part).unwrap().operation = Some(operation.token);
                }
                None
            }
            other => panic!("{part}: {other:?}"),
        }
    }

    fn until(&mut self, part: &str, done: impl Fn(&Observed) -> bool) -> Observed {
        for _ in 0..200 {
            match self.step(part) {
                Some(seen) if done(&seen) => return seen,
                Some(_) => std::thread::sleep(std::time::Duration::from_millis(100)),
                None => {}
            }
        }
        panic!("{part} never comes up: {:?}", self.changes);
    }

    fn gone(&mut self, part: &str) {
        for _ in 0..50 {
            if matches!(self.look(part), Presence::Absent(_)) {
                return;
            }
            self.call(|| infrastructure::delete::<Docker>(part)).unwrap();
        }
        panic!("{part} never goes");
    }
}

fn state(observed: &Observed) -> Value {
    serde_json::from_str(&observed.state).unwrap()
}

#[test]
#[ignore = "needs a Docker engine and its images: CAPSTAN_DOCKER=SOCKET"]
fn a_cluster_and_a_machine_come_and_go() {
    let mut cluster = Desk::new(Scenario {
        name: "real".to_owned(),
        cluster_name: "real".to_owned(),
        ..Scenario::new("DockerCluster", json!({"loadBalancer": {"imageRepository": "capstan", "imageTag": "dev"}}))
    });
    let network = cluster.until(NETWORK, |seen| seen.ready);
    let balancer = cluster.until(LOAD_BALANCER, |seen| seen.ready);
    let address = state(&balancer)["address"].as_str().unwrap().to_owned();
    assert_eq!(state(&network)["loadBalancerAddress"], address.as_str());
    assert_eq!(cluster.changes.len(), 4, "{:?}", cluster.changes);

    let mut machine = Desk::new(Scenario {
        name: "m".to_owned(),
        cluster_name: "real".to_owned(),
        owner_key: "owner-2".to_owned(),
        infrastructure_states: BTreeMap::from([(NETWORK.to_owned(), network.state.clone())]),
        boot_steps: vec![
            BootStep::WriteFile(BootFile {
                path: "/run/kubeadm/kubeadm.yaml".to_owned(),
                mode: 0o640,
                owner: "root:root".to_owned(),
                append: false,
                content: secret("top: secret\n"),
            }),
            BootStep::Run(secret("mkdir /said && cat /run/kubeadm/kubeadm.yaml > /said/text")),
            BootStep::Run(secret("(while :; do echo hello | nc -l -p 6443; done) >/dev/null 2>&1 &")),
        ],
        ..Scenario::new("DockerMachine", json!({"customImage": "capstan/node:dev", "privileged": false}))
    });
    machine.scenario.machine = Some(TestMachine {
        name: "m".to_owned(),
        control_plane: true,
        bootstrap_format: Some("cloud-config".to_owned()),
        ..TestMachine::default()
    });
    let seen = machine.until(CONTAINER, |seen| state(seen)["boot"]["ended"].is_object());
    assert_eq!(state(&seen)["boot"], json!({"ended": {"code": 0, "step": 0}}), "{}", seen.state);
    assert_eq!(machine.changes.len(), 5, "{:?}", machine.changes);
    assert_eq!(crate::engine::tests::read_live(&machine.scenario, "real-m", "/said/text"), "top: secret\n");

    let ip = state(&seen)["addresses"][0].as_str().unwrap().to_owned();
    cluster.scenario.machines =
        vec![MachineSummary { name: "m".to_owned(), control_plane: true, addresses: vec![ip], deleting: false }];
    cluster.changes.clear();
    cluster.until(LOAD_BALANCER, |seen| state(seen)["loaded"] == true);
    assert_eq!(cluster.changes.len(), 3, "{:?}", cluster.changes);
    let hello = (0..50).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(100));
        let mut text = String::new();
        std::net::TcpStream::connect((address.as_str(), 6443))
            .and_then(|mut stream| stream.read_to_string(&mut text))
            .is_ok_and(|_| text.contains("hello"))
    });
    assert!(hello, "the load balancer passes nothing on");

    machine.gone(CONTAINER);
    cluster.gone(LOAD_BALANCER);
    cluster.gone(NETWORK);
}
