//! Cluster API and Capstan types, CRDs, defaulting and validation: data and pure functions.
//!
//! - [`object`]: an object as it is on the wire; core controllers read provider objects so;
//! - [`cluster`], [`machine`], [`machine_set`], [`machine_deployment`], [`machine_pool`], [`capstan`], [`ipam`], [`meta`]: typed kinds;
//! - [`crds`] and [`provider_crds`]: the CustomResourceDefinitions of the core and of provider components;
//! - [`admission`]: defaulting and validation of the core kinds;
//! - [`well_known`]: names of labels, annotations and finalizers.

pub mod admission;
pub mod capstan;
pub mod cluster;
mod crds;
pub mod ipam;
pub mod machine;
pub mod machine_deployment;
pub mod machine_pool;
pub mod machine_set;
pub mod meta;
pub mod object;
pub mod provider_crds;
mod structural;
pub mod time;
pub mod well_known;

pub use crds::crds;
pub use object::{Gvk, Object, ObjectKey, OwnerReference};
