//! `proxmox` against fakepve, which checks every call against the real schema.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use async_trait::async_trait;
use capstan_api::ObjectKey;
use capstan_gateway::CredentialKind;
use capstan_testkit::Exchange;
use capstan_testkit::conformance::{Access, Life, Server, ServerStarts, Suite};
use serde_json::{Value, json};

use super::simulated::{around_machine, node_joins};
use super::{FAILED, all, sample, worlds};

const INFRASTRUCTURE: &str = "infrastructure.cluster.x-k8s.io";

/// fakepve in a process of its own; it ends with this.
struct FakePve {
    process: Child,
    url: String,
    control: String,
    token: String,
    client: reqwest::Client,
}

impl FakePve {
    fn start() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let python = root.join("target/venv/bin/python");
        let mut process = Command::new(&python)
            .arg(root.join("tests/fakepve/serve.py"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}; run tests/setup.sh", python.display()));
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let up: Value = serde_json::from_str(&line).expect("fakepve does not start");
        let text = |name: &str| up[name].as_str().unwrap().to_owned();
        let (url, control, token) = (text("url"), text("control"), text("token"));
        Self { process, url, control, token, client: reqwest::Client::new() }
    }
}

impl Drop for FakePve {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[async_trait]
impl Server for FakePve {
    fn access(&self) -> Access {
        let header = ("Authorization".to_owned(), "{token}".to_owned());
        let token = [("token".to_owned(), self.token.clone().into())].into();
        Access { origin: self.url.clone(), credential: Some((CredentialKind::Headers(vec![header]), token)) }
    }

    async fn left(&self) -> anyhow::Result<Vec<String>> {
        let answer = self.client.get(format!("{}/left", self.control)).send().await?.error_for_status()?;
        let lines: Vec<String> = answer.json().await?;
        // A disk is named after its machine's number.
        let shown = |line: String| match line.split_once(" ") {
            Some((storage, name)) if name != "iso" => format!("{storage} disk"),
            _ => line,
        };
        Ok(lines.into_iter().map(shown).collect())
    }

    async fn clear(&self) -> anyhow::Result<()> {
        self.client.post(format!("{}/clear", self.control)).send().await?.error_for_status()?;
        Ok(())
    }

    fn is_shared(&self, exchange: &Exchange) -> bool {
        exchange.target.starts_with("/api2/json/cluster/resources")
    }
}

fn machine(name: &'static str) -> Life {
    let owner = |kind: &str, name: &str| {
        json!([{"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": kind,
        "name": name, "uid": format!("of {kind}/{name}"), "controller": true}])
    };
    let api_version = format!("{INFRASTRUCTURE}/v1alpha2");
    let mut objects = vec![
        json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
            "metadata": {"name": "c", "namespace": "n"},
            "spec": {"infrastructureRef": {"apiGroup": INFRASTRUCTURE, "kind": "ProxmoxCluster", "name": "c"}},
            "status": {"initialization": {"infrastructureProvisioned": true}}}),
        json!({"apiVersion": api_version, "kind": "ProxmoxCluster",
            "metadata": {"name": "c", "namespace": "n", "ownerReferences": owner("Cluster", "c")},
            "spec": {"dnsServers": ["192.0.2.53"], "allowedNodes": ["pve1", "pve2"]}}),
    ];
    objects.extend(around_machine(name));
    objects.push(json!({"apiVersion": api_version, "kind": "ProxmoxMachine",
        "metadata": {"name": name, "namespace": "n", "labels": {"cluster.x-k8s.io/cluster-name": "c"},
            "ownerReferences": owner("Machine", name)},
        "spec": {"sourceNode": "pve1", "templateID": 9000, "full": true, "storage": "shared", "format": "qcow2",
            "numCores": 2, "memoryMiB": 4096, "disks": {"bootVolume": {"disk": "scsi0", "sizeGb": 20}},
            "network": {}, "checks": {"skipQemuGuestAgent": true}}}));
    Life {
        name: if name == "m" { "machine" } else { name },
        objects,
        subject: ObjectKey::new(INFRASTRUCTURE, "ProxmoxMachine", "n", name),
        change: Some(node_joins),
        tend: |_| (),
    }
}

fn server() -> ServerStarts {
    Box::pin(async {
        let pve: Box<dyn Server> = Box::new(FakePve::start());
        Ok(pve)
    })
}

fn suite() -> Suite<'static> {
    Suite {
        name: "proxmox",
        component: crate::provider("proxmox"),
        server,
        lives: vec![machine("m")],
        fleet: ["m1", "m2", "m3"].map(machine).into(),
        failed: FAILED,
    }
}

#[test]
fn a_sample_of_faults_leaks_nothing_in_proxmox() {
    sample(&suite(), 30, 2);
}

#[test]
#[ignore = "minutes: make leak"]
fn all_faults_leak_nothing_in_proxmox() {
    all(&suite(), worlds());
}
