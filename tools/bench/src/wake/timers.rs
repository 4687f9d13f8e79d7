//! The CPU time of a runtime that has almost nothing to do.
//!
//! `timers`: a thousand tasks sleep for 10 ms again and again. The result is the CPU time of the process, whose other
//! runtimes are idle. `idle`: a hundred tasks wait for ever. The result is the CPU time of a separate process, in which
//! nothing else runs. For Go both are the CPU time of the Go program. For comparison with `idle` there is a process
//! without a runtime, which only reads its CPU time.
//!
//! 1000 sleeps of 10 ms are at most 100 000 wakes a second: 60 ms of CPU is 600 ns a wake. A runtime whose timers are
//! late wakes less often, so the number of wakes is a row too.
//!
//! Source: clock_gettime(2), `CLOCK_PROCESS_CPUTIME_ID`.

use super::go;
use super::slice::*;
use crate::case::CaseCtx;
use crate::part::{self, Part};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use warmcore_results::{Bound, Row};
use warmcore_sys::clock;

const TIMERS: usize = 1000;
const TIMER: Duration = Duration::from_millis(10);
const WAITING: usize = 100;
/// The time after which new threads have parked.
const SETTLE: Duration = Duration::from_millis(200);
/// The promised maximum of the CPU time of a process with an idle runtime, in ms per second.
const IDLE_MS_MAX: f64 = 0.1;

pub(super) struct Timers;

impl Slice for Timers {
    fn metrics(&self) -> &'static [Metric] {
        const { &[Metric { name: "CPU per second", unit: "ms" }, rate("wakes"), time("CPU per wake")] }
    }

    fn run<H: Executor>(&self, executor: H, plan: Plan) -> Vec<f64> {
        let counts = Arc::new(Counts::new());
        let task = |counts: Arc<Counts>| async move {
            while !counts.is_over() {
                H::sleep(TIMER).await;
                counts.add(1);
            }
        };
        let tasks = (0..TIMERS).map(|number| executor.spawn_nth(number, task(counts.clone()))).collect();
        std::thread::sleep(plan.warm);
        let before = clock::process_cpu().0;
        let wakes = counts.watch(Plan { warm: Duration::ZERO, ..plan });
        let cpu_ns = (clock::process_cpu().0 - before) as f64 / plan.measure.as_secs_f64();
        executor.join_all(tasks);
        vec![cpu_ns / 1e6, wakes, cpu_ns / (wakes * 1e3)]
    }

    fn go(&self) -> String {
        format!("timers {TIMERS} {}", TIMER.as_nanos())
    }
}

pub(super) fn run(ctx: &CaseCtx) -> anyhow::Result<Vec<Row>> {
    let race = whole(ctx, EACH, &Timers, Plan { warm: 2 * TIMER, ..Plan::slow(ctx.effort, 5) })?;
    Ok(race.rows([race.promise("CPU per second", Contender::Tokio, Bound::AtMost, 1.0)]))
}

/// An idle runtime (or none, for `Contender::Alone`) in a separate process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Idle {
    pub(super) contender: Contender,
    pub(super) spans: usize,
    pub(super) span_ms: u64,
}

impl Part for Idle {
    const NAME: &'static str = "WakeIdle";
    type Answer = Vec<f64>;

    /// Measures the CPU time per second, in ms, in every span.
    fn answer(self) -> anyhow::Result<Vec<f64>> {
        match self.contender {
            // This process only waits for the Go process, which measures its CPU time itself.
            Contender::Go => {
                let plan = Plan { rounds: 1, warm: SETTLE, measure: Duration::from_millis(self.span_ms) };
                go::ask(&format!("idle {WAITING} {}", self.spans), plan)
            }
            Contender::Alone => Ok(self.spans()),
            contender => Ok(visit(contender, self)),
        }
    }
}

impl Idle {
    fn spans(self) -> Vec<f64> {
        let span = Duration::from_millis(self.span_ms);
        // Calibrate the clock, and wait until new threads have parked.
        clock::now();
        std::thread::sleep(SETTLE);
        let watch = |_| {
            let (before, began) = (clock::process_cpu().0, clock::now().0);
            std::thread::sleep(span);
            (clock::process_cpu().0 - before) as f64 * 1e3 / (clock::now().0 - began) as f64
        };
        (0..self.spans).map(watch).collect()
    }
}

impl Visit for Idle {
    type Out = Vec<f64>;

    fn visit<H: Executor>(self, executor: H) -> Vec<f64> {
        for number in 0..WAITING {
            // Forget the handle: on smol, dropping it cancels the task.
            std::mem::forget(executor.spawn_nth(number, std::future::pending::<()>()));
        }
        self.spans()
    }
}

pub(super) fn idle(ctx: &CaseCtx) -> anyhow::Result<Vec<Row>> {
    let (spans, span_ms) = if ctx.effort.is_quick() { (3, 500) } else { (5, 1000) };
    let mut rows = Vec::new();
    // The last process has no runtime: its CPU time is the cost of measuring.
    let hosts = [available(EACH), vec![Contender::Alone]].concat();
    for (i, contender) in hosts.iter().enumerate() {
        let samples = part::ask(&Idle { contender: *contender, spans, span_ms })?;
        let row = Row::of(ctx.name, contender.name(), "CPU per second", "ms", &samples);
        rows.push(row.promise_if(*contender == Contender::Ours, Bound::AtMost, IDLE_MS_MAX));
        ctx.part_of(i + 1, hosts.len());
    }
    Ok(rows)
}
