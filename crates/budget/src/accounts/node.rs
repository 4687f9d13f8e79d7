//! Node: one account, and what is known of the stocks below it.
//!
//! Model.   `usage = direct + Σ children (usage + reserve)`, where `direct` is what was charged to this very
//!          account, its own stocks included. `float` bounds what may be in `usage` without being used:
//!          the rooms of all open stocks below, and a unit for everybody who is just passing, who may have
//!          to undo what it added. Where it is 0 and does not change, usage is exactly what is used.
//! Number.  384 bytes, of which a charge in a stock reads one and a charge up the tree writes 64.
//! Writers. `usage`, `direct`, `float`, `reserve`, `stocks`, `peak`: whoever goes up the tree. `limit`,
//!          `soft`, `guarantee`: who owns a handle. `refusing`, `waiting`, `charging`: who was refused. `rest`: under
//!          its lock. Memory of a node is never given back, only used again: who finished with an account
//!          that went away meanwhile still reads a node.

use crate::outcome::Listener;
use crate::stock::{CAPACITY_LOG2_MAX, Key, StockAddr};
use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering::*};
use std::sync::Arc;
use warmcore_line::{Line, Padded};
use warmcore_types::ignore_poison;

/// One account. Its addresses stay as long as the [`Accounts`](super::Accounts) that it is in.
#[derive(Debug, Line)]
#[line(pair)]
#[repr(C, align(128))]
pub struct Node {
    #[line(read_mostly)]
    pub(super) key: Key,
    /// Where its stocks stand.
    #[line(read_mostly)]
    pub(crate) stock_addr: StockAddr,
    /// How many accounts had this node and lost their last handle: what remembers an account without a handle finds out
    /// that it ended. Beside `place`, which is read with it.
    #[line(read_mostly)]
    pub(super) ended: AtomicU32,
    /// Null for a root. Set while nobody else knows the account.
    #[line(read_mostly)]
    pub(super) parent: AtomicPtr<Node>,
    #[line(read_mostly)]
    pub(super) limit: AtomicU64,
    #[line(read_mostly)]
    pub(super) soft: AtomicU64,
    #[line(read_mostly)]
    pub(super) guarantee: AtomicU64,
    /// How many want the stocks below to stay closed.
    #[line(read_mostly)]
    pub(super) stocks_disabled: AtomicU32,
    /// How many wait here for room. A host's.
    #[line(read_mostly)]
    pub(super) waiting: AtomicU32,
    /// How many charges of this account wait, here or at an account above. The account's node is not used again before
    /// none does.
    #[line(read_mostly)]
    pub(super) charging: AtomicU32,
    /// `HAS_LISTENER`, `PRESSURE_REPORTED`, `ORPHAN`.
    #[line(read_mostly)]
    pub(super) state: AtomicU32,
    /// On which CPUs it may have a stock: bit `cpu % 64`.
    #[line(read_mostly)]
    pub(super) cpus: AtomicU64,

    // Takes no place; it is aligned, and so is what follows.
    #[line(contended)]
    begin_sums: [Padded<()>; 0],
    #[line(contended)]
    pub(super) usage: AtomicU64,
    #[line(contended)]
    pub(super) direct: AtomicU64,
    #[line(contended)]
    pub(super) slack: AtomicU64,
    /// Of the guarantee, what is not used: charged to the parent already.
    #[line(contended)]
    pub(super) reserve: AtomicU64,
    #[line(contended)]
    pub(super) peak: AtomicU64,
    /// Open stocks below.
    #[line(contended)]
    pub(super) stocks: AtomicU32,
    /// Handles and children.
    #[line(contended)]
    pub(super) handles: AtomicU32,

    #[line(owner = "slow paths")]
    begin_rest: [Padded<()>; 0],
    #[line(owner = "slow paths")]
    pub(super) cold: Mutex<ColdFields>,
    /// Held by who changes usage and reserve, where there is a guarantee: see `charge_ancestors`.
    #[line(owner = "slow paths")]
    pub(super) guarantee_lock: Mutex<()>,
    /// Held by who decides here, one after the other: see `refuse`.
    #[line(owner = "slow paths")]
    pub(super) exact_lock: Mutex<()>,
}

/// What is rarely needed.
#[derive(Default)]
pub(super) struct ColdFields {
    pub(super) name: Option<Arc<str>>,
    pub(super) children: Vec<Key>,
    pub(super) listener: Option<Listener>,
}

impl std::fmt::Debug for ColdFields {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ColdFields").field("name", &self.name).field("children", &self.children).finish()
    }
}

/// It has a listener.
pub(super) const HAS_LISTENER: u32 = 1;
/// Pressure was said, and usage was not well below since.
pub(super) const PRESSURE_REPORTED: u32 = 2;
/// Nobody has a handle any more.
pub(super) const ORPHAN: u32 = 4;

/// `float` is units below, and how often any were added above: who reads it twice and finds it
/// unchanged knows that nobody came between.
const SLACK_UNITS: u64 = (1 << 40) - 1;
const SLACK_VERSION: u64 = SLACK_UNITS + 1;

const _: () = assert!(crate::capacity::SHARE_MAX < SLACK_UNITS >> 4 && CAPACITY_LOG2_MAX < 32);

impl Node {
    pub(super) fn new(stock_addr: StockAddr) -> Self {
        Self {
            key: stock_addr.key,
            stock_addr,
            ended: AtomicU32::new(0),
            parent: AtomicPtr::new(std::ptr::null_mut()),
            limit: AtomicU64::new(u64::MAX),
            soft: AtomicU64::new(u64::MAX),
            guarantee: AtomicU64::new(0),
            stocks_disabled: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
            charging: AtomicU32::new(0),
            state: AtomicU32::new(0),
            cpus: AtomicU64::new(0),
            begin_sums: [],
            usage: AtomicU64::new(0),
            direct: AtomicU64::new(0),
            slack: AtomicU64::new(0),
            reserve: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            stocks: AtomicU32::new(0),
            handles: AtomicU32::new(0),
            begin_rest: [],
            cold: Mutex::new(ColdFields::default()),
            guarantee_lock: Mutex::new(()),
            exact_lock: Mutex::new(()),
        }
    }

    /// Its number among the accounts that live.
    #[inline(always)]
    pub fn key(&self) -> Key {
        self.key
    }

    /// How many accounts on this node have ended: another number than before, another account.
    #[cfg(not(loom))]
    #[inline(always)]
    pub(crate) fn ended(&self) -> u32 {
        // ORDERING: Relaxed; a thread that learned of a later account on this node learned of this before.
        self.ended.load(Relaxed)
    }

    /// The account above.
    pub fn parent(&self) -> Option<&Node> {
        // ORDERING: Acquire; pairs with the Release in `Accounts::create`: the parent is whole.
        let parent = self.parent.load(Acquire);
        // SAFETY: null, or a node of the same `Accounts`, whose nodes live as long as it does.
        unsafe { parent.as_ref() }
    }

    /// From this account to its root.
    pub fn path(&self) -> impl Iterator<Item = &Node> {
        std::iter::successors(Some(self), |node| node.parent())
    }

    /// What it is called.
    pub fn name(&self) -> Arc<str> {
        ignore_poison(self.cold.lock()).name.clone().unwrap_or_else(|| Arc::from("account"))
    }

    /// Whether its last handle was dropped.
    pub(crate) fn is_orphan(&self) -> bool {
        // ORDERING: Acquire; pairs with `set_state` in `drop_handle`: all that was done with handles is seen.
        self.state.load(Acquire) & ORPHAN != 0
    }

    /// Units that may be in `usage` without being used.
    pub(super) fn slack_units(&self) -> u64 {
        // ORDERING: SeqCst; pairs with the additions in `add_slack`: see "Notes on refusing".
        let slack = self.slack.load(SeqCst);
        slack & SLACK_UNITS
    }

    /// Adds to the float if it stays at or below `most`.
    pub(super) fn add_slack(&self, units: u64, most: u64) -> bool {
        let mut slack = self.slack.load(Relaxed);
        loop {
            if (slack & SLACK_UNITS) + units > most {
                return false;
            }
            // The version may run over: it is compared, never ordered.
            let more = slack.wrapping_add(SLACK_VERSION + units);
            // ORDERING: SeqCst; before the load of `refusing` that follows. See "Notes on refusing".
            match self.slack.compare_exchange_weak(slack, more, SeqCst, Relaxed) {
                Ok(_) => return true,
                Err(now) => slack = now,
            }
        }
    }

    pub(super) fn sub_slack(&self, units: u64) {
        // ORDERING: SeqCst, of which Release: who sees the float without these units sees `usage`
        // without what was undone or drained.
        let before = self.slack.fetch_sub(units, SeqCst);
        debug_assert!(before & SLACK_UNITS >= units, "slack {before:#x} - {units}");
    }

    /// Whether somebody below is being refused, so that stocks stay closed.
    pub(super) fn are_stocks_disabled(&self) -> bool {
        // ORDERING: SeqCst; pairs with `DisableStocks::new`: see "Notes on refusing".
        let disabled = self.stocks_disabled.load(SeqCst);
        disabled > 0
    }

    /// The usage at a moment when nothing but what is used was in it, if there was such a moment now; and
    /// what `look` found then.
    pub(super) fn exact<T>(&self, observe: impl Fn() -> T) -> Option<(u64, T)> {
        // ORDERING: SeqCst, all three; see "Notes on refusing".
        let before = self.slack.load(SeqCst);
        let usage = self.usage.load(SeqCst);
        let found = observe();
        let after = self.slack.load(SeqCst);
        (before & SLACK_UNITS == 0 && before == after).then_some((usage, found))
    }

    /// Units that fit here at this moment, if none lies in stocks that could be given back.
    #[cfg(not(loom))]
    pub fn free(&self) -> u64 {
        // ORDERING: Relaxed; the lock of the queue in which the caller looked before is given back after what was charged.
        self.limit.load(Relaxed).saturating_sub(self.usage.load(Relaxed))
    }

    /// Adds to usage if that stays within the limit. `Err` is what it is.
    pub(super) fn add_usage(&self, n: u64) -> Result<u64, u64> {
        let limit = self.limit.load(Relaxed);
        let mut usage = self.usage.load(Relaxed);
        loop {
            let Some(more) = usage.checked_add(n).filter(|more| *more <= limit) else { return Err(usage) };
            // ORDERING: SeqCst; pairs with the loads in `exact`.
            match self.usage.compare_exchange_weak(usage, more, SeqCst, Relaxed) {
                Ok(_) => {
                    self.record_peak(more);
                    return Ok(more);
                }
                Err(now) => usage = now,
            }
        }
    }

    /// Adds to usage, whatever the limit.
    pub(super) fn force_usage(&self, n: u64) -> u64 {
        // ORDERING: SeqCst; as `add_usage`.
        let before = self.usage.fetch_add(n, SeqCst);
        let usage = before.checked_add(n).unwrap_or_else(|| {
            panic!("{}: {before} + {n} units are more than 2^64; nobody has so many", self.name())
        });
        self.record_peak(usage);
        usage
    }

    pub(super) fn sub_usage(&self, n: u64) -> u64 {
        // ORDERING: SeqCst; before the load of `waiting` that follows, which pairs with who waits:
        // it says so, and then looks at usage.
        let before = self.usage.fetch_sub(n, SeqCst);
        debug_assert!(before >= n, "{}: usage {before} - {n}", self.name());
        before.wrapping_sub(n)
    }

    fn record_peak(&self, usage: u64) {
        if usage > self.peak.load(Relaxed) {
            self.peak.fetch_max(usage, Relaxed);
        }
    }

    /// Takes up to `n` of what the guarantee holds ready; says how much.
    pub(super) fn take_reserve(&self, n: u64) -> u64 {
        // ORDERING: SeqCst; after the usage, see `Accounts::keep_reserve`.
        let mut reserve = self.reserve.load(SeqCst);
        while reserve > 0 {
            let taken = reserve.min(n);
            // ORDERING: AcqRel; the units were charged to the parent before they were put here.
            match self.reserve.compare_exchange_weak(reserve, reserve - taken, AcqRel, Relaxed) {
                Ok(_) => return taken,
                Err(now) => reserve = now,
            }
        }
        0
    }

    /// The account's lock, if its parent keeps something for it, or is to. Charges that are under way while
    /// that changes may leave it short, until more comes back.
    pub(super) fn lock_guarantee(&self) -> Option<MutexGuard<'_, ()>> {
        let keeps = self.guarantee.load(Relaxed) > 0 || self.reserve.load(Relaxed) > 0;
        keeps.then(|| ignore_poison(self.guarantee_lock.lock()))
    }

    /// The name and the listener, under their lock.
    pub(super) fn cold(&self) -> MutexGuard<'_, ColdFields> {
        ignore_poison(self.cold.lock())
    }

    /// Sets or clears a bit of `state`; says whether that changed it.
    pub(super) fn set_state(&self, bit: u32, on: bool) -> bool {
        if (self.state.load(Relaxed) & bit != 0) == on {
            return false;
        }
        // ORDERING: AcqRel; whoever changed it goes first.
        let before = if on { self.state.fetch_or(bit, AcqRel) } else { self.state.fetch_and(!bit, AcqRel) };
        (before & bit != 0) != on
    }

    /// The soft limit, or the limit if that is lower.
    pub(super) fn pressure_at(&self) -> u64 {
        self.soft.load(Relaxed).min(self.limit.load(Relaxed))
    }

    /// Forgets that pressure was said, once usage is a sixteenth below.
    pub(super) fn clear_pressure(&self, usage: u64) {
        if self.state.load(Relaxed) & PRESSURE_REPORTED != 0 {
            let at = self.pressure_at();
            if usage < at - at / 16 {
                self.set_state(PRESSURE_REPORTED, false);
            }
        }
    }
}
