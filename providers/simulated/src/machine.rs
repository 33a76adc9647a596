//! A machine is one machine of the cloud, booted with the bootstrap data.

use capstan_provider::{
    Address, AddressKind, Choice, Condition, Context, Error, Kind, MachineFacts, MachineKind, Observed, Part, Phase,
    Presence, Progress, Result, Schema, http, infrastructure::PartsOf, json, secrets,
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{
    API, cloud_name,
    cluster::{LOAD_BALANCER, LoadBalancerState},
};

const MACHINE: &str = "machine";
/// How long a deletion takes before it is worth looking again (ms).
const LOOK_AGAIN: u64 = 250;

/// A machine in the simulated cloud.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Schema, Kind)]
#[serde(rename_all = "camelCase")]
#[kind(name = "SimulatedMachine", version = "v1beta1", status = SimulatedMachineStatus,
    column("State", "string", ".status.state"))]
pub struct SimulatedMachine {
    /// How many processors it has.
    #[serde(default = "two")]
    #[schema(min = 1, max = 1024, default = 2)]
    pub cpus: u32,
    /// How much memory it has, in MiB.
    #[serde(default = "four_gib", rename = "memoryMiB")]
    #[schema(min = 128, max = 16_777_216, default = 4096)]
    pub memory_mib: u32,
}

fn two() -> u32 {
    2
}

fn four_gib() -> u32 {
    4096
}

/// What is known of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Schema)]
#[serde(rename_all = "camelCase")]
pub struct SimulatedMachineStatus {
    /// What the cloud says it does: `booting`, `running`, `stopped`, `failed` or `deleting`.
    pub state: Option<String>,
}

/// What must not change however often creation is tried.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Frozen {
    failure_domain: Option<String>,
}

/// A machine, as the API describes it and as `report` reads it back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CloudMachine {
    owner: String,
    state: String,
    #[serde(rename = "providerID")]
    provider_id: Option<String>,
    #[serde(default)]
    addresses: Vec<CloudAddress>,
    failure_domain: Option<String>,
    boot_error: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct CloudAddress {
    #[serde(rename = "type")]
    kind: String,
    address: String,
}

impl PartsOf for SimulatedMachine {
    fn parts(_ctx: &Context<Self>) -> Result<Vec<Box<dyn Part<Self>>>> {
        Ok(vec![Box::new(Machine)])
    }
}

impl MachineKind for SimulatedMachine {
    fn report(ctx: &Context<Self>) -> Result<MachineFacts> {
        let known: Option<CloudMachine> = match ctx.known(MACHINE) {
            Some(known) => known.state()?,
            None => None,
        };
        let Some(machine) = known else { return Ok(MachineFacts::default()) };
        let mut conditions = Vec::new();
        if let Some(error) = &machine.boot_error {
            conditions.push(Condition::new("BootstrapCompleted", Some(false), "BootFailed", error.clone()));
        } else if ctx.machine().is_some_and(|machine| machine.node_bound()) {
            conditions.push(Condition::new("BootstrapCompleted", Some(true), "NodeJoined", ""));
        }
        Ok(MachineFacts {
            phase: match machine.state.as_str() {
                "running" => Phase::Running,
                "stopped" => Phase::Stopped,
                "failed" => Phase::Failed,
                "deleting" => Phase::Deleting,
                _ => Phase::Pending,
            },
            provider_id: machine.provider_id.clone(),
            addresses: machine.addresses.iter().filter_map(address).collect(),
            failure_domain: machine.failure_domain.clone(),
            conditions,
            status: json::text(&SimulatedMachineStatus { state: Some(machine.state) })?,
            ..MachineFacts::default()
        })
    }

    fn capacity(ctx: &Context<Self>) -> Vec<(String, String)> {
        vec![("cpu".to_owned(), ctx.spec.cpus.to_string()), ("memory".to_owned(), format!("{}Mi", ctx.spec.memory_mib))]
    }
}

fn address(address: &CloudAddress) -> Option<Address> {
    let kind = match address.kind.as_str() {
        "Hostname" => AddressKind::Hostname,
        "InternalIP" => AddressKind::InternalIp,
        "ExternalIP" => AddressKind::ExternalIp,
        "InternalDNS" => AddressKind::InternalDns,
        "ExternalDNS" => AddressKind::ExternalDns,
        _ => return None,
    };
    Some(Address { kind, value: address.address.clone() })
}

/// The machine itself. One that has vanished is reported and never made anew: its node held data.
struct Machine;

impl Part<SimulatedMachine> for Machine {
    fn name(&self) -> String {
        MACHINE.to_owned()
    }

    fn replaceable(&self) -> bool {
        false
    }

    fn identify(&self, ctx: &Context<SimulatedMachine>, _reserved: &[String]) -> Result<Choice> {
        let failure_domain = ctx.machine().and_then(|machine| machine.failure_domain());
        Choice::chosen(cloud_name(ctx)).freeze(&Frozen { failure_domain })
    }

    fn observe(&self, ctx: &Context<SimulatedMachine>) -> Result<Presence> {
        let name = cloud_name(ctx);
        let Some(answer) = http::get(API, "/v1/machines/{}", &[&name]).found()? else {
            return Ok(Presence::absent_by_id());
        };
        let machine: CloudMachine = answer.json()?;
        if machine.owner != ctx.owner_key() {
            return Ok(Presence::foreign("NameTaken", format!("machine {name} belongs to {}", machine.owner)));
        }
        let observed = Observed::new(name, &machine)?.ready(machine.state == "running");
        Ok(Presence::Present(match machine.state.as_str() {
            "deleting" => observed.operation(machine.state, LOOK_AGAIN),
            _ => observed,
        }))
    }

    fn create(&self, ctx: &Context<SimulatedMachine>) -> Result<Progress> {
        let name = ctx.id_of(MACHINE)?;
        let machine = ctx.machine().ok_or_else(|| Error::internal("a machine is created without its Machine"))?;
        let Some(format) = machine.bootstrap_format() else {
            return Ok(Progress::waiting("WaitingForBootstrapData", "there is no bootstrap data yet"));
        };
        let load_balancer: Option<LoadBalancerState> = ctx.cluster().infrastructure_state(LOAD_BALANCER)?;
        if machine.control_plane() && load_balancer.is_none() {
            return Ok(Progress::waiting("WaitingForLoadBalancer", "the cluster has no load balancer yet"));
        }
        let frozen: Option<Frozen> = ctx.known(MACHINE).map(|known| known.frozen()).transpose()?.flatten();
        let mut body = json!({
            "name": name,
            "owner": ctx.owner_key(),
            "controlPlane": machine.control_plane(),
            "cpus": ctx.spec.cpus,
            "memoryMiB": ctx.spec.memory_mib,
            "userData": "",
            "userDataFormat": format,
        });
        if let Some(load_balancer) = load_balancer.filter(|_| machine.control_plane()) {
            json::set(&mut body, "loadBalancer", load_balancer.name);
        }
        if let Some(domain) = frozen.and_then(|frozen| frozen.failure_domain) {
            json::set(&mut body, "failureDomain", domain);
        }
        if let Some(version) = machine.kubernetes_version() {
            json::set(&mut body, "kubernetesVersion", version);
        }
        let user_data = secrets::get("bootstrap-data")?.base64();
        http::post(API, "/v1/machines", &[]).json_with_secrets(&body, &[("/userData", &user_data)])?.ok()?;
        Ok(Progress::done(name))
    }

    fn delete(&self, ctx: &Context<SimulatedMachine>) -> Result<Progress> {
        let name = ctx.id_of(MACHINE)?;
        http::delete(API, "/v1/machines/{}", &[&name]).found()?;
        Ok(Progress::done(name))
    }
}

#[cfg(test)]
mod tests {
    use capstan_provider::{
        Known,
        testing::{Scenario, TestMachine, infrastructure},
    };

    use super::*;
    use crate::Simulated;

    fn scenario(control_plane: bool) -> Scenario {
        let mut scenario = Scenario::new("SimulatedMachine", json!({"cpus": 4, "memoryMiB": 2048}))
            .secret("bootstrap-data", "#cloud-config\n")
            .machine(TestMachine {
                name: "m".to_owned(),
                control_plane,
                failure_domain: Some("a".to_owned()),
                kubernetes_version: Some("v1.35.0".to_owned()),
                bootstrap_format: Some("cloud-config".to_owned()),
                ..TestMachine::default()
            })
            .known(
                MACHINE,
                Known {
                    id: Some("t.x".to_owned()),
                    frozen: Some(r#"{"failureDomain":"a"}"#.to_owned()),
                    ..Known::default()
                },
            );
        scenario.infrastructure_states.insert(
            LOAD_BALANCER.to_owned(),
            r#"{"name":"t.c","address":"127.1.0.1","port":6443,"state":"active"}"#.to_owned(),
        );
        scenario
    }

    #[test]
    fn creation_splices_the_boot_data_and_attaches_control_planes() {
        let (done, sent) = scenario(true)
            .answer("POST /v1/machines", 201, json!({}))
            .run(|| infrastructure::create::<Simulated>(MACHINE));
        assert_eq!(done, Ok(Progress::done("t.x")));
        assert_eq!(
            sent[0].json(),
            json!({"name": "t.x", "owner": "owner-1", "controlPlane": true, "cpus": 4, "memoryMiB": 2048,
                "userData": "I2Nsb3VkLWNvbmZpZwo=", "userDataFormat": "cloud-config",
                "kubernetesVersion": "v1.35.0", "loadBalancer": "t.c", "failureDomain": "a"})
        );
        let (_, sent) = scenario(false)
            .answer("POST /v1/machines", 201, json!({}))
            .run(|| infrastructure::create::<Simulated>(MACHINE));
        assert_eq!(sent[0].json().get("loadBalancer"), None);
    }

    #[test]
    fn nothing_is_sent_before_there_is_boot_data() {
        let mut early = scenario(false);
        early.machine.as_mut().unwrap().bootstrap_format = None;
        let (progress, sent) = early.run(|| infrastructure::create::<Simulated>(MACHINE));
        assert!(matches!(progress, Ok(Progress::Waiting(_))), "{progress:?}");
        assert!(sent.is_empty());
    }

    #[test]
    fn what_is_observed_is_what_is_reported() {
        let cloud = json!({"name": "t.x", "owner": "owner-1", "state": "running", "providerID": "simulated://t.x",
            "addresses": [{"type": "InternalIP", "address": "127.2.0.1"}, {"type": "Odd", "address": "?"}],
            "failureDomain": "a", "bootError": "kubeadm: the token is unknown", "console": ["x"]});
        let (presence, _) = scenario(false)
            .answer("GET /v1/machines/t.x", 200, cloud)
            .run(|| infrastructure::observe::<Simulated>(MACHINE));
        let Ok(Presence::Present(observed)) = presence else { panic!("{presence:?}") };
        assert!(observed.ready && observed.operation.is_none());
        let mut later = scenario(false);
        later.known.get_mut(MACHINE).unwrap().state = Some(observed.state);
        let (facts, _) = later.run(infrastructure::report_machine::<Simulated>);
        let facts = facts.unwrap();
        assert_eq!(facts.phase, Phase::Running);
        assert_eq!(facts.provider_id.as_deref(), Some("simulated://t.x"));
        assert_eq!(facts.addresses, [Address { kind: AddressKind::InternalIp, value: "127.2.0.1".to_owned() }]);
        assert_eq!(facts.failure_domain.as_deref(), Some("a"));
        assert_eq!(facts.conditions[0].ok, Some(false));
        assert!(facts.conditions[0].reason.message.contains("token"));
    }

    #[test]
    fn a_deletion_is_worth_another_look_and_a_template_has_a_capacity() {
        let (presence, _) = scenario(false)
            .answer("GET /v1/machines/t.x", 200, json!({"owner": "owner-1", "state": "booting"}))
            .run(|| infrastructure::observe::<Simulated>(MACHINE));
        let Ok(Presence::Present(observed)) = presence else { panic!("{presence:?}") };
        assert!(!observed.ready && observed.operation.is_none());
        let (presence, _) = scenario(false)
            .answer("GET /v1/machines/t.x", 200, json!({"owner": "owner-1", "state": "deleting"}))
            .run(|| infrastructure::observe::<Simulated>(MACHINE));
        assert!(matches!(presence, Ok(Presence::Present(observed)) if observed.operation.is_some()));
        let template = Scenario::new("SimulatedMachineTemplate", json!({"template": {"spec": {"cpus": 8}}}));
        let (capacity, _) = template.run(infrastructure::capacity::<Simulated>);
        assert_eq!(capacity, [("cpu".to_owned(), "8".to_owned()), ("memory".to_owned(), "4096Mi".to_owned())]);
    }
}
