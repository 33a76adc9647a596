//! What one decision sees: the caches, with a memory of what was read.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use capstan_api::{Object, ObjectKey};
use capstan_core::contract::Served;
use capstan_core::view::{Connection, LastTurn, NotNow, Place, Select, View};

use crate::dependencies::{Dependencies, Reads, Topic};
use crate::mirror::Mirror;
use crate::providers::Providers;
use crate::workload::Workloads;

/// The last finished turn of each object, in memory only.
#[derive(Default)]
pub struct LastTurns {
    turns: Mutex<HashMap<ObjectKey, LastTurn>>,
}

impl LastTurns {
    /// That of an object.
    pub fn get(&self, key: &ObjectKey) -> Option<LastTurn> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    /// Remembers one.
    pub fn set(&self, key: &ObjectKey, turn: LastTurn) {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone(), turn);
    }

    /// The object is gone.
    pub fn forget(&self, key: &ObjectKey) {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }

    /// Another module, or another version of it, serves this kind now.
    pub fn forget_kind(&self, group: &str, kind: &str) {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.retain(|key, _| key.group != group || key.kind != kind);
    }
}

/// What decisions read from.
pub struct Sources<'a> {
    /// What was read is noted here.
    pub dependencies: &'a Dependencies,
    /// The management cluster.
    pub management: &'a Mirror,
    /// The workload clusters.
    pub workloads: &'a Workloads,
    /// The provider modules.
    pub providers: &'a dyn Providers,
    /// The last turns.
    pub last_turns: &'a LastTurns,
    /// The holder of the Lease, as it is called.
    pub holder: &'a str,
}

/// The caches as the decision about one object reads them.
pub struct Snapshot<'a> {
    reader: Arc<ObjectKey>,
    sources: Sources<'a>,
    reads: RefCell<Reads>,
}

impl<'a> Snapshot<'a> {
    /// For the decision about `reader`.
    pub fn new(reader: Arc<ObjectKey>, sources: Sources<'a>) -> Self {
        Self { reader, sources, reads: RefCell::default() }
    }

    /// Ends the decision: what it read is what the object depends on from now on.
    pub fn settle(self) {
        self.sources.dependencies.settle(&self.reader, self.reads.into_inner());
    }

    fn note(&self, topic: Topic) {
        if self.reads.borrow_mut().insert(topic.clone()) {
            self.sources.dependencies.note(&self.reader, topic);
        }
    }

    fn mirror(&self, place: &Place) -> Result<Mirror, NotNow> {
        match place {
            Place::Management => Ok(self.sources.management.clone()),
            Place::Workload { namespace, cluster } => {
                self.note(Topic::Connection(namespace.clone(), cluster.clone()));
                self.sources.workloads.mirror(namespace, cluster).map_err(|reason| NotNow::Unreachable {
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
        self.sources.management.definition(group, kind).map(|definition| definition.contract)
    }

    fn connection(&self, namespace: &str, cluster: &str) -> Connection {
        self.note(Topic::Connection(namespace.to_owned(), cluster.to_owned()));
        self.sources.workloads.connection(namespace, cluster)
    }

    fn served(&self, group: &str, kind: &str) -> Option<Served> {
        self.note(Topic::Served(group.to_owned(), kind.to_owned()));
        self.sources.providers.served(group, kind)
    }

    fn last_turn(&self, key: &ObjectKey) -> Option<LastTurn> {
        self.sources.last_turns.get(key)
    }

    fn holder(&self) -> String {
        self.sources.holder.to_owned()
    }
}
