//! The cloud's memory on disk: one line of JSON for each change, read back at the next start.
//!
//! A line is handed to the kernel before the change is answered, so a kill of the process at any time loses nothing that somebody was told; it is not
//! synced, so a crash of the whole machine may lose the last seconds. A half-written last line is dropped. At each start, and when most lines are
//! outdated, the file is written anew. Its lock is held while the process lives.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::record::{LoadBalancerRecord, MachineSpec, MachineStatus};

/// Lines beyond those that are needed before the file is written anew.
const SLACK: usize = 10_000;

/// One change.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Line<'a> {
    LoadBalancer(std::borrow::Cow<'a, LoadBalancerRecord>),
    LoadBalancerGone(std::borrow::Cow<'a, str>),
    Machine(std::borrow::Cow<'a, MachineSpec>),
    Status { name: std::borrow::Cow<'a, str>, status: std::borrow::Cow<'a, MachineStatus> },
    MachineGone(std::borrow::Cow<'a, str>),
}

/// Everything that exists.
#[derive(Default)]
pub(super) struct Contents {
    pub load_balancers: BTreeMap<String, LoadBalancerRecord>,
    pub machines: BTreeMap<String, (MachineSpec, MachineStatus)>,
}

/// Why the state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Another process uses it.
    #[error(
        "the simulated cloud's state {path} is in use by another process: stop that one first, or choose another directory"
    )]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// It cannot be read or written.
    #[error("the simulated cloud's state {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It has something else in it.
    #[error(
        "the simulated cloud's state {path} is damaged at line {line}; move the file away to start with an empty cloud"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
    },
}

/// The file.
pub(super) struct Journal {
    path: PathBuf,
    file: File,
    /// Held for its lock.
    _lock: File,
    lines: usize,
}

impl Journal {
    /// Opens the journal in a directory, which is made where it is missing.
    pub(super) fn open(directory: &Path) -> Result<(Journal, Contents), JournalError> {
        let path = directory.join("cloud.journal");
        let problem = |source: io::Error| JournalError::Io { path: path.clone(), source };
        // Boot data and workload clusters hold secrets: a directory made here is its owner's alone.
        use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(problem)?;
        let lock = OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(false)
            .mode(0o600)
            .open(directory.join("cloud.lock"))
            .map_err(problem)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => return Err(JournalError::InUse { path }),
            Err(std::fs::TryLockError::Error(error)) => return Err(problem(error)),
        }
        let contents = match File::open(&path) {
            Ok(file) => read(&path, file)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Contents::default(),
            Err(error) => return Err(problem(error)),
        };
        let (file, lines) = write_anew(&path, &contents).map_err(problem)?;
        Ok((Journal { path, file, _lock: lock, lines }, contents))
    }

    pub(super) fn load_balancer(&mut self, record: &LoadBalancerRecord) -> io::Result<()> {
        self.append(&Line::LoadBalancer(std::borrow::Cow::Borrowed(record)))
    }

    pub(super) fn load_balancer_gone(&mut self, name: &str) -> io::Result<()> {
        self.append(&Line::LoadBalancerGone(name.into()))
    }

    pub(super) fn machine(&mut self, spec: &MachineSpec) -> io::Result<()> {
        self.append(&Line::Machine(std::borrow::Cow::Borrowed(spec)))
    }

    pub(super) fn status(&mut self, name: &str, status: &MachineStatus) -> io::Result<()> {
        self.append(&Line::Status { name: name.into(), status: std::borrow::Cow::Borrowed(status) })
    }

    pub(super) fn machine_gone(&mut self, name: &str) -> io::Result<()> {
        self.append(&Line::MachineGone(name.into()))
    }

    /// True when most of the file is outdated, `live` resources being there.
    pub(super) fn is_worn(&self, live: usize) -> bool {
        self.lines > 4 * live + SLACK
    }

    /// Writes the file anew with what is there.
    pub(super) fn rewrite(&mut self, contents: &Contents) -> io::Result<()> {
        (self.file, self.lines) = write_anew(&self.path, contents)?;
        Ok(())
    }

    fn append(&mut self, line: &Line<'_>) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(line)?;
        bytes.push(b'\n');
        self.file.write_all(&bytes)?;
        self.lines += 1;
        Ok(())
    }
}

fn read(path: &Path, file: File) -> Result<Contents, JournalError> {
    let mut contents = Contents::default();
    let mut reader = BufReader::new(file);
    let mut buffer = Vec::new();
    for number in 1.. {
        buffer.clear();
        let problem = |source| JournalError::Io { path: path.to_owned(), source };
        if reader.read_until(b'\n', &mut buffer).map_err(problem)? == 0 || buffer.last() != Some(&b'\n') {
            break; // the end, or a line that was never finished
        }
        let line: Line<'_> = serde_json::from_slice(&buffer)
            .map_err(|_| JournalError::Damaged { path: path.to_owned(), line: number })?;
        match line {
            Line::LoadBalancer(record) => {
                contents.load_balancers.insert(record.name.clone(), record.into_owned());
            }
            Line::LoadBalancerGone(name) => {
                contents.load_balancers.remove(name.as_ref());
            }
            Line::Machine(spec) => {
                contents.machines.insert(spec.name.clone(), (spec.into_owned(), MachineStatus::default()));
            }
            Line::Status { name, status } => {
                if let Some(machine) = contents.machines.get_mut(name.as_ref()) {
                    machine.1 = status.into_owned();
                }
            }
            Line::MachineGone(name) => {
                contents.machines.remove(name.as_ref());
            }
        }
    }
    Ok(contents)
}

/// Writes a new file beside the old one and puts it in its place: readable by its owner only, since boot data holds keys.
fn write_anew(path: &Path, contents: &Contents) -> io::Result<(File, usize)> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let beside = path.with_extension("new");
    let file = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&beside)?;
    let mut writer = io::BufWriter::new(file);
    let mut lines = 0;
    let mut write = |line: Line<'_>| -> io::Result<()> {
        serde_json::to_writer(&mut writer, &line)?;
        lines += 1;
        writer.write_all(b"\n")
    };
    for record in contents.load_balancers.values() {
        write(Line::LoadBalancer(std::borrow::Cow::Borrowed(record)))?;
    }
    for (name, (spec, status)) in &contents.machines {
        write(Line::Machine(std::borrow::Cow::Borrowed(spec)))?;
        write(Line::Status { name: name.as_str().into(), status: std::borrow::Cow::Borrowed(status) })?;
    }
    let file = writer.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.sync_all()?;
    std::fs::rename(&beside, path)?;
    Ok((file, lines))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(name: &str) -> MachineSpec {
        MachineSpec {
            name: name.into(),
            owner: "o".into(),
            load_balancer: None,
            control_plane: false,
            failure_domain: None,
            cpus: 1,
            memory_mib: 1,
            kubernetes_version: None,
            user_data: vec![0, 255, 10],
            user_data_format: "cloud-config".into(),
            address: [10, 64, 0, 1].into(),
            listens: false,
            foreign_provider_id: None,
        }
    }

    #[test]
    fn what_was_written_is_read_back() {
        let directory = tempfile::tempdir().unwrap();
        {
            let (mut journal, contents) = Journal::open(directory.path()).unwrap();
            assert!(contents.machines.is_empty());
            journal.machine(&machine("a")).unwrap();
            journal.machine(&machine("b")).unwrap();
            journal.status("a", &MachineStatus { booted: true, ..MachineStatus::default() }).unwrap();
            journal.machine_gone("b").unwrap();
            assert!(matches!(Journal::open(directory.path()), Err(JournalError::InUse { .. })));
        }
        // A line that a kill cut short.
        let path = directory.path().join("cloud.journal");
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"machine\":{\"na").unwrap();
        let (_, contents) = Journal::open(directory.path()).unwrap();
        assert_eq!(contents.machines.keys().collect::<Vec<_>>(), ["a"]);
        assert!(contents.machines["a"].1.booted);
        assert_eq!(contents.machines["a"].0.user_data, [0, 255, 10]);
        use std::os::unix::fs::PermissionsExt as _;
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_foreign_file_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("cloud.journal"), "hello\n").unwrap();
        assert!(matches!(Journal::open(directory.path()), Err(JournalError::Damaged { line: 1, .. })));
    }
}
