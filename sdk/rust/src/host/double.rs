//! The contract's imports outside a component: answers from the scenario of [`crate::testing`].

#![allow(clippy::panic, reason = "outside a component only tests run, and what they did not prepare fails them")]

use crate::{
    HostPort, Known, MachineSummary,
    bootstrap::JoinRole,
    control_plane::View,
    http::{HttpError, Request},
    secrets::{ArchiveFormat, BootStep, Chunk, Encoding, Member, SecretError},
    testing::{TestMachine, exchange, with},
};

/// A secret in the clear.
pub struct RawSecret(pub Vec<u8>);

pub fn subject_group() -> String {
    with(|s| s.group.clone())
}
pub fn subject_kind() -> String {
    with(|s| s.kind.clone())
}
pub fn subject_namespace() -> String {
    with(|s| s.namespace.clone())
}
pub fn subject_name() -> String {
    with(|s| s.name.clone())
}
pub fn subject_generation() -> i64 {
    1
}
pub fn subject_labels() -> Vec<(String, String)> {
    with(|s| s.labels.clone())
}
pub fn subject_annotation(key: &str) -> Option<String> {
    with(|s| s.annotations.get(key).cloned())
}
pub fn subject_spec() -> String {
    with(|s| s.spec.clone())
}
pub fn subject_now() -> u64 {
    with(|s| s.now)
}
pub fn subject_owner_key() -> String {
    with(|s| s.owner_key.clone())
}

pub fn cluster_name() -> String {
    with(|s| s.cluster_name.clone())
}
pub fn cluster_endpoint() -> Option<HostPort> {
    with(|s| s.endpoint.clone())
}
pub fn cluster_pod_cidrs() -> Vec<String> {
    with(|s| s.pod_cidrs.clone())
}
pub fn cluster_service_cidrs() -> Vec<String> {
    with(|s| s.service_cidrs.clone())
}
pub fn cluster_service_domain() -> String {
    "cluster.local".to_owned()
}
pub fn cluster_infrastructure_spec() -> Option<String> {
    with(|s| s.infrastructure_spec.clone())
}
pub fn cluster_infrastructure_state(part: &str) -> Option<String> {
    with(|s| s.infrastructure_states.get(part).cloned())
}
pub fn cluster_machines() -> Vec<MachineSummary> {
    with(|s| s.machines.clone())
}

pub fn machine_present() -> bool {
    with(|s| s.machine.is_some())
}
fn machine<T>(read: impl FnOnce(&TestMachine) -> T) -> T {
    with(|s| match &s.machine {
        Some(machine) => read(machine),
        None => panic!("the scenario has no machine"),
    })
}
pub fn machine_name() -> String {
    machine(|m| m.name.clone())
}
pub fn machine_label(key: &str) -> Option<String> {
    machine(|m| m.labels.get(key).cloned())
}
pub fn machine_control_plane() -> bool {
    machine(|m| m.control_plane)
}
pub fn machine_kubernetes_version() -> Option<String> {
    machine(|m| m.kubernetes_version.clone())
}
pub fn machine_failure_domain() -> Option<String> {
    machine(|m| m.failure_domain.clone())
}
pub fn machine_deleting() -> bool {
    machine(|m| m.deleting)
}
pub fn machine_node_bound() -> bool {
    machine(|m| m.node_bound)
}
pub fn machine_bootstrap_format() -> Option<String> {
    machine(|m| m.bootstrap_format.clone())
}

pub fn granted_address(label: &str) -> Option<(String, u8, Option<String>)> {
    with(|s| s.addresses.get(label).cloned())
}
pub fn granted_config_map(label: &str) -> Option<Vec<(String, String)>> {
    with(|s| s.config_maps.get(label).cloned())
}
pub fn known_part(name: &str) -> Option<Known> {
    with(|s| s.known.get(name).cloned())
}

pub fn joining_role() -> JoinRole {
    with(|s| s.role.unwrap_or(JoinRole::WorkerJoin))
}
pub fn joining_public_key_hash(label: &str) -> Option<String> {
    with(|s| s.public_key_hashes.get(label).cloned())
}
pub fn control_plane_view() -> View {
    with(|s| s.view.clone())
}
pub fn control_plane_workload_object(_label: &str) -> Option<String> {
    None
}

pub fn secret_get(label: &str) -> Result<RawSecret, SecretError> {
    with(|s| s.secrets.get(label).cloned().map(RawSecret).ok_or(SecretError::Missing))
}
pub fn secret_fingerprint(label: &str) -> Result<String, SecretError> {
    with(|s| s.secrets.get(label).map(|bytes| format!("length-{}", bytes.len())).ok_or(SecretError::Missing))
}
pub fn boot_steps() -> Result<Vec<BootStep>, String> {
    Ok(with(|s| s.boot_steps.clone()))
}
pub fn flatten(chunks: &[Chunk]) -> Vec<u8> {
    let mut all = Vec::new();
    for chunk in chunks {
        match chunk {
            Chunk::Bytes(bytes) => all.extend_from_slice(bytes),
            Chunk::Secret(secret) => all.extend_from_slice(&secret.0.0),
        }
    }
    all
}
pub fn secret_compose(chunks: &[Chunk]) -> RawSecret {
    RawSecret(flatten(chunks))
}
/// A plain tar archive, whatever the format asked for.
pub fn secret_archive(_: ArchiveFormat, _: &str, members: &[Member]) -> Result<RawSecret, String> {
    let mut all = Vec::new();
    for member in members {
        let content = flatten(&member.content);
        let mut header = [0_u8; 512];
        let mut put = |at: usize, text: &[u8]| {
            for (place, byte) in header.iter_mut().skip(at).zip(text) {
                *place = *byte;
            }
        };
        put(0, member.path.as_bytes());
        put(100, format!("{:07o}\0{:07o}\0{:07o}\0", member.mode, 0, 0).as_bytes());
        put(124, format!("{:011o}\0{:011o}\0        0", content.len(), 0).as_bytes());
        put(257, b"ustar\x0000");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        let sum = format!("{sum:06o}\0 ");
        for (place, byte) in header.iter_mut().skip(148).zip(sum.as_bytes()) {
            *place = *byte;
        }
        all.extend_from_slice(&header);
        all.extend_from_slice(&content);
        all.resize(all.len().div_ceil(512) * 512, 0);
    }
    all.resize(all.len() + 1024, 0);
    Ok(RawSecret(all))
}
pub fn secret_size(secret: &RawSecret) -> u64 {
    u64::try_from(secret.0.len()).unwrap_or(u64::MAX)
}
pub fn secret_encode(secret: &RawSecret, encodings: &[Encoding]) -> RawSecret {
    let mut bytes = secret.0.clone();
    for encoding in encodings {
        bytes = match encoding {
            Encoding::Base64 => base64(&bytes),
            Encoding::JsonString => {
                let quoted = serde_json::Value::from(String::from_utf8_lossy(&bytes)).to_string();
                quoted.get(1..quoted.len() - 1).unwrap_or_default().as_bytes().to_vec()
            }
            Encoding::Gzip => match with(|s| s.gzip) {
                Some(gzip) => gzip(&bytes),
                None => panic!("the scenario has no `gzip`"),
            },
            Encoding::FormUrlencoded | Encoding::Percent => {
                let unreserved = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~".contains(byte);
                let each = |byte: u8| if unreserved(&byte) { vec![byte] } else { format!("%{byte:02X}").into_bytes() };
                bytes.into_iter().flat_map(each).collect()
            }
        };
    }
    RawSecret(bytes)
}
pub fn secret_slice(secret: &RawSecret, start: u64, length: u64) -> RawSecret {
    let (start, length) = (usize::try_from(start).unwrap_or(0), usize::try_from(length).unwrap_or(0));
    RawSecret(secret.0.iter().skip(start).take(length).copied().collect())
}

fn base64(bytes: &[u8]) -> Vec<u8> {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = Vec::new();
    for group in bytes.chunks(3) {
        let byte = |at: usize| u32::from(group.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            let index = usize::try_from(bits >> (18 - 6 * place) & 63).unwrap_or(0);
            let letter = ALPHABET.get(index).copied().unwrap_or(b'=');
            out.push(if place <= group.len() { letter } else { b'=' });
        }
    }
    out
}

type Answer = Result<(u16, String, Vec<(String, String)>, Vec<u8>), HttpError>;

pub fn http_send(request: Request) -> Answer {
    let exchange = exchange(request);
    if let Some(failure) = exchange.failure {
        return Err(failure);
    }
    Ok((exchange.status, exchange.status_text, exchange.headers, exchange.body))
}
pub fn http_read_all(requests: Vec<Request>) -> Vec<Answer> {
    requests.into_iter().map(http_send).collect()
}

pub fn log(level: crate::log::Level, message: &str, fields: &[(&str, &str)]) {
    eprintln!("{level:?}: {message} {fields:?}");
}
