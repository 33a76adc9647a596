//! moto: an AWS that checks signatures and rights, and runs nothing.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::http::Client;
use crate::plane::root;

/// The account that is there from the beginning.
pub const ACCOUNT: &str = "123456789012";

/// A running moto; it ends with this. `tests/moto/serve.py` says what is in it.
pub struct Moto {
    process: Child,
    client: Client,
    /// Where its control interface is.
    pub control: String,
    /// Its API, `http://…`, the same for all services.
    pub url: String,
    /// The users of the first account.
    pub users: Users,
    /// The image of the first account.
    pub image: String,
}

/// Users of an account, and their keys.
#[derive(Clone, Debug)]
pub struct Users(Value);

/// The key of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// Its id.
    pub id: String,
    /// Its secret.
    pub secret: String,
}

impl Users {
    /// The key that a user had in the beginning.
    pub fn key(&self, user: &str) -> Key {
        let text = |field: &str| self.0[user][field].as_str().unwrap_or_default().to_owned();
        Key { id: text("id"), secret: text("secret") }
    }
}

/// A request that moto was sent.
#[derive(Clone, Debug)]
pub struct Asked {
    /// `RunInstances`, or method and path where it has no such name.
    pub action: String,
    /// The id of the key that signed it.
    pub key: String,
    /// The status of the answer; 0 while there is none.
    pub status: u64,
    /// Its parameters, but for user data.
    pub fields: Value,
}

impl Moto {
    /// Starts it.
    ///
    /// # Errors
    /// When it does not start: `tests/setup.sh` installs it.
    pub fn start(client: &Client) -> Result<Self> {
        let python = root().join("target/venv/bin/python");
        let mut process = Command::new(&python)
            .arg(root().join("tests/moto/serve.py"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {}; run tests/setup.sh", python.display()))?;
        let mut line = String::new();
        let stdout = process.stdout.take().context("moto has no output")?;
        BufReader::new(stdout).read_line(&mut line)?;
        let up: Value = serde_json::from_str(&line).context("moto does not start; its words are above")?;
        let text = |name: &str| up[name].as_str().unwrap_or_default().to_owned();
        let (control, url, image, users) = (text("control"), text("url"), text("image"), Users(up["keys"].clone()));
        Ok(Self { process, client: client.clone(), control, url, users, image })
    }

    fn get(&self, path: &str) -> Result<Value> {
        self.client.ask("GET", &format!("{}{path}", self.control), None)
    }

    fn lines(&self, path: &str) -> Result<Vec<String>> {
        let lines = self.get(path)?;
        Ok(lines.as_array().into_iter().flatten().map(|line| line.as_str().unwrap_or("?").into()).collect())
    }

    fn post(&self, path: &str, body: &Value) -> Result<Value> {
        self.client.ask("POST", &format!("{}{path}", self.control), Some(body))
    }

    /// What runs, and what leads to it: `instances` and `balancers`.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn shown(&self) -> Result<Value> {
        self.get("/shown")
    }

    /// The user data of an instance.
    ///
    /// # Errors
    /// When there is no such instance, or what it has is no base64.
    pub fn user_data(&self, instance: &str) -> Result<Vec<u8>> {
        use base64::Engine as _;
        let data = self.get(&format!("/data/{instance}"))?;
        Ok(base64::engine::general_purpose::STANDARD.decode(data.as_str().unwrap_or_default())?)
    }

    /// What was not there in the beginning, by kind and name: what AWS makes with a VPC is left out.
    ///
    /// # Errors
    /// When there is no such account.
    pub fn left(&self, account: &str) -> Result<Vec<String>> {
        self.lines(&format!("/left/{account}"))
    }

    /// Everything of every kind that was not there in the beginning.
    ///
    /// # Errors
    /// When there is no such account.
    pub fn made(&self, account: &str) -> Result<Vec<String>> {
        self.lines(&format!("/made/{account}"))
    }

    /// The requests so far, except for those of [`Moto::by_hand`] and of machines.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn requests(&self) -> Result<Vec<Asked>> {
        let all = self.get("/requests")?;
        let people = [self.users.key("admin").id, self.users.key("node").id];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let asked = |request: &Value| Asked {
            action: text(&request["action"]),
            key: text(&request["key"]),
            status: request["status"].as_u64().unwrap_or_default(),
            fields: request["fields"].clone(),
        };
        Ok(all.as_array().into_iter().flatten().map(asked).filter(|asked| !people.contains(&asked.key)).collect())
    }

    /// What somebody does who may do everything in an account, by the name that boto3 has for it; the answer.
    ///
    /// # Errors
    /// When AWS refuses it; the error carries what it said.
    pub fn by_hand(&self, account: &str, service: &str, operation: &str, params: &Value) -> Result<Value> {
        let body = json!({"account": account, "service": service, "operation": operation, "params": params});
        self.post("/aws", &body).with_context(|| format!("{operation} {params}"))
    }

    /// A further account, with such users as the first one has; they, and its image.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn make_account(&self, id: &str) -> Result<(Users, String)> {
        let made = self.post(&format!("/account/{id}"), &json!({}))?;
        Ok((Users(made["keys"].clone()), made["image"].as_str().unwrap_or_default().to_owned()))
    }

    /// Refuses the next so many requests of an action, with this status and AWS's code; 0: no more.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn fail(&self, action: &str, status: u16, code: &str, times: u32) -> Result<()> {
        let fault = json!({"action": action, "status": status, "code": code, "times": times});
        self.post("/fault", &fault).map(drop)
    }

    /// Deactivates a key as soon as the next request of this action has been carried out.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn deactivate_after(&self, action: &str, key: &Key) -> Result<()> {
        self.post(&format!("/end/{action}/{}", key.id), &json!({})).map(drop)
    }

    /// A further key of a user of the first account.
    ///
    /// # Errors
    /// When it has two.
    pub fn make_key(&self, user: &str) -> Result<Key> {
        let made = self.by_hand(ACCOUNT, "iam", "create_access_key", &json!({"UserName": user}))?;
        let text = |field: &str| made["AccessKey"][field].as_str().unwrap_or_default().to_owned();
        Ok(Key { id: text("AccessKeyId"), secret: text("SecretAccessKey") })
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
