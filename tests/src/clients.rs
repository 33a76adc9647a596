//! Programs in Go that are clients of API servers: one on client-go and controller-runtime, and clusterctl.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::Result;

use crate::plane::{root, skip};

/// The directory with `clients` and `clusterctl`. None, and a loud line, when they are not built: `tests/setup.sh` builds them.
///
/// # Errors
/// When the list of what was left out cannot be written.
pub fn programs() -> Result<Option<PathBuf>> {
    let output = Command::new(root().join("tests/clients/build.sh")).arg("--find").stderr(Stdio::inherit()).output();
    let found = output.ok().filter(|output| output.status.success());
    let path = found.and_then(|output| String::from_utf8(output.stdout).ok()).map(|path| PathBuf::from(path.trim()));
    if path.is_none() {
        skip("client-go, controller-runtime and clusterctl: run tests/setup.sh, which builds programs of theirs")?;
    }
    Ok(path)
}
