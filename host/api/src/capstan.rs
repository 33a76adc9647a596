//! Capstan's own kinds (capstan.dev/v1alpha1): `ProviderModule` and `Endpoint`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::meta::Condition;

/// Where a provider component comes from and what it may use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProviderModuleSpec {
    /// Where the component comes from.
    pub source: ModuleSource,
    /// Endpoints by the names that the component's manifest gives them, for tenants that have no Endpoint object of
    /// that name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    pub endpoints: BTreeMap<String, Destination>,
}

/// Where a component comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ModuleSource {
    /// Path of a `.wasm` file on the machine that Capstan runs on.
    #[schemars(length(min = 1, max = 4096))]
    pub file: String,
}

/// Where requests go: a URL or a unix socket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "has(self.url) != has(self.unixSocket)", "message": "exactly one of url and unixSocket is needed"}]))]
pub struct Destination {
    /// Origin, such as `https://pve.example.org:8006`; a path is put before every request's path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2048), regex(pattern = r"^https?://[^/@?#]+(/[^?#]*)?$"))]
    pub url: Option<String>,
    /// Absolute path of a unix socket, such as `/var/run/docker.sock`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096), regex(pattern = r"^/"))]
    pub unix_socket: Option<String>,
}

/// What was loaded and what it serves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProviderModuleStatus {
    /// `sha256:…` of the component that is loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// The provider's name for itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The provider's version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The version of the contract that it speaks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contract: Option<String>,
    /// infrastructure, bootstrap or control-plane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Kinds that it serves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub kinds: Vec<ServedKind>,
    /// Loaded, with why not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 32),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"])
    )]
    pub conditions: Vec<Condition>,
    /// The generation that was last looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub observed_generation: Option<i64>,
}

/// A kind that a module serves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ServedKind {
    /// API group.
    pub group: String,
    /// Kind.
    pub kind: String,
    /// Versions that are served.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub versions: Vec<String>,
}

/// A named destination of one tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "has(self.url) != has(self.unixSocket)", "message": "exactly one of url and unixSocket is needed"},
    {"rule": "!has(self.caBundle) || has(self.url)", "message": "caBundle goes with url"}]))]
pub struct EndpointSpec {
    /// Origin, such as `https://pve.example.org:8006`; a path is put before every request's path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2048), regex(pattern = r"^https?://[^/@?#]+(/[^?#]*)?$"))]
    pub url: Option<String>,
    /// Absolute path of a unix socket, such as `/var/run/docker.sock`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096), regex(pattern = r"^/"))]
    pub unix_socket: Option<String>,
    /// PEM certificates that are trusted instead of the system's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 262144))]
    pub ca_bundle: Option<String>,
}

/// What is known of a destination.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EndpointStatus {
    /// Accepted, with why not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 32),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"])
    )]
    pub conditions: Vec<Condition>,
    /// The generation that was last looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub observed_generation: Option<i64>,
}
