//! The last look at the Lease on the way of a changing request: the request carries the fence, and its connection gets the
//! body only while the fence says yes. A request that comes without its whole body changes nothing.

use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use capstan_core::turn::Fence;
use http::Request;
use http_body::{Frame, SizeHint};
use kube::client::Body;
use tower::BoxError;

/// What a request carries on its way to the connection.
#[derive(Clone)]
pub(crate) struct Behind(pub Fence);

/// The body as the connection takes it.
pub(crate) struct Fenced {
    body: Body,
    fence: Option<Fence>,
}

/// Puts the body of a request behind the fence that it carries.
pub(crate) fn fenced(mut request: Request<Body>) -> Request<Fenced> {
    let fence = request.extensions_mut().remove::<Behind>().map(|behind| behind.0);
    request.map(|body| Fenced { body, fence })
}

impl http_body::Body for Fenced {
    type Data = <Body as http_body::Body>::Data;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Self::Data>, BoxError>>> {
        if self.fence.as_ref().is_some_and(|fence| !fence()) {
            return Poll::Ready(Some(Err("this process no longer holds the Lease".into())));
        }
        pin!(&mut self.body).poll_frame(cx).map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn a_body_is_not_handed_out_once_the_fence_says_no() {
        let held = Arc::new(AtomicBool::new(true));
        let fence: Fence = {
            let held = held.clone();
            Arc::new(move || held.load(Ordering::SeqCst))
        };
        let request = || {
            let mut request = Request::new(Body::from(b"{}".to_vec()));
            request.extensions_mut().insert(Behind(fence.clone()));
            fenced(request)
        };
        let (sent, late) = (request(), request());
        assert_eq!(http_body::Body::size_hint(sent.body()).exact(), Some(2), "it is sent with its length");
        assert_eq!(sent.into_body().collect().await.unwrap().to_bytes(), b"{}".as_slice());
        held.store(false, Ordering::SeqCst);
        assert!(late.into_body().collect().await.unwrap_err().to_string().contains("Lease"));
        assert!(fenced(Request::new(Body::from(b"{}".to_vec()))).into_body().collect().await.is_ok());
    }
}
