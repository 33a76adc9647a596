//! Conversion webhooks: definitions say who converts between their versions.

use super::client;
use crate::options::Conversion;
use serde_json::{Value, json};
use std::time::Duration;

/// How long Kubernetes waits for one.
const PATIENCE: Duration = Duration::from_secs(30);

/// The webhook of one definition.
pub(crate) struct ConversionWebhook {
    name: String,
    config: Value,
}

impl ConversionWebhook {
    /// That of a definition, if it has one.
    pub fn of(crd: &Value) -> Option<ConversionWebhook> {
        let conversion = crd.pointer("/spec/conversion")?;
        if conversion.get("strategy").and_then(Value::as_str) != Some("Webhook") {
            return None;
        }
        let name = crd.pointer("/metadata/name").and_then(Value::as_str)?.to_owned();
        Some(ConversionWebhook { name, config: conversion.pointer("/webhook/clientConfig")?.clone() })
    }
}

impl Conversion for ConversionWebhook {
    fn converts(&self, crd: &str) -> bool {
        self.name == crd
    }

    fn convert(&self, object: Value, api_version: &str) -> Result<Value, String> {
        let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
        let from = object.get("apiVersion").and_then(Value::as_str).unwrap_or_default().to_owned();
        let name = object.pointer("/metadata/name").cloned().unwrap_or_default();
        let uid = uuid::Uuid::new_v4().to_string();
        let review = json!({"kind": "ConversionReview", "apiVersion": "apiextensions.k8s.io/v1", "request": {
            "uid": uid, "desiredAPIVersion": api_version, "objects": [object]}});
        let failed = |why: &str| format!("conversion webhook for {from}, Kind={kind} failed: {why}");
        let mut answer = client::ask(&self.config, &review, PATIENCE).map_err(|why| failed(&why))?;
        let text = |pointer: &str| answer.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        if text("/response/uid") != uid {
            return Err(failed("it answered another review"));
        }
        if text("/response/result/status") != "Success" {
            return Err(failed(&text("/response/result/message")));
        }
        let converted = answer.pointer_mut("/response/convertedObjects/0").map(Value::take).unwrap_or_default();
        let same = |pointer: &str, wanted: &Value| converted.pointer(pointer).unwrap_or(&Value::Null) == wanted;
        if !same("/apiVersion", &api_version.into())
            || !same("/kind", &kind.as_str().into())
            || !same("/metadata/name", &name)
        {
            return Err(failed("what it returned is not the same object in the wanted version"));
        }
        Ok(converted)
    }
}
