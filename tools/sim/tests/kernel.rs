//! What Linux's placement does, rule by rule, and what each setting changes.

#[path = "../../../crates/sched/tests/common/mod.rs"]
mod common;

use common::{Cpu, Facts, all_machines, drawn, whole};
use proptest::prelude::*;
use std::sync::LazyLock;
use warmcore_sched::policy::may;
use warmcore_sched::{
    Allowed, Distance, SchedDomains, ShardMask, StealDecision, TargetQueue, View, Wake, WakeDecision,
    WakeSource, Wakee,
};
use warmcore_sim::policy::kernel::{AverageIdle, Flips, HotRule, Newidle, NewidleCost, QueueRule};
use warmcore_sim::policy::{Enqueued, Kernel, KernelPolicy, KernelView};
use warmcore_types::{CpuId, Nanos};

const LINUX: Kernel = Kernel {
    hot_windows: false,
    hot_rule: HotRule::V2,
    wake_queue: false,
    sis_node: false,
    newidle: Newidle::Gated,
    queue_rule: QueueRule::V1,
    migration_cost: Nanos(500_000),
};
const NOW: Nanos = Nanos(1_000_000_000);

/// The facts that the tests of `crates/sched` set, and those that only [`Kernel`] asks for.
#[derive(Debug, Clone)]
struct Simulation {
    machine: SchedDomains,
    facts: Facts,
    sleeps_next: bool,
    was_on: Option<CpuId>,
    is_wide: bool,
    average_idle: Nanos,
    /// The cost of searching one CPU, in ns.
    cost: u64,
    /// What a look into the shared queues costs.
    look: Nanos,
    last_ran: Vec<Nanos>,
    newly: bool,
    failed: u32,
    balanced_at: Nanos,
    /// The load by CPU. Empty: 1024 for each task that is there now.
    loads: Vec<u64>,
    /// Whether the tasks in the shared queues may not run on the CPU that asks.
    shut_out: bool,
}

impl Simulation {
    /// All CPUs run a task, and no task waits.
    fn busy(machine: SchedDomains) -> Self {
        Self {
            facts: Facts::busy(&machine),
            sleeps_next: false,
            was_on: None,
            is_wide: false,
            average_idle: Nanos(1_000_000),
            cost: 1_000,
            look: Nanos(0),
            last_ran: vec![Nanos(0); machine.cpus()],
            newly: true,
            failed: 0,
            balanced_at: Nanos(0),
            loads: Vec::new(),
            shut_out: false,
            machine,
        }
    }

    fn drawn(counts: [u32; 4]) -> Self {
        let [sockets, llcs, cores, smt] = counts;
        Self::busy(whole(&drawn(sockets, llcs, cores, smt)))
    }

    fn idle(mut self, cpus: &[u32]) -> Self {
        cpus.iter().for_each(|cpu| self.facts.cpus[*cpu as usize].idle = true);
        self
    }

    fn hot(mut self, cpus: &[u32]) -> Self {
        cpus.iter().for_each(|cpu| self.facts.cpus[*cpu as usize].hot_until = Nanos(NOW.0 + 1));
        self
    }

    /// Puts this many tasks into a shared queue. There are as many shared queues as the policy has.
    fn entered(mut self, kernel: Kernel, queue: usize, tasks: u32) -> Self {
        self.facts.waiting = vec![0; kernel.queues(&self.machine)];
        self.facts.waiting[queue] = tasks;
        self
    }

    fn waiting(mut self, cpu: u32, tasks: u32) -> Self {
        self.facts.cpus[cpu as usize].backlog = tasks;
        self
    }

    fn wake(&self, kernel: Kernel, waker: u32, prev_cpu: u32) -> WakeDecision {
        kernel.wake(
            &self.machine,
            self,
            &wake(WakeSource::Cpu(CpuId(waker)), Some(CpuId(prev_cpu)), Allowed::Anywhere),
        )
    }

    fn goes(&self, kernel: Kernel, waker: u32, prev_cpu: u32) -> u32 {
        let TargetQueue::Cpu(cpu) = self.wake(kernel, waker, prev_cpu).to else { panic!("to a shard") };
        cpu.0
    }

    fn forks(&self, from: u32) -> u32 {
        let to =
            LINUX.wake(&self.machine, self, &wake(WakeSource::Cpu(CpuId(from)), None, Allowed::Anywhere)).to;
        let TargetQueue::Cpu(cpu) = to else { panic!("to a shard") };
        cpu.0
    }

    fn steal(&self, kernel: Kernel, me: u32) -> StealDecision {
        kernel.steal(&self.machine, self, CpuId(me), NOW)
    }
}

fn wake(waker: WakeSource, prev_cpu: Option<CpuId>, allowed: Allowed) -> Wake {
    Wake { now: NOW, wakee: Wakee { prev_cpu, allowed, ..Wakee::default() }, waker }
}

fn from(cpu: u32) -> StealDecision {
    StealDecision::From { cpu: CpuId(cpu), at_most: 1 }
}

impl View for Simulation {
    fn is_idle(&self, cpu: CpuId) -> bool {
        self.facts.is_idle(cpu)
    }
    fn is_offline(&self, cpu: CpuId) -> bool {
        self.facts.is_offline(cpu)
    }
    fn is_stuck(&self, cpu: CpuId) -> bool {
        self.facts.is_stuck(cpu)
    }
    fn backlog(&self, cpu: CpuId) -> u32 {
        self.facts.backlog(cpu)
    }
    fn backlog_since(&self, cpu: CpuId) -> Nanos {
        self.facts.backlog_since(cpu)
    }
    fn migration_cost_at(&self, cpu: CpuId) -> Nanos {
        self.facts.migration_cost_at(cpu)
    }
    fn hot_until(&self, cpu: CpuId) -> Nanos {
        self.facts.hot_until(cpu)
    }
    fn shared_queue_len(&self, queue: usize) -> u32 {
        self.facts.shared_queue_len(queue)
    }
    fn idle_in(&self, shard: usize) -> ShardMask {
        self.facts.idle_in(shard)
    }
    fn backlogs_in(&self, shard: usize) -> ShardMask {
        self.facts.backlogs_in(shard)
    }
}

impl KernelView for Simulation {
    fn can_steal_in(&self, _me: CpuId, _queue: usize) -> bool {
        !self.shut_out
    }
    fn sleeps_next(&self, _: CpuId) -> bool {
        self.sleeps_next
    }
    fn wakee_was_on(&self) -> Option<CpuId> {
        self.was_on
    }
    fn wakes_wide(&self) -> bool {
        self.is_wide
    }
    fn load(&self, cpu: CpuId) -> u64 {
        self.loads.get(cpu.index()).copied().unwrap_or_else(|| u64::from(self.runs(cpu)) * 1024)
    }
    fn has_idle_core_in(&self, shard: usize) -> bool {
        let free = |cpu: &CpuId| self.is_idle(*cpu) || self.is_offline(*cpu);
        let core =
            |cpu: &CpuId| !self.is_offline(*cpu) && self.machine.within(*cpu, Distance::Smt).iter().all(free);
        self.machine.cpus_of(shard).iter().any(core)
    }
    fn average_idle(&self, _: CpuId) -> Nanos {
        self.average_idle
    }
    fn newidle_cost(&self, cpu: CpuId, within: Distance) -> Nanos {
        match within {
            Distance::Same => self.look,
            _ => Nanos(self.cost * self.machine.within(cpu, within).len() as u64),
        }
    }
    fn is_newly_idle(&self, _: CpuId) -> bool {
        self.newly
    }
    fn last_ran(&self, cpu: CpuId) -> Nanos {
        self.last_ran[cpu.index()]
    }
    fn balanced_at(&self, _: CpuId, _: Distance) -> Nanos {
        self.balanced_at
    }
    fn balances_failed(&self, _: CpuId, _: Distance) -> u32 {
        self.failed
    }
}

// Two LLCs of eight cores: cpu0–7 and cpu8–15.
const TWO_LLCS: [u32; 4] = [1, 2, 8, 1];

#[test]
fn a_task_returns_to_its_idle_previous_cpu_whatever_wakes_it() {
    let sim = Simulation::drawn(TWO_LLCS).idle(&[1, 3, 5, 9]);
    assert_eq!(sim.wake(LINUX, 0, 3), WakeDecision::on(CpuId(3), true));
    assert_eq!(sim.goes(LINUX, 0, 9), 9, "also in the other LLC");
    assert_eq!(sim.goes(LINUX, 3, 3), 3, "an interrupt on it");
}

#[test]
fn an_interrupt_on_an_idle_cpu_draws_the_task_there_unless_its_own_is_idle() {
    let sim = Simulation::drawn(TWO_LLCS).idle(&[1]);
    assert_eq!(sim.goes(LINUX, 1, 3), 1);
    assert_eq!(sim.goes(LINUX, 1, 9), 1, "also from the other LLC: nothing weighs less");
    let sim = sim.idle(&[3, 9]);
    assert_eq!((sim.goes(LINUX, 1, 3), sim.goes(LINUX, 1, 9)), (3, 9));
}

#[test]
fn a_synchronous_waker_draws_the_task_into_its_llc() {
    let mut sim = Simulation::drawn(TWO_LLCS).idle(&[5, 6, 7]);
    sim.sleeps_next = true;
    assert_eq!(sim.goes(LINUX, 4, 9), 5, "an idle CPU beside the waker");
    sim.facts.cpus.iter_mut().for_each(|cpu| cpu.idle = false);
    assert_eq!(sim.wake(LINUX, 0, 9), WakeDecision::on(CpuId(0), false), "no CPU is idle: behind the waker");
    sim.is_wide = true;
    assert_eq!(sim.goes(LINUX, 0, 9), 9, "but not if many are woken from there");
}

#[test]
fn by_weight_the_waker_wins_only_if_more_wait_at_the_previous_cpu() {
    let sim = Simulation::drawn(TWO_LLCS);
    assert_eq!(sim.clone().waiting(9, 2).goes(LINUX, 0, 9), 0);
    assert_eq!(sim.clone().waiting(9, 1).waiting(0, 2).goes(LINUX, 0, 9), 9);
    assert_eq!(sim.goes(LINUX, 0, 9), 0, "equal loads: the waker's CPU, by its bonus of 8 %");
}

#[test]
fn the_cpu_before_the_previous_one_is_remembered() {
    let mut sim = Simulation::drawn(TWO_LLCS).idle(&[4, 5, 6, 9]);
    sim.was_on = Some(CpuId(6));
    assert_eq!(sim.goes(LINUX, 3, 3), 6);
    sim.was_on = Some(CpuId(9));
    assert_eq!(sim.goes(LINUX, 3, 3), 4, "in another LLC it does not count: the search begins behind cpu3");
}

#[test]
fn the_search_begins_behind_the_target_and_goes_round() {
    let sim = Simulation::drawn(TWO_LLCS).idle(&[1, 2, 5, 6]);
    assert_eq!(sim.goes(LINUX, 3, 3), 5);
    assert_eq!(sim.goes(LINUX, 7, 7), 1);
}

#[test]
fn a_full_llc_is_not_searched() {
    // Seven of eight used: 1 − (1.17 × 7/8)² < 0.
    let sim = Simulation::drawn(TWO_LLCS).idle(&[5]);
    assert_eq!(sim.wake(LINUX, 3, 3), WakeDecision::on(CpuId(3), false));
    // Six of eight used: 1 − 0.77 = 0.23; one CPU of eight is looked at.
    let sim = Simulation::drawn(TWO_LLCS).idle(&[5, 6]);
    assert_eq!(sim.goes(LINUX, 3, 3), 3);
    assert_eq!(sim.goes(LINUX, 4, 4), 5);
}

#[test]
fn a_whole_idle_core_comes_before_an_idle_thread() {
    // Cores of two threads: cpu0 to 7, and as their second threads cpu8 to 15.
    let sim = Simulation::drawn([1, 1, 8, 2]).idle(&[1, 2, 3, 4, 12, 5]);
    assert_eq!(sim.machine.within(CpuId(4), Distance::Smt), [CpuId(4), CpuId(12)]);
    assert_eq!(sim.goes(LINUX, 0, 0), 4);
    let mut sim = Simulation::drawn([1, 1, 8, 2]).idle(&[1, 2, 3, 8]);
    assert_eq!(sim.goes(LINUX, 0, 0), 8, "no core is idle: the thread beside the previous CPU");
    sim.facts.cpus[8].idle = false;
    assert_eq!(sim.goes(LINUX, 0, 0), 1, "nor is that thread idle: the first idle CPU");
}

#[test]
fn a_core_with_a_thread_that_is_offline_is_idle_when_the_other_one_is() {
    let mut sim = Simulation::drawn([1, 1, 8, 2]).idle(&[1, 2, 3, 5]);
    sim.facts.cpus[13].offline = true;
    assert_eq!(sim.goes(LINUX, 0, 0), 5, "beside 13, which is none");
}

#[test]
fn threads_of_a_core_have_less_of_a_bonus_than_cpus_of_an_llc() {
    // The waker's CPU has 1060 thousandths of the previous CPU's load: more than the 5 % bonus among threads, less than
    // the 8 % within an LLC.
    let sim = |prev_cpu: u32| {
        let mut sim = Simulation::drawn([1, 1, 8, 2]);
        sim.loads = vec![1000; 16];
        sim.loads[0] = 1000 * 106 / 100;
        sim.wake(LINUX, 0, prev_cpu).to
    };
    assert_eq!((sim(8), sim(1)), (TargetQueue::Cpu(CpuId(8)), TargetQueue::Cpu(CpuId(0))));
}

#[test]
fn only_with_sis_node_the_waker_searches_the_neighbours() {
    let sis_node = Kernel { sis_node: true, ..LINUX };
    let sim = Simulation::drawn(TWO_LLCS).idle(&[10, 11, 12, 13]);
    assert_eq!(sim.goes(LINUX, 3, 3), 3);
    assert_eq!(sim.goes(sis_node, 3, 3), 10);
    let two_sockets = Simulation::drawn([2, 1, 8, 1]).idle(&[10, 11, 12, 13]);
    assert_eq!(two_sockets.goes(sis_node, 3, 3), 3, "not across nodes");
}

#[test]
fn a_kept_cpu_is_passed_over_for_half_of_the_depth() {
    let hot_windows = Kernel { hot_windows: true, ..LINUX };
    let sim = Simulation::drawn(TWO_LLCS).idle(&[1, 2, 4, 5, 6]).hot(&[4, 5]);
    assert_eq!(sim.goes(LINUX, 3, 3), 4);
    let placed = sim.wake(hot_windows, 3, 3);
    assert_eq!(placed, WakeDecision { hot_kept: 2, ..WakeDecision::on(CpuId(6), true) });
    // Five of eight idle: six are looked at, and three may be passed over.
    let all = sim.clone().hot(&[1, 2, 4, 5, 6]);
    assert_eq!(
        all.wake(hot_windows, 3, 3),
        WakeDecision { hot_kept: 3, hot_broken: true, ..WakeDecision::on(CpuId(1), true) }
    );
}

/// The versions differ in what a search does that has found only kept CPUs. In v1 and v2 it ends at its target, here
/// the waker's CPU, if its depth is used up. So two tasks that wake each other meet there.
#[test]
fn a_search_that_found_only_kept_cpus_ends_at_the_waker_or_takes_the_first_by_the_text() {
    // Six of sixteen idle, half of them beyond the depth: seven are looked at, and four may be passed over.
    let sim = Simulation::drawn([1, 1, 16, 1]).idle(&[4, 5, 6, 13, 14, 15]).hot(&[4, 5, 6, 13, 14, 15]);
    let of = |hot_rule| sim.wake(Kernel { hot_windows: true, hot_rule, ..LINUX }, 3, 3);
    assert_eq!(of(HotRule::V1), WakeDecision::on(CpuId(3), false));
    assert_eq!(of(HotRule::V2), WakeDecision::on(CpuId(3), false));
    assert_eq!(
        of(HotRule::V2Text),
        WakeDecision { hot_kept: 2, hot_broken: true, ..WakeDecision::on(CpuId(4), true) }
    );
    // If more idle CPUs are kept than may be passed over, v2 takes the next one, v1 none, and the rule of v2's text the
    // first one.
    let sim = Simulation::drawn(TWO_LLCS).idle(&[1, 2, 4, 5, 6]).hot(&[1, 2, 4, 5, 6]);
    let of = |hot_rule| sim.goes(Kernel { hot_windows: true, hot_rule, ..LINUX }, 3, 3);
    assert_eq!((of(HotRule::V1), of(HotRule::V2), of(HotRule::V2Text)), (3, 1, 4));
}

#[test]
fn a_task_is_not_kept_from_its_previous_cpu() {
    let hot_windows = Kernel { hot_windows: true, ..LINUX };
    let sim = Simulation::drawn(TWO_LLCS).idle(&[3, 5]).hot(&[3, 5]);
    assert_eq!(sim.goes(hot_windows, 0, 3), 3);
}

#[test]
fn a_new_task_goes_where_the_most_cpus_are_idle_and_stays_if_here_is_as_good() {
    let sim = Simulation::drawn(TWO_LLCS).idle(&[1, 2, 9, 10, 11]);
    assert_eq!(sim.forks(0), 9);
    let sim = Simulation::drawn(TWO_LLCS).idle(&[1, 2, 9, 10]);
    assert_eq!(sim.forks(0), 1);
    let sim = Simulation::drawn(TWO_LLCS).waiting(0, 9).waiting(1, 1).waiting(2, 1);
    assert_eq!(sim.forks(0), 8, "no CPU is idle: the least loaded one");
}

#[test]
fn a_new_task_stays_on_its_node_while_few_tasks_run_there() {
    let many: Vec<u32> = (16..32).collect();
    let sim = Simulation::drawn([2, 1, 16, 1]).idle(&many).idle(&(1..16).collect::<Vec<_>>());
    assert_eq!(sim.forks(0), 1, "one task runs here; up to an eighth of the node's CPUs are allowed");
    // An eighth of a node's 32 CPUs: four. Since 6.0 only the difference of a pair is tolerated.
    let there: Vec<u32> = (32..64).collect();
    let here =
        |busy: u32| Simulation::drawn([2, 1, 32, 1]).idle(&there).idle(&(busy..32).collect::<Vec<_>>());
    assert_eq!((here(2).forks(0), here(3).forks(0)), (2, 32), "two tasks run on the node, then three");
    let sim = Simulation::drawn([2, 1, 16, 1]).idle(&many).idle(&(4..16).collect::<Vec<_>>());
    assert_eq!(sim.forks(0), 16);
}

#[test]
fn a_cpu_that_idles_for_less_than_a_search_costs_does_not_search() {
    // A search costs 8 µs within the LLC and 16 µs more on the node.
    let mut sim = Simulation::drawn(TWO_LLCS).waiting(5, 3);
    sim.average_idle = Nanos(7_999);
    let always = Kernel { newidle: Newidle::Always, ..LINUX };
    let off = Kernel { newidle: Newidle::Off, ..LINUX };
    let at = |sim: &Simulation, me: u32, kernel| sim.clone().idle(&[me]).steal(kernel, me);
    assert_eq!(at(&sim, 1, LINUX), StealDecision::Nothing);
    assert_eq!(at(&sim, 1, always), from(5));
    sim.average_idle = Nanos(8_000);
    assert_eq!(at(&sim, 1, LINUX), from(5));
    assert_eq!(at(&sim, 9, LINUX), StealDecision::Nothing, "it does not search the next domain");
    sim.average_idle = Nanos(24_000);
    assert_eq!(at(&sim, 9, LINUX), from(5));
    assert_eq!(at(&sim, 9, off), StealDecision::Nothing);
    sim.newly = false;
    assert_eq!(at(&sim, 9, off), from(5), "a kicked CPU searches nevertheless");
}

#[test]
fn a_kicked_cpu_searches_a_large_domain_seldom() {
    let mut sim = Simulation::drawn(TWO_LLCS).waiting(5, 3).idle(&[1, 9]);
    (sim.newly, sim.balanced_at) = (false, Nanos(NOW.0 - 8_000_000));
    assert_eq!(sim.steal(LINUX, 1), from(5), "8 CPUs every 8 ms");
    assert_eq!(sim.steal(LINUX, 9), StealDecision::Nothing, "and 16 every 16 ms");
}

#[test]
fn a_task_that_ran_just_now_is_not_stolen() {
    let mut sim = Simulation::drawn([1, 1, 4, 2]).waiting(5, 2).idle(&[1, 2]);
    sim.last_ran[5] = Nanos(NOW.0 - 499_999);
    assert_eq!(sim.machine.within(CpuId(1), Distance::Smt), [CpuId(1), CpuId(5)]);
    assert_eq!(sim.steal(LINUX, 2), StealDecision::Nothing);
    assert_eq!(sim.steal(LINUX, 1), from(5), "threads of a core share their caches");
    sim.failed = 2;
    assert_eq!(sim.steal(LINUX, 2), from(5), "after two searches in vain it moves");
    (sim.failed, sim.last_ran[5]) = (0, Nanos(NOW.0 - 500_000));
    assert_eq!(sim.steal(LINUX, 2), from(5));
}

#[test]
fn a_task_that_waits_for_its_cpu_to_wake_up_is_not_stolen() {
    let sim = Simulation::drawn(TWO_LLCS).waiting(5, 1).idle(&[1]);
    assert_eq!(sim.steal(LINUX, 1), from(5));
    assert_eq!(
        sim.idle(&[5]).steal(LINUX, 1),
        StealDecision::Nothing,
        "the queued task is the CPU's only one"
    );
}

#[test]
fn the_nearest_domain_comes_first_and_in_it_the_longest_queue() {
    let sim = Simulation::drawn(TWO_LLCS).waiting(9, 7).waiting(3, 1).waiting(5, 2).idle(&[1]);
    assert_eq!(sim.steal(LINUX, 1), from(5));
}

#[test]
fn a_queue_whose_tasks_may_not_run_here_does_not_end_the_search() {
    let on = Kernel { wake_queue: true, ..LINUX };
    let mut sim = Simulation::drawn(TWO_LLCS).idle(&[0]).waiting(1, 2);
    sim.facts.waiting[0] = 1;
    assert_eq!(sim.steal(on, 0), StealDecision::Shard(0));
    sim.shut_out = true;
    assert_eq!(sim.steal(on, 0), from(1));
    sim.facts.cpus[1].backlog = 0;
    assert_eq!(sim.steal(on, 0), StealDecision::Nothing);
}

const EVERY: [Enqueued; 5] =
    [Enqueued::WokenOnPrevCpu, Enqueued::WokenElsewhere, Enqueued::New, Enqueued::Moved, Enqueued::PutBack];

/// v1: `swqueue_enqueue` of 13 June 2023. v3: `shared_runq_enqueue_task`, called from `__enqueue_entity`.
#[test]
fn a_task_enters_the_wake_queue_where_it_was_woken_and_in_v3_at_every_enqueue() {
    let (sim, on) = (Simulation::drawn(TWO_LLCS), Kernel { wake_queue: true, ..LINUX });
    let enters = |kernel: Kernel, allowed| {
        EVERY.map(|why| kernel.enters(&sim.machine, CpuId(9), allowed, why).is_some())
    };
    assert_eq!(enters(on, Allowed::Anywhere), [true, false, false, false, false]);
    for kernel in
        [on, Kernel { queue_rule: QueueRule::V3, ..on }, Kernel { queue_rule: QueueRule::V3Checked, ..on }]
    {
        let is_v3 = kernel.queue_rule != QueueRule::V1;
        assert_eq!(enters(kernel, Allowed::Anywhere), [true, is_v3, is_v3, is_v3, is_v3]);
        assert_eq!(enters(kernel, Allowed::Cpu(CpuId(9))), [false; 5], "pinned");
        assert_eq!(enters(Kernel { wake_queue: false, ..kernel }, Allowed::Anywhere), [false; 5]);
    }
}

/// `shared_runq_reassign_domains`, `shared_runq_shard_idx`, `shared_runq_pick_next_task` of v3, 7/7: a queue per six
/// CPUs, `(cpu >> 1) % queues`, and a CPU looks into all queues of its LLC, its own first.
#[test]
fn v3_cuts_the_queue_of_an_llc_by_six_cpus_and_a_cpu_looks_into_each_of_them() {
    for (name, machine) in all_machines() {
        for queue_rule in [QueueRule::V1, QueueRule::V3] {
            let kernel = Kernel { wake_queue: true, queue_rule, newidle: Newidle::Off, ..LINUX };
            let of = |cpu: CpuId| {
                kernel
                    .enters(&machine, cpu, Allowed::Anywhere, Enqueued::WokenOnPrevCpu)
                    .expect("it is not pinned")
            };
            let mut owners = vec![None; kernel.queues(&machine)];
            let all = || (0..machine.cpus() as u32).map(CpuId);
            for cpu in all() {
                let llc = machine.llc_of(cpu);
                assert_eq!(*owners[of(cpu)].get_or_insert(llc), llc, "{name}: a queue of two LLCs");
            }
            for cpu in all().step_by(7) {
                let within = machine.within(cpu, Distance::Llc);
                let mut queues: Vec<usize> = within.iter().map(|cpu| of(*cpu)).collect();
                queues.sort_unstable();
                queues.dedup();
                let shards = if queue_rule == QueueRule::V1 { 1 } else { within.len().div_ceil(6) };
                assert!(queues.len() <= shards, "{name}: {queues:?}");
                let index = |cpu: CpuId| (machine.kernel_cpu(cpu).0 >> 1) as usize % shards;
                let first = of(cpu) - index(cpu);
                assert!(within.iter().all(|near| of(*near) == first + index(*near)), "{name}: {queues:?}");
                for queue in queues {
                    let sim = Simulation::busy(machine.clone()).idle(&[cpu.0]).entered(kernel, queue, 1);
                    assert_eq!(sim.steal(kernel, cpu.0), StealDecision::Shard(queue), "{name}");
                }
            }
        }
    }
    // 16 CPUs whose numbers are two ranges of eight: threads of a core, 0 and 128, are not of one queue.
    let machine =
        &all_machines().into_iter().find(|(name, _)| name == "zen3_256cpu_2p").expect("it is in the file").1;
    let v3 = Kernel { wake_queue: true, queue_rule: QueueRule::V3, ..LINUX };
    let of = |cpu| v3.enters(machine, CpuId(cpu), Allowed::Anywhere, Enqueued::New).unwrap();
    let queues: Vec<usize> = machine.within(CpuId(0), Distance::Llc).iter().map(|cpu| of(cpu.0)).collect();
    assert_eq!(queues.len(), 16);
    let numbers: Vec<u32> =
        machine.within(CpuId(0), Distance::Llc).iter().map(|cpu| machine.kernel_cpu(*cpu).0).collect();
    let expected: Vec<usize> = numbers.iter().map(|number| (number / 2 % 3) as usize).collect();
    assert_eq!(queues, expected);
    assert_eq!((of(0), of(128)), (0, 1));
}

#[test]
fn the_wake_queue_comes_before_any_search_and_costs_no_average() {
    let on = Kernel { wake_queue: true, ..LINUX };
    let mut sim = Simulation::drawn(TWO_LLCS).waiting(5, 3).idle(&[1, 9]);
    sim.facts.waiting[0] = 1;
    sim.average_idle = Nanos(0);
    assert_eq!(sim.steal(on, 1), StealDecision::Shard(0));
    assert_eq!(sim.steal(on, 9), StealDecision::Nothing, "a queue of the other LLC");
    assert_eq!(sim.steal(LINUX, 1), StealDecision::Nothing);
}

/// v3 compares with the cost of the first domain beyond the LLC, whether or not the search gets there; its loop
/// begins again with the innermost domain.
#[test]
fn after_empty_queues_v3_searches_only_where_the_first_domain_beyond_the_llc_is_worth_it() {
    let v3 = Kernel { wake_queue: true, queue_rule: QueueRule::V3, ..LINUX };
    // A search costs 8 µs within the LLC and 16 µs more on the node.
    let mut sim = Simulation::drawn(TWO_LLCS).waiting(5, 3).idle(&[1, 9]).entered(v3, 0, 0);
    for (average, linux, after) in [
        (7_999, StealDecision::Nothing, StealDecision::Nothing),
        (8_000, from(5), StealDecision::Nothing),
        (16_000, from(5), from(5)),
    ] {
        sim.average_idle = Nanos(average);
        assert_eq!((sim.steal(LINUX, 1), sim.steal(v3, 1)), (linux, after), "{average} ns");
    }
    // The look into the queues is part of the search's cost.
    (sim.average_idle, sim.look) = (Nanos(24_000), Nanos(0));
    assert_eq!(sim.steal(v3, 9), from(5));
    sim.look = Nanos(1);
    assert_eq!((sim.steal(v3, 9), sim.steal(LINUX, 9)), (StealDecision::Nothing, from(5)));
    // The average idle time of a kicked CPU does not matter.
    (sim.newly, sim.average_idle) = (false, Nanos(0));
    assert_eq!(sim.steal(v3, 1), from(5));
}

/// The experiment of September 2023: the check of the average idle time comes before the queues, that of overload after
/// them.
#[test]
fn behind_the_check_the_wake_queue_is_asked_only_where_searching_the_llc_is_worth_it() {
    let v3 = Kernel { wake_queue: true, queue_rule: QueueRule::V3, ..LINUX };
    let checked = Kernel { queue_rule: QueueRule::V3Checked, ..v3 };
    let both = |sim: &Simulation| (sim.steal(v3, 1), sim.steal(checked, 1));
    // Cores of two threads, which are the innermost domain: 2 µs. The LLC: 16 µs.
    let mut sim = Simulation::drawn([1, 2, 8, 2]).idle(&[1, 17]).entered(v3, 0, 1);
    assert_eq!(
        both(&sim),
        (StealDecision::Shard(0), StealDecision::Shard(0)),
        "no CPU has more than one task"
    );
    sim = sim.waiting(5, 3);
    for (average, behind) in
        [(16_000, StealDecision::Shard(0)), (15_999, StealDecision::Nothing), (2_000, StealDecision::Nothing)]
    {
        sim.average_idle = Nanos(average);
        assert_eq!(both(&sim), (StealDecision::Shard(0), behind), "{average} ns");
    }
    (sim.average_idle, sim.look) = (Nanos(16_000), Nanos(16_001));
    assert_eq!(
        both(&sim),
        (StealDecision::Shard(0), StealDecision::Nothing),
        "looks into the queues have cost more than a search"
    );
    // With empty queues the CPU does not search either. Linux searches the core, and finds no task there.
    let mut sim = sim.entered(v3, 0, 0);
    sim.average_idle = Nanos(2_000);
    assert_eq!(
        (sim.steal(LINUX, 17), sim.steal(checked, 17)),
        (StealDecision::Nothing, StealDecision::Nothing)
    );
    sim.newly = false;
    assert_eq!(sim.steal(checked, 1), from(5), "a kicked CPU searches nevertheless");
}

#[test]
fn the_cost_of_a_migration_bounds_how_long_a_cpu_is_taken_to_idle_and_which_sleeps_are_short() {
    let kernel = Kernel { migration_cost: Nanos(50_000), ..LINUX };
    assert_eq!(
        (kernel.sysctl_migration_cost(), LINUX.sysctl_migration_cost()),
        (Nanos(50_000), Nanos(500_000))
    );
    let mut idle = AverageIdle::new(kernel.sysctl_migration_cost());
    assert_eq!(idle.average(), Nanos(100_000));
    let night = |idle: &mut AverageIdle, costliest| {
        idle.idle(Nanos(0));
        idle.wake(Nanos(1_000_000_000), Nanos(costliest), kernel.sysctl_migration_cost());
        idle.average().0
    };
    assert_eq!((night(&mut idle, 7), night(&mut idle, 70_000)), (100_000, 140_000));
    // SIS_CACHE halves the average after a sleep of a migration cost, and learns from shorter ones.
    for (slept, average) in [(49_999, 41_249), (50_000, 20_000)] {
        let mut sleeps = warmcore_sched::SleepHistory { since: Nanos(1), average: Nanos(40_000) };
        kernel.learn_sleep(&mut sleeps, Nanos(1 + slept));
        assert_eq!(sleeps.average, Nanos(average), "{slept} ns");
    }
}

#[test]
fn a_tick_while_tasks_wait_kicks_the_first_idle_cpu() {
    let sim = Simulation::drawn(TWO_LLCS).waiting(5, 1).idle(&[2, 12]);
    assert_eq!(LINUX.cpu_to_notify(&sim.machine, &sim, CpuId(5), NOW), Some(CpuId(2)));
    assert_eq!(LINUX.cpu_to_notify(&sim.machine, &sim, CpuId(4), NOW), None, "a single task does not wait");
}

#[test]
fn the_average_of_idling_forgets_and_is_bounded() {
    let mut idle = AverageIdle::default();
    assert_eq!(idle.average(), Nanos(1_000_000));
    for round in 0..100u64 {
        idle.idle(Nanos(round * 1_000_000));
        idle.wake(Nanos(round * 1_000_000 + 30_000), Nanos(0), LINUX.migration_cost);
    }
    assert!((30_000..30_010).contains(&idle.average().0), "{idle:?}");
    idle.idle(Nanos(0));
    idle.found_task();
    idle.wake(Nanos(u64::MAX), Nanos(0), LINUX.migration_cost);
    assert!(idle.average() < Nanos(30_010), "a CPU that stole was not idle");
    idle.idle(Nanos(0));
    idle.wake(Nanos(u64::MAX), Nanos(0), LINUX.migration_cost);
    assert_eq!(idle.average(), Nanos(1_000_000));
    idle.idle(Nanos(0));
    idle.wake(Nanos(u64::MAX), Nanos(700_000), LINUX.migration_cost);
    assert_eq!(idle.average(), Nanos(1_400_000));
}

#[test]
fn the_cost_of_a_search_is_the_most_that_was_seen_and_fades() {
    let mut cost = NewidleCost::default();
    cost.searched(Nanos(25_600), Nanos(5));
    cost.searched(Nanos(1_000), Nanos(500_000_000));
    assert_eq!(cost.most(), Nanos(25_600));
    cost.searched(Nanos(1_000), Nanos(1_000_000_006));
    assert_eq!(cost.most(), Nanos(25_300));
}

#[test]
fn only_a_waker_of_more_tasks_than_an_llc_has_cpus_is_wide() {
    let flips = |n: u64| {
        let mut task = Flips::default();
        (0..n).for_each(|i| task.wakes(i, Nanos(1)));
        task
    };
    assert!(!Flips::is_wide(&flips(1000), &flips(1), 8), "its wakees wake only one task each");
    assert!(Flips::is_wide(&flips(64), &flips(8), 8) && Flips::is_wide(&flips(8), &flips(64), 8));
    assert!(!Flips::is_wide(&flips(63), &flips(8), 8));
    let mut halved = flips(64);
    halved.wakes(63, Nanos(2_000_000_000));
    assert!(!Flips::is_wide(&halved, &flips(8), 8));
}

static MACHINES: LazyLock<Vec<(String, SchedDomains)>> =
    LazyLock::new(|| all_machines().into_iter().filter(|(_, machine)| machine.cpus() <= 240).collect());

fn nanos() -> impl Strategy<Value = Nanos> {
    prop_oneof![Just(0), 0..20_000_000u64, Just(u64::MAX)].prop_map(Nanos)
}

prop_compose! {
    fn cpu()(idle: bool, offline in prop::bool::weighted(0.2), backlog in prop_oneof![Just(0), 0..5u32],
             hot_until in nanos()) -> Cpu {
        Cpu { idle, offline, backlog, hot_until, ..Cpu::default() }
    }
}

prop_compose! {
    fn kernel()(hot_windows: bool, wake_queue: bool, sis_node: bool, newidle in 0..3u8, rule in 0..3u8,
                queue in 0..3u8, migration_cost in nanos()) -> Kernel {
        let hot_rule = [HotRule::V1, HotRule::V2, HotRule::V2Text][rule as usize];
        let newidle = [Newidle::Gated, Newidle::Always, Newidle::Off][newidle as usize];
        let queue_rule = [QueueRule::V1, QueueRule::V3, QueueRule::V3Checked][queue as usize];
        Kernel { hot_windows, hot_rule, wake_queue, sis_node, newidle, queue_rule, migration_cost }
    }
}

prop_compose! {
    fn sim()(which in 0..MACHINES.len())
              (which in Just(which), cpus in prop::collection::vec(cpu(), MACHINES[which].1.cpus()),
               // As many queues as v3 has.
               waiting in prop::collection::vec(prop_oneof![4 => Just(0), 1 => 0..9u32], 3 * MACHINES[which].1.shards()),
               last_ran in prop::collection::vec(nanos(), MACHINES[which].1.cpus()),
               (sleeps_next, is_wide, newly) in any::<(bool, bool, bool)>(),
               was_on in prop::option::of(0..MACHINES[which].1.cpus()),
               (average_idle, failed, cost, look) in (nanos(), 0..4u32, 0..5_000u64, nanos())) -> Simulation {
        let sim = Simulation::busy(MACHINES[which].1.clone());
        let facts = Facts { cpus, waiting, ..sim.facts.clone() };
        let was_on = was_on.map(|cpu| CpuId(cpu as u32));
        Simulation { facts, last_ran, sleeps_next, is_wide, newly, was_on, average_idle, failed, cost, look, ..sim }
    }
}

prop_compose! {
    fn case()(sim in sim())
             (prev_cpu in prop::option::weighted(0.8, 0..sim.machine.cpus()),
              near in prop::option::weighted(0.9, 0..sim.machine.cpus()), allowed in 0..6u8,
              to in 0..sim.machine.cpus(), sim in Just(sim)) -> (Simulation, Wake) {
        let cpu = |index| CpuId(index as u32);
        let allowed = match allowed {
            0 => Allowed::Cpu(cpu(to)),
            1 => Allowed::Llc(sim.machine.llc_of(cpu(to))),
            2 => Allowed::Node(sim.machine.node_of(cpu(to))),
            _ => Allowed::Anywhere,
        };
        let prev_cpu = prev_cpu.map(cpu).filter(|prev_cpu| may(&sim.machine, allowed, *prev_cpu));
        (sim, wake(near.map_or(WakeSource::Outside(None), |near| WakeSource::Outside(Some(cpu(near)))), prev_cpu, allowed))
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_woken_task_goes_to_a_cpu_that_is_allowed_and_online((sim, wake) in case(), kernel in kernel()) {
        let Simulation { machine, .. } = &sim;
        let placed = kernel.wake(machine, &sim, &wake);
        prop_assert_eq!(placed, kernel.wake(machine, &sim, &wake));
        let TargetQueue::Cpu(cpu) = placed.to else { panic!("to a shard") };
        let online = || (0..machine.cpus() as u32).map(CpuId).filter(|cpu| !sim.is_offline(*cpu));
        prop_assert!(!sim.is_offline(cpu) || online().next().is_none());
        prop_assert!(may(machine, wake.wakee.allowed, cpu) || !online().any(|cpu| may(machine, wake.wakee.allowed, cpu)));
        prop_assert_eq!(placed.kick, sim.is_idle(cpu).then_some(cpu));
        prop_assert!(!placed.hot_broken || (kernel.hot_windows && sim.hot_until(cpu) > NOW));
        prop_assert!(kernel.hot_windows || placed.hot_kept == 0);
        for why in EVERY {
            let queue = kernel.enters(machine, cpu, wake.wakee.allowed, why);
            prop_assert!(queue.is_none_or(|queue| kernel.wake_queue && queue < kernel.queues(machine)));
        }
    }

    /// About half of the target's LLC is idle, so three tenths of its CPUs or more are looked at, from the one after
    /// the target on.
    #[test]
    fn a_search_that_finds_an_idle_cpu_within_its_depth_takes_an_idle_one((mut sim, mut wake) in case(), kernel in kernel()) {
        let prev_cpu = wake.wakee.prev_cpu.unwrap_or(CpuId(0));
        (wake.wakee.prev_cpu, wake.waker, wake.wakee.allowed) = (Some(prev_cpu), WakeSource::Cpu(prev_cpu), Allowed::Anywhere);
        let machine = sim.machine.clone();
        let llc: Vec<CpuId> = machine.behind(prev_cpu).collect();
        llc.iter().enumerate().for_each(|(i, cpu)| {
            sim.facts.cpus[cpu.index()].offline = false;
            sim.facts.cpus[cpu.index()].idle = i % 2 == 0 && *cpu != prev_cpu;
        });
        prop_assume!(llc.len() >= 8);
        let kernel = Kernel { hot_rule: HotRule::V2Text, ..kernel };
        let placed = kernel.wake(&machine, &sim, &wake);
        prop_assert!(placed.kick.is_some(), "{placed:?}");
    }

    #[test]
    fn without_an_open_window_hot_windows_change_nothing((mut sim, wake) in case(), kernel in kernel()) {
        sim.facts.cpus.iter_mut().for_each(|cpu| cpu.hot_until = cpu.hot_until.min(NOW));
        let of = |hot_windows| Kernel { hot_windows, ..kernel }.wake(&sim.machine, &sim, &wake);
        prop_assert_eq!(of(false), of(true));
    }

    /// Under the rule of v2's text, hot windows never make a task wait that would find an idle CPU without them.
    #[test]
    fn hot_windows_make_no_task_wait_beside_an_idle_cpu((sim, wake) in case(), kernel in kernel()) {
        let kernel = Kernel { hot_rule: HotRule::V2Text, ..kernel };
        let of = |hot_windows| Kernel { hot_windows, ..kernel }.wake(&sim.machine, &sim, &wake);
        prop_assert_eq!(of(false).kick.is_some(), of(true).kick.is_some());
    }

    /// If an idle CPU is found without SIS_NODE, SIS_NODE changes nothing.
    #[test]
    fn sis_node_changes_only_searches_that_found_no_idle_cpu((sim, wake) in case(), kernel in kernel()) {
        let of = |sis_node| Kernel { sis_node, ..kernel }.wake(&sim.machine, &sim, &wake);
        prop_assert!(of(false).kick.is_none() || of(false) == of(true));
    }

    #[test]
    fn a_steal_is_from_where_a_task_waits_behind_another(sim in sim(), kernel in kernel(), me in any::<prop::sample::Index>()) {
        let machine = &sim.machine;
        let me = CpuId(me.index(machine.cpus()) as u32);
        let steal = kernel.steal(machine, &sim, me, NOW);
        match steal {
            StealDecision::Shard(queue) => {
                prop_assert!(kernel.wake_queue && sim.shared_queue_len(queue) > 0);
                let per_shard = kernel.queues(machine) / machine.shards();
                prop_assert_eq!(machine.llc_of(machine.cpus_of(queue / per_shard)[0]), machine.llc_of(me));
            }
            StealDecision::From { cpu, at_most } => {
                prop_assert!(at_most == 1 && cpu != me && sim.backlog(cpu) > 0 && sim.runs(cpu) > 1);
                prop_assert!(kernel.newidle != Newidle::Off || !sim.newly);
            }
            StealDecision::Nothing => {}
            StealDecision::Until(_) => prop_assert!(false, "the kernel's policy sets no search timer"),
        }
        let own = kernel.enters(machine, me, Allowed::Anywhere, Enqueued::WokenOnPrevCpu);
        let asks = kernel.queue_rule != QueueRule::V3Checked;
        prop_assert!(!asks || own.is_none_or(|own| sim.shared_queue_len(own) == 0) || matches!(steal, StealDecision::Shard(_)));
        // What the gate lets pass, passes without the gate too.
        let gated = Kernel { newidle: Newidle::Gated, ..kernel }.steal(machine, &sim, me, NOW);
        let always = Kernel { newidle: Newidle::Always, ..kernel }.steal(machine, &sim, me, NOW);
        // A kicked CPU searches where the check keeps it from the queues.
        let is_kicked = kernel.queue_rule == QueueRule::V3Checked && !sim.newly;
        prop_assert!(gated == StealDecision::Nothing || gated == always || is_kicked);
    }

    #[test]
    fn a_balance_takes_no_more_than_makes_both_even(sim in sim(), kernel in kernel()) {
        let (me, other) = (CpuId(0), CpuId(sim.machine.cpus() as u32 - 1));
        let come = kernel.balance(&sim.machine, &sim, me, other);
        prop_assert!(come == 0 || sim.backlog(me) + come <= sim.backlog(other) - come);
    }

    /// Runs wakes as a scheduler does: after each wake each CPU without a task takes one from its own queue, or else
    /// steals.
    #[test]
    fn with_the_wake_queue_no_cpu_idles_while_a_wakee_of_its_llc_waits(
        wakes in prop::collection::vec((0..16u32, 0..16u32, 0..8u8), 1..60)
    ) {
        let kernel = Kernel { wake_queue: true, newidle: Newidle::Off, ..LINUX };
        let mut sim = Simulation::drawn(TWO_LLCS);
        let mut queues: Vec<Vec<usize>> = vec![Vec::new(); 16];
        let mut running: Vec<Option<usize>> = vec![None; 16];
        let mut entered: Vec<Vec<usize>> = vec![Vec::new(); 2];
        let mut ended = 0;
        for (task, (waker, prev_cpu, ends)) in wakes.iter().enumerate() {
            let state = |sim: &mut Simulation, queues: &[Vec<usize>], running: &[Option<usize>], entered: &[Vec<usize>]| {
                for cpu in 0..16 {
                    sim.facts.cpus[cpu].idle = running[cpu].is_none() && queues[cpu].is_empty();
                    sim.facts.cpus[cpu].backlog = queues[cpu].len() as u32;
                }
                (0..2).for_each(|shard| sim.facts.waiting[shard] = entered[shard].len() as u32);
            };
            state(&mut sim, &queues, &running, &entered);
            let wake = wake(WakeSource::Outside(Some(CpuId(*waker))), Some(CpuId(*prev_cpu)), Allowed::Anywhere);
            let placed = kernel.wake(&sim.machine, &sim, &wake);
            let TargetQueue::Cpu(cpu) = placed.to else { panic!("to a shard") };
            queues[cpu.index()].push(task);
            let why = if cpu.0 == *prev_cpu { Enqueued::WokenOnPrevCpu } else { Enqueued::WokenElsewhere };
            if let Some(shard) = kernel.enters(&sim.machine, cpu, Allowed::Anywhere, why) {
                entered[shard].push(task);
            }
            if *ends < 4 {
                ended += usize::from(running[usize::from(*ends) * 4].take().is_some());
            }
            for cpu in 0..16usize {
                if running[cpu].is_some() {
                    continue;
                }
                state(&mut sim, &queues, &running, &entered);
                let next = if queues[cpu].is_empty() {
                    match kernel.steal(&sim.machine, &sim, CpuId(cpu as u32), NOW) {
                        StealDecision::Shard(shard) => {
                            let task = entered[shard].remove(0);
                            queues.iter_mut().for_each(|queue| queue.retain(|other| *other != task));
                            Some(task)
                        }
                        other => { prop_assert_eq!(other, StealDecision::Nothing); None }
                    }
                } else {
                    Some(queues[cpu].remove(0))
                };
                if let Some(task) = next {
                    entered.iter_mut().for_each(|queue| queue.retain(|other| *other != task));
                    running[cpu] = Some(task);
                }
            }
            for (llc, entered) in running.chunks(8).zip(&entered) {
                prop_assert!(entered.is_empty() || llc.iter().all(Option::is_some));
            }
            let all = ended + running.iter().flatten().count() + queues.iter().map(Vec::len).sum::<usize>();
            prop_assert_eq!(all, task + 1, "no task is lost");
        }
    }
}
