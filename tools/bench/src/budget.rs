//! `bench budget`: what a limit costs, beside what servers write themselves.
//!
//! Model.   Every way keeps one account against a limit. Ours are three levels deep, leaf, group and
//!          root, by each kind of stock; the others are one shared atomic, three of them, a mutex, and
//!          units kept by each thread, which nobody can take back. A charge and its uncharge are two
//!          operations; times are per operation. The promises are those of the issue that asked
//!          for the crate; a row that misses its promise says so, with the same prominence.
//! Number.  The floor of a charge is its two stores, 2 cycles where a core stores once a cycle. A
//!          locked instruction is 7 cycles on Zen 4, 18 on Zen 5, and a cache miss where CPUs share.
//! Source.  What servers do today: one atomic (DataFusion's pools, restate, the AWS S3 transfer
//!          manager), per thread (ClickHouse before 2026), a mutex (Velox, CockroachDB).

mod accounts;
mod alloc;
mod cycles;
pub mod drain;
mod hit;
mod isolation;
mod limit;
pub mod memory;
mod peers;
mod swing;

use super::Case;
use crate::measure::{Effort, Measured};
use std::fmt::Display;
use warmcore_budget::stock::LockedStocks;
use warmcore_budget::{Account, AccountConfig, Accounts, Node, StockKind};
use warmcore_percpu::{Backend, backend};
use warmcore_results::{NOISY_ABOVE, Row};
use warmcore_sys::affinity;

/// The cases, in the order of the report.
pub const CASES: &[Case] = &[
    Case { name: "hit", needs_two: false, run: |ctx| hit::run(ctx, hit::Beside::Nobody) },
    Case { name: "hit.2threads", needs_two: true, run: |ctx| hit::run(ctx, hit::Beside::SameLeaf) },
    Case { name: "hit.2leaves", needs_two: true, run: |ctx| hit::run(ctx, hit::Beside::OtherLeaf) },
    Case { name: "ring", needs_two: false, run: |ctx| hit::ring(ctx, hit::Beside::Nobody) },
    Case { name: "ring.2threads", needs_two: true, run: |ctx| hit::ring(ctx, hit::Beside::SameLeaf) },
    Case { name: "ring.2leaves", needs_two: true, run: |ctx| hit::ring(ctx, hit::Beside::OtherLeaf) },
    Case { name: "swing.below", needs_two: false, run: |ctx| swing::run(ctx, swing::BELOW) },
    Case { name: "swing.above", needs_two: false, run: |ctx| swing::run(ctx, swing::ABOVE) },
    Case { name: "accounts", needs_two: false, run: accounts::run },
    Case { name: drain::QUIET, needs_two: true, run: |ctx| drain::run(ctx, false) },
    Case { name: drain::CONTENDED, needs_two: true, run: |ctx| drain::run(ctx, true) },
    Case { name: "isolation", needs_two: true, run: isolation::run },
    Case { name: "limit", needs_two: true, run: limit::run },
    Case { name: "memory", needs_two: false, run: memory::run },
    Case { name: "cycles", needs_two: false, run: cycles::local },
    Case { name: "cycles.drain", needs_two: false, run: cycles::drain },
    Case { name: "alloc", needs_two: false, run: alloc::touched },
    Case { name: "alloc.bare", needs_two: false, run: alloc::bare },
];

/// Ours, on restartable sections: the default where they run.
pub const RSEQ: &str = "warmcore rseq";
/// Ours, one atomic word per stock: the strict one.
pub const ATOMIC_STOCKS: &str = "warmcore atomic";
/// The published design, a lock in each stock: not offered to users, whose threads lose the CPU.
pub const LOCK: &str = "warmcore lock (reference)";
/// One number for all, charged by compare-and-swap below its limit.
pub const ATOMIC: &str = "one shared atomic";
/// Three of them, leaf to root, given back where one refuses.
pub const ATOMICS: &str = "three atomics, leaf to root";
const STD_MUTEX: &str = "std Mutex";
const PARKING_LOT: &str = "parking_lot Mutex";
/// Free units that only their own thread can reach.
const CACHED: &str = "thread-cached, no drain";

/// Far from every limit.
const LIMIT: u64 = 1 << 40;

/// Whether restartable sections run here; without, the kind that uses them is left out.
fn on_rseq() -> bool {
    matches!(backend(), Backend::Rseq(_))
}

/// The kind that others are compared with: the default one.
fn ours() -> &'static str {
    if on_rseq() { RSEQ } else { ATOMIC_STOCKS }
}

fn default_kind() -> StockKind {
    if on_rseq() { StockKind::Rseq } else { StockKind::Atomic }
}

/// Leaves of one group of one root.
fn leaves(kind: StockKind, limit: u64, count: usize) -> Vec<Account> {
    let group = Account::root("root").limit(limit).kind(kind).build().child("group").limit(limit).build();
    (0..count).map(|_| group.child("leaf").limit(limit).build()).collect()
}

/// The same, where sections run.
fn rseq_leaves(limit: u64, count: usize) -> Option<Vec<Account>> {
    on_rseq().then(|| leaves(StockKind::Rseq, limit, count))
}

/// Accounts with a lock in each stock.
fn locked() -> Accounts<LockedStocks> {
    Accounts::new(LockedStocks::new(affinity::nr_cpu_ids() as u32))
}

/// As [`leaves`].
fn locked_leaves(accounts: &Accounts<LockedStocks>, limit: u64, count: usize) -> Vec<&Node> {
    let make = |parent, name: &str| {
        let plan =
            AccountConfig { name: name.into(), limit, soft_limit: u64::MAX, guarantee: 0, listener: None };
        accounts.create(parent, plan).expect("without a guarantee nothing is refused")
    };
    let group = make(Some(make(None, "root")), "group");
    (0..count).map(|_| make(Some(group), "leaf")).collect()
}

/// Everything fits here: a refusal is a bug.
#[inline(always)]
fn must<E: Display>(result: Result<(), E>) {
    if let Err(error) = result {
        refused(&error);
    }
}

#[inline(always)]
fn must_fit(is_charged: bool) {
    if !is_charged {
        refused(&"full");
    }
}

#[cold]
#[inline(never)]
fn refused(error: &dyn Display) -> ! {
    panic!("what fits was refused: {error}")
}

/// Gives back what a measurement left charged, so that the accounts can go.
fn settle<'a>(accounts: impl IntoIterator<Item = &'a Account>) {
    for account in accounts {
        must(account.uncharge(account.exact_usage()));
    }
}

/// Whether this is the short run.
fn is_quick(effort: Effort) -> bool {
    effort.rounds == Effort::QUICK.rounds
}

/// Times, the promises, then all other ratios over ours.
fn rows(measured: &Measured, promises: Vec<Option<Row>>) -> Vec<Row> {
    let promised: Vec<Row> = promises.into_iter().flatten().collect();
    let is_promised = |row: &Row| promised.iter().any(|p| (&p.variant, &p.over) == (&row.variant, &row.over));
    let mut rows = measured.times();
    rows.extend(promised.iter().cloned());
    rows.extend(measured.ratios_over(ours()).into_iter().filter(|row| !is_promised(row)));
    rows
}

/// A row whose median is another quantile of the samples, with the interval of that one by the same
/// reasoning: the ranks of the binomial distribution, in its normal approximation.
fn quantile_row(case: &str, variant: &str, metric: &str, unit: &str, samples: &[f64], q: f64) -> Row {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len() - 1;
    let (at, half) = (q * last as f64, 1.96 * (q * (1.0 - q) * sorted.len() as f64).sqrt());
    let rank = |at: f64| sorted[(at.max(0.0).round() as usize).min(last)];
    let (value, ci) = (rank(at), [rank((at - half).floor()), rank((at + half).ceil())]);
    Row {
        n: sorted.len() as u64,
        noisy: ci[0] < value * (1.0 - NOISY_ABOVE) || ci[1] > value * (1.0 + NOISY_ABOVE),
        ci95: Some(ci),
        ..Row::of(case, variant, metric, unit, &[value])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_lies_in_its_interval_and_the_last_one_is_the_largest() {
        let samples: Vec<f64> = (1..=10_000).rev().map(f64::from).collect();
        let row = quantile_row("c", "v", "p99", "ns", &samples, 0.99);
        let [lo, hi] = row.ci95.unwrap();
        assert!((9899.0..=9901.0).contains(&row.median) && lo < row.median && row.median < hi, "{row:?}");
        assert!(!row.noisy && row.n == 10_000);
        assert_eq!(quantile_row("c", "v", "p99", "ns", &[1.0, 5.0], 0.999).median, 5.0);
    }
}
