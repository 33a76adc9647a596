//! CRDs of a provider component, made from its `capstan:crds` section and its manifest.
//!
//! A component says what is its own: kind, names, the schema of its spec and of its own status fields. What
//! Cluster API's contract adds is put in here, so no provider can get it wrong: contract labels in both forms,
//! fields (`providerID`, `controlPlaneEndpoint`, `status.initialization.*` and v1beta1's), conditions, subresources,
//! categories, printer columns, and the `…Template` kinds.

mod fields;

use serde_json::{Map, Value, json};

use crate::admission::FieldError;
use crate::crds::{AGE, Column, PAUSED, column, scale};
use crate::structural::set;
use crate::well_known::{CONTRACT_PREFIX, PROVIDER};

/// What a kind is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Duty {
    InfraCluster,
    InfraMachine,
    Bootstrap,
    ControlPlane,
    /// Lends the operator's credentials; no object of the contract.
    Identity,
}

/// Contracts that CRDs may be labelled with, newest first.
const CONTRACTS: [&str; 2] = ["v1beta2", "v1beta1"];

struct Provider<'a> {
    label: String,
    group: &'a str,
    /// Kind and duty.
    kinds: Vec<(&'a str, Duty)>,
    /// Contract → versions.
    contracts: Vec<(&'static str, Vec<&'a str>)>,
}

/// All CRDs of a component, `…Template` kinds included. `manifest` and `section` are the component's two custom
/// sections as JSON.
///
/// # Errors
/// Everything that is wrong, each with its path: `manifest.…` or `crds[0].…`.
pub fn provider_crds(manifest: &Value, section: &Value) -> Result<Vec<Value>, Vec<FieldError>> {
    let mut errors = Vec::new();
    let provider = read_manifest(manifest, &mut errors);
    let Some(list) = section.as_array() else {
        errors.push(FieldError::new("crds", "must be a list of kinds"));
        return Err(errors);
    };
    let Some(provider) = provider else { return Err(errors) };
    for (kind, _) in &provider.kinds {
        if !list.iter().any(|crd| word(crd, "kind") == *kind) {
            errors.push(FieldError::new("crds", format!("has no kind {kind}, which the manifest names")));
        }
    }
    let mut crds = Vec::new();
    for (index, crd) in list.iter().enumerate() {
        let at = format!("crds[{index}]");
        match provider.kinds.iter().find(|(kind, _)| *kind == word(crd, "kind")) {
            Some((_, duty)) => kind(&provider, *duty, crd, &at, &mut crds, &mut errors),
            None => errors.push(FieldError::new(
                format!("{at}.kind"),
                format!("{:?} is not among the manifest's kinds", word(crd, "kind")),
            )),
        }
    }
    if errors.is_empty() { Ok(crds) } else { Err(errors) }
}

/// Cluster API computes the name of a CRD from its kind, so the plural is not free (flect's rules, as far as
/// kinds need them).
pub fn plural(kind: &str) -> String {
    let word = kind.to_lowercase();
    let ends = |endings: &[&str]| endings.iter().any(|ending| word.ends_with(ending));
    if ends(&["s", "x", "z", "ch", "sh"]) {
        format!("{word}es")
    } else if let Some(stem) = word.strip_suffix('y').filter(|s| !s.ends_with(['a', 'e', 'i', 'o', 'u'])) {
        format!("{stem}ies")
    } else {
        format!("{word}s")
    }
}

fn word<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn read_manifest<'a>(manifest: &'a Value, errors: &mut Vec<FieldError>) -> Option<Provider<'a>> {
    let before = errors.len();
    let mut need = |path: &str, value: &'a str| {
        if value.is_empty() {
            errors.push(FieldError::new(format!("manifest.{path}"), "is needed"));
        }
        value
    };
    let name = need("name", word(manifest, "name"));
    let role = need("role", word(manifest, "role"));
    let named = manifest.get("kinds").unwrap_or(&Value::Null);
    let group = need("kinds.group", word(named, "group"));
    let first = |fields: &[&str]| fields.iter().map(|f| word(named, f)).find(|kind| !kind.is_empty());
    let wanted: Vec<(&str, Option<&str>, Duty)> = match role {
        "infrastructure" => vec![
            ("kinds.cluster", first(&["cluster"]), Duty::InfraCluster),
            ("kinds.machine", first(&["machine"]), Duty::InfraMachine),
        ],
        "bootstrap" => vec![("kinds.machine", first(&["machine", "config", "bootstrap"]), Duty::Bootstrap)],
        "control-plane" => vec![("kinds.machine", first(&["machine", "controlPlane"]), Duty::ControlPlane)],
        "" => Vec::new(),
        other => {
            let known = "infrastructure, bootstrap and control-plane";
            errors.push(FieldError::new("manifest.role", format!("{other:?} is none of {known}")));
            Vec::new()
        }
    };
    let mut kinds = Vec::new();
    for (path, kind, duty) in wanted {
        match kind {
            Some(kind) => kinds.push((kind, duty)),
            None => errors.push(FieldError::new(format!("manifest.{path}"), "is needed")),
        }
    }
    let identities = named.get("identities").and_then(Value::as_array).into_iter().flatten();
    kinds.extend(identities.filter_map(Value::as_str).map(|kind| (kind, Duty::Identity)));
    let mut contracts = Vec::new();
    for (label, versions) in manifest.get("contractLabels").and_then(Value::as_object).into_iter().flatten() {
        let path = format!("manifest.contractLabels.{label}");
        let known = CONTRACTS.iter().find(|c| label.strip_prefix(CONTRACT_PREFIX) == Some(**c));
        let versions: Vec<&str> = versions.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        match known {
            Some(contract) if !versions.is_empty() => contracts.push((*contract, versions)),
            Some(_) => errors.push(FieldError::new(path, "must list the versions that speak this contract")),
            None => errors.push(FieldError::new(path, "is no contract label: cluster.x-k8s.io/v1beta2 or …/v1beta1")),
        }
    }
    if contracts.is_empty() && errors.len() == before {
        errors.push(FieldError::new("manifest.contractLabels", "is needed, or the core could not read the kinds"));
    }
    (errors.len() == before).then(|| Provider { label: format!("{role}-{name}"), group, kinds, contracts })
}

/// The CRD of a kind, and that of its template.
fn kind(
    provider: &Provider<'_>,
    duty: Duty,
    crd: &Value,
    at: &str,
    crds: &mut Vec<Value>,
    errors: &mut Vec<FieldError>,
) {
    let before = errors.len();
    let name = word(crd, "kind");
    let want = plural(name);
    if word(crd, "plural") != want {
        errors.push(FieldError::new(
            format!("{at}.plural"),
            format!("must be {want:?}: Cluster API computes the CRD's name from the kind"),
        ));
    }
    let scope = match (duty, word(crd, "scope")) {
        (Duty::Identity, "Cluster") => "Cluster",
        (Duty::Identity, _) => {
            errors.push(FieldError::new(format!("{at}.scope"), "must be Cluster: identities are the operator's"));
            return;
        }
        (_, "" | "Namespaced") => "Namespaced",
        _ => {
            errors.push(FieldError::new(format!("{at}.scope"), "must be Namespaced: objects belong to a tenant"));
            return;
        }
    };
    let versions = crd.get("versions").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let stored = versions.iter().filter(|v| flag(v, "storage")).count();
    if stored != 1 {
        errors.push(FieldError::new(format!("{at}.versions"), format!("exactly one must be stored, not {stored}")));
    }
    for (contract, listed) in &provider.contracts {
        for version in listed.iter().filter(|v| !versions.iter().any(|have| word(have, "name") == **v)) {
            errors.push(FieldError::new(
                format!("manifest.contractLabels.{CONTRACT_PREFIX}{contract}"),
                format!("names version {version}, which {name} does not have"),
            ));
        }
    }
    let mut own = Vec::new();
    let mut templates = Vec::new();
    for (index, version) in versions.iter().enumerate() {
        let at = format!("{at}.versions[{index}]");
        let contract = provider
            .contracts
            .iter()
            .filter(|(_, listed)| listed.contains(&word(version, "name")))
            .map(|(contract, _)| *contract)
            .min_by_key(|contract| CONTRACTS.iter().position(|c| c == contract));
        let Some(schema) = version.get("schema").filter(|s| s.get("properties").is_some()) else {
            errors.push(FieldError::new(format!("{at}.schema"), "must be the schema of the object, with spec in it"));
            continue;
        };
        structural(schema, &format!("{at}.schema"), errors);
        let mut schema = schema.clone();
        let spec = schema.pointer("/properties/spec").cloned().unwrap_or_default();
        if !spec.is_object() {
            errors.push(FieldError::new(format!("{at}.schema.properties.spec"), "is needed"));
            continue;
        }
        fields::merge(duty, contract.unwrap_or("v1beta2"), &mut schema);
        head(&mut schema);
        let mut subresources = json!({"status": {}});
        if duty == Duty::ControlPlane && spec.pointer("/properties/replicas").is_some() {
            set(&mut subresources, "/scale", scale());
        }
        own.push(version_of(version, schema, subresources, columns_of(duty, printed(version))));

        let mut template = fields::template(name, duty, &spec);
        head(&mut template);
        templates.push(version_of(version, template, json!({"status": {}}), vec![AGE.to_value()]));
    }
    if errors.len() > before {
        return;
    }
    let short_names = crd.get("shortNames").cloned().unwrap_or(json!([]));
    let category = match duty {
        Duty::InfraCluster => "infrastructureclusters",
        Duty::InfraMachine => "infrastructuremachines",
        Duty::Bootstrap => "bootstrapconfigs",
        Duty::ControlPlane => "controlplanes",
        Duty::Identity => {
            crds.push(complete(provider, name, scope, &short_names, &["cluster-api"], own));
            return;
        }
    };
    crds.push(complete(provider, name, scope, &short_names, &["cluster-api", category], own));
    if crd.get("template").and_then(Value::as_bool).unwrap_or(true) {
        crds.push(complete(provider, &format!("{name}Template"), scope, &json!([]), &["cluster-api"], templates));
    }
}

fn printed(version: &Value) -> &[Value] {
    version.get("printerColumns").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn flag(value: &Value, field: &str) -> bool {
    value.get(field).and_then(Value::as_bool).unwrap_or(false)
}

fn version_of(version: &Value, schema: Value, subresources: Value, columns: Vec<Value>) -> Value {
    json!({
        "name": word(version, "name"),
        "served": version.get("served").and_then(Value::as_bool).unwrap_or(true),
        "storage": flag(version, "storage"),
        "schema": {"openAPIV3Schema": schema},
        "subresources": subresources,
        "additionalPrinterColumns": columns,
    })
}

fn complete(
    provider: &Provider<'_>,
    kind: &str,
    scope: &str,
    short_names: &Value,
    categories: &[&str],
    versions: Vec<Value>,
) -> Value {
    let plural = plural(kind);
    let mut labels = Map::new();
    for (contract, listed) in &provider.contracts {
        labels.insert(format!("{CONTRACT_PREFIX}{contract}"), listed.join("_").into());
    }
    let newest = CONTRACTS.iter().find(|c| provider.contracts.iter().any(|(have, _)| have == *c));
    if let Some(newest) = newest {
        labels.insert(format!("{CONTRACT_PREFIX}contract"), (*newest).into());
    }
    labels.insert(PROVIDER.into(), provider.label.clone().into());
    labels.insert("clusterctl.cluster.x-k8s.io".into(), "".into());
    let mut names = json!({
        "kind": kind,
        "listKind": format!("{kind}List"),
        "plural": plural,
        "singular": kind.to_lowercase(),
        "categories": categories,
    });
    if short_names.as_array().is_some_and(|names| !names.is_empty()) {
        set(&mut names, "/shortNames", short_names.clone());
    }
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{}", provider.group), "labels": labels},
        "spec": {"group": provider.group, "names": names, "scope": scope, "versions": versions},
    })
}

/// `apiVersion`, `kind` and `metadata` where the component left them out.
fn head(schema: &mut Value) {
    set(schema, "/type", "object".into());
    for (field, value) in [
        ("apiVersion", json!({"type": "string", "description": "Version of the schema of this object."})),
        ("kind", json!({"type": "string", "description": "Kind of this object."})),
        ("metadata", json!({"type": "object"})),
    ] {
        let pointer = format!("/properties/{field}");
        if schema.pointer(&pointer).is_none() {
            set(schema, &pointer, value);
        }
    }
}

const CLUSTER_LABEL: Column = column(
    "Cluster",
    "string",
    ".metadata.labels['cluster\\.x-k8s\\.io/cluster-name']",
    "Cluster that the object belongs to",
);
const MACHINE_OWNER: Column = column(
    "Machine",
    "string",
    ".metadata.ownerReferences[?(@.kind==\"Machine\")].name",
    "Machine that the object belongs to",
);
const PROVIDER_ID: Column = column("ProviderID", "string", ".spec.providerID", "What the cloud calls the machine");
const ENDPOINT: Column =
    column("Endpoint", "string", ".spec.controlPlaneEndpoint.host", "Where the control plane is reached");
const READY: Column =
    column("Ready", "string", ".status.conditions[?(@.type==\"Ready\")].status", "The object is ready");

/// The standard columns, with the component's own before Ready; bootstrap and control-plane components that list
/// columns list all of them.
fn columns_of(duty: Duty, own: &[Value]) -> Vec<Value> {
    let (before, after): (&[Column], &[Column]) = match duty {
        Duty::InfraCluster => (&[CLUSTER_LABEL, ENDPOINT], &[READY, PAUSED, AGE]),
        Duty::InfraMachine => (&[CLUSTER_LABEL, MACHINE_OWNER, PROVIDER_ID], &[READY, PAUSED, AGE]),
        Duty::Identity => (&[], &[AGE]),
        _ if own.is_empty() => (&[CLUSTER_LABEL], &[READY, PAUSED, AGE]),
        _ => (&[], &[]),
    };
    let standard = |columns: &[Column]| -> Vec<Value> {
        columns
            .iter()
            .map(Column::to_value)
            .filter(|c| !own.iter().any(|o| word(o, "name") == word(c, "name")))
            .collect()
    };
    [standard(before), own.to_vec(), standard(after)].concat()
}

/// The rules of a structural schema that a component breaks most easily.
fn structural(schema: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let Some(map) = schema.as_object() else {
        errors.push(FieldError::new(at, "must be an object"));
        return;
    };
    for key in ["$ref", "definitions", "patternProperties", "const", "if"] {
        if map.contains_key(key) {
            errors.push(FieldError::new(format!("{at}.{key}"), "is not allowed in a structural schema"));
        }
    }
    let open = ["x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"];
    if !map.get("type").is_some_and(Value::is_string) && !open.iter().any(|key| map.contains_key(*key)) {
        errors.push(FieldError::new(format!("{at}.type"), "is needed"));
    }
    if let Some(Value::Object(properties)) = map.get("properties") {
        for (name, property) in properties {
            structural(property, &format!("{at}.properties.{name}"), errors);
        }
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = map.get(key).filter(|inner| !inner.is_boolean()) {
            structural(inner, &format!("{at}.{key}"), errors);
        }
    }
}

#[cfg(test)]
mod tests;
