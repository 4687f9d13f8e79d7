//! The runs and rows of the table, form by form.
//!
//! For each number of threads and each delay there are: the published columns, predicted; the same columns with
//! values that were chosen after looking at the table, which each row names; and rows that were not published. 21
//! runs give 25 rows.

use super::given::{self, Measured};
use super::{Columns, PUBLISHED, sizes};
use crate::Row;
use crate::cid::sim::{Index, Outcome, RemoteClock, Setup, run};
use warmcore_sim::costs::Costs;
use warmcore_sim::memory::Pages;
use warmcore_topo::Topology;

/// The probability that a thread ends after a burst, in the rows of threads that come and go.
const CHURN_PERCENT: u64 = 25;

/// Ticks per second that fit the table better than the default.
const INFORMED_HZ: u64 = 1000;

const TICKS: &str = "ticks_per_second";
const CLOCKS: &str = "clocks_of_idle_cpus";
const BASE_CLOCK: &str = "base_clock_after_deep_state";
const OWN_AFTER_SLEEP: &str = "own_16k_after_sleep";
const FAULT_FEW: &str = "page_fault_few_threads_per_llc";
const FAULT_MANY: &str = "page_fault_many_threads_per_llc";

/// Why a row of ids can't fail.
const IDS_STAY: &str =
    "each thread is pinned, and the rule says that its id stays: no number of the machine is in it";

/// All rows of one seed.
pub(super) fn rows_of(costs: &Costs, topology: &Topology, seed: u64, columns: &Columns) -> Vec<Row> {
    let clock = costs.get("clock_mhz").map_or(0, |clock| clock.milli);
    let blind = costs.with("base_mhz", clock).expect("every machine has a base clock");
    let mut rows = Vec::new();
    for delay_ms in [200, 10] {
        for (threads, llcs) in sizes(topology) {
            let setup = Setup { threads, llcs, delay_ms, ..PUBLISHED };
            let mut part = Part { columns: *columns, ..Part::new(costs, &blind, topology, seed, setup) };
            let (cpu, local) = part.predicted();
            part.informed();
            part.probed(&cpu);
            part.unmeasured(&local);
            rows.append(&mut part.rows);
        }
    }
    rows
}

/// One number of threads and one delay.
struct Part<'a> {
    costs: &'a Costs,
    /// The same costs, but a core that wakes is at its usual clock at once.
    blind: &'a Costs,
    topology: &'a Topology,
    columns: Columns,
    seed: u64,
    setup: Setup,
    published: Option<Measured>,
    /// The beginning of all row names.
    name: String,
    rows: Vec<Row>,
}

impl<'a> Part<'a> {
    fn new(costs: &'a Costs, blind: &'a Costs, topology: &'a Topology, seed: u64, setup: Setup) -> Self {
        let Setup { threads, llcs, delay_ms, .. } = setup;
        // The published name, extended if two ways to spread the threads have the same number.
        let several = sizes(topology).iter().filter(|size| size.0 == threads).count() > 1;
        let spread = if several { format!(" on {llcs} L3") } else { String::new() };
        let name = format!("{threads} threads{spread}, {delay_ms} ms");
        let published = given::published(costs.machine(), threads, llcs, delay_ms);
        let columns = Columns::default();
        Self { costs, blind, topology, columns, seed, setup, published, name, rows: Vec::new() }
    }

    fn run(&self, costs: &Costs, setup: Setup) -> Outcome {
        run(costs, self.topology, &setup, self.seed)
    }

    /// Adds a row without a published number.
    fn add(&mut self, what: &str, unit: &'static str, number: f64, inputs: &[&'static str]) {
        let row = Row::of(format!("{}, {what}", self.name), unit, vec![number]);
        self.rows.push(row.with_inputs(inputs));
    }

    /// Compares the last row with the published number, if there is one.
    fn against(&mut self, published: Option<f64>, tolerance: &str) {
        if published.is_some() {
            self.amend(|row| row.against(published, tolerance));
        }
    }

    /// Adds a time that is compared with the published one. `null` is the outcome if a CPU's own area cost as much as
    /// another one. If a thread stays on its own area, the null model predicts the same as the row, so the row proves
    /// nothing.
    fn time(
        &mut self,
        what: &str,
        (outcome, null): (&Outcome, Option<&Outcome>),
        of: fn(&Measured) -> f64,
        inputs: &[&'static str],
    ) {
        self.add(what, "ns", outcome.burst_ns, inputs);
        let tolerance = if self.setup.delay_ms == 200 { "cid.200_ms" } else { "cid.10_ms" };
        self.against(self.published.as_ref().map(of), tolerance);
        if let Some(null) = null {
            self.amend(|row| row.beside_null(null.burst_ns));
        }
    }

    /// Replaces the last row by the result of `how`.
    fn amend(&mut self, how: impl FnOnce(Row) -> Row) {
        let last = self.rows.pop();
        self.rows.extend(last.map(how));
    }

    /// Adds a time next to the published one without a claim, to show the effect of one choice alone.
    fn beside(&mut self, what: &str, outcome: &Outcome, of: fn(&Measured) -> f64, inputs: &[&'static str]) {
        self.add(what, "ns", outcome.burst_ns, inputs);
        let published = self.published.as_ref().map(of);
        self.amend(|row| Row { published, ..row });
    }

    /// Adds the ratio of the burst times with `kept` ids and with `local` ids.
    fn gain(&mut self, what: &str, kept: &Outcome, local: &Outcome, inputs: &[&'static str]) {
        self.add(what, "x", kept.burst_ns / local.burst_ns, inputs);
        let published = self.published.map(|row| row.kept_ns / row.cachelocal_ns);
        match (self.setup.threads, self.setup.delay_ms) {
            (8, 10) => self.against(published, "cid.8_threads_10_ms"),
            (_, 200) => self.against(published, "cid.200_ms_speedup"),
            _ => {}
        }
        self.amend(|row| row.beside_null(1.0));
    }

    /// Adds the number of areas on which a thread ran, where each change of area counts. `is_one`: the row claims
    /// that it is one.
    fn areas(&mut self, what: &str, outcome: &Outcome, is_one: bool) {
        let areas = 1.0 + f64::from(outcome.moved) / f64::from(self.setup.threads);
        self.add(&format!("{what}, areas of a thread's bursts"), "ids", areas, &[]);
        self.against(self.published.filter(|_| is_one).map(|_| 1.0), "cid.ids");
        if is_one {
            self.amend(|row| row.by_construction(IDS_STAY));
        }
    }

    fn predicted(&mut self) -> (Outcome, Outcome) {
        let cpu = self.run(self.blind, Setup { index: Index::Cpu, ..self.setup });
        let kept = self.run(self.blind, Setup { index: self.columns.kept, ..self.setup });
        let local = self.run(self.blind, Setup { index: self.columns.local, ..self.setup });
        self.time("per_cpu", (&cpu, None), |row| row.per_cpu_ns, &[]);
        self.time("kept", (&kept, Some(&cpu)), |row| row.kept_ns, &[]);
        self.time("cachelocal", (&local, None), |row| row.cachelocal_ns, &[]);
        self.gain("kept / cachelocal", &kept, &local, &[]);
        // A CPU that sleeps for less than 100 ms keeps its id.
        let never = u64::from(self.setup.threads) * self.setup.delay_ms < 100;
        self.areas("per_cpu", &cpu, true);
        self.areas("kept", &kept, never);
        self.areas("cachelocal", &local, true);
        (cpu, local)
    }

    fn informed(&mut self) {
        let setup = Setup { hz: INFORMED_HZ, clock: RemoteClock::Stale, ..self.setup };
        let cpu = self.run(self.costs, Setup { index: Index::Cpu, ..setup });
        let kept = self.run(self.costs, Setup { index: self.columns.kept, ..setup });
        let local = self.run(self.costs, Setup { index: self.columns.local, ..setup });
        self.beside("per_cpu, informed", &cpu, |row| row.per_cpu_ns, &[BASE_CLOCK]);
        self.beside("kept, informed", &kept, |row| row.kept_ns, &[BASE_CLOCK, TICKS, CLOCKS]);
        self.beside("cachelocal, informed", &local, |row| row.cachelocal_ns, &[BASE_CLOCK]);
    }

    /// Adds the *probed* rows. `cpu`: the predicted outcome by the CPU's number.
    fn probed(&mut self, cpu: &Outcome) {
        let sleep_ms = self.setup.delay_ms * u64::from(self.setup.threads);
        let Some(own) = given::own_after_sleep_ns(self.costs.machine(), sleep_ms) else { return };
        let after_sleep_ns = (own - cpu.after_sleep_ns).round() as i64;
        let setup = Setup { after_sleep_ns, hz: INFORMED_HZ, clock: RemoteClock::Stale, ..self.setup };
        let cpu = self.run(self.blind, Setup { index: Index::Cpu, ..setup });
        let kept = self.run(self.blind, Setup { index: self.columns.kept, ..setup });
        let local = self.run(self.blind, Setup { index: self.columns.local, ..setup });
        self.time("per_cpu, probed", (&cpu, None), |row| row.per_cpu_ns, &[OWN_AFTER_SLEEP]);
        self.time("kept, probed", (&kept, Some(&cpu)), |row| row.kept_ns, &[OWN_AFTER_SLEEP, TICKS, CLOCKS]);
        self.time("cachelocal, probed", (&local, None), |row| row.cachelocal_ns, &[OWN_AFTER_SLEEP]);
        if self.setup.delay_ms == 200 {
            self.fitted(setup, &cpu, &local);
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
        let kept = self.run(&faulting, Setup { index: self.columns.kept, ..setup });
        self.time("kept, fitted", (&kept, Some(cpu)), |row| row.kept_ns, &inputs);
        self.gain("kept / cachelocal, fitted", &kept, local, &inputs);
        let touched = self.run(&faulting, Setup { index: self.columns.kept, pages: Pages::Touched, ..setup });
        let gain = touched.burst_ns / local.burst_ns;
        self.add("kept / cachelocal, fitted, areas touched before", "x", gain, &inputs);
    }

    /// Adds rows that were not published. `local`: the predicted outcome to compare with.
    fn unmeasured(&mut self, local: &Outcome) {
        let setup = self.setup;
        let touched =
            self.run(self.blind, Setup { index: self.columns.kept, pages: Pages::Touched, ..setup });
        let gain = touched.burst_ns / local.burst_ns;
        self.add("kept / cachelocal, areas touched before", "x", gain, &[]);
        let churn = Setup { churn_percent: CHURN_PERCENT, ..setup };
        for (what, setup) in [
            ("lowest", Setup { index: self.columns.lowest, ..setup }),
            ("task-owned", Setup { index: self.columns.owned, ..setup }),
            ("per_cpu, threads come and go", Setup { index: Index::Cpu, ..churn }),
            ("kept, threads come and go", Setup { index: self.columns.kept, ..churn }),
            ("cachelocal, threads come and go", Setup { index: self.columns.local, ..churn }),
            ("task-owned, threads come and go", Setup { index: self.columns.owned, ..churn }),
        ] {
            let outcome = self.run(self.blind, setup);
            self.add(what, "ns", outcome.burst_ns, &[]);
        }
        let old =
            self.run(self.blind, Setup { index: self.columns.kept, clock: RemoteClock::Stale, ..setup });
        self.beside("kept, idle CPUs' clocks old", &old, |row| row.kept_ns, &[CLOCKS]);
    }
}
