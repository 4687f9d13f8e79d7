//! Climb: a charge on its way up the tree, and units on their way back.
//!
//! Model.   A charge is added to the account, then to its parent, to the root. One that does not fit is
//!          undone below. While it might be, it is a *passage*: counted in the float of every account that
//!          it may have to be taken from again, so that nobody is refused because of it. An account's
//!          guarantee is charged to its parent in advance; what it covers ends there. Who changes usage and
//!          reserve of such an account holds its lock: what one gives up, or takes hold of, on the way to
//!          being refused is seen by nobody.
//! Number.  Three levels: three compare-and-swaps on usage, two more each on the float of the lower two.
//! Protocol. Locks: turns from the account to the root, then the guarantees' from the account to the root.
//!          Who refuses has a turn, and gives back what he drains: turns come first.
//! Writers. See `node`.

use super::node::{Node, PRESSURE_REPORTED};
use super::{Accounts, Stocks};
use crate::contain::contain;
use crate::outcome::{Event, Overrun};
use crate::sync::{MutexGuard, Ordering::*};
use warmcore_types::ignore_poison;

/// Whether who asks comes before all who wait at an account.
pub type MayCharge<'a> = &'a dyn Fn(&Node) -> bool;

/// Where a charge did not fit, and how much of it had come so far.
#[derive(Debug, Clone, Copy)]
pub(super) struct Full<'a> {
    pub(super) node: &'a Node,
    pub(super) asked: u64,
    /// Others wait there, and came first.
    pub(super) is_queued: bool,
}

/// Somebody between adding to an account's usage and knowing that it stays: the float says so.
struct InFlight<'a> {
    node: &'a Node,
    /// Where somebody is being refused, one after the other: who refuses waits for those who are counted.
    _turn: Option<MutexGuard<'a, ()>>,
}

impl<'a> InFlight<'a> {
    /// `None`: it would have to wait for a turn, and must not.
    fn begin(node: &'a Node, may_wait: bool) -> Option<Self> {
        node.add_slack(1, u64::MAX);
        if !node.are_stocks_disabled() {
            return Some(Self { node, _turn: None });
        }
        node.sub_slack(1);
        let turn = may_wait.then(|| ignore_poison(node.exact_lock.lock()))?;
        node.add_slack(1, u64::MAX);
        Some(Self { node, _turn: Some(turn) })
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.node.sub_slack(1);
    }
}

impl<S: Stocks> Accounts<S> {
    /// Charges `n` from `node` up to the root, or nothing. `may_charge` says whether the caller comes before all
    /// who wait at an account. Who has taken room for a stock must not wait: who refuses has the turn, and
    /// waits for that room. Says whether an account has come over its mark: the caller tells, once it has no
    /// room any more, as who listens may want to know what is used exactly.
    pub(super) fn charge_ancestors<'a>(
        &self,
        node: &'a Node,
        n: u64,
        may_charge: Option<MayCharge>,
        may_wait: bool,
    ) -> Result<bool, Full<'a>> {
        self.precheck(node, n, may_charge)?;
        let mut has_crossed = false;
        self.pass(node, node, n, &mut has_crossed, may_wait)?;
        Ok(has_crossed)
    }

    /// Begins a passage of `n` at `at` and all above it, on the way from `node`; then climbs.
    fn pass<'a>(
        &self,
        node: &'a Node,
        at: &'a Node,
        n: u64,
        has_crossed: &mut bool,
        may_wait: bool,
    ) -> Result<(), Full<'a>> {
        // Nobody undoes what the root took.
        let Some(parent) = at.parent() else { return self.charge_ancestors_from(node, n, has_crossed) };
        let in_turn = Full { node: at, asked: n, is_queued: false };
        let _passage = InFlight::begin(at, may_wait).ok_or(in_turn)?;
        self.pass(node, parent, n, has_crossed, may_wait)
    }

    /// What plainly does not fit leaves no trace.
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

    /// The caller passes.
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
            let from_reserve = if kept.is_some() { node.take_reserve(n) } else { 0 };
            if from_reserve < n
                && let Err(full) = self.charge_ancestors_from(parent, n - from_reserve, has_crossed)
            {
                // ORDERING: Release; pairs with the compare-and-swap in `take_reserve`.
                node.reserve.fetch_add(from_reserve, Release);
                node.sub_usage(n);
                return Err(full);
            }
        }
        *has_crossed |= usage > node.pressure_at();
        Ok(())
    }

    /// Charges `n` whatever the limits; says where that is over by most. Tells nobody.
    /// Panics, before it changes anything, where a sum would run over.
    pub(super) fn force_charge_ancestors<'a>(&self, node: &'a Node, n: u64) -> Option<(&'a Node, u64)> {
        let mut rest = n;
        for a in node.path() {
            let usage = a.usage.load(Relaxed);
            let fits = usage.checked_add(rest).is_some();
            assert!(fits, "{}: {usage} + {rest} units are 2^64 or more; nobody has so many", a.name());
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
            rest -= a.take_reserve(rest);
            if rest == 0 {
                break;
            }
        }
        worst
    }

    /// Gives `n` back from `node` up to the root.
    ///
    /// The caller took them from `direct`, so they are in `usage` all the way up, and the nodes stay
    /// what they are until they were taken from there.
    pub(super) fn release(&self, node: &Node, n: u64) {
        let (mut at, mut rest) = (Some(node), n);
        while let Some(node) = at.filter(|_| rest > 0) {
            at = node.parent();
            let Some(_kept) = at.and_then(|_| node.lock_guarantee()) else {
                self.take_back(node, rest);
                continue;
            };
            // Counted while it touches the reserve: a node with float is not used again.
            node.add_slack(1, u64::MAX);
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
            // ORDERING: AcqRel; pairs with the swap in `take_pending_wake`: this thread's, or another's that
            // comes before it and then sees to the wake. That one sees the usage, too: not with a store,
            // as two that owe at once are taken together, and then only the last one would be seen.
            self.wake_pending.fetch_or(1, AcqRel);
        }
    }

    /// Of `n` that are in usage no more, keeps what the guarantee lacks; gives up what it has too much.
    /// Says how much goes on to the parent. The caller holds the account's lock.
    pub(super) fn keep_reserve(&self, node: &Node, n: u64) -> u64 {
        let lacks = node.guarantee.load(Relaxed).saturating_sub(node.usage.load(Relaxed));
        let reserve = node.reserve.load(Relaxed);
        let keeps = lacks.min(reserve + n);
        // ORDERING: Release; pairs with the Acquire in `usage_if_full`.
        node.reserve.store(keeps, Release);
        reserve + n - keeps
    }

    /// Takes from `direct`, which has it.
    pub(super) fn sub_direct(&self, node: &Node, n: u64) {
        // ORDERING: AcqRel; pairs with the other changes of `direct`.
        let before = node.direct.fetch_sub(n, AcqRel);
        debug_assert!(before >= n, "{}: direct {before} - {n}", node.name());
    }

    /// Says pressure of every account on the path that has come over its mark.
    #[cold]
    pub(super) fn report_pressure(&self, node: &Node) {
        for node in node.path() {
            let (usage, limit) = (node.usage.load(Relaxed), node.pressure_at());
            if usage > limit && node.set_state(PRESSURE_REPORTED, true) {
                self.notify_listener(node, || Event::Pressure { account: node.name(), usage, limit });
            }
        }
    }

    /// Tells the nearest listener, from the account up. A listener that panics changes nothing: what is charged
    /// stays so, and what is to be done after it is done.
    pub(super) fn notify_listener(&self, node: &Node, event: impl FnOnce() -> Event) {
        let listening = node.path().find(|node| node.state.load(Relaxed) & super::node::HAS_LISTENER != 0);
        let Some(listener) = listening.and_then(|node| node.cold().listener.clone()) else { return };
        // The listener may go with its account meanwhile: then it is dropped in here.
        contain(move || listener(&event()));
    }

    /// An overrun, for who asked and for who listens.
    pub(super) fn overrun(&self, (node, by): (&Node, u64)) -> Overrun {
        let overrun = Overrun { account: node.name(), by };
        self.notify_listener(node, || Event::Overrun(overrun.clone()));
        overrun
    }
}
