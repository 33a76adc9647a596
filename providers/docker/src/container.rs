//! The container of a machine: made, given its bootstrap data, started, and told to carry it out.
//!
//! Until that has begun, a container that ends is replaced, ever later. From then on it is the node, which is neither
//! made anew nor started again here: what happened to it is told.

use capstan_provider::{Choice, Context, Error, Observed, Part, Presence, Progress, Reason, Result, json, time};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    CLUSTER, OWNER, ROLE,
    boot::{self, Ended},
    engine::{Container, Engine},
    free_name,
    image::Image,
    machine::DockerMachine,
    network::{NETWORK, NetworkState},
    subnet::Range,
};

/// The part's name.
pub const CONTAINER: &str = "container";

const WRITE: &str = "WriteBootstrapData";
const START: &str = "Start";
const PREPARE: &str = "PrepareBootstrap";
const RUN: &str = "RunBootstrap";
const REPLACE: &str = "Replace";
/// A container that ended before its time is replaced when it is this old (ms), and each next one when it is twice as old,
/// up to [`LONGEST`].
const PAUSE: u64 = 30_000;
const LONGEST: u64 = 300_000;

/// The container.
pub struct Node {
    /// No providerID is known yet, so nobody counts on this very container.
    pub replaceable: bool,
}

/// What stays the same however often creation is tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Frozen {
    /// Its image.
    #[serde(flatten)]
    pub image: Image,
    /// Where it is said to be.
    pub failure_domain: Option<String>,
}

/// How far the bootstrap data is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Boot {
    /// Not in the container.
    Absent,
    /// In the container.
    Written,
    /// Being carried out.
    Started,
    /// Carried out, or not.
    Ended {
        /// 0 is success.
        code: i32,
        /// The step that failed.
        step: u32,
    },
}

impl Boot {
    /// It has begun: the container is a node, or will never be one.
    pub fn begun(self) -> bool {
        matches!(self, Self::Started | Self::Ended { .. })
    }
}

/// What `report` and later calls need to know of the container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerState {
    /// Its name.
    pub name: String,
    /// What the engine says it does.
    pub status: String,
    /// It runs.
    pub running: bool,
    /// Why it does not run.
    pub trouble: String,
    /// Its addresses, while it runs.
    pub addresses: Vec<String>,
    /// How far the bootstrap data is.
    pub boot: Boot,
    /// Its own system is still coming up.
    pub booting: bool,
    /// It takes longer than it may.
    pub overdue: bool,
    /// A command that was prepared to carry it out.
    pub exec: Option<String>,
}

/// A command in a container, as the engine describes it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Exec {
    #[serde(rename = "Running")]
    running: bool,
    #[serde(rename = "ExitCode")]
    exit_code: Option<i64>,
    #[serde(rename = "ProcessConfig")]
    process: Process,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Process {
    arguments: Vec<String>,
}

/// What the machine calls itself, and so the Node is called: bootstrap data is filled in with it too.
pub fn node_name(ctx: &Context<DockerMachine>) -> String {
    ctx.machine().map_or_else(|| ctx.name(), |machine| machine.name())
}

/// As Cluster API's Docker provider names it: the machine's name, with the cluster's in front.
fn default_name(ctx: &Context<DockerMachine>) -> String {
    let machine = node_name(ctx);
    let cluster = ctx.cluster().name();
    if machine.starts_with(&cluster) { machine } else { format!("{cluster}-{machine}") }
}

fn network(ctx: &Context<DockerMachine>) -> Result<Option<NetworkState>> {
    ctx.cluster().infrastructure_state(NETWORK)
}

fn boot_of(ctx: &Context<DockerMachine>, engine: &Engine, name: &str) -> Result<Boot> {
    // A node that has joined has booted, whatever else there is to be read.
    if ctx.machine().is_some_and(|machine| machine.node_bound()) {
        return Ok(Boot::Ended { code: 0, step: 0 });
    }
    let known: Option<ContainerState> = ctx.known(CONTAINER).map(|known| known.state()).transpose()?.flatten();
    if let Some(ended @ Boot::Ended { .. }) = known.map(|known| known.boot) {
        return Ok(ended);
    }
    let files = engine.directory(name, boot::PROGRESS)?;
    let there = |file| files.contains_key(file);
    Ok(match files.get(boot::RESULT).and_then(|text| Ended::parse(text)) {
        Some(Ended { code, step }) => Boot::Ended { code, step },
        None if there(boot::STARTED) => Boot::Started,
        None if there(boot::WRITTEN) => Boot::Written,
        None => Boot::Absent,
    })
}

/// A command that was prepared to run the script and has not begun: a crash may have come between.
fn prepared(engine: &Engine, container: &Container) -> Result<Option<String>> {
    for id in container.exec_ids.iter().flatten() {
        let Some(answer) = engine.get("/exec/{}/json", &[id]).found()? else { continue };
        let exec: Exec = answer.json()?;
        if exec.process.arguments.iter().any(|word| word == boot::SCRIPT) && !exec.running && exec.exit_code.is_none() {
            return Ok(Some(id.clone()));
        }
    }
    Ok(None)
}

/// Whether the system within is still coming up. An image that boots one, as kindest/node does, says so when it is there.
fn is_booting(engine: &Engine, name: &str, container: &Container) -> Result<bool> {
    let mut words = container.args.iter().chain([&container.path]);
    if !words.any(|word| word.ends_with("/init") || word.ends_with("/systemd")) {
        return Ok(false);
    }
    let up = |line: &str| {
        let target = line.split_once("Reached target").is_some_and(|(_, target)| target.contains("Multi-User System"));
        target || line.contains("detected cgroup v1")
    };
    Ok(!engine.log(name, container, 2000)?.lines().any(up))
}

/// When a container that ended is replaced (ms since the Unix epoch): not at once, or an image that cannot run would be
/// tried all the time.
fn replaced_at(container: &Container, attempt: u32) -> Option<u64> {
    let taken = container.state.error.contains("ddress already in use");
    if taken {
        return Some(0);
    }
    if container.runs() || container.state.status == "created" || container.state.paused {
        return None;
    }
    let pause = (PAUSE << attempt.clamp(1, 6).saturating_sub(1)).min(LONGEST);
    Some(time::milliseconds(&container.created)?.saturating_add(pause))
}

impl Part<DockerMachine> for Node {
    fn name(&self) -> String {
        CONTAINER.to_owned()
    }

    fn replaceable(&self) -> bool {
        self.replaceable
    }

    fn identify(&self, ctx: &Context<DockerMachine>, reserved: &[String]) -> Result<Choice> {
        let machine = ctx.machine();
        let image = match (ctx.spec.image(), machine.as_ref().and_then(|machine| machine.kubernetes_version())) {
            (Some(image), _) => image.to_owned(),
            (None, Some(version)) => format!("kindest/node:{}", version.replace('+', "_")),
            (None, None) => {
                return Err(Error::invalid(
                    "/spec/customImage",
                    "an image is needed where the Machine has no version: set customImage or the Machine's version",
                ));
            }
        };
        let image = Image::choose(ctx, &Engine::find()?, &image)?;
        let failure_domain = machine.and_then(|machine| machine.failure_domain());
        Choice::chosen(free_name(ctx, default_name(ctx), reserved)).freeze(&Frozen { image, failure_domain })
    }

    fn observe(&self, ctx: &Context<DockerMachine>) -> Result<Presence> {
        let engine = Engine::find()?;
        let known = ctx.known(CONTAINER).unwrap_or_default();
        let name = known.id.unwrap_or_else(|| default_name(ctx));
        let Some(container) = engine.inspect(&name)? else { return Ok(Presence::absent_by_id()) };
        if container.label(OWNER) != Some(&ctx.owner_key()) {
            let message = format!("container {name} is there and was not made for this machine");
            return Ok(Presence::foreign("NameTaken", message));
        }
        let running = container.runs();
        let boot = boot_of(ctx, &engine, &name)?;
        let ready_to_run = running && boot == Boot::Written;
        let booting = ready_to_run && is_booting(&engine, &name, &container)?;
        let exec = if ready_to_run && !booting { prepared(&engine, &container)? } else { None };
        let started = time::milliseconds(&container.state.started_at);
        let overdue = started.is_some_and(|at| running && at.saturating_add(ctx.spec.timeout()) < ctx.now());
        let network = network(ctx)?;
        let mut trouble = engine.trouble(&name, &container)?;
        let replace = if self.replaceable && !boot.begun() { replaced_at(&container, known.attempt) } else { None };
        if let Some(replace) = replace.filter(|at| *at > ctx.now()) {
            trouble.push_str(&format!("; it is replaced at {}", time::rfc3339(replace)));
        }
        let state = ContainerState {
            name: name.clone(),
            status: container.state.status.clone(),
            running,
            trouble,
            addresses: network.map(|network| container.addresses(&network.name)).unwrap_or_default(),
            boot,
            booting,
            overdue,
            exec: exec.clone(),
        };
        let observed = Observed::new(&name, &state)?.ready(running && boot.begun());
        Ok(Presence::Present(match (boot, replace) {
            (Boot::Started | Boot::Ended { .. }, _) => observed,
            (_, Some(replace)) if replace > ctx.now() => observed,
            (_, Some(_)) => observed.todo(REPLACE, "replace the container, which has ended"),
            (Boot::Absent, None) => observed.todo(WRITE, "put the bootstrap data into the container"),
            (Boot::Written, None) if !running => observed.todo(START, "start the container"),
            (Boot::Written, None) if booting => observed,
            (Boot::Written, None) if exec.is_none() => {
                observed.todo(PREPARE, "prepare to carry the bootstrap data out")
            }
            (Boot::Written, None) => observed.todo(RUN, "carry the bootstrap data out"),
        }))
    }

    fn create(&self, ctx: &Context<DockerMachine>) -> Result<Progress> {
        let name = ctx.id_of(CONTAINER)?;
        let machine = ctx.machine().ok_or_else(|| Error::internal("a container is made without its Machine"))?;
        if machine.bootstrap_format().is_none() {
            return Ok(Progress::waiting("WaitingForBootstrapData", "there is no bootstrap data yet"));
        }
        let Some(network) = network(ctx)? else {
            return Ok(Progress::waiting("WaitingForNetwork", "the cluster has no network yet"));
        };
        let frozen: Option<Frozen> = ctx.known(CONTAINER).map(|known| known.frozen()).transpose()?.flatten();
        let frozen = frozen.ok_or_else(|| Error::internal("the container's image was not chosen"))?;
        let engine = Engine::find()?;
        if let Some(waiting) = frozen.image.wait(ctx, &engine, "spec.customImage")? {
            return Ok(waiting);
        }
        engine.create(&name, &container_body(ctx, &network, &frozen, machine.control_plane()))
    }

    fn update(&self, ctx: &Context<DockerMachine>, todo: &[Reason]) -> Result<Progress> {
        let name = ctx.id_of(CONTAINER)?;
        let engine = Engine::find()?;
        match todo.first().map(|reason| reason.code.as_str()) {
            Some(WRITE) => engine.put_files(&name, "/", &boot::members(ctx.spec.privileged)?),
            Some(START) => engine.start(&name),
            Some(REPLACE) => engine.remove(&name),
            Some(PREPARE) => {
                engine
                    .post("/containers/{}/exec", &[&name])
                    .json(&json!({"Cmd": ["/bin/sh", boot::SCRIPT], "Privileged": ctx.spec.privileged}))?
                    .ok()?;
                Ok(Progress::done(name))
            }
            Some(RUN) => {
                let state: Option<ContainerState> =
                    ctx.known(CONTAINER).map(|known| known.state()).transpose()?.flatten();
                let exec = state
                    .and_then(|state| state.exec)
                    .ok_or_else(|| Error::internal("no command was prepared to carry the bootstrap data out"))?;
                let answer = engine.post("/exec/{}/start", &[&exec]).json(&json!({"Detach": true}))?.send()?;
                match answer.status {
                    // 409: it runs already, or the container has stopped, which the next look shows.
                    200 | 204 | 409 => Ok(Progress::done(name)),
                    _ => Err(answer.error()),
                }
            }
            other => Err(Error::internal(format!("a container cannot do {other:?}"))),
        }
    }

    fn delete(&self, ctx: &Context<DockerMachine>) -> Result<Progress> {
        Engine::find()?.remove(&ctx.id_of(CONTAINER)?)
    }
}

/// The address of this attempt, in a network of the cluster's own: a node that got another one when the engine is restarted
/// would be none any more. One that somebody else has is found out at the start, and the next attempt has another.
fn address(ctx: &Context<DockerMachine>, network: &NetworkState) -> Option<std::net::Ipv4Addr> {
    network.load_balancer_address.as_ref()?;
    let attempt = ctx.known(CONTAINER).map_or(1, |known| known.attempt);
    let range = network.subnets.iter().find_map(|subnet| Range::parse(subnet))?;
    range.fixed(&format!("{}/{attempt}", ctx.owner_key()))
}

/// What kind's nodes are made with; a container without privileges gets none of what needs them.
fn container_body(ctx: &Context<DockerMachine>, network: &NetworkState, frozen: &Frozen, control_plane: bool) -> Value {
    let place = match address(ctx, network) {
        Some(address) => json!({"IPAMConfig": {"IPv4Address": address.to_string()}}),
        None => json!({}),
    };
    let mut labels = json!({
        OWNER: ctx.owner_key(),
        CLUSTER: ctx.cluster().name(),
        ROLE: if control_plane { "control-plane" } else { "worker" },
    });
    if let Some(domain) = &frozen.failure_domain {
        json::set(&mut labels, "io.x-k8s.cluster.failureDomain", domain.clone());
    }
    let mut mounts: Vec<Value> = ctx
        .spec
        .extra_mounts
        .iter()
        .map(|mount| {
            json!({"Type": "bind", "Source": mount.host_path, "Target": mount.container_path,
                "ReadOnly": mount.read_only == Some(true)})
        })
        .collect();
    let mut host = json!({
        "NetworkMode": network.name,
        "RestartPolicy": {"Name": "unless-stopped"},
        "Privileged": ctx.spec.privileged,
    });
    let mut body = json!({"Image": frozen.image.image, "Hostname": node_name(ctx), "Labels": labels});
    if ctx.spec.privileged {
        mounts.push(json!({"Type": "bind", "Source": "/lib/modules", "Target": "/lib/modules", "ReadOnly": true}));
        json::set(&mut host, "SecurityOpt", json!(["seccomp=unconfined", "apparmor=unconfined"]));
        json::set(&mut host, "Tmpfs", json!({"/tmp": "", "/run": ""}));
        json::set(&mut host, "CgroupnsMode", "private");
        json::set(&mut host, "Init", false);
        json::set(&mut body, "Tty", true);
        json::set(&mut body, "Volumes", json!({"/var": {}}));
    }
    json::set(&mut host, "Mounts", mounts);
    json::set(&mut body, "HostConfig", host);
    json::set(&mut body, "NetworkingConfig", json!({"EndpointsConfig": {&network.name: place}}));
    body
}

#[cfg(test)]
#[path = "container_tests.rs"]
mod tests;
