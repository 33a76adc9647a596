//! `capstan run`: the controllers against an API server that is there.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use capstan_api::{Gvk, Object};
use capstan_cluster::crds;
use capstan_cluster::egress::management_client;
use capstan_cluster::lease::Lease;
use capstan_cluster::modules::{GROUP, PROVIDER_MODULE};
use capstan_cluster::runner::{self, Runner};
use capstan_cluster::wire::Wire;
use capstan_runtime::{Engine, EngineConfig};

use crate::admission::CoreAdmission;
use crate::args;
use crate::components::components;
use crate::kinds::ProviderKinds;
use crate::manifest;
use crate::modules::Registry;
use crate::probes::Probes;
use crate::rules::CoreRules;
use crate::state_dir;
use crate::up::{CONCURRENCY, abort_after_effects, recording};
use crate::webhooks::{self, Answers, Webhooks};

/// How soon what did not succeed is tried again.
const TRY_AGAIN: Duration = Duration::from_secs(2);

/// Runs until SIGINT or SIGTERM.
///
/// # Errors
/// When the API server cannot be used.
pub async fn run(options: args::Run) -> Result<ExitCode> {
    let asked = webhooks::asked(&options)?;
    let client = client(&options).await?;
    let wire = Wire::new(client.clone());
    wire.probe().await.context("the API server cannot be reached")?;
    let core: Vec<Object> = capstan_api::crds().into_iter().filter_map(Object::from_value).collect();

    let path = match &options.state_dir {
        Some(path) => path.clone(),
        None => state_dir::default_path()?.join("run"),
    };
    let cache = path.join("cache");
    std::fs::create_dir_all(&cache).with_context(|| format!("cannot make {}", cache.display()))?;
    let mut config = EngineConfig::new(cache).context("find the running program")?;
    config.recordings = Some(path.join("recordings"));
    let registry = Registry::new(Engine::new(config)?, options.record.as_deref().map(recording).transpose()?);
    let kinds = ProviderKinds::default();
    kinds.ask(&registry);
    let webhooks = match asked {
        Some((listen, reach)) => {
            let answers = Answers {
                admission: vec![Arc::new(CoreAdmission), Arc::new(kinds.clone())],
                conversion: Arc::new(kinds),
            };
            Some(Webhooks::start(listen, reach, core.clone(), answers).await?)
        }
        None => {
            tracing::warn!(
                "no webhooks are served (--webhook-listen): objects of our kinds get no defaults and fewer of their faults \
                 are refused, and providers whose kinds have several versions are not loaded"
            );
            None
        }
    };
    registry.convert_by(webhooks.clone());
    let components = options.providers.as_deref().map(|directory| components(Some(directory))).transpose()?;
    let identity = options.identity.clone().unwrap_or_else(|| {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        format!("{}-{}", host.trim(), std::process::id())
    });
    let lease = Lease::start(wire, &options.lease, &identity);
    let runner = Arc::new(Runner::start(runner::Options {
        client,
        rules: Arc::new(CoreRules::new(registry.clone(), options.controllers.iter().copied())),
        providers: registry.clone(),
        modules: Some(registry.clone()),
        egress: registry.endpoints(),
        lease: Some(lease.clone()),
        concurrency: CONCURRENCY,
        after_effect: abort_after_effects()?,
    }));
    registry.read_from(runner.management());
    if let Some(webhooks) = &webhooks {
        tokio::spawn(webhooks.clone().keep(runner.clone(), lease.clone(), registry.clone()));
    }
    if let Some(listen) = options.health_listen {
        Probes::serve(listen, runner.clone(), registry.clone(), webhooks).await?;
    }
    tokio::spawn(set_up(runner.clone(), lease, core, components.unwrap_or_default()));
    tracing::info!(%identity, "running");
    let mut terminate =
        tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).context("listen for SIGTERM")?;
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
    runner.stop().await;
    Ok(ExitCode::SUCCESS)
}

/// What whoever comes to hold the Lease does first, for ever: definitions and modules are brought in line.
async fn set_up(runner: Arc<Runner>, lease: Lease, core: Vec<Object>, components: Vec<PathBuf>) {
    loop {
        lease.held().await;
        match bring_in_line(&runner, &core, &components).await {
            Ok(written) => {
                tracing::info!(written, "this replica holds the Lease; CRDs are installed");
                lease.lost().await;
                tracing::info!("this replica does not hold the Lease any more");
            }
            // Webhooks may not be reached yet, or the API server is away.
            Err(error) => {
                tracing::warn!(error = %format!("{error:#}"), "definitions and modules are not in line; trying again");
                tokio::time::sleep(TRY_AGAIN).await;
            }
        }
    }
}

async fn bring_in_line(runner: &Runner, core: &[Object], components: &[PathBuf]) -> Result<usize> {
    let written = crds::install(runner.management().wire(), core).await.map_err(|error| anyhow::anyhow!(error))?;
    if !components.is_empty() {
        runner.kinds_served(&[(GROUP.into(), PROVIDER_MODULE.into())]).await;
    }
    for file in components {
        let name = file.file_stem().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let mut module = Object::new(&Gvk::new(GROUP, "v1alpha1", PROVIDER_MODULE), "", &name);
        module.set("/spec/source/file", file.display().to_string().into());
        manifest::ensure(runner.management(), &module).await?;
    }
    Ok(written)
}

async fn client(options: &args::Run) -> Result<kube::Client> {
    let config = match &options.kubeconfig {
        Some(path) => {
            let file =
                kube::config::Kubeconfig::read_from(path).with_context(|| format!("cannot read {}", path.display()))?;
            kube::Config::from_custom_kubeconfig(file, &kube::config::KubeConfigOptions::default())
                .await
                .with_context(|| format!("{} cannot be used", path.display()))?
        }
        None => kube::Config::infer().await.context("no kubeconfig (say which with --kubeconfig FILE) and no Pod")?,
    };
    management_client(config).context("the configuration of the API server cannot be used")
}
