//! What a provider needs from Kubernetes: made, adopted or looked up, and granted by label (contract, interface
//! `needs`).
//!
//! What there is is read before the turn ([`Offers`]); what is missing and belongs to the cluster is made within it.
//! A key pair is never made anew once the control plane is initialized: the cluster that knows the old one would be
//! lost.

mod held;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use capstan_api::well_known::{CLUSTER_NAME, SECRET_TYPE};
use capstan_api::{Gvk, Object, ObjectKey, OwnerReference};
use serde_json::{Value, json};

use crate::certificate::public_key_hash;
use crate::contract::{Granted, KeyPair, KeyUse, KnownPart, Need, Served};
use crate::plan::{KeyPairSecret, Write};
use crate::provider::Problem;
use crate::record::digest;
use crate::script::{Halt, Replay};
use crate::turn::{Call, Mint, Reply};
use crate::view::{NotNow, Place, Select, View};

pub use held::Held;

/// Time to live of a bootstrap token, in seconds.
pub const TOKEN_TTL: u64 = 15 * 60;

/// A machine's first-boot data.
#[derive(Clone, Default)]
pub enum BootstrapData {
    /// The subject has nothing to do with it.
    #[default]
    None,
    /// It is not there (any more).
    Missing,
    /// The Secret that holds it.
    In(Arc<Object>),
}

/// What a turn may grant. Secrets are never shown.
#[derive(Clone, Default)]
pub struct Offers {
    /// Namespace of the subject.
    pub namespace: String,
    /// Name of the Cluster.
    pub cluster: String,
    /// Controller of the Secrets that are made.
    pub owner: Option<OwnerReference>,
    /// The Secrets of the cluster, by name.
    pub secrets: BTreeMap<String, Arc<Object>>,
    /// What the spec names at the pointers that the manifest lists: the name, the Secret, the ConfigMap.
    pub pointed: BTreeMap<String, Pointed>,
    /// Private halves of key pairs may be granted.
    pub private_keys: bool,
    /// Key pairs and tokens may be made: the subject has to do with the cluster's trust.
    pub may_make: bool,
    /// The control plane is initialized: key pairs that are missing are lost.
    pub initialized: bool,
    /// The machine's first-boot data.
    pub bootstrap_data: BootstrapData,
    /// The Cluster as the owner of what belongs to it.
    pub cluster_owner: Option<OwnerReference>,
    /// What the subject has in the management cluster because of its needs.
    pub held: Held,
}

impl std::fmt::Debug for Offers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Offers")
            .field("cluster", &self.cluster)
            .field("secrets", &self.secrets.keys())
            .field("pointed", &self.pointed.keys())
            .finish_non_exhaustive()
    }
}

/// What an object of the subject's namespace is called in the spec, and what there is of that name.
#[derive(Clone, Default)]
pub struct Pointed {
    /// The name.
    pub name: String,
    /// The Secret of that name.
    pub secret: Option<Arc<Object>>,
    /// The ConfigMap of that name.
    pub config_map: Option<Arc<Object>>,
}

/// What was granted, and what was made for it.
#[derive(Clone, Debug, Default)]
pub struct Grant {
    /// For the guest.
    pub granted: Granted,
    /// Id (the public half) of the bootstrap token that was made.
    pub token_id: Option<String>,
    /// Addresses that have not come yet, for a person.
    pub waiting: Vec<String>,
}

impl Offers {
    /// Nothing but what the spec names and what the subject holds already.
    pub fn named(subject: &Object, cluster: &str, served: &Served, view: &dyn View) -> Result<Self, NotNow> {
        let namespace = subject.namespace().to_owned();
        let mut pointed = BTreeMap::new();
        for pointer in &served.object_references {
            let Some(name) = name_at(subject, pointer) else { continue };
            let get = |kind: &str| view.get(&Place::Management, &ObjectKey::new("", kind, &namespace, &name));
            let one = Pointed { secret: get("Secret")?, config_map: get("ConfigMap")?, name: name.clone() };
            pointed.insert(pointer.clone(), one);
        }
        let held = Held::of(subject, cluster, view)?;
        Ok(Self { namespace, cluster: cluster.to_owned(), pointed, held, ..Self::default() })
    }

    /// Adds the Secrets of the cluster.
    pub fn with_secrets(mut self, view: &dyn View) -> Result<Self, NotNow> {
        let select = Select::Label(CLUSTER_NAME.into(), self.cluster.clone());
        for secret in view.list(&Place::Management, "", "Secret", &self.namespace, &select)? {
            self.secrets.insert(secret.name().to_owned(), secret);
        }
        // What a user brought along may lack the label.
        for label in ["ca", "etcd", "proxy", "sa"] {
            let name = format!("{}-{label}", self.cluster);
            if !self.secrets.contains_key(&name)
                && let Some(secret) =
                    view.get(&Place::Management, &ObjectKey::new("", "Secret", &self.namespace, &name))?
            {
                self.secrets.insert(name, secret);
            }
        }
        Ok(self)
    }

    /// A digest of what is offered, for the turn's inputs. First-boot data is left out: what changes in it afterwards
    /// does not change a machine.
    pub fn digest(&self) -> Value {
        let version = |object: &Option<Arc<Object>>| object.as_ref().map(|o| data_digest(o));
        let secrets: Vec<Value> = self
            .secrets
            .values()
            .filter(|s| s.at("/data/tls.crt").is_some())
            .map(|s| json!([s.name(), data_digest(s)]))
            .collect();
        let pointed: Vec<Value> = self
            .pointed
            .iter()
            .map(|(at, p)| json!([at, p.name, version(&p.secret), version(&p.config_map)]))
            .collect();
        let ready = matches!(self.bootstrap_data, BootstrapData::In(_));
        json!([secrets, pointed, self.private_keys, self.initialized, ready, self.held.digest()])
    }

    fn key_pair_secret(&self, label: &str, key_pair: &KeyPair) -> KeyPairSecret {
        let name = format!("{}-{label}", self.cluster);
        KeyPairSecret {
            secret: cluster_secret(&self.namespace, &name, &self.cluster, self.owner.as_ref()),
            key_pair: key_pair.clone(),
        }
    }

    /// Asks the guest what it needs and grants it. A [`Problem`] within means that the turn cannot go on.
    pub(crate) fn grant(
        &self,
        replay: &mut Replay<'_>,
        known: impl FnOnce() -> BTreeMap<String, KnownPart>,
    ) -> Result<Result<Grant, Problem>, Halt> {
        let mut granted = Granted::default();
        match &self.bootstrap_data {
            BootstrapData::In(secret) => match data(secret, "value") {
                Some(bytes) => {
                    granted.secrets.insert("bootstrap-data".into(), bytes);
                }
                None => granted.missing_secrets.push("bootstrap-data".into()),
            },
            BootstrapData::Missing => granted.missing_secrets.push("bootstrap-data".into()),
            BootstrapData::None => {}
        }
        let needs = match replay.call(Call::Needs, known, &granted)?.reply {
            Ok(Reply::Needs(needs)) => needs,
            Ok(_) => return Ok(Err(Problem::violated("needs.declare answered with something else"))),
            Err(error) => return Ok(Err(Problem::of(&error, "declaring what is needed"))),
        };
        let mut pairs = Vec::new();
        let mut tokens = Vec::new();
        let (mut addresses, mut pools, mut cluster_tokens) = (Vec::new(), Vec::new(), Vec::new());
        for (label, need) in &needs {
            if label.is_empty() || label.contains('/') || label == "bootstrap-data" {
                return Ok(Err(Problem::violated(format!("a need is called {label:?}, which is no free label"))));
            }
            match need {
                Need::KeyPair(key_pair) => pairs.push((label, key_pair)),
                Need::BootstrapToken => tokens.push(label),
                Need::Secret(pointer) => {
                    if let Err(problem) = self.grant_secret(label, pointer, &mut granted) {
                        return Ok(Err(problem));
                    }
                }
                Need::ConfigMap(pointer) => {
                    if let Err(problem) = self.grant_config_map(label, pointer, &mut granted) {
                        return Ok(Err(problem));
                    }
                }
                Need::Address { group, kind, name } => addresses.push((label.as_str(), (&**group, &**kind, &**name))),
                Need::AddressPool { addresses, prefix, gateway } => {
                    pools.push((label.as_str(), (addresses.as_slice(), *prefix, gateway.as_deref())));
                }
                Need::ClusterToken(length) => cluster_tokens.push((label.as_str(), *length)),
            }
        }
        if let Err(problem) = self.grant_key_pairs(replay, &pairs, &mut granted)? {
            return Ok(Err(problem));
        }
        if let Err(problem) = self.grant_cluster_tokens(replay, &cluster_tokens, &mut granted)? {
            return Ok(Err(problem));
        }
        // Pools first: an address may be wanted of one of them.
        if let Err(problem) = self.keep_pools(replay, &pools)? {
            return Ok(Err(problem));
        }
        let waiting = match self.grant_addresses(replay, &addresses, &mut granted)? {
            Ok(waiting) => waiting,
            Err(problem) => return Ok(Err(problem)),
        };
        let mut token_id = None;
        for label in tokens {
            let mint = Mint::BootstrapToken {
                namespace: self.namespace.clone(),
                cluster: self.cluster.clone(),
                ttl: TOKEN_TTL,
            };
            match replay.mint(mint)? {
                Ok(token) => {
                    token_id =
                        std::str::from_utf8(&token).ok().and_then(|t| t.split_once('.')).map(|(id, _)| id.into());
                    granted.secrets.insert(label.clone(), token);
                }
                Err(why) => {
                    let message = format!("making a bootstrap token in the workload cluster: {why}");
                    return Ok(Err(Problem::new("BootstrapTokenNotMade", message)));
                }
            }
        }
        Ok(Ok(Grant { granted, token_id, waiting }))
    }

    /// Makes the key pairs that are missing, all in one step, and grants them.
    fn grant_key_pairs(
        &self,
        replay: &mut Replay<'_>,
        pairs: &[(&String, &KeyPair)],
        granted: &mut Granted,
    ) -> Result<Result<(), Problem>, Halt> {
        let name = |label: &str| format!("{}-{label}", self.cluster);
        let missing: Vec<_> = pairs.iter().filter(|(label, _)| !self.secrets.contains_key(&name(label))).collect();
        let mut made: BTreeMap<String, Object> = BTreeMap::new();
        if !missing.is_empty() {
            let names: Vec<String> = missing.iter().map(|(label, _)| name(label)).collect();
            if self.initialized || !self.may_make {
                let why = if self.initialized {
                    "the cluster was initialized with it, so it is not made anew; restore it from a backup"
                } else {
                    "it is not made for this kind of object; the control plane makes it"
                };
                let message = format!("there is no Secret {}: {why}", names.join(", "));
                return Ok(Err(Problem::new("CertificateMissing", message)));
            }
            let writes: Vec<Write> =
                missing.iter().map(|(label, pair)| Write::MintKeyPair(self.key_pair_secret(label, pair))).collect();
            let count = writes.len();
            for object in replay.write(writes)?.into_iter().take(count).flatten() {
                made.insert(object.name().to_owned(), object);
            }
            if names.iter().any(|name| made.get(name).is_none_or(|o| o.at("/data").is_none())) {
                let message = format!("Secret {} was made and is not seen yet", names.join(", "));
                return Ok(Err(Problem::new("CertificatePending", message).after(200)));
            }
        }
        for (label, pair) in pairs {
            let name = name(label);
            let Some(secret) = self.secrets.get(&name).map(Arc::as_ref).or_else(|| made.get(&name)) else { continue };
            let Some(public) = data(secret, "tls.crt") else {
                let message = format!("Secret {name} has no tls.crt; give it one, or delete it to have it made");
                return Ok(Err(Problem::new("CertificateInvalid", message)));
            };
            if pair.purpose == KeyUse::CertificateAuthority {
                match public_key_hash(&public) {
                    Ok(hash) => {
                        granted.public_key_hashes.insert((*label).clone(), hash);
                    }
                    Err(why) => {
                        let message = format!("tls.crt of Secret {name} cannot be used as an authority: {why}");
                        return Ok(Err(Problem::new("CertificateInvalid", message)));
                    }
                }
            }
            granted.secrets.insert(format!("{label}/tls.crt"), public);
            match data(secret, "tls.key").filter(|_| self.private_keys) {
                Some(private) => {
                    granted.secrets.insert(format!("{label}/tls.key"), private);
                }
                None => granted.missing_secrets.push(format!("{label}/tls.key")),
            }
        }
        Ok(Ok(()))
    }

    fn pointed(&self, pointer: &str) -> Result<Option<&Pointed>, Problem> {
        Ok(self.pointed.get(pointer))
    }

    fn grant_secret(&self, label: &str, pointer: &str, granted: &mut Granted) -> Result<(), Problem> {
        match self.pointed(pointer)? {
            None => granted.missing_secrets.push(label.to_owned()),
            Some(Pointed { name, secret: None, .. }) => {
                let message = format!("{pointer} names Secret {name}, which is not in this namespace");
                return Err(Problem::new("SecretMissing", message).after(10_000));
            }
            Some(Pointed { secret: Some(secret), .. }) => {
                for (key, value) in entries(secret, "/data") {
                    let Ok(bytes) = STANDARD.decode(value) else { continue };
                    granted.secrets.insert(format!("{label}/{key}"), bytes);
                }
            }
        }
        Ok(())
    }

    fn grant_config_map(&self, label: &str, pointer: &str, granted: &mut Granted) -> Result<(), Problem> {
        match self.pointed(pointer)? {
            None => Ok(()),
            Some(Pointed { name, config_map: None, .. }) => {
                let message = format!("{pointer} names ConfigMap {name}, which is not in this namespace");
                Err(Problem::new("ConfigMapMissing", message).after(10_000))
            }
            Some(Pointed { config_map: Some(map), .. }) => {
                let all = entries(map, "/data").into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
                granted.config_maps.insert(label.to_owned(), all);
                Ok(())
            }
        }
    }
}

/// The name at a pointer of the spec: a string, or the `name` of a reference.
fn name_at(subject: &Object, pointer: &str) -> Option<String> {
    if !pointer.starts_with("/spec/") {
        return None;
    }
    let value = subject.at(pointer)?;
    let name = value.as_str().or_else(|| value.get("name").and_then(Value::as_str))?;
    (!name.is_empty()).then(|| name.to_owned())
}

fn entries<'a>(object: &'a Object, pointer: &str) -> Vec<(&'a str, &'a str)> {
    let map = object.at(pointer).and_then(Value::as_object);
    map.map(|all| all.iter().filter_map(|(k, v)| Some((k.as_str(), v.as_str()?))).collect()).unwrap_or_default()
}

fn data_digest(object: &Object) -> String {
    digest(object.at("/data").unwrap_or(&Value::Null).to_string().as_bytes(), 16)
}

/// The bytes of one key of a Secret.
pub fn data(secret: &Object, key: &str) -> Option<Vec<u8>> {
    let text = secret.0.get("data")?.get(key)?.as_str()?;
    STANDARD.decode(text).ok()
}

/// The text of one key of a Secret.
pub fn text(secret: &Object, key: &str) -> Option<String> {
    data(secret, key).and_then(|bytes| String::from_utf8(bytes).ok())
}

/// A Secret of Cluster API's type that belongs to a cluster, without its data.
pub fn cluster_secret(namespace: &str, name: &str, cluster: &str, owner: Option<&OwnerReference>) -> Object {
    let mut secret = Object::new(&Gvk::new("", "v1", "Secret"), namespace, name);
    secret.set_label(CLUSTER_NAME, cluster);
    if let Some(owner) = owner {
        secret.set("/metadata/ownerReferences", json!([owner]));
    }
    secret.set("/type", SECRET_TYPE.into());
    secret
}
