//! How a charge is added to an account and its ancestors, and how units return to them.
//!
//! A charge is added to the usage of the account, then of its parent, up to the root. If it does not fit an account,
//! the additions to the accounts below are undone. Until it is known that an addition stays, the charge is *in flight*:
//! it counts as one unit in the `slack` (see `node.rs`) of every account on the path except the root, so that no other
//! charge is refused because of an addition that may be undone. An account's guarantee is charged to its parent in
//! advance, and its unused part is the account's `reserve`; the part of a charge that the reserve covers is not added
//! to the accounts above. With a guarantee, usage and reserve change under `guarantee_lock`, so that no other holder of
//! the lock finds the reserve without units that a refused charge takes and puts back.
//!
//! # Cost
//!
//! With three levels and no guarantee: three compare-and-swaps on usage, two locked instructions on the slack of each
//! of the lower two levels, and one on `direct`; one more at each level whose usage is higher than ever before
//! (`peak`).
//!
//! # Locks
//!
//! Taken in this order: the `exact_lock`s from the account to the root, then the `guarantee_lock`s from the account
//! to the root. A charge that reads the exact usage holds an `exact_lock` while it returns the units that it
//! drained, which takes `guarantee_lock`s, so `exact_lock`s come first.

use super::node::{Node, PRESSURE_REPORTED, take_up_to};
use super::{Accounts, Stocks};
use crate::outcome::{Event, Overrun, contain};
use crate::sync::{MutexGuard, Ordering::*};
use warmcore_types::ignore_poison;

/// Says whether a charge may pass the charges that wait at the given account.
pub(crate) type MayCharge<'a> = &'a dyn Fn(&Node) -> bool;

/// The account that stopped a charge, and how much of the charge was to be added there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Full<'a> {
    pub(super) node: &'a Node,
    pub(super) asked: u64,
    /// Whether the charge was stopped because other charges wait there.
    pub(super) is_queued: bool,
}

/// A charge in flight at one account: while this exists, one unit of the account's slack stands for the charge.
struct InFlight<'a> {
    node: &'a Node,
    /// Held if the account's stocks were disabled at the beginning. A call that reads the exact usage there holds
    /// the lock and waits for all charges in flight, so a new charge takes the lock before it counts as in flight.
    _exact_lock: Option<MutexGuard<'a, ()>>,
}

impl<'a> InFlight<'a> {
    /// Adds the charge to the slack. `None` if the account's stocks are disabled, so that the lock is needed, and
    /// `may_wait` is false.
    fn begin(node: &'a Node, may_wait: bool) -> Option<Self> {
        node.begin_slack();
        if !node.are_stocks_disabled() {
            return Some(Self { node, _exact_lock: None });
        }
        node.sub_slack(1);
        let guard = may_wait.then(|| ignore_poison(node.exact_lock.lock()))?;
        node.begin_slack();
        Some(Self { node, _exact_lock: Some(guard) })
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.node.sub_slack(1);
    }
}

impl<S: Stocks> Accounts<S> {
    /// Charges `n` from `node` up to the root, or nothing. `may_charge` says whether the charge may pass those that
    /// wait at an account; without it, it may not. `may_wait` is false if the caller has taken capacity for a stock:
    /// the holder of an `exact_lock` waits for that capacity. Returns whether the usage of an account is above its
    /// `pressure_at` now. The caller reports that after it has filled the stock or returned the capacity, because
    /// the listener may ask for the exact usage, which waits for that.
    pub(super) fn charge_ancestors<'a>(
        &self,
        node: &'a Node,
        n: u64,
        may_charge: Option<MayCharge>,
        may_wait: bool,
    ) -> Result<bool, Full<'a>> {
        self.precheck(node, n, may_charge)?;
        let mut has_crossed = false;
        self.charge_in_flight(node, node, n, &mut has_crossed, may_wait)?;
        Ok(has_crossed)
    }

    /// Puts the charge in flight at `at` and all accounts above it, then charges from `node`.
    fn charge_in_flight<'a>(
        &self,
        node: &'a Node,
        at: &'a Node,
        n: u64,
        has_crossed: &mut bool,
        may_wait: bool,
    ) -> Result<(), Full<'a>> {
        // Additions to the root are never undone.
        let Some(parent) = at.parent() else { return self.charge_ancestors_from(node, n, has_crossed) };
        let blocked = Full { node: at, asked: n, is_queued: false };
        let _in_flight = InFlight::begin(at, may_wait).ok_or(blocked)?;
        self.charge_in_flight(node, parent, n, has_crossed, may_wait)
    }

    /// Refuses a charge that does not fit now, or may not pass charges that wait, before anything is written.
    fn precheck<'a>(&self, node: &'a Node, n: u64, may_charge: Option<MayCharge>) -> Result<(), Full<'a>> {
        let mut rest = n;
        for node in node.path() {
            let is_queued =
                node.waiting.load(Relaxed) > 0 && !may_charge.is_some_and(|may_charge| may_charge(node));
            let usage = node.usage.load(Relaxed);
            if is_queued || usage.checked_add(rest).is_none_or(|sum| sum > node.limit.load(Relaxed)) {
                return Err(Full { node, asked: rest, is_queued });
            }
            rest = rest.saturating_sub(node.reserve.load(Relaxed));
            if rest == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Charges from `node` up. The charge is already in flight at every account below the root.
    fn charge_ancestors_from<'a>(
        &self,
        node: &'a Node,
        n: u64,
        has_crossed: &mut bool,
    ) -> Result<(), Full<'a>> {
        let parent = node.parent();
        let kept = parent.and_then(|_| node.lock_guarantee());
        let Ok(usage) = node.add_usage(n) else { return Err(Full { node, asked: n, is_queued: false }) };
        if let Some(parent) = parent {
            let from_reserve = if kept.is_some() { take_up_to(&node.reserve, n) } else { 0 };
            if from_reserve < n
                && let Err(full) = self.charge_ancestors_from(parent, n - from_reserve, has_crossed)
            {
                // ORDERING: Release; pairs with the compare-and-swap in `take_up_to`.
                node.reserve.fetch_add(from_reserve, Release);
                node.sub_usage(n);
                return Err(full);
            }
        }
        *has_crossed |= usage > node.pressure_at();
        Ok(())
    }

    /// Charges `n`, even if that exceeds a limit. Of the accounts whose usage the charge raises, returns the one that
    /// is furthest over its limit and by how much, or `None` if none is over. Notifies no listener. Panics, usually
    /// before any change, if the usage of an account would reach 2^64.
    pub(super) fn force_charge_ancestors<'a>(&self, node: &'a Node, n: u64) -> Option<(&'a Node, u64)> {
        let mut rest = n;
        for a in node.path() {
            let usage = a.usage.load(Relaxed);
            let fits = usage.checked_add(rest).is_some();
            assert!(fits, "{}: {usage} + {rest} units are 2^64 or more, too many for an account", a.name());
            rest = rest.saturating_sub(a.reserve.load(Relaxed));
        }
        let (mut rest, mut worst) = (n, None);
        for a in node.path() {
            let _kept = a.lock_guarantee();
            let usage = a.force_usage(rest);
            let by = usage.saturating_sub(a.limit.load(Relaxed));
            if by > worst.map_or(0, |(_, by)| by) {
                worst = Some((a, by));
            }
            rest -= take_up_to(&a.reserve, rest);
            if rest == 0 {
                break;
            }
        }
        worst
    }

    /// Subtracts `n` units from the usage of `node` and of the accounts above it. Where an account lacks units of its
    /// guarantee, that many stay in its reserve, and only the rest is subtracted further up.
    ///
    /// These units are in `usage` all the way up and in no `direct` or reserve, so no node of the path is reused
    /// before this call has subtracted them.
    pub(super) fn release(&self, node: &Node, n: u64) {
        let (mut at, mut rest) = (Some(node), n);
        while let Some(node) = at.filter(|_| rest > 0) {
            at = node.parent();
            let Some(_kept) = at.and_then(|_| node.lock_guarantee()) else {
                self.take_back(node, rest);
                continue;
            };
            // The slack is held while the reserve is accessed: a node with slack is not reused.
            node.begin_slack();
            self.take_back(node, rest);
            rest = self.keep_reserve(node, rest);
            node.sub_slack(1);
        }
    }

    fn take_back(&self, node: &Node, n: u64) {
        node.clear_pressure(node.sub_usage(n));
        // ORDERING: SeqCst; after the usage, see `sub_usage`.
        let waiting = node.waiting.load(SeqCst);
        if waiting > 0 {
            // ORDERING: AcqRel; pairs with the swap in `take_pending_wake`, by this thread or by another one
            // that comes first and then wakes the waiters and sees this usage. A read-modify-write instead of a
            // store: of two stores only the last one would synchronize with the swap.
            self.wake_pending.fetch_or(1, AcqRel);
        }
    }

    /// Of `n` units that have left usage, puts those into the reserve that the guarantee lacks. If the reserve
    /// has more than the guarantee lacks, takes the surplus out. Returns how many units go on to the parent. The
    /// caller holds the account's `guarantee_lock`.
    pub(super) fn keep_reserve(&self, node: &Node, n: u64) -> u64 {
        let lacks = node.guarantee.load(Relaxed).saturating_sub(node.usage.load(Relaxed));
        let reserve = node.reserve.load(Relaxed);
        let keeps = lacks.min(reserve + n);
        // ORDERING: Release; pairs with the Acquire in `usage_if_full`.
        node.reserve.store(keeps, Release);
        reserve + n - keeps
    }

    /// Subtracts `n` from `direct`, which is at least `n`.
    pub(super) fn sub_direct(&self, node: &Node, n: u64) {
        // ORDERING: AcqRel; pairs with the other changes of `direct`.
        let before = node.direct.fetch_sub(n, AcqRel);
        debug_assert!(before >= n, "{}: direct {before} - {n}", node.name());
    }

    /// Reports pressure for every account on the path whose usage is above its `pressure_at`, unless that was reported
    /// already.
    #[cold]
    pub(super) fn report_pressure(&self, node: &Node) {
        for node in node.path() {
            let (usage, limit) = (node.usage.load(Relaxed), node.pressure_at());
            if usage > limit && node.set_state(PRESSURE_REPORTED, true) {
                self.notify_listener(node, || Event::Pressure { account: node.name(), usage, limit });
            }
        }
    }

    /// Calls the listener of this account or of the nearest account above that has one, if there is one. If the
    /// listener panics, the caller continues.
    pub(super) fn notify_listener(&self, node: &Node, event: impl FnOnce() -> Event) {
        let listening = node.path().find(|node| node.state.load(Relaxed) & super::node::HAS_LISTENER != 0);
        let Some(listener) = listening.and_then(|node| node.cold().listener.clone()) else { return };
        // The account may end meanwhile. Then this clone of the listener may be the last one, and is dropped in here.
        contain(move || listener(&event()));
    }

    /// Reports that `node` is `by` units over its limit to the listener, and returns that as an [`Overrun`].
    pub(super) fn overrun(&self, (node, by): (&Node, u64)) -> Overrun {
        let overrun = Overrun { account: node.name(), by };
        self.notify_listener(node, || Event::Overrun(overrun.clone()));
        overrun
    }
}
