//! What is asked of a server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::StreamExt as _;
use reqwest::{Client, Method};
use serde_json::{Value, json};
use tokio::sync::Barrier;

use crate::TOGETHER;

/// Namespace of all that is made.
const NAMESPACE: &str = "bench";
/// How long the events of a fan-out may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// What objects are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// ConfigMaps with a value of one KiB.
    ConfigMap,
    /// Objects of a definition with a schema, as large as a Machine.
    Custom,
}

impl Kind {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Self::ConfigMap => "ConfigMap",
            Self::Custom => "custom resource",
        }
    }

    fn collection(self) -> String {
        match self {
            Self::ConfigMap => format!("/api/v1/namespaces/{NAMESPACE}/configmaps"),
            Self::Custom => format!("/apis/bench.capstan.dev/v1/namespaces/{NAMESPACE}/machines"),
        }
    }

    fn object(self, name: &str) -> Value {
        let labels = json!({"cluster.x-k8s.io/cluster-name": "bench", "cluster.x-k8s.io/deployment-name": name});
        let metadata = json!({"name": name, "labels": labels});
        match self {
            Self::ConfigMap => {
                json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"value": "x".repeat(1024)}})
            }
            Self::Custom => json!({
                "apiVersion": "bench.capstan.dev/v1", "kind": "Machine", "metadata": metadata,
                "spec": {"clusterName": "bench", "version": "v1.35.0", "replicas": 1, "note": "x".repeat(768),
                    "taints": [{"key": "a", "value": "b", "effect": "NoSchedule"}]},
            }),
        }
    }

    fn patch(self, number: usize) -> Value {
        match self {
            Self::ConfigMap => json!({"data": {"number": number.to_string()}}),
            Self::Custom => json!({"spec": {"replicas": number}}),
        }
    }
}

/// A server and a client of it.
pub struct Server {
    /// For people.
    pub name: &'static str,
    /// Its processes.
    pub pids: Vec<u32>,
    url: String,
    client: Client,
    authority: reqwest::Certificate,
    identity: reqwest::Identity,
}

/// A client with a connection of its own.
fn connect(authority: &reqwest::Certificate, identity: &reqwest::Identity) -> Result<Client> {
    Ok(Client::builder().no_proxy().tls_certs_only([authority.clone()]).identity(identity.clone()).build()?)
}

impl Server {
    /// One that is asked over HTTP/2, by somebody who may do everything.
    pub fn new(name: &'static str, url: &str, authority: &str, identity: &str, pids: Vec<u32>) -> Result<Self> {
        let authority = reqwest::Certificate::from_pem(authority.as_bytes())?;
        let identity = reqwest::Identity::from_pem(identity.as_bytes())?;
        let client = connect(&authority, &identity)?;
        Ok(Self { name, pids, url: url.to_owned(), client, authority, identity })
    }

    async fn ask(&self, method: Method, path: &str, body: Option<(&str, &Value)>) -> Result<bytes::Bytes> {
        let mut request = self.client.request(method.clone(), format!("{}{path}", self.url));
        if let Some((kind, body)) = body {
            request = request.header("content-type", kind).body(serde_json::to_vec(body)?);
        }
        let response = request.send().await.with_context(|| format!("{method} {path}"))?;
        let status = response.status();
        let body = response.bytes().await?;
        ensure!(status.is_success(), "{}: {method} {path}: {status} {}", self.name, String::from_utf8_lossy(&body));
        Ok(body)
    }

    async fn create(&self, kind: Kind, name: &str) -> Result<()> {
        let object = kind.object(name);
        self.ask(Method::POST, &kind.collection(), Some(("application/json", &object))).await.map(drop)
    }

    async fn patch(&self, kind: Kind, name: &str, number: usize) -> Result<()> {
        let path = format!("{}/{name}", kind.collection());
        self.ask(Method::PATCH, &path, Some(("application/merge-patch+json", &kind.patch(number)))).await.map(drop)
    }

    async fn get(&self, kind: Kind, name: &str) -> Result<()> {
        self.ask(Method::GET, &format!("{}/{name}", kind.collection()), None).await.map(drop)
    }

    /// Makes the namespace and the definition.
    pub async fn prepare(&self) -> Result<()> {
        let text = json!({"type": "string"});
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
        self.ask(Method::POST, "/api/v1/namespaces", Some(("application/json", &namespace))).await?;
        let crd = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "machines.bench.capstan.dev"},
            "spec": {"group": "bench.capstan.dev", "scope": "Namespaced", "names": {"plural": "machines", "kind": "Machine"},
                "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object", "required": ["clusterName"],
                        "properties": {"clusterName": {"type": "string", "minLength": 1}, "version": text, "note": text,
                            "replicas": {"type": "integer", "minimum": 0},
                            "taints": {"type": "array", "items": {"type": "object", "properties":
                                {"key": text, "value": text, "effect": {"type": "string", "enum": ["NoSchedule", "NoExecute"]}}}}}}}}}}]},
        });
        let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        self.ask(Method::POST, definitions, Some(("application/json", &crd))).await?;
        let deadline = Instant::now() + PATIENCE;
        while self.ask(Method::GET, &Kind::Custom.collection(), None).await.is_err() {
            ensure!(Instant::now() < deadline, "{} does not serve the definition", self.name);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    /// Asks for each of these, so many under way at the same time; how many in a second.
    async fn together(&self, count: usize, one: impl AsyncFn(usize) -> Result<()>) -> Result<f64> {
        let began = Instant::now();
        let all = futures::stream::iter(0..count).map(|number| one(number)).buffer_unordered(TOGETHER);
        futures::pin_mut!(all);
        while let Some(done) = all.next().await {
            done?;
        }
        Ok(count as f64 / began.elapsed().as_secs_f64())
    }

    /// One after the other; microseconds of the median.
    async fn one_by_one(&self, count: usize, one: impl AsyncFn(usize) -> Result<()>) -> Result<f64> {
        let mut taken = Vec::with_capacity(count);
        for number in 0..count {
            let began = Instant::now();
            one(number).await?;
            taken.push(began.elapsed());
        }
        taken.sort_unstable();
        Ok(taken.get(count / 2).map_or(0.0, Duration::as_secs_f64) * 1e6)
    }

    /// Makes objects that stay.
    pub async fn fill(&self, kind: Kind, name: &str, count: usize) -> Result<()> {
        self.together(count, async |number| self.create(kind, &format!("{name}-{number}")).await).await.map(drop)
    }

    /// Deletes what begins like this.
    pub async fn remove(&self, kind: Kind, starts: &[String]) -> Result<()> {
        let listed: Value = serde_json::from_slice(&self.ask(Method::GET, &kind.collection(), None).await?)?;
        let names: Vec<&str> = listed["items"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|item| item["metadata"]["name"].as_str())
            .filter(|name| starts.iter().any(|start| name.starts_with(start.as_str())))
            .collect();
        let one = async |number: usize| {
            let name = names.get(number).copied().unwrap_or_default();
            self.ask(Method::DELETE, &format!("{}/{name}", kind.collection()), None).await.map(drop)
        };
        self.together(names.len(), one).await.map(drop)
    }

    /// Microseconds of a get.
    pub async fn get_one_by_one(&self, kind: Kind, count: usize) -> Result<f64> {
        self.one_by_one(count, async |number| self.get(kind, &format!("listed-{number}")).await).await
    }

    /// Gets in a second.
    pub async fn get_together(&self, kind: Kind, count: usize) -> Result<f64> {
        self.together(count, async |number| self.get(kind, &format!("listed-{number}")).await).await
    }

    /// Milliseconds of a list.
    pub async fn list(&self, kind: Kind, count: usize) -> Result<f64> {
        let taken = self
            .one_by_one(5, async |_| {
                let body = self.ask(Method::GET, &kind.collection(), None).await?;
                // Only that all came: reading it is the client's work.
                ensure!(body.len() > count * 1024, "{}: a list of {} bytes", self.name, body.len());
                Ok(())
            })
            .await?;
        Ok(taken / 1e3)
    }

    /// Microseconds of a create.
    pub async fn create_one_by_one(&self, kind: Kind, name: &str, count: usize) -> Result<f64> {
        self.one_by_one(count, async |number| self.create(kind, &format!("{name}-{number}")).await).await
    }

    /// Creates in a second.
    pub async fn create_together(&self, kind: Kind, name: &str, count: usize) -> Result<f64> {
        self.together(count, async |number| self.create(kind, &format!("{name}-{number}")).await).await
    }

    /// Microseconds of a patch.
    pub async fn patch_one_by_one(&self, kind: Kind, round: usize, count: usize) -> Result<f64> {
        let base = 2 + round * 1_000_000;
        self.one_by_one(count, async |number| self.patch(kind, &format!("listed-{number}"), base + number).await).await
    }

    /// Patches in a second, each of another object.
    pub async fn patch_together(&self, kind: Kind, round: usize, count: usize) -> Result<f64> {
        let base = 500_002 + round * 1_000_000;
        self.together(count, async |number| self.patch(kind, &format!("listed-{number}"), base + number).await).await
    }

    /// Events that watchers get in a second, from the first write until the last watcher has the last event. Each watcher has
    /// a connection of its own, as each would be a program of its own; kube-apiserver lets 100 requests share one.
    pub async fn fan_out(&self, kind: Kind, watchers: usize, writes: usize) -> Result<f64> {
        let listed: Value =
            serde_json::from_slice(&self.ask(Method::GET, &format!("{}?limit=1", kind.collection()), None).await?)?;
        let version = listed["metadata"]["resourceVersion"].as_str().context("no resourceVersion")?.to_owned();
        let started = Arc::new(Barrier::new(watchers + 1));
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..watchers {
            let path = format!("{}{}?watch=true&resourceVersion={version}", self.url, kind.collection());
            let (client, started) = (connect(&self.authority, &self.identity)?, started.clone());
            tasks.spawn(async move {
                let mut response = client.get(path).send().await?.error_for_status()?;
                started.wait().await;
                let mut seen = 0;
                while seen < writes {
                    let chunk = response.chunk().await?.context("the watch ended")?;
                    seen += chunk.iter().filter(|byte| **byte == b'\n').count();
                }
                anyhow::Ok(())
            });
        }
        started.wait().await;
        let began = Instant::now();
        let base = usize::try_from(version.parse::<u64>().unwrap_or_default()).unwrap_or_default();
        let all = async {
            self.together(writes, async |number| self.patch(kind, &format!("listed-{number}"), base + number).await)
                .await?;
            while let Some(watcher) = tasks.join_next().await {
                watcher??;
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(PATIENCE, all).await.context("not all events came")??;
        Ok((watchers * writes) as f64 / began.elapsed().as_secs_f64())
    }

    /// Resident memory of its processes, in MiB.
    pub fn memory(&self) -> f64 {
        let of = |pid: &u32| -> Option<f64> {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
            line.trim().split(' ').next()?.parse().ok()
        };
        self.pids.iter().filter_map(of).sum::<f64>() / 1024.0
    }
}
