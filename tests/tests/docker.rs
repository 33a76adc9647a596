//! The same cluster on a real Docker Engine.

use std::time::Duration;

use anyhow::{Result, ensure};
use capstan_tests::docker::Engine;
use capstan_tests::plane::{Plane, Up, free_port, kubectl, root};

const MINUTE: Duration = Duration::from_secs(60);

fn containers(engine: &Engine) -> Result<Vec<String>> {
    let listed = engine.docker(&[
        "ps",
        "-a",
        "--filter",
        "label=io.x-k8s.kind.cluster=docker-quickstart",
        "--format",
        "{{.Names}}",
    ])?;
    Ok(listed.lines().map(str::to_owned).collect())
}

#[test]
fn docker_from_nothing_to_nothing() -> Result<()> {
    let Some(engine) = Engine::find()? else { return Ok(()) };
    engine.build_images()?;
    let dir = tempfile::tempdir()?;
    let state = dir.path().join("state");
    let port = free_port();
    let up = Up {
        files: vec![root().join("examples/docker.yaml")],
        wait: "240s",
        env: vec![("DOCKER_HOST".into(), format!("unix://{}", engine.socket.display()))],
        ..Up::default()
    };
    // A crash in the middle of it changes nothing in what comes of it.
    let mut plane = Plane::start(&state, port, &up)?;
    plane.wait_for_line("docker-quickstart", MINUTE)?;
    plane.until(MINUTE, "the first container", || Ok(!containers(&engine)?.is_empty()))?;
    plane.kill();
    let mut plane = Plane::start(&state, port, &up)?;
    plane.wait_ready(4 * MINUTE)?;

    let names = containers(&engine)?;
    ensure!(names.len() == 5, "four machines and a load balancer: {names:?}");
    let machines = plane.items(&["machines", "-n", "default"])?;
    ensure!(machines.len() == 4, "{} machines", machines.len());
    for machine in &machines {
        let provider_id = machine["spec"]["providerID"].as_str().unwrap_or_default();
        let container = provider_id.trim_start_matches("docker:////");
        ensure!(names.iter().any(|n| n == container), "{provider_id} is none of {names:?}");
        ensure!(machine["status"]["nodeRef"]["name"].is_string(), "{} has no Node", machine["metadata"]["name"]);
    }
    let workload = plane.workload_kubeconfig("docker-quickstart")?;
    ensure!(kubectl(&workload, &["get", "nodes", "--no-headers"])?.lines().count() == 4);

    // A container removed by hand is reported and not made again.
    let workers = plane.items(&[
        "machines",
        "-n",
        "default",
        "-l",
        "cluster.x-k8s.io/deployment-name=docker-quickstart-workers",
    ])?;
    let victim =
        workers.first().map(|m| m["metadata"]["name"].as_str().unwrap_or_default().to_owned()).unwrap_or_default();
    let container =
        plane.get(&["machine", &victim])?["spec"]["providerID"].as_str().unwrap_or_default().replace("docker:////", "");
    engine.docker(&["rm", "-f", "-v", &container])?;
    plane.until(2 * MINUTE, "the lost container is reported", || {
        let machine = plane.get(&["machine", &victim])?;
        let conditions = machine["status"]["conditions"].as_array().cloned().unwrap_or_default();
        Ok(conditions.iter().any(|c| c["type"] == "InfrastructureReady" && c["status"] == "False"))
    })?;
    ensure!(!containers(&engine)?.contains(&container), "it was made again behind the user's back");

    plane.kubectl(&["scale", "machinedeployment", "docker-quickstart-workers", "--replicas=1"])?;
    plane.until(2 * MINUTE, "one worker is left", || Ok(containers(&engine)?.len() == 3))?;

    plane.kubectl(&["delete", "cluster", "docker-quickstart", "--timeout=120s"])?;
    ensure!(containers(&engine)?.is_empty(), "{:?}", containers(&engine)?);
    let kinds = "clusters,machines,machinesets,machinedeployments,kubeadmcontrolplanes,kubeadmconfigs,dockerclusters,dockermachines,secrets";
    plane.until(MINUTE, "nothing is left", || Ok(plane.items(&[kinds, "-n", "default"])?.is_empty()))?;
    Ok(())
}
