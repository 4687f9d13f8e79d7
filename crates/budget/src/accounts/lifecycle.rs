//! Family: accounts come and go.
//!
//! Model.   An account lives as long as somebody has a handle or it has a child; and then until all that was
//!          charged to it came back, which needs no handle. Until then it is an orphan: no stock opens for it,
//!          and its parent may uncharge what it holds. A node of an account that is gone is used again,
//!          the lowest key first, so that stocks stand close together.
//! Number.  An account without a stock is 384 bytes, a name, and 4 bytes in its parent.
//! Writers. `family` under its lock; a parent's list of children under the parent's.
//! Source.  Linux memcg: an offline cgroup's charges go to its parent, since its zombies were a plague.

use super::node::{HAS_LISTENER, Node, ORPHAN};
use super::{Accounts, Stocks};
use crate::contain::contain;
use crate::outcome::{Listener, OverBudget};
use crate::sync::Ordering::*;
use std::cmp::Reverse;
use std::sync::Arc;
use warmcore_types::ignore_poison;

/// A tree is at most so deep, its root counted. What goes through a tree goes through it by calls of its own, one for
/// each level, in threads of any stack: 64 levels fit 128 KiB, also where nothing is optimised.
pub const DEPTH_MAX: usize = 64;

/// What a new account is.
pub struct AccountConfig {
    /// Its name.
    pub name: Arc<str>,
    /// No more than this, its children's included.
    pub limit: u64,
    /// Above this, pressure.
    pub soft_limit: u64,
    /// So much of its parent is kept for it.
    pub guarantee: u64,
    /// Who is told of events here and below.
    pub listener: Option<Listener>,
}

impl<S: Stocks> Accounts<S> {
    /// A new account with one handle, below `parent` or a root. Refused if the parent has no room for the
    /// guarantee. Panics at 2^24 accounts, and below [`DEPTH_MAX`] levels.
    pub fn create(&self, parent: Option<&Node>, config: AccountConfig) -> Result<&Node, OverBudget> {
        let depth = 1 + parent.map_or(0, |parent| parent.path().count());
        assert!(
            depth <= DEPTH_MAX,
            "{}: {depth} accounts one below the other; a tree is at most {DEPTH_MAX} deep",
            config.name
        );
        let key = ignore_poison(self.retired.lock()).free.pop();
        let node = match key {
            Some(Reverse(key)) => self.nodes.get(key).expect("a key that was in use has a node"),
            None => self.nodes.push(|key| self.stocks.stock_addr(key)),
        };
        node.limit.store(config.limit, Relaxed);
        node.soft.store(config.soft_limit, Relaxed);
        node.peak.store(0, Relaxed);
        node.stocks_disabled.store(0, Relaxed);
        node.handles.store(1, Relaxed);
        node.state.store(if config.listener.is_some() { HAS_LISTENER } else { 0 }, Relaxed);
        {
            let mut rest = node.cold();
            rest.name = Some(config.name);
            rest.listener = config.listener;
        }
        let up = parent.map_or(std::ptr::null_mut(), |parent| std::ptr::from_ref(parent).cast_mut());
        // ORDERING: Release; pairs with the Acquire in `Node::parent`.
        node.parent.store(up, Release);
        if let Some(parent) = parent {
            parent.handles.fetch_add(1, Relaxed);
            parent.cold().children.push(node.key);
        }
        if config.guarantee > 0
            && let Err(over) = self.set_guarantee(node, config.guarantee)
        {
            self.drop_handle(node);
            return Err(over);
        }
        Ok(node)
    }

    /// One handle more. The caller has one.
    pub fn add_handle(&self, node: &Node) {
        node.handles.fetch_add(1, Relaxed);
    }

    /// One handle less; with the last one the account goes.
    pub fn drop_handle(&self, node: &Node) {
        // ORDERING: AcqRel; all that was done with handles comes before what is done without any.
        if node.handles.fetch_sub(1, AcqRel) > 1 {
            return;
        }
        // For good: no stock opens for it again.
        // ORDERING: SeqCst; as `DisableStocks::new`.
        node.stocks_disabled.fetch_add(1, SeqCst);
        node.set_state(ORPHAN, true);
        // ORDERING: Relaxed; the node is another account's only through the locks below.
        node.ended.fetch_add(1, Relaxed);
        self.release_guarantee(node);
        ignore_poison(self.retired.lock()).orphans.push(node.key);
        self.reap();
    }

    /// Frees the orphans to whom nothing is charged any more.
    pub(super) fn reap(&self) {
        let mut orphans = {
            let mut retired = ignore_poison(self.retired.lock());
            if retired.orphans.is_empty() {
                return;
            }
            std::mem::take(&mut retired.orphans)
        };
        orphans.retain(|key| !self.nodes.get(*key).is_some_and(|node| self.try_reap(node)));
        ignore_poison(self.retired.lock()).orphans.append(&mut orphans);
    }

    /// Whether it is gone. The caller has taken it off the list of orphans.
    fn try_reap(&self, node: &Node) -> bool {
        // Closed ones too: a section that was under way may have left something there.
        self.close_all(node);
        // ORDERING: Acquire, all; pair with the last one to have touched each.
        // No sum: that may run over.
        let left = u64::from(node.charging.load(Acquire))
            | node.direct.load(Acquire)
            | node.usage.load(Acquire)
            | node.slack_units()
            | node.reserve.load(Acquire);
        if left > 0 {
            return false;
        }
        let parent = node.parent();
        if let Some(parent) = parent {
            parent.cold().children.retain(|key| *key != node.key);
        }
        let rest = std::mem::take(&mut *node.cold());
        node.cpus.store(0, Relaxed);
        ignore_poison(self.retired.lock()).free.push(Reverse(node.key));
        if let Some(parent) = parent {
            self.drop_handle(parent);
        }
        // Last, and under no lock: a listener may own anything, and what it owns may panic.
        contain(move || drop(rest));
        true
    }

    /// Changes what the parent keeps for it. Refused if the parent has no room for more.
    pub fn set_guarantee(&self, node: &Node, guarantee: u64) -> Result<(), OverBudget> {
        // Charged to the parent by this call. Not under the lock: it may wait for a turn, and tell somebody.
        let mut brought = 0;
        loop {
            let lacks = |held: u64| {
                let used = node.usage.load(Relaxed) + node.reserve.load(Relaxed) + held;
                node.parent().map_or(0, |_| guarantee.saturating_sub(used))
            };
            let lack = lacks(brought);
            if let Some(parent) = node.parent().filter(|_| lack > 0) {
                if let Err(over) = self.charge_tree(parent, lack, None) {
                    self.release(parent, brought);
                    return Err(over);
                }
                brought += lack;
            }
            let kept = ignore_poison(node.guarantee_lock.lock());
            // Somebody else's change may have given up what was there.
            if lacks(brought) == 0 {
                node.guarantee.store(guarantee, Relaxed);
                let surplus = self.keep_reserve(node, brought);
                drop(kept);
                node.parent().into_iter().for_each(|parent| self.release(parent, surplus));
                return Ok(());
            }
        }
    }

    fn release_guarantee(&self, node: &Node) {
        let kept = ignore_poison(node.guarantee_lock.lock());
        node.guarantee.store(0, Relaxed);
        let surplus = self.keep_reserve(node, 0);
        drop(kept);
        node.parent().into_iter().for_each(|parent| self.release(parent, surplus));
    }

    /// Lets `node` have what its orphans hold, as far as it needs it to uncharge `n`. Nothing if they have not
    /// so much: who charged it may still give it back.
    pub(super) fn reparent(&self, node: &Node, n: u64) {
        let rest = node.cold();
        let children = || rest.children.iter().filter_map(|key| self.nodes.get(*key));
        let orphans = || children().filter(|child| child.is_orphan());
        let mut all = node.direct.load(Acquire);
        for orphan in orphans() {
            self.close_all(orphan);
            all = all.saturating_add(orphan.direct.load(Acquire));
        }
        for orphan in orphans().filter(|_| all >= n) {
            let lacks = n.saturating_sub(node.direct.load(Acquire));
            if lacks == 0 {
                return;
            }
            let mut held = orphan.direct.load(Acquire);
            while held > 0 {
                let taken = held.min(lacks);
                // ORDERING: AcqRel; as `take_direct`.
                match orphan.direct.compare_exchange_weak(held, held - taken, AcqRel, Acquire) {
                    Ok(_) => {
                        // In the orphan's usage no more; in the parent's it stays.
                        orphan.sub_usage(taken);
                        self.add_direct(node, taken);
                        break;
                    }
                    Err(now) => held = now,
                }
            }
        }
    }
}
