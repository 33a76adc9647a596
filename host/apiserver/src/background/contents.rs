//! The end of namespaces and of definitions: first what is in them, then they.

use crate::catalog::crd;
use crate::rest::{Policy, now};
use crate::server::ApiServer;
use crate::store::{Key, Place};
use serde_json::{Value, json};
use std::sync::Arc;

impl ApiServer {
    /// Deletes what is in a namespace that is being deleted; removes the namespace when nothing is.
    pub(super) fn empty_namespace(&self, name: &str) {
        let store = &self.inner.options.store;
        let key = Key::new("", name);
        if !store.get("namespaces", &key).is_some_and(|namespace| namespace.meta.deleting) {
            return;
        }
        for collection in store.collections_of(name) {
            let Ok(listing) = store.list(&collection, name, None, None) else { continue };
            for object in listing.objects.iter().filter(|object| !object.meta.deleting) {
                let place = Place { collection: collection.clone(), key: object.key.clone() };
                self.delete_because(&place, Policy::Background, &object.meta.uid);
            }
        }
        let place = Place { collection: "namespaces".into(), key };
        let remaining = store.collections_of(name);
        if remaining.is_empty() {
            self.edit(&place, |namespace| {
                if let Some(spec) = namespace.get_mut("spec").and_then(Value::as_object_mut) {
                    spec.shift_remove("finalizers");
                }
            });
        } else {
            self.edit(&place, |namespace| tell_remaining(namespace, &remaining));
        }
    }

    /// Deletes the objects of a definition that is being deleted; lets it go when there is none.
    pub(super) fn empty_definition(&self, name: &str) {
        let store = &self.inner.options.store;
        let key = Key::new("", name);
        if !store.get(crd::COLLECTION, &key).is_some_and(|definition| definition.meta.deleting) {
            return;
        }
        if let Ok(listing) = store.list(name, "", None, None) {
            for object in listing.objects.iter().filter(|object| !object.meta.deleting) {
                let place = Place { collection: name.into(), key: object.key.clone() };
                self.delete_because(&place, Policy::Background, &object.meta.uid);
            }
        }
        if !store.any(name, "") {
            self.edit(&Place { collection: crd::COLLECTION.into(), key }, |definition| {
                let finalizers = definition.pointer_mut("/metadata/finalizers").and_then(Value::as_array_mut);
                if let Some(finalizers) = finalizers {
                    finalizers.retain(|finalizer| finalizer != crd::FINALIZER);
                }
            });
        }
    }
}

/// Says in a namespace's conditions what is still in it.
fn tell_remaining(namespace: &mut Value, remaining: &[Arc<str>]) {
    const KIND: &str = "NamespaceContentRemaining";
    let mut names: Vec<&str> = remaining.iter().map(|name| &**name).collect();
    names.sort_unstable();
    let message = format!("Some resources are remaining: {}", names.join(", "));
    let Some(status) = namespace.get_mut("status").and_then(Value::as_object_mut) else { return };
    let Some(conditions) = status.entry("conditions").or_insert_with(|| json!([])).as_array_mut() else { return };
    let is_ours = |condition: &Value| condition.get("type").and_then(Value::as_str) == Some(KIND);
    if conditions.iter().any(|c| is_ours(c) && c.get("message").and_then(Value::as_str) == Some(&message)) {
        return;
    }
    conditions.retain(|condition| !is_ours(condition));
    conditions.push(json!({"type": KIND, "status": "True", "reason": "SomeResourcesRemain", "message": message, "lastTransitionTime": now()}));
}
