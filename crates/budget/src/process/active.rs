//! Making an account the one to which this thread's memory is charged. `account_ptr.rs` says how it is stored.

use super::Account;
use super::account_ptr::{ACTIVE, VersionedPtr};
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A guard from [`enter`]: while it exists, what this thread allocates is charged to the account that was entered.
#[must_use = "the account is left when this is dropped"]
pub struct ActiveAccount<'a> {
    mine: VersionedPtr,
    before: Option<VersionedPtr>,
    account: PhantomData<&'a Account>,
    not_send: PhantomData<*const ()>,
}

/// Charges what this thread allocates to `account` until the guard is dropped, and then to the account that was
/// active before. Guards nest. Without a [`BudgetAlloc`](super::BudgetAlloc) as the global allocator a guard has no
/// effect.
///
/// Drop guards in the opposite order of entering, and do not forget one. If another account than the guard's is
/// active when the guard is dropped, no account is active afterwards, since the account that was active before the
/// guard may have ended. After a forgotten guard the thread's allocations are charged to the guard's account until
/// the account ends, and then to no account. In a future use [`within`], which enters at each poll:
/// a guard that is held across an `await` would also be active while other tasks run on the thread.
#[inline]
pub fn enter(account: &Account) -> ActiveAccount<'_> {
    let mine = VersionedPtr::new(account.ptr);
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

/// A future from [`within`]: it is polled and dropped while the account given to `within` is active.
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
