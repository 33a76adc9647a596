//! What stands around the lives of providers: the objects of Cluster API, and servers that are written in Python.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use capstan_core::testing::World;
use serde_json::{Value, json};

pub(super) const INFRASTRUCTURE: &str = "infrastructure.cluster.x-k8s.io";

/// The controlling owner of this kind and name, as `ownerReferences`.
pub(super) fn owner(kind: &str, name: &str) -> Value {
    json!([{"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": kind, "name": name, "uid": format!("of {kind}/{name}"),
        "controller": true}])
}

/// The Cluster `c`, whose infrastructure is of this kind.
pub(super) fn cluster_of(kind: &str) -> Value {
    json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
        "metadata": {"name": "c", "namespace": "n"},
        "spec": {"infrastructureRef": {"apiGroup": INFRASTRUCTURE, "kind": kind, "name": "c"}},
        "status": {"initialization": {"infrastructureProvisioned": true}}})
}

/// Any provider's machine of this name: what is around it.
pub(super) fn around_machine(name: &str) -> [Value; 2] {
    [
        json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
            "metadata": {"name": name, "namespace": "n"},
            "spec": {"clusterName": "c", "version": "v1.35.0", "bootstrap": {"dataSecretName": name}}}),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "n"},
            "data": {"value": "I2Nsb3VkLWNvbmZpZwo=", "format": "Y2xvdWQtY29uZmln"}}),
    ]
}

/// The Machines' Nodes are there.
pub(super) fn node_joins(world: &mut World) {
    for machine in world.all("Machine") {
        let name = machine.name().to_owned();
        world.edit(&machine.key(), |machine| machine.set("/status/nodeRef", json!({"name": name})));
    }
}

/// A server of `tests/` in a process of its own; it ends with this.
pub(super) struct Stand {
    process: Child,
    /// What it printed when it was up.
    pub(super) up: Value,
    client: reqwest::Client,
}

impl Stand {
    /// Starts `tests/<script>` with these arguments, which prints a line of JSON when it is up.
    pub(super) fn start(script: &str, arguments: &[&str]) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let python = root.join("target/venv/bin/python");
        let mut process = Command::new(&python)
            .arg(root.join("tests").join(script))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}; run tests/setup.sh", python.display()));
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let up = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{script} does not start: {error}"));
        Self { process, up, client: reqwest::Client::new() }
    }

    /// What it said at this pointer.
    pub(super) fn text(&self, pointer: &str) -> String {
        self.up.pointer(pointer).and_then(Value::as_str).unwrap().to_owned()
    }

    /// What was not there in the beginning.
    pub(super) async fn left(&self) -> anyhow::Result<Vec<String>> {
        Ok(self.client.get(self.text("/control") + "/left").send().await?.error_for_status()?.json().await?)
    }

    /// Takes that away.
    pub(super) async fn clear(&self) -> anyhow::Result<()> {
        self.client.post(self.text("/control") + "/clear").send().await?.error_for_status()?;
        Ok(())
    }
}

impl Drop for Stand {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
