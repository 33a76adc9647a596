//! Compiled code on disk.
//!
//! Compiled code is machine code that this process will run, so it is loaded only when this installation wrote it: each
//! entry is authenticated with a key of the installation (a digest beside the file would prove nothing), and what is
//! loaded are the very bytes that were verified. An entry's name covers the component, the engine's version, its
//! settings and the CPU's features.

use std::hash::{Hash, Hasher};
use std::io::{Error, ErrorKind, Read, Write};
use std::path::Path;

use cap_std::ambient_authority;
use cap_std::fs::{Dir, OpenOptions, OpenOptionsExt};
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

/// Name of the installation's key, in the directory above the cache.
const KEY_FILE: &str = "compiled-code.key";
const KEY_LENGTH: usize = 32;
const TAG_LENGTH: usize = 32;

pub(crate) struct Cache {
    dir: Dir,
    key: [u8; KEY_LENGTH],
    /// Digest of all that compiled code depends on beside the component.
    settings: [u8; 32],
}

/// Feeds what is hashed into SHA-256, so that names are the same in every process.
struct Sha(Sha256);

impl Hasher for Sha {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }
    fn finish(&self) -> u64 {
        0
    }
}

impl Cache {
    /// Opens, and makes where needed, the directory and the installation's key.
    pub(crate) fn open(path: &Path, engine: &wasmtime::Engine) -> std::io::Result<Self> {
        std::fs::create_dir_all(path)?;
        let above = path.canonicalize()?;
        let above =
            above.parent().ok_or_else(|| Error::new(ErrorKind::InvalidInput, "it has no directory above it"))?;
        let key = installation_key(&Dir::open_ambient_dir(above, ambient_authority())?)?;
        let mut settings = Sha(Sha256::new());
        engine.precompile_compatibility_hash().hash(&mut settings);
        let dir = Dir::open_ambient_dir(path, ambient_authority())?;
        Ok(Self { dir, key, settings: settings.0.finalize().into() })
    }

    fn name(&self, component: &[u8]) -> String {
        let mut hash = Sha256::new();
        hash.update(self.settings);
        hash.update(component);
        let mut name: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        name.push_str(".cwasm");
        name
    }

    fn mac(&self, name: &str, code: &[u8]) -> Option<Hmac<Sha256>> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.key).ok()?;
        mac.update(name.as_bytes());
        mac.update(code);
        Some(mac)
    }

    /// The verified code of a component; `None` when there is none that this installation wrote.
    pub(crate) fn get(&self, component: &[u8]) -> Option<Vec<u8>> {
        let name = self.name(component);
        let mut entry = self.dir.read(&name).ok()?;
        let verified = entry.len().checked_sub(TAG_LENGTH).is_some_and(|at| {
            let (code, tag) = entry.split_at(at);
            self.mac(&name, code).is_some_and(|mac| mac.verify_slice(tag).is_ok())
        });
        if !verified {
            tracing::warn!(
                entry = name,
                "compiled code was not written by this installation or is damaged: compiling again"
            );
            return None;
        }
        entry.truncate(entry.len() - TAG_LENGTH);
        Some(entry)
    }

    /// Keeps code for the next time. That it cannot be kept is no error.
    pub(crate) fn put(&self, component: &[u8], code: &[u8]) {
        let name = self.name(component);
        let Some(mac) = self.mac(&name, code) else { return };
        let partial = format!("{name}.{}.partial", std::process::id());
        let write = || -> std::io::Result<()> {
            let mut options = OpenOptions::new();
            let mut file = self.dir.open_with(&partial, options.write(true).create(true).truncate(true).mode(0o600))?;
            file.write_all(code)?;
            file.write_all(&mac.finalize().into_bytes())?;
            self.dir.rename(&partial, &self.dir, &name)
        };
        if let Err(error) = write() {
            tracing::warn!(entry = name, %error, "compiled code cannot be kept; it will be compiled again at the next start");
            let _ = self.dir.remove_file(&partial);
        }
    }
}

fn installation_key(dir: &Dir) -> std::io::Result<[u8; KEY_LENGTH]> {
    match dir.open(KEY_FILE) {
        Ok(file) => read_key(file),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let mut key = [0; KEY_LENGTH];
            std::fs::File::open("/dev/urandom")?.read_exact(&mut key)?;
            let partial = format!("{KEY_FILE}.{}.partial", std::process::id());
            let mut options = OpenOptions::new();
            let mut file = dir.open_with(&partial, options.write(true).create(true).truncate(true).mode(0o600))?;
            file.write_all(&key)?;
            file.sync_all()?;
            // The first of two processes wins; a link, unlike a rename, never replaces.
            let linked = dir.hard_link(&partial, dir, KEY_FILE);
            dir.remove_file(&partial)?;
            match linked {
                Ok(()) => Ok(key),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => read_key(dir.open(KEY_FILE)?),
                Err(error) => Err(error),
            }
        }
        Err(error) => Err(error),
    }
}

fn read_key(file: cap_std::fs::File) -> std::io::Result<[u8; KEY_LENGTH]> {
    let mut key = Vec::new();
    file.take(KEY_LENGTH as u64 + 1).read_to_end(&mut key)?;
    key.try_into().map_err(|_| {
        Error::new(ErrorKind::InvalidData, format!("{KEY_FILE} is damaged; delete it, and code is compiled again"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_what_this_installation_wrote_is_read_back() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("compiled");
        let engine = crate::engine::wasmtime_engine(None).unwrap();
        let cache = Cache::open(&dir, &engine).unwrap();
        assert_eq!(cache.get(b"component"), None);
        cache.put(b"component", b"machine code");
        assert_eq!(cache.get(b"component").unwrap(), b"machine code");
        assert_eq!(cache.get(b"other"), None);

        let again = Cache::open(&dir, &engine).unwrap();
        assert_eq!(again.get(b"component").unwrap(), b"machine code", "the key is kept");
        let mode = std::fs::metadata(home.path().join(KEY_FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);

        let entry = dir.join(cache.name(b"component"));
        let honest = std::fs::read(&entry).unwrap();
        for at in [0, honest.len() - 1] {
            let mut forged = honest.clone();
            forged[at] ^= 1;
            std::fs::write(&entry, forged).unwrap();
            assert_eq!(cache.get(b"component"), None, "a changed byte at {at}");
        }
        std::fs::write(&entry, b"short").unwrap();
        assert_eq!(cache.get(b"component"), None);
        std::fs::write(dir.join(cache.name(b"other")), &honest).unwrap();
        assert_eq!(cache.get(b"other"), None, "an entry under another name");

        let elsewhere = tempfile::tempdir().unwrap();
        let foreign = Cache::open(&elsewhere.path().join("compiled"), &engine).unwrap();
        std::fs::write(elsewhere.path().join("compiled").join(foreign.name(b"component")), &honest).unwrap();
        assert_eq!(foreign.get(b"component"), None, "another installation's entry");
    }

    #[test]
    fn a_damaged_key_is_an_error_that_says_so() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join(KEY_FILE), b"short").unwrap();
        let engine = crate::engine::wasmtime_engine(None).unwrap();
        let error = Cache::open(&home.path().join("compiled"), &engine).err().unwrap();
        assert!(error.to_string().contains(KEY_FILE), "{error}");
    }
}
