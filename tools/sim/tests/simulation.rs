//! Random programs on random machines: no wake is lost, no task is on two CPUs, and time never goes back.
//!
//! An observer keeps its own record of which task is on which CPU or queued, and fails on an event that contradicts it.
//! A failure ends with the command that runs exactly that case (`replay/mod.rs`).

use proptest::prelude::*;
use replay::{Case, REPLAY, VARIABLE, property};
use std::collections::BTreeMap;
use std::process::Command;
use warmcore_cid::{CacheLocal, KeptPerCpu, Lowest};
use warmcore_sched::{Allowed, Policy, PolicyKind, TargetQueue, WakeSource};
use warmcore_sim::cids::CidRules;
use warmcore_sim::costs::Costs;
use warmcore_sim::memory::{Access, Pages};
use warmcore_sim::policy::{Kernel, KernelPolicy, SimPolicyKind};
use warmcore_sim::program::{Length, Program, TaskId};
use warmcore_sim::simulation::process::Plan;
use warmcore_sim::simulation::{Observer, Outcome, Report, Scheduler, Settings, Simulation, SwitchReason};
use warmcore_topo::Topology;
use warmcore_types::{CpuId, LlcId, Nanos};

mod replay;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Is {
    Asleep,
    Queued(Nanos),
    On(CpuId),
    Gone,
}

/// The state that follows from the events so far.
#[derive(Default)]
struct Books {
    now: Nanos,
    tasks: BTreeMap<TaskId, Is>,
    on: BTreeMap<CpuId, TaskId>,
    idle_since: BTreeMap<CpuId, Nanos>,
    /// Tasks that are restricted to some CPUs, by their name.
    kept: Vec<TaskId>,
    names: BTreeMap<TaskId, String>,
    wakes: u64,
    answered: u64,
    /// The longest that a CPU was idle while a task was queued that may run anywhere.
    beside: Nanos,
}

impl Books {
    fn at(&mut self, now: Nanos) {
        assert!(now >= self.now, "time goes from {:?} back to {now:?}", self.now);
        self.now = now;
    }

    fn measure(&mut self, task: TaskId, queued: Nanos) {
        if self.kept.contains(&task) {
            return;
        }
        if let Some(since) = self.idle_since.values().min() {
            self.beside = self.beside.max(Nanos(self.now.0 - queued.max(*since).0));
        }
    }
}

impl Observer for Books {
    fn task_created(&mut self, now: Nanos, task: TaskId, name: &str) {
        self.at(now);
        let before = self.tasks.insert(task, Is::Asleep);
        assert!(before.is_none_or(|is| is == Is::Gone), "{task:?} is created while it is alive");
        if name.contains("kept") {
            self.kept.push(task);
        }
        self.names.insert(task, name.to_owned());
    }

    fn waking(&mut self, now: Nanos, _waker: WakeSource, wakee: TaskId) {
        self.at(now);
        assert_eq!(self.tasks[&wakee], Is::Asleep, "{wakee:?} is woken");
        self.wakes += 1;
        self.tasks.insert(wakee, Is::Queued(now));
    }

    fn queued(&mut self, now: Nanos, task: TaskId, _at: TargetQueue) {
        self.at(now);
        assert!(matches!(self.tasks[&task], Is::Queued(_)));
    }

    fn switch(&mut self, now: Nanos, cpu: CpuId, prev: Option<(TaskId, SwitchReason)>, next: Option<TaskId>) {
        self.at(now);
        assert_eq!(self.on.remove(&cpu), prev.map(|(task, _)| task), "{cpu} had another task");
        if let Some((task, left)) = prev {
            assert_eq!(self.tasks[&task], Is::On(cpu));
            let is = match left {
                SwitchReason::Blocked => Is::Asleep,
                SwitchReason::Runnable => Is::Queued(now),
                SwitchReason::Exited => Is::Gone,
            };
            self.tasks.insert(task, is);
        }
        let Some(task) = next else {
            self.idle_since.entry(cpu).or_insert(now);
            return;
        };
        let Is::Queued(queued) = self.tasks[&task] else {
            panic!("{task:?} runs, and was {:?}", self.tasks[&task])
        };
        self.measure(task, queued);
        self.answered += u64::from(prev.is_none_or(|(before, _)| before != task));
        self.tasks.insert(task, Is::On(cpu));
        self.on.insert(cpu, task);
        self.idle_since.remove(&cpu);
    }
}

/// The parts of a random load.
#[derive(Debug, Clone)]
struct Load {
    pairs: usize,
    timers: usize,
    forks: usize,
    locks: usize,
    kept: usize,
    cids: usize,
    run_max: u64,
    seed: u64,
}

fn load() -> impl Strategy<Value = Load> {
    let counts = (0usize..8, 0usize..8, 0usize..3, 0usize..5, 0usize..4, 0usize..6);
    (counts, prop_oneof![Just(5_000u64), Just(60_000), Just(5_000_000)], any::<u64>()).prop_map(
        |((pairs, timers, forks, locks, kept, cids), run_max, seed)| Load {
            pairs,
            timers,
            forks,
            locks,
            kept,
            cids,
            run_max,
            seed,
        },
    )
}

/// A load, its machine and its settings.
#[derive(Debug, Clone)]
struct Drawn {
    machine: (u32, u32, u32, u32),
    load: Load,
    kind: u8,
}

impl Drawn {
    fn topology(&self) -> Topology {
        let (sockets, llcs, cores, smt) = self.machine;
        drawn(sockets, llcs, cores, smt)
    }
}

fn any_of_them() -> impl Strategy<Value = Drawn> {
    let machine = (1u32..=2, 1u32..=3, 1u32..=5, 1u32..=2);
    (machine, load(), 0u8..2).prop_map(|(machine, load, kind)| Drawn { machine, load, kind })
}

impl Case for Drawn {
    fn numbers(&self) -> Vec<(&'static str, u64)> {
        let (sockets, llcs, cores, smt) = self.machine;
        let Load { pairs, timers, forks, locks, kept, cids, run_max, seed } = self.load;
        let machine = [("sockets", sockets), ("llcs", llcs), ("cores", cores), ("smt", smt)];
        let counts = [pairs, timers, forks, locks, kept, cids].map(|count| count as u64);
        let names = ["pairs", "timers", "forks", "locks", "kept", "cids"];
        let load = names.into_iter().zip(counts).chain([("run_max", run_max), ("seed", seed)]);
        machine
            .map(|(name, n)| (name, n.into()))
            .into_iter()
            .chain(load)
            .chain([("kind", self.kind.into())])
            .collect()
    }

    fn of(number: &dyn Fn(&str) -> Option<u64>) -> Option<Self> {
        let small = |name: &str| u32::try_from(number(name)?).ok();
        let count = |name: &str| usize::try_from(number(name)?).ok();
        let load = Load {
            pairs: count("pairs")?,
            timers: count("timers")?,
            forks: count("forks")?,
            locks: count("locks")?,
            kept: count("kept")?,
            cids: count("cids")?,
            run_max: number("run_max")?,
            seed: number("seed")?,
        };
        let machine = (small("sockets")?, small("llcs")?, small("cores")?, small("smt")?);
        Some(Self { machine, load, kind: u8::try_from(number("kind")?).ok()? })
    }
}

fn drawn(sockets: u32, llcs: u32, cores: u32, smt: u32) -> Topology {
    let text = format!(
        "[drawn]\nsockets = {sockets}\nl3_per_socket = {llcs}\ncores_per_l3 = {cores}\nsmt = {smt}\n"
    );
    Topology::from_machine(&text, "drawn").expect("the counts fit")
}

/// Spawns the tasks of a load.
fn spawn<S: Scheduler>(sim: &mut Simulation<S, Books>, load: &Load) {
    let run = Length::Between(Nanos(1_000), Nanos(load.run_max));
    let mut add = |program: Program| _ = sim.spawn(&program).expect("it is right");
    for i in 0..load.pairs {
        let (a, b) = (format!("a{i}"), format!("b{i}"));
        add(Program::new(&a).repeat(40, |p| p.run(run).wake(&*b).wait().mark("trips")));
        add(Program::new(&b).repeat(40, |p| p.wait().run(run).wake_sync(&*a)));
    }
    for i in 0..load.timers {
        let of = Program::new(format!("timer{i}")).after(1_000 * i as u64);
        add(of.repeat(30, |p| p.run(run).sleep(Length::Exponential(Nanos(100_000))).mark("naps")));
    }
    for i in 0..load.forks {
        let leaf = Program::new("leaf").run(run);
        let child = Program::new("child").run(run).fork(leaf.clone()).fork(leaf).touch_own(
            64,
            Pages::Anonymous,
            Access::Write,
        );
        add(Program::new(format!("fork{i}"))
            .repeat(5, |p| p.fork(child.clone()).fork(child).join().run(run).mark("joins")));
    }
    for i in 0..load.locks {
        let of = Program::new(format!("lock{i}"));
        add(of.repeat(20, |p| p.lock("m").run(run).unlock("m").yield_now().run(run).mark("turns")));
    }
    for i in 0..load.kept {
        let place = if i % 2 == 0 { Allowed::Cpu(CpuId(0)) } else { Allowed::Llc(LlcId(0)) };
        add(Program::new(format!("kept{i}")).on(place).repeat(20, |p| p.run(run).sleep(20_000).mark("kept")));
    }
    let rules: [CidRules; 4] =
        [(&CacheLocal).into(), (&KeptPerCpu).into(), (&Lowest).into(), CidRules::TaskOwned];
    let process =
        sim.process(Plan::new(rules[load.seed as usize % 4]).with_area(16 << 10, Pages::CopyOnWrite));
    for i in 0..load.cids {
        let of = Program::new(format!("cid{i}")).in_process(process);
        let body = |p: Program| {
            p.touch_cid(Access::Write).run(run).sleep(Length::Exponential(Nanos(40_000_000))).mark("touches")
        };
        sim.spawn(&of.repeat(8, body)).expect("it is right");
    }
}

const END: Nanos = Nanos(60_000_000_000);

fn run<P: KernelPolicy>(
    topology: &Topology,
    settings: Settings,
    policy: P,
    load: &Load,
) -> (Report, Books, Topology) {
    let (costs, books) = (Costs::of(topology), Books::default());
    finish(Simulation::watched(topology, &costs, settings, policy, load.seed, books), topology, load)
}

/// As [`run`], on the workers of a runtime.
fn run_runtime<P: Policy>(topology: &Topology, policy: P, load: &Load) -> (Report, Books, Topology) {
    let (costs, books) = (Costs::of(topology), Books::default());
    let settings = Settings::runtime();
    finish(Simulation::runtime_watched(topology, &costs, settings, policy, load.seed, books), topology, load)
}

fn finish<S: Scheduler>(
    mut sim: Simulation<S, Books>,
    topology: &Topology,
    load: &Load,
) -> (Report, Books, Topology) {
    spawn(&mut sim, load);
    let report = sim.run(END).expect("no program is wrong");
    let books = sim.into_observer();
    (report, books, topology.clone())
}

fn check((report, books, _): &(Report, Books, Topology), load: &Load) {
    assert_eq!(report.outcome, Outcome::Ended, "{:?}", report.deadlock());
    assert!(books.on.is_empty() && books.tasks.values().all(|is| *is == Is::Gone), "{:?}", books.tasks);
    assert!(books.answered >= books.wakes, "{} wakes, {} answered", books.wakes, books.answered);
    let expected = [
        ("trips", 40 * load.pairs),
        ("naps", 30 * load.timers),
        ("joins", 5 * load.forks),
        ("turns", 20 * load.locks),
        ("kept", 20 * load.kept),
        ("touches", 8 * load.cids),
    ];
    for (mark, count) in expected {
        assert_eq!(report.mark(mark), count as u64, "{mark}");
    }
    let forked =
        |name: &str| report.tasks.iter().filter(|task| task.name == name).map(|task| task.tasks).sum::<u64>();
    assert_eq!((forked("child"), forked("leaf")), (10 * load.forks as u64, 20 * load.forks as u64));
    let total = report.total();
    let busy: u64 = report.cpus.iter().map(|cpu| cpu.busy_ns).sum();
    assert_eq!(total.run_ns, busy, "the tasks' run time is the CPUs' busy time");
    assert!(report.cpus.iter().all(|cpu| cpu.busy_ns <= report.now.0));
}

fn settings(kind: u8) -> Settings {
    match kind {
        0 => Settings::kernel(),
        _ => Settings { hz: 1000, ..Settings::kernel() },
    }
}

/// Cases per property.
const CASES: u32 = 40;

#[test]
fn no_wake_is_lost_no_task_is_on_two_cpus_and_time_goes_on() {
    let name = "no_wake_is_lost_no_task_is_on_two_cpus_and_time_goes_on";
    property("simulation", name, CASES, any_of_them(), |case| {
        let (topology, load) = (case.topology(), &case.load);
        for policy in SimPolicyKind::all() {
            check(&run_runtime(&topology, policy, load), load);
        }
        for kernel in kernels() {
            check(&run(&topology, settings(case.kind), kernel, load), load);
        }
    });
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    property("simulation", "the_same_seed_gives_the_same_bytes", CASES, any_of_them(), |case| {
        let once = || {
            let (report, ..) = run(&case.topology(), Settings::kernel(), Kernel::default(), &case.load);
            serde_json::to_string(&report).expect("it is a report")
        };
        assert_eq!(once(), once());
    });
}

#[test]
fn two_policies_get_the_same_random_lengths() {
    property("simulation", "two_policies_get_the_same_random_lengths", CASES, any_of_them(), |case| {
        // The lengths of a task's runs are drawn for the task, whatever the order in which tasks run. In a load
        // without anything that depends on placement, each task thus runs equally long under all policies.
        let load = Load { pairs: 0, locks: 0, forks: 0, kept: 0, cids: 0, ..case.load.clone() };
        let topology = case.topology();
        let ran = |policy: SimPolicyKind| {
            let free = Settings { look_lines: 0, take_lines: 0, ..Settings::runtime() };
            let settings = Settings { smt_per_mille: Some(1000), hz: 0, ..free };
            // Neither a switch nor the lock of a shared queue takes time.
            let mut costs = Costs::of(&topology).with("csw_voluntary", 0).expect("it is there");
            let names: Vec<String> = costs.numbers().map(|(name, _)| name.to_owned()).collect();
            for line in names.iter().filter(|name| name.starts_with("c2c_") || name.starts_with("dram_")) {
                costs = costs.with(line, 0).expect("it is there");
            }
            for line in ["l1_cycles", "llc_latency", "l2_cycles", "stream_resident_cycles_per_line"] {
                costs = costs.with(line, 0).expect("it is there");
            }
            let books = Books::default();
            let mut sim = Simulation::runtime_watched(&topology, &costs, settings, policy, load.seed, books);
            spawn(&mut sim, &load);
            let report = sim.run(END).expect("no program is wrong");
            report.tasks.iter().map(|task| task.counts.run_ns).collect::<Vec<_>>()
        };
        assert_eq!(ran(SimPolicyKind::Product(PolicyKind::Home)), ran(SimPolicyKind::GlobalFifo));
    });
}

/// Run by the test below in a process of its own.
#[test]
#[ignore = "fails on purpose"]
fn a_property_that_does_not_hold() {
    property("simulation", "a_property_that_does_not_hold", CASES, any_of_them(), |case| {
        let (report, ..) = run(&case.topology(), settings(case.kind), Kernel::default(), &case.load);
        assert!(report.mark("naps") < 60, "{} naps, hash {:016x}", report.mark("naps"), report.hash);
    });
}

#[test]
fn a_failure_ends_with_the_command_that_replays_exactly_that_case() {
    let of = |case: Option<&str>| {
        let mut command = Command::new(std::env::current_exe().expect("this test has a file"));
        command.args([
            "a_property_that_does_not_hold",
            "--exact",
            "--ignored",
            "--nocapture",
            "--test-threads",
            "1",
        ]);
        command.env_remove(VARIABLE).envs(case.map(|case| (VARIABLE, case)));
        let output = command.output().expect("it can be run");
        let text =
            [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        (output.status.success(), text)
    };
    let naps = |text: &str| {
        let from = text.rfind(" naps, hash ").unwrap_or_else(|| panic!("it says no hash: {text}"));
        text[from..].chars().take(28).collect::<String>()
    };
    let (is_well, failure) = of(None);
    assert!(!is_well, "{failure}");
    let last =
        failure.lines().filter_map(|line| line.split_once(REPLAY)).next_back().expect("there is a command").1;
    let (case, rest) = last
        .strip_prefix(&format!("{VARIABLE}='"))
        .and_then(|rest| rest.split_once('\''))
        .unwrap_or_else(|| panic!("no case: {last}"));
    let command = " cargo test -p warmcore-sim --test simulation a_property_that_does_not_hold -- --exact";
    assert_eq!(rest.get(..command.len()), Some(command));
    // The case was shrunk to the fewest timers with which it fails, and its command gives the same run event by
    // event.
    assert!(case.contains("timers=2 "), "{case}");
    let (is_well, again) = of(Some(case));
    assert!(!is_well && again.matches("only Drawn").count() == 1, "{again}");
    let of_failure = &failure[..failure.rfind(REPLAY).unwrap_or(failure.len())];
    assert_eq!(naps(of_failure), naps(&again));
    // With a case that passes, the property passes; an incomplete case is an error.
    let (is_well, mended) = of(Some(&case.replace("timers=2", "timers=1")));
    assert!(is_well, "{mended}");
    let (is_well, cut) = of(Some("sockets=1"));
    assert!(!is_well && cut.contains("is no case of a_property_that_does_not_hold"), "{cut}");
}

fn kernels() -> [Kernel; 3] {
    let plain = Kernel::default();
    [plain, Kernel { hot_windows: true, ..plain }, Kernel { wake_queue: true, sis_node: true, ..plain }]
}

/// A bound of four times the time to leave an idle state after an interrupt: for CPUs that are notified one after the
/// other.
const KICKS: Nanos = Nanos(40_000);

#[test]
fn work_is_conserved_as_the_policies_promise() {
    // No CPU is idle for longer than these bounds while a task is queued.
    for topology in [drawn(1, 1, 4, 2), drawn(2, 2, 3, 1), drawn(1, 4, 2, 2)] {
        for seed in 0..10 {
            let load =
                Load { pairs: 7, timers: 9, forks: 2, locks: 0, kept: 0, cids: 3, run_max: 60_000, seed };
            // GlobalFifo: the time to wake four idle CPUs, one after the other. WorkSteal: one run of 60 µs with a busy
            // sibling more, because no worker steals from the LIFO slot of a worker that polls a task. SharedQueue: the
            // same, because an LLC that is used to 100/117 is not searched.
            let one_run = Nanos(60_000 / 62 * 100 + KICKS.0);
            for (policy, bound) in [
                (SimPolicyKind::WorkSteal, one_run),
                (SimPolicyKind::GlobalFifo, KICKS),
                (SimPolicyKind::Product(PolicyKind::SharedQueue), one_run),
            ] {
                let done = run_runtime(&topology, policy, &load);
                check(&done, &load);
                println!("{policy}, seed {seed}: {:?} beside a waiting task", done.1.beside);
                assert!(
                    done.1.beside <= bound,
                    "{policy}, seed {seed}: {:?} beside a waiting task",
                    done.1.beside
                );
            }
            // Home: the migration cost, four polls of 60 µs, × (distance factor 4 + 1), a poll of 60 µs, four kicks.
            let done = run_runtime(&topology, PolicyKind::Home, &load);
            check(&done, &load);
            let bound = Nanos(4 * 60_000 * 5 + 60_000 + KICKS.0);
            println!("home, seed {seed}: {:?} beside a waiting task", done.1.beside);
            assert!(done.1.beside <= bound, "home, seed {seed}: {:?} beside a waiting task", done.1.beside);
        }
    }
    // The test can fail: under a policy that never steals, tasks are queued for longer.
    let load =
        Load { pairs: 7, timers: 9, forks: 0, locks: 0, kept: 0, cids: 3, run_max: 5_000_000, seed: 1 };
    let done = run_runtime(&drawn(1, 1, 4, 2), SimPolicyKind::PrevCpu, &load);
    assert!(done.1.beside > KICKS, "{:?}", done.1.beside);
}

/// Golden hashes: `WARMCORE_GOLDEN=rewrite` writes the present results into the file.
#[test]
fn some_runs_are_known_event_by_event() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden.txt");
    let load = Load { pairs: 6, timers: 4, forks: 2, locks: 3, kept: 2, cids: 4, run_max: 60_000, seed: 7 };
    let mut now = String::from("# machine policy: events, hash, clock. Written by tests/simulation.rs.\n");
    for (name, topology) in [("2x2x4x2", drawn(2, 2, 4, 2)), ("1x1x2x1", drawn(1, 1, 2, 1))] {
        let mut add = |policy: &str, (report, ..): (Report, Books, Topology)| {
            now += &format!("{name} {policy}: {} {:016x} {}\n", report.events, report.hash, report.now.0);
        };
        for policy in SimPolicyKind::all() {
            add(policy.name(), run_runtime(&topology, policy, &load));
        }
        for (i, kernel) in kernels().into_iter().enumerate() {
            add(
                ["kernel", "kernel-hot", "kernel-queue"][i],
                run(&topology, Settings::kernel(), kernel, &load),
            );
        }
    }
    if std::env::var("WARMCORE_GOLDEN").is_ok_and(|how| how == "rewrite") {
        std::fs::write(path, &now).expect("the tests' folder is writable");
    }
    let golden = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        golden == now,
        "the file says\n{golden}\nit is\n{now}\nIf that is meant: WARMCORE_GOLDEN=rewrite"
    );
}
