//! Checks before a Machine is made: a worker made while its control plane is changing versions might never join.

use capstan_api::Object;
use capstan_api::machine_set::MachineSetSpec;

use crate::contract_read::{Reference, follow};
use crate::ownership::version_numbers;
use crate::view::{NotNow, View};

/// Annotation of a MachineSet: names of checks to skip, joined with commas, or `All`.
const SKIP: &str = "machineset.cluster.x-k8s.io/skip-preflight-checks";

/// Why no Machine can be made now; empty when one can. The checks apply where the control plane has a version.
pub(super) fn blocked(
    set: &Object,
    spec: &MachineSetSpec,
    cluster: &Object,
    view: &dyn View,
) -> Result<Vec<String>, NotNow> {
    let skipped: Vec<&str> = set.annotation(SKIP).unwrap_or_default().split(',').map(str::trim).collect();
    if skipped.contains(&"All") {
        return Ok(Vec::new());
    }
    let Some(reference) = Reference::at(cluster, "/spec/controlPlaneRef") else { return Ok(Vec::new()) };
    let found = follow(view, set.namespace(), "spec.controlPlaneRef", &reference)?;
    let Some(control_plane) = found.duck() else { return Ok(Vec::new()) };
    let Some(version) = control_plane.object.str_at("/spec/version") else { return Ok(Vec::new()) };
    let mut reasons = Vec::new();
    let mut fail = |check: &str, message: String| {
        if !skipped.contains(&check) {
            reasons.push(format!("{message} ({check} preflight check failed)"));
        }
    };
    let (kind, name) = (control_plane.object.kind(), control_plane.object.name());
    let reported: Vec<&str> = match control_plane.object.at("/status/versions").and_then(|v| v.as_array()) {
        Some(list) => list.iter().filter_map(|v| v.get("version")?.as_str()).collect(),
        None => control_plane.object.str_at("/status/version").into_iter().collect(),
    };
    if reported.is_empty() && !control_plane.control_plane_initialized() {
        fail("ControlPlaneIsStable", format!("{kind} {name} is being provisioned"));
    } else if reported.iter().any(|have| older(have, version)) {
        fail("ControlPlaneIsStable", format!("{kind} {name} is being upgraded to {version}"));
    }
    if let Some(mine) = spec.template.spec.version.as_deref() {
        let (mine_numbers, theirs) = (version_numbers(mine), version_numbers(version));
        let minor = |v: &[u64]| v.get(1).copied().unwrap_or_default();
        let (worker, control) = (minor(&mine_numbers), minor(&theirs));
        let same_major = mine_numbers.first() == theirs.first();
        if !same_major || worker > control || control.saturating_sub(worker) > 3 {
            fail(
                "KubernetesVersionSkew",
                format!("version {mine} does not go with the control plane's {version}: at most 3 minors older"),
            );
        }
        let kubeadm =
            spec.template.spec.bootstrap.config_ref.as_ref().is_some_and(|r| r.kind == "KubeadmConfigTemplate");
        if kubeadm && (!same_major || worker != control) {
            fail(
                "KubeadmVersionSkew",
                format!("kubeadm joins only a control plane of its own minor version: {mine} and {version}"),
            );
        }
    }
    Ok(reasons)
}

fn older(have: &str, want: &str) -> bool {
    version_numbers(have) < version_numbers(want)
}
