//! Decisions: snapshot in, plan out. No I/O, no async, no clock, no client (design, section 2).
//!
//! - [`view`]: what a decision may read;
//! - [`plan`]: what a decision may ask for;
//! - [`contract`]: the provider contract's records, as the host holds them;
//! - [`conditions`], [`contract_read`], [`difference`], [`ownership`]: what the rules share;
//! - [`rules`]: the rules of the core kinds: [`cluster`], [`machine`], [`machine_set`], [`machine_deployment`], and of
//!   in-cluster IPAM: [`ipam`];
//! - [`turn`]: how a provider's turn is driven, one call at a time;
//! - [`identity`]: where an endpoint is and as whom requests go there, as far as objects say it;
//! - [`provider`]: the rules for kinds that provider modules serve: [`infrastructure`], [`bootstrap`], [`control_plane`].

pub mod cluster;
pub mod conditions;
pub mod contract;
pub mod contract_read;
pub mod difference;
pub mod identity;
pub mod ipam;
pub mod machine;
pub mod machine_deployment;
pub mod machine_set;
pub mod ownership;
pub mod plan;
pub mod rules;
pub mod turn;
pub mod view;

pub mod bootstrap;
pub mod certificate;
pub mod cluster_input;
pub mod control_plane;
pub mod infrastructure;
pub mod needs;
mod parts;
pub mod provider;
pub mod record;
mod script;

#[cfg(any(test, feature = "testing"))]
pub mod testing;

#[cfg(test)]
mod quickstart;
