//! The measuring harness: runs the variants of a case in alternating short slices within one process.
//!
//! A round runs one slice of every variant, in an order that changes from round to round. A slice has as many
//! operations as take about a millisecond. A disturbance of the machine then affects all variants alike, and a ratio
//! compares slices of the same round. Results of two runs are never compared.
//!
//! 100 rounds × 1 ms × 10 variants take a second. Reading the clock twice costs a slice about 50 ns, 0.005 %.
//!
//! A variant may have a partner: an operation that another CPU repeats during the slices of the variant.
//! `Partner::assigned` is written by the measuring thread, `acts` by the partner's thread; each is on a cache line of
//! its own.

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
    /// The number of rounds of every case.
    pub rounds: usize,
    /// The intended length of a slice.
    pub slice: Duration,
}

impl Effort {
    /// For numbers that go into a report.
    pub const FULL: Self = Self { rounds: 150, slice: Duration::from_millis(1) };
    /// For a first look: a quarter of the time, with wider intervals.
    pub const QUICK: Self = Self { rounds: 50, slice: Duration::from_micros(700) };

    /// Whether this is [`Effort::QUICK`].
    pub fn is_quick(self) -> bool {
        self.rounds == Self::QUICK.rounds
    }
}

/// One way to do the work of a case.
pub struct Variant<'a> {
    name: String,
    /// Does the operation the given number of times, on the measuring thread.
    work: Box<dyn FnMut(u64) + 'a>,
    /// Does the partner's operation a few times on the partner's thread, and returns how many times.
    partner: Option<Box<dyn Fn() -> u64 + Sync + 'a>>,
}

impl<'a> Variant<'a> {
    /// Makes a variant with this name; `work(n)` does the operation `n` times.
    pub fn new(name: &str, work: impl FnMut(u64) + 'a) -> Self {
        Self { name: name.to_owned(), work: Box::new(work), partner: None }
    }

    /// Makes the second CPU repeat `act` while the variant is measured; `act` returns how many operations it did.
    pub fn beside(self, act: impl Fn() -> u64 + Sync + 'a) -> Self {
        Self { partner: Some(Box::new(act)), ..self }
    }
}

/// The results of a case: for each variant, the ns per operation of every round.
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
        let own = cpus
            .next()
            .ok_or_else(|| anyhow::anyhow!("the kernel names no CPU that this process may use"))?;
        Ok(Self { own, partner: cpus.next() })
    }
}

/// The state that the measuring thread and the partner's thread share. The measuring thread writes `assigned` and `done`,
/// the partner's thread `acts` and `seen`.
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

/// Set by a signal ([`crate::signals`]). The running case is then abandoned; finished cases are kept.
pub static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Measures a case. Returns `None` if a signal came. `tick` is called after every round.
pub fn interleave(
    case: &str,
    mut variants: Vec<Variant>,
    cpus: BenchCpus,
    effort: Effort,
    tick: &dyn Fn(),
) -> anyhow::Result<Option<Measured>> {
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
    let before = affinity::allowed()?;
    affinity::pin(cpus.own)?;
    let finished = std::thread::scope(|scope| {
        if let Some(cpu) = cpus.partner.filter(|_| partners.iter().any(Option::is_some)) {
            let (state, partners) = (&state, &partners);
            scope.spawn(move || partner(cpu, state, partners));
        }
        // End the partner's thread even if a variant panics; otherwise the scope would wait for the thread for ever.
        let _end = OnDrop(|| state.done.store(true, Release));
        let mut iterations: Vec<u64> = Vec::new();
        for (i, variant) in variants.iter_mut().enumerate() {
            let _guard = PartnerGuard::take(&state, partners[i].is_some().then_some(i));
            iterations.push(calibrate(variant, effort.slice));
        }
        let mut order: Vec<usize> = (0..variants.len()).collect();
        for round in 0..effort.rounds {
            shuffle(&mut order, round as u64);
            for &i in &order {
                if INTERRUPTED.load(Relaxed) {
                    return false;
                }
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
            }
            tick();
        }
        true
    });
    affinity::set_allowed(&before)?;
    Ok(finished.then(|| Measured { case: case.to_owned(), names, own_ns, partner_ns }))
}

/// While the guard exists, the partner's thread repeats the operation of one variant's partner.
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
    // An error is ignored: the scheduler puts an unpinned partner on another CPU, since the measuring CPU is busy.
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
        // Take the best of five: if the thread is preempted here, the operation looks slow, and all slices would have
        // too few operations.
        for _ in 0..4 {
            ns = if is_long(ns) { ns.min(time(n)) } else { ns };
        }
        if is_long(ns) || n > 1 << 40 {
            return ((n as f64 * slice.as_nanos() as f64 / ns as f64) as u64).max(1);
        }
        n *= 2;
    }
}

/// Shuffles the order in which a round runs the variants. The order differs from round to round and is the same in
/// every run of the program.
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

    /// Returns the ratio `variant ÷ over`, if both variants ran.
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
        let measured = interleave("case", variants, cpus, EFFORT, &tick).unwrap().unwrap();
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
