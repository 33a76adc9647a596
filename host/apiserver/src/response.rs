//! What is sent back.

use bytes::Bytes;
use futures::Stream;
use http::{HeaderValue, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use serde_json::Value;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

/// The body of an answer: all at once, or as it comes (a watch, a long list).
pub struct ResponseBody(Inner);

enum Inner {
    Full(Option<Bytes>),
    Stream(Pin<Box<dyn Stream<Item = Bytes> + Send>>),
}

impl std::fmt::Debug for ResponseBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ResponseBody")
    }
}

impl ResponseBody {
    /// A body known in full.
    pub fn full(bytes: impl Into<Bytes>) -> ResponseBody {
        let bytes = bytes.into();
        ResponseBody(Inner::Full((!bytes.is_empty()).then_some(bytes)))
    }

    /// A body that comes in pieces.
    pub fn stream(stream: impl Stream<Item = Bytes> + Send + 'static) -> ResponseBody {
        ResponseBody(Inner::Stream(Box::pin(stream)))
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut self.0 {
            Inner::Full(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Inner::Stream(stream) => {
                let next = stream.as_mut().poll_next(context);
                if let Poll::Ready(None) = next {
                    self.0 = Inner::Full(None);
                }
                next.map(|next| next.map(|bytes| Ok(Frame::data(bytes))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.0, Inner::Full(None))
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Inner::Full(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Inner::Stream(_) => SizeHint::default(),
        }
    }
}

/// An answer of JSON.
pub(crate) fn json(code: u16, bytes: impl Into<Bytes>) -> Response<ResponseBody> {
    typed(code, HeaderValue::from_static("application/json"), bytes)
}

/// An answer of JSON made from a value.
pub(crate) fn value(code: u16, value: &Value) -> Response<ResponseBody> {
    json(code, value.to_string())
}

/// An answer of plain text.
pub(crate) fn text(code: u16, text: impl Into<Bytes>) -> Response<ResponseBody> {
    typed(code, HeaderValue::from_static("text/plain; charset=utf-8"), text)
}

/// An answer of any type.
pub(crate) fn typed(code: u16, content_type: HeaderValue, bytes: impl Into<Bytes>) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::full(bytes));
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
}

/// Adds a warning that clients show to the user.
pub(crate) fn warn(response: &mut Response<ResponseBody>, warning: &str) {
    let quoted: String = warning
        .chars()
        .filter(|c| !c.is_control())
        .flat_map(|c| if matches!(c, '"' | '\\') { vec!['\\', c] } else { vec![c] })
        .take(1024)
        .collect();
    if let Ok(value) = HeaderValue::from_bytes(format!("299 - \"{quoted}\"").as_bytes()) {
        response.headers_mut().append(header::WARNING, value);
    }
}
