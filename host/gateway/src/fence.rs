//! The body of a request that changes something. It is handed out only while the process may change something: a request
//! without its body does nothing, however long ago it was decided to send it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use capstan_core::turn::Fence;
use hyper::body::{Body, Frame, SizeHint};

/// A body behind a [`Fence`].
pub(crate) struct Fenced {
    body: Option<Bytes>,
    fence: Fence,
}

impl Fenced {
    pub fn new(body: Bytes, fence: Fence) -> Self {
        Self { body: Some(body), fence }
    }
}

/// What is said when the fence is down.
pub(crate) fn refusal() -> String {
    "this process no longer holds the Lease".to_owned()
}

impl Body for Fenced {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let Some(body) = self.body.take() else { return Poll::Ready(None) };
        if !(self.fence)() {
            return Poll::Ready(Some(Err(io::Error::other(refusal()))));
        }
        Poll::Ready(Some(Ok(Frame::data(body))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Bytes::is_empty)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.body.as_ref().map_or(0, |body| body.len() as u64))
    }
}
