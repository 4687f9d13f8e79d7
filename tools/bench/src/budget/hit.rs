//! Charges that a stock (units that a CPU holds ready) mostly serves without the tree of accounts: of one unit (`hit`),
//! and of random sizes (`ring`).
//!
//! `hit` charges 1 and uncharges it, over and over. After the first charge the stock serves, so only the fast path is
//! measured. `ring` charges random sizes from 1 to 64 and uncharges each one 64 charges later, as requests do; if the
//! stock is empty or full, a charge or an uncharge goes up the tree. Each case runs alone, with another CPU on the same
//! leaf, and with another CPU on another leaf of the same group. The fast paths are inlined into the loop, as in a
//! user's program; `hit` is also measured in a function that is called, since a locked instruction waits until the
//! registers that the call saved are written.
//!
//! In `ring` about 2080 units are in use at a time (64 charges of 32.5 on average). The sizes repeat after 1024
//! charges.

use super::peers::*;
use super::setup::*;
use crate::case::CaseCtx;
use crate::measure::{Variant, called};
use fastrand::Rng;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use warmcore_budget::stock::LockedStocks;
use warmcore_budget::{Account, Accounts, StockKind};
use warmcore_line::Padded;
use warmcore_results::{Bound, Row};

/// What the other CPU does during the measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beside {
    Nothing,
    SameLeaf,
    OtherLeaf,
}

/// `ring` uncharges each charge after this many further charges.
const LAG: usize = 64;
/// The number of random sizes that are drawn before the measurement; a power of two.
const SIZES: usize = 1024;
const SIZE_MAX: usize = 64;
/// The capacity of Warmcore's stocks for charges of 1, as in `hit`; `RING_BATCH`: for charges of 32, about the mean of
/// `ring`. The thread-cached peer (`ThreadCached` in `peers.rs`) gets the same.
const HIT_BATCH: u64 = (1 << 9) - 1;
const RING_BATCH: u64 = (1 << 14) - 1;

/// The accounts and their peers: two leaves of each kind of stock, and of the three atomics.
struct All<'a> {
    rseq: Option<Vec<Account>>,
    strict: Vec<Account>,
    lock: Vec<LockedLeaf<'a>>,
    atomic: Level,
    atomics: [Level; 4],
    std_mutex: StdMutex,
    parking_lot: ParkingLot,
    cached: ThreadCached,
    beside: Beside,
}

impl<'a> All<'a> {
    fn new(locked: &'a Accounts<LockedStocks>, batch: u64, beside: Beside) -> Self {
        Self {
            rseq: rseq_leaves(LIMIT, 2),
            strict: leaves(StockKind::Atomic, LIMIT, 2),
            lock: locked_leaves(locked, LIMIT, 2),
            atomic: Level::new(LIMIT),
            atomics: std::array::from_fn(|_| Level::new(LIMIT)),
            std_mutex: Padded::new(Mutex::new(Numbers::new(LIMIT))),
            parking_lot: Padded::new(parking_lot::Mutex::new(Numbers::new(LIMIT))),
            cached: ThreadCached::new(LIMIT, batch),
            beside,
        }
    }

    /// The leaf that this CPU charges and the leaf that the other CPU charges.
    fn pick<'l, T>(&self, leaves: &'l [T]) -> [&'l T; 2] {
        [&leaves[0], &leaves[usize::from(self.beside == Beside::OtherLeaf)]]
    }

    fn rseq(&self) -> Option<[&Account; 2]> {
        self.rseq.as_ref().map(|leaves| self.pick(leaves))
    }

    fn strict(&self) -> [&Account; 2] {
        self.pick(&self.strict)
    }

    fn lock(&self) -> [LockedLeaf<'a>; 2] {
        self.pick(&self.lock).map(|leaf| *leaf)
    }

    fn paths(&self) -> [[&Level; 3]; 2] {
        let [first, second, group, root] = &self.atomics;
        self.pick(&[first, second]).map(|leaf| [*leaf, group, root])
    }

    /// A variant that charges 1 and uncharges it in a loop, on each CPU that takes part.
    fn pairs<'v, G: Gate + Copy + 'v>(&self, name: &str, [own, other]: [G; 2]) -> Variant<'v> {
        let variant = Variant::new(name, move |n| pairs(own, n.div_ceil(2)));
        variant.beside_if(self.beside != Beside::Nothing, move || {
            pairs(other, 128);
            256
        })
    }

    /// A variant that charges the sizes in turn, and uncharges each `LAG` charges later, on each CPU that takes part.
    fn ring<'v, G: Gate + Copy + 'v>(
        &self,
        name: &str,
        sizes: &'v [u64; SIZES],
        [own, other]: [G; 2],
    ) -> Variant<'v> {
        #[inline(always)]
        fn step(gate: impl Gate, sizes: &[u64; SIZES], at: usize) {
            gate.must_charge(sizes[at % SIZES]);
            if at >= LAG {
                gate.uncharge(sizes[(at - LAG) % SIZES]);
            }
        }
        let mut at = 0usize;
        let variant = Variant::new(name, move |n| {
            for _ in 0..n.div_ceil(2) {
                step(own, sizes, at);
                at += 1;
            }
        });
        let there = AtomicUsize::new(0);
        variant.beside_if(self.beside != Beside::Nothing, move || {
            let at = there.load(Relaxed);
            (at..at + 128).for_each(|at| step(other, sizes, at));
            there.store(at + 128, Relaxed);
            256
        })
    }
}

/// Charges 1 and uncharges it, `times` times. The closure has a copy of the reference to the account: so the compiler
/// knows that nothing writes the account's handle during the loop, and keeps it in registers, as in a loop of a user's
/// program.
pub(super) fn pairs(gate: impl Gate + Copy, times: u64) {
    (0..times).for_each(move |_| gate.pair());
}

/// A gate whose charge is in a function and whose uncharge is in another, as in code that is too large to be inlined.
#[derive(Clone, Copy)]
struct Called<G>(G);

impl<G: Gate + Copy> Gate for Called<G> {
    #[inline(always)]
    fn charge(&self, n: u64) -> bool {
        called(self.0, |gate| gate.charge(n))
    }

    #[inline(always)]
    fn uncharge(&self, n: u64) {
        called(self.0, |gate| gate.uncharge(n));
    }

    #[inline(always)]
    fn must_charge(&self, n: u64) {
        called(self.0, |gate| gate.must_charge(n));
    }
}

const RSEQ_CALLED: &str = "warmcore rseq, in a function";
const ATOMIC_STOCKS_CALLED: &str = "warmcore atomic, in a function";
const ATOMIC_CALLED: &str = "one shared atomic, in a function";

/// A charge of 1 and its uncharge.
pub(super) fn run(ctx: &CaseCtx, beside: Beside) -> anyhow::Result<Vec<Row>> {
    let locked = locked();
    let all = All::new(&locked, HIT_BATCH, beside);
    let mut variants = Vec::new();
    if let Some(rseq) = all.rseq() {
        variants.push(all.pairs(RSEQ, rseq));
        variants.push(all.pairs(RSEQ_CALLED, rseq.map(Called)));
    }
    variants.extend([
        all.pairs(ATOMIC_STOCKS, all.strict()),
        all.pairs(ATOMIC_STOCKS_CALLED, all.strict().map(Called)),
        all.pairs(LOCK, all.lock()),
        all.pairs(ATOMIC, [&all.atomic; 2]),
        all.pairs(ATOMIC_CALLED, [&all.atomic; 2].map(Called)),
        all.pairs(ATOMICS, all.paths()),
        all.pairs(STD_MUTEX, [&all.std_mutex; 2]),
        all.pairs(PARKING_LOT, [&all.parking_lot; 2]),
        all.pairs(CACHED, [&all.cached; 2]),
    ]);
    let measured = ctx.interleave(variants)?;
    let promises = match beside {
        Beside::Nothing => vec![
            // Each charge checks that its thread has a registered area. The bound was 8 before that check was added.
            measured.promise(ATOMIC, RSEQ, Bound::AtLeast, 6.0),
            measured.promise(ATOMIC_STOCKS, ATOMIC, Bound::AtMost, 1.1),
        ],
        Beside::SameLeaf => vec![
            measured.promise(ATOMIC, RSEQ, Bound::AtLeast, 20.0),
            measured.promise(ATOMICS, RSEQ, Bound::AtLeast, 100.0),
            measured.promise(ATOMIC, ATOMIC_STOCKS, Bound::AtLeast, 2.5),
        ],
        Beside::OtherLeaf => vec![],
    };
    let mut rows = measured.rows(ours(), promises);
    let called = [(ATOMIC_CALLED, RSEQ_CALLED), (ATOMIC_STOCKS_CALLED, ATOMIC_CALLED)];
    rows.extend(called.iter().filter_map(|(above, below)| measured.ratio(above, below)));
    Ok(rows)
}

/// Charges of random sizes, each uncharged 64 charges later.
pub(super) fn ring(ctx: &CaseCtx, beside: Beside) -> anyhow::Result<Vec<Row>> {
    let mut rng = Rng::with_seed(4);
    let sizes: &[u64; SIZES] = &std::array::from_fn(|_| 1 + rng.usize(..SIZE_MAX) as u64);
    let locked = locked();
    let all = All::new(&locked, RING_BATCH, beside);
    let mut variants: Vec<Variant> = all.rseq().map(|rseq| all.ring(RSEQ, sizes, rseq)).into_iter().collect();
    variants.extend([
        all.ring(ATOMIC_STOCKS, sizes, all.strict()),
        all.ring(LOCK, sizes, all.lock()),
        all.ring(ATOMIC, sizes, [&all.atomic; 2]),
        all.ring(ATOMICS, sizes, all.paths()),
        all.ring(STD_MUTEX, sizes, [&all.std_mutex; 2]),
        all.ring(PARKING_LOT, sizes, [&all.parking_lot; 2]),
        all.ring(CACHED, sizes, [&all.cached; 2]),
    ]);
    let measured = ctx.interleave(variants);
    settle(all.rseq.iter().flatten().chain(&all.strict));
    let measured = measured?;
    let promise = measured.promise(ATOMIC, RSEQ, Bound::AtLeast, 8.0);
    Ok(measured.rows(ours(), [promise.filter(|_| beside == Beside::SameLeaf)]))
}
