//! `docker` against a Docker Engine of the test's own.
//!
//! Nothing here needs a registry or privileges: the two images are busybox, and the bootstrap data runs `true`.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use capstan_api::ObjectKey;
use capstan_testkit::Exchange;
use capstan_testkit::conformance::{Access, Life, Server, ServerStarts, Suite};
use serde_json::{Value, json};

use super::scenery::{INFRASTRUCTURE, cluster_of, node_joins, owner};
use super::{FAILED, all, sample, worlds};

/// A network that the life of a machine finds there.
const MACHINES: &str = "machines";
const OWNER: &str = "capstan.dev/owner-key";

/// `dockerd` in a process and a network namespace of its own, with which all that it made of bridges and rules goes, and its data
/// in memory; it ends with this.
struct Engine {
    daemon: Child,
    socket: PathBuf,
    client: reqwest::Client,
    _directory: tempfile::TempDir,
}

impl Engine {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let log = std::fs::File::create(at("log")).unwrap();
        let socket = at("docker.sock");
        let daemon = Command::new("unshare")
            .args(["--net", "dockerd", "--bridge", "none", "--data-root"])
            .arg(at("data"))
            .arg("--exec-root")
            .arg(at("exec"))
            .arg("--pidfile")
            .arg(at("pid"))
            .arg("--host")
            .arg(format!("unix://{}", socket.display()))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let client = reqwest::Client::builder().unix_socket(socket.as_path()).build().unwrap();
        let engine = Self { daemon, socket, client, _directory: directory };
        let deadline = Instant::now() + Duration::from_secs(60);
        while engine.docker(&["version"]).is_err() {
            assert!(Instant::now() < deadline, "dockerd does not come up");
            std::thread::sleep(Duration::from_millis(50));
        }
        engine.import("node", "sleep 1000000");
        engine.import("haproxy", "trap : HUP; while :; do sleep 1000000 & wait; done");
        engine.docker(&["network", "create", MACHINES]).unwrap();
        engine
    }

    fn docker(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let output = Command::new("docker")
            .arg("-H")
            .arg(format!("unix://{}", self.socket.display()))
            .args(arguments)
            .output()?;
        anyhow::ensure!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    }

    /// An image `capstan/NAME:leak` of busybox alone that runs this command line.
    fn import(&self, name: &str, command: &str) {
        let work = tempfile::tempdir().unwrap();
        for directory in ["bin", "tmp", "run", "proc", "sys", "dev", "var/lib", "usr/local/etc/haproxy", "etc"] {
            std::fs::create_dir_all(work.path().join(directory)).unwrap();
        }
        let busybox = ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|path| Path::new(path).exists()).unwrap();
        std::fs::copy(busybox, work.path().join("bin/busybox")).unwrap();
        for applet in ["sh", "sleep", "cat", "mkdir", "dirname", "chmod", "chown", "mv", "rm", "true"] {
            std::os::unix::fs::symlink("busybox", work.path().join("bin").join(applet)).unwrap();
        }
        // What the load balancer is started as.
        let program = work.path().join("bin/haproxy");
        std::fs::write(&program, format!("#!/bin/sh\n{command}\n")).unwrap();
        std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let mut tar =
            Command::new("tar").args(["-c", "-C"]).arg(work.path()).arg(".").stdout(Stdio::piped()).spawn().unwrap();
        let status = Command::new("docker")
            .arg("-H")
            .arg(format!("unix://{}", self.socket.display()))
            .args(["import", "-c", "ENV PATH=/bin", "-c", "ENTRYPOINT [\"haproxy\"]", "-"])
            .arg(format!("capstan/{name}:leak"))
            .stdin(tar.stdout.take().unwrap())
            .stdout(Stdio::null())
            .status()
            .unwrap();
        assert!(status.success() && tar.wait().unwrap().success());
    }

    /// What carries an owner key, of containers or networks.
    async fn listed(&self, path: &str) -> anyhow::Result<Vec<Value>> {
        let filters = json!({"label": [OWNER]}).to_string();
        let request = self
            .client
            .get(format!("http://localhost{path}"))
            .query(&[("filters", &filters), ("all", &"true".to_owned())]);
        Ok(serde_json::from_slice(&request.send().await?.error_for_status()?.bytes().await?)?)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // SIGTERM lets it unmount and stop its containers; SIGKILL would leave them.
        let _ = Command::new("kill").arg(self.daemon.id().to_string()).status();
        let _ = self.daemon.wait();
    }
}

#[async_trait]
impl Server for Engine {
    fn access(&self) -> Access {
        Access::open(format!("unix://{}", self.socket.display()))
    }

    async fn left(&self) -> anyhow::Result<Vec<String>> {
        let containers = self.listed("/containers/json").await?;
        let mut left: Vec<String> =
            containers.iter().map(|container| format!("container {}", container["Names"][0])).collect();
        left.extend(self.listed("/networks").await?.iter().map(|network| format!("network {}", network["Name"])));
        left.sort();
        Ok(left)
    }

    async fn clear(&self) -> anyhow::Result<()> {
        for container in self.listed("/containers/json").await? {
            self.docker(&["rm", "-f", "-v", container["Id"].as_str().unwrap_or_default()])?;
        }
        for network in self.listed("/networks").await? {
            self.docker(&["network", "rm", network["Id"].as_str().unwrap_or_default()])?;
        }
        Ok(())
    }

    fn is_shared(&self, exchange: &Exchange) -> bool {
        exchange.target == "/version"
    }

    fn pace(&self) -> Duration {
        Duration::from_millis(2)
    }
}

fn lives() -> Vec<Life> {
    let cluster = cluster_of("DockerCluster");
    let api_version = format!("{INFRASTRUCTURE}/v1beta2");
    let docker_cluster = |annotations: Value, spec: Value| {
        json!({"apiVersion": api_version, "kind": "DockerCluster", "metadata": {"name": "c", "namespace": "n",
            "annotations": annotations, "ownerReferences": owner("Cluster", "c")}, "spec": spec})
    };
    let parts = json!({"network": {"id": MACHINES, "confirmed": true, "attempt": 1, "borrowed": true,
        "state": {"name": MACHINES, "loadBalancerAddress": null}}});
    let key = |kind: &str, name: &str| ObjectKey::new(INFRASTRUCTURE, kind, "n", name);
    vec![
        Life {
            name: "machine",
            objects: vec![
                cluster.clone(),
                docker_cluster(json!({"capstan.dev/parts": parts.to_string()}), json!({"network": MACHINES})),
                json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
                    "metadata": {"name": "m", "namespace": "n"},
                    "spec": {"clusterName": "c", "version": "v1.35.0", "bootstrap": {"dataSecretName": "m"}}}),
                // #cloud-config with runcmd: ["true"]
                json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "m", "namespace": "n"},
                    "data": {"value": "I2Nsb3VkLWNvbmZpZwpydW5jbWQ6IFsidHJ1ZSJdCg==", "format": "Y2xvdWQtY29uZmln"}}),
                json!({"apiVersion": api_version, "kind": "DockerMachine",
                    "metadata": {"name": "m", "namespace": "n", "labels": {"cluster.x-k8s.io/cluster-name": "c"},
                        "ownerReferences": owner("Machine", "m")},
                    "spec": {"customImage": "capstan/node:leak", "privileged": false}}),
            ],
            subject: key("DockerMachine", "m"),
            change: Some(node_joins),
            tend: |_| (),
        },
        Life {
            name: "cluster",
            objects: vec![
                cluster,
                docker_cluster(json!({}), json!({"loadBalancer": {"imageRepository": "capstan", "imageTag": "leak"}})),
            ],
            subject: key("DockerCluster", "c"),
            // A control-plane machine comes, and the load balancer follows.
            change: Some(|world| {
                world.put(json!({"apiVersion": format!("{INFRASTRUCTURE}/v1beta2"), "kind": "DockerMachine",
                    "metadata": {"name": "m", "namespace": "n", "labels": {"cluster.x-k8s.io/cluster-name": "c",
                        "cluster.x-k8s.io/control-plane": ""}},
                    "spec": {}, "status": {"addresses": [{"type": "InternalIP", "address": "10.192.0.9"}]}}));
            }),
            tend: |_| (),
        },
    ]
}

fn server() -> ServerStarts {
    Box::pin(async {
        let engine: Box<dyn Server> = Box::new(Engine::start());
        Ok(engine)
    })
}

/// `None`, and a loud word, where there is no `dockerd`.
fn suite() -> Option<Suite<'static>> {
    if Command::new("dockerd").arg("--version").output().is_err() {
        eprintln!("SKIPPED: the faults of docker: dockerd is not installed (apt-get install docker.io)");
        let skips = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/test-skips");
        let known = std::fs::read_to_string(&skips).unwrap_or_default();
        std::fs::write(&skips, format!("{known}the faults of docker: no dockerd\n")).unwrap();
        return None;
    }
    Some(Suite {
        name: "docker",
        component: crate::provider("docker"),
        server,
        lives: lives(),
        fleet: Vec::new(),
        failed: FAILED,
    })
}

#[test]
fn a_sample_of_faults_leaks_nothing_in_docker() {
    if let Some(suite) = suite() {
        sample(&suite, 10, 2);
    }
}

#[test]
#[ignore = "minutes: make leak"]
fn all_faults_leak_nothing_in_docker() {
    if let Some(suite) = suite() {
        all(&suite, worlds());
    }
}
