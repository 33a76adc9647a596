//! Where objects live: in memory, with every change written through to a file when there is one.
//!
//! A change is decided under one lock, so revisions have one order. With a file behind it, a change is answered, shown
//! to readers and told to watchers only when it is in the file: nobody acts on a state that a crash could take back.

mod database;
mod file;
mod history;
mod object;
mod renew;
mod seal;

pub use database::{Database, StoreError};
pub use history::HistoryLimit;
pub(crate) use history::{Event, EventKind};
pub use object::Key;
pub(crate) use object::{Draft, Form, Object, Owner};
pub use seal::Keys;

use history::History;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How often histories are looked through for what is too old.
const SWEEP: Duration = Duration::from_secs(60);

/// The objects of one API server. Cheap to clone: all clones are one store.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Store({})", self.inner.name)
    }
}

struct Inner {
    name: String,
    file: Option<Arc<file::File>>,
    limit: HistoryLimit,
    state: RwLock<State>,
    /// Everything up to this revision is where it must be to survive.
    durable: AtomicU64,
    durable_signal: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    revision: u64,
    /// The revision the file was read at: history begins here.
    base: u64,
    collections: HashMap<Arc<str>, Collection>,
    /// Where the object of a uid is.
    uids: HashMap<Box<str>, Place>,
    /// What names a uid as its owner.
    dependents: HashMap<Box<str>, BTreeSet<Place>>,
    swept: Option<Instant>,
}

/// An object's collection and key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Place {
    pub collection: Arc<str>,
    pub key: Key,
}

#[derive(Default)]
struct Collection {
    objects: BTreeMap<Key, Arc<Object>>,
    history: History,
    signal: Option<watch::Sender<u64>>,
    /// The revision of the last change.
    changed: u64,
}

/// A change to one object.
pub(crate) enum Change {
    /// The object must not be there; its namespace, when it has one, must be there and not on its way out.
    Create(Draft),
    /// The object must be there with this revision.
    Replace { expected: u64, draft: Draft },
    /// The object must be there with this revision.
    Delete { expected: u64 },
}

/// Why a change was not made.
#[derive(Debug)]
pub(crate) enum Refusal {
    Exists,
    /// It was changed or deleted meanwhile.
    Changed,
    NamespaceGone,
    NamespaceTerminating,
    Failed(StoreError),
}

/// What a list is taken from.
pub(crate) struct Listing {
    pub objects: Vec<Arc<Object>>,
    /// The revision the list shows.
    pub revision: u64,
    /// A list is complete up to here only when this is durable.
    pub settled: u64,
}

/// Why a list or watch cannot start where it was asked to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutOfRange {
    TooOld { oldest: u64 },
    TooNew { current: u64 },
}

/// The collection that namespaces are in.
const NAMESPACES: &str = "namespaces";

impl Store {
    /// A store that ends with the process. Costs a few kilobytes, no task and no thread.
    pub fn memory() -> Store {
        Store::memory_with(HistoryLimit { events: 1024, bytes: 256 << 10, age: Duration::from_secs(300) })
    }

    /// A store that ends with the process and keeps this much history for each collection.
    pub fn memory_with(limit: HistoryLimit) -> Store {
        Store::new(String::from("memory"), None, limit, State::default())
    }

    fn new(name: String, file: Option<Arc<file::File>>, limit: HistoryLimit, state: State) -> Store {
        let revision = state.revision;
        Store {
            inner: Arc::new(Inner {
                name,
                file,
                limit,
                state: RwLock::new(state),
                durable: AtomicU64::new(revision),
                durable_signal: watch::channel(revision).0,
            }),
        }
    }

    /// A store from what the file has.
    fn loaded(name: &str, file: Arc<file::File>) -> Result<Store, StoreError> {
        let loaded = file.load(name)?;
        let mut state = State { revision: loaded.revision, ..State::default() };
        for (collection, json) in loaded.rows {
            let object = Object::read(&json).map_err(|error| StoreError::Damaged {
                path: file.path().to_owned(),
                what: format!("an object of {collection} in store {name}: {error}"),
            })?;
            state.revision = state.revision.max(object.revision);
            let collection: Arc<str> = collection.into();
            let place = Place { collection: collection.clone(), key: object.key.clone() };
            state.index(&place, None, Some(&object));
            let objects = &mut state.collections.entry(collection).or_default().objects;
            objects.insert(place.key, Arc::new(object));
        }
        let revision = state.revision;
        state.base = revision;
        for collection in state.collections.values_mut() {
            collection.history = History::starting_at(revision);
            collection.changed = revision;
        }
        let limit = HistoryLimit { events: 10_000, bytes: 8 << 20, age: Duration::from_secs(180) };
        Ok(Store::new(name.to_owned(), Some(file), limit, state))
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.inner.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.inner.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The revision of the last change.
    pub fn revision(&self) -> u64 {
        self.read().revision
    }

    /// How many objects there are, of all kinds.
    pub fn len(&self) -> usize {
        self.read().collections.values().map(|collection| collection.objects.len()).sum()
    }

    /// Whether there is no object at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the file can still be written; always when there is none.
    pub fn check(&self) -> Result<(), StoreError> {
        self.inner.file.as_ref().and_then(|file| file.failure()).map_or(Ok(()), Err)
    }

    /// Everything up to this revision is safe.
    pub(crate) fn durable(&self) -> u64 {
        self.inner.durable.load(Ordering::Acquire)
    }

    /// Waits until everything up to `revision` is in the file.
    pub(crate) async fn settled(&self, revision: u64) -> Result<(), StoreError> {
        let Some(file) = &self.inner.file else { return Ok(()) };
        if self.durable() >= revision {
            return Ok(());
        }
        let mut signal = self.inner.durable_signal.subscribe();
        loop {
            if self.durable() >= revision {
                return Ok(());
            }
            if let Some(failure) = file.failure() {
                return Err(failure);
            }
            if signal.changed().await.is_err() {
                return Err(StoreError::Closed { path: file.path().to_owned() });
            }
        }
    }

    /// The object, as the last change left it. The caller waits for its revision to settle before showing it.
    pub(crate) fn get(&self, collection: &str, key: &Key) -> Option<Arc<Object>> {
        self.read().collections.get(collection)?.objects.get(key).cloned()
    }

    /// Whether anything is in a namespace (or, with an empty one, in the collection).
    pub(crate) fn any(&self, collection: &str, namespace: &str) -> bool {
        let state = self.read();
        let Some(collection) = state.collections.get(collection) else { return false };
        if namespace.is_empty() {
            return !collection.objects.is_empty();
        }
        collection.objects.range(Key::new(namespace, "")..).next().is_some_and(|(key, _)| &*key.namespace == namespace)
    }

    /// The collections that have an object in a namespace.
    pub(crate) fn collections_of(&self, namespace: &str) -> Vec<Arc<str>> {
        let state = self.read();
        let from = Key::new(namespace, "");
        let has = |c: &Collection| c.objects.range(&from..).next().is_some_and(|(key, _)| &*key.namespace == namespace);
        state.collections.iter().filter(|(_, collection)| has(collection)).map(|(name, _)| name.clone()).collect()
    }

    /// The objects of a collection in a namespace (all of them when it is empty), in order, from `start` on, as they are
    /// now or as they were at an earlier revision.
    pub(crate) fn list(
        &self,
        name: &str,
        namespace: &str,
        start: Option<&Key>,
        at: Option<u64>,
    ) -> Result<Listing, OutOfRange> {
        let state = self.read();
        let revision = at.unwrap_or(state.revision);
        if revision > state.revision {
            return Err(OutOfRange::TooNew { current: state.revision });
        }
        let empty = state.fresh();
        let collection = state.collections.get(name).unwrap_or(&empty);
        let from = start.cloned().unwrap_or_else(|| Key::new(namespace, ""));
        let inside = |key: &Key| namespace.is_empty() || &*key.namespace == namespace;
        let current = collection.objects.range(&from..).take_while(|(key, _)| inside(key));
        let objects = if revision >= collection.changed {
            current.map(|(_, object)| object.clone()).collect()
        } else {
            let undo = collection.history.undo(revision);
            let undo = undo.ok_or(OutOfRange::TooOld { oldest: collection.history.forgotten })?;
            let mut objects: BTreeMap<Key, Arc<Object>> = current.map(|(k, o)| (k.clone(), o.clone())).collect();
            for (key, before) in undo.into_iter().filter(|(key, _)| inside(key) && *key >= from) {
                match before {
                    Some(object) => drop(objects.insert(key, object)),
                    None => drop(objects.remove(&key)),
                }
            }
            objects.into_values().collect()
        };
        Ok(Listing { objects, revision, settled: collection.changed.min(state.revision) })
    }

    /// A signal that tells the durable revision of a collection's changes.
    pub(crate) fn subscribe(&self, collection: &str) -> watch::Receiver<u64> {
        let mut state = self.write();
        let durable = self.durable();
        if !state.collections.contains_key(collection) {
            let fresh = state.fresh();
            state.collections.insert(collection.into(), fresh);
        }
        match state.collections.get_mut(collection) {
            Some(collection) => collection.signal.get_or_insert_with(|| watch::channel(durable).0).subscribe(),
            None => watch::channel(durable).1,
        }
    }

    /// The durable events of a collection after `revision`, at most `limit`; and the durable revision they were read at.
    pub(crate) fn events(
        &self,
        collection: &str,
        revision: u64,
        limit: usize,
    ) -> Result<(Vec<Event>, u64), OutOfRange> {
        let state = self.read();
        let durable = self.durable();
        if revision > state.revision {
            return Err(OutOfRange::TooNew { current: state.revision });
        }
        let fresh = state.fresh();
        let collection = state.collections.get(collection).unwrap_or(&fresh);
        let events = collection.history.after(revision, durable, limit);
        Ok((events.ok_or(OutOfRange::TooOld { oldest: collection.history.forgotten })?, durable))
    }

    /// Where the object with this uid is.
    pub(crate) fn find(&self, uid: &str) -> Option<Place> {
        self.read().uids.get(uid).cloned()
    }

    /// What names this uid as its owner.
    pub(crate) fn dependents(&self, uid: &str) -> Vec<Place> {
        self.read().dependents.get(uid).map(|places| places.iter().cloned().collect()).unwrap_or_default()
    }

    /// Makes one change. The caller waits for its revision to settle before answering.
    pub(crate) fn commit(&self, collection: &Arc<str>, key: &Key, change: Change) -> Result<Arc<Object>, Refusal> {
        let mut state = self.write();
        if let Some(failure) = self.inner.file.as_ref().and_then(|file| file.failure()) {
            return Err(Refusal::Failed(failure));
        }
        let revision = state.revision + 1;
        let current = state.collections.get(collection).and_then(|c| c.objects.get(key)).cloned();
        let (kind, object) = match change {
            Change::Create(draft) => {
                if current.is_some() {
                    return Err(Refusal::Exists);
                }
                if !key.namespace.is_empty() {
                    let namespaces = state.collections.get(NAMESPACES);
                    match namespaces.and_then(|c| c.objects.get(&Key::new("", &key.namespace))) {
                        None => return Err(Refusal::NamespaceGone),
                        Some(namespace) if namespace.meta.deleting => return Err(Refusal::NamespaceTerminating),
                        Some(_) => {}
                    }
                }
                (EventKind::Added, Arc::new(draft.seal(revision)))
            }
            Change::Replace { expected, draft } => {
                if current.as_ref().is_none_or(|object| object.revision != expected) {
                    return Err(Refusal::Changed);
                }
                (EventKind::Modified, Arc::new(draft.seal(revision)))
            }
            Change::Delete { expected } => match &current {
                Some(object) if object.revision == expected => {
                    (EventKind::Deleted, Arc::new(object.with_revision(revision)))
                }
                _ => return Err(Refusal::Changed),
            },
        };
        if let Some(file) = &self.inner.file {
            // Queued under the lock, so the file's order is the order of revisions.
            file.write(file::Write {
                store: self.inner.clone(),
                collection: collection.clone(),
                row: file::row(&self.inner.name, collection, &key.namespace, &key.name),
                json: (kind != EventKind::Deleted).then(|| object.bytes().clone()),
                revision,
            })
            .map_err(Refusal::Failed)?;
        }
        state.revision = revision;
        let place = Place { collection: collection.clone(), key: key.clone() };
        state.index(&place, current.as_deref(), (kind != EventKind::Deleted).then_some(&*object));
        let limit = self.inner.limit;
        let now = Instant::now();
        if state.swept.is_none_or(|swept| now.saturating_duration_since(swept) > SWEEP) {
            state.swept = Some(now);
            state.collections.values_mut().for_each(|collection| collection.history.trim(now, &limit));
        }
        let fresh = state.fresh();
        let entry = state.collections.entry(collection.clone()).or_insert(fresh);
        match kind {
            EventKind::Deleted => drop(entry.objects.remove(key)),
            _ => drop(entry.objects.insert(key.clone(), object.clone())),
        }
        entry.changed = revision;
        entry.history.push(Event::new(kind, key.clone(), object.clone(), current), &limit);
        if self.inner.file.is_none() {
            self.inner.durable.store(revision, Ordering::Release);
            if let Some(signal) = &entry.signal {
                signal.send_replace(revision);
            }
        }
        Ok(object)
    }
}

impl Inner {
    fn name(&self) -> &str {
        &self.name
    }

    /// Told by the file's thread: everything up to `revision` is in the file, or never will be.
    fn written(&self, revision: u64, collections: &[Arc<str>], ok: bool) {
        if ok {
            self.durable.fetch_max(revision, Ordering::AcqRel);
            let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
            for collection in collections {
                if let Some(signal) =
                    state.collections.get(collection).and_then(|collection| collection.signal.as_ref())
                {
                    signal.send_replace(revision);
                }
            }
        }
        self.durable_signal.send_replace(revision);
    }
}

impl State {
    /// A collection in which nothing was changed since the file was read.
    fn fresh(&self) -> Collection {
        Collection { history: History::starting_at(self.base), changed: self.base, ..Collection::default() }
    }

    /// Keeps the indexes of uids and owners.
    fn index(&mut self, place: &Place, before: Option<&Object>, after: Option<&Object>) {
        for owner in before.map(|object| &*object.meta.owners).unwrap_or_default() {
            if let Some(places) = self.dependents.get_mut(&owner.uid) {
                places.remove(place);
                if places.is_empty() {
                    self.dependents.remove(&owner.uid);
                }
            }
        }
        for owner in after.map(|object| &*object.meta.owners).unwrap_or_default() {
            self.dependents.entry(owner.uid.clone()).or_default().insert(place.clone());
        }
        match (before, after) {
            (before, Some(object)) => {
                if before.is_none_or(|before| before.meta.uid != object.meta.uid) {
                    self.uids.insert(object.meta.uid.clone(), place.clone());
                }
            }
            (Some(object), None) => drop(self.uids.remove(&object.meta.uid)),
            (None, None) => {}
        }
    }
}

#[cfg(test)]
mod tests;
