//! The quickstart as its user lives it: from nothing to ready, scaled, rolled, broken, deleted.

use std::time::Duration;

use anyhow::{Result, ensure};
use capstan_tests::on_both_back_ends;
use capstan_tests::plane::{BackEnd, Plane, Up, free_port, kubectl, root};
use serde_json::Value;

const MINUTE: Duration = Duration::from_secs(60);

fn running_machines(plane: &Plane) -> Result<Vec<Value>> {
    let machines = plane.items(&["machines", "-A"])?;
    Ok(machines.into_iter().filter(|m| m["status"]["phase"] == "Running").collect())
}

fn workers(plane: &Plane) -> Result<Vec<Value>> {
    plane.items(&["machines", "-n", "default", "-l", "cluster.x-k8s.io/deployment-name=quickstart-workers"])
}

/// Changing requests of the management API so far, Events and Leases aside.
fn changing_requests(plane: &Plane) -> Result<u64> {
    let metrics = plane.kubectl(&["get", "--raw", "/metrics"])?;
    let mut total = 0;
    for line in metrics.lines().filter(|line| line.starts_with("apiserver_request_total{")) {
        let label = |name: &str| {
            line.split_once(&format!("{name}=\""))
                .and_then(|(_, rest)| rest.split_once('"'))
                .map_or("", |(value, _)| value)
        };
        let changes = matches!(label("verb"), "POST" | "PUT" | "PATCH" | "DELETE" | "APPLY" | "DELETECOLLECTION");
        if changes && !matches!(label("resource"), "events" | "leases" | "providermodules" | "endpoints") {
            let count: f64 = line.rsplit(' ').next().unwrap_or_default().parse()?;
            total += count as u64;
        }
    }
    Ok(total)
}

on_both_back_ends!(from_nothing_to_ready_within_the_write_budget, scale_roll_lose_and_delete);

fn from_nothing_to_ready_within_the_write_budget(back_end: BackEnd) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let nothing = dir.path().join("nothing.yaml");
    std::fs::write(&nothing, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: nothing, namespace: default}\n")?;
    let mut plane =
        Plane::start(&dir.path().join("state"), free_port(), &Up { files: vec![nothing], ..Up::on(back_end) })?;
    plane.wait_ready(MINUTE)?;
    let before = changing_requests(&plane)?;

    plane.kubectl(&["apply", "-f", root().join("examples/quickstart.yaml").to_str().unwrap_or_default()])?;
    plane.kubectl(&["wait", "--for=condition=Available", "cluster/quickstart", "--timeout=90s"])?;
    plane.until(MINUTE, "four machines Running", || Ok(running_machines(&plane)?.len() == 4))?;
    // What is merely held back for a second (Urgency::Soon) belongs to the bill.
    let mut last = changing_requests(&plane)?;
    let mut quiet = 0;
    plane.until(MINUTE, "the writes settle", || {
        let now = changing_requests(&plane)?;
        quiet = if now == last { quiet + 1 } else { 0 };
        last = now;
        Ok(quiet >= 20)
    })?;
    let spent = last - before;
    println!("changing requests of the quickstart: {spent}");
    let metrics = plane.kubectl(&["get", "--raw", "/metrics"])?;
    let bill: Vec<&str> = metrics
        .lines()
        .filter(|l| {
            l.starts_with("apiserver_request_total{")
                && !l.contains("GET\"")
                && !l.contains("LIST\"")
                && !l.contains("WATCH\"")
        })
        .collect();
    ensure!(spent <= 60 + 2 * 13, "{spent} changing requests, the budget is 86:\n{}", bill.join("\n"));
    ensure!(spent >= 20, "{spent} changing requests cannot have made a cluster: the counter is broken");

    for machine in running_machines(&plane)? {
        let name = machine["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let provider_id = machine["spec"]["providerID"].as_str().unwrap_or_default();
        ensure!(provider_id.starts_with("simulated://"), "{name} has providerID {provider_id:?}");
        ensure!(machine["status"]["nodeRef"]["name"].is_string(), "{name} has no nodeRef");
    }

    // The Nodes are in the workload cluster itself, each with the providerID of its Machine.
    let workload = plane.workload_kubeconfig("quickstart")?;
    let nodes: Value = serde_json::from_str(&kubectl(&workload, &["get", "nodes", "-o", "json"])?)?;
    let mut of_nodes: Vec<_> =
        nodes["items"].as_array().into_iter().flatten().map(|n| n["spec"]["providerID"].clone()).collect();
    let mut of_machines: Vec<_> = running_machines(&plane)?.iter().map(|m| m["spec"]["providerID"].clone()).collect();
    of_nodes.sort_by_key(Value::to_string);
    of_machines.sort_by_key(Value::to_string);
    ensure!(of_nodes == of_machines, "Nodes {of_nodes:?}, Machines {of_machines:?}");
    Ok(())
}

fn scale_roll_lose_and_delete(back_end: BackEnd) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let state = dir.path().join("state");
    let mut plane = Plane::start(&state, free_port(), &Up::on(back_end))?;
    plane.wait_ready(2 * MINUTE)?;

    // Ways in which people look at it.
    let table = plane.kubectl(&["get", "machines", "-A"])?;
    ensure!(table.lines().next().is_some_and(|head| head.contains("PHASE") && head.contains("VERSION")), "{table}");
    ensure!(table.lines().count() == 5, "{table}");
    let described = plane.kubectl(&["describe", "cluster", "quickstart"])?;
    ensure!(described.contains("Conditions:") && described.contains("Available"), "{described}");
    ensure!(plane.kubectl(&["explain", "machinedeployment.spec.rollout"])?.contains("strategy"), "explain");

    // 3 → 5 → 2, with a watch open that must see it.
    let scale = |replicas: usize| -> Result<()> {
        plane.kubectl(&["scale", "machinedeployment", "quickstart-workers", &format!("--replicas={replicas}")])?;
        plane.until(MINUTE, &format!("{replicas} workers"), || {
            let workers = workers(&plane)?;
            Ok(workers.len() == replicas && workers.iter().all(|m| m["status"]["phase"] == "Running"))
        })
    };
    scale(5)?;
    scale(2)?;
    ensure!(plane.simulated_machines()?.len() == 3, "{:?}", plane.simulated_machines()?);
    scale(3)?;

    // A template with one change rolls all workers: never fewer than 3 available, never more than 4 in all.
    let template = plane.get(&["simulatedmachinetemplate", "quickstart-workers"])?;
    let mut next = template.clone();
    next["metadata"] = serde_json::json!({"name": "quickstart-workers-2", "namespace": "default"});
    next["spec"]["template"]["spec"]["memoryMiB"] = 16384.into();
    let file = dir.path().join("template.json");
    std::fs::write(&file, next.to_string())?;
    plane.kubectl(&["create", "-f", file.to_str().unwrap_or_default()])?;
    let old: Vec<String> =
        workers(&plane)?.iter().map(|m| m["metadata"]["name"].as_str().unwrap_or_default().to_owned()).collect();
    plane.kubectl(&[
        "patch",
        "machinedeployment",
        "quickstart-workers",
        "--type=merge",
        "-p",
        r#"{"spec":{"template":{"spec":{"infrastructureRef":{"name":"quickstart-workers-2"}}}}}"#,
    ])?;
    let mut most = 0;
    let mut fewest = usize::MAX;
    plane.until(2 * MINUTE, "the roll-out", || {
        let now = workers(&plane)?;
        let available = now
            .iter()
            .filter(|m| m["metadata"]["deletionTimestamp"].is_null())
            .filter(|m| {
                let conditions = m["status"]["conditions"].as_array();
                conditions.into_iter().flatten().any(|c| c["type"] == "Available" && c["status"] == "True")
            })
            .count();
        most = most.max(now.iter().filter(|m| m["metadata"]["deletionTimestamp"].is_null()).count());
        fewest = fewest.min(available);
        let rolled = now.iter().all(|m| !old.iter().any(|o| m["metadata"]["name"] == o.as_str()));
        Ok(rolled && now.len() == 3 && available == 3)
    })?;
    ensure!(most <= 4, "maxSurge is 1 and {most} machines were there");
    ensure!(fewest >= 3, "maxUnavailable is 0 and only {fewest} were available");

    // A machine that vanishes is reported, not replaced behind the user's back.
    let lost = workers(&plane)?.swap_remove(0);
    let name = lost["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let provider_id =
        lost["spec"]["providerID"].as_str().unwrap_or_default().trim_start_matches("simulated://").to_owned();
    plane.simulator(&["fault", &provider_id, "lose"])?;
    plane.until(2 * MINUTE, "the loss is reported on the Machine", || {
        let machine = plane.get(&["machine", &name])?;
        let conditions = machine["status"]["conditions"].as_array().cloned().unwrap_or_default();
        Ok(conditions.iter().any(|c| c["type"] == "InfrastructureReady" && c["status"] == "False"))
    })?;

    // And all of it goes, in Cluster API's order.
    plane.kubectl(&["delete", "cluster", "quickstart", "--timeout=90s"])?;
    plane.until(MINUTE, "nothing is left", || {
        let kinds = "clusters,machines,machinesets,machinedeployments,kubeadmcontrolplanes,kubeadmconfigs,simulatedclusters,simulatedmachines,secrets";
        Ok(plane.items(&[kinds, "-n", "default"])?.is_empty())
    })?;
    ensure!(plane.simulated_machines()?.is_empty(), "{:?}", plane.simulated_machines()?);
    Ok(())
}
