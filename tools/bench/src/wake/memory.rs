//! The memory of a task that waits for ever.
//!
//! In a separate process, a hundred thousand tasks whose future has no data are polled once each, after a thousand
//! others that are not counted. The result is the growth of the process divided by the number of tasks; it includes the
//! allocator's headers. A hundred tasks are spawned and polled before the next hundred, so that no queue grows. In Go
//! the tasks are goroutines in the process of the Go program. A task is a header, a future and an output: 100 to 300
//! bytes. A goroutine has a stack of at least 2 KiB.
//!
//! Source: proc(5), `/proc/pid/smaps_rollup`.

use super::go;
use super::slice::*;
use crate::case::CaseCtx;
use crate::part::{self, Part, resident_process_bytes};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use warmcore_results::{Bound, Row};

const TASKS: usize = 100_000;
const BATCH: usize = 100;

/// Waiting tasks in a separate process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    contender: Contender,
    tasks: usize,
}

impl Part for Waiting {
    const NAME: &'static str = "WakeMemory";
    type Answer = f64;

    /// Returns the bytes of memory that each task takes.
    fn answer(self) -> anyhow::Result<f64> {
        if self.contender != Contender::Go {
            return visit(self.contender, self);
        }
        let at_once = Plan { rounds: 1, warm: Duration::ZERO, measure: Duration::ZERO };
        Ok(go::ask(&format!("memory {} {BATCH}", self.tasks), at_once)?[0])
    }
}

impl Visit for Waiting {
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
        (10..10 + self.tasks / BATCH).for_each(|i| batch(i * BATCH));
        Ok((resident_process_bytes()? as f64 - before as f64) / self.tasks as f64)
    }
}

pub(super) fn run(ctx: &CaseCtx) -> anyhow::Result<Vec<Row>> {
    let hosts = available(EACH);
    let mut taken = Vec::new();
    for (i, contender) in hosts.iter().enumerate() {
        taken.push(part::ask(&Waiting { contender: *contender, tasks: TASKS })?.round());
        ctx.part_of(i + 1, hosts.len());
    }
    let tokio =
        hosts.iter().position(|contender| *contender == Contender::Tokio).map_or(f64::NAN, |i| taken[i]);
    let row = |(contender, bytes): (&Contender, &f64)| {
        let row = Row::exact(ctx.name, contender.name(), "memory each", "bytes", *bytes, TASKS as u64);
        row.promise_if(*contender == Contender::Ours, Bound::AtMost, tokio)
    };
    Ok(hosts.iter().zip(&taken).map(row).collect())
}
