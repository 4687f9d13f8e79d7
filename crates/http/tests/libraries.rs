//! Hyper, axum and tower on this runtime, and this crate, each with a real client.
//!
//! Server and client are in one runtime with two workers, and talk over sockets of the loopback device, on up to 16
//! connections. The assertions follow hyper's and axum's documentation.

#[path = "../../runtime/tests/limit/mod.rs"]
mod limit;

use axum::Router;
use axum::extract::Path;
use axum::routing::get;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use limit::as_task;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{Notify, oneshot};
use tower::ServiceExt;
use warmcore_http as http;
use warmcore_http::{Executor, ServeStats};
use warmcore_runtime::{Handle, JoinHandle, spawn, yield_now};
use warmcore_tenant::Tenant;

/// A time limit that is not reached.
const LONG: Duration = Duration::from_secs(3600);

const SHORT: Duration = Duration::from_millis(20);

type Pool = Client<HttpConnector, Empty<Bytes>>;

/// A client with a pool of connections, each of which is a task of this runtime.
fn pool() -> Pool {
    Client::builder(Executor::current()).build_http()
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    (listener, at)
}

async fn fetch(client: &Pool, at: SocketAddr, path: &str) -> (StatusCode, String) {
    let answer = client.get(format!("http://{at}{path}").parse().unwrap()).await.unwrap();
    let status = answer.status();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

/// An application with handlers that answer, fail, panic and wait.
fn app() -> Router {
    Router::new()
        .route("/hello/{name}", get(|Path(name): Path<String>| async move { format!("hello {name}") }))
        .route(
            "/later",
            get(|| async {
                tokio::time::sleep(SHORT).await;
                spawn(async { "later" }).await.unwrap()
            }),
        )
        .route("/panic", get(|| async { panic!("cold") as &'static str }))
}

/// Serves until the returned sender is used.
fn serve(
    listener: TcpListener,
    app: Router,
    deadline: Duration,
) -> (JoinHandle<ServeStats>, oneshot::Sender<()>) {
    let (end, ends) = oneshot::channel();
    let until = async move { _ = ends.await };
    let server = spawn(http::serve(listener, app).with_graceful_shutdown(until).deadline(deadline).run());
    (server, end)
}

#[test]
fn hyper_serves_and_asks_on_tasks_of_ours() {
    as_task(2, async {
        let (listener, at) = listen().await;
        let answer = |request: Request<Incoming>| async move {
            let body = request.into_body().collect().await.unwrap().to_bytes();
            Ok::<_, Infallible>(Response::new(Full::new(body)))
        };
        let server = spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let service = hyper::service::service_fn(answer);
            let connection = hyper::server::conn::http1::Builder::new();
            connection.serve_connection(TokioIo::new(stream), service).await
        });
        let stream = TokioIo::new(TcpStream::connect(at).await.unwrap());
        let (mut say, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
        let client = spawn(connection);
        for i in 0..100 {
            let request = Request::post("/").body(Full::new(Bytes::from(format!("{i}")))).unwrap();
            let answer = say.send_request(request).await.unwrap();
            assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), format!("{i}"));
            say.ready().await.unwrap();
        }
        drop(say);
        client.await.unwrap().unwrap();
        server.await.unwrap().unwrap();
    });
}

#[test]
fn axum_serves_by_itself_and_its_connections_are_tokios() {
    as_task(2, async {
        let (listener, at) = listen().await;
        let (end, ends) = oneshot::channel::<()>();
        let count = || Handle::current().metrics().workers.iter().map(|w| w.foreign_tasks).sum::<usize>();
        let counted = Arc::new(AtomicUsize::new(0));
        let seen = counted.clone();
        let app = app().route("/count", get(move || async move { seen.store(count(), SeqCst) }));
        let server = axum::serve(listener, app).with_graceful_shutdown(async move { _ = ends.await });
        let server = spawn(async move { server.await });
        let client = pool();
        for i in 0..20 {
            let answer = fetch(&client, at, &format!("/hello/{i}")).await;
            assert_eq!(answer, (StatusCode::OK, format!("hello {i}")));
        }
        assert_eq!(fetch(&client, at, "/later").await.1, "later");
        fetch(&client, at, "/count").await;
        assert!(counted.load(SeqCst) > 0, "axum spawns connections by tokio::spawn");
        drop(client);
        end.send(()).unwrap();
        server.await.unwrap().unwrap();
    });
}

#[test]
fn our_serve_spawns_connections_here_and_none_on_tokio() {
    as_task(2, async {
        let (listener, at) = listen().await;
        let foreign = Arc::new(AtomicUsize::new(usize::MAX));
        let seen = foreign.clone();
        let count = || Handle::current().metrics().workers.iter().map(|w| w.foreign_tasks).sum::<usize>();
        let app = app().route("/count", get(move || async move { seen.store(count(), SeqCst) }));
        let (server, end) = serve(listener, app, LONG);
        let clients: Vec<_> = (0..16)
            .map(|task| {
                spawn(async move {
                    let client = pool();
                    for i in 0..20 {
                        let answer = fetch(&client, at, &format!("/hello/{task}-{i}")).await;
                        assert_eq!(answer, (StatusCode::OK, format!("hello {task}-{i}")));
                    }
                    fetch(&client, at, "/count").await;
                    fetch(&client, at, "/later").await.1
                })
            })
            .collect();
        for client in clients {
            assert_eq!(client.await.unwrap(), "later");
        }
        assert_eq!(foreign.load(SeqCst), 0);
        end.send(()).unwrap();
        let ended = server.await.unwrap();
        assert_eq!(ended.aborted, 0);
        assert!(ended.connections >= 16);
    });
}

#[test]
fn connections_begin_on_every_worker() {
    as_task(2, async {
        let (listener, at) = listen().await;
        let app = Router::new().route("/", get(|| async { format!("{:?}", std::thread::current().id()) }));
        let (server, end) = serve(listener, app, LONG);
        // All connections stay open. Otherwise the worker of each new connection would have no tasks again.
        let mut open = Vec::new();
        let mut threads = std::collections::BTreeSet::new();
        for _ in 0..16 {
            let mut stream = TcpStream::connect(at).await.unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\nhost: here\r\n\r\n").await.unwrap();
            let mut answer = Vec::new();
            while !answer.ends_with(b")") {
                answer.push(stream.read_u8().await.unwrap());
            }
            let answer = String::from_utf8(answer).unwrap();
            threads.insert(answer.rsplit("\r\n").next().unwrap().to_owned());
            open.push(stream);
        }
        assert!(threads.len() >= 2, "{threads:?}");
        drop(open);
        end.send(()).unwrap();
        let ended = server.await.unwrap();
        assert_eq!((ended.connections, ended.aborted), (16, 0));
    });
}

#[test]
fn tower_services_in_layers_are_served() {
    as_task(2, async {
        let (listener, at) = listen().await;
        let calls = Arc::new(AtomicU64::new(0));
        let counted = calls.clone();
        let service = tower::service_fn(|request: Request<Incoming>| async move {
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(request.uri().path().to_owned()))))
        });
        let service = service
            .map_request(move |request| {
                counted.fetch_add(1, SeqCst);
                request
            })
            .map_response(|answer: Response<Full<Bytes>>| {
                let (mut parts, body) = answer.into_parts();
                parts.status = StatusCode::ACCEPTED;
                Response::from_parts(parts, body)
            });
        let (end, ends) = oneshot::channel::<()>();
        let server =
            spawn(http::serve(listener, service).with_graceful_shutdown(async move { _ = ends.await }).run());
        let client = pool();
        assert_eq!(fetch(&client, at, "/warm").await, (StatusCode::ACCEPTED, "/warm".to_owned()));
        drop(client);
        end.send(()).unwrap();
        assert_eq!(server.await.unwrap().connections, 1);
        assert_eq!(calls.load(SeqCst), 1);
    });
}

#[test]
fn http2_streams_are_tasks_of_ours_with_the_connections_tenant() {
    as_task(2, async {
        let (listener, at) = listen().await;
        let tenant = Tenant::builder().name("orders").build();
        let whose = tenant.clone();
        let server = spawn(http::serve(listener, app()).tenant_of(move |_| Some(whose.clone())).run());
        let client: Pool = Client::builder(Executor::current().tenant(&tenant)).http2_only(true).build_http();
        let streams: Vec<_> = (0..16)
            .map(|i| {
                let client = client.clone();
                spawn(async move { fetch(&client, at, &format!("/hello/{i}")).await.1 })
            })
            .collect();
        for (i, stream) in streams.into_iter().enumerate() {
            assert_eq!(stream.await.unwrap(), format!("hello {i}"));
        }
        let foreign = Handle::current().metrics().workers.iter().map(|w| w.foreign_tasks).sum::<usize>();
        assert_eq!(foreign, 0);
        server.abort();
        assert!(server.await.unwrap_err().is_cancelled());
    });
}

#[test]
fn unix_sockets_are_served() {
    as_task(2, async {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let (end, ends) = oneshot::channel::<()>();
        let server =
            spawn(http::serve(listener, app()).with_graceful_shutdown(async move { _ = ends.await }).run());
        let stream = TokioIo::new(UnixStream::connect(&path).await.unwrap());
        let (mut say, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
        let client = spawn(connection);
        let request = Request::get("/hello/you").header("host", "here").body(Empty::<Bytes>::new()).unwrap();
        let answer = say.send_request(request).await.unwrap().into_body().collect().await.unwrap();
        assert_eq!(answer.to_bytes(), "hello you");
        drop(say);
        client.await.unwrap().unwrap();
        end.send(()).unwrap();
        assert_eq!(server.await.unwrap().connections, 1);
    });
}

#[test]
fn a_connection_is_its_tenants() {
    as_task(2, async {
        let (listener, at) = listen().await;
        let tenants = ["even", "odd"].map(|name| Tenant::builder().name(name).build());
        let given = Arc::new(Mutex::new(Vec::new()));
        let (gives, of) = (given.clone(), tenants.clone());
        let tenant_of = move |peer: &SocketAddr| {
            let tenant = of[usize::from(peer.port() % 2)].clone();
            gives.lock().unwrap().push((peer.port(), tenant.name().to_owned()));
            Some(tenant)
        };
        let (end, ends) = oneshot::channel::<()>();
        let server = http::serve(listener, app())
            .tenant_of(tenant_of)
            .with_graceful_shutdown(async move { _ = ends.await });
        let server = spawn(server.run());
        for _ in 0..8 {
            assert_eq!(fetch(&pool(), at, "/hello/you").await.1, "hello you");
        }
        end.send(()).unwrap();
        assert_eq!(server.await.unwrap().connections, 8);
        let given = given.lock().unwrap();
        assert_eq!(given.len(), 8);
        assert!(given.iter().all(|(port, name)| name == tenants[usize::from(port % 2)].name()));
        // A thread that polled a tenant's task counts as a user of the tenant.
        let used = given.iter().map(|(port, _)| &tenants[usize::from(port % 2)]);
        assert!({ used }.all(|tenant| tenant.stats().users > 0), "{tenants:?}");
    });
}

#[test]
fn a_handler_that_panics_costs_its_connection_only() {
    as_task(2, async {
        let (listener, at) = listen().await;
        let (server, end) = serve(listener, app(), LONG);
        let other = pool();
        assert_eq!(fetch(&other, at, "/hello/before").await.1, "hello before");
        for _ in 0..5 {
            let lost = pool().get(format!("http://{at}/panic").parse().unwrap()).await;
            assert!(lost.is_err(), "its connection is gone");
        }
        // A second connection, open all the time.
        assert_eq!(fetch(&other, at, "/hello/after").await.1, "hello after");
        drop(other);
        end.send(()).unwrap();
        let ended = server.await.unwrap();
        assert_eq!((ended.connections, ended.aborted), (6, 0));
    });
}

#[test]
fn a_handler_that_panics_costs_its_http2_stream_only() {
    as_task(2, async {
        let (listener, at) = listen().await;
        let (server, end) = serve(listener, app(), LONG);
        let client: Pool = Client::builder(Executor::current()).http2_only(true).build_http();
        assert_eq!(fetch(&client, at, "/hello/before").await.1, "hello before");
        assert!(client.get(format!("http://{at}/panic").parse().unwrap()).await.is_err());
        assert_eq!(fetch(&client, at, "/hello/after").await.1, "hello after");
        drop(client);
        end.send(()).unwrap();
        assert_eq!(server.await.unwrap().connections, 1, "the same connection all the time");
    });
}

/// A handler that waits until the test lets it go on.
fn gated() -> (Router, Arc<Notify>, Arc<Notify>) {
    let (arrived, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (tells, waits) = (arrived.clone(), go.clone());
    let handler = move || async move {
        tells.notify_one();
        waits.notified().await;
        "done"
    };
    (app().route("/gated", get(handler)), arrived, go)
}

#[test]
fn shutting_down_lets_a_request_finish_and_closes_idle_connections() {
    as_task(2, async {
        let (listener, at) = listen().await;
        let (app, arrived, go) = gated();
        let (server, end) = serve(listener, app, LONG);
        let mut idle = TcpStream::connect(at).await.unwrap();
        idle.write_all(b"GET /hello/you HTTP/1.1\r\nhost: here\r\n\r\n").await.unwrap();
        let mut buffer = vec![0; 1024];
        assert!(idle.read(&mut buffer).await.unwrap() > 0);
        let busy = spawn(async move { fetch(&pool(), at, "/gated").await });
        arrived.notified().await;
        end.send(()).unwrap();
        // The idle connection is closed.
        while idle.read(&mut buffer).await.unwrap_or(0) > 0 {}
        // The server accepts no more: a connection is refused, or gets no answer.
        assert!(!server.is_finished());
        assert!(!busy.is_finished());
        go.notify_one();
        assert_eq!(busy.await.unwrap(), (StatusCode::OK, "done".to_owned()));
        let ended = server.await.unwrap();
        assert_eq!((ended.connections, ended.aborted), (2, 0));
        assert!(TcpStream::connect(at).await.is_err(), "the listener is closed");
    });
}

#[test]
fn what_is_busy_at_the_deadline_is_cut() {
    as_task(2, async {
        struct Gone(Arc<AtomicBool>);
        impl Drop for Gone {
            fn drop(&mut self) {
                self.0.store(true, SeqCst);
            }
        }
        let (listener, at) = listen().await;
        let (arrived, is_gone) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
        let (tells, gone) = (arrived.clone(), is_gone.clone());
        let handler = move || async move {
            let _gone = Gone(gone);
            tells.notify_one();
            std::future::pending::<&'static str>().await
        };
        let (server, end) = serve(listener, app().route("/stuck", get(handler)), SHORT);
        let busy = spawn(async move { pool().get(format!("http://{at}/stuck").parse().unwrap()).await });
        arrived.notified().await;
        end.send(()).unwrap();
        let ended = server.await.unwrap();
        assert_eq!((ended.connections, ended.aborted), (1, 1));
        assert!(busy.await.unwrap().is_err(), "the client hears that nothing comes");
        while !is_gone.load(SeqCst) {
            yield_now().await;
        }
    });
}

#[test]
fn dropping_the_server_leaves_its_connections_be() {
    as_task(2, async {
        let (listener, at) = listen().await;
        let (app, arrived, go) = gated();
        let (server, _end) = serve(listener, app, LONG);
        let busy = spawn(async move { fetch(&pool(), at, "/gated").await });
        arrived.notified().await;
        server.abort();
        assert!(server.await.unwrap_err().is_cancelled());
        go.notify_one();
        assert_eq!(busy.await.unwrap().1, "done");
    });
}

#[test]
fn configure_sets_up_the_protocol() {
    as_task(2, async {
        let (listener, at) = listen().await;
        let server = http::serve(listener, app()).configure(|builder| _ = builder.http1().keep_alive(false));
        let server = spawn(server.run());
        let mut stream = TcpStream::connect(at).await.unwrap();
        stream.write_all(b"GET /hello/you HTTP/1.1\r\nhost: here\r\n\r\n").await.unwrap();
        // Up to the end of the connection, which comes after one answer.
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("hello you"), "{answer}");
        server.abort();
    });
}

#[test]
fn an_upgraded_connection_speaks_on() {
    as_task(2, async {
        let (listener, at) = listen().await;
        let service = tower::service_fn(|request: Request<Incoming>| async move {
            drop(spawn(async move {
                let mut stream = TokioIo::new(hyper::upgrade::on(request).await.unwrap());
                let mut word = [0; 4];
                while stream.read_exact(&mut word).await.is_ok() {
                    stream.write_all(&word).await.unwrap();
                }
            }));
            let answer = Response::builder().status(StatusCode::SWITCHING_PROTOCOLS);
            answer.header("connection", "upgrade").header("upgrade", "echo").body(Empty::<Bytes>::new())
        });
        let server = spawn(http::serve(listener, service).run());
        let mut stream = TcpStream::connect(at).await.unwrap();
        let head = b"GET / HTTP/1.1\r\nhost: here\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
        stream.write_all(head).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            answer.push(stream.read_u8().await.unwrap());
        }
        assert!(answer.starts_with(b"HTTP/1.1 101"));
        for _ in 0..10 {
            stream.write_all(b"warm").await.unwrap();
            let mut word = [0; 4];
            stream.read_exact(&mut word).await.unwrap();
            assert_eq!(&word, b"warm");
        }
        server.abort();
    });
}
