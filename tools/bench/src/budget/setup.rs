//! Shared by all budget cases: the names of the variants, accounts of each kind, and rows.

use crate::measure::Measured;
use std::fmt::Display;
use warmcore_budget::stock::LockedStocks;
use warmcore_budget::{Account, AccountConfig, Accounts, Node, StockKind};
use warmcore_percpu::{Backend, backend};
use warmcore_results::{NOISY_ABOVE, Row};
use warmcore_sys::affinity;

/// Warmcore's accounts with stocks in restartable sections: the default where the kernel offers them.
pub const RSEQ: &str = "warmcore rseq";
/// Warmcore's accounts with one atomic word per stock: the strict kind, which never exceeds a limit.
pub const ATOMIC_STOCKS: &str = "warmcore atomic";
/// The published design, a lock in each stock. Not offered to users: a thread that holds the lock may be preempted.
pub const LOCK: &str = "warmcore lock (reference)";
/// One atomic for all threads; a compare-and-swap charges it if the sum is within the limit.
pub const ATOMIC: &str = "one shared atomic";
/// Three atomics, charged from leaf to root; undone if one refuses.
pub const ATOMICS: &str = "three atomics, leaf to root";
pub const STD_MUTEX: &str = "std Mutex";
pub const PARKING_LOT: &str = "parking_lot Mutex";
/// Each thread caches free units, which only that thread can reach.
pub const CACHED: &str = "thread-cached, no drain";

/// A limit that is never reached.
pub const LIMIT: u64 = 1 << 40;

/// Whether restartable sections run here. If not, the kind of stock that needs them is left out.
pub fn on_rseq() -> bool {
    matches!(backend(), Backend::Rseq(_))
}

/// The name of the default kind, with which the other variants are compared.
pub fn ours() -> &'static str {
    if on_rseq() { RSEQ } else { ATOMIC_STOCKS }
}

pub fn default_kind() -> StockKind {
    if on_rseq() { StockKind::Rseq } else { StockKind::Atomic }
}

/// Makes `count` leaves in one group of one root.
pub fn leaves(kind: StockKind, limit: u64, count: usize) -> Vec<Account> {
    let group = Account::root("root").limit(limit).kind(kind).build().child("group").limit(limit).build();
    (0..count).map(|_| group.child("leaf").limit(limit).build()).collect()
}

/// As [`leaves`], with [`StockKind::Rseq`]; `None` if restartable sections don't run here.
pub fn rseq_leaves(limit: u64, count: usize) -> Option<Vec<Account>> {
    on_rseq().then(|| leaves(StockKind::Rseq, limit, count))
}

/// Accounts with a lock in each stock.
pub fn locked() -> Accounts<LockedStocks> {
    Accounts::new(LockedStocks::new(affinity::nr_cpu_ids() as u32))
}

/// As [`leaves`], with a lock in each stock.
pub fn locked_leaves(accounts: &Accounts<LockedStocks>, limit: u64, count: usize) -> Vec<&Node> {
    let make = |parent, name: &str| {
        let plan =
            AccountConfig { name: name.into(), limit, soft_limit: u64::MAX, guarantee: 0, listener: None };
        accounts.create(parent, plan).expect("without a guarantee nothing is refused")
    };
    let group = make(Some(make(None, "root")), "group");
    (0..count).map(|_| make(Some(group), "leaf")).collect()
}

/// Panics if a charge was refused: in these cases everything fits.
#[inline(always)]
pub fn must<E: Display>(result: Result<(), E>) {
    if let Err(error) = result {
        refused(&error);
    }
}

#[inline(always)]
pub fn must_fit(is_charged: bool) {
    if !is_charged {
        refused(&"full");
    }
}

#[cold]
#[inline(never)]
pub fn refused(error: &dyn Display) -> ! {
    panic!("what fits was refused: {error}")
}

/// Uncharges what a measurement left charged, so that the accounts can be removed.
pub fn settle<'a>(accounts: impl IntoIterator<Item = &'a Account>) {
    for account in accounts {
        must(account.uncharge(account.exact_usage()));
    }
}

/// The rows of a case: times, the promises, then all other ratios over Warmcore's default kind.
pub fn rows(measured: &Measured, promises: Vec<Option<Row>>) -> Vec<Row> {
    let promised: Vec<Row> = promises.into_iter().flatten().collect();
    let is_promised = |row: &Row| promised.iter().any(|p| (&p.variant, &p.over) == (&row.variant, &row.over));
    let mut rows = measured.times();
    rows.extend(promised.iter().cloned());
    rows.extend(measured.ratios_over(ours()).into_iter().filter(|row| !is_promised(row)));
    rows
}

/// A row that has the quantile `q` of the samples in the place of the median. Its interval follows from the ranks of
/// the binomial distribution in its normal approximation, as for a median.
pub fn quantile_row(case: &str, variant: &str, metric: &str, unit: &str, samples: &[f64], q: f64) -> Row {
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
