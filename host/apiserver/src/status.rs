//! Refusals, as Kubernetes words them: the `Status` object that clients branch on.

use crate::schema::FieldError;
use crate::store::StoreError;
use serde_json::{Map, Value, json};

/// One cause in the details of a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// A word for programs (`FieldValueInvalid`).
    pub reason: String,
    /// A sentence for people.
    pub message: String,
    /// The field it is about; empty when it is about none.
    pub field: String,
}

/// A refusal. What a client gets is the `Status` object of apimachinery's meta/v1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Status {
    /// The HTTP status.
    pub code: u16,
    /// The reason, a word for programs (`NotFound`).
    pub reason: &'static str,
    /// What a person reads.
    pub message: String,
    /// What it is about, and why exactly.
    pub details: Box<Details>,
}

/// What a refusal is about. Empty where that does not apply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// The name of the object.
    pub name: String,
    /// Its API group.
    pub group: String,
    /// Its resource, or its kind when it is about the content (as Kubernetes does it).
    pub kind: String,
    /// What is wrong with it in detail.
    pub causes: Vec<Cause>,
    /// When to come back, in seconds.
    pub retry_after: Option<u32>,
    /// Shown even when there is nothing in it.
    pub empty: bool,
}

/// The reason of an answer that is plain text instead of an object.
pub(crate) const NO_OBJECT: &str = "-";

/// `deployments.apps`, or `pods` for the core group.
pub(crate) fn qualified(resource: &str, group: &str) -> String {
    if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") }
}

impl Status {
    /// A refusal without details.
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Status {
        Status { code, reason, message: message.into(), details: Box::default() }
    }

    fn about(mut self, group: &str, kind: &str, name: &str) -> Status {
        self.details.group = group.to_owned();
        self.details.kind = kind.to_owned();
        self.details.name = name.to_owned();
        self
    }

    /// 400: the request makes no sense.
    pub fn bad_request(message: impl Into<String>) -> Status {
        Status::new(400, "BadRequest", message)
    }

    /// 401: who asks is unknown.
    pub fn unauthorized() -> Status {
        Status::new(401, "Unauthorized", "Unauthorized")
    }

    /// 403: it may not be done to this object.
    pub fn forbidden(group: &str, resource: &str, name: &str, why: impl std::fmt::Display) -> Status {
        let what = qualified(resource, group);
        let message = if name.is_empty() {
            format!("{what} is forbidden: {why}")
        } else {
            format!("{what} {name:?} is forbidden: {why}")
        };
        Status::new(403, "Forbidden", message).about(group, resource, name)
    }

    /// 404: there is no such object.
    pub fn not_found(group: &str, resource: &str, name: &str) -> Status {
        Status::new(404, "NotFound", format!("{} {name:?} not found", qualified(resource, group)))
            .about(group, resource, name)
    }

    /// 404: there is no such path.
    pub fn no_such_path() -> Status {
        Status::new(404, "NotFound", "the server could not find the requested resource")
    }

    /// 404: nobody serves anything there. Not an object: what Go's server says of a path that it has no handler for.
    pub fn no_such_page() -> Status {
        Status::new(404, NO_OBJECT, "404 page not found\n")
    }

    /// 405: not this verb on this resource.
    pub fn method_not_allowed() -> Status {
        Status::new(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
    }

    /// 406: none of the forms asked for.
    pub fn not_acceptable() -> Status {
        Status::new(
            406,
            "NotAcceptable",
            "only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf",
        )
    }

    /// 409: the name is taken.
    pub fn already_exists(group: &str, resource: &str, name: &str) -> Status {
        Status::new(409, "AlreadyExists", format!("{} {name:?} already exists", qualified(resource, group)))
            .about(group, resource, name)
    }

    /// 409: somebody else was faster.
    pub fn conflict(group: &str, resource: &str, name: &str, why: impl std::fmt::Display) -> Status {
        let message = format!("Operation cannot be fulfilled on {} {name:?}: {why}", qualified(resource, group));
        Status::new(409, "Conflict", message).about(group, resource, name)
    }

    /// 409: the object was changed since it was read.
    pub fn modified(group: &str, resource: &str, name: &str) -> Status {
        const WHY: &str = "the object has been modified; please apply your changes to the latest version and try again";
        Status::conflict(group, resource, name, WHY)
    }

    /// 410: the past is forgotten.
    pub fn expired(message: impl Into<String>) -> Status {
        Status::new(410, "Expired", message)
    }

    /// 413: too much.
    pub fn too_large(limit: usize) -> Status {
        Status::new(413, "RequestEntityTooLarge", format!("the request is larger than the limit of {limit} bytes"))
    }

    /// 415: a form the body may not have.
    pub fn unsupported_media_type(accepted: &[&str]) -> Status {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {}",
            accepted.join(", ")
        );
        Status::new(415, "UnsupportedMediaType", message)
    }

    /// 422: the object breaks rules. `kind` is the kind, not the resource.
    pub fn invalid(group: &str, kind: &str, name: &str, errors: &[FieldError]) -> Status {
        let what = qualified(kind, group);
        // Each once, though the causes may tell it twice: upstream validates some things in two places.
        let mut all: Vec<String> = Vec::new();
        for text in errors.iter().map(ToString::to_string) {
            if !all.contains(&text) {
                all.push(text);
            }
        }
        let why = match all.as_slice() {
            [one] => one.clone(),
            several => format!("[{}]", several.join(", ")),
        };
        let mut status =
            Status::new(422, "Invalid", format!("{what} {name:?} is invalid: {why}")).about(group, kind, name);
        status.details.causes = errors
            .iter()
            .map(|error| {
                let (reason, message, field) = error.cause();
                Cause { reason: reason.to_owned(), message, field }
            })
            .collect();
        status
    }

    /// 500: our fault.
    pub fn internal(message: impl std::fmt::Display) -> Status {
        Status::new(500, "InternalError", format!("Internal error occurred: {message}")).with_cause(
            "",
            message.to_string(),
            "",
        )
    }

    /// 504: a revision that is not there yet.
    pub fn too_large_revision(asked: u64, current: u64) -> Status {
        let message = format!("Too large resource version: {asked}, current: {current}");
        let mut status = Status::new(504, "Timeout", format!("Timeout: {message}"));
        status.details.causes = vec![Cause {
            reason: "ResourceVersionTooLarge".into(),
            message: "Too large resource version".into(),
            field: String::new(),
        }];
        status.details.retry_after = Some(1);
        status
    }

    /// 422: the query asks for what there is not. `verb` names the options: Create, Update, Patch, Delete, List.
    pub fn invalid_options(verb: &str, errors: &[FieldError]) -> Status {
        Status::invalid("meta.k8s.io", &format!("{verb}Options"), "", errors)
    }

    /// Adds a cause.
    pub fn with_cause(mut self, reason: &str, message: impl Into<String>, field: impl Into<String>) -> Status {
        self.details.causes.push(Cause { reason: reason.to_owned(), message: message.into(), field: field.into() });
        self
    }

    /// The object a client gets.
    pub fn object(&self) -> Value {
        let mut details = Map::new();
        let mut put = |name: &str, value: &str| {
            if !value.is_empty() {
                details.insert(name.to_owned(), Value::from(value));
            }
        };
        let about = &*self.details;
        put("name", &about.name);
        put("group", &about.group);
        put("kind", &about.kind);
        if !about.causes.is_empty() {
            let causes = about.causes.iter().map(|cause| {
                let mut object = Map::new();
                if !cause.reason.is_empty() {
                    object.insert("reason".into(), cause.reason.as_str().into());
                }
                object.insert("message".into(), cause.message.as_str().into());
                if !cause.field.is_empty() {
                    object.insert("field".into(), cause.field.as_str().into());
                }
                Value::Object(object)
            });
            details.insert("causes".into(), causes.collect());
        }
        if let Some(seconds) = about.retry_after {
            details.insert("retryAfterSeconds".into(), seconds.into());
        }
        let mut object = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason,
        });
        if let Some(fields) = object.as_object_mut() {
            if self.reason.is_empty() {
                fields.shift_remove("reason");
            }
            // Where Go's server refuses before it knows the object, it says so in details with nothing in them.
            if !details.is_empty() || matches!(self.reason, "NotFound" | "MethodNotAllowed") || about.empty {
                fields.insert("details".into(), Value::Object(details));
            }
            fields.insert("code".into(), self.code.into());
        }
        object
    }
}

impl From<StoreError> for Status {
    fn from(error: StoreError) -> Status {
        Status::internal(error)
    }
}
