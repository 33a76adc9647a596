//! Secrets by handle: a provider arranges them and never reads them.

use std::rc::Rc;

use crate::{Error, Result, host};

/// A secret. Its bytes are filled in by the host after the provider has returned the request.
#[derive(Clone)]
pub struct Secret(pub(crate) Rc<host::RawSecret>);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// How a secret is dressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Encoding {
    Gzip,
    Base64,
    /// Without quotes around it.
    JsonString,
    FormUrlencoded,
    Percent,
}

/// The form of an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ArchiveFormat {
    Tar,
    Iso9660,
}

/// The provider's own bytes, or a secret.
#[derive(Clone, Debug)]
pub enum Chunk {
    /// Bytes that the provider knows.
    Bytes(Vec<u8>),
    /// Bytes that only the host knows.
    Secret(Secret),
}

impl From<&str> for Chunk {
    fn from(text: &str) -> Self {
        Self::Bytes(text.as_bytes().to_vec())
    }
}

impl From<String> for Chunk {
    fn from(text: String) -> Self {
        Self::Bytes(text.into_bytes())
    }
}

impl From<Secret> for Chunk {
    fn from(secret: Secret) -> Self {
        Self::Secret(secret)
    }
}

/// A file in an archive.
#[derive(Clone, Debug)]
pub struct Member {
    /// Relative path.
    pub path: String,
    /// Permission bits.
    pub mode: u32,
    /// What it holds.
    pub content: Vec<Chunk>,
}

/// One step of bootstrap data, read by the host for a provider that must carry it out itself.
#[derive(Clone, Debug)]
pub enum BootStep {
    /// Write a file.
    WriteFile(BootFile),
    /// Run one shell command line.
    Run(Secret),
}

/// A file of the bootstrap data.
#[derive(Clone, Debug)]
pub struct BootFile {
    /// Absolute path.
    pub path: String,
    /// Permission bits.
    pub mode: u32,
    /// `user:group`
    pub owner: String,
    /// Append to what is there.
    pub append: bool,
    /// What it holds.
    pub content: Secret,
}

/// `bootstrap-data`, or a label that `needs` declared (`ca/tls.crt` where it holds several).
pub fn get(label: &str) -> Result<Secret> {
    match host::secret_get(label) {
        Ok(raw) => Ok(Secret(Rc::new(raw))),
        Err(SecretError::Missing) => Err(Error::transient(
            "SecretMissing",
            format!("secret `{label}` is not there yet: the Kubernetes object or its key is missing"),
        )),
        Err(SecretError::Unbound) => Err(Error::internal(format!(
            "secret `{label}` was asked for, but `needs` did not declare it or the operator did not grant it"
        ))),
    }
}

/// A keyed digest, different for every object: enough to notice a rotation.
pub fn fingerprint(label: &str) -> Result<String> {
    host::secret_fingerprint(label).map_err(|_| {
        Error::transient("SecretMissing", format!("secret `{label}` is not there yet: it cannot be compared"))
    })
}

/// Why there is no secret of a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretError {
    /// Nothing of this label was declared and granted.
    Unbound,
    /// Declared, but not there yet.
    Missing,
}

/// The bootstrap data as steps.
pub fn boot_steps() -> Result<Vec<BootStep>> {
    host::boot_steps().map_err(|message| Error::invalid("/spec", format!("bootstrap data cannot be read: {message}")))
}

/// The chunks one after the other, as one secret.
pub fn compose(chunks: &[Chunk]) -> Secret {
    Secret(Rc::new(host::secret_compose(chunks)))
}

/// An archive of files that may hold secrets. `volume_label` is for ISO images.
pub fn archive(format: ArchiveFormat, volume_label: &str, members: &[Member]) -> Result<Secret> {
    host::secret_archive(format, volume_label, members)
        .map(|raw| Secret(Rc::new(raw)))
        .map_err(|message| Error::internal(format!("the archive cannot be made: {message}")))
}

impl Secret {
    /// Length in bytes.
    pub fn size(&self) -> u64 {
        host::secret_size(&self.0)
    }

    /// In other clothes, one after the other.
    #[must_use]
    pub fn encode(&self, encodings: &[Encoding]) -> Self {
        Self(Rc::new(host::secret_encode(&self.0, encodings)))
    }

    /// In base64.
    #[must_use]
    pub fn base64(&self) -> Self {
        self.encode(&[Encoding::Base64])
    }

    /// A part of it. The host ends the call where this is out of range.
    #[must_use]
    pub fn slice(&self, start: u64, length: u64) -> Self {
        Self(Rc::new(host::secret_slice(&self.0, start, length)))
    }
}
