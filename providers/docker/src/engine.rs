//! The Docker Engine API, as far as it is used here. Paths carry no version, so the engine answers in its newest one.

use std::collections::BTreeMap;

use capstan_provider::{
    Chunk, Error, Progress, Result,
    http::{self, Response},
    secrets::{self, ArchiveFormat, Member},
};
use serde::Deserialize;
use serde_json::Value;

use crate::ENGINE;

/// A container, as `inspect` describes it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Container {
    /// Its id.
    pub id: String,
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
    /// It runs.
    pub running: bool,
    /// How its command ended.
    pub exit_code: i64,
    /// Why it did not start.
    pub error: String,
    /// When it was started last.
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

    /// Why it does not run; empty while it does, or before it was started.
    pub fn trouble(&self, name: &str) -> String {
        match (self.state.running, self.state.error.as_str(), self.state.exit_code) {
            (true, ..) | (false, "", 0) => String::new(),
            (false, "", code) => format!("its command ended with code {code}: docker logs {name}"),
            (false, error, _) => error.to_owned(),
        }
    }

    /// Its addresses in a network.
    pub fn addresses(&self, network: &str) -> Vec<String> {
        let Some(place) = self.network_settings.networks.get(network) else { return Vec::new() };
        [&place.ip_address, &place.global_ipv6_address].into_iter().filter(|ip| !ip.is_empty()).cloned().collect()
    }
}

/// The container of this name.
pub fn inspect(name: &str) -> Result<Option<Container>> {
    http::get(ENGINE, "/containers/{}/json", &[name]).found()?.map(|answer| answer.json()).transpose()
}

/// Starts a container; 304 says that it runs already.
pub fn start(name: &str) -> Result<Progress> {
    let answer = http::post(ENGINE, "/containers/{}/start", &[name]).send()?;
    match answer.status {
        204 | 304 => Ok(Progress::done(name)),
        404 => Err(Error::transient(
            "ContainerOrNetworkMissing",
            format!("container {name} cannot start: it, its image or its network is gone: {}", answer.message()),
        )),
        _ => Err(answer.error()),
    }
}

/// Takes a container and its anonymous volumes away; 404 says that it is gone, 409 that it is going.
pub fn remove(name: &str) -> Result<Progress> {
    let answer = http::delete(ENGINE, "/containers/{}", &[name]).query("force", "true").query("v", "true").send()?;
    match answer.status {
        200 | 204 | 404 => Ok(Progress::done(name)),
        409 => Ok(Progress::waiting("ContainerGoing", format!("container {name} is being removed already"))),
        _ => Err(answer.error()),
    }
}

/// Makes a container. A missing image is the user's to pull.
pub fn create(name: &str, body: &Value) -> Result<Progress> {
    let answer = http::post(ENGINE, "/containers/create", &[]).query("name", name).json(body)?.send()?;
    match answer.status {
        201 => Ok(Progress::done(name)),
        404 => {
            let image = body.get("Image").and_then(Value::as_str).unwrap_or_default();
            Err(Error::transient(
                "ImageOrNetworkMissing",
                format!(
                    "container {name} cannot be made: {}; if the image is missing: docker pull {image}",
                    answer.message()
                ),
            ))
        }
        409 => Err(Error::conflict("NameTaken", format!("container {name} cannot be made: {}", answer.message()))),
        _ => Err(answer.error()),
    }
}

/// Puts files below `directory`, which must exist. They may hold secrets.
pub fn put_files(name: &str, directory: &str, members: &[Member]) -> Result<Progress> {
    let archive = secrets::archive(ArchiveFormat::Tar, "", members)?;
    // Another content type, and the engine answers 200 and drops the archive.
    http::put(ENGINE, "/containers/{}/archive", &[name])
        .query("path", directory)
        .body("application/x-tar", vec![Chunk::Secret(archive)])
        .ok()?;
    Ok(Progress::done(name))
}

/// The texts of files in a container, read side by side.
pub fn files(name: &str, paths: &[&str]) -> Result<Vec<Option<String>>> {
    let requests =
        paths.iter().map(|path| http::get(ENGINE, "/containers/{}/archive", &[name]).query("path", *path)).collect();
    http::read_all(requests)
        .into_iter()
        .map(|answer| {
            let answer = answer?;
            match answer.status {
                404 => Ok(None),
                _ if answer.is_success() => file_of(Some(answer)),
                _ => Err(answer.error()),
            }
        })
        .collect()
}

fn file_of(answer: Option<Response>) -> Result<Option<String>> {
    let Some(answer) = answer else { return Ok(None) };
    match first_file(&answer.body) {
        Some(content) => Ok(Some(String::from_utf8_lossy(content).into_owned())),
        None => Err(Error::transient("UnexpectedAnswer", "the engine answered with something that is no tar archive")),
    }
}

/// The content of the first plain file of a tar archive; extended headers stand before it. A directory alone is empty.
fn first_file(mut archive: &[u8]) -> Option<&[u8]> {
    loop {
        let (header, rest) = archive.split_at_checked(512)?;
        let size = header.get(124..136)?;
        let octal = size.iter().filter(|byte| (b'0'..=b'7').contains(*byte)).map(|byte| usize::from(byte - b'0'));
        let size = octal.fold(0_usize, |sum, digit| sum.saturating_mul(8).saturating_add(digit));
        match header.get(156)? {
            b'0' | 0 => return rest.get(..size),
            b'5' => return Some(&[]),
            _ => archive = rest.get(size.div_ceil(512).checked_mul(512)?..)?,
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A tar archive of one file, as the engine sends it.
    pub fn tar(content: &str) -> Vec<u8> {
        let mut archive = Vec::new();
        for (kind, body) in [(b'x', "23 path=a-longer-path\n"), (b'0', content)] {
            let mut header = vec![0_u8; 512];
            header[..4].copy_from_slice(b"name");
            header[124..136].copy_from_slice(format!("{:011o}\0", body.len()).as_bytes());
            header[156] = kind;
            archive.extend(header);
            archive.extend(body.as_bytes());
            archive.resize(archive.len().div_ceil(512) * 512, 0);
        }
        archive.resize(archive.len() + 1024, 0);
        archive
    }

    /// The text of a file in a container of a real engine.
    pub fn read_live(scenario: &capstan_provider::testing::Scenario, container: &str, path: &str) -> String {
        let (files, _) = scenario.clone().run(|| files(container, &[path]));
        files.unwrap().remove(0).unwrap()
    }

    #[test]
    fn the_first_file_of_an_archive() {
        assert_eq!(first_file(&tar("hello")), Some(b"hello".as_slice()));
        assert_eq!(first_file(&tar("")), Some(b"".as_slice()));
        assert_eq!(first_file(b"{\"message\":\"no\"}"), None);
        let mut cut = tar("hello");
        cut.truncate(1026 + 512);
        assert_eq!(first_file(&cut), None);
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
}
