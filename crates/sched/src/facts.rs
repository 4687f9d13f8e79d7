//! Facts and decisions: all that goes into a policy, and all that comes out.
//!
//! Model.   A CPU is what a host runs tasks on: a worker of the runtime, a CPU of the simulator or the kernel.
//!          It is numbered from 0 without gaps; [`SchedDomains`](crate::SchedDomains) knows where each one is.
//! Number.  A wake is 64 bytes of facts, a decision 24.

use warmcore_types::{CpuId, LlcId, Nanos, NodeId};

/// What is so at this moment. The host answers from its own records; an answer may be late by as much as the
/// host's caches are, and no decision may be wrong because of it, only worse.
pub trait View {
    /// Nothing to do there, and it sleeps or is about to.
    fn is_idle(&self, cpu: CpuId) -> bool;
    /// It takes no work: gone offline, or told to stop. It wakes nobody then, or hands on by itself what it
    /// wakes: a policy does not ask this of a waker's own CPU.
    fn is_offline(&self, _cpu: CpuId) -> bool {
        false
    }
    /// The task that runs there has run for longer than the host calls long.
    fn is_stuck(&self, cpu: CpuId) -> bool;
    /// How many tasks wait there, behind the one that runs or, if the CPU sleeps, for it to be there. Tasks
    /// that may run nowhere else don't count: whoever came for them would go away with nothing, again and again.
    fn backlog(&self, cpu: CpuId) -> u32;
    /// Since when somebody has always been waiting there. Meaningless when nobody is.
    fn backlog_since(&self, cpu: CpuId) -> Nanos;
    /// When the task began to wait that a pull from `cpu` for `me` takes. Asked by policies that take
    /// [`StealOrder::Oldest`], to compare CPUs; a host that does not know says since when any task has been waiting there.
    fn waits_since(&self, _me: CpuId, cpu: CpuId) -> Nanos {
        self.backlog_since(cpu)
    }
    /// What moving the task costs that a pull from there would take.
    fn migration_cost_at(&self, cpu: CpuId) -> Nanos;
    /// Until when the CPU is kept for a task that sleeps shortly.
    fn hot_until(&self, cpu: CpuId) -> Nanos;
    /// How many tasks wait in a queue that CPUs of one LLC share: those that belong to none of them yet, and those that
    /// the host enters there besides.
    fn shared_queue_len(&self, queue: usize) -> u32;
    /// How many CPUs of the shard are idle: those that are not offline. If this says 0, nobody is looked for
    /// there.
    fn idle_in(&self, shard: usize) -> u32;
    /// Whether anybody waits on any CPU of the shard. A host that knows, from a word per shard, spares who
    /// pulls a look at every CPU's own line.
    fn has_backlog_in(&self, _shard: usize) -> bool {
        true
    }
    /// Whether any of those that wait on `cpu` may run on `me`. A host that doesn't know says yes, and doesn't
    /// ask again at once when it was sent there for nothing.
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
    /// Where it ran last. `None`: it is new, or may no longer run there.
    pub prev_cpu: Option<CpuId>,
    /// What it costs to run elsewhere: its data come along line by line.
    pub migration_cost: Nanos,
    /// What waking it at home has cost more than waking it at its waker's would have, since it last moved or
    /// was woken at home.
    pub accrued_cost: Nanos,
    /// From where it was woken last time, if from elsewhere than its home.
    pub woken_from: Option<CpuId>,
    /// Where it may run.
    pub allowed: Allowed,
}

/// Who wakes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WakeSource {
    /// A task, or the driver, on this CPU of the host, which therefore runs.
    Cpu(CpuId),
    /// A thread that is none of the host's; it runs on the same CPU as this one of the host's does when it
    /// runs, where that is known.
    Outside(Option<CpuId>),
}

/// One wake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wake {
    /// The host's clock.
    pub now: Nanos,
    /// Who is woken.
    pub wakee: Wakee,
    /// Who wakes.
    pub waker: WakeSource,
}

/// Where a wakee goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetQueue {
    /// The queue of one CPU.
    Cpu(CpuId),
    /// The queue shared by the CPUs of one shard of an LLC.
    Shard(usize),
}

/// The answer to a wake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WakeDecision {
    /// Where the wakee goes.
    pub to: TargetQueue,
    /// Who is to be woken for it, if it sleeps.
    pub kick: Option<CpuId>,
    /// The wakee's accrued cost from now on.
    pub accrued_cost: Nanos,
    /// How many idle CPUs were passed over because they are kept for somebody else.
    pub hot_kept: u8,
    /// The wakee goes to a CPU that is kept for somebody else.
    pub hot_broken: bool,
}

impl WakeDecision {
    /// To one CPU, which is kicked if `kick`.
    pub const fn on(cpu: CpuId, kick: bool) -> Self {
        let kick = if kick { Some(cpu) } else { None };
        Self { to: TargetQueue::Cpu(cpu), kick, accrued_cost: Nanos(0), hot_kept: 0, hot_broken: false }
    }
}

/// What a CPU does that has nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StealDecision {
    /// Take from a shared queue: that of a shard, unless the host numbers its shared queues in another way.
    Shard(usize),
    /// Take up to so many that wait on another CPU.
    From {
        /// That CPU.
        cpu: CpuId,
        /// At least one.
        at_most: u32,
    },
    /// Nothing yet. What waits may be taken at this time, if it still waits then.
    Until(Nanos),
    /// Nothing waits anywhere that it may take.
    Nothing,
}

/// Which of the tasks that wait on a CPU another CPU takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StealOrder {
    /// The task that would run last there: the others keep their places and their caches. Where tasks wait in an
    /// order of their own, as in the kernel, the task that has not run for the longest time.
    Last,
    /// The task that has waited longest: first in, first out.
    Oldest,
}

/// In which order a CPU goes through the tasks that wait there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueOrder {
    /// First come, first served.
    Fifo,
    /// Who came last in the last round comes first in this one: the way there and back. Everybody waits at most
    /// two rounds, and the half that ran last finds its data in the cache.
    Lifo,
}
