//! A guest's request, checked and made ready for the wire.

use std::fmt;

use bytes::Bytes;

use crate::transport::WireRequest;

/// Request methods of the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// GET.
    Get,
    /// HEAD.
    Head,
    /// POST.
    Post,
    /// PUT.
    Put,
    /// PATCH.
    Patch,
    /// DELETE.
    Delete,
}

impl Method {
    /// Whether the method by itself changes nothing (RFC 9110, section 9.2.1).
    pub fn reads(self) -> bool {
        matches!(self, Method::Get | Method::Head)
    }

    /// In upper case.
    pub fn as_str(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Head => "HEAD",
            Method::Post => "POST",
            Method::Put => "PUT",
            Method::Patch => "PATCH",
            Method::Delete => "DELETE",
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A piece of a body.
#[derive(Clone, PartialEq, Eq)]
pub enum Chunk {
    /// Bytes of the guest.
    Plain(Bytes),
    /// Bytes that the guest has never seen.
    Secret {
        /// Where they come from, for records.
        label: String,
        /// The bytes.
        bytes: Bytes,
    },
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Chunk::Plain(bytes) => write!(f, "Plain({} bytes)", bytes.len()),
            Chunk::Secret { label, bytes } => write!(f, "Secret({label}, {} bytes)", bytes.len()),
        }
    }
}

/// What a guest asks to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Name of an endpoint of the manifest.
    pub endpoint: String,
    /// Method.
    pub method: Method,
    /// Absolute path without authority, percent-encoded.
    pub path: String,
    /// Names and values, not encoded.
    pub query: Vec<(String, String)>,
    /// Names and values.
    pub headers: Vec<(String, String)>,
    /// Body; secrets are filled in by the gateway.
    pub body: Vec<Chunk>,
    /// For a read: a shared answer at most this old (milliseconds) will do.
    pub max_age: Option<u64>,
}

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// Status code.
    pub status: u16,
    /// Reason phrase where the protocol has one.
    pub status_text: String,
    /// Headers without those that concern the connection or a session.
    pub headers: Vec<(String, String)>,
    /// Body, whole.
    pub body: Bytes,
}

/// Why there is no response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HttpError {
    /// The manifest does not declare this endpoint.
    #[error("the manifest declares no such endpoint")]
    UnknownEndpoint,
    /// Refused; the text says which rule.
    #[error("refused: {0}")]
    Denied(String),
    /// It is certain that no byte of the request left the host.
    #[error("not sent: {0}")]
    NotSent(String),
    /// The request left and no complete answer came back.
    #[error("no answer: {0}")]
    NoAnswer(String),
    /// The answer is larger than this many bytes.
    #[error("the answer is larger than {0} bytes")]
    TooLarge(u64),
    /// The turn's request or time budget is spent.
    #[error("the turn's budget for requests is spent")]
    BudgetSpent,
}

/// The most header lines and bytes that a guest may send.
const MAX_HEADERS: usize = 64;
const MAX_LINE: usize = 8 << 10;

/// The path, query, headers and body as they go on the wire.
///
/// # Errors
/// Which rule the request breaks; never quotes a secret.
pub(crate) fn ready(request: &Request) -> Result<WireRequest, String> {
    let path = check_path(&request.path)?;
    let mut target = path.to_owned();
    for (index, (name, value)) in request.query.iter().enumerate() {
        target.push(if index == 0 { '?' } else { '&' });
        percent_encode(name, &mut target);
        target.push('=');
        percent_encode(value, &mut target);
    }
    if target.len() > MAX_LINE {
        return Err(format!("path and query are longer than {MAX_LINE} bytes"));
    }
    if request.headers.len() > MAX_HEADERS {
        return Err(format!("more than {MAX_HEADERS} headers"));
    }
    let mut headers = http::HeaderMap::with_capacity(request.headers.len());
    for (name, value) in &request.headers {
        let (name, value) = check_header(name, value)?;
        headers.append(name, value);
    }
    if request.method.reads() && !request.body.is_empty() {
        return Err(format!("a {} has no body", request.method));
    }
    Ok(WireRequest { method: request.method, target, headers, body: splice(&request.body) })
}

/// The body with secrets filled in.
fn splice(chunks: &[Chunk]) -> Bytes {
    match chunks {
        [Chunk::Plain(bytes) | Chunk::Secret { bytes, .. }] => bytes.clone(),
        many => {
            let mut body = Vec::new();
            for chunk in many {
                let (Chunk::Plain(bytes) | Chunk::Secret { bytes, .. }) = chunk;
                body.extend_from_slice(bytes);
            }
            body.into()
        }
    }
}

fn check_path(path: &str) -> Result<&str, String> {
    if !path.starts_with('/') || path.starts_with("//") {
        return Err("the path must be absolute, with one slash at its beginning and no authority".to_owned());
    }
    let mut bytes = path.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'%' => {
                if !(bytes.next().is_some_and(|b| b.is_ascii_hexdigit())
                    && bytes.next().is_some_and(|b| b.is_ascii_hexdigit()))
                {
                    return Err("the path has a % without two hexadecimal digits".to_owned());
                }
            }
            b'/' | b'-' | b'.' | b'_' | b'~' | b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b';'
            | b'=' | b':' | b'@' => {}
            other if other.is_ascii_alphanumeric() => {}
            b'?' | b'#' => return Err("the path holds no query and no fragment; use `query`".to_owned()),
            other => return Err(format!("the path holds the byte {other:#04x}, which must be percent-encoded")),
        }
    }
    // A URL parser would resolve them, and the path that was checked would not be the path that is sent.
    if path.split('/').any(|segment| matches!(percent_decode(segment).as_slice(), b"." | b"..")) {
        return Err("the path has a segment of dots".to_owned());
    }
    Ok(path)
}

/// Headers that say where, as whom or how a request goes, or what its method really is: the host's alone.
const FORBIDDEN: &[&str] = &[
    "host",
    "authorization",
    "cookie",
    "content-length",
    "transfer-encoding",
    "connection",
    "keep-alive",
    "te",
    "trailer",
    "upgrade",
    "expect",
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
    "x-amz-date",
    "x-amz-security-token",
    "x-amz-content-sha256",
    "forwarded",
];

fn check_header(name: &str, value: &str) -> Result<(http::HeaderName, http::HeaderValue), String> {
    let parsed = http::HeaderName::from_bytes(name.as_bytes()).map_err(|_| format!("{name:?} is no header name"))?;
    if FORBIDDEN.contains(&parsed.as_str())
        || parsed.as_str().starts_with("proxy-")
        || parsed.as_str().starts_with("x-forwarded-")
    {
        return Err(format!("the header {name} is the host's to set"));
    }
    if value.len() > MAX_LINE {
        return Err(format!("the header {name} is longer than {MAX_LINE} bytes"));
    }
    let value = http::HeaderValue::from_str(value)
        .map_err(|_| format!("the value of the header {name} holds a control character"))?;
    Ok((parsed, value))
}

/// Headers of an answer that concern the connection or a session of the host.
pub(crate) fn is_hidden_from_guest(name: &str) -> bool {
    matches!(
        name,
        "connection" | "keep-alive" | "te" | "trailer" | "transfer-encoding" | "upgrade" | "set-cookie" | "set-cookie2"
    ) || name.starts_with("proxy-")
}

pub(crate) fn percent_encode(text: &str, out: &mut String) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            out.push(char::from(byte));
        } else {
            out.push('%');
            for digit in [byte >> 4, byte & 15] {
                out.push(char::from_digit(digit.into(), 16).unwrap_or('0').to_ascii_uppercase());
            }
        }
    }
}

pub(crate) fn percent_decode(text: &str) -> Vec<u8> {
    let hex = |byte: Option<&u8>| byte.and_then(|b| char::from(*b).to_digit(16)).and_then(|d| u8::try_from(d).ok());
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        if byte == b'%'
            && let (Some(high), Some(low)) = (hex(bytes.get(at + 1)), hex(bytes.get(at + 2)))
        {
            out.push(high << 4 | low);
            at += 3;
        } else {
            out.push(byte);
            at += 1;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(path: &str) -> Request {
        Request {
            endpoint: "api".into(),
            method: Method::Get,
            path: path.into(),
            query: vec![],
            headers: vec![],
            body: vec![],
            max_age: None,
        }
    }

    #[test]
    fn paths_that_are_not_what_they_seem_are_refused() {
        for bad in [
            "",
            "relative",
            "//evil/x",
            "/a?b",
            "/a#b",
            "/a b",
            "/a\r\nHost: x",
            "/a\\b",
            "/é",
            "/%",
            "/%zz",
            "/a/../b",
            "/a/./b",
            "/a/%2e%2E/b",
            "/..",
            "http://evil/",
        ] {
            assert!(ready(&get(bad)).is_err(), "{bad:?}");
        }
        for good in ["/", "/a/b.c", "/containers/a%2Fb/json", "/api2/json/nodes/n/tasks/UPID:n:1::", "/...", "/a//b"] {
            assert_eq!(ready(&get(good)).unwrap().target, good);
        }
    }

    #[test]
    fn query_values_cannot_break_out() {
        let mut request = get("/x");
        request.query = vec![("filters".into(), r#"{"label":["a=b&c"]}"#.into()), ("é".into(), "\r\n".into())];
        assert_eq!(
            ready(&request).unwrap().target,
            "/x?filters=%7B%22label%22%3A%5B%22a%3Db%26c%22%5D%7D&%C3%A9=%0D%0A"
        );
    }

    #[test]
    fn headers_that_are_the_host_s_are_refused() {
        for name in [
            "Host",
            "AUTHORIZATION",
            "Cookie",
            "content-length",
            "Transfer-Encoding",
            "Connection",
            "Proxy-Authorization",
            "TE",
            "X-HTTP-Method-Override",
            "X-Forwarded-For",
            "bad name",
            "a:b",
            "",
        ] {
            let mut request = get("/");
            request.headers = vec![(name.into(), "x".into())];
            assert!(ready(&request).is_err(), "{name}");
        }
        let mut request = get("/");
        request.headers = vec![("Content-Type".into(), "a\r\nHost: evil".into())];
        assert!(ready(&request).is_err());
        request.headers = vec![("Content-Type".into(), "application/x-tar".into())];
        assert_eq!(ready(&request).unwrap().headers.get("content-type").unwrap(), "application/x-tar");
    }

    #[test]
    fn secrets_are_spliced_and_not_shown() {
        let mut request = get("/");
        request.method = Method::Post;
        request.body = vec![
            Chunk::Plain("token=".into()),
            Chunk::Secret { label: "t".into(), bytes: "hunter2".into() },
            Chunk::Plain("&x".into()),
        ];
        assert_eq!(ready(&request).unwrap().body, "token=hunter2&x");
        assert!(!format!("{request:?}").contains("hunter2"));
        request.method = Method::Get;
        assert!(ready(&request).is_err(), "a read with a body");
    }
}
