//! A cloud with somebody who runs its machines, and a management plane that has a credential for it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::hypervisor::Hypervisor;
use crate::plane::{BackEnd, Plane, Up, free_port};
use crate::secrets::Secrets;
use crate::witness::Witness;
use crate::workers::is_available;

/// How long something may take that takes some seconds.
pub const MINUTE: Duration = Duration::from_secs(60);

/// All that a person may ever be shown: the ledger's entries as well, without what HTTP libraries say of their frames.
const LOG: &str = "debug,h2=info,hyper=info,hyper_util=info,rustls=info,tower=info,wasmtime=info,cranelift=info";

/// Prints how long each stage took, from now or the end of the one before.
pub fn laps() -> impl FnMut(&str) {
    let mut last = Instant::now();
    move |what| {
        println!("{what}: {:.1} s", last.elapsed().as_secs_f64());
        last = Instant::now();
    }
}

/// All that is there; `S` is the cloud's test server.
pub struct Site<S> {
    /// The management plane.
    pub plane: Plane,
    /// Who runs the machines.
    pub hypervisor: Hypervisor,
    /// The cloud.
    pub server: Arc<S>,
    /// The kinds of the cloud, for messages: as `kubectl get` takes them.
    kinds: &'static str,
    dir: tempfile::TempDir,
}

impl<S> Site<S> {
    /// Starts a management plane that applies these manifests.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(
        back_end: BackEnd,
        server: Arc<S>,
        hypervisor: Hypervisor,
        kinds: &'static str,
        manifests: &str,
    ) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let file = dir.path().join("manifests.yaml");
        std::fs::write(&file, manifests)?;
        let up = Up {
            files: vec![file],
            env: vec![("RUST_LOG".into(), LOG.into())],
            record: Some(dir.path().join("recording")),
            ..Up::on(back_end)
        };
        let plane = Plane::start(&dir.path().join("state"), free_port(), &up)?;
        Ok(Self { plane, hypervisor, server, kinds, dir })
    }

    /// Asks until `done`; what was going on is told with the error.
    ///
    /// # Errors
    /// When the time is over, or it cannot be asked.
    pub fn until(&self, within: Duration, what: &str, done: impl FnMut() -> Result<bool>) -> Result<()> {
        self.plane.until(within, what, done).with_context(|| self.explain())
    }

    /// Asks until a condition's status, reason and message hold all these words.
    ///
    /// # Errors
    /// As [`Site::until`].
    pub fn says(&self, namespace: &str, kind: &str, name: &str, words: &[&str]) -> Result<()> {
        self.until(MINUTE, &format!("{kind} {namespace}/{name} says {words:?}"), || {
            let told = told(&self.plane.get(&[kind, name, "-n", namespace])?, "Ready");
            Ok(words.iter().all(|word| told.contains(word)))
        })
    }

    /// Asks until there are so many Machines, all of them available.
    ///
    /// # Errors
    /// As [`Site::until`].
    pub fn available(&self, count: usize) -> Result<()> {
        self.until(MINUTE, &format!("{count} machines that are available"), || {
            let machines = self.plane.items(&["machines", "-n", "default"])?;
            Ok(machines.len() == count && machines.iter().all(is_available))
        })
    }

    /// Waits until all that was applied is ready.
    ///
    /// # Errors
    /// As [`Site::until`].
    pub fn wait_ready(&mut self, within: Duration) -> Result<()> {
        let outcome = self.plane.wait_ready(within);
        outcome.with_context(|| self.explain())
    }

    /// Where everything is on its way.
    fn explain(&self) -> String {
        let infrastructure = self.plane.kubectl(&["get", self.kinds, "-A", "-o", CONDITIONS]);
        let infrastructure = infrastructure.unwrap_or_else(|error| error.to_string());
        let log = &self.plane.printed;
        let warnings: Vec<&str> =
            log.iter().map(String::as_str).filter(|line| line.contains(" WARN ") || line.contains(" ERROR ")).collect();
        let last = warnings.get(warnings.len().saturating_sub(12)..).unwrap_or_default().join("\n");
        format!("{infrastructure}\n{}\n{last}", self.hypervisor.describe())
    }

    /// Applies manifests.
    ///
    /// # Errors
    /// When they are refused; the error carries what was said.
    pub fn apply(&self, manifests: &str) -> Result<String> {
        let file = self.file("apply.yaml", manifests)?;
        self.plane.kubectl(&["apply", "-f", file.to_str().unwrap_or_default()])
    }

    /// What this run has said, by place: all that was printed and logged, the recording, and every object in every state, except
    /// for Secrets, which are what must not be found in the rest.
    ///
    /// # Errors
    /// When something of it cannot be read.
    pub fn said(&mut self, witness: &Witness) -> Result<(BTreeMap<String, Vec<u8>>, Secrets)> {
        let mut said = witness.seen();
        let seen = said.remove("/api/v1/secrets").context("no Secret was seen")?;
        let mut secrets = Secrets::default();
        for line in String::from_utf8_lossy(&seen).lines() {
            secrets.add_object(&serde_json::from_str::<Value>(line)?["object"]);
        }
        for guest in self.hypervisor.guests().values() {
            secrets.add_text(&guest.hostname, &String::from_utf8_lossy(&guest.user_data));
        }
        secrets.add_text("kubeconfig", &std::fs::read_to_string(self.plane.kubeconfig())?);
        said.insert("output".into(), self.plane.output().into_bytes());
        said.insert("recording".into(), std::fs::read(self.dir.path().join("recording"))?);
        Ok((said, secrets))
    }

    /// Whatever was logged, recorded, shown or told in this run, no secret of it is in there: neither those that were seen nor
    /// `own`, the cloud's (what each is, and it). `machines` is the path of the cloud's machines.
    ///
    /// # Errors
    /// When one is, or when less was collected than such a run says.
    pub fn tells_no_secret(&mut self, witness: &Witness, own: &[(&str, &str)], machines: &str) -> Result<()> {
        let (mut said, mut secrets) = self.said(witness)?;
        own.iter().for_each(|(what, secret)| secrets.add(what, secret.as_bytes()));
        // Four key pairs and a kubeconfig of the cluster, a bootstrap token for each worker.
        ensure!(secrets.len() > 20, "only {} secrets are known: nothing was collected", secrets.len());
        for place in ["output", "recording", machines] {
            let size = said.get(place).map_or(0, Vec::len);
            ensure!(size > 10_000, "{place} has {size} bytes: it is not what was said");
        }
        ensure!(said.keys().any(|place| place.ends_with("/events")), "no events were seen");
        let output = String::from_utf8_lossy(said.get("output").map(Vec::as_slice).unwrap_or_default()).into_owned();
        ensure!(output.contains("on record") && output.contains("<secret:"), "the ledger's entries are not in the log");
        let total: usize = said.values().map(Vec::len).sum();
        println!("{} secrets, looked for in {} places of {} KiB", secrets.len(), said.len(), total >> 10);
        for (place, words) in &said {
            let found = secrets.found_in(words);
            ensure!(found.is_empty(), "{place} tells {found:#?}");
        }
        // The search would have found one.
        let (_, secret) = own.last().context("the cloud has no secret")?;
        let planted = said.get_mut("recording").context("no recording")?;
        planted.extend(format!("{{\"body\":\"x{}\"}}", &secret[9..]).bytes());
        ensure!(!secrets.found_in(planted).is_empty(), "a planted secret was not found");
        Ok(())
    }

    /// Writes a file.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn file(&self, name: &str, content: &str) -> Result<PathBuf> {
        let file = self.dir.path().join(name);
        std::fs::write(&file, content)?;
        Ok(file)
    }
}

const CONDITIONS: &str = "custom-columns=KIND:.kind,NAMESPACE:.metadata.namespace,NAME:.metadata.name,\
REASONS:.status.conditions[*].reason,MESSAGES:.status.conditions[*].message";

/// A condition of an object.
pub fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)
}

/// Status, reason and message of a condition as one text.
pub fn told(object: &Value, kind: &str) -> String {
    let Some(condition) = condition(object, kind) else { return String::new() };
    let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
    format!("{} {}: {}", text("status"), text("reason"), text("message"))
}

/// The name of an object.
pub fn name(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

/// A merge patch (RFC 7386).
pub fn merge(target: &mut Value, patch: &Value) {
    let Some(patch) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = serde_json::json!({});
    }
    for (key, value) in patch {
        if value.is_null() {
            target.as_object_mut().map(|target| target.remove(key));
        } else {
            merge(&mut target[key], value);
        }
    }
}

/// One manifest of all of them.
pub fn list(objects: &[Value]) -> String {
    objects.iter().map(|object| format!("---\n{object}\n")).collect()
}
