//! The Docker Engine API, as far as it is used here.
//!
//! Each call of a part begins with [`Engine::find`], which asks for the version that the engine speaks (an answer that all
//! objects share) and puts it, or the newest that this file was written for, before every path.

use std::collections::BTreeMap;

use capstan_provider::{
    Chunk, Error, Progress, Result,
    http::{self, Request},
    secrets::{self, ArchiveFormat, Member},
};
use serde::Deserialize;
use serde_json::Value;

use crate::{ENGINE, PULL};

/// The oldest version that has all that is used here: Docker 20.10.
const OLDEST: (u32, u32) = (1, 41);
/// The newest version that this was written for; a newer engine speaks it too.
const NEWEST: (u32, u32) = (1, 51);
/// How old the engine's answer about its version may be (ms).
const VERSION_AGE: u64 = 60_000;

/// An engine that answers, and the version of its API to speak.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Engine {
    version: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Version {
    api_version: String,
    #[serde(rename = "MinAPIVersion")]
    min_api_version: String,
}

fn numbers(version: &str) -> Option<(u32, u32)> {
    let (major, minor) = version.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

impl Engine {
    /// The engine, if it is there and neither too old nor too new.
    pub fn find() -> Result<Self> {
        let answer = http::get(ENGINE, "/version", &[]).max_age(VERSION_AGE).ok().map_err(advised)?;
        let said: Version = answer.json()?;
        let unsuitable = |what: &str| {
            let message = format!(
                "the engine speaks versions {} to {} of its API, and this provider {}.{} to {}.{}: {what}",
                said.min_api_version, said.api_version, OLDEST.0, OLDEST.1, NEWEST.0, NEWEST.1
            );
            Error::transient("EngineUnsuitable", message)
        };
        let newest = numbers(&said.api_version).ok_or_else(|| unsuitable("that is no Docker Engine"))?;
        if newest < OLDEST {
            return Err(unsuitable("install Docker 20.10 or newer"));
        }
        if numbers(&said.min_api_version).is_some_and(|min| min > NEWEST) {
            return Err(unsuitable("a newer version of this provider is needed"));
        }
        let (major, minor) = newest.min(NEWEST);
        Ok(Self { version: format!("{major}.{minor}") })
    }

    fn path(&self, path: &str) -> String {
        format!("/v{}{path}", self.version)
    }

    /// A read.
    pub fn get(&self, path: &str, arguments: &[&str]) -> Request {
        http::get(ENGINE, &self.path(path), arguments)
    }

    /// A POST.
    pub fn post(&self, path: &str, arguments: &[&str]) -> Request {
        http::post(ENGINE, &self.path(path), arguments)
    }

    /// A DELETE.
    pub fn delete(&self, path: &str, arguments: &[&str]) -> Request {
        http::delete(ENGINE, &self.path(path), arguments)
    }

    /// The pull of an image, through the endpoint that may take long.
    pub fn pull(&self, image: &str) -> Request {
        http::post(PULL, &self.path("/images/create"), &[]).query("fromImage", image)
    }
}

/// What to do where the engine cannot be reached.
fn advised(error: Error) -> Error {
    match error {
        Error::Transient(reason) if reason.code == "NotSent" => Error::transient(
            "EngineUnreachable",
            format!(
                "{}: is the Docker engine running, may this process open its socket (group docker), and does an EgressPolicy \
                 list it?",
                reason.message
            ),
        ),
        other => other,
    }
}

/// A container, as `inspect` describes it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Container {
    /// Its id.
    pub id: String,
    /// When it was made.
    pub created: String,
    /// The program that it runs.
    pub path: String,
    /// The program's arguments.
    pub args: Vec<String>,
    /// What it does.
    pub state: State,
    /// What it was made with.
    pub config: Config,
    /// Its networks.
    pub network_settings: NetworkSettings,
    /// Commands that were prepared or run in it.
    #[serde(rename = "ExecIDs")]
    pub exec_ids: Option<Vec<String>>,
}

/// What a container does.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct State {
    /// `created`, `running`, `exited`, …
    pub status: String,
    /// Its command runs, or is about to run again.
    pub running: bool,
    /// It is about to run again.
    pub restarting: bool,
    /// Its processes stand still.
    pub paused: bool,
    /// How its command ended.
    pub exit_code: i64,
    /// Why it did not start.
    pub error: String,
    /// When it was started last; the year 1 if never.
    pub started_at: String,
}

/// What a container was made with.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Config {
    /// Its image.
    pub image: String,
    /// Its labels.
    pub labels: Option<BTreeMap<String, String>>,
    /// What it says goes to a terminal.
    pub tty: bool,
}

/// The networks of a container.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NetworkSettings {
    /// By name.
    pub networks: BTreeMap<String, Attachment>,
}

/// A container's place in a network. Without addresses while it does not run.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Attachment {
    /// IPv4.
    #[serde(rename = "IPAddress")]
    pub ip_address: String,
    /// IPv6.
    #[serde(rename = "GlobalIPv6Address")]
    pub global_ipv6_address: String,
}

impl Container {
    /// A label.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.config.labels.as_ref()?.get(key).map(String::as_str)
    }

    /// Its processes run now.
    pub fn runs(&self) -> bool {
        self.state.running && !self.state.restarting && !self.state.paused
    }

    /// Its addresses in a network.
    pub fn addresses(&self, network: &str) -> Vec<String> {
        let Some(place) = self.network_settings.networks.get(network) else { return Vec::new() };
        [&place.ip_address, &place.global_ipv6_address].into_iter().filter(|ip| !ip.is_empty()).cloned().collect()
    }
}

impl Engine {
    /// The container of this name.
    pub fn inspect(&self, name: &str) -> Result<Option<Container>> {
        let Some(answer) = self.get("/containers/{}/json", &[name]).found().map_err(advised)? else { return Ok(None) };
        let container: Container = answer.json()?;
        if container.id.is_empty() {
            let message = format!("the engine describes container {name} without an id");
            return Err(Error::transient("UnexpectedAnswer", message));
        }
        Ok(Some(container))
    }

    /// The end of what a container has said.
    pub fn log(&self, name: &str, container: &Container, lines: usize) -> Result<String> {
        let request = self.get("/containers/{}/logs", &[name]).query("stdout", "true").query("stderr", "true");
        let Some(answer) = request.query("tail", lines.to_string()).found()? else { return Ok(String::new()) };
        Ok(if container.config.tty {
            String::from_utf8_lossy(&answer.body).into_owned()
        } else {
            unframed(&answer.body)
        })
    }

    /// Why a container does not run, with the last thing that it said; empty while it does, or before it was started.
    pub fn trouble(&self, name: &str, container: &Container) -> Result<String> {
        let state = &container.state;
        if container.runs() {
            return Ok(String::new());
        }
        if state.paused {
            return Ok(format!("docker unpause {name}"));
        }
        if !state.error.is_empty() {
            return Ok(state.error.clone());
        }
        if state.status == "created" {
            return Ok(String::new());
        }
        let said = self.log(name, container, 3)?;
        let last: String =
            said.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default().chars().take(300).collect();
        let more = if last.is_empty() { format!("docker logs {name}") } else { format!("it said last: {last}") };
        Ok(format!("its command ended with code {}; {more}", state.exit_code))
    }

    /// Starts a container; 304 says that it runs already.
    pub fn start(&self, name: &str) -> Result<Progress> {
        let answer = self.post("/containers/{}/start", &[name]).send().map_err(advised)?;
        match answer.status {
            204 | 304 => Ok(Progress::done(name)),
            404 => Err(Error::transient(
                "ContainerOrNetworkMissing",
                format!("container {name} cannot start: it, its image or its network is gone: {}", answer.message()),
            )),
            500 if ["already allocated", "already in use"].iter().any(|taken| answer.message().contains(taken)) => {
                let why = answer.message();
                Err(Error::transient(
                    "PortOrAddressTaken",
                    format!("container {name} cannot start: {why}: stop what has that port or address"),
                ))
            }
            _ => Err(answer.error()),
        }
    }

    /// Takes a container and its anonymous volumes away; 404 says that it is gone, 409 that it is going.
    pub fn remove(&self, name: &str) -> Result<Progress> {
        let request = self.delete("/containers/{}", &[name]).query("force", "true").query("v", "true");
        let answer = request.send().map_err(advised)?;
        match answer.status {
            200 | 204 | 404 => Ok(Progress::done(name)),
            409 => Ok(Progress::waiting("ContainerGoing", format!("container {name} is being removed already"))),
            _ => Err(answer.error()),
        }
    }

    /// Makes a container whose image is there.
    pub fn create(&self, name: &str, body: &Value) -> Result<Progress> {
        let answer = self.post("/containers/create", &[]).query("name", name).json(body)?.send().map_err(advised)?;
        let why = answer.message();
        let failed = |code: &str, advice: &str| {
            Err(Error::transient(code, format!("container {name} cannot be made: {why}{advice}")))
        };
        match answer.status {
            201 => Ok(Progress::done(name)),
            404 => failed("ImageOrNetworkMissing", ""),
            409 => Err(Error::conflict(
                "NameTaken",
                format!("container {name} cannot be made: {why} If nobody needs that one: docker rm {name}"),
            )),
            // The engine's machine may change, so it is tried again.
            400 if why.contains("mount") || why.contains("bind source") => failed(
                "MountRefused",
                ": spec.extraMounts names absolute paths, and hostPath is a path of the engine's machine",
            ),
            400 if why.contains("user configured subnets") => failed(
                "NetworkWithoutSubnet",
                ": the load balancer has to get its address again, which only a network made with --subnet allows",
            ),
            _ => Err(answer.error()),
        }
    }

    /// Puts files below `directory`, which must exist. They may hold secrets.
    pub fn put_files(&self, name: &str, directory: &str, members: &[Member]) -> Result<Progress> {
        let archive = secrets::archive(ArchiveFormat::Tar, "", members)?;
        // Another content type, and the engine answers 200 and drops the archive.
        http::put(ENGINE, &self.path("/containers/{}/archive"), &[name])
            .query("path", directory)
            .body("application/x-tar", vec![Chunk::Secret(archive)])
            .ok()
            .map_err(advised)?;
        Ok(Progress::done(name))
    }

    /// The files of a directory in a container, by name; those of directories below it are left out. Empty where there is no
    /// such directory.
    pub fn directory(&self, name: &str, path: &str) -> Result<BTreeMap<String, String>> {
        let asked = self.get("/containers/{}/archive", &[name]).query("path", path);
        let Some(answer) = asked.found().map_err(advised)? else { return Ok(BTreeMap::new()) };
        members(&answer.body).ok_or_else(|| {
            Error::transient("UnexpectedAnswer", "the engine answered with something that is no tar archive")
        })
    }
}

/// What was said without a terminal: each piece has a header of eight bytes, the last four of them its length.
fn unframed(mut log: &[u8]) -> String {
    let mut text = Vec::new();
    while let Some((header, rest)) = log.split_at_checked(8) {
        let [_, _, _, _, a, b, c, d] = *header else { break };
        let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX).min(rest.len());
        let Some((piece, after)) = rest.split_at_checked(length) else { break };
        text.extend_from_slice(piece);
        log = after;
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// The files of an archive of one directory, by their name in it; a directory in it is an empty file. `None`: it is no archive.
fn members(mut archive: &[u8]) -> Option<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    loop {
        let (header, rest) = archive.split_at_checked(512)?;
        // It ends with blocks of zeros.
        if header.iter().all(|byte| *byte == 0) {
            return Some(found);
        }
        if header.get(257..262)? != b"ustar" {
            return None;
        }
        let text = |field: &[u8]| String::from_utf8_lossy(field).trim_matches(['\0', ' ']).to_owned();
        let size = usize::from_str_radix(&text(header.get(124..136)?), 8).ok()?;
        let content = rest.get(..size)?;
        let path = text(header.get(..100)?);
        let mut steps = path.trim_end_matches('/').split('/').skip(1);
        if let (Some(name), None, b'0' | b'5') = (steps.next(), steps.next(), header.get(156)?) {
            found.insert(name.to_owned(), String::from_utf8_lossy(content).into_owned());
        }
        archive = rest.get(size.div_ceil(512).checked_mul(512)?..)?;
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A tar archive of a directory with these files, as the engine sends it.
    pub fn tar(files: &[(&str, &str)]) -> Vec<u8> {
        let mut archive = Vec::new();
        let mut add = |name: &str, kind: u8, body: &str| {
            let mut header = vec![0_u8; 512];
            header[..name.len()].copy_from_slice(name.as_bytes());
            header[124..136].copy_from_slice(format!("{:011o}\0", body.len()).as_bytes());
            header[156] = kind;
            header[257..265].copy_from_slice(b"ustar\x0000");
            archive.extend(header);
            archive.extend(body.as_bytes());
            archive.resize(archive.len().div_ceil(512) * 512, 0);
        };
        add("directory/", b'5', "");
        add("directory/PaxHeaders.0", b'x', "23 path=a-longer-path\n");
        add("directory/below/deeper", b'0', "deeper");
        for (name, body) in files {
            add(&format!("directory/{name}"), b'0', body);
        }
        archive.resize(archive.len() + 1024, 0);
        archive
    }

    /// The text of a file in a container of a real engine.
    pub fn read_live(scenario: &capstan_provider::testing::Scenario, container: &str, path: &str) -> String {
        let (directory, name) = path.rsplit_once('/').unwrap();
        let (files, _) = scenario.clone().run(|| Engine::find()?.directory(container, directory));
        files.unwrap().remove(name).unwrap()
    }

    #[test]
    fn the_files_of_an_archive() {
        let files = members(&tar(&[("a", "hello"), ("b", "")])).unwrap();
        assert_eq!(files, [("a", "hello"), ("b", "")].map(|(name, text)| (name.to_owned(), text.to_owned())).into());
        assert_eq!(members(&[0; 1024]), Some(BTreeMap::new()));
        assert_eq!(members(b"{\"message\":\"no\"}"), None);
        assert_eq!(members(&[b'x'; 2048]), None);
        let mut cut = tar(&[("a", "hello")]);
        cut.truncate(cut.len() - 1024);
        assert_eq!(members(&cut), None);
    }

    #[test]
    fn an_inspected_container() {
        let container: Container = serde_json::from_value(serde_json::json!({
            "Id": "abc", "State": {"Status": "running", "Running": true, "Extra": 1},
            "Config": {"Image": "i", "Labels": {"a": "b"}},
            "NetworkSettings": {"Networks": {"n": {"IPAddress": "10.0.0.2", "GlobalIPv6Address": ""}}}, "ExecIDs": null,
        }))
        .unwrap();
        assert_eq!(container.addresses("n"), ["10.0.0.2"]);
        assert_eq!(container.label("a"), Some("b"));
        assert!(container.addresses("other").is_empty());
    }

    #[test]
    fn the_newest_version_that_both_know_is_spoken() {
        let found = |newest: &str, oldest: &str| {
            capstan_provider::testing::Scenario::new("DockerMachine", serde_json::json!({}))
                .answer("GET /version", 200, serde_json::json!({"ApiVersion": newest, "MinAPIVersion": oldest}))
                .run(Engine::find)
                .0
                .map(|engine| engine.version)
        };
        assert_eq!(found("1.41", "1.12"), Ok("1.41".to_owned()));
        assert_eq!(found("1.44", "1.24"), Ok("1.44".to_owned()));
        assert_eq!(found("1.99", "1.44"), Ok("1.51".to_owned()));
        for (newest, oldest, advice) in
            [("1.40", "1.12", "20.10"), ("1.99", "1.60", "newer version of this provider"), ("", "", "no Docker")]
        {
            let unsuitable = found(newest, oldest).unwrap_err().to_string();
            assert!(unsuitable.contains(advice), "{unsuitable}");
        }
    }

    #[test]
    fn an_engine_that_is_not_there_is_told_with_what_to_do() {
        let told = advised(Error::transient("NotSent", "`engine` cannot be reached: no such file"));
        let Error::Transient(reason) = told else { panic!("{told:?}") };
        assert_eq!(reason.code, "EngineUnreachable");
        assert!(reason.message.contains("no such file") && reason.message.contains("group docker"));
    }

    #[test]
    fn what_is_said_without_a_terminal_has_headers() {
        assert_eq!(unframed(b"\x01\0\0\0\0\0\0\x03ab\n\x02\0\0\0\0\0\0\x02c\n"), "ab\nc\n");
        assert_eq!(unframed(b"\x01\0\0\0\0\0\0\x09cut"), "cut");
    }
}
