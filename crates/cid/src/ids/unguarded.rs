//! Entering without a [`HeldCid`](super::HeldCid), for callers that own both a tenant's ids and its users.
//!
//! A `HeldCid` borrows the ids, so a struct that owns both can't keep one. Here the `HeldCid` is dropped at once,
//! and the user remembers that it has an entry to leave. A user that enters in both ways must leave as often in
//! each way as it entered.
//!
//! A leave reads the `PcpuCid` once more than with a `HeldCid`, so this is for simulators and not for hot paths.

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

    /// Ends an entry of [`enter_unguarded`](Ids::enter_unguarded). Returns false if there is none. Entries with a
    /// `HeldCid` are not affected.
    pub fn leave_unguarded(&self, user: &mut User) -> bool {
        let Some(held) = self.held(user).filter(|_| user.unguarded > 0) else { return false };
        user.unguarded -= 1;
        self.leave(held, user);
        true
    }
}
