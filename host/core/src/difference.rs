//! From an object as it is and as it should be to the fewest writes that lead from one to the other.
//!
//! A rule copies the object into a [`Draft`], changes the copy and lets [`Draft::finish`] find what differs: at
//! most one patch of metadata and spec, and one of the status. Nothing differs, nothing is written.

use std::sync::Arc;
use std::time::Duration;

use capstan_api::Object;
use serde_json::{Map, Value, json};

use crate::conditions::{self, Condition, Status};
use crate::plan::{Plan, Urgency, Write};

/// An RFC 7386 merge patch that leads from `old` to `new`; `None` when they are equal. Lists are replaced whole.
pub fn merge_patch(old: &Value, new: &Value) -> Option<Value> {
    if old == new {
        return None;
    }
    let (Value::Object(old), Value::Object(new)) = (old, new) else { return Some(new.clone()) };
    let mut patch = Map::new();
    for (key, value) in new {
        match old.get(key) {
            Some(before) => {
                if let Some(changed) = merge_patch(before, value) {
                    patch.insert(key.clone(), changed);
                }
            }
            None => {
                patch.insert(key.clone(), value.clone());
            }
        }
    }
    for key in old.keys().filter(|key| !new.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

/// An object on its way from what it is to what it should be.
#[derive(Clone, Debug)]
pub struct Draft {
    /// As it is.
    pub old: Arc<Object>,
    /// As it should be. Conditions are set by [`Draft::condition`], not here.
    pub new: Object,
    /// Conditions to be set.
    pub conditions: Vec<Condition>,
    urgent: bool,
    patience: u64,
}

impl Draft {
    /// Nothing changed yet.
    pub fn of(old: &Arc<Object>) -> Self {
        Self { old: Arc::clone(old), new: Object::clone(old), conditions: Vec::new(), urgent: false, patience: 0 }
    }

    /// Sets a condition; one of the same type that was set before is replaced.
    pub fn condition(&mut self, condition: Condition) {
        self.conditions.retain(|c| c.kind != condition.kind);
        self.conditions.push(condition);
    }

    /// Sets the value at a JSON pointer, or takes it away.
    pub fn set(&mut self, pointer: &str, value: Option<Value>) {
        match value {
            Some(value) => self.new.set(pointer, value),
            None => {
                self.new.remove(pointer);
            }
        }
    }

    /// Adds a finalizer.
    pub fn add_finalizer(&mut self, finalizer: &str) {
        if !self.new.has_finalizer(finalizer) {
            let mut all: Vec<String> = self.new.finalizers().into_iter().map(str::to_owned).collect();
            all.push(finalizer.into());
            self.new.set("/metadata/finalizers", json!(all));
        }
    }

    /// Others wait for this status: it is written at once.
    pub fn urgent(&mut self) {
        self.urgent = true;
    }

    /// While the object is younger than this (milliseconds), mere progress is not worth a write: news will follow.
    pub fn patience(&mut self, age: u64) {
        self.patience = age;
    }

    /// Whether the status of the condition of this type changes.
    pub fn turns(&self, kind: &str) -> bool {
        let new = self.conditions.iter().find(|c| c.kind == kind).map(|c| c.status);
        new.is_some() && new != Condition::of(&self.old, kind).map(|c| c.status)
    }

    /// Puts what differs on the plan: metadata and spec in one patch (guarded by resourceVersion when a list of
    /// finalizers or owners changes), the status in another with `observedGeneration`, which counts the
    /// generation that the first patch leads to. The status goes at once when [`Draft::urgent`] was said, when
    /// one of the `urgent` JSON pointers differs, or when Available or Ready begins or ceases to be True; otherwise
    /// soon, or later as [`Draft::patience`] says.
    pub fn finish(self, plan: &mut Plan, urgent: &[&str], now: u64) {
        let (old, mut new) = (&self.old, self.new.clone());
        let spec_changes = old.0.get("spec") != new.0.get("spec");
        let generation = old.generation() + i64::from(spec_changes);
        conditions::write(&mut new, &self.conditions, generation, now);
        new.set("/status/observedGeneration", generation.into());

        let mut patch = Map::new();
        for part in ["metadata", "spec"] {
            let (before, after) = (old.0.get(part).unwrap_or(&Value::Null), new.0.get(part).unwrap_or(&Value::Null));
            if let Some(changed) = merge_patch(before, after) {
                patch.insert(part.into(), changed);
            }
        }
        if !patch.is_empty() {
            let metadata = patch.get("metadata");
            let guarded =
                ["finalizers", "ownerReferences"].iter().any(|f| metadata.is_some_and(|m| m.get(f).is_some()));
            plan.writes.push(Write::Patch {
                key: old.key(),
                patch: Value::Object(patch),
                resource_version: guarded.then(|| old.resource_version().to_owned()),
            });
        }
        let none = json!({});
        let changed = merge_patch(old.0.get("status").unwrap_or(&none), new.0.get("status").unwrap_or(&none));
        if let Some(changed) = changed {
            let turns = ["Available", "Ready"].iter().any(|kind| {
                let is = |o: &Object| Condition::of(o, kind).is_some_and(|c| c.status == Status::True);
                is(old) != is(&new)
            });
            let at_once = self.urgent || turns || urgent.iter().any(|pointer| old.at(pointer) != new.at(pointer));
            let age = now.saturating_sub(crate::ownership::created(old));
            if !at_once && age < self.patience {
                plan.look_again_in(Duration::from_millis(self.patience - age));
                return;
            }
            plan.writes.push(Write::PatchStatus {
                key: old.key(),
                patch: json!({ "status": changed }),
                urgency: if at_once { Urgency::Now } else { Urgency::Soon },
            });
        }
    }

    /// Takes a finalizer away and writes nothing else: the object goes with it, or waits for other finalizers.
    pub fn release(self, plan: &mut Plan, finalizer: &str) {
        if !self.old.has_finalizer(finalizer) {
            return;
        }
        let rest: Vec<&str> = self.old.finalizers().into_iter().filter(|f| *f != finalizer).collect();
        plan.writes.push(Write::Patch {
            key: self.old.key(),
            patch: json!({"metadata": {"finalizers": rest}}),
            resource_version: Some(self.old.resource_version().to_owned()),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::merge;

    #[test]
    fn a_merge_patch_leads_from_old_to_new_with_nothing_to_spare() {
        let old = json!({"a": 1, "b": {"c": [1, 2], "d": 3}, "gone": {"x": 1}});
        let new = json!({"a": 1, "b": {"c": [2], "d": 3}, "new": {"y": 2}});
        let patch = merge_patch(&old, &new).unwrap();
        assert_eq!(patch, json!({"b": {"c": [2]}, "new": {"y": 2}, "gone": null}));
        let mut merged = old.clone();
        merge(&mut merged, &patch);
        assert_eq!(merged, new);
        assert_eq!(merge_patch(&new, &new), None);
    }

    fn object() -> Arc<Object> {
        Arc::new(
            Object::from_value(json!({
                "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
                "metadata": {"name": "m", "namespace": "n", "generation": 4, "resourceVersion": "7"},
                "spec": {"clusterName": "c"},
                "status": {"observedGeneration": 4},
            }))
            .unwrap(),
        )
    }

    #[test]
    fn nothing_differs_nothing_is_written() {
        let mut plan = Plan::nothing();
        Draft::of(&object()).finish(&mut plan, &[], 5);
        assert!(plan.is_empty());
    }

    #[test]
    fn a_spec_patch_counts_in_the_observed_generation() {
        let mut draft = Draft::of(&object());
        draft.set("/spec/providerID", Some("p".into()));
        draft.condition(Condition::yes("Ready", "Ready"));
        let mut plan = Plan::nothing();
        draft.finish(&mut plan, &[], 5000);
        let [Write::Patch { patch, resource_version: None, .. }, Write::PatchStatus { patch: status, urgency, .. }] =
            plan.writes.as_slice()
        else {
            panic!("{plan:?}");
        };
        assert_eq!(patch, &json!({"spec": {"providerID": "p"}}));
        assert_eq!(status.pointer("/status/observedGeneration"), Some(&json!(5)));
        assert_eq!(status.pointer("/status/conditions/0/observedGeneration"), Some(&json!(5)));
        assert_eq!(*urgency, Urgency::Now);
    }

    #[test]
    fn lists_of_finalizers_are_guarded_and_progress_is_not_urgent() {
        let mut draft = Draft::of(&object());
        draft.add_finalizer("f");
        draft.set("/status/phase", Some("Pending".into()));
        let mut plan = Plan::nothing();
        draft.finish(&mut plan, &["/status/nodeRef"], 5000);
        let [Write::Patch { resource_version, .. }, Write::PatchStatus { urgency, .. }] = plan.writes.as_slice() else {
            panic!("{plan:?}");
        };
        assert_eq!(resource_version.as_deref(), Some("7"));
        assert_eq!(*urgency, Urgency::Soon);
    }
}
