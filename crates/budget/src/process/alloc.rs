//! A global allocator that charges what a thread allocates to its active account.
//!
//! Every block begins with a header, whose last word is the account that was charged, or 0 for none. Freeing the block
//! gives the units back to that account, whichever account is active then. The charge for a block is its size plus the
//! header's: a word (8 bytes on 64-bit systems), or the alignment if that is larger.
//!
//! ClickHouse charges its queries in a similar way; there each thread collects its changes before it charges
//! them, so that the error grows with the number of threads.

use super::account_ptr::{AccountPtr, active_account, on_account, unaccounted};
use super::reclaim;
use std::alloc::{GlobalAlloc, Layout};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use warmcore_sys::rseq::current_cpu;

/// More bytes than any address space has.
const BYTES_MAX: u64 = 1 << 56;

/// What happens to an allocation that does not fit its account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnFull {
    /// The block is charged although it exceeds the limit, as
    /// [`Account::force_charge`](super::Account::force_charge) does.
    Count,
    /// The allocation fails: `try_reserve` returns an error, and callers that cannot report the failure, such as
    /// `Vec::push`, end the process.
    Fail,
}

/// Charges every allocation to the account that is active on its thread: [`enter`](super::enter),
/// [`within`](super::within), or a guard of a tenant that was made with an account.
///
/// ```
/// use warmcore_budget::{Account, process::{BudgetAlloc, enter}};
///
/// #[global_allocator]
/// static ALLOC: BudgetAlloc<std::alloc::System> = BudgetAlloc::new(std::alloc::System);
///
/// let account = Account::root("tenant").build();
/// let bytes = {
///     let _current = enter(&account);
///     vec![0u8; 1000]
/// };
/// assert_eq!(account.exact_usage(), 1008);    // the header's 8
/// drop(bytes);                                // wherever it is freed
/// assert_eq!(account.exact_usage(), 0);
/// ```
///
/// **In a child of `fork`** whose parent has made an account, an allocation is charged only if this CPU's stock
/// has enough units, and never fails for lack of budget. The reason: any other charge takes locks that another
/// thread of the parent may have held, and that stay locked in the child. So a closure for `Command::pre_exec`
/// may allocate. A server that goes into the background by `fork`, or forks its workers, should make its accounts
/// afterwards.
#[derive(Debug, Clone, Copy)]
pub struct BudgetAlloc<A> {
    inner: A,
    on_full: OnFull,
}

impl<A> BudgetAlloc<A> {
    /// Allocates from `inner`; above a limit, blocks are still allocated and charged ([`OnFull::Count`]).
    pub const fn new(inner: A) -> Self {
        Self { inner, on_full: OnFull::Count }
    }

    /// Allocates from `inner`, with this behaviour above a limit.
    pub const fn with(inner: A, on_full: OnFull) -> Self {
        Self { inner, on_full }
    }

    /// Charges `n` units. Returns false if the allocation is to fail.
    #[inline(always)]
    fn charge(&self, ptr: AccountPtr, n: u64) -> bool {
        if ptr.charge_stock(ptr.stock_addr(), n) {
            return true;
        }
        self.charge_slow(ptr, n)
    }

    #[cold]
    #[inline(never)]
    fn charge_slow(&self, ptr: AccountPtr, n: u64) -> bool {
        n <= BYTES_MAX
            && quietly(ptr, || match self.on_full {
                OnFull::Fail => {
                    on_account!(ptr, |accounts, node| accounts.charge_slow(node, current_cpu(), n, None))
                        .is_ok()
                }
                OnFull::Count => {
                    let _ = on_account!(ptr, |accounts, node| accounts.force_charge(node, current_cpu(), n));
                    true
                }
            })
            .unwrap_or(true)
    }

    /// Charges `n` units more to the account of an existing block. The account may have no handle left. Returns false
    /// if the allocation is to fail.
    #[cold]
    #[inline(never)]
    fn charge_more(&self, ptr: AccountPtr, n: u64) -> bool {
        n <= BYTES_MAX
            && quietly(ptr, || {
                let result = on_account!(ptr, |accounts, node| accounts.try_charge_past_stocks(node, n));
                if result.is_err() && self.on_full == OnFull::Count {
                    on_account!(ptr, |accounts, node| accounts.force_charge_past_stocks(node, n));
                }
                result.is_ok() || self.on_full == OnFull::Count
            })
            .unwrap_or(true)
    }

    #[inline(always)]
    fn allocate(&self, layout: Layout, allocate: impl FnOnce(Layout) -> *mut u8) -> *mut u8 {
        let Some(whole) = whole(layout) else { return std::ptr::null_mut() };
        let ptr = active_account();
        if let Some(ptr) = ptr
            && !self.charge(ptr, whole.size() as u64)
        {
            return std::ptr::null_mut();
        }
        let Some(start) = NonNull::new(allocate(whole)) else {
            if let Some(ptr) = ptr {
                give_back(ptr, whole.size());
            }
            return std::ptr::null_mut();
        };
        // SAFETY: inside the allocated block, which is longer by the header.
        let block = unsafe { start.as_ptr().add(header(layout)) };
        // SAFETY: the last word of the header.
        unsafe { *header_of(block) = ptr };
        block
    }
}

/// The size of a block's header: the block's alignment, and at least a word.
#[inline(always)]
const fn header(layout: Layout) -> usize {
    if layout.align() > size_of::<usize>() { layout.align() } else { size_of::<usize>() }
}

/// The layout of the block with its header. `None` if that is too large for a layout.
#[inline(always)]
const fn whole(layout: Layout) -> Option<Layout> {
    let Some(bytes) = layout.size().checked_add(header(layout)) else { return None };
    match Layout::from_size_align(bytes, header(layout)) {
        Ok(layout) => Some(layout),
        Err(_) => None,
    }
}

/// The word of the block's header with the account that was charged.
///
/// # Safety
/// `block` was returned by this allocator and not freed.
#[inline(always)]
unsafe fn header_of(block: *mut u8) -> *mut Option<AccountPtr> {
    // SAFETY: the word before the block is its header's last; headers are aligned to words.
    unsafe { block.cast::<Option<AccountPtr>>().sub(1) }
}

/// Gives back the units of a block.
#[inline(always)]
fn give_back(ptr: AccountPtr, n: usize) {
    if !ptr.uncharge_stock(ptr.stock_addr(), n as u64) {
        give_back_slow(ptr, n as u64);
    }
}

#[cold]
#[inline(never)]
fn give_back_slow(ptr: AccountPtr, n: u64) {
    quietly(ptr, || {
        let result = on_account!(ptr, |accounts, node| accounts.uncharge_slow(node, current_cpu(), n));
        // This fails if other code uncharged more than it had charged: that uncharge returned an error, or hid its
        // surplus in a stock.
        debug_assert!(result.is_ok(), "{result:?}");
    });
}

/// Runs `act`, a slow path of the allocator. The allocator may be called under any lock, so memory that `act` or a
/// listener allocates is charged to no account, and wakers are called by the background thread. An allocator must
/// not unwind, so a panic in `act` aborts the process.
///
/// Returns `None`, and does nothing, in a child of `fork` whose parent has made an account: see [`BudgetAlloc`].
fn quietly<R>(ptr: AccountPtr, act: impl FnOnce() -> R) -> Option<R> {
    if reclaim::is_forked() {
        return None;
    }
    let act = || {
        let result = unaccounted(act);
        ptr.wake_waiters_elsewhere();
        result
    };
    Some(catch_unwind(AssertUnwindSafe(act)).unwrap_or_else(|_| std::process::abort()))
}

// SAFETY: blocks are `inner`'s, with their header in front; `dealloc` computes the header's size from the same layout.
unsafe impl<A: GlobalAlloc> GlobalAlloc for BudgetAlloc<A> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the layout is not empty, as it has a header.
        self.allocate(layout, |whole| unsafe { self.inner.alloc(whole) })
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as in `alloc`.
        self.allocate(layout, |whole| unsafe { self.inner.alloc_zeroed(whole) })
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let whole = whole(layout).expect("it was allocated with this layout");
        // SAFETY: the caller passes a block of this allocator, of this layout.
        let ptr = unsafe { *header_of(block) };
        // SAFETY: the start of the whole block, and the layout it was allocated with.
        unsafe { self.inner.dealloc(block.sub(header(layout)), whole) };
        if let Some(ptr) = ptr {
            give_back(ptr, whole.size());
        }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let (Some(before), Ok(new_layout)) =
            (whole(layout), Layout::from_size_align(new_size, layout.align()))
        else {
            return std::ptr::null_mut();
        };
        let Some(after) = whole(new_layout) else { return std::ptr::null_mut() };
        // SAFETY: the caller passes a block of this allocator.
        let paid = unsafe { *header_of(block) };
        // A block without an account is charged as a whole to the active one when it grows; shrinking needs no budget.
        let (ptr, had) = match paid {
            Some(ptr) => (Some(ptr), before.size()),
            None => (active_account().filter(|_| new_size > layout.size()), 0),
        };
        let more = after.size().saturating_sub(had) as u64;
        if let Some(ptr) = ptr.filter(|_| more > 0) {
            let is_handled = active_account() == Some(ptr);
            let is_charged = if is_handled { self.charge(ptr, more) } else { self.charge_more(ptr, more) };
            if !is_charged {
                return std::ptr::null_mut();
            }
        }
        // SAFETY: the start of the whole block, the layout it was allocated with, and a valid new size.
        let start = unsafe { self.inner.realloc(block.sub(header(layout)), before, after.size()) };
        if start.is_null() {
            if let Some(ptr) = ptr.filter(|_| more > 0) {
                give_back(ptr, more as usize);
            }
            return start;
        }
        // SAFETY: the header is as large as before, because the alignment is the same.
        let block = unsafe { start.add(header(layout)) };
        // SAFETY: a block of this allocator.
        unsafe { *header_of(block) = ptr };
        if let Some(ptr) = ptr.filter(|_| had > after.size()) {
            give_back(ptr, had - after.size());
        }
        block
    }
}
