//! The MachineSets of a MachineDeployment: made, and kept in step.

use std::sync::Arc;

use capstan_api::machine_deployment::MachineDeploymentSpec;
use capstan_api::well_known::{
    CLUSTER_GROUP, CLUSTER_NAME, CORE_VERSION, DEPLOYMENT_NAME, DESIRED_REPLICAS, DISABLE_MACHINE_CREATE,
    MACHINE_SET_FINALIZER, MAX_REPLICAS, REVISION, TEMPLATE_HASH,
};
use capstan_api::{Gvk, Object, admission::label_value};
use serde_json::{Map, Value, json};

use super::is_on_delete;
use super::rollout::{Bounds, SetState};
use crate::difference::merge_patch;
use crate::machine_set::making::{suffix, with_suffix};
use crate::plan::{Plan, Write};
use crate::record::digest;

/// Annotations of a MachineDeployment that are not its MachineSets' affair.
const OWN_ANNOTATIONS: [&str; 4] =
    ["kubectl.kubernetes.io/last-applied-configuration", REVISION, DESIRED_REPLICAS, MAX_REPLICAS];

pub(super) struct Writer<'a> {
    pub(super) deployment: &'a Object,
    pub(super) spec: &'a MachineDeploymentSpec,
    pub(super) cluster: &'a Object,
    pub(super) bounds: Bounds,
}

fn revision_of(set: &Object) -> u64 {
    set.annotation(REVISION).and_then(|r| r.parse().ok()).unwrap_or_default()
}

impl Writer<'_> {
    /// The revision of the current set: its own if that is the highest, else the next.
    pub(super) fn revision(&self, sets: &[&Arc<Object>], current: Option<&str>) -> u64 {
        let highest_other =
            sets.iter().filter(|s| Some(s.name()) != current).map(|s| revision_of(s)).max().unwrap_or_default();
        match sets.iter().find(|s| Some(s.name()) == current).map(|s| revision_of(s)) {
            Some(own) if own > highest_other => own,
            _ => highest_other + 1,
        }
    }

    /// A MachineSet for the template as it is now.
    pub(super) fn new_set(&self, sets: &[Arc<Object>], replicas: i64, revision: u64, now: u64) -> Object {
        let deployment = self.deployment;
        let template = deployment.at("/spec/template/spec").cloned().unwrap_or_default();
        let after = deployment.str_at("/spec/rollout/after").unwrap_or_default();
        let hash = digest(format!("{template}/{after}").as_bytes(), 5);
        // The same decision gives the same name, so making it twice makes one.
        let mut attempt = 0;
        let (random, name) = loop {
            let random = suffix(&format!("{}/{hash}/{revision}/{attempt}", deployment.uid()));
            let name = with_suffix(&deployment.name().chars().take(57).collect::<String>(), &random);
            if !sets.iter().any(|s| s.name() == name) {
                break (random, name);
            }
            attempt += 1;
        };
        let value = format!("{hash}-{random}");
        let mut set = Object::new(&Gvk::new(CLUSTER_GROUP, CORE_VERSION, "MachineSet"), deployment.namespace(), &name);
        set.set_label(TEMPLATE_HASH, &value);
        set.set("/metadata/finalizers", json!([MACHINE_SET_FINALIZER]));
        set.set("/metadata/ownerReferences", json!([deployment.as_owner(true)]));
        set.set("/spec/clusterName", self.spec.cluster_name.clone().into());
        let mut selector = deployment.at("/spec/selector").cloned().unwrap_or_else(|| json!({}));
        if let Value::Object(selector) = &mut selector {
            let mut labels = selector.get("matchLabels").and_then(Value::as_object).cloned().unwrap_or_default();
            labels.insert(CLUSTER_NAME.into(), self.cluster.name().into());
            labels.insert(TEMPLATE_HASH.into(), value.clone().into());
            selector.insert("matchLabels".into(), labels.into());
        }
        set.set("/spec/selector", selector);
        set.set("/spec/template/spec", template);
        self.in_place(&mut set);
        self.counted(&mut set, replicas, Some(revision));
        let _ = now;
        set
    }

    /// The one patch that brings a MachineSet to what its MachineDeployment says now.
    pub(super) fn bring_up_to(&self, set: &Object, state: &SetState, revision: Option<u64>, plan: &mut Plan) {
        let mut new = set.clone();
        self.in_place(&mut new);
        if is_on_delete(self.spec) && !state.current {
            new.set_annotation(DISABLE_MACHINE_CREATE, "true");
        } else {
            new.remove(&format!("/metadata/annotations/{}", DISABLE_MACHINE_CREATE.replace('/', "~1")));
        }
        if set.int_at("/spec/replicas").unwrap_or(1) != state.wanted || revision.is_some_and(|r| r != revision_of(set))
        {
            self.counted(&mut new, state.wanted, revision);
        }
        let mut patch = Map::new();
        for part in ["metadata", "spec"] {
            let (old, new) = (set.0.get(part).unwrap_or(&Value::Null), new.0.get(part).unwrap_or(&Value::Null));
            if let Some(changed) = merge_patch(old, new) {
                patch.insert(part.into(), changed);
            }
        }
        if !patch.is_empty() {
            plan.writes.push(Write::Patch { key: set.key(), patch: patch.into(), resource_version: None });
        }
    }

    fn counted(&self, set: &mut Object, replicas: i64, revision: Option<u64>) {
        set.set("/spec/replicas", replicas.into());
        set.set_annotation(DESIRED_REPLICAS, &self.bounds.desired.to_string());
        set.set_annotation(MAX_REPLICAS, &self.bounds.most().to_string());
        if let Some(revision) = revision {
            set.set_annotation(REVISION, &revision.to_string());
        }
    }

    /// What is carried over without new Machines. Labels and annotations are added and changed, never taken away.
    fn in_place(&self, set: &mut Object) {
        let template = &self.spec.template;
        for (key, value) in &template.metadata.labels {
            set.set_label(key, value);
        }
        set.set_label(CLUSTER_NAME, self.cluster.name());
        set.set_label(DEPLOYMENT_NAME, &label_value(self.deployment.name()));
        let own = self.deployment.at("/metadata/annotations").and_then(Value::as_object);
        for (key, value) in own.into_iter().flatten().filter(|(key, _)| !OWN_ANNOTATIONS.contains(&key.as_str())) {
            set.set_annotation(key, value.as_str().unwrap_or_default());
        }
        let mut labels: Map<String, Value> =
            template.metadata.labels.iter().map(|(k, v)| (k.clone(), v.clone().into())).collect();
        labels.insert(CLUSTER_NAME.into(), self.cluster.name().into());
        labels.insert(DEPLOYMENT_NAME.into(), label_value(self.deployment.name()).into());
        if let Some(hash) = set.label(TEMPLATE_HASH) {
            labels.insert(TEMPLATE_HASH.into(), hash.into());
        }
        put(set, "/spec/template/metadata/labels", Some(labels.into()));
        let annotations = &template.metadata.annotations;
        put(set, "/spec/template/metadata/annotations", (!annotations.is_empty()).then(|| json!(annotations)));
        for field in ["minReadySeconds", "readinessGates", "taints", "deletion"] {
            let pointer = format!("/spec/template/spec/{field}");
            put(set, &pointer, self.deployment.at(&pointer).cloned());
        }
        for field in ["deletion", "machineNaming"] {
            let pointer = format!("/spec/{field}");
            put(set, &pointer, self.deployment.at(&pointer).cloned());
        }
    }
}

/// Sets or takes away, but does not reorder what is equal.
fn put(set: &mut Object, pointer: &str, value: Option<Value>) {
    match value {
        Some(value) if set.at(pointer) == Some(&value) => {}
        Some(value) => set.set(pointer, value),
        None => {
            set.remove(pointer);
        }
    }
}
