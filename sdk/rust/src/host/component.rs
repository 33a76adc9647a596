//! The contract's imports inside a component: each function is one import, in the SDK's own types.

use crate::{
    Error, HostPort, Known, MachineSummary, Reason, Violation,
    bootstrap::JoinRole,
    control_plane::{EtcdMember, Member as ControlPlaneMember, View},
    http::{HttpError, Method, Request},
    secrets::{ArchiveFormat, BootFile, BootStep, Chunk, Encoding, Member, Secret, SecretError},
};

/// Every interface that some world imports. What a component does not call is left out when it is packaged.
#[allow(unsafe_code, missing_docs, clippy::all, clippy::indexing_slicing, reason = "generated")]
#[doc(hidden)]
pub mod bindings {
    wit_bindgen::generate!({
        path: "../../wit/provider-0.1",
        inline: "
            package capstan:sdk;
            world imports {
                import capstan:provider/types@0.1.0;
                import capstan:provider/subject@0.1.0;
                import capstan:provider/cluster@0.1.0;
                import capstan:provider/machine@0.1.0;
                import capstan:provider/granted@0.1.0;
                import capstan:provider/known@0.1.0;
                import capstan:provider/logging@0.1.0;
                import capstan:provider/secrets@0.1.0;
                import capstan:provider/http@0.1.0;
                import capstan:provider/joining@0.1.0;
                import capstan:provider/control-plane-view@0.1.0;
            }
        ",
        world: "capstan:sdk/imports",
        generate_all,
    });
}

use bindings::capstan::provider as wit;

/// A secret of the host.
pub struct RawSecret(wit::secrets::Secret);

impl Secret {
    /// The handle to hand back to the host, where no one else holds it.
    #[doc(hidden)]
    pub fn into_handle(self) -> wit::secrets::Secret {
        match std::rc::Rc::try_unwrap(self.0) {
            Ok(raw) => raw.0,
            Err(shared) => wit::secrets::compose(&[wit::secrets::Chunk::Secret(&shared.0)]),
        }
    }
}

/// A panic's message is lost in a trap unless it is logged before.
pub fn panics_to_log() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        std::panic::set_hook(Box::new(|panic| {
            wit::logging::log(wit::logging::Level::Error, &panic.to_string(), &[]);
        }));
    });
}

pub fn log(level: crate::log::Level, message: &str, fields: &[(&str, &str)]) {
    use crate::log::Level;
    let level = match level {
        Level::Debug => wit::logging::Level::Debug,
        Level::Info => wit::logging::Level::Info,
        Level::Warn => wit::logging::Level::Warn,
        Level::Error => wit::logging::Level::Error,
    };
    let fields: Vec<_> = fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    wit::logging::log(level, message, &fields);
}

pub fn subject_group() -> String {
    wit::subject::group()
}
pub fn subject_kind() -> String {
    wit::subject::kind()
}
pub fn subject_namespace() -> String {
    wit::subject::namespace()
}
pub fn subject_name() -> String {
    wit::subject::name()
}
pub fn subject_generation() -> i64 {
    wit::subject::generation()
}
pub fn subject_labels() -> Vec<(String, String)> {
    wit::subject::labels()
}
pub fn subject_annotation(key: &str) -> Option<String> {
    wit::subject::annotation(key)
}
pub fn subject_spec() -> String {
    wit::subject::spec()
}
pub fn subject_now() -> u64 {
    wit::subject::now()
}
pub fn subject_owner_key() -> String {
    wit::subject::owner_key()
}

pub fn cluster_name() -> String {
    wit::cluster::name()
}
pub fn cluster_endpoint() -> Option<HostPort> {
    wit::cluster::endpoint().map(|endpoint| HostPort { host: endpoint.host, port: endpoint.port })
}
pub fn cluster_pod_cidrs() -> Vec<String> {
    wit::cluster::pod_cidrs()
}
pub fn cluster_service_cidrs() -> Vec<String> {
    wit::cluster::service_cidrs()
}
pub fn cluster_service_domain() -> String {
    wit::cluster::service_domain()
}
pub fn cluster_infrastructure_spec() -> Option<String> {
    wit::cluster::infrastructure_spec()
}
pub fn cluster_infrastructure_state(part: &str) -> Option<String> {
    wit::cluster::infrastructure_state(part)
}
pub fn cluster_machines() -> Vec<MachineSummary> {
    wit::cluster::machines()
        .into_iter()
        .map(|machine| MachineSummary {
            name: machine.name,
            control_plane: machine.control_plane,
            addresses: machine.addresses,
            deleting: machine.deleting,
        })
        .collect()
}

pub fn machine_present() -> bool {
    wit::machine::present()
}
pub fn machine_name() -> String {
    wit::machine::name()
}
pub fn machine_label(key: &str) -> Option<String> {
    wit::machine::label(key)
}
pub fn machine_control_plane() -> bool {
    wit::machine::control_plane()
}
pub fn machine_kubernetes_version() -> Option<String> {
    wit::machine::kubernetes_version()
}
pub fn machine_failure_domain() -> Option<String> {
    wit::machine::failure_domain()
}
pub fn machine_deleting() -> bool {
    wit::machine::deleting()
}
pub fn machine_node_bound() -> bool {
    wit::machine::node_bound()
}
pub fn machine_bootstrap_format() -> Option<String> {
    wit::machine::bootstrap_format()
}

pub fn granted_address(label: &str) -> Option<(String, u8, Option<String>)> {
    wit::granted::address(label).map(|address| (address.address, address.prefix, address.gateway))
}
pub fn granted_config_map(label: &str) -> Option<Vec<(String, String)>> {
    wit::granted::config_map(label)
}
pub fn known_part(name: &str) -> Option<Known> {
    wit::known::part(name).map(|part| Known {
        id: part.id,
        confirmed: part.confirmed,
        attempt: part.attempt,
        idempotency_key: part.idempotency_key,
        frozen: part.frozen,
        operation: part.operation,
        state: part.state,
    })
}

pub fn joining_role() -> JoinRole {
    match wit::joining::role() {
        wit::joining::JoinRole::ControlPlaneInit => JoinRole::ControlPlaneInit,
        wit::joining::JoinRole::ControlPlaneJoin => JoinRole::ControlPlaneJoin,
        wit::joining::JoinRole::WorkerJoin => JoinRole::WorkerJoin,
    }
}
pub fn joining_public_key_hash(label: &str) -> Option<String> {
    wit::joining::public_key_hash(label)
}

fn etcd_member(member: wit::control_plane_view::EtcdMember) -> EtcdMember {
    EtcdMember {
        id: member.id,
        leader: member.leader,
        learner: member.learner,
        healthy: member.healthy,
        alarms: member.alarms,
    }
}
pub fn control_plane_view() -> View {
    use wit::control_plane_view as view;
    View {
        members: view::members()
            .into_iter()
            .map(|member| ControlPlaneMember {
                name: member.name(),
                kubernetes_version: member.kubernetes_version(),
                failure_domain: member.failure_domain(),
                ready: member.ready(),
                deleting: member.deleting(),
                age: member.age(),
                bootstrap: member.bootstrap(),
                cloned_from: member.cloned_from(),
                etcd: member.etcd().map(etcd_member),
                certificate_expiry: member.certificate_expiry(),
                unhealthy: member
                    .unhealthy()
                    .into_iter()
                    .map(|reason| Reason { code: reason.code, message: reason.message })
                    .collect(),
                remediate: member.remediate(),
            })
            .collect(),
        stray_etcd_members: view::stray_etcd_members().map(|members| members.into_iter().map(etcd_member).collect()),
        replicas: view::replicas(),
        initialized: view::initialized(),
        failure_domains: view::failure_domains(),
        memory: view::memory(),
    }
}
pub fn control_plane_workload_object(label: &str) -> Option<String> {
    wit::control_plane_view::workload_object(label)
}

fn secret_error(error: wit::secrets::SecretError) -> SecretError {
    match error {
        wit::secrets::SecretError::Unbound => SecretError::Unbound,
        wit::secrets::SecretError::Missing => SecretError::Missing,
    }
}
fn chunks(chunks: &[Chunk]) -> Vec<wit::secrets::Chunk<'_>> {
    chunks
        .iter()
        .map(|chunk| match chunk {
            Chunk::Bytes(bytes) => wit::secrets::Chunk::Bytes(bytes.clone()),
            Chunk::Secret(secret) => wit::secrets::Chunk::Secret(&secret.0.0),
        })
        .collect()
}
fn held(secret: wit::secrets::Secret) -> Secret {
    Secret(std::rc::Rc::new(RawSecret(secret)))
}
pub fn secret_get(label: &str) -> Result<RawSecret, SecretError> {
    wit::secrets::get(label).map(RawSecret).map_err(secret_error)
}
pub fn secret_fingerprint(label: &str) -> Result<String, SecretError> {
    wit::secrets::fingerprint(label).map_err(secret_error)
}
pub fn secret_compose(parts: &[Chunk]) -> RawSecret {
    RawSecret(wit::secrets::compose(&chunks(parts)))
}
pub fn secret_archive(format: ArchiveFormat, label: &str, members: &[Member]) -> Result<RawSecret, String> {
    let format = match format {
        ArchiveFormat::Tar => wit::secrets::ArchiveFormat::Tar,
        ArchiveFormat::Iso9660 => wit::secrets::ArchiveFormat::Iso9660,
    };
    let members: Vec<_> = members
        .iter()
        .map(|member| wit::secrets::Member {
            path: member.path.clone(),
            mode: member.mode,
            content: chunks(&member.content),
        })
        .collect();
    wit::secrets::archive(format, label, &members).map(RawSecret)
}
pub fn boot_steps() -> Result<Vec<BootStep>, String> {
    Ok(wit::secrets::boot_steps()?
        .into_iter()
        .map(|step| match step {
            wit::secrets::BootStep::WriteFile(file) => BootStep::WriteFile(BootFile {
                path: file.path,
                mode: file.mode,
                owner: file.owner,
                append: file.append,
                content: held(file.content),
            }),
            wit::secrets::BootStep::Run(command) => BootStep::Run(held(command)),
        })
        .collect())
}
pub fn secret_size(secret: &RawSecret) -> u64 {
    secret.0.size()
}
pub fn secret_encode(secret: &RawSecret, encodings: &[Encoding]) -> RawSecret {
    let encodings: Vec<_> = encodings
        .iter()
        .map(|encoding| match encoding {
            Encoding::Gzip => wit::secrets::Encoding::Gzip,
            Encoding::Base64 => wit::secrets::Encoding::Base64,
            Encoding::JsonString => wit::secrets::Encoding::JsonString,
            Encoding::FormUrlencoded => wit::secrets::Encoding::FormUrlencoded,
            Encoding::Percent => wit::secrets::Encoding::Percent,
        })
        .collect();
    RawSecret(secret.0.encode(&encodings))
}
pub fn secret_slice(secret: &RawSecret, start: u64, length: u64) -> RawSecret {
    RawSecret(secret.0.slice(start, length))
}

type Answer = Result<(u16, String, Vec<(String, String)>, Vec<u8>), HttpError>;

fn answer(answer: Result<wit::http::Response, wit::http::HttpError>) -> Answer {
    use wit::http::HttpError as Wit;
    match answer {
        Ok(response) => Ok((response.status, response.status_text, response.headers, response.body)),
        Err(Wit::UnknownEndpoint) => Err(HttpError::UnknownEndpoint),
        Err(Wit::Denied(rule)) => Err(HttpError::Denied(rule)),
        Err(Wit::NotSent(why)) => Err(HttpError::NotSent(why)),
        Err(Wit::NoAnswer(why)) => Err(HttpError::NoAnswer(why)),
        Err(Wit::TooLarge(size)) => Err(HttpError::TooLarge(size)),
        Err(Wit::BudgetSpent) => Err(HttpError::BudgetSpent),
    }
}
fn request(request: &Request) -> wit::http::Request<'_> {
    wit::http::Request {
        endpoint: request.endpoint.clone(),
        method: match request.method {
            Method::Get => wit::http::Method::Get,
            Method::Head => wit::http::Method::Head,
            Method::Post => wit::http::Method::Post,
            Method::Put => wit::http::Method::Put,
            Method::Patch => wit::http::Method::Patch,
            Method::Delete => wit::http::Method::Delete,
        },
        path: request.path.clone(),
        query: request.query.clone(),
        headers: request.headers.clone(),
        body: chunks(&request.body),
        max_age: request.max_age,
    }
}
pub fn http_send(asked: Request) -> Answer {
    answer(wit::http::send(&request(&asked)))
}
pub fn http_read_all(asked: Vec<Request>) -> Vec<Answer> {
    let requests: Vec<_> = asked.iter().map(request).collect();
    wit::http::read_all(&requests).into_iter().map(answer).collect()
}

// ---- What the exports return --------------------------------------------------------------------

impl From<Reason> for wit::types::Reason {
    fn from(reason: Reason) -> Self {
        Self { code: reason.code, message: reason.message }
    }
}

impl From<wit::types::Reason> for Reason {
    fn from(reason: wit::types::Reason) -> Self {
        Self { code: reason.code, message: reason.message }
    }
}

impl From<Violation> for wit::types::Violation {
    fn from(violation: Violation) -> Self {
        Self { path: violation.path, message: violation.message }
    }
}

impl From<crate::Condition> for wit::types::Condition {
    fn from(condition: crate::Condition) -> Self {
        Self { kind: condition.kind, ok: condition.ok, reason: condition.reason.into() }
    }
}

impl From<HostPort> for wit::types::HostPort {
    fn from(endpoint: HostPort) -> Self {
        Self { host: endpoint.host, port: endpoint.port }
    }
}

impl From<Error> for wit::types::ProviderError {
    fn from(error: Error) -> Self {
        match error {
            Error::Transient(reason) => Self::Transient(reason.into()),
            Error::Throttled(pause) => Self::Throttled(pause),
            Error::Unauthorized(reason) => Self::Unauthorized(reason.into()),
            Error::Invalid(violations) => Self::Invalid(violations.into_iter().map(Into::into).collect()),
            Error::Conflict(reason) => Self::Conflict(reason.into()),
            Error::Internal(reason) => Self::Internal(reason.into()),
        }
    }
}
