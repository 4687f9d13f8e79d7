//! Charges in many accounts in turn, on one CPU.
//!
//! Each step is a charge of 1 and its uncharge, in one account after the other; all accounts are leaves of one group. A
//! loop on one account favours a variant whose address the compiler can compute outside of the loop, and slows a
//! variant that waits for its own last store. Sixteen accounts in turn avoid both effects; some of their variants go
//! through a call that is not inlined, as in a large program. Ten thousand accounts are more than a CPU has stocks for,
//! so they evict each other's stocks: a CPU's table has 2048 stocks in 32 KiB, the size of an L1 data cache.

use super::peers::*;
use super::setup::*;
use crate::case::CaseCtx;
use crate::measure::Variant;
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

macro_rules! in_turn {
    ($way:expr, $all:expr, |$leaf:ident| $act:expr) => {{
        let (all, mut at) = ($all, 0);
        Variant::new(&name($way, all.len()), move |n| {
            for _ in 0..n.div_ceil(2) {
                let $leaf = &all[at];
                $act;
                at = if at + 1 == all.len() { 0 } else { at + 1 };
            }
        })
    }};
}

#[inline(never)]
fn pair_called(leaf: &Account) {
    must(leaf.try_charge(1));
    must(leaf.uncharge(1));
}

#[inline(never)]
fn pair_called_atomics(path: [&Level; 3]) {
    must_fit(charge_path(path, 1));
    uncharge_path(path, 1);
}

fn called(way: &str) -> String {
    format!("{way}, in a function")
}

pub(super) fn run(ctx: &CaseCtx) -> anyhow::Result<Option<Vec<Row>>> {
    let kinds = [on_rseq().then_some((RSEQ, StockKind::Rseq)), Some((ATOMIC_STOCKS, StockKind::Atomic))];
    let counts = [1, SOME, MANY];
    let ours: Vec<(&str, Vec<Account>)> = kinds
        .into_iter()
        .flatten()
        .flat_map(|(name, kind)| counts.map(|count| (name, leaves(kind, LIMIT, count))))
        .collect();
    let peers = counts.map(|count| (0..count).map(|_| Level::new(LIMIT)).collect::<Vec<_>>());
    let (group, root) = (&Level::new(LIMIT), &Level::new(LIMIT));
    let mut variants = Vec::new();
    for (way, leaves) in &ours {
        variants.push(in_turn!(way, &leaves[..], |leaf| {
            must(leaf.try_charge(1));
            must(leaf.uncharge(1));
        }));
    }
    for (way, leaves) in ours.iter().filter(|(_, leaves)| leaves.len() == SOME) {
        variants.push(in_turn!(&called(way), &leaves[..], |leaf| pair_called(leaf)));
    }
    variants.push(in_turn!(&called(ATOMICS), &peers[1][..], |leaf| pair_called_atomics([leaf, group, root])));
    for leaves in &peers {
        variants.push(in_turn!(ATOMICS, &leaves[..], |leaf| {
            must_fit(charge_path([leaf, group, root], 1));
            uncharge_path([leaf, group, root], 1);
        }));
    }
    let Some(measured) = ctx.interleave(variants)? else { return Ok(None) };
    let mut rows = measured.times();
    for way in [RSEQ, ATOMIC_STOCKS, ATOMICS] {
        for count in [SOME, MANY] {
            let row = measured.ratio(&name(way, count), &name(way, 1));
            let is_promised = count == SOME && way != ATOMICS;
            rows.extend(
                row.map(|row| if is_promised { row.promise(Bound::AtMost, OVER_ONE_MAX) } else { row }),
            );
        }
    }
    rows.extend(
        counts
            .iter()
            .filter_map(|count| measured.ratio(&name(ATOMICS, *count), &name(super::setup::ours(), *count))),
    );
    rows.extend(measured.ratio(&name(&called(ATOMICS), SOME), &name(&called(super::setup::ours()), SOME)));
    Ok(Some(rows))
}
