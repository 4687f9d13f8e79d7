//! One account, and what is known about the stocks of this account and of all accounts below.
//!
//! `usage = direct + Σ children (usage + reserve)`, where `direct` is what was charged to this account and not to
//! one below, including the units in its stocks. `slack` is the sum of the capacities of all open stocks here and
//! below, and one unit for every operation under way that may have to subtract from `usage` again: a charge that
//! may be refused further up, a refill, an uncharge that empties a stock. While `slack` is 0 and does not change,
//! usage is exact.
//!
//! A node takes 384 bytes. A charge that a stock serves reads at most one cache line of it; a charge that goes up
//! the tree usually writes one other line, and with a guarantee also a lock.
//!
//! Writers: charges and uncharges that go up the tree, and drains, write `usage`, `direct`, `slack`, `reserve`,
//! `stocks`, `peak`, `cpus` and a bit of `state`. Owners of a handle write `limit`, `soft`, `guarantee` and
//! `handles`. Calls that need the exact usage write `stocks_disabled`; charges that wait write it too, and `waiting`
//! and `charging`. The holder of its lock writes `cold`. Creating and ending an account writes most fields. The
//! memory of a node is reused and not freed before the [`Accounts`](super::Accounts), because a thread may still
//! read the node of an account that has ended.

use crate::capacity::share;
use crate::outcome::Listener;
use crate::stock::{CAPACITY_LOG2_MAX, Key, StockAddr};
use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering::*};
use std::sync::Arc;
use warmcore_line::{Line, Padded};
use warmcore_sys::slice;
use warmcore_types::ignore_poison;

/// One account. Its address is valid as long as the [`Accounts`](super::Accounts) that it belongs to.
#[derive(Debug, Line)]
#[line(pair)]
#[repr(C, align(128))]
pub struct Node {
    #[line(read_mostly)]
    pub(super) key: Key,
    /// Where the account's stocks are.
    #[line(read_mostly)]
    pub(crate) stock_addr: StockAddr,
    /// How many accounts of this node have ended. Code that stored a pointer without a handle compares this number
    /// to find out whether the account that it points to has ended. It stands beside `stock_addr`, which is read
    /// with it.
    #[line(read_mostly)]
    pub(super) ended: AtomicU32,
    /// Null for a root. Set before any other thread can reach the account.
    #[line(read_mostly)]
    pub(super) parent: AtomicPtr<Node>,
    #[line(read_mostly)]
    pub(super) limit: AtomicU64,
    #[line(read_mostly)]
    pub(super) soft: AtomicU64,
    #[line(read_mostly)]
    pub(super) guarantee: AtomicU64,
    /// The number of reasons to keep the stocks here and below closed: each call that reads the exact usage of this
    /// account (a charge that does not fit, a lower limit, `exact_usage`) or forces it over its limit, each charge
    /// that waits here, and the end of the account.
    #[line(read_mostly)]
    pub(super) stocks_disabled: AtomicU32,
    /// How many charges wait here. Counted for `process/wait.rs`.
    #[line(read_mostly)]
    pub(super) waiting: AtomicU32,
    /// How many charges to this account wait, here or at an account above. The node is reused only when this is
    /// 0.
    #[line(read_mostly)]
    pub(super) charging: AtomicU32,
    /// The bits `HAS_LISTENER`, `PRESSURE_REPORTED`, `ORPHAN` and `FILLED`.
    #[line(read_mostly)]
    pub(super) state: AtomicU32,
    /// The CPUs on which the account may have a stock: bit `cpu % 64`.
    #[line(read_mostly)]
    pub(super) cpus: AtomicU64,

    // Zero-sized and aligned, so the next field begins a cache-line pair.
    #[line(contended)]
    begin_sums: [Padded<()>; 0],
    #[line(contended)]
    pub(super) usage: AtomicU64,
    #[line(contended)]
    pub(super) direct: AtomicU64,
    #[line(contended)]
    pub(super) slack: AtomicU64,
    /// The unused part of the guarantee. It is already charged to the parent.
    #[line(contended)]
    pub(super) reserve: AtomicU64,
    #[line(contended)]
    pub(super) peak: AtomicU64,
    /// The number of open stocks here and below.
    #[line(contended)]
    pub(super) stocks: AtomicU32,
    /// The number of handles and children.
    #[line(contended)]
    pub(super) handles: AtomicU32,

    #[line(owner = "slow paths")]
    begin_rest: [Padded<()>; 0],
    #[line(owner = "slow paths")]
    pub(super) cold: Mutex<ColdFields>,
    /// Held while usage and reserve change, if there is a guarantee: see `ancestors.rs`.
    #[line(owner = "slow paths")]
    pub(super) guarantee_lock: Mutex<()>,
    /// Held while usage is read exactly, if a first attempt failed, and by a charge that goes up the tree through this
    /// account while `stocks_disabled` is not 0: see `exact.rs`.
    #[line(owner = "slow paths")]
    pub(super) exact_lock: Mutex<()>,
}

/// Rarely needed fields.
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

/// The account has a listener.
pub(super) const HAS_LISTENER: u32 = 1;
/// Pressure was reported, and `clear_pressure` has not found usage more than a sixteenth below `pressure_at` since.
pub(super) const PRESSURE_REPORTED: u32 = 2;
/// The account has ended: it has neither a handle nor a child.
pub(super) const ORPHAN: u32 = 4;
/// A charge did not fit since `reclaim_idle` was called.
pub(super) const FILLED: u32 = 8;

/// `slack` has the units in its low 40 bits and the number of additions, modulo 2^24, above them: a thread that reads
/// the same value twice concludes that nothing was added in between.
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

    /// The account's number. No other account has it at the same time.
    #[inline(always)]
    pub fn key(&self) -> Key {
        self.key
    }

    /// How many accounts of this node have ended. If the number changed, the account that the caller knew has ended,
    /// and the node may be another account's by now.
    #[cfg(not(loom))]
    #[inline(always)]
    pub(crate) fn ended(&self) -> u32 {
        // ORDERING: Relaxed; a thread that learned of a later account on this node has synchronized with the
        // end of this one.
        self.ended.load(Relaxed)
    }

    /// The account above.
    pub fn parent(&self) -> Option<&Node> {
        // ORDERING: Acquire; pairs with the Release in `Accounts::create`: the parent is fully initialized.
        let parent = self.parent.load(Acquire);
        // SAFETY: null, or a node of the same `Accounts`, whose nodes live as long as it does.
        unsafe { parent.as_ref() }
    }

    /// From this account to its root.
    pub fn path(&self) -> impl Iterator<Item = &Node> {
        std::iter::successors(Some(self), |node| node.parent())
    }

    /// The account's name; `account` if it has ended and was freed.
    pub fn name(&self) -> Arc<str> {
        ignore_poison(self.cold.lock()).name.clone().unwrap_or_else(|| Arc::from("account"))
    }

    /// Whether the account has ended: it has neither a handle nor a child.
    pub(crate) fn is_orphan(&self) -> bool {
        // ORDERING: Acquire; pairs with `set_state` in `drop_handle`: everything done with handles is visible.
        self.state.load(Acquire) & ORPHAN != 0
    }

    /// The units in `slack`. If there are none, no unit in `usage` is in a stock or about to be subtracted again.
    pub(super) fn slack_units(&self) -> u64 {
        // ORDERING: SeqCst; pairs with the additions in `add_slack`: see "Notes on refusing" in `exact.rs`.
        let slack = self.slack.load(SeqCst);
        slack & SLACK_UNITS
    }

    /// Adds one unit to the slack, for an operation that begins.
    pub(super) fn begin_slack(&self) {
        // ORDERING: SeqCst; as in `add_slack`. The version may wrap around.
        self.slack.fetch_add(SLACK_VERSION + 1, SeqCst);
    }

    /// Adds `units` to the slack if the sum is at most `most`. Returns whether it did.
    pub(super) fn add_slack(&self, units: u64, most: u64) -> bool {
        let more = |slack: u64| {
            // The version may wrap around: it is compared for equality only.
            ((slack & SLACK_UNITS) + units <= most).then(|| slack.wrapping_add(SLACK_VERSION + units))
        };
        // ORDERING: SeqCst; before the caller's load of `stocks_disabled`. See "Notes on refusing" in `exact.rs`.
        self.slack.fetch_update(SeqCst, Relaxed, more).is_ok()
    }

    pub(super) fn sub_slack(&self, units: u64) {
        // ORDERING: SeqCst, of which Release is needed: a thread that sees the slack without these units sees `usage`
        // without what was undone or drained.
        let before = self.slack.fetch_sub(units, SeqCst);
        debug_assert!(before & SLACK_UNITS >= units, "slack {before:#x} - {units}");
    }

    /// Whether a charge did not fit here a short time ago, and less is left than all stocks may hold. A stock that opened now would be
    /// closed by the next charge that does not fit.
    pub(super) fn is_nearly_full(&self) -> bool {
        let limit = self.limit.load(Relaxed);
        let is_low = || limit.saturating_sub(self.usage.load(Relaxed)) < share(limit);
        self.state.load(Relaxed) & FILLED != 0 && is_low()
    }

    /// Whether this account keeps the stocks here and below closed.
    pub(super) fn are_stocks_disabled(&self) -> bool {
        // ORDERING: SeqCst; pairs with `DisableStocks::new`: see "Notes on refusing" in `exact.rs`.
        let disabled = self.stocks_disabled.load(SeqCst);
        disabled > 0
    }

    /// The usage at a moment when it had only units in use, and what `observe` returned at that moment. `None` if
    /// this call did not find such a moment.
    pub(super) fn exact<T>(&self, observe: impl Fn() -> T) -> Option<(u64, T)> {
        // ORDERING: SeqCst, all three; see "Notes on refusing" in `exact.rs`.
        let before = self.slack.load(SeqCst);
        let usage = self.usage.load(SeqCst);
        let found = observe();
        let after = self.slack.load(SeqCst);
        (before & SLACK_UNITS == 0 && before == after).then_some((usage, found))
    }

    /// Units that fit into this account now. Units in stocks, which a drain could return, are not counted as
    /// free.
    #[cfg(not(loom))]
    pub fn free(&self) -> u64 {
        // ORDERING: Relaxed; the caller holds the lock of the queues. A granted charge leaves its queue under this lock
        // after it was added to usage, so the caller finds it in the queue or in `usage`.
        self.limit.load(Relaxed).saturating_sub(self.usage.load(Relaxed))
    }

    /// Adds to usage if that stays within the limit; returns the new usage. `Err` has the present usage.
    pub(super) fn add_usage(&self, n: u64) -> Result<u64, u64> {
        let limit = self.limit.load(Relaxed);
        let fits = |usage: u64| usage.checked_add(n).filter(|more| *more <= limit);
        // ORDERING: SeqCst; pairs with the loads in `exact`.
        let usage = self.usage.fetch_update(SeqCst, Relaxed, fits)? + n;
        self.record_peak(usage);
        Ok(usage)
    }

    /// Adds to usage, whatever the limit; returns the new usage. Panics if that is 2^64 or more.
    pub(super) fn force_usage(&self, n: u64) -> u64 {
        // ORDERING: SeqCst; as `add_usage`.
        let before = self.usage.fetch_add(n, SeqCst);
        let usage = before.checked_add(n).unwrap_or_else(|| {
            panic!("{}: {before} + {n} units are 2^64 or more, too many for an account", self.name())
        });
        self.record_peak(usage);
        usage
    }

    pub(super) fn sub_usage(&self, n: u64) -> u64 {
        // ORDERING: SeqCst; before the load of `waiting` in `take_back`. A waiting charge counts itself in `waiting`
        // and then reads usage.
        let before = self.usage.fetch_sub(n, SeqCst);
        debug_assert!(before >= n, "{}: usage {before} - {n}", self.name());
        before.wrapping_sub(n)
    }

    fn record_peak(&self, usage: u64) {
        if usage > self.peak.load(Relaxed) {
            self.peak.fetch_max(usage, Relaxed);
        }
    }

    /// Takes the `guarantee_lock` if the account has a guarantee or a reserve, and asks for a longer time slice until the
    /// lock is dropped. Charges that are under way while `set_guarantee` runs may leave the reserve short until more units
    /// come back.
    pub(super) fn lock_guarantee(&self) -> Option<(MutexGuard<'_, ()>, slice::Section)> {
        let keeps = self.guarantee.load(Relaxed) > 0 || self.reserve.load(Relaxed) > 0;
        // A tuple's first field is dropped first: the section ends after the lock.
        keeps.then(|| (ignore_poison(self.guarantee_lock.lock()), slice::ask()))
    }

    /// The name, the children and the listener, under their lock.
    pub(super) fn cold(&self) -> MutexGuard<'_, ColdFields> {
        ignore_poison(self.cold.lock())
    }

    /// Sets or clears a bit of `state`; returns whether that changed it.
    pub(super) fn set_state(&self, bit: u32, on: bool) -> bool {
        if (self.state.load(Relaxed) & bit != 0) == on {
            return false;
        }
        // ORDERING: AcqRel; pairs with the previous change.
        let before = if on { self.state.fetch_or(bit, AcqRel) } else { self.state.fetch_and(!bit, AcqRel) };
        (before & bit != 0) != on
    }

    /// The usage above which pressure is reported: the soft limit, or the limit if that is lower.
    pub(super) fn pressure_at(&self) -> u64 {
        self.soft.load(Relaxed).min(self.limit.load(Relaxed))
    }

    /// Clears `PRESSURE_REPORTED` if `usage` is more than a sixteenth below `pressure_at`.
    pub(super) fn clear_pressure(&self, usage: u64) {
        if self.state.load(Relaxed) & PRESSURE_REPORTED != 0 {
            let at = self.pressure_at();
            if usage < at - at / 16 {
                self.set_state(PRESSURE_REPORTED, false);
            }
        }
    }
}

/// Takes up to `n` units of a node's `reserve` or `direct`; returns how many.
pub(super) fn take_up_to(units: &AtomicU64, n: u64) -> u64 {
    let less = |held: u64| (held > 0).then(|| held - held.min(n));
    // ORDERING: AcqRel; pairs with the addition of the units, which were charged before. SeqCst; a reserve is read after
    // the usage, see `Accounts::keep_reserve`.
    units.fetch_update(AcqRel, SeqCst, less).map_or(0, |held| held.min(n))
}
