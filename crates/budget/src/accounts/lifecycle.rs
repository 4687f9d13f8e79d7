//! Creating and ending accounts.
//!
//! An account ends when it has neither a handle nor a child. After that it is an *orphan* until all units charged to it
//! are given back, for which no handle is needed, and no charge to it waits any more. No stock opens for an orphan, and
//! its parent may uncharge what is charged to it. The node of an ended account is reused, the lowest key first, so that
//! stocks stay close together.
//!
//! An account without a stock takes 384 bytes, a name, and 4 bytes in its parent. `Accounts::retired` changes under
//! its lock, a parent's list of children under the parent's `cold`.
//!
//! Source: Linux memcg, where the charges of an offline cgroup go to its parent, because cgroups that were kept
//! alive by their charges piled up.

use super::node::{HAS_LISTENER, Node, ORPHAN, take_up_to};
use super::{Accounts, Stocks};
use crate::outcome::{Listener, OverBudget, contain};
use crate::sync::Ordering::*;
use std::cmp::Reverse;
use std::sync::Arc;
use warmcore_types::ignore_poison;

/// The largest depth of a tree, counting its root. Functions that walk up or down a tree recurse, also on threads with
/// small stacks: 64 levels fit in 128 KiB without optimisation.
pub const DEPTH_MAX: usize = 64;

/// The parameters of a new account.
pub struct AccountConfig {
    /// The name.
    pub name: Arc<str>,
    /// The limit for the units of the account and of all below.
    pub limit: u64,
    /// Usage above this is reported as pressure.
    pub soft_limit: u64,
    /// Units that the parent keeps for the account, used or not.
    pub guarantee: u64,
    /// Called on events of this account and of accounts below that have no nearer listener.
    pub listener: Option<Listener>,
}

impl<S: Stocks> Accounts<S> {
    /// Creates an account with one handle, below `parent` or as a root. Returns an error if the parent or an account
    /// above it has too little left for the guarantee, or if charges wait there. Panics if there are 2^24 - 1 accounts
    /// already, or if the tree would be deeper than [`DEPTH_MAX`].
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

    /// Adds a handle. The caller must have one already.
    pub fn add_handle(&self, node: &Node) {
        node.handles.fetch_add(1, Relaxed);
    }

    /// Removes a handle, or a child, which counts as one; the last one ends the account.
    pub fn drop_handle(&self, node: &Node) {
        // ORDERING: AcqRel; everything done with handles happens before what is done without any.
        if node.handles.fetch_sub(1, AcqRel) > 1 {
            return;
        }
        // Not undone before the node is reused: no stock opens for this account again.
        //
        // ORDERING: SeqCst; as `DisableStocks::new`.
        node.stocks_disabled.fetch_add(1, SeqCst);
        node.set_state(ORPHAN, true);
        // ORDERING: Relaxed; the node gets another account only after it passed through `retired`, under its lock.
        node.ended.fetch_add(1, Relaxed);
        // For a guarantee of 0 nothing is charged to the parent, so this is not refused.
        let _ = self.set_guarantee(node, 0);
        ignore_poison(self.retired.lock()).orphans.push(node.key);
        self.reap();
    }

    /// Frees the nodes of orphans that have no charges left.
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

    /// Frees an orphan's node if nothing is charged to the orphan and no charge to it waits. Returns whether it did.
    /// The caller has removed the orphan from `retired`.
    fn try_reap(&self, node: &Node) -> bool {
        // Closed stocks too: a section that was under way may have left units or a debt there.
        self.close_all(node);
        // ORDERING: Acquire or stronger, all; each pairs with the last writer of its field.
        //
        // Combined by `|`: a sum may overflow.
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
        // The listener is dropped last, and under no lock: it may own anything, and its destructor may panic.
        contain(move || drop(rest));
        true
    }

    /// Changes how many units the parent keeps for the account. Returns an error, and changes nothing, if the parent or
    /// an account above it has too little left, or if charges wait there and this call needs more units. Has no effect
    /// on what is charged if the account is a root.
    pub fn set_guarantee(&self, node: &Node, guarantee: u64) -> Result<(), OverBudget> {
        // What this call has charged to the parent. The charge is made outside `guarantee_lock`, because it may wait
        // for an `exact_lock` and call a listener.
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
            // Another thread may have released units meanwhile: then more is lacking, and is charged first.
            if lacks(brought) == 0 {
                node.guarantee.store(guarantee, Relaxed);
                let surplus = self.keep_reserve(node, brought);
                drop(kept);
                node.parent().into_iter().for_each(|parent| self.release(parent, surplus));
                return Ok(());
            }
        }
    }

    /// Moves charges of the orphans among the children of `node` to `node`, as many as `node` lacks to uncharge `n`.
    /// Moves nothing if `node` and these orphans together have fewer: the owner of the orphans' units may still give
    /// them back.
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
            let taken = take_up_to(&orphan.direct, lacks);
            // The units leave the orphan's usage and stay in the parent's.
            orphan.sub_usage(taken);
            self.add_direct(node, taken);
        }
    }
}
