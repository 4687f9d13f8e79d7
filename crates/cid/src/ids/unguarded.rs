//! Entering without a [`HeldCid`](super::HeldCid), for callers that own a tenant's ids and its users both.
//!
//! A `HeldCid` borrows the ids, so a struct that owns both can't keep one. Here the `HeldCid` is dropped at once, and the
//! user remembers that it has an entry to leave. A user that enters both ways leaves as often as it entered, each way for
//! itself.
//!
//! Leaving reads the `PcpuCid` once more than with a `HeldCid`: this is for simulators, not for hot paths.

use super::{Ids, User};
use crate::pcpu_cid::PcpuCids;
use warmcore_types::{Cid, CpuId};

impl<S: PcpuCids> Ids<S> {
    /// As [`enter`](Ids::enter), without a [`HeldCid`](super::HeldCid): the id goes back through
    /// [`leave_unguarded`](Ids::leave_unguarded).
    pub fn enter_unguarded(&self, cpu: CpuId, user: &mut User) -> Option<Cid> {
        let held = self.enter(cpu, user)?;
        user.unguarded += 1;
        Some(held.cid())
    }

    /// Ends an entry of [`enter_unguarded`](Ids::enter_unguarded). False: there is none. Entries with a `HeldCid` stay.
    pub fn leave_unguarded(&self, user: &mut User) -> bool {
        let Some(held) = self.held(user).filter(|_| user.unguarded > 0) else { return false };
        user.unguarded -= 1;
        self.leave(held, user);
        true
    }
}
