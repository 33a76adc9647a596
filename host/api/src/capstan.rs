//! Capstan's own kinds (capstan.dev/v1alpha1): `ProviderModule`, `Endpoint` and `EgressPolicy`.

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
    /// What the component's manifest asks for and gets only when it is named here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grants: Option<Grants>,
}

/// What an operator grants a component.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Grants {
    /// Requests by POST that count as reads, as the manifest has them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub read_operations: Vec<GrantedRead>,
}

/// A request by POST that counts as a read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GrantedRead {
    /// The endpoint's name in the manifest.
    #[schemars(length(min = 1, max = 63))]
    pub endpoint: String,
    /// Path as the manifest has it.
    #[schemars(length(min = 1, max = 2048))]
    pub path: String,
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
    {"rule": "!(has(self.url) && has(self.unixSocket))", "message": "url and unixSocket exclude each other"},
    {"rule": "has(self.url) || has(self.unixSocket) || has(self.credential) || has(self.caBundle)",
     "message": "one of url, unixSocket, credential and caBundle is needed"},
    {"rule": "!has(self.caBundle) || !has(self.unixSocket)", "message": "caBundle does not go with unixSocket"}]))]
pub struct EndpointSpec {
    /// Origin, such as `https://pve.example.org:8006`; a path is put before every request's path. Left out where the
    /// provider knows it (public clouds) or the object's own Secret says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2048), regex(pattern = r"^https?://[^/@?#]+(/[^?#]*)?$"))]
    pub url: Option<String>,
    /// Absolute path of a unix socket, such as `/var/run/docker.sock`; an EgressPolicy has to list it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096), regex(pattern = r"^/"))]
    pub unix_socket: Option<String>,
    /// PEM certificates that are trusted instead of the system's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 262144))]
    pub ca_bundle: Option<String>,
    /// As whom requests go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential: Option<EndpointCredential>,
    /// Methods beyond which nothing is sent; all, when it is empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 6), extend("x-kubernetes-list-type" = "set"))]
    pub methods: Vec<HttpMethod>,
    /// Paths beyond which nothing is sent; all, when it is empty. `*` stands for any one segment, `**` at the end for any
    /// that follow.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 2048), regex(pattern = r"^/")),
        extend("x-kubernetes-list-type" = "atomic"))]
    pub paths: Vec<String>,
    /// Requests per second to this origin with this credential, for all objects together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_limit: Option<RateLimit>,
    /// Requests at a time to this origin with this credential (32 where nothing is said).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub max_concurrent_requests: Option<u32>,
    /// The longest that a request may take, where that is shorter than the provider's own limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 600))]
    pub timeout_seconds: Option<u32>,
    /// The largest body of a request, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 67108864))]
    pub max_request_bytes: Option<u32>,
    /// The largest answer, in bytes, where that is smaller than the provider's own limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 67108864))]
    pub max_response_bytes: Option<u32>,
}

/// A method of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
#[allow(missing_docs, reason = "they are what they are called")]
pub enum HttpMethod {
    Get,
    Head,
    Post,
    Put,
    Patch,
    Delete,
}

/// How many requests are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RateLimit {
    /// Per second, in the long run.
    #[schemars(range(min = 1, max = 10000))]
    pub requests_per_second: u32,
    /// At once; as many as per second where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10000))]
    pub burst: Option<u32>,
}

/// A Secret of the Endpoint's namespace and how it is used. A changed Secret is used from the next call on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "[has(self.bearer), has(self.basic), has(self.headers), has(self.clientCertificate), has(self.aws)].filter(x, x).size() == 1",
     "message": "exactly one of bearer, basic, headers, clientCertificate and aws is needed"}]))]
pub struct EndpointCredential {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253))]
    pub secret_name: String,
    /// `Authorization: Bearer …`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bearer: Option<BearerCredential>,
    /// HTTP basic authentication with the Secret's `username` and `password`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub basic: Option<EmptyCredential>,
    /// Headers made of the Secret's entries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub headers: Vec<HeaderCredential>,
    /// A TLS client certificate: the Secret's `tls.crt` and `tls.key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_certificate: Option<EmptyCredential>,
    /// AWS Signature Version 4 with the Secret's `AccessKeyID`, `SecretAccessKey` and, where there is one,
    /// `SessionToken`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aws: Option<AwsCredential>,
}

/// Nothing more to say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EmptyCredential {}

/// A bearer token.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BearerCredential {
    /// Key of the token in the Secret; `token` where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub key: Option<String>,
}

/// A header.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HeaderCredential {
    /// Name, such as `Authorization`.
    #[schemars(length(min = 1, max = 128), regex(pattern = r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$"))]
    pub name: String,
    /// Value; `{key}` stands for the Secret's entry of that key, `{key:shown}` for one that is no secret and need not be
    /// hidden where the API repeats it, as in `PVEAPIToken={token:shown}={secret}`.
    #[schemars(length(min = 1, max = 4096))]
    pub value: String,
}

/// How requests to AWS are signed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AwsCredential {
    /// The region that signatures are for, where the provider's is not meant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9-]+$"))]
    pub region: Option<String>,
    /// A role to assume with the Secret's keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<AwsRole>,
}

/// A role to assume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AwsRole {
    /// ARN of the role.
    #[schemars(length(min = 20, max = 2048), regex(pattern = r"^arn:[a-z0-9-]+:iam::[0-9]+:role/.+$"))]
    pub arn: String,
    /// Name of the session in AWS's records; `capstan` where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 2, max = 64), regex(pattern = r"^[A-Za-z0-9_=,.@-]+$"))]
    pub session_name: Option<String>,
    /// What the role's owner agreed on with you.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 2, max = 1224), regex(pattern = r"^[A-Za-z0-9_+=,.@:/-]+$"))]
    pub external_id: Option<String>,
    /// How long a session lasts; an hour where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 900, max = 43200))]
    pub duration_seconds: Option<u32>,
    /// Origin of the token service; that of the region where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "stsURL")]
    #[schemars(length(min = 1, max = 2048), regex(pattern = r"^https?://[^/@?#]+(/[^?#]*)?$"))]
    pub sts_url: Option<String>,
}

/// What endpoints and workload clusters may resolve to beyond the public internet. Policies add up. Link-local and
/// metadata addresses are never allowed, listed or not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EgressPolicySpec {
    /// Namespaces that it is for; all, when it is empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024), inner(length(min = 1, max = 63)), extend("x-kubernetes-list-type" = "set"))]
    pub namespaces: Vec<String>,
    /// Loopback, private and other special networks, such as `10.20.0.0/16`, `fd12::/32` or `127.0.0.1`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(min = 2, max = 64), regex(pattern = r"^[0-9a-fA-F:.]+(/[0-9]{1,3})?$")),
        extend("x-kubernetes-list-type" = "set"))]
    pub addresses: Vec<String>,
    /// Absolute paths of unix sockets, such as `/var/run/docker.sock`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 4096), regex(pattern = r"^/")),
        extend("x-kubernetes-list-type" = "set"))]
    pub unix_sockets: Vec<String>,
}

/// What is known of a destination or policy.
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
