//! The cluster of `examples/docker.yaml` on an engine that is reached over TLS, by a tenant's own Endpoint, with a client
//! certificate that is exchanged in the middle.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use capstan_tests::authority::{Authority, Signed};
use capstan_tests::docker::{Engine, Net};
use capstan_tests::on_both_back_ends;
use capstan_tests::plane::{BackEnd, Plane, Up, free_port, root};
use capstan_tests::site::{list, told};
use serde_json::{Value, json};

const MINUTE: Duration = Duration::from_secs(60);
const CLUSTER: &str = "docker-quickstart";
const WORKERS: &str = "docker-quickstart-workers";
const CREDENTIAL: &str = "engine-client";

/// The tenant's Endpoints, its client certificate, and the operator's leave to go to loopback.
fn access(port: u16, authority: &str, client: &Signed) -> String {
    let endpoint = |name: &str| {
        json!({"apiVersion": "capstan.dev/v1alpha1", "kind": "Endpoint", "metadata": {"name": name, "namespace": "default"},
            "spec": {"url": format!("https://127.0.0.1:{port}"), "caBundle": authority,
                "credential": {"secretName": CREDENTIAL, "clientCertificate": {}}}})
    };
    list(&[
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": CREDENTIAL, "namespace": "default"},
            "stringData": pair(client)}),
        json!({"apiVersion": "capstan.dev/v1alpha1", "kind": "EgressPolicy", "metadata": {"name": "remote-engine"},
            "spec": {"addresses": ["127.0.0.1/32"], "namespaces": ["default"]}}),
        endpoint("engine"),
        endpoint("pull"),
    ])
}

fn pair(client: &Signed) -> Value {
    json!({"tls.crt": client.certificate, "tls.key": client.key})
}

fn containers(engine: &Engine) -> Result<usize> {
    let listed = engine.docker(&["ps", "-aq", "--filter", "label=capstan.dev/owner-key"])?;
    Ok(listed.lines().count())
}

fn joined(plane: &Plane) -> Result<usize> {
    let of = format!("cluster.x-k8s.io/deployment-name={WORKERS}");
    let machines = plane.items(&["machines", "-n", "default", "-l", &of])?;
    Ok(machines.iter().filter(|machine| machine["status"]["nodeRef"]["name"].is_string()).count())
}

/// What everything says of itself, for who reads of a failure.
fn state(plane: &Plane, engine: &Engine) -> String {
    let containers = engine.docker(&["ps", "-a", "--format", "{{.Names}}: {{.Status}}"]).unwrap_or_default();
    let kinds = "dockerclusters,dockermachines,kubeadmconfigs,clusters";
    let objects = plane.items(&[kinds, "-n", "default"]).unwrap_or_default();
    let conditions = |object: &Value| {
        let all = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let bad = all.iter().filter(|condition| condition["status"] != "True");
        bad.map(|condition| format!("  {} {}: {}\n", condition["type"], condition["reason"], condition["message"]))
            .collect::<String>()
    };
    let told: String = objects
        .iter()
        .map(|object| format!("{} {}\n{}", object["kind"], object["metadata"]["name"], conditions(object)))
        .collect();
    format!("{containers}{told}")
}

on_both_back_ends!(a_client_certificate_is_exchanged_in_the_middle);

fn a_client_certificate_is_exchanged_in_the_middle(back_end: BackEnd) -> Result<()> {
    let Some(mut engine) = Engine::own(Net::Shared)? else { return Ok(()) };
    engine.build_images()?;
    let (before, after) = (Authority::new()?, Authority::new()?);
    let (old, new) = (before.sign("capstan", &[])?, after.sign("capstan", &[])?);
    let server = before.sign("engine", &[])?;
    let port = engine.serve_tls(&server, &before.certificate)?;

    let dir = tempfile::tempdir()?;
    let access_file = dir.path().join("access.yaml");
    std::fs::write(&access_file, access(port, &before.certificate, &old))?;
    let up = Up {
        files: vec![access_file, root().join("examples/docker.yaml")],
        wait: "240s",
        // What the module has by itself leads nowhere.
        env: vec![("DOCKER_HOST".into(), format!("unix://{}", dir.path().join("no.sock").display()))],
        ..Up::on(back_end)
    };
    let mut plane = Plane::start(&dir.path().join("state"), free_port(), &up)?;
    plane.wait_ready(4 * MINUTE)?;
    plane.until(MINUTE, "three workers have joined", || Ok(joined(&plane)? == 3))?;

    // More machines are wanted, and the engine comes back with another authority for its clients before they are there.
    engine.stop();
    plane.kubectl(&["scale", "machinedeployment", WORKERS, "-n", "default", "--replicas=5"])?;
    engine.serve_tls(&server, &after.certificate)?;
    plane.until(2 * MINUTE, "the refused certificate is told", || {
        let machines = plane.items(&["dockermachines", "-n", "default"])?;
        Ok(machines.len() == 6
            && machines.iter().any(|machine| told(machine, "Ready").to_lowercase().contains("certificate")))
    })?;
    ensure!(containers(&engine)? == 5, "{} containers", containers(&engine)?);
    let change = json!({"stringData": pair(&new)}).to_string();
    plane.kubectl(&["patch", "secret", CREDENTIAL, "-n", "default", "--type=merge", "-p", &change])?;
    plane
        .until(3 * MINUTE, "five workers have joined", || Ok(joined(&plane)? == 5 && containers(&engine)? == 7))
        .with_context(|| state(&plane, &engine))?;

    plane.kubectl(&["delete", "cluster", CLUSTER, "-n", "default", "--timeout=120s"])?;
    ensure!(containers(&engine)? == 0, "{} containers are left", containers(&engine)?);
    ensure!(engine.docker(&["network", "ls", "-q", "--filter", "label=capstan.dev/owner-key"])?.is_empty());
    let said = plane.output();
    for client in [&old, &new] {
        let line = client.key.lines().nth(1).context("no key")?;
        ensure!(!said.contains(line), "the log has a key");
    }
    Ok(())
}
