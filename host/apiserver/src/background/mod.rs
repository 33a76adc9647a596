//! What happens by itself: garbage collection, the end of namespaces and of definitions, the forgetting of Events.
//!
//! Work is found when something is committed and put into a queue; a task exists only while the queue has something.

mod accounts;
mod collect;
mod contents;
mod expiry;

use crate::catalog::{Resource, crd};
use crate::rest::{DeleteOptions, Policy};
use crate::server::ApiServer;
use crate::store::{Object, Place};
use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

/// Something to look at. Looking again is harmless, so one entry stands for many reasons.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Work {
    /// Does it still have an owner? Is it held by what the collector has to do first?
    Object(Place),
    /// A namespace that may lack its default account.
    Account(Box<str>),
    /// A namespace on its way out.
    Namespace(Box<str>),
    /// A definition on its way out.
    Definition(Box<str>),
}

/// The queue and whether somebody works on it.
#[derive(Default)]
pub(crate) struct Background {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// None until [`ApiServer::background`] is called.
    runtime: Option<(Handle, CancellationToken)>,
    queue: VecDeque<Work>,
    queued: BTreeSet<Work>,
    working: bool,
    expiring: bool,
}

impl ApiServer {
    pub(crate) fn start_background(&self, shutdown: CancellationToken) {
        {
            let mut state = self.inner.background.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.runtime = Some((Handle::current(), shutdown));
        }
        // What was left undone when the store was last used.
        self.find_work();
        self.wake();
        self.wake_expiry();
    }

    /// Everything that may need work, after a start.
    fn find_work(&self) {
        let store = &self.inner.options.store;
        for resource in self.catalog().all() {
            let Ok(listing) = store.list(&resource.collection, "", None, None) else { continue };
            for object in listing.objects {
                self.consider(resource, &object);
            }
        }
    }

    /// Queues what an object as it is now may need.
    fn consider(&self, resource: &Resource, object: &Object) {
        if &*resource.collection == "namespaces" {
            let name = object.key.name.clone();
            self.push(if object.meta.deleting { Work::Namespace(name) } else { Work::Account(name) });
        }
        if object.meta.deleting && &*resource.collection == crd::COLLECTION {
            self.push(Work::Definition(object.key.name.clone()));
        }
        let held = object.meta.deleting
            && object
                .meta
                .finalizers
                .iter()
                .any(|finalizer| matches!(&**finalizer, crate::rest::FOREGROUND | crate::rest::ORPHAN));
        if held || !object.meta.owners.is_empty() {
            self.push(Work::Object(Place { collection: resource.collection.clone(), key: object.key.clone() }));
        }
    }

    /// Told of every committed change: finds what is to be done because of it.
    pub(crate) fn notice(&self, resource: &Arc<Resource>, before: Option<&Object>, after: &Object, gone: bool) {
        if !gone {
            let worth_it = match before {
                None => true,
                Some(before) => {
                    before.meta.owners != after.meta.owners
                        || before.meta.deleting != after.meta.deleting
                        || (after.meta.deleting && before.meta.finalizers != after.meta.finalizers)
                }
            };
            if worth_it {
                self.consider(resource, after);
            }
            // A dependent that stops blocking, or that is no dependent any more, may let its owner go.
            if let Some(before) = before.filter(|before| before.meta.owners != after.meta.owners) {
                self.look_at_owners(before);
            }
        } else {
            let store = &self.inner.options.store;
            for place in store.dependents(&after.meta.uid) {
                self.push(Work::Object(place));
            }
            self.look_at_owners(after);
            if &*resource.collection == accounts::COLLECTION && &*after.key.name == accounts::DEFAULT {
                self.push(Work::Account(after.key.namespace.clone()));
            }
            if !after.key.namespace.is_empty() {
                let namespace = store.get("namespaces", &crate::store::Key::new("", &after.key.namespace));
                if namespace.is_some_and(|namespace| namespace.meta.deleting) {
                    self.push(Work::Namespace(after.key.namespace.clone()));
                }
            }
            if resource.custom {
                let definition = store.get(crd::COLLECTION, &crate::store::Key::new("", &resource.collection));
                if definition.is_some_and(|definition| definition.meta.deleting) {
                    self.push(Work::Definition((&*resource.collection).into()));
                }
            }
        }
        self.wake();
        if &*resource.collection == "events" && before.is_none() {
            self.wake_expiry();
        }
    }

    fn look_at_owners(&self, object: &Object) {
        for owner in &object.meta.owners {
            if let Some(place) = self.inner.options.store.find(&owner.uid) {
                self.push(Work::Object(place));
            }
        }
    }

    fn push(&self, work: Work) {
        let mut state = self.inner.background.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.runtime.is_some() && state.queued.insert(work.clone()) {
            state.queue.push_back(work);
        }
    }

    /// Starts the worker when there is work and nobody on it.
    fn wake(&self) {
        let mut state = self.inner.background.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.working || state.queue.is_empty() {
            return;
        }
        let Some((handle, shutdown)) = state.runtime.clone() else { return };
        if shutdown.is_cancelled() {
            return;
        }
        state.working = true;
        let server = self.clone();
        handle.spawn(async move { server.work(shutdown).await });
    }

    async fn work(self, shutdown: CancellationToken) {
        loop {
            let work = {
                let mut state = self.inner.background.state.lock().unwrap_or_else(PoisonError::into_inner);
                match state.queue.pop_front() {
                    Some(work) if !shutdown.is_cancelled() => {
                        state.queued.remove(&work);
                        work
                    }
                    _ => {
                        state.working = false;
                        return;
                    }
                }
            };
            match work {
                Work::Object(place) => self.collect(&place),
                Work::Account(namespace) => self.give_account(&namespace),
                Work::Namespace(name) => self.empty_namespace(&name),
                Work::Definition(name) => self.empty_definition(&name),
            }
            tokio::task::yield_now().await;
        }
    }

    /// Deletes something because of something else.
    fn delete_because(&self, place: &Place, policy: Policy, uid: &str) {
        let Some(resource) = self.catalog().of_collection(&place.collection).cloned() else { return };
        let options = DeleteOptions { policy: Some(policy), uid: Some(uid.to_owned()), ..DeleteOptions::default() };
        let deleted = crate::rest::delete_object(self, &resource, &place.key, &options, |_| Ok(()));
        if let Err(status) = deleted
            && !matches!(status.code, 404 | 409)
        {
            tracing::warn!(resource = %resource.qualified(), key = %place.key, error = %status, "cannot be deleted");
        }
    }
}
