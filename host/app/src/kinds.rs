//! What provider components say of their own kinds, where upstream has webhooks: conversion between served versions and
//! validation in the embedded API server, and the capacity of templates.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use capstan_api::Object;
use capstan_api::ipam::IPAM_GROUP;
use capstan_api::well_known::CLUSTER_GROUP;
use capstan_apiserver::schema::{FieldError, FieldErrorKind};
use capstan_apiserver::{Admission, AdmissionRequest, Conversion, Operation, Status};
use capstan_core::contract::Violation;
use capstan_core::infrastructure::template_capacity;
use capstan_core::plan::Plan;
use serde_json::Value;

use crate::modules::Registry;

/// Asks the component that serves a kind. The API server is there before the components are.
#[derive(Clone, Default)]
pub struct ProviderKinds {
    registry: Arc<OnceLock<Arc<Registry>>>,
}

impl ProviderKinds {
    /// From here on the modules of this registry are asked.
    pub fn ask(&self, registry: &Arc<Registry>) {
        let _ = self.registry.set(registry.clone());
    }
}

/// Whether kinds of the group are a provider's, as far as a group can tell.
fn of_providers(group: &str) -> bool {
    group.ends_with(".cluster.x-k8s.io") && ![CLUSTER_GROUP, IPAM_GROUP].contains(&group)
}

impl Conversion for ProviderKinds {
    /// Which kinds there are is not known when a definition comes: before the module that brings it is loaded.
    fn converts(&self, crd: &str) -> bool {
        crd.split_once('.').is_some_and(|(_, group)| of_providers(group))
    }

    fn convert(&self, object: Value, api_version: &str) -> Result<Value, String> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default();
        match self.registry.get().and_then(|registry| registry.module_of(group, kind)) {
            Some(module) => {
                let who = module.manifest().name.as_str();
                module
                    .convert(&object, version)
                    .map_err(|why| format!("{who} cannot convert {kind} to {version}: {why}"))
            }
            None => {
                Err(format!("{kind} cannot be shown in {version}: the provider that converts it is not loaded (yet)"))
            }
        }
    }
}

impl Admission for ProviderKinds {
    fn admit(&self, _request: &AdmissionRequest, _object: &mut Value) -> Result<Vec<String>, Status> {
        Ok(Vec::new())
    }

    fn validate(&self, request: &AdmissionRequest, object: &Value) -> Result<(), Status> {
        if !request.subresource.is_empty() || request.operation == Operation::Delete {
            return Ok(());
        }
        let old = request.old.as_ref();
        // What was let in once is not asked about again for the sake of its metadata, nor is what is on its way out.
        if old.is_some_and(|old| old.get("spec") == object.get("spec"))
            || object.pointer("/metadata/deletionTimestamp").is_some()
        {
            return Ok(());
        }
        let found = self.registry.get().and_then(|registry| registry.module_of(&request.group, &request.kind));
        let Some(module) = found else { return Ok(()) };
        match module.validate(old, object) {
            Ok(violations) if violations.is_empty() => Ok(()),
            Ok(violations) => {
                let template = request.kind.ends_with("Template");
                let errors: Vec<FieldError> =
                    violations.into_iter().map(|violation| field_error(violation, object, template)).collect();
                Err(Status::invalid(&request.group, &request.kind, &request.name, &errors))
            }
            Err(why) => {
                let (who, kind) = (&module.manifest().name, &request.kind);
                tracing::warn!(provider = %who, %kind, name = %request.name, %why, "an object cannot be validated");
                Err(Status::internal(format!("provider {who} cannot validate {kind} {}: {why}", request.name)))
            }
        }
    }
}

/// A violation as Kubernetes words it. A provider knows the spec of the machine; in a template that lies deeper.
fn field_error(violation: Violation, object: &Value, template: bool) -> FieldError {
    let mut pointer = violation.path;
    if template
        && let Some(rest) = pointer.strip_prefix("/spec")
        && !rest.starts_with("/template")
    {
        pointer = format!("/spec/template/spec{rest}");
    }
    FieldError {
        path: field_path(&pointer),
        kind: FieldErrorKind::Invalid,
        bad_value: object.pointer(&pointer).cloned(),
        detail: violation.message,
    }
}

/// `/spec/devices/0/name` as `spec.devices[0].name`; a key that is no plain word in brackets.
fn field_path(pointer: &str) -> String {
    let mut path = String::new();
    for word in pointer.split('/').skip(1) {
        let word = word.replace("~1", "/").replace("~0", "~");
        let index = !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit());
        let plain = !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        if index || !plain {
            path.push_str(&format!("[{word}]"));
        } else {
            if !path.is_empty() {
                path.push('.');
            }
            path.push_str(&word);
        }
    }
    if path.is_empty() { "<root>".to_owned() } else { path }
}

/// Uid, generation, digest of the component.
type Asked = (String, i64, String);

/// What machines of templates offer, asked once for each state of a template.
#[derive(Default)]
pub struct Capacities {
    known: Mutex<HashMap<Asked, Vec<(String, String)>>>,
}

impl Capacities {
    /// Decides for a template of InfraMachines; `now` in milliseconds since 1970.
    pub fn decide(&self, registry: &Registry, template: &Arc<Object>, now: u64) -> Plan {
        let Some(module) = registry.module_of(template.group(), template.kind()) else { return Plan::nothing() };
        let asked = (template.uid().to_owned(), template.generation(), module.digest().to_owned());
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(&asked).cloned();
        let capacity = known.unwrap_or_else(|| {
            let capacity = module.capacity(template).unwrap_or_else(|why| {
                tracing::warn!(template = %template.key(), %why, "what its machines offer cannot be told");
                Vec::new()
            });
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            if known.len() > 4096 {
                known.clear();
            }
            known.insert(asked, capacity.clone());
            capacity
        });
        template_capacity(template, &capacity, now)
    }
}

#[cfg(test)]
mod tests;
