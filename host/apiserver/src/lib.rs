//! The embedded Kubernetes API server: what `capstan up` keeps its state in, and what each simulated workload cluster has.
//!
//! A [`Store`] holds the objects (in memory, written through to a [`Database`] file when there is one), an [`ApiServer`]
//! serves them as Kubernetes does. Real kubectl, kube-rs and client-go are its clients; the host's own controllers reach it
//! in process through [`ApiServer::service`]. What it promises is what those clients rely on: discovery, all patch types,
//! server-side apply, watches that miss nothing, conflicts, finalizers, garbage collection, Kubernetes' own error objects.

mod admission;
mod auth;
mod background;
mod catalog;
mod connection;
mod decode;
mod discovery;
mod kinds;
mod labels;
mod metrics;
mod openapi;
mod options;
mod protobuf;
mod request;
mod response;
mod rest;
pub mod schema;
mod selector;
mod server;
mod status;
mod store;
mod streams;
mod table;
mod webhooks;

pub use connection::{InProcess, server_config};
pub use metrics::RequestLabels;
pub use options::{
    Admission, AdmissionRequest, Authentication, Builtins, Conversion, Kubelet, Kubelets, MASTERS, Operation, Options,
    PodPort, User,
};
pub use response::ResponseBody;
pub use server::{ApiServer, Error};
pub use status::{Cause, Details, Status};
pub use store::{Database, HistoryLimit, Keys, Store, StoreError};
