//! Steps of the cases that are not calls of a scheduler: a chase through a working set, and an HTTP request.

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
const REQUESTS: u64 = 500;

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

/// The CPU time of the server and of the client for a request, in ns: one connection, one request at a time.
pub(super) fn requests<H: Executor>(executor: H) -> anyhow::Result<(f64, f64)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    let client = TcpStream::connect(address)?;
    client.set_nodelay(true)?;
    let (server, _) = listener.accept()?;
    server.set_nodelay(true)?;
    server.set_nonblocking(true)?;
    let task = executor.spawn_nth(0, async move {
        if let Ok(stream) = tokio::net::TcpStream::from_std(server) {
            connection(TokioIo::new(stream), Handler::Hello).await;
        }
    });
    let (say, told) = mpsc::channel();
    let thread = std::thread::Builder::new().name("client".into()).spawn(move || {
        let own = clock::ThreadCpu::current();
        ask(&client, REQUESTS / 10)?;
        let before = (clock::process_cpu().0, own.read().0);
        ask(&client, REQUESTS)?;
        let after = (clock::process_cpu().0, own.read().0);
        let _ = say.send((after.0 - before.0, after.1 - before.1));
        anyhow::Ok(())
    })?;
    let (all, own) = told.recv().map_err(|_| anyhow::anyhow!("the client of the probe gave up"))?;
    thread.join().map_err(|_| anyhow::anyhow!("the client of the probe panicked"))??;
    executor.join_all(vec![task]);
    let each = |ns: u64| ns as f64 / REQUESTS as f64;
    Ok((each(all.saturating_sub(own)), each(own)))
}

/// Sends requests one after another and reads the answers.
fn ask(mut client: &TcpStream, requests: u64) -> anyhow::Result<()> {
    let mut answer = [0; 4096];
    for _ in 0..requests {
        client.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
        let read = client.read(&mut answer)?;
        anyhow::ensure!(read > 0, "the server of the probe closed the connection");
    }
    Ok(())
}
