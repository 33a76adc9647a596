//! The API server as its clients see it: in process, with kube-rs, and over TLS with kubectl.

// The allowance for tests does not reach the functions that tests share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod access;
mod changes;
mod collector;
mod definitions;
mod documents;
mod durability;
mod forwarding;
mod kube_client;
mod kubectl;
mod lists;
mod support;
mod watches;
