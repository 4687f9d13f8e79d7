//! Probe: counts of a simulation what `scx_probe` counts of a kernel, by the same definitions.
//!
//! A [`SchedProbe`] is an observer. `scx/probe/README.md` defines each count: a wait begins when a task becomes runnable and ends when a
//! CPU begins to run the task, a CPU idles from the switch away from its last task to the switch to its next one, and a wake
//! compares the CPU of the first run after a sleep with that of the run before. So one table can have a kernel and its imitation
//! side by side.
//!
//! # Differences to the kernel's probe
//! - A timer's task waits from the moment at which its timer expires. A kernel wakes it in the interrupt, which is the same moment;
//!   a worker of a runtime wakes it when it serves its driver.
//! - A CPU that searches for tasks idles, also right after its last task, where a kernel's probe still counts it as busy.
//! - `queued` does not ask which CPUs a task may run on: with tasks that are restricted it is an upper bound.
//! - A task that two CPUs steal one after the other before it runs has one migration.

use crate::program::TaskId;
use crate::trace::{Observer, SwitchReason};
use warmcore_sched::{TargetQueue, WakeSource};
use warmcore_topo::Topology;
use warmcore_types::{CpuId, LlcId, Nanos};

/// Buckets of the histogram. Bucket 0 ends at 1024 ns, each other one at twice the one before, the last has no end.
pub const BUCKETS: usize = 24;

/// Runs by where they were: on the same CPU, on another CPU of the same last-level cache, in another one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WakesByPlace {
    /// On the same CPU.
    pub same: u64,
    /// On another CPU of the same last-level cache.
    pub llc: u64,
    /// In another last-level cache.
    pub other: u64,
}

/// What a probe counted. Times are in ns.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SchedCounts {
    /// First runs after a sleep, against the CPU of the task's last run.
    pub wakes: WakesByPlace,
    /// Starts of waits after a sleep, and of new tasks.
    pub wakeups: u64,
    /// Of these those after which the task ran on a CPU that was busy at the wake though a CPU idled then.
    pub queued: u64,
    /// Of `queued` those that waited longer than 50 µs, and than 100 µs.
    pub over_50us: u64,
    /// As above.
    pub over_100us: u64,
    /// The longest wait of `queued`.
    pub longest_ns: u64,
    /// Moves of runnable tasks to another CPU, at their wake or later.
    pub migrations: u64,
    /// Of these those to another last-level cache.
    pub migrations_other_llc: u64,
    /// Switches to a task from another one or from idle.
    pub switches: u64,
    /// Waits after a sleep and of new tasks, by their length.
    pub histogram: [u64; BUCKETS],
    /// For how long the probe counted.
    pub observed_ns: u64,
    /// The integral of the number of idle CPUs.
    pub idle_ns: u64,
    /// The integral of the number of waiting tasks.
    pub waiting_ns: u64,
    /// The integral of the smaller of the two.
    pub idle_while_waiting_ns: u64,
}

/// A wait of a task.
#[derive(Debug)]
struct Wait {
    since: u64,
    /// The CPUs that were busy at a wake, one bit each. `None`: the wait is after a preemption or a yield.
    busy: Option<Box<[u64]>>,
    /// Whether a CPU idled at the wake.
    has_idle: bool,
}

/// What is known of a task.
#[derive(Debug, Default)]
struct Task {
    /// The CPU of its last run.
    ran_on: Option<CpuId>,
    /// The CPU that it runs on, or in whose queue it is.
    on: Option<CpuId>,
    wait: Option<Wait>,
}

/// An observer that counts.
#[derive(Debug)]
pub struct SchedProbe {
    counts: SchedCounts,
    /// By CPU, in the topology's order.
    llcs: Vec<LlcId>,
    /// The busy CPUs, one bit each.
    busy: Box<[u64]>,
    idle: u64,
    waiting: u64,
    /// Until when the integrals are.
    until: u64,
    tasks: Vec<Task>,
}

impl SchedProbe {
    /// A probe of an idle machine.
    pub fn new(topology: &Topology) -> Self {
        let llcs: Vec<LlcId> = topology.cpus.iter().map(|cpu| cpu.llc).collect();
        Self {
            counts: SchedCounts::default(),
            busy: vec![0; llcs.len().div_ceil(64)].into_boxed_slice(),
            idle: llcs.len() as u64,
            llcs,
            waiting: 0,
            until: 0,
            tasks: Vec::new(),
        }
    }

    /// The counts at the end of the simulation.
    pub fn counts_at(mut self, end: Nanos) -> SchedCounts {
        self.integrate(end);
        self.counts
    }

    fn integrate(&mut self, now: Nanos) {
        let passed = now.0.saturating_sub(self.until);
        self.counts.observed_ns += passed;
        self.counts.idle_ns += passed * self.idle;
        self.counts.waiting_ns += passed * self.waiting;
        self.counts.idle_while_waiting_ns += passed * self.idle.min(self.waiting);
        self.until = self.until.max(now.0);
    }

    fn task(&mut self, task: TaskId) -> &mut Task {
        let index = task.0 as usize;
        if index >= self.tasks.len() {
            self.tasks.resize_with(index + 1, Task::default);
        }
        &mut self.tasks[index]
    }

    /// A task becomes runnable by a wake, unless it is already.
    fn begin_wait(&mut self, now: Nanos, task: TaskId) {
        if self.task(task).wait.is_some() {
            return;
        }
        self.integrate(now);
        self.counts.wakeups += 1;
        self.waiting += 1;
        let (busy, has_idle) = (Some(self.busy.clone()), self.idle > 0);
        self.task(task).wait = Some(Wait { since: now.0, busy, has_idle });
    }

    /// A runnable task is on this CPU from now on.
    fn moves_to(&mut self, task: TaskId, cpu: CpuId) {
        let from = self.task(task).on.replace(cpu);
        if let Some(from) = from.filter(|from| *from != cpu) {
            self.counts.migrations += 1;
            self.counts.migrations_other_llc += u64::from(self.llcs[from.index()] != self.llcs[cpu.index()]);
        }
    }

    fn set_busy(&mut self, cpu: CpuId, is_busy: bool) {
        let (word, bit) = (cpu.index() / 64, 1 << (cpu.index() % 64));
        let was_busy = self.busy[word] & bit != 0;
        if is_busy && !was_busy {
            self.busy[word] |= bit;
            self.idle -= 1;
        } else if was_busy && !is_busy {
            self.busy[word] &= !bit;
            self.idle += 1;
        }
    }

    fn begin_run(&mut self, now: Nanos, cpu: CpuId, task: TaskId) {
        self.counts.switches += 1;
        self.moves_to(task, cpu);
        let before = self.task(task).ran_on.replace(cpu);
        let Some(Wait { since, busy, has_idle }) = self.task(task).wait.take() else { return };
        self.waiting -= 1;
        let Some(busy) = busy else { return };
        let waited = now.0 - since;
        let bucket = (64 - (waited >> 10).leading_zeros() as usize).min(BUCKETS - 1);
        self.counts.histogram[bucket] += 1;
        if has_idle && busy[cpu.index() / 64] >> (cpu.index() % 64) & 1 == 1 {
            self.counts.queued += 1;
            self.counts.over_50us += u64::from(waited > 50_000);
            self.counts.over_100us += u64::from(waited > 100_000);
            self.counts.longest_ns = self.counts.longest_ns.max(waited);
        }
        if let Some(before) = before {
            let wakes = &mut self.counts.wakes;
            match self.llcs[before.index()] == self.llcs[cpu.index()] {
                _ if before == cpu => wakes.same += 1,
                true => wakes.llc += 1,
                false => wakes.other += 1,
            }
        }
    }
}

impl Observer for SchedProbe {
    fn due(&mut self, now: Nanos, task: TaskId) {
        self.begin_wait(now, task);
    }

    fn waking(&mut self, now: Nanos, _waker: WakeSource, wakee: TaskId) {
        self.begin_wait(now, wakee);
    }

    fn queued(&mut self, _now: Nanos, task: TaskId, at: TargetQueue) {
        // A task in a shared queue moves when a CPU takes it.
        if let TargetQueue::Cpu(cpu) = at {
            self.moves_to(task, cpu);
        }
    }

    fn switch(&mut self, now: Nanos, cpu: CpuId, prev: Option<(TaskId, SwitchReason)>, next: Option<TaskId>) {
        if prev.is_some_and(|(prev, reason)| reason == SwitchReason::Runnable && Some(prev) == next) {
            return; // It keeps its CPU.
        }
        self.integrate(now);
        match prev {
            Some((task, SwitchReason::Runnable)) => {
                self.waiting += 1;
                self.task(task).wait = Some(Wait { since: now.0, busy: None, has_idle: false });
            }
            // Another task may get its index.
            Some((task, SwitchReason::Exited)) => *self.task(task) = Task::default(),
            Some((_, SwitchReason::Blocked)) | None => {}
        }
        self.set_busy(cpu, next.is_some());
        if let Some(task) = next {
            self.begin_run(now, cpu, task);
        }
    }
}

#[cfg(test)]
mod tests;
