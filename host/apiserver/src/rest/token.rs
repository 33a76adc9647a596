//! TokenRequest: a token for a service account (`kubectl create token`).

use super::Call;
use crate::auth::tokens::{ISSUER, claims};
use crate::decode;
use crate::protobuf;
use crate::request::BodyForm;
use crate::response::{self, ResponseBody};
use crate::schema::FieldError;
use crate::schema::FieldErrorKind;
use crate::status::Status;
use crate::store::Key;
use http::Response;
use jiff::Timestamp;
use serde_json::{Value, json};

/// How long a token is good where nobody says, in seconds.
const USUAL: i64 = 3600;
/// The shortest, and the longest.
const LIMITS: (i64, i64) = (600, 1 << 32);

impl Call<'_> {
    /// Answers `POST …/serviceaccounts/<name>/token`.
    pub(super) fn token(&self) -> Result<Response<ResponseBody>, Status> {
        let body = match BodyForm::of(&self.headers) {
            BodyForm::Json => decode::json(&self.body)?.value,
            BodyForm::Yaml => decode::yaml(&self.body)?.value,
            BodyForm::Protobuf => protobuf::read(&self.body)?.value,
            _ => return Err(Status::unsupported_media_type(&["application/json"])),
        };
        let (namespace, name) = (&self.path.namespace, &self.path.name);
        let store = &self.server.inner.options.store;
        let account = store.get(&self.resource.collection, &self.key()).ok_or_else(|| self.not_found())?;
        let account = account.value_without_managed_fields();
        let spec = body.get("spec").cloned().unwrap_or_default();
        let seconds = spec.get("expirationSeconds").and_then(Value::as_i64).unwrap_or(USUAL);
        let mut errors = Vec::new();
        let mut refuse = |detail: &str| {
            errors.push(FieldError {
                path: "spec.expirationSeconds".into(),
                kind: FieldErrorKind::Invalid,
                bad_value: Some(seconds.into()),
                detail: detail.into(),
            });
        };
        if seconds < LIMITS.0 {
            refuse("may not specify a duration less than 10 minutes");
        }
        if seconds > LIMITS.1 {
            refuse("may not specify a duration larger than 2^32 seconds");
        }
        if !errors.is_empty() {
            return Err(Status::invalid("authentication.k8s.io", "TokenRequest", "", &errors));
        }
        let listed = spec.get("audiences").and_then(Value::as_array).into_iter().flatten();
        let mut audiences: Vec<String> = listed.filter_map(Value::as_str).map(str::to_owned).collect();
        if audiences.is_empty() {
            audiences.push(ISSUER.to_owned());
        }
        let reference = spec.get("boundObjectRef").filter(|reference| reference.is_object());
        let bound = reference.map(|reference| self.bound_to(reference, name)).transpose()?;
        let now = Timestamp::now();
        let claims = claims(&account, &audiences, now.as_second(), seconds, bound);
        let until = Timestamp::from_second(now.as_second() + seconds).unwrap_or(now);
        let time = |time: Timestamp| time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let answer = json!({
            "kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1",
            "metadata": {"name": name, "namespace": namespace, "uid": account.pointer("/metadata/uid"), "creationTimestamp": time(now)},
            "spec": {"audiences": audiences, "expirationSeconds": seconds, "boundObjectRef": reference},
            "status": {"token": self.server.inner.signer.sign(&claims), "expirationTimestamp": time(until)},
        });
        Ok(response::value(201, &answer))
    }

    /// What the token is to die with.
    fn bound_to(&self, reference: &Value, account: &str) -> Result<(&'static str, Value), Status> {
        let text = |name: &str| reference.get(name).and_then(Value::as_str).unwrap_or_default();
        let (claim, plural, namespace) = match (text("apiVersion"), text("kind")) {
            ("v1", "Pod") => ("pod", "pods", self.path.namespace.as_str()),
            ("v1", "Secret") => ("secret", "secrets", self.path.namespace.as_str()),
            ("v1", "Node") => ("node", "nodes", ""),
            (version, kind) => {
                return Err(Status::bad_request(format!("cannot bind token to object of type {version}, Kind={kind}")));
            }
        };
        let name = text("name");
        let object = self.server.inner.options.store.get(plural, &Key::new(namespace, name));
        let object = object.ok_or_else(|| Status::not_found("", plural, name))?.value_without_managed_fields();
        let uid = object.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default();
        if claim == "pod" && object.pointer("/spec/serviceAccountName").and_then(Value::as_str) != Some(account) {
            return Err(Status::bad_request(format!(
                "cannot bind token for serviceaccount {account:?} to pod running with different serviceaccount name."
            )));
        }
        if !text("uid").is_empty() && text("uid") != uid {
            return Err(Status::conflict(
                "",
                text("kind"),
                name,
                format!(
                    "the UID in the bound object reference ({}) does not match the UID in record. The object might have been deleted and then recreated",
                    text("uid")
                ),
            ));
        }
        Ok((claim, json!({"name": name, "uid": uid})))
    }
}
