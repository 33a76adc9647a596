//! Plain HTTP to the control interfaces of test servers.

use std::sync::LazyLock;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tokio::runtime::Runtime;

/// How long a test server may take to answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// What runs beside the test: clients, simulated machines, forwarded connections.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("threads for a runtime")
});

/// The runtime of this process, never to be waited for by itself.
pub fn runtime() -> &'static Runtime {
    &RUNTIME
}

/// A client that waits for the answer.
#[derive(Clone)]
pub struct Client(reqwest::Client);

impl Client {
    /// With a time limit, and without a proxy.
    ///
    /// # Errors
    /// When it cannot be set up.
    pub fn new() -> Result<Self> {
        // Whoever is first has chosen for all clients of this process.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Ok(Self(reqwest::Client::builder().no_proxy().timeout(PATIENCE).build()?))
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
        RUNTIME.block_on(async {
            let mut request = self.0.request(method.parse()?, url);
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
