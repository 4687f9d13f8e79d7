//! HTTP: connections as tasks of this runtime, each with a tenant if it has one.
//!
//! Model.   `serve` accepts on one task and spawns a task per connection, which begins on the worker with the
//!          fewest tasks and takes its socket to that worker's driver. At the end nothing is accepted any more, idle
//!          connections close, busy ones finish the request that they are at; what is left at the deadline is cut.
//!          `Executor` is for what hyper spawns by itself: streams of HTTP/2, connections of a client.
//! Number.  A connection costs a task, and going to its own driver two system calls.
//! Writers. The stage: the accepting task. Connections read it.
//! Source.  `axum::serve`, which spawns by `tokio::spawn`: all its connections stay on the worker that accepts.

use crate::{Handle, Spawner};
use hyper::body::{Body, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use std::error::Error;
use std::fmt;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream, unix};
use tokio::sync::watch;
use tower_service::Service;
use warmcore_tenant::Tenant;

/// What an error of a service or a body must become.
type BoxError = Box<dyn Error + Send + Sync>;

/// After an error that is the process's and not one connection's, such as no more descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Spawns what hyper wants spawned: `hyper::rt::Executor`, for servers and clients.
#[derive(Debug, Clone)]
pub struct Executor {
    handle: Handle,
    tenant: Option<Tenant>,
}

impl Executor {
    /// On this runtime.
    pub fn new(handle: Handle) -> Self {
        Self { handle, tenant: None }
    }

    /// On the runtime that this thread is in. Panics if it is in none.
    #[track_caller]
    pub fn current() -> Self {
        Self::new(Handle::current())
    }

    /// What it spawns is this tenant's.
    pub fn tenant(self, tenant: &Tenant) -> Self {
        Self { tenant: Some(tenant.clone()), ..self }
    }

    fn task(&self) -> Spawner {
        let task = self.handle.task();
        match &self.tenant {
            Some(tenant) => task.tenant(tenant),
            None => task,
        }
    }
}

impl<F> hyper::rt::Executor<F> for Executor
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, future: F) {
        // Nobody waits for it: hyper hears of its end through channels of its own.
        drop(self.task().spawn(future));
    }
}

/// Where connections come from.
pub trait Listener: Send + 'static {
    /// A connection that is on no driver yet.
    type Socket: Send + 'static;
    /// A connection on a driver.
    type Io: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    /// Who is at the other end.
    type Peer: Send + 'static;

    /// The next connection. May be dropped while it waits without losing one.
    fn accept(&mut self) -> impl Future<Output = io::Result<(Self::Socket, Self::Peer)>> + Send;

    /// Takes a connection to the driver of the worker that calls this.
    fn adopt(socket: Self::Socket) -> io::Result<Self::Io>;
}

impl Listener for TcpListener {
    type Socket = std::net::TcpStream;
    type Io = TcpStream;
    type Peer = SocketAddr;

    async fn accept(&mut self) -> io::Result<(Self::Socket, SocketAddr)> {
        let (stream, peer) = TcpListener::accept(self).await?;
        Ok((stream.into_std()?, peer))
    }

    fn adopt(socket: Self::Socket) -> io::Result<TcpStream> {
        let stream = TcpStream::from_std(socket)?;
        // An answer in two pieces is not to wait for the other end to acknowledge the first. That it can't be
        // set is no reason not to serve.
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

    fn adopt(socket: Self::Socket) -> io::Result<UnixStream> {
        UnixStream::from_std(socket)
    }
}

type TenantOf<P> = Box<dyn Fn(&P) -> Option<Tenant> + Send>;
type Configure = Arc<dyn Fn(&mut auto::Builder<Executor>) + Send + Sync>;

/// A server before it runs: [`serve`].
#[must_use = "`run` serves"]
pub struct Server<L: Listener, S> {
    listener: L,
    service: S,
    executor: Option<Executor>,
    tenant_of: Option<TenantOf<L::Peer>>,
    configure: Option<Configure>,
    until: Pin<Box<dyn Future<Output = ()> + Send>>,
    deadline: Option<Duration>,
}

/// How a server ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ended {
    /// Connections that it accepted.
    pub connections: u64,
    /// Connections that were still busy at the deadline, and were cut.
    pub cut: usize,
}

/// Serves HTTP/1 and HTTP/2 with an axum `Router` or any other tower service; each connection gets a clone.
///
/// A handler that panics costs its connection, or its stream of HTTP/2, and nothing else. What a handler spawns by
/// [`spawn`](crate::spawn()) finds its own place; by `tokio::spawn` it stays on the worker that called it.
///
/// ```
/// use hyper::body::Incoming;
/// use hyper::{Request, Response};
/// use std::convert::Infallible;
/// use warmcore_runtime::{Runtime, http};
///
/// let service = tower::service_fn(|_: Request<Incoming>| async {
///     Ok::<_, Infallible>(Response::new("warm".to_owned()))
/// });
/// let runtime = Runtime::new()?;
/// runtime.block_on(async {
///     let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
///     let ended = http::serve(listener, service).until(async {}).run().await;
///     assert_eq!((ended.connections, ended.cut), (0, 0));
///     std::io::Result::Ok(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn serve<L: Listener, S>(listener: L, service: S) -> Server<L, S> {
    Server {
        listener,
        service,
        executor: None,
        tenant_of: None,
        configure: None,
        until: Box::pin(pending()),
        deadline: None,
    }
}

impl<L: Listener, S> Server<L, S> {
    /// Who spawns connections; the runtime that `run` is in, if nothing is said.
    pub fn executor(self, executor: Executor) -> Self {
        Self { executor: Some(executor), ..self }
    }

    /// Says whose a connection is. `None`: the executor's tenant's, if it has one. A panic in it ends the server.
    pub fn tenant_of(self, of: impl Fn(&L::Peer) -> Option<Tenant> + Send + 'static) -> Self {
        Self { tenant_of: Some(Box::new(of)), ..self }
    }

    /// Says more about the protocol, before each connection: limits, timeouts, HTTP/1 or HTTP/2 only.
    pub fn configure(self, configure: impl Fn(&mut auto::Builder<Executor>) + Send + Sync + 'static) -> Self {
        Self { configure: Some(Arc::new(configure)), ..self }
    }

    /// Ends when this is ready; if nothing is said, never.
    pub fn until(self, signal: impl Future<Output = ()> + Send + 'static) -> Self {
        Self { until: Box::pin(signal), ..self }
    }

    /// How long connections have to finish after the end. If nothing is said, as long as they take.
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline: Some(deadline), ..self }
    }

    /// Serves until the end. Dropping this stops accepting; connections go on.
    pub async fn run<B>(self) -> Ended
    where
        S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
        S::Future: Send + 'static,
        S::Error: Into<BoxError>,
        B: Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<BoxError>,
    {
        let Self { mut listener, service, executor, tenant_of, configure, mut until, deadline } = self;
        let executor = executor.unwrap_or_else(Executor::current);
        let stage = watch::Sender::new(Stage::Serving);
        let mut connections = 0;
        loop {
            let accepted = tokio::select! {
                biased;
                () = &mut until => break,
                accepted = listener.accept() => accepted,
            };
            let (socket, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) if is_of_one_connection(&error) => continue,
                Err(error) => {
                    tracing::warn!(%error, "can't accept; trying again soon");
                    tokio::select! {
                        biased;
                        () = &mut until => break,
                        () = tokio::time::sleep(ACCEPT_PAUSE) => continue,
                    }
                }
            };
            connections += 1;
            let executor = match tenant_of.as_ref().and_then(|of| of(&peer)) {
                Some(tenant) => executor.clone().tenant(&tenant),
                None => executor.clone(),
            };
            let (task, service, configure) = (executor.task(), service.clone(), configure.clone());
            let stage = stage.subscribe();
            drop(task.spread().spawn(connection::<L, S, B>(socket, service, executor, configure, stage)));
        }
        drop(listener);
        let cut = finish(&stage, deadline).await;
        Ended { connections, cut }
    }
}

impl<L: Listener, S> fmt::Debug for Server<L, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("executor", &self.executor)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Serving,
    /// Finish what you are at.
    Ending,
    /// No more.
    Cut,
}

/// Waits until all connections have ended. Says how many had to be cut.
async fn finish(stage: &watch::Sender<Stage>, deadline: Option<Duration>) -> usize {
    stage.send_replace(Stage::Ending);
    let Some(deadline) = deadline else {
        stage.closed().await;
        return 0;
    };
    if tokio::time::timeout(deadline, stage.closed()).await.is_ok() {
        return 0;
    }
    // One whose handler is in a long poll hears it when that is over; nobody waits for it.
    let left = stage.receiver_count();
    stage.send_replace(Stage::Cut);
    left
}

/// The other end went away before it was accepted.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::*;
    matches!(error.kind(), ConnectionRefused | ConnectionAborted | ConnectionReset | Interrupted)
}

async fn connection<L, S, B>(
    socket: L::Socket,
    service: S,
    executor: Executor,
    configure: Option<Configure>,
    mut stage: watch::Receiver<Stage>,
) where
    L: Listener,
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    let io = match L::adopt(socket) {
        Ok(io) => TokioIo::new(io),
        Err(error) => return tracing::warn!(%error, "no driver takes a connection"),
    };
    let mut builder = auto::Builder::new(executor);
    // With a timer hyper gives up on who never finishes a head.
    builder.http1().timer(TokioTimer::new());
    builder.http2().timer(TokioTimer::new());
    if let Some(configure) = configure {
        configure(&mut builder);
    }
    let service = TowerToHyperService::new(service);
    let mut connection = pin!(builder.serve_connection_with_upgrades(io, service));
    let mut may_change = true;
    loop {
        tokio::select! {
            biased;
            changed = stage.changed(), if may_change => {
                // Without a server nobody says anything any more.
                may_change = changed.is_ok();
                match *stage.borrow_and_update() {
                    Stage::Serving => {}
                    Stage::Ending => connection.as_mut().graceful_shutdown(),
                    Stage::Cut => return,
                }
            }
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection ended early");
                }
                return;
            }
        }
    }
}
