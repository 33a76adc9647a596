//! Reviews: questions in the form of objects that are answered and not kept (`kubectl auth can-i`, `kubectl auth whoami`).

use super::{Incoming, Verb};
use crate::auth::Attributes;
use crate::decode;
use crate::protobuf;
use crate::request::BodyForm;
use crate::response::{self, ResponseBody};
use crate::server::ApiServer;
use crate::status::Status;
use http::Response;
use serde_json::{Value, json};

/// A kind of review.
pub(crate) struct Review {
    pub group: &'static str,
    pub version: &'static str,
    pub plural: &'static str,
    pub singular: &'static str,
    pub kind: &'static str,
}

/// The reviews that are answered.
pub(crate) const REVIEWS: &[Review] = &[
    Review {
        group: "authentication.k8s.io",
        version: "v1",
        plural: "selfsubjectreviews",
        singular: "selfsubjectreview",
        kind: "SelfSubjectReview",
    },
    Review {
        group: "authorization.k8s.io",
        version: "v1",
        plural: "selfsubjectaccessreviews",
        singular: "selfsubjectaccessreview",
        kind: "SelfSubjectAccessReview",
    },
];

/// Answers a review. None when the request is about none. Everybody may ask about himself.
pub(super) fn answer(
    server: &ApiServer,
    verb: Verb,
    incoming: &Incoming,
) -> Option<Result<Response<ResponseBody>, Status>> {
    let path = &incoming.path;
    let review = REVIEWS.iter().find(|review| {
        review.group == path.group && review.version == path.version && review.plural == path.resource
    })?;
    if verb != Verb::Create || !path.name.is_empty() || !path.namespace.is_empty() {
        return Some(Err(Status::method_not_allowed()));
    }
    Some(status_of(server, review, incoming).map(|object| response::value(201, &object)))
}

fn status_of(server: &ApiServer, review: &Review, incoming: &Incoming) -> Result<Value, Status> {
    let user = &incoming.user;
    let body = match BodyForm::of(&incoming.headers) {
        BodyForm::Json => decode::json(&incoming.body)?.value,
        BodyForm::Yaml => decode::yaml(&incoming.body)?.value,
        BodyForm::Protobuf => protobuf::read(&incoming.body)?.value,
        _ => return Err(Status::unsupported_media_type(&["application/json"])),
    };
    let mut object =
        json!({"kind": review.kind, "apiVersion": format!("{}/{}", review.group, review.version), "metadata": {}});
    let Some(fields) = object.as_object_mut() else { return Ok(object) };
    if review.kind == "SelfSubjectReview" {
        fields.insert("status".into(), json!({"userInfo": {"username": user.name, "groups": user.groups}}));
        return Ok(object);
    }
    let spec = body.get("spec").cloned().unwrap_or_default();
    let text = |pointer: &str| spec.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let outcome = if spec.get("nonResourceAttributes").is_some_and(Value::is_object) {
        server.authorize_path(user, text("/nonResourceAttributes/path").trim_start_matches('/'))
    } else {
        let attributes = Attributes {
            verb: text("/resourceAttributes/verb"),
            group: text("/resourceAttributes/group"),
            resource: text("/resourceAttributes/resource"),
            subresource: text("/resourceAttributes/subresource"),
            namespace: text("/resourceAttributes/namespace"),
            name: text("/resourceAttributes/name"),
        };
        server.authorize(user, &attributes)
    };
    let reason = outcome.as_ref().err().map(|status| status.message.clone()).unwrap_or_default();
    fields.insert("spec".into(), spec);
    fields.insert("status".into(), json!({"allowed": outcome.is_ok(), "reason": reason}));
    Ok(object)
}
