//! Two CPUs that run bursts strictly in alternation, without a pause.
//!
//! One CPU runs a burst and sets a flag; the other reads the flag, runs its own burst and clears the flag. A time is
//! half of such a cycle: one burst and one transfer of the flag's cache line. If both CPUs use the same area, its 256
//! lines are also transferred. With an area for each CPU the time is a burst of 0.3 µs and a transfer of 0.1 µs.

use super::area::{Areas, BY_CPU, methods};
use crate::case::CaseCtx;
use crate::measure::Variant;
use std::sync::atomic::{AtomicBool, Ordering::*};
use warmcore_line::Padded;
use warmcore_results::names::cid::OURS;
use warmcore_results::{Bound, Row};

/// The promised maximum of the ratio of cache-local ids over areas by CPU number. Here each CPU then keeps its id, so
/// ids should cost nothing.
const OVER_BY_CPU_MAX: f64 = 1.05;

pub(super) fn run(ctx: &CaseCtx) -> anyhow::Result<Vec<Row>> {
    let flag = || Padded::new(AtomicBool::new(false));
    let methods: Vec<_> = methods()
        .into_iter()
        .map(|name| Ok((name, Areas::new(name)?, flag())))
        .collect::<anyhow::Result<_>>()?;
    let variants = methods.iter().map(|(name, areas, theirs)| {
        let turns = move |n: u64| {
            for _ in 0..n.div_ceil(2) {
                areas.burst();
                // ORDERING: Release and Acquire, both ways: a burst begins after the other CPU's has ended.
                theirs.store(true, Release);
                while theirs.load(Acquire) {
                    std::hint::spin_loop();
                }
            }
        };
        let answer = move || {
            if !theirs.load(Acquire) {
                return 0;
            }
            areas.burst();
            theirs.store(false, Release);
            1
        };
        Variant::new(name, turns).beside(answer)
    });
    let measured = ctx.interleave(variants.collect())?;
    let promise = measured.promise(OURS, BY_CPU, Bound::AtMost, OVER_BY_CPU_MAX);
    Ok(measured.rows(BY_CPU, [promise]))
}
