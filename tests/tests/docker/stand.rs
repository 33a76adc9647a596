//! An engine of the test's own and a management plane that makes containers on it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use capstan_tests::docker::{Engine, Net};
use capstan_tests::plane::{BackEnd, Plane, Up, free_port};
use capstan_tests::site::{list, told};
use serde_json::{Value, json};

pub const MINUTE: Duration = Duration::from_secs(60);
pub const INFRASTRUCTURE: &str = "infrastructure.cluster.x-k8s.io";

/// The containers that carry an owner key, whether they run or not.
pub fn containers(engine: &Engine) -> Result<Vec<String>> {
    let listed = engine.docker(&["ps", "-a", "--filter", "label=capstan.dev/owner-key", "--format", "{{.Names}}"])?;
    Ok(listed.lines().map(str::to_owned).collect())
}

/// The load balancers that run.
pub fn balancers(engine: &Engine) -> Result<Vec<String>> {
    let role = "label=io.x-k8s.kind.role=external-load-balancer";
    let listed = engine.docker(&["ps", "--filter", role, "--format", "{{.Names}}"])?;
    Ok(listed.lines().map(str::to_owned).collect())
}

/// Engine and management plane.
pub struct Stand {
    pub engine: Engine,
    pub plane: Plane,
    back_end: BackEnd,
    port: u16,
    dir: tempfile::TempDir,
}

impl Stand {
    /// With all this applied; `before` is what is done to the engine first. `None` (and a loud word) where `dockerd` is not
    /// installed.
    pub fn start(
        back_end: BackEnd,
        manifests: &str,
        before: impl FnOnce(&Engine) -> Result<()>,
    ) -> Result<Option<Self>> {
        let Some(engine) = Engine::own(Net::Shared)? else { return Ok(None) };
        engine.build_images()?;
        before(&engine)?;
        let dir = tempfile::tempdir()?;
        let port = free_port();
        std::fs::write(dir.path().join("manifests.yaml"), manifests)?;
        let plane = Self::plane(back_end, dir.path(), port, &engine)?;
        let mut stand = Self { engine, plane, back_end, port, dir };
        stand.plane.wait_applied(MINUTE)?;
        Ok(Some(stand))
    }

    fn plane(back_end: BackEnd, dir: &std::path::Path, port: u16, engine: &Engine) -> Result<Plane> {
        let up = Up {
            files: vec![dir.join("manifests.yaml")],
            env: vec![("DOCKER_HOST".into(), format!("unix://{}", engine.socket.display()))],
            wait: "600s",
            ..Up::on(back_end)
        };
        Plane::start(&dir.join("state"), port, &up)
    }

    /// Kills the management plane, does something, and starts it again.
    pub fn meanwhile(&mut self, what: impl FnOnce(&Engine) -> Result<()>) -> Result<()> {
        self.plane.kill();
        what(&self.engine)?;
        self.plane = Self::plane(self.back_end, self.dir.path(), self.port, &self.engine)?;
        self.plane.wait_applied(MINUTE)
    }

    /// Applies objects; what was said.
    pub fn apply(&self, objects: &[Value]) -> Result<String> {
        let file = self.dir.path().join("applied.yaml");
        std::fs::write(&file, list(objects))?;
        self.plane.kubectl(&["apply", "-f", &file.display().to_string()])
    }

    /// What is said about objects that are not taken.
    pub fn refused(&self, objects: &[Value]) -> Result<String> {
        match self.apply(objects) {
            Ok(said) => anyhow::bail!("accepted: {said}"),
            Err(error) => Ok(format!("{error:#}")),
        }
    }

    /// Waits until a condition's status, reason and message hold all these words; what they are.
    pub fn says(&self, kind: &str, name: &str, condition: &str, words: &[&str]) -> Result<String> {
        let mut last = String::new();
        let asked = self.plane.until(MINUTE, &format!("{condition} of {kind} {name} says {words:?}"), || {
            last = told(&self.plane.get(&[kind, name])?, condition);
            Ok(words.iter().all(|word| last.contains(word)))
        });
        asked.with_context(|| format!("it says {last:?}"))?;
        Ok(last)
    }

    /// Deletes and waits until it is gone.
    pub fn delete(&self, kind: &str, name: &str) -> Result<()> {
        self.plane.kubectl(&["delete", kind, name, "--timeout=60s"]).map(drop)
    }

    /// The provider has nothing left on the engine.
    pub fn is_empty(&self) -> Result<()> {
        let left = containers(&self.engine)?;
        ensure!(left.is_empty(), "{left:?}");
        let networks = self.engine.docker(&["network", "ls", "-q", "--filter", "label=capstan.dev/owner-key"])?;
        ensure!(networks.is_empty(), "{networks}");
        Ok(())
    }
}

/// A cluster whose machines are made by hand, and its DockerCluster with this spec.
pub fn cluster(name: &str, spec: &Value) -> Vec<Value> {
    vec![
        json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"infrastructureRef": {"apiGroup": INFRASTRUCTURE, "kind": "DockerCluster", "name": name}}}),
        json!({"apiVersion": format!("{INFRASTRUCTURE}/v1beta2"), "kind": "DockerCluster",
            "metadata": {"name": name, "namespace": "default"}, "spec": spec}),
    ]
}

/// The load balancer's image that build.sh makes.
pub fn load_balancer() -> Value {
    json!({"imageRepository": "capstan", "imageTag": "dev"})
}

/// A machine of a cluster with this bootstrap data.
pub fn machine(cluster: &str, name: &str, format: &str, data: &str, spec: &Value) -> Vec<Value> {
    let metadata = json!({"name": name, "namespace": "default", "labels": {"cluster.x-k8s.io/cluster-name": cluster}});
    vec![
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "default"},
            "stringData": {"value": data, "format": format}}),
        json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "metadata": metadata,
            "spec": {"clusterName": cluster, "version": "v1.35.4", "bootstrap": {"dataSecretName": name},
                "infrastructureRef": {"apiGroup": INFRASTRUCTURE, "kind": "DockerMachine", "name": name}}}),
        json!({"apiVersion": format!("{INFRASTRUCTURE}/v1beta2"), "kind": "DockerMachine", "metadata": metadata,
            "spec": spec}),
    ]
}
