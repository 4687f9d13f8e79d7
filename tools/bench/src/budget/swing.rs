//! Usage that rises and falls, by less than a stock's capacity and by more.
//!
//! A swing is charges of 1 up to the amplitude, then uncharges of 1 down to zero; swings are repeated. Below the
//! capacity the stock serves all of them; above it, one charge or uncharge goes up the tree for every half capacity.
//! There is one thread, so nothing is contended. A stock for charges of 1 has a capacity of 511 units: of the 4096
//! charges of a swing, 16 go up the tree.

use super::peers::*;
use super::setup::*;
use crate::case::CaseCtx;
use crate::measure::Variant;
use warmcore_budget::StockKind;
use warmcore_results::Row;
use warmcore_sys::rseq::current_cpu;

/// A quarter of the capacity.
pub(super) const BELOW: u64 = 128;
/// Eight times the capacity.
pub(super) const ABOVE: u64 = 4096;
/// The capacity of a stock, and of the thread-cached peer.
const ROOM: u64 = 511;

/// The state of a swing, which continues in the next slice.
struct Swing {
    level: u64,
    is_up: bool,
}

impl Swing {
    /// The number of operations in one direction that come next, at most `left`, and whether they are charges.
    fn next(&mut self, amplitude: u64, left: u64) -> (u64, bool) {
        let is_up = self.is_up;
        let run = left.min(if is_up { amplitude - self.level } else { self.level });
        self.level = if is_up { self.level + run } else { self.level - run };
        match self.level {
            0 => self.is_up = true,
            level if level == amplitude => self.is_up = false,
            _ => {}
        }
        (run, is_up)
    }
}

macro_rules! swing {
    ($name:expr, $amplitude:expr, $charge:expr, $uncharge:expr) => {{
        let mut swing = Swing { level: 0, is_up: true };
        Variant::new($name, move |n| {
            let mut left = n;
            while left > 0 {
                let (run, is_up) = swing.next($amplitude, left);
                if is_up {
                    (0..run).for_each(|_| $charge);
                } else {
                    (0..run).for_each(|_| $uncharge);
                }
                left -= run;
            }
        })
    }};
}

pub(super) fn run(ctx: &CaseCtx, amplitude: u64) -> anyhow::Result<Option<Vec<Row>>> {
    let (rseq, atomic) = (rseq_leaves(LIMIT, 1), leaves(StockKind::Atomic, LIMIT, 1));
    let (strict, locked) = (&atomic[0], &locked());
    let lock = locked_leaves(locked, LIMIT, 1)[0];
    let levels: [Level; 4] = std::array::from_fn(|_| Level::new(LIMIT));
    let [alone, leaf, group, root] = &levels;
    let (path, cached) = ([leaf, group, root], &ThreadCached::new(LIMIT, ROOM));
    let mut variants = Vec::new();
    if let Some(rseq) = &rseq {
        let leaf = &rseq[0];
        variants.push(swing!(RSEQ, amplitude, must(leaf.try_charge(1)), must(leaf.uncharge(1))));
    }
    variants.extend([
        swing!(ATOMIC_STOCKS, amplitude, must(strict.try_charge(1)), must(strict.uncharge(1))),
        swing!(
            LOCK,
            amplitude,
            must(locked.try_charge(lock, current_cpu, 1)),
            must(locked.uncharge(lock, current_cpu, 1))
        ),
        swing!(ATOMIC, amplitude, must_fit(alone.charge(1)), alone.uncharge(1)),
        swing!(ATOMICS, amplitude, must_fit(charge_path(path, 1)), uncharge_path(path, 1)),
        swing!(CACHED, amplitude, must_fit(cached.charge(1)), cached.uncharge(1)),
    ]);
    let measured = ctx.interleave(variants)?;
    settle(rseq.iter().flatten().chain(&atomic));
    Ok(measured.map(|measured| rows(&measured, vec![])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_swing_goes_up_and_down_whatever_the_slices() {
        let (mut swing, mut level, mut highest, mut lowest_after) =
            (Swing { level: 0, is_up: true }, 0, 0, 9);
        for slice in [1, 3, 7, 100, 2, 5, 64] {
            let mut left: u64 = slice;
            while left > 0 {
                let (run, is_up) = swing.next(10, left);
                assert!(run > 0);
                level = if is_up { level + run } else { level - run };
                highest = highest.max(level);
                if highest == 10 {
                    lowest_after = lowest_after.min(level);
                }
                left -= run;
            }
        }
        assert_eq!((highest, lowest_after, level), (10, 0, swing.level));
    }
}
