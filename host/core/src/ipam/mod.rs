//! In-cluster IPAM: who gets which address of a pool, and when it is free again.
//!
//! A pool gives its addresses itself ([`decide_pool`]): one decision at a time is taken for an object, and none on a
//! cache older than the last write, so no address is chosen twice. What is given is an IPAddress with the claim's name;
//! there is no other record, so a crash between two writes leaves nothing to be put right. A claim ([`decide_claim`])
//! says what became of it and lets go of its address before it goes; an address ([`decide_address`]) stays while its
//! claim does. Pools of other providers are left to them.

mod pool;
#[cfg(test)]
mod tests;

use std::time::Duration;

use capstan_api::ipam::{ADDRESS, CLAIM, GLOBAL_POOL, IPAM_GROUP, POOL};
use capstan_api::time::millis;
use capstan_api::well_known::{ADDRESS_FINALIZER, CLAIM_FINALIZER, CLUSTER_NAME, PAUSED};
use capstan_api::{Object, ObjectKey};
use serde_json::json;

pub use pool::decide_pool;

use crate::cluster_input;
use crate::conditions::Condition;
use crate::difference::Draft;
use crate::ownership::{controlled_by, created, delete, with_owner};
use crate::plan::{Plan, Write};
use crate::provider::paused_condition;
use crate::view::{NotNow, Place, View};

/// How long an address may be without its claim before it is let go (milliseconds): a restore brings them one by one.
const ORPHAN: u64 = 60_000;

/// The in-cluster pool that a claim or an address names; `None` for a pool of another provider.
fn pool_of(object: &Object) -> Option<ObjectKey> {
    if object.str_at("/spec/poolRef/apiGroup") != Some(IPAM_GROUP) {
        return None;
    }
    let kind = object.str_at("/spec/poolRef/kind")?;
    let namespace = match kind {
        POOL => object.namespace(),
        GLOBAL_POOL => "",
        _ => return None,
    };
    Some(ObjectKey::new(IPAM_GROUP, kind, namespace, object.str_at("/spec/poolRef/name")?))
}

/// Whether an address is the one of this claim.
fn belongs(address: &Object, claim: &Object) -> bool {
    address.str_at("/spec/claimRef/name") == Some(claim.name()) && pool_of(address) == pool_of(claim)
}

fn address_key(claim: &Object) -> ObjectKey {
    ObjectKey::new(IPAM_GROUP, ADDRESS, claim.namespace(), claim.name())
}

fn cluster_name(object: &Object) -> Option<&str> {
    object.str_at("/spec/clusterName").or_else(|| object.label(CLUSTER_NAME))
}

/// Whether a claim or an address is paused. A Cluster that is gone pauses nothing.
fn paused(view: &dyn View, claim: &Object) -> Result<bool, NotNow> {
    let cluster = match cluster_name(claim) {
        Some(name) => cluster_input::cluster(view, claim.namespace(), name)?,
        None => None,
    };
    Ok(cluster_input::paused(cluster.as_deref(), claim))
}

/// Decides for an IPAddressClaim.
///
/// # Errors
/// When something it needs to know is not known now.
pub fn decide_claim(key: &ObjectKey, view: &dyn View, now: u64) -> Result<Plan, NotNow> {
    let mut plan = Plan::nothing();
    let Some(claim) = view.get(&Place::Management, key)? else { return Ok(plan) };
    let Some(pool) = pool_of(&claim) else { return Ok(plan) };
    let mut draft = Draft::of(&claim);
    let paused = paused(view, &claim)?;
    draft.condition(paused_condition(paused));
    if paused {
        draft.finish(&mut plan, &[], now);
        return Ok(plan);
    }
    let address = view.get(&Place::Management, &address_key(&claim))?;
    if claim.is_deleting() {
        let Some(address) = address.filter(|address| belongs(address, &claim)) else {
            draft.release(&mut plan, CLAIM_FINALIZER);
            return Ok(plan);
        };
        match grace(view, &pool, &claim, now)? {
            Some(rest) => plan.look_again_in(Duration::from_millis(rest)),
            None => delete(&mut plan, &address),
        }
        return Ok(plan);
    }
    draft.add_finalizer(CLAIM_FINALIZER);
    match address {
        Some(address) if !belongs(&address, &claim) => {
            let message =
                format!("IPAddress {} is there and is not of this claim and its pool; delete it", address.name());
            draft.condition(Condition::no("Ready", "AllocationFailed", message));
        }
        Some(address) if address.is_deleting() && !controlled_by(&address, claim.uid()) => {
            let message = format!("IPAddress {} of an earlier claim of this name is on its way out", address.name());
            draft.condition(Condition::no("Ready", "AllocationFailed", message));
        }
        Some(address) => {
            // A claim that was restored or moved is another object with the same name.
            if let Ok(Some(owners)) = with_owner(&address, &claim.as_owner(true)) {
                plan.writes.push(Write::Patch {
                    key: address.key(),
                    patch: json!({"metadata": {"ownerReferences": owners}}),
                    resource_version: Some(address.resource_version().to_owned()),
                });
            }
            draft.set("/status/addressRef", Some(json!({"name": address.name()})));
            draft.condition(Condition::yes("Ready", "Ready"));
        }
        None => {
            if let Some(condition) = refused(view, &pool)? {
                draft.condition(condition);
            }
        }
    }
    draft.finish(&mut plan, &["/status/addressRef"], now);
    Ok(plan)
}

/// How much longer (milliseconds) the address of a claim that is being deleted stays taken; `None`: no longer.
fn grace(view: &dyn View, pool: &ObjectKey, claim: &Object, now: u64) -> Result<Option<u64>, NotNow> {
    let pool = view.get(&Place::Management, pool)?;
    let seconds = pool.and_then(|pool| pool.int_at("/spec/addressReuseGracePeriodSeconds")).unwrap_or_default();
    let since = claim.deletion_timestamp().and_then(millis).unwrap_or(now);
    let until = since.saturating_add(u64::try_from(seconds).unwrap_or_default().saturating_mul(1000));
    Ok(until.checked_sub(now).filter(|rest| *rest > 0))
}

/// Why the pool gives nothing to a claim; `None` when it is about to.
fn refused(view: &dyn View, key: &ObjectKey) -> Result<Option<Condition>, NotNow> {
    let not_ready = |message: String| Ok(Some(Condition::no("Ready", "PoolNotReady", message)));
    let Some(pool) = view.get(&Place::Management, key)? else {
        let place = if key.namespace.is_empty() { "" } else { " in this namespace" };
        return not_ready(format!("there is no {} {}{place}", key.kind, key.name));
    };
    if pool.is_deleting() {
        return not_ready(format!("{key} is being deleted"));
    }
    if pool.annotation(PAUSED).is_some() {
        return not_ready(format!("{key} is paused by its annotation {PAUSED}"));
    }
    let addresses = match pool::read(&pool) {
        Ok(addresses) => addresses,
        Err(why) => return not_ready(format!("{key} cannot be used: {why}")),
    };
    let given = pool::given(view, key)?;
    let taken = pool::taken(&given.of_pool);
    Ok(addresses.first_free(&taken).is_none().then(|| {
        let message = format!(
            "all {} addresses of {key} are taken; one is given as soon as it is free, or add some to the pool",
            addresses.size()
        );
        Condition::no("Ready", "PoolExhausted", message)
    }))
}

/// Decides for an IPAddress: it stays while its claim does.
///
/// # Errors
/// When something it needs to know is not known now.
pub fn decide_address(key: &ObjectKey, view: &dyn View, now: u64) -> Result<Plan, NotNow> {
    let mut plan = Plan::nothing();
    let Some(address) = view.get(&Place::Management, key)? else { return Ok(plan) };
    if pool_of(&address).is_none() {
        return Ok(plan);
    }
    let name = address.str_at("/spec/claimRef/name").unwrap_or_default();
    let claim = view.get(&Place::Management, &ObjectKey::new(IPAM_GROUP, CLAIM, &key.namespace, name))?;
    let claim = claim.filter(|claim| belongs(&address, claim));
    if address.is_deleting() {
        let held = claim.is_some_and(|claim| !claim.is_deleting() && controlled_by(&address, claim.uid()));
        if !held {
            Draft::of(&address).release(&mut plan, ADDRESS_FINALIZER);
        }
        return Ok(plan);
    }
    if claim.is_none() {
        if paused(view, &address)? {
            return Ok(plan);
        }
        let age = now.saturating_sub(created(&address));
        if age < ORPHAN {
            plan.look_again_in(Duration::from_millis(ORPHAN - age));
        } else if address.has_finalizer(ADDRESS_FINALIZER) {
            // What was made by hand, without our finalizer, is its maker's.
            delete(&mut plan, &address);
        }
    }
    Ok(plan)
}
