//! DELETE: of one object, of many, and by eviction.

use super::change::{FOREGROUND, ORPHAN, Outcome, is_finished, metadata_of, set};
use super::{Call, now};
use crate::catalog::Resource;
use crate::kinds;
use crate::options::Operation;
use crate::response::{self, ResponseBody};
use crate::schema::{self, FieldError};
use crate::server::ApiServer;
use crate::status::Status;
use crate::store::{Change, Draft, Key, Object, Refusal};
use http::Response;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use std::sync::{Arc, PoisonError};

/// What becomes of an object's dependents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    Background,
    Foreground,
    Orphan,
}

/// How something is to be deleted.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeleteOptions {
    pub policy: Option<Policy>,
    pub grace: Option<i64>,
    pub uid: Option<String>,
    pub revision: Option<u64>,
    pub dry_run: bool,
}

/// What a deletion ended with.
pub(crate) enum Deleted {
    /// It is gone; this is what it was.
    Gone(Arc<Object>),
    /// It waits for its finalizers.
    Waiting(Arc<Object>),
    Dry(Value, bool),
}

impl DeleteOptions {
    fn read(body: &Value) -> Result<DeleteOptions, Status> {
        let mut options = DeleteOptions::default();
        if body.is_null() {
            return Ok(options);
        }
        if !body.is_object() {
            return Err(Status::bad_request("the body must be DeleteOptions"));
        }
        if let Some(kind) =
            body.get("kind").and_then(Value::as_str).filter(|kind| !matches!(*kind, "" | "DeleteOptions"))
        {
            let version = body.get("apiVersion").and_then(Value::as_str).unwrap_or("v1");
            let why = "is registered for version";
            return Err(Status::bad_request(format!(
                "no kind {kind:?} {why} {version:?} in scheme \"pkg/runtime/scheme.go:111\""
            )));
        }
        options.policy = policy(
            body.get("propagationPolicy").and_then(Value::as_str),
            body.get("orphanDependents").and_then(Value::as_bool),
        )?;
        options.grace = body.get("gracePeriodSeconds").and_then(Value::as_i64);
        options.uid = body.pointer("/preconditions/uid").and_then(Value::as_str).map(str::to_owned);
        if let Some(text) = body.pointer("/preconditions/resourceVersion").and_then(Value::as_str) {
            let invalid =
                |_| Status::bad_request(format!("preconditions.resourceVersion must be a number, not {text:?}"));
            options.revision = Some(text.parse().map_err(invalid)?);
        }
        let dry_run = body.get("dryRun").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        if dry_run.iter().any(|item| item != "All") {
            let error = FieldError::not_supported("dryRun", dry_run.to_vec(), ["All"]);
            return Err(Status::invalid_options("Delete", &[error]));
        }
        options.dry_run = !dry_run.is_empty();
        Ok(options)
    }
}

fn policy(name: Option<&str>, orphan: Option<bool>) -> Result<Option<Policy>, Status> {
    match (name, orphan) {
        (None | Some(""), None) => Ok(None),
        (None | Some(""), Some(orphan)) => Ok(Some(if orphan { Policy::Orphan } else { Policy::Background })),
        (Some(name), Some(_)) => Err(Status::invalid_options(
            "Delete",
            &[FieldError::invalid(
                "propagationPolicy",
                name,
                "orphanDependents and deletionPropagation cannot be both set",
            )],
        )),
        (Some("Background"), _) => Ok(Some(Policy::Background)),
        (Some("Foreground"), _) => Ok(Some(Policy::Foreground)),
        (Some("Orphan"), _) => Ok(Some(Policy::Orphan)),
        (Some(other), _) => Err(Status::invalid_options(
            "Delete",
            &[FieldError::not_supported("propagationPolicy", other, ["Foreground", "Background", "Orphan", "nil"])],
        )),
    }
}

/// One deletion, by whoever wants it: a client, the garbage collector, the end of a namespace.
pub(crate) fn delete_object(
    server: &ApiServer,
    resource: &Arc<Resource>,
    key: &Key,
    options: &DeleteOptions,
    admit: impl Fn(&Value) -> Result<(), Status>,
) -> Result<Deleted, Status> {
    let store = &server.inner.options.store;
    let not_found = || Status::not_found(&resource.group, &resource.plural, &key.name);
    for _ in 0..64 {
        let current = store.get(&resource.collection, key).ok_or_else(not_found)?;
        let conflict = |why: String| Status::conflict(&resource.group, &resource.kind, &key.name, why);
        if let Some(uid) = options.uid.as_deref().filter(|uid| *uid != &*current.meta.uid) {
            return Err(conflict(format!(
                "the UID in the precondition ({uid}) does not match the UID in record ({}). The object might have been deleted \
                 and then recreated",
                current.meta.uid
            )));
        }
        if let Some(revision) = options.revision.filter(|revision| *revision != current.revision) {
            return Err(conflict(format!(
                "the ResourceVersion in the precondition ({revision}) does not match the ResourceVersion in record ({}). The \
                 object might have been modified",
                current.revision
            )));
        }
        kinds::check_delete(resource, &current)?;
        let old = current.value();
        admit(&old)?;
        let marked = mark(resource, &old, options);
        if options.dry_run {
            let gone = is_finished(&marked, &resource.qualified());
            return Ok(Deleted::Dry(marked, gone));
        }
        if is_finished(&marked, &resource.qualified()) {
            match store.commit(&resource.collection, key, Change::Delete { expected: current.revision }) {
                Ok(gone) => {
                    server.committed(resource, Some(&current), &gone, true);
                    return Ok(Deleted::Gone(gone));
                }
                Err(Refusal::Failed(error)) => return Err(error.into()),
                Err(_) => continue,
            }
        }
        if !schema::differs(&old, &marked) {
            return Ok(Deleted::Waiting(current));
        }
        match store.commit(
            &resource.collection,
            key,
            Change::Replace { expected: current.revision, draft: Draft::new(&marked) },
        ) {
            Ok(waiting) => {
                server.committed(resource, Some(&current), &waiting, false);
                return Ok(Deleted::Waiting(waiting));
            }
            Err(Refusal::Failed(error)) => return Err(error.into()),
            Err(_) => {}
        }
    }
    Err(Status::modified(&resource.group, &resource.plural, &key.name))
}

/// The object as it is when its deletion has begun.
fn mark(resource: &Resource, old: &Value, options: &DeleteOptions) -> Value {
    let mut object = old.clone();
    let deleting = object.pointer("/metadata/deletionTimestamp").is_some_and(|at| !at.is_null());
    let grace = kinds::grace(resource, old, options.grace);
    let Some(metadata) = metadata_of(&mut object) else { return object };
    let mut finalizers: Vec<Value> = metadata.get("finalizers").and_then(Value::as_array).cloned().unwrap_or_default();
    if let Some(policy) = options.policy {
        finalizers.retain(|finalizer| finalizer != FOREGROUND && finalizer != ORPHAN);
        match policy {
            Policy::Foreground => finalizers.push(FOREGROUND.into()),
            Policy::Orphan => finalizers.push(ORPHAN.into()),
            Policy::Background => {}
        }
    }
    set(metadata, "finalizers", (!finalizers.is_empty()).then(|| finalizers.into()));
    let remaining = metadata.get("deletionGracePeriodSeconds").and_then(Value::as_i64);
    // Deletion begins once; only a shorter grace changes it after that.
    if !deleting || remaining.is_some_and(|remaining| grace < remaining) {
        let at = Timestamp::now().saturating_add(SignedDuration::from_secs(grace)).unwrap_or(Timestamp::MAX);
        let at = if grace == 0 { now() } else { at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string() };
        metadata.insert("deletionTimestamp".into(), at.into());
        if !kinds::is_namespace(resource) {
            metadata.insert("deletionGracePeriodSeconds".into(), grace.into());
        }
        if !deleting && let Some(generation) = metadata.get("generation").and_then(Value::as_i64) {
            metadata.insert("generation".into(), (generation + 1).into());
        }
    }
    kinds::mark_deleted(resource, &mut object);
    object
}

impl Call<'_> {
    fn delete_options(&self) -> Result<DeleteOptions, Status> {
        let body = if self.body.trim_ascii().is_empty() { Value::Null } else { self.decode()?.value };
        let mut options = DeleteOptions::read(&body)?;
        if let Some(policy) = policy(self.query.get("propagationPolicy"), self.query.flag("orphanDependents"))? {
            options.policy = Some(policy);
        }
        if let Some(grace) = self.query.number("gracePeriodSeconds")? {
            options.grace = Some(grace);
        }
        options.dry_run |= self.query.dry_run("Delete")?;
        Ok(options)
    }

    fn delete_one(&self, key: &Key, options: &DeleteOptions) -> Result<Deleted, Status> {
        delete_object(self.server, &self.resource, key, options, |old| {
            let mut shown = self.resource.convert(old.clone(), &self.version.api_version).map_err(Status::internal)?;
            let before = shown.clone();
            self.admit(Operation::Delete, Some(&before), &mut shown, options.dry_run)?;
            let warnings = self.validate(Operation::Delete, Some(&before), &before, options.dry_run)?;
            self.complaints.lock().unwrap_or_else(PoisonError::into_inner).extend(warnings);
            Ok(())
        })
    }

    pub(super) async fn delete(&self) -> Result<Response<ResponseBody>, Status> {
        self.form()?;
        let options = self.delete_options()?;
        let store = &self.server.inner.options.store;
        match self.delete_one(&self.key(), &options)? {
            Deleted::Gone(object) => {
                store.settled(object.revision).await?;
                if kinds::is_pod(&self.resource) {
                    // A pod is always told to go before it goes.
                    let mut last = self.resource.present(&object, &self.version).map_err(Status::internal)?;
                    if let Some(metadata) = metadata_of(&mut last) {
                        metadata.entry("deletionTimestamp").or_insert_with(|| now().into());
                        metadata.insert("deletionGracePeriodSeconds".into(), 0.into());
                    }
                    return self.render(200, &Outcome::Dry(last), &[]);
                }
                if kinds::shows_deleted(&self.resource) {
                    return self.render(200, &Outcome::Stored(object), &[]);
                }
                Ok(response::value(200, &self.success(&object.meta.uid)))
            }
            Deleted::Waiting(object) => {
                store.settled(object.revision).await?;
                self.render(200, &Outcome::Stored(object), &[])
            }
            Deleted::Dry(object, true) if !kinds::shows_deleted(&self.resource) => {
                let uid = object.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default();
                Ok(response::value(200, &self.success(uid)))
            }
            Deleted::Dry(object, _) => {
                let object = self.resource.convert(object, &self.version.api_version).map_err(Status::internal)?;
                self.render(200, &Outcome::Dry(object), &[])
            }
        }
    }

    fn success(&self, uid: &str) -> Value {
        let mut details = json!({"name": self.path.name});
        if let Some(fields) = details.as_object_mut() {
            if !self.resource.group.is_empty() {
                fields.insert("group".into(), self.resource.group.as_str().into());
            }
            fields.insert("kind".into(), self.resource.plural.as_str().into());
            fields.insert("uid".into(), uid.into());
        }
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
    }

    pub(super) async fn delete_collection(&self) -> Result<Response<ResponseBody>, Status> {
        let form = self.form()?;
        let options = self.delete_options()?;
        let store = &self.server.inner.options.store;
        let mut revision = 0;
        // What was there is shown as it was.
        let there = self.selected()?;
        let listed = store.durable();
        for object in &there {
            match self.delete_one(&object.key, &options) {
                Ok(Deleted::Gone(object) | Deleted::Waiting(object)) => revision = revision.max(object.revision),
                Ok(Deleted::Dry(..)) => {}
                Err(status) if status.code == 404 => {}
                Err(status) => return Err(status),
            }
        }
        store.settled(revision).await?;
        self.render_list(there, &self.list_metadata(listed), form)
    }

    /// POST to a pod's `eviction`: a deletion that disruption budgets may refuse.
    pub(super) async fn evict(&self) -> Result<Response<ResponseBody>, Status> {
        let body = self.decode()?.value;
        let mut options = DeleteOptions::read(body.get("deleteOptions").unwrap_or(&Value::Null))?;
        options.dry_run |= self.query.dry_run("Delete")?;
        let store = &self.server.inner.options.store;
        let pod = store.get(&self.resource.collection, &self.key()).ok_or_else(|| self.not_found())?;
        if let Some(budget) = kinds::blocking_budget(store, &pod) {
            let mut status = Status::new(
                429,
                "TooManyRequests",
                "Cannot evict pod as it would violate the pod's disruption budget.",
            );
            status = status.with_cause("DisruptionBudget", budget, "");
            return Err(status);
        }
        if let Deleted::Gone(object) | Deleted::Waiting(object) = self.delete_one(&self.key(), &options)? {
            store.settled(object.revision).await?;
        }
        Ok(response::value(
            201,
            &json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}),
        ))
    }
}
