//! Objects and lists in the form a client wants: whole, as metadata only, as a table.

use super::Call;
use super::change::Outcome;
use crate::catalog::{Resource, Version};
use crate::request::AnswerForm;
use crate::response::{self, ResponseBody};
use crate::status::Status;
use crate::store::Object;
use bytes::Bytes;
use http::Response;
use jiff::Timestamp;
use serde_json::{Value, json};
use std::sync::Arc;

/// How much of a long list is made at a time, in bytes.
const CHUNK: usize = 128 << 10;

/// The metadata of an object, as `PartialObjectMetadata`.
pub(super) fn metadata_of(object: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object.get("metadata").cloned().unwrap_or_default()})
}

/// What a table's rows carry of their objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Include {
    Nothing,
    Metadata,
    Object,
}

impl Include {
    /// A table's rows carry nothing but these.
    pub fn check(call: &Call<'_>) -> Result<(), Status> {
        match call.query.get("includeObject") {
            None | Some("None" | "Object" | "Metadata") => Ok(()),
            Some(other) => Err(Status::bad_request(format!(
                "Unable to convert to Table as requested: includeObject: Invalid value: {other:?}: must be 'Metadata', \
                 'Object', 'None', or empty"
            ))),
        }
    }

    pub fn of(call: &Call<'_>) -> Include {
        match call.query.get("includeObject") {
            Some("None") => Include::Nothing,
            Some("Object") => Include::Object,
            _ => Include::Metadata,
        }
    }
}

/// One row.
pub(super) fn row(version: &Version, object: &Value, include: Include, now: Timestamp) -> Value {
    let mut row = json!({"cells": version.columns.cells(object, now)});
    let part = match include {
        Include::Nothing => None,
        Include::Metadata => Some(metadata_of(object)),
        Include::Object => Some(object.clone()),
    };
    if let Some(fields) = row.as_object_mut() {
        fields.insert("object".into(), part.unwrap_or_default());
    }
    row
}

/// A table. Definitions may be left out (watches send them once).
pub(super) fn table(definitions: Option<Value>, rows: Vec<Value>, metadata: Value) -> Value {
    json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "columnDefinitions": definitions.unwrap_or_else(|| json!([])), "rows": rows})
}

/// One object in a form, for a watch or an answer.
pub(super) fn object(
    resource: &Resource,
    version: &Version,
    object: &Object,
    form: AnswerForm,
    include: Include,
    lean: bool,
    definitions: bool,
) -> Result<Vec<u8>, Status> {
    let mut out = Vec::new();
    if form == AnswerForm::Object && !resource.is_hooked(object, version) {
        resource.write(object, version, lean, &mut out);
        return Ok(out);
    }
    let value = resource.show(object, version, lean).map_err(Status::internal)?;
    let shown = show(version, &value, form, include, definitions);
    Ok(shown.to_string().into_bytes())
}

fn show(version: &Version, value: &Value, form: AnswerForm, include: Include, definitions: bool) -> Value {
    match form {
        AnswerForm::Object => value.clone(),
        AnswerForm::Metadata => metadata_of(value),
        AnswerForm::Table => {
            let revision = value.pointer("/metadata/resourceVersion").cloned().unwrap_or_default();
            let rows = vec![row(version, value, include, Timestamp::now())];
            table(definitions.then(|| version.columns.definitions()), rows, json!({"resourceVersion": revision}))
        }
    }
}

impl Call<'_> {
    /// The answer to a request about one object.
    pub(super) fn render(
        &self,
        code: u16,
        outcome: &Outcome,
        warnings: &[String],
    ) -> Result<Response<ResponseBody>, Status> {
        let form = self.form().unwrap_or(AnswerForm::Object);
        let include = Include::of(self);
        let bytes = match outcome {
            Outcome::Stored(stored) => object(&self.resource, &self.version, stored, form, include, self.lean, true)?,
            Outcome::Dry(value) => show(&self.version, value, form, include, true).to_string().into_bytes(),
        };
        let mut answer = response::json(code, bytes);
        for warning in warnings {
            response::warn(&mut answer, warning);
        }
        Ok(answer)
    }

    /// The answer to a list.
    pub(super) fn render_list(
        &self,
        objects: Vec<Arc<Object>>,
        metadata: &Value,
        form: AnswerForm,
    ) -> Result<Response<ResponseBody>, Status> {
        let (kind, api_version) = match form {
            AnswerForm::Object => (self.resource.list_kind.as_str(), self.version.api_version.as_str()),
            AnswerForm::Metadata => ("PartialObjectMetadataList", "meta.k8s.io/v1"),
            AnswerForm::Table => {
                Include::check(self)?;
                let (include, now) = (Include::of(self), Timestamp::now());
                let mut rows = Vec::with_capacity(objects.len());
                for object in &objects {
                    let value = self.resource.show(object, &self.version, self.lean).map_err(Status::internal)?;
                    rows.push(row(&self.version, &value, include, now));
                }
                let table = table(Some(self.version.columns.definitions()), rows, metadata.clone());
                return Ok(response::value(200, &table));
            }
        };
        let mut head = Vec::with_capacity(256);
        head.extend_from_slice(b"{\"kind\":");
        head.extend_from_slice(Value::from(kind).to_string().as_bytes());
        head.extend_from_slice(b",\"apiVersion\":");
        head.extend_from_slice(Value::from(api_version).to_string().as_bytes());
        head.extend_from_slice(b",\"metadata\":");
        head.extend_from_slice(metadata.to_string().as_bytes());
        head.extend_from_slice(b",\"items\":[");
        let weight: usize = objects.iter().map(|object| object.weight()).sum();
        let (resource, version, lean) = (self.resource.clone(), self.version.clone(), self.lean);
        let put = move |object: &Object, out: &mut Vec<u8>| match form {
            // The items of a built-in list are of the list's kind and do not say it again.
            AnswerForm::Object if !resource.custom => {
                let start = out.len();
                resource.write(object, &version, lean, out);
                let kept = out.get(start..).map_or(0, Object::type_meta_length);
                out.drain(start + 1..start + kept.max(1));
            }
            AnswerForm::Metadata => {
                let value = if lean { object.value_without_managed_fields() } else { object.value() };
                out.extend_from_slice(metadata_of(&value).to_string().as_bytes());
            }
            _ => resource.write(object, &version, lean, out),
        };
        if weight <= CHUNK {
            let mut out = head;
            for (index, object) in objects.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                put(object, &mut out);
            }
            out.extend_from_slice(b"]}");
            return Ok(response::json(200, out));
        }
        // A long list is written out as the client takes it, so that it is never in memory twice.
        let mut left = objects.into_iter();
        let mut head = Some(head);
        let mut first = true;
        let chunks = std::iter::from_fn(move || {
            let done = left.len() == 0;
            let mut out = match head.take() {
                Some(head) => head,
                None if done => return None,
                None => Vec::with_capacity(CHUNK + 8192),
            };
            while out.len() < CHUNK {
                let Some(object) = left.next() else { break };
                if !std::mem::take(&mut first) {
                    out.push(b',');
                }
                put(&object, &mut out);
            }
            if left.len() == 0 {
                out.extend_from_slice(b"]}");
            }
            Some(Bytes::from(out))
        });
        let mut answer = response::json(200, Bytes::new());
        *answer.body_mut() = ResponseBody::stream(futures::stream::iter(chunks));
        Ok(answer)
    }
}
