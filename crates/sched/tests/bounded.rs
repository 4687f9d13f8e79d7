//! Under Home each search of an idle CPU looks at a limited number of CPUs, and repeated searches reach all of them.
//!
//! 384 CPUs that are awake, on all or one of which a task waits; the view counts how many CPUs a search asks it
//! about. A search looks at 32 CPUs of other shards at most, the rest of the shard in which it reaches that number, and two shards
//! more. If another CPU has asked for it, it looks there alone, and if it has looked at all a short time ago, nowhere else.

mod common;

use common::{Facts, drawn, whole};
use std::cell::Cell;
use warmcore_sched::{FarSearch, Home, Policy, SchedDomains, ShardMask, StealDecision, View};
use warmcore_types::{CpuId, Nanos};

/// The most CPUs that a search looks at, its own shard included.
const LOOKS_MAX: u32 = 32 + 4 * 16;

/// Facts that count about how many CPUs a policy asks.
struct Counted {
    facts: Facts,
    far_search: FarSearch,
    looks: Cell<u32>,
}

impl View for Counted {
    fn is_idle(&self, cpu: CpuId) -> bool {
        self.facts.is_idle(cpu)
    }
    fn is_stuck(&self, cpu: CpuId) -> bool {
        self.facts.is_stuck(cpu)
    }
    fn backlog(&self, cpu: CpuId) -> u32 {
        self.looks.set(self.looks.get() + 1);
        self.facts.backlog(cpu)
    }
    fn backlog_since(&self, cpu: CpuId) -> Nanos {
        self.facts.backlog_since(cpu)
    }
    fn migration_cost_at(&self, cpu: CpuId) -> Nanos {
        self.facts.migration_cost_at(cpu)
    }
    fn far_cost_at(&self, cpu: CpuId) -> Nanos {
        self.facts.far_cost_at(cpu)
    }
    fn hot_until(&self, cpu: CpuId) -> Nanos {
        self.facts.hot_until(cpu)
    }
    fn shared_queue_len(&self, shard: usize) -> u32 {
        self.facts.shared_queue_len(shard)
    }
    fn idle_in(&self, shard: usize) -> ShardMask {
        self.facts.idle_in(shard)
    }
    fn far_search(&self, _: CpuId) -> FarSearch {
        self.far_search
    }
}

const NOW: Nanos = Nanos(1_000_000);

/// Facts in which a task waits on every CPU but the first, since [`NOW`].
fn tasks_wait_everywhere() -> (SchedDomains, Counted) {
    tasks_wait_on(whole(&drawn(2, 12, 8, 2)))
}

fn tasks_wait_on(machine: SchedDomains) -> (SchedDomains, Counted) {
    let mut facts = Facts::busy(&machine);
    facts.cpus[0].idle = true;
    for cpu in &mut facts.cpus[1..] {
        (cpu.backlog, cpu.since, cpu.migration_cost) = (1, NOW, Nanos(64_000));
    }
    (machine, Counted { facts, far_search: FarSearch::All, looks: Cell::new(0) })
}

#[test]
fn a_search_looks_at_few_cpus_however_large_the_machine() {
    let (machine, view) = tasks_wait_everywhere();
    let steal = Home::DEFAULT.steal(&machine, &view, CpuId(0), NOW);
    assert!(matches!(steal, StealDecision::Until(at) if at > NOW), "{steal:?}");
    assert!(view.looks.get() <= LOOKS_MAX, "{}", view.looks.get());
}

/// One distant CPU is stuck, and no task of another CPU may be stolen yet.
#[test]
fn a_stuck_cpu_far_away_is_found_in_the_end() {
    let (machine, mut view) = tasks_wait_everywhere();
    let far = CpuId(383);
    view.facts.cpus[far.index()].stuck = true;
    // At each search, 264 µs after the one before, every waiting task has just been queued, so only the stuck CPU's may
    // be stolen.
    let found = (0..100u64).find(|look| {
        let now = Nanos(NOW.0 + look * 264_000);
        view.facts.cpus.iter_mut().for_each(|cpu| cpu.since = now);
        matches!(Home::DEFAULT.steal(&machine, &view, CpuId(0), now), StealDecision::From { cpu, .. } if cpu == far)
    });
    assert!(found.is_some(), "not in a hundred looks");
}

/// Of the CPUs that are awake the last one has tasks, of 384 or another machine's.
fn a_task_waits_far_away(machine: SchedDomains) -> (SchedDomains, Counted) {
    let (machine, mut view) = tasks_wait_on(machine);
    let last = machine.cpus() - 1;
    view.facts.cpus[1..last].iter_mut().for_each(|cpu| cpu.backlog = 0);
    view.facts.cpus[last].since = Nanos(0);
    (machine, view)
}

#[test]
fn the_only_waiting_task_is_found_in_the_end_and_no_search_is_long() {
    let (machine, view) = a_task_waits_far_away(whole(&drawn(2, 12, 8, 2)));
    let found = (0..100u64).find(|look| {
        view.looks.set(0);
        let steal = Home::DEFAULT.steal(&machine, &view, CpuId(0), Nanos(NOW.0 + look * 264_000));
        assert!(view.looks.get() <= LOOKS_MAX, "{}", view.looks.get());
        steal == StealDecision::From { cpu: CpuId(383), at_most: 1 }
    });
    assert!(found.is_some(), "not in a hundred looks");
}

#[test]
fn the_cpu_that_asked_is_looked_at_at_once_however_far() {
    // The last-level caches of the second machine have 112 CPUs each, in seven shards.
    for machine in [drawn(2, 12, 8, 2), drawn(2, 1, 56, 2)] {
        let (machine, mut view) = a_task_waits_far_away(whole(&machine));
        let (near, last) = (machine.shard_of(CpuId(0)), CpuId(machine.cpus() as u32 - 1));
        let at_home = machine.cpus_of(near).len() as u32;
        let limit = if machine.cpus() == 384 { 0 } else { 32 + at_home };
        for (far_search, decision, looks) in [
            (
                FarSearch::Shard(machine.shard_of(last)),
                StealDecision::From { cpu: last, at_most: 1 },
                2 * at_home,
            ),
            (FarSearch::None, StealDecision::Nothing, at_home),
        ] {
            view.far_search = far_search;
            view.looks.set(0);
            assert_eq!(Home::DEFAULT.steal(&machine, &view, CpuId(0), NOW), decision, "{far_search:?}");
            assert!(view.looks.get() <= looks + limit, "{far_search:?}: {}", view.looks.get());
        }
    }
}
