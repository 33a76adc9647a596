//! The core objects of a Cluster.

use std::sync::Arc;

use capstan_api::Object;
use capstan_api::well_known::{CLUSTER_GROUP, CLUSTER_NAME, CONTROL_PLANE};

use crate::view::{NotNow, Place, Select, View};

/// What carries the Cluster's label.
#[derive(Debug, Default)]
pub(super) struct Members {
    /// Control-plane Machines.
    pub(super) control_plane: Vec<Arc<Object>>,
    /// Worker Machines.
    pub(super) workers: Vec<Arc<Object>>,
    /// MachineDeployments.
    pub(super) deployments: Vec<Arc<Object>>,
    /// MachineSets.
    pub(super) sets: Vec<Arc<Object>>,
}

impl Members {
    pub(super) fn of(cluster: &Object, view: &dyn View) -> Result<Self, NotNow> {
        let select = Select::Label(CLUSTER_NAME.into(), cluster.name().into());
        let list = |kind: &str| view.list(&Place::Management, CLUSTER_GROUP, kind, cluster.namespace(), &select);
        let (control_plane, workers) = list("Machine")?.into_iter().partition(|m| m.label(CONTROL_PLANE).is_some());
        Ok(Self { control_plane, workers, deployments: list("MachineDeployment")?, sets: list("MachineSet")? })
    }

    /// MachineSets that belong to no MachineDeployment.
    pub(super) fn standalone_sets(&self) -> impl Iterator<Item = &Arc<Object>> {
        self.sets.iter().filter(|s| s.controller().is_none())
    }

    /// Worker Machines that belong to no MachineSet.
    pub(super) fn standalone_workers(&self) -> impl Iterator<Item = &Arc<Object>> {
        self.workers.iter().filter(|m| m.controller().is_none())
    }
}
