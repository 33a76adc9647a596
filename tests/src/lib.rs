//! What the whole-system scenarios share: a management plane as its user starts it, a real kubectl, a real API server.

pub mod authority;
pub mod docker;
pub mod plane;
pub mod real;

pub use plane::{Plane, Up};
