//! Decisions: snapshot in, plan out. No I/O, no async, no clock, no client (design, section 2).
//!
//! - [`view`]: what a decision may read;
//! - [`plan`]: what a decision may ask for;
//! - [`contract`]: the provider contract's records, as the host holds them;
//! - [`conditions`], [`contract_read`], [`difference`]: what the rules share;
//! - [`turn`]: how a provider's turn is driven, one call at a time.

pub mod conditions;
pub mod contract;
pub mod contract_read;
pub mod difference;
pub mod plan;
pub mod turn;
pub mod view;

#[cfg(any(test, feature = "testing"))]
pub mod testing;
