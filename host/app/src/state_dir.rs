//! The state directory of `capstan up`: all that one management plane keeps, and nothing of anybody else.
//!
//! One process has it at a time (a lock that the kernel gives back when the process dies). Files are replaced whole, so
//! that a kill at any time leaves either the old or the new.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

/// Name of the file that makes a directory a state directory.
const MARKER: &str = "capstan.json";
/// Name of the file with the objects.
pub const OBJECTS: &str = "state.redb";
/// Name of the file that notes what was applied.
pub const APPLIED: &str = "applied.json";
/// Form of the state directory; a newer one is refused.
const FORMAT: u32 = 1;

/// What must stay the same from one start to the next.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Kept {
    format: u32,
    /// Identity of this management plane, as the holder of Leases.
    pub identity: String,
    /// Port of the simulated cloud on loopback.
    #[serde(default)]
    pub simulator_port: Option<u16>,
}

/// A state directory that this process holds.
pub struct StateDir {
    path: PathBuf,
    /// What is kept in its marker.
    pub kept: Kept,
    _lock: File,
}

/// `$XDG_STATE_HOME/capstan`, else `~/.local/share/capstan`.
///
/// # Errors
/// When there is no home directory either.
pub fn default_path() -> Result<PathBuf> {
    let var = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(state) = var("XDG_STATE_HOME") {
        return Ok(state.join("capstan"));
    }
    let home = var("HOME")
        .context("neither XDG_STATE_HOME nor HOME is set; say where to keep the state with --state-dir DIR")?;
    Ok(home.join(".local/share/capstan"))
}

impl StateDir {
    /// Takes the directory; makes it when it is not there.
    ///
    /// # Errors
    /// With what to do, when it belongs to somebody else, cannot be written or is in use.
    pub fn take(path: &Path) -> Result<Self> {
        let path = std::path::absolute(path).with_context(|| format!("{} is no path", path.display()))?;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&path).with_context(|| {
            format!(
                "cannot make the state directory {}; choose one that can be written with --state-dir",
                path.display()
            )
        })?;
        let marker = path.join(MARKER);
        if !marker.exists() {
            let mut entries = fs::read_dir(&path)
                .with_context(|| format!("cannot read the state directory {}", path.display()))?
                .filter_map(|entry| entry.ok().map(|e| e.file_name().to_string_lossy().into_owned()))
                .filter(|name| name != "lock");
            if let Some(found) = entries.next() {
                bail!(
                    "{} is not a state directory of capstan: it has {found:?} and no {MARKER}. \
                     Choose an empty or a new directory with --state-dir",
                    path.display()
                );
            }
        }
        let lock = lock(&path)?;
        // What was applied is noted after the objects are written: a note without objects is a loss, not a beginning.
        let objects = path.join(OBJECTS);
        if path.join(APPLIED).exists() && fs::metadata(&objects).map_or(true, |file| file.len() == 0) {
            bail!(
                "{} is missing or empty, though objects were applied here: restore it from a backup, or choose another \
                 directory with --state-dir",
                objects.display()
            );
        }
        let kept = match fs::read(&marker) {
            Ok(bytes) => serde_json::from_slice::<Kept>(&bytes).with_context(|| {
                format!("{} cannot be read; it was not written by capstan, or is damaged", marker.display())
            })?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Kept { format: FORMAT, identity: format!("capstan-{}", new_identity()), simulator_port: None }
            }
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", marker.display())),
        };
        if kept.format > FORMAT {
            bail!(
                "{} was written by a newer capstan (format {}, this one knows {FORMAT}); use that one, or another --state-dir",
                path.display(),
                kept.format
            );
        }
        let state = Self { path, kept, _lock: lock };
        state.keep()?;
        Ok(state)
    }

    /// A file or directory in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// A directory in it, made when it is not there.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn directory(&self, name: &str) -> Result<PathBuf> {
        let path = self.path.join(name);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&path)
            .with_context(|| format!("cannot make the directory {}", path.display()))?;
        Ok(path)
    }

    /// Writes the marker.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn keep(&self) -> Result<()> {
        let bytes = serde_json::to_vec_pretty(&self.kept).context("encode the marker")?;
        replace(&self.path.join(MARKER), &bytes, 0o600)
    }
}

/// The port of the simulated cloud that a state directory is for, without taking the directory.
///
/// # Errors
/// When its marker cannot be read.
pub fn simulator_port(path: &Path) -> Result<Option<u16>> {
    let marker = path.join(MARKER);
    match fs::read(&marker) {
        Ok(bytes) => Ok(serde_json::from_slice::<Kept>(&bytes)
            .with_context(|| format!("{} cannot be read", marker.display()))?
            .simulator_port),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", marker.display())),
    }
}

fn new_identity() -> String {
    use std::hash::{BuildHasher, Hasher};
    // Two hashers of the standard library are seeded at random: enough to tell planes apart.
    let word = || std::collections::hash_map::RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", word(), word())
}

fn lock(path: &Path) -> Result<File> {
    let file_path = path.join("lock");
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&file_path)
        .with_context(|| {
            format!(
                "the state directory {} cannot be written; fix its permissions, or choose another with --state-dir",
                path.display()
            )
        })?;
    match file.try_lock() {
        Ok(()) => {}
        Err(fs::TryLockError::WouldBlock) => {
            let mut holder = String::new();
            let _ = file.read_to_string(&mut holder);
            let holder = holder.trim();
            let holder = if holder.is_empty() { "another process".to_owned() } else { format!("process {holder}") };
            bail!(
                "the state directory {} is in use by {holder}: stop that one, or choose another with --state-dir",
                path.display()
            );
        }
        Err(fs::TryLockError::Error(error)) => {
            return Err(error).with_context(|| format!("cannot lock {}", file_path.display()));
        }
    }
    file.set_len(0)
        .and_then(|()| writeln!(file, "{}", std::process::id()))
        .with_context(|| format!("cannot write {}; is the disk full?", file_path.display()))?;
    Ok(file)
}

/// Replaces a file whole.
///
/// # Errors
/// When it cannot be written.
pub fn replace(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let temporary = directory.join(format!(".{name}.{}", std::process::id()));
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&temporary)?;
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        File::open(directory)?.sync_all()
    })();
    written.with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_one_is_refused_and_told_who_has_it_and_a_later_one_finds_the_same_identity() {
        let dir = tempfile::tempdir().unwrap();
        let first = StateDir::take(dir.path()).unwrap();
        let error = StateDir::take(dir.path()).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("in use") && error.contains(&std::process::id().to_string()), "{error}");
        let identity = first.kept.identity.clone();
        drop(first);
        assert_eq!(StateDir::take(dir.path()).unwrap().kept.identity, identity);
    }

    #[test]
    fn a_foreign_directory_is_refused_and_not_touched() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("holiday.jpg"), "x").unwrap();
        let error = StateDir::take(dir.path()).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("holiday.jpg") && error.contains("--state-dir"), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_lost_state_file_is_not_taken_for_a_beginning() {
        let dir = tempfile::tempdir().unwrap();
        drop(StateDir::take(dir.path()).unwrap());
        drop(StateDir::take(dir.path()).unwrap());
        fs::write(dir.path().join(APPLIED), "{}").unwrap();
        for lost in [false, true] {
            if lost {
                fs::write(dir.path().join(OBJECTS), "").unwrap();
            }
            let error = StateDir::take(dir.path()).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains("state.redb") && error.contains("backup"), "{error}");
        }
        fs::write(dir.path().join(OBJECTS), "x").unwrap();
        assert!(StateDir::take(dir.path()).is_ok());
    }

    #[test]
    fn a_newer_format_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(MARKER), r#"{"format": 99, "identity": "x"}"#).unwrap();
        let error = StateDir::take(dir.path()).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("newer"), "{error}");
    }
}
