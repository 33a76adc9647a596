//! `capstan run`: the controllers against an API server that is there.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use capstan_api::{Gvk, Object};
use capstan_cluster::crds;
use capstan_cluster::lease::SYSTEM_NAMESPACE;
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
use crate::rules::CoreRules;
use crate::state_dir;
use crate::up::{CONCURRENCY, abort_after_effects, ensure_namespace, recording};
use crate::webhooks::{self, Answers, Webhooks};

/// Runs until SIGINT or SIGTERM.
///
/// # Errors
/// When the API server cannot be used.
pub async fn run(options: args::Run) -> Result<ExitCode> {
    let asked = webhooks::asked(&options)?;
    let client = client(&options).await?;
    let wire = Wire::new(client.clone());
    wire.probe().await.context("the API server of the kubeconfig cannot be reached")?;
    let core: Vec<Object> = capstan_api::crds().into_iter().filter_map(Object::from_value).collect();
    let written = crds::install(&wire, &core).await.map_err(|error| anyhow::anyhow!(error))?;
    tracing::info!(written, "CRDs are installed");

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
            ensure_namespace(&wire, SYSTEM_NAMESPACE).await?;
            let answers = Answers {
                admission: vec![Arc::new(CoreAdmission), Arc::new(kinds.clone())],
                conversion: Arc::new(kinds),
            };
            Some(Webhooks::start(wire.clone(), listen, reach, core, answers).await?)
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
    let identity = options.identity.clone().unwrap_or_else(|| {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        format!("{}-{}", host.trim(), std::process::id())
    });
    let runner = Arc::new(Runner::start(runner::Options {
        client,
        rules: Arc::new(CoreRules::new(registry.clone(), options.controllers.iter().copied())),
        providers: registry.clone(),
        modules: Some(registry.clone()),
        egress: registry.endpoints(),
        lease: Some((options.lease.clone(), identity)),
        concurrency: CONCURRENCY,
        after_effect: abort_after_effects()?,
    }));
    registry.read_from(runner.management());
    if let Some(webhooks) = webhooks {
        tokio::spawn(webhooks.keep(runner.clone(), registry.clone()));
    }
    if let Some(directory) = &options.providers {
        runner.kinds_served(&[(GROUP.into(), PROVIDER_MODULE.into())]).await;
        for file in components(Some(directory))? {
            let name = file.file_stem().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            let mut module = Object::new(&Gvk::new(GROUP, "v1alpha1", PROVIDER_MODULE), "", &name);
            module.set("/spec/source/file", file.display().to_string().into());
            manifest::ensure(runner.management(), &module).await?;
        }
    }
    tracing::info!("running");
    let mut terminate =
        tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).context("listen for SIGTERM")?;
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
    runner.stop().await;
    Ok(ExitCode::SUCCESS)
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
        None => kube::Config::infer().await.context("no kubeconfig: say which with --kubeconfig FILE")?,
    };
    kube::Client::try_from(config).context("the kubeconfig cannot be used")
}
