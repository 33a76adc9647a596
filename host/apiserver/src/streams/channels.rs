//! Ports forwarded over the channels of a WebSocket: the first byte of a message says which. Channel 2i has the bytes of the i-th
//! port, 2i+1 what goes wrong with it, and each begins with the number of its port.

use super::spdy::{Broken, CHUNK};
use super::{BUFFER, FAREWELL, Target};
use crate::request::Query;
use futures::{SinkExt, Stream, StreamExt};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::{Error, Message};

/// The most ports of a connection: a byte says which channel it is, and each port has two.
const MOST_PORTS: usize = 128;
/// How many messages may wait to be sent.
const QUEUE: usize = 16;

/// The ports that a request names, or what a kubelet says when it names none.
pub(super) fn ports(query: &Query) -> Result<Vec<u16>, String> {
    let mut ports = Vec::new();
    for text in query.all("ports").flat_map(|ports| ports.split(',')) {
        match text.trim().parse::<u16>() {
            Ok(port) if port > 0 => ports.push(port),
            _ => return Err(format!("unable to parse {text:?} as a port")),
        }
    }
    match ports.len() {
        0 => Err(String::from("query parameter \"port\" is required")),
        1..=MOST_PORTS => Ok(ports),
        _ => Err(format!("more than {MOST_PORTS} ports do not fit into one connection")),
    }
}

/// Forwards the ports, until all are done or the client ends the connection.
pub(super) async fn serve<IO>(socket: WebSocketStream<IO>, ports: &[u16], target: Target) -> Result<(), Broken>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let (mut sink, source) = socket.split();
    let (sender, mut receiver) = mpsc::channel::<Vec<u8>>(QUEUE);
    let mut tasks = JoinSet::new();
    let mut sinks = Vec::new();
    for (index, port) in (0u8..).zip(ports) {
        let channel = index.saturating_mul(2);
        for channel in [channel, channel + 1] {
            let [low, high] = port.to_le_bytes();
            sink.send(Message::Binary(vec![channel, low, high].into())).await.map_err(failure)?;
        }
        let (ours, theirs) = tokio::io::duplex(BUFFER);
        let (from, to) = tokio::io::split(ours);
        sinks.push(Some(to));
        tasks.spawn(forward(channel, *port, target.clone(), theirs, from, sender.clone()));
    }
    drop(sender);
    let write = async {
        // Ends with the last port.
        while let Some(message) = receiver.recv().await {
            sink.send(Message::Binary(message.into())).await.map_err(failure)?;
        }
        Ok(())
    };
    let outcome = tokio::select! {
        outcome = read(source, sinks) => outcome,
        outcome = write => outcome,
    };
    drop(tasks);
    let _ = tokio::time::timeout(FAREWELL, sink.close()).await;
    outcome
}

/// Hands on what the client sends.
async fn read(
    mut source: impl Stream<Item = Result<Message, Error>> + Unpin,
    mut sinks: Vec<Option<WriteHalf<DuplexStream>>>,
) -> Result<(), Broken> {
    while let Some(message) = source.next().await {
        match message.map_err(failure)? {
            Message::Binary(bytes) => {
                let Some((channel, bytes)) = bytes.split_first() else { continue };
                // What is said to channels for errors, or to none, is passed over.
                let sink = sinks.get_mut(usize::from(*channel) / 2).filter(|_| channel % 2 == 0);
                if let Some(slot) = sink
                    && let Some(sink) = slot
                    && sink.write_all(bytes).await.is_err()
                {
                    *slot = None;
                }
            }
            Message::Text(_) => return Err(Broken::Protocol("a text has no channel")),
            Message::Close(_) => break,
            Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
        }
    }
    Ok(())
}

async fn forward(
    channel: u8,
    port: u16,
    target: Target,
    theirs: DuplexStream,
    mut from: ReadHalf<DuplexStream>,
    sender: mpsc::Sender<Vec<u8>>,
) {
    let pump = async {
        let mut buffer = vec![0; CHUNK];
        loop {
            let count = from.read(&mut buffer).await.unwrap_or(0);
            let mut message = vec![channel];
            message.extend_from_slice(buffer.get(..count).unwrap_or_default());
            if count == 0 || sender.send(message).await.is_err() {
                return;
            }
        }
    };
    let (outcome, ()) = tokio::join!(target.forward(port, theirs), pump);
    if let Err(why) = outcome {
        let mut message = vec![channel + 1];
        message.extend_from_slice(why.as_bytes());
        let _ = sender.send(message).await;
    }
}

fn failure(error: Error) -> Broken {
    match error {
        Error::Io(error) => Broken::Connection(error),
        other => Broken::Connection(std::io::Error::other(other)),
    }
}
