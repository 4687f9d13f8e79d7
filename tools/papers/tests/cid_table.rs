//! The cid table: its rules are those of `warmcore_cid`, an effect vanishes without its cause, and a seed gives the
//! same numbers on every machine.
//!
//! `Without` is a policy of `warmcore_cid` without one of its rules. With it, only the numbers of the table that depend
//! on that rule change.

use warmcore_cid::policy::{Rule, Without};
use warmcore_cid::{CacheLocal, KeptPerCpu, Lowest, Policy, policy};
use warmcore_papers::cid::sim::{Index, Outcome, RemoteClock, Setup, run};
use warmcore_papers::cid::{self, Columns, PUBLISHED};
use warmcore_papers::sensitivity::by_a_tenth;
use warmcore_papers::{Mark, Options, Table, first_predictions};
use warmcore_sim::costs::Costs;
use warmcore_sim::machine::SimMachine;
use warmcore_sim::memory::Pages;
use warmcore_topo::{MACHINES, Topology};

const MACHINE: &str = "epyc9654_2p";
const SEEDS: u64 = 4;

static FORGETFUL: Without = Without::new(&CacheLocal, Rule::Recent);
static LASTING: Without = Without::new(&KeptPerCpu, Rule::Expire);

/// The outcome of seed 1, 192 threads, 10 ms, *kept*: ns per burst; moves, faults, areas, compactions.
const GOLDEN: (f64, (u32, u64, u32, u32)) = (7167.473958333333, (362, 636, 192, 22));

fn costs() -> Costs {
    Costs::from_machine(MACHINES, MACHINE).unwrap()
}

fn topology() -> Topology {
    Topology::from_machine(MACHINES, MACHINE).unwrap()
}

fn kept(threads: u32, delay_ms: u64) -> Setup {
    let llcs = if threads == 8 { 1 } else { 24 };
    Setup { threads, llcs, delay_ms, index: Index::Cid(&KeptPerCpu), ..PUBLISHED }
}

fn outcome(costs: &Costs, setup: &Setup) -> Outcome {
    run(costs, &topology(), setup, 1)
}

/// The time of a burst in ns, the mean over a few seeds.
fn burst(costs: &Costs, setup: &Setup) -> f64 {
    let topology = topology();
    (0..SEEDS).map(|seed| run(costs, &topology, setup, seed).burst_ns).sum::<f64>() / SEEDS as f64
}

fn table() -> Table {
    cid::table(&Options { seeds: 0..SEEDS, ..Options::default() })
}

#[test]
fn eight_threads_at_10_ms_never_lose_an_id_at_any_costs() {
    let costs = costs();
    for costs in [&costs, &costs.with_equal_latencies(), &costs.scaled("boost_mhz", 500).unwrap()] {
        let all = [Index::Cid(&CacheLocal), Index::Cid(&KeptPerCpu), Index::TaskOwnedCid];
        let all = all.map(|index| outcome(costs, &Setup { index, ..kept(8, 10) }));
        let cpu = outcome(costs, &Setup { index: Index::Cpu, ..kept(8, 10) });
        for outcome in all {
            assert_eq!((outcome.moved, outcome.faults), (0, 0));
            assert_eq!(outcome.burst_ns, cpu.burst_ns);
        }
    }
}

#[test]
fn under_cache_local_no_id_moves() {
    for threads in [8, 24, 192, 384] {
        for delay_ms in [10, 200] {
            let local = Setup { index: Index::Cid(&CacheLocal), ..kept(threads, delay_ms) };
            let outcome = outcome(&costs(), &local);
            assert_eq!((outcome.moved, outcome.areas), (0, threads), "{threads} threads, {delay_ms} ms");
        }
    }
}

#[test]
fn without_expiry_24_threads_at_10_ms_lose_no_id() {
    let costs = costs();
    let local = burst(&costs, &Setup { index: Index::Cid(&CacheLocal), ..kept(24, 10) });
    let with = burst(&costs, &kept(24, 10)) / local;
    let without = burst(&costs, &Setup { compacts: false, ..kept(24, 10) }) / local;
    assert!(with > 2.0, "{with}");
    assert_eq!(without, 1.0);
}

#[test]
fn the_rules_of_cid_make_the_table() {
    // The program and the code of the compaction are the same under each policy; only the policies' rules differ.
    // Kept-per-CPU with the recent id is cache-local; without expiry it would be task-owned here.
    let costs = costs();
    let by = |index| outcome(&costs, &Setup { index, ..kept(24, 200) });
    let [lowest, kept_ids, local] =
        [&Lowest as &'static dyn Policy, &KeptPerCpu, &CacheLocal].map(|p| by(Index::Cid(p)));
    let owned = by(Index::TaskOwnedCid);
    assert_eq!(local.moved, 0, "rule 1: the recent id");
    assert!(kept_ids.moved > 24, "without it: {}", kept_ids.moved);
    assert_eq!(owned.moved, 0, "ids that never expire");
    assert_eq!(lowest.areas, 1, "all on the lowest one");
    assert!(lowest.burst_ns > 5.0 * local.burst_ns && kept_ids.burst_ns > 5.0 * local.burst_ns);
    // The policy decides, not the program: of these policies, compaction makes ids move only under kept-per-CPU.
    let policies = policy::ALL.map(|policy| (Index::Cid(policy), policy.name() != "kept-per-cpu"));
    for (index, is_same) in policies.into_iter().chain([(Index::TaskOwnedCid, true)]) {
        let plain = outcome(&costs, &Setup { index, ..kept(24, 200) });
        let never = Setup { compacts: false, index, ..kept(24, 200) };
        assert_eq!(plain.moved == outcome(&costs, &never).moved, is_same, "{index:?}");
    }
}

#[test]
fn equal_latencies_leave_no_difference_between_one_l3_and_many() {
    let flat = costs().with_equal_latencies();
    let lowest = |threads, llcs| Setup { threads, llcs, index: Index::Cid(&Lowest), ..PUBLISHED };
    let (one, many) = (burst(&flat, &lowest(8, 1)), burst(&flat, &lowest(8, 8)));
    assert_eq!(one, many, "an area that always moves");
    let (one, many) = (burst(&costs(), &lowest(8, 1)), burst(&costs(), &lowest(8, 8)));
    assert!(many > 3.0 * one, "with distances {one} and {many}");
}

#[test]
fn pages_that_exist_cost_no_faults_and_the_gain_falls_below_3_4() {
    let costs = costs();
    let touched = Setup { pages: Pages::Touched, ..kept(8, 200) };
    assert_eq!(outcome(&costs, &touched).faults, 0);
    let local = burst(&costs, &Setup { index: Index::Cid(&CacheLocal), ..touched });
    let gain = burst(&costs, &touched) / local;
    assert!(gain > 1.0 && gain < 3.4, "{gain}");
}

#[test]
fn ids_of_tasks_move_when_tasks_come_and_go() {
    let costs = costs();
    let owned = Setup { index: Index::TaskOwnedCid, ..kept(24, 200) };
    assert_eq!(outcome(&costs, &owned).moved, 0);
    let churn = Setup { churn_percent: 25, ..owned };
    assert!(outcome(&costs, &churn).moved > 0);
    let cpu = Setup { index: Index::Cpu, ..churn };
    assert_eq!(outcome(&costs, &cpu).moved, 0);
}

#[test]
fn ticks_and_clocks_matter_only_where_ids_expire() {
    let costs = costs();
    for setup in [Setup { hz: 1000, ..kept(24, 10) }, Setup { clock: RemoteClock::Stale, ..kept(24, 10) }] {
        assert_ne!(burst(&costs, &setup), burst(&costs, &kept(24, 10)));
        let local = Setup { index: Index::Cid(&CacheLocal), ..setup };
        assert_eq!(outcome(&costs, &local).moved, 0);
    }
}

#[test]
fn fitted_rows_name_their_inputs() {
    let table = table();
    for row in &table.rows {
        let fitted =
            ["informed", "probed", "fitted", "clocks old"].iter().any(|form| row.name.contains(form));
        assert_eq!(fitted, !row.inputs.is_empty(), "{}", row.name);
        assert_eq!(fitted, row.mark() == Mark::Fitted, "{}", row.name);
    }
    let published = table.rows.iter().filter(|row| row.mark() == Mark::Predicted && row.unit == "ns").count();
    assert_eq!(published, 8 * 3);
    let mut names: Vec<&str> = table.rows.iter().map(|row| row.name.as_str()).collect();
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "two rows have the same name");
}

#[test]
fn claimed_rows_are_met_and_predicted_rows_may_miss() {
    // Met without inputs: the rows of ids, and the row in which no id expires. Met with the probed cost of the own area
    // after a sleep: 10 ms. Met with fitted costs: 200 ms.
    let table = table();
    let claimed = |name: &str| {
        name.contains("areas of a thread's bursts")
            || name == "8 threads, 10 ms, kept / cachelocal"
            || name.contains("10 ms") && name.contains("probed")
            || name.contains("fitted")
    };
    let claimed: Vec<_> = table.rows.iter().filter(|row| claimed(&row.name)).collect();
    for row in &claimed {
        assert_ne!(row.is_met(), Some(false), "{}: {} ({:?})", row.name, row.simulated, row.published);
    }
    assert_eq!(claimed.iter().filter(|row| row.is_met() == Some(true)).count(), 1 + 12 + 8);
    // That ids stay follows from the rules and not from costs: these rows are true by construction, and are not
    // counted.
    let built: Vec<_> = table.rows.iter().filter(|row| row.mark() == Mark::ByConstruction).collect();
    assert_eq!(built.len(), 17);
    for row in built {
        assert_eq!((row.is_met(), row.published, row.simulated), (None, Some(1.0), 1.0), "{}", row.name);
    }
    // In the null model all three columns are equal, so only *kept* and the ratios have one.
    let [(met, of), (null, of_null)] = table.tally();
    // The null model misses rows whose threads change areas.
    assert!(
        0 < of_null && of_null < of && null < met,
        "{met} of {of}, a model without an effect {null} of {of_null}"
    );
}

#[test]
fn the_first_predictions_are_still_known() {
    let table = table();
    let said = first_predictions("cid");
    assert!(said.len() > 24, "{}", said.len());
    for said in &said {
        let row = table.rows.iter().find(|row| row.name == said.name);
        let row = row.unwrap_or_else(|| panic!("{} was predicted, and there is no such row", said.name));
        let noted = table.notes.iter().any(|note| note.starts_with(&format!("{}: first", said.name)));
        let differs = (row.simulated / said.number - 1.0).abs() > 0.02;
        assert_eq!(differs, noted, "{}: {} then, {} now", said.name, said.number, row.simulated);
    }
}

#[test]
fn the_same_seed_gives_the_same_table_and_another_seed_another() {
    let of = |seeds| serde_json::to_string(&cid::table(&Options { seeds, ..Options::default() })).unwrap();
    assert_eq!(of(0..2), of(0..2));
    assert_ne!(of(0..1), of(1..2));
}

#[test]
fn a_seed_gives_these_numbers_on_every_machine() {
    let golden = outcome(&costs(), &kept(192, 10));
    assert_eq!((golden.moved, golden.faults, golden.areas, golden.compactions), GOLDEN.1, "{golden:?}");
    assert_eq!(golden.burst_ns, GOLDEN.0);
}

#[test]
fn every_machine_has_a_table_of_its_own() {
    for name in warmcore_topo::machines(MACHINES).unwrap() {
        let options = Options { machine: SimMachine::named(&name).ok(), seeds: 0..1, ..Options::default() };
        let table = cid::table(&options);
        assert!(table.rows.iter().all(|row| row.simulated.is_finite() && row.simulated > 0.0), "{name}");
        assert_eq!(table.rows.iter().any(|row| row.published.is_some()), name == MACHINE);
    }
}

#[test]
fn the_number_that_moves_a_row_most_is_named() {
    let (costs, topology) = (costs(), topology());
    let moved = |setup: Setup| by_a_tenth(&costs, |costs: &Costs| run(costs, &topology, &setup, 1).burst_ns);
    let by_faults = moved(kept(8, 200));
    assert_eq!(by_faults[0].0, "page_fault_cow_after_200ms_idle", "{by_faults:?}");
    let by_lines = moved(Setup { index: Index::Cid(&Lowest), ..kept(192, 10) });
    let first = by_lines.first().map(|(name, _)| name.as_str());
    assert!(matches!(first, Some("c2c_other_socket" | "mlp_rmw_dirty_remote")), "{by_lines:?}");
}

/// The table of one seed with other rules in its columns.
fn table_by(columns: &Columns) -> Table {
    let machine = SimMachine::named(MACHINE).unwrap();
    cid::table_by(&machine, &Options { seeds: 0..1, ..Options::default() }, columns)
}

fn number(table: &Table, name: &str) -> f64 {
    let found = table.rows.iter().find(|row| row.name == name);
    found.unwrap_or_else(|| panic!("no row is called {name}")).simulated
}

#[test]
fn a_rule_that_changes_in_cid_changes_the_table() {
    let plain = table_by(&Columns::default());
    // Without its rule `Recent`, cache-local moves threads between areas, as kept-per-CPU does.
    let forgetful = table_by(&Columns { local: Index::Cid(&FORGETFUL), ..Columns::default() });
    // Ids that never expire stay where they are, as cache-local's do.
    let lasting = table_by(&Columns { kept: Index::Cid(&LASTING), ..Columns::default() });
    for size in ["8 threads", "24 threads", "192 threads", "384 threads"] {
        let of = |table, what: &str| number(table, &format!("{size}, 200 ms, {what}"));
        let (before, after) = (of(&plain, "cachelocal"), of(&forgetful, "cachelocal"));
        assert!(after > 1.5 * before, "{size}: {before} ns, and {after} ns without recent ids");
        assert_eq!(of(&plain, "cachelocal, areas of a thread's bursts"), 1.0);
        assert!(of(&forgetful, "cachelocal, areas of a thread's bursts") > 1.5, "{size}");
        let (before, after) = (of(&plain, "kept"), of(&lasting, "kept"));
        assert!(before > 1.5 * after, "{size}: {before} ns, and {after} ns without expiry");
        assert_eq!(of(&lasting, "kept / cachelocal"), 1.0, "{size}");
        // The other columns stay the same to the last digit.
        for what in ["per_cpu", "kept", "lowest", "task-owned"] {
            assert_eq!(of(&plain, what), of(&forgetful, what), "{size}, {what}");
        }
        for what in ["per_cpu", "cachelocal", "lowest", "task-owned"] {
            assert_eq!(of(&plain, what), of(&lasting, what), "{size}, {what}");
        }
    }
}
