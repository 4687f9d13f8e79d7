//! The published table of per-CPU stocks with remote draining, measured again with Warmcore's stocks.
//!
//! One part is the cost for the CPU that owns the stock (units that a CPU holds ready): a charge and its uncharge, with
//! each kind of stock, and with a stock without any protection. The other part is the cost of a whole drain, by the
//! number of CPUs that have a stock. Times are in cycles of the time-stamp counter, whose rate does not depend on the
//! core's clock; on the machine of the reports 2.6 cycles are 1 ns. The published numbers are shown for comparison and
//! are no target: they are averages of a kernel's functions, on another machine.
//!
//! The measuring thread drains immediately after it came back from another CPU, so the time includes fetching the
//! thread's own cache lines from that CPU. The case `drain.quiet` does not have that cost.
//!
//! Source: linux-mm, January 2023, "Introduce memcg_stock_pcp remote draining", v2: AMD EPYC 7601, one isolated CPU, no
//! drains running; drains of 1, 8 and 128 CPUs.

use super::hit::pairs;
use super::setup::*;
use crate::case::CaseCtx;
use crate::measure::{Variant, pinned};
use std::cell::Cell;
use std::hint::black_box;
use std::sync::atomic::{Ordering::SeqCst, compiler_fence};
use std::time::Instant;
use warmcore_budget::StockKind;
use warmcore_results::Row;
use warmcore_sys::{affinity, clock};
use warmcore_types::CpuId;

const UNIT: &str = "cycles";
const PLAIN: &str = "a stock without protection";

/// Operation, cycles with a lock that only the owning CPU takes, cycles with a lock that other CPUs may take.
const PUBLISHED: [(&str, f64, f64); 2] =
    [("consume_stock", 53.512_010_46, 63.759_834_75), ("refill_stock", 65.469_915_84, 67.457_083_22)];
/// CPUs, cycles of a drain by scheduled work, cycles of a remote drain.
const PUBLISHED_DRAINS: [(u32, f64, f64); 3] = [
    (1, 44_331.108_31, 38_978.035_81),
    (8, 43_992.965_12, 39_026.766_54),
    (128, 156_274.663_4, 58_053.874_21),
];

/// Cycles of the time-stamp counter in a ns; `None` where the clock does not read it, or the processor is not x86-64.
fn per_ns() -> Option<f64> {
    clock::ticks_per_ns().filter(|_| cfg!(target_arch = "x86_64"))
}

/// A stock without any protection, as in a single-threaded program.
#[derive(Default)]
struct Plain {
    key: Cell<u32>,
    free: Cell<u32>,
    room: Cell<u32>,
}

impl Plain {
    #[inline(always)]
    fn charge(&self, key: u32, n: u32) -> bool {
        let free = self.free.get();
        let fits = self.key.get() == key && free >= n;
        if fits {
            self.free.set(free - n);
        }
        compiler_fence(SeqCst);
        fits
    }

    #[inline(always)]
    fn uncharge(&self, key: u32, n: u32) -> bool {
        let more = self.free.get() + n;
        let fits = self.key.get() == key && more <= self.room.get();
        if fits {
            self.free.set(more);
        }
        compiler_fence(SeqCst);
        fits
    }
}

/// Converts a row of ns into cycles.
fn in_cycles(row: Row, per_ns: f64) -> Row {
    Row {
        unit: UNIT.into(),
        metric: "cycles of an operation".into(),
        p25: row.p25 * per_ns,
        median: row.median * per_ns,
        min: row.min * per_ns,
        max: row.max * per_ns,
        ci95: row.ci95.map(|ci| ci.map(|ns| ns * per_ns)),
        ..row
    }
}

fn published(case: &str, what: &str, cycles: f64) -> Row {
    Row::exact(case, &format!("published: {what}"), "published cycles", UNIT, cycles, 1)
}

/// Measures the cost for the CPU that owns the stock. No rows if [`per_ns`] is `None`.
pub(super) fn local(ctx: &CaseCtx) -> anyhow::Result<Vec<Row>> {
    let Some(per_ns) = per_ns() else { return Ok(without_counter(ctx)) };
    let (rseq, atomic) = (rseq_leaves(LIMIT, 1), leaves(StockKind::Atomic, LIMIT, 1));
    let locked = locked();
    let lock = locked_leaves(&locked, LIMIT, 1)[0];
    let plain = Plain { key: Cell::new(7), free: Cell::new(255), room: Cell::new(511) };
    let mut variants = vec![Variant::new(PLAIN, |n| {
        let (plain, key) = (black_box(&plain), black_box(7));
        for _ in 0..n.div_ceil(2) {
            must_fit(plain.charge(key, 1));
            must_fit(plain.uncharge(key, 1));
        }
    })];
    for leaf in rseq.iter().flatten() {
        variants.push(Variant::new(RSEQ, move |n| pairs(leaf, n.div_ceil(2))));
    }
    variants.push(Variant::new(ATOMIC_STOCKS, |n| pairs(&atomic[0], n.div_ceil(2))));
    variants.push(Variant::new(LOCK, |n| pairs(lock, n.div_ceil(2))));
    let measured = ctx.interleave(variants)?;
    let mut rows: Vec<Row> = measured.times().into_iter().map(|row| in_cycles(row, per_ns)).collect();
    rows.extend(measured.ratios_over(PLAIN));
    for (what, own, shared) in PUBLISHED {
        rows.push(published(ctx.name, &format!("{what}, the CPU's own lock (EPYC 7601)"), own));
        rows.push(published(ctx.name, &format!("{what}, a lock others may take (EPYC 7601)"), shared));
    }
    Ok(rows)
}

fn without_counter(ctx: &CaseCtx) -> Vec<Row> {
    eprintln!("{}: left out, this CPU has no counter of its cycles that we may trust", ctx.name);
    Vec::new()
}

/// The powers of two below the number of all CPUs, and that number.
fn numbers(cpus: usize) -> Vec<usize> {
    let mut numbers: Vec<usize> =
        std::iter::successors(Some(1), |n| Some(n * 2)).take_while(|n| *n < cpus).collect();
    numbers.push(cpus);
    numbers
}

/// Measures the cost of a drain, by the number of CPUs with a stock: one thread migrates to each of these CPUs, charges
/// and uncharges there, and goes to its own CPU to drain. No rows if [`per_ns`] is `None`.
pub(super) fn drain(ctx: &CaseCtx) -> anyhow::Result<Vec<Row>> {
    let Some(per_ns) = per_ns() else { return Ok(without_counter(ctx)) };
    let (rseq, atomic) = (rseq_leaves(LIMIT, 1), leaves(StockKind::Atomic, LIMIT, 1));
    let locked = locked();
    let lock = locked_leaves(&locked, LIMIT, 1)[0];
    let rseq = rseq.as_ref().map(|leaves| &leaves[0]);
    let mut gates: Vec<(&str, &dyn Drain)> = rseq.iter().map(|leaf| (RSEQ, *leaf as _)).collect();
    let atomic = &atomic[0];
    gates.extend([(ATOMIC_STOCKS, atomic as &dyn Drain), (LOCK, &lock)]);
    let cpus: Vec<CpuId> = affinity::allowed()?.iter().collect();
    let numbers = numbers(cpus.len());
    let variants: Vec<(usize, &str, &dyn Drain)> = numbers
        .iter()
        .flat_map(|number| gates.iter().map(move |(name, gate)| (*number, *name, *gate)))
        .collect();
    let mut samples = vec![Vec::new(); variants.len()];
    pinned(ctx.cpus.own, || {
        ctx.in_rounds(ctx.effort.rounds * 2, variants.len(), |i| {
            let (number, _, gate) = variants[i];
            // From the last CPU down, so that the CPU that drains is the last to have a stock.
            for cpu in cpus.iter().rev().take(number) {
                affinity::pin(*cpu)?;
                gate.pair();
            }
            affinity::pin(ctx.cpus.own)?;
            let began = Instant::now();
            let stocks = gate.drain();
            let ns = began.elapsed().as_nanos() as f64;
            // The background thread of the accounts returns idle stocks to the tree ten times a second: leave out a
            // sample with another number of stocks.
            if stocks as usize == number {
                samples[i].push(ns * per_ns);
            }
            Ok(())
        })
    })?;
    let mut rows = Vec::new();
    for ((number, name, _), samples) in variants.iter().zip(&samples) {
        anyhow::ensure!(!samples.is_empty(), "{name}: {number} stocks were never there at once");
        let name = format!("{name}, {number} CPU{}", if *number == 1 { "" } else { "s" });
        rows.push(Row::of(ctx.name, &name, "cycles of a drain", UNIT, samples));
    }
    for (cpus, work, afar) in PUBLISHED_DRAINS {
        rows.push(published(ctx.name, &format!("scheduled work, {cpus} CPUs (EPYC 7601)"), work));
        rows.push(published(ctx.name, &format!("from afar, {cpus} CPUs (EPYC 7601)"), afar));
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_cpus_double_and_end_with_all() {
        assert_eq!(numbers(1), [1]);
        assert_eq!(numbers(2), [1, 2]);
        assert_eq!(numbers(6), [1, 2, 4, 6]);
        assert_eq!(numbers(8), [1, 2, 4, 8]);
    }

    #[test]
    fn a_plain_stock_serves_what_it_has_and_takes_what_fits() {
        let plain = Plain { key: Cell::new(7), free: Cell::new(2), room: Cell::new(3) };
        assert!(plain.charge(7, 2) && !plain.charge(7, 1) && !plain.charge(8, 0));
        assert!(plain.uncharge(7, 3) && !plain.uncharge(7, 1));
    }

    #[test]
    fn ns_become_cycles_throughout() {
        let row = in_cycles(Row::of("c", "v", "time", "ns", &[1.0, 2.0, 4.0]), 2.0);
        assert_eq!((row.min, row.median, row.max, row.unit.as_str()), (2.0, 4.0, 8.0, UNIT));
        assert_eq!(row.ci95, Some([2.0, 8.0]));
    }
}
