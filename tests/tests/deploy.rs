//! `deploy/capstan.yaml` on a real API server: two replicas with the rights of its ServiceAccount and nothing more, as
//! processes and as containers of the image.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use capstan_simulator::{Simulator, SimulatorOptions};
use capstan_tests::docker::Engine;
use capstan_tests::http::runtime;
use capstan_tests::plane::{binary, free_port, kubectl, kubectl_output, root, skip};
use capstan_tests::real::{RealServer, Wanted, programs};
use capstan_tests::replica::Replica;
use serde_json::{Value, json};

const MINUTE: Duration = Duration::from_secs(60);
const SYSTEM: &str = "capstan-system";
const ACCOUNT: &str = "system:serviceaccount:capstan-system:capstan";
/// Where a Pod finds its service account.
const MOUNTED: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const COMPONENTS: [&str; 4] = ["simulated", "proxmox", "kubeadm-bootstrap", "kubeadm-control-plane"];

struct World {
    server: RealServer,
    cloud: Simulator,
    /// An address of this machine that an EndpointSlice may have.
    address: Ipv4Addr,
    dir: tempfile::TempDir,
}

/// An address that is not loopback.
fn address() -> Option<Ipv4Addr> {
    let output = Command::new("hostname").arg("-I").output().ok()?;
    String::from_utf8(output.stdout).ok()?.split_whitespace().find_map(|address| address.parse().ok())
}

impl World {
    fn new() -> Result<Option<Self>> {
        let Some(programs) = programs() else {
            skip("deploy/: no real kube-apiserver (tests/setup.sh builds one)")?;
            return Ok(None);
        };
        let Some(address) = address() else {
            skip("deploy/: this machine has no address but loopback, where webhooks could be reached")?;
            return Ok(None);
        };
        let server = RealServer::start_with(&programs, Wanted { audit: true, slices: true, ..Wanted::default() })?;
        let cloud = runtime().block_on(Simulator::start(SimulatorOptions::default()))?;
        let world = Self { server, cloud, address, dir: tempfile::tempdir()? };
        world.kubectl(&["apply", "-f", &root().join("deploy/capstan.yaml").display().to_string()])?;
        std::fs::create_dir(world.account())?;
        std::fs::write(world.account().join("ca.crt"), &world.server.authority.certificate)?;
        std::fs::write(world.account().join("namespace"), SYSTEM)?;
        world.project_token("first")?;
        Ok(Some(world))
    }

    fn kubectl(&self, args: &[&str]) -> Result<String> {
        kubectl(&self.server.kubeconfig(), args)
    }

    fn apply(&self, object: &Value) -> Result<()> {
        let file = self.dir.path().join("applied.json");
        std::fs::write(&file, object.to_string())?;
        self.kubectl(&["apply", "-f", &file.display().to_string()]).map(drop)
    }

    /// What is mounted into the Pods.
    fn account(&self) -> PathBuf {
        self.dir.path().join("account")
    }

    /// Does as a kubelet does: asks for a token of the ServiceAccount and puts it where the replicas read it. The token
    /// is good as long as the Secret of this name is there.
    fn project_token(&self, bound_to: &str) -> Result<()> {
        self.kubectl(&["create", "secret", "generic", bound_to, "-n", SYSTEM])?;
        let bound = ["--bound-object-kind", "Secret", "--bound-object-name", bound_to];
        let token = self.kubectl(&[&["create", "token", "capstan", "-n", SYSTEM][..], &bound[..]].concat())?;
        let new = self.account().join("..token");
        std::fs::write(&new, token.trim())?;
        Ok(std::fs::rename(new, self.account().join("token"))?)
    }

    /// The arguments of the Deployment's container, with the ports and directories that this replica has here.
    fn arguments(
        &self,
        name: &str,
        (webhooks, probes): (u16, u16),
        state: &Path,
        components: &Path,
    ) -> Result<Vec<String>> {
        let deployment = self.kubectl(&["get", "deployment", "capstan", "-n", SYSTEM, "-o", "json"])?;
        let deployment: Value = serde_json::from_str(&deployment)?;
        let container = &deployment["spec"]["template"]["spec"]["containers"][0];
        ensure!(deployment["spec"]["replicas"] == 2, "{deployment}");
        let said = container["args"].as_array().context("no args")?.iter().filter_map(Value::as_str);
        let here = [
            ("$(POD_NAME)", name.to_owned()),
            ("=/state", format!("={}", state.display())),
            ("=/providers", format!("={}", components.display())),
            ("0.0.0.0:9443", format!("0.0.0.0:{webhooks}")),
            ("0.0.0.0:9440", format!("127.0.0.1:{probes}")),
            ("--log-format=json", "--log-format=human".to_owned()),
        ];
        Ok(said.map(|said| here.iter().fold(said.to_owned(), |said, (from, to)| said.replace(from, to))).collect())
    }

    /// Does as the controller of EndpointSlices does: who is ready is reached through the Service.
    fn lead_to(&self, replicas: &[(&str, u16)]) -> Result<()> {
        let items: Vec<Value> = replicas
            .iter()
            .map(|(name, port)| {
                json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
                    "metadata": {"name": name, "namespace": SYSTEM, "labels": {"kubernetes.io/service-name": "capstan-webhooks"}},
                    "ports": [{"name": "webhooks", "port": port, "protocol": "TCP"}],
                    "endpoints": [{"addresses": [self.address], "conditions": {"ready": true}}]})
            })
            .collect();
        self.kubectl(&["delete", "endpointslices", "--all", "-n", SYSTEM])?;
        self.apply(&json!({"apiVersion": "v1", "kind": "List", "items": items}))
    }

    fn until(&self, within: Duration, what: &str, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
        let deadline = Instant::now() + within;
        while !done()? {
            if Instant::now() > deadline {
                let all = "clusters,machines,providermodules,leases,endpointslices";
                bail!(
                    "not within {within:?}: {what}\n{}",
                    self.kubectl(&["get", all, "-A", "-o", "wide"]).unwrap_or_default()
                );
            }
            // The question is about several kinds at once, so it is asked anew rather than watched.
            std::thread::sleep(Duration::from_millis(250));
        }
        Ok(())
    }

    fn holder(&self) -> Result<String> {
        self.kubectl(&["get", "lease", "capstan", "-n", SYSTEM, "-o", "jsonpath={.spec.holderIdentity}"])
    }

    /// What the operator does: says what may be reached, and where the simulated cloud is.
    fn set_up(&self) -> Result<()> {
        self.until(MINUTE, "the modules are loaded", || {
            let wait = ["wait", "--for=condition=Loaded", "providermodules", "--all", "--timeout=30s"];
            let listed = kubectl_output(&self.server.kubeconfig(), &["get", "providermodules", "-o", "name"])?;
            let all = String::from_utf8_lossy(&listed.stdout).lines().count() == COMPONENTS.len();
            Ok(all && kubectl_output(&self.server.kubeconfig(), &wait)?.status.success())
        })?;
        self.apply(
            &json!({"apiVersion": "capstan.dev/v1alpha1", "kind": "EgressPolicy", "metadata": {"name": "loopback"},
            "spec": {"addresses": ["127.0.0.0/8"]}}),
        )?;
        self.apply(&json!({"apiVersion": "capstan.dev/v1alpha1", "kind": "Endpoint",
            "metadata": {"name": "api", "namespace": "default"},
            "spec": {"url": format!("http://{}", self.cloud.address())}}))
    }

    /// The quickstart comes up.
    fn brings_up_a_cluster(&self) -> Result<()> {
        self.kubectl(&["apply", "-f", &root().join("examples/quickstart.yaml").display().to_string()])?;
        self.until(3 * MINUTE, "the cluster is available", || {
            let available = ["wait", "--for=condition=Available", "cluster/quickstart", "--timeout=10s"];
            Ok(kubectl_output(&self.server.kubeconfig(), &available)?.status.success())
        })
    }

    /// A rule of the core refuses, and a component converts.
    fn webhooks_answer(&self) -> Result<()> {
        let refused = |object: Value, word: &str| -> Result<()> {
            let file = self.dir.path().join("refused.json");
            std::fs::write(&file, object.to_string())?;
            let output = kubectl_output(
                &self.server.kubeconfig(),
                &["create", "-f", &file.display().to_string(), "--dry-run=server"],
            )?;
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            ensure!(!output.status.success() && said.contains(word), "{object}: {said}");
            Ok(())
        };
        refused(
            json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDeployment", "metadata": {"name": "d", "namespace": "default"},
                "spec": {"clusterName": "c", "selector": {"matchLabels": {"a": "b"}}, "template": {
                    "metadata": {"labels": {"a": "other"}},
                    "spec": {"clusterName": "c", "bootstrap": {"dataSecretName": "x"},
                        "infrastructureRef": {"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "SimulatedMachineTemplate", "name": "t"}}}}}),
            "selector",
        )?;
        // Kept in one version and shown in the other: a component converts.
        self.apply(
            &json!({"apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha2", "kind": "ProxmoxMachineTemplate",
            "metadata": {"name": "converted", "namespace": "default"}, "spec": {"template": {"spec": {
                "sourceNode": "pve1", "templateID": 9000, "numSockets": 1, "numCores": 4, "memoryMiB": 4096,
                "disks": {"bootVolume": {"disk": "scsi0", "sizeGb": 20}},
                "network": {"networkDevices": [{"name": "net0", "bridge": "vmbr0", "model": "virtio"}]}}}}}),
        )?;
        let older = "proxmoxmachinetemplates.v1alpha1.infrastructure.cluster.x-k8s.io";
        let shown: Value = serde_json::from_str(&self.kubectl(&["get", older, "converted", "-o", "json"])?)?;
        ensure!(shown["apiVersion"] == "infrastructure.cluster.x-k8s.io/v1alpha1", "{shown}");
        ensure!(shown["spec"]["template"]["spec"]["network"]["default"]["bridge"] == "vmbr0", "{shown}");
        Ok(())
    }

    /// Nothing that the replicas asked for was forbidden, and they asked for something.
    fn nothing_was_forbidden(&self) -> Result<()> {
        let audited = self.server.audited()?;
        let theirs: Vec<&Value> = audited.iter().filter(|event| event["user"]["username"] == ACCOUNT).collect();
        ensure!(theirs.len() > 100, "only {} requests of {ACCOUNT}", theirs.len());
        let forbidden: Vec<String> = theirs
            .iter()
            .filter(|event| event["responseStatus"]["code"] == 403)
            .map(|event| format!("{} {}", event["verb"], event["requestURI"]))
            .collect();
        ensure!(forbidden.is_empty(), "deploy/capstan.yaml does not allow {forbidden:#?}");
        Ok(())
    }

    /// The tokens (`authentication.kubernetes.io/credential-id`) by which the Lease was renewed from this request on.
    fn credentials(&self, from: usize) -> Result<Vec<String>> {
        let audited = self.server.audited()?;
        let renewals = audited.iter().skip(from).filter(|event| {
            event["user"]["username"] == ACCOUNT
                && event["objectRef"]["resource"] == "leases"
                && event["verb"] == "update"
        });
        Ok(renewals
            .map(|event| event["user"]["extra"]["authentication.kubernetes.io/credential-id"].to_string())
            .collect())
    }
}

/// A replica as a process that finds what a Pod finds: the service account where it is mounted, and the API server in
/// its environment.
fn in_a_pod(world: &World, name: &str, webhooks: u16) -> Result<Replica> {
    let probes = free_port();
    let state = world.dir.path().join(name);
    let components = world.dir.path().join("components");
    let arguments = world.arguments(name, (webhooks, probes), &state, &components)?;
    let (host, port) = world.server.url.trim_start_matches("https://").rsplit_once(':').context("a port")?;
    // A mount of its own over /run, where /var/run leads to.
    let script = format!(
        "mount -t tmpfs none /run && mkdir -p {MOUNTED} && mount --bind {} {MOUNTED} && exec \"$@\"",
        world.account().display()
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", &script, "sh"]).arg(binary()).args(&arguments);
    command.env_remove("KUBECONFIG").env("HOME", world.dir.path());
    command.env("KUBERNETES_SERVICE_HOST", host).env("KUBERNETES_SERVICE_PORT", port);
    Replica::spawn(command, world.dir.path(), name, format!("127.0.0.1:{probes}"))
}

fn components(into: &Path) -> Result<Vec<PathBuf>> {
    std::fs::create_dir_all(into)?;
    let providers = root().join("target/providers");
    let copy = |name: &&str| -> Result<PathBuf> {
        let file = format!("{name}.wasm");
        std::fs::copy(providers.join(&file), into.join(&file)).context("no components; run `make build`")?;
        Ok(into.join(&file))
    };
    COMPONENTS.iter().map(copy).collect()
}

#[test]
fn two_replicas_need_no_more_than_the_manifest_gives() -> Result<()> {
    if Command::new("unshare").args(["--mount", "true"]).output().is_ok_and(|output| !output.status.success()) {
        return skip("deploy/: no mount namespaces here (run as root)");
    }
    let Some(world) = World::new()? else { return Ok(()) };
    components(&world.dir.path().join("components"))?;
    let [one, two] = [free_port(), free_port()];
    let mut first = in_a_pod(&world, "capstan-0", one)?;
    world
        .until(MINUTE, "the first holds the Lease", || Ok(world.holder().is_ok_and(|holder| holder == "capstan-0")))?;
    let mut second = in_a_pod(&world, "capstan-1", two)?;
    first.wait_probe("/readyz", MINUTE)?;
    second.wait_probe("/readyz", MINUTE)?;
    // The one without the Lease answers all by itself. (From the beginning: the API server keeps connections open, and goes on
    // to use one to who is in the Service no more.)
    world.lead_to(&[("capstan-1", two)])?;
    world.set_up()?;
    second.wait_probe("/livez", MINUTE)?;
    world.until(MINUTE, "the second answers", || Ok(world.webhooks_answer().is_ok()))?;
    first.signal("STOP")?;
    let answered = world.webhooks_answer();
    first.signal("CONT")?;
    answered?;
    world.lead_to(&[("capstan-0", one), ("capstan-1", two)])?;
    world.brings_up_a_cluster()?;

    // The kubelet brings another token; the first one ends.
    let old = world.credentials(0)?.pop().context("the Lease was never renewed")?;
    world.project_token("second")?;
    let from = world.server.audited()?.len();
    world.until(2 * MINUTE, "the new token is used", || {
        Ok(world.credentials(from)?.last().is_some_and(|last| *last != old))
    })?;
    // The one without the Lease re-reads it as often.
    std::thread::sleep(Duration::from_secs(15));
    world.kubectl(&["delete", "secret", "first", "-n", SYSTEM])?;
    let (from, holder) = (world.server.audited()?.len(), world.holder()?);
    world.until(MINUTE, "the Lease is renewed with it", || Ok(world.credentials(from)?.len() > 3))?;
    ensure!(world.holder()? == holder, "nobody else had to take over");

    // Whoever goes in peace leaves the Lease to the other.
    let (leader, other) = if holder == "capstan-0" { (first, &second) } else { (second, &first) };
    leader.signal("TERM")?;
    let began = Instant::now();
    world.until(MINUTE, "the other holds the Lease", || Ok(world.holder()? == other.identity))?;
    ensure!(began.elapsed() < Duration::from_secs(12), "it took {:?} though the Lease was given up", began.elapsed());
    world.nothing_was_forbidden()
}

#[test]
fn the_image_runs_as_a_container_with_the_rights_of_the_manifest() -> Result<()> {
    let Some(engine) = Engine::find()? else { return Ok(()) };
    let Some(world) = World::new()? else { return Ok(()) };
    let image = format!("capstan/capstan:test-{}", std::process::id());
    let built = Command::new(root().join("deploy/image.sh"))
        .arg(&image)
        .args(components(&world.dir.path().join("components"))?)
        .env("CAPSTAN_BIN", binary())
        .env("DOCKER_SOCKET", &engine.socket)
        .output()?;
    ensure!(built.status.success(), "deploy/image.sh: {}", String::from_utf8_lossy(&built.stderr));

    let (webhooks, probes) = (free_port(), free_port());
    let arguments = world.arguments("capstan-0", (webhooks, probes), Path::new("/state"), Path::new("/providers"))?;
    let (host, port) = world.server.url.trim_start_matches("https://").rsplit_once(':').context("a port")?;
    let name = format!("capstan-test-{}", std::process::id());
    let mount = format!("{}:{MOUNTED}:ro", world.account().display());
    let environment = [format!("KUBERNETES_SERVICE_HOST={host}"), format!("KUBERNETES_SERVICE_PORT={port}")];
    // What the Deployment says of the container, in Docker's words.
    let restricted = ["--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--user=65532:65532"];
    let given =
        ["--network=host", "--tmpfs=/state:mode=1777", "-v", &mount, "-e", &environment[0], "-e", &environment[1]];
    let run = [&["run", "-d", "--name", &name][..], &restricted, &given, &[image.as_str()]].concat();
    let arguments: Vec<&str> = run.into_iter().chain(arguments.iter().map(String::as_str)).collect();
    engine.docker(&arguments)?;
    let lived = (|| -> Result<()> {
        world.until(MINUTE, "it holds the Lease", || Ok(world.holder().is_ok_and(|holder| holder == "capstan-0")))?;
        world.lead_to(&[("capstan-0", webhooks)])?;
        world.set_up()?;
        world.until(MINUTE, "its webhooks answer", || Ok(world.webhooks_answer().is_ok()))?;
        world.webhooks_answer()?;
        world.brings_up_a_cluster()?;
        world.nothing_was_forbidden()
    })();
    let logged = Command::new("docker")
        .arg("-H")
        .arg(format!("unix://{}", engine.socket.display()))
        .args(["logs", &name])
        .output()?;
    let _ = engine.docker(&["rm", "-f", &name]);
    let _ = engine.docker(&["rmi", &image]);
    lived.with_context(|| String::from_utf8_lossy(&logged.stderr).into_owned())
}
