use super::*;
use crate::costs::Costs;
use crate::policy::{Kernel, SimPolicyKind};
use crate::program::Program;
use crate::simulation::{Settings, Simulation};

/// Four CPUs: 0 and 1 share a last-level cache, 2 and 3 another one.
fn four() -> Topology {
    let text = "[four]\nsockets = 1\nl3_per_socket = 2\ncores_per_l3 = 2\nsmt = 1\nc2c_same_socket = 100\n";
    Topology::from_machine(text, "four").unwrap()
}

fn probe() -> SchedProbe {
    SchedProbe::new(&four())
}

const A: TaskId = TaskId(0);
const B: TaskId = TaskId(1);

fn wake(probe: &mut SchedProbe, at: u64, task: TaskId, on: u32) {
    probe.waking(Nanos(at), WakeSource::Outside(None), task);
    probe.queued(Nanos(at), task, TargetQueue::Cpu(CpuId(on)));
}

fn runs(probe: &mut SchedProbe, at: u64, cpu: u32, task: TaskId) {
    probe.switch(Nanos(at), CpuId(cpu), None, Some(task));
}

fn stops(probe: &mut SchedProbe, at: u64, cpu: u32, task: TaskId, why: SwitchReason) {
    probe.switch(Nanos(at), CpuId(cpu), Some((task, why)), None);
}

#[test]
fn a_wake_compares_the_cpu_of_the_run_with_that_of_the_run_before() {
    let mut probe = probe();
    // New on CPU 0, then woken on 0, 1, 3 and 3: same, llc, other, same.
    for (i, cpu) in [0, 0, 1, 3, 3].into_iter().enumerate() {
        let at = i as u64 * 10_000;
        wake(&mut probe, at, A, cpu);
        runs(&mut probe, at + 1_000, cpu, A);
        stops(&mut probe, at + 5_000, cpu, A, SwitchReason::Blocked);
    }
    let counts = probe.counts_at(Nanos(50_000));
    assert_eq!(counts.wakes, WakesByPlace { same: 2, llc: 1, other: 1 });
    assert_eq!((counts.wakeups, counts.switches, counts.queued), (5, 5, 0));
    assert_eq!((counts.migrations, counts.migrations_other_llc), (2, 1));
    assert_eq!((counts.observed_ns, counts.waiting_ns), (50_000, 5_000));
    assert_eq!(counts.idle_ns, 4 * 50_000 - 5 * 4_000);
    assert_eq!(counts.idle_while_waiting_ns, 5_000);
    assert_eq!(counts.histogram[0], 5);
}

#[test]
fn a_task_that_waits_for_a_busy_cpu_while_another_idles_is_queued() {
    let mut probe = probe();
    wake(&mut probe, 0, A, 0);
    runs(&mut probe, 0, 0, A);
    wake(&mut probe, 1_000, B, 0);
    probe.switch(Nanos(121_000), CpuId(0), Some((A, SwitchReason::Blocked)), Some(B));
    let counts = probe.counts_at(Nanos(121_000));
    assert_eq!((counts.queued, counts.over_50us, counts.over_100us), (1, 1, 1));
    assert_eq!((counts.longest_ns, counts.idle_while_waiting_ns), (120_000, 120_000));
    // 120 µs are within the bucket from 65.5 to 131 µs.
    assert_eq!((counts.histogram[0], counts.histogram[7]), (1, 1));
}

#[test]
fn a_task_that_another_cpu_takes_has_migrated_and_is_not_queued() {
    let mut probe = probe();
    wake(&mut probe, 0, A, 0);
    runs(&mut probe, 0, 0, A);
    wake(&mut probe, 1_000, B, 0);
    runs(&mut probe, 3_000, 2, B);
    let counts = probe.counts_at(Nanos(3_000));
    assert_eq!((counts.migrations, counts.migrations_other_llc, counts.queued), (1, 1, 0));
    assert_eq!(counts.wakes, WakesByPlace::default(), "a new task has no run before");
}

#[test]
fn a_preempted_task_waits_and_is_no_wake() {
    let mut probe = probe();
    wake(&mut probe, 0, A, 0);
    runs(&mut probe, 0, 0, A);
    // It keeps its CPU: no switch.
    probe.switch(Nanos(500), CpuId(0), Some((A, SwitchReason::Runnable)), Some(A));
    wake(&mut probe, 1_000, B, 0);
    probe.switch(Nanos(1_000), CpuId(0), Some((A, SwitchReason::Runnable)), Some(B));
    probe.switch(Nanos(4_000), CpuId(0), Some((B, SwitchReason::Exited)), Some(A));
    let counts = probe.counts_at(Nanos(4_000));
    assert_eq!((counts.waiting_ns, counts.idle_while_waiting_ns), (3_000, 3_000));
    assert_eq!((counts.wakes, counts.wakeups, counts.switches), (WakesByPlace::default(), 2, 3));
}

#[test]
fn without_an_idle_cpu_a_wait_is_no_bubble() {
    let mut probe = probe();
    for cpu in 0..4 {
        wake(&mut probe, 0, TaskId(cpu), cpu);
        runs(&mut probe, 0, cpu, TaskId(cpu));
    }
    wake(&mut probe, 1_000, TaskId(4), 1);
    stops(&mut probe, 6_000, 3, TaskId(3), SwitchReason::Blocked);
    probe.switch(Nanos(8_000), CpuId(1), Some((TaskId(1), SwitchReason::Blocked)), Some(TaskId(4)));
    let counts = probe.counts_at(Nanos(8_000));
    assert_eq!((counts.waiting_ns, counts.idle_while_waiting_ns), (7_000, 2_000));
    assert_eq!(counts.queued, 0, "no CPU idled at the wake");
}

#[test]
fn the_probe_of_a_simulated_kernel_counts_what_can_be_written_down_by_hand() {
    let topology = four();
    let costs = Costs::of(&topology);
    let kernel = Kernel::default();
    let mut sim =
        Simulation::watched(&topology, &costs, Settings::kernel(), kernel, 1, SchedProbe::new(&topology));
    sim.spawn(&Program::new("a").repeat(50, |p| p.sleep(1_000_000).run(1_000_000))).unwrap();
    let report = sim.run(Nanos(1_000_000_000)).unwrap();
    let counts = sim.into_observer().counts_at(report.now);
    assert_eq!(counts.wakes, WakesByPlace { same: 50, llc: 0, other: 0 });
    assert_eq!((counts.wakeups, counts.migrations, counts.queued), (51, 0, 0));
    // 1500 ns to leave C1; the first time the CPU was in no idle state, which is 1000 ns less.
    assert_eq!((counts.waiting_ns, counts.idle_while_waiting_ns), (50 * 1_500 + 500, 50 * 1_500 + 500));
    let busy: u64 = report.cpus.iter().map(|cpu| cpu.busy_ns).sum();
    assert_eq!(counts.idle_ns, 4 * report.now.0 - busy);
}

#[test]
fn a_task_of_a_runtime_waits_from_the_moment_at_which_its_timer_expires() {
    let topology = four();
    let costs = Costs::of(&topology);
    let home = SimPolicyKind::by_name("home").unwrap();
    let probe = SchedProbe::new(&topology);
    let mut sim = Simulation::runtime_watched(&topology, &costs, Settings::runtime(), home, 1, probe);
    sim.spawn(&Program::new("a").repeat(50, |p| p.sleep(1_000_000).run(1_000_000))).unwrap();
    let report = sim.run(Nanos(1_000_000_000)).unwrap();
    let counts = sim.into_observer().counts_at(report.now);
    assert_eq!(counts.wakes, WakesByPlace { same: 50, llc: 0, other: 0 });
    assert_eq!((counts.wakeups, counts.migrations), (51, 0));
    // 1500 ns to leave C1 for each, and at most as much for what the worker does before the poll.
    assert!((50 * 1_500..=51 * 3_000).contains(&counts.waiting_ns), "{counts:?}");
}
