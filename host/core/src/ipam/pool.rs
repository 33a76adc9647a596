//! Pools: addresses for the claims that wait, oldest first and lowest first, and how full the pool is.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use capstan_api::ipam::{ADDRESS, CLAIM, IPAM_GROUP, IPAM_VERSION, InClusterIpPoolSpec, Pool};
use capstan_api::well_known::{ADDRESS_FINALIZER, CLAIM_FINALIZER, CLUSTER_NAME, PAUSED, POOL_FINALIZER};
use capstan_api::{Gvk, Object, ObjectKey};
use serde_json::json;

use super::{cluster_name, paused, pool_of};
use crate::difference::Draft;
use crate::ownership::created;
use crate::plan::{Plan, Write};
use crate::view::{NotNow, Place, Select, View};

/// The addresses of a pool's spec.
///
/// # Errors
/// What is wrong with it, for a person.
pub(super) fn read(pool: &Object) -> Result<Pool, String> {
    let spec = pool.at("/spec").cloned().unwrap_or_default();
    let spec: InClusterIpPoolSpec =
        serde_json::from_value(spec).map_err(|error| format!("its spec cannot be read: {error}"))?;
    Pool::read(&spec).map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
}

/// IPAddresses where a pool's claims may be.
pub(super) struct Given {
    /// Namespace and name of all of them, whatever their pool.
    names: BTreeSet<(String, String)>,
    /// Those of the pool.
    pub(super) of_pool: Vec<Arc<Object>>,
}

pub(super) fn given(view: &dyn View, pool: &ObjectKey) -> Result<Given, NotNow> {
    let all = view.list(&Place::Management, IPAM_GROUP, ADDRESS, &pool.namespace, &Select::All)?;
    let names = all.iter().map(|address| (address.namespace().to_owned(), address.name().to_owned())).collect();
    let of_pool = all.into_iter().filter(|address| pool_of(address).as_ref() == Some(pool)).collect();
    Ok(Given { names, of_pool })
}

pub(super) fn taken(addresses: &[Arc<Object>]) -> BTreeSet<IpAddr> {
    addresses.iter().filter_map(|address| address.str_at("/spec/address")?.parse().ok()).collect()
}

/// Decides for an InClusterIPPool or GlobalInClusterIPPool.
///
/// # Errors
/// When something it needs to know is not known now.
pub fn decide_pool(key: &ObjectKey, view: &dyn View, now: u64) -> Result<Plan, NotNow> {
    let mut plan = Plan::nothing();
    let Some(pool) = view.get(&Place::Management, key)? else { return Ok(plan) };
    let given = given(view, key)?;
    let mut draft = Draft::of(&pool);
    if pool.is_deleting() {
        if given.of_pool.is_empty() {
            draft.release(&mut plan, POOL_FINALIZER);
        }
        return Ok(plan);
    }
    draft.add_finalizer(POOL_FINALIZER);
    let mut taken = taken(&given.of_pool);
    // What is wrong with it is said to those who want an address of it.
    if let Ok(addresses) = read(&pool) {
        if pool.has_finalizer(POOL_FINALIZER) && pool.annotation(PAUSED).is_none() {
            for claim in waiting(view, key, &given.names)? {
                let Some(address) = addresses.first_free(&taken) else { break };
                plan.writes.push(Write::Create(ip_address(&pool, &claim, address)));
                taken.insert(address);
            }
        }
        draft.set("/status/ipAddresses", Some(json!(addresses.counts(&taken))));
    }
    draft.finish(&mut plan, &[], now);
    Ok(plan)
}

/// The claims that wait for an address of this pool, oldest first. A claim's own finalizer comes first: from then on it
/// cannot go without letting go of its address.
fn waiting(view: &dyn View, pool: &ObjectKey, have: &BTreeSet<(String, String)>) -> Result<Vec<Arc<Object>>, NotNow> {
    let mut waiting = Vec::new();
    for claim in view.list(&Place::Management, IPAM_GROUP, CLAIM, &pool.namespace, &Select::All)? {
        let name = (claim.namespace().to_owned(), claim.name().to_owned());
        let waits = pool_of(&claim).as_ref() == Some(pool)
            && !claim.is_deleting()
            && claim.has_finalizer(CLAIM_FINALIZER)
            && !have.contains(&name);
        if waits && !paused(view, &claim)? {
            waiting.push(claim);
        }
    }
    waiting.sort_by(|a, b| (created(a), a.namespace(), a.name()).cmp(&(created(b), b.namespace(), b.name())));
    Ok(waiting)
}

/// The IPAddress that is given to a claim.
fn ip_address(pool: &Object, claim: &Object, address: IpAddr) -> Object {
    let mut object = Object::new(&Gvk::new(IPAM_GROUP, IPAM_VERSION, ADDRESS), claim.namespace(), claim.name());
    if let Some(cluster) = cluster_name(claim) {
        object.set_label(CLUSTER_NAME, cluster);
    }
    object.set("/metadata/finalizers", json!([ADDRESS_FINALIZER]));
    object.set("/metadata/ownerReferences", json!([claim.as_owner(true), pool.as_owner(false)]));
    object.set("/spec/claimRef", json!({"name": claim.name()}));
    object.set("/spec/poolRef", json!({"apiGroup": IPAM_GROUP, "kind": pool.kind(), "name": pool.name()}));
    object.set("/spec/address", address.to_string().into());
    if let Some(prefix) = pool.int_at("/spec/prefix") {
        object.set("/spec/prefix", prefix.into());
    }
    if let Some(gateway) = pool.str_at("/spec/gateway") {
        object.set("/spec/gateway", gateway.into());
    }
    object
}
