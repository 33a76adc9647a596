//! What is wrong is refused or reported where it is, and the rest keeps working.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use capstan_tests::on_both_back_ends;
use capstan_tests::plane::{BackEnd, Plane, Up, binary, free_port, kubectl, kubectl_output, root};

const MINUTE: Duration = Duration::from_secs(60);

fn refused(plane: &Plane, dir: &Path, manifest: &str, words: &[&str]) -> Result<()> {
    let file = dir.join("manifest.yaml");
    std::fs::write(&file, manifest)?;
    let output = kubectl_output(&plane.kubeconfig(), &["apply", "-f", file.to_str().unwrap_or_default()])?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(!output.status.success(), "accepted:\n{manifest}\n{}", String::from_utf8_lossy(&output.stdout));
    for word in words {
        ensure!(said.contains(word), "{said:?} does not say {word:?}");
    }
    Ok(())
}

on_both_back_ends!(
    manifests_that_are_wrong_are_refused_with_path_and_reason,
    a_component_that_is_none_is_reported_on_its_module_and_the_rest_works,
);

fn manifests_that_are_wrong_are_refused_with_path_and_reason(back_end: BackEnd) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut plane = Plane::start(&dir.path().join("state"), free_port(), &Up::on(back_end))?;
    plane.wait_ready(2 * MINUTE)?;
    let cluster = "apiVersion: cluster.x-k8s.io/v1beta2\nkind: Cluster\nmetadata: {name: bad, namespace: default}\n";

    refused(
        &plane,
        dir.path(),
        "apiVersion: cluster.x-k8s.io/v1beta2\nkind: Clutser\nmetadata: {name: bad}\n",
        &["Clutser"],
    )?;
    refused(&plane, dir.path(), &format!("{cluster}spec: {{clusterNetwerk: {{}}}}\n"), &["spec.clusterNetwerk"])?;
    refused(&plane, dir.path(), &format!("{cluster}spec: {{paused: \"yes\"}}\n"), &["spec.paused", "boolean"])?;
    refused(&plane, dir.path(), &format!("{cluster}spec: {{}}\n"), &["spec"])?;
    refused(
        &plane,
        dir.path(),
        "apiVersion: infrastructure.cluster.x-k8s.io/v1beta1\nkind: SimulatedMachineTemplate\nmetadata: {name: bad, namespace: default}\nspec: {template: {spec: {cpus: many}}}\n",
        &["spec.template.spec.cpus"],
    )?;

    // A reference to nothing is a condition of the object that has it.
    let file = dir.path().join("dangling.yaml");
    std::fs::write(
        &file,
        format!(
            "{cluster}spec:\n  infrastructureRef: {{apiGroup: infrastructure.cluster.x-k8s.io, kind: SimulatedCluster, name: nowhere}}\n"
        ),
    )?;
    plane.kubectl(&["apply", "-f", file.to_str().unwrap_or_default()])?;
    plane.until(MINUTE, "the dangling reference is reported", || {
        let cluster = plane.get(&["cluster", "bad"])?;
        let conditions = cluster["status"]["conditions"].as_array().cloned().unwrap_or_default();
        Ok(conditions.iter().any(|c| {
            c["type"] == "InfrastructureReady"
                && c["status"] != "True"
                && c["message"].as_str().is_some_and(|m| m.contains("nowhere"))
        }))
    })?;
    plane.kubectl(&["delete", "cluster", "bad", "--timeout=30s"])?;
    ensure!(plane.kubectl(&["get", "cluster", "quickstart"]).is_ok());
    Ok(())
}

#[test]
fn a_file_given_to_up_that_is_wrong_ends_it_and_names_line_and_field() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("twice.yaml");
    std::fs::write(&file, "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n  name: b\n")?;
    let mut plane =
        Plane::start(&dir.path().join("state"), free_port(), &Up { files: vec![file], exit: true, ..Up::default() })?;
    let code = plane.wait_exit(MINUTE)?;
    let said = plane.output();
    ensure!(code == 1 && said.contains("twice.yaml") && said.contains("name"), "exit code {code}: {said}");
    ensure!(!said.contains("panicked"), "{said}");
    Ok(())
}

#[test]
fn that_nobody_reads_on_ends_nothing() -> Result<()> {
    let file = root().join("target/providers/aws.wasm");
    let mut child = Command::new(binary())
        .args(["provider", "inspect"])
        .arg(&file)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    drop(child.stdout.take());
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() && said.is_empty(), "{}: {said}", output.status);

    // A plane whose terminal is gone goes on.
    let dir = tempfile::tempdir()?;
    let (state, port) = (dir.path().join("state"), free_port());
    let mut child = Command::new(binary())
        .args(["up", "--port", &port.to_string(), "--state-dir"])
        .arg(&state)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    drop(child.stdout.take());
    let deadline = Instant::now() + 2 * MINUTE;
    let available = || {
        let wait = ["wait", "--for=condition=Available", "cluster/quickstart", "--timeout=1s"];
        kubectl(&state.join("kubeconfig"), &wait).is_ok()
    };
    while !available() {
        ensure!(child.try_wait()?.is_none(), "it has ended");
        ensure!(Instant::now() < deadline, "the quickstart does not become available");
        std::thread::sleep(Duration::from_millis(200));
    }
    child.kill()?;
    child.wait()?;
    Ok(())
}

fn a_component_that_is_none_is_reported_on_its_module_and_the_rest_works(back_end: BackEnd) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut plane = Plane::start(&dir.path().join("state"), free_port(), &Up::on(back_end))?;
    plane.wait_ready(2 * MINUTE)?;
    let junk = dir.path().join("junk.wasm");
    std::fs::write(&junk, b"this is no component")?;
    let file = dir.path().join("module.yaml");
    std::fs::write(
        &file,
        format!(
            "apiVersion: capstan.dev/v1alpha1\nkind: ProviderModule\nmetadata: {{name: junk}}\nspec: {{source: {{file: {}}}}}\n",
            junk.display()
        ),
    )?;
    plane.kubectl(&["apply", "-f", file.to_str().unwrap_or_default()])?;
    plane.until(MINUTE, "the module says what is wrong", || {
        let module = plane.get(&["providermodule", "junk"])?;
        let conditions = module["status"]["conditions"].as_array().cloned().unwrap_or_default();
        Ok(conditions.iter().any(|c| {
            c["type"] == "Loaded"
                && c["status"] == "False"
                && c["message"].as_str().is_some_and(|m| m.contains("junk.wasm"))
        }))
    })?;
    plane.kubectl(&["scale", "machinedeployment", "quickstart-workers", "--replicas=4"])?;
    plane.kubectl(&[
        "wait",
        "--for=jsonpath={.status.availableReplicas}=4",
        "machinedeployment/quickstart-workers",
        "--timeout=60s",
    ])?;
    ensure!(root().join("examples/quickstart.yaml").exists());
    Ok(())
}
