//! Units that are charged until they are dropped.

use super::{Account, account_ptr::AccountPtr};
use crate::outcome::OverBudget;
use std::fmt;

/// Units of an account, given back when this is dropped, on any thread. A charge may outlive the account's
/// handles. A `Charge` takes 16 bytes.
///
/// ```
/// use warmcore_budget::Account;
///
/// let cache = Account::root("cache").limit(100).build();
/// let mut charge = cache.try_hold(60)?;
/// let part = charge.split(20).expect("it has 60");
/// assert_eq!((charge.units(), part.units()), (40, 20));
/// charge.merge(part).unwrap();
/// charge.shrink(50);
/// assert_eq!(cache.exact_usage(), 10);
/// drop(charge);
/// assert_eq!(cache.exact_usage(), 0);
/// # Ok::<(), warmcore_budget::OverBudget>(())
/// ```
#[must_use = "a charge that is dropped at once holds nothing"]
pub struct Charge {
    ptr: AccountPtr,
    units: u64,
}

impl Charge {
    #[inline(always)]
    pub(super) fn new(ptr: AccountPtr, units: u64) -> Self {
        Self { ptr, units }
    }

    /// The number of units.
    #[inline]
    pub fn units(&self) -> u64 {
        self.units
    }

    /// Moves `n` units of this charge to a new one. `None` if this charge has fewer.
    pub fn split(&mut self, n: u64) -> Option<Charge> {
        self.units = self.units.checked_sub(n)?;
        Some(Charge::new(self.ptr, n))
    }

    /// Takes all units of `other`. Returns `other` as the error if it belongs to another account.
    pub fn merge(&mut self, other: Charge) -> Result<(), Charge> {
        if other.ptr != self.ptr {
            return Err(other);
        }
        self.units += other.units;
        std::mem::forget(other);
        Ok(())
    }

    /// Gives back `n` units of this charge. Panics if it has fewer.
    #[inline]
    pub fn shrink(&mut self, n: u64) {
        let Some(less) = self.units.checked_sub(n) else {
            panic!("a charge of {} units can't shrink by {n}", self.units)
        };
        self.units = less;
        self.give_back(n);
    }

    /// Charges `n` units more to `account`. Panics unless this charge is of that account. The account is an
    /// argument because a charge has no handle: cloning and dropping a handle writes an atomic that all CPUs
    /// share.
    #[inline]
    pub fn grow(&mut self, account: &Account, n: u64) -> Result<(), OverBudget> {
        assert!(self.is_of(account), "a charge can grow in its own account only, not in {}", account.name());
        account.try_charge(n)?;
        self.units += n;
        Ok(())
    }

    /// Whether the units are charged to this account.
    #[inline]
    pub fn is_of(&self, account: &Account) -> bool {
        self.ptr == account.ptr
    }

    /// Keeps the units charged until [`Account::uncharge`] gives them back; returns their number.
    pub fn forget(self) -> u64 {
        let units = self.units;
        std::mem::forget(self);
        units
    }

    #[inline]
    fn give_back(&self, n: u64) {
        let result = self.ptr.uncharge(self.ptr.stock_addr(), n);
        // This fails if other code uncharged more than it had charged: that uncharge returned an error, or hid its
        // surplus in a stock.
        debug_assert!(result.is_ok(), "{result:?}");
    }
}

impl Drop for Charge {
    #[inline]
    fn drop(&mut self) {
        self.give_back(self.units);
    }
}

impl fmt::Debug for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Charge").field("units", &self.units).finish_non_exhaustive()
    }
}
