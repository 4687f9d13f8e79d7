//! Model: imagined CPUs that do what a policy says, in imagined time.
//!
//! Model.   A host as small as can be: a queue per CPU and per shard, kicks that take 10 µs, polls that take
//!          their time and, after a move, the migration cost besides. It asks for help as the trait says: when a task is put
//!          behind others, after each poll while others wait, when somebody who looked has found
//!          something, when a poll gets long.
//! Number.  384 CPUs, 50 ms: about 100 000 events.

use super::whole;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use warmcore_sched::{
    Allowed, Home, Policy, SchedDomains, StealDecision, StealOrder, TargetQueue, View, Wake, WakeSource,
    Wakee,
};
use warmcore_topo::Topology;
use warmcore_types::{CpuId, Nanos};

/// What a kick takes.
pub const WAKEUP_COST: u64 = 10_000;
/// A poll is called long after so much.
pub const LONG: u64 = 1_000_000;

/// What a task does after each poll.
#[derive(Debug, Clone, Copy)]
pub enum Then {
    /// Goes to the end of its CPU's queue.
    Yield,
    /// Sleeps for so long, and is woken by its CPU's timer.
    Sleep(u64, u64),
    /// Wakes that task, and sleeps until it is woken.
    Pass(usize),
    /// Wakes any of the first so many tasks that sleeps, and sleeps until it is woken.
    Message(usize),
    /// Spawns so many that run once, and sleeps.
    Fork(u32, u64, u64),
    End,
}

#[derive(Debug, Clone)]
pub struct Task {
    pub poll: (u64, u64),
    pub then: Then,
    pub allowed: Allowed,
    prev_cpu: Option<CpuId>,
    average_poll: u64,
    accrued_cost: Nanos,
    woken_from: Option<CpuId>,
    asleep: bool,
    waits: bool,
    queued_at: u64,
    last_moved_from: Option<CpuId>,
}

impl Task {
    pub fn new(poll: (u64, u64), then: Then) -> Self {
        Self {
            poll,
            then,
            allowed: Allowed::Anywhere,
            prev_cpu: None,
            average_poll: 0,
            accrued_cost: Nanos(0),
            woken_from: None,
            asleep: true,
            waits: false,
            queued_at: 0,
            last_moved_from: None,
        }
    }

    /// It may not run everywhere.
    pub fn kept(self, allowed: Allowed) -> Self {
        Self { allowed, ..self }
    }

    /// It waits until somebody wakes it.
    pub fn waiting(self) -> Self {
        Self { waits: true, ..self }
    }

    /// It has been there before.
    pub fn at_home(self, cpu: u32) -> Self {
        Self { prev_cpu: Some(CpuId(cpu)), average_poll: (self.poll.0 + self.poll.1) / 2, ..self }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    Running {
        task: usize,
        since: u64,
    },
    /// Asleep; `look`: until a time at which it looks again.
    Idle {
        since: u64,
        look: bool,
    },
    /// Kicked.
    Coming {
        since: u64,
    },
    Offline,
}

struct Cpu {
    state: State,
    queue: VecDeque<usize>,
    since: u64,
    generation: u32,
    picks: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    PollEnds(CpuId, u32),
    Timer(usize),
    Arrives(CpuId, u32),
    Looks(CpuId, u32),
    IsLong(CpuId, u32),
}

/// What came of it.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    pub wakes: u64,
    pub polls: u64,
    /// Polls elsewhere than the last one.
    pub moves: u64,
    /// Moves back to where the task had just come from.
    pub moves_back: u64,
    pub kicks: u64,
    /// Kicks and looks that found nothing to do.
    pub in_vain: u64,
    /// The longest that a CPU stayed idle while the same task waited that might have run there.
    pub idle_beside_work: u64,
    /// The longest that any task waited.
    pub waited: u64,
    /// How many tasks still waited at the end, while a CPU slept that nothing would wake.
    pub stranded: usize,
    /// How often a CPU that slept until a time found work then.
    pub looked_and_found: u64,
}

pub struct Model<P> {
    pub machine: SchedDomains,
    policy: P,
    cpus: Vec<Cpu>,
    shards: Vec<VecDeque<usize>>,
    pub tasks: Vec<Task>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    now: u64,
    sequence: u64,
    random: u64,
    /// One kick in so many gets lost; 0: none.
    pub lose_one_kick_in: u64,
    pub outcome: Outcome,
}

impl<P> View for Model<P> {
    fn is_idle(&self, cpu: CpuId) -> bool {
        matches!(self.cpus[cpu.index()].state, State::Idle { .. })
    }
    fn is_offline(&self, cpu: CpuId) -> bool {
        self.cpus[cpu.index()].state == State::Offline
    }
    fn is_stuck(&self, cpu: CpuId) -> bool {
        matches!(self.cpus[cpu.index()].state, State::Running { since, .. } if self.now >= since + LONG)
    }
    fn backlog(&self, cpu: CpuId) -> u32 {
        let movable = |task: &&usize| !matches!(self.tasks[**task].allowed, Allowed::Cpu(_));
        self.cpus[cpu.index()].queue.iter().filter(movable).count() as u32
    }
    fn backlog_since(&self, cpu: CpuId) -> Nanos {
        Nanos(self.cpus[cpu.index()].since)
    }
    fn waits_since(&self, me: CpuId, cpu: CpuId) -> Nanos {
        let mine = |task: &&usize| self.machine.allows(self.tasks[**task].allowed, me);
        let oldest = self.cpus[cpu.index()].queue.iter().find(mine).expect("asked where a task waits");
        Nanos(self.tasks[*oldest].queued_at)
    }
    fn migration_cost_at(&self, cpu: CpuId) -> Nanos {
        self.cpus[cpu.index()].queue.front().map_or(Nanos(0), |task| self.migration_cost(*task))
    }
    fn hot_until(&self, _cpu: CpuId) -> Nanos {
        Nanos(0)
    }
    fn shared_queue_len(&self, shard: usize) -> u32 {
        self.shards[shard].len() as u32
    }
    fn idle_in(&self, shard: usize) -> u32 {
        self.machine.cpus_of(shard).iter().filter(|cpu| self.is_idle(**cpu)).count() as u32
    }
    fn can_steal(&self, me: CpuId, cpu: CpuId) -> bool {
        self.cpus[cpu.index()].queue.iter().any(|task| self.machine.allows(self.tasks[*task].allowed, me))
    }
}

impl<P> Model<P> {
    /// What a move of the task costs, whatever the policy thinks.
    fn migration_cost(&self, task: usize) -> Nanos {
        Home::DEFAULT.migration_cost(Nanos(self.tasks[task].average_poll))
    }
}

impl<P: Policy> Model<P> {
    pub fn new(topology: &Topology, policy: P, offline: &[u32], tasks: Vec<Task>) -> Self {
        let machine = whole(topology);
        let state = |cpu| match offline.contains(&cpu) {
            true => State::Offline,
            false => State::Idle { since: 0, look: false },
        };
        let cpu = |cpu| Cpu { state: state(cpu), queue: VecDeque::new(), since: 0, generation: 0, picks: 0 };
        Self {
            cpus: (0..machine.cpus() as u32).map(cpu).collect(),
            shards: vec![VecDeque::new(); machine.shards()],
            machine,
            policy,
            tasks,
            events: BinaryHeap::new(),
            now: 1,
            sequence: 0,
            random: 0x5eed,
            lose_one_kick_in: 0,
            outcome: Outcome::default(),
        }
    }

    /// All tasks are spawned on one CPU, or from outside; then time passes.
    /// The counts are of what happens after `from`, when things have settled.
    pub fn run(mut self, spawned_on: Option<CpuId>, from: u64, until: u64) -> Outcome {
        if let Some(cpu) = spawned_on {
            self.come(cpu);
        }
        for task in 0..self.tasks.len() {
            if self.tasks[task].waits {
                continue;
            }
            self.wake(task, spawned_on.map_or(WakeSource::Outside(None), WakeSource::Cpu));
        }
        while let Some(Reverse((at, _, event))) = self.events.pop()
            && at <= until
        {
            if self.now < from && at >= from {
                self.outcome = Outcome::default();
            }
            self.now = at;
            self.happen(event);
        }
        self.now = until;
        let waits: Vec<usize> = self.all_waiting().collect();
        waits.iter().for_each(|task| self.measure(*task));
        let sleeps = self.cpus.iter().any(|cpu| matches!(cpu.state, State::Idle { look: false, .. }));
        self.outcome.stranded = if sleeps { waits.len() } else { 0 };
        self.outcome
    }

    fn all_waiting(&self) -> impl Iterator<Item = usize> {
        let queues = self.cpus.iter().map(|cpu| &cpu.queue).chain(&self.shards);
        queues.flatten().copied().filter(|task| self.tasks[*task].allowed == Allowed::Anywhere)
    }

    fn happen(&mut self, event: Event) {
        let is_now = |model: &Self, cpu: CpuId, generation| model.cpus[cpu.index()].generation == generation;
        match event {
            Event::PollEnds(cpu, generation) if is_now(self, cpu, generation) => self.poll_ends(cpu),
            Event::Timer(task) => {
                let prev_cpu = self.tasks[task].prev_cpu.expect("it ran");
                match self.cpus[prev_cpu.index()].state {
                    State::Offline => self.wake(task, WakeSource::Outside(None)),
                    // Its own timer wakes it.
                    State::Idle { .. } => {
                        self.come(prev_cpu);
                        self.wake(task, WakeSource::Cpu(prev_cpu));
                    }
                    _ => self.wake(task, WakeSource::Cpu(prev_cpu)),
                }
            }
            Event::Arrives(cpu, generation) | Event::Looks(cpu, generation)
                if is_now(self, cpu, generation) =>
            {
                let found = self.next(cpu);
                self.outcome.in_vain += u64::from(!found);
                self.outcome.looked_and_found += u64::from(found && matches!(event, Event::Looks(..)));
            }
            Event::IsLong(cpu, generation) if is_now(self, cpu, generation) && self.backlog(cpu) > 0 => {
                self.help(cpu);
            }
            _ => {}
        }
    }

    fn poll_ends(&mut self, cpu: CpuId) {
        let State::Running { task, .. } = self.cpus[cpu.index()].state else { panic!("nothing ran") };
        let then = self.tasks[task].then;
        self.tasks[task].asleep = !matches!(then, Then::Yield | Then::End);
        match then {
            Then::Yield => self.put(cpu, task),
            Then::Sleep(least, most) => {
                let at = self.now + self.between(least, most);
                self.at(at, Event::Timer(task));
            }
            Then::Pass(partner) => self.wake(partner, WakeSource::Cpu(cpu)),
            Then::Message(of) => {
                let begin = self.between(0, of as u64) as usize;
                let other = (0..of)
                    .map(|i| (begin + i) % of)
                    .find(|other| *other != task && self.tasks[*other].asleep);
                self.wake(other.unwrap_or(task), WakeSource::Cpu(cpu));
            }
            Then::Fork(children, least, most) => {
                for _ in 0..children {
                    self.tasks.push(Task::new((least, most), Then::End));
                    self.wake(self.tasks.len() - 1, WakeSource::Cpu(cpu));
                }
                let at = self.now + 20 * most;
                self.at(at, Event::Timer(task));
            }
            Then::End => {}
        }
        if self.backlog(cpu) > 0 {
            self.help(cpu);
        }
        self.next(cpu);
    }

    fn wake(&mut self, task: usize, waker: WakeSource) {
        if !std::mem::replace(&mut self.tasks[task].asleep, false) {
            return;
        }
        self.outcome.wakes += 1;
        let Task { prev_cpu, accrued_cost, woken_from, allowed, .. } = self.tasks[task];
        let migration_cost = self.policy.migration_cost(Nanos(self.tasks[task].average_poll));
        let wakee = Wakee { prev_cpu, migration_cost, accrued_cost, woken_from, allowed };
        let placed = self.policy.wake(&self.machine, &*self, &Wake { now: Nanos(self.now), wakee, waker });
        self.tasks[task].accrued_cost = placed.accrued_cost;
        self.tasks[task].woken_from = match waker {
            WakeSource::Cpu(cpu) | WakeSource::Outside(Some(cpu)) if prev_cpu != Some(cpu) => Some(cpu),
            _ => None,
        };
        match placed.to {
            TargetQueue::Cpu(cpu) => {
                assert!(!self.is_offline(cpu), "{placed:?}");
                self.put(cpu, task);
                if self.is_idle(cpu) {
                    self.kick(cpu);
                } else if matches!(self.cpus[cpu.index()].state, State::Running { .. }) {
                    self.help(cpu);
                }
            }
            TargetQueue::Shard(shard) => {
                self.tasks[task].queued_at = self.now;
                self.shards[shard].push_back(task);
                if let Some(cpu) = placed.kick {
                    self.kick(cpu);
                }
            }
        }
    }

    fn put(&mut self, cpu: CpuId, task: usize) {
        self.tasks[task].queued_at = self.now;
        let cpu = &mut self.cpus[cpu.index()];
        if cpu.queue.is_empty() {
            cpu.since = self.now;
        }
        cpu.queue.push_back(task);
    }

    /// Asks for help, unless somebody is looking.
    fn help(&mut self, at: CpuId) {
        let looks = |cpu: &Cpu| {
            matches!(cpu.state, State::Coming { .. }) || matches!(cpu.state, State::Idle { look: true, .. })
        };
        if self.cpus.iter().any(looks) {
            return;
        }
        if let Some(cpu) = self.policy.cpu_to_notify(&self.machine, &*self, at, Nanos(self.now)) {
            self.kick(cpu);
        }
    }

    /// Who looked has found something, wherever: if more wait, wherever, another is to look.
    fn hand_off(&mut self, at: CpuId) {
        if self.shards.iter().chain(self.cpus.iter().map(|cpu| &cpu.queue)).any(|queue| !queue.is_empty()) {
            self.help(at);
        }
    }

    fn kick(&mut self, cpu: CpuId) {
        assert!(self.is_idle(cpu), "who is kicked sleeps");
        self.outcome.kicks += 1;
        if self.lose_one_kick_in == 0 || self.between(0, self.lose_one_kick_in) > 0 {
            self.come(cpu);
        }
    }

    fn come(&mut self, cpu: CpuId) {
        let State::Idle { since, .. } = self.cpus[cpu.index()].state else { panic!("{cpu} does not sleep") };
        let generation = self.turn(cpu, State::Coming { since });
        self.at(self.now + WAKEUP_COST, Event::Arrives(cpu, generation));
    }

    fn turn(&mut self, cpu: CpuId, state: State) -> u32 {
        let cpu = &mut self.cpus[cpu.index()];
        cpu.state = state;
        cpu.generation += 1;
        cpu.generation
    }

    /// Finds something to do.
    fn next(&mut self, cpu: CpuId) -> bool {
        let now = self.now;
        let was = self.cpus[cpu.index()].state;
        let idle_since = match was {
            State::Idle { since, .. } | State::Coming { since } => since,
            _ => now,
        };
        self.cpus[cpu.index()].picks += 1;
        let own = self.machine.shard_of(cpu);
        let task = if self.cpus[cpu.index()].picks.is_multiple_of(61) && !self.shards[own].is_empty() {
            self.shards[own].pop_front()
        } else {
            self.cpus[cpu.index()].queue.pop_front()
        };
        if let Some(task) = task {
            self.begin(cpu, task, idle_since);
            if idle_since < now {
                self.hand_off(cpu);
            }
            return true;
        }
        // Neither running nor asleep while it looks.
        self.cpus[cpu.index()].state = State::Coming { since: idle_since };
        let mut look = None;
        match self.policy.steal(&self.machine, &*self, cpu, Nanos(now)) {
            StealDecision::Shard(shard) => {
                let task = self.shards[shard].pop_front().expect("somebody waits");
                self.begin(cpu, task, idle_since);
                self.hand_off(cpu);
                return true;
            }
            StealDecision::From { cpu: from, at_most } => {
                let mut taken = Vec::new();
                while taken.len() < at_most as usize {
                    let queue = &mut self.cpus[from.index()].queue;
                    let mine = |task: &usize| self.machine.allows(self.tasks[*task].allowed, cpu);
                    let at = match self.policy.steal_order() {
                        StealOrder::Oldest => queue.iter().position(mine),
                        StealOrder::Last => queue.iter().rposition(mine),
                    };
                    let Some(task) = at.and_then(|at| queue.remove(at)) else { break };
                    taken.push(task);
                }
                assert!(!taken.is_empty(), "sent for nothing");
                taken[1..].iter().for_each(|task| {
                    let queued_at = self.tasks[*task].queued_at;
                    self.put(cpu, *task);
                    self.tasks[*task].queued_at = queued_at;
                });
                self.begin(cpu, taken[0], idle_since);
                self.hand_off(from);
                return true;
            }
            StealDecision::Until(at) => look = Some(at.0),
            StealDecision::Nothing => {}
        }
        let generation = self.turn(cpu, State::Idle { since: idle_since, look: look.is_some() });
        if let Some(at) = look {
            assert!(at > now);
            self.at(at, Event::Looks(cpu, generation));
        }
        false
    }

    fn begin(&mut self, cpu: CpuId, task: usize, idle_since: u64) {
        let now = self.now;
        self.measure(task);
        // How long this CPU was idle beside who waits still, and beside this one.
        let oldest = self.all_waiting().chain([task]).map(|task| self.tasks[task].queued_at).min();
        if let Some(oldest) = oldest {
            self.idled(now - oldest.max(idle_since));
        }
        let base = self.between(self.tasks[task].poll.0, self.tasks[task].poll.1);
        let mut takes = base;
        let prev_cpu = self.tasks[task].prev_cpu;
        if let Some(prev_cpu) = prev_cpu.filter(|prev_cpu| *prev_cpu != cpu) {
            self.outcome.moves += 1;
            self.outcome.moves_back += u64::from(self.tasks[task].last_moved_from == Some(cpu));
            takes += self.migration_cost(task).0;
            let task = &mut self.tasks[task];
            (task.accrued_cost, task.last_moved_from) = (Nanos(0), Some(prev_cpu));
        }
        self.outcome.polls += 1;
        let average = self.tasks[task].average_poll;
        self.tasks[task].average_poll = if average == 0 { base } else { average - average / 8 + base / 8 };
        self.tasks[task].prev_cpu = Some(cpu);
        let generation = self.turn(cpu, State::Running { task, since: now });
        self.at(now + takes, Event::PollEnds(cpu, generation));
        if takes > LONG {
            self.at(now + LONG, Event::IsLong(cpu, generation));
        }
    }

    /// A task has waited until now: which CPU slept all the while?
    fn measure(&mut self, task: usize) {
        let Task { queued_at, allowed, .. } = self.tasks[task];
        self.outcome.waited = self.outcome.waited.max(self.now - queued_at);
        let idle = self.cpus.iter().zip(0..).filter_map(|(cpu, id)| match cpu.state {
            State::Idle { since, .. } | State::Coming { since } => {
                self.machine.allows(allowed, CpuId(id)).then_some(since)
            }
            _ => None,
        });
        if let Some(since) = idle.min() {
            self.idled(self.now - since.max(queued_at));
        }
    }

    fn idled(&mut self, ns: u64) {
        self.outcome.idle_beside_work = self.outcome.idle_beside_work.max(ns);
    }

    fn at(&mut self, at: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((at, self.sequence, event)));
    }

    fn between(&mut self, least: u64, most: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        least + (x ^ (x >> 31)) % (most - least).max(1)
    }
}
