//! Mini-redis on Warmcore and on tokio: a program with two servers, which are loaded in turn.
//!
//! Both servers run `mini_redis::server::run`, unchanged, on different runtimes. A *round* is a second of load on each
//! server: a child process with 16 clients sets and gets values and checks every answer. Rates are compared within a
//! round. The clients and both servers share the CPUs.
//!
//! `mini-redis-moved 600` runs for ten minutes.

use mini_redis::{client, server};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

const CLIENTS: usize = 16;
const SLICE: Duration = Duration::from_secs(1);

type Answer<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The child process: reads a port from each line, loads the server at that port for a slice, and writes the number of
/// pairs of a set and a get, and how many of them were wrong.
fn load() -> Answer<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    for line in std::io::stdin().lines() {
        let port: u16 = line?.trim().parse()?;
        let (pairs, wrong) = runtime.block_on(async {
            let end = Instant::now() + SLICE;
            let tasks: Vec<_> = (0..CLIENTS).map(|i| tokio::spawn(set_and_get(port, i, end))).collect();
            let (mut pairs, mut wrong) = (0, 0);
            for task in tasks {
                let (p, w) = task.await??;
                (pairs, wrong) = (pairs + p, wrong + w);
            }
            Answer::Ok((pairs, wrong))
        })?;
        println!("{pairs} {wrong}");
        std::io::stdout().flush()?;
    }
    Ok(())
}

async fn set_and_get(port: u16, client: usize, end: Instant) -> Answer<(u64, u64)> {
    let mut connection = client::connect(("127.0.0.1", port)).await?;
    let (mut pairs, mut wrong, key) = (0, 0, format!("key{client}"));
    while Instant::now() < end {
        let value = format!("{client} {pairs}");
        connection.set(&key, value.clone().into()).await?;
        wrong += u64::from(connection.get(&key).await?.as_deref() != Some(value.as_bytes()));
        pairs += 1;
    }
    Ok((pairs, wrong))
}

fn listener() -> std::io::Result<(TcpListener, u16)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let port = listener.local_addr()?.port();
    Ok((listener, port))
}

/// Runs the server until `until` is ready.
async fn serve(listener: TcpListener, until: tokio::sync::oneshot::Receiver<()>) -> mini_redis::Result<()> {
    server::run(tokio::net::TcpListener::from_std(listener)?, until).await
}

fn slice(to: &mut ChildStdin, from: &mut impl BufRead, port: u16) -> Answer<(u64, u64)> {
    writeln!(to, "{port}")?;
    let mut line = String::new();
    from.read_line(&mut line)?;
    let (pairs, wrong) = line.trim().split_once(' ').ok_or("the load ended early")?;
    Ok((pairs.parse()?, wrong.parse()?))
}

fn main() -> Answer<()> {
    let seconds = match std::env::args().nth(1).as_deref() {
        Some("load") => return load(),
        Some(seconds) => seconds.parse()?,
        None => 20,
    };
    let ours = warmcore_runtime::Runtime::builder().build()?;
    let theirs = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let ((our_listener, our_port), (their_listener, their_port)) = (listener()?, listener()?);
    let (end_ours, until) = tokio::sync::oneshot::channel();
    let our_server = ours.spawn(serve(our_listener, until));
    let (end_theirs, until) = tokio::sync::oneshot::channel();
    let their_server = theirs.spawn(serve(their_listener, until));
    let mut child = Command::new(std::env::current_exe()?)
        .arg("load")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut to = child.stdin.take().ok_or("no pipe")?;
    let mut from = BufReader::new(child.stdout.take().ok_or::<&str>("no pipe")? as ChildStdout);
    let (mut rates, mut ratios, mut wrong, began) = (Vec::new(), Vec::new(), 0, Instant::now());
    while began.elapsed() < Duration::from_secs(seconds) {
        let (a, wrong_a) = slice(&mut to, &mut from, our_port)?;
        let (b, wrong_b) = slice(&mut to, &mut from, their_port)?;
        wrong += wrong_a + wrong_b;
        rates.push((a, b));
        ratios.push(a as f64 / b.max(1) as f64);
        eprint!("\r{:4.0} s  {a:7} {b:7} set+get/s", began.elapsed().as_secs_f64());
    }
    drop(to);
    child.wait()?;
    let foreign: Vec<usize> = ours.metrics().workers.iter().map(|worker| worker.foreign_tasks).collect();
    let (_, _) = (end_ours.send(()), end_theirs.send(()));
    ours.block_on(our_server)??;
    theirs.block_on(their_server)??;
    ratios.sort_by(f64::total_cmp);
    let at = |share: f64| ratios[((ratios.len() - 1) as f64 * share) as usize];
    let sum = |of: fn(&(u64, u64)) -> u64| rates.iter().map(of).sum::<u64>();
    eprintln!();
    println!("{} rounds, {wrong} wrong answers, both ended cleanly", rates.len());
    println!("warmcore {} pairs, tokio {} pairs", sum(|(a, _)| *a), sum(|(_, b)| *b));
    println!(
        "warmcore / tokio: {:.2} (p25 {:.2}, min {:.2}, max {:.2})",
        at(0.5),
        at(0.25),
        at(0.0),
        at(1.0)
    );
    println!("tasks that tokio::spawn left on each worker, at the end: {foreign:?}");
    Ok(())
}
