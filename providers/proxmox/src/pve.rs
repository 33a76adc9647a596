//! The Proxmox VE API, as far as it is used here: answers, errors in the API's own words, tasks.
//!
//! What older versions say only in the reason phrase, `/api2/extjs` repeats in the body; it answers 200 whatever happened, so it is
//! used for reads alone, where the difference between "is not there" and "did not work" matters.

use capstan_provider::{
    Error, Operation, Progress, Reason, Result, Violation,
    http::{self, Request, Response},
};
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::Value;

use crate::API;

#[derive(Deserialize)]
struct Data<T> {
    data: T,
}

/// The data of a read that must succeed.
pub fn read<T: DeserializeOwned>(request: Request, doing: &str) -> Result<T> {
    data(&request.send()?, doing)
}

/// The data of an answer that must be a success.
pub fn data<T: DeserializeOwned>(answer: &Response, doing: &str) -> Result<T> {
    if !answer.is_success() {
        return Err(failure(answer, doing));
    }
    Ok(answer.json::<Data<T>>()?.data)
}

/// A read whose failure says more than its status: below `/api2/extjs`.
pub struct Told {
    /// The status that the API means.
    pub status: u16,
    /// What it says.
    pub words: String,
    data: Value,
}

#[derive(Deserialize)]
struct Extjs {
    #[serde(default, deserialize_with = "number_or_none")]
    success: Option<u64>,
    #[serde(default, deserialize_with = "number_or_none")]
    status: Option<u64>,
    #[serde(default)]
    data: Value,
}

/// Reads below `/api2/extjs`; `path` begins with it.
pub fn told(path: &str, arguments: &[&str], doing: &str) -> Result<Told> {
    let answer = http::get(API, path, arguments).send()?;
    if !answer.is_success() {
        // Refused tokens, proxies and lost nodes are told by the status itself.
        return match answer.status {
            400 | 500 => Ok(Told { status: answer.status, words: words(&answer), data: Value::Null }),
            _ => Err(failure(&answer, doing)),
        };
    }
    let extjs: Extjs = answer.json()?;
    let failed = extjs.success == Some(0) || extjs.status.is_some_and(|status| status >= 400);
    let status = if failed { extjs.status.and_then(|status| u16::try_from(status).ok()).unwrap_or(500) } else { 200 };
    Ok(Told { status, words: words(&answer), data: extjs.data })
}

impl Told {
    /// It is a success.
    pub fn is_success(&self) -> bool {
        self.status == 200
    }

    /// The data of a success.
    pub fn data<T: DeserializeOwned>(self, doing: &str) -> Result<T> {
        serde_json::from_value(self.data).map_err(|error| {
            Error::transient("UnexpectedAnswer", format!("{doing}: the answer cannot be read: {error}"))
        })
    }

    /// The API says that there is no such thing, and not merely that it did not work.
    pub fn is_missing(&self) -> bool {
        let gone = ["does not exist", "no such", "volume_size_info on"];
        self.status == 404 || (!self.is_success() && gone.iter().any(|text| self.words.contains(text)))
    }

    /// The error that this stands for.
    pub fn failure(&self, doing: &str) -> Error {
        classified(self.status, &self.words, &Value::Null, doing)
    }
}

/// What the API says: `message`, else the reason phrase, with what is wrong with each parameter.
pub fn words(answer: &Response) -> String {
    let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let message = body.get("message").and_then(Value::as_str).map(str::trim).filter(|text| !text.is_empty());
    let mut text = message.map_or_else(|| answer.status_text.trim().to_owned(), ToOwned::to_owned);
    let errors: Vec<String> = errors(&body).map(|(name, wrong)| format!("{name}: {wrong}")).collect();
    if !errors.is_empty() {
        text = format!("{} ({})", text.trim_end_matches('.'), errors.join("; "));
    }
    if text.is_empty() && body.is_null() {
        text = answer.message();
    }
    text
}

fn errors(body: &Value) -> impl Iterator<Item = (&str, &str)> {
    let all = body.get("errors").and_then(Value::as_object);
    all.into_iter().flatten().filter_map(|(name, wrong)| Some((name.as_str(), wrong.as_str()?.trim())))
}

/// The error that a failed answer stands for.
pub fn failure(answer: &Response, doing: &str) -> Error {
    if answer.status == 429 || (answer.status == 503 && answer.header("retry-after").is_some()) {
        return answer.error();
    }
    let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    classified(answer.status, &words(answer), &body, doing)
}

/// What of a text means that the same request may succeed later, and what it never will.
const BUSY: [&str; 6] =
    ["got timeout", "can't lock file", "cfs-lock", "is locked", "unable to acquire lock", "try again"];
const FULL: [&str; 5] = ["no space left", "not enough", "out of space", "insufficient free", "disk quota exceeded"];
const NEVER: [&str; 9] = [
    "uses local storage",
    "non-shared storage",
    "not allowed for linked clones",
    "linked clone feature is not supported",
    "does not support",
    "is not available on node",
    "is not configured for content-type",
    "invalid bootorder",
    "shrinking disks is not supported",
];

fn classified(status: u16, words: &str, body: &Value, doing: &str) -> Error {
    let low = words.to_lowercase();
    let says = |texts: &[&str]| texts.iter().any(|text| low.contains(text));
    let message = format!("{doing}: {status} {words}");
    let reason = |code: &str, hint: &str| Reason::new(code, format!("{message}{hint}"));
    match status {
        401 => Error::Unauthorized(reason(
            "CredentialRefused",
            ": check `token` and `secret` in the Secret of credentialsRef, and that the token has not expired",
        )),
        403 => Error::Unauthorized(reason(
            "PermissionDenied",
            ": give the token this privilege on this path (docs/providers/proxmox.md)",
        )),
        400 => {
            let mut violations: Vec<Violation> = errors(body)
                .map(|(name, wrong)| Violation::new(field(name), format!("{doing}: {name}: {wrong}")))
                .collect();
            if violations.is_empty() {
                violations.push(Violation::new("/spec", message));
            }
            Error::Invalid(violations)
        }
        595 | 596 | 599 | 502..=504 => Error::Transient(reason("NodeUnreachable", "")),
        500.. if low.contains("no quorum") => {
            Error::Transient(reason("NoQuorum", ": the Proxmox cluster has lost its quorum (pvecm status)"))
        }
        500.. if says(&BUSY) => Error::Transient(reason("Busy", "")),
        500.. if says(&FULL) => Error::Transient(reason("StorageFull", ": free space, or name another storage")),
        500.. if says(&NEVER) => Error::Invalid(vec![Violation::new("/spec", message)]),
        500.. if says(&["checksum mismatch", "detected modified configuration"]) => {
            Error::Transient(reason("ChangedMeanwhile", ""))
        }
        500.. => Error::Transient(reason("ProxmoxError", "")),
        404 => Error::Transient(reason("NotFound", "")),
        _ => Error::internal(message),
    }
}

/// The field of the spec from which a parameter comes, as a JSON pointer.
fn field(parameter: &str) -> &'static str {
    match parameter {
        "newid" | "vmid" => "/spec/virtualMachineID",
        "storage" => "/spec/storage",
        "format" => "/spec/format",
        "pool" => "/spec/pool",
        "target" => "/spec/target",
        "snapname" => "/spec/snapName",
        "description" => "/spec/description",
        "full" => "/spec/full",
        "cores" => "/spec/numCores",
        "sockets" => "/spec/numSockets",
        "memory" => "/spec/memoryMiB",
        "tags" => "/spec/tags",
        "disk" | "size" => "/spec/disks/bootVolume",
        name if name.starts_with("net") => "/spec/network/networkDevices",
        _ => "/spec",
    }
}

/// What a failed task is called in conditions, by what it says.
pub fn task_code(text: &str, other: &'static str) -> &'static str {
    let low = text.to_lowercase();
    if FULL.iter().any(|full| low.contains(full)) { "StorageFull" } else { other }
}

/// A task's id: `UPID:<node>:<pid>:<pstart>:<start>:<type>:<id>:<user>:`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upid {
    /// The node that carries it out, which need not be the one that was asked.
    pub node: String,
    /// When it was begun (seconds since the Unix epoch).
    pub start: u64,
    /// `qmclone`, `qmstart`, …
    pub kind: String,
    text: String,
}

impl Upid {
    /// Reads one.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.strip_prefix("UPID:")?.split(':');
        let node = parts.next().filter(|node| !node.is_empty())?.to_owned();
        let start = u64::from_str_radix(parts.nth(2)?, 16).ok()?;
        let kind = parts.next().filter(|kind| !kind.is_empty())?.to_owned();
        Some(Self { node, start, kind, text: text.to_owned() })
    }

    /// How long until it is worth looking again (ms): the longer it runs, the longer.
    fn look_again(&self, now: u64) -> u64 {
        (now.saturating_sub(self.start.saturating_mul(1000)) / 4).clamp(300, 10_000)
    }

    /// It, as the host keeps it.
    pub fn operation(&self, now: u64) -> Operation {
        Operation { token: self.text.clone(), look_again_after: self.look_again(now) }
    }
}

/// How a task goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// It runs.
    Running(Operation),
    /// It ended well, perhaps with warnings.
    Done,
    /// It failed; its own words.
    Failed(String),
    /// There is no record of it: what it did can only be seen in what it worked on.
    Unknown,
}

#[derive(Deserialize)]
struct TaskStatus {
    status: String,
    exitstatus: Option<String>,
}

/// How the operation on record goes; `None` where it is none of a task's.
pub fn task(token: Option<&str>, now: u64) -> Result<Option<(Upid, Task)>> {
    let Some(upid) = token.and_then(Upid::parse) else { return Ok(None) };
    let doing = format!("asking how task {} of node {} goes", upid.kind, upid.node);
    let told = told("/api2/extjs/nodes/{}/tasks/{}/status", &[&upid.node, &upid.text], &doing)?;
    if !told.is_success() {
        if told.is_missing() {
            return Ok(Some((upid, Task::Unknown)));
        }
        return Err(told.failure(&doing));
    }
    let status: TaskStatus = told.data(&doing)?;
    let task = match (status.status.as_str(), status.exitstatus) {
        ("running", _) => Task::Running(upid.operation(now)),
        (_, Some(exit)) if exit == "OK" || exit.starts_with("WARNINGS") => Task::Done,
        (_, Some(exit)) if exit != "unexpected status" => Task::Failed(exit),
        _ => Task::Unknown,
    };
    Ok(Some((upid, task)))
}

#[derive(Deserialize)]
struct ListedTask {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    id: Value,
    endtime: Option<Value>,
}

/// A task of this type, and of this machine where one is named, runs: for what was asked for without an answer.
pub fn is_running(kind: &str, vmid: Option<u64>) -> Result<bool> {
    let request = http::get(API, "/api2/json/cluster/tasks", &[]);
    let tasks: Vec<ListedTask> = read(request, "listing the tasks of the cluster")?;
    let same = |id: &Value| vmid.is_none_or(|vmid| text(id) == vmid.to_string());
    Ok(tasks.iter().any(|task| task.kind == kind && task.endtime.is_none() && same(&task.id)))
}

/// What a changing request came to: a task to wait for, or done at once.
pub fn progress(answer: &Response, id: &str, now: u64, doing: &str) -> Result<Progress> {
    let token: Option<String> = data(answer, doing)?;
    Ok(match token.as_deref().and_then(Upid::parse) {
        Some(upid) => Progress::Started { id: Some(id.to_owned()), operation: upid.operation(now) },
        None => Progress::done(id),
    })
}

/// A virtual machine or container, as the cluster lists it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Resource {
    /// `qemu` or `lxc`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its number.
    #[serde(deserialize_with = "number")]
    pub vmid: u64,
    /// Where it is.
    pub node: String,
    /// Its name.
    pub name: String,
    /// 1 for a template.
    #[serde(deserialize_with = "number")]
    pub template: u64,
    /// Separated by `;`.
    pub tags: String,
    /// `running`, `stopped`, …
    pub status: String,
    /// Bytes.
    #[serde(deserialize_with = "number")]
    pub maxmem: u64,
}

/// All virtual machines and containers that the token may see. A shared answer may be `max_age` old (ms); 0 for none.
pub fn resources(max_age: u64) -> Result<Vec<Resource>> {
    let request = http::get(API, "/api2/json/cluster/resources", &[]).query("type", "vm");
    let request = if max_age > 0 { request.max_age(max_age) } else { request };
    read(request, "listing the cluster's virtual machines")
}

/// Whether nothing in the cluster has this number; what has it need not be visible to the token.
pub fn is_free(vmid: u64) -> Result<bool> {
    let doing = format!("asking whether VM number {vmid} is free");
    let answer = http::get(API, "/api2/json/cluster/nextid", &[]).query("vmid", vmid.to_string()).send()?;
    if answer.status == 400 && words(&answer).contains("vmid:") {
        return Ok(false);
    }
    let told: Value = data(&answer, &doing)?;
    let told = text(&told);
    if told == vmid.to_string() {
        return Ok(true);
    }
    Err(Error::transient("UnexpectedAnswer", format!("{doing}: the answer is {told:?}")))
}

/// A number that the API may write as text, or not at all.
pub fn number<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    Ok(number_or_none(from)?.unwrap_or(0))
}

fn number_or_none<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    Ok(match Value::deserialize(from)? {
        Value::Bool(value) => Some(u64::from(value)),
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "sizes and numbers of machines")]
        Value::Number(value) => value.as_u64().or_else(|| value.as_f64().map(|value| value as u64)),
        Value::String(value) => value.trim().parse().ok(),
        _ => None,
    })
}

/// A value of the API as text: numbers and texts are not always told apart.
pub fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}
