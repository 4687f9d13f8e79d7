//! Deciding exactly whether an account is full.
//!
//! Usage includes units in stocks and charges that are about to be undone. So a charge that does not fit closes all
//! open stocks of the full account and below, which returns their units, and then reads usage at a moment when it
//! includes neither of the two. If the charge fits then, it is tried again; otherwise it is refused, or tried again
//! after the account's listener was told. Meanwhile these stocks stay closed, and every other charge to these accounts
//! takes exactly the units that it needs.
//!
//! Cost, if all these stocks are closed already: three loads, and one for each account from the charged one to the
//! full one; otherwise also reading the stocks of every account below with open stocks.
//!
//! # Notes on refusing
//!
//! ```text
//! opens a stock, or is in flight              refuses a charge
//! slack += units                              stocks_disabled += 1
//! if stocks_disabled > 0:                     close stocks that are open
//!     slack -= units, return                  if slack != 0: repeat
//! usage += …                                  read usage; slack unchanged?
//! open the stock | know that it stays
//! ```
//!
//! (`slack`: see `node.rs`.) All of these operations are SeqCst. Either the left side sees `stocks_disabled` and undoes
//! its slack, or its slack comes first in the single order and the right side sees it. In the second case the right
//! side closes the stock, or waits for the charge in flight. A slack of 0 that is the same before and after the load
//! means that usage is exact at the moment of the load: every addition to it stays, and every drain has subtracted its
//! units before it lowered the slack. So a refusal is exact with the strict kinds.
//!
//! Charges that do not find such a moment at once decide one after the other, under the account's `exact_lock`. A
//! charge that goes up the tree through an account with `stocks_disabled` takes the lock as well, so a deciding
//! charge waits only for charges that were in flight when it began. The wait (`pause`) sleeps after a short spin, so
//! a thread of high priority does not keep the thread of the charge in flight from running.
//!
//! For the rseq kind there may be no moment when usage is exact: a section that was under way may commit after its
//! stock was closed, and leaves a debt of at most the stock's capacity. That kind stops waiting after a number of
//! tries: `FAST_TRIES` for a refusal or a lower limit, 1000 for `exact_usage`.
//!
//! Model: `accounts/loom.rs::a_refusal_is_never_false`.

use super::ancestors::{Full, MayCharge};
use super::node::{FILLED, Node, PRESSURE_REPORTED};
use super::{Accounts, Stocks};
use crate::outcome::{Event, OverBudget, Refused};
use crate::sync::{Ordering::*, pause};
use warmcore_types::ignore_poison;

/// While this exists, no stock of the account or below begins to open or to be refilled. It does not close open stocks.
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
        // ORDERING: SeqCst, of which Release is needed; later charges use stocks again.
        self.0.stocks_disabled.fetch_sub(1, SeqCst);
    }
}

/// How often the rseq kind pauses at most between reads of usage, for a refusal and for a lower limit. After that it
/// decides by what is charged.
pub(super) const FAST_TRIES: u32 = 4;

impl<S: Stocks> Accounts<S> {
    /// Charges `n` up the tree; does not change `direct`. If the charge does not fit an account, drains the open stocks
    /// there and below, and tries again if it may fit now.
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
        let mut pressures = node.path().count();
        // Kept, so that the stocks stay closed while the charge is tried again.
        let mut disabled = None;
        // Repeats only if the charge may fit now, or the listener of the full account was called.
        loop {
            let Err(mut full) = charge_ancestors() else { return Ok(()) };
            if full.is_queued {
                return Err(self.over_budget(full, full.node.usage.load(Relaxed)));
            }
            full.node.set_state(FILLED, true);
            if let Some(usage) = self.usage_if_full(node, n, &mut full, &mut disabled) {
                // The listener may free units, so the charge is tried again, at most as often as the path has accounts:
                // otherwise a listener that frees a little with each call would be called without end.
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

    /// The usage of the account in `full` if the charge does not fit there with all stocks closed; `None` if it fits.
    /// Units from these stocks may have refilled a guarantee below, so `full.asked` may become less than it was.
    /// Disables stocks unless it finds the usage exact at once.
    fn usage_if_full<'a>(
        &self,
        node: &Node,
        n: u64,
        full: &mut Full<'a>,
        disabled: &mut Option<DisableStocks<'a>>,
    ) -> Option<u64> {
        let below = || node.path().take_while(|a| !std::ptr::eq(*a, full.node));
        // Under the lock, because a charge that has taken units from the reserve may have to put them back.
        let covered = |a: &Node| {
            let _kept = a.lock_guarantee();
            a.reserve.load(Acquire)
        };
        let asked = || below().fold(n, |rest, a| rest.saturating_sub(covered(a)));
        let (usage, asked) = full.node.exact(asked).unwrap_or_else(|| {
            *disabled = Some(DisableStocks::new(full.node));
            self.exact(full.node, FAST_TRIES, asked)
        });
        full.asked = asked;
        let sum = usage.checked_add(full.asked);
        let is_over = full.asked > 0 && sum.is_none_or(|sum| sum > full.node.limit.load(Relaxed));
        is_over.then_some(usage)
    }

    /// The units in use by an account and all below at one moment within this call, and what `observe` returned at that
    /// moment. The caller holds a [`DisableStocks`] of the account; this call closes the stocks. The rseq kind gives up
    /// after `fast_tries` pauses; then the result is what is charged, units in stocks included.
    pub(super) fn exact<T>(&self, node: &Node, fast_tries: u32, observe: impl Fn() -> T) -> (u64, T) {
        let _turn = ignore_poison(node.exact_lock.lock());
        let mut tries = 0;
        loop {
            self.drain_open(node);
            if let Some(exact) = node.exact(&observe) {
                return exact;
            }
            if !S::STRICT && tries >= fast_tries {
                // ORDERING: SeqCst; a waiting charge was counted before this, see `take_back`.
                return (node.usage.load(SeqCst), observe());
            }
            pause(tries);
            tries += 1;
        }
    }
}
