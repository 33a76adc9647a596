//! Ports forwarded over SPDY: each connection is two streams of one request, one for its bytes and one for what goes wrong.

use super::spdy::{Broken, CANCELLED, CHUNK, Encoder, Frame, Headers, REFUSED, Reader, Send};
use super::{BUFFER, FAREWELL, Target};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How many streams of a connection may be open: half as many connections to Pods.
pub(super) const MOST_STREAMS: usize = 256;
/// How many frames may wait to be sent.
const QUEUE: usize = 16;
/// How long the second stream of a pair may take after the first, as with a kubelet.
const PAIRING: Duration = Duration::from_secs(30);
/// The longest name of a request, in bytes. Clients count.
const LONGEST_REQUEST: usize = 64;

/// Forwards the ports that the client asks for, until it ends the connection.
pub(super) async fn serve(io: impl AsyncRead + AsyncWrite + Unpin, target: Target) -> Result<(), Broken> {
    let (reader, writer) = tokio::io::split(io);
    let (sender, receiver) = mpsc::channel(QUEUE);
    let write = write(writer, receiver);
    tokio::pin!(write);
    let read = async move {
        let mut session = Session {
            target,
            sender,
            streams: Streams::default(),
            waiting: HashMap::new(),
            tasks: JoinSet::new(),
            last: 0,
        };
        let outcome = session.read(Reader::new(reader)).await;
        if let Err(Broken::Protocol(_)) = &outcome {
            let _ = session.sender.send(Send::GoAway { last: session.last }).await;
        }
        outcome
    };
    tokio::select! {
        outcome = read => {
            // Its tasks are gone, so that this ends when all is sent.
            let _ = tokio::time::timeout(FAREWELL, write).await;
            outcome
        }
        outcome = &mut write => outcome.map_err(Broken::Connection),
    }
}

async fn write(mut io: impl AsyncWrite + Unpin, mut frames: mpsc::Receiver<Send>) -> std::io::Result<()> {
    let mut encoder = Encoder::new()?;
    let mut out = Vec::new();
    while let Some(frame) = frames.recv().await {
        encoder.encode(&frame, &mut out)?;
        while out.len() < CHUNK
            && let Ok(frame) = frames.try_recv()
        {
            encoder.encode(&frame, &mut out)?;
        }
        io.write_all(&out).await?;
        io.flush().await?;
        out.clear();
    }
    io.shutdown().await
}

/// The open streams.
type Streams = Arc<Mutex<HashMap<u32, Open>>>;

/// One stream of the client's.
struct Open {
    /// Where its bytes go; none in a stream for errors, or when nobody reads them any more.
    sink: Option<WriteHalf<DuplexStream>>,
    /// Ends the connection that it belongs to.
    stop: CancellationToken,
}

/// The streams of a request, until both are there.
#[derive(Default)]
struct Pair {
    error: Option<u32>,
    data: Option<(u32, u16, Ends)>,
    wait: Wait,
}

/// How it ends that a stream is alone.
#[derive(Clone, Default)]
struct Wait {
    /// The other one is there.
    complete: CancellationToken,
    /// The client does not want it any more; also of the pair.
    stop: CancellationToken,
}

/// What a stream of bytes is made of: the handler's end, and what it sends.
struct Ends {
    theirs: DuplexStream,
    source: ReadHalf<DuplexStream>,
}

struct Session {
    target: Target,
    sender: mpsc::Sender<Send>,
    streams: Streams,
    waiting: HashMap<String, Pair>,
    tasks: JoinSet<()>,
    /// The stream that was opened last.
    last: u32,
}

impl Session {
    async fn read(&mut self, mut reader: Reader<impl AsyncRead + Unpin>) -> Result<(), Broken> {
        while let Some(frame) = reader.next().await? {
            while self.tasks.try_join_next().is_some() {}
            match frame {
                Frame::Open { stream, fin, headers } => {
                    // Clients have the odd ones, in order.
                    if stream <= self.last || stream % 2 == 0 {
                        return Err(Broken::Protocol("a stream is opened out of order"));
                    }
                    self.last = stream;
                    self.open(stream, &headers).await;
                    if fin {
                        self.finish(stream).await;
                    }
                }
                Frame::Data { stream, fin, .. } => {
                    let mut sink = lock(&self.streams).get_mut(&stream).and_then(|open| open.sink.take());
                    loop {
                        let bytes = reader.chunk().await?;
                        if bytes.is_empty() {
                            break;
                        }
                        // Nothing else is read meanwhile: who serves the stream slowly holds the client back. Of one that is
                        // not open any more, what was on its way is passed over.
                        if let Some(open) = &mut sink
                            && open.write_all(&bytes).await.is_err()
                        {
                            sink = None;
                        }
                    }
                    if let Some(open) = lock(&self.streams).get_mut(&stream) {
                        open.sink = sink;
                    }
                    if fin {
                        self.finish(stream).await;
                    }
                }
                Frame::Finished { stream } => self.finish(stream).await,
                Frame::Reset { stream } => self.give_up(stream),
                // The even ones would be answers.
                Frame::Ping { id } if id % 2 == 1 => self.send(Send::Pong { id }).await,
                Frame::Ping { .. } | Frame::GoAway | Frame::Other => {}
            }
        }
        Ok(())
    }

    async fn send(&self, frame: Send) {
        // Who writes has ended when this fails, and with it the connection.
        let _ = self.sender.send(frame).await;
    }

    /// The client sends no more in a stream.
    async fn finish(&self, stream: u32) {
        let sink = lock(&self.streams).get_mut(&stream).and_then(|open| open.sink.take());
        if let Some(mut sink) = sink {
            let _ = sink.shutdown().await;
        }
    }

    /// The client does not want a stream any more.
    fn give_up(&mut self, stream: u32) {
        if let Some(open) = lock(&self.streams).remove(&stream) {
            open.stop.cancel();
        }
        self.waiting.retain(|_, pair| !pair.wait.stop.is_cancelled());
    }

    async fn open(&mut self, stream: u32, headers: &Headers) {
        // Those whose partner never came.
        self.waiting.retain(|_, pair| !pair.wait.stop.is_cancelled());
        if lock(&self.streams).len() >= MOST_STREAMS {
            return self.send(Send::Reset { stream, why: REFUSED }).await;
        }
        let kind = headers.get("streamtype").map(String::as_str);
        let port = headers.get("port").and_then(|port| port.parse::<u16>().ok()).filter(|port| *port > 0);
        let (Some(kind @ ("error" | "data")), Some(port)) = (kind, port) else {
            return self.send(Send::Reset { stream, why: CANCELLED }).await;
        };
        // Clients of old name no request: the stream for errors comes first, and that for bytes right after.
        let request = headers.get("requestid").cloned().unwrap_or_else(|| {
            let first = if kind == "error" { stream } else { stream.saturating_sub(2) };
            first.to_string()
        });
        if request.len() > LONGEST_REQUEST {
            return self.send(Send::Reset { stream, why: CANCELLED }).await;
        }
        let pair = self.waiting.entry(request.clone()).or_default();
        let wait = pair.wait.clone();
        let sink = match kind {
            "error" if pair.error.is_none() => {
                pair.error = Some(stream);
                None
            }
            "data" if pair.data.is_none() => {
                let (ours, theirs) = tokio::io::duplex(BUFFER);
                let (source, sink) = tokio::io::split(ours);
                pair.data = Some((stream, port, Ends { theirs, source }));
                Some(sink)
            }
            _ => return self.send(Send::Reset { stream, why: CANCELLED }).await,
        };
        lock(&self.streams).insert(stream, Open { sink, stop: wait.stop.clone() });
        self.send(Send::Reply { stream }).await;
        let complete = self.waiting.get(&request).is_some_and(|pair| pair.error.is_some() && pair.data.is_some());
        if !complete {
            self.tasks.spawn(expire(stream, wait, self.streams.clone(), self.sender.clone()));
            return;
        }
        if let Some(Pair { error: Some(error), data: Some((data, port, ends)), wait }) = self.waiting.remove(&request) {
            wait.complete.cancel();
            let forward = Forward { target: self.target.clone(), port, error, data };
            self.tasks.spawn(forward.run(ends, wait.stop, self.streams.clone(), self.sender.clone()));
        }
    }
}

/// Gives up a stream that stays alone.
async fn expire(stream: u32, wait: Wait, streams: Streams, sender: mpsc::Sender<Send>) {
    tokio::select! {
        () = tokio::time::sleep(PAIRING) => {}
        () = wait.complete.cancelled() => return,
        () = wait.stop.cancelled() => return,
    }
    lock(&streams).remove(&stream);
    wait.stop.cancel();
    let _ = sender.send(Send::Reset { stream, why: CANCELLED }).await;
}

struct Forward {
    target: Target,
    port: u16,
    error: u32,
    data: u32,
}

impl Forward {
    async fn run(self, ends: Ends, stop: CancellationToken, streams: Streams, sender: mpsc::Sender<Send>) {
        let Forward { target, port, error, data } = self;
        let Ends { theirs, source } = ends;
        let work = async {
            let (outcome, ()) = tokio::join!(target.forward(port, theirs), pump(data, source, &sender));
            outcome
        };
        let outcome = tokio::select! {
            outcome = work => outcome,
            () = stop.cancelled() => Ok(()),
        };
        {
            let mut streams = lock(&streams);
            streams.remove(&data);
            streams.remove(&error);
        }
        let text = outcome.err().unwrap_or_default().into_bytes();
        let _ = sender.send(Send::Data { stream: error, bytes: text, fin: true }).await;
    }
}

/// Sends what comes from a Pod, until it ends.
async fn pump(stream: u32, mut source: ReadHalf<DuplexStream>, sender: &mpsc::Sender<Send>) {
    let mut buffer = vec![0; CHUNK];
    loop {
        let count = source.read(&mut buffer).await.unwrap_or(0);
        let bytes = buffer.get(..count).unwrap_or_default().to_vec();
        if sender.send(Send::Data { stream, bytes, fin: count == 0 }).await.is_err() || count == 0 {
            return;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
