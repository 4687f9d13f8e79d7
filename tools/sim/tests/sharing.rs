//! Work spreads to all CPUs, and each queued task gets its share.

use warmcore_sched::{Allowed, Policy};
use warmcore_sim::costs::Costs;
use warmcore_sim::policy::kernel::QueueRule;
use warmcore_sim::policy::{Kernel, SimPolicyKind};
use warmcore_sim::program::Program;
use warmcore_sim::simulation::{KernelScheduler, Report, RuntimeScheduler, Settings, Simulation};
use warmcore_topo::Topology;
use warmcore_types::{CpuId, Nanos};

const MS: u64 = 1_000_000;

fn drawn(llcs: u32, cores: u32) -> Topology {
    let text = format!("[drawn]\nsockets = 1\nl3_per_socket = {llcs}\ncores_per_l3 = {cores}\nsmt = 1\n");
    Topology::from_machine(&text, "drawn").unwrap()
}

fn sim(topology: &Topology, kernel: Kernel) -> Simulation<KernelScheduler<Kernel>> {
    Simulation::new(topology, &Costs::of(topology), Settings::kernel(), kernel, 1)
}

/// Linux without a shared queue, and with one of each version.
fn kernels() -> [Kernel; 3] {
    let plain = Kernel::default();
    let with = |queue_rule| Kernel { wake_queue: true, queue_rule, ..plain };
    [plain, with(QueueRule::V1), with(QueueRule::V3)]
}

fn runtime<P: Policy>(topology: &Topology, settings: Settings, policy: P) -> Simulation<RuntimeScheduler<P>> {
    Simulation::runtime(topology, &Costs::of(topology), settings, policy, 1)
}

/// How long each task ran, in ms.
fn ran_ms(report: &Report) -> Vec<u64> {
    report.tasks.iter().map(|task| task.counts.run_ns / MS).collect()
}

#[test]
fn a_cpu_that_found_work_notifies_the_next_until_all_cpus_run() {
    let policy = SimPolicyKind::WorkSteal;
    let mut sim = runtime(&drawn(1, 8), Settings { hz: 0, ..Settings::runtime() }, policy);
    let leaf = Program::new("leaf").run(5 * MS);
    sim.spawn(&Program::new("make").repeat(8, |p| p.fork(leaf)).run(5 * MS).join()).unwrap();
    let report = sim.run(Nanos(1_000 * MS)).unwrap();
    assert!(report.cpus.iter().all(|cpu| cpu.busy_ns >= 5 * MS), "{:?}", report.cpus);
    assert!(report.now.0 < 11 * MS, "{:?}", report.now);
}

#[test]
fn a_task_that_may_no_longer_run_on_its_cpu_moves_to_an_allowed_one() {
    for policy in SimPolicyKind::all() {
        let mut sim = runtime(&drawn(2, 2), Settings::runtime(), policy);
        let there = Program::new("a").on(Allowed::Cpu(CpuId(0))).run(1_000).allow(Allowed::Cpu(CpuId(3)));
        sim.spawn(&there.repeat(20, |p| p.sleep(MS).run(100_000))).unwrap();
        let report = sim.run(Nanos(1_000 * MS)).unwrap();
        assert!(report.cpus[3].busy_ns >= 20 * 100_000, "{policy}: {:?}", report.cpus);
    }
}

#[test]
fn tasks_in_a_shared_queue_get_their_share_of_a_cpu() {
    for kernel in kernels() {
        let mut sim = sim(&drawn(1, 1), kernel);
        for name in ["a", "b", "c"] {
            sim.spawn(&Program::new(name).forever(|p| p.run(MS))).unwrap();
        }
        let ran = ran_ms(&sim.run(Nanos(3_000 * MS)).unwrap());
        assert!(ran.iter().all(|ms| (900..=1_100).contains(ms)), "{kernel:?}: {ran:?}");
    }
}

#[test]
fn a_long_sleep_gives_no_claim_to_as_long_a_run() {
    for kernel in kernels() {
        let mut sim = sim(&drawn(1, 1), kernel);
        let hog = Program::new("hog").on(Allowed::Cpu(CpuId(0))).forever(|p| p.run(MS).sleep(1));
        sim.spawn(&hog).unwrap();
        sim.spawn(&Program::new("sleeper").run(1_000).sleep(2_000 * MS).run(3_000 * MS)).unwrap();
        let ran = ran_ms(&sim.run(Nanos(3_000 * MS)).unwrap());
        assert!((400..=600).contains(&ran[1]), "{kernel:?}: {ran:?}");
    }
}

#[test]
fn time_does_not_go_back_if_run_is_called_with_an_earlier_time() {
    let mut sim = sim(&drawn(1, 1), Kernel::default());
    sim.spawn(&Program::new("a").run(100_000)).unwrap();
    assert_eq!(sim.run(Nanos(50_000)).unwrap().now, Nanos(50_000));
    assert_eq!(sim.run(Nanos(100)).unwrap().now, Nanos(50_000));
}

/// A call of the core takes no time unless `Settings::calls` says so.
#[test]
fn tasks_that_only_yield_are_an_error_where_a_yield_takes_no_time() {
    let (settings, policy) = (Settings { steps_max: 1_000, ..Settings::runtime() }, SimPolicyKind::all()[0]);
    let mut sim = runtime(&drawn(1, 1), settings, policy);
    for name in ["a", "b"] {
        sim.spawn(&Program::new(name).forever(|p| p.yield_now())).unwrap();
    }
    let error = sim.run(Nanos(MS)).unwrap_err().to_string();
    assert!(error.contains("no time has passed"), "{policy}: {error}");
}
