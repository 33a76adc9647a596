//! How `kubectl get` shows the built-in kinds that nobody here acts on, and those of roles.

use super::age;
use super::builtin::{BuiltIn, containers, count, items, number, old, or, selector, text};
use jiff::Timestamp;
use serde_json::{Value, json};

/// The columns of a resource, if it has any of its own.
pub(super) fn of(group: &str, plural: &str) -> Option<&'static BuiltIn> {
    Some(match (group, plural) {
        ("", "endpoints") => &ENDPOINTS,
        ("", "persistentvolumes") => &VOLUMES,
        ("", "persistentvolumeclaims") => &CLAIMS,
        ("admissionregistration.k8s.io", "validatingadmissionpolicies") => &ADMISSION_POLICIES,
        ("admissionregistration.k8s.io", "validatingadmissionpolicybindings") => &ADMISSION_BINDINGS,
        ("admissionregistration.k8s.io", _) => &WEBHOOKS,
        ("apps", "controllerrevisions") => &REVISIONS,
        ("batch", "jobs") => &JOBS,
        ("discovery.k8s.io", "endpointslices") => &SLICES,
        ("networking.k8s.io", "networkpolicies") => &POLICIES,
        ("policy", "poddisruptionbudgets") => &BUDGETS,
        ("rbac.authorization.k8s.io", "clusterrolebindings" | "rolebindings") => &ROLE_BINDINGS,
        ("scheduling.k8s.io", "priorityclasses") => &PRIORITIES,
        ("storage.k8s.io", "storageclasses") => &STORAGE_CLASSES,
        ("storage.k8s.io", "volumeattachments") => &ATTACHMENTS,
        _ => return None,
    })
}

static ROLE_BINDINGS: BuiltIn = BuiltIn {
    columns: &[
        ("Role", "string", 0),
        ("Age", "string", 0),
        ("Users", "string", 1),
        ("Groups", "string", 1),
        ("ServiceAccounts", "string", 1),
    ],
    cells: |binding, now| {
        let of = |kind: &str| {
            let all = items(binding, "/subjects").iter().filter(|subject| text(subject, "/kind") == kind);
            let names: Vec<String> = all
                .map(|subject| match kind {
                    "ServiceAccount" => format!("{}/{}", text(subject, "/namespace"), text(subject, "/name")),
                    _ => text(subject, "/name"),
                })
                .collect();
            Value::from(names.join(", "))
        };
        vec![
            format!("{}/{}", text(binding, "/roleRef/kind"), text(binding, "/roleRef/name")).into(),
            old(binding, now),
            of("User"),
            of("Group"),
            of("ServiceAccount"),
        ]
    },
    named: false,
};

static BUDGETS: BuiltIn = BuiltIn {
    columns: &[
        ("Min Available", "string", 0),
        ("Max Unavailable", "string", 0),
        ("Allowed Disruptions", "integer", 0),
        ("Age", "string", 0),
    ],
    cells: |budget, now| {
        vec![
            or(text(budget, "/spec/minAvailable"), "N/A").into(),
            or(text(budget, "/spec/maxUnavailable"), "N/A").into(),
            number(budget, "/status/disruptionsAllowed").into(),
            old(budget, now),
        ]
    },
    named: false,
};

static PRIORITIES: BuiltIn = BuiltIn {
    columns: &[
        ("Value", "integer", 0),
        ("Global-Default", "boolean", 0),
        ("Age", "string", 0),
        ("PreemptionPolicy", "string", 0),
    ],
    cells: |class, now| {
        vec![
            number(class, "/value").into(),
            (class.get("globalDefault") == Some(&Value::Bool(true))).into(),
            old(class, now),
            text(class, "/preemptionPolicy").into(),
        ]
    },
    named: false,
};

static STORAGE_CLASSES: BuiltIn = BuiltIn {
    columns: &[
        ("Name", "string", 0),
        ("Provisioner", "string", 0),
        ("ReclaimPolicy", "string", 0),
        ("VolumeBindingMode", "string", 0),
        ("AllowVolumeExpansion", "string", 0),
        ("Age", "string", 0),
    ],
    cells: |class, now| {
        let mut name = text(class, "/metadata/name");
        if text(class, "/metadata/annotations/storageclass.kubernetes.io~1is-default-class") == "true" {
            name.push_str(" (default)");
        }
        vec![
            name.into(),
            text(class, "/provisioner").into(),
            or(text(class, "/reclaimPolicy"), "Delete").into(),
            or(text(class, "/volumeBindingMode"), "Immediate").into(),
            (class.get("allowVolumeExpansion") == Some(&Value::Bool(true))).into(),
            old(class, now),
        ]
    },
    named: true,
};

static ATTACHMENTS: BuiltIn = BuiltIn {
    columns: &[
        ("Attacher", "string", 0),
        ("PV", "string", 0),
        ("Node", "string", 0),
        ("Attached", "boolean", 0),
        ("Age", "string", 0),
    ],
    cells: |attachment, now| {
        vec![
            text(attachment, "/spec/attacher").into(),
            text(attachment, "/spec/source/persistentVolumeName").into(),
            text(attachment, "/spec/nodeName").into(),
            (attachment.pointer("/status/attached") == Some(&Value::Bool(true))).into(),
            old(attachment, now),
        ]
    },
    named: false,
};

static POLICIES: BuiltIn = BuiltIn {
    columns: &[("Pod-Selector", "string", 0), ("Age", "string", 0)],
    cells: |policy, now| {
        let pods = policy.pointer("/spec/podSelector").cloned().unwrap_or_default();
        vec![or(crate::selector::text_of(&pods), "<none>").into(), old(policy, now)]
    },
    named: false,
};

static WEBHOOKS: BuiltIn = BuiltIn {
    columns: &[("Webhooks", "integer", 0), ("Age", "string", 0)],
    cells: |configuration, now| vec![count(configuration, "/webhooks").into(), old(configuration, now)],
    named: false,
};

static ADMISSION_POLICIES: BuiltIn = BuiltIn {
    columns: &[("Validations", "integer", 0), ("ParamKind", "string", 0), ("Age", "string", 0)],
    cells: |policy, now| {
        let kind = match policy.pointer("/spec/paramKind") {
            Some(kind) => format!("{}/{}", text(kind, "/apiVersion"), text(kind, "/kind")),
            None => String::from("<unset>"),
        };
        vec![count(policy, "/spec/validations").into(), kind.into(), old(policy, now)]
    },
    named: false,
};

static ADMISSION_BINDINGS: BuiltIn = BuiltIn {
    columns: &[("PolicyName", "string", 0), ("ParamRef", "string", 0), ("Age", "string", 0)],
    cells: |binding, now| {
        let name = text(binding, "/spec/paramRef/name");
        let param = match binding.pointer("/spec/paramRef/selector") {
            _ if !name.is_empty() => format!("{}/{name}", or(text(binding, "/spec/paramRef/namespace"), "*")),
            Some(selector) => go_selector(selector),
            None => String::from("<unset>"),
        };
        vec![text(binding, "/spec/policyName").into(), param.into(), old(binding, now)]
    },
    named: false,
};

/// A selector as Go prints the struct.
fn go_selector(selector: &Value) -> String {
    let labels = selector.get("matchLabels").and_then(Value::as_object);
    let mut labels: Vec<String> =
        labels.into_iter().flatten().map(|(key, value)| format!("{key}: {},", value.as_str().unwrap_or(""))).collect();
    labels.sort();
    let expressions: Vec<String> = items(selector, "/matchExpressions")
        .iter()
        .map(|one| {
            let values: Vec<String> = items(one, "/values").iter().map(|value| text(value, "")).collect();
            let (key, operator) = (text(one, "/key"), text(one, "/operator"));
            format!("LabelSelectorRequirement{{Key:{key},Operator:{operator},Values:[{}],}},", values.join(" "))
        })
        .collect();
    let (labels, expressions) = (labels.join(""), expressions.join(""));
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{labels}}},MatchExpressions:[]LabelSelectorRequirement{{{expressions}}},}}"
    )
}

static REVISIONS: BuiltIn = BuiltIn {
    columns: &[("Controller", "string", 0), ("Revision", "string", 0), ("Age", "string", 0)],
    cells: |revision, now| {
        let owners = items(revision, "/metadata/ownerReferences");
        let owner = owners.iter().find(|owner| owner.get("controller") == Some(&Value::Bool(true)));
        let owner = owner.map(|owner| {
            let version = text(owner, "/apiVersion");
            let group = version.split_once('/').map(|(group, _)| format!(".{group}")).unwrap_or_default();
            format!("{}{group}/{}", text(owner, "/kind").to_lowercase(), text(owner, "/name"))
        });
        vec![or(owner.unwrap_or_default(), "<none>").into(), number(revision, "/revision").into(), old(revision, now)]
    },
    named: false,
};

static JOBS: BuiltIn = BuiltIn {
    columns: &[
        ("Status", "string", 0),
        ("Completions", "string", 0),
        ("Duration", "string", 0),
        ("Age", "string", 0),
        ("Containers", "string", 1),
        ("Images", "string", 1),
        ("Selector", "string", 1),
    ],
    cells: |job, now| {
        let has = |kind: &str| {
            let all = items(job, "/status/conditions");
            all.iter().any(|condition| text(condition, "/type") == kind && text(condition, "/status") == "True")
        };
        let deleting = job.pointer("/metadata/deletionTimestamp").is_some();
        let status = match () {
            () if has("Complete") => "Complete",
            () if has("Failed") => "Failed",
            () if deleting => "Terminating",
            () if has("Suspended") => "Suspended",
            () if has("FailureTarget") => "FailureTarget",
            () if has("SuccessCriteriaMet") => "SuccessCriteriaMet",
            () => "Running",
        };
        let (done, parallel) = (number(job, "/status/succeeded"), number(job, "/spec/parallelism"));
        let completions = match job.pointer("/spec/completions").and_then(Value::as_i64) {
            Some(wanted) => format!("{done}/{wanted}"),
            None if parallel > 1 => format!("{done}/1 of {parallel}"),
            None => format!("{done}/1"),
        };
        let time = |path: &str| text(job, path).parse::<Timestamp>().ok();
        let began = text(job, "/status/startTime");
        let lasted = if began.is_empty() { began } else { age(&began, time("/status/completionTime").unwrap_or(now)) };
        let [names, images] = containers(job);
        vec![status.into(), completions.into(), lasted.into(), old(job, now), names, images, selector(job).into()]
    },
    named: false,
};

/// Access modes as people write them.
fn modes(object: &Value, path: &str) -> String {
    let has = |mode: &str| items(object, path).iter().any(|own| own == mode);
    let all =
        [("ReadWriteOnce", "RWO"), ("ReadOnlyMany", "ROX"), ("ReadWriteMany", "RWX"), ("ReadWriteOncePod", "RWOP")];
    all.iter().filter(|(mode, _)| has(mode)).map(|(_, short)| *short).collect::<Vec<_>>().join(",")
}

fn phase(object: &Value) -> Value {
    let deleting = object.pointer("/metadata/deletionTimestamp").is_some();
    if deleting { "Terminating".into() } else { text(object, "/status/phase").into() }
}

fn class(object: &Value) -> Value {
    let annotated = text(object, "/metadata/annotations/volume.beta.kubernetes.io~1storage-class");
    or(annotated, &text(object, "/spec/storageClassName")).into()
}

static VOLUMES: BuiltIn = BuiltIn {
    columns: &[
        ("Capacity", "string", 0),
        ("Access Modes", "string", 0),
        ("Reclaim Policy", "string", 0),
        ("Status", "string", 0),
        ("Claim", "string", 0),
        ("StorageClass", "string", 0),
        ("VolumeAttributesClass", "string", 0),
        ("Reason", "string", 0),
        ("Age", "string", 0),
        ("VolumeMode", "string", 1),
    ],
    cells: |volume, now| {
        let claim = volume.pointer("/spec/claimRef").filter(|claim| claim.is_object());
        let claim = claim.map(|claim| format!("{}/{}", text(claim, "/namespace"), text(claim, "/name")));
        vec![
            or(text(volume, "/spec/capacity/storage"), "0").into(),
            modes(volume, "/spec/accessModes").into(),
            text(volume, "/spec/persistentVolumeReclaimPolicy").into(),
            phase(volume),
            claim.unwrap_or_default().into(),
            class(volume),
            or(text(volume, "/spec/volumeAttributesClassName"), "<unset>").into(),
            text(volume, "/status/reason").into(),
            old(volume, now),
            or(text(volume, "/spec/volumeMode"), "<unset>").into(),
        ]
    },
    named: false,
};

static CLAIMS: BuiltIn = BuiltIn {
    columns: &[
        ("Status", "string", 0),
        ("Volume", "string", 0),
        ("Capacity", "string", 0),
        ("Access Modes", "string", 0),
        ("StorageClass", "string", 0),
        ("VolumeAttributesClass", "string", 0),
        ("Age", "string", 0),
        ("VolumeMode", "string", 1),
    ],
    cells: |claim, now| {
        let volume = text(claim, "/spec/volumeName");
        let bound = !volume.is_empty();
        let if_bound = |text: String| if bound { text } else { String::new() };
        vec![
            phase(claim),
            volume.into(),
            if_bound(or(text(claim, "/status/capacity/storage"), "0")).into(),
            if_bound(modes(claim, "/status/accessModes")).into(),
            class(claim),
            or(text(claim, "/spec/volumeAttributesClassName"), "<unset>").into(),
            old(claim, now),
            or(text(claim, "/spec/volumeMode"), "<unset>").into(),
        ]
    },
    named: false,
};

/// The first three, and how many more there are.
fn some(all: &[String]) -> String {
    match all {
        [] => "<none>".to_owned(),
        [a, b, c, rest @ ..] if !rest.is_empty() => format!("{a},{b},{c} + {} more...", rest.len()),
        all => all.join(","),
    }
}

static SLICES: BuiltIn = BuiltIn {
    columns: &[("AddressType", "string", 0), ("Ports", "string", 0), ("Endpoints", "string", 0), ("Age", "string", 0)],
    cells: |slice, now| {
        let ports = items(slice, "/ports").iter().map(|port| or(text(port, "/port"), "*")).collect::<Vec<_>>();
        let mut shown = some(&ports);
        if shown == "<none>" {
            shown = "<unset>".to_owned();
        }
        let addresses = items(slice, "/endpoints").iter().flat_map(|endpoint| items(endpoint, "/addresses"));
        let addresses: Vec<String> = addresses.filter_map(Value::as_str).map(str::to_owned).collect();
        let addresses = if addresses.is_empty() { "<unset>".to_owned() } else { some(&addresses) };
        vec![text(slice, "/addressType").into(), shown.into(), addresses.into(), old(slice, now)]
    },
    named: false,
};

static ENDPOINTS: BuiltIn = BuiltIn {
    columns: &[("Endpoints", "string", 0), ("Age", "string", 0)],
    cells: |endpoints, now| {
        let mut all = Vec::new();
        let none = json!({});
        for subset in items(endpoints, "/subsets") {
            let ports = items(subset, "/ports");
            let ports = if ports.is_empty() { std::slice::from_ref(&none) } else { ports };
            for port in ports {
                for address in items(subset, "/addresses") {
                    let (ip, port) = (text(address, "/ip"), text(port, "/port"));
                    all.push(if port.is_empty() { ip } else { format!("{ip}:{port}") });
                }
            }
        }
        vec![some(&all).into(), old(endpoints, now)]
    },
    named: false,
};
