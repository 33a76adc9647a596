//! The scale subresource: the number of replicas, wherever a kind has it. And a pod's binding, which is alike: one field set
//! through an object of another kind.

use super::Call;
use super::Verb;
use super::change::{Edited, Outcome};
use super::patch::Patch;
use crate::catalog::Scale;
use crate::decode;
use crate::request::BodyForm;
use crate::response::{self, ResponseBody};
use crate::schema::FieldError;
use crate::selector;
use crate::status::Status;
use http::Response;
use serde_json::{Map, Value, json};

/// Sets a value at a JSON pointer, making objects on the way.
fn put(object: &mut Value, pointer: &str, value: Value) {
    let mut at = object;
    let mut parts = pointer.split('/').filter(|part| !part.is_empty()).peekable();
    while let Some(part) = parts.next() {
        let Value::Object(fields) = at else { return };
        if parts.peek().is_none() {
            fields.insert(part.to_owned(), value);
            return;
        }
        at = fields.entry(part).or_insert_with(|| Value::Object(Map::new()));
    }
}

impl Call<'_> {
    fn scale(&self) -> Result<&Scale, Status> {
        self.version.scale.as_ref().ok_or_else(Status::no_such_path)
    }

    /// The Scale of an object.
    fn scale_of(&self, object: &Value) -> Result<Value, Status> {
        let scale = self.scale()?;
        let number = |pointer: &str| object.pointer(pointer).and_then(Value::as_i64);
        let Some(replicas) = number(&scale.spec_replicas).or_else(|| (!self.resource.custom).then_some(1)) else {
            let path = scale.spec_replicas.replace('/', ".");
            return Err(Status::internal(format!("the spec replicas field {path:?} does not exist")));
        };
        let selector =
            scale.selector.as_ref().and_then(|pointer| object.pointer(pointer)).map(|selector| match selector {
                Value::String(text) => text.clone(),
                other => selector::text_of(other),
            });
        let mut metadata = Map::new();
        for name in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
            if let Some(value) = object.pointer(&format!("/metadata/{name}")) {
                metadata.insert(name.to_owned(), value.clone());
            }
        }
        let mut status = json!({"replicas": number(&scale.status_replicas).unwrap_or(0)});
        if let (Some(selector), Some(fields)) = (selector.filter(|text| !text.is_empty()), status.as_object_mut()) {
            fields.insert("selector".into(), selector.into());
        }
        Ok(
            json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata, "spec": {"replicas": replicas}, "status": status}),
        )
    }

    pub(super) async fn get_scale(&self) -> Result<Response<ResponseBody>, Status> {
        let store = &self.server.inner.options.store;
        let object = store.get(&self.resource.collection, &self.key()).ok_or_else(|| self.not_found())?;
        store.settled(object.revision).await?;
        let value = self.resource.present(&object, &self.version).map_err(Status::internal)?;
        Ok(response::value(200, &self.scale_of(&value)?))
    }

    pub(super) async fn change_scale(&self, verb: Verb) -> Result<Response<ResponseBody>, Status> {
        let pointer = self.scale()?.spec_replicas.clone();
        let patch = match verb {
            Verb::Patch if BodyForm::of(&self.headers) == BodyForm::StrategicPatch => {
                Patch::Merge(decode::json(&self.body)?.value)
            }
            Verb::Patch => self.read_patch(false)?.0,
            _ => Patch::Merge(self.decode()?.value),
        };
        let edit = |old: &Value| {
            let wanted = self.patched(&patch, &self.scale_of(old)?)?;
            let replicas = wanted.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(0);
            if replicas < 0 {
                let error = if self.resource.custom {
                    let path = self.scale()?.spec_replicas.replace('/', ".");
                    FieldError::invalid(path, replicas, "should be a non-negative integer")
                } else {
                    FieldError::invalid("spec.replicas", replicas, "must be greater than or equal to 0")
                };
                if self.resource.custom {
                    return Err(self.invalid(&[error]));
                }
                return Err(Status::invalid("autoscaling", "Scale", &self.path.name, &[error]));
            }
            let mut object = old.clone();
            put(&mut object, &pointer, replicas.into());
            let revision = wanted.pointer("/metadata/resourceVersion").cloned().filter(|revision| {
                // Only a revision that the client names itself is a condition.
                matches!(&patch, Patch::Merge(body) if body.pointer("/metadata/resourceVersion") == Some(revision))
            });
            if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
                super::change::set(metadata, "resourceVersion", revision);
            }
            Ok(Edited { object, warnings: Vec::new(), managed: false })
        };
        let (outcome, _) = self.change(edit, "scale").await?;
        let value = match outcome {
            Outcome::Stored(object) => self.resource.present(&object, &self.version).map_err(Status::internal)?,
            Outcome::Dry(value) => value,
        };
        Ok(response::value(200, &self.scale_of(&value)?))
    }

    /// POST to a pod's `binding`: the scheduler's decision.
    pub(super) async fn bind(&self) -> Result<Response<ResponseBody>, Status> {
        let binding = self.decode()?.value;
        let Some(node) = binding.pointer("/target/name").and_then(Value::as_str) else {
            return Err(Status::bad_request("target.name is required"));
        };
        let edit = |old: &Value| {
            if let Some(bound) = old.pointer("/spec/nodeName").and_then(Value::as_str).filter(|bound| !bound.is_empty())
            {
                let why = format!("pod {} is already assigned to node {bound:?}", self.path.name);
                return Err(Status::conflict("", "pods/binding", &self.path.name, why));
            }
            let mut object = old.clone();
            put(&mut object, "/spec/nodeName", node.into());
            Ok(Edited { object, warnings: Vec::new(), managed: false })
        };
        self.change(edit, "binding").await?;
        Ok(response::value(
            201,
            &json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}),
        ))
    }
}
