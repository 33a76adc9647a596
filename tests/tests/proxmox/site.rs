//! A Proxmox VE with somebody who runs its machines, and a management plane that has a token for it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use capstan_tests::fakepve::FakePve;
use capstan_tests::http::Client;
use capstan_tests::hypervisor::Hypervisor;
use capstan_tests::machines::Machines;
use capstan_tests::plane::{BackEnd, Plane, Up, free_port, root};
use capstan_tests::secrets::Secrets;
use capstan_tests::witness::Witness;
use serde_json::Value;

pub const MINUTE: Duration = Duration::from_secs(60);
/// The network of `examples/proxmox.yaml`.
pub const NETWORK: &str = "10.10.10.0/24";
/// Where Proxmox VE is in it.
const PVE: &str = "10.10.10.2:8006";
/// Seconds of this computer that a second of Proxmox VE takes.
const TIME_SCALE: f64 = 0.02;

/// All that a person may ever be shown: the ledger's entries as well, without what HTTP libraries say of their frames.
const LOG: &str = "debug,h2=info,hyper=info,hyper_util=info,rustls=info,tower=info,wasmtime=info,cranelift=info";

/// All that is there.
pub struct Site {
    pub plane: Plane,
    pub hypervisor: Hypervisor,
    pub pve: Arc<FakePve>,
    pub dir: tempfile::TempDir,
}

/// A Proxmox VE and its hypervisor, before there is a management plane.
pub fn proxmox() -> Result<(Arc<FakePve>, Hypervisor)> {
    let client = Client::new()?;
    let pve = Arc::new(FakePve::start(&client, PVE, TIME_SCALE)?);
    let hypervisor = Hypervisor::start(&pve, Machines::start(&client)?);
    Ok((pve, hypervisor))
}

/// `examples/proxmox.yaml` with this secret of the token, and the certificate of this Proxmox VE; nothing else is changed.
pub fn example(pve: &FakePve, secret: &str) -> Result<String> {
    let text = std::fs::read_to_string(root().join("examples/proxmox.yaml"))?;
    let placeholder = "  secret: 00000000-0000-0000-0000-000000000000\n";
    ensure!(text.contains(placeholder), "the example's placeholder of a secret has changed");
    let certificate = Value::from(pve.ca.as_str());
    Ok(text.replace(placeholder, &format!("  secret: {secret}\n  ca.crt: {certificate}\n")))
}

impl Site {
    /// Starts a management plane that applies these manifests.
    pub fn start(back_end: BackEnd, pve: Arc<FakePve>, hypervisor: Hypervisor, manifests: &str) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let file = dir.path().join("manifests.yaml");
        std::fs::write(&file, manifests)?;
        let up = Up {
            files: vec![file],
            env: vec![("RUST_LOG".into(), LOG.into())],
            record: Some(dir.path().join("recording")),
            ..Up::on(back_end)
        };
        let plane = Plane::start(&dir.path().join("state"), free_port(), &up)?;
        Ok(Self { plane, hypervisor, pve, dir })
    }

    /// Asks until `done`; what was going on is told with the error.
    pub fn until(&self, within: Duration, what: &str, done: impl FnMut() -> Result<bool>) -> Result<()> {
        self.plane.until(within, what, done).with_context(|| self.explain())
    }

    /// Waits until all that was applied is ready.
    pub fn wait_ready(&mut self, within: Duration) -> Result<()> {
        let outcome = self.plane.wait_ready(within);
        outcome.with_context(|| self.explain())
    }

    /// Where everything is on its way.
    fn explain(&self) -> String {
        let infrastructure = self.plane.kubectl(&["get", "proxmoxclusters,proxmoxmachines", "-A", "-o", CONDITIONS]);
        let vms = self.pve.vms().unwrap_or_default();
        let vms: Vec<String> =
            vms.iter().map(|vm| format!("{} {} {} {}", vm["vmid"], vm["name"], vm["status"], vm["config"])).collect();
        let infrastructure = infrastructure.unwrap_or_else(|error| error.to_string());
        let log = &self.plane.printed;
        let warnings: Vec<&str> =
            log.iter().map(String::as_str).filter(|line| line.contains(" WARN ") || line.contains(" ERROR ")).collect();
        let last = warnings.get(warnings.len().saturating_sub(12)..).unwrap_or_default().join("\n");
        format!("{infrastructure}\n{}\n{}\n{last}", vms.join("\n"), self.hypervisor.describe())
    }

    /// Applies manifests.
    pub fn apply(&self, manifests: &str) -> Result<String> {
        let file = self.file("apply.yaml", manifests)?;
        self.plane.kubectl(&["apply", "-f", file.to_str().unwrap_or_default()])
    }

    /// What this run has said, by place: all that was printed and logged, the recording, and every object in every state, except
    /// for Secrets, which are what must not be found in the rest.
    pub fn said(&mut self, witness: &Witness) -> Result<(BTreeMap<String, Vec<u8>>, Secrets)> {
        let mut said = witness.seen();
        let seen = said.remove("/api/v1/secrets").context("no Secret was seen")?;
        let mut secrets = Secrets::default();
        for line in String::from_utf8_lossy(&seen).lines() {
            secrets.add_object(&serde_json::from_str::<Value>(line)?["object"]);
        }
        for guest in self.hypervisor.guests().values() {
            secrets.add_text(&guest.hostname, &String::from_utf8_lossy(&guest.user_data));
        }
        secrets.add_text("kubeconfig", &std::fs::read_to_string(self.plane.kubeconfig())?);
        said.insert("output".into(), self.plane.output().into_bytes());
        said.insert("recording".into(), std::fs::read(self.dir.path().join("recording"))?);
        Ok((said, secrets))
    }

    /// Writes a file.
    pub fn file(&self, name: &str, content: &str) -> Result<PathBuf> {
        let file = self.dir.path().join(name);
        std::fs::write(&file, content)?;
        Ok(file)
    }
}

const CONDITIONS: &str = "custom-columns=KIND:.kind,NAMESPACE:.metadata.namespace,NAME:.metadata.name,\
REASONS:.status.conditions[*].reason,MESSAGES:.status.conditions[*].message";

/// A condition of an object.
pub fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)
}

/// Status, reason and message of a condition as one text.
pub fn told(object: &Value, kind: &str) -> String {
    let Some(condition) = condition(object, kind) else { return String::new() };
    let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
    format!("{} {}: {}", text("status"), text("reason"), text("message"))
}

/// The name of an object.
pub fn name(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}
