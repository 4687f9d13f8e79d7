//! Switch: which task has a CPU, and what happens when it gets or loses it.
//!
//! Model.   A CPU that is free takes from the queue of its shard, from its own, or what the policy lets it pull; else
//!          it sleeps. A search takes the time of the lines that it reads, and a task that comes from another
//!          queue the time of those that it brings; so what was seen may be gone when the CPU gets there. Threads of one core slow each other: when one begins or ends to be busy, what is left
//!          of its siblings' steps takes longer or shorter. A step that got longer keeps its event, which
//!          finds that it comes too early; only one that got shorter has a new one.
//! Number.  Two busy threads run at 620 thousandths each.
//! Writers. The world.
//! Source.  Linux `__schedule`, `pick_next_task_fair`, `newidle_balance`, `scheduler_tick`, `task_tick_mm_cid`; the
//!          runtime's `worker.rs` for shelves, rounds and `balance`.

use super::observe::{Left, Observer};
use super::scene::State;
use super::settings::Order;
use super::step::Goes;
use super::task::{Life, NONE};
use super::{Target, World, kind};
use crate::policy::{Enqueued, SimPolicy};
use crate::program::TaskId;
use crate::random::{Purpose, below};
use warmcore_sched::Pull;
use warmcore_types::{CpuId, Nanos};

/// Tries in a row to pull, each of which brings something unless a policy is wrong.
const PULLS_MAX: u8 = 4;

/// Pulls that came back with nothing are repeated after so long.
const LOOK_AGAIN: u64 = 1_000_000;

/// As many looks in a row have to say that a neighbour has more to do.
const LOPSIDED_LOOKS: u32 = 3;

/// Neighbours that are looked at: the nearest.
const NEIGHBOURS: usize = 8;

/// What a free CPU does next.
#[derive(Debug, Clone, Copy)]
enum Next {
    /// It runs that task, after so long.
    Runs(u32, u64),
    /// It searches: its arrival says what came of it.
    Searches,
    /// It sleeps.
    Idles,
}

impl Next {
    /// The same, after so much longer.
    fn after(self, ns: u64) -> Self {
        match self {
            Self::Runs(id, taking) => Self::Runs(id, taking + ns),
            other => other,
        }
    }
}

impl<P: SimPolicy, O: Observer> World<P, O> {
    /// A step has ended, if its event is right about that. Whether it was not.
    pub(super) fn step_ends(&mut self, cpu: u32) -> bool {
        let at = &mut self.scene.cpus[cpu as usize];
        if self.scene.now < at.ends_at {
            at.event_at = at.ends_at;
            let (at, target) = (at.ends_at, Target { index: cpu, generation: at.generation });
            self.events.push(Nanos(at), kind::STEP, target);
            return true;
        }
        at.left = 0;
        self.go_on(cpu, 0);
        false
    }

    /// A CPU is awake, or its search has ended.
    pub(super) fn arrives(&mut self, cpu: u32) {
        let mut entering = 0;
        while let Some((id, queue)) = self.scene.enters_late(cpu) {
            entering += self.queue_locked(cpu, queue);
            self.scene.enter(id, queue);
        }
        let next = match self.scene.cpus[cpu as usize].searches {
            true => self.searched(cpu),
            false => self.next(cpu, None, false),
        };
        let next = next.after(entering);
        self.begin(cpu, None, next);
        if matches!(next, Next::Runs(..)) && self.settings.help_at_once {
            // Who looked and found something sees to it that the next one looks: now that it looks no longer itself.
            self.help(cpu);
        }
    }

    /// The task that has the CPU goes on, and whoever comes after it, until something takes time.
    pub(super) fn go_on(&mut self, cpu: u32, mut overhead: u64) {
        loop {
            match self.advance(cpu, overhead) {
                Goes::Runs(ns) => return self.start(cpu, ns),
                Goes::Leaves(left) => {
                    let prev = self.put_off(cpu, left);
                    let next = self.next(cpu, Some(prev), left == Left::Waits);
                    let next = self.put_back(cpu, prev, next);
                    if left == Left::Ended {
                        self.bury(prev);
                    }
                    let cost = self.hand(cpu, Some((prev, left)), next);
                    if self.settings.help_at_once && self.scene.cpus[cpu as usize].queue.movable > 0 {
                        self.help(cpu);
                    }
                    match cost {
                        Some(cost) => overhead = cost,
                        None => return,
                    }
                }
            }
        }
    }

    /// The CPU begins with whom it found.
    fn begin(&mut self, cpu: u32, prev: Option<(u32, Left)>, next: Next) {
        if let Some(cost) = self.hand(cpu, prev, next) {
            self.go_on(cpu, cost);
        }
    }

    /// A task that lost the CPU to another one and waits is in a shared queue again: what entering it took.
    fn put_back(&mut self, cpu: u32, prev: u32, next: Next) -> Next {
        match self.scene.tasks[prev as usize].shelf {
            NONE => next,
            queue => next.after(self.queue_locked(cpu, queue as usize)),
        }
    }

    /// Gives the CPU to whom it found, or lets it search or sleep. What a switch costs, if the task is to go on with a
    /// new step.
    fn hand(&mut self, cpu: u32, prev: Option<(u32, Left)>, next: Next) -> Option<u64> {
        let now = Nanos(self.scene.now);
        let found = match next {
            Next::Runs(id, _) => Some(id),
            Next::Idles | Next::Searches => None,
        };
        if prev.is_some() || found.is_some() {
            let prev = prev.map(|(id, left)| (TaskId(id), left));
            self.observer.switch(now, CpuId(cpu), prev, found.map(TaskId));
        }
        let at = &mut self.scene.cpus[cpu as usize];
        let had = std::mem::replace(&mut at.had, NONE);
        let (id, taking) = match next {
            Next::Runs(id, taking) => (id, taking),
            Next::Searches => {
                // The place of one that has ended may be another's by then.
                at.had = prev.filter(|(_, left)| *left != Left::Ended).map_or(had, |(id, _)| id);
                return None;
            }
            Next::Idles => {
                self.idle(cpu);
                return None;
            }
        };
        let is_same = prev.map_or(had, |(id, _)| id) == id;
        let cost = match prev {
            _ if is_same => 0,
            Some((_, Left::Waits)) => self.times.involuntary,
            Some(_) => self.times.voluntary,
            // It has searched in between.
            None if at.is_newly_idle => self.times.voluntary,
            None => 0,
        };
        let cost = cost + taking;
        self.put_on(cpu, id, is_same);
        let left = std::mem::take(&mut self.scene.task(id).left);
        if left > 0 {
            self.start(cpu, left + cost);
            return None;
        }
        Some(cost)
    }

    /// A task gets a CPU. `is_same`: the one that it has just lost, which is no switch.
    fn put_on(&mut self, cpu: u32, id: u32, is_same: bool) {
        let now = self.scene.now;
        self.set_busy(cpu, true);
        self.scene.turn(cpu, State::Running, false);
        self.scene.set_current(cpu, id);
        let at = &mut self.scene.cpus[cpu as usize];
        (at.on_since, at.v_at) = (now, now);
        at.counts.switches += u64::from(!is_same);
        at.average_idle.pulled();
        if !at.ticks && self.times.period > 0 {
            at.ticks = true;
            self.push_tick(cpu);
        }
        let task = &mut self.scene.tasks[id as usize];
        task.life = Life::Running;
        let waited = now - task.queued_at;
        task.counts.wait_ns += waited;
        task.counts.wait_ns_max = task.counts.wait_ns_max.max(waited);
        task.counts.switches += u64::from(!is_same);
        let from = std::mem::replace(&mut task.home, cpu);
        let (process, user) = (task.process, task.user);
        if from != NONE && from != cpu {
            let distance = self.scene.machine.distance(CpuId(from), CpuId(cpu));
            let task = self.scene.task(id);
            task.counts.moves_by_distance[distance as usize] += 1;
            task.debt = Nanos(0);
        }
        if process != NONE {
            self.processes[process as usize].enter(user, CpuId(cpu), Nanos(now));
        }
    }

    /// A task loses its CPU: which.
    fn put_off(&mut self, cpu: u32, left: Left) -> u32 {
        let now = self.scene.now;
        self.count_run(cpu);
        let id = self.scene.set_current(cpu, NONE);
        let at = &mut self.scene.cpus[cpu as usize];
        let ran = now - at.on_since;
        let task = &mut self.scene.tasks[id as usize];
        task.counts.run_ns += ran;
        task.last_ran = now;
        task.burst += ran;
        let (process, user) = (task.process, task.user);
        if left != Left::Waits {
            let burst = std::mem::take(&mut task.burst);
            let average = |old: u64| if old == 0 { burst } else { old - old / 8 + burst / 8 };
            task.average_run = average(task.average_run);
            at.average_run = average(at.average_run);
            task.refill = self.policy.refill(Nanos(task.average_run));
        }
        match left {
            Left::Sleeps if self.settings.keep_idle_only && at.queue.len() > 0 => {
                task.sleeps.since = Nanos(now)
            }
            Left::Sleeps => at.hot_until = task.sleeps.sleep_on(Nanos(now), Nanos(at.hot_until)).0,
            Left::Waits => {
                task.life = Life::Queued;
                task.queued_at = now;
                let (machine, allowed) = (&self.scene.machine, task.allowed);
                let queue = self.policy.enters(machine, CpuId(cpu), allowed, Enqueued::PutBack);
                self.scene.enqueue(cpu, id, false, queue);
            }
            Left::Ended => {}
        }
        if process != NONE {
            self.processes[process as usize].leave(user, CpuId(cpu), Nanos(now));
        }
        id
    }

    /// What the current task ran since it was last counted is in its `v`.
    fn count_run(&mut self, cpu: u32) {
        let now = self.scene.now;
        let at = &mut self.scene.cpus[cpu as usize];
        let task = &mut self.scene.tasks[at.current as usize];
        task.v += now - at.v_at;
        at.v_at = now;
        let v = task.v;
        let least = at.queue.least_v(&self.scene.tasks).map_or(v, |least| least.min(v));
        at.v_min = at.v_min.max(least);
    }

    /// Who is to have the CPU next. `had`: who had it.
    fn next(&mut self, cpu: u32, had: Option<u32>, is_interrupted: bool) -> Next {
        if let Some(next) = self.own(cpu, had) {
            return next;
        }
        let (now, has_surplus) = (Nanos(self.scene.now), self.scene.has_surplus());
        let at = &mut self.scene.cpus[cpu as usize];
        at.is_newly_idle = had.is_some();
        if had.is_some() {
            at.average_idle.idle(now);
        }
        if is_interrupted || !has_surplus {
            // Everybody knows that nobody waits who may run elsewhere: there is nothing to ask.
            return Next::Idles;
        }
        at.counts.searches += u64::from(had.is_some());
        at.tries = 0;
        // Neither running nor asleep while it looks.
        self.scene.turn(cpu, State::Coming, false);
        self.search(cpu)
    }

    /// The first that waits here, or in the shard's queue and on no CPU. `had`: the task that had the CPU.
    fn own(&mut self, cpu: u32, had: Option<u32>) -> Option<Next> {
        let shard = self.scene.cpus[cpu as usize].shard as usize;
        let mut cost = 0;
        if self.waits_for_nobody(shard) {
            // One at a time: a share of several, as the runtime takes, spares it a lock.
            cost = self.unshelve(CpuId(cpu), shard).unwrap_or(0);
        }
        self.dequeue(cpu, cost, had)
    }

    /// Whether a task in the shard's queue waits on no CPU. Tasks that are entered besides wait in the order of their CPUs.
    fn waits_for_nobody(&self, shard: usize) -> bool {
        let first = self.scene.shelves[shard].first();
        first.is_some_and(|id| self.scene.tasks[id as usize].queued_on == NONE)
    }

    /// The next one that waits here, for `cost` and what leaving a shared queue costs if it is there as well. A task that
    /// keeps the CPU did not enter one.
    fn dequeue(&mut self, cpu: u32, cost: u64, had: Option<u32>) -> Option<Next> {
        let (scene, policy) = (&mut self.scene, &self.policy);
        let (id, shelf) =
            scene.dequeue(cpu, |average| policy.chain_max(average), |average| policy.turn(average))?;
        let left = shelf.filter(|_| had != Some(id));
        let leaving = left.map_or(0, |queue| self.queue_locked(cpu, queue));
        Some(Next::Runs(id, cost + leaving))
    }

    /// A CPU takes the lock of a shared queue: for how long.
    pub(super) fn queue_locked(&mut self, cpu: u32, queue: usize) -> u64 {
        let kernel = self.scene.cpus[cpu as usize].kernel;
        self.memory.write_line(kernel, self.queue_lines[queue], Nanos(self.scene.now)).0
    }

    /// The first in a shared queue waits here now. For how long that takes; `None`: there is none.
    fn unshelve(&mut self, me: CpuId, queue: usize) -> Option<u64> {
        let (id, on) = self.scene.unshelve(queue, me)?;
        if on.is_none() && self.settings.order == Order::Fair {
            // It was put on no CPU when it woke: its credit is limited now.
            self.scene.carry_v(id, me.0, self.settings.sleeper_credit.0);
        }
        let from = on.or(self.scene.tasks[id as usize].home());
        let cost = self.queue_locked(me.0, queue) + from.map_or(0, |from| self.taking(me, from));
        Some(cost + self.keep(me.0, id))
    }

    /// Takes a task from another CPU's queue. For how long that takes; `None`: there is none.
    fn take(&mut self, me: CpuId, from: CpuId) -> Option<u64> {
        let (id, left) = self.scene.take(me, from, self.policy.whom())?;
        let leaving = left.map_or(0, |queue| self.queue_locked(me.0, queue));
        Some(self.taking(me, from) + leaving + self.keep(me.0, id))
    }

    /// What it takes to have a task come from another CPU's queue.
    fn taking(&self, me: CpuId, from: CpuId) -> u64 {
        (self.times.take[self.scene.machine.distance(me, from) as usize] + 500) / 1000
    }

    /// A task that waited elsewhere waits here now. What entering a shared queue takes.
    fn keep(&mut self, cpu: u32, id: u32) -> u64 {
        self.scene.carry_v(id, cpu, u64::MAX);
        let allowed = self.scene.tasks[id as usize].allowed;
        let queue = self.policy.enters(&self.scene.machine, CpuId(cpu), allowed, Enqueued::Moved);
        self.scene.enqueue(cpu, id, false, queue);
        self.scene.cpus[cpu as usize].counts.pulled += 1;
        queue.map_or(0, |queue| self.queue_locked(cpu, queue))
    }

    /// Nothing waits here: the policy says from where to take, and finding that out takes time.
    fn search(&mut self, cpu: u32) -> Next {
        loop {
            let found = self.ask_pull(cpu);
            let now = self.scene.now;
            let takes: u64 = self.scene.cpus[cpu as usize].parts.iter().map(|part| u64::from(*part)).sum();
            if takes > 0 {
                self.set_busy(cpu, true);
                let at = &mut self.scene.cpus[cpu as usize];
                at.counts.busy_ns += now - at.state_since;
                (at.state_since, at.since, at.ends_at) = (now, now, now + takes);
                (at.searches, at.found) = (true, found);
                let target = Target { index: cpu, generation: at.generation };
                self.events.push(Nanos(now + takes), kind::ARRIVE, target);
                return Next::Searches;
            }
            if let Some(next) = self.carry_out(cpu, found) {
                return next;
            }
        }
    }

    /// A search has ended: a task that came here meanwhile is first, else what was found is taken.
    fn searched(&mut self, cpu: u32) -> Next {
        let now = self.scene.now;
        let at = &mut self.scene.cpus[cpu as usize];
        at.searches = false;
        at.counts.search_ns += now - at.state_since;
        at.state_since = now;
        let found = at.found;
        self.own(cpu, None).or_else(|| self.carry_out(cpu, found)).unwrap_or_else(|| self.search(cpu))
    }

    /// A task is woken on a CPU that searches: it looks no farther than it does now.
    pub(super) fn cut_search(&mut self, cpu: u32) {
        let now = self.scene.now;
        let at = &mut self.scene.cpus[cpu as usize];
        let mut end = at.since;
        for part in at.parts {
            end += u64::from(part);
            if end >= now {
                break;
            }
        }
        if end < at.ends_at {
            at.ends_at = end;
            at.generation = at.generation.wrapping_add(1);
            let target = Target { index: cpu, generation: at.generation };
            self.events.push(Nanos(end), kind::ARRIVE, target);
        }
    }

    /// Does what the policy says. `None`: what it said is not so any more, and it is to be asked again.
    fn carry_out(&mut self, cpu: u32, pull: Pull) -> Option<Next> {
        let (me, now) = (CpuId(cpu), self.scene.now);
        let cost = match pull {
            Pull::Shard(queue) => {
                let cost = self.unshelve(me, queue);
                let at = &mut self.scene.cpus[cpu as usize];
                let looked = u64::from(at.parts[0]);
                if let Some(cost) = cost {
                    at.newidle[0].searched(Nanos(looked + cost), Nanos(now));
                }
                cost
            }
            Pull::From { cpu: from, at_most } => {
                let costs = (0..at_most.clamp(1, 256)).map_while(|_| self.take(me, from));
                costs.reduce(|sum, cost| sum + cost)
            }
            Pull::Until(at) => {
                self.looks_at(cpu, at.0.max(now + 1));
                return Some(Next::Idles);
            }
            Pull::Nothing => return Some(Next::Idles),
        };
        if let Some(cost) = cost {
            return self.dequeue(cpu, cost, None).or(Some(Next::Idles));
        }
        let at = &mut self.scene.cpus[cpu as usize];
        at.tries += 1;
        if at.tries < PULLS_MAX {
            return None;
        }
        self.looks_at(cpu, now + LOOK_AGAIN);
        Some(Next::Idles)
    }

    /// Asks, and keeps what the search costs, in `Cpu::parts` by how far it looks.
    pub(super) fn ask_pull(&mut self, cpu: u32) -> Pull {
        let now = Nanos(self.scene.now);
        let scene = &self.scene;
        scene.begin_search(cpu);
        let pull = self.policy.pull(&scene.machine, scene, CpuId(cpu), now);
        let looked = scene.end_search();
        let (waiting, crowded) = (scene.waiting > 0, scene.crowded > 0);
        let others = scene.cpus.len() as u32 - 1;
        let kernel = scene.cpus[cpu as usize].kernel;
        let is_vain = waiting && !matches!(pull, Pull::From { .. } | Pull::Shard(_));
        let at = &mut self.scene.cpus[cpu as usize];
        at.parts = [0; 6];
        // The own one, looked at, is no other.
        let is_whole = looked[1..].iter().sum::<u32>() >= others;
        let is_gated = self.settings.order == Order::Fair && crowded && is_vain && !is_whole;
        at.counts.gated += u64::from(is_gated && at.is_newly_idle);
        for (distance, looks) in looked.into_iter().enumerate().filter(|(_, looks)| *looks > 0) {
            let cost = u64::from(looks) * self.times.search[distance] / 1000;
            at.parts[distance] = u32::try_from(cost).unwrap_or(u32::MAX);
            at.newidle[distance].searched(Nanos(cost), now);
            if !at.is_newly_idle {
                at.balanced_at[distance] = now.0;
                at.failed[distance] = if is_vain { at.failed[distance].saturating_add(1) } else { 0 };
            }
        }
        // Whether a shared queue is empty stands beside its lock.
        for queue in self.scene.asked.get_mut() {
            let line = self.queue_lines[*queue as usize];
            let took = self.memory.read_line(kernel, line, now);
            let at = &mut self.scene.cpus[cpu as usize];
            at.parts[0] = at.parts[0].saturating_add(u32::try_from(took.0).unwrap_or(u32::MAX));
        }
        let at = &mut self.scene.cpus[cpu as usize];
        at.newidle[0].searched(Nanos(at.parts[0].into()), now);
        pull
    }

    /// It is to look again then, if it sleeps until then.
    fn looks_at(&mut self, cpu: u32, at: u64) {
        self.scene.cpus[cpu as usize].ends_at = at;
        self.scene.cpus[cpu as usize].looks = true;
        // Counted as one who looks when it sleeps: see `idle`.
    }

    /// There is nothing to do.
    fn idle(&mut self, cpu: u32) {
        let now = self.scene.now;
        self.set_busy(cpu, false);
        let at = &mut self.scene.cpus[cpu as usize];
        let looks = std::mem::take(&mut at.looks);
        at.state_since = now;
        let look_at = at.ends_at;
        self.scene.turn(cpu, State::Idle, looks);
        if looks {
            let generation = self.scene.cpus[cpu as usize].generation;
            self.events.push(Nanos(look_at), kind::LOOK, Target { index: cpu, generation });
        }
    }

    /// A CPU begins to run something, or ends to: its core's other threads get slower or faster.
    fn set_busy(&mut self, cpu: u32, is_busy: bool) {
        let now = self.scene.now;
        let at = &mut self.scene.cpus[cpu as usize];
        if at.is_busy == is_busy {
            return;
        }
        at.is_busy = is_busy;
        if !is_busy {
            at.counts.busy_ns += now - at.state_since;
        }
        at.state_since = now;
        let (kernel, number) = (at.kernel, at.core);
        let core = &mut self.scene.cores[number as usize];
        if is_busy {
            if core.busy == 0 && self.times.exit(now - core.idle_since).1 {
                self.memory.slept(kernel, Nanos(now - core.idle_since));
            }
            core.busy += 1;
        } else {
            core.busy -= 1;
            core.idle_since = now;
        }
        let speed = self.times.speed[(core.busy.max(1) as usize - 1).min(7)];
        for i in 0..self.scene.core(number).len() {
            let sibling = self.scene.core(number)[i];
            if sibling == cpu {
                self.scene.cpus[cpu as usize].speed = speed;
            } else if self.scene.cpus[sibling as usize].is_busy {
                self.change_speed(sibling, speed);
            }
        }
    }

    pub(super) fn change_speed(&mut self, cpu: u32, speed: u32) {
        let at = &mut self.scene.cpus[cpu as usize];
        if at.speed == speed {
            return;
        }
        if at.searches {
            // It waits for lines, which come no sooner: its end stays, and so does where each part of it ends.
            at.speed = speed;
            return;
        }
        self.settle(cpu);
        let at = &mut self.scene.cpus[cpu as usize];
        at.speed = speed;
        self.expect_end(cpu);
    }

    /// What was done of the step until now is no longer left.
    fn settle(&mut self, cpu: u32) {
        let now = self.scene.now;
        let at = &mut self.scene.cpus[cpu as usize];
        let took = now.saturating_sub(at.since);
        let done = if at.speed == 1000 { took } else { took * u64::from(at.speed) / 1000 };
        at.left = at.left.saturating_sub(done);
        at.since = now.max(at.since);
    }

    /// When the step ends, at the speed of now.
    fn expect_end(&mut self, cpu: u32) {
        let at = &mut self.scene.cpus[cpu as usize];
        let takes = if at.speed == 1000 { at.left } else { (at.left * 1000).div_ceil(at.speed.into()) };
        at.ends_at = at.since + takes;
        if at.ends_at < at.event_at {
            at.generation = at.generation.wrapping_add(1);
            at.event_at = at.ends_at;
            let (at, target) = (at.ends_at, Target { index: cpu, generation: at.generation });
            self.events.push(Nanos(at), kind::STEP, target);
        }
    }

    /// A step begins, which takes so long at full speed.
    fn start(&mut self, cpu: u32, ns: u64) {
        let at = &mut self.scene.cpus[cpu as usize];
        (at.left, at.since, at.event_at) = (ns, self.scene.now, u64::MAX);
        self.expect_end(cpu);
    }

    fn push_tick(&mut self, cpu: u32) {
        let (now, period) = (self.scene.now, self.times.period);
        // All CPUs tick at the same moment, but for what the interrupt is late.
        let count = now / period + 1;
        let late = below(self.random.bits(cpu.into(), Purpose::Tick, count), self.times.tick_spread + 1);
        let target = Target { index: cpu, generation: 0 };
        self.events.push(Nanos(count * period + late), kind::TICK, target);
    }

    /// Whether nobody was there.
    pub(super) fn tick(&mut self, cpu: u32) -> bool {
        if !self.is_running(cpu) {
            self.scene.cpus[cpu as usize].ticks = false;
            return true;
        }
        self.push_tick(cpu);
        self.count_run(cpu);
        let now = self.scene.now;
        let at = &mut self.scene.cpus[cpu as usize];
        at.counts.ticks += 1;
        let (id, on_since) = (at.current, at.on_since);
        let mut cost = self.times.tick;
        let process = self.scene.tasks[id as usize].process;
        if process != NONE {
            let every = self.settings.compaction;
            let cpus = &self.scene.cpus;
            // The clock of a CPU that idles stands where it stood when it began to.
            let clock = |there: CpuId| {
                let at = &cpus[there.index()];
                Nanos(if at.is_busy { now } else { at.state_since })
            };
            if self.processes[process as usize].tick(Nanos(now), every, clock) {
                cost += self.times.scan * cpus.len() as u64;
            }
        }
        self.delay(cpu, cost);
        let at = &self.scene.cpus[cpu as usize];
        let movable = at.queue.movable > 0;
        let waits = at.queue.len() > 0 || self.waits_for_nobody(at.shard as usize);
        if movable {
            self.help(cpu);
        }
        let moving = self.balance(cpu);
        self.delay(cpu, moving);
        if waits && self.settings.slice.is_some_and(|slice| now - on_since >= slice.0) {
            self.preempt(cpu);
        }
        false
    }

    /// The current step takes so much longer: the CPU does something else meanwhile.
    pub(super) fn delay(&mut self, cpu: u32, ns: u64) {
        if ns > 0 {
            self.settle(cpu);
            self.scene.cpus[cpu as usize].left += ns;
            self.expect_end(cpu);
        }
    }

    /// Looks at a neighbour, by chance: where more wait there than here, look after look, some come. What that costs.
    fn balance(&mut self, cpu: u32) -> u64 {
        let me = CpuId(cpu);
        let near = self.scene.machine.cpus().saturating_sub(1).min(NEIGHBOURS);
        if near == 0 || self.scene.waiting == 0 {
            return 0;
        }
        let bits = self.random.bits(cpu.into(), Purpose::Neighbour, self.scene.now);
        let Some(other) = self.scene.machine.others(me).nth(below(bits, near as u64) as usize) else {
            return 0;
        };
        let mut cost = (self.times.search[self.scene.machine.distance(me, other) as usize] + 500) / 1000;
        let come = self.policy.balance(&self.scene.machine, &self.scene, me, other);
        let at = &mut self.scene.cpus[cpu as usize];
        at.lopsided = if come == 0 { 0 } else { at.lopsided + 1 };
        if at.lopsided < LOPSIDED_LOOKS {
            return cost;
        }
        at.lopsided = 0;
        cost += (0..come).map_while(|_| self.take(me, other)).sum::<u64>();
        cost
    }

    /// A wakee interrupts that task, if it still runs there. Whether it does not.
    pub(super) fn preempt_for(&mut self, cpu: u32, id: u32) -> bool {
        let at = &self.scene.cpus[cpu as usize];
        let runs = at.state == State::Running && at.current == id && at.queue.len() > 0;
        if runs {
            self.preempt(cpu);
        }
        !runs
    }

    /// The current task waits again, and whose turn it is runs.
    fn preempt(&mut self, cpu: u32) {
        self.settle(cpu);
        let left = std::mem::take(&mut self.scene.cpus[cpu as usize].left);
        let current = self.scene.cpus[cpu as usize].current;
        let task = self.scene.task(current);
        task.left = left;
        let prev = self.put_off(cpu, Left::Waits);
        let next = self.next(cpu, Some(prev), true);
        let next = self.put_back(cpu, prev, next);
        if !matches!(next, Next::Runs(id, _) if id == prev) {
            self.scene.task(prev).counts.preemptions += 1;
        }
        self.begin(cpu, Some((prev, Left::Waits)), next);
    }

    /// Whoever is gone leaves its process, and its place if it was forked.
    fn bury(&mut self, id: u32) {
        let task = &self.scene.tasks[id as usize];
        debug_assert_eq!(task.life, Life::Gone);
        let (process, user) = (task.process, task.user);
        if process != NONE {
            self.processes[process as usize].part(user);
        }
        if task.is_forked {
            let (code, counts) = (task.code as usize, task.counts);
            self.codes[code].past.add(&counts);
            self.codes[code].past_tasks += 1;
            if self.scene.tasks[id as usize].children == 0 {
                self.free.push(id);
            }
        }
    }
}
