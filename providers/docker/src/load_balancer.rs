//! The load balancer: haproxy in a container, in front of the API servers of the control-plane machines.
//!
//! Its configuration follows the cluster's machines: written, read back, loaded by SIGHUP, and only then noted beside it as
//! loaded. So whatever is interrupted is done again, and nothing is forgotten. It is judged by whether it runs, and the
//! endpoint that was told once stays.

use capstan_provider::{
    Choice, Context, Error, Observed, Operation, Part, Presence, Progress, Reason, Result, secrets::Member, time,
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{
    CLUSTER, OWNER, ROLE,
    cluster::{API_PORT, DockerCluster},
    engine::{Container, Engine},
    free_name, haproxy,
    image::Image,
    network::{NETWORK, NetworkState},
};

/// The part's name.
pub const LOAD_BALANCER: &str = "load-balancer";

const DIRECTORY: &str = "/usr/local/etc/haproxy";
const CONFIG: &str = "haproxy.cfg";
/// A copy of the configuration that haproxy has loaded.
const LOADED: &str = "loaded.cfg";

const WRITE: &str = "WriteConfiguration";
const START: &str = "Start";
const LOAD: &str = "LoadConfiguration";
const NOTE: &str = "NoteConfiguration";

/// How long haproxy is given to take a configuration over (ms).
const SETTLE: u64 = 50;
/// One that ends is not started again within this time of its last start (ms).
const PAUSE: u64 = 10_000;

/// The load balancer.
pub struct LoadBalancer;

/// What `report` and the machines need to know of the load balancer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LoadBalancerState {
    /// Name of its container.
    pub name: String,
    /// Its address; kept while it does not run.
    pub address: Option<String>,
    /// It runs.
    pub running: bool,
    /// It has loaded the configuration that the machines ask for.
    pub loaded: bool,
    /// Which configuration that is.
    #[serde(default)]
    pub configuration: String,
    /// The engine's id of the container.
    #[serde(default)]
    pub id: String,
    /// The machines in that.
    #[serde(default)]
    pub servers: Vec<String>,
    /// Why it does not run.
    pub trouble: String,
}

/// Where the API server is to be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Front {
    /// The port that haproxy listens on.
    pub port: u16,
    /// The endpoint's host, where it is given: by the user, or because it was told once.
    pub host: Option<String>,
    /// The address that the container has to have.
    pub address: Option<String>,
    /// The host is none of the network's addresses: it leads to the engine's machine, which has to pass the port on.
    pub published: bool,
}

impl Front {
    /// From the spec and the network.
    pub fn of(spec: &DockerCluster, network: &NetworkState) -> Self {
        let given = spec.control_plane_endpoint.clone().unwrap_or_default();
        let port = u16::try_from(given.port).ok().filter(|port| *port > 0).unwrap_or(API_PORT);
        let host = Some(given.host).filter(|host| !host.is_empty());
        let published = host.as_ref().is_some_and(|host| !network.holds(host));
        let address = if published { None } else { host.clone() }.or_else(|| network.load_balancer_address.clone());
        Self { port, host, address, published }
    }
}

/// Says that haproxy was told to load this configuration, until that is noted beside it.
fn token(configuration: &str) -> String {
    format!("loaded-{:016x}", capstan_provider::hash(configuration))
}

fn member(path: &str, content: &str) -> Member {
    Member { path: path.to_owned(), mode: 0o644, content: vec![content.into()] }
}

/// The network of the cluster, once it is there.
pub fn network(ctx: &Context<DockerCluster>) -> Result<Option<NetworkState>> {
    Ok(ctx.known(NETWORK).map(|known| known.state()).transpose()?.flatten())
}

fn default_name(ctx: &Context<DockerCluster>) -> String {
    format!("{}-lb", ctx.cluster().name())
}

/// Whether starting it is worth a try: the engine does not do so itself, and it has not just ended after a start.
fn may_start(ctx: &Context<DockerCluster>, container: &Container) -> bool {
    let state = &container.state;
    let just = time::milliseconds(&state.started_at).is_some_and(|at| at.saturating_add(PAUSE) > ctx.now());
    !state.restarting && !state.paused && (state.status == "created" || state.exit_code == 0 || !just)
}

impl Part<DockerCluster> for LoadBalancer {
    fn name(&self) -> String {
        LOAD_BALANCER.to_owned()
    }

    fn after(&self) -> Vec<String> {
        vec![NETWORK.to_owned()]
    }

    fn identify(&self, ctx: &Context<DockerCluster>, reserved: &[String]) -> Result<Choice> {
        let image = Image::choose(ctx, &Engine::find()?, &ctx.spec.load_balancer_image())?;
        Choice::chosen(free_name(ctx, default_name(ctx), reserved)).freeze(&image)
    }

    fn observe(&self, ctx: &Context<DockerCluster>) -> Result<Presence> {
        let known = ctx.known(LOAD_BALANCER).unwrap_or_default();
        let name = known.id.clone().unwrap_or_else(|| default_name(ctx));
        let engine = Engine::find()?;
        let Some(container) = engine.inspect(&name)? else { return Ok(Presence::absent_by_id()) };
        if container.label(OWNER) != Some(&ctx.owner_key()) {
            let message = format!("container {name} is there and was not made for this cluster");
            return Ok(Presence::foreign("NameTaken", message));
        }
        let network = network(ctx)?;
        let address = network.as_ref().and_then(|network| container.addresses(&network.name).into_iter().next());
        let before: Option<LoadBalancerState> = known.state()?;
        let address = address.or_else(|| before.as_ref().and_then(|before| before.address.clone()));
        let port = network.map_or(API_PORT, |network| Front::of(&ctx.spec, &network).port);
        let servers = haproxy::servers(&ctx.cluster().machines());
        let wanted = haproxy::configuration(&servers, port);
        let token = token(&wanted);
        // What this container was seen to have loaded needs no reading again.
        let seen = before.is_some_and(|it| it.loaded && it.id == container.id && it.configuration == token);
        let (written, loaded) = if seen {
            (true, true)
        } else {
            let files = engine.directory(&name, DIRECTORY)?;
            let is_wanted = |file| files.get(file) == Some(&wanted);
            (is_wanted(CONFIG), is_wanted(CONFIG) && is_wanted(LOADED))
        };
        let running = container.runs();
        let state = LoadBalancerState {
            name: name.clone(),
            address: address.clone(),
            running,
            loaded,
            configuration: token.clone(),
            id: container.id.clone(),
            servers: servers.into_iter().map(|server| server.name).collect(),
            trouble: engine.trouble(&name, &container)?,
        };
        let observed = Observed::new(&name, &state)?.ready(running && address.is_some());
        Ok(Presence::Present(match (written, running, loaded) {
            (false, ..) => observed.todo(WRITE, "write the list of API servers"),
            (true, false, _) if may_start(ctx, &container) => observed.todo(START, "start the container"),
            (true, false, _) | (true, true, true) => observed,
            (true, true, false) if known.operation.as_ref() == Some(&token) => {
                observed.todo(NOTE, "note that it is loaded")
            }
            (true, true, false) => observed.todo(LOAD, "load the list of API servers"),
        }))
    }

    fn create(&self, ctx: &Context<DockerCluster>) -> Result<Progress> {
        let name = ctx.id_of(LOAD_BALANCER)?;
        let Some(network) = network(ctx)? else {
            return Ok(Progress::waiting("WaitingForNetwork", "the network is not there yet"));
        };
        let image: Option<Image> = ctx.known(LOAD_BALANCER).map(|known| known.frozen()).transpose()?.flatten();
        let image = image.ok_or_else(|| Error::internal("the load balancer's image was not chosen"))?;
        let engine = Engine::find()?;
        if let Some(waiting) = image.wait(ctx, &engine, "spec.loadBalancer.imageRepository and imageTag")? {
            return Ok(waiting);
        }
        let front = Front::of(&ctx.spec, &network);
        let place = match &front.address {
            Some(address) => json!({"IPAMConfig": {"IPv4Address": address}}),
            None => json!({}),
        };
        let port = format!("{}/tcp", front.port);
        let ports = if front.published { json!({&port: [{"HostPort": front.port.to_string()}]}) } else { json!({}) };
        let body = json!({
            "Image": image.image,
            // As the image would start it, but for `-sf 7`, with which kindest/haproxy can stop as soon as it has started.
            "Entrypoint": ["haproxy", "-W", "-db", "-f", format!("{DIRECTORY}/{CONFIG}")],
            "Labels": {OWNER: ctx.owner_key(), CLUSTER: ctx.cluster().name(), ROLE: "external-load-balancer"},
            "ExposedPorts": {&port: {}},
            "HostConfig": {
                "NetworkMode": network.name,
                "RestartPolicy": {"Name": "unless-stopped"},
                "PortBindings": ports,
            },
            "NetworkingConfig": {"EndpointsConfig": {network.name: place}},
        });
        engine.create(&name, &body)
    }

    fn update(&self, ctx: &Context<DockerCluster>, todo: &[Reason]) -> Result<Progress> {
        let name = ctx.id_of(LOAD_BALANCER)?;
        let engine = Engine::find()?;
        let port = network(ctx)?.map_or(API_PORT, |network| Front::of(&ctx.spec, &network).port);
        let wanted = haproxy::configuration(&haproxy::servers(&ctx.cluster().machines()), port);
        match todo.first().map(|reason| reason.code.as_str()) {
            Some(WRITE) => {
                let state: Option<LoadBalancerState> =
                    ctx.known(LOAD_BALANCER).map(|known| known.state()).transpose()?.flatten();
                let mut members = vec![member(CONFIG, &wanted)];
                if state.is_some_and(|state| !state.running) {
                    // It loads what is there when it starts.
                    members.push(member(LOADED, &wanted));
                }
                engine.put_files(&name, DIRECTORY, &members)
            }
            Some(START) => engine.start(&name),
            Some(LOAD) => {
                let answer = engine.post("/containers/{}/kill", &[&name]).query("signal", "SIGHUP").send()?;
                match answer.status {
                    200 | 204 => Ok(Progress::Started {
                        id: Some(name),
                        operation: Operation { token: token(&wanted), look_again_after: SETTLE },
                    }),
                    409 => Ok(Progress::waiting("NotRunning", format!("container {name} does not run"))),
                    _ => Err(answer.error()),
                }
            }
            Some(NOTE) => engine.put_files(&name, DIRECTORY, &[member(LOADED, &wanted)]),
            other => Err(Error::internal(format!("the load balancer cannot do {other:?}"))),
        }
    }

    fn delete(&self, ctx: &Context<DockerCluster>) -> Result<Progress> {
        Engine::find()?.remove(&ctx.id_of(LOAD_BALANCER)?)
    }
}

#[cfg(test)]
#[path = "load_balancer_tests.rs"]
mod tests;
