//! The API server as its clients see it: in process, with kube-rs, and over TLS with kubectl.

mod access;
mod changes;
mod collector;
mod definitions;
mod documents;
mod durability;
mod kubectl;
mod kube_client;
mod lists;
mod support;
mod watches;
