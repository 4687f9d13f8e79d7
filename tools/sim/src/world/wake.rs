//! Wake: a task is to run; the policy says where, and somebody is kicked for it.
//!
//! Model.   The policy is asked at the moment of the wake. A CPU that idles takes the time of an interrupt and of
//!          leaving its idle state to be there. Each CPU that the policy looked at costs the waker a look. A timer
//!          wakes from the CPU where its task slept.
//! Number.  2 × 56 cores in C1: 1500 ns from a wake to the wakee's first instruction.
//! Writers. The world.
//! Source.  Linux `try_to_wake_up`; `place_entity` and `check_preempt_wakeup` of 6.5. When help is asked for:
//!          `place::Policy::help`.

use super::observe::Observer;
use super::scene::State;
use super::settings::Order;
use super::task::{For, Life, NONE};
use super::{Target, World, kind};
use crate::policy::kernel::Flips;
use crate::policy::{Enqueued, SimPolicy};
use crate::program::TaskId;
use warmcore_sched::{To, Wake, Wakee, Waker};
use warmcore_types::{CpuId, Nanos};

impl<P: SimPolicy, O: Observer> World<P, O> {
    /// Somebody wakes a task for its `wait`.
    pub(super) fn wake_for_wait(&mut self, id: u32, by: u32, is_sync: bool) -> u64 {
        match self.scene.tasks[id as usize].life {
            Life::Waiting(For::Wake) => self.wake_by(id, by, is_sync),
            Life::Gone => 0,
            _ => {
                let task = self.scene.task(id);
                task.permits = task.permits.saturating_add(1);
                0
            }
        }
    }

    /// The task that runs on a CPU wakes another, which sleeps. What that costs it.
    pub(super) fn wake_by(&mut self, id: u32, cpu: u32, is_sync: bool) -> u64 {
        let waker = self.scene.cpus[cpu as usize].current;
        let now = Nanos(self.scene.now);
        let entity = self.scene.tasks[id as usize].entity;
        self.scene.task(waker).flips.wakes(entity, now);
        let [by, whom] = [waker, id].map(|task| self.scene.tasks[task as usize].flips);
        let llc = self.llc_cpus(cpu);
        self.scene.wakes_wide = Flips::is_wide(&by, &whom, llc);
        self.scene.cpus[cpu as usize].sleeps_next = is_sync;
        let cost = self.wake(id, Waker::Cpu(CpuId(cpu)), true, 0);
        self.scene.wakes_wide = false;
        self.scene.cpus[cpu as usize].sleeps_next = false;
        cost
    }

    fn llc_cpus(&self, cpu: u32) -> u32 {
        self.scene.machine.within(CpuId(cpu), warmcore_sched::Distance::Llc).len() as u32
    }

    /// The time has come for which a task sleeps.
    pub(super) fn timer(&mut self, id: u32) {
        let home = self.scene.tasks[id as usize].home;
        let at = &self.scene.cpus[home as usize];
        // The interrupt ends the idle state before anything else happens.
        let delay = match at.state {
            State::Idle => self.times.exit(self.scene.now - at.state_since).0,
            _ => 0,
        };
        let cost = self.wake(id, Waker::Cpu(CpuId(home)), false, delay);
        if self.is_running(home) {
            // Whoever runs there was interrupted for it.
            self.delay(home, cost);
        }
    }

    /// A task that does not run is to run. `by_task`: a task wakes it, no timer. `delay`: until the wake is under way.
    /// What it costs the waker.
    pub(super) fn wake(&mut self, id: u32, waker: Waker, by_task: bool, delay: u64) -> u64 {
        let from = match waker {
            Waker::Cpu(cpu) => cpu.0,
            Waker::Outside(_) => NONE,
        };
        let now = Nanos(self.scene.now);
        self.observer.waking(now, waker, TaskId(id));
        let task = &mut self.scene.tasks[id as usize];
        debug_assert!(
            !matches!(task.life, Life::Queued | Life::Running | Life::Gone),
            "{:?} is woken",
            task.life
        );
        self.policy.learn_sleep(&mut task.sleeps, now);
        task.life = Life::Queued;
        task.queued_at = now.0;
        let home = task.home();
        let woken_from = (task.woken_from != NONE).then_some(CpuId(task.woken_from));
        let may_stay = home.filter(|home| self.scene.machine.allows(task.allowed, *home));
        let wakee =
            Wakee { home: may_stay, refill: task.refill, debt: task.debt, woken_from, allowed: task.allowed };
        self.scene.wakee_was_on = (task.was_on != NONE).then_some(CpuId(task.was_on));
        self.scene.looks.set(0);
        let wake = Wake { now, wakee, waker };
        let placed = self.policy.wake(&self.scene.machine, &self.scene, &wake);
        let looks = u64::from(self.scene.looks.get());
        let is_new = home.is_none();
        let why = match placed.to {
            _ if is_new => Enqueued::New,
            To::Cpu(cpu) if may_stay == Some(cpu) => Enqueued::WokenAtHome,
            _ => Enqueued::WokenElsewhere,
        };
        let task = &mut self.scene.tasks[id as usize];
        task.was_on = task.home;
        task.debt = placed.debt;
        task.woken_from = match waker {
            Waker::Cpu(cpu) | Waker::Outside(Some(cpu)) if home != Some(cpu) => cpu.0,
            _ => NONE,
        };
        task.counts.wakes += 1;
        self.observer.queued(now, TaskId(id), placed.to);
        let mut queue = match placed.to {
            To::Shard(shard) => Some(shard),
            To::Cpu(cpu) => self.policy.enters(&self.scene.machine, cpu, wakee.allowed, why),
        };
        if let To::Cpu(cpu) = placed.to
            && !is_new
            && from != cpu.0
            && self.scene.cpu(cpu).state != State::Running
        {
            // An idle CPU puts it on its run queue itself, when it is awake (`ttwu_queue_wakelist`).
            self.scene.task(id).enters = queue.take().map_or(NONE, |queue| queue as u32);
        }
        let entering = match queue {
            Some(queue) if from != NONE => self.queue_locked(from, queue),
            _ => 0,
        };
        match placed.to {
            To::Cpu(cpu) => {
                if let Some(home) = home {
                    let distance = self.scene.machine.distance(home, cpu);
                    self.scene.task(id).counts.wakes_by_distance[distance as usize] += 1;
                }
                self.put(cpu.0, id, from, by_task, queue, delay);
            }
            To::Shard(shard) => {
                self.scene.shelve(shard, id);
                if let Some(cpu) = placed.kick.filter(|cpu| self.scene.cpu(*cpu).state == State::Idle) {
                    self.ends_idling(cpu.0);
                    self.kick(cpu.0, delay, from != cpu.0);
                }
            }
        }
        looks * self.times.look[warmcore_sched::Distance::Llc as usize] / 1000 + entering
    }

    /// A wakee waits on a CPU.
    fn put(&mut self, cpu: u32, id: u32, from: u32, by_task: bool, enters: Option<usize>, delay: u64) {
        let (order, credit) = (self.settings.order, self.settings.sleeper_credit.0);
        if order == Order::Fair {
            self.scene.carry_v(id, cpu, credit);
        }
        let at = &self.scene.cpus[cpu as usize];
        let (state, average) = (at.state, Nanos(at.average_run));
        let is_next = order == Order::Rounds && by_task && from == cpu && self.policy.chain_max(average) > 0;
        self.scene.enqueue(cpu, id, is_next, enters);
        match state {
            State::Idle => {
                self.ends_idling(cpu);
                self.kick(cpu, delay, from != cpu);
            }
            State::Coming => {
                self.ends_idling(cpu);
                if self.scene.cpus[cpu as usize].searches {
                    self.cut_search(cpu);
                }
            }
            State::Running => {
                self.maybe_preempt(cpu, id, from != cpu);
                if self.settings.help_at_once {
                    self.help(cpu);
                }
            }
        }
    }

    /// A wakee that has run much less than who runs there interrupts him.
    fn maybe_preempt(&mut self, cpu: u32, id: u32, is_remote: bool) {
        let Some(granularity) = self.settings.wake_granularity.filter(|_| self.settings.order == Order::Fair)
        else {
            return;
        };
        let at = &self.scene.cpus[cpu as usize];
        let current = at.current;
        if current == NONE {
            return;
        }
        let runs = self.scene.tasks[current as usize].v + (self.scene.now - at.v_at);
        if self.scene.tasks[id as usize].v.saturating_add(granularity.0) < runs {
            let delay = if is_remote { self.times.kick } else { 0 };
            self.scene.cpus[cpu as usize].counts.ipis += u64::from(is_remote);
            let at = Nanos(self.scene.now + delay);
            self.events.push(at, kind::PREEMPT, Target { index: cpu, generation: current });
        }
    }

    /// A task is woken on a CPU that idles or searches: for how long it idled counts for its average. One that is
    /// called to look for work idles on.
    fn ends_idling(&mut self, cpu: u32) {
        let now = Nanos(self.scene.now);
        let at = &mut self.scene.cpus[cpu as usize];
        let costliest = at.newidle.iter().map(|cost| cost.most().0).sum();
        at.average_idle.wake(now, Nanos(costliest), self.policy.migration_cost());
    }

    /// Ends a CPU's sleep.
    pub(super) fn kick(&mut self, cpu: u32, delay: u64, is_ipi: bool) {
        let now = self.scene.now;
        let at = &mut self.scene.cpus[cpu as usize];
        debug_assert_eq!(at.state, State::Idle, "who is kicked sleeps");
        let (exit, _) = self.times.exit(now - at.state_since);
        // The delay of the own timer is the same way out.
        let takes = self.times.kick + exit + if is_ipi { delay } else { 0 };
        at.counts.ipis += u64::from(is_ipi);
        at.counts.idle_exits += 1;
        at.is_newly_idle = false;
        self.scene.turn(cpu, State::Coming, false);
        let generation = self.scene.cpus[cpu as usize].generation;
        self.events.push(Nanos(now + takes), kind::ARRIVE, Target { index: cpu, generation });
    }

    /// More wait at `at` than it will get to soon: somebody who sleeps is to look, unless somebody looks already.
    pub(super) fn help(&mut self, at: u32) {
        if self.scene.looking > 0 || self.scene.idle == 0 || self.scene.waiting == 0 {
            return;
        }
        let now = Nanos(self.scene.now);
        if let Some(cpu) = self.policy.help(&self.scene.machine, &self.scene, CpuId(at), now) {
            self.kick(cpu.0, 0, true);
        }
    }
}
