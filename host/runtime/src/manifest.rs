//! The half of the contract that is data: what a component says about itself in its custom sections.
//!
//! It is untrusted and read before any guest code is compiled: sizes are limited, an unknown field is an error that
//! names it, and every value is checked. The manifest *asks*; the operator's ProviderModule grants.

use std::collections::BTreeMap;
use std::time::Duration;

use capstan_core::contract::{Duty, Role, Served, WorkloadObject};
use capstan_gateway::{CredentialReference, Declared, Origin, Protocol, ReadOperation, Signing};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// The largest manifest section, in bytes.
pub const MAX_MANIFEST: usize = 64 << 10;
/// The largest CRD section, in bytes.
pub const MAX_CRDS: usize = 4 << 20;

/// Why a manifest or CRD section is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{section} {problem}")]
pub struct ManifestError {
    /// Which section.
    pub section: &'static str,
    /// What is wrong with it, with the field's path.
    pub problem: String,
}

/// The manifest of a component.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Manifest {
    /// Name of the provider, a DNS label.
    pub name: String,
    /// Version of the provider.
    pub version: String,
    /// Version of the contract it was built against, such as `0.1`.
    pub contract: String,
    /// What it is for.
    pub role: Role,
    /// The kinds it serves.
    pub kinds: Kinds,
    /// Cluster API contract version label → CRD versions that speak it.
    #[serde(default)]
    pub contract_labels: BTreeMap<String, Vec<String>>,
    /// Endpoints that the guest may name.
    #[serde(default)]
    pub endpoints: Vec<Endpoint>,
    /// How Endpoints, Secrets and identities that objects name become the credential of an endpoint.
    #[serde(default)]
    pub credentials: Vec<CredentialReference>,
    /// JSON pointers of the spec from which a Secret, ConfigMap, Endpoint or identity may be named.
    #[serde(default)]
    pub object_references: Vec<String>,
    /// Objects in the workload cluster that a control-plane planner may read and apply, by label.
    #[serde(default, deserialize_with = "map_or_empty_list")]
    pub workload_objects: BTreeMap<String, WorkloadObject>,
    /// How long after a change this API's reads may still show the past.
    #[serde(default)]
    pub consistency_window: Length,
    /// Wishes below the operator's maxima.
    #[serde(default)]
    pub limits: LimitWishes,
}

/// The kinds that play the role's parts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Kinds {
    /// API group.
    pub group: String,
    /// The InfraCluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// The InfraMachine, BootstrapConfig or ControlPlane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// Identities: cluster-scoped kinds by which the operator lends credentials to namespaces. The host reads them; no
    /// guest is asked about them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub identities: Vec<String>,
}

/// An endpoint that the guest may name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Endpoint {
    /// Name.
    pub name: String,
    /// What counts as a read.
    #[serde(default)]
    pub protocol: Protocol,
    /// The longest that a request may take.
    #[serde(default = "thirty_seconds")]
    pub timeout: Length,
    /// The largest answer.
    #[serde(default = "four_mebibytes")]
    pub max_response: Size,
    /// Template of the origin, for public clouds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// JSON pointers into the InfraCluster that fill the template's variables.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub variables: BTreeMap<String, String>,
    /// What requests are signed for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signing: Option<Signing>,
    /// Reads that use POST, each to be granted by the operator.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub read_operations: Vec<ReadOperation>,
    /// Nothing is changed through it: a request that is no read is refused, and however long one may take, absence is
    /// believed no later for it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
}

/// Limits that the provider asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct LimitWishes {
    /// Bytes of linear memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Size>,
    /// CPU time of the guest in one turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Length>,
    /// Requests in one turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_turn: Option<u32>,
}

/// A kind that the component serves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Crd {
    /// Kind.
    pub kind: String,
    /// Plural in lower case.
    pub plural: String,
    /// Singular in lower case.
    pub singular: String,
    /// Short names.
    #[serde(default)]
    pub short_names: Vec<String>,
    /// `Namespaced`; `Cluster` for identities.
    #[serde(default = "namespaced")]
    pub scope: String,
    /// Whether a Template kind belongs to it.
    #[serde(default)]
    pub template: bool,
    /// Versions.
    pub versions: Vec<CrdVersion>,
}

/// A version of a kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct CrdVersion {
    /// Name, such as `v1beta1`.
    pub name: String,
    /// Whether the API server serves it.
    #[serde(default = "yes")]
    pub served: bool,
    /// Whether objects are stored in it.
    #[serde(default)]
    pub storage: bool,
    /// OpenAPI schema of the whole object: `spec` and `status`.
    pub schema: Value,
    /// Columns of `kubectl get`.
    #[serde(default)]
    pub printer_columns: Vec<Value>,
}

/// A length of time, written as `30s`, `200ms`, `5m` or `1h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Length(pub Duration);

/// A number of bytes, written as `16Mi`, `4Ki`, `1Gi` or plainly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

fn thirty_seconds() -> Length {
    Length(Duration::from_secs(30))
}

fn four_mebibytes() -> Size {
    Size(4 << 20)
}

fn namespaced() -> String {
    "Namespaced".to_owned()
}

fn yes() -> bool {
    true
}

fn map_or_empty_list<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, WorkloadObject>, D::Error> {
    match Value::deserialize(from)? {
        Value::Array(list) if list.is_empty() => Ok(BTreeMap::new()),
        other => serde_json::from_value(other).map_err(serde::de::Error::custom),
    }
}

/// A number and its unit.
fn quantity(text: &str) -> Option<(u64, &str)> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(digits)?;
    Some((number.parse().ok()?, unit))
}

impl<'de> Deserialize<'de> for Length {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let length = quantity(&text).and_then(|(number, unit)| {
            Some(match unit {
                "ms" => Duration::from_millis(number),
                "s" => Duration::from_secs(number),
                "m" => Duration::from_secs(number.checked_mul(60)?),
                "h" => Duration::from_secs(number.checked_mul(3600)?),
                _ => return None,
            })
        });
        length.map(Length).ok_or_else(|| {
            serde::de::Error::custom(format!("{text:?} is no length of time such as 200ms, 30s, 5m or 1h"))
        })
    }
}

impl Serialize for Length {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let ms = self.0.as_millis();
        to.serialize_str(&if ms.is_multiple_of(1000) { format!("{}s", ms / 1000) } else { format!("{ms}ms") })
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let size = quantity(&text).and_then(|(number, unit)| {
            let shift = match unit {
                "" => 0,
                "Ki" => 10,
                "Mi" => 20,
                "Gi" => 30,
                _ => return None,
            };
            number.checked_mul(1 << shift)
        });
        size.map(Size)
            .ok_or_else(|| serde::de::Error::custom(format!("{text:?} is no size such as 512Ki, 16Mi or 1Gi")))
    }
}

impl Serialize for Size {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let text = match self.0 {
            n if n > 0 && n.is_multiple_of(1 << 20) => format!("{}Mi", n >> 20),
            n if n > 0 && n.is_multiple_of(1 << 10) => format!("{}Ki", n >> 10),
            n => n.to_string(),
        };
        to.serialize_str(&text)
    }
}

impl Manifest {
    /// Reads and checks a manifest section.
    ///
    /// # Errors
    /// When it is too large, no JSON of the manifest's shape, or a value is not allowed.
    pub fn read(section: &[u8]) -> Result<Self, ManifestError> {
        let error = |problem| ManifestError { section: "the manifest", problem };
        if section.len() > MAX_MANIFEST {
            return Err(error(format!("is {} bytes large; {MAX_MANIFEST} are allowed", section.len())));
        }
        let manifest: Self = serde_json::from_slice(section).map_err(|e| error(format!("cannot be read: {e}")))?;
        manifest.check().map_err(error)?;
        Ok(manifest)
    }

    fn check(&self) -> Result<(), String> {
        is_dns_label(&self.name)
            .then_some(())
            .ok_or_else(|| format!("has name {:?}, which is no DNS label", self.name))?;
        if self.version.is_empty() || self.version.len() > 64 {
            return Err("has no version, or one longer than 64 characters".to_owned());
        }
        if !is_dns_name(&self.kinds.group) {
            return Err(format!("has kinds.group {:?}, which is no DNS name", self.kinds.group));
        }
        let kinds = [("cluster", &self.kinds.cluster), ("machine", &self.kinds.machine)];
        let identities = self.kinds.identities.iter().map(|kind| ("identities", kind));
        for (field, kind) in
            kinds.into_iter().filter_map(|(field, kind)| Some((field, kind.as_ref()?))).chain(identities)
        {
            if !is_kind(kind) {
                return Err(format!("has kinds.{field} {kind:?}, which is no CamelCase kind"));
            }
        }
        if self.role != Role::Infrastructure && !self.kinds.identities.is_empty() {
            return Err("has kinds.identities, which only the role infrastructure may have".to_owned());
        }
        match (self.role, &self.kinds.cluster, &self.kinds.machine) {
            (Role::Infrastructure, None, None) => return Err("has neither kinds.cluster nor kinds.machine".to_owned()),
            (Role::Bootstrap | Role::ControlPlane, None, Some(_)) | (Role::Infrastructure, _, _) => {}
            _ => return Err("must have kinds.machine and no kinds.cluster in this role".to_owned()),
        }
        let mut names = std::collections::BTreeSet::new();
        for endpoint in &self.endpoints {
            let name = &endpoint.name;
            if !is_dns_label(name) {
                return Err(format!("has an endpoint named {name:?}, which is no DNS label"));
            }
            if !names.insert(name) {
                return Err(format!("has two endpoints named {name}"));
            }
            let timeout = endpoint.timeout.0;
            if timeout.is_zero() || timeout > Duration::from_secs(600) {
                return Err(format!("has endpoint {name} with a timeout outside 1ms to 10m"));
            }
            if endpoint.max_response.0 == 0 || endpoint.max_response.0 > 64 << 20 {
                return Err(format!("has endpoint {name} with a maxResponse outside 1 to 64Mi"));
            }
        }
        self.endpoints.iter().try_for_each(Endpoint::check_origin)?;
        self.credentials.iter().try_for_each(|credential| self.check_credential(credential))?;
        if self.role != Role::Infrastructure && !self.endpoints.is_empty() {
            return Err("has endpoints, which only the role infrastructure may use".to_owned());
        }
        if self.role != Role::ControlPlane && !self.workload_objects.is_empty() {
            return Err("has workloadObjects, which only the role control-plane may use".to_owned());
        }
        if let Some(pointer) = self.object_references.iter().find(|pointer| !pointer.starts_with("/spec/")) {
            return Err(format!("has objectReferences with {pointer:?}, which is no JSON pointer into /spec"));
        }
        if self.consistency_window.0 > Duration::from_secs(3600) {
            return Err("has a consistencyWindow longer than 1h".to_owned());
        }
        for (label, versions) in &self.contract_labels {
            if !label.starts_with("cluster.x-k8s.io/v") || versions.is_empty() {
                return Err(format!(
                    "has contractLabels {label:?}; a label is cluster.x-k8s.io/ and a contract version, with CRD versions"
                ));
            }
        }
        Ok(())
    }

    fn check_credential(&self, credential: &CredentialReference) -> Result<(), String> {
        let at = &credential.at;
        let this = format!("a credential at {at} of kind {:?}", credential.kind);
        if !self.object_references.contains(at) {
            return Err(format!("has {this}, whose `at` is not one of its objectReferences"));
        }
        let role = credential.role.as_ref();
        let named = credential.endpoint.iter().chain(role.and_then(|role| role.endpoint.as_ref()));
        if let Some(endpoint) = named.into_iter().find(|name| !self.endpoints.iter().any(|e| e.name == **name)) {
            return Err(format!("has {this} of endpoint {endpoint:?}, which it does not declare"));
        }
        let has_origin = credential.origin.is_some() || credential.ca.is_some();
        let how = usize::from(!credential.header.is_empty()) + usize::from(credential.aws);
        let of_identity = [&credential.secret, &credential.source, &credential.allowed_namespaces];
        let refused = |why: &str| Err(format!("has {this}, {why}"));
        match credential.kind.as_str() {
            kind if credential.ambient => {
                let CredentialReference { at, kind: own, endpoint, .. } = credential.clone();
                let alone = CredentialReference { at, kind: own, endpoint, ambient: true, ..Default::default() };
                if alone != *credential || ["Endpoint", "Secret"].contains(&kind) || identities_hold(self, kind) {
                    return refused(
                        "which is `ambient`: nothing else is said of such a kind, and it is none of its own",
                    );
                }
            }
            "Endpoint" if how > 0 || has_origin => return refused("which says itself how it is used"),
            "Endpoint" | "Secret" if role.is_some() || of_identity.iter().any(|field| field.is_some()) => {
                return refused("which has no secret, source, role and allowedNamespaces");
            }
            "Endpoint" => {}
            kind if kind != "Secret" && !identities_hold(self, kind) => {
                return refused("which is neither Endpoint nor Secret nor one of its kinds.identities");
            }
            "Secret" if how != 1 => return refused("which has to say how it is used: by `header` or by `aws`"),
            "Secret" => {}
            _ if credential.allowed_namespaces.is_none() => {
                return refused("which has to say where it lists the namespaces that may use it (`allowedNamespaces`)");
            }
            _ if credential.secret.is_some() == credential.source.is_some() => {
                return refused(
                    "which has to say where it names its Secret (`secret`) or the identity before it (`source`)",
                );
            }
            _ if credential.source.is_some() && (how > 0 || has_origin) => {
                return refused("which is used as the identity before it (`source`) is");
            }
            _ if credential.source.is_some() && role.is_none() => return refused("which adds no role to its source"),
            _ if credential.secret.is_some() && how != 1 => {
                return refused("which has to say how its Secret is used: by `header` or by `aws`");
            }
            _ => {}
        }
        if credential.aws
            && let Some(endpoint) = self.endpoints.iter().find(|e| credential.is_about(&e.name) && e.signing.is_none())
        {
            return refused(&format!("which signs, but endpoint {} has no `signing`", endpoint.name));
        }
        let of_role = role.map(|role| {
            let optional = [&role.session_name, &role.external_id, &role.duration_seconds, &role.inline_policy];
            let optional = optional.into_iter().chain([&role.policy_arns]).flatten();
            optional.chain([&role.arn]).collect::<Vec<_>>()
        });
        let pointers = of_identity.into_iter().flatten().chain(of_role.into_iter().flatten());
        match pointers.into_iter().find(|pointer| !pointer.starts_with("/spec/")) {
            Some(pointer) => refused(&format!("with {pointer:?}, which is no JSON pointer into /spec")),
            None => Ok(()),
        }
    }

    /// The endpoints as the gateway takes them.
    pub fn declared(&self) -> Vec<Declared> {
        let declared = |endpoint: &Endpoint| Declared {
            name: endpoint.name.clone(),
            protocol: endpoint.protocol,
            timeout: endpoint.timeout.0,
            max_response: endpoint.max_response.0,
            url: endpoint.url.clone(),
            variables: endpoint.variables.clone(),
            signing: endpoint.signing.clone(),
            read_operations: endpoint.read_operations.clone(),
            read_only: endpoint.read_only,
            credentials: self.credentials.iter().filter(|c| c.is_about(&endpoint.name)).cloned().collect(),
        };
        self.endpoints.iter().map(declared).collect()
    }

    /// The kinds as the rules take them, for the ProviderModule of this name: kind and what is said of it.
    pub fn served(&self, module: &str) -> Vec<(String, Served)> {
        let machine_duty = match self.role {
            Role::Infrastructure => Duty::InfraMachine,
            Role::Bootstrap => Duty::Bootstrap,
            Role::ControlPlane => Duty::ControlPlane,
        };
        let milliseconds = |length: Duration| u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
        let served = |duty| Served {
            module: module.to_owned(),
            duty,
            group: self.kinds.group.clone(),
            cluster_kind: self.kinds.cluster.clone(),
            machine_kind: self.kinds.machine.clone(),
            consistency_window: milliseconds(self.consistency_window.0),
            request_timeout: {
                let changing = self.endpoints.iter().filter(|endpoint| !endpoint.read_only);
                changing.map(|endpoint| milliseconds(endpoint.timeout.0)).max().unwrap_or(0)
            },
            workload_objects: self.workload_objects.clone(),
            object_references: self.object_references.clone(),
            endpoints: self.endpoints.iter().map(|endpoint| endpoint.name.clone()).collect(),
            credentials: self.credentials.clone(),
        };
        let cluster = self.kinds.cluster.iter().map(|kind| (kind.clone(), served(Duty::InfraCluster)));
        let machine = self.kinds.machine.iter().map(|kind| (kind.clone(), served(machine_duty)));
        cluster.chain(machine).collect()
    }
}

impl Endpoint {
    fn check_origin(&self) -> Result<(), String> {
        let name = &self.name;
        let mut example = self.url.clone().unwrap_or_default();
        for (variable, pointer) in &self.variables {
            if !pointer.starts_with("/spec/") {
                return Err(format!(
                    "has endpoint {name} with the variable {variable} at {pointer:?}, which is no JSON pointer into /spec"
                ));
            }
            example = example.replace(&format!("{{{variable}}}"), "x");
        }
        if self.url.is_some() {
            if example.contains(['{', '}']) {
                return Err(format!("has endpoint {name} whose url has a variable that `variables` does not explain"));
            }
            if !matches!(Origin::parse(&example), Ok(Origin::Url(_))) {
                return Err(format!("has endpoint {name} whose url is no https:// or http:// origin"));
            }
        }
        if self.signing.as_ref().is_some_and(|signing| !is_dns_label(&signing.service)) {
            return Err(format!("has endpoint {name} whose signing.service is no name such as ec2"));
        }
        self.read_operations.iter().try_for_each(|read| {
            read.check().map_err(|why| format!("has endpoint {name} with a read operation: {why}"))
        })
    }
}

/// Reads and checks a CRD section against its manifest.
///
/// # Errors
/// When it is too large, no JSON of the section's shape, or does not fit the manifest.
pub fn read_crds(section: &[u8], manifest: &Manifest) -> Result<Vec<Crd>, ManifestError> {
    let error = |problem| ManifestError { section: "the CRD section", problem };
    if section.len() > MAX_CRDS {
        return Err(error(format!("is {} bytes large; {MAX_CRDS} are allowed", section.len())));
    }
    let crds: Vec<Crd> = serde_json::from_slice(section).map_err(|e| error(format!("cannot be read: {e}")))?;
    for crd in &crds {
        check_crd(crd, identities_hold(manifest, &crd.kind)).map_err(error)?;
    }
    let identities = &manifest.kinds.identities;
    for kind in manifest.kinds.cluster.iter().chain(&manifest.kinds.machine).chain(identities) {
        if crds.iter().filter(|crd| crd.kind == *kind).count() != 1 {
            return Err(error(format!("must hold the kind {kind}, which the manifest names, once")));
        }
    }
    for (label, versions) in &manifest.contract_labels {
        for version in versions {
            if !crds.iter().all(|crd| crd.versions.iter().any(|v| v.name == *version)) {
                return Err(error(format!(
                    "lacks the version {version}, which the manifest's contractLabels name for {label}"
                )));
            }
        }
    }
    Ok(crds)
}

fn identities_hold(manifest: &Manifest, kind: &str) -> bool {
    manifest.kinds.identities.iter().any(|identity| identity == kind)
}

fn check_crd(crd: &Crd, identity: bool) -> Result<(), String> {
    let kind = &crd.kind;
    if !is_kind(kind) {
        return Err(format!("has the kind {kind:?}, which is not CamelCase"));
    }
    if !is_dns_label(&crd.plural) || !is_dns_label(&crd.singular) || !crd.short_names.iter().all(|n| is_dns_label(n)) {
        return Err(format!("has a plural, singular or short name of {kind} that is no DNS label"));
    }
    let scope = if identity { "Cluster" } else { "Namespaced" };
    if crd.scope != scope {
        return Err(format!("has {kind} with the scope {:?}; it has to be {scope}", crd.scope));
    }
    if identity && crd.template {
        return Err(format!("has {kind} with a template; identities have none"));
    }
    if crd.versions.iter().filter(|v| v.storage).count() != 1 {
        return Err(format!("must have exactly one storage version of {kind}"));
    }
    for version in &crd.versions {
        if !is_dns_label(&version.name) || !version.name.starts_with('v') {
            return Err(format!("has {kind} with the version {:?}", version.name));
        }
        if version.schema.get("type").and_then(Value::as_str) != Some("object") {
            return Err(format!("has {kind}/{} whose schema is not of type object", version.name));
        }
    }
    Ok(())
}

fn is_dns_label(text: &str) -> bool {
    (1..=63).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !text.starts_with('-')
        && !text.ends_with('-')
}

fn is_dns_name(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_dns_label)
}

fn is_kind(text: &str) -> bool {
    text.len() <= 63
        && text.bytes().all(|b| b.is_ascii_alphanumeric())
        && text.bytes().next().is_some_and(|b| b.is_ascii_uppercase())
}

#[cfg(test)]
#[path = "manifest_tests.rs"]
mod tests;
