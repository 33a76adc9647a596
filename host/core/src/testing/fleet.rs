//! A small fleet for tests of the core rules: a Cluster with its templates, and a cloud and providers that do
//! what providers do, at once or when told.

use std::sync::Arc;

use capstan_api::time::rfc3339;
use capstan_api::well_known::{CLUSTER_GROUP, CONTROL_PLANE};
use capstan_api::{Object, ObjectKey};
use serde_json::{Value, json};

use super::{World, workload};
use crate::plan::Write;
use crate::rules::RULES;
use crate::view::Connection;

/// Group of the infrastructure kinds.
pub const INFRA: &str = "infrastructure.cluster.x-k8s.io";
/// Group of the bootstrap kinds.
pub const BOOT: &str = "bootstrap.cluster.x-k8s.io";
/// Group of the control-plane kinds.
pub const CONTROL: &str = "controlplane.cluster.x-k8s.io";

/// Key of a core object in namespace `n`.
pub fn core(kind: &str, name: &str) -> ObjectKey {
    ObjectKey::new(CLUSTER_GROUP, kind, "n", name)
}

/// Key of a provider's object in namespace `n`.
pub fn provider(kind: &str, name: &str) -> ObjectKey {
    let group = match kind {
        "KubeadmControlPlane" => CONTROL,
        "KubeadmConfig" | "KubeadmConfigTemplate" => BOOT,
        _ => INFRA,
    };
    ObjectKey::new(group, kind, "n", name)
}

fn reference(kind: &str, name: &str) -> Value {
    json!({"apiGroup": provider(kind, name).group, "kind": kind, "name": name})
}

fn object(kind: &str, name: &str, spec: Value) -> Value {
    let group = match kind {
        "Cluster" | "Machine" | "MachineSet" | "MachineDeployment" => CLUSTER_GROUP.to_owned(),
        _ => provider(kind, name).group,
    };
    json!({"apiVersion": format!("{group}/v1beta2"), "kind": kind,
        "metadata": {"name": name, "namespace": "n"}, "spec": spec})
}

/// A Cluster `c` whose infrastructure and control plane are there and ready, and templates `t`.
pub fn ready_cluster() -> World {
    let mut world = World::new();
    for one in cluster_objects() {
        world.put(one);
    }
    world.edit(&provider("SimCluster", "c"), |o| {
        o.set("/status/initialization/provisioned", true.into());
        o.set("/spec/controlPlaneEndpoint", json!({"host": "127.0.0.9", "port": 6443}));
        o.set("/status/conditions", json!([{"type": "Ready", "status": "True", "reason": "Ready"}]));
    });
    world.edit(&provider("KubeadmControlPlane", "c"), |o| {
        o.set("/status/initialization/controlPlaneInitialized", true.into());
        o.set("/status/versions", json!([{"version": "v1.35.0", "replicas": 1}]));
        o.set("/status/conditions", json!([{"type": "Available", "status": "True", "reason": "Available"}]));
    });
    world.connect("n", "c", Connection::Up);
    settle(&mut world);
    world
}

/// A Cluster as a user applies it, its infrastructure and control plane, and templates.
pub fn cluster_objects() -> Vec<Value> {
    vec![
        object(
            "Cluster",
            "c",
            json!({"infrastructureRef": reference("SimCluster", "c"),
                "controlPlaneRef": reference("KubeadmControlPlane", "c")}),
        ),
        object("SimCluster", "c", json!({})),
        object("KubeadmControlPlane", "c", json!({"replicas": 1, "version": "v1.35.0"})),
        object("SimMachineTemplate", "t", json!({"template": {"spec": {"cpus": 2}}})),
        object("KubeadmConfigTemplate", "t", json!({"template": {"spec": {"format": "cloud-config"}}})),
    ]
}

/// Spec of a Machine of a template.
pub fn template_spec() -> Value {
    json!({"clusterName": "c", "version": "v1.35.0",
        "bootstrap": {"configRef": reference("KubeadmConfigTemplate", "t")},
        "infrastructureRef": reference("SimMachineTemplate", "t")})
}

/// A Machine with a BootstrapConfig and an InfraMachine of its name, which are put in too.
pub fn put_machine(world: &mut World, name: &str) -> Arc<Object> {
    world.put(object("SimMachine", name, json!({"cpus": 2})));
    world.put(object("KubeadmConfig", name, json!({})));
    world.put(object(
        "Machine",
        name,
        json!({"clusterName": "c", "version": "v1.35.0",
            "bootstrap": {"configRef": reference("KubeadmConfig", name)},
            "infrastructureRef": reference("SimMachine", name)}),
    ))
}

/// A MachineSet `s` of the templates.
pub fn machine_set(replicas: i64) -> Value {
    object(
        "MachineSet",
        "s",
        json!({"clusterName": "c", "replicas": replicas, "selector": {"matchLabels": {"pool": "a"}},
            "template": {"metadata": {"labels": {"pool": "a"}}, "spec": template_spec()}}),
    )
}

/// A MachineDeployment `d` of the templates.
pub fn machine_deployment(replicas: i64) -> Value {
    object(
        "MachineDeployment",
        "d",
        json!({"clusterName": "c", "replicas": replicas, "selector": {"matchLabels": {"pool": "a"}},
            "template": {"metadata": {"labels": {"pool": "a"}}, "spec": template_spec()}}),
    )
}

/// Decides for every core object until nobody has anything to write. Returns the number of writes to the management
/// cluster. Panics when it never ends: that is a hot loop.
pub fn settle(world: &mut World) -> usize {
    let before = management_writes(world);
    for _ in 0..200 {
        if !round(world) {
            return management_writes(world) - before;
        }
    }
    let last: Vec<&Write> = world.writes.iter().rev().take(4).collect();
    unreachable!("the rules never settle: {last:#?}")
}

/// Decides once for every core object. False when nobody had anything to write.
pub fn round(world: &mut World) -> bool {
    let mut wrote = false;
    for rule in RULES {
        for object in world.all(rule.kind) {
            wrote |= decide(world, &object.key());
        }
    }
    wrote
}

/// Decides for one core object and carries the plan out. False when it had nothing to write.
pub fn decide(world: &mut World, key: &ObjectKey) -> bool {
    let Some(rule) = RULES.iter().find(|r| r.kind == key.kind) else { return false };
    match (rule.decide)(key, world, world.now) {
        Ok(plan) => {
            world.apply(&plan);
            !plan.writes.is_empty()
        }
        Err(why) => unreachable!("{key} cannot be decided: {why}"),
    }
}

/// Writes to the management cluster so far.
pub fn management_writes(world: &World) -> usize {
    world.writes.iter().filter(|w| !matches!(w, Write::Workload { .. })).count()
}

/// What providers do for one Machine: first-boot data.
pub fn render(world: &mut World, name: &str) {
    world.edit(&provider("KubeadmConfig", name), |o| {
        o.set("/status/initialization/dataSecretCreated", true.into());
        o.set("/status/dataSecretName", name.into());
        o.set("/status/conditions", json!([{"type": "Ready", "status": "True", "reason": "Ready"}]));
    });
}

/// What providers do for one Machine: a virtual machine with providerID `sim://<name>`.
pub fn provision(world: &mut World, name: &str) {
    world.edit(&provider("SimMachine", name), |o| {
        o.set("/spec/providerID", format!("sim://{name}").into());
        o.set("/status/initialization/provisioned", true.into());
        o.set("/status/addresses", json!([{"type": "InternalIP", "address": "10.0.0.1"}]));
        o.set("/status/conditions", json!([{"type": "Ready", "status": "True", "reason": "Ready"}]));
    });
}

/// What a machine does: it joins as a Node of its name. A Node that is there gets another `ready`.
pub fn join(world: &mut World, name: &str, ready: bool) {
    let place = workload("n", "c");
    let status = if ready { "True" } else { "False" };
    let conditions = json!([{"type": "Ready", "status": status, "reason": "Kubelet", "message": "as told"}]);
    let key = ObjectKey::new("", "Node", "", name);
    if world.edit_in(&place, &key, |o| o.set("/status/conditions", conditions.clone())) {
        return;
    }
    world.put_in(
        &place,
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
            "spec": {"providerID": format!("sim://{name}"),
                "taints": [{"key": "node.cluster.x-k8s.io/uninitialized", "effect": "NoSchedule"},
                    {"key": "keep", "effect": "NoSchedule"}]},
            "status": {"conditions": conditions, "nodeInfo": {"kubeletVersion": "v1.35.0", "osImage": "sim"}}}),
    );
}

/// Names of Machines that are not being deleted.
pub fn alive(world: &World) -> Vec<String> {
    world.all("Machine").iter().filter(|m| !m.is_deleting()).map(|m| m.name().to_owned()).collect()
}

/// Everything that providers and machines do at once, for all Machines. `healthy` says which Nodes are ready.
pub fn serve_all(world: &mut World, healthy: impl Fn(&Object) -> bool) {
    for machine in world.all("Machine") {
        let name = machine.name().to_owned();
        render(world, &name);
        if machine.str_at("/spec/bootstrap/dataSecretName").is_some() {
            provision(world, &name);
        }
        if machine.str_at("/spec/providerID").is_some() && !machine.is_deleting() {
            join(world, &name, healthy(&machine));
        }
    }
}

/// A control-plane Machine `cp` that runs, so that workers may use the workload cluster.
pub fn put_control_plane_machine(world: &mut World) {
    put_machine(world, "cp");
    let owner = world.find(&provider("KubeadmControlPlane", "c")).map(|o| o.as_owner(true));
    world.edit(&core("Machine", "cp"), |o| {
        o.set_label(CONTROL_PLANE, "");
        o.set_label("cluster.x-k8s.io/cluster-name", "c");
        o.set("/metadata/ownerReferences", json!([owner]));
    });
}

/// Moves time on by this many seconds.
pub fn wait(world: &mut World, seconds: u64) {
    world.now += seconds * 1000;
}

/// The present time as Kubernetes writes it.
pub fn now(world: &World) -> String {
    rfc3339(world.now)
}
