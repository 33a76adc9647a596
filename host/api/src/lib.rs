//! Cluster API and Capstan types, CRDs, defaulting and validation: data and pure functions.

pub mod object;
pub mod time;

pub use object::{Gvk, Object, ObjectKey, OwnerReference};
