//! Steps of the cases that are not calls of a scheduler: a chase through a working set, a message, an HTTP request.

use crate::http::handler::{Handler, connection};
use crate::runtimes::cpus;
use crate::wake::Executor;
use crate::working_set::WorkingSet;
use anyhow::Context;
use hyper_util::rt::TokioIo;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::mpsc;
use warmcore_sys::{affinity, clock};

const KIB: usize = 256;
const CHASES: usize = 20;
const REQUESTS: u64 = 480;
const CONNECTIONS: usize = 8;

/// The ns of a chase through a set that this CPU chased last, and that the other CPU chased last.
pub(super) fn chases() -> anyhow::Result<Vec<(&'static str, f64)>> {
    let (set, cpus) = (WorkingSet::new(KIB, 1), cpus());
    let chase = || {
        let began = clock::now().0;
        set.chase(|_| ());
        clock::now().0 - began
    };
    let median = |mut chases: Vec<u64>| {
        chases.sort_unstable();
        chases[chases.len() / 2] as f64
    };
    let pin = |cpu| affinity::pin(cpu).context("can't pin this thread");
    let allowed = affinity::allowed().context("can't read on which CPUs this thread may run")?;
    pin(cpus[0])?;
    chase();
    let mut found = vec![("chase.warm", median((0..CHASES).map(|_| chase()).collect()))];
    if let Some(other) = cpus.get(1) {
        let mut moved = Vec::new();
        for n in 0..CHASES {
            pin([*other, cpus[0]][n % 2])?;
            moved.push(chase());
        }
        found.push(("chase.moved", median(moved)));
    }
    affinity::set_allowed(&allowed).context("can't undo a pin")?;
    Ok(found)
}

/// The CPU time of the server and of the client for a request, in ns. The client sends a request on each connection, then
/// reads all answers.
pub(super) fn requests<H: Executor>(executor: H) -> anyhow::Result<(f64, f64)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    let (mut clients, mut tasks) = (Vec::new(), Vec::new());
    for _ in 0..CONNECTIONS {
        let client = TcpStream::connect(address)?;
        client.set_nodelay(true)?;
        clients.push(client);
        let (server, _) = listener.accept()?;
        server.set_nodelay(true)?;
        server.set_nonblocking(true)?;
        tasks.push(executor.spawn_nth(0, async move {
            if let Ok(stream) = tokio::net::TcpStream::from_std(server) {
                connection(TokioIo::new(stream), Handler::Hello).await;
            }
        }));
    }
    let (say, told) = mpsc::channel();
    let thread = std::thread::Builder::new().name("client".into()).spawn(move || {
        let own = clock::ThreadCpu::current();
        ask(&clients, REQUESTS / 10)?;
        let before = (clock::process_cpu().0, own.read().0);
        ask(&clients, REQUESTS)?;
        let after = (clock::process_cpu().0, own.read().0);
        let _ = say.send((after.0 - before.0, after.1 - before.1));
        anyhow::Ok(())
    })?;
    let (all, own) = told.recv().map_err(|_| anyhow::anyhow!("the client of the probe gave up"))?;
    thread.join().map_err(|_| anyhow::anyhow!("the client of the probe panicked"))??;
    executor.join_all(tasks);
    let each = |ns: u64| ns as f64 / REQUESTS as f64;
    Ok((each(all.saturating_sub(own)), each(own)))
}

/// Sends so many requests and reads the answers.
fn ask(clients: &[TcpStream], requests: u64) -> anyhow::Result<()> {
    let mut answer = [0; 4096];
    for _ in 0..requests / clients.len() as u64 {
        for mut client in clients {
            client.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
        }
        for mut client in clients {
            let read = client.read(&mut answer)?;
            anyhow::ensure!(read > 0, "the server of the probe closed the connection");
        }
    }
    Ok(())
}

/// The ns of a write to an event descriptor that no thread waits for.
pub(super) fn eventfd_write() -> anyhow::Result<f64> {
    const WRITES: u64 = 200;
    let poll = mio::Poll::new()?;
    let waker = mio::Waker::new(poll.registry(), mio::Token(0))?;
    let began = clock::now().0;
    for _ in 0..WRITES {
        waker.wake()?;
    }
    Ok((clock::now().0 - began) as f64 / WRITES as f64)
}

/// The ns of a message of a channel for its sender and its receiver: on the CPU where all the channel's messages are sent
/// and received, and on two CPUs, of which one sends and the other receives.
pub(super) fn messages() -> anyhow::Result<Vec<(&'static str, f64)>> {
    const HELD: usize = 64;
    let (cpus, pin) = (cpus(), |cpu| affinity::pin(cpu).context("can't pin this thread"));
    let allowed = affinity::allowed().context("can't read on which CPUs this thread may run")?;
    let (sender, mut messages) = tokio::sync::mpsc::channel(HELD);
    let mut found = Vec::new();
    let other = *cpus.get(1).unwrap_or(&cpus[0]);
    for (receives_on, [send, receive]) in
        [(cpus[0], ["send.warm", "receive.warm"]), (other, ["send.moved", "receive.moved"])]
    {
        let (mut sent, mut received) = (Vec::new(), Vec::new());
        for _ in 0..CHASES {
            pin(cpus[0])?;
            let began = clock::now().0;
            (0..HELD).for_each(|_| _ = sender.try_send([1u8; 100]));
            sent.push((clock::now().0 - began) as f64 / HELD as f64);
            pin(receives_on)?;
            let began = clock::now().0;
            (0..HELD).for_each(|_| _ = std::hint::black_box(messages.try_recv()));
            received.push((clock::now().0 - began) as f64 / HELD as f64);
        }
        for (name, mut all) in [(send, sent), (receive, received)] {
            all.sort_by(f64::total_cmp);
            found.push((name, all[all.len() / 2]));
        }
    }
    affinity::set_allowed(&allowed).context("can't undo a pin")?;
    Ok(found)
}
