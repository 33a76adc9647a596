//! `status.controlPlane` and `status.workers`.

use std::sync::Arc;

use capstan_api::Object;
use serde_json::{Map, Value, json};

use super::members::Members;
use crate::conditions::Condition;
use crate::contract_read::Duck;
use crate::difference::Draft;
use crate::ownership::version_counts;

pub(super) fn write(draft: &mut Draft, control_plane: Option<&Duck>, members: &Members) {
    let control_plane = match (control_plane, draft.new.at("/spec/controlPlaneRef")) {
        (Some(duck), _) => from_control_plane(&duck.object),
        (None, Some(_)) => None,
        (None, None) if members.control_plane.is_empty() => None,
        (None, None) => Some(Counts::of(members.control_plane.len(), &members.control_plane)),
    };
    let versions = |machines: &[Arc<Object>]| -> Option<Value> {
        let versions = version_counts(machines);
        versions.as_array().is_some_and(|v| !v.is_empty()).then_some(versions)
    };
    draft.set("/status/controlPlane", control_plane.map(|c| c.to_value(versions(&members.control_plane))));
    let desired = |o: &Arc<Object>| o.int_at("/spec/replicas").unwrap_or(1);
    let wanted: i64 = members.deployments.iter().map(desired).sum::<i64>()
        + members.standalone_sets().map(desired).sum::<i64>()
        + i64::try_from(members.standalone_workers().count()).unwrap_or_default();
    let workers = Counts::of(usize::try_from(wanted).unwrap_or_default(), &members.workers);
    draft.set("/status/workers", Some(workers.to_value(versions(&members.workers))));
}

struct Counts {
    desired: Option<i64>,
    replicas: Option<i64>,
    up_to_date: Option<i64>,
    ready: Option<i64>,
    available: Option<i64>,
}

impl Counts {
    fn of(desired: usize, machines: &[Arc<Object>]) -> Self {
        let number = |n: usize| i64::try_from(n).ok();
        let count = |kind: &str| number(machines.iter().filter(|m| Condition::holds(m, kind)).count());
        Self {
            desired: number(desired),
            replicas: number(machines.len()),
            up_to_date: count("UpToDate"),
            ready: count("Ready"),
            available: count("Available"),
        }
    }

    fn to_value(&self, versions: Option<Value>) -> Value {
        let mut map = Map::new();
        for (field, value) in [
            ("desiredReplicas", self.desired),
            ("replicas", self.replicas),
            ("upToDateReplicas", self.up_to_date),
            ("readyReplicas", self.ready),
            ("availableReplicas", self.available),
        ] {
            if let Some(value) = value {
                map.insert(field.into(), json!(value));
            }
        }
        if let Some(versions) = versions {
            map.insert("versions".into(), versions);
        }
        Value::Object(map)
    }
}

/// A control plane counts its own machines; one without replicas has none that could be counted.
fn from_control_plane(object: &Object) -> Option<Counts> {
    object.at("/spec/replicas")?;
    let status = |field: &str| object.int_at(&format!("/status/{field}"));
    Some(Counts {
        desired: object.int_at("/spec/replicas"),
        replicas: status("replicas"),
        up_to_date: status("upToDateReplicas").or_else(|| status("updatedReplicas")),
        ready: status("readyReplicas"),
        available: status("availableReplicas"),
    })
}
