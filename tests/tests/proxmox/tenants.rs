//! Two tenants with a token each on one Proxmox VE that checks rights: neither can touch the other's machines by any manifest
//! that it can write.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use capstan_tests::fakepve::FakePve;
use capstan_tests::lab;
use capstan_tests::on_both_back_ends;
use capstan_tests::plane::BackEnd;
use capstan_tests::site::{MINUTE, condition, list, merge, told};
use serde_json::{Value, json};

use crate::objects::{self, credentials};
use crate::site::{NETWORK, Site, proxmox, start};

/// A tenant.
struct Tenant {
    /// Its namespace; its user, pool and addresses are called and numbered after it.
    namespace: &'static str,
    /// Begins its VM numbers, and is the last part of its endpoint's address.
    number: u64,
    secret: &'static str,
}

const TENANTS: [Tenant; 2] = [
    Tenant { namespace: "blue", number: 11, secret: "0f3d7a64-5b1e-4a0c-9d57-e2c86b94f013" },
    Tenant { namespace: "green", number: 12, secret: "b8e05c19-6d42-4f7a-a1c3-74f0d95e2a86" },
];

impl Tenant {
    fn token(&self) -> String {
        format!("{}@pve!capstan", self.namespace)
    }

    /// Its token, its pool with a template of its own in it, and the rights that `docs/providers/proxmox.md` lists for it.
    fn admit(&self, pve: &FakePve) -> Result<()> {
        let (user, pool) = (format!("{}@pve", self.namespace), format!("/pool/{}", self.namespace));
        pve.set_token(&self.token(), Some(self.secret))?;
        pve.make_pool(self.namespace)?;
        pve.make_template(9000 + self.number, self.namespace)?;
        let in_pool = [
            "VM.Allocate",
            "VM.Audit",
            "VM.Config.CPU",
            "VM.Config.Memory",
            "VM.Config.Disk",
            "VM.Config.CDROM",
            "VM.Config.Network",
            "VM.Config.Options",
            "VM.Config.HWType",
            "VM.PowerMgmt",
            "VM.GuestAgent.Audit",
            "Pool.Audit",
            "Pool.Allocate",
        ];
        let storage =
            ["Datastore.AllocateSpace", "Datastore.AllocateTemplate", "Datastore.Allocate", "Datastore.Audit"];
        for (path, rights) in [
            ("/vms/9000", &["VM.Clone", "VM.Audit"][..]),
            (&pool, &in_pool),
            ("/storage/shared", &storage),
            ("/sdn/zones/localnetwork/vmbr0", &["SDN.Use"]),
            ("/nodes", &["Sys.Audit"]),
        ] {
            pve.grant(&user, path, rights)?;
        }
        Ok(())
    }

    /// Its cluster `c`.
    fn cluster(&self, pve: &FakePve) -> Vec<Value> {
        objects::cluster(pve, self.namespace, self.number, &self.token(), self.secret)
    }

    /// A machine of it; what its ProxmoxMachine says beside the usual is given.
    fn machine(&self, name: &str, more: &Value) -> Vec<Value> {
        let mut machine =
            objects::machine(self.namespace, self.number, name, &json!({"spec": {"pool": self.namespace}}));
        machine.iter_mut().skip(1).for_each(|infrastructure| merge(infrastructure, more));
        machine
    }
}

/// The machine `m` of each tenant as Proxmox VE has it, by namespace.
fn machines_of_tenants(site: &Site) -> Result<BTreeMap<&'static str, Value>> {
    let vms = site.server.vms()?;
    TENANTS
        .iter()
        .map(|tenant| {
            let infrastructure = site.plane.get(&["proxmoxmachine", "m", "-n", tenant.namespace])?;
            let vmid = infrastructure["status"]["virtualMachineID"].clone();
            let vm = vms.iter().find(|vm| vm["vmid"] == vmid).with_context(|| format!("VM {vmid} is gone"))?;
            Ok((tenant.namespace, vm.clone()))
        })
        .collect()
}

on_both_back_ends!(two_tenants_cannot_touch_each_other);

fn two_tenants_cannot_touch_each_other(back_end: BackEnd) -> Result<()> {
    if !lab::enter(back_end, "tenants::two_tenants_cannot_touch_each_other", &[NETWORK])? {
        return Ok(());
    }
    let (pve, hypervisor) = proxmox()?;
    let policy = json!({"apiVersion": "capstan.dev/v1alpha1", "kind": "EgressPolicy", "metadata": {"name": "proxmox"},
        "spec": {"addresses": [NETWORK], "namespaces": TENANTS.map(|tenant| tenant.namespace)}});
    let mut objects = vec![policy];
    for tenant in &TENANTS {
        tenant.admit(&pve)?;
        objects.extend(tenant.cluster(&pve));
        objects.extend(tenant.machine("m", &json!({})));
    }
    let mut site = start(back_end, pve, hypervisor, &list(&objects))?;
    site.plane.wait_applied(MINUTE)?;
    site.until(MINUTE, "a machine of each tenant", || {
        let machines = site.plane.items(&["proxmoxmachines", "-A"])?;
        Ok(machines.len() == 2 && machines.iter().all(|machine| told(machine, "Ready").starts_with("True")))
    })?;
    let before = machines_of_tenants(&site)?;
    let requests = site.server.requests()?.len();

    let mut expected = BTreeMap::new();
    for (attacker, victim) in [(&TENANTS[0], &TENANTS[1]), (&TENANTS[1], &TENANTS[0])] {
        for (name, words, objects) in tries(&site, attacker, victim, &before[victim.namespace])? {
            site.apply(&list(&objects)).with_context(|| name.to_owned())?;
            expected.insert((attacker.namespace, name), words);
        }
    }
    site.until(MINUTE, "each try is answered", || {
        let machines = site.plane.items(&["proxmoxmachines", "-A"])?;
        let answered = |((namespace, name), words): (&(&str, &str), &&str)| {
            let this = |machine: &&Value| {
                machine["metadata"]["namespace"] == *namespace && machine["metadata"]["name"] == *name
            };
            let told = machines.iter().find(this).map(|machine| told(machine, "Ready")).unwrap_or_default();
            told.contains(*words)
        };
        Ok(expected.iter().all(answered))
    })?;
    ensure!(machines_of_tenants(&site)? == before, "{:?} were {before:?}", machines_of_tenants(&site)?);

    // An Endpoint leads nowhere that the operator does not list, and reads no Secret of another namespace.
    let [blue, green] = &TENANTS;
    let mut of_green = credentials(&site.server, green.namespace, &green.token(), green.secret);
    of_green["metadata"]["name"] = "of-green".into();
    site.apply(&list(&[of_green]))?;
    let endpoint = |secret: &str, url: &str| {
        json!({"apiVersion": "capstan.dev/v1alpha1", "kind": "Endpoint", "metadata": {"name": "api", "namespace": blue.namespace},
            "spec": {"url": url, "caBundle": site.server.ca, "credential": {"secretName": secret, "headers": [
                {"name": "Authorization", "value": "PVEAPIToken={token:shown}={secret}"}]}}})
    };
    for (endpoint, words) in [
        (endpoint("proxmox-credentials", "https://10.10.11.2:8006"), "10.10.11.2"),
        (endpoint("proxmox-credentials", "https://169.254.169.254"), "169.254.169.254"),
        (endpoint("of-green", "https://10.10.10.2:8006"), "there is no Secret blue/of-green"),
    ] {
        site.apply(&list(&[endpoint]))?;
        site.until(MINUTE, &format!("{words} is told"), || {
            let machine = site.plane.get(&["proxmoxmachine", "m", "-n", "blue"])?;
            Ok(condition(&machine, "Ready").is_some_and(|condition| {
                condition["status"] == "False"
                    && condition["message"].as_str().is_some_and(|message| message.contains(words))
            }))
        })?;
    }
    site.plane.kubectl(&["delete", "endpoints.capstan.dev", "api", "-n", "blue"])?;

    // What was tried goes without taking anything of the other's along.
    for tenant in &TENANTS {
        let names: Vec<&str> =
            expected.keys().filter(|(namespace, _)| *namespace == tenant.namespace).map(|(_, name)| *name).collect();
        let mut delete = vec!["delete", "machine", "-n", tenant.namespace, "--timeout=60s"];
        delete.extend(names);
        site.plane.kubectl(&delete)?;
    }
    site.until(MINUTE, "only the two machines are left", || {
        Ok(site.plane.items(&["proxmoxmachines", "-A"])?.len() == 2)
    })?;
    ensure!(machines_of_tenants(&site)? == before, "{:?} were {before:?}", machines_of_tenants(&site)?);
    // Nothing was even asked for that would have changed one of the two.
    let numbers: Vec<String> = before.values().map(|vm| format!("/qemu/{}", vm["vmid"])).collect();
    let asked = site.server.requests()?;
    let changing = asked.iter().skip(requests).filter(|(method, path)| {
        method != "GET" && numbers.iter().any(|number| path.ends_with(number) || path.contains(&format!("{number}/")))
    });
    let changing: Vec<_> = changing.collect();
    ensure!(changing.is_empty(), "{changing:?}");

    for tenant in &TENANTS {
        site.plane.kubectl(&["delete", "machine", "m", "-n", tenant.namespace, "--timeout=60s"])?;
        site.plane.kubectl(&["delete", "cluster", "c", "-n", tenant.namespace, "--timeout=60s"])?;
    }
    site.until(MINUTE, "nothing is left", || Ok(site.server.left()?.is_empty()))?;
    ensure!(site.hypervisor.problems().is_empty(), "{:?}", site.hypervisor.problems());
    Ok(())
}

/// What a tenant may write to get hold of the other's machine: a name, what is told of it, and the objects.
fn tries(
    site: &Site,
    attacker: &Tenant,
    victim: &Tenant,
    target: &Value,
) -> Result<Vec<(&'static str, &'static str, Vec<Value>)>> {
    let number = target["vmid"].clone();
    let of_victim = site.plane.get(&["proxmoxmachine", "m", "-n", victim.namespace])?;
    let node = &target["node"];
    let uuid = of_victim["spec"]["providerID"].clone();
    let mut stolen = attacker.cluster(&site.server).pop().context("no ProxmoxCluster")?;
    stolen["metadata"]["name"] = "stolen".into();
    stolen["spec"]["credentialsRef"]["namespace"] = victim.namespace.into();
    let mut cluster = attacker.cluster(&site.server).remove(3);
    cluster["metadata"]["name"] = "stolen".into();
    cluster["spec"]["infrastructureRef"]["name"] = "stolen".into();
    // A cluster whose infrastructure never comes up makes no machines; the credential is what its ProxmoxCluster tells of.
    site.apply(&list(&[cluster, stolen]))?;
    site.until(MINUTE, "a Secret of another namespace is refused", || {
        let cluster = site.plane.get(&["proxmoxcluster", "stolen", "-n", attacker.namespace])?;
        Ok(told(&cluster, "Ready").contains("only those of the object's own namespace"))
    })?;
    site.plane.kubectl(&["delete", "cluster", "stolen", "-n", attacker.namespace, "--timeout=60s"])?;

    let mut copied = json!({"metadata": {"annotations": of_victim["metadata"]["annotations"]}});
    copied["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"] = Value::Null;
    let machine = |name: &str, more: &Value| attacker.machine(name, more);
    let selected =
        |tag: &str| json!({"spec": {"sourceNode": null, "templateID": null, "templateSelector": {"matchTags": [tag]}}});
    Ok(vec![
        (
            "its-number",
            "VMIDTaken",
            machine("its-number", &json!({"spec": {"virtualMachineID": number, "vmIDRange": null}})),
        ),
        (
            "its-range",
            "VMIDTaken",
            machine("its-range", &json!({"spec": {"vmIDRange": {"start": number, "end": number}}})),
        ),
        ("its-uuid", "VMNotFound", machine("its-uuid", &json!({"spec": {"providerID": uuid}}))),
        (
            "its-uuid-and-number",
            "VMNotFound",
            machine(
                "its-uuid-and-number",
                &json!({"spec": {"providerID": uuid, "virtualMachineID": number, "vmIDRange": null}}),
            ),
        ),
        ("its-key", "OwnerKeyNotUnique", machine("its-key", &copied)),
        (
            "its-disks",
            "TemplateNotFound",
            machine("its-disks", &json!({"spec": {"sourceNode": node, "templateID": number}})),
        ),
        (
            "its-template",
            "TemplateNotFound",
            machine("its-template", &json!({"spec": {"sourceNode": "pve1", "templateID": 9000 + victim.number}})),
        ),
        ("its-template-by-tag", "TemplateNotFound", machine("its-template-by-tag", &selected(victim.namespace))),
        ("its-pool", "PermissionDenied", machine("its-pool", &json!({"spec": {"pool": victim.namespace}}))),
        // Beside all that, what is allowed works; and `m` of cluster `c` is what the other's machine is called as well.
        ("allowed", "True", machine("allowed", &json!({}))),
    ])
}
