//! What the whole-system scenarios share: a management plane as its user starts it, and a real kubectl.

pub mod docker;
pub mod plane;

pub use plane::{Plane, Up};
