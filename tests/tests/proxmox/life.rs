//! The life of `examples/proxmox.yaml`, from nothing to nothing.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use capstan_tests::fakepve::documented_rights;
use capstan_tests::plane::{BackEnd, kubectl};
use capstan_tests::witness::Witness;
use capstan_tests::{lab, on_both_back_ends};
use serde_json::{Value, json};

use crate::site::{MINUTE, NETWORK, Site, condition, example, name, proxmox, told};

const TOKEN: &str = "capstan@pve!cluster";
const SECRETS: [&str; 2] = ["6a1f0c52-93de-4c0b-8a55-0d2b7f61e9c4", "d0b4a7e9-2f6c-4e1d-b3a8-5c9e01f7426b"];
const WORKERS: &str = "proxmox-quickstart-workers";

fn workers(site: &Site) -> Result<Vec<Value>> {
    let label = format!("cluster.x-k8s.io/deployment-name={WORKERS}");
    site.plane.items(&["machines", "-n", "default", "-l", &label])
}

fn is_available(machine: &Value) -> bool {
    condition(machine, "Available").is_some_and(|condition| condition["status"] == "True")
}

fn scale(site: &Site, replicas: usize) -> Result<()> {
    site.plane.kubectl(&["scale", "machinedeployment", WORKERS, &format!("--replicas={replicas}")]).map(drop)
}

fn settled(site: &Site, replicas: usize) -> Result<()> {
    site.until(2 * MINUTE, &format!("{replicas} workers"), || {
        let workers = workers(site)?;
        Ok(workers.len() == replicas && workers.iter().all(is_available))
    })
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
        let of_machine = |guest: &&capstan_tests::hypervisor::Guest| provider_id == format!("proxmox://{}", guest.uuid);
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
    let held: BTreeSet<String> = site
        .plane
        .items(&["ipaddresses", "-n", "default"])?
        .iter()
        .map(|held| held["spec"]["address"].as_str().unwrap_or_default().to_owned())
        .collect();
    ensure!(held == addresses, "IPAddresses {held:?}, machines {addresses:?}");
    Ok(())
}

/// What holds tokens is gone from the drive and from the storage once the machine is a Node.
fn first_boot_data_is_gone(site: &Site) -> Result<()> {
    site.until(MINUTE, "the images are gone", || Ok(!site.pve.left()?.iter().any(|line| line.contains("iso"))))?;
    for vm in site.pve.vms()? {
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
    let test = match back_end {
        BackEnd::Embedded => "life::from_nothing_to_nothing::embedded",
        BackEnd::Real => "life::from_nothing_to_nothing::real",
    };
    if !lab::enter(test, &[NETWORK])? {
        return Ok(());
    }
    let (pve, mut hypervisor) = proxmox()?;
    hypervisor.serve_endpoint([10, 10, 10, 5].into(), "proxmox-quickstart-control-plane")?;
    pve.set_token(TOKEN, Some(SECRETS[0]))?;
    let rights = documented_rights()?;
    pve.grant("capstan@pve", "/", &rights.iter().map(String::as_str).collect::<Vec<_>>())?;
    let manifests = example(&pve, SECRETS[0])?;
    let mut site = Site::start(back_end, pve, hypervisor, &manifests)?;
    site.plane.wait_applied(MINUTE)?;
    let witness = Witness::of(&site.plane.kubeconfig())?;
    let began = std::time::Instant::now();
    let mut lap = {
        let mut last = began;
        move |what: &str| {
            println!("{what}: {:.1} s", last.elapsed().as_secs_f64());
            last = std::time::Instant::now();
        }
    };
    site.wait_ready(2 * MINUTE)?;
    lap("ready");
    site.until(MINUTE, "four machines that are available", || {
        let machines = site.plane.items(&["machines", "-n", "default"])?;
        Ok(machines.len() == 4 && machines.iter().all(is_available))
    })?;
    lap("available");
    all_belongs_together(&site)?;
    first_boot_data_is_gone(&site)?;
    lap("images gone");

    // What the example asks for is what was made, spread over the nodes.
    let vms = site.pve.vms()?;
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
    let before = site.pve.vms()?.len();
    scale(&site, 5)?;
    site.until(MINUTE, "a new virtual machine", || Ok(site.pve.vms()?.len() > before))?;
    site.pve.set_token(TOKEN, Some(SECRETS[1]))?;
    site.until(MINUTE, "the refused credential is told", || {
        let machines = site.plane.items(&["proxmoxmachines", "-n", "default"])?;
        Ok(machines.iter().any(|machine| told(machine, "Ready").contains("CredentialRefused")))
    })?;
    lap("refused");
    let secret = json!({"stringData": {"secret": SECRETS[1]}}).to_string();
    site.plane.kubectl(&["patch", "secret", "proxmox-credentials", "--type=merge", "-p", &secret])?;
    settled(&site, 5)?;
    lap("5 workers");
    all_belongs_together(&site)?;
    scale(&site, 2)?;
    settled(&site, 2)?;
    site.until(MINUTE, "three virtual machines", || Ok(site.hypervisor.guests().len() == 3))?;
    lap("2 workers");
    all_belongs_together(&site)?;
    scale(&site, 3)?;
    settled(&site, 3)?;
    lap("3 workers");

    roll(&site)?;
    lap("rolled");
    lose_a_machine(&site)?;
    lap("lost");

    site.plane.kubectl(&["delete", "cluster", "proxmox-quickstart", "--timeout=120s"])?;
    lap("deleted");
    site.until(MINUTE, "nothing is left", || Ok(site.pve.left()?.is_empty() && site.hypervisor.guests().is_empty()))?;
    let kinds = "clusters,machines,machinesets,machinedeployments,kubeadmcontrolplanes,kubeadmconfigs,proxmoxclusters,\
                 proxmoxmachines,inclusterippools,ipaddressclaims,ipaddresses";
    site.until(MINUTE, "no object is left", || Ok(site.plane.items(&[kinds, "-n", "default"])?.is_empty()))?;
    site.until(MINUTE, "one Secret is left", || {
        let secrets = site.plane.items(&["secrets", "-n", "default"])?;
        Ok(secrets.iter().map(name).collect::<Vec<_>>() == ["proxmox-credentials"])
    })?;
    ensure!(site.hypervisor.problems().is_empty(), "{:?}", site.hypervisor.problems());
    lap("nothing left");
    no_secret_was_told(&mut site, &witness)?;
    lap("searched");
    Ok(())
}

/// Whatever was logged, recorded, shown or told in this run, no secret of it is in there.
fn no_secret_was_told(site: &mut Site, witness: &Witness) -> Result<()> {
    let (mut said, mut secrets) = site.said(witness)?;
    SECRETS.iter().for_each(|secret| secrets.add("token of Proxmox VE", secret.as_bytes()));
    // Four key pairs and a kubeconfig of the cluster, a bootstrap token for each worker, both tokens of Proxmox VE.
    ensure!(secrets.len() > 20, "only {} secrets are known: nothing was collected", secrets.len());
    for place in ["output", "recording", "/apis/infrastructure.cluster.x-k8s.io/v1alpha2/proxmoxmachines"] {
        let size = said.get(place).map_or(0, Vec::len);
        ensure!(size > 10_000, "{place} has {size} bytes: it is not what was said");
    }
    ensure!(said.keys().any(|place| place.ends_with("/events")), "no events were seen");
    let output = String::from_utf8_lossy(said.get("output").map(Vec::as_slice).unwrap_or_default()).into_owned();
    ensure!(output.contains("on record") && output.contains("<secret:"), "the ledger's entries are not in the log");
    let total: usize = said.values().map(Vec::len).sum();
    println!("{} secrets, looked for in {} places of {} KiB", secrets.len(), said.len(), total >> 10);
    for (place, words) in &said {
        let found = secrets.found_in(words);
        ensure!(found.is_empty(), "{place} tells {found:#?}");
    }
    // The search would have found one.
    let planted = said.get_mut("recording").context("no recording")?;
    planted.extend(format!("{{\"body\":\"x{}\"}}", &SECRETS[1][9..]).bytes());
    ensure!(!secrets.found_in(planted).is_empty(), "a planted secret was not found");
    Ok(())
}

/// Another template rolls all workers: never fewer than three are available, never more than four there.
fn roll(site: &Site) -> Result<()> {
    let mut template = site.plane.get(&["proxmoxmachinetemplate", WORKERS])?;
    template["metadata"] = json!({"name": format!("{WORKERS}-2"), "namespace": "default"});
    template["spec"]["template"]["spec"]["memoryMiB"] = 16384.into();
    let file = site.file("template.json", &template.to_string())?;
    site.plane.kubectl(&["create", "-f", file.to_str().unwrap_or_default()])?;
    let old: Vec<String> = workers(site)?.iter().map(name).collect();
    let reference = json!({"spec": {"template": {"spec": {"infrastructureRef": {"name": format!("{WORKERS}-2")}}}}});
    site.plane.kubectl(&["patch", "machinedeployment", WORKERS, "--type=merge", "-p", &reference.to_string()])?;
    let (mut most, mut fewest) = (0, usize::MAX);
    site.until(2 * MINUTE, "the roll-out", || {
        let now = workers(site)?;
        let staying: Vec<&Value> =
            now.iter().filter(|machine| machine["metadata"]["deletionTimestamp"].is_null()).collect();
        let available = staying.iter().filter(|machine| is_available(machine)).count();
        (most, fewest) = (most.max(staying.len()), fewest.min(available));
        Ok(now.len() == 3 && available == 3 && now.iter().all(|machine| !old.contains(&name(machine))))
    })?;
    ensure!(most <= 4, "maxSurge is 1 and {most} machines were there");
    ensure!(fewest >= 3, "maxUnavailable is 0 and only {fewest} were available");
    for vm in site.pve.vms()?.iter().filter(|vm| vm["name"].as_str().is_some_and(|name| name.starts_with(WORKERS))) {
        ensure!(vm["config"]["memory"].to_string().contains("16384"), "{}", vm["config"]);
    }
    all_belongs_together(site)
}

/// A virtual machine that somebody destroys is told of, and not made anew behind the user's back.
fn lose_a_machine(site: &Site) -> Result<()> {
    let lost = workers(site)?.first().map(name).context("no worker")?;
    let infrastructure = site.plane.get(&["proxmoxmachine", &lost])?;
    let vmid = infrastructure["status"]["virtualMachineID"].as_u64().context("no number in the status")?;
    site.pve.by_hand(vmid, "destroy")?;
    let left = site.pve.vms()?.len();
    site.until(2 * MINUTE, "the loss is told", || {
        let machine = site.plane.get(&["machine", &lost])?;
        let infrastructure = site.plane.get(&["proxmoxmachine", &lost])?;
        Ok(told(&infrastructure, "VirtualMachineProvisioned").contains("VMNotFound")
            && condition(&machine, "InfrastructureReady").is_some_and(|condition| condition["status"] == "False"))
    })?;
    ensure!(site.pve.vms()?.len() == left, "it was made again behind the user's back");
    Ok(())
}
