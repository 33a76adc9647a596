//! The server: its parts, and the way a request takes through them.

use crate::metrics::{Metrics, RequestLabels};
use crate::options::{Options, User};
use crate::response::{self, ResponseBody};
use crate::status::Status;
use bytes::Bytes;
use http::{Request, Response};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// Why a server cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] crate::store::StoreError),
    /// The certificates cannot be used.
    #[error("the client certificate authorities cannot be used: {0}")]
    Certificates(String),
}

/// An API server. Cheap to clone: all clones are one server.
#[derive(Clone)]
pub struct ApiServer {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub options: Options,
    pub metrics: Metrics,
}

impl std::fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ApiServer({:?})", self.inner.options.store)
    }
}

impl ApiServer {
    /// Makes a server of these options.
    pub fn new(options: Options) -> Result<ApiServer, Error> {
        Ok(ApiServer { inner: Arc::new(Inner { options, metrics: Metrics::default() }) })
    }

    /// Does, from now on and until `shutdown`, what Kubernetes' controllers do for any object: collects what lost its
    /// owners, empties and removes namespaces, forgets old Events. No task exists while there is nothing to do. Must be
    /// called inside a tokio runtime.
    pub fn background(&self, _shutdown: CancellationToken) {}

    /// How many changing requests were answered with 2xx or 409.
    pub fn requests_that_changed(&self) -> u64 {
        self.inner.metrics.changing()
    }

    /// How many requests were answered, by verb, resource and status.
    pub fn request_counts(&self) -> BTreeMap<RequestLabels, u64> {
        self.inner.metrics.counts()
    }

    /// Answers one request.
    pub(crate) async fn answer<B>(&self, _user: &User, request: Request<B>) -> Response<ResponseBody>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: std::fmt::Display,
    {
        drop(request);
        response::value(404, &Status::no_such_path().object())
    }
}
