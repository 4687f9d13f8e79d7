//! A server with three tenants under one budget. The tenant `hog` asks for more memory than the budget has, which does
//! not slow the other tenants.
//!
//! ```text
//! cargo run --release -p warmcore --example budget_server -- 127.0.0.1:8080
//!
//! curl 'localhost:8080/a/work?kb=256'              # 256 KiB, filled, with a checksum
//! curl 'localhost:8080/hog/work?kb=8192&ms=500'    # 8 MiB, held for half a second
//! curl localhost:8080/stats                        # what each account uses, and in which stocks it is
//! curl localhost:8080/hog/kill                     # ends its account and requests, and frees their memory
//! curl localhost:8080/hog/start
//!
//! wrk -t1 -c48 -d60 'http://localhost:8080/hog/work?kb=8192&ms=200' &
//! wrk -t1 -c8 -d10 --latency 'http://localhost:8080/a/work?kb=64'
//! ```
//!
//! The global allocator charges all memory of a request to its tenant. Before a request begins, it reserves the memory
//! that it needs. If that does not fit now, it waits at most 100 ms for other requests to finish, and then answers 503
//! with the name of the full account; if it can never fit, it answers 503 at once. `a` and `b` each have a guaranteed
//! part of the budget, which `hog` can't use; the three share the rest. Ctrl-C ends the server, which then prints that
//! all accounts are empty.

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::RETRY_AFTER;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, RwLock};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use warmcore::budget::process::{BudgetAlloc, within};
use warmcore::prelude::*;

#[global_allocator]
static ALLOC: BudgetAlloc<mimalloc::MiMalloc> = BudgetAlloc::new(mimalloc::MiMalloc);

const MIB: u64 = 1 << 20;

/// The limit of all tenants together.
pub const LIMIT: u64 = 160 * MIB;

/// Name, limit, guarantee. The limits add up to more than `LIMIT`; the guarantees do not.
const TENANTS: [(&str, u64, u64); 3] =
    [("a", 48 * MIB, 32 * MIB), ("b", 48 * MIB, 32 * MIB), ("hog", 128 * MIB, 0)];

/// How long a request waits at most for its charge.
const TIMEOUT: Duration = Duration::from_millis(100);

/// A request allocates its memory in pieces of this size, and yields to other tasks after each.
const PIECE: u64 = 64 << 10;

type Reply = Response<Full<Bytes>>;

struct Tenant {
    account: Account,
    /// Closed when the tenant is killed. Each request of the tenant has a receiver.
    life: watch::Sender<()>,
}

struct Server {
    root: Account,
    tenants: RwLock<BTreeMap<&'static str, Tenant>>,
}

impl Server {
    fn new() -> Self {
        let root = Account::root("server").limit(LIMIT).build();
        let server = Self { root, tenants: RwLock::default() };
        TENANTS.iter().for_each(|(name, ..)| server.start(name));
        server
    }

    fn start(&self, name: &'static str) {
        let (_, limit, guarantee) =
            *TENANTS.iter().find(|(known, ..)| *known == name).expect("it is in the list");
        self.tenants.write().unwrap().entry(name).or_insert_with(|| Tenant {
            account: self.root.child(name).limit(limit).guarantee(guarantee).build(),
            life: watch::Sender::new(()),
        });
    }

    /// Ends the tenant's requests, and returns when the last request has ended.
    async fn kill(&self, name: &str) {
        let tenant = self.tenants.write().unwrap().remove(name);
        if let Some(Tenant { account, life }) = tenant {
            drop(account);
            life.send_replace(());
            life.closed().await;
        }
    }

    /// The tenant's account, and a receiver that is notified when the tenant is killed.
    fn tenant(&self, name: &str) -> Option<(Account, watch::Receiver<()>)> {
        let tenants = self.tenants.read().unwrap();
        tenants.get(name).map(|tenant| (tenant.account.clone(), tenant.life.subscribe()))
    }

    async fn answer(&self, request: Request<Incoming>) -> Reply {
        let path = request.uri().path().trim_matches('/');
        let Some((name, act)) = path.split_once('/') else {
            return if path == "stats" { ok(self.stats()) } else { not_found("GET /stats, or /TENANT/work") };
        };
        let Some((name, ..)) = TENANTS.iter().find(|(known, ..)| *known == name) else {
            return not_found("no such tenant");
        };
        match act {
            "start" => self.start(name),
            "kill" => self.kill(name).await,
            "work" => return self.work(name, request.uri().query().unwrap_or("")).await,
            _ => return not_found("a tenant has work, kill and start"),
        }
        ok(format!("{act}: {name}\n"))
    }

    async fn work(&self, name: &str, query: &str) -> Reply {
        let Some((account, mut life)) = self.tenant(name) else {
            return unavailable(&format!("{name} is not running"), true);
        };
        let number = |key: &str| {
            query.split('&').find_map(|pair| pair.strip_prefix(key)?.strip_prefix('=')?.parse().ok())
        };
        let (kb, ms): (u64, u64) = (number("kb").unwrap_or(64), number("ms").unwrap_or(0).min(60_000));
        // All memory that this future allocates is charged to the tenant, including the reply's. Freeing it, on any
        // thread, gives the charge back.
        let task = within(&account, async {
            match work(&account, kb.saturating_mul(1024), Duration::from_millis(ms)).await {
                Ok(text) => ok(text),
                Err(over) => unavailable(&format!("{over}\n"), !over.exceeds_limit()),
            }
        });
        tokio::select! {
            reply = task => reply,
            _ = life.changed() => unavailable(&format!("{name} was killed\n"), true),
        }
    }

    fn stats(&self) -> String {
        let tenants = self.tenants.read().unwrap();
        tenants.values().map(|tenant| format!("{}\n", tenant.account.explain())).collect()
    }
}

/// Fills memory with numbers, holds it for `held`, and returns its size and a checksum of the numbers as text: the text
/// of [`expected`].
async fn work(account: &Account, bytes: u64, held: Duration) -> Result<String, OverBudget> {
    let mut reserved = match timeout(TIMEOUT, account.charge(bytes)).await {
        Ok(charge) => charge?,
        // The time is up. The charge is refused unless it fits now.
        Err(_) => account.try_hold(bytes)?,
    };
    let (mut pieces, mut from) = (Vec::new(), 0);
    while reserved.units() > 0 {
        // Gives a part of the reservation back, which the allocator then charges to the same account.
        let bytes = PIECE.min(reserved.units());
        reserved.shrink(bytes);
        let words = bytes / 8;
        pieces.push((from..from + words).map(word).collect::<Vec<u64>>());
        from += words;
        tokio::task::yield_now().await;
    }
    if !held.is_zero() {
        sleep(held).await;
    }
    let sum = pieces.iter().flatten().fold(0, |sum: u64, word| sum.rotate_left(1) ^ word);
    Ok(format!("{bytes} bytes {sum:016x}\n"))
}

fn word(n: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The answer to a request for `kb` KiB.
pub fn expected(kb: u64) -> String {
    let sum = (0..kb * 128).map(word).fold(0, |sum: u64, word| sum.rotate_left(1) ^ word);
    format!("{} bytes {sum:016x}\n", kb * 1024)
}

fn reply(status: StatusCode, text: impl Into<Bytes>) -> Reply {
    let mut reply = Response::new(Full::new(text.into()));
    *reply.status_mut() = status;
    reply
}

fn ok(text: String) -> Reply {
    reply(StatusCode::OK, text)
}

fn not_found(text: &'static str) -> Reply {
    reply(StatusCode::NOT_FOUND, text)
}

fn unavailable(text: &str, may_retry: bool) -> Reply {
    let mut reply = reply(StatusCode::SERVICE_UNAVAILABLE, text.to_owned());
    if may_retry {
        reply.headers_mut().insert(RETRY_AFTER, 1.into());
    }
    reply
}

/// Serves one connection until it is closed, or until the server ends and the connection's last request is answered.
async fn connection(server: Arc<Server>, stream: TcpStream, mut end: watch::Receiver<()>) {
    let service = service_fn(|request| async { Ok::<_, Infallible>(server.answer(request).await) });
    let mut connection = pin!(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        // After an error, such as a client that disconnected, the connection is closed.
        _ = connection.as_mut() => return,
        _ = end.changed() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

/// The state of an account at the end.
#[derive(Debug)]
pub struct Ended {
    /// The account's name.
    pub name: Arc<str>,
    /// The exact usage: 0, unless memory was not freed.
    pub usage: u64,
    /// The highest usage.
    pub peak: u64,
}

/// Serves until `end` is ready and all requests are answered.
async fn serve(server: Arc<Server>, listener: TcpListener, end: impl Future) {
    let running = watch::Sender::new(());
    let mut end = pin!(end);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = &mut end => break,
        };
        match accepted {
            Ok((stream, _)) => {
                let _ = stream.set_nodelay(true);
                tokio::spawn(connection(server.clone(), stream, running.subscribe()));
            }
            // Possibly out of file descriptors: tries again after a pause.
            Err(_) => sleep(Duration::from_millis(10)).await,
        }
    }
    running.send_replace(());
    running.closed().await;
}

/// Serves on a new runtime until `end` is ready, and returns the state of each account at the end.
pub fn run(listener: std::net::TcpListener, end: impl Future) -> std::io::Result<Vec<Ended>> {
    listener.set_nonblocking(true)?;
    let server = Arc::new(Server::new());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let serving = async {
        serve(server.clone(), TcpListener::from_std(listener)?, end).await;
        Ok::<_, std::io::Error>(())
    };
    runtime.block_on(serving)?;
    // Memory that libraries keep per thread was charged to the tenant that first used it, and is freed when the thread
    // ends.
    drop(runtime);
    let Server { root, tenants } = Arc::into_inner(server).expect("connections are gone");
    let ended = |account: &Account| {
        let (name, peak) = (account.name(), account.peak());
        Ended { name, usage: account.exact_usage(), peak }
    };
    let tenants = tenants.into_inner().unwrap();
    let mut all: Vec<Ended> = tenants.values().map(|tenant| ended(&tenant.account)).collect();
    // Guarantees count as usage of the root until the accounts that have them are dropped.
    drop(tenants);
    all.push(ended(&root));
    Ok(all)
}

#[allow(dead_code)]
fn main() -> std::io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let listener = std::net::TcpListener::bind(address)?;
    println!("listening on http://{}", listener.local_addr()?);
    let ended = run(listener, async { tokio::signal::ctrl_c().await })?;
    for Ended { name, usage, peak } in &ended {
        println!("{name}: {usage} bytes in use at the end, {peak} at most");
    }
    assert!(ended.iter().all(|account| account.usage == 0), "an account is not empty");
    Ok(())
}
