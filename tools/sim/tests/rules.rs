//! Rules: a simulation decides by the product's own rules. If a rule changes in the product, the simulation changes
//! too.
//!
//! `cid` has a variant of each policy without one of its rules. With such a variant the counts of a simulated process
//! show that the rule is missing, and its tasks run for a different time (`papers/tests/cid_table.rs` has such a test
//! for a published table). Two things show that the simulator has no copy of a rule. `cid`'s `Policy` is sealed, so no
//! other crate can decide which id a CPU gets. And no source file of `sim` or `papers` has a word of those rules or
//! creates an id, except for the imitation of Linux 6.19's ids, which `cid` does not have.

use std::path::Path;
use warmcore_budget::{capacity, stock};
use warmcore_cid::policy::{Rule, Without};
use warmcore_cid::{CacheLocal, KeptPerCpu, Policy as Ids, Stats};
use warmcore_sched::{
    Allowed, Home, Policy, QueueOrder, SchedDomains, StealDecision, View, Wake, WakeDecision,
};
use warmcore_sim::costs::Costs;
use warmcore_sim::memory::{Access, Pages};
use warmcore_sim::policy::Kernel;
use warmcore_sim::program::{FORKS_MAX, Length, Program, rt_app};
use warmcore_sim::simulation::process::{Expiry, Plan};
use warmcore_sim::simulation::{Outcome, Report, Settings, Simulation};
use warmcore_topo::{MACHINES, Topology};
use warmcore_types::{CpuId, LlcId, Nanos};

static FORGETFUL: Without = Without::new(&CacheLocal, Rule::Recent);
static LASTING: Without = Without::new(&KeptPerCpu, Rule::Expire);

fn machine(name: &str) -> (Costs, Topology) {
    (Costs::from_machine(MACHINES, name).unwrap(), Topology::from_machine(MACHINES, name).unwrap())
}

/// Runs eight threads, each on its own CPU, that begin at different times and sleep for longer than an id is kept.
fn sleepers(policy: &'static dyn Ids) -> (Stats, Report) {
    let (costs, topology) = machine("ryzen7950x");
    let mut sim = Simulation::new(&topology, &costs, Settings::kernel(), Kernel::default(), 1);
    let plan = Plan::new(policy).with_area(16 << 10, Pages::CopyOnWrite);
    let process = sim.process(plan.with_expiry(Expiry::Age(Nanos(100_000_000))));
    // A task that is running at ticks, so that ids are scanned.
    let ticks = Program::new("ticks").on(Allowed::Cpu(CpuId(15))).in_process(process).daemon();
    sim.spawn(&ticks.forever(|p| p.run(1_000_000))).unwrap();
    for cpu in [5, 3, 7, 1, 0, 6, 2, 4] {
        let sleeper = Program::new(format!("sleeper {cpu}")).on(Allowed::Cpu(CpuId(cpu)));
        let begins = Nanos(40_000_000 * u64::from((cpu * 5 + 3) % 8));
        let body = |p: Program| {
            p.touch_cid(Access::Write).run(10_000).sleep(310_000_000 + 7_000_000 * u64::from(cpu))
        };
        sim.spawn(&sleeper.in_process(process).after(begins).repeat(12, body)).unwrap();
    }
    let report = sim.run(Nanos(60_000_000_000)).unwrap();
    assert!(report.is_complete(), "{:?}", report.deadlock());
    (sim.process_of(process).stats(), report)
}

#[test]
fn a_rule_that_changes_in_cid_changes_a_simulation() {
    let ran = |report: &Report| -> u64 {
        report.tasks.iter().filter(|task| task.name != "ticks").map(|task| task.counts.run_ns).sum()
    };
    let ((kept, kept_ran), (lasting, lasting_ran)) = (sleepers(&KeptPerCpu), sleepers(&LASTING));
    assert!(kept.compacted > 20 && lasting.compacted == 0, "{kept:?}\n{lasting:?}");
    assert!(ran(&kept_ran) > ran(&lasting_ran), "{} and {}", ran(&kept_ran), ran(&lasting_ran));
    let ((local, local_ran), (forgetful, forgetful_ran)) = (sleepers(&CacheLocal), sleepers(&FORGETFUL));
    assert!(local.recent_hits > 20 && forgetful.recent_hits == 0, "{local:?}\n{forgetful:?}");
    assert!(ran(&forgetful_ran) > ran(&local_ran), "{} and {}", ran(&forgetful_ran), ran(&local_ran));
}

/// Words of a rule by which an id is found, bounded or freed.
const WORDS: &[&str] = &[
    "lowest_free",
    "lowest_gap",
    "max_nr_cid",
    "nr_cpus_allowed",
    "recent_cid",
    "left_behind",
    "LeftBehind",
    "Pick::",
    "retakes",
];

fn sources(dir: &Path, look: &mut impl FnMut(&Path, &str)) {
    for entry in std::fs::read_dir(dir).expect("the sources are beside the tests") {
        let path = entry.expect("it can be listed").path();
        if path.is_dir() {
            sources(&path, look);
        } else if path.extension().is_some_and(|end| end == "rs") {
            look(&path, &std::fs::read_to_string(&path).expect("it is text"));
        }
    }
}

/// Whether a line creates an id: `Cid(…)`, but neither `Index::Cid` nor `TouchCid`.
fn makes_an_id(line: &str) -> bool {
    line.match_indices("Cid(").any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || c == ':')
            && !line.trim_start().starts_with("Cid(&'static")
    })
}

#[test]
fn the_simulator_has_no_copy_of_cids_rules() {
    let mut files = 0;
    for dir in ["src", "../papers/src"] {
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join(dir), &mut |path, text| {
            files += 1;
            if path.components().any(|part| part.as_os_str().to_string_lossy().starts_with("task_owned")) {
                return;
            }
            for (number, line) in (1..).zip(text.lines()) {
                let word = WORDS.iter().find(|word| line.contains(**word));
                let word = word.copied().or(makes_an_id(line).then_some("Cid(…)"));
                assert_eq!(word, None, "{}:{number} has a rule of `cid`'s: {line}", path.display());
            }
        });
    }
    assert!(files > 50, "{files} files");
    assert!(makes_an_id("let cid = Cid(3);") && !makes_an_id("Index::Cid(policy)"));
}

/// Home with migrations that cost nothing. `shares` is not forwarded, because a simulation does not call it.
#[derive(Debug, Clone, Copy)]
struct Impatient;

impl Policy for Impatient {
    fn wake(&self, machine: &SchedDomains, view: &impl View, wake: &Wake) -> WakeDecision {
        Home::DEFAULT.wake(machine, view, wake)
    }
    fn steal(&self, machine: &SchedDomains, view: &impl View, me: CpuId, now: Nanos) -> StealDecision {
        Home::DEFAULT.steal(machine, view, me, now)
    }
    fn notify_threshold(&self, average_poll: Nanos, migration_cost: Nanos, spare: Option<Nanos>) -> u32 {
        Home::DEFAULT.notify_threshold(average_poll, migration_cost, spare)
    }
    fn cpu_to_notify(
        &self,
        machine: &SchedDomains,
        view: &impl View,
        at: CpuId,
        now: Nanos,
    ) -> Option<CpuId> {
        Home::DEFAULT.cpu_to_notify(machine, view, at, now)
    }
    fn queue_order(&self, migration_cost: Nanos) -> QueueOrder {
        Home::DEFAULT.queue_order(migration_cost)
    }
    fn max_lifo_polls(&self, average_poll: Nanos, migration_cost: Nanos) -> u32 {
        Home::DEFAULT.max_lifo_polls(average_poll, migration_cost)
    }
    fn migration_cost(&self, _: Nanos) -> Nanos {
        Nanos(0)
    }
}

/// The number of moves of many tasks with short runs on few CPUs, in 50 ms.
fn moves(policy: impl Policy) -> u64 {
    let text = "[drawn]\nsockets = 1\nl3_per_socket = 2\ncores_per_l3 = 4\nsmt = 1\n";
    let topology = Topology::from_machine(text, "drawn").unwrap();
    let mut sim = Simulation::runtime(&topology, &Costs::of(&topology), Settings::runtime(), policy, 1);
    for i in 0..24 {
        let length = Length::Exponential(Nanos(60_000));
        let nap = Length::Exponential(Nanos(120_000));
        sim.spawn(&Program::new(format!("task {i}")).forever(|p| p.run(length).sleep(nap))).unwrap();
    }
    sim.run(Nanos(50_000_000)).unwrap().total().moves()
}

#[test]
fn a_rule_that_changes_in_sched_changes_a_simulation() {
    let (home, impatient) = (moves(Home::DEFAULT), moves(Impatient));
    assert!(impatient > home, "{home} moves, {impatient} when they cost nothing");
}

#[test]
fn a_simulations_stock_has_as_many_units_as_budget_decides() {
    for (limit, units) in [(1 << 20, 1), (1 << 30, 100), (10_000, 3), (u64::MAX, 8)] {
        let (costs, topology) = machine("ryzen7950x");
        let mut sim = Simulation::new(&topology, &costs, Settings::kernel(), Kernel::default(), 1);
        let account = sim.account("tenant", None, limit);
        sim.spawn(&Program::new("task").run(1_000).charge(account, units)).unwrap();
        assert!(sim.run(Nanos(1_000_000)).unwrap().is_complete());
        let facts = capacity::Facts { limit, usage: units, taken: 0, stocks: 1 };
        let lies = stock::capacity(capacity::capacity_log2(units, facts.allows()));
        assert_eq!(sim.account_use(account), (lies, 0), "a limit of {limit}");
        assert_eq!((sim.drain(account), sim.account_use(account).0), (lies - units, units));
    }
}

#[test]
fn the_last_at_a_barrier_pays_for_the_wakes() {
    let (costs, topology) = machine("ryzen7950x");
    let mut sim = Simulation::new(&topology, &costs, Settings::kernel(), Kernel::default(), 1);
    for i in 0..8 {
        sim.spawn(&Program::new(format!("waits {i}")).barrier("all", 9)).unwrap();
    }
    sim.spawn(&Program::new("last").sleep(1_000_000).run(10_000).barrier("all", 9)).unwrap();
    let report = sim.run(Nanos(1_000_000_000)).unwrap();
    let last = report.tasks.iter().find(|task| task.name == "last").unwrap().counts.run_ns;
    assert!(report.is_complete() && last > 10_000, "{last} ns");
}

#[test]
fn a_task_that_gets_its_cpu_back_has_not_switched() {
    let text = "[one]\nsockets = 1\nl3_per_socket = 1\ncores_per_l3 = 1\nsmt = 1\n";
    let topology = Topology::from_machine(text, "one").unwrap();
    let mut sim = Simulation::new(&topology, &Costs::of(&topology), Settings::kernel(), Kernel::default(), 1);
    sim.spawn(&Program::new("alone").repeat(10, |p| p.run(1_000).yield_now())).unwrap();
    let report = sim.run(Nanos(1_000_000_000)).unwrap();
    assert_eq!((report.tasks[0].counts.switches, report.cpus[0].switches), (1, 1));
}

#[test]
fn a_change_of_affinity_reaches_the_process() {
    let (costs, topology) = machine("ryzen7950x");
    let mut sim = Simulation::new(&topology, &costs, Settings::kernel(), Kernel::default(), 1);
    let process = sim.process(Plan::new(&CacheLocal));
    let pinned = Program::new("pinned").on(Allowed::Cpu(CpuId(3))).in_process(process);
    let freed = pinned.run(1_000).sleep(1_000_000).allow(Allowed::Llc(LlcId(0)));
    sim.spawn(&freed.run(1_000)).unwrap();
    sim.run(Nanos(500_000)).unwrap();
    assert_eq!(sim.process_of(process).stats().nr_cpus_allowed, 1);
    sim.run(Nanos(10_000_000)).unwrap();
    assert_eq!(sim.process_of(process).stats().nr_cpus_allowed, 16);
}

#[test]
fn a_program_of_doubling_forks_is_read_once_per_level() {
    let doubled = |levels: usize| {
        let leaf = Program::new("leaf").run(1_000);
        (0..levels)
            .fold(leaf, |p, level| Program::new(format!("level {level}")).run(1_000).fork(p.clone()).fork(p))
    };
    let (costs, topology) = machine("ryzen7950x");
    let mut sim = Simulation::new(&topology, &costs, Settings::kernel(), Kernel::default(), 1);
    // 2^64 leaf tasks, if it ran for long enough.
    sim.spawn(&doubled(FORKS_MAX)).unwrap();
    assert_eq!(sim.run(Nanos(20_000)).unwrap().outcome, Outcome::TimeIsUp);
    let error = doubled(FORKS_MAX + 1).check().unwrap_err().to_string();
    assert!(error.contains("fork each other over more than 64 levels; let one of them loop"), "{error}");
    let forks = |levels: usize| {
        let task = |i: usize| {
            format!(r#""t{i}": {{ "loop": 1, "run": 1, "fork": "t{}", "fork2": "t{}" }}, "#, i + 1, i + 1)
        };
        let all: String = (0..levels).map(task).collect();
        let text = format!(r#"{{ "tasks": {{ {all} "t{levels}": {{ "loop": 1, "run": 1 }} }} }}"#);
        rt_app::read(&text).map(|load| load.programs.len())
    };
    assert_eq!(forks(FORKS_MAX), Ok(FORKS_MAX + 1));
    let error = forks(FORKS_MAX + 1).unwrap_err().to_string();
    assert!(
        error.starts_with("tasks.t64.fork: tasks that fork each other over more than 64 levels"),
        "{error}"
    );
}

#[test]
fn nested_loops_of_a_billion_rounds_end_with_the_time_or_with_an_error() {
    const MANY: u32 = 1_000_000_000;
    let (costs, topology) = machine("ryzen7950x");
    let run = |program: Program| {
        let mut sim = Simulation::new(&topology, &costs, Settings::kernel(), Kernel::default(), 1);
        sim.spawn(&program).and_then(|_| sim.run(Nanos(1_000_000)))
    };
    let nested = |body: fn(Program) -> Program| Program::new("a").repeat(MANY, |p| p.repeat(MANY, body));
    assert_eq!(run(nested(|p| p.run(1_000))).unwrap().outcome, Outcome::TimeIsUp);
    for body in [|p: Program| p, |p: Program| p.run(0), |p: Program| p.mark("round")] {
        let error = run(nested(body)).unwrap_err().to_string();
        assert!(error.contains("1000000 steps, and no time has passed"), "{error}");
    }
}
