//! What the host tells about the subject, its cluster and its machine. The spec is parsed once per instance.

use std::{any::Any, cell::RefCell, rc::Rc};

use serde::de::DeserializeOwned;

use crate::{Error, Reason, Result, host};

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// A name or an address.
    pub host: String,
    /// A TCP port.
    pub port: u16,
}

/// A Cluster API condition that the provider reports beside those the host derives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// `BootstrapCompleted`
    pub kind: String,
    /// True, False or Unknown.
    pub ok: Option<bool>,
    /// Why.
    pub reason: Reason,
}

impl Condition {
    /// A condition from its parts.
    pub fn new(kind: &str, ok: Option<bool>, code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { kind: kind.to_owned(), ok, reason: Reason::new(code, message) }
    }
}

/// What the host has on record about one part of the subject.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// What the outside calls it, once chosen or assigned.
    pub id: Option<String>,
    /// The remote has shown this id to be ours at least once.
    pub confirmed: bool,
    /// 1 at first, larger after a deliberate replacement.
    pub attempt: u32,
    /// Stable for subject, part and attempt.
    pub idempotency_key: String,
    /// What `identify` fixed for this attempt, as JSON.
    pub frozen: Option<String>,
    /// Token of an operation that was still running.
    pub operation: Option<String>,
    /// What `observe` returned last, as JSON.
    pub state: Option<String>,
}

impl Known {
    /// What `identify` fixed, as the type that the part froze.
    pub fn frozen<T: DeserializeOwned>(&self) -> Result<Option<T>> {
        typed(self.frozen.as_deref(), "the frozen choice of a part")
    }

    /// What `observe` returned last, as the type that the part observed.
    pub fn state<T: DeserializeOwned>(&self) -> Result<Option<T>> {
        typed(self.state.as_deref(), "the recorded state of a part")
    }
}

fn typed<T: DeserializeOwned>(text: Option<&str>, what: &str) -> Result<Option<T>> {
    let Some(text) = text else { return Ok(None) };
    serde_json::from_str(text).map(Some).map_err(|error| {
        Error::internal(format!("{what} cannot be read, perhaps another version of the provider wrote it: {error}"))
    })
}

/// The subject of this turn, with its spec as the provider's own type.
#[derive(Debug)]
pub struct Context<S> {
    /// The spec; of a template, that of the objects made from it.
    pub spec: S,
}

impl<S> Context<S> {
    /// API group of the subject.
    pub fn group(&self) -> String {
        host::subject_group()
    }

    /// Kind of the subject.
    pub fn kind(&self) -> String {
        host::subject_kind()
    }

    /// Namespace of the subject: its tenant.
    pub fn namespace(&self) -> String {
        host::subject_namespace()
    }

    /// Name of the subject.
    pub fn name(&self) -> String {
        host::subject_name()
    }

    /// `metadata.generation`.
    pub fn generation(&self) -> i64 {
        host::subject_generation()
    }

    /// A label of the subject.
    pub fn label(&self, key: &str) -> Option<String> {
        host::subject_labels().into_iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// An annotation of the subject.
    pub fn annotation(&self, key: &str) -> Option<String> {
        host::subject_annotation(key)
    }

    /// Milliseconds since the Unix epoch, fixed for the whole turn.
    pub fn now(&self) -> u64 {
        host::subject_now()
    }

    /// The owner key: put it where the remote can be searched for it.
    pub fn owner_key(&self) -> String {
        host::subject_owner_key()
    }

    /// The Cluster that the subject belongs to.
    pub fn cluster(&self) -> ClusterView {
        ClusterView(())
    }

    /// The Machine that owns the subject, where there is one.
    pub fn machine(&self) -> Option<MachineView> {
        host::machine_present().then_some(MachineView(()))
    }

    /// What is on record about a part, if anything is.
    pub fn known(&self, part: &str) -> Option<Known> {
        host::known_part(part)
    }

    /// The id on record of a part; an error where the host should have one by now.
    pub fn id_of(&self, part: &str) -> Result<String> {
        self.known(part)
            .and_then(|known| known.id)
            .ok_or_else(|| Error::internal(format!("no id is on record for part `{part}`")))
    }

    /// An address that `needs` declared under this label, once granted: address, prefix, gateway.
    pub fn address(&self, label: &str) -> Option<(String, u8, Option<String>)> {
        host::granted_address(label)
    }

    /// The data of a ConfigMap that `needs` declared under this label, once it is there.
    pub fn config_map(&self, label: &str) -> Option<Vec<(String, String)>> {
        host::granted_config_map(label)
    }
}

/// The Cluster.
#[derive(Clone, Copy, Debug)]
pub struct ClusterView(());

impl ClusterView {
    /// Its name.
    pub fn name(&self) -> String {
        host::cluster_name()
    }

    /// The control-plane endpoint, once known.
    pub fn endpoint(&self) -> Option<HostPort> {
        host::cluster_endpoint()
    }

    /// CIDRs of pods.
    pub fn pod_cidrs(&self) -> Vec<String> {
        host::cluster_pod_cidrs()
    }

    /// CIDRs of services.
    pub fn service_cidrs(&self) -> Vec<String> {
        host::cluster_service_cidrs()
    }

    /// `cluster.local` unless the Cluster says otherwise.
    pub fn service_domain(&self) -> String {
        host::cluster_service_domain()
    }

    /// The spec of the InfraCluster.
    pub fn infrastructure_spec<T: DeserializeOwned>(&self) -> Result<Option<T>> {
        typed(host::cluster_infrastructure_spec().as_deref(), "the spec of the infrastructure cluster")
    }

    /// The state of one part of the InfraCluster, for a machine of the same provider.
    pub fn infrastructure_state<T: DeserializeOwned>(&self, part: &str) -> Result<Option<T>> {
        typed(host::cluster_infrastructure_state(part).as_deref(), "the state of a part of the infrastructure cluster")
    }

    /// Its machines of this provider.
    pub fn machines(&self) -> Vec<MachineSummary> {
        host::cluster_machines()
    }
}

/// A machine of the cluster, for an InfraCluster that lists them in a load balancer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineSummary {
    /// Name of the Machine.
    pub name: String,
    /// It belongs to the control plane.
    pub control_plane: bool,
    /// Its addresses, once reported.
    pub addresses: Vec<String>,
    /// It is being deleted.
    pub deleting: bool,
}

/// The Machine that owns the subject.
#[derive(Clone, Copy, Debug)]
pub struct MachineView(());

impl MachineView {
    /// Its name.
    pub fn name(&self) -> String {
        host::machine_name()
    }

    /// A label of it.
    pub fn label(&self, key: &str) -> Option<String> {
        host::machine_label(key)
    }

    /// It belongs to the control plane.
    pub fn control_plane(&self) -> bool {
        host::machine_control_plane()
    }

    /// `spec.version`.
    pub fn kubernetes_version(&self) -> Option<String> {
        host::machine_kubernetes_version()
    }

    /// `spec.failureDomain`.
    pub fn failure_domain(&self) -> Option<String> {
        host::machine_failure_domain()
    }

    /// It is being deleted.
    pub fn deleting(&self) -> bool {
        host::machine_deleting()
    }

    /// A Node with this machine's providerID has joined.
    pub fn node_bound(&self) -> bool {
        host::machine_node_bound()
    }

    /// Format of the bootstrap data once rendered: `cloud-config`, `ignition`, …
    pub fn bootstrap_format(&self) -> Option<String> {
        host::machine_bootstrap_format()
    }
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<dyn Any>>> = const { RefCell::new(None) };
}

/// The context of this instance. The spec is parsed at the first call.
pub(crate) fn current<S: DeserializeOwned + 'static>() -> Result<Rc<Context<S>>> {
    let known = CURRENT.with_borrow(|current| current.clone());
    if let Some(context) = known.and_then(|known| known.downcast::<Context<S>>().ok()) {
        return Ok(context);
    }
    let context = Rc::new(Context { spec: parse_spec::<S>(&host::subject_spec(), &host::subject_kind())? });
    CURRENT.with_borrow_mut(|current| *current = Some(context.clone() as Rc<dyn Any>));
    Ok(context)
}

/// A native test starts a new turn on the same thread.
#[cfg(not(target_arch = "wasm32"))]
pub(crate) fn forget() {
    CURRENT.with_borrow_mut(|current| *current = None);
}

fn parse_spec<S: DeserializeOwned>(text: &str, kind: &str) -> Result<S> {
    let bad = |error: serde_json::Error| Error::invalid("/spec", format!("does not fit the schema of {kind}: {error}"));
    if !kind.ends_with("Template") {
        return serde_json::from_str(text).map_err(bad);
    }
    let template: serde_json::Value = serde_json::from_str(text).map_err(bad)?;
    // Read from text like any other: a second way to read every type would be half a component's code.
    let spec = template.pointer("/template/spec").map_or_else(|| "{}".to_owned(), ToString::to_string);
    serde_json::from_str(&spec).map_err(bad)
}

/// The object's spec out of a whole custom resource, as admission sees it.
pub(crate) fn spec_of<S: DeserializeOwned>(object: &serde_json::Value) -> Result<S> {
    let kind = object.get("kind").and_then(|kind| kind.as_str()).unwrap_or_default();
    let spec = object.get("spec").map(ToString::to_string).unwrap_or_else(|| "{}".to_owned());
    parse_spec(&spec, kind)
}
