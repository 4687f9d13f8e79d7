//! Alloc: a global allocator that charges what a thread allocates to its current account.
//!
//! Model.   Every block begins with a header, whose last word says which account paid; 0: nobody. Whoever
//!          frees the block gives the units back to that account, whatever is current then. A block is
//!          charged with its size and its header's.
//! Number.  8 bytes a block, 16 where it is aligned to 16.
//! Source.  ClickHouse charges its queries so, by thread, with an error that grows with threads.

use super::active::{active_account, unaccounted};
use super::{AccountPtr, on_account, reclaim};
use std::alloc::{GlobalAlloc, Layout};
use std::ptr::NonNull;
use warmcore_sys::rseq::current_cpu;

/// No address space has so many.
const BYTES_MAX: u64 = 1 << 56;

/// What happens to an allocation that does not fit its account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnFull {
    /// It is charged all the same, as [`Account::force_charge`](super::Account::force_charge) does.
    Count,
    /// It fails: `try_reserve` says so, and whoever asked without listening ends the process.
    Fail,
}

/// Charges every allocation to the account that is current on its thread: [`enter`](super::enter),
/// [`within`](super::within), or a tenant that was made with an account.
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
/// **In a child of `fork`** whose parent has made an account, an allocation is charged only where this CPU's stock
/// serves it, and never fails for lack of budget: what else a charge needs is under locks that a thread of the parent's
/// may have held, and that stay held in the child. So a closure for `Command::pre_exec` may allocate. A server
/// that goes into the background by `fork`, or forks its workers, makes its accounts afterwards.
#[derive(Debug, Clone, Copy)]
pub struct BudgetAlloc<A> {
    inner: A,
    on_full: OnFull,
}

impl<A> BudgetAlloc<A> {
    /// Over `inner`; over budget, it counts.
    pub const fn new(inner: A) -> Self {
        Self { inner, on_full: OnFull::Count }
    }

    /// Over `inner`, with what is to happen over budget.
    pub const fn with(inner: A, on_full: OnFull) -> Self {
        Self { inner, on_full }
    }

    /// Charges `n` to `site`; false if the allocation is to fail.
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

    /// Charges `n` to an account that has paid for a block already, and may have no handle any more.
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
}

/// A block's header: as large as its alignment, and a word at least.
#[inline(always)]
const fn header(layout: Layout) -> usize {
    if layout.align() > size_of::<usize>() { layout.align() } else { size_of::<usize>() }
}

/// The block with its header. `None` if there is no such size.
#[inline(always)]
const fn whole(layout: Layout) -> Option<Layout> {
    let Some(bytes) = layout.size().checked_add(header(layout)) else { return None };
    match Layout::from_size_align(bytes, header(layout)) {
        Ok(layout) => Some(layout),
        Err(_) => None,
    }
}

/// Where the block says who paid.
///
/// # Safety
/// `block` was returned by this allocator and not freed.
#[inline(always)]
unsafe fn header_of(block: *mut u8) -> *mut Option<AccountPtr> {
    // SAFETY: the word before the block is its header's last; headers are aligned to words.
    unsafe { block.cast::<Option<AccountPtr>>().sub(1) }
}

/// Gives back what was paid for a block.
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
        // Somebody else uncharged more than was theirs. It was told that then, or by the next drain.
        debug_assert!(result.is_ok(), "{result:?}");
    });
}

/// An allocator may be called under any lock. So what is allocated in here, by listeners too, is charged to
/// nobody, and wakers are called by another thread. And it must not unwind: a panic in budget itself aborts.
///
/// `None`, and nothing is done, in a child of fork: see [`BudgetAlloc`].
fn quietly<R>(ptr: AccountPtr, act: impl FnOnce() -> R) -> Option<R> {
    struct Abort;
    impl Drop for Abort {
        fn drop(&mut self) {
            std::process::abort();
        }
    }
    if reclaim::is_forked() {
        return None;
    }
    let abort = Abort;
    let result = unaccounted(act);
    ptr.wake_waiters_elsewhere();
    std::mem::forget(abort);
    Some(result)
}

// SAFETY: blocks are `inner`'s, with their header in front; the layout that leads to the header is the same
// when it is freed.
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
        // SAFETY: the caller's promise: a block of ours, of this layout.
        let ptr = unsafe { *header_of(block) };
        // SAFETY: its beginning, and the layout it was allocated with.
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
        // SAFETY: the caller's promise: a block of ours.
        let paid = unsafe { *header_of(block) };
        // What nobody paid for is paid by who makes it larger; to become smaller needs no budget.
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
        // SAFETY: its beginning, the layout it was allocated with, and a size that is one.
        let start = unsafe { self.inner.realloc(block.sub(header(layout)), before, after.size()) };
        if start.is_null() {
            if let Some(ptr) = ptr.filter(|_| more > 0) {
                give_back(ptr, more as usize);
            }
            return start;
        }
        // SAFETY: the header is as large as before, since the alignment is.
        let block = unsafe { start.add(header(layout)) };
        // SAFETY: a block of ours.
        unsafe { *header_of(block) = ptr };
        if let Some(ptr) = ptr.filter(|_| had > after.size()) {
            give_back(ptr, had - after.size());
        }
        block
    }
}

impl<A> BudgetAlloc<A> {
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
        // SAFETY: inside of what was allocated, which is longer by the header.
        let block = unsafe { start.as_ptr().add(header(layout)) };
        // SAFETY: the header's last word.
        unsafe { *header_of(block) = ptr };
        block
    }
}
