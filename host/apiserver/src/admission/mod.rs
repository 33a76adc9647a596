//! What is in the store and has a say in requests: policies (`ValidatingAdmissionPolicy`), and what they share with webhooks of
//! others: rules and selectors, the description of a request, conditions. Source: `k8s.io/apiserver/pkg/admission/plugin`
//! (release 1.36).

mod conditions;
mod evaluation;
mod known;
mod matching;
mod params;
mod policies;
mod policy;
mod registration;
mod types;

pub(crate) use conditions::Conditions;
pub(crate) use evaluation::Input;
pub(crate) use known::Known;
pub(crate) use matching::{described, version_for};
pub(crate) use policies::Policies;
pub(crate) use registration::{check, check_status};

use serde_json::Value;

/// The group of all that has a say; who could forbid to change it could not be got rid of.
pub(crate) const GROUP: &str = "admissionregistration.k8s.io";

pub(crate) fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

pub(crate) fn words<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = &'a str> {
    value.get(name).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

pub(crate) fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}
