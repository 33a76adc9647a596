//! From what the caches notice to the keys that are decided again.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock, PoisonError, RwLock, Weak};

use capstan_api::ObjectKey;
use capstan_core::view::Place;
use tokio::sync::watch;

use crate::dependencies::{Dependencies, Source, Topic, touched};
use crate::mirror::Notice;
use crate::modules::{EGRESS_POLICY, GROUP, is_for_modules};
use crate::queue::Queue;
use crate::workload::Workloads;

/// Wakes what must be decided again.
pub(crate) struct Wakeup {
    pub queue: Queue<Arc<ObjectKey>>,
    /// For what goes to whoever loads components, with the Lease or without.
    pub module_queue: Queue<Arc<ObjectKey>>,
    pub dependencies: Arc<Dependencies>,
    /// Kinds whose objects are decided.
    pub decided: RwLock<HashSet<(String, String)>>,
    pub workloads: OnceLock<Weak<Workloads>>,
    /// Counts up when a kind came, went or changed.
    pub kinds_changed: watch::Sender<u64>,
    /// Counts up with every change of the management cluster's caches and every decision.
    pub changes: watch::Sender<u64>,
}

impl Wakeup {
    pub fn new(queue: Queue<Arc<ObjectKey>>, dependencies: Arc<Dependencies>) -> Self {
        Self {
            queue,
            module_queue: Queue::new(),
            dependencies,
            decided: RwLock::default(),
            workloads: OnceLock::new(),
            kinds_changed: watch::Sender::new(0),
            changes: watch::Sender::new(0),
        }
    }

    /// Wakes one.
    pub fn add(&self, key: Arc<ObjectKey>) {
        if is_for_modules(&key) { self.module_queue.add(key) } else { self.queue.add(key) }
    }

    pub fn is_decided(&self, group: &str, kind: &str) -> bool {
        let decided = self.decided.read().unwrap_or_else(PoisonError::into_inner);
        decided.contains(&(group.to_owned(), kind.to_owned()))
    }

    fn workloads(&self) -> Option<Arc<Workloads>> {
        self.workloads.get().and_then(Weak::upgrade)
    }

    /// Wakes the readers of these topics.
    pub fn topics<'a>(&self, topics: impl IntoIterator<Item = &'a Topic>) {
        for reader in self.dependencies.readers(topics) {
            self.add(reader);
        }
    }

    /// The caches noticed something.
    pub fn notice(&self, notice: Notice) {
        match notice {
            Notice::Changed(source, change) => {
                let (old, new) = (change.old.as_deref(), change.new.as_deref());
                if source.place == Place::Management
                    && let Some(object) = new.or(old)
                {
                    if self.is_decided(&source.group, &source.kind) {
                        self.add(Arc::new(object.key()));
                    }
                    self.connections(&source, object.namespace(), object.name(), new.is_none());
                }
                self.topics(&touched(&source, old, new));
                if source.place == Place::Management {
                    self.changes.send_modify(|n| *n += 1);
                }
            }
            Notice::Filled(source) => {
                if is(&source, "apiextensions.k8s.io", "CustomResourceDefinition") {
                    self.kinds_changed.send_modify(|n| *n += 1);
                    for reader in self.dependencies.everybody() {
                        self.add(reader);
                    }
                }
                if (is(&source, "", "Secret") || is(&source, GROUP, EGRESS_POLICY))
                    && let Some(workloads) = self.workloads()
                {
                    workloads.poke_all();
                }
                self.topics([&Topic::Filled(source)]);
            }
            Notice::Broken(Place::Workload { namespace, cluster }) => {
                if let Some(workloads) = self.workloads() {
                    workloads.poke(&namespace, &cluster);
                }
            }
            Notice::Broken(Place::Management) => {}
            Notice::Kind { group, kind } => {
                self.kinds_changed.send_modify(|n| *n += 1);
                for reader in self.dependencies.readers_of_kind(&group, &kind) {
                    self.add(reader);
                }
            }
        }
    }

    /// Connections follow their kubeconfig and the policies, and end with their Cluster.
    fn connections(&self, source: &Source, namespace: &str, name: &str, gone: bool) {
        if is(source, "", "Secret") {
            if let Some(cluster) = name.strip_suffix("-kubeconfig")
                && let Some(workloads) = self.workloads()
            {
                workloads.poke(namespace, cluster);
            }
        } else if is(source, GROUP, EGRESS_POLICY) {
            if let Some(workloads) = self.workloads() {
                workloads.poke_all();
            }
        } else if gone
            && is(source, "cluster.x-k8s.io", "Cluster")
            && let Some(workloads) = self.workloads()
        {
            workloads.forget(namespace, name);
        }
    }
}

fn is(source: &Source, group: &str, kind: &str) -> bool {
    source.place == Place::Management && source.group == group && source.kind == kind
}
