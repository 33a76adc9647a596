//! Cluster: infrastructure → control plane → what is below it → kubeconfig, and deletion in the opposite order.
//!
//! The endpoint is copied once and stays; `status.initialization.*` never goes back. A Cluster without a control-plane
//! object is initialized by the first Node of a control-plane Machine. Managed topologies come later.

mod counts;
mod deletion;
mod members;
mod phases;
mod status;

use capstan_api::ObjectKey;
use capstan_api::well_known::CLUSTER_FINALIZER;

use self::members::Members;
use crate::contract_read::{is_paused, paused};
use crate::difference::Draft;
use crate::machine::PATIENCE;
use crate::plan::Plan;
use crate::view::{NotNow, Place, View};

#[cfg(test)]
mod tests;

/// What is written at once when it changes: others wait for it.
const URGENT: [&str; 1] = ["/status/initialization"];

/// Decides for a Cluster.
///
/// # Errors
/// When something it needs to know is not known now.
pub fn decide_cluster(key: &ObjectKey, view: &dyn View, now: u64) -> Result<Plan, NotNow> {
    let Some(cluster) = view.get(&Place::Management, key)? else { return Ok(Plan::nothing()) };
    let mut plan = Plan::nothing();
    let mut draft = Draft::of(&cluster);
    draft.condition(paused(Some(&cluster), &cluster));
    if is_paused(Some(&cluster), &cluster) {
        draft.finish(&mut plan, &[], now);
        return Ok(plan);
    }
    if cluster.is_deleting() {
        return deletion::decide(draft, view, now);
    }
    draft.add_finalizer(CLUSTER_FINALIZER);
    phases::infrastructure(&mut draft, &mut plan, view)?;
    let control_plane = phases::control_plane(&mut draft, &mut plan, view)?;
    let control_plane = control_plane.as_ref();
    let members = Members::of(&cluster, view)?;
    phases::initialized(&mut draft, control_plane, &members);
    phases::kubeconfig(&draft, &mut plan, view)?;
    counts::write(&mut draft, control_plane, &members);
    status::complete(&mut draft, &mut plan, control_plane, &members, view, now);
    draft.patience(PATIENCE);
    draft.finish(&mut plan, &URGENT, now);
    Ok(plan)
}
