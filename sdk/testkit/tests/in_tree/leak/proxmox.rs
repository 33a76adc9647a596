//! `proxmox` against fakepve, which checks every call against the real schema.

use async_trait::async_trait;
use capstan_api::ObjectKey;
use capstan_gateway::CredentialKind;
use capstan_testkit::Exchange;
use capstan_testkit::conformance::{Access, Life, Server, ServerStarts, Suite};
use serde_json::json;

use super::scenery::{INFRASTRUCTURE, Stand, around_machine, cluster_of, node_joins, owner};
use super::{FAILED, all, sample, worlds};

/// fakepve as the test sees it.
struct FakePve(Stand);

#[async_trait]
impl Server for FakePve {
    fn access(&self) -> Access {
        let header = ("Authorization".to_owned(), "{token}".to_owned());
        let token = [("token".to_owned(), self.0.text("/token").into())].into();
        Access { origin: self.0.text("/url"), credential: Some((CredentialKind::Headers(vec![header]), token)) }
    }

    async fn left(&self) -> anyhow::Result<Vec<String>> {
        // A disk is named after its machine's number.
        let shown = |line: String| match line.split_once(" ") {
            Some((storage, name)) if name != "iso" => format!("{storage} disk"),
            _ => line,
        };
        Ok(self.0.left().await?.into_iter().map(shown).collect())
    }

    async fn clear(&self) -> anyhow::Result<()> {
        self.0.clear().await
    }

    fn is_shared(&self, exchange: &Exchange) -> bool {
        exchange.target.starts_with("/api2/json/cluster/resources")
    }
}

fn machine(name: &'static str) -> Life {
    let api_version = format!("{INFRASTRUCTURE}/v1alpha2");
    let mut objects = vec![
        cluster_of("ProxmoxCluster"),
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
        let pve: Box<dyn Server> = Box::new(FakePve(Stand::start("fakepve/serve.py", &[])));
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
