//! `capstan provider`: making components, looking at them and running their recorded turns again.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use capstan_runtime::{Engine, EngineConfig, Module, Recording};

use crate::modules::one_line;

/// Makes a component of a core module.
///
/// # Errors
/// When it is no core module of a provider, or files cannot be read or written.
pub fn package(input: &Path, output: &Path) -> Result<ExitCode> {
    capstan_runtime::package::package_file(input, output)
        .with_context(|| format!("cannot make a component of {}", input.display()))?;
    say!("{}", output.display());
    Ok(ExitCode::SUCCESS)
}

/// Checks a component and prints what it says of itself.
///
/// # Errors
/// When it is none that this host could run.
pub fn inspect(file: &Path) -> Result<ExitCode> {
    let found = capstan_runtime::inspect(file).map_err(|error| anyhow::anyhow!(one_line(&error)))?;
    say!("{}", serde_json::to_string_pretty(&found).context("encode what was found")?);
    Ok(ExitCode::SUCCESS)
}

/// Runs a recorded turn again and says what is different; the exit code tells as well.
///
/// # Errors
/// When the recording or the component cannot be used.
pub async fn replay(file: &Path, component: &Path) -> Result<ExitCode> {
    let recording = Recording::read(file).map_err(|why| anyhow::anyhow!(why))?;
    let mut config = EngineConfig::new(std::path::PathBuf::new()).context("find the running program")?;
    config.cache_dir = None;
    let engine = Engine::new(config)?;
    let module = Module::load_file(&engine, component).map_err(|error| anyhow::anyhow!(one_line(&error)))?;
    if module.digest() != recording.digest {
        say!("The recording is of another component: {}, and this is {}.", recording.digest, module.digest());
    }
    match module.replay(&recording).await.map_err(|why| anyhow::anyhow!(why))? {
        None => {
            say!("The same: {} calls, {} requests.", recording.calls.len(), recording.requests());
            Ok(ExitCode::SUCCESS)
        }
        Some(difference) => {
            say!("Not the same: {difference}");
            Ok(ExitCode::FAILURE)
        }
    }
}
