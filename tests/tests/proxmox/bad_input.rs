//! What is wrong is told where it is, in words that say which it is, and the rest keeps working.

use anyhow::Result;
use capstan_tests::fakepve::documented_rights;
use capstan_tests::lab;
use capstan_tests::on_both_back_ends;
use capstan_tests::plane::BackEnd;
use capstan_tests::site::{MINUTE, list, merge};
use serde_json::{Value, json};

use crate::objects::{cluster, credentials, machine};
use crate::site::{NETWORK, proxmox, start};

const TOKEN: &str = "capstan@pve!cluster";
const SECRET: &str = "3c7e9f02-8a41-4d6b-b5d0-91f2a6c84e17";
const NAMESPACE: &str = "lab";

on_both_back_ends!(the_condition_says_what_is_wrong);

fn the_condition_says_what_is_wrong(back_end: BackEnd) -> Result<()> {
    if !lab::enter(back_end, "bad_input::the_condition_says_what_is_wrong", &[NETWORK])? {
        return Ok(());
    }
    let (pve, hypervisor) = proxmox()?;
    pve.set_token(TOKEN, Some(SECRET))?;
    let rights = documented_rights()?;
    pve.grant("capstan@pve", "/", &rights.iter().map(String::as_str).collect::<Vec<_>>())?;
    let mut objects = cluster(&pve, NAMESPACE, 11, TOKEN, "00000000-0000-0000-0000-00000000feed");
    objects.extend(machine(NAMESPACE, 11, "m", &json!({})));
    let mut site = start(back_end, pve, hypervisor, &list(&objects))?;
    site.plane.wait_applied(MINUTE)?;

    // An address that no policy lists; then a token that is wrong.
    site.says(NAMESPACE, "proxmoxcluster", "c", &["10.10.10.2", "EgressPolicy"])?;
    site.apply(&list(&[json!({"apiVersion": "capstan.dev/v1alpha1", "kind": "EgressPolicy",
        "metadata": {"name": "proxmox"}, "spec": {"addresses": [NETWORK]}})]))?;
    site.says(NAMESPACE, "proxmoxcluster", "c", &["CredentialRefused", "401", "`secret`"])?;
    site.apply(&list(&[credentials(&site.server, NAMESPACE, TOKEN, SECRET)]))?;
    site.says(NAMESPACE, "proxmoxcluster", "c", &["True"])?;
    site.says(NAMESPACE, "proxmoxmachine", "m", &["True"])?;

    // A template that is not there, and a storage without room: each told on its machine, and the other machine is well.
    site.apply(&list(&machine(NAMESPACE, 11, "no-template", &json!({"spec": {"templateID": 9999}}))))?;
    site.says(NAMESPACE, "proxmoxmachine", "no-template", &["TemplateNotFound", "9999"])?;
    site.server.set_storage(&json!({"avail": 1 << 20}))?;
    site.apply(&list(&machine(NAMESPACE, 11, "no-room", &json!({}))))?;
    site.says(NAMESPACE, "proxmoxmachine", "no-room", &["StorageFull", "No space left", "shared"])?;
    site.says(NAMESPACE, "proxmoxmachine", "m", &["True"])?;
    // With room it goes on by itself.
    site.server.set_storage(&json!({"avail": 1_u64 << 40}))?;
    site.says(NAMESPACE, "proxmoxmachine", "no-room", &["True"])?;

    // What cannot be right is refused before it is anything: the field is named.
    let refused = |more: Value| -> Result<String> {
        let mut objects = machine(NAMESPACE, 11, "refused", &json!({}));
        let mut infrastructure = objects.pop().unwrap_or_default();
        merge(&mut infrastructure, &more);
        match site.apply(&list(&[infrastructure])) {
            Ok(said) => anyhow::bail!("{more} was accepted: {said}"),
            Err(error) => Ok(format!("{error:#}")),
        }
    };
    for (more, words) in [
        (json!({"spec": {"memoryMiB": 1001}}), "memoryMiB"),
        (json!({"spec": {"virtualMachineID": 7}}), "virtualMachineID"),
        (json!({"spec": {"templateSelector": {"matchTags": ["x"]}}}), "templateSelector"),
        (json!({"spec": {"full": false}}), "full"),
        (json!({"spec": {"disks": {"bootVolume": {"disk": "scsi0", "sizeGb": 1}}}}), "sizeGb"),
        (json!({"spec": {"network": {"vrfs": [{"name": "blue"}]}}}), "vrfs"),
    ] {
        let said = refused(more)?;
        anyhow::ensure!(said.contains(words), "{said:?} does not name {words}");
    }
    site.plane.kubectl(&["delete", "machines", "--all", "-n", NAMESPACE, "--timeout=60s"])?;
    site.plane.kubectl(&["delete", "cluster", "c", "-n", NAMESPACE, "--timeout=60s"])?;
    site.until(MINUTE, "nothing is left", || Ok(site.server.left()?.is_empty()))?;
    anyhow::ensure!(site.hypervisor.problems().is_empty(), "{:?}", site.hypervisor.problems());
    Ok(())
}
