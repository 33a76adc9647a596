//! A registry with one image, which it gives when the test says so.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::docker::Engine;

const MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const CONFIG: &str = "application/vnd.docker.container.image.v1+json";
const LAYER: &str = "application/vnd.docker.image.rootfs.diff.tar";

/// Config and layer, by their digests.
type Blobs = BTreeMap<String, Vec<u8>>;

/// Whether manifests are given yet.
type Gate = Arc<(Mutex<bool>, Condvar)>;

/// A registry on loopback, where engines ask for no certificate. Its thread ends with the process.
pub struct Registry {
    /// What the image is called there.
    pub image: String,
    gate: Gate,
}

impl Registry {
    /// With an image of this engine. Whoever asks for it waits until it is given.
    ///
    /// # Errors
    /// When the engine has no such image, or there is no port.
    pub fn with(engine: &Engine, image: &str) -> Result<Self> {
        let (manifest, blobs) = saved(engine, image)?;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let name = format!("127.0.0.1:{}/image:v1", listener.local_addr()?.port());
        let gate = Gate::default();
        let content = Arc::new((manifest, blobs));
        let waiting = gate.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (gate, content) = (waiting.clone(), content.clone());
                // Whoever goes away, or speaks TLS first, is not to be answered.
                std::thread::spawn(move || serve(&stream, &gate, &content.0, &content.1));
            }
        });
        Ok(Self { image: name, gate })
    }

    /// Gives the image to all who wait for it, and from now on.
    pub fn give(&self) {
        *self.gate.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.gate.1.notify_all();
    }
}

/// The manifest of an image of one layer, and config and layer by their digests.
fn saved(engine: &Engine, image: &str) -> Result<(Vec<u8>, Blobs)> {
    let dir = tempfile::tempdir()?;
    let mut save = engine.client().args(["save", image]).stdout(Stdio::piped()).spawn()?;
    let archive = save.stdout.take().context("no output")?;
    let status = std::process::Command::new("tar").arg("-x").arg("-C").arg(dir.path()).stdin(archive).status()?;
    ensure!(status.success() && save.wait()?.success(), "docker save {image}");
    let read = |path: &Value| std::fs::read(dir.path().join(path.as_str().unwrap_or_default()));
    let index: Value = serde_json::from_slice(&read(&"manifest.json".into())?)?;
    let path = &index[0]["Config"];
    let config = read(path)?;
    let layers = index[0]["Layers"].as_array().context("no layers")?;
    ensure!(layers.len() == 1, "{image} has {} layers", layers.len());
    let layer = read(&layers[0])?;
    // Its config is called by its digest, and the layer, which is not compressed, is what the config says.
    let stem = path.as_str().and_then(|path| path.rsplit('/').next()).unwrap_or_default();
    let config_digest = format!("sha256:{}", stem.trim_end_matches(".json"));
    let described: Value = serde_json::from_slice(&config)?;
    let layer_digest = described["rootfs"]["diff_ids"][0].as_str().context("no diff_ids")?.to_owned();
    let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST,
        "config": {"mediaType": CONFIG, "size": config.len(), "digest": config_digest},
        "layers": [{"mediaType": LAYER, "size": layer.len(), "digest": layer_digest}]});
    Ok((manifest.to_string().into_bytes(), BTreeMap::from([(config_digest, config), (layer_digest, layer)])))
}

/// Answers requests until there are no more.
fn serve(stream: &TcpStream, gate: &Gate, manifest: &[u8], blobs: &Blobs) -> Option<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let mut asked = String::new();
        reader.read_line(&mut asked).ok()?;
        let (method, path) = asked.split_once(' ').filter(|(method, _)| ["GET", "HEAD"].contains(method))?;
        let path = path.split(' ').next()?;
        let mut header = String::new();
        while header.trim() != "" || header.is_empty() {
            header.clear();
            if reader.read_line(&mut header).ok()? == 0 {
                return None;
            }
        }
        let found = if path == "/v2/" {
            Some(("application/json", b"{}".as_slice()))
        } else if path.starts_with("/v2/image/manifests/") {
            let open = gate.0.lock().unwrap_or_else(PoisonError::into_inner);
            drop(gate.1.wait_while(open, |open| !*open).unwrap_or_else(PoisonError::into_inner));
            Some((MANIFEST, manifest))
        } else {
            let blob = path.strip_prefix("/v2/image/blobs/").and_then(|digest| blobs.get(digest));
            blob.map(|blob| ("application/octet-stream", blob.as_slice()))
        };
        let (status, (kind, body)) =
            found.map_or(("404 Not Found", ("text/plain", b"".as_slice())), |it| ("200 OK", it));
        let mut stream = stream;
        write!(stream, "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n", body.len()).ok()?;
        if method == "GET" {
            stream.write_all(body).ok()?;
        }
    }
}
