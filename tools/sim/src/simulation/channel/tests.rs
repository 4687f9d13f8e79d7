//! Tests of channels, of the budget of their operations, and of outside threads.

use super::super::kernel::KernelScheduler;
use super::super::{ByIdle, Outside, Settings, Simulation};
use crate::costs::Costs;
use crate::policy::Kernel;
use crate::program::{Program, TaskAffinity};
use warmcore_topo::Topology;
use warmcore_types::{CpuId, Nanos};

fn machine() -> Topology {
    Topology::from_machine("[drawn]\nsockets = 1\nl3_per_socket = 1\ncores_per_l3 = 2\nsmt = 1\n", "drawn")
        .unwrap()
}

#[test]
fn a_full_channel_holds_its_senders_and_serves_them_in_order() {
    let topology = machine();
    let mut sim: Simulation<KernelScheduler<Kernel>> =
        Simulation::new(&topology, &Costs::of(&topology), Settings::kernel(), Kernel::default(), 1);
    for name in ["a", "b"] {
        let send = |p: Program| p.send("c", 2).mark("sent");
        sim.spawn(&Program::new(name).daemon().repeat(3, send).run(1).mark(name)).unwrap();
    }
    sim.run(Nanos(1_000_000)).unwrap();
    let report = sim.run(Nanos(2_000_000)).unwrap();
    assert_eq!(report.mark("sent"), 2, "two messages fit");
    sim.spawn(&Program::new("receiver").repeat(6, |p| p.receive("c").run(10).mark("received"))).unwrap();
    let report = sim.run(Nanos(3_000_000)).unwrap();
    assert_eq!((report.mark("sent"), report.mark("received")), (6, 6));
    assert_eq!((report.mark("a"), report.mark("b")), (1, 1));
}

#[test]
fn a_task_that_has_used_up_its_operations_yields() {
    let with = |op_budget| {
        let settings = Settings { op_budget, ..Settings::kernel() };
        let topology = machine();
        let mut sim = Simulation::new(&topology, &Costs::of(&topology), settings, Kernel::default(), 1);
        let cpu = TaskAffinity::Cpu(CpuId(0));
        let alone = |p: Program| p.send("c", 1).receive("c").run(10);
        sim.spawn(&Program::new("busy").on(cpu.clone()).repeat(100, alone).mark("busy")).unwrap();
        sim.spawn(&Program::new("other").on(cpu).run(1)).unwrap();
        let report = sim.run(Nanos(1_000_000)).unwrap();
        report.tasks[1].counts.wait_ns
    };
    let (limited, unlimited) = (with(Some(10)), with(None));
    assert!(limited < unlimited / 2, "the other task waited for {limited} and {unlimited} ns");
}

#[test]
fn an_outside_thread_wakes_tasks_is_woken_and_interrupts_a_busy_machine() {
    let always = |ns| ByIdle([(0, ns); 5]);
    let costs = Outside { wake: always(100), latency: always(5_000), ..Outside::default() };
    let settings = Settings { outside: costs, ..Settings::kernel() };
    let topology = machine();
    let run = |busy: usize| {
        let mut sim =
            Simulation::new(&topology, &Costs::of(&topology), settings.clone(), Kernel::default(), 1);
        let ask = |p: Program| p.run(1_000).send("asked", 1).receive("answered").mark("answers");
        sim.spawn(&Program::new("outside").outside().daemon().forever(ask)).unwrap();
        let answer = |p: Program| p.receive("asked").run(1_000).send("answered", 1);
        sim.spawn(&Program::new("server").daemon().forever(answer)).unwrap();
        for i in 0..busy {
            sim.spawn(&Program::new(format!("busy {i}")).run(1_000_000).mark("ended")).unwrap();
        }
        let report = sim.run(Nanos(1_000_000)).unwrap();
        (report.mark("answers"), report.mark("ended"))
    };
    let (answers, _) = run(0);
    // Each answer takes both runs and the latency of the outside thread at least.
    assert!((50..=142).contains(&answers), "{answers}");
    let cpus = topology.cpus.len();
    assert!(run(cpus).1 < cpus as u64, "the thread took no time from a task that runs");
}

#[test]
fn a_thread_runs_its_programs_in_turn_and_has_a_cpu_for_itself() {
    let topology = machine();
    let runs = |thread: fn(Program, u32) -> Program| {
        let mut sim =
            Simulation::new(&topology, &Costs::of(&topology), Settings::kernel(), Kernel::default(), 1);
        for i in 0..4 {
            let program = thread(Program::new(format!("loop {i}")), i);
            sim.spawn(&program.daemon().forever(|p| p.run(1_000).mark("runs").sleep(1))).unwrap();
        }
        sim.run(Nanos(1_000_000)).unwrap().mark("runs")
    };
    let one = runs(|program, _| program.on_thread(7));
    let each = runs(|program, _| program.outside());
    assert!((900..=1001).contains(&one), "{one} runs of 1 µs in 1 ms on one thread");
    assert!((1800..=2002).contains(&each), "{each} runs on two CPUs");
}
