//! What a guest returns, in the host's own records.

use capstan_core::contract as host;
use serde_json::Value;

use super::bindings::capstan::provider::types as wit;
use super::exports::{control_plane, infra_cluster, infra_machine, needs, resources};
use crate::limits::broken;

/// A record of this version in the host's own.
pub(super) trait IntoHost {
    type Host;
    fn into_host(self) -> Self::Host;
}

fn json(what: &str, text: &str) -> wasmtime::Result<Value> {
    serde_json::from_str(text).map_err(|error| broken(format!("{what} is not JSON: {error}")))
}

pub(super) fn reason(reason: wit::Reason) -> host::Reason {
    host::Reason { code: reason.code, message: reason.message }
}

pub(super) fn violation(violation: wit::Violation) -> host::Violation {
    host::Violation { path: violation.path, message: violation.message }
}

pub(super) fn reason_out(reason: &host::Reason) -> wit::Reason {
    wit::Reason { code: reason.code.clone(), message: reason.message.clone() }
}

fn reasons(list: Vec<wit::Reason>) -> Vec<host::Reason> {
    list.into_iter().map(reason).collect()
}

fn conditions(list: Vec<wit::Condition>) -> Vec<host::ProviderCondition> {
    let condition = |c: wit::Condition| host::ProviderCondition { kind: c.kind, ok: c.ok, reason: reason(c.reason) };
    list.into_iter().map(condition).collect()
}

fn host_port(endpoint: wit::HostPort) -> host::HostPort {
    host::HostPort { host: endpoint.host, port: endpoint.port }
}

pub(super) fn error(error: wit::ProviderError) -> host::ProviderError {
    match error {
        wit::ProviderError::Transient(why) => host::ProviderError::Transient(reason(why)),
        wit::ProviderError::Throttled(pause) => host::ProviderError::Throttled(pause),
        wit::ProviderError::Unauthorized(why) => host::ProviderError::Unauthorized(reason(why)),
        wit::ProviderError::Invalid(list) => host::ProviderError::Invalid(list.into_iter().map(violation).collect()),
        wit::ProviderError::Conflict(why) => host::ProviderError::Conflict(reason(why)),
        wit::ProviderError::Internal(why) => host::ProviderError::Internal(reason(why)),
    }
}

impl IntoHost for needs::Need {
    type Host = host::Need;
    fn into_host(self) -> host::Need {
        match self {
            needs::Need::Address(pool) => host::Need::Address { group: pool.group, kind: pool.kind, name: pool.name },
            needs::Need::AddressPool(pool) => {
                host::Need::AddressPool { addresses: pool.addresses, prefix: pool.prefix, gateway: pool.gateway }
            }
            needs::Need::Secret(pointer) => host::Need::Secret(pointer),
            needs::Need::ConfigMap(pointer) => host::Need::ConfigMap(pointer),
            needs::Need::KeyPair(pair) => host::Need::KeyPair(host::KeyPair {
                algorithm: match pair.algorithm {
                    needs::Algorithm::Rsa2048 => host::Algorithm::Rsa2048,
                    needs::Algorithm::Rsa3072 => host::Algorithm::Rsa3072,
                    needs::Algorithm::Rsa4096 => host::Algorithm::Rsa4096,
                    needs::Algorithm::EcdsaP256 => host::Algorithm::EcdsaP256,
                    needs::Algorithm::EcdsaP384 => host::Algorithm::EcdsaP384,
                },
                purpose: match pair.purpose {
                    needs::KeyUse::CertificateAuthority => host::KeyUse::CertificateAuthority,
                    needs::KeyUse::SigningOnly => host::KeyUse::SigningOnly,
                },
                common_name: pair.common_name,
                validity_days: pair.validity_days,
            }),
            needs::Need::ClusterToken(length) => host::Need::ClusterToken(length),
            needs::Need::BootstrapToken => host::Need::BootstrapToken,
        }
    }
}

impl IntoHost for resources::Part {
    type Host = host::Part;
    fn into_host(self) -> host::Part {
        host::Part {
            name: self.name,
            after: self.after,
            ownership: match self.ownership {
                resources::Ownership::Managed => host::Ownership::Managed,
                resources::Ownership::Borrowed => host::Ownership::Borrowed,
            },
            replaceable: self.replaceable,
        }
    }
}

impl IntoHost for resources::Choice {
    type Host = wasmtime::Result<host::Choice>;
    fn into_host(self) -> Self::Host {
        let id = match self.identity {
            resources::Identity::Chosen(id) => Some(id),
            resources::Identity::AssignedByRemote => None,
        };
        Ok(host::Choice { id, frozen: json("what identify has frozen", &self.frozen)? })
    }
}

impl IntoHost for resources::Operation {
    type Host = host::Operation;
    fn into_host(self) -> host::Operation {
        host::Operation { token: self.token, look_again_after: self.look_again_after }
    }
}

impl IntoHost for resources::Absence {
    type Host = host::Absence;
    fn into_host(self) -> host::Absence {
        match self {
            resources::Absence::LookedUpById => host::Absence::LookedUpById,
            resources::Absence::SearchedByKey => host::Absence::SearchedByKey,
        }
    }
}

impl IntoHost for resources::Presence {
    type Host = wasmtime::Result<host::Presence>;
    fn into_host(self) -> Self::Host {
        Ok(match self {
            resources::Presence::Absent(how) => host::Presence::Absent(how.into_host()),
            resources::Presence::Pending(operation) => host::Presence::Pending(operation.into_host()),
            resources::Presence::Failed((how, why)) => host::Presence::Failed(how.into_host(), reason(why)),
            resources::Presence::Foreign(why) => host::Presence::Foreign(reason(why)),
            resources::Presence::Present(observed) => host::Presence::Present(host::Observed {
                state: json("the observed state", &observed.state)?,
                id: observed.id,
                ready: observed.ready,
                todo: reasons(observed.todo),
                outdated: reasons(observed.outdated),
                operation: observed.operation.map(IntoHost::into_host),
            }),
        })
    }
}

impl IntoHost for resources::Progress {
    type Host = host::Progress;
    fn into_host(self) -> host::Progress {
        match self {
            resources::Progress::Done(id) => host::Progress::Done(id),
            resources::Progress::Started(started) => host::Progress::Started(started.id, started.operation.into_host()),
            resources::Progress::Waiting(why) => host::Progress::Waiting(reason(why)),
        }
    }
}

impl IntoHost for infra_cluster::Facts {
    type Host = wasmtime::Result<host::ClusterFacts>;
    fn into_host(self) -> Self::Host {
        let domain = |domain: infra_cluster::FailureDomain| host::FailureDomain {
            name: domain.name,
            control_plane: domain.control_plane,
            attributes: domain.attributes.into_iter().collect(),
        };
        Ok(host::ClusterFacts {
            control_plane_endpoint: self.control_plane_endpoint.map(host_port),
            failure_domains: self.failure_domains.into_iter().map(domain).collect(),
            conditions: conditions(self.conditions),
            status: json("the reported status", &self.status)?,
        })
    }
}

impl IntoHost for infra_machine::Facts {
    type Host = wasmtime::Result<host::MachineFacts>;
    fn into_host(self) -> Self::Host {
        let address = |address: infra_machine::Address| host::MachineAddress {
            kind: match address.kind {
                infra_machine::AddressKind::Hostname => "Hostname",
                infra_machine::AddressKind::InternalIp => "InternalIP",
                infra_machine::AddressKind::ExternalIp => "ExternalIP",
                infra_machine::AddressKind::InternalDns => "InternalDNS",
                infra_machine::AddressKind::ExternalDns => "ExternalDNS",
            },
            value: address.value,
        };
        Ok(host::MachineFacts {
            phase: match self.phase {
                infra_machine::Phase::Pending => host::MachinePhase::Pending,
                infra_machine::Phase::Running => host::MachinePhase::Running,
                infra_machine::Phase::Stopped => host::MachinePhase::Stopped,
                infra_machine::Phase::Failed => host::MachinePhase::Failed,
                infra_machine::Phase::Deleting => host::MachinePhase::Deleting,
            },
            provider_id: self.provider_id,
            addresses: self.addresses.into_iter().map(address).collect(),
            failure_domain: self.failure_domain,
            node_name: self.node_name,
            interruptible: self.interruptible,
            conditions: conditions(self.conditions),
            status: json("the reported status", &self.status)?,
        })
    }
}

impl IntoHost for control_plane::Decision {
    type Host = wasmtime::Result<host::ControlPlaneDecision>;
    fn into_host(self) -> Self::Host {
        use control_plane::Step as From;
        use host::ControlPlaneStep as To;
        let step = match self.step {
            From::CreateMachine(machine) => To::CreateMachine {
                failure_domain: machine.failure_domain,
                kubernetes_version: machine.kubernetes_version,
                bootstrap: json("the bootstrap spec of the new machine", &machine.bootstrap)?,
            },
            From::ChangeMachine(change) => To::ChangeMachine {
                machine: change.machine,
                bootstrap: json("the bootstrap spec of the machine", &change.bootstrap)?,
            },
            From::DeleteMachine(removal) => {
                To::DeleteMachine { machine: removal.machine, reason: reason(removal.reason) }
            }
            From::MoveEtcdLeader((from, to)) => To::MoveEtcdLeader(from, to),
            From::RemoveEtcdMember(member) => To::RemoveEtcdMember(member),
            From::ApplyWorkload((label, object)) => To::ApplyWorkload(label, json("the workload object", &object)?),
            From::DeleteWorkload(label) => To::DeleteWorkload(label),
            From::Wait(why) => To::Wait(reason(why)),
            From::Settled => To::Settled,
        };
        Ok(host::ControlPlaneDecision {
            step,
            look_again_after: self.look_again_after,
            conditions: conditions(self.conditions),
            status: json("the reported status", &self.status)?,
            memory: json("the planner's memory", &self.memory)?,
        })
    }
}
