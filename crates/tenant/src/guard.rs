//! `Guard`: an id that this thread holds.
//!
//! Dropping a thread's last guard of a tenant usually leaves the id on the CPU where the thread took it, for the next
//! entry there; an overflow id becomes free. A guard borrows its tenant, which is therefore not dropped while the guard
//! lives. A guard cannot move to another thread.

use crate::tenant::Inner;
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use warmcore_budget::process::{self, ActiveAccount};
use warmcore_cid::HeldCid;
use warmcore_percpu::{CidHolder, IdSource};
use warmcore_types::Cid;

/// Holds an id of a tenant on this thread: [`Tenant::enter`](crate::Tenant::enter).
///
/// A guard stays on its thread:
///
/// ```compile_fail,E0277
/// let tenant = warmcore_tenant::Tenant::builder().build();
/// let here = tenant.enter();
/// std::thread::scope(|scope| scope.spawn(|| drop(here)).join().unwrap());
/// ```
#[must_use = "the id is held as long as the guard lives"]
pub struct Guard<'a> {
    tenant: &'a Inner,
    /// The held id. It is moved out when the guard is dropped.
    held: ManuallyDrop<HeldCid<'a>>,
    /// While this exists, what the thread allocates is charged to the tenant's account, if the global allocator is a
    /// `BudgetAlloc` and no other account was entered since. `None` without an account.
    _current: Option<ActiveAccount<'a>>,
    not_send: PhantomData<*const ()>,
}

impl<'a> Guard<'a> {
    #[inline(always)]
    pub(crate) fn new(tenant: &'a Inner, held: HeldCid<'a>) -> Self {
        let _current = tenant.account.as_ref().map(process::enter);
        Self { tenant, held: ManuallyDrop::new(held), _current, not_send: PhantomData }
    }

    /// The id. No other thread holds this id of the tenant as long as the guard lives; other guards of this thread may
    /// have it too.
    #[inline(always)]
    pub fn cid(&self) -> Cid {
        self.held.cid()
    }

    /// Whether this is an overflow id. A thread gets one if another thread still holds the id of its CPU, or if the
    /// thread itself is about to end.
    pub fn is_overflow(&self) -> bool {
        self.held.is_overflow()
    }
}

impl Drop for Guard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: taken once, here; the guard is not used again.
        let held = unsafe { ManuallyDrop::take(&mut self.held) };
        if let Err(held) = self.tenant.ids.leave_fast(held) {
            self.tenant.leave_slow(held);
        }
    }
}

// SAFETY: the id is the tenant's, and this thread holds it as long as the guard lives.
unsafe impl CidHolder for Guard<'_> {
    #[inline(always)]
    fn cid(&self) -> Cid {
        self.cid()
    }

    #[inline(always)]
    fn source(&self) -> &dyn IdSource {
        self.tenant
    }
}

impl fmt::Debug for Guard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("cid", &self.cid()).field("is_overflow", &self.is_overflow()).finish()
    }
}
