//! Listener: a source of connections, and `bind`, which opens a listening socket for each last-level cache.

use std::future::Future;
use std::io;
use std::mem::ManuallyDrop;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsRawFd, FromRawFd};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream, unix};
use warmcore_runtime::Handle;
use warmcore_types::LlcId;

/// Connections that the kernel queues for each socket of [`bind`] until they are accepted. `net.core.somaxconn` is a limit
/// too.
const BACKLOG: u32 = 4096;

/// A source of connections.
pub trait Listener: Sized + Send + 'static {
    /// A connection that is registered with no driver yet.
    type Socket: Send + 'static;
    /// A connection that is registered with a driver.
    type Io: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    /// The address of the other end.
    type Peer: Send + 'static;

    /// Waits for the next connection. Dropping the future loses none.
    fn accept(&mut self) -> impl Future<Output = io::Result<(Self::Socket, Self::Peer)>> + Send;

    /// Returns another connection if one waits already. A batch begins with `accept` and goes on with this method.
    /// Default: `None`.
    fn try_accept(&mut self) -> Option<io::Result<(Self::Socket, Self::Peer)>> {
        None
    }

    /// Registers a connection with the driver of the worker that calls this.
    fn adopt(socket: Self::Socket) -> io::Result<Self::Io>;

    /// Splits this into listeners that accept side by side, each in its own task. That task runs, and the connections
    /// that it accepts begin, on the given last-level cache; `None`: on any. Default: this one listener, on any cache.
    fn split(self) -> Vec<(Option<LlcId>, Self)> {
        vec![(None, self)]
    }
}

/// Converts the error of a nonblocking `accept` without a waiting connection to `None`.
fn unless_none_waits<T>(accepted: io::Result<T>) -> Option<io::Result<T>> {
    match accepted {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
        accepted => Some(accepted),
    }
}

impl Listener for TcpListener {
    type Socket = std::net::TcpStream;
    type Io = TcpStream;
    type Peer = SocketAddr;

    async fn accept(&mut self) -> io::Result<(Self::Socket, SocketAddr)> {
        let (stream, peer) = TcpListener::accept(self).await?;
        Ok((stream.into_std()?, peer))
    }

    /// Calls `accept` of `std`. Tokio's would register the connection with this worker's driver, from which it would be
    /// removed again.
    fn try_accept(&mut self) -> Option<io::Result<(Self::Socket, SocketAddr)>> {
        // SAFETY: the descriptor is open while `self` is borrowed, and `ManuallyDrop` does not close it.
        let listener = ManuallyDrop::new(unsafe { std::net::TcpListener::from_raw_fd(self.as_raw_fd()) });
        unless_none_waits(listener.accept())
    }

    fn adopt(socket: Self::Socket) -> io::Result<TcpStream> {
        socket.set_nonblocking(true)?;
        let stream = TcpStream::from_std(socket)?;
        // Without Nagle's algorithm the second piece of an answer does not wait for the acknowledgement of the first.
        // If this fails the connection is served all the same.
        let _ = stream.set_nodelay(true);
        Ok(stream)
    }
}

impl Listener for UnixListener {
    type Socket = std::os::unix::net::UnixStream;
    type Io = UnixStream;
    type Peer = unix::SocketAddr;

    async fn accept(&mut self) -> io::Result<(Self::Socket, unix::SocketAddr)> {
        let (stream, peer) = UnixListener::accept(self).await?;
        Ok((stream.into_std()?, peer))
    }

    fn try_accept(&mut self) -> Option<io::Result<(Self::Socket, unix::SocketAddr)>> {
        // SAFETY: as for TCP.
        let listener =
            ManuallyDrop::new(unsafe { std::os::unix::net::UnixListener::from_raw_fd(self.as_raw_fd()) });
        unless_none_waits(listener.accept().map(|(socket, peer)| (socket, peer.into())))
    }

    fn adopt(socket: Self::Socket) -> io::Result<UnixStream> {
        socket.set_nonblocking(true)?;
        UnixStream::from_std(socket)
    }
}

/// A listening socket for each last-level cache: [`bind`].
#[derive(Debug)]
pub struct PerLlc {
    sockets: Vec<(LlcId, std::net::TcpListener)>,
    /// The only socket of a listener that was split off, after its first `accept` registered it with the worker's
    /// driver.
    registered: Option<TcpListener>,
}

/// Binds a listening socket for each last-level cache of the current thread's runtime, all to one address.
/// [`serve`](crate::serve()) accepts each socket's connections on a worker of its cache, and begins them on the less
/// loaded of two workers of that cache.
///
/// Use it if connections arrive faster than one task accepts them: a socket has one lock in the kernel, and
/// [`serve`](crate::serve()) accepts from a socket in one task. For other servers a `tokio::net::TcpListener` is better,
/// for two reasons:
///
/// - **The kernel chooses the socket by a hash of the two addresses, not by load.** Few connections are distributed
///   unevenly: with 8 connections over 4 caches, at least one cache gets none in 38 % of all cases. A connection that
///   waits at a socket is accepted only by the task of that socket, and begins on its cache.
/// - **Other processes can share the port.** The sockets have `SO_REUSEPORT`: any process of the same user can bind the
///   same address with that option, such as a second instance that was started by mistake. That process then gets a
///   share of the connections instead of the error "address in use". When a process ends, connections that wait at its
///   sockets are reset.
///
/// If the runtime's workers share one last-level cache there is one socket, without that option.
///
/// With port 0 all sockets get the same free port. A name is resolved on this thread, which blocks it.
///
/// ```
/// # let runtime = warmcore_runtime::Runtime::new().unwrap();
/// # runtime.block_on(async {
/// let listener = warmcore_http::bind("127.0.0.1:0")?;
/// println!("listening on http://{}", listener.local_addr()?);
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
///
/// # Errors
/// If the name can't be resolved or has no address. Else the error of the last address that was tried: it is in use, or
/// is not local, or the system refuses a socket.
///
/// # Panics
/// If this thread is inside no runtime.
#[track_caller]
pub fn bind(addr: impl ToSocketAddrs) -> io::Result<PerLlc> {
    let handle = Handle::current();
    let mut llcs: Vec<LlcId> = handle.metrics().workers.iter().map(|worker| LlcId(worker.llc)).collect();
    llcs.sort_unstable();
    llcs.dedup();
    let mut last = io::Error::new(io::ErrorKind::InvalidInput, "the name has no address");
    for addr in addr.to_socket_addrs()? {
        match handle.with_context(|| bind_all(addr, &llcs)) {
            Ok(sockets) => return Ok(PerLlc { sockets, registered: None }),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn bind_all(mut addr: SocketAddr, llcs: &[LlcId]) -> io::Result<Vec<(LlcId, std::net::TcpListener)>> {
    let mut sockets = Vec::with_capacity(llcs.len());
    for llc in llcs {
        let socket = if addr.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        socket.set_reuseaddr(true)?;
        if llcs.len() > 1 {
            socket.set_reuseport(true)?;
        }
        socket.bind(addr)?;
        let listener = socket.listen(BACKLOG)?;
        // The sockets after the first take its port.
        addr = listener.local_addr()?;
        sockets.push((*llc, listener.into_std()?));
    }
    Ok(sockets)
}

impl PerLlc {
    /// The address of all sockets.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match (&self.registered, self.sockets.first()) {
            (Some(listener), _) => listener.local_addr(),
            (None, Some((_, socket))) => socket.local_addr(),
            (None, None) => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// The number of sockets.
    pub fn sockets(&self) -> usize {
        self.sockets.len() + usize::from(self.registered.is_some())
    }
}

impl Listener for PerLlc {
    type Socket = std::net::TcpStream;
    type Io = TcpStream;
    type Peer = SocketAddr;

    async fn accept(&mut self) -> io::Result<(Self::Socket, SocketAddr)> {
        if self.registered.is_none() {
            debug_assert_eq!(self.sockets.len(), 1, "split");
            // Registers the socket with the driver of the worker that accepts. `sockets` keeps it until that succeeds.
            let (_, socket) = self.sockets.first().ok_or(io::ErrorKind::NotConnected)?;
            self.registered = Some(TcpListener::from_std(socket.try_clone()?)?);
            self.sockets.clear();
        }
        let listener = self.registered.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        Listener::accept(listener).await
    }

    fn try_accept(&mut self) -> Option<io::Result<(Self::Socket, SocketAddr)>> {
        self.registered.as_mut().and_then(Listener::try_accept)
    }

    fn adopt(socket: Self::Socket) -> io::Result<TcpStream> {
        <TcpListener as Listener>::adopt(socket)
    }

    fn split(self) -> Vec<(Option<LlcId>, Self)> {
        let one = |(llc, socket)| (Some(llc), Self { sockets: vec![(llc, socket)], registered: None });
        self.sockets.into_iter().map(one).collect()
    }
}

/// Whether an error of `accept` concerns one connection that failed before it was accepted, and not the process. The
/// list is from accept(2): errors of the connection, of the network and of a firewall.
pub(crate) fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::*;
    let kinds = [
        ConnectionRefused,
        ConnectionAborted,
        ConnectionReset,
        Interrupted,
        NetworkDown,
        NetworkUnreachable,
        HostUnreachable,
        PermissionDenied,
    ];
    // ENONET, EPROTO, ENOPROTOOPT, EOPNOTSUPP and EHOSTDOWN have no `ErrorKind`.
    let numbers: &[i32] = if cfg!(target_os = "linux") { &[64, 71, 92, 95, 112] } else { &[] };
    kinds.contains(&error.kind()) || error.raw_os_error().is_some_and(|number| numbers.contains(&number))
}
