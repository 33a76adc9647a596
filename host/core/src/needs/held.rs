//! What a subject has in the management cluster because its provider needs it: claims for addresses, pools, tokens of
//! the cluster.

use std::collections::BTreeMap;
use std::sync::Arc;

use capstan_api::ipam::{ADDRESS, CLAIM, IPAM_GROUP, IPAM_VERSION, POOL, POOL_VERSION};
use capstan_api::well_known::CLUSTER_NAME;
use capstan_api::{Gvk, Object, ObjectKey, OwnerReference};
use serde_json::{Value, json};

use super::{Offers, cluster_secret, data, data_digest};
use crate::conditions::Condition;
use crate::contract::{Algorithm, Granted, IpAddress, KeyPair, KeyUse};
use crate::difference::merge_patch;
use crate::ownership::owned_by;
use crate::plan::{KeyPairSecret, Write};
use crate::provider::Problem;
use crate::record::digest;
use crate::script::{Halt, Replay};
use crate::view::{NotNow, Place, Select, View};

/// Label of Secrets with a token of a cluster; its value is the Cluster's name.
const CLUSTER_TOKEN: &str = "capstan.dev/cluster-token";
/// The longest token, in characters.
const LONGEST_TOKEN: u32 = 1024;

/// What the subject has.
#[derive(Clone, Default)]
pub struct Held {
    /// Name of the subject.
    subject: String,
    /// The subject as an owner.
    owner: Option<OwnerReference>,
    /// Something may be made: the subject is not on its way out.
    may_make: bool,
    /// Claims of the subject by name, each with its address where there is one.
    claims: BTreeMap<String, (Arc<Object>, Option<Arc<Object>>)>,
    /// Pools of the subject by name.
    pools: BTreeMap<String, Arc<Object>>,
    /// Secrets with tokens of the cluster, by name.
    tokens: BTreeMap<String, Arc<Object>>,
}

/// A kind that is not served holds nothing.
fn served<T: Default>(found: Result<T, NotNow>) -> Result<T, NotNow> {
    match found {
        Err(NotNow::NoSuchKind { .. }) => Ok(T::default()),
        other => other,
    }
}

impl Held {
    pub(super) fn of(subject: &Object, cluster: &str, view: &dyn View) -> Result<Self, NotNow> {
        let namespace = subject.namespace();
        let mut held = Self {
            subject: subject.name().to_owned(),
            owner: Some(subject.as_owner(true)),
            may_make: !subject.is_deleting(),
            ..Self::default()
        };
        let list = |group: &str, kind: &str, select: Select| {
            served(view.list(&Place::Management, group, kind, namespace, &select))
        };
        if !subject.uid().is_empty() {
            for claim in list(IPAM_GROUP, CLAIM, Select::OwnedBy(subject.uid().to_owned()))? {
                let key = ObjectKey::new(IPAM_GROUP, ADDRESS, namespace, claim.name());
                let address = served(view.get(&Place::Management, &key))?;
                held.claims.insert(claim.name().to_owned(), (claim, address));
            }
            for pool in list(IPAM_GROUP, POOL, Select::OwnedBy(subject.uid().to_owned()))? {
                held.pools.insert(pool.name().to_owned(), pool);
            }
        }
        for token in list("", "Secret", Select::Label(CLUSTER_TOKEN.to_owned(), cluster.to_owned()))? {
            held.tokens.insert(token.name().to_owned(), token);
        }
        Ok(held)
    }

    /// A digest of it, for the turn's inputs.
    pub(super) fn digest(&self) -> Value {
        let claims: Vec<Value> = self
            .claims
            .iter()
            .map(|(name, (claim, address))| {
                let ready = Condition::of(claim, "Ready").map(|ready| (ready.reason, ready.message));
                json!([name, ready, address.as_ref().and_then(|address| address.at("/spec"))])
            })
            .collect();
        let pools: Vec<Value> = self.pools.iter().map(|(name, pool)| json!([name, pool.at("/spec")])).collect();
        let tokens: Vec<Value> = self.tokens.iter().map(|(name, secret)| json!([name, data_digest(secret)])).collect();
        json!([claims, pools, tokens])
    }

    /// An object that belongs to the subject.
    fn owned(&self, offers: &Offers, version: &str, kind: &str, name: &str) -> Object {
        let mut object = Object::new(&Gvk::new(IPAM_GROUP, version, kind), &offers.namespace, name);
        if !offers.cluster.is_empty() {
            object.set_label(CLUSTER_NAME, &offers.cluster);
        }
        if let Some(owner) = &self.owner {
            object.set("/metadata/ownerReferences", json!([owner]));
        }
        object
    }

    fn is_mine(&self, object: &Object) -> bool {
        self.owner.as_ref().is_some_and(|owner| owned_by(object, &owner.uid))
    }
}

/// A pool that a provider names: group, kind, name.
pub(super) type PoolRef<'a> = (&'a str, &'a str, &'a str);
/// Addresses, prefix and gateway of a pool that a provider wants.
pub(super) type PoolSpec<'a> = (&'a [String], u8, Option<&'a str>);

impl Offers {
    /// Makes the pools that are missing, and brings the others up to date.
    pub(super) fn keep_pools(
        &self,
        replay: &mut Replay<'_>,
        wanted: &[(&str, PoolSpec<'_>)],
    ) -> Result<Result<(), Problem>, Halt> {
        let held = &self.held;
        let mut writes = Vec::new();
        for (name, (addresses, prefix, gateway)) in wanted.iter().filter(|_| held.may_make) {
            if !is_object_name(name) {
                return Ok(Err(Problem::violated(format!("a pool is to be called {name:?}, which no object may be"))));
            }
            let mut new = match held.pools.get(*name) {
                Some(known) => Object::clone(known),
                None => held.owned(self, POOL_VERSION, POOL, name),
            };
            new.set("/spec/addresses", json!(addresses));
            new.set("/spec/prefix", json!(prefix));
            match gateway {
                Some(gateway) => new.set("/spec/gateway", json!(gateway)),
                None => drop(new.remove("/spec/gateway")),
            }
            match held.pools.get(*name) {
                None => writes.push(Write::Create(new)),
                Some(known) => {
                    let spec = |object: &Object| object.at("/spec").cloned().unwrap_or_default();
                    if let Some(changed) = merge_patch(&spec(known), &spec(&new)) {
                        let patch = json!({ "spec": changed });
                        writes.push(Write::Patch { key: known.key(), patch, resource_version: None });
                    }
                }
            }
        }
        if writes.is_empty() {
            return Ok(Ok(()));
        }
        if let Some(pool) = replay.write(writes)?.into_iter().flatten().find(|pool| !held.is_mine(pool)) {
            let message = format!("{} is there already and is not this object's: delete or rename it", pool.key());
            return Ok(Err(Problem::new("PoolTaken", message)));
        }
        Ok(Ok(()))
    }

    /// Claims the addresses that are wanted and grants those that are there; what is said of the others. It is the
    /// provider's to know what it can do without them.
    pub(super) fn grant_addresses(
        &self,
        replay: &mut Replay<'_>,
        wanted: &[(&str, PoolRef<'_>)],
        granted: &mut Granted,
    ) -> Result<Result<Vec<String>, Problem>, Halt> {
        let held = &self.held;
        let (mut writes, mut waiting) = (Vec::new(), Vec::new());
        for (label, (group, kind, pool)) in wanted {
            let name = format!("{}-{label}", held.subject);
            if !is_object_name(&name) {
                return Ok(Err(Problem::violated(format!("a claim is to be called {name:?}, which no object may be"))));
            }
            match held.claims.get(&name) {
                Some((claim, Some(address))) => match granted_address(claim, address) {
                    Ok(address) => {
                        granted.addresses.insert((*label).to_owned(), address);
                    }
                    Err(why) => waiting.push(why),
                },
                Some((claim, None)) => {
                    let ready = Condition::of(claim, "Ready").filter(|ready| !ready.message.is_empty());
                    let why = ready.map_or_else(|| format!("{kind} {pool} is asked for one"), |ready| ready.message);
                    waiting.push(format!("IPAddressClaim {name} has no address yet: {why}"));
                }
                None if held.may_make => {
                    let mut claim = held.owned(self, IPAM_VERSION, CLAIM, &name);
                    if !self.cluster.is_empty() {
                        claim.set("/spec/clusterName", self.cluster.clone().into());
                    }
                    claim.set("/spec/poolRef", json!({"apiGroup": group, "kind": kind, "name": pool}));
                    writes.push(Write::Create(claim));
                    waiting.push(format!("IPAddressClaim {name} has no address yet: it was made just now"));
                }
                None => {}
            }
        }
        if !writes.is_empty()
            && let Some(claim) = replay.write(writes)?.into_iter().flatten().find(|claim| !held.is_mine(claim))
        {
            let message = format!("{} is there already and is not this object's: delete or rename it", claim.key());
            return Ok(Err(Problem::new("ClaimTaken", message)));
        }
        Ok(Ok(waiting))
    }

    /// Grants tokens of the cluster. A token is derived from a key that is made once and kept in the Secret
    /// `<cluster>-<label>`; a Secret of that name with the key `token` is taken as it is.
    pub(super) fn grant_cluster_tokens(
        &self,
        replay: &mut Replay<'_>,
        wanted: &[(&str, u32)],
        granted: &mut Granted,
    ) -> Result<Result<(), Problem>, Halt> {
        let held = &self.held;
        let name = |label: &str| format!("{}-{label}", self.cluster);
        let missing: Vec<String> =
            wanted.iter().map(|(label, _)| name(label)).filter(|name| !held.tokens.contains_key(name)).collect();
        let mut made = BTreeMap::new();
        if !missing.is_empty() {
            if let Some(odd) = missing.iter().find(|name| !is_object_name(name)) {
                return Ok(Err(Problem::violated(format!(
                    "a token is to be kept in {odd:?}, which no object may be called"
                ))));
            }
            if self.initialized || !held.may_make {
                let message = format!(
                    "there is no Secret {}: the cluster was set up with it, so it is not made anew; restore it from a backup",
                    missing.join(", ")
                );
                return Ok(Err(Problem::new("ClusterTokenMissing", message)));
            }
            let writes = missing.iter().map(|name| Write::MintKeyPair(self.token_secret(name))).collect();
            for object in replay.write(writes)?.into_iter().flatten() {
                made.insert(object.name().to_owned(), object);
            }
        }
        for (label, length) in wanted {
            let name = name(label);
            let secret = held.tokens.get(&name).map(Arc::as_ref).or_else(|| made.get(&name));
            let token = secret.and_then(|secret| match data(secret, "token") {
                Some(own) => Some(own),
                None => data(secret, "tls.key").map(|key| derived(&key, label, (*length).clamp(1, LONGEST_TOKEN))),
            });
            match token {
                Some(token) => {
                    granted.secrets.insert((*label).to_owned(), token);
                }
                None => {
                    let message = format!("Secret {name} has neither the key token nor tls.key; give it one of them");
                    return Ok(Err(Problem::new("ClusterTokenInvalid", message)));
                }
            }
        }
        Ok(Ok(()))
    }

    fn token_secret(&self, name: &str) -> KeyPairSecret {
        let mut secret = cluster_secret(&self.namespace, name, &self.cluster, self.cluster_owner.as_ref());
        secret.set_label(CLUSTER_TOKEN, &self.cluster);
        let key_pair = KeyPair {
            algorithm: Algorithm::EcdsaP256,
            purpose: KeyUse::SigningOnly,
            common_name: name.to_owned(),
            validity_days: 3650,
        };
        KeyPairSecret { secret, key_pair }
    }
}

/// So many hexadecimal characters that nobody can tell who does not know the key.
fn derived(key: &[u8], label: &str, length: u32) -> Vec<u8> {
    let length = usize::try_from(length).unwrap_or_default();
    let mut text = String::new();
    let mut block = 0u32;
    while text.len() < length {
        let seed = [b"cluster-token/", label.as_bytes(), b"/", &block.to_be_bytes(), b"/", key].concat();
        text.push_str(&digest(&seed, 32));
        block += 1;
    }
    text.truncate(length);
    text.into_bytes()
}

/// The address of a claim's IPAddress, or why it cannot be used.
fn granted_address(claim: &Object, address: &Object) -> Result<IpAddress, String> {
    let of = |pointer: &str| address.str_at(pointer);
    if of("/spec/claimRef/name") != Some(claim.name()) || address.at("/spec/poolRef") != claim.at("/spec/poolRef") {
        return Err(format!("IPAddress {} is there and is not of the claim of that name", address.name()));
    }
    let found = of("/spec/address").and_then(|text| text.parse::<std::net::IpAddr>().ok());
    let Some(found) = found else {
        return Err(format!("IPAddress {} has no address that can be read", address.name()));
    };
    let most = if found.is_ipv6() { 128 } else { 32 };
    let prefix = match address.int_at("/spec/prefix") {
        None => most,
        Some(prefix) => u8::try_from(prefix).ok().filter(|prefix| *prefix <= most).ok_or_else(|| {
            format!("IPAddress {} has the prefix {prefix}, which its address cannot have", address.name())
        })?,
    };
    Ok(IpAddress { address: found.to_string(), prefix, gateway: of("/spec/gateway").map(str::to_owned) })
}

/// A DNS subdomain.
fn is_object_name(name: &str) -> bool {
    let fine = |part: &str| {
        let inner = part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        !part.is_empty() && inner && !part.starts_with('-') && !part.ends_with('-')
    };
    name.len() <= 253 && name.split('.').all(fine)
}
