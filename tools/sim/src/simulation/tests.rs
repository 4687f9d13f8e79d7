use super::*;
use crate::memory::Access;
use crate::policy::kernel::{Newidle, QueueRule};
use crate::policy::{Enqueued, Kernel, KernelPolicy, KernelView, SimPolicyKind};
use warmcore_sched::Allowed;
use warmcore_topo::MACHINES;
use warmcore_types::NodeId;

fn drawn(llcs: u32, cores: u32, smt: u32) -> Topology {
    let text = format!("[drawn]\nsockets = 1\nl3_per_socket = {llcs}\ncores_per_l3 = {cores}\nsmt = {smt}\n");
    Topology::from_machine(&text, "drawn").unwrap()
}

fn sim(topology: &Topology) -> Simulation<KernelScheduler<Kernel>> {
    Simulation::new(topology, &Costs::of(topology), Settings::kernel(), Kernel::default(), 1)
}

const END: Nanos = Nanos(10_000_000_000);

#[test]
fn a_task_alone_takes_what_it_runs_and_the_wakeup_of_its_cpu() {
    let topology = drawn(1, 1, 1);
    let mut sim = sim(&topology);
    sim.spawn(&Program::new("a").run(1_000_000)).unwrap();
    let report = sim.run(END).unwrap();
    assert!(report.is_complete());
    // Woken at 0 without idle time, so there is no idle state to leave: 500 ns from the wake to the first
    // instruction.
    assert_eq!(report.now.0, 500 + 1_000_000);
    assert_eq!((report.tasks[0].counts.run_ns, report.cpus[0].busy_ns), (1_000_000, 1_000_000));
}

#[test]
fn two_threads_of_a_core_slow_each_other_while_both_run() {
    let topology = drawn(1, 1, 2);
    let mut sim = sim(&topology);
    for (name, ns) in [("long", 2_000_000), ("short", 620_000)] {
        sim.spawn(&Program::new(name).run(ns)).unwrap();
    }
    let report = sim.run(END).unwrap();
    // The short task takes 1 ms at 620 thousandths. By then the long task has done 620 µs; it runs the rest alone.
    assert_eq!(report.now.0, 500 + 1_000_000 + 1_380_000);
}

#[test]
fn a_task_that_runs_for_a_time_does_not_make_up_for_its_preemptions() {
    let topology = drawn(1, 1, 1);
    let both = |task: fn(Program) -> Program| {
        let mut sim = sim(&topology);
        for name in ["a", "b"] {
            sim.spawn(&task(Program::new(name))).unwrap();
        }
        let report = sim.run(END).unwrap();
        assert!(report.is_complete());
        report.now.0
    };
    let run = both(|p| p.run(50_000_000));
    let run_for = both(|p| p.run_for(50_000_000));
    assert!((100_000_000..110_000_000).contains(&run), "{run}");
    // The second one begins a slice later, and is at its end as much later.
    assert!((50_000_000..60_000_000).contains(&run_for), "{run_for}");
}

#[test]
fn a_task_that_runs_for_longer_than_its_slice_is_preempted_and_shares_are_fair() {
    let topology = drawn(1, 1, 1);
    let mut sim = sim(&topology);
    for name in ["a", "b", "c"] {
        sim.spawn(&Program::new(name).forever(|p| p.run(50_000_000))).unwrap();
    }
    let report = sim.run(Nanos(1_200_000_000)).unwrap();
    assert_eq!(report.outcome, Outcome::TimeIsUp);
    for task in &report.tasks {
        assert!(task.counts.run_ns.abs_diff(400_000_000) < 10_000_000, "{task:?}");
        assert!(task.counts.preemptions > 50, "{task:?}");
    }
}

#[test]
fn a_sleeper_preempts_a_task_that_has_run_much_more() {
    let topology = drawn(1, 1, 1);
    let mut sim = sim(&topology);
    sim.spawn(&Program::new("hog").daemon().forever(|p| p.run(50_000_000))).unwrap();
    sim.spawn(&Program::new("light").repeat(20, |p| p.sleep(30_000_000).run(100_000))).unwrap();
    let report = sim.run(END).unwrap();
    let light = &report.tasks[1];
    // At its begin `light` has no sleeper's credit, and waits until the slice of `hog` ends.
    assert!(report.is_complete() && light.counts.wait_ns <= 4_100_000, "{light:?}");
}

#[test]
fn an_idle_machine_has_no_events() {
    let topology = Topology::from_machine(MACHINES, "spr_224cpu_2p").unwrap();
    let mut sim = sim(&topology);
    sim.spawn(&Program::new("a").repeat(10, |p| p.sleep(1_000_000_000).run(1000))).unwrap();
    let report = sim.run(Nanos(60_000_000_000)).unwrap();
    assert!(report.is_complete() && report.events < 50, "{report:?}");
}

#[test]
fn a_wake_that_comes_before_its_wait_is_kept() {
    let topology = drawn(1, 2, 1);
    let mut sim = sim(&topology);
    sim.spawn(&Program::new("a").run(1_000_000).repeat(3, |p| p.wait().mark("woken"))).unwrap();
    sim.spawn(&Program::new("b").repeat(3, |p| p.wake("a"))).unwrap();
    let report = sim.run(END).unwrap();
    assert!(report.is_complete());
    assert_eq!(report.mark("woken"), 3);
}

#[test]
fn parents_wait_for_their_children_whose_indexes_are_used_again() {
    let topology = drawn(1, 4, 1);
    let mut sim = sim(&topology);
    let leaf = Program::new("leaf").run(10_000);
    let child = Program::new("child").fork(leaf.clone()).fork(leaf).run(1_000);
    sim.spawn(&Program::new("make").repeat(1000, |p| p.fork(child).join())).unwrap();
    let report = sim.run(END).unwrap();
    assert!(report.is_complete());
    let of = |name: &str| report.tasks.iter().find(|task| task.name == name).unwrap().tasks;
    assert_eq!((of("make"), of("child"), of("leaf")), (1, 1000, 2000));
    assert!(sim.state.tasks.len() <= 12, "{}", sim.state.tasks.len());
}

#[test]
fn a_lock_has_one_owner_at_a_time_and_goes_to_the_first_waiter() {
    let topology = drawn(1, 4, 1);
    let mut sim = sim(&topology);
    for name in ["a", "b", "c", "d"] {
        sim.spawn(&Program::new(name).repeat(5, |p| p.lock("m").run(100_000).unlock("m"))).unwrap();
    }
    let report = sim.run(END).unwrap();
    assert!(report.is_complete() && report.now.0 >= 2_000_000, "{report:?}");
}

#[test]
fn conditions_and_barriers_let_tasks_meet() {
    let topology = drawn(1, 4, 1);
    let mut sim = sim(&topology);
    let waits = Program::new("waits").lock("m").wait_on("c", "m").unlock("m").barrier("all", 2).mark("met");
    sim.spawn(&waits).unwrap();
    let tells = Program::new("tells")
        .run(50_000)
        .lock("m")
        .signal("c")
        .unlock("m")
        .run(1_000)
        .barrier("all", 2)
        .mark("met");
    sim.spawn(&tells).unwrap();
    let report = sim.run(END).unwrap();
    assert!(report.is_complete(), "{report:?}");
    assert_eq!(report.mark("met"), 2);
}

#[test]
fn a_deadlock_lists_each_waiting_task_and_what_it_waits_for() {
    let topology = drawn(1, 2, 1);
    let mut sim = sim(&topology);
    let both = |name: &str, first: &str, second: &str| {
        Program::new(name).lock(first).run(10_000).lock(second).unlock(second).unlock(first)
    };
    sim.spawn(&both("philosopher", "fork", "knife")).unwrap();
    sim.spawn(&both("critic", "knife", "fork")).unwrap();
    sim.spawn(&Program::new("guest").wait().wake("host")).unwrap();
    sim.spawn(&Program::new("host").wait().wake("guest")).unwrap();
    sim.spawn(&Program::new("stranger").wait()).unwrap();
    let text = sim.run(END).unwrap().deadlock().unwrap();
    for line in [
        "`philosopher` waits for the lock `knife`, which `critic` holds (program `philosopher`, step 3)",
        "`critic` waits for the lock `fork`, which `philosopher` holds (program `critic`, step 3)",
        "`guest` waits to be woken, which `host` could end (program `guest`, step 1)",
        "`host` waits to be woken, which `guest` could end (program `host`, step 1)",
        "`stranger` waits to be woken, and no task is left that could end that (program `stranger`, step 1)",
    ] {
        assert!(text.contains(line), "{line} is not in:\n{text}");
    }
}

#[test]
fn bad_programs_are_refused_and_the_location_is_named() {
    let topology = drawn(1, 2, 1);
    let wrong = |program: Program| {
        let mut sim = sim(&topology);
        let error = sim.spawn(&program).and_then(|_| sim.run(END)).unwrap_err();
        error.to_string()
    };
    let cases = [
        (
            Program::new("a").wake("b"),
            "program `a`, step 1: wakes `b`, and no task is called so; spawn it first",
        ),
        (
            Program::new("a").forever(|p| p.mark("m")),
            "program `a`, step 1: a loop for ever in which no time passes",
        ),
        (
            Program::new("a").run(5).unlock("m"),
            "program `a`, step 2: gives back the lock `m`, which it has not",
        ),
        (Program::new("a").on(Allowed::Cpu(CpuId(9))), "program `a`: cpu9 is not online on"),
        (Program::new("a").touch_cid(Access::Read), "program `a`, step 1: touches a process's area in none"),
        (
            Program::new("a").forever(|p| p.run(0..=0)),
            "program `a`, step 3: 1000000 steps, and no time has passed",
        ),
    ];
    for (program, starts) in cases {
        let text = wrong(program);
        assert!(text.starts_with(starts), "{text}\nnot\n{starts}");
    }
}

#[test]
fn ids_stay_with_their_cpus_and_are_the_crates_own() {
    let topology = drawn(1, 4, 1);
    let run = |policy: &'static dyn warmcore_cid::Policy| {
        let mut sim = sim(&topology);
        let plan = process::Plan::new(policy).with_area(16 << 10, Pages::Touched);
        let process = sim.process(plan);
        for cpu in 0..4 {
            let of = Program::new(format!("t{cpu}")).in_process(process).on(Allowed::Cpu(CpuId(cpu)));
            let body = |p: Program| p.touch_cid(Access::Write).run(100_000).sleep(300_000_000);
            sim.spawn(&of.repeat(10, body)).unwrap();
        }
        let report = sim.run(Nanos(20_000_000_000)).unwrap();
        assert!(report.is_complete(), "{report:?}");
        let process = sim.process_of(process);
        (process.stats(), process.entries(), process.areas())
    };
    let (stats, entries, areas) = run(&warmcore_cid::CacheLocal);
    assert_eq!((stats.users, stats.in_use + stats.recent_hits as u32 > 0, areas), (0, true, 4));
    assert!(entries >= 40 && stats.overflows == 0);
    // Another policy of `cid` gives other ids.
    assert_ne!(run(&warmcore_cid::Lowest).0, stats);
}

#[test]
fn budgets_refuse_what_does_not_fit() {
    let topology = drawn(1, 2, 1);
    let mut sim = sim(&topology);
    let root = sim.account("root", None, 100_000);
    let leaf = sim.account("leaf", Some(root), u64::MAX);
    sim.spawn(&Program::new("a").repeat(1000, |p| p.charge(leaf, 200).run(100))).unwrap();
    assert!(sim.run(END).unwrap().is_complete());
    sim.drain(root);
    assert_eq!(sim.account_use(leaf), (100_000, 500));
}

#[test]
fn a_task_and_a_cpu_are_as_small_as_promised() {
    let of_task = size_of::<task::Task<<KernelScheduler<Kernel> as Scheduler>::Task>>();
    assert!(of_task <= 512, "{of_task}");
    let topology = Topology::from_machine(MACHINES, "epyc9654_2p").unwrap();
    let (cpus, ..) = sim(&topology).bytes();
    assert!(cpus / 384 <= 2048, "{}", cpus / 384);
}

#[test]
fn every_policy_finishes_the_same_work() {
    let topology = drawn(2, 4, 2);
    for policy in SimPolicyKind::all() {
        let mut sim = Simulation::runtime(&topology, &Costs::of(&topology), Settings::runtime(), policy, 3);
        for i in 0..24 {
            let of = Program::new(format!("c{i}")).repeat(50, |p| {
                p.run(5_000..=20_000)
                    .wake(format!("s{i}"))
                    .wait()
                    .mark("trips")
                    .sleep(Length::Exponential(Nanos(30_000)))
            });
            sim.spawn(&of).unwrap();
            let of = Program::new(format!("s{i}")).daemon();
            sim.spawn(&of.forever(|p| p.wait().run(1_000..=9_000).wake(format!("c{i}")))).unwrap();
        }
        let report = sim.run(END).unwrap();
        assert!(report.is_complete(), "{policy}: {:?}", report.deadlock());
        assert_eq!(report.mark("trips"), 24 * 50, "{policy}");
    }
}

/// When an unused id is free again: the tables of ids in the crate `papers` depend on it.
#[test]
fn an_unused_id_is_taken_back_by_the_rule_of_its_process() {
    use process::{Expiry, Plan};
    let topology = drawn(1, 2, 1);
    let kept = |expiry| {
        let mut sim = sim(&topology);
        let process = sim.process(Plan::new(&warmcore_cid::KeptPerCpu).with_expiry(expiry));
        let on = |name: &str, cpu| Program::new(name).in_process(process).on(Allowed::Cpu(CpuId(cpu)));
        sim.spawn(&on("runs", 0).run(900_000_000)).unwrap();
        sim.spawn(&on("pauses", 1).run(1_000).sleep(800_000_000).run(1_000)).unwrap();
        sim.run(Nanos(600_000_000)).unwrap();
        sim.process_of(process).at(CpuId(1))
    };
    let unused = Nanos(100_000_000);
    assert_eq!((kept(Expiry::TwoScans), kept(Expiry::Age(unused))), (None, None));
    assert!(kept(Expiry::Never).is_some());
    // The clock of an idle CPU stands still: by it the id is as recent as when the task left it.
    assert!(kept(Expiry::AgeThere(unused)).is_some());
}

#[test]
fn a_missing_task_may_be_spawned_and_the_simulation_continues() {
    let topology = drawn(1, 2, 1);
    let mut sim = sim(&topology);
    sim.spawn(&Program::new("a").lock("m").unlock("m").wake("b").lock("n").run(1_000).unlock("n")).unwrap();
    let missing = "program `a`, step 3: wakes `b`, and no task is called so; spawn it first";
    for _ in 0..2 {
        assert_eq!(sim.run(END).unwrap_err().to_string(), missing);
    }
    sim.spawn(&Program::new("b").wait().lock("n").mark("woken").unlock("n")).unwrap();
    let report = sim.run(END).unwrap();
    assert!(report.is_complete(), "{report:?}");
    assert_eq!(report.mark("woken"), 1);
}

#[test]
fn a_wake_of_no_task_is_an_error_and_one_of_a_later_task_is_not() {
    let topology = drawn(1, 2, 1);
    let mut sim = sim(&topology);
    sim.spawn(&Program::new("a").run(1_000).wake(TaskId(1))).unwrap();
    let error = sim.run(END).unwrap_err().to_string();
    assert_eq!(error, "program `a`, step 2: wakes task 1, and there is none; take what `spawn` gave");
    sim.spawn(&Program::new("b").wait()).unwrap();
    assert!(sim.run(END).unwrap().is_complete());
}

#[test]
fn a_forked_task_begins_after_its_delay() {
    let topology = drawn(1, 2, 1);
    let ends = |child: Program| {
        let mut sim = sim(&topology);
        sim.spawn(&Program::new("a").fork(child).join()).unwrap();
        let report = sim.run(END).unwrap();
        assert!(report.is_complete(), "{report:?}");
        report.now.0
    };
    let child = || Program::new("b").run(1_000);
    assert!(ends(child()) < 100_000);
    assert_eq!(ends(child().after(0)), ends(child()));
    assert!((5_001_000..5_200_000).contains(&ends(child().after(5_000_000))));
}

#[test]
fn what_an_account_refused_is_not_given_back() {
    let topology = drawn(1, 2, 1);
    let mut sim = sim(&topology);
    let root = sim.account("root", None, 1000);
    let both = |name: &str, ns| Program::new(name).charge(root, 1000).run(ns).uncharge(root, 1000).run(ns);
    sim.spawn(&both("a", 1_000_000)).unwrap();
    // The charge of `b` is refused, and `b` uncharges while `a` still has all units.
    sim.spawn(&both("b", 100_000).after(100_000)).unwrap();
    let report = sim.run(Nanos(500_000)).unwrap();
    assert_eq!(report.outcome, Outcome::TimeIsUp);
    assert_eq!(sim.account_use(root), (1000, 1));
    assert!(sim.run(END).unwrap().is_complete());
    sim.drain(root);
    assert_eq!(sim.account_use(root), (0, 1));
    assert!(sim.codes.iter().all(|code| code.refused.is_empty()));
}

#[test]
fn refusals_of_a_task_that_has_ended_are_not_the_next_tasks() {
    let topology = drawn(1, 1, 1);
    let mut sim = sim(&topology);
    let root = sim.account("root", None, 1000);
    let child = Program::new("child").charge(root, 2000).run(1_000);
    sim.spawn(&Program::new("make").repeat(10, |p| p.fork(child).join())).unwrap();
    assert!(sim.run(END).unwrap().is_complete());
    assert_eq!(sim.account_use(root), (0, 10));
    assert!(sim.codes.iter().all(|code| code.refused.is_empty()));
}

#[test]
fn lengths_as_long_as_may_be_add_up_without_an_overflow() {
    let topology = drawn(1, 1, 2);
    let most = crate::program::LENGTH_MAX;
    let settings = Settings { hz: 0, ..Settings::kernel() };
    let longest = |program: Program| {
        let mut sim =
            Simulation::new(&topology, &Costs::of(&topology), settings.clone(), Kernel::default(), 1);
        for name in ["a", "b"] {
            sim.spawn(&program.clone().named(name)).unwrap();
        }
        sim.run(Nanos(u64::MAX))
    };
    let a = || Program::new("a");
    assert!(longest(a().run(most).run(most).run(1).run(most).after(most)).unwrap().is_complete());
    assert!(longest(a().timer(0, most, true).timer(0, most, true).sleep(most)).unwrap().is_complete());
    for forever in [
        a().forever(|p| p.sleep(most)),
        a().forever(|p| p.timer(0, most, false)),
        a().forever(|p| p.run(most)),
    ] {
        let error = longest(forever).unwrap_err().to_string();
        assert!(error.contains("the clock is at its end, 292 years"), "{error}");
    }
}

#[test]
fn a_task_that_ends_with_a_lock_is_an_error_that_names_the_lock() {
    let topology = drawn(1, 1, 1);
    let mut sim = sim(&topology);
    let dies = Program::new("dies").lock("other").unlock("other").lock("m").run(1_000);
    let other = Program::new("other").run(1_000).unlock("m");
    sim.spawn(&Program::new("make").fork(dies).join().fork(other).join()).unwrap();
    let error = sim.run(END).unwrap_err().to_string();
    assert_eq!(
        error,
        "program `dies`, step 3: takes the lock `m`, and its task ends with it; unlock it before"
    );
}

/// A simulation without ticks.
fn still(topology: &Topology, settings: Settings, kernel: Kernel) -> Simulation<KernelScheduler<Kernel>> {
    Simulation::new(topology, &Costs::of(topology), Settings { hz: 0, ..settings }, kernel, 1)
}

#[test]
fn a_search_and_a_steal_take_the_time_of_the_lines_that_they_read() {
    let topology = drawn(1, 2, 1);
    let run = |settings: Settings| {
        let mut sim = still(&topology, settings, Kernel::default());
        // Two CPUs: the third task is queued behind one that runs for long.
        for (name, ns) in [("long", 9_000_000), ("short", 100_000), ("waits", 50_000)] {
            sim.spawn(&Program::new(name).run(ns)).unwrap();
        }
        let report = sim.run(END).unwrap();
        assert!(report.is_complete());
        (report.tasks[2].counts.wait_ns, report.cpus.iter().map(|cpu| cpu.search_ns).collect::<Vec<_>>())
    };
    // The waiting task is found when the short one ends; with the kernel's settings after a read of four lines of the
    // other CPU under the same L3, 25 ns each.
    let free = Settings { look_lines: 0, take_lines: 0, ..Settings::kernel() };
    let (waited, searched) = run(free);
    assert_eq!((waited, searched), (500 + 100_000, vec![0, 0]));
    let (waited, searched) = run(Settings::kernel());
    assert_eq!((waited, searched), (500 + 100_000 + 100, vec![0, 100]));
}

#[test]
fn a_task_that_is_woken_on_a_cpu_that_searches_does_not_wait_for_all_of_the_search() {
    // 2 × 64 CPUs: a search of all others takes 56 µs.
    let text = "[drawn]\nsockets = 2\nl3_per_socket = 1\ncores_per_l3 = 64\nsmt = 1\n";
    let topology = Topology::from_machine(text, "drawn").unwrap();
    let mut sim = still(&topology, Settings::kernel(), Kernel::default());
    for i in 0..128 {
        sim.spawn(&Program::new(format!("hog {i}")).daemon().forever(|p| p.run(9_000_000))).unwrap();
    }
    for i in 0..3 {
        let on = |name: &str, cpu| Program::new(format!("{name} {i}")).on(Allowed::Cpu(CpuId(cpu)));
        sim.spawn(&on("kept", 64 + i).daemon().forever(|p| p.run(9_000_000))).unwrap();
    }
    sim.run(Nanos(1_000_000)).unwrap();
    // CPU 0 and those of its LLC have one task each, so the search continues to the other socket.
    let (cpu, now) = (CpuId(0), sim.state.now);
    let looks = |sim: &mut Simulation<KernelScheduler<Kernel>>| {
        sim.state.cpus[0].sched.is_newly_idle = true;
        sim.ask_steal(0);
        sim.state.cpus[0].sched.parts
    };
    let parts = looks(&mut sim);
    assert_eq!((parts[2], parts[5]), (63 * 4 * 25, 64 * 4 * 195), "{parts:?}");
    let at = &mut sim.state.cpus[0];
    (at.since, at.ends_at, at.sched.found) = (
        now,
        now + parts.iter().map(|p| u64::from(*p)).sum::<u64>(),
        Some(warmcore_sched::StealDecision::Nothing),
    );
    sim.state.now += 1_000;
    sim.cut_search(0);
    assert_eq!(sim.state.cpu(cpu).ends_at, now + u64::from(parts[2]), "it examines only its LLC");
}

/// CPU 0 searches its core, its LLC and then the other socket. That its sibling becomes busy or idle does not change
/// the search.
#[test]
fn a_sibling_that_changes_its_speed_does_not_lengthen_a_search_that_is_cut() {
    let text = "[drawn]\nsockets = 2\nl3_per_socket = 1\ncores_per_l3 = 32\nsmt = 2\n";
    let topology = Topology::from_machine(text, "drawn").unwrap();
    let mut sim = still(&topology, Settings::kernel(), Kernel::default());
    for i in 0..128 {
        sim.spawn(&Program::new(format!("hog {i}")).daemon().forever(|p| p.run(9_000_000))).unwrap();
    }
    for (i, cpu) in topology.cpus.iter().filter(|cpu| cpu.socket.0 == 1).take(3).enumerate() {
        let kept = Program::new(format!("kept {i}")).on(Allowed::Cpu(cpu.id));
        sim.spawn(&kept.daemon().forever(|p| p.run(9_000_000))).unwrap();
    }
    sim.run(Nanos(1_000_000)).unwrap();
    let now = sim.state.now;
    sim.state.cpus[0].sched.is_newly_idle = true;
    sim.ask_steal(0);
    let parts = sim.state.cpus[0].sched.parts;
    assert!(parts[1] > 0 && parts[2] > 0 && parts[5] > 10_000, "{parts:?}");
    let ends = now + parts.iter().map(|part| u64::from(*part)).sum::<u64>();
    let at = &mut sim.state.cpus[0];
    (at.since, at.ends_at, at.sched.found) = (now, ends, Some(warmcore_sched::StealDecision::Nothing));
    at.is_searching = true;
    sim.state.now += 1_000;
    for speed in [1000, 620] {
        sim.change_speed(0, speed);
        assert_eq!((sim.state.cpus[0].ends_at, sim.state.cpus[0].speed), (ends, speed));
    }
    sim.cut_search(0);
    assert_eq!(
        sim.state.cpus[0].ends_at,
        now + u64::from(parts[1]) + u64::from(parts[2]),
        "it examines only its core and LLC"
    );
}

#[test]
fn the_lock_of_a_wake_queue_moves_between_the_cpus_that_use_it() {
    let topology = drawn(1, 3, 1);
    let run = |wake_queue| {
        let kernel = Kernel { wake_queue, ..Kernel::default() };
        let mut sim = still(&topology, Settings::kernel(), kernel);
        let pinned = Program::new("wakes").on(Allowed::Cpu(CpuId(0)));
        let both = |p: Program| p.run(1_000).wake("a").wait().run(1_000).wake("b").wait();
        sim.spawn(&pinned.repeat(100, both)).unwrap();
        for name in ["a", "b"] {
            let of = Program::new(name).daemon();
            sim.spawn(&of.forever(|p| p.wait().run(1_000).wake("wakes"))).unwrap();
        }
        let report = sim.run(END).unwrap();
        assert!(report.is_complete());
        assert_eq!(report.tasks.iter().map(|task| task.counts.moves()).sum::<u64>(), 0);
        report.now.0
    };
    // Each task's CPU puts it into the shared queue and takes it out again in turn: 25 ns from the other core, and
    // once from memory.
    let (without, with) = (run(false), run(true));
    assert!((with - without).abs_diff(200 * 25) <= 600, "{with} {without}");
}

/// A wakee on its way to an idle CPU is in no shared queue yet, so no other CPU can take it from there.
#[test]
fn an_idle_cpu_puts_a_wakee_into_the_shared_queue_itself() {
    let topology = drawn(1, 2, 1);
    let kernel = Kernel { wake_queue: true, ..Kernel::default() };
    let mut sim = still(&topology, Settings::kernel(), kernel);
    let pinned = Program::new("wakes").on(Allowed::Cpu(CpuId(0)));
    sim.spawn(&pinned.run(100_000).wake("sleeps").run(100_000)).unwrap();
    sim.spawn(&Program::new("sleeps").run(1_000).wait().run(50_000)).unwrap();
    // From the wake to the first instruction it takes at least 500 ns.
    sim.run(Nanos(500 + 100_000 + 100)).unwrap();
    let task = &sim.state.tasks[1];
    assert_eq!(
        (
            task.sched.queued_on,
            task.sched.enters,
            task.sched.inject_queue,
            sim.state.sched.inject_queues[0].len
        ),
        (1, 0, NONE, 0)
    );
    assert!(sim.run(END).unwrap().is_complete());
    assert_eq!((sim.state.tasks[1].sched.enters, sim.state.sched.inject_queues[0].len), (NONE, 0));
}

/// Linux with the queue of v3, and how often it was asked about each kind of enqueue.
#[derive(Default)]
struct CountedEnqueues(Kernel, std::cell::RefCell<std::collections::BTreeMap<String, u64>>);

impl KernelPolicy for CountedEnqueues {
    fn wake(
        &self,
        machine: &SchedDomains,
        view: &impl KernelView,
        wake: &warmcore_sched::Wake,
    ) -> warmcore_sched::WakeDecision {
        self.0.wake(machine, view, wake)
    }
    fn queues(&self, machine: &SchedDomains) -> usize {
        self.0.queues(machine)
    }
    fn enters(&self, machine: &SchedDomains, cpu: CpuId, allowed: Allowed, why: Enqueued) -> Option<usize> {
        *self.1.borrow_mut().entry(format!("{why:?}")).or_default() += 1;
        self.0.enters(machine, cpu, allowed, why)
    }
    fn steal(
        &self,
        machine: &SchedDomains,
        view: &impl KernelView,
        me: CpuId,
        now: Nanos,
    ) -> warmcore_sched::StealDecision {
        self.0.steal(machine, view, me, now)
    }
    fn cpu_to_notify(
        &self,
        machine: &SchedDomains,
        view: &impl KernelView,
        at: CpuId,
        now: Nanos,
    ) -> Option<CpuId> {
        self.0.cpu_to_notify(machine, view, at, now)
    }
}

#[test]
fn every_enqueue_of_a_run_queue_asks_whether_the_task_enters_a_shared_queue() {
    let topology = drawn(1, 4, 1);
    let kernel = Kernel { wake_queue: true, queue_rule: QueueRule::V3, ..Kernel::default() };
    let policy = CountedEnqueues(kernel, Default::default());
    let mut sim = Simulation::new(&topology, &Costs::of(&topology), Settings::kernel(), policy, 1);
    for i in 0..9 {
        let (a, b) = (format!("a{i}"), format!("b{i}"));
        sim.spawn(&Program::new(&a).repeat(40, |p| p.run(20_000..=900_000).wake(&*b).wait())).unwrap();
        sim.spawn(&Program::new(&b).daemon().forever(|p| p.wait().run(20_000..=900_000).wake(&*a))).unwrap();
    }
    for i in 0..3 {
        sim.spawn(&Program::new(format!("long {i}")).run(30_000_000)).unwrap();
    }
    assert!(sim.run(END).unwrap().is_complete());
    let asked = sim.state.sched.policy.1.borrow();
    let kinds = ["Moved", "New", "PutBack", "WokenElsewhere", "WokenOnPrevCpu"];
    assert!(kinds.iter().all(|kind| asked.get(*kind).is_some_and(|times| *times > 0)), "{asked:?}");
    assert!(sim.state.sched.inject_queues.iter().all(|queue| queue.len == 0), "all have run");
}

/// A task that yields is queued on its CPU again: in v3 also in the shared queue, from which another CPU takes it.
#[test]
fn a_task_that_is_put_back_is_in_the_queue_of_v3_and_not_of_v1() {
    let topology = drawn(1, 2, 1);
    let pulled = |queue_rule| {
        let kernel = Kernel { wake_queue: true, queue_rule, newidle: Newidle::Off, ..Kernel::default() };
        let mut sim = still(&topology, Settings::kernel(), kernel);
        let on = |name: &str, cpu| Program::new(name).on(Allowed::Cpu(CpuId(cpu)));
        sim.spawn(&on("yields", 0).run(100_000).allow(Allowed::Anywhere).yield_now().run(100_000)).unwrap();
        sim.spawn(&on("stays", 0).run(50_000_000)).unwrap();
        sim.spawn(&on("ends", 1).run(6_000_000)).unwrap();
        let report = sim.run(END).unwrap();
        assert!(report.is_complete());
        report.cpus.iter().map(|cpu| cpu.pulled).sum::<u64>()
    };
    assert_eq!((pulled(QueueRule::V1), pulled(QueueRule::V3)), (0, 1));
}

#[test]
fn the_cost_of_a_migration_bounds_the_average_idle_time_of_a_cpu() {
    let topology = drawn(1, 2, 1);
    let average = |migration_cost| {
        let kernel = Kernel { migration_cost: Nanos(migration_cost), ..Kernel::default() };
        let mut sim = still(&topology, Settings::kernel(), kernel);
        let begins = sim.state.cpus[0].sched.average_idle.average().0;
        sim.spawn(
            &Program::new("a").on(Allowed::Cpu(CpuId(0))).repeat(20, |p| p.run(1_000).sleep(9_000_000)),
        )
        .unwrap();
        assert!(sim.run(END).unwrap().is_complete());
        (begins, sim.state.cpus[0].sched.average_idle.average().0)
    };
    assert_eq!(average(500_000), (1_000_000, 1_000_000));
    assert_eq!(average(50_000), (100_000, 100_000));
}

/// Pairs that wake each other, nearly as many as a machine of two sockets has CPUs, so that CPUs are idle often and
/// briefly.
fn talks(pairs: u32, settings: Settings, newidle: Newidle) -> Report {
    let text = "[drawn]\nsockets = 2\nl3_per_socket = 1\ncores_per_l3 = 24\nsmt = 1\n";
    let topology = Topology::from_machine(text, "drawn").unwrap();
    let kernel = Kernel { newidle, ..Kernel::default() };
    let mut sim = Simulation::new(&topology, &Costs::of(&topology), settings, kernel, 1);
    for i in 0..pairs {
        let (a, b) = (format!("a{i}"), format!("b{i}"));
        let run = Length::Around(Nanos(8_000), 30);
        sim.spawn(&Program::new(&a).forever(|p| p.run(run).wake(&*b).wait())).unwrap();
        sim.spawn(&Program::new(&b).forever(|p| p.wait().run(run).wake(&*a))).unwrap();
    }
    sim.run(Nanos(20_000_000)).unwrap()
}

#[test]
fn the_cost_of_a_migration_is_a_setting_and_decides_whether_a_task_that_just_ran_is_taken() {
    let topology = drawn(1, 2, 1);
    let pulled = |migration_cost: u64| {
        let kernel = Kernel { migration_cost: Nanos(migration_cost), ..Kernel::default() };
        let mut sim = still(&topology, Settings::kernel(), kernel);
        // Two of three tasks share a CPU in turns of 50 µs; the third one's CPU runs out of work.
        let turns = |name: &str| Program::new(name).repeat(20, |p| p.run(50_000).yield_now());
        for program in [turns("a"), Program::new("short").run(225_000), turns("b")] {
            sim.spawn(&program).unwrap();
        }
        let report = sim.run(END).unwrap();
        assert!(report.is_complete());
        report.cpus.iter().map(|cpu| cpu.pulled).sum::<u64>()
    };
    assert_eq!((pulled(500_000), pulled(0)), (0, 1));
}

#[test]
fn newidle_balancing_is_gated_where_cpus_idle_for_less_than_a_search_costs() {
    use Newidle::{Always, Gated};
    let [gated, always] = [Gated, Always].map(|newidle| talks(46, Settings::kernel(), newidle));
    let sum = |report: &Report, of: fn(&CpuCounts) -> u64| report.cpus.iter().map(of).sum::<u64>();
    let (searches, closed) = (sum(&gated, |cpu| cpu.searches), sum(&gated, |cpu| cpu.gated));
    assert!(closed * 2 > searches && searches > 1000, "{closed} of {searches}");
    assert_eq!(sum(&always, |cpu| cpu.gated), 0);
    assert_ne!(gated.hash, always.hash);
    // Control: a search that takes no time is never cut short.
    let free = Settings { look_lines: 0, take_lines: 0, ..Settings::kernel() };
    let [gated, always] = [Gated, Always].map(|newidle| talks(46, free.clone(), newidle));
    assert_eq!((sum(&gated, |cpu| cpu.gated), gated.hash), (0, always.hash));
}

/// The tasks that began to run, in order, with their CPUs.
#[derive(Debug, Default)]
struct Begun {
    on: Vec<(CpuId, TaskId)>,
}

impl Observer for Begun {
    fn switch(
        &mut self,
        _now: Nanos,
        cpu: CpuId,
        _prev: Option<(TaskId, SwitchReason)>,
        next: Option<TaskId>,
    ) {
        self.on.extend(next.map(|task| (cpu, task)));
    }
}

/// Three tasks wait on two CPUs, and a third CPU runs out of tasks.
#[test]
fn a_shared_queue_is_first_in_first_out_over_all_cpus_of_its_cache() {
    let topology = drawn(1, 3, 1);
    let (costs, kernel) = (Costs::of(&topology), Kernel { wake_queue: true, ..Kernel::default() });
    let settings = Settings { hz: 0, wake_granularity: None, ..Settings::kernel() };
    let mut sim = Simulation::watched(&topology, &costs, settings, kernel, 1, Begun::default());
    let at_home = |name: &str, cpu| {
        let first = Program::new(name).on(Allowed::Cpu(CpuId(cpu))).run(1_000);
        first.allow(Allowed::Anywhere).wait().run(100_000)
    };
    let wakes = |name: &str, cpu, wakees: &[&str]| {
        let mut program = Program::new(name).on(Allowed::Cpu(CpuId(cpu))).after(1_000_000).run(1_000_000);
        for wakee in wakees {
            program = program.wake(*wakee).run(2_000_000);
        }
        program.run(50_000_000)
    };
    let mut ids = Vec::new();
    for (name, cpu) in [("first", 0), ("third", 0), ("second", 1)] {
        ids.push((sim.spawn(&at_home(name, cpu)).unwrap(), name));
    }
    sim.spawn(&wakes("waker", 0, &["first", "third"])).unwrap();
    sim.spawn(&wakes("other", 1, &["second"]).after(2_000_000)).unwrap();
    sim.spawn(&Program::new("busy").on(Allowed::Cpu(CpuId(2))).run(10_000_000)).unwrap();
    assert!(sim.run(END).unwrap().is_complete());
    let begun = sim.observer.on.iter().filter(|(cpu, _)| *cpu == CpuId(2));
    let name = |(_, task): &(CpuId, TaskId)| ids.iter().find(|(id, _)| id == task).map(|(_, name)| *name);
    assert_eq!(begun.filter_map(name).collect::<Vec<_>>(), ["first", "second", "third"]);
}

/// One cache under two nodes: the shared queue holds only a task of the other node, and in this node two tasks are
/// queued on one CPU. Newidle balancing finds them, though it examines the shared queue first.
#[test]
fn a_shared_queue_without_a_task_for_this_cpu_does_not_end_its_search() {
    let mut topology = drawn(1, 4, 1);
    for cpu in &mut topology.cpus {
        cpu.node.0 = cpu.id.0 / 2;
    }
    let kernel = Kernel { wake_queue: true, newidle: Newidle::Always, ..Kernel::default() };
    let (costs, settings) = (Costs::of(&topology), Settings::kernel());
    let mut sim = Simulation::new(&topology, &costs, settings, kernel, 1);
    let cpu = |cpu| Allowed::Cpu(CpuId(cpu));
    let ms = 1_000_000;
    // On cpu0 and cpu1, whose node the sleeper may not leave.
    let hog = |name: &str, at| Program::new(name).on(cpu(at)).run(40 * ms);
    sim.spawn(&hog("far", 1)).unwrap();
    let near = Program::new("near").on(cpu(0)).after(100_000).run(ms).wake("kept").run(40 * ms);
    sim.spawn(&near).unwrap();
    let kept = Program::new("kept").on(cpu(0)).allow(Allowed::Node(NodeId(0))).wait().run(1_000);
    sim.spawn(&kept).unwrap();
    // Three tasks on cpu2, two of which may move. cpu3 is idle after 2 ms, when the restricted task has been queued
    // for long.
    for name in ["a", "b"] {
        sim.spawn(
            &Program::new(name).on(cpu(2)).run(1_000).allow(Allowed::Anywhere).yield_now().run(20 * ms),
        )
        .unwrap();
    }
    sim.spawn(&hog("c", 2)).unwrap();
    sim.spawn(&Program::new("ends").on(cpu(3)).run(2 * ms)).unwrap();
    assert!(sim.run(Nanos(3 * ms)).is_ok());
    assert!(sim.state.sched.inject_queues[0].len > 0, "the restricted task waits in the shared queue");
    assert!(sim.state.cpus[3].counts.pulled > 0, "cpu3 sleeps beside cpu2");
}
