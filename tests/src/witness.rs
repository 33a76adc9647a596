//! Who has seen everything that an API server showed: every object in each of its states, from the beginning of the watch.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::http::runtime;
use crate::plane::kubectl;

/// What was seen, by resource, as the server sent it.
type Seen = Arc<Mutex<BTreeMap<String, Vec<u8>>>>;

/// Watches on all kinds that an API server has.
pub struct Witness {
    seen: Seen,
    watches: Vec<JoinHandle<()>>,
}

impl Witness {
    /// Begins to watch.
    ///
    /// # Errors
    /// When the API server of the kubeconfig cannot be asked.
    pub fn of(kubeconfig: &Path) -> Result<Self> {
        let config: Value = serde_json::from_str(&kubectl(kubeconfig, &["config", "view", "--raw", "-o", "json"])?)?;
        let text = |pointer: &str| config.pointer(pointer).and_then(Value::as_str).with_context(|| pointer.to_owned());
        let data = |pointer: &str| -> Result<Vec<u8>> {
            Ok(base64::engine::general_purpose::STANDARD.decode(text(pointer)?)?)
        };
        let ca = reqwest::Certificate::from_pem(&data("/clusters/0/cluster/certificate-authority-data")?)?;
        let mut identity = data("/users/0/user/client-certificate-data")?;
        identity.extend(data("/users/0/user/client-key-data")?);
        let client = reqwest::Client::builder()
            .no_proxy()
            .tls_certs_only([ca])
            .identity(reqwest::Identity::from_pem(&identity)?)
            .build()?;
        let server = text("/clusters/0/cluster/server")?.to_owned();
        let resources = runtime().block_on(resources(&client, &server))?;
        ensure!(resources.len() > 20, "only {} kinds: {resources:?}", resources.len());
        let seen = Seen::default();
        let watches = resources
            .into_iter()
            .map(|path| {
                let (seen, request) = (seen.clone(), client.get(format!("{server}{path}?watch=true")));
                runtime().spawn(async move {
                    let Ok(mut response) = request.send().await else { return };
                    while let Ok(Some(chunk)) = response.chunk().await {
                        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                        seen.entry(path.clone()).or_default().extend_from_slice(&chunk);
                    }
                })
            })
            .collect();
        Ok(Self { seen, watches })
    }

    /// What was seen so far, by path of the resource.
    pub fn seen(&self) -> BTreeMap<String, Vec<u8>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.watches.iter().for_each(JoinHandle::abort);
    }
}

/// The paths of all that can be watched.
async fn resources(client: &reqwest::Client, server: &str) -> Result<Vec<String>> {
    let get = async |path: &str| -> Result<Value> {
        Ok(client.get(format!("{server}{path}")).send().await?.error_for_status()?.json().await?)
    };
    let groups = get("/apis").await?;
    let mut versions = vec!["/api/v1".to_owned()];
    for group in groups["groups"].as_array().into_iter().flatten() {
        let served = group["versions"].as_array().into_iter().flatten();
        versions.extend(served.filter_map(|version| Some(format!("/apis/{}", version["groupVersion"].as_str()?))));
    }
    // What several versions serve is seen in all of them.
    let mut all = Vec::new();
    for version in versions {
        for resource in get(&version).await?["resources"].as_array().into_iter().flatten() {
            let verbs = resource["verbs"].as_array().cloned().unwrap_or_default();
            let name = resource["name"].as_str().unwrap_or_default();
            if verbs.iter().any(|verb| verb == "watch") && !name.contains('/') {
                all.push(format!("{version}/{name}"));
            }
        }
    }
    Ok(all)
}
