//! fakepve: a Proxmox VE that checks every call against the real schema, and runs nothing.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::http::Client;
use crate::plane::root;

/// A running fakepve, with two nodes, the template 9000 and the storage `shared`; it ends with this.
pub struct FakePve {
    process: Child,
    client: Client,
    control: String,
    /// Its API, `https://…`.
    pub url: String,
    /// The certificate that it shows, PEM.
    pub ca: String,
}

impl FakePve {
    /// Starts it on `host:port`. A second of Proxmox VE takes `time_scale` seconds; 0: tasks end before they are answered.
    ///
    /// # Errors
    /// When it does not start: `tests/setup.sh` installs it.
    pub fn start(client: &Client, listen: &str, time_scale: f64) -> Result<Self> {
        let python = root().join("target/venv/bin/python");
        let mut process = Command::new(&python)
            .arg(root().join("tests/fakepve/serve.py"))
            .args([&time_scale.to_string(), listen])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {}; run tests/setup.sh", python.display()))?;
        let mut line = String::new();
        let stdout = process.stdout.take().context("fakepve has no output")?;
        BufReader::new(stdout).read_line(&mut line)?;
        let up: Value = serde_json::from_str(&line).context("fakepve does not start; its words are above")?;
        let text = |name: &str| up[name].as_str().unwrap_or_default().to_owned();
        let this = Self { process, client: client.clone(), control: text("control"), url: text("url"), ca: text("ca") };
        // The token that it comes with belongs to other tests.
        this.set_token("capi@pve!test", None)?;
        Ok(this)
    }

    fn get(&self, path: &str) -> Result<Value> {
        self.client.ask("GET", &format!("{}{path}", self.control), None)
    }

    fn post(&self, path: &str, body: &Value) -> Result<()> {
        self.client.ask("POST", &format!("{}{path}", self.control), Some(body)).map(drop)
    }

    /// The machines, without templates: `vmid`, `name`, `node`, `status`, `pool`, `config`.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn vms(&self) -> Result<Vec<Value>> {
        Ok(self.get("/vms")?.as_array().cloned().unwrap_or_default())
    }

    /// What was not there in the beginning.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn left(&self) -> Result<Vec<String>> {
        Ok(self
            .get("/left")?
            .as_array()
            .into_iter()
            .flatten()
            .map(|line| line.as_str().unwrap_or("?").into())
            .collect())
    }

    /// Method and path of the requests so far.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn requests(&self) -> Result<Vec<(String, String)>> {
        let all = self.get("/requests")?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Ok(all.as_array().into_iter().flatten().map(|pair| (text(&pair[0]), text(&pair[1]))).collect())
    }

    /// The bytes of an uploaded image that is still there.
    ///
    /// # Errors
    /// When it is not.
    pub fn iso(&self, storage: &str, file: &str) -> Result<Vec<u8>> {
        self.client.bytes("GET", &format!("{}/iso/{storage}/{file}", self.control), None)
    }

    /// Sets what a machine's guest agent answers to `network-get-interfaces`.
    ///
    /// # Errors
    /// When there is no such machine.
    pub fn set_interfaces(&self, vmid: u64, interfaces: &Value) -> Result<()> {
        self.post(&format!("/vm/{vmid}/interfaces"), interfaces)
    }

    /// `stop`, `start` or `destroy`, as a person would.
    ///
    /// # Errors
    /// When there is no such machine.
    pub fn by_hand(&self, vmid: u64, deed: &str) -> Result<()> {
        self.post(&format!("/vm/{vmid}/{deed}"), &json!({}))
    }

    /// Gives a token (`user@realm!name`) this secret; takes it away where there is none.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn set_token(&self, id: &str, secret: Option<&str>) -> Result<()> {
        self.post("/token", &json!({"id": id, "secret": secret}))
    }

    /// Gives a user rights on a path. From the first one on, all rights are checked.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn grant(&self, user: &str, path: &str, rights: &[&str]) -> Result<()> {
        self.post("/grant", &json!({"user": user, "path": path, "rights": rights}))
    }

    /// Makes a resource pool.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn make_pool(&self, name: &str) -> Result<()> {
        self.post("/pool", &json!({"name": name}))
    }

    /// Makes another template on node pve1, in a pool and with the pool's name as its tag.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn make_template(&self, vmid: u64, pool: &str) -> Result<()> {
        self.post("/template", &json!({"vmid": vmid, "pool": pool}))
    }

    /// Changes the storage `shared`, such as how much of it is `avail`able.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn set_storage(&self, changes: &Value) -> Result<()> {
        self.post("/storage/shared", changes)
    }
}

impl Drop for FakePve {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The rights of the role that `docs/providers/proxmox.md` has its readers make.
///
/// # Errors
/// When the page no longer has the command.
pub fn documented_rights() -> Result<Vec<String>> {
    let page = std::fs::read_to_string(root().join("docs/providers/proxmox.md"))?;
    let (_, rest) = page.split_once("pveum role add Capstan -privs \"").context("the page has no pveum role add")?;
    let rights: Vec<String> = rest.split('"').next().unwrap_or_default().split(' ').map(str::to_owned).collect();
    ensure!(rights.len() > 10, "{rights:?}");
    Ok(rights)
}
