//! Bootstrap: a machine's role in its cluster becomes first-boot data. Pure.

use serde::de::DeserializeOwned;

use crate::{Context, Kind, Need, Result, Secret, Violation, host};

/// A spec that first-boot data is rendered from.
pub trait BootstrapProvider: Kind + DeserializeOwned + 'static {
    /// What is needed from Kubernetes, by label.
    fn needs(ctx: &Context<Self>) -> Result<Vec<(String, Need)>>;

    /// The first-boot data.
    fn render(ctx: &Context<Self>) -> Result<Rendered>;

    /// What the schema cannot say. `old` is absent on creation.
    fn validate(_old: Option<&Self>, _new: &Self) -> Vec<Violation> {
        Vec::new()
    }
}

/// First-boot data.
#[derive(Clone, Debug)]
pub struct Rendered {
    /// `cloud-config`, `ignition`, or a name of the provider's own.
    pub format: String,
    /// The data.
    pub content: Secret,
}

/// What a machine is to do when it boots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinRole {
    /// The first machine of the control plane sets the cluster up.
    ControlPlaneInit,
    /// A further machine of the control plane.
    ControlPlaneJoin,
    /// A worker.
    WorkerJoin,
}

/// The role of the machine.
pub fn role() -> JoinRole {
    host::joining_role()
}

/// `sha256:…` of the public key of a certificate authority that `needs` declared.
pub fn public_key_hash(label: &str) -> Option<String> {
    host::joining_public_key_hash(label)
}

/// From the contract's functions to the trait; called by the export macro and by tests.
pub mod dispatch {
    use super::*;
    use crate::{context, infrastructure};

    /// `needs.declare`
    pub fn declare<P: BootstrapProvider>() -> Result<Vec<(String, Need)>> {
        P::needs(&*context::current::<P>()?)
    }

    /// `bootstrap.render`
    pub fn render<P: BootstrapProvider>() -> Result<Rendered> {
        P::render(&*context::current::<P>()?)
    }

    /// `kinds.convert`
    pub fn convert<P: BootstrapProvider>(object: &str, to: &str) -> Result<String, crate::Reason> {
        crate::versions::convert_text::<P>(object, to)
    }

    /// `kinds.validate`
    pub fn validate<P: BootstrapProvider>(old: Option<&str>, new: &str) -> Vec<Violation> {
        infrastructure::dispatch::validate_spec(old, new, P::validate)
    }
}
