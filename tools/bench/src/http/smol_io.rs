//! Implements hyper's read and write traits for smol's socket.
//!
//! The calls are passed on to smol's socket. A read goes through a small buffer, because smol's sockets read into
//! initialized memory and hyper's buffer is not initialized. A request of the benchmark has about 50 bytes: copying it
//! costs little compared with the read.
//!
//! Source: the crate `smol-hyper` does the same, and zeroes hyper's buffer instead.

use hyper::rt::{Read, ReadBufCursor, Write};
use smol::io::{AsyncRead, AsyncWrite};
use smol::net::TcpStream;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// A socket.
pub struct SmolIo(pub TcpStream);

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
