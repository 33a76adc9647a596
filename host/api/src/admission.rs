//! Defaulting and validation of the core kinds: what Cluster API's webhooks do, as a pure function.
//!
//! It is idempotent: admitting what was admitted changes nothing. The embedded API server calls it; on another API
//! server the CRDs' own rules refuse most of the same objects, and the rules of the core read absent values as
//! their defaults.

mod defaulting;
mod validation;

use std::fmt;

use self::validation::Checks;
use crate::Object;
use crate::ipam::IPAM_GROUP;
use crate::well_known::{CAPSTAN_GROUP, CLUSTER_GROUP};

pub use defaulting::label_value;
pub use validation::is_version;

/// What a client is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Create an object.
    Create,
    /// Change its metadata or spec.
    Update,
    /// Delete it.
    Delete,
}

/// Something that is wrong with a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// Where, such as `spec.clusterNetwork.pods.cidrBlocks[0]`.
    pub path: String,
    /// What is wrong and what to do.
    pub message: String,
}

impl FieldError {
    /// From its two words.
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), message: message.into() }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

/// Fills in defaults and checks an object of a core kind, of IPAM or of Capstan's own; other kinds pass untouched.
/// `old` is the object as it is, for an update. An object that is being deleted may always be updated: otherwise a
/// rule that came later would keep its finalizers for ever.
///
/// # Errors
/// Every field that breaks a rule.
pub fn admit(operation: Operation, new: &mut Object, old: Option<&Object>) -> Result<(), Vec<FieldError>> {
    let ours = [CLUSTER_GROUP, CAPSTAN_GROUP, IPAM_GROUP].contains(&new.group());
    if !ours || operation == Operation::Delete || new.is_deleting() {
        return Ok(());
    }
    if new.group() == CLUSTER_GROUP {
        defaulting::fill_in(new, old);
    }
    let mut checks = Checks::default();
    validation::check(new, old, &mut checks);
    checks.finish()
}

#[cfg(test)]
mod tests;
