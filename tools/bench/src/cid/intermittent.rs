//! Bursts of work with pauses between them: a new version of the published program.
//!
//! One pinned thread on each CPU that takes part, numbered in a random order. All start together. Thread k sleeps k ×
//! delay, passes 20 000 times over its area to warm it, and then makes five timed passes, with a pause of delay ×
//! threads before each timed pass but the first. The thread asks for its id again at each pass. So the first timed pass
//! of the five has no pause before it, and a CPU pauses for delay × threads, not for delay. Each round of each method
//! runs in a separate process, with fresh areas.
//!
//! With 200 ms and 2 threads the pauses are 400 ms and a round takes 1.8 s. At most four CPUs take part, spread over
//! all allowed CPUs: with more, the pauses would be longer and the case would take hours.
//!
//! Source: the program behind the published tables; see `cid.rs`. The published program's areas are in a private
//! mapping of a file; here they are in private memory. Both fault at the first write. The pause after the last pass is
//! left out: nothing is timed after it.

use super::area::{Areas, Ran, methods};
use super::shares::{Visit, Whose, percent, whose};
use crate::case::CaseCtx;
use crate::measure::{Effort, Interrupted};
use crate::part::{self, Part};
use fastrand::Rng;
use serde::{Deserialize, Serialize};
use std::sync::Barrier;
use std::time::{Duration, Instant};
use warmcore_results::names::cid::OURS;
use warmcore_results::{Bound, Row};
use warmcore_sys::{affinity, clock, map};
use warmcore_types::CpuId;

pub use warmcore_results::names::intermittent::{
    AFTER_A_PAUSE, CASE, ENTRY, FAULTS, FOREIGN, FRESH, MEAN, OWN, PASS,
};

/// Delays in ms, and the rounds of a full and of a quick run.
const DELAYS: [(u64, usize, usize); 4] = [(0, 10, 5), (10, 5, 2), (50, 2, 0), (200, 2, 1)];
const THREADS_MAX: usize = 4;
/// A debug build takes 50 times as long for a pass, and its times are not used.
const WARM_PASSES: u64 = if cfg!(debug_assertions) { 200 } else { 20_000 };
const TIMED_PASSES: u32 = 5;
/// The shortest pause with a promise that cache-local ids stay. Compaction runs every 100 ms and takes back ids that
/// were not used since the last one, so only longer pauses tell apart the policies that keep an idle CPU's id.
const PROMISED_FROM_MS: u64 = 100;
/// The duration of one step of the progress bar, roughly that of a round of another case.
const STEP_MS: u64 = 10;

/// One run of the program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Round {
    /// The method's name, as in the rows.
    pub method: String,
    /// The delay, in ms.
    pub delay_ms: u64,
    /// Whether every area that the threads may use is written before the first burst.
    pub touched: bool,
    /// The seed of the threads' order.
    pub seed: u64,
}

/// A timed pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timed {
    /// The number of the pass, from 0. There was a pause of delay × threads before each pass but the first.
    pub pass: u32,
    /// The duration of the pass.
    pub ns: u64,
    /// The part of `ns` until the thread had exclusive access to its area.
    pub enter_ns: u64,
    /// Minor page faults of the thread during the pass.
    pub faults: u64,
    /// Which CPU used the area last before this pass.
    pub whose: Whose,
}

/// The CPUs that take part.
fn cpus() -> anyhow::Result<Vec<CpuId>> {
    let allowed: Vec<CpuId> = affinity::allowed()?.iter().collect();
    let n = allowed.len().min(THREADS_MAX);
    Ok((0..n).map(|i| allowed[i * allowed.len() / n]).collect())
}

/// Visits of a thread, with the timed passes among them. `whose` of these passes is filled in later.
type Done = Vec<(Visit, Option<Timed>)>;

impl Part for Round {
    const NAME: &'static str = "Round";
    type Answer = Vec<Timed>;

    /// Runs the program in this process, which should have no other work.
    fn answer(self) -> anyhow::Result<Vec<Timed>> {
        let mut cpus = cpus()?;
        Rng::with_seed(self.seed).shuffle(&mut cpus);
        let mut areas = Areas::new(&self.method)?;
        if self.touched {
            areas.touch(&cpus);
        }
        let (all, areas) = (Barrier::new(cpus.len()), &areas);
        let delay = Duration::from_millis(self.delay_ms);
        let thread = |k: usize, cpu: CpuId| -> anyhow::Result<Done> {
            affinity::pin(cpu)?;
            areas.join();
            all.wait();
            std::thread::sleep(delay * k as u32);
            let done = bursts(cpu, areas, delay * cpus.len() as u32);
            // Wait, so that the number of threads, on which ids depend, stays the same until the last one has finished.
            all.wait();
            done
        };
        let thread = &thread;
        let done = std::thread::scope(|scope| {
            let threads: Vec<_> =
                cpus.iter().enumerate().map(|(k, cpu)| scope.spawn(move || thread(k, *cpu))).collect();
            threads
                .into_iter()
                .map(|t| t.join().expect("no thread panics"))
                .collect::<anyhow::Result<Vec<Done>>>()
        })?;
        let done = done.concat();
        let visits: Vec<Visit> = done.iter().map(|(visit, _)| *visit).collect();
        let found = done.into_iter().zip(whose(&visits));
        Ok(found.filter_map(|((_, timed), whose)| Some(Timed { whose, ..timed? })).collect())
    }
}

/// The body of a thread after its initial sleep.
fn bursts(cpu: CpuId, areas: &Areas, pause: Duration) -> anyhow::Result<Done> {
    let mut done: Done = Vec::with_capacity(64);
    let visit = |ran: Ran| Visit { cpu: cpu.0, area: ran.area, at_ns: ran.at_ns };
    for _ in 0..WARM_PASSES {
        let now = visit(areas.burst());
        // Keep only the first and the last of consecutive passes over the same area: they are enough to determine its
        // last user.
        match &mut done[..] {
            [.., (before, _), (last, _)] if before.area == now.area && last.area == now.area => *last = now,
            _ => done.push((now, None)),
        }
    }
    for pass in 0..TIMED_PASSES {
        if pass > 0 {
            std::thread::sleep(pause);
        }
        let before = map::page_faults()?;
        // Not `clock` alone: on x86-64 `Instant` waits until earlier instructions have finished.
        let (began, asked) = (Instant::now(), clock::now());
        let ran = areas.burst();
        let ns = began.elapsed().as_nanos() as u64;
        let (enter_ns, faults) = (ran.at_ns.saturating_sub(asked.0), map::page_faults()? - before);
        done.push((visit(ran), Some(Timed { pass, ns, enter_ns, faults, whose: Whose::Fresh })));
    }
    Ok(done)
}

fn rounds(effort: Effort) -> impl Iterator<Item = (u64, usize)> {
    let quick = effort.is_quick();
    DELAYS.into_iter().map(move |(delay, full, short)| (delay, if quick { short } else { full }))
}

/// The number of steps by which one round moves the progress bar.
fn steps_each(delay_ms: u64, threads: usize) -> u64 {
    let threads = threads as u64;
    let sleeps = delay_ms * (threads - 1) + delay_ms * threads * u64::from(TIMED_PASSES - 1);
    (sleeps / STEP_MS).max(1) + 2
}

/// The number of steps by which the case moves the progress bar.
pub(super) fn steps(effort: Effort) -> u64 {
    let threads = cpus().map_or(1, |cpus| cpus.len());
    let variants = 2 * methods().len() as u64;
    rounds(effort).map(|(delay, rounds)| rounds as u64 * variants * steps_each(delay, threads)).sum()
}

/// A method, whether its areas are written before the first burst, and the timed passes of each round.
type Variant = (&'static str, bool, Vec<Vec<Timed>>);

/// Runs the case. If a signal came, returns the rows of the delays that are finished; if there are none, an error.
pub(super) fn run(ctx: &CaseCtx) -> anyhow::Result<Vec<Row>> {
    let (threads, mut rows) = (cpus()?.len(), Vec::new());
    for (delay_ms, rounds) in rounds(ctx.effort) {
        let mut variants: Vec<Variant> = [true, false]
            .into_iter()
            .flat_map(|touched| methods().into_iter().map(move |name| (name, touched, Vec::new())))
            .collect();
        for round in 0..rounds as u64 {
            let seed = delay_ms << 32 | round;
            let mut order: Vec<usize> = (0..variants.len()).collect();
            Rng::with_seed(seed).shuffle(&mut order);
            for i in order {
                let (method, touched, measured) = &mut variants[i];
                let part = Round { method: method.to_string(), delay_ms, touched: *touched, seed };
                match part::ask(&part) {
                    // A signal came: return the rows of the delays that are finished.
                    Err(error) if error.is::<Interrupted>() && !rows.is_empty() => return Ok(rows),
                    timed => measured.push(timed?),
                }
                (0..steps_each(delay_ms, threads)).for_each(|_| (ctx.tick)());
            }
        }
        if rounds > 0 {
            for touched in [true, false] {
                let of: Vec<&Variant> = variants.iter().filter(|v| v.1 == touched).collect();
                rows.extend(rows_of(delay_ms, threads, touched, &of));
            }
        }
    }
    Ok(rows)
}

fn rows_of(delay_ms: u64, threads: usize, touched: bool, variants: &[&Variant]) -> Vec<Row> {
    let case = format!("{CASE}.{delay_ms}ms.{}", if touched { "touched" } else { "untouched" });
    let mut rows = Vec::new();
    let means = |rounds: &[Vec<Timed>]| -> Vec<f64> {
        let mean =
            |timed: &Vec<Timed>| timed.iter().map(|t| t.ns as f64).sum::<f64>() / timed.len().max(1) as f64;
        rounds.iter().map(mean).collect()
    };
    for (method, _, rounds) in variants {
        let paused: Vec<Timed> = rounds.iter().flatten().copied().filter(|t| t.pass > 0).collect();
        let times: Vec<f64> = paused.iter().map(|t| t.ns as f64).collect();
        let entries: Vec<f64> = paused.iter().map(|t| t.enter_ns as f64).collect();
        let rests: Vec<f64> = times.iter().zip(&entries).map(|(all, entry)| all - entry).collect();
        rows.push(Row::of(&case, method, AFTER_A_PAUSE, "ns", &times));
        rows.push(Row::of(&case, method, ENTRY, "ns", &entries));
        rows.push(Row::of(&case, method, PASS, "ns", &rests));
        rows.push(Row::of(&case, method, MEAN, "ns", &means(rounds)));
        for (metric, which) in [(OWN, Whose::Own), (FOREIGN, Whose::Foreign), (FRESH, Whose::Fresh)] {
            let share = percent(paused.iter().map(|t| t.whose), which);
            let row = Row::exact(&case, method, metric, "%", share, paused.len() as u64);
            let is_promised =
                *method == OURS && which == Whose::Own && delay_ms * threads as u64 >= PROMISED_FROM_MS;
            rows.push(row.promise_if(is_promised, Bound::AtLeast, 100.0));
        }
        let faults: u64 = paused.iter().map(|t| t.faults).sum();
        let each = faults as f64 / paused.len().max(1) as f64;
        rows.push(Row::exact(&case, method, FAULTS, "faults", each, paused.len() as u64));
    }
    if let Some((_, _, ours)) = variants.iter().find(|(method, ..)| *method == OURS) {
        let others = variants.iter().filter(|(method, ..)| *method != OURS);
        rows.extend(
            others.map(|(method, _, rounds)| Row::ratio(&case, method, OURS, &means(rounds), &means(ours))),
        );
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_times_every_pass_of_every_thread_and_by_cpu_is_at_home() {
        for (method, touched) in [("by cpu", true), ("cache-local", false), ("lowest", true)] {
            let round = Round { method: method.into(), delay_ms: 1, touched, seed: 3 };
            let timed = round.answer().unwrap();
            assert_eq!(timed.len(), cpus().unwrap().len() * TIMED_PASSES as usize);
            for pass in 0..TIMED_PASSES {
                assert_eq!(timed.iter().filter(|t| t.pass == pass).count(), cpus().unwrap().len());
            }
            if method == "by cpu" {
                assert!(timed.iter().all(|t| t.whose == Whose::Own), "{timed:?}");
            }
        }
    }

    #[test]
    fn rows_say_what_was_counted_and_promise_only_long_pauses() {
        let timed = |whose, faults| {
            (0..5).map(|pass| Timed { pass, ns: 100, enter_ns: 10, faults, whose }).collect::<Vec<_>>()
        };
        let ours = (OURS, true, vec![timed(Whose::Own, 0), timed(Whose::Own, 0)]);
        let other = ("lowest", true, vec![timed(Whose::Foreign, 4), timed(Whose::Own, 0)]);
        let rows = rows_of(200, 2, true, &[&ours, &other]);
        let row = |variant, metric| rows.iter().find(|r| r.variant == variant && r.metric == metric).unwrap();
        assert_eq!(row("lowest", OWN).median, 50.0);
        assert_eq!(row("lowest", FOREIGN).median, 50.0);
        assert_eq!(row("lowest", FAULTS).median, 2.0);
        assert_eq!((row("lowest", OWN).n, row("lowest", AFTER_A_PAUSE).n, row("lowest", MEAN).n), (8, 8, 2));
        assert!(
            row(OURS, OWN).target.as_ref().unwrap().standing == warmcore_results::Standing::Met
                && row("lowest", OWN).target.is_none()
        );
        assert_eq!(row("lowest", "ratio").over.as_deref(), Some(OURS));
        assert!(rows_of(10, 2, true, &[&ours]).iter().all(|r| r.target.is_none()));
        assert!(rows.iter().all(|r| r.case == "cid.intermittent.200ms.touched"));
    }
}
