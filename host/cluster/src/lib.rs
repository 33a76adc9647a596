//! Kubernetes: watches, snapshots, applying plans, events, workload-cluster connections.
//!
//! Nothing here knows a rule of Cluster API. [`runner::Runner`] takes the rules (decide: caches in, plan out) and the
//! provider modules, and does the rest:
//! watch event → key → snapshot → decide → plan → apply → watch event (design, section 2).

use std::time::{SystemTime, UNIX_EPOCH};

pub mod apply;
mod choices;
pub mod crds;
pub mod dependencies;
pub mod egress;
pub mod events;
mod fence;
pub mod kinds;
pub mod kubeconfig;
pub mod lease;
pub mod mint;
pub mod mirror;
pub mod modules;
pub mod providers;
pub mod queue;
pub mod runner;
pub mod store;
pub mod view;
mod wakeup;
pub mod wire;
pub mod workload;

/// Milliseconds since the Unix epoch.
pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
}
