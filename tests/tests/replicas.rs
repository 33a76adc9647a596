//! Two replicas of `capstan run`: one is frozen in the middle of a create and thawed when the other has taken over.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use capstan_simulator::{Simulator, SimulatorOptions};
use capstan_tests::gate::{Gate, Passed};
use capstan_tests::http::{Client, runtime};
use capstan_tests::plane::{kubectl, root, skip};
use capstan_tests::real::{RealServer, Wanted, programs};
use capstan_tests::replica::Replica;
use serde_json::{Value, json};

const MINUTE: Duration = Duration::from_secs(60);
/// How long one who was thawed is watched.
const WATCHED: Duration = Duration::from_secs(8);

struct World {
    server: RealServer,
    gate: Gate,
    cloud: Simulator,
    dir: tempfile::TempDir,
}

impl World {
    fn new() -> Result<Option<Self>> {
        let Some(programs) = programs() else {
            skip("replicas: no real kube-apiserver (tests/setup.sh builds one)")?;
            return Ok(None);
        };
        let server = RealServer::start_with(&programs, Wanted { audit: true, ..Wanted::default() })?;
        let cloud = runtime().block_on(Simulator::start(SimulatorOptions::default()))?;
        let gate = Gate::before(&format!("http://{}", cloud.address()))?;
        Ok(Some(Self { server, gate, cloud, dir: tempfile::tempdir()? }))
    }

    fn replica(&self, name: &str) -> Result<Replica> {
        let replica = Replica::start(self.dir.path(), &self.server.kubeconfig_of(name)?, name)?;
        self.gate.expect(replica.pid());
        Ok(replica)
    }

    fn kubectl(&self, args: &[&str]) -> Result<String> {
        kubectl(&self.server.kubeconfig(), args)
    }

    fn apply(&self, path: &Path) -> Result<()> {
        self.kubectl(&["apply", "-f", &path.display().to_string()]).map(drop)
    }

    /// Components, what they may reach, and the quickstart.
    fn set_up(&self) -> Result<()> {
        for kind in ["providermodules", "egresspolicies"] {
            self.until(MINUTE, "the definitions are there", || {
                Ok(self.kubectl(&["wait", "--for=condition=Established", &format!("crd/{kind}.capstan.dev")]).is_ok())
            })?;
        }
        let providers = std::fs::canonicalize(root().join("target/providers")).context("run `make build`")?;
        let mut items = vec![json!({
            "apiVersion": "capstan.dev/v1alpha1", "kind": "EgressPolicy", "metadata": {"name": "loopback"},
            "spec": {"addresses": ["127.0.0.0/8"]},
        })];
        for name in ["simulated", "kubeadm-bootstrap", "kubeadm-control-plane"] {
            let mut spec = json!({"source": {"file": providers.join(format!("{name}.wasm"))}});
            if name == "simulated" {
                spec["endpoints"] = json!({"api": {"url": self.gate.url}});
            }
            items.push(json!({"apiVersion": "capstan.dev/v1alpha1", "kind": "ProviderModule",
                "metadata": {"name": name}, "spec": spec}));
        }
        let file = self.dir.path().join("modules.json");
        std::fs::write(&file, json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string())?;
        self.apply(&file)?;
        self.kubectl(&["wait", "--for=condition=Loaded", "providermodules", "--all", "--timeout=60s"])?;
        self.apply(&root().join("examples/quickstart.yaml"))?;
        self.until(2 * MINUTE, "the cluster is up", || self.has_workers(3))
    }

    fn scale(&self, workers: usize) -> Result<()> {
        let replicas = format!("--replicas={workers}");
        self.kubectl(&["scale", "machinedeployment", "quickstart-workers", &replicas]).map(drop)
    }

    /// Whether that many workers run, each as one machine of the cloud, beside the control plane.
    fn has_workers(&self, workers: usize) -> Result<bool> {
        let machines = self.items("machines")?;
        let run = machines.iter().filter(|m| m["status"]["phase"] == "Running").count();
        Ok(machines.len() == workers + 1 && run == workers + 1)
    }

    fn items(&self, kind: &str) -> Result<Vec<Value>> {
        let list: Value = serde_json::from_str(&self.kubectl(&["get", kind, "-n", "default", "-o", "json"])?)?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    fn holder(&self) -> Result<String> {
        self.kubectl(&["get", "lease", "capstan", "-n", "capstan-system", "-o", "jsonpath={.spec.holderIdentity}"])
    }

    fn until(&self, within: Duration, what: &str, done: impl Fn() -> Result<bool>) -> Result<()> {
        let deadline = Instant::now() + within;
        while !done()? {
            ensure!(
                Instant::now() < deadline,
                "not within {within:?}: {what}\n{}\n{:#?}",
                self.kubectl(&["get", "machines,simulatedmachines,leases", "-A", "-o", "wide"]).unwrap_or_default(),
                self.gate.passed()
            );
            // The question is about several kinds at once, so it is asked anew rather than watched.
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    }

    /// What somebody has sent to the API server from this one on that changed something.
    fn changed(&self, who: &str, from: usize) -> Result<Vec<String>> {
        let audited = self.server.audited()?;
        let of_them = audited.iter().skip(from).filter(|event| event["user"]["username"] == who);
        let changed = of_them.filter(|event| event["responseStatus"]["code"].as_i64().is_none_or(|code| code < 400));
        Ok(changed.map(|event| format!("{} {}", event["verb"], event["requestURI"])).collect())
    }

    /// Freezes the leader while a request of its is held, lets the other take over, thaws it: only one machine comes of it,
    /// and the thawed one changes nothing.
    fn freeze_and_thaw(
        &self,
        (leader, other): (&mut Replica, &Replica),
        (method, path): (&str, &str),
        workers: usize,
    ) -> Result<Passed> {
        let lost = leader.logged().matches("does not hold the Lease any more").count();
        self.gate.hold(leader.pid(), method, path);
        self.scale(workers)?;
        let held = self.gate.wait_held(MINUTE)?;
        leader.signal("STOP")?;
        self.until(MINUTE, "the other holds the Lease", || Ok(self.holder()? == other.identity))?;
        // What was under way arrives when the other is at it already.
        self.gate.release();
        self.until(3 * MINUTE, "the workers run", || self.has_workers(workers))?;

        let (sent, asked) = (self.server.audited()?.len(), self.gate.passed().len());
        leader.signal("CONT")?;
        leader.wait_logged("does not hold the Lease any more", lost + 1, MINUTE)?;
        // It gets its answer, and events of all that happened; now and then it would have written something.
        std::thread::sleep(WATCHED);
        let changed = self.changed(&leader.identity, sent)?;
        ensure!(changed.is_empty(), "{} was thawed and changed something: {changed:#?}", leader.identity);
        let passed = self.gate.passed();
        let late: Vec<&Passed> = passed.iter().skip(asked).filter(|p| p.pid == leader.pid() && p.changes()).collect();
        ensure!(late.is_empty(), "{} was thawed and sent {late:#?}", leader.identity);
        ensure!(!self.changed(&other.identity, 0)?.is_empty(), "the log names who changes something");

        let listed = Client::new()?.ask("GET", &format!("http://{}/v1/machines", self.cloud.address()), None)?;
        let machines = listed["items"].as_array().context("no list of machines")?.len();
        ensure!(machines == workers + 1, "{machines} machines in the cloud for {} Machines", workers + 1);
        Ok(held)
    }
}

#[test]
fn one_who_was_frozen_in_a_create_makes_nothing_twice_and_changes_nothing() -> Result<()> {
    let Some(world) = World::new()? else { return Ok(()) };
    let mut first = world.replica("first")?;
    world.until(MINUTE, "the first holds the Lease", || Ok(world.holder().is_ok_and(|holder| holder == "first")))?;
    let mut second = world.replica("second")?;
    world.set_up()?;
    second.wait_probe("/readyz", MINUTE)?;

    // The create itself is under way.
    let held = world.freeze_and_thaw((&mut first, &second), ("POST", "/v1/machines"), 4)?;
    let posts = world.gate.passed().into_iter().filter(|p| p.changes() && p.name == held.name).count();
    ensure!(posts == 1, "{} was asked for {posts} times", held.name);
    // What the create depends on is: it would be sent right after the thaw.
    let held = world.freeze_and_thaw((&mut second, &first), ("GET", "/v1/machines"), 5)?;
    ensure!(held.pid == second.pid(), "the second one was asking");
    Ok(())
}
