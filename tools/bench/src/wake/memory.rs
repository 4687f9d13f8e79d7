//! The memory of what waits for ever: a task, a connection, a worker. Each is measured in a process of its own, as the growth of the
//! process divided by their number; it includes the allocator's headers.
//!
//! *A task*: a hundred thousand tasks whose future has no data are polled once each, after a thousand
//! others that are not counted. A hundred tasks are spawned and polled before the next hundred, so that no queue grows. In Go
//! the tasks are goroutines in the process of the Go program. A task is a header, a future and an output: 100 to 300
//! bytes. A goroutine has a stack of at least 2 KiB.
//!
//! *A connection*: hundreds of them to a server, each after one request; a hundred others are not counted. Most of it is hyper's state and buffers,
//! which are the same on each runtime. The kernel's part is not counted.
//!
//! *A worker*: a runtime with 32 workers more than another one, both idle. Stacks count as far as they were touched.
//!
//! Source: proc(5), `/proc/pid/smaps_rollup`.

use super::go;
use super::slice::*;
use crate::case::CaseCtx;
use crate::http::{Handler, serve};
use crate::part::{self, Part, resident_process_bytes};
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::Arc;
use std::time::Duration;
use warmcore_results::{Bound, Row};
use warmcore_runtime::Runtime;

const TASKS: usize = 100_000;
const BATCH: usize = 100;
/// Few enough for the usual limit of 1024 descriptors, as both ends of a connection are in one process.
const CONNECTIONS: usize = 200;
const WORKERS: usize = 32;

/// What waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    /// So many tasks.
    Tasks(usize),
    /// So many connections to a server.
    Connections(usize),
    /// So many workers.
    Workers(usize),
}

/// How much memory each of these takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    contender: Contender,
    what: What,
}

impl Part for Waiting {
    const NAME: &'static str = "WakeMemory";
    type Answer = f64;

    /// Returns the bytes of memory of each.
    fn answer(self) -> anyhow::Result<f64> {
        match self.what {
            What::Tasks(tasks) if self.contender == Contender::Go => {
                let at_once = Plan { rounds: 1, warm: Duration::ZERO, measure: Duration::ZERO };
                Ok(go::ask(&format!("memory {tasks} {BATCH}"), at_once)?[0])
            }
            What::Tasks(tasks) => visit(self.contender, Tasks(tasks)),
            What::Connections(connections) => idle_connections(self.contender, connections),
            What::Workers(workers) => idle_workers(self.contender, workers),
        }
    }
}

fn idle_connections(contender: Contender, connections: usize) -> anyhow::Result<f64> {
    let port = serve(contender, Handler::Hello)?;
    let connect = |number: usize| {
        let mut connection = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).context("can't connect")?;
        connection.set_read_timeout(Some(Duration::from_secs(10)))?;
        connection.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")?;
        let answered = connection.read(&mut [0; 1024])?;
        anyhow::ensure!(answered > 0, "no answer on connection {number}");
        Ok(connection)
    };
    let _first = (0..BATCH).map(connect).collect::<anyhow::Result<Vec<_>>>()?;
    let before = resident_process_bytes()?;
    let open = (0..connections).map(connect).collect::<anyhow::Result<Vec<_>>>()?;
    let bytes = resident_process_bytes()? as f64 - before as f64;
    Ok(bytes / open.len() as f64)
}

fn idle_workers(contender: Contender, workers: usize) -> anyhow::Result<f64> {
    // The first runtime is for what a process has once.
    let grown = |make: &dyn Fn(usize) -> anyhow::Result<()>| {
        let settled = |workers| {
            make(workers)?;
            std::thread::sleep(Duration::from_millis(100));
            resident_process_bytes()
        };
        let [first, one, all] = [settled(1)?, settled(1)?, settled(1 + workers)?].map(|bytes| bytes as f64);
        Ok((all - one - (one - first)) / workers as f64)
    };
    match contender {
        Contender::Ours | Contender::OursShared => grown(&|workers| {
            let builder = Runtime::builder().worker_threads(workers).pin(false);
            std::mem::forget(builder.share_drivers(contender == Contender::OursShared).build()?);
            Ok(())
        }),
        Contender::Tokio => grown(&|workers| {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            std::mem::forget(builder.worker_threads(workers).enable_all().build()?);
            Ok(())
        }),
        _ => anyhow::bail!("not measured on {}", contender.name()),
    }
}

/// So many tasks that wait.
struct Tasks(usize);

impl Visit for Tasks {
    type Out = anyhow::Result<f64>;

    fn visit<H: Executor>(self, executor: H) -> anyhow::Result<f64> {
        let polled = Arc::new(Counts::new());
        let batch = |from: usize| {
            for number in from..from + BATCH {
                // Each task drops its clone before it waits, so that its future has no data.
                let polled = polled.clone();
                std::mem::forget(executor.spawn_nth(number, async move {
                    polled.add(1);
                    drop(polled);
                    std::future::pending::<()>().await;
                }));
            }
            while polled.sum() < (from + BATCH) as u64 {
                std::thread::sleep(Duration::from_micros(50));
            }
        };
        // For the first tasks the runtime makes threads and queues and the allocator makes arenas, which are not
        // counted.
        (0..10).for_each(|i| batch(i * BATCH));
        let before = resident_process_bytes()?;
        (10..10 + self.0 / BATCH).for_each(|i| batch(i * BATCH));
        Ok((resident_process_bytes()? as f64 - before as f64) / self.0 as f64)
    }
}

pub(super) fn run(ctx: &CaseCtx) -> anyhow::Result<Vec<Row>> {
    let tasks = available(&each_and(Contender::OursShared));
    let others = [Contender::Ours, Contender::OursShared, Contender::Tokio];
    let measures = [
        ("memory each", What::Tasks(TASKS), &tasks[..]),
        ("memory of a connection", What::Connections(CONNECTIONS), &others),
        ("memory of a worker", What::Workers(WORKERS), &others),
    ];
    let of_all = measures.iter().map(|(.., hosts)| hosts.len()).sum();
    let mut rows: Vec<Row> = Vec::new();
    for (metric, what, hosts) in measures {
        let mut taken = Vec::new();
        for contender in hosts {
            taken.push(part::ask(&Waiting { contender: *contender, what })?.round());
            ctx.part_of(rows.len() + taken.len(), of_all);
        }
        let tokio =
            hosts.iter().position(|contender| *contender == Contender::Tokio).map_or(f64::NAN, |i| taken[i]);
        let (What::Tasks(n) | What::Connections(n) | What::Workers(n)) = what;
        rows.extend(hosts.iter().zip(&taken).map(|(contender, bytes)| {
            let row = Row::exact(ctx.name, contender.name(), metric, "bytes", *bytes, n as u64);
            row.promise_if(contender.is_ours(), Bound::AtMost, tokio)
        }));
    }
    Ok(rows)
}
