//! Properties of the tables that hold whatever the numbers are: results do not depend on the number of threads,
//! machines without published numbers get results too, and the placement tables compare like with like.

use std::num::NonZeroUsize;
use warmcore_papers::hot_windows::{Shape, Trips, Windows, pairs};
use warmcore_papers::{
    Mark, Options, Table, UNPUBLISHED, by_load, cid, drain, false_sharing, hot_windows, wake_queue,
};
use warmcore_sim::machine::SimMachine;
use warmcore_sim::policy::Kernel;
use warmcore_types::Nanos;

const ALL: [fn(&Options) -> Table; 6] = [
    cid::table,
    false_sharing::table,
    hot_windows::table,
    drain::table,
    wake_queue::table,
    by_load::wake_queue_v3,
];

fn hwloc(name: &str) -> SimMachine {
    let path = format!("{}/../../fixtures/hwloc/{name}", env!("CARGO_MANIFEST_DIR"));
    SimMachine::read(&path).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn one_thread_two_and_eight_give_the_same_bytes() {
    let machine = Some(hwloc("synthetic-2pack-2l3-4core.xml"));
    for table in ALL {
        let on = |threads: usize| {
            let threads = NonZeroUsize::new(threads);
            let options =
                Options { machine: machine.clone(), seeds: 3..6, quick: true, threads, ..Options::default() };
            serde_json::to_string(&table(&options).concluded(&options)).unwrap()
        };
        let one = on(1);
        assert!(one == on(2) && one == on(8), "{one}");
    }
}

#[test]
fn on_any_machine_every_table_gives_rows_that_claim_nothing() {
    // The three machines: two CPUs in one socket; two nodes; a node of memory without CPUs.
    for name in ["zen4-vm-2cpu.xml", "synthetic-2pack-2l3-4core.xml", "version3-hbm-beside-dram.xml"] {
        let machine = hwloc(name);
        for table in ALL {
            let options =
                Options { machine: Some(machine.clone()), seeds: 0..1, quick: true, ..Options::default() };
            let table = table(&options).concluded(&options);
            assert!(!table.rows.is_empty() && table.machine == machine.name, "{name}: {}", table.name);
            for row in &table.rows {
                let why = row.tolerance.as_ref().and_then(|tolerance| tolerance.why.as_deref());
                assert_eq!((row.is_met(), why), (None, Some(UNPUBLISHED)), "{row:?}");
                assert!(matches!(row.mark(), Mark::NotClaimed | Mark::ByConstruction), "{row:?}");
                assert!(row.simulated.is_finite(), "{name}: {row:?}");
            }
            assert!(table.notes.iter().any(|note| note.contains("costs are estimates")), "{:?}", table.notes);
        }
    }
}

#[test]
fn the_published_machine_is_still_compared_if_it_is_named() {
    let machine = SimMachine::named(drain::MACHINE).ok();
    let options = Options { machine, seeds: 0..5, quick: true, ..Options::default() };
    let table = drain::table(&options).concluded(&options);
    assert!(table.rows.iter().any(|row| row.is_met() == Some(true)), "{:?}", table.rows);
}

/// The most that hot windows gain without data to move, in percent.
const GAIN_WITHOUT_REFILL_MAX: f64 = 2.0;

fn run(hot_windows: bool, pairs_: u32, data_kib: u32) -> Trips {
    let machine = SimMachine::named("ryzen7950x").unwrap();
    let windows = Windows::ms(10, 20);
    let shape = Shape { pairs: pairs_, turn: Nanos(5_000), data_kib, windows, hz: 1000 };
    pairs(&machine, Kernel { hot_windows, ..Kernel::default() }, 1, shape)
}

#[test]
fn without_anything_to_carry_hot_windows_gain_nothing() {
    for pairs in [24, 28, 32] {
        let (linux, hot) = (run(false, pairs, 0), run(true, pairs, 0));
        let gain = (hot.k_per_second / linux.k_per_second - 1.0) * 100.0;
        assert!(gain <= GAIN_WITHOUT_REFILL_MAX, "{pairs} pairs: {gain} %, {linux:?}, {hot:?}");
    }
}

#[test]
fn few_pairs_stay_and_the_same_seed_gives_the_same() {
    let few = run(false, 6, 16);
    assert!(few.migrating < 0.01 && few.k_per_second > 0.0, "{few:?}");
    assert_eq!(run(true, 28, 16), run(true, 28, 16));
}

#[test]
fn a_build_is_compared_under_every_setting_with_the_same_seed() {
    let machine = SimMachine::named("ryzen7950x").ok();
    let table = wake_queue::table(&Options { machine, seeds: 0..2, quick: true, ..Options::default() });
    let times: Vec<_> = table.rows.iter().filter(|row| row.name.ends_with(", time")).collect();
    assert_eq!(times.len(), 3, "{:?}", table.rows.iter().map(|row| &row.name).collect::<Vec<_>>());
    for row in &table.rows {
        assert!(!row.inputs.is_empty(), "the job graph is in all: {row:?}");
        assert!(row.simulated.is_finite() && row.spread.0 <= row.spread.1, "{row:?}");
        assert!(!row.name.ends_with(", time") || row.simulated.abs() < 20.0, "{row:?}");
    }
    let claimed = table.rows.iter().filter(|row| row.tolerance.is_some()).count();
    assert_eq!(claimed, 2, "one of each kind");
    // Searches of at most a microsecond, at most a thousand times per second and CPU, are a thousandth of all CPUs'
    // time.
    let searches = table.rows.iter().find(|row| row.name.ends_with("of all CPUs' time")).unwrap();
    assert_eq!(searches.unit, "ppm");
    assert!((1.0..1000.0).contains(&searches.simulated), "{searches:?}");
}
