//! Webhooks of others: what mutating and validating configurations and definitions in the store name is asked, as a real API
//! server does. The host's own hooks (`Options`) are asked in process before.

mod client;
mod conversion;

pub(crate) use conversion::ConversionWebhook;

use crate::auth::rbac::selects;
use crate::catalog::Resource;
use crate::options::{AdmissionRequest, Operation};
use crate::server::ApiServer;
use crate::status::Status;
use crate::store::Key;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use std::time::Duration;

const GROUP: &str = "admissionregistration.k8s.io";
const MUTATING: &str = "mutatingwebhookconfigurations.admissionregistration.k8s.io";
const VALIDATING: &str = "validatingwebhookconfigurations.admissionregistration.k8s.io";

/// What a webhook may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Change the object.
    Mutating,
    /// Refuse it.
    Validating,
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn words<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = &'a str> {
    value.get(name).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

/// Whether a rule is about this, in this version of the group.
fn is_about(rule: &Value, request: &AdmissionRequest, version: &str, cluster_scoped: bool) -> bool {
    let operation = match request.operation {
        Operation::Create => "CREATE",
        Operation::Update => "UPDATE",
        Operation::Delete => "DELETE",
    };
    let has = |name: &str, wanted: &str| words(rule, name).any(|own| own == "*" || own == wanted);
    let (wanted, sub) = (request.resource.as_str(), request.subresource.as_str());
    let resource = words(rule, "resources").any(|own| match own.split_once('/') {
        Some((of, own_sub)) => {
            (of == "*" || of == wanted) && (own_sub == sub || (own_sub == "*" && (of == "*" || !sub.is_empty())))
                || own == "*/*"
        }
        None => sub.is_empty() && (own == "*" || own == wanted),
    });
    let scope = match text(rule, "/scope") {
        "Cluster" => cluster_scoped,
        "Namespaced" => !cluster_scoped,
        _ => true,
    };
    has("operations", operation) && has("apiGroups", &request.group) && has("apiVersions", version) && resource && scope
}

/// The version in which a webhook wants to see the object; none when it does not.
fn version_for(webhook: &Value, resource: &Resource, request: &AdmissionRequest) -> Option<String> {
    let rules = webhook.get("rules").and_then(Value::as_array)?;
    let about = |version: &str| rules.iter().any(|rule| is_about(rule, request, version, !resource.namespaced));
    if about(&request.version) {
        return Some(request.version.clone());
    }
    if text(webhook, "/matchPolicy") == "Exact" {
        return None;
    }
    resource.versions.iter().map(|version| version.name.clone()).find(|version| about(version))
}

impl Phase {
    fn collection(self) -> &'static str {
        if self == Phase::Mutating { MUTATING } else { VALIDATING }
    }
}

impl ApiServer {
    /// Whether there are any of this phase at all.
    pub(crate) fn has_webhooks(&self, phase: Phase) -> bool {
        let listing = self.inner.options.store.list(phase.collection(), "", None, None);
        listing.is_ok_and(|listing| !listing.objects.is_empty())
    }

    /// Asks all webhooks of this phase whose rules are about the request. The object's new form, and warnings.
    pub(crate) fn ask_webhooks(
        &self,
        phase: Phase,
        resource: &Resource,
        request: &AdmissionRequest,
        object: &mut Value,
    ) -> Result<Vec<String>, Status> {
        // Who could forbid to change webhooks could not be got rid of.
        if request.group == GROUP {
            return Ok(Vec::new());
        }
        let Ok(listing) = self.inner.options.store.list(phase.collection(), "", None, None) else {
            return Ok(Vec::new());
        };
        let mut warnings = Vec::new();
        for configuration in listing.objects {
            let configuration = configuration.value_without_managed_fields();
            for webhook in configuration.get("webhooks").and_then(Value::as_array).into_iter().flatten() {
                let Some(version) = version_for(webhook, resource, request) else { continue };
                if self.is_selected(webhook, request, object) {
                    warnings.extend(ask(phase, webhook, resource, request, &version, object)?);
                }
            }
        }
        Ok(warnings)
    }

    /// Whether the webhook's selectors select the object and its namespace.
    fn is_selected(&self, webhook: &Value, request: &AdmissionRequest, object: &Value) -> bool {
        let empty = Value::Null;
        let selected = |name: &str, labels: &Value| webhook.get(name).is_none_or(|selector| selects(selector, labels));
        let labels = |object: Option<&Value>| object.and_then(|o| o.pointer("/metadata/labels")).cloned();
        let own = labels(Some(object)).unwrap_or_default();
        let before = labels(request.old.as_ref());
        if !selected("objectSelector", &own) && !before.is_some_and(|before| selected("objectSelector", &before)) {
            return false;
        }
        if request.namespace.is_empty() && request.resource != "namespaces" {
            return true;
        }
        if request.group.is_empty() && request.resource == "namespaces" {
            return selected("namespaceSelector", &own);
        }
        let namespace = self.inner.options.store.get("namespaces", &Key::new("", &request.namespace));
        let namespace = namespace.map(|namespace| namespace.value_without_managed_fields());
        selected("namespaceSelector", &labels(namespace.as_ref()).unwrap_or(empty))
    }
}

/// Asks one webhook.
fn ask(
    phase: Phase,
    webhook: &Value,
    resource: &Resource,
    request: &AdmissionRequest,
    version: &str,
    object: &mut Value,
) -> Result<Vec<String>, Status> {
    let name = text(webhook, "/name");
    if request.dry_run && !matches!(text(webhook, "/sideEffects"), "None" | "NoneOnDryRun") {
        return Err(Status::bad_request(format!("admission webhook {name:?} does not support dry run")));
    }
    let api_version =
        if request.group.is_empty() { version.to_owned() } else { format!("{}/{version}", request.group) };
    let shown = |object: &Value| resource.convert(object.clone(), &api_version).map_err(Status::internal);
    let before = shown(object)?;
    let old = request.old.as_ref().map(shown).transpose()?;
    let uid = uuid::Uuid::new_v4().to_string();
    let review = review(request, version, &uid, &before, old.as_ref());
    let seconds = webhook.get("timeoutSeconds").and_then(Value::as_u64).unwrap_or(10).clamp(1, 30);
    let config = webhook.get("clientConfig").unwrap_or(&Value::Null);
    let answer = client::ask(config, &review, Duration::from_secs(seconds)).and_then(|answer| {
        match answer.pointer("/response/uid").and_then(Value::as_str) {
            Some(own) if own == uid => Ok(answer),
            _ => Err("it answered another review, or none".to_owned()),
        }
    });
    let answer = match answer {
        Ok(answer) => answer,
        Err(why) if text(webhook, "/failurePolicy") == "Ignore" => {
            tracing::warn!(webhook = name, %why, "a webhook could not be asked, and is ignored as it wants");
            return Ok(Vec::new());
        }
        Err(why) => {
            return Err(Status::internal(format!("failed calling webhook {name:?}: failed to call webhook: {why}")));
        }
    };
    let response = answer.get("response").unwrap_or(&Value::Null);
    let warnings = words(response, "warnings").map(str::to_owned).collect();
    if response.get("allowed") != Some(&Value::Bool(true)) {
        return Err(refusal(name, response.get("status").unwrap_or(&Value::Null)));
    }
    if phase == Phase::Mutating
        && request.operation != Operation::Delete
        && let Some(patch) = response.get("patch").and_then(Value::as_str).filter(|patch| !patch.is_empty())
    {
        let failed = |why: &dyn std::fmt::Display| Status::internal(format!("the patch of webhook {name:?}: {why}"));
        let patch = STANDARD.decode(patch).map_err(|error| failed(&error))?;
        let patch: json_patch::Patch = serde_json::from_slice(&patch).map_err(|error| failed(&error))?;
        let mut patched = before;
        json_patch::patch(&mut patched, &patch).map_err(|error| failed(&error))?;
        let own = object.get("apiVersion").and_then(Value::as_str).unwrap_or_default().to_owned();
        *object = resource.convert(patched, &own).map_err(Status::internal)?;
    }
    Ok(warnings)
}

fn review(request: &AdmissionRequest, version: &str, uid: &str, object: &Value, old: Option<&Value>) -> Value {
    let (operation, options, object) = match request.operation {
        Operation::Create => ("CREATE", "CreateOptions", Some(object)),
        Operation::Update => ("UPDATE", "UpdateOptions", Some(object)),
        Operation::Delete => ("DELETE", "DeleteOptions", None),
    };
    let of = |version: &str, name: &str, value: &str| json!({"group": request.group, "version": version, name: value});
    let mut asked = Map::new();
    let mut put = |name: &str, value: Value| drop(asked.insert(name.to_owned(), value));
    put("uid", uid.into());
    put("kind", of(version, "kind", &request.kind));
    put("resource", of(version, "resource", &request.resource));
    put("requestKind", of(&request.version, "kind", &request.kind));
    put("requestResource", of(&request.version, "resource", &request.resource));
    for (name, value) in [("subResource", &request.subresource), ("requestSubResource", &request.subresource)] {
        if !value.is_empty() {
            put(name, value.as_str().into());
        }
    }
    put("name", request.name.as_str().into());
    if !request.namespace.is_empty() {
        put("namespace", request.namespace.as_str().into());
    }
    put("operation", operation.into());
    put("userInfo", json!({"username": request.user.name, "groups": request.user.groups}));
    put("object", object.cloned().unwrap_or_default());
    put("oldObject", old.cloned().unwrap_or_default());
    put("dryRun", request.dry_run.into());
    put("options", json!({"kind": options, "apiVersion": "meta.k8s.io/v1"}));
    json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": asked})
}

/// What a webhook's denial is to the client.
fn refusal(name: &str, status: &Value) -> Status {
    let denied = format!("admission webhook {name:?} denied the request");
    let (message, reason) = (text(status, "/message"), text(status, "/reason"));
    let why = match (message, reason) {
        ("", "") => format!("{denied} without explanation"),
        ("", reason) => format!("{denied}: {reason}"),
        (message, _) => format!("{denied}: {message}"),
    };
    let code = status.get("code").and_then(Value::as_u64).and_then(|code| u16::try_from(code).ok()).unwrap_or(0);
    let known = ["Forbidden", "Invalid", "BadRequest", "Conflict", "NotFound", "AlreadyExists", "TooManyRequests"];
    let mut refused = Status::new(
        if code < 400 { 403 } else { code },
        known.into_iter().find(|own| *own == reason).unwrap_or(if reason.is_empty() { "" } else { "Unknown" }),
        why,
    );
    let details = status.get("details").unwrap_or(&Value::Null);
    refused.details.name = text(details, "/name").to_owned();
    refused.details.group = text(details, "/group").to_owned();
    refused.details.kind = text(details, "/kind").to_owned();
    for cause in details.get("causes").and_then(Value::as_array).into_iter().flatten() {
        refused = refused.with_cause(text(cause, "/reason"), text(cause, "/message"), text(cause, "/field"));
    }
    refused
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::User;

    fn request(operation: Operation, resource: &str, subresource: &str) -> AdmissionRequest {
        AdmissionRequest {
            operation,
            group: "g".into(),
            version: "v1".into(),
            kind: "K".into(),
            resource: resource.into(),
            subresource: subresource.into(),
            namespace: "n".into(),
            name: "a".into(),
            old: None,
            user: User::admin("a"),
            dry_run: false,
        }
    }

    #[test]
    fn rules_match_as_in_kubernetes() {
        let rule = |resources: Value, operations: Value| json!({"apiGroups": ["g"], "apiVersions": ["v1"], "operations": operations, "resources": resources});
        let about = |rule: &Value, request: &AdmissionRequest| is_about(rule, request, "v1", false);
        let plain = rule(json!(["ks"]), json!(["CREATE", "UPDATE"]));
        assert!(about(&plain, &request(Operation::Create, "ks", "")));
        assert!(!about(&plain, &request(Operation::Delete, "ks", "")));
        assert!(!about(&plain, &request(Operation::Update, "ks", "status")), "a subresource is another thing");
        assert!(!is_about(&plain, &request(Operation::Create, "ks", ""), "v2", false));
        let sub = rule(json!(["ks/*"]), json!(["*"]));
        assert!(about(&sub, &request(Operation::Update, "ks", "status")));
        assert!(!about(&sub, &request(Operation::Update, "others", "status")));
        assert!(about(&rule(json!(["*/*"]), json!(["*"])), &request(Operation::Delete, "ks", "")));
        assert!(about(&rule(json!(["*/scale"]), json!(["*"])), &request(Operation::Update, "ks", "scale")));
        let mut scoped = plain.clone();
        scoped["scope"] = "Cluster".into();
        assert!(!about(&scoped, &request(Operation::Create, "ks", "")));
    }

    #[test]
    fn a_denial_keeps_what_the_webhook_says() {
        let status = refusal(
            "a.b.c",
            &json!({"message": "no", "code": 422, "reason": "Invalid", "details": {"kind": "K",
            "causes": [{"reason": "FieldValueInvalid", "message": "bad", "field": "spec.x"}]}}),
        );
        assert_eq!((status.code, status.reason), (422, "Invalid"));
        assert_eq!(status.message, "admission webhook \"a.b.c\" denied the request: no");
        assert_eq!(status.details.causes.len(), 1);
        assert_eq!(refusal("a.b.c", &Value::Null).code, 403);
    }
}
