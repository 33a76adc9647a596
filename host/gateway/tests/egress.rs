//! Who is reached and as whom, over the real network: policies, redirects, credentials that rotate, and what a remote
//! that sends secrets back can put where.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::sync::{Arc, LazyLock, Mutex};

use capstan_api::ObjectKey;
use capstan_core::contract::Effect;
use capstan_core::turn::{Fence, no_fence};
use capstan_gateway::{
    Call, Chunk, CredentialKind, CredentialSource, Declared, Destination, Endpoints, Gateway, HttpError, Limits,
    Method, Narrowed, Network, Origin, Policy, Replay, Request, SecretData, Session, TurnScope,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// One endpoint, one Secret, one policy, all of which may change.
struct World {
    destination: Mutex<Destination>,
    secret: Mutex<SecretData>,
    policy: Mutex<Arc<Policy>>,
}

impl Endpoints for World {
    fn endpoint(&self, _: &str, _: &str) -> Result<Option<Destination>, String> {
        Ok(Some(self.destination.lock().unwrap().clone()))
    }
    fn module_default(&self, _: &str, _: &str) -> Result<Option<Destination>, String> {
        Ok(None)
    }
    fn secret(&self, _: &str, _: &str) -> Result<Option<SecretData>, String> {
        Ok(Some(self.secret.lock().unwrap().clone()))
    }
    fn policy(&self, _: &str) -> Arc<Policy> {
        self.policy.lock().unwrap().clone()
    }
}

fn world(origin: &str) -> Arc<World> {
    let kind = CredentialKind::Headers(vec![("Authorization".into(), "PVEAPIToken={id}={secret}".into())]);
    let credential = Some(CredentialSource { secret: ("tenant".into(), "s".into()), kind });
    let destination = Destination { credential, ..Destination::of(Origin::parse(origin).unwrap()) };
    let world = World {
        destination: Mutex::new(destination),
        secret: Mutex::default(),
        policy: Mutex::new(Arc::new(Policy::new(["127.0.0.0/8", "::1"], []).unwrap())),
    };
    let world = Arc::new(world);
    rotate(&world, "first-secret");
    world
}

fn rotate(world: &World, secret: &str) {
    let entries = [("id", "u@pve!t"), ("secret", secret)];
    *world.secret.lock().unwrap() =
        entries.map(|(key, value)| (key.to_owned(), bytes::Bytes::copy_from_slice(value.as_bytes()))).into();
}

fn session(world: &Arc<World>) -> (Arc<Gateway>, Session) {
    let gateway = Arc::new(Gateway::new(world.clone(), Arc::new(Network::new())));
    let scope = TurnScope {
        module: "m".into(),
        object: ObjectKey::new("g", "K", "tenant", "o"),
        input: None,
        limits: Limits::default(),
    };
    let session = gateway.session(scope, &[Declared::named("api")]);
    (gateway, session)
}

fn request(method: Method, body: Vec<Chunk>) -> Request {
    let (endpoint, path) = ("api".to_owned(), "/x".to_owned());
    Request { endpoint, method, path, query: vec![], headers: vec![], body, max_age: None }
}

static YES: LazyLock<Fence> = LazyLock::new(no_fence);

fn create() -> Call<'static> {
    Call { name: "create vm", may_change: true, still_may_change: &YES }
}

/// Sends everything back that it gets, in headers, reason and body.
async fn echo(status: &'static str, location: Option<String>) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let origin = format!("http://{}", listener.local_addr().unwrap());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = seen.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut buffer = vec![0; 64 << 10];
            let mut text = String::new();
            while !text.contains("\r\n\r\n") || (text.starts_with("POST") && !text.ends_with("&end")) {
                match stream.read(&mut buffer).await {
                    Ok(0) | Err(_) => break,
                    Ok(read) => text.push_str(&String::from_utf8_lossy(&buffer[..read])),
                }
            }
            let authorization = text.lines().find(|line| line.starts_with("authorization")).unwrap_or_default();
            let location = location.as_ref().map(|to| format!("Location: {to}\r\n")).unwrap_or_default();
            let answer = format!(
                "HTTP/1.1 {status} no {authorization}\r\nX-Seen: {authorization}\r\n{location}Content-Length: {}\r\nConnection: close\r\n\r\n{text}",
                text.len()
            );
            log.lock().unwrap().push(text);
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    (origin, seen)
}

#[tokio::test]
async fn a_rotated_secret_is_used_by_the_next_call_of_the_same_turn() {
    let (origin, seen) = echo("200", None).await;
    let world = world(&origin);
    let (_, mut session) = session(&world);
    session.begin_call();
    session.send(create(), request(Method::Get, vec![])).await.unwrap();
    rotate(&world, "second-secret");
    session.begin_call();
    session.send(create(), request(Method::Get, vec![])).await.unwrap();
    let seen = seen.lock().unwrap();
    assert!(seen[0].contains("authorization: PVEAPIToken=u@pve!t=first-secret\r\n"), "{}", seen[0]);
    assert!(seen[1].contains("authorization: PVEAPIToken=u@pve!t=second-secret\r\n"), "{}", seen[1]);
}

#[tokio::test]
async fn secrets_that_a_remote_sends_back_are_shown_to_nobody() {
    let (origin, seen) = echo("500", None).await;
    let (gateway, mut session) = session(&world(&origin));
    let body = vec![
        Chunk::Plain("data=".into()),
        Chunk::Secret { label: "boot".into(), bytes: "join: abcdef.0123456789abcdef".into() },
        Chunk::Plain("&end".into()),
    ];
    let answer = session.send(create(), request(Method::Post, body)).await.unwrap();
    assert!(seen.lock().unwrap()[0].contains("first-secret"), "it was sent");
    assert_eq!((answer.status, session.effect()), (500, Effect::Unknown));
    assert!(answer.status_text.contains("<secret:credential>"), "{}", answer.status_text);
    assert!(!format!("{answer:?}").contains("first-secret"), "{answer:?}");
    let exchanges = gateway.ledger().for_object(&ObjectKey::new("g", "K", "tenant", "o"));
    let shown = format!("{exchanges:?}");
    assert!(shown.contains("<secret:boot>") && shown.contains("<secret:credential>"), "{shown}");
    for secret in ["first-secret", "abcdef.0123456789abcdef"] {
        assert!(!shown.contains(secret), "{shown}");
    }
}

#[tokio::test]
async fn a_recording_answers_the_same_requests_again_and_holds_no_secret() {
    let (origin, _) = echo("201", None).await;
    let lines = Arc::new(Mutex::new(String::new()));
    let file = lines.clone();
    let gateway = Gateway::new(world(&origin), Arc::new(Network::new()))
        .recorded_by(move |recorded| file.lock().unwrap().push_str(&format!("{}\n", recorded.to_line())));
    let ask = async |gateway: Arc<Gateway>| {
        let scope = TurnScope {
            module: "m".into(),
            object: ObjectKey::new("g", "K", "tenant", "o"),
            input: None,
            limits: Limits::default(),
        };
        let mut session = gateway.session(scope, &[Declared::named("api")]);
        let first = session.send(create(), request(Method::Get, vec![])).await;
        let body = vec![Chunk::Plain("id=1&end".into())];
        let second = session.send(create(), request(Method::Post, body)).await;
        (first, second, session.effect())
    };
    let original = ask(Arc::new(gateway)).await;
    assert!(original.0.is_ok() && original.1.is_ok());
    let text = lines.lock().unwrap().clone();
    assert_eq!(text.lines().count(), 2);
    assert!(!text.contains("first-secret"), "{text}");
    let replay = Arc::new(Replay::read(&text).unwrap());
    let again = ask(Arc::new(Gateway::new(replay.clone(), replay.clone()))).await;
    assert_eq!(again, original);
    assert_eq!(replay.left(), 0);
    let (third, _, _) = ask(Arc::new(Gateway::new(replay.clone(), replay))).await;
    assert!(third.unwrap_err().to_string().contains("no (further) answer"));
    assert!(Replay::read("{}").is_err());
}

#[tokio::test]
async fn a_redirect_is_not_followed_and_takes_no_credential_along() {
    let (elsewhere, untouched) = echo("200", None).await;
    for to in [elsewhere, "http://169.254.169.254/latest".to_owned(), "//127.0.0.1:1/".to_owned()] {
        let (origin, _) = echo("307", Some(to)).await;
        let (_, mut session) = session(&world(&origin));
        assert_eq!(session.send(create(), request(Method::Get, vec![])).await.unwrap().status, 307);
    }
    assert!(untouched.lock().unwrap().is_empty());
}

#[tokio::test]
async fn what_the_policy_does_not_list_is_not_dialled() {
    let (origin, seen) = echo("200", None).await;
    let port = origin.rsplit(':').next().unwrap().to_owned();
    let world = world(&origin);
    let (_, mut session) = session(&world);
    let mut told = async |host: &str| {
        *world.destination.lock().unwrap() = Destination::of(Origin::parse(&format!("http://{host}:{port}")).unwrap());
        session.begin_call();
        session.send(create(), request(Method::Get, vec![])).await
    };
    assert!(told("localhost").await.is_ok(), "a name that resolves to what is listed");
    assert!(told("2130706433").await.is_ok());
    *world.policy.lock().unwrap() = Arc::default();
    let before = seen.lock().unwrap().len();
    for host in ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "[::ffff:127.0.0.1]", "[::1]", "0.0.0.0", "[::]"] {
        let error = told(host).await.unwrap_err();
        assert!(matches!(error, HttpError::NotSent(_)), "{host}: {error:?}");
        let text = error.to_string();
        assert!(text.contains("EgressPolicy") || text.contains("no endpoint may reach"), "{host}: {text}");
    }
    *world.destination.lock().unwrap() = Destination::of(Origin::parse("unix:///var/run/docker.sock").unwrap());
    session.begin_call();
    let error = session.send(create(), request(Method::Get, vec![])).await.unwrap_err().to_string();
    assert!(error.contains("unixSockets"), "{error}");
    assert_eq!(seen.lock().unwrap().len(), before);
}

#[tokio::test]
async fn an_endpoint_narrows_methods_paths_and_sizes() {
    let (origin, seen) = echo("200", None).await;
    let world = world(&origin);
    let narrowed = Narrowed { methods: vec!["GET".into(), "POST".into()], paths: vec!["/x".into()] };
    {
        let mut destination = world.destination.lock().unwrap();
        (destination.narrowed, destination.max_request) = (narrowed, Some(10));
    }
    let (_, mut session) = session(&world);
    let mut refused = async |request: Request| {
        session.begin_call();
        matches!(session.send(create(), request).await, Err(HttpError::Denied(_)))
    };
    assert!(refused(request(Method::Delete, vec![])).await);
    assert!(refused(Request { path: "/y".into(), ..request(Method::Get, vec![]) }).await);
    assert!(refused(request(Method::Post, vec![Chunk::Plain("12345678901".into())])).await);
    assert!(!refused(request(Method::Post, vec![Chunk::Plain("12&end".into())])).await);
    assert_eq!(seen.lock().unwrap().len(), 1);
}
