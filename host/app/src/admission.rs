//! Cluster API's defaulting and validation, in the embedded API server: what upstream has webhooks for.

use capstan_api::{Object, admission};
use capstan_apiserver::schema::{FieldError, FieldErrorKind};
use capstan_apiserver::{Admission, AdmissionRequest, Operation, Status};
use serde_json::Value;

/// Whether a whole spec could not be read because something in it has another type than the schema says.
fn is_of_the_wrong_type(error: &admission::FieldError) -> bool {
    let words = ["invalid type:", "invalid value:", "missing field", "unknown variant", "unknown field"];
    error.path == "spec" && words.iter().any(|start| error.message.starts_with(start))
}

/// The hook.
pub struct CoreAdmission;

impl Admission for CoreAdmission {
    fn admit(&self, request: &AdmissionRequest, object: &mut Value) -> Result<Vec<String>, Status> {
        if !request.subresource.is_empty() {
            return Ok(Vec::new());
        }
        let operation = match request.operation {
            Operation::Create => admission::Operation::Create,
            Operation::Update => admission::Operation::Update,
            Operation::Delete => admission::Operation::Delete,
        };
        let old = request.old.clone().and_then(Object::from_value);
        let Some(mut new) = Object::from_value(std::mem::take(object)) else { return Ok(Vec::new()) };
        let admitted = admission::admit(operation, &mut new, old.as_ref());
        *object = new.into_value();
        let Err(errors) = admitted else { return Ok(Vec::new()) };
        // What has another type than its schema says is refused by the schema's validation, which names the field.
        let errors: Vec<_> = errors.into_iter().filter(|error| !is_of_the_wrong_type(error)).collect();
        if errors.is_empty() {
            return Ok(Vec::new());
        }
        Err({
            let errors: Vec<FieldError> = errors
                .into_iter()
                .map(|error| FieldError {
                    path: error.path,
                    kind: FieldErrorKind::Invalid,
                    bad_value: None,
                    detail: error.message,
                })
                .collect();
            Status::invalid(&request.group, &request.kind, &request.name, &errors)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(path: &str, message: &str) -> admission::FieldError {
        admission::FieldError { path: path.into(), message: message.into() }
    }

    #[test]
    fn what_the_schema_says_better_is_left_to_it() {
        assert!(is_of_the_wrong_type(&error("spec", "invalid type: string \"yes\", expected a boolean")));
        assert!(!is_of_the_wrong_type(&error("spec.topology", "managed topologies are not supported yet")));
        assert!(!is_of_the_wrong_type(&error("spec", "is needed")));
    }
}
