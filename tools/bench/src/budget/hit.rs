//! Charges that a stock serves without the tree of accounts: of one unit (`hit`), and of random sizes (`ring`).
//!
//! `hit` charges 1 and uncharges it, over and over. The stock always serves, so only the fast path is measured. `ring`
//! charges random sizes from 1 to 64 and uncharges each one 64 charges later, as requests do; sometimes the stock
//! overflows. Each case runs alone, with another CPU on the same leaf, and with another CPU on another leaf of the same
//! group. The fast paths are inlined into the loop, as in a user's program; `hit` is also measured in a function that
//! is called, since a locked instruction waits until the registers that the call saved are written.
//!
//! In `ring` about 2080 units are in use at a time (64 charges of 32.5 on average). The sizes repeat after 1024
//! charges.

use super::peers::*;
use super::setup::*;
use crate::case::CaseCtx;
use crate::measure::Variant;
use fastrand::Rng;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use warmcore_budget::{Account, Accounts, Node, StockKind};
use warmcore_line::Padded;
use warmcore_results::{Bound, Row};
use warmcore_sys::rseq::current_cpu;

/// What the other CPU does during the measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beside {
    Nobody,
    SameLeaf,
    OtherLeaf,
}

/// `ring` uncharges each charge after this many further charges.
const LAG: usize = 64;
/// The number of random sizes that are drawn before the measurement; a power of two.
const SIZES: usize = 1024;
const SIZE_MAX: usize = 64;
/// The capacity of Warmcore's stocks for such charges; the thread-cached peer gets the same.
const HIT_BATCH: u64 = (1 << 9) - 1;
const RING_BATCH: u64 = (1 << 14) - 1;

/// The accounts: two leaves of each kind.
struct All<'a> {
    rseq: Option<Vec<Account>>,
    strict: Vec<Account>,
    locked: &'a Accounts<warmcore_budget::stock::LockedStocks>,
    lock: Vec<&'a Node>,
    atomic: Level,
    atomics: [Level; 4],
    std_mutex: StdMutex,
    parking_lot: ParkingLot,
    cached: ThreadCached,
}

impl<'a> All<'a> {
    fn new(locked: &'a Accounts<warmcore_budget::stock::LockedStocks>, batch: u64) -> Self {
        Self {
            rseq: rseq_leaves(LIMIT, 2),
            strict: leaves(StockKind::Atomic, LIMIT, 2),
            locked,
            lock: locked_leaves(locked, LIMIT, 2),
            atomic: Level::new(LIMIT),
            atomics: std::array::from_fn(|_| Level::new(LIMIT)),
            std_mutex: Padded::new(Mutex::new(Numbers::new(LIMIT))),
            parking_lot: Padded::new(parking_lot::Mutex::new(Numbers::new(LIMIT))),
            cached: ThreadCached::new(LIMIT, batch),
        }
    }

    fn paths(&self, beside: Beside) -> [[&Level; 3]; 2] {
        let [first, second, group, root] = &self.atomics;
        let other = if beside == Beside::OtherLeaf { second } else { first };
        [[first, group, root], [other, group, root]]
    }

    fn settle(&self) {
        settle(self.rseq.iter().flatten().chain(&self.strict));
    }
}

/// The leaf that this CPU charges and the leaf that the other CPU charges.
fn pick<T>(leaves: &[T], beside: Beside) -> [&T; 2] {
    [&leaves[0], &leaves[usize::from(beside == Beside::OtherLeaf)]]
}

/// Expands the operation into a separate loop for each CPU, so that it is inlined and not called.
macro_rules! pairs {
    ($name:expr, $beside:expr, $leaves:expr, |$leaf:ident| $act:expr) => {{
        let [own, other] = $leaves;
        let variant = Variant::new($name, move |n| {
            let $leaf = own;
            (0..n.div_ceil(2)).for_each(|_| $act);
        });
        let act = move || {
            let $leaf = other;
            (0..128).for_each(|_| $act);
            256
        };
        if $beside == Beside::Nobody { variant } else { variant.beside(act) }
    }};
}

/// As `pairs`, for a ring: a charge, and the uncharge of the charge that was made `LAG` charges before.
macro_rules! ring {
    ($name:expr, $beside:expr, $sizes:expr, $leaves:expr, |$leaf:ident, $n:ident| $charge:expr, $uncharge:expr) => {{
        let ([own, other], sizes): ([_; 2], &[u64; SIZES]) = ($leaves, $sizes);
        macro_rules! steps {
            ($leaf_now:expr, $times:expr, $at:ident) => {{
                let $leaf = $leaf_now;
                for _ in 0..$times {
                    let $n = sizes[$at % SIZES];
                    $charge;
                    if $at >= LAG {
                        let $n = sizes[($at - LAG) % SIZES];
                        $uncharge;
                    }
                    $at += 1;
                }
            }};
        }
        let mut at = 0usize;
        let variant = Variant::new($name, move |n| steps!(own, n.div_ceil(2), at));
        let there = AtomicUsize::new(0);
        let act = move || {
            let mut at = there.load(Relaxed);
            steps!(other, 128, at);
            there.store(at, Relaxed);
            256
        };
        if $beside == Beside::Nobody { variant } else { variant.beside(act) }
    }};
}

/// The charge in a function, as in code that is too large to be inlined.
#[inline(never)]
fn charge_called(leaf: &Account) {
    must(leaf.try_charge(1));
}

#[inline(never)]
fn uncharge_called(leaf: &Account) {
    must(leaf.uncharge(1));
}

#[inline(never)]
fn charge_atomic_called(level: &Level) {
    must_fit(level.charge(1));
}

#[inline(never)]
fn uncharge_atomic_called(level: &Level) {
    level.uncharge(1);
}

const RSEQ_CALLED: &str = "warmcore rseq, in a function";
const ATOMIC_STOCKS_CALLED: &str = "warmcore atomic, in a function";
const ATOMIC_CALLED: &str = "one shared atomic, in a function";

/// A charge of 1 and its uncharge.
pub(super) fn run(ctx: &CaseCtx, beside: Beside) -> anyhow::Result<Option<Vec<Row>>> {
    let locked = locked();
    let all = All::new(&locked, HIT_BATCH);
    let mut variants = Vec::new();
    if let Some(rseq) = &all.rseq {
        let act = pick(rseq, beside);
        variants.push(pairs!(RSEQ, beside, act, |leaf| {
            must(leaf.try_charge(1));
            must(leaf.uncharge(1));
        }));
        variants.push(pairs!(RSEQ_CALLED, beside, act, |leaf| {
            charge_called(leaf);
            uncharge_called(leaf);
        }));
    }
    let (strict, lock, accounts) = (pick(&all.strict, beside), pick(&all.lock, beside), all.locked);
    variants.extend([
        pairs!(ATOMIC_STOCKS, beside, strict, |leaf| {
            must(leaf.try_charge(1));
            must(leaf.uncharge(1));
        }),
        pairs!(ATOMIC_STOCKS_CALLED, beside, strict, |leaf| {
            charge_called(leaf);
            uncharge_called(leaf);
        }),
        pairs!(LOCK, beside, lock, |leaf| {
            must(accounts.try_charge(leaf, current_cpu, 1));
            must(accounts.uncharge(leaf, current_cpu, 1));
        }),
        pairs!(ATOMIC, beside, [&all.atomic; 2], |level| {
            must_fit(level.charge(1));
            level.uncharge(1);
        }),
        pairs!(ATOMIC_CALLED, beside, [&all.atomic; 2], |level| {
            charge_atomic_called(level);
            uncharge_atomic_called(level);
        }),
        pairs!(ATOMICS, beside, all.paths(beside), |path| {
            must_fit(charge_path(path, 1));
            uncharge_path(path, 1);
        }),
        pairs!(STD_MUTEX, beside, [&all.std_mutex; 2], |numbers| {
            must_fit(charge_std(numbers, 1));
            uncharge_std(numbers, 1);
        }),
        pairs!(PARKING_LOT, beside, [&all.parking_lot; 2], |numbers| {
            must_fit(charge_parking_lot(numbers, 1));
            uncharge_parking_lot(numbers, 1);
        }),
        pairs!(CACHED, beside, [&all.cached; 2], |cached| {
            must_fit(cached.charge(1));
            cached.uncharge(1);
        }),
    ]);
    let Some(measured) = ctx.interleave(variants)? else { return Ok(None) };
    let promises = match beside {
        Beside::Nobody => vec![
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
    let mut rows = rows(&measured, promises);
    let called = [(ATOMIC_CALLED, RSEQ_CALLED), (ATOMIC_STOCKS_CALLED, ATOMIC_CALLED)];
    rows.extend(called.iter().filter_map(|(above, below)| measured.ratio(above, below)));
    Ok(Some(rows))
}

/// Charges of random sizes, each uncharged 64 charges later.
pub(super) fn ring(ctx: &CaseCtx, beside: Beside) -> anyhow::Result<Option<Vec<Row>>> {
    let mut rng = Rng::with_seed(4);
    let sizes: [u64; SIZES] = std::array::from_fn(|_| 1 + rng.usize(..SIZE_MAX) as u64);
    let locked = locked();
    let all = All::new(&locked, RING_BATCH);
    let mut variants = Vec::new();
    if let Some(rseq) = &all.rseq {
        variants.push(ring!(
            RSEQ,
            beside,
            &sizes,
            pick(rseq, beside),
            |leaf, n| must(leaf.try_charge(n)),
            must(leaf.uncharge(n))
        ));
    }
    let (strict, lock, accounts) = (pick(&all.strict, beside), pick(&all.lock, beside), all.locked);
    variants.extend([
        ring!(
            ATOMIC_STOCKS,
            beside,
            &sizes,
            strict,
            |leaf, n| must(leaf.try_charge(n)),
            must(leaf.uncharge(n))
        ),
        ring!(
            LOCK,
            beside,
            &sizes,
            lock,
            |leaf, n| must(accounts.try_charge(leaf, current_cpu, n)),
            must(accounts.uncharge(leaf, current_cpu, n))
        ),
        ring!(
            ATOMIC,
            beside,
            &sizes,
            [&all.atomic; 2],
            |level, n| must_fit(level.charge(n)),
            level.uncharge(n)
        ),
        ring!(
            ATOMICS,
            beside,
            &sizes,
            all.paths(beside),
            |path, n| must_fit(charge_path(path, n)),
            uncharge_path(path, n)
        ),
        ring!(
            STD_MUTEX,
            beside,
            &sizes,
            [&all.std_mutex; 2],
            |numbers, n| must_fit(charge_std(numbers, n)),
            uncharge_std(numbers, n)
        ),
        ring!(
            PARKING_LOT,
            beside,
            &sizes,
            [&all.parking_lot; 2],
            |numbers, n| must_fit(charge_parking_lot(numbers, n)),
            uncharge_parking_lot(numbers, n)
        ),
        ring!(
            CACHED,
            beside,
            &sizes,
            [&all.cached; 2],
            |cached, n| must_fit(cached.charge(n)),
            cached.uncharge(n)
        ),
    ]);
    let measured = ctx.interleave(variants)?;
    all.settle();
    let Some(measured) = measured else { return Ok(None) };
    let promise =
        (beside == Beside::SameLeaf).then(|| measured.promise(ATOMIC, RSEQ, Bound::AtLeast, 8.0)).flatten();
    Ok(Some(rows(&measured, vec![promise])))
}
