//! Results do not depend on the number of threads, and machines without published numbers get results too.

use std::num::NonZeroUsize;
use warmcore_papers::{
    Mark, Options, Table, UNPUBLISHED, by_load, cid, drain, false_sharing, hot_windows, wake_queue,
};
use warmcore_sim::machine::SimMachine;

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
    // Two CPUs in one socket; two nodes; memory that no CPU is near to.
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
