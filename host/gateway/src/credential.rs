//! As whom requests go: what a configuration says about it, and what becomes of it when the Secret is read.
//!
//! A Secret is read for every call of a turn, so a rotated one takes effect on the next call.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use sha2::{Digest as _, Sha256};

use crate::Origin;

/// The entries of a Secret.
pub type SecretData = BTreeMap<String, Bytes>;

/// Where a credential comes from: a Secret and how it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialSource {
    /// Namespace and name of the Secret.
    pub secret: (String, String),
    /// How it is used.
    pub kind: CredentialKind,
}

/// How a Secret's entries become a credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CredentialKind {
    /// `Authorization: Bearer …` with the entry of this key.
    Bearer {
        /// Key in the Secret.
        key: String,
    },
    /// HTTP basic authentication.
    Basic {
        /// Key of the user name.
        username: String,
        /// Key of the password.
        password: String,
    },
    /// Headers; `{key}` in a value stands for the Secret's entry of that key, `{key:shown}` for one that is no secret.
    Headers(Vec<(String, String)>),
    /// A TLS client certificate: entries `tls.crt` and `tls.key`, PEM.
    ClientCertificate,
    /// AWS Signature Version 4: entries `AccessKeyID` and `SecretAccessKey`, and `SessionToken` where there is one.
    Aws {
        /// The region that signatures are for, where the manifest's is not meant.
        region: Option<String>,
        /// Roles to assume with these keys, one by means of the other.
        roles: Vec<AssumeRole>,
    },
}

/// A role that is assumed before requests are signed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AssumeRole {
    /// ARN of the role.
    pub arn: String,
    /// Who asks, for the records of AWS.
    pub session_name: String,
    /// What the owner of the role agreed on with us.
    pub external_id: Option<String>,
    /// How long a session lasts, in seconds (900 to 43200).
    pub seconds: u32,
    /// A policy that narrows what the session may do (JSON).
    pub policy: Option<String>,
    /// ARNs of policies that narrow it.
    pub policy_arns: Vec<String>,
    /// Origin of the token service; `None`: that of the region.
    pub sts: Option<Origin>,
}

/// Service and region that signatures are for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SigningScope {
    /// Such as `ec2`.
    pub service: String,
    /// Such as `eu-central-1`.
    pub region: String,
}

/// Keys that sign.
#[derive(Clone, PartialEq, Eq)]
pub struct AwsKeys {
    pub(crate) id: String,
    pub(crate) secret: String,
    pub(crate) token: Option<String>,
}

impl fmt::Debug for AwsKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AwsKeys({})", self.id)
    }
}

/// A credential ready for use. Its `Debug` shows nothing of it.
#[allow(clippy::large_enum_variant, reason = "one per endpoint and call, behind the endpoint's Arc")]
#[derive(Clone, Default, PartialEq, Eq)]
pub enum Credential {
    /// None.
    #[default]
    None,
    /// Headers that are added to every request.
    Headers {
        /// Names and values.
        headers: Vec<(HeaderName, HeaderValue)>,
        /// What must not be shown.
        secrets: Vec<Bytes>,
    },
    /// Certificate and key, PEM.
    ClientCertificate(Bytes),
    /// Requests are signed.
    Aws {
        /// With these, or with what they get by assuming the role.
        keys: AwsKeys,
        /// The roles.
        roles: Vec<AssumeRole>,
        /// What signatures are for.
        scope: SigningScope,
    },
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Credential::None => "None",
            Credential::Headers { .. } => "Headers",
            Credential::ClientCertificate(_) => "ClientCertificate",
            Credential::Aws { .. } => "Aws",
        })
    }
}

/// Behind a key in a template: the entry is no secret, such as the name of a token, which an API shows in much of what it says.
const SHOWN: &str = ":shown";

/// Headers that no credential may be.
const NOT_A_CREDENTIAL: &[&str] = &[
    "host",
    "content-length",
    "content-type",
    "transfer-encoding",
    "connection",
    "keep-alive",
    "te",
    "trailer",
    "upgrade",
    "expect",
];

impl Credential {
    /// Reads what the Secret says.
    ///
    /// # Errors
    /// A sentence that names the Secret and key; never what is in it.
    pub fn read(source: &CredentialSource, data: &SecretData, scope: Option<&SigningScope>) -> Result<Self, String> {
        let (namespace, name) = &source.secret;
        let entry = |key: &str| text(data, key).map_err(|why| format!("Secret {namespace}/{name} {why}"));
        match &source.kind {
            CredentialKind::Bearer { key } => {
                let token = entry(key)?;
                Self::headers(source, vec![("authorization".into(), format!("Bearer {token}"))], vec![token])
            }
            CredentialKind::Basic { username, password } => {
                let (username, password) = (entry(username)?, entry(password)?);
                if username.contains(':') {
                    return Err(format!(
                        "Secret {namespace}/{name} has a user name with a colon, which basic \
                                        authentication cannot express"
                    ));
                }
                let both = BASE64_STANDARD.encode(format!("{username}:{password}"));
                let value = format!("Basic {both}");
                Self::headers(source, vec![("authorization".into(), value)], vec![password, both])
            }
            CredentialKind::Headers(templates) => {
                let (mut headers, mut secrets) = (Vec::new(), Vec::new());
                for (header, template) in templates {
                    let value = fill(template, |name| {
                        let (key, is_shown) = name.strip_suffix(SHOWN).map_or((name, false), |key| (key, true));
                        let value = entry(key)?;
                        if !is_shown {
                            secrets.push(value.clone());
                        }
                        Ok(value)
                    })?;
                    headers.push((header.clone(), value));
                }
                Self::headers(source, headers, secrets)
            }
            CredentialKind::ClientCertificate => {
                let pem = format!("{}\n{}\n", entry("tls.crt")?, entry("tls.key")?);
                Ok(Credential::ClientCertificate(pem.into()))
            }
            CredentialKind::Aws { region, roles } => {
                let first = |keys: [&str; 2]| {
                    let present = keys.into_iter().find(|key| data.contains_key(*key));
                    entry(present.unwrap_or(keys[0]))
                };
                let keys = AwsKeys {
                    id: first(["AccessKeyID", "AWS_ACCESS_KEY_ID"])?,
                    secret: first(["SecretAccessKey", "AWS_SECRET_ACCESS_KEY"])?,
                    token: first(["SessionToken", "AWS_SESSION_TOKEN"]).ok().filter(|token| !token.is_empty()),
                };
                let Some(declared) = scope else {
                    return Err(
                        "an AWS credential needs an endpoint whose manifest names the service that signatures \
                                are for (`signing`)"
                            .to_owned(),
                    );
                };
                let region = region.clone().unwrap_or_else(|| declared.region.clone());
                if region.is_empty() {
                    return Err("the region that signatures are for is not known: set spec.credential.aws.region of \
                                the Endpoint"
                        .to_owned());
                }
                let scope = SigningScope { service: declared.service.clone(), region };
                Ok(Credential::Aws { keys, roles: roles.clone(), scope })
            }
        }
    }

    fn headers(
        source: &CredentialSource,
        headers: Vec<(String, String)>,
        secrets: Vec<String>,
    ) -> Result<Self, String> {
        let (namespace, secret) = &source.secret;
        let mut checked = Vec::with_capacity(headers.len());
        for (name, value) in headers {
            let parsed = HeaderName::from_bytes(name.as_bytes()).map_err(|_| format!("{name:?} is no header name"))?;
            if NOT_A_CREDENTIAL.contains(&parsed.as_str()) || parsed.as_str().starts_with("proxy-") {
                return Err(format!("the header {name} cannot be a credential"));
            }
            let mut value = HeaderValue::from_str(&value).map_err(|_| {
                format!(
                    "Secret {namespace}/{secret} holds characters that no header can carry (a line break inside a \
                     value?), so the header {name} cannot be made"
                )
            })?;
            value.set_sensitive(true);
            checked.push((parsed, value));
        }
        let mut secrets: Vec<Bytes> = secrets.into_iter().map(Bytes::from).collect();
        secrets.extend(checked.iter().map(|(_, value)| Bytes::copy_from_slice(value.as_bytes())));
        Ok(Credential::Headers { headers: checked, secrets })
    }

    /// What must not be shown to anybody.
    pub(crate) fn secrets(&self) -> Vec<Bytes> {
        match self {
            Credential::None => Vec::new(),
            Credential::Headers { secrets, .. } => secrets.clone(),
            Credential::ClientCertificate(pem) => vec![pem.clone()],
            Credential::Aws { keys, .. } => {
                let both = [Some(keys.secret.clone()), keys.token.clone()];
                both.into_iter().flatten().map(Bytes::from).collect()
            }
        }
    }

    /// Different for different credentials.
    pub(crate) fn digest(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        let mut part = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_be_bytes());
            hash.update(bytes);
        };
        part(format!("{self:?}").as_bytes());
        self.secrets().iter().for_each(|secret| part(secret));
        if let Credential::Headers { headers, .. } = self {
            headers.iter().for_each(|(name, value)| {
                part(name.as_str().as_bytes());
                part(value.as_bytes());
            });
        }
        if let Credential::Aws { keys, roles, scope } = self {
            part(keys.id.as_bytes());
            part(format!("{roles:?} {scope:?}").as_bytes());
        }
        hash.finalize().into()
    }
}

/// The text of an entry, without the line break that files end with.
pub(crate) fn text(data: &SecretData, key: &str) -> Result<String, String> {
    let bytes = data.get(key).ok_or_else(|| format!("has no key {key}"))?;
    let text = std::str::from_utf8(bytes).map_err(|_| format!("has no text under the key {key}"))?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// A template with its `{names}` replaced.
///
/// # Errors
/// Of `value`, or when a brace is not closed.
pub(crate) fn fill(template: &str, mut value: impl FnMut(&str) -> Result<String, String>) -> Result<String, String> {
    let mut filled = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        let (name, after) =
            after.split_once('}').ok_or_else(|| format!("{template:?} has a brace that is not closed"))?;
        filled.push_str(before);
        filled.push_str(&value(name)?);
        rest = after;
    }
    filled.push_str(rest);
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(entries: &[(&str, &str)]) -> SecretData {
        entries.iter().map(|(k, v)| ((*k).to_owned(), Bytes::copy_from_slice(v.as_bytes()))).collect()
    }

    fn read(kind: CredentialKind, entries: &[(&str, &str)]) -> Result<Credential, String> {
        let source = CredentialSource { secret: ("ns".into(), "s".into()), kind };
        let scope = SigningScope { service: "ec2".into(), region: "eu-west-1".into() };
        Credential::read(&source, &data(entries), Some(&scope))
    }

    fn header(credential: &Credential) -> String {
        let Credential::Headers { headers, .. } = credential else { panic!("{credential:?}") };
        format!("{}: {}", headers[0].0, headers[0].1.to_str().unwrap())
    }

    #[test]
    fn secrets_become_headers() {
        let bearer = read(CredentialKind::Bearer { key: "t".into() }, &[("t", "abc\n")]).unwrap();
        assert_eq!(header(&bearer), "authorization: Bearer abc");
        let basic = CredentialKind::Basic { username: "username".into(), password: "password".into() };
        let credential = read(basic.clone(), &[("username", "u"), ("password", "p:q")]).unwrap();
        assert_eq!(header(&credential), "authorization: Basic dTpwOnE=");
        assert!(read(basic, &[("username", "u:v"), ("password", "p")]).is_err());
        let template = vec![("Authorization".to_owned(), "PVEAPIToken={token}={secret}".to_owned())];
        let token = read(CredentialKind::Headers(template), &[("token", "u@pve!t"), ("secret", "s-e-c\n")]).unwrap();
        assert_eq!(header(&token), "authorization: PVEAPIToken=u@pve!t=s-e-c");
        assert_eq!(format!("{token:?}"), "Headers");
        let hidden = |credential: &Credential| credential.secrets().contains(&Bytes::from("u@pve!t"));
        assert!(hidden(&token));
        let template = vec![("Authorization".to_owned(), "PVEAPIToken={token:shown}={secret}".to_owned())];
        let named = read(CredentialKind::Headers(template), &[("token", "u@pve!t"), ("secret", "s-e-c\n")]).unwrap();
        assert_eq!(header(&named), header(&token));
        assert!(!hidden(&named) && named.secrets().contains(&Bytes::from("s-e-c")), "only its name is shown");
    }

    #[test]
    fn what_is_wrong_names_the_secret_and_not_its_content() {
        let missing = read(CredentialKind::Bearer { key: "t".into() }, &[("other", "hunter2hunter2")]).unwrap_err();
        assert_eq!(missing, "Secret ns/s has no key t");
        let broken = read(CredentialKind::Bearer { key: "t".into() }, &[("t", "hunter2\r\nHost: evil")]).unwrap_err();
        assert!(broken.contains("ns/s") && !broken.contains("hunter2"), "{broken}");
        for name in ["Host", "Content-Length", "Transfer-Encoding", "Proxy-Authorization", "a b"] {
            let template = vec![(name.to_owned(), "{t}".to_owned())];
            assert!(read(CredentialKind::Headers(template), &[("t", "x")]).is_err(), "{name}");
        }
        let open = vec![("X-Token".to_owned(), "{t".to_owned())];
        assert!(read(CredentialKind::Headers(open), &[("t", "x")]).is_err());
    }

    #[test]
    fn aws_keys_are_bound_to_service_and_region() {
        let entries = [("AccessKeyID", "AKIA"), ("SecretAccessKey", "s"), ("SessionToken", "t")];
        let kind = |region: Option<&str>| CredentialKind::Aws { region: region.map(str::to_owned), roles: vec![] };
        let Credential::Aws { keys, scope, .. } = read(kind(None), &entries).unwrap() else { panic!() };
        assert_eq!(
            (keys.token.as_deref(), scope.region.as_str(), scope.service.as_str()),
            (Some("t"), "eu-west-1", "ec2")
        );
        let Credential::Aws { scope, .. } = read(kind(Some("us-east-2")), &entries).unwrap() else { panic!() };
        assert_eq!(scope.region, "us-east-2");
        let source = CredentialSource { secret: ("n".into(), "s".into()), kind: kind(None) };
        assert!(Credential::read(&source, &data(&entries), None).is_err(), "nothing says what is signed for");
        assert_ne!(read(kind(None), &entries).unwrap().digest(), read(kind(Some("x")), &entries).unwrap().digest());
    }
}
