//! Requests to one API server, over unstructured objects.
//!
//! Errors keep what the caller must tell apart: a refusal (with its code and reason), no answer, an answer that
//! cannot be read. Bodies are never logged: they may hold Secrets.

use std::time::Duration;

use capstan_api::Object;
use capstan_core::turn::Fence;
use futures::stream::{BoxStream, StreamExt};
use http::{Method, Request, header};
use http_body_util::BodyExt;
use kube::client::Body;
use serde::Deserialize;
use serde_json::Value;
use tokio_util::codec::{FramedRead, LinesCodec};
use tokio_util::io::StreamReader;

use crate::fence::Behind;
use crate::kinds::Resource;

/// Field manager of everything that this process writes.
pub const FIELD_MANAGER: &str = "capstan";
/// How long a request may take (a watch: until its headers).
const PATIENCE: Duration = Duration::from_secs(10);
/// Objects per page of a list.
const PAGE: usize = 500;
/// Longest line of a watch stream.
const LONGEST_LINE: usize = 16 * 1024 * 1024;
/// Seconds after which the server ends a watch.
const WATCH_SECONDS: u32 = 290;

/// Why a request did not succeed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The server said no.
    #[error("the API server refused: {message} ({code} {reason})")]
    Refused {
        /// HTTP status.
        code: u16,
        /// Reason of the Status object.
        reason: String,
        /// Message of the Status object.
        message: String,
    },
    /// No answer: what was asked may or may not have happened.
    #[error("the API server did not answer: {0}")]
    Silent(String),
    /// The answer could not be read: what was asked may or may not have happened.
    #[error("the API server's answer cannot be read: {0}")]
    Garbled(String),
    /// It would change something, and this process may not now. Nothing was sent.
    #[error("not sent, because this process does not hold the Lease")]
    NotHeld,
}

impl WireError {
    fn is(&self, wanted: u16) -> bool {
        matches!(self, Self::Refused { code, .. } if *code == wanted)
    }

    /// The object, or the kind, is not there.
    pub fn is_not_found(&self) -> bool {
        self.is(404)
    }

    /// A create met an object of that name.
    pub fn already_exists(&self) -> bool {
        matches!(self, Self::Refused { code: 409, reason, .. } if reason == "AlreadyExists")
    }

    /// A precondition did not hold.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Refused { code: 409, reason, .. } if reason != "AlreadyExists")
    }

    /// The resourceVersion is no longer to be had.
    pub fn is_gone(&self) -> bool {
        self.is(410)
    }

    /// The credential was not accepted.
    pub fn is_unauthorized(&self) -> bool {
        self.is(401)
    }
}

#[derive(Deserialize)]
struct StatusBody {
    #[serde(default)]
    reason: String,
    #[serde(default)]
    message: String,
    #[serde(default)]
    code: u16,
}

#[derive(Deserialize)]
struct ListBody {
    #[serde(default)]
    metadata: ListMeta,
    #[serde(default)]
    items: Option<Vec<Object>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ListMeta {
    resource_version: String,
    #[serde(rename = "continue")]
    more: Option<String>,
}

#[derive(Deserialize)]
struct EventBody {
    #[serde(rename = "type")]
    kind: String,
    object: Value,
}

/// What a watch tells.
#[derive(Clone, Debug, PartialEq)]
pub enum Told {
    /// It was added or changed.
    Present(Object),
    /// It is gone; its last state.
    Gone(Object),
    /// Nothing happened up to this resourceVersion.
    Bookmark(String),
}

/// How to send a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchKind {
    /// RFC 7386.
    Merge,
    /// Server-side apply by [`FIELD_MANAGER`], forced.
    Apply,
}

/// One API server. Cheap to clone.
#[derive(Clone)]
pub struct Wire {
    client: kube::Client,
    fence: Option<Fence>,
}

impl Wire {
    /// Through this client.
    pub fn new(client: kube::Client) -> Self {
        Self { client, fence: None }
    }

    /// The same, sending what changes something only while the fence says yes.
    #[must_use]
    pub fn fenced(mut self, fence: Fence) -> Self {
        self.fence = Some(fence);
        self
    }

    /// Whether requests that change something are sent now.
    pub fn may_change(&self) -> bool {
        self.fence.as_ref().is_none_or(|fence| fence())
    }

    async fn send(&self, request: Request<Body>) -> Result<http::Response<Body>, WireError> {
        let sent = tokio::time::timeout(PATIENCE, self.client.send(request)).await;
        match sent {
            Err(_) => Err(WireError::Silent(format!("no answer within {} s", PATIENCE.as_secs()))),
            Ok(Err(error)) => Err(WireError::Silent(reason_of(&error))),
            Ok(Ok(response)) => Ok(response),
        }
    }

    async fn body(response: http::Response<Body>) -> Result<Vec<u8>, WireError> {
        let status = response.status();
        let read = tokio::time::timeout(PATIENCE, response.into_body().collect()).await;
        let bytes = match read {
            Err(_) => return Err(WireError::Silent(format!("the answer stalled for {} s", PATIENCE.as_secs()))),
            Ok(Err(error)) => return Err(WireError::Silent(error.to_string())),
            Ok(Ok(collected)) => collected.to_bytes(),
        };
        if status.is_success() {
            return Ok(bytes.to_vec());
        }
        Err(refusal(status.as_u16(), &bytes))
    }

    async fn exchange(&self, method: Method, uri: &str, body: Option<(&str, Vec<u8>)>) -> Result<Vec<u8>, WireError> {
        let changes = method != Method::GET;
        let mut builder = Request::builder().method(method).uri(uri).header(header::ACCEPT, "application/json");
        let bytes = match body {
            Some((content_type, bytes)) => {
                builder = builder.header(header::CONTENT_TYPE, content_type);
                bytes
            }
            None => Vec::new(),
        };
        let mut request = builder.body(Body::from(bytes)).map_err(|e| WireError::Silent(e.to_string()))?;
        if changes && let Some(fence) = &self.fence {
            request.extensions_mut().insert(Behind(fence.clone()));
        }
        if changes && !self.may_change() {
            return Err(WireError::NotHeld);
        }
        Self::body(self.send(request).await?).await
    }

    async fn object(
        &self,
        method: Method,
        uri: &str,
        content_type: &str,
        value: &impl serde::Serialize,
    ) -> Result<Object, WireError> {
        let bytes = serde_json::to_vec(value).map_err(|e| WireError::Garbled(e.to_string()))?;
        read(&self.exchange(method, uri, Some((content_type, bytes))).await?)
    }

    /// Whether the server answers at all: `GET /version`.
    ///
    /// # Errors
    /// When it does not.
    pub async fn probe(&self) -> Result<(), WireError> {
        self.exchange(Method::GET, "/version", None).await.map(|_| ())
    }

    /// One object; `None` when it is not there.
    ///
    /// # Errors
    /// Other than not found.
    pub async fn get(&self, resource: &Resource, namespace: &str, name: &str) -> Result<Option<Object>, WireError> {
        match self.exchange(Method::GET, &resource.path(namespace, name), None).await {
            Ok(bytes) => read(&bytes).map(Some),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Creates; the object as the server keeps it.
    ///
    /// # Errors
    /// [`WireError::already_exists`] and others.
    pub async fn create(&self, resource: &Resource, object: &Object) -> Result<Object, WireError> {
        let uri = format!("{}?fieldManager={FIELD_MANAGER}", resource.collection(object.namespace()));
        self.object(Method::POST, &uri, "application/json", object).await
    }

    /// Replaces; the object as the server keeps it.
    ///
    /// # Errors
    /// [`WireError::is_conflict`] and others.
    pub async fn replace(&self, resource: &Resource, object: &Object) -> Result<Object, WireError> {
        let uri = format!("{}?fieldManager={FIELD_MANAGER}", resource.path(object.namespace(), object.name()));
        self.object(Method::PUT, &uri, "application/json", object).await
    }

    /// Patches the object or, with `subresource`, that part of it.
    ///
    /// # Errors
    /// [`WireError::is_conflict`], [`WireError::is_not_found`] and others.
    pub async fn patch(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
        subresource: Option<&str>,
        kind: PatchKind,
        patch: &Value,
    ) -> Result<Object, WireError> {
        let mut uri = resource.path(namespace, name);
        if let Some(subresource) = subresource {
            uri.push('/');
            uri.push_str(subresource);
        }
        uri.push_str("?fieldManager=");
        uri.push_str(FIELD_MANAGER);
        let content_type = match kind {
            PatchKind::Merge => "application/merge-patch+json",
            PatchKind::Apply => {
                uri.push_str("&force=true");
                "application/apply-patch+yaml"
            }
        };
        self.object(Method::PATCH, &uri, content_type, patch).await
    }

    /// Server-side apply with strict validation: unknown and duplicate fields are refused.
    ///
    /// # Errors
    /// What the server says.
    pub async fn apply_strictly(
        &self,
        resource: &Resource,
        object: &Object,
        dry_run: bool,
    ) -> Result<Object, WireError> {
        let uri = format!(
            "{}?fieldManager={FIELD_MANAGER}-up&force=true&fieldValidation=Strict{}",
            resource.path(object.namespace(), object.name()),
            if dry_run { "&dryRun=All" } else { "" },
        );
        self.object(Method::PATCH, &uri, "application/apply-patch+yaml", object).await
    }

    /// Deletes (background propagation) this incarnation (empty: any). The object when it stays until its finalizers
    /// go, `None` when it is gone.
    ///
    /// # Errors
    /// [`WireError::is_conflict`] when there is another incarnation; absence is no error.
    pub async fn delete(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
        uid: &str,
    ) -> Result<Option<Object>, WireError> {
        let mut options = serde_json::json!({
            "apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background",
        });
        if !uid.is_empty()
            && let Some(options) = options.as_object_mut()
        {
            options.insert("preconditions".into(), serde_json::json!({"uid": uid}));
        }
        match self.object(Method::DELETE, &resource.path(namespace, name), "application/json", &options).await {
            Ok(object) if object.kind() == "Status" || object.finalizers().is_empty() => Ok(None),
            Ok(object) => Ok(Some(object)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All objects of a kind (of a namespace, when one is given) and the list's resourceVersion.
    ///
    /// # Errors
    /// When any page cannot be had.
    pub async fn list(&self, resource: &Resource, namespace: &str) -> Result<(Vec<Object>, String), WireError> {
        let mut objects = Vec::new();
        let mut more: Option<String> = None;
        loop {
            let mut uri = format!("{}?limit={PAGE}", resource.collection(namespace));
            if let Some(token) = &more {
                uri.push_str("&continue=");
                uri.push_str(&encode(token));
            }
            let body: ListBody = read(&self.exchange(Method::GET, &uri, None).await?)?;
            objects.extend(body.items.unwrap_or_default().into_iter().map(|object| named(object, resource)));
            match body.metadata.more.filter(|token| !token.is_empty()) {
                Some(token) => more = Some(token),
                None => return Ok((objects, body.metadata.resource_version)),
            }
        }
    }

    /// What happens to a kind after `version`, until the server ends the stream.
    ///
    /// # Errors
    /// When the watch cannot begin; the stream's own errors are its last item.
    pub async fn watch(
        &self,
        resource: &Resource,
        namespace: &str,
        version: &str,
    ) -> Result<BoxStream<'static, Result<Told, WireError>>, WireError> {
        let uri = format!(
            "{}?watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}&resourceVersion={}",
            resource.collection(namespace),
            encode(version),
        );
        let request = Request::builder()
            .uri(&uri)
            .header(header::ACCEPT, "application/json")
            .header(header::ACCEPT_ENCODING, "identity")
            .body(Body::empty())
            .map_err(|e| WireError::Silent(e.to_string()))?;
        let response = self.send(request).await?;
        if !response.status().is_success() {
            return match Self::body(response).await {
                Err(error) => Err(error),
                Ok(_) => Err(WireError::Garbled("a refusal without a refusal's status".into())),
            };
        }
        let body = response.into_body().into_data_stream().map(|chunk| chunk.map_err(std::io::Error::other));
        let lines = FramedRead::new(StreamReader::new(body), LinesCodec::new_with_max_length(LONGEST_LINE));
        Ok(lines
            .filter(|line| futures::future::ready(!matches!(line, Ok(line) if line.is_empty())))
            .map(|line| match line {
                Ok(line) => told(line.as_bytes()),
                Err(error) => Err(WireError::Silent(error.to_string())),
            })
            .boxed())
    }
}

fn told(line: &[u8]) -> Result<Told, WireError> {
    let event: EventBody = read(line)?;
    let object =
        Object::from_value(event.object).ok_or_else(|| WireError::Garbled("an event without object".into()))?;
    match event.kind.as_str() {
        "ADDED" | "MODIFIED" => Ok(Told::Present(object)),
        "DELETED" => Ok(Told::Gone(object)),
        "BOOKMARK" => Ok(Told::Bookmark(object.resource_version().to_owned())),
        "ERROR" => {
            let bytes = serde_json::to_vec(&object).unwrap_or_default();
            Err(refusal(500, &bytes))
        }
        other => Err(WireError::Garbled(format!("an event of unknown type {other:?}"))),
    }
}

fn refusal(status: u16, body: &[u8]) -> WireError {
    match serde_json::from_slice::<StatusBody>(body) {
        Ok(told) => WireError::Refused {
            code: if told.code == 0 { status } else { told.code },
            reason: told.reason,
            message: told.message,
        },
        Err(_) => WireError::Refused { code: status, reason: String::new(), message: "no Status in the answer".into() },
    }
}

fn read<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T, WireError> {
    serde_json::from_slice(bytes)
        .map_err(|error| WireError::Garbled(format!("line {} column {}", error.line(), error.column())))
}

/// Items of a list may come without apiVersion and kind.
fn named(mut object: Object, resource: &Resource) -> Object {
    if object.kind().is_empty() {
        object.0.insert("apiVersion".into(), resource.gvk().api_version().into());
        object.0.insert("kind".into(), resource.kind.clone().into());
    }
    object
}

/// The innermost reason of a transport error, which is the one a person can act on; without addresses of our own
/// side, so that it stays the same from one attempt to the next.
fn reason_of(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

fn encode(text: &str) -> String {
    text.bytes()
        .map(|b| match b {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => char::from(b).to_string(),
            _ => format!("%{b:02X}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_told_apart() {
        let conflict = refusal(409, br#"{"kind":"Status","reason":"Conflict","message":"changed","code":409}"#);
        assert!(conflict.is_conflict() && !conflict.already_exists());
        let exists = refusal(409, br#"{"kind":"Status","reason":"AlreadyExists","code":409}"#);
        assert!(exists.already_exists() && !exists.is_conflict());
        assert!(refusal(404, b"<html>").is_not_found());
        assert!(!WireError::Silent("x".into()).is_not_found());
    }

    #[test]
    fn events_are_read_and_expiry_in_the_stream_is_recognised() {
        let event = told(br#"{"type":"ADDED","object":{"kind":"Node","metadata":{"name":"a"}}}"#).unwrap();
        assert!(matches!(event, Told::Present(o) if o.name() == "a"));
        let bookmark = told(br#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"12"}}}"#).unwrap();
        assert_eq!(bookmark, Told::Bookmark("12".into()));
        let gone = told(br#"{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}"#);
        assert!(gone.unwrap_err().is_gone());
        assert!(told(b"{").is_err());
    }

    #[test]
    fn an_unreadable_answer_is_not_quoted() {
        let error = read::<Object>(b"{\"data\": \"c2VjcmV0\", !").unwrap_err().to_string();
        assert!(!error.contains("c2VjcmV0"), "{error}");
    }
}
