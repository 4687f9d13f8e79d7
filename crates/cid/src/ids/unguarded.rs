//! Unguarded: ids for a host that owns a tenant and its users both, and so can keep no [`HeldCid`](super::HeldCid).
//!
//! Model.   A `HeldCid` borrows the tenant. A host that has both in one place gives it up at once, and the user remembers
//!          that it is to be given back. Who mixes both ways gives back as often as it entered, each its own.
//! Number.  Leaving looks at the pcpu_cid once more than with a `HeldCid`: for simulators, not for hot paths.

use super::{Ids, User};
use crate::pcpu_cid::PcpuCids;
use warmcore_types::{Cid, CpuId};

impl<S: PcpuCids> Ids<S> {
    /// As [`enter`](Ids::enter), without a guard: the id goes back through
    /// [`leave_unguarded`](Ids::leave_unguarded).
    pub fn enter_unguarded(&self, cpu: CpuId, user: &mut User) -> Option<Cid> {
        let held = self.enter(cpu, user)?;
        user.unguarded += 1;
        Some(held.cid())
    }

    /// Gives back what [`enter_unguarded`](Ids::enter_unguarded) gave. False: there is nothing to give back, and
    /// what stands in a guard stays there.
    pub fn leave_unguarded(&self, user: &mut User) -> bool {
        let Some(held) = self.held(user).filter(|_| user.unguarded > 0) else { return false };
        user.unguarded -= 1;
        self.leave(held, user);
        true
    }
}
