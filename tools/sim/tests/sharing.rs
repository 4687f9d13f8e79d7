//! Who gets a CPU: work spreads to all of them, and whoever waits there gets his part.

use warmcore_sched::Allowed;
use warmcore_sim::costs::Costs;
use warmcore_sim::policy::{Kernel, SimPolicy, SimPolicyKind};
use warmcore_sim::program::Program;
use warmcore_sim::simulation::{Report, Settings, Simulation};
use warmcore_topo::Topology;
use warmcore_types::{CpuId, Nanos};

const MS: u64 = 1_000_000;

fn drawn(llcs: u32, cores: u32) -> Topology {
    let text = format!("[drawn]\nsockets = 1\nl3_per_socket = {llcs}\ncores_per_l3 = {cores}\nsmt = 1\n");
    Topology::from_machine(&text, "drawn").unwrap()
}

fn sim<P: SimPolicy>(topology: &Topology, settings: Settings, policy: P) -> Simulation<P> {
    Simulation::new(topology, &Costs::of(topology), settings, policy, 1)
}

/// What the tasks ran for, in ms.
fn ran_ms(report: &Report) -> Vec<u64> {
    report.tasks.iter().map(|task| task.counts.run_ns / MS).collect()
}

#[test]
fn who_looked_and_found_something_calls_the_next_until_all_cpus_run() {
    let policy = SimPolicyKind::WorkSteal;
    let mut sim = sim(&drawn(1, 8), Settings { hz: 0, ..Settings::runtime() }, policy);
    let leaf = Program::new("leaf").run(5 * MS);
    sim.spawn(&Program::new("make").repeat(8, |p| p.fork(leaf)).run(5 * MS).join()).unwrap();
    let report = sim.run(Nanos(1_000 * MS)).unwrap();
    assert!(report.cpus.iter().all(|cpu| cpu.busy_ns >= 5 * MS), "{:?}", report.cpus);
    assert!(report.now.0 < 11 * MS, "{:?}", report.now);
}

#[test]
fn whoever_may_no_longer_run_at_home_goes_where_he_may() {
    for policy in SimPolicyKind::all() {
        let mut sim = sim(&drawn(2, 2), Settings::runtime(), policy);
        let there = Program::new("a").on(Allowed::Cpu(CpuId(0))).run(1_000).allow(Allowed::Cpu(CpuId(3)));
        sim.spawn(&there.repeat(20, |p| p.sleep(MS).run(100_000))).unwrap();
        let report = sim.run(Nanos(1_000 * MS)).unwrap();
        assert!(report.cpus[3].busy_ns >= 20 * 100_000, "{policy}: {:?}", report.cpus);
    }
}

#[test]
fn tasks_that_belong_to_no_cpu_get_their_part_of_it() {
    for policy in SimPolicyKind::all() {
        let mut sim = sim(&drawn(1, 1), Settings::default(), policy);
        for name in ["a", "b", "c"] {
            sim.spawn(&Program::new(name).forever(|p| p.run(MS))).unwrap();
        }
        let ran = ran_ms(&sim.run(Nanos(3_000 * MS)).unwrap());
        assert!(ran.iter().all(|ms| (900..=1_100).contains(ms)), "{policy}: {ran:?}");
    }
}

#[test]
fn a_long_sleep_is_no_claim_to_the_cpu_for_as_long() {
    for policy in SimPolicyKind::all() {
        let mut sim = sim(&drawn(1, 1), Settings::default(), policy);
        let hog = Program::new("hog").on(Allowed::Cpu(CpuId(0))).forever(|p| p.run(MS).sleep(1));
        sim.spawn(&hog).unwrap();
        sim.spawn(&Program::new("sleeper").run(1_000).sleep(2_000 * MS).run(3_000 * MS)).unwrap();
        let ran = ran_ms(&sim.run(Nanos(3_000 * MS)).unwrap());
        assert!((400..=600).contains(&ran[1]), "{policy}: {ran:?}");
    }
}

#[test]
fn time_does_not_go_back_if_it_is_run_to_where_it_was() {
    let mut sim = sim(&drawn(1, 1), Settings::kernel(), Kernel::default());
    sim.spawn(&Program::new("a").run(100_000)).unwrap();
    assert_eq!(sim.run(Nanos(50_000)).unwrap().now, Nanos(50_000));
    assert_eq!(sim.run(Nanos(100)).unwrap().now, Nanos(50_000));
}
