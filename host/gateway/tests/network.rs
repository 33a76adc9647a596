//! The real network: what is sent, what comes back, and what is certain when nothing does.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use capstan_core::turn::Fence;
use capstan_gateway::{
    Credential, EndpointConfig, Method, Network, Origin, Policy, Transport, TransportError, WireRequest, WireResponse,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};

fn endpoint(origin: &str) -> EndpointConfig {
    let origin = Origin::parse(origin).unwrap();
    let socket = match &origin {
        Origin::UnixSocket(path) => Some(path.display().to_string()),
        Origin::Url(_) => None,
    };
    let policy = Policy::new(["127.0.0.0/8", "::1"], socket.as_deref()).unwrap();
    EndpointConfig {
        timeout: Duration::from_secs(5),
        max_response: 1000,
        ..EndpointConfig::at("api", origin, Arc::new(policy))
    }
}

fn request(method: Method, target: &str, body: &str) -> WireRequest {
    WireRequest { method, target: target.into(), headers: http::HeaderMap::new(), body: body.to_owned().into() }
}

/// Reads one request whole; its text.
async fn read_request(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length =
                head.lines().find_map(|l| l.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
            if body.len() >= length.unwrap_or(0) {
                return text;
            }
        }
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => return text,
            Ok(n) => bytes.extend_from_slice(&buffer[..n]),
        }
    }
}

type Seen = Arc<Mutex<Vec<String>>>;

async fn serve_one(mut stream: impl AsyncRead + AsyncWrite + Unpin, answer: &str, seen: &Seen) {
    let text = read_request(&mut stream).await;
    seen.lock().unwrap().push(text);
    stream.write_all(answer.as_bytes()).await.unwrap();
    let _ = stream.shutdown().await;
}

/// A server that gives the same bytes to each connection.
async fn server(answer: &'static str) -> (String, Seen) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (origin, seen) = (format!("http://{}", listener.local_addr().unwrap()), Seen::default());
    let log = seen.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            serve_one(stream, answer, &log).await;
        }
    });
    (origin, seen)
}

async fn exchange(endpoint: &EndpointConfig, request: WireRequest) -> Result<WireResponse, TransportError> {
    Network::new().exchange(endpoint, request, None).await
}

#[tokio::test]
async fn a_body_has_its_length_and_the_reason_phrase_comes_back() {
    let (origin, seen) =
        server("HTTP/1.1 500 can't lock file '/x' - got timeout\r\nContent-Length: 13\r\n\r\n{\"data\":null}").await;
    let mut sent = request(Method::Post, "/api2/json?a=b", "x=1");
    sent.headers.insert("content-type", "text/plain".parse().unwrap());
    let answer = exchange(&endpoint(&origin), sent).await.unwrap();
    assert_eq!((answer.status, answer.status_text.as_str()), (500, "can't lock file '/x' - got timeout"));
    assert_eq!(answer.body, r#"{"data":null}"#);
    let seen = seen.lock().unwrap()[0].to_ascii_lowercase();
    assert!(seen.starts_with("post /api2/json?a=b http/1.1\r\n"), "{seen}");
    assert!(seen.contains("content-length: 3\r\n") && !seen.contains("transfer-encoding"), "{seen}");
    assert!(seen.contains(&format!("host: {}\r\n", origin.trim_start_matches("http://"))), "{seen}");
    assert!(seen.ends_with("\r\n\r\nx=1"), "{seen}");
}

#[tokio::test]
async fn a_post_without_a_body_has_the_length_zero() {
    let (origin, seen) = server("HTTP/1.1 204 No Content\r\n\r\n").await;
    exchange(&endpoint(&origin), request(Method::Post, "/start", "")).await.unwrap();
    assert!(seen.lock().unwrap()[0].to_ascii_lowercase().contains("content-length: 0\r\n"));
}

#[tokio::test]
async fn others_are_told_which_addresses_to_dial() {
    use capstan_gateway::{Unreachable, resolve};
    let policy = Policy::new(["127.0.0.0/8", "::1"], []).unwrap();
    let dialled = async |host: &str| {
        let found = resolve(&policy, host, 6443).await;
        found.map(|all| all.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
    };
    for host in ["127.0.0.1", "2130706433", "0x7f.1", "0177.0.0.1"] {
        assert_eq!(dialled(host).await.as_deref(), Ok("127.0.0.1:6443"), "{host}");
    }
    assert_eq!(dialled("::1").await.as_deref(), Ok("[::1]:6443"));
    assert!(dialled("localhost").await.unwrap().contains("6443"));
    for host in ["169.254.169.254", "2852039166", "::ffff:169.254.169.254", "10.0.0.1", "0x0a.1", "fd00::1", "a b", ""]
    {
        assert!(matches!(dialled(host).await, Err(Unreachable::Refused(_))), "{host}");
    }
    let told = dialled("10.0.0.1").await.unwrap_err().to_string();
    assert!(told.contains("10.0.0.1 is a private address and no EgressPolicy lists it"), "{told}");
    let nothing = Policy::default();
    let told = resolve(&nothing, "localhost", 1).await.unwrap_err().to_string();
    assert!(told.starts_with("localhost resolves to"), "{told}");
    assert!(matches!(resolve(&nothing, "no-such-name.invalid", 1).await, Err(Unreachable::Unresolved(_))));
}

#[tokio::test]
async fn a_path_of_the_origin_comes_first() {
    let (origin, seen) = server("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
    exchange(&endpoint(&format!("{origin}/base/")), request(Method::Get, "/a%2Fb?x=%26", "")).await.unwrap();
    assert!(seen.lock().unwrap()[0].starts_with("GET /base/a%2Fb?x=%26 HTTP/1.1"));
}

#[tokio::test]
async fn a_redirect_is_an_answer() {
    let (elsewhere, untouched) = server("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
    let answer: &'static str = Box::leak(
        format!("HTTP/1.1 302 Found\r\nLocation: {elsewhere}/\r\nContent-Length: 0\r\n\r\n").into_boxed_str(),
    );
    let (origin, _) = server(answer).await;
    assert_eq!(exchange(&endpoint(&origin), request(Method::Get, "/", "")).await.unwrap().status, 302);
    assert!(untouched.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_unix_socket_is_spoken_to() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("engine.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let seen = Seen::default();
    let log = seen.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            serve_one(stream, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK", &log).await;
        }
    });
    let endpoint = endpoint(&format!("unix://{}", path.display()));
    assert_eq!(exchange(&endpoint, request(Method::Get, "/_ping", "")).await.unwrap().body, "OK");
    assert!(seen.lock().unwrap()[0].starts_with("GET /_ping HTTP/1.1"));
    drop(dir);
    let gone = exchange(&endpoint, request(Method::Post, "/x", "")).await;
    assert!(matches!(gone, Err(TransportError::NotSent(_))), "{gone:?}");
}

#[tokio::test]
async fn a_refused_connection_is_certain() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let origin = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let error = exchange(&endpoint(&origin), request(Method::Post, "/", "x")).await.unwrap_err();
    assert!(matches!(&error, TransportError::NotSent(why) if why.contains("refused")), "{error:?}");
    let nowhere = endpoint("http://no-such-host.invalid");
    assert!(matches!(exchange(&nowhere, request(Method::Post, "/", "x")).await, Err(TransportError::NotSent(_))));
}

#[tokio::test]
async fn after_the_first_byte_nothing_is_certain() {
    for answer in ["", "HTTP/1.1 201 Cre", "HTTP/1.1 201 Created\r\nContent-Length: 100\r\n\r\nhalf"] {
        let (origin, seen) = server(answer).await;
        let error = exchange(&endpoint(&origin), request(Method::Post, "/", "x")).await.unwrap_err();
        assert!(matches!(error, TransportError::NoAnswer(_)), "{answer:?}: {error:?}");
        assert_eq!(seen.lock().unwrap().len(), 1, "sent once, not again");
    }
}

#[tokio::test]
async fn a_silent_server_is_not_waited_for_longer_than_the_limit() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut endpoint = endpoint(&format!("http://{}", listener.local_addr().unwrap()));
    endpoint.timeout = Duration::from_millis(50);
    let error = exchange(&endpoint, request(Method::Post, "/", "x")).await.unwrap_err();
    assert!(matches!(&error, TransportError::NoAnswer(why) if why.contains("0.05 s")), "{error:?}");
}

#[tokio::test]
async fn a_large_answer_is_cut_off() {
    let long: &'static str =
        Box::leak(format!("HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n{}", "x".repeat(5000)).into_boxed_str());
    let endless: &'static str = Box::leak(format!("HTTP/1.1 200 OK\r\n\r\n{}", "x".repeat(5000)).into_boxed_str());
    for answer in [long, endless] {
        let (origin, _) = server(answer).await;
        let error = exchange(&endpoint(&origin), request(Method::Get, "/", "")).await.unwrap_err();
        assert_eq!(error, TransportError::TooLarge(1000));
    }
}

/// A server with TLS that answers OK; its port and what it has seen.
async fn tls_server(config: rustls::ServerConfig) -> (u16, Seen) {
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let seen = Seen::default();
    let log = seen.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            if let Ok(stream) = acceptor.accept(stream).await {
                serve_one(stream, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK", &log).await;
            }
        }
    });
    (port, seen)
}

fn self_signed() -> rcgen::CertifiedKey<rcgen::KeyPair> {
    rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap()
}

fn key(of: &rcgen::CertifiedKey<rcgen::KeyPair>) -> rustls::pki_types::PrivateKeyDer<'static> {
    rustls::pki_types::PrivateKeyDer::Pkcs8(of.signing_key.serialize_der().into())
}

#[tokio::test]
async fn only_the_endpoint_s_own_certificates_are_trusted() {
    let network = Network::new();
    let (own, other) = (self_signed(), self_signed());
    let config = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![own.cert.der().clone()], key(&own))
        .unwrap();
    let (port, seen) = tls_server(config).await;
    let mut endpoint = endpoint(&format!("https://localhost:{port}"));
    for wrong in [None, Some(other.cert.pem())] {
        endpoint.ca = wrong;
        let error = network.exchange(&endpoint, request(Method::Post, "/", "secret"), None).await.unwrap_err();
        assert!(matches!(error, TransportError::NotSent(_)), "{error:?}");
    }
    assert!(seen.lock().unwrap().is_empty());
    endpoint.ca = Some(own.cert.pem());
    assert_eq!(network.exchange(&endpoint, request(Method::Post, "/", ""), None).await.unwrap().body, "OK");
    endpoint.ca = Some("no pem".into());
    let error = network.exchange(&endpoint, request(Method::Post, "/", ""), None).await.unwrap_err();
    assert!(matches!(error, TransportError::NotSent(_)), "{error:?}");
}

/// TLS 1.3 lets a client send before it knows that its certificate is refused; nothing was done all the same.
#[tokio::test]
async fn a_refused_client_certificate_is_told_and_certain() {
    let network = Network::new();
    let (server, client, stranger) = (self_signed(), self_signed(), self_signed());
    let mut clients = rustls::RootCertStore::empty();
    clients.add(client.cert.der().clone()).unwrap();
    let verifier = rustls::server::WebPkiClientVerifier::builder(Arc::new(clients)).build().unwrap();
    let config = rustls::ServerConfig::builder()
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![server.cert.der().clone()], key(&server))
        .unwrap();
    let (port, seen) = tls_server(config).await;
    let mut endpoint = endpoint(&format!("https://localhost:{port}"));
    endpoint.ca = Some(server.cert.pem());
    let pem = |of: &rcgen::CertifiedKey<rcgen::KeyPair>| {
        Credential::ClientCertificate(format!("{}\n{}", of.cert.pem(), of.signing_key.serialize_pem()).into())
    };
    for wrong in [Credential::None, pem(&stranger)] {
        endpoint.credential = wrong;
        let error = network.exchange(&endpoint, request(Method::Post, "/", "secret"), None).await.unwrap_err();
        let TransportError::NotSent(why) = error else { panic!("{error:?}") };
        assert!(why.contains("refuses the client certificate of the endpoint's Secret"), "{why}");
    }
    assert!(seen.lock().unwrap().is_empty());
    endpoint.credential = pem(&client);
    assert_eq!(network.exchange(&endpoint, request(Method::Post, "/", ""), None).await.unwrap().body, "OK");
}

/// A process may be frozen anywhere on the way: whatever the fence was when the request was decided on, the body does not
/// leave once it says no.
#[tokio::test]
async fn nothing_whole_leaves_once_the_fence_says_no() {
    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK";
    let mut needed = 0;
    for yes in 0..10 {
        let (origin, seen) = server(answer).await;
        let asked = Arc::new(AtomicUsize::new(0));
        let fence: Fence = {
            let asked = asked.clone();
            Arc::new(move || asked.fetch_add(1, Ordering::SeqCst) < yes)
        };
        let sent = Network::new().exchange(&endpoint(&origin), request(Method::Post, "/x", "x=1"), Some(&fence)).await;
        let whole = seen.lock().unwrap().iter().any(|text| text.ends_with("x=1"));
        assert_eq!(sent.is_ok(), whole, "{sent:?} {seen:?}");
        if yes == 0 {
            assert!(matches!(sent, Err(TransportError::NotSent(_))), "{sent:?}");
        }
        if whole {
            let text = seen.lock().unwrap().concat().to_ascii_lowercase();
            assert!(text.contains("content-length: 3") && !text.contains("chunked"), "{text}");
            needed = yes;
            break;
        }
    }
    assert!(needed >= 2, "asked before the attempt and when the body is taken, not {needed} times");
}
