//! State directories: what the first version of this program wrote opens and goes on, and what is in them is its owner's.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use capstan_tests::plane::{Plane, Up, free_port, root};

const MINUTE: Duration = Duration::from_secs(60);

/// What `capstan up` of the first version left of the quickstart (tests/fixtures/README.md says how it was made).
fn first_state() -> Result<tempfile::TempDir> {
    let dir = tempfile::tempdir()?;
    let archive = root().join("tests/fixtures/first-state.tar.gz");
    let output = Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(dir.path()).output()?;
    ensure!(output.status.success(), "tar: {}", String::from_utf8_lossy(&output.stderr));
    Ok(dir)
}

/// Every object of these kinds, with its uid.
fn footprint(plane: &Plane) -> Result<Vec<String>> {
    let kinds = "clusters,machines,machinesets,machinedeployments,kubeadmcontrolplanes,kubeadmconfigs,simulatedclusters,simulatedmachines,secrets";
    let mut all: Vec<String> = plane
        .items(&[kinds, "-n", "default"])?
        .iter()
        .map(|o| {
            let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
            format!("{} {} {}", text(&o["kind"]), text(&o["metadata"]["name"]), text(&o["metadata"]["uid"]))
        })
        .collect();
    all.sort();
    Ok(all)
}

#[test]
fn the_first_state_directory_opens_and_goes_on() -> Result<()> {
    let dir = first_state()?;
    let state = dir.path().join("state");
    let known = std::fs::read_to_string(dir.path().join("footprint.txt"))?;
    let known: Vec<&str> = known.lines().collect();
    let mut plane = Plane::start(&state, free_port(), &Up::default())?;
    plane.wait_ready(2 * MINUTE)?;
    let found = footprint(&plane)?;
    for object in &known {
        ensure!(found.iter().any(|own| own == object), "{object} is not there any more: {found:#?}");
    }
    // The cluster's Secrets can still be read, and lead to it.
    let nodes =
        capstan_tests::plane::kubectl(&plane.workload_kubeconfig("quickstart")?, &["get", "nodes", "-o", "name"])?;
    ensure!(nodes.lines().count() == 4, "four nodes: {nodes}");
    plane.kubectl(&["scale", "machinedeployment", "quickstart-workers", "--replicas=4"])?;
    plane.until(MINUTE, "there is one worker more", || {
        let machines = plane.items(&["machines", "-n", "default"])?;
        Ok(machines.len() == 5 && machines.iter().all(|m| m["status"]["phase"] == "Running"))
    })?;
    let found = footprint(&plane)?;
    for object in known.iter().filter(|object| object.starts_with("Machine ")) {
        ensure!(found.iter().any(|own| own == object), "{object} was made anew: {found:#?}");
    }
    Ok(())
}

/// Whether a file has these bytes in it.
fn has(file: &Path, words: &[u8]) -> Result<bool> {
    Ok(std::fs::read(file)?.windows(words.len()).any(|part| part == words))
}

fn key(dir: &Path, name: &str) -> Result<PathBuf> {
    let path = dir.join(name);
    let made = Command::new("sh")
        .arg("-c")
        .arg("umask 077; head -c 32 /dev/urandom | base64 >\"$1\"")
        .arg("sh")
        .arg(&path)
        .status()?;
    ensure!(made.success());
    Ok(path)
}

fn with_keys(keys: &[&Path]) -> Up {
    let args = keys.iter().flat_map(|key| ["--encryption-key-file".to_owned(), key.display().to_string()]);
    Up { args: args.collect(), ..Up::default() }
}

#[test]
fn secrets_are_encrypted_at_rest_under_keys_that_can_be_changed() -> Result<()> {
    let keys = tempfile::tempdir()?;
    let (old, new) = (key(keys.path(), "old")?, key(keys.path(), "new")?);
    let dir = first_state()?;
    let state = dir.path().join("state");
    let objects = state.join("state.redb");
    // How keys and certificates begin in base64: only the cluster's Secrets have that.
    let word = b"LS0tLS1CRUdJTi";
    ensure!(has(&objects, word)?, "the search finds what is there");
    let known = std::fs::read_to_string(dir.path().join("footprint.txt"))?;
    for given in [vec![old.as_path()], vec![new.as_path(), old.as_path()], vec![new.as_path()]] {
        let mut plane = Plane::start(&state, free_port(), &with_keys(&given))?;
        plane.wait_ready(2 * MINUTE)?;
        ensure!(!has(&objects, word)?, "a Secret can be read in {}", objects.display());
        let found = footprint(&plane)?;
        ensure!(known.lines().all(|object| found.iter().any(|own| own == object)), "{found:#?}");
        plane.workload_kubeconfig("quickstart")?;
        plane.kill();
        std::fs::remove_file(state.join("quickstart.kubeconfig"))?;
    }
    for given in [vec![], vec![old.as_path()]] {
        let mut plane = Plane::start(&state, free_port(), &with_keys(&given))?;
        let code = plane.wait_exit(MINUTE)?;
        let said = plane.output();
        ensure!(code == 1 && said.contains("--encryption-key-file"), "exit code {code}: {said}");
    }
    let mut plane = Plane::start(&state, free_port(), &with_keys(&[&new]))?;
    plane.wait_ready(2 * MINUTE)?;
    plane.kill();
    std::fs::set_permissions(&new, PermissionsExt::from_mode(0o644))?;
    let mut plane = Plane::start(&state, free_port(), &with_keys(&[&new]))?;
    let code = plane.wait_exit(MINUTE)?;
    let said = plane.output();
    ensure!(code == 1 && said.contains("chmod 600"), "exit code {code}: {said}");
    Ok(())
}

#[test]
fn a_state_directory_is_its_owners() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let state = dir.path().join("state");
    let mut plane = Plane::start(&state, free_port(), &Up::default())?;
    plane.wait_ready(2 * MINUTE)?;
    let mut look = vec![state.clone()];
    let mut seen = 0;
    while let Some(path) = look.pop() {
        let meta = std::fs::symlink_metadata(&path)?;
        let mode = meta.permissions().mode() & 0o777;
        let wanted = if meta.is_dir() { 0o700 } else { 0o600 };
        ensure!(mode == wanted, "{} is {mode:o} and not {wanted:o}", path.display());
        seen += 1;
        if meta.is_dir() {
            for entry in std::fs::read_dir(&path).with_context(|| path.display().to_string())? {
                look.push(entry?.path());
            }
        }
    }
    ensure!(seen > 5, "only {seen} files");
    Ok(())
}
