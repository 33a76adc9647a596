//! The load balancer: haproxy in a container, in front of the API servers of the control-plane machines.
//!
//! Its configuration follows the cluster's machines: written, loaded by SIGHUP, and only then noted beside it as loaded.
//! So whatever is interrupted is done again, and nothing is forgotten.

use capstan_provider::{
    Choice, Context, Error, MachineSummary, Observed, Operation, Part, Presence, Progress, Reason, Result, http,
    secrets::Member,
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{
    CLUSTER, ENGINE, OWNER, ROLE,
    cluster::{API_PORT, DockerCluster},
    engine, free_name,
    network::{NETWORK, NetworkState},
};

/// The part's name.
pub const LOAD_BALANCER: &str = "load-balancer";

const DIRECTORY: &str = "/usr/local/etc/haproxy";
const CONFIG: &str = "/usr/local/etc/haproxy/haproxy.cfg";
/// A copy of the configuration that haproxy has loaded.
const LOADED: &str = "/usr/local/etc/haproxy/loaded.cfg";

const WRITE: &str = "WriteConfiguration";
const START: &str = "Start";
const LOAD: &str = "LoadConfiguration";
const NOTE: &str = "NoteConfiguration";

/// How long haproxy is given to take a configuration over (ms).
const SETTLE: u64 = 50;

/// The load balancer.
pub struct LoadBalancer;

/// What `report` needs to know of the load balancer.
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
    /// Why it does not run.
    pub trouble: String,
}

/// What haproxy is to do: pass connections on to control-plane machines that answer. A machine that is being deleted
/// gets no more, unless it is the last.
fn configuration(machines: &[MachineSummary]) -> String {
    let mut text = format!(
        "global\n  maxconn 4000\n\ndefaults\n  mode tcp\n  option dontlognull\n  timeout connect 2s\n  timeout client 1h\n  \
         timeout server 1h\n  timeout tunnel 1h\n  timeout check 2s\n  default-server init-addr none\n\n\
         frontend control-plane\n  bind *:{API_PORT}\n  default_backend api-servers\n\n\
         backend api-servers\n  balance roundrobin\n  option redispatch\n  retries 3\n"
    );
    let mut servers: Vec<&MachineSummary> =
        machines.iter().filter(|machine| machine.control_plane && !machine.addresses.is_empty()).collect();
    if servers.iter().any(|machine| !machine.deleting) {
        servers.retain(|machine| !machine.deleting);
    }
    servers.sort_by(|a, b| a.name.cmp(&b.name));
    for machine in servers {
        let address = machine.addresses.iter().find(|address| address.parse::<std::net::IpAddr>().is_ok());
        if let Some(address) = address {
            let address = if address.contains(':') { format!("[{address}]") } else { address.clone() };
            text.push_str(&format!("  server {} {address}:{API_PORT} check inter 500ms fall 2 rise 1\n", machine.name));
        }
    }
    text
}

/// Says that haproxy was told to load this configuration, until that is noted beside it.
fn token(configuration: &str) -> String {
    let hash = configuration
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    format!("loaded-{hash:016x}")
}

fn member(path: &str, content: &str) -> Member {
    Member { path: path.to_owned(), mode: 0o644, content: vec![content.into()] }
}

fn network(ctx: &Context<DockerCluster>) -> Result<Option<NetworkState>> {
    Ok(ctx.known(NETWORK).map(|known| known.state()).transpose()?.flatten())
}

impl Part<DockerCluster> for LoadBalancer {
    fn name(&self) -> String {
        LOAD_BALANCER.to_owned()
    }

    fn after(&self) -> Vec<String> {
        vec![NETWORK.to_owned()]
    }

    fn identify(&self, ctx: &Context<DockerCluster>, reserved: &[String]) -> Result<Choice> {
        Ok(Choice::chosen(free_name(ctx, format!("{}-lb", ctx.cluster().name()), reserved)))
    }

    fn observe(&self, ctx: &Context<DockerCluster>) -> Result<Presence> {
        let known = ctx.known(LOAD_BALANCER);
        let id = known.as_ref().and_then(|known| known.id.clone());
        let name = id.unwrap_or_else(|| format!("{}-lb", ctx.cluster().name()));
        let Some(container) = engine::inspect(&name)? else { return Ok(Presence::absent_by_id()) };
        if container.label(OWNER) != Some(&ctx.owner_key()) {
            let message = format!("container {name} is there and was not made for this cluster");
            return Ok(Presence::foreign("NameTaken", message));
        }
        let network = network(ctx)?;
        let address = network.as_ref().and_then(|network| container.addresses(&network.name).into_iter().next());
        let told = known.as_ref().and_then(|known| known.operation.clone());
        let before: Option<LoadBalancerState> = known.map(|known| known.state()).transpose()?.flatten();
        let address = address.or_else(|| before.and_then(|before| before.address));
        let wanted = configuration(&ctx.cluster().machines());
        let mut files = engine::files(&name, &[CONFIG, LOADED])?.into_iter();
        let written = files.next().flatten().as_deref() == Some(&wanted);
        let loaded = written && files.next().flatten().as_deref() == Some(&wanted);
        let running = container.state.running;
        let state = LoadBalancerState {
            name: name.clone(),
            address: address.clone(),
            running,
            loaded,
            trouble: container.trouble(&name),
        };
        let observed = Observed::new(&name, &state)?.ready(running && address.is_some());
        Ok(Presence::Present(match (written, running, loaded) {
            (false, ..) => observed.todo(WRITE, "write the list of API servers"),
            (true, false, _) => observed.todo(START, "start the container"),
            (true, true, false) if told == Some(token(&wanted)) => observed.todo(NOTE, "note that it is loaded"),
            (true, true, false) => observed.todo(LOAD, "load the list of API servers"),
            (true, true, true) => observed,
        }))
    }

    fn create(&self, ctx: &Context<DockerCluster>) -> Result<Progress> {
        let name = ctx.id_of(LOAD_BALANCER)?;
        let Some(network) = network(ctx)? else {
            return Ok(Progress::waiting("WaitingForNetwork", "the network is not there yet"));
        };
        let place = match &network.load_balancer_address {
            Some(address) => json!({"IPAMConfig": {"IPv4Address": address}}),
            None => json!({}),
        };
        let labels = json!({
            OWNER: ctx.owner_key(), CLUSTER: ctx.cluster().name(), ROLE: "external-load-balancer",
        });
        let body = json!({
            "Image": ctx.spec.load_balancer_image(),
            "Hostname": name,
            "Labels": labels,
            "HostConfig": {"NetworkMode": network.name, "RestartPolicy": {"Name": "unless-stopped"}},
            "NetworkingConfig": {"EndpointsConfig": {network.name: place}},
        });
        engine::create(&name, &body)
    }

    fn update(&self, ctx: &Context<DockerCluster>, todo: &[Reason]) -> Result<Progress> {
        let name = ctx.id_of(LOAD_BALANCER)?;
        let wanted = configuration(&ctx.cluster().machines());
        match todo.first().map(|reason| reason.code.as_str()) {
            Some(WRITE) => {
                let state: Option<LoadBalancerState> =
                    ctx.known(LOAD_BALANCER).map(|known| known.state()).transpose()?.flatten();
                let mut members = vec![member("haproxy.cfg", &wanted)];
                if state.is_some_and(|state| !state.running) {
                    // It loads what is there when it starts.
                    members.push(member("loaded.cfg", &wanted));
                }
                engine::put_files(&name, DIRECTORY, &members)
            }
            Some(START) => engine::start(&name),
            Some(LOAD) => {
                let answer = http::post(ENGINE, "/containers/{}/kill", &[&name]).query("signal", "SIGHUP").send()?;
                match answer.status {
                    200 | 204 => Ok(Progress::Started {
                        id: Some(name),
                        operation: Operation { token: token(&wanted), look_again_after: SETTLE },
                    }),
                    409 => Ok(Progress::waiting("NotRunning", format!("container {name} does not run"))),
                    _ => Err(answer.error()),
                }
            }
            Some(NOTE) => engine::put_files(&name, DIRECTORY, &[member("loaded.cfg", &wanted)]),
            other => Err(Error::internal(format!("the load balancer cannot do {other:?}"))),
        }
    }

    fn delete(&self, ctx: &Context<DockerCluster>) -> Result<Progress> {
        engine::remove(&ctx.id_of(LOAD_BALANCER)?)
    }
}

#[cfg(test)]
mod tests {
    use capstan_provider::{
        Known,
        testing::{Scenario, infrastructure},
    };
    use serde_json::Value;

    use super::*;
    use crate::{Docker, engine::tests::tar};

    fn machine(name: &str, address: &str, deleting: bool) -> MachineSummary {
        MachineSummary {
            name: name.to_owned(),
            control_plane: true,
            addresses: vec![name.to_owned(), address.to_owned()],
            deleting,
        }
    }

    fn machines() -> Vec<MachineSummary> {
        vec![machine("b", "10.0.0.4", false), machine("a", "10.0.0.3", false), machine("gone", "10.0.0.5", true)]
    }

    fn scenario(operation: Option<String>, machines: Vec<MachineSummary>) -> Scenario {
        let mut scenario =
            Scenario::new("DockerCluster", json!({"loadBalancer": {"imageRepository": "r/", "imageTag": "t"}}))
                .known(
                    NETWORK,
                    Known {
                        state: Some(r#"{"name":"n","loadBalancerAddress":"10.0.0.2"}"#.to_owned()),
                        ..Known::default()
                    },
                )
                .known(LOAD_BALANCER, Known { id: Some("c-lb".to_owned()), operation, ..Known::default() });
        scenario.machines = machines;
        scenario
    }

    fn observe(running: bool, config: &str, loaded: &str, operation: Option<String>) -> Observed {
        let inspected: Value = json!({"State": {"Running": running}, "Config": {"Labels": {OWNER: "owner-1"}},
            "NetworkSettings": {"Networks": {"n": {"IPAddress": "10.0.0.2"}}}});
        let (presence, _) = scenario(operation, machines())
            .answer("GET /containers/c-lb/json", 200, inspected)
            .answer_bytes(&format!("GET /containers/c-lb/archive?path={CONFIG}"), 200, tar(config))
            .answer_bytes(&format!("GET /containers/c-lb/archive?path={LOADED}"), 200, tar(loaded))
            .run(|| infrastructure::observe::<Docker>(LOAD_BALANCER));
        match presence {
            Ok(Presence::Present(observed)) => observed,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_control_planes_that_stay_get_connections() {
        let text = configuration(&machines());
        let servers: Vec<&str> = text.lines().filter(|line| line.starts_with("  server ")).collect();
        assert_eq!(
            servers,
            [
                "  server a 10.0.0.3:6443 check inter 500ms fall 2 rise 1",
                "  server b 10.0.0.4:6443 check inter 500ms fall 2 rise 1",
            ]
        );
        assert!(configuration(&[machine("last", "10.0.0.5", true)]).contains("server last"));
        let worker = MachineSummary { control_plane: false, ..machine("w", "10.0.0.6", false) };
        assert!(!configuration(&[worker]).contains("  server w"));
    }

    #[test]
    fn a_configuration_is_written_started_loaded_and_noted() {
        let wanted = configuration(&machines());
        let todo = |observed: Observed| observed.todo.into_iter().map(|reason| reason.code).collect::<Vec<_>>();
        assert_eq!(todo(observe(false, "old", "old", None)), [WRITE]);
        assert_eq!(todo(observe(false, &wanted, &wanted, None)), [START]);
        assert_eq!(todo(observe(true, &wanted, "old", None)), [LOAD]);
        assert_eq!(todo(observe(true, &wanted, "old", Some(token("another")))), [LOAD]);
        assert_eq!(todo(observe(true, &wanted, "old", Some(token(&wanted)))), [NOTE]);
        assert!(todo(observe(true, &wanted, &wanted, None)).is_empty());
        let (progress, _) = scenario(None, machines())
            .answer("POST /containers/c-lb/kill?signal=SIGHUP", 204, json!({}))
            .run(|| infrastructure::update::<Docker>(LOAD_BALANCER, &[Reason::new(LOAD, "")]));
        assert!(matches!(progress, Ok(Progress::Started { operation, .. }) if operation.token == token(&wanted)));
    }

    #[test]
    fn the_address_is_kept_and_the_image_is_the_specs() {
        let (_, sent) = scenario(None, Vec::new())
            .answer("POST /containers/create?name=c-lb", 201, json!({}))
            .run(|| infrastructure::create::<Docker>(LOAD_BALANCER));
        let body = sent[0].json();
        assert_eq!(body["Image"], "r/haproxy:t");
        assert_eq!(body["NetworkingConfig"]["EndpointsConfig"]["n"]["IPAMConfig"]["IPv4Address"], "10.0.0.2");
    }

    #[test]
    fn the_endpoint_is_the_load_balancers_address() {
        let mut scenario = scenario(None, Vec::new());
        let state = r#"{"name":"c-lb","address":"10.0.0.2","running":false,"loaded":false,"trouble":"x"}"#;
        scenario.known.get_mut(LOAD_BALANCER).unwrap().state = Some(state.to_owned());
        let (facts, _) = scenario.run(infrastructure::report_cluster::<Docker>);
        let facts = facts.unwrap();
        assert_eq!(facts.control_plane_endpoint.map(|endpoint| endpoint.host).as_deref(), Some("10.0.0.2"));
        assert_eq!(facts.conditions[0].reason.code, "LoadBalancerNotRunning");
    }
}
