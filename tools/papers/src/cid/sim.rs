//! librseq's program for intermittent threads, on a virtual clock.
//!
//! Each thread is pinned to its own CPU. First all threads run at the same time, so that each CPU has an id. Then
//! thread k of a random sequence sleeps k × delay, makes 20 000 warm passes over its area (16 KiB that its id selects),
//! and 5 timed passes with a sleep of delay × threads between them. No two bursts overlap, so a loop over them in the
//! order of time replaces a scheduler. A thread gets an id when it is switched in and stops using it when it is
//! switched out. The ids are those of `warmcore-cid`, or of the simulator's imitation of Linux 6.19; or the CPU's
//! number takes their place.
//!
//! The kernel's compaction runs at the first tick that hits a running thread of the process 100 ms or more after the
//! last compaction. It frees ids that were unused for 100 ms: by the present time, or with [`RemoteClock::Stale`] by
//! the clock of their CPU. The clock of an idle CPU stands still, except when another CPU that goes idle or ticks makes
//! a pass over all idle CPUs, at most every 32 ms: it balances load for them and updates their clocks.
//!
//! With 8 threads and 10 ms a CPU sleeps 80 ms, less than 100, so no id is freed. With 384 threads and 200 ms it
//! sleeps 77 s.
//!
//! # Source
//! librseq `tests/basic_percpu_benchmark.c`; Linux 6.4 `task_tick_mm_cid`, `task_mm_cid_work`,
//! `sched_mm_cid_remote_clear_old`; `nohz_newidle_balance`, `_nohz_idle_balance`; `fs/select.c`
//! `select_estimate_accuracy` (a sleep is up to 0.1 % longer than requested).

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use warmcore_cid::Policy;
use warmcore_sim::cids::{CidRules, ProcessCids};
use warmcore_sim::costs::Costs;
use warmcore_sim::memory::{Access, ExtentId, Memory, Pages};
use warmcore_sim::random::{Purpose, Random, below};
use warmcore_topo::Topology;
use warmcore_types::{CpuId, CpuSet, Nanos};

const MS: u64 = 1_000_000;
/// As in the published program.
pub const AREA_BYTES: u64 = 16 << 10;
const WARM_PASSES: u64 = 20_000;
/// As in the published program.
pub const TIMED_PASSES: u32 = 5;
/// Linux's `MM_CID_SCAN_DELAY` and `SCHED_MM_CID_PERIOD_NS`.
const EXPIRY: u64 = 100 * MS;
/// Linux's `LOAD_AVG_PERIOD`: the time between two passes over idle CPUs.
const PASS_PERIOD: u64 = 32 * MS;

/// How a burst finds its area.
#[derive(Debug, Clone, Copy)]
pub enum Index {
    /// By the CPU's number.
    Cpu,
    /// By an id under this policy.
    Cid(&'static dyn Policy),
    /// By an id under the rules of Linux 6.19.
    TaskOwnedCid,
}

/// What the clock of another, idle CPU shows to a compaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemoteClock {
    /// The present time, as if the CPU was not idle.
    Right,
    /// When the CPU went idle, or the time of the last pass over all idle CPUs if that was later.
    Stale,
}

/// The parameters of the program and of the kernel.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    /// The number of threads, one per CPU.
    pub threads: u32,
    /// How many last-level caches the CPUs are spread over.
    pub llcs: u32,
    /// The time from one thread's burst to the next thread's.
    pub delay_ms: u64,
    /// How an area is found.
    pub index: Index,
    /// The state of the areas' pages before they are written. librseq's pool is copied on the first write.
    pub pages: Pages,
    /// Ticks per second of a CPU that is not idle.
    pub hz: u64,
    /// The clock that compaction reads.
    pub clock: RemoteClock,
    /// Whether there is a compaction.
    pub compacts: bool,
    /// After a burst a thread ends with this probability, in percent, and a new one replaces it at its next burst.
    pub churn_percent: u64,
    /// Added to a timed pass that follows a sleep, in ns: the part of the cost of a CPU's own area that the memory
    /// model does not explain. Only in rows that are marked fitted.
    pub after_sleep_ns: i64,
}

/// The result of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Outcome {
    /// The mean time of a timed pass, in ns.
    pub burst_ns: f64,
    /// The same without each thread's first timed pass, which follows no sleep.
    pub after_sleep_ns: f64,
    /// How many areas were used.
    pub areas: u32,
    /// Timed passes over another area than the last pass on the same CPU.
    pub moved: u32,
    /// Page faults in timed passes that follow a sleep.
    pub faults: u64,
    /// Compactions.
    pub compactions: u32,
}

struct Thread {
    cpu: CpuId,
    /// Its task's number in the process. `None`: the task ended, and a new one replaces it at the next burst; or areas
    /// are found by the CPU's number.
    task: Option<u32>,
    area: Option<u32>,
    /// Timed passes on this CPU so far.
    passes: u32,
}

/// The state of a CPU's run queue.
#[derive(Debug, Clone, Copy, Default)]
struct Queue {
    clock: u64,
    /// When a thread of the process was last switched in or out.
    used: u64,
    is_idle: bool,
}

/// Runs the program.
///
/// # Panics
/// If the first [`Setup::llcs`] caches have fewer CPUs than there are threads.
pub fn run(costs: &Costs, topology: &Topology, setup: &Setup, seed: u64) -> Outcome {
    CidSim::new(costs, topology, setup, seed).run()
}

/// The number of overflow ids, of which none is used: no two threads run on one CPU.
const OVERFLOW: u32 = 4;

struct CidSim<'a> {
    setup: &'a Setup,
    random: Random,
    memory: Memory,
    /// `None`: areas are found by the CPU's number.
    cids: Option<ProcessCids>,
    all: CpuSet,
    /// By slot. A slot is the index of a CPU among those that take part.
    threads: Vec<Thread>,
    queues: Vec<Queue>,
    /// By CPU number.
    slot_of: Vec<usize>,
    /// The slots of each slot's core: a core sleeps when all its threads do.
    siblings: Vec<Vec<usize>>,
    /// By area: its extent.
    areas: Vec<Option<ExtentId>>,
    next_task: u32,
    next_scan: u64,
    next_idle_pass: u64,
    switch_ns: u64,
    hot_pass_ns: u64,
    compactions: u32,
}

impl<'a> CidSim<'a> {
    fn new(costs: &Costs, topology: &Topology, setup: &'a Setup, seed: u64) -> Self {
        let cpus = cpus_of(topology, setup);
        let numbers = topology.cpus.last().map_or(0, |cpu| cpu.id.index() + 1);
        let rules = match setup.index {
            Index::Cpu => None,
            Index::Cid(policy) => Some(CidRules::Policy(policy)),
            Index::TaskOwnedCid => Some(CidRules::TaskOwned),
        };
        let mut slot_of = vec![usize::MAX; numbers];
        cpus.iter().enumerate().for_each(|(slot, cpu)| slot_of[cpu.index()] = slot);
        let siblings = cpus.iter().map(|cpu| {
            let all = topology.siblings(*cpu).into_iter().flat_map(|set| set.iter());
            all.map(|cpu| slot_of[cpu.index()]).filter(|slot| *slot != usize::MAX).collect()
        });
        let siblings = siblings.collect();
        let mut memory = Memory::new(costs, topology);
        // The time of a pass over an area in the CPU's own cache.
        let probe = memory.extent(AREA_BYTES, Pages::Touched, None);
        memory.touch(cpus[0], probe, Access::Write, Nanos(0));
        let hot_pass_ns = memory.touch(cpus[0], probe, Access::Write, Nanos(0)).0;
        let thread = |cpu: &CpuId| Thread { cpu: *cpu, task: None, area: None, passes: 0 };
        Self {
            setup,
            random: Random::new(seed),
            memory,
            cids: rules.map(|rules| ProcessCids::new(numbers as u32, OVERFLOW, rules)),
            threads: cpus.iter().map(thread).collect(),
            queues: vec![Queue::default(); cpus.len()],
            all: cpus.into_iter().collect(),
            slot_of,
            siblings,
            areas: vec![None; numbers + OVERFLOW as usize],
            next_task: 0,
            next_scan: EXPIRY,
            next_idle_pass: 0,
            switch_ns: costs.ns("csw_voluntary").0,
            hot_pass_ns,
            compactions: 0,
        }
    }

    fn run(mut self) -> Outcome {
        let n = self.threads.len() as u64;
        // The threads run together at a random moment between two ticks, before the first compaction.
        let met = EXPIRY / 2 + below(self.random.bits(0, Purpose::Load, 0), MS);
        let main = self.meet(met);
        let mut due = BinaryHeap::new();
        for (k, slot) in self.order().into_iter().enumerate() {
            due.push(Reverse((slept_until(met, k as u64 * self.setup.delay_ms * MS), k, slot)));
        }
        let mut out = Outcome::default();
        let (mut sum, mut after) = (0, 0);
        while let Some(Reverse((now, k, slot))) = due.pop() {
            let (was, came_back) = (self.threads[slot].area, self.threads[slot].passes > 0);
            let before = self.memory.counts().faults;
            let (left, timed) = self.visit(slot, now, came_back);
            sum += timed;
            if came_back {
                after += timed;
                out.moved += u32::from(self.threads[slot].area != was);
                out.faults += self.memory.counts().faults - before;
            }
            if self.threads[slot].passes < TIMED_PASSES {
                due.push(Reverse((slept_until(left, self.setup.delay_ms * n * MS), k, slot)));
            }
        }
        let tasks: Vec<u32> =
            self.threads.iter_mut().filter_map(|thread| thread.task.take()).chain(main).collect();
        if let Some(cids) = &mut self.cids {
            tasks.into_iter().for_each(|task| cids.remove_task(task));
        }
        out.burst_ns = sum as f64 / (n * u64::from(TIMED_PASSES)) as f64;
        out.after_sleep_ns = after as f64 / (n * u64::from(TIMED_PASSES - 1)) as f64;
        out.areas = self.areas.iter().flatten().count() as u32;
        out.compactions = self.compactions;
        out
    }

    /// The random sequence of the slots.
    fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.threads.len()).collect();
        for i in (1..order.len()).rev() {
            let j = below(self.random.bits(1, Purpose::Load, i as u64), i as u64 + 1);
            order.swap(i, j as usize);
        }
        order
    }

    /// Adds a task to the process. `None`: areas are found by the CPU's number.
    fn new_task(&mut self) -> Option<u32> {
        let task = self.next_task;
        self.next_task += 1;
        self.cids.as_mut()?.add_task(task, &self.all);
        Some(task)
    }

    /// Runs all threads at once, so that each CPU has an id then. Returns the task of the process's first thread, which
    /// created the others and waits for their end.
    fn meet(&mut self, now: u64) -> Option<u32> {
        let main = self.new_task();
        for slot in 0..self.threads.len() {
            self.threads[slot].task = self.new_task();
        }
        if let (Some(cids), Some(main)) = (&mut self.cids, main) {
            cids.enter(main, self.threads[0].cpu).expect("the first id");
            cids.leave(main);
        }
        for slot in 0..self.threads.len() {
            self.enter(slot);
        }
        for slot in 0..self.threads.len() {
            self.leave(slot);
            self.goes_idle(slot, now);
        }
        main
    }

    /// Runs one burst of a thread, from its wakeup. Returns when it sleeps again, and the time of its timed pass.
    fn visit(&mut self, slot: usize, now: u64, came_back: bool) -> (u64, u64) {
        let cpu = self.threads[slot].cpu;
        let idle_since = self.siblings[slot].iter().map(|p| self.queues[*p].used).max().unwrap_or(0);
        let state = self.memory.slept(cpu, Nanos(now.saturating_sub(idle_since)));
        let mut at = now + state.map_or(0, |state| state.exit.0) + self.switch_ns;
        let area = self.switch_in(slot, at);
        if !came_back {
            // Warm passes: the first one moves the area to this CPU's cache, the others find it there.
            at += self.pass(area, cpu, at) + (WARM_PASSES - 1) * self.hot_pass_ns;
        }
        let mut timed = self.pass(area, cpu, at);
        if came_back {
            timed = timed.saturating_add_signed(self.setup.after_sleep_ns);
        }
        at += timed + self.switch_ns;
        self.ticks(now, at);
        self.switch_out(slot, at);
        (at, timed)
    }

    fn switch_in(&mut self, slot: usize, now: u64) -> u32 {
        if self.threads[slot].task.is_none() {
            self.threads[slot].task = self.new_task();
        }
        let queue = &mut self.queues[slot];
        *queue = Queue { clock: now, used: now, is_idle: false };
        self.enter(slot)
    }

    fn switch_out(&mut self, slot: usize, now: u64) {
        self.leave(slot);
        let (percent, thread) = (self.setup.churn_percent, &mut self.threads[slot]);
        thread.passes += 1;
        let draw = self.random.bits(2 + slot as u64, Purpose::Load, u64::from(thread.passes));
        let ends = below(draw, 100) < percent;
        if let (Some(cids), Some(task)) = (&mut self.cids, thread.task.take_if(|_| ends)) {
            cids.remove_task(task);
        }
        self.goes_idle(slot, now);
    }

    fn pass(&mut self, area: u32, cpu: CpuId, now: u64) -> u64 {
        let (memory, pages) = (&mut self.memory, self.setup.pages);
        let extent = *self.areas[area as usize].get_or_insert_with(|| memory.extent(AREA_BYTES, pages, None));
        memory.touch(cpu, extent, Access::Write, Nanos(now)).0
    }

    /// The ticks that hit a thread that runs from `from` to `to`.
    fn ticks(&mut self, from: u64, to: u64) {
        let period = 1_000_000_000 / self.setup.hz;
        let mut tick = from.next_multiple_of(period);
        while tick < to {
            if self.setup.compacts && tick >= self.next_scan {
                self.next_scan = tick + EXPIRY;
                self.compact(tick);
            }
            self.pass_over_idle(tick);
            tick += period;
        }
    }

    fn compact(&mut self, now: u64) {
        let (slot_of, queues, clock) = (&self.slot_of, &self.queues, self.setup.clock);
        self.compactions += 1;
        if let Some(cids) = &mut self.cids {
            cids.compact_if(|cpu| {
                let queue = &queues[slot_of[cpu.index()]];
                let shows = if clock == RemoteClock::Right { now } else { queue.clock };
                shows >= queue.used + EXPIRY
            });
        }
    }

    /// Updates the clocks of idle CPUs, unless that was done within the last [`PASS_PERIOD`].
    fn pass_over_idle(&mut self, now: u64) {
        if now >= self.next_idle_pass {
            self.next_idle_pass = now + PASS_PERIOD;
            self.queues.iter_mut().filter(|queue| queue.is_idle).for_each(|queue| queue.clock = now);
        }
    }

    fn goes_idle(&mut self, slot: usize, now: u64) {
        self.pass_over_idle(now);
        self.queues[slot] = Queue { clock: now, used: now, is_idle: true };
    }

    /// Gives a thread its area, which it keeps until it enters again.
    fn enter(&mut self, slot: usize) -> u32 {
        let thread = &mut self.threads[slot];
        let area = match (&mut self.cids, thread.task) {
            (Some(cids), Some(task)) => cids.enter(task, thread.cpu).expect("an id for each CPU").0,
            _ => thread.cpu.0,
        };
        thread.area = Some(area);
        area
    }

    fn leave(&mut self, slot: usize) {
        if let (Some(cids), Some(task)) = (&mut self.cids, self.threads[slot].task) {
            cids.leave(task);
        }
    }
}

/// The CPUs of the threads: equally many of each of the first `llcs` caches if the number of threads is a multiple of
/// `llcs`; in a cache, one per core as long as there are cores.
fn cpus_of(topology: &Topology, setup: &Setup) -> Vec<CpuId> {
    let each = setup.threads.div_ceil(setup.llcs) as usize;
    let mut cpus: Vec<CpuId> = Vec::new();
    for llc in topology.llcs.iter().take(setup.llcs as usize) {
        let rank =
            |cpu: CpuId| topology.siblings(cpu).map_or(0, |s| s.iter().take_while(|c| *c < cpu).count());
        let mut of: Vec<CpuId> = llc.cpus.iter().collect();
        of.sort_by_key(|cpu| (rank(*cpu), *cpu));
        cpus.extend(of.into_iter().take(each));
    }
    cpus.sort();
    let (have, want) = (cpus.len(), setup.threads as usize);
    let (llcs, source) = (setup.llcs, &topology.source);
    assert!(have >= want, "{want} threads on {llcs} caches of {source}, and they have {have} CPUs");
    cpus.truncate(want);
    cpus
}

/// When a sleep of `ns` ends. The timer is as late as Linux allows: by 0.1 %, at least 50 µs and at most 100 ms. A
/// sleep of 0 ends at once.
fn slept_until(now: u64, ns: u64) -> u64 {
    if ns == 0 { now } else { now + ns + (ns / 1000).clamp(50_000, 100 * MS) }
}
