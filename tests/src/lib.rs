//! What the whole-system scenarios share: a management plane as its user starts it, a real kubectl, and what stands in for clouds.

pub mod docker;
pub mod ec2;
pub mod fakepve;
pub mod http;
pub mod hypervisor;
pub mod lab;
pub mod machines;
pub mod moto;
pub mod nocloud;
pub mod plane;
pub mod secrets;
pub mod site;
pub mod witness;
pub mod workers;

pub use plane::{Plane, Up};
