//! Refuse: how it is decided that an account is full.
//!
//! Model.   Usage counts what lies in stocks, and what a charge is about to undo. So who does not fit
//!          closes all stocks below the full account, which brings their units back, and looks at usage
//!          when nothing of that kind is in it. Then it fits, and the charge is tried again, or it does
//!          not: refused. Meanwhile stocks below stay closed, and every charge takes what it needs.
//! Number.  Full with all stocks closed: four loads. Else a look at every stock below.
//! Writers. `refusing`, `turn`: here.
//! Source.  DESIGN, "while a charge is being refused, refills on its path take exactly what they need".
//!
//! # Notes on refusing
//!
//! ```text
//! who opens a stock, or passes                who refuses
//! float += units                              refusing += 1
//! if refusing > 0: float -= units, leave      close stocks that are open
//! usage += …                                  if float != 0: again
//! open the stock | know that it stays         usage; float as before?
//! ```
//!
//! All of these are SeqCst. Either the left side sees `refusing` and leaves without a trace, or its float
//! comes first in the one order and the right side sees it: then it closes the stock, or waits for who
//! passes. A float of 0 that is the same before and after says that usage is what is used, at the moment
//! of its load: who added to it has come to stay, and who drained has taken it off before it lowered the
//! float. So a refusal is exact. Where two refuse at once they take turns (`turn`), and who passes an
//! account where somebody refuses takes a turn too: nobody waits for more than those who were on their
//! way. Waiter sleeps; it never spins for long, so a thread of high priority keeps nobody from leaving.
//!
//! The fast kind has no moment of which this holds, as a section under way commits after its stock was
//! closed: a debt of at most its room. There it is not waited for.
//! Loom: `accounts/loom.rs::a_refusal_is_never_false`.

use super::ancestors::{Full, MayCharge};
use super::node::{Node, PRESSURE_REPORTED};
use super::{Accounts, Stocks};
use crate::outcome::{Event, OverBudget, Refused};
use crate::sync::{Ordering::*, pause};
use warmcore_types::ignore_poison;

/// Keeps the stocks below an account closed as long as it lives.
pub(super) struct DisableStocks<'a>(&'a Node);

impl<'a> DisableStocks<'a> {
    pub(super) fn new(node: &'a Node) -> Self {
        // ORDERING: SeqCst; pairs with `Node::are_stocks_disabled`, see "Notes on refusing".
        node.stocks_disabled.fetch_add(1, SeqCst);
        Self(node)
    }
}

impl Drop for DisableStocks<'_> {
    fn drop(&mut self) {
        // ORDERING: SeqCst, of which Release; it only lets others in again.
        self.0.stocks_disabled.fetch_sub(1, SeqCst);
    }
}

/// The fast kind asks so often for a moment that is exact.
pub(super) const FAST_TRIES: u32 = 4;

impl<S: Stocks> Accounts<S> {
    /// Charges `n` up the tree; drains and tries again where it does not fit.
    pub(super) fn charge_tree(
        &self,
        node: &Node,
        n: u64,
        may_charge: Option<MayCharge>,
    ) -> Result<(), OverBudget> {
        let charge_ancestors = || {
            self.charge_ancestors(node, n, may_charge, true).map(|has_crossed| {
                if has_crossed {
                    self.report_pressure(node);
                }
            })
        };
        let mut full = match charge_ancestors() {
            Ok(()) => return Ok(()),
            Err(full) => full,
        };
        let mut pressures = node.path().count();
        // Each round is another account, or somebody else was charged in between.
        loop {
            if full.is_queued {
                return Err(self.over_budget(full, full.node.usage.load(Relaxed)));
            }
            let _disabled = DisableStocks::new(full.node);
            if let Some(usage) = self.usage_if_full(node, n, &mut full) {
                // Whoever hears of it may free something; each account says it once, or who frees a little
                // with every call would be called for ever.
                if pressures > 0 && full.node.set_state(PRESSURE_REPORTED, true) {
                    pressures -= 1;
                    let (account, limit) = (full.node.name(), full.node.pressure_at());
                    self.notify_listener(full.node, || Event::Pressure { account, usage, limit });
                } else {
                    let over = self.over_budget(full, usage);
                    if may_charge.is_none() {
                        self.notify_listener(full.node, || Event::OverBudget(over.clone()));
                    }
                    return Err(over);
                }
            }
            full = match charge_ancestors() {
                Ok(()) => return Ok(()),
                Err(full) => full,
            };
        }
    }

    fn over_budget(&self, full: Full, usage: u64) -> OverBudget {
        OverBudget(Box::new(Refused {
            account: full.node.name(),
            asked: full.asked,
            usage,
            limit: full.node.limit.load(Relaxed),
            is_queued: full.is_queued,
            key: full.node.key,
        }))
    }

    /// The account's usage if there is no room for what it is asked, all stocks below it closed. What they
    /// held of a guarantee is there again, so it may be asked for less than it was.
    fn usage_if_full(&self, node: &Node, n: u64, full: &mut Full) -> Option<u64> {
        let below = || node.path().take_while(|a| !std::ptr::eq(*a, full.node));
        // Under its lock: who has taken hold of a reserve may have to put it back.
        let covered = |a: &Node| {
            let _kept = a.lock_guarantee();
            a.reserve.load(Acquire)
        };
        let asked = || below().fold(n, |rest, a| rest.saturating_sub(covered(a)));
        let (usage, asked) = self.exact(full.node, FAST_TRIES, asked);
        full.asked = asked;
        let sum = usage.checked_add(full.asked);
        let is_over = full.asked > 0 && sum.is_none_or(|sum| sum > full.node.limit.load(Relaxed));
        is_over.then_some(usage)
    }

    /// What is used of an account, at a moment within this call, and what `look` found then. The caller keeps
    /// its stocks closed.
    /// The fast kind gives up after some tries, and then it is at most what is charged.
    pub(super) fn exact<T>(&self, node: &Node, fast_tries: u32, observe: impl Fn() -> T) -> (u64, T) {
        if let Some(exact) = node.exact(&observe) {
            return exact;
        }
        let _turn = ignore_poison(node.exact_lock.lock());
        let mut tries = 0;
        loop {
            self.drain_open(node);
            if let Some(exact) = node.exact(&observe) {
                return exact;
            }
            if !S::STRICT && tries >= fast_tries {
                // ORDERING: SeqCst; who waits has said so before this, see `take_back`.
                return (node.usage.load(SeqCst), observe());
            }
            pause(tries);
            tries += 1;
        }
    }
}
