//! The network of the simulated cloud: load balancers with an address each, and gates by which a machine falls silent.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Connections that wait to be accepted at one address.
const BACKLOG: u32 = 1024;
/// Pause after an accept that failed for want of resources, and before an address is taken again.
const PAUSE: Duration = Duration::from_millis(100);

/// Open, or closed: then nothing that goes through it moves, and nothing is lost.
#[derive(Clone, Debug, Default)]
pub(super) struct Gate(Arc<GateState>);

#[derive(Debug, Default)]
struct GateState {
    closed: AtomicBool,
    waiting: Mutex<Vec<Waker>>,
}

impl Gate {
    pub(super) fn set_closed(&self, closed: bool) {
        self.0.closed.store(closed, Ordering::SeqCst);
        if !closed {
            let waiting = std::mem::take(&mut *self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner));
            waiting.into_iter().for_each(Waker::wake);
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.0.closed.load(Ordering::SeqCst)
    }

    fn poll_open(&self, context: &Context<'_>) -> Poll<()> {
        if !self.is_closed() {
            return Poll::Ready(());
        }
        let mut waiting = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
            waiting.push(context.waker().clone());
        }
        drop(waiting);
        // It may have been opened between the look and the registration.
        if self.is_closed() { Poll::Pending } else { Poll::Ready(()) }
    }

    /// Returns when it is open.
    pub(super) async fn opened(&self) {
        std::future::poll_fn(|context| self.poll_open(context)).await;
    }
}

/// A connection through a gate.
pub(super) struct Gated<T> {
    inner: T,
    gate: Gate,
}

impl<T> Gated<T> {
    pub(super) fn new(inner: T, gate: Gate) -> Self {
        Gated { inner, gate }
    }
}

macro_rules! through {
    ($self:ident, $context:ident, $method:ident $(, $argument:expr)*) => {{
        let this = $self.get_mut();
        if this.gate.poll_open($context).is_pending() {
            return Poll::Pending;
        }
        Pin::new(&mut this.inner).$method($context $(, $argument)*)
    }};
}

impl<T: AsyncRead + Unpin> AsyncRead for Gated<T> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        through!(self, context, poll_read, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Gated<T> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        through!(self, context, poll_write, buffer)
    }
    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        through!(self, context, poll_flush)
    }
    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        through!(self, context, poll_shutdown)
    }
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        through!(self, context, poll_write_vectored, buffers)
    }
    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

/// Hands out addresses: those of machines in 10.0.0.0/8, where nothing answers, and those of load balancers in 127.64.0.0/10, from a random place on so that two
/// clouds on one computer rarely meet.
pub(super) struct Addresses {
    base: u32,
    load_balancers: u32,
    machines: u32,
}

impl Addresses {
    pub(super) fn new() -> Self {
        Addresses { base: rand::random::<u32>() & 0x003f_ff00, load_balancers: 0, machines: 0 }
    }

    /// Machines' addresses go on behind this one.
    pub(super) fn seen_machine(&mut self, address: Ipv4Addr) {
        self.machines = self.machines.max(u32::from(address) & 0x003f_ffff);
    }

    pub(super) fn machine(&mut self) -> Ipv4Addr {
        self.machines = (self.machines + 1) & 0x003f_ffff;
        Ipv4Addr::from(0x0a40_0000 | self.machines)
    }

    fn load_balancer(&mut self) -> Ipv4Addr {
        self.load_balancers += 1;
        let host = self.base.wrapping_add(self.load_balancers) & 0x003f_ffff;
        Ipv4Addr::from(0x7f40_0000 | host)
    }

    /// Takes an address whose port is free, and reserves it. `taken` says which addresses the cloud has given away.
    pub(super) fn reserve(&mut self, port: u16, taken: impl Fn(Ipv4Addr) -> bool) -> io::Result<(Ipv4Addr, TcpSocket)> {
        let mut last = io::Error::from(io::ErrorKind::AddrInUse);
        for _ in 0..32 {
            let address = self.load_balancer();
            // 127.64.0.0 and .255 are no addresses to give away.
            if matches!(address.octets(), [.., 0 | 255]) || taken(address) {
                continue;
            }
            let target = SocketAddr::from((address, port));
            // Without SO_REUSEADDR, to see whether anybody else has it.
            match TcpSocket::new_v4().and_then(|socket| {
                socket.set_reuseaddr(false)?;
                socket.bind(target)
            }) {
                Ok(()) => return bind(target).map(|socket| (address, socket)),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

/// Binds without listening: the address is taken, and connections to it are refused.
pub(super) fn bind(target: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(target)?;
    Ok(socket)
}

/// Who takes the connections of a load balancer.
pub(super) trait Backend: Send + Sync + 'static {
    /// Takes a connection, or drops it.
    fn take(&self, stream: TcpStream);
}

/// Serves one address: while `open` says so connections are accepted, otherwise they are refused.
pub(super) async fn listen(
    target: SocketAddr,
    reserved: Option<TcpSocket>,
    mut open: watch::Receiver<bool>,
    backend: Arc<dyn Backend>,
    stop: CancellationToken,
) {
    let mut reserved = reserved;
    loop {
        let goes_on = tokio::select! {
            goes_on = seen(&mut open, true) => goes_on,
            () = stop.cancelled() => false,
        };
        if !goes_on {
            return;
        }
        let listener = match reserved.take().map_or_else(|| bind(target), Ok).and_then(|socket| socket.listen(BACKLOG))
        {
            Ok(listener) => listener,
            Err(error) => {
                tracing::warn!(%target, %error, "a load balancer's address cannot be listened on; trying again");
                tokio::select! {
                    () = tokio::time::sleep(PAUSE * 10) => continue,
                    () = stop.cancelled() => return,
                }
            }
        };
        if !accept(&listener, &mut open, &*backend, &stop).await {
            return;
        }
        drop(listener);
        reserved = bind(target).ok();
    }
}

/// Accepts until the load balancer is to be closed (true) or to go (false).
async fn accept(
    listener: &TcpListener,
    open: &mut watch::Receiver<bool>,
    backend: &dyn Backend,
    stop: &CancellationToken,
) -> bool {
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let _ = stream.set_nodelay(true);
                    backend.take(stream);
                }
                Err(error) => {
                    tracing::warn!(%error, "a load balancer cannot accept connections");
                    tokio::time::sleep(PAUSE).await;
                }
            },
            closed = seen(open, false) => return closed,
            () = stop.cancelled() => return false,
        }
    }
}

/// Waits until the load balancer is to be open, or closed; false where it is to go.
async fn seen(open: &mut watch::Receiver<bool>, wanted: bool) -> bool {
    open.wait_for(|open| *open == wanted).await.is_ok()
}

/// Whose turn it is.
#[derive(Debug, Default)]
pub(super) struct Turn(AtomicUsize);

impl Turn {
    /// One of `choices`, each in turn.
    pub(super) fn next<'a, T>(&self, choices: &'a [T]) -> Option<&'a T> {
        let turn = self.0.fetch_add(1, Ordering::Relaxed);
        turn.checked_rem(choices.len()).and_then(|index| choices.get(index))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    struct Greet;

    impl Backend for Greet {
        fn take(&self, mut stream: TcpStream) {
            tokio::spawn(async move { stream.write_all(b"hi").await });
        }
    }

    async fn greeted(target: SocketAddr) -> io::Result<String> {
        let mut text = String::new();
        TcpStream::connect(target).await?.read_to_string(&mut text).await?;
        Ok(text)
    }

    #[tokio::test]
    async fn an_address_refuses_until_it_is_opened_and_again_when_closed() {
        let (address, socket) = Addresses::new().reserve(6443, |_| false).unwrap();
        let target = SocketAddr::from((address, 6443));
        let (open, receiver) = watch::channel(false);
        let stop = CancellationToken::new();
        let task = tokio::spawn(listen(target, Some(socket), receiver, Arc::new(Greet), stop.clone()));
        assert_eq!(greeted(target).await.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        for _ in 0..3 {
            open.send_replace(true);
            while greeted(target).await.is_err() {
                tokio::task::yield_now().await;
            }
            assert_eq!(greeted(target).await.unwrap(), "hi");
            open.send_replace(false);
            while greeted(target).await.is_ok() {
                tokio::task::yield_now().await;
            }
            assert_eq!(greeted(target).await.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        }
        stop.cancel();
        task.await.unwrap();
    }

    #[tokio::test]
    async fn nothing_moves_through_a_closed_gate_and_nothing_is_lost() {
        let (mut near, far) = tokio::io::duplex(64);
        let gate = Gate::default();
        let mut far = Gated::new(far, gate.clone());
        gate.set_closed(true);
        near.write_all(b"abc").await.unwrap();
        let mut buffer = [0; 3];
        assert!(tokio::time::timeout(Duration::from_millis(30), far.read_exact(&mut buffer)).await.is_err());
        let reading = tokio::spawn(async move {
            far.read_exact(&mut buffer).await.unwrap();
            buffer
        });
        tokio::task::yield_now().await;
        gate.set_closed(false);
        assert_eq!(&reading.await.unwrap(), b"abc");
    }

    #[test]
    fn addresses_are_not_given_twice() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let _context = runtime.enter();
        let mut addresses = Addresses::new();
        let (first, _held) = addresses.reserve(6443, |_| false).unwrap();
        let (second, _also) = addresses.reserve(6443, |address| address == first).unwrap();
        assert_ne!(first, second);
        addresses.seen_machine(Ipv4Addr::new(10, 64, 0, 9));
        assert_eq!(addresses.machine(), Ipv4Addr::new(10, 64, 0, 10));
    }
}
