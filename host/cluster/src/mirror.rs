//! The caches of one API server.
//!
//! A kind is watched from the first time that a decision reads it. Every change, by a watch or by our own writes, goes
//! to one listener, which learns of it after the cache has it. Secrets are cached like everything else: all of them,
//! so that nothing needs a live read.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use capstan_api::{Object, ObjectKey};
use capstan_core::view::{NotNow, Place, Select};
use futures::StreamExt;
use tokio::task::AbortHandle;

use crate::dependencies::Source;
use crate::kinds::{Definition, Resource, builtin, definition};
use crate::store::{Change, Store, version_of};
use crate::wire::{Told, Wire, WireError};

/// First and longest pause between attempts to read an API server.
const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));
/// A watch in which nothing moves for this long (not even a bookmark) is taken for broken.
const SILENCE: Duration = Duration::from_secs(330);

/// Something that the caches noticed.
#[derive(Clone, Debug)]
pub enum Notice {
    /// An object came, changed or went.
    Changed(Arc<Source>, Change),
    /// A cache was filled for the first time.
    Filled(Arc<Source>),
    /// A watch broke off: the API server may be unreachable.
    Broken(Place),
    /// A kind came, went or is served in another way.
    Kind {
        /// API group.
        group: String,
        /// Kind.
        kind: String,
    },
}

/// Who is told.
pub type Listener = Arc<dyn Fn(Notice) + Send + Sync>;

/// The caches of one API server. Cheap to clone; watches end when the last clone is dropped.
#[derive(Clone)]
pub struct Mirror {
    shared: Arc<Shared>,
}

struct Shared {
    place: Place,
    wire: Wire,
    listener: Listener,
    kinds: RwLock<Kinds>,
    caches: Mutex<HashMap<(String, String, String), Arc<Cache>>>,
}

#[derive(Default)]
struct Kinds {
    /// Whether CRDs are known (workload clusters: never).
    filled: bool,
    definitions: HashMap<(String, String), Definition>,
}

struct Cache {
    source: Arc<Source>,
    store: Mutex<Store>,
    task: Mutex<Option<AbortHandle>>,
}

impl Cache {
    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        if let Some(task) = self.task.lock().unwrap_or_else(PoisonError::into_inner).take() {
            task.abort();
        }
    }
}

const CRD: (&str, &str) = ("apiextensions.k8s.io", "CustomResourceDefinition");

impl Mirror {
    /// Caches of the API server behind `wire`. Nothing is read yet, except CRDs where it is the management cluster.
    pub fn new(place: Place, wire: Wire, listener: Listener) -> Self {
        let management = place == Place::Management;
        let mirror = Self {
            shared: Arc::new(Shared { place, wire, listener, kinds: RwLock::default(), caches: Mutex::default() }),
        };
        if management {
            let _ = mirror.cache(CRD.0, CRD.1, "");
        }
        mirror
    }

    /// The API server itself.
    pub fn wire(&self) -> &Wire {
        &self.shared.wire
    }

    fn caches(&self) -> MutexGuard<'_, HashMap<(String, String, String), Arc<Cache>>> {
        self.shared.caches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How a kind is addressed.
    ///
    /// # Errors
    /// When it is not served, or not known yet.
    pub fn definition(&self, group: &str, kind: &str) -> Result<Definition, NotNow> {
        if let Some(resource) = builtin(group, kind) {
            return Ok(Definition { resource, contract: None });
        }
        let kinds = self.shared.kinds.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = kinds.definitions.get(&(group.to_owned(), kind.to_owned())) {
            return Ok(found.clone());
        }
        if self.shared.place == Place::Management && !kinds.filled {
            return Err(NotNow::CacheCold { kind: CRD.1.to_owned() });
        }
        Err(NotNow::NoSuchKind { group: group.to_owned(), kind: kind.to_owned() })
    }

    /// Which cache answers for objects of this kind in this namespace.
    pub fn source(&self, group: &str, kind: &str, namespace: &str) -> Arc<Source> {
        let scope = match self.shared.place {
            Place::Management => "",
            Place::Workload { .. } => namespace,
        };
        if let Some(cache) = self.caches().get(&(group.to_owned(), kind.to_owned(), scope.to_owned())) {
            return cache.source.clone();
        }
        Arc::new(Source {
            place: self.shared.place.clone(),
            group: group.to_owned(),
            kind: kind.to_owned(),
            scope: scope.to_owned(),
        })
    }

    /// The cache of a kind; its watch begins when there is none yet.
    fn cache(&self, group: &str, kind: &str, namespace: &str) -> Result<Arc<Cache>, NotNow> {
        let definition = self.definition(group, kind)?;
        let source = self.source(group, kind, namespace);
        let mut caches = self.caches();
        let entry = caches.entry((group.to_owned(), kind.to_owned(), source.scope.clone())).or_insert_with(|| {
            let cache = Arc::new(Cache { source, store: Mutex::default(), task: Mutex::default() });
            self.start(&cache, definition.resource);
            cache
        });
        Ok(entry.clone())
    }

    fn start(&self, cache: &Arc<Cache>, resource: Resource) {
        let task = tokio::spawn(follow(Arc::downgrade(&self.shared), Arc::downgrade(cache), resource)).abort_handle();
        let before = cache.task.lock().unwrap_or_else(PoisonError::into_inner).replace(task);
        if let Some(before) = before {
            before.abort();
        }
    }

    /// One object; `None` when it is not there.
    ///
    /// # Errors
    /// While the answer is not known.
    pub fn get(&self, key: &ObjectKey) -> Result<Option<Arc<Object>>, NotNow> {
        let cache = self.cache(&key.group, &key.kind, &key.namespace)?;
        let store = cache.store();
        if !store.is_filled() {
            return Err(NotNow::CacheCold { kind: key.kind.clone() });
        }
        Ok(store.get(&key.namespace, &key.name))
    }

    /// The selected objects, sorted by namespace and name.
    ///
    /// # Errors
    /// While the answer is not known.
    pub fn list(&self, group: &str, kind: &str, namespace: &str, select: &Select) -> Result<Vec<Arc<Object>>, NotNow> {
        let cache = self.cache(group, kind, namespace)?;
        let mut store = cache.store();
        if !store.is_filled() {
            return Err(NotNow::CacheCold { kind: kind.to_owned() });
        }
        Ok(store.list(namespace, select))
    }

    /// Begins to watch a kind, as soon as it is served.
    pub fn want(&self, group: &str, kind: &str) {
        let _ = self.cache(group, kind, "");
    }

    /// An object as the server returned it to our own write.
    pub fn wrote(&self, object: &Object) {
        // What has lost its last finalizer while being deleted is gone, although the answer still shows it.
        if object.is_deleting() && object.finalizers().is_empty() {
            return self.deleted(&object.key(), object.uid());
        }
        let key = object.key();
        let Some(cache) = self.known_cache(&key) else { return };
        let change = cache.store().upsert(object.clone());
        if let Some(change) = change {
            self.shared.changed(&cache.source, change);
        }
    }

    /// This incarnation is gone by our own deletion.
    pub fn deleted(&self, key: &ObjectKey, uid: &str) {
        let Some(cache) = self.known_cache(key) else { return };
        let change = cache.store().remove(&key.namespace, &key.name, uid, true);
        if let Some(change) = change {
            self.shared.changed(&cache.source, change);
        }
    }

    fn known_cache(&self, key: &ObjectKey) -> Option<Arc<Cache>> {
        let scope = match self.shared.place {
            Place::Management => String::new(),
            Place::Workload { .. } => key.namespace.clone(),
        };
        self.caches().get(&(key.group.clone(), key.kind.clone(), scope)).cloned()
    }

    /// Reads one object from the server into its cache: after a conflict, so that the next decision is not taken on
    /// what was just shown to be old.
    ///
    /// # Errors
    /// When the server cannot be read.
    pub async fn refresh(&self, resource: &Resource, key: &ObjectKey) -> Result<Option<Object>, WireError> {
        let found = self.shared.wire.get(resource, &key.namespace, &key.name).await?;
        match &found {
            Some(object) => self.wrote(object),
            None => {
                // The lock is let go before the deletion takes it again.
                let known = self.known_cache(key).and_then(|cache| cache.store().get(&key.namespace, &key.name));
                if let Some(known) = known {
                    self.deleted(key, known.uid());
                }
            }
        }
        Ok(found)
    }

    /// Objects in all caches.
    pub fn size(&self) -> usize {
        self.caches().values().map(|cache| cache.store().len()).sum()
    }
}

impl Shared {
    fn changed(&self, source: &Arc<Source>, change: Change) {
        if source.place == Place::Management && source.group == CRD.0 && source.kind == CRD.1 {
            self.kind_changed(&change);
        }
        (self.listener)(Notice::Changed(source.clone(), change));
    }

    fn kind_changed(&self, change: &Change) {
        let old = change.old.as_deref().and_then(definition);
        let new = change.new.as_deref().and_then(definition);
        if old == new {
            return;
        }
        let mut touched = Vec::new();
        {
            let mut kinds = self.kinds.write().unwrap_or_else(PoisonError::into_inner);
            if let Some(old) = &old {
                let key = (old.resource.group.clone(), old.resource.kind.clone());
                kinds.definitions.remove(&key);
                touched.push(key);
            }
            if let Some(new) = new {
                let key = (new.resource.group.clone(), new.resource.kind.clone());
                kinds.definitions.insert(key.clone(), new);
                touched.push(key);
            }
        }
        touched.dedup();
        for (group, kind) in touched {
            // Another version, or none: the cache is made anew when it is asked for.
            let dropped = self.caches.lock().unwrap_or_else(PoisonError::into_inner).remove(&(
                group.clone(),
                kind.clone(),
                String::new(),
            ));
            drop(dropped);
            (self.listener)(Notice::Kind { group, kind });
        }
    }

    fn filled(&self, source: &Arc<Source>) {
        if source.place == Place::Management && source.group == CRD.0 && source.kind == CRD.1 {
            self.kinds.write().unwrap_or_else(PoisonError::into_inner).filled = true;
        }
        (self.listener)(Notice::Filled(source.clone()));
    }
}

/// Lists, then watches, then begins again. Ends when the cache is dropped.
async fn follow(shared: std::sync::Weak<Shared>, cache: std::sync::Weak<Cache>, resource: Resource) {
    let mut version: Option<String> = None;
    let mut pause = PAUSES.0;
    loop {
        let (Some(wire), Some(scope)) =
            (shared.upgrade().map(|s| s.wire.clone()), cache.upgrade().map(|c| c.source.scope.clone()))
        else {
            return;
        };
        let outcome = match version.take() {
            None => match wire.list(&resource, &scope).await {
                Ok((objects, at)) => {
                    let (Some(shared), Some(cache)) = (shared.upgrade(), cache.upgrade()) else { return };
                    fill(&shared, &cache, objects, &at);
                    version = Some(at);
                    continue;
                }
                Err(error) => Err(error),
            },
            Some(from) => {
                let began = tokio::time::Instant::now();
                let (reached, outcome) = watch(&wire, &shared, &cache, &resource, &scope, from).await;
                version = reached;
                // A server that ends every watch at once is not asked again at once; how a watch ended that went well until
                // then says nothing about the next.
                if began.elapsed() > Duration::from_secs(1) {
                    pause = PAUSES.0;
                    if outcome.is_ok() {
                        continue;
                    }
                }
                outcome
            }
        };
        if let Err(error) = outcome {
            if error.is_gone() {
                version = None;
                tracing::debug!(kind = %resource.kind, "the watch is too far behind; listing anew");
            } else if matches!(error, WireError::Refused { .. }) {
                version = None;
                tracing::warn!(group = %resource.group, kind = %resource.kind, %error, "cannot watch");
            } else {
                tracing::debug!(kind = %resource.kind, %error, "the watch broke off");
                if let Some(shared) = shared.upgrade() {
                    (shared.listener)(Notice::Broken(shared.place.clone()));
                }
            }
        }
        tokio::time::sleep(pause.mul_f64(rand::random_range(1.0..1.2))).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}

fn fill(shared: &Arc<Shared>, cache: &Arc<Cache>, objects: Vec<Object>, at: &str) {
    let (changes, first) = {
        let mut store = cache.store();
        let first = !store.is_filled();
        (store.replace(objects, at.parse().unwrap_or(u64::MAX)), first)
    };
    for change in changes {
        shared.changed(&cache.source, change);
    }
    if first {
        shared.filled(&cache.source);
    }
}

/// Follows one watch to its end; the version it reached (`None`: list anew).
async fn watch(
    wire: &Wire,
    shared: &std::sync::Weak<Shared>,
    cache: &std::sync::Weak<Cache>,
    resource: &Resource,
    scope: &str,
    from: String,
) -> (Option<String>, Result<(), WireError>) {
    let mut reached = from;
    let mut stream = match wire.watch(resource, scope, &reached).await {
        Ok(stream) => stream,
        Err(error) => return (Some(reached), Err(error)),
    };
    loop {
        let told = match tokio::time::timeout(SILENCE, stream.next()).await {
            Err(_) => return (Some(reached), Err(WireError::Silent("the watch fell silent".into()))),
            Ok(None) => return (Some(reached), Ok(())),
            Ok(Some(Err(error))) => return (Some(reached), Err(error)),
            Ok(Some(Ok(told))) => told,
        };
        let (Some(shared), Some(cache)) = (shared.upgrade(), cache.upgrade()) else { return (None, Ok(())) };
        let change = match told {
            Told::Bookmark(version) => {
                reached = version;
                continue;
            }
            Told::Present(object) => {
                reached = object.resource_version().to_owned();
                cache.store().upsert(object)
            }
            Told::Gone(object) => {
                if version_of(&object) > 0 {
                    reached = object.resource_version().to_owned();
                }
                cache.store().remove(object.namespace(), object.name(), object.uid(), false)
            }
        };
        if let Some(change) = change {
            shared.changed(&cache.source, change);
        }
    }
}
