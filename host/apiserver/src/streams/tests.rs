//! Sessions without HTTP: a client's bytes in, what comes back out.

use super::session::{self, MOST_STREAMS};
use super::spdy::tests::{Client, data, ping, reset};
use super::spdy::{Frame, Reader};
use super::{Target, Way, channels, negotiate, websocket};
use crate::options::{Kubelet, PodPort};
use crate::request::Query;
use crate::response::ResponseBody;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{SinkExt, StreamExt};
use http::{HeaderMap, HeaderValue, Request, Response};
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;

/// Port 7 echoes, port 9 takes everything and says nothing, port 11 never reads, any other is closed.
struct Ports;

impl Kubelet for Ports {
    fn forward(&self, to: &PodPort, mut stream: DuplexStream) -> BoxFuture<'static, Result<(), String>> {
        let port = to.port;
        Box::pin(async move {
            let (mut from, mut to) = tokio::io::split(&mut stream);
            match port {
                7 => drop(tokio::io::copy(&mut from, &mut to).await),
                9 => drop(tokio::io::copy(&mut from, &mut tokio::io::sink()).await),
                11 => std::future::pending::<()>().await,
                _ => return Err("connection refused".to_owned()),
            }
            Ok(())
        })
    }

    fn answer(&self, _: Request<Bytes>) -> BoxFuture<'static, Response<ResponseBody>> {
        Box::pin(async { Response::new(ResponseBody::full("")) })
    }
}

fn target() -> Target {
    Target { kubelet: Arc::new(Ports), namespace: "ns".into(), pod: "p".into(), uid: "u".into() }
}

const REFUSAL: &str = "error forwarding port 80 to pod p_ns, uid u: connection refused";

/// A session with a client that speaks SPDY.
struct Session {
    spdy: Client,
    frames: Reader<ReadHalf<DuplexStream>>,
    out: tokio::io::WriteHalf<DuplexStream>,
    done: tokio::task::JoinHandle<Result<(), super::spdy::Broken>>,
}

/// What a client reads.
#[derive(Debug, PartialEq, Eq)]
enum Got {
    Bytes(u32, Vec<u8>, bool),
    Frame(Frame),
    End,
}

impl Session {
    fn start() -> Session {
        let (client, server) = tokio::io::duplex(1 << 16);
        let done = tokio::spawn(session::serve(server, target()));
        let (read, out) = tokio::io::split(client);
        Session { spdy: Client::new(), frames: Reader::new(read), out, done }
    }

    async fn send(&mut self, bytes: &[u8]) {
        self.out.write_all(bytes).await.unwrap();
    }

    async fn open(&mut self, stream: u32, kind: &str, port: &str, request: &str) {
        let bytes = self.spdy.open(stream, &[("streamtype", kind), ("port", port), ("requestid", request)]);
        self.send(&bytes).await;
    }

    async fn next(&mut self) -> Got {
        let next = async {
            match self.frames.next().await.unwrap() {
                None => Got::End,
                Some(Frame::Data { stream, fin, .. }) => {
                    let mut all = Vec::new();
                    loop {
                        let bytes = self.frames.chunk().await.unwrap();
                        if bytes.is_empty() {
                            break Got::Bytes(stream, all, fin);
                        }
                        all.extend(bytes);
                    }
                }
                Some(frame) => Got::Frame(frame),
            }
        };
        tokio::time::timeout(Duration::from_secs(60), next).await.expect("nothing came")
    }

    /// Opens both streams of a request, the one for errors first.
    async fn pair(&mut self, error: u32, port: &str) {
        self.open(error, "error", port, &error.to_string()).await;
        assert_eq!(self.next().await, Got::Frame(Frame::Other), "a reply");
        let fin = data(error, b"", true);
        self.send(&fin).await;
        self.open(error + 2, "data", port, &error.to_string()).await;
        assert_eq!(self.next().await, Got::Frame(Frame::Other), "a reply");
    }
}

#[tokio::test]
async fn bytes_go_both_ways() {
    let mut session = Session::start();
    session.pair(1, "7").await;
    session.pair(5, "7").await;
    session.send(&data(3, b"one", false)).await;
    assert_eq!(session.next().await, Got::Bytes(3, b"one".to_vec(), false));
    session.send(&data(7, b"two", false)).await;
    assert_eq!(session.next().await, Got::Bytes(7, b"two".to_vec(), false));
    session.send(&ping(9)).await;
    assert_eq!(session.next().await, Got::Frame(Frame::Ping { id: 9 }));
    // The client has said all; the Pod's side ends then, and nothing went wrong.
    session.send(&data(3, b"", true)).await;
    assert_eq!(session.next().await, Got::Bytes(3, Vec::new(), true));
    assert_eq!(session.next().await, Got::Bytes(1, Vec::new(), true));
    // The other one goes on.
    session.send(&data(7, b"three", false)).await;
    assert_eq!(session.next().await, Got::Bytes(7, b"three".to_vec(), false));
    session.out.shutdown().await.unwrap();
    assert_eq!(session.next().await, Got::End);
    session.done.await.unwrap().unwrap();
}

#[tokio::test]
async fn errors_are_told_in_their_stream() {
    let mut session = Session::start();
    session.pair(1, "80").await;
    assert_eq!(session.next().await, Got::Bytes(3, Vec::new(), true));
    assert_eq!(session.next().await, Got::Bytes(1, REFUSAL.as_bytes().to_vec(), true));
    // What was on its way is passed over.
    session.send(&data(3, b"late", true)).await;
    session.pair(5, "7").await;
    session.send(&data(7, b"hello", true)).await;
    assert_eq!(session.next().await, Got::Bytes(7, b"hello".to_vec(), false));
}

#[tokio::test]
async fn what_is_given_up_is_stopped() {
    let mut session = Session::start();
    session.pair(1, "11").await;
    session.send(&reset(3)).await;
    assert_eq!(session.next().await, Got::Bytes(1, Vec::new(), true));
}

#[tokio::test]
async fn streams_that_make_no_sense_are_reset() {
    let mut session = Session::start();
    for (index, (kind, port)) in [("error", "0"), ("data", "x"), ("data", "65536"), ("other", "80")].iter().enumerate()
    {
        let stream = 2 * index as u32 + 1;
        session.open(stream, kind, port, "1").await;
        assert_eq!(session.next().await, Got::Frame(Frame::Reset { stream }));
    }
    session.open(21, "error", "7", "1").await;
    assert_eq!(session.next().await, Got::Frame(Frame::Other));
    session.open(23, "error", "7", "1").await;
    assert_eq!(session.next().await, Got::Frame(Frame::Reset { stream: 23 }));
    session.open(25, "error", "7", &"1".repeat(1000)).await;
    assert_eq!(session.next().await, Got::Frame(Frame::Reset { stream: 25 }));
    // An id that was there before ends the connection.
    session.open(21, "data", "7", "1").await;
    assert_eq!(session.next().await, Got::Frame(Frame::GoAway));
    assert_eq!(session.next().await, Got::End);
    assert!(session.done.await.unwrap().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_stays_alone_is_reset() {
    let mut session = Session::start();
    session.open(1, "error", "7", "1").await;
    assert_eq!(session.next().await, Got::Frame(Frame::Other));
    assert_eq!(session.next().await, Got::Frame(Frame::Reset { stream: 1 }));
    session.pair(3, "7").await;
}

#[tokio::test]
async fn there_are_not_too_many_streams() {
    let mut session = Session::start();
    let mut stream = 1;
    for _ in 0..MOST_STREAMS / 2 {
        session.pair(stream, "9").await;
        stream += 4;
    }
    session.open(stream, "error", "9", "last").await;
    assert_eq!(session.next().await, Got::Frame(Frame::Reset { stream }));
    // Where one ends there is room again.
    session.send(&data(3, b"", true)).await;
    assert_eq!(session.next().await, Got::Bytes(3, Vec::new(), true));
    assert_eq!(session.next().await, Got::Bytes(1, Vec::new(), true));
    session.pair(stream + 2, "9").await;
}

#[tokio::test]
async fn who_does_not_read_holds_the_client_back() {
    let mut session = Session::start();
    session.pair(1, "11").await;
    let frame = data(3, &vec![0; 1 << 14], false);
    let mut sent = 0;
    while tokio::time::timeout(Duration::from_millis(500), session.out.write_all(&frame)).await.is_ok() {
        sent += frame.len();
        assert!(sent < 1 << 20, "{sent} bytes wait");
    }
    assert!(sent >= super::BUFFER, "{sent}");
}

#[tokio::test]
async fn the_same_inside_a_websocket() {
    let (client, server) = tokio::io::duplex(1 << 16);
    tokio::spawn(
        async move { session::serve(websocket::Tunnel::new(websocket::accept(server).await), target()).await },
    );
    let mut socket = WebSocketStream::from_raw_socket(client, Role::Client, None).await;
    let mut spdy = Client::new();
    let mut sent = spdy.open(1, &[("streamtype", "error"), ("port", "80"), ("requestid", "0")]);
    sent.extend(spdy.open(3, &[("streamtype", "data"), ("port", "80"), ("requestid", "0")]));
    // Messages have nothing to do with frames.
    for part in sent.chunks(7) {
        socket.send(Message::binary(part.to_vec())).await.unwrap();
    }
    socket.send(Message::Ping("x".into())).await.unwrap();
    let mut got = Vec::new();
    while !String::from_utf8_lossy(&got).contains(REFUSAL) {
        match socket.next().await.unwrap().unwrap() {
            Message::Binary(bytes) => got.extend(bytes),
            Message::Pong(bytes) => assert_eq!(bytes, "x"),
            other => panic!("{other:?}"),
        }
    }
    let mut reader = Reader::new(got.as_slice());
    assert_eq!(reader.next().await.unwrap(), Some(Frame::Other));
    // Text is no SPDY.
    socket.send(Message::text("hello")).await.unwrap();
    while let Some(Ok(message)) = socket.next().await {
        assert!(!message.is_text(), "{message:?}");
    }
}

#[tokio::test]
async fn channels_of_a_websocket() {
    let (client, server) = tokio::io::duplex(1 << 16);
    let served =
        tokio::spawn(async move { channels::serve(websocket::accept(server).await, &[7, 80], target()).await });
    let mut socket = WebSocketStream::from_raw_socket(client, Role::Client, None).await;
    let mut got = vec![Vec::new(); 4];
    socket.send(Message::binary(b"\0hello".to_vec())).await.unwrap();
    // To a channel for errors, and to one that is not there.
    socket.send(Message::binary(b"\x01x".to_vec())).await.unwrap();
    socket.send(Message::binary(b"\x09x".to_vec())).await.unwrap();
    socket.send(Message::binary(Vec::new())).await.unwrap();
    while got[0].len() < 7 || got[3].len() < 2 + REFUSAL.len() {
        let message = socket.next().await.unwrap().unwrap().into_data();
        got[usize::from(message[0])].extend_from_slice(&message[1..]);
    }
    assert_eq!(
        got,
        [b"\x07\0hello".to_vec(), b"\x07\0".to_vec(), b"\x50\0".to_vec(), [b"\x50\0", REFUSAL.as_bytes()].concat()]
    );
    socket.close(None).await.unwrap();
    served.await.unwrap().unwrap();
}

#[test]
fn what_both_can_speak() {
    let agree = |headers: &[(&'static str, &str)], query: &str| {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_str(value).unwrap());
        }
        let query = Query::parse(&format!("/x?{query}").parse().unwrap()).unwrap();
        match negotiate(&map, &query) {
            Err(answer) => answer.status().to_string(),
            Ok((way, answer)) => {
                let way = match way {
                    Way::Spdy => String::from("spdy"),
                    Way::Tunnel => String::from("tunnel"),
                    Way::Channels(ports) => format!("{ports:?}"),
                };
                let header = |name| answer.headers().get(name).map_or("", |value| value.to_str().unwrap());
                format!("{way} {} {}", header("x-stream-protocol-version"), header("sec-websocket-protocol"))
            }
        }
    };
    let spdy = [("connection", "keep-alive, Upgrade"), ("upgrade", "SPDY/3.1")];
    assert_eq!(agree(&spdy, ""), "spdy  ");
    let version = |name| [spdy.as_slice(), &[("x-stream-protocol-version", name)]].concat();
    assert_eq!(agree(&version("portforward.k8s.io"), ""), "spdy portforward.k8s.io ");
    assert_eq!(agree(&version("other.k8s.io"), ""), "403 Forbidden");
    assert_eq!(agree(&[("connection", "upgrade"), ("upgrade", "h2c")], ""), "400 Bad Request");
    let socket = |name: &'static str, query| {
        let headers = [
            ("connection", "Upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ("sec-websocket-protocol", name),
        ];
        agree(&headers, query)
    };
    assert_eq!(socket("SPDY/3.1+portforward.k8s.io", ""), "tunnel  SPDY/3.1+portforward.k8s.io");
    assert_eq!(socket("SPDY/3.1+other.k8s.io", ""), "403 Forbidden");
    assert_eq!(
        socket("v5.channel.k8s.io, v4.channel.k8s.io", "ports=80,443&ports=1"),
        "[80, 443, 1]  v4.channel.k8s.io"
    );
    assert_eq!(socket("v5.channel.k8s.io", "ports=80"), "403 Forbidden");
    for query in ["", "ports=", "ports=0", "ports=65536", "ports=a"] {
        assert_eq!(socket("v4.channel.k8s.io", query), "400 Bad Request", "{query}");
    }
    assert_eq!(agree(&[("connection", "Upgrade"), ("upgrade", "websocket")], "ports=80"), "400 Bad Request");
}

proptest! {
    #[test]
    fn hostile_sessions_end(bytes in proptest::collection::vec(any::<u8>(), 0..300), frames in proptest::collection::vec((0u32..12, 0usize..4, 0usize..3), 0..20)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut spdy = Client::new();
            let mut sent = Vec::new();
            for (stream, kind, port) in frames {
                let kind = ["error", "data", "", "x"][kind];
                sent.extend(spdy.open(stream * 2 + 1, &[("streamtype", kind), ("port", ["7", "80", "0"][port])]));
                sent.extend(data(stream, &bytes, stream % 3 == 0));
                sent.extend(reset(stream.max(1)));
            }
            sent.extend(&bytes);
            let (mut client, server) = tokio::io::duplex(1 << 20);
            let served = tokio::spawn(session::serve(server, target()));
            client.write_all(&sent).await.unwrap();
            client.shutdown().await.unwrap();
            let mut got = Vec::new();
            client.read_to_end(&mut got).await.unwrap();
            let _ = served.await.expect("no panic");
            // And as messages of a WebSocket.
            let (mut client, server) = tokio::io::duplex(1 << 20);
            let served = tokio::spawn(async move { channels::serve(websocket::accept(server).await, &[7, 9], target()).await });
            client.write_all(&sent).await.unwrap();
            client.shutdown().await.unwrap();
            got.clear();
            client.read_to_end(&mut got).await.unwrap();
            let _ = served.await.expect("no panic");
        });
    }
}
