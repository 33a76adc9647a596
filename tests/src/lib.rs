//! What the whole-system scenarios share: a management plane as its user starts it, a real kubectl, and what stands in for clouds.

pub mod docker;
pub mod http;
pub mod lab;
pub mod machines;
pub mod plane;

pub use plane::{Plane, Up};
