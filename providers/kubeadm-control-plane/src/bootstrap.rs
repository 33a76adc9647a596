//! The bootstrap spec of a machine: what of `kubeadmConfigSpec` it gets, and whether one that has it is up to date.

use capstan_provider::{Error, Result};
use kubeadm_types::normal;
use serde_json::{Value, json};

use crate::spec::{KubeadmControlPlane, minor};

/// kubeadm's gate that lets the kubelet of a control-plane machine talk to its own API server while it joins.
const LOCAL_MODE: &str = "ControlPlaneKubeletLocalMode";

/// What a machine is to be set up with.
pub struct Desired {
    /// For the first machine.
    pub init: Value,
    /// For any other.
    pub join: Value,
}

impl Desired {
    /// From the spec and the version that new machines get.
    pub fn of(spec: &KubeadmControlPlane, version: &str) -> Result<Self> {
        let whole = serde_json::to_value(&spec.kubeadm_config_spec)
            .and_then(|value| normal(&value))
            .map_err(|error| Error::internal(format!("kubeadmConfigSpec cannot be written: {error}")))?;
        let without = |key: &str| {
            let mut value = whole.clone();
            if let Some(map) = value.as_object_mut() {
                map.remove(key);
                if matches!(minor(version), Some((1, 31..=35))) {
                    local_mode(map);
                }
            }
            value
        };
        Ok(Self { init: without("joinConfiguration"), join: without("initConfiguration") })
    }

    /// Whether a machine with this bootstrap spec is set up as desired. Where it set itself up as the first or joined,
    /// it is compared with what is desired for that.
    pub fn fits(&self, bootstrap: &str) -> bool {
        let Ok(current) = serde_json::from_str::<Value>(bootstrap).and_then(|value| normal(&value)) else {
            return false;
        };
        let current = comparable(current);
        current == comparable(self.init.clone()) || current == comparable(self.join.clone())
    }
}

/// Sets the gate unless the user has set it.
fn local_mode(spec: &mut serde_json::Map<String, Value>) {
    let cluster = spec.entry("clusterConfiguration").or_insert_with(|| json!({}));
    let Some(cluster) = cluster.as_object_mut() else { return };
    let gates = cluster.entry("featureGates").or_insert_with(|| json!({}));
    if let Some(gates) = gates.as_object_mut() {
        gates.entry(LOCAL_MODE).or_insert(Value::Bool(true));
    }
}

/// Without what changes nothing on a machine that is there: the endpoint, DNS and how it found the cluster, and the gate
/// that depends on the version.
fn comparable(mut spec: Value) -> Value {
    let mut remove = |parent: &str, key: &str| {
        if let Some(map) = spec.pointer_mut(parent).and_then(Value::as_object_mut) {
            map.remove(key);
        }
    };
    remove("/clusterConfiguration", "controlPlaneEndpoint");
    remove("/clusterConfiguration", "dns");
    remove("/clusterConfiguration/featureGates", LOCAL_MODE);
    remove("/joinConfiguration", "discovery");
    kubeadm_types::pruned(spec)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn desired(spec: Value, version: &str) -> Desired {
        let spec = serde_json::from_value(json!({"kubeadmConfigSpec": spec})).unwrap();
        Desired::of(&spec, version).unwrap()
    }

    fn spec() -> Value {
        json!({
            "clusterConfiguration": {"apiServer": {"certSANs": ["a"]}, "dns": {"imageTag": "1"}},
            "initConfiguration": {"nodeRegistration": {"name": "i"}},
            "joinConfiguration": {"nodeRegistration": {"name": "j"}},
        })
    }

    #[test]
    fn the_first_machine_inits_and_others_join() {
        let desired = desired(spec(), "v1.30.0");
        assert_eq!(desired.init.get("joinConfiguration"), None);
        assert_eq!(desired.join.get("initConfiguration"), None);
        assert_eq!(desired.init.pointer("/clusterConfiguration/featureGates"), None);
        assert!(desired.fits(&desired.init.to_string()) && desired.fits(&desired.join.to_string()));
    }

    #[test]
    fn the_gate_comes_with_its_versions_and_makes_no_difference() {
        let new = desired(spec(), "v1.31.0");
        assert_eq!(
            new.init.pointer("/clusterConfiguration/featureGates/ControlPlaneKubeletLocalMode"),
            Some(&json!(true))
        );
        assert!(new.fits(&desired(spec(), "v1.30.0").join.to_string()));
        assert_eq!(desired(spec(), "v1.36.0").init.pointer("/clusterConfiguration/featureGates"), None);
    }

    #[test]
    fn only_what_matters_differs() {
        let desired = desired(spec(), "v1.30.0");
        let mut other = spec();
        other["clusterConfiguration"]["dns"]["imageTag"] = "2".into();
        other["clusterConfiguration"]["controlPlaneEndpoint"] = "e:1".into();
        other["format"] = "cloud-config".into();
        other.as_object_mut().unwrap().remove("initConfiguration");
        assert!(desired.fits(&other.to_string()));
        other["clusterConfiguration"]["apiServer"]["certSANs"] = json!(["b"]);
        assert!(!desired.fits(&other.to_string()));
        assert!(!desired.fits("no JSON"));
    }
}
