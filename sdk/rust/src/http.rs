//! Requests to an endpoint that the manifest names. Origin, trust, credential and limits are the host's.
//!
//! ```ignore
//! let Some(answer) = http::get("api", "/v1/machines/{}", &[&id]).found()? else { return Ok(…absent…) };
//! let machine: CloudMachine = answer.json()?;
//! ```
//!
//! `send` gives any answer; `ok` and `found` turn a failure into the [`Error`](crate::Error) that the host should act
//! on, with the API's own message: 401 and 403 unauthorized, 409 and 412 conflict, 429 throttled with `Retry-After`,
//! other 4xx invalid, 5xx transient. What is sent as a secret is never seen here.

use serde::{Serialize, de::DeserializeOwned};

use crate::{Chunk, Error, Reason, Result, Secret, Violation, host, secrets::Encoding};

/// The method of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Method {
    Get,
    Head,
    Post,
    Put,
    Patch,
    Delete,
}

/// A request that is being put together.
#[derive(Clone, Debug)]
#[must_use = "a request does nothing until it is sent"]
pub struct Request {
    /// Name of the endpoint in the manifest.
    pub endpoint: String,
    /// The method.
    pub method: Method,
    /// Absolute path, percent-encoded.
    pub path: String,
    /// Query parameters, encoded by the host.
    pub query: Vec<(String, String)>,
    /// Headers.
    pub headers: Vec<(String, String)>,
    /// The body in order.
    pub body: Vec<Chunk>,
    /// For a read: a shared answer may be this old (ms).
    pub max_age: Option<u64>,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HttpError {
    /// No endpoint of this name is configured.
    UnknownEndpoint,
    /// Refused by policy; the text says which rule.
    Denied(String),
    /// No byte of the request left the host.
    NotSent(String),
    /// The request left and no complete answer came back.
    NoAnswer(String),
    /// The answer is larger than the manifest allows.
    TooLarge(u64),
    /// The turn's request or time budget is spent.
    BudgetSpent,
}

impl HttpError {
    /// The error that the host should act on.
    fn error(self, endpoint: &str) -> Error {
        match self {
            Self::UnknownEndpoint => Error::transient(
                "EndpointUnknown",
                format!("no endpoint `{endpoint}` is configured for this namespace: create an Endpoint for it"),
            ),
            Self::Denied(rule) => Error::transient("RequestDenied", format!("`{endpoint}`: refused by policy: {rule}")),
            Self::NotSent(why) => Error::transient("NotSent", format!("`{endpoint}` cannot be reached: {why}")),
            Self::NoAnswer(why) => Error::transient("NoAnswer", format!("`{endpoint}` did not answer: {why}")),
            Self::TooLarge(size) => Error::transient(
                "AnswerTooLarge",
                format!("`{endpoint}` answered with {size} bytes, more than the manifest's maxResponse"),
            ),
            Self::BudgetSpent => Error::transient(
                "BudgetSpent",
                "the requests or the time of this turn are used up; the next one goes on",
            ),
        }
    }
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// The reason phrase where the protocol has one.
    pub status_text: String,
    /// Headers.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
    /// What was asked, for messages.
    asked: String,
}

fn request(method: Method, endpoint: &str, path: &str, arguments: &[&str]) -> Request {
    let mut filled = String::new();
    let mut arguments = arguments.iter();
    let mut pieces = path.split("{}");
    filled.push_str(pieces.next().unwrap_or_default());
    for piece in pieces {
        percent_encode(&mut filled, arguments.next().copied().unwrap_or_default());
        filled.push_str(piece);
    }
    Request {
        endpoint: endpoint.to_owned(),
        method,
        path: filled,
        query: Vec::new(),
        headers: Vec::new(),
        body: Vec::new(),
        max_age: None,
    }
}

/// A read. Each `{}` of the path is filled with one argument, percent-encoded as a single segment.
pub fn get(endpoint: &str, path: &str, arguments: &[&str]) -> Request {
    request(Method::Get, endpoint, path, arguments)
}

/// A POST; see [`get`].
pub fn post(endpoint: &str, path: &str, arguments: &[&str]) -> Request {
    request(Method::Post, endpoint, path, arguments)
}

/// A PUT; see [`get`].
pub fn put(endpoint: &str, path: &str, arguments: &[&str]) -> Request {
    request(Method::Put, endpoint, path, arguments)
}

/// A PATCH; see [`get`].
pub fn patch(endpoint: &str, path: &str, arguments: &[&str]) -> Request {
    request(Method::Patch, endpoint, path, arguments)
}

/// A DELETE; see [`get`].
pub fn delete(endpoint: &str, path: &str, arguments: &[&str]) -> Request {
    request(Method::Delete, endpoint, path, arguments)
}

/// RFC 3986's unreserved characters stay, all else is encoded.
pub(crate) fn percent_encode(out: &mut String, segment: &str) {
    for byte in segment.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
}

impl Request {
    /// A query parameter.
    pub fn query(mut self, name: &str, value: impl Into<String>) -> Self {
        self.query.push((name.to_owned(), value.into()));
        self
    }

    /// A header.
    pub fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    /// A shared answer to the same read may be this old (ms).
    pub fn max_age(mut self, milliseconds: u64) -> Self {
        self.max_age = Some(milliseconds);
        self
    }

    /// A JSON body.
    pub fn json(self, body: &impl Serialize) -> Result<Self> {
        self.json_with_secrets(body, &[])
    }

    /// A JSON body in which some strings are secrets: each replaces the string at its JSON pointer.
    pub fn json_with_secrets(mut self, body: &impl Serialize, secrets: &[(&str, &Secret)]) -> Result<Self> {
        let mut body = serde_json::to_value(body)
            .map_err(|error| Error::internal(format!("the body of a request is not JSON: {error}")))?;
        let plain = body.to_string();
        let mut marks = Vec::new();
        for (index, (pointer, secret)) in secrets.iter().enumerate() {
            let mut mark = format!("secret-{index}-");
            while plain.contains(&mark) {
                mark.push('-');
            }
            let place = body
                .pointer_mut(pointer)
                .ok_or_else(|| Error::internal(format!("the body of a request has nothing at `{pointer}`")))?;
            *place = mark.clone().into();
            marks.push((mark, *secret));
        }
        let mut rest = body.to_string();
        loop {
            let next = marks
                .iter()
                .filter_map(|(mark, secret)| Some((rest.find(mark.as_str())?, mark, secret)))
                .min_by_key(|(at, ..)| *at);
            let Some((at, mark, secret)) = next else { break };
            let after = rest.split_off(at).split_off(mark.len());
            self.body.push(rest.into());
            self.body.push(secret.encode(&[Encoding::JsonString]).into());
            rest = after;
        }
        self.body.push(rest.into());
        Ok(self.header("content-type", "application/json"))
    }

    /// A form, as an HTML page sends it (`application/x-www-form-urlencoded`).
    pub fn form<V: AsRef<str>>(mut self, fields: &[(&str, V)]) -> Self {
        let mut body = String::new();
        for (name, value) in fields {
            if !body.is_empty() {
                body.push('&');
            }
            percent_encode(&mut body, name);
            body.push('=');
            percent_encode(&mut body, value.as_ref());
        }
        self.body.push(body.into());
        self.header("content-type", "application/x-www-form-urlencoded")
    }

    /// A body of the provider's own bytes and secrets.
    pub fn body(mut self, content_type: &str, chunks: Vec<Chunk>) -> Self {
        self.body = chunks;
        self.header("content-type", content_type)
    }

    /// `GET /v1/machines/a`, for messages.
    fn asked(&self) -> String {
        format!("{} {}", format!("{:?}", self.method).to_uppercase(), self.path)
    }

    /// Sends it. Any status is an answer.
    pub fn send(self) -> Result<Response> {
        let (asked, endpoint) = (self.asked(), self.endpoint.clone());
        let (status, status_text, headers, body) = host::http_send(self).map_err(|error| error.error(&endpoint))?;
        Ok(Response { status, status_text, headers, body, asked })
    }

    /// Sends it; an error unless the answer is 2xx.
    pub fn ok(self) -> Result<Response> {
        let answer = self.send()?;
        if answer.is_success() { Ok(answer) } else { Err(answer.error()) }
    }

    /// Sends it; `None` for 404, an error unless the answer is 2xx.
    pub fn found(self) -> Result<Option<Response>> {
        let answer = self.send()?;
        match answer.status {
            404 => Ok(None),
            _ if answer.is_success() => Ok(Some(answer)),
            _ => Err(answer.error()),
        }
    }
}

/// Reads side by side; answers in the order of the requests.
pub fn read_all(requests: Vec<Request>) -> Vec<Result<Response>> {
    let asked: Vec<_> = requests.iter().map(|request| (request.asked(), request.endpoint.clone())).collect();
    host::http_read_all(requests)
        .into_iter()
        .zip(asked)
        .map(|(answer, (asked, endpoint))| {
            let (status, status_text, headers, body) = answer.map_err(|error| error.error(&endpoint))?;
            Ok(Response { status, status_text, headers, body, asked })
        })
        .collect()
}

impl Response {
    /// 2xx.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The value of a header, whatever its case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// The body as JSON. Another shape than the API promises is no fault of the user's.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_slice(&self.body).map_err(|error| {
            Error::transient("UnexpectedAnswer", format!("{}: the answer cannot be read: {error}", self.asked))
        })
    }

    /// What the API says in `error.message`, `message` or `error`; else the start of the body or the reason phrase.
    pub fn message(&self) -> String {
        let body = serde_json::from_slice::<serde_json::Value>(&self.body).ok();
        let found = ["/error/message", "/message", "/error"]
            .iter()
            .find_map(|pointer| Some(body.as_ref()?.pointer(pointer)?.as_str()?.trim().to_owned()))
            .unwrap_or_else(|| String::from_utf8_lossy(&self.body).trim().chars().take(300).collect());
        if found.is_empty() { self.status_text.clone() } else { found }
    }

    /// The error that a failed answer stands for.
    pub fn error(&self) -> Error {
        let message = format!("{}: {} {}", self.asked, self.status, self.message());
        let reason = |code: &str| Reason::new(code, message.clone());
        let retry_after = self
            .header("retry-after")
            .and_then(|seconds| seconds.trim().parse::<u64>().ok())
            .map(|s| s.saturating_mul(1000));
        match self.status {
            401 | 403 => Error::Unauthorized(reason("CredentialRefused")),
            408 | 425 => Error::Transient(reason("RemoteBusy")),
            409 | 412 => Error::Conflict(reason("RemoteConflict")),
            429 => Error::Throttled(retry_after),
            503 if retry_after.is_some() => Error::Throttled(retry_after),
            404 => Error::Transient(reason("RemoteNotFound")),
            400..500 => Error::Invalid(vec![Violation::new(self.field(), message)]),
            500.. => Error::Transient(reason("RemoteError")),
            _ => Error::Internal(reason("UnexpectedStatus")),
        }
    }

    /// The field that the API blames, as a JSON pointer, where it says so in `error.field`.
    fn field(&self) -> String {
        serde_json::from_slice::<serde_json::Value>(&self.body)
            .ok()
            .and_then(|body| Some(format!("/spec/{}", body.pointer("/error/field")?.as_str()?.replace('.', "/"))))
            .unwrap_or_else(|| "/spec".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{Scenario, secret};

    fn answered(status: u16, headers: &[(&str, &str)], body: &str) -> Error {
        Response {
            status,
            status_text: "Reason Phrase".to_owned(),
            headers: headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            body: body.as_bytes().to_vec(),
            asked: "GET /x".to_owned(),
        }
        .error()
    }

    #[test]
    fn arguments_are_one_segment_each() {
        let request = get("api", "/v1/a/{}/b/{}", &["x/y z", "ü?"]);
        assert_eq!(request.path, "/v1/a/x%2Fy%20z/b/%C3%BC%3F");
        assert_eq!(get("api", "/plain", &[]).path, "/plain");
    }

    #[test]
    fn secrets_stand_in_a_json_body_as_strings() {
        let (first, second) = (secret("a\"b"), secret("c\\d"));
        let body = json!({"plain": "secret-0-", "list": ["?", "x"], "deep": {"key": "?"}});
        let (answer, sent) = Scenario::new("K", json!({})).answer("POST /x", 200, json!({})).run(|| {
            post("api", "/x", &[]).json_with_secrets(&body, &[("/deep/key", &second), ("/list/0", &first)])?.ok()
        });
        assert!(answer.is_ok());
        let wanted = json!({"plain": "secret-0-", "list": ["a\"b", "x"], "deep": {"key": "c\\d"}});
        assert_eq!(sent[0].json(), wanted);
        assert!(sent[0].headers.contains(&("content-type".to_owned(), "application/json".to_owned())));
        let nowhere = post("api", "/x", &[]).json_with_secrets(&json!({}), &[("/nowhere", &first)]);
        assert!(matches!(nowhere, Err(Error::Internal(_))));
    }

    #[test]
    fn a_form_keeps_what_separates_its_fields() {
        let (_, sent) = Scenario::new("K", json!({}))
            .answer("POST /x", 200, json!({}))
            .run(|| post("api", "/x", &[]).form(&[("net0", "virtio=AA:BB,tag=1"), ("a b", "1&2=3+ü")]).ok());
        assert_eq!(sent[0].body, b"net0=virtio%3DAA%3ABB%2Ctag%3D1&a%20b=1%262%3D3%2B%C3%BC");
        assert!(sent[0].headers.contains(&("content-type".into(), "application/x-www-form-urlencoded".into())));
    }

    #[test]
    fn statuses_become_errors_with_the_apis_words() {
        let message = |error: Error| match error {
            Error::Transient(r) | Error::Unauthorized(r) | Error::Conflict(r) | Error::Internal(r) => r.message,
            other => panic!("{other:?}"),
        };
        let body = r#"{"error": {"code": "X", "message": "disk full", "field": "disk.size"}}"#;
        assert_eq!(message(answered(500, &[], body)), "GET /x: 500 disk full");
        assert_eq!(message(answered(500, &[], r#"{"message": "m"}"#)), "GET /x: 500 m");
        assert_eq!(message(answered(502, &[], "<html>bad gateway")), "GET /x: 502 <html>bad gateway");
        assert_eq!(message(answered(500, &[], "")), "GET /x: 500 Reason Phrase");
        assert!(matches!(answered(401, &[], body), Error::Unauthorized(_)));
        assert!(matches!(answered(403, &[], body), Error::Unauthorized(_)));
        assert!(matches!(answered(409, &[], body), Error::Conflict(_)));
        assert!(matches!(answered(404, &[], body), Error::Transient(_)));
        assert!(matches!(answered(301, &[], body), Error::Internal(_)));
        assert_eq!(answered(429, &[("Retry-After", "3")], ""), Error::Throttled(Some(3000)));
        assert_eq!(answered(429, &[("Retry-After", "Wed, 21 Oct 2026")], ""), Error::Throttled(None));
        assert_eq!(answered(503, &[("retry-after", "1")], ""), Error::Throttled(Some(1000)));
        assert!(matches!(answered(503, &[], ""), Error::Transient(_)));
        assert_eq!(answered(400, &[], body), Error::invalid("/spec/disk/size", "GET /x: 400 disk full"));
        assert_eq!(answered(422, &[], ""), Error::invalid("/spec", "GET /x: 422 Reason Phrase"));
    }

    #[test]
    fn absence_is_no_error_where_it_is_asked_for() {
        let (found, _) = Scenario::new("K", json!({}))
            .answer("GET /x?a=1 2", 404, json!({}))
            .run(|| get("api", "/x", &[]).query("a", "1 2").found());
        assert!(matches!(found, Ok(None)));
        let (read, _) = Scenario::new("K", json!({}))
            .answer("GET /a", 200, json!(1))
            .answer("GET /b", 500, json!({"message": "no"}))
            .run(|| read_all(vec![get("api", "/a", &[]), get("api", "/b", &[])]));
        let statuses: Vec<u16> = read.into_iter().map(|answer| answer.unwrap().status).collect();
        assert_eq!(statuses, [200, 500]);
    }

    #[test]
    fn no_answer_is_never_the_specs_fault() {
        for error in [
            HttpError::UnknownEndpoint,
            HttpError::Denied("rule".to_owned()),
            HttpError::NotSent("refused".to_owned()),
            HttpError::NoAnswer("timeout".to_owned()),
            HttpError::TooLarge(9),
            HttpError::BudgetSpent,
        ] {
            assert!(matches!(error.error("api"), Error::Transient(_)));
        }
    }
}
