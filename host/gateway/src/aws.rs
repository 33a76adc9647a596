//! AWS Signature Version 4, and sessions of assumed roles.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use aws_credential_types::Credentials;
use aws_sigv4::http_request::{
    PayloadChecksumKind, PercentEncodingMode, SignableBody, SignableRequest, SigningSettings, UriPathNormalizationMode,
    sign,
};
use aws_sigv4::sign::v4;
use sha2::{Digest as _, Sha256};

use crate::credential::{AssumeRole, AwsKeys, SigningScope};
use crate::request::percent_encode;
use crate::transport::{TransportError, WireRequest, WireResponse};
use crate::{Method, Origin};

/// A session is renewed when less than this is left of it.
const RENEW: Duration = Duration::from_secs(300);
/// No more sessions are kept; those not used any more are assumed anew.
const MAX_SESSIONS: usize = 256;

/// Signs a request that goes to this URL.
///
/// # Errors
/// When there is no signature for it; the text holds no secret.
pub(crate) fn sign_request(
    request: &mut WireRequest,
    url: &reqwest::Url,
    keys: &AwsKeys,
    scope: &SigningScope,
    now: SystemTime,
) -> Result<(), String> {
    let failed = |what: &dyn std::fmt::Display| format!("the request cannot be signed: {what}");
    let identity = Credentials::new(&keys.id, &keys.secret, keys.token.clone(), None, "capstan").into();
    let mut settings = SigningSettings::default();
    if scope.service == "s3" {
        settings.payload_checksum_kind = PayloadChecksumKind::XAmzSha256;
        settings.percent_encoding_mode = PercentEncodingMode::Single;
        settings.uri_path_normalization_mode = UriPathNormalizationMode::Disabled;
    }
    let params = v4::SigningParams::builder()
        .identity(&identity)
        .region(&scope.region)
        .name(&scope.service)
        .time(now)
        .settings(settings)
        .build()
        .map_err(|error| failed(&error))?
        .into();
    let mut headers = Vec::with_capacity(request.headers.len());
    for (name, value) in &request.headers {
        let value = value.to_str().map_err(|_| format!("the header {name} is no ASCII text, which signing needs"))?;
        headers.push((name.as_str(), value));
    }
    let body = SignableBody::Bytes(&request.body);
    let signable = SignableRequest::new(request.method.as_str(), url.as_str(), headers.into_iter(), body)
        .map_err(|error| failed(&error))?;
    let (instructions, _) = sign(signable, &params).map_err(|error| failed(&error))?.into_parts();
    let (signed, _) = instructions.into_parts();
    for header in signed {
        let mut value = http::HeaderValue::from_str(header.value())
            .map_err(|_| "the keys hold characters that no header can carry".to_owned())?;
        value.set_sensitive(header.sensitive());
        request.headers.insert(header.name(), value);
    }
    Ok(())
}

/// A session of an assumed role.
#[derive(Clone)]
struct Assumed {
    keys: AwsKeys,
    expires: SystemTime,
}

type Place = Arc<tokio::sync::Mutex<Option<Assumed>>>;

/// The sessions of a process.
#[derive(Default)]
pub(crate) struct Sessions(Mutex<HashMap<[u8; 32], Place>>);

impl std::fmt::Debug for Sessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sessions")
    }
}

impl Sessions {
    fn place(&self, keys: &AwsKeys, role: &AssumeRole, region: &str) -> Place {
        let mut hash = Sha256::new();
        let token = keys.token.as_deref().unwrap_or_default();
        for part in [keys.id.as_str(), &keys.secret, token, &format!("{role:?}"), region] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part.as_bytes());
        }
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = hash.finalize().into();
        if places.len() >= MAX_SESSIONS && !places.contains_key(&key) {
            places.retain(|_, place| Arc::strong_count(place) > 1);
            if places.len() >= MAX_SESSIONS {
                places.clear();
            }
        }
        places.entry(key).or_default().clone()
    }

    /// The session's keys, by way of `ask` when there is none or it ends soon. One at a time asks.
    ///
    /// # Errors
    /// When the role cannot be assumed.
    pub(crate) async fn keys<F>(
        &self,
        keys: &AwsKeys,
        role: &AssumeRole,
        region: &str,
        ask: impl FnOnce(Origin, WireRequest) -> F,
    ) -> Result<AwsKeys, String>
    where
        F: Future<Output = Result<WireResponse, TransportError>>,
    {
        let place = self.place(keys, role, region);
        let mut session = place.lock().await;
        let now = SystemTime::now();
        let left = |session: &Assumed| session.expires.duration_since(now).unwrap_or_default();
        if let Some(session) = session.as_ref().filter(|session| left(session) > RENEW) {
            return Ok(session.keys.clone());
        }
        match assume(keys, role, region, now, ask).await {
            Ok(new) => {
                let keys = new.keys.clone();
                *session = Some(new);
                Ok(keys)
            }
            Err(why) => match session.as_ref().filter(|session| left(session) > RENEW / 5) {
                Some(session) => {
                    tracing::warn!(role = role.arn, why, "the session is used on until it ends");
                    Ok(session.keys.clone())
                }
                None => Err(why),
            },
        }
    }

    /// The service did not accept the session: the next request asks for another, and for all by which it was had.
    pub(crate) async fn forget(&self, keys: &AwsKeys, roles: &[AssumeRole], region: &str) {
        let mut keys = keys.clone();
        for role in roles {
            let before = self.place(&keys, role, region).lock().await.take();
            match before {
                Some(session) => keys = session.keys,
                None => return,
            }
        }
    }
}

/// Whether an answer says that a session is not accepted (any more).
pub(crate) fn session_refused(response: &WireResponse) -> bool {
    const CODES: [&str; 6] = [
        "ExpiredToken",
        "InvalidClientTokenId",
        "UnrecognizedClientException",
        "AuthFailure",
        "InvalidToken",
        "InvalidAccessKeyId",
    ];
    let text = String::from_utf8_lossy(&response.body);
    matches!(response.status, 400 | 401 | 403) && CODES.iter().any(|code| text.contains(code))
}

async fn assume<F>(
    keys: &AwsKeys,
    role: &AssumeRole,
    region: &str,
    now: SystemTime,
    ask: impl FnOnce(Origin, WireRequest) -> F,
) -> Result<Assumed, String>
where
    F: Future<Output = Result<WireResponse, TransportError>>,
{
    let arn = &role.arn;
    let origin = match &role.sts {
        Some(origin) => origin.clone(),
        None => {
            let suffix = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
            Origin::parse(&format!("https://sts.{region}.{suffix}"))?
        }
    };
    let mut body = "Action=AssumeRole&Version=2011-06-15".to_owned();
    let seconds = role.seconds.to_string();
    let fields = [
        ("RoleArn", Some(arn)),
        ("RoleSessionName", Some(&role.session_name)),
        ("ExternalId", role.external_id.as_ref()),
        ("DurationSeconds", Some(&seconds)),
        ("Policy", role.policy.as_ref()),
    ];
    let fields = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    let arns = (1..).zip(&role.policy_arns).map(|(number, arn)| (format!("PolicyArns.member.{number}.arn"), arn));
    for (name, value) in fields.chain(arns) {
        body.push_str(&format!("&{name}="));
        percent_encode(value, &mut body);
    }
    let mut headers = http::HeaderMap::new();
    let form = http::HeaderValue::from_static("application/x-www-form-urlencoded; charset=utf-8");
    headers.insert(http::header::CONTENT_TYPE, form);
    let mut request = WireRequest { method: Method::Post, target: "/".into(), headers, body: body.into() };
    let url = crate::transport::url(&origin, "/")?;
    let scope = SigningScope { service: "sts".into(), region: region.to_owned() };
    sign_request(&mut request, &url, keys, &scope, now)?;
    let answer =
        ask(origin.clone(), request).await.map_err(|error| format!("{origin} was asked for role {arn}: {error}"))?;
    let text = String::from_utf8_lossy(&answer.body);
    if answer.status != 200 {
        let (code, message) = (element(&text, "Code"), element(&text, "Message"));
        return Err(format!(
            "{origin} does not let these keys assume role {arn}: {} {} {}",
            answer.status,
            code.unwrap_or_default(),
            message.unwrap_or_default(),
        ));
    }
    let assumed = || {
        let expires: jiff::Timestamp = element(&text, "Expiration")?.parse().ok()?;
        Some(Assumed {
            keys: AwsKeys {
                id: element(&text, "AccessKeyId")?,
                secret: element(&text, "SecretAccessKey")?,
                token: Some(element(&text, "SessionToken")?),
            },
            expires: expires.into(),
        })
    };
    assumed().ok_or_else(|| format!("{origin} answered something else than a session of role {arn}"))
}

/// The text of the first element of this name. The answers of the token service have no attributes and no comments.
fn element(xml: &str, name: &str) -> Option<String> {
    let (_, after) = xml.split_once(&format!("<{name}>"))?;
    let (text, _) = after.split_once(&format!("</{name}>"))?;
    let plain = text.trim().replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"");
    Some(plain.replace("&apos;", "'").replace("&amp;", "&"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn keys() -> AwsKeys {
        AwsKeys { id: "AKIA".into(), secret: "hunter2hunter2".into(), token: None }
    }

    fn role() -> AssumeRole {
        AssumeRole {
            arn: "arn:aws:iam::1:role/r".into(),
            session_name: "capstan".into(),
            external_id: Some("a b".into()),
            seconds: 3600,
            policy: None,
            policy_arns: vec!["arn:aws:iam::1:policy/p".into()],
            sts: None,
        }
    }

    fn session(number: usize, seconds: u64) -> WireResponse {
        let expires = jiff::Timestamp::try_from(SystemTime::now() + Duration::from_secs(seconds)).unwrap();
        let body = format!(
            "<R><Credentials><AccessKeyId>ASIA{number}</AccessKeyId><SecretAccessKey>s&amp;s</SecretAccessKey>\
             <SessionToken>t</SessionToken><Expiration>{expires}</Expiration></Credentials></R>"
        );
        WireResponse { status: 200, status_text: String::new(), headers: vec![], body: body.into() }
    }

    #[tokio::test]
    async fn a_session_is_kept_until_shortly_before_its_end() {
        let sessions = Sessions::default();
        let asked = AtomicUsize::new(0);
        let get = async |seconds: u64| {
            let ask = |origin: Origin, request: WireRequest| {
                let number = asked.fetch_add(1, Ordering::SeqCst);
                assert_eq!(origin.to_string(), "https://sts.eu-west-1.amazonaws.com");
                let body = String::from_utf8(request.body.to_vec()).unwrap();
                assert!(body.contains("&RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fr&RoleSessionName=capstan"), "{body}");
                assert!(
                    body.contains("&ExternalId=a%20b&DurationSeconds=3600&PolicyArns.member.1.arn=arn%3A"),
                    "{body}"
                );
                assert!(request.headers.contains_key("authorization"));
                std::future::ready(Ok(session(number, seconds)))
            };
            sessions.keys(&keys(), &role(), "eu-west-1", ask).await.unwrap()
        };
        assert_eq!(get(200).await.id, "ASIA0");
        assert_eq!(get(3600).await.id, "ASIA1", "the first ended too soon");
        let kept = get(3600).await;
        assert_eq!((kept.id.as_str(), kept.secret.as_str()), ("ASIA1", "s&s"));
        sessions.forget(&keys(), &[role()], "eu-west-1").await;
        assert_eq!(get(3600).await.id, "ASIA2");
    }

    #[tokio::test]
    async fn a_refusal_says_why_and_is_not_kept() {
        let sessions = Sessions::default();
        let body = "<E><Error><Code>AccessDenied</Code><Message>not you</Message></Error></E>";
        let denied = WireResponse { status: 403, status_text: String::new(), headers: vec![], body: body.into() };
        let ask = |_: Origin, _: WireRequest| std::future::ready(Ok(denied));
        let why = sessions.keys(&keys(), &role(), "eu-west-1", ask).await.unwrap_err();
        assert!(why.contains("AccessDenied not you") && why.contains("role/r") && !why.contains("hunter2"), "{why}");
        let ask = |_: Origin, _: WireRequest| std::future::ready(Ok(session(7, 3600)));
        assert_eq!(sessions.keys(&keys(), &role(), "eu-west-1", ask).await.unwrap().id, "ASIA7");
    }
}
