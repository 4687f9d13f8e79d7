//! Serve: one server on each runtime, the way its own users write it.
//!
//! Model.   A runtime is made at its first use and lives as long as the process, asleep while others are measured. It
//!          has a worker for each CPU that the process may use. A server is a task that accepts, and a task for
//!          each connection. Where each core has a runtime of its own, the first one accepts and the connections
//!          are handed out in turns: `SO_REUSEPORT` would leave to a hash how many each core gets, and eight
//!          connections would often be six and two.
//! Number.  Five runtimes on two CPUs: ten threads and smol's reactor, all but two asleep at any time.
//! Source.  hyper's and axum's examples; smol's `async-io` for its sockets.

use super::handler::{Handler, connection};
use super::smol_io::SmolIo;
use hyper_util::rt::TokioIo;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::runtime::{Builder, Handle};
use warmcore_sys::affinity;
use warmcore_terms::CpuId;

/// A runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// Ours.
    Ours,
    /// Ours, and each connection makes its socket in its own task, on the worker where it first runs.
    OursHanded,
    /// Tokio with several threads, as its users have it.
    Tokio,
    /// The same, with a CPU for each thread.
    TokioPinned,
    /// One of tokio's single-threaded runtimes on each CPU.
    TokioPerCore,
    /// Smol's executor on a thread for each CPU.
    Smol,
}

impl Who {
    /// Everybody.
    pub const ALL: [Self; 6] =
        [Self::Ours, Self::OursHanded, Self::Tokio, Self::TokioPinned, Self::TokioPerCore, Self::Smol];

    /// As it stands in the rows.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ours => "warmcore",
            Self::OursHanded => "warmcore, socket made in its task",
            Self::Tokio => "tokio",
            Self::TokioPinned => "tokio pinned",
            Self::TokioPerCore => "tokio per core",
            Self::Smol => "smol",
        }
    }

    /// Starts a server that lives as long as the process. Says on which port.
    pub fn serve(self, handler: Handler) -> anyhow::Result<u16> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        match self {
            Self::Ours => drop(ours().spawn(accept(listener, handler, OnOurs))),
            Self::OursHanded => drop(ours().spawn(hand_out(listener, handler, OnOurs))),
            Self::Tokio => drop(tokio_threads(false).spawn(accept(listener, handler, OnTokio))),
            Self::TokioPinned => drop(tokio_threads(true).spawn(accept(listener, handler, OnTokio))),
            Self::TokioPerCore => {
                drop(per_core()[0].spawn(hand_out(listener, handler, OnEach(per_core()))));
            }
            Self::Smol => smol_threads().spawn(accept_smol(listener, handler)).detach(),
        }
        Ok(port)
    }
}

/// The CPUs that this process may use: a worker for each.
pub fn cpus() -> &'static [CpuId] {
    static CPUS: OnceLock<Vec<CpuId>> = OnceLock::new();
    CPUS.get_or_init(|| affinity::allowed_to_main().map_or(vec![CpuId(0)], |cpus| cpus.iter().collect()))
}

fn ours() -> &'static warmcore_runtime::Runtime {
    static RUNTIME: OnceLock<warmcore_runtime::Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let builder = warmcore_runtime::Runtime::builder().workers(cpus().len()).name("warmcore");
        builder.build().expect("threads and descriptors can be had")
    })
}

fn tokio_threads(is_pinned: bool) -> &'static tokio::runtime::Runtime {
    static RUNTIMES: [OnceLock<tokio::runtime::Runtime>; 2] = [const { OnceLock::new() }; 2];
    RUNTIMES[usize::from(is_pinned)].get_or_init(|| {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(cpus().len()).enable_all();
        builder.thread_name(if is_pinned { "tokio-pinned" } else { "tokio" });
        if is_pinned {
            let next = AtomicUsize::new(0);
            builder.on_thread_start(move || {
                // Not pinned, it is the other variant over again; `doctor` says where pinning fails.
                let _ = affinity::pin(cpus()[next.fetch_add(1, Relaxed) % cpus().len()]);
            });
        }
        builder.build().expect("threads and an epoll instance can be had")
    })
}

fn per_core() -> &'static [Handle] {
    static HANDLES: OnceLock<Vec<Handle>> = OnceLock::new();
    let start = |&cpu: &CpuId| {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("an epoll instance can be had");
        let handle = runtime.handle().clone();
        let work = move || {
            let _ = affinity::pin(cpu);
            runtime.block_on(std::future::pending::<()>());
        };
        std::thread::Builder::new().name("per-core".into()).spawn(work).expect("a thread can be had");
        handle
    };
    HANDLES.get_or_init(|| cpus().iter().map(start).collect())
}

fn smol_threads() -> &'static smol::Executor<'static> {
    static EXECUTOR: OnceLock<smol::Executor<'static>> = OnceLock::new();
    static THREADS: OnceLock<()> = OnceLock::new();
    let executor = EXECUTOR.get_or_init(smol::Executor::new);
    THREADS.get_or_init(|| {
        for _ in cpus() {
            let work = || smol::block_on(executor.run(std::future::pending::<()>()));
            std::thread::Builder::new().name("smol".into()).spawn(work).expect("a thread can be had");
        }
    });
    executor
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

#[derive(Clone, Copy)]
struct OnTokio;

impl Spawn for OnTokio {
    fn spawn(self, _: usize, task: impl Future<Output = ()> + Send + 'static) {
        tokio::spawn(task);
    }
}

/// On one core after the other.
#[derive(Clone, Copy)]
struct OnEach(&'static [Handle]);

impl Spawn for OnEach {
    fn spawn(self, number: usize, task: impl Future<Output = ()> + Send + 'static) {
        self.0[number % self.0.len()].spawn(task);
    }
}

/// What a server does where it can't accept: too many descriptors are open, and some will be closed.
const PAUSE: Duration = Duration::from_millis(1);

/// The loop that all of tokio's examples have.
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

/// The same, and a socket belongs to the driver of the worker where its task first runs.
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
