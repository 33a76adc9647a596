//! Machines of Proxmox VE: those that fakepve shows as running boot from the image in their drive.
//!
//! This sees what a hypervisor sees: which machines run, their MAC addresses, the volume in the drive. A machine that was started
//! boots as cloud-init does from a NoCloud image: user data, host name, and the static address that its network configuration
//! gives to the interface of its MAC address, or one of "DHCP" where it gives none. Its guest agent then tells that address.

use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::fakepve::FakePve;
use crate::hypervisor::{Cloud, Guest, Shown};
use crate::machines::{Boot, Machines};

/// The machines of a fakepve.
pub struct NoCloud {
    pve: Arc<FakePve>,
    /// The last part of the next address of "DHCP".
    next_lease: AtomicU8,
}

/// What an image says.
struct Image {
    user_data: Vec<u8>,
    metadata: Value,
    network: Value,
}

impl NoCloud {
    /// Those of this one.
    pub fn of(pve: &Arc<FakePve>) -> Self {
        Self { pve: pve.clone(), next_lease: AtomicU8::new(201) }
    }

    fn lease(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 10, 10, self.next_lease.fetch_add(1, Ordering::SeqCst))
    }
}

impl Cloud for NoCloud {
    fn shown(&self) -> Result<Vec<Shown>> {
        let shown = |vm: Value| Shown {
            name: format!("vm{}", vm["vmid"]),
            id: uuid(&vm["config"]).unwrap_or_default(),
            running: vm["status"] == "running",
            says: vm,
        };
        Ok(self.pve.vms()?.into_iter().map(shown).collect())
    }

    fn boot(&self, machines: &Machines, shown: &Shown) -> Result<Guest> {
        let vm = &shown.says;
        let (vmid, config) = (vm["vmid"].as_u64().context("no number")?, &vm["config"]);
        let drive = config["ide0"].as_str().context("it has no image in ide0")?;
        let (storage, rest) = drive.split_once(":iso/").with_context(|| format!("ide0 is {drive}"))?;
        let file = rest.split(',').next().unwrap_or_default();
        ensure!(rest.contains("media=cdrom"), "ide0 is no CD: {drive}");
        let image = Image::read(&self.pve.iso(storage, file)?)?;

        let uuid = uuid(config).context("its BIOS has no uuid")?;
        let text = |field: &str| image.metadata[field].as_str().unwrap_or_default().to_owned();
        ensure!(text("instance-id") == uuid, "the instance-id is {}, the uuid {uuid}", text("instance-id"));
        let hostname = text("local-hostname");
        ensure!(!hostname.is_empty(), "the metadata names no host: {}", image.metadata);
        let mac = mac(config).context("net0 has no MAC address")?;
        let address = match image.address(&mac)? {
            Some(address) => address,
            None => self.lease(),
        };
        machines.boot(&Boot {
            name: &shown.name,
            hostname: &hostname,
            address,
            // Nothing in Proxmox VE writes it.
            provider_id: "",
            zone: vm["node"].as_str().unwrap_or_default(),
            cpus: number(&config["cores"]) * number(&config["sockets"]),
            memory_mib: number(&config["memory"]),
            user_data: &image.user_data,
        })?;
        self.pve.set_interfaces(
            vmid,
            &json!([
                {"name": "lo", "hardware-address": "00:00:00:00:00:00",
                 "ip-addresses": [{"ip-address": "127.0.0.1", "ip-address-type": "ipv4", "prefix": 8}]},
                {"name": "eth0", "hardware-address": mac,
                 "ip-addresses": [{"ip-address": address, "ip-address-type": "ipv4", "prefix": 24}]},
            ]),
        )?;
        Ok(Guest { hostname, id: uuid, address, user_data: image.user_data, running: true })
    }
}

/// Numbers of a configuration may be written as text.
fn number(value: &Value) -> u64 {
    value.as_u64().or_else(|| value.as_str()?.parse().ok()).unwrap_or(1)
}

fn uuid(config: &Value) -> Option<String> {
    let smbios = config["smbios1"].as_str()?;
    smbios.split(',').find_map(|part| part.strip_prefix("uuid=")).map(str::to_owned)
}

/// The MAC address of net0, in lower case.
fn mac(config: &Value) -> Option<String> {
    let net = config["net0"].as_str()?;
    net.split(',').next()?.split_once('=').map(|(_, mac)| mac.to_lowercase())
}

impl Image {
    /// Reads a NoCloud image with a reader of ISO 9660 that is not ours.
    fn read(bytes: &[u8]) -> Result<Self> {
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), bytes)?;
        let isoinfo = |args: &[&str]| -> Result<Vec<u8>> {
            let output = Command::new("isoinfo").arg("-i").arg(file.path()).args(args).output();
            let output = output.context("start isoinfo; run tests/setup.sh")?;
            ensure!(output.status.success(), "isoinfo {args:?}: {}", String::from_utf8_lossy(&output.stderr));
            Ok(output.stdout)
        };
        let description = String::from_utf8_lossy(&isoinfo(&["-d"])?).into_owned();
        let label = description.lines().find_map(|line| line.strip_prefix("Volume id: ")).unwrap_or_default();
        ensure!(label.trim().eq_ignore_ascii_case("cidata"), "cloud-init looks for the label cidata, not {label:?}");
        let member = |name: &str| isoinfo(&["-J", "-x", &format!("/{name}")]);
        let json = |name: &str| -> Result<Value> {
            serde_json::from_slice(&member(name)?).with_context(|| format!("{name} of the image"))
        };
        Ok(Self { user_data: member("user-data")?, metadata: json("meta-data")?, network: json("network-config")? })
    }

    /// The static address of the interface with this MAC address.
    fn address(&self, mac: &str) -> Result<Option<Ipv4Addr>> {
        let ethernets = self.network["ethernets"].as_object().context("no ethernets in the network configuration")?;
        let ours = ethernets.values().find(|ethernet| ethernet["match"]["macaddress"] == mac);
        let ours = ours.with_context(|| format!("no interface has the MAC address {mac}: {}", self.network))?;
        let Some(address) = ours["addresses"].get(0).and_then(Value::as_str) else {
            ensure!(ours["dhcp4"] == true, "an interface without an address: {ours}");
            return Ok(None);
        };
        let (address, _) = address.split_once('/').with_context(|| format!("{address} has no prefix"))?;
        Ok(Some(address.parse()?))
    }
}
