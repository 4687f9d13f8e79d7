//! Switch: which task has a CPU, and what happens when it gets or loses it.
//!
//! Model.   A CPU that is free takes from the queue of its shard, from its own, or what the policy lets it pull; else
//!          it sleeps. Threads of one core slow each other: when one begins or ends to be busy, what is left
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
use crate::program::TaskId;
use crate::random::{Purpose, below};
use warmcore_place::{Policy, Pull};
use warmcore_terms::{CpuId, Nanos};

/// Tries in a row to pull, each of which brings something unless a policy is wrong.
const PULLS_MAX: usize = 4;

/// A pull that came back with nothing is repeated after so long.
const LOOK_AGAIN: u64 = 1_000_000;

/// As many looks in a row have to say that a neighbour has more to do.
const LOPSIDED_LOOKS: u32 = 3;

/// Neighbours that are looked at: the nearest.
const NEIGHBOURS: usize = 8;

impl<P: Policy, O: Observer> World<P, O> {
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

    /// A CPU is awake.
    pub(super) fn arrives(&mut self, cpu: u32) {
        let found = self.next(cpu, None, false);
        self.begin(cpu, None, found, 0);
        if found.is_some() && self.settings.help_at_once {
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
                    let found = self.next(cpu, Some(prev), left == Left::Waits);
                    if left == Left::Ended {
                        self.bury(prev);
                    }
                    let cost = self.hand(cpu, Some((prev, left)), found);
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
    fn begin(&mut self, cpu: u32, prev: Option<(u32, Left)>, found: Option<u32>, cost: u64) {
        if self.hand(cpu, prev, found).is_some() {
            self.go_on(cpu, cost);
        }
    }

    /// Gives the CPU to whom it found, or lets it sleep. What a switch costs, if the task is to go on with a new step.
    fn hand(&mut self, cpu: u32, prev: Option<(u32, Left)>, found: Option<u32>) -> Option<u64> {
        let now = Nanos(self.scene.now);
        let ids = (prev.map(|(id, left)| (TaskId(id), left)), found.map(TaskId));
        let is_same = prev.map(|(id, _)| id) == found;
        if prev.is_some() || found.is_some() {
            self.observer.switch(now, CpuId(cpu), ids.0, ids.1);
        }
        let Some(id) = found else {
            self.idle(cpu);
            return None;
        };
        let cost = match prev {
            _ if is_same => 0,
            Some((_, Left::Waits)) => self.times.involuntary,
            Some(_) => self.times.voluntary,
            None => 0,
        };
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
                self.scene.enqueue(cpu, id, false, None);
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
    fn next(&mut self, cpu: u32, had: Option<u32>, is_interrupted: bool) -> Option<u32> {
        let me = CpuId(cpu);
        let shard = self.scene.cpus[cpu as usize].shard as usize;
        if self.waits_for_nobody(shard) {
            // One at a time: a share of several, as the runtime takes, spares it a lock.
            self.unshelve(me, shard);
        }
        if let Some(id) = self.dequeue(cpu) {
            return Some(id);
        }
        if is_interrupted || self.scene.waiting == 0 {
            // Nobody waits anywhere who may run elsewhere: there is nothing to ask.
            self.scene.cpus[cpu as usize].is_newly_idle = had.is_some();
            return None;
        }
        self.pull(cpu, had.is_some())
    }

    /// Whether somebody in the shard's queue waits on no CPU.
    fn waits_for_nobody(&self, shard: usize) -> bool {
        let shelf = &self.scene.shards[shard].shelf;
        match self.settings.order {
            Order::Rounds => shelf.len > 0,
            // Those that are entered besides wait in the fair order of their CPUs.
            Order::Fair => shelf.first().is_some_and(|id| self.scene.tasks[id as usize].queued_on == NONE),
        }
    }

    fn dequeue(&mut self, cpu: u32) -> Option<u32> {
        let (scene, policy) = (&mut self.scene, &self.policy);
        scene.dequeue(cpu, |average| policy.chain_max(average), |average| policy.turn(average))
    }

    /// The first in a shard's queue waits here now. Whether there was one.
    fn unshelve(&mut self, me: CpuId, shard: usize) -> bool {
        let Some((id, was_nowhere)) = self.scene.unshelve(shard, me) else { return false };
        if was_nowhere && self.settings.order == Order::Fair {
            // It was put on no CPU when it woke: its credit is limited now.
            self.scene.carry_v(id, me.0, self.settings.sleeper_credit.0);
        }
        self.keep(me.0, id);
        true
    }

    /// A task that waited elsewhere waits here now.
    fn keep(&mut self, cpu: u32, id: u32) {
        self.scene.carry_v(id, cpu, u64::MAX);
        self.scene.enqueue(cpu, id, false, None);
        self.scene.cpus[cpu as usize].counts.pulled += 1;
    }

    /// Nothing waits here: what the policy lets it take from elsewhere.
    fn pull(&mut self, cpu: u32, is_newly_idle: bool) -> Option<u32> {
        let (me, now) = (CpuId(cpu), Nanos(self.scene.now));
        self.scene.cpus[cpu as usize].is_newly_idle = is_newly_idle;
        // Neither running nor asleep while it looks.
        self.scene.turn(cpu, State::Coming, false);
        for _ in 0..PULLS_MAX {
            let pull = self.ask_pull(cpu, now);
            match pull {
                Pull::Shard(shard) => {
                    if self.unshelve(me, shard) {
                        return self.dequeue(cpu);
                    }
                }
                Pull::From { cpu: from, at_most } => {
                    let came = (0..at_most.clamp(1, 256)).take_while(|_| match self.scene.take(me, from) {
                        Some(id) => {
                            self.keep(cpu, id);
                            true
                        }
                        None => false,
                    });
                    if came.count() > 0 {
                        return self.dequeue(cpu);
                    }
                    self.looks_at(cpu, now.0 + LOOK_AGAIN);
                    return None;
                }
                Pull::Until(at) => {
                    self.looks_at(cpu, at.0.max(now.0 + 1));
                    return None;
                }
                Pull::Nothing => return None,
            }
        }
        None
    }

    /// Asks, and keeps what the search has cost.
    fn ask_pull(&mut self, cpu: u32, now: Nanos) -> Pull {
        let scene = &self.scene;
        scene.searches.set(Some(cpu));
        scene.looked.iter().for_each(|looked| looked.set(0));
        let pull = self.policy.pull(&scene.machine, scene, CpuId(cpu), now);
        scene.searches.set(None);
        let looked = scene.looked.each_ref().map(std::cell::Cell::get);
        let waiting = scene.waiting > 0;
        let at = &mut self.scene.cpus[cpu as usize];
        for (distance, looks) in looked.into_iter().enumerate().filter(|(_, looks)| *looks > 0) {
            at.newidle[distance].searched(Nanos(u64::from(looks) * self.times.look[distance] / 1000), now);
            if !at.is_newly_idle {
                at.balanced_at[distance] = now.0;
                let is_vain = waiting && !matches!(pull, Pull::From { .. } | Pull::Shard(_));
                at.failed[distance] = if is_vain { at.failed[distance].saturating_add(1) } else { 0 };
            }
        }
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
        at.average_idle.idle(Nanos(now));
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

    fn change_speed(&mut self, cpu: u32, speed: u32) {
        if self.scene.cpus[cpu as usize].speed == speed {
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
        self.settle(cpu);
        self.scene.cpus[cpu as usize].left += cost;
        self.expect_end(cpu);
        let at = &self.scene.cpus[cpu as usize];
        let movable = at.queue.movable > 0;
        let waits = at.queue.len() > 0 || self.waits_for_nobody(at.shard as usize);
        if movable {
            self.help(cpu);
        }
        self.balance(cpu);
        if waits && self.settings.slice.is_some_and(|slice| now - on_since >= slice.0) {
            self.preempt(cpu);
        }
        false
    }

    /// Looks at a neighbour, by chance: where more wait there than here, look after look, some come.
    fn balance(&mut self, cpu: u32) {
        let me = CpuId(cpu);
        let near = self.scene.machine.cpus().saturating_sub(1).min(NEIGHBOURS);
        if near == 0 || self.scene.waiting == 0 {
            return;
        }
        let bits = self.random.bits(cpu.into(), Purpose::Neighbour, self.scene.now);
        let Some(other) = self.scene.machine.others(me).nth(below(bits, near as u64) as usize) else {
            return;
        };
        let come = self.policy.balance(&self.scene.machine, &self.scene, me, other);
        let at = &mut self.scene.cpus[cpu as usize];
        at.lopsided = if come == 0 { 0 } else { at.lopsided + 1 };
        if at.lopsided < LOPSIDED_LOOKS {
            return;
        }
        at.lopsided = 0;
        for _ in 0..come {
            match self.scene.take(me, other) {
                Some(id) => self.keep(cpu, id),
                None => break,
            }
        }
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
        let found = self.next(cpu, Some(prev), true);
        if found != Some(prev) {
            self.scene.task(prev).counts.preemptions += 1;
        }
        let cost = if found == Some(prev) { 0 } else { self.times.involuntary };
        self.begin(cpu, Some((prev, Left::Waits)), found, cost);
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
