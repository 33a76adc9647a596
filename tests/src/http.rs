//! Plain HTTP to the control interfaces of test servers.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tokio::runtime::Runtime;

/// How long a test server may take to answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// A client that waits for the answer. Must not be used on a thread of its own runtime.
#[derive(Clone)]
pub struct Client {
    runtime: Arc<Runtime>,
    client: reqwest::Client,
}

impl Client {
    /// With a runtime of its own, which others may use ([`Client::runtime`]).
    ///
    /// # Errors
    /// When the system has no threads left.
    pub fn new() -> Result<Self> {
        // Whoever is first has chosen for all clients of this process.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let client = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build()?;
        Ok(Self { runtime: Arc::new(runtime), client })
    }

    /// Its runtime.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Sends JSON and reads JSON (null where there is none).
    ///
    /// # Errors
    /// When there is no answer, or it is no success; the error carries it.
    pub fn ask(&self, method: &str, url: &str, body: Option<&Value>) -> Result<Value> {
        let bytes = self.bytes(method, url, body)?;
        if bytes.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&bytes).with_context(|| format!("the answer to {method} {url} is no JSON"))
    }

    /// Sends JSON and reads whatever comes.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn bytes(&self, method: &str, url: &str, body: Option<&Value>) -> Result<Vec<u8>> {
        self.runtime.block_on(async {
            let mut request = self.client.request(method.parse()?, url);
            if let Some(body) = body {
                request = request.json(body);
            }
            let response = request.send().await.with_context(|| format!("{method} {url}"))?;
            let status = response.status();
            let bytes = response.bytes().await.with_context(|| format!("{method} {url}"))?;
            if !status.is_success() {
                bail!("{method} {url}: {status} {}", String::from_utf8_lossy(&bytes));
            }
            Ok(bytes.to_vec())
        })
    }
}
