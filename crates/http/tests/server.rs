//! `http::serve` with clients that are slow, silent or many, over real sockets.
//!
//! In most tests the server's timeouts, called bounds, are a tenth of a second, and there are two workers. If the
//! server does not keep a bound, the test hangs; no test measures a time.

#[path = "../../runtime/tests/limit/mod.rs"]
mod limit;

use axum::Router;
use axum::routing::{get, post};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Body, Bytes, Frame};
use hyper_util::client::legacy::Client;
use limit::{as_task, ends, with_workers};
use std::collections::{BTreeSet, VecDeque};
use std::convert::Infallible;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream as StdStream};
use std::pin::Pin;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use warmcore_http as http;
use warmcore_http::{Executor, Listener, PerLlc};
use warmcore_runtime::{Handle, Runtime, spawn, yield_now};
use warmcore_topo::{Llc, Topology};
use warmcore_types::LlcId;

/// A bound that the clients exceed.
const SHORT: Duration = Duration::from_millis(100);

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// An empty frame of settings, the first frame of each HTTP/2 client.
const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];

/// A ping frame of HTTP/2.
const PING: &[u8] = &[0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: here\r\n\r\n";

fn app() -> Router {
    Router::new().route("/", get(|| async { "warm" })).route(
        "/slow",
        get(|| async {
            tokio::time::sleep(5 * SHORT).await;
            "slow"
        }),
    )
}

async fn serve(head: Duration, idle: Duration) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    spawn(http::serve(listener, app()).head_timeout(head).idle_timeout(idle).run());
    at
}

/// Reads until the server closes the connection.
async fn read_to_the_end(stream: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    // If the server did not read all bytes that the client sent, the kernel reports a reset, which is an end too.
    let _ = stream.read_to_end(&mut all).await;
    all
}

/// Reads an HTTP/1 answer with this body.
async fn read_answer(stream: &mut TcpStream, body: &str) {
    let mut answer = Vec::new();
    while !answer.ends_with(body.as_bytes()) {
        answer.push(stream.read_u8().await.expect("an answer"));
    }
    assert!(answer.starts_with(b"HTTP/1.1 200 OK"));
}

#[test]
fn a_client_that_sends_no_request_is_closed_whatever_it_sends() {
    as_task(2, async {
        let at = serve(SHORT, Duration::MAX).await;
        let preface_and_settings = [PREFACE, SETTINGS].concat();
        let beginnings: [&[u8]; 6] =
            [b"", b"P", PREFACE, &preface_and_settings, b"GET / HTTP/1.1\r\nhost:", b"G"];
        let clients: Vec<_> = beginnings
            .iter()
            .map(|beginning| {
                let beginning = beginning.to_vec();
                spawn(async move {
                    let mut stream = TcpStream::connect(at).await.unwrap();
                    stream.write_all(&beginning).await.unwrap();
                    read_to_the_end(&mut stream).await;
                })
            })
            .collect();
        for client in clients {
            client.await.unwrap();
        }
    });
}

#[test]
fn a_head_that_comes_byte_by_byte_is_cut() {
    as_task(2, async {
        let at = serve(SHORT, Duration::MAX).await;
        let mut stream = TcpStream::connect(at).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
        // Endless, unless the server closes the connection.
        while stream.write_all(b"x: y\r\n").await.is_ok() {
            tokio::time::sleep(SHORT / 20).await;
        }
    });
}

#[test]
fn a_connection_that_idles_is_closed_with_http1_and_http2() {
    as_task(2, async {
        let at = serve(Duration::MAX, SHORT).await;
        let mut stream = TcpStream::connect(at).await.unwrap();
        stream.write_all(REQUEST).await.unwrap();
        read_answer(&mut stream, "warm").await;
        assert!(read_to_the_end(&mut stream).await.is_empty());

        // A request with its answer, then pings.
        let (mut send, connection) = {
            let stream = hyper_util::rt::TokioIo::new(TcpStream::connect(at).await.unwrap());
            let builder = hyper::client::conn::http2::Builder::new(Executor::current());
            builder.handshake::<_, Empty<Bytes>>(stream).await.unwrap()
        };
        let connection = spawn(connection);
        let request = hyper::Request::get(format!("http://{at}/")).body(Empty::new()).unwrap();
        let answer = send.send_request(request).await.unwrap().into_body().collect().await.unwrap();
        assert_eq!(answer.to_bytes(), "warm");
        // `send` is kept, so that only the server can end the connection.
        let _ = connection.await.unwrap();
        assert!(send.is_closed());
    });
}

/// A body of 4 MiB.
const BIG: usize = 4 << 20;

/// Bytes read or written at a time, and the pause after them: a body of [`BIG`] bytes takes 9 s, longer than the idle
/// bound of each test plus one second.
const PIECE: usize = 16 << 10;
const PAUSE: Duration = Duration::from_millis(36);

/// A body of [`BIG`] bytes that is sent piece by piece.
struct Slow {
    left: usize,
    pause: Pin<Box<tokio::time::Sleep>>,
}

impl Body for Slow {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        std::task::ready!(self.pause.as_mut().poll(cx));
        self.left -= PIECE;
        self.pause.set(tokio::time::sleep(PAUSE));
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[7; PIECE])))))
    }
}

/// The answer's body is one piece, which hyper takes at once. The handler answers before the request's body has
/// arrived; another task reads that body.
#[test]
fn an_answer_that_is_read_slowly_and_a_request_that_is_answered_early_are_not_cut_with_http2() {
    // Longer than either side may be delayed on a busy machine.
    const IDLE: Duration = Duration::from_secs(5);
    as_task(2, async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        let upload = |body: axum::body::Body| async move {
            spawn(async move { tell.send(body.collect().await.map(|all| all.to_bytes().len())).unwrap() });
            "early"
        };
        let app = Router::new().route("/big", get(|| async { vec![7; BIG] })).route("/early", post(upload));
        spawn(http::serve(listener, app).idle_timeout(IDLE).run());
        let download = spawn(async move {
            let stream = hyper_util::rt::TokioIo::new(TcpStream::connect(at).await.unwrap());
            let mut builder = hyper::client::conn::http2::Builder::new(Executor::current());
            builder
                .initial_stream_window_size(4 * PIECE as u32)
                .initial_connection_window_size(4 * PIECE as u32);
            let (mut send, connection) = builder.handshake::<_, Empty<Bytes>>(stream).await.unwrap();
            spawn(connection);
            let request = hyper::Request::get(format!("http://{at}/big")).body(Empty::new()).unwrap();
            let mut answer = send.send_request(request).await.unwrap().into_body();
            let mut read = 0;
            while let Some(frame) = answer.frame().await {
                read += frame
                    .map(|frame| frame.into_data().unwrap().len())
                    .unwrap_or_else(|error| panic!("after {read} bytes: {error}"));
                tokio::time::sleep(PAUSE).await;
            }
            read
        });
        let stream = hyper_util::rt::TokioIo::new(TcpStream::connect(at).await.unwrap());
        let builder = hyper::client::conn::http2::Builder::new(Executor::current());
        let (mut send, connection) = builder.handshake::<_, Slow>(stream).await.unwrap();
        spawn(connection);
        let body = Slow { left: BIG, pause: Box::pin(tokio::time::sleep(PAUSE)) };
        let request = hyper::Request::post(format!("http://{at}/early")).body(body).unwrap();
        let answer = send.send_request(request).await.unwrap().into_body().collect().await.unwrap();
        assert_eq!(answer.to_bytes(), "early");
        assert_eq!(told.recv().await.unwrap().expect("all that was sent"), BIG);
        assert_eq!(download.await.unwrap(), BIG);
    });
}

#[test]
fn a_client_of_http2_that_reads_nothing_of_its_answer_is_cut() {
    as_task(2, async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let app = Router::new().route("/big", get(|| async { vec![7; BIG] }));
        spawn(http::serve(listener, app).idle_timeout(SHORT).run());
        let stream = hyper_util::rt::TokioIo::new(TcpStream::connect(at).await.unwrap());
        let mut builder = hyper::client::conn::http2::Builder::new(Executor::current());
        builder.initial_stream_window_size(PIECE as u32);
        let (mut send, connection) = builder.handshake::<_, Empty<Bytes>>(stream).await.unwrap();
        let connection = spawn(connection);
        let request = hyper::Request::get(format!("http://{at}/big")).body(Empty::new()).unwrap();
        let unread = send.send_request(request).await.unwrap();
        // `send` and the answer are kept, so that only the server can end the connection.
        let _ = connection.await.unwrap();
        drop((send, unread));
    });
}

#[test]
fn pings_do_not_keep_a_connection_without_requests() {
    as_task(2, async {
        let at = serve(SHORT, SHORT).await;
        let mut stream = TcpStream::connect(at).await.unwrap();
        stream.write_all(&[PREFACE, SETTINGS].concat()).await.unwrap();
        let (mut read, mut write) = stream.into_split();
        let reads = spawn(async move {
            let mut all = Vec::new();
            let _ = read.read_to_end(&mut all).await;
        });
        while !reads.is_finished() && write.write_all(PING).await.is_ok() {
            tokio::time::sleep(SHORT / 20).await;
        }
        reads.await.unwrap();
    });
}

#[test]
fn a_request_under_way_is_not_cut_by_the_bounds() {
    as_task(2, async {
        // Each request takes five times the idle bound. There is no bound on heads, since it would disconnect a client
        // that begins late.
        let at = serve(Duration::MAX, SHORT).await;
        let slow = (0..4).map(|i| {
            spawn(async move {
                if i % 2 == 0 {
                    let mut stream = TcpStream::connect(at).await.unwrap();
                    stream.write_all(b"GET /slow HTTP/1.1\r\nhost: here\r\n\r\n").await.unwrap();
                    return read_answer(&mut stream, "slow").await;
                }
                let client: Client<_, Empty<Bytes>> =
                    Client::builder(Executor::current()).http2_only(true).build_http();
                let answer = client.get(format!("http://{at}/slow").parse().unwrap()).await.unwrap();
                assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "slow");
            })
        });
        for client in slow.collect::<Vec<_>>() {
            client.await.unwrap();
        }
    });
}

/// A listener that first returns the given errors, then the results of a real listener.
struct Scripted {
    errors: VecDeque<io::Error>,
    listener: TcpListener,
    /// Calls of `accept` and of `try_accept`.
    calls: Arc<[AtomicUsize; 2]>,
}

impl Scripted {
    fn new(listener: TcpListener, errors: impl IntoIterator<Item = i32>) -> (Self, Arc<[AtomicUsize; 2]>) {
        let calls = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
        let errors = errors.into_iter().map(io::Error::from_raw_os_error).collect();
        (Self { errors, listener, calls: calls.clone() }, calls)
    }
}

impl Listener for Scripted {
    type Socket = std::net::TcpStream;
    type Io = TcpStream;
    type Peer = SocketAddr;

    async fn accept(&mut self) -> io::Result<(Self::Socket, SocketAddr)> {
        if let Some(error) = self.errors.pop_front() {
            return Err(error);
        }
        let accepted = Listener::accept(&mut self.listener).await;
        self.calls[0].fetch_add(1, SeqCst);
        accepted
    }

    fn try_accept(&mut self) -> Option<io::Result<(Self::Socket, SocketAddr)>> {
        if let Some(error) = self.errors.pop_front() {
            return Some(Err(error));
        }
        self.calls[1].fetch_add(1, SeqCst);
        self.listener.try_accept()
    }

    fn adopt(socket: Self::Socket) -> io::Result<TcpStream> {
        <TcpListener as Listener>::adopt(socket)
    }
}

/// Opens a connection and sends a request, from a thread outside of any runtime.
fn ask(at: SocketAddr) -> String {
    let mut stream = StdStream::connect(at).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn no_error_of_accept_ends_the_server() {
    with_workers(2, |runtime| {
        let at = runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let at = listener.local_addr().unwrap();
            // A thousand errors that concern one connection, which would take 100 s if each caused a pause, and errors
            // that concern the process.
            let of_connections =
                [libc::ECONNABORTED, libc::EPROTO, libc::EPERM, libc::ENETDOWN, libc::EHOSTUNREACH];
            let many = of_connections.into_iter().cycle().take(1000);
            let of_the_process = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM, libc::EINVAL];
            let (listener, _) = Scripted::new(listener, many.chain(of_the_process));
            spawn(http::serve(listener, app()).run());
            at
        });
        assert!(ask(at).ends_with("warm"));
    });
}

#[test]
fn a_panic_of_what_chooses_the_tenant_costs_the_connection_only() {
    with_workers(2, |runtime| {
        let at = runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let at = listener.local_addr().unwrap();
            let calls = AtomicUsize::new(0);
            let tenant_of = move |_: &SocketAddr| match calls.fetch_add(1, SeqCst) {
                0 => panic!("the first"),
                _ => None,
            };
            spawn(http::serve(listener, app()).tenant_of(tenant_of).run());
            at
        });
        let mut stream = StdStream::connect(at).unwrap();
        let mut nothing = Vec::new();
        assert_eq!(stream.read_to_end(&mut nothing).unwrap_or(0), 0);
        assert!(ask(at).ends_with("warm"));
    });
}

#[test]
fn connections_that_wait_are_accepted_in_batches() {
    const MANY: usize = 96;
    with_workers(2, |runtime| {
        let (at, calls, waiting) = runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let at = listener.local_addr().unwrap();
            // The connections wait in the kernel until the server accepts them.
            let waiting: Vec<StdStream> = (0..MANY).map(|_| StdStream::connect(at).unwrap()).collect();
            let (listener, calls) = Scripted::new(listener, []);
            spawn(http::serve(listener, app()).run());
            (at, calls, waiting)
        });
        for mut stream in waiting {
            stream.write_all(REQUEST).unwrap();
            let mut answer = [0; 12];
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"HTTP/1.1 200");
        }
        let [waited, asked] = calls.each_ref().map(|calls| calls.load(SeqCst));
        assert!(waited <= MANY / 8 && asked >= MANY * 7 / 8, "waited {waited} times, asked {asked} times");
        assert!(ask(at).ends_with("warm"));
    });
}

/// This machine's topology, changed so that each core has a last-level cache.
fn llc_per_core() -> Topology {
    let mut machine = Topology::this_machine().unwrap();
    let mut sets: Vec<_> = machine.cores.iter().map(|core| core.cpus.clone()).collect();
    sets.sort_by_key(|cpus| cpus.iter().next());
    let llc = |(i, cpus)| Llc { id: LlcId(i), cpus, level: 3, size_kib: None };
    machine.llcs = (0..).zip(sets).map(llc).collect();
    for cpu in &mut machine.cpus {
        cpu.llc = machine.llcs.iter().find(|llc| llc.cpus.contains(cpu.id)).unwrap().id;
    }
    machine.check().unwrap();
    machine
}

/// A listener for each last-level cache, and how many connections each accepted.
struct Counting {
    listener: PerLlc,
    parts: Arc<Mutex<Vec<usize>>>,
    part: usize,
}

impl Listener for Counting {
    type Socket = std::net::TcpStream;
    type Io = TcpStream;
    type Peer = SocketAddr;

    async fn accept(&mut self) -> io::Result<(Self::Socket, SocketAddr)> {
        let accepted = self.listener.accept().await?;
        self.parts.lock().unwrap()[self.part] += 1;
        Ok(accepted)
    }

    fn try_accept(&mut self) -> Option<io::Result<(Self::Socket, SocketAddr)>> {
        let accepted = self.listener.try_accept()?;
        self.parts.lock().unwrap()[self.part] += 1;
        Some(accepted)
    }

    fn adopt(socket: Self::Socket) -> io::Result<TcpStream> {
        PerLlc::adopt(socket)
    }

    fn split(self) -> Vec<(Option<LlcId>, Self)> {
        let part = |(part, (llc, listener))| {
            self.parts.lock().unwrap().push(0);
            (llc, Self { listener, parts: self.parts.clone(), part })
        };
        self.listener.split().into_iter().enumerate().map(part).collect()
    }
}

/// The connections stay open, and a task counts for the worker on which it began, wherever it is polled.
#[test]
fn connections_begin_on_all_workers_evenly() {
    const MANY: usize = 64;
    ends(|| {
        // On a busy machine any poll may take long. With this threshold no poll counts as long.
        let long_poll = Duration::from_secs(3600);
        let runtime = Runtime::builder().worker_threads(2).long_poll_threshold(long_poll).build().unwrap();
        let handle = runtime.handle();
        let counts = runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let at = listener.local_addr().unwrap();
            spawn(http::serve(listener, app()).run());
            let _open: Vec<StdStream> = (0..MANY).map(|_| StdStream::connect(at).unwrap()).collect();
            // Two more tasks are the server and its accepting task.
            loop {
                let workers = handle.metrics().workers;
                let counts: Vec<usize> = workers.iter().map(|worker| worker.num_alive_tasks).collect();
                if counts.iter().sum::<usize>() == MANY + 2 {
                    return counts;
                }
                yield_now().await;
            }
        });
        let (most, least) = (counts.iter().max(), counts.iter().min());
        assert!(
            counts.len() == 2 && most.zip(least).is_some_and(|(most, least)| most - least <= 1),
            "{counts:?}"
        );
    });
}

#[test]
fn bind_gives_each_llc_a_socket_and_all_are_served() {
    const MANY: usize = 64;
    ends(|| {
        let runtime = Runtime::builder().topology(llc_per_core()).build().unwrap();
        runtime.block_on(async {
            let workers = Handle::current().metrics().workers;
            let llcs = workers.iter().map(|worker| worker.llc).collect::<BTreeSet<u32>>().len();
            let listener = http::bind("127.0.0.1:0").unwrap();
            assert_eq!(listener.sockets(), llcs);
            let at = listener.local_addr().unwrap();
            // As documented: with several sockets, another program of this user may bind the port too.
            let again = http::bind(at).map(drop).map_err(|error| error.kind());
            assert_eq!(again, if llcs > 1 { Ok(()) } else { Err(io::ErrorKind::AddrInUse) });
            let parts = Arc::new(Mutex::new(Vec::new()));
            let listener = Counting { listener, parts: parts.clone(), part: usize::MAX };
            let (end, ends) = oneshot::channel::<()>();
            let server = http::serve(listener, app()).with_graceful_shutdown(async move { _ = ends.await });
            let server = spawn(server.run());
            let asks: Vec<_> = (0..MANY).map(|_| tokio::task::spawn_blocking(move || ask(at))).collect();
            for answer in asks {
                assert!(answer.await.unwrap().ends_with("warm"));
            }
            end.send(()).unwrap();
            let ended = server.await.unwrap();
            assert_eq!((ended.connections, ended.aborted), (MANY as u64, 0));
            // By the kernel's hash, one of two sockets gets none of 64 connections once in 2^63 runs.
            let parts = parts.lock().unwrap().clone();
            let busy = parts.iter().filter(|accepted| **accepted > 0).count();
            assert_eq!((parts.len(), parts.iter().sum()), (llcs, MANY));
            assert!(busy >= llcs.min(2), "{parts:?}");
            // The port is free again.
            drop(TcpListener::bind(at).await.unwrap());
        });
    });
}

#[test]
fn where_workers_share_a_cache_bind_makes_one_socket_that_is_this_programs_alone() {
    with_workers(1, |runtime| {
        runtime.block_on(async {
            let listener = http::bind("127.0.0.1:0").unwrap();
            assert_eq!(listener.sockets(), 1);
            let at = listener.local_addr().unwrap();
            assert_eq!(http::bind(at).unwrap_err().kind(), io::ErrorKind::AddrInUse);
            spawn(http::serve(listener, app()).run());
            let answer = tokio::task::spawn_blocking(move || ask(at)).await.unwrap();
            assert!(answer.ends_with("warm"));
        });
    });
}

#[test]
fn a_server_whose_descriptors_ran_out_serves_again_when_some_are_free() {
    const VARIABLE: &str = "WARMCORE_TEST_FEW_DESCRIPTORS";
    const NAME: &str = "a_server_whose_descriptors_ran_out_serves_again_when_some_are_free";
    /// More connections than the server may have descriptors.
    const MANY: usize = 200;
    if std::env::var_os(VARIABLE).is_some() {
        let runtime = Runtime::builder().worker_threads(2).build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let limit = libc::rlimit { rlim_cur: 100, rlim_max: 100 };
            // SAFETY: the call only reads the struct.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
            println!("at {}", listener.local_addr().unwrap());
            http::serve(listener, app()).run().await;
        });
        return;
    }
    ends(|| {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", NAME, "--nocapture"]).env(VARIABLE, "1").stdout(Stdio::piped());
        let mut child = child.spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap()).lines();
        let at = said.map_while(Result::ok).find_map(|line| Some(line.split_once("at 127.")?.1.to_owned()));
        let at: SocketAddr = format!("127.{}", at.unwrap()).parse().unwrap();
        for _ in 0..2 {
            // The kernel accepts all connections. The server accepts as many as it has descriptors for.
            let mut all: Vec<StdStream> = (0..MANY).map(|_| StdStream::connect(at).unwrap()).collect();
            let first = &mut all[0];
            first.write_all(REQUEST).unwrap();
            let mut answer = [0; 12];
            first.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"HTTP/1.1 200");
            drop(all);
            assert!(ask(at).ends_with("warm"));
        }
        child.kill().unwrap();
        child.wait().unwrap();
    });
}
