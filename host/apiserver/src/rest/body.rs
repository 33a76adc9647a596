//! From a body to an object of the right kind, with what the schema does not know reported.

use super::Call;
use crate::decode::{self, Decoded};
use crate::protobuf;
use crate::request::{BodyForm, FieldValidation};
use crate::status::Status;
use serde_json::Value;
use std::sync::PoisonError;

/// How many complaints about fields one answer carries.
const COMPLAINTS: usize = 16;

impl Call<'_> {
    /// Reads a body that is no patch, in whichever form it comes.
    pub(super) fn decode(&self) -> Result<Decoded, Status> {
        match BodyForm::of(&self.headers) {
            BodyForm::Json => decode::json(&self.body),
            BodyForm::Yaml => decode::yaml(&self.body),
            BodyForm::Protobuf => protobuf::read(&self.body),
            _ => Err(Status::unsupported_media_type(&[
                "application/json",
                "application/yaml",
                "application/vnd.kubernetes.protobuf",
            ])),
        }
    }

    /// Reads a whole object (POST and PUT). Warnings go to the second part.
    pub(super) fn read_object(&self) -> Result<(Value, Vec<String>), Status> {
        let Decoded { mut value, duplicates } = self.decode()?;
        if value.is_null() {
            value = Value::Object(serde_json::Map::new());
        }
        if !value.is_object() {
            return Err(Status::bad_request("the body must be an object"));
        }
        self.check_kind(&mut value)?;
        let warnings = self.check_fields(&mut value, &duplicates).map_err(|complaints| {
            let kind = &self.resource.kind;
            let version = &self.version.name;
            Status::bad_request(format!(
                "{kind} in version {version:?} cannot be handled as a {kind}: strict decoding error: {}",
                complaints.join(", ")
            ))
        })?;
        Ok((value, warnings))
    }

    /// The object must be of the kind and version that the path names; it may leave them out.
    pub(super) fn check_kind(&self, object: &mut Value) -> Result<(), Status> {
        let (kind, version) = (self.resource.kind.as_str(), self.version.api_version.as_str());
        let given = |name: &str| object.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (given_kind, given_version) = (given("kind"), given("apiVersion"));
        if !given_version.is_empty() && given_version != version {
            return Err(Status::bad_request(format!(
                "the API version in the data ({given_version}) does not match the expected API version ({version})"
            )));
        }
        if !given_kind.is_empty() && given_kind != kind {
            return Err(Status::bad_request(format!(
                "the object provided is unrecognized (must be of type {kind}): the kind in the data is {given_kind}"
            )));
        }
        if let Some(fields) = object.as_object_mut() {
            fields.insert("apiVersion".into(), version.into());
            fields.insert("kind".into(), kind.into());
            match fields.get("metadata") {
                Some(Value::Object(_)) => {}
                None | Some(Value::Null) => {
                    fields.insert("metadata".into(), Value::Object(serde_json::Map::new()));
                }
                Some(_) => return Err(Status::bad_request("metadata must be an object")),
            }
        }
        Ok(())
    }

    /// Prunes what the schema does not know. What is unknown or there twice is an error, a warning or nothing, as asked.
    pub(super) fn check_fields(&self, object: &mut Value, duplicates: &[String]) -> Result<Vec<String>, Vec<String>> {
        let validation = self.query.field_validation(self.options()).unwrap_or(FieldValidation::Warn);
        let before = (!duplicates.is_empty() && !self.resource.custom).then(|| object.clone());
        let unknown = self.version.schema().prune(object);
        if validation == FieldValidation::Ignore || (unknown.is_empty() && duplicates.is_empty()) {
            return Ok(Vec::new());
        }
        let mut found: Vec<(&str, &String)> = duplicates.iter().map(|path| ("duplicate", path)).collect();
        if self.resource.custom {
            // Metadata is read before the rest, and the rest in the order of its paths.
            let (mut metadata, mut rest): (Vec<&String>, Vec<&String>) =
                unknown.iter().partition(|path| path.starts_with("metadata."));
            metadata.sort();
            rest.sort();
            found.extend(metadata.into_iter().chain(rest).map(|path| ("unknown", path)));
        } else {
            found.extend(unknown.iter().map(|path| ("unknown", path)));
            if let Some(before) = &before {
                found.sort_by_key(|(_, path)| place(before, path));
            }
        }
        let complaints: Vec<String> =
            found.into_iter().map(|(what, path)| format!("{what} field {path:?}")).take(COMPLAINTS).collect();
        if validation == FieldValidation::Strict && !complaints.is_empty() {
            return Err(complaints);
        }
        *self.complaints.lock().unwrap_or_else(PoisonError::into_inner) = complaints.clone();
        Ok(complaints)
    }
}

/// Where in a document a path is: the place of each of its steps among its siblings.
fn place(document: &Value, path: &str) -> Vec<usize> {
    let mut at = Some(document);
    let mut out = Vec::new();
    for step in path.split(['.', '[']) {
        let step = step.trim_end_matches(']');
        let (index, next) = match at {
            Some(Value::Object(fields)) => (fields.keys().position(|key| key == step), fields.get(step)),
            Some(Value::Array(items)) => {
                let index = step.parse::<usize>().ok();
                (index, index.and_then(|index| items.get(index)))
            }
            _ => (None, None),
        };
        out.push(index.unwrap_or(usize::MAX));
        at = next;
    }
    out
}
