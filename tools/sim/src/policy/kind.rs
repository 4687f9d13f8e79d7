//! SimPolicyKind: the policies of a simulated runtime by name: those of the product, and those of other runtimes.
//!
//! `PrevCpu`: a new task goes to the least loaded of the CPUs on which it may run; of several, to the nearest to its
//! waker. While it may run there, it is woken there, however many tasks wait, and is never stolen. So a CPU may be idle
//! while its neighbour has a queue.
//!
//! `GlobalFifo`: a woken task goes to the end of one queue, here that of shard 0, and one parked CPU is kicked, if
//! there is one. A free CPU takes the first task. No CPU stays idle while a task is in that queue, but a task returns
//! to its previous CPU only by chance: on n CPUs about (n − 1)/n of all polls run on another CPU than the task's poll
//! before. A task that may not run everywhere goes to the least loaded CPU of those that it may run on. On Warmcore's
//! scheduler core, a worker that wakes a task which it polled last queues it at home without asking the policy, and takes
//! a share of the queue at once. So tasks wait in the workers' run queues too; an idle worker steals half of one, and the
//! last worker that searched and found a task notifies the next.
//!
//! `WorkSteal`: a task that another task or a timer wakes goes to the waker's CPU if it may run there. A wakee of
//! another task may run next there, at most 3 such polls in a row while other tasks wait there. A wakee that does not
//! go to its waker's CPU goes to one injection queue for all CPUs, as in `GlobalFifo`. An idle CPU takes from that
//! queue, or else steals half of the backlog of another CPU, rounded up; it tries the CPUs in order from a random one.
//! When a task must wait and no CPU is searching, one parked CPU is kicked, if there is one. At most half of the CPUs
//! search. On Warmcore's scheduler core, a task that yields waits until the driver was polled, which happens when nothing
//! is queued and nothing was found elsewhere, and the slot is not stolen from; a busy worker looks at the injection
//! queue about every 200 µs. Not as in tokio: the parked worker that is kicked is the first one, not the one that parked
//! last; of the stolen tasks the first one runs first; no queue overflows into the injection queue.
//!
//! # Source
//! `PrevCpu`: seastar, glommio, a current-thread runtime per core. `GlobalFifo`: smol's executor; its
//! runners have local queues, from which other runners steal half, and a runner that found a task notifies the next one.
//! `WorkSteal`: tokio 1.54, multi-thread scheduler: `next_task`, `steal_work`, the LIFO slot and its limit.

use std::fmt;
use warmcore_sched::policy::near::{first_idle, least_loaded, may, nearest_allowed, origin, shared};
use warmcore_sched::{
    Allowed, Policy, PolicyKind, QueueOrder, SchedDomains, StealDecision, StealOrder, View, Wake,
    WakeDecision, WakeSource,
};
use warmcore_types::{CpuId, Nanos};

/// The shard whose queue all CPUs share, under `GlobalFifo` and `WorkSteal`.
const THE_QUEUE: usize = 0;

/// Under `WorkSteal`: polls between two polls of the driver, and between two looks at the injection queue until the
/// average poll is known.
const WORK_STEAL_INTERVAL: u32 = 61;

/// Under `WorkSteal`: the time between two looks at the injection queue, of 2 to 127 polls.
const INJECT_EVERY: Nanos = Nanos(200_000);

/// The policies by name. [`Kernel`](super::Kernel) is not among them: it has settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SimPolicyKind {
    /// A policy of the product.
    Product(PolicyKind),
    /// A task runs on its first CPU while it may run there, as in a runtime per core.
    PrevCpu,
    /// One queue for all CPUs, as in smol.
    GlobalFifo,
    /// A task that a CPU wakes goes to that CPU if it may run there, and idle CPUs steal half of a queue, as in tokio.
    WorkSteal,
}

impl SimPolicyKind {
    /// All of them, the product's first.
    pub const fn all() -> [Self; 5] {
        let [home, shared_queue] = PolicyKind::all();
        [Self::Product(home), Self::Product(shared_queue), Self::PrevCpu, Self::GlobalFifo, Self::WorkSteal]
    }

    /// The name that a command line takes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Product(kind) => kind.name(),
            Self::PrevCpu => "prev-cpu",
            Self::GlobalFifo => "global-fifo",
            Self::WorkSteal => "work-steal",
        }
    }

    /// The policy of that name, if there is one.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::all().into_iter().find(|kind| kind.name() == name)
    }

    fn product(self) -> Option<PolicyKind> {
        if let Self::Product(kind) = self { Some(kind) } else { None }
    }
}

impl fmt::Display for SimPolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Policy for SimPolicyKind {
    fn wake(&self, machine: &SchedDomains, view: &impl View, wake: &Wake) -> WakeDecision {
        let allowed = wake.wakee.allowed;
        let origin = || origin(machine, view, wake.waker);
        match (self, wake.waker) {
            (Self::Product(kind), _) => kind.wake(machine, view, wake),
            (Self::PrevCpu, _) => {
                let cpu = match wake.wakee.prev_cpu {
                    Some(prev_cpu) => nearest_allowed(machine, view, prev_cpu, allowed),
                    None => least_loaded(machine, view, origin(), allowed),
                };
                WakeDecision::on(cpu, view.is_idle(cpu))
            }
            (Self::WorkSteal, WakeSource::Cpu(waker)) if may(machine, allowed, waker) => {
                WakeDecision::on(waker, false)
            }
            (Self::GlobalFifo | Self::WorkSteal, _) => {
                let near = origin();
                let placed = shared(machine, view, near, allowed, Some(THE_QUEUE));
                if allowed != Allowed::Anywhere {
                    return placed;
                }
                WakeDecision { kick: first_idle(machine, view, near), ..placed }
            }
        }
    }

    fn steal(&self, machine: &SchedDomains, view: &impl View, me: CpuId, now: Nanos) -> StealDecision {
        let queue = match self {
            Self::Product(kind) => return kind.steal(machine, view, me, now),
            // This policy puts no task into a shared queue, but takes one that is there anyway.
            Self::PrevCpu => machine.shard_of(me),
            Self::GlobalFifo | Self::WorkSteal => THE_QUEUE,
        };
        if view.shared_queue_len(queue) > 0 {
            return StealDecision::Shard(queue);
        }
        if *self == Self::PrevCpu {
            return StealDecision::Nothing;
        }
        let all = machine.cpus() as u64;
        let begin = scatter(now.0 ^ u64::from(me.0) << 32) % all;
        let victims = (0..all).map(|i| CpuId(((begin + i) % all) as u32)).filter(|cpu| *cpu != me);
        let mut waiting = victims.map(|cpu| (cpu, view.backlog(cpu)));
        match waiting.find(|(cpu, waiting)| *waiting > 0 && view.can_steal(me, *cpu)) {
            Some((cpu, waiting)) => StealDecision::From { cpu, at_most: waiting.div_ceil(2) },
            None => StealDecision::Nothing,
        }
    }

    fn steal_order(&self) -> StealOrder {
        match self {
            // A stealing CPU takes from the head of the other CPU's queue.
            Self::GlobalFifo | Self::WorkSteal => StealOrder::Oldest,
            _ => self.product().map_or(StealOrder::Last, |kind| kind.steal_order()),
        }
    }

    fn cpu_to_notify(
        &self,
        machine: &SchedDomains,
        view: &impl View,
        at: CpuId,
        now: Nanos,
    ) -> Option<CpuId> {
        match self {
            Self::Product(kind) => kind.cpu_to_notify(machine, view, at, now),
            Self::PrevCpu => None,
            Self::GlobalFifo | Self::WorkSteal => first_idle(machine, view, at),
        }
    }

    fn takes_over(
        &self,
        machine: &SchedDomains,
        view: &impl View,
        me: CpuId,
        cpu: CpuId,
        now: Nanos,
    ) -> bool {
        self.product().is_some_and(|kind| kind.takes_over(machine, view, me, cpu, now))
    }

    fn shares(&self) -> bool {
        self.product().is_some_and(|kind| kind.shares())
    }

    fn notify_threshold(&self, average_poll: Nanos, migration_cost: Nanos, spare: Option<Nanos>) -> u32 {
        self.product().map_or(1, |kind| kind.notify_threshold(average_poll, migration_cost, spare))
    }

    fn queue_order(&self, migration_cost: Nanos) -> QueueOrder {
        self.product().map_or(QueueOrder::Fifo, |kind| kind.queue_order(migration_cost))
    }

    fn max_lifo_polls(&self, average_poll: Nanos, migration_cost: Nanos) -> u32 {
        match self {
            Self::WorkSteal => 3,
            _ => self.product().map_or(0, |kind| kind.max_lifo_polls(average_poll, migration_cost)),
        }
    }

    fn migration_cost(&self, average_poll: Nanos) -> Nanos {
        self.product().map_or(Nanos(0), |kind| kind.migration_cost(average_poll))
    }

    fn closes_lifo_slot(&self) -> bool {
        *self == Self::WorkSteal
    }

    fn steals_lifo_slot(&self) -> bool {
        match self {
            Self::WorkSteal => false,
            _ => self.product().is_none_or(|kind| kind.steals_lifo_slot()),
        }
    }

    fn serves_alone(&self, poll: Nanos, waiting: u32, wakeup_cost: Nanos) -> bool {
        self.product().is_some_and(|kind| kind.serves_alone(poll, waiting, wakeup_cost))
    }

    fn notifies(&self, waiting: u32, threshold: u32, in_slot: bool) -> bool {
        match self {
            Self::WorkSteal => !in_slot,
            Self::Product(kind) => kind.notifies(waiting, threshold, in_slot),
            _ => waiting == threshold,
        }
    }

    fn defers_yields(&self) -> bool {
        match self {
            Self::WorkSteal => true,
            _ => self.product().is_some_and(|kind| kind.defers_yields()),
        }
    }

    fn inject_interval(&self, average_poll: Nanos) -> u32 {
        match self {
            Self::WorkSteal => match INJECT_EVERY.0.checked_div(average_poll.0) {
                Some(polls) => polls.clamp(2, 127) as u32,
                None => WORK_STEAL_INTERVAL,
            },
            _ => self.product().map_or(1, |kind| kind.inject_interval(average_poll)),
        }
    }

    fn inject_queue_of(&self, machine: &SchedDomains, cpu: CpuId) -> usize {
        match self {
            Self::GlobalFifo | Self::WorkSteal => THE_QUEUE,
            Self::Product(kind) => kind.inject_queue_of(machine, cpu),
            Self::PrevCpu => machine.shard_of(cpu),
        }
    }

    fn event_interval(&self) -> Option<u32> {
        match self {
            Self::WorkSteal => Some(WORK_STEAL_INTERVAL),
            _ => self.product().and_then(|kind| kind.event_interval()),
        }
    }

    fn max_searching(&self, workers: u32) -> u32 {
        match self {
            Self::GlobalFifo | Self::WorkSteal => workers.div_ceil(2),
            _ => self.product().map_or(workers, |kind| kind.max_searching(workers)),
        }
    }
}

/// A number that looks random: the finaliser of splitmix64.
fn scatter(seed: u64) -> u64 {
    let x = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
