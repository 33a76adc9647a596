//! Garbage collection by owner references.

use super::Work;
use crate::rest::{self, FOREGROUND, ORPHAN, Policy, is_finished};
use crate::schema;
use crate::server::ApiServer;
use crate::store::{Change, Draft, Object, Owner, Place};
use serde_json::Value;

/// How often a change is tried again because somebody else was faster.
const ATTEMPTS: usize = 16;

/// What is known of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    There,
    /// It is being deleted, and waits for those that it owns.
    WaitsForDependents,
    Gone,
}

impl ApiServer {
    /// Looks at one object: deletes it when no owner is left, does what its own finalizers of the collector ask for.
    pub(super) fn collect(&self, place: &Place) {
        let store = &self.inner.options.store;
        let Some(object) = store.get(&place.collection, &place.key) else { return };
        if object.meta.deleting {
            let has = |finalizer: &str| object.meta.finalizers.iter().any(|own| &**own == finalizer);
            if has(ORPHAN) {
                self.orphan(place, &object);
            } else if has(FOREGROUND) {
                self.delete_dependents(place, &object);
            }
            return;
        }
        if object.meta.owners.is_empty() {
            return;
        }
        let states: Vec<(&Owner, State)> =
            object.meta.owners.iter().map(|owner| (owner, self.state_of(owner, &object))).collect();
        let there = states.iter().any(|(_, state)| *state == State::There);
        let waiting = states.iter().any(|(_, state)| *state == State::WaitsForDependents);
        let gone: Vec<&str> =
            states.iter().filter(|(_, state)| *state != State::There).map(|(owner, _)| &*owner.uid).collect();
        if there {
            // Owned by somebody still: only the references to those that are no more go.
            if !gone.is_empty() {
                self.disown(place, &gone);
            }
        } else if waiting {
            let blocks = object.meta.owners.iter().any(|owner| owner.blocks_deletion);
            let own = !store.dependents(&object.meta.uid).is_empty();
            let policy = if blocks && own { Policy::Foreground } else { Policy::Background };
            self.delete_because(place, policy, &object.meta.uid);
        } else {
            self.delete_because(place, Policy::Background, &object.meta.uid);
        }
    }

    /// Whether an owner is there: the same uid under the same kind and name, in the same namespace or in none.
    fn state_of(&self, owner: &Owner, object: &Object) -> State {
        let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
        let catalog = self.catalog();
        // Of a kind that is not served nothing can be known, so nothing is deleted.
        let Some(resource) = catalog.kind(group, &owner.kind) else { return State::There };
        let store = &self.inner.options.store;
        let namespace = if resource.namespaced { &*object.key.namespace } else { "" };
        let found = store.get(&resource.collection, &crate::store::Key::new(namespace, &owner.name));
        match found.filter(|found| found.meta.uid == owner.uid) {
            None => State::Gone,
            Some(found)
                if found.meta.deleting && found.meta.finalizers.iter().any(|finalizer| &**finalizer == FOREGROUND) =>
            {
                State::WaitsForDependents
            }
            Some(_) => State::There,
        }
    }

    /// An owner that goes after its dependents: they are told to go; when none is left that blocks it, it goes.
    fn delete_dependents(&self, place: &Place, owner: &Object) {
        let store = &self.inner.options.store;
        let mut blocked = false;
        for dependent in store.dependents(&owner.meta.uid) {
            let Some(object) = store.get(&dependent.collection, &dependent.key) else { continue };
            blocked |= object.meta.owners.iter().any(|own| own.uid == owner.meta.uid && own.blocks_deletion);
            if !object.meta.deleting {
                self.push(Work::Object(dependent));
            }
        }
        if !blocked {
            self.remove_finalizer(place, FOREGROUND);
        }
    }

    /// An owner whose dependents stay: they forget it, then it goes.
    fn orphan(&self, place: &Place, owner: &Object) {
        let store = &self.inner.options.store;
        for dependent in store.dependents(&owner.meta.uid) {
            self.disown(&dependent, &[&owner.meta.uid]);
        }
        if store.dependents(&owner.meta.uid).is_empty() {
            self.remove_finalizer(place, ORPHAN);
        } else {
            self.push(Work::Object(place.clone()));
        }
    }

    fn disown(&self, place: &Place, uids: &[&str]) {
        self.edit(place, |object| {
            retain(object, "ownerReferences", |owner| {
                owner.get("uid").and_then(Value::as_str).is_none_or(|uid| !uids.contains(&uid))
            })
        });
    }

    fn remove_finalizer(&self, place: &Place, finalizer: &str) {
        self.edit(place, |object| retain(object, "finalizers", |own| own != finalizer));
    }

    /// Changes an object on the server's own account.
    pub(super) fn edit(&self, place: &Place, change: impl Fn(&mut Value)) {
        let store = &self.inner.options.store;
        let Some(resource) = self.catalog().of_collection(&place.collection).cloned() else { return };
        for _ in 0..ATTEMPTS {
            let Some(current) = store.get(&place.collection, &place.key) else { return };
            let old = current.value();
            let mut new = old.clone();
            change(&mut new);
            if old == new {
                return;
            }
            if let Some(version) = resource.versions.iter().find(|version| version.api_version == resource.stored) {
                let part = (old.get("status") != new.get("status")).then_some("status");
                let manager = "kube-controller-manager";
                schema::track_update(version.schema(), Some(&old), &mut new, manager, part, &rest::now());
            }
            let gone = is_finished(&new, &resource.qualified());
            let change = if gone {
                Change::Delete { expected: current.revision }
            } else {
                Change::Replace { expected: current.revision, draft: Draft::new(&new) }
            };
            if let Ok(committed) = store.commit(&place.collection, &place.key, change) {
                self.committed(&resource, Some(&current), &committed, gone);
                return;
            }
        }
        // Somebody changes it all the time: later.
        self.push(Work::Object(place.clone()));
    }
}

/// Keeps some items of a list in metadata; an empty list goes.
fn retain(object: &mut Value, list: &str, keep: impl Fn(&Value) -> bool) {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    let Some(items) = metadata.get_mut(list).and_then(Value::as_array_mut) else { return };
    items.retain(|item| keep(item));
    if items.is_empty() {
        metadata.shift_remove(list);
    }
}
