//! The CustomResourceDefinitions that Capstan installs: the core kinds of Cluster API and its own.

use schemars::JsonSchema;
use serde_json::{Map, Value, json};

use crate::capstan::{EgressPolicySpec, EndpointSpec, EndpointStatus, ProviderModuleSpec, ProviderModuleStatus};
use crate::cluster::{ClusterSpec, ClusterStatus};
use crate::ipam::{
    IPAM_GROUP, IPAM_VERSION, InClusterIpPoolSpec, InClusterIpPoolStatus, IpAddressClaimSpec, IpAddressClaimStatus,
    IpAddressSpec, IpAddressStatus, POOL_VERSION,
};
use crate::machine::{MachineSpec, MachineStatus};
use crate::machine_deployment::{MachineDeploymentSpec, MachineDeploymentStatus};
use crate::machine_pool::{MachinePoolSpec, MachinePoolStatus};
use crate::machine_set::{MachineSetSpec, MachineSetStatus};
use crate::structural::{schema_of, set};
use crate::well_known::{CAPSTAN_GROUP, CLUSTER_GROUP, PROVIDER};

/// Where a schema's CEL rules stand.
pub(crate) const RULES: &str = "/x-kubernetes-validations";

/// The scale subresource of a kind with `spec.replicas`.
pub(crate) fn scale() -> Value {
    json!({
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    })
}

/// A printer column.
pub(crate) struct Column {
    name: &'static str,
    kind: &'static str,
    path: &'static str,
    about: &'static str,
    wide: bool,
}

pub(crate) const fn column(name: &'static str, kind: &'static str, path: &'static str, about: &'static str) -> Column {
    Column { name, kind, path, about, wide: false }
}

pub(crate) const fn wide(name: &'static str, kind: &'static str, path: &'static str, about: &'static str) -> Column {
    Column { name, kind, path, about, wide: true }
}

impl Column {
    pub(crate) fn to_value(&self) -> Value {
        let mut value = json!({
            "name": self.name, "type": self.kind, "jsonPath": self.path, "description": self.about});
        if self.wide {
            set(&mut value, "/priority", 10.into());
        }
        value
    }
}

pub(crate) const PAUSED: Column = wide(
    "Paused",
    "string",
    ".status.conditions[?(@.type==\"Paused\")].status",
    "Reconciliation of the object is paused",
);
pub(crate) const AGE: Column =
    column("Age", "date", ".metadata.creationTimestamp", "Time since the object was created");
pub(crate) const CLUSTER: Column = column("Cluster", "string", ".spec.clusterName", "Cluster");
const AVAILABLE: Column =
    column("Available", "string", ".status.conditions[?(@.type==\"Available\")].status", "The object is available");
const PHASE: Column = column("Phase", "string", ".status.phase", "Where the object is in its life");

const CLUSTER_COLUMNS: &[Column] = &[
    column("ClusterClass", "string", ".spec.topology.classRef.name", "ClusterClass, where the topology is managed"),
    AVAILABLE,
    column("CP Desired", "integer", ".status.controlPlane.desiredReplicas", "Control-plane machines wanted"),
    wide("CP Current", "integer", ".status.controlPlane.replicas", "Control-plane machines there"),
    wide("CP Ready", "integer", ".status.controlPlane.readyReplicas", "Control-plane machines ready"),
    column("CP Available", "integer", ".status.controlPlane.availableReplicas", "Control-plane machines available"),
    column("CP Up-to-date", "integer", ".status.controlPlane.upToDateReplicas", "Control-plane machines up to date"),
    column("W Desired", "integer", ".status.workers.desiredReplicas", "Workers wanted"),
    wide("W Current", "integer", ".status.workers.replicas", "Workers there"),
    wide("W Ready", "integer", ".status.workers.readyReplicas", "Workers ready"),
    column("W Available", "integer", ".status.workers.availableReplicas", "Workers available"),
    column("W Up-to-date", "integer", ".status.workers.upToDateReplicas", "Workers up to date"),
    PAUSED,
    PHASE,
    AGE,
    column("Version", "string", ".spec.topology.version", "Kubernetes version, where the topology is managed"),
];

const MACHINE_COLUMNS: &[Column] = &[
    CLUSTER,
    column("Node Name", "string", ".status.nodeRef.name", "Node of the machine"),
    wide("Provider ID", "string", ".spec.providerID", "What the cloud calls the machine"),
    column("Failure Domain", "string", ".status.failureDomain", "Failure domain of the machine"),
    column("Ready", "string", ".status.conditions[?(@.type==\"Ready\")].status", "The machine is ready"),
    column("Available", "string", ".status.conditions[?(@.type==\"Available\")].status", "The machine is available"),
    column("Up-to-date", "string", ".status.conditions[?(@.type==\"UpToDate\")].status", "The machine is up to date"),
    wide("Internal-IP", "string", ".status.addresses[?(@.type==\"InternalIP\")].address", "Internal IP addresses"),
    wide("External-IP", "string", ".status.addresses[?(@.type==\"ExternalIP\")].address", "External IP addresses"),
    wide("OS-Image", "string", ".status.nodeInfo.osImage", "OS image that the Node reports"),
    PAUSED,
    PHASE,
    AGE,
    column("Version", "string", ".spec.version", "Kubernetes version"),
];

const DESIRED: Column = column("Desired", "integer", ".spec.replicas", "Machines wanted");
const CURRENT: Column = column("Current", "integer", ".status.replicas", "Machines there");
const READY_COUNT: Column = column("Ready", "integer", ".status.readyReplicas", "Machines ready");
const AVAILABLE_COUNT: Column = column("Available", "integer", ".status.availableReplicas", "Machines available");
const UP_TO_DATE_COUNT: Column = column("Up-to-date", "integer", ".status.upToDateReplicas", "Machines up to date");
const VERSION: Column = column("Version", "string", ".spec.template.spec.version", "Kubernetes version");

const MACHINE_SET_COLUMNS: &[Column] =
    &[CLUSTER, DESIRED, CURRENT, READY_COUNT, AVAILABLE_COUNT, UP_TO_DATE_COUNT, PAUSED, AGE, VERSION];

const MACHINE_DEPLOYMENT_COLUMNS: &[Column] = &[
    CLUSTER,
    AVAILABLE,
    DESIRED,
    CURRENT,
    READY_COUNT,
    AVAILABLE_COUNT,
    UP_TO_DATE_COUNT,
    PAUSED,
    PHASE,
    AGE,
    VERSION,
];

const PROVIDER_MODULE_COLUMNS: &[Column] = &[
    column("Role", "string", ".status.role", "What the provider is for"),
    column("Version", "string", ".status.version", "Version of the provider"),
    column("Loaded", "string", ".status.conditions[?(@.type==\"Loaded\")].status", "The component is loaded"),
    column("Reason", "string", ".status.conditions[?(@.type==\"Loaded\")].reason", "Why it is or is not"),
    wide("Digest", "string", ".status.digest", "Digest of the loaded component"),
    AGE,
];

const ENDPOINT_COLUMNS: &[Column] = &[
    column("URL", "string", ".spec.url", "Origin"),
    column("Socket", "string", ".spec.unixSocket", "Unix socket"),
    AGE,
];

const POOL_NAME: Column = column("Pool Name", "string", ".spec.poolRef.name", "Pool");
const POOL_KIND: Column = column("Pool Kind", "string", ".spec.poolRef.kind", "Kind of the pool");
const CLAIM_COLUMNS: &[Column] = &[POOL_NAME, POOL_KIND, AGE];
const ADDRESS_COLUMNS: &[Column] =
    &[column("Address", "string", ".spec.address", "The address"), POOL_NAME, POOL_KIND, AGE];
const POOL_COLUMNS: &[Column] = &[
    column("Addresses", "string", ".spec.addresses", "Addresses that may be given"),
    column("Total", "integer", ".status.ipAddresses.total", "How many they are"),
    column("Free", "integer", ".status.ipAddresses.free", "Addresses that can still be given"),
    column("Used", "integer", ".status.ipAddresses.used", "Addresses that were given"),
];

const EGRESS_POLICY_COLUMNS: &[Column] = &[
    column("Addresses", "string", ".spec.addresses", "Networks that are listed"),
    column("Accepted", "string", ".status.conditions[?(@.type==\"Accepted\")].status", "The policy is in force"),
    AGE,
];

struct Kind {
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
    short_names: &'static [&'static str],
    categories: &'static [&'static str],
    namespaced: bool,
    scale: bool,
    about: &'static str,
    columns: &'static [Column],
    /// CEL rules of the whole object: rule and message.
    rules: &'static [(&'static str, &'static str)],
}

const CLUSTER_KIND: Kind = Kind {
    group: CLUSTER_GROUP,
    version: "v1beta2",
    kind: "Cluster",
    plural: "clusters",
    short_names: &["cl"],
    categories: &["cluster-api"],
    namespaced: true,
    scale: false,
    about: "Cluster is a workload cluster: its network, and references to what makes it.",
    columns: CLUSTER_COLUMNS,
    rules: &[("self.metadata.name.size() <= 63", "a Cluster's name is used as a label: it has 63 characters at most")],
};

const MACHINE_KIND: Kind = Kind {
    group: CLUSTER_GROUP,
    version: "v1beta2",
    kind: "Machine",
    plural: "machines",
    short_names: &["ma"],
    categories: &["cluster-api"],
    namespaced: true,
    scale: false,
    about: "Machine is one machine of a workload cluster, from its infrastructure to its Node.",
    columns: MACHINE_COLUMNS,
    rules: &[],
};

const MACHINE_SET_KIND: Kind = Kind {
    kind: "MachineSet",
    plural: "machinesets",
    short_names: &["ms"],
    scale: true,
    about: "MachineSet keeps a number of equal machines.",
    columns: MACHINE_SET_COLUMNS,
    ..MACHINE_KIND
};

const MACHINE_DEPLOYMENT_KIND: Kind = Kind {
    kind: "MachineDeployment",
    plural: "machinedeployments",
    short_names: &["md"],
    scale: true,
    about: "MachineDeployment keeps a number of equal machines and rolls changes of their template out.",
    columns: MACHINE_DEPLOYMENT_COLUMNS,
    ..MACHINE_KIND
};

/// Nobody makes machines of it, so none is taken; clients that list all kinds of Cluster API (`clusterctl describe`) find it.
const MACHINE_POOL_KIND: Kind = Kind {
    kind: "MachinePool",
    plural: "machinepools",
    short_names: &["mp"],
    about: "MachinePool would be a set of machines that the infrastructure keeps; it is not supported yet.",
    scale: true,
    columns: &[CLUSTER, DESIRED, CURRENT, READY_COUNT, AVAILABLE_COUNT, UP_TO_DATE_COUNT, PAUSED, PHASE, AGE, VERSION],
    ..MACHINE_KIND
};

const PROVIDER_MODULE_KIND: Kind = Kind {
    group: CAPSTAN_GROUP,
    version: "v1alpha1",
    kind: "ProviderModule",
    plural: "providermodules",
    short_names: &["pm"],
    categories: &["capstan"],
    namespaced: false,
    scale: false,
    about: "ProviderModule is a provider component: where it comes from, what it may use, and what was loaded.",
    columns: PROVIDER_MODULE_COLUMNS,
    rules: &[],
};

const ENDPOINT_KIND: Kind = Kind {
    kind: "Endpoint",
    plural: "endpoints",
    short_names: &[],
    namespaced: true,
    about: "Endpoint is a named destination that providers may send requests to on behalf of this namespace.",
    columns: ENDPOINT_COLUMNS,
    ..PROVIDER_MODULE_KIND
};

const CLAIM_KIND: Kind = Kind {
    group: IPAM_GROUP,
    version: IPAM_VERSION,
    kind: "IPAddressClaim",
    plural: "ipaddressclaims",
    short_names: &[],
    about: "IPAddressClaim asks for an address of a pool.",
    columns: CLAIM_COLUMNS,
    ..MACHINE_KIND
};

const ADDRESS_KIND: Kind = Kind {
    kind: "IPAddress",
    plural: "ipaddresses",
    about: "IPAddress is an address that was given to the claim of the same name.",
    columns: ADDRESS_COLUMNS,
    ..CLAIM_KIND
};

const POOL_KIND_OF_NAMESPACE: Kind = Kind {
    version: POOL_VERSION,
    kind: "InClusterIPPool",
    plural: "inclusterippools",
    about: "InClusterIPPool holds addresses for claims of its namespace.",
    columns: POOL_COLUMNS,
    ..CLAIM_KIND
};

const GLOBAL_POOL_KIND: Kind = Kind {
    kind: "GlobalInClusterIPPool",
    plural: "globalinclusterippools",
    namespaced: false,
    about: "GlobalInClusterIPPool holds addresses for claims of all namespaces.",
    ..POOL_KIND_OF_NAMESPACE
};

const EGRESS_POLICY_KIND: Kind = Kind {
    kind: "EgressPolicy",
    plural: "egresspolicies",
    short_names: &[],
    about: "EgressPolicy lists what endpoints and workload clusters may resolve to beyond the public internet.",
    columns: EGRESS_POLICY_COLUMNS,
    ..PROVIDER_MODULE_KIND
};

/// All CRDs, complete, in the order in which they are best installed.
pub fn crds() -> Vec<Value> {
    vec![
        crd::<ClusterSpec, ClusterStatus>(&CLUSTER_KIND),
        crd::<MachineSpec, MachineStatus>(&MACHINE_KIND),
        crd::<MachineSetSpec, MachineSetStatus>(&MACHINE_SET_KIND),
        crd::<MachineDeploymentSpec, MachineDeploymentStatus>(&MACHINE_DEPLOYMENT_KIND),
        crd::<ProviderModuleSpec, ProviderModuleStatus>(&PROVIDER_MODULE_KIND),
        crd::<EndpointSpec, EndpointStatus>(&ENDPOINT_KIND),
        crd::<IpAddressClaimSpec, IpAddressClaimStatus>(&CLAIM_KIND),
        crd::<IpAddressSpec, IpAddressStatus>(&ADDRESS_KIND),
        crd::<InClusterIpPoolSpec, InClusterIpPoolStatus>(&POOL_KIND_OF_NAMESPACE),
        crd::<InClusterIpPoolSpec, InClusterIpPoolStatus>(&GLOBAL_POOL_KIND),
        crd::<EgressPolicySpec, EndpointStatus>(&EGRESS_POLICY_KIND),
        crd::<MachinePoolSpec, MachinePoolStatus>(&MACHINE_POOL_KIND),
    ]
}

fn crd<Spec: JsonSchema, Status: JsonSchema>(kind: &Kind) -> Value {
    let mut spec = schema_of::<Spec>();
    if kind.group != CAPSTAN_GROUP {
        constrain(kind.kind, &mut spec);
    }
    let mut schema = json!({
        "description": kind.about,
        "type": "object",
        "properties": {
            "apiVersion": {"type": "string", "description": "Version of the schema of this object."},
            "kind": {"type": "string", "description": "Kind of this object."},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": schema_of::<Status>(),
        },
        "required": ["spec"],
    });
    if !kind.rules.is_empty() {
        let rules: Vec<Value> = kind.rules.iter().map(|(r, m)| json!({"rule": r, "message": m})).collect();
        set(&mut schema, RULES, rules.into());
    }
    let mut subresources = json!({"status": {}});
    if kind.scale {
        set(&mut subresources, "/scale", scale());
    }
    let mut labels = Map::new();
    if kind.group != CAPSTAN_GROUP {
        let provider = if kind.version == POOL_VERSION { "ipam-in-cluster" } else { "cluster-api" };
        labels.insert("cluster.x-k8s.io/v1beta2".into(), kind.version.into());
        labels.insert(PROVIDER.into(), provider.into());
        labels.insert("clusterctl.cluster.x-k8s.io".into(), "".into());
    }
    let mut names = json!({
        "kind": kind.kind,
        "listKind": format!("{}List", kind.kind),
        "plural": kind.plural,
        "singular": kind.kind.to_lowercase(),
        "categories": kind.categories,
    });
    if !kind.short_names.is_empty() {
        set(&mut names, "/shortNames", json!(kind.short_names));
    }
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{}.{}", kind.plural, kind.group), "labels": labels},
        "spec": {
            "group": kind.group,
            "names": names,
            "scope": if kind.namespaced { "Namespaced" } else { "Cluster" },
            "versions": [{
                "name": kind.version,
                "served": true,
                "storage": true,
                "schema": {"openAPIV3Schema": schema},
                "subresources": subresources,
                "additionalPrinterColumns": kind.columns.iter().map(Column::to_value).collect::<Vec<_>>(),
            }],
        },
    })
}

/// CEL rules, so that an API server that knows nothing of Capstan refuses the same objects.
fn constrain(kind: &str, spec: &mut Value) {
    let immutable = json!([{"rule": "self == oldSelf", "message": "clusterName cannot be changed"}]);
    let bootstrap = json!([{
        "rule": "has(self.configRef) || has(self.dataSecretName)",
        "message": "configRef or dataSecretName is needed",
    }]);
    match kind {
        "Cluster" => {
            let rules = json!([
                {"rule": "has(self.controlPlaneRef) || has(self.infrastructureRef) || has(self.topology)",
                 "message": "at least one of controlPlaneRef, infrastructureRef and topology is needed"},
                {"rule": "!has(oldSelf.controlPlaneRef) || has(self.controlPlaneRef)",
                 "message": "controlPlaneRef cannot be removed"},
                {"rule": "!has(oldSelf.infrastructureRef) || has(self.infrastructureRef)",
                 "message": "infrastructureRef cannot be removed"},
                {"rule": "!has(self.topology)",
                 "message": "managed topologies are not supported yet: remove topology and write the objects out"},
            ]);
            set(spec, RULES, rules);
        }
        "Machine" => {
            set(spec, &format!("/properties/clusterName{RULES}"), immutable);
            set(spec, &format!("/properties/bootstrap{RULES}"), bootstrap);
        }
        "MachinePool" => {
            let rule =
                json!([{"rule": "false", "message": "MachinePools are not supported yet: use a MachineDeployment"}]);
            set(spec, RULES, rule);
        }
        "IPAddressClaim" | "IPAddress" => {
            set(spec, RULES, json!([{"rule": "self == oldSelf", "message": "the spec cannot be changed"}]));
        }
        "InClusterIPPool" | "GlobalInClusterIPPool" => {
            for field in ["addresses", "excludedAddresses"] {
                let pattern = "^[0-9A-Fa-f.:]+(-[0-9A-Fa-f.:]+|/[0-9]{1,3})?$";
                set(spec, &format!("/properties/{field}/items/pattern"), pattern.into());
                set(spec, &format!("/properties/{field}/items/maxLength"), 79.into());
            }
        }
        _ => {
            set(spec, &format!("/properties/clusterName{RULES}"), immutable);
            let machine = "/properties/template/properties/spec/properties/bootstrap";
            set(spec, &format!("{machine}{RULES}"), bootstrap);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(at: &str, schema: &Value, visit: &mut impl FnMut(&str, &Map<String, Value>)) {
        let map = schema.as_object().unwrap_or_else(|| panic!("{at} is no object: {schema}"));
        visit(at, map);
        if let Some(properties) = map.get("properties") {
            for (name, property) in properties.as_object().unwrap() {
                walk(&format!("{at}.{name}"), property, visit);
            }
        }
        for key in ["items", "additionalProperties"] {
            if let Some(inner) = map.get(key) {
                walk(&format!("{at}.{key}"), inner, visit);
            }
        }
    }

    #[test]
    fn every_schema_is_structural_and_described() {
        for crd in crds() {
            let name = crd["metadata"]["name"].as_str().unwrap().to_owned();
            let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
            walk(&name, schema, &mut |at, map| {
                let open = map.contains_key("x-kubernetes-int-or-string");
                assert!(open || map["type"].is_string(), "{at} has no type: {map:?}");
                for key in ["$ref", "nullable", "title", "default", "definitions", "allOf", "oneOf"] {
                    assert!(!map.contains_key(key), "{at} has {key}");
                }
                assert!(open || !map.contains_key("anyOf"), "{at} has anyOf: {map:?}");
                let generated =
                    at.ends_with(".items") || at.ends_with("additionalProperties") || at.ends_with("metadata");
                assert!(generated || map.contains_key("description"), "{at} has no description");
            });
        }
    }

    #[test]
    fn the_paths_of_the_contract_are_there() {
        let all = crds();
        let has = |index: usize, path: &str| {
            let mut at = &all[index]["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
            for part in path.split('.') {
                at = if part == "[]" { &at["items"] } else { &at["properties"][part] };
            }
            at.is_object()
        };
        for path in [
            "spec.clusterNetwork.apiServerPort",
            "spec.clusterNetwork.services.cidrBlocks",
            "spec.controlPlaneEndpoint.host",
            "spec.infrastructureRef.apiGroup",
            "status.initialization.infrastructureProvisioned",
            "status.workers.upToDateReplicas",
            "status.failureDomains.[].controlPlane",
        ] {
            assert!(has(0, path), "Cluster {path}");
        }
        for path in [
            "spec.bootstrap.dataSecretName",
            "spec.providerID",
            "spec.deletion.nodeDrainTimeoutSeconds",
            "spec.taints.[].propagation",
            "status.nodeInfo.kubeletVersion",
            "status.nodeRef.name",
            "status.deletion.nodeDrainStartTime",
        ] {
            assert!(has(1, path), "Machine {path}");
        }
        for path in ["spec.rollout.strategy.rollingUpdate.maxSurge", "spec.remediation.maxInFlight", "status.phase"] {
            assert!(has(3, path), "MachineDeployment {path}");
        }
        assert!(has(4, "spec.source.file") && has(5, "spec.unixSocket") && has(5, "spec.credential.aws.role.stsURL"));
        assert!(has(10, "spec.addresses") && has(10, "spec.unixSockets") && has(10, "status.conditions"));
        assert!(has(6, "spec.poolRef.apiGroup") && has(6, "status.addressRef.name") && has(7, "spec.claimRef.name"));
        for path in ["spec.allocateReservedIPAddresses", "spec.excludedAddresses", "status.ipAddresses.outOfRange"] {
            assert!(has(8, path) && has(9, path), "{path}");
        }
        assert_eq!(
            (all[8]["spec"]["scope"].as_str(), all[9]["spec"]["scope"].as_str()),
            (Some("Namespaced"), Some("Cluster"))
        );
    }

    #[test]
    fn columns_short_names_and_labels_are_upstreams() {
        let all = crds();
        let columns = |index: usize, priority: Option<i64>| -> Vec<String> {
            all[index]["spec"]["versions"][0]["additionalPrinterColumns"]
                .as_array()
                .unwrap()
                .iter()
                .filter(|c| c.get("priority").and_then(Value::as_i64) == priority)
                .map(|c| c["name"].as_str().unwrap().to_owned())
                .collect()
        };
        assert_eq!(
            columns(0, None).join(", "),
            "ClusterClass, Available, CP Desired, CP Available, CP Up-to-date, W Desired, W Available, W Up-to-date, \
             Phase, Age, Version"
        );
        assert_eq!(
            columns(1, None).join(", "),
            "Cluster, Node Name, Failure Domain, Ready, Available, Up-to-date, Phase, Age, Version"
        );
        assert_eq!(columns(1, Some(10)).join(", "), "Provider ID, Internal-IP, External-IP, OS-Image, Paused");
        assert_eq!(
            columns(3, None).join(", "),
            "Cluster, Available, Desired, Current, Ready, Available, Up-to-date, Phase, Age, Version"
        );
        let names: Vec<&Value> = all.iter().map(|c| &c["spec"]["names"]["shortNames"][0]).collect();
        assert_eq!(
            names,
            ["cl", "ma", "ms", "md", "pm"]
                .map(Value::from)
                .iter()
                .chain([&Value::Null; 6])
                .chain([&Value::from("mp")])
                .collect::<Vec<_>>()
        );
        assert_eq!(all[2]["metadata"]["labels"]["cluster.x-k8s.io/v1beta2"], "v1beta2");
        assert_eq!(all[2]["spec"]["versions"][0]["subresources"]["scale"]["labelSelectorPath"], ".status.selector");
    }

    #[test]
    fn lists_that_are_maps_name_their_keys() {
        let cluster =
            &crds()[0]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"];
        assert_eq!(cluster["conditions"]["x-kubernetes-list-map-keys"], json!(["type"]));
        assert_eq!(cluster["failureDomains"]["x-kubernetes-list-map-keys"], json!(["name"]));
        assert_eq!(cluster["phase"]["enum"].as_array().unwrap().len(), 6);
    }
}
