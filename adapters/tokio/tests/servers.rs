//! Servers that are written for tokio: axum's `serve` with `ConnectInfo`, over TCP and over TLS by tokio-rustls. Each of
//! their connections is a task, and with Warmcore's scheduler its workers poll all of them.

use axum::Router;
use axum::extract::connect_info::{ConnectInfo, Connected};
use axum::routing::get;
use axum::serve::{IncomingStream, Listener};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::rustls::{self, pki_types::ServerName};
use tokio_rustls::{TlsAcceptor, TlsConnector, server::TlsStream};

/// Catches a hang.
const LIMIT: Duration = Duration::from_secs(60);

const CLIENTS: usize = 20;

const REQUESTS: usize = 10;

#[derive(Clone)]
struct Peer(SocketAddr);

impl Connected<IncomingStream<'_, TcpListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, TcpListener>) -> Self {
        Self(*stream.remote_addr())
    }
}

impl Connected<IncomingStream<'_, Tls>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Tls>) -> Self {
        Self(*stream.remote_addr())
    }
}

/// Returns the client's address, the scheduler that polls the connection's task, and the number of tasks in the drivers
/// of Warmcore's workers, which are those that `tokio::spawn` of the wrapped tokio has started.
async fn seen(ConnectInfo(Peer(peer)): ConnectInfo<Peer>) -> String {
    tokio::task::yield_now().await;
    let scheduler = if warmcore_runtime::worker_index().is_some() { "warmcore" } else { "tokio" };
    let workers = warmcore_runtime::Handle::try_current().map_or(Vec::new(), |it| it.metrics().workers);
    let foreign: usize = workers.iter().map(|worker| worker.foreign_tasks).sum();
    format!("{peer} {scheduler} {foreign}")
}

/// What `seen` returns to this client.
fn expected(client: SocketAddr) -> String {
    let is_off = std::env::var_os("WARMCORE").is_some_and(|value| value == "0");
    format!("{client} {} 0", if is_off { "tokio" } else { "warmcore" })
}

fn serve<L>(listener: L)
where
    L: Listener<Addr = SocketAddr>,
    for<'a> Peer: Connected<IncomingStream<'a, L>>,
{
    let app = Router::new().route("/", get(seen)).into_make_service_with_connect_info::<Peer>();
    tokio::spawn(async move { axum::serve(listener, app).await });
}

/// Sends requests over one connection, and checks each answer.
async fn ask(mut stream: impl AsyncRead + AsyncWrite + Unpin, address: SocketAddr) {
    let expected = expected(address);
    for _ in 0..REQUESTS {
        stream.write_all(b"GET / HTTP/1.1\r\nhost: test\r\n\r\n").await.unwrap();
        stream.flush().await.unwrap();
        let (mut answer, mut buffer) = (String::new(), [0; 1024]);
        while !answer.ends_with(&expected) {
            let length = stream.read(&mut buffer).await.unwrap();
            answer.push_str(std::str::from_utf8(&buffer[..length]).unwrap());
            assert!(length > 0 && answer.len() < 1024, "{expected:?} is not the end of {answer:?}");
        }
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer:?}");
    }
}

async fn all(mut clients: JoinSet<()>) {
    while let Some(client) =
        tokio::time::timeout(LIMIT, clients.join_next()).await.expect("no answer in a minute")
    {
        client.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn axum_serves_with_connect_info() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    serve(listener);
    let client = || async move {
        let stream = TcpStream::connect(address).await.unwrap();
        let own = stream.local_addr().unwrap();
        ask(stream, own).await;
    };
    all((0..CLIENTS).map(|_| client()).collect()).await;
}

/// Accepts connections, and does the handshake of each.
struct Tls {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl Listener for Tls {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, SocketAddr) {
        let (stream, peer) = Listener::accept(&mut self.listener).await;
        (self.acceptor.accept(stream).await.expect("the client knows the certificate"), peer)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn axum_serves_over_tls() {
    let own = rcgen::generate_simple_self_signed(["test".to_owned()]).unwrap();
    let key = own.signing_key.serialize_der().try_into().unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(own.cert.der().clone()).unwrap();
    let server = rustls::ServerConfig::builder().with_no_client_auth();
    let server = server.with_single_cert(vec![own.cert.der().clone()], key).unwrap();
    let client = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let connector = TlsConnector::from(Arc::new(client));

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    serve(Tls { listener, acceptor: TlsAcceptor::from(Arc::new(server)) });
    let client = |connector: TlsConnector| async move {
        let stream = TcpStream::connect(address).await.unwrap();
        let own = stream.local_addr().unwrap();
        let name = ServerName::try_from("test").unwrap();
        ask(connector.connect(name, stream).await.unwrap(), own).await;
    };
    all((0..CLIENTS).map(|_| client(connector.clone())).collect()).await;
}
