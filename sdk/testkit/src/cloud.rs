//! A network that answers by a script and remembers what it was asked.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use capstan_core::turn::Fence;
use capstan_gateway::{
    Destination, EndpointConfig, Endpoints, Origin, Transport, TransportError, WireRequest, WireResponse,
};
use serde_json::Value;

/// A request as the cloud saw it, secrets filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Name of the endpoint.
    pub endpoint: String,
    /// `GET`, `POST`, …
    pub method: &'static str,
    /// Path and query.
    pub target: String,
    /// Headers that the guest set, names in lower case.
    pub headers: Vec<(String, String)>,
    /// Body.
    pub body: Vec<u8>,
}

impl Asked {
    /// The body as JSON; null when it is none.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// What the cloud does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer(Result<WireResponse, TransportError>);

impl Answer {
    /// An answer without a body.
    pub fn status(status: u16) -> Self {
        Self::bytes(status, "application/octet-stream", Vec::new())
    }

    /// An answer in JSON.
    pub fn json(status: u16, body: &Value) -> Self {
        Self::bytes(status, "application/json", body.to_string().into_bytes())
    }

    /// An answer with a body of this content type.
    pub fn bytes(status: u16, content_type: &str, body: Vec<u8>) -> Self {
        let headers = vec![("content-type".to_owned(), content_type.to_owned())];
        Self(Ok(WireResponse { status, status_text: String::new(), headers, body: body.into() }))
    }

    /// The connection is refused: nothing was sent.
    pub fn refused() -> Self {
        Self(Err(TransportError::NotSent("connection refused".to_owned())))
    }

    /// The request was sent and the answer got lost.
    pub fn lost() -> Self {
        Self(Err(TransportError::NoAnswer("connection reset".to_owned())))
    }
}

type Script = dyn FnMut(&Asked) -> Answer + Send;

/// A scripted network behind every endpoint.
pub struct Cloud {
    script: Mutex<Box<Script>>,
    asked: Mutex<Vec<Asked>>,
}

impl Cloud {
    /// Answers by this function.
    pub fn new(script: impl FnMut(&Asked) -> Answer + Send + 'static) -> Arc<Self> {
        Arc::new(Self { script: Mutex::new(Box::new(script)), asked: Mutex::default() })
    }

    /// What was asked so far, in order.
    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What was asked so far and by its method may have changed something.
    pub fn changes(&self) -> Vec<Asked> {
        self.asked().into_iter().filter(|asked| !matches!(asked.method, "GET" | "HEAD")).collect()
    }
}

#[async_trait]
impl Transport for Cloud {
    async fn exchange(
        &self,
        endpoint: &EndpointConfig,
        request: WireRequest,
        _fence: Option<&Fence>,
    ) -> Result<WireResponse, TransportError> {
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        let headers = request.headers.iter().map(|(name, value)| (name.to_string(), text(value.as_bytes()))).collect();
        let asked = Asked {
            endpoint: endpoint.name.clone(),
            method: request.method.as_str(),
            target: request.target,
            headers,
            body: request.body.to_vec(),
        };
        let answer = (self.script.lock().unwrap_or_else(PoisonError::into_inner))(&asked);
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).push(asked);
        answer.0
    }
}

impl Endpoints for Cloud {
    fn endpoint(&self, _: &str, _: &str) -> Result<Option<Destination>, String> {
        Ok(None)
    }

    fn module_default(&self, _: &str, name: &str) -> Result<Option<Destination>, String> {
        Origin::parse(&format!("http://{name}.test")).map(Destination::of).map(Some)
    }
}
