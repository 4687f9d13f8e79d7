//! Charges in many accounts in turn, on one CPU.
//!
//! Each step is a charge of 1 and its uncharge, in one account after the other; the accounts of a variant are leaves of
//! one group. A loop on one account favours a variant whose address the compiler can compute outside of the loop, and
//! slows a variant that waits for its own last store. Sixteen accounts in turn avoid both effects; the variants in a
//! function have a call that is not inlined, as in a large program. Ten thousand accounts are more than a CPU has
//! stocks (units that it holds ready) for, so they evict each other's stocks: a CPU's table has 2048 stocks in 32 KiB,
//! the size of many L1 data caches.

use super::peers::*;
use super::setup::*;
use crate::case::CaseCtx;
use crate::measure::{Variant, called};
use warmcore_budget::{Account, StockKind};
use warmcore_results::{Bound, Row};

const SOME: usize = 16;
const MANY: usize = 10_000;
const OVER_ONE_MAX: f64 = 1.5;

fn name(way: &str, count: usize) -> String {
    match count {
        1 => format!("{way}, 1 account"),
        MANY => format!("{way}, 10000 accounts"),
        count => format!("{way}, {count} accounts"),
    }
}

/// A variant that does `act`, which counts as two operations, with each of `all` in turn.
fn in_turn<'a, T>(way: &str, all: &'a [T], act: impl Fn(&T) + 'a) -> Variant<'a> {
    let mut at = 0;
    Variant::new(&name(way, all.len()), move |n| {
        for _ in 0..n.div_ceil(2) {
            act(&all[at]);
            at = if at + 1 == all.len() { 0 } else { at + 1 };
        }
    })
}

fn in_function(way: &str) -> String {
    format!("{way}, in a function")
}

pub(super) fn run(ctx: &CaseCtx) -> anyhow::Result<Vec<Row>> {
    let kinds = [on_rseq().then_some((RSEQ, StockKind::Rseq)), Some((ATOMIC_STOCKS, StockKind::Atomic))];
    let counts = [1, SOME, MANY];
    let ours: Vec<(&str, Vec<Account>)> = kinds
        .into_iter()
        .flatten()
        .flat_map(|(name, kind)| counts.map(|count| (name, leaves(kind, LIMIT, count))))
        .collect();
    let peers = counts.map(|count| (0..count).map(|_| Level::new(LIMIT)).collect::<Vec<_>>());
    let (group, root) = (&Level::new(LIMIT), &Level::new(LIMIT));
    let mut variants: Vec<Variant> =
        ours.iter().map(|(way, leaves)| in_turn(way, leaves, |leaf| leaf.pair())).collect();
    for (way, leaves) in ours.iter().filter(|(_, leaves)| leaves.len() == SOME) {
        let act = |leaf: &Account| called(leaf, |leaf| leaf.pair());
        variants.push(in_turn(&in_function(way), leaves, act));
    }
    let act = |leaf: &Level| called([leaf, group, root], |path| path.pair());
    variants.push(in_turn(&in_function(ATOMICS), &peers[1], act));
    for leaves in &peers {
        variants.push(in_turn(ATOMICS, leaves, |leaf| [leaf, group, root].pair()));
    }
    let measured = ctx.interleave(variants)?;
    let mut rows = measured.times();
    for way in [RSEQ, ATOMIC_STOCKS, ATOMICS] {
        for count in [SOME, MANY] {
            let is_promised = count == SOME && way != ATOMICS;
            let row = measured.ratio(&name(way, count), &name(way, 1));
            rows.extend(row.map(|row| row.promise_if(is_promised, Bound::AtMost, OVER_ONE_MAX)));
        }
    }
    let over_ours = |count| measured.ratio(&name(ATOMICS, count), &name(super::setup::ours(), count));
    rows.extend(counts.into_iter().filter_map(over_ours));
    let ours = in_function(super::setup::ours());
    rows.extend(measured.ratio(&name(&in_function(ATOMICS), SOME), &name(&ours, SOME)));
    Ok(rows)
}
