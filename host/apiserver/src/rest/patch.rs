//! PATCH: JSON patch, merge patch, strategic merge patch, server-side apply.

use super::change::{Edited, metadata_of};
use super::{Call, now};
use crate::decode;
use crate::request::BodyForm;
use crate::response::ResponseBody;
use crate::schema::{self, ApplyError, FieldError, FieldErrorKind};
use crate::server::BODY_LIMIT;
use crate::status::{Cause, Status};
use http::Response;
use json_patch::PatchOperation;
use serde_json::Value;

/// How many operations a JSON patch may have, as in Kubernetes.
const OPERATIONS: usize = 10_000;

/// A patch that was read.
pub(super) enum Patch {
    Json(json_patch::Patch),
    Merge(Value),
    Strategic(Value),
}

/// A few operations must not make a huge or bottomless object: copies of copies double, and each may nest the last.
fn check_growth(object: &Value, operation: &PatchOperation, copied: &mut usize) -> Result<(), Status> {
    let at = |pointer: &str| object.pointer(pointer);
    let (value, path) = match operation {
        PatchOperation::Add(add) => (Some(&add.value), &add.path),
        PatchOperation::Replace(replace) => (Some(&replace.value), &replace.path),
        PatchOperation::Copy(copy) => {
            let value = at(copy.from.as_str());
            *copied += value.map_or(0, |value| value.to_string().len());
            if *copied > BODY_LIMIT {
                return Err(Status::too_large(BODY_LIMIT));
            }
            (value, &copy.path)
        }
        PatchOperation::Move(moved) => (at(moved.from.as_str()), &moved.path),
        PatchOperation::Remove(_) | PatchOperation::Test(_) => return Ok(()),
    };
    let depth = path.as_str().matches('/').count() + value.map_or(0, depth);
    if depth > decode::DEPTH {
        return Err(Status::bad_request("the patch nests values too deeply"));
    }
    Ok(())
}

/// How deep a value nests. Nothing that is stored or read nests deeper than [`decode::DEPTH`].
fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

impl Call<'_> {
    pub(super) async fn patch(&self) -> Result<Response<ResponseBody>, Status> {
        self.form()?;
        if BodyForm::of(&self.headers) == BodyForm::ApplyPatch {
            return self.apply().await;
        }
        if self.query.flag("force").is_some() {
            return Err(self.patch_options("force", "may not be specified for non-apply patch"));
        }
        let (patch, duplicates) = self.read_patch(!self.resource.custom)?;
        let edit = |old: &Value| {
            let mut object = self.patched(&patch, old)?;
            let warnings =
                self.check_fields(&mut object, &duplicates).map_err(|complaints| self.strict_patch(&complaints))?;
            self.check_same(&object)?;
            // A patch that does not touch the revision is for whatever there is.
            if object.pointer("/metadata/resourceVersion") == old.pointer("/metadata/resourceVersion")
                && let Some(metadata) = metadata_of(&mut object)
            {
                metadata.shift_remove("resourceVersion");
            }
            Ok(Edited { object, warnings, managed: false })
        };
        let (outcome, warnings) = self.change(edit, &self.path.subresource).await?;
        self.render(200, &outcome, &warnings)
    }

    /// Reads a patch. Not every kind has strategic merge.
    pub(super) fn read_patch(&self, strategic: bool) -> Result<(Patch, Vec<String>), Status> {
        const ALL: &[&str] = &[
            "application/json-patch+json",
            "application/merge-patch+json",
            "application/apply-patch+yaml",
            "application/strategic-merge-patch+json",
        ];
        let object = |decoded: decode::Decoded| match decoded.value {
            Value::Object(_) => Ok((decoded.value, decoded.duplicates)),
            _ => Err(Status::bad_request("the patch must be an object")),
        };
        Ok(match BodyForm::of(&self.headers) {
            BodyForm::JsonPatch => {
                let decoded = decode::json(&self.body)?;
                let patch: json_patch::Patch = serde_json::from_value(decoded.value)
                    .map_err(|error| Status::bad_request(format!("the body is not a valid JSON patch: {error}")))?;
                if patch.0.len() > OPERATIONS {
                    return Err(Status::too_large(OPERATIONS));
                }
                (Patch::Json(patch), decoded.duplicates)
            }
            BodyForm::MergePatch => {
                let (patch, duplicates) = object(decode::json(&self.body)?)?;
                (Patch::Merge(patch), duplicates)
            }
            BodyForm::StrategicPatch if strategic => {
                let (patch, duplicates) = object(decode::json(&self.body)?)?;
                (Patch::Strategic(patch), duplicates)
            }
            _ => {
                let accepted = ALL.get(..if strategic { 4 } else { 3 }).unwrap_or(ALL);
                return Err(Status::unsupported_media_type(accepted));
            }
        })
    }

    /// The object with a patch applied.
    pub(super) fn patched(&self, patch: &Patch, old: &Value) -> Result<Value, Status> {
        let mut object = old.clone();
        match patch {
            Patch::Json(patch) => {
                let mut copied = 0;
                for operation in &patch.0 {
                    check_growth(&object, operation, &mut copied)?;
                    json_patch::patch(&mut object, std::slice::from_ref(operation)).map_err(|error| {
                        let reason = format!("the server rejected our request due to an error in our request: {error}");
                        Status::new(422, "Invalid", reason)
                    })?;
                }
            }
            Patch::Merge(patch) => json_patch::merge(&mut object, patch),
            Patch::Strategic(patch) => {
                object = schema::strategic_merge(self.version.schema(), old, patch).map_err(Status::bad_request)?;
            }
        }
        if !object.is_object() {
            return Err(Status::bad_request("the patched object is no object"));
        }
        Ok(object)
    }

    /// A patch may not make another object of it.
    fn check_same(&self, object: &Value) -> Result<(), Status> {
        let text = |path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or_default();
        if text("/apiVersion") != self.version.api_version || text("/kind") != self.resource.kind {
            return Err(Status::bad_request(format!(
                "the patch changes the kind: it is a {} of {}, not a {} of {}",
                self.resource.kind,
                self.version.api_version,
                text("/kind"),
                text("/apiVersion")
            )));
        }
        self.check_name(object)
    }

    fn strict_patch(&self, complaints: &[String]) -> Status {
        let body = String::from_utf8_lossy(&self.body);
        let why = format!("strict decoding error: {}", complaints.join(", "));
        let error = FieldError {
            path: String::from("patch"),
            kind: FieldErrorKind::Invalid,
            bad_value: Some(Value::from(body.as_ref())),
            detail: why,
        };
        let mut status = Status::invalid("", "", "", std::slice::from_ref(&error));
        status.message = format!(" \"\" is invalid: {error}");
        status
    }

    fn patch_options(&self, field: &str, why: &str) -> Status {
        let message = format!("PatchOptions.meta.k8s.io \"\" is invalid: {field}: {why}");
        let mut status = Status::new(422, "Invalid", message).with_cause("FieldValueInvalid", why, field);
        status.details.group = String::from("meta.k8s.io");
        status.details.kind = String::from("PatchOptions");
        status
    }

    /// Server-side apply. Makes the object when there is none.
    async fn apply(&self) -> Result<Response<ResponseBody>, Status> {
        let Some(manager) = self.query.get("fieldManager") else {
            return Err(self.patch_options("fieldManager", "Required value: is required for apply patch"));
        };
        let force = self.query.flag("force").unwrap_or(false);
        let decoded = decode::yaml(&self.body)?;
        let mut configuration = decoded.value;
        if !configuration.is_object() {
            return Err(Status::bad_request("the configuration must be an object"));
        }
        for name in ["apiVersion", "kind"] {
            if configuration.get(name).and_then(Value::as_str).is_none_or(str::is_empty) {
                return Err(Status::bad_request(format!("the configuration must have {name}")));
            }
        }
        self.check_kind(&mut configuration)?;
        if configuration
            .pointer("/metadata/managedFields")
            .and_then(Value::as_array)
            .is_some_and(|list| !list.is_empty())
        {
            return Err(Status::bad_request("metadata.managedFields must be nil"));
        }
        if let Some(metadata) = configuration.get_mut("metadata").and_then(Value::as_object_mut) {
            let name = metadata.entry("name").or_insert_with(|| self.path.name.as_str().into());
            if name.as_str() != Some(&self.path.name) {
                return Err(Status::bad_request(format!(
                    "the name of the object ({}) does not match the name on the URL ({})",
                    name.as_str().unwrap_or_default(),
                    self.path.name
                )));
            }
            let namespace = metadata.get("namespace").and_then(Value::as_str).unwrap_or_default().to_owned();
            self.check_namespace(&namespace)?;
        }
        let warnings = self.check_fields(&mut configuration, &decoded.duplicates).map_err(|complaints| {
            Status::bad_request(format!(
                "failed to create typed patch object ({}): {}",
                self.described(),
                complaints.join(", ")
            ))
        })?;
        let subresource = self.path.subresource.as_str();
        if subresource.is_empty()
            && self.version.status
            && let Some(fields) = configuration.as_object_mut()
        {
            fields.shift_remove("status");
        }
        let part = (!subresource.is_empty()).then_some(subresource);
        let applied = |live: Option<&Value>| {
            let applied = schema::apply(self.version.schema(), live, &configuration, manager, force, part, &now());
            applied.map(|applied| applied.object).map_err(|error| self.apply_error(error))
        };
        let edit = |old: &Value| {
            let mut object = applied(Some(old))?;
            // Without a resourceVersion of its own the configuration is for whatever there is.
            if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
                match configuration.pointer("/metadata/resourceVersion") {
                    Some(revision) => drop(metadata.insert("resourceVersion".into(), revision.clone())),
                    None => drop(metadata.shift_remove("resourceVersion")),
                }
            }
            Ok(Edited { object, warnings: warnings.clone(), managed: true })
        };
        // Between being told that there is none and making it, somebody else may have: then it is there to change.
        for _ in 0..3 {
            match self.change(edit, subresource).await {
                Err(status) if status.code == 404 && subresource.is_empty() && status == self.not_found() => {}
                Err(status) => return Err(status),
                Ok((outcome, warnings)) => return self.render(200, &outcome, &warnings),
            }
            if configuration.pointer("/metadata/uid").is_some() {
                return Err(Status::conflict(
                    &self.resource.group,
                    &self.resource.plural,
                    &self.path.name,
                    "uid mismatch: the provided object specified a uid, and no existing object was found",
                ));
            }
            match self.create_object(applied(None)?, warnings.clone(), Some(())).await {
                Err(status) if status.reason == "AlreadyExists" => {}
                Err(status) => return Err(status),
                Ok((outcome, warnings)) => return self.render(201, &outcome, &warnings),
            }
        }
        Err(Status::modified(&self.resource.group, &self.resource.plural, &self.path.name))
    }

    fn described(&self) -> String {
        let place = if self.path.namespace.is_empty() { String::new() } else { format!("{}/", self.path.namespace) };
        format!("{place}{}; {}, Kind={}", self.path.name, self.version.api_version, self.resource.kind)
    }

    fn apply_error(&self, error: ApplyError) -> Status {
        let message = error.to_string();
        let ApplyError::Conflict(conflicts) = error else { return Status::bad_request(message) };
        let mut status = Status::new(409, "Conflict", message);
        status.details.causes = conflicts
            .into_iter()
            .map(|conflict| {
                let (reason, message, field) = conflict.cause();
                Cause { reason: reason.to_owned(), message, field }
            })
            .collect();
        status
    }
}
