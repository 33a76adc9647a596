//! From a body to an object of the right kind, with what the schema does not know reported.

use super::Call;
use crate::decode::{self, Decoded};
use crate::protobuf;
use crate::request::{BodyForm, FieldValidation};
use crate::status::Status;
use serde_json::Value;

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
            if !fields.get("metadata").is_some_and(Value::is_object) {
                fields.insert("metadata".into(), Value::Object(serde_json::Map::new()));
            }
        }
        Ok(())
    }

    /// Prunes what the schema does not know. What is unknown or there twice is an error, a warning or nothing, as asked.
    pub(super) fn check_fields(&self, object: &mut Value, duplicates: &[String]) -> Result<Vec<String>, Vec<String>> {
        let unknown = self.version.schema().prune(object);
        let validation = self.query.field_validation().unwrap_or(FieldValidation::Warn);
        if validation == FieldValidation::Ignore {
            return Ok(Vec::new());
        }
        let complaints: Vec<String> = unknown
            .iter()
            .map(|path| format!("unknown field {path:?}"))
            .chain(duplicates.iter().map(|path| format!("duplicate field {path:?}")))
            .take(COMPLAINTS)
            .collect();
        if validation == FieldValidation::Strict && !complaints.is_empty() {
            return Err(complaints);
        }
        Ok(complaints)
    }
}
