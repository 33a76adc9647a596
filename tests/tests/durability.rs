//! Crashes, restarts and two at once.

use std::time::Duration;

use anyhow::{Result, ensure};
use capstan_tests::on_both_back_ends;
use capstan_tests::plane::{BackEnd, Plane, Up, free_port};

const MINUTE: Duration = Duration::from_secs(60);

fn footprint(plane: &Plane) -> Result<Vec<String>> {
    let mut all: Vec<String> = plane
        .items(&["machines,simulatedmachines,kubeadmconfigs", "-n", "default"])?
        .iter()
        .map(|o| format!("{}/{} {}", o["kind"], o["metadata"]["name"], o["metadata"]["uid"]))
        .collect();
    all.sort();
    Ok(all)
}

on_both_back_ends!(
    a_kill_loses_nothing_and_makes_nothing_twice,
    a_kill_at_every_step_of_a_machines_creation_leaves_one_machine
);

#[test]
fn exit_says_how_long_it_took_and_a_second_start_resumes() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let port = free_port();
    let up = Up { exit: true, ..Up::default() };
    let mut first = Plane::start(dir.path(), port, &up)?;
    let code = first.wait_exit(2 * MINUTE)?;
    ensure!(code == 0, "exit code {code}:\n{}", first.output());

    let mut second = Plane::start(dir.path(), port, &Up::default())?;
    second.wait_ready(2 * MINUTE)?;
    ensure!(footprint(&second)?.len() == 12, "four machines with their infrastructure and bootstrap objects");
    Ok(())
}

fn a_kill_loses_nothing_and_makes_nothing_twice(back_end: BackEnd) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let port = free_port();
    let mut first = Plane::start(dir.path(), port, &Up::on(back_end))?;
    first.wait_ready(2 * MINUTE)?;
    let before = footprint(&first)?;
    ensure!(before.len() == 12, "four machines with their infrastructure and bootstrap objects: {before:#?}");
    first.kill();

    let mut second = Plane::start(dir.path(), port, &Up::on(back_end))?;
    second.wait_ready(2 * MINUTE)?;
    ensure!(footprint(&second)? == before, "the same objects after a kill: {:#?}\n{before:#?}", footprint(&second)?);
    Ok(())
}

#[test]
fn a_second_plane_on_the_same_state_is_refused() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut first = Plane::start(dir.path(), free_port(), &Up::default())?;
    first.wait_ready(2 * MINUTE)?;
    let mut second = Plane::start(dir.path(), free_port(), &Up::default())?;
    let code = second.wait_exit(MINUTE)?;
    let said = second.output();
    ensure!(code == 1 && said.contains(dir.path().to_str().unwrap_or_default()), "exit code {code}: {said}");
    ensure!(said.contains("in use") || said.contains("already"), "it says why: {said}");
    ensure!(first.kubectl(&["get", "cluster", "quickstart"]).is_ok(), "the first one is undisturbed");
    Ok(())
}

#[test]
fn a_port_in_use_is_refused_with_what_to_do() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let taken = std::net::TcpListener::bind("127.0.0.1:0")?;
    let port = taken.local_addr()?.port();
    let mut plane = Plane::start(dir.path(), port, &Up::default())?;
    let code = plane.wait_exit(MINUTE)?;
    let said = plane.output();
    ensure!(code == 1 && said.contains(&port.to_string()) && said.contains("--port"), "exit code {code}: {said}");
    Ok(())
}

fn a_kill_at_every_step_of_a_machines_creation_leaves_one_machine(back_end: BackEnd) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let port = free_port();
    let mut plane = Plane::start(dir.path(), port, &Up::on(back_end))?;
    plane.wait_ready(2 * MINUTE)?;
    plane.kill();

    // Each round lets the host carry out one effect more (a write to its API or a changing request to the cloud) than the
    // round before, while one worker is added, until a round needs no crash any more.
    // On a real API server each start costs more, and every third crash will do.
    let mut replicas = 3;
    let step = if back_end == BackEnd::Real { 3 } else { 1 };
    for effects in (1..40).step_by(step) {
        let abort = Up { env: vec![("CAPSTAN_ABORT_AFTER_EFFECTS".into(), effects.to_string())], ..Up::on(back_end) };
        let mut plane = Plane::start(dir.path(), port, &abort)?;
        let aborted = match plane.wait_ready(2 * MINUTE) {
            Err(_) => true,
            Ok(()) => {
                replicas += 1;
                // The crash may cut the very connection that asks.
                let _ = plane.kubectl(&[
                    "scale",
                    "machinedeployment",
                    "quickstart-workers",
                    &format!("--replicas={replicas}"),
                ]);
                settles(&plane, replicas).is_err()
            }
        };
        plane.kill();

        let mut plane = Plane::start(dir.path(), port, &Up::on(back_end))?;
        plane.wait_ready(2 * MINUTE)?;
        plane.kubectl(&["scale", "machinedeployment", "quickstart-workers", &format!("--replicas={replicas}")])?;
        settles(&plane, replicas)?;
        let objects = plane.items(&["simulatedmachines", "-n", "default"])?.len();
        let machines = plane.simulated_machines()?;
        ensure!(
            objects == replicas + 1 && machines.len() == replicas + 1,
            "after {effects} effects: {objects} SimulatedMachines and {machines:?} in the cloud for {} Machines",
            replicas + 1
        );
        plane.kill();
        if !aborted {
            ensure!(effects > 8, "a worker took only {effects} effects: the crashes did not happen");
            return Ok(());
        }
    }
    anyhow::bail!("a worker took more than 40 effects")
}

fn settles(plane: &Plane, replicas: usize) -> Result<()> {
    plane.until(Duration::from_secs(20), "the workers run", || {
        let machines = plane.items(&["machines", "-n", "default"])?;
        Ok(machines.len() == replicas + 1 && machines.iter().all(|m| m["status"]["phase"] == "Running"))
    })
}
