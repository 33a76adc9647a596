//! Machines of AWS: instances that moto shows as running boot from their user data, and load balancers lead to them.
//!
//! This sees what the hypervisor sees, and the machine: user data, and what its script for cloud-init fetches with the AWS CLI by
//! the rights of the machine (`tests/moto/aws` sends its requests to moto as the user `node`). A load balancer's name gets an
//! address; connections to a listener's port there go to its targets, as far as they run. The cloud controller manager, which
//! writes the providerID of Nodes, is played as well.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::hypervisor::{Cloud, Endpoint, Guest, Shown};
use crate::lab;
use crate::machines::{Boot, Machines};
use crate::moto::Moto;
use crate::plane::root;

/// The networks of a scenario: what VPCs have by default, and public addresses of load balancers.
pub const NETWORKS: [&str; 2] = ["10.0.0.0/16", "3.80.0.0/24"];

/// The machines of a moto.
pub struct Ec2 {
    moto: Arc<Moto>,
    balancers: Mutex<Balancers>,
}

#[derive(Default)]
struct Balancers {
    /// As moto shows them.
    shown: Vec<Value>,
    /// The addresses of their names; an address is given once.
    addresses: BTreeMap<String, Ipv4Addr>,
    given: u8,
}

impl Ec2 {
    /// Those of this one.
    pub fn of(moto: &Arc<Moto>) -> Self {
        Self { moto: moto.clone(), balancers: Mutex::default() }
    }

    /// The first-boot data of an instance, wherever its user data leads.
    fn data(&self, instance: &str, account: &str) -> Result<Vec<u8>> {
        let data = self.moto.user_data(instance)?;
        match std::str::from_utf8(&data) {
            Ok(text) if text.starts_with("Content-Type: multipart/") => self.fetched(text, account),
            _ => Ok(data),
        }
    }

    /// Runs the boothook of a multi-part message as cloud-init would, and reads what the message includes then.
    fn fetched(&self, message: &str, account: &str) -> Result<Vec<u8>> {
        let boundary = message.split('"').nth(1).context("the message names no boundary")?;
        let parts: Vec<(&str, &str)> = message
            .split(&format!("--{boundary}"))
            .skip(1)
            .filter_map(|part| part.trim_start().split_once("\n\n"))
            .collect();
        let part = |kind: &str| {
            let found = parts.iter().find(|(head, _)| head.contains(&format!("Content-Type: {kind};")));
            found.map(|(_, body)| *body).with_context(|| format!("the message has no {kind}"))
        };
        let (script, included) = (part("text/cloud-boothook")?, part("text/x-include-url")?.trim());
        let machine = tempfile::tempdir()?;
        let (etc, bin) = (machine.path().join("etc"), machine.path().join("bin"));
        std::fs::create_dir(&bin)?;
        let systemctl = bin.join("systemctl");
        std::fs::write(&systemctl, "#!/bin/sh\n")?;
        std::fs::set_permissions(&systemctl, std::fs::Permissions::from_mode(0o755))?;
        std::os::unix::fs::symlink(root().canonicalize()?.join("tests/moto/aws"), bin.join("aws"))?;
        // Its own files are not this computer's.
        let own = |text: &str| text.replace("/etc/capstan", &etc.display().to_string());
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
        let output = Command::new("bash")
            .args(["-c", &own(script)])
            .env("PATH", path)
            .env("MOTO_CONTROL", &self.moto.control)
            .env("MOTO_ACCOUNT", account)
            .output()
            .context("start bash")?;
        if !output.status.success() {
            bail!("the boothook failed: {}", String::from_utf8_lossy(&output.stderr));
        }
        let included = own(included);
        let file = included.strip_prefix("file://").with_context(|| format!("{included} is no file"))?;
        std::fs::read(file).with_context(|| format!("read {file}"))
    }

    fn balancers(&self) -> std::sync::MutexGuard<'_, Balancers> {
        self.balancers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

fn all<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    value[field].as_array().into_iter().flatten()
}

impl Cloud for Ec2 {
    fn shown(&self) -> Result<Vec<Shown>> {
        let shown = self.moto.shown()?;
        self.balancers().shown = all(&shown, "balancers").cloned().collect();
        let there =
            all(&shown, "instances").filter(|instance| !["terminated", "pending"].contains(&text(instance, "state")));
        let machine = |instance: &Value| Shown {
            name: text(instance, "id").to_owned(),
            id: text(instance, "id").to_owned(),
            running: text(instance, "state") == "running",
            says: instance.clone(),
        };
        Ok(there.map(machine).collect())
    }

    fn boot(&self, machines: &Machines, shown: &Shown) -> Result<Guest> {
        let says = &shown.says;
        let (hostname, address) = (text(says, "host").to_owned(), text(says, "address").parse::<Ipv4Addr>()?);
        ensure!(!hostname.is_empty(), "it has no private name: {says}");
        let user_data = self.data(&shown.id, text(says, "account"))?;
        machines.boot(&Boot {
            name: &shown.name,
            hostname: &hostname,
            address,
            provider_id: &format!("aws:///{}/{}", text(says, "zone"), shown.id),
            zone: text(says, "zone"),
            cpus: 2,
            memory_mib: 8192,
            user_data: &user_data,
        })?;
        Ok(Guest { hostname, id: shown.id.clone(), address, user_data, running: true })
    }

    fn endpoints(&self) -> Result<Vec<Endpoint>> {
        let mut balancers = self.balancers();
        let Balancers { shown, addresses, given } = &mut *balancers;
        let before = addresses.clone();
        addresses.retain(|name, _| shown.iter().any(|balancer| text(balancer, "name") == name));
        for balancer in shown.iter() {
            addresses.entry(text(balancer, "name").to_owned()).or_insert_with(|| {
                *given += 1;
                Ipv4Addr::new(3, 80, 0, *given)
            });
        }
        if *addresses != before {
            let names: Vec<_> = addresses.iter().map(|(name, address)| (name.clone(), *address)).collect();
            lab::name(&names)?;
        }
        let port = |value: &Value| value["port"].as_u64().and_then(|port| u16::try_from(port).ok()).context("a port");
        let mut endpoints = Vec::new();
        for balancer in shown.iter() {
            let address = *addresses.get(text(balancer, "name")).context("a name without an address")?;
            for listener in all(balancer, "listeners") {
                let targets = all(listener, "targets")
                    .map(|target| Ok((text(target, "instance").to_owned(), port(target)?)))
                    .collect::<Result<_>>()?;
                endpoints.push(Endpoint { listen: SocketAddr::from((address, port(listener)?)), targets });
            }
        }
        Ok(endpoints)
    }
}
