//! Draining: taking back the units in stocks, from any CPU, without disturbing the CPUs that own them.
//!
//! One compare-and-swap on the stock's word closes it and takes its units. With the rseq kind, a section that is under
//! way may still spend units of the closed stock or return units to it. The taken units go up the tree, and the stock's
//! capacity goes back to the shares of the accounts. No thread is woken, signalled or interrupted; the next charge on
//! the owning CPU finds the stock closed.
//!
//! Cost: two cache misses and a locked instruction per stock, 50 to 200 ns.
//!
//! Source: linux-mm, January 2023: drains that were scheduled on every CPU disturbed isolated CPUs and took as
//! long as the slowest CPU.

use super::node::{FILLED, Node};
use super::{Accounts, Drained, Stocks};
use crate::outcome::Event;
use crate::stock::{Reduction, StockSnapshot};
use crate::sync::Ordering::*;
use warmcore_types::CpuId;

impl<S: Stocks> Accounts<S> {
    /// Empties the stocks of an account and of all below it, and closes them until a later charge or uncharge opens
    /// them again. Calls the listener if a stock was open.
    pub fn drain_all(&self, node: &Node) -> Drained {
        let drained = self.drain(node, true);
        if drained.stocks > 0 {
            let Drained { units, stocks } = drained;
            self.notify_listener(node, || Event::Drained { account: node.name(), units, stocks });
        }
        drained
    }

    /// As `drain_all`, but calls no listener: for a lower limit, and for charges that wait for units which a restartable
    /// section (of the rseq kind) has left in a closed stock.
    pub fn settle(&self, node: &Node) -> Drained {
        self.drain(node, true)
    }

    /// As `drain_all`, but skips accounts below without slack, which have no open stock, and calls no listener. With
    /// the strict kinds that suffices to decide a refusal.
    pub(super) fn drain_open(&self, node: &Node) -> Drained {
        self.drain(node, false)
    }

    /// Drains the account's stocks and those of all below. Unless `thorough`, skips accounts below without slack (see
    /// `node.rs`): their stocks are closed, though a section that was under way may have left units or a debt there.
    fn drain(&self, node: &Node, thorough: bool) -> Drained {
        let mut drained = self.close_all(node);
        // While this lock is held, no child is removed. No deadlock: a drain of a child does not take this lock of its
        // parent.
        let rest = node.cold();
        for child in rest.children.iter().filter_map(|key| self.nodes.get(*key)) {
            if thorough || child.slack_units() > 0 {
                drained += self.drain(child, thorough);
            }
        }
        drained
    }

    /// Closes all stocks of one account.
    pub(super) fn close_all(&self, node: &Node) -> Drained {
        self.cpus_of(node).fold(Drained::default(), |mut drained, cpu| {
            drained += self.close(node, cpu);
            drained
        })
    }

    /// The CPUs on which an account may have a stock.
    pub(super) fn cpus_of(&self, node: &Node) -> impl Iterator<Item = CpuId> {
        // ORDERING: SeqCst; pairs with `take_capacity`.
        let bits = node.cpus.load(SeqCst);
        (0..self.stocks.cpus()).filter(move |cpu| bits >> (cpu % 64) & 1 != 0).map(CpuId)
    }

    /// Closes one stock, if the slot is bound to this account. Returns its units up the tree, or charges its debt.
    ///
    /// With the rseq kind, `reduce` also succeeds if the stock's CPU has spent or returned units since the snapshot.
    /// So the stock is read again, until it is even; only a section that is still under way then can leave units or a
    /// debt. The capacity goes back last: until then no other thread takes `usage` for exact.
    pub(super) fn close(&self, node: &Node, cpu: CpuId) -> Drained {
        let (mut closed, mut units) = (None::<StockSnapshot>, 0);
        loop {
            let seen = self.stocks.snapshot(cpu, node.key);
            let is_ours = seen.key == node.key && !seen.is_leaving;
            let is_even = !seen.is_open() && seen.free == 0;
            // Another thread may have opened the stock again; then that stock stays open.
            if !is_ours || is_even || (closed.is_some() && seen.is_open()) {
                break;
            }
            let to = Reduction { taken: seen.free, capacity_log2: 0, mark: false };
            // The debt is charged before the stock shows it as paid. In the other order the account would have
            // less charged than used for a moment, and an orphan could be freed.
            if seen.free < 0 {
                self.pay(node, -i64::from(seen.free) as u64);
            }
            if self.stocks.reduce(cpu, node.key, &seen, to) {
                if seen.free > 0 {
                    self.sub_direct(node, seen.free as u64);
                    self.release(node, seen.free as u64);
                    units += seen.free as u64;
                }
                closed.get_or_insert(seen);
                if S::STRICT {
                    break;
                }
            } else if seen.free < 0 {
                let paid = -i64::from(seen.free) as u64;
                self.sub_direct(node, paid);
                self.release(node, paid);
            }
        }
        let was_open = closed.filter(StockSnapshot::is_open);
        if let Some(seen) = &was_open {
            self.release_capacity(node, seen);
        }
        Drained { units, stocks: u32::from(was_open.is_some()) }
    }

    /// Charges a debt: units that were spent already. Calls no listener, because the caller may hold locks.
    fn pay(&self, node: &Node, debt: u64) {
        self.force_charge_ancestors(node, debt);
        self.add_direct(node, debt);
    }

    fn release_capacity(&self, node: &Node, seen: &StockSnapshot) {
        for a in node.path() {
            a.stocks.fetch_sub(1, Relaxed);
            a.sub_slack(seen.capacity());
        }
    }

    /// Closes stocks that were not used since they were marked, by the last call or by a charge that needed their slot,
    /// and those that have more than twice the capacity that is allowed now; takes back what sections have left in
    /// closed stocks; lets stocks open again where a charge did not fit; frees accounts that have ended and have no
    /// charges left. The caller's period is the time after which a stock counts as unused; `process/reclaim.rs` calls
    /// this function every 100 ms.
    pub fn reclaim_idle(&self) {
        for node in self.nodes.all() {
            node.set_state(FILLED, false);
            for cpu in self.cpus_of(node) {
                let seen = self.stocks.snapshot(cpu, node.key);
                if seen.key != node.key || seen.is_leaving {
                    continue;
                }
                if !seen.is_open() || seen.is_idle || seen.capacity() > 2 * self.allowed(node, &seen) + 1 {
                    self.close(node, cpu);
                } else {
                    let to = Reduction { taken: 0, capacity_log2: seen.capacity_log2, mark: true };
                    self.stocks.reduce(cpu, node.key, &seen, to);
                }
            }
        }
        self.reap();
    }
}
