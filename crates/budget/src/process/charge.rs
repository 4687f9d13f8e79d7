//! Charge: units that are held, and given back when it is dropped.

use super::{Account, AccountPtr};
use crate::outcome::OverBudget;
use std::fmt;

/// Units of an account, given back when this is dropped, on whatever thread. It outlives the account's
/// handles if it must. 16 bytes.
#[must_use = "dropped at once, it holds nothing"]
pub struct Charge {
    ptr: AccountPtr,
    units: u64,
}

impl Charge {
    #[inline(always)]
    pub(super) fn new(ptr: AccountPtr, units: u64) -> Self {
        Self { ptr, units }
    }

    /// How many.
    #[inline]
    pub fn units(&self) -> u64 {
        self.units
    }

    /// Takes `n` units out of this one. `None` if there are not so many.
    pub fn split(&mut self, n: u64) -> Option<Charge> {
        self.units = self.units.checked_sub(n)?;
        Some(Charge::new(self.ptr, n))
    }

    /// Takes in all of `other`; gives it back if it is another account's.
    pub fn merge(&mut self, other: Charge) -> Result<(), Charge> {
        if other.ptr != self.ptr {
            return Err(other);
        }
        self.units += other.units;
        std::mem::forget(other);
        Ok(())
    }

    /// Gives back `n` of its units. Panics if it has not so many.
    #[inline]
    pub fn shrink(&mut self, n: u64) {
        let Some(less) = self.units.checked_sub(n) else {
            panic!("a charge of {} units can't shrink by {n}", self.units)
        };
        self.units = less;
        self.give_back(n);
    }

    /// Charges `n` units more to `account`, whose it is. The account is an argument because a charge keeps no
    /// handle: dropping one would be an atomic that all CPUs share. Panics if it is another account's.
    #[inline]
    pub fn grow(&mut self, account: &Account, n: u64) -> Result<(), OverBudget> {
        assert!(self.is_of(account), "a charge can grow in its own account only, not in {}", account.name());
        account.try_charge(n)?;
        self.units += n;
        Ok(())
    }

    /// Whether it is charged to this account.
    #[inline]
    pub fn is_of(&self, account: &Account) -> bool {
        self.ptr == account.ptr
    }

    /// Stays charged for ever, or until somebody [uncharges](Account::uncharge) as much.
    pub fn forget(self) -> u64 {
        let units = self.units;
        std::mem::forget(self);
        units
    }

    #[inline]
    fn give_back(&self, n: u64) {
        let result = self.ptr.uncharge(self.ptr.stock_addr(), n);
        // Somebody else uncharged more than was theirs. It was told that then, or by the next drain.
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
