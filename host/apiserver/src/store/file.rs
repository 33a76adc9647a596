//! The file behind stores: one redb database, one thread that writes, one commit for all that wait.
//!
//! Rows are keyed `store \0 collection \0 namespace \0 name` and hold the object's JSON. A batch of changes and the
//! revisions they reach are one transaction, so a kill at any instant leaves the state of some revision, whole.

use super::StoreError;
use super::renew;
use super::seal::{self, Keys};
use bytes::Bytes;
use redb::{ReadableDatabase, ReadableTable, TableDefinition};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;

pub(super) const OBJECTS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("objects");
pub(super) const REVISIONS: TableDefinition<'_, &str, u64> = TableDefinition::new("revisions");

/// redb's default cache is 1 GiB; the state is in memory anyway.
const CACHE_BYTES: usize = 4 << 20;
/// The most changes in one transaction: bounds how long the first of them waits.
const BATCH: usize = 1024;

/// One change to write.
pub(super) struct Write {
    pub store: Arc<super::Inner>,
    pub collection: Arc<str>,
    pub row: Vec<u8>,
    /// None removes the row.
    pub json: Option<Bytes>,
    pub revision: u64,
}

enum Message {
    Write(Write),
    Forget { store: String, done: Sender<Result<(), StoreError>> },
}

/// What was in the file for one store.
pub(super) struct Loaded {
    pub revision: u64,
    /// (collection, JSON)
    pub rows: Vec<(String, Vec<u8>)>,
}

/// A key and its value, as they are in the file.
type Row = (Vec<u8>, Vec<u8>);

/// The open file.
pub(super) struct File {
    path: PathBuf,
    database: Mutex<Option<Arc<redb::Database>>>,
    sender: Mutex<Option<Sender<Message>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    failure: Arc<OnceLock<StoreError>>,
    keys: Option<Arc<Keys>>,
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "File({})", self.path.display())
    }
}

/// The row of an object.
pub(super) fn row(store: &str, collection: &str, namespace: &str, name: &str) -> Vec<u8> {
    [store, collection, namespace, name].join("\0").into_bytes()
}

impl File {
    pub fn open(path: &Path, keys: Option<Keys>) -> Result<File, StoreError> {
        let mut database = open(path)?;
        if let Some(keys) = &keys
            && let Some(renewed) = renew::under(keys, path, &database)?
        {
            database = renewed;
        }
        let (database, keys) = (Arc::new(database), keys.map(Arc::new));
        let (sender, receiver) = channel();
        let failure = Arc::new(OnceLock::new());
        let writer =
            Writer { path: path.to_owned(), database: database.clone(), failure: failure.clone(), keys: keys.clone() };
        let thread = std::thread::Builder::new()
            .name("store".into())
            .spawn(move || writer.run(&receiver))
            .map_err(|error| StoreError::Open { path: path.to_owned(), why: Arc::new(redb::Error::Io(error)) })?;
        Ok(File {
            path: path.to_owned(),
            database: Mutex::new(Some(database)),
            sender: Mutex::new(Some(sender)),
            thread: Mutex::new(Some(thread)),
            failure,
            keys,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Why nothing can be written any more, if so.
    pub fn failure(&self) -> Option<StoreError> {
        self.failure.get().cloned()
    }

    fn database(&self) -> Result<Arc<redb::Database>, StoreError> {
        let database = self.database.lock().unwrap_or_else(PoisonError::into_inner);
        database.clone().ok_or_else(|| StoreError::Closed { path: self.path.clone() })
    }

    /// The stores that have anything in the file.
    pub fn stores(&self) -> Result<Vec<String>, StoreError> {
        let read = || -> Result<Vec<String>, redb::Error> {
            let Ok(database) = self.database() else { return Ok(Vec::new()) };
            let table = database.begin_read()?.open_table(REVISIONS)?;
            let mut names = Vec::new();
            for entry in table.iter()? {
                names.push(entry?.0.value().to_owned());
            }
            Ok(names)
        };
        read().map_err(|why| StoreError::Read { path: self.path.clone(), why: Arc::new(why) })
    }

    /// Reads one store.
    pub fn load(&self, store: &str) -> Result<Loaded, StoreError> {
        let database = self.database()?;
        let read = || -> Result<(u64, Vec<Row>), redb::Error> {
            let transaction = database.begin_read()?;
            let revision = transaction.open_table(REVISIONS)?.get(store)?.map(|r| r.value()).unwrap_or(0);
            let table = transaction.open_table(OBJECTS)?;
            let (from, to) = prefix(store);
            let mut rows = Vec::new();
            for entry in table.range(from.as_slice()..to.as_slice())? {
                let (key, json) = entry?;
                rows.push((key.value().to_vec(), json.value().to_vec()));
            }
            Ok((revision, rows))
        };
        let (revision, rows) =
            read().map_err(|why| StoreError::Read { path: self.path.clone(), why: Arc::new(why) })?;
        let opened = rows.into_iter().map(|(row, value)| {
            let value = seal::open(self.keys.as_deref(), &row, value);
            let value = value.map_err(|what| StoreError::Sealed { path: self.path.clone(), what })?;
            Ok((String::from_utf8_lossy(collection_of(&row)).into_owned(), value))
        });
        Ok(Loaded { revision, rows: opened.collect::<Result<_, StoreError>>()? })
    }

    /// Queues a change; the store's durable revision tells when it is in the file.
    pub fn write(&self, write: Write) -> Result<(), StoreError> {
        if let Some(failure) = self.failure() {
            return Err(failure);
        }
        self.send(Message::Write(write))
    }

    fn send(&self, message: Message) -> Result<(), StoreError> {
        let sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        let closed = || StoreError::Closed { path: self.path.clone() };
        sender.as_ref().ok_or_else(closed)?.send(message).map_err(|_| closed())
    }

    /// Removes everything of a store.
    pub fn forget(&self, store: &str) -> Result<(), StoreError> {
        let (done, answer) = channel();
        self.send(Message::Forget { store: store.to_owned(), done })?;
        answer.recv().unwrap_or_else(|_| Err(StoreError::Closed { path: self.path.clone() }))
    }

    /// Writes what is queued, closes the file and gives its lock back.
    pub fn close(&self) {
        drop(self.sender.lock().unwrap_or_else(PoisonError::into_inner).take());
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
        drop(self.database.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

impl Drop for File {
    fn drop(&mut self) {
        self.close();
    }
}

/// The collection of a row.
pub(super) fn collection_of(row: &[u8]) -> &[u8] {
    row.split(|byte| *byte == 0).nth(1).unwrap_or_default()
}

/// Opens the file, or makes it: for nobody but its owner, as Secrets are in it.
pub(super) fn open(path: &Path) -> Result<redb::Database, StoreError> {
    let failed = |why: redb::Error| StoreError::Open { path: path.to_owned(), why: Arc::new(why) };
    let mut options = std::fs::OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.open(path).map_err(|error| failed(redb::Error::Io(error)))?;
    let opened = redb::backends::FileBackend::new(file);
    let in_use_or = |error: redb::DatabaseError| match error {
        redb::DatabaseError::DatabaseAlreadyOpen => StoreError::InUse { path: path.to_owned() },
        error => failed(error.into()),
    };
    let backend = opened.map_err(in_use_or)?;
    let database = redb::Builder::new().set_cache_size(CACHE_BYTES).create_with_backend(backend).map_err(in_use_or)?;
    let tables = || -> Result<(), redb::Error> {
        let begin = database.begin_write()?;
        begin.open_table(OBJECTS)?;
        begin.open_table(REVISIONS)?;
        begin.commit()?;
        Ok(())
    };
    tables().map_err(failed)?;
    Ok(database)
}

fn prefix(store: &str) -> (Vec<u8>, Vec<u8>) {
    let mut from = store.as_bytes().to_vec();
    let mut to = from.clone();
    from.push(0);
    to.push(1);
    (from, to)
}

/// How far one store has come in a batch.
struct Reached {
    store: Arc<super::Inner>,
    revision: u64,
    collections: Vec<Arc<str>>,
}

struct Writer {
    path: PathBuf,
    database: Arc<redb::Database>,
    failure: Arc<OnceLock<StoreError>>,
    keys: Option<Arc<Keys>>,
}

impl Writer {
    fn run(self, receiver: &Receiver<Message>) {
        while let Ok(first) = receiver.recv() {
            let mut writes = Vec::new();
            let mut forgets = Vec::new();
            let mut next = Some(first);
            while let Some(message) = next {
                match message {
                    Message::Write(write) => writes.push(write),
                    Message::Forget { store, done } => forgets.push((store, done)),
                }
                // What is to be forgotten comes after the writes before it and before those after it.
                next = if writes.len() < BATCH && forgets.is_empty() { receiver.try_recv().ok() } else { None };
            }
            let outcome = match self.failure.get() {
                Some(failure) => Err(failure.clone()),
                None => self.commit(&writes, &forgets),
            };
            if let Err(failure) = &outcome {
                tracing::error!(path = %self.path.display(), error = %failure, "the state file cannot be written");
                let _ = self.failure.set(failure.clone());
            }
            let mut reached: BTreeMap<*const super::Inner, Reached> = BTreeMap::new();
            for write in writes {
                let entry = reached.entry(Arc::as_ptr(&write.store)).or_insert_with(|| Reached {
                    store: write.store,
                    revision: 0,
                    collections: Vec::new(),
                });
                entry.revision = entry.revision.max(write.revision);
                if !entry.collections.contains(&write.collection) {
                    entry.collections.push(write.collection);
                }
            }
            for Reached { store, revision, collections } in reached.into_values() {
                store.written(revision, &collections, outcome.is_ok());
            }
            for (_, done) in forgets {
                let _ = done.send(outcome.clone());
            }
        }
    }

    fn commit(&self, writes: &[Write], forgets: &[(String, Sender<Result<(), StoreError>>)]) -> Result<(), StoreError> {
        let work = || -> Result<(), redb::Error> {
            let mut transaction = self.database.begin_write()?;
            transaction.set_durability(redb::Durability::Immediate)?;
            {
                let mut objects = transaction.open_table(OBJECTS)?;
                let mut revisions = transaction.open_table(REVISIONS)?;
                let mut reached: BTreeMap<&str, u64> = BTreeMap::new();
                for write in writes {
                    match &write.json {
                        Some(json) => match self.keys.as_ref().filter(|_| &*write.collection == seal::COLLECTION) {
                            None => drop(objects.insert(write.row.as_slice(), json.as_ref())?),
                            Some(keys) => {
                                let none = || redb::Error::Io(std::io::Error::other("a Secret cannot be encrypted"));
                                let sealed = keys.seal(&write.row, json).ok_or_else(none)?;
                                drop(objects.insert(write.row.as_slice(), sealed.as_slice())?);
                            }
                        },
                        None => drop(objects.remove(write.row.as_slice())?),
                    }
                    let revision = reached.entry(write.store.name()).or_default();
                    *revision = (*revision).max(write.revision);
                }
                for (store, revision) in reached {
                    revisions.insert(store, revision)?;
                }
                for (store, _) in forgets {
                    let (from, to) = prefix(store);
                    objects.retain_in(from.as_slice()..to.as_slice(), |_, _| false)?;
                    revisions.remove(store.as_str())?;
                }
            }
            transaction.commit()?;
            Ok(())
        };
        work().map_err(|why| StoreError::Write { path: self.path.clone(), why: Arc::new(why) })
    }
}
