//! What stands in for the hypervisor: machines that fakepve shows as running boot from the image in their drive.
//!
//! It sees what a hypervisor sees: which machines run, their MAC addresses, the volume in the drive. A machine that was started
//! boots as cloud-init does from a NoCloud image: user data, host name, and the static address that its network configuration
//! gives to the interface of its MAC address, or one of "DHCP" where it gives none. Its guest agent then tells that address.
//! Whoever is stopped or taken away on fakepve goes off. Connections to an endpoint go to the machines of its cluster, as with
//! kube-vip.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::fakepve::FakePve;
use crate::machines::{Boot, Forward, Machines};

/// How often fakepve, which has no events, is looked at.
const LOOK: Duration = Duration::from_millis(50);
/// The port of API servers.
const PORT: u16 = 6443;

/// A running stand-in; it ends with this.
pub struct Hypervisor {
    shared: Arc<Shared>,
    watcher: Option<JoinHandle<()>>,
    endpoints: Vec<Forward>,
}

struct Shared {
    pve: Arc<FakePve>,
    machines: Machines,
    /// What runs here, by number.
    guests: Mutex<BTreeMap<u64, Guest>>,
    /// What no hypervisor would have booted, and why.
    problems: Mutex<Vec<String>>,
    /// The last part of the next address of "DHCP".
    next_lease: Mutex<u8>,
    stop: AtomicBool,
}

/// A machine that was booted.
#[derive(Clone, Debug)]
pub struct Guest {
    /// Its host name.
    pub hostname: String,
    /// The uuid of its BIOS.
    pub uuid: String,
    /// Its address.
    pub address: Ipv4Addr,
    /// The user data that it was given.
    pub user_data: Vec<u8>,
    running: bool,
}

/// What an image says.
struct Image {
    user_data: Vec<u8>,
    metadata: Value,
    network: Value,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hypervisor {
    /// Looks after the machines of a fakepve.
    pub fn start(pve: &Arc<FakePve>, machines: Machines) -> Self {
        let shared = Arc::new(Shared {
            pve: pve.clone(),
            machines,
            guests: Mutex::default(),
            problems: Mutex::default(),
            next_lease: Mutex::new(200),
            stop: AtomicBool::new(false),
        });
        let watcher = std::thread::spawn({
            let shared = shared.clone();
            move || {
                while !shared.stop.load(Ordering::SeqCst) {
                    if let Err(error) = shared.look() {
                        let (problem, mut problems) = (format!("{error:#}"), lock(&shared.problems));
                        // It is tried again, and told once.
                        if problems.last() != Some(&problem) {
                            problems.push(problem);
                        }
                    }
                    std::thread::sleep(LOOK);
                }
            }
        });
        Self { shared, watcher: Some(watcher), endpoints: Vec::new() }
    }

    /// Connections to this address go to a machine whose host name begins with `prefix`, as those that kube-vip runs on.
    ///
    /// # Errors
    /// When the address is not this computer's, or taken.
    pub fn serve_endpoint(&mut self, address: Ipv4Addr, prefix: &str) -> Result<()> {
        let (shared, prefix) = (Arc::downgrade(&self.shared), prefix.to_owned());
        let targets = move || {
            let Some(shared) = shared.upgrade() else { return Vec::new() };
            let guests = lock(&shared.guests);
            let serving = guests.values().filter(|guest| guest.running && guest.hostname.starts_with(&prefix));
            serving.map(|guest| SocketAddr::from((guest.address, PORT))).collect()
        };
        let forward = self.shared.machines.forward(SocketAddr::from((address, PORT)), targets)?;
        self.endpoints.push(forward);
        Ok(())
    }

    /// The machines that were booted and are still there, by number.
    pub fn guests(&self) -> BTreeMap<u64, Guest> {
        lock(&self.shared.guests).clone()
    }

    /// What no hypervisor would have booted so far, and why. Nothing, unless a test provokes it.
    pub fn problems(&self) -> Vec<String> {
        lock(&self.shared.problems).clone()
    }

    /// What the machines print, and why those that did not become Nodes did not: for messages of tests.
    pub fn describe(&self) -> String {
        let machines = self.shared.machines.all().unwrap_or_default();
        let mut text: Vec<String> = machines
            .iter()
            .map(|machine| {
                let console: Vec<&str> =
                    machine["console"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
                let last = console.len().saturating_sub(4);
                format!(
                    "{} {} node {} {} | {}",
                    machine["name"],
                    machine["state"],
                    machine["node"],
                    machine["bootError"],
                    console.get(last..).unwrap_or_default().join(" | ")
                )
            })
            .collect();
        text.extend(self.problems().into_iter().map(|problem| format!("hypervisor: {problem}")));
        text.join("\n")
    }
}

impl Drop for Hypervisor {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        if let Some(watcher) = self.watcher.take() {
            let _ = watcher.join();
        }
    }
}

impl Shared {
    /// Brings what runs here in step with what fakepve shows.
    fn look(&self) -> Result<()> {
        let vms = self.pve.vms()?;
        let number = |vm: &Value| vm["vmid"].as_u64().unwrap_or_default();
        let known: Vec<(u64, Guest)> = lock(&self.guests).iter().map(|(vmid, guest)| (*vmid, guest.clone())).collect();
        for (vmid, guest) in &known {
            let same = |vm: &&Value| number(vm) == *vmid && uuid(&vm["config"]).as_ref() == Some(&guest.uuid);
            let runs = vms.iter().find(same).map(|vm| vm["status"] == "running");
            match (runs, guest.running) {
                (None, _) => {
                    self.machines.remove(&name(*vmid))?;
                    lock(&self.guests).remove(vmid);
                }
                (Some(runs), running) if runs != running => {
                    self.machines.strike(&name(*vmid), if runs { "start" } else { "stop" })?;
                    if let Some(guest) = lock(&self.guests).get_mut(vmid) {
                        guest.running = runs;
                    }
                }
                _ => {}
            }
        }
        let known: Vec<u64> = lock(&self.guests).keys().copied().collect();
        for vm in vms.iter().filter(|vm| vm["status"] == "running" && !known.contains(&number(vm))) {
            self.boot(vm).with_context(|| format!("VM {} cannot boot", vm["vmid"]))?;
        }
        Ok(())
    }

    fn boot(&self, vm: &Value) -> Result<()> {
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
        self.machines.boot(&Boot {
            name: &name(vmid),
            hostname: &hostname,
            address,
            // Nothing in Proxmox VE writes it.
            provider_id: "",
            zone: vm["node"].as_str().unwrap_or_default(),
            cpus: number(&config["cores"]) * number(&config["sockets"]),
            memory_mib: number(&config["memory"]),
            user_data: &image.user_data,
        })?;
        let guest = Guest { hostname, uuid, address, user_data: image.user_data, running: true };
        lock(&self.guests).insert(vmid, guest);
        self.pve.set_interfaces(
            vmid,
            &json!([
                {"name": "lo", "hardware-address": "00:00:00:00:00:00",
                 "ip-addresses": [{"ip-address": "127.0.0.1", "ip-address-type": "ipv4", "prefix": 8}]},
                {"name": "eth0", "hardware-address": mac,
                 "ip-addresses": [{"ip-address": address, "ip-address-type": "ipv4", "prefix": 24}]},
            ]),
        )
    }

    fn lease(&self) -> Ipv4Addr {
        let mut next = lock(&self.next_lease);
        *next += 1;
        Ipv4Addr::new(10, 10, 10, *next)
    }
}

fn name(vmid: u64) -> String {
    format!("vm{vmid}")
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
