//! The CPU time of a runtime that has almost nothing to do.
//!
//! `timers`: a thousand tasks sleep for 10 ms again and again. The result is the CPU time of the process, whose other
//! runtimes are idle. `idle`: a hundred tasks wait for ever. The result is the CPU time of a separate process, in which
//! nothing else runs. For Go both are the CPU time of the Go program. For comparison with `idle` there is a process
//! without a runtime, which only reads its CPU time. How often threads of the process went to sleep says how often they were woken.
//!
//! `timers.beside`: a hundred tasks sleep for 10 ms beside 2 or 16 tasks for each CPU that compute for 100 µs a poll. The result is how late the
//! sleeps end, tokio's rounding up to a full millisecond included.
//!
//! 1000 sleeps of 10 ms are at most 100 000 wakes a second: 60 ms of CPU is 600 ns a wake. A runtime whose timers are
//! late wakes less often, so the number of wakes is a row too.
//!
//! Source: clock_gettime(2), `CLOCK_PROCESS_CPUTIME_ID`.

use super::go;
use super::noisy::{compute, steps_in};
use super::quantiles::Quantiles;
use super::slice::*;
use crate::case::CaseCtx;
use crate::part::{self, Part};
use crate::runtimes::cpus;
use anyhow::Context;
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

/// Timers beside tasks that compute.
pub(super) struct Beside {
    /// How many there are for each CPU.
    pub(super) per_cpu: usize,
}

impl Slice for Beside {
    fn metrics(&self) -> &'static [Metric] {
        const { &[time("p90"), time("p99"), time("p50"), rate("polls that compute"), rate("wakes")] }
    }

    fn run<H: Executor>(&self, executor: H, plan: Plan) -> Vec<f64> {
        let (counts, polls, steps) = (Arc::new(Counts::new()), Arc::new(Counts::new()), steps_in(COMPUTES));
        let window = Window::open(plan);
        let computes = |counts: Arc<Counts>, polls: Arc<Counts>| async move {
            while !counts.is_over() {
                compute(steps);
                polls.add(1);
                H::yield_now().await;
            }
            Quantiles::new()
        };
        let sleeps = |counts: Arc<Counts>| async move {
            let mut late = Quantiles::new();
            while !counts.is_over() {
                let due = clock::now().0 + TIMER.as_nanos() as u64;
                H::sleep(TIMER).await;
                let now = clock::now().0;
                counts.add(1);
                if window.holds(now) {
                    late.note(now.saturating_sub(due));
                }
            }
            late
        };
        let mut tasks = Vec::new();
        for number in 0..self.per_cpu * cpus().len() {
            tasks.push(executor.spawn_nth(number, computes(counts.clone(), polls.clone())));
        }
        for number in 0..WAITING {
            tasks.push(executor.spawn_nth(number, sleeps(counts.clone())));
        }
        std::thread::sleep(plan.warm);
        let (before, began) = (polls.sum(), clock::now().0);
        let wakes = counts.watch(Plan { warm: Duration::ZERO, ..plan });
        let computed = (polls.sum() - before) as f64 * 1e6 / (clock::now().0 - began) as f64;
        let mut late = Quantiles::new();
        executor.join_all(tasks).iter().for_each(|times| late.merge(times));
        vec![late.at(0.9), late.at(0.99), late.at(0.5), computed, wakes]
    }
}

/// How long a poll of a task that computes takes.
const COMPUTES: Duration = Duration::from_micros(100);

pub(super) fn run_beside(ctx: &CaseCtx, per_cpu: usize) -> anyhow::Result<Vec<Row>> {
    let contenders = [Contender::Ours, Contender::OursShared, Contender::Tokio];
    let race =
        whole(ctx, &contenders, &Beside { per_cpu }, Plan { warm: 2 * TIMER, ..Plan::slow(ctx.effort, 5) })?;
    Ok(race.rows(["p90", "p99"].map(|metric| race.promise(metric, Contender::Tokio, Bound::AtMost, 1.0))))
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
    /// The CPU time per second, in ms, in every span, and how often threads went to sleep, if that was counted.
    type Answer = (Vec<f64>, Vec<f64>);

    fn answer(self) -> anyhow::Result<Self::Answer> {
        match self.contender {
            // This process only waits for the Go process, which measures its CPU time itself.
            Contender::Go => {
                let plan = Plan { rounds: 1, warm: SETTLE, measure: Duration::from_millis(self.span_ms) };
                Ok((go::ask(&format!("idle {WAITING} {}", self.spans), plan)?, vec![]))
            }
            Contender::Alone => self.spans(),
            contender => visit(contender, self),
        }
    }
}

impl Idle {
    fn spans(self) -> anyhow::Result<(Vec<f64>, Vec<f64>)> {
        let span = Duration::from_millis(self.span_ms);
        // Calibrate the clock, and wait until new threads have parked.
        clock::now();
        std::thread::sleep(SETTLE);
        let watch = |_| {
            let (slept, before, began) = (times_slept()?, clock::process_cpu().0, clock::now().0);
            std::thread::sleep(span);
            let (cpu, took) = (clock::process_cpu().0 - before, (clock::now().0 - began) as f64);
            // Without the sleep of this thread.
            Ok((cpu as f64 * 1e3 / took, times_slept()?.saturating_sub(slept + 1) as f64 * 1e9 / took))
        };
        (0..self.spans).map(watch).collect()
    }
}

/// How often the threads of this process went to sleep so far.
///
/// Source: proc(5), `/proc/pid/status`.
fn times_slept() -> anyhow::Result<u64> {
    let mut sum = 0;
    for thread in std::fs::read_dir("/proc/self/task").context("can't list the threads")? {
        // A thread that has ended since counts as none.
        let status = std::fs::read_to_string(thread?.path().join("status")).unwrap_or_default();
        let slept = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        sum += slept.map_or(Ok(0), |slept| slept.trim().parse::<u64>())?;
    }
    Ok(sum)
}

impl Visit for Idle {
    type Out = anyhow::Result<(Vec<f64>, Vec<f64>)>;

    fn visit<H: Executor>(self, executor: H) -> Self::Out {
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
    let hosts = [available(&each_and(Contender::OursShared)), vec![Contender::Alone]].concat();
    for (i, contender) in hosts.iter().enumerate() {
        let (cpu, slept) = part::ask(&Idle { contender: *contender, spans, span_ms })?;
        let row = Row::of(ctx.name, contender.name(), "CPU per second", "ms", &cpu);
        rows.push(row.promise_if(*contender == Contender::Ours, Bound::AtMost, IDLE_MS_MAX));
        if !slept.is_empty() {
            rows.push(Row::of(ctx.name, contender.name(), "wakes per second", "wakes", &slept));
        }
        ctx.part_of(i + 1, hosts.len());
    }
    Ok(rows)
}
