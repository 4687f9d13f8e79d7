//! The disturbance of a pinned worker while another CPU drains the stocks of the worker's CPU.
//!
//! At the beginning of each loop the worker charges and uncharges once in each of 500 accounts, so that there are
//! stocks (units that a CPU holds ready) to drain; then it reads the clock as fast as it can for 1 ms and records the
//! gaps between readings. Meanwhile another CPU drains the stocks of none, 100 or 500 accounts per loop, evenly spread.
//! As a control, which shows that the method detects a disturbance, that CPU issues fences, or unparks a helper that is
//! pinned to the worker's CPU. The kernel's own counts show how often the worker was preempted, and how many interrupts
//! of two kinds its CPU received.
//!
//! A loop has 40 000 gaps of 25 ns; 500 drains of 150 ns take a thirteenth of a loop's time on the other CPU. All
//! rounds of a full run have 100 000 drains at the higher rate.
//!
//! Source: proc(5), `nonvoluntary_ctxt_switches`; `/proc/interrupts`.

use super::setup::*;
use crate::case::CaseCtx;
use crate::measure::{Interrupted, check_interrupted};
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::{Mutex, PoisonError};
use warmcore_budget::Account;
use warmcore_line::Padded;
use warmcore_results::{Bound, Row};
use warmcore_sys::{clock, membarrier};
use warmcore_types::CpuId;

const ACCOUNTS: usize = 500;
const LOOP_NS: u64 = 1_000_000;
/// The number of consecutive loops with one method.
const LOOPS: u64 = 5;
/// The actions of a loop are due within this time after the loop's charges.
const WITHIN_NS: u64 = 900_000;

const GAP_RATIO_MAX: f64 = 1.1;
/// The promised maximum of disturbances per 1000 drains, after the disturbances of loops without drains are subtracted.
/// If each drain disturbed the worker once, there would be 1000.
const PER_1000_MAX: f64 = 10.0;

/// What the other CPU does during a loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Nothing,
    Drain,
    Fence,
    Wake,
}

struct Method {
    name: &'static str,
    action: Action,
    /// The number of actions in a loop.
    times: u64,
}

const NONE: &str = "no drains";
const METHODS: [Method; 5] = [
    Method { name: NONE, action: Action::Nothing, times: 0 },
    Method { name: "100 drains a ms", action: Action::Drain, times: 100 },
    Method { name: "500 drains a ms", action: Action::Drain, times: 500 },
    Method { name: "control: 10 membarriers a ms", action: Action::Fence, times: 10 },
    Method { name: "control: 10 woken helpers a ms", action: Action::Wake, times: 10 },
];

/// Gaps between two readings of the clock.
struct Gaps {
    /// Gaps below a µs, counted by their length in ns.
    short: Vec<u32>,
    long: Vec<u64>,
}

impl Gaps {
    fn new() -> Self {
        Self { short: vec![0; 1000], long: Vec::with_capacity(1 << 16) }
    }

    #[inline(always)]
    fn note(&mut self, ns: u64) {
        match self.short.get_mut(ns as usize) {
            Some(count) => *count += 1,
            // Drop gaps beyond the capacity, since growing the list would allocate. The loops of one group take about 5
            // ms and do not have that many gaps of a µs or more.
            None if self.long.len() < self.long.capacity() => self.long.push(ns),
            None => {}
        }
    }

    fn clear(&mut self) {
        self.short.fill(0);
        self.long.clear();
    }

    /// Returns the gap at quantile `q`; 0 if there is none.
    fn quantile(&mut self, q: f64) -> u64 {
        self.long.sort_unstable();
        let short = self.short.iter().map(|n| u64::from(*n)).sum::<u64>();
        let all = short + self.long.len() as u64;
        let mut rest = (q * all.saturating_sub(1) as f64) as u64;
        for (ns, count) in self.short.iter().enumerate() {
            if rest < u64::from(*count) {
                return ns as u64;
            }
            rest -= u64::from(*count);
        }
        self.long.get(rest as usize).copied().unwrap_or(0)
    }
}

/// What was measured in the loops of one group: [`LOOPS`] consecutive loops with one method.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    p999_ns: u64,
    longest_ns: u64,
    /// The average time of the first charge in an account and its uncharge, over all accounts and loops.
    charge_ns: f64,
    /// Preemptions of the worker, rescheduling interrupts and function call interrupts of its CPU. The worker counts
    /// the preemptions; the requesting thread adds the interrupts if the kernel reports them.
    counts: [u64; 3],
}

/// The state that the requesting thread and the worker share. The numbers count up; at the end `group` is [`OVER`].
#[derive(Default)]
struct SharedState {
    /// Written by the requesting thread: the group of loops that the worker may begin.
    group: Padded<AtomicU64>,
    /// Written by the worker: how many loops it has begun.
    begun: Padded<AtomicU64>,
    /// Written by the worker: the group that it has finished.
    finished: AtomicU64,
    seen: Mutex<Seen>,
}

const OVER: u64 = u64::MAX;

/// Returns the number of times that this thread was preempted; 0 if the kernel does not report it.
fn switches() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"));
    line.and_then(|n| n.trim().parse().ok()).unwrap_or(0)
}

impl SharedState {
    fn work(&self, accounts: &[Account]) {
        let (mut group, mut gaps) = (0, Gaps::new());
        loop {
            // ORDERING: Acquire; pairs with the Release of the requesting thread.
            match self.group.load(Acquire) {
                OVER => return,
                next if next == group => std::hint::spin_loop(),
                next => {
                    group = next;
                    gaps.clear();
                    let seen = self.loops(accounts, &mut gaps);
                    *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = seen;
                    self.finished.store(group, Release);
                }
            }
        }
    }

    fn loops(&self, accounts: &[Account], gaps: &mut Gaps) -> Seen {
        let (before, mut charge_ns) = (switches(), 0);
        for _ in 0..LOOPS {
            let began = clock::now().0;
            for account in accounts {
                must(account.try_charge(1));
                must(account.uncharge(1));
            }
            let mut last = clock::now().0;
            charge_ns += last - began;
            self.begun.fetch_add(1, Release);
            let end = last + LOOP_NS;
            while last < end {
                let now = clock::now().0;
                gaps.note(now - last);
                last = now;
            }
        }
        Seen {
            counts: [switches() - before, 0, 0],
            p999_ns: gaps.quantile(0.999),
            longest_ns: gaps.quantile(1.0),
            charge_ns: charge_ns as f64 / (LOOPS * accounts.len() as u64) as f64,
        }
    }

    /// Runs one group of loops, disturbed by one method. Returns what the worker measured, without the interrupts; an
    /// error if a signal came.
    fn group(
        &self,
        method: &Method,
        accounts: &[Account],
        helper: &std::thread::Thread,
    ) -> Result<Seen, Interrupted> {
        let (begun, number) = (self.begun.load(Acquire), self.group.load(Relaxed) + 1);
        self.group.store(number, Release);
        for i in 0..LOOPS {
            while self.begun.load(Acquire) == begun + i {
                check_interrupted()?;
                std::hint::spin_loop();
            }
            let from = clock::now().0;
            for n in 0..method.times {
                while clock::now().0 < from + n * WITHIN_NS / method.times {
                    std::hint::spin_loop();
                }
                match method.action {
                    Action::Nothing => {}
                    Action::Drain => _ = accounts[n as usize].drain_all(),
                    Action::Fence => membarrier::fence_rseq(),
                    Action::Wake => helper.unpark(),
                }
            }
        }
        while self.finished.load(Acquire) != number {
            std::hint::spin_loop();
        }
        Ok(*self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The number of a CPU's rescheduling interrupts and of its function call interrupts.
type Interrupts = [u64; 2];

/// The ends of the lines of [`Interrupts`] in `/proc/interrupts`, the same on x86-64 and AArch64.
const KINDS: [&str; 2] = ["Rescheduling interrupts", "Function call interrupts"];

fn interrupts(text: &str, cpu: CpuId) -> Option<Interrupts> {
    let mut lines = text.lines();
    let column = lines.next()?.split_whitespace().position(|name| name == format!("CPU{}", cpu.0))?;
    let mut found = [None; 2];
    for line in lines {
        for (kind, name) in found.iter_mut().zip(KINDS) {
            if line.trim_end().ends_with(name) {
                *kind = line.split_whitespace().nth(column + 1)?.parse::<u64>().ok();
            }
        }
    }
    Some([found[0]?, found[1]?])
}

fn interrupts_now(cpu: CpuId) -> Option<Interrupts> {
    interrupts(&std::fs::read_to_string("/proc/interrupts").ok()?, cpu)
}

pub(super) fn run(ctx: &CaseCtx) -> anyhow::Result<Vec<Row>> {
    let has_fence = membarrier::register_rseq().is_ok();
    let methods: Vec<&Method> =
        METHODS.iter().filter(|method| has_fence || method.action != Action::Fence).collect();
    let accounts = &leaves(default_kind(), LIMIT, ACCOUNTS)[..];
    let (partner, rounds) = (ctx.partner(), if ctx.effort.is_quick() { 14 } else { 40 });
    let state = &SharedState::default();
    let help = || {
        while state.group.load(Acquire) != OVER {
            std::thread::park();
        }
    };
    let mut seen: Vec<Vec<Seen>> = vec![Vec::new(); methods.len()];
    let ask = |helper: &std::thread::Thread| {
        ctx.in_rounds(rounds, methods.len(), |i| {
            let before = interrupts_now(partner);
            let mut group = state.group(methods[i], accounts, helper)?;
            if let (Some(before), Some(after)) = (before, interrupts_now(partner)) {
                group.counts[1..].copy_from_slice(&[0, 1].map(|kind| after[kind] - before[kind]));
            }
            seen[i].push(group);
            Ok(())
        })
    };
    with_worker(ctx, || state.work(accounts), help, ask, || state.group.store(OVER, Release))?;
    let has_counts = interrupts_now(partner).is_some();
    Ok(rows(ctx.name, &methods, &seen, rounds as u64, has_counts))
}

/// Returns the rows; `seen` has the groups of each method, round by round. The first method has no drains.
fn rows(case: &str, methods: &[&Method], seen: &[Vec<Seen>], rounds: u64, has_counts: bool) -> Vec<Row> {
    fn numbers(seen: &[Seen], number: fn(&Seen) -> f64) -> Vec<f64> {
        seen.iter().map(number).collect()
    }
    let mut rows = Vec::new();
    let quiet = &seen[0];
    let with = || methods.iter().zip(seen).filter(|(method, _)| method.action != Action::Nothing);
    let p999: fn(&Seen) -> f64 = |group| group.p999_ns as f64;
    for (method, seen) in with() {
        let row = Row::ratio(case, method.name, NONE, &numbers(seen, p999), &numbers(quiet, p999));
        let row = Row { metric: "ratio, p99.9 gap".into(), ..row };
        rows.push(row.promise_if(method.action == Action::Drain, Bound::AtMost, GAP_RATIO_MAX));
    }
    let names = [
        ("involuntary switches", "switches"),
        ("rescheduling interrupts", "interrupts"),
        ("function call interrupts", "interrupts"),
    ];
    for (kind, (name, unit)) in names.into_iter().enumerate().filter(|(kind, _)| *kind == 0 || has_counts) {
        for (method, seen) in methods.iter().zip(seen) {
            let metric = format!("{name} in all loops");
            let count = seen.iter().map(|group| group.counts[kind]).sum::<u64>() as f64;
            rows.push(Row::exact(case, method.name, &metric, unit, count, rounds * LOOPS));
        }
        // To see whether a count grows with the number of drains, subtract the count of the same round's loops without
        // drains. Take the median, since other interrupts come in bursts.
        for (method, seen) in with() {
            let more = |(with, without): (&Seen, &Seen)| {
                let more = with.counts[kind] as f64 - without.counts[kind] as f64;
                more * 1000.0 / (LOOPS * method.times) as f64
            };
            let samples: Vec<f64> = seen.iter().zip(quiet).map(more).collect();
            let row = Row::of(case, method.name, &format!("{name} more, per 1000"), unit, &samples);
            rows.push(row.promise_if(method.action == Action::Drain, Bound::AtMost, PER_1000_MAX));
        }
    }
    for (method, seen) in methods.iter().zip(seen) {
        let row = |metric, number| Row::of(case, method.name, metric, "ns", &numbers(seen, number));
        rows.push(row("p99.9 gap", p999));
        rows.push(row("largest gap", |group| group.longest_ns as f64));
        rows.push(row("first charge and uncharge after", |group| group.charge_ns));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpus_interrupts_are_those_of_its_column() {
        let text = "           CPU0       CPU2       \n  24:          1          0  IO-APIC   5-edge      ACPI:Ged\n \
                    RES:    1133025    1061931   Rescheduling interrupts\n \
                    CAL:   10682214   10733619   Function call interrupts\nERR:          0\n";
        assert_eq!(interrupts(text, CpuId(2)), Some([1_061_931, 10_733_619]));
        assert_eq!(interrupts(text, CpuId(1)), None);
        let arm = "  CPU0 CPU1\nIPI0: 5 6 Rescheduling interrupts\nIPI1: 7 8 Function call interrupts\n";
        assert_eq!(interrupts(arm, CpuId(1)), Some([6, 8]));
        assert_eq!(interrupts("", CpuId(0)), None);
    }

    #[test]
    fn gaps_know_their_quantiles() {
        let mut gaps = Gaps::new();
        assert_eq!(gaps.quantile(0.999), 0);
        (1..=990).for_each(|ns| gaps.note(ns));
        (0..10).for_each(|i| gaps.note(5000 + i));
        assert_eq!([0.0, 0.5, 0.989, 1.0].map(|q| gaps.quantile(q)), [1, 500, 989, 5009]);
        gaps.clear();
        gaps.note(3);
        assert_eq!(gaps.quantile(1.0), 3);
    }

    #[test]
    fn what_comes_with_every_drain_is_seen_and_what_does_not_is_not() {
        let methods = [&METHODS[0], &METHODS[2], &METHODS[4]];
        let seen = |switches, gap| -> Vec<Seen> {
            let group = |round| Seen {
                p999_ns: gap,
                longest_ns: gap,
                charge_ns: 9.0,
                counts: [if round == 9 { 400 } else { switches }, 7, 7],
            };
            (0..40).map(group).collect()
        };
        let rows = rows("isolation", &methods, &[seen(1, 30), seen(2, 31), seen(51, 900)], 40, true);
        let row = |variant: &str, metric: &str| {
            rows.iter().find(|r| r.variant == variant && r.metric == metric).unwrap()
        };
        let drains = row("500 drains a ms", "involuntary switches more, per 1000");
        // The median is 1 switch in 2500 drains, 0.4 per 1000.
        assert!(
            drains.median == 0.4
                && drains.target.as_ref().unwrap().standing == warmcore_results::Standing::Met,
            "{drains:?}"
        );
        let wakes = row("control: 10 woken helpers a ms", "involuntary switches more, per 1000");
        assert!(wakes.median == 1000.0 && wakes.target.is_none(), "{wakes:?}");
        assert_eq!(
            row("500 drains a ms", "ratio, p99.9 gap").target.as_ref().unwrap().standing,
            warmcore_results::Standing::Met
        );
    }
}
