//! The account to which this thread's memory is charged.
//!
//! Each thread has two words: the account's node, and how many accounts of that node had ended when [`enter`] was
//! called. [`enter`] sets the words, and the drop of its guard restores them. A guard that is forgotten
//! ([`std::mem::forget`]) therefore has no effect after the end of its account, and never charges the node's next
//! account. The words need no destructor and exist from a thread's first instruction to its last, so that an
//! allocator may read them.
//!
//! Cost: one comparison per allocation. The word compared is on the cache line that a charge reads anyway.

use super::{Account, AccountPtr};
use std::cell::Cell;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

thread_local! {
    static ACTIVE: Cell<Option<VersionedPtr>> = const { Cell::new(None) };
}

/// A pointer to an account, without a handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct VersionedPtr {
    ptr: AccountPtr,
    /// The value of `Node::ended` while the account exists.
    ended: u32,
}

/// The account to which this thread's allocations are charged now. `None` also if the guard was forgotten and the
/// account has ended.
#[inline(always)]
pub(super) fn active_account() -> Option<AccountPtr> {
    let active_account = ACTIVE.get()?;
    (active_account.ptr.node().ended() == active_account.ended).then_some(active_account.ptr)
}

/// Runs `act` and charges what it allocates to no account. It is for memory that serves all accounts, such as
/// this crate's tables: the active account only happens to be the one that makes them grow. They are also
/// allocated under this crate's locks, which a charge may take.
///
/// **Touches** the thread's word for the active account.
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

/// A guard from [`enter`]: while it exists, what this thread allocates is charged to an account.
#[must_use = "the account is left when this is dropped"]
pub struct ActiveAccount<'a> {
    mine: VersionedPtr,
    before: Option<VersionedPtr>,
    account: PhantomData<&'a Account>,
    not_send: PhantomData<*const ()>,
}

/// Charges what this thread allocates to `account` until the guard is dropped, and then to the account that was
/// active before. Guards nest. Without a [`BudgetAlloc`](super::BudgetAlloc) as the global allocator it has no
/// effect.
///
/// Drop a guard on its thread, before the account's handle, in the opposite order of entering, and do not forget
/// one. If another account than the guard's is active when the guard is dropped, no account is active afterwards,
/// since the account before may have ended. After a forgotten guard the thread's allocations are charged to its
/// account until the account ends, and then to no account. In a future use [`within`], which enters at each poll:
/// a guard that is held across an `await` would also be active while other tasks run on the thread.
#[inline]
pub fn enter(account: &Account) -> ActiveAccount<'_> {
    let mine = VersionedPtr { ptr: account.ptr, ended: account.ptr.node().ended() };
    let before = ACTIVE.replace(Some(mine));
    ActiveAccount { mine, before, account: PhantomData, not_send: PhantomData }
}

impl Drop for ActiveAccount<'_> {
    #[inline]
    fn drop(&mut self) {
        ACTIVE.set(self.before.filter(|_| ACTIVE.get() == Some(self.mine)));
    }
}

impl std::fmt::Debug for ActiveAccount<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ActiveAccount").finish_non_exhaustive()
    }
}

/// A future from [`within`]: it is polled and dropped with an account active.
#[must_use = "a future does nothing until it is polled"]
#[derive(Debug)]
pub struct Within<F> {
    /// `None` after the drop.
    future: Option<F>,
    account: Account,
}

/// Charges to `account` what `future` allocates at each poll and when it is dropped.
///
/// ```
/// use warmcore_budget::{Account, process::within};
///
/// # let spawn = drop;
/// let tenant = Account::root("tenant").limit(64 << 20).build();
/// spawn(within(&tenant, async { vec![0u8; 1000] })); // any executor's `spawn`
/// ```
pub fn within<F: Future>(account: &Account, future: F) -> Within<F> {
    Within { future: Some(future), account: account.clone() }
}

impl<F: Future> Future for Within<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        // SAFETY: `future` is pinned with `self`: it is never moved, only dropped in place. `account` is never
        // pinned.
        let this = unsafe { self.get_unchecked_mut() };
        let _current = enter(&this.account);
        // SAFETY: as above.
        let future = unsafe { Pin::new_unchecked(this.future.as_mut().expect("polled after its drop")) };
        future.poll(cx)
    }
}

impl<F> Drop for Within<F> {
    fn drop(&mut self) {
        let _current = enter(&self.account);
        self.future = None;
    }
}
