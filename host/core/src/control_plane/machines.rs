//! Making a control-plane Machine, with its InfraMachine and BootstrapConfig.

use std::sync::Arc;

use capstan_api::well_known::{
    CLONED_FROM_GROUP_KIND, CLONED_FROM_NAME, CLUSTER_GROUP, CLUSTER_NAME, CONTROL_PLANE, CONTROL_PLANE_NAME,
    CORE_VERSION, MACHINE_FINALIZER,
};
use capstan_api::{Gvk, Object, ObjectKey};
use serde_json::{Value, json};

use crate::cluster_input::if_served;
use crate::record::digest;
use crate::view::{NotNow, Place, View};

/// A reference in either contract's shape: group, kind, name.
fn infrastructure_reference(object: &Object) -> Option<(String, String, String)> {
    let reference = object
        .at("/spec/machineTemplate/spec/infrastructureRef")
        .or_else(|| object.at("/spec/machineTemplate/infrastructureRef"))?;
    let word = |field: &str| reference.get(field).and_then(Value::as_str).filter(|text| !text.is_empty());
    let group = word("apiGroup").or_else(|| word("apiVersion").and_then(|v| v.split_once('/')).map(|(group, _)| group));
    Some((group?.to_owned(), word("kind")?.to_owned(), word("name")?.to_owned()))
}

/// The infrastructure template of a control plane.
pub(super) fn template(view: &dyn View, object: &Object) -> Result<Option<Arc<Object>>, NotNow> {
    let Some((group, kind, name)) = infrastructure_reference(object) else { return Ok(None) };
    if_served(view.get(&Place::Management, &ObjectKey::new(group, kind, object.namespace(), name)))
}

/// What a new machine is made of.
pub(super) struct NewMachine<'a> {
    pub control_plane: &'a Object,
    pub cluster: &'a str,
    pub template: &'a Object,
    pub version: &'a str,
    pub failure_domain: Option<&'a str>,
    /// Spec of its bootstrap object.
    pub bootstrap: &'a Value,
}

/// The kind of bootstrap object that belongs to a kind of control plane, by Cluster API's naming:
/// `KubeadmControlPlane` of `controlplane.…` and `KubeadmConfig` of `bootstrap.…`.
fn bootstrap_kind(control_plane: &Object) -> Gvk {
    let gvk = control_plane.gvk();
    let kind = format!("{}Config", gvk.kind.strip_suffix("ControlPlane").unwrap_or(&gvk.kind));
    let group = match gvk.group.strip_prefix("controlplane.") {
        Some(rest) => format!("bootstrap.{rest}"),
        None => gvk.group,
    };
    Gvk::new(group, gvk.version, kind)
}

/// A name that no machine of this control plane has had: the time is in it.
pub(super) fn new_name(control_plane: &Object, now: u64) -> String {
    let hash = digest(format!("{}/{now}", control_plane.uid()).as_bytes(), 8);
    // Letters and digits that no word is made of, as Kubernetes takes for its own suffixes.
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut number = u64::from_str_radix(&hash, 16).unwrap_or_default();
    let mut suffix = String::new();
    for _ in 0..5 {
        let at = usize::try_from(number % ALPHABET.len() as u64).unwrap_or_default();
        suffix.push(ALPHABET.get(at).map_or('x', |byte| char::from(*byte)));
        number /= ALPHABET.len() as u64;
    }
    let name: String = control_plane.name().chars().take(57).collect();
    format!("{}-{suffix}", name.trim_end_matches(['-', '.']))
}

impl NewMachine<'_> {
    /// The Machine. It is made first, so that what belongs to it is owned by it from its beginning.
    pub(super) fn machine(&self, name: &str) -> Object {
        let object = self.control_plane;
        let mut machine = Object::new(&Gvk::new(CLUSTER_GROUP, CORE_VERSION, "Machine"), object.namespace(), name);
        self.metadata(&mut machine);
        machine.set("/metadata/finalizers", json!([MACHINE_FINALIZER]));
        machine.set("/metadata/ownerReferences", json!([object.as_owner(true)]));
        machine.set("/spec/clusterName", self.cluster.into());
        machine.set("/spec/version", self.version.into());
        let bootstrap = bootstrap_kind(object);
        let reference = json!({"apiGroup": bootstrap.group, "kind": bootstrap.kind, "name": name});
        machine.set("/spec/bootstrap/configRef", reference);
        let reference = json!({"apiGroup": self.template.group(), "kind": self.infra_kind(), "name": name});
        machine.set("/spec/infrastructureRef", reference);
        if let Some(domain) = self.failure_domain {
            machine.set("/spec/failureDomain", domain.into());
        }
        for field in ["deletion", "readinessGates", "taints"] {
            if let Some(value) = object.at(&format!("/spec/machineTemplate/spec/{field}")) {
                machine.set(&format!("/spec/{field}"), value.clone());
            }
        }
        machine
    }

    fn infra_kind(&self) -> &str {
        self.template.kind().strip_suffix("Template").unwrap_or(self.template.kind())
    }

    /// Labels and annotations that the Machine and what belongs to it share.
    fn metadata(&self, new: &mut Object) {
        for (map, set) in [
            ("labels", Object::set_label as fn(&mut Object, &str, &str)),
            ("annotations", Object::set_annotation as fn(&mut Object, &str, &str)),
        ] {
            let entries = self.control_plane.at(&format!("/spec/machineTemplate/metadata/{map}"));
            for (key, value) in entries.and_then(Value::as_object).into_iter().flatten() {
                set(new, key, value.as_str().unwrap_or_default());
            }
        }
        new.set_label(CLUSTER_NAME, self.cluster);
        new.set_label(CONTROL_PLANE, "");
        new.set_label(CONTROL_PLANE_NAME, self.control_plane.name());
    }

    /// The clone of the infrastructure template.
    pub(super) fn infrastructure(&self, machine: &Object) -> Object {
        let gvk = Gvk { kind: self.infra_kind().to_owned(), ..self.template.gvk() };
        let mut clone = Object::new(&gvk, machine.namespace(), machine.name());
        for (map, set) in [
            ("labels", Object::set_label as fn(&mut Object, &str, &str)),
            ("annotations", Object::set_annotation as fn(&mut Object, &str, &str)),
        ] {
            let entries = self.template.at(&format!("/spec/template/metadata/{map}"));
            for (key, value) in entries.and_then(Value::as_object).into_iter().flatten() {
                set(&mut clone, key, value.as_str().unwrap_or_default());
            }
        }
        self.metadata(&mut clone);
        clone.set_annotation(CLONED_FROM_NAME, self.template.name());
        let from = format!("{}.{}", self.template.kind(), self.template.group());
        clone.set_annotation(CLONED_FROM_GROUP_KIND, &from);
        clone.set("/metadata/ownerReferences", json!([machine.as_owner(true)]));
        clone.set("/spec", self.template.at("/spec/template/spec").cloned().unwrap_or_else(|| json!({})));
        clone
    }

    /// The bootstrap object.
    pub(super) fn bootstrap(&self, machine: &Object) -> Object {
        let mut config = Object::new(&bootstrap_kind(self.control_plane), machine.namespace(), machine.name());
        self.metadata(&mut config);
        config.set("/metadata/ownerReferences", json!([machine.as_owner(true)]));
        config.set("/spec", self.bootstrap.clone());
        config
    }
}
