//! A CPU that has nothing to do looks at a bounded number of those where somebody waits, and overlooks none for good.
//!
//! Model.   384 CPUs, on all of which somebody waits who is not due; the view counts whom it is asked about.
//! Number.  At most 32 CPUs, the rest of the shard with which that is reached, and two shards more.

mod common;

use common::{Facts, drawn, whole};
use std::cell::Cell;
use warmcore_sched::{Home, Policy, SchedDomains, StealDecision, View};
use warmcore_types::{CpuId, Nanos};

/// So many are weighed at most.
const LOOKS_MAX: u32 = 32 + 3 * 16;

/// Facts that count how often somebody asks what waits on a CPU.
struct Counted {
    facts: Facts,
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
        self.facts.backlog(cpu)
    }
    fn backlog_since(&self, cpu: CpuId) -> Nanos {
        self.facts.backlog_since(cpu)
    }
    fn migration_cost_at(&self, cpu: CpuId) -> Nanos {
        self.looks.set(self.looks.get() + 1);
        self.facts.migration_cost_at(cpu)
    }
    fn hot_until(&self, cpu: CpuId) -> Nanos {
        self.facts.hot_until(cpu)
    }
    fn shared_queue_len(&self, shard: usize) -> u32 {
        self.facts.shared_queue_len(shard)
    }
    fn idle_in(&self, shard: usize) -> u32 {
        self.facts.idle_in(shard)
    }
}

const NOW: Nanos = Nanos(1_000_000);

/// Somebody waits everywhere, since now.
fn all_wait() -> (SchedDomains, Counted) {
    let machine = whole(&drawn(2, 12, 8, 2));
    let mut facts = Facts::busy(&machine);
    facts.cpus[0].idle = true;
    for cpu in &mut facts.cpus[1..] {
        (cpu.backlog, cpu.since, cpu.migration_cost) = (1, NOW, Nanos(64_000));
    }
    (machine, Counted { facts, looks: Cell::new(0) })
}

#[test]
fn who_looks_asks_about_a_few_however_large_the_machine() {
    let (machine, view) = all_wait();
    let pull = Home.steal(&machine, &view, CpuId(0), NOW);
    assert!(matches!(pull, StealDecision::Until(at) if at > NOW), "{pull:?}");
    assert!(view.looks.get() <= LOOKS_MAX, "{}", view.looks.get());
}

/// One CPU far away has been stuck for long; whoever is near is never due.
#[test]
fn nobody_is_overlooked_for_good() {
    let (machine, mut view) = all_wait();
    let far = CpuId(383);
    view.facts.cpus[far.index()].stuck = true;
    // It looks again every 264 µs, which is when those near would be due.
    let found = (0..100u64).find(|look| {
        let now = Nanos(NOW.0 + look * 264_000);
        view.facts.cpus.iter_mut().for_each(|cpu| cpu.since = now);
        matches!(Home.steal(&machine, &view, CpuId(0), now), StealDecision::From { cpu, .. } if cpu == far)
    });
    assert!(found.is_some(), "not in a hundred looks");
}

#[test]
fn who_waits_far_away_alone_is_found_at_once() {
    let (machine, mut view) = all_wait();
    view.facts.cpus[1..383].iter_mut().for_each(|cpu| cpu.backlog = 0);
    view.facts.cpus[383].since = Nanos(0);
    let pull = Home.steal(&machine, &view, CpuId(0), NOW);
    assert_eq!(pull, StealDecision::From { cpu: CpuId(383), at_most: 1 });
}
