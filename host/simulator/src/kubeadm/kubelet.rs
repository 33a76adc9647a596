//! The kubelet's part: a Node, and a Lease that shows that it lives.

use serde_json::{Value, json};

use super::KubeadmError;
use super::objects::{self, Health};
use crate::api::{self, Api};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

/// Why a machine registers its Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registration {
    /// kubeadm makes it a node. A Node of its name that is ready and belongs to another machine is an error, as with
    /// kubeadm.
    First,
    /// It was a node before it stopped, and takes over its Node as it is now, as a kubelet does.
    Again,
}

/// Registers a Node, or takes over the one of that name that this machine had before. Returns what is stored.
///
/// Its Lease is said to be good for `lease_seconds`.
pub async fn register(
    api: &dyn Api,
    node: Value,
    registration: Registration,
    lease_seconds: u64,
    now: jiff::Timestamp,
) -> Result<Value, KubeadmError> {
    let name = node.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned();
    let attempt = format!("registering Node {name}");
    let path = format!("/api/v1/nodes/{name}");
    let answer = api::create(api, "/api/v1/nodes", &node).await;
    let mut stored = if matches!(&answer, Ok(answer) if answer.status == 409) {
        let existing = api::expect(&attempt, api::get(api, &path).await)?.body;
        let id = |node: &Value| node.pointer("/spec/providerID").and_then(Value::as_str).unwrap_or_default().to_owned();
        if registration == Registration::First
            && id(&existing) != id(&node)
            && objects::ready_status(&existing) == "True"
        {
            return Err(KubeadmError::Refused {
                attempt,
                status: 409,
                reason: format!(
                    "a Node with this name is in the cluster already and ready (providerID {:?})",
                    id(&existing)
                ),
            });
        }
        let patch = json!({"metadata": {"labels": node.pointer("/metadata/labels")}});
        api::expect(&attempt, api::merge(api, &path, &patch).await)?.body
    } else {
        api::expect(&attempt, answer)?.body
    };
    if stored.pointer("/status/nodeInfo") != node.pointer("/status/nodeInfo")
        || objects::ready_status(&stored) != "True"
    {
        let patch = json!({"status": node.get("status")});
        stored = api::expect(&attempt, api::merge(api, &format!("{path}/status"), &patch).await)?.body;
    }
    let answer = api::create(api, LEASES, &objects::lease(&stored, lease_seconds, now)).await;
    if !matches!(&answer, Ok(answer) if answer.status == 409) {
        api::expect(&attempt, answer)?;
    }
    Ok(stored)
}

/// Renews a node's Lease; makes it anew where somebody took it away and the Node is still there.
pub async fn renew(api: &dyn Api, node: &str, lease_seconds: u64, now: jiff::Timestamp) -> Result<(), KubeadmError> {
    let attempt = format!("renewing the Lease of Node {node}");
    let answer = api::merge(api, &format!("{LEASES}/{node}"), &objects::renewal(now)).await;
    if !matches!(&answer, Ok(answer) if answer.status == 404) {
        return api::expect(&attempt, answer).map(drop);
    }
    let stored = api::get(api, &format!("/api/v1/nodes/{node}")).await;
    if matches!(&stored, Ok(answer) if answer.status == 404) {
        return Ok(());
    }
    let stored = api::expect(&attempt, stored)?.body;
    api::expect(&attempt, api::create(api, LEASES, &objects::lease(&stored, lease_seconds, now)).await).map(drop)
}

/// Sets a Node's conditions; nothing is sent where its `Ready` condition says so already. False where there is no such Node.
pub async fn report(api: &dyn Api, node: &str, health: Health, now: jiff::Timestamp) -> Result<bool, KubeadmError> {
    let attempt = format!("reporting the state of Node {node}");
    let path = format!("/api/v1/nodes/{node}");
    let answer = api::get(api, &path).await;
    if matches!(&answer, Ok(answer) if answer.status == 404) {
        return Ok(false);
    }
    let stored = api::expect(&attempt, answer)?.body;
    let wanted = match health {
        Health::Ready => "True",
        Health::ShuttingDown => "False",
        Health::Unknown => "Unknown",
    };
    if objects::ready_status(&stored) != wanted {
        let patch = json!({"status": {"conditions": objects::conditions(health, now)}});
        api::expect(&attempt, api::merge(api, &format!("{path}/status"), &patch).await)?;
    }
    Ok(true)
}
