//! What the gateway signs, before a server that checks signatures: moto with its checks on.
//!
//! `tests/setup.sh` installs moto into `target/venv`; where it is missing, nothing is tested here, and the set-up says so.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;

use capstan_gateway::{
    AssumeRole, Credential, CredentialKind, CredentialSource, EndpointConfig, Method, Network, Origin, Policy,
    Protocol, SecretData, SigningScope, Transport, TransportError, WireRequest, WireResponse,
};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// Calls that moto lets pass unchecked, to make the user, its keys and the role.
const UNCHECKED: usize = 5;

struct Moto {
    origin: String,
    _process: tokio::process::Child,
}

async fn moto() -> Option<Moto> {
    let program = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/venv/bin/moto_server");
    if !program.exists() {
        eprintln!("no moto in target/venv (run tests/setup.sh): signatures are not tested");
        return None;
    }
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut process = tokio::process::Command::new(program)
        .args(["-H", "127.0.0.1", "-p", &port.to_string()])
        .env("INITIAL_NO_AUTH_ACTION_COUNT", UNCHECKED.to_string())
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
    loop {
        let line = lines.next_line().await.unwrap().expect("moto has ended");
        if line.contains("Running on") {
            break;
        }
    }
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    Some(Moto { origin: format!("http://127.0.0.1:{port}"), _process: process })
}

#[derive(Clone)]
struct Keys {
    id: String,
    secret: String,
    token: Option<String>,
}

fn endpoint(origin: &str, service: &str, keys: &Keys, role: Option<AssumeRole>) -> EndpointConfig {
    let mut data = SecretData::new();
    data.insert("AccessKeyID".into(), keys.id.clone().into());
    data.insert("SecretAccessKey".into(), keys.secret.clone().into());
    if let Some(token) = &keys.token {
        data.insert("SessionToken".into(), token.clone().into());
    }
    let kind = CredentialKind::Aws { region: None, roles: role.into_iter().collect() };
    let source = CredentialSource { secret: ("ns".into(), "aws".into()), kind };
    let scope = SigningScope { service: service.into(), region: "us-east-1".into() };
    let policy = Arc::new(Policy::new(["127.0.0.1"], []).unwrap());
    EndpointConfig {
        credential: Credential::read(&source, &data, Some(&scope)).unwrap(),
        protocol: Protocol::AwsQuery,
        ..EndpointConfig::at("aws", Origin::parse(origin).unwrap(), policy)
    }
}

async fn post(
    endpoint: &EndpointConfig,
    headers: &[(&'static str, &'static str)],
    body: &str,
) -> Result<WireResponse, TransportError> {
    let mut map = http::HeaderMap::new();
    headers.iter().for_each(|(name, value)| drop(map.insert(*name, http::HeaderValue::from_static(value))));
    let request = WireRequest { method: Method::Post, target: "/".into(), headers: map, body: body.to_owned().into() };
    Network::new().exchange(endpoint, request, None).await
}

async fn form(endpoint: &EndpointConfig, body: &str) -> (u16, String) {
    let answer = post(endpoint, &[("content-type", "application/x-www-form-urlencoded")], body).await.unwrap();
    (answer.status, String::from_utf8_lossy(&answer.body).into_owned())
}

fn element(xml: &str, name: &str) -> String {
    let (_, after) = xml.split_once(&format!("<{name}>")).unwrap_or_else(|| panic!("no {name} in {xml}"));
    after.split_once('<').unwrap().0.to_owned()
}

/// A user that may do everything, and a role that it may assume.
async fn user(moto: &Moto) -> (Keys, AssumeRole) {
    let anybody = Keys { id: "AKIAANYBODY".into(), secret: "anything".into(), token: None };
    let iam = endpoint(&moto.origin, "iam", &anybody, None);
    let everything = "%7B%22Version%22%3A%222012-10-17%22%2C%22Statement%22%3A%5B%7B%22Effect%22%3A%22Allow%22%2C%22Action%22%3A%22%2A%22%2C%22Resource%22%3A%22%2A%22%7D%5D%7D";
    let trust = "%7B%22Version%22%3A%222012-10-17%22%2C%22Statement%22%3A%5B%7B%22Effect%22%3A%22Allow%22%2C%22Principal%22%3A%7B%22AWS%22%3A%22%2A%22%7D%2C%22Action%22%3A%22sts%3AAssumeRole%22%7D%5D%7D";
    let call = async |body: String| {
        let (status, text) = form(&iam, &format!("{body}&Version=2010-05-08")).await;
        assert_eq!(status, 200, "{body}: {text}");
        text
    };
    call("Action=CreateUser&UserName=u".into()).await;
    call(format!("Action=PutUserPolicy&UserName=u&PolicyName=p&PolicyDocument={everything}")).await;
    let role = call(format!("Action=CreateRole&RoleName=r&AssumeRolePolicyDocument={trust}")).await;
    call(format!("Action=PutRolePolicy&RoleName=r&PolicyName=p&PolicyDocument={everything}")).await;
    let keys = call("Action=CreateAccessKey&UserName=u".into()).await;
    let keys = Keys { id: element(&keys, "AccessKeyId"), secret: element(&keys, "SecretAccessKey"), token: None };
    let role = AssumeRole {
        arn: element(&role, "Arn"),
        session_name: "capstan".into(),
        external_id: Some("agreed".into()),
        seconds: 900,
        policy: None,
        policy_arns: vec![],
        sts: Some(Origin::parse(&moto.origin).unwrap()),
    };
    (keys, role)
}

const DESCRIBE: &str = "Action=DescribeVpcs&Version=2016-11-15";

/// Passes requests on and exchanges a word in each for another of the same length.
async fn tampering(origin: &str, old: &'static str, new: &'static str) -> String {
    assert_eq!(old.len(), new.len());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let target = origin.trim_start_matches("http://").to_owned();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (mut from_client, mut to_client) = client.into_split();
            let (mut from_server, mut to_server) = TcpStream::connect(&target).await.unwrap().into_split();
            tokio::spawn(async move { tokio::io::copy(&mut from_server, &mut to_client).await });
            tokio::spawn(async move {
                let mut buffer = vec![0; 64 << 10];
                while let Ok(read @ 1..) = from_client.read(&mut buffer).await {
                    let text = String::from_utf8_lossy(&buffer[..read]).replace(old, new);
                    to_server.write_all(text.as_bytes()).await.unwrap();
                }
            });
        }
    });
    address
}

#[tokio::test]
async fn moto_accepts_what_is_signed_and_refuses_it_tampered() {
    let Some(moto) = moto().await else { return };
    let (keys, role) = user(&moto).await;
    let refused = |(status, text): (u16, String)| {
        assert!(matches!(status, 401 | 403), "{status}: {text}");
    };

    // Query protocol.
    let ec2 = endpoint(&moto.origin, "ec2", &keys, None);
    let (status, text) = form(&ec2, DESCRIBE).await;
    assert_eq!(status, 200, "{text}");
    assert!(text.contains("DescribeVpcsResponse"), "{text}");
    // JSON protocol.
    let secrets = endpoint(&moto.origin, "secretsmanager", &keys, None);
    let json = [("content-type", "application/x-amz-json-1.1"), ("x-amz-target", "secretsmanager.ListSecrets")];
    let listed = post(&secrets, &json, "{}").await.unwrap();
    assert_eq!(listed.status, 200, "{:?}", listed.body);
    let body = String::from_utf8_lossy(&listed.body).into_owned();
    assert!(body.contains("SecretList"), "{body}");

    // Another secret, another body, another action.
    let wrong = Keys { secret: keys.secret.replace(|c: char| c.is_ascii_lowercase(), "x"), ..keys.clone() };
    refused(form(&endpoint(&moto.origin, "ec2", &wrong, None), DESCRIBE).await);
    let proxy = tampering(&moto.origin, "DescribeVpcs", "DescribeTags").await;
    refused(form(&endpoint(&proxy, "ec2", &keys, None), DESCRIBE).await);
    let proxy = tampering(&moto.origin, "ListSecrets", "listSecrets").await;
    let tampered = post(&endpoint(&proxy, "secretsmanager", &keys, None), &json, "{}").await.unwrap();
    refused((tampered.status, String::from_utf8_lossy(&tampered.body).into_owned()));
    let harmless = tampering(&moto.origin, "no such word", "no such WORD").await;
    assert_eq!(form(&endpoint(&harmless, "ec2", &keys, None), DESCRIBE).await.0, 200, "the proxy itself is fine");

    // A session of a role, assumed by the gateway.
    let (status, text) = form(&endpoint(&moto.origin, "ec2", &keys, Some(role.clone())), DESCRIBE).await;
    assert_eq!(status, 200, "{text}");
    let unsigned = post(&endpoint(&moto.origin, "ec2", &wrong, Some(role.clone())), &[], DESCRIBE).await.unwrap_err();
    let TransportError::NotSent(why) = unsigned else { panic!("{unsigned:?}") };
    assert!(why.contains(&role.arn) && !why.contains(&wrong.secret), "{why}");

    // A session token that comes with the keys.
    let sts = endpoint(&moto.origin, "sts", &keys, None);
    let arn = role.arn.replace(':', "%3A").replace('/', "%2F");
    let assume = format!("Action=AssumeRole&Version=2011-06-15&RoleArn={arn}&RoleSessionName=s");
    let (status, session) = form(&sts, &assume).await;
    assert_eq!(status, 200, "{session}");
    let temporary = Keys {
        id: element(&session, "AccessKeyId"),
        secret: element(&session, "SecretAccessKey"),
        token: Some(element(&session, "SessionToken")),
    };
    assert_eq!(form(&endpoint(&moto.origin, "ec2", &temporary, None), DESCRIBE).await.0, 200);
    let token = temporary.token.as_ref().map(|token| token.to_ascii_lowercase());
    refused(form(&endpoint(&moto.origin, "ec2", &Keys { token, ..temporary }, None), DESCRIBE).await);
}
