//! The life of `examples/proxmox.yaml`, from nothing to nothing.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use capstan_tests::fakepve::{FakePve, documented_rights};
use capstan_tests::plane::{BackEnd, kubectl};
use capstan_tests::site::{MINUTE, condition, laps, name, told};
use capstan_tests::witness::Witness;
use capstan_tests::workers::Workers;
use capstan_tests::{lab, on_both_back_ends};
use serde_json::{Value, json};

use crate::site::{NETWORK, Site, example, proxmox, start};

const TOKEN: &str = "capstan@pve!cluster";
const SECRETS: [&str; 2] = ["6a1f0c52-93de-4c0b-8a55-0d2b7f61e9c4", "d0b4a7e9-2f6c-4e1d-b3a8-5c9e01f7426b"];
const WORKERS: &str = "proxmox-quickstart-workers";

fn workers(site: &Site) -> Workers<'_, FakePve> {
    Workers { site, deployment: WORKERS }
}

/// Each machine is one virtual machine, with an address of the pool, and its Node says so.
fn all_belongs_together(site: &Site) -> Result<()> {
    let machines = site.plane.items(&["machines", "-n", "default"])?;
    let guests = site.hypervisor.guests();
    ensure!(machines.len() == guests.len(), "{} Machines, {} virtual machines that run", machines.len(), guests.len());
    let kubeconfig = site.plane.workload_kubeconfig("proxmox-quickstart")?;
    let nodes: Value = serde_json::from_str(&kubectl(&kubeconfig, &["get", "nodes", "-o", "json"])?)?;
    let nodes = nodes["items"].as_array().context("no list of Nodes")?;
    ensure!(nodes.len() == machines.len(), "{} Nodes, {} Machines", nodes.len(), machines.len());
    let mut addresses = BTreeSet::new();
    for machine in &machines {
        let provider_id = machine["spec"]["providerID"].as_str().unwrap_or_default();
        let of_machine = |guest: &&capstan_tests::hypervisor::Guest| provider_id == format!("proxmox://{}", guest.id);
        let guest = guests.values().find(of_machine).with_context(|| format!("{provider_id} runs nowhere"))?;
        let node = nodes.iter().find(|node| node["spec"]["providerID"] == provider_id);
        let node = node.with_context(|| format!("no Node has the providerID {provider_id}"))?;
        ensure!(machine["status"]["nodeRef"]["name"] == node["metadata"]["name"], "{}", machine["status"]["nodeRef"]);
        let address = guest.address.to_string();
        ensure!((20..=40).contains(&guest.address.octets()[3]), "{address} is not of the pool");
        for object in [machine, node] {
            let told = object["status"]["addresses"].as_array().into_iter().flatten();
            ensure!(
                told.clone().any(|told| told["type"] == "InternalIP" && told["address"] == address.as_str()),
                "{} does not tell {address}: {:?}",
                name(object),
                told.collect::<Vec<_>>()
            );
        }
        ensure!(addresses.insert(address), "two machines have one address");
    }
    // What nobody claims any more goes with the garbage, which a real API server's controller collects when it comes to it.
    site.until(MINUTE, &format!("the IPAddresses that are held are {addresses:?}"), || {
        let held = site.plane.items(&["ipaddresses.ipam.cluster.x-k8s.io", "-n", "default"])?;
        let held = held.iter().map(|held| held["spec"]["address"].as_str().unwrap_or_default().to_owned());
        Ok(held.collect::<BTreeSet<_>>() == addresses)
    })
}

/// What holds tokens is gone from the drive and from the storage once the machine is a Node.
fn first_boot_data_is_gone(site: &Site) -> Result<()> {
    site.until(MINUTE, "the images are gone", || Ok(!site.server.left()?.iter().any(|line| line.contains("iso"))))?;
    for vm in site.server.vms()? {
        ensure!(
            vm["config"]["ide0"] == "none,media=cdrom",
            "VM {} has {} in its drive",
            vm["vmid"],
            vm["config"]["ide0"]
        );
    }
    Ok(())
}

on_both_back_ends!(from_nothing_to_nothing);

fn from_nothing_to_nothing(back_end: BackEnd) -> Result<()> {
    if !lab::enter(back_end, "life::from_nothing_to_nothing", &[NETWORK])? {
        return Ok(());
    }
    let (pve, mut hypervisor) = proxmox()?;
    hypervisor.serve_endpoint([10, 10, 10, 5].into(), "proxmox-quickstart-control-plane")?;
    pve.set_token(TOKEN, Some(SECRETS[0]))?;
    let rights = documented_rights()?;
    pve.grant("capstan@pve", "/", &rights.iter().map(String::as_str).collect::<Vec<_>>())?;
    let manifests = example(&pve, SECRETS[0])?;
    let mut site = start(back_end, pve, hypervisor, &manifests)?;
    site.plane.wait_applied(MINUTE)?;
    let witness = Witness::of(&site.plane.kubeconfig())?;
    let mut lap = laps();
    site.wait_ready(2 * MINUTE)?;
    lap("ready");
    site.available(4)?;
    lap("available");
    all_belongs_together(&site)?;
    first_boot_data_is_gone(&site)?;
    lap("images gone");

    // What the example asks for is what was made, spread over the nodes.
    let vms = site.server.vms()?;
    let of_workers: Vec<&Value> =
        vms.iter().filter(|vm| vm["name"].as_str().is_some_and(|name| name.starts_with(WORKERS))).collect();
    let nodes: BTreeSet<&str> = of_workers.iter().filter_map(|vm| vm["node"].as_str()).collect();
    ensure!(nodes == BTreeSet::from(["pve1", "pve2"]), "workers are on {nodes:?} only");
    for vm in &of_workers {
        let config = &vm["config"];
        ensure!(config["memory"].to_string().contains("8192") && config["cores"].to_string().contains('4'), "{config}");
        ensure!(config["tags"] == "capi;worker", "{config}");
        ensure!(config["scsi0"].as_str().is_some_and(|disk| disk.starts_with("shared:")), "{config}");
    }

    // 3 → 5, and while the new ones are made the token is given another secret.
    let before = site.server.vms()?.len();
    workers(&site).scale(5)?;
    site.until(MINUTE, "a new virtual machine", || Ok(site.server.vms()?.len() > before))?;
    site.server.set_token(TOKEN, Some(SECRETS[1]))?;
    site.until(MINUTE, "the refused credential is told", || {
        let machines = site.plane.items(&["proxmoxmachines", "-n", "default"])?;
        Ok(machines.iter().any(|machine| told(machine, "Ready").contains("CredentialRefused")))
    })?;
    lap("refused");
    let secret = json!({"stringData": {"secret": SECRETS[1]}}).to_string();
    site.plane.kubectl(&["patch", "secret", "proxmox-credentials", "--type=merge", "-p", &secret])?;
    workers(&site).settled(5)?;
    lap("5 workers");
    all_belongs_together(&site)?;
    workers(&site).scale(2)?;
    workers(&site).settled(2)?;
    site.until(MINUTE, "three virtual machines", || Ok(site.hypervisor.guests().len() == 3))?;
    lap("2 workers");
    all_belongs_together(&site)?;
    workers(&site).scale(3)?;
    workers(&site).settled(3)?;
    lap("3 workers");

    roll(&site)?;
    lap("rolled");
    lose_a_machine(&site)?;
    lap("lost");

    site.plane.kubectl(&["delete", "cluster", "proxmox-quickstart", "--timeout=120s"])?;
    lap("deleted");
    site.until(
        MINUTE,
        "nothing is left",
        || Ok(site.server.left()?.is_empty() && site.hypervisor.guests().is_empty()),
    )?;
    let kinds = "clusters,machines,machinesets,machinedeployments,kubeadmcontrolplanes,kubeadmconfigs,proxmoxclusters,\
                 proxmoxmachines,inclusterippools,ipaddressclaims.ipam.cluster.x-k8s.io,ipaddresses.ipam.cluster.x-k8s.io";
    site.until(MINUTE, "no object is left", || Ok(site.plane.items(&[kinds, "-n", "default"])?.is_empty()))?;
    site.until(MINUTE, "one Secret is left", || {
        let secrets = site.plane.items(&["secrets", "-n", "default"])?;
        Ok(secrets.iter().map(name).collect::<Vec<_>>() == ["proxmox-credentials"])
    })?;
    ensure!(site.hypervisor.problems().is_empty(), "{:?}", site.hypervisor.problems());
    lap("nothing left");
    let tokens = SECRETS.map(|secret| ("token of Proxmox VE", secret));
    site.tells_no_secret(&witness, &tokens, "/apis/infrastructure.cluster.x-k8s.io/v1alpha2/proxmoxmachines")?;
    lap("searched");
    Ok(())
}

/// Another template rolls all workers, and what it asks for is what is made.
fn roll(site: &Site) -> Result<()> {
    workers(site).roll("proxmoxmachinetemplate", &json!({"memoryMiB": 16384}))?;
    for vm in site.server.vms()?.iter().filter(|vm| vm["name"].as_str().is_some_and(|name| name.starts_with(WORKERS))) {
        ensure!(vm["config"]["memory"].to_string().contains("16384"), "{}", vm["config"]);
    }
    all_belongs_together(site)
}

/// A virtual machine that somebody destroys is told of, and not made anew behind the user's back.
fn lose_a_machine(site: &Site) -> Result<()> {
    let lost = workers(site).machines()?.first().map(name).context("no worker")?;
    let infrastructure = site.plane.get(&["proxmoxmachine", &lost])?;
    let vmid = infrastructure["status"]["virtualMachineID"].as_u64().context("no number in the status")?;
    site.server.by_hand(vmid, "destroy")?;
    let left = site.server.vms()?.len();
    site.until(2 * MINUTE, "the loss is told", || {
        let machine = site.plane.get(&["machine", &lost])?;
        let infrastructure = site.plane.get(&["proxmoxmachine", &lost])?;
        Ok(told(&infrastructure, "VirtualMachineProvisioned").contains("VMNotFound")
            && condition(&machine, "InfrastructureReady").is_some_and(|condition| condition["status"] == "False"))
    })?;
    ensure!(site.server.vms()?.len() == left, "it was made again behind the user's back");
    Ok(())
}
