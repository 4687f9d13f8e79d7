//! The measuring harness: runs the variants of a case in alternating short slices within one process.
//!
//! A round runs one slice of every variant, in an order that is shuffled for each round. A slice has as many operations
//! as take about [`Effort::slice`], a millisecond in a full run, and at least one. A disturbance that lasts longer than
//! a round then affects all variants alike, and a ratio compares only slices of the same round.
//!
//! 100 rounds × 1 ms × 10 variants take a second. Reading the clock twice costs a slice about 50 ns, 0.005 %.
//!
//! A variant may have a partner: an operation that another CPU repeats while the variant is measured. The measuring
//! thread writes `Partner::assigned`, the partner's thread `Partner::acts`; they are on different cache lines.

use anyhow::Context;
use fastrand::Rng;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use std::time::Duration;
use warmcore_line::{Line, Padded};
use warmcore_results::{Bound, Row};
use warmcore_sys::{affinity, clock};
use warmcore_types::CpuId;

/// The number of rounds and the length of a slice, which determine how long a bench takes.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// The number of rounds of a case that does not choose its own.
    pub rounds: usize,
    /// The intended length of a slice.
    pub slice: Duration,
}

impl Effort {
    /// For numbers that go into a report.
    pub const FULL: Self = Self { rounds: 150, slice: Duration::from_millis(1) };
    /// For a first look: about a quarter of the time in a case that uses both numbers, with wider intervals.
    pub const QUICK: Self = Self { rounds: 50, slice: Duration::from_micros(700) };

    /// This many slices of a runtime, each as long as in a full run, or `least` if that is longer.
    pub fn slices(rounds: usize, least: Duration) -> Self {
        Self { rounds, slice: least.max(Self::FULL.slice) }
    }

    /// Whether this has as many rounds as [`Effort::QUICK`].
    pub fn is_quick(self) -> bool {
        self.rounds == Self::QUICK.rounds
    }
}

/// One way to do the work of a case.
pub struct Variant<'a> {
    name: String,
    /// Does the operation the given number of times, on the measuring thread.
    work: Box<dyn FnMut(u64) + 'a>,
    /// Does the partner's operation some times on the partner's thread, and returns how many times.
    partner: Option<Box<dyn Fn() -> u64 + Sync + 'a>>,
}

impl<'a> Variant<'a> {
    /// Makes a variant with this name; `work(n)` does the operation `n` times.
    pub fn new(name: &str, work: impl FnMut(u64) + 'a) -> Self {
        Self { name: name.to_owned(), work: Box::new(work), partner: None }
    }

    /// Makes the second CPU repeat `act` while the variant is calibrated and measured; `act` returns how many
    /// operations it did. For cases that have a second CPU.
    pub fn beside(self, act: impl Fn() -> u64 + Sync + 'a) -> Self {
        Self { partner: Some(Box::new(act)), ..self }
    }

    /// As [`Variant::beside`], if `two` (the case measures two CPUs).
    pub fn beside_if(self, two: bool, act: impl Fn() -> u64 + Sync + 'a) -> Self {
        if two { self.beside(act) } else { self }
    }
}

/// Does an operation in a function that is not inlined, as in a program that is too large to inline everything.
#[inline(never)]
pub fn called<T, R>(on: T, act: impl Fn(T) -> R) -> R {
    act(on)
}

/// The results of a case: for each variant, the ns per operation of every round, and per operation of its partner, if
/// it has one.
pub struct Measured {
    case: String,
    names: Vec<String>,
    own_ns: Vec<Vec<f64>>,
    partner_ns: Vec<Vec<f64>>,
}

/// The CPU that measures and, if there is a second one, the CPU of the partner.
#[derive(Debug, Clone, Copy)]
pub struct BenchCpus {
    /// Runs the slices.
    pub own: CpuId,
    /// Runs the partner's operation.
    pub partner: Option<CpuId>,
}

impl BenchCpus {
    /// Returns the first two allowed CPUs.
    pub fn find() -> anyhow::Result<Self> {
        let allowed = affinity::allowed()?;
        let mut cpus = allowed.iter();
        let own = cpus.next().context("the kernel names no CPU that this process may use")?;
        Ok(Self { own, partner: cpus.next() })
    }
}

/// The state that the measuring thread and the partner's thread share. The measuring thread writes `assigned` and
/// `done`, the partner's thread `acts` and `seen`.
#[derive(Line)]
#[line(pair)]
#[repr(C, align(128))]
struct Partner {
    /// The variant whose partner operation is repeated; `REST` if there is none.
    #[line(owner = "measuring")]
    assigned: Padded<AtomicUsize>,
    #[line(owner = "measuring")]
    done: AtomicBool,
    /// The last value of `assigned` that the partner has read.
    #[line(owner = "partner")]
    seen: Padded<AtomicUsize>,
    #[line(owner = "partner")]
    acts: AtomicU64,
}

const REST: usize = usize::MAX;

/// Set by a signal ([`crate::signals`]). The running case then ends early; the rows of finished cases are kept.
pub static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// The error of a case that a signal interrupted.
#[derive(Debug)]
pub struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted by a signal")
    }
}

impl std::error::Error for Interrupted {}

/// Returns the error [`Interrupted`] if a signal came.
pub fn check_interrupted() -> Result<(), Interrupted> {
    if INTERRUPTED.load(Relaxed) { Err(Interrupted) } else { Ok(()) }
}

/// Runs `body` with this thread pinned to `cpu`. After `body` returns, the thread may use the same CPUs as before.
pub fn pinned<T>(cpu: CpuId, body: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let before = affinity::allowed()?;
    affinity::pin(cpu)?;
    let result = body();
    affinity::set_allowed(&before)?;
    result
}

/// Calls `slice` for each of `variants` in every round, in an order that is shuffled for each round. Calls `tick` after
/// each round, with the number of finished rounds. Returns an error if `slice` does or if a signal came.
pub fn in_rounds(
    rounds: usize,
    variants: usize,
    tick: impl Fn(usize),
    mut slice: impl FnMut(usize) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut order: Vec<usize> = (0..variants).collect();
    for round in 0..rounds {
        shuffle(&mut order, round as u64);
        for &i in &order {
            check_interrupted()?;
            slice(i)?;
        }
        tick(round + 1);
    }
    Ok(())
}

/// Measures a case. `tick` is called after every round. Returns the error [`Interrupted`] if a signal came, and another
/// error if this thread can't be pinned.
pub fn interleave(
    case: &str,
    mut variants: Vec<Variant>,
    cpus: BenchCpus,
    effort: Effort,
    tick: &dyn Fn(),
) -> anyhow::Result<Measured> {
    let names: Vec<String> = variants.iter().map(|v| v.name.clone()).collect();
    let partners: Vec<_> = variants.iter_mut().map(|v| v.partner.take()).collect();
    let state = Partner {
        assigned: Padded::new(AtomicUsize::new(REST)),
        done: AtomicBool::new(false),
        seen: Padded::new(AtomicUsize::new(REST)),
        acts: AtomicU64::new(0),
    };
    let mut own_ns = vec![Vec::new(); names.len()];
    let mut partner_ns = vec![Vec::new(); names.len()];
    let mut measure = || {
        // End the partner's thread even if a variant panics; otherwise the scope would wait for the thread for ever.
        let _end = OnDrop(|| state.done.store(true, Release));
        let mut iterations: Vec<u64> = Vec::new();
        for (i, variant) in variants.iter_mut().enumerate() {
            let _guard = PartnerGuard::take(&state, partners[i].is_some().then_some(i));
            iterations.push(calibrate(variant, effort.slice));
        }
        let tick = |_| tick();
        in_rounds(effort.rounds, variants.len(), tick, |i| {
            let guard = PartnerGuard::take(&state, partners[i].is_some().then_some(i));
            let (acts, began) = (state.acts.load(Relaxed), clock::now());
            (variants[i].work)(iterations[i]);
            let ns = (clock::now().0 - began.0).max(1) as f64;
            let acts = state.acts.load(Relaxed) - acts;
            drop(guard);
            own_ns[i].push(ns / iterations[i] as f64);
            if partners[i].is_some() {
                partner_ns[i].push(ns / acts.max(1) as f64);
            }
            Ok(())
        })
    };
    pinned(cpus.own, || {
        std::thread::scope(|scope| {
            if let Some(cpu) = cpus.partner.filter(|_| partners.iter().any(Option::is_some)) {
                let (state, partners) = (&state, &partners);
                scope.spawn(move || partner(cpu, state, partners));
            }
            measure()
        })
    })?;
    Ok(Measured { case: case.to_owned(), names, own_ns, partner_ns })
}

/// While the guard exists, the partner's thread repeats the operation of the variant's partner, if `take` got a
/// variant.
struct PartnerGuard<'a>(&'a Partner, bool);

impl<'a> PartnerGuard<'a> {
    fn take(state: &'a Partner, variant: Option<usize>) -> Self {
        let Some(variant) = variant else { return Self(state, false) };
        // ORDERING: Release; pairs with the Acquire in `partner`.
        state.assigned.store(variant, Release);
        while state.seen.load(Acquire) != variant {
            std::hint::spin_loop();
        }
        Self(state, true)
    }
}

impl Drop for PartnerGuard<'_> {
    fn drop(&mut self) {
        if self.1 {
            self.0.assigned.store(REST, Release);
            while self.0.seen.load(Acquire) != REST {
                std::hint::spin_loop();
            }
        }
    }
}

struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

fn partner(cpu: CpuId, state: &Partner, acts: &[Option<Box<dyn Fn() -> u64 + Sync + '_>>]) {
    // An error is ignored: Linux usually puts an unpinned partner on another CPU, since the measuring CPU is busy.
    let _ = affinity::pin(cpu);
    while !state.done.load(Acquire) {
        let assigned = state.assigned.load(Acquire);
        state.seen.store(assigned, Release);
        match acts.get(assigned).and_then(Option::as_ref) {
            Some(act) => {
                state.acts.fetch_add(act(), Relaxed);
            }
            None => std::thread::yield_now(),
        }
    }
}

/// Returns how many operations take about `slice`. Warms up the variant while doing so.
fn calibrate(variant: &mut Variant, slice: Duration) -> u64 {
    // The first use is not timed: it may allocate, map memory or register, and would look like a slow operation.
    (variant.work)(1);
    let mut n = 1u64;
    let mut time = |n: u64| {
        let began = clock::now();
        (variant.work)(n);
        (clock::now().0 - began.0).max(1)
    };
    let is_long = |ns: u64| u128::from(ns) * 2 >= slice.as_nanos();
    loop {
        let mut ns = time(n);
        // Take the shortest of five: if the thread is preempted here, the operation looks slow, and all slices would
        // have too few operations.
        for _ in 0..4 {
            ns = if is_long(ns) { ns.min(time(n)) } else { ns };
        }
        if is_long(ns) || n > 1 << 40 {
            return ((n as f64 * slice.as_nanos() as f64 / ns as f64) as u64).max(1);
        }
        n *= 2;
    }
}

/// Returns the rows of `promises`, then those of `ratios` that compare what no row of `promises` compares.
pub fn promised_first(promises: impl IntoIterator<Item = Option<Row>>, ratios: Vec<Row>) -> Vec<Row> {
    fn key(row: &Row) -> (&str, &str, Option<&str>) {
        (&row.metric, &row.variant, row.over.as_deref())
    }
    let mut rows: Vec<Row> = promises.into_iter().flatten().collect();
    let others: Vec<Row> =
        ratios.into_iter().filter(|ratio| rows.iter().all(|row| key(row) != key(ratio))).collect();
    rows.extend(others);
    rows
}

/// Shuffles the order in which a round runs the variants. The permutation depends only on the round's number and the
/// number of variants, so it is the same in every run of the program.
fn shuffle(order: &mut [usize], round: u64) {
    Rng::with_seed(round).shuffle(order);
}

impl Measured {
    fn of(&self, variant: &str) -> Option<&[f64]> {
        self.names.iter().position(|n| n == variant).map(|i| &self.own_ns[i][..])
    }

    /// Returns a `time` row for every variant.
    pub fn times(&self) -> Vec<Row> {
        let rows = self.names.iter().zip(&self.own_ns);
        rows.map(|(name, ns)| Row::of(&self.case, name, "time", "ns", ns)).collect()
    }

    /// Returns the rows of a case: times, the promises, then the other ratios over the variant `over`.
    pub fn rows(&self, over: &str, promises: impl IntoIterator<Item = Option<Row>>) -> Vec<Row> {
        let mut rows = self.times();
        rows.extend(promised_first(promises, self.ratios_over(over)));
        rows
    }

    /// Returns a row of the partner's times, called `metric`, for every variant that has a partner.
    pub fn partner_times(&self, metric: &str) -> Vec<Row> {
        let rows = self.names.iter().zip(&self.partner_ns).filter(|(_, ns)| !ns.is_empty());
        rows.map(|(name, ns)| Row::of(&self.case, name, metric, "ns", ns)).collect()
    }

    /// Returns for each other variant the ratio of its time to that of `over`.
    pub fn ratios_over(&self, over: &str) -> Vec<Row> {
        let others = self.names.iter().filter(|name| *name != over);
        others.filter_map(|name| self.ratio(name, over)).collect()
    }

    /// Returns the ratio `variant ÷ over`, if the case has both variants.
    pub fn ratio(&self, variant: &str, over: &str) -> Option<Row> {
        Some(Row::ratio(&self.case, variant, over, self.of(variant)?, self.of(over)?))
    }

    /// As [`Measured::ratio`], with a promise.
    pub fn promise(&self, variant: &str, over: &str, kind: Bound, value: f64) -> Option<Row> {
        self.ratio(variant, over).map(|row| row.promise(kind, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EFFORT: Effort = Effort { rounds: 7, slice: Duration::from_micros(100) };

    #[test]
    fn every_variant_runs_once_a_round_and_the_partner_runs_beside() {
        let (a, b, beside) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        let work = |n: &'static str, counter| {
            Variant::new(n, move |k| {
                for _ in 0..k {
                    AtomicU64::fetch_add(counter, 1, Relaxed);
                }
            })
        };
        let act = || {
            beside.fetch_add(10, Relaxed);
            10
        };
        let ticks = AtomicU64::new(0);
        let tick = || _ = ticks.fetch_add(1, Relaxed);
        let variants = vec![work("a", &a), work("b", &b).beside(act)];
        let cpus = BenchCpus::find().unwrap();
        let measured = interleave("case", variants, cpus, EFFORT, &tick).unwrap();
        let times = measured.times();
        assert_eq!(times.iter().map(|r| (r.variant.as_str(), r.n)).collect::<Vec<_>>(), [("a", 7), ("b", 7)]);
        assert_eq!(ticks.into_inner(), 7);
        let ratio = measured.ratio("a", "b").unwrap();
        assert_eq!((ratio.n, ratio.over.as_deref(), ratio.unit.as_str()), (7, Some("b"), "x"));
        if cpus.partner.is_some() {
            assert!(beside.into_inner() > 0);
            assert_eq!(measured.partner_times("writer time").len(), 1);
        }
        assert!(measured.ratio("a", "c").is_none());
    }

    #[test]
    fn an_order_is_a_permutation_and_changes() {
        let orders: std::collections::HashSet<Vec<usize>> = (0..50)
            .map(|round| {
                let mut order: Vec<usize> = (0..6).collect();
                shuffle(&mut order, round);
                let mut sorted = order.clone();
                sorted.sort_unstable();
                assert_eq!(sorted, (0..6).collect::<Vec<_>>());
                order
            })
            .collect();
        assert!(orders.len() > 20);
    }
}
