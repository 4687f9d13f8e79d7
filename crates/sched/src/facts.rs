//! Facts and decisions: what goes into a policy, and what comes out.
//!
//! A *scheduler* is the program that runs tasks and asks a policy: the runtime, a simulation, or a scheduler in the
//! kernel. Its *CPUs* run the tasks: they are the workers of the runtime, or CPUs of the simulation or the kernel. They
//! are numbered from 0 without gaps; [`SchedDomains`](crate::SchedDomains) knows what they share.
//!
//! A policy reads a [`View`] and a [`Wake`] and returns a [`WakeDecision`] or a [`StealDecision`]. It keeps no state
//! between calls. The scheduler stores what must be remembered of a task, and passes it in again ([`Wakee`]).

use crate::ShardMask;
use crate::policy::{MIGRATION_COST_PER_POLL, WAKEUP_COST};
use warmcore_types::{CpuId, LlcId, Nanos, NodeId};

/// The state of the scheduler, as a policy sees it. The scheduler answers from its own records. An answer may be as old
/// as another CPU's write takes to arrive. Because of that a policy's decision may be slower for the task, but a
/// scheduler can always carry it out.
pub trait View {
    /// Whether the CPU has no task and is parked, or about to park.
    fn is_idle(&self, cpu: CpuId) -> bool;
    /// Whether the CPU takes no tasks, because it is offline or was told to stop. Such a CPU wakes no task, or passes
    /// the tasks that it wakes to another CPU without asking the policy. So a policy need not ask this of the
    /// waker's CPU.
    fn is_offline(&self, _cpu: CpuId) -> bool {
        false
    }
    /// Whether the scheduler has noticed that the task that runs on the CPU has run for longer than the scheduler's
    /// limit for one poll.
    fn is_stuck(&self, cpu: CpuId) -> bool;
    /// How many tasks wait on the CPU, the running one not counted. Tasks that may run on no other CPU don't count,
    /// because a CPU that tried to steal them would fail again and again.
    fn backlog(&self, cpu: CpuId) -> u32;
    /// Since when the CPU's backlog has not been empty. Meaningless while it is empty.
    fn backlog_since(&self, cpu: CpuId) -> Nanos;
    /// For how long the CPU has neither begun nor ended a poll, though tasks waited there when another CPU looked; 0: not known.
    /// It is in a long poll or in its driver, or its thread waits for a CPU of the machine. By default 0, for a scheduler that
    /// does not look.
    fn still_for(&self, _cpu: CpuId, _now: Nanos) -> Nanos {
        Nanos(0)
    }
    /// When the task was queued that `me` would steal from `cpu`. Policies with [`StealOrder::Oldest`] compare CPUs by it.
    /// By default [`backlog_since`](Self::backlog_since), for a scheduler that does not know.
    fn waits_since(&self, _me: CpuId, cpu: CpuId) -> Nanos {
        self.backlog_since(cpu)
    }
    /// The cost of moving the task that would be stolen from the CPU.
    fn migration_cost_at(&self, cpu: CpuId) -> Nanos;
    /// The same, for a CPU of another last-level cache, at least: see [`Wakee::far_cost`].
    fn far_cost_at(&self, cpu: CpuId) -> Nanos {
        self.migration_cost_at(cpu)
    }
    /// How long a poll takes on the CPU, on average. By default it follows from the cost of a move, for a scheduler that does
    /// not learn that.
    fn mean_poll_at(&self, cpu: CpuId) -> Nanos {
        Nanos(self.migration_cost_at(cpu).0 / MIGRATION_COST_PER_POLL)
    }
    /// The time from a kick of the parked CPU until it runs a task. By default 20 µs, for a scheduler that does not
    /// measure it.
    fn wakeup_cost(&self, _cpu: CpuId) -> Nanos {
        WAKEUP_COST
    }
    /// Until when the CPU is kept for a task that sleeps briefly (its hot window).
    fn hot_until(&self, cpu: CpuId) -> Nanos;
    /// How many tasks are in the queue with this number that CPUs of one LLC share: the queue of shard `queue`, unless
    /// the scheduler numbers its shared queues in another way. Backlogs of the CPUs are not included.
    fn shared_queue_len(&self, queue: usize) -> u32;
    /// Which CPUs of the shard are idle and online. A policy that looks for an idle CPU there asks only these whether they are.
    fn idle_in(&self, shard: usize) -> ShardMask;
    /// Whether other threads may need the CPUs that are idle here. By default true, for a scheduler that does not know.
    fn others_run(&self) -> bool {
        true
    }
    /// The CPUs of the shard whose backlog may not be empty. All by default, for a scheduler that does not know. If the scheduler
    /// keeps this in one word per shard, a stealing CPU need not read a cache line of every CPU.
    fn backlogs_in(&self, _shard: usize) -> ShardMask {
        ShardMask::MAX
    }
    /// Which CPUs of other last-level caches `me` examines when it looks for a task to steal. By default all.
    fn far_search(&self, _me: CpuId) -> FarSearch {
        FarSearch::All
    }
    /// Whether any task of `cpu`'s backlog may run on `me`. A scheduler that does not know returns true, and after a
    /// steal without a task waits before it asks the policy again.
    fn can_steal(&self, _me: CpuId, _cpu: CpuId) -> bool {
        true
    }
}

/// Which CPUs of other last-level caches a CPU examines that looks for a task to steal. It looks at all shared queues besides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FarSearch {
    /// Any.
    All,
    /// Those in a shard, since one of them kicked it, because tasks wait there.
    Shard(usize),
    /// None: it has examined them a short time ago.
    None,
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
    /// The CPU where the task ran last. `None`: it has never run, or may no longer run there.
    pub prev_cpu: Option<CpuId>,
    /// The cost of running it on another CPU, which must fetch the task's data line by line. See
    /// [`Policy::migration_cost`](crate::Policy::migration_cost).
    pub migration_cost: Nanos,
    /// The least that this cost is taken to be on a CPU of another last-level cache: what was learned within one says nothing
    /// of the lines that have to come from farther.
    pub far_cost: Nanos,
    /// By how much waking it on its previous CPU has cost more than waking it on its wakers' CPUs, since it last moved
    /// or was last woken by a task of its previous CPU. The scheduler stores it from [`WakeDecision::accrued_cost`].
    pub accrued_cost: Nanos,
    /// How long its first poll takes, at most, if it is new, a worker spawns it, and that is known; else 0.
    pub first_poll: Nanos,
    /// The CPU of its last waker. `None`: its last waker was on its previous CPU, or is not known.
    pub woken_from: Option<CpuId>,
    /// Where it may run.
    pub allowed: Allowed,
}

/// Where a wake comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WakeSource {
    /// A task or the driver on this CPU of the scheduler. So this CPU is not idle.
    Cpu(CpuId),
    /// A thread outside of the scheduler. If known: the CPU of the scheduler that stands for the CPU of the machine that the thread
    /// is on. A worker that is not pinned may run on another one.
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
    /// The CPU to kick for the wakee, if that CPU is parked.
    pub kick: Option<CpuId>,
    /// The wakee's accrued cost from now on.
    pub accrued_cost: Nanos,
    /// How many idle CPUs were passed over because they are kept for another task.
    pub hot_kept: u8,
    /// Whether the wakee goes to a CPU that is kept for another task.
    pub hot_broken: bool,
}

impl WakeDecision {
    /// The wakee enters the run queue of `cpu`, which is kicked if `kick` is true.
    pub const fn on(cpu: CpuId, kick: bool) -> Self {
        let kick = if kick { Some(cpu) } else { None };
        Self { to: TargetQueue::Cpu(cpu), kick, accrued_cost: Nanos(0), hot_kept: 0, hot_broken: false }
    }
}

/// What a CPU without tasks does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StealDecision {
    /// Take tasks from this shared queue: a shard's, unless the scheduler numbers its shared queues in another way.
    Shard(usize),
    /// Steal tasks from another CPU's backlog.
    From {
        /// The CPU to steal from.
        cpu: CpuId,
        /// How many tasks to steal at most: 1 or more.
        at_most: u32,
    },
    /// Sleep until this time or until kicked, and then search again. A task that waits now may be stolen at this time,
    /// if it still waits.
    Until(Nanos),
    /// Sleep until kicked: no task waits that this CPU may take.
    Nothing,
}

/// Which task of a backlog another CPU steals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StealOrder {
    /// The task that would run last. The tasks before it run as early as without the steal. If the queue is not in
    /// order of arrival, as in the kernel: the task that has not run for the longest time.
    Last,
    /// The task that has waited longest: first in, first out.
    Oldest,
}

/// In which order a CPU runs the tasks of its queue in one round. A round runs once each task that was queued when the
/// round began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueOrder {
    /// First in, first out.
    Fifo,
    /// The task that was queued last in the previous round runs first in this round, so that the order alternates. Each
    /// task waits two rounds at most, and the tasks that ran in the second half of the previous round find their data
    /// in the cache.
    Lifo,
}
