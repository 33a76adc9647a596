//! What the author of a Capstan provider imports.
//!
//! A provider is one WebAssembly component. It says which *parts* stand behind a custom resource, how to look each
//! of them up and how to create, change and delete it; the host does everything else: order, intent, ids,
//! finalizers, back-off, conditions, events, proof of deletion. `providers/simulated` is the example to copy.
//!
//! - [`infrastructure`]: clusters and machines as parts, and what Cluster API wants to know of them;
//! - [`bootstrap`]: a machine's role becomes first-boot data;
//! - [`control_plane`]: one step of a control plane at a time;
//! - [`Context`]: what the host tells about the subject; [`http`]: requests; [`secrets`]: secrets by handle;
//! - [`aws`] and [`xml`]: the protocols of AWS;
//! - [`Schema`], [`Kind`]: CRDs from Rust types; [`versions`]: older versions of them; [`testing`]: a host for native unit tests.
//!
//! Promises: an error says what was tried and why it failed in the API's own words; a panic reaches the host's log; the
//! spec is parsed once per instance; the same code runs natively, so logic is tested with `cargo test`.

// The derive macros name this crate, also within it.
extern crate self as capstan_provider;

pub use capstan_provider_macros::{Kind, Schema};

pub mod aws;
pub mod bootstrap;
mod context;
pub mod control_plane;
#[cfg(test)]
mod dispatch_tests;
mod error;
mod export;
pub mod http;
pub mod infrastructure;
pub mod json;
pub mod log;
pub mod needs;
pub mod schema;
pub mod secrets;
pub mod time;
pub mod versions;
pub mod xml;

pub use context::{ClusterView, Condition, Context, HostPort, Known, MachineSummary, MachineView};
pub use error::{Error, Reason, Result, Violation};
pub use infrastructure::{
    Absence, Address, AddressKind, Choice, ClusterFacts, ClusterKind, FailureDomain, InfrastructureProvider,
    MachineFacts, MachineKind, Observed, Operation, Part, Phase, Presence, Progress,
};
pub use needs::{Algorithm, KeyPair, KeyUse, Need};
pub use schema::{IntOrString, Kind, Schema};
pub use secrets::{Chunk, Secret};

/// A number from a text, the same for the same text in every version (64-bit FNV-1a): providers have no randomness, and
/// choose among equals by what tells their subjects apart, such as the owner key. No secret and no proof.
pub fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// Where the host's answers come from: the contract's imports in a component, a scripted double elsewhere.
#[cfg(target_arch = "wasm32")]
#[path = "host/component.rs"]
mod host;
#[cfg(not(target_arch = "wasm32"))]
#[path = "host/double.rs"]
mod host;

#[cfg(not(target_arch = "wasm32"))]
pub mod testing;

/// The generated bindings of the interfaces that a provider imports; for the export macros.
#[cfg(target_arch = "wasm32")]
#[doc(hidden)]
pub use host::bindings;

/// What the export macros need; not for authors.
#[doc(hidden)]
pub mod private {
    pub use capstan_provider_macros::{manifest_json, world};
    #[cfg(target_arch = "wasm32")]
    pub use wit_bindgen;

    #[cfg(target_arch = "wasm32")]
    pub use crate::host::panics_to_log;
    pub use crate::infrastructure::dispatch as infrastructure;
    pub use crate::{bootstrap::dispatch as bootstrap, control_plane::dispatch as control_plane};
}

/// Status and memory are JSON objects even where there is nothing to say.
#[doc(hidden)]
#[must_use]
pub fn or_empty_object(json: String) -> String {
    if json.is_empty() { "{}".to_owned() } else { json }
}
