//! Defaults that depend on other fields, which a schema cannot say.

use serde_json::{Value, json};

use crate::Object;
use crate::well_known::{AUTOSCALER_MAX, AUTOSCALER_MIN, CLUSTER_NAME, DEPLOYMENT_NAME, SET_NAME};

pub(super) fn fill_in(new: &mut Object, old: Option<&Object>) {
    match new.kind() {
        "Machine" => {
            label_with_cluster(new);
            prefix_version(new, "/spec/version");
            if new.at("/spec/deletion/nodeDeletionTimeoutSeconds").is_none() && new.at("/spec").is_some() {
                new.set("/spec/deletion/nodeDeletionTimeoutSeconds", 10.into());
            }
        }
        "MachineSet" => {
            label_with_cluster(new);
            prefix_version(new, "/spec/template/spec/version");
            replicas(new, old);
            select(new, SET_NAME);
        }
        "MachineDeployment" => {
            label_with_cluster(new);
            prefix_version(new, "/spec/template/spec/version");
            replicas(new, old);
            select(new, DEPLOYMENT_NAME);
            strategy(new);
        }
        _ => {}
    }
}

fn label_with_cluster(new: &mut Object) {
    if let Some(cluster) = new.str_at("/spec/clusterName").map(str::to_owned) {
        new.set_label(CLUSTER_NAME, &cluster);
    }
}

/// `1.35.0` becomes `v1.35.0`.
fn prefix_version(new: &mut Object, pointer: &str) {
    if let Some(version) = new.str_at(pointer).filter(|v| !v.starts_with('v')).map(|v| format!("v{v}")) {
        new.set(pointer, version.into());
    }
}

/// Absent replicas: 1, or what the autoscaler's range allows of what was there before.
fn replicas(new: &mut Object, old: Option<&Object>) {
    if new.at("/spec").is_none() || new.at("/spec/replicas").is_some_and(|v| !v.is_null()) {
        return;
    }
    let bound = |key: &str| new.annotation(key).and_then(|v| v.parse::<i64>().ok());
    let count = match (bound(AUTOSCALER_MIN), bound(AUTOSCALER_MAX)) {
        (Some(min), Some(max)) if min <= max => match old.and_then(|o| o.int_at("/spec/replicas")) {
            Some(before) => before.clamp(min, max),
            None => min,
        },
        _ => 1,
    };
    new.set("/spec/replicas", count.into());
}

/// An absent selector selects by the object's own name; selector and template always name the cluster.
fn select(new: &mut Object, name_label: &str) {
    if new.at("/spec/template").is_none() {
        return;
    }
    let empty = |value: Option<&Value>| match value {
        Some(Value::Object(map)) => map.is_empty(),
        Some(Value::Array(list)) => list.is_empty(),
        _ => true,
    };
    if empty(new.at("/spec/selector/matchLabels")) && empty(new.at("/spec/selector/matchExpressions")) {
        let name = label_value(new.name());
        put_label(new, "/spec/selector/matchLabels", name_label, &name);
        put_label(new, "/spec/template/metadata/labels", name_label, &name);
    }
    if let Some(cluster) = new.str_at("/spec/clusterName").map(str::to_owned) {
        put_label(new, "/spec/selector/matchLabels", CLUSTER_NAME, &cluster);
        put_label(new, "/spec/template/metadata/labels", CLUSTER_NAME, &cluster);
    }
}

fn put_label(new: &mut Object, pointer: &str, key: &str, value: &str) {
    let mut labels = match new.at(pointer) {
        Some(Value::Object(map)) => map.clone(),
        _ => serde_json::Map::new(),
    };
    labels.insert(key.to_owned(), value.into());
    new.set(pointer, Value::Object(labels));
}

fn strategy(new: &mut Object) {
    if new.at("/spec").is_none() {
        return;
    }
    if new.str_at("/spec/rollout/strategy/type").is_none() {
        new.set("/spec/rollout/strategy/type", "RollingUpdate".into());
    }
    if new.str_at("/spec/rollout/strategy/type") == Some("RollingUpdate") {
        for (field, value) in [("maxSurge", json!(1)), ("maxUnavailable", json!(0))] {
            let pointer = format!("/spec/rollout/strategy/rollingUpdate/{field}");
            if new.at(&pointer).is_none_or(Value::is_null) {
                new.set(&pointer, value);
            }
        }
    }
}

/// A name as a label value: one of more than 63 characters becomes a hash of itself, as upstream's does in shape.
pub fn label_value(name: &str) -> String {
    if name.len() <= 63 {
        return name.to_owned();
    }
    // FNV-1a, 64 bits: stable for ever, and no more is asked of it.
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    format!("hash_{hash:016x}_z")
}
