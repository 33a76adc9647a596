//! Whom an object belongs to, and what a provider is told of its Cluster and Machine.

use std::collections::BTreeMap;
use std::sync::Arc;

use capstan_api::well_known::{CLUSTER_GROUP, CLUSTER_NAME, CONTROL_PLANE, MANAGED_BY, PAUSED};
use capstan_api::{Object, ObjectKey};
use serde_json::{Value, json};

use crate::contract::{HostPort, Served};
use crate::record::{Record, digest};
use crate::turn::{ClusterInput, MachineInput, MachineSummary};
use crate::view::{NotNow, Place, Select, View};

const MANAGEMENT: Place = Place::Management;

/// The owner of this kind of the `cluster.x-k8s.io` group; `None` when there is no such owner reference, or its object
/// is gone or another one by now.
pub fn owner(view: &dyn View, object: &Object, kind: &str) -> Result<Option<Arc<Object>>, NotNow> {
    let references = object.owner_references();
    let Some(reference) = references.iter().find(|r| r.kind == kind && r.group() == CLUSTER_GROUP) else {
        return Ok(None);
    };
    let key = ObjectKey::new(CLUSTER_GROUP, kind, object.namespace(), &reference.name);
    Ok(view.get(&MANAGEMENT, &key)?.filter(|found| reference.uid.is_empty() || found.uid() == reference.uid))
}

/// A Cluster by name.
pub fn cluster(view: &dyn View, namespace: &str, name: &str) -> Result<Option<Arc<Object>>, NotNow> {
    view.get(&MANAGEMENT, &ObjectKey::new(CLUSTER_GROUP, "Cluster", namespace, name))
}

/// Whether an object is paused: by its Cluster's spec, or by an annotation of its own.
pub fn paused(cluster: Option<&Object>, object: &Object) -> bool {
    cluster.is_some_and(|c| c.bool_at("/spec/paused")) || object.annotation(PAUSED).is_some()
}

/// Whether somebody else's controller looks after this InfraCluster.
pub fn managed_elsewhere(object: &Object) -> bool {
    object.annotation(MANAGED_BY).is_some()
}

/// Whether a Machine or InfraMachine belongs to the control plane.
pub fn is_control_plane(object: &Object) -> bool {
    object.label(CONTROL_PLANE).is_some()
}

/// `spec.controlPlaneEndpoint` of an object, when it is a valid one.
pub fn endpoint(object: &Object) -> Option<HostPort> {
    let host = object.str_at("/spec/controlPlaneEndpoint/host")?;
    let port = object.int_at("/spec/controlPlaneEndpoint/port")?;
    Some(HostPort { host: host.to_owned(), port: u16::try_from(port).ok().filter(|port| *port > 0)? })
}

/// `https://host:port`, with brackets around an IPv6 address.
pub fn server_url(endpoint: &HostPort) -> String {
    if endpoint.host.contains(':') {
        format!("https://[{}]:{}", endpoint.host, endpoint.port)
    } else {
        format!("https://{}:{}", endpoint.host, endpoint.port)
    }
}

/// The InfraCluster that a Cluster refers to.
pub fn infra_cluster(view: &dyn View, cluster: &Object) -> Result<Option<Arc<Object>>, NotNow> {
    let (Some(kind), Some(name)) =
        (cluster.str_at("/spec/infrastructureRef/kind"), cluster.str_at("/spec/infrastructureRef/name"))
    else {
        return Ok(None);
    };
    let group = cluster.str_at("/spec/infrastructureRef/apiGroup").unwrap_or_default();
    if_served(view.get(&MANAGEMENT, &ObjectKey::new(group, kind, cluster.namespace(), name)))
}

/// Nothing, where a reference names a kind that is not served: whoever follows it says so, and the kind's arrival brings
/// the decision back.
pub fn if_served(found: Result<Option<Arc<Object>>, NotNow>) -> Result<Option<Arc<Object>>, NotNow> {
    match found {
        Err(NotNow::NoSuchKind { .. }) => Ok(None),
        found => found,
    }
}

/// What a provider is told of the Cluster, without its machines. The states of the InfraCluster's parts are shown to a
/// module that serves that kind itself.
pub fn cluster_input(cluster: &Object, infrastructure: Option<&Object>, served: &Served) -> ClusterInput {
    let blocks = |pointer: &str| -> Vec<String> {
        let list = cluster.at(pointer).and_then(Value::as_array);
        list.map(|all| all.iter().filter_map(Value::as_str).map(str::to_owned).collect()).unwrap_or_default()
    };
    let own = infrastructure
        .filter(|infra| infra.group() == served.group && Some(infra.kind()) == served.cluster_kind.as_deref());
    ClusterInput {
        name: cluster.name().to_owned(),
        endpoint: endpoint(cluster).or_else(|| infrastructure.and_then(endpoint)),
        pod_cidrs: blocks("/spec/clusterNetwork/pods/cidrBlocks"),
        service_cidrs: blocks("/spec/clusterNetwork/services/cidrBlocks"),
        service_domain: cluster.str_at("/spec/clusterNetwork/serviceDomain").unwrap_or("cluster.local").to_owned(),
        infrastructure_spec: infrastructure.and_then(|infra| infra.at("/spec").cloned()),
        infrastructure_state: own.and_then(|infra| Record::of(infra).ok()).map(|r| r.states()).unwrap_or_default(),
        machines: Vec::new(),
    }
}

/// The InfraMachines of a Cluster that a module serves, sorted by name.
pub fn machines(
    view: &dyn View,
    served: &Served,
    namespace: &str,
    cluster: &str,
) -> Result<Vec<MachineSummary>, NotNow> {
    let Some(kind) = &served.machine_kind else { return Ok(Vec::new()) };
    let select = Select::Label(CLUSTER_NAME.into(), cluster.into());
    let found = view.list(&MANAGEMENT, &served.group, kind, namespace, &select)?;
    found.iter().map(|machine| Ok(summary(machine, leaves(view, machine)?))).collect()
}

/// Whether a machine is on its way out. One of the control plane is as soon as its Machine is: that is drained before its
/// InfraMachine is deleted, and a load balancer should send it nothing from then on. Others are in no load balancer, so
/// that a cluster does not depend on each of its workers.
fn leaves(view: &dyn View, machine: &Object) -> Result<bool, NotNow> {
    if machine.is_deleting() || !is_control_plane(machine) {
        return Ok(machine.is_deleting());
    }
    Ok(owner(view, machine, "Machine")?.is_some_and(|owner| owner.is_deleting()))
}

fn summary(machine: &Object, deleting: bool) -> MachineSummary {
    let list = machine.at("/status/addresses").and_then(Value::as_array).cloned().unwrap_or_default();
    let of = |ip: bool| {
        list.iter()
            .filter(move |a| a.get("type").and_then(Value::as_str).is_some_and(|t| t.ends_with("IP")) == ip)
            .filter_map(|a| a.get("address").and_then(Value::as_str).map(str::to_owned))
            .collect::<Vec<_>>()
    };
    let mut addresses = of(true);
    addresses.extend(of(false));
    MachineSummary { name: machine.name().to_owned(), control_plane: is_control_plane(machine), addresses, deleting }
}

/// What a provider is told of the Machine.
pub fn machine_input(machine: &Object, bootstrap_format: Option<String>) -> MachineInput {
    let labels = machine.at("/metadata/labels").and_then(Value::as_object);
    MachineInput {
        name: machine.name().to_owned(),
        labels: labels
            .map(|all| all.iter().filter_map(|(k, v)| Some((k.clone(), v.as_str()?.to_owned()))).collect())
            .unwrap_or_default(),
        control_plane: is_control_plane(machine),
        kubernetes_version: machine.str_at("/spec/version").map(str::to_owned),
        failure_domain: machine.str_at("/spec/failureDomain").map(str::to_owned),
        deleting: machine.is_deleting(),
        node_bound: machine.str_at("/status/nodeRef/name").is_some(),
        bootstrap_format,
    }
}

/// A digest of what a turn depends on: the subject but for what this process writes into it itself, the Cluster, the
/// Machine and `more`.
pub fn inputs(subject: &Object, cluster: &ClusterInput, machine: Option<&MachineInput>, more: Value) -> String {
    let mut spec = subject.clone();
    spec.remove("/spec/providerID");
    spec.remove("/spec/controlPlaneEndpoint");
    let annotations: BTreeMap<&String, &Value> = subject
        .at("/metadata/annotations")
        .and_then(Value::as_object)
        .map(|all| all.iter().filter(|(key, _)| !key.starts_with("capstan.dev/") && !key.contains("kubectl")).collect())
        .unwrap_or_default();
    let machines: Vec<Value> =
        cluster.machines.iter().map(|m| json!([m.name, m.control_plane, m.addresses, m.deleting])).collect();
    let machine = machine.map(|m| {
        let of = [Some(&m.name), m.kubernetes_version.as_ref(), m.failure_domain.as_ref()];
        json!([of, m.labels, m.control_plane, m.deleting, m.node_bound, m.bootstrap_format])
    });
    let all = json!([
        subject.uid(),
        spec.at("/spec"),
        subject.at("/metadata/labels"),
        annotations,
        subject.is_deleting(),
        [json!(cluster.name), json!(cluster.endpoint), json!(cluster.service_domain)],
        [json!(cluster.pod_cidrs), json!(cluster.service_cidrs)],
        cluster.infrastructure_spec,
        cluster.infrastructure_state,
        machines,
        machine,
        more,
    ]);
    digest(all.to_string().as_bytes(), 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_valid_or_none() {
        let of =
            |value: Value| endpoint(&Object::from_value(json!({"spec": {"controlPlaneEndpoint": value}})).unwrap());
        assert_eq!(
            of(json!({"host": "10.0.0.1", "port": 6443})),
            Some(HostPort { host: "10.0.0.1".into(), port: 6443 })
        );
        assert_eq!(of(json!({"host": "", "port": 6443})), None);
        assert_eq!(of(json!({"host": "a", "port": 0})), None);
        assert_eq!(of(json!({"host": "a", "port": 70000})), None);
        assert_eq!(server_url(&HostPort { host: "fd00::1".into(), port: 1 }), "https://[fd00::1]:1");
    }

    #[test]
    fn addresses_come_with_ips_first() {
        let machine = Object::from_value(json!({"metadata": {"name": "m", "labels": {CONTROL_PLANE: ""}}, "status": {
            "addresses": [{"type": "Hostname", "address": "h"}, {"type": "InternalIP", "address": "10.0.0.2"}]}}));
        let summary = summary(&machine.unwrap(), false);
        assert_eq!((summary.control_plane, summary.addresses), (true, vec!["10.0.0.2".to_owned(), "h".to_owned()]));
    }

    #[test]
    fn a_control_plane_machine_leaves_as_soon_as_its_machine_does() {
        let mut world = crate::testing::World::new();
        let labels = json!({CLUSTER_NAME: "c", CONTROL_PLANE: ""});
        let owner = world.put(json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
            "metadata": {"name": "m", "namespace": "n", "finalizers": ["f"]}}));
        let machine = world.put(json!({"apiVersion": "i/v1", "kind": "M",
            "metadata": {"name": "m", "namespace": "n", "labels": labels, "ownerReferences": [
                {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "name": "m", "uid": owner.uid()}]}}));
        assert!(!leaves(&world, &machine).unwrap());
        world.delete(&owner.key());
        assert!(leaves(&world, &machine).unwrap());
        let mut worker = Object::clone(&machine);
        worker.remove("/metadata/labels/cluster.x-k8s.io~1control-plane");
        assert!(!leaves(&world, &worker).unwrap(), "no load balancer lists it");
    }
}
