//! WebSockets: accepted on an upgraded connection, and as a stream of bytes where SPDY is inside.

use futures::{Sink, Stream};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::{Message, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Bytes, Error};

/// The longest message of a client, in bytes. Those that there are send a few ten thousand at most.
const LONGEST_MESSAGE: usize = 1 << 20;
/// How much may wait to be written, in bytes; a message that does not fit waits before it is taken.
const WRITE_BUFFER: usize = 64 << 10;

/// Takes a connection whose upgrade was answered.
pub(super) async fn accept<IO: AsyncRead + AsyncWrite + Unpin>(io: IO) -> WebSocketStream<IO> {
    let config = WebSocketConfig::default()
        .max_message_size(Some(LONGEST_MESSAGE))
        .max_frame_size(Some(LONGEST_MESSAGE))
        .write_buffer_size(0)
        .max_write_buffer_size(WRITE_BUFFER);
    WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await
}

/// The bytes in the binary messages of a WebSocket.
pub(super) struct Tunnel<IO> {
    socket: WebSocketStream<IO>,
    /// What of the last message is still to be read.
    rest: Bytes,
}

impl<IO> Tunnel<IO> {
    pub fn new(socket: WebSocketStream<IO>) -> Tunnel<IO> {
        Tunnel { socket, rest: Bytes::new() }
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncRead for Tunnel<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.rest.is_empty() {
            match ready!(Pin::new(&mut self.socket).poll_next(context)) {
                Some(Ok(Message::Binary(bytes))) => self.rest = bytes,
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
                Some(Ok(Message::Close(_))) | None => return Poll::Ready(Ok(())),
                Some(Ok(Message::Text(_))) => {
                    return Poll::Ready(Err(io::Error::other("the client sent a text where SPDY is expected")));
                }
                Some(Err(error)) => return Poll::Ready(Err(failure(error))),
            }
        }
        let count = self.rest.len().min(buffer.remaining());
        buffer.put_slice(&self.rest.split_to(count));
        Poll::Ready(Ok(()))
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Tunnel<IO> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        // A message that was taken before is sent first, so that no more than one waits.
        ready!(Pin::new(&mut self.socket).poll_ready(context)).map_err(failure)?;
        let part = bytes.get(..bytes.len().min(WRITE_BUFFER / 2)).unwrap_or_default();
        Pin::new(&mut self.socket).start_send(Message::Binary(Bytes::copy_from_slice(part))).map_err(failure)?;
        Poll::Ready(Ok(part.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context).map_err(failure)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_close(context).map_err(failure)
    }
}

fn failure(error: Error) -> io::Error {
    match error {
        Error::Io(error) => error,
        other => io::Error::other(other),
    }
}
