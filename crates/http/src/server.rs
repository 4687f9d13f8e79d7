//! Server: its settings, its accepting tasks and its connections.
//!
//! [`Server::run`] spawns an accepting task for each socket of the listener, and waits for the shutdown. An accepting
//! task accepts up to [`BATCH`] connections before other tasks of its worker run, and spawns a task for each, which
//! begins on the less loaded of two workers. The connection's task races hyper's connection with a change of the
//! server's [`Stage`] and with the [`Alarm`] that closes a connection without a request.

use crate::executor::Executor;
use crate::listener::{Listener, is_of_one_connection};
use crate::quiet::{Alarm, Bounds, Counted, Noticed, Quiet, Ring};
use hyper::body::{Body, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use std::error::Error;
use std::fmt;
use std::future::{pending, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::Poll;
use std::time::Duration;
use tokio::sync::watch;
use tower_service::Service;
use warmcore_runtime::{JoinHandle, Placement, yield_now};
use warmcore_sys::clock;
use warmcore_tenant::Tenant;
use warmcore_types::LlcId;

/// The type to which errors of services and bodies are converted.
type BoxError = Box<dyn Error + Send + Sync>;

/// Pause after an error of `accept` that concerns the whole process, such as no free descriptors. After an error of one
/// connection there is no pause.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Number of connections, failed ones included, after which an accepting task lets the worker's other tasks run.
const BATCH: usize = 32;

/// Default of the timeouts for a silent client, and of the time that connections have to finish on shutdown.
const TIMEOUT: Duration = Duration::from_secs(30);

type TenantOf<P> = Arc<dyn Fn(&P) -> Option<Tenant> + Send + Sync>;
type Configure = Arc<dyn Fn(&mut auto::Builder<Executor>) + Send + Sync>;

/// A server that is configured and does not run yet. [`serve`] returns it; [`run`](Self::run) runs it.
///
/// Connections run as tasks of a tenant, and open ones finish their request when the server is stopped:
///
/// ```
/// # use hyper::{Request, Response, body::Incoming};
/// # use tokio::io::{AsyncReadExt, AsyncWriteExt};
/// use tokio::{net::TcpListener, sync::oneshot};
/// use warmcore_runtime::spawn;
/// use warmcore_tenant::Tenant;
///
/// # async fn get(addr: std::net::SocketAddr) -> std::io::Result<String> {
/// #     let (mut client, mut answer) = (tokio::net::TcpStream::connect(addr).await?, String::new());
/// #     client.write_all(b"GET / HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n").await?;
/// #     client.read_to_string(&mut answer).await?;
/// #     Ok(answer.rsplit_once("\r\n\r\n").map(|(_head, body)| body.to_owned()).unwrap_or(answer))
/// # }
/// # let service = tower::service_fn(|_: Request<Incoming>| async {
/// #     Ok::<_, std::convert::Infallible>(Response::new("warm".to_owned()))
/// # });
/// # warmcore_runtime::Runtime::new()?.block_on(async {
/// let visitors = Tenant::builder().name("visitors").build();
/// let listener = TcpListener::bind("127.0.0.1:0").await?;
/// let addr = listener.local_addr()?;
/// let (stop, stopped) = oneshot::channel::<()>();
/// let server = warmcore_http::serve(listener, service)
///     .tenant_of(move |_peer| Some(visitors.clone()))
///     .with_graceful_shutdown(async { _ = stopped.await });
/// let server = spawn(server.run());
///
/// assert_eq!(get(addr).await?, "warm");
/// stop.send(()).expect("the server runs");
/// assert_eq!(server.await?.connections, 1);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "`run` serves"]
pub struct Server<L: Listener, S> {
    listener: L,
    service: S,
    tenant_of: Option<TenantOf<L::Peer>>,
    configure: Option<Configure>,
    shutdown: Pin<Box<dyn Future<Output = ()> + Send>>,
    deadline: Duration,
    bounds: Bounds,
}

/// Numbers of a server that has shut down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServeStats {
    /// Connections that the server accepted.
    pub connections: u64,
    /// Connections that were still open at the deadline and were closed.
    pub aborted: usize,
}

/// Serves HTTP/1 and HTTP/2 with an axum `Router` or any other tower service; each connection gets a clone.
///
/// A panic in a handler ends its connection, or with HTTP/2 its stream, and nothing else. A task that a handler starts
/// with [`spawn`](warmcore_runtime::spawn()) may run on any worker; a task of `tokio::spawn` stays on the handler's worker.
///
/// A client that sends no request is disconnected after [`head_timeout`](Server::head_timeout) or
/// [`idle_timeout`](Server::idle_timeout). A request is under way until its answer was handed to hyper. Meanwhile no
/// timeout applies, however long the handler takes; a layer of the crate `tower` can limit that time. Sending the rest
/// of the answer, and with HTTP/2 receiving the rest of the request's body, may take any time, but may not stand still
/// for longer than the idle timeout. With HTTP/1 a request's body that goes on after its answer counts as the head of
/// the next request.
///
/// An error of `accept` never ends the server. After an error of one connection it accepts again at once. After an
/// error that concerns the whole process, such as no free descriptors, it accepts again a tenth of a second later.
///
/// To shut down on Ctrl-C (tokio's feature `signal`):
/// `serve(listener, app).with_graceful_shutdown(async { _ = tokio::signal::ctrl_c().await })`.
///
/// ```
/// use hyper::body::Incoming;
/// use hyper::{Request, Response};
/// use std::convert::Infallible;
/// use warmcore_runtime::Runtime;
///
/// let service = tower::service_fn(|_: Request<Incoming>| async {
///     Ok::<_, Infallible>(Response::new("warm".to_owned()))
/// });
/// let runtime = Runtime::new()?;
/// runtime.block_on(async {
///     let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
///     let ended = warmcore_http::serve(listener, service).with_graceful_shutdown(async {}).run().await;
///     assert_eq!((ended.connections, ended.aborted), (0, 0));
///     std::io::Result::Ok(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn serve<L: Listener, S>(listener: L, service: S) -> Server<L, S> {
    Server {
        listener,
        service,
        tenant_of: None,
        configure: None,
        shutdown: Box::pin(pending()),
        deadline: TIMEOUT,
        bounds: Bounds { head: TIMEOUT, idle: TIMEOUT },
    }
}

impl<L: Listener, S> Server<L, S> {
    /// Sets the function that returns a connection's tenant. If the function returns `None`, it has none. If the
    /// function panics, the connection is dropped.
    pub fn tenant_of(self, of: impl Fn(&L::Peer) -> Option<Tenant> + Send + Sync + 'static) -> Self {
        Self { tenant_of: Some(Arc::new(of)), ..self }
    }

    /// Sets the time that a client has for a request's head, from the connection's begin or, with HTTP/1, from the
    /// first byte after an answer. Then the connection is closed. Default: 30 s; `Duration::MAX`: no limit.
    pub fn head_timeout(self, timeout: Duration) -> Self {
        Self { bounds: Bounds { head: timeout, ..self.bounds }, ..self }
    }

    /// Sets the time that a connection may be idle: from the end of an answer to the next byte, with HTTP/2 to the next
    /// request or byte of a body. Then the connection is closed; with HTTP/2 the client is first asked to close it, and
    /// has a second for that. Default: 30 s; `Duration::MAX`: no limit.
    pub fn idle_timeout(self, timeout: Duration) -> Self {
        Self { bounds: Bounds { idle: timeout, ..self.bounds }, ..self }
    }

    /// Sets a function that configures hyper's builder for each connection: limits, HTTP/1 or HTTP/2 only.
    pub fn configure(self, configure: impl Fn(&mut auto::Builder<Executor>) + Send + Sync + 'static) -> Self {
        Self { configure: Some(Arc::new(configure)), ..self }
    }

    /// Shuts the server down when `signal` is ready. Default: never.
    pub fn with_graceful_shutdown(self, signal: impl Future<Output = ()> + Send + 'static) -> Self {
        Self { shutdown: Box::pin(signal), ..self }
    }

    /// Sets the time that connections have to finish after the shutdown began. Default: 30 s; `Duration::MAX`: no limit.
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    /// Serves until the shutdown is complete, with tasks of the runtime where the future is first polled. Dropping the
    /// future stops accepting; connections go on. Panics if [`Listener::accept`] or [`Listener::try_accept`] does, or if
    /// there is no current runtime.
    pub async fn run<B>(self) -> ServeStats
    where
        S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
        S::Future: Send + 'static,
        S::Error: Into<BoxError>,
        B: Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<BoxError>,
    {
        let Self { listener, service, tenant_of, configure, shutdown, deadline, bounds } = self;
        let executor = Executor::current();
        let stage = watch::Sender::new(Stage::Serving);
        let connections = Arc::new(AtomicU64::new(0));
        let accept = |(llc, listener): (Option<LlcId>, L)| {
            let task = executor.handle.task_builder().name("accept");
            let task = match llc {
                Some(llc) => task.placement(Placement::Llc(llc)),
                None => task,
            };
            let front = Front::<L, S> {
                service: service.clone(),
                executor: executor.clone(),
                tenant_of: tenant_of.clone(),
                configure: configure.clone(),
                bounds,
                stage: stage.clone(),
                connections: connections.clone(),
                llc,
            };
            task.spawn(front.accept_all(listener))
        };
        let mut accepting = Accepting(listener.split().into_iter().map(accept).collect());
        drop(service);
        if let Either::Second(Some(panic)) = race(shutdown, accepting.ended()).await {
            resume_unwind(panic);
        }
        accepting.end().await;
        let aborted = finish(&stage, deadline).await;
        ServeStats { connections: connections.load(Relaxed), aborted }
    }
}

/// The accepting tasks. Dropping it aborts them.
struct Accepting(Vec<JoinHandle<()>>);

impl Accepting {
    /// Waits until an accepting task has ended, and returns its panic. `None`: the runtime shuts down. An accepting
    /// task ends for no other reason.
    async fn ended(&mut self) -> Option<Box<dyn std::any::Any + Send>> {
        let error = poll_fn(|cx| {
            let mut ended = self.0.iter_mut().map(|task| Pin::new(task).poll(cx));
            ended.find(Poll::is_ready).unwrap_or(Poll::Pending)
        });
        error.await.err().and_then(|error| error.try_into_panic().ok())
    }

    /// Aborts the tasks, and waits until their sockets are closed.
    async fn end(mut self) {
        self.0.iter().for_each(JoinHandle::abort);
        for task in std::mem::take(&mut self.0) {
            // A finished task may have been polled to its end in `ended`; it must not be polled again.
            if !task.is_finished() {
                _ = task.await;
            }
        }
    }
}

impl Drop for Accepting {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

/// What an accepting task needs to start a connection's task.
struct Front<L: Listener, S> {
    service: S,
    executor: Executor,
    tenant_of: Option<TenantOf<L::Peer>>,
    configure: Option<Configure>,
    bounds: Bounds,
    stage: watch::Sender<Stage>,
    connections: Arc<AtomicU64>,
    /// The last-level cache on which connections begin. `None`: any.
    llc: Option<LlcId>,
}

impl<L, S, B> Front<L, S>
where
    L: Listener,
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    /// Accepts until the task is aborted. No error ends the loop, and no client can end it.
    async fn accept_all(self, mut listener: L) {
        let mut since_yield = 0;
        loop {
            let mut next = Some(listener.accept().await);
            while let Some(accepted) = next {
                match accepted {
                    Ok((socket, peer)) => self.begin(socket, peer),
                    Err(error) if is_of_one_connection(&error) => {
                        tracing::debug!(%error, "a connection failed before it was accepted");
                    }
                    Err(error) => {
                        tracing::warn!(%error, "can't accept; trying again soon");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                        break;
                    }
                }
                since_yield += 1;
                if since_yield == BATCH {
                    since_yield = 0;
                    yield_now().await;
                }
                next = listener.try_accept();
            }
        }
    }

    /// Starts a connection's task on the less loaded of two workers, which are of the last-level cache `llc` if there
    /// is one.
    fn begin(&self, socket: L::Socket, peer: L::Peer) {
        self.connections.fetch_add(1, Relaxed);
        // The closure calls user code: `tenant_of`, and the service's `clone`. If that panics, the connection is
        // dropped.
        let begun = catch_unwind(AssertUnwindSafe(|| {
            let executor = match self.tenant_of.as_ref().and_then(|of| of(&peer)) {
                Some(tenant) => self.executor.clone().tenant(&tenant),
                None => self.executor.clone(),
            };
            let task = match self.llc {
                Some(llc) => executor.task_builder().least_loaded_in(llc),
                None => executor.task_builder().least_loaded(),
            };
            let (service, configure, stage) =
                (self.service.clone(), self.configure.clone(), self.stage.subscribe());
            task.spawn(connection::<L, S, B>(socket, service, executor, configure, self.bounds, stage));
        }));
        if begun.is_err() {
            tracing::error!(
                "a connection was dropped: what chooses its tenant, or clones the service, panicked"
            );
        }
    }
}

impl<L: Listener, S> fmt::Debug for Server<L, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("deadline", &self.deadline)
            .field("bounds", &self.bounds)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Serving,
    /// Connections finish their request.
    Ending,
    /// Connections close at once.
    Cut,
}

/// Waits until all connections have ended. Returns how many were aborted at the deadline.
async fn finish(stage: &watch::Sender<Stage>, deadline: Duration) -> usize {
    stage.send_replace(Stage::Ending);
    if tokio::time::timeout(deadline, stage.closed()).await.is_ok() {
        return 0;
    }
    // A connection whose handler is in a long poll ends after that poll; this function does not wait for it.
    let left = stage.receiver_count();
    stage.send_replace(Stage::Cut);
    left
}

/// Which of two futures was ready first.
enum Either<A, B> {
    First(A),
    Second(B),
}

/// Waits for the first of two futures, and drops the other. If both are ready the first argument wins.
async fn race<A, B>(first: impl Future<Output = A>, second: impl Future<Output = B>) -> Either<A, B> {
    let (mut first, mut second) = (pin!(first), pin!(second));
    poll_fn(|cx| match first.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Either::First(output)),
        Poll::Pending => second.as_mut().poll(cx).map(Either::Second),
    })
    .await
}

async fn connection<L, S, B>(
    socket: L::Socket,
    service: S,
    executor: Executor,
    configure: Option<Configure>,
    bounds: Bounds,
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
    let quiet = Arc::new(Quiet::new(clock::now()));
    let io = match L::adopt(socket) {
        Ok(io) => TokioIo::new(Noticed::new(io, quiet.clone())),
        Err(error) => return tracing::warn!(%error, "no driver takes a connection"),
    };
    let mut builder = auto::Builder::new(executor);
    // hyper's own timeout for heads would cost a timer for each request.
    builder.http1().timer(TokioTimer::new()).header_read_timeout(None);
    builder.http2().timer(TokioTimer::new());
    if let Some(configure) = configure {
        configure(&mut builder);
    }
    let service = Counted { service: TowerToHyperService::new(service), quiet: quiet.clone() };
    let mut connection = pin!(builder.serve_connection_with_upgrades(io, service));
    // Unconstrained, so that the connection can't use up the budget of operations that the timer needs.
    let mut alarm = pin!(tokio::task::coop::unconstrained(Alarm::new(quiet, bounds)));
    let mut may_change = true;
    loop {
        let changes = async {
            match may_change {
                true => stage.changed().await.is_ok(),
                false => pending().await,
            }
        };
        // The alarm is polled last, because the connection's poll may move the alarm's time.
        match race(changes, race(connection.as_mut(), alarm.as_mut())).await {
            Either::First(has_changed) => {
                // False: the sender is gone, because the server's future was dropped.
                may_change = has_changed;
                match *stage.borrow_and_update() {
                    Stage::Serving => {}
                    Stage::Ending => connection.as_mut().graceful_shutdown(),
                    Stage::Cut => return,
                }
            }
            Either::Second(Either::First(ended)) => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection ended early");
                }
                return;
            }
            Either::Second(Either::Second(Ring::Close)) => {
                tracing::debug!("a connection without a request is asked to close");
                connection.as_mut().graceful_shutdown();
            }
            Either::Second(Either::Second(Ring::Cut)) => {
                return tracing::debug!("a connection without a request is closed");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bind;
    use warmcore_runtime::Runtime;

    #[test]
    fn the_bounds_and_the_deadline_are_30_s_if_nothing_is_said() {
        let runtime = Runtime::builder().worker_threads(1).build().unwrap();
        let listener = runtime.with_context(|| bind("127.0.0.1:0")).unwrap();
        let server = serve(listener, ());
        let half_a_minute = Duration::from_secs(30);
        assert_eq!(server.bounds, Bounds { head: half_a_minute, idle: half_a_minute });
        assert_eq!(server.deadline, half_a_minute);
    }
}
