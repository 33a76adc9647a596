//! ProviderModule, Endpoint and EgressPolicy: what whoever runs components is told of them, and what their status says.

use std::time::Duration;

use async_trait::async_trait;
use capstan_api::{Object, ObjectKey};
use serde_json::{Value, json};

use crate::apply::{Applied, Applier, Stopped};
use crate::crds;
use crate::queue::Ended;
use crate::wire::Wire;
use capstan_core::plan::{Urgency, Write};

/// API group of Capstan's own kinds.
pub const GROUP: &str = "capstan.dev";
/// Kind of a provider module.
pub const PROVIDER_MODULE: &str = "ProviderModule";
/// Kind of an endpoint.
pub const ENDPOINT: &str = "Endpoint";
/// Kind of an egress policy.
pub const EGRESS_POLICY: &str = "EgressPolicy";

/// Installs the CRDs of a module before it serves.
#[async_trait]
pub trait Installer: Send + Sync {
    /// Installs those that differ from what is installed. `false`: this process may not now, and whoever holds the Lease
    /// does it.
    ///
    /// # Errors
    /// When the API server refuses one; the text is for a person.
    async fn install(&self, crds: &[Object]) -> Result<bool, String>;
}

/// What came of looking at an object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Looked {
    /// The object's new `status`, complete; `None`: it is left as it is.
    pub status: Option<Value>,
    /// When to look again although the object did not change.
    pub look_again: Option<Duration>,
}

/// Whoever loads components; the `capstan` binary. A module or endpoint that cannot be used says so in its status and
/// disturbs no other.
#[async_trait]
pub trait Modules: Send + Sync {
    /// Brings what serves under this name in line with the object (`None`: it is gone): loads it when it is new or its
    /// spec has changed, installs its CRDs, then lets it serve. All replicas do this, as each may be asked what a component
    /// says of its kinds; asked again when this process comes to hold the Lease.
    async fn module(&self, name: &str, module: Option<&Object>, installer: &dyn Installer) -> Looked;

    /// An endpoint as it is now (`None`: it is gone).
    async fn endpoint(&self, namespace: &str, name: &str, endpoint: Option<&Object>) -> Looked;

    /// An egress policy as it is now (`None`: it is gone).
    async fn egress_policy(&self, name: &str, policy: Option<&Object>) -> Looked;
}

impl Installer for Wire {
    fn install<'a, 'b, 'c>(
        &'a self,
        crds: &'b [Object],
    ) -> std::pin::Pin<Box<dyn Future<Output = Result<bool, String>> + Send + 'c>>
    where
        'a: 'c,
        'b: 'c,
        Self: 'c,
    {
        Box::pin(async move {
            if !self.may_change() {
                return Ok(false);
            }
            crds::install(self, crds).await.map(|_| true)
        })
    }
}

/// Whether the object is one of those that go to [`Modules`].
pub fn is_for_modules(key: &ObjectKey) -> bool {
    key.group == GROUP && [PROVIDER_MODULE, ENDPOINT, EGRESS_POLICY].contains(&key.kind.as_str())
}

/// Tells [`Modules`] about one object and writes its status where it differs.
pub async fn work(
    modules: &dyn Modules,
    applier: &Applier,
    wire: &Wire,
    key: &ObjectKey,
    object: Option<&Object>,
) -> Ended {
    let looked = match key.kind.as_str() {
        PROVIDER_MODULE => modules.module(&key.name, object, wire).await,
        EGRESS_POLICY => modules.egress_policy(&key.name, object).await,
        _ => modules.endpoint(&key.namespace, &key.name, object).await,
    };
    let (Some(status), Some(object)) = (looked.status, object) else { return Ended::Done(looked.look_again) };
    let patch = json!({"status": replace(object.at("/status"), status)});
    let write = Write::PatchStatus { key: key.clone(), patch, urgency: Urgency::Now };
    match applier.write(&write).await {
        Ok(Applied::Done(_)) => Ended::Done(looked.look_again),
        Ok(Applied::HeldBack(wait)) => Ended::Done(Some(wait)),
        Err(Stopped::Conflict(_)) => Ended::Again,
        // Whoever holds the Lease writes it.
        Err(Stopped::NotHeld) => Ended::Done(looked.look_again),
        Err(error) => {
            tracing::warn!(%key, %error, "cannot write the status");
            Ended::Failed
        }
    }
}

/// A merge patch that makes `new` of `old`: what is no more is null.
fn replace(old: Option<&Value>, new: Value) -> Value {
    match (old, new) {
        (Some(Value::Object(old)), Value::Object(mut new)) => {
            for (key, value) in old {
                let merged = match new.remove(key) {
                    Some(wanted) => replace(Some(value), wanted),
                    None => Value::Null,
                };
                new.insert(key.clone(), merged);
            }
            Value::Object(new)
        }
        (_, new) => new,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_replaces_the_old_one() {
        let old = json!({"digest": "a", "error": "x", "nested": {"a": 1, "b": 2}});
        let patch = replace(Some(&old), json!({"digest": "b", "nested": {"a": 1}}));
        assert_eq!(patch["error"], Value::Null);
        assert_eq!(patch["digest"], "b");
        assert_eq!(patch["nested"], json!({"a": 1, "b": null}));
    }
}
