//! Climb: a charge on its way up the tree, and units on their way back.
//!
//! Model.   A charge is added to the account, then to its parent, to the root. One that does not fit is
//!          undone below. While it might be, it is a *passage*: counted in the float of every account that
//!          it may have to be taken from again, so that nobody is refused because of it. An account's
//!          guarantee is charged to its parent in advance; what it covers ends there.
//! Number.  Three levels: three compare-and-swaps on usage, two more each on the float of the lower two.
//! Writers. See `node`.

use super::node::{Node, PRESSED};
use super::{Accounts, Stocks};
use crate::outcome::{Event, Overrun};
use crate::sync::{MutexGuard, Ordering::*, lock, seq_cst};

/// Where a charge did not fit, and how much of it had come so far.
#[derive(Debug, Clone, Copy)]
pub(super) struct Full<'a> {
    pub(super) node: &'a Node,
    pub(super) asked: u64,
    /// Others wait there, and came first.
    pub(super) is_queued: bool,
}

/// Somebody between adding to an account's usage and knowing that it stays: the float says so.
struct Passage<'a> {
    node: &'a Node,
    /// Where somebody is being refused, one after the other: who refuses waits for those who are counted.
    _turn: Option<MutexGuard<'a, ()>>,
}

impl<'a> Passage<'a> {
    fn begin(node: &'a Node) -> Self {
        node.add_float(1, u64::MAX);
        if !node.is_refusing() {
            return Self { node, _turn: None };
        }
        node.sub_float(1);
        let turn = lock(&node.turn);
        node.add_float(1, u64::MAX);
        Self { node, _turn: Some(turn) }
    }
}

impl Drop for Passage<'_> {
    fn drop(&mut self) {
        self.node.sub_float(1);
    }
}

impl<S: Stocks> Accounts<S> {
    /// Charges `n` from `node` up to the root, or nothing. `head` is the account in whose queue the
    /// caller is first.
    pub(super) fn climb<'a>(&self, node: &'a Node, n: u64, head: Option<&Node>) -> Result<(), Full<'a>> {
        self.look_ahead(node, n, head)?;
        let mut has_crossed = false;
        self.climb_from(node, n, &mut has_crossed)?;
        if has_crossed {
            self.tell_pressure(node);
        }
        Ok(())
    }

    /// What plainly does not fit leaves no trace.
    fn look_ahead<'a>(&self, node: &'a Node, n: u64, head: Option<&Node>) -> Result<(), Full<'a>> {
        let mut rest = n;
        for node in node.path() {
            let is_queued = node.waiting.load(Relaxed) > 0 && !head.is_some_and(|h| std::ptr::eq(h, node));
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

    fn climb_from<'a>(&self, node: &'a Node, n: u64, has_crossed: &mut bool) -> Result<(), Full<'a>> {
        let parent = node.parent();
        // Nobody undoes what the root took.
        let _passage = parent.map(|_| Passage::begin(node));
        let usage = match node.add_usage(n) {
            Ok(usage) => usage,
            Err(_) => return Err(Full { node, asked: n, is_queued: false }),
        };
        if let Some(parent) = parent {
            let from_reserve = node.take_reserve(n);
            if from_reserve < n
                && let Err(full) = self.climb_from(parent, n - from_reserve, has_crossed)
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
    pub(super) fn climb_anyway<'a>(&self, node: &'a Node, n: u64) -> Option<(&'a Node, u64)> {
        let (mut rest, mut worst) = (n, None);
        for a in node.path() {
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
            let guarantee = node.guarantee.load(Relaxed);
            if guarantee == 0 && node.reserve.load(Relaxed) == 0 {
                self.take_back(node, rest);
                continue;
            }
            // Counted while it touches the reserve: a node with float is not used again.
            node.add_float(1, u64::MAX);
            let (kept, surplus) = self.keep_for_guarantee(node, guarantee, rest);
            self.take_back(node, rest);
            rest = rest - kept + surplus;
            node.sub_float(1);
        }
    }

    fn take_back(&self, node: &Node, n: u64) {
        node.note_relief(node.sub_usage(n));
        // ORDERING: SeqCst; after the usage, see `sub_usage`.
        let waiting = node.waiting.load(SeqCst);
        seq_cst();
        if waiting > 0 {
            // ORDERING: Relaxed; this thread reads it itself before it returns to its host.
            self.owes_wake.store(1, Relaxed);
        }
    }

    /// Of `n` that are about to go, keeps what the guarantee lacks; also gives up what it has too much.
    /// Says how much is kept, and how much goes beside.
    fn keep_for_guarantee(&self, node: &Node, guarantee: u64, n: u64) -> (u64, u64) {
        let after = node.usage.load(Relaxed).saturating_sub(n);
        let want = guarantee.saturating_sub(after);
        let have = node.reserve.load(Relaxed);
        if have > want {
            return (0, node.take_reserve(have - want));
        }
        let kept = n.min(want - have);
        // ORDERING: Release; pairs with the compare-and-swap in `take_reserve`.
        node.reserve.fetch_add(kept, Release);
        (kept, 0)
    }

    /// Takes from `direct`, which has it.
    pub(super) fn sub_direct(&self, node: &Node, n: u64) {
        // ORDERING: AcqRel; pairs with the other changes of `direct`.
        let before = node.direct.fetch_sub(n, AcqRel);
        debug_assert!(before >= n, "{}: direct {before} - {n}", node.name());
    }

    /// Says pressure of every account on the path that has come over its mark.
    #[cold]
    pub(super) fn tell_pressure(&self, node: &Node) {
        for node in node.path() {
            let (usage, limit) = (node.usage.load(Relaxed), node.pressure_at());
            if usage > limit && node.set_state(PRESSED, true) {
                self.tell(node, || Event::Pressure { account: node.name(), usage, limit });
            }
        }
    }

    /// Tells the nearest listener, from the account up.
    pub(super) fn tell(&self, node: &Node, event: impl FnOnce() -> Event) {
        let listening = node.path().find(|node| node.state.load(Relaxed) & super::node::LISTENS != 0);
        let Some(listener) = listening.and_then(|node| node.rest().listener.clone()) else { return };
        listener(&event());
    }

    /// An overrun, for who asked and for who listens.
    pub(super) fn overrun(&self, (node, by): (&Node, u64)) -> Overrun {
        let overrun = Overrun { account: node.name(), by };
        self.tell(node, || Event::Overrun(overrun.clone()));
        overrun
    }
}
