//! First-boot data: in user data where it fits, else in Secrets Manager, the Parameter Store or the cluster's bucket, from where user
//! data leads to it until the node has joined.
//!
//! Limits: 16,384 bytes of user data before base64; cloud-init reads gzip, Ignition does not.

use capstan_provider::{
    Choice, Context, Error, Observed, Part, Presence, Progress, Result, Secret,
    aws::{self, Fault},
    http, secrets,
    secrets::Encoding,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{instance, machine::AWSMachine, placement};

/// The most that user data holds, in bytes before base64.
const MOST: u64 = 16_384;
/// How much of it is put into one secret of Secrets Manager, which takes 65,536 bytes.
const SECRET: u64 = 40_000;
/// How much of it is put into one parameter, which takes 4,096 characters of base64.
const PARAMETER: u64 = 2_900;
/// How the parts' names begin.
const PART: &str = "bootstrap-data";

/// Where first-boot data is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Form {
    /// In user data.
    Direct {
        /// Compressed.
        gzip: bool,
    },
    /// In secrets or parameters, compressed.
    Secrets {
        /// In the Parameter Store.
        parameters: bool,
        /// How their names begin; a number follows.
        prefix: String,
        /// How many there are.
        count: u64,
    },
    /// In a bucket.
    Object {
        /// The bucket.
        bucket: String,
        /// The object.
        key: String,
    },
}

impl Default for Form {
    fn default() -> Self {
        Self::Direct { gzip: false }
    }
}

fn data() -> Result<Secret> {
    secrets::get("bootstrap-data")
}

fn is_ignition(ctx: &Context<AWSMachine>) -> bool {
    ctx.machine().and_then(|machine| machine.bootstrap_format()).as_deref() == Some("ignition")
}

/// Where first-boot data is to be, from its size and format. Pure.
pub fn form(ctx: &Context<AWSMachine>) -> Result<Form> {
    let data = data()?;
    let (raw, spec) = (data.size(), &ctx.spec);
    let too_large = |field: &str, size: u64, what: &str, cure: &str| {
        let message = format!("first-boot data has {size} bytes{what}, and user data holds {MOST}: {cure}");
        Err(Error::invalid(field, message))
    };
    if is_ignition(ctx) {
        let plain = spec.ignition.as_ref().and_then(|ignition| ignition.storage_type.as_deref());
        let plain = plain == Some("UnencryptedUserData");
        let bucket = placement::cluster(ctx)?.s3_bucket.filter(|_| !plain).map(|bucket| bucket.name);
        return match bucket {
            Some(bucket) => {
                let control_plane = ctx.machine().is_some_and(|machine| machine.control_plane());
                let role = if control_plane { "control-plane" } else { "node" };
                let key = format!("{role}/{}-{:08x}", ctx.name(), capstan_provider::hash(&ctx.owner_key()) >> 32);
                Ok(Form::Object { bucket, key })
            }
            None if raw <= MOST => Ok(Form::Direct { gzip: false }),
            None if plain => too_large(
                "/spec/ignition/storageType",
                raw,
                ", is not compressed for Ignition",
                "choose ClusterObjectStore",
            ),
            None => {
                let cure = "name a bucket in s3Bucket of the AWSCluster";
                too_large("/spec/ignition", raw, ", is not compressed for Ignition", cure)
            }
        };
    }
    let given = spec.cloud_init.secure_secrets_backend.as_deref();
    let only_direct = spec.cloud_init.insecure_skip_secrets_manager;
    if given.is_none() || only_direct {
        if raw <= MOST {
            return Ok(Form::Direct { gzip: false });
        }
        let compressed = spec.uncompressed_user_data != Some(true);
        let size = if compressed { data.encode(&[Encoding::Gzip]).size() } else { raw };
        if compressed && size <= MOST {
            return Ok(Form::Direct { gzip: true });
        }
        if only_direct {
            let what = if compressed { " when compressed" } else { "" };
            let cure = "take insecureSkipSecretsManager away";
            return too_large("/spec/cloudInit/insecureSkipSecretsManager", size, what, cure);
        }
    }
    let parameters = given == Some("ssm-parameter-store");
    let size = data.encode(&[Encoding::Gzip]).size();
    let count = size.div_ceil(if parameters { PARAMETER } else { SECRET }).max(1);
    let usual = if parameters { "/cluster.x-k8s.io/" } else { "aws.cluster.x-k8s.io/" };
    let prefix = spec.cloud_init.secret_prefix.clone().filter(|prefix| !prefix.is_empty());
    Ok(Form::Secrets { parameters, prefix: prefix.unwrap_or_else(|| format!("{usual}{}", ctx.owner_key())), count })
}

/// What goes into user data. Nothing of it changes between two tries of an attempt.
pub fn user_data(ctx: &Context<AWSMachine>, form: &Form) -> Result<Secret> {
    Ok(match form {
        Form::Direct { gzip: false } => data()?,
        Form::Direct { gzip: true } => data()?.encode(&[Encoding::Gzip]),
        Form::Secrets { parameters, prefix, count } => {
            let region = placement::cluster(ctx)?.region.unwrap_or_default();
            secrets::compose(&[script(*parameters, prefix, *count, &region).into()])
        }
        Form::Object { bucket, key } => {
            let version = ctx.spec.ignition.as_ref().and_then(|ignition| ignition.version.clone());
            let version = version.unwrap_or_else(|| "2.3".to_owned());
            let list = if version.starts_with("2.") { "append" } else { "merge" };
            let source = json!([{"source": format!("s3://{bucket}/{key}")}]);
            let pointer = json!({"ignition": {"version": format!("{version}.0"), "config": {list: source}}});
            secrets::compose(&[pointer.to_string().into()])
        }
    })
}

/// User data for cloud-init that fetches the secrets with the machine's instance profile and includes what they hold.
fn script(parameters: bool, prefix: &str, count: u64, region: &str) -> String {
    let fetch = if parameters {
        format!(
            "aws --region '{region}' ssm get-parameter --with-decryption --name '{prefix}-'\"$1\" --query Parameter.Value"
        )
    } else {
        format!(
            "aws --region '{region}' secretsmanager get-secret-value --secret-id '{prefix}-'\"$1\" --query SecretBinary"
        )
    };
    format!(
        r#"Content-Type: multipart/mixed; boundary="first-boot-data"
MIME-Version: 1.0

--first-boot-data
Content-Type: text/cloud-boothook; charset="us-ascii"

#!/bin/bash
# capstan.dev: first-boot data is in {count} pieces
set -euo pipefail
umask 077
target=/etc/capstan/first-boot-data.txt
if [ -e "$target" ]; then exit 0; fi
mkdir -p /etc/capstan
piece() {{
  for _ in $(seq 60); do
    if {fetch} --output text | base64 -d; then return 0; fi
    sleep 5
  done
  echo "piece $1 of the first-boot data cannot be fetched" >&2
  return 1
}}
: >"$target.gz"
for number in $(seq 0 {last}); do
  piece "$number" >"$target.piece"
  cat "$target.piece" >>"$target.gz"
done
gunzip -c "$target.gz" >"$target.new"
rm -f "$target.gz" "$target.piece"
mv "$target.new" "$target"
systemctl restart cloud-init

--first-boot-data
Content-Type: text/x-include-url; charset="us-ascii"

file:///etc/capstan/first-boot-data.txt

--first-boot-data--
"#,
        last = count.saturating_sub(1)
    )
}

/// The parts of a form.
pub fn parts(form: &Form) -> Vec<Box<dyn Part<AWSMachine>>> {
    match form {
        Form::Direct { .. } => Vec::new(),
        Form::Secrets { count, .. } => {
            (0..*count).map(|number| -> Box<dyn Part<AWSMachine>> { Box::new(Piece { number }) }).collect()
        }
        Form::Object { .. } => vec![Box::new(Object)],
    }
}

/// A part on record, however the data would be kept now.
pub fn by_name(_ctx: &Context<AWSMachine>, name: &str) -> Option<Box<dyn Part<AWSMachine>>> {
    let rest = name.strip_prefix(PART)?;
    if rest == "-object" {
        return Some(Box::new(Object));
    }
    let number = rest.strip_prefix('-')?.parse().ok()?;
    Some(Box::new(Piece { number }))
}

/// Where a part is: put on record before it is made, so that it is found when the data is gone.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Kept {
    form: Form,
}

fn kept(ctx: &Context<AWSMachine>, part: &str) -> Result<Form> {
    let frozen: Option<Kept> = ctx.known(part).map(|known| known.frozen()).transpose()?.flatten();
    match frozen {
        Some(kept) => Ok(kept.form),
        None => form(ctx),
    }
}

/// A piece of the data in a secret or parameter.
struct Piece {
    number: u64,
}

impl Piece {
    fn part(&self) -> String {
        format!("{PART}-{}", self.number)
    }

    /// Whether it is a parameter, and its name.
    fn place(&self, ctx: &Context<AWSMachine>) -> Result<(bool, String)> {
        match kept(ctx, &self.part())? {
            Form::Secrets { parameters, prefix, .. } => Ok((parameters, format!("{prefix}-{}", self.number))),
            _ => Err(Error::internal("first-boot data is not kept in secrets")),
        }
    }
}

/// Sends a JSON request; what it says, or why it does not.
fn ask(
    parameters: bool,
    action: &str,
    body: &Value,
    hidden: &[(&str, &Secret)],
) -> Result<std::result::Result<Value, Fault>> {
    let (endpoint, target) = if parameters {
        ("ssm", format!("AmazonSSM.{action}"))
    } else {
        ("secretsmanager", format!("secretsmanager.{action}"))
    };
    let answer = aws::json_with_secrets(endpoint, &target, body, hidden)?.send()?;
    if answer.is_success() { answer.json().map(Ok) } else { Ok(Err(Fault::of(&answer, action))) }
}

fn owner_in(answer: &Value, list: &str) -> Option<String> {
    let tags = answer.get(list)?.as_array()?;
    let ours = tags.iter().find(|tag| tag.get("Key").and_then(Value::as_str) == Some(crate::tags::OWNER))?;
    Some(ours.get("Value")?.as_str()?.to_owned())
}

impl Part<AWSMachine> for Piece {
    fn name(&self) -> String {
        self.part()
    }
    fn replaceable(&self) -> bool {
        true
    }
    fn identify(&self, ctx: &Context<AWSMachine>, _reserved: &[String]) -> Result<Choice> {
        let form = form(ctx)?;
        let Form::Secrets { prefix, .. } = &form else {
            return Err(Error::internal("first-boot data is not kept in secrets"));
        };
        Choice::chosen(format!("{prefix}-{}", self.number)).freeze(&Kept { form })
    }
    fn observe(&self, ctx: &Context<AWSMachine>) -> Result<Presence> {
        let (parameters, name) = self.place(ctx)?;
        let answer = if parameters {
            ask(true, "ListTagsForResource", &json!({"ResourceType": "Parameter", "ResourceId": name}), &[])?
        } else {
            ask(false, "DescribeSecret", &json!({"SecretId": name}), &[])?
        };
        let (answer, list) = match answer {
            Ok(answer) => (answer, if parameters { "TagList" } else { "Tags" }),
            Err(fault) if fault.is_missing() || fault.is("InvalidResourceId") => return Ok(Presence::absent_by_id()),
            Err(fault) => return Err(fault.error()),
        };
        if answer.get("DeletedDate").is_some_and(|date| !date.is_null()) {
            return Ok(Presence::absent_by_id());
        }
        if owner_in(&answer, list).as_deref() != Some(&ctx.owner_key()) {
            let message = format!("{name} is there and was not made for this machine");
            return Ok(Presence::foreign("SecretForeign", message));
        }
        Ok(Presence::Present(Observed::new(&name, &json!({"name": name}))?.ready(true)))
    }
    fn create(&self, ctx: &Context<AWSMachine>) -> Result<Progress> {
        let part = self.part();
        let (parameters, name) = self.place(ctx)?;
        let data = data()?.encode(&[Encoding::Gzip]);
        let each = if parameters { PARAMETER } else { SECRET };
        let start = self.number * each;
        let length = data.size().saturating_sub(start).min(each);
        let piece = data.slice(start.min(data.size()), length).base64();
        let tags: Vec<Value> = instance::wanted_tags(ctx)?
            .into_iter()
            .filter(|(key, _)| key != crate::tags::NAME)
            .map(|(key, value)| if key == crate::tags::PART { (key, part.clone()) } else { (key, value) })
            .map(|(key, value)| json!({"Key": key, "Value": value}))
            .collect();
        let answer = if parameters {
            let body = json!({"Name": name, "Type": "SecureString", "Value": "", "Tags": tags});
            ask(true, "PutParameter", &body, &[("/Value", &piece)])?
        } else {
            let token = ctx.known(&part).unwrap_or_default().idempotency_key;
            let body = json!({"Name": name, "ClientRequestToken": token, "SecretBinary": "", "Tags": tags});
            ask(false, "CreateSecret", &body, &[("/SecretBinary", &piece)])?
        };
        match answer {
            Ok(_) => Ok(Progress::done(name)),
            Err(fault) => Err(fault.error_at(&[("InvalidParameter", "/spec/cloudInit/secretPrefix")])),
        }
    }
    fn delete(&self, ctx: &Context<AWSMachine>) -> Result<Progress> {
        let (parameters, name) = self.place(ctx)?;
        let answer = if parameters {
            ask(true, "DeleteParameter", &json!({"Name": name}), &[])?
        } else {
            ask(false, "DeleteSecret", &json!({"SecretId": name, "ForceDeleteWithoutRecovery": true}), &[])?
        };
        match answer {
            Ok(_) => Ok(Progress::done(name)),
            Err(fault) if fault.is_missing() => Ok(Progress::done(name)),
            Err(fault) => Err(fault.error()),
        }
    }
}

/// The data as an object of the cluster's bucket.
struct Object;

const OWNER_HEADER: &str = "x-amz-meta-capstan-owner-key";

impl Object {
    fn part() -> String {
        format!("{PART}-object")
    }

    fn place(ctx: &Context<AWSMachine>) -> Result<(String, String)> {
        match kept(ctx, &Self::part())? {
            Form::Object { bucket, key } => Ok((bucket, key)),
            _ => Err(Error::internal("first-boot data is not kept in a bucket")),
        }
    }

    /// The path of an object; its key has one slash.
    fn path(bucket: &str, key: &str) -> (&'static str, [String; 3]) {
        let (folder, name) = key.split_once('/').unwrap_or(("", key));
        ("/{}/{}/{}", [bucket.to_owned(), folder.to_owned(), name.to_owned()])
    }
}

impl Part<AWSMachine> for Object {
    fn name(&self) -> String {
        Self::part()
    }
    fn identify(&self, ctx: &Context<AWSMachine>, _reserved: &[String]) -> Result<Choice> {
        let form = form(ctx)?;
        let Form::Object { bucket, key } = &form else {
            return Err(Error::internal("first-boot data is not kept in a bucket"));
        };
        Choice::chosen(format!("{bucket}/{key}")).freeze(&Kept { form })
    }
    fn observe(&self, ctx: &Context<AWSMachine>) -> Result<Presence> {
        let (bucket, key) = Self::place(ctx)?;
        let (path, arguments) = Self::path(&bucket, &key);
        let mut request = http::get("s3", path, &arguments.each_ref().map(String::as_str));
        request.method = http::Method::Head;
        let answer = request.send()?;
        match answer.status {
            404 => Ok(Presence::absent_by_id()),
            200 if answer.header(OWNER_HEADER) == Some(&ctx.owner_key()) => {
                let id = format!("{bucket}/{key}");
                Ok(Presence::Present(Observed::new(&id, &json!({}))?.ready(true)))
            }
            200 => {
                let message = format!("object {key} of bucket {bucket} is there and was not made for this machine");
                Ok(Presence::foreign("ObjectForeign", message))
            }
            _ => Err(Fault::of(&answer, "HeadObject").error()),
        }
    }
    fn create(&self, ctx: &Context<AWSMachine>) -> Result<Progress> {
        let (bucket, key) = Self::place(ctx)?;
        let (path, arguments) = Self::path(&bucket, &key);
        let answer = http::put("s3", path, &arguments.each_ref().map(String::as_str))
            .header(OWNER_HEADER, ctx.owner_key())
            .body("application/octet-stream", vec![data()?.into()])
            .send()?;
        if answer.is_success() {
            return Ok(Progress::done(format!("{bucket}/{key}")));
        }
        let fault = Fault::of(&answer, "PutObject");
        if fault.is("NoSuchBucket") {
            let message = format!("bucket {bucket}, which s3Bucket of the AWSCluster names, is not there: make it");
            return Err(Error::conflict("NoSuchBucket", message));
        }
        Err(fault.error())
    }
    fn delete(&self, ctx: &Context<AWSMachine>) -> Result<Progress> {
        let (bucket, key) = Self::place(ctx)?;
        let (path, arguments) = Self::path(&bucket, &key);
        let answer = http::delete("s3", path, &arguments.each_ref().map(String::as_str)).send()?;
        if answer.is_success() || answer.status == 404 {
            return Ok(Progress::done(format!("{bucket}/{key}")));
        }
        Err(Fault::of(&answer, "DeleteObject").error())
    }
}
