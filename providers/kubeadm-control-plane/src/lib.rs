//! Kubeadm control plane: machines that kubeadm sets up one after the other, and replaces one at a time.
//!
//! The planner ([`plan`]) is shown the machines and what they report, and returns one step; the host carries it out and
//! asks again. Promises: never two changes at once; a machine is added before an old one goes (unless `maxSurge` is 0);
//! etcd keeps its quorum, and a member leaves etcd before its machine is deleted; nothing is replaced because of a
//! default.

mod bootstrap;
mod plan;
mod spec;

use capstan_provider::{
    Context, Error, Need, Result, Violation,
    control_plane::{ControlPlaneProvider, Decision, View},
    export_control_plane,
};

pub use spec::KubeadmControlPlane;

export_control_plane!(KubeadmControlPlane, {
    "name": "kubeadm-control-plane",
    "kinds": { "group": "controlplane.cluster.x-k8s.io", "machine": "KubeadmControlPlane" },
    "contractLabels": { "cluster.x-k8s.io/v1beta2": ["v1beta2"] },
    "limits": { "memory": "16Mi", "cpu": "200ms" }
});

impl ControlPlaneProvider for KubeadmControlPlane {
    fn needs(ctx: &Context<Self>) -> Result<Vec<(String, Need)>> {
        Ok(ctx.spec.kubeadm_config_spec.key_pairs())
    }

    fn plan(ctx: &Context<Self>) -> Result<Decision> {
        let spec = &ctx.spec;
        let Some(version) = &spec.version else {
            return Err(Error::invalid("/spec/version", "a control plane needs a Kubernetes version, such as v1.35.0"));
        };
        let Some(template) = spec.infrastructure_template() else {
            return Err(Error::invalid(
                "/spec/machineTemplate/spec/infrastructureRef",
                "a control plane needs the template of its machines",
            ));
        };
        let violations = spec::validate(None, spec);
        if !violations.is_empty() {
            return Err(Error::Invalid(violations));
        }
        plan::plan(spec, version, template, &View::read(), ctx.now())
    }

    fn validate(old: Option<&Self>, new: &Self) -> Vec<Violation> {
        spec::validate(old, new)
    }
}

#[cfg(test)]
mod tests {
    use capstan_provider::testing::{Scenario, control_plane};
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_sections_are_json() {
        let manifest: Value = serde_json::from_str(MANIFEST).unwrap();
        let crds: Value = serde_json::from_str(CRDS).unwrap();
        assert_eq!(manifest["role"], "control-plane");
        assert_eq!(manifest["kinds"]["machine"], crds[0]["kind"]);
        let spec = &crds[0]["versions"][0]["schema"]["properties"]["spec"]["properties"];
        assert_eq!(spec["replicas"]["default"], 1);
        assert_eq!(spec["kubeadmConfigSpec"]["properties"]["format"]["default"], "cloud-config");
    }

    #[test]
    fn the_first_step_is_a_machine_and_the_keys_are_the_clusters() {
        let scenario = || {
            let mut scenario = Scenario::new(
                "KubeadmControlPlane",
                json!({"version": "v1.35.0", "machineTemplate": {"spec": {"infrastructureRef":
                    {"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "SimulatedMachineTemplate", "name": "cp"}}}}),
            );
            scenario.view.replicas = 1;
            scenario
        };
        let (needs, _) = scenario().run(control_plane::declare::<KubeadmControlPlane>);
        let labels: Vec<_> = needs.unwrap().into_iter().map(|(label, _)| label).collect();
        assert_eq!(labels, ["ca", "etcd", "proxy", "sa"]);
        let (decision, _) = scenario().run(control_plane::plan::<KubeadmControlPlane>);
        assert!(matches!(decision.unwrap().step, capstan_provider::control_plane::Step::CreateMachine { .. }));
        let (decision, _) =
            Scenario::new("KubeadmControlPlane", json!({})).run(control_plane::plan::<KubeadmControlPlane>);
        assert!(matches!(decision, Err(Error::Invalid(_))));
    }
}
