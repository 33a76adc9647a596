//! Where an endpoint is and as whom requests go there, as far as objects say it.
//!
//! An object of a provider, or its InfraCluster, names an Endpoint, a Secret or an identity of a kind of the provider's
//! own, at the pointers that the manifest lists ([`CredentialReference`]). [`named`] follows the name; it knows no cloud:
//! where an identity keeps its Secret, its role and the namespaces that may use it is the manifest's to say. The gateway
//! asks it for every call of a turn; [`sources`] asks it for the decision before, so that whatever was read, found or not,
//! brings the object back when it changes.
//!
//! Whoever may write an identity is the operator: identities are cluster-scoped, so their Secrets are in
//! [`SYSTEM_NAMESPACE`] (decision 0007).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

use capstan_api::meta::LabelSelector;
use capstan_api::well_known::{CAPSTAN_GROUP, SYSTEM_NAMESPACE};
use capstan_api::{Object, ObjectKey};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::cluster_input::if_served;
use crate::contract::Served;
use crate::view::{NotNow, Place, Select, View};

/// Kind of a reference to an Endpoint.
pub const ENDPOINT: &str = "Endpoint";
/// Kind of a reference to a Secret.
pub const SECRET: &str = "Secret";
/// Roles that may be assumed one after the other.
const MOST_ROLES: usize = 4;

/// How something that an object of the provider names becomes the credential of an endpoint: an entry of the manifest's
/// `credentials`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct CredentialReference {
    /// Where the object, or else its InfraCluster, names it: a JSON pointer to a name, or to an object with `name` (and
    /// `kind`; and `namespace`, which has to be the object's own).
    pub at: String,
    /// `Endpoint`, `Secret`, or one of the manifest's `kinds.identities`.
    pub kind: String,
    /// Name of the endpoint; all of the manifest, where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Key of the origin in the Secret, for endpoints that nothing else gives one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    /// Key of PEM certificates to trust, where the Secret has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<String>,
    /// The Secret becomes headers; `{key}` in a value stands for its entry of that key, `{key:shown}` for one that is no
    /// secret (the name of a token) and stays in answers.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub header: BTreeMap<String, String>,
    /// The Secret holds keys with which requests are signed (AWS Signature Version 4).
    #[serde(default, skip_serializing_if = "is_false")]
    pub aws: bool,
    /// Upstream's identity of the machine that a controller runs on, which there is none of here: who names it is taken as
    /// one who names nothing.
    #[serde(default, skip_serializing_if = "is_false")]
    pub ambient: bool,
    /// Identities: where they name their Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// Identities: where they name the identity (`kind`, `name`) by whose credential theirs is had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Identities: a role that is assumed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<RolePointers>,
    /// Identities: where they say which namespaces may use them (`list` and `selector`; nothing at all: none; an empty
    /// object: all).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_namespaces: Option<String>,
}

/// Where an identity describes the role that is assumed: JSON pointers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct RolePointers {
    /// ARN of the role.
    pub arn: String,
    /// Who asks, for the records of the service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_name: Option<String>,
    /// What the role's owner agreed on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_id: Option<String>,
    /// How long a session lasts, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_seconds: Option<String>,
    /// A policy that narrows what the session may do (JSON text).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inline_policy: Option<String>,
    /// ARNs of policies that narrow it.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "policyARNs")]
    pub policy_arns: Option<String>,
    /// Name of the manifest's endpoint that is the token service; the public one of the region, where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
}

fn is_false(value: &bool) -> bool {
    !value
}

impl CredentialReference {
    /// Whether it is about an endpoint of this name.
    pub fn is_about(&self, endpoint: &str) -> bool {
        self.endpoint.as_deref().is_none_or(|name| name == endpoint)
    }

    /// Whether its kind is one of the provider's own.
    pub fn is_identity(&self) -> bool {
        self.kind != ENDPOINT && self.kind != SECRET && !self.ambient
    }
}

/// Whose endpoint is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// Name of the endpoint in the manifest.
    pub endpoint: &'a str,
    /// The manifest's credentials.
    pub references: &'a [CredentialReference],
    /// The object that the turn is about.
    pub subject: &'a Object,
    /// Spec of its InfraCluster.
    pub infrastructure: Option<&'a Value>,
}

/// What an object names.
#[derive(Clone, Debug, PartialEq)]
pub enum Named<'a> {
    /// The Endpoint of this name in its own namespace.
    Endpoint(String),
    /// A Secret.
    Secret(NamedSecret<'a>),
}

/// A Secret that an object names, itself or by way of an identity.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedSecret<'a> {
    /// How it is used.
    pub reference: &'a CredentialReference,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Who names it, for a person: `which /spec/credentialsRef names`.
    pub by: String,
    /// Roles that are assumed, in this order.
    pub roles: Vec<NamedRole>,
}

/// A role that an identity describes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "as in RolePointers")]
pub struct NamedRole {
    pub arn: String,
    pub session_name: Option<String>,
    pub external_id: Option<String>,
    pub duration_seconds: Option<u32>,
    pub inline_policy: Option<String>,
    pub policy_arns: Vec<String>,
    pub endpoint: Option<String>,
}

/// Shows an object as it is now.
pub type Look<'a> = &'a dyn Fn(&ObjectKey) -> Result<Option<Arc<Object>>, String>;

/// What the object or its InfraCluster names for this endpoint; `None` when neither names anything.
///
/// # Errors
/// A sentence for a person when what is named is not there or may not be used. Of Endpoints and Secrets only the names are
/// told; whether they are there is not looked at.
pub fn named<'a>(asked: &Asked<'a>, look: Look<'_>) -> Result<Option<Named<'a>>, String> {
    for (index, reference) in asked.references.iter().enumerate() {
        let at = reference.at.as_str();
        let seen = asked.references.iter().take(index).any(|r| r.at == at && r.is_about(asked.endpoint));
        if seen || !reference.is_about(asked.endpoint) {
            continue;
        }
        let of_cluster = || spec_at(asked.infrastructure?, at);
        let Some(value) = asked.subject.at(at).or_else(of_cluster).filter(|value| !value.is_null()) else { continue };
        let (kind, name) = kind_and_name(value);
        let matching = |r: &&CredentialReference| {
            r.at == at && r.is_about(asked.endpoint) && kind.is_none_or(|kind| kind == r.kind)
        };
        let (Some(name), Some(found)) = (name, asked.references.iter().find(matching)) else {
            let kinds: Vec<&str> = asked
                .references
                .iter()
                .filter(|r| r.at == at && r.is_about(asked.endpoint) && !r.ambient)
                .map(|r| r.kind.as_str())
                .collect();
            let given = kind.map(|kind| format!(", but a kind {kind}")).unwrap_or_default();
            return Err(format!("{at} names no {}{given}", kinds.join(" or ")));
        };
        if found.ambient {
            continue;
        }
        let own = asked.subject.namespace();
        if let Some(other) = text(value, "namespace").filter(|other| *other != own && !found.is_identity()) {
            return Err(format!(
                "{at} names {} {other}/{name}; only those of the object's own namespace {own} may be used",
                found.kind
            ));
        }
        return Ok(Some(match found.kind.as_str() {
            ENDPOINT => Named::Endpoint(name.to_owned()),
            SECRET => Named::Secret(NamedSecret {
                reference: found,
                namespace: own.to_owned(),
                name: name.to_owned(),
                by: format!("which {at} names"),
                roles: Vec::new(),
            }),
            _ => Named::Secret(identity(asked, found, name, &format!("which {at} names"), look)?),
        }));
    }
    Ok(None)
}

/// Follows an identity, and those by which it is had, to a Secret.
fn identity<'a>(
    asked: &Asked<'a>,
    first: &'a CredentialReference,
    name: &str,
    by: &str,
    look: Look<'_>,
) -> Result<NamedSecret<'a>, String> {
    let (mut reference, mut name, mut by) = (first, name.to_owned(), by.to_owned());
    let mut roles = Vec::new();
    let own = asked.subject.namespace();
    loop {
        let kind = &reference.kind;
        let key = ObjectKey::new(asked.subject.group(), kind, "", &name);
        let object = look(&key)?.ok_or_else(|| format!("there is no {kind} {name}, {by}"))?;
        let allowed = reference.allowed_namespaces.as_deref();
        if !may_use(allowed.and_then(|at| object.at(at)), own, look)? {
            let at = allowed.unwrap_or_default();
            return Err(format!(
                "{kind} {name} may not be used from namespace {own}: its {at} does not allow it; the operator can add the \
                 namespace there"
            ));
        }
        if let Some(role) = &reference.role {
            roles.push(named_role(&object, role)?);
            if roles.len() > MOST_ROLES {
                return Err(format!("{kind} {name} is had by way of more than {MOST_ROLES} roles (in a circle?)"));
            }
        }
        let told = || format!("which {kind} {name} names");
        if let Some(at) = &reference.source {
            let (next_kind, next_name) = object.at(at).map(kind_and_name).unwrap_or_default();
            let (Some(next_kind), Some(next_name)) = (next_kind, next_name) else {
                return Err(format!(
                    "{kind} {name} says at {at} by which identity it is had: kind and name are needed"
                ));
            };
            let of_kind = |r: &&CredentialReference| {
                r.kind == next_kind && r.at == first.at && r.is_identity() && r.is_about(asked.endpoint)
            };
            let next = asked.references.iter().find(of_kind).ok_or_else(|| {
                format!("{kind} {name} names a {next_kind} at {at}, which is no identity that can be used here")
            })?;
            by = told();
            name = next_name.to_owned();
            reference = next;
            continue;
        }
        let at = reference.secret.as_deref().unwrap_or_default();
        let secret = object.at(at);
        let secret_name = secret.and_then(|value| kind_and_name(value).1);
        let secret_name = secret_name.ok_or_else(|| format!("{kind} {name} names no Secret at {at}"))?.to_owned();
        if let Some(other) = secret.and_then(|value| text(value, "namespace")).filter(|ns| *ns != SYSTEM_NAMESPACE) {
            return Err(format!(
                "{kind} {name} names Secret {other}/{secret_name}; Secrets of identities are in {SYSTEM_NAMESPACE}"
            ));
        }
        roles.reverse();
        return Ok(NamedSecret {
            reference,
            namespace: SYSTEM_NAMESPACE.to_owned(),
            name: secret_name,
            by: told(),
            roles,
        });
    }
}

fn named_role(object: &Object, at: &RolePointers) -> Result<NamedRole, String> {
    let text = |pointer: &Option<String>| object.str_at(pointer.as_deref()?).map(str::to_owned);
    let (kind, name) = (object.kind(), object.name());
    let seconds = at.duration_seconds.as_deref().and_then(|pointer| object.int_at(pointer));
    let arns = at.policy_arns.as_deref().and_then(|pointer| object.at(pointer)).and_then(Value::as_array);
    Ok(NamedRole {
        arn: object.str_at(&at.arn).ok_or_else(|| format!("{kind} {name} names no role at {}", at.arn))?.to_owned(),
        session_name: text(&at.session_name),
        external_id: text(&at.external_id),
        duration_seconds: seconds.and_then(|seconds| u32::try_from(seconds).ok()),
        inline_policy: text(&at.inline_policy),
        policy_arns: arns.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect(),
        endpoint: at.endpoint.clone(),
    })
}

/// Whether an identity's `allowedNamespaces` allow a namespace: nothing is none, an empty object is all, else those that
/// are listed or selected (an empty selector selects none).
fn may_use(allowed: Option<&Value>, namespace: &str, look: Look<'_>) -> Result<bool, String> {
    let Some(Value::Object(allowed)) = allowed else { return Ok(false) };
    let list = allowed.get("list").and_then(Value::as_array);
    let selector = allowed.get("selector").filter(|selector| !selector.is_null()).cloned();
    let selector: LabelSelector = match selector.map(serde_json::from_value).transpose() {
        Ok(selector) => selector.unwrap_or_default(),
        Err(_) => return Ok(false),
    };
    if list.is_none_or(Vec::is_empty) && selector.is_empty() {
        return Ok(allowed.values().all(Value::is_null));
    }
    if list.into_iter().flatten().any(|listed| listed.as_str() == Some(namespace)) {
        return Ok(true);
    }
    if selector.is_empty() {
        return Ok(false);
    }
    let found = look(&ObjectKey::new("", "Namespace", "", namespace))?;
    Ok(found.is_some_and(|namespace| selector.matches(|label| namespace.label(label))))
}

/// `kind` and `name` of a reference, or a name alone.
fn kind_and_name(value: &Value) -> (Option<&str>, Option<&str>) {
    let name = value.as_str().or_else(|| text(value, "name")).filter(|name| !name.is_empty());
    (text(value, "kind"), name)
}

fn text<'a>(value: &'a Value, field: &str) -> Option<&'a str> {
    value.get(field).and_then(Value::as_str).filter(|text| !text.is_empty())
}

/// What a pointer that begins with `/spec` shows in a spec.
pub fn spec_at<'a>(spec: &'a Value, pointer: &str) -> Option<&'a Value> {
    spec.pointer(pointer.strip_prefix("/spec")?)
}

/// The state of everything that says where this object's endpoints are and as whom requests go there: Endpoints, Secrets,
/// identities, EgressPolicies. Read through the view, so a change of any of it brings the object back; part of a turn's
/// inputs, so that the turn is then due.
///
/// # Errors
/// When something is not known now.
pub fn sources(
    view: &dyn View,
    served: &Served,
    subject: &Object,
    infrastructure: Option<&Value>,
) -> Result<Value, NotNow> {
    if served.endpoints.is_empty() {
        return Ok(Value::Null);
    }
    let states = RefCell::new(BTreeMap::new());
    let unknown = Cell::new(None);
    let look = |key: &ObjectKey| match if_served(view.get(&Place::Management, key)) {
        Ok(found) => {
            states.borrow_mut().insert(key.to_string(), found.as_deref().map(state));
            Ok(found)
        }
        Err(not_now) => {
            let why = not_now.to_string();
            unknown.set(Some(not_now));
            Err(why)
        }
    };
    let own = subject.namespace();
    for endpoint in &served.endpoints {
        let asked = Asked { endpoint, references: &served.credentials, subject, infrastructure };
        // What is wrong is said by the turn.
        let named = named(&asked, &look).unwrap_or_default();
        let named_endpoint = match &named {
            Some(Named::Endpoint(name)) => name,
            _ => endpoint,
        };
        if let Ok(Some(object)) = look(&ObjectKey::new(CAPSTAN_GROUP, ENDPOINT, own, named_endpoint))
            && let Some(secret) = object.str_at("/spec/credential/secretName")
        {
            let _ = look(&ObjectKey::new("", SECRET, own, secret));
        }
        if let Some(Named::Secret(secret)) = &named {
            let _ = look(&ObjectKey::new("", SECRET, &secret.namespace, &secret.name));
        }
        if let Some(not_now) = unknown.take() {
            return Err(not_now);
        }
    }
    let policies = match view.list(&Place::Management, CAPSTAN_GROUP, "EgressPolicy", "", &Select::All) {
        Err(NotNow::NoSuchKind { .. }) => Vec::new(),
        policies => policies?,
    };
    let policies: Vec<Value> = policies.iter().map(|policy| state(policy)).collect();
    Ok(json!([states.into_inner(), policies]))
}

/// What tells two states of an object apart: of what has a spec its generation, as its status is written here.
fn state(object: &Object) -> Value {
    match object.kind() {
        SECRET => json!([object.uid(), object.resource_version()]),
        "Namespace" => json!([object.uid(), object.at("/metadata/labels")]),
        _ => json!([object.uid(), object.generation()]),
    }
}

#[cfg(test)]
#[path = "identity_tests.rs"]
mod tests;
