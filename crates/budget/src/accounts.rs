//! Accounts: a tree of limits, spent from stocks.
//!
//! Model.   `try_charge` spends from this CPU's stock of the account. If that can't serve, the charge goes
//!          up the tree (`charge_ancestors`) and takes along what fills the stock (`refill`); if it does not fit, all
//!          stocks below the full account are closed (`drain`) and it is decided exactly (`refuse`).
//! Number.  One charge in some hundreds goes up the tree.
//! Protocol. Units are conserved: what an account is charged is what is used of it, plus what lies in its
//!          stocks, less the stocks' debts. Every step moves units from one to another.
//! Writers. See `node`, and `stock`.

mod ancestors;
mod drain;
mod exact;
mod explain;
mod lifecycle;
#[cfg(all(test, loom))]
mod loom;
mod node;
mod nodes;
mod refill;
#[cfg(all(test, not(loom)))]
mod tests;

pub use explain::{Explain, Level, OnCpu, Usage};
pub use lifecycle::{AccountConfig, DEPTH_MAX};
pub use node::Node;

use crate::outcome::{OverBudget, OverUncharge, Overrun};
use crate::stock::{Key, Stocks};
use crate::sync::{AtomicU32, Mutex, Ordering::*};
use exact::{DisableStocks, FAST_TRIES};
use nodes::Nodes;
pub(crate) use refill::STOCKED_MAX;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use warmcore_types::{CpuId, ignore_poison};

/// All accounts whose stocks stand in the same tables.
#[derive(Debug)]
pub struct Accounts<S> {
    stocks: S,
    nodes: Nodes,
    retired: Mutex<Retired>,
    /// Whether somebody waits for what was given back: 1 until a host asks.
    wake_pending: AtomicU32,
}

/// Who is gone, and who is about to go.
#[derive(Debug, Default)]
struct Retired {
    free: BinaryHeap<Reverse<Key>>,
    orphans: Vec<Key>,
}

/// What a drain brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Drained {
    /// Units that lay in stocks.
    pub units: u64,
    /// Stocks that were open.
    pub stocks: u32,
}

impl std::ops::AddAssign for Drained {
    fn add_assign(&mut self, more: Self) {
        self.units += more.units;
        self.stocks += more.stocks;
    }
}

impl<S: Stocks> Accounts<S> {
    /// No accounts yet.
    pub fn new(stocks: S) -> Self {
        Self {
            stocks,
            nodes: Nodes::new(),
            retired: Mutex::new(Retired::default()),
            wake_pending: AtomicU32::new(0),
        }
    }

    /// The stocks.
    pub fn stocks(&self) -> &S {
        &self.stocks
    }

    /// Charges `n` units to the account and all above it, or none.
    ///
    /// **Touches** the stock on this CPU; every 500th time or so, and near a limit, the accounts.
    #[inline(always)]
    pub fn try_charge(&self, node: &Node, cpu: impl Fn() -> CpuId, n: u64) -> Result<(), OverBudget> {
        if self.charge_stock(node, &cpu, n) { Ok(()) } else { self.charge_slow(node, cpu(), n, None) }
    }

    /// Charges `n` units to this CPU's stock. False: it can't serve; nothing happened.
    #[inline(always)]
    pub fn charge_stock(&self, node: &Node, cpu: impl Fn() -> CpuId, n: u64) -> bool {
        n <= STOCKED_MAX && self.stocks.charge(cpu, node.key, n as u32)
    }

    /// Charges `n` units, whatever the limits. `Err` says where that is over, and by how much; it is charged
    /// all the same. Panics above 2^60 units.
    pub fn force_charge(&self, node: &Node, cpu: CpuId, n: u64) -> Result<(), Overrun> {
        assert!(n <= 1 << 60, "{}: {n} units at once; nobody has so many", node.name());
        if self.charge_slow(node, cpu, n, None).is_ok() {
            return Ok(());
        }
        self.force_charge_past_stocks(node, n).map_or(Ok(()), Err)
    }

    /// As `try_charge`, and leaves stocks alone: for who has no handle, only something that is charged
    /// there already.
    pub fn try_charge_past_stocks(&self, node: &Node, n: u64) -> Result<(), OverBudget> {
        self.charge_tree(node, n, None)?;
        self.add_direct(node, n);
        Ok(())
    }

    /// As `force_charge`, and leaves stocks alone.
    pub fn force_charge_past_stocks(&self, node: &Node, n: u64) -> Option<Overrun> {
        let over = self.force_charge_ancestors(node, n);
        self.add_direct(node, n);
        for full in node.path().filter(|a| a.usage.load(Relaxed) > a.limit.load(Relaxed)) {
            // What lies in stocks below does not fit any more either.
            if full.slack_units() > 0 {
                let _disabled = DisableStocks::new(full);
                self.drain_open(full);
            }
        }
        self.report_pressure(node);
        over.map(|over| self.overrun(over))
    }

    /// Gives back `n` units that were charged to this account, on whatever CPU.
    ///
    /// That it is too much is found at once where it goes up the tree, and where no other CPU has a stock of
    /// the account. Else a stock may take it; the next drain finds less in use than lies in stocks.
    #[inline(always)]
    pub fn uncharge(&self, node: &Node, cpu: impl Fn() -> CpuId, n: u64) -> Result<(), OverUncharge> {
        if self.uncharge_stock(node, &cpu, n) { Ok(()) } else { self.uncharge_slow(node, cpu(), n) }
    }

    /// Puts `n` units into this CPU's stock. False: it can't take them; nothing happened.
    #[inline(always)]
    pub fn uncharge_stock(&self, node: &Node, cpu: impl Fn() -> CpuId, n: u64) -> bool {
        n <= STOCKED_MAX && self.stocks.uncharge(cpu, node.key, n as u32)
    }

    /// Changes the limit. One below usage refuses every charge until usage is below it.
    pub fn set_limit(&self, node: &Node, limit: u64) {
        // ORDERING: SeqCst; before the drain, so that no stock opens with a share of the old one after it.
        let before = node.limit.swap(limit, SeqCst);
        if limit < before {
            let _disabled = DisableStocks::new(node);
            // A stock that is about to open is waited for.
            self.exact(node, FAST_TRIES, || ());
        }
        node.clear_pressure(node.usage.load(Relaxed));
    }

    /// Changes the soft limit: above it, pressure.
    pub fn set_soft_limit(&self, node: &Node, limit: u64) {
        node.soft.store(limit, Relaxed);
        let usage = node.usage.load(Relaxed);
        node.clear_pressure(usage);
        if usage > limit {
            self.report_pressure(node);
        }
    }

    /// The limit; `u64::MAX`: none.
    pub fn limit(&self, node: &Node) -> u64 {
        node.limit.load(Relaxed)
    }

    /// Whether units came back for which somebody waits, since this was asked last. A host asks after
    /// whatever may give units back.
    #[inline]
    pub fn take_pending_wake(&self) -> bool {
        self.wake_pending.load(Relaxed) != 0 && self.wake_pending.swap(0, AcqRel) != 0
    }

    /// Whether [`take_pending_wake`](Self::take_pending_wake) would say so.
    #[inline]
    pub fn wake_pending(&self) -> bool {
        self.wake_pending.load(Relaxed) != 0
    }

    /// Counts a charge of the account `by` that waits at `node`, on its path: the stocks there stay closed, so that
    /// whatever comes back is seen, and no other charge goes through.
    pub fn begin_waiting(&self, node: &Node, by: &Node) {
        by.charging.fetch_add(1, Relaxed);
        // ORDERING: SeqCst, both; before the look at usage, pairs with `take_back`.
        node.waiting.fetch_add(1, SeqCst);
        std::mem::forget(DisableStocks::new(node));
        self.drain_open(node);
    }

    /// The opposite of `begin_waiting`.
    pub fn end_waiting(&self, node: &Node, by: &Node) {
        // ORDERING: SeqCst, of which Release; it only lets others in again.
        node.stocks_disabled.fetch_sub(1, SeqCst);
        node.waiting.fetch_sub(1, SeqCst);
        // ORDERING: Release, last; pairs with the Acquire in `try_reap`: `node`, which is on the path, is not touched
        // any more.
        by.charging.fetch_sub(1, Release);
    }

    /// How many accounts there are, orphans included.
    pub fn accounts(&self) -> usize {
        self.nodes.len() - ignore_poison(self.retired.lock()).free.len()
    }

    /// The account with this key.
    pub fn node(&self, key: Key) -> Option<&Node> {
        self.nodes.get(key)
    }
}
