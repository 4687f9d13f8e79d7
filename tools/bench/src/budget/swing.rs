//! Usage that rises and falls, by less than the capacity of a stock (units that a CPU holds ready) and by more.
//!
//! A swing is charges of 1 up to the amplitude, then uncharges of 1 down to zero; swings are repeated. With Warmcore's
//! stocks and an amplitude below the capacity, the stock serves nearly all of them; above it, of every half capacity of
//! charges or uncharges one goes up the tree of accounts. One thread runs, so nothing is contended. A stock for charges
//! of 1 has a capacity of 511 units: of the 4096 charges of a swing, 16 go up the tree.

use super::peers::*;
use super::setup::*;
use crate::case::CaseCtx;
use crate::measure::Variant;
use warmcore_budget::StockKind;
use warmcore_results::Row;

/// About a quarter of the capacity.
pub(super) const BELOW: u64 = 128;
/// About eight times the capacity.
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

fn swing<'a>(name: &str, amplitude: u64, gate: impl Gate + Copy + 'a) -> Variant<'a> {
    let mut swing = Swing { level: 0, is_up: true };
    Variant::new(name, move |n| {
        let mut left = n;
        while left > 0 {
            let (run, is_up) = swing.next(amplitude, left);
            if is_up {
                (0..run).for_each(move |_| gate.must_charge(1));
            } else {
                (0..run).for_each(move |_| gate.uncharge(1));
            }
            left -= run;
        }
    })
}

pub(super) fn run(ctx: &CaseCtx, amplitude: u64) -> anyhow::Result<Vec<Row>> {
    let (rseq, atomic) = (rseq_leaves(LIMIT, 1), leaves(StockKind::Atomic, LIMIT, 1));
    let locked = &locked();
    let levels: [Level; 4] = std::array::from_fn(|_| Level::new(LIMIT));
    let [alone, leaf, group, root] = &levels;
    let cached = &ThreadCached::new(LIMIT, ROOM);
    let mut variants: Vec<Variant> = rseq.iter().flatten().map(|leaf| swing(RSEQ, amplitude, leaf)).collect();
    variants.extend([
        swing(ATOMIC_STOCKS, amplitude, &atomic[0]),
        swing(LOCK, amplitude, locked_leaves(locked, LIMIT, 1)[0]),
        swing(ATOMIC, amplitude, alone),
        swing(ATOMICS, amplitude, [leaf, group, root]),
        swing(CACHED, amplitude, cached),
    ]);
    let measured = ctx.interleave(variants);
    settle(rseq.iter().flatten().chain(&atomic));
    Ok(measured?.rows(ours(), []))
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
