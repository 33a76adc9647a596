//! The cluster of `examples/docker.yaml` on a real Docker Engine: up, changed, disturbed, and down to nothing.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use capstan_tests::docker::Engine;
use capstan_tests::on_both_back_ends;
use capstan_tests::plane::{BackEnd, Plane, Up, free_port, kubectl, root};
use serde_json::{Value, json};

const MINUTE: Duration = Duration::from_secs(60);
const CLUSTER: &str = "docker-quickstart";
const WORKERS: &str = "docker-quickstart-workers";
/// Somebody else's, with the name that the load balancer would have.
const STALE: &str = "docker-quickstart-lb";

fn containers(engine: &Engine) -> Result<Vec<String>> {
    let listed = engine.docker(&["ps", "-a", "--filter", "label=capstan.dev/owner-key", "--format", "{{.Names}}"])?;
    Ok(listed.lines().map(str::to_owned).collect())
}

fn balancers(engine: &Engine) -> Result<Vec<String>> {
    let role = "label=io.x-k8s.kind.role=external-load-balancer";
    let listed = engine.docker(&["ps", "--filter", role, "--format", "{{.Names}}"])?;
    Ok(listed.lines().map(str::to_owned).collect())
}

fn container_of(machine: &Value) -> String {
    machine["spec"]["providerID"].as_str().unwrap_or_default().trim_start_matches("docker:////").to_owned()
}

fn workers(plane: &Plane, deployment: &str) -> Result<Vec<Value>> {
    let of = format!("cluster.x-k8s.io/deployment-name={deployment}");
    plane.items(&["machines", "-n", "default", "-l", &of])
}

/// A condition's status, reason and message.
fn condition(object: &Value, kind: &str) -> (String, String, String) {
    let all = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = all.into_iter().find(|condition| condition["type"] == kind).unwrap_or_default();
    let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
    (text("status"), text("reason"), text("message"))
}

fn infrastructure_of(plane: &Plane, machine: &Value) -> Result<Value> {
    let name = machine["spec"]["infrastructureRef"]["name"].as_str().context("no infrastructureRef")?;
    plane.get(&["dockermachine", name])
}

struct Scene {
    engine: Engine,
    plane: Plane,
    endpoint: Value,
}

impl Scene {
    /// The API server answers at the endpoint, which is still the same one, and one load balancer runs.
    fn endpoint_answers(&self) -> Result<()> {
        let workload = self.plane.workload_kubeconfig(CLUSTER)?;
        self.plane.until(MINUTE, "the endpoint answers", || {
            Ok(balancers(&self.engine)?.len() == 1
                && kubectl(&workload, &["get", "nodes", "--request-timeout=3s", "-o", "name"]).is_ok())
        })?;
        let now = self.plane.get(&["cluster", CLUSTER])?["spec"]["controlPlaneEndpoint"].clone();
        ensure!(now == self.endpoint, "the endpoint was {} and is {now}", self.endpoint);
        Ok(())
    }

    /// Field case A13: stopped, removed; one with its name was there before the cluster was.
    fn the_load_balancer_comes_back(&self) -> Result<()> {
        let balancer = balancers(&self.engine)?.pop().context("no load balancer")?;
        ensure!(balancer != STALE, "somebody else's container was taken");
        self.engine.docker(&["stop", "-t", "1", &balancer])?;
        self.endpoint_answers()?;
        self.engine.docker(&["rm", "-f", "-v", &balancer])?;
        self.endpoint_answers()
    }

    /// Field case A25: what is deleted while the engine is away is gone only when its container is.
    fn a_deletion_waits_for_the_engine(&mut self, victim: &Value) -> Result<()> {
        if !self.engine.is_own() {
            return Ok(());
        }
        let name = victim["spec"]["infrastructureRef"]["name"].as_str().context("no infrastructureRef")?.to_owned();
        self.engine.stop();
        self.plane.kubectl(&["delete", "dockermachine", &name, "--wait=false"])?;
        self.plane.until(MINUTE, "it says why it is not deleted", || {
            let (_, reason, message) = condition(&self.plane.get(&["dockermachine", &name])?, "Ready");
            Ok(reason == "EngineUnreachable" && message.contains("docker.sock"))
        })?;
        self.engine.start()?;
        let container = container_of(victim);
        self.plane.until(2 * MINUTE, "it is gone when its container is", || {
            let gone = self.plane.items(&["dockermachines"])?.iter().all(|m| m["metadata"]["name"] != *name);
            ensure!(!gone || !containers(&self.engine)?.contains(&container), "its container is still there");
            Ok(gone)
        })?;
        // The engine's restart moved addresses; the endpoint is where it was.
        self.endpoint_answers()
    }

    /// What stops or vanishes is told and not made again behind the user's back.
    fn drift_is_told(&self) -> Result<()> {
        let all = workers(&self.plane, WORKERS)?;
        let [stopped, removed, ..] = all.as_slice() else { anyhow::bail!("{} workers", all.len()) };
        self.engine.docker(&["stop", "-t", "0", &container_of(stopped)])?;
        self.engine.docker(&["rm", "-f", "-v", &container_of(removed)])?;
        for (machine, reason) in [(stopped, "ContainerNotRunning"), (removed, "ContainerDeleted")] {
            let name = machine["metadata"]["name"].as_str().unwrap_or_default();
            self.plane.until(2 * MINUTE, "what happened to a container is told", || {
                let told = condition(&infrastructure_of(&self.plane, machine)?, "ContainerProvisioned");
                let up = condition(&self.plane.get(&["machine", name])?, "InfrastructureReady");
                Ok((told.0.as_str(), told.1.as_str(), up.0.as_str()) == ("False", reason, "False"))
            })?;
        }
        ensure!(!containers(&self.engine)?.contains(&container_of(removed)), "it was made again");
        let names = [stopped, removed].map(|machine| machine["metadata"]["name"].as_str().unwrap_or_default());
        self.plane.kubectl(&["delete", "machine", names[0], names[1], "--wait=false"])?;
        self.workers_are(3, |machine| !names.contains(&machine["metadata"]["name"].as_str().unwrap_or_default()))
    }

    /// So many workers with Nodes, all of them like this, and no more containers than that.
    fn workers_are(&self, count: usize, like: impl Fn(&Value) -> bool) -> Result<()> {
        self.plane.until(3 * MINUTE, "the workers are there", || {
            let all = workers(&self.plane, WORKERS)?;
            let there = all.iter().filter(|m| m["status"]["nodeRef"]["name"].is_string() && like(m)).count();
            Ok(all.len() == count && there == count && containers(&self.engine)?.len() == count + 2)
        })
    }

    /// New machines for a new template.
    fn a_new_template_rolls_out(&self) -> Result<()> {
        let mut template = self.plane.get(&["dockermachinetemplate", WORKERS])?;
        let name = format!("{WORKERS}-2");
        template["metadata"] = json!({"name": name, "namespace": "default"});
        template["spec"]["template"]["spec"]["extraMounts"] =
            json!([{"hostPath": "/usr/share", "containerPath": "/mnt/share", "readOnly": true}]);
        self.apply(&template)?;
        let change = json!({"spec": {"template": {"spec": {"infrastructureRef": {"name": name}}}}}).to_string();
        self.plane.kubectl(&["patch", "machinedeployment", WORKERS, "--type=merge", "-p", &change])?;
        let is_new = |machine: &Value| {
            infrastructure_of(&self.plane, machine).is_ok_and(|infra| infra["spec"]["extraMounts"].is_array())
        };
        self.workers_are(3, is_new)?;
        let one = container_of(workers(&self.plane, WORKERS)?.first().context("no worker")?);
        let mounts =
            self.engine.docker(&["inspect", "-f", "{{range .Mounts}}{{.Destination}} {{.RW}}{{end}}", &one])?;
        ensure!(mounts.contains("/mnt/share false"), "{mounts}");
        Ok(())
    }

    /// An image that cannot be pulled and a directory that is not there: the object says so, and can be deleted at once.
    fn what_cannot_work_is_told(&self) -> Result<()> {
        let cases = [
            (
                "no-image",
                json!({"customImage": "127.0.0.1:1/none:v1", "privileged": false}),
                "ImagePullFailed",
                "since 20",
            ),
            (
                "no-directory",
                json!({"customImage": "capstan/node:dev", "privileged": false,
                    "extraMounts": [{"hostPath": "/no/such/directory", "containerPath": "/x"}]}),
                "MountRefused",
                "/no/such/directory",
            ),
        ];
        for (name, spec, reason, part) in cases {
            let mut template = self.plane.get(&["dockermachinetemplate", WORKERS])?;
            template["metadata"] = json!({"name": name, "namespace": "default"});
            template["spec"]["template"]["spec"] = spec;
            self.apply(&template)?;
            let mut deployment = self.plane.get(&["machinedeployment", WORKERS])?;
            deployment["metadata"] = json!({"name": name, "namespace": "default"});
            deployment["status"] = json!({});
            deployment["spec"]["replicas"] = 1.into();
            deployment["spec"]["selector"] = json!({"matchLabels": {}});
            deployment["spec"]["template"]["metadata"] = json!({});
            deployment["spec"]["template"]["spec"]["infrastructureRef"]["name"] = name.into();
            self.apply(&deployment)?;
            self.plane.until(MINUTE, &format!("{name}: {reason}"), || {
                let Some(machine) = workers(&self.plane, name)?.pop() else { return Ok(false) };
                let Ok(infra) = infrastructure_of(&self.plane, &machine) else { return Ok(false) };
                let (_, is, message) = condition(&infra, "Ready");
                Ok(is == reason && message.contains(part))
            })?;
            self.plane.kubectl(&["delete", "machinedeployment", name, "--timeout=60s"])?;
            self.plane.until(MINUTE, "its machine goes", || Ok(workers(&self.plane, name)?.is_empty()))?;
        }
        Ok(())
    }

    fn apply(&self, object: &Value) -> Result<()> {
        let file = self.plane.dir.join("applied.json");
        std::fs::write(&file, object.to_string())?;
        self.plane.kubectl(&["apply", "-f", &file.display().to_string()]).map(drop)
    }
}

on_both_back_ends!(docker_from_nothing_to_nothing);

fn docker_from_nothing_to_nothing(back_end: BackEnd) -> Result<()> {
    let Some(engine) = Engine::find()? else { return Ok(()) };
    engine.build_images()?;
    engine.docker(&["create", "--name", STALE, "--network", "none", "capstan/haproxy:dev"])?;
    let dir = tempfile::tempdir()?;
    let state = dir.path().join("state");
    let port = free_port();
    let up = Up {
        files: vec![root().join("examples/docker.yaml")],
        wait: "240s",
        env: vec![("DOCKER_HOST".into(), format!("unix://{}", engine.socket.display()))],
        ..Up::on(back_end)
    };
    // A crash in the middle of it changes nothing in what comes of it.
    let mut plane = Plane::start(&state, port, &up)?;
    plane.wait_applied(MINUTE)?;
    plane.until(MINUTE, "the first container", || Ok(!containers(&engine)?.is_empty()))?;
    plane.kill();
    let mut plane = Plane::start(&state, port, &up)?;
    plane.wait_ready(4 * MINUTE)?;
    let endpoint = plane.get(&["cluster", CLUSTER])?["spec"]["controlPlaneEndpoint"].clone();
    let mut scene = Scene { engine, plane, endpoint };

    let names = containers(&scene.engine)?;
    ensure!(names.len() == 5, "four machines and a load balancer: {names:?}");
    let machines = scene.plane.items(&["machines", "-n", "default"])?;
    ensure!(machines.len() == 4, "{} machines", machines.len());
    for machine in &machines {
        let container = container_of(machine);
        ensure!(names.contains(&container), "{container} is none of {names:?}");
        ensure!(machine["status"]["nodeRef"]["name"].is_string(), "{} has no Node", machine["metadata"]["name"]);
        let labels = &machine["metadata"]["labels"];
        let domain = if labels["cluster.x-k8s.io/control-plane"].is_null() { "b" } else { "a" };
        let label = "{{index .Config.Labels \"io.x-k8s.cluster.failureDomain\"}}";
        ensure!(scene.engine.docker(&["inspect", "-f", label, &container])?.trim() == domain, "{container}");
        ensure!(infrastructure_of(&scene.plane, machine)?["status"]["failureDomain"] == domain, "{container}");
    }
    let workload = scene.plane.workload_kubeconfig(CLUSTER)?;
    ensure!(kubectl(&workload, &["get", "nodes", "--no-headers"])?.lines().count() == 4);

    scene.the_load_balancer_comes_back()?;
    scene.drift_is_told()?;
    scene.a_new_template_rolls_out()?;
    scene.what_cannot_work_is_told()?;
    let victim = workers(&scene.plane, WORKERS)?.pop().context("no worker")?;
    scene.a_deletion_waits_for_the_engine(&victim)?;

    let Scene { engine, plane, .. } = scene;
    plane.kubectl(&["scale", "machinedeployment", WORKERS, "--replicas=1"])?;
    plane.until(2 * MINUTE, "one worker is left", || Ok(containers(&engine)?.len() == 3))?;

    plane.kubectl(&["delete", "cluster", CLUSTER, "--timeout=120s"])?;
    ensure!(containers(&engine)?.is_empty(), "{:?}", containers(&engine)?);
    ensure!(engine.docker(&["network", "ls", "-q", "--filter", "label=capstan.dev/owner-key"])?.is_empty());
    let kinds = "clusters,machines,machinesets,machinedeployments,kubeadmcontrolplanes,kubeadmconfigs,dockerclusters,dockermachines,secrets";
    plane.until(MINUTE, "nothing is left", || Ok(plane.items(&[kinds, "-n", "default"])?.is_empty()))?;
    engine.docker(&["inspect", STALE]).context("somebody else's container is gone")?;
    engine.docker(&["rm", STALE])?;
    Ok(())
}

/// The provider alone, without a management plane: the tests beside it that need an engine.
#[test]
fn the_provider_by_itself() -> Result<()> {
    let Some(engine) = Engine::find()? else { return Ok(()) };
    engine.build_images()?;
    let output = std::process::Command::new(env!("CARGO"))
        .args(["test", "--quiet", "--locked", "-p", "docker", "--manifest-path"])
        .arg(root().join("providers/Cargo.toml"))
        .args(["--", "--ignored"])
        .env_remove("CARGO_TARGET_DIR")
        .env("CAPSTAN_DOCKER", &engine.socket)
        .output()?;
    ensure!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}
