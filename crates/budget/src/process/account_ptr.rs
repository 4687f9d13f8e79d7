//! `AccountPtr`: an account of this process in one word; and the account that is active on this thread.
//!
//! The active account is two words of the thread: the account's node, and how many accounts of that node had ended when
//! [`enter`](super::enter) was called. `enter` sets the words, and the drop of its guard restores them; if another
//! account than the guard's is active then, it clears them. Because of the second word, a guard that is forgotten
//! ([`std::mem::forget`]) has no effect after the end of its account, and never charges the node's next account. The
//! words need no destructor and exist from a thread's first instruction to its last, so that an allocator may read
//! them.
//!
//! Cost of reading it: one comparison per allocation. The word compared is in the node, on the cache line that a
//! charge reads anyway.

use super::{StockKind, reclaim, waiters};
use crate::accounts::{Accounts, Node, STOCKED_MAX};
use crate::outcome::{OverBudget, OverUncharge, Overrun};
use crate::stock::{self, AtomicStocks, RseqStocks, StockAddr, Stocks};
use std::cell::Cell;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use warmcore_sys::affinity;
use warmcore_sys::rseq::{PercpuMode, RseqArea, cpu_hint, current_cpu};
use warmcore_types::CpuId;

pub(super) static ATOMIC: OnceLock<Accounts<AtomicStocks>> = OnceLock::new();
pub(super) static RSEQ: OnceLock<Accounts<RseqStocks>> = OnceLock::new();

thread_local! {
    pub(super) static ACTIVE: Cell<Option<VersionedPtr>> = const { Cell::new(None) };
}

/// A pointer to an account: its node's address, with the stock kind in the lowest bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub(super) struct AccountPtr(NonNull<Node>);

/// A pointer to an account, without a handle, that shows whether the account has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct VersionedPtr {
    ptr: AccountPtr,
    /// The value of `Node::ended` while the account exists.
    ended: u32,
}

/// Expands to the same code for the accounts of either kind.
macro_rules! on_account {
    ($ptr:expr, |$accounts:ident, $node:ident| $act:expr) => {{
        let (ptr, $node) = ($ptr, $ptr.node());
        match ptr.kind() {
            $crate::process::StockKind::Rseq => {
                let $accounts = $crate::process::account_ptr::rseq();
                $act
            }
            $crate::process::StockKind::Atomic => {
                let $accounts = $crate::process::account_ptr::atomic();
                $act
            }
        }
    }};
}
pub(super) use on_account;

#[inline(always)]
pub(super) fn atomic() -> &'static Accounts<AtomicStocks> {
    ATOMIC.get().unwrap_or_else(|| begin(&ATOMIC, AtomicStocks::new))
}

#[inline(always)]
pub(super) fn rseq() -> &'static Accounts<RseqStocks> {
    // SAFETY: only sections, and compare-and-swaps on the word that is meant for them, ever write these
    // tables; where sections are not enabled, every charge goes up the tree.
    RSEQ.get().unwrap_or_else(|| begin(&RSEQ, |cpus| unsafe { RseqStocks::new(cpus) }))
}

/// Makes the accounts of a kind, with stocks for this number of CPU numbers.
#[cold]
fn begin<S: Stocks>(
    accounts: &'static OnceLock<Accounts<S>>,
    stocks: impl FnOnce(u32) -> S,
) -> &'static Accounts<S> {
    // The backend is chosen here at the latest, also if a kind was forced: the choice decides for good whether
    // sections are enabled, and CPU numbers are known without a call afterwards.
    let _ = warmcore_percpu::try_backend();
    // Per-CPU slots of counters serve the whole process: they are charged to no account, whichever is active.
    warmcore_percpu::set_up_within(|act| unaccounted(act));
    accounts.get_or_init(|| Accounts::new(stocks(affinity::nr_cpu_ids() as u32)))
}

/// This CPU's stock, of the strict kind. `None` if only a call could return the CPU number: for a call the fast
/// path would have to save registers.
#[inline(always)]
fn atomic_stock(area: Option<RseqArea>, addr: StockAddr) -> Option<&'static AtomicU64> {
    let cpu = area.map(RseqArea::index).or_else(cpu_hint)?;
    // SAFETY: the table of the static lives for ever.
    let [word, _] = unsafe { addr.stock(CpuId(cpu)) };
    Some(word)
}

impl AccountPtr {
    const ATOMIC_BIT: usize = 1;

    pub(super) fn new(node: &'static Node, kind: StockKind) -> Self {
        let node = NonNull::from(node);
        // A node is aligned to 128, so the lowest bit of its address is 0.
        Self(match kind {
            StockKind::Rseq => node,
            StockKind::Atomic => node.map_addr(|addr| addr | Self::ATOMIC_BIT),
        })
    }

    #[inline(always)]
    pub(super) fn kind(self) -> StockKind {
        if self.0.addr().get() & Self::ATOMIC_BIT == 0 { StockKind::Rseq } else { StockKind::Atomic }
    }

    #[inline(always)]
    pub(super) fn node(self) -> &'static Node {
        let addr =
            |addr: NonZeroUsize| NonZeroUsize::new(addr.get() & !Self::ATOMIC_BIT).expect("an address");
        // SAFETY: nodes of the two statics live for ever.
        unsafe { self.0.map_addr(addr).as_ref() }
    }

    /// [`Accounts::charge_stock`], without access to [`Accounts`]. `addr` is the node's stock address; a loop
    /// over a handle can keep it in a register.
    #[inline(always)]
    pub(super) fn charge_stock(self, addr: StockAddr, n: u64) -> bool {
        // Read before the kind is tested, so that the compiler may move both out of a loop.
        let area = RseqArea::current(PercpuMode::Cpu);
        n <= STOCKED_MAX
            && match self.kind() {
                // SAFETY: the tables of the two statics live for ever.
                StockKind::Rseq => area.is_some_and(|area| unsafe { stock::charge_at(area, addr, n as u32) }),
                StockKind::Atomic => {
                    atomic_stock(area, addr).is_some_and(|word| stock::charge(word, addr.key, n as u32))
                }
            }
    }

    /// [`Accounts::uncharge_stock`], as `charge_stock`.
    #[inline(always)]
    pub(super) fn uncharge_stock(self, addr: StockAddr, n: u64) -> bool {
        let area = RseqArea::current(PercpuMode::Cpu);
        n <= STOCKED_MAX
            && match self.kind() {
                StockKind::Rseq => {
                    // SAFETY: as in `charge_stock`.
                    area.is_some_and(|area| unsafe { stock::uncharge_at(area, addr, n as u32) })
                }
                StockKind::Atomic => {
                    atomic_stock(area, addr).is_some_and(|word| stock::uncharge(word, addr.key, n as u32))
                }
            }
    }

    /// Where the account's stocks are.
    #[inline(always)]
    pub(super) fn stock_addr(self) -> StockAddr {
        self.node().stock_addr
    }

    #[inline(always)]
    pub(super) fn try_charge(self, addr: StockAddr, n: u64) -> Result<(), OverBudget> {
        if self.charge_stock(addr, n) {
            return Ok(());
        }
        self.charge_slow(n)
    }

    #[cold]
    #[inline(never)]
    fn charge_slow(self, n: u64) -> Result<(), OverBudget> {
        self.run_slow_path(|| {
            on_account!(self, |accounts, node| accounts.charge_slow(node, current_cpu(), n, None))
        })
    }

    pub(super) fn force_charge(self, n: u64) -> Result<(), Overrun> {
        if self.charge_stock(self.stock_addr(), n) {
            return Ok(());
        }
        self.run_slow_path(|| {
            on_account!(self, |accounts, node| accounts.force_charge(node, current_cpu(), n))
        })
    }

    #[inline(always)]
    pub(super) fn uncharge(self, addr: StockAddr, n: u64) -> Result<(), OverUncharge> {
        if self.uncharge_stock(addr, n) {
            return Ok(());
        }
        self.uncharge_slow(n)
    }

    #[cold]
    #[inline(never)]
    fn uncharge_slow(self, n: u64) -> Result<(), OverUncharge> {
        self.run_slow_path(|| {
            on_account!(self, |accounts, node| accounts.uncharge_slow(node, current_cpu(), n))
        })
    }

    /// Runs `act`, which may return units to accounts, and wakes the charges that wait for them. What `act` allocates
    /// is charged to no account.
    #[inline]
    pub(super) fn run_slow_path<R>(self, act: impl FnOnce() -> R) -> R {
        let result = unaccounted(act);
        self.wake_waiters();
        result
    }

    /// As `wake_waiters`, for the allocator: the background thread wakes the waiters. An allocation may run under any
    /// lock, also of an executor whose wakers take the same lock.
    pub(super) fn wake_waiters_elsewhere(self) {
        if on_account!(self, |accounts, _node| accounts.wake_pending()) {
            reclaim::notify_reclaimer();
        }
    }

    /// Wakes charges that wait for units. Called after each operation that may have returned units.
    pub(super) fn wake_waiters(self) {
        if on_account!(self, |accounts, _node| accounts.take_pending_wake()) {
            waiters::wake_first_waiters();
        }
    }
}

// SAFETY: the address of a node, which is Sync and lives for ever.
unsafe impl Send for AccountPtr {}
// SAFETY: as above.
unsafe impl Sync for AccountPtr {}

impl VersionedPtr {
    /// Refers to an account that has a handle now.
    #[inline]
    pub(super) fn new(ptr: AccountPtr) -> Self {
        Self { ptr, ended: ptr.node().ended() }
    }
}

/// The account to which this thread's allocations are charged now. `None` if no account is active, or if the guard of
/// the active account was forgotten and the account has ended.
#[inline(always)]
pub(super) fn active_account() -> Option<AccountPtr> {
    let active_account = ACTIVE.get()?;
    (active_account.ptr.node().ended() == active_account.ended).then_some(active_account.ptr)
}

/// Runs `act` and charges what it allocates to no account. It is for memory that serves all accounts, such as
/// this crate's tables: the active account only happens to be the one that makes them grow. The tables are also
/// allocated under this crate's locks, which a charge may take.
///
/// **Touches** the thread's two words for the active account.
pub fn unaccounted<R>(act: impl FnOnce() -> R) -> R {
    struct Restore(Option<VersionedPtr>);
    impl Drop for Restore {
        fn drop(&mut self) {
            ACTIVE.set(self.0);
        }
    }
    let _restore = Restore(ACTIVE.replace(None));
    act()
}
