//! Refilling a stock, and taking units out of one that is full.
//!
//! A charge that finds too few units in the stock goes up the tree and also takes units for the stock. An uncharge that
//! finds too little room in an open stock takes the units above half of the stock's capacity, and returns them and its
//! own up the tree; if the stock is closed, the uncharge opens it with its own units where that is possible.
//! `capacity.rs` decides how many units a stock may hold. Where a charge did not fit, charges and uncharges pass the
//! stocks by until more is left than all of them may hold, or until the next reclaim (`Node::is_nearly_full`). A slot
//! that holds another account's stock is taken over if that stock is closed, or was not used since an attempt marked
//! it. The capacities of all stocks of an account together are usually no more than what is charged to it, so that an
//! uncharge of more than was charged usually finds no room in a stock, and is reported.
//!
//! Cost of a refill: about 50 ns with three levels; far from every limit, once in 256 to 512 charges. It writes no
//! other stock than the current CPU's.

use super::ancestors::MayCharge;
use super::node::Node;
use super::{Accounts, Stocks};
use crate::capacity::{Facts, capacity_log2, share};
use crate::outcome::{Missing, OverBudget, OverUncharge};
use crate::stock::{CAPACITY_LOG2_MAX, Reduction, StockSnapshot, capacity};
use crate::sync::Ordering::*;
use warmcore_types::CpuId;

/// The largest charge or uncharge that uses stocks, in units.
pub(crate) const STOCKED_MAX: u64 = 1 << (CAPACITY_LOG2_MAX - 1);
const CAPACITY_MAX: u64 = capacity(CAPACITY_LOG2_MAX);

/// A stock that may be filled: its slot is bound, and its capacity is taken from the shares (see `capacity.rs`) of the
/// accounts on the path.
struct Ready {
    cpu: CpuId,
    seen: StockSnapshot,
    capacity_log2: u8,
}

impl Ready {
    /// The capacity that the stock gets in addition to its present one.
    fn more(&self) -> u64 {
        capacity(self.capacity_log2) - self.seen.capacity()
    }

    /// One unit of slack (see `node.rs`) per account while an open stock is refilled: another thread may close the
    /// stock meanwhile and subtract its capacity.
    fn passing(&self) -> u64 {
        u64::from(self.seen.is_open())
    }
}

impl<S: Stocks> Accounts<S> {
    /// Charges `n` units that were not taken from the stock. `may_charge` says whether the charge may pass those
    /// that wait at an account; without it, the charge is refused there.
    #[cold]
    #[inline(never)]
    pub(crate) fn charge_slow(
        &self,
        node: &Node,
        cpu: CpuId,
        n: u64,
        may_charge: Option<MayCharge>,
    ) -> Result<(), OverBudget> {
        let uses_stock = n <= STOCKED_MAX && !node.path().any(Node::is_nearly_full);
        // Tries the stock again: a section may have been aborted, or `AccountPtr::charge_stock` did not know the CPU.
        if n == 0 || (uses_stock && self.stocks.charge(|| cpu, node.key, n as u32)) {
            return Ok(());
        }
        if uses_stock && let Some(ready) = self.ready(node, cpu, n, u64::MAX) {
            // Takes enough to fill the stock to half and to pay its debt; more, at most up to the capacity, if less is
            // charged to the account than its stocks may hold.
            let (capacity, free) = (capacity(ready.capacity_log2) as i64, i64::from(ready.seen.free));
            let charged = node.direct.load(Acquire).saturating_add(n);
            let lacks = node.slack_units().saturating_sub(charged).min(CAPACITY_MAX) as i64;
            let units = lacks.clamp(capacity / 2 - free, capacity - free).max(0) as u64;
            match self.charge_ancestors(node, n + units, may_charge, false) {
                Ok(has_crossed) => {
                    self.add_direct(node, n + units);
                    self.fill(node, &ready, units);
                    if has_crossed {
                        self.report_pressure(node);
                    }
                    return Ok(());
                }
                Err(_) => self.return_capacity(node, &ready, None),
            }
        }
        self.charge_tree(node, n, may_charge)?;
        self.add_direct(node, n);
        Ok(())
    }

    /// Gives back `n` units that the fast path did not return to the stock.
    #[cold]
    #[inline(never)]
    pub(crate) fn uncharge_slow(&self, node: &Node, cpu: CpuId, n: u64) -> Result<(), OverUncharge> {
        let uses_stock = n <= STOCKED_MAX && !node.path().any(Node::is_nearly_full);
        if n == 0 || (uses_stock && self.stocks.uncharge(|| cpu, node.key, n as u32)) {
            return Ok(());
        }
        let seen = self.stocks.snapshot(cpu, node.key);
        let is_ours = uses_stock && seen.key == node.key && !seen.is_leaving && seen.is_open();
        // The units stay with the account if a stock opens for them.
        let may_open = uses_stock && !is_ours;
        if may_open && let Some(ready) = self.ready(node, cpu, n, self.used_at_least(node)) {
            let is_even = ready.seen.free == 0;
            if is_even && self.stocks.refill(cpu, node.key, &ready.seen, n as u32, ready.capacity_log2) {
                self.end_refill(node, &ready);
                return Ok(());
            }
            self.return_capacity(node, &ready, None);
        }
        self.take_direct(node, n)?;
        // If this CPU's stock is open, it has too little room: its units above half of its capacity go up the tree as
        // well.
        let taken = if is_ours { (seen.free - (capacity(seen.capacity_log2) / 2) as i32).max(0) } else { 0 };
        if taken == 0 || self.used_at_least(node) < taken as u64 {
            self.release(node, n);
            return Ok(());
        }
        let mut back = n;
        // Adds a unit of slack to each account of the path: between `reduce` and `release` the units are in `usage`,
        // but neither in use nor in a stock, and `usage` counts as exact only while slack is 0. The stock's own slack
        // may be gone by then: another thread may close the stock meanwhile and subtract it.
        for a in node.path() {
            a.begin_slack();
        }
        let to = Reduction { taken, capacity_log2: seen.capacity_log2, mark: false };
        if self.stocks.reduce(cpu, node.key, &seen, to) {
            self.sub_direct(node, taken as u64);
            back += taken as u64;
        }
        self.release(node, back);
        for a in node.path() {
            a.sub_slack(1);
        }
        Ok(())
    }

    /// Puts charged units into the stock. Gives them and the capacity back if that fails: another thread has changed
    /// the stock, this thread has moved to another CPU, or the section was aborted too often.
    fn fill(&self, node: &Node, ready: &Ready, units: u64) {
        if !self.stocks.refill(ready.cpu, node.key, &ready.seen, units as u32, ready.capacity_log2) {
            self.sub_direct(node, units);
            self.release(node, units);
            self.return_capacity(node, ready, None);
            return;
        }
        self.end_refill(node, ready);
    }

    /// Prepares this CPU's stock for charges of `n` units, at most `STOCKED_MAX`: binds its slot if another account has
    /// it, and takes capacity for it, at most `most` unless it has more already. `None` if that is not possible now.
    fn ready(&self, node: &Node, cpu: CpuId, n: u64, most: u64) -> Option<Ready> {
        if cpu.0 >= self.stocks.cpus() || node.path().any(Node::are_stocks_disabled) {
            return None;
        }
        let mut seen = self.stocks.snapshot(cpu, node.key);
        if seen.key != node.key || seen.is_leaving {
            seen = self.rebind_slot(node, cpu, seen)?;
        }
        let allowed = self.allowed(node, &seen);
        // Never lowered here: `reclaim_idle` closes a stock with more than twice the allowed capacity.
        let capacity_log2 = capacity_log2(n, allowed.min(most)).max(seen.capacity_log2);
        let ready = Ready { cpu, seen, capacity_log2 };
        (capacity_log2 > 0 && self.take_capacity(node, &ready)).then_some(ready)
    }

    /// The largest capacity that the path allows this stock, with its present capacity counted as free.
    pub(super) fn allowed(&self, node: &Node, seen: &StockSnapshot) -> u64 {
        let allows = |a: &Node| {
            let facts = Facts {
                limit: a.limit.load(Relaxed),
                usage: a.usage.load(Relaxed),
                taken: a.slack_units().saturating_sub(seen.capacity()),
                stocks: u64::from(a.stocks.load(Relaxed)) + u64::from(!seen.is_open()),
            };
            facts.allows()
        };
        node.path().map(allows).min().unwrap_or(0)
    }

    /// Takes the stock's additional capacity from the share of every account on the path. Returns false, and takes
    /// nothing, if a share has too little left or stocks are disabled.
    fn take_capacity(&self, node: &Node, ready: &Ready) -> bool {
        let (more, passing) = (ready.more(), ready.passing());
        // ORDERING: SeqCst; before the slack. A drain that sees the slack also sees the bit, or what this load
        // read of it: reads of one atomic never go back in time.
        let bit = 1 << (ready.cpu.0 % 64);
        if node.cpus.load(Relaxed) & bit == 0 {
            node.cpus.fetch_or(bit, SeqCst);
        }
        for a in node.path() {
            if !a.add_slack(more + passing, share(a.limit.load(Relaxed)) + passing) {
                self.return_capacity(node, ready, Some(a));
                return false;
            }
            a.stocks.fetch_add(u32::from(!ready.seen.is_open()), Relaxed);
        }
        if node.path().any(Node::are_stocks_disabled) {
            self.return_capacity(node, ready, None);
            return false;
        }
        true
    }

    /// Undoes `take_capacity` at the accounts below `end`, which had too little left; without `end`, on the whole path.
    fn return_capacity(&self, node: &Node, ready: &Ready, end: Option<&Node>) {
        for a in node.path().take_while(|a| !end.is_some_and(|end| std::ptr::eq(*a, end))) {
            a.stocks.fetch_sub(u32::from(!ready.seen.is_open()), Relaxed);
            a.sub_slack(ready.more() + ready.passing());
        }
    }

    /// Takes the unit of slack ([`Ready::passing`]) back after a refill that succeeded: the stock now has the units and
    /// the capacity.
    fn end_refill(&self, node: &Node, ready: &Ready) {
        for a in node.path().filter(|_| ready.passing() > 0) {
            a.sub_slack(ready.passing());
        }
    }

    /// Binds the slot to `node` if the slot's stock is closed, or was not used since an attempt marked it; otherwise
    /// marks that stock. Returns the state after the binding, or `None` if the slot was not bound.
    fn rebind_slot(&self, node: &Node, cpu: CpuId, mut seen: StockSnapshot) -> Option<StockSnapshot> {
        let resident = self.nodes.get(seen.key).filter(|_| !seen.is_leaving);
        if let Some(resident) = resident {
            if seen.is_open() && !seen.is_idle {
                // Second chance: the next attempt takes the slot over if it finds the stock unchanged.
                let to = Reduction { taken: 0, capacity_log2: seen.capacity_log2, mark: true };
                self.stocks.reduce(cpu, seen.key, &seen, to);
                return None;
            }
            self.close(resident, cpu);
            seen = self.stocks.snapshot(cpu, node.key);
        }
        let is_even = seen.is_leaving || (seen.free == 0 && !seen.is_open());
        if !is_even || !self.stocks.bind(cpu, node.key, &seen) {
            return None;
        }
        Some(self.stocks.snapshot(cpu, node.key)).filter(|seen| seen.key == node.key && !seen.is_leaving)
    }

    pub(super) fn add_direct(&self, node: &Node, n: u64) {
        // ORDERING: AcqRel; pairs with `take_direct`, which may take these units.
        node.direct.fetch_add(n, AcqRel);
    }

    /// A lower bound of the units in use by this account (not by those below), for any content of its stocks.
    fn used_at_least(&self, node: &Node) -> u64 {
        node.direct.load(Acquire).saturating_sub(node.slack_units())
    }

    /// Takes `n` from what is charged to this account and to ended accounts among its children, or returns an error
    /// if less is charged.
    fn take_direct(&self, node: &Node, n: u64) -> Result<(), OverUncharge> {
        if self.used_at_least(node) < n {
            // Units in stocks are not in use, so they are taken back before `direct` is compared.
            self.close_all(node);
            self.reparent(node, n);
        }
        let mut direct = node.direct.load(Acquire);
        loop {
            let Some(less) = direct.checked_sub(n) else {
                // With the rseq kind a section may have left a debt after the first `close_all`: units that are in
                // use, but not in `direct` yet. `close_all` charges them, which changes `direct`: then try again.
                if !S::STRICT {
                    self.close_all(node);
                }
                let now = node.direct.load(Acquire);
                if now != direct {
                    direct = now;
                    continue;
                }
                let missing = Missing { account: node.name(), asked: n, charged: direct };
                return Err(OverUncharge(Box::new(missing)));
            };
            // ORDERING: AcqRel; pairs with `add_direct`.
            match node.direct.compare_exchange_weak(direct, less, AcqRel, Acquire) {
                Ok(_) => return Ok(()),
                Err(now) => direct = now,
            }
        }
    }
}
