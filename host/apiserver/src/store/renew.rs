//! A state file whose Secrets are not encrypted under the key that writes is written anew, as a whole.
//!
//! Changing the rows would not do: what a row was stays in the file until its place is used again. The new file takes the
//! old one's place when it is complete, so a kill at any instant leaves one of the two.

use super::StoreError;
use super::file::{self, OBJECTS, REVISIONS};
use super::seal::{self, Keys};
use redb::{ReadableDatabase, ReadableTable};
use std::path::{Path, PathBuf};
use std::sync::Arc;

enum Failure {
    File(redb::Error),
    Seal(&'static str),
}

impl<E: Into<redb::Error>> From<E> for Failure {
    fn from(why: E) -> Failure {
        Failure::File(why.into())
    }
}

/// The file that took the place of the one at `path`; None when all Secrets in it are encrypted under the first key.
/// Nothing is changed when one of them can be read with none of the keys.
pub(super) fn under(keys: &Keys, path: &Path, database: &redb::Database) -> Result<Option<redb::Database>, StoreError> {
    let told = |failure| match failure {
        Failure::File(why) => StoreError::Renew { path: path.to_owned(), why: Arc::new(why) },
        Failure::Seal(what) => StoreError::Sealed { path: path.to_owned(), what },
    };
    if !is_stale(keys, database).map_err(told)? {
        return Ok(None);
    }
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    // Left by a start that was interrupted: it was never used.
    let removed = std::fs::remove_file(&beside);
    if let Err(error) = removed
        && error.kind() != std::io::ErrorKind::NotFound
    {
        return Err(told(error.into()));
    }
    let renewed = file::open(&beside)?;
    let written = write(keys, database, &renewed).and_then(|()| {
        std::fs::rename(&beside, path)?;
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Ok(std::fs::File::open(directory)?.sync_all()?)
    });
    if let Err(failure) = written {
        let _ = std::fs::remove_file(&beside);
        return Err(told(failure));
    }
    tracing::info!(path = %path.display(), "the Secrets of the state file were encrypted under the first key");
    Ok(Some(renewed))
}

fn is_secret(row: &[u8]) -> bool {
    file::collection_of(row) == seal::COLLECTION.as_bytes()
}

fn is_stale(keys: &Keys, database: &redb::Database) -> Result<bool, Failure> {
    for entry in database.begin_read()?.open_table(OBJECTS)?.iter()? {
        let (row, value) = entry?;
        if is_secret(row.value()) && !keys.is_current(value.value()) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn write(keys: &Keys, old: &redb::Database, new: &redb::Database) -> Result<(), Failure> {
    let reading = old.begin_read()?;
    let mut writing = new.begin_write()?;
    writing.set_durability(redb::Durability::Immediate)?;
    {
        let mut objects = writing.open_table(OBJECTS)?;
        for entry in reading.open_table(OBJECTS)?.iter()? {
            let (row, value) = entry?;
            let row = row.value();
            if is_secret(row) {
                let open = seal::open(Some(keys), row, value.value().to_vec()).map_err(Failure::Seal)?;
                let sealed = keys.seal(row, &open).ok_or(Failure::Seal("the system has no random numbers"))?;
                objects.insert(row, sealed.as_slice())?;
            } else {
                objects.insert(row, value.value())?;
            }
        }
        let mut revisions = writing.open_table(REVISIONS)?;
        for entry in reading.open_table(REVISIONS)?.iter()? {
            let (store, revision) = entry?;
            revisions.insert(store.value(), revision.value())?;
        }
    }
    Ok(writing.commit()?)
}
