//! An infrastructure provider that does what the text `spec.do` says.

wit_bindgen::generate!({ path: "../../../../wit/provider-0.1", world: "infrastructure-provider" });

use capstan::provider::http::{self, Method, Request};
use capstan::provider::secrets::{self, Chunk, Encoding};
use capstan::provider::types::{Json, ProviderError, Reason, Violation};
use capstan::provider::{cluster, known, logging, machine, subject};
use exports::capstan::provider::{infra_cluster, infra_machine, kinds, needs, resources};

#[used]
#[unsafe(link_section = "capstan:manifest")]
static MANIFEST: [u8; include_bytes!("manifest.json").len()] = *include_bytes!("manifest.json");
#[used]
#[unsafe(link_section = "capstan:crds")]
static CRDS: [u8; include_bytes!("crds.json").len()] = *include_bytes!("crds.json");

struct Guest;
export!(Guest);

fn told(word: &str) -> bool {
    subject::spec().contains(&format!("\"{word}\""))
}

fn reason(code: &str, message: impl Into<String>) -> Reason {
    Reason { code: code.into(), message: message.into() }
}

fn request(method: Method, path: &str) -> Request<'static> {
    Request {
        endpoint: "api".into(),
        method,
        path: path.into(),
        query: vec![],
        headers: vec![("content-type".into(), "text/plain".into())],
        body: vec![],
        max_age: None,
    }
}

/// What an exchange led to, as one line.
fn line(answer: Result<http::Response, http::HttpError>) -> String {
    match answer {
        Ok(response) => format!("{} {} {}", response.status, response.status_text, String::from_utf8_lossy(&response.body)),
        Err(error) => format!("{error:?}"),
    }
}

fn deeper(n: u64) -> u64 {
    let mut room = [n; 64];
    room[(n % 64) as usize] = std::hint::black_box(n);
    if std::hint::black_box(n) == u64::MAX { 0 } else { deeper(n + 1) + room[(n % 7) as usize] }
}

fn misbehave_by(what: &str) {
    let mut n = 0u64;
    while what == "spin" {
        n = std::hint::black_box(n.wrapping_add(1));
    }
}

fn misbehave() {
    if told("spin") {
        misbehave_by("spin");
    }
    if told("grow") {
        let mut all: Vec<Vec<u8>> = Vec::new();
        loop {
            all.push(vec![1; 1 << 20]);
            std::hint::black_box(&all);
        }
    }
    if told("recurse") {
        std::hint::black_box(deeper(0));
    }
    if told("panic") {
        logging::log(logging::Level::Error, "panicked at 'index out of range'", &[]);
        panic!("index out of range");
    }
    if told("chatter") {
        for n in 0..10_000 {
            logging::log(logging::Level::Info, &"x".repeat(10_000), &[("n".into(), n.to_string())]);
        }
    }
    if told("hoard") {
        let mut secret = secrets::compose(&[Chunk::Bytes(vec![0; 1 << 20])]);
        loop {
            secret = secrets::compose(&[Chunk::Secret(&secret), Chunk::Secret(&secret)]);
        }
    }
}

fn part(name: &str, after: &[&str]) -> resources::Part {
    resources::Part {
        name: name.into(),
        after: after.iter().map(|a| a.to_string()).collect(),
        ownership: resources::Ownership::Managed,
        replaceable: false,
    }
}

fn present(id: String, state: String) -> resources::Presence {
    resources::Presence::Present(resources::Observed {
        id,
        ready: true,
        todo: vec![],
        outdated: vec![],
        operation: None,
        state,
    })
}

fn quote(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

impl kinds::Guest for Guest {
    fn convert(object: Json, version: String) -> Result<Json, Reason> {
        if object.contains("\"spin\"") {
            misbehave_by("spin");
        }
        if object.contains("\"thief\"") {
            return Ok(object.replace("thief", "somebody-else"));
        }
        // What v1 calls `do`, v1alpha1 calls `task`.
        let (from, to) = match version.as_str() {
            "v1" => ("\"task\":", "\"do\":"),
            "v1alpha1" => ("\"do\":", "\"task\":"),
            _ => return Err(reason("VersionUnknown", format!("there is no version {version}"))),
        };
        let group = "infrastructure.cluster.x-k8s.io/";
        let old = if version == "v1" { "v1alpha1" } else { "v1" };
        Ok(object.replace(&format!("\"{group}{old}\""), &format!("\"{group}{version}\"")).replace(from, to))
    }
    fn validate(old: Option<Json>, new: Json) -> Vec<Violation> {
        if new.contains("\"panic\"") {
            panic!("index out of range");
        }
        let mut found = vec![];
        if new.contains("\"forbidden\"") {
            found.push(Violation { path: "/spec/do/0".into(), message: "this is not done here".into() });
        }
        if old.is_some_and(|old| old.contains("\"fixed\"")) && !new.contains("\"fixed\"") {
            found.push(Violation { path: "/spec/do".into(), message: "what is fixed stays".into() });
        }
        found
    }
}

impl needs::Guest for Guest {
    fn declare() -> Result<Vec<(String, needs::Need)>, ProviderError> {
        if told("impure") {
            line(http::send(&request(Method::Get, "/")));
        }
        Ok(vec![("token".into(), needs::Need::ClusterToken(32))])
    }
}

impl resources::Guest for Guest {
    fn parts() -> Result<Vec<resources::Part>, ProviderError> {
        misbehave();
        if told("circle") {
            return Ok(vec![part("a", &["b"]), part("b", &["a"])]);
        }
        Ok(vec![part("disk", &[]), part("vm", &["disk"])])
    }

    fn identify(part: String, reserved: Vec<String>) -> Result<resources::Choice, ProviderError> {
        let id = format!("{part}-{}", reserved.len());
        Ok(resources::Choice { identity: resources::Identity::Chosen(id), frozen: "{\"node\":\"n1\"}".into() })
    }

    fn observe(part: String) -> Result<resources::Presence, ProviderError> {
        if told("change-in-observe") {
            let answer = line(http::send(&request(Method::Post, "/vms")));
            return Err(ProviderError::Internal(reason("Told", answer)));
        }
        if told("no-json") {
            return Ok(present("x".into(), "no json".into()));
        }
        if told("who") {
            let known = known::part(&part);
            let text = format!(
                "{} {} {} {} machine={} known={} owner={} cluster={}",
                subject::kind(),
                subject::namespace(),
                subject::name(),
                subject::now(),
                machine::present(),
                known.map(|k| k.idempotency_key).unwrap_or_default(),
                subject::owner_key(),
                cluster::name(),
            );
            return Ok(present("who".into(), quote(&text)));
        }
        if told("no-machine") {
            machine::name();
        }
        if told("side-by-side") {
            let requests = ["/a", "/b", "/c"].map(|path| request(Method::Get, path));
            let lines: Vec<String> = http::read_all(&requests).into_iter().map(line).collect();
            return Ok(present("many".into(), quote(&lines.join("|"))));
        }
        if told("many-requests") {
            let last = (0..1_000).map(|_| line(http::send(&request(Method::Get, "/")))).last().unwrap_or_default();
            return Ok(present("many".into(), quote(&last)));
        }
        if told("other-endpoint") {
            let mut other = request(Method::Get, "/");
            other.endpoint = "metadata".into();
            return Ok(present("other".into(), quote(&line(http::send(&other)))));
        }
        let answer = http::send(&request(Method::Get, &format!("/vms/{part}")));
        match answer {
            Ok(response) if response.status == 404 => {
                Ok(resources::Presence::Absent(resources::Absence::LookedUpById))
            }
            other => Ok(present(part, quote(&line(other)))),
        }
    }

    fn create(part: String) -> Result<resources::Progress, ProviderError> {
        if told("twice") {
            let first = line(http::send(&request(Method::Post, "/vms")));
            let second = line(http::send(&request(Method::Post, "/vms")));
            return Ok(resources::Progress::Done(format!("{first} then {second}")));
        }
        let mut sent = request(Method::Post, "/vms");
        sent.query = vec![("name".into(), part.clone())];
        let token = secrets::get("token");
        match &token {
            Ok(secret) => {
                let dressed = secret.encode(&[Encoding::Base64]);
                sent.body = vec![
                    Chunk::Bytes(b"token=".to_vec()),
                    Chunk::Secret(&dressed),
                    Chunk::Bytes(format!("&size={}", secret.size()).into_bytes()),
                ];
                return send(&sent);
            }
            Err(error) => sent.body = vec![Chunk::Bytes(format!("{error:?}").into_bytes())],
        }
        send(&sent)
    }

    fn update(_: String, todo: Vec<Reason>) -> Result<resources::Progress, ProviderError> {
        Ok(resources::Progress::Waiting(reason("Waiting", todo.len().to_string())))
    }

    fn delete(part: String) -> Result<resources::Progress, ProviderError> {
        send(&request(Method::Delete, &format!("/vms/{part}")))
    }
}

fn send(request: &Request) -> Result<resources::Progress, ProviderError> {
    match http::send(request) {
        Ok(response) if response.status < 300 => {
            Ok(resources::Progress::Done(String::from_utf8_lossy(&response.body).into_owned()))
        }
        other => Err(ProviderError::Transient(reason("Unexpected", line(other)))),
    }
}

impl infra_cluster::Guest for Guest {
    fn report() -> Result<infra_cluster::Facts, ProviderError> {
        let status = if told("bad-status") { "[]" } else { "{}" };
        Ok(infra_cluster::Facts {
            control_plane_endpoint: None,
            failure_domains: vec![],
            conditions: vec![],
            status: status.into(),
        })
    }
}

impl infra_machine::Guest for Guest {
    fn report() -> Result<infra_machine::Facts, ProviderError> {
        Ok(infra_machine::Facts {
            phase: infra_machine::Phase::Running,
            provider_id: Some("guest://vm".into()),
            addresses: vec![],
            failure_domain: None,
            node_name: None,
            interruptible: false,
            conditions: vec![],
            status: "{}".into(),
        })
    }
    fn capacity() -> Vec<(String, String)> {
        if told("ask") {
            line(http::send(&request(Method::Get, "/")));
        }
        let cpu = if told("big") { "16" } else { "2" };
        vec![("cpu".into(), cpu.into())]
    }
}
