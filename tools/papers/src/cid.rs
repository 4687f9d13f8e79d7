//! What a burst costs after a pause if the thread then works on the data of another concurrency id (a small number that
//! a running thread gets, by which it finds per-CPU data), as published with Linux 6.13.
//!
//! `cid/sim.rs` has the program. It runs for each of [`sizes`] and each published delay; the data are found by the
//! CPU's number, by an id of a policy of `warmcore-cid`, or by an id under the rules of Linux 6.19. The rows of the
//! published columns have four forms. The last three contain values that were chosen after looking at the table:
//!
//! - *Predicted*: the machine's numbers and the kernel's defaults.
//! - *Informed*: 1000 ticks per second, stale clocks of idle CPUs (`RemoteClock::Stale`), and a core that leaves a deep
//!   sleep state is at its base clock.
//! - *Probed*: 1000 ticks and stale clocks; and an area of the CPU's own costs after a sleep what was published for the
//!   two columns in which no area moves (`per_cpu`, `cachelocal`), so that the column `kept` is compared separately.
//! - *Fitted*, at 200 ms: as *probed*, and a page fault costs one of two values, by the number of threads per cache.
//!
//! The published table has 8 rows of three columns. With 8 threads and 10 ms, a pause of 80 ms is shorter than the 100
//! ms after which an id is freed, so all columns are equal whatever the costs. On the published machine one seed takes
//! 144 runs.
//!
//! # Source
//! "sched: Improve cache locality of RSEQ concurrency IDs for intermittent workloads", Linux 6.13.

use super::{Numbers, Options, Row, Table, changed};
use rows::rows_of;
use sim::{Index, RemoteClock, Setup};
use warmcore_cid::{CacheLocal, KeptPerCpu, Lowest};
use warmcore_sim::costs::Costs;
use warmcore_sim::machine::SimMachine;
use warmcore_sim::memory::Pages;
use warmcore_topo::Topology;

pub mod given;
mod rows;
pub mod sim;

/// Medians over other seeds differ by a smaller share than this.
const SAME: f64 = 0.02;

/// The probability in percent that a thread ends after a burst, in the rows of threads that come and go.
pub(crate) const CHURN_PERCENT: u64 = 25;

/// The program as it was published, with 8 threads and 200 ms, on a kernel with its default configuration: 250 ticks
/// per second.
pub const PUBLISHED: Setup = Setup {
    threads: 8,
    llcs: 1,
    delay_ms: 200,
    index: Index::Cpu,
    pages: Pages::CopyOnWrite,
    hz: 250,
    clock: RemoteClock::Right,
    compacts: true,
    churn_percent: 0,
    after_sleep_ns: 0,
};

/// The rules of each column: by default those of Linux.
#[derive(Debug, Clone, Copy)]
pub struct Columns {
    /// The rules of the column `kept`: Linux 6.4 to 6.12.
    pub kept: Index,
    /// The rules of the column `cachelocal`: Linux 6.13.
    pub local: Index,
    /// The rules of the rows `lowest`: Linux 6.3.
    pub lowest: Index,
    /// The rules of the rows `task-owned`: Linux 6.19.
    pub owned: Index,
}

impl Default for Columns {
    fn default() -> Self {
        Self {
            kept: Index::Cid(&KeptPerCpu),
            local: Index::Cid(&CacheLocal),
            lowest: Index::Cid(&Lowest),
            owned: Index::TaskOwnedCid,
        }
    }
}

/// The numbers of threads, each with the number of last-level caches over which they are spread: the cores of one
/// cache, one core of each cache, all cores, all CPUs. Equal ones are listed once.
pub fn sizes(topology: &Topology) -> Vec<(u32, u32)> {
    let in_first = topology.cores.iter().filter(|core| core.cpus.is_subset(&topology.llcs[0].cpus)).count();
    let llcs = topology.llcs.len();
    let all = [(in_first, 1), (llcs, llcs), (topology.cores.len(), llcs), (topology.cpus.len(), llcs)];
    let mut sizes: Vec<(u32, u32)> = Vec::new();
    for (threads, llcs) in all {
        let size = (threads as u32, llcs as u32);
        if !sizes.contains(&size) {
            sizes.push(size);
        }
    }
    sizes
}

/// The table, on the machine of the publication unless `options` name another. `quick` changes nothing.
///
/// # Panics
/// If the machine file lacks the machine of the publication.
pub fn table(options: &Options) -> Table {
    table_by(&options.machine_or(given::MACHINE), options, &Columns::default())
}

/// The table with other rules in its columns.
pub fn table_by(machine: &SimMachine, options: &Options, columns: &Columns) -> Table {
    let SimMachine { costs, topology, .. } = machine;
    let seeds = options.sweep_seeds(|seed| OfSeed::of(&rows_of(costs, topology, Some(seed), columns)));
    let mut rows = rows_of(costs, topology, None, columns);
    for (i, row) in rows.iter_mut().enumerate() {
        row.numbers = seeds.iter().map(|seed| seed.0[i].0).collect();
        // Null models are those of the first seed.
        row.null = seeds.first().and_then(|seed| row.null.and(seed.0[i].1));
    }
    let rows: Vec<Row> = rows.into_iter().map(Row::counted).collect();
    let mut notes: Vec<String> = NOTES.iter().map(|note| (*note).to_owned()).collect();
    if costs.machine() == given::MACHINE {
        notes.extend(changed("cid", &rows, SAME));
    }
    Table {
        name: "cid".into(),
        machine: costs.machine().to_owned(),
        source: "Linux 6.13, \"sched: Improve cache locality of RSEQ concurrency IDs for intermittent workloads\": \
                 ns per burst over 16 kB, mean of 5".into(),
        rows,
        notes,
    }
}

/// By row: a seed's number, and that of the null model.
struct OfSeed(Vec<(f64, Option<f64>)>);

impl OfSeed {
    fn of(rows: &[Row]) -> Self {
        Self(rows.iter().map(|row| (row.simulated, row.null)).collect())
    }
}

impl Numbers for OfSeed {
    fn numbers(&self) -> Vec<f64> {
        self.0.iter().flat_map(|(number, null)| [*number, null.unwrap_or(f64::NAN)]).collect()
    }

    fn of_numbers(numbers: &[f64]) -> Option<Self> {
        let (pairs, rest) = numbers.as_chunks();
        let of = |[number, null]: &[f64; 2]| (*number, Some(*null).filter(|null| !null.is_nan()));
        rest.is_empty().then(|| Self(pairs.iter().map(of).collect()))
    }
}

/// The machine's costs, but a core that wakes is at its usual clock at once, as in the predicted rows.
pub(crate) fn at_usual_clock(costs: &Costs) -> Costs {
    let clock = costs.get("clock_mhz").map_or(0, |clock| clock.milli);
    costs.with("base_mhz", clock).expect("every machine has a base clock")
}

const NOTES: &[&str] = &[
    "Every timed pass but each thread's first comes after a sleep of delay × threads.",
    "That the pool's pages are copied on their first write is an inference from the program (a private mapping of a \
     memfd), not an observation.",
    "A page fault after a sleep costs what it did on a virtual machine with another processor (7.1 µs); \
     an idle server needs more, and the two fitted costs, four times apart, have no mechanism behind them.",
    "That a core's own caches are empty after a deep state is assumed. That other things use its caches and TLB while it \
     sleeps is not in the model, so that own areas after seconds of sleep come out too cheap unless that is probed.",
    "An idle CPU's clock is right in the predicted rows. In those that name clocks_of_idle_cpus it is as old as the last \
     pass over idle CPUs, 32 ms or one delay: read from an older kernel's source, after a first model had missed the \
     24 threads, 10 ms.",
    "The predictions were written with knowledge of the published table, after several of these forms had been tried on it.",
    "1000 ticks per second and the base clock after a deep state were chosen because they fit better: rows with them \
     name them.",
    "How many ids a thread's bursts ran on is not printed in the report; 1 follows from its claim that ids stay.",
];
