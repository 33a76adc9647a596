//! Cluster API and Capstan types, CRDs, defaulting and validation: data and pure functions.

pub mod object;
pub mod time;
pub mod well_known;

pub use object::{Gvk, Object, ObjectKey, OwnerReference};
