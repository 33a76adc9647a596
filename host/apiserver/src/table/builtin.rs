//! How `kubectl get` shows the built-in kinds.

use super::age;
use jiff::Timestamp;
use serde_json::{Value, json};

/// The columns of a built-in kind after its name, and its cells.
pub(crate) struct BuiltIn {
    /// (name, type, priority)
    pub columns: &'static [(&'static str, &'static str, i64)],
    pub cells: fn(&Value, Timestamp) -> Vec<Value>,
    /// Whether `cells` begins with the name.
    pub named: bool,
}

/// The columns of a resource; name and age when there are none of its own.
pub(super) fn of(group: &str, plural: &str) -> &'static BuiltIn {
    match (group, plural) {
        ("", "pods") => &PODS,
        ("", "nodes") => &NODES,
        ("", "namespaces") => &NAMESPACES,
        ("", "secrets") => &SECRETS,
        ("", "configmaps") => &CONFIG_MAPS,
        ("", "services") => &SERVICES,
        ("" | "events.k8s.io", "events") => &EVENTS,
        ("apps", "deployments") => &DEPLOYMENTS,
        ("apps", "replicasets") => &REPLICA_SETS,
        ("apps", "statefulsets") => &STATEFUL_SETS,
        ("apps", "daemonsets") => &DAEMON_SETS,
        ("batch", "jobs") => &JOBS,
        ("coordination.k8s.io", "leases") => &LEASES,
        ("certificates.k8s.io", "certificatesigningrequests") => &SIGNING_REQUESTS,
        ("apiextensions.k8s.io", "customresourcedefinitions") => &DEFINITIONS,
        ("rbac.authorization.k8s.io", "clusterroles" | "roles") => &ROLES,
        ("rbac.authorization.k8s.io", "clusterrolebindings" | "rolebindings") => &ROLE_BINDINGS,
        _ => &PLAIN,
    }
}

fn text(object: &Value, path: &str) -> String {
    match object.pointer(path) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Null) | None => String::new(),
        Some(other) => other.to_string(),
    }
}

fn or(text: String, otherwise: &str) -> String {
    if text.is_empty() { otherwise.to_owned() } else { text }
}

fn number(object: &Value, path: &str) -> i64 {
    object.pointer(path).and_then(Value::as_i64).unwrap_or(0)
}

fn items<'a>(object: &'a Value, path: &str) -> &'a [Value] {
    object.pointer(path).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn old(object: &Value, now: Timestamp) -> Value {
    age(&text(object, "/metadata/creationTimestamp"), now).into()
}

fn count(object: &Value, path: &str) -> i64 {
    match object.pointer(path) {
        Some(Value::Object(fields)) => fields.len() as i64,
        Some(Value::Array(items)) => items.len() as i64,
        _ => 0,
    }
}

fn joined(object: &Value, path: &str, field: &str) -> String {
    items(object, path).iter().map(|item| text(item, field)).collect::<Vec<_>>().join(",")
}

fn selector(object: &Value) -> String {
    or(crate::selector::text_of(object.pointer("/spec/selector").unwrap_or(&Value::Null)), "<none>")
}

static PLAIN: BuiltIn =
    BuiltIn { columns: &[("Age", "string", 0)], cells: |object, now| vec![old(object, now)], named: false };

static PODS: BuiltIn = BuiltIn {
    columns: &[
        ("Ready", "string", 0),
        ("Status", "string", 0),
        ("Restarts", "string", 0),
        ("Age", "string", 0),
        ("IP", "string", 1),
        ("Node", "string", 1),
        ("Nominated Node", "string", 1),
        ("Readiness Gates", "string", 1),
    ],
    cells: |pod, now| {
        let statuses = items(pod, "/status/containerStatuses");
        let ready = statuses.iter().filter(|status| status.get("ready") == Some(&Value::Bool(true))).count();
        let restarts: i64 = statuses.iter().map(|status| number(status, "/restartCount")).sum();
        let waiting = statuses.iter().find_map(|status| {
            let reason = or(text(status, "/state/waiting/reason"), &text(status, "/state/terminated/reason"));
            (!reason.is_empty()).then_some(reason)
        });
        let mut phase = or(text(pod, "/status/reason"), &text(pod, "/status/phase"));
        phase = waiting.unwrap_or(phase);
        if pod.pointer("/metadata/deletionTimestamp").is_some() {
            phase = String::from("Terminating");
        }
        vec![
            format!("{ready}/{}", count(pod, "/spec/containers")).into(),
            phase.into(),
            restarts.to_string().into(),
            old(pod, now),
            or(text(pod, "/status/podIP"), "<none>").into(),
            or(text(pod, "/spec/nodeName"), "<none>").into(),
            or(text(pod, "/status/nominatedNodeName"), "<none>").into(),
            "<none>".into(),
        ]
    },
    named: false,
};

static NODES: BuiltIn = BuiltIn {
    columns: &[
        ("Status", "string", 0),
        ("Roles", "string", 0),
        ("Age", "string", 0),
        ("Version", "string", 0),
        ("Internal-IP", "string", 1),
        ("External-IP", "string", 1),
        ("OS-Image", "string", 1),
        ("Kernel-Version", "string", 1),
        ("Container-Runtime", "string", 1),
    ],
    cells: |node, now| {
        let ready = items(node, "/status/conditions").iter().find(|condition| text(condition, "/type") == "Ready");
        let mut status = match ready.map(|condition| text(condition, "/status")) {
            Some(state) if state == "True" => String::from("Ready"),
            Some(_) => String::from("NotReady"),
            None => String::from("Unknown"),
        };
        if node.pointer("/spec/unschedulable") == Some(&Value::Bool(true)) {
            status.push_str(",SchedulingDisabled");
        }
        let labels = node.pointer("/metadata/labels").and_then(Value::as_object);
        let mut roles: Vec<&str> = labels
            .into_iter()
            .flatten()
            .filter_map(|(label, _)| label.strip_prefix("node-role.kubernetes.io/"))
            .collect();
        roles.sort_unstable();
        let address = |kind: &str| {
            let found = items(node, "/status/addresses").iter().find(|address| text(address, "/type") == kind);
            or(found.map(|address| text(address, "/address")).unwrap_or_default(), "<none>")
        };
        let info = |field: &str| or(text(node, &format!("/status/nodeInfo/{field}")), "<unknown>");
        vec![
            status.into(),
            or(roles.join(","), "<none>").into(),
            old(node, now),
            text(node, "/status/nodeInfo/kubeletVersion").into(),
            address("InternalIP").into(),
            address("ExternalIP").into(),
            info("osImage").into(),
            info("kernelVersion").into(),
            info("containerRuntimeVersion").into(),
        ]
    },
    named: false,
};

static NAMESPACES: BuiltIn = BuiltIn {
    columns: &[("Status", "string", 0), ("Age", "string", 0)],
    cells: |namespace, now| vec![text(namespace, "/status/phase").into(), old(namespace, now)],
    named: false,
};

static SECRETS: BuiltIn = BuiltIn {
    columns: &[("Type", "string", 0), ("Data", "string", 0), ("Age", "string", 0)],
    cells: |secret, now| {
        vec![text(secret, "/type").into(), count(secret, "/data").to_string().into(), old(secret, now)]
    },
    named: false,
};

static CONFIG_MAPS: BuiltIn = BuiltIn {
    columns: &[("Data", "string", 0), ("Age", "string", 0)],
    cells: |map, now| vec![(count(map, "/data") + count(map, "/binaryData")).to_string().into(), old(map, now)],
    named: false,
};

static SERVICES: BuiltIn = BuiltIn {
    columns: &[
        ("Type", "string", 0),
        ("Cluster-IP", "string", 0),
        ("External-IP", "string", 0),
        ("Port(s)", "string", 0),
        ("Age", "string", 0),
        ("Selector", "string", 1),
    ],
    cells: |service, now| {
        let ports: Vec<String> = items(service, "/spec/ports")
            .iter()
            .map(|port| {
                let node = number(port, "/nodePort");
                let node = if node == 0 { String::new() } else { format!(":{node}") };
                format!("{}{node}/{}", text(port, "/port"), or(text(port, "/protocol"), "TCP"))
            })
            .collect();
        let selector = json!({"matchLabels": service.pointer("/spec/selector").cloned().unwrap_or_default()});
        let external =
            items(service, "/spec/externalIPs").iter().filter_map(Value::as_str).collect::<Vec<_>>().join(",");
        vec![
            or(text(service, "/spec/type"), "ClusterIP").into(),
            or(text(service, "/spec/clusterIP"), "<none>").into(),
            or(external, "<none>").into(),
            or(ports.join(","), "<none>").into(),
            old(service, now),
            or(crate::selector::text_of(&selector), "<none>").into(),
        ]
    },
    named: false,
};

static EVENTS: BuiltIn = BuiltIn {
    columns: &[
        ("Last Seen", "string", 0),
        ("Type", "string", 0),
        ("Reason", "string", 0),
        ("Object", "string", 0),
        ("Subobject", "string", 1),
        ("Source", "string", 1),
        ("Message", "string", 0),
        ("First Seen", "string", 1),
        ("Count", "string", 1),
        ("Name", "string", 1),
    ],
    cells: |event, now| {
        let first_of = |paths: &[&str]| {
            paths.iter().map(|path| text(event, path)).find(|text| !text.is_empty()).unwrap_or_default()
        };
        let seen = |text: String| if text.is_empty() { String::from("<unknown>") } else { age(&text, now) };
        let last = first_of(&[
            "/series/lastObservedTime",
            "/lastTimestamp",
            "/deprecatedLastTimestamp",
            "/eventTime",
            "/metadata/creationTimestamp",
        ]);
        let first =
            first_of(&["/firstTimestamp", "/deprecatedFirstTimestamp", "/eventTime", "/metadata/creationTimestamp"]);
        let kind = first_of(&["/involvedObject/kind", "/regarding/kind"]);
        let name = first_of(&["/involvedObject/name", "/regarding/name"]);
        vec![
            seen(last).into(),
            text(event, "/type").into(),
            text(event, "/reason").into(),
            format!("{}/{name}", kind.to_lowercase()).into(),
            first_of(&["/involvedObject/fieldPath", "/regarding/fieldPath"]).into(),
            first_of(&[
                "/source/component",
                "/deprecatedSource/component",
                "/reportingComponent",
                "/reportingController",
            ])
            .into(),
            first_of(&["/message", "/note"]).trim().into(),
            seen(first).into(),
            number(event, "/count")
                .max(number(event, "/deprecatedCount"))
                .max(number(event, "/series/count"))
                .max(1)
                .to_string()
                .into(),
            text(event, "/metadata/name").into(),
        ]
    },
    named: true,
};

fn containers(object: &Value) -> [Value; 2] {
    [
        joined(object, "/spec/template/spec/containers", "/name").into(),
        joined(object, "/spec/template/spec/containers", "/image").into(),
    ]
}

static DEPLOYMENTS: BuiltIn = BuiltIn {
    columns: &[
        ("Ready", "string", 0),
        ("Up-to-date", "string", 0),
        ("Available", "string", 0),
        ("Age", "string", 0),
        ("Containers", "string", 1),
        ("Images", "string", 1),
        ("Selector", "string", 1),
    ],
    cells: |deployment, now| {
        let [names, images] = containers(deployment);
        vec![
            format!("{}/{}", number(deployment, "/status/readyReplicas"), number(deployment, "/spec/replicas")).into(),
            number(deployment, "/status/updatedReplicas").to_string().into(),
            number(deployment, "/status/availableReplicas").to_string().into(),
            old(deployment, now),
            names,
            images,
            selector(deployment).into(),
        ]
    },
    named: false,
};

static REPLICA_SETS: BuiltIn = BuiltIn {
    columns: &[
        ("Desired", "string", 0),
        ("Current", "string", 0),
        ("Ready", "string", 0),
        ("Age", "string", 0),
        ("Containers", "string", 1),
        ("Images", "string", 1),
        ("Selector", "string", 1),
    ],
    cells: |set, now| {
        let [names, images] = containers(set);
        vec![
            number(set, "/spec/replicas").to_string().into(),
            number(set, "/status/replicas").to_string().into(),
            number(set, "/status/readyReplicas").to_string().into(),
            old(set, now),
            names,
            images,
            selector(set).into(),
        ]
    },
    named: false,
};

static STATEFUL_SETS: BuiltIn = BuiltIn {
    columns: &[("Ready", "string", 0), ("Age", "string", 0), ("Containers", "string", 1), ("Images", "string", 1)],
    cells: |set, now| {
        let [names, images] = containers(set);
        let ready = format!("{}/{}", number(set, "/status/readyReplicas"), number(set, "/spec/replicas"));
        vec![ready.into(), old(set, now), names, images]
    },
    named: false,
};

static DAEMON_SETS: BuiltIn = BuiltIn {
    columns: &[
        ("Desired", "string", 0),
        ("Current", "string", 0),
        ("Ready", "string", 0),
        ("Up-to-date", "string", 0),
        ("Available", "string", 0),
        ("Node Selector", "string", 0),
        ("Age", "string", 0),
        ("Containers", "string", 1),
        ("Images", "string", 1),
        ("Selector", "string", 1),
    ],
    cells: |set, now| {
        let [names, images] = containers(set);
        let nodes =
            json!({"matchLabels": set.pointer("/spec/template/spec/nodeSelector").cloned().unwrap_or_default()});
        let status = |field: &str| Value::from(number(set, &format!("/status/{field}")).to_string());
        vec![
            status("desiredNumberScheduled"),
            status("currentNumberScheduled"),
            status("numberReady"),
            status("updatedNumberScheduled"),
            status("numberAvailable"),
            or(crate::selector::text_of(&nodes), "<none>").into(),
            old(set, now),
            names,
            images,
            selector(set).into(),
        ]
    },
    named: false,
};

static JOBS: BuiltIn = BuiltIn {
    columns: &[("Completions", "string", 0), ("Age", "string", 0)],
    cells: |job, now| {
        let wanted = job.pointer("/spec/completions").and_then(Value::as_i64).unwrap_or(1);
        vec![format!("{}/{wanted}", number(job, "/status/succeeded")).into(), old(job, now)]
    },
    named: false,
};

static LEASES: BuiltIn = BuiltIn {
    columns: &[("Holder", "string", 0), ("Age", "string", 0)],
    cells: |lease, now| vec![text(lease, "/spec/holderIdentity").into(), old(lease, now)],
    named: false,
};

static SIGNING_REQUESTS: BuiltIn = BuiltIn {
    columns: &[
        ("Age", "string", 0),
        ("SignerName", "string", 0),
        ("Requestor", "string", 0),
        ("RequestedDuration", "string", 0),
        ("Condition", "string", 0),
    ],
    cells: |request, now| {
        let mut condition: Vec<String> =
            items(request, "/status/conditions").iter().map(|condition| text(condition, "/type")).collect();
        if condition.is_empty() {
            condition.push(String::from("Pending"));
        }
        if !text(request, "/status/certificate").is_empty() {
            condition.push(String::from("Issued"));
        }
        let duration = request.pointer("/spec/expirationSeconds").and_then(Value::as_i64);
        vec![
            old(request, now),
            text(request, "/spec/signerName").into(),
            text(request, "/spec/username").into(),
            duration.map_or_else(|| String::from("<none>"), super::human_duration).into(),
            condition.join(",").into(),
        ]
    },
    named: false,
};

static DEFINITIONS: BuiltIn = BuiltIn {
    columns: &[("Created At", "date", 0)],
    cells: |definition, _| vec![text(definition, "/metadata/creationTimestamp").into()],
    named: false,
};

static ROLES: BuiltIn = BuiltIn {
    columns: &[("Created At", "date", 0)],
    cells: |role, _| vec![text(role, "/metadata/creationTimestamp").into()],
    named: false,
};

static ROLE_BINDINGS: BuiltIn = BuiltIn {
    columns: &[("Role", "string", 0), ("Age", "string", 0)],
    cells: |binding, now| {
        vec![format!("{}/{}", text(binding, "/roleRef/kind"), text(binding, "/roleRef/name")).into(), old(binding, now)]
    },
    named: false,
};
