//! The runs and rows of the table, form by form: predicted, informed, probed and fitted, which `cid.rs` describes.
//!
//! For each number of threads, each way to spread them over caches and each delay there are: the columns `per_cpu`,
//! `kept` and `cachelocal` of the published table (`published.toml`, section `cid`), predicted; the same columns with
//! values that were chosen after looking at the table, which each row lists as its inputs; and rows that were not
//! published. On the published machine 19 runs give 24 rows at 200 ms, and 17 runs give 21 at 10 ms, without the
//! *fitted* ones; on a machine that `fixtures/fitted.toml` does not have, the *probed* and *fitted* ones are missing.

use super::given::{self, Measured};
use super::{CHURN_PERCENT, Columns, PUBLISHED, at_usual_clock, sizes};
use crate::Row;
use crate::cid::sim::{Index, Outcome, RemoteClock, Setup, run};
use warmcore_sim::costs::Costs;
use warmcore_sim::memory::Pages;
use warmcore_topo::Topology;

/// Ticks per second that fit the table better than the default.
const INFORMED_HZ: u64 = 1000;

const TICKS: &str = "ticks_per_second";
const CLOCKS: &str = "clocks_of_idle_cpus";
const BASE_CLOCK: &str = "base_clock_after_deep_state";
const OWN_AFTER_SLEEP: &str = "own_16k_after_sleep";
const FAULT_FEW: &str = "page_fault_few_threads_per_llc";
const FAULT_MANY: &str = "page_fault_many_threads_per_llc";

/// Why a row of "areas of a thread's bursts" cannot fail.
const IDS_STAY: &str =
    "each thread is pinned, and the rule says that its id stays: no number of the machine is in it";

/// A published column: the name, and the published number.
type Column = (&'static str, fn(&Measured) -> f64);

/// The published columns.
const COLUMNS: [Column; 3] =
    [("per_cpu", |row| row.per_cpu_ns), ("kept", |row| row.kept_ns), ("cachelocal", |row| row.cachelocal_ns)];

/// The index of *kept* in [`COLUMNS`].
const KEPT: usize = 1;
/// The index of *cachelocal* in [`COLUMNS`].
const LOCAL: usize = 2;

/// All rows of one seed. `None`: the rows alone, whose numbers are those of runs that take no time.
pub(super) fn rows_of(costs: &Costs, topology: &Topology, seed: Option<u64>, columns: &Columns) -> Vec<Row> {
    let blind = at_usual_clock(costs);
    let mut rows = Vec::new();
    for delay_ms in [200, 10] {
        for (threads, llcs) in sizes(topology) {
            let setup = Setup { threads, llcs, delay_ms, ..PUBLISHED };
            // The published name, extended if there are two ways to spread this number of threads.
            let several = sizes(topology).iter().filter(|size| size.0 == threads).count() > 1;
            let spread = if several { format!(" on {llcs} L3") } else { String::new() };
            let mut part = Part {
                costs,
                blind: &blind,
                topology,
                columns,
                seed,
                setup,
                published: given::published(costs.machine(), threads, llcs, delay_ms),
                name: format!("{threads} threads{spread}, {delay_ms} ms"),
                rows: Vec::new(),
            };
            let [cpu, _, local] = part.predicted();
            part.informed();
            part.probed(&cpu);
            part.unmeasured(&local);
            rows.append(&mut part.rows);
        }
    }
    rows
}

/// The rows of one number of threads, one way to spread them and one delay.
struct Part<'a> {
    costs: &'a Costs,
    /// The same costs, but a core that wakes is at its usual clock at once.
    blind: &'a Costs,
    topology: &'a Topology,
    columns: &'a Columns,
    seed: Option<u64>,
    setup: Setup,
    published: Option<Measured>,
    /// The beginning of all row names.
    name: String,
    rows: Vec<Row>,
}

impl Part<'_> {
    fn run(&self, costs: &Costs, index: Index, setup: Setup) -> Outcome {
        let of = |seed| run(costs, self.topology, &Setup { index, ..setup }, seed);
        self.seed.map(of).unwrap_or_default()
    }

    /// Runs the published columns.
    fn run_columns(&self, costs: &Costs, setup: Setup) -> [Outcome; 3] {
        [Index::Cpu, self.columns.kept, self.columns.local].map(|index| self.run(costs, index, setup))
    }

    /// A row without a published number.
    fn row(&self, what: &str, unit: &'static str, number: f64, inputs: &[&'static str]) -> Row {
        Row::of(format!("{}, {what}", self.name), unit, vec![number]).with_inputs(inputs)
    }

    /// A time next to the published one without a claim, to show the effect of one choice alone.
    fn time(&self, column: usize, form: &str, outcome: &Outcome, inputs: &[&'static str]) -> Row {
        let (name, published) = COLUMNS[column];
        let row = self.row(&format!("{name}{form}"), "ns", outcome.burst_ns, inputs);
        row.beside(self.published.as_ref().map(published))
    }

    /// Claims a row of [`Part::time`], if there is a published number.
    fn claimed(&self, row: Row) -> Row {
        let published = row.published;
        row.against_known(published, if self.setup.delay_ms == 200 { "cid.200_ms" } else { "cid.10_ms" })
    }

    /// Adds the times of the published columns, which are claimed if there are published numbers. The null model of
    /// *kept* is the outcome if another area cost no more than the CPU's own. In the other columns a thread stays on
    /// its own area, so that null model would predict the same as the row.
    fn add_times(&mut self, form: &str, outcomes: &[Outcome; 3], inputs: [&[&'static str]; 3]) {
        for (column, (outcome, inputs)) in outcomes.iter().zip(inputs).enumerate() {
            let row = self.claimed(self.time(column, form, outcome, inputs));
            self.rows.push(if column == KEPT { row.beside_null(outcomes[0].burst_ns) } else { row });
        }
    }

    /// Adds the ratio of the burst times with `kept` ids and with `local` ids.
    fn add_gain(&mut self, form: &str, kept: &Outcome, local: &Outcome, inputs: &[&'static str]) {
        let gain = kept.burst_ns / local.burst_ns;
        let row = self.row(&format!("kept / cachelocal{form}"), "x", gain, inputs).beside_null(1.0);
        let published = self.published.map(|row| row.kept_ns / row.cachelocal_ns);
        self.rows.push(match (self.setup.threads, self.setup.delay_ms) {
            (8, 10) => row.against_known(published, "cid.8_threads_10_ms"),
            (_, 200) => row.against_known(published, "cid.200_ms_speedup"),
            _ => row,
        });
    }

    fn predicted(&mut self) -> [Outcome; 3] {
        let outcomes = self.run_columns(self.blind, self.setup);
        self.add_times("", &outcomes, [&[]; 3]);
        self.add_gain("", &outcomes[KEPT], &outcomes[LOCAL], &[]);
        // A CPU that sleeps for less than 100 ms keeps its id.
        let never = u64::from(self.setup.threads) * self.setup.delay_ms < 100;
        for (column, is_one) in [true, never, true].into_iter().enumerate() {
            // The number of areas on which a thread ran, on average; each change of area counts as another one.
            let areas = 1.0 + f64::from(outcomes[column].moved) / f64::from(self.setup.threads);
            let what = format!("{}, areas of a thread's bursts", COLUMNS[column].0);
            let row = self.row(&what, "ids", areas, &[]);
            self.rows.push(match is_one {
                true => row.against_known(self.published.map(|_| 1.0), "cid.ids").by_construction(IDS_STAY),
                false => row,
            });
        }
        outcomes
    }

    fn informed(&mut self) {
        let setup = Setup { hz: INFORMED_HZ, clock: RemoteClock::Stale, ..self.setup };
        let inputs: [&[&'static str]; 3] = [&[BASE_CLOCK], &[BASE_CLOCK, TICKS, CLOCKS], &[BASE_CLOCK]];
        let outcomes = self.run_columns(self.costs, setup);
        for (column, (outcome, inputs)) in outcomes.iter().zip(inputs).enumerate() {
            self.rows.push(self.time(column, ", informed", outcome, inputs));
        }
    }

    /// Adds the *probed* rows, and at 200 ms the *fitted* ones, if `fitted.toml` has this machine. `cpu`: the predicted
    /// outcome by the CPU's number.
    fn probed(&mut self, cpu: &Outcome) {
        let sleep_ms = self.setup.delay_ms * u64::from(self.setup.threads);
        let Some(own) = given::own_after_sleep_ns(self.costs.machine(), sleep_ms) else { return };
        let after_sleep_ns = (own - cpu.after_sleep_ns).round() as i64;
        let setup = Setup { after_sleep_ns, hz: INFORMED_HZ, clock: RemoteClock::Stale, ..self.setup };
        let outcomes = self.run_columns(self.blind, setup);
        let inputs: [&[&'static str]; 3] =
            [&[OWN_AFTER_SLEEP], &[OWN_AFTER_SLEEP, TICKS, CLOCKS], &[OWN_AFTER_SLEEP]];
        self.add_times(", probed", &outcomes, inputs);
        if self.setup.delay_ms == 200 {
            self.fitted(setup, &outcomes[0], &outcomes[LOCAL]);
        }
    }

    /// Adds the *fitted* rows. `cpu`: by the CPU's number; `local`: the outcome to compare with. Both are probed.
    fn fitted(&mut self, setup: Setup, cpu: &Outcome, local: &Outcome) {
        let few = setup.llcs == 1 || setup.threads <= setup.llcs;
        let (fault_ns, which) =
            if few { (given::FAULT_FEW_NS, FAULT_FEW) } else { (given::FAULT_MANY_NS, FAULT_MANY) };
        let faulting = self.blind.with("page_fault_cow_after_200ms_idle", fault_ns * 1000);
        let faulting = faulting.expect("every machine has faults");
        let inputs = [OWN_AFTER_SLEEP, TICKS, CLOCKS, which];
        let kept = self.run(&faulting, self.columns.kept, setup);
        let row = self.claimed(self.time(KEPT, ", fitted", &kept, &inputs));
        self.rows.push(row.beside_null(cpu.burst_ns));
        self.add_gain(", fitted", &kept, local, &inputs);
        let touched = self.run(&faulting, self.columns.kept, Setup { pages: Pages::Touched, ..setup });
        let gain = touched.burst_ns / local.burst_ns;
        self.rows.push(self.row("kept / cachelocal, fitted, areas touched before", "x", gain, &inputs));
    }

    /// Adds rows that were not published, and *kept* with stale clocks beside its published number. `local`: the
    /// predicted outcome to compare with.
    fn unmeasured(&mut self, local: &Outcome) {
        let (setup, Columns { kept, local: cache_local, lowest, owned }) = (self.setup, *self.columns);
        let touched = self.run(self.blind, kept, Setup { pages: Pages::Touched, ..setup });
        let gain = touched.burst_ns / local.burst_ns;
        self.rows.push(self.row("kept / cachelocal, areas touched before", "x", gain, &[]));
        let churn = Setup { churn_percent: CHURN_PERCENT, ..setup };
        for (what, index, setup) in [
            ("lowest", lowest, setup),
            ("task-owned", owned, setup),
            ("per_cpu, threads come and go", Index::Cpu, churn),
            ("kept, threads come and go", kept, churn),
            ("cachelocal, threads come and go", cache_local, churn),
            ("task-owned, threads come and go", owned, churn),
        ] {
            let outcome = self.run(self.blind, index, setup);
            self.rows.push(self.row(what, "ns", outcome.burst_ns, &[]));
        }
        let old = self.run(self.blind, kept, Setup { clock: RemoteClock::Stale, ..setup });
        self.rows.push(self.time(KEPT, ", idle CPUs' clocks old", &old, &[CLOCKS]));
    }
}
