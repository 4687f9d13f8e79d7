//! Facts and decisions: what goes into a policy, and what comes out.
//!
//! A *scheduler* is the program that runs tasks and asks a policy: the runtime, a simulation, or a scheduler in the kernel.
//! Its *CPUs* are what it runs tasks on: workers of the runtime, CPUs of the simulation or the kernel. They are numbered
//! from 0 without gaps; [`SchedDomains`](crate::SchedDomains) knows what they share.
//!
//! A policy reads a [`View`] and a [`Wake`] and returns a [`WakeDecision`] or a [`StealDecision`]. It keeps nothing between
//! two calls: what must be remembered of a task, the scheduler stores and hands in again ([`Wakee`]).

use warmcore_types::{CpuId, LlcId, Nanos, NodeId};

/// The state of the scheduler, as a policy sees it. The scheduler answers from its own records. An answer may be outdated by
/// the time another CPU's write takes to arrive; a policy may decide worse because of that, but never wrongly.
pub trait View {
    /// Whether the CPU has no task and is parked, or about to park.
    fn is_idle(&self, cpu: CpuId) -> bool;
    /// Whether the CPU takes no tasks: it is offline, or was told to stop. Such a CPU wakes no task, or passes on itself the
    /// tasks that it wakes, so a policy does not ask this of a waker's own CPU.
    fn is_offline(&self, _cpu: CpuId) -> bool {
        false
    }
    /// Whether the task that runs on the CPU has run for longer than the scheduler calls long.
    fn is_stuck(&self, cpu: CpuId) -> bool;
    /// How many tasks wait on the CPU, the running one not counted. Tasks that may run nowhere else don't count: a CPU that
    /// came to steal them would leave with nothing, again and again.
    fn backlog(&self, cpu: CpuId) -> u32;
    /// Since when the CPU's backlog has not been empty. Meaningless while it is empty.
    fn backlog_since(&self, cpu: CpuId) -> Nanos;
    /// When the task was queued that `me` would steal from `cpu`. Policies with [`StealOrder::Oldest`] compare CPUs by it.
    /// By default [`backlog_since`](Self::backlog_since), for a scheduler that does not know.
    fn waits_since(&self, _me: CpuId, cpu: CpuId) -> Nanos {
        self.backlog_since(cpu)
    }
    /// What moving the task costs that would be stolen from the CPU.
    fn migration_cost_at(&self, cpu: CpuId) -> Nanos;
    /// Until when the CPU is kept for a task that sleeps briefly (its hot window).
    fn hot_until(&self, cpu: CpuId) -> Nanos;
    /// How many tasks are in a queue that CPUs of one LLC share, whether they wait on a CPU besides or not.
    fn shared_queue_len(&self, queue: usize) -> u32;
    /// How many CPUs of the shard are idle and online. At 0 a policy does not search the shard for an idle CPU.
    fn idle_in(&self, shard: usize) -> u32;
    /// Whether the backlog of any CPU of the shard is not empty. A scheduler that keeps this in one word per shard saves a
    /// stealing CPU the look at every CPU's own cache line.
    fn has_backlog_in(&self, _shard: usize) -> bool {
        true
    }
    /// Whether any task of `cpu`'s backlog may run on `me`. A scheduler that does not know answers yes, and does not ask
    /// again at once after it stole nothing.
    fn can_steal(&self, _me: CpuId, _cpu: CpuId) -> bool {
        true
    }
}

/// Where a task may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum Allowed {
    /// On every CPU.
    #[default]
    Anywhere,
    /// On this CPU alone.
    Cpu(CpuId),
    /// On the CPUs of one last-level cache.
    Llc(LlcId),
    /// On the CPUs of one NUMA node.
    Node(NodeId),
}

/// The task that is woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wakee {
    /// The CPU where it ran last. `None`: it has never run, or may no longer run there.
    pub prev_cpu: Option<CpuId>,
    /// What running it on another CPU costs: its data come along line by line. See
    /// [`Policy::migration_cost`](crate::Policy::migration_cost).
    pub migration_cost: Nanos,
    /// What waking it on its previous CPU has cost more than waking it on its wakers' CPUs would have, since it last moved
    /// or a task of that CPU woke it. The scheduler stores it from [`WakeDecision::accrued_cost`].
    pub accrued_cost: Nanos,
    /// The CPU from where it was woken the last time. `None`: that was its previous CPU, or is not known.
    pub woken_from: Option<CpuId>,
    /// Where it may run.
    pub allowed: Allowed,
}

/// Where a wake comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WakeSource {
    /// A task, or the driver, on this CPU of the scheduler, which therefore runs.
    Cpu(CpuId),
    /// A thread that is not the scheduler's. If known: the CPU of the scheduler that shares a CPU of the machine with it.
    Outside(Option<CpuId>),
}

/// One wake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wake {
    /// The scheduler's clock.
    pub now: Nanos,
    /// The task that is woken.
    pub wakee: Wakee,
    /// Where the wake comes from.
    pub waker: WakeSource,
}

/// The queue that a woken task enters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetQueue {
    /// The run queue of one CPU.
    Cpu(CpuId),
    /// The queue that the CPUs of one shard of an LLC share.
    Shard(usize),
}

/// The answer to a wake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WakeDecision {
    /// The queue that the wakee enters.
    pub to: TargetQueue,
    /// The CPU to kick for it, if that CPU sleeps.
    pub kick: Option<CpuId>,
    /// The wakee's accrued cost from now on.
    pub accrued_cost: Nanos,
    /// How many idle CPUs were passed over because they are kept for another task.
    pub hot_kept: u8,
    /// Whether the wakee goes to a CPU that is kept for another task.
    pub hot_broken: bool,
}

impl WakeDecision {
    /// To the run queue of one CPU, which is kicked if `kick`.
    pub const fn on(cpu: CpuId, kick: bool) -> Self {
        let kick = if kick { Some(cpu) } else { None };
        Self { to: TargetQueue::Cpu(cpu), kick, accrued_cost: Nanos(0), hot_kept: 0, hot_broken: false }
    }
}

/// What a CPU without tasks does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StealDecision {
    /// Take a task from this shared queue: a shard's, unless the scheduler numbers its shared queues in another way.
    Shard(usize),
    /// Steal tasks from another CPU's backlog.
    From {
        /// The CPU to steal from.
        cpu: CpuId,
        /// How many tasks to steal at most: 1 or more.
        at_most: u32,
    },
    /// Sleep until this time, and then search again: what waits now may be stolen then, if it still waits.
    Until(Nanos),
    /// Sleep until kicked: no task waits that this CPU may take.
    Nothing,
}

/// Which task of a backlog another CPU steals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StealOrder {
    /// The task that would run last: the others keep their places and their caches. Where queues have an order of their
    /// own, as in the kernel, the task that has not run for the longest time.
    Last,
    /// The task that has waited longest: first in, first out.
    Oldest,
}

/// In which order a CPU runs the tasks of its queue in one round. A round runs each task once that was queued when the round
/// began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueOrder {
    /// First in, first out.
    Fifo,
    /// The task that was queued last in the previous round runs first in this one, so that rounds go there and back. Each
    /// task waits two rounds at most, and the half that ran last finds its data in the cache.
    Lifo,
}
