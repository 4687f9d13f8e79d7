//! Policy: where a wakee goes, what an idle CPU takes, and who is woken when work piles up.
//!
//! Model.   Three questions, one trait, one file per answer. [`Home`] is ours. The others are what is done
//!          elsewhere, for comparison: [`PolicyKind`] names them, and is itself a policy: the one that it names.
//!          [`Kernel`] is Linux with settings, for a simulator: it asks for facts that a runtime doesn't have.
//! Number.  Five policies by name, and one with settings.

mod global_fifo;
mod home;
pub mod kernel;
mod kind;
mod near;
mod prev_cpu;
mod shared_queue;
mod work_steal;

pub use global_fifo::GlobalFifo;
pub use home::Home;
pub(crate) use home::{REFILL_PER_POLL, farness};
pub use kernel::Kernel;
pub use kind::{PolicyKind, UnknownPolicy};
pub use near::may;
pub use prev_cpu::PrevCpu;
pub use shared_queue::SharedQueue;
pub use work_steal::WorkSteal;

use crate::hot::MIGRATION_COST;
use crate::{Allowed, Enqueued, Machine, Placed, Pull, Sleeps, Turn, View, Wake, Whom};
use warmcore_types::{CpuId, Nanos};

/// Where a wakee goes, what an idle CPU takes, and who is woken when work piles up.
pub trait Policy {
    /// Where a wakee goes.
    fn wake(&self, machine: &Machine, view: &impl View, wake: &Wake) -> Placed;

    /// How many shared queues the host keeps. One per shard, unless the policy numbers them in its own way.
    fn queues(&self, machine: &Machine) -> usize {
        machine.shards()
    }

    /// The shared queue that a task enters when it is put on the run queue of `cpu`, *besides* waiting there. It leaves
    /// that queue when it runs, or goes elsewhere. `waiting_in` counts those entered, and [`Pull::Shard`] takes the first
    /// of them, off its CPU. `None`: it just waits where it was put.
    fn enters(&self, machine: &Machine, cpu: CpuId, allowed: Allowed, why: Enqueued) -> Option<usize> {
        let _ = (machine, cpu, allowed, why);
        None
    }

    /// What is learned of a task's sleep when it wakes. Called once per sleep.
    fn learn_sleep(&self, sleeps: &mut Sleeps, now: Nanos) {
        sleeps.wake(now);
    }

    /// What a migration counts as at least: it bounds for how long a CPU is taken to idle
    /// ([`AverageIdle`](kernel::AverageIdle)).
    fn migration_cost(&self) -> Nanos {
        MIGRATION_COST
    }

    /// What a CPU does that has nothing to do.
    fn pull(&self, machine: &Machine, view: &impl View, me: CpuId, now: Nanos) -> Pull;

    /// Which of the tasks that wait on a CPU a [`Pull::From`] takes, and [`balance`](Policy::balance).
    fn whom(&self) -> Whom {
        Whom::Last
    }

    /// From how many on that wait on a CPU, whose tasks run for so long at a time, help is worth its price.
    fn crowded(&self, average_poll: Nanos) -> u32 {
        let _ = average_poll;
        1
    }

    /// A task was put behind others on the CPU `at`, which runs: whom to kick, of those that sleep. The host
    /// asks only if nobody is looking for work already. And it asks again whenever somebody who looked has
    /// found something, wherever that was, and more wait, wherever they do: else the last who looks is content
    /// with what was its own, and CPUs sleep on beside a queue.
    fn help(&self, machine: &Machine, view: &impl View, at: CpuId, now: Nanos) -> Option<CpuId>;

    /// How many of those that wait on `other` are to come to `me`, where tasks wait as well. The host asks now and
    /// then, and does it only if the answer was the same for as long as a move costs. For hosts that don't count
    /// polls; one that does asks [`shares`](Self::shares) instead.
    fn balance(&self, machine: &Machine, view: &impl View, me: CpuId, other: CpuId) -> u32 {
        let _ = (machine, view, me, other);
        0
    }

    /// Whether a CPU that never idles takes tasks from one whose tasks get fewer polls: [`Shares`](crate::Shares)
    /// says how many.
    fn shares(&self) -> bool {
        false
    }

    /// In which order the next round goes, on a CPU whose tasks run for so long at a time.
    fn turn(&self, average_poll: Nanos) -> Turn {
        let _ = average_poll;
        Turn::Forth
    }

    /// How often in a row a task may run at once that the task before it woke, ahead of all who wait, on a CPU
    /// whose tasks run for so long at a time.
    fn chain_max(&self, average_poll: Nanos) -> u32 {
        let _ = average_poll;
        0
    }

    /// What a move costs a task that runs for so long at a time.
    fn refill(&self, average_poll: Nanos) -> Nanos {
        let _ = average_poll;
        Nanos(0)
    }
}
