//! `capstan provider`: making and looking at components.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::modules::one_line;

/// Makes a component of a core module.
///
/// # Errors
/// When it is no core module of a provider, or files cannot be read or written.
pub fn package(input: &Path, output: &Path) -> Result<ExitCode> {
    capstan_runtime::package::package_file(input, output)
        .with_context(|| format!("cannot make a component of {}", input.display()))?;
    println!("{}", output.display());
    Ok(ExitCode::SUCCESS)
}

/// Checks a component and prints what it says of itself.
///
/// # Errors
/// When it is none that this host could run.
pub fn inspect(file: &Path) -> Result<ExitCode> {
    let found = capstan_runtime::inspect(file).map_err(|error| anyhow::anyhow!(one_line(&error)))?;
    println!("{}", serde_json::to_string_pretty(&found).context("encode what was found")?);
    Ok(ExitCode::SUCCESS)
}
