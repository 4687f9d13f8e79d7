//! A server on each runtime, written as in the runtime's documentation.
//!
//! A server is a task that accepts connections, and a task for each connection. In the variant with a runtime for each
//! core, the first runtime accepts and hands out the connections round robin: with `SO_REUSEPORT` a hash would
//! distribute them, and of eight connections two cores would often get six and two. 64 connections to each of six
//! servers are 390 tasks; only the tasks of one server run at a time.
//!
//! Source: the examples of hyper and axum; smol's `async-io` for its sockets.

use super::handler::{Handler, connection};
use super::smol_io::SmolIo;
use crate::runtimes::{self, smol_threads, tokio_per_core, tokio_threads};
use hyper_util::rt::TokioIo;
use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;
use tokio::runtime::Handle;
use warmcore_runtime::PolicyKind;

/// A runtime, made in a certain way: a variant of the cases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contender {
    /// Warmcore's runtime.
    Ours,
    /// Warmcore with connections spread over the workers; each task makes its own socket, as `http::serve` does it.
    OursSpread,
    /// Tokio with several threads and default settings.
    Tokio,
    /// Tokio with several threads, each pinned to a CPU.
    TokioPinned,
    /// One of tokio's single-threaded runtimes on each CPU.
    TokioPerCore,
    /// Smol's executor on a thread for each CPU.
    Smol,
}

impl Contender {
    /// All runtimes, in the order of the report.
    pub const ALL: [Self; 6] =
        [Self::Ours, Self::OursSpread, Self::Tokio, Self::TokioPinned, Self::TokioPerCore, Self::Smol];

    /// The name, as in the rows.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ours => "warmcore",
            Self::OursSpread => "warmcore spread",
            Self::Tokio => "tokio",
            Self::TokioPinned => "tokio pinned",
            Self::TokioPerCore => "tokio per core",
            Self::Smol => "smol",
        }
    }

    /// Starts a server that lives as long as the process. Returns its port.
    pub fn serve(self, handler: Handler) -> anyhow::Result<u16> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let ours = || runtimes::ours(PolicyKind::Home);
        match self {
            Self::Ours => drop(ours().spawn(accept(listener, handler, OnOurs))),
            Self::OursSpread => drop(runtimes::ours_apart().spawn(hand_out(listener, handler, OnOursSpread))),
            Self::Tokio => drop(tokio_threads(false).spawn(accept(listener, handler, OnTokio))),
            Self::TokioPinned => drop(tokio_threads(true).spawn(accept(listener, handler, OnTokio))),
            Self::TokioPerCore => {
                drop(tokio_per_core()[0].spawn(hand_out(listener, handler, OnEach(tokio_per_core()))));
            }
            Self::Smol => smol_threads().spawn(accept_smol(listener, handler)).detach(),
        }
        Ok(port)
    }
}

/// How a connection becomes a task.
trait Spawn: Copy + Send + Sync + 'static {
    /// Spawns the connection with this number, from a task.
    fn spawn(self, number: usize, task: impl Future<Output = ()> + Send + 'static);
}

#[derive(Clone, Copy)]
struct OnOurs;

impl Spawn for OnOurs {
    fn spawn(self, _: usize, task: impl Future<Output = ()> + Send + 'static) {
        drop(warmcore_runtime::spawn(task));
    }
}

/// Spawns on the less loaded of two workers.
#[derive(Clone, Copy)]
struct OnOursSpread;

impl Spawn for OnOursSpread {
    fn spawn(self, _: usize, task: impl Future<Output = ()> + Send + 'static) {
        drop(warmcore_runtime::Handle::current().task_builder().least_loaded().spawn(task));
    }
}

#[derive(Clone, Copy)]
struct OnTokio;

impl Spawn for OnTokio {
    fn spawn(self, _: usize, task: impl Future<Output = ()> + Send + 'static) {
        tokio::spawn(task);
    }
}

/// Spawns on the runtimes of the cores round robin.
#[derive(Clone, Copy)]
struct OnEach(&'static [Handle]);

impl Spawn for OnEach {
    fn spawn(self, number: usize, task: impl Future<Output = ()> + Send + 'static) {
        self.0[number % self.0.len()].spawn(task);
    }
}

/// The wait after a failed accept. Such an error means that too many descriptors are open; some may be closed after the
/// wait.
const PAUSE: Duration = Duration::from_millis(1);

/// The accept loop, as in tokio's examples.
async fn accept(listener: TcpListener, handler: Handler, spawn: impl Spawn) {
    let listener = tokio::net::TcpListener::from_std(listener).expect("a worker has a driver");
    for number in 0.. {
        match listener.accept().await {
            Ok((stream, _)) => {
                let _ = stream.set_nodelay(true);
                spawn.spawn(number, connection(TokioIo::new(stream), handler));
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// As [`accept`], except that a socket belongs to the driver of the worker where its task first runs.
async fn hand_out(listener: TcpListener, handler: Handler, spawn: impl Spawn) {
    let listener = tokio::net::TcpListener::from_std(listener).expect("a worker has a driver");
    for number in 0.. {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream.into_std(),
            Err(_) => {
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        spawn.spawn(number, async move {
            if let Ok(stream) = stream.and_then(tokio::net::TcpStream::from_std) {
                let _ = stream.set_nodelay(true);
                connection(TokioIo::new(stream), handler).await;
            }
        });
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
