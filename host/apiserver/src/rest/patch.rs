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
use json_patch::{AddOperation, PatchOperation};
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

/// 422: the patch does not fit the object.
fn refused(error: impl std::fmt::Display) -> Status {
    let message = format!("the server rejected our request due to an error in our request: {error}");
    let mut status = Status::new(422, "Invalid", message);
    status.details.empty = true;
    status
}

/// Replacing a field that is not there adds it, as in Kubernetes.
fn lenient(object: &Value, operation: &PatchOperation) -> PatchOperation {
    if let PatchOperation::Replace(replace) = operation
        && object.pointer(replace.path.as_str()).is_none()
        && let Some((parent, _)) = replace.path.as_str().rsplit_once('/')
        && object.pointer(parent).is_some_and(Value::is_object)
    {
        return PatchOperation::Add(AddOperation { path: replace.path.clone(), value: replace.value.clone() });
    }
    operation.clone()
}

/// How deep a value nests. Nothing that is stored or read nests deeper than [`decode::DEPTH`].
fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// Whether a configuration has something of another shape than its schema: it cannot be merged at all.
fn is_untyped(error: &FieldError) -> bool {
    let found = error.bad_value.as_ref().and_then(Value::as_str).unwrap_or_default();
    let number = error.detail.contains("of type integer") && found == "number";
    error.kind == FieldErrorKind::TypeInvalid && found != "null" && !number
}

/// Objects that a configuration has with nothing in them, and from which all went that the manager formerly had there:
/// upstream leaves a null in their place, which no schema accepts that does not say so.
fn find_emptied(configuration: &Value, old: &Value, new: &Value, path: &str, errors: &mut Vec<FieldError>) {
    for (name, wanted) in configuration.as_object().into_iter().flatten() {
        let (Some(Value::Object(wanted)), Some(old)) = (Some(wanted), old.get(name)) else { continue };
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        let was = old.as_object().is_some_and(|fields| !fields.is_empty());
        let is = new.get(name).and_then(Value::as_object).is_some_and(|fields| !fields.is_empty());
        if wanted.is_empty() && was && !is {
            let why = format!("{path} in body must be of type object: \"null\"");
            errors.push(FieldError::new(path, FieldErrorKind::TypeInvalid, "null".into(), why));
        } else if let Some(new) = new.get(name) {
            find_emptied(&Value::Object(wanted.clone()), old, new, &path, errors);
        }
    }
}

impl Call<'_> {
    pub(super) async fn patch(&self) -> Result<Response<ResponseBody>, Status> {
        self.form()?;
        if BodyForm::of(&self.headers) == BodyForm::ApplyPatch {
            return self.apply().await;
        }
        self.check_manager()?;
        if self.query.flag("force").is_some() {
            let error = FieldError::forbidden("force", "may not be specified for non-apply patch");
            return Err(Status::invalid_options("Patch", &[error]));
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
                if !decoded.value.is_array() {
                    return Err(Status::bad_request("a JSON patch must be a list of operations"));
                }
                let patch: json_patch::Patch = serde_json::from_value(decoded.value)
                    .map_err(|error| refused(format!("the body is not a valid JSON patch: {error}")))?;
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
            BodyForm::StrategicPatch | BodyForm::Unknown | BodyForm::Json if !self.resource.custom => {
                let mut status = Status::new(415, "UnsupportedMediaType", "415: Unsupported Media Type");
                status.details.empty = true;
                return Err(status);
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
                    let operation = lenient(&object, operation);
                    json_patch::patch(&mut object, std::slice::from_ref(&operation)).map_err(refused)?;
                }
            }
            Patch::Merge(patch) => json_patch::merge(&mut object, patch),
            Patch::Strategic(patch) => {
                object = schema::strategic_merge(self.version.schema(), old, patch)
                    .map_err(|why| Status::new(500, "", why))?;
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
        let (kind, version) = (text("/kind"), text("/apiVersion"));
        if object.get("metadata").is_none_or(Value::is_null) {
            return self.check_name(object);
        }
        if self.resource.custom {
            let wrong = |field: &str, is: &str, must: &str| {
                (is != must).then(|| FieldError::invalid(field, is, format!("must be {must}")))
            };
            let errors: Vec<FieldError> = wrong("kind", kind, &self.resource.kind)
                .into_iter()
                .chain(wrong("apiVersion", version, &self.version.api_version))
                .collect();
            if !errors.is_empty() {
                return Err(Status::invalid(&self.resource.group, kind, &self.path.name, &errors));
            }
        } else if kind != self.resource.kind || version != self.version.api_version {
            let why =
                format!("it is a {} of {}, not a {kind} of {version}", self.resource.kind, self.version.api_version);
            let error = FieldError::invalid("patch", object.to_string(), why);
            return Err(Status::invalid("", "", "", std::slice::from_ref(&error)));
        }
        self.check_name(object)
    }

    fn strict_patch(&self, complaints: &[String]) -> Status {
        let body = String::from_utf8_lossy(&self.body);
        let why = format!("strict decoding error: {}", complaints.join(", "));
        let error = FieldError::invalid("patch", body.as_ref(), why);
        Status::invalid("", "", "", std::slice::from_ref(&error))
    }

    /// Server-side apply. Makes the object when there is none.
    async fn apply(&self) -> Result<Response<ResponseBody>, Status> {
        let Some(manager) = self.query.get("fieldManager") else {
            let error = FieldError::required("fieldManager", "is required for apply patch");
            return Err(Status::invalid_options("Patch", &[error]));
        };
        self.check_manager()?;
        let force = match self.query.get("force") {
            None | Some("" | "true" | "1" | "t" | "T" | "TRUE" | "True") => self.query.flag("force") == Some(true),
            Some("false" | "0" | "f" | "F" | "FALSE" | "False") => false,
            Some(other) => {
                let why = format!("strconv.ParseBool: parsing {other:?}: invalid syntax");
                return Err(Status::bad_request(why));
            }
        };
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
            let unnamed = metadata.get("name").and_then(Value::as_str).is_none_or(str::is_empty);
            // Only what is to be made must say its name.
            let store = &self.server.inner.options.store;
            if unnamed
                && (!self.path.subresource.is_empty() || store.get(&self.resource.collection, &self.key()).is_some())
            {
                metadata.insert("name".into(), self.path.name.as_str().into());
            }
        }
        self.query.dry_run(self.options())?;
        self.query.field_validation(self.options())?;
        self.check_name(&configuration)?;
        let described = self.described(&configuration);
        let unknown = self.version.schema().clone().prune(&mut configuration);
        if !unknown.is_empty() {
            let all: Vec<String> =
                unknown.iter().map(|path| format!(".{path}: field not declared in schema")).collect();
            let all = if let [one] = all.as_slice() { one.clone() } else { format!("errors:\n  {}", all.join("\n  ")) };
            return Err(Status::new(500, "", format!("failed to create typed patch object ({described}): {all}")));
        }
        let untyped = self.version.schema().validate(&configuration, None);
        let either = |error: &FieldError| error.detail.contains("integer,string");
        let mixed: Vec<&str> = untyped.iter().filter(|error| either(error)).map(|error| error.path.as_str()).collect();
        let untyped = untyped.iter().find(|error| is_untyped(error) && !mixed.contains(&error.path.as_str()));
        if let Some(error) = untyped {
            let why = format!("failed to create typed patch object ({described}): .{error}");
            return Err(Status::new(500, "", why));
        }
        if self.resource.custom {
            let nulls = self.version.schema().nulls(&configuration);
            if !nulls.is_empty() {
                return Err(self.invalid(&nulls));
            }
        }
        let warnings = self.check_fields(&mut configuration, &decoded.duplicates).map_err(|complaints| {
            Status::bad_request(format!("error decoding the configuration: {}", complaints.join(", ")))
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
            applied.map(|applied| applied.object).map_err(|error| self.apply_error(error, &described))
        };
        let edit = |old: &Value| {
            let mut object = applied(Some(old))?;
            if self.resource.custom {
                let mut emptied = Vec::new();
                find_emptied(&configuration, old, &object, "", &mut emptied);
                if !emptied.is_empty() {
                    return Err(self.invalid(&emptied));
                }
            }
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
            let mut object = applied(None)?;
            if let Some(metadata) = metadata_of(&mut object) {
                metadata.shift_remove("resourceVersion");
            }
            match self.create_object(object, warnings.clone(), Some(())).await {
                Err(status) if status.reason == "AlreadyExists" => {}
                Err(status) => return Err(status),
                Ok((outcome, warnings)) => return self.render(201, &outcome, &warnings),
            }
        }
        Err(Status::modified(&self.resource.group, &self.resource.plural, &self.path.name))
    }

    /// The configuration in the words of upstream's refusals.
    fn described(&self, configuration: &Value) -> String {
        let text = |path: &str| configuration.pointer(path).and_then(Value::as_str).unwrap_or_default();
        format!(
            "{}/{}; {}/{}, Kind={}",
            text("/metadata/namespace"),
            text("/metadata/name"),
            self.resource.group,
            self.version.name,
            self.resource.kind
        )
    }

    fn apply_error(&self, error: ApplyError, described: &str) -> Status {
        let message = error.to_string();
        let ApplyError::Conflict(conflicts) = error else {
            return Status::new(500, "", format!("failed to create typed patch object ({described}): {message}"));
        };
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
