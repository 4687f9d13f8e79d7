//! The example server under load. Requests of the tenant `hog` are refused, and the tenant is killed and started again.
//! The requests of the other tenants succeed, and at the end each account's usage is 0.
#![cfg(target_os = "linux")]

#[path = "../examples/budget_server.rs"]
mod budget_server;

use budget_server::{Ended, LIMIT, expected, run};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

/// Connections of each other tenant, and the requests of each connection.
const OTHERS: usize = 8;
const REQUESTS: u64 = 100;
/// Connections of the hog, which together ask for three times the limit.
const HOGS: usize = 60;
/// The largest allowed memory of this process that is not charged: the program's, the clients', and free memory that
/// the underlying allocator keeps.
const OVERHEAD_MAX: u64 = LIMIT;

struct Client(BufReader<TcpStream>);

impl Client {
    async fn new(server: SocketAddr) -> Self {
        Self(BufReader::new(TcpStream::connect(server).await.unwrap()))
    }

    /// Returns the status, whether the request may be tried again, and the text.
    async fn get(&mut self, path: &str) -> (u16, bool, String) {
        self.0.write_all(format!("GET {path} HTTP/1.1\r\nhost: test\r\n\r\n").as_bytes()).await.unwrap();
        let mut line = String::new();
        self.0.read_line(&mut line).await.unwrap();
        let status = line.split(' ').nth(1).unwrap_or_else(|| panic!("{path}: {line:?}")).parse().unwrap();
        let (mut length, mut may_retry) = (0, false);
        loop {
            line.clear();
            self.0.read_line(&mut line).await.unwrap();
            let Some((name, value)) = line.trim().split_once(": ") else { break };
            match name {
                "content-length" => length = value.parse().unwrap(),
                "retry-after" => may_retry = true,
                _ => (),
            }
        }
        let mut text = vec![0; length];
        self.0.read_exact(&mut text).await.unwrap();
        (status, may_retry, String::from_utf8(text).unwrap())
    }
}

/// Starts a server on new threads. It runs until the returned sender is used.
fn start() -> (SocketAddr, oneshot::Sender<()>, thread::JoinHandle<Vec<Ended>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (end, ended) = oneshot::channel::<()>();
    (address, end, thread::spawn(move || run(listener, ended).unwrap()))
}

async fn steady(server: SocketAddr, tenant: &'static str, from: u64) {
    let mut client = Client::new(server).await;
    for n in 0..REQUESTS {
        let kb = 1 + (from * 37 + n * 13) % 256;
        let (status, _, text) = client.get(&format!("/{tenant}/work?kb={kb}")).await;
        assert_eq!((status, text), (200, expected(kb)), "{tenant}, request {n}");
    }
}

#[derive(Default)]
struct Seen {
    right: AtomicU64,
    refused: AtomicU64,
    away: AtomicU64,
}

async fn flood(server: SocketAddr, is_over: Arc<AtomicBool>, seen: Arc<Seen>) {
    let mut client = Client::new(server).await;
    let right = expected(8192);
    while !is_over.load(Relaxed) {
        let (status, may_retry, text) = client.get("/hog/work?kb=8192&ms=200").await;
        match status {
            200 => {
                assert_eq!(text, right);
                seen.right.fetch_add(1, Relaxed);
            }
            503 if text.starts_with("hog was killed") || text.starts_with("hog is not running") => {
                seen.away.fetch_add(1, Relaxed);
                tokio::task::yield_now().await;
            }
            503 => {
                // The text names the full account.
                assert!(text.starts_with("hog") || text.starts_with("server"), "{text}");
                assert!(may_retry, "{text}");
                seen.refused.fetch_add(1, Relaxed);
            }
            _ => panic!("{status}: {text}"),
        }
    }
}

/// The largest resident memory that this process has had so far, in bytes.
fn resident_max() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hog_is_refused_and_killed_and_the_others_don_t_notice() {
    let (server, end, ended) = start();
    let (is_over, seen) = (Arc::new(AtomicBool::new(false)), Arc::new(Seen::default()));
    let hogs: Vec<_> =
        (0..HOGS).map(|_| tokio::spawn(flood(server, is_over.clone(), seen.clone()))).collect();
    let others: Vec<_> = (0..OTHERS as u64)
        .flat_map(|n| ["a", "b"].map(|tenant| tokio::spawn(steady(server, tenant, n))))
        .collect();
    // Kills and restarts the hog under load, each time after some of its requests were refused.
    let mut control = Client::new(server).await;
    for _ in 0..4 {
        let refused = seen.refused.load(Relaxed);
        while seen.refused.load(Relaxed) < refused + 20 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        let (status, _, text) = control.get("/stats").await;
        assert!(status == 200 && text.contains("hog: ") && text.contains("server: "), "{text}");
        assert_eq!(control.get("/hog/kill").await.0, 200);
        let (_, _, text) = control.get("/stats").await;
        assert!(!text.contains("hog: "), "{text}");
        assert_eq!(control.get("/hog/start").await.0, 200);
    }
    for other in others {
        other.await.unwrap();
    }
    // If no request of `hog` was answered between kills, waits until one is, now that the kills have ended.
    let answered = async {
        while seen.right.load(Relaxed) == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    let is_answered = tokio::time::timeout(std::time::Duration::from_secs(60), answered).await;
    is_over.store(true, Relaxed);
    is_answered.expect("the hog gets an answer once it is not killed any more");
    for hog in hogs {
        hog.await.unwrap();
    }
    let [right, refused, away] = [&seen.right, &seen.refused, &seen.away].map(|n| n.load(Relaxed));
    assert!(right > 0 && refused >= 80 && away > 0, "{right} right, {refused} refused, {away} killed");
    drop(control);
    end.send(()).unwrap();
    let ended = ended.join().unwrap();
    assert_eq!(ended.len(), 4);
    assert!(ended.iter().all(|account| account.usage == 0), "{ended:?}");
    let most = resident_max();
    assert!(most <= LIMIT + OVERHEAD_MAX, "{} MiB resident, {ended:?}", most >> 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_can_never_fit_is_refused_at_once() {
    let (server, end, ended) = start();
    let mut client = Client::new(server).await;
    let (status, may_retry, text) = client.get("/a/work?kb=100000000").await;
    assert_eq!((status, may_retry), (503, false), "{text}");
    assert!(text.contains("ask for less"), "{text}");
    assert_eq!(
        client.get("/a/work?kb=99999999999999999999").await.2,
        expected(64),
        "a value that is no number is ignored"
    );
    assert_eq!(client.get("/no-tenant/work").await.0, 404);
    assert_eq!(client.get("/a/work?kb=0").await.2, expected(0));
    // Open idle connections don't keep the server running.
    end.send(()).unwrap();
    assert!(ended.join().unwrap().iter().all(|account| account.usage == 0));
    drop(client);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_disconnect_leave_no_charge() {
    let (server, end, ended) = start();
    for n in 0..50 {
        let mut client = Client::new(server).await;
        client.0.write_all(b"GET /hog/work?kb=1024&ms=30000 HTTP/1.1\r\nhost: test\r\n\r\n").await.unwrap();
        if n % 2 == 0 {
            tokio::task::yield_now().await;
        }
        drop(client);
    }
    let mut client = Client::new(server).await;
    assert_eq!(client.get("/hog/kill").await.0, 200);
    end.send(()).unwrap();
    assert!(ended.join().unwrap().iter().all(|account| account.usage == 0));
}
