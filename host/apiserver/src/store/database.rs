//! One file with the state of many stores.

use super::file::File;
use super::seal::Keys;
use super::{Inner, Store};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// What is wrong with the state file.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process has it open.
    #[error(
        "the state file {path} is in use by another process: stop that one first, or choose another state directory"
    )]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// It cannot be opened.
    #[error(
        "the state file {path} cannot be opened: {why}; restore it from a backup, or start anew in another directory"
    )]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        why: Arc<redb::Error>,
    },
    /// It cannot be read.
    #[error("the state file {path} cannot be read: {why}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        why: Arc<redb::Error>,
    },
    /// It cannot be written; nothing is accepted any more until it is opened again.
    #[error("the state file {path} cannot be written, so no change is accepted any more: {why}; make room and restart")]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        why: Arc<redb::Error>,
    },
    /// It has something in it that is no object.
    #[error("the state file {path} is damaged: {what}; restore it from a backup")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What was found.
        what: String,
    },
    /// Secrets in it cannot be read, or not be encrypted.
    #[error("the state file {path} cannot be used: {what}")]
    Sealed {
        /// The file.
        path: PathBuf,
        /// Why not.
        what: &'static str,
    },
    /// It cannot be written anew under another key; it is as it was.
    #[error(
        "the state file {path} cannot be encrypted anew: {why}; nothing in it was changed: make room beside it and restart"
    )]
    Renew {
        /// The file.
        path: PathBuf,
        /// Why.
        why: Arc<redb::Error>,
    },
    /// It was closed.
    #[error("the state file {path} is closed")]
    Closed {
        /// The file.
        path: PathBuf,
    },
    /// A name that cannot be a store's.
    #[error("{name:?} cannot be the name of a store: it must not be empty nor contain a NUL")]
    Name {
        /// The name.
        name: String,
    },
}

/// A state file. Its lock is held until it is closed, or until it and all its stores are dropped.
pub struct Database {
    file: Arc<File>,
    open: Mutex<HashMap<String, Weak<Inner>>>,
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.file.fmt(f)
    }
}

impl Database {
    /// Opens the file, or makes it. Its directory must exist. A change counts as made when it is on the disk; writers that come
    /// together share one commit.
    pub fn open(path: &Path) -> Result<Database, StoreError> {
        Ok(Database { file: Arc::new(File::open(path, None)?), open: Mutex::default() })
    }

    /// As [`Database::open`], with Secrets encrypted under the first of these keys from now on, and in the file.
    pub fn open_encrypted(path: &Path, keys: Keys) -> Result<Database, StoreError> {
        Ok(Database { file: Arc::new(File::open(path, Some(keys))?), open: Mutex::default() })
    }

    /// The store of this name; a new one is empty. Asked for again while it is in use, it is the same store.
    pub fn store(&self, name: &str) -> Result<Store, StoreError> {
        if name.is_empty() || name.contains('\0') {
            return Err(StoreError::Name { name: name.to_owned() });
        }
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(inner) = open.get(name).and_then(Weak::upgrade) {
            return Ok(Store { inner });
        }
        let store = Store::loaded(name, self.file.clone())?;
        open.insert(name.to_owned(), Arc::downgrade(&store.inner));
        Ok(store)
    }

    /// Removes a store and all in it. Whoever still has it should not use it any more.
    pub fn remove_store(&self, name: &str) -> Result<(), StoreError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.remove(name);
        self.file.forget(name)
    }

    /// The stores that were ever written to.
    pub fn store_names(&self) -> Result<Vec<String>, StoreError> {
        self.file.stores()
    }

    /// Writes what is on its way and gives the lock back at once, whoever still has a store of it.
    pub fn close(self) {
        self.file.close();
    }
}
