//! First-boot data read into steps.
//!
//! What a bootstrap provider renders (cloud-config, or Ignition JSON) is meant for a program inside a machine. Where there
//! is no such program, in a container or in a simulated machine, somebody else carries it out: [`read`] turns it into an ordered list
//! of [`Step`]s, which write a file or run one shell command line.
//!
//! Promises:
//! - contents and commands come out byte for byte as they went in;
//! - what is not carried out is named ([`Boot::ignored`]) or refused ([`BootError`]), never dropped in silence;
//! - neither an error nor a `Debug` output shows contents or commands: they hold private keys and join tokens.
//!
//! Instance data (`{{ ds.meta_data.local_hostname }}`) is filled in by [`read_for`], as cloud-init does before it parses a document
//! that begins with `## template: jinja`.

mod cloud_config;
mod ignition;
mod node;

use std::fmt;
use std::io::Read;

/// Unpacked boot data may not be larger than this many bytes: it comes from a tenant and may be compressed.
pub const MAX_UNPACKED: usize = 16 << 20;

/// One thing to do at the first boot.
#[derive(Clone, PartialEq, Eq)]
pub enum Step {
    /// Write a file; missing directories above it are made.
    WriteFile {
        /// Absolute path.
        path: String,
        /// Permission bits, for example `0o640`.
        mode: u32,
        /// `user:group` or `user`, as written; `root:root` when nothing was said.
        owner: String,
        /// Append to what is there instead of replacing it.
        append: bool,
        /// The bytes to write, decoded.
        content: Vec<u8>,
    },
    /// Run one command line with a POSIX shell. It may hold newlines.
    Run(String),
}

/// Shows paths and sizes only.
impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::WriteFile { path, mode, owner, append, content } => {
                write!(f, "WriteFile({path}, {mode:04o}, {owner}, append: {append}, {} bytes)", content.len())
            }
            Step::Run(line) => write!(f, "Run({} bytes)", line.len()),
        }
    }
}

/// Boot data as an ordered list of steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Boot {
    /// What to do, in order.
    pub steps: Vec<Step>,
    /// What the data asks for and these steps do not carry out, such as `users` or `ntp`: names only, in order.
    pub ignored: Vec<String>,
}

/// What a machine knows of itself and boot data may refer to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Instance {
    /// `ds.meta_data.local_hostname`, `ds.meta_data.hostname`, `v1.local_hostname`, `local_hostname`.
    pub hostname: String,
    /// `ds.meta_data.instance_id`, `v1.instance_id`, `instance_id`.
    pub id: String,
}

/// Why boot data cannot be carried out. Never holds contents.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BootError {
    /// The format's name is not one we read.
    #[error("boot data of format {0:?} cannot be carried out here; cloud-config and ignition can")]
    UnknownFormat(String),
    /// The data is not what its format says.
    #[error("boot data is not {expected}: {found}")]
    NotThisFormat {
        /// What it should have been.
        expected: &'static str,
        /// What it looks like.
        found: String,
    },
    /// The document cannot be parsed.
    #[error("boot data cannot be parsed at line {line}, column {column}: {reason}")]
    Syntax {
        /// Counted from 1; 0 where unknown.
        line: u64,
        /// Counted from 1; 0 where unknown.
        column: u64,
        /// What kind of fault it is.
        reason: String,
    },
    /// One field is wrong.
    #[error("{field} of the boot data: {reason}")]
    Invalid {
        /// Where, for example `write_files[2].permissions`.
        field: String,
        /// Why, and what is expected.
        reason: String,
    },
    /// Unpacked it is too large.
    #[error("{field} of the boot data is larger than {MAX_UNPACKED} bytes when unpacked")]
    TooLarge {
        /// Where.
        field: String,
    },
}

impl BootError {
    fn invalid(field: impl Into<String>, reason: impl Into<String>) -> Self {
        BootError::Invalid { field: field.into(), reason: reason.into() }
    }
}

/// Reads boot data of a `format` (`cloud-config`, or `ignition`) into steps. Gzip around the whole is taken off.
///
/// The order is cloud-init's: `bootcmd`, `write_files`, deferred files, `runcmd`; Ignition's: files, then oneshot units.
pub fn read(format: &str, data: &[u8]) -> Result<Boot, BootError> {
    read_with(format, data, None)
}

/// [`read`], with instance data filled in where the document is a Jinja template. Expressions of other names, filters and
/// blocks stay as they are.
pub fn read_for(format: &str, data: &[u8], instance: &Instance) -> Result<Boot, BootError> {
    read_with(format, data, Some(instance))
}

fn read_with(format: &str, data: &[u8], instance: Option<&Instance>) -> Result<Boot, BootError> {
    if !matches!(format, "cloud-config" | "ignition") {
        return Err(BootError::UnknownFormat(format.to_owned()));
    }
    let unpacked;
    let data = if data.starts_with(&[0x1f, 0x8b]) {
        unpacked = gunzip(data, "the whole")?;
        unpacked.as_slice()
    } else {
        data
    };
    let text = std::str::from_utf8(data).map_err(|_| BootError::NotThisFormat {
        expected: if format == "ignition" { "Ignition JSON" } else { "a cloud-config document" },
        found: "it is not text in UTF-8".to_owned(),
    })?;
    match format {
        "ignition" => ignition::read(text),
        _ => cloud_config::read(text, instance),
    }
}

/// Takes gzip off, within [`MAX_UNPACKED`]. `field` names the place in errors.
fn gunzip(data: &[u8], field: &str) -> Result<Vec<u8>, BootError> {
    let mut out = Vec::new();
    flate2::read::MultiGzDecoder::new(data)
        .take(MAX_UNPACKED as u64 + 1)
        .read_to_end(&mut out)
        .map_err(|_| BootError::invalid(field, "is marked as gzip, but is no complete gzip stream"))?;
    if out.len() > MAX_UNPACKED {
        return Err(BootError::TooLarge { field: field.to_owned() });
    }
    Ok(out)
}

/// Base64 as it is written in documents: line breaks and blanks do not count, padding may be missing.
fn base64_decode(text: &str, field: &str) -> Result<Vec<u8>, BootError> {
    use base64::Engine as _;
    use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
    const LENIENT: GeneralPurpose = GeneralPurpose::new(
        &base64::alphabet::STANDARD,
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
    );
    let compact: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    LENIENT.decode(compact).map_err(|_| BootError::invalid(field, "is marked as base64, but is not"))
}

/// A word quoted for a POSIX shell, whatever is in it.
pub fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}
