//! A machine is one container.

use capstan_provider::{
    Address, AddressKind, Condition, Context, Kind, MachineFacts, MachineKind, Part, Phase, Result, Schema, Violation,
    infrastructure::PartsOf, json, time,
};
use serde::{Deserialize, Serialize};

use crate::{
    boot,
    container::{Boot, CONTAINER, ContainerState, Frozen, Node, node_name},
    load_balancer::{LOAD_BALANCER, LoadBalancerState},
};

/// A machine that is a container of one Docker Engine.
#[derive(Clone, Debug, PartialEq, Deserialize, Schema, Kind)]
#[serde(rename_all = "camelCase")]
#[kind(name = "DockerMachine", version = "v1beta2", status = DockerMachineStatus, served_too = crate::v1beta1::Machine)]
pub struct DockerMachine {
    /// Once known.
    #[serde(rename = "providerID")]
    #[schema(hidden)]
    pub provider_id: Option<String>,
    /// Its image; `kindest/node` of the machine's Kubernetes version if absent. Pulled if the engine lacks it.
    #[schema(max_length = 512)]
    pub custom_image: Option<String>,
    /// Images to load into the node before it joins: refused, they are not loaded.
    #[serde(default)]
    #[schema(max_items = 100)]
    pub pre_load_images: Vec<String>,
    /// Directories of the engine's machine in the container.
    #[serde(default)]
    #[schema(max_items = 100)]
    pub extra_mounts: Vec<Mount>,
    /// How long the machine may take to boot and to carry its bootstrap data out, such as `5m`, which it is if absent.
    pub bootstrap_timeout: Option<String>,
    /// Of no effect; in older manifests.
    pub bootstrapped: Option<bool>,
    /// The container has all privileges, as a real node needs.
    #[serde(default = "yes")]
    #[schema(default = true)]
    pub privileged: bool,
}

fn yes() -> bool {
    true
}

/// A directory of the engine's machine in the container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct Mount {
    /// Where it appears.
    pub container_path: String,
    /// Where it is.
    pub host_path: String,
    /// No writes.
    pub read_only: Option<bool>,
}

/// What is known of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Schema)]
#[serde(rename_all = "camelCase")]
pub struct DockerMachineStatus {
    /// What the engine says its container does.
    pub container: Option<String>,
    /// The cluster's load balancer passes connections on to it.
    pub load_balancer_configured: Option<bool>,
}

impl DockerMachine {
    /// The image that it names.
    pub fn image(&self) -> Option<&str> {
        self.custom_image.as_deref().filter(|image| !image.is_empty())
    }

    /// How long the bootstrap data may take (ms).
    pub fn timeout(&self) -> u64 {
        self.bootstrap_timeout.as_deref().and_then(time::duration).unwrap_or(5 * 60 * 1000)
    }
}

impl PartsOf for DockerMachine {
    fn parts(ctx: &Context<Self>) -> Result<Vec<Box<dyn Part<Self>>>> {
        Ok(vec![Box::new(Node { replaceable: ctx.spec.provider_id.is_none() })])
    }

    fn validate(_old: Option<&Self>, new: &Self) -> Vec<Violation> {
        let mut violations = Vec::new();
        if new.bootstrap_timeout.as_deref().is_some_and(|text| time::duration(text).is_none()) {
            violations.push(Violation::new("/spec/bootstrapTimeout", "no duration such as 5m or 90s"));
        }
        for (index, mount) in new.extra_mounts.iter().enumerate() {
            for (field, path) in [("containerPath", &mount.container_path), ("hostPath", &mount.host_path)] {
                if !path.starts_with('/') {
                    let field = format!("/spec/extraMounts/{index}/{field}");
                    violations.push(Violation::new(field, format!("{path:?} is no absolute path")));
                }
            }
        }
        if !new.pre_load_images.is_empty() {
            violations.push(Violation::new(
                "/spec/preLoadImages",
                "images are not loaded into nodes: put them into the node image, or let the node pull them",
            ));
        }
        violations
    }
}

impl MachineKind for DockerMachine {
    fn report(ctx: &Context<Self>) -> Result<MachineFacts> {
        let known = ctx.known(CONTAINER).unwrap_or_default();
        let frozen: Option<Frozen> = known.frozen()?;
        let Some(container) = known.state::<ContainerState>()? else {
            let Some(name) = known.id.filter(|_| known.confirmed) else { return Ok(MachineFacts::default()) };
            let message = format!("container {name} is gone; delete the Machine to have it replaced");
            let gone = Condition::new("ContainerProvisioned", Some(false), "ContainerDeleted", message);
            return Ok(MachineFacts { conditions: vec![gone], ..MachineFacts::default() });
        };
        let name = &container.name;
        let node = node_name(ctx);
        let begun = container.boot.begun();
        let mut addresses = vec![Address { kind: AddressKind::Hostname, value: node.clone() }];
        addresses
            .extend(container.addresses.iter().map(|ip| Address { kind: AddressKind::InternalIp, value: ip.clone() }));
        let provisioned = if container.running {
            Condition::new("ContainerProvisioned", Some(true), "ContainerProvisioned", "")
        } else {
            let why = if container.trouble.is_empty() { String::new() } else { format!(": {}", container.trouble) };
            let message = format!("container {name} is {}{why}", container.status);
            Condition::new("ContainerProvisioned", Some(false), "ContainerNotRunning", message)
        };
        let control_plane = ctx.machine().is_some_and(|machine| machine.control_plane());
        let load_balancer_configured = match ctx.cluster().infrastructure_state::<LoadBalancerState>(LOAD_BALANCER)? {
            Some(balancer) if control_plane => Some(balancer.loaded && balancer.servers.contains(&ctx.name())),
            _ => None,
        };
        Ok(MachineFacts {
            phase: match (container.running, begun) {
                (true, true) => Phase::Running,
                (false, true) => Phase::Stopped,
                (_, false) => Phase::Pending,
            },
            // Before that the container may still be replaced, by one of another name.
            provider_id: begun.then(|| format!("docker:////{name}")),
            addresses: if container.addresses.is_empty() { Vec::new() } else { addresses },
            failure_domain: frozen.and_then(|frozen| frozen.failure_domain),
            node_name: Some(node),
            conditions: vec![provisioned, bootstrap_condition(ctx, &container)],
            status: json::text(&DockerMachineStatus {
                container: Some(container.status.clone()),
                load_balancer_configured,
            })?,
            ..MachineFacts::default()
        })
    }
}

fn bootstrap_condition(ctx: &Context<DockerMachine>, container: &ContainerState) -> Condition {
    let kind = "BootstrapCompleted";
    let name = &container.name;
    let look = format!("see {}/log in container {name}", boot::DIRECTORY);
    if ctx.machine().is_some_and(|machine| machine.node_bound()) {
        return Condition::new(kind, Some(true), "NodeJoined", "");
    }
    let seconds = ctx.spec.timeout() / 1000;
    match container.boot {
        Boot::Ended { code: 0, .. } => Condition::new(kind, Some(true), "BootstrapCompleted", ""),
        Boot::Ended { code, step } => {
            let message = format!("step {step} of the bootstrap data ended with exit code {code}: {look}");
            Condition::new(kind, Some(false), "BootstrapFailed", message)
        }
        Boot::Written if container.booting && container.overdue => {
            let message = format!("container {name} has not booted within {seconds} s: docker logs {name}");
            Condition::new(kind, Some(false), "BootTimedOut", message)
        }
        Boot::Written if container.booting => {
            Condition::new(kind, None, "ContainerBooting", format!("the system of container {name} comes up"))
        }
        _ if container.overdue => {
            let message = format!("the bootstrap data has not been carried out within {seconds} s: {look}");
            Condition::new(kind, Some(false), "BootstrapTimedOut", message)
        }
        _ => Condition::new(kind, None, "Bootstrapping", "the bootstrap data is being carried out"),
    }
}
