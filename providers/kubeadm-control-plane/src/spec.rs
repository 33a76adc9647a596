//! The fields of KubeadmControlPlane, `controlplane.cluster.x-k8s.io/v1beta2`, and what its schema cannot say.

use std::collections::BTreeMap;

use capstan_provider::{IntOrString, Kind, Schema, Violation, time};
use kubeadm_types::KubeadmConfigSpec;
use serde::{Deserialize, Serialize};

/// A control plane whose machines are set up by kubeadm.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Schema, Kind)]
#[serde(rename_all = "camelCase", default)]
#[kind(name = "KubeadmControlPlane", version = "v1beta2", short = "kcp", status = KubeadmControlPlaneStatus,
    column("Cluster", "string", ".metadata.labels['cluster\\.x-k8s\\.io/cluster-name']", "Cluster that the object belongs to"),
    column("Available", "string", ".status.conditions[?(@.type==\"Available\")].status", "Whether the control plane can be used"),
    column("Desired", "integer", ".spec.replicas", "Machines that are wanted"),
    wide_column("Current", "integer", ".status.replicas", "Machines that are there"),
    wide_column("Ready", "integer", ".status.readyReplicas", "Machines that are ready"),
    column("Available", "integer", ".status.availableReplicas", "Machines that can be used"),
    column("Up-to-date", "integer", ".status.upToDateReplicas", "Machines that are as the spec wants them"),
    wide_column("Paused", "string", ".status.conditions[?(@.type==\"Paused\")].status", "Whether it is left alone"),
    column("Initialized", "boolean", ".status.initialization.controlPlaneInitialized", "Whether the first machine has set the cluster up"),
    column("Age", "date", ".metadata.creationTimestamp", "How old it is"),
    column("Version", "string", ".spec.version", "Kubernetes version"))]
pub struct KubeadmControlPlane {
    /// How many machines; odd unless etcd is elsewhere.
    #[schema(min = 1, default = 1)]
    pub replicas: Option<i32>,
    /// Kubernetes version of the control plane.
    #[schema(min_length = 1, max_length = 256)]
    pub version: Option<String>,
    /// What its machines are made from.
    pub machine_template: Option<MachineTemplate>,
    /// How its machines boot.
    pub kubeadm_config_spec: KubeadmConfigSpec,
    /// When and how machines are replaced.
    pub rollout: Option<Rollout>,
    /// How broken machines are replaced.
    pub remediation: Option<Remediation>,
    /// How machines are named.
    pub machine_naming: Option<MachineNaming>,
}

/// What machines are made from.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineTemplate {
    /// Labels and annotations of the machines.
    pub metadata: Option<Metadata>,
    /// What they are made from.
    pub spec: Option<MachineTemplateSpec>,
}

/// Labels and annotations.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
}

/// What machines are made from.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineTemplateSpec {
    /// The template of their infrastructure.
    pub infrastructure_ref: Option<TemplateReference>,
    /// Further conditions that say whether a machine is ready.
    #[schema(map_key = "conditionType", max_items = 32)]
    pub readiness_gates: Vec<ReadinessGate>,
    /// How long parts of a deletion may take.
    pub deletion: Option<Deletion>,
    /// Taints of the nodes.
    #[schema(atomic, max_items = 64)]
    pub taints: Vec<MachineTaint>,
}

/// A template in the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Schema)]
#[serde(rename_all = "camelCase")]
pub struct TemplateReference {
    /// Its API group.
    #[schema(min_length = 1, max_length = 253)]
    pub api_group: String,
    /// Its kind.
    #[schema(min_length = 1, max_length = 63)]
    pub kind: String,
    /// Its name.
    #[schema(min_length = 1, max_length = 253)]
    pub name: String,
}

/// A condition that says whether a machine is ready.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Schema)]
#[serde(rename_all = "camelCase")]
pub struct ReadinessGate {
    /// Type of the condition.
    #[schema(min_length = 1, max_length = 316)]
    pub condition_type: String,
    /// Whether True is good.
    #[schema(values("Positive", "Negative"))]
    pub polarity: Option<String>,
}

/// How long parts of a deletion may take, in seconds; 0 or absent: as long as it takes.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct Deletion {
    /// Draining the node.
    #[schema(min = 0)]
    pub node_drain_timeout_seconds: Option<i32>,
    /// Detaching its volumes.
    #[schema(min = 0)]
    pub node_volume_detach_timeout_seconds: Option<i32>,
    /// Deleting the node.
    #[schema(min = 0)]
    pub node_deletion_timeout_seconds: Option<i32>,
}

/// A taint of the nodes.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Schema)]
#[serde(rename_all = "camelCase")]
pub struct MachineTaint {
    /// Its key.
    #[schema(min_length = 1, max_length = 317)]
    pub key: String,
    /// Its value.
    #[schema(max_length = 63)]
    pub value: Option<String>,
    /// What it does.
    #[schema(values("NoSchedule", "PreferNoSchedule", "NoExecute"))]
    pub effect: String,
    /// When it is set.
    #[schema(values("Always", "OnInitialization"))]
    pub propagation: String,
}

/// When and how machines are replaced.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct Rollout {
    /// Before something happens.
    pub before: Option<RolloutBefore>,
    /// Machines made before this time are replaced once it has passed.
    #[schema(format = "date-time")]
    pub after: Option<String>,
    /// How.
    pub strategy: Option<Strategy>,
}

/// Before something happens.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct RolloutBefore {
    /// Machines are replaced so many days before their certificates expire.
    #[schema(min = 7)]
    pub certificates_expiry_days: Option<i32>,
}

/// How machines are replaced.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct Strategy {
    /// There is one way.
    #[serde(rename = "type")]
    #[schema(values("RollingUpdate"))]
    pub kind: Option<String>,
    /// Its settings.
    pub rolling_update: Option<RollingUpdate>,
}

/// Settings of a rolling update.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct RollingUpdate {
    /// 1: a machine is added before one goes. 0: one goes first, with three machines or more.
    pub max_surge: Option<IntOrString>,
}

/// How broken machines are replaced.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct Remediation {
    /// How often in a row; no limit if absent.
    #[schema(min = 0)]
    pub max_retry: Option<i32>,
    /// How long to wait before it is tried again.
    #[schema(min = 0)]
    pub retry_period_seconds: Option<i32>,
    /// A machine that was healthy so long starts a new count.
    #[schema(min = 0)]
    pub min_healthy_period_seconds: Option<i32>,
}

/// How machines are named.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineNaming {
    /// With `{{ .kubeadmControlPlane.name }}` and `{{ .random }}`.
    #[schema(min_length = 1, max_length = 512)]
    pub template: Option<String>,
}

/// What this planner adds to the status of a control plane.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Schema)]
#[serde(rename_all = "camelCase")]
pub struct KubeadmControlPlaneStatus {
    /// Machines that are as the spec wants them.
    pub up_to_date_replicas: Option<i32>,
}

impl KubeadmControlPlane {
    /// Name of the template that machines are cloned from.
    pub fn infrastructure_template(&self) -> Option<&str> {
        let spec = self.machine_template.as_ref()?.spec.as_ref()?;
        Some(spec.infrastructure_ref.as_ref()?.name.as_str())
    }

    /// How many machines may be there beyond the wanted ones during a rollout: 0 or 1.
    pub fn max_surge(&self) -> usize {
        let update = self.rollout.as_ref().and_then(|rollout| rollout.strategy.as_ref()?.rolling_update.as_ref());
        match update.and_then(|update| update.max_surge.as_ref()) {
            Some(IntOrString::Int(0)) => 0,
            Some(IntOrString::String(text)) if text == "0" => 0,
            _ => 1,
        }
    }

    /// etcd runs elsewhere.
    pub fn external_etcd(&self) -> bool {
        let cluster = self.kubeadm_config_spec.cluster_configuration.as_ref();
        cluster.and_then(|cluster| cluster.etcd.as_ref()).is_some_and(|etcd| etcd.external.is_some())
    }
}

/// Major and minor number of `v1.35.0`.
pub fn minor(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.strip_prefix('v').unwrap_or(version).split('.');
    let numbers = (numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?, numbers.next()?);
    let patch = numbers.2.split(['-', '+']).next()?;
    patch.parse::<u32>().ok()?;
    Some((numbers.0, numbers.1))
}

/// What the schema cannot say.
pub fn validate(old: Option<&KubeadmControlPlane>, new: &KubeadmControlPlane) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut wrong = |path: &str, message: String| violations.push(Violation::new(path, message));
    let replicas = new.replicas.unwrap_or(1);
    if replicas < 1 {
        wrong("/spec/replicas", "at least one machine is needed".to_owned());
    } else if replicas % 2 == 0 && !new.external_etcd() {
        wrong("/spec/replicas", format!("{replicas} is even: etcd on the machines needs an odd number for its quorum"));
    }
    if new.max_surge() == 0 && replicas < 3 {
        wrong(
            "/spec/rollout/strategy/rollingUpdate/maxSurge",
            "0 needs at least three replicas: with fewer, taking one away first loses the control plane".to_owned(),
        );
    }
    if let Some(version) = &new.version {
        match minor(version) {
            None => wrong("/spec/version", format!("{version} is no version such as v1.35.0")),
            Some((major, number)) => {
                let before = old.and_then(|old| minor(old.version.as_deref()?));
                if before.is_some_and(|(old_major, old_number)| major == old_major && number > old_number + 1) {
                    wrong("/spec/version", format!("{version} skips a minor version: kubeadm goes one at a time"));
                }
            }
        }
    }
    if let Some(after) = new.rollout.as_ref().and_then(|rollout| rollout.after.as_ref())
        && time::milliseconds(after).is_none()
    {
        wrong("/spec/rollout/after", format!("{after} is no time such as 2026-11-30T00:00:00Z"));
    }
    if let Some(template) = new.machine_naming.as_ref().and_then(|naming| naming.template.as_ref())
        && !template.contains(".random")
    {
        wrong("/spec/machineNaming/template", "`{{ .random }}` is needed: names must differ".to_owned());
    }
    if old.is_some_and(|old| old.external_etcd() != new.external_etcd()) {
        wrong(
            "/spec/kubeadmConfigSpec/clusterConfiguration/etcd",
            "etcd cannot move from the machines to elsewhere or back".to_owned(),
        );
    }
    violations
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn paths(old: Option<Value>, new: Value) -> Vec<String> {
        let old = old.map(|old| serde_json::from_value::<KubeadmControlPlane>(old).unwrap());
        let new = serde_json::from_value(new).unwrap();
        validate(old.as_ref(), &new).into_iter().map(|violation| violation.path).collect()
    }

    #[test]
    fn admission() {
        assert!(paths(None, json!({"replicas": 3, "version": "v1.35.0"})).is_empty());
        assert_eq!(paths(None, json!({"replicas": 2})), ["/spec/replicas"]);
        let external = json!({"clusterConfiguration": {"etcd": {"external": {"endpoints": ["https://e"]}}}});
        assert!(paths(None, json!({"replicas": 2, "kubeadmConfigSpec": external})).is_empty());
        let surge = json!({"strategy": {"rollingUpdate": {"maxSurge": 0}}});
        assert_eq!(paths(None, json!({"rollout": surge})), ["/spec/rollout/strategy/rollingUpdate/maxSurge"]);
        assert_eq!(paths(None, json!({"version": "1.35"})), ["/spec/version"]);
        assert_eq!(paths(Some(json!({"version": "v1.33.0"})), json!({"version": "v1.35.0"})), ["/spec/version"]);
        assert!(paths(Some(json!({"version": "v1.34.9"})), json!({"version": "v1.35.0-rc.1+x"})).is_empty());
        assert_eq!(
            paths(Some(json!({})), json!({"kubeadmConfigSpec": external})),
            ["/spec/kubeadmConfigSpec/clusterConfiguration/etcd"]
        );
        assert_eq!(paths(None, json!({"rollout": {"after": "tomorrow"}})), ["/spec/rollout/after"]);
        assert_eq!(paths(None, json!({"machineNaming": {"template": "a"}})), ["/spec/machineNaming/template"]);
    }
}
