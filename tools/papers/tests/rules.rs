//! The ids of the table are those of `cid`: without one of its rules, the table changes as that rule predicts.
//!
//! `cid` has a form of each policy without one of its rules. With it, only the numbers of the table that depend on that rule
//! change.

use warmcore_cid::policy::{Rule, Without};
use warmcore_cid::{CacheLocal, KeptPerCpu};
use warmcore_papers::cid::sim::Index;
use warmcore_papers::cid::{self, Columns};
use warmcore_papers::{Options, Table};
use warmcore_sim::costs::Costs;
use warmcore_topo::{MACHINES, Topology};

/// The machine of the publication.
const MACHINE: &str = "epyc9654_2p";

static FORGETFUL: Without = Without::new(&CacheLocal, Rule::Recent);
static LASTING: Without = Without::new(&KeptPerCpu, Rule::Expire);

fn machine(name: &str) -> (Costs, Topology) {
    (Costs::from_machine(MACHINES, name).unwrap(), Topology::from_machine(MACHINES, name).unwrap())
}

fn table(columns: &Columns) -> Table {
    let (costs, topology) = machine(MACHINE);
    cid::table_by(&costs, &topology, &Options { seeds: 0..1, ..Options::default() }, columns)
}

fn row(table: &Table, name: &str) -> f64 {
    let found = table.rows.iter().find(|row| row.name == name);
    found.unwrap_or_else(|| panic!("no row is called {name}")).simulated
}

#[test]
fn a_rule_that_changes_in_cid_changes_the_table() {
    let plain = table(&Columns::default());
    // Without its first rule, cache-local does what kept-per-CPU does.
    let forgetful = table(&Columns { local: Index::Cid(&FORGETFUL), ..Columns::default() });
    // Ids that never expire stay where they are, as cache-local's do.
    let lasting = table(&Columns { kept: Index::Cid(&LASTING), ..Columns::default() });
    for size in ["8 threads", "24 threads", "192 threads", "384 threads"] {
        let of = |table, what: &str| row(table, &format!("{size}, 200 ms, {what}"));
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
