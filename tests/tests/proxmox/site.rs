//! A Proxmox VE with somebody who runs its machines.

use std::sync::Arc;

use anyhow::{Result, ensure};
use capstan_tests::fakepve::FakePve;
use capstan_tests::http::Client;
use capstan_tests::hypervisor::Hypervisor;
use capstan_tests::machines::Machines;
use capstan_tests::nocloud::NoCloud;
use capstan_tests::plane::{BackEnd, root};
use capstan_tests::site;
use serde_json::Value;

/// The network of `examples/proxmox.yaml`.
pub const NETWORK: &str = "10.10.10.0/24";
/// Where Proxmox VE is in it.
const PVE: &str = "10.10.10.2:8006";
/// Seconds of this computer that a second of Proxmox VE takes.
const TIME_SCALE: f64 = 0.02;

/// All that is there.
pub type Site = site::Site<FakePve>;

/// A Proxmox VE and its hypervisor, before there is a management plane.
pub fn proxmox() -> Result<(Arc<FakePve>, Hypervisor)> {
    let client = Client::new()?;
    let pve = Arc::new(FakePve::start(&client, PVE, TIME_SCALE)?);
    let hypervisor = Hypervisor::start(Arc::new(NoCloud::of(&pve)), Machines::start(&client)?);
    Ok((pve, hypervisor))
}

/// Starts a management plane that applies these manifests.
pub fn start(back_end: BackEnd, pve: Arc<FakePve>, hypervisor: Hypervisor, manifests: &str) -> Result<Site> {
    Site::start(back_end, pve, hypervisor, "proxmoxclusters,proxmoxmachines", manifests)
}

/// `examples/proxmox.yaml` with this secret of the token, and the certificate of this Proxmox VE; nothing else is changed.
pub fn example(pve: &FakePve, secret: &str) -> Result<String> {
    let text = std::fs::read_to_string(root().join("examples/proxmox.yaml"))?;
    let placeholder = "  secret: 00000000-0000-0000-0000-000000000000\n";
    ensure!(text.contains(placeholder), "the example's placeholder of a secret has changed");
    let certificate = Value::from(pve.ca.as_str());
    Ok(text.replace(placeholder, &format!("  secret: {secret}\n  ca.crt: {certificate}\n")))
}
