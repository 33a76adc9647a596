//! What one decision sees: the caches, with a memory of what was read.

use std::cell::RefCell;
use std::sync::Arc;

use capstan_api::{Object, ObjectKey};
use capstan_core::contract::Served;
use capstan_core::view::{Connection, NotNow, Place, Select, View};

use crate::dependencies::{Dependencies, Reads, Topic};
use crate::mirror::Mirror;
use crate::providers::Providers;
use crate::workload::Workloads;

/// The caches as the decision about one object reads them.
pub struct Snapshot<'a> {
    reader: Arc<ObjectKey>,
    dependencies: &'a Dependencies,
    management: &'a Mirror,
    workloads: &'a Workloads,
    providers: &'a dyn Providers,
    reads: RefCell<Reads>,
}

impl<'a> Snapshot<'a> {
    /// For the decision about `reader`.
    pub fn new(
        reader: Arc<ObjectKey>,
        dependencies: &'a Dependencies,
        management: &'a Mirror,
        workloads: &'a Workloads,
        providers: &'a dyn Providers,
    ) -> Self {
        Self { reader, dependencies, management, workloads, providers, reads: RefCell::default() }
    }

    /// Ends the decision: what it read is what the object depends on from now on.
    pub fn settle(self) {
        self.dependencies.settle(&self.reader, self.reads.into_inner());
    }

    fn note(&self, topic: Topic) {
        if self.reads.borrow_mut().insert(topic.clone()) {
            self.dependencies.note(&self.reader, topic);
        }
    }

    fn mirror(&self, place: &Place) -> Result<Mirror, NotNow> {
        match place {
            Place::Management => Ok(self.management.clone()),
            Place::Workload { namespace, cluster } => {
                self.note(Topic::Connection(namespace.clone(), cluster.clone()));
                self.workloads.mirror(namespace, cluster).map_err(|reason| NotNow::Unreachable {
                    namespace: namespace.clone(),
                    cluster: cluster.clone(),
                    reason,
                })
            }
        }
    }

    /// Notes what brings the decision back when the answer is not known.
    fn read<T>(
        &self,
        mirror: &Mirror,
        (group, kind, namespace): (&str, &str, &str),
        topic: impl FnOnce(Arc<crate::dependencies::Source>) -> Topic,
        read: impl FnOnce() -> Result<T, NotNow>,
    ) -> Result<T, NotNow> {
        self.note(Topic::Kind(group.to_owned(), kind.to_owned()));
        let source = mirror.source(group, kind, namespace);
        self.note(Topic::Filled(source.clone()));
        self.note(topic(source));
        read()
    }
}

impl View for Snapshot<'_> {
    fn get(&self, place: &Place, key: &ObjectKey) -> Result<Option<Arc<Object>>, NotNow> {
        let mirror = self.mirror(place)?;
        self.read(
            &mirror,
            (&key.group, &key.kind, &key.namespace),
            |source| Topic::Object(source, key.namespace.clone(), key.name.clone()),
            || mirror.get(key),
        )
    }

    fn list(
        &self,
        place: &Place,
        group: &str,
        kind: &str,
        namespace: &str,
        select: &Select,
    ) -> Result<Vec<Arc<Object>>, NotNow> {
        let mirror = self.mirror(place)?;
        self.read(
            &mirror,
            (group, kind, namespace),
            |source| Topic::List(source, namespace.to_owned(), select.clone()),
            || mirror.list(group, kind, namespace, select),
        )
    }

    fn contract(&self, group: &str, kind: &str) -> Result<Option<String>, NotNow> {
        self.note(Topic::Kind(group.to_owned(), kind.to_owned()));
        self.management.definition(group, kind).map(|definition| definition.contract)
    }

    fn connection(&self, namespace: &str, cluster: &str) -> Connection {
        self.note(Topic::Connection(namespace.to_owned(), cluster.to_owned()));
        self.workloads.connection(namespace, cluster)
    }

    fn served(&self, group: &str, kind: &str) -> Option<Served> {
        self.note(Topic::Served(group.to_owned(), kind.to_owned()));
        self.providers.served(group, kind)
    }
}
