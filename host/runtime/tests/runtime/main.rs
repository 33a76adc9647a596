//! Components loaded, called, and stopped.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod guest;
mod hostile;
mod pure;
mod refusals;
mod replay;
mod turns;
