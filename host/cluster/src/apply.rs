//! Carries out the writes of plans.
//!
//! Promises: writes go out in order and end with the first that fails; nothing is sent that would change nothing; what
//! the server answers is in the cache before anything is decided on it; without the Lease nothing is sent; a status
//! that is not urgent waits until a second after the object's last write.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use capstan_api::{Object, ObjectKey};
use capstan_core::plan::{KeyPairSecret, KubeconfigSecret, Urgency, WorkloadWrite, Write};
use capstan_core::turn::Fence;
use capstan_core::view::NotNow;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::kinds::{Resource, builtin};
use crate::mint::{self, Mint};
use crate::mirror::Mirror;
use crate::wire::{PatchKind, WireError};
use crate::workload::Workloads;

/// How long a status that is not urgent waits after the object's last write.
pub const HOLD_BACK: Duration = Duration::from_secs(1);

/// Why a write ended its plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stopped {
    /// What the plan was made from has changed: decide again at once. Not an error for a person.
    #[error("{0} has changed meanwhile")]
    Conflict(ObjectKey),
    /// This process may not change anything now.
    #[error("the Lease is not held")]
    NotHeld,
    /// It failed; worth trying again later.
    #[error("{doing} {what}: {why}")]
    Failed {
        /// What was tried.
        doing: &'static str,
        /// On what.
        what: String,
        /// Why it failed.
        why: String,
    },
}

/// How a write went.
#[derive(Clone, Debug, PartialEq)]
pub enum Applied {
    /// Done; the object as the server keeps it, `None` after a deletion or in a workload cluster.
    Done(Option<Object>),
    /// Not sent yet: the object is to be decided again after this time.
    HeldBack(Duration),
}

/// Called after each effect on the outside.
pub type AfterEffect = Arc<dyn Fn() + Send + Sync>;

/// Carries out writes. Cheap to clone.
#[derive(Clone)]
pub struct Applier {
    shared: Arc<Shared>,
}

struct Shared {
    management: Mirror,
    workloads: Arc<Workloads>,
    mint: Mint,
    fence: Fence,
    /// When this process last wrote an object.
    written: Mutex<HashMap<ObjectKey, Instant>>,
    sent: AtomicU64,
    conflicts: AtomicU64,
    after_effect: Option<AfterEffect>,
}

impl Applier {
    /// What the fence refuses is [`Stopped::NotHeld`].
    pub fn new(
        management: Mirror,
        workloads: Arc<Workloads>,
        mint: Mint,
        fence: Fence,
        after_effect: Option<AfterEffect>,
    ) -> Self {
        Self {
            shared: Arc::new(Shared {
                management,
                workloads,
                mint,
                fence,
                written: Mutex::default(),
                sent: AtomicU64::new(0),
                conflicts: AtomicU64::new(0),
                after_effect,
            }),
        }
    }

    /// Whether this process may change something now.
    pub fn may_change(&self) -> bool {
        (self.shared.fence)()
    }

    /// The same, to be asked from elsewhere.
    pub fn fence(&self) -> &Fence {
        &self.shared.fence
    }

    /// Changing requests sent to the management cluster, and conflicts among them.
    pub fn counts(&self) -> (u64, u64) {
        (self.shared.sent.load(Ordering::Relaxed), self.shared.conflicts.load(Ordering::Relaxed))
    }

    /// Something outside has changed.
    pub fn had_effect(&self) {
        if let Some(after_effect) = &self.shared.after_effect {
            after_effect();
        }
    }

    /// Carries out one write.
    ///
    /// # Errors
    /// [`Stopped`]; the writes after it must not be carried out.
    pub async fn write(&self, write: &Write) -> Result<Applied, Stopped> {
        if !self.may_change() {
            return Err(Stopped::NotHeld);
        }
        match write {
            Write::Create(object) => self.create(object).await.map(|object| Applied::Done(Some(object))),
            Write::Patch { key, patch, resource_version } => self
                .patch(key, patch, None, resource_version.as_deref())
                .await
                .map(|object| Applied::Done(Some(object))),
            Write::PatchStatus { key, patch, urgency } => {
                if *urgency == Urgency::Soon
                    && let Some(wait) = self.hold_back(key)
                    && self.cached(key).is_none_or(|known| differs(&known, patch))
                {
                    return Ok(Applied::HeldBack(wait));
                }
                self.patch(key, patch, Some("status"), None).await.map(|object| Applied::Done(Some(object)))
            }
            Write::Delete { key, uid } => self.delete(key, uid).await.map(|()| Applied::Done(None)),
            Write::MintKeyPair(wanted) => self.mint_key_pair(wanted).await.map(|object| Applied::Done(Some(object))),
            Write::MintKubeconfig(wanted) => {
                self.mint_kubeconfig(wanted).await.map(|object| Applied::Done(Some(object)))
            }
            Write::Workload { namespace, cluster, write } => {
                self.workload(namespace, cluster, write).await.map(|()| Applied::Done(None))
            }
        }
    }

    fn cached(&self, key: &ObjectKey) -> Option<Arc<Object>> {
        self.shared.management.get(key).ok().flatten()
    }

    fn resource(&self, doing: &'static str, key: &ObjectKey) -> Result<Resource, Stopped> {
        self.shared
            .management
            .definition(&key.group, &key.kind)
            .map(|definition| definition.resource)
            .map_err(|error: NotNow| failed(doing, key, error))
    }

    /// How long a status that is not urgent must still wait.
    fn hold_back(&self, key: &ObjectKey) -> Option<Duration> {
        let written = self.shared.written.lock().unwrap_or_else(PoisonError::into_inner);
        HOLD_BACK.checked_sub(written.get(key)?.elapsed()).filter(|wait| !wait.is_zero())
    }

    fn wrote(&self, object: &Object) {
        let now = Instant::now();
        {
            let mut written = self.shared.written.lock().unwrap_or_else(PoisonError::into_inner);
            if written.len() > 4096 {
                written.retain(|_, at| at.elapsed() < HOLD_BACK);
            }
            written.insert(object.key(), now);
        }
        self.shared.management.wrote(object);
        self.had_effect();
    }

    fn count(&self, outcome: Result<Object, WireError>) -> Result<Object, WireError> {
        self.shared.sent.fetch_add(1, Ordering::Relaxed);
        if outcome.as_ref().is_err_and(WireError::is_conflict) {
            self.shared.conflicts.fetch_add(1, Ordering::Relaxed);
        }
        outcome
    }

    async fn create(&self, object: &Object) -> Result<Object, Stopped> {
        let key = object.key();
        if let Some(known) = self.cached(&key) {
            return Ok(Object::clone(&known));
        }
        let version = object.gvk().version;
        let resource = self.resource("create", &key)?.in_version(&version);
        match self.count(self.shared.management.wire().create(&resource, object).await) {
            Ok(made) => {
                self.wrote(&made);
                Ok(made)
            }
            Err(error) if error.already_exists() => match self.shared.management.refresh(&resource, &key).await {
                Ok(Some(found)) => Ok(found),
                Ok(None) => Err(Stopped::Conflict(key)),
                Err(error) => Err(failed("read", &key, error)),
            },
            Err(error) => Err(refused("create", &key, error)),
        }
    }

    async fn patch(
        &self,
        key: &ObjectKey,
        patch: &Value,
        subresource: Option<&str>,
        precondition: Option<&str>,
    ) -> Result<Object, Stopped> {
        if let Some(known) = self.cached(key)
            && !differs(&known, patch)
        {
            return Ok(Object::clone(&known));
        }
        let resource = self.resource("patch", key)?;
        let mut body = patch.clone();
        if let Some(version) = precondition {
            set_version(&mut body, version);
        }
        let wire = self.shared.management.wire();
        let sent = wire.patch(&resource, &key.namespace, &key.name, subresource, PatchKind::Merge, &body).await;
        match self.count(sent) {
            Ok(object) => {
                self.wrote(&object);
                Ok(object)
            }
            Err(error) => Err(self.after_failure("patch", &resource, key, error).await),
        }
    }

    async fn delete(&self, key: &ObjectKey, uid: &str) -> Result<(), Stopped> {
        if let Some(known) = self.cached(key)
            && (known.uid() != uid || known.is_deleting())
        {
            return Ok(());
        }
        let resource = self.resource("delete", key)?;
        self.shared.sent.fetch_add(1, Ordering::Relaxed);
        match self.shared.management.wire().delete(&resource, &key.namespace, &key.name, uid).await {
            Ok(Some(object)) => {
                self.wrote(&object);
                Ok(())
            }
            Ok(None) => {
                self.shared.management.deleted(key, uid);
                self.had_effect();
                Ok(())
            }
            Err(error) => Err(self.after_failure("delete", &resource, key, error).await),
        }
    }

    /// After a conflict the object is read anew, so that the next decision does not meet the same one.
    async fn after_failure(
        &self,
        doing: &'static str,
        resource: &Resource,
        key: &ObjectKey,
        error: WireError,
    ) -> Stopped {
        if !error.is_conflict() && !error.is_not_found() {
            return refused(doing, key, error);
        }
        match self.shared.management.refresh(resource, key).await {
            Ok(_) => Stopped::Conflict(key.clone()),
            Err(error) => failed("read", key, error),
        }
    }

    /// A Secret, unless it is there already: from the cache, or else from the server.
    async fn existing(&self, key: &ObjectKey) -> Result<Option<Object>, Stopped> {
        if let Some(known) = self.cached(key) {
            return Ok(Some(Object::clone(&known)));
        }
        let resource = self.resource("read", key)?;
        self.shared.management.refresh(&resource, key).await.map_err(|error| failed("read", key, error))
    }

    async fn mint_key_pair(&self, wanted: &KeyPairSecret) -> Result<Object, Stopped> {
        let key = wanted.secret.key();
        if let Some(found) = self.existing(&key).await? {
            return Ok(found);
        }
        let (certificate, private) =
            self.shared.mint.key_pair(&wanted.key_pair).await.map_err(|error| failed("make", &key, error))?;
        let mut secret = wanted.secret.clone();
        secret.set("/data", mint::secret_data(&[("tls.crt", &certificate), ("tls.key", &private)]));
        self.create(&secret).await
    }

    async fn mint_kubeconfig(&self, wanted: &KubeconfigSecret) -> Result<Object, Stopped> {
        let key = wanted.secret.key();
        let ca_key = ObjectKey::new("", "Secret", &key.namespace, &wanted.ca_secret);
        let ca = self.existing(&ca_key).await?.ok_or_else(|| failed("make", &key, format!("{ca_key} is not there")))?;
        let part = |name: &str| {
            mint::secret_text(&ca, name).ok_or_else(|| failed("make", &key, format!("{ca_key} has no readable {name}")))
        };
        let text = mint::admin_kubeconfig(
            &wanted.cluster,
            &wanted.server,
            &part("tls.crt")?,
            &part("tls.key")?,
            wanted.validity_days,
        )
        .map_err(|error| failed("make", &key, error))?;
        let mut secret = wanted.secret.clone();
        secret.set("/data", mint::secret_data(&[("value", &text)]));
        match self.existing(&key).await? {
            None => self.create(&secret).await,
            Some(found) => {
                let patch = json!({"data": secret.at("/data"), "metadata": {
                    "labels": secret.at("/metadata/labels"), "ownerReferences": secret.at("/metadata/ownerReferences")}});
                self.patch(&key, &patch, None, Some(found.resource_version())).await
            }
        }
    }

    async fn workload(&self, namespace: &str, cluster: &str, write: &WorkloadWrite) -> Result<(), Stopped> {
        let mirror = self.shared.workloads.mirror(namespace, cluster).map_err(|why| Stopped::Failed {
            doing: "write to workload cluster",
            what: format!("{namespace}/{cluster}"),
            why,
        })?;
        let wire = mirror.wire().clone();
        let resource_of = |key: &ObjectKey, version: &str| {
            builtin(&key.group, &key.kind)
                .map(|resource| resource.in_version(version))
                .ok_or_else(|| failed("write", key, "kinds that are not built in are not known in workload clusters"))
        };
        match write {
            WorkloadWrite::Create(object) => {
                let key = object.key();
                match wire.create(&resource_of(&key, &object.gvk().version)?, object).await {
                    Ok(made) => mirror.wrote(&made),
                    Err(error) if error.already_exists() => {}
                    Err(error) => return Err(refused("create in the workload cluster", &key, error)),
                }
            }
            WorkloadWrite::Apply(object) => {
                let key = object.key();
                let resource = resource_of(&key, &object.gvk().version)?;
                let created = wire.create(&resource, object).await;
                let outcome = match created {
                    Err(error) if error.already_exists() => {
                        let body = Value::Object(object.0.clone());
                        wire.patch(&resource, &key.namespace, &key.name, None, PatchKind::Merge, &body).await
                    }
                    outcome => outcome,
                };
                mirror.wrote(&outcome.map_err(|error| refused("apply in the workload cluster", &key, error))?);
            }
            WorkloadWrite::Patch { version, key, patch, resource_version } => {
                let resource = resource_of(key, version)?;
                let mut body = patch.clone();
                if let Some(version) = resource_version {
                    set_version(&mut body, version);
                }
                match wire.patch(&resource, &key.namespace, &key.name, None, PatchKind::Merge, &body).await {
                    Ok(object) => mirror.wrote(&object),
                    Err(error) if error.is_conflict() || error.is_not_found() => {
                        return match mirror.refresh(&resource, key).await {
                            Ok(_) => Err(Stopped::Conflict(key.clone())),
                            Err(error) => Err(failed("read in the workload cluster", key, error)),
                        };
                    }
                    Err(error) => return Err(refused("patch in the workload cluster", key, error)),
                }
            }
            WorkloadWrite::Delete { version, key } => {
                let resource = resource_of(key, version)?;
                let uid = mirror.get(key).ok().flatten().map(|o| o.uid().to_owned()).unwrap_or_default();
                match wire.delete(&resource, &key.namespace, &key.name, "").await {
                    Ok(Some(object)) => mirror.wrote(&object),
                    Ok(None) => mirror.deleted(key, &uid),
                    Err(error) => return Err(refused("delete in the workload cluster", key, error)),
                }
            }
        }
        self.had_effect();
        Ok(())
    }

    /// Makes a bootstrap token valid in its workload cluster.
    ///
    /// # Errors
    /// When it cannot be written there.
    pub async fn mint_bootstrap_token(&self, namespace: &str, cluster: &str, ttl: Duration) -> Result<String, Stopped> {
        if !self.may_change() {
            return Err(Stopped::NotHeld);
        }
        let (token, secret) = mint::bootstrap_token(ttl, &format!("made by capstan for a machine of {cluster}"));
        match self.workload(namespace, cluster, &WorkloadWrite::Create(secret)).await {
            Ok(()) => Ok(token),
            // Each attempt has another name: with it, each would be another Event and another condition.
            Err(Stopped::Failed { doing, why, .. }) => {
                Err(Stopped::Failed { doing, what: "Secret kube-system/bootstrap-token-…".into(), why })
            }
            Err(other) => Err(other),
        }
    }
}

/// What a request that did not succeed stops.
fn refused(doing: &'static str, what: &ObjectKey, error: WireError) -> Stopped {
    match error {
        WireError::NotHeld => Stopped::NotHeld,
        error => failed(doing, what, error),
    }
}

fn failed(doing: &'static str, what: &ObjectKey, why: impl std::fmt::Display) -> Stopped {
    Stopped::Failed { doing, what: what.to_string(), why: why.to_string() }
}

fn set_version(body: &mut Value, version: &str) {
    if let Some(map) = body.as_object_mut()
        && let Some(metadata) = map.entry("metadata").or_insert_with(|| json!({})).as_object_mut()
    {
        metadata.insert("resourceVersion".into(), version.into());
    }
}

/// Whether a merge patch (RFC 7386) would change anything in the object.
pub fn differs(object: &Object, patch: &Value) -> bool {
    let Value::Object(patch) = patch else { return true };
    map_differs(&object.0, patch)
}

fn map_differs(target: &serde_json::Map<String, Value>, patch: &serde_json::Map<String, Value>) -> bool {
    patch.iter().any(|(key, wanted)| match (target.get(key), wanted) {
        (None, Value::Null) => false,
        (Some(Value::Object(there)), Value::Object(wanted)) => map_differs(there, wanted),
        (None, Value::Object(wanted)) => wanted.is_empty() || map_differs(&serde_json::Map::new(), wanted),
        (Some(there), wanted) => there != wanted,
        (None, _) => true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_would_change_something_differs() {
        let object = Object::from_value(json!({
            "metadata": {"name": "a", "labels": {"x": "1"}}, "spec": {"list": [1, 2], "map": {"k": "v"}},
        }))
        .unwrap();
        for same in [
            json!({}),
            json!({"metadata": {"labels": {"x": "1"}}}),
            json!({"metadata": {"labels": {"gone": null}}}),
            json!({"status": {"gone": null}}),
            json!({"spec": {"list": [1, 2], "map": {"k": "v"}}}),
        ] {
            assert!(!differs(&object, &same), "{same}");
        }
        for other in [
            json!({"metadata": {"labels": {"x": "2"}}}),
            json!({"metadata": {"labels": {"x": null}}}),
            json!({"metadata": {"labels": null}}),
            json!({"spec": {"list": [1]}}),
            json!({"status": {"phase": "Running"}}),
            json!({"status": {}}),
        ] {
            assert!(differs(&object, &other), "{other}");
        }
    }
}
