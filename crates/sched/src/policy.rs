//! Policy: where a wakee goes, what an idle CPU takes, and who is woken when work piles up.
//!
//! Model.   Three questions, one trait, one file per answer. [`Home`] is the default. [`SharedQueue`] is Linux's
//!          placement, as far as a runtime can have it. [`PolicyKind`] names both, and is itself a policy: the one
//!          that it names. [`near`] finds the CPUs that all of them name.
//! Number.  Two policies by name.

mod home;
mod kind;
pub mod near;
mod shared_queue;

pub use home::Home;
pub(crate) use home::{MIGRATION_COST_PER_POLL, distance_factor};
pub use kind::{PolicyKind, UnknownPolicy};
pub use near::may;
pub use shared_queue::SharedQueue;

use crate::{QueueOrder, SchedDomains, StealDecision, StealOrder, View, Wake, WakeDecision};
use warmcore_types::{CpuId, Nanos};

/// Where a wakee goes, what an idle CPU takes, and who is woken when work piles up.
pub trait Policy {
    /// Where a wakee goes.
    fn wake(&self, machine: &SchedDomains, view: &impl View, wake: &Wake) -> WakeDecision;

    /// What a CPU does that has nothing to do.
    fn steal(&self, machine: &SchedDomains, view: &impl View, me: CpuId, now: Nanos) -> StealDecision;

    /// Which of the tasks that wait on a CPU a [`StealDecision::From`] takes, and [`balance`](Policy::balance).
    fn steal_order(&self) -> StealOrder {
        StealOrder::Last
    }

    /// From how many on that wait on a CPU, whose tasks run for so long at a time, help is worth its price.
    fn notify_threshold(&self, average_poll: Nanos) -> u32 {
        let _ = average_poll;
        1
    }

    /// A task was put behind others on the CPU `at`, which runs: whom to kick, of those that sleep. The host
    /// asks only if nobody is looking for work already. And it asks again whenever somebody who looked has
    /// found something, wherever that was, and more wait, wherever they do: else the last who looks is content
    /// with what was its own, and CPUs sleep on beside a queue.
    fn cpu_to_notify(&self, machine: &SchedDomains, view: &impl View, at: CpuId, now: Nanos)
    -> Option<CpuId>;

    /// How many of those that wait on `other` are to come to `me`, where tasks wait as well. The host asks now and
    /// then, and does it only if the answer was the same for as long as a move costs. For hosts that don't count
    /// polls; one that does asks [`shares`](Self::shares) instead.
    fn balance(&self, machine: &SchedDomains, view: &impl View, me: CpuId, other: CpuId) -> u32 {
        let _ = (machine, view, me, other);
        0
    }

    /// Whether a CPU that never idles takes tasks from one whose tasks get fewer polls: [`Shares`](crate::Shares)
    /// says how many.
    fn shares(&self) -> bool {
        false
    }

    /// In which order the next round goes, on a CPU whose tasks run for so long at a time.
    fn queue_order(&self, average_poll: Nanos) -> QueueOrder {
        let _ = average_poll;
        QueueOrder::Fifo
    }

    /// How often in a row a task may run at once that the task before it woke, ahead of all who wait, on a CPU
    /// whose tasks run for so long at a time.
    fn max_lifo_polls(&self, average_poll: Nanos) -> u32 {
        let _ = average_poll;
        0
    }

    /// What a move costs a task that runs for so long at a time.
    fn migration_cost(&self, average_poll: Nanos) -> Nanos {
        let _ = average_poll;
        Nanos(0)
    }
}
