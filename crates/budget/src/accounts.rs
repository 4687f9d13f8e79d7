//! A tree of accounts with limits, charged through per-CPU stocks.
//!
//! `try_charge` takes units from the account's stock on this CPU. If the stock has too few units, the charge goes
//! up the tree (`charge_ancestors`) and usually also takes units for the stock (`refill`). If it does not fit a
//! limit, the open stocks of the full account and of all below are closed (`drain`), and the charge is granted or
//! refused by the exact usage (`exact`). Far from every limit, one charge in some hundreds goes up the tree.
//!
//! Units are conserved: while no operation is under way, the units charged to an account itself (`direct` in `node.rs`)
//! = used + units in its stocks − debts of its stocks. (A debt is units that were spent from a stock after a drain had
//! taken them.) `node.rs` lists the writers of an account's fields, `stock.rs` says which CPUs change a stock.

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

/// All accounts whose stocks are in the same tables.
#[derive(Debug)]
pub struct Accounts<S> {
    stocks: S,
    nodes: Nodes,
    retired: Mutex<Retired>,
    /// 1 if units came back to an account where a charge waits and `take_pending_wake` was not called since.
    wake_pending: AtomicU32,
}

/// The keys of nodes without an account, for reuse (`free`), and of ended accounts that still have charges (`orphans`).
#[derive(Debug, Default)]
struct Retired {
    free: BinaryHeap<Reverse<Key>>,
    orphans: Vec<Key>,
}

/// What a drain returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Drained {
    /// Units that were in stocks.
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
    /// Makes an empty set of accounts.
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
    /// **Touches** the stock on this CPU; the accounts too once in some hundreds of charges, for a charge that is too
    /// large for a stock, and near a limit.
    #[inline(always)]
    pub fn try_charge(&self, node: &Node, cpu: impl Fn() -> CpuId, n: u64) -> Result<(), OverBudget> {
        if self.charge_stock(node, &cpu, n) { Ok(()) } else { self.charge_slow(node, cpu(), n, None) }
    }

    /// Charges `n` units to this CPU's stock. Returns false, and changes nothing, if `n` is above `STOCKED_MAX` or
    /// [`Stocks::charge`] returns false.
    #[inline(always)]
    pub(crate) fn charge_stock(&self, node: &Node, cpu: impl Fn() -> CpuId, n: u64) -> bool {
        n <= STOCKED_MAX && self.stocks.charge(cpu, node.key, n as u32)
    }

    /// Charges `n` units, even if they exceed a limit. `Err` names the account that is furthest over its limit, and by
    /// how much; the units are charged in this case too. Panics above 2^60 units, and if the usage of an account
    /// would reach 2^64.
    pub fn force_charge(&self, node: &Node, cpu: CpuId, n: u64) -> Result<(), Overrun> {
        assert!(n <= 1 << 60, "{}: {n} units at once; at most 2^60 are allowed", node.name());
        if self.charge_slow(node, cpu, n, None).is_ok() {
            return Ok(());
        }
        self.force_charge_past_stocks(node, n).map_or(Ok(()), Err)
    }

    /// As `try_charge`, but never through a stock: for callers without a handle. The units that they have charged
    /// already keep the account in existence.
    pub fn try_charge_past_stocks(&self, node: &Node, n: u64) -> Result<(), OverBudget> {
        self.charge_tree(node, n, None)?;
        self.add_direct(node, n);
        Ok(())
    }

    /// As `force_charge`, but never through a stock. Returns the overrun, if there is one.
    pub fn force_charge_past_stocks(&self, node: &Node, n: u64) -> Option<Overrun> {
        let over = self.force_charge_ancestors(node, n);
        self.add_direct(node, n);
        for full in node.path().filter(|a| a.usage.load(Relaxed) > a.limit.load(Relaxed)) {
            // The units in stocks here and below count in the usage that exceeds the limit, so they are taken back.
            if full.slack_units() > 0 {
                let _disabled = DisableStocks::new(full);
                self.drain_open(full);
            }
        }
        self.report_pressure(node);
        over.map(|over| self.overrun(over))
    }

    /// Gives back `n` units that were charged to this account, on any CPU.
    ///
    /// Returns an error if fewer are charged, unless this CPU's stock has room for the surplus, or another CPU
    /// refills a stock of the account during the call. In these two cases the next drain finds more units in
    /// stocks than are charged.
    #[inline(always)]
    pub fn uncharge(&self, node: &Node, cpu: impl Fn() -> CpuId, n: u64) -> Result<(), OverUncharge> {
        if self.uncharge_stock(node, &cpu, n) { Ok(()) } else { self.uncharge_slow(node, cpu(), n) }
    }

    /// Returns `n` units to this CPU's stock. Returns false, and changes nothing, if `n` is above `STOCKED_MAX` or
    /// [`Stocks::uncharge`] returns false.
    #[inline(always)]
    pub(crate) fn uncharge_stock(&self, node: &Node, cpu: impl Fn() -> CpuId, n: u64) -> bool {
        n <= STOCKED_MAX && self.stocks.uncharge(cpu, node.key, n as u32)
    }

    /// Changes the limit. With a limit below usage, charges that would add to this account's usage are refused until
    /// enough units were given back, unless they are forced. A lower limit empties the stocks of the account and of all
    /// below.
    pub fn set_limit(&self, node: &Node, limit: u64) {
        // ORDERING: SeqCst; before the drain, so that after the drain no stock opens with a share of the old
        // limit.
        let before = node.limit.swap(limit, SeqCst);
        if limit < before {
            let _disabled = DisableStocks::new(node);
            // Closed stocks too: a section (of the rseq kind) may have returned units there, and the stock would
            // serve charges with these although the account is over the new limit.
            self.settle(node);
            // `exact` waits for a stock that is being opened; the rseq kind stops waiting after `FAST_TRIES`.
            self.exact(node, FAST_TRIES, || ());
        }
        node.clear_pressure(node.usage.load(Relaxed));
    }

    /// Changes the soft limit. Usage above it is reported as pressure.
    pub fn set_soft_limit(&self, node: &Node, limit: u64) {
        node.soft.store(limit, Relaxed);
        let usage = node.usage.load(Relaxed);
        node.clear_pressure(usage);
        if usage > limit {
            self.report_pressure(node);
        }
    }

    /// The limit; `u64::MAX` if there is none.
    pub fn limit(&self, node: &Node) -> u64 {
        node.limit.load(Relaxed)
    }

    /// Whether units came back to an account where a charge waits, since the last call. To be called after every
    /// operation that may return units; if it returns true, the caller wakes the waiters.
    #[inline]
    pub fn take_pending_wake(&self) -> bool {
        self.wake_pending.load(Relaxed) != 0 && self.wake_pending.swap(0, AcqRel) != 0
    }

    /// Whether [`take_pending_wake`](Self::take_pending_wake) would return true.
    #[inline]
    pub fn wake_pending(&self) -> bool {
        self.wake_pending.load(Relaxed) != 0
    }

    /// Counts a charge of the account `by` that waits at `node`, an account on the path of `by`. Until `end_waiting`
    /// the stocks of `node` and below stay closed, so that no returned unit stays in a stock there, and a charge that
    /// is not forced is granted there only if its `may_charge` (an argument of `charge_slow`) lets it pass.
    pub fn begin_waiting(&self, node: &Node, by: &Node) {
        by.charging.fetch_add(1, Relaxed);
        // ORDERING: SeqCst, here and in `DisableStocks`; before the caller reads usage; pairs with `take_back`.
        node.waiting.fetch_add(1, SeqCst);
        std::mem::forget(DisableStocks::new(node));
        self.drain_open(node);
    }

    /// The opposite of `begin_waiting`.
    pub fn end_waiting(&self, node: &Node, by: &Node) {
        // ORDERING: SeqCst, of which Release is needed; later charges use stocks again.
        node.stocks_disabled.fetch_sub(1, SeqCst);
        node.waiting.fetch_sub(1, SeqCst);
        // ORDERING: Release, last; pairs with the Acquire in `try_reap`. `node`, which is on the path, is not
        // touched after it.
        by.charging.fetch_sub(1, Release);
    }

    /// The number of accounts, orphans included.
    pub fn accounts(&self) -> usize {
        self.nodes.len() - ignore_poison(self.retired.lock()).free.len()
    }

    /// The node with this key, whose account may have ended; `None` if no account ever had the key.
    pub fn node(&self, key: Key) -> Option<&Node> {
        self.nodes.get(key)
    }
}
