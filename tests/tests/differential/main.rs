//! The embedded API server and a real kube-apiserver get the same requests and must answer the same: codes, bodies, warnings,
//! watch events, managed fields. What they may differ in is in `docs/apiserver.md`, with the reason.
//!
//! Without the real server's programs (`tests/setup.sh` builds them) the cases run against the embedded one alone.

mod access;
mod apply;
mod builtins;
mod clients;
mod definitions;
mod deletion;
mod documents;
mod field_cases;
mod hooks;
mod hostile;
mod kubectl;
mod kubelets;
mod listing;
mod normal;
mod objects;
mod past;
mod patches;
mod policies;
mod rbac;
mod relisting;
mod schemas;
mod sequences;
mod servers;
mod session;
mod watching;
