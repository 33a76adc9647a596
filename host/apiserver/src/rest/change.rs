//! What PUT and all patches have in common: from the object as it is and as it is wanted to a committed change.

use super::{Call, Verb, now};
use crate::auth::rbac;
use crate::catalog::Resource;
use crate::kinds;
use crate::options::{AdmissionRequest, Operation};
use crate::request::BodyForm;
use crate::response::ResponseBody;
use crate::schema::{self, FieldError, FieldErrorKind};
use crate::status::Status;
use crate::store::{Change, Draft, Object, Refusal};
use crate::webhooks::Phase;
use http::Response;
use serde_json::{Map, Value};
use std::sync::Arc;

/// How often a change is tried again because somebody else was faster.
const ATTEMPTS: usize = 32;

/// What a request about one object ends with.
pub(crate) enum Outcome {
    Stored(Arc<Object>),
    /// What would have been stored.
    Dry(Value),
}

/// What an edit makes of an object.
pub(super) struct Edited {
    /// The whole object as it is wanted, in the version of the request.
    pub object: Value,
    pub warnings: Vec<String>,
    /// Whether the managed fields in it are already right (server-side apply).
    pub managed: bool,
}

/// The finalizer that makes the garbage collector delete dependents first.
pub(crate) const FOREGROUND: &str = "foregroundDeletion";
/// The finalizer that makes the garbage collector disown dependents.
pub(crate) const ORPHAN: &str = "orphan";

pub(crate) fn fields_of(object: &mut Value) -> Option<&mut Map<String, Value>> {
    object.as_object_mut()
}

pub(crate) fn metadata_of(object: &mut Value) -> Option<&mut Map<String, Value>> {
    object.get_mut("metadata").and_then(Value::as_object_mut)
}

pub(crate) fn set(fields: &mut Map<String, Value>, name: &str, value: Option<Value>) {
    match value {
        Some(value) => drop(fields.insert(name.to_owned(), value)),
        None => drop(fields.shift_remove(name)),
    }
}

impl Call<'_> {
    pub(super) async fn update(&self) -> Result<Response<ResponseBody>, Status> {
        self.form()?;
        let (object, warnings) = self.read_object()?;
        self.check_name(&object)?;
        let edit = |_: &Value| Ok(Edited { object: object.clone(), warnings: warnings.clone(), managed: false });
        match self.change(edit, &self.path.subresource).await {
            Err(status)
                if status == self.not_found()
                    && self.path.subresource.is_empty()
                    && kinds::is_made_by_update(&self.resource) =>
            {
                let (outcome, warnings) = self.create_object(object.clone(), warnings.clone(), None).await?;
                self.render(201, &outcome, &warnings)
            }
            changed => {
                let (outcome, warnings) = changed?;
                self.render(200, &outcome, &warnings)
            }
        }
    }

    /// Name and namespace of the object must be those of the path, or missing.
    pub(super) fn check_name(&self, object: &Value) -> Result<(), Status> {
        let text = |path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or_default();
        let (name, namespace) = (text("/metadata/name"), text("/metadata/namespace"));
        let may_be_missing = !self.path.subresource.is_empty();
        if name != self.path.name && (!name.is_empty() || !may_be_missing) {
            return Err(Status::bad_request(if name.is_empty() {
                format!(
                    "the name of the object ({} based on URL) was undeterminable: name must be provided",
                    self.path.name
                )
            } else {
                format!("the name of the object ({name}) does not match the name on the URL ({})", self.path.name)
            }));
        }
        self.check_namespace(namespace)
    }

    pub(super) fn check_namespace(&self, namespace: &str) -> Result<(), Status> {
        if self.resource.namespaced && !namespace.is_empty() && namespace != self.path.namespace {
            return Err(Status::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        Ok(())
    }

    /// Changes an object: edits it as it is, checks, stores; again when it was changed meanwhile.
    pub(super) async fn change(
        &self,
        edit: impl Fn(&Value) -> Result<Edited, Status>,
        subresource: &str,
    ) -> Result<(Outcome, Vec<String>), Status> {
        let dry_run = self.query.dry_run(self.options())?;
        self.query.field_validation(self.options())?;
        let store = &self.server.inner.options.store;
        let key = self.key();
        for _ in 0..ATTEMPTS {
            let current = store.get(&self.resource.collection, &key).ok_or_else(|| self.not_found())?;
            let old = self.resource.present(&current, &self.version).map_err(Status::unconverted)?;
            let Edited { object: mut new, mut warnings, managed } = edit(&old)?;
            let based_on = revision_of(&new)?;
            if based_on.is_some_and(|revision| revision != current.revision) {
                return Err(Status::modified(&self.resource.group, &self.resource.plural, &key.name));
            }
            self.check_unconditional(based_on, subresource)?;
            warnings.extend(self.prepare(&old, &mut new, subresource, managed, dry_run)?);
            if !schema::differs(&old, &new) && self.resource.is_settled(&current) {
                store.settled(current.revision).await?;
                return Ok((if dry_run { Outcome::Dry(old) } else { Outcome::Stored(current) }, warnings));
            }
            if dry_run {
                return Ok((Outcome::Dry(new), warnings));
            }
            let stored = self.resource.convert(new, &self.resource.stored).map_err(Status::unconverted)?;
            let gone = is_finished(&stored, &self.resource.qualified());
            let change = if gone {
                Change::Delete { expected: current.revision }
            } else {
                Change::Replace { expected: current.revision, draft: bounded(&stored)? }
            };
            let committed = match store.commit(&self.resource.collection, &key, change) {
                Ok(committed) => committed,
                Err(Refusal::Changed) if based_on.is_none() => continue,
                Err(Refusal::Changed) => {
                    return Err(Status::modified(&self.resource.group, &self.resource.plural, &key.name));
                }
                Err(Refusal::Failed(error)) => return Err(error.into()),
                Err(other) => return Err(Status::internal(format!("{other:?}"))),
            };
            self.mark_complete(&committed);
            self.server.committed(&self.resource, Some(&current), &committed, gone);
            store.settled(committed.revision).await?;
            if gone {
                // The last finalizer went, and so did the object; the answer is how it would have been without.
                let mut last = self.resource.convert(stored, &self.version.api_version).map_err(Status::unconverted)?;
                if let Some(metadata) = metadata_of(&mut last) {
                    metadata.insert("resourceVersion".into(), current.revision.to_string().into());
                }
                return Ok((Outcome::Dry(last), warnings));
            }
            return Ok((Outcome::Stored(committed), warnings));
        }
        Err(Status::modified(&self.resource.group, &self.resource.plural, &key.name))
    }

    /// What was just made complete by the schema that it is stored under need not be looked at again when it is read.
    pub(super) fn mark_complete(&self, object: &Object) {
        if self.resource.stored == self.version.api_version {
            object.mark_complete(self.version.fingerprint());
        }
    }

    /// Custom resources and Leases are only replaced by somebody who says what he read.
    fn check_unconditional(&self, based_on: Option<u64>, subresource: &str) -> Result<(), Status> {
        let strict = self.resource.custom || self.resource.plural == "leases";
        if based_on.is_none() && strict && self.verb == Verb::Update && subresource != "scale" {
            let error = FieldError {
                path: String::from("metadata.resourceVersion"),
                kind: FieldErrorKind::Invalid,
                bad_value: Some(Value::from(0)),
                detail: String::from("must be specified for an update"),
            };
            let Resource { group, plural, .. } = &*self.resource;
            return Err(Status::invalid(group, plural, &self.path.name, &[error]));
        }
        Ok(())
    }

    /// Refuses an object, with what is wrong with it. A built-in kind whose fields have the wrong types, and metadata like
    /// that, were not even read.
    pub(super) fn refuse(&self, name: &str, errors: &[FieldError]) -> Status {
        let definition = self.resource.kind == "CustomResourceDefinition";
        let unread = |error: &&FieldError| {
            let own = !(self.resource.custom || definition && error.path.contains("openAPIV3Schema"))
                || error.path.starts_with("metadata");
            own && (error.kind == FieldErrorKind::TypeInvalid || error.detail.contains("must be of type byte"))
        };
        let Resource { group, kind, .. } = &*self.resource;
        let Some(error) = errors.iter().find(unread) else { return Status::invalid(group, kind, name, errors) };
        let why = format!("{kind} in version {:?} cannot be handled as a {kind}: {error}", self.version.name);
        match (self.verb, BodyForm::of(&self.headers)) {
            (Verb::Patch, BodyForm::ApplyPatch) => Status::new(500, "", why),
            (Verb::Patch, _) => {
                let body = String::from_utf8_lossy(&self.body);
                let error = FieldError::invalid("patch", body.as_ref(), why);
                Status::invalid("", "", "", std::slice::from_ref(&error))
            }
            _ => Status::bad_request(why),
        }
    }

    pub(super) fn invalid(&self, errors: &[FieldError]) -> Status {
        Status::invalid(&self.resource.group, &self.resource.kind, &self.path.name, errors)
    }

    /// Makes of a wanted object the one to store, and checks it.
    fn prepare(
        &self,
        old: &Value,
        new: &mut Value,
        subresource: &str,
        managed: bool,
        dry_run: bool,
    ) -> Result<Vec<String>, Status> {
        self.keep_identity(old, new)?;
        keep_parts(old, new, subresource, &self.version, self.resource.custom);
        let schema = self.version.schema();
        schema.default(new);
        kinds::complete(&self.resource, new);
        // Whoever asks owns what he asks for, not what the server and its hooks make of it.
        if !managed {
            let part = (!subresource.is_empty()).then_some(subresource);
            schema::track_update(self.kind(), Some(old), new, &self.manager(), part, &now());
        }
        let managers = new.pointer("/metadata/managedFields").cloned();
        kinds::before_update(self, old, new, subresource);
        let told = new.pointer("/metadata/managedFields").cloned();
        let managers = if told == managers { managers } else { told };
        let mut warnings = self.admit(Operation::Update, Some(old), new, dry_run)?;
        self.keep_identity(old, new)?;
        // Hooks have no say in who owns what.
        if let Some(metadata) = metadata_of(new) {
            set(metadata, "managedFields", managers);
        }
        set_generation(old, new);
        let mut errors = self.check_metadata(new);
        errors.extend(new_finalizers(old, new).map(twice).into_iter().flatten());
        errors.extend(self.check_schema(new, Some(old)));
        errors.extend(kinds::check_update(self, old, new));
        if !errors.is_empty() {
            return Err(self.refuse(&self.path.name, &errors));
        }
        warnings.extend(self.validate(Operation::Update, Some(old), new, dry_run)?);
        Ok(warnings)
    }

    /// What a client may not change stays as it was.
    fn keep_identity(&self, old: &Value, new: &mut Value) -> Result<(), Status> {
        let version = self.version.api_version.clone();
        let kind = self.resource.kind.clone();
        if let Some(fields) = fields_of(new) {
            fields.insert("apiVersion".into(), version.into());
            fields.insert("kind".into(), kind.into());
        }
        let before = old.get("metadata").and_then(Value::as_object);
        let Some(metadata) = metadata_of(new) else {
            return Err(Status::bad_request("the object has no metadata"));
        };
        let kept = |name: &str| before.and_then(|before| before.get(name)).cloned();
        if let Some(uid) = metadata.get("uid").and_then(Value::as_str).filter(|uid| !uid.is_empty())
            && kept("uid").as_ref().and_then(Value::as_str) != Some(uid)
        {
            if self.verb == Verb::Patch {
                return Err(self.invalid(&twice(FieldError::invalid("metadata.uid", uid, "field is immutable"))));
            }
            let had = kept("uid").and_then(|uid| uid.as_str().map(str::to_owned)).unwrap_or_default();
            return Err(Status::conflict(
                &self.resource.group,
                &self.resource.plural,
                &self.path.name,
                format!(
                    "StorageError: invalid object, Code: 4, Key: {}, ResourceVersion: 0, AdditionalErrorMsg: Precondition \
                     failed: UID in precondition: {uid}, UID in object meta: {had}",
                    self.storage_key()
                ),
            ));
        }
        let deletion = metadata
            .get("deletionTimestamp")
            .filter(|at| !at.is_null() && Some(*at) != kept("deletionTimestamp").as_ref());
        if let Some(at) = deletion {
            let error = FieldError::invalid("metadata.deletionTimestamp", at.clone(), "field is immutable");
            return Err(self.invalid(&twice(error)));
        }
        for name in [
            "name",
            "namespace",
            "uid",
            "creationTimestamp",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "generation",
            "generateName",
            "resourceVersion",
        ] {
            set(metadata, name, kept(name));
        }
        metadata.shift_remove("selfLink");
        if !metadata.contains_key("managedFields") {
            set(metadata, "managedFields", kept("managedFields"));
        }
        Ok(())
    }

    /// Where upstream keeps the object in etcd, for the refusals that name it.
    fn storage_key(&self) -> String {
        let Resource { group, plural, custom, .. } = &*self.resource;
        let group = if *custom { format!("{group}/") } else { String::new() };
        let namespace =
            if self.path.namespace.is_empty() { String::new() } else { format!("{}/", self.path.namespace) };
        format!("/registry/{group}{plural}/{namespace}{}", self.path.name)
    }

    pub(super) fn check_metadata(&self, object: &Value) -> Vec<FieldError> {
        let rule = schema::NameRule::of(&self.resource.group, &self.resource.kind);
        schema::validate_object_meta_named(
            object.get("metadata").unwrap_or(&Value::Null),
            self.resource.namespaced,
            rule,
        )
    }

    /// What the schema has against an object; of metadata only its types, because the rest is looked at apart.
    pub(super) fn check_schema(&self, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
        let mut errors = self.version.schema().validate(object, old);
        errors.retain(|error| !error.path.starts_with("metadata.") || error.kind == FieldErrorKind::TypeInvalid);
        if kinds::has_a_say(&self.resource) {
            // What these lack or have twice is told with the rest that is wrong with them.
            errors.retain(|error| !matches!(error.kind, FieldErrorKind::Required | FieldErrorKind::Duplicate));
        }
        errors
    }

    /// Lets the hooks of the options see a change.
    pub(super) fn admit(
        &self,
        operation: Operation,
        old: Option<&Value>,
        object: &mut Value,
        dry_run: bool,
    ) -> Result<Vec<String>, Status> {
        let hooks = &self.server.inner.options.admission;
        if hooks.is_empty() && !self.server.has_webhooks(Phase::Mutating) {
            return Ok(Vec::new());
        }
        let request = self.admission_request(operation, old, object, dry_run);
        let mut warnings = Vec::new();
        for hook in hooks {
            warnings.extend(hook.admit(&request, object)?);
        }
        if self.server.has_webhooks(Phase::Mutating) {
            warnings.extend(self.server.ask_mutating(&self.resource, &request, object)?);
        }
        Ok(warnings)
    }

    /// Lets the hooks of the options refuse what the schema has accepted.
    pub(super) fn validate(
        &self,
        operation: Operation,
        old: Option<&Value>,
        object: &Value,
        dry_run: bool,
    ) -> Result<Vec<String>, Status> {
        if self.resource.group == rbac::GROUP {
            let (plural, namespace) = (&self.resource.plural, &self.path.namespace);
            self.server.confirm_no_escalation(&self.user, plural, namespace, old, object)?;
        }
        let hooks = &self.server.inner.options.admission;
        let (policies, webhooks) = (self.server.has_policies(), self.server.has_webhooks(Phase::Validating));
        if hooks.is_empty() && !policies && !webhooks {
            return Ok(Vec::new());
        }
        let request = self.admission_request(operation, old, object, dry_run);
        hooks.iter().try_for_each(|hook| hook.validate(&request, object))?;
        let mut warnings = Vec::new();
        if policies {
            warnings.extend(self.server.ask_policies(&self.resource, &request, object)?);
        }
        if webhooks {
            warnings.extend(self.server.ask_validating(&self.resource, &request, object)?);
        }
        Ok(warnings)
    }

    /// The options of a request, as those who are asked about it see them.
    fn admission_options(&self, operation: Operation, dry_run: bool) -> Value {
        let kind = match operation {
            Operation::Create => "CreateOptions",
            Operation::Update => "UpdateOptions",
            Operation::Delete => "DeleteOptions",
        };
        let mut options = Map::new();
        options.insert("kind".into(), kind.into());
        options.insert("apiVersion".into(), "meta.k8s.io/v1".into());
        if dry_run {
            options.insert("dryRun".into(), vec!["All"].into());
        }
        let told = ["fieldManager", "fieldValidation"].into_iter().filter(|_| operation != Operation::Delete);
        for (name, value) in told.filter_map(|name| Some((name, self.query.get(name)?))) {
            options.insert(name.into(), value.into());
        }
        Value::Object(options)
    }

    fn admission_request(
        &self,
        operation: Operation,
        old: Option<&Value>,
        object: &Value,
        dry_run: bool,
    ) -> AdmissionRequest {
        AdmissionRequest {
            operation,
            group: self.resource.group.clone(),
            version: self.version.name.clone(),
            kind: self.resource.kind.clone(),
            resource: self.resource.plural.clone(),
            subresource: self.path.subresource.clone(),
            namespace: self.path.namespace.clone(),
            name: object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or(&self.path.name).to_owned(),
            old: old.cloned(),
            user: self.user.clone(),
            dry_run,
            options: self.admission_options(operation, dry_run),
        }
    }
}

/// Upstream looks at an object's metadata both as such and as a part of its kind, and tells what it finds each time.
fn twice(error: FieldError) -> [FieldError; 2] {
    [error.clone(), error]
}

/// How large an object may be: what etcd takes in one request.
const OBJECT_LIMIT: usize = 1536 << 10;

/// Lays an object out, unless it is larger than etcd would take it. The words are etcd's.
pub(super) fn bounded(object: &Value) -> Result<Draft, Status> {
    let draft = Draft::new(object);
    if draft.len() > OBJECT_LIMIT {
        return Err(Status::new(500, "", "etcdserver: request is too large"));
    }
    Ok(draft)
}

/// `metadata.resourceVersion` as a number.
pub(super) fn revision_of(object: &Value) -> Result<Option<u64>, Status> {
    match object.pointer("/metadata/resourceVersion") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.is_empty() || text == "0" => Ok(None),
        Some(Value::String(text)) => text
            .parse()
            .map(Some)
            .map_err(|_| Status::new(500, "", format!("strconv.ParseUint: parsing {text:?}: invalid syntax"))),
        Some(_) => Err(Status::bad_request("metadata.resourceVersion must be a string")),
    }
}

/// Each of an object's parts is written through its own subresource only.
fn keep_parts(old: &Value, new: &mut Value, subresource: &str, version: &crate::catalog::Version, custom: bool) {
    let before = old.as_object();
    match subresource {
        "status" | "approval" => {
            let status = new.get("status").cloned();
            let labels = ["labels", "annotations", "finalizers", "managedFields"]
                .map(|name| (name, new.pointer(&format!("/metadata/{name}")).cloned()));
            *new = old.clone();
            if let Some(fields) = fields_of(new) {
                set(fields, "status", status);
            }
            // Custom resources keep all of their metadata; a kubelet annotates its Node through the status.
            for (name, value) in labels {
                if (!custom || name == "managedFields")
                    && let Some(metadata) = metadata_of(new)
                {
                    set(metadata, name, value);
                }
            }
        }
        "finalize" => {
            let finalizers = new.pointer("/spec/finalizers").cloned();
            *new = old.clone();
            if let Some(spec) = new.get_mut("spec").and_then(Value::as_object_mut) {
                set(spec, "finalizers", finalizers);
            }
        }
        _ if version.status => {
            if let Some(fields) = fields_of(new) {
                set(fields, "status", before.and_then(|before| before.get("status")).cloned());
            }
        }
        _ => {}
    }
}

/// The generation counts changes of what is wanted: everything but metadata and status.
fn set_generation(old: &Value, new: &mut Value) {
    let Some(generation) = old.pointer("/metadata/generation").and_then(Value::as_i64) else { return };
    let wanted = |name: &str| !matches!(name, "metadata" | "status" | "apiVersion" | "kind");
    let (before, after) = (old.as_object(), new.as_object());
    let count =
        |fields: Option<&Map<String, Value>>| fields.into_iter().flatten().filter(|(name, _)| wanted(name)).count();
    let changed = count(before) != count(after)
        || before
            .into_iter()
            .flatten()
            .any(|(name, value)| wanted(name) && after.and_then(|after| after.get(name)) != Some(value));
    if let Some(metadata) = metadata_of(new) {
        metadata.insert("generation".into(), (generation + i64::from(changed)).into());
    }
}

/// Nothing may begin to hold on to an object that is being deleted.
fn new_finalizers(old: &Value, new: &Value) -> Option<FieldError> {
    old.pointer("/metadata/deletionTimestamp").filter(|at| !at.is_null())?;
    let of = |object: &Value| -> Vec<String> {
        let list =
            object.pointer("/metadata/finalizers").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        list.iter().filter_map(|finalizer| finalizer.as_str().map(str::to_owned)).collect()
    };
    let before = of(old);
    let added: Vec<String> = of(new).into_iter().filter(|finalizer| !before.contains(finalizer)).collect();
    let list = added.iter().map(|finalizer| format!("{finalizer:?}")).collect::<Vec<_>>().join(", ");
    (!added.is_empty()).then(|| FieldError {
        path: String::from("metadata.finalizers"),
        kind: FieldErrorKind::Forbidden,
        bad_value: None,
        detail: format!(
            "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{list}}}"
        ),
    })
}

/// Whether nothing keeps an object that is being deleted any more.
pub(crate) fn is_finished(object: &Value, resource: &str) -> bool {
    let empty = |path: &str| object.pointer(path).and_then(Value::as_array).is_none_or(Vec::is_empty);
    let deleting = object.pointer("/metadata/deletionTimestamp").is_some_and(|at| !at.is_null());
    let grace = object.pointer("/metadata/deletionGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(0);
    deleting && grace == 0 && empty("/metadata/finalizers") && (resource != "namespaces" || empty("/spec/finalizers"))
}
