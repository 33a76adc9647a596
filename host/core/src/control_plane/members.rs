//! The machines of a control plane, as a planner is shown them.

use std::sync::Arc;

use capstan_api::well_known::CLONED_FROM_NAME;
use capstan_api::{Object, ObjectKey};
use serde_json::{Value, json};

use crate::conditions::{Condition, Status};
use crate::contract::{Member, Reason};
use crate::provider::{PATIENCE, age};
use crate::view::{NotNow, Place, View};

/// A machine with what belongs to it.
#[derive(Clone, Debug)]
pub(super) struct MemberOf {
    pub machine: Arc<Object>,
    pub infrastructure: Option<Arc<Object>>,
    pub bootstrap: Option<Arc<Object>>,
    /// As the planner sees it.
    pub shown: Member,
    /// Its Available condition holds.
    pub available: bool,
}

/// The members, sorted by name as the view's lists are.
pub(super) fn read(view: &dyn View, machines: &[Arc<Object>], now: u64) -> Result<Vec<MemberOf>, NotNow> {
    let mut members = Vec::with_capacity(machines.len());
    for machine in machines {
        let infrastructure = referred(view, machine, "/spec/infrastructureRef")?;
        let bootstrap = referred(view, machine, "/spec/bootstrap/configRef")?;
        members.push(MemberOf {
            shown: shown(machine, infrastructure.as_deref(), bootstrap.as_deref(), now),
            available: Condition::holds(machine, "Available"),
            machine: Arc::clone(machine),
            infrastructure,
            bootstrap,
        });
    }
    Ok(members)
}

fn referred(view: &dyn View, machine: &Object, at: &str) -> Result<Option<Arc<Object>>, NotNow> {
    let (Some(kind), Some(name)) = (machine.str_at(&format!("{at}/kind")), machine.str_at(&format!("{at}/name")))
    else {
        return Ok(None);
    };
    let group = machine.str_at(&format!("{at}/apiGroup")).unwrap_or_default();
    view.get(&Place::Management, &ObjectKey::new(group, kind, machine.namespace(), name))
}

fn shown(machine: &Object, infrastructure: Option<&Object>, bootstrap: Option<&Object>, now: u64) -> Member {
    let bound = machine.str_at("/status/nodeRef/name").is_some();
    let ready = Condition::of(machine, "Ready");
    let unhealthy = ["NodeHealthy", "HealthCheckSucceeded"]
        .iter()
        .filter_map(|kind| Condition::of(machine, kind))
        .filter(|condition| bound && condition.status == Status::False)
        .map(|condition| Reason { code: condition.reason, message: condition.message })
        .collect();
    Member {
        name: machine.name().to_owned(),
        kubernetes_version: machine.str_at("/spec/version").map(str::to_owned),
        failure_domain: machine.str_at("/spec/failureDomain").map(str::to_owned),
        ready: bound && ready.is_none_or(|condition| condition.status == Status::True),
        deleting: machine.is_deleting(),
        age: age(machine, now),
        bootstrap: bootstrap.and_then(|object| object.at("/spec").cloned()),
        cloned_from: infrastructure.and_then(|object| object.annotation(CLONED_FROM_NAME)).map(str::to_owned),
        etcd: None,
        certificate_expiry: None,
        unhealthy,
        remediate: Condition::of(machine, "OwnerRemediated").is_some_and(|c| c.status == Status::False),
    }
}

impl MemberOf {
    /// A machine whose making broke off in the middle never boots: after this time (milliseconds; 0: now) it is to be
    /// deleted and made anew. `None` for one that is whole or on its way out.
    pub(super) fn half_made(&self, now: u64) -> Option<u64> {
        let whole = self.infrastructure.is_some() && self.bootstrap.is_some();
        let begun = self.machine.bool_at("/status/initialization/infrastructureProvisioned")
            || self.machine.str_at("/status/nodeRef/name").is_some();
        if whole || begun || self.machine.is_deleting() {
            return None;
        }
        Some(PATIENCE.saturating_sub(age(&self.machine, now)))
    }

    /// What a decision depends on, which the passing of time does not change.
    pub(super) fn digest(&self) -> Value {
        let m = &self.shown;
        let unhealthy: Vec<(&str, &str)> =
            m.unhealthy.iter().map(|reason| (reason.code.as_str(), reason.message.as_str())).collect();
        json!([
            [json!(m.name), json!(m.kubernetes_version), json!(m.failure_domain), json!(m.cloned_from)],
            [m.ready, m.deleting, m.remediate, self.available],
            m.bootstrap,
            unhealthy,
            Condition::of(&self.machine, "Ready").map(|c| c.message),
        ])
    }
}
