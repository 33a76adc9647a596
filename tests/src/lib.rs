//! What the whole-system scenarios share: a management plane as its user starts it, a real kubectl, a real API server,
//! and what stands in for clouds.

pub mod authority;
pub mod docker;
pub mod fakepve;
pub mod http;
pub mod hypervisor;
pub mod lab;
pub mod machines;
pub mod plane;
pub mod real;
pub mod secrets;
pub mod witness;

pub use plane::{Plane, Up};
