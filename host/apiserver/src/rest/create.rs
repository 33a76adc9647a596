//! POST: making an object.

use super::change::{Outcome, bounded, fields_of, metadata_of};
use super::{Call, now};
use crate::kinds;
use crate::options::Operation;
use crate::response::ResponseBody;
use crate::schema;
use crate::status::Status;
use crate::store::{Change, Key, Refusal};
use http::Response;
use rand::Rng;
use serde_json::Value;

/// The characters of generated names: no vowels, so no words.
const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
/// How long a generated name may be, without its random end.
const GENERATED_BASE: usize = 58;
/// How often another random end is tried.
const GENERATED_ATTEMPTS: usize = 8;

impl Call<'_> {
    pub(super) async fn create(&self) -> Result<Response<ResponseBody>, Status> {
        self.form()?;
        self.check_manager()?;
        self.query.dry_run(self.options())?;
        self.query.field_validation(self.options())?;
        let (object, warnings) = self.read_object()?;
        let (outcome, warnings) = self.create_object(object, warnings, None).await?;
        self.render(201, &outcome, &warnings)
    }

    /// Makes an object. With `managed`, its managed fields are right already.
    pub(super) async fn create_object(
        &self,
        mut object: Value,
        mut warnings: Vec<String>,
        managed: Option<()>,
    ) -> Result<(Outcome, Vec<String>), Status> {
        let dry_run = self.query.dry_run(self.options())?;
        let text =
            |object: &Value, path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
        self.check_namespace(&text(&object, "/metadata/namespace"))?;
        if !text(&object, "/metadata/resourceVersion").is_empty() {
            return Err(Status::new(500, "", "resourceVersion should not be set on objects to be created"));
        }
        self.check_target_namespace(&text(&object, "/metadata/name"))?;
        let name = text(&object, "/metadata/name");
        let base = text(&object, "/metadata/generateName");
        if name.is_empty() && base.is_empty() {
            // What could not even be read is told first.
            let mut errors = self.version.schema().validate(&object, None);
            errors.retain(|error| error.kind == schema::FieldErrorKind::TypeInvalid);
            if errors.iter().any(|error| !self.resource.custom || error.path.starts_with("metadata")) {
                return Err(self.refuse("", &errors));
            }
            return Err(self.named(
                "",
                &[schema::FieldError {
                    path: String::from("metadata.name"),
                    kind: schema::FieldErrorKind::Required,
                    bad_value: None,
                    detail: String::from("name or generateName is required"),
                }],
            ));
        }
        self.set_identity(&mut object);
        if self.version.status
            && !kinds::is_born_with_status(&self.resource)
            && let Some(fields) = fields_of(&mut object)
        {
            fields.shift_remove("status");
        }
        let schema = self.version.schema();
        schema.default(&mut object);
        kinds::complete(&self.resource, &mut object);
        // Whoever asks owns what he asks for, not what the server and its hooks make of it.
        if managed.is_none() {
            schema::track_update(schema, None, &mut object, &self.manager(), None, &now());
        }
        for attempt in 0..GENERATED_ATTEMPTS {
            let mut object = object.clone();
            let name = if name.is_empty() { generate(&base) } else { name.clone() };
            if let Some(metadata) = metadata_of(&mut object) {
                metadata.insert("name".into(), name.as_str().into());
            }
            kinds::before_create(self, &mut object);
            let mut admitted = self.admit(Operation::Create, None, &mut object, dry_run)?;
            let mut errors = self.check_metadata(&object);
            errors.extend(self.check_schema(&object, None));
            errors.extend(kinds::check_create(self, &object));
            if !errors.is_empty() {
                return Err(self.refuse(&name, &errors));
            }
            admitted.extend(self.validate(Operation::Create, None, &object, dry_run)?);
            let key = Key::new(&self.path.namespace, &name);
            let store = &self.server.inner.options.store;
            let exists = || {
                let mut status = Status::already_exists(&self.resource.group, &self.resource.plural, &name);
                if store.get(&self.resource.collection, &key).is_some_and(|object| object.meta.deleting) {
                    status.message = format!("object is being deleted: {}", status.message);
                }
                status
            };
            if dry_run {
                if store.get(&self.resource.collection, &key).is_some() {
                    return Err(exists());
                }
                warnings.extend(admitted);
                return Ok((Outcome::Dry(object), warnings));
            }
            let stored = self.resource.convert(object, &self.resource.stored).map_err(Status::internal)?;
            let committed = match store.commit(&self.resource.collection, &key, Change::Create(bounded(&stored)?)) {
                Ok(committed) => committed,
                Err(Refusal::Exists) if attempt + 1 < GENERATED_ATTEMPTS && !base.is_empty() => continue,
                Err(Refusal::Exists) => return Err(exists()),
                Err(Refusal::NamespaceGone) => return Err(Status::not_found("", "namespaces", &key.namespace)),
                Err(Refusal::NamespaceTerminating) => return Err(self.terminating(&name)),
                Err(Refusal::Changed) => return Err(Status::internal("the object changed while it was made")),
                Err(Refusal::Failed(error)) => return Err(error.into()),
            };
            warnings.extend(admitted);
            self.mark_complete(&committed);
            self.server.committed(&self.resource, None, &committed, false);
            store.settled(committed.revision).await?;
            return Ok((Outcome::Stored(committed), warnings));
        }
        Err(Status::already_exists(&self.resource.group, &self.resource.plural, &base))
    }

    fn named(&self, name: &str, errors: &[schema::FieldError]) -> Status {
        Status::invalid(&self.resource.group, &self.resource.kind, name, errors)
    }

    fn terminating(&self, name: &str) -> Status {
        let namespace = &self.path.namespace;
        let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
        Status::forbidden(&self.resource.group, &self.resource.plural, name, why).with_cause(
            "NamespaceTerminating",
            format!("namespace {namespace} is being terminated"),
            "metadata.namespace",
        )
    }

    /// The namespace must be there before anything else is looked at, as Kubernetes' admission has it.
    fn check_target_namespace(&self, name: &str) -> Result<(), Status> {
        if !self.resource.namespaced {
            return Ok(());
        }
        let store = &self.server.inner.options.store;
        match store.get("namespaces", &Key::new("", &self.path.namespace)) {
            None => Err(Status::not_found("", "namespaces", &self.path.namespace)),
            Some(namespace) if namespace.meta.deleting => Err(self.terminating(name)),
            Some(_) => Ok(()),
        }
    }

    /// Gives a new object what the server decides about it.
    fn set_identity(&self, object: &mut Value) {
        let namespace = self.path.namespace.clone();
        let (namespaced, custom) = (self.resource.namespaced, self.resource.custom);
        let counted = custom || kinds::has_generation(&self.resource);
        let Some(metadata) = metadata_of(object) else { return };
        for name in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "resourceVersion"] {
            metadata.shift_remove(name);
        }
        if namespaced {
            metadata.insert("namespace".into(), namespace.into());
        } else {
            metadata.shift_remove("namespace");
        }
        metadata.insert("uid".into(), uuid::Uuid::new_v4().to_string().into());
        metadata.insert("creationTimestamp".into(), now().into());
        if counted {
            metadata.insert("generation".into(), 1.into());
        }
    }
}

fn generate(base: &str) -> String {
    let mut name: String = base.chars().take(GENERATED_BASE).collect();
    let mut random = rand::rng();
    for _ in 0..5 {
        let at = random.random_range(0..LETTERS.len());
        name.push(LETTERS.get(at).copied().unwrap_or(b'x').into());
    }
    name
}
