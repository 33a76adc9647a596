//! Kubernetes: watches, snapshots, applying plans, events, workload-cluster connections.

pub mod providers;
