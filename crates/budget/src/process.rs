//! The accounts of this process, and what uses them: handles, waiting charges, the allocator, the background
//! thread.
//!
//! All accounts of one stock kind are in one [`Accounts`], so that all stocks of a CPU are next to each other. An
//! `AccountPtr` refers to an account with one word, which a block of memory can carry.

mod account;
mod active;
mod alloc;
mod charge;
mod reclaim;
mod stock_kind;
mod wait;

pub use account::{Account, AccountBuilder};
pub use active::{ActiveAccount, Within, enter, unaccounted, within};
pub use alloc::{BudgetAlloc, OnFull};
pub use charge::Charge;
pub use reclaim::RECLAIM_PERIOD;
pub use stock_kind::{StockKind, StockKindError, VARIABLE, default_kind, try_default_kind};
pub use wait::ChargeFuture;

use crate::accounts::{Accounts, Node, STOCKED_MAX};
use crate::outcome::{OverBudget, OverUncharge, Overrun};
use crate::stock::{self, AtomicStocks, RseqStocks, StockAddr};
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use warmcore_sys::affinity;
use warmcore_sys::rseq::{PercpuMode, RseqArea, cpu_hint, current_cpu};
use warmcore_types::CpuId;

static ATOMIC: OnceLock<Accounts<AtomicStocks>> = OnceLock::new();
static RSEQ: OnceLock<Accounts<RseqStocks>> = OnceLock::new();

/// A pointer to an account: its node's address, with the stock kind in the lowest bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub(crate) struct AccountPtr(NonNull<Node>);

/// Expands to the same code for the accounts of either kind.
macro_rules! on_account {
    ($ptr:expr, |$accounts:ident, $node:ident| $act:expr) => {{
        let (ptr, $node) = ($ptr, $ptr.node());
        match ptr.kind() {
            $crate::process::StockKind::Rseq => {
                let $accounts = $crate::process::rseq();
                $act
            }
            $crate::process::StockKind::Atomic => {
                let $accounts = $crate::process::atomic();
                $act
            }
        }
    }};
}
pub(crate) use on_account;

#[inline(always)]
pub(crate) fn atomic() -> &'static Accounts<AtomicStocks> {
    #[cold]
    fn begin() -> &'static Accounts<AtomicStocks> {
        // The backend is chosen here at the latest, so that CPU numbers are known without a call.
        let _ = warmcore_percpu::try_backend();
        set_up_unaccounted();
        ATOMIC.get_or_init(|| Accounts::new(AtomicStocks::new(affinity::nr_cpu_ids() as u32)))
    }
    ATOMIC.get().unwrap_or_else(begin)
}

#[inline(always)]
pub(crate) fn rseq() -> &'static Accounts<RseqStocks> {
    #[cold]
    fn begin() -> &'static Accounts<RseqStocks> {
        // The backend is chosen here at the latest, also if a kind was forced: the choice decides for good
        // whether sections are enabled.
        let _ = warmcore_percpu::try_backend();
        set_up_unaccounted();
        // SAFETY: only sections, and compare-and-swaps on the word that is meant for them, ever write these
        // tables; where sections are not enabled, every charge goes up the tree.
        RSEQ.get_or_init(|| Accounts::new(unsafe { RseqStocks::new(affinity::nr_cpu_ids() as u32) }))
    }
    RSEQ.get().unwrap_or_else(begin)
}

/// Per-CPU slots of counters serve the whole process: they are charged to no account, whichever is active.
fn set_up_unaccounted() {
    warmcore_percpu::set_up_within(|act| unaccounted(act));
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

    fn new(node: &'static Node, kind: StockKind) -> Self {
        let node = NonNull::from(node);
        // A node is aligned to 128.
        Self(match kind {
            StockKind::Rseq => node,
            StockKind::Atomic => node.map_addr(|addr| addr | Self::ATOMIC_BIT),
        })
    }

    #[inline(always)]
    fn kind(self) -> StockKind {
        if self.0.addr().get() & Self::ATOMIC_BIT == 0 { StockKind::Rseq } else { StockKind::Atomic }
    }

    #[inline(always)]
    fn node(self) -> &'static Node {
        let addr =
            |addr: NonZeroUsize| NonZeroUsize::new(addr.get() & !Self::ATOMIC_BIT).expect("an address");
        // SAFETY: nodes of the two statics live for ever.
        unsafe { self.0.map_addr(addr).as_ref() }
    }

    /// [`Accounts::charge_stock`], without access to [`Accounts`]. `addr` is the node's stock address; a loop
    /// over a handle can keep it in a register.
    #[inline(always)]
    pub(crate) fn charge_stock(self, addr: StockAddr, n: u64) -> bool {
        // Before the kind is tested, so that a loop tests it once.
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
    pub(crate) fn uncharge_stock(self, addr: StockAddr, n: u64) -> bool {
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
    pub(crate) fn stock_addr(self) -> StockAddr {
        self.node().stock_addr
    }

    #[inline(always)]
    pub(crate) fn try_charge(self, addr: StockAddr, n: u64) -> Result<(), OverBudget> {
        if self.charge_stock(addr, n) {
            return Ok(());
        }
        self.charge_slow(n)
    }

    #[cold]
    #[inline(never)]
    fn charge_slow(self, n: u64) -> Result<(), OverBudget> {
        let result = unaccounted(|| {
            on_account!(self, |accounts, node| accounts.charge_slow(node, current_cpu(), n, None))
        });
        self.wake_waiters();
        result
    }

    pub(crate) fn force_charge(self, n: u64) -> Result<(), Overrun> {
        if self.charge_stock(self.stock_addr(), n) {
            return Ok(());
        }
        let result =
            unaccounted(|| on_account!(self, |accounts, node| accounts.force_charge(node, current_cpu(), n)));
        self.wake_waiters();
        result
    }

    #[inline(always)]
    pub(crate) fn uncharge(self, addr: StockAddr, n: u64) -> Result<(), OverUncharge> {
        if self.uncharge_stock(addr, n) {
            return Ok(());
        }
        self.uncharge_slow(n)
    }

    #[cold]
    #[inline(never)]
    fn uncharge_slow(self, n: u64) -> Result<(), OverUncharge> {
        let result = unaccounted(|| {
            on_account!(self, |accounts, node| accounts.uncharge_slow(node, current_cpu(), n))
        });
        self.wake_waiters();
        result
    }

    /// As `wake_waiters`, for the allocator. An allocation may run under any lock, also of an executor whose
    /// wakers take the same lock. So the background thread wakes the waiters.
    pub(crate) fn wake_waiters_elsewhere(self) {
        if on_account!(self, |accounts, _node| accounts.wake_pending()) {
            reclaim::notify_reclaimer();
        }
    }

    /// Wakes charges that wait for units. Called after each operation that may have returned units.
    pub(crate) fn wake_waiters(self) {
        if on_account!(self, |accounts, _node| accounts.take_pending_wake()) {
            wait::wake_first_waiters();
        }
    }
}

// SAFETY: the address of a node, which is Sync and lives for ever.
unsafe impl Send for AccountPtr {}
// SAFETY: as above.
unsafe impl Sync for AccountPtr {}
