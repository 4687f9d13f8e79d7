//! Wake: a task becomes runnable; the policy chooses its queue and the CPU to notify.
//!
//! The policy is asked at the moment of the wake. An idle CPU takes the time of an interrupt and of leaving its idle
//! state before it runs the wakee: on 2 × 56 cores in C1 the first instruction comes 1500 ns after the wake. Each CPU
//! that the policy examines costs the waker a read of one line at the distance of its LLC; several such reads overlap.
//! A timer wakes from the CPU on which its task blocked.
//!
//! # Source
//!
//! Linux `try_to_wake_up`; `place_entity` and `check_preempt_wakeup` of 6.5. `sched::Policy::cpu_to_notify` documents
//! when an idle CPU is notified.

use super::KernelScheduler;
use crate::policy::kernel::Flips;
use crate::policy::{Enqueued, KernelPolicy};
use crate::program::TaskId;
use crate::simulation::state::CpuState;
use crate::simulation::task::NONE;
use crate::simulation::{Simulation, event_class};
use crate::trace::Observer;
use warmcore_sched::{TargetQueue, Wake, WakeSource, Wakee};
use warmcore_types::{CpuId, Nanos};

impl<P: KernelPolicy, O: Observer> Simulation<KernelScheduler<P>, O> {
    /// Wakes a blocked or new task, by the task that runs on `cpu`. Returns the cost for the waker.
    pub(super) fn wake_by(&mut self, id: u32, cpu: u32, is_sync: bool) -> u64 {
        let waker = self.state.cpus[cpu as usize].current;
        let now = Nanos(self.state.now);
        let entity = self.state.tasks[id as usize].entity;
        self.state.task(waker).sched.flips.wakes(entity, now);
        let [waker_flips, wakee_flips] = [waker, id].map(|task| self.state.tasks[task as usize].sched.flips);
        let llc = self.llc_cpus(cpu);
        self.state.sched.wakes_wide = Flips::is_wide(&waker_flips, &wakee_flips, llc);
        self.state.cpus[cpu as usize].sched.sleeps_next = is_sync;
        let cost = self.wake(id, WakeSource::Cpu(CpuId(cpu)), 0);
        self.state.sched.wakes_wide = false;
        self.state.cpus[cpu as usize].sched.sleeps_next = false;
        cost
    }

    fn llc_cpus(&self, cpu: u32) -> u32 {
        self.state.machine.within(CpuId(cpu), warmcore_sched::Distance::Llc).len() as u32
    }

    /// Handles the expiry of a sleeping task's timer.
    pub(super) fn timer(&mut self, id: u32) {
        let prev_cpu = self.state.tasks[id as usize].prev_cpu;
        let at = &self.state.cpus[prev_cpu as usize];
        // The timer's interrupt ends the idle state before the wake begins.
        let delay = match at.state {
            CpuState::Idle => self.exit_latency(prev_cpu),
            _ => 0,
        };
        let cost = self.wake(id, WakeSource::Cpu(CpuId(prev_cpu)), delay);
        if self.is_running(prev_cpu) {
            // The interrupt delays the task that runs there.
            self.delay(prev_cpu, cost);
        }
    }

    /// Makes a blocked or new task runnable. `delay`: the time until the wake begins. Returns the cost for the waker.
    pub(super) fn wake(&mut self, id: u32, waker: WakeSource, delay: u64) -> u64 {
        let from = match waker {
            WakeSource::Cpu(cpu) => cpu.0,
            WakeSource::Outside(_) => NONE,
        };
        let now = Nanos(self.state.now);
        self.mark_woken(id, waker);
        let task = &mut self.state.tasks[id as usize];
        self.state.sched.policy.learn_sleep(&mut task.sched.sleeps, now);
        let prev_cpu = task.prev_cpu();
        let may_stay = prev_cpu.filter(|prev_cpu| self.state.machine.allows(task.allowed, *prev_cpu));
        let wakee = Wakee { prev_cpu: may_stay, allowed: task.allowed, ..Wakee::default() };
        self.state.sched.wakee_was_on = (task.sched.was_on != NONE).then_some(CpuId(task.sched.was_on));
        self.state.sched.cpus_examined.set(0);
        let wake = Wake { now, wakee, waker };
        let placed = self.state.sched.policy.wake(&self.state.machine, &self.state, &wake);
        let looks = u64::from(self.state.sched.cpus_examined.get());
        let TargetQueue::Cpu(to) = placed.to else {
            panic!("a policy of a kernel placed task {id} on no CPU: {placed:?}")
        };
        let is_new = prev_cpu.is_none();
        let why = match may_stay {
            _ if is_new => Enqueued::New,
            Some(prev_cpu) if prev_cpu == to => Enqueued::WokenOnPrevCpu,
            _ => Enqueued::WokenElsewhere,
        };
        let task = &mut self.state.tasks[id as usize];
        task.sched.was_on = task.prev_cpu;
        self.observer.queued(now, TaskId(id), placed.to);
        let mut queue = self.state.sched.policy.enters(&self.state.machine, to, wakee.allowed, why);
        if !is_new && from != to.0 && self.state.cpu(to).state != CpuState::Running {
            // A CPU that runs no task puts the wakee on its run queue itself once it is awake (`ttwu_queue_wakelist`),
            // so the wakee enters the shared queue only then.
            self.state.task(id).sched.enters = queue.take().map_or(NONE, |queue| queue as u32);
        }
        let entering = match queue {
            Some(queue) if from != NONE => self.lock_queue(from, queue),
            _ => 0,
        };
        if let Some(prev_cpu) = prev_cpu {
            let distance = self.state.machine.distance(prev_cpu, to);
            self.state.task(id).counts.wakes_by_distance[distance as usize] += 1;
        }
        self.enqueue_wakee(to.0, id, from != to.0, queue, delay);
        looks * self.times.look[warmcore_sched::Distance::Llc as usize] / 1000 + entering
    }

    /// Queues a woken task on a CPU. Kicks that CPU if it is idle, cuts its search short if it searches, or preempts
    /// its task if that is due. `is_remote`: the waker runs on another CPU, or on none.
    fn enqueue_wakee(&mut self, cpu: u32, id: u32, is_remote: bool, enters: Option<usize>, delay: u64) {
        self.state.migrate_vruntime(id, cpu, self.settings.sleeper_credit.0);
        self.state.enqueue(cpu, id, enters);
        match self.state.cpus[cpu as usize].state {
            CpuState::Idle => {
                self.record_idle_end(cpu);
                self.kick(cpu, delay, is_remote);
            }
            CpuState::Coming => {
                self.record_idle_end(cpu);
                if self.state.cpus[cpu as usize].sched.found.is_some() {
                    self.cut_search(cpu);
                }
            }
            CpuState::Running => self.maybe_preempt(cpu, id, is_remote),
        }
    }

    /// Preempts the current task for a wakee whose `vruntime` is smaller by more than the granularity.
    fn maybe_preempt(&mut self, cpu: u32, id: u32, is_remote: bool) {
        let Some(granularity) = self.settings.wake_granularity else { return };
        let at = &self.state.cpus[cpu as usize];
        let current = at.current;
        if current == NONE {
            return;
        }
        let runs =
            self.state.tasks[current as usize].sched.vruntime + (self.state.now - at.sched.vruntime_at);
        if self.state.tasks[id as usize].sched.vruntime.saturating_add(granularity.0) < runs {
            let delay = if is_remote { self.times.kick } else { 0 };
            self.state.cpus[cpu as usize].counts.ipis += u64::from(is_remote);
            self.push_event(self.state.now + delay, event_class::PREEMPT, cpu, current);
        }
    }

    /// Records how long a CPU was idle, when a task is woken on it while it is idle or searches. A CPU that was only
    /// notified to search still counts as idle.
    fn record_idle_end(&mut self, cpu: u32) {
        let now = Nanos(self.state.now);
        let at = &mut self.state.cpus[cpu as usize];
        let costliest = at.sched.newidle.iter().map(|cost| cost.most().0).sum();
        at.sched.average_idle.wake(now, Nanos(costliest), self.state.sched.policy.sysctl_migration_cost());
    }

    /// Makes an idle CPU leave its idle state.
    pub(super) fn kick(&mut self, cpu: u32, delay: u64, is_ipi: bool) {
        let at = &mut self.state.cpus[cpu as usize];
        debug_assert_eq!(at.state, CpuState::Idle, "only an idle CPU is kicked");
        at.sched.is_newly_idle = false;
        self.state.set_cpu_state(cpu, CpuState::Coming, false);
        self.leave_idle(cpu, delay, is_ipi);
    }

    /// Makes the idle CPU that the policy names search, unless a CPU searches already or no task that may move is
    /// queued. `at`: a CPU that may have more tasks than it will soon run.
    pub(super) fn notify_idle_cpu(&mut self, at: u32) {
        if self.state.sched.num_searching > 0 || self.state.sched.idle == 0 || self.state.sched.waiting == 0 {
            return;
        }
        let now = Nanos(self.state.now);
        if let Some(cpu) =
            self.state.sched.policy.cpu_to_notify(&self.state.machine, &self.state, CpuId(at), now)
        {
            self.kick(cpu.0, 0, true);
        }
    }
}
