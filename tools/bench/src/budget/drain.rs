//! The time to drain the stock of another CPU, compared with methods that ask that CPU to do it.
//!
//! A pinned worker runs in loops of 1 ms and has a stock (units that a CPU holds ready) on its CPU. A thread on another
//! CPU wants the units back. It drains the stock itself (a variant for each kind of stock); or it sends a message,
//! which the worker answers at the end of its loop; or it wakes a helper thread that is pinned to the worker's CPU, as
//! the kernel's scheduled work does; or it only issues a fence, which drains nothing. In the case *quiet* the worker
//! charges and uncharges once before each sample, on request. In *contended* the worker does so all the time. One
//! sample is one drain (or one fence), timed on the CPU that wants the units.
//!
//! The two cache misses and the locked instruction of a drain take 100 to 200 ns. A message waits 0.5 ms on average for
//! the end of the loop. The times include 20 to 30 ns for reading the clock.
//!
//! `SharedState` has the fields of the requesting thread and those of the answering threads on different cache lines.

use super::setup::*;
use crate::case::CaseCtx;
use crate::measure::{Interrupted, check_interrupted};
use fastrand::Rng;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};
use std::time::Instant;
use warmcore_budget::StockKind;
use warmcore_line::{Line, Padded};
use warmcore_results::{Bound, Row};
use warmcore_sys::{clock, membarrier};

pub use warmcore_results::names::drain::{CONTENDED, HELPER, P99, QUIET};

/// The variant whose message the worker answers at the end of a loop. Its time depends on the length of this program's
/// loops, so it has no ratio row.
const MESSAGE: &str = "a message, answered after 1 ms loops";
const FENCE: &str = "membarrier (a fence, no drain)";

const LOOP_NS: u64 = 1_000_000;
const QUIET_P50_MAX_NS: f64 = 200.0;
const CONTENDED_P99_MAX_NS: f64 = 1000.0;
/// A round of one method ends after its number of samples, or earlier with the first sample that ends after this time,
/// since an answer may take milliseconds.
const ROUND_MAX_NS: u64 = 25_000_000;

/// How the requesting CPU gets the units back; with `Fence` it does not.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// Drained by the requesting CPU.
    Taken,
    Message,
    Helper,
    Fence,
}

/// A method to drain, and the account that only this method uses.
struct Method<'a> {
    name: &'static str,
    how: How,
    gate: &'a dyn Drain,
}

/// The method in use, and the numbers of the last request and of the last answer of each sort. A request increments its
/// number; the answer stores the same number.
#[derive(Default, Line)]
#[line(pair)]
#[repr(C, align(128))]
struct SharedState {
    /// The index of the method that is measured; `NONE_ASSIGNED` before the first, `OVER` at the end.
    #[line(owner = "asking")]
    assigned: Padded<AtomicUsize>,
    #[line(owner = "asking")]
    refill: AtomicU64,
    #[line(owner = "asking")]
    message: AtomicU64,
    #[line(owner = "asking")]
    call: AtomicU64,
    #[line(owner = "answering")]
    refilled: Padded<AtomicU64>,
    #[line(owner = "answering")]
    answered: AtomicU64,
    #[line(owner = "answering")]
    called: AtomicU64,
}

const NONE_ASSIGNED: usize = usize::MAX - 1;
const OVER: usize = usize::MAX;

impl SharedState {
    fn new() -> Self {
        Self { assigned: Padded::new(AtomicUsize::new(NONE_ASSIGNED)), ..Self::default() }
    }

    /// The worker: runs in loops of 1 ms until it reads `OVER` from `assigned`.
    fn work(&self, methods: &[Method], contended: bool) {
        loop {
            let end = clock::now().0 + LOOP_NS;
            while clock::now().0 < end {
                // ORDERING: Acquire for `assigned`, `refill` and `message`; each pairs with the Release of the
                // requesting thread.
                let assigned = self.assigned.load(Acquire);
                let Some(method) = methods.get(assigned) else {
                    if assigned == OVER {
                        return;
                    }
                    continue;
                };
                if contended {
                    method.gate.churn();
                }
                let wanted = self.refill.load(Acquire);
                if wanted != self.refilled.load(Relaxed) {
                    method.gate.pair();
                    self.refilled.store(wanted, Release);
                }
            }
            let asked = self.message.load(Acquire);
            if asked != self.answered.load(Relaxed)
                && let Some(method) = methods.get(self.assigned.load(Acquire))
            {
                method.gate.drain();
                self.answered.store(asked, Release);
            }
        }
    }

    /// The helper: parked until the requesting thread unparks it. Drains if there is a new call; returns if `assigned`
    /// is `OVER`.
    fn help(&self, methods: &[Method]) {
        loop {
            std::thread::park();
            let assigned = self.assigned.load(Acquire);
            if assigned == OVER {
                return;
            }
            let asked = self.call.load(Acquire);
            if asked != self.called.load(Relaxed)
                && let Some(method) = methods.get(assigned)
            {
                method.gate.drain();
                self.called.store(asked, Release);
            }
        }
    }

    /// Makes a request, calls `after`, and waits for the answer; returns an error if a signal came before the answer.
    fn ask(&self, asked: &AtomicU64, answered: &AtomicU64, after: impl FnOnce()) -> Result<(), Interrupted> {
        let number = asked.load(Relaxed) + 1;
        asked.store(number, Release);
        after();
        while answered.load(Acquire) != number {
            check_interrupted()?;
            std::hint::spin_loop();
        }
        Ok(())
    }
}

fn spin(ns: u64) {
    let end = clock::now().0 + ns;
    while clock::now().0 < end {
        std::hint::spin_loop();
    }
}

/// The requesting thread.
struct Asking<'a> {
    state: &'a SharedState,
    helper: &'a std::thread::Thread,
    contended: bool,
    rng: Rng,
}

impl Asking<'_> {
    /// The number of samples that a round takes if there is time: 400 if the requesting CPU drains by itself, fewer for
    /// the other methods.
    fn aim(how: How) -> usize {
        match how {
            How::Taken => 400,
            How::Message => 14,
            How::Helper | How::Fence => 60,
        }
    }

    /// Times one drain, or one fence, in ns. Returns `None` if this thread drained and found no stock.
    fn sample(&mut self, method: &Method) -> Result<Option<u64>, Interrupted> {
        let state = self.state;
        if !self.contended {
            state.ask(&state.refill, &state.refilled, || ())?;
        }
        // The wait before a sample: a message is sent at a random moment of a loop, a helper has to be parked again,
        // and a stock has to be open again.
        let (from, width) = match method.how {
            How::Taken => (1000, 2000),
            How::Message => (0, LOOP_NS),
            How::Helper | How::Fence => (30_000, 20_000),
        };
        spin(from + self.rng.usize(..width as usize) as u64);
        // Not `clock`: on x86-64 `Instant` waits until earlier instructions have finished.
        let began = Instant::now();
        let mut was_there = true;
        match method.how {
            How::Taken => was_there = method.gate.drain() > 0,
            How::Message => state.ask(&state.message, &state.answered, || ())?,
            How::Helper => state.ask(&state.call, &state.called, || self.helper.unpark())?,
            How::Fence => membarrier::fence_rseq(),
        }
        let ns = began.elapsed().as_nanos() as u64;
        check_interrupted()?;
        Ok(was_there.then_some(ns))
    }

    /// Takes the samples of a round.
    fn round(&mut self, method: &Method) -> Result<Vec<f64>, Interrupted> {
        let end = clock::now().0 + ROUND_MAX_NS;
        let mut samples = Vec::new();
        for _ in 0..Self::aim(method.how) {
            samples.extend(self.sample(method)?.map(|ns| ns as f64));
            if clock::now().0 > end {
                break;
            }
        }
        Ok(samples)
    }
}

/// The samples, indexed by method, round and sample.
type Samples = Vec<Vec<Vec<f64>>>;

fn measure(ctx: &CaseCtx, methods: &[Method], contended: bool) -> anyhow::Result<Samples> {
    let state = &SharedState::new();
    let mut samples: Samples = vec![Vec::new(); methods.len()];
    let rounds = if ctx.effort.is_quick() { 8 } else { 25 };
    let ask = |helper: &std::thread::Thread| {
        let mut asking = Asking { state, helper, contended, rng: Rng::with_seed(7) };
        ctx.in_rounds(rounds, methods.len(), |i| {
            // ORDERING: Release; pairs with the Acquire of the worker and of the helper.
            state.assigned.store(i, Release);
            // The first request is made in *contended* too: its answer shows that the worker has switched to this
            // method.
            state.ask(&state.refill, &state.refilled, || ())?;
            samples[i].push(asking.round(&methods[i])?);
            Ok(())
        })
    };
    let work = || state.work(methods, contended);
    with_worker(ctx, work, || state.help(methods), ask, || state.assigned.store(OVER, Release))?;
    Ok(samples)
}

pub(super) fn run(ctx: &CaseCtx, contended: bool) -> anyhow::Result<Vec<Row>> {
    let (rseq, atomic) = (rseq_leaves(LIMIT, 1), leaves(StockKind::Atomic, LIMIT, 1));
    let locked = locked();
    let lock = locked_leaves(&locked, LIMIT, 1)[0];
    let asked = leaves(default_kind(), LIMIT, 3);
    let rseq = rseq.as_ref().map(|leaves| &leaves[0]);
    let (atomic, message, helper, fence) = (&atomic[0], &asked[0], &asked[1], &asked[2]);
    let mut methods = vec![
        Method { name: ATOMIC_STOCKS, how: How::Taken, gate: atomic },
        Method { name: LOCK, how: How::Taken, gate: &lock },
        Method { name: MESSAGE, how: How::Message, gate: message },
        Method { name: HELPER, how: How::Helper, gate: helper },
    ];
    methods.extend(rseq.iter().map(|leaf| Method { name: RSEQ, how: How::Taken, gate: *leaf }));
    if membarrier::register_rseq().is_ok() {
        methods.push(Method { name: FENCE, how: How::Fence, gate: fence });
    }
    let samples = measure(ctx, &methods, contended)?;
    rows(ctx.name, contended, &methods, &samples)
}

fn rows(case: &str, contended: bool, methods: &[Method], samples: &Samples) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (method, rounds) in methods.iter().zip(samples) {
        let all = rounds.concat();
        anyhow::ensure!(!all.is_empty(), "{}: there was never anything to drain", method.name);
        let is_promised = method.name == RSEQ || method.name == ATOMIC_STOCKS;
        let p50 = Row::of(case, method.name, "time", "ns", &all);
        let p99 = Row::quantile(case, method.name, P99, "ns", &all, 0.99);
        rows.push(p50.promise_if(is_promised && !contended, Bound::AtMost, QUIET_P50_MAX_NS));
        rows.push(p99.promise_if(is_promised && contended, Bound::AtMost, CONTENDED_P99_MAX_NS));
    }
    // Medians of rounds, so that a ratio compares samples of the same round.
    let medians = |name: &str| -> Option<Vec<f64>> {
        let i = methods.iter().position(|method| method.name == name)?;
        samples[i].iter().map(|round| median(round)).collect()
    };
    let ours = super::setup::ours();
    let below = medians(ours);
    for method in methods.iter().filter(|method| method.name != ours && method.how != How::Message) {
        if let (Some(above), Some(below)) = (medians(method.name), &below) {
            rows.push(Row::ratio(case, method.name, ours, &above, below));
        }
    }
    Ok(rows)
}

fn median(samples: &[f64]) -> Option<f64> {
    (!samples.is_empty()).then(|| Row::of("", "", "", "", samples).median)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_brings_the_units_back() {
        let leaf = &leaves(StockKind::Atomic, LIMIT, 1)[0];
        for fill in [Gate::pair, Drain::churn] {
            fill(leaf);
            assert!(leaf.usage().error > 0, "there is a stock");
            // A thread that migrates between two charges leaves two stocks.
            assert!(leaf.drain() > 0);
            assert_eq!((leaf.usage().charged, leaf.usage().error), (0, 0));
        }
        let locked = locked();
        let gate = locked_leaves(&locked, LIMIT, 1)[0];
        gate.churn();
        assert!(gate.drain() > 0);
        assert_eq!(locked.usage(gate.leaf).charged, 0);
    }

    #[test]
    fn no_ratio_is_made_over_a_method_whose_time_this_program_chose() {
        let gate = &leaves(StockKind::Atomic, LIMIT, 1)[0];
        let method = |name, how| Method { name, how, gate };
        let methods =
            [method(ours(), How::Taken), method(MESSAGE, How::Message), method(HELPER, How::Helper)];
        let samples = vec![vec![vec![100.0; 8]; 8], vec![vec![500_000.0; 8]; 8], vec![vec![9_000.0; 8]; 8]];
        let rows = rows(QUIET, false, &methods, &samples).unwrap();
        let ratios: Vec<_> = rows.iter().filter(|row| row.over.is_some()).collect();
        assert_eq!(
            ratios.iter().map(|row| (&*row.variant, row.median)).collect::<Vec<_>>(),
            [(HELPER, 90.0)]
        );
        assert!(rows.iter().any(|row| row.variant == MESSAGE && row.metric == "time"));
    }

    #[test]
    fn the_worker_answers_a_message_and_the_helper_a_call() {
        let (state, leaf) = (SharedState::new(), &leaves(StockKind::Atomic, LIMIT, 1)[0]);
        let methods = [Method { name: MESSAGE, how: How::Message, gate: leaf }];
        std::thread::scope(|scope| {
            scope.spawn(|| state.work(&methods, false));
            let helper = scope.spawn(|| state.help(&methods));
            let helper = helper.thread().clone();
            state.assigned.store(0, Release);
            for (asked, answered) in [(&state.message, &state.answered), (&state.call, &state.called)] {
                state.ask(&state.refill, &state.refilled, || ()).unwrap();
                state.ask(asked, answered, || helper.unpark()).unwrap();
                assert_eq!(leaf.usage().error, 0);
            }
            state.assigned.store(OVER, Release);
            helper.unpark();
        });
    }
}
