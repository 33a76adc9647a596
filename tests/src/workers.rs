//! The workers of a MachineDeployment: to more, to fewer, to others.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::site::{MINUTE, Site, condition, name};

/// Those of one, in the namespace `default`.
pub struct Workers<'a, S> {
    /// Where they are.
    pub site: &'a Site<S>,
    /// The name of the MachineDeployment.
    pub deployment: &'a str,
}

/// Whether a Machine is available.
pub fn is_available(machine: &Value) -> bool {
    condition(machine, "Available").is_some_and(|condition| condition["status"] == "True")
}

impl<S> Workers<'_, S> {
    /// Their Machines.
    ///
    /// # Errors
    /// When they cannot be asked for.
    pub fn machines(&self) -> Result<Vec<Value>> {
        let label = format!("cluster.x-k8s.io/deployment-name={}", self.deployment);
        self.site.plane.items(&["machines", "-n", "default", "-l", &label])
    }

    /// Asks for so many.
    ///
    /// # Errors
    /// When that is refused.
    pub fn scale(&self, replicas: usize) -> Result<()> {
        let replicas = format!("--replicas={replicas}");
        self.site.plane.kubectl(&["scale", "machinedeployment", self.deployment, &replicas]).map(drop)
    }

    /// Waits until there are so many, and all are available.
    ///
    /// # Errors
    /// When that takes too long.
    pub fn settled(&self, replicas: usize) -> Result<()> {
        self.site.until(2 * MINUTE, &format!("{replicas} workers"), || {
            let workers = self.machines()?;
            Ok(workers.len() == replicas && workers.iter().all(is_available))
        })
    }

    /// Another template of their kind rolls all three: never fewer than three are available, never more than four there. The
    /// new one is the old one with `change` merged into its machines' spec.
    ///
    /// # Errors
    /// When it is otherwise, or takes too long.
    pub fn roll(&self, kind: &str, change: &Value) -> Result<()> {
        let plane = &self.site.plane;
        let mut template = plane.get(&[kind, self.deployment])?;
        let other = format!("{}-2", self.deployment);
        template["metadata"] = json!({"name": other, "namespace": "default"});
        crate::site::merge(&mut template["spec"]["template"]["spec"], change);
        let file = self.site.file("template.json", &template.to_string())?;
        plane.kubectl(&["create", "-f", file.to_str().unwrap_or_default()])?;
        let old: Vec<String> = self.machines()?.iter().map(name).collect();
        let reference = json!({"spec": {"template": {"spec": {"infrastructureRef": {"name": other}}}}}).to_string();
        plane.kubectl(&["patch", "machinedeployment", self.deployment, "--type=merge", "-p", &reference])?;
        let (mut most, mut fewest) = (0, usize::MAX);
        self.site.until(2 * MINUTE, "the roll-out", || {
            let now = self.machines()?;
            let staying: Vec<&Value> =
                now.iter().filter(|machine| machine["metadata"]["deletionTimestamp"].is_null()).collect();
            let available = staying.iter().filter(|machine| is_available(machine)).count();
            (most, fewest) = (most.max(staying.len()), fewest.min(available));
            Ok(now.len() == 3 && available == 3 && now.iter().all(|machine| !old.contains(&name(machine))))
        })?;
        ensure!(most <= 4, "maxSurge is 1 and {most} machines were there");
        ensure!(fewest >= 3, "maxUnavailable is 0 and only {fewest} were available");
        Ok(())
    }
}
