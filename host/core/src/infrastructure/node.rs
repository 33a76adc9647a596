//! The providerID of a Node, where no cloud controller sets it.

use capstan_api::{Object, ObjectKey};
use serde_json::json;

use crate::plan::{Plan, WorkloadWrite, Write};
use crate::record::NODE_NAME;
use crate::view::{NotNow, Place, View};

/// Gives the Node of the name that the provider reported the machine's providerID, once it has registered without one.
/// A Node that has another one is left alone.
pub(super) fn name_provider_id(
    view: &dyn View,
    object: &Object,
    machine: &Object,
    plan: &mut Plan,
) -> Result<(), NotNow> {
    let (Some(node), Some(provider_id)) = (object.annotation(NODE_NAME), object.str_at("/spec/providerID")) else {
        return Ok(());
    };
    let Some(cluster) = machine.str_at("/spec/clusterName") else { return Ok(()) };
    if machine.str_at("/status/nodeRef/name").is_some() {
        return Ok(());
    }
    let place = Place::Workload { namespace: object.namespace().to_owned(), cluster: cluster.to_owned() };
    let key = ObjectKey::new("", "Node", "", node);
    // A workload cluster that cannot be asked yet must not hold the machine up; its return brings us back.
    let Ok(Some(found)) = view.get(&place, &key) else { return Ok(()) };
    if found.str_at("/spec/providerID").is_none() {
        plan.writes.push(Write::Workload {
            namespace: object.namespace().to_owned(),
            cluster: cluster.to_owned(),
            write: Box::new(WorkloadWrite::Patch {
                version: "v1".into(),
                key,
                patch: json!({"spec": {"providerID": provider_id}}),
                resource_version: Some(found.resource_version().to_owned()),
            }),
        });
    }
    Ok(())
}
