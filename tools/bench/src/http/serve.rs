//! A server on each runtime, written as in the examples of the runtime or of its HTTP library.
//!
//! A server is a task that accepts connections, and a task for each connection. In the variant with a tokio runtime for
//! each core, the first runtime accepts and hands out the connections round robin: with `SO_REUSEPORT` a hash would
//! distribute them, and of eight connections two cores would often get six and two. 64 connections to each of six
//! servers are 390 tasks; only the tasks of one server get requests at a time.
//!
//! Source: the examples of hyper and axum; smol's `async-io` for its sockets.

use super::handler::{Handler, connection};
use crate::runtimes::{self, Contender, smol_threads, tokio_per_core, tokio_threads};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use smol::io::{AsyncRead, AsyncWrite};
use std::io::{self, IoSlice};
use std::net::{Ipv4Addr, TcpListener};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::net::TcpStream;
use warmcore_runtime::PolicyKind;

/// The variants that have a server, in the order of the report.
pub const ALL: [Contender; 6] = [
    Contender::Ours,
    Contender::OursShared,
    Contender::Tokio,
    Contender::TokioPinned,
    Contender::TokioPerCore,
    Contender::Smol,
];

/// Starts a server that lives as long as the process. Returns its port; an error for a variant without one.
pub fn serve(contender: Contender, handler: Handler) -> anyhow::Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    listener.set_nonblocking(true)?;
    let port = listener.local_addr()?.port();
    let on_ours = move |stream| drop(warmcore_runtime::spawn(connection(TokioIo::new(stream), handler)));
    let on_tokio = move |stream| _ = tokio::spawn(connection(TokioIo::new(stream), handler));
    match contender {
        Contender::Ours => drop(runtimes::ours(PolicyKind::Home).spawn(accept(listener, on_ours))),
        Contender::OursShared => drop(runtimes::ours_shared().spawn(accept(listener, on_ours))),
        Contender::Tokio => drop(tokio_threads(false)[0].spawn(accept(listener, on_tokio))),
        Contender::TokioPinned => drop(tokio_threads(true)[0].spawn(accept(listener, on_tokio))),
        Contender::TokioPerCore => {
            let cores = tokio_per_core();
            drop(cores[0].spawn(hand_out(listener, move |number: usize, stream| {
                cores[number % cores.len()].spawn(adopt(stream, handler));
            })));
        }
        Contender::Smol => smol_threads().spawn(accept_smol(listener, handler)).detach(),
        _ => anyhow::bail!("there is no server on {}", contender.name()),
    }
    Ok(port)
}

/// The wait after a failed accept. The usual cause is that too many descriptors are open; some may be closed after the
/// wait.
const PAUSE: Duration = Duration::from_millis(1);

/// The accept loop, as in tokio's examples. `spawn` makes the connection a task.
async fn accept(listener: TcpListener, spawn: impl Fn(TcpStream)) {
    let listener = tokio::net::TcpListener::from_std(listener).expect("a worker has a driver");
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let _ = stream.set_nodelay(true);
                spawn(stream);
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// As [`accept`], except that a socket belongs to the driver of the worker where its task first runs. `spawn` also gets
/// the number of the connection.
async fn hand_out(listener: TcpListener, spawn: impl Fn(usize, io::Result<std::net::TcpStream>)) {
    let listener = tokio::net::TcpListener::from_std(listener).expect("a worker has a driver");
    for number in 0.. {
        match listener.accept().await {
            Ok((stream, _)) => spawn(number, stream.into_std()),
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// Registers the socket at the driver of this worker and serves it. Drops a connection that can't be registered.
async fn adopt(stream: io::Result<std::net::TcpStream>, handler: Handler) {
    if let Ok(stream) = stream.and_then(TcpStream::from_std) {
        let _ = stream.set_nodelay(true);
        connection(TokioIo::new(stream), handler).await;
    }
}

async fn accept_smol(listener: TcpListener, handler: Handler) {
    let listener = smol::Async::new(listener).expect("the reactor takes a socket");
    let listener = smol::net::TcpListener::from(listener);
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let _ = stream.set_nodelay(true);
                smol_threads().spawn(connection(SmolIo(stream), handler)).detach();
            }
            Err(_) => _ = smol::Timer::after(PAUSE).await,
        }
    }
}

/// Hyper's read and write traits for smol's socket. The calls are passed on. A read goes through a small buffer,
/// because smol's sockets read into initialized memory and hyper's buffer is not initialized. A request of the
/// benchmark has about 40 bytes: copying it costs little compared with the read.
///
/// Source: the crate `smol-hyper`, which zeroes hyper's buffer and reads into it, without a small buffer.
struct SmolIo(smol::net::TcpStream);

impl Read for SmolIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let mut bytes = [0; 2048];
        let room = buf.remaining().min(bytes.len());
        let n = ready!(Pin::new(&mut self.0).poll_read(cx, &mut bytes[..room]))?;
        buf.put_slice(&bytes[..n]);
        Poll::Ready(Ok(()))
    }
}

impl Write for SmolIo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_close(cx)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, bufs)
    }
}
