//! What the cloud knows of its resources: as it is kept, and as the API shows it.

use std::collections::VecDeque;
use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::kubeadm::init::ControlPlane;

/// Console lines that are kept of a machine.
const CONSOLE_LINES: usize = 100;
/// Characters that are kept of a console line.
const CONSOLE_WIDTH: usize = 400;
/// Console lines that the API shows.
const CONSOLE_SHOWN: usize = 30;

/// A load balancer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LoadBalancerRecord {
    /// Unique in the cloud.
    pub name: String,
    /// Owner key.
    pub owner: String,
    /// An address of 127.0.0.0/8 of its own.
    pub address: Ipv4Addr,
    /// The port it listens on.
    pub port: u16,
}

impl LoadBalancerRecord {
    /// As the API shows it.
    pub fn show(&self) -> Value {
        json!({
            "name": self.name, "owner": self.owner, "address": self.address.to_string(), "port": self.port, "state": "active",
        })
    }
}

/// What a machine was ordered as. Never changes.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineSpec {
    /// Unique in the cloud.
    pub name: String,
    /// Owner key.
    pub owner: String,
    /// The load balancer it is attached to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_balancer: Option<String>,
    /// The load balancer forwards to it.
    pub control_plane: bool,
    /// Where it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_domain: Option<String>,
    /// CPUs.
    pub cpus: u32,
    /// Memory in MiB.
    #[serde(rename = "memoryMiB")]
    pub memory_mib: u64,
    /// Version of the Kubernetes programs of its image; none: whatever the cluster has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes_version: Option<String>,
    /// Boot data, as ordered.
    #[serde(with = "base64_bytes")]
    pub user_data: Vec<u8>,
    /// Its format.
    pub user_data_format: String,
    /// Its address.
    pub address: Ipv4Addr,
    /// The address was given, is one of this computer's, and its API server listens there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub listens: bool,
    /// `spec.providerID` of its Node, where somebody else's cloud is played: empty where nobody sets it. None: this cloud's own.
    #[serde(default, rename = "providerID", skip_serializing_if = "Option::is_none")]
    pub foreign_provider_id: Option<String>,
}

impl MachineSpec {
    /// Names are `<namespace>.<object>`; a machine calls itself by the second part.
    pub fn hostname(&self) -> &str {
        match self.name.split_once('.') {
            Some((_, rest)) if !rest.is_empty() => rest,
            _ => &self.name,
        }
    }

    /// What its Node has in `spec.providerID` from the cloud: `simulated://<name>`, unless the order says otherwise.
    pub fn provider_id(&self) -> Option<String> {
        match &self.foreign_provider_id {
            None => Some(format!("simulated://{}", self.name)),
            Some(id) => Some(id.clone()).filter(|id| !id.is_empty()),
        }
    }
}

mod base64_bytes {
    use base64::Engine as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&base64::engine::general_purpose::STANDARD.encode(bytes))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(deserializer)?;
        base64::engine::general_purpose::STANDARD.decode(text).map_err(serde::de::Error::custom)
    }
}

/// The state of a machine as a cloud sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum MachineState {
    /// It was ordered and does not run yet.
    #[default]
    Booting,
    /// It runs; whether it joined anything is another matter.
    Running,
    /// It is off.
    Stopped,
    /// It broke down.
    Failed,
    /// It is on its way out.
    Deleting,
}

/// What became of a machine. Kept over restarts.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineStatus {
    /// As the cloud sees it.
    pub state: MachineState,
    /// It answers nothing.
    pub frozen: bool,
    /// Its network is cut.
    pub cut: bool,
    /// All boot data was carried out.
    pub booted: bool,
    /// It stopped in an orderly way.
    pub orderly: bool,
    /// The Node it registered, as JSON: it is needed only where it is lost.
    pub node: Option<String>,
    /// The name of that Node.
    pub node_name: Option<String>,
    /// The cluster it is a node of: the name of the store of its objects.
    pub cluster: Option<String>,
    /// Set on a control-plane machine.
    pub control_plane: Option<ControlPlane>,
    /// Why it did not become a node.
    pub boot_error: Option<String>,
    /// What it printed.
    pub console: VecDeque<String>,
}

impl MachineStatus {
    /// It runs and can be reached.
    pub fn is_reachable(&self) -> bool {
        self.state == MachineState::Running && !self.frozen && !self.cut
    }

    /// Remembers the Node it is.
    pub fn set_node(&mut self, node: &Value) {
        self.node = Some(node.to_string());
        self.node_name = node.pointer("/metadata/name").and_then(Value::as_str).map(str::to_owned);
    }

    /// Adds lines to the console.
    pub fn print(&mut self, text: &str) {
        for line in text.lines() {
            if self.console.len() == CONSOLE_LINES {
                self.console.pop_front();
            }
            let clean: String = line.chars().filter(|c| !c.is_control()).take(CONSOLE_WIDTH).collect();
            self.console.push_back(clean);
        }
    }

    /// As the API shows it.
    pub fn show(&self, spec: &MachineSpec) -> Value {
        let skip = self.console.len().saturating_sub(CONSOLE_SHOWN);
        let console: Vec<&String> = self.console.iter().skip(skip).collect();
        json!({
            "name": spec.name, "owner": spec.owner, "loadBalancer": spec.load_balancer, "controlPlane": spec.control_plane,
            "failureDomain": spec.failure_domain, "cpus": spec.cpus, "memoryMiB": spec.memory_mib,
            "kubernetesVersion": spec.kubernetes_version, "state": self.state, "frozen": self.frozen, "networkCut": self.cut,
            "providerID": spec.provider_id(), "node": self.node_name,
            "addresses": [
                {"type": "InternalIP", "address": spec.address.to_string()},
                {"type": "Hostname", "address": spec.hostname()},
            ],
            "bootError": self.boot_error, "console": console,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_console_is_bounded_and_clean() {
        let mut status = MachineStatus::default();
        for number in 0..300 {
            status.print(&format!("line {number}\n\u{1b}[0m{}", "x".repeat(1000)));
        }
        assert_eq!(status.console.len(), CONSOLE_LINES);
        assert!(status.console.iter().all(|line| line.len() <= CONSOLE_WIDTH && !line.contains('\u{1b}')));
        assert_eq!(status.console[98], "line 299");
    }
}
