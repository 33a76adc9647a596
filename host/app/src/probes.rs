//! What a kubelet and a monitoring system ask: `/livez`, `/readyz` and `/metrics`, over plain HTTP.
//!
//! A replica is ready once it can answer webhooks (it has a certificate and has looked at every ProviderModule that is
//! there), whether it holds the Lease or not, and stays so: what comes later is no reason to take it out of a Service.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use capstan_cluster::modules::{GROUP, PROVIDER_MODULE};
use capstan_cluster::runner::Runner;
use capstan_core::view::Select;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;

use crate::modules::Registry;
use crate::webhooks::Webhooks;

/// How long the head of a request may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is asked about.
pub struct Probes {
    runner: Arc<Runner>,
    registry: Arc<Registry>,
    webhooks: Option<Arc<Webhooks>>,
    was_ready: AtomicBool,
}

impl Probes {
    /// Answers at this address for as long as the process lives.
    ///
    /// # Errors
    /// When it cannot be listened on.
    pub async fn serve(
        listen: SocketAddr,
        runner: Arc<Runner>,
        registry: Arc<Registry>,
        webhooks: Option<Arc<Webhooks>>,
    ) -> Result<()> {
        let listener = TcpListener::bind(listen).await.with_context(|| format!("cannot serve probes at {listen}"))?;
        let probes = Arc::new(Self { runner, registry, webhooks, was_ready: AtomicBool::new(false) });
        tokio::spawn(async move {
            loop {
                let Ok((socket, _)) = listener.accept().await else {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                };
                let probes = probes.clone();
                tokio::spawn(async move {
                    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
                        let (code, text) = probes.answer(request.uri().path());
                        let mut response = Response::new(Full::new(Bytes::from(text)));
                        *response.status_mut() = code;
                        async move { Ok::<_, Infallible>(response) }
                    });
                    let mut builder = hyper::server::conn::http1::Builder::new();
                    builder.timer(TokioTimer::new()).header_read_timeout(PATIENCE);
                    let _ = builder.serve_connection(TokioIo::new(socket), service).await;
                });
            }
        });
        Ok(())
    }

    fn answer(&self, path: &str) -> (StatusCode, String) {
        match path {
            "/livez" | "/healthz" => (StatusCode::OK, "ok\n".into()),
            "/readyz" => match self.waits_for() {
                None => (StatusCode::OK, "ok\n".into()),
                Some(what) => (StatusCode::SERVICE_UNAVAILABLE, format!("waiting for {what}\n")),
            },
            "/metrics" => (StatusCode::OK, self.metrics()),
            _ => (StatusCode::NOT_FOUND, "there are /livez, /readyz and /metrics\n".into()),
        }
    }

    /// What keeps it from being ready.
    fn waits_for(&self) -> Option<String> {
        if self.was_ready.load(Ordering::Relaxed) {
            return None;
        }
        if self.webhooks.as_ref().is_some_and(|webhooks| !webhooks.are_served()) {
            return Some("the webhooks' certificate".into());
        }
        let Ok(modules) = self.runner.management().list(GROUP, PROVIDER_MODULE, "", &Select::All) else {
            return Some("the ProviderModules to be read".into());
        };
        if let Some(module) = modules.iter().find(|module| !self.registry.has_looked_at(module.name())) {
            return Some(format!("ProviderModule {}", module.name()));
        }
        self.was_ready.store(true, Ordering::Relaxed);
        None
    }

    fn metrics(&self) -> String {
        let numbers = self.runner.numbers();
        let counted = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        let mut text = String::new();
        for (name, kind, help, value) in [
            ("capstan_leads", "gauge", "Whether this replica holds the Lease", u64::from(self.runner.leads())),
            ("capstan_decisions_total", "counter", "Decisions taken", numbers.decisions),
            ("capstan_turns_total", "counter", "Turns of providers begun", numbers.turns),
            ("capstan_failures_total", "counter", "Decisions and plans that failed", numbers.failures),
            ("capstan_writes_total", "counter", "Changing requests to the management cluster", numbers.writes),
            ("capstan_conflicts_total", "counter", "Conflicts among them", numbers.conflicts),
            ("capstan_queue", "gauge", "Objects that wait or are worked on", counted(numbers.busy)),
            ("capstan_cached_objects", "gauge", "Objects in the caches", counted(numbers.cached)),
            (
                "capstan_workload_connections",
                "gauge",
                "Workload clusters that are wanted",
                counted(numbers.connections),
            ),
            ("capstan_workload_connections_up", "gauge", "Those that are connected", counted(numbers.connections_up)),
        ] {
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
        }
        text
    }
}
