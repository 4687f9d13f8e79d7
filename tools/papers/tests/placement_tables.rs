//! Properties of the placement tables that hold whatever the numbers are.

use warmcore_papers::hot_windows::{Shape, Trips, Windows, pairs};
use warmcore_papers::{Options, wake_queue};
use warmcore_sim::costs::Costs;
use warmcore_sim::machine::SimMachine;
use warmcore_sim::policy::Kernel;
use warmcore_topo::{MACHINES, Topology};
use warmcore_types::Nanos;

/// The most that hot windows gain without data to move, in percent.
const GAIN_WITHOUT_REFILL_MAX: f64 = 2.0;

fn run(hot_windows: bool, pairs_: u32, data_kib: u32) -> Trips {
    let topology = Topology::from_machine(MACHINES, "ryzen7950x").unwrap();
    let costs = Costs::from_machine(MACHINES, "ryzen7950x").unwrap();
    let windows = Windows::ms(10, 20);
    let shape = Shape { pairs: pairs_, turn: Nanos(5_000), data_kib, windows, hz: 1000 };
    pairs(&topology, &costs, Kernel { hot_windows, ..Kernel::default() }, 1, shape)
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
    // A share of all CPUs' time: searches of at most a microsecond, at most a thousand times per second and CPU.
    let searches = table.rows.iter().find(|row| row.name.ends_with("of all CPUs' time")).unwrap();
    assert_eq!(searches.unit, "ppm");
    assert!((1.0..1000.0).contains(&searches.simulated), "{searches:?}");
}
