//! Reviews: questions in the form of objects that are answered and not kept (`kubectl auth can-i`, `kubectl auth whoami`).

use super::{Incoming, Verb};
use crate::auth::rbac::Rule;
use crate::auth::tokens::ISSUER;
use crate::auth::{AUTHENTICATED, Attributes};
use crate::decode;
use crate::options::User;
use crate::protobuf;
use crate::request::BodyForm;
use crate::response::{self, ResponseBody};
use crate::schema::{FieldError, FieldErrorKind};
use crate::server::ApiServer;
use crate::status::Status;
use http::Response;
use serde_json::{Map, Value, json};

/// A kind of review.
pub(crate) struct Review {
    pub group: &'static str,
    pub version: &'static str,
    pub plural: &'static str,
    pub singular: &'static str,
    pub kind: &'static str,
    /// Asked within a namespace.
    pub namespaced: bool,
    /// Everybody who has said who he is may ask it: it is about himself.
    about_self: bool,
}

const AUTHENTICATION: &str = "authentication.k8s.io";
const AUTHORIZATION: &str = "authorization.k8s.io";

const fn review(
    group: &'static str,
    (plural, singular, kind): (&'static str, &'static str, &'static str),
    namespaced: bool,
    about_self: bool,
) -> Review {
    Review { group, version: "v1", plural, singular, kind, namespaced, about_self }
}

/// The reviews that are answered.
pub(crate) const REVIEWS: &[Review] = &[
    review(AUTHENTICATION, ("selfsubjectreviews", "selfsubjectreview", "SelfSubjectReview"), false, true),
    review(AUTHENTICATION, ("tokenreviews", "tokenreview", "TokenReview"), false, false),
    review(
        AUTHORIZATION,
        ("localsubjectaccessreviews", "localsubjectaccessreview", "LocalSubjectAccessReview"),
        true,
        false,
    ),
    review(
        AUTHORIZATION,
        ("selfsubjectaccessreviews", "selfsubjectaccessreview", "SelfSubjectAccessReview"),
        false,
        true,
    ),
    review(AUTHORIZATION, ("selfsubjectrulesreviews", "selfsubjectrulesreview", "SelfSubjectRulesReview"), false, true),
    review(AUTHORIZATION, ("subjectaccessreviews", "subjectaccessreview", "SubjectAccessReview"), false, false),
];

/// Answers a review. None when the request is about none.
pub(super) fn answer(
    server: &ApiServer,
    verb: Verb,
    incoming: &Incoming,
) -> Option<Result<Response<ResponseBody>, Status>> {
    let path = &incoming.path;
    let review = REVIEWS.iter().find(|review| {
        review.group == path.group && review.version == path.version && review.plural == path.resource
    })?;
    let about_self = review.about_self && incoming.user.is_in(AUTHENTICATED);
    if !about_self && let Err(status) = server.authorize(&incoming.user, &path.attributes(verb)) {
        return Some(Err(status));
    }
    if verb != Verb::Create || !path.name.is_empty() || path.namespace.is_empty() == review.namespaced {
        return Some(Err(Status::method_not_allowed()));
    }
    Some(reviewed(server, review, incoming).map(|object| response::value(201, &object)))
}

fn reviewed(server: &ApiServer, review: &Review, incoming: &Incoming) -> Result<Value, Status> {
    let body = match BodyForm::of(&incoming.headers) {
        BodyForm::Json => decode::json(&incoming.body)?.value,
        BodyForm::Yaml => decode::yaml(&incoming.body)?.value,
        BodyForm::Protobuf => protobuf::read(&incoming.body)?.value,
        _ => return Err(Status::unsupported_media_type(&["application/json"])),
    };
    let spec = body.get("spec").cloned().unwrap_or_default();
    let user = &incoming.user;
    let api_version = format!("{}/{}", review.group, review.version);
    let metadata = body.get("metadata").filter(|metadata| metadata.is_object()).cloned().unwrap_or_else(|| json!({}));
    let mut object = json!({"kind": review.kind, "apiVersion": api_version, "metadata": metadata});
    if review.namespaced
        && let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut)
    {
        metadata.insert("namespace".into(), incoming.path.namespace.as_str().into());
    }
    let Some(fields) = object.as_object_mut() else { return Ok(object) };
    let status = match review.kind {
        "SelfSubjectReview" => json!({"userInfo": info(user)}),
        "TokenReview" => token(server, &spec)?,
        "SelfSubjectRulesReview" => rules(server, user, &spec)?,
        _ => access(server, review, &spec, user, &incoming.path.namespace)?,
    };
    if review.kind == "SelfSubjectRulesReview" {
        fields.insert("spec".into(), json!({}));
    } else if !spec.is_null() {
        fields.insert("spec".into(), spec);
    }
    fields.insert("status".into(), status);
    Ok(object)
}

fn info(user: &User) -> Value {
    json!({"username": user.name, "groups": user.groups})
}

fn list(value: &Value, name: &str) -> Vec<String> {
    let values = value.get(name).and_then(Value::as_array).into_iter().flatten();
    values.filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Whose a token is.
fn token(server: &ApiServer, spec: &Value) -> Result<Value, Status> {
    let token = spec.get("token").and_then(Value::as_str).unwrap_or_default();
    if token.is_empty() {
        return Err(Status::bad_request("token is required for TokenReview in authentication"));
    }
    let audiences = list(spec, "audiences");
    let Some(user) = server.bearer(token, &audiences) else {
        return Ok(json!({"user": {}, "error": "invalid bearer token"}));
    };
    let audiences = if audiences.is_empty() { vec![ISSUER.to_owned()] } else { audiences };
    Ok(json!({"authenticated": true, "user": info(&user), "audiences": audiences}))
}

/// All that a user may do in a namespace.
fn rules(server: &ApiServer, user: &User, spec: &Value) -> Result<Value, Status> {
    let namespace = spec.get("namespace").and_then(Value::as_str).unwrap_or_default();
    if namespace.is_empty() {
        return Err(Status::bad_request("no namespace on request"));
    }
    let everything = Rule {
        verbs: vec!["*".to_owned()],
        groups: vec!["*".to_owned()],
        resources: vec!["*".to_owned()],
        urls: vec!["*".to_owned()],
        ..Rule::default()
    };
    let mut all: Vec<Rule> = server.granted(user, namespace).into_iter().flat_map(|(_, rules)| rules).collect();
    if crate::auth::is_administrator(user, server.inner.options.builtins) {
        all.insert(0, everything);
    }
    let (mut resources, mut paths) = (Vec::new(), Vec::new());
    for rule in all {
        if !rule.resources.is_empty() {
            let mut shown = Map::new();
            for (name, words) in [
                ("verbs", &rule.verbs),
                ("apiGroups", &rule.groups),
                ("resources", &rule.resources),
                ("resourceNames", &rule.names),
            ] {
                if !words.is_empty() {
                    shown.insert(name.to_owned(), json!(words));
                }
            }
            resources.push(Value::Object(shown));
        }
        if !rule.urls.is_empty() {
            paths.push(json!({"verbs": rule.verbs, "nonResourceURLs": rule.urls}));
        }
    }
    Ok(json!({"resourceRules": resources, "nonResourceRules": paths, "incomplete": false}))
}

/// Whether somebody may do something.
fn access(server: &ApiServer, review: &Review, spec: &Value, own: &User, namespace: &str) -> Result<Value, Status> {
    let text = |pointer: &str| spec.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let given = |name: &str| spec.get(name).is_some_and(Value::is_object);
    let (resource, path) = (given("resourceAttributes"), given("nonResourceAttributes"));
    let mut errors = Vec::new();
    let mut refuse = |path: &str, value: Value, detail: &str| {
        errors.push(FieldError::new(path, FieldErrorKind::Invalid, value, detail));
    };
    if resource && path {
        let value = spec.get("nonResourceAttributes").cloned().unwrap_or_default();
        refuse("spec.nonResourceAttributes", value, "cannot be specified in combination with resourceAttributes");
    }
    if !resource && !path {
        let detail = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
        refuse("spec.resourceAttributes", Value::Null, detail);
    }
    let asked = User::new(text("/user"), list(spec, "groups"));
    if !review.about_self && asked.name.is_empty() && asked.groups.is_empty() {
        refuse("spec.user", "".into(), "at least one of user or group must be specified");
    }
    if review.namespaced && resource && text("/resourceAttributes/namespace") != namespace {
        let value = text("/resourceAttributes/namespace").into();
        refuse("spec.resourceAttributes.namespace", value, "must match metadata.namespace");
    }
    if review.namespaced && path {
        let value = spec.get("nonResourceAttributes").cloned().unwrap_or_default();
        refuse("spec.nonResourceAttributes", value, "disallowed on this kind of request");
    }
    if !errors.is_empty() {
        // Upstream asks the object for its kind, which it does not know at that point.
        return Err(Status::invalid(review.group, "", "", &errors));
    }
    let user = if review.about_self { own } else { &asked };
    let outcome = if path {
        let path = text("/nonResourceAttributes/path").trim_start_matches('/');
        server.authorize_path(user, text("/nonResourceAttributes/verb"), path)
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
    let mut status = json!({"allowed": outcome.is_ok()});
    if let (Ok(source), Some(status)) = (&outcome, status.as_object_mut())
        && !source.is_empty()
    {
        status.insert("reason".into(), format!("RBAC: allowed by {source}").into());
    }
    Ok(status)
}
