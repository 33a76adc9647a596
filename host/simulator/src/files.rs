//! The file system that boot data is carried out on: in memory for a simulated machine, the real one for the stand-in binary.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A simulated machine's files together may not be larger than this many bytes.
pub const MAX_MEMORY_FILES: usize = 64 << 20;

/// What the interpreter of boot data and the stand-in for kubeadm need of a file system. Paths are absolute.
pub trait Files: Send + Sync {
    /// The content of a file.
    fn read(&self, path: &str) -> io::Result<Vec<u8>>;
    /// Writes a file in a directory that exists, keeping an existing file's mode. `append` adds to what is there.
    fn write(&self, path: &str, content: &[u8], append: bool) -> io::Result<()>;
    /// Sets permission bits.
    fn set_mode(&self, path: &str, mode: u32) -> io::Result<()>;
    /// Makes a directory and all above it.
    fn make_directory(&self, path: &str) -> io::Result<()>;
    /// True for files and directories.
    fn exists(&self, path: &str) -> bool;
    /// True for directories.
    fn is_directory(&self, path: &str) -> bool;
    /// Removes a file, or a directory with all that is in it.
    fn remove(&self, path: &str) -> io::Result<()>;
    /// Names in a directory, sorted.
    fn list(&self, path: &str) -> io::Result<Vec<String>>;

    /// Writes a file with its mode, making the directories above it, as cloud-init does.
    fn put(&self, path: &str, mode: u32, content: &[u8], append: bool) -> io::Result<()> {
        if let Some((parent, _)) = path.rsplit_once('/')
            && !parent.is_empty()
        {
            self.make_directory(parent)?;
        }
        self.write(path, content, append)?;
        self.set_mode(path, mode)
    }
}

/// A path without doubled or trailing slashes and without `.` and `..`.
pub(crate) fn normal(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

/// Files in memory.
#[derive(Default)]
pub struct MemoryFiles(Mutex<Tree>);

#[derive(Default)]
struct Tree {
    files: BTreeMap<String, (u32, Vec<u8>)>,
    directories: BTreeSet<String>,
    size: usize,
}

impl MemoryFiles {
    /// The directories and files that a freshly started machine has.
    pub fn fresh(hostname: &str) -> Self {
        let files = MemoryFiles::default();
        {
            let mut tree = files.tree();
            for directory in ["/", "/dev", "/etc", "/root", "/run", "/tmp", "/usr/local/bin", "/var/lib", "/var/log"] {
                tree.make_directory(directory);
            }
            tree.files.insert("/etc/hostname".into(), (0o644, format!("{hostname}\n").into_bytes()));
            tree.files.insert("/etc/hosts".into(), (0o644, b"127.0.0.1 localhost\n".to_vec()));
        }
        files
    }

    fn tree(&self) -> MutexGuard<'_, Tree> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Permission bits of a file.
    pub fn mode(&self, path: &str) -> Option<u32> {
        self.tree().files.get(&normal(path)).map(|(mode, _)| *mode)
    }
}

impl Tree {
    fn make_directory(&mut self, path: &str) {
        let mut at = String::new();
        self.directories.insert("/".to_owned());
        for part in path.split('/').filter(|part| !part.is_empty()) {
            at.push('/');
            at.push_str(part);
            self.directories.insert(at.clone());
        }
    }
}

fn missing(path: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("{path}: no such file or directory"))
}

impl Files for MemoryFiles {
    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        let path = normal(path);
        let tree = self.tree();
        if tree.directories.contains(&path) {
            return Err(io::Error::new(io::ErrorKind::IsADirectory, format!("{path}: is a directory")));
        }
        tree.files.get(&path).map(|(_, content)| content.clone()).ok_or_else(|| missing(&path))
    }

    fn write(&self, path: &str, content: &[u8], append: bool) -> io::Result<()> {
        let path = normal(path);
        let mut tree = self.tree();
        if tree.directories.contains(&path) {
            return Err(io::Error::new(io::ErrorKind::IsADirectory, format!("{path}: is a directory")));
        }
        let parent = path.rsplit_once('/').map_or("/", |(parent, _)| if parent.is_empty() { "/" } else { parent });
        if !tree.directories.contains(parent) {
            return Err(missing(&path));
        }
        let (mode, old) = tree.files.get(&path).cloned().unwrap_or((0o644, Vec::new()));
        let before = old.len();
        let new = if append { [old.as_slice(), content].concat() } else { content.to_vec() };
        let size = tree.size - before + new.len();
        if size > MAX_MEMORY_FILES {
            return Err(io::Error::new(io::ErrorKind::StorageFull, format!("{path}: the machine's disk is full")));
        }
        tree.size = size;
        tree.files.insert(path, (mode, new));
        Ok(())
    }

    fn set_mode(&self, path: &str, mode: u32) -> io::Result<()> {
        let path = normal(path);
        let mut tree = self.tree();
        if tree.directories.contains(&path) {
            return Ok(());
        }
        tree.files.get_mut(&path).map(|file| file.0 = mode).ok_or_else(|| missing(&path))
    }

    fn make_directory(&self, path: &str) -> io::Result<()> {
        let path = normal(path);
        let mut tree = self.tree();
        if tree.files.contains_key(&path) {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("{path}: is a file")));
        }
        tree.make_directory(&path);
        Ok(())
    }

    fn exists(&self, path: &str) -> bool {
        let path = normal(path);
        let tree = self.tree();
        tree.files.contains_key(&path) || tree.directories.contains(&path)
    }

    fn is_directory(&self, path: &str) -> bool {
        self.tree().directories.contains(&normal(path))
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        let path = normal(path);
        let mut tree = self.tree();
        let inside = format!("{path}/");
        let gone: Vec<String> =
            tree.files.keys().filter(|name| **name == path || name.starts_with(&inside)).cloned().collect();
        let was_directory = tree.directories.contains(&path);
        if gone.is_empty() && !was_directory {
            return Err(missing(&path));
        }
        for name in gone {
            if let Some((_, content)) = tree.files.remove(&name) {
                tree.size -= content.len();
            }
        }
        tree.directories.retain(|name| *name != path && !name.starts_with(&inside));
        Ok(())
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let path = normal(path);
        let tree = self.tree();
        if !tree.directories.contains(&path) {
            return Err(missing(&path));
        }
        let inside = if path == "/" { path } else { format!("{path}/") };
        let names: BTreeSet<String> = tree
            .files
            .keys()
            .chain(&tree.directories)
            .filter_map(|name| name.strip_prefix(&inside))
            .filter(|rest| !rest.is_empty() && !rest.contains('/'))
            .map(str::to_owned)
            .collect();
        Ok(names.into_iter().collect())
    }
}

/// The real file system, below a root directory (`/` in a container).
pub struct DiskFiles {
    root: PathBuf,
}

impl DiskFiles {
    /// Paths are taken below `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        DiskFiles { root: root.into() }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.join(normal(path).trim_start_matches('/'))
    }
}

impl Files for DiskFiles {
    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        std::fs::read(self.at(path))
    }

    fn write(&self, path: &str, content: &[u8], append: bool) -> io::Result<()> {
        use std::io::Write as _;
        let mut options = std::fs::OpenOptions::new();
        options.create(true);
        let mut file =
            if append { options.append(true) } else { options.write(true).truncate(true) }.open(self.at(path))?;
        file.write_all(content)
    }

    fn set_mode(&self, path: &str, mode: u32) -> io::Result<()> {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(self.at(path), std::fs::Permissions::from_mode(mode))
    }

    fn make_directory(&self, path: &str) -> io::Result<()> {
        std::fs::create_dir_all(self.at(path))
    }

    fn exists(&self, path: &str) -> bool {
        self.at(path).exists()
    }

    fn is_directory(&self, path: &str) -> bool {
        self.at(path).is_dir()
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        let path = self.at(path);
        if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let mut names: Vec<String> = std::fs::read_dir(self.at(path))?
            .map(|entry| entry.map(|e| e.file_name().to_string_lossy().into_owned()))
            .collect::<io::Result<_>>()?;
        names.sort();
        Ok(names)
    }
}
