//! Which Machines go first when there are too many.
//!
//! Being deleted 100, annotated with `cluster.x-k8s.io/delete-machine` 80, unhealthy 50 (no Node, Node or health check
//! not healthy), the others by `spec.deletion.order` below 50; equal ones by name. A Machine that is not available
//! counts as unhealthy here too: a rollout that takes one away counts on it being one that nobody misses.

use std::sync::Arc;

use capstan_api::Object;
use capstan_api::well_known::DELETE_MACHINE;

use crate::conditions::{Condition, Status};
use crate::ownership::created;

/// Ten days in milliseconds: the time in which age comes to matter.
const TEN_DAYS: f64 = 864_000_000.0;

fn unhealthy(machine: &Object) -> bool {
    let is_false = |kind: &str| Condition::of(machine, kind).is_some_and(|c| c.status == Status::False);
    machine.at("/status/nodeRef").is_none()
        || is_false("NodeHealthy")
        || is_false("HealthCheckSucceeded")
        || !Condition::holds(machine, "Available")
}

fn priority(machine: &Object, order: Option<&str>, now: u64) -> f64 {
    if machine.is_deleting() {
        return 100.0;
    }
    if machine.annotation(DELETE_MACHINE).is_some() {
        return 80.0;
    }
    if unhealthy(machine) {
        return 50.0;
    }
    #[allow(clippy::cast_precision_loss)]
    let age = now.saturating_sub(created(machine)) as f64;
    let old = 50.0 * (1.0 - (-age / TEN_DAYS).exp());
    match order {
        Some("Oldest") => old.min(49.999),
        Some("Newest") => (50.0 - old).min(49.999),
        _ => 20.0,
    }
}

/// All Machines, those that go first in front.
pub fn first_to_go<'a>(machines: &'a [Arc<Object>], order: Option<&str>, now: u64) -> Vec<&'a Arc<Object>> {
    let mut all: Vec<(f64, &Arc<Object>)> = machines.iter().map(|m| (priority(m, order, now), m)).collect();
    all.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.name().cmp(b.1.name())));
    all.into_iter().map(|(_, machine)| machine).collect()
}
