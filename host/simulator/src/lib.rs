//! A cloud that runs no machine but behaves like one, over real HTTP.
//!
//! [`Simulator`] offers load balancers and machines (the API is described in [`cloud`]). Each machine carries out the boot data it is given
//! ([`shell`], [`files`]); a stand-in for kubeadm ([`kubeadm`]) makes the first control-plane machine serve a workload API, with the certificates it was handed,
//! and lets the others join it with their token over TLS. Thousands of such clusters fit into one process.
//!
//! The same stand-in is the binary `kubeadm-stand-in`, which does in a container what a simulated machine does here.

pub mod api;
pub mod cloud;
pub mod files;
pub mod kubeadm;
pub mod node;
pub mod shell;

pub use cloud::{JournalError, Simulator, SimulatorError, SimulatorOptions};
