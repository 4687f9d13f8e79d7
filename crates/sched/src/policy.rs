//! Policies: which queue a woken task enters, what an idle CPU steals, and which parked CPU to kick when tasks wait.
//!
//! [`Policy`] is the trait; each policy is one file. [`Home`] is the default. [`SharedQueue`] places woken tasks as
//! Linux does, as far as a runtime has the numbers that Linux uses, and steals as the patches "shared_runq" for Linux
//! do. [`PolicyKind`] is an enum of both, and is itself a policy that behaves as the one it names. [`near`] has the
//! searches that policies share.

mod home;
mod kind;
pub mod near;
mod shared_queue;

pub use home::Home;
pub use home::MIN_STEAL_DELAY;
pub(crate) use home::{
    INTERVAL_MAX, LIFO_POLLS, MIGRATION_COST_MAX, MIGRATION_COST_PER_POLL, WAKEUP_COST, distance_factor,
    has_idle, kick_price,
};
pub use kind::{PolicyKind, UnknownPolicy};
pub use near::may;
pub(crate) use near::origin;
pub use shared_queue::SharedQueue;

use crate::{QueueOrder, SchedDomains, StealDecision, StealOrder, View, Wake, WakeDecision};
use warmcore_types::{CpuId, Nanos};

/// Which queue a woken task enters, what an idle CPU steals, and which parked CPU to kick when tasks wait.
///
/// An `average_poll` is the mean time for which a CPU's tasks, or for [`migration_cost`](Policy::migration_cost) one
/// task, run between two switches, as the scheduler measures it.
pub trait Policy {
    /// The queue that a woken task enters.
    fn wake(&self, machine: &SchedDomains, view: &impl View, wake: &Wake) -> WakeDecision;

    /// What the CPU `me` does when it has no tasks.
    fn steal(&self, machine: &SchedDomains, view: &impl View, me: CpuId, now: Nanos) -> StealDecision;

    /// Which task of a backlog is moved by [`StealDecision::From`].
    fn steal_order(&self) -> StealOrder {
        StealOrder::Last
    }

    /// How many tasks must wait on a CPU until kicking a parked CPU for them is worth its cost. `migration_cost` as in
    /// [`queue_order`](Self::queue_order); `spare`: what a kick counts as, if no other thread needs the idle CPU.
    fn notify_threshold(&self, _average_poll: Nanos, _migration_cost: Nanos, _spare: Option<Nanos>) -> u32 {
        1
    }

    /// Tasks wait on the CPU `at`: which parked CPU to kick, if any.
    ///
    /// A scheduler may ask only while no other CPU is searching. Then it asks again each time a searching CPU has found
    /// a task, in any queue, while more tasks wait on any CPU. Otherwise the last searching CPU would run the task that
    /// it found, and parked CPUs would stay parked while tasks wait.
    fn cpu_to_notify(&self, machine: &SchedDomains, view: &impl View, at: CpuId, now: Nanos)
    -> Option<CpuId>;

    /// Whether the CPU `me`, which is awake, takes over tasks that wait at `cpu`, because that stands still:
    /// [`View::still_for`].
    fn takes_over(
        &self,
        _machine: &SchedDomains,
        _view: &impl View,
        _me: CpuId,
        _cpu: CpuId,
        _now: Nanos,
    ) -> bool {
        false
    }

    /// Whether a CPU that is never idle takes tasks from a CPU whose tasks get fewer polls. [`Shares`](crate::Shares)
    /// computes how many.
    fn shares(&self) -> bool {
        false
    }

    /// The order in which a CPU runs the tasks of its next round: those that are queued when the round begins.
    /// `migration_cost`: what it costs to move a task with the CPU's average poll, as learned from moves.
    fn queue_order(&self, _migration_cost: Nanos) -> QueueOrder {
        QueueOrder::Fifo
    }

    /// How often in a row a CPU with this average poll may serve the LIFO slot before its queue. The LIFO slot holds
    /// the task that the running task woke last. 0: no LIFO slot. `migration_cost` as in [`queue_order`](Self::queue_order).
    fn max_lifo_polls(&self, _average_poll: Nanos, _migration_cost: Nanos) -> u32 {
        0
    }

    /// Whether other CPUs may steal the task in the LIFO slot, if no other task may go.
    fn steals_lifo_slot(&self) -> bool {
        true
    }

    /// Whether a task that is woken after so many polls of the LIFO slot in a row goes into the queue, where an idle CPU may
    /// steal it.
    fn closes_lifo_slot(&self) -> bool {
        false
    }

    /// Whether a parked CPU is notified when a task was queued and `waiting` tasks wait now. `threshold` is the
    /// [`notify_threshold`](Self::notify_threshold); `in_slot`: the task took an empty LIFO slot.
    #[inline]
    fn notifies(&self, waiting: u32, threshold: u32, in_slot: bool) -> bool {
        let _ = in_slot;
        waiting == threshold
    }

    /// Whether a CPU that took tasks from its shard's queue, whose polls take at most `poll`, serves the shard alone for a while: it gets
    /// new tasks of this kind, and no parked CPU is notified of them. `waiting`: tasks in its queues and in that one; `wakeup_cost`:
    /// [`View::wakeup_cost`].
    fn serves_alone(&self, _poll: Nanos, _waiting: u32, _wakeup_cost: Nanos) -> bool {
        false
    }

    /// Whether a task that is woken in its own poll waits until the driver was polled. The driver is polled when no other
    /// task is queued and none was found elsewhere.
    fn defers_yields(&self) -> bool {
        false
    }

    /// How many polls a worker does between two looks at its injection queue while tasks wait in its own queue. A worker
    /// without tasks looks at once.
    fn inject_interval(&self, _average_poll: Nanos) -> u32 {
        1
    }

    /// The injection queue from which the CPU takes: its shard's, unless the policy numbers its queues in another way.
    fn inject_queue_of(&self, machine: &SchedDomains, cpu: CpuId) -> usize {
        machine.shard_of(cpu)
    }

    /// How many polls a worker does between two polls of its driver. `None`: as many as take 160 times as
    /// long as its maintenance, 80 times while tasks yield.
    fn event_interval(&self) -> Option<u32> {
        None
    }

    /// How many of so many workers may search for tasks at a time. Under a policy with a limit no worker is notified while
    /// one searches.
    fn max_searching(&self, workers: u32) -> u32 {
        workers
    }

    /// The cost of moving a task with this average poll.
    fn migration_cost(&self, _average_poll: Nanos) -> Nanos {
        Nanos(0)
    }
}
