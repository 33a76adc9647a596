//! Webhooks of others: what mutating and validating configurations and definitions in the store name is asked, as a real API
//! server does. The host's own hooks (`Options`) are asked in process before.

mod client;
mod conversion;

pub(crate) use conversion::ConversionWebhook;

use crate::admission::{Conditions, GROUP, Input, described, list, text, version_for, words};
use crate::catalog::Resource;
use crate::options::{AdmissionRequest, Operation};
use crate::server::ApiServer;
use crate::status::Status;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

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

/// A configuration: its webhooks, ready to be asked.
pub(crate) struct Configuration(Vec<Webhook>);

/// One webhook.
struct Webhook {
    /// As its configuration has it.
    said: Value,
    conditions: Conditions,
}

impl Configuration {
    fn new(configuration: &Value) -> Configuration {
        let webhooks = list(configuration, "/webhooks").iter();
        let ready = |said: &Value| Webhook {
            said: said.clone(),
            conditions: Conditions::compile(list(said, "/matchConditions"), "matchConditions", false, &mut Vec::new()),
        };
        Configuration(webhooks.map(ready).collect())
    }
}

impl Phase {
    fn collection(self) -> &'static str {
        if self == Phase::Mutating { MUTATING } else { VALIDATING }
    }
}

impl ApiServer {
    /// Whether there are any of this phase at all.
    pub(crate) fn has_webhooks(&self, phase: Phase) -> bool {
        self.inner.options.store.any(phase.collection(), "")
    }

    /// The configurations of a phase.
    fn configurations(&self, phase: Phase) -> Vec<Arc<Configuration>> {
        let listing = self.inner.options.store.list(phase.collection(), "", None, None);
        let objects = listing.map(|listing| listing.objects).unwrap_or_default();
        let [mutating, validating] = &self.inner.hooks;
        let known = if phase == Phase::Mutating { mutating } else { validating };
        known.of(&objects, |object| Configuration::new(&object.value_without_managed_fields()))
    }

    /// Asks all validating webhooks that are about the request. Warnings.
    pub(crate) fn ask_validating(
        &self,
        resource: &Resource,
        request: &AdmissionRequest,
        object: &Value,
    ) -> Result<Vec<String>, Status> {
        let mut warnings = Vec::new();
        // Who could forbid to change webhooks could not be got rid of.
        if request.group == GROUP {
            return Ok(warnings);
        }
        let mut object = object.clone();
        for configuration in self.configurations(Phase::Validating) {
            for webhook in &configuration.0 {
                if let Some(version) = self.wants(webhook, resource, request, &object)? {
                    warnings.extend(ask(Phase::Validating, &webhook.said, resource, request, &version, &mut object)?);
                }
            }
        }
        Ok(warnings)
    }

    /// Asks all mutating webhooks that are about the request; once more those who want it (`reinvocationPolicy`) when another
    /// changed the object after them. The object's new form, and warnings.
    pub(crate) fn ask_mutating(
        &self,
        resource: &Resource,
        request: &AdmissionRequest,
        object: &mut Value,
    ) -> Result<Vec<String>, Status> {
        let mut warnings = Vec::new();
        if request.group == GROUP {
            return Ok(warnings);
        }
        let configurations = self.configurations(Phase::Mutating);
        let webhooks: Vec<&Webhook> = configurations.iter().flat_map(|configuration| &configuration.0).collect();
        // Those who were asked and want to be asked again if the object changes now, and those for whom it did.
        let (mut asked, mut again): (Vec<usize>, Vec<usize>) = (Vec::new(), Vec::new());
        for first in [true, false] {
            for (index, webhook) in webhooks.iter().enumerate() {
                if !first && !again.contains(&index) {
                    continue;
                }
                let Some(version) = self.wants(webhook, resource, request, object)? else { continue };
                let before = object.clone();
                warnings.extend(ask(Phase::Mutating, &webhook.said, resource, request, &version, object)?);
                if *object != before {
                    again.append(&mut asked);
                }
                if text(&webhook.said, "/reinvocationPolicy") == "IfNeeded" {
                    asked.push(index);
                }
            }
        }
        Ok(warnings)
    }

    /// The version in which a webhook wants to be asked about a request; none when it does not want to be.
    fn wants(
        &self,
        webhook: &Webhook,
        resource: &Resource,
        request: &AdmissionRequest,
        object: &Value,
    ) -> Result<Option<String>, Status> {
        let said = &webhook.said;
        let Some(version) = version_for(list(said, "/rules"), text(said, "/matchPolicy"), resource, request) else {
            return Ok(None);
        };
        if !self.is_selected(said, request, object) {
            return Ok(None);
        }
        if webhook.conditions.is_empty() {
            return Ok(Some(version));
        }
        let shown = |object: &Value| in_version(resource, request, &version, object);
        let object = if request.operation == Operation::Delete { Value::Null } else { shown(object)? };
        let old_object = request.old.as_ref().map(shown).transpose()?.unwrap_or_default();
        let asked = Value::Object(described(request, &version));
        let none = Value::Null;
        let input =
            Input { object: &object, old_object: &old_object, request: &asked, namespace: &none, params: &none };
        match webhook.conditions.hold(input) {
            Ok(true) => Ok(Some(version)),
            Ok(false) => Ok(None),
            Err(_) if text(said, "/failurePolicy") == "Ignore" => Ok(None),
            Err(why) => Err(Status::forbidden(&request.group, &request.resource, &request.name, why)),
        }
    }
}

/// An object in a version of its group.
fn in_version(resource: &Resource, request: &AdmissionRequest, version: &str, object: &Value) -> Result<Value, Status> {
    let group = &request.group;
    let api_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    resource.convert(object.clone(), &api_version).map_err(Status::unconverted)
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
    let shown = |object: &Value| in_version(resource, request, version, object);
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
        *object = resource.convert(patched, &own).map_err(Status::unconverted)?;
    }
    Ok(warnings)
}

fn review(request: &AdmissionRequest, version: &str, uid: &str, object: &Value, old: Option<&Value>) -> Value {
    let mut asked = described(request, version);
    asked.insert("uid".into(), uid.into());
    let object = (request.operation != Operation::Delete).then(|| object.clone());
    asked.insert("object".into(), object.unwrap_or_default());
    asked.insert("oldObject".into(), old.cloned().unwrap_or_default());
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
        if code < 400 { 400 } else { code },
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
        assert_eq!(refusal("a.b.c", &Value::Null).code, 400);
    }
}
