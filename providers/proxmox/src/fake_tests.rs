//! Against a server that speaks the API (fakepve), driven as the host drives a provider: look, then do what comes first, one request at
//! a time.
//!
//!     CAPSTAN_PROXMOX=127.0.0.1:8007 cargo test -p proxmox -- --ignored
//!
//! With CAPSTAN_PROXMOX_POOL the machine is made in that pool, for a token with rights on it alone. The address is that of a plain HTTP proxy before it, which adds the token. There must be a template 9000 on pve1 with a disk
//! scsi0 and a shared storage for ISO images; see tests/proxmox.

use std::{
    io::{Read, Write},
    net::TcpStream,
};

use capstan_provider::{
    Known, MachineFacts, Phase, Presence, Progress,
    testing::{Exchange, Scenario, Sent, TestMachine, infrastructure},
};
use serde_json::{Value, json};

use crate::{Proxmox, cluster::PROXMOX, iso::ISO, vm::VM};

fn transport(sent: &Sent) -> Exchange {
    let address = std::env::var("CAPSTAN_PROXMOX").expect("CAPSTAN_PROXMOX is the address of a proxy");
    let mut stream = TcpStream::connect(&address).unwrap();
    let (method, target) = sent.asked.split_once(' ').unwrap();
    let mut head = format!(
        "{method} {} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {}\r\n",
        target.replace(' ', "%20"),
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
    let mut words = head.lines().next().unwrap().splitn(3, ' ').skip(1);
    let status = words.next().unwrap().parse().unwrap();
    let status_text = words.next().unwrap_or_default().to_owned();
    Exchange { asked: sent.asked.clone(), status, status_text, body: answer[end + 4..].to_vec(), ..Exchange::default() }
}

/// What the host keeps of one machine.
struct Desk {
    scenario: Scenario,
    sent: Vec<String>,
}

impl Desk {
    fn call<T>(&mut self, call: impl FnOnce() -> T) -> T {
        self.scenario.now =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis().try_into().unwrap();
        let (result, sent) = self.scenario.clone().run(call);
        let changing = sent.iter().filter(|sent| !sent.asked.starts_with("GET ")).count();
        assert!(changing <= 1, "more than one change in a call: {sent:?}");
        self.sent.extend(sent.into_iter().map(|sent| sent.asked));
        result
    }

    fn changes(&self) -> Vec<&str> {
        self.sent.iter().map(String::as_str).filter(|asked| !asked.starts_with("GET ")).collect()
    }

    fn look(&mut self, part: &str) -> Presence {
        let presence = self.call(|| infrastructure::observe::<Proxmox>(part)).unwrap();
        if let Presence::Present(seen) = &presence {
            let known = self.scenario.known.entry(part.to_owned()).or_default();
            known.id = Some(seen.id.clone());
            known.confirmed = true;
            known.operation = seen.operation.as_ref().map(|operation| operation.token.clone());
            known.state = Some(seen.state.clone());
        }
        presence
    }

    fn note(&mut self, part: &str, progress: Progress) {
        if let Progress::Started { operation, .. } = progress {
            self.scenario.known.get_mut(part).unwrap().operation = Some(operation.token);
        }
    }

    /// One turn over the listed parts. True when all are ready and nothing is to be done.
    fn turn(&mut self) -> bool {
        let parts = self.call(infrastructure::parts::<Proxmox>).unwrap();
        let unlisted: Vec<String> =
            self.scenario.known.keys().filter(|name| !parts.iter().any(|part| part.name == **name)).cloned().collect();
        for name in unlisted {
            self.remove(&name);
        }
        let mut settled = true;
        let mut ready: Vec<String> = Vec::new();
        for part in parts {
            if !part.after.iter().all(|after| ready.contains(after)) {
                settled = false;
                continue;
            }
            match self.look(&part.name) {
                Presence::Absent(_) => {
                    settled = false;
                    let choice = self.call(|| infrastructure::identify::<Proxmox>(&part.name, &[])).unwrap();
                    let known = Known {
                        id: choice.id,
                        frozen: Some(choice.frozen),
                        idempotency_key: format!("{}-key", part.name),
                        ..Known::default()
                    };
                    self.scenario.known.insert(part.name.clone(), known);
                    let progress = self.call(|| infrastructure::create::<Proxmox>(&part.name)).unwrap();
                    self.note(&part.name, progress);
                }
                Presence::Present(seen) => {
                    if seen.ready {
                        ready.push(part.name.clone());
                    }
                    settled &= seen.ready && seen.operation.is_none() && seen.todo.is_empty();
                    if seen.operation.is_none() && !seen.todo.is_empty() {
                        let progress = self.call(|| infrastructure::update::<Proxmox>(&part.name, &seen.todo)).unwrap();
                        self.note(&part.name, progress);
                    }
                }
                Presence::Pending(_) => settled = false,
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
                let progress = self.call(|| infrastructure::delete::<Proxmox>(part)).unwrap();
                self.note(part, progress);
            }
            Presence::Present(_) | Presence::Pending(_) => {}
            other => panic!("{part}: {other:?}"),
        }
        false
    }

    fn until(&mut self, done: impl Fn(&Self, bool) -> bool) {
        for _ in 0..300 {
            let settled = self.turn();
            if done(self, settled) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(30));
        }
        panic!("it never comes to that: {:?} {:#?}", self.changes(), self.scenario.known);
    }

    fn facts(&mut self) -> MachineFacts {
        self.call(infrastructure::report_machine::<Proxmox>).unwrap()
    }
}

#[test]
#[ignore = "needs a server: CAPSTAN_PROXMOX=ADDRESS"]
fn a_machine_comes_and_goes() {
    let cluster = json!({"dnsServers": ["192.0.2.53"], "allowedNodes": ["pve1", "pve2"],
        "ipv4Config": {"addresses": ["192.0.2.10-192.0.2.20"], "prefix": 24, "gateway": "192.0.2.1"}});
    let spec = json!({"templateSelector": {"matchTags": ["capi"], "matchPolicy": "uniqueSubset"}, "full": true, "numCores": 4,
        "numSockets": 1, "memoryMiB": 4096, "tags": ["k8s"], "storage": "shared",
        "disks": {"bootVolume": {"disk": "scsi0", "sizeGb": 20}},
        "network": {"networkDevices": [{"name": "net0", "bridge": "vmbr0"}, {"name": "net1", "bridge": "vmbr1", "vlan": 7}]}});
    let mut spec = spec;
    if let Ok(pool) = std::env::var("CAPSTAN_PROXMOX_POOL") {
        spec["pool"] = pool.into();
    }
    let mut base = Scenario::new("ProxmoxMachine", spec).secret("bootstrap-data", "#cloud-config\n");
    base.name = "c-w-1".to_owned();
    base.owner_key = format!("key{}", std::process::id());
    base.transport = Some(transport);
    base.infrastructure_spec = Some(cluster.to_string());
    base.addresses.insert("net0-inet".to_owned(), ("192.0.2.10".to_owned(), 24, Some("192.0.2.1".to_owned())));
    base.machine = Some(TestMachine {
        name: "c-w-1".to_owned(),
        kubernetes_version: Some("v1.34.1".to_owned()),
        bootstrap_format: Some("cloud-config".to_owned()),
        ..TestMachine::default()
    });
    let mut desk = Desk { scenario: base, sent: Vec::new() };

    desk.until(|desk, settled| {
        let state = desk.scenario.known.get(VM).and_then(|vm| vm.state.clone()).unwrap_or_default();
        settled && state.contains("\"status\":\"running\"")
    });
    let changes: Vec<String> = desk.changes().iter().map(|asked| (*asked).to_owned()).collect();
    assert_eq!(changes.len(), 6, "clone, configure, resize, upload, attach, start: {changes:?}");
    let facts = desk.facts();
    assert_eq!(facts.phase, Phase::Running);
    let provider_id = facts.provider_id.unwrap();
    assert!(provider_id.starts_with("proxmox://") && provider_id.len() == 46, "{provider_id}");

    // The node joins: the image goes, and a settled machine costs little.
    let mut spec: Value = serde_json::from_str(&desk.scenario.spec).unwrap();
    spec["providerID"] = provider_id.into();
    desk.scenario.spec = spec.to_string();
    desk.scenario.machine.as_mut().unwrap().node_bound = true;
    desk.until(|desk, settled| settled && !desk.scenario.known.contains_key(ISO));
    assert_eq!(desk.changes().len(), 8, "eject and delete: {:?}", desk.changes());
    desk.sent.clear();
    assert!(desk.turn());
    assert_eq!(desk.sent.len(), 2, "one read of its own and one that is shared: {:?}", desk.sent);

    // It goes.
    desk.scenario.machine.as_mut().unwrap().deleting = true;
    desk.sent.clear();
    for _ in 0..100 {
        if desk.remove(VM) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(30));
    }
    assert!(!desk.scenario.known.contains_key(VM));
    assert_eq!(desk.changes().len(), 2, "stop and destroy: {:?}", desk.changes());
}

#[test]
#[ignore = "needs a server: CAPSTAN_PROXMOX=ADDRESS"]
fn the_api_answers() {
    let mut scenario = Scenario::new("ProxmoxCluster", json!({"dnsServers": ["192.0.2.53"]}));
    scenario.transport = Some(transport);
    let (presence, _) = scenario.run(|| infrastructure::observe::<Proxmox>(PROXMOX));
    assert!(matches!(presence, Ok(Presence::Present(seen)) if seen.state.contains("version")));
}
