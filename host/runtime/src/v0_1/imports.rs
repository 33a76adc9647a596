//! What a guest may ask of the host.

use bytes::Bytes;
use capstan_core::contract as host;
use capstan_core::turn::MachineInput;
use serde_json::Value;
use wasmtime::component::Resource;

use super::bindings::capstan::provider as wit;
use crate::iso9660;
use crate::limits::broken;
use crate::secrets::{self, Encoding, NoSecret, Secret};
use crate::state::{MemberIndex, Requests, State};

type Result<T> = wasmtime::Result<T>;

fn text(value: &Value) -> String {
    value.to_string()
}

impl wit::types::Host for State {}

impl wit::subject::Host for State {
    fn group(&mut self) -> Result<String> {
        Ok(self.input.subject.group().to_owned())
    }
    fn kind(&mut self) -> Result<String> {
        Ok(self.input.subject.kind().to_owned())
    }
    fn namespace(&mut self) -> Result<String> {
        Ok(self.input.subject.namespace().to_owned())
    }
    fn name(&mut self) -> Result<String> {
        Ok(self.input.subject.name().to_owned())
    }
    fn generation(&mut self) -> Result<i64> {
        Ok(self.input.subject.generation())
    }
    fn labels(&mut self) -> Result<Vec<(String, String)>> {
        let labels = self.input.subject.at("/metadata/labels").and_then(Value::as_object);
        let label = |(name, value): (&String, &Value)| Some((name.clone(), value.as_str()?.to_owned()));
        Ok(labels.map(|labels| labels.iter().filter_map(label).collect()).unwrap_or_default())
    }
    fn annotation(&mut self, key: String) -> Result<Option<String>> {
        Ok(self.input.subject.annotation(&key).map(str::to_owned))
    }
    fn spec(&mut self) -> Result<String> {
        if let Some(spec) = &self.spec {
            return Ok(spec.clone());
        }
        let spec = self.input.subject.at("/spec").map_or_else(|| "{}".to_owned(), text);
        self.spec = Some(spec.clone());
        Ok(spec)
    }
    fn now(&mut self) -> Result<u64> {
        Ok(self.input.now)
    }
    fn owner_key(&mut self) -> Result<String> {
        Ok(self.input.owner_key.clone())
    }
}

impl wit::cluster::Host for State {
    fn name(&mut self) -> Result<String> {
        Ok(self.input.cluster.name.clone())
    }
    fn endpoint(&mut self) -> Result<Option<wit::types::HostPort>> {
        let endpoint = self.input.cluster.endpoint.as_ref();
        Ok(endpoint.map(|e| wit::types::HostPort { host: e.host.clone(), port: e.port }))
    }
    fn pod_cidrs(&mut self) -> Result<Vec<String>> {
        Ok(self.input.cluster.pod_cidrs.clone())
    }
    fn service_cidrs(&mut self) -> Result<Vec<String>> {
        Ok(self.input.cluster.service_cidrs.clone())
    }
    fn service_domain(&mut self) -> Result<String> {
        Ok(self.input.cluster.service_domain.clone())
    }
    fn infrastructure_spec(&mut self) -> Result<Option<String>> {
        Ok(self.input.cluster.infrastructure_spec.as_ref().map(text))
    }
    fn infrastructure_state(&mut self, part: String) -> Result<Option<String>> {
        Ok(self.input.cluster.infrastructure_state.get(&part).map(text))
    }
    fn machines(&mut self) -> Result<Vec<wit::cluster::MachineSummary>> {
        let summary = |machine: &capstan_core::turn::MachineSummary| wit::cluster::MachineSummary {
            name: machine.name.clone(),
            control_plane: machine.control_plane,
            addresses: machine.addresses.clone(),
            deleting: machine.deleting,
        };
        Ok(self.input.cluster.machines.iter().map(summary).collect())
    }
}

impl State {
    fn machine(&self, getter: &str) -> Result<&MachineInput> {
        self.input.machine.as_ref().ok_or_else(|| {
            broken(format!("it asked for machine.{getter}, and no Machine owns the subject (ask machine.present)"))
        })
    }
}

impl wit::machine::Host for State {
    fn present(&mut self) -> Result<bool> {
        Ok(self.input.machine.is_some())
    }
    fn name(&mut self) -> Result<String> {
        Ok(self.machine("name")?.name.clone())
    }
    fn label(&mut self, key: String) -> Result<Option<String>> {
        Ok(self.machine("label")?.labels.get(&key).cloned())
    }
    fn control_plane(&mut self) -> Result<bool> {
        Ok(self.machine("control-plane")?.control_plane)
    }
    fn kubernetes_version(&mut self) -> Result<Option<String>> {
        Ok(self.machine("kubernetes-version")?.kubernetes_version.clone())
    }
    fn failure_domain(&mut self) -> Result<Option<String>> {
        Ok(self.machine("failure-domain")?.failure_domain.clone())
    }
    fn deleting(&mut self) -> Result<bool> {
        Ok(self.machine("deleting")?.deleting)
    }
    fn node_bound(&mut self) -> Result<bool> {
        Ok(self.machine("node-bound")?.node_bound)
    }
    fn bootstrap_format(&mut self) -> Result<Option<String>> {
        Ok(self.machine("bootstrap-format")?.bootstrap_format.clone())
    }
}

impl wit::granted::Host for State {
    fn address(&mut self, label: String) -> Result<Option<wit::granted::IpAddress>> {
        let address = self.granted.addresses.get(&label);
        Ok(address.map(|a| wit::granted::IpAddress {
            address: a.address.clone(),
            prefix: a.prefix,
            gateway: a.gateway.clone(),
        }))
    }
    fn config_map(&mut self, label: String) -> Result<Option<Vec<(String, String)>>> {
        let entries = self.granted.config_maps.get(&label);
        Ok(entries.map(|entries| entries.iter().map(|(k, v)| (k.clone(), v.clone())).collect()))
    }
}

impl wit::known::Host for State {
    fn part(&mut self, name: String) -> Result<Option<wit::known::KnownPart>> {
        Ok(self.known.get(&name).map(|part| wit::known::KnownPart {
            id: part.id.clone(),
            confirmed: part.confirmed,
            attempt: part.attempt,
            idempotency_key: part.idempotency_key.clone(),
            frozen: part.frozen.as_ref().map(text),
            operation: part.operation.clone(),
            state: part.state.as_ref().map(text),
        }))
    }
}

impl wit::joining::Host for State {
    fn role(&mut self) -> Result<wit::joining::JoinRole> {
        match self.input.join_role {
            Some(host::JoinRole::ControlPlaneInit) => Ok(wit::joining::JoinRole::ControlPlaneInit),
            Some(host::JoinRole::ControlPlaneJoin) => Ok(wit::joining::JoinRole::ControlPlaneJoin),
            Some(host::JoinRole::WorkerJoin) => Ok(wit::joining::JoinRole::WorkerJoin),
            None => Err(broken("it asked for joining.role before the role is known")),
        }
    }
    fn public_key_hash(&mut self, label: String) -> Result<Option<String>> {
        Ok(self.granted.public_key_hashes.get(&label).cloned())
    }
}

impl State {
    fn view(&self) -> Result<&host::ControlPlaneView> {
        self.input.control_plane.as_ref().ok_or_else(|| broken("it asked for a control plane, and the subject is none"))
    }

    fn member(&self, member: &Resource<MemberIndex>) -> Result<&host::Member> {
        let index = self.table.get(member)?.0;
        self.view()?.members.get(index).ok_or_else(|| broken("there is no such member"))
    }
}

fn etcd(member: &host::EtcdMember) -> wit::control_plane_view::EtcdMember {
    wit::control_plane_view::EtcdMember {
        id: member.id.clone(),
        leader: member.leader,
        learner: member.learner,
        healthy: member.healthy,
        alarms: member.alarms.clone(),
    }
}

impl wit::control_plane_view::HostMember for State {
    fn name(&mut self, member: Resource<MemberIndex>) -> Result<String> {
        Ok(self.member(&member)?.name.clone())
    }
    fn kubernetes_version(&mut self, member: Resource<MemberIndex>) -> Result<Option<String>> {
        Ok(self.member(&member)?.kubernetes_version.clone())
    }
    fn failure_domain(&mut self, member: Resource<MemberIndex>) -> Result<Option<String>> {
        Ok(self.member(&member)?.failure_domain.clone())
    }
    fn ready(&mut self, member: Resource<MemberIndex>) -> Result<bool> {
        Ok(self.member(&member)?.ready)
    }
    fn deleting(&mut self, member: Resource<MemberIndex>) -> Result<bool> {
        Ok(self.member(&member)?.deleting)
    }
    fn age(&mut self, member: Resource<MemberIndex>) -> Result<u64> {
        Ok(self.member(&member)?.age)
    }
    fn bootstrap(&mut self, member: Resource<MemberIndex>) -> Result<Option<String>> {
        Ok(self.member(&member)?.bootstrap.as_ref().map(text))
    }
    fn cloned_from(&mut self, member: Resource<MemberIndex>) -> Result<Option<String>> {
        Ok(self.member(&member)?.cloned_from.clone())
    }
    fn etcd(&mut self, member: Resource<MemberIndex>) -> Result<Option<wit::control_plane_view::EtcdMember>> {
        Ok(self.member(&member)?.etcd.as_ref().map(etcd))
    }
    fn certificate_expiry(&mut self, member: Resource<MemberIndex>) -> Result<Option<u64>> {
        Ok(self.member(&member)?.certificate_expiry)
    }
    fn unhealthy(&mut self, member: Resource<MemberIndex>) -> Result<Vec<wit::types::Reason>> {
        Ok(self.member(&member)?.unhealthy.iter().map(super::reason_out).collect())
    }
    fn remediate(&mut self, member: Resource<MemberIndex>) -> Result<bool> {
        Ok(self.member(&member)?.remediate)
    }
    fn drop(&mut self, member: Resource<MemberIndex>) -> Result<()> {
        self.table.delete(member)?;
        Ok(())
    }
}

impl wit::control_plane_view::Host for State {
    fn members(&mut self) -> Result<Vec<Resource<MemberIndex>>> {
        let count = self.view()?.members.len();
        (0..count).map(|index| Ok(self.table.push(MemberIndex(index))?)).collect()
    }
    fn stray_etcd_members(&mut self) -> Result<Option<Vec<wit::control_plane_view::EtcdMember>>> {
        Ok(self.view()?.stray_etcd_members.as_ref().map(|members| members.iter().map(etcd).collect()))
    }
    fn replicas(&mut self) -> Result<u32> {
        Ok(self.view()?.replicas)
    }
    fn initialized(&mut self) -> Result<bool> {
        Ok(self.view()?.initialized)
    }
    fn failure_domains(&mut self) -> Result<Vec<String>> {
        Ok(self.view()?.failure_domains.clone())
    }
    fn workload_object(&mut self, label: String) -> Result<Option<String>> {
        Ok(self.view()?.workload_objects.get(&label).map(text))
    }
    fn memory(&mut self) -> Result<String> {
        Ok(text(&self.view()?.memory))
    }
}

impl wit::logging::Host for State {
    fn log(&mut self, level: wit::logging::Level, message: String, fields: Vec<(String, String)>) -> Result<()> {
        let level = match level {
            wit::logging::Level::Trace => tracing::Level::TRACE,
            wit::logging::Level::Debug => tracing::Level::DEBUG,
            wit::logging::Level::Info => tracing::Level::INFO,
            wit::logging::Level::Warn => tracing::Level::WARN,
            wit::logging::Level::Error => tracing::Level::ERROR,
        };
        self.log(level, &message, &fields);
        Ok(())
    }
}

fn no_secret(why: NoSecret) -> wit::secrets::SecretError {
    match why {
        NoSecret::Unbound => wit::secrets::SecretError::Unbound,
        NoSecret::Missing => wit::secrets::SecretError::Missing,
    }
}

impl wit::secrets::HostSecret for State {
    fn size(&mut self, secret: Resource<Secret>) -> Result<u64> {
        Ok(self.table.get(&secret)?.bytes.len() as u64)
    }
    fn encode(&mut self, secret: Resource<Secret>, encodings: Vec<wit::secrets::Encoding>) -> Result<Resource<Secret>> {
        let encoding = |encoding: &wit::secrets::Encoding| match encoding {
            wit::secrets::Encoding::Gzip => Encoding::Gzip,
            wit::secrets::Encoding::Base64 => Encoding::Base64,
            wit::secrets::Encoding::JsonString => Encoding::JsonString,
            wit::secrets::Encoding::FormUrlencoded => Encoding::FormUrlencoded,
            wit::secrets::Encoding::Percent => Encoding::Percent,
        };
        let encodings: Vec<Encoding> = encodings.iter().map(encoding).collect();
        let encoded = secrets::encode(self.table.get(&secret)?, &encodings).map_err(broken)?;
        self.keep(encoded)
    }
    fn slice(&mut self, secret: Resource<Secret>, start: u64, length: u64) -> Result<Resource<Secret>> {
        let slice = secrets::slice(self.table.get(&secret)?, start, length).map_err(broken)?;
        self.keep(slice)
    }
    fn drop(&mut self, secret: Resource<Secret>) -> Result<()> {
        self.table.delete(secret)?;
        Ok(())
    }
}

impl State {
    /// The bytes of chunks, and the labels of the secrets among them.
    fn join(&self, chunks: &[wit::secrets::Chunk], labels: &mut Vec<String>) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        for chunk in chunks {
            match chunk {
                wit::secrets::Chunk::Bytes(plain) => bytes.extend_from_slice(plain),
                wit::secrets::Chunk::Secret(secret) => {
                    let secret = self.table.get(secret)?;
                    bytes.extend_from_slice(&secret.bytes);
                    if !labels.contains(&secret.label) && labels.len() < 8 {
                        labels.push(secret.label.clone());
                    }
                }
            }
            secrets::fits(bytes.len()).map_err(broken)?;
        }
        Ok(bytes)
    }

    /// Chunks as the gateway takes them.
    fn body(&self, chunks: Vec<wit::secrets::Chunk>) -> Result<Vec<capstan_gateway::Chunk>> {
        let chunk = |chunk| {
            Ok(match chunk {
                wit::secrets::Chunk::Bytes(plain) => capstan_gateway::Chunk::Plain(plain.into()),
                wit::secrets::Chunk::Secret(secret) => {
                    let Secret { label, bytes } = self.table.get(&secret)?.clone();
                    capstan_gateway::Chunk::Secret { label, bytes }
                }
            })
        };
        chunks.into_iter().map(chunk).collect()
    }
}

fn composed(labels: &[String], bytes: Vec<u8>) -> Secret {
    let label = if labels.is_empty() { "composed".to_owned() } else { labels.join("+") };
    Secret { label, bytes: bytes.into() }
}

impl wit::secrets::Host for State {
    fn get(&mut self, label: String) -> Result<std::result::Result<Resource<Secret>, wit::secrets::SecretError>> {
        match secrets::get(&self.granted, &label) {
            Ok(secret) => Ok(Ok(self.keep(secret)?)),
            Err(why) => Ok(Err(no_secret(why))),
        }
    }
    fn fingerprint(&mut self, label: String) -> Result<std::result::Result<String, wit::secrets::SecretError>> {
        if let Some(known) = self.fingerprints.get(&label) {
            return Ok(Ok(known.clone()));
        }
        let secret = secrets::get(&self.granted, &label).map_err(no_secret);
        Ok(secret.map(|secret| secrets::fingerprint(&self.input.owner_key, &secret)))
    }
    fn compose(&mut self, chunks: Vec<wit::secrets::Chunk>) -> Result<Resource<Secret>> {
        let mut labels = Vec::new();
        let bytes = self.join(&chunks, &mut labels)?;
        self.keep(composed(&labels, bytes))
    }
    fn archive(
        &mut self,
        format: wit::secrets::ArchiveFormat,
        volume_label: String,
        members: Vec<wit::secrets::Member>,
    ) -> Result<std::result::Result<Resource<Secret>, String>> {
        let mut labels = Vec::new();
        let mut files = Vec::with_capacity(members.len());
        for member in &members {
            let content = self.join(&member.content, &mut labels)?;
            files.push(secrets::Member { path: member.path.clone(), mode: member.mode, content });
        }
        let made = match format {
            wit::secrets::ArchiveFormat::Tar => secrets::tar(&files),
            wit::secrets::ArchiveFormat::Iso9660 => iso9660::image(&volume_label, &files),
        };
        match made {
            Ok(bytes) => Ok(Ok(self.keep(composed(&labels, bytes))?)),
            Err(why) => Ok(Err(why)),
        }
    }
    fn boot_steps(&mut self) -> Result<std::result::Result<Vec<wit::secrets::BootStep>, String>> {
        let Some(data) = self.granted.secrets.get("bootstrap-data") else {
            return Ok(Err("there is no bootstrap data yet".to_owned()));
        };
        let machine = self.input.machine.as_ref();
        let format = machine.and_then(|m| m.bootstrap_format.as_deref()).unwrap_or("cloud-config");
        let hostname = machine.map_or_else(|| self.input.subject.name(), |m| &m.name).to_owned();
        let instance = capstan_boot::Instance { hostname, id: self.input.owner_key.clone() };
        let boot = match capstan_boot::read_for(format, data, &instance) {
            Ok(boot) => boot,
            Err(error) => return Ok(Err(error.to_string())),
        };
        if !boot.ignored.is_empty() {
            let message = format!("boot data asks for {}, which is not carried out here", boot.ignored.join(", "));
            self.log(tracing::Level::WARN, &message, &[]);
        }
        let mut steps = Vec::with_capacity(boot.steps.len());
        for step in boot.steps {
            let mut secret =
                |bytes: Vec<u8>| self.keep(Secret { label: "bootstrap-data".to_owned(), bytes: Bytes::from(bytes) });
            steps.push(match step {
                capstan_boot::Step::WriteFile { path, mode, owner, append, content } => {
                    let content = secret(content)?;
                    wit::secrets::BootStep::WriteFile(wit::secrets::BootFile { path, mode, owner, append, content })
                }
                capstan_boot::Step::Run(line) => wit::secrets::BootStep::Run(secret(line.into_bytes())?),
            });
        }
        Ok(Ok(steps))
    }
}

fn response(response: capstan_gateway::Response) -> wit::http::Response {
    wit::http::Response {
        status: response.status,
        status_text: response.status_text,
        headers: response.headers,
        body: response.body.to_vec(),
    }
}

fn http_error(error: capstan_gateway::HttpError) -> wit::http::HttpError {
    use capstan_gateway::HttpError as From;
    use wit::http::HttpError as To;
    match error {
        From::UnknownEndpoint => To::UnknownEndpoint,
        From::Denied(why) => To::Denied(why),
        From::NotSent(why) => To::NotSent(why),
        From::NoAnswer(why) => To::NoAnswer(why),
        From::TooLarge(max) => To::TooLarge(max),
        From::BudgetSpent => To::BudgetSpent,
    }
}

impl State {
    fn request(&self, request: wit::http::Request) -> Result<capstan_gateway::Request> {
        Ok(capstan_gateway::Request {
            body: self.body(request.body)?,
            endpoint: request.endpoint,
            method: match request.method {
                wit::http::Method::Get => capstan_gateway::Method::Get,
                wit::http::Method::Head => capstan_gateway::Method::Head,
                wit::http::Method::Post => capstan_gateway::Method::Post,
                wit::http::Method::Put => capstan_gateway::Method::Put,
                wit::http::Method::Patch => capstan_gateway::Method::Patch,
                wit::http::Method::Delete => capstan_gateway::Method::Delete,
            },
            path: request.path,
            query: request.query,
            headers: request.headers,
            max_age: request.max_age,
        })
    }
}

type Answer = std::result::Result<wit::http::Response, wit::http::HttpError>;

impl wit::http::Host for State {
    async fn send(&mut self, request: wit::http::Request) -> Result<Answer> {
        let request = self.request(request)?;
        let mut answers = self.ask(Requests::One(Box::new(request))).await?;
        let answer = answers.pop().ok_or_else(|| broken("the turn was given up"))?;
        Ok(answer.map(response).map_err(http_error))
    }
    async fn read_all(&mut self, requests: Vec<wit::http::Request>) -> Result<Vec<Answer>> {
        let requests = requests.into_iter().map(|request| self.request(request)).collect::<Result<Vec<_>>>()?;
        let answers = self.ask(Requests::Reads(requests)).await?;
        Ok(answers.into_iter().map(|answer| answer.map(response).map_err(http_error)).collect())
    }
}
