//! What is in a fresh workload cluster, and what a node says of itself. Pure: names and times in, objects out.

use std::net::{IpAddr, Ipv4Addr};

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::Machine;
use super::config::{ClusterConfiguration, NodeRegistration, Taint};

/// An object and the collection it belongs to.
pub struct Placed {
    /// Path of the collection, without a trailing slash.
    pub collection: String,
    /// The object, its status included.
    pub object: Value,
}

fn placed(collection: &str, object: Value) -> Placed {
    Placed { collection: collection.to_owned(), object }
}

/// RFC 3339 to the second, as Kubernetes writes times.
pub fn time(now: Timestamp) -> String {
    now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// RFC 3339 to the microsecond: `MicroTime`.
fn micro_time(now: Timestamp) -> String {
    now.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

/// The first address of the services' network: that of the API server itself.
pub fn api_service_address(service_subnet: &str) -> IpAddr {
    let first = service_subnet.split(',').next().unwrap_or_default();
    match first.split('/').next().unwrap_or_default().parse::<IpAddr>() {
        Ok(IpAddr::V4(address)) => IpAddr::V4(Ipv4Addr::from(u32::from(address).wrapping_add(1))),
        Ok(IpAddr::V6(address)) => IpAddr::V6(u128::from(address).wrapping_add(1).into()),
        Err(_) => IpAddr::V4(Ipv4Addr::new(10, 96, 0, 1)),
    }
}

/// A kubeconfig without a user, for `cluster-info`.
pub fn anonymous_kubeconfig(endpoint: &str, ca_pem: &str) -> String {
    kubeconfig(endpoint, ca_pem, "", None)
}

/// A kubeconfig with a client certificate.
pub fn kubeconfig(endpoint: &str, ca_pem: &str, cluster: &str, user: Option<(&str, &str, &str)>) -> String {
    use base64::Engine as _;
    let data = |pem: &str| base64::engine::general_purpose::STANDARD.encode(pem);
    let mut text = format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- cluster:\n    certificate-authority-data: {}\n    server: https://{endpoint}\n  name: \"{cluster}\"\n",
        data(ca_pem)
    );
    match user {
        None => text.push_str("contexts: null\ncurrent-context: \"\"\nusers: null\n"),
        Some((name, certificate, key)) => text.push_str(&format!(
            "contexts:\n- context:\n    cluster: \"{cluster}\"\n    user: \"{name}\"\n  name: \"{name}@{cluster}\"\ncurrent-context: \"{name}@{cluster}\"\nusers:\n- name: \"{name}\"\n  user:\n    client-certificate-data: {}\n    client-key-data: {}\n",
            data(certificate),
            data(key)
        )),
    }
    text
}

/// What `kubeadm init` leaves in a cluster, Node and static Pods apart.
pub fn fresh_cluster(cluster: &ClusterConfiguration, document: &Value, endpoint: &str, ca_pem: &str) -> Vec<Placed> {
    let namespaces = ["default", "kube-system", "kube-public", "kube-node-lease"];
    let mut objects: Vec<Placed> = namespaces
        .iter()
        .map(|name| {
            placed("/api/v1/namespaces", json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}))
        })
        .collect();
    for namespace in namespaces {
        let collection = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
        objects.push(placed(
            &collection,
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": namespace}}),
        ));
    }
    let mut full = document.clone();
    if let Some(map) = full.as_object_mut() {
        map.insert("clusterName".into(), cluster.cluster_name.clone().into());
        map.insert("kubernetesVersion".into(), cluster.kubernetes_version.clone().into());
        map.insert("controlPlaneEndpoint".into(), endpoint.into());
        let networking = map.entry("networking").or_insert_with(|| json!({}));
        if let Some(networking) = networking.as_object_mut() {
            networking.insert("dnsDomain".into(), cluster.networking.dns_domain.clone().into());
            networking.insert("serviceSubnet".into(), cluster.networking.service_subnet.clone().into());
        }
    }
    let config_map = |namespace: &str, name: &str, data: Value| {
        placed(
            &format!("/api/v1/namespaces/{namespace}/configmaps"),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}, "data": data}),
        )
    };
    let yaml = serde_saphyr::to_string(&full).unwrap_or_else(|_| full.to_string());
    objects.push(config_map("kube-system", "kubeadm-config", json!({"ClusterConfiguration": yaml})));
    let kubelet = format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nclusterDNS:\n- {}\nclusterDomain: {}\n",
        dns_address(&cluster.networking.service_subnet),
        cluster.networking.dns_domain
    );
    objects.push(config_map("kube-system", "kubelet-config", json!({"kubelet": kubelet})));
    objects.push(config_map(
        "kube-public",
        "cluster-info",
        json!({"kubeconfig": anonymous_kubeconfig(endpoint, ca_pem)}),
    ));
    objects.push(config_map(
        "kube-system",
        "kube-proxy",
        json!({"config.conf": "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"}),
    ));
    objects.push(config_map("kube-system", "coredns", json!({"Corefile": ".:53 {\n}\n"})));
    objects.push(placed(
        "/api/v1/namespaces/default/services",
        json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "kubernetes", "namespace": "default", "labels": {"component": "apiserver", "provider": "kubernetes"}},
            "spec": {"type": "ClusterIP", "clusterIP": api_service_address(&cluster.networking.service_subnet).to_string(),
                     "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": 6443}]}}),
    ));
    objects.push(placed("/apis/apps/v1/namespaces/kube-system/deployments", coredns()));
    objects.push(placed("/apis/apps/v1/namespaces/kube-system/daemonsets", kube_proxy(&cluster.kubernetes_version)));
    objects
}

/// kubeadm's tenth address of the services' network.
fn dns_address(service_subnet: &str) -> IpAddr {
    match api_service_address(service_subnet) {
        IpAddr::V4(address) => IpAddr::V4(Ipv4Addr::from(u32::from(address).wrapping_add(9))),
        IpAddr::V6(address) => IpAddr::V6(u128::from(address).wrapping_add(9).into()),
    }
}

fn coredns() -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "coredns", "namespace": "kube-system", "labels": {"k8s-app": "kube-dns"}},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"k8s-app": "kube-dns"}},
            "template": {"metadata": {"labels": {"k8s-app": "kube-dns"}},
                "spec": {"containers": [{"name": "coredns", "image": "registry.k8s.io/coredns/coredns:v1.13.1"}],
                         "priorityClassName": "system-cluster-critical", "serviceAccountName": "coredns"}}}})
}

fn kube_proxy(version: &str) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {"name": "kube-proxy", "namespace": "kube-system", "labels": {"k8s-app": "kube-proxy"}},
        "spec": {"selector": {"matchLabels": {"k8s-app": "kube-proxy"}},
            "template": {"metadata": {"labels": {"k8s-app": "kube-proxy"}},
                "spec": {"containers": [{"name": "kube-proxy", "image": format!("registry.k8s.io/kube-proxy:{version}")}],
                         "hostNetwork": true, "priorityClassName": "system-node-critical", "serviceAccountName": "kube-proxy",
                         "tolerations": [{"operator": "Exists"}]}}}})
}

/// The name a machine's Node has: that of the registration, or the host name, in lower case as kubeadm does.
pub fn node_name(registration: &NodeRegistration, machine: &Machine) -> String {
    let name = if registration.name.trim().is_empty() { &machine.hostname } else { &registration.name };
    name.trim().to_lowercase()
}

const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";

/// A machine's Node, ready, its status included.
pub fn node(
    machine: &Machine,
    registration: &NodeRegistration,
    control_plane: bool,
    version: &str,
    now: Timestamp,
) -> Value {
    let name = node_name(registration, machine);
    let arguments = &registration.kubelet_extra_args;
    let mut labels = Map::new();
    for (key, value) in [
        ("kubernetes.io/hostname", name.as_str()),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", architecture()),
    ] {
        labels.insert(key.into(), value.into());
    }
    if let Some(zone) = &machine.zone {
        labels.insert("topology.kubernetes.io/zone".into(), zone.clone().into());
    }
    for pair in arguments.get("node-labels").into_iter().flat_map(|list| list.split(',')) {
        if let Some((key, value)) = pair.split_once('=') {
            labels.insert(key.trim().into(), value.trim().into());
        }
    }
    if control_plane {
        labels.insert(CONTROL_PLANE.into(), "".into());
        labels.insert("node.kubernetes.io/exclude-from-external-load-balancers".into(), "".into());
    }
    let mut taints = match &registration.taints {
        Some(taints) => taints.clone(),
        None if control_plane => vec![Taint { key: CONTROL_PLANE.into(), value: None, effect: "NoSchedule".into() }],
        None => Vec::new(),
    };
    for text in arguments.get("register-with-taints").into_iter().flat_map(|list| list.split(',')) {
        if let Some(taint) = taint(text) {
            taints.push(taint);
        }
    }
    let mut spec = Map::new();
    if let Some(id) = arguments.get("provider-id").map(str::to_owned).or_else(|| machine.provider_id.clone()) {
        spec.insert("providerID".into(), id.into());
    }
    if !taints.is_empty() {
        spec.insert("taints".into(), json!(taints));
    }
    let mut annotations = Map::new();
    if let Some(socket) = &registration.cri_socket {
        annotations.insert("kubeadm.alpha.kubernetes.io/cri-socket".into(), socket.clone().into());
    }
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": annotations},
        "spec": spec,
        "status": node_status(machine, &name, arguments.get("node-ip"), version, now),
    })
}

/// `key=value:effect` or `key:effect`.
fn taint(text: &str) -> Option<Taint> {
    let (left, effect) = text.trim().rsplit_once(':')?;
    let (key, value) = match left.split_once('=') {
        Some((key, value)) => (key, Some(value.to_owned()).filter(|value| !value.is_empty())),
        None => (left, None),
    };
    Some(Taint { key: key.to_owned(), value, effect: effect.to_owned() })
}

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "aarch64" => "arm64",
        "x86_64" => "amd64",
        other => other,
    }
}

fn node_status(machine: &Machine, name: &str, node_ip: Option<&str>, version: &str, now: Timestamp) -> Value {
    let mut addresses: Vec<Value> = match node_ip {
        Some(address) => vec![json!({"type": "InternalIP", "address": address})],
        None => machine.addresses.iter().map(|a| json!({"type": "InternalIP", "address": a.to_string()})).collect(),
    };
    addresses.push(json!({"type": "Hostname", "address": name}));
    let resources = json!({
        "cpu": machine.cpus.max(1).to_string(), "memory": format!("{}Mi", machine.memory_mib.max(1)),
        "ephemeral-storage": "20Gi", "pods": "110",
    });
    // Ids of the machine, made from its name: the same after a restart.
    use sha2::Digest as _;
    let digest = sha2::Sha256::digest(name.as_bytes());
    let hex = digest.iter().take(16).fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
    let kubelet = machine.kubelet_version.as_deref().unwrap_or(version);
    json!({
        "addresses": addresses, "capacity": resources, "allocatable": resources,
        "conditions": conditions(Health::Ready, now),
        "nodeInfo": {
            "machineID": hex, "systemUUID": hex, "bootID": hex, "kernelVersion": "6.1.0", "osImage": "Capstan simulated machine",
            "containerRuntimeVersion": "containerd://2.2.0", "kubeletVersion": kubelet, "kubeProxyVersion": kubelet,
            "operatingSystem": "linux", "architecture": architecture(),
        },
    })
}

/// What is known of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// Its kubelet is well.
    Ready,
    /// Its kubelet said that it stops.
    ShuttingDown,
    /// Its kubelet has not been heard of for longer than the grace.
    Unknown,
}

/// A Node's conditions. The reasons and messages are those of the kubelet and of the node lifecycle controller.
pub fn conditions(health: Health, now: Timestamp) -> Value {
    const LOST: &str = "Kubelet stopped posting node status.";
    let now = time(now);
    let condition = |kind: &str, status: &str, reason: &str, message: &str| json!({"type": kind, "status": status, "reason": reason, "message": message, "lastHeartbeatTime": now, "lastTransitionTime": now});
    let pressure = [
        ("MemoryPressure", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        ("DiskPressure", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        ("PIDPressure", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ];
    let mut all: Vec<Value> = pressure
        .into_iter()
        .map(|(kind, reason, message)| match health {
            Health::Unknown => condition(kind, "Unknown", "NodeStatusUnknown", LOST),
            _ => condition(kind, "False", reason, message),
        })
        .collect();
    all.push(match health {
        Health::Ready => condition("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
        Health::ShuttingDown => condition("Ready", "False", "KubeletNotReady", "node is shutting down"),
        Health::Unknown => condition("Ready", "Unknown", "NodeStatusUnknown", LOST),
    });
    Value::Array(all)
}

/// The status of a Node's `Ready` condition: `True`, `False`, `Unknown`, or empty where there is none.
pub fn ready_status(node: &Value) -> &str {
    let conditions = node.pointer("/status/conditions").and_then(Value::as_array);
    conditions
        .into_iter()
        .flatten()
        .find(|condition| condition.get("type").and_then(Value::as_str) == Some("Ready"))
        .and_then(|condition| condition.get("status").and_then(Value::as_str))
        .unwrap_or_default()
}

/// The Lease by which a node shows that it lives; it goes with its Node.
pub fn lease(node: &Value, duration_seconds: u64, now: Timestamp) -> Value {
    let text = |pointer: &str| node.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (name, uid) = (text("/metadata/name"), text("/metadata/uid"));
    json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": name, "namespace": "kube-node-lease",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}]},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": duration_seconds, "renewTime": micro_time(now)}})
}

/// The patch that renews a Lease.
pub fn renewal(now: Timestamp) -> Value {
    json!({"spec": {"renewTime": micro_time(now)}})
}

/// The mirrors of a control-plane machine's static Pods, running.
pub fn static_pods(node: &Value, version: &str, external_etcd: bool, now: Timestamp) -> Vec<Placed> {
    let text = |pointer: &str| node.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (name, uid) = (text("/metadata/name"), text("/metadata/uid"));
    let address = text("/status/addresses/0/address");
    let started = time(now);
    let mut components = vec![
        ("kube-apiserver", format!("registry.k8s.io/kube-apiserver:{version}")),
        ("kube-controller-manager", format!("registry.k8s.io/kube-controller-manager:{version}")),
        ("kube-scheduler", format!("registry.k8s.io/kube-scheduler:{version}")),
    ];
    if !external_etcd {
        components.push(("etcd", "registry.k8s.io/etcd:3.6.6-0".to_owned()));
    }
    let conditions: Vec<Value> =
        ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"]
            .iter()
            .map(|kind| json!({"type": kind, "status": "True", "lastProbeTime": null, "lastTransitionTime": started}))
            .collect();
    components
        .into_iter()
        .map(|(component, image)| {
            placed(
                "/api/v1/namespaces/kube-system/pods",
                json!({"apiVersion": "v1", "kind": "Pod",
                    "metadata": {"name": format!("{component}-{name}"), "namespace": "kube-system",
                        "labels": {"component": component, "tier": "control-plane"},
                        "annotations": {"kubernetes.io/config.source": "file", "kubernetes.io/config.mirror": "simulated"},
                        "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid, "controller": true}]},
                    "spec": {"nodeName": name, "hostNetwork": true, "priorityClassName": "system-node-critical",
                        "containers": [{"name": component, "image": image, "command": [component]}],
                        "tolerations": [{"effect": "NoExecute", "operator": "Exists"}]},
                    "status": {"phase": "Running", "podIP": address, "hostIP": address, "startTime": started, "conditions": conditions,
                        "containerStatuses": [{"name": component, "image": image, "imageID": "", "ready": true, "started": true,
                            "restartCount": 0, "state": {"running": {"startedAt": started}}}]}}),
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        Machine {
            hostname: "Host-1".into(),
            addresses: vec![IpAddr::from([10, 64, 0, 1])],
            provider_id: Some("simulated://ns.host-1".into()),
            zone: Some("a".into()),
            kubelet_version: None,
            cpus: 2,
            memory_mib: 2048,
            lease_seconds: 40,
        }
    }

    fn registration(text: &str) -> NodeRegistration {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn taints_and_labels_follow_the_registration() {
        let keys = |node: &Value| -> Vec<String> {
            let taints = node.pointer("/spec/taints").and_then(Value::as_array).cloned().unwrap_or_default();
            taints.iter().map(|taint| taint["key"].as_str().unwrap().to_owned()).collect()
        };
        for (text, control_plane, expected) in [
            ("{}", true, vec![CONTROL_PLANE]),
            (r#"{"taints": []}"#, true, vec![]),
            ("{}", false, vec![]),
            (
                r#"{"taints": [{"key": "node.cluster.x-k8s.io/uninitialized", "effect": "NoSchedule"}]}"#,
                false,
                vec!["node.cluster.x-k8s.io/uninitialized"],
            ),
            (r#"{"kubeletExtraArgs": {"register-with-taints": "a=b:NoSchedule,c:NoExecute"}}"#, false, vec!["a", "c"]),
        ] {
            let node = node(&machine(), &registration(text), control_plane, "v1.35.0", Timestamp::UNIX_EPOCH);
            assert_eq!(keys(&node), expected, "{text}");
            assert_eq!(node["metadata"]["labels"].get(CONTROL_PLANE).is_some(), control_plane);
            assert_eq!(node["metadata"]["name"], "host-1");
            assert_eq!(ready_status(&node), "True");
        }
    }

    #[test]
    fn provider_id_is_the_kubelets_or_the_clouds() {
        let id = |text: &str, machine: &Machine| {
            node(machine, &registration(text), false, "v1", Timestamp::UNIX_EPOCH)["spec"]["providerID"].clone()
        };
        assert_eq!(id("{}", &machine()), "simulated://ns.host-1");
        assert_eq!(id(r#"{"kubeletExtraArgs": [{"name": "provider-id", "value": "x://1"}]}"#, &machine()), "x://1");
        assert_eq!(id("{}", &Machine { provider_id: None, ..machine() }), Value::Null);
    }

    #[test]
    fn the_first_service_address_is_the_api_servers() {
        for (subnet, address) in [
            ("10.96.0.0/12", "10.96.0.1"),
            ("10.128.0.0/12,fd00::/108", "10.128.0.1"),
            ("fd00::/108", "fd00::1"),
            ("", "10.96.0.1"),
        ] {
            assert_eq!(api_service_address(subnet).to_string(), address);
        }
    }
}
