//! Where log lines go.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Mutex;

use anyhow::{Context, Result};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::args::{Log, LogFormat};

/// A log file that is longer than this at the start is begun anew; the one before is kept beside it.
const LONGEST: u64 = 16 * 1024 * 1024;

/// What is logged without RUST_LOG. (The client's own words about a cluster that does not answer yet are left out: the
/// state of each connection is told elsewhere.)
const DEFAULT: &str = "info,kube_client=off";

fn filter() -> EnvFilter {
    EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(DEFAULT))
}

/// To standard error.
///
/// # Errors
/// When logging was set up before.
pub fn to_stderr(log: &Log) -> Result<()> {
    install(log, std::io::stderr)
}

/// To `DIR/log`, so that the progress on the terminal is not torn apart; to standard error when RUST_LOG is set.
///
/// # Errors
/// When the file cannot be written.
pub fn to_file(log: &Log, path: &Path) -> Result<()> {
    if std::env::var_os("RUST_LOG").is_some() {
        return to_stderr(log);
    }
    if std::fs::metadata(path).is_ok_and(|m| m.len() > LONGEST) {
        std::fs::rename(path, path.with_extension("old"))
            .with_context(|| format!("cannot set {} aside", path.display()))?;
    }
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(path)
        .with_context(|| format!("cannot write the log {}", path.display()))?;
    install(log, Mutex::new(file))
}

fn install<W>(log: &Log, writer: W) -> Result<()>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let builder = tracing_subscriber::fmt().with_env_filter(filter()).with_writer(writer).with_ansi(false);
    let installed = match log.log_format {
        LogFormat::Human => builder.try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    installed.map_err(|error| anyhow::anyhow!("cannot set up logging: {error}"))
}
