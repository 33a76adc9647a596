//! Making a Machine and the clones that belong to it.

use std::collections::BTreeSet;
use std::sync::Arc;

use capstan_api::admission::label_value;
use capstan_api::machine_set::MachineSetSpec;
use capstan_api::well_known::{
    CLONED_FROM_GROUP_KIND, CLONED_FROM_NAME, CLUSTER_GROUP, CLUSTER_NAME, CORE_VERSION, DEPLOYMENT_NAME,
    MACHINE_FINALIZER, SET_NAME,
};
use capstan_api::{Gvk, Object};
use serde_json::{Map, Value, json};

use crate::contract_read::{Found, Reference, follow};
use crate::difference::merge_patch;
use crate::ownership::claim;
use crate::plan::{Plan, Write};
use crate::record::digest;
use crate::view::{NotNow, Place, View};

/// Longest name of a Machine: it becomes a host name and a label.
const NAME_LIMIT: usize = 63;

/// Five letters and digits that no word is made of, from a seed.
pub(crate) fn suffix(seed: &str) -> String {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut number = u64::from_str_radix(&digest(seed.as_bytes(), 8), 16).unwrap_or_default();
    let mut text = String::new();
    for _ in 0..5 {
        let at = usize::try_from(number % 27).unwrap_or_default();
        text.push(ALPHABET.get(at).map_or('x', |byte| char::from(*byte)));
        number /= 27;
    }
    text
}

/// `base` cut so that a suffix fits.
pub(crate) fn with_suffix(base: &str, suffix: &str) -> String {
    let room = NAME_LIMIT - 1 - suffix.len();
    let base: String = base.chars().take(room).collect();
    format!("{}-{suffix}", base.trim_end_matches(['-', '.']))
}

/// A name that no Machine of this set has had: the time is in it.
pub(super) fn new_name(
    set: &Object,
    spec: &MachineSetSpec,
    taken: &BTreeSet<String>,
    now: u64,
    index: usize,
) -> String {
    let mut attempt = 0;
    loop {
        let random = suffix(&format!("{}/{now}/{index}/{attempt}", set.uid()));
        let name = match spec.machine_naming.as_ref().and_then(|n| n.template.as_deref()) {
            Some(template) => rendered(template, &spec.cluster_name, set.name(), &random),
            None => with_suffix(set.name(), &random),
        };
        if !taken.contains(&name) {
            return name;
        }
        attempt += 1;
    }
}

/// A naming template with its three words filled in; too long a name is cut before the random part where that
/// stands last.
fn rendered(template: &str, cluster: &str, set: &str, random: &str) -> String {
    let mut text = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        text.push_str(before);
        let Some((word, more)) = after.split_once("}}") else { break };
        text.push_str(match word.trim() {
            ".cluster.name" => cluster,
            ".machineSet.name" => set,
            ".random" => random,
            _ => "",
        });
        rest = more;
    }
    text.push_str(rest);
    if text.len() <= NAME_LIMIT {
        return text;
    }
    match text.strip_suffix(random) {
        Some(base) => with_suffix(base.trim_end_matches('-'), random),
        None => with_suffix(&text, random),
    }
}

/// Makes Machines of one set.
pub(super) struct Maker<'a> {
    set: &'a Object,
    spec: &'a MachineSetSpec,
    cluster: &'a Object,
    /// The Machines' labels and annotations.
    labels: Vec<(String, String)>,
    bootstrap: Option<Arc<Object>>,
    infrastructure: Option<Arc<Object>>,
    /// Why no Machine can be made.
    pub(super) blocked: Vec<String>,
}

/// `KubeadmConfig` for `KubeadmConfigTemplate`.
fn kind_of(template: &str) -> &str {
    template.strip_suffix("Template").unwrap_or(template)
}

impl<'a> Maker<'a> {
    /// Reads the templates.
    pub(super) fn new(
        set: &'a Object,
        spec: &'a MachineSetSpec,
        cluster: &'a Object,
        view: &dyn View,
    ) -> Result<Self, NotNow> {
        let mut labels: Vec<(String, String)> =
            spec.template.metadata.labels.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
        let mut put = |key: &str, value: String| {
            labels.retain(|(k, _)| k != key);
            labels.push((key.to_owned(), value));
        };
        put(CLUSTER_NAME, cluster.name().to_owned());
        put(SET_NAME, label_value(set.name()));
        if let Some(deployment) = set.label(DEPLOYMENT_NAME) {
            put(DEPLOYMENT_NAME, deployment.to_owned());
        }
        let mut maker = Self { set, spec, cluster, labels, bootstrap: None, infrastructure: None, blocked: Vec::new() };
        let at = "/spec/template/spec/bootstrap/configRef";
        if let Some(reference) = Reference::at(set, at) {
            maker.bootstrap = maker.template(view, "spec.template.spec.bootstrap.configRef", &reference)?;
        }
        match Reference::at(set, "/spec/template/spec/infrastructureRef") {
            Some(reference) => {
                maker.infrastructure = maker.template(view, "spec.template.spec.infrastructureRef", &reference)?;
            }
            None => maker.blocked.push("spec.template.spec.infrastructureRef is needed".into()),
        }
        Ok(maker)
    }

    fn template(&mut self, view: &dyn View, path: &str, to: &Reference) -> Result<Option<Arc<Object>>, NotNow> {
        match follow(view, self.set.namespace(), path, to)? {
            Found::Object(duck) if duck.object.at("/spec/template").is_some() => return Ok(Some(duck.object)),
            Found::Object(_) => {
                let message =
                    format!("{path} names {} {}, which has no spec.template: name a template", to.kind, to.name);
                self.blocked.push(message);
            }
            Found::Missing => self.blocked.push(format!("{path} names {} {}, which does not exist", to.kind, to.name)),
            Found::Wrong(message) => self.blocked.push(message),
        }
        Ok(None)
    }

    /// The templates go with the Cluster that uses them.
    pub(super) fn own_templates(&self, plan: &mut Plan) {
        for template in self.bootstrap.iter().chain(&self.infrastructure) {
            // A plain owner is never refused.
            let _ = claim(plan, template, &self.cluster.as_owner(false), self.cluster.name());
        }
    }

    /// A Machine, complete.
    pub(super) fn machine(&self, name: &str) -> Object {
        let mut machine = Object::new(&Gvk::new(CLUSTER_GROUP, CORE_VERSION, "Machine"), self.set.namespace(), name);
        self.describe(&mut machine);
        machine.set("/metadata/finalizers", json!([MACHINE_FINALIZER]));
        machine.set("/metadata/ownerReferences", json!([self.set.as_owner(true)]));
        machine.set("/spec", self.set.at("/spec/template/spec").cloned().unwrap_or_default());
        for (template, pointer) in
            [(&self.bootstrap, "/spec/bootstrap/configRef"), (&self.infrastructure, "/spec/infrastructureRef")]
        {
            if let Some(template) = template {
                let reference = Reference {
                    group: template.group().to_owned(),
                    kind: kind_of(template.kind()).to_owned(),
                    name: name.to_owned(),
                };
                machine.set(pointer, reference.to_value());
            }
        }
        machine
    }

    fn describe(&self, object: &mut Object) {
        for (key, value) in &self.labels {
            object.set_label(key, value);
        }
        for (key, value) in &self.spec.template.metadata.annotations {
            object.set_annotation(key, value);
        }
    }

    /// Makes the clones that a Machine of this set still lacks, as long as it has not come to use them.
    pub(super) fn complete(&self, machine: &Object, plan: &mut Plan, view: &dyn View) -> Result<(), NotNow> {
        let used = machine.str_at("/spec/providerID").is_some()
            || machine.bool_at("/status/initialization/infrastructureProvisioned");
        if used {
            return Ok(());
        }
        let booted = machine.str_at("/spec/bootstrap/dataSecretName").is_some();
        for (template, pointer, done) in [
            (&self.bootstrap, "/spec/bootstrap/configRef", booted),
            (&self.infrastructure, "/spec/infrastructureRef", false),
        ] {
            let (Some(template), Some(reference)) = (template, Reference::at(machine, pointer)) else { continue };
            let ours = reference.name == machine.name()
                && reference.kind == kind_of(template.kind())
                && reference.group == template.group();
            if done || !ours {
                continue;
            }
            match view.get(&Place::Management, &reference.key(machine.namespace())) {
                Ok(None) => plan.writes.push(Write::Create(self.cloned(template, machine))),
                Ok(Some(_)) | Err(NotNow::NoSuchKind { .. }) => {}
                Err(other) => return Err(other),
            }
        }
        Ok(())
    }

    fn cloned(&self, template: &Object, machine: &Object) -> Object {
        let gvk = Gvk { kind: kind_of(template.kind()).to_owned(), ..template.gvk() };
        let mut clone = Object::new(&gvk, machine.namespace(), machine.name());
        let entries = |map: &str| -> Vec<(String, String)> {
            let all = template.at(&format!("/spec/template/metadata/{map}")).and_then(Value::as_object);
            all.into_iter().flatten().filter_map(|(k, v)| Some((k.clone(), v.as_str()?.to_owned()))).collect()
        };
        for (key, value) in entries("labels") {
            clone.set_label(&key, &value);
        }
        for (key, value) in entries("annotations") {
            clone.set_annotation(&key, &value);
        }
        self.describe(&mut clone);
        clone.set_annotation(CLONED_FROM_NAME, template.name());
        clone.set_annotation(CLONED_FROM_GROUP_KIND, &format!("{}.{}", template.kind(), template.group()));
        clone.set("/metadata/ownerReferences", json!([machine.as_owner(true)]));
        clone.set("/spec", template.at("/spec/template/spec").cloned().unwrap_or_else(|| json!({})));
        clone
    }

    /// Carries over, in place, what needs no new Machine: labels, annotations, deletion time limits, minReadySeconds,
    /// readiness gates and taints. Labels and annotations are added and changed, never taken away. (The Machine carries
    /// them on to its InfraMachine and BootstrapConfig.)
    pub(super) fn keep_in_step(&self, machine: &Object, plan: &mut Plan) {
        let mut new = machine.clone();
        self.describe(&mut new);
        let template = |field: &str| self.set.at(&format!("/spec/template/spec/{field}"));
        for field in ["minReadySeconds", "readinessGates", "taints"] {
            let pointer = format!("/spec/{field}");
            match template(field) {
                Some(value) => new.set(&pointer, value.clone()),
                None => {
                    new.remove(&pointer);
                }
            }
        }
        // Time limits that the template does not give were filled in by admission and stay.
        for (field, value) in template("deletion").and_then(Value::as_object).into_iter().flatten() {
            new.set(&format!("/spec/deletion/{field}"), value.clone());
        }
        let mut patch = Map::new();
        for part in ["metadata", "spec"] {
            let (old, new) = (machine.0.get(part).unwrap_or(&Value::Null), new.0.get(part).unwrap_or(&Value::Null));
            if let Some(changed) = merge_patch(old, new) {
                patch.insert(part.into(), changed);
            }
        }
        if !patch.is_empty() {
            plan.writes.push(Write::Patch { key: machine.key(), patch: patch.into(), resource_version: None });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_and_keep_their_random_part() {
        assert_eq!(with_suffix("ms", "abcde"), "ms-abcde");
        let long = with_suffix(&"a".repeat(80), "abcde");
        assert!(long.len() == 63 && long.ends_with("a-abcde"), "{long}");
        assert_eq!(rendered("{{ .cluster.name }}-{{.random}}-x", "c", "s", "12345"), "c-12345-x");
        let cut = rendered("{{ .machineSet.name }}-{{ .random }}", "c", &"s".repeat(90), "12345");
        assert!(cut.len() == 63 && cut.ends_with("s-12345"), "{cut}");
    }
}
