//! One case is a function that sends requests; it is run against each server, and what was answered is compared.

use crate::normal::{Words, differences};
use crate::servers::{Server, servers};
use reqwest::header::HeaderMap;
use reqwest::{Client, Method};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// What was answered.
#[derive(Clone, Debug)]
pub struct Answer {
    pub code: u16,
    pub headers: HeaderMap,
    pub body: Value,
}

impl Answer {
    /// The body of an answer that must have this status: for steps that the case goes on from.
    #[track_caller]
    pub fn expect(self, code: u16) -> Value {
        assert_eq!(self.code, code, "{:#}", self.body);
        self.body
    }

    pub fn revision(&self) -> String {
        self.body["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned()
    }
}

/// Requests of one case to one server, with all answers on record.
pub struct Session {
    pub server: &'static Server,
    client: Client,
    pub words: Words,
    steps: Vec<(String, Value)>,
    /// Fields (dotted; `*` is every item) that the case does not compare: each is in `docs/apiserver.md`.
    pub exempt: Vec<&'static str>,
}

/// Something that the servers word in their own way: see the list in `docs/apiserver.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Own {
    /// The text of a refusal, which repeats what was sent.
    Message,
    /// The text and the causes of a refusal.
    Details,
    /// The text of warnings.
    Warnings,
}

pub struct Request<'s> {
    session: &'s mut Session,
    method: Method,
    path: String,
    headers: Vec<(&'static str, String)>,
    body: String,
    own: Vec<Own>,
    record: bool,
    as_client: Option<Client>,
}

impl<'s> Request<'s> {
    pub fn header(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }

    pub fn text(mut self, content_type: &str, body: &str) -> Self {
        self.headers.push(("content-type", content_type.to_owned()));
        self.body = body.to_owned();
        self
    }

    pub fn json(self, body: &Value) -> Self {
        self.text("application/json", &body.to_string())
    }

    /// Each server has its own words for this.
    pub fn own(mut self, own: Own) -> Self {
        self.own.push(own);
        self
    }

    /// The answer is not compared: it prepares something, or it is waited for.
    pub fn quietly(mut self) -> Self {
        self.record = false;
        self
    }

    /// Sent by somebody else.
    pub fn by(mut self, client: &Client) -> Self {
        self.as_client = Some(client.clone());
        self
    }

    pub async fn send(self) -> Answer {
        let Request { session, method, path, headers: own_headers, body, own, record, as_client } = self;
        let client = as_client.as_ref().unwrap_or(&session.client);
        let answer = loop {
            let mut request =
                client.request(method.clone(), format!("{}{path}", session.server.url)).body(body.clone());
            for (name, value) in &own_headers {
                request = request.header(*name, value);
            }
            let answer =
                request.send().await.unwrap_or_else(|error| panic!("{}: {path}: {error:?}", session.server.name));
            let (code, headers) = (answer.status().as_u16(), answer.headers().clone());
            let text = answer.text().await.unwrap_or_else(|error| panic!("{}: {path}: {error:?}", session.server.name));
            let body: Value = serde_json::from_str(&text).unwrap_or(Value::from(text));
            let answer = Answer { code, headers, body };
            // For a moment after a definition changes upstream serves none of its objects, and asks to come back.
            if answer.code != 429 || !answer.body.to_string().contains("(re)initializing") {
                break answer;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        if record {
            session.keep(format!("{method} {path}"), &answer, &own);
        }
        answer
    }
}

impl Session {
    fn new(server: &'static Server) -> Session {
        Session { server, client: server.admin(), words: Words::default(), steps: Vec::new(), exempt: Vec::new() }
    }

    pub fn request(&mut self, method: Method, path: &str) -> Request<'_> {
        let path = path.to_owned();
        Request {
            session: self,
            method,
            path,
            headers: Vec::new(),
            body: String::new(),
            own: Vec::new(),
            record: true,
            as_client: None,
        }
    }

    pub async fn get(&mut self, path: &str) -> Answer {
        self.request(Method::GET, path).send().await
    }

    pub async fn post(&mut self, path: &str, body: &Value) -> Answer {
        self.request(Method::POST, path).json(body).send().await
    }

    pub async fn put(&mut self, path: &str, body: &Value) -> Answer {
        self.request(Method::PUT, path).json(body).send().await
    }

    pub async fn delete(&mut self, path: &str) -> Answer {
        self.request(Method::DELETE, path).send().await
    }

    /// `kind`: `json`, `merge`, `strategic`.
    pub async fn patch(&mut self, path: &str, kind: &str, body: &Value) -> Answer {
        self.patching(path, kind, body).send().await
    }

    pub fn patching(&mut self, path: &str, kind: &str, body: &Value) -> Request<'_> {
        let content_type = match kind {
            "json" => "application/json-patch+json",
            "merge" => "application/merge-patch+json",
            "strategic" => "application/strategic-merge-patch+json",
            other => other,
        };
        self.request(Method::PATCH, path).text(content_type, &body.to_string())
    }

    /// Server-side apply by a manager.
    pub async fn apply(&mut self, path: &str, manager: &str, body: &Value) -> Answer {
        self.applying(path, manager, false, body).send().await
    }

    pub fn applying(&mut self, path: &str, manager: &str, force: bool, body: &Value) -> Request<'_> {
        // Kubernetes takes no configuration without its object's name.
        let mut body = body.clone();
        let name = path.split('?').next().unwrap_or_default().trim_end_matches("/status").rsplit('/').next();
        if let Some(fields) = body.as_object_mut()
            && let Some(metadata) = fields.entry("metadata").or_insert_with(|| json!({})).as_object_mut()
        {
            metadata.entry("name").or_insert_with(|| json!(name));
        }
        let joint = if path.contains('?') { '&' } else { '?' };
        let force = if force { "&force=true" } else { "" };
        self.request(Method::PATCH, &format!("{path}{joint}fieldManager={manager}{force}"))
            .text("application/apply-patch+yaml", &body.to_string())
    }

    /// A namespace of this case.
    pub async fn namespace(&mut self, name: &str) {
        let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        self.request(Method::POST, "/api/v1/namespaces").json(&body).quietly().send().await.expect(201);
    }

    /// A definition, and the moment from which its objects are served.
    pub async fn install(&mut self, definition: &Value) {
        self.request(Method::POST, DEFINITIONS).json(definition).quietly().send().await.expect(201);
        self.served(definition).await;
    }

    /// Waits until every served version of a definition answers.
    pub async fn served(&mut self, definition: &Value) {
        let spec = &definition["spec"];
        for version in spec["versions"].as_array().into_iter().flatten().filter(|v| v["served"] == true) {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let (group, version) = (text(&spec["group"]), text(&version["name"]));
            let plural = text(&spec["names"]["plural"]);
            self.until(&format!("/apis/{group}/{version}/{plural}"), |answer| answer.code == 200).await;
            let listed = |answer: &Answer| answer.body.to_string().contains(&format!("\"{plural}\""));
            self.until(&format!("/apis/{group}/{version}"), listed).await;
        }
    }

    /// Asks again until the answer is right: controllers work beside the case. The last answer is not recorded.
    pub async fn until(&mut self, path: &str, right: impl Fn(&Answer) -> bool) -> Answer {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let answer = self.request(Method::GET, path).quietly().send().await;
            if right(&answer) {
                return answer;
            }
            assert!(Instant::now() < deadline, "{}: {path} never was right: {:#}", self.server.name, answer.body);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub async fn gone(&mut self, path: &str) {
        self.until(path, |answer| answer.code == 404).await;
    }

    /// Opens a watch.
    pub async fn watch(&mut self, path: &str) -> Events {
        let answer = self.client.get(format!("{}{path}", self.server.url)).send().await;
        let answer = answer.unwrap_or_else(|error| panic!("{}: {path}: {error:?}", self.server.name));
        self.note(
            &format!("WATCH {path}"),
            json!({"code": answer.status().as_u16(), "type": header(answer.headers(), "content-type")}),
        );
        Events { answer, buffer: Vec::new(), server: self.server.name }
    }

    /// Records the next events of a watch. Bookmarks come when they come and are left out, but for the one after a list.
    pub async fn events(&mut self, what: &str, events: &mut Events, count: usize) -> Vec<Value> {
        let mut seen = Vec::new();
        while seen.len() < count {
            match events.next(Duration::from_secs(20)).await {
                Some(event) => seen.push(event),
                None => break,
            }
        }
        let normal: Vec<Value> = seen.iter().map(|event| self.words.normal(event)).collect();
        self.note(&format!("EVENTS {what}"), normal.into());
        seen
    }

    /// Records something that the case found out itself.
    pub fn note(&mut self, what: &str, value: Value) {
        self.steps.push((what.to_owned(), value));
    }

    fn keep(&mut self, what: String, answer: &Answer, own: &[Own]) {
        let mut body = self.words.normal(&answer.body);
        if body.get("kind") == Some(&Value::from("Status")) {
            if own.contains(&Own::Message) || own.contains(&Own::Details) {
                body["message"] = Value::from("own words");
            }
            if own.contains(&Own::Details)
                && let Some(details) = body.get_mut("details").and_then(Value::as_object_mut)
            {
                details.remove("causes");
            }
            in_one_order(&mut body);
        }
        let warnings: Vec<String> = answer.headers.get_all("warning").iter().map(text_of).collect();
        let warnings = if own.contains(&Own::Warnings) { json!("own") } else { json!(warnings) };
        for path in &self.exempt {
            let steps: Vec<&str> = path.split('.').collect();
            remove(&mut body, &steps);
            for item in body.get_mut("items").and_then(Value::as_array_mut).into_iter().flatten() {
                remove(item, &steps);
            }
        }
        let recorded = json!({
            "code": answer.code, "body": body, "warnings": warnings,
            "type": header(&answer.headers, "content-type"),
            "retry-after": header(&answer.headers, "retry-after"),
        });
        let what = self.words.text("", &what);
        self.steps.push((what, recorded));
    }
}

/// Of several things wrong upstream tells some in the order of Go's maps, which is another each time.
fn in_one_order(status: &mut Value) {
    if let Some(causes) = status.pointer_mut("/details/causes").and_then(Value::as_array_mut) {
        causes.sort_by_key(Value::to_string);
    }
    let message = status["message"].as_str().unwrap_or_default().to_owned();
    if let Some((what, all)) = message.split_once("is invalid: [")
        && let Some(all) = all.strip_suffix(']')
    {
        let mut all: Vec<&str> = all.split(", ").collect();
        all.sort_unstable();
        status["message"] = format!("{what}is invalid: [{}]", all.join(", ")).into();
    }
}

/// Removes a field, and all containers that are empty then.
fn remove(value: &mut Value, steps: &[&str]) {
    let Some((first, rest)) = steps.split_first() else { return };
    match value {
        Value::Array(items) if *first == "*" => items.iter_mut().for_each(|item| remove(item, rest)),
        Value::Object(fields) if rest.is_empty() => drop(fields.remove(*first)),
        Value::Object(fields) => {
            let names: Vec<String> = match first.strip_suffix('*') {
                Some(prefix) => fields.keys().filter(|name| name.starts_with(prefix)).cloned().collect(),
                None => vec![(*first).to_owned()],
            };
            for name in names {
                if let Some(child) = fields.get_mut(&name) {
                    remove(child, rest);
                    if child.as_object().is_some_and(|child| child.is_empty()) {
                        fields.remove(&name);
                    }
                }
            }
        }
        _ => {}
    }
}

fn text_of(value: &reqwest::header::HeaderValue) -> String {
    String::from_utf8_lossy(value.as_bytes()).into_owned()
}

fn header(headers: &HeaderMap, name: &str) -> String {
    headers.get(name).map(text_of).unwrap_or_default()
}

/// An open watch.
pub struct Events {
    answer: reqwest::Response,
    buffer: Vec<u8>,
    server: &'static str,
}

impl Events {
    /// The next event that is no ordinary bookmark. None when the watch ended.
    pub async fn next(&mut self, within: Duration) -> Option<Value> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                let event: Value = serde_json::from_slice(&line).expect("an event");
                let ends = event.pointer("/object/metadata/annotations").is_some();
                if event["type"] == "BOOKMARK" && !ends {
                    continue;
                }
                return Some(event);
            }
            let next = tokio::time::timeout(within, self.answer.chunk()).await;
            let next = next.unwrap_or_else(|_| panic!("{}: no event came", self.server));
            self.buffer.extend_from_slice(&next.ok().flatten()?);
        }
    }

    /// Whether nothing comes for a moment.
    pub async fn quiet(&mut self) -> bool {
        match tokio::time::timeout(Duration::from_millis(300), self.next(Duration::from_secs(60))).await {
            Err(_) => true,
            Ok(event) => event.is_none(),
        }
    }
}

pub const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// Runs a case against both servers and compares every step. Without a real server the case runs all the same.
pub async fn compare(case: impl AsyncFn(&mut Session)) {
    let servers = servers();
    let mut ours = Session::new(&servers.embedded);
    case(&mut ours).await;
    let Some(real) = &servers.real else { return };
    let mut theirs = Session::new(real);
    case(&mut theirs).await;
    let mut found = Vec::new();
    let ours_steps = &ours.steps;
    for (index, (step, ours)) in ours_steps.iter().enumerate() {
        let Some((_, theirs)) = theirs.steps.get(index) else { continue };
        let mut here = Vec::new();
        differences("", ours, theirs, &mut here);
        if !here.is_empty() {
            let (our_code, their_code) = (&ours["code"], &theirs["code"]);
            if our_code != their_code {
                let words = |answer: &Value| match answer["body"].get("status").and_then(Value::as_str) {
                    Some("Failure") => format!("{}: {}", answer["code"], answer["body"]["message"]),
                    _ => format!("{} {}", answer["code"], answer["body"].get("kind").unwrap_or(&answer["body"])),
                };
                here = vec![format!("embedded: {}\n    real:     {}", words(ours), words(theirs))];
            }
            // What was sent is in the note before, where a case takes one.
            let note = index.checked_sub(1).and_then(|before| ours_steps.get(before));
            let note = note.filter(|(_, note)| note.get("code").is_none()).map(|(_, note)| format!(" {note}"));
            found.push(format!("  step {index}: {step}{}\n    {}", note.unwrap_or_default(), here.join("\n    ")));
        }
    }
    assert_eq!(ours.steps.len(), theirs.steps.len(), "one server was asked more than the other");
    assert!(found.is_empty(), "the servers differ:\n{}", found.join("\n"));
}
